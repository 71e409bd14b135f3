//! Files behind the page cache: nothing but a sync makes anything durable, and what is not synced is found in any mixture.
//! A journal in the file makes its words failure-atomic: the journaled page passes, and each of its orders is needed.

use std::collections::BTreeSet;
use std::sync::atomic::Ordering::Relaxed;

use durix_crashsim::{Cause, Explorer, Persistency, Simulated, Strategy, Subject};
use durix_pmem::{Mapping, Medium, Off, Op, Session, Survives, Word, persistent};

persistent! {
    /// The record of one transaction, verified by its sum. All zero: none.
    struct Journal: align(64) { number: Word, places: [Word; 2], values: [Word; 2], sum: Word, rest: [Word; 2] }
}
const JOURNAL: Off<Journal> = Off::new(512);
const HOME: Off<[Word; 8]> = Off::new(1024);

#[derive(Clone, Copy, Debug, PartialEq)]
enum Bug {
    None,
    /// The home locations are written together with the record: they may be on the disk first.
    HomeWithRecord,
    /// The record is cleared before the home locations are on the disk.
    ClearedTooEarly,
    /// Write-backs and fences, as for persistent memory.
    FencesInstead,
    /// The record is believed without its sum.
    NoSum,
    /// Clearing leaves the sum: the next record's number can bring the old one back.
    SumStays,
    /// Recovery does not sync what it has applied before it clears the record.
    RecoveryClearsTooEarly,
}

/// Eight words of a file; a transaction changes two of them at once.
struct Page(Bug);

struct Live {
    session: Session<Simulated>,
    number: u64,
}

/// Two places, and the value that both get.
type Pair = (usize, usize, u64);

fn mix(words: [u64; 5]) -> u64 {
    words.iter().fold(1, |sum: u64, word| (sum ^ word).wrapping_mul(0x9E37_79B9_7F4A_7C15).rotate_left(23))
}

impl Page {
    fn sync(&self, op: &Op<'_, Simulated>) {
        if self.0 == Bug::FencesInstead {
            op.write_back(op.at(JOURNAL));
            op.write_back(op.at(HOME));
            op.fence();
        } else {
            op.medium().synced();
        }
    }

    fn apply_to_home(op: &Op<'_, Simulated>, (a, b, value): Pair) {
        let home = op.at(HOME);
        op.store(&home[a], value, Relaxed);
        op.store(&home[b], value, Relaxed);
    }

    fn clear(&self, op: &Op<'_, Simulated>) {
        op.store(&op.at(JOURNAL).number, 0, Relaxed);
        if self.0 != Bug::SumStays {
            op.store(&op.at(JOURNAL).sum, 0, Relaxed);
        }
    }

    fn write_record(op: &Op<'_, Simulated>, number: u64, (a, b, value): Pair) {
        let journal = op.at(JOURNAL);
        let words = [number, a as u64, b as u64, value, value];
        op.store(&journal.number, number, Relaxed);
        op.store_words(&journal.places, &[a as u64, b as u64]);
        op.store_words(&journal.values, &[value, value]);
        op.store(&journal.sum, mix(words), Relaxed);
    }

    fn commit(&self, op: &Op<'_, Simulated>, number: u64, pair: Pair) {
        Page::write_record(op, number, pair);
        if self.0 == Bug::HomeWithRecord {
            Page::apply_to_home(op, pair);
        }
        self.sync(op);
        Page::apply_to_home(op, pair);
        if self.0 != Bug::ClearedTooEarly {
            self.sync(op);
        }
        self.clear(op);
        self.sync(op);
    }

    /// The record's transaction, if the record is whole.
    fn record(&self, op: &Op<'_, Simulated>) -> Option<Pair> {
        let journal = op.at(JOURNAL);
        let word = |word: &Word| op.load(word, Relaxed);
        let number = word(&journal.number);
        if number == 0 {
            return None;
        }
        let (places, values) = (&journal.places, &journal.values);
        let words = [number, word(&places[0]), word(&places[1]), word(&values[0]), word(&values[1])];
        let whole = self.0 == Bug::NoSum || word(&journal.sum) == mix(words);
        whole.then_some((words[1] as usize % 8, words[2] as usize % 8, words[3]))
    }
}

impl Subject for Page {
    type Op = Pair;
    type Ret = ();
    type State = Vec<u64>;
    type Model = Vec<u64>;
    type Store = Mapping<Simulated>;
    type Live = Live;

    fn store(&self, medium: Simulated) -> Self::Store {
        Mapping::heap(2048, medium)
    }
    fn create(&self, store: &Self::Store) -> Live {
        Live { session: store.session().unwrap(), number: 0 }
    }
    fn recover(&self, store: &Self::Store) -> Result<Live, String> {
        let mut live = self.create(store);
        let op = live.session.enter().map_err(|e| e.to_string())?;
        if let Some(pair) = self.record(&op) {
            Page::apply_to_home(&op, pair);
            if self.0 != Bug::RecoveryClearsTooEarly {
                self.sync(&op);
            }
        }
        self.clear(&op);
        self.sync(&op);
        drop(op);
        Ok(live)
    }
    fn apply(&self, live: &mut Live, pair: &Pair) {
        live.number += 1;
        self.commit(&live.session.enter().unwrap(), live.number, *pair);
    }
    fn observe(&self, live: &mut Live) -> Vec<u64> {
        let op = live.session.enter().unwrap();
        op.at(HOME).iter().map(|word| op.load(word, Relaxed)).collect()
    }
    fn model(&self) -> Vec<u64> {
        vec![0; 8]
    }
    fn step(&self, model: &mut Vec<u64>, (a, b, value): &Pair) {
        (model[*a], model[*b]) = (*value, *value);
    }
    fn expect(&self, model: &Vec<u64>) -> Vec<u64> {
        model.clone()
    }
}

