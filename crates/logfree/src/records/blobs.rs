//! Maps of words with byte strings for values.

use std::cell::RefCell;
use std::fmt;
use std::ops::RangeBounds;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use durix_index::Leftover;
use durix_pmem::pool::Durability;
use durix_pmem::{Extent, Hardware, Kind, Medium, OffsetSet, Op, Pool, Root, Session, Structure};

use super::record::{Limits, Record, Records};
use super::store::RecordStore;
use super::words::RecordMap;
use crate::error::{Error, Result};
use crate::finding::Finding;
use crate::layout::ROOT_PAGE;
use crate::linked::{bst::BstCore, hash::HashCore, list::ListCore, skip::SkipCore};
use crate::map::{OrderedWordMap, WordMap};
use crate::options::Options;
use crate::pages::PageStats;
use crate::pages::units::{Unit, Units, holds_records};
use crate::range::ends;

/// Bytes of values that a step of an ordered walk takes, unless one value has more.
const STEP: usize = 1 << 20;

/// A durable map from 8-byte keys to byte strings, over a map of words: the values lie in records of their own.
///
/// All operations take the calling thread's [`Op`]; an update is durable when it returns. Reads copy. A value has at most
/// [`max_value`](Blobs::max_value) bytes.
///
/// ```
/// use durix_logfree::BlobSkipList;
/// use durix_pmem::{Hardware, PoolOptions, backing::HeapBacking};
///
/// let pool = PoolOptions::new().create_on(HeapBacking::new(64 << 20), Hardware::PAGE_CACHE)?;
/// let letters = BlobSkipList::open(&pool, "letters")?;
/// let mut session = pool.session()?;
/// let op = session.enter()?;
/// letters.insert(&op, 1843, b"Notes by the translator")?;
/// letters.update(&op, 1843, &[b'x'; 100_000])?;
/// let mut value = Vec::new();
/// assert!(letters.get(&op, 1843, &mut value)? && value.len() == 100_000);
/// assert!(letters.remove(&op, 1843)?);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Blobs<S, M: Medium = Hardware> {
    map: S,
    store: RecordStore<M>,
}

/// A [`List`](crate::List) with byte strings for values.
pub type BlobList<M = Hardware> = Blobs<ListCore<M>, M>;
/// A [`HashTable`](crate::HashTable) with byte strings for values.
pub type BlobHash<M = Hardware> = Blobs<HashCore<M>, M>;
/// A [`SkipList`](crate::SkipList) with byte strings for values.
pub type BlobSkipList<M = Hardware> = Blobs<SkipCore<M>, M>;
/// A [`Bst`](crate::Bst) with byte strings for values.
pub type BlobBst<M = Hardware> = Blobs<BstCore<M>, M>;

impl<S: WordMap<M>, M: Medium> fmt::Debug for Blobs<S, M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Blobs").field("root", self.map.root()).finish_non_exhaustive()
    }
}

impl<S, M: Medium> Structure<M> for Blobs<S, M>
where
    S: RecordMap<M> + Structure<M, Options = Options, Error = Error>,
{
    const KIND: Kind = S::BLOBS;
    const TALLIES: bool = true;
    type Options = Options;
    type Error = Error;

    fn create(session: &mut Session<M>, root: &Root<M>, options: &Options) -> Result<()> {
        refuse_link_cache(options)?;
        S::create(session, root, options)
    }

    fn open(session: &mut Session<M>, root: Root<M>, options: &Options) -> Result<Self> {
        refuse_link_cache(options)?;
        let map = S::open(session, root, options)?;
        Self::over(session, map, options)
    }
}

/// Calls `found` with keys and what their records hold, as far as these are whole: their places were found in a map that may be
/// damaged.
pub(crate) fn read_leftovers<M: Medium>(
    op: &Op<'_, M>,
    root: &Root<M>,
    leftovers: &[Leftover],
    found: &mut dyn FnMut(u64, &[u8]),
) {
    read_records(op, &Units::to_read(op, root.clone(), ROOT_PAGE), leftovers, found);
}

