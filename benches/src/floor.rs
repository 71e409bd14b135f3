//! The floor of a persist: what the machine takes for a store, its write-back and a fence, and nothing else.
//!
//! It is taken over successive lines of a region, as a log writes them. A line that is written again while its last
//! write-back is still on its way to memory costs more (see the row of half lines), so a single hot line is no floor.

use std::hint::black_box;
use std::sync::atomic::Ordering::Relaxed;

use durix_pmem::{Medium, Off, Op, Session};

use crate::interleave::{Contestant, Stopwatch};
use crate::logs::{Line, Region};

/// What is stored before the write-back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stores {
    /// One word of each line: the least that makes a line dirty. The floor of all ratios.
    Word,
    /// All eight words of each line.
    Line,
    /// Half of a line, then its other half, each written back and fenced.
    HalfLine,
}

/// The floor as a contestant: persists of `LINES` lines under one fence, and a second phase that reads them back.
#[derive(Debug)]
pub struct Floor<M: Medium, const LINES: usize> {
    session: Session<M>,
    region: Region,
    stores: Stores,
    batch: usize,
    /// Where the next persist goes, in half lines.
    next: u64,
}

impl<M: Medium, const LINES: usize> Floor<M, LINES> {
    /// Measures over `region` in batches of `batch` persists.
    pub fn new(session: Session<M>, region: Region, stores: Stores, batch: usize) -> Self {
        Floor { session, region, stores, batch, next: 0 }
    }

    /// Half lines that a persist goes on by.
    const fn step(stores: Stores) -> u64 {
        match stores {
            Stores::HalfLine => 1,
            _ => 2 * LINES as u64,
        }
    }
}

/// One persist at half line `at`, and the place of the next.
#[inline(always)]
fn persist<M: Medium, const LINES: usize>(op: &Op<'_, M>, region: Region, stores: Stores, at: u64, value: u64) -> u64 {
    let first = Off::<Line>::new(region.off + at / 2 * 64);
    for i in 0..LINES as u64 {
        let line = op.at(first.byte_add(i * 64));
        match stores {
            Stores::Word => op.store(&line.words[0], value, Relaxed),
            Stores::Line => line.words.iter().for_each(|w| op.store(w, value, Relaxed)),
            Stores::HalfLine => {
                let half = (at % 2) as usize * 4;
                line.words[half..half + 4].iter().for_each(|w| op.store(w, value, Relaxed));
            }
        }
    }
    for i in 0..LINES as u64 {
        op.write_back(op.at(first.byte_add(i * 64)));
    }
    op.fence();
    let next = at + Floor::<M, LINES>::step(stores);
    if next / 2 + LINES as u64 > region.len / 64 { 0 } else { next }
}

/// A batch of persists; inlined for each kind of stores, so that the kind is no branch within the loop.
#[inline(always)]
fn batch<M: Medium, const LINES: usize>(floor: &mut Floor<M, LINES>, stores: Stores) {
    let op = floor.session.enter().expect("the mapping is open");
    let mut at = floor.next;
    for i in 0..floor.batch as u64 {
        at = persist::<M, LINES>(&op, floor.region, stores, at, at + i);
    }
    floor.next = at;
}

impl<M: Medium, const LINES: usize> Contestant<2> for Floor<M, LINES> {
    fn name(&self) -> &str {
        match self.stores {
            Stores::Word => "floor",
            Stores::Line => "floor, whole lines",
            Stores::HalfLine => "floor, half lines",
        }
    }

    fn round(&mut self) -> [f64; 2] {
        let from = self.next;
        let start = Stopwatch::start();
        match self.stores {
            Stores::Word => batch(self, Stores::Word),
            Stores::Line => batch(self, Stores::Line),
            Stores::HalfLine => batch(self, Stores::HalfLine),
        }
        let persisted = start.elapsed();
        let lines = self.batch as u64 * Self::step(self.stores) / 2;
        let op = self.session.enter().expect("the mapping is open");
        let mut sum = 0u64;
        for i in 0..lines {
            let line = op.at(Off::<Line>::new(self.region.off + (from / 2 + i) % (self.region.len / 64) * 64));
            line.words.iter().for_each(|w| sum = sum.wrapping_add(op.load(w, Relaxed)));
        }
        black_box(sum);
        let all = start.elapsed();
        [persisted, all - persisted].map(|t| t.as_nanos() as f64 / self.batch as f64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use durix_pmem::{Counting, Hardware, Mapping};

    fn counts<const LINES: usize>(stores: Stores) -> (f64, f64, f64) {
        let counting = Counting::new(Hardware::PAGE_CACHE);
        let mapping = Mapping::heap(64 << 10, counting);
        let region = Region { off: 64, len: 32 << 10 };
        let mut floor = Floor::<_, LINES>::new(mapping.session().unwrap(), region, stores, 1000);
        let laps = floor.round();
        assert!(laps.iter().all(|l| *l > 0.0));
        let c = counting.counts();
        (c.stores as f64 / 1000.0, c.write_backs as f64 / 1000.0, c.fences as f64 / 1000.0)
    }

    #[test]
    fn a_persist_is_a_store_a_write_back_of_each_line_and_one_fence() {
        assert_eq!(counts::<1>(Stores::Word), (1.0, 1.0, 1.0));
        assert_eq!(counts::<1>(Stores::Line), (8.0, 1.0, 1.0));
        assert_eq!(counts::<1>(Stores::HalfLine), (4.0, 1.0, 1.0));
        assert_eq!(counts::<8>(Stores::Word), (8.0, 8.0, 1.0));
        assert_eq!(counts::<8>(Stores::Line), (64.0, 8.0, 1.0));
    }

    #[test]
    fn the_region_is_gone_over_line_by_line_and_never_left() {
        let mapping = Mapping::heap(64 << 10, Hardware::PAGE_CACHE);
        let region = Region { off: 1024, len: 640 };
        Floor::<_, 4>::new(mapping.session().unwrap(), region, Stores::Line, 3).round();
        let mut session = mapping.session().unwrap();
        let op = session.enter().unwrap();
        let words = op.slice("words", Off::<durix_pmem::Word>::new(0), 1024).unwrap();
        let written = |range: std::ops::Range<usize>| words[range].iter().filter(|w| op.load(w, Relaxed) != 0).count();
        assert_eq!(written(0..128) + written(128 + 80..1024), 0);
        assert_eq!(written(128..128 + 64), 64, "eight whole lines; two more do not hold four");
    }
}
