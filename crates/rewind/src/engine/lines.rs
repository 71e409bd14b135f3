//! Lines that wait to be written back, each once, those of a page one after the other.
//!
//! A table of pages, with a bit a line: a random word costs a probe of a table that stays in the processor's cache, where a list
//! would have to be sorted.

use durix_pmem::{Medium, Off, Op, Word};

/// Bytes of a line.
pub(super) const LINE: u64 = 64;
/// Bytes of a page: a line for each bit of a word.
const PAGE: u64 = LINE * 64;
/// Pages at most; before there are more, all lines are written back.
const PAGES: usize = 1 << 12;

/// Lines of a pool.
pub(super) struct Lines {
    /// Pages by hash, a power of two of them, at most three quarters full: the page's number plus one, and its lines.
    pages: Vec<[u64; 2]>,
    count: usize,
}

impl Lines {
    pub(super) fn new() -> Lines {
        Lines { pages: vec![[0; 2]; 64], count: 0 }
    }

    /// Adds the line of an offset.
    #[inline]
    pub(super) fn add<M: Medium>(&mut self, op: &Op<'_, M>, off: u64) {
        let (page, bit) = (off / PAGE + 1, 1 << (off / LINE % 64));
        match self.slot(page) {
            Some([found, lines]) if *found == page => *lines |= bit,
            _ => self.add_page(op, page, bit),
        }
    }

    /// Where a page is, or where it belongs.
    #[inline]
    fn slot(&mut self, page: u64) -> Option<&mut [u64; 2]> {
        // There are pages; said so, the places need no further look.
        let mask = self.pages.len().checked_sub(1)?;
        let mut at = (page.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 32) as usize & mask;
        while self.pages[at][0] != page && self.pages[at][0] != 0 {
            at = (at + 1) & mask;
        }
        Some(&mut self.pages[at])
    }

    #[cold]
    fn add_page<M: Medium>(&mut self, op: &Op<'_, M>, page: u64, lines: u64) {
        if self.count == PAGES {
            self.write_back(op);
        } else if (self.count + 1) * 4 > self.pages.len() * 3 {
            let wider = vec![[0; 2]; self.pages.len() * 2];
            let pages = std::mem::replace(&mut self.pages, wider);
            pages.into_iter().filter(|[page, _]| *page != 0).for_each(|[page, lines]| self.enter(page, lines));
        }
        self.enter(page, lines);
        self.count += 1;
    }

    fn enter(&mut self, page: u64, lines: u64) {
        if let Some(slot) = self.slot(page) {
            *slot = [page, lines];
        }
    }

    /// Forgets all lines.
    pub(super) fn clear(&mut self) {
        if self.count > 0 {
            self.pages.fill([0; 2]);
            self.count = 0;
        }
    }

    /// Starts writing all lines back, and is empty then.
    pub(super) fn write_back<M: Medium>(&mut self, op: &Op<'_, M>) {
        for slot in self.pages.iter_mut().filter(|slot| slot[0] != 0) {
            let [page, mut lines] = std::mem::take(slot);
            while lines != 0 {
                let line = (page - 1) * PAGE + u64::from(lines.trailing_zeros()) * LINE;
                // PERSIST RE-E3: flush+fence, by the trim
                op.write_back(op.at(Off::<Word>::new(line)));
                lines &= lines - 1;
            }
        }
        self.count = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use durix_pmem::{Counting, Hardware, Mapping};

    /// Of each line that was added one write-back, however many pages there are.
    #[test]
    fn every_line_is_written_back_once() {
        for (pages, lines) in [(1u64, 64u64), (100, 3), (PAGES as u64, 1)] {
            let counting = Counting::new(Hardware::for_pmem().unwrap_or(Hardware::PAGE_CACHE));
            let mapping = Mapping::heap((pages.next_power_of_two() * PAGE) as usize, counting);
            let mut session = mapping.session().unwrap();
            let (op, mut all) = (session.enter().unwrap(), Lines::new());
            for off in (0..3).flat_map(|word| (0..pages * lines).map(move |i| (i, word))).map(|(i, word)| {
                let (page, line) = (i % pages, i / pages);
                page * PAGE + line * LINE + word * 8
            }) {
                all.add(&op, off);
            }
            assert_eq!(counting.counts().write_backs, 0);
            all.write_back(&op);
            assert_eq!(counting.counts().write_backs, pages * lines);
            all.write_back(&op);
            assert_eq!(counting.counts().write_backs, pages * lines, "it is empty then");
        }
    }

    #[test]
    fn beyond_the_most_pages_all_lines_are_written_back_before_more_are_added() {
        let counting = Counting::new(Hardware::for_pmem().unwrap_or(Hardware::PAGE_CACHE));
        let mapping = Mapping::heap(2 * PAGES * PAGE as usize, counting);
        let mut session = mapping.session().unwrap();
        let (op, mut all) = (session.enter().unwrap(), Lines::new());
        (0..2 * PAGES as u64).for_each(|page| all.add(&op, page * PAGE));
        assert_eq!(counting.counts().write_backs, PAGES as u64);
        all.write_back(&op);
        assert_eq!(counting.counts().write_backs, 2 * PAGES as u64);
    }
}
