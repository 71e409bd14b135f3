#!/usr/bin/env bash
# Every example, run, as the tests have compiled them; with DURIX_DEEP=1 the first one also by the command of the README, which compiles
# everything with all optimisations. `dax_probe` and `power_probe` run in virtual machines (ci/dax-vm.sh, ci/power-vm.sh).
set -euo pipefail
cd "$(dirname "$0")/.."
. ci/as-tests.sh
cargo build "${as_tests[@]}" --examples
for example in quickstart "sessions --calls 200" threads crash_test crash_test_files linked_list transactional_list; do
    echo "-- $example"
    # shellcheck disable=SC2086 # Some have an argument.
    "${CARGO_TARGET_DIR:-target}/debug/examples/"$example
done
[ "${DURIX_DEEP:-0}" != 1 ] || cargo run --release --example quickstart
# A workspace of its own: a web server that is killed while it writes.
cargo test --manifest-path examples/web/Cargo.toml --target-dir target/web
