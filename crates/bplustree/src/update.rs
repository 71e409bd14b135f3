//! Updates: each is a transaction of the engine, made under the tree's latch.
//!
//! A leaf that is full is split in two; a key beyond its last one goes into a leaf of its own, so keys that come in order fill
//! their leaves. A node with fewer than `FEW` entries is merged with a neighbour of the same parent if both fit into one node. A merge
//! needs no new block, so a removal needs none.

use std::sync::atomic::Ordering;

use durix_pmem::pool::tally::Totals;
use durix_pmem::{Medium, Op};
use durix_rewind::engine::{Changes, Contents};

use crate::BPlusTree;
use crate::error::{Error, Result};
use crate::layout::{Form, NODE, Order, SLOTS, at, first_word, tag};
use crate::node::{Node, Path, RECORD_HEAD, Record, Slot, Words, child, key_of, leaf_of};
use crate::read::find;

/// A node with fewer entries is merged, if a neighbour leaves it.
pub(crate) const FEW: usize = 4;
/// Entries of a node that a merge makes, at most: room for some more before it is split.
const MERGED: usize = 12;
/// Contents of a record in bytes up to which they go through the log.
const LOGGED: u64 = 1 << 10;

/// The tree as a transaction under way leaves it.
pub(crate) struct Txn<'t, 'o, 's, M: Medium> {
    op: &'o Op<'s, M>,
    changes: Changes<'t, M>,
    root_off: u64,
    block_words: u64,
    /// By how much the tree's tally grows with it.
    tally: Totals,
}

impl<M: Medium> Words for Txn<'_, '_, '_, M> {
    #[inline]
    fn word(&self, off: u64) -> u64 {
        self.changes.get(self.op, off)
    }

    fn block_words(&self) -> u64 {
        self.block_words
    }
}

impl<M: Medium> BPlusTree<M> {
    /// Runs a transaction: what `change` does happens, durably on return, or nothing does.
    pub(crate) fn write<R>(&self, op: &Op<'_, M>, change: impl Fn(&mut Txn<'_, '_, '_, M>) -> Result<R>) -> Result<R> {
        let _guard = self.poison.guard(op)?;
        let _latch = self.latch.lock(op.medium());
        match self.attempt(op, &change) {
            // Segments and freed blocks that wait for a trim may be room enough.
            Err(Error::Pool(error)) if error.is_no_room() => {
                self.engine()?.make_room(op)?;
                self.attempt(op, &change)
            }
            done => done,
        }
    }

    fn attempt<R>(&self, op: &Op<'_, M>, change: impl Fn(&mut Txn<'_, '_, '_, M>) -> Result<R>) -> Result<R> {
        let (engine, m) = (self.engine()?, op.medium());
        let (root_off, block_words) = (self.root_off, self.block_words());
        let mut txn = Txn { op, changes: engine.changes(), root_off, block_words, tally: Totals::default() };
        let done = change(&mut txn)?;
        let tally = txn.tally;
        // PERSIST BT-1: the engine's fence
        engine.commit_in(op, txn.changes, |store| {
            let version = m.shared_load(&self.version, Ordering::Relaxed);
            // Stores in place are releasing, so a reader that sees one of them sees the odd version.
            m.shared_store(&self.version, version + 1, Ordering::Relaxed);
            store();
            if let Some(told) = self.root.tally() {
                told.changed_by(op.slot(), tally);
            }
            m.shared_store(&self.version, version + 2, Ordering::Release);
        })?;
        Ok(done)
    }
}

