//! The atomic doubly-linked list (section 3.2, Algorithm 1): appending and removing a node are atomic, and recovery finishes
//! the one step that may be pending.
//!
//! # Persist order
//! | edge | between | kept by | a crash before it leaves | recovery |
//! |---|---|---|---|---|
//! | RW-D1 | the node; `to_append` = node | flush+fence | the list without the node | nothing to do |
//! | RW-D2 | `to_append` = node; the links to the node | flush+fence | the list with or without the node | links the node if `to_append` names it |
//! | RW-D3 | the links to the node; `to_append` = null | flush+fence | the node pending | links it once more |
//! | RW-D4 | `to_remove` = node; the links around the node | flush+fence | the list with or without the node | unlinks it if `to_remove` names it |
//! | RW-D5 | the links around the node; `to_remove` = null | flush+fence | the node pending | unlinks it once more |
//! | RW-D0 | the header as recovery has read it; the first store of recovery, or of an operation after it | flush+fence | the links as they were | decides anew: a step that a dead process left in the caches may be gone |
//! | RW-D6 | `to_remove` = null; the node is used for something else | flush+fence | the node pending, with its old content | unlinks it once more |
//!
//! An append is decided, and durable, at RW-D2. Clearing `to_append` needs no fence of its own: all words of the header share a
//! line, so the next write-back of the header covers the clearing, and that write-back is fenced before the next step
//! changes a link. Until then the list may be found with the last append pending though its links are durable; linking once
//! more changes nothing. Where a non-temporal store takes the place of store and write-back ([`StorePolicy`]) no later
//! write-back covers the clearing, so it has a fence of its own.
//!
//! The paper keeps `lastTail` beside `toAppend`. Here it is the node's own `prior`, which is durable before `to_append` names
//! the node. As the paper says, recovery must not use `tail` instead: it may name the node already.
//!
//! No two words are assumed to become durable together.

use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use durix_pmem::{Bits, Medium, Off, Op, Persistent, Word};

use crate::error::{Error, Result};
use crate::layout::{Header, Node};

/// How the words of a list's header are made durable.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum StorePolicy {
    /// Store, write-back, fence.
    #[default]
    WriteBack,
    /// A store around the cache (non-temporal), fence. As in the paper; it costs a fence more an append.
    NonTemporal,
}

/// A list: the place of its header. The caller serialises all calls.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Adll {
    header: Off<Header>,
    policy: StorePolicy,
}

impl Adll {
    /// The list of a header that was formatted.
    pub(crate) fn new(header: Off<Header>, policy: StorePolicy) -> Self {
        Adll { header, policy }
    }

    /// Makes the header that of an empty list. Durable with the next fence.
    pub(crate) fn format<M: Medium>(&self, op: &Op<'_, M>) {
        let header = op.at(self.header);
        for word in [&header.head, &header.tail, &header.to_append, &header.to_remove] {
            op.store(word, Off::NULL, Relaxed);
        }
        op.write_back(header);
    }

    /// Stores a word of the header; durable after [`settle`](Self::settle) and the next fence.
    fn put<M: Medium, T: Bits>(&self, op: &Op<'_, M>, word: &Word<T>, value: T) {
        match self.policy {
            StorePolicy::WriteBack => op.store(word, value, Release),
            StorePolicy::NonTemporal => op.store_nt(word, value),
        }
    }

    /// Starts writing the header back, if its stores need that.
    #[track_caller]
    fn settle<M: Medium>(&self, op: &Op<'_, M>) {
        if self.policy == StorePolicy::WriteBack {
            op.write_back(op.at(self.header));
        }
    }

    /// The first node.
    pub(crate) fn head<M: Medium>(&self, op: &Op<'_, M>) -> Off<Node> {
        op.load(&op.at(self.header).head, Acquire)
    }

    /// The last node.
    pub(crate) fn tail<M: Medium>(&self, op: &Op<'_, M>) -> Off<Node> {
        op.load(&op.at(self.header).tail, Acquire)
    }

    /// Appends `node`, whose element is about what the caller has written back. Durable when it returns; three fences.
    pub(crate) fn append<M: Medium>(&self, op: &Op<'_, M>, node: Off<Node>, element: u64) {
        let (header, new) = (op.at(self.header), op.at(node));
        op.store(&new.next, Off::NULL, Relaxed);
        op.store(&new.prior, self.tail(op), Relaxed);
        op.store(&new.element, element, Relaxed);
        op.store(&new.persistent, 0, Relaxed);
        op.write_back(new);
        // PERSIST RW-D1: flush+fence.
        op.fence();
        self.put(op, &header.to_append, node);
        self.settle(op);
        // PERSIST RW-D2: flush+fence.
        op.fence();
        self.link(op, node);
        // PERSIST RW-D3: flush+fence.
        op.fence();
        match self.policy {
            StorePolicy::WriteBack => op.store(&header.to_append, Off::NULL, Release),
            StorePolicy::NonTemporal => {
                op.store_nt(&header.to_append, Off::NULL);
                op.fence();
            }
        }
    }

