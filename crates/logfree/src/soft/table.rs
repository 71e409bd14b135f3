//! The volatile hash table over the members: buckets of one cache line, grown one at a time (linear hashing).
//!
//! A cell says where a member lies, and holds some bits of its key's hash: a search reads the one line of its bucket, and
//! a member only where those bits agree. Six cells are compared without a branch for each; what is left is the one branch
//! that nobody can predict, whether the key is there.
//!
//! Writers of a bucket lock it; readers do not wait: they read cells and members, and take the answer if the bucket's
//! version has not changed meanwhile. A writer reads as a reader does and then locks the very version that it has read, so
//! that it need not search again, and an update that fails locks nothing.
//!
//! # The races
//! *A reader follows an entry, a writer removes it and the line is used again.* The writer changes the bucket's version
//! before it gives the line back. Either the reader's last look at the version comes before that, and then the line held
//! the old member when it was read; or it comes after, and the reader starts again.
//!
//! *A reader looks for a key, the bucket is split.* The split fills the new bucket, then makes it known (`size`), then
//! empties the old one. A reader that looked into the old bucket looks at the size again at the end: either it is
//! unchanged, and nothing was taken out yet; or the reader starts again. A writer that has read before the split finds
//! another version when it locks.
//!
//! *A reader looks for a key whose entry moves forward in the chain.* The writer copies the entry, changes the version,
//! then empties the old cell. A reader that has passed the new cell before the copy either sees the old one still full, or
//! sees the version changed at its end.

use std::sync::OnceLock;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use durix_pmem::{Lock, Medium, Off, Op};

use super::layout::Member;
use super::segment_of;
use super::store::Place;

/// Cells of a bucket: what fits a line beside the version and the way to the next bucket of the chain.
const CELLS: usize = 6;
/// Buckets of the first segment, a power of two.
const FIRST: u64 = 16;
/// Segments: each is as large as all before it together.
const SEGMENTS: usize = 36;
/// The table grows while more than one bucket in so many has a second line. At about three keys a bucket it is one in 32.
const SPILL_SHARE: u64 = 32;
/// Most buckets that one insert adds.
const GROWTH: u64 = 8;

const LOCKED: u64 = 1;
const CHANGE: u64 = 2;

/// Bits of the hash that a cell holds lie above the offset; the topmost is always set, so that an empty cell has none.
const TAG_SHIFT: u32 = 48;
const TAG_SET: u64 = 1 << 63;

/// Bits of an entry below the offset: which word holds the value; whether a crash can still take back what the line says; whether that
/// is that the key is gone (see `later.rs`).
const VALUE: u64 = 1;
const UNSETTLED: u64 = 2;
const REMOVED: u64 = 4;

/// A member in the table: bits of its key's hash, the offset of its line, and what is known of it. 0 is none.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Entry(u64);

impl Entry {
    pub(super) const NONE: Entry = Entry(0);

    /// The member in `place` (below 2^48), with its value in word `value`.
    #[inline(always)]
    pub(super) fn new(hash: u64, place: Place, value: usize) -> Entry {
        debug_assert!(place.get() < 1 << TAG_SHIFT && place.get().is_multiple_of(64));
        Entry((tag(hash) << TAG_SHIFT) | place.get() | (value as u64 & 1))
    }

    #[inline(always)]
    pub(super) fn place(self) -> Place {
        Off::new(self.0 & ((1 << TAG_SHIFT) - 1) & !63)
    }

    #[inline(always)]
    pub(super) fn value(self) -> usize {
        (self.0 & VALUE) as usize
    }

    /// Whether a crash can still take back what its line says.
    #[inline(always)]
    pub(super) fn is_unsettled(self) -> bool {
        self.0 & UNSETTLED != 0
    }

    /// Whether its key is gone. Only unsettled ones can be so.
    #[inline(always)]
    pub(super) fn is_removed(self) -> bool {
        self.0 & REMOVED != 0
    }

    /// The same, settled.
    pub(super) fn settled(self) -> Entry {
        Entry(self.0 & !(UNSETTLED | REMOVED))
    }

    /// The same, unsettled.
    pub(super) fn unsettled(self) -> Entry {
        Entry(self.settled().0 | UNSETTLED)
    }

    /// The same, unsettled, without its key.
    pub(super) fn removed(self) -> Entry {
        Entry(self.0 | UNSETTLED | REMOVED)
    }

