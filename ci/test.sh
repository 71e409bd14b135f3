#!/usr/bin/env bash
# The tests, by the command of the README.
set -euo pipefail
cd "$(dirname "$0")/.."
cargo test --workspace
