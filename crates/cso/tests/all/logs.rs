//! One test body for all kinds of logs.

use std::collections::VecDeque;

use durix_cso::log::{
    ChainLog, ChainOptions, Error, FvbEntryLog, FvbLog, FvbOptions, HalfLine, LinesLog, Log, OneLine, Position,
    RandomLog, RandomOptions, Region, TwoLines, VbLog, WordsLog,
};
use durix_pmem::{Counting, Hardware, Mapping, Medium, Op};
use proptest::prelude::*;

/// What the tests must know of a kind.
trait Kind: Log {
    /// Bytes that a test log needs besides its units.
    const EXTRA: u64 = 128;
    /// The one payload length, if there is only one.
    const EXACT: Option<usize> = None;
    /// Bytes of a slot, where they are larger than a line.
    const SLOT: u64 = 64;
    /// Whether records have tags.
    const TAGS: bool = true;
    /// Whether a trim also writes lines that earlier trims have freed.
    const REINITIALISES: bool = false;
    /// Bytes of the largest payload the tests use.
    const LONGEST: usize;
    /// Lines touched by a record.
    fn lines(len: usize) -> u64;
    /// Lines touched besides, by a record whose first and last units are these, in a log of `bytes`.
    fn more_lines(_bytes: u64, _before: u64, _first: u64, _last: u64) -> u64 {
        0
    }
    fn options() -> Self::Options {
        Self::Options::default()
    }
}

impl Kind for VbLog<HalfLine> {
    const LONGEST: usize = 24;
    fn lines(_: usize) -> u64 {
        1
    }
}
impl Kind for VbLog<OneLine> {
    const LONGEST: usize = 56;
    fn lines(_: usize) -> u64 {
        1
    }
}
impl Kind for VbLog<TwoLines> {
    const LONGEST: usize = 119;
    const SLOT: u64 = 128;
    fn lines(_: usize) -> u64 {
        2
    }
}
impl Kind for LinesLog {
    const LONGEST: usize = 300;
    fn lines(len: usize) -> u64 {
        len.div_ceil(56).max(1) as u64
    }
}

impl<const W: usize, const WORD: usize, const BIT: u32> Kind for WordsLog<W, WORD, BIT> {
    const LONGEST: usize = W * 8;
    const EXACT: Option<usize> = Some(W * 8);
    const TAGS: bool = false;
    fn lines(_: usize) -> u64 {
        W.div_ceil(8) as u64
    }
}
impl Kind for FvbLog {
    const LONGEST: usize = 5 * 64 - 16;
    const SLOT: u64 = 5 * 64;
    fn lines(len: usize) -> u64 {
        (16 + len).div_ceil(64) as u64
    }
    fn options() -> FvbOptions {
        FvbOptions { lines: 5 }
    }
}
impl Kind for FvbEntryLog {
    const LONGEST: usize = 300;
    fn lines(len: usize) -> u64 {
        1 + len.div_ceil(64) as u64
    }
}

impl Kind for RandomLog {
    fn more_lines(_: u64, before: u64, first: u64, _: u64) -> u64 {
        u64::from(first > before)
    }
    const REINITIALISES: bool = true;
    const LONGEST: usize = 300;
    fn lines(len: usize) -> u64 {
        (8 + len).div_ceil(64) as u64
    }
    fn options() -> RandomOptions {
        RandomOptions { pattern: Some(0x5eed_5eed_5eed_5eed) }
    }
}

impl Kind for ChainLog {
    fn more_lines(bytes: u64, before: u64, _: u64, last: u64) -> u64 {
        // The state of each segment that is entered; the first line of all is on segment 1.
        let lines = (Self::EXTRA + bytes) / 3 / 64 - 2;
        last / lines - before.saturating_sub(1) / lines
    }
    const EXTRA: u64 = 3 * (128 + 64);
    const LONGEST: usize = 300;
    fn lines(len: usize) -> u64 {
        len.div_ceil(56).max(1) as u64
    }
    fn options() -> ChainOptions {
        ChainOptions { segments: 3 }
    }
}

const OFF: u64 = 4096;

fn region<L: Kind>(len: u64) -> Region {
    Region { off: OFF, len: L::EXTRA + len }
}

fn payload<L: Kind>(seed: u64, len: usize) -> Vec<u8> {
    let len = L::EXACT.unwrap_or(len.min(L::LONGEST));
    // The bits that the tested logs of words use are left zero.
    let mut x = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    (0..len)
        .map(|_| {
            x = x.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(1);
            (x >> 56) as u8 & 0x7e
        })
        .collect()
}

