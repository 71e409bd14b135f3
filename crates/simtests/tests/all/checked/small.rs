//! Small records with a checksum, of which every state can be recovered from: what was rejected stays rejected.

use std::collections::BTreeSet;
use std::sync::atomic::Ordering::Relaxed;

use durix_crashsim::{Explorer, Persistency, Report, Simulated, Strategy, Subject};
use durix_pmem::{Mapping, Off, Op, Session, Word};

/// Two lines, the checksum in the last word.
const WORDS: u64 = 16;
const RECORD: Off<Word> = Off::new(128);
/// Two, on lines of their own.
const COUNTS: [Off<Word>; 2] = [Off::new(512), Off::new(576)];
/// Words that are stored; the others stay zero.
const USED: [usize; 7] = [0, 1, 2, 3, 8, 9, 10];

/// What a recovery does with a record that its checksum rejects.
#[derive(Clone, Copy, PartialEq)]
enum Then {
    Nothing,
    /// Looks at it word by word, and adds up the checksum itself.
    Peek,
    /// Looks at one line of it as if that were a record of its own.
    PeekChecked,
    /// Writes another in its place.
    Overwrite,
    /// Looks at it, and then at counts of such recoveries, which it raises. With `true` it looks word by word.
    Count(bool),
    /// Writes the second line, before it looks at the record at all.
    Patch,
}

struct Records(Then);

fn sum(value: impl Fn(usize) -> u64) -> u64 {
    (0..WORDS as usize - 1).fold(1, |sum, at| (sum ^ value(at)).wrapping_mul(0x9E37_79B9_7F4A_7C15).rotate_left(23))
}

fn words<'s>(op: &Op<'s, Simulated>) -> &'s [Word] {
    op.slice("record", RECORD, WORDS).unwrap()
}

fn content(number: u64) -> impl Fn(usize) -> u64 + Copy {
    move |at| if USED.contains(&at) { number * 100 + at as u64 } else { 0 }
}

fn write(op: &Op<'_, Simulated>, number: u64) {
    let content = content(number);
    let (checksum, body) = words(op).split_last().unwrap();
    USED.iter().for_each(|at| op.store(&body[*at], content(*at), Relaxed));
    op.store(checksum, sum(content), Relaxed);
    op.write_back_slice(words(op));
}

/// The number of the record, if its checksum accepts it, and what was seen by other means.
type Found = (Option<u64>, Option<bool>);

impl Records {
    fn read(&self, op: &Op<'_, Simulated>) -> Found {
        let record = words(op);
        let load = |at: usize| op.load(&record[at], Relaxed);
        if self.0 == Then::Patch {
            USED[4..].iter().for_each(|at| op.store(&record[*at], content(1)(*at), Relaxed));
            op.store(&record[WORDS as usize - 1], sum(content(1)), Relaxed);
        }
        if op.load_checked(record, || load(WORDS as usize - 1) == sum(load)) {
            return (Some(load(0) / 100), None);
        }
        match self.0 {
            Then::Nothing | Then::Patch => (None, None),
            Then::Peek => (None, Some(load(WORDS as usize - 1) == sum(load))),
            Then::PeekChecked => {
                (None, Some(op.load_checked(&record[..8], || USED[..4].iter().all(|at| load(*at) != 0))))
            }
            Then::Count(peeks) => {
                let peeked = peeks.then(|| load(WORDS as usize - 1) == sum(load));
                // Not written back: the next recovery may find each or not.
                let counts = COUNTS.map(|count| {
                    op.store(op.at(count), op.load(op.at(count), Relaxed) + 1, Relaxed);
                    op.load(op.at(count), Relaxed)
                });
                op.persist(op.at(Off::<Word>::new(640)));
                (Some(100 * counts[0] + counts[1]), peeked)
            }
            Then::Overwrite => {
                write(op, 9);
                (None, None)
            }
        }
    }
}

impl Subject for Records {
    type Op = u64;
    type Ret = ();
    type State = Found;
    type Model = ();
    type Store = Mapping<Simulated>;
    type Live = (Session<Simulated>, Found);

