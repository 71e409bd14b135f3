//! Services: which runs, and what becomes of errors, panics, back-pressure, closing and forks.

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, Instant};

use durix_pmem::backing::HeapBacking;
use durix_pmem::pool::Poison;
use durix_pmem::{
    Driver, Due, Error, Hardware, Kind, Lane, Pool, PoolOptions, Registered, Result, Root, Service, Session, Structure,
    Tick, Urgency,
};

type M = Hardware;

fn pool() -> Pool {
    let options = PoolOptions::new().initial_size(1 << 20).max_indices(4);
    options.create_on(HeapBacking::new(1 << 20), Hardware::PAGE_CACHE).unwrap()
}

/// A service that does what it is told.
struct Told {
    name: &'static str,
    due: Mutex<Due>,
    lane: Lane,
    workers: usize,
    log: Arc<Mutex<Vec<&'static str>>>,
    /// What a step does.
    #[expect(clippy::type_complexity)]
    does: Box<dyn Fn(&Told) -> Result<()> + Send + Sync>,
    registered: OnceLock<Registered<M>>,
}

impl Told {
    fn new(name: &'static str, due: Due, log: &Arc<Mutex<Vec<&'static str>>>) -> Self {
        Told {
            name,
            due: Mutex::new(due),
            lane: Lane::Prompt,
            workers: 1,
            log: Arc::clone(log),
            does: Box::new(|_| Ok(())),
            registered: OnceLock::new(),
        }
    }

    fn doing(self, does: impl Fn(&Told) -> Result<()> + Send + Sync + 'static) -> Self {
        Told { does: Box::new(does), ..self }
    }

    fn on(self, pool: &Pool) -> Arc<Self> {
        let service = Arc::new(self);
        service.registered.set(pool.services().register(&service)).unwrap();
        service
    }

    fn be(&self, due: Due) {
        *self.due.lock().unwrap() = due;
    }
}

impl Service<M> for Told {
    fn name(&self) -> String {
        self.name.into()
    }
    fn lane(&self) -> Lane {
        self.lane
    }
    fn workers(&self) -> usize {
        self.workers
    }
    fn due(&self) -> Due {
        *self.due.lock().unwrap()
    }
    fn step(&self, session: &mut Session<M>) -> Result<()> {
        self.log.lock().unwrap().push(self.name);
        // It holds none, and may enter one.
        drop(session.enter()?);
        (self.does)(self)
    }
}

