#!/usr/bin/env bash
# The guide and the README from the first page to the last, as a new user takes them: a fresh project outside the workspace, the crates
# as they are packaged for the registry, the commands of the first page, and the code that a reader sees, without the lines that rustdoc
# hides. All examples work on the same files, one after the other.
set -euo pipefail
cd "$(dirname "$0")/.."
checkout=$PWD
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
export CARGO_PROFILE_DEV_DEBUG=0 CARGO_INCREMENTAL=0
# The packages, unpacked in place of the registry's. A target folder of its own: cargo keeps what it unpacked from an earlier run.
published=$(grep -L '^publish = false' crates/*/Cargo.toml | xargs sed -n 's/^name = "\(durix.*\)"/-p \1/p' | sort -u)
# shellcheck disable=SC2086 # Each name is a word.
cargo package --quiet --allow-dirty --no-verify --target-dir "$work/package" $published
mkdir "$work/crates" "$work/.cargo"
echo '[patch.crates-io]' >"$work/.cargo/config.toml"
for package in "$work"/package/package/*.crate; do
    tar -xzf "$package" -C "$work/crates"
    folder=$work/crates/$(basename "$package" .crate)
    name=$(basename "$folder" | sed 's/-[0-9][0-9.]*$//')
    # Cargo takes no patch that nothing depends on without a warning.
    [ "$name" = durix-cli ] || printf '%s = { path = "%s" }\n' "$name" "$folder" >>"$work/.cargo/config.toml"
done
export CARGO_TARGET_DIR=${GUIDE_TARGET_DIR:-$work/target}
cd "$work"
# The first page's commands. `cargo add` and `cargo install` ask the registry, where nothing is before the first release.
commands=$(sed -n '/^```sh$/,/^```$/p' "$checkout/docs/guide/getting-started.md" | sed '/^```/d')
commands=$(sed "s|cargo add durix|cargo add --quiet durix --path $(echo "$work"/crates/durix-[0-9]*)|
    s|cargo install durix-cli|cargo build --quiet --manifest-path $(echo "$work"/crates/durix-cli-*)/Cargo.toml|" <<<"$commands")
eval "$commands"
[ "$(basename "$PWD")" = app ]
pages=$(sed -n 's/.*](\(guide\/.*\.md\)).*/docs\/\1/p' "$checkout/docs/SUMMARY.md")
# What a later page adds to the project, it says.
for page in $pages; do
    for add in $(grep -o 'cargo add [a-z]* --features [a-z,-]*' "$checkout/$page" | tr ' ' '+' | sort -u); do
        ${add//+/ } --quiet
    done
done
mkdir -p src/bin
number=10
for page in README.md $pages; do
    while IFS= read -r -d '' example; do
        [ -n "$example" ] || continue
        file=src/bin/example$((number++)).rs
        if grep -q 'fn main' <<<"$example"; then
            printf '%s\n' "$example" >"$file"
        else
            printf '// %s\nfn main() -> Result<(), Box<dyn std::error::Error>> {\n%s\nOk(())\n}\n' "$page" "$example" >"$file"
        fi
    done < <(awk '/^```rust$/ { on = 1; next } on && /^```$/ { on = 0; printf "%c", 0; next }
        on && !/^# / && $0 != "#" { print }' "$checkout/$page")
done
cargo build --quiet --bins
mkdir files && cd files
for file in ../src/bin/*.rs; do
    echo "-- $(sed -n '1s,^// ,,p' "$file") $(basename "$file" .rs)"
    "$CARGO_TARGET_DIR/debug/$(basename "$file" .rs)"
done
# The commands of these pages work on the same files. One round of torture is as good here.
export PATH=$CARGO_TARGET_DIR/debug:$PATH
for page in transactions operations; do
    block=$(sed -n '/^```sh$/,/^```$/p' "$checkout/docs/guide/$page.md" | sed '/^```/d; s/--rounds [0-9]*/--rounds 1/')
    bash -euc "$block"
done
echo "guide: $((number - 10)) examples build and run in a fresh project"
