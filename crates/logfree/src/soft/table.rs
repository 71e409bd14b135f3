//! The volatile hash table over the members: buckets of one cache line, grown one at a time (linear hashing).
//!
//! A cell holds a key and an entry: which line its member is, and which of its two words holds the value. The key is here, too,
//! because a member's line has been written back, which on many processors evicts it: a search must not wait for it.
//! Writers of a bucket lock it; readers do not wait: they read cells and members, and take the answer if the bucket has not
//! changed meanwhile.
//!
//! # The races
//! *A reader follows an entry, a writer removes it and the line is used again.* The writer changes the bucket's version
//! before it gives the line back. Either the reader's last look at the version comes before that, and then the line held
//! the old member when it was read; or it comes after, and the reader starts again.
//!
//! *A reader looks for a key, the bucket is split.* The split fills the new bucket, then makes it known (`size`), then
//! empties the old one. A reader that looked into the old bucket looks at the size again at the end: either it is
//! unchanged, and nothing was taken out yet; or it leads elsewhere, and the reader starts again. Writers look again once
//! they have the lock.

use std::sync::OnceLock;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use durix_pmem::{Lock, Medium, Off, Op};

use super::layout::Member;
use super::store::Place;

/// Cells of a bucket: what fits a line beside the version and the way to the next bucket of the chain.
const CELLS: usize = 3;
/// Buckets of the first segment, a power of two.
const FIRST: u64 = 16;
/// Segments: each is as large as all before it together.
const SEGMENTS: usize = 36;

const LOCKED: u64 = 1;
const CHANGE: u64 = 2;

/// A member in the table. 0 is none.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Entry(u64);

impl Entry {
    pub(super) const NONE: Entry = Entry(0);

    /// The member in `place`, with its value in word `value`.
    #[inline(always)]
    pub(super) fn new(place: Place, value: usize) -> Entry {
        Entry(place.get() | (value as u64 & 1))
    }

    #[inline(always)]
    pub(super) fn place(self) -> Place {
        Off::new(self.0 & !1)
    }

    #[inline(always)]
    pub(super) fn value(self) -> usize {
        (self.0 & 1) as usize
    }
}

/// A key, and where its member is.
#[derive(Debug, Default)]
pub(super) struct Cell {
    /// Counts while there is an entry.
    key: AtomicU64,
    entry: AtomicU64,
}

impl Cell {
    #[inline(always)]
    fn entry<M: Medium>(&self, m: M) -> Entry {
        Entry(m.shared_load(&self.entry, Acquire))
    }
}

/// One line of volatile memory.
#[derive(Debug, Default)]
#[repr(align(64))]
pub(super) struct Bucket {
    /// Bit 0: locked by a writer. The rest counts changes that readers have to notice.
    version: AtomicU64,
    cells: [Cell; CELLS],
    /// Number of the next bucket of the chain among the spill buckets, plus one.
    next: AtomicU64,
}

/// Buckets by number, in segments that never move.
#[derive(Debug)]
struct Buckets {
    segments: [OnceLock<Box<[Bucket]>>; SEGMENTS],
}

impl Buckets {
    fn new() -> Self {
        Buckets { segments: std::array::from_fn(|_| OnceLock::new()) }
    }

    #[inline(always)]
    fn at(&self, number: u64) -> &Bucket {
        // Segment 0 holds 0..FIRST, segment s holds FIRST << (s - 1) .. FIRST << s.
        let segment = (u64::BITS - (number / FIRST).leading_zeros()) as usize;
        let first = if segment == 0 { 0 } else { FIRST << (segment - 1) };
        let len = if segment == 0 { FIRST } else { first };
        let buckets = self.segments[segment].get_or_init(|| (0..len).map(|_| Bucket::default()).collect());
        &buckets[(number - first) as usize]
    }
}

/// The table.
#[derive(Debug)]
pub(super) struct Table {
    buckets: Buckets,
    spill: Buckets,
    /// Number of buckets.
    size: AtomicU64,
    /// Number of spill buckets; held to add a bucket.
    growing: Lock<()>,
    spilled: Lock<u64>,
}

const _: () = assert!(size_of::<Bucket>() == 64, "a bucket is one line");

