//! Reading a node while others change it: versions, and waiting for locks.
//!
//! # Orders between threads
//! A writer locks a node by its version word (compare and exchange), marks it dirty, changes it, and unlocks it with
//! another version (`lock`). A reader takes a version that is not dirty, reads, and asks whether the version is still the same.
//! Either the reader has seen no store of the change; or it has seen one, and then, by the release fence behind the mark
//! and the acquire fence before the question, it sees at least the mark, and the answer is no.
//!
//! A change of one word alone (a value in place) needs neither mark nor new version: readers see the one or the other.

use std::sync::atomic::Ordering::{Acquire, Relaxed};
use std::sync::atomic::fence;
use std::time::{Duration, Instant};

use durix_pmem::{Medium, Off};

use crate::Policy;
use crate::error::{Error, Result};
use crate::layout::{Before, LayerName, Node, PLACE_FREE, SLOTS, place_of, version};
use crate::node::context::{At, Context};

/// How long a node may stay locked.
const PATIENCE: Duration = Duration::from_secs(5);

/// Counts the turns of a wait, and ends it some time. There are two kinds. A [turn](Self::turn) belongs to a loop that looks at
/// one word until somebody changes it. Where a node has changed under an operation, what it waited for has happened: it tries
/// [again](Self::again) at once, and meets whoever is at work there when it enters or locks the next node. (It must not take a
/// turn first: nobody may come to end it, as far as the simulator can tell, which takes a turn as waiting for a change of
/// something that was read since the last one.)
pub(crate) struct Wait {
    turn: u32,
    since: Option<Instant>,
    /// The operations of others before the last attempts, where none was under way.
    quiet: Option<u64>,
}

impl Wait {
    pub(crate) fn new() -> Self {
        Wait { turn: 0, since: None, quiet: None }
    }

    /// Whether it is time to ask whether a lock has a living owner: not in short waits.
    fn asks_for_owner(&self) -> bool {
        self.turn % 64 == 63
    }

    /// Another turn, for the node at `off`.
    ///
    /// # Errors
    /// [`Error::Stuck`] after [`PATIENCE`].
    #[cold]
    fn turn<M: Medium>(&mut self, m: M, off: Off<Node>) -> Result<()> {
        m.spin(self.turn);
        self.count(off)
    }

    /// Another attempt, at the node at `off`, because something has changed.
    ///
    /// # Errors
    /// [`Error::Corrupt`] where attempts fail although nobody else is at work: a damaged link leads to a node that says it is
    /// deleted, say. [`Error::Stuck`] after [`PATIENCE`].
    #[cold]
    pub(crate) fn again<M: Medium, P: Policy>(&mut self, cx: &Context<'_, M, P>, off: Off<Node>) -> Result<()> {
        if self.turn % 64 == 63 {
            let quiet = cx.op.quiet();
            if quiet.is_some() && quiet == self.quiet {
                return Err(cx.corrupt("a link to a node that is not part of the tree,", off, 0));
            }
            self.quiet = quiet;
        }
        self.count(off)
    }

    fn count(&mut self, off: Off<Node>) -> Result<()> {
        self.turn = self.turn.wrapping_add(1);
        if self.turn.is_multiple_of(4096) && self.since.get_or_insert_with(Instant::now).elapsed() > PATIENCE {
            return Err(Error::Stuck { offset: off.get(), seconds: PATIENCE.as_secs() });
        }
        Ok(())
    }
}

impl<'a, M: Medium, P: Policy> Context<'a, M, P> {
    /// The node at `off`, recovered, with a version at which nobody is changing it.
    #[inline(always)]
    pub(crate) fn enter(&self, off: Off<Node>) -> Result<(&'a Node, u64)> {
        let node = self.op.at(off);
        if self.is_old(node, self.tree.trusted) {
            return self.enter_late(off);
        }
        let version = self.op.load(&node.version, Acquire);
        if version & version::DIRTY != 0 {
            return self.enter_late(off);
        }
        Ok((node, version & !version::HELD))
    }

    /// Whether a node has to be recovered, being of an epoch before those that can be trusted. What its version says after a crash
    /// is nothing to look at, so this is asked first; and whoever hears that it is not, sees what recovery may have done.
    #[inline(always)]
    pub(crate) fn is_old(&self, node: &Node, trusted: Before) -> bool {
        P::DURABLE && self.op.load(&node.stamp, Acquire).is_before(trusted)
    }

