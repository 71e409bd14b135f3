//! The records of entries that are not durable yet: see [`later`](super::later).

use super::layout::Class;
use super::table::Tag;

/// An unsettled entry.
#[derive(Clone, Copy, Debug)]
pub(super) struct Put {
    /// Where it lies.
    pub(super) off: u64,
    pub(super) version: u64,
    pub(super) tag: Tag,
    pub(super) lines: u32,
    pub(super) class: Class,
    pub(super) is_tombstone: bool,
    /// The entry that it replaces.
    pub(super) replaced: Option<Replaced>,
    /// The freed number of what its slot held; the largest if it held nothing.
    pub(super) taken: u64,
    /// The ticket that has its lines.
    pub(super) ticket: u64,
}

/// The unsettled entries of a shard, in no order.
#[derive(Debug, Default)]
pub(super) struct Puts(Vec<Put>);

impl Puts {
    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    #[inline(always)]
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Put> {
        self.0.iter()
    }

    pub(super) fn push(&mut self, put: Put) {
        self.0.push(put);
    }

    /// The entry at an offset.
    #[inline]
    pub(super) fn get(&self, off: u64) -> Option<&Put> {
        self.0.iter().find(|put| put.off == off)
    }

    #[inline]
    pub(super) fn remove(&mut self, off: u64) -> Option<Put> {
        self.0.iter().position(|put| put.off == off).map(|at| self.0.swap_remove(at))
    }
}

/// An entry that is queued for reuse when the one that replaces it is settled.
#[derive(Clone, Copy, Debug)]
pub(super) struct Replaced {
    pub(super) off: u64,
    pub(super) class: Class,
    pub(super) transaction: u64,
}
