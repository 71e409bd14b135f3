#!/usr/bin/env bash
# Plants faults in every structure, one at a time: each must be caught by a crash test, or the last line says "missed" and
# the exit code is not zero. DURIX_DEEP=1 also plants the calls that come late or go astray, and measures how well failures
# are told.
set -euo pipefail
cd "$(dirname "$0")/.."
start=$SECONDS
cargo run --release -p durix-mutants -- $([ "${DURIX_DEEP:-0}" = 1 ] || echo --quick)
echo "mutants: $((SECONDS - start)) s, building included"
