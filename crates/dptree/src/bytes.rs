//! Keys and values of any length: the tree leads from the first eight bytes of a key to the keys that begin with them ([`group`](crate::group)).
//!
//! The persist order is that of values of any length, where a group's new records take the place of one record:
//!
//! | edge | kept by | a crash between leaves | recovery |
//! |---|---|---|---|
//! | as DP-W1: all new records of a change, and the bits of their units < a log record, or a slot, with the new root | flush+fence | units that nothing leads to, in active pages | frees them |
//! | as DP-W2: the change of the root < units of records that it has replaced are used again | the change has returned | the old group, or units as above | as above |
//! | DP-M1 a mark that says that an entry is gone < the removal returns | flush+fence | the mark, or not | the removal in flight has happened or not |
//! | DP-M2 a mark that somebody has met < the answer that rests on it | flush+fence | the same again | the same again |
//!
//! Recovery looks the word up for each record in a page that was active, and follows the group from its root to the record.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::ops::Bound;
use std::sync::Arc;

use durix_index::implement::{Walk, alone, writable};
use durix_index::{
    Batch, Cursor, Direction, Finding, Index, IndexStats, KeyRange, Leftover, Lengths, Limits, Openable, OrderedIndex,
    Result,
};
use durix_logfree::{Error, MAX_KEY, MAX_VALUE, Record, RecordStore};
use durix_pmem::pool::Durability;
use durix_pmem::{Hardware, Kind, Medium, Op, Pool, Root, Session, Structure};

use crate::gaps::Gap;
use crate::group::{Edit, Group, Look, Met, word_of};
use crate::layout::{RECORDS_LAYOUT_VERSION, root_words};
use crate::values::of_tree;
use crate::{DpTree, MAX_BATCH, Options, leftovers, together};

/// The root word that holds the bytes of a page of records.
const PAGE_WORD: usize = 5;
/// Bytes of an entry before its key.
const LENGTHS: usize = 8;
/// Of keys and values, in pages of records of the usual size.
const LIMITS: Limits =
    Limits { key: Lengths::UpTo(MAX_KEY), value: Lengths::UpTo(MAX_VALUE - LENGTHS - MAX_KEY), batch: MAX_BATCH };
/// Words that a step of a walk looks at, and pairs that it takes at most.
const STEP: usize = 32;
/// Lookups that wait for memory together.
const TOGETHER: usize = 16;
/// Bytes of values after which a step of a walk ends.
const STEP_BYTES: usize = 1 << 20;

/// A strict ordered map from byte strings to byte strings, both of any length, 0 included: a [`DpTree`] of the first eight bytes of keys, which lead to
/// the keys that begin with them.
///
/// Its operations are those of [`Index`] and [`OrderedIndex`]. An update is durable when it returns: two fences, and one more for each of pages
/// newly active and pages of replaced records that are not. A key that shares its first eight bytes with n others costs three to six lines for
/// each level of a tree of up to fourteen children a node. Merges are a service of the pool, as those of a [`DpTree`].
///
/// ```
/// use durix_dptree::DpTreeBytes;
/// use durix_index::{Index, OrderedIndex};
/// use durix_pmem::PoolOptions;
///
/// # let dir = tempfile::tempdir()?;
/// # let path = dir.path().join("users.pool");
/// let pool = PoolOptions::new().open_or_create(&path)?;
/// let users = DpTreeBytes::open(&pool, "users")?;
/// let mut session = pool.session()?;
/// let op = session.enter()?;
/// users.insert(&op, b"user:ada", b"countess of Lovelace")?; // durable
/// let (mut key, mut value) = (Vec::new(), Vec::new());
/// assert!(users.first(&op, &mut key, &mut value)? && key == b"user:ada");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct DpTreeBytes<M: Medium = Hardware> {
    tree: Arc<DpTree<M>>,
    records: RecordStore<M>,
}

impl<M: Medium> fmt::Debug for DpTreeBytes<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("DpTreeBytes").field(&self.tree).finish()
    }
}

fn with_records(options: &Options) -> Options {
    Options { with_records: true, ..options.clone() }
}

impl<M: Medium> Structure<M> for DpTreeBytes<M> {
    const KIND: Kind = Kind { tag: *b"DPTREE B", version: RECORDS_LAYOUT_VERSION };
    const TALLIES: bool = true;
    type Options = Options;
    type Error = Error;

    fn create(session: &mut Session<M>, root: &Root<M>, options: &Options) -> durix_logfree::Result<()> {
        DpTree::format(session, root, &with_records(options)).map_err(of_tree)?;
        let op = session.enter()?;
        RecordStore::format(&op, root, PAGE_WORD);
        op.write_back(root_words(&op, root)); // the pool fences before the index goes live
        Ok(())
    }

    fn open(session: &mut Session<M>, root: Root<M>, options: &Options) -> durix_logfree::Result<Self> {
        let tree = Arc::new(DpTree::recover(session, root.clone(), &with_records(options)).map_err(of_tree)?);
        let met = RefCell::new(Met::default());
        let leads_from = |map: &Self, op: &Op<'_, M>, word, off| {
            let root = map.tree.get(op, word).map_err(of_tree)?;
            root.map_or(Ok(false), |root| map.group(op, word).leads_to(root, off, &mut met.borrow_mut()))
        };
        let leads = |map: &Self, op: &Op<'_, M>, word, off| {
            if leads_from(map, op, word, off)? {
                return Ok(true);
            }
            // Where the word of a record in use is damaged, its keys know it. It stays as it is, for the check.
            let other = map.group(op, word).other_word(off)?;
            other.map_or(Ok(false), |word| leads_from(map, op, word, off))
        };
        let make = |records| DpTreeBytes { tree, records };
        RecordStore::open(session, &root, PAGE_WORD, make, leads, |map| &map.records)
    }

    fn opened(self: &Arc<Self>) {
        Structure::opened(&self.tree);
    }
}

