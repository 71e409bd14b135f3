//! The backing: what the file system does for a pool. The second, smaller seam, so that creating and growing can be
//! made to fail.
//!
//! | backing | what it is |
//! |---|---|
//! | [`FileBacking`] | a file, on DAX or on an ordinary file system |
//! | [`HeapBacking`] | memory only, for tests and simulation |
//! | [`FaultBacking`](crate::testing::FaultBacking) | another one whose n-th call of a kind fails |

mod file;
mod heap;
mod holder;
mod identity;

use std::fmt;
use std::marker::PhantomData;
use std::ops::Range;

pub use file::FileBacking;
pub use heap::HeapBacking;
pub use identity::{Differs, FileId};

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
    /// Stores stay in this process (copy on write), and a [journal](crate::journal) carries them to the file; nobody else has it
    /// open.
    Journaled,
}

/// A part of a pool's addresses that its backing is to be mapped to. Only a pool makes one, when it is opened or grows, for bytes
/// that no operation has been told of; so nobody can put a file over the live part of a pool, and a window lies in its reserve. A backing
/// that wraps another one hands it on.
#[derive(Debug)]
pub struct Window<'a> {
    reserve: &'a Reserve,
    range: Range<u64>,
    access: Access,
    /// It stays on its thread, so that nobody fills it from two.
    _not_sync: PhantomData<*const ()>,
}

impl<'a> Window<'a> {
    /// # Panics
    /// If the range does not lie in the reserve.
    pub(crate) fn new(reserve: &'a Reserve, range: Range<u64>, access: Access) -> Self {
        assert!(range.start <= range.end && range.end <= reserve.len() as u64, "{range:?} in {} bytes", reserve.len());
        Window { reserve, range, access, _not_sync: PhantomData }
    }

    /// The addresses.
    pub fn reserve(&self) -> &'a Reserve {
        self.reserve
    }

    /// The bytes, of the backing and of the reserve.
    pub fn range(&self) -> Range<u64> {
        self.range.clone()
    }

    /// How they are to be mapped.
    pub fn access(&self) -> Access {
        self.access
    }
}

/// Private pages of a pool that is mapped by [`Access::Journaled`], which hold what the file holds, and whose part of the file is synced. Only a
/// pool makes one, while no operation is open. A backing that wraps another one hands it on.
#[derive(Debug)]
pub struct CleanPages<'a> {
    reserve: &'a Reserve,
    range: Range<u64>,
    /// It stays on its thread: when it goes away, operations begin again.
    _not_sync: PhantomData<*const ()>,
}

impl<'a> CleanPages<'a> {
    /// # Panics
    /// If the range does not lie in the reserve.
    pub(crate) fn new(reserve: &'a Reserve, range: Range<u64>) -> Self {
        assert!(range.start <= range.end && range.end <= reserve.len() as u64, "{range:?} in {} bytes", reserve.len());
        CleanPages { reserve, range, _not_sync: PhantomData }
    }

    /// The addresses.
    pub fn reserve(&self) -> &'a Reserve {
        self.reserve
    }

    /// The bytes, of the backing and of the reserve: whole [pages](Backing::private_page).
    pub fn range(&self) -> Range<u64> {
        self.range.clone()
    }
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

    /// Whether a file system keeps it in memory only (tmpfs, ramfs): no sync makes it survive a power failure.
    fn is_in_memory(&self) -> bool {
        false
    }

    /// Which file it is, so that a copy that was taken while the pool was open is told from it. `None` where nobody can tell: it is not asked
    /// then. A backing that wraps another one hands it on.
    fn identity(&self) -> Option<FileId> {
        None
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

    /// Writes bytes within its length, all of them; durable after the next [`sync`](Backing::sync). A mapping of
    /// [`Access::Journaled`] shows them where nothing was stored to the page. Only journaled pools need it.
    ///
    /// # Errors
    /// [`Error::Io`](crate::Error::Io); some of them may then have been written.
    fn write(&self, offset: u64, bytes: &[u8]) -> Result<()> {
        let _ = (offset, bytes);
        let action = format!("writing to {}", self.describe());
        Err(crate::Error::Io { action, source: std::io::ErrorKind::Unsupported.into() })
    }

    /// Bytes of a page that a store makes private under [`Access::Journaled`]: a power of two.
    fn private_page(&self) -> u64 {
        4096
    }

    /// Gives the memory of private pages back: from then on the mapping shows there what the file holds, as before the first store. Returns
    /// whether it can do that. If it is not overridden: it cannot.
    fn drop_private(&self, pages: &CleanPages<'_>) -> bool {
        let _ = pages;
        false
    }

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

    /// The same, but nothing is durable yet: [`allocate`](Backing::allocate), with the same length or more, makes it so. For
    /// what is prepared in small pieces.
    ///
    /// # Errors
    /// [`Error::DiskFull`](crate::Error::DiskFull) if there is no room.
    fn allocate_ahead(&self, len: u64) -> Result<()> {
        self.allocate(len)
    }

    /// Takes off what lies behind `len` bytes: what was allocated there and never used. Not durable before the next
    /// [`allocate`](Backing::allocate). It is for a length that may not be on the medium although the next sync succeeds: one that an earlier process has
    /// left, or whose sync has failed. What is allocated afterwards is new. If it is not overridden, nothing is done. A backing that wraps
    /// another one hands it on.
    ///
    /// # Errors
    /// [`Error::Io`](crate::Error::Io) if the system refuses.
    fn cut(&self, len: u64) -> Result<()> {
        let _ = len;
        Ok(())
    }

    /// Reserves addresses for it: `least` bytes at least, `wanted` if they can be had.
    ///
    /// # Errors
    /// [`Error::Io`](crate::Error::Io) if not even `least` can be had.
    fn reserve(&self, least: u64, wanted: u64) -> Result<Reserve> {
        Reserve::pages(least, wanted)
    }

    /// Maps the bytes of the window's range to the same offsets of its reserve.
    ///
    /// # Errors
    /// [`Error::Io`](crate::Error::Io) if the system refuses.
    fn map(&self, window: &Window<'_>) -> Result<()>;

    /// Has the system find the memory of a window that is mapped, so that the first store to each of its pages does not wait for it. It
    /// changes no contents, and others may be at work in the window. Best effort: if it is not overridden, nothing is done. A backing that
    /// wraps another one hands it on.
    fn touch(&self, window: &Window<'_>) {
        let _ = window;
    }

    /// Waits until everything stored so far is on the medium, contents and length.
    ///
    /// # Errors
    /// [`Error::Io`](crate::Error::Io) if the system says that it is not.
    fn sync(&self) -> Result<()>;

    /// Waits until its name is on the medium, where it has one: the folder that it lies in is synced. Once, when a pool is created.
    ///
    /// # Errors
    /// [`Error::Io`](crate::Error::Io) if the system says that it is not.
    fn sync_name(&self) -> Result<()> {
        Ok(())
    }
}
