#!/usr/bin/env bash
# Every example, run: the one of the README as it says there, the others as the tests have compiled them.
set -euo pipefail
cd "$(dirname "$0")/.."
cargo run --release --example quickstart
cargo run -p durix-crashsim --example threads
cargo run --example crash_test
cargo run --example crash_test_files
cargo run --example linked_list
cargo run --example transactional_list
