//! Walks over the pairs of a key range, in either direction.
//!
//! A walk goes range by range. Each step copies some entries of the active front under the range's lock, together with the
//! snapshot of that moment, then merges them with the second front and the leaves ([`window`](crate::window)). Where a value of the range
//! was replaced in place meanwhile, the step begins again under the lock. So a step gives the range at one moment.

use std::ops::{Bound, RangeBounds};

use durix_index::Direction;
use durix_pmem::{Medium, Op};

use crate::DpTree;
use crate::bloom::hash;
use crate::error::{Error, Result, Wrong};
use crate::front::{Entry, prefetch};
use crate::layout::root_words;
use crate::window::{Filled, Pair, Window};

/// Most pairs of a call of `walk`.
const MOST: usize = 4096;
/// Pairs that a step of a scan takes.
const STEP: usize = 128;
/// Entries of the active front that a step copies at most: where a tenth of the keys are there, a step of 128 pairs needs thirteen.
const ENTRIES: usize = 24;

impl<M: Medium> DpTree<M> {
    /// Copies up to `want` pairs into `pairs`, beginning with the key `from` and going in `direction`. Returns the key at which
    /// the next call goes on, `None` at the end. Pairs of one call may be fewer, or none, before the end.
    ///
    /// Each call is as of one moment. A walk gives every key that is there from its first to its last call exactly once, with a
    /// value that it had at some moment meanwhile.
    ///
    /// # Errors
    /// [`Error::Pool`] after a panic in an update. [`Error::Corrupt`] where leaves lie out
    /// of order; no pair is appended then.
    pub fn walk(
        &self,
        op: &Op<'_, M>,
        from: u64,
        direction: Direction,
        want: usize,
        pairs: &mut Vec<(u64, u64)>,
    ) -> Result<Option<u64>> {
        let had = pairs.len();
        pairs.resize(had + want.clamp(1, MOST), (0, 0));
        let walked = self.walk_into(op, from, direction, &mut pairs[had..]);
        pairs.truncate(had + walked.as_ref().map_or(0, |(number, _)| *number));
        walked.map(|(_, next)| next)
    }

    /// As [`walk`](Self::walk), into a buffer. Returns the number of pairs, too.
    #[inline]
    fn walk_into(
        &self,
        op: &Op<'_, M>,
        from: u64,
        direction: Direction,
        buffer: &mut [Pair],
    ) -> Result<(usize, Option<u64>)> {
        self.poison.check(op)?;
        // Under the lock the second time, so that writers cannot keep it from ever ending.
        let mut locked = false;
        loop {
            let filled = match direction {
                Direction::Forward => self.step::<false>(op, from, buffer, locked),
                Direction::Backward => self.step::<true>(op, from, buffer, locked),
            };
            match filled {
                Some(Filled { wrong: Some(found), .. }) => {
                    let offset = op.off_of(root_words(op, &self.root)).get();
                    return Err(Error::corrupt(Wrong::TreeOrder, offset, found));
                }
                Some(Filled { number, last, .. }) => {
                    let next = match direction {
                        Direction::Forward => last.checked_add(1),
                        Direction::Backward => last.checked_sub(1),
                    };
                    return Ok((number, next));
                }
                None => locked = true,
            }
        }
    }

    /// `None` where the range was changed meanwhile.
    #[inline(always)]
    fn step<const DOWN: bool>(&self, op: &Op<'_, M>, from: u64, buffer: &mut [Pair], locked: bool) -> Option<Filled> {
        let m = op.medium();
        let range = self.directory.get(op).find_for_scan(from);
        // A hint: the lock may show another snapshot.
        let leaf = range.snapshot.get(op).leaf(from);
        leaf.inspect(|part| prefetch(&raw const *part.leaf));
        let mut copied: [Entry; ENTRIES] = [(0, None); ENTRIES];
        let (number, snapshot, in_place, _lock) = {
            let mut inner = range.lock(op);
            let snapshot = range.snapshot.get(op);
            if !snapshot.covers(from) {
                return None;
            }
            leaf.inspect(|part| part.leaf.prefetch_all(op));
            let number = inner.active.copy_from(from, Window::<M, DOWN>::DIRECTION, &mut copied);
            (number, snapshot, range.in_place.now(m), locked.then_some(inner))
        };
        let active = &copied[..number];
        let end = if DOWN { snapshot.low } else { snapshot.last };
        // Where there may be more entries, the next step takes them.
        let edge = active.last().filter(|_| number == ENTRIES).map_or(end, |(key, _)| *key);
        let filled = Window::<M, DOWN>::new(op, snapshot, (from, edge), active).fill(buffer);
        let is_changed = !range.snapshot.is_current(op, snapshot) || !range.in_place.is_still(m, in_place);
        if is_changed && !snapshot.leaves.is_empty() { None } else { Some(filled) }
    }

