#!/usr/bin/env bash
# AddressSanitizer and ThreadSanitizer under contended stress, by hand; `.ci/run` runs both where DURIX_DEEP=1. The stable compiler has them.
#
#     ci/sanitize.sh [address|thread|all] [kind ...]      all kinds unless some are named, DURIX_SECONDS (4) seconds each
#
# The guest is `durix-contend` (crates/torture): every kind, all operations, threads, growth, checkpoints, full pools, threads held up by a
# signal. Its pools lie in memory of the allocator, so AddressSanitizer knows where they end, and who uses one that was freed. It reports
# leaks, too. Each sanitizer compiles everything once more, into target/address and target/thread.
#
# `cfg(durix_sanitize)` turns off what would hide a fault: the arena of `durix-dptree` and the spare reserves of `durix-pmem` keep what was
# freed. ThreadSanitizer sees plain accesses of volatile memory: words of a pool are atomics, and no race of them is one. The standard
# library is not instrumented; ci/sanitize.supp says what follows from that.
#
# What this cannot see: pools in files lie in a range that the pool maps by itself, and a sanitizer sees only that the range is there. Offsets
# are masked, so none leaves it. Operations of assembly (write-backs, stores of 16 bytes, searches by AVX-512) are not instrumented.
set -euo pipefail
cd "$(dirname "$0")/.."
what=${1:-all}
[ $# -eq 0 ] || shift
triple=$(rustc -vV | sed -n 's/^host: //p')
libraries=$(rustc --print sysroot)/lib/rustlib/$triple/lib

sanitize() { # sanitizer, runtime, flags, kinds
    local sanitizer=$1 runtime=$2 flags=$3 kind
    shift 3
    if ! ls "$libraries"/librustc-*_rt."$runtime".a >/dev/null 2>&1; then
        echo "sanitize: this compiler has no $sanitizer sanitizer: no librustc-*_rt.$runtime.a in $libraries" >&2
        return 1
    fi
    # RUSTC_BOOTSTRAP lets a stable compiler take the option.
    RUSTC_BOOTSTRAP=1 RUSTFLAGS="-Zsanitizer=$sanitizer --cfg durix_sanitize $flags" \
        cargo build -p durix-torture --target "$triple" --target-dir "target/$sanitizer"
    for kind in "${@:-all}"; do
        echo "-- $sanitizer: $kind"
        TSAN_OPTIONS="suppressions=$PWD/ci/sanitize.supp ${TSAN_OPTIONS:-}" \
            "target/$sanitizer/$triple/debug/durix-contend" "$kind" "${DURIX_SECONDS:-4}"
    done
}

address() { sanitize address asan "" "$@"; }
# The compiler takes std, compiled without the sanitizer, for one of another ABI, and has to be told that it is none.
thread() { sanitize thread tsan -Cunsafe-allow-abi-mismatch=sanitizer "$@"; }

case $what in
address) address "$@" ;;
thread) thread "$@" ;;
all) address "$@" && thread "$@" ;;
*) echo "usage: ci/sanitize.sh [address|thread|all] [kind ...]" >&2 && exit 2 ;;
esac
