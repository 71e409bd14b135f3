//! Reading nodes and records: through an operation, or as the changes of an unfinished transaction leave them.

use std::cmp::Ordering;

use durix_pmem::{Checksum, Medium};

use crate::error::{Error, Result};
use crate::layout::{Form, MAX_LEVEL, Order, at, first_word, level_of};

/// Where words are read. Total: an offset that is nothing's gives any value.
pub(crate) trait Words {
    /// The word at an offset.
    fn word(&self, off: u64) -> u64;
    /// Words of a block of a record, its two first ones included.
    fn block_words(&self) -> u64;
}

/// Committed words.
pub(crate) struct Committed<'a, 's, M: Medium> {
    pub(crate) op: &'a durix_pmem::Op<'s, M>,
    pub(crate) block_words: u64,
}

impl<M: Medium> Words for Committed<'_, '_, M> {
    #[inline]
    fn word(&self, off: u64) -> u64 {
        self.op.load(self.op.at(durix_pmem::Off::<durix_pmem::Word>::new(off)), std::sync::atomic::Ordering::Acquire)
    }

    fn block_words(&self) -> u64 {
        self.block_words
    }
}

/// Words of a record's block before its contents.
pub(crate) const RECORD_HEAD: u64 = 2;
/// Longest key in bytes.
pub(crate) const MAX_KEY: usize = u16::MAX as usize;
/// Longest value in bytes.
pub(crate) const MAX_VALUE: usize = 16 << 20;

/// A slot: all that a node says of an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Slot {
    /// The first bytes of the key.
    pub(crate) key: u64,
    /// Bytes of the value, or a child, or the offset of a record.
    pub(crate) value: u64,
    pub(crate) key_form: Form,
    pub(crate) value_form: Form,
}

impl Slot {
    /// The offset of its record, if it has one.
    pub(crate) fn record(self) -> Option<u64> {
        (self.key_form.len().is_none() || self.value_form.len().is_none()).then_some(self.value)
    }

    /// The number of an entry in the tree's tally: by its slot, and by the first word of its record, which has a checksum of the rest.
    #[inline]
    pub(crate) fn number(self, words: &impl Words) -> u64 {
        let [key, value] = [self.key_form, self.value_form].map(|form| form.len().map_or(0xff, |len| len as u64));
        let sum = Checksum::at(key << 8 | value).pair(self.key, self.value);
        self.record().map_or(sum, |off| sum.pair(words.word(off), 0)).finish()
    }
}

/// A node's head, read once.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Node {
    pub(crate) off: u64,
    pub(crate) level: u64,
    pub(crate) order: Order,
}

impl Node {
    /// The root node.
    pub(crate) fn root(words: &impl Words, off: u64) -> Result<Node> {
        let tag = words.word(off + at::TAG);
        let level = level_of(tag).filter(|_| off.is_multiple_of(64));
        let level = level.ok_or(Error::Corrupt { what: "the tag of a node", offset: off, found: tag })?;
        Ok(Node { off, level, order: Order(words.word(off + at::ORDER)) })
    }

    /// A node that has to be of a level.
    #[inline]
    pub(crate) fn of_level(words: &impl Words, off: u64, level: u64) -> Result<Node> {
        let node = Node::root(words, off)?;
        if node.level != level {
            return Err(Error::Corrupt { what: "the level of a node", offset: off, found: node.level });
        }
        Ok(node)
    }

    /// Entries; separators in an interior node.
    #[inline]
    pub(crate) fn len(self) -> usize {
        self.order.len()
    }

    /// The slot at a place in the order of keys.
    pub(crate) fn slot(self, words: &impl Words, place: usize) -> Slot {
        let slot = self.order.slot(place);
        Slot {
            key: words.word(self.off + at::KEYS + 8 * slot as u64),
            value: words.word(self.off + at::VALUES + 8 * slot as u64),
            key_form: Form::in_word(words.word(self.off + at::KEY_FORMS), slot),
            value_form: Form::in_word(words.word(self.off + at::VALUE_FORMS), slot),
        }
    }

    /// Where a key is, or where it belongs.
    pub(crate) fn seek(self, words: &impl Words, key: &[u8]) -> Result<Result<usize, usize>> {
        let first = first_word(key);
        let (mut low, mut high) = (0, self.len());
        while low < high {
            let middle = (low + high) / 2;
            match self.compare(words, middle, first, key)? {
                Ordering::Less => low = middle + 1,
                Ordering::Greater => high = middle,
                Ordering::Equal => return Ok(Ok(middle)),
            }
        }
        Ok(Err(low))
    }

