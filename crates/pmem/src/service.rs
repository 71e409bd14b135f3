//! Services: work that runs outside of operations.
//!
//! A structure, or the pool itself, [registers](Services::register) a [`Service`]: a checkpoint, a merge, a sweep, growth. This
//! crate starts no thread. Any thread that calls [`Pool::tick`](crate::Pool::tick) runs a step of the most urgent service
//! that is due. A [`Driver`] is what a program installs to be told when a call is worth it; the facade installs one that has
//! threads of its own.
//!
//! # The rules
//!
//! | of | rule |
//! |---|---|
//! | a step | bounded work. It is called without an operation and without a lock, and enters operations of its own through the session that it gets. It may run in several threads at a time only if [`Service::workers`] says so. |
//! | writers | never wait for a service, but in [`Services::admit`], which whoever updates calls before entering an operation. A service that is outrun holds writers there ([`Registered::hold_writers`]); the writers run its steps meanwhile, so this ends without any other thread. |
//! | disks | a service whose steps may wait for a disk is of [`Lane::Disk`], and one that makes commits of [`Lane::Commit`]. They delay none of another lane, if each lane has a thread that drives it. |
//! | errors | come out of `tick`. A thread that has nobody to tell hands them to [`Services::report`], and the next [`admit`](Services::admit) or [`failure`](Services::failure) returns them, once. A service whose step has failed rests for [`REST`]. |
//! | panics | come out of `tick` too. The service is called no more, and every later `admit` and `failure` is [`Error::ServicePanicked`] until the pool is opened again. A step that may leave a write half done guards it by [`Poison`](crate::pool::Poison), as an operation does. |
//! | closing | [`Pool::close`](crate::Pool::close) and [`Pool::drop_index`](crate::Pool::drop_index) [pause](Services::pause) all services: steps that run come to their end, others do not begin. The pool crosses its last boundary itself. A service gets no last call: what it must not leave undone, it keeps in the pool, for the service of the next opening. |
//! | the end of a structure | the registry holds it weakly, and a step keeps it alive only while it runs. |
//! | fork | in a forked child `tick` fails with [`Error::Forked`], and no service is called. |

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use crate::error::{Error, Result};
use crate::lock::Lock;
use crate::medium::{GIVES_WAY, Medium, Rmw};
use crate::session::Session;

/// How long a service is left alone after a step that failed.
pub const REST: Duration = Duration::from_millis(100);
/// How long [`Services::admit`] lets a writer wait.
pub const ADMIT_PATIENCE: Duration = Duration::from_secs(10);

/// Whether the steps of a service may wait for a disk, and how long.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Lane {
    /// They wait for memory, and for operations in flight, at most.
    Prompt,
    /// They wait for one flush of a journal, which somebody may count on.
    Commit,
    /// They may wait for a disk, for long.
    Disk,
}

impl Lane {
    /// All of them.
    pub const ALL: [Lane; 3] = [Lane::Prompt, Lane::Commit, Lane::Disk];
}

/// How urgent the work of a service is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Urgency {
    /// Improves something; nothing suffers if it comes late.
    Leisure,
    /// Its time has come.
    Due,
    /// Somebody will have to wait if it is not done soon.
    Pressing,
}

/// What a service has to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Due {
    /// Nothing, until something changes; the service then [wakes](Registered::wake) whoever drives it.
    No,
    /// Nothing for that long.
    In(Duration),
    /// A step, now.
    Now(Urgency),
}

/// Work that runs outside of operations, in bounded steps. See the [module](self) for the rules.
pub trait Service<M: Medium>: Send + Sync {
    /// What messages call it, e.g. `the merge of index "users"`.
    fn name(&self) -> String;

    /// Whether its steps may wait for a disk.
    fn lane(&self) -> Lane {
        Lane::Prompt
    }

    /// How many threads can work on it at a time. More than one: [`step`](Service::step) is then called by several threads.
    fn workers(&self) -> usize {
        1
    }

    /// What there is to do. Called often, so it costs a few loads; it must not enter an operation, nor wait.
    fn due(&self) -> Due;

    /// Does a bounded part of the work: at most some milliseconds, waits for disks aside. No operation is open in `session`.
    ///
    /// # Errors
    /// What went wrong; the service is called again after [`REST`]. [`Error::Shut`] and [`Error::Forked`] are passed on as
    /// they are.
    fn step(&self, session: &mut Session<M>) -> Result<()>;
}

