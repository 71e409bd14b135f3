//! Values of any length: the tree leads to records, which lie in pages of their own.
//!
//! The records, their pages and what becomes of them after a crash are those of [`Blobs`], the maps of words of `durix-logfree`. The tree takes the
//! place of such a map:
//!
//! | edge | kept by | a crash between leaves | recovery |
//! |---|---|---|---|
//! | DP-W1 a record and the bits of its units < a log record, or a slot, with its offset | flush+fence | units that no key leads to, in active pages | frees them |
//! | DP-W2 the change that takes a record out < its units are used again | the change has returned: DP-A1, DP-V1, DP-D3 | the record in the tree, or units as above | as above |
//!
//! Every place in the pool that still holds the offset of a record that was taken out is one that recovery does not believe: a log record with a
//! lower version or below its floor, a slot whose key has a record, a slot that is free.

use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;

use durix_index::implement::{WORD, Walk, WordRange, alone, key_word as key, writable};
use durix_index::{
    Batch, Cursor, Direction, Finding, Index, IndexStats, KeyRange, Leftover, Lengths, Limits, Openable, OrderedIndex,
    Result,
};
use durix_logfree::{Blobs, Error, Found, MAX_VALUE, OrderedWordMap, RecordMap, RecordStore, WordMap};
use durix_pmem::pool::Durability;
use durix_pmem::{Hardware, Kind, Medium, Op, Pool, Root, Session, Structure};

use crate::group::Edit;
use crate::layout::{RECORDS_LAYOUT_VERSION, root_words};
use crate::{DpTree, MAX_BATCH, Options, leftovers, together};

/// Pairs of a step of a walk at least, unless it is the last one.
const STEP: usize = 128;
/// Of values, in pages of records of the usual size.
const LIMITS: Limits = Limits { key: Lengths::Exactly(WORD), value: Lengths::UpTo(MAX_VALUE), batch: MAX_BATCH };

/// The records of a tree.
pub(crate) type Records<M> = Blobs<Words<M>, M>;

/// A tree whose values are offsets of records.
pub(crate) struct Words<M: Medium>(Arc<DpTree<M>>);

pub(crate) fn of_tree(error: crate::Error) -> Error {
    match error {
        crate::Error::Pool(error) => Error::Pool(error),
        crate::Error::Corrupt { what, offset, found } => Error::Corrupt { what, offset, found },
        crate::Error::BatchTooLarge { .. } => unreachable!("offsets are changed one by one"),
        crate::Error::BadShape { slots, .. } => {
            Error::BadOption { option: "slots a leaf", value: slots as u64, rule: "see `Shape`" }
        }
    }
}

impl<M: Medium> Words<M> {
    fn step(
        &self,
        op: &Op<'_, M>,
        from: u64,
        direction: Direction,
        into: &mut Vec<(u64, u64)>,
    ) -> durix_logfree::Result<Option<u64>> {
        self.0.walk(op, from, direction, STEP, into).map_err(of_tree)
    }
}

impl<M: Medium> WordMap<M> for Words<M> {
    const NAME: &'static str = "DpTree";
    const ORDERED: bool = true;

    fn root(&self) -> &Root<M> {
        self.0.root()
    }

    fn get(&self, op: &Op<'_, M>, key: u64) -> durix_logfree::Result<Option<u64>> {
        self.0.get(op, key).map_err(of_tree)
    }

    fn insert_with(&self, op: &Op<'_, M>, key: u64, value: impl Fn() -> Option<u64>) -> durix_logfree::Result<bool> {
        let new = |old: Option<u64>| {
            let off = if old.is_none() { value() } else { None }?;
            op.fence(); // PERSIST DP-W1: flush+fence
            Some(Some(off))
        };
        Ok(self.0.change_with_room(op, key, new).map_err(of_tree)?.is_some())
    }

    fn update_with(&self, op: &Op<'_, M>, key: u64, new: impl Fn(u64) -> Option<u64>) -> durix_logfree::Result<Found> {
        let found = Cell::new(None);
        let new = |old: Option<u64>| {
            found.set(old);
            let off = new(old?)?;
            op.fence(); // PERSIST DP-W1: flush+fence
            Some(Some(off))
        };
        let changed = self.0.change_with_room(op, key, new).map_err(of_tree)?;
        Ok(found.get().map(|old| (old, changed.is_some())))
    }

