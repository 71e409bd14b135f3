//! Redo records: all that one transaction does, in one piece.
//!
//! | word | what |
//! |---|---|
//! | 0 | bits 0–31: CRC-32C over the number of the segment's use and the words behind this one; bits 32–63: words of the record |
//! | 1 | number of the commit |
//! | 2, 3; 4, 5; … | an entry: an offset with the kind in its low three bits, and a value |
//!
//! | kind | offset | value |
//! |---|---|---|
//! | 0 write | of the word | its new value |
//! | 1 allocate zeroed, 2 free, 4 allocate | of the block | length and owner, as [`Allocation`] has them |
//! | 3 run | of the first word | how many words; they follow, and a zero if their number is odd |
//!
//! Allocations come first, frees last: a word may be written that lies in what is allocated or freed. Redoing kind 1 zeroes the
//! block; that of kind 4 has a run in the same record, or was durable before the record.

use std::sync::atomic::Ordering;

use durix_pmem::{Allocation, Change, Medium, Op, Word};

/// Words before the entries.
pub(super) const HEAD: usize = 2;

const WRITE: u64 = 0;
const ALLOCATE_ZEROED: u64 = 1;
const FREE: u64 = 2;
const RUN: u64 = 3;
const ALLOCATE: u64 = 4;

/// What an entry says.
#[derive(Clone, Copy)]
pub(super) enum Entry<'s> {
    /// The word at an offset gets a value.
    Write(u64, u64),
    /// Words from an offset on get the values of these words.
    Run(u64, &'s [Word]),
    /// Space is allocated, and zero.
    Zeroed(Allocation),
    /// Space is allocated or freed.
    Change(Change),
}

/// The first two words of an entry; all of it, unless it is a run.
fn head_of(entry: Entry<'_>) -> [u64; 2] {
    let tagged = |allocation: Allocation, kind| {
        let [off, rest] = allocation.to_words();
        [off | kind, rest]
    };
    match entry {
        Entry::Write(off, value) => [off | WRITE, value],
        Entry::Run(off, words) => [off | RUN, words.len() as u64],
        Entry::Zeroed(allocation) => tagged(allocation, ALLOCATE_ZEROED),
        Entry::Change(Change::Allocate(allocation)) => tagged(allocation, ALLOCATE),
        Entry::Change(Change::Free(allocation)) => tagged(allocation, FREE),
    }
}

/// The entry that begins with two words and goes on with the others; `None` for one that nobody has written.
fn entry_of<'s>([tagged, value]: [u64; 2], rest: &'s [Word]) -> Option<Entry<'s>> {
    let off = tagged & !7;
    let allocation = Allocation::from_words([off, value]);
    match tagged & 7 {
        WRITE => Some(Entry::Write(off, value)),
        RUN => Some(Entry::Run(off, rest.get(..usize::try_from(value).ok()?)?)),
        ALLOCATE_ZEROED => Some(Entry::Zeroed(allocation)),
        ALLOCATE => Some(Entry::Change(Change::Allocate(allocation))),
        FREE => Some(Entry::Change(Change::Free(allocation))),
        _ => None,
    }
}

/// Words of an entry.
pub(super) fn words_of(entry: Entry<'_>) -> u64 {
    match entry {
        Entry::Run(_, words) => 2 + words.len().next_multiple_of(2) as u64,
        _ => 2,
    }
}

/// The checksum of a record, word by word.
struct Sum(u32);

impl Sum {
    fn new(segment: u64) -> Sum {
        Sum(crc32c::crc32c(&segment.to_le_bytes()))
    }

    #[inline]
    fn add(&mut self, words: &[u64; 2]) {
        let mut bytes = [0; 16];
        bytes[..8].copy_from_slice(&words[0].to_le_bytes());
        bytes[8..].copy_from_slice(&words[1].to_le_bytes());
        self.0 = crc32c::crc32c_append(self.0, &bytes);
    }
}

/// Writes a record into the room for it, which is as long as its entries.
pub(super) fn write<'e, M: Medium>(
    op: &Op<'_, M>,
    room: &[Word],
    segment: u64,
    number: u64,
    entries: impl Iterator<Item = Entry<'e>>,
) {
    let mut sum = Sum::new(segment);
    sum.add(&[number, room.len() as u64]);
    let (mut rest, _) = room[HEAD..].as_chunks::<2>();
    let mut put = |pair: [u64; 2]| {
        let Some((to, after)) = rest.split_first() else { return };
        op.store(&to[0], pair[0], Ordering::Relaxed);
        op.store(&to[1], pair[1], Ordering::Relaxed);
        sum.add(&pair);
        rest = after;
    };
    for entry in entries {
        put(head_of(entry));
        if let Entry::Run(_, words) = entry {
            let load = |word: Option<&Word>| word.map_or(0, |word| op.load(word, Ordering::Relaxed));
            words.chunks(2).for_each(|pair| put([load(pair.first()), load(pair.get(1))]));
        }
    }
    op.store(&room[1], number, Ordering::Relaxed);
    op.store(&room[0], (room.len() as u64) << 32 | u64::from(sum.0), Ordering::Release);
}

/// A whole record.
#[derive(Clone, Debug)]
pub(super) struct Record<'s> {
    pub(super) number: u64,
    /// All of it.
    pub(super) words: &'s [Word],
}

/// The record that words of a segment begin with, if there is a whole one.
pub(super) fn read<'s, M: Medium>(op: &Op<'s, M>, words: &'s [Word], segment: u64) -> Option<Record<'s>> {
    let head = op.load(words.first()?, Ordering::Acquire);
    let len = (head >> 32) as usize;
    if len < HEAD || len > words.len() || !(len - HEAD).is_multiple_of(2) {
        return None;
    }
    let words = &words[..len];
    let load = |word: &Word| op.load(word, Ordering::Relaxed);
    let is_whole = op.load_checked(words, || {
        let mut sum = Sum::new(segment);
        sum.add(&[load(&words[1]), len as u64]);
        words[HEAD..].chunks_exact(2).for_each(|entry| sum.add(&[load(&entry[0]), load(&entry[1])]));
        head as u32 == sum.0
    });
    is_whole.then(|| Record { number: load(&words[1]), words })
}

/// All whole records of a segment, up to the first that is not.
pub(super) fn read_all<'s, M: Medium>(op: &Op<'s, M>, words: &'s [Word], segment: u64) -> Vec<Record<'s>> {
    let mut at = 0;
    let next = || {
        let record = read(op, &words[at..], segment)?;
        at += record.words.len();
        Some(record)
    };
    std::iter::from_fn(next).collect()
}

impl<'s> Record<'s> {
    /// Its entries; `None` for one that nobody has written, and nothing after that.
    pub(super) fn entries<M: Medium>(&self, op: &Op<'_, M>) -> impl Iterator<Item = Option<Entry<'s>>> {
        let mut rest = &self.words[HEAD..];
        std::iter::from_fn(move || {
            let (head, after) = rest.split_at_checked(2)?;
            let load = |word: &Word| op.load(word, Ordering::Relaxed);
            let entry = entry_of([load(&head[0]), load(&head[1])], after);
            rest = entry.and_then(|entry| after.get(words_of(entry) as usize - 2..)).unwrap_or(&[]);
            Some(entry)
        })
    }
}
