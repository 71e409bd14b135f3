//! A bucket of the link cache: one cache line of volatile memory.
//!
//! | word | what |
//! |---|---|
//! | 0 | bits 0 to 15: how many are flushing it; from bit 16 on: two bits for the state of each entry |
//! | 1 to 7 | an entry each: bits 0 to 47 the offset of a link, bits 48 to 63 a hash of the key it is about |
//!
//! The paper's bucket has six entries with their addresses and hashes apart. An offset in a pool fits 48 bits, so both share
//! a word here: one store sets them, and a seventh entry fits.
//!
//! | state | meaning |
//! |---|---|
//! | free | nothing |
//! | pending | its link is about to be changed, or has been changed a moment ago |
//! | busy | its link was changed, and may not be durable |
//!
//! # Rules and races
//! *An entry is reserved only while nobody flushes the bucket.* So what a flusher has seen busy is busy until somebody who was
//! flushing at the same time frees it, and stays free until all of them have ended: freeing it twice is harmless, and
//! no entry is freed that somebody has taken anew.
//!
//! *An entry becomes free only after the fence* of a flusher that has written its link back. (In the paper it becomes free
//! before, and whoever looks for it has to wait for the flusher.) So nobody ever waits: who finds the entry flushes as
//! well, who does not find it knows that the link is durable.
//!
//! *A link is changed after its entry was filled in.* Who has seen the new link therefore finds its entry: pending, and then
//! writes the link back itself, or busy. If it looks before the link is changed, it has not seen the change, and does
//! not depend on it.
//!
//! *A flusher dies* (its thread panics): the count stays up, and the bucket takes no more links. Nothing else is lost: scans
//! and flushes go on.

/// Entries of a bucket. Few where all interleavings are explored.
pub(super) const ENTRIES: u32 = if cfg!(loom) { 2 } else { 7 };

const FREE: u64 = 0;
const PENDING: u64 = 1;
const BUSY: u64 = 2;

/// Bits of the number of flushers.
const FLUSHERS: u64 = 0xFFFF;
/// Where the states begin.
const STATES: u32 = 16;
/// Bits of an offset in an entry.
const ADDRESS: u32 = 48;

/// A bucket, and the memory that its links lie in.
pub(super) trait Around {
    /// Loads a word of the bucket, with everything that was done before it was stored.
    fn load(&self, word: u32) -> u64;
    /// Stores a word of the bucket, after everything that was done before.
    fn store(&self, word: u32, value: u64);
    /// Compares and exchanges a word of the bucket; whether it was `current`.
    fn compare_exchange(&self, word: u32, current: u64, new: u64) -> bool;
    /// Adds to a word of the bucket, wrapping.
    fn add(&self, word: u32, value: u64);
    /// Starts writing a link back.
    fn write_back(&self, link: u64);
    /// Waits for what was written back.
    fn fence(&self);
}

/// The first word.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Header(u64);

impl Header {
    fn flushers(self) -> u64 {
        self.0 & FLUSHERS
    }

    fn state(self, entry: u32) -> u64 {
        self.0 >> (STATES + 2 * entry) & 3
    }

    /// The first free entry.
    fn free(self) -> Option<u32> {
        (0..ENTRIES).find(|entry| self.state(*entry) == FREE)
    }

    /// The entries in a state, a bit each.
    fn all(self, state: u64) -> u64 {
        (0..ENTRIES).filter(|entry| self.state(*entry) == state).fold(0, |all, entry| all | 1 << entry)
    }

    /// The same with the entries of `all` free.
    fn freed(self, all: u64) -> Header {
        Header(entries(all).fold(self.0, |header, entry| header & !(3 << (STATES + 2 * entry))))
    }
}

/// What is added to the header where an entry's state changes.
fn step(entry: u32, from: u64, to: u64) -> u64 {
    to.wrapping_sub(from) << (STATES + 2 * entry)
}

fn entries(all: u64) -> impl Iterator<Item = u32> {
    (0..ENTRIES).filter(move |entry| all >> entry & 1 == 1)
}

fn hash_of(entry: u64) -> u16 {
    (entry >> ADDRESS) as u16
}

fn address_of(entry: u64) -> u64 {
    entry & ((1 << ADDRESS) - 1)
}

/// What became of a link.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Added {
    /// It was changed, and the bucket has it.
    Linked,
    /// It was not as expected; nothing has happened.
    Changed,
    /// The bucket does not take it: nothing has happened.
    Refused,
}

