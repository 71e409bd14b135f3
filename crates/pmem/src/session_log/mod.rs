//! Session logs: for each session a growing chain of segments, which a later session adopts.
//!
//! [`SessionLogs`] belong to one index. A session takes a [`Chain`] and appends words to it; nobody else writes there, so
//! appending takes no lock. When the chain's owner is gone (its thread has ended, its process has died), the chain is an
//! *orphan*: it is replayed by recovery, or adopted by the next session that needs a chain, with all that it holds.
//!
//! A segment is an extent, found by owner, and says by itself which use it is in: a number, higher than that of all uses
//! that began before and can still be found, and the chain. There are no links between segments. The chain's order is the order
//! of the numbers, and a segment can be given back from any place by one store.
//!
//! What the words mean is the client's business: the format of entries, the order of replay, when to trim. The seam gives
//! these rules, and no more:
//!
//! - Words that were appended and committed are found again, in a segment that says its number, until it is given back.
//! - Words beyond them are zero, or leftovers of earlier uses of the segment. So an entry has a checksum, and the checksum
//!   covers the number of the segment's use: an entry of an earlier use never passes.
//! - An entry that was appended and not committed may be found in any state, also whole, also where an earlier one is not.
//! - A segment that was given back may be found again, unchanged, until the next commit.
//!
//! # Persist order
//! | edge | how | a crash before it leaves | recovery |
//! |---|---|---|---|
//! | SL-S1 zeroes in all of a new segment < its descriptor | flush+fence | a free chunk | nothing to do |
//! | SL-S2 descriptor, use in the head < any word of that use | flush+fence | a free chunk, or the segment's last use with all its words | nothing to do, or as SL-S4 |
//! | SL-S3 words that were appended < return of [`Chain::commit`] | flush+fence | words that do not pass the client's check, or do | the client's to judge |
//! | SL-S4 head that says "over" < return of [`Chain::commit`] | flush+fence | its last use, with all its words | the client sees it again |
//! | SL-S5 heads as found < anything that is built on them | flush+fence | the same, or what was durable before | finds it again |
//!
//! SL-S2 has a fence of its own, once a segment. Without it, words of a use could be durable whose head is not: the next
//! process would give the same number to another use of the segment, and an entry that nobody has acknowledged would pass its
//! check. A spare segment keeps the number of its last use, so numbers go on where they were; a segment that comes from the
//! pool is zeroed, so it holds no entry of any number. No decision is more than one 8-byte store, so all of it survives the
//! `TornWords` model.
//!
//! A fence covers the write-backs of its own session. Where a chain changes hands with words that were not committed, the
//! new session writes them back again before its first fence.

mod chain;
pub mod layout;

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

pub use chain::{Chain, Segment};
use layout::{Found, HEAD, MAX_CHAINS, SegmentHead};

use crate::error::{Error, Result};
use crate::lock::{Lock, LockGuard};
use crate::medium::{Medium, Rmw};
use crate::offset::Off;
use crate::pool::Root;
use crate::session::Op;
use crate::space::{Extent, Space};
use chain::State;

/// The logs of one index: chains of segments, and spare segments.
pub struct SessionLogs<M: Medium> {
    root: Root<M>,
    /// Bytes of an ordinary segment.
    segment: u64,
    /// The number of the last use.
    last: AtomicU64,
    idle: Lock<Idle>,
}

/// What no session has.
#[derive(Default)]
struct Idle {
    /// In no use. That their last one is over may not be durable: the next use's head replaces it.
    spare: Vec<Extent>,
    orphans: Vec<State>,
    /// Numbers of chains that are free again, and the first that was never given out.
    free: Vec<u32>,
    next: u32,
}

impl<M: Medium> fmt::Debug for SessionLogs<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SessionLogs").field("root", &self.root).field("segment", &self.segment).finish_non_exhaustive()
    }
}

impl<M: Medium> SessionLogs<M> {
    /// Finds the logs of an index; a new index has none. What was found is durable on return: one write-back a segment,
    /// one fence. `segment` is the length in bytes of a segment that is added, rounded up to whole chunks.
    ///
    /// Every chain that was found is an orphan: see [`orphans`](Self::orphans). `O(chunks)`.
    ///
    /// # Errors
    /// [`Error::DamagedSegment`]: a head that nobody has written, or two segments of one use.
    pub fn open(op: &Op<'_, M>, root: Root<M>, segment: u64) -> Result<Arc<Self>> {
        let space = root.pool().space();
        let segment = segment.max(1).next_multiple_of(space.chunk());
        let (mut idle, mut uses, mut last) = (Idle::default(), BTreeMap::new(), 0);
        for extent in space.segments(op, root.owner()) {
            let state = &head(op, extent).state;
            op.write_back(state);
            let word = op.load(state, Ordering::Relaxed);
            let damaged = Error::DamagedSegment { off: extent.off, found: crate::word::Bits::to_bits(word) };
            match word.decode() {
                Found::Spare { number } => {
                    last = last.max(number);
                    idle.spare.push(extent);
                }
                Found::Used { number, chain } => {
                    last = last.max(number);
                    if uses.insert(number, (chain, extent)).is_some() {
                        return Err(damaged);
                    }
                }
                Found::Damaged => return Err(damaged),
            }
        }
        // PERSIST SL-S5: flush+fence
        op.fence();
        idle.take_over(op.slot(), uses);
        Ok(Arc::new(SessionLogs { root, segment, last: AtomicU64::new(last), idle: Lock::new(idle) }))
    }

