//! What a pool with a journal offers: waiting for commits, dropping written pages, comparing pages with their checksums. See
//! [`journal`](crate::journal).

use super::Pool;
use super::pages::{BATCH, PageReport, damaged_page};
use crate::error::{Error, Result};
use crate::journal::{JournalStats, Level, PAGE, Verdict};
use crate::medium::Medium;
use crate::session::Session;
use crate::unsettled::Unsettled;

// ---- commits ----

impl<M: Medium> Pool<M> {
    /// What returned means, where the pool has a journal.
    pub fn level(&self) -> Option<Level> {
        self.inner.committer.as_ref().map(|committer| committer.journal.level)
    }

    /// Figures of the journal, where there is one.
    pub fn journal_stats(&self) -> Option<JournalStats> {
        self.inner.committer.as_ref().map(|committer| committer.journal.stats())
    }

    /// Makes everything durable that any session had done before the call, on a journaled pool; nothing on others. At most two flushes
    /// of the journal. Its commit is a boundary of the [epochs](Self::epochs).
    ///
    /// # Errors
    /// [`Error::JournalFailed`]; [`Error::Busy`] if operations do not end within 10 s; [`Error::Poisoned`] after a panic in a structure
    /// that takes part in the epochs; [`Error::Forked`], [`Error::Shut`], [`Error::ForeignSession`].
    pub fn commit(&self, session: &mut Session<M>) -> Result<()> {
        match &self.inner.committer {
            None => Ok(()),
            Some(committer) => committer.settle(session, self.mapping().gathering()),
        }
    }

    /// Waits as long as the pool's level asks for, after an update whose operation has [noted](crate::Op::note_commit) its commit and has
    /// ended: for that commit in [`Level::Immediate`], and for nothing as a rule elsewhere.
    ///
    /// # Errors
    /// As [`commit`](Self::commit).
    #[inline]
    pub fn settle(&self, session: &mut Session<M>) -> Result<()> {
        match &self.inner.committer {
            None => Ok(()),
            Some(committer) => committer.settle_level(session),
        }
    }

    /// As [`settle`](Self::settle), at another level than the pool's: it waits for the commit at [`Level::Immediate`]; at [`Level::Interval`] only if the
    /// oldest operation that is not durable is older than twice that time; at [`Level::Process`] never. What is not waited for is durable with the next
    /// commit: another update's, or the one that the journal's service makes every 64 ms, or every interval of the pool.
    ///
    /// # Errors
    /// As [`commit`](Self::commit).
    pub fn settle_at(&self, session: &mut Session<M>, level: Level) -> Result<()> {
        match &self.inner.committer {
            None => Ok(()),
            Some(committer) => {
                committer.settle_at(session, level)?;
                // Later calls of the session have not to wait for it either.
                session.forget_commit();
                Ok(())
            }
        }
    }

    /// Waits until all updates are durable that a ticket stands for: writes their lines back, each once, and waits by one fence; on a
    /// journaled pool for the commit, at any level. The ticket is empty then.
    ///
    /// # Errors
    /// [`Error::ForeignTicket`] if it is one of another pool; [`Error::Poisoned`] after a panic in one of the
    /// structures, which is told after all lines are durable; otherwise as [`commit`](Self::commit).
    pub fn wait(&self, session: &mut Session<M>, unsettled: &mut Unsettled<M>) -> Result<()> {
        if unsettled.is_empty() {
            return Ok(());
        }
        unsettled.belong_to(self.mapping())?;
        if !session.mapping().is_same(self.mapping()) {
            return Err(Error::ForeignSession);
        }
        if unsettled.has_changes() {
            unsettled.settle(&session.enter()?)?;
        }
        if let Some(committer) = &self.inner.committer {
            committer.settle(session, unsettled.commit())?;
        }
        unsettled.forget_commit();
        Ok(())
    }

