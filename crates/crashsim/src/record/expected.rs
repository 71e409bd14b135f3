//! What the next execution of a recovery will read first, because the one before read it.

use std::sync::atomic::{AtomicU32, Ordering};

/// Most decisions that are kept from one execution to the next.
const EXPECTED: usize = 128;

/// Words that the recovery under way will read again, and in which order, because its decisions on them are those of the
/// execution before: they hold their values already, and are flagged as undecided only so that the order is checked.
#[derive(Debug)]
pub(super) struct Expected {
    pub(super) words: [AtomicU32; EXPECTED],
    /// How many of them are in force, and how many have been read.
    pub(super) len: AtomicU32,
    pub(super) met: AtomicU32,
}

impl Default for Expected {
    fn default() -> Self {
        Expected { words: std::array::from_fn(|_| AtomicU32::new(0)), len: AtomicU32::new(0), met: AtomicU32::new(0) }
    }
}

impl Expected {
    /// Takes note that a word is read: `Some(true)` if it is the one expected, `None` if none is.
    #[inline(always)]
    pub(super) fn meet(&self, word: u32) -> Option<bool> {
        let met = self.met.load(Ordering::Relaxed);
        if met == self.len.load(Ordering::Relaxed) {
            return None;
        }
        let is_next = self.words[met as usize].load(Ordering::Relaxed) == word;
        self.met.store(met + u32::from(is_next), Ordering::Relaxed);
        Some(is_next)
    }

    /// Whether all of them have been read.
    pub(super) fn are_met(&self) -> bool {
        self.met.load(Ordering::Relaxed) == self.len.load(Ordering::Relaxed)
    }

    pub(super) fn clear(&self) {
        self.len.store(0, Ordering::Relaxed);
        self.met.store(0, Ordering::Relaxed);
    }

    /// False if there is no room.
    pub(super) fn push(&self, word: u32) -> bool {
        let len = self.len.load(Ordering::Relaxed);
        let Some(place) = self.words.get(len as usize) else { return false };
        place.store(word, Ordering::Relaxed);
        self.len.store(len + 1, Ordering::Relaxed);
        true
    }
}
