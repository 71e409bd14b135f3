#!/usr/bin/env bash
# Which changes of public items break programs: `ci/semver.sh [REV]` compares the published crates with a revision of this repository.
# Without REV it takes the newest tag v*. It needs `cargo-semver-checks`.
set -euo pipefail
cd "$(dirname "$0")/.."
if ! cargo semver-checks --version >/dev/null 2>&1; then
    echo "semver: cargo-semver-checks is not installed: nothing was compared. To install it: cargo install --locked cargo-semver-checks" >&2
    exit 2
fi
baseline=${1:-$(git describe --tags --abbrev=0 --match 'v*' 2>/dev/null || true)}
if [ -z "$baseline" ]; then
    echo "semver: there is no tag v* yet: nothing was compared. Give a revision to compare with, as in: ci/semver.sh HEAD~100" >&2
    exit 2
fi
if ! git rev-parse --verify --quiet "$baseline^{commit}" >/dev/null; then
    echo "semver: $baseline is no revision of this repository: nothing was compared" >&2
    exit 2
fi
# The command is a program: nobody links it.
published=$(grep -L '^publish = false' crates/*/Cargo.toml | xargs sed -n 's/^name = "\(durix.*\)"/-p \1/p' | sort -u | grep -v durix-cli)
# shellcheck disable=SC2086 # Each name is a word.
if ! cargo semver-checks --baseline-rev "$baseline" $published; then
    echo "semver: something in the crates named above breaks programs written for $baseline, or could not be compared. Undo it, or raise the version" >&2
    exit 1
fi
echo "semver: no change since $baseline breaks a program, or the versions say so"