fn took(log: &Arc<Mutex<Vec<&'static str>>>) -> Vec<&'static str> {
    std::mem::take(&mut log.lock().unwrap())
}

#[test]
fn the_most_urgent_runs_first_and_equals_take_turns() {
    let (pool, log) = (pool(), Arc::default());
    let mut session = pool.session().unwrap();
    assert_eq!(pool.tick(&mut session).unwrap(), Tick::Idle(None), "nobody is there");
    let a = Told::new("a", Due::Now(Urgency::Due), &log).on(&pool);
    let b = Told::new("b", Due::Now(Urgency::Due), &log).on(&pool);
    let ends = |told: &Told| {
        told.be(Due::No);
        Ok(())
    };
    let c = Told::new("c", Due::Now(Urgency::Pressing), &log).doing(ends).on(&pool);
    for _ in 0..5 {
        assert_eq!(pool.tick(&mut session).unwrap(), Tick::Worked);
    }
    assert_eq!(took(&log), ["c", "a", "b", "a", "b"]);
    a.be(Due::In(Duration::from_secs(7)));
    b.be(Due::In(Duration::from_secs(5)));
    assert_eq!(pool.tick(&mut session).unwrap(), Tick::Idle(Some(Duration::from_secs(5))));
    let disk = Told { lane: Lane::Disk, ..Told::new("disk", Due::Now(Urgency::Leisure), &log) }.on(&pool);
    assert!(matches!(pool.tick_in(&mut session, &[Lane::Prompt]).unwrap(), Tick::Idle(Some(_))));
    assert_eq!(pool.tick_in(&mut session, &[Lane::Disk]).unwrap(), Tick::Worked);
    assert_eq!(took(&log), ["disk"]);
    drop((a, b, c, disk));
    assert_eq!(pool.tick(&mut session).unwrap(), Tick::Idle(None), "the registry keeps nobody alive");
}

#[test]
fn an_error_is_told_once_and_its_service_rests() {
    let (pool, log) = (pool(), Arc::default());
    let mut session = pool.session().unwrap();
    let failing = |_: &Told| Err(Error::Full { needed: 7 });
    let bad = Told::new("the bad one", Due::Now(Urgency::Pressing), &log).doing(failing).on(&pool);
    let good = Told::new("good", Due::Now(Urgency::Leisure), &log).on(&pool);
    let error = pool.tick(&mut session).unwrap_err();
    assert!(error.to_string().starts_with("the bad one failed: the pool is full"), "{error}");
    pool.services().admit(&mut session).expect("tick has told it");
    // What has nobody to tell reports: the next writer is told, once.
    pool.services().report(error);
    pool.services().report(Error::Forked);
    assert!(matches!(pool.services().admit(&mut session), Err(Error::Service { .. })));
    pool.services().admit(&mut session).unwrap();
    // Meanwhile others have their turn.
    assert_eq!(pool.tick(&mut session).unwrap(), Tick::Worked);
    assert_eq!(took(&log), ["the bad one", "good"]);
    good.be(Due::No);
    let Tick::Idle(Some(rest)) = pool.tick(&mut session).unwrap() else { panic!("it rests") };
    std::thread::sleep(rest);
    assert!(pool.tick(&mut session).is_err(), "it is called again");
    drop(bad);
}

#[test]
fn a_panic_retires_its_service_and_is_told_from_then_on() {
    let (pool, log) = (pool(), Arc::default());
    let mut session = pool.session().unwrap();
    let bad = Told::new("the mad one", Due::Now(Urgency::Pressing), &log).doing(|_| panic!("planted")).on(&pool);
    let good = Told::new("good", Due::Now(Urgency::Leisure), &log).on(&pool);
    bad.registered.get().unwrap().hold_writers(true);
    let caught = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| pool.tick(&mut session)));
    assert!(caught.is_err(), "whoever ticks sees it");
    for _ in 0..2 {
        let error = pool.services().admit(&mut session).unwrap_err();
        assert!(matches!(&error, Error::ServicePanicked { service } if service == "the mad one"), "{error}");
    }
    assert_eq!(pool.tick(&mut session).unwrap(), Tick::Worked);
    assert_eq!(took(&log), ["the mad one", "good"]);
    drop((bad, good, session));
    pool.close().unwrap();
}

#[test]
fn a_held_writer_does_the_work_itself() {
    let (pool, log) = (pool(), Arc::default());
    let mut session = pool.session().unwrap();
    let left = AtomicU64::new(3);
    let service = Told::new("merge", Due::No, &log).doing(move |merge| {
        if left.fetch_sub(1, SeqCst) == 1 {
            merge.registered.get().unwrap().hold_writers(false);
        }
        Ok(())
    });
    let service = service.on(&pool);
    let other = Told::new("other", Due::Now(Urgency::Pressing), &log).on(&pool);
    pool.services().admit(&mut session).unwrap();
    assert!(took(&log).is_empty());
    service.registered.get().unwrap().hold_writers(true);
    service.registered.get().unwrap().hold_writers(true);
    pool.services().admit(&mut session).unwrap();
    assert_eq!(took(&log), ["merge"; 3], "its own work alone, until it is done");
    pool.services().admit(&mut session).unwrap();
    // One that goes away holds nobody.
    service.registered.get().unwrap().hold_writers(true);
    drop(service);
    pool.services().admit(&mut session).unwrap();
    assert!(took(&log).is_empty());
    drop(other);
}

