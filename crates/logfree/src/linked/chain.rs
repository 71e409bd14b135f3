//! Harris's lock-free list (with Michael's unlinking of one node at a time) over durable links: the code of the list and of
//! the buckets of the hash table.
//!
//! Keys ascend. A node is deleted by marking its own link; whoever meets it afterwards bypasses it. An update of a value
//! links a new node with the same key behind the old one *in the very step that deletes the old one*: readers who come by
//! the old one go on to the new, so keys and values never change once they are published, and every update is one 8-byte
//! store.
//!
//! | operation | linearizes at | durable by | fences |
//! |---|---|---|---|
//! | insert | the swing of the predecessor's link | its fence | node (LF-K1), link (LF-K2) |
//! | remove | the deletion mark | the fence of the link past the node; of the mark where that cannot be | one of them (LF-K2, with LF-N5) |
//! | update, compare-and-set | the swing of the old node's link to the new node, with the deletion mark | as remove | node (LF-K1), as remove |
//! | all others | the load that decides | settles what it depends on | none if that is settled |
//!
//! What an answer depends on: if the key is there, the link that leads to its node; if it is not, the link that leads past its
//! place, and the mark of every deleted node with that key that was met on the way. An insert also settles the link that leads
//! to the predecessor, so that the new node is reachable after a crash. One step back is enough: a link is swung only where the
//! links around it are durable.
//!
//! # A removal and its bypass under one fence
//! [`Chain::delete_at_once`] marks the node, exchanges the link to it for one past it (to the new node, in an update), announced as its own,
//! and writes back that link alone: nothing locked follows the fence, and the next operation's search runs while it lasts. What
//! is durable of the list is one path from the head. The predecessor is on it, since what leads to it is settled and it is not
//! deleted, as the exchange shows; so where the link past the node is durable, the node is not on the path, whatever its own mark
//! says in memory. Its page has to be active before (LF-N5): else, and where a tower leads to the node (LF-U3), the mark is made
//! durable first, and the bypass follows.
//!
//! *Another asks for the key meanwhile.* Before the bypass it meets the node, whose mark has no owner, and makes that durable: then
//! the key is gone, whatever becomes of the bypass. Behind the bypass it settles the link that leads past.
//!
//! *Another inserts before the node, or deletes the predecessor.* If that exchange of the link comes first, the bypass fails, and the
//! mark is made durable instead. If the bypass comes first, the other has to settle it before its own exchange.
//!
//! *Another bypasses the node, having met its mark.* It has made the mark durable before (LF-K3). One of the two exchanges
//! succeeds, and who made it retires the node.
//!
//! A bypass of a node that somebody else has deleted costs no fence: it is made durable with its generation (LF-K4). Where the
//! node's page was not active yet, LF-N5 costs one, unless it is the operation's own node, whose mark is fenced anyway.

use std::collections::VecDeque;
use std::sync::atomic::Ordering::{Acquire, Relaxed};

use durix_pmem::pool::tally;
use durix_pmem::{Bits, Medium, Off, Op, Word};

use crate::error::{Error, Failure, Quick, Result};
use crate::finding::Finding;
use crate::layout::{Link, Node, node_sum};
use crate::link::{DurableLink, bypass, clean, persist, persist_own, settle, swing, swing_own};
use crate::linked::link_cache::LinkCache;
use crate::pages::{Pages, Unlinking};
use crate::row::Row;

/// What is wrong with key and value of a node that was reached.
pub(crate) fn damaged<M: Medium>(op: &Op<'_, M>, off: Off<Node>) -> Option<Finding> {
    let node = op.at(off);
    let [key, value, sum] = [&node.key, &node.value, &node.sum].map(|word| op.load(word, Relaxed));
    (sum != node_sum(off.get(), key, value)).then_some(Finding::Damaged { off: off.get() })
}

