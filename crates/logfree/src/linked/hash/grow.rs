//! Growth: the number of buckets is doubled while everybody goes on.
//!
//! First there is an array for the heads of the second halves, then the runs are cut, eight at a time, by the inserts that
//! follow. A cut of a run at the key `m`:
//!
//! 1. The link that leads from below `m` to `m` or above becomes a *cut*: it does not change any more, and nobody passes it.
//!    Whoever comes to it does the other steps first.
//! 2. The new head becomes the link that was cut.
//! 3. The cut becomes an *end*.
//!
//! | edge | kept by | a crash before it leaves | recovery |
//! |---|---|---|---|
//! | LF-H2 heads of a new array are 0 < its extent is active | flush+fence | free chunks | the pool's |
//! | LF-H3 its extent < the directory leads to it | flush+fence | an extent of zeros, which are pages without nodes | nothing: it is used for nodes |
//! | LF-H4 the directory leads to it < a head in it is set, or an end has its level | flush+fence | as LF-H3 | nothing |
//! | LF-H5 what leads to the link to be cut, and that link < it is a cut | flush+fence | the run as it was | nothing |
//! | LF-K5 the cut < the new head | flush+fence | the run as it was, or a cut and no head | whoever comes to the cut sets the head |
//! | LF-K6 the new head < the end, and any change of what the head leads to that others see | flush+fence, by `settle` of whoever comes first | a cut and no head | as LF-K5 |
//! | LF-H7 the directory as recovery has read it < anything is built on it | flush, with the fence of LF-N9 | the directory before | as LF-H3, LF-H4 |
//!
//! The end itself is written back with nothing: a cut whose head is set means the same. Why one step back is enough for LF-H5:
//! the node that holds the cut is durably reachable and not deleted, so the way over all durable links comes by it, and goes
//! no further than the cut. What the second half loses later can be used again without a look at the first half, since no
//! durable link of the first half leads there.
//!
//! Lock-free: the two volatile words here only share the work out. Where the one who has taken a part of it does not go on,
//! runs stay uncut, and are walked over from the head before; the next doubling cuts them first. One thread at a time makes
//! an array; while it does not go on there is no other, and nobody waits for it.

use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use durix_pmem::{Medium, Off, Op, Word};

use super::runs::{Bucket, MAX_LEVEL};
use super::{HashCore, HashTable};
use crate::error::Result;
use crate::layout::{Link, ROOT_HEAD};
use crate::link::{clean, settle, swing};
use crate::linked::chain::{Chain, UpperLayer};

/// Runs that are cut together: their new heads are one line.
const BATCH: u64 = 8;
/// One insert of so many looks how long its run is.
const SAMPLED: u64 = 16;
/// Runs that are looked at before what was seen is forgotten.
const SAMPLES: u64 = 64;

/// Who does what. Volatile.
#[derive(Debug, Default)]
pub(super) struct Growth {
    /// Parts of the last level that nobody has taken yet.
    left: AtomicU64,
    /// 1 while somebody makes an array.
    making: AtomicU64,
    /// Runs looked at (upper half), and the nodes in them (lower half).
    seen: AtomicU64,
    /// The last level of which all runs are known to be cut, so that nobody looks again where there is no room for the next.
    whole: AtomicU64,
}

impl Growth {
    /// As a table is opened: what of the last level is cut nobody knows.
    pub(super) fn of(first: u32, level: u32) -> Self {
        let left = if level > first { parts(level) } else { 0 };
        Growth { left: AtomicU64::new(left), ..Growth::default() }
    }
}

/// Lines of the array of a level.
fn parts(level: u32) -> u64 {
    (1u64 << (level - 1)).div_ceil(BATCH)
}

/// A run that is being cut: the word that holds the cut, the cut, and the new head.
type Cutting<'s> = (&'s Word<Link>, Link, &'s Word<Link>);

impl<M: Medium> HashTable<M> {
    /// Doubles the number of buckets: an array, and all cuts. Returns `false` where another thread is at it. About two fences
    /// for eight buckets, and three for the array.
    ///
    /// A table does this by itself as keys are inserted, a little with each insert: see [`Options::grow_at`](crate::Options::grow_at).
    ///
    /// # Errors
    /// [`Error::Pool`](crate::Error::Pool) where the pool is full; [`Error::Corrupt`](crate::Error::Corrupt).
    pub fn grow(&self, op: &Op<'_, M>) -> Result<bool> {
        self.map.grow(op)
    }

