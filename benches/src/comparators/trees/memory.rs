//! Where the comparators' nodes come from: cut from a mapping, one after the other, line-aligned. The allocator is volatile, which is in
//! their favour.

use std::ops::Range;

/// Memory that is not yet in use. It was zero when the mapping was made.
#[derive(Debug)]
pub struct Memory(Range<u64>);

impl Memory {
    /// All of a mapping of `len` bytes. Offset 0 is nobody's: it means "none".
    pub fn new(len: u64) -> Self {
        Memory(64..len)
    }

    /// What a mapping of `len` bytes has left after its first `used` ones: where a tree was recovered.
    pub fn after(used: u64, len: u64) -> Self {
        Memory(used..len)
    }

    /// Cuts a node of `bytes`, a multiple of 64.
    ///
    /// # Panics
    /// Without memory: the figures give each tree enough.
    #[inline]
    pub fn take(&mut self, bytes: u64) -> u64 {
        debug_assert!(bytes.is_multiple_of(64));
        let node = self.0.start;
        assert!(node + bytes <= self.0.end, "a comparator has no memory left");
        self.0.start += bytes;
        node
    }

    /// Bytes that were cut.
    pub fn used(&self) -> u64 {
        self.0.start
    }
}
