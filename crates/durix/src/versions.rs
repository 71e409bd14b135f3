//! The store of versions: the values that keys had before they were changed, for the snapshots that are open.
//!
//! It lies in DRAM. A chain of versions for each changed key, ascending by the newest snapshot that sees the version; the
//! map itself holds what comes after the last. See `docs/design/transactions.md` for why a reader looks at the map first.

use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::hash::{BuildHasher, BuildHasherDefault, Hasher, RandomState};
use std::ops::Bound;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use durix_pmem::{Medium, Op};
use xxhash_rust::xxh3::xxh3_64_with_seed;

use crate::transaction::small::Small;
use crate::{Direction, Index, KeyRange};
use crate::{Error, Result};

/// Bytes that the store holds at most, unless set.
pub(crate) const LIMIT: u64 = 256 << 20;
/// What an entry of the store takes besides its key and value, about.
const OVERHEAD: u64 = 128;

/// A value that a key had, for the snapshots up to one of them.
#[derive(Debug)]
struct Version {
    until: u64,
    value: Option<Small>,
}

impl Version {
    fn bytes(&self, key: &Small) -> u64 {
        OVERHEAD + (key.len() + self.value.as_ref().map_or(0, |value| value.len())) as u64
    }

    fn to_vec(&self) -> Option<Vec<u8>> {
        self.value.as_ref().map(|value| value.to_vec())
    }
}

/// A changed key and its versions.
#[derive(Debug)]
struct Entry {
    key: Small,
    /// Ascending, without the last.
    older: Vec<Version>,
    last: Version,
    /// One more than the number of the entry before it whose key has the same hash; 0 for none.
    same_hash: u32,
}

impl Entry {
    /// The version that a snapshot sees.
    fn seen_by(&self, snapshot: u64) -> Option<&Version> {
        self.older.iter().chain([&self.last]).find(|version| version.until >= snapshot)
    }
}

/// Hashes are their own: [`Keys`] is asked with the hash of a key.
#[derive(Debug, Default)]
struct Itself(u64);

impl Hasher for Itself {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, _: &[u8]) {
        unreachable!("keys are words")
    }

    fn write_u64(&mut self, word: u64) {
        self.0 = word;
    }
}

/// Entries that lie together. So a store that grows moves none.
const TOGETHER: usize = 256;
/// Hashes whose memory is kept for the next snapshot, at most.
const KEPT: usize = 1 << 14;
/// Empty lists of entries that are kept: 1.7 MB.
const KEPT_LISTS: usize = 64;

/// The changed keys of an index. A writer finds its key by hash. A reader that walks needs their order: it sorts in what writers have added since the
/// last reader.
#[derive(Debug, Default)]
struct Keys {
    /// One more than the number of the last entry whose key has the hash.
    index: HashMap<u64, u32, BuildHasherDefault<Itself>>,
    entries: Vec<Vec<Entry>>,
    /// Numbers of entries, by key: of the first entries.
    order: BTreeMap<Small, u32>,
}

impl Keys {
    fn len(&self) -> usize {
        self.entries.last().map_or(0, |last| (self.entries.len() - 1) * TOGETHER + last.len())
    }

    fn at(&self, number: u32) -> &Entry {
        &self.entries[number as usize / TOGETHER][number as usize % TOGETHER]
    }

    fn find(&self, hash: u64, key: &[u8]) -> Option<u32> {
        let mut next = self.index.get(&hash).copied().unwrap_or(0);
        while let Some(number) = next.checked_sub(1) {
            let entry = self.at(number);
            if entry.key.is(key) {
                return Some(number);
            }
            next = entry.same_hash;
        }
        None
    }

    /// Adds a version, the last one of its key, whose entry has a number if there is one.
    fn push(&mut self, entry: Option<u32>, hash: u64, key: &[u8], version: Version, free: &mut Vec<Vec<Entry>>) {
        if let Some(number) = entry {
            let entry = &mut self.entries[number as usize / TOGETHER][number as usize % TOGETHER];
            let before = std::mem::replace(&mut entry.last, version);
            entry.older.push(before);
        } else {
            self.add(hash, Entry { key: key.into(), older: Vec::new(), last: version, same_hash: 0 }, free);
        }
    }