impl<M: Medium> Txn<'_, '_, '_, M> {
    fn set(&mut self, off: u64, value: u64) -> Result<()> {
        Ok(self.changes.set(self.op, off, value)?)
    }

    fn root(&self) -> u64 {
        self.word(self.root_off)
    }

    /// Looks a key up.
    pub(crate) fn get(&self, key: &[u8], value: &mut Vec<u8>) -> Result<bool> {
        value.clear();
        find(self, self.root(), key, Some(value))
    }

    /// Whether a key is there.
    pub(crate) fn contains(&self, key: &[u8]) -> Result<bool> {
        find(self, self.root(), key, None)
    }

    /// Maps a key to a value; returns whether it is new.
    pub(crate) fn put(&mut self, key: &[u8], value: &[u8]) -> Result<bool> {
        if self.root() == 0 {
            let slot = self.new_slot(key, value)?;
            self.tally.add(slot.number(self));
            let leaf = self.new_node(0, 0, &[slot])?;
            self.set(self.root_off, leaf)?;
            return Ok(true);
        }
        let mut path = Path::new();
        let leaf = leaf_of(self, self.root(), key, Some(&mut path))?;
        match leaf.seek(self, key)? {
            Ok(place) => {
                self.replace(leaf, place, key, value)?;
                Ok(false)
            }
            Err(place) => {
                let slot = self.new_slot(key, value)?;
                self.tally.add(slot.number(self));
                self.insert(leaf, place, slot, path)?;
                Ok(true)
            }
        }
    }

    /// Removes a key; returns whether it was there.
    pub(crate) fn remove(&mut self, key: &[u8]) -> Result<bool> {
        if self.root() == 0 {
            return Ok(false);
        }
        let mut path = Path::new();
        let leaf = leaf_of(self, self.root(), key, Some(&mut path))?;
        let Ok(place) = leaf.seek(self, key)? else { return Ok(false) };
        self.tally.take(leaf.slot(self, place).number(self));
        self.free_record(leaf.slot(self, place))?;
        let leaf = self.set_order(leaf, leaf.order.remove(place))?;
        self.merge(leaf, path)?;
        Ok(true)
    }

    // ---- slots ----

    fn replace(&mut self, leaf: Node, place: usize, key: &[u8], value: &[u8]) -> Result<()> {
        let (old, slot) = (leaf.slot(self, place), leaf.order.slot(place));
        self.tally.take(old.number(self));
        let new = self.new_slot(key, value)?;
        self.tally.add(new.number(self));
        self.set_slot(leaf.off, slot, new)?;
        self.free_record(old)
    }

    /// The slot of an entry, with its record if it needs one.
    fn new_slot(&mut self, key: &[u8], value: &[u8]) -> Result<Slot> {
        let (key_form, mut value_form) = (Form::of(key.len()), Form::of(value.len()));
        if key_form == Form::RECORD {
            value_form = Form::RECORD;
        }
        let word = if value_form == Form::RECORD {
            self.new_record(if key_form == Form::RECORD { key } else { &[] }, value)?
        } else {
            first_word_of(value)
        };
        Ok(Slot { key: first_word(key), value: word, key_form, value_form })
    }

    fn new_record(&mut self, key: &[u8], value: &[u8]) -> Result<u64> {
        let (first_value, total) = (key.len().div_ceil(8), key.len().div_ceil(8) + value.len().div_ceil(8));
        let contents = if total as u64 * 8 <= LOGGED { Contents::Logged } else { Contents::Ahead };
        let word = |i: usize| match i.checked_sub(first_value) {
            None => first_word_of(&key[i * 8..]),
            Some(i) => first_word_of(&value[i * 8..]),
        };
        let room = (self.block_words - RECORD_HEAD) as usize;
        let mut next = 0;
        // From the last block to the first, so that each knows its next.
        for block in (0..total.div_ceil(room).max(1)).rev() {
            let range = block * room..total.min((block + 1) * room);
            let off = self.changes.alloc(self.op, 8 * (RECORD_HEAD + range.len() as u64), contents)?;
            let (of_key, of_value) = ((0..first_value).map(word), (first_value..total).map(word));
            let lens = if block == 0 { Record::first_word(off, (key.len(), value.len()), of_key, of_value) } else { 0 };
            // PERSIST BT-2, BT-3: the engine's commit
            self.set(off, lens)?;
            self.set(off + 8, next)?;
            for (to, from) in range.enumerate() {
                self.set(off + 8 * (RECORD_HEAD + to as u64), word(from))?;
            }
            next = off;
        }
        Ok(next)
    }

    fn free_record(&mut self, slot: Slot) -> Result<()> {
        let Some(off) = slot.record() else { return Ok(()) };
        for block in Record::read(self, off)?.blocks(self)? {
            self.changes.free(self.op, block)?;
        }
        Ok(())
    }

    fn set_slot(&mut self, node: u64, number: usize, slot: Slot) -> Result<()> {
        self.set(node + at::KEYS + 8 * number as u64, slot.key)?;
        self.set(node + at::VALUES + 8 * number as u64, slot.value)?;
        for (off, form) in [(at::KEY_FORMS, slot.key_form), (at::VALUE_FORMS, slot.value_form)] {
            let forms = self.word(node + off);
            if Form::in_word(forms, number) != form {
                self.set(node + off, form.into_word(forms, number))?;
            }
        }
        Ok(())
    }

    /// The separator with another child.
    fn with_child(&mut self, slot: Slot, child: u64) -> Result<Slot> {
        let Some(record) = slot.record() else { return Ok(Slot { value: child, ..slot }) };
        let off = Record::read(self, record)?.value_off(self)?;
        self.set(off, child)?;
        self.set(record, Record::read(self, record)?.sealed(self)?)?;
        Ok(slot)
    }

    // ---- nodes ----

    fn set_order(&mut self, node: Node, order: Order) -> Result<Node> {
        self.set(node.off + at::ORDER, order.0)?;
        Ok(Node { order, ..node })
    }

    fn new_node(&mut self, level: u64, link: u64, slots: &[Slot]) -> Result<u64> {
        let node = self.changes.alloc(self.op, NODE, Contents::Logged)?;
        let mut order = Order::EMPTY;
        let (mut keys, mut values) = (0, 0);
        for (number, slot) in slots.iter().enumerate() {
            order = order.insert(number);
            keys = slot.key_form.into_word(keys, number);
            values = slot.value_form.into_word(values, number);
        }
        let head = [(at::TAG, tag(level)), (at::ORDER, order.0), (at::LINK, link)];
        for (off, word) in head.into_iter().chain([(at::KEY_FORMS, keys), (at::VALUE_FORMS, values)]) {
            self.set(node + off, word)?;
        }
        for (number, slot) in slots.iter().enumerate() {
            self.set(node + at::KEYS + 8 * number as u64, slot.key)?;
            self.set(node + at::VALUES + 8 * number as u64, slot.value)?;
        }
        Ok(node)
    }

    /// Puts a slot into a node at a place, splitting what is full, up to the root.
    fn insert(&mut self, node: Node, place: usize, slot: Slot, mut path: Path) -> Result<()> {
        if node.len() < SLOTS {
            return self.insert_into(node, place, slot);
        }
        let (separator, right) = self.split(node, place, slot)?;
        let separator = self.with_child(separator, right)?;
        match path.pop() {
            Some((parent, number)) => self.insert(parent, number, separator, path),
            None => {
                let root = self.new_node(node.level + 1, node.off, &[separator])?;
                self.set(self.root_off, root)
            }
        }
    }

    fn insert_into(&mut self, node: Node, place: usize, slot: Slot) -> Result<()> {
        self.set_slot(node.off, node.order.slot(node.len()), slot)?;
        self.set_order(node, node.order.insert(place))?;
        Ok(())
    }

    /// Splits a full node into itself and a new one, one slot more in both than before. Returns the separator, whose child is to be
    /// set, and the new node.
    fn split(&mut self, node: Node, place: usize, slot: Slot) -> Result<(Slot, u64)> {
        let mut slots: Vec<Slot> = (0..SLOTS).map(|place| node.slot(self, place)).collect();
        slots.insert(place, slot);
        let is_leaf = node.level == 0;
        let middle = match place == SLOTS {
            true if is_leaf => SLOTS,
            true => SLOTS - 1,
            false => SLOTS.div_ceil(2),
        };
        let (separator, right) = if is_leaf {
            let separator = self.separator(slots[middle - 1], slots[middle])?;
            let right = self.new_node(0, self.word(node.off + at::LINK), &slots[middle..])?;
            self.set(node.off + at::LINK, right)?;
            (separator, right)
        } else {
            let up = slots[middle];
            (up, self.new_node(node.level, child(self, up)?, &slots[middle + 1..])?)
        };
        let is_left = place < middle;
        let left = Node { order: node.order.truncate(middle - usize::from(is_left)), ..node };
        if is_left {
            self.insert_into(left, place, slot)?;
        } else {
            self.set_order(left, left.order)?;
        }
        Ok((separator, right))
    }

    /// A separator between two neighbours: the shortest prefix of the right one that is above the left one.
    fn separator(&mut self, left: Slot, right: Slot) -> Result<Slot> {
        let (mut low, mut high) = (Vec::new(), Vec::new());
        key_of(self, left, &mut low)?;
        key_of(self, right, &mut high)?;
        let common = low.iter().zip(&high).take_while(|(a, b)| a == b).count();
        // Its child is set when the right node is there.
        self.new_slot(&high[..high.len().min(common + 1)], &[0; 8])
    }

    /// Merges a node that has become small, and what that makes small, up to the root.
    fn merge(&mut self, node: Node, mut path: Path) -> Result<()> {
        if node.len() >= FEW {
            return Ok(());
        }
        let Some((parent, number)) = path.pop() else {
            if node.level > 0 && node.len() == 0 {
                let only = self.word(node.off + at::LINK);
                self.set(self.root_off, only)?;
                self.changes.free(self.op, node.off)?;
            }
            return Ok(());
        };
        let place = if number < parent.len() { number } else { number.wrapping_sub(1) };
        if place >= parent.len() {
            return Ok(());
        }
        let (left, right) = (parent.child(self, place)?, parent.child(self, place + 1)?);
        let total = left.len() + right.len() + usize::from(node.level > 0);
        let most = if left.len() == 0 || right.len() == 0 { SLOTS } else { MERGED };
        if total > most {
            return Ok(());
        }
        self.absorb(left, right, parent.slot(self, place))?;
        let parent = self.set_order(parent, parent.order.remove(place))?;
        self.merge(parent, path)
    }

    /// Moves all of the right node into the left one, and frees it.
    fn absorb(&mut self, mut left: Node, right: Node, separator: Slot) -> Result<()> {
        let link = self.word(right.off + at::LINK);
        let mut slots = Vec::with_capacity(SLOTS);
        if left.level == 0 {
            self.set(left.off + at::LINK, link)?;
            self.free_record(separator)?;
        } else {
            slots.push(self.with_child(separator, link)?);
        }
        slots.extend((0..right.len()).map(|place| right.slot(self, place)));
        for slot in slots {
            self.set_slot(left.off, left.order.slot(left.len()), slot)?;
            left.order = left.order.insert(left.len());
        }
        self.set_order(left, left.order)?;
        Ok(self.changes.free(self.op, right.off)?)
    }
}

/// The first 8 bytes as a word, with zeroes behind fewer.
fn first_word_of(bytes: &[u8]) -> u64 {
    let mut word = [0; 8];
    let len = bytes.len().min(8);
    word[..len].copy_from_slice(&bytes[..len]);
    u64::from_le_bytes(word)
}

const _: () = assert!(MERGED <= SLOTS && FEW * 2 <= MERGED);
