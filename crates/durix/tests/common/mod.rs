//! An ordered index in volatile memory: what the vocabulary of order is tested on.

use std::collections::BTreeMap;
use std::fmt;
use std::ops::Bound;
use std::sync::{Mutex, MutexGuard};

use durix::{
    Cursor, Direction, Durability, Finding, Index, IndexStats, KeyRange, Lengths, Limits, Medium, Op, OrderedIndex,
};
use durix_pmem::{Kind, Root, Session, Structure};

/// Pairs in a `BTreeMap`; buffered, as nothing of it survives.
pub struct Model<M: Medium> {
    root: Root<M>,
    pairs: Mutex<BTreeMap<Vec<u8>, Vec<u8>>>,
}

impl<M: Medium> Structure<M> for Model<M> {
    const KIND: Kind = Kind { tag: *b"TESTTREE", version: durix_pmem::Version::new(1) };
    type Options = ();
    type Error = durix_pmem::Error;

    fn create(_: &mut Session<M>, _: &Root<M>, (): &()) -> Result<(), Self::Error> {
        Ok(())
    }

    fn open(_: &mut Session<M>, root: Root<M>, (): &()) -> Result<Self, Self::Error> {
        Ok(Model { root, pairs: Mutex::default() })
    }
}

impl<M: Medium> Model<M> {
    fn pairs(&self) -> MutexGuard<'_, BTreeMap<Vec<u8>, Vec<u8>>> {
        self.pairs.lock().unwrap()
    }
}

impl<M: Medium> Index<M> for Model<M> {
    fn root(&self) -> &Root<M> {
        &self.root
    }

    fn durability(&self) -> Durability {
        Durability::Buffered
    }

    fn limits(&self) -> Limits {
        Limits { key: Lengths::UpTo(usize::MAX), value: Lengths::UpTo(usize::MAX), batch: usize::MAX }
    }

    fn as_ordered(&self) -> Option<&dyn OrderedIndex<M>> {
        Some(self)
    }

    fn get(&self, _: &Op<'_, M>, key: &[u8], value: &mut Vec<u8>) -> durix::Result<bool> {
        value.clear();
        Ok(self.pairs().get(key).is_some_and(|v| {
            value.extend_from_slice(v);
            true
        }))
    }

    fn contains(&self, _: &Op<'_, M>, key: &[u8]) -> durix::Result<bool> {
        Ok(self.pairs().contains_key(key))
    }

    fn cursor(&self) -> Box<dyn Cursor<M> + '_> {
        self.range(&KeyRange::all(), Direction::Forward)
    }

    fn insert(&self, _: &Op<'_, M>, key: &[u8], value: &[u8]) -> durix::Result<bool> {
        Ok(self.pairs().insert(key.to_vec(), value.to_vec()).is_none())
    }

    fn update(&self, _: &Op<'_, M>, key: &[u8], value: &[u8]) -> durix::Result<bool> {
        Ok(self.pairs().get_mut(key).is_some_and(|v| {
            *v = value.to_vec();
            true
        }))
    }

    fn compare_and_set(
        &self,
        _: &Op<'_, M>,
        key: &[u8],
        expected: Option<&[u8]>,
        new: Option<&[u8]>,
    ) -> durix::Result<bool> {
        let mut pairs = self.pairs();
        if pairs.get(key).map(Vec::as_slice) != expected {
            return Ok(false);
        }
        match new {
            Some(value) => _ = pairs.insert(key.to_vec(), value.to_vec()),
            None => _ = pairs.remove(key),
        }
        Ok(true)
    }

    fn remove(&self, _: &Op<'_, M>, key: &[u8]) -> durix::Result<bool> {
        Ok(self.pairs().remove(key).is_some())
    }

    fn check(&self, _: &mut Session<M>) -> durix::Result<Vec<Finding>> {
        Ok(Vec::new())
    }

    fn stats(&self, session: &mut Session<M>) -> durix::Result<IndexStats> {
        Ok(IndexStats::new(self.count(session)?, 0, None))
    }

    fn dump(&self, _: &Op<'_, M>, out: &mut dyn fmt::Write) -> fmt::Result {
        write!(out, "{:?}", self.pairs())
    }
}

impl<M: Medium> OrderedIndex<M> for Model<M> {
    fn range(&self, range: &KeyRange, direction: Direction) -> Box<dyn Cursor<M> + '_> {
        Box::new(Walk { model: self, range: range.clone(), direction, pair: Default::default() })
    }
}

/// A walk that looks up, step by step, what comes after its last key.
struct Walk<'a, M: Medium> {
    model: &'a Model<M>,
    range: KeyRange,
    direction: Direction,
    pair: (Vec<u8>, Vec<u8>),
}

impl<M: Medium> Cursor<M> for Walk<'_, M> {
    fn next(&mut self, _: &Op<'_, M>) -> durix::Result<Option<(&[u8], &[u8])>> {
        if self.range.is_empty() {
            return Ok(None);
        }
        let pairs = self.model.pairs();
        let range = (self.range.lower.as_ref(), self.range.upper.as_ref());
        // `BTreeMap` panics where both bounds exclude one key; `is_empty` has ruled that out.
        let mut range = pairs.range::<Vec<u8>, _>(range);
        let found = if self.direction == Direction::Forward { range.next() } else { range.next_back() };
        let Some((key, value)) = found else { return Ok(None) };
        self.pair = (key.clone(), value.clone());
        let reached = Bound::Excluded(key.clone());
        match self.direction {
            Direction::Forward => self.range.lower = reached,
            Direction::Backward => self.range.upper = reached,
        }
        Ok(Some((&self.pair.0, &self.pair.1)))
    }
}
