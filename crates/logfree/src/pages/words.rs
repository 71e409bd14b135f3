//! The persistent words that tables of active pages are made of, and what sessions do with them that may meet in one page.
//!
//! Written over [`Words`], so that loom explores the very code that runs: see the tests.

use std::sync::atomic::Ordering::Release;

use durix_pmem::{Medium, Off, Op, Rmw, Word};

use crate::layout::PageShape;

/// Words in persistent memory: in an operation, or loom's.
pub(super) trait Words {
    /// Stores a word, after everything that was done before.
    fn store(&self, at: Off<Word>, value: u64);
    /// Sets bits; returns what the word was.
    fn set(&self, at: Off<Word>, bits: u64) -> u64;
    /// Clears bits.
    fn clear(&self, at: Off<Word>, bits: u64);
    /// Starts writing some words in a row back.
    fn write_back(&self, at: Off<Word>, words: u64);
    /// Notes a word to be written back just before [`drain`](Words::drain).
    fn defer(&self, at: Off<Word>);
    /// Writes back what was noted, and waits.
    fn drain(&self);
}

impl<M: Medium> Words for Op<'_, M> {
    #[inline(always)]
    fn store(&self, at: Off<Word>, value: u64) {
        Op::store(self, self.at(at), value, Release);
    }

    #[inline(always)]
    fn set(&self, at: Off<Word>, bits: u64) -> u64 {
        self.rmw(self.at(at), Rmw::Or, bits)
    }

    #[inline(always)]
    fn clear(&self, at: Off<Word>, bits: u64) {
        self.rmw(self.at(at), Rmw::And, !bits);
    }

    #[inline(always)]
    #[track_caller]
    fn write_back(&self, at: Off<Word>, words: u64) {
        self.write_back_slice(self.slice("words of a page", at, words).unwrap_or_default());
    }

    #[inline(always)]
    #[track_caller]
    fn defer(&self, at: Off<Word>) {
        Op::defer(self, self.at(at));
    }

    #[inline(always)]
    #[track_caller]
    fn drain(&self) {
        Op::drain(self);
    }
}

fn word(page: u64, index: u64) -> Off<Word> {
    Off::new(page + index * size_of::<Word>() as u64)
}

/// Sets the bits of all free nodes of an active page, and appends those nodes, the last first. Whoever sets a bit that was clear
/// has the node: no two sessions take the same. The first node that is linked brings the fence.
pub(super) fn take_nodes(words: &impl Words, shape: PageShape, page: u64, nodes: &mut Vec<u64>) {
    let first = nodes.len();
    for index in 0..shape.words() {
        let mask = shape.mask(index);
        let mut taken = mask & !words.set(word(page, index), mask);
        while taken != 0 {
            let line = index * 64 + u64::from(taken.trailing_zeros());
            nodes.push(page + line * crate::layout::NODE);
            taken &= taken - 1;
        }
    }
    // PERSIST LF-N4: flush, with the fence of the first node.
    words.write_back(word(page, 0), shape.words());
    nodes[first..].reverse();
}

/// Clears the bits of nodes that nothing leads to. One fence; none for no nodes.
pub(super) fn clear_bits(words: &impl Words, shape: PageShape, nodes: &[u64]) {
    if nodes.is_empty() {
        return;
    }
    let bits = || {
        nodes.iter().map(|node| {
            let (index, bit) = shape.bit_of(*node);
            (word(shape.page_of(*node), index), 1 << bit)
        })
    };
    // All locked instructions before the first write-back.
    bits().for_each(|(at, bit)| words.clear(at, bit));
    bits().for_each(|(at, _)| words.defer(at));
    // PERSIST LF-N7: flush+fence.
    words.drain();
}

#[cfg(all(test, loom))]
mod loom_tests {
    use super::super::active::Active;
    use super::*;
    use loom::sync::Arc;
    use loom::sync::atomic::{AtomicU64, Ordering};
    use std::cell::RefCell;

    const SHAPE: PageShape = PageShape::of_nodes(256);
    /// A page with three nodes, and a cell for each of two sessions.
    const PAGE: u64 = 4096;
    const CELLS: [u64; 2] = [8, 16];
    /// Above the value of a word, how often it was changed: what is durable is never an older value than another.
    const CHANGE: u64 = 1 << 32;

    struct Model {
        /// The bitmap, and the cells.
        words: [AtomicU64; 3],
        /// What a crash would leave of them, at least.
        durable: [AtomicU64; 3],
        /// Who has each node.
        owners: [AtomicU64; 4],
    }

