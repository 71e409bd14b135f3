//! Trimming: what records have changed is written back, the watermark moves up, segments and freed space are given back.
//!
//! A round looks at all sessions' logs, because the watermark is one for all of them. It first reads the number of the next
//! commit, B. Then it locks each lane in turn. A commit draws its number, and stores its words in place, while it holds its
//! lane: so when the round has held a lane after reading B, every commit of that lane below B is in place. If the commit
//! comes first, the round finds its record; if the round comes first, the commit's number is B or higher.
//!
//! Each lane keeps the lines that its commits have changed, in volatile memory, a quarter as long as the log. The log itself is
//! written around the cache, so reading it again would cost as much as writing it.

use std::sync::atomic::Ordering;

use durix_pmem::service::{Due, Service, Urgency};
use durix_pmem::{Allocation, Medium, Moments, Op, Session};

use super::error::{Error, Result};
use super::lines::Lines;
use super::{Engine, Lane, WATERMARK};

impl<M: Medium> Engine<M> {
    /// Writes back what has been committed so far, and gives the log's space and what was freed back. A service of the pool does so
    /// when a log has half of [`Options::trim_at`](super::Options::trim_at) segments. Bounded by the length of the logs. Returns
    /// whether it did; it does not where another session is at it. Two fences.
    ///
    /// # Errors
    /// [`Error::Pool`], [`Error::ForeignSession`]; [`Error::Corrupt`].
    pub fn trim(&self, session: &mut Session<M>) -> Result<bool> {
        self.ensure_own(session)?;
        let op = session.enter()?;
        self.trim_in(&op)
    }

    /// As [`trim`](Self::trim), inside an operation.
    pub(super) fn trim_in(&self, op: &Op<'_, M>) -> Result<bool> {
        let Some(mut lines) = self.trimming.try_lock(op.medium()) else { return Ok(false) };
        self.round(op, &mut lines)?;
        Ok(true)
    }

    /// Trims, after whoever is at it: for who has found the pool full. What was freed is available afterwards, and so are the
    /// segments of all logs. The caller holds no part of the engine.
    ///
    /// # Errors
    /// As [`trim`](Self::trim).
    pub fn make_room(&self, op: &Op<'_, M>) -> Result<()> {
        self.poison.check(op)?;
        let mut lines = self.trimming.lock(op.medium());
        self.round(op, &mut lines)?;
        // One stays for whoever tries again.
        self.logs.shrink(op, 1)?;
        Ok(())
    }

    /// Trims all there is, while nobody works: afterwards nothing is pending.
    pub(super) fn finish(&mut self) -> Result<()> {
        if self.asks.load(Ordering::Relaxed) == 0 {
            return Ok(());
        }
        let mut session = self.root.pool().session()?;
        let op = session.enter()?;
        self.make_room(&op)?;
        if !self.is_part {
            // PERSIST RC-K3: flush+fence, inside
            self.root.ask(&op, Moments::NONE);
        }
        Ok(())
    }

    fn round(&self, op: &Op<'_, M>, lines: &mut Lines) -> Result<()> {
        let m = op.medium();
        // Commits that make a log long from here on ask for another round.
        m.shared_store(&self.is_long, 0, Ordering::Release);
        // After a panic, in a commit or here, words can be in no list that have to be written back.
        let _guard = self.poison.guard(op)?;
        let bound = m.shared_load(&self.next, Ordering::Acquire);
        // Lanes that are made from here on hold nothing below `bound`: a commit draws its number once it has its lane.
        let gathered = self.slots.iter().try_for_each(|slot| self.gather(op, &mut slot.lane.lock(op.medium()), lines));
        // Also where that has failed: no other session's fence covers what this one has written back.
        lines.write_back(op);
        // PERSIST RE-E3: flush+fence
        op.drain();
        gathered?;
        let watermark = &self.root.words(op)[WATERMARK];
        op.store(watermark, bound, Ordering::Release);
        // PERSIST RE-E4: flush+fence
        op.persist(watermark);
        let mut freed = Vec::new();
        for slot in self.slots.iter() {
            let mut lane = slot.lane.lock(op.medium());
            lane.give_back(op, bound)?;
            let kept = lane.frees.partition_point(|(number, _)| *number < bound);
            freed.extend(lane.frees.drain(..kept).map(|(_, allocation)| allocation));
        }
        self.release(op, freed);
        Ok(())
    }

    fn release(&self, op: &Op<'_, M>, freed: Vec<Allocation>) {
        for allocation in freed {
            self.root.pool().space().release(op, allocation);
        }
    }

    /// Gathers the lines that the commits of a lane have changed since the round before. Some of the commits may be above the bound: what they
    /// have stored is in place, too.
    fn gather(&self, op: &Op<'_, M>, lane: &mut Lane<M>, lines: &mut Lines) -> Result<()> {
        let space = self.root.pool().space();
        for change in &lane.space {
            op.defer(space.word_of(op, *change)?);
        }
        lane.space.clear();
        if let Some(changed) = &mut lane.changed {
            changed.drain(|off| lines.add(op, off));
        }
        Ok(())
    }
}

impl<M: Medium> Lane<M> {
    /// Gives the segments back whose commits are all below `bound`. When that becomes durable does not matter: the watermark says
    /// that their records do not count.
    fn give_back(&mut self, op: &Op<'_, M>, bound: u64) -> Result<()> {
        let Some(chain) = &mut self.chain else { return Ok(()) };
        let done = self.ends.iter().take_while(|(_, end)| *end < bound).count();
        for (segment, _) in self.ends.drain(..done) {
            chain.give_back(op, segment)?;
        }
        Ok(())
    }
}

/// The lazy write-back: it is due when a log has become long, and one step trims all logs.
impl<M: Medium> Service<M> for Engine<M> {
    fn name(&self) -> String {
        format!("the trimming of the log of {:?}", self.root.name())
    }

    fn due(&self) -> Due {
        let is_long = self.medium().shared_load(&self.is_long, Ordering::Acquire) != 0;
        if is_long { Due::Now(Urgency::Due) } else { Due::No }
    }

    fn step(&self, session: &mut Session<M>) -> durix_pmem::Result<()> {
        match self.trim(session) {
            // After a panic the records stay, for recovery. Whoever uses the engine is told.
            Ok(_) | Err(Error::Pool(durix_pmem::Error::Poisoned { .. })) => Ok(()),
            Err(Error::Pool(error)) => Err(error),
            Err(other) => Err(durix_pmem::Error::Recovery {
                name: self.root.name(),
                kind: <Self as durix_pmem::Structure<M>>::KIND,
                source: Box::new(other),
            }),
        }
    }
}
