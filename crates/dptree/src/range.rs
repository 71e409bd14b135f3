//! A range of keys: its fronts, its lock, and the snapshot that readers see.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use durix_pmem::{LINE, Lock, LockGuard, Medium, Off, Op};

use crate::arena::Shared;
use crate::bloom::{Bloom, hash};
use crate::front::{Front, Frozen, prefetch};
use crate::in_place::InPlace;
use crate::layout::{RangeHead, slot_line};
use crate::leaf::{Leaf, load_pair};
use crate::prints::Table;
use crate::published::Published;
use crate::record::{Kept, Record};
use crate::steps::Claim;

/// No record in any front.
pub(crate) const NO_RECORD: u64 = u64::MAX;

/// A range of keys. Its first line is what a reader needs.
#[derive(Debug)]
#[repr(C, align(64))]
pub(crate) struct Range {
    /// What readers see.
    pub(crate) snapshot: Published<Snapshot>,
    /// The log's clock at the first record of its fronts, at most; [`NO_RECORD`] without one. Stored under the lock.
    oldest: AtomicU64,
    /// Values that are replaced in place. Stored under the lock.
    pub(crate) in_place: InPlace,
    /// Its block in the pool.
    pub(crate) block: Off<RangeHead>,
    inner: Lock<Inner>,
}

/// A range at one moment, but for the content of the active front. Immutable. Its first line leads to a key's leaf.
#[derive(Debug, Clone)]
#[repr(C, align(64))]
pub(crate) struct Snapshot {
    /// Smallest key.
    pub(crate) low: u64,
    /// Largest key.
    pub(crate) last: u64,
    /// Which keys the active front may hold.
    pub(crate) bloom: Bloom,
    /// The leaves in the order of their keys.
    pub(crate) leaves: Arc<[Part]>,
    /// The second front, while it is merged or waits for that.
    pub(crate) frozen: Option<Arc<Frozen>>,
    /// The side of the block that counts.
    pub(crate) side: usize,
    /// The block of the next range.
    pub(crate) next: Off<RangeHead>,
    /// Entries at which a front is frozen.
    pub(crate) bound: usize,
}

/// A leaf, and the smallest key it may hold.
#[derive(Debug, Clone)]
pub(crate) struct Part {
    pub(crate) low: u64,
    pub(crate) leaf: Shared<Leaf>,
    /// Where its slots lie, as the leaf says, and in bit 0 whether the leaf's table was there when this was made: so that a lookup does
    /// not need the leaf's first line, and can ask for the page of its slots before it has anything of the leaf.
    off: u64,
}

/// In [`Part::off`].
const KNOWN: u64 = 1;

impl Part {
    pub(crate) fn new(low: u64, leaf: Shared<Leaf>) -> Self {
        Part { low, off: leaf.off | if leaf.is_known() { KNOWN } else { 0 }, leaf }
    }

    /// Where the slots lie.
    #[inline(always)]
    pub(crate) fn off(&self) -> u64 {
        self.off & !KNOWN
    }

    /// The leaf's table of slots.
    #[inline(always)]
    fn table<M: Medium>(&self, op: &Op<'_, M>) -> &Table {
        if self.off & KNOWN == 0 {
            return self.leaf.table(op);
        }
        // SAFETY: the leaf is known since before this was made.
        unsafe { self.leaf.known_table() }
    }

    /// The slot and the value of a key; valid if the caller's snapshot is still current.
    #[inline(always)]
    pub(crate) fn find<M: Medium>(&self, op: &Op<'_, M>, key: u64, hash: u64) -> Option<(usize, u64)> {
        self.table(op).find(hash, |slot| {
            let (k, value) = load_pair(op, self.off(), slot);
            (k == key).then_some((slot, value))
        })
    }

    /// Asks the processor for what [`find`](Self::find) touches, but for the slot.
    #[inline(always)]
    pub(crate) fn prefetch(&self, hash: u64) {
        if self.off & KNOWN == 0 {
            prefetch(&raw const *self.leaf);
        }
        self.leaf.prefetch_table(hash);
    }

