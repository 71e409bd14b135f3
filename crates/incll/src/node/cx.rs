//! A node as an operation sees it: versions, locks, stamps, blocks.
//!
//! # Orders between threads
//! A writer locks a node by its version word (compare and exchange), marks it dirty, changes it, and unlocks it with
//! another version. A reader takes a version that is not dirty, reads, and asks whether the version is still the same.
//! Either the reader has seen no store of the change; or it has seen one, and then, by the release fence behind the mark
//! and the acquire fence before the question, it sees at least the mark, and the answer is no.
//!
//! A change of one word alone (a value in place) needs neither mark nor new version: readers see the one or the other.

use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::fence;
use std::time::{Duration, Instant};

use durix_pmem::{Lock, LockGuard, Medium, Off, Op, Wide};

use crate::Policy;
use crate::alloc::slab::{Cache, Durably};
use crate::error::{Error, Result};
use crate::layout::{Before, Border, Interior, Node, Permutation, SLOTS, Stamp, version};
use crate::log::undo::Undo;
use crate::node::entry::Entry;
use crate::tree::Masstree;
use crate::value::Record;

/// How long a node may stay locked.
const PATIENCE: Duration = Duration::from_secs(5);

/// What a session keeps for a tree.
#[derive(Debug)]
pub(crate) struct Local {
    epoch: u64,
    pub(crate) cache: Cache,
    pub(crate) undo: Undo,
    /// Nodes that were written to the external log.
    pub(crate) logged: u64,
}

/// A session's part of a tree, made when it is first needed.
pub(crate) type Slot = Lock<Option<Box<Local>>>;

/// An operation on a tree.
pub(crate) struct Cx<'a, M: Medium, P: Policy> {
    pub(crate) tree: &'a Masstree<M, P>,
    pub(crate) op: &'a Op<'a, M>,
    pub(crate) epoch: u64,
    /// The round of the epoch: what was noted in another is noted again.
    pub(crate) round: u64,
    /// How to search, where words need not be loaded one by one.
    pub(crate) wide: Option<Wide>,
}

impl<M: Medium, P: Policy> Clone for Cx<'_, M, P> {
    fn clone(&self) -> Self {
        *self
    }
}
impl<M: Medium, P: Policy> Copy for Cx<'_, M, P> {}

