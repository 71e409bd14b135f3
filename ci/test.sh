#!/usr/bin/env bash
# The tests, by the command of the README; with the optional schedulers of shuttle, whose tests need their feature.
set -euo pipefail
cd "$(dirname "$0")/.."
cargo test --workspace --features durix-crashsim/shuttle
# Plants faults in what `mutants.sh` covers, too, by other scenarios.
[ "${DURIX_DEEP:-0}" != 1 ] || cargo test -p durix-logfree --test durable_links -- --ignored
