//! One body for every log and every entry size.

use std::collections::VecDeque;
use std::sync::atomic::Ordering::Relaxed;

use durix_pmem::{Hardware, Mapping, Off, Op, Session, Word};

use super::*;
use crate::with_size;

const REGION: Region = Region { off: 128, len: 6 << 10 };

/// A generator for the tests' choices: they are the same in every run.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
        (self.0 ^ self.0 >> 32).wrapping_mul(0xd6e8_feb8_6659_fd93) >> 16
    }

    fn payload<const W: usize>(&mut self) -> [u64; W] {
        // Now and then words that look like fresh memory, or like a log's own bits.
        std::array::from_fn(|_| match self.next() % 4 {
            0 => 0,
            1 => u64::MAX,
            _ => self.next() << 16 ^ self.next(),
        })
    }
}

struct Bed<L, const W: usize> {
    session: Session<Hardware>,
    log: L,
    model: VecDeque<[u64; W]>,
    random: Random,
}

type Memory = Vec<u64>;

fn words<'s>(op: &Op<'s, Hardware>) -> &'s [Word] {
    op.slice("region", Off::new(REGION.off), REGION.len / 8).unwrap()
}

impl<L: AppendLog<Hardware, W>, const W: usize> Bed<L, W> {
    fn new() -> Self {
        let mut session = Mapping::heap(16 << 10, Hardware::PAGE_CACHE).session().unwrap();
        let log = L::format(&session.enter().unwrap(), REGION).unwrap();
        Bed { session, log, model: VecDeque::new(), random: Random(W as u64) }
    }

    fn append(&mut self) -> bool {
        let payload = self.random.payload();
        let appended = self.log.append(&self.session.enter().unwrap(), &payload);
        match appended {
            Ok(()) => self.model.push_back(payload),
            Err(ref error) => assert_eq!(*error, Error::Full),
        }
        appended.is_ok()
    }

    fn consume(&mut self) {
        let model = &mut self.model;
        self.log.consume(&self.session.enter().unwrap(), |payload| assert_eq!(Some(*payload), model.pop_front()));
        assert!(model.is_empty(), "{} kept {} entries back", L::NAME, model.len());
    }

    fn recover(&mut self) -> Vec<[u64; W]> {
        let (log, entries) = L::recover(&self.session.enter().unwrap(), REGION).unwrap();
        self.log = log;
        entries
    }

    fn memory(&mut self) -> Memory {
        let op = self.session.enter().unwrap();
        words(&op).iter().map(|w| op.load(w, Relaxed)).collect()
    }

    fn set_memory(&mut self, memory: &Memory) {
        let op = self.session.enter().unwrap();
        words(&op).iter().zip(memory).for_each(|(w, value)| op.store(w, *value, Relaxed));
    }

    /// Brings the log to some state in some pass, with at least one entry. Returns the memory as it was without the last.
    fn wander(&mut self, steps: u64) -> Memory {
        for _ in 0..steps {
            self.append();
            if self.random.next().is_multiple_of(7) {
                self.consume();
            }
        }
        let before = self.memory();
        if self.append() {
            return before;
        }
        self.consume();
        let before = self.memory();
        assert!(self.append());
        before
    }
}

fn reads_back<L: AppendLog<Hardware, W>, const W: usize>() {
    let mut bed = Bed::<L, W>::new();
    bed.consume();
    for _ in 0..100 {
        let appends = bed.random.next() % 40;
        for _ in 0..appends {
            bed.append();
        }
        bed.consume();
    }
    let mut capacity = 0;
    while bed.append() {
        capacity += 1;
    }
    assert!(capacity >= 6, "{}: only {capacity} entries of {W} words in {} bytes", L::NAME, REGION.len);
    assert!(!bed.append(), "full stays full");
    bed.consume();
    assert!(bed.append(), "and is empty after reading");
}

fn recovers<L: AppendLog<Hardware, W>, const W: usize>() {
    let mut bed = Bed::<L, W>::new();
    assert!(bed.recover().is_empty());
    for _ in 0..100 {
        if bed.random.next().is_multiple_of(9) {
            bed.consume();
        }
        bed.append();
        let found = bed.recover();
        assert_eq!(bed.model, found, "{}", L::NAME);
    }
    while bed.append() {}
    let found = bed.recover();
    assert_eq!(bed.model, found, "{}: a full log", L::NAME);
}

/// What may be missing after a crash: words or lines, by index into the region.
fn pieces(claim: Claim, old: &Memory, new: &Memory) -> Vec<Vec<usize>> {
    let changed = (0..old.len()).filter(|i| old[*i] != new[*i]);
    match claim {
        Claim::Lines => {
            let mut lines: Vec<Vec<usize>> = Vec::new();
            for i in changed {
                match lines.last_mut() {
                    Some(line) if line[0] / 8 == i / 8 => line.push(i),
                    _ => lines.push(vec![i]),
                }
            }
            lines
        }
        _ => changed.map(|i| vec![i]).collect(),
    }
}

/// `new`, but for the pieces that are missing.
fn torn(old: &Memory, new: &Memory, missing: &[&Vec<usize>]) -> Memory {
    let mut memory = new.clone();
    missing.iter().flat_map(|p| p.iter()).for_each(|i| memory[*i] = old[*i]);
    memory
}

