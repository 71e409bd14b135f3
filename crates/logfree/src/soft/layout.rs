//! What lies in persistent memory: members, and nothing that links them.
//!
//! # Member (one line)
//! | word | what |
//! |---|---|
//! | 0 | [`State`]: free, or live with its value in word 2 or 3; and a checksum of where the member lies, the key, and that value |
//! | 1 | key |
//! | 2, 3 | value, and room for the next |
//! | 4 to 7 | unused, arbitrary |
//!
//! State, key and value must share a line: the state decides which of the words before it count, and reaches memory after
//! them only because stores to one line reach memory in order. The checksum is in the word that decides, so it changes with it.
//! A free line has one too, of where it lies: no line is all zero.

use durix_pmem::{Bits, Checksum, Version, Word, layout, persistent};

/// Version of the layout of hash tables with links in volatile memory.
pub const LAYOUT_VERSION: Version = Version::of(1, LAYOUT);
/// The same of lists and skip lists, which are experimental.
pub const ORDERED_LAYOUT_VERSION: Version = Version::unreleased(LAYOUT);
const LAYOUT: u32 = layout!([Member], MEMBER, WHAT, REVISION);
/// Counts changes of what the words mean: checksums.
const REVISION: u64 = 2;

/// Bytes of a member.
pub(super) const MEMBER: u64 = 64;

persistent! {
    /// A key with its value, or room for one.
    pub(super) struct Member: align(64) {
        /// Decides about the rest.
        pub(super) state: Word<State>,
        /// The key.
        pub(super) key: Word,
        /// The value, and room for the next.
        pub(super) values: [Word; 2],
        /// Not used.
        pub(super) unused: [Word; 4],
    }
}

/// Word 0 of a member: what it is (bits 0 and 1), and 62 bits of a checksum.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct State(u64);

/// The bits that say what a member is.
const WHAT: u64 = 3;

impl State {
    /// Nothing is at an offset.
    #[inline(always)]
    pub(super) const fn free(off: u64) -> State {
        State(Checksum::at(off).pair(0, 0).finish() & !WHAT)
    }

    /// A key is at an offset, with its value in one of two words (0 or 1).
    #[inline(always)]
    pub(super) const fn live(off: u64, key: u64, value: u64, word: usize) -> State {
        let what = 1 | (word as u64 & 1) << 1;
        State(Checksum::at(off).pair(key, what).pair(value, 0).finish() & !WHAT | what)
    }

    /// Which word holds the value of the key of the member at an offset, which has this key and these values; `None` if it is free.
    ///
    /// # Errors
    /// The bits, if they are none that are ever written.
    pub(super) const fn decode(self, off: u64, key: u64, values: [u64; 2]) -> Result<Option<usize>, u64> {
        let (word, expected) = match self.0 & WHAT {
            0 => (None, State::free(off)),
            1 => (Some(0), State::live(off, key, values[0], 0)),
            3 => (Some(1), State::live(off, key, values[1], 1)),
            _ => return Err(self.0),
        };
        if self.0 == expected.0 { Ok(word) } else { Err(self.0) }
    }
}

impl Bits for State {
    #[inline(always)]
    fn to_bits(self) -> u64 {
        self.0
    }
    #[inline(always)]
    fn from_bits(bits: u64) -> Self {
        State(bits)
    }
}

const _: () = {
    assert!(size_of::<Member>() == MEMBER as usize);
    // Same line: the whole protocol rests on it.
    assert!(std::mem::offset_of!(Member, values) + 16 <= 64 && align_of::<Member>() == 64);
};

#[cfg(test)]
mod tests {
    use super::*;
    use std::mem::offset_of;

    #[test]
    fn the_format_is_frozen() {
        assert_eq!(size_of::<Member>(), 64);
        assert_eq!([offset_of!(Member, state), offset_of!(Member, key), offset_of!(Member, values)], [0, 8, 16]);
        let states = [State::free(64), State::live(64, 7, 8, 0), State::live(64, 7, 8, 1)];
        assert_eq!(states.map(|state| state.to_bits() & WHAT), [0, 1, 3]);
        let frozen = [5_998_851_048_935_867_068, 2_809_144_534_763_748_409, 3_856_262_936_067_237_331];
        assert_eq!(states.map(Bits::to_bits), frozen);
    }

    #[test]
    fn a_state_goes_with_its_place_its_key_and_its_value() {
        let [free, first, second] = [State::free(64), State::live(64, 7, 8, 0), State::live(64, 7, 9, 1)];
        assert_eq!(free.decode(64, 1, [2, 3]), Ok(None));
        assert_eq!(first.decode(64, 7, [8, 1]), Ok(Some(0)));
        assert_eq!(second.decode(64, 7, [1, 9]), Ok(Some(1)));
        for state in [free, first, second] {
            assert!(state.decode(128, 7, [8, 9]).is_err(), "elsewhere");
            assert_eq!(state.decode(64, 6, [8, 9]).is_err(), state != free, "another key");
            assert_eq!(state.decode(64, 7, [7, 7]).is_err(), state != free, "another value");
            for bit in 0..64 {
                assert!(State::from_bits(state.to_bits() ^ 1 << bit).decode(64, 7, [8, 9]).is_err(), "{bit}");
            }
        }
        assert_eq!(State::from_bits(0).decode(64, 0, [0, 0]), Err(0));
    }
}
