//! Dropping private pages of a journaled pool that its file has: see "Dropping private pages" in `docs/design/journal.md`.
//!
//! A page that was written to is a private copy, which the kernel cannot drop. Once its newest captured contents are in the pool's file,
//! synced, and memory equals the file, dropping the copy changes nothing that anybody can see: the next access reads the file.
//!
//! | edge | how |
//! |---|---|
//! | as JN-D1: the newest record of a page in the pool's file, synced < JN-D2 the page is dropped | a page is a candidate only if its newest commit is one that was carried over |
//! | JN-D0 the last store to a page < JN-D2 | operations are kept out from the comparison to the drop |
//! | JN-D2 < JN-D3 the next write of a checkpoint to that page | it belongs to a later commit, whose capture comes after a store, which has made the page private again |

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use super::journaled::Committer;
use crate::backing::CleanPages;
use crate::error::{Error, Result};
use crate::journal::Candidate;
use crate::line::LINE;
use crate::medium::Medium;
use crate::offset::Off;
use crate::service::{Due, Lane, Service, Urgency};
use crate::session::{Op, Session};
use crate::word::Word;

/// Bytes that a step looks at.
const BATCH: u64 = 256 << 10;
/// How long a step keeps operations out, at most; a drop that has begun is not interrupted.
const CLOSED: Duration = Duration::from_micros(300);
/// How often it is tried again at once while operations do not end.
const TRIES: u64 = 100;
/// Bytes that are dropped between two looks at the clock.
const RUN: u64 = 64 << 10;
/// How long a step waits for operations to end, while it keeps others out.
const PATIENCE: Duration = Duration::from_millis(1);
/// Nothing was committed for that long: the pool is idle.
const QUIET: Duration = Duration::from_secs(1);
/// What an idle pool keeps without a try to drop it, in bytes.
const KEPT_IDLE: u64 = 4 << 20;
/// How long nothing is tried after nothing could be dropped.
const REST: Duration = Duration::from_millis(100);

/// Drops written pages: above the pool's bound, and when it is idle.
pub(super) struct Dropper<M: Medium> {
    committer: Arc<Committer<M>>,
    opened: Instant,
    /// The system has refused to drop pages.
    refused: AtomicBool,
    /// Whether it goes on until half of the bound is reached.
    draining: AtomicBool,
    /// Whether anything was dropped, or noted, since everything was last carried over.
    useful: AtomicBool,
    /// How often in a row operations did not end.
    busy: AtomicU64,
    /// Nothing is tried before, in nanoseconds since `opened`.
    rests: AtomicU64,
    /// How many records there were when an idle pool had dropped what it could.
    idle_at: AtomicU64,
}

/// What a step has done.
#[derive(Clone, Copy, Debug, Default)]
struct Round {
    /// Bytes that were dropped.
    dropped: u64,
    /// Pages that differed, and were noted for the next commit.
    noted: bool,
    /// Whether the last candidate was looked at.
    ended: bool,
    /// Whether operations did not end.
    busy: bool,
}

impl<M: Medium> Committer<M> {
    /// Tells the service that drops pages about what was captured.
    pub(super) fn note_written(&self) {
        let (bytes, limit) = (self.journal.written().bytes(), self.journal.written_limit);
        if bytes > limit / 4 * 3 {
            self.file.dropper.get().inspect(|service| {
                if bytes >= limit {
                    service.hold_writers(true);
                }
                service.wake();
            });
        }
    }
}

impl<M: Medium> Dropper<M> {
    pub(super) fn new(committer: Arc<Committer<M>>) -> Self {
        Dropper {
            committer,
            opened: Instant::now(),
            refused: AtomicBool::new(false),
            draining: AtomicBool::new(false),
            useful: AtomicBool::new(true),
            busy: AtomicU64::new(0),
            rests: AtomicU64::new(0),
            idle_at: AtomicU64::new(0),
        }
    }

