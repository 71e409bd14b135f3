//! Finds the records and intents in a part of a journal that are sound, wherever they begin.
//!
//! The head of a record says how many bytes its checksum covers, and a damaged head can say any number. So the heads in a journal
//! that somebody has made up could ask for the whole rest of the file, each of them. The search bounds that:
//!
//! - Nothing begins within a record that is sound.
//! - Heads are told apart by length, in classes of powers of two. After [`TRIES`] heads of a class have failed within the length of that class,
//!   the next one there is not tried. A sound record of a damaged journal has at most one record of its class that close before it, because
//!   records do not overlap.
//!
//! So each byte is checksummed at most [`MOST`] times for each class, and once more where it is sound.

use std::ops::{ControlFlow, Range};

use xxhash_rust::xxh3::Xxh3;

use super::file::JournalFile;
use super::layout::{Head, RECORD_HEAD};
use crate::error::Result;

/// Bytes that are read at a time.
pub(super) const PIECE: u64 = 1 << 20;
/// Heads of a class that may fail within the length of the class.
const TRIES: usize = 4;
/// How often a byte is checksummed for a class, at most: what covers it begins within twice the length of the class before it.
#[cfg(test)]
const MOST: u64 = 2 * TRIES as u64;

/// A search in a journal of that salt.
pub(super) struct Search<'a> {
    file: &'a dyn JournalFile,
    salt: u64,
    /// The last heads of each class that have failed, the oldest first.
    failed: [[Option<u64>; TRIES]; u64::BITS as usize],
    /// Bytes that were checksummed.
    checked: u64,
}

impl<'a> Search<'a> {
    pub(super) fn new(file: &'a dyn JournalFile, salt: u64) -> Self {
        Search { file, salt, failed: [[None; TRIES]; u64::BITS as usize], checked: 0 }
    }

    /// Calls `found` with the head of each record and each intent in a part of the file that is sound and `wanted`, ascending.
    pub(super) fn each(
        &mut self,
        range: Range<u64>,
        wanted: impl Fn(&Head) -> bool,
        mut found: impl FnMut(Head) -> ControlFlow<()>,
    ) -> Result<()> {
        let (mut off, mut piece) = (range.start, Vec::new());
        // Behind the last one that was found.
        let mut free = range.start;
        while off < range.end {
            // A head may begin in this piece and end in the next one.
            let end = (off + PIECE + RECORD_HEAD as u64 - 8).min(range.end);
            piece.resize((end - off) as usize, 0);
            self.file.read_at(off, &mut piece)?;
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
        if self.failed[class as usize][0].is_some_and(|at| head.at.saturating_sub(at) < 1 << class) {
            return Ok(false);
        }
        self.checked += head.len;
        let (mut hasher, mut bytes) = (Xxh3::with_seed(self.salt), Vec::new());
        let (mut at, end) = (head.at + 8, head.at + head.len);
        while at < end {
            bytes.resize(PIECE.min(end - at) as usize, 0);
            self.file.read_at(at, &mut bytes)?;
            hasher.update(&bytes);
            at += bytes.len() as u64;
        }
        let is_sound = hasher.digest() == head.checksum;
        if !is_sound {
            let failed = &mut self.failed[class as usize];
            failed.rotate_left(1);
            failed[TRIES - 1] = Some(head.at);
        }
        Ok(is_sound)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::journal::layout::{Draft, INTENT, Intent, Place, RECORD};
    use crate::journal::DiskJournal;

    const LEN: u64 = 1 << 20;

    fn record(sequence: u64, at: u64, lines: u64) -> Vec<u8> {
        let mut draft = Draft::default();
        draft.clear();
        (0..lines).for_each(|line| draft.push(line, &[line; 8]));
        draft.seal(Place { salt: 7, generation: 3, sequence, at }).to_vec()
    }

    /// What is found in a file of these bytes, by number and place, and how many bytes were checksummed.
    fn search(bytes: &[u8]) -> (Vec<(u64, u64)>, u64) {
        let dir = tempfile::tempdir().unwrap();
        let file = DiskJournal::create(dir.path().join("journal")).unwrap();
        file.write_at(0, bytes).unwrap();
        let (mut search, mut found) = (Search::new(&file, 7), Vec::new());
        let note = |head: Head| {
            found.push((head.number, head.at));
            ControlFlow::Continue(())
        };
        search.each(0..bytes.len() as u64, |head| head.generation == 3, note).unwrap();
        (found, search.checked)
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
        let intent = Intent { generation: 3, end: 0, pages: vec![(1, 10), (2, 20)] };
        put(&mut bytes, 40_000, &intent.encode(7, 40_000));
        let (found, checked) = search(&bytes);
        assert_eq!(found, [(1, 8), (2, 4096), (3, 20_000), (0, 40_000), (4, LEN - 8000)]);
        let records: usize = places.iter().map(|(number, at, lines)| record(*number, *at, *lines).len()).sum();
        assert_eq!(checked, records as u64 + 64 + 32, "each once");
        bytes[5000] ^= 1;
        let (found, again) = search(&bytes);
        assert_eq!((found.len(), again), (4, checked));
        // A copy in another place.
        let copy = bytes[20_000..20_200].to_vec();
        put(&mut bytes, 60_000, &copy);
        assert_eq!(search(&bytes).0.len(), 4);
    }

    /// Each head asks for as much as it can, or for as much as `len` says: that took the square of the file's length.
    #[test]
    fn made_up_heads_cost_a_bounded_number_of_steps_and_hide_no_record_behind_them() {
        let head = |what: u64, at: u64, len: u64| {
            [9, what, 3, 5, at, len, 0, 0].into_iter().flat_map(u64::to_le_bytes).collect::<Vec<u8>>()
        };
        let classes = u64::from(LEN.ilog2()) - 5;
        let lens: [&dyn Fn(u64) -> u64; 4] =
            [&|at| LEN / 2 - at, &|_| 1000, &|at| 64 << (at / 64 % 14), &|at| (LEN / 2 - at) / 3];
        for (number, len) in lens.into_iter().enumerate() {
            let mut bytes = vec![0; LEN as usize];
            for at in (0..LEN / 2).step_by(64) {
                let wanted = len(at).saturating_sub(64);
                let (what, wanted) = if at % 128 == 0 { (RECORD, wanted) } else { (INTENT, wanted / 16) };
                put(&mut bytes, at, &head(what, at, wanted));
            }
            // Behind them, and after a record that is damaged.
            let at = LEN / 2 + 4096;
            put(&mut bytes, at, &record(8, at, 20));
            put(&mut bytes, at + 8192, &record(9, at + 8192, 20));
            bytes[at as usize + 100] ^= 1;
            let (found, checked) = search(&bytes);
            eprintln!("case {number}: {} per byte", checked as f64 / LEN as f64);
            assert_eq!(found, [(9, at + 8192)], "case {number}");
            assert!(checked <= MOST * classes * LEN, "case {number}: {checked} of {LEN} bytes");
            assert!(checked >= LEN / 4, "case {number}: {checked} bytes, so nothing was tried");
        }
    }
}
