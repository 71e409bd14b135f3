//! Link-and-persist (section 3 of David et al.): a link carries a mark while it may not be durable.
//!
//! In the paper the mark is taken off after the fence. That is a locked instruction on a line that was just written back, and no
//! load of the next operation runs before it. Here it stays: the mark names its *owner*, the session that has changed the link,
//! and each session *announces* in a word of volatile memory which link it is making durable. [`swing_own`] announces the link and
//! changes it; [`persist_own`] writes it back, fences, and withdraws the announcement by a plain store. **A link with an owner
//! is durable unless that session announces it**; one with a mark and no owner may not be durable ([`swing`]). [`settle`] makes
//! a marked link durable, if it may not be. The rules:
//!
//! - A link is changed only from a value that is settled, so at most one value of it is not durable yet.
//! - An operation does not return while what its answer depends on is not settled.
//! - A session announces one link at a time. It takes its own marks for settled: what it changed before is.
//! - [`bypass`] takes a deleted node out without a mark, where that node's own link is durable: before and after, the map is the
//!   same. The bypass has to be durable only before the node is used again. A bypass that is to make the deletion itself durable
//!   (LF-K2) is swung with a mark, like any other change.
//! - An announcement ends with its process. So a mark with an owner is for links that recovery finds by itself, and writes back
//!   (LF-N8): one to a node in an active page, or past one. Others are swung without an owner.
//!
//! | edge | kept by | a crash before it leaves | recovery |
//! |---|---|---|---|
//! | LF-K1 contents of a node < a link to it | flush+fence, of the node's owner | the node unreachable | frees it, by the table of active pages |
//! | LF-K2 a swung link < the answer of the operation, and of any that depends on it | flush+fence, by its session or by `settle` of whoever comes first | the old link or the new | nothing: both are states of the map |
//! | LF-K3 a deletion mark < the node is bypassed by a link that nobody takes for unsettled | flush+fence: nobody bypasses a node whose mark is not settled | the node, deleted or not | nothing |
//! | LF-K4 a bypass < the node is used again | flush+fence, once for a generation, or of the bypass itself | the deleted node is reached | bypassed again |
//!
//! Marks may survive a crash. After one, what memory holds is durable; after the death of a process alone, see the last rule.
//! A link that is found with a mark of another session is cleaned by the first who depends on it; that writes nothing back.
//!
//! # The races
//! *Its session withdraws, another looks.* The announcement was made before the link was changed, so who has read the link
//! reads the announcement or something later. If it reads the announcement, it settles the link itself; if it reads something
//! later, that was stored after the fence. An announcement of the link for its *next* change looks like the old one: that costs
//! a fence, and is right.
//!
//! *Two settle the same value.* Both write it back and fence, so it is durable before either takes the mark off; the
//! second exchange fails, and nothing is lost.
//!
//! *One settles, another has settled and swung the link again.* The late write-back makes the new value durable early or
//! does nothing; the late exchange expects the old marked value and fails. A value never comes back while someone may hold
//! it: a node is used again only after the operations that could have seen it have ended (`durix_pmem::Grace`).
//!
//! *One swings, another deletes the node that holds the link.* Both expect the link as they have settled it. If the swing comes
//! first, the deletion fails, settles the link, and tries again over the new value; if the deletion comes first, the swing fails,
//! and its operation looks for another place.
//!
//! *A session ends, and another gets its slot.* The first has withdrawn what it announced before its operation ended: its marks
//! are settled, for the second as for all others.
//!
//! The functions are written over [`LinkWord`], so that loom explores the very code that runs.

use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use durix_pmem::{Medium, Off, Op, PerSession, Word};

pub use crate::layout::{Link, Owner};

/// A link in memory: a word of persistent memory in an operation, or loom's.
pub trait LinkWord {
    /// Loads it, with everything that was done before it was stored.
    fn load(&self) -> Link;
    /// Compares and exchanges it.
    ///
    /// # Errors
    /// The link found, where it was not `current`.
    fn compare_exchange(&self, current: Link, new: Link) -> Result<Link, Link>;
    /// Starts writing it back.
    fn write_back(&self);
    /// Waits for what was written back.
    fn fence(&self);
    /// The session that asks.
    fn own(&self) -> Owner;
    /// Says that this session has not made the link durable yet.
    fn announce(&self);
    /// Says that what this session has announced is durable.
    fn withdraw(&self);
    /// Whether a session has announced this link, and not withdrawn it.
    fn is_announced_by(&self, owner: Owner) -> bool;
}

