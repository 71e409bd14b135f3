//! A label of a persist edge is found by searching for it: it has the prefix of one crate or module, and one table of that crate defines it.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use super::rust_files;

/// The labels of all sources, and what is wrong with them.
#[derive(Default)]
struct Labels {
    /// Where each is named at a write-back or fence.
    named: BTreeMap<String, String>,
    /// Those that a table has.
    tabled: BTreeSet<String>,
    /// The crates that have rows of each prefix.
    prefixes: BTreeMap<String, BTreeSet<String>>,
    /// The files of each crate whose tables define a label.
    defined: BTreeMap<(String, String), BTreeSet<String>>,
    /// What stands after `PERSIST` and is no label.
    malformed: Vec<String>,
}

/// Whether `word` is a label: two letters, which are the prefix, a hyphen, and a name of letters and digits.
fn is_label(word: &str) -> bool {
    let is_name = |name: &str| !name.is_empty() && name.chars().all(|c| c.is_ascii_uppercase() || c.is_ascii_digit());
    word.split_once('-').is_some_and(|(prefix, name)| prefix.len() == 2 && is_name(prefix) && is_name(name))
}

/// The words of a text that labels could be among.
fn words(text: &str) -> impl Iterator<Item = &str> {
    text.split(|c: char| !c.is_alphanumeric() && c != '-').filter(|word| !word.is_empty())
}

impl Labels {
    /// Adds a source, or a page, of a crate. A page has tables only.
    fn add(&mut self, crate_: &str, file: &str, text: &str) {
        let is_page = file.ends_with(".md");
        for line in text.lines().map(str::trim) {
            let comment =
                if is_page { Some(line) } else { line.find("//").map(|at| line[at..].trim_start_matches(['/', '!'])) };
            let Some(comment) = comment else { continue };
            if let Some(row) = comment.trim().strip_prefix('|') {
                let cells: Vec<&str> = row.split('|').map(str::trim).collect();
                self.add_row(crate_, (!is_page).then_some(file), &cells);
            }
            if !is_page {
                comment.split("PERSIST ").skip(1).for_each(|edge| self.add_edge(file, edge));
            }
        }
    }

    /// A page repeats what the tables of sources say. So does a row such as `as AB-C1: this < that`, or `AB-C1 to AB-C4 | see x.rs`; any other
    /// row defines the label that it begins with.
    fn add_row(&mut self, crate_: &str, source: Option<&str>, cells: &[&str]) {
        let labels: Vec<&str> = words(cells[0]).filter(|word| is_label(word)).collect();
        if let (Some(first), Some(file)) = (labels.first(), source) {
            self.prefixes.entry(first.split('-').next().unwrap().into()).or_default().insert(crate_.into());
            if cells[0].starts_with(first) && !cells.get(1).is_some_and(|next| next.starts_with("see ")) {
                self.defined.entry((crate_.into(), (*first).into())).or_default().insert(file.into());
            }
        }
        self.tabled.extend(labels.into_iter().map(String::from));
    }

    /// Adds what is named before a colon, or up to a word of prose: `JN-T1<JN-T2, JN-T3: sync`.
    fn add_edge(&mut self, file: &str, edge: &str) {
        let named = edge.split(':').next().unwrap_or_default();
        let labels: Vec<&str> = words(named).take_while(|word| is_label(word)).collect();
        if labels.is_empty() {
            self.malformed.push(format!("{file}: PERSIST {edge}"));
        }
        self.named.extend(labels.into_iter().map(|label| (label.into(), file.into())));
    }

    fn findings(&self) -> Vec<String> {
        let missing = self.named.iter().filter(|(label, _)| !self.tabled.contains(*label));
        let missing = missing.map(|(label, file)| format!("{file}: no table has a row of {label}"));
        let shared = self.prefixes.iter().filter(|(_, crates)| crates.len() > 1);
        let shared = shared.map(|(prefix, crates)| format!("{prefix}-: rows in several crates: {crates:?}"));
        let twice = self.defined.iter().filter(|(_, files)| files.len() > 1);
        let twice = twice.map(|((_, label), files)| {
            format!("{label}: two tables define it; give one edge another label, or say \"as {label}:\" if it is the same: {files:?}")
        });
        let malformed = self.malformed.iter().map(|edge| format!("{edge}: no label with a prefix, such as JN-T1"));
        missing.chain(shared).chain(twice).chain(malformed).collect()
    }
}

#[test]
fn labels_have_a_prefix_and_a_row_in_a_table() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let mut labels = Labels::default();
    for crate_ in std::fs::read_dir(root.join("crates")).unwrap().map(|entry| entry.unwrap()) {
        let mut files = Vec::new();
        rust_files(&crate_.path().join("src"), &mut files);
        // It reads such labels itself, and has some for its own tests.
        files.retain(|file| !file.ends_with("crashsim/src/mutation.rs"));
        for file in files {
            let text = std::fs::read_to_string(&file).unwrap();
            labels.add(crate_.file_name().to_str().unwrap(), &file.display().to_string(), &text);
        }
    }
    for page in std::fs::read_dir(root.join("docs/design")).unwrap().map(|entry| entry.unwrap().path()) {
        labels.add("", &page.display().to_string(), &std::fs::read_to_string(&page).unwrap());
    }
    assert!(labels.named.len() > 150, "{} labels", labels.named.len());
    let findings = labels.findings();
    assert!(findings.is_empty(), "{}", findings.join("\n"));
}

#[test]
fn what_is_wrong_with_a_label_is_found() {
    let findings = |sources: &[(&str, &str)]| {
        let mut labels = Labels::default();
        sources.iter().for_each(|(crate_, text)| labels.add(crate_, &format!("{crate_}.rs"), text));
        labels.findings()
    };
    let table = "//! | AB-C1 this < AB-C2 that | fence |";
    assert!(findings(&[("a", table), ("a", "f(); // PERSIST AB-C1<AB-C2: fence")]).is_empty());
    assert!(findings(&[("a", table), ("a", "// PERSIST AB-C1, AB-C2 by the fence")]).is_empty());
    assert_eq!(findings(&[("a", table), ("a", "// PERSIST AB-C3: fence")]), ["a.rs: no table has a row of AB-C3"]);
    assert_eq!(findings(&[("a", table), ("a", "// PERSIST C1: fence")]).len(), 1);
    assert_eq!(findings(&[("a", table), ("b", table)]).len(), 1);
    // In one crate, in two files.
    let second = |row: &str| {
        let mut labels = Labels::default();
        [("a.rs", table), ("b.rs", row)].iter().for_each(|(file, text)| labels.add("a", file, text));
        labels.findings()
    };
    assert_eq!(second("//! | AB-C1 something else < that | fence |").len(), 1);
    assert_eq!(second("//! | AB-C1 something else < AB-C3 that |").len(), 1);
    for row in [
        "//! | as AB-C1: this < that | fence |",
        "//! | AB-C1 to AB-C3 | see `a.rs` |",
        "//! | AB-C3 that < AB-C1 | fence |",
    ] {
        assert!(second(row).is_empty(), "{row}");
    }
}