    /// How the key at a place compares to another.
    #[inline]
    fn compare(self, words: &impl Words, place: usize, first: u64, key: &[u8]) -> Result<Ordering> {
        let slot = self.order.slot(place);
        let found = words.word(self.off + at::KEYS + 8 * slot as u64);
        if found != first {
            return Ok(found.cmp(&first));
        }
        match Form::in_word(words.word(self.off + at::KEY_FORMS), slot).len() {
            // Where the first 8 bytes agree, zeroes behind a short key included, the shorter key is a prefix of the longer one.
            Some(len) => Ok(len.cmp(&key.len())),
            None if key.len() <= 8 => Ok(Ordering::Greater),
            None => Record::read(words, words.word(self.off + at::VALUES + 8 * slot as u64))?.compare(words, key),
        }
    }

    /// The number of the child that a key belongs to: 0 is the one below all separators.
    pub(crate) fn child_of(self, words: &impl Words, key: &[u8]) -> Result<usize> {
        Ok(match self.seek(words, key)? {
            Ok(place) => place + 1,
            Err(place) => place,
        })
    }

    /// A child by its number.
    #[inline]
    pub(crate) fn child(self, words: &impl Words, number: usize) -> Result<Node> {
        let off = match number.checked_sub(1) {
            None => words.word(self.off + at::LINK),
            Some(place) => child(words, self.slot(words, place))?,
        };
        let level = self.level.checked_sub(1);
        let level = level.ok_or(Error::Corrupt { what: "the level of a node", offset: self.off, found: 0 })?;
        Node::of_level(words, off, level)
    }
}

/// The child that a separator leads to.
pub(crate) fn child(words: &impl Words, slot: Slot) -> Result<u64> {
    match slot.record() {
        Some(off) => Ok(words.word(Record::read(words, off)?.value_off(words)?)),
        None => Ok(slot.value),
    }
}

/// Puts the bytes of a slot's key behind others.
pub(crate) fn key_of(words: &impl Words, slot: Slot, into: &mut Vec<u8>) -> Result<()> {
    match slot.key_form.len() {
        Some(len) => into.extend_from_slice(&slot.key.to_be_bytes()[..len]),
        None => Record::read(words, slot.value)?.key(words, into)?,
    }
    Ok(())
}

/// Puts the bytes of a slot's value behind others.
pub(crate) fn value_of(words: &impl Words, slot: Slot, into: &mut Vec<u8>) -> Result<()> {
    match slot.value_form.len() {
        Some(len) => into.extend_from_slice(&slot.value.to_le_bytes()[..len]),
        None => Record::read(words, slot.value)?.value(words, into)?,
    }
    Ok(())
}

/// The head of a record.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Record {
    pub(crate) off: u64,
    pub(crate) key: u64,
    pub(crate) value: u64,
}

/// Where the bytes of the value begin in the first word of a record.
const VALUE: u32 = 16;
/// Where its checksum begins.
const SUM: u32 = 41;
/// What the checksum covers of the first word.
const LENGTHS: u64 = (1 << SUM) - 1;

impl Record {
    /// The first word of a record at an offset, by the words of its key and of its value.
    pub(crate) fn first_word(
        off: u64,
        (key_len, value_len): (usize, usize),
        key: impl Iterator<Item = u64>,
        value: impl Iterator<Item = u64>,
    ) -> u64 {
        let lens = key_len as u64 | (value_len as u64) << VALUE;
        lens | Checksum::at(off).pair(lens, 0).words(key).words(value).finish() << SUM
    }

    /// What its first word should be, by what it holds. Reads all of it.
    pub(crate) fn sealed(self, words: &impl Words) -> Result<u64> {
        let room = words.block_words() - RECORD_HEAD;
        let (mut block, mut place, mut contents) = (self.off, 0, Vec::new());
        for _ in 0..self.words() {
            if place == room {
                (block, place) = (next_block(words, block)?, 0);
            }
            contents.push(words.word(block + 8 * (RECORD_HEAD + place)));
            place += 1;
        }
        let (key, value) = contents.split_at(self.key.div_ceil(8) as usize);
        let lens = (self.key as usize, self.value as usize);
        Ok(Record::first_word(self.off, lens, key.iter().copied(), value.iter().copied()))
    }

