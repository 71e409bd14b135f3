//! The scrub of a journaled pool that runs by itself: a service that reads the pool's file, slowly, and compares its pages with their
//! checksums. It stores nothing, so it has no persist order: see "The scrub" in `docs/design/journal.md`.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use super::indices::list;
use super::journaled::Committer;
use super::pages::{BATCH, damaged_page};
use crate::error::{Error, Result};
use crate::journal::{PAGE, Verdict, lock};
use crate::medium::Medium;
use crate::service::{Due, Lane, Service, Urgency};
use crate::session::Session;
use crate::space::Space;

/// How long it rests between two steps, at least: 50 MiB a second at most, whatever the file's length.
const LEAST_REST: Duration = Duration::from_millis(5);
/// Damaged pages that are remembered, so that none is told of twice.
const REMEMBERED: usize = 1 << 16;

/// Reads the whole file once in a while.
pub(super) struct Scrubber<M: Medium> {
    committer: Arc<Committer<M>>,
    space: Arc<Space<M>>,
    /// How long a pass takes.
    every: Duration,
    state: Mutex<State>,
}

struct State {
    /// The next batch of pages.
    batch: u64,
    /// When the last step was.
    last: Instant,
    /// Batches of this pass that were read.
    done: u64,
    /// Whether damage was told of in this pass.
    told: bool,
    /// Pages that were found damaged since the pool was opened.
    damaged: BTreeSet<u64>,
}

impl<M: Medium> Scrubber<M> {
    /// `every` is how long a pass takes.
    pub(super) fn new(committer: Arc<Committer<M>>, space: Arc<Space<M>>, every: Duration) -> Self {
        // Where it begins is as good as random: a pool that is open for a part of a pass only has all of its pages read some day.
        let (batch, last) = (committer.journal.salt(), Instant::now());
        let state = State { batch, last, done: 0, told: false, damaged: BTreeSet::new() };
        Scrubber { committer, space, every, state: Mutex::new(state) }
    }

    /// Batches of the file.
    fn batches(&self) -> u64 {
        self.committer.file.mapping.len().div_ceil(BATCH * PAGE).max(1)
    }

    fn rest(&self) -> Duration {
        (self.every / u32::try_from(self.batches()).unwrap_or(u32::MAX)).max(LEAST_REST)
    }

    /// The pages of the next batch.
    fn next(&self, state: &mut State) -> std::ops::Range<u64> {
        let batches = self.batches();
        if state.done >= batches {
            (state.done, state.told) = (0, false);
        }
        let first = state.batch % batches * BATCH;
        (state.batch, state.last, state.done) = (state.batch % batches + 1, Instant::now(), state.done + 1);
        first..(first + BATCH).min(self.committer.file.mapping.len().div_ceil(PAGE))
    }
}

impl<M: Medium> Service<M> for Scrubber<M> {
    fn name(&self) -> String {
        format!("the scrub of {}", self.committer.file.name)
    }

    fn lane(&self) -> Lane {
        Lane::Disk
    }

    fn due(&self) -> Due {
        if self.committer.journal.failure().is_some() || !self.committer.journal.has_sums() {
            return Due::No;
        }
        let (rest, passed) = (self.rest(), lock(&self.state).last.elapsed());
        if passed < rest { Due::In(rest - passed) } else { Due::Now(Urgency::Leisure) }
    }

    fn step(&self, session: &mut Session<M>) -> Result<()> {
        let journal = &self.committer.journal;
        // It has moved on before it reads: a page that cannot be read does not keep it from the others.
        let pages = self.next(&mut lock(&self.state));
        let (count, mut found) = (pages.end - pages.start, Vec::new());
        let judged = journal.judge(pages, false, &mut |page, verdict| {
            if verdict == Verdict::Damaged {
                found.push(page);
            }
        })?;
        if judged.is_err() {
            return Ok(());
        }
        let mut state = lock(&self.state);
        found.retain(|page| state.damaged.len() < REMEMBERED && state.damaged.insert(*page));
        journal.note_scrubbed(count, found.len() as u64);
        // Each page once, and once in a pass at most: whoever updates is told.
        if found.is_empty() || std::mem::replace(&mut state.told, true) {
            return Ok(());
        }
        drop(state);
        let file = &self.committer.file;
        let op = session.enter()?;
        let indices = list(&op, &file.geometry).unwrap_or_default();
        let what = damaged_page(&op, &file.geometry, &self.space, &indices, found[0]).to_string();
        Err(Error::DamagedPage { name: file.name.clone(), what })
    }
}