fn read_records<M: Medium>(
    op: &Op<'_, M>,
    units: &Units<M>,
    leftovers: &[Leftover],
    found: &mut dyn FnMut(u64, &[u8]),
) {
    let (records, mut bytes) = (Records { op, units, have_marks: false }, Vec::new());
    for Leftover { key, word } in leftovers {
        bytes.clear();
        if records.at(*key, *word).and_then(|record| records.read(&record, &mut bytes)).is_ok() {
            found(*key, &bytes);
        }
    }
}

/// What an update that returns has changed is durable, or its old record could not be used again.
fn refuse_link_cache(options: &Options) -> Result<()> {
    let rule = "maps of byte strings have no link cache";
    match options.link_cache {
        Some((_, buckets)) => Err(Error::BadOption { option: "link_cache", value: buckets as u64, rule }),
        None => Ok(()),
    }
}

/// An update under way.
#[derive(Default)]
struct Change {
    /// The record that is to come into the map.
    new: Option<Record>,
    /// The one that is to leave it; its pages are active.
    old: Option<Record>,
    /// Why there is none.
    error: Option<Error>,
}

impl Change {
    fn note<T>(&mut self, result: Result<T>) -> Option<T> {
        result.map_err(|error| self.error = Some(error)).ok()
    }
}

/// Says whether a record that was found is to be replaced or removed.
type Wanted<'a> = &'a dyn Fn(&Record) -> Result<bool>;

impl<S, M: Medium> Blobs<S, M>
where
    S: RecordMap<M> + Structure<M, Options = Options, Error = Error>,
{
    /// Opens the map named `name`, creating it if it is not there. Recovery takes the time of the map's, and of a look-up for
    /// each record in a page that was active.
    ///
    /// # Errors
    /// [`Error::Pool`]: what the pool says, also where `name` is something else. [`Error::Corrupt`],
    /// [`Error::BadOption`], also for a link cache.
    pub fn open(pool: &Pool<M>, name: &str) -> Result<Arc<Self>> {
        Self::open_with(pool, name, &Options::default())
    }

    /// As [`open`](Self::open), with options. A map that is open already stays as it is.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub fn open_with(pool: &Pool<M>, name: &str, options: &Options) -> Result<Arc<Self>> {
        pool.open_structure(name, options)
    }
}

impl<S: RecordMap<M>, M: Medium> Blobs<S, M> {
    /// Notes in the root entry of a map that is created how large its pages of records are; the caller writes that back, with the fence
    /// before the index goes live. For maps whose [`PAGE_WORD`](RecordMap::PAGE_WORD) is their own.
    pub fn format(op: &Op<'_, M>, root: &Root<M>) {
        let page = Options::default().page.min(root.pool().space().chunk());
        op.store(&root.words(op)[S::PAGE_WORD], page, Relaxed);
    }

    /// Adds the records to a map that is open, recovered, and that nobody else uses yet. A look-up for each record in a page that was
    /// active.
    ///
    /// # Errors
    /// [`Error::Corrupt`].
    pub fn over(session: &mut Session<M>, map: S, options: &Options) -> Result<Self> {
        let (units, found) = Units::open(&session.enter()?, map.root().clone(), S::PAGE_WORD, options)?;
        let blobs = Blobs { map, store: RecordStore(units) };
        blobs.store.0.recover(session, &found, &|op, unit| blobs.is_in_use(op, unit))?;
        Ok(blobs)
    }

    /// Calls `found` with keys and what their records hold, as far as these are whole: keys and offsets were found in a map that may be
    /// damaged.
    pub fn read_leftovers(op: &Op<'_, M>, root: &Root<M>, leftovers: &[Leftover], found: &mut dyn FnMut(u64, &[u8])) {
        read_records(op, &Units::to_read(op, root.clone(), S::PAGE_WORD), leftovers, found);
    }
}

impl<S: WordMap<M>, M: Medium> Blobs<S, M> {
    /// Whether an extent of a map holds records. The rest is the map's of words.
    pub fn holds_records(op: &Op<'_, M>, extent: &Extent) -> bool {
        holds_records(op, extent)
    }