    fn remove_with(&self, op: &Op<'_, M>, key: u64, wanted: impl Fn(u64) -> bool) -> durix_logfree::Result<Found> {
        let found = Cell::new(None);
        let decide = |old: Option<u64>| {
            found.set(old);
            old.is_some_and(&wanted).then_some(None)
        };
        let changed = self.0.change(op, key, decide).map_err(of_tree)?;
        Ok(found.get().map(|old| (old, changed.is_some())))
    }

    fn walk(&self, op: &Op<'_, M>, from: u64, into: &mut Vec<(u64, u64)>) -> durix_logfree::Result<Option<u64>> {
        self.step(op, from, Direction::Forward, into)
    }

    /// The tree's findings have a form of their own: see [`DpTreeValues`].
    fn check(&self, _: &Op<'_, M>) -> durix_logfree::Result<Vec<durix_logfree::Finding>> {
        Ok(Vec::new())
    }
}

impl<M: Medium> OrderedWordMap<M> for Words<M> {
    fn walk_back(&self, op: &Op<'_, M>, to: u64, into: &mut Vec<(u64, u64)>) -> durix_logfree::Result<Option<u64>> {
        self.step(op, to, Direction::Backward, into)
    }
}

impl<M: Medium> RecordMap<M> for Words<M> {
    const BLOBS: Kind = Kind { tag: *b"DPTREE V", version: RECORDS_LAYOUT_VERSION };
    const PAGE_WORD: usize = 5;
}

/// A strict ordered map from 8-byte keys to byte strings: a [`DpTree`] whose values lie in records of their own.
///
/// Its operations are those of [`Index`] and [`OrderedIndex`]. An update is durable when it returns: two fences, and one more for each of pages
/// newly active and a page of the old value that is not. Merges are a service of the pool, as those of a [`DpTree`].
///
/// ```
/// use durix_dptree::DpTreeValues;
/// use durix_index::{Index, OrderedIndex};
/// use durix_pmem::PoolOptions;
///
/// # let dir = tempfile::tempdir()?;
/// # let path = dir.path().join("letters.pool");
/// let pool = PoolOptions::new().open_or_create(&path)?;
/// let letters = DpTreeValues::open(&pool, "letters")?;
/// let mut session = pool.session()?;
/// let op = session.enter()?;
/// letters.insert(&op, &1843_u64.to_be_bytes(), b"Notes by the translator")?; // durable
/// let (mut key, mut value) = (Vec::new(), Vec::new());
/// assert!(letters.first(&op, &mut key, &mut value)? && value == b"Notes by the translator");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct DpTreeValues<M: Medium = Hardware>(Records<M>);

impl<M: Medium> fmt::Debug for DpTreeValues<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("DpTreeValues").field(self.tree()).finish()
    }
}

fn with_records(options: &Options) -> Options {
    Options { with_records: true, ..options.clone() }
}

impl<M: Medium> Structure<M> for DpTreeValues<M> {
    const KIND: Kind = Words::<M>::BLOBS;
    const TALLIES: bool = true;
    type Options = Options;
    type Error = Error;

    fn create(session: &mut Session<M>, root: &Root<M>, options: &Options) -> durix_logfree::Result<()> {
        DpTree::format(session, root, &with_records(options)).map_err(of_tree)?;
        let op = session.enter()?;
        Records::format(&op, root);
        op.write_back(root_words(&op, root)); // the pool fences before the index goes live
        Ok(())
    }

    fn open(session: &mut Session<M>, root: Root<M>, options: &Options) -> durix_logfree::Result<Self> {
        let tree = DpTree::recover(session, root, &with_records(options)).map_err(of_tree)?;
        Ok(DpTreeValues(Blobs::over(session, Words(Arc::new(tree)), &durix_logfree::Options::default())?))
    }

    fn opened(self: &Arc<Self>) {
        Structure::opened(&self.0.words().0);
    }
}