    struct Session {
        model: Arc<Model>,
        pending: RefCell<Vec<(usize, u64)>>,
        fences: bool,
    }

    fn number(at: Off<Word>) -> usize {
        if at.get() == PAGE { 0 } else { at.get() as usize / 8 }
    }

    impl Session {
        fn change(&self, at: Off<Word>, new: impl Fn(u64) -> u64) -> u64 {
            let word = &self.model.words[number(at)];
            let mut old = word.load(Ordering::Acquire);
            loop {
                let value = (old & !(CHANGE - 1)) + CHANGE + new(old % CHANGE);
                match word.compare_exchange(old, value, Ordering::AcqRel, Ordering::Acquire) {
                    Ok(_) => return old % CHANGE,
                    Err(now) => old = now,
                }
            }
        }

        fn durable(&self, number: usize) -> u64 {
            self.model.durable[number].load(Ordering::Acquire) % CHANGE
        }
    }

    impl Words for Session {
        fn store(&self, at: Off<Word>, value: u64) {
            self.change(at, |_| value);
        }
        fn set(&self, at: Off<Word>, bits: u64) -> u64 {
            self.change(at, |old| old | bits)
        }
        fn clear(&self, at: Off<Word>, bits: u64) {
            self.change(at, |old| old & !bits);
        }
        fn write_back(&self, at: Off<Word>, _words: u64) {
            let number = number(at);
            self.pending.borrow_mut().push((number, self.model.words[number].load(Ordering::Acquire)));
        }
        fn defer(&self, at: Off<Word>) {
            self.write_back(at, 1);
        }
        fn drain(&self) {
            for (number, value) in self.pending.take() {
                if self.fences {
                    self.model.durable[number].fetch_max(value, Ordering::AcqRel);
                }
            }
        }
    }

    fn line(node: u64) -> usize {
        ((node - PAGE) / crate::layout::NODE) as usize
    }

    /// Makes the page active, takes its free nodes, and links one; returns them.
    fn allocate(session: &Session, number: usize, active: &mut Active) -> Vec<u64> {
        assert!(active.enter(session, PAGE));
        session.drain();
        let mut nodes = Vec::new();
        take_nodes(session, SHAPE, PAGE, &mut nodes);
        for node in &nodes {
            let before = session.model.owners[line(*node)].swap(1 + number as u64, Ordering::AcqRel);
            assert_eq!(before, 0, "a node that another session has");
        }
        // The fence of the first node's contents.
        session.drain();
        for node in &nodes {
            assert!(session.durable(0) >> line(*node) & 1 == 1, "linked, and free after a crash");
            assert_eq!(session.durable(1 + number), PAGE, "linked, and its page not active after a crash");
        }
        nodes
    }

    /// Gives nodes back that nothing leads to, and the page leaves the table.
    fn trim(session: &Session, nodes: &[u64], active: &mut Active) {
        nodes.iter().for_each(|node| session.model.owners[line(*node)].store(0, Ordering::Release));
        clear_bits(session, SHAPE, nodes);
        for node in nodes {
            let set = session.durable(0) >> line(*node) & 1 == 1;
            let active = (1..3).any(|cell| session.durable(cell) == PAGE);
            assert!(!set || active, "leaked by a crash: allocated in a page that is not active");
        }
        active.leave(session, &[PAGE]);
    }

    fn explore(fences: bool) {
        let mut builder = loom::model::Builder::new();
        builder.preemption_bound = Some(3);
        builder.check(move || {
            let zero = || AtomicU64::new(0);
            let model = Model {
                words: [zero(), zero(), zero()],
                durable: [zero(), zero(), zero()],
                owners: [zero(), zero(), zero(), zero()],
            };
            let model = Arc::new(model);
            let sessions: Vec<_> = (0..2)
                .map(|number| {
                    let model = Arc::clone(&model);
                    loom::thread::spawn(move || {
                        let session = Session { model, pending: RefCell::default(), fences };
                        let mut active = Active::with_cells([Off::new(CELLS[number])]);
                        let nodes = allocate(&session, number, &mut active);
                        trim(&session, &nodes, &mut active);
                    })
                })
                .collect();
            sessions.into_iter().for_each(|session| session.join().unwrap());
            for word in &model.words {
                assert_eq!(word.load(Ordering::Acquire) % CHANGE, 0, "everything was given back");
            }
        });
    }

    #[test]
    fn loom_sessions_that_meet_in_a_page_share_no_node_and_leak_none() {
        explore(true);
    }

    #[test]
    #[should_panic]
    fn loom_without_fences_a_node_is_linked_that_is_free_after_a_crash() {
        explore(false);
    }
}