    /// Whether a node has a stamp that the tree can have given it; asked before the node is entered, which may renew it. The root of
    /// a tree that nothing was inserted into has none.
    pub(crate) fn is_stamped(&self, off: Off<Node>) -> bool {
        let stamp = self.op.load(&self.op.at(off).stamp, Relaxed);
        !P::DURABLE || stamp.is_plausible(self.epoch) || off == self.tree.root && durix_pmem::Bits::to_bits(stamp) == 0
    }

    /// What a node says of its place, a border node with the seal of its layer: see [`place_of`].
    fn place(&self, off: Off<Node>) -> u64 {
        let is_interior = !P::INTERIOR_IN_LINE && self.is_interior(off);
        let word = if is_interior { &self.interior(off).place } else { &self.border(off).inline };
        self.op.load(word, Relaxed) & !PLACE_FREE
    }

    fn is_interior(&self, off: Off<Node>) -> bool {
        self.op.load(&self.op.at(off).stamp, Relaxed).is_interior()
    }

    /// The layer that a border node says it belongs to; anything if that is damaged. The root of a tree, which is born as a line of
    /// zeroes, says nothing, and need not.
    pub(crate) fn layer_name(&self, off: Off<Node>) -> LayerName {
        if off == self.tree.root {
            return LayerName::FIRST;
        }
        let border = self.border(off);
        let words = border.slots[SLOTS].each_ref().map(|word| self.op.load(word, Relaxed));
        LayerName::read(words, self.op.load(&border.inline, Relaxed) & !PLACE_FREE, off.get())
    }

    /// Whether a node of a layer says that it lies where it does. The root of a tree is born as a line of zeroes, and says nothing until
    /// it is filled anew.
    pub(crate) fn is_placed(&self, off: Off<Node>, layer: LayerName) -> bool {
        self.place_but_for(off, layer) == place_of(off.get()) || off == self.tree.root && self.place(off) == 0
    }

    /// The place that a node names, if it is one of a layer.
    pub(crate) fn place_but_for(&self, off: Off<Node>, layer: LayerName) -> u64 {
        self.place(off) ^ if self.is_interior(off) { 0 } else { layer.seal() }
    }

    /// [`enter`](Self::enter), where there is something to be done first. (It and its like take all of `self`: an operation
    /// that never comes here then needs it nowhere in memory.)
    #[cold]
    #[inline(never)]
    fn enter_late(self, off: Off<Node>) -> Result<(&'a Node, u64)> {
        let node = self.op.at(off);
        if self.is_old(node, self.tree.trusted) {
            self.recover(off, node);
        }
        let version = self.wait_while((off, node), version::DIRTY)?;
        Ok((node, version & !version::HELD))
    }

    /// Waits while the version of a node has any of these bits; returns it as it then is.
    #[cold]
    fn wait_while(&self, (off, node): At<'a>, bits: u64) -> Result<u64> {
        let mut wait = Wait::new();
        loop {
            let version = self.op.load(&node.version, Acquire);
            if version & bits == 0 {
                return Ok(version);
            }
            if wait.asks_for_owner() && self.is_abandoned(node, version) {
                return Err(self.corrupt("the lock of a node", off, version));
            }
            wait.turn(self.op.medium(), off)?;
        }
    }

    /// Whether a locked node was locked by nobody who is at work: a live owner keeps a lock for less than one operation, and waits
    /// for no node that it has locked itself. A sound node is never found so.
    ///
    /// Both outcomes: if the owner is inside an operation at either look at its count, or has begun one in between, the counts
    /// are odd or differ, and the wait goes on. If they are even and equal, the owner was in no operation when the version was
    /// read again, and the lock is not its own.
    #[cold]
    fn is_abandoned(&self, node: &Node, version: u64) -> bool {
        let owner = version::owner(version);
        if version & version::LOCKED == 0 || owner == self.op.slot() {
            return true;
        }
        let before = self.op.operations_of(owner);
        let again = self.op.load(&node.version, Acquire);
        again == version && before.is_multiple_of(2) && self.op.operations_of(owner) == before
    }

    /// Waits until nobody has the lock of a node.
    #[cold]
    pub(crate) fn wait_for_lock(&self, off: Off<Node>) -> Result<()> {
        self.wait_while((off, self.op.at(off)), version::LOCKED).map(drop)
    }

    /// Whether all that was read of a node since it was [entered](Self::enter) is of one moment.
    #[inline(always)]
    pub(crate) fn is_still(&self, node: &Node, version: u64) -> bool {
        fence(Acquire);
        self.op.load(&node.version, Relaxed) & !version::HELD == version
    }
}