impl<M: Medium> DpTreeValues<M> {
    /// Opens the map named `name`, creating it if it is not there. Recovers it: reads a line for each leaf and the log, and looks a key up
    /// for each record in a page that was active.
    ///
    /// # Errors
    /// [`Error::Pool`]: what the pool says, also where `name` is something else. [`Error::Corrupt`].
    pub fn open(pool: &Pool<M>, name: &str) -> durix_logfree::Result<Arc<Self>> {
        Self::open_with(pool, name, &Options::default())
    }

    /// As [`open`](Self::open), with options of the tree. A map that is open already stays as it is.
    ///
    /// # Errors
    /// As [`open`](Self::open); [`Error::BadOption`].
    pub fn open_with(pool: &Pool<M>, name: &str, options: &Options) -> durix_logfree::Result<Arc<Self>> {
        pool.open_structure(name, options)
    }

    /// The tree of keys and offsets of records: to be looked at, and to merge. Whoever changes it damages the map.
    #[doc(hidden)]
    pub fn tree(&self) -> &DpTree<M> {
        &self.0.words().0
    }
}

/// Keys and values as a walk lends them.
type Pairs = Vec<(Vec<u8>, Vec<u8>)>;

/// Entries of 8-byte keys as pairs.
fn pairs(entries: Vec<(u64, Vec<u8>)>) -> impl Iterator<Item = (Vec<u8>, Vec<u8>)> {
    entries.into_iter().map(|(key, value)| (key.to_be_bytes().to_vec(), value))
}

impl<M: Medium> Index<M> for DpTreeValues<M> {
    fn root(&self) -> &Root<M> {
        self.0.root()
    }

    fn durability(&self) -> Durability {
        Durability::Strict
    }

    fn limits(&self) -> Limits {
        let most = usize::try_from(self.0.max_value()).unwrap_or(usize::MAX);
        Limits { value: Lengths::UpTo(most), ..LIMITS }
    }

    fn as_ordered(&self) -> Option<&dyn OrderedIndex<M>> {
        Some(self)
    }

    fn get(&self, op: &Op<'_, M>, bytes: &[u8], into: &mut Vec<u8>) -> Result<bool> {
        into.clear();
        Ok(self.0.get(op, key(bytes)?, into)?)
    }

    fn contains(&self, op: &Op<'_, M>, bytes: &[u8]) -> Result<bool> {
        Ok(self.0.contains(op, key(bytes)?)?)
    }

    fn count(&self, session: &mut Session<M>) -> Result<u64> {
        Ok(self.tree().len(&session.enter()?))
    }

