//! Lookups.

use durix_pmem::{Medium, Op};

use crate::DpTree;
use crate::bloom::hash;
use crate::error::Result;
use crate::range::{Found, Part, Range, Snapshot};
use crate::steps::{self, Lookup, Seen};

impl<M: Medium> DpTree<M> {
    /// The value of `key`, if it is there. Takes no lock, unless the key may have been updated since the range's last merge. The
    /// first use of a leaf after a restart writes its lines back.
    ///
    /// # Errors
    /// [`Error::Pool`](crate::Error::Pool) after a panic in an update.
    #[inline]
    pub fn get(&self, op: &Op<'_, M>, key: u64) -> Result<Option<u64>> {
        self.poison.check(op)?;
        let hash = hash(key);
        loop {
            // Once more where the range was changed meanwhile: what replaces it is there already.
            if let Some(answer) = self.look_up(op, key, hash) {
                return Ok(answer);
            }
        }
    }

    /// The value of a key; `None` where the range was changed meanwhile.
    #[inline(always)]
    fn look_up(&self, op: &Op<'_, M>, key: u64, hash: u64) -> Option<Option<u64>> {
        let range = self.directory.get(op).find_ahead(key, hash);
        let snapshot = range.snapshot.get(op);
        self.look_up_in(op, (range, snapshot), (key, hash), || snapshot.leaf_ahead(op, key, hash))
    }

    /// As [`look_up`](Self::look_up), in a range and its snapshot, and the leaf that the key belongs to there.
    #[inline(always)]
    fn look_up_in<'a>(
        &self,
        op: &Op<'_, M>,
        (range, snapshot): (&Range, &Snapshot),
        (key, hash): (u64, u64),
        leaf: impl Fn() -> Option<&'a Part>,
    ) -> Option<Option<u64>> {
        if !snapshot.covers(key) {
            return None;
        }
        match steps::look_up(&InSnapshot { op, range, snapshot, key, hash, leaf }) {
            Seen::Found(found) => Some(found.value()),
            Seen::AskTheHolder => self.look_up_locked(op, range, key, hash),
            Seen::Changed => None,
        }
    }

    #[inline(never)]
    fn look_up_locked(&self, op: &Op<'_, M>, range: &Range, key: u64, hash: u64) -> Option<Option<u64>> {
        let inner = range.lock(op);
        let snapshot = range.snapshot.get(op);
        if !snapshot.covers(key) {
            return None;
        }
        Some(match inner.active.get(key, hash) {
            Some(entry) => entry,
            None => snapshot.find(op, key, hash).value(),
        })
    }

    /// Whether `key` is there.
    ///
    /// # Errors
    /// As [`get`](Self::get).
    #[inline]
    pub fn contains(&self, op: &Op<'_, M>, key: u64) -> Result<bool> {
        Ok(self.get(op, key)?.is_some())
    }

    /// Looks many keys up, each as of a moment of its own, and calls `found` with the number of each key and its value, in order. The
    /// waits of 32 lookups for memory overlap.
    ///
    /// # Errors
    /// As [`get`](Self::get).
    pub fn get_many(&self, op: &Op<'_, M>, keys: &[u64], mut found: impl FnMut(usize, Option<u64>)) -> Result<()> {
        self.poison.check(op)?;
        for (number, group) in keys.chunks(GROUP).enumerate() {
            for (i, answer) in self.look_up_group(op, group).iter().enumerate().take(group.len()) {
                let answer = match answer {
                    Some(answer) => *answer,
                    None => self.get(op, group[i])?,
                };
                found(number * GROUP + i, answer);
            }
        }
        Ok(())
    }

    /// As [`look_up`](Self::look_up), for up to [`GROUP`] keys. Each step asks for the lines that the next step reads.
    #[inline(always)]
    fn look_up_group(&self, op: &Op<'_, M>, keys: &[u64]) -> [Option<Option<u64>>; GROUP] {
        let directory = self.directory.get(op);
        let ranges: [Option<(&Range, u64)>; GROUP] = std::array::from_fn(|i| {
            let key = *keys.get(i)?;
            let hash = hash(key);
            Some((&**directory.find_ahead(key, hash), hash))
        });
        let snapshots = ranges.map(|found| Some(found?.0.snapshot.get(op)));
        let leaves: [Option<&Part>; GROUP] =
            std::array::from_fn(|i| snapshots[i]?.leaf_ahead(op, keys[i], ranges[i]?.1));
        for (leaf, found) in leaves.iter().zip(ranges) {
            if let (Some(leaf), Some((_, hash))) = (leaf, found) {
                leaf.prefetch_slot(op, hash);
            }
        }
        std::array::from_fn(|i| {
            let ((range, hash), snapshot) = (ranges[i]?, snapshots[i]?);
            self.look_up_in(op, (range, snapshot), (keys[i], hash), || leaves[i])
        })
    }
}

/// A lookup of a key in a snapshot of its range.
struct InSnapshot<'a, 's, M: Medium, L> {
    op: &'a Op<'s, M>,
    range: &'a Range,
    snapshot: &'a Snapshot,
    key: u64,
    hash: u64,
    /// Finds the leaf that the key belongs to.
    leaf: L,
}

impl<'l, M: Medium, L: Fn() -> Option<&'l Part>> Lookup for InSnapshot<'_, '_, M, L> {
    type Found = Found<'l>;

    #[inline(always)]
    fn may_be_active(&self) -> bool {
        self.snapshot.bloom.may_have(self.op.medium(), self.hash)
    }

    #[inline(always)]
    fn find(&self) -> Found<'l> {
        self.snapshot.find_by(self.op, self.key, self.hash, &self.leaf)
    }

    #[inline(always)]
    fn is_current(&self) -> bool {
        self.range.snapshot.is_current(self.op, self.snapshot)
    }

    #[inline(always)]
    fn is_on_its_way(&self, found: Found<'l>) -> bool {
        matches!(found, Found::InLeaf(..)) && self.range.in_place.is_in_flight(self.op.medium(), self.hash)
    }
}

/// Lookups that wait for memory together.
const GROUP: usize = 32;