    /// Adds a key that is not there.
    fn add(&mut self, hash: u64, entry: Entry, free: &mut Vec<Vec<Entry>>) {
        let after = self.len() as u32 + 1;
        let same_hash = self.index.insert(hash, after).unwrap_or(0);
        if self.entries.last().is_none_or(|last| last.len() == TOGETHER) {
            self.entries.push(free.pop().unwrap_or_else(|| Vec::with_capacity(TOGETHER)));
        }
        self.entries.last_mut().expect("it has room").push(Entry { same_hash, ..entry });
    }

    /// Has `order` hold all entries.
    fn sort(&mut self) {
        for number in self.order.len()..self.len() {
            let number = number as u32;
            let key = self.at(number).key.clone();
            self.order.insert(key, number);
        }
    }

    fn clear(&mut self, free: &mut Vec<Vec<Entry>>) {
        let mut index = std::mem::take(&mut self.index);
        let all = std::mem::take(self);
        for mut list in all.entries {
            list.clear();
            if free.len() < KEPT_LISTS {
                free.push(list);
            }
        }
        if index.capacity() <= KEPT {
            index.clear();
            self.index = index;
        }
    }
}

#[derive(Debug, Default)]
struct Store {
    /// Number of the last snapshot.
    last: u64,
    open: BTreeSet<u64>,
    /// By owner of the index.
    keys: BTreeMap<u16, Keys>,
    bytes: u64,
    /// Lists without entries, for new ones.
    free: Vec<Vec<Entry>>,
    /// Of entries: while it stays, each keeps its number, and none is new.
    changes: u64,
}

/// The versions of a database.
#[derive(Debug)]
pub(crate) struct Versions {
    store: Mutex<Store>,
    /// Of the hashes of keys: nobody who chooses keys knows it.
    seed: u64,
    /// How many snapshots are open.
    count: AtomicU64,
    limit: AtomicU64,
}

/// What the store says of a key.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Stored {
    /// It has not changed since: the map's value counts.
    Unchanged,
    /// What it was; `None` for absent.
    Was(Option<Vec<u8>>),
}

/// What [`Store::look`] has found.
struct Looked {
    entry: Option<u32>,
    changes: u64,
}

impl Store {
    /// The number and the entry of a key.
    fn entry(&self, owner: u16, hash: u64, key: &[u8]) -> Option<(u32, &Entry)> {
        let keys = self.keys.get(&owner)?;
        let number = keys.find(hash, key)?;
        Some((number, keys.at(number)))
    }

    /// Looks for a key before its value is read. `None` if it was saved since the newest snapshot.
    fn look(&self, owner: u16, hash: u64, key: &[u8]) -> Option<Looked> {
        let entry = self.entry(owner, hash, key);
        let is_saved = entry.is_some_and(|(_, entry)| entry.last.until == self.last);
        (!is_saved).then(|| Looked { entry: entry.map(|(number, _)| number), changes: self.changes })
    }

    /// Adds the value of a key that was looked for since the last change.
    fn save(&mut self, looked: Looked, (owner, hash, key): (u16, u64, &[u8]), value: Option<&[u8]>) {
        self.changes += 1;
        self.bytes += OVERHEAD + (key.len() + value.map_or(0, <[u8]>::len)) as u64;
        let version = Version { until: self.last, value: value.map(Small::from) };
        self.keys.entry(owner).or_default().push(looked.entry, hash, key, version, &mut self.free);
    }

    /// Removes what no open snapshot sees.
    fn trim(&mut self, hash: impl Fn(&[u8]) -> u64) {
        self.changes += 1;
        let Some(oldest) = self.open.first().copied() else {
            self.keys.values_mut().for_each(|keys| keys.clear(&mut self.free));
            self.bytes = 0;
            return;
        };
        self.bytes = 0;
        for keys in self.keys.values_mut() {
            let all = std::mem::take(keys);
            for mut entry in all.entries.into_iter().flatten().filter(|entry| entry.last.until >= oldest) {
                entry.older.retain(|version| version.until >= oldest);
                let versions = entry.older.iter().chain([&entry.last]);
                self.bytes += versions.map(|version| version.bytes(&entry.key)).sum::<u64>();
                keys.add(hash(&entry.key), entry, &mut self.free);
            }
        }
    }
}

