//! The vocabulary: what every structure can do, over raw bytes.
//!
//! All operations take the calling thread's [`Op`], so that a batch, or operations on several structures of one pool, share
//! one scope. An `Op` holds up checkpoints, so it is kept short; what may have to *wait* for a checkpoint
//! ([`sync`](Index::sync), [`wait`](Index::wait)) takes the [`Session`] by `&mut` instead, which makes sure that its caller
//! holds no `Op` that the checkpoint would wait for in turn.
//!
//! # Durability
//! An index is *strict*: an update is durable when it returns, and a read returns only what is durable. Or it is *buffered*:
//! after a crash a consistent state is found that is no older than the last completed `sync`, or ticket waited for.
//! [`durability`](Index::durability) says which; [`guarantee`](Index::guarantee) says what it means on the pool's medium.
//!
//! # Borrowed bytes
//! No read hands out bytes of the mapping: values are copied into the caller's buffer, and cursors lend out copies of their
//! own. So holding them, however long, blocks no writer and no checkpoint.

use std::fmt;
use std::ops::Bound;
use std::time::Duration;

use durix_pmem::pool::tally::Totals;
use durix_pmem::pool::{Durability, Guarantee};
use durix_pmem::{Hardware, Medium, Op, Root, Session};

use crate::batch::Batch;
use crate::error::{Error, Result};
use crate::pairs::Pairs;

/// Pairs that a walk takes in one operation, which holds up checkpoints.
pub const STEP: usize = 64;
/// How long a check waits for a moment without operations.
const PATIENCE: Duration = Duration::from_secs(10);