fn tag<L: Kind>(seed: u64) -> u8 {
    if L::TAGS { seed as u8 } else { 0 }
}

type Model = VecDeque<(Position, u8, Vec<u8>)>;

fn assert_same<L: Kind, M: Medium>(op: &Op<'_, M>, log: &L, model: &Model) {
    let found: Model = log.iter(op).map(|r| (r.position(), r.tag(), r.to_vec())).collect();
    for (record, (.., bytes)) in log.iter(op).zip(&found) {
        let mut words = vec![u64::MAX; bytes.len().div_ceil(8) + 1];
        let count = record.copy_words(&mut words);
        assert_eq!((count, words.pop()), (words.len(), Some(u64::MAX)), "as many as there are, and no more");
        assert!(words.iter().copied().eq(record.words()));
        assert!(words.iter().flat_map(|w| w.to_le_bytes()).take(bytes.len()).eq(bytes.iter().copied()));
    }
    assert_eq!(&found, model);
    assert_eq!(log.is_empty(), model.is_empty());
    assert_eq!(log.check(op), []);
    let nexts: Vec<_> = log.iter(op).map(|r| r.next()).collect();
    let starts: Vec<_> = log.iter(op).map(|r| r.position()).skip(1).chain([log.tail()]).collect();
    if !model.is_empty() {
        assert_eq!(nexts, starts);
    }
}

fn appends_are_read_back_in_order<L: Kind>() {
    let mapping = Mapping::heap(1 << 16, Hardware::PAGE_CACHE);
    let mut session = mapping.session().unwrap();
    let op = session.enter().unwrap();
    let mut log = L::format(&op, region::<L>(16 << 10), &L::options()).unwrap();
    let mut model = Model::new();
    for i in 0..20 {
        let bytes = payload::<L>(i, i as usize * 7);
        let position = log.append(&op, tag::<L>(i), &bytes).unwrap();
        model.push_back((position, tag::<L>(i), bytes));
    }
    assert_same(&op, &log, &model);
    let log = L::recover(&op, region::<L>(16 << 10)).unwrap();
    assert_same(&op, &log, &model);
}

fn an_append_is_one_write_back_a_line_and_one_fence<L: Kind>() {
    let counting = Counting::new(Hardware::PAGE_CACHE);
    let mapping = Mapping::heap(1 << 16, counting);
    let mut session = mapping.session().unwrap();
    let op = session.enter().unwrap();
    let mut log = L::format(&op, region::<L>(16 << 10), &L::options()).unwrap();
    for i in 0..400 {
        let bytes = payload::<L>(i, i as usize % (L::LONGEST + 1));
        let (before, tail) = (counting.counts(), log.tail());
        let position = log.append(&op, tag::<L>(i), &bytes).unwrap();
        let cost = counting.counts() - before;
        let more = L::more_lines(16 << 10, tail.get(), position.get(), log.tail().get() - 1);
        let lines = L::lines(bytes.len()) + more;
        assert_eq!((cost.write_backs, cost.fences, cost.locked), (lines, 1, 0), "record {i}");
        if i % 8 == 7 {
            let before = counting.counts();
            let to = log.tail();
            log.trim(&op, to).unwrap();
            let cost = counting.counts() - before;
            assert_eq!((cost.fences, cost.locked), (0, 0));
            assert!(cost.write_backs == 1 || L::REINITIALISES);
        }
    }
    let before = counting.counts();
    let mut lines = 0;
    for i in 0..10 {
        let bytes = payload::<L>(i, L::LONGEST);
        let tail = log.tail().get();
        let position = log.stage(&op, tag::<L>(i), &bytes).unwrap().get();
        lines += L::lines(bytes.len()) + L::more_lines(16 << 10, tail, position, log.tail().get() - 1);
    }
    log.commit(&op);
    let cost = counting.counts() - before;
    assert_eq!((cost.write_backs, cost.fences, cost.locked), (lines, 1, 0));
}

#[derive(Clone, Debug)]
enum Step {
    Append(usize),
    Stage(usize),
    Commit,
    Trim(usize),
    Reopen,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        8 => (0..320usize).prop_map(Step::Append),
        4 => (0..320usize).prop_map(Step::Stage),
        1 => Just(Step::Commit),
        4 => (0..5usize).prop_map(Step::Trim),
        1 => Just(Step::Reopen),
    ]
}

