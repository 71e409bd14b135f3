//! Harris's list (*A Pragmatic Implementation of Non-Blocking Linked-Lists*, DISC 2001), and a hash table with one in each bucket, over a
//! [`Scheme`]. Searches of updates unlink marked nodes that they meet; those of reads do not.

use std::marker::PhantomData;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use durix_pmem::{Mapping, Medium, Op};

use super::super::sets_logged::Set;
use super::super::sets_logged::nodes::{Nodes, SPARE};
use super::scheme::{FIRST, Line, MARK, Scheme, word};

const NODE: u64 = 64;

/// A list, or a table of lists.
#[derive(Debug)]
pub struct Harris<S> {
    /// Number of buckets less one; 0 is a list.
    mask: u64,
    keys: u64,
    _scheme: PhantomData<fn() -> S>,
}

/// What a thread has of its own.
#[derive(Debug)]
pub struct Local<S> {
    scheme: S,
    pub(super) nodes: Nodes,
}

/// Where a key is or belongs.
struct Place {
    /// The link that leads to the node before.
    into: Option<u64>,
    /// The link that leads there.
    link: u64,
    /// The first node whose key is not smaller; 0 is the end.
    at: u64,
    found: bool,
}

impl<S: Scheme> Harris<S> {
    /// A list.
    pub fn list(keys: u64) -> Self {
        Harris { mask: 0, keys, _scheme: PhantomData }
    }

    /// A table of as many buckets as keys.
    pub fn table(keys: u64) -> Self {
        Harris { mask: keys.next_power_of_two() - 1, keys, _scheme: PhantomData }
    }

    #[inline(always)]
    fn head(&self, key: u64) -> u64 {
        FIRST + S::SHARED + (key & self.mask) * S::HEAD
    }

    fn nodes(&self) -> u64 {
        (FIRST + S::SHARED + (self.mask + 1) * S::HEAD).next_multiple_of(NODE)
    }

    fn bytes_a_thread(&self) -> u64 {
        (2 * self.keys + SPARE) * NODE
    }

    #[inline(always)]
    fn find<M: Medium>(&self, local: &mut Local<S>, op: &Op<'_, M>, key: u64) -> Place {
        let lines = op.lines();
        'again: loop {
            let (mut into, mut link) = (None, self.head(key));
            let mut at = op.load(word(op, link), Acquire);
            loop {
                if at == 0 {
                    return Place { into, link, at, found: false };
                }
                let node: &Line = lines.at(at);
                let next = op.load(&node.next, Acquire);
                if next & MARK != 0 {
                    local.scheme.is_removed(op, at, node);
                    if !local.scheme.unlink(op, link, at, next & !MARK) {
                        continue 'again;
                    }
                    local.nodes.retire(op, at);
                    at = next & !MARK;
                    continue;
                }
                let here = op.load(&node.key, Relaxed);
                if here >= key {
                    return Place { into, link, at, found: here == key };
                }
                (into, link, at) = (Some(link), at, next);
            }
        }
    }
}

impl<M: Medium, S: Scheme> Set<M> for Harris<S> {
    type Local = Local<S>;

    fn name(&self) -> &'static str {
        S::NAME
    }

    fn bytes(&self, threads: u64) -> u64 {
        self.nodes() + threads * self.bytes_a_thread()
    }

    fn create(&self, _mapping: &Mapping<M>) {}

    fn local(&self, thread: u64) -> Local<S> {
        let first = self.nodes() + thread * self.bytes_a_thread();
        Local { scheme: S::default(), nodes: Nodes::new(first..first + self.bytes_a_thread(), NODE) }
    }

    #[inline(always)]
    fn contains(&self, local: &mut Local<S>, op: &Op<'_, M>, key: u64) -> bool {
        let lines = op.lines();
        let mut link = self.head(key);
        let mut at = op.load(word(op, link), Acquire) & !MARK;
        let mut found = false;
        while at != 0 {
            let node: &Line = lines.at(at);
            let (next, here) = (op.load(&node.next, Acquire), op.load(&node.key, Relaxed));
            if here >= key {
                if here == key && next & MARK != 0 {
                    local.scheme.is_removed(op, at, node);
                } else if here == key {
                    local.scheme.is_there(op, Some(link), at, node);
                    found = true;
                }
                break;
            }
            (link, at) = (at, next & !MARK);
        }
        if !found {
            local.scheme.depends(op, link);
        }
        local.scheme.end(op);
        found
    }

    #[inline(always)]
    fn insert(&self, local: &mut Local<S>, op: &Op<'_, M>, key: u64, value: u64) -> bool {
        loop {
            let place = self.find(local, op, key);
            if place.found {
                local.scheme.is_there(op, Some(place.link), place.at, op.lines().at(place.at));
                local.scheme.end(op);
                return false;
            }
            let off = local.nodes.take();
            let node: &Line = op.lines().at(off);
            local.scheme.begin(op, node, 1);
            op.store(&node.key, key, Release);
            op.store(&node.value, value, Release);
            op.store(&node.next, place.at, Release);
            local.scheme.written(op, node);
            if let Some(into) = place.into {
                local.scheme.depends(op, into);
            }
            if local.scheme.link(op, place.link, place.at, off) {
                local.scheme.linked(op, node);
                local.scheme.end(op);
                return true;
            }
            local.nodes.put_back(off);
        }
    }

    #[inline(always)]
    fn remove(&self, local: &mut Local<S>, op: &Op<'_, M>, key: u64) -> bool {
        loop {
            let place = self.find(local, op, key);
            if !place.found {
                local.scheme.depends(op, place.link);
                local.scheme.end(op);
                return false;
            }
            let node: &Line = op.lines().at(place.at);
            let next = op.load(&node.next, Acquire);
            if next & MARK != 0 || !local.scheme.mark(op, place.at, node, next) {
                continue;
            }
            if local.scheme.unlink(op, place.link, place.at, next) {
                local.nodes.retire(op, place.at);
            }
            local.scheme.end(op);
            return true;
        }
    }
}
