//! The Masstree as an [`Index`] and an [`OrderedIndex`], and its entry among the kinds.

use std::fmt;
use std::ops::{Bound, ControlFlow};

use durix_index::implement::{STEP, alone, writable};
use durix_index::{
    Cursor, Direction, Entry, Error, Finding, Index, IndexStats, KeyRange, Lengths, Limits, Openable, OrderedIndex,
    Result, Ticket,
};
use durix_pmem::pool::Durability;
use durix_pmem::{Medium, Op, Root, Session};

use crate::{MAX_KEY, MAX_VALUE, Masstree, TreeOptions};

/// The kinds of index of this crate.
pub fn kinds<M: Medium>() -> Vec<Entry<M>> {
    let about = "ordered map of bytes, durable at checkpoints, no fence an update (Masstree with InCLL)";
    vec![Entry::new::<Masstree<M>>("masstree", about).ordered().buffered()]
}

impl From<crate::Error> for Error {
    fn from(error: crate::Error) -> Self {
        use crate::Error as E;
        match error {
            E::Pool(error) => Error::of_structure(error),
            E::KeyTooLong { len } => Error::KeyTooLong { len, limit: MAX_KEY },
            E::ValueTooLong { len } => Error::ValueTooLong { len, limit: MAX_VALUE },
            // The name is added by whoever knows it: see `Entry::open`.
            E::Corrupt { what, offset, found } => Error::corrupt(what, offset, found),
            other => Error::Corrupt { index: String::new(), what: other.to_string() },
        }
    }
}

impl<M: Medium> Index<M> for Masstree<M> {
    /// # Panics
    /// For a tree in a bare mapping, which is in no pool and cannot be used through the facade.
    fn root(&self) -> &Root<M> {
        Masstree::root(self).expect("a tree in a pool")
    }

    fn durability(&self) -> Durability {
        Durability::Buffered
    }

    fn limits(&self) -> Limits {
        <Self as Openable<M>>::LIMITS
    }

    fn as_ordered(&self) -> Option<&dyn OrderedIndex<M>> {
        Some(self)
    }

    fn get(&self, op: &Op<'_, M>, key: &[u8], value: &mut Vec<u8>) -> Result<bool> {
        let found = Masstree::get(self, op, key)?;
        match found {
            Some(found) => found.read_into(value),
            None => value.clear(),
        }
        Ok(found.is_some())
    }

    fn contains(&self, op: &Op<'_, M>, key: &[u8]) -> Result<bool> {
        Ok(Masstree::contains(self, op, key)?)
    }

    fn get_many(&self, op: &Op<'_, M>, keys: &[&[u8]], found: &mut dyn FnMut(usize, Option<&[u8]>)) -> Result<()> {
        let mut bytes = Vec::new();
        for (number, value) in Masstree::get_many(self, op, keys)?.into_iter().enumerate() {
            found(
                number,
                value.map(|value| {
                    value.read_into(&mut bytes);
                    &bytes[..]
                }),
            );
        }
        Ok(())
    }

    fn is_empty(&self, op: &Op<'_, M>) -> Result<bool> {
        Ok(Masstree::is_empty(self, op)?)
    }

    fn cursor(&self) -> Box<dyn Cursor<M> + '_> {
        OrderedIndex::range(self, &KeyRange::all(), Direction::Forward)
    }

    fn insert(&self, op: &Op<'_, M>, key: &[u8], value: &[u8]) -> Result<bool> {
        writable(self)?;
        Ok(Masstree::insert(self, op, key, value)?)
    }

    fn insert_if_absent(&self, op: &Op<'_, M>, key: &[u8], value: &[u8]) -> Result<bool> {
        writable(self)?;
        Ok(Masstree::insert_if_absent(self, op, key, value)?)
    }

    fn update(&self, op: &Op<'_, M>, key: &[u8], value: &[u8]) -> Result<bool> {
        writable(self)?;
        Ok(Masstree::update(self, op, key, value)?)
    }

    fn compare_and_set(&self, op: &Op<'_, M>, key: &[u8], expected: Option<&[u8]>, new: Option<&[u8]>) -> Result<bool> {
        writable(self)?;
        Ok(Masstree::compare_and_set(self, op, key, expected, new)?)
    }

    fn remove(&self, op: &Op<'_, M>, key: &[u8]) -> Result<bool> {
        writable(self)?;
        Ok(Masstree::remove(self, op, key)?)
    }

    /// One operation lies within one checkpoint epoch, and a crash undoes epochs whole.
    fn batch_is_atomic(&self) -> bool {
        true
    }

    fn ticket(&self, op: &Op<'_, M>) -> Ticket {
        Ticket::new(Masstree::ticket(self, op))
    }

    fn wait(&self, session: &mut Session<M>, ticket: Ticket) -> Result<()> {
        match ticket.checkpoint() {
            Some(ticket) => Ok(self.epochs().wait(session, ticket)?),
            None => Ok(()),
        }
    }

    fn check(&self, session: &mut Session<M>) -> Result<Vec<Finding>> {
        let findings = alone(self, session, |op| Ok(Masstree::check(self, op)?))?;
        Ok(findings.into_iter().map(|f| Finding { offset: f.offset, what: f.what }).collect())
    }

    fn salvage(&self, session: &mut Session<M>, found: &mut dyn FnMut(&[u8], &[u8])) -> Result<Vec<Finding>> {
        let findings = Masstree::salvage(self, &session.enter()?, found)?;
        Ok(findings.into_iter().map(|f| Finding { offset: f.offset, what: f.what }).collect())
    }

    fn stats(&self, session: &mut Session<M>) -> Result<IndexStats> {
        let keys = Index::len(self, session)?;
        let (root, epochs) = (Index::root(self), self.epochs().stats());
        let extents = root.pool().space().extents(&session.enter()?, root.owner());
        Ok(IndexStats::new(keys, extents.iter().map(|extent| extent.len).sum(), None)
            .with("checkpoint epoch", epochs.epoch)
            .with("checkpoints since the pool was opened", epochs.boundaries)
            .with("lines written back at them", epochs.lines)
            .with("longest pause for one, ns", epochs.longest_pause)
            .with("failed epochs remembered, ranges", epochs.failed_ranges as u64))
    }

    fn dump(&self, op: &Op<'_, M>, out: &mut dyn fmt::Write) -> fmt::Result {
        Masstree::dump(self, op, out).map_err(|_| fmt::Error)?
    }
}

