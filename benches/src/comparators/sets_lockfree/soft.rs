//! SOFT (OOPSLA'19, section 4): a list, and a hash table of lists. What is durable of a key is one line, its member, to which nothing leads;
//! the nodes and links of the list are volatile.
//!
//! | state of a node | its key is there | what comes next |
//! |---|---|---|
//! | about to be inserted | no | its member is written and made durable |
//! | inserted | yes | |
//! | about to be removed | yes | its member is closed, durably |
//! | removed | no | it is unlinked |
//!
//! A thread that meets an update on its way, and whose answer depends on it, helps: the member is written with the same words by
//! everyone. Three words of a member hold one bit each: `begun` and `whole` agree, and `removed` differs, where the member counts. The
//! bit changes its meaning with each use of the line, so that no use has to clear what the last has left.

use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use durix_pmem::{Mapping, Medium, Off, Op, Word, persistent};

use super::super::sets_logged::Set;
use super::super::sets_logged::nodes::{Nodes, SPARE};
use super::scheme::{FIRST, word};

persistent! {
    /// What is durable.
    pub struct Member: align(64) {
        begun: Word,
        key: Word,
        value: Word,
        whole: Word,
        removed: Word,
        unused: [Word; 3],
    }

    /// A node of a list. Volatile in meaning: it only lies here.
    pub struct Node: align(32) {
        /// Offset of the next node, and the state of this one.
        next: Word,
        key: Word,
        value: Word,
        /// Offset of the member, and what its bit means.
        member: Word,
    }
}

const MEMBER: u64 = 64;
const NODE: u64 = 32;
/// Bytes of a head.
const HEAD: u64 = 8;

/// Bits of `next`: the state.
const STATE: u64 = 3;
const INSERTED: u64 = 0;
const INSERTING: u64 = 1;
const REMOVING: u64 = 2;
const REMOVED: u64 = 3;

/// A list, or a table of lists.
#[derive(Debug)]
pub struct Soft {
    /// Number of buckets less one; 0 is a list.
    mask: u64,
    keys: u64,
}

/// What a thread has of its own.
#[derive(Debug)]
pub struct Local {
    pub(super) nodes: Nodes,
    members: Nodes,
}

/// Where a key is or belongs.
struct Place<'s> {
    /// The link that leads there, and what it holds: the state of the node before is part of it.
    link: &'s Word,
    held: u64,
    /// The node with the key.
    found: Option<&'s Node>,
    /// Its link and state.
    next: u64,
}

#[inline(always)]
fn node<'s, M: Medium>(op: &Op<'s, M>, bits: u64) -> &'s Node {
    op.at(Off::new(bits))
}

impl Node {
    /// Writes the member, durably.
    #[inline(always)]
    fn write_member<M: Medium>(&self, op: &Op<'_, M>) {
        let bits = op.load(&self.member, Relaxed);
        let (member, bit): (&Member, u64) = (op.lines().at(bits), bits & 1);
        // PERSIST begun<content<whole: same line
        op.store(&member.begun, bit, Relaxed);
        op.order();
        op.store(&member.key, op.load(&self.key, Relaxed), Relaxed);
        op.store(&member.value, op.load(&self.value, Relaxed), Relaxed);
        op.store(&member.whole, bit, Release);
        op.write_back(member);
        op.fence();
    }

    /// Closes the member, durably.
    #[inline(always)]
    fn close_member<M: Medium>(&self, op: &Op<'_, M>) {
        let bits = op.load(&self.member, Relaxed);
        let member: &Member = op.lines().at(bits);
        op.store(&member.removed, bits & 1, Release);
        op.write_back(member);
        op.fence();
    }

    /// Changes the state from one to another, unless somebody else does.
    #[inline(always)]
    fn advance<M: Medium>(&self, op: &Op<'_, M>, from: u64, to: u64) -> bool {
        let mut next = op.load(&self.next, Acquire);
        while next & STATE == from {
            match op.compare_exchange(&self.next, next, next & !STATE | to) {
                Ok(_) => return true,
                Err(other) => next = other,
            }
        }
        false
    }
}

impl Soft {
    /// A list.
    pub fn list(keys: u64) -> Self {
        Soft { mask: 0, keys }
    }

    /// A table of as many buckets as keys.
    pub fn table(keys: u64) -> Self {
        Soft { mask: keys.next_power_of_two() - 1, keys }
    }