    /// Looks at some candidates, and drops those that equal the file.
    fn drop_some(&self, session: &mut Session<M>) -> Result<Round> {
        let (journal, file) = (&self.committer.journal, &self.committer.file);
        // JN-D1: what is written to the file later belongs to later commits. Each of those changes the entry of its pages when it is captured.
        let carried = journal.carried();
        let (unit, candidates, ended) = {
            let mut written = journal.written();
            let unit = written.unit();
            let (found, ended) = written.candidates(carried, (BATCH / unit).max(1) as usize);
            (unit, found, ended)
        };
        let mut round = Round { ended, ..Round::default() };
        // Before operations are kept out: it may wait for the disk.
        let mut clean = Vec::new();
        for run in candidates.chunk_by(|a, b| a.unit + 1 == b.unit) {
            let len = run.len() as u64 * unit;
            if run[0].unit * unit + len > file.mapping.len() {
                continue;
            }
            let mut bytes = vec![0; len as usize];
            file.backing.read(run[0].unit * unit, &mut bytes)?;
            let op = session.enter()?;
            for (candidate, bytes) in run.iter().zip(bytes.chunks_exact(unit as usize)) {
                match note_difference(&op, candidate.unit * unit, bytes) {
                    true => round.noted = true,
                    false => clean.push((*candidate, bytes.to_vec())),
                }
            }
        }
        if !clean.is_empty() {
            let dropped = file.mapping.quiesce(session, PATIENCE, |session| self.drop_clean(session, unit, &clean));
            match dropped {
                Ok(dropped) => round.dropped = dropped,
                // Whoever keeps an operation open is not waited for.
                Err(Error::Busy { .. }) => round.busy = true,
                Err(error) => return Err(error),
            }
        }
        Ok(round)
    }

    /// Drops pages that still equal what the file holds, while no operation is open. Returns how many bytes.
    fn drop_clean(&self, session: &mut Session<M>, unit: u64, clean: &[(Candidate, Vec<u8>)]) -> u64 {
        let journal = &self.committer.journal;
        let op = session.enter_exclusive();
        // JN-D0 < JN-D2: nobody stores meanwhile, and captures come before or after.
        let mut written = journal.written();
        let (begun, mut dropped) = (Instant::now(), 0);
        for part in clean.chunks((RUN / unit).max(1) as usize) {
            let equal = |(candidate, bytes): &&(Candidate, Vec<u8>)| {
                written.is_unchanged(*candidate) && is_equal(&op, candidate.unit * unit, bytes)
            };
            let units: Vec<u64> = part.iter().filter(equal).map(|(candidate, _)| candidate.unit).collect();
            for run in units.chunk_by(|a, b| a + 1 == *b) {
                if self.drop_range(run[0] * unit..(run[run.len() - 1] + 1) * unit) {
                    run.iter().for_each(|unit| written.remove(*unit));
                    dropped += run.len() as u64 * unit;
                }
            }
            if begun.elapsed() > CLOSED {
                break;
            }
        }
        drop(written);
        journal.note_dropped(dropped);
        dropped
    }

    fn drop_range(&self, range: Range<u64>) -> bool {
        let file = &self.committer.file;
        // PERSIST JN-D1<JN-D2: `carried` was raised after the sync
        let dropped = file.backing.drop_private(&CleanPages::new(file.mapping.reserve(), range));
        self.refused.fetch_or(!dropped, Ordering::Relaxed);
        dropped
    }

    /// Drops all that it can: pages that a checkpoint has carried over. Returns how many bytes.
    pub(super) fn drop_all(&self, session: &mut Session<M>) -> Result<u64> {
        let mut dropped = 0;
        self.committer.journal.written().rewind();
        loop {
            // After a sync that has failed nobody knows what the file holds.
            self.committer.journal.failure().map_or(Ok(()), Err)?;
            let round = self.drop_some(session)?;
            dropped += round.dropped;
            if round.ended || self.refused.load(Ordering::Relaxed) {
                return Ok(dropped);
            }
        }
    }

    /// Everything that is written was looked at: carries over what was not, so that it can be dropped. Rests if that is no use.
    fn carry_over(&self, session: &mut Session<M>) -> Result<()> {
        let journal = &self.committer.journal;
        if !self.useful.swap(false, Ordering::Relaxed) {
            self.idle_at.store(journal.records(), Ordering::Relaxed);
            self.rests.store((self.opened.elapsed() + REST).as_nanos() as u64, Ordering::Relaxed);
            self.draining.store(false, Ordering::Relaxed);
            return Ok(());
        }
        if !journal.notes.notes().is_empty() {
            self.committer.settle(session, self.committer.file.mapping.gathering())?;
        }
        let carried = journal.carry_over();
        if self.committer.break_off(carried)? {
            self.useful.store(true, Ordering::Relaxed);
        }
        Ok(())
    }