    /// Calls `visit` with the pairs of a range of keys, until it returns `false`.
    ///
    /// # Errors
    /// As [`walk`](Self::walk).
    pub fn scan(
        &self,
        op: &Op<'_, M>,
        keys: impl RangeBounds<u64>,
        direction: Direction,
        mut visit: impl FnMut(u64, u64) -> bool,
    ) -> Result<()> {
        let Some((low, high)) = ends(&keys) else { return Ok(()) };
        let mut next = Some(if direction == Direction::Forward { low } else { high });
        let mut buffer = [(0, 0); STEP];
        while let Some(from) = next
            && (low..=high).contains(&from)
        {
            let number;
            (number, next) = self.walk_into(op, from, direction, &mut buffer)?;
            // They are in order, so only the last ones may lie beyond the end.
            let beyond = buffer[..number].iter().rev().take_while(|(key, _)| !(low..=high).contains(key)).count();
            for (key, value) in &buffer[..number - beyond] {
                if !visit(*key, *value) {
                    return Ok(());
                }
            }
            if beyond > 0 {
                return Ok(());
            }
        }
        Ok(())
    }

    /// The pair with the smallest key of a range of keys.
    ///
    /// # Errors
    /// As [`walk`](Self::walk).
    pub fn first_in(
        &self,
        op: &Op<'_, M>,
        keys: impl RangeBounds<u64>,
        direction: Direction,
    ) -> Result<Option<(u64, u64)>> {
        let Some((low, high)) = ends(&keys) else { return Ok(None) };
        let mut next = Some(if direction == Direction::Forward { low } else { high });
        let mut pair = [(0, 0)];
        while let Some(from) = next
            && (low..=high).contains(&from)
        {
            let number;
            (number, next) = self.walk_into(op, from, direction, &mut pair)?;
            if number > 0 {
                return Ok(Some(pair[0]).filter(|(key, _)| (low..=high).contains(key)));
            }
        }
        Ok(None)
    }

    /// The pair with the smallest key.
    ///
    /// # Errors
    /// As [`walk`](Self::walk).
    pub fn first(&self, op: &Op<'_, M>) -> Result<Option<(u64, u64)>> {
        self.first_in(op, .., Direction::Forward)
    }

    /// The pair with the largest key.
    ///
    /// # Errors
    /// As [`walk`](Self::walk).
    pub fn last(&self, op: &Op<'_, M>) -> Result<Option<(u64, u64)>> {
        self.first_in(op, .., Direction::Backward)
    }

    /// Number of keys: exact while nobody writes. Adds up the leaves, and looks each entry of the fronts up.
    ///
    /// # Panics
    /// If the operation is one of another pool.
    pub fn len(&self, op: &Op<'_, M>) -> u64 {
        let ranges = self.own_directory(op).ranges();
        ranges
            .map(|range| {
                let inner = range.lock(op);
                let snapshot = range.snapshot.get(op);
                let in_active = |key: u64| inner.active.get(key, hash(key)).is_some();
                let frozen = snapshot.frozen.iter().flat_map(|frozen| frozen.front.iter());
                let entries = inner.active.iter().chain(frozen.filter(|(key, _)| !in_active(*key)));
                let change = |(key, value): Entry| {
                    let was = snapshot.leaf(key).and_then(|leaf| leaf.find(op, key, hash(key))).is_some();
                    i64::from(value.is_some()) - i64::from(was)
                };
                (snapshot.leaf_keys() as i64 + entries.map(change).sum::<i64>()) as u64
            })
            .sum()
    }

    /// Whether there is no key.
    ///
    /// # Errors
    /// As [`walk`](Self::walk).
    pub fn is_empty(&self, op: &Op<'_, M>) -> Result<bool> {
        Ok(self.first(op)?.is_none())
    }
}

/// The smallest and the largest key of a range of keys, if it can hold any.
fn ends(keys: &impl RangeBounds<u64>) -> Option<(u64, u64)> {
    let low = match keys.start_bound() {
        Bound::Included(key) => *key,
        Bound::Excluded(key) => key.checked_add(1)?,
        Bound::Unbounded => 0,
    };
    let high = match keys.end_bound() {
        Bound::Included(key) => *key,
        Bound::Excluded(key) => key.checked_sub(1)?,
        Bound::Unbounded => u64::MAX,
    };
    (low <= high).then_some((low, high))
}