/// A node without its kind.
pub(crate) type At<'a> = (Off<Node>, &'a Node);

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
    pub(crate) fn again<M: Medium, P: Policy>(&mut self, cx: &Cx<'_, M, P>, off: Off<Node>) -> Result<()> {
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

impl<'a, M: Medium, P: Policy> Cx<'a, M, P> {
    pub(crate) fn corrupt(&self, what: &'static str, off: Off<Node>, found: u64) -> Error {
        Error::Corrupt { what, offset: off.get(), found }
    }

    // ---- reading ----

    #[inline(always)]
    pub(crate) fn border(&self, off: Off<Node>) -> &'a Border {
        self.op.at(off.cast())
    }

    pub(crate) fn interior(&self, off: Off<Node>) -> &'a Interior {
        self.op.at(off.cast())
    }

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

    // ---- writing ----

    /// Locks a node if it still has that version.
    #[inline(always)]
    pub(crate) fn lock(&self, off: Off<Node>, version: u64) -> Option<Locked<'a, M, P>> {
        let node = self.op.at(off);
        let locked = self.op.compare_exchange(&node.version, version, version | version::held_by(self.op.slot()));
        // Made only where the lock was got: dropping it unlocks.
        locked.is_ok().then(|| Locked { cx: *self, off, node, version, dirty: false, deleted: false })
    }

    /// Waits for the lock of a node, whatever its version; `None` if it is no longer part of the tree.
    pub(crate) fn lock_any(&self, off: Off<Node>) -> Result<Option<Locked<'a, M, P>>> {
        let mut wait = Wait::new();
        loop {
            let (_, version) = self.enter(off)?;
            if version & version::DELETED != 0 {
                return Ok(None);
            }
            if let Some(locked) = self.lock(off, version) {
                return Ok(Some(locked));
            }
            self.wait_for_lock(off)?;
            wait.again(self, off)?;
        }
    }

    /// The session's part of the tree, turned to the current epoch.
    pub(crate) fn local(&self) -> Result<LockGuard<'a, Option<Box<Local>>, M>> {
        let slot = self.op.slot() as usize;
        let mut guard = self.tree.locals[slot].lock(self.op.medium());
        let local = guard.get_or_insert_with(|| {
            Box::new(Local { epoch: self.epoch, cache: self.tree.slabs.cache(), undo: Undo::default(), logged: 0 })
        });
        self.turn(local)?;
        Ok(guard)
    }

    fn turn(&self, local: &mut Local) -> Result<()> {
        if local.epoch != self.epoch {
            local.epoch = self.epoch;
            self.tree.slabs.turn(self.op, &self.tree.arena, &mut local.cache);
            local.undo.turn(self.op, &self.tree.segments)?;
        }
        Ok(())
    }

    /// Does what needs space. Where there is none, once more, when all sessions have shared what they keep: blocks, and segments
    /// of the log.
    fn with_space<T>(&self, mut f: impl FnMut() -> Result<T>) -> Result<T> {
        match f() {
            Err(Error::Pool(durix_pmem::Error::Full { .. } | durix_pmem::Error::DiskFull { .. })) => {
                self.gather()?;
                f()
            }
            done => done,
        }
    }

    #[cold]
    fn gather(&self) -> Result<()> {
        for slot in &self.tree.locals {
            // Whoever is at work with what it keeps may have all of it.
            if let Some(mut guard) = slot.try_lock(self.op.medium())
                && let Some(local) = guard.as_deref_mut()
            {
                self.turn(local)?;
                self.tree.slabs.share(self.op, &mut local.cache);
                local.undo.share(self.op, &self.tree.segments);
            }
        }
        self.tree.slabs.give_back_large(self.op, &self.tree.arena, self.durably());
        Ok(())
    }

    pub(crate) fn durably(&self) -> Durably<'a, M> {
        Durably { epochs: &self.tree.epochs, epoch: self.epoch, round: self.round, durable: P::DURABLE }
    }

    pub(crate) fn free(&self, off: u64, bytes: u64) -> Result<()> {
        let mut local = self.local()?;
        let cache = &mut local.as_mut().expect("made by `local`").cache;
        self.tree.slabs.free(self.op, self.durably(), cache, off, bytes)
    }

    pub(crate) fn free_node(&self, off: Off<Node>) -> Result<()> {
        let mut local = self.local()?;
        let cache = &mut local.as_mut().expect("made by `local`").cache;
        self.tree.slabs.free_node(self.op, self.durably(), cache, off.get())
    }

    /// Writes the images of nodes that are not logged yet to the external log, so that they may be changed at will. Whoever
    /// changes them [notes](Locked::note) the lines.
    pub(crate) fn log(&self, nodes: &[&Locked<'a, M, P>]) -> Result<()> {
        if !P::DURABLE {
            return Ok(());
        }
        let is_logged = |node: &Node| {
            let stamp = self.op.load(&node.stamp, Relaxed);
            stamp.epoch() == self.epoch && stamp.is_logged()
        };
        let missing = || nodes.iter().filter(|locked| !is_logged(locked.node));
        if missing().next().is_some() {
            self.with_space(|| {
                let mut local = self.local()?;
                let Local { undo, logged, .. } = &mut **local.as_mut().expect("made by `local`");
                for locked in missing() {
                    undo.stage(self.op, &self.tree.arena, &self.tree.segments, self.epoch, locked.node)?;
                    *logged += 1;
                }
                undo.commit(self.op);
                Ok(())
            })?;
        }
        for locked in nodes {
            let stamp = locked.stamp();
            let is_new = stamp.epoch() != self.epoch || stamp.round() != self.round;
            let lines = if is_new { 0 } else { stamp.lines() };
            let now = Stamp::new(self.epoch, stamp.is_interior(), true, 0).in_round(self.round, lines | 1);
            if now != stamp {
                self.op.store(&locked.node.stamp, now, Relaxed);
                self.note_lines(locked.node, now.lines() & !lines);
            }
        }
        Ok(())
    }

    /// The same, for nodes that are about to be written from end to end.
    pub(crate) fn log_whole(&self, nodes: &[&Locked<'a, M, P>]) -> Result<()> {
        self.log(nodes)?;
        nodes.iter().for_each(|locked| locked.note(Stamp::ALL_LINES));
        Ok(())
    }

    /// Puts lines of a node, a bit each, on the dirty list.
    #[inline(always)]
    pub(crate) fn note_lines(&self, node: &Node, lines: u64) {
        self.tree.epochs.dirty_lines(self.op, node, lines);
    }
}

/// The right to change a node, until dropped.
pub(crate) struct Locked<'a, M: Medium, P: Policy> {
    pub(crate) cx: Cx<'a, M, P>,
    pub(crate) off: Off<Node>,
    pub(crate) node: &'a Node,
    version: u64,
    dirty: bool,
    deleted: bool,
}

