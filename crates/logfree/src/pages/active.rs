//! The table of active pages of one session: durable addresses, volatile metadata, found in constant time.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

use durix_pmem::{Medium, Off, Op, Word};

use super::words::Words;
use crate::layout::Segment;

/// What is known of an active page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Entry {
    /// The page.
    page: u64,
    /// The durable cell that names it.
    cell: Off<Word>,
    /// Nodes of it that were unlinked and wait to be free.
    pub(super) limbo: u32,
    /// Nodes of it that the session can hand out.
    pub(super) free: u32,
}

/// The table.
#[derive(Debug, Default)]
pub(super) struct Active {
    entries: Vec<Entry>,
    index: HashMap<u64, u32, BuildHasherDefault<PageHasher>>,
    vacant: Vec<Off<Word>>,
    /// Where the last page looked up is in `entries`.
    last: usize,
    /// Length at which the next trimming pays.
    trim_at: usize,
}

impl Active {
    /// An empty table with these cells, all zero.
    #[cfg(all(test, loom))]
    pub(super) fn with_cells(cells: impl IntoIterator<Item = Off<Word>>) -> Self {
        Active { vacant: cells.into_iter().collect(), ..Active::default() }
    }

    /// Pages in the table.
    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }

    /// Length from which on the table is trimmed: `wanted`, or more where trimming has not helped.
    pub(super) fn trim_at(&self, wanted: usize) -> usize {
        self.trim_at.max(wanted)
    }

    /// Whether the table has got so long that something kept its pages from leaving it: where `wanted` pages are, it is trimmed.
    pub(super) fn is_long(&self, wanted: usize) -> bool {
        self.entries.len() >= 2 * wanted
    }

    /// Whether a page can be entered.
    pub(super) fn has_vacancy(&self) -> bool {
        !self.vacant.is_empty()
    }

    /// Takes over the cells of a segment, all zero.
    pub(super) fn add_segment<M: Medium>(&mut self, op: &Op<'_, M>, segment: Off<Segment>) {
        self.vacant.extend(op.at(segment).cells.iter().rev().map(|cell| op.off_of(cell)));
    }

    fn find(&mut self, page: u64) -> Option<usize> {
        if self.entries.get(self.last).is_some_and(|entry| entry.page == page) {
            return Some(self.last);
        }
        self.last = *self.index.get(&page)? as usize;
        Some(self.last)
    }

    /// Whether a page is in the table.
    pub(super) fn contains(&mut self, page: u64) -> bool {
        self.find(page).is_some()
    }

    /// The metadata of a page that is in the table.
    pub(super) fn entry(&mut self, page: u64) -> &mut Entry {
        let at = self.find(page).expect("the page of a node in hand is active");
        &mut self.entries[at]
    }

    /// Enters a page, for which there is a vacancy. Returns whether it is new: its cell is then written back, and a fence
    /// has to follow.
    pub(super) fn enter(&mut self, words: &impl Words, page: u64) -> bool {
        if self.contains(page) {
            return false;
        }
        let cell = self.enter_later(words, page);
        // PERSIST LF-N3, LF-N5: flush, with the caller's fence.
        words.write_back(cell, 1);
        true
    }

    /// Enters a page that is not in the table, for which there is a vacancy. Returns its cell, which the caller has to write
    /// back.
    pub(super) fn enter_later(&mut self, words: &impl Words, page: u64) -> Off<Word> {
        let cell = self.vacant.pop().expect("room was made");
        words.store(cell, page);
        self.last = self.entries.len();
        self.index.insert(page, self.last as u32);
        self.entries.push(Entry { page, cell, limbo: 0, free: 0 });
        cell
    }

    /// Pages without anything under way, ascending.
    pub(super) fn idle(&self, recent: &[u64]) -> Vec<u64> {
        let idle = |entry: &&Entry| entry.limbo == 0 && !recent.contains(&entry.page);
        let mut pages: Vec<u64> = self.entries.iter().filter(idle).map(|entry| entry.page).collect();
        pages.sort_unstable();
        pages
    }

    /// Takes pages out, ascending. Their cells are durable some time later.
    pub(super) fn leave(&mut self, words: &impl Words, pages: &[u64]) {
        let (leaving, kept): (Vec<_>, _) =
            std::mem::take(&mut self.entries).into_iter().partition(|e| pages.binary_search(&e.page).is_ok());
        for entry in &leaving {
            words.store(entry.cell, 0);
        }
        self.vacant.extend(leaving.iter().map(|entry| entry.cell));
        self.entries = kept;
        self.index = self.entries.iter().enumerate().map(|(at, entry)| (entry.page, at as u32)).collect();
        self.trim_at = self.entries.len() * 2;
    }
}

/// Multiplies: pages are distinct numbers of which the low bits are zero.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct PageHasher(u64);

impl Hasher for PageHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.write_u64(self.0 ^ u64::from(*byte));
        }
    }

    fn write_u64(&mut self, page: u64) {
        self.0 = (page >> 8).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    }
}