/// Changes a link from `current`, which must be durable, to `new`, marked dirty, without an owner. [`settle`] has to follow.
///
/// # Errors
/// The link found, where it was not `current`.
#[inline(always)]
pub fn swing(word: &impl LinkWord, current: Link, new: Link) -> Result<Link, Link> {
    word.compare_exchange(current, new.dirty()).map(|_| new.dirty())
}

/// Changes a link from `current`, which must be durable, to `new`, marked dirty by this session, which announces it.
/// [`persist_own`] has to follow before the session announces another.
///
/// # Errors
/// The link found, where it was not `current`.
#[inline(always)]
pub fn swing_own(word: &impl LinkWord, current: Link, new: Link) -> Result<(), Link> {
    word.announce();
    match word.compare_exchange(current, new.dirty_by(word.own())) {
        Ok(_) => Ok(()),
        Err(found) => {
            word.withdraw();
            Err(found)
        }
    }
}

/// Makes a link durable that this session has changed with [`swing_own`]. Nothing locked follows the fence.
#[inline(always)]
pub fn persist_own(word: &impl LinkWord) {
    persist(word);
    word.withdraw();
}

/// Makes a link durable that was seen dirty; returns what it is then, as far as it has not changed. Nothing to do for a link
/// of this session, or one that its owner does not announce.
#[inline(always)]
pub fn settle(word: &impl LinkWord, seen: Link) -> Link {
    let owner = seen.owner();
    // What this session has changed before is durable, and what it is changing it does not look at.
    if owner != Owner::NONE && owner == word.own() { seen } else { settle_others(word, seen) }
}

/// As [`settle`], for a link of another session, or of nobody in particular. Takes the mark off.
#[cold]
fn settle_others(word: &impl LinkWord, seen: Link) -> Link {
    let owner = seen.owner();
    if owner == Owner::NONE || word.is_announced_by(owner) {
        persist(word);
    }
    clean(word, seen);
    seen.clean()
}

/// Makes a link durable. [`clean`] takes the mark off afterwards, where the link can still be found.
#[inline(always)]
pub fn persist(word: &impl LinkWord) {
    // PERSIST LF-K2, LF-K3: flush+fence.
    word.write_back();
    word.fence();
}

/// Takes the mark off a link that is durable, if it is still as it was `seen`.
#[inline(always)]
pub fn clean(word: &impl LinkWord, seen: Link) {
    let _ = word.compare_exchange(seen, seen.clean());
}

/// Changes a link from `current`, which must be durable, to `new`, past a deleted node whose own link is durable. Not durable
/// on return, and not marked.
///
/// # Errors
/// The link found, where it was not `current`.
#[inline(always)]
pub fn bypass(word: &impl LinkWord, current: Link, new: Link) -> Result<Link, Link> {
    debug_assert!(!new.is_dirty());
    word.compare_exchange(current, new)
}

/// Which link each session is changing, by its slot. Volatile.
#[derive(Debug)]
pub(crate) struct Announced(PerSession<Announcement>);

/// What a session says, and what it remembers.
#[derive(Debug, Default)]
struct Announcement {
    /// The offset of the link that it is making durable, or 0.
    link: AtomicU64,
    /// A line that it has written back, for [`Announced::fetch_back`]. For itself alone, and only a hint.
    written: AtomicU64,
}

impl Announced {
    /// None.
    pub(crate) fn new() -> Self {
        Announced(PerSession::default())
    }

    #[inline(always)]
    fn of(&self, slot: u32) -> &Announcement {
        self.0.of(slot)
    }

    /// The session is about to write the line at `off` back. Fetches the line that it has written back before: a write-back
    /// takes a line out of the near caches, and one that is fetched while its write-back is under way goes out once more.
    /// Called where a locked instruction, or a fence, has come in between.
    #[inline(always)]
    pub(crate) fn fetch_back<M: Medium>(&self, op: &Op<'_, M>, off: u64) {
        let written = &self.of(op.slot()).written;
        op.prefetch(Off::<Word>::new(written.load(Relaxed)));
        written.store(off, Relaxed);
    }
}