    /// The same member, with its value in the other word.
    #[inline(always)]
    pub(super) fn other_value(self) -> Entry {
        Entry(self.0 ^ VALUE)
    }

    #[inline(always)]
    fn tag(self) -> u64 {
        self.0 >> TAG_SHIFT
    }
}

#[inline(always)]
fn tag(hash: u64) -> u64 {
    (hash | TAG_SET) >> TAG_SHIFT
}

/// One line of volatile memory.
#[derive(Debug, Default)]
#[repr(align(64))]
pub(super) struct Bucket {
    /// Bit 0: locked by a writer. The rest counts changes.
    version: AtomicU64,
    cells: [AtomicU64; CELLS],
    /// Number of the next bucket of the chain among the spill buckets, plus one.
    next: AtomicU64,
}

const _: () = assert!(size_of::<Bucket>() == 64, "a bucket is one line");

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
        let buckets = match self.segments[segment].get() {
            Some(buckets) => buckets,
            None => self.add(segment),
        };
        &buckets[(number - first) as usize]
    }

    #[cold]
    fn add(&self, segment: usize) -> &[Bucket] {
        let len = FIRST << segment.saturating_sub(1);
        self.segments[segment].get_or_init(|| segment_of(len))
    }
}

/// Which spill buckets are in use.
#[derive(Debug, Default)]
struct Spills {
    /// How many there are.
    count: u64,
    /// Those that are not in use.
    free: Vec<u64>,
}

/// The table.
#[derive(Debug)]
pub(super) struct Table {
    buckets: Buckets,
    spill: Buckets,
    /// Number of buckets.
    size: AtomicU64,
    /// Held to add a bucket.
    growing: Lock<()>,
    spills: Lock<Spills>,
}

/// Where an entry is.
#[derive(Clone, Copy, Debug)]
pub(super) struct Found<'t> {
    cell: &'t AtomicU64,
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

/// What a search has found, and in which version of the bucket.
#[derive(Clone, Copy, Debug)]
pub(super) struct Look<'t, R> {
    bucket: &'t Bucket,
    version: u64,
    /// The entry of the key, and what was read of it.
    pub(super) found: Option<(Found<'t>, R)>,
}

/// A locked bucket. Readers see each change as it is made, and start again once it is unlocked.
pub(super) struct Locked<'t, M: Medium> {
    table: &'t Table,
    bucket: &'t Bucket,
    version: u64,
    m: M,
}

/// Spreads keys over all bits: a folded product.
#[inline(always)]
pub(super) fn hash(key: u64) -> u64 {
    let product = u128::from(key ^ 0x9E37_79B9_7F4A_7C15) * 0xD6E8_FEB8_6659_FD93;
    (product >> 64) as u64 ^ product as u64
}

