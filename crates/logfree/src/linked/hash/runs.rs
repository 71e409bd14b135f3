//! Which run of nodes a key belongs to.
//!
//! All nodes are ordered by the spread key. A bucket of a table of 2^`level` is the run of those with the same upper `level`
//! bits. Doubling the buckets cuts each run in two where it stands: no node moves. The head of the first half stays where it
//! is, and the second half gets a head in another array. See `grow.rs` for how a run is cut.
//!
//! # The races
//! *A walk for a key, and the run is cut before the key.* The walk has passed the link that is cut, or it has not. If it has,
//! it read that link before it was a cut, when the second half had no other entry: it is as right as a walk that was faster.
//! If it has not, it comes to a cut or to an end that is younger than the table that it knew, finishes the cut, and begins
//! anew from the new head.
//!
//! *A change of the link that is cut.* Both exchange the link that they have read. If the cut comes first the change fails,
//! also where the second half is empty: an end of another level is another value.
//!
//! *A head that is not there yet, and is set meanwhile.* Who has found 0 walks from the head before, which is the first race.

use std::cell::Cell;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use durix_pmem::{Medium, Off, Op, Word};

use crate::error::{Error, Result};
use crate::layout::{DIRECTORY, Link, Node};
use crate::link::{Announced, DurableLink, settle};
use crate::linked::chain::UpperLayer;
use crate::linked::link_cache::LinkCache;

/// Most levels: an array of more would not fit any pool.
pub(super) const MAX_LEVEL: u32 = 48;

/// Where the heads are. Volatile, but the offsets and the number of levels are those of the pool's directory, and durable.
#[derive(Debug)]
pub(super) struct Directory {
    /// There are 2^`level` buckets.
    level: AtomicU64,
    /// Level of the first array.
    pub(super) first: u32,
    /// Offset of it.
    heads: Off<Word<Link>>,
    /// Offsets of the arrays.
    arrays: [AtomicU64; DIRECTORY],
}

/// A bucket of a table of 2^`level`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Bucket {
    pub(super) level: u32,
    pub(super) index: u64,
}

impl Bucket {
    /// The bucket of a spread key.
    #[inline(always)]
    pub(super) fn of(key: u64, level: u32) -> Bucket {
        // In two steps: level 0 shifts by 64.
        Bucket { level, index: (key >> 1) >> (63 - level) }
    }

    /// The least key of it.
    pub(super) fn least(self) -> u64 {
        if self.level == 0 { 0 } else { self.index << (64 - self.level) }
    }

    /// The least key behind it; `None` behind the last.
    pub(super) fn past(self) -> Option<u64> {
        let next = self.index + 1;
        (next < 1 << self.level).then(|| Bucket { index: next, ..self }.least())
    }

    /// The bucket that it is cut from.
    pub(super) fn parent(self) -> Bucket {
        Bucket { level: self.level - 1, index: self.index >> 1 }
    }
}

impl Directory {
    /// With the first array at `array`, of 2^`first` heads.
    pub(super) fn new(array: u64, first: u32) -> Self {
        let arrays = [const { AtomicU64::new(0) }; DIRECTORY];
        arrays[first as usize].store(array, Relaxed);
        Directory { level: AtomicU64::new(first.into()), first, heads: Off::new(array), arrays }
    }

    #[inline(always)]
    pub(super) fn level<M: Medium>(&self, m: M) -> u32 {
        // The offset of the last array was stored before.
        (m.shared_load(&self.level, Acquire) as u32) & 63
    }

    /// Makes the next array known, whose entry in the pool's directory is durable.
    pub(super) fn add<M: Medium>(&self, m: M, level: u32, array: u64) {
        m.shared_store(&self.arrays[level as usize], array, Relaxed);
        m.shared_store(&self.level, level.into(), Release);
    }

    /// Offset of the array of a level.
    #[inline(always)]
    pub(super) fn array<M: Medium>(&self, m: M, level: u32) -> Off<Word<Link>> {
        Off::new(m.shared_load(&self.arrays[level as usize], Relaxed))
    }

    /// Offsets of all arrays.
    pub(super) fn arrays<M: Medium>(&self, m: M) -> Vec<u64> {
        (self.first..=self.level(m)).map(|level| self.array(m, level).get()).collect()
    }

    /// The head of a bucket: in the first array, or in that of the level on which its number is odd. Returns that level, too.
    #[inline(always)]
    pub(super) fn head<M: Medium>(&self, m: M, bucket: Bucket) -> (u32, Off<Word<Link>>) {
        let up = bucket.index.trailing_zeros().min(bucket.level - self.first);
        let (level, index) = (bucket.level - up, bucket.index >> up);
        let number = if level == self.first { index } else { index >> 1 };
        (level, self.array(m, level).byte_add(number * size_of::<Word<Link>>() as u64))
    }