/// What a call of [`Pool::tick`](crate::Pool::tick) has done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "it says when to call again"]
pub enum Tick {
    /// A step: there may be more to do now.
    Worked,
    /// Nothing: no step will be due for that long, or until a service [wakes](Driver::wake) its driver.
    Idle(Option<Duration>),
}

/// Is told when services of a lane have something to do. Whoever implements it has threads that call
/// [`Pool::tick`](crate::Pool::tick).
pub trait Driver: Send + Sync {
    /// A step of that lane may be due now. Called from operations too: it must be quick, and must not use the pool.
    fn wake(&self, lane: Lane);
}

/// The services of a pool.
pub struct Services<M: Medium> {
    shared: Arc<Shared<M>>,
}

struct Shared<M: Medium> {
    m: M,
    entries: Lock<Vec<Arc<Entry<M>>>>,
    /// Bit 0: an error waits to be told. Above: how many services hold writers.
    alarm: AtomicU64,
    /// Low half: threads that look at the services, or run a step. High half: who wants none to begin.
    looks: AtomicU64,
    failures: Lock<Failures>,
    driver: Lock<Option<Arc<dyn Driver>>>,
    /// 1 while there is a driver.
    driven: AtomicU64,
    /// Number of the last step begun: who ran longest ago comes first among equals.
    turns: AtomicU64,
}

const FAILED: u64 = 1;
const HOLDS: u64 = 2;
const PAUSE: u64 = 1 << 32;

#[derive(Default)]
struct Failures {
    /// The first that was not told yet.
    pending: Option<Error>,
    /// The first service that panicked.
    panicked: Option<String>,
}

struct Entry<M: Medium> {
    service: Weak<dyn Service<M>>,
    name: String,
    lane: Lane,
    /// Threads in its step.
    running: AtomicU64,
    /// 1 while it holds writers.
    holds: AtomicU64,
    /// 1 after a panic.
    retired: AtomicU64,
    /// The turn of its last step.
    last: AtomicU64,
    /// Until when it is left alone.
    rests: Lock<Option<Instant>>,
}

impl<M: Medium> fmt::Debug for Services<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Services")
    }
}

/// A service as its pool knows it: what it tells its drivers and its writers through.
pub struct Registered<M: Medium> {
    shared: Arc<Shared<M>>,
    entry: Arc<Entry<M>>,
}

impl<M: Medium> Clone for Registered<M> {
    fn clone(&self) -> Self {
        Registered { shared: Arc::clone(&self.shared), entry: Arc::clone(&self.entry) }
    }
}

impl<M: Medium> fmt::Debug for Registered<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Registered").field(&self.entry.name).finish()
    }
}

impl<M: Medium> Registered<M> {
    /// Says that a step may be due now. A load where nobody drives the services; it may be called inside an operation.
    pub fn wake(&self) {
        self.shared.wake(self.entry.lane);
    }

    /// Whether anybody drives the services.
    pub fn is_driven(&self) -> bool {
        self.shared.m.shared_load(&self.shared.driven, Ordering::Acquire) == 1
    }

    /// Back-pressure: holds writers in [`Services::admit`] until it is taken back; they run steps of this service
    /// meanwhile, whatever [`Service::due`] says. It ends by itself when the service goes away or panics.
    pub fn hold_writers(&self, hold: bool) {
        self.shared.hold(&self.entry, hold);
    }
}

impl<M: Medium> Shared<M> {
    fn wake(&self, lane: Lane) {
        if self.m.shared_load(&self.driven, Ordering::Acquire) == 1 {
            let driver = self.driver.lock(self.m).clone();
            driver.inspect(|driver| driver.wake(lane));
        }
    }

    fn hold(&self, entry: &Entry<M>, hold: bool) {
        let held = self.m.shared_rmw(&entry.holds, Rmw::Swap, u64::from(hold)) == 1;
        match (held, hold) {
            (false, true) => _ = self.m.shared_rmw(&self.alarm, Rmw::Add, HOLDS),
            (true, false) => _ = self.m.shared_rmw(&self.alarm, Rmw::Add, HOLDS.wrapping_neg()),
            _ => {}
        }
    }

    fn fail(&self, set: impl FnOnce(&mut Failures)) {
        set(&mut self.failures.lock(self.m));
        self.m.shared_rmw(&self.alarm, Rmw::Or, FAILED);
    }
}

impl<M: Medium> Services<M> {
    pub(crate) fn new(m: M) -> Self {
        let shared = Shared {
            m,
            entries: Lock::new(Vec::new()),
            alarm: AtomicU64::new(0),
            looks: AtomicU64::new(0),
            failures: Lock::new(Failures::default()),
            driver: Lock::new(None),
            driven: AtomicU64::new(0),
            turns: AtomicU64::new(0),
        };
        Services { shared: Arc::new(shared) }
    }

