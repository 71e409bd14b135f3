//! What can still be read of a journal that cannot be replayed, for a repair.
//!
//! Every sound record of the journal that the pool was last open with counts, whatever lies between them. The pool's header says the
//! journal's salt; where that is damaged, a sound header of the journal does, if it is of this pool. Each record says where it belongs, and its
//! checksum is seeded with the salt, so none is of another journal. Records count from the oldest generation on that anything sound names, a header, a
//! record or an intent, as one that was not checkpointed: what older ones say is in the pool's file.
//!
//! The checksums of the pages stay in force. A checkpoint or a recovery that was interrupted has written some pages; the intent in the journal
//! has their checksums. So a page of the pool's file is one of these:
//!
//! | the page has | it is | what the journal adds |
//! |---|---|---|
//! | the checksum that an intent names | as that checkpoint or recovery wrote it | records of later generations only: the file has what damaged records of this one said, and older records would take that back |
//! | the checksum of the table | as it was before | all records |
//! | the checksum that an intent names, once its records are added | written in part | all records |
//! | none of them | damaged, unless records hold all of its lines | all records |

use std::cmp::Reverse;
use std::ops::ControlFlow;

use super::file::{JournalFile, JournalPlace};
use super::layout::{Head, Images, Intent, MAX_PLACES, RECORD, VERSIONS};
use super::notes::PAGE_LINES;
use super::replay::{Replay, longest_record, store_line};
use super::search::Search;
use super::sums::{Page, Sums, Verdict, read_page};
use crate::backing::Backing;
use crate::error::{Error, Result};
use crate::ids::PoolId;
use crate::line::LINE;
use crate::medium::Medium;
use crate::session::Op;

/// What was read of a damaged journal.
#[derive(Debug, Default)]
pub(crate) struct Leftovers {
    /// The journal's salt, if anything tells it.
    pub(crate) salt: Option<u64>,
    /// What was found, in words.
    pub(crate) said: String,
    /// The lines of the sound records, ascending by generation.
    generations: Vec<(u64, Images)>,
    /// The sound intents.
    intents: Vec<Intent>,
    /// The sequence number after the last sound record.
    end: u64,
}

impl Leftovers {
    /// Reads the journal of a pool. A byte of it is read a bounded number of times: see [`search`](super::search). A journal of another version
    /// is an error: it is not damaged.
    pub(crate) fn read(place: &dyn JournalPlace, pool: PoolId, salt: Option<u64>, pool_len: u64) -> Result<Self> {
        let journal = place.describe();
        let nothing = |why: &str| format!("{why}: what was changed since the last checkpoint may be missing");
        let Some(file) = place.open(true)? else {
            let said = nothing(&format!("the journal {journal} is not there"));
            return Ok(Leftovers { salt, said, ..Leftovers::default() });
        };
        if let Some((found, _)) = Replay::other_version(&*file).filter(|(_, of)| *of == pool) {
            return Err(Error::OtherVersion { what: "journal", file: journal, found, known: VERSIONS });
        }
        let header = Replay::headers(&*file).filter(|header| header.pool == pool).max_by_key(|header| header.turn);
        let Some(salt) = salt.or(header.map(|header| header.salt)) else {
            let said = nothing(&format!("nothing tells whether the journal {journal} is of this pool"));
            return Ok(Leftovers { said, ..Leftovers::default() });
        };
        let oldest = header.filter(|header| header.salt == salt).map_or(0, |header| header.oldest);
        // A pool's file that was cut off says nothing of what its journal holds.
        let longest = longest_record(pool_len.max(1 << 30));
        let mut heads = Vec::new();
        Search::new(&*file, salt).each(
            0..file.len()?,
            |head| head.generation >= oldest && head.len <= longest,
            |head| {
                heads.push(head);
                ControlFlow::Continue(())
            },
        )?;
        let mut found = Self::of(&*file, salt, heads)?;
        found.said = match found.said.as_str() {
            "" => nothing(&format!("the journal {journal} has no sound record of this pool")),
            commits => format!(
                "the journal {journal} is damaged: its commits {commits}; what others have changed may be missing, or found as it was before"
            ),
        };
        Ok(found)
    }

