#!/usr/bin/env bash
# The small kernels whose weak orderings matter, under every interleaving that loom can find.
set -euo pipefail
cd "$(dirname "$0")/.."
RUSTFLAGS="--cfg loom" cargo test -p durix-pmem -p durix-logfree -p durix-incll --lib --release --target-dir target/loom loom_
