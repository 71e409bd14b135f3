//! The matrix in `docs/testing.md`: which test asks what of which structure.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use durix_kindtests::kinds;

/// The cells of the tables in the section, by row.
fn rows(document: &str) -> Vec<Vec<String>> {
    let section = document.split("## Which test asks what of which structure\n").nth(1).expect("the section");
    let section = section.split("\n## ").next().expect("its text");
    let lines = section.lines().filter(|line| line.starts_with('|') && !line.starts_with("|--"));
    lines.map(|line| line.trim_matches('|').split('|').map(|cell| cell.trim().to_owned()).collect()).collect()
}

/// What stands between backquotes.
fn quoted(cell: &str) -> impl Iterator<Item = &str> {
    cell.split('`').skip(1).step_by(2)
}

#[test]
fn every_kind_that_is_offered_has_a_row_and_every_test_in_it_is_there() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let rows = rows(&std::fs::read_to_string(root.join("docs/testing.md")).unwrap());
    let (matrix, legend): (Vec<_>, Vec<_>) = rows.into_iter().partition(|row| row.len() == 11);
    assert!(matrix.len() > 12 && legend.len() > 40, "{} and {} rows", matrix.len(), legend.len());

    let named: Vec<&str> = matrix.iter().flat_map(|row| quoted(&row[0])).collect();
    for kind in kinds() {
        let count = named.iter().filter(|name| **name == kind.name).count();
        // Who adds a kind begins with an experimental one: it needs its row when it is offered.
        assert!(count == 1 || count == 0 && kind.experimental, "{} has {count} rows in docs/testing.md", kind.name);
    }

    let mut tests: BTreeMap<&str, bool> = BTreeMap::new();
    for row in legend.iter().skip(1) {
        let [file, test] = quoted(&row[1]).collect::<Vec<_>>()[..] else { panic!("a file and a test: {row:?}") };
        let source = std::fs::read_to_string(root.join(file)).unwrap_or_else(|error| panic!("{file}: {error}"));
        // As a function, or by `crash_test!`.
        let is_there = [format!("fn {test}()"), format!("name: {test},")].iter().any(|form| source.contains(form));
        assert!(is_there, "{file} has no test {test}");
        assert!(tests.insert(&row[0], false).is_none(), "{} comes twice", row[0]);
    }
    for row in matrix.iter().skip(1) {
        for (cell, class) in row.iter().zip(&matrix[0]).skip(1) {
            assert!(!cell.is_empty(), "{}: {class}", row[0]);
            for word in cell.split(' ').filter(|word| !["-", "none"].contains(word)) {
                let used = tests.get_mut(word).unwrap_or_else(|| panic!("{}: {class}: {word} is no test", row[0]));
                *used = true;
            }
        }
    }
    let unused: BTreeSet<_> = tests.iter().filter(|(_, used)| !**used).map(|(name, _)| name).collect();
    assert!(unused.is_empty(), "tests that no structure names: {unused:?}");
}
