//! Simulated threads as coroutines on one thread of the operating system.

use std::cell::{Cell, RefCell};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::AtomicU64;

use corosensei::stack::DefaultStack;
use corosensei::{Coroutine, CoroutineResult, Yielder};

#[cfg(feature = "shuttle")]
use super::schedule::Turn;
use super::schedule::{Scheduler, Step, Wrong};
use crate::model::trace::At;
use crate::panics::message_of;

/// Bytes of a coroutine's stack.
const STACK: usize = 1 << 20;

/// Rounds in which no thread comes to its end, after which those that are left are unwound.
const MAX_ROUNDS: usize = 10_000;

type Ticket = Yielder<(), ()>;

thread_local! {
    static SCHEDULER: RefCell<Option<Scheduler>> = const { RefCell::new(None) };
    /// The way back to the scheduler's loop, for the coroutine that runs.
    static TICKET: Cell<*const Ticket> = const { Cell::new(std::ptr::null()) };
    static STACKS: RefCell<Vec<DefaultStack>> = const { RefCell::new(Vec::new()) };
}

/// Runs `f` with this thread's scheduler, if there is one and it is not at work already.
fn with<R>(f: impl FnOnce(&mut Scheduler) -> R) -> Option<R> {
    SCHEDULER.with_borrow_mut(|scheduler| scheduler.as_mut().map(f))
}

/// An access, or another step that threads can see of each other: other threads may come first.
#[cold]
pub(crate) fn meet(word: Option<&AtomicU64>, step: Step, at: At) {
    // While a panic unwinds, nothing else runs on this thread of the operating system.
    if std::thread::panicking() {
        return;
    }
    if with(|scheduler| scheduler.arrive(word, step, at)) == Some(true) {
        suspend();
    }
    with(|scheduler| scheduler.perform(word, step));
}

/// Lets the scheduler's loop go on, until it resumes this coroutine.
fn suspend() {
    let ticket = TICKET.get();
    // SAFETY: `arrive` asks for this only while a coroutine runs, whose first action was to set its ticket, and which the
    // loop sets again whenever it resumes it; the yielder lives on the coroutine's own stack as long as that runs.
    unsafe { (*ticket).suspend(()) };
}

/// What one simulated thread does: calls `begin` before each operation and `end` with the number of its answer.
pub(crate) trait Body {
    fn run(&mut self);
}

/// The next operation of the current thread, by its number among all.
#[track_caller]
pub(crate) fn begin(op: usize) {
    meet(None, Step::Begin(op), std::panic::Location::caller());
}

/// It has returned.
pub(crate) fn end(op: usize, answer: usize) {
    with(|scheduler| scheduler.returned(op, answer));
}

/// Runs simulated threads to their end, interleaved as the scheduler says. It is handed over for the time, so that the
/// medium finds it.
pub(crate) fn interleave(scheduler: Scheduler, bodies: &mut [Box<dyn Body + '_>]) -> Scheduler {
    SCHEDULER.set(Some(scheduler));
    let _reset = Reset;
    let tickets: Vec<Cell<*const Ticket>> = bodies.iter().map(|_| Cell::new(std::ptr::null())).collect();
    let mut threads: Vec<Coroutine<(), (), ()>> = bodies.iter_mut().zip(&tickets).map(|(b, t)| spawn(b, t)).collect();
    with(|scheduler| scheduler.observe());
    with(Scheduler::start);
    #[cfg(feature = "shuttle")]
    if with(|scheduler| scheduler.is_driven()) == Some(true) {
        super::shuttle::drive(threads.len(), &mut |number| {
            let turn = with(|scheduler| scheduler.take_turn(number)).unwrap_or(Turn::Over);
            if turn == Turn::Goes {
                resume(&mut threads[number], number, &tickets[number]);
            }
            turn
        });
    }
    while let Some(next) = with(Scheduler::take_next).flatten() {
        resume(&mut threads[next], next, &tickets[next]);
    }
    with(Scheduler::cut);
    finish(&mut threads, &tickets);
    for thread in threads {
        if thread.done() {
            STACKS.with_borrow_mut(|stacks| stacks.push(thread.into_stack()));
        }
    }
    SCHEDULER.take().expect("set above")
}

/// Leaves no scheduler behind, whatever happens.
struct Reset;

impl Drop for Reset {
    fn drop(&mut self) {
        SCHEDULER.take();
    }
}

fn spawn<'b>(body: &'b mut Box<dyn Body + '_>, ticket: &'b Cell<*const Ticket>) -> Coroutine<(), (), ()> {
    let stack = STACKS.with_borrow_mut(Vec::pop);
    let stack = stack.unwrap_or_else(|| DefaultStack::new(STACK).expect("memory for the stack of a simulated thread"));
    let main = move |yielder: &Ticket, ()| {
        ticket.set(yielder);
        TICKET.set(yielder);
        if let Err(payload) = catch_unwind(AssertUnwindSafe(|| body.run())) {
            // That is also how a thread ends that waits for ever, and is unwound; then something is wrong already.
            with(|scheduler| scheduler.fail(Wrong::Panic(message_of(&*payload))));
        }
    };
    // SAFETY: `interleave` drops or completes the coroutine before it returns, and the body and the ticket outlive it there.
    unsafe { Coroutine::with_stack_unchecked(stack, main) }
}

fn resume(thread: &mut Coroutine<(), (), ()>, number: usize, ticket: &Cell<*const Ticket>) {
    TICKET.set(ticket.get());
    if let CoroutineResult::Return(()) = thread.resume(()) {
        with(|scheduler| scheduler.finished(number));
    }
}

/// Runs what is left, unobserved. What waits for ever is unwound when it is dropped.
fn finish(threads: &mut [Coroutine<(), (), ()>], tickets: &[Cell<*const Ticket>]) {
    for _ in 0..MAX_ROUNDS {
        if threads.iter().all(Coroutine::done) {
            return;
        }
        for (number, thread) in threads.iter_mut().enumerate().filter(|(_, thread)| thread.started() && !thread.done())
        {
            with(|scheduler| scheduler.set_current(Some(number)));
            resume(thread, number, &tickets[number]);
        }
        // One that never started has nothing to finish.
        if threads.iter().all(|thread| thread.done() || !thread.started()) {
            return;
        }
    }
}