/// Changes a link by `link`, which says whether it did, and keeps the link at `address` in the bucket. Best effort: at the first
/// difficulty the caller is sent away to do it by itself. Three locked instructions.
#[inline]
pub(super) fn try_link_and_add(around: &impl Around, hash: u16, address: u64, link: impl FnOnce() -> bool) -> Added {
    debug_assert!(address >> ADDRESS == 0);
    let header = Header(around.load(0));
    let Some(entry) = header.free().filter(|_| header.flushers() == 0) else { return Added::Refused };
    if !around.compare_exchange(0, header.0, header.0 + step(entry, FREE, PENDING)) {
        return Added::Refused;
    }
    around.store(1 + entry, u64::from(hash) << ADDRESS | address);
    let (state, outcome) = if link() { (BUSY, Added::Linked) } else { (FREE, Added::Changed) };
    around.add(0, step(entry, PENDING, state));
    outcome
}

/// A flush under way: see [`begin`].
#[derive(Debug)]
#[must_use = "the bucket takes no links until the flush has ended"]
pub(super) struct Flush {
    /// Entries whose links are being written back.
    busy: u64,
}

/// Begins to flush a bucket; `None` if nothing in it is busy. [`write_back`], a fence and [`end`] have to follow.
pub(super) fn begin(around: &impl Around) -> Option<Flush> {
    loop {
        let header = Header(around.load(0));
        let busy = header.all(BUSY);
        // There are fewer sessions than the count can hold, but for those that have died flushing.
        if busy == 0 || header.flushers() == FLUSHERS {
            return (busy != 0).then_some(Flush { busy: 0 });
        }
        if around.compare_exchange(0, header.0, header.0 + 1) {
            return Some(Flush { busy });
        }
    }
}

/// Starts writing the links back that are busy, those included that become so meanwhile.
pub(super) fn write_back(around: &impl Around, flush: &mut Flush) {
    let mut open = if flush.busy == 0 { Header(around.load(0)).all(BUSY) } else { flush.busy };
    while open != 0 {
        for entry in entries(open) {
            // PERSIST LF-C1: flush, with the fence of whoever flushes.
            around.write_back(address_of(around.load(1 + entry)));
        }
        open = if flush.busy == 0 { 0 } else { Header(around.load(0)).all(BUSY) & !flush.busy };
        flush.busy |= open;
    }
}

/// Frees what was written back, after the fence.
pub(super) fn end(around: &impl Around, flush: Flush) {
    // PERSIST LF-C1: flush+fence, before this.
    let mut open = flush.busy != 0;
    while open {
        let header = Header(around.load(0));
        open = !around.compare_exchange(0, header.0, header.freed(flush.busy).0 - 1);
    }
}

/// Makes all links durable that are busy; one fence, none where there are none.
pub(super) fn flush(around: &impl Around) {
    if let Some(mut flush) = begin(around) {
        write_back(around, &mut flush);
        // PERSIST LF-C1: flush+fence.
        around.fence();
        end(around, flush);
    }
}

/// Starts writing back the links of pending entries, which may have been changed already. Returns whether there are any.
pub(super) fn write_back_pending(around: &impl Around) -> bool {
    let pending = Header(around.load(0)).all(PENDING);
    for entry in entries(pending) {
        // PERSIST LF-C3: flush, with the caller's fence.
        around.write_back(address_of(around.load(1 + entry)));
    }
    pending != 0
}

/// Makes whatever is known of a key durable. No fence where nothing is known of it, and where the bucket is empty one load.
#[inline]
pub(super) fn scan(around: &impl Around, hash: u16) {
    let header = Header(around.load(0));
    if header.0 > FLUSHERS {
        scan_entries(around, header, hash);
    }
}

