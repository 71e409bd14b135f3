#!/usr/bin/env bash
# Documentation, warnings denied. That of the published crates also with all features, as docs.rs builds it.
set -euo pipefail
cd "$(dirname "$0")/.."
export RUSTDOCFLAGS="-D warnings"
cargo doc --workspace --no-deps
published=$(grep -L '^publish = false' crates/*/Cargo.toml | xargs sed -n 's/^name = "\(durix.*\)"/-p \1/p' | sort -u)
# shellcheck disable=SC2086 # Each name is a word.
cargo doc --no-deps --all-features $published
