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

impl InPlace {
    /// Tells readers that the value of a key is about to be replaced. The caller holds the range's lock, and stores the value with
    /// release ordering: who sees the value sees this, or what came later.
    #[inline(always)]
    pub(crate) fn begin<M: Medium>(&self, m: M, hash: u64) {
        let began = m.shared_load(&self.0, Relaxed) >> COUNT;
        // Mirror: `is_in_flight` and `is_still`.
        m.shared_store(&self.0, began.wrapping_add(1) << COUNT | of_hash(hash), Release);
    }

    /// Tells readers that the value is durable.
    #[inline(always)]
    pub(crate) fn end<M: Medium>(&self, m: M) {
        let began = m.shared_load(&self.0, Relaxed) >> COUNT;
        m.shared_store(&self.0, began << COUNT, Release);
    }

    /// Whether the value of a key may be on its way to memory. If not, a value that the caller has loaded before is durable.
    #[inline(always)]
    pub(crate) fn is_in_flight<M: Medium>(&self, m: M, hash: u64) -> bool {
        // Mirror: `begin`. If the caller's load saw the value, then this load sees that it is in flight, or that it no longer is.
        std::sync::atomic::fence(Acquire);
        m.shared_load(&self.0, Relaxed) & ((1 << COUNT) - 1) == of_hash(hash)
    }

    /// The word, for [`is_still`](Self::is_still). The caller holds the range's lock, so nothing is in flight.
    pub(crate) fn now<M: Medium>(&self, m: M) -> u64 {
        m.shared_load(&self.0, Relaxed)
    }

    /// Whether no update has begun since the word was `then`. If none has, all values that the caller has loaded since are of one moment.
    pub(crate) fn is_still<M: Medium>(&self, m: M, then: u64) -> bool {
        // Mirror: `begin`.
        std::sync::atomic::fence(Acquire);
        m.shared_load(&self.0, Relaxed) == then
    }
}

#[cfg(test)]
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
