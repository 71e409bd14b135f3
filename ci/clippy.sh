#!/usr/bin/env bash
# Lints, warnings denied, with what needs a feature.
set -euo pipefail
cd "$(dirname "$0")/.."
cargo clippy --workspace --all-targets --features durix-bench/histories,durix-crashsim/shuttle -- -D warnings
