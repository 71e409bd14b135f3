//! Which slot the next entry may overwrite. Volatile, per shard, under the shard's lock.
//!
//! Superseded entries are not deleted, only queued: deleting would cost a write-back, and recovery beats them by version.
//! What may be overwritten, and when:
//!
//! - A *stale* entry (superseded by a newer durable one of its key) at any time. Whatever is left of its key, the newest
//!   durable entry decides.
//! - A *tombstone* that is the newest of its key only when every older entry of its key has been **durably** overwritten
//!   or erased; otherwise the key would rise from the dead. Nothing is kept per key for that: each entry gets the shard's
//!   next *freed* number when it is queued, and a tombstone may go when no stale entry with a smaller number is left, in
//!   the queue of any class. An operation holds the shard's lock across its fence, so what earlier operations took from a
//!   queue is durably overwritten; what the current one took is not, and counts as left until [`Reuse::settle`].
//! - Within one class the first-in-first-out order thus does what section 4.2 of the paper says. Across classes it does
//!   not: a tombstone of one line may be blocked by a stale entry of a class that is not written any more. Then the
//!   blocking entries are *scrubbed*: erased under the current operation's fence, a few at a time, and free afterwards;
//!   meanwhile a new slot is used. So that this does not happen again and again, and space does not grow with it, a long
//!   queue of tombstones is looked at ahead: what blocks the one in its middle is scrubbed while the ones before it are
//!   still being used. The longer the queue has become, the earlier that begins.
//!   An unsettled entry (see `later.rs`) counts as left, too, what its slot held. Where that blocks a long queue of tombstones, the shard
//!   is settled before a slot comes from outside: so a ticket that nobody waits for takes no space for ever.
//! - An entry of a transaction only when the durable watermark covers the transaction (4.4 and its correction, see
//!   `txn.rs`): until then recovery counts the transaction's entries, and none may be missing.

use std::collections::VecDeque;
use std::num::NonZeroU64;

use super::layout::{CLASSES, Class};
use super::unsettled::Puts;

/// Most entries that one operation scrubs.
pub(super) const SCRUB: usize = 4;

/// Tombstones of a class from which on blocking entries are scrubbed ahead.
const LONG: usize = 16;

/// An entry that is not reachable any more, but valid in persistent memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Stale {
    /// Where it lies; no slot lies at 0.
    off: NonZeroU64,
    /// Version of the transaction that wrote it, 0 without one.
    transaction: u64,
    /// Its place in the order in which the shard's entries were freed.
    freed: u64,
}

impl Stale {
    /// Version of the transaction that wrote it, 0 without one.
    #[inline(always)]
    pub(super) fn transaction(self) -> u64 {
        self.transaction
    }
}

/// A slot that the current operation may write.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Taken {
    /// Where it lies.
    pub(super) off: u64,
    class: Class,
    from: From,
}

impl Taken {
    /// Whether the slot held no entry: nothing could be reused.
    #[inline(always)]
    pub(super) fn is_new(self) -> bool {
        self.from == From::Free
    }