    /// Whether a commit is durable, as noted by [`Op::note_commit`](crate::Op::note_commit).
    #[inline]
    pub fn is_settled(&self, number: u64) -> bool {
        self.inner.committer.as_ref().is_none_or(|committer| committer.journal.durable() >= number)
    }
}

// ---- memory ----

impl<M: Medium> Pool<M> {
    /// Drops the pages from memory that were written to and that a checkpoint has carried to the pool's file, on a pool with a journal. A service
    /// of the pool does it by itself where it has to ([`PoolOptions::written_memory`](crate::PoolOptions::written_memory)). Operations are
    /// kept out for less than a millisecond at a time. Returns how many bytes were dropped; zero where the system does not offer it. `O(pages
    /// that were written to)`, and reads them from the file.
    ///
    /// # Errors
    /// [`Error::JournalFailed`]; [`Error::Io`]; [`Error::Forked`], [`Error::Shut`], [`Error::ForeignSession`].
    pub fn drop_written_pages(&self, session: &mut Session<M>) -> Result<u64> {
        self.inner.dropper.as_ref().map_or(Ok(0), |dropper| dropper.drop_all(session))
    }

    /// Carries all commits that are durable from the journal to the pool's file, as checkpoints do by themselves when a segment of the journal is
    /// full. Nothing on a pool without a journal.
    ///
    /// # Errors
    /// [`Error::JournalFailed`].
    pub fn checkpoint_journal(&self) -> Result<()> {
        let Some(committer) = &self.inner.committer else { return Ok(()) };
        let carried = committer.journal.carry_over();
        committer.break_off(carried).map(|_| ())
    }
}

// ---- checksums ----

impl<M: Medium> Pool<M> {
    /// Reads the whole file, and compares each page with its checksum, as far as pages have checksums: in a pool that is or was open
    /// with a journal. Others may work meanwhile; a checkpoint waits for 64 pages at most. `O(bytes of the file)`.
    ///
    /// # Errors
    /// [`Error::Io`] if the file cannot be read; [`Error::TooManySessions`], [`Error::Forked`], [`Error::Shut`].
    pub fn check_pages(&self) -> Result<PageReport> {
        self.judge_pages(false)
    }

    /// The same, and gives pages that have no checksum yet one, as they are. Check the indices first: what is damaged by then is not
    /// found later. Durable on return. A pool without a journal stays as it is.
    ///
    /// # Errors
    /// As [`check_pages`](Self::check_pages); [`Error::DiskFull`].
    pub fn scrub(&self) -> Result<PageReport> {
        self.judge_pages(true)
    }

    fn judge_pages(&self, adopt: bool) -> Result<PageReport> {
        let file = &self.inner.file;
        let (mut report, mut damaged) = (PageReport::default(), Vec::new());
        let pages = file.backing.len()?.div_ceil(PAGE);
        for first in (0..pages).step_by(BATCH as usize) {
            let batch = first..(first + BATCH).min(pages);
            let count = batch.end - batch.start;
            let mut f = |page, verdict| match verdict {
                Verdict::Damaged => damaged.push(page),
                _ => report.unknown += 1,
            };
            let judged = match (file.journal.get(), file.audit.get()) {
                (Some(journal), _) => journal.judge(batch, adopt, &mut f)?,
                (None, Some(audit)) => audit.judge(&*file.backing, batch, &mut f)?,
                (None, None) => Err("it is open without a journal".into()),
            };
            if let Err(why) = judged {
                report.missing = Some(why);
                break;
            }
            report.pages += count;
        }
        if file.audit.get().is_some_and(|audit| audit.header_is_damaged) {
            // Its words say which journal and which checksums are the right ones.
            damaged.insert(0, 0);
            damaged.dedup();
        }
        if !damaged.is_empty() {
            let (indices, _) = self.readable_indices()?;
            let mut session = self.session()?;
            let op = session.enter()?;
            let owned = |page| damaged_page(&op, self.geometry(), self.space(), &indices, page);
            report.damaged = damaged.into_iter().map(owned).collect();
        }
        Ok(report)
    }
}
