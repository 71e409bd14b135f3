//! Values that are replaced in their slots (section 3.4 of the paper), and how readers are kept from values that are not durable yet.
//!
//! A value is replaced in place under the range's lock, if its key is in a leaf and in no front, nobody merges the range, and no other
//! range's readers can still reach the leaf. Then no record of the key counts, and none that a replay could bring back.
//!
//! | edge | kept by | a crash between leaves | recovery |
//! |---|---|---|---|
//! | DP-V1 value < readers return it, and the update returns | flush+fence | the old value or the new one | the update in flight has happened or not |
//! | DP-V2 values of a leaf < its first use after a restart | flush+fence | the same again | the same again |
//!
//! DP-V2 is for the death of a process: a value that is seen in the caches may have been on its way.

use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use durix_pmem::Medium;

/// The word of a range that says which value is being replaced in place, and how many have been.
///
/// | bits | what |
/// |---|---|
/// | 0 | an update is in flight |
/// | 1–24 | low bits of the hash of its key |
/// | 25–63 | updates that have begun |
#[derive(Debug, Default)]
pub(crate) struct InPlace(AtomicU64);

const IN_FLIGHT: u64 = 1;
const HASH_BITS: u32 = 24;
const COUNT: u32 = HASH_BITS + 1;

/// The word of an update in flight, but for the count.
#[inline(always)]
fn of_hash(hash: u64) -> u64 {
    (hash & ((1 << HASH_BITS) - 1)) << 1 | IN_FLIGHT
}

/// The word as its users reach it: through a medium, or loom's. The functions below are written over it, so that loom explores the very
/// code that runs.
pub(crate) trait Cell {
    /// Relaxed.
    fn load(&self) -> u64;
    /// With release ordering.
    fn store(&self, value: u64);
    /// No later load is older than those before.
    fn acquire(&self);
}

struct Shared<'a, M>(&'a AtomicU64, M);

impl<M: Medium> Cell for Shared<'_, M> {
    #[inline(always)]
    fn load(&self) -> u64 {
        self.1.shared_load(self.0, Relaxed)
    }
    #[inline(always)]
    fn store(&self, value: u64) {
        self.1.shared_store(self.0, value, Release);
    }
    #[inline(always)]
    fn acquire(&self) {
        std::sync::atomic::fence(Acquire);
    }
}

#[inline(always)]
fn begin(cell: &impl Cell, hash: u64) {
    let began = cell.load() >> COUNT;
    // Mirror: `is_in_flight` and `is_still`.
    cell.store(began.wrapping_add(1) << COUNT | of_hash(hash));
}

#[inline(always)]
fn end(cell: &impl Cell) {
    let began = cell.load() >> COUNT;
    cell.store(began << COUNT);
}

#[inline(always)]
fn is_in_flight(cell: &impl Cell, hash: u64) -> bool {
    // Mirror: `begin`. If the caller's load saw the value, then this load sees that it is in flight, or that it no longer is.
    cell.acquire();
    cell.load() & ((1 << COUNT) - 1) == of_hash(hash)
}

#[inline(always)]
fn is_still(cell: &impl Cell, then: u64) -> bool {
    // Mirror: `begin`.
    cell.acquire();
    cell.load() == then
}

impl InPlace {
    /// Tells readers that the value of a key is about to be replaced. The caller holds the range's lock, and stores the value with
    /// release ordering: who sees the value sees this, or what came later.
    #[inline(always)]
    pub(crate) fn begin<M: Medium>(&self, m: M, hash: u64) {
        begin(&Shared(&self.0, m), hash);
    }

    /// Tells readers that the value is durable.
    #[inline(always)]
    pub(crate) fn end<M: Medium>(&self, m: M) {
        end(&Shared(&self.0, m));
    }

    /// Whether the value of a key may be on its way to memory. If not, a value that the caller has loaded before is durable.
    #[inline(always)]
    pub(crate) fn is_in_flight<M: Medium>(&self, m: M, hash: u64) -> bool {
        is_in_flight(&Shared(&self.0, m), hash)
    }

    /// The word, for [`is_still`](Self::is_still). The caller holds the range's lock, so nothing is in flight.
    pub(crate) fn now<M: Medium>(&self, m: M) -> u64 {
        m.shared_load(&self.0, Relaxed)
    }

