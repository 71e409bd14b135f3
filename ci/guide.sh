#!/usr/bin/env bash
# The guide and the README from the first page to the last, as a new user takes them: a fresh project outside the workspace, the crates
# as they are packaged for the registry, the commands of the first page, and the code that a reader sees, without the lines that rustdoc
# hides. All examples work on the same files, one after the other. Examples that need another store (`rust,ignore`) run, too, on stores that
# are made for them. It asks the registry for what the pages add.
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
# The commands of a project, at the top of the first page. `cargo add` and `cargo install` ask the registry, where nothing is before the
# first release.
commands=$(sed -n '/^```sh$/,/^```$/p' "$checkout/docs/guide/getting-started.md" | sed '/^```$/q' | sed '/^```/d')
commands=$(sed "s|cargo add durix|cargo add --quiet durix --path $(echo "$work"/crates/durix-[0-9]*)|
    s|cargo install durix-cli|cargo build --quiet --manifest-path $(echo "$work"/crates/durix-cli-*)/Cargo.toml|" <<<"$commands")
eval "$commands"
[ "$(basename "$PWD")" = app ]
pages=$(sed -n 's/.*](\(guide\/.*\.md\)).*/docs\/\1/p' "$checkout/docs/SUMMARY.md")
# What a later page adds to the project, it says; Durix itself is there.
while read -r add; do
    $add --quiet
done < <(cd "$checkout" && grep -hoE 'cargo add [a-z][a-z_-]*(@[0-9.]+)?( --features [a-z,-]*)?' $pages | grep -vE '^cargo add durix' | sort -u)
# A command that can read redb, as the page about moving says.
grep -q 'cargo install durix-cli --features redb' "$checkout/docs/guide/moving.md"
cargo build --quiet --features redb --manifest-path "$(echo "$work"/crates/durix-cli-*)/Cargo.toml"
mkdir -p src/bin
# The stores that the page about moving moves from.
cat >src/bin/example00.rs <<'END'
// stores of before
fn main() -> Result<(), Box<dyn std::error::Error>> {
    std::fs::create_dir_all("old.lmdb")?;
    // SAFETY: nobody else has the files.
    let env = unsafe { heed::EnvOpenOptions::new().max_dbs(1).map_size(1 << 30).open("old.lmdb")? };
    let mut change = env.write_txn()?;
    let settings = env.create_database::<heed::types::Bytes, heed::types::Bytes>(&mut change, Some("settings"))?;
    let old = sled::open("old.sled")?;
    let tree = old.open_tree("settings")?;
    for n in 0..25_000_u32 {
        settings.put(&mut change, &n.to_be_bytes(), b"value")?;
        tree.insert(n.to_be_bytes(), b"value")?;
    }
    change.commit()?;
    old.flush()?;
    Ok(())
}
END
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
    done < <(awk '/^```rust(,ignore|,no_run)?$/ { on = 1; next } on && /^```$/ { on = 0; printf "%c", 0; next }
        on && !/^# / && $0 != "#" { print }' "$checkout/$page")
done
cargo build --quiet --bins
mkdir files && cd files
for file in ../src/bin/*.rs; do
    echo "-- $(sed -n '1s,^// ,,p' "$file") $(basename "$file" .rs)"
    "$CARGO_TARGET_DIR/debug/$(basename "$file" .rs)"
done
# The commands of these pages work on the same files. One round of torture, and short measurements, are as good here.
export PATH=$CARGO_TARGET_DIR/debug:$PATH
shell() {
    sed -n '/^```sh$/,/^```$/p' "$checkout/docs/guide/$1.md" | sed '/^```/d; s/--rounds [0-9]*/--rounds 1/; s/durix bench/& --ops 100/'
}
# Of the first page, all but the commands of the project.
bash -euc "$(shell getting-started | sed '1,/^cargo install/d')" | tee outside
grep -q "^grace$(printf '\t')1906$" outside
bash -euc "$(shell which-kind)"
bash -euc "$(shell transactions)"
bash -euc "$(shell operations)"
# What the page about moving moves.
sqlite3 old.sqlite "CREATE TABLE settings (key, value); INSERT INTO settings VALUES ('colour', 'blue'), ('path', 'a\\b, \"c\"' || char(9));"
durix put --pool ages.durix --create --index ages --key-type string --value-type u64 ada 36
durix dump --pool ages.durix --redb old.redb
bash -euo pipefail -c "$(shell moving)"
[ "$(durix scan --pool new.durix --index settings)" = "$(printf '%s\t%s\n' colour blue path 'a\\b, "c"\t')" ]
[ "$(durix get --pool new.durix --index ages ada)" = 36 ]
for store in lmdb sled; do
    [ "$(durix scan --pool from-$store.durix --index settings --keys-only | wc -l)" = 25000 ]
done
# The page about errors repairs a file that is damaged. Its last command says whether the new file is sound.
rm -f app.durix app.durix-*
seq 2000 | sed 's/.*/key &\tvalue &/' | durix load --quiet --pool app.durix --format tsv
at=$(grep -abo 'key 1234' app.durix | head -n 1 | cut -d : -f 1)
printf '\xff\xff\xff\xff\xff\xff\xff\xff' | dd of=app.durix bs=1 seek=$((at - 8)) conv=notrunc status=none
bash -uc "$(shell errors)" | tee repaired
grep -q 'the lengths of an entry' repaired
[ "$(durix scan --pool saved.durix --keys-only | wc -l)" = 1999 ]
echo "guide: $((number - 10)) examples build and run in a fresh project"
