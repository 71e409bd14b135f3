//! Every error that a program can get is on the page about errors, and the page names no other.

use std::collections::BTreeSet;
use std::path::Path;

/// The variants of an enum of errors, from its source: each stands after its message.
fn variants(source: &str) -> BTreeSet<String> {
    let after = source.split("#[error(").skip(1).filter_map(|part| part.split_once(")]")).map(|(_, after)| after);
    let names = after.map(|after| after.trim_start().chars().take_while(|c| c.is_alphanumeric()).collect::<String>());
    // The message of a struct stands before `pub struct`.
    names.filter(|name| name.starts_with(char::is_uppercase)).collect()
}

/// The errors in the first cells of the tables of a page.
fn named(page: &str) -> BTreeSet<String> {
    let cells = page.lines().filter_map(|line| line.strip_prefix('|')?.split('|').next());
    let quoted = cells.flat_map(|cell| cell.split('`').skip(1).step_by(2));
    quoted.map(|name| name.trim().to_owned()).collect()
}

#[test]
fn the_page_about_errors_has_each_of_them() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let read = |path: &str| std::fs::read_to_string(root.join(path)).unwrap();
    let of_maps = variants(&read("crates/index/src/error.rs"));
    let of_pools = variants(&read("crates/pmem/src/error.rs"));
    assert!(of_maps.len() >= 24 && of_pools.len() >= 50, "{} and {} were found", of_maps.len(), of_pools.len());
    let page = read("docs/guide/errors.md");
    let prose = page.split('`').skip(1).step_by(2).map(str::to_owned);
    let named = named(&page).into_iter().chain(prose.filter(|name| name.starts_with("Pool("))).collect::<BTreeSet<_>>();
    // A page that a scrub finds damaged comes within the failure of the scrub.
    let is_inner = |name: &str| ["Pool", "DamagedPage"].contains(&name);
    let of_pools = of_pools.iter().filter(|name| !is_inner(name)).map(|name| format!("Pool({name})"));
    let all: BTreeSet<String> = of_maps.into_iter().filter(|name| !is_inner(name)).chain(of_pools).collect();
    let missing: Vec<_> = all.difference(&named).collect();
    assert!(missing.is_empty(), "docs/guide/errors.md says nothing of {missing:?}");
    let unknown: Vec<_> = named.difference(&all).filter(|name| !is_inner(name)).collect();
    assert!(unknown.is_empty(), "docs/guide/errors.md has errors that are none: {unknown:?}");
}

#[test]
fn variants_are_found_however_their_messages_are_written() {
    let source = "#[error(transparent)]\n    Pool(#[from] Error),\n#[error(\n  \"{} (x)\",\n f(a)\n )]\n    Full {\n a: u8 },\n#[error(\"{0}\")]\npub struct Unfit(pub String);";
    assert_eq!(variants(source).into_iter().collect::<Vec<_>>(), ["Full", "Pool"]);
    assert_eq!(named("| `A`, `Pool(B)` | `C` |\n`D`\n").into_iter().collect::<Vec<_>>(), ["A", "Pool(B)"]);
}