/// Where an entry is.
#[derive(Clone, Copy, Debug)]
pub(super) struct Found<'t> {
    cell: &'t Cell,
    pub(super) entry: Entry,
}

impl Found<'_> {
    /// The value of the member.
    #[inline(always)]
    pub(super) fn value<M: Medium>(&self, op: &Op<'_, M>) -> u64 {
        let member: &Member = op.at(self.entry.place());
        op.load(&member.values[self.entry.value()], Acquire)
    }
}

/// A locked bucket. Readers see it as it was until it is published.
pub(super) struct Locked<'t, M: Medium> {
    table: &'t Table,
    bucket: &'t Bucket,
    version: u64,
    m: M,
}

/// A bijection that spreads keys.
#[inline(always)]
pub(super) fn hash(key: u64) -> u64 {
    let mut h = key;
    h = (h ^ h >> 32).wrapping_mul(0xD6E8_FEB8_6659_FD93);
    h = (h ^ h >> 32).wrapping_mul(0xD6E8_FEB8_6659_FD93);
    h ^ h >> 32
}

/// The bucket of a hash among `size`.
#[inline(always)]
fn index(hash: u64, size: u64) -> u64 {
    let mask = u64::MAX >> (size - 1).leading_zeros().min(63);
    let at = hash & mask;
    if at < size { at } else { hash & mask >> 1 }
}

/// How many bits of a hash decide that it belongs to its bucket among `size`.
#[inline]
fn width(hash: u64, size: u64) -> u32 {
    let bits = u64::BITS - (size - 1).leading_zeros();
    let half = 1 << (bits - 1);
    let at = index(hash, size);
    if at >= half || at + half < size { bits } else { bits - 1 }
}

impl Table {
    /// An empty table of at least `buckets` buckets.
    pub(super) fn new(buckets: u64) -> Self {
        let size = AtomicU64::new(buckets.clamp(FIRST, 1 << 32).next_power_of_two());
        let (buckets, spill) = (Buckets::new(), Buckets::new());
        Table { buckets, spill, size, growing: Lock::new(()), spilled: Lock::new(0) }
    }

    /// Number of buckets.
    pub(super) fn size<M: Medium>(&self, m: M) -> u64 {
        m.shared_load(&self.size, Acquire)
    }

    #[inline(always)]
    fn next<'t, M: Medium>(&'t self, m: M, bucket: &'t Bucket) -> Option<&'t Bucket> {
        let next = m.shared_load(&bucket.next, Acquire);
        (next != 0).then(|| self.spill.at(next - 1))
    }

    /// The entry of a key in a bucket.
    #[inline(always)]
    fn search<'t, M: Medium>(&'t self, m: M, first: &'t Bucket, key: u64) -> Option<Found<'t>> {
        let mut bucket = first;
        loop {
            for cell in &bucket.cells {
                let entry = cell.entry(m);
                if entry != Entry::NONE && m.shared_load(&cell.key, Acquire) == key {
                    return Some(Found { cell, entry });
                }
            }
            bucket = self.next(m, bucket)?;
        }
    }

    /// What `read` makes of the entry of a key. Never waits; durable, because entries are published only when their member
    /// is. Where the bucket changes meanwhile, it is read again.
    #[inline(always)]
    fn read<M: Medium, R>(&self, m: M, hash: u64, key: u64, read: impl Fn(Found<'_>) -> R) -> Option<R> {
        loop {
            let at = index(hash, self.size(m));
            let bucket = self.buckets.at(at);
            let version = m.shared_load(&bucket.version, Acquire) & !LOCKED;
            let answer = self.search(m, bucket, key).map(&read);
            let unchanged = m.shared_load(&bucket.version, Acquire) & !LOCKED == version;
            if unchanged && index(hash, self.size(m)) == at {
                return answer;
            }
        }
    }

    /// The value of a key.
    #[inline]
    pub(super) fn get<M: Medium>(&self, op: &Op<'_, M>, hash: u64, key: u64) -> Option<u64> {
        self.read(op.medium(), hash, key, |found| found.value(op))
    }

    /// Whether a key is there; reads no member.
    #[inline]
    pub(super) fn contains<M: Medium>(&self, op: &Op<'_, M>, hash: u64, key: u64) -> bool {
        self.read(op.medium(), hash, key, |_| ()).is_some()
    }

    /// Locks the bucket of a hash.
    #[inline]
    pub(super) fn lock<M: Medium>(&self, m: M, hash: u64) -> Locked<'_, M> {
        loop {
            let at = index(hash, self.size(m));
            let locked = self.lock_bucket(m, at);
            if index(hash, self.size(m)) == at {
                return locked;
            }
        }
    }