    /// The map of words: keys and offsets of records. It is to be looked at, never changed.
    pub fn words(&self) -> &S {
        &self.map
    }

    /// The records: for changes that are made together. Whoever changes them without the map damages it.
    pub fn store(&self) -> &RecordStore<M> {
        &self.store
    }

    /// Its place in its pool.
    pub fn root(&self) -> &Root<M> {
        self.map.root()
    }

    /// When an update is durable: before it returns.
    pub fn durability(&self) -> Durability {
        Durability::Strict
    }

    /// Bytes of the longest value: about 2 MB with pages of 4 KiB, 4 kB with pages of 256 bytes, 33 MB with pages of 16 KiB and more.
    pub fn max_value(&self) -> u64 {
        Limits { lines: self.store.0.largest() }.bytes()
    }

    pub(super) fn records<'a, 's>(&'a self, op: &'a Op<'s, M>) -> Records<'a, 's, M> {
        Records { op, units: &self.store.0, have_marks: false }
    }

    /// The offset of the record of a key.
    pub(super) fn find(&self, op: &Op<'_, M>, key: u64) -> Result<Option<u64>> {
        self.map.get(op, key)
    }

    /// Appends what a record holds.
    pub(super) fn read(&self, op: &Op<'_, M>, key: u64, off: u64, into: &mut Vec<u8>) -> Result<()> {
        let records = self.records(op);
        records.read(&records.at(key, off)?, into)
    }

    // ---- reading ----

    /// Replaces the content of `into` by the value of a key; returns whether it is there. No fence, unless it was changed so recently
    /// that this read has to make it durable.
    ///
    /// # Errors
    /// [`Error::Corrupt`].
    pub fn get(&self, op: &Op<'_, M>, key: u64, into: &mut Vec<u8>) -> Result<bool> {
        into.clear();
        let Some(off) = self.find(op, key)? else { return Ok(false) };
        self.read(op, key, off, into)?;
        Ok(true)
    }

    /// Whether a key is there; as [`get`](Self::get), without reading the value.
    ///
    /// # Errors
    /// As [`get`](Self::get).
    pub fn contains(&self, op: &Op<'_, M>, key: u64) -> Result<bool> {
        Ok(self.find(op, key)?.is_some())
    }

    // ---- changing ----

    /// Inserts a key with its value, if it is not there; returns whether it was not. Two fences, and one more for pages newly
    /// active; none if the key is there.
    ///
    /// # Errors
    /// [`Error::TooLong`]; [`Error::Pool`] where the pool is full; [`Error::Corrupt`].
    pub fn insert(&self, op: &Op<'_, M>, key: u64, value: &[u8]) -> Result<bool> {
        let change = RefCell::default();
        let done = self.map.insert_with(op, key, || self.make(op, &change, key, value));
        Ok(self.end(op, change, done.map(Some))? == Some(true))
    }

    /// Replaces the value of a key that is there; returns whether it is. Two fences, and one more for each of pages newly active and
    /// a page of the old value that is not; none if the key is not there.
    ///
    /// # Errors
    /// As [`insert`](Self::insert).
    pub fn update(&self, op: &Op<'_, M>, key: u64, value: &[u8]) -> Result<bool> {
        Ok(self.change(op, key, Some(value), &|_| Ok(true))?.is_some())
    }

    /// As [`update`](Self::update); replaces the content of `old` by the value that was replaced.
    ///
    /// # Errors
    /// As [`insert`](Self::insert).
    pub fn replace(&self, op: &Op<'_, M>, key: u64, value: &[u8], old: &mut Vec<u8>) -> Result<bool> {
        self.change_and_read(op, key, Some(value), old)
    }

    /// Replaces the value of a key if it is `expected`; returns whether it was. Fences as for an [`update`](Self::update); none if
    /// it was not.
    ///
    /// # Errors
    /// As [`insert`](Self::insert).
    pub fn compare_and_set(&self, op: &Op<'_, M>, key: u64, expected: &[u8], value: &[u8]) -> Result<bool> {
        Ok(self.change(op, key, Some(value), &|record| self.holds(op, record, expected))? == Some(true))
    }