thread_local! {
    /// For the old value of a key.
    static VALUE: Cell<Vec<u8>> = const { Cell::new(Vec::new()) };
}

/// Bytes of that buffer that are kept at most.
const KEPT_BYTES: usize = 64 << 10;

impl Versions {
    pub(crate) fn new() -> Self {
        let seed = RandomState::new().hash_one(0);
        Versions { store: Mutex::default(), seed, count: AtomicU64::new(0), limit: AtomicU64::new(LIMIT) }
    }

    #[inline]
    fn hash(&self, key: &[u8]) -> u64 {
        xxh3_64_with_seed(key, self.seed)
    }

    fn store(&self) -> MutexGuard<'_, Store> {
        self.store.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether a snapshot is open.
    pub(crate) fn is_open(&self) -> bool {
        self.count.load(Ordering::Acquire) != 0
    }

    pub(crate) fn set_limit(&self, bytes: u64) {
        self.limit.store(bytes, Ordering::Relaxed);
    }

    /// Opens a snapshot as of now: in a moment without operations.
    pub(super) fn open(&self) -> u64 {
        let mut store = self.store();
        store.last += 1;
        // What was saved before is not saved for this one.
        store.changes += 1;
        let number = store.last;
        store.open.insert(number);
        self.count.store(store.open.len() as u64, Ordering::Release);
        number
    }

    /// Closes a snapshot; runs `disarm` if no other is open.
    pub(super) fn close(&self, number: u64, disarm: impl FnOnce()) {
        let mut store = self.store();
        // It is not there where the bound was hit: then it is the last but for the flags.
        if store.open.remove(&number) {
            store.trim(|key| self.hash(key));
        }
        self.count.store(store.open.len() as u64, Ordering::Release);
        if store.open.is_empty() {
            // Under the lock: the next snapshot arms after it.
            disarm();
        }
    }

    /// Stores the value of a key before an update changes it, in the update's operation.
    ///
    /// # Errors
    /// As [`Index::get`]. The bound of the store is no error here: it fails the snapshots.
    pub(crate) fn save<M: Medium>(&self, op: &Op<'_, M>, index: &dyn Index<M>, owner: u16, key: &[u8]) -> Result<()> {
        let hash = self.hash(key);
        let looked = {
            let store = self.store();
            if store.open.is_empty() {
                return Ok(());
            }
            let Some(looked) = store.look(owner, hash, key) else { return Ok(()) };
            looked
        };
        // The update itself refuses a key that does not fit.
        if index.limits().check(key, None).is_err() {
            return Ok(());
        }
        let mut value = VALUE.take();
        // Before the lock: whoever stores first has read before any change, and so has everybody who comes too late.
        let is_there = index.get(op, key, &mut value);
        if let Ok(is_there) = is_there {
            self.save_value(looked, (owner, hash, key), is_there.then_some(&value));
        }
        if value.capacity() <= KEPT_BYTES {
            VALUE.set(value);
        }
        is_there.map(drop)
    }

    /// Stores a value, unless that of the key was stored since the newest snapshot. `looked`: what was found before the value was read.
    fn save_value(&self, looked: Looked, key: (u16, u64, &[u8]), value: Option<&[u8]>) {
        let mut store = self.store();
        if store.open.is_empty() {
            return;
        }
        let unchanged = Some(looked).filter(|looked| looked.changes == store.changes);
        let Some(looked) = unchanged.or_else(|| store.look(key.0, key.1, key.2)) else { return };
        store.save(looked, key, value);
        if store.bytes > self.limit.load(Ordering::Relaxed) {
            store.open.clear();
            store.trim(|key| self.hash(key));
            // Who has failed stands in nobody's way.
            self.count.store(0, Ordering::Release);
        }
    }

    fn ensure_open(&self, store: &Store, snapshot: u64) -> Result<()> {
        if store.open.contains(&snapshot) {
            return Ok(());
        }
        Err(Error::SnapshotTooOld { limit: self.limit.load(Ordering::Relaxed) })
    }

    /// What a snapshot sees of a key, after the map was read.
    ///
    /// # Errors
    /// [`Error::SnapshotTooOld`].
    pub(super) fn get(&self, snapshot: u64, owner: u16, key: &[u8]) -> Result<Stored> {
        let store = self.store();
        self.ensure_open(&store, snapshot)?;
        let entry = store.entry(owner, self.hash(key), key);
        let version = entry.and_then(|(_, entry)| entry.seen_by(snapshot));
        Ok(version.map_or(Stored::Unchanged, |version| Stored::Was(version.to_vec())))
    }