    /// The freed number of the stale entry that the slot holds; the largest if it holds none.
    pub(super) fn freed(self) -> u64 {
        if let From::Stale(stale) = self.from { stale.freed } else { u64::MAX }
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum From {
    Stale(Stale),
    Tombstone(Stale),
    Free,
}

/// A queue whose first element lies in place: most of the time a shard's queue of stale entries holds one, and the slot that an
/// update writes is then one load away.
#[derive(Debug, Default)]
#[repr(C)]
struct Fifo {
    front: Option<Stale>,
    /// What comes behind the front; empty where there is none.
    rest: VecDeque<Stale>,
}

impl Fifo {
    #[inline(always)]
    fn front(&self) -> Option<&Stale> {
        self.front.as_ref()
    }

    #[inline(always)]
    fn pop_front(&mut self) -> Option<Stale> {
        let front = self.front.take();
        if !self.rest.is_empty() {
            self.refill();
        }
        front
    }

    #[inline(never)]
    fn refill(&mut self) {
        self.front = self.rest.pop_front();
    }

    #[inline(always)]
    fn push_back(&mut self, off: NonZeroU64, transaction: u64, freed: u64) {
        if self.front.is_none() {
            self.front = Some(Stale { off, transaction, freed });
        } else {
            self.push_rest(off, transaction, freed);
        }
    }

    #[inline(never)]
    fn push_rest(&mut self, off: NonZeroU64, transaction: u64, freed: u64) {
        self.rest.push_back(Stale { off, transaction, freed });
    }

    fn push_front(&mut self, stale: Stale) {
        if let Some(second) = self.front.replace(stale) {
            self.rest.push_front(second);
        }
    }

    #[inline(always)]
    fn is_empty(&self) -> bool {
        self.front.is_none()
    }

    fn len(&self) -> usize {
        usize::from(self.front.is_some()) + self.rest.len()
    }

    fn get(&self, index: usize) -> Option<&Stale> {
        match index.checked_sub(1) {
            None => self.front.as_ref(),
            Some(behind) => self.rest.get(behind),
        }
    }

    fn iter(&self) -> impl Iterator<Item = &Stale> {
        self.front.iter().chain(&self.rest)
    }
}

#[derive(Debug, Default)]
#[repr(C)]
struct Queues {
    stale: Fifo,
    tombstones: Fifo,
    free: Vec<u64>,
}

/// The slots of a shard that hold no reachable entry. What an update of one line needs comes first, so that it lies in one
/// line of the processor's cache with the shard's lock.
#[derive(Debug)]
#[repr(C)]
pub(super) struct Reuse {
    next_freed: u64,
    /// Smallest freed number that the current operation took: not durably gone yet.
    taken: u64,
    /// The class of entries of one line, in place because most entries are.
    first: Queues,
    /// The other classes, up to the largest in use.
    others: Vec<Queues>,
    /// Smallest freed number that the current operation scrubs: not durably gone yet.
    scrubbing: u64,
    scrubbed: Vec<(Class, u64)>,
    /// The unsettled entries: what they replace is not queued yet, and what their slots held is not durably gone.
    pub(super) unsettled: Puts,
    /// How many were settled so far.
    pub(super) settled: u64,
}

/// Numbers of slots, for statistics.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Lengths {
    pub(super) stale: usize,
    pub(super) tombstones: usize,
    pub(super) free: usize,
}

impl Reuse {
    pub(super) fn new() -> Self {
        Reuse {
            first: Queues::default(),
            others: Vec::new(),
            next_freed: 0,
            taken: u64::MAX,
            scrubbing: u64::MAX,
            scrubbed: Vec::with_capacity(SCRUB),
            unsettled: Puts::default(),
            settled: 0,
        }
    }

    #[inline(always)]
    fn class(&mut self, class: Class) -> &mut Queues {
        let Some(other) = class.index().checked_sub(1) else { return &mut self.first };
        if self.others.len() <= other {
            self.add_classes(other);
        }
        &mut self.others[other]
    }

    #[cold]
    #[inline(never)]
    fn add_classes(&mut self, up_to: usize) {
        self.others.resize_with(up_to + 1, Queues::default);
    }

    /// The queues of a class, if it is in use.
    #[inline(always)]
    fn get(&self, class: Class) -> Option<&Queues> {
        match class.index().checked_sub(1) {
            None => Some(&self.first),
            Some(other) => self.others.get(other),
        }
    }

    /// All classes in use, ascending.
    fn classes(&self) -> impl Iterator<Item = &Queues> {
        std::iter::once(&self.first).chain(&self.others)
    }

    /// The next freed number.
    #[inline(always)]
    fn number(&mut self) -> u64 {
        self.next_freed += 1;
        self.next_freed - 1
    }

    /// Queues an entry that has been superseded by a durable one.
    #[inline(always)]
    pub(super) fn push_stale(&mut self, class: Class, off: u64, transaction: u64) {
        let freed = self.number();
        self.class(class).stale.push_back(slot(off), transaction, freed);
    }

    /// Queues a tombstone that is the newest entry of its key; after the entry that it superseded.
    #[inline]
    pub(super) fn push_tombstone(&mut self, class: Class, off: u64, transaction: u64) {
        let freed = self.number();
        self.class(class).tombstones.push_back(slot(off), transaction, freed);
    }

