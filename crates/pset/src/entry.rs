//! Entries: how one is written so that it is found whole or not at all, and how it is read while others write.
//!
//! # Persist order
//! Writing an entry into a slot, all under ONE fence at the end:
//!
//! | edge | kept by | a crash between leaves | recovery |
//! |---|---|---|---|
//! | PS-E1 the slot's validity bits differ < any other store to line 0 | same line, order | an invalid slot, or the old entry whole | the slot is free; the old entry is one that may be lost |
//! | PS-E2 all of line 0 < its bits agree with the new version | same line, release | an invalid slot | free |
//! | PS-E3 the tag of line i is 0 < any other store to line i | same line, order | a line with tag 0, or the old line whole | the entry whose line it was is invalid: tag ≠ version |
//! | PS-E4 all of line i < its tag is the new version | same line, release | a line with tag 0 | the slot is free |
//! | PS-E5 all lines < the entry is acknowledged | write-back + fence | some lines new, some old | tag ≠ version: the slot is free |
//!
//! Lines are not ordered among themselves: recovery takes an entry only if its bits agree and the tag of every line it
//! reaches into equals its version. The versions that one slot ever holds are distinct, so lines of two entries never
//! pass for one. (The paper's single bit for further lines would admit an old key with a mixed value, 4.3; that is
//! harmless only while the key ends in line 0.)
//!
//! # Reading
//! An entry that is reachable from the volatile table is never written; a slot is rewritten only after its entry was
//! superseded. A reader that races with that notices: PS-E1's store comes before all others, so a reader that has seen any of
//! them finds the meta word changed when it looks again.

use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::fence;

use durix_pmem::{Checksum, Medium, Op, Word};

use super::layout::{HEAD_WORDS, Head, Info, Meta, TAIL_WORDS, Tail, head_at, tails_at};

/// Writes an entry over whatever the slot at `off` holds, and issues its write-back; durable with the operation's next
/// fence.
///
/// The slot must be large enough, and the version must never have been used in it.
#[inline(never)]
pub(super) fn write<M: Medium>(op: &Op<'_, M>, off: u64, version: u64, info: Info, key: &[u8], value: &[u8]) {
    let sum = sum(off, version, info).bytes(key).bytes(value);
    write_lines(op, op.at(head_at(off)), tails(op, off, info.lines()), version, info.with_sum(sum), sum, key, value);
}

/// The same without the write-back, for whoever settles the entry.
#[inline(never)]
pub(super) fn write_later<M: Medium>(op: &Op<'_, M>, off: u64, version: u64, info: Info, key: &[u8], value: &[u8]) {
    let sum = sum(off, version, info).bytes(key).bytes(value);
    let tails = tails(op, off, info.lines());
    store_lines(op, op.at(head_at(off)), tails, version, info.with_sum(sum), sum, key, value);
}

/// The same for a [short](Info::is_short) entry.
#[inline(always)]
pub(super) fn write_short<M: Medium>(op: &Op<'_, M>, off: u64, version: u64, info: Info, key: &[u8], value: &[u8]) {
    let sum = sum(off, version, info).bytes(key).bytes(value);
    write_lines(op, op.at(head_at(off)), &[], version, info.with_sum(sum), sum, key, value);
}

/// The checksum of the entry of a slot, without key and value.
#[inline(always)]
fn sum(off: u64, version: u64, info: Info) -> Checksum {
    Checksum::at(off).pair(version, info.without_sum())
}

/// Writes the lines of an entry, and issues their write-back. Compiled for entries of one line, and for all others.
#[inline(always)]
#[expect(clippy::too_many_arguments, reason = "what the caller has in registers")]
fn write_lines<M: Medium>(
    op: &Op<'_, M>,
    head: &Head,
    tails: &[Tail],
    version: u64,
    info: Info,
    sum: Checksum,
    key: &[u8],
    value: &[u8],
) {
    store_lines(op, head, tails, version, info, sum, key, value);
    // PERSIST PS-E5: write-back, with the caller's fence.
    op.write_back(head);
    if !tails.is_empty() {
        op.write_back_slice(tails);
    }
}

