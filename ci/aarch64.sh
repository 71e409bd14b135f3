#!/usr/bin/env bash
# The crates compile for 64-bit ARM: the whole facade is checked, and the floor below it, which has instructions of its own there, is
# compiled. Nothing is run. Needs `rustup target add aarch64-unknown-linux-gnu`; no linker and no C compiler for that target.
set -euo pipefail
cd "$(dirname "$0")/.."
target=aarch64-unknown-linux-gnu
rustup target list --installed | grep -qx "$target" || { echo "aarch64: rustup target add $target" >&2; exit 1; }
cargo check -p durix --target "$target"
cargo build -p durix-pmem --lib --target "$target"
