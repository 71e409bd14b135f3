#!/usr/bin/env bash
# Every bench, run once in its quick form: that it works, not how fast it is. In the profile of the tests, so that little is
# compiled.
set -euo pipefail
cd "$(dirname "$0")/.."
. ci/as-tests.sh
DURIX_BENCH_QUICK=1 cargo test "${as_tests[@]}" --bench crashsim --bench cso_append --bench logfree --bench pset
cargo build "${as_tests[@]}" --bins --examples
paper=${CARGO_TARGET_DIR:-target}/debug/paper
out=$(mktemp -d)
trap 'rm -rf "$out"' EXIT
"$paper" list
"$paper" cso-fig7b --quick --keys 2048 --json "$out/figure.json" --svg "$out/figure.svg"
grep -q '"median"' "$out/figure.json"
grep -q '</svg>' "$out/figure.svg"
