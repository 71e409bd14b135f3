//! The schedulers of [shuttle](::shuttle) in the place of our own: they pick the threads, we run them.
//!
//! shuttle drives threads of its own, and tells nobody what its schedulers have picked. So each simulated thread has a
//! *shadow* among shuttle's threads, which does nothing but give it its next turn: one access, as our own schedulers do. A
//! shadow whose thread waits yields.

use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;

use ::shuttle::scheduler::{Schedule, Scheduler, Task, TaskId};
use ::shuttle::sync::atomic::AtomicUsize;
use ::shuttle::{Config, FailurePersistence, MaxSteps, Runner};

use super::schedule::Turn;

/// Bytes of the stack on which shuttle runs an execution and the recoveries after it.
const STACK: usize = 4 << 20;

type Job<'j> = dyn FnMut() -> bool + 'j;
type GiveTurn<'t> = dyn FnMut(usize) -> Turn + 't;

thread_local! {
    /// Runs one execution. False: no more are wanted.
    static JOB: Cell<Option<*mut Job<'static>>> = const { Cell::new(None) };
    /// Of the execution under way.
    static GIVE_TURN: Cell<Option<*mut GiveTurn<'static>>> = const { Cell::new(None) };
    static ENOUGH: Cell<bool> = const { Cell::new(false) };
}

/// Calls `job` once for each execution that the scheduler wants, until it gives false.
pub(crate) fn run(scheduler: impl Scheduler + 'static, job: &mut Job<'_>) {
    let mut config = Config::new();
    config.stack_size = STACK;
    config.failure_persistence = FailurePersistence::None;
    config.max_steps = MaxSteps::None;
    ENOUGH.set(false);
    // SAFETY: only the lifetime changes; the pointer is taken back below, before `job` ends.
    JOB.set(Some(unsafe { std::mem::transmute::<*mut Job<'_>, *mut Job<'static>>(job) }));
    let _reset = Reset;
    Runner::new(UntilEnough(scheduler), config).run(|| {
        let Some(job) = JOB.get() else { return };
        // SAFETY: `run` holds the only reference to the job, and waits for shuttle, which runs one execution at a time.
        ENOUGH.set(!unsafe { (*job)() });
    });
}

/// Leaves no pointer behind, whatever happens.
struct Reset;

impl Drop for Reset {
    fn drop(&mut self) {
        JOB.set(None);
        GIVE_TURN.set(None);
    }
}

/// Has shuttle's scheduler pick threads, until all are over: `give_turn` lets one of them take its turn.
pub(crate) fn drive(threads: usize, give_turn: &mut GiveTurn<'_>) {
    // SAFETY: only the lifetime changes; all shadows are joined, and the pointer taken back, before `give_turn` ends.
    GIVE_TURN.set(Some(unsafe { std::mem::transmute::<*mut GiveTurn<'_>, *mut GiveTurn<'static>>(give_turn) }));
    let met = Arc::new(AtomicUsize::new(0));
    let shadow = |number| {
        let met = Arc::clone(&met);
        ::shuttle::thread::spawn(move || shadow(number, &met))
    };
    let shadows: Vec<_> = (0..threads).map(shadow).collect();
    for shadow in shadows {
        shadow.join().expect("a shadow only gives turns, whose panics are caught");
    }
    GIVE_TURN.set(None);
}

fn shadow(number: usize, met: &AtomicUsize) {
    while let Some(give_turn) = GIVE_TURN.get() {
        // SAFETY: `drive` keeps it until its shadows are joined; they are coroutines on one thread of the operating system,
        // none of which is interrupted within a turn.
        match unsafe { (*give_turn)(number) } {
            Turn::Over => return,
            // A place where shuttle may go on with another thread, and not a yield, which some schedulers punish.
            Turn::Goes => _ = met.load(SeqCst),
            Turn::Waits => ::shuttle::thread::yield_now(),
        }
    }
}

struct UntilEnough<S>(S);

impl<S: Scheduler> Scheduler for UntilEnough<S> {
    fn new_execution(&mut self) -> Option<Schedule> {
        if ENOUGH.get() { None } else { self.0.new_execution() }
    }
    fn next_task(&mut self, runnable: &[&Task], current: Option<TaskId>, is_yielding: bool) -> Option<TaskId> {
        self.0.next_task(runnable, current, is_yielding)
    }
    fn next_u64(&mut self) -> u64 {
        self.0.next_u64()
    }
}