    /// Asks the processor for the page of the slots. Which of them is not known yet, but to find the page is most of the wait for one.
    #[inline(always)]
    pub(crate) fn prefetch_page<M: Medium>(&self, op: &Op<'_, M>) {
        op.prefetch(slot_line(self.off(), 0));
    }

    /// Asks the processor for the slots where a lookup would look.
    #[inline(always)]
    pub(crate) fn prefetch_slot<M: Medium>(&self, op: &Op<'_, M>, hash: u64) {
        self.table(op).find(hash, |slot| {
            op.prefetch(slot_line(self.off(), slot));
            None::<()>
        });
    }
}

/// What the holder of a range's lock owns. Its first two lines, with the lock, are all that an update needs before it appends its record.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct Inner {
    /// Of the current snapshot: smallest and largest key, entries at which a front is frozen, and whether there is a second one.
    low: u64,
    last: u64,
    pub(crate) bound: usize,
    pub(crate) is_second: bool,
    /// Whether someone merges it.
    pub(crate) claim: Claim,
    /// Whether the other side of the block holds what was written there durably: not before the first merge after a restart.
    pub(crate) trusted: bool,
    /// Goes up to 3 with inserts that meet their key in a leaf, and down with the others. From 2 on an insert is taken for one that
    /// replaces a value.
    pub(crate) overwrites: u8,
    /// Whether the active front is there: not before the first lock after a restart.
    ready: bool,
    /// The version of the next update.
    pub(crate) version: u64,
    /// The clock at the first record of the active front.
    pub(crate) active_oldest: u64,
    /// The front that takes updates.
    pub(crate) active: Front,
    /// The clock at the first record of the frozen front.
    pub(crate) frozen_oldest: u64,
    /// The records that go into it then: recovery has read and checked them, and they stay where they are until the range was merged.
    waiting: Vec<Vec<Kept>>,
}

/// Where a key is.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Found<'a> {
    /// In a front: what it is mapped to.
    InFront(Option<u64>),
    /// In no front; in a slot of a leaf, with its value.
    InLeaf(&'a Part, usize, u64),
    Nowhere,
}

impl Found<'_> {
    /// What the key is mapped to.
    #[inline(always)]
    pub(crate) fn value(self) -> Option<u64> {
        match self {
            Found::InFront(entry) => entry,
            Found::InLeaf(_, _, value) => Some(value),
            Found::Nowhere => None,
        }
    }
}

/// Number of keys in leaves.
pub(crate) fn keys_in(leaves: &[Part]) -> usize {
    leaves.iter().map(|part| part.leaf.count()).sum()
}

impl Snapshot {
    /// Whether a key belongs to the range.
    #[inline(always)]
    pub(crate) fn covers(&self, key: u64) -> bool {
        (self.low..=self.last).contains(&key)
    }

    /// The number of the leaf that a key belongs to: the last one that begins at or before it, or the first. 0 without leaves.
    #[inline(always)]
    pub(crate) fn leaf_of(&self, key: u64) -> usize {
        self.leaves.partition_point(|part| part.low <= key).saturating_sub(1)
    }

    /// The leaf that a key belongs to.
    #[inline(always)]
    pub(crate) fn leaf(&self, key: u64) -> Option<&Part> {
        self.leaves.get(self.leaf_of(key))
    }

    /// As [`leaf`](Self::leaf), and asks the processor for what a lookup of the key touches there.
    #[inline(always)]
    pub(crate) fn leaf_ahead<M: Medium>(&self, op: &Op<'_, M>, key: u64, hash: u64) -> Option<&Part> {
        let part = self.leaf(key)?;
        part.prefetch_page(op);
        part.prefetch(hash);
        Some(part)
    }

