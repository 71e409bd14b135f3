#!/usr/bin/env bash
# That every published crate could be published. Without --allow-dirty, so on a clean tree only.
set -euo pipefail
cd "$(dirname "$0")/.."
cargo publish --workspace --dry-run