    fn rests(&self) -> Option<Duration> {
        let left = Duration::from_nanos(self.rests.load(Ordering::Relaxed)).saturating_sub(self.opened.elapsed());
        (!left.is_zero()).then_some(left)
    }
}

/// Whether memory holds the same.
fn is_equal<M: Medium>(op: &Op<'_, M>, start: u64, bytes: &[u8]) -> bool {
    bytes.chunks_exact(LINE).zip(0..).all(|(line, number)| is_line_equal(op, start + number * LINE as u64, line))
}

fn is_line_equal<M: Medium>(op: &Op<'_, M>, start: u64, bytes: &[u8]) -> bool {
    let words = op.at(Off::<[Word; 8]>::new(start));
    words.iter().zip(bytes.as_chunks::<8>().0).all(|(word, bytes)| {
        let there: u64 = op.load(word, Ordering::Relaxed);
        there == u64::from_le_bytes(*bytes)
    })
}

/// Notes the lines that differ from the file: nobody has noted them, so no commit would ever carry them over. It is as if the processor had
/// evicted them, which it may at any time. Returns whether there are any.
fn note_difference<M: Medium>(op: &Op<'_, M>, start: u64, bytes: &[u8]) -> bool {
    let mut differs = false;
    for (line, number) in bytes.chunks_exact(LINE).zip(0..) {
        let at = start + number * LINE as u64;
        if !is_line_equal(op, at, line) {
            op.write_back(op.at(Off::<[Word; 8]>::new(at)));
            differs = true;
        }
    }
    differs
}

impl<M: Medium> Service<M> for Dropper<M> {
    fn name(&self) -> String {
        format!("the dropping of written pages of {}", self.committer.file.name)
    }

    fn lane(&self) -> Lane {
        Lane::Disk
    }

    fn due(&self) -> Due {
        let journal = &self.committer.journal;
        if journal.failure().is_some() || self.refused.load(Ordering::Relaxed) {
            return Due::No;
        }
        let (bytes, limit) = (journal.written().bytes(), journal.written_limit);
        if bytes <= KEPT_IDLE.min(limit / 2) {
            return Due::In(QUIET);
        }
        if let Some(left) = self.rests() {
            return Due::In(left);
        }
        if bytes > limit / 8 * 7 {
            return Due::Now(Urgency::Pressing);
        }
        if bytes > limit / 4 * 3 || self.draining.load(Ordering::Relaxed) {
            return Due::Now(Urgency::Due);
        }
        if self.idle_at.load(Ordering::Relaxed) == journal.records() {
            return Due::In(QUIET);
        }
        let quiet = journal.quiet();
        if quiet < QUIET { Due::In(QUIET - quiet) } else { Due::Now(Urgency::Leisure) }
    }

    fn step(&self, session: &mut Session<M>) -> Result<()> {
        let (journal, hold) = (&self.committer.journal, self.committer.file.dropper.get());
        let limit = journal.written_limit;
        let release = |bytes| {
            if bytes < limit / 8 * 7 || self.refused.load(Ordering::Relaxed) || self.rests().is_some() {
                hold.inspect(|service| service.hold_writers(false));
            }
        };
        let round = match self.rests() {
            Some(_) => Round::default(),
            None if self.refused.load(Ordering::Relaxed) => Round::default(),
            None => self.drop_some(session).inspect_err(|_| release(0))?,
        };
        if round.dropped > 0 || round.noted {
            self.useful.store(true, Ordering::Relaxed);
        }
        let tries = if round.busy { self.busy.fetch_add(1, Ordering::Relaxed) + 1 } else { 0 };
        if (1..TRIES).contains(&tries) {
            return Ok(());
        }
        self.busy.store(0, Ordering::Relaxed);
        let bytes = journal.written().bytes();
        let draining = bytes > limit / 4 * 3 || (bytes > limit / 2 && self.draining.load(Ordering::Relaxed));
        self.draining.store(draining, Ordering::Relaxed);
        let enough = bytes <= limit / 2 && journal.quiet() < QUIET;
        if round.ended && !enough {
            self.carry_over(session).inspect_err(|_| release(0))?;
        }
        release(bytes);
        Ok(())
    }
}