    /// As [`leaf`](Self::leaf), and asks the processor for the line of its table that a lookup touches: the key is not there, as a rule.
    #[inline(always)]
    pub(crate) fn leaf_for_key(&self, key: u64, hash: u64) -> Option<&Part> {
        let part = self.leaf(key)?;
        part.prefetch(hash);
        Some(part)
    }

    /// The entry of a key in the second front.
    #[inline(always)]
    pub(crate) fn find_frozen<M: Medium>(&self, m: M, key: u64, hash: u64) -> Option<Option<u64>> {
        let frozen = self.frozen.as_ref()?;
        if frozen.bloom.may_have(m, hash) { frozen.front.get(key, hash) } else { None }
    }

    /// Where a key is in the second front and its leaf; valid if this snapshot is still current.
    #[inline(always)]
    pub(crate) fn find<M: Medium>(&self, op: &Op<'_, M>, key: u64, hash: u64) -> Found<'_> {
        self.find_by(op, key, hash, || self.leaf(key))
    }

    /// As [`find`](Self::find), with the leaf that the key belongs to.
    #[inline(always)]
    pub(crate) fn find_by<'a, M: Medium>(
        &self,
        op: &Op<'_, M>,
        key: u64,
        hash: u64,
        leaf: impl FnOnce() -> Option<&'a Part>,
    ) -> Found<'a> {
        if let Some(entry) = self.find_frozen(op.medium(), key, hash) {
            return Found::InFront(entry);
        }
        match leaf().and_then(|leaf| Some((leaf, leaf.find(op, key, hash)?))) {
            Some((leaf, (slot, value))) => Found::InLeaf(leaf, slot, value),
            None => Found::Nowhere,
        }
    }

    /// Number of keys in the leaves.
    pub(crate) fn leaf_keys(&self) -> usize {
        keys_in(&self.leaves)
    }
}

/// Asks the processor for the lines of a list of leaves that a search begins with: those in the middle, of 31.
#[inline(always)]
fn prefetch_leaves(leaves: *const Part) {
    let first = leaves.cast::<u8>();
    // Hints, and no accesses: the list may be shorter.
    (0..8).for_each(|line| prefetch(first.wrapping_add(line * LINE)));
}

/// Where a range's snapshot, its list of leaves and the words of its filter lie: to ask for their lines before the range is there. Never
/// followed.
#[derive(Debug, Default)]
struct Hints {
    snapshot: AtomicU64,
    leaves: AtomicU64,
    /// In the high bits, which no address has, the logarithm of their number.
    words: AtomicU64,
}

impl Hints {
    fn note(&self, place: &Published<Snapshot>, snapshot: &Snapshot) {
        let [words, number] = snapshot.bloom.hints();
        self.snapshot.store(place.addr(), Relaxed);
        self.leaves.store(snapshot.leaves.as_ptr().addr() as u64, Relaxed);
        self.words.store(words | u64::from(number.ilog2()) << LOG, Relaxed);
    }

    /// Asks the processor for the snapshot, the filter's word of a hash, and the list of leaves.
    #[inline(always)]
    fn prefetch(&self, hash: u64) {
        let ask = |addr: u64| prefetch(std::ptr::without_provenance::<u8>(addr as usize));
        let words = self.words.load(Relaxed);
        ask(self.snapshot.load(Relaxed));
        ask((words & ((1 << LOG) - 1)) + Bloom::word_of(hash, (1 << (words >> LOG)) - 1) * 8);
        prefetch_leaves(std::ptr::without_provenance(self.leaves.load(Relaxed) as usize));
    }
}

/// In [`Hints::words`].
const LOG: u32 = 58;

impl Clone for Hints {
    fn clone(&self) -> Self {
        let Hints { snapshot, leaves, words } = self;
        let [snapshot, leaves, words] = [snapshot, leaves, words].map(|hint| AtomicU64::new(hint.load(Relaxed)));
        Hints { snapshot, leaves, words }
    }
}

impl Range {
    /// A range without records.
    pub(crate) fn new(block: Off<RangeHead>, snapshot: Snapshot, version: u64) -> Self {
        let active = Front::new(snapshot.bound);
        Range::with(block, snapshot, Inner { active, trusted: true, ready: true, ..Inner::recovered(version) })
    }