/// A link in persistent memory, in an operation.
#[derive(Debug)]
pub struct DurableLink<'a, 's, M: Medium> {
    op: &'a Op<'s, M>,
    word: &'s Word<Link>,
    announced: &'a Announced,
}

impl<'a, 's, M: Medium> DurableLink<'a, 's, M> {
    /// The link in `word`, of a structure whose sessions announce there what they change.
    #[inline(always)]
    pub(crate) fn new(op: &'a Op<'s, M>, announced: &'a Announced, word: &'s Word<Link>) -> Self {
        DurableLink { op, word, announced }
    }

    #[inline(always)]
    fn store(&self, value: u64) {
        let cell = &self.announced.of(self.op.slot()).link;
        self.op.medium().shared_store(cell, value, Release);
    }
}

impl<M: Medium> LinkWord for DurableLink<'_, '_, M> {
    #[inline(always)]
    fn load(&self) -> Link {
        self.op.load(self.word, Acquire)
    }

    #[inline(always)]
    fn compare_exchange(&self, current: Link, new: Link) -> Result<Link, Link> {
        self.op.compare_exchange(self.word, current, new)
    }

    #[inline(always)]
    fn write_back(&self) {
        self.announced.fetch_back(self.op, self.op.off_of(self.word).get());
        self.op.write_back(self.word);
    }

    #[inline(always)]
    fn fence(&self) {
        self.op.fence();
    }

    #[inline(always)]
    fn own(&self) -> Owner {
        Owner::of(self.op.slot())
    }

    #[inline(always)]
    fn announce(&self) {
        self.store(self.op.off_of(self.word).get());
    }

    #[inline(always)]
    fn withdraw(&self) {
        self.store(0);
    }

    #[inline(always)]
    fn is_announced_by(&self, owner: Owner) -> bool {
        let cell = &self.announced.of(owner.slot() as u32).link;
        self.op.medium().shared_load(cell, Acquire) == self.op.off_of(self.word).get()
    }
}

#[cfg(all(test, loom))]
mod loom_tests {
    use super::*;
    use durix_pmem::Bits;
    use loom::sync::Arc;
    use loom::sync::atomic::{AtomicU64, Ordering};
    use std::cell::Cell;

    /// A link, and the value of it that a crash would leave. Offsets only rise, so `max` keeps the durable one.
    struct Place {
        word: AtomicU64,
        durable: AtomicU64,
    }

    impl Place {
        fn new() -> Self {
            Place { word: AtomicU64::new(64), durable: AtomicU64::new(64) }
        }
    }

    struct Model {
        places: [Place; 2],
        /// Which place each of three sessions announces, from 1 on.
        announced: [AtomicU64; 3],
    }

    impl Model {
        fn new() -> Arc<Self> {
            let zero = || AtomicU64::new(0);
            Arc::new(Model { places: [Place::new(), Place::new()], announced: [zero(), zero(), zero()] })
        }

        fn durable(&self, place: usize) -> u64 {
            self.places[place].durable.load(Ordering::Acquire)
        }

        /// A place, in the operation of a session.
        fn at(&self, place: usize, slot: u32, fences: bool) -> Thread<'_> {
            Thread { model: self, place, slot, pending: Cell::default(), fences }
        }

