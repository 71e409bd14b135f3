//! What a registry shows of a published crate: a description, a page, documentation with all features, and each feature explained.

use std::path::Path;

/// What is missing in a package: its manifest, its README, and the texts that have to name its features.
fn missing(manifest: &str, readme: Option<&str>, texts: &[&str]) -> Vec<String> {
    let mut missing = Vec::new();
    let value = |key: &str| {
        let mut lines = manifest.lines().filter_map(|line| line.strip_prefix(key)?.trim_start().strip_prefix('='));
        lines.next().map(|value| value.trim().trim_matches('"').to_owned())
    };
    let name = value("name").unwrap_or_default();
    if value("description").is_none_or(|description| description.len() < 40) {
        missing.push("a description".into());
    }
    if !manifest.contains("[package.metadata.docs.rs]\nall-features = true\n") {
        missing.push("all-features for docs.rs".into());
    }
    if value("readme").is_none() {
        missing.push("the key readme".into());
    }
    // A first paragraph of some sentences below the title.
    let first = readme.and_then(|text| text.strip_prefix("# ")?.split("\n\n").nth(1));
    if first.is_none_or(|first| first.matches(['.', ':']).count() < 3 || first.len() < 150) {
        missing.push("a README with a first paragraph".into());
    }
    let features = manifest.split("\n[features]\n").nth(1).unwrap_or_default().split("\n[").next().unwrap_or_default();
    for feature in features.lines().filter_map(|line| line.split_once(" = ").map(|(feature, _)| feature)) {
        let row = |text: &&&str| {
            let cell = format!("| `{feature}` |");
            text.lines().any(|line| {
                line.starts_with('|') && line.contains(&cell) || line.starts_with("//! | `") && line.contains(&cell)
            })
        };
        if texts.iter().filter(row).count() < texts.len() {
            missing.push(format!("a row of the feature {feature}"));
        }
    }
    missing.into_iter().map(|what| format!("{name}: {what}")).collect()
}

#[test]
fn published_crates_have_a_page_and_their_features_are_explained() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let list = std::fs::read_to_string(root.join("docs/README.md")).unwrap();
    let (mut found, mut published) = (Vec::new(), 0);
    for folder in std::fs::read_dir(root.join("crates")).unwrap().map(|entry| entry.unwrap().path()) {
        let manifest = std::fs::read_to_string(folder.join("Cargo.toml")).unwrap();
        if manifest.lines().any(|line| line == "publish = false") {
            continue;
        }
        published += 1;
        // That of the facade is the README of all.
        let is_facade = folder.ends_with("durix");
        let readme = std::fs::read_to_string(if is_facade { root.join("README.md") } else { folder.join("README.md") });
        let source = std::fs::read_to_string(folder.join("src/lib.rs")).unwrap_or_default();
        let own = if is_facade { &source } else { readme.as_ref().map_or(&source, |readme| readme) };
        found.extend(missing(&manifest, readme.as_deref().ok(), &[&list, own]));
    }
    assert!(published > 10, "{published} published crates");
    assert!(found.is_empty(), "{}", found.join("\n"));
}

#[test]
fn what_is_missing_in_a_package_is_found() {
    let manifest = "\
[package]
name = \"x\"
description = \"Something that is described in more than forty letters\"
readme = \"README.md\"

[features]
# One.
one = []

[package.metadata.docs.rs]
all-features = true
";
    let readme = format!(
        "# x\n\nWhat it is. When to use it. What it promises. {}\n\n| feature | adds |\n| `one` | much |\n",
        "x".repeat(150)
    );
    assert!(missing(manifest, Some(&readme), &[&readme]).is_empty());
    assert_eq!(missing(manifest, Some(&readme), &[&readme, ""]), ["x: a row of the feature one"]);
    assert_eq!(missing(manifest, Some("# x\n\nShort.\n"), &[&readme]), ["x: a README with a first paragraph"]);
    assert_eq!(missing(manifest, None, &[&readme]), ["x: a README with a first paragraph"]);
    let bare = manifest
        .replace("all-features = true\n", "")
        .replace("readme", "rd")
        .replace("Something", "")
        .replace(" that is described in more than forty letters", "");
    assert_eq!(missing(&bare, Some(&readme), &[&readme]).len(), 3);
}