/// Runs the steps on a log of few units and on a queue; both must agree after each.
fn agrees_with_a_queue<L: Kind>(
    units: u64,
    steps: &[Step],
    options: &L::Options,
    payload: impl Fn(u64, usize) -> Vec<u8>,
) {
    let mapping = Mapping::heap(1 << 14, Hardware::PAGE_CACHE);
    let mut session = mapping.session().unwrap();
    let op = session.enter().unwrap();
    let region = region::<L>(units * L::SLOT);
    let mut log = L::format(&op, region, options).unwrap();
    let mut model = Model::new();
    for (seed, step) in steps.iter().enumerate() {
        let seed = seed as u64;
        match *step {
            Step::Append(len) | Step::Stage(len) => {
                let bytes = payload(seed, len);
                let tag = tag::<L>(seed);
                let result = match step {
                    Step::Append(_) => log.append(&op, tag, &bytes),
                    _ => log.stage(&op, tag, &bytes),
                };
                match result {
                    Ok(position) => model.push_back((position, tag, bytes)),
                    Err(Error::Full { needed, free, .. }) => assert!(free < needed && !model.is_empty()),
                    Err(Error::TooLong { len, max }) => assert!(len > max && max == log.max_payload()),
                    Err(other) => panic!("{other}"),
                }
            }
            Step::Commit => log.commit(&op),
            Step::Trim(count) => {
                let to = model.get(count).map_or(log.tail(), |r| r.0);
                log.trim(&op, to).unwrap();
                model.drain(..count.min(model.len()));
            }
            Step::Reopen => log = L::recover(&op, region).unwrap(),
        }
        assert_same(&op, &log, &model);
    }
}

fn full_and_oversized_leave_the_log_unharmed<L: Kind>() {
    let mapping = Mapping::heap(1 << 14, Hardware::PAGE_CACHE);
    let mut session = mapping.session().unwrap();
    let op = session.enter().unwrap();
    let region = region::<L>(16 * L::SLOT);
    let mut log = L::format(&op, region, &L::options()).unwrap();
    let too_long = vec![0; log.max_payload() + 1];
    let mut model = Model::new();
    for lap in 0..5 {
        loop {
            let error = log.append(&op, 0, &too_long).unwrap_err();
            assert!(matches!(error, Error::TooLong { .. } | Error::WrongLength { .. }), "{error}");
            let bytes = payload::<L>(lap, L::LONGEST);
            match log.append(&op, 0, &bytes) {
                Ok(position) => model.push_back((position, 0, bytes)),
                Err(error) => {
                    assert!(matches!(error, Error::Full { .. }), "{error}");
                    break;
                }
            }
        }
        assert_same(&op, &log, &model);
        log = L::recover(&op, region).unwrap();
        assert_same(&op, &log, &model);
        model.pop_front();
        log.trim(&op, model[0].0).unwrap();
    }
    let beyond = Position::from_raw(log.tail().get() + 1);
    assert!(matches!(log.trim(&op, beyond), Err(Error::NotARecord { .. })));
    let before = Position::from_raw(log.head().get() - 1);
    assert!(matches!(log.trim(&op, before), Err(Error::NotARecord { .. })));
    assert!(log.record_at(&op, beyond).is_none() && log.record_at(&op, before).is_none());
    assert_same(&op, &log, &model);
}

fn another_session_may_take_over<L: Kind>() {
    let counting = Counting::new(Hardware::PAGE_CACHE);
    let mapping = Mapping::heap(1 << 16, counting);
    let mut first = mapping.session().unwrap();
    let mut second = mapping.session().unwrap();
    let region = region::<L>(64 * L::SLOT);
    let op = first.enter().unwrap();
    let mut log = L::format(&op, region, &L::options()).unwrap();
    log.append(&op, 0, &payload::<L>(1, 8)).unwrap();
    let to = log.tail();
    log.trim(&op, to).unwrap();
    log.stage(&op, 0, &payload::<L>(2, 8)).unwrap();
    drop(op);
    let op = second.enter().unwrap();
    let before = counting.counts();
    log.append(&op, 0, &payload::<L>(3, 8)).unwrap();
    let cost = counting.counts() - before;
    let lines = L::lines(payload::<L>(3, 8).len());
    // A chain cannot know that the state of its segment is durable.
    let states = L::more_lines(64 * L::SLOT, 0, 0, u64::MAX >> 8).min(1) * u64::from(!L::REINITIALISES);
    let expected = (1 + lines.max(L::SLOT / 64) + lines + states, 1);
    assert_eq!((cost.write_backs, cost.fences), expected, "head, staged slot, record");
    assert_eq!(log.iter(&op).count(), 2);
}

