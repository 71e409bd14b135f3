//! What the allocator keeps in the pool.
//!
//! ```text
//! heap_off ┬ zone 0 ┬ chunk 0: the zone's table, one descriptor word a chunk (its own first)
//!          │        ├ chunk 1 ┐
//!          │        ├ chunk 2 │ an extent: head descriptor `Extent{owner, len}`, the words of its other chunks stay free
//!          │        ├ chunk 3 ┘
//!          │        ├ chunk 4   a slab: descriptor `Slab{owner, lines}`; bitmap lines, then the blocks
//!          │        └ …         as many chunks as a table chunk has words
//!          └ zone 1 …
//! ```
//!
//! A descriptor is one word, so that allocating or freeing an extent is one 8-byte store. A lane is one line that holds
//! the redo intent of an activation that also sets a link.

use crate::offset::Off;
use crate::persistent;
use crate::word::{Bits, Word};

/// Index of the root slot that owns an extent or a slab.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Owner(pub u16);

/// The state of a chunk, as one word: `state` in bits 0..4, `owner` in bits 4..20, `len` in bits 20..52; the rest zero.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Descriptor(u64);

/// What a [`Descriptor`] says.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Use {
    /// Nobody's, or a chunk of an extent that is not its first.
    Free,
    /// The first of `chunks` chunks that belong to `owner`.
    Extent { owner: Owner, chunks: u32, role: Role },
    /// A chunk of blocks of `lines` lines each, for `owner`.
    Slab { owner: Owner, lines: u32 },
    /// Nothing that this version writes.
    Unknown,
}

/// What an owner has an extent for. Whatever lies in an extent of data, it is never taken for a log.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Role {
    /// The owner's own.
    Data,
    /// A segment of its [session logs](crate::session_log).
    Log,
}

const FREE: u64 = 0;
const EXTENT: u64 = 1;
const SLAB: u64 = 2;
const LOG: u64 = 3;

impl Descriptor {
    /// Packs a use.
    ///
    /// # Panics
    /// For [`Use::Unknown`], which cannot be written.
    pub(crate) const fn new(what: Use) -> Self {
        match what {
            Use::Free => Descriptor(FREE),
            Use::Extent { owner, chunks, role: Role::Data } => pack_word(EXTENT, owner, chunks),
            Use::Extent { owner, chunks, role: Role::Log } => pack_word(LOG, owner, chunks),
            Use::Slab { owner, lines } => pack_word(SLAB, owner, lines),
            Use::Unknown => panic!("an unknown use cannot be written"),
        }
    }

    /// What the word says; total.
    pub(crate) const fn decode(self) -> Use {
        let owner = Owner((self.0 >> 4) as u16);
        let len = (self.0 >> 20) as u32;
        match self.0 & 0xF {
            FREE if self.0 == 0 => Use::Free,
            EXTENT if self.0 >> 52 == 0 && len > 0 => Use::Extent { owner, chunks: len, role: Role::Data },
            LOG if self.0 >> 52 == 0 && len > 0 => Use::Extent { owner, chunks: len, role: Role::Log },
            SLAB if self.0 >> 52 == 0 && len > 0 => Use::Slab { owner, lines: len },
            _ => Use::Unknown,
        }
    }
}

const fn pack_word(state: u64, owner: Owner, len: u32) -> Descriptor {
    Descriptor(state | (owner.0 as u64) << 4 | (len as u64) << 20)
}

impl Bits for Descriptor {
    fn to_bits(self) -> u64 {
        self.0
    }
    fn from_bits(bits: u64) -> Self {
        Descriptor(bits)
    }
}

persistent! {
    /// One line: what an activation in flight is about to do. Valid if `seal` says so.
    pub(crate) struct Lane: align(64) {
        /// Word 0, written last: [`Lane::seal_of`] the other words, or 0 if there is no intent.
        pub(crate) seal: Word,
        /// Word 1: offset of the link to set.
        pub(crate) link: Word<Off<Word>>,
        /// Word 2: its new value.
        pub(crate) link_value: Word,
        /// Word 3: offset of the descriptor or bitmap word.
        pub(crate) target: Word<Off<Word>>,
        /// Word 4: what holds there once the link has its new value.
        pub(crate) effect: Word<Effect>,
        /// Word 5: what holds there until then.
        pub(crate) otherwise: Word<Effect>,
        /// Words 6 and 7, zero: the room of a line.
        pub(crate) reserved: [Word; 2],
    }
}

/// Bytes of a lane, with the line behind it kept free so that neighbours do not share a prefetched pair.
pub(crate) const LANE_STRIDE: u64 = 128;

