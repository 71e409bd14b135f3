//! The backing: what the file system does for a pool. The second, smaller seam, so that creating and growing can be
//! made to fail.
//!
//! | backing | what it is |
//! |---|---|
//! | [`FileBacking`] | a file, on DAX or on an ordinary file system |
//! | [`HeapBacking`] | memory only, for tests and simulation |
//! | [`FaultBacking`] | another one whose n-th call of a kind fails |

mod fault;
mod file;
mod heap;

use std::fmt;
use std::ops::Range;

pub use fault::{Call, FaultBacking, Faults};
pub use file::FileBacking;
pub use heap::HeapBacking;

use crate::error::Result;
use crate::reserve::Reserve;

/// What lies under a mapping.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum BackingKind {
    /// Persistent memory, mapped without the page cache.
    Dax,
    /// A file in the page cache.
    File,
    /// Memory of this process.
    Anonymous,
}

impl fmt::Display for BackingKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            BackingKind::Dax => "persistent memory (DAX)",
            BackingKind::File => "ordinary file",
            BackingKind::Anonymous => "memory of this process",
        })
    }
}

/// How a backing is mapped and locked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Access {
    /// Stores reach the file; nobody else has it open.
    Shared,
    /// Stores stay in this process (copy on write); others may have it open in the same way.
    Private,
    /// Loads only, beside a process that writes.
    Peek,
}

/// Where the bytes of a pool come from.
///
/// Every error is one line that names the backing, and leaves the backing as it was.
pub trait Backing: fmt::Debug + Send + Sync + 'static {
    /// What messages call it: the path of a file.
    fn describe(&self) -> String;

    /// What lies under its mappings.
    fn kind(&self) -> BackingKind;

    /// Bytes it holds now.
    ///
    /// # Errors
    /// [`Error::Io`](crate::Error::Io) if the system does not tell.
    fn len(&self) -> Result<u64>;

    /// Whether it holds nothing.
    ///
    /// # Errors
    /// As [`len`](Backing::len).
    fn is_empty(&self) -> Result<bool> {
        Ok(self.len()? == 0)
    }

    /// Bytes that it can grow to at most.
    fn limit(&self) -> u64 {
        u64::MAX
    }

    /// Whether it may be written.
    fn is_writable(&self) -> bool {
        true
    }

    /// Takes the lock that keeps other openers away, for as long as the backing lives: alone for [`Access::Shared`],
    /// together with other readers for [`Access::Private`], not at all for [`Access::Peek`].
    ///
    /// # Errors
    /// [`Error::Locked`](crate::Error::Locked) if another opener has it.
    fn try_lock(&self, access: Access) -> Result<()>;

    /// Gives the lock back, when nothing can touch the mapping any more.
    fn unlock(&self);

    /// Reads bytes without mapping them.
    ///
    /// # Errors
    /// [`Error::Io`](crate::Error::Io) if they are not all there.
    fn read(&self, offset: u64, bytes: &mut [u8]) -> Result<()>;

    /// Empties it: what an interrupted creation left goes away.
    ///
    /// # Errors
    /// [`Error::Io`](crate::Error::Io) if the system refuses.
    fn reset(&self) -> Result<()>;

    /// Makes it at least `len` bytes long, all of them allocated (no store can hit a hole of a full disk), new ones zero,
    /// and the new length durable.
    ///
    /// # Errors
    /// [`Error::DiskFull`](crate::Error::DiskFull) if there is no room.
    fn allocate(&self, len: u64) -> Result<()>;

    /// Reserves addresses for it: `least` bytes at least, `wanted` if they can be had.
    ///
    /// # Errors
    /// [`Error::Io`](crate::Error::Io) if not even `least` can be had.
    fn reserve(&self, least: u64, wanted: u64) -> Result<Reserve> {
        Reserve::pages(least, wanted)
    }

    /// Maps the bytes of `range` to the same offsets of `reserve`. What was mapped there before gives way; bytes of the
    /// range that were mapped before keep their contents.
    ///
    /// # Errors
    /// [`Error::Io`](crate::Error::Io) if the system refuses.
    ///
    /// # Panics
    /// If the range does not lie in the reserve.
    fn map(&self, reserve: &Reserve, range: Range<u64>, access: Access) -> Result<()>;

    /// Waits until everything stored so far is on the medium, contents and length.
    ///
    /// # Errors
    /// [`Error::Io`](crate::Error::Io) if the system says that it is not.
    fn sync(&self) -> Result<()>;
}
