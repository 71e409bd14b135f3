//! Lines that wait to be written back, most of them each once, those of a page one after the other.
//!
//! A table of pages, with a bit a line, each page at the place that its number says. A page that finds another one at its place has that
//! one written back at once: a random word costs a load and a compare, where a search would have a branch that nobody predicts, and a list
//! would have to be sorted. Pages that share a place meet in pools of more than [`PAGES`] pages alone.

use durix_pmem::{Medium, Off, Op, Word};

/// Bytes of a line.
pub(super) const LINE: u64 = 64;
/// Bytes of a page: a line for each bit of a word.
const PAGE: u64 = LINE * 64;
/// Places for pages, a power of two.
const PAGES: usize = 1 << 12;

/// Lines in the order in which commits have changed them.
#[derive(Debug)]
pub(super) enum Changed {
    /// Their numbers, where 32 bits are enough: half as long lists are half as much in the processor's cache.
    Near(Vec<u32>),
    Far(Vec<u64>),
}

impl Changed {
    /// None yet, of a pool that never has more bytes.
    pub(super) fn of_pool(bytes: u64) -> Changed {
        if bytes <= LINE << 32 { Changed::Near(Vec::new()) } else { Changed::Far(Vec::new()) }
    }

    /// Adds the lines of offsets.
    #[inline]
    pub(super) fn add(&mut self, offs: impl Iterator<Item = u64>) {
        match self {
            Changed::Near(lines) => lines.extend(offs.map(|off| (off / LINE) as u32)),
            Changed::Far(lines) => lines.extend(offs.map(|off| off / LINE)),
        }
    }

    /// Takes all of them out, as offsets.
    pub(super) fn drain(&mut self, mut line: impl FnMut(u64)) {
        match self {
            Changed::Near(lines) => lines.drain(..).for_each(|number| line(u64::from(number) * LINE)),
            Changed::Far(lines) => lines.drain(..).for_each(|number| line(number * LINE)),
        }
    }
}

/// A page: its number, and its lines. Without lines it is any page.
type Page = [u64; 2];

/// Lines of a pool.
pub(super) struct Lines {
    pages: Box<[Page; PAGES]>,
}

impl Lines {
    pub(super) fn new() -> Lines {
        Lines { pages: Box::new([[0; 2]; PAGES]) }
    }

    /// Adds the line of an offset.
    #[inline]
    pub(super) fn add<M: Medium>(&mut self, op: &Op<'_, M>, off: u64) {
        let (number, bit) = (off / PAGE, 1 << (off / LINE % 64));
        let page = &mut self.pages[number as usize % PAGES];
        if page[0] != number {
            write_back(op, std::mem::replace(page, [number, 0]));
        }
        page[1] |= bit;
    }

    /// Starts writing all lines back, and is empty then.
    pub(super) fn write_back<M: Medium>(&mut self, op: &Op<'_, M>) {
        for page in self.pages.iter_mut().filter(|page| page[1] != 0) {
            write_back(op, *page);
            page[1] = 0;
        }
    }
}

/// Starts writing the lines of a page back.
#[inline]
fn write_back<M: Medium>(op: &Op<'_, M>, [number, mut lines]: Page) {
    while lines != 0 {
        let line = number * PAGE + u64::from(lines.trailing_zeros()) * LINE;
        // PERSIST RE-E3: flush+fence, by the trim
        op.write_back(op.at(Off::<Word>::new(line)));
        lines &= lines - 1;
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
    fn lines_of_pools_of_any_size_are_kept() {
        for bytes in [1 << 38, (1 << 38) + 1, 1 << 50] {
            let (mut changed, mut drained) = (Changed::of_pool(bytes), Vec::new());
            changed.add([64, 120, 8, bytes - 1].into_iter());
            changed.drain(|off| drained.push(off));
            assert_eq!(drained, [64, 64, 0, (bytes - 1) / 64 * 64]);
            changed.drain(|_| unreachable!("it is empty"));
        }
    }

    #[test]
    fn beyond_the_most_pages_a_page_is_written_back_before_another_takes_its_place() {
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
