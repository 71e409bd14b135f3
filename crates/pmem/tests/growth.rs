//! Growth ahead of need, and what becomes of writers meanwhile. Crashes in it: `crash_pool.rs`.

use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use durix_pmem::backing::{Access, Backing, BackingKind, HeapBacking, Window};
use durix_pmem::testing::{Call, FaultBacking, Faults};
use durix_pmem::{Driver, Error, Hardware, Lane, Owner, Pool, PoolOptions, Reserve, Result, Session, Tick};

const CHUNK: u64 = 64 << 10;
const START: u64 = 16 << 20;
const MOST: u64 = 64 << 20;

fn options() -> PoolOptions {
    PoolOptions::new().initial_size(START).max_size(MOST).max_indices(4)
}

/// Takes chunks until so many bytes of the pool are free.
fn use_up(pool: &Pool, session: &mut Session, free: u64) -> Result<()> {
    let op = session.enter()?;
    while pool.space().stats(&op).free > free {
        pool.space().activate(&op, pool.space().reserve_extent(&op, Owner(0), CHUNK)?)?;
        op.fence();
    }
    Ok(())
}

fn tick_until_idle(pool: &Pool, session: &mut Session) -> u64 {
    let mut steps = 0;
    while pool.tick(session).unwrap() == Tick::Worked {
        steps += 1;
    }
    steps
}

#[test]
fn a_pool_that_is_ticked_grows_before_space_runs_out_in_small_pieces() {
    let faults = Faults::default();
    let pool =
        options().create_on(FaultBacking::new(HeapBacking::new(MOST), faults.clone()), Hardware::PAGE_CACHE).unwrap();
    let mut session = pool.session().unwrap();
    assert_eq!(tick_until_idle(&pool, &mut session), 0, "most of it is free");
    use_up(&pool, &mut session, START / 4).unwrap();
    assert_eq!(tick_until_idle(&pool, &mut session), 0, "enough is free");
    use_up(&pool, &mut session, START / 4 - CHUNK).unwrap();
    // The first piece is no more than a megabyte.
    assert_eq!(pool.tick(&mut session).unwrap(), Tick::Worked);
    assert_eq!(pool.mapping().len(), START + (1 << 20));
    assert!(tick_until_idle(&pool, &mut session) > 1);
    let len = pool.mapping().len();
    let free = pool.space().stats(&session.enter().unwrap()).free;
    assert!(free >= len / 4 && free <= len / 2 + (1 << 20), "{free} of {len}");
    // Nobody who takes what is there asks the backing for anything.
    let calls = || [Call::Allocate, Call::Map, Call::Sync].map(|call| faults.calls(call));
    let before = calls();
    use_up(&pool, &mut session, 0).unwrap();
    assert_eq!(calls(), before);
    assert_eq!(pool.mapping().len(), len);
    // Outrun, a writer grows the pool itself: without anybody who drives services by a good deal at a time.
    drop(pool.space().reserve_extent(&session.enter().unwrap(), Owner(0), CHUNK).unwrap());
    assert!(pool.mapping().len() >= len + len / 4);
    drop(session);
    pool.close().unwrap();
}

struct Nobody;

impl Driver for Nobody {
    fn wake(&self, _: Lane) {}
}

#[test]
fn a_writer_that_outruns_the_service_adds_no_more_than_a_piece() {
    let pool = options().create_on(HeapBacking::new(MOST), Hardware::PAGE_CACHE).unwrap();
    pool.services().drive(Some(Arc::new(Nobody)));
    let mut session = pool.session().unwrap();
    use_up(&pool, &mut session, 0).unwrap();
    drop(pool.space().reserve_extent(&session.enter().unwrap(), Owner(0), CHUNK).unwrap());
    assert_eq!(pool.mapping().len(), START + (1 << 20));
    drop(pool.space().reserve_extent(&session.enter().unwrap(), Owner(0), 3 << 20).unwrap());
    assert!(pool.mapping().len() < START + (6 << 20), "what it needs, and no more");
}