    /// A range as recovery finds it, with its floor. Its front is made under its first lock.
    pub(crate) fn recovered(block: Off<RangeHead>, snapshot: Snapshot, floor: u64) -> Self {
        Range::with(block, snapshot, Inner::recovered(floor))
    }

    fn with(block: Off<RangeHead>, snapshot: Snapshot, mut inner: Inner) -> Self {
        inner.note(&snapshot);
        Range {
            block,
            snapshot: Published::new(snapshot),
            oldest: AtomicU64::new(NO_RECORD),
            in_place: InPlace::default(),
            inner: Lock::new(inner),
        }
    }

    /// Hands records over to a range that nobody else has yet: they enter its front under its first lock.
    pub(crate) fn wait_for<M: Medium>(&self, op: &Op<'_, M>, records: Vec<Kept>) {
        let mut inner = self.inner.lock(op.medium());
        if inner.waiting.is_empty() {
            self.snapshot.get(op).bloom.fill();
            inner.active_oldest = 0;
            self.tell_oldest(op.medium(), &inner);
        }
        inner.waiting.push(records);
    }

    /// Makes the front of a range that was recovered.
    #[cold]
    fn make_ready<M: Medium>(&self, op: &Op<'_, M>, inner: &mut Inner) {
        let snapshot = self.snapshot.get(op);
        let waiting = std::mem::take(&mut inner.waiting);
        let mut records: Vec<Record> = waiting.iter().flatten().map(|kept| kept.load(op)).collect();
        // Of one key the highest version wins: it comes last.
        records.sort_unstable_by_key(|record| record.version);
        inner.active = Front::new(snapshot.bound.max(records.len()));
        if let Some(newest) = records.last() {
            inner.version = newest.version + 1;
            snapshot.bloom.narrow(op.medium(), records.iter().map(|record| hash(record.key)));
        }
        records.iter().for_each(|record| inner.active.put(record.key, hash(record.key), record.value));
        inner.ready = true;
    }

    /// Shows readers another snapshot; returns the one before. The caller holds the lock.
    pub(crate) fn show<M: Medium>(&self, op: &Op<'_, M>, inner: &mut Inner, snapshot: Snapshot) -> Box<Snapshot> {
        inner.note(&snapshot);
        self.snapshot.replace(op, snapshot)
    }

    /// Asks the processor for the lock, and what belongs to its holder.
    #[inline(always)]
    pub(crate) fn prefetch_lock(&self) {
        self.inner.prefetch();
    }

    /// Asks the processor for what a scan begins with: the lock and the front.
    #[inline(always)]
    pub(crate) fn prefetch_scan(&self) {
        let first = std::ptr::from_ref(&self.inner).cast::<u8>();
        (0..3).for_each(|line| prefetch(first.wrapping_add(line * LINE)));
    }

    #[inline(always)]
    pub(crate) fn lock<M: Medium>(&self, op: &Op<'_, M>) -> LockGuard<'_, Inner, M> {
        let mut inner = self.inner.lock(op.medium());
        if !inner.ready {
            self.make_ready(op, &mut inner);
        }
        inner
    }

    /// The clock at the first record of its fronts, at most.
    pub(crate) fn oldest<M: Medium>(&self, m: M) -> u64 {
        m.shared_load(&self.oldest, Acquire)
    }

    /// Says to readers of [`oldest`](Self::oldest) what the holder of the lock knows.
    pub(crate) fn tell_oldest<M: Medium>(&self, m: M, inner: &Inner) {
        m.shared_store(&self.oldest, inner.active_oldest.min(inner.frozen_oldest), Release);
    }

    /// Notes that a record is about to be appended, at this clock.
    #[inline(always)]
    pub(crate) fn note_record<M: Medium>(&self, m: M, inner: &mut Inner, clock: u64) {
        if inner.active_oldest == NO_RECORD {
            inner.active_oldest = clock;
            self.tell_oldest(m, inner);
        }
    }
}

impl Inner {
    /// Notes what an update asks of the snapshot that is shown.
    fn note(&mut self, snapshot: &Snapshot) {
        (self.low, self.last, self.bound) = (snapshot.low, snapshot.last, snapshot.bound);
        self.is_second = snapshot.frozen.is_some();
    }

