//! Each published pattern is caught, and told well.

use durix_mutants::{Fault, patterns};

/// So many in each class of the list of published patterns.
const CLASSES: [(&str, usize); 18] = [
    ("write-back", 15),
    ("fence", 6),
    ("atomicity", 5),
    ("concurrency", 3),
    ("recovery", 5),
    ("cost", 3),
    ("first look", 1),
    ("first operations", 1),
    ("death, then power", 1),
    ("closing", 1),
    ("one boot id", 1),
    ("placement", 1),
    ("line count", 1),
    ("versions", 2),
    ("threads", 1),
    ("reuse", 1),
    ("several records", 1),
    ("space given up", 3),
];

#[test]
fn every_published_pattern_is_planted_and_caught() {
    let tried: Vec<Fault> = patterns().iter().map(|pattern| pattern.attempt(true)).collect();
    for (class, count) in CLASSES {
        assert_eq!(tried.iter().filter(|fault| fault.kind == class).count(), count, "{class}");
    }
    for fault in &tried {
        assert!(fault.caught.is_some(), "{} is missed", fault.place);
        let told = fault.told.as_ref();
        assert!(
            ["cost", "line count"].contains(&fault.kind.as_str()) || told.is_some_and(|told| told.replays),
            "{fault:?}"
        );
    }
    let told: Vec<_> = tried.iter().filter_map(|fault| fault.told.as_ref()).collect();
    let small = told.iter().filter(|told| told.is_small()).count();
    assert!(small * 100 >= told.len() * 95, "{small} of {} are small", told.len());
}
