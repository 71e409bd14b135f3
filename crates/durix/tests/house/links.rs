//! Links of the documentation lead somewhere: to a file of the repository, and to a heading of a page.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

/// Every Markdown page below a folder.
fn pages(folder: &Path, found: &mut Vec<PathBuf>) {
    for path in std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()) {
        if path.is_dir() {
            pages(&path, found);
        } else if path.extension().is_some_and(|extension| extension == "md") {
            found.push(path);
        }
    }
}

/// The lines of a page that are not in a block of code, with their numbers.
fn prose(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let mut code = false;
    text.lines().enumerate().filter_map(move |(at, line)| {
        let fence = line.starts_with("```");
        code ^= fence;
        (!code && !fence).then_some((at + 1, line))
    })
}

/// What `#…` names a heading of the page: as GitHub makes it of the heading's text.
fn anchors(text: &str) -> BTreeSet<String> {
    let headings = prose(text).filter(|(_, line)| line.starts_with('#'));
    let anchor = |(_, line): (usize, &str)| {
        let text = line.trim_start_matches('#').trim().to_lowercase();
        let kept = text.chars().filter(|c| c.is_alphanumeric() || " -_".contains(*c));
        kept.map(|c| if c == ' ' { '-' } else { c }).collect()
    };
    headings.map(anchor).collect()
}

/// The links of a page that lead nowhere.
fn dead_links(page: &Path, text: &str) -> Vec<String> {
    let mut dead = Vec::new();
    for (number, line) in prose(text) {
        for link in line.split("](").skip(1).filter_map(|rest| rest.split_once(')').map(|(link, _)| link)) {
            if link.contains("://") || link.contains(' ') {
                continue;
            }
            let (file, anchor) = link.split_once('#').unwrap_or((link, ""));
            let target = if file.is_empty() { page.into() } else { page.parent().unwrap().join(file) };
            let leads = match (anchor, std::fs::read_to_string(&target)) {
                ("", _) => target.exists(),
                (_, Ok(other)) => anchors(&other).contains(anchor),
                (_, Err(_)) => false,
            };
            if !leads {
                dead.push(format!("{}:{number}: {link}", page.display()));
            }
        }
    }
    dead
}

#[test]
fn links_of_the_documentation_lead_somewhere() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap();
    let mut all = Vec::new();
    pages(&root.join("docs"), &mut all);
    all.extend(["README.md", "CHANGELOG.md", "CONTRIBUTING.md"].map(|page| root.join(page)));
    let dead: Vec<String> =
        all.iter().flat_map(|page| dead_links(page, &std::fs::read_to_string(page).unwrap())).collect();
    assert!(all.len() > 40, "{} pages", all.len());
    assert!(dead.is_empty(), "{}", dead.join("\n"));
}

#[test]
fn every_page_is_a_chapter_of_the_book() {
    let docs = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs");
    let summary = std::fs::read_to_string(docs.join("SUMMARY.md")).unwrap();
    let mut all = Vec::new();
    pages(&docs, &mut all);
    let missing = all.iter().map(|page| page.strip_prefix(&docs).unwrap().display().to_string());
    let missing: Vec<String> =
        missing.filter(|page| page != "SUMMARY.md" && !summary.contains(&format!("]({page})"))).collect();
    assert!(missing.is_empty(), "not in docs/SUMMARY.md: {missing:?}");
}

#[test]
fn a_link_that_leads_nowhere_is_found() {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/README.md");
    let dead = |text: &str| dead_links(&page, text).len();
    assert_eq!(dead("[a](testing.md) and [b](SUMMARY.md), [c](https://example.org)"), 0);
    assert_eq!(dead("[a](no-such-page.md) and [b](testing.md#no-such-heading)"), 2);
    assert_eq!(dead("```text\n[a](no-such-page.md)\n```"), 0);
}