/// What is to be done with a key.
#[derive(Clone, Copy)]
enum Wish<'a> {
    Insert(&'a [u8]),
    InsertNew(&'a [u8]),
    Update(&'a [u8]),
    Remove,
    Swap(&'a [u8], Option<&'a [u8]>),
}

/// What was found of a key, and done with it.
#[derive(Clone, Copy, Debug, Default)]
struct Done {
    was_there: bool,
    is_changed: bool,
}

/// A change under way.
#[derive(Default)]
struct Change {
    edit: Edit,
    /// Records that were announced to go.
    announced: Vec<Record>,
    done: Done,
    error: Option<Error>,
}

impl<M: Medium> DpTreeBytes<M> {
    /// Opens the map named `name`, creating it if it is not there. Recovers it: reads a line for each leaf and the log, and looks for each
    /// record in a page that was active.
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

    /// The tree of first bytes and roots of groups: to be looked at, and to merge. Whoever changes it damages the map.
    #[doc(hidden)]
    pub fn tree(&self) -> &DpTree<M> {
        &self.tree
    }

    fn group<'a, 's>(&'a self, op: &'a Op<'s, M>, word: u64) -> Group<'a, 's, M> {
        Group { op, records: &self.records, word }
    }

    fn value(&self, op: &Op<'_, M>, key: &[u8]) -> durix_logfree::Result<Option<Vec<u8>>> {
        let word = word_of(key, 0);
        let Some(root) = self.tree.get(op, word).map_err(of_tree)? else { return Ok(None) };
        let group = self.group(op, word);
        group.find(root, key)?.map(|entry| group.value(entry)).transpose()
    }

    fn has(&self, op: &Op<'_, M>, key: &[u8]) -> durix_logfree::Result<bool> {
        let word = word_of(key, 0);
        let root = self.tree.get(op, word).map_err(of_tree)?;
        root.map_or(Ok(false), |root| Ok(self.group(op, word).find(root, key)?.is_some()))
    }

    /// Does with a key what is wished, durably.
    fn alter(&self, op: &Op<'_, M>, key: &[u8], wish: Wish<'_>) -> Result<Done> {
        let word = word_of(key, 0);
        match self.alter_group(op, word, key, wish, false) {
            // Removals need new records: where there is no space for them, they do without.
            Err(error) if is_full(&error) && matches!(wish, Wish::Remove | Wish::Swap(_, None)) => {
                Ok(self.alter_group(op, word, key, wish, true)?)
            }
            done => Ok(done?),
        }
    }

    fn alter_group(
        &self,
        op: &Op<'_, M>,
        word: u64,
        key: &[u8],
        wish: Wish<'_>,
        in_place: bool,
    ) -> durix_logfree::Result<Done> {
        let group = self.group(op, word);
        let change: RefCell<Change> = RefCell::default();
        let decide = |root: Option<u64>| {
            let mut change = change.borrow_mut();
            self.undo(op, std::mem::take(&mut *change));
            let decided = change.decide(&group, root, key, wish, in_place);
            match decided {
                Ok(new) => new,
                Err(error) => {
                    change.error = Some(error);
                    None
                }
            }
        };
        let changed = self.tree.change_anyhow(op, word, decide);
        let mut change = change.into_inner();
        let (error, done) = (change.error.take(), change.done);
        if let Ok(Some(_)) = changed {
            self.records.linked(op, &change.edit.written);
            // PERSIST LF-I6: the tree's fence.
            self.records.retire(op, &change.announced);
        } else {
            self.undo(op, change);
        }
        match error {
            Some(error) => Err(error),
            None => changed.map(|_| done).map_err(of_tree),
        }
    }

    /// Takes a change back that the tree has not made.
    fn undo(&self, op: &Op<'_, M>, change: Change) {
        self.records.cancel(op, &change.announced);
        self.records.give_back(op, &change.edit.written);
    }
}

impl Change {
    /// What a group's word is to lead to; `None` where it stays as it is. Everything else is durable then.
    fn decide<M: Medium>(
        &mut self,
        group: &Group<'_, '_, M>,
        root: Option<u64>,
        key: &[u8],
        wish: Wish<'_>,
        in_place: bool,
    ) -> durix_logfree::Result<Option<Option<u64>>> {
        let found = root.map_or(Ok(None), |root| group.find(root, key))?;
        self.done.was_there = found.is_some();
        let new = match (wish, found) {
            (Wish::Insert(new), _) | (Wish::InsertNew(new), None) | (Wish::Update(new), Some(_)) => Some(new),
            (Wish::Remove, Some(_)) => None,
            (Wish::Swap(expected, new), Some(entry)) => {
                if group.value(entry)? != expected {
                    return Ok(None);
                }
                new
            }
            _ => return Ok(None),
        };
        let root = match (new, root) {
            (None, Some(root)) if in_place => {
                if !self.edit.remove_in_place(group, root, key)? {
                    self.done.is_changed = true;
                    return Ok(None);
                }
                None
            }
            _ => self.edit.change(group, root, key, new)?,
        };
        self.announced = group.records.begin_retire(group.op, group.word, &self.edit.replaced)?;
        self.done.is_changed = true;
        if !self.edit.written.is_empty() {
            group.op.fence(); // PERSIST DP-W1: flush+fence
        }
        Ok(Some(root))
    }
}

fn is_full(error: &Error) -> bool {
    matches!(error, Error::Pool(error) if error.is_no_room())
}

/// Keys and values as a walk lends them.
type Pairs = Vec<(Vec<u8>, Vec<u8>)>;

/// Where a walk goes on.
enum Place {
    /// At a word.
    Word(u64),
    /// At a key, or beyond it.
    Key(Bound<Vec<u8>>),
}

/// Where a walk over a range begins, and the bound at which it ends.
fn place_of(range: &KeyRange, direction: Direction) -> Place {
    let bound = match direction {
        Direction::Forward => &range.lower,
        Direction::Backward => &range.upper,
    };
    match bound {
        Bound::Unbounded if direction == Direction::Forward => Place::Word(0),
        Bound::Unbounded => Place::Word(u64::MAX),
        bound => Place::Key(bound.clone()),
    }
}

impl<M: Medium> DpTreeBytes<M> {
    /// Appends some pairs of a range from a place on; returns where to go on.
    fn step(
        &self,
        op: &Op<'_, M>,
        place: Place,
        (range, direction): (&KeyRange, Direction),
        into: &mut Pairs,
    ) -> durix_logfree::Result<Option<Place>> {
        let (first, from) = match &place {
            Place::Word(word) => (*word, None),
            Place::Key(Bound::Included(key) | Bound::Excluded(key)) => (word_of(key, 0), Some(&key[..])),
            Place::Key(Bound::Unbounded) => return Ok(None),
        };
        let excluded = match &place {
            Place::Key(Bound::Excluded(key)) => Some(&key[..]),
            _ => None,
        };
        let mut words = Vec::new();
        let next = self.tree.walk(op, first, direction, STEP, &mut words).map_err(of_tree)?;
        let (mut bytes, mut is_over) = (0, false);
        for (word, root) in words {
            let group = self.group(op, word);
            let mut visit = |entry: crate::group::Entry| {
                if excluded == Some(entry.key()) {
                    return Ok(true);
                }
                if !range.contains(entry.key()) {
                    is_over = true;
                    return Ok(false);
                }
                let key = entry.key().to_vec();
                let value = group.value(entry)?;
                bytes += key.len() + value.len();
                into.push((key, value));
                Ok(into.len() < STEP && bytes < STEP_BYTES)
            };
            let ended = group.walk(root, direction, from.filter(|_| word == first), &mut visit);
            if !ended? {
                let last = into.last().filter(|_| !is_over).map(|(key, _)| key.clone());
                return Ok(last.map(|key| Place::Key(Bound::Excluded(key))));
            }
        }
        Ok(next.map(Place::Word))
    }

    /// Looks up to [`TOGETHER`] keys up. Each step asks for what the next step reads.
    fn look_up(&self, op: &Op<'_, M>, keys: &[&[u8]]) -> durix_logfree::Result<Vec<Option<Vec<u8>>>> {
        let words: Vec<u64> = keys.iter().map(|key| word_of(key, 0)).collect();
        let mut looks = Vec::with_capacity(keys.len());
        let ask = |look: &Look| _ = look.record().inspect(|off| self.records.prefetch(op, *off));
        let noted = self.tree.get_many(op, &words, |_, root| {
            looks.push(root.map_or(Look::Done(None), Look::Root));
            looks.last().into_iter().for_each(ask);
        });
        noted.map_err(of_tree)?;
        while looks.iter().any(|look| look.record().is_some()) {
            looks.iter().filter_map(Look::record).for_each(|off| self.records.prefetch_rest(op, off));
            for ((look, key), word) in looks.iter_mut().zip(keys).zip(&words) {
                *look = self.group(op, *word).look_on(std::mem::replace(look, Look::Done(None)), key)?;
                ask(look);
            }
        }
        let value = |(look, word): (Look, &u64)| match look {
            Look::Done(Some(entry)) => self.group(op, *word).value(entry).map(Some),
            _ => Ok(None),
        };
        looks.into_iter().zip(&words).map(value).collect()
    }

    /// Calls `found` with the word and the root of some groups from a word on; returns where to go on.
    fn for_each_group(
        &self,
        op: &Op<'_, M>,
        from: u64,
        found: &mut dyn FnMut(u64, u64) -> durix_logfree::Result<()>,
    ) -> durix_logfree::Result<Option<u64>> {
        let mut words = Vec::new();
        let next = self.tree.walk(op, from, Direction::Forward, STEP, &mut words).map_err(of_tree)?;
        words.into_iter().try_for_each(|(word, root)| found(word, root))?;
        Ok(next)
    }
}

impl<M: Medium> Index<M> for DpTreeBytes<M> {
    fn root(&self) -> &Root<M> {
        self.tree.root()
    }

    fn durability(&self) -> Durability {
        Durability::Strict
    }

    fn limits(&self) -> Limits {
        let most = usize::try_from(self.records.most_bytes()).unwrap_or(usize::MAX);
        Limits { value: Lengths::UpTo(most.saturating_sub(LENGTHS + MAX_KEY)), ..LIMITS }
    }

    fn as_ordered(&self) -> Option<&dyn OrderedIndex<M>> {
        Some(self)
    }

    fn get(&self, op: &Op<'_, M>, key: &[u8], into: &mut Vec<u8>) -> Result<bool> {
        into.clear();
        self.limits().check(key, None)?;
        let value = self.value(op, key)?;
        value.as_ref().inspect(|value| into.extend_from_slice(value));
        Ok(value.is_some())
    }

    fn contains(&self, op: &Op<'_, M>, key: &[u8]) -> Result<bool> {
        self.limits().check(key, None)?;
        Ok(self.has(op, key)?)
    }

    fn get_many(&self, op: &Op<'_, M>, keys: &[&[u8]], found: &mut dyn FnMut(usize, Option<&[u8]>)) -> Result<()> {
        let limits = self.limits();
        keys.iter().try_for_each(|key| limits.check(key, None))?;
        for (number, keys) in keys.chunks(TOGETHER).enumerate() {
            for (i, value) in self.look_up(op, keys)?.iter().enumerate() {
                found(number * TOGETHER + i, value.as_deref());
            }
        }
        Ok(())
    }

    fn count(&self, session: &mut Session<M>) -> Result<u64> {
        let (mut count, mut from) = (0, Some(0));
        while let Some(word) = from {
            let op = session.enter()?;
            from = self.for_each_group(&op, word, &mut |word, root| {
                count += self.group(&op, word).count(root)?;
                Ok(())
            })?;
        }
        Ok(count)
    }

    fn cursor(&self) -> Box<dyn Cursor<M> + '_> {
        self.range(&KeyRange::all(), Direction::Forward)
    }

    fn insert(&self, op: &Op<'_, M>, key: &[u8], new: &[u8]) -> Result<bool> {
        writable(self)?;
        self.limits().check(key, Some(new))?;
        Ok(!self.alter(op, key, Wish::Insert(new))?.was_there)
    }

    fn insert_if_absent(&self, op: &Op<'_, M>, key: &[u8], new: &[u8]) -> Result<bool> {
        writable(self)?;
        self.limits().check(key, Some(new))?;
        Ok(self.alter(op, key, Wish::InsertNew(new))?.is_changed)
    }

    fn update(&self, op: &Op<'_, M>, key: &[u8], new: &[u8]) -> Result<bool> {
        writable(self)?;
        self.limits().check(key, Some(new))?;
        Ok(self.alter(op, key, Wish::Update(new))?.is_changed)
    }

    fn compare_and_set(&self, op: &Op<'_, M>, key: &[u8], expected: Option<&[u8]>, new: Option<&[u8]>) -> Result<bool> {
        writable(self)?;
        self.limits().check(key, new)?;
        Ok(match (expected, new) {
            (None, None) => !self.has(op, key)?,
            (None, Some(new)) => self.alter(op, key, Wish::InsertNew(new))?.is_changed,
            (Some(old), new) if new == expected => self.value(op, key)?.is_some_and(|value| value == old),
            (Some(old), new) => self.alter(op, key, Wish::Swap(old, new))?.is_changed,
        })
    }

    fn remove(&self, op: &Op<'_, M>, key: &[u8]) -> Result<bool> {
        writable(self)?;
        self.limits().check(key, None)?;
        Ok(self.alter(op, key, Wish::Remove)?.is_changed)
    }

    fn apply(&self, op: &Op<'_, M>, batch: &Batch) -> Result<()> {
        writable(self)?;
        together::check(&self.limits(), batch)?;
        let mut groups: BTreeMap<u64, BTreeMap<&[u8], Option<&[u8]>>> = BTreeMap::new();
        for (key, new) in batch.iter() {
            groups.entry(word_of(key, 0)).or_default().insert(key, new);
        }
        let words: Vec<u64> = groups.keys().copied().collect();
        let mut change = |edit: &mut Edit, word, old: Option<u64>| {
            let changes = groups.get(&word).into_iter().flatten().map(|(key, new)| (*key, *new));
            let root = edit.change_all(&self.group(op, word), old, changes)?;
            Ok((root != old).then_some(root))
        };
        Ok(self.tree.change_roots(op, &self.records, &words, &mut change)?)
    }

    fn batch_is_atomic(&self) -> bool {
        true
    }

    fn check(&self, session: &mut Session<M>) -> Result<Vec<Finding>> {
        alone(self, session, |op| {
            let mut findings = self.tree.check(op);
            let (mut in_use, mut from) = (Vec::new(), Some(0));
            while let Some(word) = from {
                from = self.for_each_group(op, word, &mut |word, root| {
                    let mut wrong = |error: Error| match error {
                        Error::Corrupt { what, offset, found } => {
                            findings.push(Finding { offset, what: format!("{what} at {offset:#x} holds {found:#x}") });
                        }
                        error => findings.push(Finding { offset: root, what: error.to_string() }),
                    };
                    self.group(op, word).survey(root, &mut |off| in_use.push((word, off)), &mut wrong);
                    Ok(())
                })?;
            }
            let of_record = |found: durix_logfree::Finding| Finding { offset: found.offset(), what: found.to_string() };
            findings.extend(self.records.check(op, &in_use)?.into_iter().map(of_record));
            Ok(findings)
        })
    }

    fn stats(&self, session: &mut Session<M>) -> Result<IndexStats> {
        let keys = Index::count(self, session)?;
        let op = session.enter()?;
        let (stats, root) = (self.tree.stats(&op), self.tree.root());
        let all: u64 = root.pool().space().extents(&op, root.owner()).iter().map(|extent| extent.len).sum();
        let records = all - (stats.unit_bytes + stats.log_bytes).min(all);
        let stats_of = IndexStats::new(keys, all, Some(stats.volatile_bytes));
        let stats_of = stats_of.with("first eight bytes of keys", stats.keys).with("bytes for records", records);
        let stats_of = stats_of.with("ranges", stats.ranges).with("leaves", stats.leaves);
        let stats_of = stats_of.with("buffered", stats.active + stats.frozen);
        Ok(stats_of.with("log pages", stats.log_pages).with("free log pages", stats.free_log_pages))
    }

    fn dump(&self, op: &Op<'_, M>, out: &mut dyn fmt::Write) -> fmt::Result {
        self.tree.dump(op, out)?;
        let mut cursor = self.cursor();
        while let Some((key, value)) = cursor.next(op).map_err(|_| fmt::Error)? {
            writeln!(out, "{} {}", key.escape_ascii(), value.escape_ascii())?;
        }
        Ok(())
    }
}

impl<M: Medium> OrderedIndex<M> for DpTreeBytes<M> {
    fn range(&self, range: &KeyRange, direction: Direction) -> Box<dyn Cursor<M> + '_> {
        let first = (!range.is_empty()).then(|| place_of(range, direction));
        let range = range.clone();
        let step =
            move |op: &Op<'_, M>, place, into: &mut Pairs| Ok(self.step(op, place, (&range, direction), into)?);
        Box::new(Walk::new(Some(direction), first, step))
    }
}

