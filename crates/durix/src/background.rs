//! The threads of a database, which run what its pool has to do outside of operations: checkpoints, growth
//! ([`durix_pmem::service`]).
//!
//! There is one thread for each [lane](durix_pmem::Lane) of services: those that never wait for a disk, commits, and what may wait
//! for a disk for long. Each is started when a service of its lane first has something to do, and sleeps until the next step is due or
//! a service wakes it. A thread knows its pool weakly and holds nothing of it while it sleeps; it ends with the database, or when the
//! database is closed. What a step fails at, and a panic in it, is told by the next update or sync; the thread goes on.
//!
//! A service that takes several [workers](durix_pmem::Service::workers) gets helpers: before each of its steps a thread starts as many
//! more as can work on what is due, at most [`HELPERS`] a lane. A helper ends when nothing is due any more.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use durix_pmem::service::REST;
use durix_pmem::{Driver, Error, Lane, Medium, Pool, Tick, WeakPool};

/// Shortest sleep of a thread that has nothing to do.
const NAP: Duration = Duration::from_millis(1);
/// Most threads that help the thread of a lane.
const HELPERS: usize = 7;

/// The threads, while they run.
pub(crate) struct Background<M: Medium> {
    threads: Arc<Threads<M>>,
}

struct Threads<M: Medium> {
    pool: WeakPool<M>,
    stop: AtomicBool,
    lanes: [Mutex<Option<JoinHandle<()>>>; Lane::ALL.len()],
    helpers: [Mutex<Vec<JoinHandle<()>>>; Lane::ALL.len()],
    /// For a thread that is started by another.
    this: std::sync::Weak<Threads<M>>,
}

impl<M: Medium> Background<M> {
    /// Has the services of a pool run in threads from now on.
    pub(crate) fn start(pool: &Pool<M>) -> Self {
        let threads = Arc::new_cyclic(|this| Threads {
            pool: pool.downgrade(),
            stop: AtomicBool::new(false),
            lanes: Default::default(),
            helpers: Default::default(),
            this: this.clone(),
        });
        pool.services().drive(Some(threads.clone()));
        Background { threads }
    }
}

impl<M: Medium> Drop for Background<M> {
    fn drop(&mut self) {
        let pool = self.threads.pool.upgrade();
        if pool.as_ref().is_some_and(|pool| pool.mapping().is_forked()) {
            // The threads are the parent's, and so may be whoever holds a lock here.
            std::mem::forget(Arc::clone(&self.threads));
            return;
        }
        self.threads.stop.store(true, Ordering::Release);
        pool.inspect(|pool| pool.services().drive(None));
        for lane in Lane::ALL {
            // The lock is not held meanwhile: a thread of another lane may wake this one.
            let thread = self.threads.slot(lane).take();
            join(thread);
            let helpers = std::mem::take(&mut *self.threads.helpers(lane));
            join(helpers);
        }
    }
}

/// Waits for threads that were told to end.
fn join(threads: impl IntoIterator<Item = JoinHandle<()>>) {
    for thread in threads {
        thread.thread().unpark();
        // A service that held the last handle to the database drops it here.
        if thread.thread().id() != thread::current().id() {
            let _ = thread.join();
        }
    }
}

impl<M: Medium> Threads<M> {
    fn slot(&self, lane: Lane) -> MutexGuard<'_, Option<JoinHandle<()>>> {
        self.lanes[number(lane)].lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn helpers(&self, lane: Lane) -> MutexGuard<'_, Vec<JoinHandle<()>>> {
        self.helpers[number(lane)].lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn spawn(&self, lane: Lane, body: fn(&Self, Lane)) -> Option<JoinHandle<()>> {
        let threads = self.this.upgrade()?;
        let name = match lane {
            Lane::Prompt => "durix-services",
            Lane::Commit => "durix-commits",
            Lane::Disk => "durix-disk",
        };
        let spawned = thread::Builder::new().name(name.into()).spawn(move || body(&threads, lane));
        match spawned {
            Ok(thread) => Some(thread),
            Err(source) => {
                let error = Error::Io { action: format!("starting the thread {name}"), source };
                self.pool.upgrade().inspect(|pool| pool.services().report(error));
                None
            }
        }
    }

    fn run(&self, lane: Lane) {
        while !self.stop.load(Ordering::Acquire) {
            self.call_helpers(lane);
            match self.turn(lane) {
                Turn::Again => {}
                Turn::Sleep(None) => thread::park(),
                Turn::Sleep(Some(time)) => thread::park_timeout(time.max(NAP)),
                Turn::End => return,
            }
        }
    }