    /// What these heads begin, which are sound. Its words are the numbers of its commits.
    fn of(file: &dyn JournalFile, salt: u64, mut heads: Vec<Head>) -> Result<Self> {
        let oldest = heads.iter().map(|head| head.oldest).max().unwrap_or(0);
        let newest = heads.iter().map(|head| head.generation).max().unwrap_or(0);
        // There is a place for each that waits. In a journal that somebody has made up there could be any number.
        heads.retain(|head| head.generation >= oldest.max(newest.saturating_sub(MAX_PLACES - 1)));
        heads.sort_unstable_by_key(|head| head.number);
        let mut left = Leftovers { salt: Some(salt), ..Leftovers::default() };
        let (mut bytes, mut sound, mut parts) = (Vec::new(), 0, Vec::new());
        for head in &heads {
            bytes.resize(head.len as usize, 0);
            file.read_at(head.at, &mut bytes)?;
            if head.what == RECORD {
                sound += u64::from(left.images_of(head.generation).add(&bytes));
            } else {
                parts.extend(Intent::decode(&bytes, salt, head.generation, head.at));
            }
        }
        left.generations.sort_unstable_by_key(|(generation, _)| *generation);
        // Each page asks all of them.
        let key = |intent: &Intent| (Reverse(intent.generation), intent.last, intent.end);
        parts.sort_by_key(key);
        for parts in parts.chunk_by(|a, b| key(a) == key(b)).take(2) {
            let mut pages: Vec<(u64, u64)> = parts.iter().flat_map(|part| part.pages.iter().copied()).collect();
            pages.sort_unstable();
            left.intents.push(Intent { pages, ..parts[0].clone() });
        }
        let mut records = heads.iter().filter(|head| head.what == RECORD);
        if let Some(first) = records.next() {
            let (first, last) = (first.number, records.next_back().unwrap_or(first).number);
            let damaged = (last - first).saturating_add(1).saturating_sub(sound);
            left.end = last.saturating_add(1);
            left.said = format!("{first} to {last} were read, but for {damaged} of them");
        }
        Ok(left)
    }

    fn images_of(&mut self, generation: u64) -> &mut Images {
        let at = self.generations.iter().position(|(of, _)| *of == generation).unwrap_or_else(|| {
            self.generations.push((generation, Images::default()));
            self.generations.len() - 1
        });
        &mut self.generations[at].1
    }

    /// Of a page: the newest generation that it has all of once what an intent announces is written, and its checksum then.
    fn announced(&self, page: u64) -> impl Iterator<Item = (u64, u64)> + Clone {
        self.intents.iter().filter_map(move |intent| {
            let covered = match intent.end {
                0 => intent.last,
                // A recovery carries over all records, so there is no later one.
                end if end >= self.end => u64::MAX,
                _ => return None,
            };
            Some((covered, intent.entry(page)?))
        })
    }

    /// What a page of the pool's file is worth. `bytes` are those of the file, and afterwards those of the pool; `noted` is its entry in the
    /// checksums.
    pub(crate) fn judge(&self, sums: &Sums, page: u64, bytes: &mut Page, noted: u64) -> Verdict {
        let is = |bytes: &Page, entry: u64| sums.judge(page, bytes, entry) == Verdict::Sound;
        let written = self.announced(page).filter(|(_, entry)| is(bytes, *entry)).map(|(covered, _)| covered).max();
        let mut verdict = if written.is_some() { Verdict::Sound } else { sums.judge(page, bytes, noted) };
        // Lines of the header are left out of its page's checksum, so it does not tell whether they were written.
        let written = written.filter(|_| page != 0);
        let mut lines = 0;
        for (generation, images) in self.generations.iter().filter(|(generation, _)| Some(*generation) > written) {
            images.overlay(page, bytes);
            lines |= images.lines_of(page);
            if self.announced(page).any(|(covered, entry)| covered >= *generation && is(bytes, entry)) {
                verdict = Verdict::Sound;
            }
        }
        if verdict == Verdict::Damaged && lines == u64::MAX { Verdict::Sound } else { verdict }
    }

