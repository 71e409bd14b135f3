//! Grace periods: when persistent memory that was unlinked may be reused.
//!
//! Each slot counts the operations that it has begun and ended (epoch-based reclamation as in section 5.2 of David et al.,
//! *Log-Free Concurrent Data Structures*, ATC 2018): odd while one is open. A grace period notes the counts of the
//! operations that are open when it begins, and is over once all of them have changed. It costs operations nothing, since
//! the count is the word by which they announce themselves anyway; the fence is on the side that begins the period.
//!
//! An operation that begins later cannot reach what was unlinked before: either its announcement comes before the barrier
//! of [`Op::grace`](crate::Op::grace), and it is waited for; or its first load comes after, and it sees the unlinked state.

use std::sync::atomic::{Ordering, fence};

use crate::mapping::Mapping;
use crate::medium::Medium;
use crate::membarrier;
use crate::session::Op;

/// The operations that were open at a moment, without the one that asked. What nothing leads to since before that moment
/// may be reused by that session once [`is_over`](Grace::is_over).
#[derive(Clone, Debug, Default)]
#[must_use = "memory may be reused once the grace period is over"]
pub struct Grace {
    open: Vec<(u32, u64)>,
}

impl<M: Medium> Op<'_, M> {
    /// Begins a grace period: what nothing leads to any more may be reused once it is over. See [`Grace`].
    pub fn grace(&self) -> Grace {
        Grace::begin(self.mapping(), self.slot(), self.is_asymmetric())
    }
}

impl Grace {
    fn begin<M: Medium>(mapping: &Mapping<M>, own: u32, asymmetric: bool) -> Grace {
        // Mirror: `gate::take_slot`, `gate::awake`.
        fence(Ordering::SeqCst);
        if !mapping.is_any_awake(own) {
            return Grace::default();
        }
        let others = || mapping.taken().filter(|slot| *slot != own);
        // Mirror: the light fence of `gate::try_enter`.
        membarrier::heavy(asymmetric);
        let m = mapping.medium();
        let count = |slot: u32| m.shared_load(&mapping.slot(slot).active, Ordering::Acquire);
        Grace { open: others().map(|slot| (slot, count(slot))).filter(|(_, count)| count & 1 == 1).collect() }
    }

    /// Whether all of those operations have ended. A load for each that had not when last asked.
    pub fn is_over<M: Medium>(&mut self, mapping: &Mapping<M>) -> bool {
        let m = mapping.medium();
        self.open.retain(|(slot, count)| m.shared_load(&mapping.slot(*slot).active, Ordering::Acquire) == *count);
        self.open.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use crate::{Hardware, Mapping};

    #[test]
    fn a_grace_period_waits_for_the_operations_that_were_open_and_for_no_others() {
        let mapping = Mapping::heap(4096, Hardware::PAGE_CACHE);
        let [mut a, mut b, mut c] = [(); 3].map(|()| mapping.session().unwrap());
        let op = a.enter().unwrap();
        assert!(op.grace().is_over(&mapping), "the own operation does not count");
        let early = b.enter().unwrap();
        let mut grace = op.grace();
        let late = c.enter().unwrap();
        assert!(!grace.is_over(&mapping));
        drop(early);
        assert!(grace.is_over(&mapping), "the one that began later is not waited for");
        drop(late);
        let mut grace = op.grace();
        assert!(grace.is_over(&mapping));
    }

    #[test]
    fn every_slot_is_waited_for() {
        let mapping = Mapping::heap(4096, Hardware::PAGE_CACHE);
        let mut sessions: Vec<_> = (0..130).map(|_| mapping.session().unwrap()).collect();
        assert!(mapping.taken().eq(0..130));
        let mut own = sessions.pop().unwrap();
        for slot in [0, 1, 62, 63, 64, 127, 128] {
            let open = sessions[slot].enter().unwrap();
            let mut grace = own.enter().unwrap().grace();
            assert!(!grace.is_over(&mapping), "slot {slot}");
            drop(open);
            assert!(grace.is_over(&mapping), "slot {slot}");
        }
        sessions.remove(64);
        assert!(mapping.taken().eq((0..64).chain(65..130)));
    }

    #[test]
    fn a_new_operation_in_the_same_slot_is_not_taken_for_the_old_one() {
        let mapping = Mapping::heap(4096, Hardware::PAGE_CACHE);
        let [mut a, mut b] = [(); 2].map(|()| mapping.session().unwrap());
        let op = a.enter().unwrap();
        let old = b.enter().unwrap();
        let mut grace = op.grace();
        drop(old);
        let again = b.enter().unwrap();
        assert!(grace.is_over(&mapping));
        drop(again);
        let mut grace = op.grace();
        drop(b);
        let mut b = mapping.session().unwrap();
        let _inside = b.enter().unwrap();
        assert!(grace.is_over(&mapping), "another session that got the slot");
    }

    #[test]
    fn a_generation_is_smaller_while_nobody_else_is_at_work() {
        let mapping = Mapping::heap(4096, Hardware::PAGE_CACHE);
        let [mut a, mut b] = [(); 2].map(|()| mapping.session().unwrap());
        let op = a.enter().unwrap();
        let enough = |objects, added| op.is_generation(objects, added, 256);
        assert!(enough(64, 1) && enough(256, 1) && enough(130, 10) && op.is_generation(2, 1, 2));
        assert!(!enough(63, 1) && !enough(65, 1) && !enough(100, 10));
        let other = b.enter().unwrap();
        assert!(!enough(64, 1) && !enough(130, 10) && enough(256, 1) && op.is_generation(2, 1, 2));

        drop(other);
        mapping.limit_generations(3);
        assert!(!enough(2, 1) && enough(3, 1) && op.is_generation(1, 1, 1));
    }
}