    /// Adds a slot without a valid entry.
    #[inline]
    pub(super) fn push_free(&mut self, class: Class, off: u64) {
        self.class(class).free.push(off);
    }

    /// The smallest freed number of a stale entry that is not durably gone.
    fn oldest_stale(&self) -> u64 {
        let heads = self.classes().filter_map(|q| q.stale.front().map(|s| s.freed));
        // PERSIST PS-L4: what unsettled entries were written over.
        let taken = self.unsettled.iter().map(|put| put.taken);
        heads.chain(taken).fold(self.taken.min(self.scrubbing), u64::min)
    }

    /// Whether many tombstones of `class` wait, and it is unsettled entries that block the first of them: one may be of a ticket that
    /// nobody waits for.
    pub(super) fn is_blocked_by_unsettled(&self, class: Class) -> bool {
        let tombstones = self.get(class).map(|queues| &queues.tombstones).filter(|queue| queue.len() >= LONG);
        let first = tombstones.and_then(Fifo::front);
        first.is_some_and(|first| self.unsettled.iter().any(|put| put.taken < first.freed))
    }

    /// Takes a slot of one line for an operation that writes nothing else back and then calls [`Reuse::push_stale`]: a stale
    /// entry of no transaction, where no tombstones wait. Nothing asks which entries are durably gone before its fence, so
    /// that none has to be noted as taken.
    #[inline(always)]
    pub(super) fn take_plain(&mut self) -> Option<u64> {
        let Queues { stale, tombstones, .. } = &mut self.first;
        let front = stale.front().filter(|s| s.transaction == 0)?.off.get();
        if !tombstones.is_empty() {
            return None;
        }
        stale.pop_front();
        Some(front)
    }

    /// The same for an operation whose entry is unsettled, which notes what it takes.
    #[inline(always)]
    pub(super) fn take_plain_later(&mut self) -> Option<Taken> {
        let stale = *self.first.stale.front()?;
        let off = self.take_plain()?;
        Some(Taken { off, class: Class::FIRST, from: From::Stale(stale) })
    }

    /// Takes a slot of `class`; `may` says whether the watermark allows an entry of a transaction to be overwritten.
    #[inline(always)]
    pub(super) fn take(&mut self, class: Class, may: impl Fn(Stale) -> bool) -> Option<Taken> {
        let queues = self.class(class);
        if let Some(stale) = queues.stale.pop_front() {
            if may(stale) {
                self.taken = self.taken.min(stale.freed);
                return Some(Taken { off: stale.off.get(), class, from: From::Stale(stale) });
            }
            queues.stale.push_front(stale);
        }
        self.take_otherwise(class, may)
    }

    /// The same where no stale entry of the class can be had.
    #[inline(never)]
    fn take_otherwise(&mut self, class: Class, may: impl Fn(Stale) -> bool) -> Option<Taken> {
        let queues = self.class(class);
        if let Some(tombstone) = queues.tombstones.front().copied().filter(|t| may(*t))
            && tombstone.freed < self.oldest_stale()
        {
            self.class(class).tombstones.pop_front();
            return Some(Taken { off: tombstone.off.get(), class, from: From::Tombstone(tombstone) });
        }
        let off = self.class(class).free.pop()?;
        Some(Taken { off, class, from: From::Free })
    }

    /// Gives back a slot that was taken and not written. Slots are given back in the reverse order of taking.
    pub(super) fn give_back(&mut self, taken: Taken) {
        let queues = self.class(taken.class);
        match taken.from {
            From::Stale(stale) => queues.stale.push_front(stale),
            From::Tombstone(tombstone) => queues.tombstones.push_front(tombstone),
            From::Free => queues.free.push(taken.off),
        }
    }

    /// Whether entries of `class` wait for being reused.
    #[inline(always)]
    pub(super) fn has_waiting(&self, class: Class) -> bool {
        self.get(class).is_some_and(|q| !q.stale.is_empty() || !q.tombstones.is_empty())
    }