    fn cursor(&self) -> Box<dyn Cursor<M> + '_> {
        self.range(&KeyRange::all(), Direction::Forward)
    }

    fn insert(&self, op: &Op<'_, M>, bytes: &[u8], new: &[u8]) -> Result<bool> {
        writable(self)?;
        let key = key(bytes)?;
        // Each of the two takes effect at a moment of its own, and only if the key is, or is not, there.
        loop {
            if self.0.update(op, key, new)? {
                return Ok(false);
            }
            if self.0.insert(op, key, new)? {
                return Ok(true);
            }
        }
    }

    fn insert_if_absent(&self, op: &Op<'_, M>, bytes: &[u8], new: &[u8]) -> Result<bool> {
        writable(self)?;
        Ok(self.0.insert(op, key(bytes)?, new)?)
    }

    fn update(&self, op: &Op<'_, M>, bytes: &[u8], new: &[u8]) -> Result<bool> {
        writable(self)?;
        Ok(self.0.update(op, key(bytes)?, new)?)
    }

    fn compare_and_set(
        &self,
        op: &Op<'_, M>,
        bytes: &[u8],
        expected: Option<&[u8]>,
        new: Option<&[u8]>,
    ) -> Result<bool> {
        writable(self)?;
        self.limits().check(bytes, new)?;
        let key = key(bytes)?;
        Ok(match (expected, new) {
            (None, None) => !self.0.contains(op, key)?,
            (None, Some(new)) => self.0.insert(op, key, new)?,
            (Some(old), Some(new)) => self.0.compare_and_set(op, key, old, new)?,
            (Some(old), None) => self.0.compare_and_remove(op, key, old)?,
        })
    }

    fn remove(&self, op: &Op<'_, M>, bytes: &[u8]) -> Result<bool> {
        writable(self)?;
        Ok(self.0.remove(op, key(bytes)?)?)
    }

    fn apply(&self, op: &Op<'_, M>, batch: &Batch) -> Result<()> {
        writable(self)?;
        together::check(&self.limits(), batch)?;
        let mut changes = BTreeMap::new();
        for (bytes, new) in batch.iter() {
            changes.insert(key(bytes)?, new);
        }
        let words: Vec<u64> = changes.keys().copied().collect();
        let store = self.0.store();
        let mut change = |edit: &mut Edit, word, old: Option<u64>| {
            let Some(new) = changes.get(&word) else { return Ok(None) };
            edit.replaced.extend(old);
            match new {
                Some(value) => {
                    let record = store.write(op, word, value, false)?;
                    let off = record.off();
                    edit.written.push(record);
                    Ok(Some(Some(off)))
                }
                None => Ok(old.map(|_| None)),
            }
        };
        Ok(self.tree().change_roots(op, store, &words, &mut change)?)
    }

    fn batch_is_atomic(&self) -> bool {
        true
    }

    fn check(&self, session: &mut Session<M>) -> Result<Vec<Finding>> {
        alone(self, session, |op| {
            let mut findings = self.tree().check(op);
            let of_record = |found: durix_logfree::Finding| Finding { offset: found.offset(), what: found.to_string() };
            findings.extend(self.0.check(op)?.into_iter().map(of_record));
            Ok(findings)
        })
    }

    fn stats(&self, session: &mut Session<M>) -> Result<IndexStats> {
        let op = session.enter()?;
        let (stats, root) = (self.tree().stats(&op), self.0.root());
        let all: u64 = root.pool().space().extents(&op, root.owner()).iter().map(|extent| extent.len).sum();
        let records = all - (stats.unit_bytes + stats.log_bytes).min(all);
        let stats_of = IndexStats::new(stats.keys, all, Some(stats.volatile_bytes));
        let stats_of = stats_of.with("bytes for records", records).with("ranges", stats.ranges);
        let stats_of = stats_of.with("leaves", stats.leaves).with("buffered", stats.active + stats.frozen);
        Ok(stats_of.with("log pages", stats.log_pages).with("free log pages", stats.free_log_pages))
    }

    fn dump(&self, op: &Op<'_, M>, out: &mut dyn fmt::Write) -> fmt::Result {
        self.tree().dump(op, out)?;
        let mut cursor = self.cursor();
        while let Some((key, value)) = cursor.next(op).map_err(|_| fmt::Error)? {
            writeln!(out, "{} {}", key.escape_ascii(), value.escape_ascii())?;
        }
        Ok(())
    }
}

impl<M: Medium> OrderedIndex<M> for DpTreeValues<M> {
    fn range(&self, range: &KeyRange, direction: Direction) -> Box<dyn Cursor<M> + '_> {
        let words = WordRange::of(range);
        let first = words.map(|words| if direction == Direction::Forward { words.first } else { words.last });
        let step = move |op: &Op<'_, M>, from, into: &mut Pairs| {
            let mut entries = Vec::new();
            let next = match direction {
                Direction::Forward => self.0.walk(op, from, &mut entries),
                Direction::Backward => self.0.walk_back(op, from, &mut entries),
            };
            let place = next.as_ref().ok().copied().flatten();
            let place = words.and_then(|words| match direction {
                Direction::Forward => words.cut_above(place, &mut entries),
                Direction::Backward => words.cut_below(place, &mut entries),
            });
            into.extend(pairs(entries));
            Ok(next.map(|_| place)?)
        };
        Box::new(Walk::new(Some(direction), first, step))
    }
}

impl<M: Medium> Openable<M> for DpTreeValues<M> {
    const LIMITS: Limits = LIMITS;
    const HAS_LEFTOVERS: bool = true;

    fn leftovers(op: &Op<'_, M>, root: &Root<M>) -> Vec<Leftover> {
        // Each record holds its key: those come last to which nothing sound leads.
        let readable = |all: &[Leftover]| {
            let mut readable = BTreeSet::new();
            Records::read_leftovers(op, root, all, &mut |key, _| _ = readable.insert(key));
            readable
        };
        let heads = RecordStore::to_read(op, root.clone(), Words::<M>::PAGE_WORD).heads(op);
        let more = |is_lost: &dyn Fn(u64) -> bool| {
            let lost = heads.iter().filter(|(key, _)| is_lost(*key));
            lost.map(|(key, word)| Leftover { key: *key, word: *word }).collect()
        };
        leftovers::read_with_records(op, root, readable, &heads, more)
    }

