//! Finds the records and intents in a part of a journal that are sound, wherever they begin.
//!
//! The head of a record says how many bytes its checksum covers, and a damaged head can say any number. So the heads in a journal
//! that somebody has made up could ask for the whole rest of the file, each of them. The search bounds that:
//!
//! - Nothing begins within a record that is sound.
//! - Heads are told apart by length, in classes of powers of two. After [`TRIES`] heads of a class have failed within the length of that class,
//!   the next one there is not tried. A sound record of a damaged journal has at most one record of its class that close before it, because
//!   records do not overlap.
//! - All heads that fail cost at most [`MOST`] bytes for each byte of the part. After that none is tried.
//! - Holes are passed over, and do not count for that limit beyond [`AT_ONCE`] bytes.
//!
//! So a search is linear in what the file takes on the disk, whatever the journal holds. It [says](Search::is_complete) whether it left a
//! head untried.

use std::ops::{ControlFlow, Range};

use xxhash_rust::xxh3::Xxh3;

use super::file::JournalFile;
use super::layout::{Head, RECORD_HEAD};
use crate::error::Result;

/// Bytes that are read at a time.
pub(super) const PIECE: u64 = 1 << 20;
/// Heads of a class that may fail within the length of the class.
const TRIES: usize = 4;
/// Bytes of heads that fail, for each byte of the part. Damage takes about one: records do not overlap.
const MOST: u64 = 32;
/// Bytes of heads that fail, whatever was read. A longer record is not tried where less was read.
const AT_ONCE: u64 = 16 << 30;

/// A search in a journal of that salt.
pub(super) struct Search<'a> {
    file: &'a dyn JournalFile,
    salt: u64,
    /// The last heads of each class that have failed, the oldest first.
    failed: [[Option<u64>; TRIES]; u64::BITS as usize],
    /// Bytes that heads which fail may still cost.
    left: u64,
    is_complete: bool,
    /// Bytes that were checksummed.
    #[cfg(test)]
    checked: u64,
}

impl<'a> Search<'a> {
    pub(super) fn new(file: &'a dyn JournalFile, salt: u64) -> Self {
        Search {
            file,
            salt,
            failed: [[None; TRIES]; u64::BITS as usize],
            left: 0,
            is_complete: true,
            #[cfg(test)]
            checked: 0,
        }
    }

    /// Whether every wanted head was tried. It is false only if somebody has made up heads.
    pub(super) fn is_complete(&self) -> bool {
        self.is_complete
    }

    /// Calls `found` with the head of each record and each intent in a part of the file that is sound and `wanted`, ascending.
    pub(super) fn each(
        &mut self,
        range: Range<u64>,
        wanted: impl Fn(&Head) -> bool,
        mut found: impl FnMut(Head) -> ControlFlow<()>,
    ) -> Result<()> {
        self.left = MOST.saturating_mul(range.end - range.start).min(AT_ONCE);
        let (mut granted, mut read) = (self.left, 0);
        let (mut off, mut piece) = (range.start, Vec::new());
        // Behind the last one that was found.
        let mut free = range.start;
        while off < range.end {
            let Some(data) = self.file.data_from(off) else { break };
            // A head can begin with a word that is zero, at the end of a hole.
            off = off.max(data.saturating_sub(8) / 8 * 8);
            if off >= range.end {
                break;
            }
            // A head may begin in this piece and end in the next one.
            let end = (off + PIECE + RECORD_HEAD as u64 - 8).min(range.end);
            piece.resize((end - off) as usize, 0);
            self.file.read_at(off, &mut piece)?;
            read += PIECE.min(end - off);
            let more = MOST.saturating_mul(read).saturating_sub(granted);
            (self.left, granted) = (self.left + more, granted + more);
            let mut from = 0;
            while let Some((at, head)) = Head::next(&piece, from) {
                from = at + 8;
                let belongs = head.at == off + at as u64 && head.at >= free && head.len <= range.end - head.at;
                if belongs && wanted(&head) && self.is_sound(&head)? {
                    free = head.at + head.len;
                    if found(head).is_break() {
                        return Ok(());
                    }
                }
            }
            off += PIECE;
        }
        Ok(())
    }

    /// Whether the checksum is right, as far as that is tried.
    fn is_sound(&mut self, head: &Head) -> Result<bool> {
        let class = head.len.ilog2();
        let is_crowded = self.failed[class as usize][0].is_some_and(|at| head.at.saturating_sub(at) < 1 << class);
        if is_crowded || head.len > self.left {
            self.is_complete = false;
            return Ok(false);
        }
        #[cfg(test)]
        {
            self.checked += head.len;
        }
        let is_sound = checksum(self.file, self.salt, head.at + 8..head.at + head.len)? == head.checksum;
        if !is_sound {
            self.left -= head.len;
            let failed = &mut self.failed[class as usize];
            failed.rotate_left(1);
            failed[TRIES - 1] = Some(head.at);
        }
        Ok(is_sound)
    }
}

