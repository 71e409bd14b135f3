#!/usr/bin/env bash
# Lints, warnings denied, with what needs a feature.
set -euo pipefail
cd "$(dirname "$0")/.."
. ci/as-tests.sh
cargo clippy "${as_tests[@]}" --all-targets --features durix-bench/histories -- -D warnings
