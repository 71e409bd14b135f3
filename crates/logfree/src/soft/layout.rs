//! What lies in persistent memory: members, and nothing that links them.
//!
//! # Member (one line)
//! | word | what |
//! |---|---|
//! | 0 | [`State`]: free, or live with its value in word 2 or 3 |
//! | 1 | key |
//! | 2, 3 | value, and room for the next |
//! | 4 to 7 | unused, arbitrary |
//!
//! State, key and value must share a line: the state decides which of the words before it count, and reaches memory after
//! them only because stores to one line reach memory in order.

use durix_pmem::{Bits, Word, persistent};

/// Version of the layout of structures with links in volatile memory.
pub const LAYOUT_VERSION: u32 = 1;

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

/// Word 0 of a member.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct State(u64);

impl State {
    /// Nothing is here.
    pub(super) const FREE: State = State(0);

    /// A key, with its value in one of two words (0 or 1).
    #[inline(always)]
    pub(super) const fn live(value: usize) -> State {
        State(1 | (value as u64 & 1) << 1)
    }

    /// Which word holds the value of the key; `None` if there is no key.
    ///
    /// # Errors
    /// The bits, if they are none that are ever written.
    pub(super) const fn decode(self) -> Result<Option<usize>, u64> {
        match self.0 {
            0 => Ok(None),
            1 => Ok(Some(0)),
            3 => Ok(Some(1)),
            bits => Err(bits),
        }
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
        assert_eq!((LAYOUT_VERSION, size_of::<Member>()), (1, 64));
        assert_eq!([offset_of!(Member, state), offset_of!(Member, key), offset_of!(Member, values)], [0, 8, 16]);
        assert_eq!([State::FREE, State::live(0), State::live(1)].map(Bits::to_bits), [0, 1, 3]);
        for bits in 0..100 {
            let expected = match bits {
                0 => Ok(None),
                1 => Ok(Some(0)),
                3 => Ok(Some(1)),
                other => Err(other),
            };
            assert_eq!(State::from_bits(bits).decode(), expected);
        }
    }
}