impl<'a, M: Medium, P: Policy> Locked<'a, M, P> {
    #[inline(always)]
    pub(crate) fn border(&self) -> &'a Border {
        self.cx.border(self.off)
    }

    pub(crate) fn interior(&self) -> &'a Interior {
        self.cx.interior(self.off)
    }

    #[inline(always)]
    pub(crate) fn stamp(&self) -> Stamp {
        self.cx.op.load(&self.node.stamp, Relaxed)
    }

    /// Keeps readers out until the node is unlocked.
    #[inline(always)]
    pub(crate) fn mark_dirty(&mut self) {
        if !self.dirty {
            self.dirty = true;
            let held = version::held_by(self.cx.op.slot());
            self.cx.op.store(&self.node.version, self.version | held | version::DIRTY, Relaxed);
            fence(Release);
        }
    }

    /// Says that the node is no longer part of the tree.
    pub(crate) fn mark_deleted(&mut self) {
        self.mark_dirty();
        self.deleted = true;
    }

    /// Prepares a change of the permutation and of slots on `lines` that InCLLp covers, or the log where
    /// [`log_unless_in_line`](Self::log_unless_in_line) has put the node there.
    #[inline(always)]
    pub(crate) fn touch(&self, lines: u64) {
        if !P::DURABLE {
            return;
        }
        let (op, border, stamp) = (self.cx.op, self.border(), self.stamp());
        if stamp.epoch() != self.cx.epoch {
            op.store(&border.saved, op.load(&border.permutation, Relaxed), Relaxed);
            let interior = P::INTERIOR_IN_LINE && stamp.is_interior();
            let first = Stamp::new(self.cx.epoch, interior, false, 0).in_round(self.cx.round, lines | 1);
            // PERSIST IN-P1: same line
            op.store(&border.stamp, first, Release);
            self.cx.note_lines(self.node, lines | 1);
        } else {
            self.note(lines);
        }
    }

    /// Notes that `lines` are being changed, of a node that has this epoch's stamp.
    #[inline(always)]
    pub(crate) fn note(&self, lines: u64) {
        let stamp = self.stamp();
        if P::DURABLE && stamp.round() != self.cx.round {
            // What was noted before may have been written back already.
            self.cx.op.store(&self.node.stamp, stamp.in_round(self.cx.round, lines | 1), Relaxed);
            self.cx.note_lines(self.node, lines | 1);
        } else if P::DURABLE && stamp.lines() & lines != lines {
            self.cx.op.store(&self.node.stamp, stamp.with_lines(lines), Relaxed);
            self.cx.note_lines(self.node, lines & !stamp.lines());
        }
    }

    /// Notes the line of the lock, of a node that was locked and not changed: it may be written back at any time, so also while it
    /// says locked, and what a clean closing leaves nobody resets.
    #[inline(always)]
    fn note_lock(&self) {
        let stamp = self.stamp();
        if P::DURABLE && (stamp.epoch() != self.cx.epoch || stamp.round() != self.cx.round) {
            self.note_lock_alone();
        }
    }

    #[cold]
    #[inline(never)]
    fn note_lock_alone(&self) {
        if self.stamp().is_interior() {
            self.cx.note_lines(self.node, 1);
        } else {
            self.touch(0);
        }
    }

    /// Logs the node if its policy leaves nothing to InCLL.
    #[inline(always)]
    pub(crate) fn log_unless_in_line(&self) -> Result<()> {
        if P::DURABLE && !P::IN_LINE { self.cx.log(&[self]) } else { Ok(()) }
    }

    /// Slots that may be overwritten although they are not live, as bits.
    #[inline(always)]
    pub(crate) fn free_slots(&self) -> u16 {
        let (op, border) = (self.cx.op, self.border());
        let mut taken = op.load(&border.permutation, Relaxed).mask();
        if P::DURABLE {
            let stamp = self.stamp();
            if stamp.epoch() == self.cx.epoch && !stamp.is_logged() {
                // IN-P4: what undoing needs is not touched.
                taken |= op.load(&border.saved, Relaxed).mask();
            }
        }
        !taken & ((1 << SLOTS) - 1)
    }

    /// The same once the node will have kept no more than these. Without a stamp of this epoch, the slots that are live now are
    /// what undoing will need.
    pub(crate) fn free_slots_beside(&self, kept: Permutation) -> u16 {
        let (op, border, stamp) = (self.cx.op, self.border(), self.stamp());
        let needed = match stamp.epoch() == self.cx.epoch {
            _ if !P::DURABLE => 0,
            true if stamp.is_logged() => 0,
            true => op.load(&border.saved, Relaxed).mask(), // IN-P4
            false => op.load(&border.permutation, Relaxed).mask(),
        };
        !(kept.mask() | needed) & ((1 << SLOTS) - 1)
    }

    /// Whether a live slot may be overwritten in place.
    #[inline(always)]
    pub(crate) fn is_free_to_change(&self, slot: usize) -> bool {
        if !P::DURABLE {
            return true;
        }
        let stamp = self.stamp();
        stamp.epoch() == self.cx.epoch
            && (stamp.is_logged() || !self.cx.op.load(&self.border().saved, Relaxed).contains(slot))
    }

    /// Whether these lines may be changed with nothing else to do: see [`Stamp::is_settled`].
    #[inline(always)]
    pub(crate) fn is_settled(&self, lines: u64) -> bool {
        !P::DURABLE || self.stamp().is_settled(self.cx.epoch, self.cx.round, lines)
    }

    /// Stores the permutation, which is what makes a change of it visible and durable.
    #[inline(always)]
    pub(crate) fn set_permutation(&self, permutation: Permutation) {
        // PERSIST IN-P2: same line
        self.cx.op.store(&self.border().permutation, permutation, Release);
    }
}