/// Sets of missing pieces: each alone, all but each, all, and random ones.
fn cuts<'p>(pieces: &'p [Vec<usize>], random: &mut Random) -> Vec<Vec<&'p Vec<usize>>> {
    let alone = pieces.iter().map(|p| vec![p]);
    let but_one = pieces.iter().map(|kept| pieces.iter().filter(|p| *p != kept).collect());
    let mut cuts: Vec<Vec<_>> = alone.chain(but_one).chain([pieces.iter().collect()]).collect();
    for _ in 0..6 {
        cuts.push(pieces.iter().filter(|_| random.next().is_multiple_of(2)).collect());
    }
    cuts.retain(|cut: &Vec<_>| !cut.is_empty());
    cuts
}

/// An append that was torn is not found, nor does it spoil what was there, nor complete a later torn append.
fn notices_torn_entries<L: AppendLog<Hardware, W>, const W: usize>() {
    for round in 0..4 {
        let mut bed = Bed::<L, W>::new();
        let before = bed.wander(round * 37);
        let expected: Vec<_> = bed.model.iter().copied().take(bed.model.len() - 1).collect();
        let after = bed.memory();
        let last = *bed.model.back().unwrap();
        let pieces = pieces(L::CLAIM, &before, &after);
        let essential = essential::<L, W>(&mut bed, &before, &after, &pieces, &expected);
        for cut in cuts(&pieces, &mut Random(round)) {
            if L::CLAIM == Claim::SecondTrip && !cut.iter().any(|p| essential.contains(p)) {
                continue; // The fence between the two trips makes this impossible.
            }
            bed.set_memory(&torn(&before, &after, &cut));
            assert_eq!(bed.recover(), expected, "{}: {} pieces missing", L::NAME, cut.len());
            let recovered = bed.memory();
            if bed.log.append(&bed.session.enter().unwrap(), &last).is_err() {
                continue;
            }
            let again = bed.memory();
            if L::CLAIM != Claim::SecondTrip {
                let pieces = self::pieces(L::CLAIM, &recovered, &again);
                for cut in pieces.iter().map(|p| vec![p]) {
                    bed.set_memory(&torn(&recovered, &again, &cut));
                    assert_eq!(bed.recover(), expected, "{}: torn a second time", L::NAME);
                }
            }
            bed.set_memory(&again);
            assert_eq!(bed.recover().len(), expected.len() + 1, "{}: appended after a torn entry", L::NAME);
        }
    }
}

/// The pieces without each of which the entry is not found; all of them, where any piece missing is to be noticed.
fn essential<'p, L: AppendLog<Hardware, W>, const W: usize>(
    bed: &mut Bed<L, W>,
    before: &Memory,
    after: &Memory,
    pieces: &'p [Vec<usize>],
    expected: &[[u64; W]],
) -> Vec<&'p Vec<usize>> {
    let mut essential = Vec::new();
    for piece in pieces {
        bed.set_memory(&torn(before, after, &[piece]));
        if bed.recover() == expected {
            essential.push(piece);
        }
    }
    match L::CLAIM {
        Claim::SecondTrip => assert_eq!(essential.len(), 1, "{}: one link", L::NAME),
        _ => assert_eq!(essential.len(), pieces.len(), "{}: every piece counts", L::NAME),
    }
    essential
}

struct All;

impl<const W: usize> Visitor<Hardware, W> for All {
    fn visit<L: AppendLog<Hardware, W> + 'static>(&mut self) {
        reads_back::<L, W>();
        recovers::<L, W>();
        notices_torn_entries::<L, W>();
    }
}

fn all<const W: usize>() {
    visit_logs::<Hardware, W>(&mut All);
}

#[test]
fn every_log_reads_back_recovers_and_notices_torn_entries_at_every_size() {
    for size in SIZES {
        with_size!(size, all());
    }
}

#[test]
fn a_region_that_holds_no_two_entries_is_refused() {
    let mut session = Mapping::heap(16 << 10, Hardware::PAGE_CACHE).session().unwrap();
    let op = session.enter().unwrap();
    let refused = <linked::TwoRounds<7> as AppendLog<Hardware, 7>>::format(&op, Region { off: 64, len: 128 });
    let error = refused.unwrap_err();
    assert_eq!(error, Error::TooSmall { len: 128, stride: 64 });
    assert_eq!(error.to_string(), "a region of 128 bytes is too small for two entries of 64 bytes");
}

#[test]
fn counts_per_append_are_those_of_table_1() {
    let expected = [
        ("TwoRounds", [2.0, 2.0, 3.0, 5.0, 9.0], 2.0),
        ("AtlasLog", [1.5, 0.0, 0.0, 0.0, 0.0], 1.5),
        ("tornbit", [1.0, 1.0, 2.0, 4.0, 8.0], 1.0),
        ("CRC32", [1.0, 1.0, 2.0, 4.0, 8.0], 1.0),
        ("CRC64", [1.0, 1.0, 2.0, 4.0, 8.0], 1.0),
        ("MD5", [1.0, 2.0, 2.0, 4.0, 8.0], 1.0),
        ("SHA1", [1.0, 2.0, 3.0, 4.0, 8.0], 1.0),
    ];
    for (i, size) in SIZES.iter().enumerate() {
        for (name, counts) in crate::cso_append::counts(*size) {
            let Some((_, write_backs, fences)) = expected.iter().find(|(n, ..)| *n == name) else { continue };
            assert_eq!((counts.write_backs, counts.fences), (write_backs[i], *fences), "{name}, {}", size.name);
        }
    }
}