    /// Lines 6 to 8 of Algorithm 1; any number of times.
    fn link<M: Medium>(&self, op: &Op<'_, M>, node: Off<Node>) {
        let header = op.at(self.header);
        match op.get(op.load(&op.at(node).prior, Relaxed)) {
            Some(last) => {
                op.store(&last.next, node, Release);
                op.write_back(&last.next);
            }
            None => self.put(op, &header.head, node),
        }
        self.put(op, &header.tail, node);
        self.settle(op);
    }

    /// Removes `node`, which may be used for something else once this returns. Three fences.
    pub(crate) fn remove<M: Medium>(&self, op: &Op<'_, M>, node: Off<Node>) {
        let header = op.at(self.header);
        self.put(op, &header.to_remove, node);
        self.settle(op);
        // PERSIST RW-D4: flush+fence.
        op.fence();
        self.unlink(op, node);
        // PERSIST RW-D5: flush+fence.
        op.fence();
        self.put(op, &header.to_remove, Off::NULL);
        self.settle(op);
        // PERSIST RW-D6: flush+fence.
        op.fence();
    }

    /// Leads both neighbours past `node`; any number of times, as the node itself stays as it is.
    fn unlink<M: Medium>(&self, op: &Op<'_, M>, node: Off<Node>) {
        let (header, node) = (op.at(self.header), op.at(node));
        let (prior, next) = (op.load(&node.prior, Relaxed), op.load(&node.next, Relaxed));
        match op.get(prior) {
            Some(before) => {
                op.store(&before.next, next, Release);
                op.write_back(&before.next);
            }
            None => self.put(op, &header.head, next),
        }
        match op.get(next) {
            Some(after) => {
                op.store(&after.prior, prior, Release);
                op.write_back(&after.prior);
            }
            None => self.put(op, &header.tail, prior),
        }
        if prior.is_null() || next.is_null() {
            self.settle(op);
        }
    }

    /// Finishes what was pending. Afterwards nothing is, durably.
    ///
    /// # Errors
    /// [`Error::Corrupt`] where a link leads out of the pool.
    pub(crate) fn recover<M: Medium>(&self, op: &Op<'_, M>) -> Result<()> {
        let header = op.at(self.header);
        let to_append = op.load(&header.to_append, Acquire);
        let to_remove = op.load(&header.to_remove, Acquire);
        [to_append, to_remove].into_iter().filter(|node| !node.is_null()).try_for_each(|node| self.sound(op, node))?;
        // Also where nothing is pending: what a dead process has cleared may be found again, and name what is used by then.
        op.write_back(header);
        // PERSIST RW-D0: flush+fence.
        op.fence();
        if to_append.is_null() && to_remove.is_null() {
            return Ok(());
        }
        // The pending append comes first: a removal begins after the links of the append before it are durable.
        if !to_append.is_null() {
            self.link(op, to_append);
        }
        if !to_remove.is_null() {
            self.unlink(op, to_remove);
        }
        // PERSIST RW-D3, RW-D5: flush+fence.
        op.fence();
        self.put(op, &header.to_append, Off::NULL);
        self.put(op, &header.to_remove, Off::NULL);
        self.settle(op);
        // PERSIST RW-D6: flush+fence.
        op.fence();
        Ok(())
    }

    fn sound<M: Medium>(&self, op: &Op<'_, M>, node: Off<Node>) -> Result<()> {
        let links = [node, op.load(&checked(op, node)?.prior, Relaxed), op.load(&op.at(node).next, Relaxed)];
        links.into_iter().filter(|link| !link.is_null()).try_for_each(|link| checked(op, link).map(drop))
    }

    /// All nodes, first to last.
    ///
    /// # Errors
    /// [`Error::Corrupt`] where a link leads out of the pool, where the two directions differ, or beyond `most` nodes.
    pub(crate) fn nodes<M: Medium>(&self, op: &Op<'_, M>, most: u64) -> Result<Vec<Off<Node>>> {
        let mut nodes = Vec::new();
        let (mut at, mut before) = (self.head(op), Off::NULL);
        while !at.is_null() {
            let node = checked(op, at)?;
            let prior = op.load(&node.prior, Acquire);
            if prior != before || nodes.len() as u64 >= most {
                return Err(corrupt("a node's link to the one before", at, prior.get()));
            }
            nodes.push(at);
            (before, at) = (at, op.load(&node.next, Acquire));
        }
        let tail = self.tail(op);
        if tail != before {
            return Err(corrupt("the list's tail", self.header, tail.get()));
        }
        Ok(nodes)
    }
}

/// The object at an offset that was read from the pool.
///
/// # Errors
/// [`Error::Corrupt`] where it does not lie in the pool, or is not aligned to a line.
pub(crate) fn checked<'op, M: Medium, T: Persistent>(op: &Op<'op, M>, off: Off<T>) -> Result<&'op T> {
    match op.slice("object", off, 1) {
        Ok([object]) if !off.is_null() => Ok(object),
        _ => Err(corrupt("a link", Off::<T>::NULL, off.get())),
    }
}

/// Says that what lies at `off` makes no sense.
pub(crate) fn corrupt<T>(what: &'static str, off: Off<T>, found: u64) -> Error {
    Error::Corrupt { what, offset: off.get(), found }
}

#[cfg(test)]
mod tests;
