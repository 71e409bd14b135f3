//! Link-and-persist (section 3 of David et al.): a link carries a mark while it may not be durable.
//!
//! [`swing`] changes a link and marks it dirty; [`settle`] writes it back, fences, and takes the mark off. Whoever reads a
//! dirty link and depends on it settles it, too. The rules:
//!
//! - A link is swung only from a value that is not dirty, so at most one value of it is not durable yet.
//! - An operation does not return while what its answer depends on is dirty.
//! - [`bypass`] takes a deleted node out without a mark: before and after, the map is the same. The bypass has to be durable
//!   only before the node is used again.
//!
//! | edge | kept by | a crash before it leaves | recovery |
//! |---|---|---|---|
//! | K1 contents of a node < a link to it | flush+fence, of the node's owner | the node unreachable | frees it, by the table of active pages |
//! | K2 a swung link < the answer of the operation, and of any that depends on it | flush+fence, by `settle` of whoever comes first | the old link or the new | nothing: both are states of the map |
//! | K3 a deletion mark < the node is bypassed | flush+fence: nobody bypasses a node whose mark is dirty | the node, deleted or not | nothing |
//! | K4 a bypass < the node is used again | flush+fence, once for a generation | the deleted node is reached | bypassed again |
//!
//! The mark itself may or may not survive a crash. A link that is found dirty is settled by the first who depends on it.
//!
//! # The races
//! *Two settle the same dirty value.* Both write it back and fence, so it is durable before either takes the mark off; the
//! second exchange fails, and nothing is lost.
//!
//! *One settles, another has settled and swung the link again.* The late write-back makes the new value durable early or
//! does nothing; the late exchange expects the old dirty value and fails. A value never comes back while someone may hold
//! it: a node is used again only after the operations that could have seen it have ended (`durix_pmem::Grace`).
//!
//! *One swings, another deletes the node that holds the link.* Both expect the clean link. If the swing comes first, the
//! deletion fails, settles the link, and tries again over the new value; if the deletion comes first, the swing fails, and
//! its operation looks for another place.
//!
//! The functions are written over [`LinkWord`], so that loom explores the very code that runs.

use durix_pmem::{Medium, Op, Word};

pub use crate::layout::Link;

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
}

/// Changes a link from `current`, which must be clean, to `new`, marked dirty. [`settle`] has to follow.
///
/// # Errors
/// The link found, where it was not `current`.
#[inline(always)]
pub fn swing(word: &impl LinkWord, current: Link, new: Link) -> Result<Link, Link> {
    debug_assert!(!current.is_dirty(), "a dirty link is not swung");
    word.compare_exchange(current, new.dirty()).map(|_| new.dirty())
}

/// Makes a link durable that was seen dirty, and takes the mark off; returns it clean. One write-back, one fence, one
/// locked instruction after them.
#[inline(always)]
pub fn settle(word: &impl LinkWord, seen: Link) -> Link {
    persist(word);
    clean(word, seen);
    seen.clean()
}

/// Makes a link durable. [`clean`] takes the mark off afterwards, where the link can still be found.
#[inline(always)]
pub fn persist(word: &impl LinkWord) {
    // PERSIST K2, K3: flush+fence.
    word.write_back();
    word.fence();
}

/// Takes the mark off a link that is durable, if it is still as it was `seen`.
#[inline(always)]
pub fn clean(word: &impl LinkWord, seen: Link) {
    let _ = word.compare_exchange(seen, seen.clean());
}

/// Changes a link from `current`, which must be clean, to `new`, past a deleted node whose own link is durable. Not durable
/// on return, and not marked.
///
/// # Errors
/// The link found, where it was not `current`.
#[inline(always)]
pub fn bypass(word: &impl LinkWord, current: Link, new: Link) -> Result<Link, Link> {
    debug_assert!(!current.is_dirty() && !new.is_dirty());
    word.compare_exchange(current, new)
}