    /// Whether the operation that has taken a slot of `class` should scrub: because a tombstone could not be reused, or
    /// soon cannot.
    #[inline]
    pub(super) fn wants_scrub(&self, class: Class, taken: Taken) -> bool {
        let Some(queues) = self.get(class) else { return false };
        let count = queues.tombstones.len();
        let ahead = if taken.is_new() {
            queues.tombstones.front()
        } else if count >= LONG {
            queues.tombstones.get(count / 2)
        } else {
            None
        };
        ahead.is_some_and(|t| self.oldest_other(Some(class)).is_some_and(|(freed, _)| freed < t.freed))
    }

    /// The oldest stale entry of the classes but `except`, whose own stale entries are used before its tombstones.
    fn oldest_other(&self, except: Option<Class>) -> Option<(u64, usize)> {
        let except = except.map(Class::index);
        let heads = self.classes().enumerate().filter_map(|(c, q)| q.stale.front().map(|s| (s.freed, c)));
        heads.filter(|(_, c)| Some(*c) != except).min()
    }

    /// Takes the oldest stale entry of the classes but `except`, to be erased by the current operation and free after
    /// [`Reuse::settle`].
    pub(super) fn scrub(&mut self, except: Option<Class>, may: impl Fn(Stale) -> bool) -> Option<u64> {
        let (_, class) = self.oldest_other(except)?;
        let queues = self.class(Class::from_index(class));
        let stale = queues.stale.front().copied().filter(|s| may(*s))?;
        queues.stale.pop_front();
        self.scrubbing = self.scrubbing.min(stale.freed);
        self.scrubbed.push((Class::from_index(class), stale.off.get()));
        Some(stale.off.get())
    }

    /// After the operation's fence: what it overwrote and erased is durably gone.
    #[inline(always)]
    pub(super) fn settle(&mut self) {
        self.taken = u64::MAX;
        self.settle_scrubbed();
    }

    /// After an operation whose entry is unsettled: its record says what it took.
    pub(super) fn hand_over(&mut self) {
        self.taken = u64::MAX;
    }

    /// After a fence in the middle of an operation: what it erased is durably gone; what it took is not overwritten yet.
    #[inline(always)]
    pub(super) fn settle_scrubbed(&mut self) {
        self.scrubbing = u64::MAX;
        while let Some((class, off)) = self.scrubbed.pop() {
            self.push_free(class, off);
        }
    }

    /// The slot that the next [`Reuse::take`] of `class` will most likely give.
    #[inline(always)]
    pub(super) fn peek(&self, class: Class) -> Option<u64> {
        let queues = self.get(class)?;
        queues.stale.front().or(queues.tombstones.front()).map(|s| s.off.get()).or(queues.free.last().copied())
    }

    /// Numbers of slots in all classes.
    pub(super) fn lengths(&self) -> Lengths {
        self.classes().fold(Lengths::default(), |sum, q| Lengths {
            stale: sum.stale + q.stale.len(),
            tombstones: sum.tombstones + q.tombstones.len(),
            free: sum.free + q.free.len(),
        })
    }

    /// All slots, with what is known of each.
    pub(super) fn iter(&self) -> impl Iterator<Item = (u64, Held)> + '_ {
        self.classes().flat_map(|q| {
            let stale = q.stale.iter().map(|s| (s.off.get(), Held::Stale));
            let tombstones = q.tombstones.iter().map(|s| (s.off.get(), Held::Tombstone));
            stale.chain(tombstones).chain(q.free.iter().map(|off| (*off, Held::Free)))
        })
    }
}

/// The offset of a slot, none of which lies at 0.
#[inline(always)]
fn slot(off: u64) -> NonZeroU64 {
    NonZeroU64::new(off).expect("the first slot lies behind the pool's header")
}

/// What a slot that is not reachable holds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Held {
    /// A superseded entry.
    Stale,
    /// A tombstone.
    Tombstone,
    /// No valid entry.
    Free,
}

const _: () = assert!(CLASSES <= u8::MAX as usize);

#[cfg(test)]
mod tests {
    use super::*;

    const ONE: Class = Class::FIRST;

    fn any(_: Stale) -> bool {
        true
    }

