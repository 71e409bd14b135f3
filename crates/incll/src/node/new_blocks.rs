//! Nodes and records that an operation makes, before they are part of the tree.

use std::sync::atomic::Ordering::Relaxed;

use durix_pmem::{Medium, Off};

use crate::Policy;
use crate::error::Result;
use crate::layout::{Kinds, LayerName, NODE_LINES, Node, Permutation, RecordHead, SLOTS, Stamp, place_of};
use crate::node::context::Context;
use crate::node::entry::Entry;
use crate::value::Record;

/// What a block is for.
#[derive(Clone, Copy)]
enum Block {
    /// A record of so many bytes.
    Record(u64),
    Border,
    Interior,
}

/// Blocks that an operation has taken; unless they are [kept](NewBlocks::keep), they are given back.
pub(crate) struct NewBlocks<'a, M: Medium, P: Policy> {
    pub(crate) cx: Context<'a, M, P>,
    taken: Vec<(u64, Block)>,
}

impl<'a, M: Medium, P: Policy> NewBlocks<'a, M, P> {
    pub(crate) fn new(cx: Context<'a, M, P>) -> Self {
        NewBlocks { cx, taken: Vec::new() }
    }

    fn take(&mut self, block: Block) -> Result<u64> {
        let cx = self.cx;
        let off = cx.with_space(|| {
            let mut local = cx.local()?;
            let cache = &mut local.as_mut().expect("made by `local`").cache;
            let (slabs, arena) = (&cx.tree.slabs, &cx.tree.arena);
            match block {
                Block::Record(bytes) => slabs.take(cx.op, arena, cx.durably(), cache, bytes),
                Block::Border => slabs.take_node(cx.op, arena, cx.durably(), cache, false),
                Block::Interior => slabs.take_node(cx.op, arena, cx.durably(), cache, true),
            }
        })?;
        self.taken.push((off, block));
        Ok(off)
    }

    /// A border node with these entries, in their order, of a layer.
    pub(crate) fn border(&mut self, entries: &[Entry], layer: LayerName) -> Result<Off<Node>> {
        let lines = entries.len().div_ceil(4);
        // The last line has the layer.
        let off = self.node(false, ((2 << lines) - 1) | 1 << (NODE_LINES - 1))?;
        self.cx.fill_fresh(off, entries, layer);
        Ok(off)
    }

    /// An interior node, with nothing in it.
    pub(crate) fn interior(&mut self) -> Result<Off<Node>> {
        self.node(true, Stamp::ALL_LINES)
    }

    /// A node of which `lines` will be written: they are noted, and its first line is zero. What else a block holds is not
    /// looked at in a node that says so: slots that are not live, keys that do not count.
    fn node(&mut self, interior: bool, lines: u64) -> Result<Off<Node>> {
        let cx = self.cx;
        let off = Off::<Node>::new(self.take(if interior { Block::Interior } else { Block::Border })?);
        let node = &cx.op.slice("a fresh node", off, 1)?[0];
        for word in [&node.version, &node.middle[0], &node.middle[1]].into_iter().chain(&node.rest[..4]) {
            cx.op.store(word, 0, Relaxed);
        }
        let (epoch, lines) = if P::DURABLE { (cx.epoch, lines) } else { (0, 0) };
        cx.op.store(&node.stamp, Stamp::new(epoch, interior, true, 0).in_round(cx.round, lines), Relaxed);
        if P::DURABLE {
            cx.note_lines(node, lines);
        }
        Ok(off)
    }

    /// A record.
    pub(crate) fn record(&mut self, suffix: &[u8], value: &[u8]) -> Result<u64> {
        let cx = self.cx;
        let bytes = RecordHead::new(suffix.len(), value.len()).bytes();
        let off = self.take(Block::Record(bytes))?;
        Record::write(cx.op, off, suffix, value)?;
        if P::DURABLE {
            cx.tree.epochs.dirty(cx.op, Record::all_words(cx.op, off, bytes)?);
        }
        Ok(off)
    }

    /// They are part of the tree now.
    pub(crate) fn keep(mut self) {
        self.taken.clear();
    }
}

impl<M: Medium, P: Policy> Drop for NewBlocks<'_, M, P> {
    fn drop(&mut self) {
        if self.taken.is_empty() {
            return;
        }
        let cx = self.cx;
        let Ok(mut local) = cx.local() else { return };
        let cache = &mut local.as_mut().expect("made by `local`").cache;
        for (off, block) in self.taken.drain(..) {
            let bytes = if let Block::Record(bytes) = block { Some(bytes) } else { None };
            // A block that cannot be given back was damaged meanwhile: a check reports it.
            let _ = cx.tree.slabs.untake(cx.op, cx.durably(), cache, off, bytes);
        }
    }
}

impl<M: Medium, P: Policy> Context<'_, M, P> {
    /// Writes entries, in their order, into a node of a layer that nobody sees.
    fn fill_fresh(&self, off: Off<Node>, entries: &[Entry], layer: LayerName) {
        let (op, border) = (self.op, self.border(off));
        let (mut kinds, mut inline) = (Kinds::default(), place_of(off.get()) ^ layer.seal());
        border.slots[SLOTS].iter().zip(layer.words()).for_each(|(word, bits)| op.store(word, bits, Relaxed));
        for (slot, entry) in entries.iter().enumerate() {
            op.store(&border.slots[slot][0], entry.slice, Relaxed);
            op.store(&border.slots[slot][1], entry.word, Relaxed);
            kinds = kinds.with(slot, entry.kind);
            inline |= u64::from(entry.inline) << slot;
        }
        op.store(&border.kinds, kinds, Relaxed);
        op.store(&border.inline, inline, Relaxed);
        op.store(&border.permutation, Permutation::first(entries.len()), Relaxed);
    }
}
