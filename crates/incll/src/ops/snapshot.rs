//! A border node as of one moment, for scans; and what its entries lead to.

use std::sync::atomic::Ordering::Relaxed;

use durix_pmem::{Medium, Off, Persistent, Word};

use crate::error::{Error, Result};
use crate::layout::{Border, Kinds, Node, Permutation, SLOTS, kind, version};
use crate::node::context::Context;
use crate::node::descend::{Place, purpose};
use crate::node::entry::Entry;
use crate::node::part::Part;
use crate::node::read::Wait;
use crate::value::{Record, Value};
use crate::{MAX_KEY, Policy};

/// Words of a record that are asked for ahead: two lines. What comes after them the processor fetches by itself.
const RECORD_START: usize = 16;

/// What a border node holds at one moment.
pub(crate) struct Snapshot {
    /// Key slices and values, by rank.
    pairs: [[u64; 2]; SLOTS],
    permutation: Permutation,
    kinds: Kinds,
    inline: u64,
    /// Right sibling.
    pub(crate) next: Off<Node>,
    /// Where the node's slices start (known to [reverse](purpose::REVERSE) scans) and end.
    pub(crate) low: Option<u64>,
    pub(crate) high: Option<u64>,
}

impl Snapshot {
    pub(crate) fn new() -> Self {
        Snapshot {
            pairs: [[0; 2]; SLOTS],
            permutation: Permutation::EMPTY,
            kinds: Kinds::default(),
            inline: 0,
            next: Off::NULL,
            low: None,
            high: None,
        }
    }

    /// Number of entries.
    #[inline(always)]
    pub(crate) fn len(&self) -> usize {
        self.permutation.len()
    }

    /// The entry of a rank. Precondition: `rank < len`.
    #[inline(always)]
    pub(crate) fn entry(&self, rank: usize) -> Entry {
        let slot = self.permutation.slot(rank);
        let [slice, word] = self.pairs[rank];
        Entry { slice, kind: self.kinds.get(slot), inline: self.inline >> slot & 1 == 1, word }
    }

    /// How many entries lie before a part.
    #[inline(always)]
    pub(crate) fn before(&self, part: Part) -> usize {
        let mut rank = 0;
        while rank < self.len() && self.entry(rank).part() < part {
            rank += 1;
        }
        rank
    }
}

impl<'a, M: Medium, P: Policy> Context<'a, M, P> {
    /// The border node of a slice, as of one moment. Returns whether the layer is still part of the tree.
    #[inline(always)]
    pub(crate) fn snapshot<const FOR: u8>(&self, root: Off<Node>, slice: u64, into: &mut Snapshot) -> Result<bool> {
        let mut wait = Wait::new();
        loop {
            let Some(place) = self.descend_for::<FOR>(root, slice)? else { return Ok(false) };
            if self.copy::<FOR>(place, into) {
                return Ok(true);
            }
            wait.again(self, root)?;
        }
    }

    /// Copies a border node. Returns whether the copy is of one moment.
    #[inline(always)]
    fn copy<const FOR: u8>(&self, place: Place<'a>, into: &mut Snapshot) -> bool {
        let (op, border) = (self.op, place.node.view::<Border>());
        let next = op.load(&border.next, Relaxed);
        if FOR == purpose::ASCEND {
            op.prefetch(next);
        }
        into.permutation = op.load(&border.permutation, Relaxed);
        into.kinds = op.load(&border.kinds, Relaxed);
        into.inline = op.load(&border.inline, Relaxed);
        for (rank, to) in into.pairs.iter_mut().enumerate().take(into.permutation.len()) {
            let [slice, word] = &border.slots[into.permutation.slot(rank)];
            *to = [op.load(slice, Relaxed), op.load(word, Relaxed)];
        }
        let high = op.load(&border.high, Relaxed);
        (into.next, into.low, into.high) = (next, place.low, (!next.is_null()).then_some(high));
        self.is_still(place.node, place.version)
    }

