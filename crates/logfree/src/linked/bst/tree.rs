//! A lock-free external search tree over durable links, after Natarajan and Mittal (PPoPP 2014), with the leaves moved into
//! the lines of their branches.
//!
//! An edge of a branch leads to another branch, to the leaf that lies beside it in the branch's line, or to nothing. An edge
//! never leads to its leaf again once it has led elsewhere, so what a leaf holds never changes after publication:
//!
//! ```text
//! leaf ──insert, update──▶ branch ──bypass──▶ branch or nothing
//!   └────remove──▶ nothing ──insert──▶ branch
//! ```
//!
//! - An **insert** puts a new branch in the place of the leaf or of the nothing where its search ends, with the leaf found
//!   copied beside the new one. An **update** puts a branch with the new value in the place of the leaf. Both are one exchange
//!   of one edge.
//! - A **remove** exchanges the edge to the leaf for nothing: in place of the flag of Natarajan and Mittal, after which their
//!   leaf is gone, too.
//! - A branch with nothing on one side and no leaf on the other decides nothing any more, and is **spliced** out: both edges
//!   are frozen (the deletion mark of [`Link`]; the empty side first), then the edge to the branch is exchanged for what the
//!   other side leads to. Whoever meets a frozen edge on the way to a change finishes this first.
//!
//! | edge | kept by | a crash before it leaves | recovery |
//! |---|---|---|---|
//! | LF-B1 contents of a branch < an edge to it | flush+fence, of its owner | the branch unreachable | frees it, by the table of active pages |
//! | LF-B2 a swung edge < the answer of the operation, and of any that passes the edge | flush+fence, by its session or by `settle` of whoever comes first | the old edge or the new | nothing: both are states of the map |
//! | LF-B3 a bypass < the branch is used again | flush+fence: it is an edge as in LF-B2 | the branch is reached | as LF-B4 |
//! | LF-B4 page of a branch active < its edges are frozen, until it is bypassed durably | flush+fence (LF-N5) | a branch with frozen edges | thaws the edges of branches in active pages |
//!
//! # One fence for a change and the splicing that follows
//! A bypass is swung with the mark *dirty*, unlike in a list: with the branch a bound of the keys below goes, so whoever
//! builds on it must know that it does not come back. It also makes the change durable that has made the branch useless:
//! where the branch is gone, so are its empty side and the leaf that was there. So a remove that splices writes back the
//! bypass alone, under one fence.
//!
//! # Owners
//! An edge that is exchanged for a new branch, and a bypass, are announced by their session, and their marks stay (`link.rs`): after
//! the death of a process recovery looks for the new branch, or for the one that was bypassed, whose pages are active, and writes
//! back the edges on the way (LF-N8). So it is with a remove that splices nothing, where the page of the branch is active: recovery
//! writes the edges of each branch back that it finds in such a page. Where it is not, the mark has no owner, outlives the process,
//! and is taken off.
//!
//! # What an answer depends on
//! Every operation settles each dirty edge that it passes, so all that it has seen is durable.
//!
//! # The races
//! *One searches, another splices a branch out that the search has passed.* The search goes on from there, and ends where it
//! would have ended at some moment since it began: a frozen edge leads to what its branch led to when it was spliced. Bounds
//! that the branch has set no longer hold: `room.rs` says when the search begins again. A walk gives a key only within
//! the bounds under which it has come to it. They part the keys among the edges that are still to be followed, so that no
//! key comes twice or out of order, and each is looked for as a search would, on one way from the head.
//!
//! *One freezes a side, another inserts there.* Both exchange the edge. If the insert comes first, the branch decides
//! something again, and the freezing stops, with nothing frozen; if the freezing comes first, the insert fails, finishes the
//! splicing, and looks for its place again.
//!
//! *One removes the left leaf, another the right.* Each looks at the other side after its own exchange, so the later one
//! sees both empty and splices. (Where neither does, because the processor holds such loads back, the branch stays until a
//! later change splices it: it is reachable, so it is not leaked.)
//!
//! *Two splice one branch.* Freezing twice does no harm; one bypass succeeds, and that thread retires the branch.
//!
//! *One splices a branch, another the one above.* The edge to be bypassed is frozen by the other: the exchange fails, and
//! the operation searches for the branch again, which splices what is frozen above it, and then the branch, unless others
//! have done so. So no branch is left frozen but by a crash, which thaws it (LF-B4): if words of a line tear, the second edge
//! may be found frozen, and the first not.

