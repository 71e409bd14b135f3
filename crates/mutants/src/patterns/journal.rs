//! Two words changed together under an undo log of two segments; and a record of three lines, doubled, of which a
//! selector names the one that counts.

use std::sync::atomic::Ordering::{Relaxed, Release};

use durix_pmem::{Medium, Op, Word};

use super::pattern::{Bound, Host, Map, Pattern, word};

#[derive(Clone, Copy, Debug, PartialEq)]
enum Bug {
    PayloadWithCommit,
    TruncatedEarly,
    Acknowledged,
    SnapshotAfterWrite,
    NotIdempotent,
    StaleSegment,
    FirstLine,
    LastLine,
    MergedRange,
    OldInvalidated,
    MagicFirst,
}

#[derive(Clone, Copy, Debug)]
enum Do {
    /// Sets both words.
    Both(u64),
    /// Sets the first word.
    First(u64),
    /// Sets the record.
    Fill(u64),
}

struct Journal;

const MAGIC: u64 = 64;
const PARAM: u64 = 128;
const DATA: [u64; 2] = [192, 256];
/// A segment: whether it counts, and the old value.
const SEGMENTS: [u64; 2] = [320, 384];
const ACTIVE: u64 = 448;
const SELECTOR: u64 = 512;
/// Neither begins nor ends at a line.
const RECORDS: [u64; 2] = [1024 + 40, 2048 + 40];
const RECORD_WORDS: u64 = 16;

fn put<M: Medium>(op: &Op<'_, M>, off: u64, value: u64) {
    op.store(word(op, off), value, Release);
    op.persist(word(op, off));
}

fn transaction<M: Medium>(op: &Op<'_, M>, bug: Option<Bug>, values: &[u64]) {
    let early = bug == Some(Bug::SnapshotAfterWrite);
    let change = || values.iter().zip(DATA).for_each(|(value, data)| op.store(word(op, data), *value, Relaxed));
    if early {
        change();
    }
    for (segment, data) in SEGMENTS.iter().zip(DATA).take(values.len()) {
        op.store(word(op, segment + 8), op.load(word(op, data), Relaxed), Relaxed);
        op.store(word(op, *segment), 1, Release);
        op.write_back(word(op, *segment));
    }
    if bug != Some(Bug::PayloadWithCommit) {
        op.fence();
    }
    put(op, ACTIVE, values.len() as u64);
    change();
    DATA.iter().take(values.len()).for_each(|data| op.write_back(word(op, *data)));
    if bug != Some(Bug::TruncatedEarly) {
        op.fence();
    }
    op.store(word(op, ACTIVE), 0, Release);
    op.write_back(word(op, ACTIVE));
    if bug != Some(Bug::Acknowledged) {
        op.fence();
    }
    clear_segments(op, bug);
}

/// Segments of a finished transaction must not count in the next.
fn clear_segments<M: Medium>(op: &Op<'_, M>, bug: Option<Bug>) {
    let stale = usize::from(bug == Some(Bug::StaleSegment));
    for segment in SEGMENTS.iter().take(2 - stale) {
        op.store(word(op, *segment), 0, Release);
        op.write_back(word(op, *segment));
    }
    if bug != Some(Bug::Acknowledged) {
        op.fence();
    }
}

fn record<'s, M: Medium>(op: &Op<'s, M>, which: u64) -> &'s [Word] {
    op.slice("record", durix_pmem::Off::new(RECORDS[which as usize & 1]), RECORD_WORDS).expect("in the arena")
}

fn fill<M: Medium>(op: &Op<'_, M>, bug: Option<Bug>, value: u64) {
    let next = (op.load(word(op, SELECTOR), Relaxed) + 1) & 1;
    if bug == Some(Bug::OldInvalidated) {
        // What counts no longer does; what is to count is not there yet.
        put(op, SELECTOR, next);
    }
    let words = record(op, next);
    words.iter().for_each(|word| op.store(word, value, Relaxed));
    match bug {
        // The first line, and the last, hold less than a line of the record.
        Some(Bug::FirstLine) => op.write_back_slice(&words[3..]),
        Some(Bug::LastLine) => op.write_back_slice(&words[..8]),
        Some(Bug::MergedRange) => op.write_back_slice(&words[..4]),
        _ => op.write_back_slice(words),
    }
    op.fence();
    put(op, SELECTOR, next);
}

impl Host for Journal {
    type Bug = Bug;
    type Do = Do;
    type Volatile = ();