const _: () = assert!(size_of::<Lane>() == 64 && LANE_STRIDE as usize >= size_of::<Lane>());

impl Lane {
    /// The seal of an intent: never zero, and bound to each of its words by a checksum, so that a line that was torn
    /// word by word does not pass.
    pub(crate) fn seal_of(words: [u64; 5]) -> u64 {
        let mut crc = 0;
        for word in words {
            crc = crc32c::crc32c_append(crc, &word.to_le_bytes());
        }
        0x1_0000_0000 | u64::from(crc)
    }
}

/// What an intent does to its target word.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Effect {
    /// Store a descriptor.
    Describe(Descriptor),
    /// Set a bit of a bitmap word.
    Set(u32),
    /// Clear a bit of a bitmap word.
    Clear(u32),
}

const EFFECT_SHIFT: u32 = 60;

impl Effect {
    /// The target's new value, from its present one.
    pub(crate) fn apply(self, word: u64) -> u64 {
        match self {
            Effect::Describe(descriptor) => descriptor.to_bits(),
            Effect::Set(bit) => word | 1 << bit,
            Effect::Clear(bit) => word & !(1 << bit),
        }
    }
}

impl Bits for Effect {
    fn to_bits(self) -> u64 {
        match self {
            Effect::Describe(descriptor) => descriptor.to_bits(),
            Effect::Set(bit) => 1 << EFFECT_SHIFT | u64::from(bit),
            Effect::Clear(bit) => 2 << EFFECT_SHIFT | u64::from(bit),
        }
    }

    fn from_bits(bits: u64) -> Self {
        let bit = (bits & 63) as u32;
        match bits >> EFFECT_SHIFT {
            1 => Effect::Set(bit),
            2 => Effect::Clear(bit),
            _ => Effect::Describe(Descriptor(bits)),
        }
    }
}

/// Where things lie in the heap: all arithmetic on chunks, zones and slabs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Heap {
    /// Bytes of a chunk, a power of two from 4 KiB to 2 MiB.
    pub chunk: u64,
    /// How many lanes there are.
    pub lanes: u32,
    /// Where the lanes lie.
    pub lanes_off: u64,
    /// Where the first chunk lies, a multiple of `chunk`.
    pub heap_off: u64,
}

impl Heap {
    /// Chunks described by one table chunk, itself included.
    pub(crate) const fn zone_chunks(self) -> u64 {
        self.chunk / 8
    }

    /// Whole chunks in a pool of `len` bytes.
    pub(crate) const fn chunks(self, len: u64) -> u64 {
        len.saturating_sub(self.heap_off) / self.chunk
    }

    pub(crate) const fn is_table(self, chunk: u64) -> bool {
        chunk.is_multiple_of(self.zone_chunks())
    }

    /// Offset of the first byte of a chunk.
    pub(crate) const fn chunk_off(self, chunk: u64) -> u64 {
        self.heap_off + chunk * self.chunk
    }

    /// The chunk that a byte lies in; `None` before the heap.
    pub(crate) fn chunk_of(self, off: u64) -> Option<u64> {
        off.checked_sub(self.heap_off).map(|o| o / self.chunk)
    }

    /// Where a chunk's descriptor lies.
    pub(crate) const fn descriptor(self, chunk: u64) -> Off<Word<Descriptor>> {
        let zone = chunk / self.zone_chunks();
        Off::new(self.chunk_off(zone * self.zone_chunks()) + chunk % self.zone_chunks() * 8)
    }

    /// Where a lane lies.
    pub(crate) const fn lane(self, lane: u32) -> Off<Lane> {
        Off::new(self.lanes_off + lane as u64 * LANE_STRIDE)
    }

    /// The largest block, in lines: a quarter of a chunk.
    pub(crate) const fn max_block_lines(self) -> u32 {
        (self.chunk / 4 / 64) as u32
    }

    /// How many blocks of `lines` lines a slab holds: as many as fit behind their bitmap.
    pub(crate) const fn blocks(self, lines: u32) -> u32 {
        let all = (self.chunk / 64) as u32;
        let mut blocks = all / lines;
        while bitmap_lines(blocks) + blocks * lines > all {
            blocks -= 1;
        }
        blocks
    }

    /// Offset of a block.
    pub(crate) const fn block_off(self, chunk: u64, lines: u32, index: u32) -> u64 {
        self.chunk_off(chunk) + (bitmap_lines(self.blocks(lines)) + index * lines) as u64 * 64
    }