/// What is built above a list, and leads to its nodes.
pub(crate) trait UpperLayer {
    /// Takes a deleted node, whose mark is durable, out of it, before the node is bypassed. `links` gets the links that have
    /// to be durable before the node is used again; returns another line that goes with the node.
    #[inline(always)]
    fn detach(&self, _node: Off<Node>, _links: &mut Vec<Off<Word<Link>>>) -> Result<Option<Off<Node>>> {
        Ok(None)
    }

    /// Whether it may lead to a node.
    #[inline(always)]
    fn has(&self, _node: Off<Node>) -> bool {
        false
    }

    /// Whether the list may be cut in two while somebody walks over it: [`head`](Self::head) and [`ends`](Self::ends) count.
    const RUNS: bool = false;

    /// Where a walk begins, if not at the head of the list: in a hash table, at the bucket of the key asked for.
    #[inline(always)]
    fn head(&self) -> Option<Off<Word<Link>>> {
        None
    }

    /// Whether a link to nothing, read from `word`, is where a walk ends that began there. If it is not, another that begins
    /// anew goes further.
    #[inline(always)]
    fn ends(&self, _word: Off<Word<Link>>, _end: Link) -> Result<bool> {
        Ok(true)
    }

    /// The link cache, where there is one: links then need not be marked while they are not durable.
    #[inline(always)]
    fn cache(&self) -> Option<&LinkCache> {
        None
    }
}

/// Nothing is.
pub(crate) struct Nothing;

impl UpperLayer for Nothing {}

/// A list, by its first link.
pub(crate) struct Chain<'a, 's, M: Medium, A: UpperLayer = Nothing> {
    pub(crate) op: &'a Op<'s, M>,
    pub(crate) pages: &'a Pages<M>,
    /// In a skip list, the link of a node that may be deleted meanwhile.
    pub(crate) head: &'s Word<Link>,
    pub(crate) above: A,
}

/// Where a key is, or belongs.
pub(crate) struct Place<'s> {
    /// The link that leads to the node that holds `link`, as it was read; at the head, `link` itself, clean.
    pub(crate) incoming: Edge<'s>,
    /// The link that leads to `node`, as it was read. Not deleted.
    pub(crate) link: Edge<'s>,
    /// The first node with this key or a higher one, not deleted when it was read, and its link.
    node: Option<(&'s Node, Link, u64)>,
}

impl<'s> Place<'s> {
    /// The node, if it has the key.
    #[inline]
    pub(crate) fn with(&self, key: u64) -> Option<(&'s Node, Link)> {
        self.node.filter(|(_, _, found)| *found == key).map(|(node, next, _)| (node, next))
    }
}

/// Keeps watch that keys ascend, so that a corrupt file cannot lead in circles. They do along all links there ever were,
/// whatever others change meanwhile: a link is only ever led to a node with a higher key, or with the same by an update.
struct Ascent {
    /// The least key that may follow; `None` after the largest of all.
    least: Option<u64>,
    /// The deleted nodes. A circle can only be of those: after a live one the key has to be higher.
    deleted: Row,
}

impl Ascent {
    const START: Ascent = Ascent { least: Some(0), deleted: Row::NONE };

    #[inline(always)]
    fn pass(&mut self, node: Link, key: u64, deleted: bool) -> Result<()> {
        if self.least.is_none_or(|least| key < least) {
            return Err(out_of_order(node, key));
        }
        // A deleted node may be followed by another with its key, a live one may not.
        self.least = if deleted { Some(key) } else { key.checked_add(1) };
        if deleted {
            self.deleted = self.deleted.and(node.off())?;
        }
        Ok(())
    }
}

#[cold]
fn out_of_order(node: Link, key: u64) -> Error {
    Error::Corrupt { what: "a key out of order", offset: node.off(), found: key }
}

/// A word that holds a link, and what was read from it.
pub(crate) type Edge<'s> = (&'s Word<Link>, Link);

/// How far a walk has come.
struct Walk<'s> {
    /// As in a [`Place`].
    incoming: Edge<'s>,
    link: Edge<'s>,
    ascent: Ascent,
}