    /// Whether a key belongs to the range.
    #[inline(always)]
    pub(crate) fn covers(&self, key: u64) -> bool {
        (self.low..=self.last).contains(&key)
    }

    /// Of a range whose records are not known.
    fn recovered(version: u64) -> Self {
        Inner {
            low: 0,
            last: 0,
            bound: 0,
            is_second: false,
            active: Front::default(),
            version,
            active_oldest: NO_RECORD,
            frozen_oldest: NO_RECORD,
            claim: Claim::default(),
            trusted: false,
            overwrites: 1,
            ready: false,
            waiting: Vec::new(),
        }
    }
}

/// Most ranges of a chunk.
const CHUNK: usize = 128;

/// All ranges, in the order of their keys, in chunks: so that what a split copies grows with the root of their number. Immutable.
#[derive(Debug, Clone, Default)]
pub(crate) struct Directory {
    lows: Vec<u64>,
    chunks: Vec<Arc<Chunk>>,
}

/// Ranges side by side.
#[derive(Debug, Clone, Default)]
struct Chunk {
    lows: Vec<u64>,
    places: Vec<Place>,
    /// Of the lows; for lookups.
    search: Search,
}

/// Keys for a search of few instructions: a fixed number of steps without branches.
#[derive(Debug, Clone)]
struct Search {
    /// The largest key there can be, where there are no more.
    keys: Box<[u64; CHUNK]>,
    number: usize,
}

impl Default for Search {
    fn default() -> Self {
        Search::of(&[])
    }
}

impl Search {
    /// For ascending keys, at most [`CHUNK`].
    fn of(lows: &[u64]) -> Self {
        let mut keys = Box::new([u64::MAX; CHUNK]);
        keys[..lows.len()].copy_from_slice(lows);
        Search { keys, number: lows.len() }
    }

    /// The number of the last key that is at most `key`, which there is.
    #[inline(always)]
    fn last_at_most(&self, key: u64) -> usize {
        let mut at = 0;
        let mut step = CHUNK / 2;
        while step > 0 {
            let next = (at + step) % CHUNK;
            at = std::hint::select_unpredictable(self.keys[next] <= key, next, at);
            step /= 2;
        }
        at.min(self.number - 1)
    }
}

/// A range in the directory. Its hints are there once more, so that what a lookup needs is asked for together with the range.
#[derive(Debug, Clone)]
struct Place {
    range: Arc<Range>,
    hints: Hints,
}

impl Place {
    fn new<M: Medium>(op: &Op<'_, M>, range: Arc<Range>) -> Self {
        let hints = Hints::default();
        hints.note(&range.snapshot, range.snapshot.get(op));
        Place { range, hints }
    }
}

impl Chunk {
    fn push<M: Medium>(&mut self, op: &Op<'_, M>, low: u64, range: Arc<Range>) {
        debug_assert!(self.lows.last().is_none_or(|last| *last < low));
        self.lows.push(low);
        self.places.push(Place::new(op, range));
    }