fn what_is_no_log_is_an_error<L: Kind>() {
    let mapping = Mapping::heap(1 << 14, Hardware::PAGE_CACHE);
    let mut session = mapping.session().unwrap();
    let op = session.enter().unwrap();
    let region = region::<L>(16 * L::SLOT);
    assert!(matches!(L::recover(&op, region), Err(Error::NotALog { .. })));
    for bad in [Region { off: OFF + 8, ..region }, Region { len: 64, ..region }] {
        assert!(matches!(L::format(&op, bad, &L::options()), Err(Error::BadRegion { .. })));
        assert!(matches!(L::recover(&op, bad), Err(Error::BadRegion { .. })));
    }
    let beyond = Region { off: 1 << 20, ..region };
    assert!(matches!(L::format(&op, beyond, &L::options()), Err(Error::Pmem(_))));
    let mut log = L::format(&op, region, &L::options()).unwrap();
    log.append(&op, 0, &payload::<L>(1, 8)).unwrap();
    // Every flipped bit of the header's line, and of the head, is noticed.
    for word in 0..9u64 {
        for bit in 0..64 {
            let word: &durix_pmem::Word = op.at(durix_pmem::Off::new(OFF + word * 8));
            let value = op.load(word, std::sync::atomic::Ordering::Relaxed);
            op.store(word, value ^ 1 << bit, std::sync::atomic::Ordering::Relaxed);
            L::recover(&op, region).unwrap_err();
            op.store(word, value, std::sync::atomic::Ordering::Relaxed);
        }
    }
    assert_eq!(L::recover(&op, region).unwrap().iter(&op).count(), 1);
}

/// Whatever lies in the log's units: no panic, no endless loop, and what is found can be read.
fn damage_is_survived<L: Kind>(units: u64, appended: usize, damage: &[(u64, u64)]) {
    use std::sync::atomic::Ordering::Relaxed;
    let mapping = Mapping::heap(1 << 14, Hardware::PAGE_CACHE);
    let mut session = mapping.session().unwrap();
    let op = session.enter().unwrap();
    let region = region::<L>(units * L::SLOT);
    let mut log = L::format(&op, region, &L::options()).unwrap();
    for i in 0..appended {
        let bytes = payload::<L>(i as u64, (i * 13).min(log.max_payload()));
        while log.append(&op, 0, &bytes).is_err() {
            let to = log.iter(&op).nth(1).map_or(log.tail(), |r| r.position());
            log.trim(&op, to).unwrap();
        }
    }
    // Everything but the header's line and the head, whose damage is always noticed.
    for (at, value) in damage {
        let word: &durix_pmem::Word = op.at(durix_pmem::Off::new(OFF + 128 + at % (region.len / 8 - 16) * 8));
        op.store(word, *value, Relaxed);
    }
    let Ok(mut log) = L::recover(&op, region) else { return };
    let found = log.iter(&op).map(|r| r.to_vec().len()).sum::<usize>();
    assert!(found as u64 <= 2 * region.len);
    assert_eq!(log.check(&op), [], "recovery leaves nothing that contradicts itself");
    for i in 0..6 {
        if log.append(&op, 0, &payload::<L>(i, 40)).is_err() {
            let to = log.tail();
            log.trim(&op, to).unwrap();
        }
    }
    assert_eq!(log.check(&op), []);
}

macro_rules! for_kinds {
    ($($name:ident: $log:ty),* $(,)?) => { $(
        mod $name {
            use super::*;

            #[test]
            fn appends_are_read_back_in_order() {
                super::appends_are_read_back_in_order::<$log>();
            }
            #[test]
            fn an_append_is_one_write_back_a_line_and_one_fence() {
                super::an_append_is_one_write_back_a_line_and_one_fence::<$log>();
            }
            #[test]
            fn full_and_oversized_leave_the_log_unharmed() {
                super::full_and_oversized_leave_the_log_unharmed::<$log>();
            }
            #[test]
            fn another_session_may_take_over() {
                super::another_session_may_take_over::<$log>();
            }
            #[test]
            fn what_is_no_log_is_an_error() {
                super::what_is_no_log_is_an_error::<$log>();
            }
            proptest! {
                #[test]
                fn damage_is_survived(
                    units in 3..20u64,
                    appended in 0..30usize,
                    damage in prop::collection::vec((any::<u64>(), any::<u64>()), 1..12),
                ) {
                    super::damage_is_survived::<$log>(units, appended, &damage);
                }
                #[test]
                fn agrees_with_a_queue(units in 3..20u64, steps in prop::collection::vec(step(), 0..120)) {
                    super::agrees_with_a_queue::<$log>(units, &steps, &<$log>::options(), payload::<$log>);
                }
            }
        }
    )* };
}

