#!/usr/bin/env bash
# Lints, warnings denied.
set -euo pipefail
cd "$(dirname "$0")/.."
cargo clippy --workspace --all-targets -- -D warnings
cargo clippy -p durix-bench --features histories --example histories -- -D warnings
cargo clippy -p durix-crashsim --features shuttle --all-targets -- -D warnings
