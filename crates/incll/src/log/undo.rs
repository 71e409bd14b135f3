//! The external log (section 4.2): whole nodes as they were, for changes that InCLLp does not cover.
//!
//! A record of a CSO log holds the epoch, the node's offset, and the node's forty words: six lines. Each session appends to
//! a segment of its own; all images of one operation share one fence (IN-P3). A boundary makes the images of its epoch
//! useless; they are trimmed when the session next logs. What recovery puts back is told by the record's epoch, so nothing
//! rests on when a trim becomes durable.
//!
//! # Persist order
//! | edge | how | a crash before it leaves | recovery |
//! |---|---|---|---|
//! | IN-P3 images < any change of the nodes that InCLLp does not cover | flush+fence | unchanged nodes | puts the same back |
//! | IN-U1 nodes put back < the seat's `opened` | flush+fence | the images, `opened` as it was | puts them back again |
//! | IN-U2 `opened` < first use of the tree | flush+fence: EP-J1 of the epochs | the same, nothing changed since | the same |
//!
//! `opened` is the epoch of the run that has last put images back. An image counts if it is of a failed epoch since then:
//! the tree may stay closed for many runs of its pool, each with crashes, before it is next opened.

use std::sync::atomic::Ordering::Relaxed;

use durix_cso::log::{Error as LogError, LinesLog, Log};
use durix_pmem::epoch::layout::Seat;
use durix_pmem::{Epochs, Extent, Lock, Medium, Op};

use crate::alloc::arena::{Arena, Head};
use crate::error::{Error, Result};
use crate::layout::{Node, slab_kind};
use crate::log::replay::{self, Replay};

/// Words of a node.
pub(crate) const WORDS: usize = size_of::<Node>() / 8;
/// Words of a record.
pub(crate) const RECORD: usize = WORDS + 2;

/// Segments that no session has.
pub(crate) struct Segments {
    free: Lock<Vec<LinesLog>>,
}

/// A session's part of the log.
#[derive(Debug, Default)]
pub(crate) struct Undo {
    /// The last one is appended to; the others are full.
    segments: Vec<LinesLog>,
    used: bool,
}

/// All words of a node, to be stored elsewhere.
pub(crate) fn image<M: Medium>(op: &Op<'_, M>, node: &Node) -> [u64; WORDS] {
    let mut words = [0; WORDS];
    words[0] = op.load(&node.version, Relaxed);
    words[1] = op.load(&node.middle[0], Relaxed);
    words[2] = op.load(&node.middle[1], Relaxed);
    words[3] = durix_pmem::Bits::to_bits(op.load(&node.stamp, Relaxed));
    for (to, from) in words[4..].iter_mut().zip(&node.rest) {
        *to = op.load(from, Relaxed);
    }
    words
}

impl Undo {
    /// Writes the image of a node, without a fence.
    pub(crate) fn stage<M: Medium>(
        &mut self,
        op: &Op<'_, M>,
        arena: &Arena<M>,
        segments: &Segments,
        epoch: u64,
        node: &Node,
    ) -> Result<()> {
        let mut record = [0; RECORD];
        record[0] = epoch;
        record[1] = op.off_of(node).get();
        record[2..].copy_from_slice(&image(op, node));
        self.used = true;
        loop {
            match self.segments.last_mut().map(|log| log.stage_from(op, 0, &record[..])) {
                Some(Ok(_)) => return Ok(()),
                Some(Err(LogError::Full { .. })) => self.commit(op),
                Some(Err(error)) => return Err(error.into()),
                None => {}
            }
            self.segments.push(segments.take(op, arena)?);
        }
    }

    /// Makes everything staged durable: one fence.
    pub(crate) fn commit<M: Medium>(&mut self, op: &Op<'_, M>) {
        if let Some(log) = self.segments.last_mut() {
            // PERSIST IN-P3: flush+fence
            log.commit(op);
        }
    }

    /// A new epoch has begun: what was logged before is of no use.
    pub(crate) fn turn<M: Medium>(&mut self, op: &Op<'_, M>, segments: &Segments) -> Result<()> {
        if std::mem::take(&mut self.used) {
            for log in &mut self.segments {
                let tail = log.tail();
                log.trim(op, tail)?;
            }
            let spare = self.segments.len().saturating_sub(1);
            segments.free.lock(op.medium()).extend(self.segments.drain(..spare));
        }
        Ok(())
    }

    /// Hands the segments to all sessions, if nothing was logged in this epoch.
    pub(crate) fn share<M: Medium>(&mut self, op: &Op<'_, M>, segments: &Segments) {
        if !self.used {
            segments.free.lock(op.medium()).append(&mut self.segments);
        }
    }
}

impl Segments {
    pub(crate) fn new() -> Self {
        Segments { free: Lock::new(Vec::new()) }
    }

    fn take<M: Medium>(&self, op: &Op<'_, M>, arena: &Arena<M>) -> Result<LinesLog> {
        if let Some(log) = self.free.lock(op.medium()).pop() {
            return Ok(log);
        }
        let mut log = None;
        let head = Head { kind: slab_kind::LOG, block: arena.chunk(), blocks: 1 };
        arena.add(op, arena.chunk(), 0, head, |extent| {
            log = Some(LinesLog::format(op, replay::region(extent), &())?);
            Ok(())
        })?;
        Ok(log.expect("formatted just now"))
    }

    /// Puts back what failed epochs had changed, takes the segments over, and has the tree take part in the epochs.
    /// Durable on return.
    pub(crate) fn replay<M: Medium>(
        &self,
        op: &Op<'_, M>,
        epochs: &Epochs<M>,
        seat: &Seat,
        extents: &[Extent],
    ) -> Result<()> {
        let since = op.load(&seat.opened, Relaxed);
        let mut logs = Replay::new(epochs, since, extents).run(op, replay::helpers(extents.len()))?; // PERSIST IN-U1: inside
        // PERSIST IN-U2: flush+fence, inside
        epochs.join(op, seat);
        for log in &mut logs {
            let tail = log.tail();
            log.trim(op, tail).map_err(Error::from)?;
        }
        *self.free.lock(op.medium()) = logs;
        Ok(())
    }
}