/// The checksum of a part of a file, which need not fit into memory.
pub(super) fn checksum(file: &dyn JournalFile, salt: u64, range: Range<u64>) -> Result<u64> {
    let (mut hasher, mut bytes, mut at) = (Xxh3::with_seed(salt), Vec::new(), range.start);
    while at < range.end {
        bytes.resize(PIECE.min(range.end - at) as usize, 0);
        file.read_at(at, &mut bytes)?;
        hasher.update(&bytes);
        at += bytes.len() as u64;
    }
    Ok(hasher.digest())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::journal::DiskJournal;
    use crate::journal::layout::{Draft, INTENT, Intent, Place, RECORD};

    const LEN: u64 = 1 << 20;

    fn record(sequence: u64, at: u64, lines: u64) -> Vec<u8> {
        let mut draft = Draft::default();
        draft.clear();
        (0..lines).for_each(|line| draft.push(line, &[line; 8]));
        draft.seal(Place { salt: 7, generation: 3, sequence, at }).to_vec()
    }

    /// What is found in a file of these bytes, by number and place, how many bytes were checksummed, and whether all heads were tried.
    fn search(bytes: &[u8]) -> (Vec<(u64, u64)>, u64, bool) {
        let dir = tempfile::tempdir().unwrap();
        let file = DiskJournal::create(dir.path().join("journal")).unwrap();
        file.write_at(0, bytes).unwrap();
        let (mut search, mut found) = (Search::new(&file, 7), Vec::new());
        let note = |head: Head| {
            found.push((head.number, head.at));
            ControlFlow::Continue(())
        };
        search.each(0..bytes.len() as u64, |head| head.generation == 3, note).unwrap();
        (found, search.checked, search.is_complete())
    }

    fn put(bytes: &mut [u8], at: u64, what: &[u8]) {
        bytes[at as usize..][..what.len()].copy_from_slice(what);
    }

    #[test]
    fn records_and_intents_are_found_wherever_they_begin() {
        let mut bytes = vec![0x55; LEN as usize];
        // One head in two pieces; one record behind a damaged one; an intent.
        let places = [(1, 8, 3), (2, 4096, 100), (3, 20_000, 1), (4, LEN - 8 * 1000, 100)];
        places.iter().for_each(|(number, at, lines)| put(&mut bytes, *at, &record(*number, *at, *lines)));
        let intent = Intent { generation: 3, last: 3, next: 0, end: 0, pages: vec![(1, 10), (2, 20)] };
        put(&mut bytes, 40_000, &intent.encode(7, 40_000));
        let (found, checked, is_complete) = search(&bytes);
        assert!(is_complete);
        assert_eq!(found, [(1, 8), (2, 4096), (3, 20_000), (0, 40_000), (4, LEN - 8000)]);
        let records: usize = places.iter().map(|(number, at, lines)| record(*number, *at, *lines).len()).sum();
        assert_eq!(checked, records as u64 + 64 + 32, "each once");
        bytes[5000] ^= 1;
        let (found, again, is_complete) = search(&bytes);
        assert_eq!((found.len(), again, is_complete), (4, checked, true));
        // A copy in another place.
        let copy = bytes[20_000..20_200].to_vec();
        put(&mut bytes, 60_000, &copy);
        assert_eq!(search(&bytes).0.len(), 4);
    }

    /// Heads in the first half: each asks for as much as `len` says of its place and its number.
    fn made_up(step: usize, len: impl Fn(u64, u64) -> u64) -> Vec<u8> {
        let mut bytes = vec![0; LEN as usize];
        for (number, at) in (0..LEN / 2).step_by(step).enumerate() {
            let number = number as u64;
            let wanted = len(at, number).saturating_sub(64);
            let (what, wanted) = if number.is_multiple_of(2) { (RECORD, wanted) } else { (INTENT, wanted / 16) };
            let head = [9, what, 3, 5, at, wanted, 0, 0].into_iter().flat_map(u64::to_le_bytes).collect::<Vec<u8>>();
            put(&mut bytes, at, &head);
        }
        bytes
    }

    /// That took the square of the file's length.
    #[test]
    fn made_up_heads_cost_a_bounded_number_of_steps_and_hide_no_record_behind_them() {
        let lens: [&dyn Fn(u64, u64) -> u64; 4] =
            [&|at, _| LEN / 2 - at, &|_, _| 1000, &|_, number| 64 << (number % 14), &|at, _| (LEN / 2 - at) / 3];
        for (case, len) in lens.into_iter().enumerate() {
            let mut bytes = made_up(64, len);
            // Behind them, and after a record that is damaged.
            let at = LEN / 2 + 4096;
            put(&mut bytes, at, &record(8, at, 20));
            put(&mut bytes, at + 8192, &record(9, at + 8192, 20));
            bytes[at as usize + 100] ^= 1;
            let (found, checked, is_complete) = search(&bytes);
            assert_eq!(found, [(9, at + 8192)], "case {case}");
            assert!(checked <= (MOST + 1) * LEN, "case {case}: {checked} of {LEN} bytes");
            assert!(checked >= LEN / 4, "case {case}: {checked} bytes, so nothing was tried");
            assert!(!is_complete, "case {case}");
        }
    }

    /// As many heads of each class as are tried, each as long as its class allows.
    #[test]
    fn heads_of_all_lengths_together_cost_no_more_than_the_limit() {
        let largest_first = |at: u64, number: u64| {
            let class = (LEN / 2).ilog2().saturating_sub((number / TRIES as u64 % 13) as u32);
            ((2 << class) - 1_u64).min(LEN - at)
        };
        let (_, checked, is_complete) = search(&made_up(64, largest_first));
        assert!(!is_complete && checked <= MOST * LEN, "{checked} of {LEN} bytes");
        assert!(checked > (MOST - 2) * LEN, "{checked} of {LEN} bytes: the limit was not reached");
    }
}