use std::sync::atomic::Ordering::{Acquire, Relaxed};

use durix_pmem::pool::tally;
use durix_pmem::{Bits, Medium, Off, Op, Word};

use super::room::{Room, Stop, Suspect};
use super::thaw::thaw;
use crate::error::{Error, Quick, Result};
use crate::layout::{Branch, Leaf, Link, Node, branch_sum};
use crate::link::{DurableLink, persist_own, settle, swing, swing_own};
use crate::pages::{Pages, Unlinking};
use crate::row::Row;

/// Whether the checksum of the branch at an offset is right.
pub(super) fn is_sealed<M: Medium>(op: &Op<'_, M>, off: u64) -> bool {
    let branch: &Branch = op.at(Off::new(off));
    let leaf = |leaf: &Leaf| (op.load(&leaf.key, Relaxed), op.load(&leaf.value, Relaxed));
    let sum = branch_sum(off, op.load(&branch.router, Relaxed), [LEFT, RIGHT].map(|side| leaf(&branch.leaves[side])));
    op.load(&branch.sum, Relaxed) == sum
}

/// Steps for which recovery waits together: a tree of a million keys in random order is about 50 branches deep.
const WARM_STEPS: usize = 64;

const LEFT: usize = 0;
const RIGHT: usize = 1;

/// A tree, by its topmost edge.
pub(super) struct Tree<'a, 's, M: Medium> {
    pub(super) op: &'a Op<'s, M>,
    pub(super) pages: &'a Pages<M>,
    pub(super) head: &'s Word<Link>,
}

/// A word that holds an edge, and what was read from it.
type Edge<'s> = (&'s Word<Link>, Link);

/// Where the search for a key ends.
struct Place<'s> {
    /// The edge to `branch`.
    incoming: Edge<'s>,
    /// The branch that holds `edge`, and the side; `None` at the head.
    branch: Option<(&'s Branch, usize)>,
    /// Where the search ends: a leaf, or nothing.
    edge: Edge<'s>,
}

impl<'s> Place<'s> {
    fn leaf(&self) -> Option<&'s Leaf> {
        self.branch.filter(|_| self.edge.1.is_leaf()).map(|(branch, side)| &branch.leaves[side])
    }

    fn sibling(&self) -> Option<&'s Word<Link>> {
        self.branch.map(|(branch, side)| &branch.edges[1 - side])
    }
}

/// Whether a branch with these edges decides nothing: one side leads nowhere, the other to no leaf.
fn is_useless(one: Link, other: Link) -> bool {
    !one.is_leaf() && !other.is_leaf() && (one.off() == 0 || other.off() == 0)
}

/// What has become of a branch that was to be taken out.
enum Spliced {
    /// It is out.
    Out,
    /// It is out, and the edge that led to it leads nowhere.
    LeftNothing,
    /// It is frozen, and the edge to it has changed, or is frozen, too.
    Blocked,
    /// It decides something.
    Decides,
}

/// A step of a walk: an edge, and the leaf beside it.
pub(super) struct Step<'s> {
    pub(super) word: &'s Word<Link>,
    pub(super) edge: Link,
    pub(super) leaf: Option<&'s Leaf>,
    pub(super) room: Room,
}

impl<'a, 's, M: Medium> Tree<'a, 's, M> {
    fn link(&self, word: &'s Word<Link>) -> DurableLink<'a, 's, M> {
        self.pages.link(self.op, word)
    }

    /// Makes an edge durable that was read, if it may not be.
    #[inline(always)]
    fn settle(&self, (word, seen): Edge<'s>) -> Link {
        if seen.is_dirty() { settle(&self.link(word), seen) } else { seen }
    }

