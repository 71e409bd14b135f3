#!/usr/bin/env bash
# Fuzzing. The quick form replays the inputs that long runs have kept (`crates/fuzzing/corpus`), the same ones on every machine and
# without a fuzzer, and makes sure that every target compiles. libFuzzer's own runs follow what it covers, so they differ between machines
# whatever the seed: they are for the deep form (DURIX_DEEP=1), which goes on from the same inputs with new seeds, DURIX_FUZZ_RUNS runs a
# target, or of those that are named. It uses the stable compiler without a sanitizer, so that it runs anywhere; DURIX_SANITIZER=address
# with a nightly compiler adds one.
#
#     ci/fuzz.sh                                   what CI runs
#     DURIX_DEEP=1 ci/fuzz.sh [target ...]         new inputs; they stay in fuzz/corpus
#     ci/fuzz.sh keep [target ...]                 keeps what covers most of fuzz/corpus, at most DURIX_FUZZ_KEEP inputs a target
set -euo pipefail
cd "$(dirname "$0")/.."
kept=crates/fuzzing/corpus
keep=${DURIX_FUZZ_KEEP:-150}
sanitizer=${DURIX_SANITIZER:-none}
toolchain=$([ "$sanitizer" = none ] && echo +stable || echo +nightly)

fuzz() { cargo "$toolchain" fuzz "$@"; }

unpack() { # target: kept inputs become files
    mkdir -p "fuzz/corpus/$1"
    [ -f "$kept/$1.hex" ] || return 0
    local number=0 line
    while read -r line; do
        number=$((number + 1))
        printf '%b' "$(sed 's/../\\x&/g' <<<"$line")" >"fuzz/corpus/$1/kept-$number"
    done <"$kept/$1.hex"
}

pack() { # target: files of at most 512 bytes become kept inputs; their names are hashes, so their order is as good as any
    find "fuzz/corpus/$1" -type f -size +0 -size -2 | sort | head -n "$keep" |
        while read -r file; do od -An -v -tx1 "$file" | tr -d ' \n' && echo; done | sort -u >"$kept/$1.hex"
}

case "${1:-}" in
keep)
    shift
    for target in ${*:-$(fuzz list)}; do
        # One input for each place in the code; counters would keep several times as many.
        fuzz cmin -s "$sanitizer" "$target" -- -use_counters=0
        pack "$target"
    done
    ;;
*)
    if [ "${DURIX_DEEP:-0}" != 1 ]; then
        # Into the directory of the tests, which has most of what it needs. Nothing is linked, so libFuzzer itself need not be there:
        # with this variable it is not compiled.
        CUSTOM_LIBFUZZER_PATH=none/libfuzzer.a cargo check --locked --manifest-path fuzz/Cargo.toml --target-dir target
        exec cargo test -p durix-fuzzing --test corpus
    fi
    command -v cargo-fuzz >/dev/null || cargo install --locked cargo-fuzz
    for target in ${*:-$(fuzz list)}; do
        unpack "$target"
        fuzz run -s "$sanitizer" "$target" -- -runs="${DURIX_FUZZ_RUNS:-1000000}" -seed="${DURIX_FUZZ_SEED:-0}" -timeout=20 \
            -print_final_stats=1
    done
    ;;
esac
