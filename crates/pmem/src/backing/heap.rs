//! Memory only.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use super::{Access, Backing, BackingKind, Window};
use crate::error::{Error, Result};
use crate::reserve::Reserve;

/// A backing without a file, for tests and simulation. Its contents go away with the mapping.
#[derive(Debug)]
pub struct HeapBacking {
    /// What is copied into the first mapping.
    image: Mutex<Vec<u8>>,
    len: AtomicU64,
    limit: u64,
}

impl HeapBacking {
    /// An empty backing that can grow to `limit` bytes.
    pub fn new(limit: u64) -> Self {
        HeapBacking { image: Mutex::default(), len: AtomicU64::new(0), limit }
    }

    /// A backing that holds `image`, e.g. what a crash has left, and can grow no further.
    pub fn from_image(image: Vec<u8>) -> Self {
        let len = image.len() as u64;
        HeapBacking { image: Mutex::new(image), len: AtomicU64::new(len), limit: len }
    }

    /// The same with room to grow to `limit` bytes.
    #[must_use]
    pub fn with_limit(self, limit: u64) -> Self {
        let limit = limit.max(self.limit);
        HeapBacking { limit, ..self }
    }
}

impl Backing for HeapBacking {
    fn describe(&self) -> String {
        "memory".into()
    }

    fn kind(&self) -> BackingKind {
        BackingKind::Anonymous
    }

    fn len(&self) -> Result<u64> {
        Ok(self.len.load(Ordering::Acquire))
    }

    fn limit(&self) -> u64 {
        self.limit
    }

    fn try_lock(&self, _access: Access) -> Result<()> {
        Ok(())
    }

    fn unlock(&self) {}

    fn read(&self, offset: u64, bytes: &mut [u8]) -> Result<()> {
        let image = self.image.lock().unwrap_or_else(PoisonError::into_inner);
        let from = image.len().min(usize::try_from(offset).unwrap_or(usize::MAX));
        let len = bytes.len().min(image.len() - from);
        bytes[..len].copy_from_slice(&image[from..from + len]);
        bytes[len..].fill(0);
        Ok(())
    }

    fn reset(&self) -> Result<()> {
        self.image.lock().unwrap_or_else(PoisonError::into_inner).clear();
        self.len.store(0, Ordering::Release);
        Ok(())
    }

    fn allocate(&self, len: u64) -> Result<()> {
        if len > self.limit {
            return Err(Error::DiskFull { name: self.describe(), wanted: len });
        }
        self.len.fetch_max(len, Ordering::AcqRel);
        Ok(())
    }

    fn reserve(&self, least: u64, wanted: u64) -> Result<Reserve> {
        let len = wanted.min(self.limit).max(least);
        let len = usize::try_from(len).ok().filter(|l| *l <= isize::MAX as usize / 4).ok_or_else(|| {
            let source = std::io::ErrorKind::OutOfMemory.into();
            Error::Io { action: format!("reserving {len} bytes of memory"), source }
        })?;
        Ok(Reserve::heap(len))
    }

    fn map(&self, window: &Window<'_>) -> Result<()> {
        if window.range().start != 0 {
            // What is added later is zero already.
            return Ok(());
        }
        let image = std::mem::take(&mut *self.image.lock().unwrap_or_else(PoisonError::into_inner));
        let part = &image[..image.len().min(window.range().end as usize)];
        // SAFETY: the part fits into the range, which lies in the reserve (`Window`). A window that begins at zero is made once
        // in the life of a reserve, by whoever has just made it and lets no one else reach it yet; callers cannot make one, nor
        // give one to another thread.
        unsafe { std::ptr::copy_nonoverlapping(part.as_ptr(), window.reserve().base().as_ptr(), part.len()) }
        Ok(())
    }

    fn sync(&self) -> Result<()> {
        Ok(())
    }
}