impl<M: Medium> Openable<M> for DpTreeBytes<M> {
    const LIMITS: Limits = LIMITS;
    const HAS_LEFTOVERS: bool = true;

    fn leftovers(op: &Op<'_, M>, root: &Root<M>) -> Vec<Leftover> {
        let records = RecordStore::to_read(op, root.clone(), PAGE_WORD);
        let (heads, group) = (records.heads(op), |word| Group { op, records: &records, word });
        let gaps = RefCell::<BTreeMap<u64, Vec<Gap>>>::default();
        let known = |all: &[Leftover]| {
            let gaps_of = |left: &Leftover| (left.key, group(left.key).gaps(left.word));
            gaps.replace(all.iter().map(gaps_of).collect());
            gaps.borrow().iter().filter(|(_, gaps)| !gaps.contains(&Gap::ALL)).map(|(word, _)| *word).collect()
        };
        // Each record of an entry holds its whole key. So where a part of a group cannot be read, or nothing leads to a group, its
        // records come last, one by one.
        let more = |is_lost: &dyn Fn(u64) -> bool| {
            let gaps = gaps.borrow();
            let mut found = BTreeSet::new();
            for (word, off) in heads.iter().copied() {
                let of_group = gaps.get(&word).map(Vec::as_slice);
                let gaps = if is_lost(word) { &[Gap::ALL] } else { of_group.unwrap_or_default() };
                group(word).entries_in(gaps, off, &mut |off| _ = found.insert((word, off)));
            }
            found.into_iter().map(|(key, word)| Leftover { key, word }).collect()
        };
        leftovers::read_with_records(op, root, known, &heads, more)
    }