    /// The index of the block that starts at `off`; `None` if none does.
    pub(crate) fn block_index(self, chunk: u64, lines: u32, off: u64) -> Option<u32> {
        let from = off.checked_sub(self.block_off(chunk, lines, 0))?;
        let index = from / (u64::from(lines) * 64);
        (from % (u64::from(lines) * 64) == 0 && index < u64::from(self.blocks(lines))).then_some(index as u32)
    }

    /// The bitmap word of a block and the bit in it.
    pub(crate) const fn bitmap(self, chunk: u64, index: u32) -> (Off<Word>, u32) {
        (Off::new(self.chunk_off(chunk) + (index / 64) as u64 * 8), index % 64)
    }
}

/// Lines of the bitmap of that many blocks.
pub(crate) const fn bitmap_lines(blocks: u32) -> u32 {
    blocks.div_ceil(512)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_format_is_frozen() {
        assert_eq!(Descriptor::new(Use::Free).to_bits(), 0);
        assert_eq!(
            Descriptor::new(Use::Extent { owner: Owner(0xABCD), chunks: 0x1234_5678, role: Role::Data }).to_bits(),
            0x0001_2345_678A_BCD1
        );
        assert_eq!(
            Descriptor::new(Use::Extent { owner: Owner(0xABCD), chunks: 1, role: Role::Log }).to_bits(),
            0x0000_0000_001A_BCD3
        );
        assert_eq!(Descriptor::new(Use::Slab { owner: Owner(7), lines: 3 }).to_bits(), 0x0000_0000_0030_0072);
        assert_eq!(std::mem::offset_of!(Lane, seal), 0);
        assert_eq!(std::mem::offset_of!(Lane, link), 8);
        assert_eq!(std::mem::offset_of!(Lane, link_value), 16);
        assert_eq!(std::mem::offset_of!(Lane, target), 24);
        assert_eq!(std::mem::offset_of!(Lane, effect), 32);
        assert_eq!(std::mem::offset_of!(Lane, otherwise), 40);
        assert_eq!(size_of::<Lane>(), 64);
        assert_eq!(LANE_STRIDE, 128);
        assert_eq!(
            Lane::seal_of([1, 2, 3, 4, 5]),
            0x1_0000_0000 | u64::from(crc32c::crc32c(&[1u64, 2, 3, 4, 5].map(u64::to_le_bytes).concat()))
        );
    }

    #[test]
    fn words_decode_to_what_was_packed_and_everything_else_is_unknown() {
        for what in [
            Use::Free,
            Use::Extent { owner: Owner(u16::MAX), chunks: u32::MAX, role: Role::Data },
            Use::Extent { owner: Owner(0), chunks: 7, role: Role::Log },
            Use::Slab { owner: Owner(0), lines: 1 },
        ] {
            assert_eq!(Descriptor::from_bits(Descriptor::new(what).to_bits()).decode(), what);
        }
        for bits in [3, 15, 1, 2, 0x10, u64::MAX, 1 << 60 | 1 << 20 | 1] {
            assert_eq!(Descriptor::from_bits(bits).decode(), Use::Unknown, "{bits:#x}");
        }
        for effect in [
            Effect::Set(63),
            Effect::Clear(0),
            Effect::Describe(Descriptor::new(Use::Slab { owner: Owner(1), lines: 9 })),
        ] {
            assert_eq!(Effect::from_bits(effect.to_bits()), effect);
        }
    }

    #[test]
    fn blocks_of_every_class_fit_and_do_not_overlap() {
        for chunk in [4096, 65536, 2 << 20] {
            let heap = Heap { chunk, lanes: 1, lanes_off: 64, heap_off: chunk };
            for lines in 1..=heap.max_block_lines().min(300) {
                let blocks = heap.blocks(lines);
                assert!(blocks >= 3, "chunk {chunk} lines {lines}");
                let end = heap.block_off(5, lines, blocks - 1) + u64::from(lines) * 64;
                assert!(end <= heap.chunk_off(6));
                let (word, _) = heap.bitmap(5, blocks - 1);
                assert!(word.get() + 8 <= heap.block_off(5, lines, 0));
                for index in [0, 1, blocks - 1] {
                    let off = heap.block_off(5, lines, index);
                    assert_eq!(heap.block_index(5, lines, off), Some(index));
                    assert_eq!(heap.block_index(5, lines, off + 8), None);
                    assert_eq!(heap.chunk_of(off), Some(5));
                }
                assert_eq!(heap.block_index(5, lines, heap.chunk_off(5)), None);
            }
        }
    }
}
