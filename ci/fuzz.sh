#!/usr/bin/env bash
# Bounded runs of every fuzz target. Uses the stable compiler without a sanitizer, so that it runs anywhere;
# DURIX_SANITIZER=address with a nightly compiler adds one. DURIX_FUZZ_RUNS is the number of runs a target. The quick form
# always draws the same inputs, so that it fails for what has changed and not by luck; the deep one draws new ones (seed 0).
set -euo pipefail
cd "$(dirname "$0")/.."
runs=${DURIX_FUZZ_RUNS:-$([ "${DURIX_DEEP:-0}" = 1 ] && echo 1000000 || echo 5000)}
seed=${DURIX_FUZZ_SEED:-$([ "${DURIX_DEEP:-0}" = 1 ] && echo 0 || echo 1)}
sanitizer=${DURIX_SANITIZER:-none}
toolchain=$([ "$sanitizer" = none ] && echo +stable || echo +nightly)
command -v cargo-fuzz >/dev/null || cargo install --locked cargo-fuzz
for target in $(cargo "$toolchain" fuzz list); do
    cargo "$toolchain" fuzz run -s "$sanitizer" "$target" -- -runs="$runs" -seed="$seed" -timeout=20 -print_final_stats=1
done