    /// Has a service run from now on, for as long as it lives. It is not kept alive.
    pub fn register<S: Service<M> + 'static>(&self, service: &Arc<S>) -> Registered<M> {
        let weak: Weak<S> = Arc::downgrade(service);
        let entry = Arc::new(Entry {
            service: weak,
            name: service.name(),
            lane: service.lane(),
            running: AtomicU64::new(0),
            holds: AtomicU64::new(0),
            retired: AtomicU64::new(0),
            last: AtomicU64::new(0),
            rests: Lock::new(None),
        });
        self.shared.entries.lock(self.shared.m).push(Arc::clone(&entry));
        if service.due() != Due::No {
            self.shared.wake(entry.lane);
        }
        Registered { shared: Arc::clone(&self.shared), entry }
    }

    // ---- drivers ----

    /// Installs what drives the services, or takes it away. A new one is woken for each lane in which there is a service
    /// with something to do, now or later.
    pub fn drive(&self, driver: Option<Arc<dyn Driver>>) {
        let m = self.shared.m;
        m.shared_store(&self.shared.driven, u64::from(driver.is_some()), Ordering::Release);
        let before = std::mem::replace(&mut *self.shared.driver.lock(m), driver);
        drop(before);
        for lane in Lane::ALL {
            // Where they are paused now, the end of the pause wakes it.
            let look = Look::begin(&self.shared);
            if look.is_some() && self.find(&|entry| entry.lane == lane).is_due_ever() {
                self.shared.wake(lane);
            }
        }
    }

    /// Whether there is a [`Driver`].
    pub fn is_driven(&self) -> bool {
        self.shared.m.shared_load(&self.shared.driven, Ordering::Acquire) == 1
    }

    /// How many more threads could work on the services of a lane now. A driver with threads to spare asks.
    pub fn workers_wanted(&self, lane: Lane) -> usize {
        let m = self.shared.m;
        let Some(_look) = Look::begin(&self.shared) else { return 0 };
        let wanted = |entry: &Arc<Entry<M>>| {
            let service = entry.service.upgrade().filter(|service| matches!(service.due(), Due::Now(_)))?;
            Some(service.workers().saturating_sub(m.shared_load(&entry.running, Ordering::Relaxed) as usize))
        };
        self.entries()
            .iter()
            .filter(|entry| entry.lane == lane && self.is_ready(entry).is_ok())
            .filter_map(wanted)
            .sum()
    }

    /// Keeps an error for the next [`admit`](Self::admit) or [`failure`](Self::failure): for threads that have nobody to tell. Only
    /// the first is kept until it is told.
    pub fn report(&self, error: Error) {
        self.shared.fail(|failures| _ = failures.pending.get_or_insert(error));
    }

    // ---- writers ----

    /// To be called before an update, without an operation: returns what a service has failed at since it was last told,
    /// and waits where a service is outrun, taking part in its work. A load where neither is so.
    ///
    /// # Errors
    /// [`Error::Service`]; [`Error::ServicePanicked`]; [`Error::Overrun`] if the service did not catch up within
    /// [`ADMIT_PATIENCE`]. The update was not begun.
    #[inline]
    pub fn admit(&self, session: &mut Session<M>) -> Result<()> {
        self.admit_within(session, ADMIT_PATIENCE)
    }

    /// As [`admit`](Self::admit), with another patience.
    ///
    /// # Errors
    /// As [`admit`](Self::admit).
    #[inline]
    pub fn admit_within(&self, session: &mut Session<M>, patience: Duration) -> Result<()> {
        if self.shared.m.shared_load(&self.shared.alarm, Ordering::Relaxed) == 0 {
            return Ok(());
        }
        self.admit_alarmed(session, patience)
    }

    #[cold]
    fn admit_alarmed(&self, session: &mut Session<M>, patience: Duration) -> Result<()> {
        self.failure()?;
        let (m, start, mut turn) = (self.shared.m, Instant::now(), 0);
        let holds = |entry: &Entry<M>| m.shared_load(&entry.holds, Ordering::Relaxed) == 1;
        while m.shared_load(&self.shared.alarm, Ordering::Acquire) >= HOLDS {
            if self.step_of(session, &holds, true)? == Tick::Worked {
                turn = 0;
                continue;
            }
            if turn > GIVES_WAY && start.elapsed() > patience {
                let service = self.entries().iter().find(|entry| holds(entry)).map(|entry| entry.name.clone());
                return Err(Error::Overrun { service: service.unwrap_or_default(), waited: start.elapsed() });
            }
            m.spin(turn);
            turn = turn.saturating_add(1);
        }
        Ok(())
    }

    /// What a service has failed at since it was last told.
    ///
    /// # Errors
    /// [`Error::Service`], once; [`Error::ServicePanicked`], always.
    pub fn failure(&self) -> Result<()> {
        let shared = &*self.shared;
        if shared.m.shared_load(&shared.alarm, Ordering::Acquire) & FAILED == 0 {
            return Ok(());
        }
        let mut failures = shared.failures.lock(shared.m);
        if let Some(service) = &failures.panicked {
            return Err(Error::ServicePanicked { service: service.clone() });
        }
        shared.m.shared_rmw(&shared.alarm, Rmw::And, !FAILED);
        failures.pending.take().map_or(Ok(()), Err)
    }

    // ---- steps ----

    /// Lets no step begin as long as the result lives, and waits until none runs, or for `patience`.
    pub fn pause(&self, patience: Duration) -> Paused<'_, M> {
        let m = self.shared.m;
        m.shared_rmw(&self.shared.looks, Rmw::Add, PAUSE);
        let (start, mut turn) = (Instant::now(), 0);
        let paused = Paused { services: self };
        while !paused.is_complete() {
            if turn > GIVES_WAY && start.elapsed() > patience {
                break;
            }
            m.spin(turn);
            turn = turn.saturating_add(1);
        }
        paused
    }

    /// Runs a step of the most urgent service of these lanes, if one is due.
    pub(crate) fn tick(&self, session: &mut Session<M>, lanes: &[Lane]) -> Result<Tick> {
        self.step_of(session, &|entry| lanes.contains(&entry.lane), false)
    }

    /// Runs a step of the most urgent of some services; with `forced`, also one that says that nothing is due.
    fn step_of(&self, session: &mut Session<M>, wanted: &dyn Fn(&Entry<M>) -> bool, forced: bool) -> Result<Tick> {
        let Some(_look) = Look::begin(&self.shared) else { return Ok(Tick::Idle(Some(REST))) };
        let found = self.find(wanted);
        let Some((entry, service)) = found.now.or(found.later.filter(|_| forced)) else {
            return Ok(Tick::Idle(found.next));
        };
        let Some(_running) = Running::begin(&self.shared, &entry, service.workers()) else {
            return Ok(Tick::Idle(Some(REST)));
        };
        match service.step(session) {
            Ok(()) => Ok(Tick::Worked),
            Err(error @ (Error::Forked | Error::Shut { .. })) => Err(error),
            Err(source) => {
                *entry.rests.lock(self.shared.m) = Some(Instant::now() + REST);
                Err(Error::Service { service: entry.name.clone(), source: Box::new(source) })
            }
        }
    }

    /// The registered services. Nothing is called under the lock, and a service that goes away goes outside of it.
    fn entries(&self) -> Vec<Arc<Entry<M>>> {
        self.shared.entries.lock(self.shared.m).clone()
    }

    /// Whether a service may be called now, otherwise when.
    fn is_ready(&self, entry: &Entry<M>) -> Result<(), Option<Duration>> {
        let m = self.shared.m;
        if m.shared_load(&entry.retired, Ordering::Acquire) == 1 {
            return Err(None);
        }
        let left = entry.rests.lock(m).and_then(|until| until.checked_duration_since(Instant::now()));
        left.filter(|left| !left.is_zero()).map_or(Ok(()), |left| Err(Some(left)))
    }

    /// The most urgent of some services, and when there will be one.
    fn find(&self, wanted: &dyn Fn(&Entry<M>) -> bool) -> Found<M> {
        let (m, mut found) = (self.shared.m, Found { now: None, later: None, next: None });
        let mut best = None;
        for entry in self.entries().into_iter().filter(|entry| wanted(entry)) {
            let Some(service) = entry.service.upgrade() else {
                self.forget(&entry);
                continue;
            };
            let due = match self.is_ready(&entry) {
                Ok(()) => service.due(),
                Err(left) => {
                    found.sooner(left);
                    continue;
                }
            };
            if m.shared_load(&entry.running, Ordering::Relaxed) as usize >= service.workers() {
                continue;
            }
            match due {
                Due::Now(urgency) => {
                    let rank = (urgency, u64::MAX - m.shared_load(&entry.last, Ordering::Relaxed));
                    if best.is_none_or(|best| rank > best) {
                        (best, found.now) = (Some(rank), Some((entry, service)));
                    }
                }
                Due::In(left) => {
                    found.sooner(Some(left));
                    found.later = Some((entry, service));
                }
                Due::No => found.later = Some((entry, service)),
            }
        }
        found
    }

    /// Removes a service that has gone away.
    fn forget(&self, gone: &Arc<Entry<M>>) {
        self.shared.hold(gone, false);
        self.shared.entries.lock(self.shared.m).retain(|entry| !Arc::ptr_eq(entry, gone));
    }
}