impl<M: Medium> OrderedIndex<M> for Masstree<M> {
    fn range(&self, range: &KeyRange, direction: Direction) -> Box<dyn Cursor<M> + '_> {
        Box::new(Walk::new(self, range.clone(), direction))
    }
}

impl<M: Medium> Openable<M> for Masstree<M> {
    const LIMITS: Limits = Limits { key: Lengths::UpTo(MAX_KEY), value: Lengths::UpTo(MAX_VALUE), batch: usize::MAX };

    fn salvaging() -> TreeOptions {
        TreeOptions::default().salvage(true)
    }
}

/// Bytes after which a step of a walk ends, whatever it has met.
const STEP_BYTES: usize = 64 << 10;

/// A walk that takes several pairs at a time, and goes on behind the last of them.
struct Walk<'a, M: Medium> {
    tree: &'a Masstree<M>,
    /// What is left.
    range: KeyRange,
    direction: Direction,
    /// How many pairs the next step takes: more each time, as short walks are frequent.
    take: usize,
    /// What the last step has met: keys and values in a row, and where they end.
    bytes: Vec<u8>,
    ends: Vec<(usize, usize)>,
    /// The pair to be lent out next.
    at: usize,
    done: bool,
    /// Why the last step has ended early: told when what it had met is lent out.
    failed: Option<Error>,
}

impl<'a, M: Medium> Walk<'a, M> {
    fn new(tree: &'a Masstree<M>, range: KeyRange, direction: Direction) -> Self {
        let done = range.is_empty();
        Walk { tree, range, direction, take: 4, bytes: Vec::new(), ends: Vec::new(), at: 0, done, failed: None }
    }

    /// Takes the next pairs of the range.
    fn step(&mut self, op: &Op<'_, M>) {
        let Walk { tree, range, direction, take, bytes, ends, at, done, failed } = self;
        (*at, *take) = (0, (*take * 2).min(STEP));
        bytes.clear();
        ends.clear();
        *done = true;
        let mut value_bytes = Vec::new();
        let visit = |key: &[u8], value: crate::Value<'_, M>| {
            bytes.extend_from_slice(key);
            let key_ends = bytes.len();
            value.read_into(&mut value_bytes);
            bytes.extend_from_slice(&value_bytes);
            ends.push((key_ends, bytes.len()));
            *done = ends.len() < *take && bytes.len() < STEP_BYTES;
            if *done { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
        };
        let (lower, upper) = (borrowed(&range.lower), borrowed(&range.upper));
        let walked = match direction {
            Direction::Forward => tree.range(op, lower, upper, visit),
            Direction::Backward => tree.range_rev(op, lower, upper, visit),
        };
        *failed = walked.err().map(Error::from);
        if let (false, Some(last)) = (self.done, self.ends.len().checked_sub(1)) {
            let reached = Bound::Excluded(self.pair(last).0.to_vec());
            match self.direction {
                Direction::Forward => self.range.lower = reached,
                Direction::Backward => self.range.upper = reached,
            }
        }
    }

    fn pair(&self, number: usize) -> (&[u8], &[u8]) {
        let start = number.checked_sub(1).map_or(0, |before| self.ends[before].1);
        let (key_ends, ends) = self.ends[number];
        (&self.bytes[start..key_ends], &self.bytes[key_ends..ends])
    }
}

fn borrowed(bound: &Bound<Vec<u8>>) -> Bound<&[u8]> {
    bound.as_ref().map(Vec::as_slice)
}

impl<M: Medium> Cursor<M> for Walk<'_, M> {
    fn next(&mut self, op: &Op<'_, M>) -> Result<Option<(&[u8], &[u8])>> {
        if self.at == self.ends.len() && !self.done {
            self.step(op);
        }
        if self.at == self.ends.len() {
            return self.failed.take().map_or(Ok(None), Err);
        }
        self.at += 1;
        Ok(Some(self.pair(self.at - 1)))
    }
}