    fn read_leftovers(op: &Op<'_, M>, root: &Root<M>, leftovers: &[Leftover], found: &mut dyn FnMut(&[u8], &[u8])) {
        Records::read_leftovers(op, root, leftovers, &mut |key, value| found(&key.to_be_bytes(), value));
    }
}

#[cfg(test)]
mod tests {
    use durix_pmem::backing::HeapBacking;
    use durix_pmem::{Off, PoolOptions, Word};

    use super::*;

    /// A damaged slot, or a damaged word that says which slots are taken: the records have their keys.
    #[test]
    fn a_record_that_nothing_leads_to_is_saved() {
        let pool: Pool = PoolOptions::new().create_on(HeapBacking::new(8 << 20), Hardware::PAGE_CACHE).unwrap();
        let map = DpTreeValues::open(&pool, "users").unwrap();
        let mut session = pool.session().unwrap();
        {
            let op = session.enter().unwrap();
            (0..200_u64).for_each(|key| _ = map.0.insert(&op, key, &key.to_le_bytes()).unwrap());
            (0..200).step_by(7).for_each(|key| assert!(map.0.remove(&op, key).unwrap()));
            let other = map.tree().get(&op, 1).unwrap().unwrap();
            for key in (0..200).step_by(5) {
                let before = map.tree().get(&op, key).unwrap();
                map.tree().insert(&op, key, other).unwrap();
                // Damage does not change what the closing mark will say.
                map.tree().tally(&op, key, Some(other), before);
            }
        }
        drop(map);
        let entry = crate::kinds().into_iter().find(|entry| entry.name == "dptree-values").unwrap();
        let salvaged = entry.salvage(&pool, "users").unwrap();
        let mut found = BTreeMap::new();
        let findings = salvaged
            .salvage(&mut session, &mut |key, value| {
                assert!(found.insert(key.to_vec(), value.to_vec()).is_none(), "a key twice");
            })
            .unwrap();
        assert!(!findings.is_empty());
        for key in 0..200_u64 {
            let value = found.get(&key.to_be_bytes()[..]);
            assert!(value.is_some() || key % 7 == 0, "{key} is lost");
            // The log says what was removed, but of words that were put there since.
            assert!(value.is_none() || key % 7 != 0 || key % 5 == 0, "{key} was removed");
            assert!(value.is_none_or(|value| *value == key.to_le_bytes()), "{key}");
        }
    }

    /// The closing mark vouches for the words. So the record before the damaged one is not what the key is mapped to.
    #[test]
    fn a_damaged_record_brings_no_older_value_back() {
        let pool: Pool = PoolOptions::new().create_on(HeapBacking::new(8 << 20), Hardware::PAGE_CACHE).unwrap();
        let map = DpTreeValues::open(&pool, "users").unwrap();
        let mut session = pool.session().unwrap();
        {
            let op = session.enter().unwrap();
            (0..20_u64).for_each(|key| assert!(map.0.insert(&op, key, b"old").unwrap()));
            (0..20_u64).for_each(|key| assert!(map.0.update(&op, key, b"new").unwrap()));
            let record = map.tree().get(&op, 7).unwrap().unwrap();
            let words = op.slice("a record", Off::<Word>::new(record), 4).unwrap();
            words.iter().for_each(|word| op.store(word, 0x77, std::sync::atomic::Ordering::Relaxed));
        }
        drop(map);
        let entry = crate::kinds().into_iter().find(|entry| entry.name == "dptree-values").unwrap();
        let mut found = BTreeMap::new();
        let mut add = |key: &[u8], value: &[u8]| _ = found.insert(key.to_vec(), value.to_vec());
        let findings = entry.salvage(&pool, "users").unwrap().salvage(&mut session, &mut add).unwrap();
        assert!(!findings.is_empty());
        for key in 0..20_u64 {
            let expected = (key != 7).then(|| b"new".to_vec());
            assert_eq!(found.get(&key.to_be_bytes()[..]), expected.as_ref(), "{key}");
        }
    }
}