#[test]
fn patience_with_a_service_that_is_outrun_ends() {
    let (pool, log) = (pool(), Arc::default());
    let mut session = pool.session().unwrap();
    let slow = Told::new("the slow one", Due::No, &log).on(&pool);
    slow.registered.get().unwrap().hold_writers(true);
    let _paused = pool.services().pause(Duration::ZERO);
    let error = pool.services().admit_within(&mut session, Duration::from_millis(20)).unwrap_err();
    assert!(matches!(&error, Error::Overrun { service, .. } if service == "the slow one"), "{error}");
}

/// Runs `step` in a thread that has entered a step of `service` before the rest of the test goes on.
fn while_in_a_step(
    pool: &Pool,
    log: &Arc<Mutex<Vec<&'static str>>>,
    workers: usize,
    rest: impl FnOnce(&Arc<Told>, &AtomicBool),
) {
    let (inside, go) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicBool::new(false)));
    let (entered, goes) = (Arc::clone(&inside), Arc::clone(&go));
    let service = Told::new("long", Due::Now(Urgency::Due), log).doing(move |long| {
        entered.fetch_add(1, SeqCst);
        while !goes.load(SeqCst) {
            std::thread::yield_now();
        }
        long.be(Due::No);
        Ok(())
    });
    let service = Told { workers, ..service }.on(pool);
    std::thread::scope(|s| {
        s.spawn(|| assert_eq!(pool.tick(&mut pool.session().unwrap()).unwrap(), Tick::Worked));
        while inside.load(SeqCst) == 0 {
            std::thread::yield_now();
        }
        rest(&service, &go);
        go.store(true, SeqCst);
    });
}

#[test]
fn a_step_runs_in_as_many_threads_as_the_service_takes() {
    let (pool, log) = (pool(), Arc::default());
    while_in_a_step(&pool, &log, 1, |_, _| {
        assert_eq!(pool.services().workers_wanted(Lane::Prompt), 0);
        assert_eq!(pool.tick(&mut pool.session().unwrap()).unwrap(), Tick::Idle(None), "it is at work");
    });
    while_in_a_step(&pool, &log, 3, |_, go| {
        assert_eq!(pool.services().workers_wanted(Lane::Prompt), 2);
        std::thread::scope(|s| {
            let before = log.lock().unwrap().len();
            s.spawn(|| assert_eq!(pool.tick(&mut pool.session().unwrap()).unwrap(), Tick::Worked));
            while log.lock().unwrap().len() == before {
                std::thread::yield_now();
            }
            assert_eq!(pool.services().workers_wanted(Lane::Prompt), 1, "both are at work");
            go.store(true, SeqCst);
        });
    });
}

/// A structure that is a service: its steps keep it alive.
struct Owner {
    poison: Poison<M>,
    at: Arc<(AtomicBool, AtomicBool)>,
}

impl Structure<M> for Owner {
    const KIND: Kind = Kind { tag: *b"servant\0", version: durix_pmem::Version::new(1) };
    type Options = Arc<(AtomicBool, AtomicBool)>;
    type Error = Error;

    fn create(_: &mut Session<M>, _: &Root<M>, _: &Self::Options) -> Result<()> {
        Ok(())
    }
    fn open(_: &mut Session<M>, root: Root<M>, at: &Self::Options) -> Result<Self> {
        Ok(Owner { poison: Poison::new(root), at: Arc::clone(at) })
    }
}

impl Service<M> for Owner {
    fn name(&self) -> String {
        "the owner".into()
    }
    fn due(&self) -> Due {
        if self.at.1.load(SeqCst) { Due::No } else { Due::Now(Urgency::Due) }
    }
    fn step(&self, session: &mut Session<M>) -> Result<()> {
        self.at.0.store(true, SeqCst);
        while !self.at.1.load(SeqCst) {
            std::thread::yield_now();
        }
        self.poison.check(&session.enter()?)
    }
}

