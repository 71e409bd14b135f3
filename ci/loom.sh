#!/usr/bin/env bash
# The small kernels whose weak orderings matter, under every interleaving that loom can find. loom itself is optimised, and nothing else:
# compiling takes longer than running. Not the crash simulator either, which other tests of these crates use and no model does.
set -euo pipefail
cd "$(dirname "$0")/.."
export CARGO_PROFILE_DEV_OPT_LEVEL=0 CARGO_PROFILE_DEV_DEBUG=0 CARGO_INCREMENTAL=0
RUSTFLAGS="--cfg loom" cargo test --config profile.dev.package.durix-crashsim.opt-level=0 -p durix-pmem -p durix-logfree -p durix-incll -p durix-dptree --lib --target-dir target/loom loom_