#[test]
fn a_call_that_fails_is_an_error_of_the_service_and_growth_goes_on() {
    for call in [Call::Allocate, Call::Map, Call::Sync] {
        for nth in [1, 2] {
            let faults = Faults::default();
            let backing = FaultBacking::new(HeapBacking::new(MOST), faults.clone());
            let pool = options().create_on(backing, Hardware::PAGE_CACHE).unwrap();
            let mut session = pool.session().unwrap();
            use_up(&pool, &mut session, CHUNK).unwrap();
            faults.fail(call, nth, std::io::ErrorKind::Other);
            let error = loop {
                match pool.tick(&mut session) {
                    Ok(tick) => assert_eq!(tick, Tick::Worked, "{call:?} {nth} was not called"),
                    Err(error) => break error,
                }
            };
            assert!(error.to_string().contains("growth") && error.to_string().contains("planted"), "{error}");
            std::thread::sleep(durix_pmem::service::REST);
            assert!(tick_until_idle(&pool, &mut session) > 0);
            use_up(&pool, &mut session, 0).unwrap();
            drop(session);
            pool.close().unwrap();
        }
    }
}

#[test]
fn a_full_disk_is_told_to_those_who_need_it_and_to_nobody_else() {
    let faults = Faults::default();
    let pool =
        options().create_on(FaultBacking::new(HeapBacking::new(MOST), faults.clone()), Hardware::PAGE_CACHE).unwrap();
    let mut session = pool.session().unwrap();
    faults.room(Some(START));
    use_up(&pool, &mut session, CHUNK).unwrap();
    tick_until_idle(&pool, &mut session);
    pool.services().admit(&mut session).unwrap();
    use_up(&pool, &mut session, 0).unwrap();
    let refused = pool.space().reserve_extent(&session.enter().unwrap(), Owner(0), CHUNK).map(drop);
    assert!(matches!(refused, Err(Error::DiskFull { .. })), "{refused:?}");
    faults.room(None);
    drop(pool.space().reserve_extent(&session.enter().unwrap(), Owner(0), CHUNK).unwrap());
    use_up(&pool, &mut session, CHUNK).unwrap();
    assert!(tick_until_idle(&pool, &mut session) > 0, "it goes on");
    // At the end of the pool's own size it is the same.
    while use_up(&pool, &mut session, 0).is_ok() && pool.mapping().len() < MOST {
        drop(pool.space().reserve_extent(&session.enter().unwrap(), Owner(0), CHUNK).unwrap());
    }
    assert_eq!(tick_until_idle(&pool, &mut session), 0);
    let refused = pool.space().reserve_extent(&session.enter().unwrap(), Owner(0), CHUNK).map(drop);
    assert!(matches!(refused, Err(Error::Full { .. })), "{refused:?}");
}

/// Memory whose allocations take as long as they are told to.
#[derive(Clone, Debug)]
struct Slow {
    inner: Arc<HeapBacking>,
    hold: Arc<AtomicBool>,
    held: Arc<AtomicBool>,
    ahead: Arc<AtomicU64>,
    published: Arc<AtomicU64>,
    publishing: Duration,
    /// What was touched, and whether whoever touches waits, and does.
    touched: Arc<Mutex<Vec<Range<u64>>>>,
    hold_touch: Arc<AtomicBool>,
    touches: Arc<AtomicBool>,
    /// How long it has been made, and may be.
    allocated: Arc<AtomicU64>,
    room: Arc<AtomicU64>,
}

impl Slow {
    fn new(publishing: Duration) -> Self {
        Slow {
            inner: Arc::new(HeapBacking::new(MOST)),
            hold: Arc::default(),
            held: Arc::default(),
            ahead: Arc::default(),
            published: Arc::default(),
            publishing,
            touched: Arc::default(),
            hold_touch: Arc::default(),
            touches: Arc::default(),
            allocated: Arc::default(),
            room: Arc::new(AtomicU64::new(u64::MAX)),
        }
    }
}

