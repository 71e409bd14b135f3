#!/usr/bin/env bash
# Plants faults in every structure, one at a time: each must be caught by a crash test. DURIX_DEEP=1 also plants the calls
# that come late or go astray, and measures how well failures are told.
set -euo pipefail
cd "$(dirname "$0")/.."
cargo run --release -p durix-mutants -- $([ "${DURIX_DEEP:-0}" = 1 ] || echo --quick)
