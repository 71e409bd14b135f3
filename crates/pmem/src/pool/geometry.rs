//! Where the parts of a pool lie: a function of three numbers, fixed when the pool is created.
//!
//! ```text
//!           0  header            4096 bytes
//!        4096  spare header      128 bytes
//!        4224  lanes             lanes × 128 bytes
//!   roots_off  root entries      indices × 256 bytes
//!   marks_off  closing marks     indices × 32 bytes
//!  spares_off  spare roots       indices × 128 bytes
//!    heap_off  chunks            to the end of the pool, heap_off a multiple of the chunk
//! ```

use crate::error::{Error, Result};
use crate::space::{Heap, Owner};

/// Bytes of the header, at offset zero.
pub const HEADER_SIZE: u64 = 4096;
/// Where the record of the [checkpoint epochs](crate::epoch) lies, in the header's page.
pub const EPOCHS_OFF: u64 = 1024;
/// Where the closing mark of the table of space lies, in the header's page.
pub const SPACE_MARK_OFF: u64 = 256;
/// Where the spare of the header lies: on the page behind it.
pub const SPARE_OFF: u64 = HEADER_SIZE;
/// Bytes of a spare, of the header or of a root entry.
pub const SPARE_SIZE: u64 = 128;
/// Bytes of a lane: the redo intents of one allocating operation.
pub const LANE_SIZE: u64 = 128;
/// Bytes of a root entry.
pub const ROOT_SIZE: u64 = 256;
/// Bytes of a closing mark.
pub const MARK_SIZE: u64 = 32;
/// Smallest chunk in bytes.
pub const MIN_CHUNK: u64 = 4 << 10;
/// Largest chunk in bytes.
pub const MAX_CHUNK: u64 = 2 << 20;
/// Chunk of a pool whose options do not say, in bytes.
pub const DEFAULT_CHUNK: u64 = 64 << 10;
/// Most lanes of a pool.
pub const MAX_LANES: u32 = 1024;
/// Lanes of a pool whose options do not say.
pub const DEFAULT_LANES: u32 = 64;
/// Most indices of a pool: an [`Owner`] has 16 bits.
pub const MAX_INDICES: u32 = u16::MAX as u32;
/// Indices of a pool whose options do not say.
pub const DEFAULT_INDICES: u32 = 256;

/// The three numbers that fix the layout of a pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Geometry {
    /// Unit of space in bytes, a power of two from [`MIN_CHUNK`] to [`MAX_CHUNK`].
    pub chunk: u64,
    /// Number of lanes, 1 to [`MAX_LANES`].
    pub lanes: u32,
    /// Number of root entries, 1 to [`MAX_INDICES`].
    pub indices: u32,
}

impl Default for Geometry {
    fn default() -> Self {
        Geometry { chunk: DEFAULT_CHUNK, lanes: DEFAULT_LANES, indices: DEFAULT_INDICES }
    }
}

impl Geometry {
    /// Offset of the first lane, in bytes.
    pub const fn lanes_off(&self) -> u64 {
        SPARE_OFF + SPARE_SIZE
    }

    /// Offset of the first root entry, in bytes; a multiple of a line.
    pub const fn roots_off(&self) -> u64 {
        self.lanes_off() + self.lanes as u64 * LANE_SIZE
    }

    /// Offset of the root entry of `owner`, in bytes.
    pub const fn root_off(&self, owner: Owner) -> u64 {
        self.roots_off() + owner.0 as u64 * ROOT_SIZE
    }

    /// Offset of the first closing mark, in bytes; a multiple of a line.
    pub const fn marks_off(&self) -> u64 {
        self.roots_off() + self.indices as u64 * ROOT_SIZE
    }

    /// Offset of the closing mark of `owner`, in bytes.
    pub const fn mark_off(&self, owner: Owner) -> u64 {
        self.marks_off() + owner.0 as u64 * MARK_SIZE
    }

    /// Offset of the spare of the first root entry, in bytes; a multiple of a line.
    pub const fn spares_off(&self) -> u64 {
        (self.marks_off() + self.indices as u64 * MARK_SIZE).next_multiple_of(64)
    }

    /// Offset of the spare of the root entry of `owner`, in bytes.
    pub const fn spare_off(&self, owner: Owner) -> u64 {
        self.spares_off() + owner.0 as u64 * SPARE_SIZE
    }

