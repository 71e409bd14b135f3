//! Redo records: all that one transaction does, in one piece.
//!
//! | word | what |
//! |---|---|
//! | 0 | bits 0–31: a [checksum](Checksum) over the number of the segment's use and the words behind this one; bits 32–63: words of the record |
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

use durix_pmem::{Allocation, Change, Checksum, Medium, Op, Word, layout};

/// What the log of an engine depends on. The last number counts changes of what the words mean.
pub const LAYOUT: u32 = layout!([], HEAD, WRITE, ALLOCATE_ZEROED, FREE, RUN, ALLOCATE, 2);

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

/// What a record says besides its writes, two words at a time. Most records say nothing else.
#[derive(Debug, Default)]
pub(super) struct Draft {
    /// Entries that come before the writes.
    before: Vec<[u64; 2]>,
    /// Entries that come after the writes.
    after: Vec<[u64; 2]>,
}

/// Pairs of words whose memory is kept for the next record, at most.
const KEPT: usize = 1 << 12;

impl Draft {
    /// Begins a record without entries.
    pub(super) fn begin(&mut self) -> &mut Self {
        for part in [&mut self.before, &mut self.after] {
            part.clear();
            if part.capacity() > KEPT {
                *part = Vec::new();
            }
        }
        self
    }

    /// The entries before the writes, and those after them.
    pub(super) fn parts(&self) -> (&[[u64; 2]], &[[u64; 2]]) {
        (&self.before, &self.after)
    }

    /// Adds an entry before the writes.
    pub(super) fn push<M: Medium>(&mut self, op: &Op<'_, M>, entry: Entry<'_>) {
        self.before.push(head_of(entry));
        if let Entry::Run(_, words) = entry {
            let load = |word: &Word| op.load(word, Ordering::Relaxed);
            let pairs = words.chunks(2).map(|pair| [load(&pair[0]), pair.get(1).map_or(0, load)]);
            self.before.extend(pairs);
        }
    }

    /// Adds an entry without a run after the writes.
    pub(super) fn push_last(&mut self, change: Change) {
        self.after.push(head_of(Entry::Change(change)));
    }
}

/// What a record says, in its order: entries before the writes, the writes, entries after them.
type Parts<'a> = [&'a [[u64; 2]]; 3];

/// Words of a record.
#[inline]
pub(super) fn words([before, writes, after]: Parts<'_>) -> u64 {
    (HEAD + 2 * (before.len() + writes.len() + after.len())) as u64
}

/// Writes a record into the room for it, which is as long as [`words`] says, around the cache, from the first word to the last.
#[inline]
pub(super) fn write<M: Medium>(op: &Op<'_, M>, (segment, room): (u64, &[Word]), number: u64, parts: Parts<'_>) {
    const { assert!(WRITE == 0, "an offset and a value are an entry") };
    let pairs = parts.iter().copied().flatten();
    let sum = pairs.fold(sum(segment, number, room.len()), |sum, pair| sum.pair(pair[0], pair[1]));
    let (head, mut rest) = room.split_at(HEAD);
    op.store_words_nt(head, &[(room.len() as u64) << 32 | u64::from(sum.low()), number]);
    for part in parts {
        let (to, after) = rest.split_at(2 * part.len());
        op.store_words_nt(to, part.as_flattened());
        rest = after;
    }
}

/// The checksum over the number of the segment's use, that of the commit, and the record's length; the entries follow.
#[inline]
fn sum(segment: u64, number: u64, len: usize) -> Checksum {
    Checksum::at(segment).pair(number, len as u64)
}

/// A whole record.
#[derive(Clone, Debug)]
pub(super) struct Record<'s> {
    pub(super) number: u64,
    /// All of it.
    pub(super) words: &'s [Word],
}

/// The length that a record's first word says, if a record of that length can be there.
fn len_of(head: u64, room: usize) -> Option<usize> {
    let len = (head >> 32) as usize;
    (HEAD..=room).contains(&len).then_some(len).filter(|len| (len - HEAD).is_multiple_of(2))
}

/// The record that words of a segment begin with, if there is a whole one.
fn read<'s, M: Medium>(op: &Op<'s, M>, words: &'s [Word], segment: u64) -> Option<Record<'s>> {
    let head = op.load(words.first()?, Ordering::Acquire);
    let words = &words[..len_of(head, words.len())?];
    let load = |word: &Word| op.load(word, Ordering::Relaxed);
    let is_whole = op.load_checked(words, || {
        let entries = words[HEAD..].iter().map(load);
        head as u32 == sum(segment, load(&words[1]), words.len()).words(entries).low()
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
        entries(op, &self.words[HEAD..])
    }
}

/// The entries in these words of a record.
pub(super) fn entries<'s, M: Medium>(op: &Op<'_, M>, words: &'s [Word]) -> impl Iterator<Item = Option<Entry<'s>>> {
    let mut rest = words;
    std::iter::from_fn(move || {
        let (head, after) = rest.split_at_checked(2)?;
        let load = |word: &Word| op.load(word, Ordering::Relaxed);
        let entry = entry_of([load(&head[0]), load(&head[1])], after);
        rest = entry.and_then(|entry| after.get(words_of(entry) as usize - 2..)).unwrap_or(&[]);
        Some(entry)
    })
}

#[cfg(test)]
mod tests {
    use durix_pmem::{Hardware, Mapping, Off};

    use super::*;

    #[test]
    fn a_record_is_taken_only_whole_and_in_its_segment() {
        let mapping = Mapping::heap(1 << 12, Hardware::PAGE_CACHE);
        let mut session = mapping.session().unwrap();
        let op = session.enter().unwrap();
        let parts: Parts<'_> = [&[], &[[64, 7], [128, 8]], &[]];
        let room = op.slice("a record", Off::<Word>::new(0), words(parts)).unwrap();
        write(&op, (3, room), 5, parts);
        let taken = |segment| read(&op, room, segment).map(|record| (record.number, record.words.len()));
        assert_eq!(taken(3), Some((5, 6)));
        assert_eq!(taken(4), None, "of another use of the segment");
        for bit in 0..64 * room.len() {
            let (word, mask) = (&room[bit / 64], 1u64 << (bit % 64));
            let sound: u64 = op.load(word, Ordering::Relaxed);
            op.store(word, sound ^ mask, Ordering::Relaxed);
            assert_eq!(taken(3), None, "bit {} of word {}", bit % 64, bit / 64);
            op.store(word, sound, Ordering::Relaxed);
        }
        assert_eq!(taken(3), Some((5, 6)));
    }
}
