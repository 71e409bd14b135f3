//! Large objects: published when they are durable, or verified by a checksum.

mod small;

use std::time::{Duration, Instant};

use durix_crashsim::{Cause, Explorer, Persistency, Report};
use durix_subjects::large::{Kind, Large};

#[track_caller]
fn in_time(name: &str, run: impl Fn() -> Report) {
    let start = Instant::now();
    let report = run().assert_ok();
    let time = start.elapsed();
    println!("{name}: {time:.1?}, {report}");
    assert!(report.complete, "{report}");
    assert!(report.crash_states.log2() > 500, "{report}");
    // One second on a core of its own, optimised; not a measurement.
    let limit = if cfg!(debug_assertions) { 60 } else { 20 };
    assert!(time < Duration::from_secs(limit), "{name}: {time:?}");
}

#[test]
fn a_node_published_after_initialisation() {
    in_time("node of 16 KiB", || Explorer::new().run(&Large(Kind::Node), &[1, 2]));
    let failure = Explorer::new().run(&Large(Kind::NodeTooEarly), &[1]).failure.expect("missed");
    assert!(matches!(failure.cause, Cause::State { .. }), "{failure}");
}

#[test]
fn a_checksummed_record_with_torn_words() {
    for model in [Persistency::TornWords, Persistency::Pcso] {
        in_time("record of 4 KiB", || Explorer::new().model(model).run(&Large(Kind::Record), &[1, 2, 3]));
    }
}

#[test]
fn a_weak_checksum_is_found_by_the_torn_images() {
    let torn = Explorer::new().model(Persistency::TornWords);
    let failure = torn.run(&Large(Kind::WeakChecksum), &[1, 2, 3]).failure.expect("missed");
    println!("{failure}");
    assert!(matches!(failure.cause, Cause::State { .. }), "{failure}");
}

#[test]
fn older_versions_of_a_record_that_were_whole_are_among_what_is_found() {
    for model in [Persistency::TornWords, Persistency::Pcso, Persistency::PageCache] {
        let outcomes = Explorer::new().model(model).outcomes(&Large(Kind::Unfenced), &[1, 2, 3]);
        assert_eq!(outcomes, ["0", "1", "2", "3"].map(String::from).into(), "{model}");
    }
}