    /// The first key of a range that has changed since a snapshot, and what it was.
    ///
    /// # Errors
    /// [`Error::SnapshotTooOld`].
    #[expect(clippy::type_complexity, reason = "a key and what it was")]
    pub(super) fn first(
        &self,
        snapshot: u64,
        owner: u16,
        range: &KeyRange,
        direction: Direction,
    ) -> Result<Option<(Vec<u8>, Option<Vec<u8>>)>> {
        let mut store = self.store();
        self.ensure_open(&store, snapshot)?;
        let Some(keys) = store.keys.get_mut(&owner).filter(|_| !range.is_empty()) else { return Ok(None) };
        keys.sort();
        let keys = &*keys;
        let bounds = (borrowed(&range.lower), borrowed(&range.upper));
        let changed = |(key, number): (&Small, &u32)| {
            keys.at(*number).seen_by(snapshot).map(|version| (key.to_vec(), version.to_vec()))
        };
        let mut within = keys.order.range::<[u8], _>(bounds);
        Ok(match direction {
            Direction::Forward => within.find_map(changed),
            Direction::Backward => within.rev().find_map(changed),
        })
    }

    /// Bytes that the store holds, about.
    #[cfg(test)]
    fn bytes(&self) -> u64 {
        self.store().bytes
    }
}

fn borrowed(bound: &Bound<Vec<u8>>) -> Bound<&[u8]> {
    bound.as_ref().map(Vec::as_slice)
}

#[cfg(test)]
mod tests {
    use super::*;

    impl Store {
        fn push(&mut self, owner: u16, hash: u64, key: &[u8], value: Option<&[u8]>) {
            let looked = self.look(owner, hash, key).expect("not saved yet");
            self.save(looked, (owner, hash, key), value);
        }

        fn is_saved(&self, owner: u16, hash: u64, key: &[u8]) -> bool {
            self.look(owner, hash, key).is_none()
        }
    }

    impl Versions {
        fn push(&self, owner: u16, key: &[u8], value: Option<&[u8]>) {
            self.store().push(owner, self.hash(key), key, value);
        }

        fn is_saved(&self, owner: u16, key: &[u8]) -> bool {
            self.store().is_saved(owner, self.hash(key), key)
        }
    }

    fn was(value: &[u8]) -> Stored {
        Stored::Was(Some(value.to_vec()))
    }

    #[test]
    fn each_snapshot_sees_its_own_version() {
        let versions = Versions::new();
        let first = versions.open();
        versions.push(7, b"k", Some(b"one"));
        assert!(versions.is_saved(7, b"k"));
        let second = versions.open();
        assert!(!versions.is_saved(7, b"k"));
        assert_eq!(versions.get(second, 7, b"k").unwrap(), Stored::Unchanged);
        let third = versions.open();
        versions.push(7, b"k", None);
        assert_eq!(versions.get(first, 7, b"k").unwrap(), was(b"one"));
        assert_eq!(versions.get(second, 7, b"k").unwrap(), Stored::Was(None));
        assert_eq!(versions.get(third, 7, b"k").unwrap(), Stored::Was(None));
        assert_eq!(versions.get(third, 8, b"k").unwrap(), Stored::Unchanged);
        versions.close(first, || panic!("others are open"));
        assert_eq!(versions.get(second, 7, b"k").unwrap(), Stored::Was(None));
        versions.close(third, || ());
        assert_eq!(versions.get(second, 7, b"k").unwrap(), Stored::Was(None), "it was of the second, too");
        let mut disarmed = false;
        versions.close(second, || disarmed = true);
        assert!(disarmed && versions.bytes() == 0 && !versions.is_open());
        assert!(matches!(versions.get(second, 7, b"k"), Err(Error::SnapshotTooOld { .. })));
    }