    fn lock_bucket<M: Medium>(&self, m: M, at: u64) -> Locked<'_, M> {
        let bucket = self.buckets.at(at);
        let mut turn = 0;
        loop {
            let version = m.shared_load(&bucket.version, Relaxed);
            if version & LOCKED == 0 && m.shared_compare_exchange(&bucket.version, version, version | LOCKED).is_ok() {
                return Locked { table: self, bucket, version, m };
            }
            m.spin(turn);
            turn = turn.saturating_add(1);
        }
    }

    /// Adds a bucket, unless someone else is at it: splits one in two.
    #[cold]
    pub(super) fn grow<M: Medium>(&self, op: &Op<'_, M>) {
        let m = op.medium();
        let Some(_growing) = self.growing.try_lock(m) else { return };
        let size = self.size(m);
        let half = 1 << (63 - size.leading_zeros());
        let mut old = self.lock_bucket(m, size - half);
        let mut moved = Vec::new();
        old.for_each_cell(|cell, entry| {
            let key = m.shared_load(&cell.key, Relaxed);
            if index(hash(key), size + 1) == size {
                moved.push((cell, key, entry));
            }
        });
        // Nobody knows the new bucket yet.
        let new = Locked { table: self, bucket: self.buckets.at(size), version: 0, m };
        for (_, key, entry) in &moved {
            new.place(*key, *entry);
        }
        drop(new);
        m.shared_store(&self.size, size + 1, Release);
        // Whoever finds a cell empty after this finds the new size.
        for (cell, ..) in moved {
            m.shared_store(&cell.entry, Entry::NONE.0, Release);
        }
        old.changed();
    }

    /// Calls `f` with all entries of each bucket in turn. The table does not grow meanwhile.
    pub(super) fn for_each<M: Medium>(&self, op: &Op<'_, M>, mut f: impl FnMut(&[(u64, u64)])) {
        let m = op.medium();
        let _growing = self.growing.lock(m);
        let mut entries = Vec::new();
        for at in 0..self.size(m) {
            entries.clear();
            let locked = self.lock_bucket(m, at);
            locked.for_each_cell(|cell, entry| {
                entries.push((m.shared_load(&cell.key, Relaxed), Found { cell, entry }.value(op)));
            });
            drop(locked);
            f(&entries);
        }
    }

    /// Appends all entries of the bucket at `from`, and returns the place of the next; `None` behind the last.
    ///
    /// Places are hashes with their bits reversed: in this order a bucket that is split is followed by its other half, so
    /// that a walk that goes on after a split has met neither half or both.
    pub(super) fn walk<M: Medium>(&self, op: &Op<'_, M>, from: u64, into: &mut Vec<(u64, u64)>) -> Option<u64> {
        let (m, first) = (op.medium(), from.reverse_bits());
        let locked = self.lock(m, first);
        // As long as it is locked it is not split.
        let width = width(first, self.size(m));
        locked.for_each_cell(|cell, entry| {
            into.push((m.shared_load(&cell.key, Relaxed), Found { cell, entry }.value(op)));
        });
        drop(locked);
        let step = 1 << (u64::BITS - width);
        (from & !(step - 1)).checked_add(step)
    }

    /// Bytes of all buckets.
    pub(super) fn bytes<M: Medium>(&self, m: M) -> u64 {
        (self.size(m) + *self.spilled.lock(m)) * size_of::<Bucket>() as u64
    }

    /// All entries, while nobody changes them.
    pub(super) fn places<M: Medium>(&self, op: &Op<'_, M>) -> Vec<Place> {
        let m = op.medium();
        let mut places = Vec::new();
        for at in 0..self.size(m) {
            self.lock_bucket(m, at).for_each_cell(|_, entry| places.push(entry.place()));
        }
        places
    }
}

