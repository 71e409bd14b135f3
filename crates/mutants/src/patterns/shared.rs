//! Words shared by two threads, interleaved by hand: the first thread stops where its own write-back is still to come,
//! the second goes on, answers, and so has acknowledged what it saw.

use std::sync::atomic::Ordering::{Relaxed, Release};

use durix_pmem::{Medium, Op};

use super::pattern::{Bound, Host, Map, Pattern, word};

#[derive(Clone, Copy, Debug, PartialEq)]
enum Bug {
    ReadNotDurable,
    HelperReturns,
    UnlockEarly,
    UnpersistedPointer,
    RecoveredLocked,
}

#[derive(Clone, Copy, Debug)]
enum Do {
    /// The first thread stores a value, and has not written it back yet.
    Begin(u64),
    /// The second reads it, and answers.
    Read,
    /// The second wants to store the same, finds it there, and answers that it is.
    Help(u64),
    /// The first writes back and waits.
    Finish,
    /// The first stores a value under a lock.
    Locked(u64),
    /// The second derives a value from it under the same lock, durably.
    Derive,
    /// The first links a node, and has not written the link back yet.
    Link,
    /// The second puts a value into that node, durably.
    Insert(u64),
}

struct Shared;

const VALUE: u64 = 64;
const DERIVED: u64 = 128;
/// Beside the value: a line that holds both is written back with the lock taken.
const LOCK: u64 = 72;
const POINTER: u64 = 192;
const NODE: u64 = 256;

fn lock<M: Medium>(op: &Op<'_, M>) {
    assert!(op.compare_exchange(word(op, LOCK), 0, 1).is_ok(), "a lock that nobody holds is taken");
}

impl Host for Shared {
    type Bug = Bug;
    type Do = Do;
    type Volatile = ();

    fn create<M: Medium>(_: &Op<'_, M>, _: Option<Bug>) {}

    fn recover<M: Medium>(op: &Op<'_, M>, bug: Option<Bug>) -> Result<(), String> {
        if bug != Some(Bug::RecoveredLocked) {
            op.store(word(op, LOCK), 0, Release);
            op.persist(word(op, LOCK));
        }
        Ok(())
    }

    fn apply<M: Medium>((a, b): (&Op<'_, M>, &Op<'_, M>), (): &mut (), bug: Option<Bug>, what: Do) -> Option<u64> {
        match what {
            Do::Begin(value) => a.store(word(a, VALUE), value, Release),
            Do::Read => {
                if bug != Some(Bug::ReadNotDurable) {
                    b.persist(word(b, VALUE));
                }
                return Some(b.load(word(b, VALUE), Relaxed));
            }
            Do::Help(value) => {
                let lost = b.compare_exchange(word(b, VALUE), 0, value).is_err();
                if !lost || bug != Some(Bug::HelperReturns) {
                    b.persist(word(b, VALUE));
                }
                return lost.then_some(1);
            }
            Do::Finish => a.persist(word(a, VALUE)),
            Do::Locked(value) => {
                lock(a);
                a.store(word(a, VALUE), value, Release);
                if bug != Some(Bug::UnlockEarly) {
                    a.persist(word(a, VALUE));
                }
                a.store(word(a, LOCK), 0, Release);
            }
            Do::Derive => {
                lock(b);
                b.store(word(b, DERIVED), b.load(word(b, VALUE), Relaxed), Release);
                b.persist(word(b, DERIVED));
                b.store(word(b, LOCK), 0, Release);
            }
            Do::Link => a.store(word(a, POINTER), NODE, Release),
            Do::Insert(value) => {
                if bug != Some(Bug::UnpersistedPointer) {
                    b.persist(word(b, POINTER));
                }
                b.store(word(b, b.load(word(b, POINTER), Relaxed)), value, Release);
                b.persist(word(b, NODE));
            }
        }
        None
    }

    fn contents<M: Medium>(op: &Op<'_, M>) -> Map {
        let mut map: Map = [VALUE, DERIVED].iter().map(|off| (*off, op.load(word(op, *off), Relaxed))).collect();
        if op.load(word(op, POINTER), Relaxed) != 0 {
            map.insert(NODE, op.load(word(op, NODE), Relaxed));
        }
        map.retain(|_, value| *value != 0);
        map
    }

    fn step(model: &mut Map, what: Do) -> Option<u64> {
        match what {
            Do::Begin(value) | Do::Locked(value) => drop(model.insert(VALUE, value)),
            Do::Read => return Some(model.get(&VALUE).copied().unwrap_or(0)),
            Do::Help(value) => {
                let lost = model.contains_key(&VALUE);
                model.entry(VALUE).or_insert(value);
                return lost.then_some(1);
            }
            Do::Derive => model.extend(model.get(&VALUE).map(|value| (DERIVED, *value))),
            Do::Insert(value) => drop(model.insert(NODE, value)),
            Do::Finish | Do::Link => {}
        }
        None
    }

    fn acknowledges(what: Do) -> bool {
        !matches!(what, Do::Begin(_) | Do::Locked(_) | Do::Link)
    }
}

pub(super) fn patterns() -> Vec<Pattern> {
    use Bound::{Recovery, TwoThreads};
    use Do::{Begin, Derive, Finish, Help, Insert, Link, Locked, Read};
    let planted = Pattern::new::<Shared>;
    const READ: (&[Do], &[Do]) = (&[Begin(1), Read, Finish], &[Read]);
    const HELP: (&[Do], &[Do]) = (&[Begin(1), Help(1), Finish], &[Read]);
    const LOCKED: (&[Do], &[Do]) = (&[Locked(1), Derive, Finish], &[Derive]);
    const LINK: (&[Do], &[Do]) = (&[Link, Insert(1)], &[Read]);
    vec![
        planted("concurrency", "a read returns a value that is not durable", TwoThreads, Bug::ReadNotDurable, READ),
        planted(
            "write-back",
            "helping path that does not write the winner's line back",
            TwoThreads,
            Bug::HelperReturns,
            HELP,
        ),
        planted("concurrency", "unlock before the write-back", TwoThreads, Bug::UnlockEarly, LOCKED),
        planted(
            "concurrency",
            "insert into a node behind an unpersisted pointer",
            TwoThreads,
            Bug::UnpersistedPointer,
            LINK,
        ),
        planted(
            "recovery",
            "a lock word recovered as locked",
            Recovery,
            Bug::RecoveredLocked,
            (&[Locked(1)], &[Locked(2)]),
        ),
    ]
}