    /// Removes a key; returns whether it was there. One fence, and one more if a page of the value is not active; none if it was not.
    ///
    /// # Errors
    /// [`Error::Corrupt`]; [`Error::Pool`] where a table of active pages has to grow and the pool is full.
    pub fn remove(&self, op: &Op<'_, M>, key: u64) -> Result<bool> {
        Ok(self.change(op, key, None, &|_| Ok(true))?.is_some())
    }

    /// As [`remove`](Self::remove); replaces the content of `old` by the value that was removed.
    ///
    /// # Errors
    /// As [`remove`](Self::remove).
    pub fn take(&self, op: &Op<'_, M>, key: u64, old: &mut Vec<u8>) -> Result<bool> {
        self.change_and_read(op, key, None, old)
    }

    /// Removes a key if its value is `expected`; returns whether it did. Fences as for a [`remove`](Self::remove).
    ///
    /// # Errors
    /// As [`remove`](Self::remove).
    pub fn compare_and_remove(&self, op: &Op<'_, M>, key: u64, expected: &[u8]) -> Result<bool> {
        Ok(self.change(op, key, None, &|record| self.holds(op, record, expected))? == Some(true))
    }

    fn holds(&self, op: &Op<'_, M>, record: &Record, expected: &[u8]) -> Result<bool> {
        let mut value = Vec::new();
        self.records(op).read(record, &mut value)?;
        Ok(value == expected)
    }

    fn change_and_read(&self, op: &Op<'_, M>, key: u64, value: Option<&[u8]>, old: &mut Vec<u8>) -> Result<bool> {
        old.clear();
        let into = RefCell::new(old);
        let read = |record: &Record| {
            let mut into = into.borrow_mut();
            into.clear();
            self.records(op).read(record, &mut into)?;
            Ok(true)
        };
        let done = self.change(op, key, value, &read)?.is_some();
        if !done {
            // It was there when it was read, and has gone since.
            into.borrow_mut().clear();
        }
        Ok(done)
    }

    /// Replaces the value of a key, or removes the key, if its record is `wanted`. Returns whether it was; `None` if the key is not
    /// there.
    pub(super) fn change(
        &self,
        op: &Op<'_, M>,
        key: u64,
        value: Option<&[u8]>,
        wanted: Wanted<'_>,
    ) -> Result<Option<bool>> {
        let change = RefCell::default();
        let begin = |off| self.begin(op, &change, (key, off), wanted);
        let done = match value {
            Some(value) => {
                let new = |off| if begin(off) { self.make(op, &change, key, value) } else { None };
                self.map.update_with(op, key, new)
            }
            None => self.map.remove_with(op, key, begin),
        };
        self.end(op, change, done.map(|done| done.map(|(_, happened)| happened)))
    }

    /// Writes the record that is to come into the map, once, and starts writing it back; returns its offset.
    fn make(&self, op: &Op<'_, M>, change: &RefCell<Change>, key: u64, value: &[u8]) -> Option<u64> {
        let mut change = change.borrow_mut();
        if change.new.is_none() {
            change.new = self.records(op).write(key, value).map_or_else(|error| change.note(Err(error)), Some);
        }
        change.new.as_ref().map(Record::off)
    }

    /// Looks at the record that is to leave the map, and makes its pages active (LF-I5). Returns whether it is to leave.
    fn begin(&self, op: &Op<'_, M>, change: &RefCell<Change>, (key, off): (u64, u64), wanted: Wanted<'_>) -> bool {
        let mut change = change.borrow_mut();
        if change.old.as_ref().is_some_and(|old| old.off() == off) {
            return true;
        }
        if let Some(old) = change.old.take() {
            self.store.0.cancel(op, &old.units);
        }
        let begun = self.begin_retire(op, key, off, wanted);
        change.old = change.note(begun).flatten();
        change.old.is_some()
    }

    fn begin_retire(&self, op: &Op<'_, M>, key: u64, off: u64, wanted: Wanted<'_>) -> Result<Option<Record>> {
        let records = self.records(op);
        let record = records.at(key, off)?;
        if !wanted(&record)? {
            return Ok(None);
        }
        records.expect(&record)?;
        self.store.0.begin_retire(op, &record.units)?;
        Ok(Some(record))
    }