impl<'t, M: Medium> Locked<'t, M> {
    /// The entry of a key.
    #[inline]
    pub(super) fn find(&self, key: u64) -> Option<Found<'t>> {
        self.table.search(self.m, self.bucket, key)
    }

    fn for_each_cell(&self, mut f: impl FnMut(&'t Cell, Entry)) {
        let mut bucket = self.bucket;
        loop {
            for cell in &bucket.cells {
                let entry = cell.entry(self.m);
                if entry != Entry::NONE {
                    f(cell, entry);
                }
            }
            match self.table.next(self.m, bucket) {
                Some(next) => bucket = next,
                None => return,
            }
        }
    }

    /// A free cell, and whether a bucket had to be added to the chain for it.
    fn cell(&self) -> (&'t Cell, bool) {
        let mut bucket = self.bucket;
        loop {
            if let Some(cell) = bucket.cells.iter().find(|cell| cell.entry(self.m) == Entry::NONE) {
                return (cell, false);
            }
            match self.table.next(self.m, bucket) {
                Some(next) => bucket = next,
                None => break,
            }
        }
        let mut spilled = self.table.spilled.lock(self.m);
        let next = self.table.spill.at(*spilled);
        *spilled += 1;
        self.m.shared_store(&bucket.next, *spilled, Release);
        (&next.cells[0], true)
    }

    /// Adds an entry for a member that is durable. Returns whether the table had better grow.
    #[inline]
    pub(super) fn place(&self, key: u64, entry: Entry) -> bool {
        let (cell, spilled) = self.cell();
        self.m.shared_store(&cell.key, key, Release);
        self.m.shared_store(&cell.entry, entry.0, Release);
        spilled
    }

    /// Replaces or removes an entry. Readers that have followed the old one start again.
    #[inline]
    pub(super) fn replace(&mut self, found: Found<'t>, entry: Entry) {
        self.m.shared_store(&found.cell.entry, entry.0, Release);
        self.changed();
    }

    fn changed(&mut self) {
        self.version += CHANGE;
    }
}

impl<M: Medium> Drop for Locked<'_, M> {
    #[inline]
    fn drop(&mut self) {
        self.m.shared_store(&self.bucket.version, self.version, Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_give_back_what_they_were_made_of() {
        for (off, value) in [(64, 0), (1 << 47, 1), (u64::MAX - 63, 0)] {
            let entry = Entry::new(Off::new(off), value);
            assert_eq!((entry.place().get(), entry.value()), (off, value));
            assert!(entry != Entry::NONE);
        }
    }

    #[test]
    fn a_split_takes_from_one_bucket_only() {
        for size in 16..200u64 {
            let half = 1 << (63 - size.leading_zeros());
            for h in (0..5000u64).map(hash) {
                let (before, after) = (index(h, size), index(h, size + 1));
                assert!(before < size && after <= size);
                assert!(before == after || (before == size - half && after == size), "{size}");
            }
        }
    }

    #[test]
    fn a_walk_in_reversed_order_meets_each_bucket_once_at_every_size() {
        for size in 16..200u64 {
            let (mut from, mut met) = (Some(0u64), std::collections::BTreeSet::new());
            while let Some(place) = from {
                let hash = place.reverse_bits();
                let step = 1u64 << (64 - width(hash, size));
                assert_eq!(place % step, 0, "{size}");
                assert!(met.insert(index(hash, size)), "{size}");
                // All of the step belongs to that bucket.
                assert_eq!(index((place | (step - 1)).reverse_bits(), size), index(hash, size));
                from = place.checked_add(step);
            }
            assert_eq!(met.len() as u64, size);
        }
    }

    #[test]
    fn every_bucket_has_a_place_of_its_own() {
        let buckets = Buckets::new();
        let mut seen = std::collections::BTreeSet::new();
        for number in 0..1000 {
            assert!(seen.insert(std::ptr::from_ref(buckets.at(number)).addr()), "{number}");
        }
    }
}
