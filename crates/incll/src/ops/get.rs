//! Looking up one key.

use std::sync::atomic::Ordering::Relaxed;

use durix_pmem::{Medium, Off, Op, Persistent};

use crate::Policy;
use crate::error::Result;
use crate::layout::{Border, Node, kind};
use crate::node::context::Context;
use crate::node::descend::Place;
use crate::node::part::Part;
use crate::node::read::Wait;
use crate::tree::Masstree;
use crate::value::{Record, Value};

/// What a border node says of a part of a key.
pub(crate) enum Found<'a, M: Medium> {
    Value(Value<'a, M>),
    Nothing,
    Layer(Off<Node>),
    /// The node was being changed.
    Again,
}

impl<'a, M: Medium, P: Policy> Context<'a, M, P> {
    #[inline(always)]
    pub(crate) fn get(&self, key: &[u8]) -> Result<Option<Value<'a, M>>> {
        let mut wait = None;
        loop {
            if let Some(found) = self.try_get(key)? {
                return Ok(found);
            }
            wait.get_or_insert_with(Wait::new).again(self, self.tree.root)?;
        }
    }

    /// `None` if something has changed on the way.
    #[inline(always)]
    fn try_get(&self, key: &[u8]) -> Result<Option<Option<Value<'a, M>>>> {
        let (mut root, mut rest) = (self.tree.root, key);
        loop {
            let part = Part::of(rest);
            let Some(place) = self.try_descend(root, part.slice)? else { return Ok(None) };
            match self.look(place, part, rest)? {
                Found::Value(value) => return Ok(Some(Some(value))),
                Found::Nothing => return Ok(Some(None)),
                Found::Layer(next) => (root, rest) = (next, &rest[8..]),
                Found::Again => return Ok(None),
            }
        }
    }

    /// Looks for the rest of a key in a border node.
    #[inline(always)]
    pub(crate) fn look(&self, place: Place<'a>, part: Part, rest: &[u8]) -> Result<Found<'a, M>> {
        let (op, border) = (self.op, place.node.view::<Border>());
        let (permutation, kinds) = (op.load(&border.permutation, Relaxed), op.load(&border.kinds, Relaxed));
        let Some(slot) = self.slot_of(border, permutation, kinds, part) else {
            return Ok(if self.is_still(place.node, place.version) { Found::Nothing } else { Found::Again });
        };
        let word = op.load(&border.slots[slot][1], Relaxed);
        let inline = op.load(&border.inline, Relaxed) >> slot & 1 == 1;
        if !self.is_still(place.node, place.version) {
            return Ok(Found::Again);
        }
        // From here on all is of one moment, and what it leads to stays as it is until the operation ends.
        match kinds.get(slot) {
            0..=kind::LAST_SHORT if inline => Ok(Found::Value(Value::inline(op, word))),
            0..=kind::LAST_SHORT => Ok(Found::Value(Record::read(op, word)?.value())),
            kind::SUFFIX => {
                let record = Record::read(op, word)?;
                Ok(if record.suffix_is(&rest[8..]) { Found::Value(record.value()) } else { Found::Nothing })
            }
            kind::LAYER => Ok(Found::Layer(Off::new(word))),
            other => Err(self.corrupt("the kind of a slot", op.off_of(place.node), other)),
        }
    }

    /// The value in a slot of a locked node.
    pub(crate) fn value_in(&self, border: &Border, slot: usize, kind: u64) -> Result<Value<'a, M>> {
        let word = self.op.load(&border.slots[slot][1], Relaxed);
        if kind <= kind::LAST_SHORT && self.op.load(&border.inline, Relaxed) >> slot & 1 == 1 {
            return Ok(Value::inline(self.op, word));
        }
        Ok(Record::read(self.op, word)?.value())
    }
}

impl<M: Medium, P: Policy> Masstree<M, P> {
    /// The value of `key`, if it is there. Takes no lock; writes only where a node has to be recovered after a crash.
    /// Logarithmic in the number of keys, linear in the length of the key.
    ///
    /// # Errors
    /// [`Error::KeyTooLong`](crate::Error::KeyTooLong), [`Error::Corrupt`](crate::Error::Corrupt),
    /// [`Error::Stuck`](crate::Error::Stuck), [`Error::Pool`](crate::Error::Pool).
    pub fn get<'a>(&'a self, op: &'a Op<'_, M>, key: &[u8]) -> Result<Option<Value<'a, M>>> {
        self.cx(op, key)?.get(key)
    }

    /// A copy of the value of `key`, if it is there.
    ///
    /// # Errors
    /// As [`get`](Self::get).
    pub fn get_vec(&self, op: &Op<'_, M>, key: &[u8]) -> Result<Option<Vec<u8>>> {
        Ok(self.get(op, key)?.map(|value| value.to_vec()))
    }

    /// Whether `key` is there.
    ///
    /// # Errors
    /// As [`get`](Self::get).
    pub fn contains(&self, op: &Op<'_, M>, key: &[u8]) -> Result<bool> {
        Ok(self.get(op, key)?.is_some())
    }
}