    /// Offset of the first chunk, in bytes; a multiple of the chunk.
    pub const fn heap_off(&self) -> u64 {
        (self.spares_off() + self.indices as u64 * SPARE_SIZE).next_multiple_of(self.chunk)
    }

    /// Size in bytes of the smallest pool of this geometry: the allocator's first table, and one chunk.
    pub const fn min_size(&self) -> u64 {
        self.heap_off() + 2 * self.chunk
    }

    /// The part that the allocator works on.
    pub const fn heap(&self) -> Heap {
        Heap { chunk: self.chunk, lanes: self.lanes, lanes_off: self.lanes_off(), heap_off: self.heap_off() }
    }

    /// Whole chunks in a pool of `size` bytes.
    pub const fn chunks(&self, size: u64) -> u64 {
        size.saturating_sub(self.heap_off()) / self.chunk
    }

    /// Checks the three numbers.
    ///
    /// # Errors
    /// [`Error::BadOption`] with the one that is out of its range.
    pub fn validate(&self) -> Result<()> {
        if !self.chunk.is_power_of_two() || !(MIN_CHUNK..=MAX_CHUNK).contains(&self.chunk) {
            return Err(Error::BadOption {
                option: "chunk_size",
                value: self.chunk,
                rule: "a power of two from 4096 to 2097152",
            });
        }
        if self.lanes == 0 || self.lanes > MAX_LANES {
            return Err(Error::BadOption { option: "lanes", value: self.lanes.into(), rule: "from 1 to 1024" });
        }
        if self.indices == 0 || self.indices > MAX_INDICES {
            return Err(Error::BadOption {
                option: "max_indices",
                value: self.indices.into(),
                rule: "from 1 to 65535",
            });
        }
        Ok(())
    }
}

const _: () = assert!(
    SPARE_SIZE.is_multiple_of(64)
        && LANE_SIZE.is_multiple_of(64)
        && ROOT_SIZE.is_multiple_of(64)
        && HEADER_SIZE.is_multiple_of(64)
);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_follow_one_another_for_every_extreme() {
        for chunk in [MIN_CHUNK, DEFAULT_CHUNK, MAX_CHUNK] {
            for lanes in [1, DEFAULT_LANES, MAX_LANES] {
                for indices in [1, DEFAULT_INDICES, MAX_INDICES] {
                    let g = Geometry { chunk, lanes, indices };
                    g.validate().unwrap();
                    assert_eq!(g.lanes_off(), 4224);
                    assert_eq!(g.roots_off(), 4224 + u64::from(lanes) * 128);
                    assert_eq!(g.root_off(Owner(3)), g.roots_off() + 768);
                    assert_eq!(g.marks_off(), g.roots_off() + u64::from(indices) * 256);
                    assert_eq!(g.mark_off(Owner(3)), g.marks_off() + 96);
                    assert_eq!(g.spares_off(), (g.marks_off() + u64::from(indices) * 32).next_multiple_of(64));
                    assert_eq!(g.spare_off(Owner(3)), g.spares_off() + 384);
                    let end = g.spares_off() + u64::from(indices) * 128;
                    assert!(g.heap_off() >= end && g.heap_off() - end < chunk && g.heap_off().is_multiple_of(chunk));
                    assert_eq!(g.chunks(g.heap_off()), 0);
                    assert_eq!(g.chunks(g.min_size()), 2);
                    assert_eq!(g.chunks(0), 0);
                }
            }
        }
    }

    #[test]
    fn numbers_out_of_range_are_errors_that_name_them() {
        let good = Geometry::default();
        let text = |g: Geometry| g.validate().unwrap_err().to_string();
        for chunk in [0, 2048, 4097, 4 << 20] {
            let expected = format!("option chunk_size is {chunk}; it must be a power of two from 4096 to 2097152");
            assert_eq!(text(Geometry { chunk, ..good }), expected);
        }
        assert_eq!(text(Geometry { lanes: 0, ..good }), "option lanes is 0; it must be from 1 to 1024");
        assert_eq!(text(Geometry { lanes: 1025, ..good }), "option lanes is 1025; it must be from 1 to 1024");
        assert_eq!(text(Geometry { indices: 0, ..good }), "option max_indices is 0; it must be from 1 to 65535");
        assert_eq!(
            text(Geometry { indices: 65536, ..good }),
            "option max_indices is 65536; it must be from 1 to 65535"
        );
    }
}