    /// Whether its checksum is right.
    pub(crate) fn is_sealed(self, words: &impl Words) -> Result<bool> {
        Ok(self.sealed(words)? == words.word(self.off))
    }

    pub(crate) fn read(words: &impl Words, off: u64) -> Result<Record> {
        let lens = words.word(off);
        // All bits of a key's length count.
        let (key, value) = (lens & MAX_KEY as u64, (lens & LENGTHS) >> VALUE);
        if value > MAX_VALUE as u64 || !off.is_multiple_of(64) {
            return Err(Error::Corrupt { what: "the lengths of a record", offset: off, found: lens });
        }
        Ok(Record { off, key, value })
    }

    /// Words of its contents.
    pub(crate) fn words(self) -> u64 {
        self.value.div_ceil(8) + self.key.div_ceil(8)
    }

    /// The offset of the first word of its value.
    pub(crate) fn value_off(self, words: &impl Words) -> Result<u64> {
        let (block, place) = self.place(words, self.key.div_ceil(8))?;
        Ok(block + 8 * (RECORD_HEAD + place))
    }

    /// The block that a word of its contents is in, and its place there.
    fn place(self, words: &impl Words, word: u64) -> Result<(u64, u64)> {
        let room = words.block_words() - RECORD_HEAD;
        let block = (0..word / room).try_fold(self.off, |block, _| next_block(words, block))?;
        Ok((block, word % room))
    }

    fn key(self, words: &impl Words, into: &mut Vec<u8>) -> Result<()> {
        self.copy(words, 0, self.key, into)
    }

    fn value(self, words: &impl Words, into: &mut Vec<u8>) -> Result<()> {
        self.copy(words, self.key.div_ceil(8), self.value, into)
    }

    /// How its key compares to another.
    fn compare(self, words: &impl Words, key: &[u8]) -> Result<Ordering> {
        let room = words.block_words() - RECORD_HEAD;
        let (mut block, mut place) = (self.off, 0);
        for other in key[..key.len().min(self.key as usize)].chunks(8) {
            if place == room {
                (block, place) = (next_block(words, block)?, 0);
            }
            let own = words.word(block + 8 * (RECORD_HEAD + place)).to_le_bytes();
            if own[..other.len()] != *other {
                return Ok(own[..other.len()].cmp(other));
            }
            place += 1;
        }
        Ok((self.key as usize).cmp(&key.len()))
    }

    /// Puts `len` bytes, from a word of the contents on, behind others.
    fn copy(self, words: &impl Words, from: u64, len: u64, into: &mut Vec<u8>) -> Result<()> {
        let room = words.block_words() - RECORD_HEAD;
        let (mut block, mut place) = if len == 0 { (self.off, 0) } else { self.place(words, from)? };
        let mut left = len as usize;
        into.reserve(left);
        while left > 0 {
            if place == room {
                (block, place) = (next_block(words, block)?, 0);
            }
            let bytes = words.word(block + 8 * (RECORD_HEAD + place)).to_le_bytes();
            let taken = left.min(8);
            into.extend_from_slice(&bytes[..taken]);
            (place, left) = (place + 1, left - taken);
        }
        Ok(())
    }

    /// Its blocks.
    pub(crate) fn blocks(self, words: &impl Words) -> Result<Vec<u64>> {
        let room = words.block_words() - RECORD_HEAD;
        let mut blocks = vec![self.off];
        for _ in 1..self.words().div_ceil(room).max(1) {
            let last = *blocks.last().expect("the first");
            blocks.push(next_block(words, last)?);
        }
        Ok(blocks)
    }
}

fn next_block(words: &impl Words, block: u64) -> Result<u64> {
    let next = words.word(block + 8);
    if next == 0 || !next.is_multiple_of(64) {
        return Err(Error::Corrupt { what: "the next block of a record", offset: block + 8, found: next });
    }
    Ok(next)
}

/// The way from the root to a leaf: interior nodes, each with the number of the child that was taken.
pub(crate) type Path = Vec<(Node, usize)>;

/// The leaf that a key belongs to, below a root.
pub(crate) fn leaf_of(words: &impl Words, root: u64, key: &[u8], mut path: Option<&mut Path>) -> Result<Node> {
    let mut node = Node::root(words, root)?;
    debug_assert!(node.level <= MAX_LEVEL);
    while node.level > 0 {
        let number = node.child_of(words, key)?;
        if let Some(path) = &mut path {
            path.push((node, number));
        }
        node = node.child(words, number)?;
    }
    Ok(node)
}
