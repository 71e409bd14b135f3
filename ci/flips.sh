#!/usr/bin/env bash
# The tables of docs/design/damage.md: what `check` finds of damage and what `repair` saves, of pools without journal, of the files of
# journaled pools, and of their journals. They go to the standard output, with the commit, the date and the machine's load.
#
#     ci/flips.sh [flips a kind] [seed]            2000 and 1 by default: some minutes on a quiet machine
set -euo pipefail
cd "$(dirname "$0")/.."
flips=${1:-2000}
seed=${2:-1}
cargo build --release --quiet -p durix-fuzzing --example flips
flips_of() { "${CARGO_TARGET_DIR:-target}/release/examples/flips" "$@" "$flips" "$seed"; }

echo "Commit $(git rev-parse --short HEAD), $(date -u '+%d %B %Y'), load $(cut -d' ' -f1 /proc/loadavg), $flips flips a kind, seed $seed."
echo
echo "Pools without journal:"
echo
flips_of
echo
echo "The file of a journaled pool:"
echo
flips_of journaled
echo
echo "The journal of a journaled pool that was not closed:"
echo
flips_of journal