/// A link in persistent memory, in an operation.
#[derive(Debug)]
pub struct DurableLink<'a, 's, M: Medium> {
    op: &'a Op<'s, M>,
    word: &'s Word<Link>,
}

impl<'a, 's, M: Medium> DurableLink<'a, 's, M> {
    /// The link in `word`.
    #[inline(always)]
    pub fn new(op: &'a Op<'s, M>, word: &'s Word<Link>) -> Self {
        DurableLink { op, word }
    }
}

impl<M: Medium> LinkWord for DurableLink<'_, '_, M> {
    #[inline(always)]
    fn load(&self) -> Link {
        self.op.load(self.word, std::sync::atomic::Ordering::Acquire)
    }

    #[inline(always)]
    fn compare_exchange(&self, current: Link, new: Link) -> Result<Link, Link> {
        self.op.compare_exchange(self.word, current, new)
    }

    #[inline(always)]
    fn write_back(&self) {
        self.op.write_back(self.word);
    }

    #[inline(always)]
    fn fence(&self) {
        self.op.fence();
    }
}

#[cfg(all(test, loom))]
mod loom_tests {
    use super::*;
    use durix_pmem::Bits;
    use loom::sync::Arc;
    use loom::sync::atomic::{AtomicU64, Ordering};

    /// A link, and the value of it that a crash would leave. Offsets only rise, so `max` keeps the durable one.
    struct Model {
        word: AtomicU64,
        durable: AtomicU64,
    }

    struct Thread<'a> {
        model: &'a Model,
        pending: std::cell::Cell<u64>,
        fences: bool,
    }

    impl LinkWord for Thread<'_> {
        fn load(&self) -> Link {
            Link::from_bits(self.model.word.load(Ordering::Acquire))
        }
        fn compare_exchange(&self, current: Link, new: Link) -> Result<Link, Link> {
            let (current, new) = (current.to_bits(), new.to_bits());
            let done = self.model.word.compare_exchange(current, new, Ordering::AcqRel, Ordering::Acquire);
            done.map(Link::from_bits).map_err(Link::from_bits)
        }
        fn write_back(&self) {
            self.pending.set(Link::from_bits(self.model.word.load(Ordering::Relaxed)).off());
        }
        fn fence(&self) {
            if self.fences {
                self.model.durable.fetch_max(self.pending.get(), Ordering::AcqRel);
            }
        }
    }

    fn clean<'a>(thread: &Thread<'a>) -> Link {
        let seen = thread.load();
        if seen.is_dirty() { settle(thread, seen) } else { seen }
    }

    /// Two writers and a reader: what anybody sees clean is durable.
    fn explore(fences: bool) {
        loom::model(move || {
            let model = Arc::new(Model { word: AtomicU64::new(64), durable: AtomicU64::new(64) });
            let threads: Vec<_> = (0..2)
                .map(|_| {
                    let model = Arc::clone(&model);
                    loom::thread::spawn(move || {
                        let thread = Thread { model: &model, pending: Default::default(), fences };
                        let current = clean(&thread);
                        if let Ok(swung) = swing(&thread, current, Link::to(current.off() + 64)) {
                            settle(&thread, swung);
                            assert!(model.durable.load(Ordering::Acquire) >= swung.off(), "returned before durable");
                        }
                    })
                })
                .collect();
            let thread = Thread { model: &model, pending: Default::default(), fences };
            let seen = clean(&thread);
            assert!(model.durable.load(Ordering::Acquire) >= seen.off(), "seen clean, not durable");
            for thread in threads {
                thread.join().unwrap();
            }
            assert!(!Link::from_bits(model.word.load(Ordering::Acquire)).is_dirty(), "a mark is left");
        });
    }

    #[test]
    fn loom_what_is_seen_clean_is_durable() {
        explore(true);
    }

    #[test]
    #[should_panic]
    fn loom_without_the_fence_something_clean_is_not_durable() {
        explore(false);
    }
}
