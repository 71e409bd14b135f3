#!/usr/bin/env bash
# The tests, by the command of the README; with the optional schedulers of shuttle, whose tests need their feature.
set -euo pipefail
cd "$(dirname "$0")/.."
cargo test --workspace --features durix-crashsim/shuttle
