//! What a structure keeps for each session.

use std::fmt;
use std::sync::OnceLock;

use crossbeam_utils::CachePadded;

use crate::mapping::MAX_SESSIONS;

/// Sessions whose state is made together.
const TOGETHER: usize = 8;
const BLOCKS: usize = MAX_SESSIONS as usize / TOGETHER;

/// Volatile state of each session, by its slot: on cache lines of its own, and made when the session, or one of its neighbours, first
/// asks for it. A new one takes 1 KiB.
pub struct PerSession<T> {
    blocks: [OnceLock<Box<[CachePadded<T>; TOGETHER]>>; BLOCKS],
    make: fn(u32) -> T,
}

impl<T> PerSession<T> {
    /// Nothing yet. `make` is given the slot of a session.
    pub const fn new(make: fn(u32) -> T) -> Self {
        PerSession { blocks: [const { OnceLock::new() }; BLOCKS], make }
    }

    /// The state of the session with a slot (see [`Op::slot`](crate::Op::slot)).
    ///
    /// # Panics
    /// `slot` is not below [`MAX_SESSIONS`].
    #[inline(always)]
    pub fn of(&self, slot: u32) -> &T {
        let (block, within) = (slot as usize / TOGETHER, slot as usize % TOGETHER);
        match self.blocks[block].get() {
            Some(block) => &block[within],
            None => self.first(slot),
        }
    }

    #[cold]
    fn first(&self, slot: u32) -> &T {
        let (block, within) = (slot as usize / TOGETHER, slot as usize % TOGETHER);
        let make = |within| CachePadded::new((self.make)((block * TOGETHER + within) as u32));
        &self.blocks[block].get_or_init(|| Box::new(std::array::from_fn(make)))[within]
    }

    /// All states that were made.
    pub fn iter(&self) -> impl Iterator<Item = &T> {
        self.blocks.iter().filter_map(OnceLock::get).flat_map(|block| block.iter().map(|state| &**state))
    }
}

impl<T: Default> Default for PerSession<T> {
    fn default() -> Self {
        PerSession::new(|_| T::default())
    }
}

impl<T: fmt::Debug> fmt::Debug for PerSession<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.iter()).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

    #[test]
    fn every_slot_has_a_state_of_its_own() {
        let states = PerSession::new(AtomicU32::new);
        assert_eq!(states.iter().count(), 0);
        for slot in (0..MAX_SESSIONS).rev() {
            assert_eq!(states.of(slot).fetch_add(1000, Relaxed), slot, "another one's, or made twice");
        }
        assert!(states.iter().map(|state| state.load(Relaxed)).eq((0..MAX_SESSIONS).map(|slot| slot + 1000)));
    }

    #[test]
    fn states_are_made_for_some_neighbours_and_on_lines_of_their_own() {
        let states = PerSession::<u8>::default();
        let addresses: Vec<usize> = (8..16).map(|slot| std::ptr::from_ref(states.of(slot)).addr()).collect();
        assert_eq!(states.iter().count(), TOGETHER);
        assert!(addresses.windows(2).all(|two| two[1] - two[0] >= 64));
    }

    #[test]
    #[should_panic(expected = "index out of bounds")]
    fn a_slot_of_no_session_is_refused() {
        PerSession::<u8>::default().of(MAX_SESSIONS);
    }
}
