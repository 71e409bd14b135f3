//! A process that dies with the power on leaves stores that are visible and not durable: recovery has to settle what it
//! reads before anyone relies on it.

use std::sync::atomic::Ordering::{Relaxed, Release};

use durix_crashsim::{Cause, Explorer, Simulated, Subject};
use durix_pmem::{Mapping, Off, Session, Word};

/// A durable number.
#[derive(Default)]
struct Register {
    settles: bool,
    /// An update stores around the cache, and fences.
    around: bool,
    /// Recovery takes the number for damaged if it is odd.
    strict_about_parity: bool,
}

const AT: Off<Word> = Off::new(64);

impl Subject for Register {
    type Op = u64;
    type Ret = u64;
    type State = u64;
    type Model = u64;
    type Store = Mapping<Simulated>;
    type Live = Session<Simulated>;

    fn store(&self, medium: Simulated) -> Self::Store {
        Mapping::heap(4096, medium)
    }
    fn create(&self, store: &Self::Store) -> Self::Live {
        store.session().unwrap()
    }
    fn recover(&self, store: &Self::Store) -> Result<Self::Live, String> {
        // Another slot than the dead process had: nobody's fence settles the dead one's write-backs by chance.
        let mut session = store.session().map_err(|e| e.to_string())?;
        let op = session.enter().unwrap();
        if self.strict_about_parity && op.load(op.at(AT), Relaxed) % 2 == 1 {
            return Err("odd".into());
        }
        if self.settles {
            op.persist(op.at(AT));
        }
        drop(op);
        Ok(session)
    }
    fn apply(&self, live: &mut Self::Live, value: &u64) -> u64 {
        let op = live.enter().unwrap();
        if self.around {
            op.store_nt(op.at(AT), *value);
            op.fence();
        } else {
            op.store(op.at(AT), *value, Release);
            op.persist(op.at(AT));
        }
        *value
    }
    fn observe(&self, live: &mut Self::Live) -> u64 {
        let op = live.enter().unwrap();
        op.load(op.at(AT), Relaxed)
    }
    fn model(&self) -> u64 {
        0
    }
    fn step(&self, model: &mut u64, value: &u64) -> u64 {
        *model = *value;
        *value
    }
    fn expect(&self, model: &u64) -> u64 {
        *model
    }
}

const OPS: [u64; 2] = [1, 2];

#[test]
fn a_recovery_that_settles_what_it_reads_passes() {
    let subject = Register { settles: true, ..Register::default() };
    let report = Explorer::new().process_deaths(true).crashes(2).run_then(&subject, &OPS, &[7]).assert_ok();
    println!("{report}");
    assert!(report.complete);
    // Two stores, two returns.
    assert_eq!(report.deaths, 4);
}

#[test]
fn a_recovery_that_does_not_settle_what_it_reads_is_found() {
    let subject = Register::default();
    assert!(
        Explorer::new().crashes(2).run_then(&subject, &OPS, &[7]).assert_ok().complete,
        "power failures alone pass"
    );
    let explorer = Explorer::new().process_deaths(true);
    let failure = explorer.run_then(&subject, &OPS, &[]).failure.expect("missed");
    println!("{failure}");
    assert!(matches!(failure.cause, Cause::State { .. }), "{failure}");
    assert!(failure.to_string().contains("THE PROCESS DIED after the store at"), "{failure}");
    assert_eq!((failure.crash, failure.crash_after), (Some((0, true)), Some((0, false))));
    let again = Explorer::new().replay(&failure.replay).run_then(&subject, &OPS, &[]).failure.expect("not repeated");
    // A replay explores less; all else is the same.
    let told = |failure: &dyn std::fmt::Display| {
        let text = failure.to_string();
        text.lines().filter(|line| !line.starts_with("explored: ")).map(str::to_owned).collect::<Vec<_>>()
    };
    assert_eq!(told(&again), told(&failure));
}

/// What is visible of a store around the cache may be in a cache.
#[test]
fn what_a_dead_process_stored_around_the_cache_is_settled_too() {
    let explorer = Explorer::new().process_deaths(true);
    let settled = Register { settles: true, around: true, ..Register::default() };
    assert!(explorer.clone().crashes(2).run_then(&settled, &OPS, &[7]).assert_ok().complete);
    let failure = explorer.run_then(&Register { settles: false, ..settled }, &OPS, &[]).failure.expect("missed");
    assert!(matches!(failure.cause, Cause::State { .. }), "{failure}");
    assert!(failure.to_string().contains("not written back before the crash"), "{failure}");
}

#[test]
fn a_next_process_that_fails_by_itself_is_found() {
    let subject = Register { settles: true, strict_about_parity: true, ..Register::default() };
    let even: [u64; 2] = [2, 4];
    assert!(Explorer::new().process_deaths(true).run(&subject, &even).assert_ok().complete);
    let explorer = Explorer::new().process_deaths(true);
    let failure = explorer.run(&subject, &[2, 3]).failure.expect("missed");
    assert!(matches!(failure.cause, Cause::Recovery { .. }), "{failure}");
}
