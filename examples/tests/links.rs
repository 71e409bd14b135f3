//! Links of the documentation lead to files and headings that are there; so do the pages that source code names.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..").canonicalize().unwrap()
}

/// All files of these folders with one of these endings, without what is built.
fn files(folder: &Path, endings: &[&str], found: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        if path.is_dir() && name != "target" && (!name.starts_with('.') || name == ".ci") {
            files(&path, endings, found);
        } else if endings.iter().any(|ending| name.ends_with(ending)) {
            found.push(path);
        }
    }
}

/// The text without what stands between fences or backticks.
fn prose(text: &str) -> String {
    let mut fenced = false;
    let lines = text.lines().filter(|line| {
        let fence = line.trim_start().starts_with("```");
        fenced ^= fence;
        !fenced && !fence
    });
    lines.map(|line| line.split('`').step_by(2).collect::<Vec<_>>().join("`")).collect::<Vec<_>>().join("\n")
}

/// The targets of links of a page.
fn links(text: &str) -> Vec<String> {
    let prose = prose(text);
    let targets = prose.split("](").skip(1).filter_map(|rest| rest.split(')').next());
    targets.filter(|target| !target.contains("://") && !target.starts_with("mailto:")).map(str::to_owned).collect()
}

/// What a link to a heading looks like.
fn anchors(text: &str) -> BTreeSet<String> {
    let mut fenced = false;
    let headings = text.lines().filter(|line| {
        fenced ^= line.trim_start().starts_with("```");
        !fenced && line.starts_with('#')
    });
    let anchor = |heading: &str| {
        let heading = heading.trim_start_matches('#').trim().to_lowercase();
        let kept = heading.chars().filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'));
        kept.map(|c| if c == ' ' { '-' } else { c }).collect()
    };
    headings.map(anchor).collect()
}

/// What is wrong with a link of a page.
fn broken(page: &Path, target: &str) -> Option<String> {
    let (file, anchor) = target.split_once('#').unwrap_or((target, ""));
    let path = if file.is_empty() { page.to_owned() } else { page.parent().unwrap().join(file) };
    if !path.exists() {
        return Some(format!("{}: {target} leads to no file", page.display()));
    }
    if anchor.is_empty() || path.extension().is_none_or(|ending| ending != "md") {
        return None;
    }
    let there = anchors(&std::fs::read_to_string(&path).unwrap());
    (!there.contains(anchor)).then(|| format!("{}: {target} leads to no heading; there are {there:?}", page.display()))
}

#[test]
fn links_lead_to_files_and_headings() {
    let mut pages = Vec::new();
    files(&root(), &[".md"], &mut pages);
    assert!(pages.len() > 20, "{pages:?}");
    let mut looked_at = 0;
    let mut wrong = Vec::new();
    for page in pages {
        for target in links(&std::fs::read_to_string(&page).unwrap()) {
            looked_at += 1;
            wrong.extend(broken(&page, &target));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(looked_at > 100, "only {looked_at} links");
}

#[test]
fn pages_that_source_code_names_are_there() {
    let mut sources = Vec::new();
    files(&root(), &[".rs", ".sh", ".toml"], &mut sources);
    let mut wrong = Vec::new();
    for source in sources {
        let text = std::fs::read_to_string(&source).unwrap();
        for rest in text.split("docs/").skip(1) {
            let end = rest.find(|c: char| !c.is_ascii_alphanumeric() && !matches!(c, '/' | '-' | '_' | '.'));
            let name = rest[..end.unwrap_or(rest.len())].trim_end_matches('.');
            if name.ends_with(".md") && !root().join("docs").join(name).exists() {
                wrong.push(format!("{}: docs/{name}", source.display()));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn broken_links_are_found() {
    let page = root().join("docs/README.md");
    assert_eq!(links("a [b](c.md) `[d](e)` [f](https://g)\n```\n[h](i)\n```\n[j](k.md#l)"), ["c.md", "k.md#l"]);
    assert!(broken(&page, "nowhere.md").is_some() && broken(&page, "cli.md#nowhere").is_some());
    assert!(broken(&page, "cli.md#exit-codes").is_none() && broken(&page, "#crates").is_none());
}
