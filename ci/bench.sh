#!/usr/bin/env bash
# Every bench, run once in its quick form: that it works, not how fast it is. In the profile of the tests, so that little is
# compiled.
set -euo pipefail
cd "$(dirname "$0")/.."
DURIX_BENCH_QUICK=1 cargo test -p durix-bench --benches
out=$(mktemp -d)
trap 'rm -rf "$out"' EXIT
cargo run -p durix-bench --bin paper -- list
cargo run -p durix-bench --bin paper -- cso-fig7b --quick --keys 2048 --json "$out/figure.json" --svg "$out/figure.svg"
grep -q '"median"' "$out/figure.json"
grep -q '</svg>' "$out/figure.svg"