const OPS: [Pair; 3] = [(0, 1, 10), (1, 5, 20), (0, 5, 30)];
const AFTER: [Pair; 1] = [(1, 2, 40)];

fn explorer() -> Explorer {
    Explorer::new().model(Persistency::PageCache).crashes(2).crash_later(true)
}

#[test]
fn a_journaled_page_passes_completely() {
    let report = explorer().run_then(&Page(Bug::None), &OPS, &AFTER).assert_ok();
    println!("{report}");
    assert!(report.complete && report.nested_points > 0);
    let eager = explorer().crashes(1).strategy(Strategy::Eager).run(&Page(Bug::None), &OPS[..1]).assert_ok();
    let lazy = explorer().crashes(1).run(&Page(Bug::None), &OPS[..1]).assert_ok();
    assert!(eager.complete && lazy.complete && lazy.executions < eager.executions);
    assert_eq!(lazy.crash_states, eager.crash_states);
}

#[test]
fn every_order_of_the_journaled_page_is_needed() {
    for bug in [Bug::HomeWithRecord, Bug::ClearedTooEarly, Bug::FencesInstead, Bug::NoSum, Bug::RecoveryClearsTooEarly]
    {
        let failure = explorer().run(&Page(bug), &OPS).failure.unwrap_or_else(|| panic!("{bug:?} was missed"));
        println!("{bug:?}\n{failure}\n");
        assert!(matches!(failure.cause, Cause::State { .. } | Cause::Recovered { .. }), "{failure}");
        let again = explorer().replay(&failure.replay).run(&Page(bug), &OPS).failure.expect("is repeated");
        assert_eq!(again.cause, failure.cause);
    }
    let nested = explorer().crashes(1).run(&Page(Bug::RecoveryClearsTooEarly), &OPS).assert_ok();
    assert!(nested.complete, "only a crash in the recovery shows it");
}

#[test]
fn a_record_that_comes_back_is_found_by_crashes_in_the_operations_after_a_recovery() {
    let page = Page(Bug::SumStays);
    assert!(explorer().crash_later(false).run_then(&page, &OPS, &AFTER).assert_ok().complete);
    let _ = explorer().run_then(&page, &OPS, &AFTER).failure.expect("missed");
}

#[test]
fn a_failure_behind_the_page_cache_speaks_of_syncs() {
    let failure = explorer().run(&Page(Bug::ClearedTooEarly), &OPS).failure.expect("missed");
    let told = failure.to_string();
    assert!(told.contains("not synced before the crash") && told.contains("page_cache.rs"), "{told}");
}

/// Two stores to each of two words, then perhaps a sync.
struct Words {
    synced: bool,
}

impl Subject for Words {
    type Op = ();
    type Ret = ();
    type State = [u64; 2];
    type Model = ();
    type Store = Mapping<Simulated>;
    type Live = Session<Simulated>;

    fn store(&self, medium: Simulated) -> Self::Store {
        assert_eq!(medium.survives(), Survives::ProcessDeath);
        Mapping::heap(2048, medium)
    }
    fn create(&self, store: &Self::Store) -> Self::Live {
        store.session().unwrap()
    }
    fn recover(&self, store: &Self::Store) -> Result<Self::Live, String> {
        Ok(self.create(store))
    }
    fn apply(&self, live: &mut Self::Live, (): &()) {
        let op = live.enter().unwrap();
        let home = op.at(HOME);
        for value in 1..=2 {
            op.store(&home[0], value, Relaxed);
            op.store_nt(&home[1], value);
            op.persist(home);
            if self.synced {
                op.medium().synced();
            }
        }
    }
    fn observe(&self, live: &mut Self::Live) -> [u64; 2] {
        let op = live.enter().unwrap();
        [0, 1].map(|at| op.load(&op.at(HOME)[at], Relaxed))
    }
    fn model(&self) {}
    fn step(&self, (): &mut (), (): &()) {}
    fn expect(&self, (): &()) -> [u64; 2] {
        [0; 2]
    }
}

#[test]
fn words_are_found_at_any_of_their_values_since_the_last_sync() {
    let all = |low: u64, high: u64| (low..=high).flat_map(move |a| (low..=high).map(move |b| [a, b]));
    let told = |states: Vec<[u64; 2]>| states.iter().map(|s| format!("{s:?}")).collect::<BTreeSet<_>>();
    assert_eq!(explorer().outcomes(&Words { synced: false }, &[()]), told(all(0, 2).collect()));
    let between: Vec<_> = all(0, 1).chain(all(1, 2)).collect();
    assert_eq!(explorer().outcomes(&Words { synced: true }, &[()]), told(between));
}
