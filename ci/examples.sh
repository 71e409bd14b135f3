#!/usr/bin/env bash
# Every example, run.
set -euo pipefail
cd "$(dirname "$0")/.."
cargo run --release --example quickstart
cargo run --release -p durix-crashsim --example threads
cargo run --release --example crash_test
cargo run --release --example crash_test_files
cargo run --release --example linked_list
cargo run --release --example transactional_list