    /// The right sibling of a node that was copied, as of one later moment, where it holds `slice`, at which it started when it was
    /// the sibling. Returns whether it does: it may start earlier now, never later, and what lies before `slice` is where the scan
    /// has been; if it was split since, it may also end before it.
    #[inline(always)]
    pub(crate) fn sibling(&self, next: Off<Node>, slice: u64, into: &mut Snapshot) -> Result<bool> {
        let (node, version) = self.enter(next)?;
        let gone = version & version::DELETED != 0 || self.op.load(&node.stamp, Relaxed).is_interior();
        let place = Place { node, version, above: None, low: None };
        Ok(!gone && self.copy::<{ purpose::ASCEND }>(place, into) && into.high.is_none_or(|high| slice < high))
    }

    /// What an entry that is no layer leads to: appends its bytes to the key, and returns its value.
    #[inline(always)]
    pub(crate) fn resolve(&self, entry: Entry, key: &mut Vec<u8>) -> Result<Value<'a, M>> {
        let bytes = entry.slice.to_be_bytes();
        key.extend_from_slice(&bytes[..entry.kind.min(8) as usize]);
        if entry.kind <= kind::LAST_SHORT {
            return self.short_value(entry);
        }
        let record = Record::read(self.op, entry.word)?;
        if entry.kind == kind::SUFFIX {
            if record.head.suffix() == 0 {
                return Err(self.corrupt("a record without the rest of its key", Off::new(entry.word), 0));
            }
            // A scan that goes on from a longer key would come to it again.
            if key.len() + record.head.suffix() > MAX_KEY {
                let claimed = record.head.suffix() as u64;
                return Err(self.corrupt(
                    "a record with more of a key than there can be",
                    Off::new(entry.word),
                    claimed,
                ));
            }
            record.suffix_into(key);
        }
        Ok(record.value())
    }

    /// The value of a key that ends in its slice.
    #[inline(always)]
    pub(crate) fn short_value(&self, entry: Entry) -> Result<Value<'a, M>> {
        Ok(if entry.inline { Value::inline(self.op, entry.word) } else { Record::read(self.op, entry.word)?.value() })
    }

    /// Keys that do not ascend: without this a scan that goes on from the last key it has met could go in a circle.
    #[cold]
    pub(crate) fn out_of_order(&self, layer: Off<Node>, entry: Entry) -> Error {
        self.corrupt("a key out of order, in the layer", layer, entry.slice)
    }

    /// Asks for the records of entries that a scan comes to soon, `count` of them at most from `rank` on: each value out of line is
    /// a miss of its own, and they are not waited for one by one then. Returns whether there is any.
    #[inline(always)]
    pub(crate) fn ask_for_records(&self, snapshot: &Snapshot, rank: usize, count: usize) -> bool {
        let mut asked = false;
        for rank in rank..snapshot.len().min(rank.saturating_add(count)) {
            let entry = snapshot.entry(rank);
            if !entry.inline && entry.kind != kind::LAYER {
                self.op.prefetch(Off::<[Word; RECORD_START]>::new(entry.word));
                asked = true;
            }
        }
        asked
    }

    /// The same for the first `count` entries of the next node, if there is one: its records come while the caller waits for
    /// those of this node. A hint: what is read need not be of one moment.
    #[inline(always)]
    pub(crate) fn ask_for_records_of(&self, next: Off<Node>, count: usize) {
        if count == 0 || next.is_null() {
            return;
        }
        let (op, border) = (self.op, self.border(next));
        let permutation = op.load(&border.permutation, Relaxed);
        let (kinds, inline) = (op.load(&border.kinds, Relaxed), op.load(&border.inline, Relaxed));
        for rank in 0..permutation.len().min(count) {
            let slot = permutation.slot(rank);
            if inline >> slot & 1 == 0 && kinds.get(slot) != kind::LAYER {
                op.prefetch(Off::<[Word; RECORD_START]>::new(op.load(&border.slots[slot][1], Relaxed)));
            }
        }
    }
}