impl Backing for Slow {
    fn describe(&self) -> String {
        "slow".into()
    }
    fn kind(&self) -> BackingKind {
        self.inner.kind()
    }
    fn len(&self) -> Result<u64> {
        self.inner.len()
    }
    fn limit(&self) -> u64 {
        self.inner.limit()
    }
    fn try_lock(&self, access: Access) -> Result<()> {
        self.inner.try_lock(access)
    }
    fn unlock(&self) {}
    fn read(&self, offset: u64, bytes: &mut [u8]) -> Result<()> {
        self.inner.read(offset, bytes)
    }
    fn reset(&self) -> Result<()> {
        self.inner.reset()
    }
    fn allocate(&self, len: u64) -> Result<()> {
        self.published.fetch_add(1, SeqCst);
        std::thread::sleep(self.publishing);
        self.inner.allocate(len)
    }
    fn allocate_ahead(&self, len: u64) -> Result<()> {
        self.ahead.fetch_add(1, SeqCst);
        while self.hold.load(SeqCst) {
            self.held.store(true, SeqCst);
            std::thread::yield_now();
        }
        if len > self.room.load(SeqCst) {
            return Err(Error::DiskFull { name: self.describe(), wanted: len });
        }
        self.allocated.fetch_max(len, SeqCst);
        self.inner.allocate_ahead(len)
    }
    fn reserve(&self, least: u64, wanted: u64) -> Result<Reserve> {
        self.inner.reserve(least, wanted)
    }
    fn map(&self, window: &Window<'_>) -> Result<()> {
        self.inner.map(window)
    }
    fn touch(&self, window: &Window<'_>) {
        self.touched.lock().unwrap().push(window.range());
        while self.hold_touch.load(SeqCst) {
            self.touches.store(true, SeqCst);
            std::thread::yield_now();
        }
    }
    fn sync(&self) -> Result<()> {
        Ok(())
    }
}

#[test]
fn nobody_who_finds_space_waits_for_a_system_call_of_growth() {
    let slow = Slow::new(Duration::ZERO);
    let pool = options().create_on(slow.clone(), Hardware::PAGE_CACHE).unwrap();
    let mut session = pool.session().unwrap();
    use_up(&pool, &mut session, START / 8).unwrap();
    slow.hold.store(true, SeqCst);
    std::thread::scope(|s| {
        s.spawn(|| assert_eq!(pool.tick(&mut pool.session().unwrap()).unwrap(), Tick::Worked));
        while !slow.held.load(SeqCst) {
            std::thread::yield_now();
        }
        // The service is in the middle of an allocation. All that is free can be taken, and given back.
        use_up(&pool, &mut session, 0).unwrap();
        let op = session.enter().unwrap();
        let extent = pool.space().extents(&op, Owner(0))[0];
        pool.space().free_extent(&op, extent).unwrap();
        drop(pool.space().reserve_block(&op, Owner(1), 64).unwrap());
        drop(op);
        // Nor does a moment without operations.
        pool.mapping().quiesce(&mut session, Duration::from_secs(5), |_| ()).unwrap();
        assert_eq!(pool.mapping().len(), START);
        slow.hold.store(false, SeqCst);
    });
    assert_eq!(pool.mapping().len(), START + (1 << 20));
}

#[test]
fn where_publishing_is_slow_pieces_are_published_together() {
    let slow = Slow::new(Duration::from_millis(3));
    let pool = options().create_on(slow.clone(), Hardware::PAGE_CACHE).unwrap();
    let mut session = pool.session().unwrap();
    let pieces = || (slow.ahead.load(SeqCst), slow.published.load(SeqCst));
    use_up(&pool, &mut session, START / 4 - CHUNK).unwrap();
    let (_, creating) = pieces();
    tick_until_idle(&pool, &mut session);
    let (ahead, published) = pieces();
    assert!(ahead > 2 && published - creating == 2, "{ahead} pieces, published {} times", published - creating);
    assert!(pool.mapping().len() >= START + START / 4);
}

