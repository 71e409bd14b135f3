//! What lies in the header when a pool on an ordinary file syncs it: the order that a power failure finds on the disk.

use std::sync::atomic::{AtomicPtr, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex};

use durix_pmem::backing::{Access, Backing, BackingKind, HeapBacking, Window};
use durix_pmem::{Hardware, Owner, Pool, PoolOptions, Reserve, Result};

/// Memory that notes words of the header at each sync.
#[derive(Clone, Debug)]
struct Noting {
    inner: Arc<HeapBacking>,
    base: Arc<AtomicPtr<u8>>,
    notes: Arc<Mutex<Vec<Note>>>,
}

/// The magic; the values of size and state; the boot id that is written next after creation.
type Note = (u64, u32, u32, u32);

impl Noting {
    fn new(inner: HeapBacking) -> Self {
        Noting { inner: Arc::new(inner), base: Arc::default(), notes: Arc::default() }
    }

    fn word(&self, offset: usize) -> u64 {
        // SAFETY: tests sync only while the pool maps its header, whose words are atomics.
        unsafe { &*self.base.load(Relaxed).add(offset).cast::<AtomicU64>() }.load(Relaxed)
    }

    fn take(&self) -> Vec<Note> {
        std::mem::take(&mut self.notes.lock().unwrap())
    }
}

impl Backing for Noting {
    fn describe(&self) -> String {
        "noted".into()
    }
    fn kind(&self) -> BackingKind {
        BackingKind::File
    }
    fn len(&self) -> Result<u64> {
        self.inner.len()
    }
    fn limit(&self) -> u64 {
        self.inner.limit()
    }
    fn try_lock(&self, _: Access) -> Result<()> {
        Ok(())
    }
    fn unlock(&self) {}
    fn read(&self, offset: u64, bytes: &mut [u8]) -> Result<()> {
        self.inner.read(offset, bytes)
    }
    fn reset(&self) -> Result<()> {
        self.inner.reset()
    }
    fn allocate(&self, len: u64) -> Result<()> {
        self.inner.allocate(len)
    }
    fn reserve(&self, least: u64, wanted: u64) -> Result<Reserve> {
        self.inner.reserve(least, wanted)
    }
    fn map(&self, window: &Window<'_>) -> Result<()> {
        self.base.store(window.reserve().base().as_ptr(), Relaxed);
        self.inner.map(window)
    }
    fn sync(&self) -> Result<()> {
        let note = (self.word(0), self.word(128) as u32, self.word(136) as u32, self.word(224) as u32);
        self.notes.lock().unwrap().push(note);
        Ok(())
    }
}

const MAGIC: u64 = u64::from_le_bytes(*b"DURIXpm\x1a");
const BOOT: u32 = u32::from_le_bytes([5; 4]);
const CLOSED: u32 = 1;
const OPEN_A: u32 = 2;
const OPEN_B: u32 = 2 | 1 << 8;
/// Once it was opened that had not been closed.
const CRASHED: u32 = 1 << 16;

fn options(boot: u8) -> PoolOptions {
    PoolOptions::new().initial_size(1).chunk_size(4096).max_indices(2).lanes(2).boot_id([boot; 16])
}

fn image(pool: &Pool) -> HeapBacking {
    HeapBacking::from_image(HeapBacking::image_of(pool.mapping())).with_limit(1 << 20)
}

#[test]
fn marks_reach_the_disk_in_their_order() {
    let noting = Noting::new(HeapBacking::new(1 << 20));
    let pool = options(4).create_on(noting.clone(), Hardware::PAGE_CACHE).unwrap();
    let size = (pool.mapping().len() / 4096) as u32;
    // PL-C1: the mark alone. PL-C2: everything else. PL-C3: the magic.
    assert_eq!(noting.take(), [(!MAGIC, 0, 0, 0), (!MAGIC, size, OPEN_A, 0), (MAGIC, size, OPEN_A, 0)]);
    // PL-Z1: the contents, still open. PL-Z2: closed.
    pool.close().unwrap();
    assert_eq!(noting.take(), [(MAGIC, size, OPEN_A, 0), (MAGIC, size, CLOSED, 0)]);
    // PL-B1: the boot id, still closed. PL-B2: open.
    let noting = Noting::new(image(&pool));
    let pool = options(5).open_on(noting.clone(), Hardware::PAGE_CACHE).unwrap().recover().unwrap();
    assert_eq!(noting.take(), [(MAGIC, size, CLOSED, BOOT), (MAGIC, size, OPEN_B, BOOT)]);
    // PL-G2: the new size, before anyone may use it.
    let mut session = pool.session().unwrap();
    drop(pool.space().reserve_extent(&session.enter().unwrap(), Owner(0), 100_000).unwrap());
    let grown = (pool.mapping().len() / 4096) as u32;
    assert!(grown > size);
    assert_eq!(noting.take(), [(MAGIC, grown, OPEN_B, BOOT)]);
    // Not closed: what the page cache holds is made durable before anything else.
    let noting = Noting::new(image(&pool));
    let pool = options(5).open_on(noting.clone(), Hardware::PAGE_CACHE).unwrap().recover().unwrap();
    assert_eq!(noting.take(), [OPEN_B, OPEN_B, OPEN_A | CRASHED].map(|state| (MAGIC, grown, state, BOOT)));
    drop(pool);
    assert_eq!(noting.take(), [OPEN_A, CLOSED].map(|state| (MAGIC, grown, state | CRASHED, BOOT)));
}

#[test]
fn a_medium_that_survives_power_failure_syncs_nothing() {
    let Some(pmem) = Hardware::for_pmem() else {
        println!("skipped: this processor has no write-back instruction");
        return;
    };
    let noting = Noting::new(HeapBacking::new(1 << 20));
    let pool = options(4).create_on(noting.clone(), pmem).unwrap();
    pool.close().unwrap();
    assert!(noting.take().is_empty());
}
