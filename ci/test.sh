#!/usr/bin/env bash
# The tests, by the command of the README; with the features that have tests of their own: schedulers of shuttle, UUIDs, files of redb.
set -euo pipefail
cd "$(dirname "$0")/.."
# The quick form draws the same cases at each run, so that it fails for what has changed and not by luck; the deep one draws new ones.
[ "${DURIX_DEEP:-0}" = 1 ] || export PROPTEST_RNG_SEED=${PROPTEST_RNG_SEED:-1}
. ci/as-tests.sh
cargo test "${as_tests[@]}"
