//! Space that is given up too early, and records that go in the wrong order: faults that survive a sweep of dropped calls, since no call is
//! missing. Each takes a thread that uses the space at the wrong moment, or a key with more than one record.

use std::fmt::Debug;
use std::marker::PhantomData;
use std::sync::atomic::Ordering::{Acquire, Release};

use durix_crashsim::{Concurrent, Explorer, Report, Simulated, Subject, Threads};
use durix_pmem::{Mapping, Medium, Op, Session};

use super::pattern::{Bound, Host, Map, Outcome, Pattern, word};
use crate::scenario::Told;

fn load<M: Medium>(op: &Op<'_, M>, off: u64) -> u64 {
    op.load(word(op, off), Acquire)
}

fn store<M: Medium>(op: &Op<'_, M>, off: u64, value: u64) {
    op.store(word(op, off), value, Release);
}

fn put<M: Medium>(op: &Op<'_, M>, off: u64, value: u64) {
    store(op, off, value);
    op.persist(word(op, off));
}

// ---- records of one key ----

/// A log of records. The newest valid record of a key counts; a removal makes all of them invalid, and takes no space.
struct Records;

#[derive(Clone, Copy, Debug, PartialEq)]
enum Bug {
    /// The newest record goes first, and an older one counts again.
    NewestFirst,
}

#[derive(Clone, Copy, Debug)]
enum Change {
    Put(u64, u64),
    Remove(u64),
}

const RECORDS: std::ops::Range<u64> = 1..7;

/// A line each: a key and a value; the newest lies last.
fn record(number: u64) -> u64 {
    64 * number
}

impl Host for Records {
    type Bug = Bug;
    type Do = Change;
    /// The next record.
    type Volatile = u64;

    fn create<M: Medium>(_: &Op<'_, M>, _: Option<Bug>) -> u64 {
        RECORDS.start
    }

    fn recover<M: Medium>(op: &Op<'_, M>, _: Option<Bug>) -> Result<u64, String> {
        Ok(RECORDS.rev().find(|number| load(op, record(*number)) != 0).unwrap_or(0) + 1)
    }

    fn apply<M: Medium>(
        (op, _): (&Op<'_, M>, &Op<'_, M>),
        next: &mut u64,
        bug: Option<Bug>,
        what: Change,
    ) -> Option<u64> {
        match what {
            Change::Put(key, value) => {
                put(op, record(*next), key << 8 | value);
                *next += 1;
            }
            Change::Remove(key) => {
                let mut all: Vec<u64> = RECORDS.map(record).filter(|off| load(op, *off) >> 8 == key).collect();
                if bug.is_some() {
                    all.reverse();
                }
                all.iter().for_each(|off| put(op, *off, 0));
            }
        }
        None
    }

    fn contents<M: Medium>(op: &Op<'_, M>) -> Map {
        let words = RECORDS.map(|number| load(op, record(number))).filter(|word| *word != 0);
        words.map(|word| (word >> 8, word & 0xff)).collect()
    }

    fn step(model: &mut Map, what: Change) -> Option<u64> {
        match what {
            Change::Put(key, value) => model.insert(key, value),
            Change::Remove(key) => model.remove(&key),
        };
        None
    }
}

// ---- threads ----

#[derive(Clone, Copy, Debug)]
enum Do {
    Put(u64),
    Get,
    /// Takes out what is there.
    Drop,
    /// Looks for space to give up.
    Look,
}

