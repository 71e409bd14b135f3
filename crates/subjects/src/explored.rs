//! How deep tests of the simulator go, and what they ask of its reports.

use std::time::Instant;

use durix_crashsim::Report;

/// Whether tests are to take hours: `DURIX_DEEP` is set.
pub fn deep() -> bool {
    std::env::var_os("DURIX_DEEP").is_some()
}

/// Asks that nothing was wrong, and that every state was explored; tells how many there were.
///
/// # Panics
/// If that is not so.
#[track_caller]
pub fn complete(name: &str, report: Report) -> Report {
    let report = report.assert_ok();
    println!("{name}: {report}");
    assert!(report.complete, "{name} is not complete: {report}");
    report
}

/// As [`complete`]; tells how long it took, too.
///
/// # Panics
/// As [`complete`].
#[track_caller]
pub fn complete_in_time(name: &str, run: impl FnOnce() -> Report) -> Report {
    let start = Instant::now();
    let report = run();
    complete(&format!("{name}, in {:?}", start.elapsed()), report)
}