    /// Number of buckets.
    pub fn buckets(&self, op: &Op<'_, M>) -> u64 {
        1 << self.map.directory.level(op.medium())
    }
}

impl<M: Medium> HashCore<M> {
    /// What an insert of a spread key does for growth. Never fails: a table that cannot grow goes on with longer runs.
    #[inline(always)]
    pub(super) fn help_grow(&self, op: &Op<'_, M>, key: u64) {
        if op.medium().shared_load(&self.growth.left, Relaxed) != 0 || key.is_multiple_of(SAMPLED) {
            self.help_grow_now(op, key);
        }
    }

    #[cold]
    fn help_grow_now(&self, op: &Op<'_, M>, key: u64) {
        let m = op.medium();
        if let Some(part) = self.take_part(m) {
            let level = self.directory.level(m);
            // An error is one of a corrupt file; who asks for a key of that run gets it.
            let _ = self.cut_part(op, level, part);
        } else if key.is_multiple_of(SAMPLED) && self.is_crowded(op, key) {
            let _ = self.add_level(op);
        }
    }

    /// Takes a part of the last level.
    fn take_part(&self, m: M) -> Option<u64> {
        let left = m.shared_load(&self.growth.left, Relaxed);
        // Who loses finds the next insert doing it.
        let taken = left > 0 && m.shared_compare_exchange(&self.growth.left, left, left - 1).is_ok();
        taken.then(|| left - 1)
    }

    /// Looks how long the run of a key is; returns whether runs are too long. New keys are spread evenly, so it is a fair
    /// sample.
    fn is_crowded(&self, op: &Op<'_, M>, key: u64) -> bool {
        if self.grow_at == 0 {
            return false;
        }
        let (m, limit) = (op.medium(), u64::from(self.grow_at) * SAMPLES);
        let before = m.shared_load(&self.growth.seen, Relaxed);
        // The key that was just inserted does not count.
        let nodes = (before & 0xFFFF_FFFF) + self.run_length(op, key, limit + 2).saturating_sub(1);
        let samples = (before >> 32) + 1;
        let is_crowded = nodes > limit;
        let after = if is_crowded || samples >= SAMPLES { 0 } else { samples << 32 | nodes };
        m.shared_store(&self.growth.seen, after, Relaxed);
        is_crowded
    }

    /// Nodes in the run of a key, counted up to a limit.
    fn run_length(&self, op: &Op<'_, M>, key: u64, limit: u64) -> u64 {
        let head = self.runs(op, key).head().unwrap_or(Off::NULL);
        let (mut seen, mut length) = (op.load(op.at(head), Acquire), 0);
        while !seen.is_null() && length < limit {
            seen = op.load(&op.at(seen.node()).next, Acquire);
            length += 1;
        }
        length
    }

    /// See [`HashTable::grow`].
    pub(crate) fn grow(&self, op: &Op<'_, M>) -> Result<bool> {
        self.pages.expect_own(op)?;
        if !self.add_level(op)? {
            return Ok(false);
        }
        while let Some(part) = self.take_part(op.medium()) {
            self.cut_part(op, self.directory.level(op.medium()), part)?;
        }
        Ok(true)
    }

    // ---- an array ----

    /// Adds a level. Returns `false` where another thread is at it, or there are all.
    fn add_level(&self, op: &Op<'_, M>) -> Result<bool> {
        let m = op.medium();
        if m.shared_compare_exchange(&self.growth.making, 0, 1).is_err() {
            return Ok(false);
        }
        let done = self.add_level_alone(op);
        m.shared_store(&self.growth.making, 0, Release);
        done
    }

    fn add_level_alone(&self, op: &Op<'_, M>) -> Result<bool> {
        let m = op.medium();
        let level = self.directory.level(m);
        if level >= MAX_LEVEL {
            return Ok(false);
        }
        if level > self.directory.first && m.shared_load(&self.growth.whole, Relaxed) != u64::from(level) {
            // Those that somebody has taken and not done, too.
            while self.take_part(m).is_some() {}
            (0..parts(level)).try_for_each(|part| self.cut_part(op, level, part))?;
            m.shared_store(&self.growth.whole, level.into(), Relaxed);
        }
        let array = self.make_array(op, level + 1)?;
        self.directory.add(m, level + 1, array);
        m.shared_store(&self.growth.left, parts(level + 1), Release);
        Ok(true)
    }