    fn store(&self, medium: Simulated) -> Self::Store {
        Mapping::heap(1024, medium)
    }
    fn create(&self, store: &Self::Store) -> Self::Live {
        (store.session().unwrap(), (None, None))
    }
    fn recover(&self, store: &Self::Store) -> Result<Self::Live, String> {
        let mut session = store.session().unwrap();
        let found = self.read(&session.enter().unwrap());
        Ok((session, found))
    }
    fn apply(&self, (session, _): &mut Self::Live, number: &u64) {
        write(&session.enter().unwrap(), *number);
    }
    fn observe(&self, (_, found): &mut Self::Live) -> Found {
        *found
    }
    fn model(&self) {}
    fn step(&self, (): &mut (), _: &u64) {}
    fn expect(&self, (): &()) -> Found {
        (None, None)
    }
}

fn explore(explorer: &Explorer, then: Then, numbers: &[u64]) -> (BTreeSet<String>, Report) {
    let (outcomes, report) = explorer.recovered(&Records(then), numbers);
    (outcomes, report.assert_ok())
}

fn models() -> [Explorer; 2] {
    [Persistency::Pcso, Persistency::TornWords].map(|model| Explorer::new().model(model).executions_per_point(1 << 20))
}

#[test]
fn what_is_found_of_small_records_is_what_the_enumeration_finds() {
    for explorer in models() {
        for numbers in [&[1][..], &[1, 2]] {
            let (lazy, report) = explore(&explorer, Then::Nothing, numbers);
            let (eager, all) = explore(&explorer.clone().strategy(Strategy::Eager), Then::Nothing, numbers);
            assert_eq!(lazy, eager);
            assert!(report.complete && report.crash_states == all.crash_states, "{report}\n{all}");
            assert!(report.executions < all.executions / 10, "{report}\n{all}");
        }
    }
}

/// Once it was found to be torn, it is one of the states that are torn.
#[test]
fn a_rejected_record_that_is_read_by_itself_is_none_that_was_whole() {
    for explorer in models() {
        for then in [Then::Peek, Then::PeekChecked] {
            let (lazy, report) = explore(&explorer, then, &[1]);
            let (eager, _) = explore(&explorer.clone().strategy(Strategy::Eager), then, &[1]);
            assert!(lazy.is_subset(&eager), "made up: {:?}", lazy.difference(&eager).collect::<Vec<_>>());
            // One state stood for others, and then was looked at.
            assert!(!report.complete, "{report}");
        }
        let (peeked, _) = explore(&explorer, Then::Peek, &[1]);
        assert!(peeked.contains("(None, Some(false))") && !peeked.contains("(None, Some(true))"), "{peeked:?}");
    }
}

/// A second crash, while the recovery writes over what it has rejected: the new record may be there.
#[test]
fn a_record_written_over_a_rejected_one_is_verified_again() {
    for explorer in models() {
        let explorer = explorer.crashes(2);
        let (lazy, report) = explore(&explorer, Then::Overwrite, &[1]);
        let (eager, _) = explore(&explorer.strategy(Strategy::Eager), Then::Overwrite, &[1]);
        assert_eq!(lazy, eager);
        assert!(lazy.contains("(Some(9), None)"), "{lazy:?}");
        println!("{report}");
    }
}

/// A second recovery looks at what the first has rejected, and then at what may be there or not: with either, it goes the same
/// way up to there.
#[test]
fn a_record_that_was_rejected_before_the_crash_is_rejected_on_every_way() {
    for explorer in models() {
        let explorer = explorer.crashes(2);
        for later in [false, true] {
            let explorer = explorer.clone().crash_later(later);
            let (lazy, report) = explore(&explorer, Then::Count(false), &[1]);
            assert!(["(Some(101), None)", "(Some(202), None)"].iter().all(|found| lazy.contains(*found)), "{lazy:?}");
            println!("{report}");
            let (eager, _) = explore(&explorer.clone().strategy(Strategy::Eager), Then::Count(false), &[1]);
            assert_eq!(lazy, eager);
            // A witness that is looked at by itself stands for no others.
            let (peeked, report) = explore(&explorer, Then::Count(true), &[1]);
            assert!(peeked.contains("(Some(202), Some(false))") && !report.complete, "{peeked:?}");
        }
    }
}

/// What it has written itself is there, whatever a crash has left of the rest.
#[test]
fn a_record_written_in_part_by_the_recovery_holds_what_was_written() {
    for explorer in models() {
        let (lazy, _) = explore(&explorer, Then::Patch, &[2, 1]);
        let (eager, _) = explore(&explorer.strategy(Strategy::Eager), Then::Patch, &[2, 1]);
        assert_eq!(lazy, eager);
        assert!(lazy.contains("(Some(1), None)") && lazy.contains("(None, None)"), "{lazy:?}");
    }
}