    /// Whether no update has begun since the word was `then`. If none has, all values that the caller has loaded since are of one moment.
    pub(crate) fn is_still<M: Medium>(&self, m: M, then: u64) -> bool {
        is_still(&Shared(&self.0, m), then)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use durix_pmem::Hardware;

    #[test]
    fn readers_learn_which_key_is_in_flight_and_that_something_was() {
        let (m, word) = (Hardware::PAGE_CACHE, InPlace::default());
        let before = word.now(m);
        assert!(word.is_still(m, before) && !word.is_in_flight(m, 0));
        for hash in [0, 1, 0xff_ffff, u64::MAX, 0x1234_5678_9abc_def0] {
            word.begin(m, hash);
            assert!(word.is_in_flight(m, hash) && !word.is_in_flight(m, hash ^ 1));
            assert!(word.is_in_flight(m, hash ^ 1 << 60), "other bits of the hash do not count");
            word.end(m);
            assert!(!word.is_in_flight(m, hash) && !word.is_still(m, before));
        }
        assert_eq!(word.now(m), 5 << COUNT);
    }
}

#[cfg(all(test, loom))]
mod loom_tests {
    use super::{Cell, begin, end, is_in_flight, is_still};
    use loom::sync::Arc;
    use loom::sync::atomic::Ordering::{Acquire, Relaxed, Release};
    use loom::sync::atomic::{AtomicU64, fence};

    /// The word of a range.
    struct Word(AtomicU64);

    impl Cell for Word {
        fn load(&self) -> u64 {
            self.0.load(Relaxed)
        }
        fn store(&self, value: u64) {
            self.0.store(value, Release);
        }
        fn acquire(&self) {
            fence(Acquire);
        }
    }

    /// Two slots of a range. What is durable of them is what was stored there before the last fence.
    struct Range {
        word: Word,
        values: [AtomicU64; 2],
        durable: [AtomicU64; 2],
    }

    impl Range {
        fn new() -> Arc<Self> {
            let zero = || [(); 2].map(|()| AtomicU64::new(0));
            Arc::new(Range { word: Word(AtomicU64::new(0)), values: zero(), durable: zero() })
        }

        /// As `update::replace` does it.
        fn replace(&self, key: usize, value: u64, says: bool) {
            if says {
                begin(&self.word, key as u64);
            }
            self.values[key].store(value, Release);
            self.durable[key].store(value, Relaxed); // the fence
            if says {
                end(&self.word);
            }
        }
    }

    fn readers_return_what_is_durable(says: bool) {
        loom::model(move || {
            let range = Range::new();
            let writer = {
                let range = Arc::clone(&range);
                loom::thread::spawn(move || {
                    range.replace(0, 1, says);
                    range.replace(1, 1, says);
                    range.replace(0, 2, says);
                })
            };
            let value = range.values[0].load(Relaxed);
            if !is_in_flight(&range.word, 0) {
                // What was durable when the word said so.
                fence(Acquire);
                assert!(range.durable[0].load(Relaxed) >= value);
            }
            writer.join().unwrap();
        });
    }

    #[test]
    fn loom_readers_return_what_is_durable() {
        readers_return_what_is_durable(true);
    }

    #[test]
    #[should_panic]
    fn loom_without_the_word_readers_return_what_is_not_durable() {
        readers_return_what_is_durable(false);
    }

    fn values_of_a_scan_are_of_one_moment(looks: bool) {
        loom::model(move || {
            let range = Range::new();
            let writer = {
                let range = Arc::clone(&range);
                loom::thread::spawn(move || {
                    range.replace(0, 1, true);
                    range.replace(1, 1, true);
                })
            };
            // The lock is what makes `then` a word without an update in flight.
            let then = range.word.0.load(Acquire);
            let second = range.values[1].load(Relaxed);
            let first = range.values[0].load(Relaxed);
            if then & 1 == 0 && (!looks || is_still(&range.word, then)) {
                // The first value is replaced first; and what had begun before `then` is seen.
                assert!(first >= second);
                let began = then >> super::COUNT;
                assert_eq!((first, second), (u64::from(began >= 1), u64::from(began >= 2)));
            }
            writer.join().unwrap();
        });
    }

    #[test]
    fn loom_values_of_a_scan_are_of_one_moment() {
        values_of_a_scan_are_of_one_moment(true);
    }

    #[test]
    #[should_panic]
    fn loom_without_a_second_look_values_of_a_scan_are_of_several_moments() {
        values_of_a_scan_are_of_one_moment(false);
    }
}