/// A service that a look keeps alive.
type Alive<M> = (Arc<Entry<M>>, Arc<dyn Service<M>>);

/// What [`Services::find`] has found.
struct Found<M: Medium> {
    /// The most urgent that is due.
    now: Option<Alive<M>>,
    /// One that is not.
    later: Option<Alive<M>>,
    /// When one will be.
    next: Option<Duration>,
}

impl<M: Medium> Found<M> {
    fn sooner(&mut self, left: Option<Duration>) {
        self.next = [self.next, left].into_iter().flatten().min();
    }

    fn is_due_ever(&self) -> bool {
        self.now.is_some() || self.next.is_some()
    }
}

/// A look at the services, which keeps them alive, and the step that may follow: what [`Services::pause`] waits for.
struct Look<'a, M: Medium>(&'a Shared<M>);

impl<'a, M: Medium> Look<'a, M> {
    /// Unless services are paused.
    fn begin(shared: &'a Shared<M>) -> Option<Self> {
        let mut looks = shared.m.shared_load(&shared.looks, Ordering::Relaxed);
        while looks < PAUSE {
            match shared.m.shared_compare_exchange(&shared.looks, looks, looks + 1) {
                Ok(_) => return Some(Look(shared)),
                Err(now) => looks = now,
            }
        }
        None
    }
}

