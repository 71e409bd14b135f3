#!/usr/bin/env bash
# That every published crate could be published, and what a user then gets: a fresh project outside the workspace takes all
# crates as they were packaged, and runs the first example of the README. On a clean tree only, as `cargo publish` wants it.
set -euo pipefail
cd "$(dirname "$0")/.."
readme=$PWD/README.md
# A target folder of its own: cargo keeps what it unpacked from an earlier run in the same folder, also when the crates
# have changed since without a new version.
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
export CARGO_PROFILE_DEV_DEBUG=0 CARGO_INCREMENTAL=0
cargo publish --workspace --dry-run --no-verify --target-dir "$work/target"
published=$(grep -L '^publish = false' crates/*/Cargo.toml | xargs sed -n 's/^name = "\(durix.*\)"/-p \1/p' | sort -u)
# shellcheck disable=SC2086 # Each name is a word.
cargo package --no-verify --target-dir "$work/target" $published

mkdir "$work/unpacked"
for package in "$work"/target/package/*.crate; do
    tar -xzf "$package" -C "$work/unpacked"
done
cargo new --quiet --name newcomer "$work/newcomer"
cd "$work/newcomer"
for folder in "$work"/unpacked/*; do
    name=$(basename "$folder" | sed 's/-[0-9][0-9.]*$//')
    [ "$name" = durix-cli ] || echo "$name = \"*\"" >>Cargo.toml
    patches+="$name = { path = \"$folder\" }"$'\n'
done
printf '\n[patch.crates-io]\n%s' "$patches" >>Cargo.toml
sed -n '/^```rust,no_run$/,/^```$/p' "$readme" | sed '/^```/d' >src/main.rs
# Twice: the second run finds the file of the first.
cargo run
cargo run
# The command is a program: no dependency, but a project of its own with the same packages.
sed -n '/^\[patch/,$p' Cargo.toml >>"$(echo "$work"/unpacked/durix-cli-*)/Cargo.toml"
cargo build --manifest-path "$(echo "$work"/unpacked/durix-cli-*)/Cargo.toml" --target-dir target
target/debug/durix --version
echo "publish: the packaged crates build, and the README's example runs in a fresh project"