/// A structure that threads share, all of it in the arena.
trait Beside: 'static {
    /// What is there before.
    fn create(op: &Op<'_, Simulated>);
    fn recover(op: &Op<'_, Simulated>);
    fn act(op: &Op<'_, Simulated>, planted: bool, what: Do) -> Option<u64>;
    fn contents(op: &Op<'_, Simulated>) -> Map;
    fn model() -> Map;
    fn step(model: &mut Map, what: Do) -> Option<u64>;
}

/// A unit that a link leads to. Whoever takes it out gives it back, and another uses it for a value of its own.
struct Units;

const LINKS: [u64; 2] = [64, 128];
/// The unit that is free, or 0. Recovery finds it out.
const FREE: u64 = 192;
const UNIT: u64 = 256;

impl Beside for Units {
    fn create(op: &Op<'_, Simulated>) {
        put(op, UNIT, 5);
        put(op, LINKS[0], UNIT);
    }

    fn recover(op: &Op<'_, Simulated>) {
        let used = LINKS.iter().any(|link| load(op, *link) != 0);
        // The links that were found are durable before the unit is used again.
        LINKS.iter().for_each(|link| op.persist(word(op, *link)));
        store(op, FREE, if used { 0 } else { UNIT });
    }

    fn act(op: &Op<'_, Simulated>, planted: bool, what: Do) -> Option<u64> {
        match what {
            Do::Drop => {
                store(op, LINKS[0], 0);
                // The bug: given back before that is durable.
                if planted {
                    store(op, FREE, UNIT);
                }
                op.persist(word(op, LINKS[0]));
                if !planted {
                    store(op, FREE, UNIT);
                }
            }
            Do::Put(value) => {
                let unit = load(op, FREE);
                if unit == 0 || op.compare_exchange(word(op, FREE), unit, 0).is_err() {
                    return Some(0);
                }
                put(op, unit, value);
                put(op, LINKS[1], unit);
            }
            Do::Get | Do::Look => {}
        }
        None
    }

    fn contents(op: &Op<'_, Simulated>) -> Map {
        let linked = LINKS.iter().map(|link| load(op, *link)).enumerate().filter(|(_, unit)| *unit != 0);
        linked.map(|(number, unit)| (number as u64, load(op, unit))).collect()
    }

    fn model() -> Map {
        Map::from([(0, 5)])
    }

    /// Key 0 is what is taken out, key 1 what uses the unit. A taker that comes too early gets nothing.
    fn step(model: &mut Map, what: Do) -> Option<u64> {
        match what {
            Do::Drop => _ = model.remove(&0),
            Do::Put(_) if !model.is_empty() => return Some(0),
            Do::Put(value) => _ = model.insert(1, value),
            Do::Get | Do::Look => {}
        }
        None
    }
}

/// Two pages of a log, each with room for one record. A page is free if it was sealed before the oldest record that counts. Who looks for
/// free pages first loads the clock, then the oldest record: a page that is sealed meanwhile has at least that clock.
struct Clocked;

/// How many pages were sealed.
const CLOCK: u64 = 64;
/// The clock at the record that counts, or [`NONE`].
const OLDEST: u64 = 128;
const NONE: u64 = u64::MAX;
/// When the first page was sealed, or [`NONE`]; whether it is free.
const SEALED: u64 = 192;
const EMPTY: u64 = 256;
const PAGES: [u64; 2] = [320, 384];

impl Beside for Clocked {
    fn create(op: &Op<'_, Simulated>) {
        store(op, CLOCK, 1);
        Self::recover(op);
    }

    fn recover(op: &Op<'_, Simulated>) {
        let full = load(op, PAGES[0]) != 0;
        PAGES.iter().for_each(|page| op.persist(word(op, *page)));
        store(op, OLDEST, if full { 0 } else { NONE });
        store(op, SEALED, if full { 0 } else { NONE });
        store(op, EMPTY, u64::from(!full));
    }

    fn act(op: &Op<'_, Simulated>, planted: bool, what: Do) -> Option<u64> {
        match what {
            Do::Put(value) => {
                // The record goes to the first page if that is free, else to the second.
                if op.compare_exchange(word(op, EMPTY), 1, 0).is_ok() {
                    store(op, OLDEST, load(op, CLOCK));
                    put(op, PAGES[0], value);
                    store(op, SEALED, load(op, CLOCK));
                    store(op, CLOCK, load(op, CLOCK) + 1);
                } else {
                    put(op, PAGES[1], value);
                }
            }
            Do::Look => {
                let loads = if planted { [OLDEST, CLOCK] } else { [CLOCK, OLDEST] };
                let bound = loads.map(|off| load(op, off)).into_iter().min();
                if Some(load(op, SEALED)) < bound {
                    store(op, SEALED, NONE);
                    store(op, EMPTY, 1);
                }
            }
            Do::Get | Do::Drop => {}
        }
        None
    }

    fn contents(op: &Op<'_, Simulated>) -> Map {
        let values = PAGES.iter().map(|page| load(op, *page)).filter(|value| *value != 0);
        values.map(|value| (value, value)).collect()
    }

    fn model() -> Map {
        Map::new()
    }

    fn step(model: &mut Map, what: Do) -> Option<u64> {
        if let Do::Put(value) = what {
            model.insert(value, value);
        }
        None
    }
}

/// A value, stored in place and written back late, and the records of its commits. A round writes it back, moves the watermark up to the
/// number that it has read first, and gives up the records below.
struct Watermark;

const VALUE: u64 = 64;
const MARK: u64 = 128;
const NEXT: u64 = 192;
const LOG: [u64; 4] = [256, 320, 384, 448];

impl Beside for Watermark {
    fn create(op: &Op<'_, Simulated>) {
        store(op, NEXT, 1);
    }

    fn recover(op: &Op<'_, Simulated>) {
        let mark = load(op, MARK);
        let found = LOG.map(|off| load(op, off));
        LOG.iter().chain([&MARK]).for_each(|off| op.write_back(word(op, *off)));
        op.fence();
        let newest = found.into_iter().max().filter(|record| record >> 8 >= mark && *record != 0);
        if let Some(record) = newest {
            put(op, VALUE, record & 0xff);
        }
        store(op, NEXT, (newest.unwrap_or(0) >> 8).max(mark) + 1);
    }

    fn act(op: &Op<'_, Simulated>, planted: bool, what: Do) -> Option<u64> {
        match what {
            Do::Put(value) => {
                let number = load(op, NEXT);
                put(op, LOG[number as usize % LOG.len()], number << 8 | value);
                store(op, VALUE, value);
                // Who sees this number sees the value in place.
                store(op, NEXT, number + 1);
            }
            Do::Look => {
                let bound = load(op, NEXT);
                op.persist(word(op, VALUE));
                put(op, MARK, bound);
                // The bug: the record of the number itself is given up, too.
                let last = if planted { bound } else { bound - 1 };
                let below = |off: &&u64| (1..=last).contains(&(load(op, **off) >> 8));
                LOG.iter().filter(below).for_each(|off| put(op, *off, 0));
            }
            Do::Get | Do::Drop => {}
        }
        None
    }

    fn contents(op: &Op<'_, Simulated>) -> Map {
        [load(op, VALUE)].into_iter().filter(|value| *value != 0).map(|value| (1, value)).collect()
    }

    fn model() -> Map {
        Map::new()
    }

    fn step(model: &mut Map, what: Do) -> Option<u64> {
        if let Do::Put(value) = what {
            model.insert(1, value);
        }
        None
    }
}

/// A structure as a subject.
struct Shared<B>(bool, PhantomData<fn() -> B>);

impl<B: Beside> Subject for Shared<B> {
    type Op = Do;
    type Ret = Option<u64>;
    type State = Map;
    type Model = Map;
    type Store = Mapping<Simulated>;
    type Live = (Mapping<Simulated>, Session<Simulated>);

    fn store(&self, medium: Simulated) -> Self::Store {
        Mapping::heap(4096, medium)
    }
    fn create(&self, store: &Self::Store) -> Self::Live {
        let mut session = store.session().unwrap();
        B::create(&session.enter().unwrap());
        (store.clone(), session)
    }
    fn recover(&self, store: &Self::Store) -> Result<Self::Live, String> {
        let mut session = store.session().unwrap();
        B::recover(&session.enter().unwrap());
        Ok((store.clone(), session))
    }
    fn apply(&self, (_, session): &mut Self::Live, what: &Do) -> Option<u64> {
        B::act(&session.enter().unwrap(), self.0, *what)
    }
    fn observe(&self, (_, session): &mut Self::Live) -> Map {
        B::contents(&session.enter().unwrap())
    }
    fn model(&self) -> Map {
        B::model()
    }
    fn step(&self, model: &mut Map, what: &Do) -> Option<u64> {
        B::step(model, *what)
    }
    fn expect(&self, model: &Map) -> Map {
        model.clone()
    }
}

impl<B: Beside> Concurrent for Shared<B> {
    type Thread = Session<Simulated>;

    fn thread(&self, (mapping, _): &Self::Live, _: usize) -> Session<Simulated> {
        mapping.session().unwrap()
    }
    fn run(&self, session: &mut Session<Simulated>, what: &Do) -> Option<u64> {
        B::act(&session.enter().unwrap(), self.0, *what)
    }
}

/// What two threads do.
type Programs = &'static [[&'static [Do]; 2]];

fn ask<B: Beside>(planted: bool, (preemptions, programs): (u32, Programs), replay: Option<&str>) -> Report {
    let mut explorer = Explorer::new().suggest(false);
    if let Some(replay) = replay {
        explorer = explorer.replay(replay);
    }
    let threads = Threads::new(explorer).preemptions(preemptions);
    let mut total = Report::default();
    for program in programs {
        if total.failure.is_none() {
            total.merge(threads.run(&Shared::<B>(planted, PhantomData), &program.map(<[Do]>::to_vec), &[]));
        }
    }
    total
}

fn beside<B: Beside>(
    (group, name): (&'static str, &'static str),
    usual: (u32, Programs),
    asked: (u32, Programs),
) -> Pattern {
    for planted in [false, true] {
        let failure = ask::<B>(planted, usual, None).failure.map(|failure| failure.to_string());
        assert_eq!(failure, None, "{name} ({planted}): the usual question shows it, too");
    }
    let run = move |planted| Outcome { report: ask::<B>(planted, asked, None), off_budget: false };
    let tell = move || {
        let failure = ask::<B>(true, asked, None).failure?;
        let again = ask::<B>(true, asked, Some(&failure.replay)).failure;
        Some(Told::new(failure, again, false))
    };
    Pattern { group, name, bound: Bound::TwoThreads, run: Box::new(run), tell: Box::new(tell) }
}

pub(super) fn patterns() -> Vec<Pattern> {
    use Change::Remove;
    use Do::{Drop, Get, Look, Put};
    let explorer = || Explorer::new().crashes(1);
    vec![
        Pattern::blind::<Records, Records>(
            ("several records", "the newest record of a key goes first"),
            Bug::NewestFirst,
            (explorer(), &[Change::Put(1, 1), Change::Put(2, 2), Remove(1)], &[Change::Put(1, 3)]),
            (explorer(), &[Change::Put(1, 1), Change::Put(1, 2), Remove(1)], &[]),
        ),
        beside::<Units>(
            ("space given up", "a unit is given back before the flip is durable that takes it out"),
            (2, &[[&[Drop], &[Get]], [&[Drop, Put(7)], &[Get]]]),
            (1, &[[&[Drop], &[Put(7)]]]),
        ),
        beside::<Clocked>(
            ("space given up", "a page is sealed beside a look for free ones"),
            (2, &[[&[Look], &[Put(1)]], [&[Put(1), Look, Put(2)], &[Get]]]),
            (1, &[[&[Look, Put(2)], &[Put(1)]]]),
        ),
        beside::<Watermark>(
            ("space given up", "a record has the number that the watermark moves up to"),
            (2, &[[&[Put(1), Look, Put(2)], &[Get]]]),
            (1, &[[&[Look], &[Put(1)]]]),
        ),
    ]
}