impl<M: Medium> Drop for Look<'_, M> {
    fn drop(&mut self) {
        self.0.m.shared_rmw(&self.0.looks, Rmw::Add, u64::MAX);
    }
}

/// A step while it runs.
struct Running<'a, M: Medium> {
    shared: &'a Shared<M>,
    entry: &'a Entry<M>,
    panicking: bool,
}

impl<'a, M: Medium> Running<'a, M> {
    /// Unless as many threads as the service takes are at it.
    fn begin(shared: &'a Shared<M>, entry: &'a Entry<M>, workers: usize) -> Option<Self> {
        let m = shared.m;
        if m.shared_rmw(&entry.running, Rmw::Add, 1) >= workers as u64 {
            m.shared_rmw(&entry.running, Rmw::Add, u64::MAX);
            return None;
        }
        let turn = m.shared_rmw(&shared.turns, Rmw::Add, 1) + 1;
        m.shared_store(&entry.last, turn, Ordering::Relaxed);
        Some(Running { shared, entry, panicking: std::thread::panicking() })
    }
}

impl<M: Medium> Drop for Running<'_, M> {
    fn drop(&mut self) {
        let (m, shared) = (self.shared.m, self.shared);
        if !self.panicking && std::thread::panicking() {
            m.shared_store(&self.entry.retired, 1, Ordering::Release);
            shared.hold(self.entry, false);
            shared.fail(|failures| _ = failures.panicked.get_or_insert_with(|| self.entry.name.clone()));
        }
        m.shared_rmw(&self.entry.running, Rmw::Add, u64::MAX);
    }
}

/// While it lives, no step of a service begins.
#[must_use = "services go on when it is dropped"]
pub struct Paused<'a, M: Medium> {
    services: &'a Services<M>,
}

impl<M: Medium> Paused<'_, M> {
    /// Whether no step runs; false if patience has ended first.
    pub fn is_complete(&self) -> bool {
        let shared = &*self.services.shared;
        shared.m.shared_load(&shared.looks, Ordering::Acquire).is_multiple_of(PAUSE)
    }
}

impl<M: Medium> fmt::Debug for Paused<'_, M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Paused")
    }
}

impl<M: Medium> Drop for Paused<'_, M> {
    fn drop(&mut self) {
        let shared = &*self.services.shared;
        let looks = shared.m.shared_rmw(&shared.looks, Rmw::Add, PAUSE.wrapping_neg());
        if looks / PAUSE == 1 {
            Lane::ALL.into_iter().for_each(|lane| shared.wake(lane));
        }
    }
}