/// The bucket of a hash among `size`.
#[inline(always)]
pub(super) fn index(hash: u64, size: u64) -> u64 {
    debug_assert!(size > 1);
    let mask = u64::MAX >> (size - 1).leading_zeros();
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
        Table { buckets, spill, size, growing: Lock::new(()), spills: Lock::new(Spills::default()) }
    }

    /// Number of buckets.
    #[inline(always)]
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
    fn search<'t, M: Medium>(&'t self, op: &Op<'_, M>, first: &'t Bucket, hash: u64, key: u64) -> Option<Found<'t>> {
        let (m, tag) = (op.medium(), tag(hash));
        let mut bucket = first;
        loop {
            let mut matching = 0u32;
            for (i, cell) in bucket.cells.iter().enumerate() {
                matching |= u32::from(Entry(m.shared_load(cell, Acquire)).tag() == tag) << i;
            }
            while matching != 0 {
                let cell = &bucket.cells[matching.trailing_zeros() as usize % CELLS];
                let entry = Entry(m.shared_load(cell, Acquire));
                // Acquire: the look at the version must come after it.
                if op.load(&op.at(entry.place()).key, Acquire) == key && entry.tag() == tag {
                    return Some(Found { cell, entry });
                }
                matching &= matching - 1;
            }
            bucket = self.next(m, bucket)?;
        }
    }

    /// Searches a key, and makes something of its entry by `read`. Never waits; durable unless the entry is unsettled, because others are
    /// published only when their member is. Where the bucket changes meanwhile, it is read again.
    #[inline(always)]
    pub(super) fn look<M: Medium, R>(
        &self,
        op: &Op<'_, M>,
        hash: u64,
        key: u64,
        read: impl Fn(Found<'_>) -> R,
    ) -> Look<'_, R> {
        let m = op.medium();
        loop {
            let size = self.size(m);
            let bucket = self.buckets.at(index(hash, size));
            let version = m.shared_load(&bucket.version, Acquire) & !LOCKED;
            let found = self.search(op, bucket, hash, key).map(|found| (found, read(found)));
            let unchanged = m.shared_load(&bucket.version, Acquire) & !LOCKED == version;
            if unchanged && self.size(m) == size {
                return Look { bucket, version, found };
            }
        }
    }

    /// Locks the bucket that was looked at, unless it has changed since; lets others go first, if one of them has locked it.
    /// `turn` counts how often.
    #[inline(always)]
    pub(super) fn lock<'t, M: Medium, R>(&'t self, m: M, look: &Look<'t, R>, turn: &mut u32) -> Option<Locked<'t, M>> {
        let (bucket, version) = (look.bucket, look.version);
        match m.shared_compare_exchange(&bucket.version, version, version | LOCKED) {
            Ok(_) => Some(Locked { table: self, bucket, version, m }),
            Err(found) => {
                if found & LOCKED != 0 {
                    m.spin(*turn);
                    *turn = turn.saturating_add(1);
                }
                None
            }
        }
    }

    /// The number of the bucket of a hash.
    pub(super) fn number<M: Medium>(&self, m: M, hash: u64) -> u64 {
        index(hash, self.size(m))
    }

    /// The bucket of a hash, by its number, and its version. The versions of the buckets that a hash belongs to ascend, also where a split
    /// gives it another one: a version that is found again says that nothing has changed.
    pub(super) fn version<M: Medium>(&self, m: M, hash: u64) -> (u64, u64) {
        loop {
            let at = index(hash, self.size(m));
            let version = m.shared_load(&self.buckets.at(at).version, Acquire) & !LOCKED;
            // Otherwise it was split before the look at the version.
            if index(hash, self.size(m)) == at {
                return (at, version);
            }
        }
    }

    /// Locks a bucket if it still has this version. Then it was not split since either.
    pub(super) fn lock_version<M: Medium>(&self, m: M, (at, version): (u64, u64)) -> Option<Locked<'_, M>> {
        let bucket = self.buckets.at(at);
        m.shared_compare_exchange(&bucket.version, version, version | LOCKED).ok()?;
        Some(Locked { table: self, bucket, version, m })
    }

    /// The unsettled entry of a line in a bucket, as far as it can be seen without the lock.
    pub(super) fn unsettled_at<M: Medium>(&self, m: M, at: u64, place: Place) -> bool {
        let mut bucket = Some(self.buckets.at(at));
        while let Some(here) = bucket {
            let of = |cell| Entry(m.shared_load(cell, Acquire));
            if here.cells.iter().map(of).any(|entry| entry.is_unsettled() && entry.place() == place) {
                return true;
            }
            bucket = self.next(m, here);
        }
        false
    }

    /// Locks the bucket of a hash.
    fn lock_hash<M: Medium>(&self, m: M, hash: u64) -> Locked<'_, M> {
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

    /// Adds buckets, if too many have a second line and nobody else is at it.
    #[cold]
    pub(super) fn grow<M: Medium>(&self, op: &Op<'_, M>) {
        let m = op.medium();
        let Some(_growing) = self.growing.try_lock(m) else { return };
        for _ in 0..GROWTH {
            let spilled = {
                let spills = self.spills.lock(m);
                spills.count - spills.free.len() as u64
            };
            if spilled * SPILL_SHARE <= self.size(m) {
                return;
            }
            self.split(op);
        }
    }

    /// Splits one bucket in two. The caller holds `growing`.
    fn split<M: Medium>(&self, op: &Op<'_, M>) {
        let (m, size) = (op.medium(), self.size(op.medium()));
        let half = 1 << (63 - size.leading_zeros());
        let mut old = self.lock_bucket(m, size - half);
        let mut moved = Vec::new();
        old.for_each_cell(|cell, entry| {
            let hash = hash(op.load(&op.at(entry.place()).key, Relaxed));
            if index(hash, size + 1) == size {
                moved.push((cell, entry));
            }
        });
        // Nobody knows the new bucket yet. Its versions go on from those of the old one: whoever has noted one of these, and looks for an
        // entry that has moved, finds another.
        let new = Locked { table: self, bucket: self.buckets.at(size), version: old.version, m };
        for (_, entry) in &moved {
            new.publish(new.free_cell(), *entry);
        }
        drop(new);
        m.shared_store(&self.size, size + 1, Release);
        // Whoever finds a cell empty after this finds the new size. From the last on, so that the chain stays compact.
        for (cell, _) in moved.into_iter().rev() {
            old.empty(cell);
        }
    }

    /// Calls `f` with all entries of each bucket in turn, and `free` with lines that are free from then on. The table does not grow
    /// meanwhile.
    pub(super) fn for_each<M: Medium>(&self, op: &Op<'_, M>, free: impl Fn(Place), mut f: impl FnMut(&[(u64, u64)])) {
        let m = op.medium();
        let _growing = self.growing.lock(m);
        let mut entries = Vec::new();
        for at in 0..self.size(m) {
            entries.clear();
            let mut locked = self.lock_bucket(m, at);
            let freed = locked.settle(op);
            locked.for_each_cell(|cell, entry| {
                let key = op.load(&op.at(entry.place()).key, Relaxed);
                entries.push((key, Found { cell, entry }.value(op)));
            });
            drop(locked);
            freed.into_iter().for_each(&free);
            f(&entries);
        }
    }

    /// Appends all entries of the bucket at `from`, and returns the place of the next; `None` behind the last.
    ///
    /// Places are hashes with their bits reversed: in this order a bucket that is split is followed by its other half, so
    /// that a walk that goes on after a split has met neither half or both.
    pub(super) fn walk<M: Medium>(
        &self,
        op: &Op<'_, M>,
        free: impl Fn(Place),
        from: u64,
        into: &mut Vec<(u64, u64)>,
    ) -> Option<u64> {
        let (m, first) = (op.medium(), from.reverse_bits());
        let mut locked = self.lock_hash(m, first);
        let freed = locked.settle(op);
        // As long as it is locked it is not split.
        let width = width(first, self.size(m));
        locked.for_each_cell(|cell, entry| {
            into.push((op.load(&op.at(entry.place()).key, Relaxed), Found { cell, entry }.value(op)));
        });
        drop(locked);
        freed.into_iter().for_each(free);
        let step = 1 << (u64::BITS - width);
        (from & !(step - 1)).checked_add(step)
    }

    /// Bytes of all buckets.
    pub(super) fn bytes<M: Medium>(&self, m: M) -> u64 {
        (self.size(m) + self.spills.lock(m).count) * size_of::<Bucket>() as u64
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

    /// A spill bucket that is not in use: its number, plus one.
    #[cold]
    fn add_spill<M: Medium>(&self, m: M) -> u64 {
        let mut spills = self.spills.lock(m);
        match spills.free.pop() {
            Some(number) => number,
            None => {
                spills.count += 1;
                spills.count
            }
        }
    }
}