    /// Settles what becomes of the records of an update: `done` says whether it has happened.
    fn end(&self, op: &Op<'_, M>, change: RefCell<Change>, done: Result<Option<bool>>) -> Result<Option<bool>> {
        let Change { new, old, error } = change.into_inner();
        let none: &[Unit] = &[];
        let (new, old) = (new.as_ref().map_or(none, |r| &r.units[..]), old.as_ref().map_or(none, |r| &r.units[..]));
        // An error of the map means that it is as it was.
        if matches!(done, Ok(Some(true))) {
            self.store.0.linked(op, new);
            // PERSIST LF-I6: the map's fence.
            self.store.0.retire(op, old);
        } else {
            self.store.0.give_back(op, new);
            self.store.0.cancel(op, old);
        }
        error.map_or(done, Err)
    }

    // ---- walking ----

    /// Appends some entries from key `from` on, ascending; returns where to go on, if that was not all. Each entry was there
    /// at some moment of the call. Over a hash table, `from` is a place, 0 for the first, and the order is none; growth hides no entry, and
    /// none comes twice.
    ///
    /// # Errors
    /// [`Error::Corrupt`].
    pub fn walk(&self, op: &Op<'_, M>, from: u64, into: &mut Vec<(u64, Vec<u8>)>) -> Result<Option<u64>> {
        let mut words = Vec::new();
        let walked = self.map.walk(op, from, &mut words);
        let next = self.read_all(op, &words, walked.as_ref().ok().copied().flatten(), into)?;
        // What was found before an error is read first.
        if next.is_some() { Ok(next) } else { walked.map(|_| None) }
    }

    /// Reads the records of entries, and returns where to go on: behind them, or, if they are ordered and long, somewhere between.
    fn read_all(
        &self,
        op: &Op<'_, M>,
        words: &[(u64, u64)],
        next: Option<u64>,
        into: &mut Vec<(u64, Vec<u8>)>,
    ) -> Result<Option<u64>> {
        let mut bytes = 0;
        for (key, off) in words {
            if S::ORDERED && bytes >= STEP {
                return Ok(Some(*key));
            }
            let mut value = Vec::new();
            self.read(op, *key, *off, &mut value)?;
            bytes += value.len();
            into.push((*key, value));
        }
        Ok(next)
    }

    /// Calls `f` for each entry, in the order of keys where the map has one. Each entry was there at some moment of the call; it is no
    /// snapshot. `f` may change the map.
    ///
    /// # Errors
    /// [`Error::Corrupt`].
    pub fn for_each(&self, op: &Op<'_, M>, mut f: impl FnMut(u64, &[u8])) -> Result<()> {
        let (mut entries, mut from) = (Vec::new(), Some(0));
        while let Some(place) = from {
            entries.clear();
            from = self.walk(op, place, &mut entries)?;
            entries.iter().for_each(|(key, value)| f(*key, value));
        }
        Ok(())
    }

    /// Number of keys. Linear; reads no values.
    ///
    /// # Errors
    /// As [`for_each`](Self::for_each).
    pub fn len(&self, op: &Op<'_, M>) -> Result<u64> {
        let (mut words, mut from, mut len) = (Vec::new(), Some(0), 0);
        while let Some(place) = from {
            words.clear();
            from = self.map.walk(op, place, &mut words)?;
            len += words.len() as u64;
        }
        Ok(len)
    }

    /// Whether there is no key. Linear in the number of buckets, where there are any.
    ///
    /// # Errors
    /// As [`for_each`](Self::for_each).
    pub fn is_empty(&self, op: &Op<'_, M>) -> Result<bool> {
        Ok(self.len(op)? == 0)
    }

    /// How the memory of the nodes is used; that of the records does not count.
    pub fn page_stats(&self, op: &Op<'_, M>) -> PageStats {
        self.map.page_stats(op)
    }

    // ---- recovery and check ----