    #[test]
    fn what_nobody_sees_is_removed_and_counted() {
        let versions = Versions::new();
        let first = versions.open();
        versions.push(1, b"a", Some(&[0; 100]));
        let second = versions.open();
        versions.push(1, b"b", None);
        let all = versions.bytes();
        versions.close(first, || ());
        assert_eq!(all - versions.bytes(), OVERHEAD + 101);
        assert_eq!(versions.get(second, 1, b"b").unwrap(), Stored::Was(None));
        assert_eq!(versions.get(second, 1, b"a").unwrap(), Stored::Unchanged);
    }

    #[test]
    fn changed_keys_of_a_range_come_in_order() {
        let versions = Versions::new();
        let snapshot = versions.open();
        for key in [b"b", b"d", b"a"] {
            versions.push(1, key, Some(key));
        }
        let first =
            |range: &KeyRange, direction| versions.first(snapshot, 1, range, direction).unwrap().map(|(key, _)| key);
        let all = KeyRange::all();
        assert_eq!(first(&all, Direction::Forward), Some(b"a".to_vec()));
        assert_eq!(first(&all, Direction::Backward), Some(b"d".to_vec()));
        let above = KeyRange::new(Bound::Excluded(b"b"), Bound::Unbounded);
        assert_eq!(first(&above, Direction::Forward), Some(b"d".to_vec()));
        let none = KeyRange::new(Bound::Excluded(b"b"), Bound::Excluded(b"b"));
        assert_eq!(first(&none, Direction::Forward), None);
    }

    #[test]
    fn many_keys_are_found_by_hash_and_in_order_also_where_hashes_are_equal() {
        let mut store = Store { last: 1, open: [1].into(), ..Store::default() };
        let hash = |key: &[u8]| u64::from(key[1] % 7);
        let keys: Vec<[u8; 2]> = (0..1000u32).map(|n| ((n * 7919 % 1000) as u16).to_be_bytes()).collect();
        let check = |store: &mut Store, from: u64| {
            for key in &keys {
                let (_, entry) = store.entry(1, hash(key), key).expect("it was saved");
                assert_eq!(entry.seen_by(from).and_then(Version::to_vec), Some(key.to_vec()));
            }
            let keys = store.keys.get_mut(&1).unwrap();
            keys.sort();
            assert!(keys.order.keys().map(|key| key.to_vec()).eq((0..1000u16).map(|n| n.to_be_bytes().to_vec())));
        };
        for key in &keys {
            assert!(!store.is_saved(1, hash(key), key));
            store.push(1, hash(key), key, Some(key));
            assert!(store.is_saved(1, hash(key), key));
        }
        check(&mut store, 1);
        let bytes = store.bytes;
        (store.last, store.open, store.changes) = (2, [1, 2].into(), store.changes + 1);
        keys.iter().for_each(|key| store.push(1, hash(key), key, Some(key)));
        store.open = [2].into();
        store.trim(hash);
        assert_eq!(store.bytes, bytes);
        check(&mut store, 2);
        store.open.clear();
        store.trim(hash);
        assert!(store.entry(1, hash(&keys[0]), &keys[0]).is_none());
        assert_eq!((store.keys[&1].len(), store.keys[&1].order.len()), (0, 0));
    }

    /// Between a writer's look and its value another writer saves the key, or a snapshot is opened.
    #[test]
    fn the_first_value_counts_and_a_later_snapshot_gets_its_own() {
        let versions = Versions::new();
        let first = versions.open();
        let key = (7, versions.hash(b"k"), &b"k"[..]);
        let look = || versions.store().look(key.0, key.1, key.2).expect("not saved yet");
        let [slow, quick] = [look(), look()];
        versions.save_value(quick, key, Some(b"one"));
        versions.save_value(slow, key, Some(b"two"));
        assert_eq!(versions.get(first, 7, b"k").unwrap(), was(b"one"));
        let other = (7, versions.hash(b"l"), &b"l"[..]);
        let slow = versions.store().look(other.0, other.1, other.2).expect("not saved yet");
        let second = versions.open();
        versions.save_value(slow, other, Some(b"three"));
        assert_eq!(versions.get(first, 7, b"l").unwrap(), was(b"three"));
        assert_eq!(versions.get(second, 7, b"l").unwrap(), was(b"three"));
        versions.save_value(look(), key, Some(b"four"));
        assert_eq!(versions.get(first, 7, b"k").unwrap(), was(b"one"));
        assert_eq!(versions.get(second, 7, b"k").unwrap(), was(b"four"));
    }
}
