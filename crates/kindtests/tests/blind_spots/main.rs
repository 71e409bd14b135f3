//! What the tests of single structures did not ask, asked of every kind of index there is: a new kind is taken up by itself.
//!
//! | question | test |
//! |---|---|
//! | Which entry point is the first to look at what a crash has left? | [`looks`] |
//! | What do operations meet in pages, buckets and slabs that the restart has left inactive? | [`restarts`] |
//! | Does what a dead process left visible survive the power failure that follows? | [`deaths`] |
//! | Do two writers and a reader of neighbouring keys agree, with two operations and two preemptions each? | [`threads`] |
//! | Is memory used again beside a reader that was interrupted? | [`threads`] |
//! | Is everything durable before the pool says that it was closed? | [`closing`] |
//! | Does anything rest on where the index happens to lie? | [`looks`] and [`restarts`]: with neighbours |
//!
//! With `DURIX_DEEP` set, all keys, more programs, and a second crash.

mod closing;
mod deaths;
mod looks;
mod matrix;
mod restarts;
mod threads;

use durix::kind::Entry;
use durix_crashsim::Report;
use durix_kindtests::{Act, Kind, M, kinds};
use durix_subjects::explored::deep;

/// Runs `test` for every kind, and says how much each took.
#[track_caller]
fn every_kind(test: impl Fn(Entry<M>) -> Report) {
    for entry in kinds() {
        let only = std::env::var("DURIX_KIND");
        if only.is_ok_and(|only| only != entry.name) {
            continue;
        }
        let start = std::time::Instant::now();
        let report = test(entry);
        println!("{}, in {:?}: {report}", entry.name, start.elapsed());
        if let Some(failure) = report.failure {
            panic!("{}: {failure}", entry.name);
        }
    }
}

/// Neighbouring keys with some beside them.
fn filled() -> Vec<Act> {
    [(3, 1), (4, 2), (5, 1), (9, 1)].map(|(k, v)| Act::Put(k, v)).to_vec()
}

/// Explores one after the other, up to the first failure.
fn in_turn(reports: impl IntoIterator<Item = Report>) -> Report {
    let mut total = Report::default();
    for report in reports {
        total.merge(report);
        if total.failure.is_some() {
            break;
        }
    }
    total
}
