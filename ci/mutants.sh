#!/usr/bin/env bash
# Plants faults in every structure, one at a time: each must be caught by a crash test, or the last line says "missed" and
# the exit code is not zero. The quick form runs what the tests have compiled. DURIX_DEEP=1 also plants the calls that come late or go
# astray, and measures how well failures are told.
set -euo pipefail
cd "$(dirname "$0")/.."
start=$SECONDS
if [ "${DURIX_DEEP:-0}" = 1 ]; then
    cargo run --release -p durix-mutants
else
    . ci/as-tests.sh
    cargo build "${as_tests[@]}" --bins --examples
    "${CARGO_TARGET_DIR:-target}/debug/durix-mutants" --quick
fi
echo "mutants: $((SECONDS - start)) s, building included"
