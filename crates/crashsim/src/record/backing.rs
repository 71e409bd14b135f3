//! The file of a pool as the crash has left it.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use durix_pmem::backing::{Access, Backing, BackingKind, HeapBacking, Window};
use durix_pmem::{Error, Reserve, Result};

use crate::record::medium::Simulated;

/// What the crash has left, as a backing to open a pool on; or an empty one to create it on. See
/// [`Simulated::backing`].
#[derive(Debug)]
pub struct SimulatedBacking {
    medium: Simulated,
    len: AtomicU64,
    limit: u64,
    /// Whether the mapping got the memory in which the simulator itself puts the crash state.
    has_state: AtomicBool,
}

impl SimulatedBacking {
    pub(crate) fn new(medium: Simulated, len: u64) -> Self {
        SimulatedBacking { medium, len: AtomicU64::new(len), limit: len, has_state: AtomicBool::new(false) }
    }

    /// The same with room to grow to `limit` bytes.
    #[must_use]
    pub fn with_limit(self, limit: u64) -> Self {
        let limit = limit.max(self.limit);
        SimulatedBacking { limit, ..self }
    }

    fn image(&self) -> HeapBacking {
        let len = self.len.load(Ordering::Acquire) as usize;
        HeapBacking::from_image(self.medium.image(len)).with_limit(self.limit)
    }
}

impl Backing for SimulatedBacking {
    fn describe(&self) -> String {
        "simulated memory".into()
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
        bytes.fill(0);
        let left = self.len.load(Ordering::Acquire).saturating_sub(offset);
        let len = bytes.len().min(usize::try_from(left).unwrap_or(usize::MAX));
        if len > 0 {
            self.medium.read(offset as usize, &mut bytes[..len]);
        }
        Ok(())
    }

    fn reset(&self) -> Result<()> {
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
        let memory = self.medium.memory(len as usize);
        self.has_state.store(memory.is_some(), Ordering::Release);
        memory.map_or_else(|| self.image().reserve(least, wanted), Ok)
    }

    fn map(&self, window: &Window<'_>) -> Result<()> {
        match self.has_state.load(Ordering::Acquire) {
            true => Ok(()),
            // What is added later is zero already.
            false if window.range().start > 0 => Ok(()),
            false => self.image().map(window),
        }
    }

    fn sync(&self) -> Result<()> {
        Ok(())
    }
}
