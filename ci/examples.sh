#!/usr/bin/env bash
# Every example, run: the one of the README as it says there, the others as the tests have compiled them.
set -euo pipefail
cd "$(dirname "$0")/.."
cargo run --release --example quickstart
. ci/as-tests.sh
cargo build "${as_tests[@]}" --examples
for example in threads crash_test crash_test_files linked_list transactional_list; do
    echo "-- $example"
    "${CARGO_TARGET_DIR:-target}/debug/examples/$example"
done
# A workspace of its own: a web server that is killed while it writes.
cargo test --manifest-path examples/web/Cargo.toml --target-dir target/web
