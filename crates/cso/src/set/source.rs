//! Where a set gets its extents from.

use durix_pmem::{Medium, Op, Word};

use super::error::Result;

/// Whole chunks that belong to the set.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Extent {
    pub(super) off: u64,
    pub(super) len: u64,
}

/// Where a set gets its extents from, and has its root.
pub(super) trait Source<M: Medium>: Send + Sync {
    /// All extents, ascending.
    fn extents(&self, op: &Op<'_, M>) -> Vec<Extent>;

    /// Adds an extent of at least `bytes`: zeroes it, runs `init` with its offset and length, makes that durable,
    /// activates it, makes that durable.
    fn add(&self, op: &Op<'_, M>, bytes: u64, init: &dyn Fn(u64, u64)) -> Result<Extent>;

    /// The words of the root.
    fn words<'s>(&self, op: &Op<'s, M>) -> &'s [Word; 8];
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use durix_pmem::{Error, Lock, Mapping, Off};
    use std::sync::atomic::Ordering::{Relaxed, Release};

    /// A bare arena: root words at 64, number of extents at 128, their ends behind it, extents from [`FIRST`] on.
    pub(in crate::set) struct Bare {
        chunk: u64,
        adding: Lock<()>,
    }

    const FIRST: u64 = 4096;

    impl Bare {
        pub(in crate::set) fn new(chunk: u64) -> Box<Self> {
            Box::new(Bare { chunk, adding: Lock::new(()) })
        }
    }

    fn table<'s, M: Medium>(op: &Op<'s, M>) -> &'s [Word] {
        op.slice("extents", Off::new(128), (FIRST - 128) / 8).unwrap()
    }

    impl<M: Medium> Source<M> for Bare {
        fn extents(&self, op: &Op<'_, M>) -> Vec<Extent> {
            let table = table(op);
            let count = op.load(&table[0], Relaxed) as usize;
            let mut off = FIRST;
            let ends = table[1..=count].iter().map(|w| op.load(w, Relaxed));
            ends.map(|end| {
                let start = std::mem::replace(&mut off, end);
                Extent { off: start, len: end - start }
            })
            .collect()
        }

        fn add(&self, op: &Op<'_, M>, bytes: u64, init: &dyn Fn(u64, u64)) -> Result<Extent> {
            let _adding = self.adding.lock(op.medium());
            let table = table(op);
            let count = op.load(&table[0], Relaxed) as usize;
            let off = if count == 0 { FIRST } else { op.load(&table[count], Relaxed) };
            let len = bytes.next_multiple_of(self.chunk);
            if off + len > op.mapping().len() || count + 2 > table.len() {
                return Err(Error::OutOfBounds { what: "full", offset: off, len: op.mapping().len() }.into());
            }
            let lines: &[Word] = op.slice("extent", Off::new(off), len / 8)?;
            lines.iter().filter(|w| op.load(w, Relaxed) != 0).for_each(|w| op.store(w, 0, Relaxed));
            op.write_back_slice(lines);
            init(off, len);
            op.fence();
            op.store(&table[count + 1], off + len, Relaxed);
            op.persist(&table[count + 1]);
            op.store(&table[0], count as u64 + 1, Release);
            op.persist(&table[0]);
            Ok(Extent { off, len })
        }

        fn words<'s>(&self, op: &Op<'s, M>) -> &'s [Word; 8] {
            op.at(Off::new(64))
        }
    }

    pub(in crate::set) fn bare<M: Medium>(len: usize, medium: M) -> Mapping<M> {
        Mapping::heap(len, medium)
    }
}