    fn create<M: Medium>(op: &Op<'_, M>, bug: Option<Bug>) {
        if bug == Some(Bug::MagicFirst) {
            put(op, MAGIC, 1);
        }
        put(op, PARAM, 7);
        put(op, MAGIC, 1);
    }

    fn recover<M: Medium>(op: &Op<'_, M>, bug: Option<Bug>) -> Result<(), String> {
        if op.load(word(op, MAGIC), Relaxed) == 0 {
            Self::create(op, bug);
            return Ok(());
        }
        if op.load(word(op, PARAM), Relaxed) != 7 {
            return Err("a parameter that no creation writes".into());
        }
        let active = op.load(word(op, ACTIVE), Relaxed);
        if active != 0 {
            if bug == Some(Bug::NotIdempotent) {
                put(op, ACTIVE, 0);
            }
            for (number, (segment, data)) in SEGMENTS.iter().zip(DATA).enumerate() {
                // The commit record counts the segments of its transaction; one that is chained to them counts, too.
                if number < active as usize || op.load(word(op, *segment), Relaxed) == 1 {
                    op.store(word(op, data), op.load(word(op, segment + 8), Relaxed), Relaxed);
                    op.write_back(word(op, data));
                }
            }
            op.fence();
            put(op, ACTIVE, 0);
        }
        SEGMENTS.iter().for_each(|segment| {
            if bug != Some(Bug::StaleSegment) {
                put(op, *segment, 0);
            }
        });
        Ok(())
    }

    fn apply<M: Medium>((op, _): (&Op<'_, M>, &Op<'_, M>), (): &mut (), bug: Option<Bug>, what: Do) -> Option<u64> {
        match what {
            Do::Both(value) => transaction(op, bug, &[value, value]),
            Do::First(value) => transaction(op, bug, &[value]),
            Do::Fill(value) => fill(op, bug, value),
        }
        None
    }

    fn contents<M: Medium>(op: &Op<'_, M>) -> Map {
        let mut map: Map = DATA.iter().map(|data| (*data, op.load(word(op, *data), Relaxed))).collect();
        let words = record(op, op.load(word(op, SELECTOR), Relaxed));
        let first = op.load(&words[0], Relaxed);
        let whole = words.iter().all(|word| op.load(word, Relaxed) == first);
        map.insert(SELECTOR, if whole { first } else { u64::MAX });
        map.retain(|_, value| *value != 0);
        map
    }

    fn step(model: &mut Map, what: Do) -> Option<u64> {
        match what {
            Do::Both(value) => model.extend(DATA.map(|data| (data, value))),
            Do::First(value) => model.extend([(DATA[0], value)]),
            Do::Fill(value) => model.extend([(SELECTOR, value)]),
        }
        None
    }
}

pub(super) fn patterns() -> Vec<Pattern> {
    use Bound::{Recovery, Sequential};
    use Do::{Both, Fill, First};
    const PAIRS: (&[Do], &[Do]) = (&[Both(1), Both(2), First(3)], &[Both(4)]);
    const FILLS: (&[Do], &[Do]) = (&[Fill(1), Fill(2)], &[Fill(4)]);
    let planted = Pattern::new::<Journal>;
    vec![
        planted("fence", "payload before the commit record", Sequential, Bug::PayloadWithCommit, PAIRS),
        planted("fence", "log truncated before the home locations are durable", Sequential, Bug::TruncatedEarly, PAIRS),
        planted("fence", "acknowledgement before the fence", Sequential, Bug::Acknowledged, PAIRS),
        planted("fence", "snapshot taken after the write", Sequential, Bug::SnapshotAfterWrite, PAIRS),
        planted("write-back", "first line of a misaligned range", Sequential, Bug::FirstLine, FILLS),
        planted("write-back", "last line of a misaligned range", Sequential, Bug::LastLine, FILLS),
        planted("write-back", "range dropped when merged with another", Sequential, Bug::MergedRange, FILLS),
        planted("atomicity", "old value invalidated before the new is durable", Sequential, Bug::OldInvalidated, FILLS),
        planted("recovery", "not idempotent", Recovery, Bug::NotIdempotent, PAIRS),
        planted("recovery", "a crash in creation makes open fail for ever", Sequential, Bug::MagicFirst, PAIRS),
        planted("recovery", "undo log with a stale chained segment", Sequential, Bug::StaleSegment, PAIRS),
    ]
}
