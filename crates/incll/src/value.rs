//! Values as a reader sees them.

use std::fmt;
use std::sync::atomic::Ordering::Relaxed;

use durix_pmem::{Checksum, Medium, Off, Op, Word};

use crate::error::Result;
use crate::layout::RecordHead;

/// A value, for as long as the operation that has found it is open. It does not change: an update puts another in its
/// place, and its block is not used again before the operation ends.
#[derive(Clone, Copy)]
pub struct Value<'a, M: Medium> {
    op: &'a Op<'a, M>,
    place: Place<'a>,
}

#[derive(Clone, Copy)]
enum Place<'a> {
    Inline(u64),
    Words(&'a [Word], usize),
}

impl<'a, M: Medium> Value<'a, M> {
    pub(crate) fn inline(op: &'a Op<'a, M>, word: u64) -> Self {
        Value { op, place: Place::Inline(word) }
    }

    /// The value, if it lies in a node.
    #[inline(always)]
    pub(crate) fn word(&self) -> Option<u64> {
        match self.place {
            Place::Inline(word) => Some(word),
            Place::Words(..) => None,
        }
    }

    /// Bytes.
    #[inline]
    pub fn len(&self) -> usize {
        match self.place {
            Place::Inline(_) => 8,
            Place::Words(_, len) => len,
        }
    }

    /// Whether it has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The first eight bytes as a little-endian number; missing ones are zero.
    pub fn as_u64(&self) -> u64 {
        match self.place {
            Place::Inline(word) => word,
            Place::Words([first, ..], _) => self.op.load(first, Relaxed),
            Place::Words([], _) => 0,
        }
    }

    /// Replaces the content of `to` by the bytes.
    #[inline]
    pub fn read_into(&self, to: &mut Vec<u8>) {
        to.clear();
        self.append_to(to);
    }

    /// Appends the bytes to `to`.
    #[inline(always)]
    pub fn append_to(&self, to: &mut Vec<u8>) {
        match self.place {
            Place::Inline(word) => to.extend_from_slice(&word.to_le_bytes()),
            Place::Words(words, len) => self.op.append_bytes(words, len, to),
        }
    }

    /// The bytes.
    pub fn to_vec(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        self.read_into(&mut bytes);
        bytes
    }

    /// The number of an entry with this value in the tally.
    #[inline]
    pub(crate) fn number(&self, key: &[u8]) -> u64 {
        number_of(key, self.len(), self.as_u64())
    }

    /// Whether the bytes are these.
    pub fn is(&self, bytes: &[u8]) -> bool {
        match self.place {
            Place::Inline(word) => bytes == word.to_le_bytes(),
            Place::Words(words, len) => len == bytes.len() && words_are(self.op, words, bytes),
        }
    }
}

/// The number of an entry in the tally: of its key, the bytes of its value, and the first eight of them as a little-endian number. Longer values lie in
/// records, which have checksums of their own.
#[inline(always)]
pub(crate) fn number_of(key: &[u8], len: usize, first: u64) -> u64 {
    Checksum::at((key.len() << 32 | len) as u64).bytes(key).pair(first, 0).finish()
}

impl<M: Medium> fmt::Debug for Value<'_, M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Value").field(&self.to_vec()).finish()
    }
}

fn words_are<M: Medium>(op: &Op<'_, M>, words: &[Word], bytes: &[u8]) -> bool {
    let (whole, rest) = bytes.as_chunks::<8>();
    let word = |index: usize| op.load(&words[index], Relaxed).to_le_bytes();
    whole.iter().enumerate().all(|(index, chunk)| word(index) == *chunk)
        && (rest.is_empty() || word(whole.len())[..rest.len()] == *rest)
}

/// A key suffix and a value out of line; see [`RecordHead`].
#[derive(Clone, Copy)]
pub(crate) struct Record<'a, M: Medium> {
    op: &'a Op<'a, M>,
    off: u64,
    pub(crate) head: RecordHead,
    words: &'a [Word],
}

impl<'a, M: Medium> Record<'a, M> {
    pub(crate) fn read(op: &'a Op<'a, M>, off: u64) -> Result<Self> {
        let head = op.load(&op.slice("a record", Off::<Word<RecordHead>>::new(off), 1)?[0], Relaxed);
        let words = op.slice("a record", Off::<Word>::new(off + 8), head.words() as u64)?;
        Ok(Record { op, off, head, words })
    }

    /// Fills a fresh block; nobody sees it yet.
    pub(crate) fn write(op: &Op<'_, M>, off: u64, suffix: &[u8], value: &[u8]) -> Result<()> {
        let head = RecordHead::new(suffix.len(), value.len());
        let head = head.with_sum(head.checksum(off).bytes(suffix).bytes(value));
        let words = op.slice("a record", Off::<Word>::new(off), 1 + head.words() as u64)?;
        op.store(&words[0], durix_pmem::Bits::to_bits(head), Relaxed);
        let (first, second) = words[1..].split_at(suffix.len().div_ceil(8));
        op.store_bytes(first, suffix);
        op.store_bytes(second, value);
        Ok(())
    }

    /// Whether its checksum is right. Reads all of it.
    pub(crate) fn is_sealed(self) -> bool {
        let (suffix, value) = self.words.split_at(self.head.suffix().div_ceil(8));
        let [suffix, value] = [suffix, value].map(|words| words.iter().map(|word| self.op.load(word, Relaxed)));
        self.head == self.head.with_sum(self.head.checksum(self.off).words(suffix).words(value))
    }

    /// All words of the record, the head included.
    pub(crate) fn all_words(op: &Op<'a, M>, off: u64, bytes: u64) -> Result<&'a [Word]> {
        Ok(op.slice("a record", Off::<Word>::new(off), bytes / 8)?)
    }

    pub(crate) fn value(self) -> Value<'a, M> {
        let words = &self.words[self.head.suffix().div_ceil(8)..];
        Value { op: self.op, place: Place::Words(words, self.head.value()) }
    }

    pub(crate) fn suffix_is(self, suffix: &[u8]) -> bool {
        self.head.suffix() == suffix.len() && words_are(self.op, self.words, suffix)
    }

    pub(crate) fn suffix_into(self, to: &mut Vec<u8>) {
        self.op.append_bytes(self.words, self.head.suffix(), to);
    }
}
