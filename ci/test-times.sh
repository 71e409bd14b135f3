#!/usr/bin/env bash
# Which minute of the tests goes where: the processor seconds of every test, each run alone, and their sums by binary and crate.
#
#   ci/test-times.sh               all packages
#   ci/test-times.sh durix-pmem…   some packages
#
# Processor time does not depend on what else the machine does, so that two runs compare. DURIX_LEAST is the number of seconds
# below which a test is not listed by itself (default 1).
set -euo pipefail
cd "$(dirname "$0")/.."
least=${DURIX_LEAST:-1}
packages=()
for package in "$@"; do packages+=(-p "$package"); done
[ ${#packages[@]} -gt 0 ] || packages=(--workspace)

# One line a test binary: its package, its name, its folder, its path.
binaries() {
    cargo test "${packages[@]}" --no-run --message-format=json 2>/dev/null | python3 -c '
import json, os, sys
for line in sys.stdin:
    message = json.loads(line)
    if message.get("executable") and message.get("profile", {}).get("test"):
        folder = os.path.dirname(message["manifest_path"])
        print(os.path.basename(folder), message["target"]["name"], folder, message["executable"])
'
}

# Processor seconds of a command, its children included; 3 numbers: user, system, status.
seconds_of() {
    local status=0
    TIMEFORMAT='%U %S'
    { time "$@" >/dev/null 2>&1 || status=$?; } 2>&1
    echo "$status"
}

sum=$(mktemp)
trap 'rm -f "$sum"' EXIT
while read -r crate name folder path; do
    cd "$folder"
    export CARGO_MANIFEST_DIR=$folder
    while IFS= read -r test; do
        read -r user system status < <(seconds_of "$path" --exact "$test" --test-threads=1 | tr '\n' ' ')
        [ "$status" = 0 ] || echo "FAILED: $crate $name $test" >&2
        echo "$crate $name $test $user $system" >>"$sum"
    done < <("$path" --list --format terse 2>/dev/null | sed -n 's/: test$//p')
    awk -v least="$least" -v crate="$crate" -v name="$name" '
        $1 == crate && $2 == name { all += $4 + $5; count++; if ($4 + $5 >= least) slow[$3] = $4 + $5 }
        END {
            printf "%-10s %-16s %4d tests %8.1f s\n", crate, name, count, all
            for (test in slow) printf "    %8.1f s  %s\n", slow[test], test | "sort -rn -k1"
        }' "$sum"
    cd - >/dev/null
done < <(binaries)
awk '{ crates[$1] += $4 + $5; all += $4 + $5 }
    END { for (crate in crates) printf "%8.1f s  %s\n", crates[crate], crate | "sort -rn"; close("sort -rn"); printf "%8.1f s  in all\n", all }' "$sum"