/// Then another program fills the disk.
#[test]
fn what_was_allocated_ahead_is_enough_where_the_disk_is_full() {
    let slow = Slow::new(Duration::from_millis(3));
    let pool = options().create_on(slow.clone(), Hardware::PAGE_CACHE).unwrap();
    let mut session = pool.session().unwrap();
    use_up(&pool, &mut session, START / 4 - CHUNK).unwrap();
    while slow.allocated.load(SeqCst) <= pool.mapping().len() {
        assert_eq!(pool.tick(&mut session).unwrap(), Tick::Worked);
    }
    let (published, allocated) = (pool.mapping().len(), slow.allocated.load(SeqCst));
    slow.room.store(allocated, SeqCst);
    use_up(&pool, &mut session, 0).unwrap();
    while pool.mapping().len() == published {
        let op = session.enter().unwrap();
        pool.space().activate(&op, pool.space().reserve_extent(&op, Owner(0), CHUNK).unwrap()).unwrap();
    }
    assert_eq!(pool.mapping().len(), allocated);
}

#[test]
fn the_last_chunk_of_a_pool_can_be_used() {
    let pool = options().max_size(START + CHUNK).create_on(HeapBacking::new(MOST), Hardware::PAGE_CACHE).unwrap();
    let mut session = pool.session().unwrap();
    use_up(&pool, &mut session, 0).unwrap();
    let op = session.enter().unwrap();
    pool.space().activate(&op, pool.space().reserve_extent(&op, Owner(0), CHUNK).unwrap()).unwrap();
    assert_eq!(pool.mapping().len(), START + CHUNK);
    let refused = pool.space().reserve_extent(&op, Owner(0), CHUNK).map(drop);
    assert!(matches!(refused, Err(Error::Full { .. })), "{refused:?}");
}

/// What an insert adds is not: it would wait for all of it, where it needs a part.
#[test]
fn what_the_service_adds_is_touched_before_anybody_gets_it() {
    let slow = Slow::new(Duration::ZERO);
    let pool = options().create_on(slow.clone(), Hardware::PAGE_CACHE).unwrap();
    let mut session = pool.session().unwrap();
    use_up(&pool, &mut session, START / 8).unwrap();
    slow.hold_touch.store(true, SeqCst);
    std::thread::scope(|s| {
        let tick = s.spawn(|| assert_eq!(pool.tick(&mut pool.session().unwrap()).unwrap(), Tick::Worked));
        while !slow.touches.load(SeqCst) && !tick.is_finished() {
            std::thread::yield_now();
        }
        use_up(&pool, &mut session, 0).unwrap();
        let op = session.enter().unwrap();
        let last = pool.space().extents(&op, Owner(0)).iter().map(|extent| extent.off).max().unwrap();
        assert!(last < START, "a chunk at {last} was got before it was touched");
        slow.hold_touch.store(false, SeqCst);
    });
    let (touched, len) = (slow.touched.lock().unwrap().clone(), pool.mapping().len());
    // On a machine that was busy meanwhile it is only the first part.
    assert!(touched.windows(2).all(|two| two[0].end == two[1].start), "{touched:?}");
    assert!(touched[0].start == START && touched.last().unwrap().end <= len, "{touched:?} of {len}");
    use_up(&pool, &mut session, 0).unwrap();
    drop(pool.space().reserve_extent(&session.enter().unwrap(), Owner(0), CHUNK).unwrap());
    assert!(pool.mapping().len() > len);
    assert_eq!(*slow.touched.lock().unwrap(), touched);
}
