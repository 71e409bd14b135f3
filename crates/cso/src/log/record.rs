//! Records as they are read.

use std::fmt;
use std::sync::atomic::Ordering;

use durix_pmem::{Medium, Off, Op, Word};

use super::{ChainLog, Log, Position};

/// Where the words of a payload lie.
#[derive(Clone, Copy, Debug)]
pub(super) enum Place<'a> {
    /// One behind the other.
    Contiguous {
        /// Offset of the first.
        off: u64,
    },
    /// Seven in each line of a ring, the eighth is the meta word.
    Interleaved {
        /// Offset of the first line.
        off: u64,
        /// Offsets of the ring's first line and of its end.
        bounds: (u64, u64),
    },
    /// Seven in each line of a chain.
    Chained {
        /// The chain.
        log: &'a ChainLog,
        /// Position of the first line.
        position: u64,
    },
    /// One behind the other, with a bit that is not the user's in one word of each line.
    Masked {
        /// Offset of the first.
        off: u64,
        /// The word, modulo 8.
        word: usize,
        /// The bits that are the user's.
        mask: u64,
    },
}

/// Word `index` of a payload that starts at the line `off` of a ring, seven words to a line.
pub(super) fn interleaved_word<M: Medium>(op: &Op<'_, M>, off: u64, (start, end): (u64, u64), index: usize) -> u64 {
    let line = off + index as u64 / 7 * 64;
    let line = if line < end { line } else { line - (end - start) };
    op.load(op.at(Off::<Word>::new(line + index as u64 % 7 * 8)), Ordering::Relaxed)
}

/// A record of a log, read in place.
pub struct Record<'a, M: Medium> {
    pub(super) op: &'a Op<'a, M>,
    pub(super) position: Position,
    pub(super) next: Position,
    pub(super) tag: u8,
    pub(super) len: usize,
    pub(super) place: Place<'a>,
    /// Words in front of the payload that are not the user's.
    pub(super) skip: usize,
}

impl<'a, M: Medium> Record<'a, M> {
    /// Where the record starts.
    pub fn position(&self) -> Position {
        self.position
    }

    /// Where the next record starts: trimming to it removes this record and all before.
    pub fn next(&self) -> Position {
        self.next
    }

    /// The tag it was appended with.
    pub fn tag(&self) -> u8 {
        self.tag
    }

    /// Bytes of the payload.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether the payload is empty.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Word `index` of the payload; bytes behind its end are zero.
    ///
    /// # Panics
    /// If the payload has no such word.
    pub fn word(&self, index: usize) -> u64 {
        assert!(index < self.len.div_ceil(8), "word {index} of a payload of {} bytes", self.len);
        let bytes = self.len - index * 8;
        let index = index + self.skip;
        let at = |off: u64| self.op.load(self.op.at(Off::<Word>::new(off)), Ordering::Relaxed);
        let value = match self.place {
            Place::Contiguous { off } => at(off + index as u64 * 8),
            Place::Interleaved { off, bounds } => interleaved_word(self.op, off, bounds, index),
            Place::Chained { log, position } => at(log.place(position + index as u64 / 7).off + index as u64 % 7 * 8),
            Place::Masked { off, word, mask } => {
                at(off + index as u64 * 8) & if index % 8 == word { mask } else { u64::MAX }
            }
        };
        if bytes < 8 { value & ((1 << (bytes * 8)) - 1) } else { value }
    }

    /// The words of the payload.
    pub fn words(&self) -> impl Iterator<Item = u64> {
        (0..self.len.div_ceil(8)).map(|index| self.word(index))
    }

    /// Copies the payload in whole words, line by line where the log's kind allows; bytes of the last word that lie behind the
    /// payload's end are zero. Returns how many words there are.
    ///
    /// # Panics
    /// If `to` has fewer.
    #[inline]
    pub fn copy_words(&self, to: &mut [u64]) -> usize {
        let count = self.len.div_ceil(8);
        let to = &mut to[..count];
        let load = |to: &mut [u64], from: &[Word]| {
            to.iter_mut().zip(from).for_each(|(to, from)| *to = self.op.load(from, Ordering::Relaxed));
        };
        match (self.place, self.contiguous()) {
            (_, Some(words)) => load(to, words),
            (Place::Interleaved { off, bounds: (start, end) }, _) if self.skip == 0 => {
                let mut line = off;
                for chunk in to.chunks_mut(7) {
                    load(chunk, &self.op.at(Off::<[Word; 8]>::new(line))[..7]);
                    line = if line + 64 < end { line + 64 } else { line + 64 - (end - start) };
                }
            }
            _ => to.iter_mut().enumerate().for_each(|(index, to)| *to = self.word(index)),
        }
        if let Some(last) = to.last_mut().filter(|_| !self.len.is_multiple_of(8)) {
            *last &= (1 << (self.len % 8 * 8)) - 1;
        }
        count
    }

    /// The payload in place, where the log keeps it contiguous and unchanged: bytes of the last word that lie behind the
    /// payload's end are anything.
    #[inline]
    pub fn contiguous(&self) -> Option<&'a [Word]> {
        let Place::Contiguous { off } = self.place else { return None };
        let off = off + self.skip as u64 * 8;
        self.op.slice("a log record", Off::new(off), self.len.div_ceil(8) as u64).ok()
    }

    /// Takes the first word off the payload: what a layer above had put in front. `None` where there is none.
    pub(super) fn split_word(self) -> Option<(u64, Self)> {
        let len = self.len.checked_sub(8)?;
        let word = self.word(0);
        Some((word, Record { len, skip: self.skip + 1, ..self }))
    }

    /// Copies the payload.
    ///
    /// # Panics
    /// If `to` is shorter than the payload.
    pub fn copy_to(&self, to: &mut [u8]) {
        let to = &mut to[..self.len];
        match self.place {
            Place::Contiguous { .. } => {
                if let Some(words) = self.contiguous() {
                    return self.op.load_bytes(words, to);
                }
            }
            Place::Interleaved { off, bounds: (start, end) } if self.skip == 0 => {
                for (number, chunk) in to.chunks_mut(56).enumerate() {
                    let line = off + number as u64 * 64;
                    let line = if line < end { line } else { line - (end - start) };
                    self.op.load_bytes(&self.op.at(Off::<[Word; 8]>::new(line))[..7], chunk);
                }
                return;
            }
            _ => {}
        }
        for (chunk, word) in to.chunks_mut(8).zip(self.words()) {
            chunk.copy_from_slice(&word.to_le_bytes()[..chunk.len()]);
        }
    }

    /// The payload.
    pub fn to_vec(&self) -> Vec<u8> {
        let mut bytes = vec![0; self.len];
        self.copy_to(&mut bytes);
        bytes
    }
}

impl<M: Medium> fmt::Debug for Record<'_, M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Record")
            .field("position", &self.position)
            .field("tag", &self.tag)
            .field("len", &self.len)
            .finish_non_exhaustive()
    }
}

/// The records of a log, oldest first.
#[derive(Debug)]
pub struct Iter<'a, L: Log, M: Medium> {
    pub(super) log: &'a L,
    pub(super) op: &'a Op<'a, M>,
    pub(super) at: Position,
}

impl<'a, L: Log, M: Medium> Iterator for Iter<'a, L, M> {
    type Item = Record<'a, M>;

    #[inline]
    fn next(&mut self) -> Option<Record<'a, M>> {
        let record = self.log.record_at(self.op, self.at)?;
        self.at = record.next;
        Some(record)
    }
}