/// Stores the lines of an entry.
#[inline(always)]
#[expect(clippy::too_many_arguments, reason = "what the caller has in registers")]
fn store_lines<M: Medium>(
    op: &Op<'_, M>,
    head: &Head,
    tails: &[Tail],
    version: u64,
    info: Info,
    sum: Checksum,
    key: &[u8],
    value: &[u8],
) {
    // PERSIST PS-E1: same line. The two bits differ from here on.
    let invalid = op.load(&head.meta, Relaxed).invalidated();
    op.store(&head.meta, invalid, Relaxed);
    // PERSIST PS-E3: same line. The tags name no version from here on.
    for tail in tails {
        op.store(&tail.tag, 0, Relaxed);
    }
    op.order();
    op.store(&head.info, info, Relaxed);
    let first = if tails.is_empty() { 0 } else { info.first_word() };
    if first > 0 {
        op.store(&head.payload[0], sum.finish(), Relaxed);
    }
    store_payload(op, head, tails, first, key);
    store_payload(op, head, tails, first + info.key_words(), value);
    // PERSIST PS-E4: same line.
    for tail in tails {
        op.store(&tail.tag, version, Release);
    }
    // PERSIST PS-E2: same line.
    op.store(&head.meta, invalid.validated(version), Release);
}

/// Makes the entry in the slot at `off` invalid and issues the write-back; it is gone for good with the operation's
/// next fence. One store, so there is nothing in between.
pub(super) fn erase<M: Medium>(op: &Op<'_, M>, off: u64) {
    let head = op.at(head_at(off));
    op.store(&head.meta, op.load(&head.meta, Relaxed).erased(), Relaxed);
    op.write_back(head);
}

/// Marks what an interrupted update has left in the slot at `off` as erased. The caller writes it back.
pub(super) fn mark_erased<M: Medium>(op: &Op<'_, M>, off: u64) {
    let meta = &op.at(head_at(off)).meta;
    op.store(meta, op.load(meta, Relaxed).erased(), Relaxed);
}

/// The further lines of an entry of `lines` lines; none where they would lie outside the pool (then the entry is not
/// sound).
#[inline(always)]
fn tails<'s, M: Medium>(op: &Op<'s, M>, off: u64, lines: usize) -> &'s [Tail] {
    if lines <= 1 {
        return &[];
    }
    op.slice("entry", tails_at(off), lines as u64 - 1).unwrap_or(&[])
}

/// The words of the payload from word `from` on, piece by piece.
#[inline(always)]
fn pieces<'s>(head: &'s Head, tails: &'s [Tail], from: usize) -> impl Iterator<Item = &'s [Word]> {
    let in_head = &head.payload[from.min(HEAD_WORDS)..];
    let beyond = from.saturating_sub(HEAD_WORDS);
    let rest = tails.get(beyond / TAIL_WORDS..).unwrap_or(&[]);
    let skip = beyond % TAIL_WORDS;
    let in_tails = rest.iter().enumerate().map(move |(i, t)| if i == 0 { &t.payload[skip..] } else { &t.payload[..] });
    std::iter::once(in_head).chain(in_tails).filter(|p| !p.is_empty())
}

/// The words of `len` bytes of payload from word `from` on, where all of them lie in line 0.
#[inline(always)]
fn words_in_head(head: &Head, from: usize, len: usize) -> Option<&[Word]> {
    head.payload.get(from..from + len.div_ceil(8))
}

#[inline(always)]
fn store_payload<M: Medium>(op: &Op<'_, M>, head: &Head, tails: &[Tail], from: usize, bytes: &[u8]) {
    let Some(words) = words_in_head(head, from, bytes.len()) else {
        return store_beyond(op, head, tails, from, bytes);
    };
    match (words, <[u8; 8]>::try_from(bytes)) {
        ([word], Ok(bytes)) => op.store(word, u64::from_le_bytes(bytes), Relaxed),
        _ => op.store_bytes(words, bytes),
    }
}

/// The same where the bytes do not end in line 0.
#[inline(never)]
fn store_beyond<M: Medium>(op: &Op<'_, M>, head: &Head, tails: &[Tail], from: usize, bytes: &[u8]) {
    let mut rest = bytes;
    for piece in pieces(head, tails, from) {
        let (now, later) = rest.split_at(rest.len().min(size_of_val(piece)));
        op.store_bytes(piece, now);
        rest = later;
        if rest.is_empty() {
            return;
        }
    }
}

/// An entry, as seen at one moment. Its bytes count only if [`Entry::unchanged`] says so after they were read.
#[derive(Clone, Copy, Debug)]
pub(super) struct Entry<'s> {
    head: &'s Head,
    tails: &'s [Tail],
    /// Validity bits and version.
    pub(super) meta: Meta,
    /// Lengths and kind.
    pub(super) info: Info,
}

