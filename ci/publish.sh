#!/usr/bin/env bash
# That every published crate could be published. Without --allow-dirty, so on a clean tree only.
# A target folder of its own: cargo keeps what it unpacked from an earlier run in the same folder, also when the crates
# have changed since without a new version.
set -euo pipefail
cd "$(dirname "$0")/.."
target=$(mktemp -d)
trap 'rm -rf "$target"' EXIT
cargo publish --workspace --dry-run --target-dir "$target"
