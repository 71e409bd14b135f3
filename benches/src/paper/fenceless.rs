//! A medium that can leave fences out: nothing on it is durable, and its time is what the fences cost.

use std::sync::atomic::{AtomicU64, Ordering};

use durix_pmem::{Hardware, Lines, Medium, Rmw, Survives, Wide};

/// The hardware, with fences or without.
#[derive(Clone, Copy, Debug)]
pub(super) struct Fenceless {
    inner: Hardware,
    fences: bool,
}

impl Fenceless {
    pub(super) fn new(inner: Hardware, fences: bool) -> Self {
        Fenceless { inner, fences }
    }
}

// SAFETY: every access is handed on unchanged; durability is no matter of memory safety.
unsafe impl Medium for Fenceless {
    fn describe(self) -> String {
        format!("{}{}", self.inner.describe(), if self.fences { "" } else { ", without fences" })
    }

    fn survives(self) -> Survives {
        self.inner.survives()
    }

    fn for_session(self, slot: u32) -> Self {
        Fenceless { inner: self.inner.for_session(slot), ..self }
    }

    #[inline(always)]
    fn load(self, word: &AtomicU64, order: Ordering) -> u64 {
        self.inner.load(word, order)
    }

    #[inline(always)]
    fn store(self, word: &AtomicU64, value: u64, order: Ordering) {
        self.inner.store(word, value, order);
    }

    #[inline(always)]
    fn store_words<const N: usize>(self, to: &[AtomicU64; N], values: &[u64; N]) {
        self.inner.store_words(to, values);
    }

    #[inline(always)]
    fn store_nt(self, word: &AtomicU64, value: u64) {
        self.inner.store_nt(word, value);
    }

    #[inline(always)]
    fn store_nt_line(self, line: &[AtomicU64; 8], values: &[u64; 8]) {
        self.inner.store_nt_line(line, values);
    }

    #[inline(always)]
    fn compare_exchange(self, word: &AtomicU64, current: u64, new: u64) -> Result<u64, u64> {
        self.inner.compare_exchange(word, current, new)
    }

    #[inline(always)]
    fn rmw(self, word: &AtomicU64, op: Rmw, operand: u64) -> u64 {
        self.inner.rmw(word, op, operand)
    }

    #[inline(always)]
    fn wide(self) -> Option<Wide> {
        self.inner.wide()
    }

    #[inline(always)]
    fn order(self) {
        self.inner.order();
    }

    #[inline(always)]
    fn write_back(self, lines: Lines<'_>) {
        self.inner.write_back(lines);
    }

    #[inline(always)]
    fn fence(self) {
        if self.fences {
            self.inner.fence();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trees::Ordered;
    use crate::trees::fast_fair::FastFair;
    use durix_pmem::Mapping;

    #[test]
    fn a_tree_is_a_map_on_it() {
        for medium in [Fenceless::new(crate::workload::medium(), true), Fenceless::new(Hardware::PAGE_CACHE, false)] {
            let mapping = Mapping::heap(<FastFair as Ordered<Fenceless>>::bytes(100) as usize, medium);
            let (mut tree, mut session) = (FastFair::create(&mapping).unwrap(), mapping.session().unwrap());
            let op = session.enter().unwrap();
            assert!((1..100u64).all(|key| tree.insert(&op, key, key)));
            assert!((1..100u64).all(|key| tree.get(&op, key) == Some(key)));
            assert_eq!(medium.describe().ends_with("without fences"), !medium.fences);
        }
    }
}