    #[test]
    fn stale_entries_go_first_and_tombstones_after_what_is_older() {
        let mut reuse = Reuse::new();
        let four = Class::of_lines(4);
        reuse.push_free(ONE, 64);
        reuse.push_stale(ONE, 128, 0);
        reuse.push_tombstone(ONE, 192, 0);
        assert_eq!(reuse.take(ONE, any).unwrap().off, 128);
        // The entry at 128 is overwritten, but not durably so: the tombstone has to stay.
        assert_eq!(reuse.take(ONE, any).unwrap().off, 64);
        assert_eq!(reuse.take(ONE, any), None);
        reuse.settle();
        assert_eq!(reuse.take(ONE, any).unwrap().off, 192);
        reuse.settle();
        // Blocked by an older entry of another class, and free once that is scrubbed.
        reuse.push_stale(four, 256, 0);
        reuse.push_tombstone(ONE, 512, 0);
        reuse.push_stale(four, 1024, 0);
        assert_eq!(reuse.take(ONE, any), None);
        let new = Taken { off: 0, class: ONE, from: From::Free };
        assert!(reuse.wants_scrub(ONE, new));
        assert_eq!(reuse.scrub(Some(ONE), any), Some(256));
        assert_eq!(reuse.take(ONE, any), None, "not before the fence");
        reuse.settle();
        assert!(!reuse.wants_scrub(ONE, new));
        assert_eq!(reuse.take(ONE, any).unwrap().off, 512);
        assert_eq!(reuse.lengths(), Lengths { stale: 1, tombstones: 0, free: 1 });
    }

    #[test]
    fn entries_of_transactions_wait_for_the_watermark() {
        let mut reuse = Reuse::new();
        reuse.push_stale(ONE, 64, 7);
        let no = |s: Stale| s.transaction() == 0;
        assert_eq!(reuse.take(ONE, no), None);
        assert_eq!(reuse.scrub(None, no), None);
        assert_eq!(reuse.take(ONE, any).unwrap().off, 64);
    }

    #[test]
    fn a_plain_slot_is_no_tombstones_and_no_transactions() {
        let mut reuse = Reuse::new();
        reuse.push_free(ONE, 64);
        assert_eq!(reuse.take_plain(), None, "the arena's slots are counted as new");
        reuse.push_stale(ONE, 128, 0);
        reuse.push_stale(ONE, 192, 7);
        assert_eq!(reuse.take_plain(), Some(128));
        assert_eq!(reuse.take_plain(), None, "of a transaction");
        assert_eq!(reuse.take(ONE, any).unwrap().off, 192);
        reuse.settle();
        reuse.push_stale(ONE, 256, 0);
        reuse.push_tombstone(ONE, 512, 0);
        assert_eq!(reuse.take_plain(), None, "a tombstone waits: the operation may have to scrub for it");
        assert_eq!(reuse.lengths(), Lengths { stale: 1, tombstones: 1, free: 1 });
    }

    #[test]
    fn a_fifo_is_a_queue() {
        let (mut fifo, mut model) = (Fifo::default(), VecDeque::new());
        let mut random = 1u64;
        for freed in 0..2000 {
            random = random.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(1);
            let stale = Stale { off: NonZeroU64::MIN, transaction: 0, freed };
            match random >> 61 {
                0..=2 => {
                    fifo.push_back(stale.off, stale.transaction, stale.freed);
                    model.push_back(stale);
                }
                3 => {
                    fifo.push_front(stale);
                    model.push_front(stale);
                }
                _ => assert_eq!(fifo.pop_front(), model.pop_front()),
            }
            assert!(fifo.iter().eq(model.iter()));
            assert_eq!((fifo.front(), fifo.len(), fifo.is_empty()), (model.front(), model.len(), model.is_empty()));
            (0..model.len() + 1).for_each(|i| assert_eq!(fifo.get(i), model.get(i)));
        }
    }

    #[test]
    fn giving_back_restores_the_order() {
        let mut reuse = Reuse::new();
        reuse.push_stale(ONE, 64, 0);
        reuse.push_stale(ONE, 128, 7);
        reuse.push_free(ONE, 192);
        let taken: Vec<_> = (0..3).map(|_| reuse.take(ONE, any).unwrap()).collect();
        taken.iter().rev().for_each(|t| reuse.give_back(*t));
        reuse.settle();
        let again: Vec<_> = (0..3).map(|_| reuse.take(ONE, any).unwrap()).collect();
        assert_eq!(again, taken);
    }
}