impl<'a, 's, M: Medium, A: UpperLayer> Chain<'a, 's, M, A> {
    pub(crate) fn link(&self, word: &'s Word<Link>) -> DurableLink<'a, 's, M> {
        self.pages.link(self.op, word)
    }

    /// Makes a link durable that was read, if it may not be.
    #[inline(always)]
    pub(crate) fn settle(&self, word: &'s Word<Link>, seen: Link) -> Link {
        if seen.is_dirty() { settle(&self.link(word), seen) } else { seen }
    }

    // ---- reading ----

    /// A walk from the head.
    #[inline(always)]
    fn start(&self) -> Walk<'s> {
        let head = self.above.head().map_or(self.head, |head| self.op.at(head));
        Walk { incoming: (head, Link::NULL), link: (head, self.op.load(head, Acquire)), ascent: Ascent::START }
    }

    /// Whether a walk that came to a link has come to its end. `false` where it has to begin anew.
    #[inline(always)]
    fn is_end(&self, (word, seen): Edge<'s>) -> Result<bool> {
        if A::RUNS && seen.is_null() { self.above.ends(self.op.off_of(word), seen) } else { Ok(true) }
    }

    /// The node that a link leads to.
    #[inline(always)]
    fn follow(&self, seen: Link) -> Option<&'s Node> {
        if seen.is_null() { None } else { Some(self.op.at(seen.node())) }
    }

    /// Goes on over all nodes that are not deleted and have lower keys; returns the next one, its link and its key. A
    /// handful of instructions a node: in a long list this is where the time goes.
    #[inline(always)]
    fn skip_lower(&self, walk: &mut Walk<'s>, key: u64) -> Quick<Option<(&'s Node, Link, u64)>> {
        let op = self.op;
        // After the largest key nothing is lower.
        let mut least = walk.ascent.least.unwrap_or(u64::MAX);
        let (start, lines) = (walk.link.0, op.lines());
        loop {
            if walk.link.1.is_null() {
                return Ok(None);
            }
            let node: &Node = lines.at(walk.link.1.to_bits());
            let (next, found) = (op.load(&node.next, Acquire), op.load(&node.key, Relaxed));
            if next.is_deleted() || found >= key {
                if !std::ptr::eq(start, walk.link.0) {
                    walk.ascent = Ascent { least: Some(least), deleted: Row::NONE };
                }
                return Ok(Some((node, next, found)));
            }
            if found < least {
                return Err(out_of_order(walk.link.1, found).into());
            }
            least = found + 1;
            (walk.incoming, walk.link) = (walk.link, (&node.next, next));
        }
    }

    /// The value of a key, durable.
    pub(crate) fn get(&self, key: u64) -> Result<Option<u64>> {
        let found = loop {
            if let Some(found) = self.look_up(key)? {
                break found;
            }
        };
        self.scan(key);
        Ok(found)
    }

    /// The value of a key, if it is there; `None` if the walk has to begin anew.
    #[inline(always)]
    fn look_up(&self, key: u64) -> Result<Option<Option<u64>>> {
        let op = self.op;
        let mut walk = self.start();
        while let Some((node, next, found)) = self.skip_lower(&mut walk, key)?.filter(|(_, _, found)| *found <= key) {
            if found == key && !next.is_deleted() {
                self.settle(walk.link.0, walk.link.1);
                return Ok(Some(Some(op.load(&node.value, Relaxed))));
            }
            if found == key {
                // The answer may be that it is gone.
                self.settle(&node.next, next);
            }
            walk.ascent.pass(walk.link.1, found, true)?;
            walk.link = (&node.next, next);
        }
        let ends = self.is_end(walk.link)?;
        if ends {
            // What leads past the key may be what has taken it out.
            self.settle(walk.link.0, walk.link.1);
        }
        Ok(ends.then_some(None))
    }

    /// Appends up to `limit` entries from key `from` on, ascending, each durable. Returns whether that was all.
    pub(crate) fn collect(&self, from: u64, limit: usize, into: &mut Vec<(u64, u64)>) -> Result<bool> {
        Ok(self.collect_run(from, limit, into)?.is_some())
    }

    /// As [`collect`](Self::collect); returns the link to nothing at the end, if that was all, and the walk need not begin anew.
    pub(crate) fn collect_run(&self, from: u64, limit: usize, into: &mut Vec<(u64, u64)>) -> Result<Option<Link>> {
        let op = self.op;
        let (mut word, mut seen) = self.start().link;
        let (mut ascent, mut taken) = (Ascent::START, 0);
        while let Some(node) = self.follow(seen) {
            let (next, key) = (op.load(&node.next, Acquire), op.load(&node.key, Relaxed));
            ascent.pass(seen, key, next.is_deleted())?;
            if key >= from {
                // Also what leads past keys that are not there any more.
                self.settle(word, seen);
            }
            if key >= from && next.is_deleted() {
                self.settle(&node.next, next);
            } else if key >= from {
                if taken == limit {
                    self.scan_all();
                    return Ok(None);
                }
                into.push((key, op.load(&node.value, Relaxed)));
                taken += 1;
            }
            (word, seen) = (&node.next, next);
        }
        let ends = self.is_end((word, seen))?;
        if ends {
            self.settle(word, seen);
        }
        self.scan_all();
        Ok(ends.then_some(seen))
    }

    /// Appends all entries between two keys, both included, ascending, each durable.
    pub(crate) fn collect_to(&self, from: u64, to: u64, into: &mut Vec<(u64, u64)>) -> Result<()> {
        let mut first = from;
        loop {
            let (had, batch) = (into.len(), 64);
            let all = self.collect(first, batch, into)?;
            let within = into.partition_point(|(key, _)| *key <= to);
            let next = into.last().and_then(|(key, _)| key.checked_add(1));
            let over = all || within < into.len() || into.len() == had;
            into.truncate(within);
            match next {
                Some(next) if !over => first = next,
                _ => return Ok(()),
            }
        }
    }

    /// Appends the last `limit` entries up to key `to`, descending, each durable. Returns whether that was all. One walk from
    /// the head: links lead one way.
    pub(crate) fn collect_back(&self, to: u64, limit: usize, into: &mut Vec<(u64, u64)>) -> Result<bool> {
        let op = self.op;
        let (mut word, mut seen) = (self.head, op.load(self.head, Acquire));
        let (mut ascent, mut last, mut all) = (Ascent::START, VecDeque::new(), true);
        while let Some(node) = self.follow(seen) {
            let (next, key) = (op.load(&node.next, Acquire), op.load(&node.key, Relaxed));
            if key > to {
                break;
            }
            self.settle(word, seen);
            if next.is_deleted() {
                self.settle(&node.next, next);
            } else {
                last.push_back((key, op.load(&node.value, Relaxed)));
                if last.len() > limit {
                    last.pop_front();
                    all = false;
                }
            }
            ascent.pass(seen, key, next.is_deleted())?;
            (word, seen) = (&node.next, next);
        }
        self.settle(word, seen);
        self.scan_all();
        into.extend(last.into_iter().rev());
        Ok(all)
    }

    // ---- finding a place ----

    /// Finds the place of a key in a list whose head is no node's, and bypasses the deleted nodes on the way.
    pub(crate) fn find(&self, key: u64) -> Quick<Place<'s>> {
        loop {
            if let Some(place) = self.try_find(key)? {
                return Ok(place);
            }
            let (word, head) = self.start().link;
            if head.is_deleted() {
                let offset = self.op.off_of(word).get();
                return Err(Error::Corrupt { what: "the first link of a list", offset, found: head.to_bits() }.into());
            }
        }
    }

    /// As `find`; `None` if a link has changed under it, the node that holds the head is deleted, or the walk has to begin
    /// anew.
    pub(crate) fn try_find(&self, key: u64) -> Quick<Option<Place<'s>>> {
        let mut walk = self.start();
        if walk.link.1.is_deleted() {
            return Ok(None);
        }
        loop {
            let node = self.skip_lower(&mut walk, key)?;
            let Some((node, next, found)) = node.filter(|(_, next, _)| next.is_deleted()) else {
                let ends = self.is_end(walk.link)?;
                return Ok(ends.then_some(Place { incoming: walk.incoming, link: walk.link, node }));
            };
            walk.ascent.pass(walk.link.1, found, true)?;
            match self.unlink(walk.link, node, next)? {
                Some(now) => walk.link.1 = now,
                None => return Ok(None),
            }
        }
    }

    /// Bypasses a deleted node; returns what the link is then, or `None` if it has changed. A second node with the same key
    /// follows only where the first was replaced, so this ends.
    #[cold]
    fn unlink(&self, link: Edge<'s>, node: &'s Node, next: Link) -> Quick<Option<Link>> {
        // PERSIST LF-K3: settled before anybody can fail to meet the mark.
        let next = self.settle(&node.next, next);
        let begun = self.pages.begin_unlink(self.op, link.1.node())?;
        let is_new = begun.write_back(self.op);
        self.take_out(link, next, begun, is_new)
    }

    /// As [`unlink`](Self::unlink), for a node whose mark is durable and whose link is `next`; `fence` says whether its page is newly
    /// active, and not durably so.
    #[inline(always)]
    pub(crate) fn take_out(
        &self,
        (word, seen): Edge<'s>,
        next: Link,
        begun: Unlinking,
        mut fence: bool,
    ) -> Quick<Option<Link>> {
        let seen = self.settle(word, seen);
        let mut links = Vec::new();
        let more = self.above.detach(seen.node(), &mut links);
        let more = match more
            .map_err(Failure::from)
            .and_then(|more| more.map(|more| self.pages.begin_unlink(self.op, more)).transpose())
        {
            Ok(more) => more,
            Err(error) => {
                self.pages.cancel_unlink(self.op, begun);
                return Err(error);
            }
        };
        fence |= more.as_ref().is_some_and(|more| more.write_back(self.op));
        if fence {
            // PERSIST LF-N5: flush+fence.
            self.op.fence();
        }
        let past = Link::to(next.off());
        if bypass(&self.link(word), seen, past).is_err() {
            [Some(begun), more].into_iter().flatten().for_each(|begun| self.pages.cancel_unlink(self.op, begun));
            return Ok(None);
        }
        self.pages.retire_begun(self.op, begun, self.op.off_of(word), more, &links);
        Ok(Some(past))
    }

    // ---- changing ----

    /// A node that is durable, and that nothing leads to.
    fn write(&self, off: Off<Node>, key: u64, value: u64, next: Link) -> Link {
        let node = self.op.fresh(off);
        self.op.store(&node.next, next, Relaxed);
        self.op.store(&node.key, key, Relaxed);
        self.op.store(&node.value, value, Relaxed);
        self.op.store(&node.sum, node_sum(off.get(), key, value), Relaxed);
        self.pages.announced().fetch_back(self.op, off.get());
        let node = node.write_back(self.op);
        // PERSIST LF-K1, LF-N4: flush+fence.
        let node = self.op.settle(node);
        Link::to(node.off().get())
    }

    /// Inserts a key that is not there, with what `value` gives when it is needed; returns whether it did.
    pub(crate) fn insert(&self, key: u64, value: impl Fn() -> Option<u64>) -> Result<bool> {
        let mut node = None;
        loop {
            let place = self.find(key).inspect_err(|_| self.discard(node))?;
            let link = self.settle(place.link.0, place.link.1);
            self.scan(key);
            if place.with(key).is_some() {
                if let Some(node) = node {
                    self.pages.give_back(self.op, node);
                }
                return Ok(false);
            }
            // The new node is as reachable as its predecessor.
            self.settle(place.incoming.0, place.incoming.1);
            self.scan_predecessor(&place);
            let off = match node {
                Some(off) => off,
                None => *node.insert(self.pages.allocate(self.op)?),
            };
            let Some(value) = value() else {
                self.pages.give_back(self.op, off);
                return Ok(false);
            };
            let new = self.write(off, key, value, link.clean());
            if self.publish(key, place.link.0, link, new) {
                self.pages.tally(|tally| tally.inserted(self.op.slot(), tally::entry(key, value)));
                return Ok(true);
            }
            self.is_outside(off, place.link.0).inspect_err(|_| self.discard(node))?;
        }
    }

    /// Whether a link that has changed lies elsewhere than in the new node. In a damaged pool it may lie there, and each attempt writes the node
    /// anew, so there would be no end to them.
    #[cold]
    fn is_outside(&self, new: Off<Node>, word: &Word<Link>) -> Result<()> {
        let offset = self.op.off_of(word).get();
        if offset / size_of::<Node>() as u64 != new.get() / size_of::<Node>() as u64 {
            return Ok(());
        }
        Err(Error::Corrupt { what: "a link in a free node", offset, found: self.op.load(word, Relaxed).to_bits() })
    }

    /// Gives a node back that was allocated, where an operation ends with an error before anything leads to it.
    #[cold]
    fn discard(&self, node: Option<Off<Node>>) {
        if let Some(node) = node {
            self.pages.give_back(self.op, node);
        }
    }

    /// Changes the link of an insert from `current`, and makes it durable or leaves it in the link cache. Returns whether it
    /// was `current`.
    #[inline(always)]
    fn publish(&self, key: u64, word: &'s Word<Link>, current: Link, new: Link) -> bool {
        if let Some(cache) = self.above.cache() {
            return cache.publish((self.op, self.pages.announced()), key, word, current, new);
        }
        let link = self.link(word);
        swing_own(&link, current, new).map(|()| persist_own(&link)).is_ok()
    }

    /// Removes a key; returns its value.
    pub(crate) fn remove(&self, key: u64) -> Result<Option<u64>> {
        loop {
            let place = self.find(key)?;
            let Some((node, next)) = place.with(key) else {
                self.settle(place.link.0, place.link.1);
                self.scan(key);
                return Ok(None);
            };
            let next = self.settle(&node.next, next);
            if let Some(value) = self.delete(&place, node, next, next, || (), || ())? {
                return Ok(Some(value));
            }
        }
    }

    /// Removes a key if its value is `wanted`; returns its value, and whether it was removed.
    pub(crate) fn remove_if(&self, key: u64, wanted: impl Fn(u64) -> bool) -> Result<Option<(u64, bool)>> {
        loop {
            let place = self.find(key)?;
            let Some((node, next)) = place.with(key) else {
                self.settle(place.link.0, place.link.1);
                self.scan(key);
                return Ok(None);
            };
            let value = self.op.load(&node.value, Relaxed);
            if !wanted(value) {
                self.settle(place.link.0, place.link.1);
                self.scan(key);
                return Ok(Some((value, false)));
            }
            let next = self.settle(&node.next, next);
            // A node's value never changes, so the mark decides about the value that was looked at.
            if self.delete(&place, node, next, next, || (), || ())?.is_some() {
                return Ok(Some((value, true)));
            }
        }
    }

    /// Replaces the value of a key by what `new` makes of it. Returns the value found, and whether it was replaced.
    pub(crate) fn update(&self, key: u64, new: impl Fn(u64) -> Option<u64>) -> Result<Option<(u64, bool)>> {
        let mut spare = None;
        let outcome = loop {
            let place = self.find(key).inspect_err(|_| self.discard(spare))?;
            self.scan(key);
            // Whatever becomes of it: the new node is as reachable as the old one, and what is not there stays away.
            self.settle(place.link.0, place.link.1);
            let Some((node, next)) = place.with(key) else { break None };
            let old = self.op.load(&node.value, Relaxed);
            let Some(value) = new(old) else { break Some((old, false)) };
            let next = self.settle(&node.next, next);
            let off = match spare {
                Some(off) => off,
                None => *spare.insert(self.pages.allocate(self.op)?),
            };
            let link = self.write(off, key, value, next.clean());
            let deleted = self.delete(&place, node, next, link, || (), || ());
            if deleted.inspect_err(|_| self.discard(spare))?.is_some() {
                return Ok(Some((old, true)));
            }
        };
        self.discard(spare);
        Ok(outcome)
    }

    /// Deletes the node at a place, whose link is `next`, and has it followed by `then` instead. Returns its value, or
    /// `None` if its link has changed; an error, too, means that nothing was changed. Calls `write_back` before the fence that makes it durable, and `durable` after it.
    #[inline(always)]
    pub(crate) fn delete(
        &self,
        place: &Place<'s>,
        node: &'s Node,
        next: Link,
        then: Link,
        write_back: impl FnOnce(),
        durable: impl FnOnce(),
    ) -> Quick<Option<u64>> {
        let off = place.link.1.node();
        if !self.is_end((&node.next, next))? {
            return Ok(None);
        }
        let begun = self.pages.begin_unlink(self.op, off)?;
        if let Some(cache) = self.above.cache() {
            return Ok(self.delete_cached(cache, place, begun, node, next, then.clean())?);
        }
        if begun.is_active() && !self.above.has(off) {
            return Ok(self.delete_at_once(place, begun, (node, next), then, write_back, durable));
        }
        let link = self.link(&node.next);
        let Ok(swung) = swing(&link, next, then.deleted()) else {
            self.pages.cancel_unlink(self.op, begun);
            return Ok(None);
        };
        // PERSIST LF-N5: flush, with the fence of the mark.
        begun.write_back(self.op);
        write_back();
        // PERSIST LF-K2, LF-K3: flush+fence.
        persist(&link);
        durable();
        self.tally_deletion(node, next, then);
        let value = self.op.load(&node.value, Relaxed);
        if self.above.has(off) {
            clean(&link, swung);
        }
        // The mark is durable, and soon nothing leads to it: taking the *dirty* off would be another turn of a line that
        // was just written back, some 40 ns.
        if !matches!(self.take_out(place.link, swung.clean(), begun, false), Ok(Some(_))) {
            // Somebody else has changed the link, or no page can be made active for what stands above: that does not undo the
            // deletion. Whoever comes by next bypasses the node.
            clean(&link, swung);
        }
        Ok(Some(value))
    }

    /// Tells that a node with the link `next` was deleted, and is followed by `then` instead.
    #[inline(always)]
    pub(crate) fn tally_deletion(&self, node: &'s Node, next: Link, then: Link) {
        let entry = |node: &Node| tally::entry(self.op.load(&node.key, Relaxed), self.op.load(&node.value, Relaxed));
        let slot = self.op.slot();
        self.pages.tally(|tally| match next.off() == then.off() {
            true => tally.removed(slot, entry(node)),
            false => tally.replaced(slot, entry(node), entry(self.op.at(then.node()))),
        });
    }

    /// As [`delete`](Self::delete), for a node that nothing else leads to: bypasses it under the same fence. What makes the
    /// deletion durable is the link past it, and all locked instructions come before that is written back.
    #[inline(always)]
    fn delete_at_once(
        &self,
        place: &Place<'s>,
        begun: Unlinking,
        (node, next): (&'s Node, Link),
        then: Link,
        write_back: impl FnOnce(),
        durable: impl FnOnce(),
    ) -> Option<u64> {
        // The link past the node counts only where what leads to it is durable, as with an insert.
        let seen = self.settle(place.link.0, place.link.1);
        self.settle(place.incoming.0, place.incoming.1);
        let (mark, past) = (self.link(&node.next), self.link(place.link.0));
        let Ok(marked) = swing(&mark, next, then.deleted()) else {
            self.pages.cancel_unlink(self.op, begun);
            return None;
        };
        let value = self.op.load(&node.value, Relaxed);
        if swing_own(&past, seen, Link::to(then.off())).is_ok() {
            self.pages.retire_begun(self.op, begun, Off::NULL, None, &[]);
            write_back();
            // PERSIST LF-K2, LF-K4: flush+fence.
            persist_own(&past);
            durable();
        } else {
            // Somebody else has changed the link; whoever comes by next bypasses the node.
            self.pages.cancel_unlink(self.op, begun);
            write_back();
            // PERSIST LF-K2, LF-K3: flush+fence.
            persist(&mark);
            durable();
            clean(&mark, marked);
        }
        // While the fence waits; before the exchange it would be waited for.
        self.tally_deletion(node, next, then);
        Some(value)
    }

    // ---- recovery ----

    /// Whether the node at `off` is reachable by its key. Writes back every link that it follows, if it may not be
    /// durable; the fence is the caller's (LF-N8). What is dirty stays so.
    pub(crate) fn reaches(&self, off: Off<Node>) -> Result<bool> {
        loop {
            if let Some(reached) = self.reach(off)? {
                return Ok(reached);
            }
        }
    }

    /// As `reaches`; `None` if the walk has to begin anew.
    fn reach(&self, off: Off<Node>) -> Result<Option<bool>> {
        let op = self.op;
        let key = op.load(&op.at(off).key, Relaxed);
        let (mut word, mut ascent) = (self.start().link.0, Ascent::START);
        let mut reached = false;
        loop {
            let seen = op.load(word, Acquire);
            // PERSIST LF-N8: flush, with the caller's fence. The node's own link, too: it says whether the node is deleted.
            self.pages.root().write_back_found(op, word);
            if reached {
                return Ok(Some(true));
            }
            reached = seen.node() == off;
            let Some(node) = self.follow(seen) else { return Ok(self.is_end((word, seen))?.then_some(false)) };
            let (next, found) = (op.load(&node.next, Acquire), op.load(&node.key, Relaxed));
            if found > key && !reached {
                return Ok(Some(false));
            }
            ascent.pass(seen, found, next.is_deleted())?;
            word = &node.next;
        }
    }

    /// Calls `f` for each reachable node, deleted ones included: with the link that leads to it, its offset and its key.
    /// Returns the word with the link to nothing at the end.
    pub(crate) fn walk(&self, mut f: impl FnMut(&'s Word<Link>, Off<Node>, u64)) -> Result<Edge<'s>> {
        let op = self.op;
        let (mut word, mut ascent) = (self.head, Ascent::START);
        loop {
            let seen = op.load(word, Acquire);
            let Some(node) = self.follow(seen) else { return Ok((word, seen)) };
            let (next, key) = (op.load(&node.next, Acquire), op.load(&node.key, Relaxed));
            ascent.pass(seen, key, next.is_deleted())?;
            f(word, seen.node(), key);
            word = &node.next;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{List, Options};
    use durix_pmem::backing::HeapBacking;
    use durix_pmem::{Hardware, PoolOptions};

    /// Each update leaves a node that leads to the next one, and somebody may have been held up at the first.
    #[test]
    fn a_walk_that_was_held_up_while_its_key_was_updated_over_and_over_goes_on() {
        const UPDATES: u64 = (1 << 16) + 100;
        let options = PoolOptions::new().initial_size(32 << 20).max_size(32 << 20);
        let pool = options.create_on(HeapBacking::new(32 << 20), Hardware::PAGE_CACHE).unwrap();
        let list = List::open_with(&pool, "list", &Options::default()).unwrap();
        let (mut slow, mut fast) = (pool.session().unwrap(), pool.session().unwrap());
        assert!(list.insert(&fast.enter().unwrap(), 7, 0).unwrap());
        let held_up = slow.enter().unwrap();
        let chain = |op| list.map.test_chain(op);
        let first = chain(&held_up).find(7).unwrap().with(7).unwrap().0;
        for number in 1..=UPDATES {
            list.update(&fast.enter().unwrap(), 7, number).unwrap().unwrap();
        }
        let walk = Chain { head: &first.next, ..chain(&held_up) };
        assert_eq!(walk.get(7).unwrap(), Some(UPDATES));
        let mut all = Vec::new();
        assert!(walk.collect(0, 10, &mut all).unwrap());
        assert_eq!(all, [(7, UPDATES)]);
    }
}
