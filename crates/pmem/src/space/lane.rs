//! Lanes: intents that make "allocated and linked" one step.
//!
//! An intent names a link, the value that it is about to get, and the descriptor or bitmap bit that has to agree with it.
//! The link decides: once it has the value, the block is allocated (or freed); until then it is not.
//!
//! | edge | kept by | a crash before it leaves | recovery |
//! |---|---|---|---|
//! | SP-L1 the words of an intent < its seal | same line (`TornWords`: the checksum in the seal) | no valid seal | nothing to do: nothing has happened |
//! | SP-L2 the seal, and the object, < link and effect | flush+fence: the owner's own fence between `prepare` and `complete` | neither link nor effect | nothing to undo |
//! | SP-L3 link and effect < the seal is cleared | flush+fence | a valid seal, and any of the two | the effect is made to agree with the link; idempotent |
//! | SP-L4 the cleared seal < anybody changes the link again | flush+fence | a valid seal over finished work | as SP-L3: the link has not changed since |
//!
//! The operation is durable with the fence of SP-L3. SP-L4 is why `complete` waits once more: another session may change the
//! link afterwards, and its fence would not cover the cleared seal.

use std::sync::atomic::Ordering;

use super::layout::{Effect, Heap, LANE_STRIDE, Lane};
use crate::medium::Medium;
use crate::offset::Off;
use crate::session::Op;
use crate::word::{Bits, Word};

/// What an activation in flight is about to do.
#[derive(Clone, Copy, Debug)]
pub(super) struct Intent {
    pub(super) link: Off<Word>,
    pub(super) link_value: u64,
    pub(super) target: Off<Word>,
    /// What holds at the target once the link has the value.
    pub(super) effect: Effect,
    /// What holds there until then.
    pub(super) otherwise: Effect,
}

impl Intent {
    /// Writes the intent into a lane and starts writing it back. The caller's next fence makes it durable.
    pub(super) fn write<M: Medium>(self, op: &Op<'_, M>, lane: Off<Lane>) {
        let to = op.at(lane);
        op.store(&to.link, self.link, Ordering::Relaxed);
        op.store(&to.link_value, self.link_value, Ordering::Relaxed);
        op.store(&to.target, self.target, Ordering::Relaxed);
        op.store(&to.effect, self.effect, Ordering::Relaxed);
        op.store(&to.otherwise, self.otherwise, Ordering::Relaxed);
        // PERSIST SP-L1: same line.
        op.store(&to.seal, self.seal(), Ordering::Release);
        op.write_back(to);
    }

    fn seal(self) -> u64 {
        let effects = [self.effect, self.otherwise].map(Bits::to_bits);
        Lane::seal_of([self.link.get(), self.link_value, self.target.get(), effects[0], effects[1]])
    }

    /// The intent in a lane, if its seal is valid.
    pub(super) fn read<M: Medium>(op: &Op<'_, M>, lane: Off<Lane>) -> Option<Intent> {
        let from = op.at(lane);
        let seal = op.load(&from.seal, Ordering::Acquire);
        if seal == 0 {
            return None;
        }
        let intent = Intent {
            link: op.load(&from.link, Ordering::Relaxed),
            link_value: op.load(&from.link_value, Ordering::Relaxed),
            target: op.load(&from.target, Ordering::Relaxed),
            effect: op.load(&from.effect, Ordering::Relaxed),
            otherwise: op.load(&from.otherwise, Ordering::Relaxed),
        };
        (seal == intent.seal()).then_some(intent)
    }

    /// Whether both words lie where an intent can have meant them: aligned, backed, and behind the lanes (links may lie
    /// in root entries).
    pub(super) fn is_plausible(self, heap: Heap, backed: u64) -> bool {
        let lanes_end = heap.lanes_off + u64::from(heap.lanes) * LANE_STRIDE;
        let fits = |off: u64, from: u64| off.is_multiple_of(8) && off >= from && off < backed;
        fits(self.link.get(), lanes_end) && fits(self.target.get(), heap.heap_off)
    }

    /// Sets the link and has the effect. The caller holds the space's lock, since bitmap words are shared.
    pub(super) fn store<M: Medium>(self, op: &Op<'_, M>) {
        self.store_effect(op, self.effect);
        op.store(op.at(self.link), self.link_value, Ordering::Release);
    }

    /// Makes the target agree with the link, after a crash.
    pub(super) fn settle<M: Medium>(self, op: &Op<'_, M>) {
        let linked = op.load(op.at(self.link), Ordering::Acquire) == self.link_value;
        self.store_effect(op, if linked { self.effect } else { self.otherwise });
    }

    fn store_effect<M: Medium>(self, op: &Op<'_, M>, effect: Effect) {
        let target = op.at(self.target);
        let value = effect.apply(op.load(target, Ordering::Relaxed));
        op.store(target, value, Ordering::Release);
    }

    /// Starts writing back what [`Intent::store`] stored.
    pub(super) fn write_back<M: Medium>(self, op: &Op<'_, M>) {
        op.write_back(op.at(self.target));
        op.write_back(op.at(self.link));
    }
}

/// Clears a lane and starts writing it back.
pub(super) fn clear<M: Medium>(op: &Op<'_, M>, lane: Off<Lane>) {
    let lane = op.at(lane);
    op.store(&lane.seal, 0, Ordering::Release);
    op.write_back(lane);
}