    /// Stores what the journal adds to a mapping that holds what the pool's file does.
    pub(crate) fn store<M: Medium>(&self, op: &Op<'_, M>, backing: &dyn Backing, sums: Option<&Sums>) -> Result<()> {
        let mut pages: Vec<u64> = self.generations.iter().flat_map(|(_, images)| images.pages()).collect();
        pages.sort_unstable();
        pages.dedup();
        for page in pages {
            let before = read_page(backing, page)?;
            let mut bytes = before.clone();
            match sums {
                Some(sums) => _ = self.judge(sums, page, &mut bytes, sums.entries(page, 1)?[0]),
                None => self.generations.iter().for_each(|(_, images)| _ = images.overlay(page, &mut bytes)),
            }
            let lines = before.as_chunks::<LINE>().0.iter().zip(bytes.as_chunks::<LINE>().0);
            for (number, (before, line)) in (page * PAGE_LINES..).zip(lines) {
                if line != before {
                    store_line(op, number, line);
                }
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::layout::{Draft, Header, Place, VERSIONS};
    use super::*;
    use crate::journal::{BesidePool, PAGE};

    const SALT: u64 = 7;
    const POOL: PoolId = PoolId([3; 16]);

    /// A journal without a sound header, and the checksums of its pool.
    struct Bench {
        _dir: tempfile::TempDir,
        place: BesidePool,
        sums: Sums,
        /// Where the next record or intent goes.
        end: u64,
    }

    impl Bench {
        fn new() -> Self {
            let dir = tempfile::tempdir().unwrap();
            let pool = dir.path().join("pool");
            std::fs::write(&pool, []).unwrap();
            let place = BesidePool::new(&pool);
            place.create().unwrap();
            let sums = Sums::begin(&*place.sums().unwrap(), POOL, 0).unwrap();
            Bench { _dir: dir, place, sums, end: 8192 }
        }
        fn write(&mut self, bytes: &[u8]) {
            let file = self.place.open(false).unwrap().unwrap();
            file.set_len(self.end + bytes.len() as u64).unwrap();
            file.write_at(self.end, bytes).unwrap();
            self.end += bytes.len() as u64;
        }
        /// A record that says of lines of page 1 that all their bytes are `byte`.
        fn record(&mut self, generation: u64, sequence: u64, lines: std::ops::Range<u64>, byte: u8) {
            let mut draft = Draft::default();
            draft.clear();
            lines.for_each(|line| draft.push(PAGE_LINES + line, &[u64::from_le_bytes([byte; 8]); 8]));
            let place = Place { salt: SALT, generation, sequence, at: self.end };
            self.write(draft.seal(place));
        }
        fn intent(&mut self, generation: u64, end: u64, page: &Page) {
            let intent =
                Intent { generation, last: generation, next: 0, end, pages: vec![(1, self.sums.sum(1, page))] };
            self.write(&intent.encode(SALT, self.end));
        }
        /// What page 1 is worth, and its bytes, if the file and the table say this of it.
        fn judge(&self, file: &Page, noted: &Page) -> (Verdict, Page) {
            let left = Leftovers::read(&self.place, POOL, Some(SALT), 0).unwrap();
            let mut bytes = *file;
            let verdict = left.judge(&self.sums, 1, &mut bytes, self.sums.sum(1, noted));
            (verdict, bytes)
        }
    }

    /// A page whose lines have these bytes, and all others 1.
    fn page(lines: &[(std::ops::Range<usize>, u8)]) -> Page {
        let mut page = [1; PAGE as usize];
        lines.iter().for_each(|(lines, byte)| page[lines.start * LINE..lines.end * LINE].fill(*byte));
        page
    }

    #[test]
    fn pages_keep_their_checksums_whatever_was_written_of_them() {
        let mut bench = Bench::new();
        // The record with number 2, of the same generation, said that line 5 is 9. It is lost.
        bench.record(4, 1, 0..4, 2);
        bench.record(5, 3, 2..6, 3);
        let before = page(&[]);
        let checkpointed = page(&[(0..4, 2), (5..6, 9)]);
        let after = page(&[(0..2, 2), (2..6, 3)]);
        assert_eq!(bench.judge(&before, &before), (Verdict::Sound, after), "all records");
        assert_eq!(bench.judge(&page(&[(60..61, 8)]), &before).0, Verdict::Damaged);
        assert_eq!(
            bench.judge(&page(&[(0..1, 2)]), &before).0,
            Verdict::Damaged,
            "nothing says that it was to be written"
        );

        bench.intent(4, 0, &checkpointed);
        assert_eq!(bench.judge(&before, &before), (Verdict::Sound, after), "not begun");
        assert_eq!(bench.judge(&checkpointed, &before), (Verdict::Sound, after), "done");
        assert_eq!(bench.judge(&page(&[(5..6, 9)]), &before), (Verdict::Sound, after), "in part");
        assert_eq!(bench.judge(&page(&[(5..6, 9), (60..61, 8)]), &before).0, Verdict::Damaged);
    }

    /// What the file has of a damaged record stays, where a sound record before it would take it back.
    #[test]
    fn records_that_a_checkpoint_has_covered_do_not_come_again() {
        let mut bench = Bench::new();
        bench.record(4, 1, 0..4, 2);
        let (before, checkpointed) = (page(&[]), page(&[(0..2, 2), (2..4, 9)]));
        assert_eq!(bench.judge(&checkpointed, &before).0, Verdict::Damaged);
        bench.intent(4, 0, &checkpointed);
        assert_eq!(bench.judge(&checkpointed, &before), (Verdict::Sound, checkpointed));
        // A recovery covers all generations, unless there are later records.
        bench.record(5, 2, 6..7, 3);
        let recovered = page(&[(2..4, 9), (6..7, 3)]);
        bench.intent(5, 3, &recovered);
        assert_eq!(bench.judge(&recovered, &before), (Verdict::Sound, recovered));
        bench.record(5, 3, 0..1, 6);
        assert_eq!(bench.judge(&recovered, &before).0, Verdict::Damaged, "the intent of an earlier recovery");
    }

    #[test]
    fn a_page_is_sound_if_records_hold_all_of_it() {
        let mut bench = Bench::new();
        bench.record(4, 1, 0..40, 2);
        bench.record(5, 2, 40..63, 3);
        let (before, damaged) = (page(&[]), page(&[(50..52, 8)]));
        assert_eq!(bench.judge(&damaged, &before).0, Verdict::Damaged, "but for one line");
        bench.record(5, 3, 63..64, 3);
        assert_eq!(bench.judge(&damaged, &before), (Verdict::Sound, page(&[(0..40, 2), (40..64, 3)])));
    }

    #[test]
    fn a_header_of_another_journal_does_not_say_which_records_count() {
        let mut bench = Bench::new();
        bench.record(4, 1, 0..4, 2);
        let header = Header {
            version: VERSIONS.writes,
            pool: POOL,
            salt: SALT + 1,
            turn: 0,
            segment: 4096,
            oldest: 100,
            first: 0,
            places: 2,
        };
        bench.place.open(false).unwrap().unwrap().write_at(0, &header.encode()).unwrap();
        let before = page(&[]);
        assert_eq!(bench.judge(&before, &before), (Verdict::Sound, page(&[(0..4, 2)])));
    }

    /// Whoever makes up a journal can fill it with them.
    #[test]
    fn two_intents_of_the_newest_generation_count() {
        let mut bench = Bench::new();
        bench.record(4, 1, 0..1, 2);
        (0..100).for_each(|generation| bench.intent(generation, 0, &page(&[])));
        (1..100).for_each(|end| bench.intent(99, end, &page(&[])));
        let left = Leftovers::read(&bench.place, POOL, Some(SALT), 0).unwrap();
        assert_eq!(left.intents.iter().map(|i| (i.generation, i.end)).collect::<Vec<_>>(), [(99, 0), (99, 1)]);
    }

    #[test]
    fn the_parts_of_an_intent_are_one() {
        let mut bench = Bench::new();
        bench.record(4, 1, 0..1, 2);
        for pages in [vec![(7, 70), (9, 90)], vec![(3, 30)]] {
            let part = Intent { generation: 4, last: 4, next: 2, end: 0, pages };
            bench.write(&part.encode(SALT, bench.end));
        }
        let left = Leftovers::read(&bench.place, POOL, Some(SALT), 0).unwrap();
        assert_eq!(
            left.intents,
            [Intent { generation: 4, last: 4, next: 2, end: 0, pages: vec![(3, 30), (7, 70), (9, 90)] }]
        );
    }

    /// Both headers are gone. Records of a generation that was carried over before the newest one are sound; what they say is in the pool's file,
    /// where later generations have changed it since.
    #[test]
    fn records_that_were_carried_over_do_not_count() {
        let mut bench = Bench::new();
        for (generation, sequence, line, oldest) in [(4, 24, 7, 3), (2, 21, 8, 2), (3, 22, 7, 2), (3, 23, 9, 2)] {
            let mut draft = Draft::default();
            draft.clear();
            draft.push(PAGE_LINES + line, &[u64::from_le_bytes([sequence as u8; 8]); 8]);
            draft.oldest = oldest;
            let place = Place { salt: SALT, generation, sequence, at: bench.end };
            bench.write(draft.seal(place));
        }
        let left = Leftovers::read(&bench.place, POOL, Some(SALT), 0).unwrap();
        let lines =
            |images: &Images| images.iter().map(|(line, bytes)| (line % PAGE_LINES, bytes[0])).collect::<Vec<_>>();
        let found: Vec<_> = left.generations.iter().map(|(number, images)| (*number, lines(images))).collect();
        assert_eq!(found, [(3, vec![(7, 22), (9, 23)]), (4, vec![(7, 24)])]);
        assert!(left.said.contains("22 to 24 were read, but for 0 of them"), "{}", left.said);
    }

    /// Nor does what nobody names: there is a place for so many generations.
    #[test]
    fn no_more_generations_count_than_there_can_be_places() {
        let mut bench = Bench::new();
        (1..=200).for_each(|number| bench.record(number, number, 0..1, 2));
        let left = Leftovers::read(&bench.place, POOL, Some(SALT), 0).unwrap();
        let found: Vec<u64> = left.generations.iter().map(|(number, _)| *number).collect();
        assert_eq!(found, (200 - MAX_PLACES + 1..=200).collect::<Vec<u64>>());
    }
}
