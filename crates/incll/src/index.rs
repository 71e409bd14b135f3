//! The Masstree as an [`Index`] and an [`OrderedIndex`], and its entry among the kinds.

use std::fmt;
use std::ops::{Bound, ControlFlow};

use durix_index::implement::{STEP, alone, writable};
use durix_index::{
    Cursor, Direction, Entry, Error, Finding, Index, IndexStats, KeyRange, Lengths, Limits, Openable, OrderedIndex,
    Pairs, Result, Ticket,
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
        alone(self, session, |op| Ok(Masstree::check(self, op)?))
    }

    fn salvage(&self, session: &mut Session<M>, found: &mut dyn FnMut(&[u8], &[u8])) -> Result<Vec<Finding>> {
        Ok(Masstree::salvage(self, &session.enter()?, found)?)
    }

    fn stats(&self, session: &mut Session<M>) -> Result<IndexStats> {
        let keys = Index::count(self, session)?;
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

    fn read_range(
        &self,
        op: &Op<'_, M>,
        (lower, upper): (Bound<&[u8]>, Bound<&[u8]>),
        direction: Direction,
        most: usize,
        pairs: &mut Pairs,
    ) -> Result<bool> {
        let most = most.saturating_sub(pairs.len());
        if most == 0 {
            return Ok(true);
        }
        let mut taking = Taking { pairs, most, left: most, more: false };
        match direction {
            Direction::Forward => {
                self.range_expecting(op, lower, upper, most, |key, value| taking.take(key, value))?;
            }
            Direction::Backward => self.range_rev(op, lower, upper, |key, value| taking.take(key, value))?,
        }
        Ok(taking.more)
    }
}

/// What a step of a walk has met.
struct Taking<'p> {
    pairs: &'p mut Pairs,
    /// How many pairs it takes, and how many of them it has not met yet.
    most: usize,
    left: usize,
    /// Whether it has ended before the range.
    more: bool,
}

impl Taking<'_> {
    #[inline(always)]
    fn take<M: Medium>(&mut self, key: &[u8], value: crate::Value<'_, M>) -> ControlFlow<()> {
        if self.left == self.most {
            self.reserve(key.len() + value.len());
        }
        match (<[u8; 8]>::try_from(key), value.word()) {
            (Ok(key), Some(word)) => self.pairs.push_words(key, word.to_le_bytes()),
            _ => self.pairs.push_with(key, |bytes| value.append_to(bytes)),
        }
        self.left -= 1;
        self.more = self.left == 0 || self.pairs.bytes() >= STEP_BYTES;
        if self.more { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    }

    /// Makes room for all pairs at once, if the others are as long as the first.
    #[inline(always)]
    fn reserve(&mut self, bytes: usize) {
        let fits = self.most.saturating_mul(bytes) <= STEP_BYTES;
        self.pairs.reserve(self.most, if fits { bytes } else { STEP_BYTES / self.most });
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

/// Pairs of a first step, where nobody says how many are asked for.
const FEW: usize = 8;

/// A walk that takes several pairs at a time, and goes on behind the last of them.
struct Walk<'a, M: Medium> {
    tree: &'a Masstree<M>,
    /// What was left before the last step.
    range: KeyRange,
    direction: Direction,
    /// How many pairs the next step takes: more each time, as short walks are frequent.
    take: usize,
    /// What the last step has met.
    pairs: Pairs,
    /// The pair to be lent out next.
    at: usize,
    more: bool,
    /// Why the last step has ended early: told when what it had met is lent out.
    failed: Option<Error>,
}

impl<'a, M: Medium> Walk<'a, M> {
    fn new(tree: &'a Masstree<M>, range: KeyRange, direction: Direction) -> Self {
        let more = !range.is_empty();
        Walk { tree, range, direction, take: FEW, pairs: Pairs::new(), at: 0, more, failed: None }
    }

    /// Takes the next pairs of the range.
    fn step(&mut self, op: &Op<'_, M>) {
        let Walk { tree, range, direction, take, pairs, at, more, failed } = self;
        if let Some((last, _)) = pairs.last() {
            let reached = Bound::Excluded(last.to_vec());
            match direction {
                Direction::Forward => range.lower = reached,
                Direction::Backward => range.upper = reached,
            }
        }
        pairs.clear();
        let bounds = (borrowed(&range.lower), borrowed(&range.upper));
        let read = tree.read_range(op, bounds, *direction, *take, pairs);
        *more = read.unwrap_or_else(|error| {
            *failed = Some(error);
            false
        });
        (*at, *take) = (0, (*take * 2).clamp(FEW, STEP));
    }
}

fn borrowed(bound: &Bound<Vec<u8>>) -> Bound<&[u8]> {
    bound.as_ref().map(Vec::as_slice)
}

impl<M: Medium> Cursor<M> for Walk<'_, M> {
    fn next(&mut self, op: &Op<'_, M>) -> Result<Option<(&[u8], &[u8])>> {
        if self.at == self.pairs.len() && self.more {
            self.step(op);
        }
        if self.at == self.pairs.len() {
            return self.failed.take().map_or(Ok(None), Err);
        }
        Cursor::<M>::ready(self)
    }

    #[inline]
    fn ready(&mut self) -> Result<Option<(&[u8], &[u8])>> {
        let pair = self.pairs.get(self.at);
        self.at += usize::from(pair.is_some());
        Ok(pair)
    }

    fn expect(&mut self, pairs: usize) {
        self.take = pairs.clamp(1, STEP);
    }
}