/// With a step in progress that keeps a structure alive which its user has let go of: runs `then`, and lets the step end a
/// little later.
fn after_the_last_handle(then: impl FnOnce(&Pool)) {
    let (pool, at) = (pool(), Arc::new((AtomicBool::new(false), AtomicBool::new(false))));
    let owner = pool.open_structure::<Owner>("o", &at).unwrap();
    pool.services().register(&owner);
    std::thread::scope(|s| {
        s.spawn(|| assert_eq!(pool.tick(&mut pool.session().unwrap()).unwrap(), Tick::Worked));
        while !at.0.load(SeqCst) {
            std::thread::yield_now();
        }
        drop(owner);
        s.spawn(|| {
            std::thread::sleep(Duration::from_millis(30));
            at.1.store(true, SeqCst);
        });
        then(&pool);
        assert!(at.1.load(SeqCst), "it has waited for the step");
    });
}

#[test]
fn closing_waits_for_a_step_that_keeps_a_structure_alive() {
    after_the_last_handle(|pool| pool.close().unwrap());
}

#[test]
fn an_index_that_only_a_step_keeps_alive_can_be_dropped() {
    after_the_last_handle(|pool| pool.drop_index("o").unwrap());
}

/// Counts how often it is woken.
#[derive(Default)]
struct Woken([AtomicUsize; Lane::ALL.len()]);

impl Driver for Woken {
    fn wake(&self, lane: Lane) {
        self.0[lane as usize].fetch_add(1, SeqCst);
    }
}

#[test]
fn a_driver_is_woken_for_what_is_due_and_by_its_services() {
    let (pool, log) = (pool(), Arc::default());
    let woken = Arc::new(Woken::default());
    let counts = || Lane::ALL.map(|lane| woken.0[lane as usize].load(SeqCst));
    let quiet = Told::new("quiet", Due::No, &log).on(&pool);
    quiet.registered.get().unwrap().wake();
    pool.services().drive(Some(woken.clone()));
    assert_eq!(counts(), [0, 0, 0]);
    quiet.registered.get().unwrap().wake();
    assert_eq!(counts(), [1, 0, 0]);
    let disk = Told { lane: Lane::Disk, ..Told::new("disk", Due::In(Duration::from_secs(1)), &log) }.on(&pool);
    assert_eq!(counts(), [1, 0, 1]);
    pool.services().drive(Some(woken.clone()));
    assert_eq!(counts(), [1, 0, 2]);
    drop(pool.services().pause(Duration::ZERO));
    assert_eq!(counts(), [2, 1, 3], "what came during the pause is not forgotten");
    pool.services().drive(None);
    quiet.registered.get().unwrap().wake();
    assert_eq!(counts(), [2, 1, 3]);
    drop(disk);
}

#[test]
fn the_checkpoint_is_a_service_that_is_due_where_an_operation_has_begun() {
    let pool = pool();
    let mut session = pool.session().unwrap();
    let epochs = pool.epochs().unwrap();
    epochs.set_interval(Duration::from_millis(5));
    let boundaries = || epochs.stats().boundaries;
    let tick_until = |session: &mut _, done: &dyn Fn() -> bool| {
        let start = Instant::now();
        while !done() && start.elapsed() < Duration::from_secs(20) {
            let _ = pool.tick(session).unwrap();
        }
    };
    let ticket = epochs.ticket(&session.enter().unwrap());
    tick_until(&mut session, &|| epochs.is_durable(ticket));
    assert_eq!(boundaries(), 1);
    let start = Instant::now();
    tick_until(&mut session, &|| start.elapsed() > Duration::from_millis(50));
    assert_eq!(boundaries(), 1, "nothing has happened since");
    drop(session.enter().unwrap());
    tick_until(&mut session, &|| boundaries() > 1);
    assert_eq!(boundaries(), 2);
    epochs.stop("broken".into());
    drop(session.enter().unwrap());
    std::thread::sleep(Duration::from_millis(6));
    assert_eq!(
        pool.tick(&mut session).unwrap(),
        Tick::Idle(None),
        "it crosses none, and does not fail again and again"
    );
}

#[test]
fn a_session_of_another_pool_is_refused() {
    let (pool, other) = (pool(), pool());
    assert!(matches!(pool.tick(&mut other.session().unwrap()), Err(Error::ForeignSession)));
}
