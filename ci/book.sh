#!/usr/bin/env bash
# The documentation as a book, in target/book. In the book, links to sources lead to the repository. It fails if a link leads nowhere.
# Needs mdBook.
set -euo pipefail
cd "$(dirname "$0")/.."
if ! mdbook --version >/dev/null 2>&1; then
    echo "book: mdbook is not installed: no book was made. To install it: cargo install --locked mdbook" >&2
    exit 2
fi
mdbook build docs
repository=$(sed -n 's/^git-repository-url = "\(.*\)"/\1/p' docs/book.toml)
find target/book -name '*.html' -exec sed -i -E "s,href=\"(\.\./)+(crates|examples),href=\"$repository/blob/main/\2,g" {} +
links=0
dead=0
while IFS=: read -r page link; do
    links=$((links + 1))
    [ -e "$(dirname "$page")/$link" ] && continue
    echo "book: $page: $link leads nowhere" >&2
    dead=$((dead + 1))
done < <(grep -roE --include='*.html' '<a [^>]*href="[^":#]+["#]' target/book | sed -E 's/<a .*href="//; s/["#]$//')
# A book has some hundreds of them.
[ "$links" -gt 300 ] || { echo "book: $links links were found, so this script does not see them" >&2; exit 1; }
[ "$dead" = 0 ] || exit 1
echo "book: target/book/index.html; $links links lead somewhere"