    /// Whether the map leads to the record of a unit, and the record to the unit.
    fn is_in_use(&self, op: &Op<'_, M>, unit: Unit) -> Result<bool> {
        let records = self.records(op);
        let Some((key, head)) = records.owner(unit)? else { return Ok(false) };
        // PERSIST LF-I8: the map's fence.
        if self.find(op, key)? != Some(head) {
            return Ok(false);
        }
        // The map leads to it, so it is whole.
        Ok(records.at(key, head)?.units.contains(&unit))
    }

    /// Compares what is allocated with what is reachable, nodes and records, and keys with their records. No other operation may be open
    /// meanwhile.
    ///
    /// # Errors
    /// [`Error::Corrupt`].
    pub fn check(&self, op: &Op<'_, M>) -> Result<Vec<Finding>> {
        let mut findings = self.map.check(op)?;
        let (mut in_use, mut words, mut from) = (OffsetSet::default(), Vec::new(), Some(0));
        let mut bytes = Vec::new();
        while let Some(place) = from {
            words.clear();
            from = self.map.walk(op, place, &mut words)?;
            for (key, off) in &words {
                let record = self.records(op).at(*key, *off)?;
                self.records(op).expect(&record)?;
                bytes.clear();
                if self.records(op).read(&record, &mut bytes).is_err() {
                    findings.push(Finding::Damaged { off: *off });
                }
                let twice = record.units.iter().filter(|unit| !in_use.insert(unit.off));
                findings.extend(twice.map(|unit| Finding::Misplaced { off: unit.off, key: *key }));
            }
        }
        findings.extend(self.store.0.check(op, &in_use));
        Ok(findings)
    }
}

/// What only ordered maps can do.
impl<S: OrderedWordMap<M>, M: Medium> Blobs<S, M> {
    /// As [`walk`](Blobs::walk), from key `to` down, descending. `into` is empty at first.
    ///
    /// # Errors
    /// [`Error::Corrupt`].
    pub fn walk_back(&self, op: &Op<'_, M>, to: u64, into: &mut Vec<(u64, Vec<u8>)>) -> Result<Option<u64>> {
        let mut words = Vec::new();
        let next = self.map.walk_back(op, to, &mut words)?;
        self.read_all(op, &words, next, into)
    }

    /// Calls `f` for each entry of a range, ascending. Each entry was there at some moment of the call; it is no snapshot.
    /// `f` may change the map.
    ///
    /// # Errors
    /// [`Error::Corrupt`].
    pub fn range(&self, op: &Op<'_, M>, range: impl RangeBounds<u64>, mut f: impl FnMut(u64, &[u8])) -> Result<()> {
        let Some((first, last)) = ends(&range) else { return Ok(()) };
        let (mut entries, mut from) = (Vec::new(), Some(first));
        while let Some(place) = from.filter(|from| *from <= last) {
            entries.clear();
            from = self.walk(op, place, &mut entries)?;
            entries.iter().filter(|(key, _)| *key <= last).for_each(|(key, value)| f(*key, value));
        }
        Ok(())
    }

    /// As [`range`](Self::range), descending.
    ///
    /// # Errors
    /// [`Error::Corrupt`].
    pub fn range_rev(&self, op: &Op<'_, M>, range: impl RangeBounds<u64>, mut f: impl FnMut(u64, &[u8])) -> Result<()> {
        let Some((first, last)) = ends(&range) else { return Ok(()) };
        let (mut entries, mut from) = (Vec::new(), Some(last));
        while let Some(place) = from.filter(|from| *from >= first) {
            entries.clear();
            from = self.walk_back(op, place, &mut entries)?;
            entries.iter().filter(|(key, _)| *key >= first).for_each(|(key, value)| f(*key, value));
        }
        Ok(())
    }
}

impl<M: Medium> BlobHash<M> {
    /// Doubles the number of buckets: see [`HashTable::grow`](crate::HashTable::grow).
    ///
    /// # Errors
    /// As [`HashTable::grow`](crate::HashTable::grow).
    pub fn grow(&self, op: &Op<'_, M>) -> Result<()> {
        self.map.grow(op).map(drop)
    }
}
