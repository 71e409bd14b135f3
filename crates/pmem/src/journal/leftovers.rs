//! What can still be read of a journal that cannot be replayed, for a repair.
//!
//! Every sound record of the journal that the pool was last open with counts, whatever lies between them. The pool's header says the
//! journal's salt; where that is damaged, a sound header of the journal does, if it is of this pool. Each record says where it belongs, and its
//! checksum is seeded with the salt, so none is of another journal. Records of the two newest generations count, from the oldest one on that a
//! sound header of the journal names: what older ones say is in the pool's file.
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

use std::ops::ControlFlow;

use super::file::{JournalFile, JournalPlace};
use super::layout::{Head, Images, Intent, RECORD};
use super::notes::PAGE_LINES;
use super::replay::{Replay, store_line};
use super::search::Search;
use super::sums::{Page, Sums, Verdict, read_page};
use crate::backing::Backing;
use crate::error::Result;
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
    /// Reads the journal of a pool. A byte of it is read a bounded number of times: see [`search`](super::search).
    pub(crate) fn read(place: &dyn JournalPlace, pool: PoolId, salt: Option<u64>) -> Result<Self> {
        let journal = place.describe();
        let nothing = |why: &str| format!("{why}: what was changed since the last checkpoint may be missing");
        let Some(file) = place.open(true)? else {
            let said = nothing(&format!("the journal {journal} is not there"));
            return Ok(Leftovers { salt, said, ..Leftovers::default() });
        };
        let header = Replay::headers(&*file).filter(|header| header.pool == pool).max_by_key(|header| header.turn);
        let Some(salt) = salt.or(header.map(|header| header.salt)) else {
            let said = nothing(&format!("nothing tells whether the journal {journal} is of this pool"));
            return Ok(Leftovers { said, ..Leftovers::default() });
        };
        let oldest = header.filter(|header| header.salt == salt).map_or(0, |header| header.oldest);
        let mut heads = Vec::new();
        Search::new(&*file, salt).each(
            0..file.len()?,
            |head| head.generation >= oldest,
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
        // The intent of a recovery has the number of a generation that may have no record.
        let of_checkpoints = |head: &&Head| head.what == RECORD || head.number == 0;
        let newest = heads.iter().filter(of_checkpoints).map(|head| head.generation).max().unwrap_or(0);
        heads.retain(|head| head.generation.saturating_add(1) >= newest);
        heads.sort_unstable_by_key(|head| head.number);
        let mut left = Leftovers { salt: Some(salt), ..Leftovers::default() };
        let (mut bytes, mut sound) = (Vec::new(), 0);
        for head in &heads {
            bytes.resize(head.len as usize, 0);
            file.read_at(head.at, &mut bytes)?;
            if head.what == RECORD {
                sound += u64::from(left.images_of(head.generation).add(&bytes));
            } else {
                left.intents.extend(Intent::decode(&bytes, salt, head.generation, head.at));
            }
        }
        left.generations.sort_unstable_by_key(|(generation, _)| *generation);
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
                0 => intent.generation,
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
