//! A backing that somebody else holds, too: what is called on it when its pool is gone.

use std::sync::Arc;

use durix_crashsim::fs::{Open, SimulatedFs, SimulatedPoolFile};
use durix_pmem::backing::{Access, Backing, BackingKind, Window};
use durix_pmem::{Hardware, PoolOptions, Reserve, Result};

#[derive(Debug)]
struct Held(Arc<SimulatedPoolFile>);

impl Backing for Held {
    fn describe(&self) -> String {
        self.0.describe()
    }
    fn kind(&self) -> BackingKind {
        self.0.kind()
    }
    fn len(&self) -> Result<u64> {
        self.0.len()
    }
    fn limit(&self) -> u64 {
        self.0.limit()
    }
    fn try_lock(&self, access: Access) -> Result<()> {
        self.0.try_lock(access)
    }
    fn unlock(&self) {
        self.0.unlock();
    }
    fn read(&self, offset: u64, bytes: &mut [u8]) -> Result<()> {
        self.0.read(offset, bytes)
    }
    fn write(&self, offset: u64, bytes: &[u8]) -> Result<()> {
        self.0.write(offset, bytes)
    }
    fn reset(&self) -> Result<()> {
        self.0.reset()
    }
    fn allocate(&self, len: u64) -> Result<()> {
        self.0.allocate(len)
    }
    fn reserve(&self, least: u64, wanted: u64) -> Result<Reserve> {
        self.0.reserve(least, wanted)
    }
    fn map(&self, window: &Window<'_>) -> Result<()> {
        self.0.map(window)
    }
    fn sync(&self) -> Result<()> {
        self.0.sync()
    }
}

/// The memory of a pool that is gone belongs to somebody else. A sync that came then wrote what that one had stored to the file.
#[test]
fn a_sync_after_the_pool_is_gone_writes_nothing_of_others() {
    const LEN: u64 = 256 << 10;
    let file = Arc::new(SimulatedPoolFile::new(&SimulatedFs::new(), "pool", Open::OrNew, LEN).unwrap());
    let options = PoolOptions::new().chunk_size(4096).max_indices(4).lanes(1).initial_size(1).max_size(LEN);
    let contents = || {
        let mut bytes = vec![0; file.len().unwrap() as usize];
        file.read(0, &mut bytes).unwrap();
        bytes
    };
    for turn in 0..3 {
        let held = Held(Arc::clone(&file));
        let pool = match turn {
            0 => options.create_on(held, Hardware::PAGE_CACHE).unwrap(),
            _ => options.open_on(held, Hardware::PAGE_CACHE).unwrap().recover().unwrap(),
        };
        pool.close().unwrap();
        drop(pool);
        let before = contents();
        assert!(before.iter().any(|byte| *byte != 0));
        // A thread uses the memory of its last pool again, zeroed.
        let others = Reserve::heap(LEN as usize);
        file.sync().unwrap();
        drop(others);
        assert!(contents() == before, "turn {turn}");
    }
}
