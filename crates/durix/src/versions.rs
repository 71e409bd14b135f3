//! The store of versions: the values that keys had before they were changed, for the snapshots that are open.
//!
//! It lies in DRAM. A chain of versions for each changed key, ascending by the newest snapshot that sees the version; the
//! map itself holds what comes after the last. See `docs/design/transactions.md` for why a reader looks at the map first.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use durix_pmem::{Medium, Op};

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
    value: Option<Box<[u8]>>,
}

#[derive(Debug, Default)]
struct Store {
    /// Number of the last snapshot.
    last: u64,
    open: BTreeSet<u64>,
    /// By owner of the index, then by key.
    chains: BTreeMap<u16, BTreeMap<Vec<u8>, Vec<Version>>>,
    bytes: u64,
}

/// The versions of a database.
#[derive(Debug)]
pub(crate) struct Versions {
    store: Mutex<Store>,
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

impl Store {
    fn chain(&self, owner: u16, key: &[u8]) -> Option<&Vec<Version>> {
        self.chains.get(&owner)?.get(key)
    }

    /// Whether the key was saved since the newest snapshot.
    fn is_saved(&self, owner: u16, key: &[u8]) -> bool {
        let newest = self.chain(owner, key).and_then(|chain| chain.last());
        newest.is_some_and(|version| version.until == self.last)
    }

    fn push(&mut self, owner: u16, key: &[u8], value: Option<Vec<u8>>) {
        self.bytes += OVERHEAD + (key.len() + value.as_ref().map_or(0, Vec::len)) as u64;
        let version = Version { until: self.last, value: value.map(Vec::into_boxed_slice) };
        self.chains.entry(owner).or_default().entry(key.to_vec()).or_default().push(version);
    }

    /// Removes what no open snapshot sees.
    fn trim(&mut self) {
        let Some(oldest) = self.open.first().copied() else {
            (self.chains, self.bytes) = (BTreeMap::new(), 0);
            return;
        };
        let bytes = &mut self.bytes;
        for keys in self.chains.values_mut() {
            keys.retain(|key, chain| {
                chain.retain(|version| {
                    let keep = version.until >= oldest;
                    if !keep {
                        *bytes -= OVERHEAD + (key.len() + version.value.as_ref().map_or(0, |v| v.len())) as u64;
                    }
                    keep
                });
                !chain.is_empty()
            });
        }
        self.chains.retain(|_, keys| !keys.is_empty());
    }
}

/// The version of a chain that a snapshot sees.
fn seen_by(chain: &[Version], snapshot: u64) -> Option<&Version> {
    chain.iter().find(|version| version.until >= snapshot)
}

fn value_of(version: &Version) -> Option<Vec<u8>> {
    version.value.as_ref().map(|value| value.to_vec())
}

impl Versions {
    pub(crate) fn new() -> Self {
        Versions { store: Mutex::default(), count: AtomicU64::new(0), limit: AtomicU64::new(LIMIT) }
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
            store.trim();
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
    pub(crate) fn save<M: Medium>(&self, op: &Op<'_, M>, index: &dyn Index<M>, key: &[u8]) -> Result<()> {
        let owner = index.root().owner().0;
        {
            let store = self.store();
            // The update itself refuses a key that does not fit.
            if store.open.is_empty() || store.is_saved(owner, key) || index.limits().check(key, None).is_err() {
                return Ok(());
            }
        }
        // Before the lock: whoever stores first has read before any change, and so has everybody who comes too late.
        let value = index.get_vec(op, key)?;
        let mut store = self.store();
        if !store.open.is_empty() && !store.is_saved(owner, key) {
            store.push(owner, key, value);
            if store.bytes > self.limit.load(Ordering::Relaxed) {
                store.open.clear();
                store.trim();
                // Who has failed stands in nobody's way.
                self.count.store(0, Ordering::Release);
            }
        }
        Ok(())
    }

    fn seen<'s>(&self, store: &'s Store, snapshot: u64) -> Result<&'s Store> {
        if store.open.contains(&snapshot) {
            return Ok(store);
        }
        Err(Error::SnapshotTooOld { limit: self.limit.load(Ordering::Relaxed) })
    }

    /// What a snapshot sees of a key, after the map was read.
    ///
    /// # Errors
    /// [`Error::SnapshotTooOld`].
    pub(super) fn get(&self, snapshot: u64, owner: u16, key: &[u8]) -> Result<Stored> {
        let store = self.store();
        let chain = self.seen(&store, snapshot)?.chain(owner, key);
        let version = chain.and_then(|chain| seen_by(chain, snapshot));
        Ok(version.map_or(Stored::Unchanged, |version| Stored::Was(value_of(version))))
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
        let store = self.store();
        let chains = self.seen(&store, snapshot)?.chains.get(&owner);
        let Some(chains) = chains.filter(|_| !range.is_empty()) else { return Ok(None) };
        let bounds = (borrowed(&range.lower), borrowed(&range.upper));
        let changed = |(key, chain): (&Vec<u8>, &Vec<Version>)| {
            seen_by(chain, snapshot).map(|version| (key.clone(), value_of(version)))
        };
        let mut within = chains.range::<[u8], _>(bounds);
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

    fn was(value: &[u8]) -> Stored {
        Stored::Was(Some(value.to_vec()))
    }

    #[test]
    fn each_snapshot_sees_its_own_version() {
        let versions = Versions::new();
        let first = versions.open();
        versions.store().push(7, b"k", Some(b"one".to_vec()));
        assert!(versions.store().is_saved(7, b"k"));
        let second = versions.open();
        assert!(!versions.store().is_saved(7, b"k"));
        assert_eq!(versions.get(second, 7, b"k").unwrap(), Stored::Unchanged);
        let third = versions.open();
        versions.store().push(7, b"k", None);
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
        versions.store().push(1, b"a", Some(vec![0; 100]));
        let second = versions.open();
        versions.store().push(1, b"b", None);
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
            versions.store().push(1, key, Some(key.to_vec()));
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
}