    /// The index.
    pub fn root(&self) -> &Root<M> {
        &self.root
    }

    /// A chain for a session: an orphan, with all that it holds, or else a new one.
    ///
    /// # Errors
    /// [`Error::TooManySessions`]: all numbers of chains are in use.
    pub fn chain(self: &Arc<Self>, op: &Op<'_, M>) -> Result<Chain<M>> {
        let mut idle = self.idle(op);
        let state = match idle.orphans.pop() {
            Some(orphan) => orphan,
            None => State::new(idle.number()?, op.slot()),
        };
        drop(idle);
        Ok(Chain::new(Arc::clone(self), state))
    }

    /// All orphans, by number of the chain: for recovery, or for trimming what the dead have left. A chain that is dropped is an
    /// orphan again.
    pub fn orphans(self: &Arc<Self>, op: &Op<'_, M>) -> Vec<Chain<M>> {
        let mut states = std::mem::take(&mut self.idle(op).orphans);
        states.sort_by_key(State::chain);
        states.into_iter().map(|state| Chain::new(Arc::clone(self), state)).collect()
    }

    /// Gives spare segments back to the pool until `keep` are left. Durable on return; returns how many it were.
    ///
    /// # Errors
    /// [`Error::NotAnExtent`]: the pool was corrupted since.
    pub fn shrink(&self, op: &Op<'_, M>, keep: usize) -> Result<usize> {
        let mut freed = 0;
        loop {
            let mut idle = self.idle(op);
            if idle.spare.len() <= keep {
                return Ok(freed);
            }
            let Some(extent) = idle.spare.pop() else { return Ok(freed) };
            drop(idle);
            self.space().free_extent(op, extent)?;
            freed += 1;
        }
    }

    /// Segments that are in no chain.
    pub fn spare(&self, op: &Op<'_, M>) -> usize {
        self.idle(op).spare.len()
    }

    fn space(&self) -> &Space<M> {
        self.root.pool().space()
    }

    fn idle(&self, op: &Op<'_, M>) -> LockGuard<'_, Idle, M> {
        self.idle.lock(op.medium())
    }

    /// The number of the next use.
    fn number(&self, op: &Op<'_, M>) -> u64 {
        op.medium().shared_rmw(&self.last, Rmw::Add, 1) + 1
    }

    /// A spare segment with room for `words`, if there is one.
    fn take_spare(&self, op: &Op<'_, M>, words: u64) -> Option<Extent> {
        let mut idle = self.idle(op);
        let fits = |extent: &Extent| (extent.len - HEAD) / 8 >= words;
        let at = idle.spare.iter().rposition(fits)?;
        Some(idle.spare.swap_remove(at))
    }

    /// A new segment with room for `words`. Its descriptor is durable with the operation's next fence: that of its first use.
    fn add(&self, op: &Op<'_, M>, words: u64) -> Result<Extent> {
        let bytes = words.saturating_mul(8).saturating_add(HEAD).max(self.segment);
        let reserved = self.space().reserve_segment(op, self.root.owner(), bytes)?;
        reserved.zero(op)?;
        // PERSIST SL-S1: flush+fence
        op.fence();
        // PERSIST SL-S2: flush+fence, when it is entered
        self.space().activate(op, reserved)
    }

    /// Takes a segment whose use is over.
    fn put_spare(&self, op: &Op<'_, M>, extent: Extent) {
        self.idle(op).spare.push(extent);
    }
}

impl Idle {
    /// Makes orphans of the uses that were found.
    fn take_over(&mut self, slot: u32, uses: BTreeMap<u64, (u32, Extent)>) {
        let mut chains = BTreeMap::new();
        for (number, (chain, extent)) in uses {
            chains.entry(chain).or_insert_with(|| State::new(chain, slot)).found(number, extent);
        }
        self.next = chains.last_key_value().map_or(0, |(chain, _)| chain + 1);
        self.free = (0..self.next).filter(|chain| !chains.contains_key(chain)).collect();
        self.orphans = chains.into_values().collect();
    }

    fn number(&mut self) -> Result<u32> {
        if let Some(number) = self.free.pop() {
            return Ok(number);
        }
        if self.next == MAX_CHAINS {
            return Err(Error::TooManySessions { limit: MAX_CHAINS });
        }
        self.next += 1;
        Ok(self.next - 1)
    }
}

/// The head of a segment.
fn head<'s, M: Medium>(op: &Op<'s, M>, extent: Extent) -> &'s SegmentHead {
    op.at(Off::new(extent.off))
}

#[cfg(test)]
mod tests;
