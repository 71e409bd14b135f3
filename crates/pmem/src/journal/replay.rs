//! Recovery: what a journal says, and carrying it to the pool's file.
//!
//! | edge | how | a crash before it leaves | recovery |
//! |---|---|---|---|
//! | R1 the header and the records that are accepted, written again < R2 the first write to the pool's file | sync of the journal | the journal, perhaps with fewer records | begins anew with what it finds; nothing was used yet |
//! | R2 all lines in the pool's file < R3 state "replayed" | sync of the pool's file | the same journal, some of the lines | writes the same lines again |
//! | R3 state "replayed" < J1 the journal begins anew | sync of the pool's file | the same journal | writes the same lines again |
//!
//! R1 is there because what is read may lie in the page cache alone: after the death of a process that had not synced yet, or after
//! a sync that failed and marked the pages clean. To use it, and to lose it in a power failure, would leave half a commit in the pool's
//! file.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::file::{JournalFile, JournalPlace};
use super::layout::{HEADER, Header, Images, Place, SLOT, record_at};
use crate::backing::Backing;
use crate::error::{Error, Result};
use crate::line::LINE;
use crate::medium::Medium;
use crate::offset::Off;
use crate::pool::PoolId;
use crate::session::Op;
use crate::word::Word;

/// Bytes that are written to the pool's file at a time, at most.
pub(crate) const PART: usize = 256 << 10;

/// What a journal says that its pool's file does not yet.
#[derive(Debug)]
pub(crate) struct Replay {
    file: Arc<dyn JournalFile>,
    header: Header,
    /// The accepted records, as they lie in the file.
    parts: Vec<(u64, Vec<u8>)>,
    images: Images,
    records: u64,
}

impl Replay {
    /// Reads the journal of a pool that was open with one of that salt.
    pub(crate) fn read(place: &dyn JournalPlace, read_only: bool, name: &str, pool: PoolId, salt: u64) -> Result<Self> {
        let journal = place.describe();
        let Some(file) = place.open(read_only)? else {
            return Err(Error::MissingJournal { name: name.into(), journal });
        };
        let header = Self::header(&*file)?;
        let foreign = |what| Error::ForeignJournal { name: name.into(), journal: journal.clone(), what };
        if header.pool != pool {
            return Err(foreign(format!("it belongs to pool {}, and this is pool {pool}", header.pool)));
        }
        if header.salt != salt {
            return Err(foreign("it belongs to another opening of this pool".into()));
        }
        let mut replay = Replay { file, header, parts: Vec::new(), images: Images::default(), records: 0 };
        replay.read_records()?;
        Ok(replay)
    }

    /// The header that counts.
    fn header(file: &dyn JournalFile) -> Result<Header> {
        let slots = [0, SLOT].map(|at| {
            let mut bytes = [0; HEADER];
            file.read_at(at, &mut bytes).ok()?;
            Header::decode(&bytes).filter(|header| header.slot() == at)
        });
        let header = slots.into_iter().flatten().max_by_key(|header| header.turn);
        let header = header.ok_or_else(|| damaged(file, "no sound header in its first 8192 bytes".into()))?;
        let len = file.len()?;
        if len < header.file_len() {
            let what = format!("it has {len} bytes, and its header speaks of {}", header.file_len());
            return Err(damaged(file, what));
        }
        Ok(header)
    }

    /// Accepts records from the oldest generation on, as long as each is the next one. Two generations at most: a segment is used
    /// again only after the header has moved on.
    fn read_records(&mut self) -> Result<()> {
        let mut sequence = self.header.first;
        for generation in [self.header.oldest, self.header.oldest + 1] {
            let start = self.header.segment_of(generation);
            let mut segment = vec![0; self.header.segment as usize];
            self.file.read_at(start, &mut segment)?;
            let mut at = 0;
            while let Some(record) = {
                let place = Place { salt: self.header.salt, generation, sequence, at: start + at as u64 };
                record_at(&segment[at..], place)
            } {
                if !self.images.add(record) {
                    let what =
                        format!("the record at {:#x} has a sound checksum and makes no sense", start + at as u64);
                    return Err(damaged(&*self.file, what));
                }
                (at, sequence) = (at + record.len(), sequence + 1);
            }
            self.records = sequence - self.header.first;
            if at == 0 {
                break;
            }
            segment.truncate(at);
            self.parts.push((start, segment));
        }
        Ok(())
    }

    /// Carries it to the pool's file; durable on return. `replayed` is written at last.
    pub(crate) fn apply(&self, backing: &dyn Backing, (at, replayed): (u64, [u8; 8])) -> Result<()> {
        let (end, len) = (self.images.end() * LINE as u64, backing.len()?);
        if end > len {
            let what = format!("it speaks of byte {end:#x} of a pool of {len:#x} bytes");
            return Err(damaged(&*self.file, what));
        }
        self.file.write_at(self.header.slot(), &self.header.encode())?;
        self.parts.iter().try_for_each(|(at, bytes)| self.file.write_at(*at, bytes))?;
        self.file.sync()?; // PERSIST R1<R2: sync
        self.images.write(PART, |at, bytes| backing.write(at, bytes))?;
        backing.sync()?; // PERSIST R2<R3: sync
        backing.write(at, &replayed)?;
        backing.sync() // PERSIST R3<J1: sync
    }

    /// Whether the journal has not been trimmed since it was read.
    pub(crate) fn is_current(&self) -> bool {
        Self::header(&*self.file).is_ok_and(|header| header == self.header)
    }

    /// The lines, for a pool that is only read.
    pub(crate) fn images(&self) -> &Images {
        &self.images
    }
}

pub(super) fn damaged(file: &dyn JournalFile, what: String) -> Error {
    Error::DamagedJournal { journal: file.describe(), what }
}

impl Images {
    /// Stores the lines into a mapping that holds what the pool's file does.
    pub(crate) fn store<M: Medium>(&self, op: &Op<'_, M>) {
        let end = op.mapping().len();
        for (line, bytes) in self.iter().filter(|(line, _)| line * (LINE as u64) < end) {
            let words = op.at(Off::<[Word; 8]>::new(line * LINE as u64));
            for (word, bytes) in words.iter().zip(bytes.as_chunks::<8>().0) {
                op.store(word, u64::from_le_bytes(*bytes), Ordering::Relaxed);
            }
        }
    }
}