        fn is_at_rest(&self) -> bool {
            self.announced.iter().all(|announced| announced.load(Ordering::Acquire) == 0)
        }
    }

    struct Thread<'a> {
        model: &'a Model,
        place: usize,
        slot: u32,
        pending: Cell<u64>,
        fences: bool,
    }

    impl Thread<'_> {
        fn word(&self) -> &AtomicU64 {
            &self.model.places[self.place].word
        }
    }

    impl LinkWord for Thread<'_> {
        fn load(&self) -> Link {
            Link::from_bits(self.word().load(Ordering::Acquire))
        }
        fn compare_exchange(&self, current: Link, new: Link) -> Result<Link, Link> {
            let (current, new) = (current.to_bits(), new.to_bits());
            let done = self.word().compare_exchange(current, new, Ordering::AcqRel, Ordering::Acquire);
            done.map(Link::from_bits).map_err(Link::from_bits)
        }
        fn write_back(&self) {
            self.pending.set(Link::from_bits(self.word().load(Ordering::Relaxed)).off());
        }
        fn fence(&self) {
            if self.fences {
                self.model.places[self.place].durable.fetch_max(self.pending.get(), Ordering::AcqRel);
            }
        }
        fn own(&self) -> Owner {
            Owner::of(self.slot)
        }
        fn announce(&self) {
            self.model.announced[self.slot as usize].store(self.place as u64 + 1, Ordering::Release);
        }
        fn withdraw(&self) {
            self.model.announced[self.slot as usize].store(0, Ordering::Release);
        }
        fn is_announced_by(&self, owner: Owner) -> bool {
            self.model.announced[owner.slot()].load(Ordering::Acquire) == self.place as u64 + 1
        }
    }

    /// Every interleaving with at most three preemptions.
    fn explore(run: impl Fn() + Sync + Send + 'static) {
        let mut builder = loom::model::Builder::new();
        builder.preemption_bound = Some(3);
        builder.check(run);
    }

    fn settled(thread: &Thread<'_>) -> Link {
        let seen = thread.load();
        if seen.is_dirty() { settle(thread, seen) } else { seen }
    }

    /// Moves a link on; durable on return.
    fn change(thread: &Thread<'_>, owned: bool) {
        let current = settled(thread);
        let new = Link::to(current.off() + 64);
        let changed = if owned {
            swing_own(thread, current, new).map(|()| persist_own(thread)).is_ok()
        } else {
            swing(thread, current, new).map(|swung| settle(thread, swung)).is_ok()
        };
        let durable = thread.model.durable(thread.place);
        assert!(!changed || durable >= new.off(), "returned before durable");
    }

    fn look(thread: &Thread<'_>) {
        let seen = settled(thread);
        assert!(thread.model.durable(thread.place) >= seen.off(), "settled, not durable");
    }

    /// Two writers of a link and a reader: what anybody takes for settled is durable.
    fn one_link(fences: bool, owned: [bool; 2]) {
        explore(move || {
            let model = Model::new();
            let threads: Vec<_> = (0..2)
                .map(|slot| {
                    let model = Arc::clone(&model);
                    loom::thread::spawn(move || change(&model.at(0, slot, fences), owned[slot as usize]))
                })
                .collect();
            look(&model.at(0, 2, fences));
            for thread in threads {
                thread.join().unwrap();
            }
            assert!(model.is_at_rest());
            let last = Link::from_bits(model.places[0].word.load(Ordering::Acquire));
            assert!(model.durable(0) >= last.off() && (!last.is_dirty() || last.owner() != Owner::NONE));
        });
    }

    /// A writer of one link and then of another, which it announces in the same place; a reader of both, and a writer.
    fn two_links(fences: bool) {
        explore(move || {
            let model = Model::new();
            let threads: Vec<_> = [vec![0, 1], vec![0]]
                .into_iter()
                .zip(0..)
                .map(|(places, slot)| {
                    let model = Arc::clone(&model);
                    loom::thread::spawn(move || {
                        places.into_iter().for_each(|place| change(&model.at(place, slot, fences), true));
                    })
                })
                .collect();
            look(&model.at(1, 2, fences));
            look(&model.at(0, 2, fences));
            for thread in threads {
                thread.join().unwrap();
            }
            assert!(model.is_at_rest());
        });
    }

    #[test]
    fn loom_what_is_taken_for_settled_is_durable() {
        one_link(true, [true, true]);
        one_link(true, [true, false]);
    }

    #[test]
    fn loom_a_session_announces_one_link_after_another() {
        two_links(true);
    }

    #[test]
    #[should_panic]
    fn loom_without_the_fence_something_settled_is_not_durable() {
        one_link(false, [true, true]);
    }

    #[test]
    #[should_panic]
    fn loom_without_the_fence_something_without_an_owner_is_not_durable() {
        one_link(false, [false, false]);
    }
}