    /// An array of heads that are not set, in the pool's directory. Three fences.
    fn make_array(&self, op: &Op<'_, M>, level: u32) -> Result<u64> {
        let root = self.pages.root();
        let space = root.pool().space();
        let reserved = space.reserve_extent(op, root.owner(), size_of::<Word<Link>>() as u64 * (1 << (level - 1)))?;
        reserved.zero(op)?;
        // PERSIST LF-H2: flush+fence.
        op.fence();
        let array = space.activate(op, reserved)?.off;
        // PERSIST LF-H3: flush+fence.
        op.fence();
        let heads = op.load(&root.words(op)[ROOT_HEAD], Relaxed);
        let entry = &super::directory(op, heads, self.directory.first)?[level as usize];
        op.store(entry, array, Release);
        op.write_back(entry);
        // PERSIST LF-H4: flush+fence.
        op.fence();
        Ok(array)
    }

    // ---- cuts ----

    /// Cuts the runs whose new heads are one line. Two fences; none if all are cut.
    fn cut_part(&self, op: &Op<'_, M>, level: u32, part: u64) -> Result<()> {
        match self.pages.cache() {
            None => self.cut_part_with(op, level, part, || crate::linked::chain::Nothing),
            Some(cache) => self.cut_part_with(op, level, part, || crate::linked::link_cache::Cached(cache)),
        }
    }

    fn cut_part_with<C: UpperLayer>(&self, op: &Op<'_, M>, level: u32, part: u64, inner: impl Fn() -> C) -> Result<()> {
        let m = op.medium();
        let numbers = part * BATCH..((part + 1) * BATCH).min(1 << (level - 1));
        let mut cutting: Vec<Cutting<'_>> = Vec::with_capacity(BATCH as usize);
        for number in numbers {
            let head = op.at(self.directory.head(m, Bucket { level, index: number << 1 | 1 }).1);
            let seen = op.load(head, Acquire);
            if seen.is_dirty() {
                // PERSIST LF-K6: flush+fence.
                settle(&self.pages.link(op, head), seen);
            } else if seen == Link::NULL
                && let Some((word, cut)) = self.begin_cut(op, Bucket { level: level - 1, index: number }, inner())?
            {
                cutting.push((word, cut, head));
            }
        }
        if !cutting.is_empty() {
            self.end_cuts(op, level, &cutting);
        }
        Ok(())
    }

    /// The first step: returns the word and the cut in it, not durable; `None` if that bucket is cut.
    fn begin_cut<'s, C: UpperLayer>(
        &self,
        op: &Op<'s, M>,
        bucket: Bucket,
        inner: C,
    ) -> Result<Option<(&'s Word<Link>, Link)>> {
        let (level, start) = (bucket.level + 1, self.directory.head(op.medium(), bucket).1);
        let at = Bucket { level, index: bucket.index << 1 | 1 }.least();
        let chain = Chain { op, pages: &self.pages, head: op.at(start), above: inner };
        loop {
            let place = chain.find(at)?;
            let (word, seen) = place.link;
            if seen.is_cut() && seen.level() == level {
                return Ok(Some((word, seen)));
            }
            if seen.is_cut() {
                // One of a level that was thought to be done, or of one that was begun since.
                self.directory.finish(op, self.pages.announced(), op.off_of(word), seen, (start, bucket.least()))?;
                continue;
            }
            if seen.is_null() && seen.level() >= level {
                return Ok(None);
            }
            // PERSIST LF-H5: flush+fence, both.
            let link = chain.settle(word, seen);
            chain.settle(place.incoming.0, place.incoming.1);
            chain.scan_predecessor(&place);
            if let Ok(cut) = swing(&chain.link(word), link, link.cut(level)) {
                return Ok(Some((word, cut)));
            }
        }
    }

    /// The other steps, of several runs together.
    fn end_cuts(&self, op: &Op<'_, M>, level: u32, cutting: &[Cutting<'_>]) {
        for (word, _, _) in cutting {
            op.write_back(*word);
        }
        // PERSIST LF-K5: flush+fence.
        op.fence();
        for (word, cut, head) in cutting {
            clean(&self.pages.link(op, op.at(op.off_of(*word))), *cut);
            let _ = op.compare_exchange(head, Link::NULL, cut.rest().dirty());
        }
        let line = cutting.iter().map(|(_, _, head)| op.defer(*head)).count();
        debug_assert!(line as u64 <= BATCH);
        // PERSIST LF-K6: flush+fence.
        op.drain();
        for (word, cut, head) in cutting {
            clean(&self.pages.link(op, op.at(op.off_of(*head))), cut.rest().dirty());
            let _ = op.compare_exchange(word, cut.clean(), Link::end(level));
        }
    }
}