impl<'s> Entry<'s> {
    /// The entry in the slot at `off`, if its first line is valid and makes sense.
    #[inline]
    pub(super) fn at<M: Medium>(op: &Op<'s, M>, off: u64) -> Option<Entry<'s>> {
        let head = op.at(head_at(off));
        let meta = op.load(&head.meta, Acquire);
        let info = op.load(&head.info, Relaxed);
        if !meta.is_valid() {
            return None;
        }
        if !info.is_sound() {
            return None;
        }
        let lines = info.lines();
        let tails = tails(op, off, lines);
        (tails.len() + 1 == lines).then_some(Entry { head, tails, meta, info })
    }

    /// The entry in the slot at `off`, if it is valid and [short](Info::is_short), as most are.
    #[inline(always)]
    pub(super) fn short_at<M: Medium>(op: &Op<'s, M>, off: u64) -> Option<Entry<'s>> {
        let head = op.at(head_at(off));
        let meta = op.load(&head.meta, Acquire);
        let info = op.load(&head.info, Relaxed);
        (meta.is_valid() && info.is_short()).then_some(Entry { head, tails: &[], meta, info })
    }

    /// Whether every line belongs to this entry: what recovery asks.
    pub(super) fn is_whole<M: Medium>(&self, op: &Op<'_, M>) -> bool {
        self.tails.iter().all(|t| op.load(&t.tag, Relaxed) == self.meta.version())
    }

    /// Whether the slot still holds this entry, so that all that was read of it was it. A slot that is rewritten gets
    /// another version, and its meta word changes before anything else in it.
    #[inline(always)]
    pub(super) fn unchanged<M: Medium>(&self, op: &Op<'_, M>) -> bool {
        // Either the bytes read before are those of the entry, or one of them was stored after PS-E1's `order`; this fence
        // pairs with it, and the load below sees the meta word that PS-E1 stored, or a later one.
        fence(Acquire);
        op.load(&self.head.meta, Relaxed) == self.meta
    }

    /// Whether the key is `key`.
    #[inline(always)]
    pub(super) fn key_is<M: Medium>(&self, op: &Op<'_, M>, key: &[u8]) -> bool {
        if self.info.key_len() != key.len() {
            return false;
        }
        match <[u8; 8]>::try_from(key) {
            Ok(word) => op.load(&self.head.payload[self.first_word()], Relaxed) == u64::from_le_bytes(word),
            Err(_) => bytes_are(op, self.head, self.tails, self.first_word(), key),
        }
    }

    /// Whether the checksum of an entry that is [whole](Self::is_whole) is right. Reads all of it.
    pub(super) fn is_sealed<M: Medium>(&self, op: &Op<'_, M>) -> bool {
        let (info, first) = (self.info, self.first_word());
        let words = |from| pieces(self.head, self.tails, from).flatten().map(|word| op.load(word, Relaxed));
        let sum = sum(op.off_of(self.head).get(), self.meta.version(), info)
            .words(words(first).take(info.key_words()))
            .words(words(first + info.key_words()).take(info.value_len().div_ceil(8)));
        match info.is_long() {
            true => op.load(&self.head.payload[0], Relaxed) == sum.finish(),
            false => info.sum() == sum.low(),
        }
    }

    /// The first word of the key. An entry without further lines has it in front, known without a look.
    #[inline(always)]
    fn first_word(&self) -> usize {
        if self.tails.is_empty() { 0 } else { self.info.first_word() }
    }

    /// Replaces the content of `bytes` by the key.
    pub(super) fn read_key<M: Medium>(&self, op: &Op<'_, M>, bytes: &mut Vec<u8>) {
        self.read(op, self.first_word(), self.info.key_len(), bytes);
    }

    /// Replaces the content of `bytes` by the value.
    #[inline(always)]
    pub(super) fn read_value<M: Medium>(&self, op: &Op<'_, M>, bytes: &mut Vec<u8>) {
        self.read(op, self.first_word() + self.info.key_words(), self.info.value_len(), bytes);
    }

    #[inline(always)]
    fn read<M: Medium>(&self, op: &Op<'_, M>, from: usize, len: usize, bytes: &mut Vec<u8>) {
        // Every byte is overwritten: a buffer that has the length already is taken as it is.
        if bytes.len() != len {
            resize(bytes, len);
        }
        match words_in_head(self.head, from, len) {
            Some(words) => op.load_bytes(words, bytes),
            None => read_beyond(op, self.head, self.tails, from, bytes),
        }
    }

    /// Whether the value is `value`.
    pub(super) fn value_is<M: Medium>(&self, op: &Op<'_, M>, value: &[u8]) -> bool {
        let len = self.info.value_len();
        let words = pieces(self.head, self.tails, self.first_word() + self.info.key_words()).flatten();
        len == value.len() && value.chunks(8).zip(words).all(|(c, w)| op.load(w, Relaxed) == word_of(c))
    }
}

// What follows takes an entry apart, so that one of a line stays in registers.

/// Whether the key of an entry, whose length is that of `key`, is `key`.
#[inline(never)]
fn bytes_are<M: Medium>(op: &Op<'_, M>, head: &Head, tails: &[Tail], first: usize, key: &[u8]) -> bool {
    let mut words = pieces(head, tails, first).flatten();
    key.chunks(8).all(|chunk| words.next().is_some_and(|word| op.load(word, Relaxed) == word_of(chunk)))
}

/// Reads bytes that do not end in line 0.
#[inline(never)]
fn read_beyond<M: Medium>(op: &Op<'_, M>, head: &Head, tails: &[Tail], from: usize, bytes: &mut [u8]) {
    let mut rest = bytes;
    for piece in pieces(head, tails, from) {
        let (now, later) = rest.split_at_mut(rest.len().min(size_of_val(piece)));
        op.load_bytes(piece, now);
        rest = later;
        if rest.is_empty() {
            return;
        }
    }
}

#[cold]
#[inline(never)]
fn resize(bytes: &mut Vec<u8>, len: usize) {
    bytes.resize(len, 0);
}

/// Up to 8 bytes as the word they are stored in.
#[inline(always)]
fn word_of(chunk: &[u8]) -> u64 {
    if let Ok(whole) = chunk.try_into() {
        return u64::from_le_bytes(whole);
    }
    let mut word = [0; 8];
    word[..chunk.len()].copy_from_slice(chunk);
    u64::from_le_bytes(word)
}

#[cfg(test)]
mod tests {
    use super::*;
    use durix_pmem::{Counting, Hardware, Mapping, Off};

    #[test]
    fn entries_of_all_lengths_come_back_and_cost_a_write_back_a_line() {
        let counting = Counting::new(Hardware::PAGE_CACHE);
        let mapping = Mapping::heap(1 << 16, counting);
        let mut session = mapping.session().unwrap();
        let op = session.enter().unwrap();
        let bytes: Vec<u8> = (0..=255).cycle().skip(1).take(700).collect();
        let mut version = 0;
        for key_len in [0, 1, 7, 8, 40, 47, 48, 49, 55, 100, 104, 105, 200] {
            for value_len in (0..80).chain([100, 104, 105, 400]) {
                version += 1;
                let (key, value) = (&bytes[..key_len], &bytes[100..100 + value_len]);
                let info = Info::of(key_len, value_len);
                let before = counting.counts();
                write(&op, 4096, version, info, key, value);
                assert_eq!((counting.counts() - before).write_backs, info.lines() as u64);
                let entry = Entry::at(&op, 4096).unwrap();
                assert!(entry.is_whole(&op) && entry.unchanged(&op) && entry.is_sealed(&op));
                assert!(entry.key_is(&op, key) && entry.value_is(&op, value));
                let (mut k, mut v) = (vec![9], vec![9; 1000]);
                entry.read_key(&op, &mut k);
                entry.read_value(&op, &mut v);
                assert_eq!((&k[..], &v[..]), (key, value));
                if key_len > 0 {
                    let mut other = key.to_vec();
                    other[key_len - 1] ^= 0x80;
                    assert!(!entry.key_is(&op, &other));
                    assert!(!entry.key_is(&op, &key[1..]));
                }
                assert!(!entry.value_is(&op, &[value, &[0]].concat()));
            }
        }
    }

    #[test]
    fn erased_changed_and_unsound_entries_are_noticed() {
        let mapping = Mapping::heap(1 << 16, Hardware::PAGE_CACHE);
        let mut session = mapping.session().unwrap();
        let op = session.enter().unwrap();
        assert!(Entry::at(&op, 4096).is_none(), "never written");
        write(&op, 4096, 1, Info::of(1, 100), b"k", &[7; 100]);
        let entry = Entry::at(&op, 4096).unwrap();
        let tail = op.at(tails_at(4096));
        op.store(&tail.tag, 2, Relaxed);
        assert!(!entry.is_whole(&op));
        op.store(&tail.tag, 1, Relaxed);
        assert!(entry.is_whole(&op));
        assert!(entry.is_sealed(&op));
        erase(&op, 4096);
        assert!(!entry.unchanged(&op));
        assert!(Entry::at(&op, 4096).is_none());
        // The last line of the mapping claims an entry that reaches beyond.
        let last = (1 << 16) - 64;
        write(&op, last, 1, Info::of(8, 8), b"12345678", b"12345678");
        assert!(Entry::at(&op, last).is_some());
        op.store(&op.at(head_at(last)).info, Info::of(8, 5000), Relaxed);
        assert!(Entry::at(&op, last).is_none());
        let _: Off<Head> = head_at(last);
    }
}