    /// In chunks that are half full, if it is too large.
    fn split(self) -> Vec<Arc<Chunk>> {
        let size = if self.lows.len() <= CHUNK { CHUNK } else { CHUNK / 2 };
        let parts = self.lows.chunks(size).zip(self.places.chunks(size));
        let made = |(lows, places): (&[u64], &[Place])| {
            Arc::new(Chunk { lows: lows.to_vec(), places: places.to_vec(), search: Search::of(lows) })
        };
        parts.map(made).collect()
    }
}

/// The number of the last key that is at most `key`, which there is.
#[inline(always)]
pub(crate) fn last_at_most(lows: &[u64], key: u64) -> usize {
    lows.partition_point(|low| *low <= key) - 1
}

impl Directory {
    /// The directory of ranges in the order of their keys.
    pub(crate) fn of<M: Medium>(op: &Op<'_, M>, ranges: impl Iterator<Item = (u64, Arc<Range>)>) -> Self {
        let mut all = Chunk::default();
        ranges.for_each(|(low, range)| all.push(op, low, range));
        let chunks = all.split();
        Directory { lows: chunks.iter().filter_map(|chunk| chunk.lows.first().copied()).collect(), chunks }
    }

    /// The directory with more ranges, which lie side by side and come after one that is there.
    pub(crate) fn with<M: Medium>(&self, op: &Op<'_, M>, more: &[(u64, Arc<Range>)]) -> Self {
        let Some((first, _)) = more.first() else { return self.clone() };
        let number = last_at_most(&self.lows, *first);
        let mut chunk = Chunk::clone(&self.chunks[number]);
        let at = last_at_most(&chunk.lows, *first) + 1;
        chunk.lows.splice(at..at, more.iter().map(|(low, _)| *low));
        chunk.places.splice(at..at, more.iter().map(|(_, range)| Place::new(op, Arc::clone(range))));
        let (mut new, chunks) = (self.clone(), chunk.split());
        new.lows.splice(number..=number, chunks.iter().map(|chunk| chunk.lows[0]));
        new.chunks.splice(number..=number, chunks);
        new
    }

    /// The range of a key. The first range begins with the smallest key.
    #[inline(always)]
    fn place(&self, key: u64) -> &Place {
        let chunk = &self.chunks[last_at_most(&self.lows, key)];
        &chunk.places[chunk.search.last_at_most(key)]
    }

    /// The range of a key.
    #[inline(always)]
    pub(crate) fn find(&self, key: u64) -> &Arc<Range> {
        &self.place(key).range
    }

    /// As [`find`](Self::find), and asks the processor for the lines between the directory and the key's leaf, so that it waits for all of
    /// them together.
    #[inline(always)]
    pub(crate) fn find_ahead(&self, key: u64, hash: u64) -> &Arc<Range> {
        let Place { range, hints } = self.place(key);
        prefetch(&raw const **range);
        hints.prefetch(hash);
        range
    }

    /// As [`find_ahead`](Self::find_ahead), for a scan.
    #[inline(always)]
    pub(crate) fn find_for_scan(&self, key: u64) -> &Arc<Range> {
        let range = self.find_ahead(key, 0);
        range.prefetch_scan();
        range
    }

    /// Notes where what a range shows from now on lies.
    pub(crate) fn note(&self, range: &Range, snapshot: &Snapshot) {
        let place = self.place(snapshot.low);
        // A new range of a split is not there yet.
        if std::ptr::eq(&raw const *place.range, range) {
            place.hints.note(&range.snapshot, snapshot);
        }
    }

    /// All ranges in the order of their keys.
    pub(crate) fn ranges(&self) -> impl Iterator<Item = &Arc<Range>> {
        self.chunks.iter().flat_map(|chunk| &chunk.places).map(|place| &place.range)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_key_at_most_is_found_among_any_number() {
        for number in [1, 2, 3, 63, 64, 65, CHUNK - 1, CHUNK] {
            for (step, last) in [(1, false), (1 << 40, false), (7, true)] {
                let mut lows: Vec<u64> = (0..number as u64).map(|i| i * step).collect();
                if last && number > 1 {
                    lows[number - 1] = u64::MAX;
                }
                let search = Search::of(&lows);
                let near = lows.iter().flat_map(|low| [low.saturating_sub(1), *low, low.saturating_add(1)]);
                for key in near.chain([0, u64::MAX]) {
                    assert_eq!(search.last_at_most(key), last_at_most(&lows, key), "{key:#x} of {number} keys");
                }
            }
        }
    }
}