/// What every structure can do: a map from byte strings to byte strings, shared by any number of threads.
///
/// It is implemented by the structures themselves and can be used as `dyn Index<M>`. Where nothing else is said, an update
/// is durable when it returns if the index is strict and the medium's fence is enough, and with the next sync if the index is buffered.
///
/// A fence is enough on persistent memory. On a journaled pool an update is durable with the commit that its operation has
/// [noted](Op::note_commit): `Pool::settle` and `Pool::wait` wait for it; the calls of the facade do so before they return.
///
/// In an operation of [`Session::enter_later`] an update of a strict index may return before it is durable: it is so when the ticket that
/// [`Op::finish`] returns was waited for, by `Pool::wait`. So may what a read has returned in it. An index that knows nothing of it is durable
/// as ever, and has nothing to gain. No read of an ordinary operation returns what a crash can still take back.
pub trait Index<M: Medium = Hardware>: Send + Sync + 'static {
    /// Its place in its pool: there are its name and the pool itself.
    fn root(&self) -> &Root<M>;

    /// Its contract.
    fn durability(&self) -> Durability;

    /// How long keys, values and batches can be.
    fn limits(&self) -> Limits;

    /// The index as an ordered index, if it keeps the order of keys.
    fn as_ordered(&self) -> Option<&dyn OrderedIndex<M>> {
        None
    }

    /// What survives what: the weaker of its contract and of what its pool survives.
    fn guarantee(&self) -> Guarantee {
        self.root().pool().guarantee().with(self.durability())
    }

    // ---- reads ----

    /// Replaces the content of `value` by the value of `key`. Returns whether the key is there; if not, `value` is empty.
    ///
    /// # Errors
    /// [`Error::KeyTooLong`], [`Error::Pool`] after a panic in an update,
    /// [`Error::Corrupt`].
    fn get(&self, op: &Op<'_, M>, key: &[u8], value: &mut Vec<u8>) -> Result<bool>;

    /// The value of `key`, if it is there.
    ///
    /// # Errors
    /// As [`get`](Index::get).
    fn get_vec(&self, op: &Op<'_, M>, key: &[u8]) -> Result<Option<Vec<u8>>> {
        let mut value = Vec::new();
        Ok(self.get(op, key, &mut value)?.then_some(value))
    }

    /// Whether `key` is there.
    ///
    /// # Errors
    /// As [`get`](Index::get).
    fn contains(&self, op: &Op<'_, M>, key: &[u8]) -> Result<bool>;

    /// Looks many keys up, and calls `found` with the number of each key and its value, in any order, each once. Every
    /// look-up is as of a moment of its own. Structures that can overlap the cache misses of several look-ups do.
    ///
    /// # Errors
    /// As [`get`](Index::get).
    fn get_many(&self, op: &Op<'_, M>, keys: &[&[u8]], found: &mut dyn FnMut(usize, Option<&[u8]>)) -> Result<()> {
        let mut value = Vec::new();
        for (number, key) in keys.iter().enumerate() {
            let there = self.get(op, key, &mut value)?;
            found(number, there.then_some(&value));
        }
        Ok(())
    }

    /// Number of keys, if the structure keeps it; `None` if it does not, and [`count`](Index::count) has to walk. Constant time. Exact
    /// while no thread writes.
    fn len(&self, op: &Op<'_, M>) -> Option<u64> {
        let _ = op;
        None
    }

    /// Number of keys: exact while no thread writes. Constant time where [`len`](Index::len) is known, otherwise linear: a walk over all
    /// keys, in many short operations, so no other call has to wait.
    ///
    /// # Errors
    /// As [`get`](Index::get).
    fn count(&self, session: &mut Session<M>) -> Result<u64> {
        if let Some(len) = self.len(&session.enter()?) {
            return Ok(len);
        }
        count(self.cursor(), session)
    }

    /// Whether there is no key.
    ///
    /// # Errors
    /// As [`get`](Index::get).
    fn is_empty(&self, op: &Op<'_, M>) -> Result<bool> {
        Ok(self.cursor().next(op)?.is_none())
    }

    /// A walk over all pairs, in the order of keys where the index is ordered, in an arbitrary order otherwise.
    ///
    /// Others, and the caller itself, may write during the walk: a key that stays in the index from the first to the last call is
    /// returned exactly once, with a value it held at some moment during the walk. A key that is inserted or removed during the walk is
    /// returned once or not at all.
    fn cursor(&self) -> Box<dyn Cursor<M> + '_>;

    // ---- updates ----

    /// Maps `key` to `value`, whatever it was mapped to (upsert). Returns whether the key is new.
    ///
    /// # Errors
    /// [`Error::KeyTooLong`], [`Error::ValueTooLong`];
    /// [`Error::Pool`] where the pool is full, was opened for reading, or after a panic in an update.
    /// The index then is as it was.
    fn insert(&self, op: &Op<'_, M>, key: &[u8], value: &[u8]) -> Result<bool>;

    /// Maps `key` to `value` if it is not there. Returns whether it did; if not, nothing is written.
    ///
    /// # Errors
    /// As [`insert`](Index::insert).
    fn insert_if_absent(&self, op: &Op<'_, M>, key: &[u8], value: &[u8]) -> Result<bool> {
        self.compare_and_set(op, key, None, Some(value))
    }

    /// Maps `key` to `value` if it is there. Returns whether it did; if not, nothing is written.
    ///
    /// # Errors
    /// As [`insert`](Index::insert).
    fn update(&self, op: &Op<'_, M>, key: &[u8], value: &[u8]) -> Result<bool>;

    /// Changes `key` from `expected` to `new`, where `None` stands for absent. Returns whether the key was as expected; if
    /// not, nothing is written.
    ///
    /// # Errors
    /// As [`insert`](Index::insert).
    fn compare_and_set(&self, op: &Op<'_, M>, key: &[u8], expected: Option<&[u8]>, new: Option<&[u8]>) -> Result<bool>;

    /// Removes `key`. Returns whether it was there; if not, nothing is written.
    ///
    /// # Errors
    /// As [`insert`](Index::insert).
    fn remove(&self, op: &Op<'_, M>, key: &[u8]) -> Result<bool>;

    /// Makes all changes of a batch. Where [`batch_is_atomic`](Index::batch_is_atomic), a crash leaves all of them or none;
    /// otherwise each is made by itself, in the order of the batch.
    ///
    /// # Errors
    /// As [`insert`](Index::insert), and [`Error::BatchTooLarge`]. If a key or value is too
    /// long, nothing was changed. After other errors `pset` and `dptree` have changed nothing either; other kinds have made the changes
    /// before the failing one.
    fn apply(&self, op: &Op<'_, M>, batch: &Batch) -> Result<()> {
        let limits = self.limits();
        batch.iter().try_for_each(|(key, change)| limits.check(key, change))?;
        for (key, change) in batch.iter() {
            match change {
                Some(value) => self.insert(op, key, value)?,
                None => self.remove(op, key)?,
            };
        }
        Ok(())
    }

    /// Whether a crash leaves all changes of a batch or none.
    fn batch_is_atomic(&self) -> bool {
        false
    }

    // ---- durability ----

    /// Makes everything durable that any thread did before: returns at once where the index is strict, and otherwise after
    /// the checkpoint that covers it.
    ///
    /// # Errors
    /// [`Error::Pool`]: the checkpoint did not find a moment without operations, or the pool is shut.
    fn sync(&self, session: &mut Session<M>) -> Result<()> {
        let ticket = self.ticket(&session.enter()?);
        self.wait(session, ticket)
    }

    /// What has to be waited for until all that was done before, by any thread, is durable.
    ///
    /// # Panics
    /// If the operation is one of another pool, and the index has something to do for it.
    fn ticket(&self, op: &Op<'_, M>) -> Ticket {
        let _ = op;
        Ticket::DURABLE
    }

    /// Waits until what `ticket` stands for is durable; returns at once where the index is strict.
    ///
    /// # Errors
    /// As [`sync`](Index::sync).
    fn wait(&self, session: &mut Session<M>, ticket: Ticket) -> Result<()> {
        let _ = (session, ticket);
        Ok(())
    }

    // ---- looking at it ----

    /// Walks everything, and reports every inconsistency. Linear in the index, and all other calls may have to wait
    /// until it ends, readers included: some structures can only be judged while no operation runs in the pool.
    ///
    /// # Errors
    /// [`Error::Pool`] where the pool cannot be read at all, or where operations of others do not end
    /// within 10 s.
    fn check(&self, session: &mut Session<M>) -> Result<Vec<Finding>>;

    /// Calls `found` with every entry that can still be read of an index that may be damaged, in any order, and returns what cannot
    /// be. No thread may write during the walk; open the pool for reading. What is damaged within a value or a key may come as it
    /// is. By default a walk, and where that ends at an error and the index is ordered, another from its other end.
    ///
    /// # Errors
    /// [`Error::Pool`] where the pool cannot be read at all.
    fn salvage(&self, session: &mut Session<M>, found: &mut dyn FnMut(&[u8], &[u8])) -> Result<Vec<Finding>> {
        let (mut last, mut findings) = (None, Vec::new());
        let walks = [Some(self.cursor()), self.as_ordered().map(|o| o.range(&KeyRange::all(), Direction::Backward))];
        for (backward, mut cursor) in walks.into_iter().flatten().enumerate() {
            let ended = take_all(&mut *cursor, session, &mut |key, value| {
                let is_new = backward == 0 || last.as_deref().is_none_or(|last: &[u8]| key > last);
                if is_new {
                    found(key, value);
                }
                if backward == 0 {
                    last = Some(key.to_vec());
                }
                is_new
            });
            match ended {
                Ok(()) => break,
                Err(error @ Error::Pool(_)) => return Err(error),
                Err(error) => findings.push(Finding { offset: 0, what: error.to_string() }),
            }
        }
        Ok(findings)
    }

    /// Numbers about the index. Costs what [`count`](Index::count) costs.
    ///
    /// # Errors
    /// As [`count`](Index::count).
    fn stats(&self, session: &mut Session<M>) -> Result<IndexStats>;

    /// Writes what lies in persistent memory, for people who look for a fault.
    ///
    /// # Errors
    /// What `out` returns.
    fn dump(&self, op: &Op<'_, M>, out: &mut dyn fmt::Write) -> fmt::Result;
}

/// Calls `take` with all pairs of a walk, until it returns `false`.
fn take_all<M: Medium>(
    cursor: &mut dyn Cursor<M>,
    session: &mut Session<M>,
    take: &mut dyn FnMut(&[u8], &[u8]) -> bool,
) -> Result<()> {
    while let Some((key, value)) = cursor.next(&session.enter()?)? {
        if !take(key, value) {
            break;
        }
    }
    Ok(())
}

/// What a structure can do that keeps the order of keys (byte by byte, a prefix before what it is a prefix of).
pub trait OrderedIndex<M: Medium = Hardware>: Index<M> {
    /// A walk over the keys of a range, in either direction. Writing during the walk is as for [`Index::cursor`].
    fn range(&self, range: &KeyRange, direction: Direction) -> Box<dyn Cursor<M> + '_>;

    /// A walk over the keys that begin with `prefix`.
    fn prefix(&self, prefix: &[u8], direction: Direction) -> Box<dyn Cursor<M> + '_> {
        self.range(&KeyRange::prefix(prefix), direction)
    }

    /// Appends the next pairs of a range to `pairs`: until it holds `most` pairs, or the range ends. Returns whether
    /// the range may hold more; the caller goes on from the last key. What was appended before an error is sound. By default by a walk
    /// of its own, which finds its place anew.
    ///
    /// # Errors
    /// As [`Index::get`].
    fn read_range(
        &self,
        op: &Op<'_, M>,
        (lower, upper): (Bound<&[u8]>, Bound<&[u8]>),
        direction: Direction,
        most: usize,
        pairs: &mut Pairs,
    ) -> Result<bool> {
        let mut cursor = self.range(&KeyRange::new(lower, upper), direction);
        cursor.expect(most.saturating_sub(pairs.len()));
        while pairs.len() < most {
            let Some((key, value)) = cursor.next(op)? else { return Ok(false) };
            pairs.push(key, value);
        }
        Ok(true)
    }

    /// Copies the pair with the smallest key into `key` and `value`; `false` where there is none.
    ///
    /// # Errors
    /// As [`Index::get`].
    fn first(&self, op: &Op<'_, M>, key: &mut Vec<u8>, value: &mut Vec<u8>) -> Result<bool> {
        self.range(&KeyRange::all(), Direction::Forward).next_into(op, key, value)
    }

    /// Copies the pair with the largest key into `key` and `value`; `false` where there is none.
    ///
    /// # Errors
    /// As [`Index::get`].
    fn last(&self, op: &Op<'_, M>, key: &mut Vec<u8>, value: &mut Vec<u8>) -> Result<bool> {
        self.range(&KeyRange::all(), Direction::Backward).next_into(op, key, value)
    }
}

/// A walk over pairs. It lends out copies of its own, so it may live long, and may be forgotten, without holding
/// anything up.
pub trait Cursor<M: Medium = Hardware> {
    /// The next pair, which lives until the next call; `None` at the end.
    ///
    /// # Errors
    /// As [`Index::get`].
    fn next(&mut self, op: &Op<'_, M>) -> Result<Option<(&[u8], &[u8])>>;

    /// The next pair, if the walk has read it already: then no operation is needed. `None` says that it has not, or that the walk is
    /// at its end; [`next`](Cursor::next) tells which.
    ///
    /// # Errors
    /// As [`Index::get`].
    fn ready(&mut self) -> Result<Option<(&[u8], &[u8])>> {
        Ok(None)
    }

    /// Says how many pairs the caller is going to ask for, before it asks for the first: a walk that reads some pairs at a time
    /// then reads no more than it needs. A hint.
    fn expect(&mut self, pairs: usize) {
        let _ = pairs;
    }

    /// Copies the next pair into `key` and `value`; `false` at the end.
    ///
    /// # Errors
    /// As [`Index::get`].
    fn next_into(&mut self, op: &Op<'_, M>, key: &mut Vec<u8>, value: &mut Vec<u8>) -> Result<bool> {
        let Some((k, v)) = self.next(op)? else { return Ok(false) };
        key.clear();
        key.extend_from_slice(k);
        value.clear();
        value.extend_from_slice(v);
        Ok(true)
    }
}

/// Which way a walk goes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Direction {
    /// From the smallest key on.
    #[default]
    Forward,
    /// From the largest key on.
    Backward,
}

/// The order that a walk keeps. On a damaged index links may lead back: without this a walk might return keys twice, or never
/// end.
#[derive(Clone, Copy, Debug)]
pub struct Order {
    direction: Option<Direction>,
    begun: bool,
}

impl Order {
    /// Of a walk in a direction; of a walk over an index without order if that is `None`.
    pub fn new(direction: Option<Direction>) -> Self {
        Order { direction, begun: false }
    }

    /// Takes note of the next key of the walk; `last` is the key before, and is not looked at for the first key. One comparison.
    ///
    /// # Errors
    /// [`Error::Corrupt`] if `key` does not come after `last`.
    #[inline]
    pub fn pass(&mut self, last: &[u8], key: &[u8]) -> Result<()> {
        let begun = std::mem::replace(&mut self.begun, true);
        match self.direction {
            Some(Direction::Forward) if begun && key <= last => Err(goes_back(last, key)),
            Some(Direction::Backward) if begun && key >= last => Err(goes_back(last, key)),
            _ => Ok(()),
        }
    }
}

#[cold]
fn goes_back(last: &[u8], key: &[u8]) -> Error {
    let what = format!("its keys are out of order: {} follows {}", key.escape_ascii(), last.escape_ascii());
    Error::Corrupt { index: String::new(), what }
}

/// A range of keys.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct KeyRange {
    /// Where it begins.
    pub lower: Bound<Vec<u8>>,
    /// Where it ends.
    pub upper: Bound<Vec<u8>>,
}

impl KeyRange {
    /// All keys.
    pub fn all() -> Self {
        KeyRange { lower: Bound::Unbounded, upper: Bound::Unbounded }
    }

    /// The keys between two bounds; none if the lower one is above the upper one.
    pub fn new(lower: Bound<&[u8]>, upper: Bound<&[u8]>) -> Self {
        KeyRange { lower: lower.map(<[u8]>::to_vec), upper: upper.map(<[u8]>::to_vec) }
    }

    /// The keys that begin with `prefix`.
    pub fn prefix(prefix: &[u8]) -> Self {
        let mut after = prefix.to_vec();
        while after.pop_if(|byte| *byte == u8::MAX).is_some() {}
        let upper = match after.last_mut() {
            Some(last) => {
                *last += 1;
                Bound::Excluded(after)
            }
            None => Bound::Unbounded,
        };
        KeyRange { lower: Bound::Included(prefix.to_vec()), upper }
    }

    /// Whether a key lies in it.
    pub fn contains(&self, key: &[u8]) -> bool {
        let above = match &self.lower {
            Bound::Included(lower) => key >= &lower[..],
            Bound::Excluded(lower) => key > &lower[..],
            Bound::Unbounded => true,
        };
        above
            && match &self.upper {
                Bound::Included(upper) => key <= &upper[..],
                Bound::Excluded(upper) => key < &upper[..],
                Bound::Unbounded => true,
            }
    }

    /// Whether no key can lie in it, because its bounds have crossed.
    pub fn is_empty(&self) -> bool {
        have_crossed((self.lower.as_ref().map(Vec::as_slice), self.upper.as_ref().map(Vec::as_slice)))
    }
}

/// Whether no key can lie between two bounds.
#[inline]
pub fn have_crossed(bounds: (Bound<&[u8]>, Bound<&[u8]>)) -> bool {
    match bounds {
        (Bound::Unbounded, Bound::Excluded(upper)) => upper.is_empty(),
        (Bound::Unbounded, _) | (_, Bound::Unbounded) => false,
        (Bound::Included(lower), Bound::Included(upper)) => lower > upper,
        (Bound::Included(lower) | Bound::Excluded(lower), Bound::Included(upper) | Bound::Excluded(upper)) => {
            lower >= upper
        }
    }
}

/// Refuses a change of an index whose pool was opened for reading.
#[inline(always)]
pub fn writable<M: Medium>(index: &dyn Index<M>) -> Result<()> {
    Ok(index.root().pool().ensure_writable()?)
}

/// Runs `f` while nothing else happens in the pool: for checks that need it.
pub fn alone<M: Medium, R>(
    index: &dyn Index<M>,
    session: &mut Session<M>,
    f: impl FnOnce(&Op<'_, M>) -> Result<R>,
) -> Result<R> {
    let mapping = index.root().pool().mapping();
    mapping.quiesce(session, PATIENCE, |session| f(&session.enter_exclusive()))?
}

/// Counts what a cursor meets, in short operations. More keys than there are words in the pool are what a corrupt index
/// shows, whose links lead to the same place on many ways.
fn count<M: Medium>(mut cursor: Box<dyn Cursor<M> + '_>, session: &mut Session<M>) -> Result<u64> {
    let (mut count, words) = (0, session.mapping().len() / size_of::<u64>() as u64);
    loop {
        if count > words {
            let what = format!("a walk has met {count} keys, and the pool has room for {words} words");
            return Err(Error::Corrupt { index: String::new(), what });
        }
        let op = session.enter()?;
        for _ in 0..STEP {
            if cursor.next(&op)?.is_none() {
                return Ok(count);
            }
            count += 1;
        }
    }
}

/// What an index takes at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// How long keys are, in bytes.
    pub key: Lengths,
    /// How long values are, in bytes.
    pub value: Lengths,
    /// Most keys of a batch.
    pub batch: usize,
}

impl Limits {
    /// Whether a key, and a value if there is one, have lengths that the index takes.
    ///
    /// # Errors
    /// [`Error::KeyTooLong`], [`Error::ValueTooLong`], [`Error::WrongLength`].
    pub fn check(&self, key: &[u8], value: Option<&[u8]>) -> Result<()> {
        match self.key {
            Lengths::UpTo(limit) if key.len() > limit => return Err(Error::KeyTooLong { len: key.len(), limit }),
            Lengths::Exactly(expected) if key.len() != expected => {
                return Err(Error::WrongLength { role: "key", len: key.len(), expected });
            }
            _ => {}
        }
        match (self.value, value) {
            (Lengths::UpTo(limit), Some(value)) if value.len() > limit => {
                Err(Error::ValueTooLong { len: value.len(), limit })
            }
            (Lengths::Exactly(expected), Some(value)) if value.len() != expected => {
                Err(Error::WrongLength { role: "value", len: value.len(), expected })
            }
            _ => Ok(()),
        }
    }
}

/// Which lengths an index takes, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lengths {
    /// Any up to this one.
    UpTo(usize),
    /// This one only.
    Exactly(usize),
}

impl Lengths {
    /// Whether it is one of them.
    pub fn allow(self, len: usize) -> bool {
        match self {
            Lengths::UpTo(limit) => len <= limit,
            Lengths::Exactly(expected) => len == expected,
        }
    }
}

/// Stands for what was done up to a moment: see [`Index::ticket`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[must_use = "nothing is waited for until the ticket is given to `wait`"]
pub struct Ticket(Option<durix_pmem::Ticket>);

impl Ticket {
    /// A ticket for what is durable already.
    pub const DURABLE: Ticket = Ticket(None);

    /// A ticket for a checkpoint of the pool's epochs, as a buffered structure makes it.
    pub const fn new(ticket: durix_pmem::Ticket) -> Self {
        Ticket(Some(ticket))
    }

    /// The checkpoint; `None` for what is durable already.
    pub const fn checkpoint(self) -> Option<durix_pmem::Ticket> {
        self.0
    }
}

/// An inconsistency that a check found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// Offset in the pool of what it is about.
    pub offset: u64,
    /// What is wrong.
    pub what: String,
}

impl Finding {
    /// What is wrong where an index should hold some entries ([`Root::marked`]), and has others; `None` if they are the same. The
    /// offset is that of its root.
    pub fn of_totals(offset: u64, held: Totals, found: Totals) -> Option<Finding> {
        let what = match (held, found) {
            (held, found) if held == found => return None,
            (held, found) if held.count == found.count => {
                format!("its entries ({}) are not those that were put there", held.count)
            }
            _ => {
                format!("entries found: {}; there were {}", found.count, held.count)
            }
        };
        Some(Finding { offset, what })
    }

    /// The mark that closing the pool has left for the index is damaged.
    pub fn of_mark(offset: u64) -> Finding {
        Finding { offset, what: "the closing mark of the index is damaged".into() }
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#x}: {}", self.offset, self.what)
    }
}

/// Numbers about an index.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct IndexStats {
    /// Keys.
    pub keys: u64,
    /// Bytes of persistent memory.
    pub persistent_bytes: u64,
    /// Bytes of volatile memory that grow with the index, if it knows them.
    pub volatile_bytes: Option<u64>,
    /// What else the structure has to say.
    pub details: Vec<(&'static str, u64)>,
}

impl IndexStats {
    /// The three numbers that every structure has; details come by [`with`](IndexStats::with).
    pub fn new(keys: u64, persistent_bytes: u64, volatile_bytes: Option<u64>) -> Self {
        IndexStats { keys, persistent_bytes, volatile_bytes, details: Vec::new() }
    }

    /// Adds a detail.
    #[must_use]
    pub fn with(mut self, name: &'static str, value: u64) -> Self {
        self.details.push((name, value));
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_prefix_is_a_range() {
        let all: Vec<Vec<u8>> =
            [&b""[..], b"a", b"ab", b"ab\xff", b"ab\xff\xff\x01", b"ac", b"\xff", b"\xff\xff", b"\xff\xffz"]
                .map(<[u8]>::to_vec)
                .into();
        for prefix in &all {
            let range = KeyRange::prefix(prefix);
            for key in &all {
                assert_eq!(range.contains(key), key.starts_with(prefix), "{prefix:?} {key:?}");
            }
            assert!(!range.is_empty());
        }
    }

    #[test]
    fn a_walk_that_goes_back_or_stays_is_refused() {
        let walk = |direction, keys: &[&[u8]]| {
            let (mut order, mut last) = (Order::new(direction), &[][..]);
            keys.iter().map(|key| order.pass(last, key).inspect(|()| last = key)).collect::<Result<Vec<_>>>()
        };
        let (forward, backward) = (Some(Direction::Forward), Some(Direction::Backward));
        assert!(walk(forward, &[b"", b"a", b"ab", b"b"]).is_ok() && walk(backward, &[b"b", b"ab", b"a", b""]).is_ok());
        assert!(walk(None, &[b"b", b"a", b"a"]).is_ok());
        for (direction, keys) in
            [(forward, [b"a", b"a"]), (forward, [b"b", b"a"]), (backward, [b"a", b"a"]), (backward, [b"a", b"b"])]
        {
            let error = walk(direction, &keys.map(|key| &key[..])).unwrap_err();
            assert!(matches!(error, Error::Corrupt { .. }) && error.to_string().contains("durix repair"), "{error}");
        }
    }

    #[test]
    fn crossed_bounds_hold_nothing() {
        let range = |lower, upper| KeyRange::new(lower, upper);
        assert!(range(Bound::Included(b"b"), Bound::Included(b"a")).is_empty());
        assert!(range(Bound::Included(b"a"), Bound::Excluded(b"a")).is_empty());
        assert!(range(Bound::Unbounded, Bound::Excluded(b"")).is_empty());
        assert!(!range(Bound::Included(b"a"), Bound::Included(b"a")).is_empty());
        assert!(!KeyRange::all().is_empty());
    }
}