    fn read_leftovers(op: &Op<'_, M>, root: &Root<M>, leftovers: &[Leftover], found: &mut dyn FnMut(&[u8], &[u8])) {
        let records = RecordStore::to_read(op, root.clone(), PAGE_WORD);
        for Leftover { key, word } in leftovers {
            Group { op, records: &records, word: *key }.read_what_is_whole(*word, found);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::Ordering::Relaxed;

    use durix_pmem::backing::HeapBacking;
    use durix_pmem::{Off, PoolOptions, Word};

    use super::*;
    use crate::group::{Loaded, Node};

    fn pool() -> Pool {
        PoolOptions::new().create_on(HeapBacking::new(8 << 20), Hardware::PAGE_CACHE).unwrap()
    }

    /// A crash can leave the first words of a long record in a unit whose other words are those of an entry: the links to its parts lead anywhere.
    #[test]
    fn a_long_record_that_was_begun_where_an_entry_was_keeps_no_map_from_opening() {
        let pool = pool();
        let map = DpTreeBytes::open(&pool, "users").unwrap();
        let mut session = pool.session().unwrap();
        let off = {
            let op = session.enter().unwrap();
            for key in [&b"user:001a"[..], b"user:001b", b"user:001c"] {
                map.insert(&op, key, b"12345678").unwrap();
            }
            let word = word_of(b"user:001c", 0);
            let root = map.tree.get(&op, word).unwrap().unwrap();
            let mut all = Vec::new();
            map.group(&op, word).survey(root, &mut |off| all.push(off), &mut |error| panic!("{error}"));
            assert!(map.remove(&op, b"user:001c").unwrap());
            // The entry's record: nothing leads to it any more.
            *all.iter().filter(|off| **off != root).max().unwrap()
        };
        {
            let op = session.enter().unwrap();
            let words = op.slice("a record", Off::<Word>::new(off), 2).unwrap();
            op.store(&words[0], 5000, Relaxed);
        }
        drop(map);
        let map = DpTreeBytes::open(&pool, "users").unwrap();
        assert_eq!(Index::check(&*map, &mut session).unwrap(), []);
        let op = session.enter().unwrap();
        assert!(map.has(&op, b"user:001a").unwrap() && map.has(&op, b"user:001b").unwrap());
        assert!(!map.has(&op, b"user:001c").unwrap());
    }

    /// The root of a group is lost, with all that leads to its entries: their records have their keys.
    #[test]
    fn a_lost_root_of_a_group_costs_no_key() {
        let (lost, _) = damage_and_salvage(|_, op, root| overwrite(op, root));
        assert_eq!(lost, []);
    }

    /// The slot of a leaf that leads to a group leads elsewhere.
    #[test]
    fn a_group_that_nothing_leads_to_costs_no_key() {
        let (lost, back) = damage_and_salvage(|map, op, root| {
            let word = word_of(b"user:000", 0);
            assert!(!map.tree.insert(op, word, root + 64).unwrap());
            // Damage does not change what the closing mark will say. So it tells which root this was.
            map.tree.tally(op, word, Some(root + 64), Some(root));
        });
        assert_eq!((lost, back), (Vec::new(), Vec::new()));
    }

    /// What the other nodes lead to is known, so what was removed there stays away.
    #[test]
    fn a_lost_node_of_a_group_costs_no_key_and_brings_none_of_other_nodes_back() {
        let (lost, back) = damage_and_salvage(|map, op, root| {
            overwrite(op, leaf_of(map, op, root).off);
            // By the closing mark there was another group, which is lost: that does not make this one doubtful.
            map.tree.tally(op, 77, None, Some(root + 64));
        });
        assert_eq!(lost, []);
        let span = back.first().zip(back.last()).map_or(0, |(first, last)| last - first);
        // A node of 14 children, and the removed keys between them.
        assert!(span < 2 * crate::group::MOST as u32, "{back:?}");
    }

    #[test]
    fn a_lost_entry_of_a_group_brings_no_other_one_back() {
        let (lost, back) = damage_and_salvage(|map, op, root| overwrite(op, leaf_of(map, op, root).children[3].off));
        assert_eq!((lost.len(), back), (1, Vec::new()));
    }

    fn overwrite(op: &Op<'_, Hardware>, record: u64) {
        let words = op.slice("a record", Off::<Word>::new(record), 8).unwrap();
        words.iter().for_each(|word| op.store(word, 0x77, Relaxed));
    }

    /// A node of level 0, from the middle of a group.
    fn leaf_of(map: &DpTreeBytes, op: &Op<'_, Hardware>, root: u64) -> Node {
        match map.group(op, word_of(b"user:000", 0)).load(root) {
            Ok(Loaded::Node(node)) if node.level == 0 => node,
            Ok(Loaded::Node(node)) => leaf_of(map, op, node.children[node.children.len() / 2].off),
            _ => panic!("a group of many keys"),
        }
    }

    /// Damages a group of which every fifth key was removed. Returns the keys that repair does not save, and the removed ones that come back.
    fn damage_and_salvage(damage: fn(&DpTreeBytes, &Op<'_, Hardware>, u64)) -> (Vec<u32>, Vec<u32>) {
        let pool = pool();
        let map = DpTreeBytes::open(&pool, "users").unwrap();
        let mut session = pool.session().unwrap();
        let key = |number: u32| format!("user:000{number:05}").into_bytes();
        let root = {
            let op = session.enter().unwrap();
            (0..500).for_each(|number| _ = map.insert(&op, &key(number), &number.to_le_bytes()).unwrap());
            (0..500).step_by(5).for_each(|number| _ = map.remove(&op, &key(number)).unwrap());
            map.tree.get(&op, word_of(&key(1), 0)).unwrap().unwrap()
        };
        damage(&map, &session.enter().unwrap(), root);
        drop(map);
        let entry = crate::kinds().into_iter().find(|entry| entry.name == "dptree-bytes").unwrap();
        let salvaged = entry.salvage(&pool, "users").unwrap();
        let mut found = BTreeMap::new();
        let findings = salvaged
            .salvage(&mut session, &mut |key, value| {
                assert!(found.insert(key.to_vec(), value.to_vec()).is_none(), "a key twice");
            })
            .unwrap();
        assert!(!findings.is_empty());
        let (mut lost, mut back) = (Vec::new(), Vec::new());
        for number in 0..500_u32 {
            match found.remove(&key(number)) {
                Some(value) => assert_eq!(value, number.to_le_bytes(), "never another value"),
                None if number % 5 == 0 => continue,
                None => lost.push(number),
            }
            if number % 5 == 0 {
                back.push(number);
            }
        }
        assert!(found.is_empty());
        (lost, back)
    }

    /// Marks that say that these children are gone.
    fn marks(gone: u32) -> u64 {
        let low = 0xffff_0000 | gone;
        u64::from(low) | u64::from(!low) << 32
    }

    /// Writes a node: its level, and its children, each with its first entry.
    fn node(
        map: &DpTreeBytes,
        op: &Op<'_, Hardware>,
        word: u64,
        (level, gone): (u32, u32),
        children: &[(u64, u64)],
    ) -> u64 {
        let mut bytes =
            [marks(gone).to_le_bytes(), (u64::from(level) | (children.len() as u64) << 32).to_le_bytes()].concat();
        for (off, first) in children {
            let entry = map.group(op, word).first_key(*first).unwrap();
            let words = [word_of(&entry, 8), *off, *first];
            words[..if level == 0 { 2 } else { 3 }]
                .iter()
                .for_each(|word| bytes.extend_from_slice(&word.to_le_bytes()));
        }
        let record = map.records.write(op, word, &bytes, true).unwrap();
        map.records.linked(op, std::slice::from_ref(&record));
        record.off()
    }

    /// Inserts keys of one group, and returns the offsets of their entries.
    fn entries(map: &DpTreeBytes, op: &Op<'_, Hardware>, keys: &[&[u8]]) -> Vec<u64> {
        keys.iter().for_each(|key| assert!(map.insert(op, key, b"12345678").unwrap()));
        let word = word_of(keys[0], 0);
        let root = map.tree.get(op, word).unwrap().unwrap();
        keys.iter().map(|key| map.group(op, word).find(root, key).unwrap().unwrap().off).collect()
    }

    fn is_corrupt<T: fmt::Debug>(result: Result<T>) -> bool {
        match result {
            Err(durix_index::Error::Corrupt { .. }) => true,
            other => panic!("{other:?}"),
        }
    }

    /// The checksums are right, so somebody wants this: each of 49 nodes leads to the next one fourteen times.
    #[test]
    fn nodes_that_lead_to_the_same_one_again_and_again_are_walked_once() {
        for gone in [0, 1] {
            let pool = pool();
            let map = DpTreeBytes::open(&pool, "users").unwrap();
            let mut session = pool.session().unwrap();
            let word = word_of(b"user:001", 0);
            {
                let op = session.enter().unwrap();
                let first = entries(&map, &op, &[b"user:001a"])[0];
                let bottom = node(&map, &op, word, (0, gone), &[(first, first)]);
                let root =
                    (1..=48).fold(bottom, |below, level| node(&map, &op, word, (level, 0), &[(below, first); 14]));
                assert!(!map.tree.insert(&op, word, root).unwrap());
                let mut found = 0;
                map.group(&op, word).read_what_is_whole(root, &mut |_, _| found += 1);
                assert_eq!(found, 1 - gone, "for repair");
                assert_eq!(map.has(&op, b"user:001a").unwrap(), gone == 0);
                for direction in [Direction::Forward, Direction::Backward] {
                    let mut cursor = map.range(&KeyRange::all(), direction);
                    let walked = std::iter::from_fn(|| Some(cursor.next(&op).map(|pair| pair.is_some())));
                    assert!(walked.take(3).any(|next| next.is_err()), "{direction:?}");
                }
            }
            assert!(is_corrupt(map.count(&mut session)));
            let findings = Index::check(&*map, &mut session).unwrap();
            assert!(findings.iter().any(|finding| finding.what.contains("twice")), "{findings:?}");
            drop(map);
            assert!(DpTreeBytes::open(&pool, "users").is_ok());
        }
    }

    #[test]
    fn entries_out_of_order_end_a_walk() {
        let pool = pool();
        let map = DpTreeBytes::open(&pool, "users").unwrap();
        let mut session = pool.session().unwrap();
        let op = session.enter().unwrap();
        let word = word_of(b"user:001", 0);
        let all = entries(&map, &op, &[b"user:001a", b"user:001b", b"user:001c"]);
        let children = [all[0], all[2], all[1]].map(|off| (off, off));
        let root = node(&map, &op, word, (0, 0), &children);
        assert!(!map.tree.insert(&op, word, root).unwrap());
        for direction in [Direction::Forward, Direction::Backward] {
            let mut cursor = map.range(&KeyRange::all(), direction);
            let walked = std::iter::from_fn(|| Some(cursor.next(&op).map(|pair| pair.is_some())));
            assert!(walked.take(4).any(|next| next.is_err()), "{direction:?}");
        }
    }

    /// A word of the head of a record in use is damaged, then a crash makes recovery look at it.
    #[test]
    fn a_record_in_use_whose_head_is_damaged_is_not_freed() {
        // Alone in its group; one of a group; the node of that group; one that has parts.
        for (what, index, bit) in (0..4).flat_map(|what| [(what, 1, 17), (what, 0, 63), (what, 0, 33), (what, 0, 3)]) {
            let pool = pool();
            let map = DpTreeBytes::open(&pool, "users").unwrap();
            let mut session = pool.session().unwrap();
            let keys = [&b"alone"[..], b"user:001a", b"user:001b", b"long"];
            let off = {
                let op = session.enter().unwrap();
                keys[..3].iter().for_each(|key| assert!(map.insert(&op, key, b"12345678").unwrap()));
                assert!(map.insert(&op, keys[3], &[7; 5000]).unwrap());
                let (key, is_node) = ([keys[0], keys[1], keys[1], keys[3]][what], what == 2);
                let root = map.tree.get(&op, word_of(key, 0)).unwrap().unwrap();
                if is_node { root } else { map.group(&op, word_of(key, 0)).find(root, key).unwrap().unwrap().off }
            };
            let flip = |session: &mut Session<Hardware>| {
                let op = session.enter().unwrap();
                let word = &op.slice("a record", Off::<Word>::new(off), 2).unwrap()[index];
                op.store(word, op.load(word, Relaxed) ^ 1 << bit, Relaxed);
            };
            flip(&mut session);
            drop(map);
            let map = DpTreeBytes::open(&pool, "users").unwrap();
            let findings = Index::check(&*map, &mut session).unwrap();
            assert!(!findings.is_empty(), "{what}, bit {bit} of word {index}");
            // They would take its place.
            for number in 0..300_u64 {
                let op = session.enter().unwrap();
                assert!(map.insert(&op, &[&b"other"[..], &number.to_be_bytes()].concat(), b"12345678").unwrap());
                assert!(map.insert(&op, &number.to_be_bytes(), &vec![1; number as usize]).unwrap());
            }
            flip(&mut session);
            assert_eq!(Index::check(&*map, &mut session).unwrap(), [], "{what}, bit {bit} of word {index}");
            let op = session.enter().unwrap();
            assert!(keys.iter().all(|key| map.has(&op, key).unwrap()), "{what}, bit {bit} of word {index}");
        }
    }

    /// What is damaged, or left out of what the tree leads to, and what the check of the records says: class and offset.
    #[test]
    fn a_check_of_records_reports_each_damage_by_its_own_class() {
        use durix_logfree::Finding as Found;
        type Row = (fn(&Op<'_>, &mut Vec<(u64, u64)>) -> u64, fn(u64) -> Found);
        const ROWS: &[Row] = &[
            (|_, in_use| in_use.pop().unwrap().1, |off| Found::Leaked { off }),
            (
                |_, in_use| {
                    in_use.push(in_use[0]);
                    in_use[0].1
                },
                |off| Found::Misplaced { off, key: word_of(b"user:001", 0) },
            ),
            // A bit of a word behind the head.
            (
                |op, in_use| {
                    let word: &Word = op.at(Off::new(in_use[0].1 + 3 * size_of::<Word>() as u64));
                    op.store(word, op.load(word, Relaxed) ^ 1, Relaxed);
                    in_use[0].1
                },
                |off| Found::Damaged { off },
            ),
        ];
        for (number, (damage, expected)) in ROWS.iter().enumerate() {
            let pool = pool();
            let map = DpTreeBytes::open(&pool, "users").unwrap();
            let mut session = pool.session().unwrap();
            let op = session.enter().unwrap();
            for key in [&b"user:001a"[..], b"user:001b", b"user:001c"] {
                map.insert(&op, key, b"12345678").unwrap();
            }
            let word = word_of(b"user:001", 0);
            let (root, mut in_use) = (map.tree.get(&op, word).unwrap().unwrap(), Vec::new());
            map.group(&op, word).survey(root, &mut |off| in_use.push((word, off)), &mut |error| panic!("{error}"));
            assert_eq!(map.records.check(&op, &in_use).unwrap(), []);
            let off = damage(&op, &mut in_use);
            assert_eq!(map.records.check(&op, &in_use).unwrap(), [expected(off)], "row {number}");
        }
    }

    /// Writes any record of a word.
    fn raw(map: &DpTreeBytes, op: &Op<'_, Hardware>, word: u64, bytes: &[u8]) -> u64 {
        let record = map.records.write(op, word, bytes, true).unwrap();
        map.records.linked(op, std::slice::from_ref(&record));
        record.off()
    }

    /// An entry of these lengths and this key, and a node with this head and these words.
    fn raw_entry(key_len: u32, value_len: u32, key: &[u8]) -> Vec<u8> {
        [&key_len.to_le_bytes()[..], &value_len.to_le_bytes(), key].concat()
    }

    fn raw_node(marks: u64, (level, count): (u32, u32), words: &[u64]) -> Vec<u8> {
        let head = [marks, u64::from(level) | u64::from(count) << 32];
        head.into_iter().chain(words.iter().copied()).flat_map(u64::to_le_bytes).collect()
    }

    /// Makes a damaged group of three entries; returns its root, and the offset of what is reported.
    type Damaged = fn(&DpTreeBytes, &Op<'_>, u64, &[u64]) -> (u64, u64);

    fn only(off: u64) -> (u64, u64) {
        (off, off)
    }

    /// What is said of a group, by class.
    const GROUPS: &[(&str, Damaged)] = &[
        ("a node that its group leads to twice", |map, op, word, all| {
            let below = node(map, op, word, (0, 0), &[(all[0], all[0])]);
            (node(map, op, word, (1, 0), &[(below, all[0]); 2]), below)
        }),
        ("the lengths of an entry", |map, op, word, _| only(raw(map, op, word, &raw_entry(9, 9, b"user:001a")))),
        ("the lengths of an entry", |map, op, word, _| {
            let key = [&b"user:001"[..], &[b'x'; MAX_KEY]].concat();
            only(raw(map, op, word, &raw_entry(key.len() as u32, 0, &key)))
        }),
        ("the key of an entry", |map, op, word, _| only(raw(map, op, word, &raw_entry(8, 0, b"user:002")))),
        // Marks of a node that has none; of a child that there is not; marks that do not say themselves twice.
        ("a node of a group", |map, op, word, all| {
            let below = node(map, op, word, (0, 0), &[(all[0], all[0])]);
            only(raw(map, op, word, &raw_node(marks(1), (1, 1), &[0, below, all[0]])))
        }),
        ("a node of a group", |map, op, word, all| only(raw(map, op, word, &raw_node(marks(2), (0, 1), &[0, all[0]])))),
        ("a node of a group", |map, op, word, all| {
            only(raw(map, op, word, &raw_node(marks(0) ^ 1 << 40, (0, 1), &[0, all[0]])))
        }),
        // Too high; without children; more than there can be; another length.
        ("a node of a group", |map, op, word, all| {
            only(raw(map, op, word, &raw_node(marks(0), (49, 1), &[0, all[0], all[0]])))
        }),
        ("a node of a group", |map, op, word, _| only(raw(map, op, word, &raw_node(marks(0), (0, 0), &[])))),
        ("a node of a group", |map, op, word, all| {
            only(raw(map, op, word, &raw_node(marks(0), (0, 15), &[all[0]; 30])))
        }),
        ("a node of a group", |map, op, word, all| {
            only(raw(map, op, word, &raw_node(marks(0), (0, 1), &[0, all[0], 0])))
        }),
        ("an entry of a group", |map, op, word, all| {
            let below = node(map, op, word, (0, 0), &[(all[0], all[0])]);
            (node(map, op, word, (0, 0), &[(below, all[0])]), below)
        }),
        ("the level of a node of a group", |map, op, word, all| {
            let below = node(map, op, word, (0, 0), &[(all[0], all[0])]);
            (node(map, op, word, (2, 0), &[(below, all[0])]), below)
        }),
        ("the level of a node of a group", |map, op, word, all| {
            (node(map, op, word, (1, 0), &[(all[0], all[0])]), all[0])
        }),
        ("the hint of an entry", |map, op, word, all| {
            (raw(map, op, word, &raw_node(marks(0), (0, 1), &[7, all[0]])), all[0])
        }),
        ("the order of an entry", |map, op, word, all| {
            (node(map, op, word, (0, 0), &[all[0], all[2], all[1]].map(|off| (off, off))), all[1])
        }),
        ("the order of an entry", |map, op, word, all| (node(map, op, word, (0, 0), &[(all[0], all[0]); 2]), all[0])),
        // Of entries that two nodes lead to.
        ("the order of an entry", |map, op, word, all| {
            let below = [all[1], all[0]].map(|off| node(map, op, word, (0, 0), &[(off, off)]));
            (node(map, op, word, (1, 0), &[(below[0], all[1]), (below[1], all[0])]), all[0])
        }),
        ("the first entry of a node", |map, op, word, all| {
            let below = node(map, op, word, (0, 0), &[all[1], all[2]].map(|off| (off, off)));
            (node(map, op, word, (1, 0), &[(below, all[0])]), below)
        }),
    ];

    /// A change says that, where the lookup before it has found a key that is gone from its node.
    const OF_CHANGES: &str = "a node of a group that had a key";

    #[test]
    fn a_check_of_groups_reports_each_damage_by_its_own_class() {
        let mut wrong = Vec::new();
        for (number, (class, damage)) in GROUPS.iter().enumerate() {
            let pool = pool();
            let map = DpTreeBytes::open(&pool, "users").unwrap();
            let mut session = pool.session().unwrap();
            let op = session.enter().unwrap();
            let all = entries(&map, &op, &[b"user:001a", b"user:001b", b"user:001c"]);
            let word = word_of(b"user:001", 0);
            let (root, expected) = damage(&map, &op, word, &all);
            let mut found = Vec::new();
            map.group(&op, word).survey(root, &mut |_| (), &mut |error| match error {
                Error::Corrupt { what, offset, .. } => found.push((what, offset)),
                error => panic!("{error}"),
            });
            if found != [(*class, expected)] {
                wrong.push(format!("row {number}: {class} at {expected:#x}: {found:?}"));
            }
        }
        assert!(wrong.is_empty(), "{}", wrong.join("\n"));
        let classes = include_str!("group.rs").split("corrupt(\"").skip(1);
        let classes: Vec<_> = classes.map(|rest| rest.split('"').next().unwrap()).collect();
        let rows = GROUPS.iter().map(|(class, _)| *class).chain([OF_CHANGES]);
        durix_pmem::testing::assert_each_has_a_row(&classes, rows);
    }
}
