#!/usr/bin/env bash
# Documentation, warnings denied.
set -euo pipefail
cd "$(dirname "$0")/.."
RUSTDOCFLAGS="-D warnings" cargo doc --workspace --no-deps
