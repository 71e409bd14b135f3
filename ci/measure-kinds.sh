#!/usr/bin/env bash
# Measures what `durix kinds` says of each kind, and writes it, with the day and the machine, where the command is compiled from. It takes
# two minutes, /dev/shm stands for persistent memory, and the machine should be quiet. The guide's tables follow:
# `DURIX_BLESS=1 cargo test -p durix-cli --test cli the_guide`.
set -euo pipefail
cd "$(dirname "$0")/.."
cargo build --release -p durix-cli
durix=${CARGO_TARGET_DIR:-target}/release/durix
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
# In an order by chance, the same each time.
seq 1 200000 | sort --random-sort --random-source=<(yes) >"$work/keys"
load=$(cut -d ' ' -f 1 /proc/loadavg)
"$durix" bench --keys-from "$work/keys" --key-type u64 --svg "$work/svg" --json >"$work/figures"
cat >crates/cli/src/commands/measured.json <<END
{
"date": "$(date -u '+%-d %B %Y')",
"machine": "$(sed -n 's/^model name.*: //p' /proc/cpuinfo | head -n 1), $(nproc) processors, load average before $load",
"command": "ci/measure-kinds.sh",
"kinds": [
$(sed 's/.*"kinds":\[//; s/\],"recommended.*//; s/\],"rounds.*//; s/},{/},\n{/g' "$work/figures")
]
}
END