impl<'t, M: Medium> Locked<'t, M> {
    fn for_each_cell(&self, mut f: impl FnMut(&'t AtomicU64, Entry)) {
        let mut bucket = Some(self.bucket);
        while let Some(here) = bucket {
            for cell in &here.cells {
                let entry = Entry(self.m.shared_load(cell, Relaxed));
                if entry != Entry::NONE {
                    f(cell, entry);
                }
            }
            bucket = self.table.next(self.m, here);
        }
    }

    /// Settles all entries of the chain. Returns the lines that are free once it is unlocked.
    fn settle(&mut self, op: &Op<'_, M>) -> Vec<Place> {
        let (mut unsettled, mut freed) = (Vec::new(), Vec::new());
        self.for_each_cell(|_, entry| unsettled.extend(entry.is_unsettled().then(|| entry.place())));
        if unsettled.is_empty() {
            return freed;
        }
        // PERSIST LF-L1: flush+fence.
        unsettled.iter().for_each(|place| op.write_back(op.at(*place)));
        op.fence();
        freed.extend(unsettled.into_iter().filter_map(|place| self.clear(place)));
        freed
    }

    /// Takes the mark off the entry of a line all stores to which are durable, and the entry out if its key is gone: then it returns the
    /// line, which is free once the bucket is unlocked.
    pub(super) fn clear(&mut self, place: Place) -> Option<Place> {
        let mut found = None;
        self.for_each_cell(|cell, entry| {
            if entry.is_unsettled() && entry.place() == place {
                found = Some(Found { cell, entry });
            }
        });
        let found = found?;
        if found.entry.is_removed() {
            self.remove(found);
            return Some(place);
        }
        self.replace(found, found.entry.settled());
        None
    }

    /// A free cell, if the chain has one.
    #[inline(always)]
    pub(super) fn free_cell(&self) -> Option<&'t AtomicU64> {
        let mut bucket = self.bucket;
        loop {
            let free = bucket.cells.iter().find(|cell| self.m.shared_load(cell, Relaxed) == Entry::NONE.0);
            if free.is_some() {
                return free;
            }
            bucket = self.table.next(self.m, bucket)?;
        }
    }

