#!/usr/bin/env bash
# The comparison with other stores and maps, once and fast: that it works. Builds all of them, so it is not part of .ci/run.
set -euo pipefail
cd "$(dirname "$0")/../benches/compare"
DURIX_BENCH_QUICK=1 cargo bench