    /// Reads an edge, and makes it durable.
    #[inline(always)]
    fn pass(&self, word: &'s Word<Link>) -> Edge<'s> {
        (word, self.settle((word, self.op.load(word, Acquire))))
    }

    // ---- searching ----

    /// Follows the edges to the place of a key; `read` reads each. Calls `meet` with each before it is followed; if that
    /// returns `false`, the search ends without a place.
    #[inline(always)]
    fn descend(
        &self,
        key: u64,
        read: impl Fn(&'s Word<Link>) -> Edge<'s>,
        mut meet: impl FnMut(&Place<'s>) -> Quick<bool>,
    ) -> Quick<Option<Place<'s>>> {
        let mut suspect = Suspect::default();
        loop {
            match self.try_descend(key, &read, &mut meet) {
                Ok(place) => return Ok(place),
                Err(stop) => suspect.begin_again(stop)?,
            }
        }
    }

    /// As [`descend`](Self::descend), once from the head.
    #[inline(always)]
    fn try_descend(
        &self,
        key: u64,
        read: impl Fn(&'s Word<Link>) -> Edge<'s>,
        mut meet: impl FnMut(&Place<'s>) -> Quick<bool>,
    ) -> Result<Option<Place<'s>>, Stop> {
        let op = self.op;
        let mut place = Place { incoming: (self.head, Link::NULL), branch: None, edge: read(self.head) };
        if place.edge.1.is_leaf() {
            let (offset, found) = (op.off_of(self.head).get(), Link::LEAF.off());
            return Err(Error::Corrupt { what: "the topmost edge", offset, found }.into());
        }
        let (mut room, mut row, lines) = (Room::ALL, Row::NONE, op.lines());
        loop {
            if !meet(&place)? {
                return Ok(None);
            }
            if place.edge.1.is_null() {
                return Ok(Some(place));
            }
            let branch: &Branch = lines.at(place.edge.1.to_bits());
            // Which side it is to be is guessed wrongly half of the time: both are asked for before it is known.
            branch.edges.iter().for_each(|edge| lines.prefetch::<Branch>(op.load(edge, Relaxed).to_bits()));
            let router = op.load(&branch.router, Relaxed);
            let side = usize::from(key >= router);
            room = room.side(&mut row, place.edge.1, router, side == RIGHT)?;
            place = Place { incoming: place.edge, branch: Some((branch, side)), edge: read(&branch.edges[side]) };
        }
    }

    /// The value of a key, durable.
    pub(super) fn get(&self, key: u64) -> Result<Option<u64>> {
        let place = self.descend(key, |word| self.pass(word), |_| Ok(true))?.expect("nothing stops it");
        let leaf = place.leaf().filter(|leaf| self.op.load(&leaf.key, Relaxed) == key);
        Ok(leaf.map(|leaf| self.op.load(&leaf.value, Relaxed)))
    }

    /// Finds the place of a key for a change there, and finishes the splicings that it meets.
    fn find(&self, key: u64) -> Quick<Place<'s>> {
        // No branch is spliced out twice, so one that comes again is damage: frozen edges lead in a circle.
        let mut row = Row::NONE;
        loop {
            let help = |place: &Place<'s>| match place.branch {
                Some((branch, _)) if place.edge.1.is_deleted() => self.help(place.incoming, branch, &mut row),
                _ => Ok(true),
            };
            if let Some(place) = self.descend(key, |word| self.pass(word), help)? {
                return Ok(place);
            }
        }
    }

    /// Finishes the splicing of a branch that has a frozen edge. `false`: the search begins again.
    #[cold]
    fn help(&self, incoming: Edge<'s>, branch: &'s Branch, row: &mut Row) -> Quick<bool> {
        let mut begun = Some(self.begin_splice(incoming.1.node())?);
        let spliced = self.splice(incoming, branch, &mut begun);
        if let Some(begun) = begun {
            self.pages.cancel_unlink(self.op, begun);
        }
        if matches!(spliced, Spliced::Decides) {
            let (offset, found) = (incoming.1.off(), self.op.load(&branch.router, Relaxed));
            return Err(Error::Corrupt { what: "a frozen branch that decides something", offset, found }.into());
        }
        if matches!(spliced, Spliced::Out | Spliced::LeftNothing) {
            *row = row.and(incoming.1.off())?;
        }
        Ok(false)
    }

    // ---- changing ----

    /// A branch that is durable, and that nothing leads to: a leaf with `key` and, if there is one, another leaf.
    fn write(&self, off: Off<Node>, (key, value): (u64, u64), other: Option<(u64, u64)>) -> Link {
        let op = self.op;
        let branch = op.fresh(off.cast::<Branch>());
        let (low, high) = match other {
            Some(other) if other.0 < key => (Some(other), (key, value)),
            Some(other) => (Some((key, value)), other),
            None => (None, (key, value)),
        };
        op.store(&branch.edges[LEFT], if low.is_some() { Link::LEAF } else { Link::NULL }, Relaxed);
        op.store(&branch.edges[RIGHT], Link::LEAF, Relaxed);
        op.store(&branch.router, high.0, Relaxed);
        let low = low.unwrap_or_default();
        op.store(&branch.leaves[LEFT].key, low.0, Relaxed);
        op.store(&branch.leaves[LEFT].value, low.1, Relaxed);
        op.store(&branch.leaves[RIGHT].key, high.0, Relaxed);
        op.store(&branch.leaves[RIGHT].value, high.1, Relaxed);
        op.store(&branch.sum, branch_sum(off.get(), high.0, [low, high]), Relaxed);
        self.pages.announced().fetch_back(op, off.get());
        let branch = branch.write_back(op);
        // PERSIST LF-B1, LF-N4: flush+fence.
        let branch = op.settle(branch);
        Link::to(branch.off().get())
    }

    /// Swings the edge of a place to `new`, durably; `false` if it has changed. Splices the branch around it if it decides
    /// nothing any more. An error means that nothing was changed.
    fn commit(&self, place: &Place<'s>, new: Link) -> Quick<bool> {
        let (word, seen) = place.edge;
        let useless = || place.sibling().is_some_and(|word| is_useless(new, self.op.load(word, Acquire)));
        if !useless() {
            if !self.replace(place, new) {
                return Ok(false);
            }
            // What fails from here on does not undo the change: a branch that stays decides nothing, which does no harm, and what is
            // damaged a check finds.
            if useless()
                && let Ok(begun) = self.begin_splice(place.incoming.1.node())
            {
                let _ = self.splice_out(place, begun);
            }
            return Ok(true);
        }
        let begun = self.begin_splice(place.incoming.1.node())?;
        // With the mark of freezing, where it is this side that is empty.
        let new = if new == Link::NULL { new.deleted() } else { new };
        if swing(&self.link(word), seen, new).is_err() {
            self.pages.cancel_unlink(self.op, begun);
            return Ok(false);
        }
        let _ = self.splice_out(place, begun);
        Ok(true)
    }

    /// Changes an edge that decides, durably; `false` if it has changed.
    fn replace(&self, place: &Place<'s>, new: Link) -> bool {
        let ((word, seen), incoming) = (place.edge, place.incoming.1.node());
        let link = self.link(word);
        // Recovery looks for the new branch, or for the one that holds the edge, and so makes the edge durable. The page of the
        // latter stays active: only this session takes it out of its table, in a later step.
        if new != Link::NULL || (place.branch.is_some() && self.pages.is_active(self.op, incoming)) {
            return swing_own(&link, seen, new).map(|()| persist_own(&link)).is_ok();
        }
        // The mark must outlive the process.
        swing(&link, seen, new).map(|swung| settle(&link, swung)).is_ok()
    }

    /// Inserts a key that is not there, with what `value` gives when it is needed; returns whether it did.
    pub(super) fn insert(&self, key: u64, value: impl Fn() -> Option<u64>) -> Result<bool> {
        let mut spare = None;
        let inserted = loop {
            let place = self.find(key).inspect_err(|_| self.discard(spare))?;
            let leaf = place.leaf().map(|leaf| (self.op.load(&leaf.key, Relaxed), self.op.load(&leaf.value, Relaxed)));
            if leaf.is_some_and(|(found, _)| found == key) {
                break false;
            }
            let off = match spare {
                Some(off) => off,
                None => *spare.insert(self.pages.allocate(self.op)?),
            };
            let Some(value) = value() else { break false };
            let branch = self.write(off, (key, value), leaf);
            if self.commit(&place, branch).inspect_err(|_| self.discard(spare))? {
                self.pages.tally(|tally| tally.inserted(self.op.slot(), tally::entry(key, value)));
                return Ok(true);
            }
        };
        self.discard(spare);
        Ok(inserted)
    }

    /// Gives a branch back that was allocated, and that nothing has led to.
    fn discard(&self, branch: Option<Off<Node>>) {
        if let Some(off) = branch {
            self.pages.give_back(self.op, off);
        }
    }

    /// The place of a key that is there, and its value.
    fn find_leaf(&self, key: u64) -> Quick<Option<(Place<'s>, u64)>> {
        let place = self.find(key)?;
        let leaf = place.leaf().filter(|leaf| self.op.load(&leaf.key, Relaxed) == key);
        let value = leaf.map(|leaf| self.op.load(&leaf.value, Relaxed));
        Ok(value.map(|value| (place, value)))
    }

    /// Removes a key; returns its value.
    pub(super) fn remove(&self, key: u64) -> Result<Option<u64>> {
        while let Some((place, value)) = self.find_leaf(key)? {
            if self.commit(&place, Link::NULL)? {
                self.pages.tally(|tally| tally.removed(self.op.slot(), tally::entry(key, value)));
                return Ok(Some(value));
            }
        }
        Ok(None)
    }

    /// Removes a key if its value is `wanted`; returns its value, and whether it was removed.
    pub(super) fn remove_if(&self, key: u64, wanted: impl Fn(u64) -> bool) -> Result<Option<(u64, bool)>> {
        while let Some((place, value)) = self.find_leaf(key)? {
            if !wanted(value) {
                return Ok(Some((value, false)));
            }
            // A leaf never changes: the edge that leads to it decides.
            if self.commit(&place, Link::NULL)? {
                self.pages.tally(|tally| tally.removed(self.op.slot(), tally::entry(key, value)));
                return Ok(Some((value, true)));
            }
        }
        Ok(None)
    }

    /// Replaces the value of a key by what `new` makes of it. Returns the value found, and whether it was replaced.
    pub(super) fn update(&self, key: u64, new: impl Fn(u64) -> Option<u64>) -> Result<Option<(u64, bool)>> {
        let mut spare = None;
        let outcome = loop {
            let Some((place, old)) = self.find_leaf(key).inspect_err(|_| self.discard(spare))? else { break None };
            let Some(value) = new(old) else { break Some((old, false)) };
            let off = match spare {
                Some(off) => off,
                None => *spare.insert(self.pages.allocate(self.op)?),
            };
            let branch = self.write(off, (key, value), None);
            if self.commit(&place, branch).inspect_err(|_| self.discard(spare))? {
                let (old_entry, new_entry) = (tally::entry(key, old), tally::entry(key, value));
                self.pages.tally(|tally| tally.replaced(self.op.slot(), old_entry, new_entry));
                return Ok(Some((old, true)));
            }
        };
        self.discard(spare);
        Ok(outcome)
    }

    // ---- splicing ----

    /// Records that a branch may be taken out. One fence, if its page was not active.
    fn begin_splice(&self, off: Off<Node>) -> Quick<Unlinking> {
        let begun = self.pages.begin_unlink(self.op, off)?;
        if begun.write_back(self.op) {
            // PERSIST LF-N5: flush+fence.
            self.op.fence();
        }
        Ok(begun)
    }

    /// Takes a branch out that decides nothing, or finishes doing so, durably; `incoming` is the edge to it.
    fn splice(&self, incoming: Edge<'s>, branch: &'s Branch, begun: &mut Option<Unlinking>) -> Spliced {
        let Some(other) = self.freeze(branch) else { return Spliced::Decides };
        let link = self.link(incoming.0);
        if swing_own(&link, incoming.1, Link::to(other.off())).is_err() {
            return Spliced::Blocked;
        }
        // Nothing locked comes after the fence. The branch is not used again before it: nothing is allocated here.
        self.pages.retire_begun(self.op, begun.take().expect("is taken once"), Off::NULL, None, &[]);
        // PERSIST LF-B3: flush+fence.
        persist_own(&link);
        if other.off() == 0 { Spliced::LeftNothing } else { Spliced::Out }
    }

    /// Takes the branch of a place out, whose edge was swung. Returns only when the branch is out, or decides something
    /// again, and the change is durable either way.
    fn splice_out(&self, place: &Place<'s>, begun: Unlinking) -> Quick<()> {
        let Some((branch, _)) = place.branch else { return Ok(()) };
        let mut begun = Some(begun);
        let spliced = self.splice(place.incoming, branch, &mut begun);
        if matches!(spliced, Spliced::Blocked | Spliced::Decides) {
            self.pass(place.edge.0);
        }
        let router = self.op.load(&branch.router, Relaxed);
        let done = match spliced {
            Spliced::LeftNothing => self.tidy(router),
            Spliced::Blocked => self.find(router).map(drop),
            Spliced::Out | Spliced::Decides => Ok(()),
        };
        // A branch that stays frozen keeps its page active.
        if let Some(begun) = begun.filter(|_| done.is_ok()) {
            self.pages.cancel_unlink(self.op, begun);
        }
        done
    }

    /// Freezes both edges of a branch; returns what it leads to. `None`, with nothing frozen, if it decides something.
    fn freeze(&self, branch: &'s Branch) -> Option<Link> {
        loop {
            let seen = [LEFT, RIGHT].map(|side| self.op.load(&branch.edges[side], Acquire));
            if !is_useless(seen[LEFT], seen[RIGHT]) {
                return None;
            }
            // The empty side first: then the other cannot begin to matter.
            let empty = if seen[LEFT].off() == 0 { LEFT } else { RIGHT };
            if self.freeze_edge(&branch.edges[empty], seen[empty]) {
                return Some(self.freeze_any(&branch.edges[1 - empty]));
            }
        }
    }

    /// Freezes an edge that was read as `seen`; `false` if it has changed.
    fn freeze_edge(&self, word: &'s Word<Link>, seen: Link) -> bool {
        seen.is_deleted() || self.op.compare_exchange(word, seen, seen.deleted()).is_ok()
    }

    /// Freezes an edge as it is.
    fn freeze_any(&self, word: &'s Word<Link>) -> Link {
        loop {
            let seen = self.op.load(word, Acquire);
            if self.freeze_edge(word, seen) {
                return seen;
            }
        }
    }

    /// Splices the branch where the search for a key ends with nothing, if it decides nothing.
    #[cold]
    fn tidy(&self, key: u64) -> Quick<()> {
        let place = self.find(key)?;
        let sibling = place.sibling().map(|word| self.op.load(word, Acquire));
        if !sibling.is_some_and(|sibling| is_useless(place.edge.1, sibling)) {
            return Ok(());
        }
        self.splice_out(&place, self.begin_splice(place.incoming.1.node())?)
    }

    // ---- walking ----

    /// Calls `f` with every edge that may lead to keys between two, both included, upwards or downwards, until it returns
    /// `false`. Returns whether that was all.
    pub(super) fn walk(
        &self,
        keys: (u64, u64),
        upwards: bool,
        mut f: impl FnMut(&Step<'s>) -> bool,
    ) -> Result<bool, Stop> {
        let mut open = vec![(self.head, None, (Room::ALL, Row::NONE))];
        while let Some((word, leaf, (room, mut row))) = open.pop() {
            let edge = self.op.load(word, Acquire);
            if !f(&Step { word, edge, leaf, room }) {
                return Ok(false);
            }
            let Some(branch) = self.op.get(edge.branch()) else { continue };
            let rooms = room.split(&mut row, edge, self.op.load(&branch.router, Relaxed))?;
            // What is pushed last comes first.
            for side in if upwards { [RIGHT, LEFT] } else { [LEFT, RIGHT] } {
                if rooms[side].meets(keys) {
                    open.push((&branch.edges[side], Some(&branch.leaves[side]), (rooms[side], row)));
                }
            }
        }
        Ok(true)
    }

    /// Appends up to `limit` entries between two keys, both included, each durable. Returns whether those were all. `into` is
    /// empty at first.
    pub(super) fn collect(
        &self,
        (mut from, mut to): (u64, u64),
        upwards: bool,
        limit: usize,
        into: &mut Vec<(u64, u64)>,
    ) -> Result<bool> {
        let mut suspect = Suspect::default();
        loop {
            match self.walk((from, to), upwards, |step| self.take(step, (from, to), limit, into)) {
                Ok(all) => return Ok(all),
                Err(stop) => suspect.begin_again(stop)?,
            }
            // What it has is as good as it was: it goes on after that.
            let Some((last, _)) = into.last() else { continue };
            match if upwards { last.checked_add(1) } else { last.checked_sub(1) } {
                Some(next) if upwards => from = next,
                Some(next) => to = next,
                None => return Ok(true),
            }
        }
    }

    /// Appends the leaf of a step to `into`, durable, if its key is wanted, and belongs there. `false` if there are `limit`
    /// entries already.
    fn take(&self, step: &Step<'s>, (from, to): (u64, u64), limit: usize, into: &mut Vec<(u64, u64)>) -> bool {
        self.settle((step.word, step.edge));
        let Some(leaf) = step.leaf.filter(|_| step.edge.is_leaf()) else { return true };
        let key = self.op.load(&leaf.key, Relaxed);
        if !(from..=to).contains(&key) || !step.room.contains(key) {
            return true;
        }
        if into.len() == limit {
            return false;
        }
        into.push((key, self.op.load(&leaf.value, Relaxed)));
        true
    }

    // ---- recovery ----

    /// Reads what searches for some branches will read, a step of each in turn, so that their misses are waited for together.
    /// Checks nothing: wherever it gets to is in the mapping, and it ends after some steps.
    pub(super) fn warm(&self, branches: &[Off<Node>]) {
        let op = self.op;
        let router = |branch: &Branch| op.load(&branch.router, Relaxed);
        let top = op.load(self.head, Acquire).branch();
        let mut ways: Vec<_> = branches.iter().map(|off| (router(op.at(off.cast())), top, off.get())).collect();
        for _ in 0..WARM_STEPS {
            ways.retain_mut(|(key, at, end)| {
                let Some(branch) = op.get(*at).filter(|_| at.get() != *end) else { return false };
                *at = op.load(&branch.edges[usize::from(*key >= router(branch))], Relaxed).branch();
                op.prefetch(*at);
                true
            });
            if ways.is_empty() {
                return;
            }
        }
    }

    /// Whether the branch at `off` is reachable; if so, thaws its edges. Writes back every edge that it follows, and those of
    /// the branch; the fence is the caller's (LF-N8).
    pub(super) fn reaches(&self, off: Off<Branch>) -> Result<bool> {
        let branch = self.op.at(off);
        let router = self.op.load(&branch.router, Relaxed);
        let read = |word: &'s Word<Link>| {
            let seen = self.op.load(word, Acquire);
            // PERSIST LF-N8: flush, with the caller's fence.
            self.pages.root().write_back_found(self.op, word);
            (word, seen)
        };
        let place = self.descend(router, read, |place| Ok(place.edge.1.branch() != off))?;
        if place.is_none() {
            // Its own edges, too, which are one line: a removal may have changed them whose mark vouches for them.
            read(&branch.edges[LEFT]);
            thaw(self.op, branch);
        }
        Ok(place.is_none())
    }
}

/// Writes one step of a walk as a line.
pub(super) fn describe<M: Medium>(op: &Op<'_, M>, step: &Step<'_>, out: &mut dyn std::fmt::Write) -> std::fmt::Result {
    let at = op.off_of(step.word).get();
    let marks = [(step.edge.is_dirty(), " dirty"), (step.edge.is_deleted(), " frozen")];
    let marks: String = marks.into_iter().filter_map(|(is, mark)| is.then_some(mark)).collect();
    match step.leaf {
        Some(leaf) if step.edge.is_leaf() => {
            let (key, value) = (op.load(&leaf.key, Relaxed), op.load(&leaf.value, Relaxed));
            writeln!(out, "{at:#x}: leaf {key} = {value}{marks}")
        }
        _ if step.edge.off() != 0 => {
            let router = op.load(&op.at(step.edge.branch()).router, Relaxed);
            writeln!(out, "{at:#x}: branch {:#x} at {router}{marks}", step.edge.off())
        }
        _ => writeln!(out, "{at:#x}: nothing{marks}"),
    }
}
