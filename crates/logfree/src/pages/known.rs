//! What recovery has found out so far about the lines of the pages that were active.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use durix_pmem::{Off, Word};

use crate::layout::{Link, Node, PageShape};

/// Bits of the filter for each active page: one page of so many is looked for in vain.
const FILTER: usize = 64;

/// The lines of active pages that are in use. Those who found out have written back what it rests on, and may not have fenced
/// yet.
#[derive(Debug)]
pub(crate) struct Known<'a> {
    shape: PageShape,
    /// The active pages, ascending.
    pages: &'a [u64],
    /// A bit for each page that may be active, by a hash of its offset: a search meets many nodes, most of them elsewhere.
    filter: Box<[u64]>,
    /// The bitmaps of the active pages, one after the other.
    bits: Box<[AtomicU64]>,
    /// Links that have to be durable before the table is emptied.
    links: Mutex<Vec<Off<Word<Link>>>>,
}

impl<'a> Known<'a> {
    /// Nothing is known of these pages, which ascend.
    pub(super) fn new(shape: PageShape, pages: &'a [u64]) -> Self {
        let words = pages.len() * shape.words() as usize;
        let filter = vec![0; (pages.len() * FILTER).next_power_of_two().max(64) / 64].into();
        let bits = (0..words).map(|_| AtomicU64::new(0)).collect();
        let mut known = Known { shape, pages, filter, bits, links: Mutex::default() };
        for page in pages {
            let (word, bit) = known.hash(*page);
            known.filter[word] |= bit;
        }
        known
    }

    fn hash(&self, page: u64) -> (usize, u64) {
        let hash = (page / self.shape.bytes).wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 24;
        ((hash >> 6) as usize & (self.filter.len() - 1), 1 << (hash & 63))
    }

    /// Where the bit of a line is; `None` if its page was not active.
    fn find(&self, line: Off<Node>) -> Option<(&AtomicU64, u64)> {
        let page = self.shape.page_of(line.get());
        let (word, bit) = self.hash(page);
        if self.filter[word] & bit == 0 {
            return None;
        }
        let at = self.pages.binary_search(&page).ok()?;
        let (word, bit) = self.shape.bit_of(line.get());
        Some((&self.bits[at * self.shape.words() as usize + word as usize], 1 << bit))
    }

    /// Whether a node has been found in use, or was in no active page: then it has been so since before the crash.
    pub(crate) fn vouches_for(&self, node: Off<Node>) -> bool {
        self.find(node).is_none_or(|(word, bit)| word.load(Ordering::Acquire) & bit != 0)
    }

    /// A line is in use.
    pub(crate) fn add(&self, line: Off<Node>) {
        if let Some((word, bit)) = self.find(line) {
            word.fetch_or(bit, Ordering::AcqRel);
        }
    }

    /// A link has to be durable before the table is emptied.
    pub(crate) fn keep(&self, link: Off<Word<Link>>) {
        self.links.lock().unwrap_or_else(|e| e.into_inner()).push(link);
    }

    /// Takes the links that were kept.
    pub(crate) fn take_links(&self) -> Vec<Off<Word<Link>>> {
        std::mem::take(&mut self.links.lock().unwrap_or_else(|e| e.into_inner()))
    }

    /// The pages, each with its bitmap.
    pub(super) fn bitmaps(&self) -> impl Iterator<Item = (u64, &[AtomicU64])> {
        self.pages.iter().copied().zip(self.bits.chunks(self.shape.words() as usize))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_of_an_active_page_is_vouched_for_when_it_was_found() {
        for bytes in [256, 4096, 64 << 10] {
            let shape = PageShape::of_nodes(bytes);
            let pages: Vec<u64> = [3, 4, 900, 77_777].map(|page| page * bytes).into();
            let known = Known::new(shape, &pages);
            let last = bytes - 64;
            for page in &pages {
                let line = Off::new(page + last);
                assert!(!known.vouches_for(line));
                known.add(line);
                assert!(known.vouches_for(line) && !known.vouches_for(Off::new(page + last - 64)));
            }
            for page in (0..2000).filter(|page| !pages.contains(&(page * bytes))) {
                assert!(known.vouches_for(Off::new(page * bytes + last)), "page {page} was not active");
            }
            for (page, bitmap) in known.bitmaps() {
                let set: u32 = bitmap.iter().map(|word| word.load(Ordering::Relaxed).count_ones()).sum();
                assert_eq!(set, 1, "page {page:#x}");
            }
        }
    }
}