impl<M: Medium, P: Policy> Drop for Locked<'_, M, P> {
    #[inline(always)]
    fn drop(&mut self) {
        self.note_lock();
        let deleted = if self.deleted { version::DELETED } else { 0 };
        let step = if self.dirty { version::STEP } else { 0 };
        // Release for other threads alone: recovery does not read versions.
        self.cx.op.store(&self.node.version, (self.version | deleted).wrapping_add(step), Release);
    }
}

/// What a block is for.
#[derive(Clone, Copy)]
enum Block {
    /// A record of so many bytes.
    Record(u64),
    Border,
    Interior,
}

/// Blocks that an operation has taken; unless they are [kept](Fresh::keep), they are given back.
pub(crate) struct Fresh<'a, M: Medium, P: Policy> {
    pub(crate) cx: Cx<'a, M, P>,
    taken: Vec<(u64, Block)>,
}

impl<'a, M: Medium, P: Policy> Fresh<'a, M, P> {
    pub(crate) fn new(cx: Cx<'a, M, P>) -> Self {
        Fresh { cx, taken: Vec::new() }
    }

    fn take(&mut self, block: Block) -> Result<u64> {
        let cx = self.cx;
        let off = cx.with_space(|| {
            let mut local = cx.local()?;
            let cache = &mut local.as_mut().expect("made by `local`").cache;
            let (slabs, arena) = (&cx.tree.slabs, &cx.tree.arena);
            match block {
                Block::Record(bytes) => slabs.take(cx.op, arena, cx.durably(), cache, bytes),
                Block::Border => slabs.take_node(cx.op, arena, cx.durably(), cache, false),
                Block::Interior => slabs.take_node(cx.op, arena, cx.durably(), cache, true),
            }
        })?;
        self.taken.push((off, block));
        Ok(off)
    }