    #[inline(always)]
    fn head<'s, M: Medium>(&self, op: &Op<'s, M>, key: u64) -> &'s Word {
        word(op, FIRST + (key & self.mask) * HEAD)
    }

    fn members(&self) -> u64 {
        (FIRST + (self.mask + 1) * HEAD).next_multiple_of(MEMBER)
    }

    fn count(&self) -> u64 {
        2 * self.keys + SPARE
    }

    #[inline(always)]
    fn find<'s, M: Medium>(&self, local: &mut Local, op: &Op<'s, M>, key: u64) -> Place<'s> {
        'again: loop {
            let mut link = self.head(op, key);
            let mut held = op.load(link, Acquire);
            loop {
                if held & !STATE == 0 {
                    return Place { link, held, found: None, next: 0 };
                }
                let at = node(op, held);
                let next = op.load(&at.next, Acquire);
                if next & STATE == REMOVED {
                    if !Self::unlink(local, op, link, held, next) {
                        continue 'again;
                    }
                    held = next & !STATE | held & STATE;
                    continue;
                }
                let here = op.load(&at.key, Relaxed);
                if here >= key {
                    return Place { link, held, found: (here == key).then_some(at), next };
                }
                (link, held) = (&at.next, next);
            }
        }
    }

    /// Unlinks the removed node that a link leads to, and gives up node and member; returns whether nobody else has.
    #[inline(always)]
    fn unlink<M: Medium>(local: &mut Local, op: &Op<'_, M>, link: &Word, held: u64, next: u64) -> bool {
        let done = op.compare_exchange(link, held, next & !STATE | held & STATE).is_ok();
        if done {
            local.members.retire(op, op.load(&node(op, held).member, Relaxed) & !(MEMBER - 1));
            local.nodes.retire(op, held & !STATE);
        }
        done
    }
}

impl<M: Medium> Set<M> for Soft {
    type Local = Local;

    fn name(&self) -> &'static str {
        "SOFT"
    }

    fn bytes(&self, threads: u64) -> u64 {
        self.members() + threads * self.count() * (MEMBER + NODE)
    }

    fn create(&self, _mapping: &Mapping<M>) {}

    fn local(&self, thread: u64) -> Local {
        let members = self.members() + thread * self.count() * (MEMBER + NODE);
        let nodes = members + self.count() * MEMBER;
        let end = nodes + self.count() * NODE;
        Local { nodes: Nodes::new(nodes..end, NODE), members: Nodes::new(members..nodes, MEMBER) }
    }

    #[inline(always)]
    fn contains(&self, _local: &mut Local, op: &Op<'_, M>, key: u64) -> bool {
        let mut held = op.load(self.head(op, key), Acquire);
        while held & !STATE != 0 {
            let at = node(op, held);
            let (next, here) = (op.load(&at.next, Acquire), op.load(&at.key, Relaxed));
            if here >= key {
                return here == key && matches!(next & STATE, INSERTED | REMOVING);
            }
            held = next;
        }
        false
    }

    #[inline(always)]
    fn insert(&self, local: &mut Local, op: &Op<'_, M>, key: u64, value: u64) -> bool {
        loop {
            let place = self.find(local, op, key);
            if let Some(there) = place.found {
                if place.next & STATE == INSERTING {
                    there.write_member(op);
                    there.advance(op, INSERTING, INSERTED);
                }
                return false;
            }
            let (off, member) = (local.nodes.take(), local.members.take());
            let (new, bit) = (node(op, off), op.load(&op.lines().at::<Member>(member).begun, Relaxed) ^ 1);
            op.store(&new.key, key, Relaxed);
            op.store(&new.value, value, Relaxed);
            op.store(&new.member, member | bit, Relaxed);
            op.store(&new.next, place.held & !STATE | INSERTING, Relaxed);
            if op.compare_exchange(place.link, place.held, off | place.held & STATE).is_err() {
                local.nodes.put_back(off);
                local.members.put_back(member);
                continue;
            }
            new.write_member(op);
            new.advance(op, INSERTING, INSERTED);
            return true;
        }
    }

    #[inline(always)]
    fn remove(&self, local: &mut Local, op: &Op<'_, M>, key: u64) -> bool {
        let place = self.find(local, op, key);
        let Some(there) = place.found else { return false };
        if place.next & STATE == INSERTING {
            return false;
        }
        let ours = there.advance(op, INSERTED, REMOVING);
        if op.load(&there.next, Acquire) & STATE == REMOVING {
            there.close_member(op);
            there.advance(op, REMOVING, REMOVED);
        }
        if ours {
            Self::unlink(local, op, place.link, place.held, op.load(&there.next, Acquire));
        }
        ours
    }
}
