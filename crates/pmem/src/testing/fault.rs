//! A backing whose calls fail on demand.

use std::collections::BTreeMap;
use std::io;
use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};

use crate::backing::{Access, Backing, BackingKind, CleanPages, FileId, Window};
use crate::error::{Error, Result};
use crate::reserve::Reserve;

/// A kind of call that can fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Call {
    /// [`Backing::len`].
    Len,
    /// [`Backing::read`].
    Read,
    /// [`Backing::reset`].
    Reset,
    /// [`Backing::allocate`] and [`Backing::allocate_ahead`].
    Allocate,
    /// [`Backing::reserve`].
    Reserve,
    /// [`Backing::map`].
    Map,
    /// [`Backing::sync`].
    Sync,
    /// [`Backing::try_lock`].
    Lock,
    /// [`Backing::write`].
    Write,
}

impl Call {
    /// All kinds of calls that a pool without a journal makes.
    pub const ALL: [Call; 8] =
        [Call::Len, Call::Read, Call::Reset, Call::Allocate, Call::Reserve, Call::Map, Call::Sync, Call::Lock];
}

/// Which calls are to fail, and how many there have been. Clones share it.
#[derive(Clone, Debug, Default)]
pub struct Faults {
    state: Arc<Mutex<State>>,
}

#[derive(Debug, Default)]
struct State {
    calls: BTreeMap<Call, u64>,
    failing: BTreeMap<(Call, u64), io::ErrorKind>,
    room: Option<u64>,
    unreadable: Option<Range<u64>>,
}

impl Faults {
    fn state(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes the `n`-th call of a kind from now on fail, counted from 1, with an error of the operating system.
    pub fn fail(&self, call: Call, n: u64, with: io::ErrorKind) {
        let mut state = self.state();
        let so_far = state.calls.get(&call).copied().unwrap_or_default();
        state.failing.insert((call, so_far + n), with);
    }

    /// Makes every allocation beyond `bytes` in total find the disk full; `None` for no such end.
    pub fn room(&self, bytes: Option<u64>) {
        self.state().room = bytes;
    }

    /// Makes a range of whole pages fail to be read, as a bad sector does. As with a page cache, it cannot be written in part either, and
    /// is well again once it is written whole.
    pub fn unreadable(&self, pages: Range<u64>) {
        self.state().unreadable = Some(pages);
    }

    /// Ends that.
    pub fn readable(&self) {
        self.state().unreadable = None;
    }

    /// How many calls of a kind there have been.
    pub fn calls(&self, call: Call) -> u64 {
        self.state().calls.get(&call).copied().unwrap_or_default()
    }

    fn hit(&self, call: Call) -> Option<io::ErrorKind> {
        let mut state = self.state();
        let count = state.calls.entry(call).or_default();
        *count += 1;
        let at = (call, *count);
        state.failing.remove(&at)
    }
}

/// A backing that fails where its [`Faults`] say, before anything happens, and otherwise passes on to another one.
#[derive(Debug)]
pub struct FaultBacking<B> {
    inner: B,
    faults: Faults,
}

impl<B: Backing> FaultBacking<B> {
    /// Lets `faults` act on the calls to `inner`.
    pub fn new(inner: B, faults: Faults) -> Self {
        FaultBacking { inner, faults }
    }

    fn pass(&self, call: Call) -> Result<()> {
        match self.faults.hit(call) {
            None => Ok(()),
            Some(kind) => {
                Err(Error::Io { action: format!("{call:?} of {} (planted)", self.describe()), source: kind.into() })
            }
        }
    }
}

impl<B: Backing> FaultBacking<B> {
    fn pass_unreadable(&self, offset: u64, len: usize, writes: bool) -> Result<()> {
        let (mut state, end) = (self.faults.state(), offset + len as u64);
        match state.unreadable.clone() {
            Some(bad) if bad.start < end && offset < bad.end => {
                if !writes || bad.start < offset || end < bad.end {
                    let action = format!("{offset:#x} of {} (planted)", self.describe());
                    return Err(Error::Io { action, source: rustix::io::Errno::IO.into() });
                }
                state.unreadable = None;
                Ok(())
            }
            _ => Ok(()),
        }
    }

    fn pass_allocation(&self, len: u64) -> Result<()> {
        self.pass(Call::Allocate)?;
        let room = self.faults.state().room;
        if room.is_some_and(|room| len > room) {
            return Err(Error::DiskFull { name: self.describe(), wanted: len });
        }
        Ok(())
    }
}

impl<B: Backing> Backing for FaultBacking<B> {
    fn describe(&self) -> String {
        self.inner.describe()
    }

    fn kind(&self) -> BackingKind {
        self.inner.kind()
    }

    fn len(&self) -> Result<u64> {
        self.pass(Call::Len)?;
        self.inner.len()
    }

    fn limit(&self) -> u64 {
        self.inner.limit()
    }

    fn is_in_memory(&self) -> bool {
        self.inner.is_in_memory()
    }

    fn identity(&self) -> Option<FileId> {
        self.inner.identity()
    }

    fn is_writable(&self) -> bool {
        self.inner.is_writable()
    }

    fn try_lock(&self, access: Access) -> Result<()> {
        self.pass(Call::Lock)?;
        self.inner.try_lock(access)
    }

    fn unlock(&self) {
        self.inner.unlock();
    }

    fn read(&self, offset: u64, bytes: &mut [u8]) -> Result<()> {
        self.pass(Call::Read)?;
        self.pass_unreadable(offset, bytes.len(), false)?;
        self.inner.read(offset, bytes)
    }

    fn write(&self, offset: u64, bytes: &[u8]) -> Result<()> {
        self.pass(Call::Write)?;
        self.pass_unreadable(offset, bytes.len(), true)?;
        self.inner.write(offset, bytes)
    }

    fn private_page(&self) -> u64 {
        self.inner.private_page()
    }

    fn drop_private(&self, pages: &CleanPages<'_>) -> bool {
        self.inner.drop_private(pages)
    }

    fn reset(&self) -> Result<()> {
        self.pass(Call::Reset)?;
        self.inner.reset()
    }

    fn allocate(&self, len: u64) -> Result<()> {
        self.pass_allocation(len)?;
        self.inner.allocate(len)
    }

    fn allocate_ahead(&self, len: u64) -> Result<()> {
        self.pass_allocation(len)?;
        self.inner.allocate_ahead(len)
    }

    fn cut(&self, len: u64) -> Result<()> {
        self.inner.cut(len)
    }

    fn reserve(&self, least: u64, wanted: u64) -> Result<Reserve> {
        self.pass(Call::Reserve)?;
        self.inner.reserve(least, wanted)
    }

    fn map(&self, window: &Window<'_>) -> Result<()> {
        self.pass(Call::Map)?;
        self.inner.map(window)
    }

    fn touch(&self, window: &Window<'_>) {
        self.inner.touch(window);
    }

    fn sync(&self) -> Result<()> {
        self.pass(Call::Sync)?;
        self.inner.sync()
    }

    fn sync_name(&self) -> Result<()> {
        self.inner.sync_name()
    }
}