    /// The bucket whose run holds a key, and its head: the one before where a bucket is not cut from it yet.
    #[inline(always)]
    fn locate<M: Medium>(&self, op: &Op<'_, M>, key: u64) -> (Bucket, Off<Word<Link>>) {
        let level = self.level(op.medium());
        let bucket = Bucket::of(key, level);
        if level == self.first {
            return (bucket, self.heads.byte_add(bucket.index * size_of::<Word<Link>>() as u64));
        }
        self.locate_grown(op, bucket)
    }

    #[inline(never)]
    fn locate_grown<M: Medium>(&self, op: &Op<'_, M>, bucket: Bucket) -> (Bucket, Off<Word<Link>>) {
        let (level, head) = self.head(op.medium(), bucket);
        if level == bucket.level && op.load(op.at(head), Acquire) == Link::NULL {
            let parent = bucket.parent();
            return (parent, self.head(op.medium(), parent).1);
        }
        (bucket, head)
    }

    /// Finishes a cut that was found in `word`, by a walk that has begun at `head`, the head of a bucket whose least key is
    /// `least`. Up to two fences, as far as others have not come before.
    ///
    /// # Errors
    /// [`Error::Corrupt`] where there can be no such cut.
    #[cold]
    pub(super) fn finish<M: Medium>(
        &self,
        op: &Op<'_, M>,
        announced: &Announced,
        word: Off<Word<Link>>,
        cut: Link,
        (head, least): (Off<Word<Link>>, u64),
    ) -> Result<()> {
        let (m, level) = (op.medium(), cut.level());
        if cut.is_deleted() || level <= self.first || level > self.level(m) {
            return Err(corrupt("the end of a bucket", word, cut));
        }
        // A link is the first word of its node. Its run is the one that is cut, also where the walk has come from another.
        let key = if word == head { least } else { op.load(&op.at(word.cast::<Node>()).key, Relaxed) };
        let word = op.at(word);
        // PERSIST LF-K5: flush+fence.
        let cut = if cut.is_dirty() { settle(&DurableLink::new(op, announced, word), cut) } else { cut };
        let parent = Bucket::of(key, level - 1);
        let (_, head) = self.head(m, Bucket { level, index: parent.index << 1 | 1 });
        let head = op.at(head);
        let rest = cut.rest();
        let mut seen = op.load(head, Acquire);
        if seen == Link::NULL {
            seen = op.compare_exchange(head, Link::NULL, rest.dirty()).map_or_else(|now| now, |_| rest.dirty());
        }
        if seen.is_dirty() {
            // PERSIST LF-K6: flush+fence.
            settle(&DurableLink::new(op, announced, head), seen);
        }
        // It need not be durable: a cut whose second half has a head is an end.
        let _ = op.compare_exchange(word, cut, Link::end(level));
        Ok(())
    }
}

#[cold]
pub(super) fn corrupt(what: &'static str, word: Off<Word<Link>>, found: Link) -> Error {
    Error::Corrupt { what, offset: word.get(), found: durix_pmem::Bits::to_bits(found) }
}

/// What leads to the run of a key; `C` is a link cache, or nothing.
pub(crate) struct Runs<'a, 's, M: Medium, C: UpperLayer> {
    pub(super) directory: &'a Directory,
    pub(super) announced: &'a Announced,
    pub(super) op: &'a Op<'s, M>,
    /// The spread key.
    pub(super) key: u64,
    /// Where the walk has begun: the level of the bucket.
    pub(super) level: Cell<u32>,
    pub(super) inner: C,
}

impl<M: Medium, C: UpperLayer> Runs<'_, '_, M, C> {
    /// What to do where a walk has come to a cut, or to an end that it did not know of.
    #[cold]
    fn cut_or_moved(&self, word: Off<Word<Link>>, end: Link) -> Result<bool> {
        let (op, m) = (self.op, self.op.medium());
        let begun = Bucket::of(self.key, self.level.get());
        if end.is_cut() {
            self.directory.finish(op, self.announced, word, end, (self.directory.head(m, begun).1, begun.least()))?;
            return Ok(false);
        }
        let level = end.level();
        if level > self.directory.level(m) {
            return Err(corrupt("the end of a bucket", word, end));
        }
        let (of, head) = self.directory.head(m, Bucket::of(self.key, level));
        let is_lost = level > self.directory.first && of == level && op.load(op.at(head), Acquire) == Link::NULL;
        if is_lost { Err(corrupt("a bucket was cut off, and is not there", head, end)) } else { Ok(false) }
    }
}

impl<M: Medium, C: UpperLayer> UpperLayer for Runs<'_, '_, M, C> {
    const RUNS: bool = true;

    #[inline(always)]
    fn head(&self) -> Option<Off<Word<Link>>> {
        let (bucket, head) = self.directory.locate(self.op, self.key);
        self.level.set(bucket.level);
        Some(head)
    }

    #[inline(always)]
    fn ends(&self, word: Off<Word<Link>>, end: Link) -> Result<bool> {
        if end.ends_at(self.level.get()) { Ok(true) } else { self.cut_or_moved(word, end) }
    }

    #[inline(always)]
    fn cache(&self) -> Option<&LinkCache> {
        self.inner.cache()
    }
}