    /// Starts as many helpers as can work beside this thread on what is due.
    fn call_helpers(&self, lane: Lane) {
        let Some(pool) = self.pool.upgrade() else { return };
        let wanted = pool.services().workers_wanted(lane).saturating_sub(1).min(HELPERS);
        if wanted == 0 {
            return;
        }
        let mut helpers = self.helpers(lane);
        helpers.retain(|helper| !helper.is_finished());
        while helpers.len() < wanted && !self.stop.load(Ordering::Acquire) {
            let Some(helper) = self.spawn(lane, Self::help) else { return };
            helpers.push(helper);
        }
    }

    /// Runs steps until none is due.
    fn help(&self, lane: Lane) {
        loop {
            if self.stop.load(Ordering::Acquire) || !matches!(self.turn(lane), Turn::Again) {
                break;
            }
        }
    }

    /// Runs a step, and holds the pool until it ends.
    fn turn(&self, lane: Lane) -> Turn {
        let Some(pool) = self.pool.upgrade() else { return Turn::End };
        let step = || pool.tick_in(&mut pool.session()?, &[lane]);
        match catch_unwind(AssertUnwindSafe(step)) {
            Ok(Ok(Tick::Worked)) => Turn::Again,
            Ok(Ok(Tick::Idle(next))) => Turn::Sleep(next),
            Ok(Err(Error::Forked | Error::Shut { .. })) => Turn::End,
            Ok(Err(Error::TooManySessions { .. })) => Turn::Sleep(Some(REST)),
            Ok(Err(error)) => {
                pool.services().report(error);
                Turn::Again
            }
            // The pool knows, and does not call that service again.
            Err(_) => Turn::Again,
        }
    }
}

fn number(lane: Lane) -> usize {
    match lane {
        Lane::Prompt => 0,
        Lane::Commit => 1,
        Lane::Disk => 2,
    }
}

/// What a thread does next.
enum Turn {
    Again,
    Sleep(Option<Duration>),
    End,
}

impl<M: Medium> Driver for Threads<M> {
    fn wake(&self, lane: Lane) {
        let mut slot = self.slot(lane);
        match &*slot {
            Some(thread) => thread.thread().unpark(),
            None if self.stop.load(Ordering::Acquire) => {}
            None => *slot = self.spawn(lane, Self::run),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicUsize;
    use std::time::Instant;

    use durix_pmem::backing::HeapBacking;
    use durix_pmem::{Due, Hardware, PoolOptions, Result, Service, Session, Urgency};

    use super::*;

    /// Its steps end when three threads are in one, or after a while.
    struct Meeting {
        inside: AtomicUsize,
        most: AtomicUsize,
        is_over: AtomicBool,
    }

    impl Service<Hardware> for Meeting {
        fn name(&self) -> String {
            "a meeting".into()
        }

        fn workers(&self) -> usize {
            3
        }

        fn due(&self) -> Due {
            if self.is_over.load(Ordering::SeqCst) { Due::No } else { Due::Now(Urgency::Due) }
        }

        fn step(&self, _: &mut Session<Hardware>) -> Result<()> {
            let start = Instant::now();
            let inside = self.inside.fetch_add(1, Ordering::SeqCst) + 1;
            self.most.fetch_max(inside, Ordering::SeqCst);
            while self.most.load(Ordering::SeqCst) < 3 && start.elapsed() < Duration::from_secs(60) {
                thread::yield_now();
            }
            self.is_over.store(true, Ordering::SeqCst);
            self.inside.fetch_sub(1, Ordering::SeqCst);
            Ok(())
        }
    }

    #[test]
    fn a_service_has_as_many_threads_as_it_takes_and_they_end_with_the_database() {
        let pool = PoolOptions::new().create_on(HeapBacking::new(32 << 20), Hardware::PAGE_CACHE).unwrap();
        let background = Background::start(&pool);
        let most = AtomicUsize::new(0);
        let meeting = Arc::new(Meeting { inside: AtomicUsize::new(0), most, is_over: AtomicBool::new(false) });
        let _registered = pool.services().register(&meeting);
        while !meeting.is_over.load(Ordering::SeqCst) {
            thread::yield_now();
        }
        drop(background);
        let [most, inside] = [&meeting.most, &meeting.inside].map(|count| count.load(Ordering::SeqCst));
        assert_eq!((most, inside), (3, 0));
    }
}
