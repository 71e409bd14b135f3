#!/usr/bin/env bash
# Every bench, run once in its quick form: that it works, not how fast it is.
set -euo pipefail
cd "$(dirname "$0")/.."
DURIX_BENCH_QUICK=1 cargo bench -p durix-bench -- --test
