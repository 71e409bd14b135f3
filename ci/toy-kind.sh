#!/usr/bin/env bash
# A new kind of index is registered in one place: see docs/adding-a-kind.md. In a copy of the tree, one line in the list of kinds
# (and two that name the dependency) register the kind of crates/toykind. Then every tool has to know it. The copy shares the
# target directory, so that only the crates above the list are built again.
set -euo pipefail
cd "$(dirname "$0")/.."
start=$SECONDS
root=$PWD
copy=$(mktemp -d)
trap 'rm -rf "$copy"' EXIT
# With the times of the files: what has not changed is not built again.
git ls-files -z --cached --others --exclude-standard | xargs -0 cp --parents -p -t "$copy"
cd "$copy"
export CARGO_TARGET_DIR=${CARGO_TARGET_DIR:-$root/target}

git init -q . && git add -A && git -c user.name=toy -c user.email=toy@example.com commit -qm before
sed -i 's|^durix-dptree = .*|&\ndurix-toykind = { path = "crates/toykind" }|' Cargo.toml
sed -i 's|^durix-rewind.workspace = true|&\ndurix-toykind.workspace = true|' crates/durix/Cargo.toml
sed -i 's|^        durix_dptree::kinds(),|&\n        durix_toykind::kinds(),|' crates/durix/src/kind.rs
git diff --stat -- . ':!Cargo.lock'
[ "$(git diff --numstat -- '*.rs' | cut -f1,3)" = "1	crates/durix/src/kind.rs" ]

# Packages and features as `ci/test.sh` builds them, so that what lies below the list is there already.
source ci/as-tests.sh
all=("${as_tests[@]}")
say() { echo "-- $* (after $((SECONDS - start)) s)"; }
# All of the input is read before it is searched, so that whoever writes it is not cut off.
has() { grep -q -- "$1" <<<"$(cat)" || { echo "toy-kind: $2 does not know the kind" >&2; exit 1; }; }

say building
cargo build "${all[@]}" --bin durix --bin durix-contend --bin durix-mutants --bin paper
bin=$CARGO_TARGET_DIR/debug
dir=$(mktemp -d -p "${DURIX_DIR:-$copy}")
trap 'rm -rf "$copy" "$dir"' EXIT

say the command and the table of kinds
"$bin/durix" kinds --all --markdown | has '^| `toy` ' 'the table of kinds'
"$bin/durix" put --create --pool "$dir/p" --kind toy 1 2
"$bin/durix" scan --pool "$dir/p" | has '^1	2$' scan
for verb in check dump stat; do "$bin/durix" $verb --pool "$dir/p" | has . $verb; done
"$bin/durix" stat --pool "$dir/p" | has toy stat
"$bin/durix" bench --kind toy --keys 100 --ops 1000 --dir "$dir" --json | has '"toy"' bench

say torture
"$bin/durix" torture toy --rounds 5 --dir "$dir" | has kills torture
"$bin/durix-contend" toy 2

say crash simulation, fuzzing
tested=$(DURIX_KIND=toy cargo test "${all[@]}" --test blind_spots --test every_kind -- --nocapture)
has '^toy, in ' 'the tests of all kinds' <<<"$tested"
has '^fuzzing toy$' fuzzing <<<"$tested"

say planted faults, benches
"$bin/durix-mutants" --quick --only toy
"$bin/paper" kinds --quick --keys 64 --json "$dir/kinds.json" | has toy 'paper kinds'
echo "toy-kind: $((SECONDS - start)) s"