fn scan_entries(around: &impl Around, header: Header, hash: u16) {
    let (mut is_busy, mut is_pending) = (false, false);
    for entry in (0..ENTRIES).filter(|entry| header.state(*entry) != FREE) {
        let word = around.load(1 + entry);
        if hash_of(word) != hash {
            continue;
        }
        if header.state(entry) == BUSY {
            is_busy = true;
        } else {
            // PERSIST LF-C2: flush+fence; the link, not the node that it leads to.
            around.write_back(address_of(word));
            is_pending = true;
        }
    }
    if is_pending {
        around.fence();
    }
    if is_busy {
        flush(around);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use std::cell::{Cell, RefCell};

    /// A bucket of one thread, and what happens to the links.
    #[derive(Default)]
    struct Plain {
        words: [Cell<u64>; 8],
        written: RefCell<Vec<u64>>,
        fences: Cell<u32>,
    }

    impl Around for Plain {
        fn load(&self, word: u32) -> u64 {
            self.words[word as usize].get()
        }
        fn store(&self, word: u32, value: u64) {
            self.words[word as usize].set(value);
        }
        fn compare_exchange(&self, word: u32, current: u64, new: u64) -> bool {
            let is = self.load(word) == current;
            if is {
                self.store(word, new);
            }
            is
        }
        fn add(&self, word: u32, value: u64) {
            self.store(word, self.load(word).wrapping_add(value));
        }
        fn write_back(&self, link: u64) {
            self.written.borrow_mut().push(link);
        }
        fn fence(&self) {
            self.fences.set(self.fences.get() + 1);
        }
    }

    fn add(around: &Plain, number: u64) -> Added {
        try_link_and_add(around, number as u16, number * 8, || true)
    }

    #[test]
    fn takes_as_many_links_as_it_has_entries_and_flushes_them_under_one_fence() {
        let bucket = Plain::default();
        for number in 1..=u64::from(ENTRIES) {
            assert_eq!(add(&bucket, number), Added::Linked);
        }
        assert_eq!(add(&bucket, 9), Added::Refused, "full");
        flush(&bucket);
        assert_eq!(*bucket.written.borrow(), [8, 16, 24, 32, 40, 48, 56]);
        assert_eq!((bucket.fences.get(), bucket.load(0)), (1, 0));
        flush(&bucket);
        assert_eq!(bucket.fences.get(), 1, "nothing is there");
        assert_eq!(add(&bucket, 9), Added::Linked);
    }

    #[test]
    fn a_link_that_has_changed_leaves_nothing() {
        let bucket = Plain::default();
        assert_eq!(try_link_and_add(&bucket, 1, 8, || false), Added::Changed);
        assert_eq!(bucket.load(0), 0);
        scan(&bucket, 1);
        assert_eq!((bucket.written.borrow().len(), bucket.fences.get()), (0, 0));
    }

    #[test]
    fn a_scan_flushes_where_the_hash_is_there_only() {
        let bucket = Plain::default();
        add(&bucket, 1);
        add(&bucket, 2);
        scan(&bucket, 3);
        assert_eq!(bucket.fences.get(), 0);
        scan(&bucket, 2);
        assert_eq!((bucket.fences.get(), bucket.load(0)), (1, 0));
        assert_eq!(*bucket.written.borrow(), [8, 16]);
    }

    #[test]
    fn a_scan_writes_a_pending_link_back_itself() {
        let bucket = Plain::default();
        let scanned = || {
            scan(&bucket, 1);
            assert_eq!((&*bucket.written.borrow(), bucket.fences.get()), (&vec![8], 1));
            true
        };
        assert_eq!(try_link_and_add(&bucket, 1, 8, scanned), Added::Linked);
        assert_ne!(bucket.load(0), 0, "still there: whoever put it there does not know");
    }

    #[test]
    fn a_bucket_that_is_being_flushed_takes_nothing_and_keeps_what_comes_later() {
        let bucket = Plain::default();
        add(&bucket, 1);
        let mut flush = begin(&bucket).unwrap();
        assert_eq!(add(&bucket, 2), Added::Refused);
        write_back(&bucket, &mut flush);
        end(&bucket, flush);
        assert_eq!(bucket.load(0), 0);
    }

    #[test]
    fn a_bucket_whose_count_is_exhausted_still_makes_durable() {
        let bucket = Plain::default();
        add(&bucket, 1);
        bucket.store(0, bucket.load(0) | FLUSHERS);
        flush(&bucket);
        assert_eq!((&*bucket.written.borrow(), bucket.fences.get()), (&vec![8], 1));
        assert_eq!(Header(bucket.load(0)).all(BUSY), 1, "and keeps it");
    }
}

#[cfg(all(test, loom))]
mod loom_tests {
    use super::*;
    use loom::sync::Arc;
    use loom::sync::atomic::{AtomicU64, Ordering};
    use std::cell::Cell;

    /// A bucket and two links, each of which is changed once; their addresses are 1 and 2.
    struct Model {
        words: [AtomicU64; 1 + ENTRIES as usize],
        links: [AtomicU64; 2],
        durable: [AtomicU64; 2],
    }

    struct Thread {
        model: Arc<Model>,
        pending: [Cell<u64>; 2],
        fences: bool,
    }

    impl Thread {
        fn new(model: &Arc<Model>, fences: bool) -> Self {
            Thread { model: Arc::clone(model), pending: Default::default(), fences }
        }

        /// Changes the link of a key.
        fn link(&self, key: usize) -> Added {
            let link = &self.model.links[key];
            let swing = || link.compare_exchange(0, 1, Ordering::AcqRel, Ordering::Acquire).is_ok();
            try_link_and_add(self, key as u16, key as u64 + 1, swing)
        }

        fn sees(&self, key: usize) -> bool {
            self.model.links[key].load(Ordering::Acquire) == 1
        }

        fn assert_durable(&self, key: usize) {
            assert_eq!(self.model.durable[key].load(Ordering::Acquire), 1, "a scan says durable what is not");
        }
    }

    impl Around for Thread {
        fn load(&self, word: u32) -> u64 {
            self.model.words[word as usize].load(Ordering::Acquire)
        }
        fn store(&self, word: u32, value: u64) {
            self.model.words[word as usize].store(value, Ordering::Release);
        }
        fn compare_exchange(&self, word: u32, current: u64, new: u64) -> bool {
            let word = &self.model.words[word as usize];
            word.compare_exchange(current, new, Ordering::AcqRel, Ordering::Acquire).is_ok()
        }
        fn add(&self, word: u32, value: u64) {
            self.model.words[word as usize].fetch_add(value, Ordering::AcqRel);
        }
        fn write_back(&self, link: u64) {
            // An entry that was reserved and not filled in yet leads nowhere.
            if let Some(at) = (link as usize).checked_sub(1) {
                self.pending[at].set(self.model.links[at].load(Ordering::Relaxed));
            }
        }
        fn fence(&self) {
            for (durable, pending) in self.model.durable.iter().zip(&self.pending) {
                if self.fences && pending.get() == 1 {
                    durable.store(1, Ordering::Release);
                }
            }
        }
    }

    fn explore(fences: bool, bodies: [fn(&Thread); 2], here: fn(&Thread)) {
        let mut builder = loom::model::Builder::new();
        builder.preemption_bound = Some(3);
        builder.check(move || {
            let zero = || AtomicU64::new(0);
            let model =
                Model { words: std::array::from_fn(|_| zero()), links: [zero(), zero()], durable: [zero(), zero()] };
            let model = Arc::new(model);
            let threads = bodies.map(|body| {
                let model = Arc::clone(&model);
                loom::thread::spawn(move || body(&Thread::new(&model, fences)))
            });
            let thread = Thread::new(&model, fences);
            here(&thread);
            threads.into_iter().for_each(|thread| thread.join().unwrap());
            // Whatever is still there can be flushed, and then nothing is left.
            flush(&thread);
            assert_eq!(thread.load(0), 0, "an entry or a count is left");
            for key in 0..2 {
                assert!(!fences || !thread.sees(key) || model.durable[key].load(Ordering::Acquire) == 1);
            }
        });
    }

    /// Adds a link, and makes it durable as an update does in the durable mode.
    fn update(thread: &Thread, key: usize) {
        if thread.link(key) == Added::Linked {
            scan(thread, key as u16);
            thread.assert_durable(key);
        }
    }

    /// Reads a link, and depends on it.
    fn read(thread: &Thread, key: usize) {
        if thread.sees(key) {
            scan(thread, key as u16);
            thread.assert_durable(key);
        }
    }

    #[test]
    fn loom_a_link_that_was_seen_is_durable_after_a_scan() {
        explore(true, [|thread| _ = thread.link(0), |thread| _ = thread.link(1)], |thread| {
            read(thread, 0);
            read(thread, 1);
        });
    }

    #[test]
    fn loom_flushes_of_one_bucket_lose_no_link() {
        explore(true, [|thread| update(thread, 0), |thread| update(thread, 1)], |thread| read(thread, 0));
    }

    #[test]
    #[should_panic]
    fn loom_without_the_fence_a_scan_says_too_much() {
        explore(false, [|thread| _ = thread.link(0), |thread| _ = thread.link(1)], |thread| read(thread, 0));
    }
}
