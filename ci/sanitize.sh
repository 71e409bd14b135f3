#!/usr/bin/env bash
# AddressSanitizer and ThreadSanitizer, by hand; `.ci/run` runs both where DURIX_DEEP=1. Everything is compiled again for each of them, into
# target/address and target/thread.
#
#     ci/sanitize.sh address              contended stress of every kind, and the unit tests that CRATES names
#     ci/sanitize.sh thread               the same
#     DURIX_SECONDS=60 ci/sanitize.sh thread dptree pset       contended stress of these kinds only, 60 seconds each
#
# `durix-contend` is the best guest of both: threads, every operation, every kind, restarts of pools; its pools lie in memory of the
# allocator, so AddressSanitizer knows where they end and who uses one that was freed. Pools in files lie in a range that the pool maps
# itself, and the sanitizer sees only that the range is there: nothing is lost by that, since offsets are masked and cannot leave it.
#
# The stable compiler's sanitizers are used: RUSTC_BOOTSTRAP=1 lets the stable compiler take the option. `cfg(durix_sanitize)` turns off what
# would hide a fault: the arena of `durix-dptree` and the spare reserves of `durix-pmem`, which keep what was freed.
#
# ThreadSanitizer looks at plain accesses of volatile memory: words of a pool are atomics, and no data race. The standard library is not
# instrumented; ci/sanitize.supp says what that hides from it. It takes more addresses than it leaves between its own: pools of a terabyte are
# mapped as far as they go.
set -euo pipefail
cd "$(dirname "$0")/.."
usage="usage: ci/sanitize.sh address|thread [kind ...]"
sanitizer=${1:?$usage}
shift
case $sanitizer in
address) runtime=asan ;;
thread) runtime=tsan ;;
*) echo "$usage" >&2 && exit 2 ;;
esac
triple=$(rustc -vV | sed -n 's/^host: //p')
libraries=$(rustc --print sysroot)/lib/rustlib/$triple/lib
if ! ls "$libraries"/librustc-*_rt.$runtime.a >/dev/null 2>&1; then
    echo "sanitize: this compiler has no ${sanitizer} sanitizer for $triple (no librustc-*_rt.$runtime.a in $libraries)" >&2
    exit 1
fi
export RUSTC_BOOTSTRAP=1 RUSTFLAGS="-Zsanitizer=$sanitizer --cfg durix_sanitize"
# What a `Plan` or a collector keeps for the whole process is no leak.
export ASAN_OPTIONS="detect_leaks=${DURIX_LEAKS:-1} ${ASAN_OPTIONS:-}"
export TSAN_OPTIONS="suppressions=$PWD/ci/sanitize.supp halt_on_error=0 exitcode=66 ${TSAN_OPTIONS:-}"
to=(--target "$triple" --target-dir "target/$sanitizer")

cargo build "${to[@]}" -p durix-torture
contend=target/$sanitizer/$triple/debug/durix-contend