for_kinds! {
    vb_half: VbLog<HalfLine>,
    vb_one: VbLog<OneLine>,
    vb_two: VbLog<TwoLines>,
    lines: LinesLog,
    words_1: WordsLog<1, 0, 63>,
    words_2: WordsLog<2, 0, 0>,
    words_4: WordsLog<4, 3, 56>,
    words_16: WordsLog<16, 5, 0>,
    fvb: FvbLog,
    fvb_entry: FvbEntryLog,
    random: RandomLog,
    chain: ChainLog,
}

/// Payloads that have the pattern of the log in the last words of lines.
fn colliding(seed: u64, len: usize) -> Vec<u8> {
    let mut bytes = payload::<RandomLog>(seed, len);
    for (index, word) in bytes.chunks_exact_mut(8).enumerate() {
        if index % 8 == 6 && !(seed + index as u64).is_multiple_of(3) {
            word.fill(0x2a);
        }
    }
    bytes
}

const COLLIDING: RandomOptions = RandomOptions { pattern: Some(0x2a2a_2a2a_2a2a_2a2a) };

proptest! {
    #[test]
    fn random_with_collisions_agrees_with_a_queue(
        units in 3..30u64,
        steps in prop::collection::vec(step(), 0..120),
    ) {
        agrees_with_a_queue::<RandomLog>(units, &steps, &COLLIDING, colliding);
    }
}

#[test]
fn random_takes_a_second_round_trip_for_a_collision_only() {
    let counting = Counting::new(Hardware::PAGE_CACHE);
    let mapping = Mapping::heap(1 << 16, counting);
    let mut session = mapping.session().unwrap();
    let op = session.enter().unwrap();
    let mut log = RandomLog::format(&op, region::<RandomLog>(4096), &COLLIDING).unwrap();
    for (bytes, write_backs, fences) in [
        (vec![0x2a; 56], 2, 2),
        (vec![0x2a; 48], 1, 1),
        (vec![0x2b; 56], 1, 1),
        (vec![0x2a; 55], 1, 1),
        (vec![0x2a; 120], 3, 2),
    ] {
        let before = counting.counts();
        log.append(&op, 7, &bytes).unwrap();
        let cost = counting.counts() - before;
        assert_eq!((cost.write_backs, cost.fences), (write_backs, fences), "{} bytes", bytes.len());
        assert_eq!(log.iter(&op).last().unwrap().to_vec(), bytes);
    }
}

#[test]
fn random_reuses_a_line_only_when_its_pattern_is_durable() {
    let counting = Counting::new(Hardware::PAGE_CACHE);
    let mapping = Mapping::heap(1 << 16, counting);
    let mut session = mapping.session().unwrap();
    let op = session.enter().unwrap();
    let mut log = RandomLog::format(&op, region::<RandomLog>(8 * 64), &COLLIDING).unwrap();
    let cost_of = |log: &mut RandomLog| {
        let before = counting.counts();
        log.append(&op, 0, &[1; 8]).unwrap();
        let cost = counting.counts() - before;
        (cost.write_backs, cost.fences)
    };
    for _ in 0..7 {
        assert_eq!(cost_of(&mut log), (1, 1));
    }
    assert!(matches!(log.append(&op, 0, &[1; 8]), Err(Error::Full { .. })), "one line stays initialised");
    log.trim(&op, log.tail()).unwrap();
    // Nothing was prepared: a fence for the head, one for the pattern of all eight lines but the one that still is clean,
    // and the record's own.
    assert_eq!(cost_of(&mut log), (7 + 1, 3));
    log.trim(&op, log.tail()).unwrap();
    assert_eq!(cost_of(&mut log), (1, 1), "makes the head durable");
    assert_eq!(log.reinitialise(&op, 100), 1);
    assert_eq!(cost_of(&mut log), (1, 1), "makes the pattern durable");
    for _ in 0..5 {
        assert_eq!(cost_of(&mut log), (1, 1), "the pipeline has done its work in advance");
    }
}