    /// A border node with these entries, in their order.
    pub(crate) fn border(&mut self, entries: &[Entry]) -> Result<Off<Node>> {
        let lines = entries.len().div_ceil(4);
        let off = self.node(false, (2 << lines) - 1)?;
        self.cx.fill_fresh(off, entries);
        Ok(off)
    }

    /// An interior node, with nothing in it.
    pub(crate) fn interior(&mut self) -> Result<Off<Node>> {
        self.node(true, Stamp::ALL_LINES)
    }

    /// A node of which `lines` will be written: they are noted, and its first line is zero. What else a block holds is not
    /// looked at in a node that says so: slots that are not live, keys that do not count.
    fn node(&mut self, interior: bool, lines: u64) -> Result<Off<Node>> {
        let cx = self.cx;
        let off = Off::<Node>::new(self.take(if interior { Block::Interior } else { Block::Border })?);
        let node = &cx.op.slice("a fresh node", off, 1)?[0];
        for word in [&node.version, &node.middle[0], &node.middle[1]].into_iter().chain(&node.rest[..4]) {
            cx.op.store(word, 0, Relaxed);
        }
        let (epoch, lines) = if P::DURABLE { (cx.epoch, lines) } else { (0, 0) };
        cx.op.store(&node.stamp, Stamp::new(epoch, interior, true, 0).in_round(cx.round, lines), Relaxed);
        if P::DURABLE {
            cx.note_lines(node, lines);
        }
        Ok(off)
    }

    /// A record.
    pub(crate) fn record(&mut self, suffix: &[u8], value: &[u8]) -> Result<u64> {
        let cx = self.cx;
        let bytes = crate::layout::RecordHead::new(suffix.len(), value.len()).bytes();
        let off = self.take(Block::Record(bytes))?;
        Record::write(cx.op, off, suffix, value)?;
        if P::DURABLE {
            cx.tree.epochs.dirty(cx.op, Record::all_words(cx.op, off, bytes)?);
        }
        Ok(off)
    }

    /// They are part of the tree now.
    pub(crate) fn keep(mut self) {
        self.taken.clear();
    }
}

impl<M: Medium, P: Policy> Drop for Fresh<'_, M, P> {
    fn drop(&mut self) {
        if self.taken.is_empty() {
            return;
        }
        let cx = self.cx;
        let Ok(mut local) = cx.local() else { return };
        let cache = &mut local.as_mut().expect("made by `local`").cache;
        for (off, block) in self.taken.drain(..) {
            let bytes = if let Block::Record(bytes) = block { Some(bytes) } else { None };
            // A block that cannot be given back was damaged meanwhile: a check reports it.
            let _ = cx.tree.slabs.untake(cx.op, cx.durably(), cache, off, bytes);
        }
    }
}