    /// Adds an entry for a member that is durable, in the cell that [`free_cell`](Self::free_cell) has found. Returns
    /// whether the chain got longer for it.
    #[inline(always)]
    pub(super) fn publish(&self, cell: Option<&'t AtomicU64>, entry: Entry) -> bool {
        match cell {
            Some(cell) => self.m.shared_store(cell, entry.0, Release),
            None => self.publish_behind(entry),
        }
        cell.is_none()
    }

    /// Adds an entry in a new line of the chain.
    #[cold]
    fn publish_behind(&self, entry: Entry) {
        let mut last = self.bucket;
        while let Some(next) = self.table.next(self.m, last) {
            last = next;
        }
        let number = self.table.add_spill(self.m);
        self.m.shared_store(&self.table.spill.at(number - 1).cells[0], entry.0, Release);
        self.m.shared_store(&last.next, number, Release);
    }

    /// Replaces an entry.
    #[inline(always)]
    pub(super) fn replace(&self, found: Found<'t>, entry: Entry) {
        self.m.shared_store(found.cell, entry.0, Release);
    }

    /// Removes an entry.
    #[inline(always)]
    pub(super) fn remove(&mut self, found: Found<'t>) {
        self.empty(found.cell);
    }

    #[inline(always)]
    fn empty(&mut self, cell: &'t AtomicU64) {
        if self.m.shared_load(&self.bucket.next, Relaxed) == 0 {
            self.m.shared_store(cell, Entry::NONE.0, Release);
        } else {
            self.empty_in_chain(cell);
        }
    }

    /// Empties a cell of a chain of several lines: the chain's last entry takes the place, and a line that has become empty
    /// leaves the chain.
    #[cold]
    fn empty_in_chain(&mut self, cell: &'t AtomicU64) {
        let (m, mut before, mut last) = (self.m, self.bucket, self.bucket);
        while let Some(next) = self.table.next(m, last) {
            (before, last) = (last, next);
        }
        let occupied = |cell: &&AtomicU64| m.shared_load(cell, Relaxed) != Entry::NONE.0;
        if let Some(end) = last.cells.iter().rfind(occupied) {
            m.shared_store(cell, m.shared_load(end, Relaxed), Release);
            // Who has passed the new place before must not miss the entry in the old one.
            self.version += CHANGE;
            m.shared_store(&self.bucket.version, self.version | LOCKED, Release);
            m.shared_store(end, Entry::NONE.0, Release);
        }
        if !last.cells.iter().any(|cell| occupied(&cell)) {
            let number = m.shared_load(&before.next, Relaxed);
            m.shared_store(&before.next, 0, Release);
            self.table.spills.lock(m).free.push(number);
        }
    }
}

impl<M: Medium> Drop for Locked<'_, M> {
    #[inline(always)]
    fn drop(&mut self) {
        self.m.shared_store(&self.bucket.version, self.version + CHANGE, Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_give_back_what_they_were_made_of() {
        for (off, value) in [(64, 0), (1 << 47, 1), ((1 << 48) - 64, 0)] {
            for h in [0, u64::MAX, hash(7)] {
                let entry = Entry::new(h, Off::new(off), value);
                assert_eq!((entry.place().get(), entry.value(), entry.tag()), (off, value, tag(h)));
                assert_eq!((entry.other_value().place().get(), entry.other_value().value()), (off, 1 - value));
                assert!(entry != Entry::NONE && entry.tag() != Entry::NONE.tag());
            }
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
