//! The scheduler: which thread takes the next step, and which executions need not be run to their end.

mod choose;

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicU64, Ordering};

use durix_pmem::Rmw;

#[cfg(feature = "shuttle")]
pub(crate) use choose::Turn;
use choose::{Known, Node};

use super::digest::{Digest, Mix};
use super::history::{Mark, Past};
use super::online::{Online, Watch};
use super::words::Words;
use crate::model::layer::Machine;
use crate::model::trace::{At, Event};
use crate::record::recorder::{FINISH, RECORD, Recorder, SCHEDULE};
use crate::record::state::State;

/// Steps after which an execution is taken for endless.
const MAX_STEPS: u64 = 1 << 16;

/// What a thread is about to do.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Step {
    Load,
    Store(u64),
    Exchange(u64, u64),
    Modify(Rmw, u64),
    Fence,
    /// One turn of a loop that waits for others.
    Spin,
    /// The next operation, by its number among all.
    Begin(usize),
}

/// A word that a thread has read, and what it found.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Read {
    Volatile { word: u32, found: u64 },
    Persistent { word: u32, found: u64 },
}

#[derive(Debug, Default)]
struct Thread {
    done: bool,
    /// Everything it has observed.
    seen: Digest,
    steps: u64,
    /// What it is about to do, as far as it can be told without addresses.
    about: Digest,
    at: Option<At>,
    /// In an operation, and beyond its first access: to run another thread now is a preemption.
    inside: bool,
    /// The next access follows its operation's beginning at once.
    fresh: bool,
    spins: bool,
    idle: u8,
    /// What the loop has read since its last turn.
    reads: Vec<Read>,
}

/// A thread that runs without others in between.
#[derive(Clone, Debug)]
pub(crate) struct Segment {
    pub(crate) thread: usize,
    /// Turns that it was given.
    pub(crate) turns: u32,
    /// Length of the trace when it began.
    pub(crate) from: usize,
    /// What it was about to do when another went on in its place.
    pub(crate) stopped: Option<At>,
    /// Whether it could have gone on, within its operation.
    pub(crate) preempted: bool,
}

/// A place for a crash: just before an event of the trace.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CrashPoint {
    pub(crate) seq: usize,
    /// Number of marks before it, and what they say.
    pub(crate) marks: usize,
    pub(crate) past: Digest,
}

/// Why an execution ended before its operations did.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Wrong {
    Panic(String),
    /// All threads that are left wait for each other.
    Deadlock,
    Endless,
    /// The same schedule led elsewhere.
    Nondeterministic,
    /// The event at this position is the return of an operation, by its number, of which something may still be lost.
    Early {
        event: usize,
        op: usize,
        promise: Promise,
        at: At,
    },
}

/// What an operation has to have done when it returns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Promise {
    /// Everything that it has stored is durable.
    Settled,
    /// Everything that it has flushed is fenced.
    Fenced,
}

/// Totals over all executions.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Totals {
    pub(crate) executions: u64,
    pub(crate) steps: u64,
    pub(crate) states: u64,
    pub(crate) preemptions: u32,
    /// Alternatives that the bound on preemptions has ruled out.
    pub(crate) ruled_out: u64,
    /// States that were equal and went on differently.
    pub(crate) hidden: u64,
    /// States whose digest was not that of the state, if digests are verified.
    pub(crate) stale: u64,
}

#[derive(Debug)]
pub(crate) struct Scheduler {
    recorder: &'static Recorder,
    machine: Machine,
    bound: Option<u32>,
    prunes: bool,
    /// Whether digests are compared with fresh ones.
    verifies: bool,
    /// Whether creating the structure leaves nothing open, once that is known.
    settled: Option<bool>,
    /// The seed of a schedule picked at random.
    sampled: Option<u64>,
    /// Which schedules come first; with 0 those with few switches.
    order: u64,
    /// Somebody else picks the threads.
    driven: bool,
    promises: Vec<Promise>,
    threads: Vec<Thread>,
    /// The thread that runs; none while the structure is created or closed.
    current: Option<usize>,
    next: Option<usize>,
    words: Words,
    memory: Online,
    past: Past,
    /// Answers in the order of returning, for marks that are not yet taken over.
    marks: Vec<Mark>,
    path: Vec<Node>,
    cursor: usize,
    visited: HashMap<Digest, Known, Mix>,
    crashed: HashSet<Digest, Mix>,
    /// Crash points of this execution that no earlier one had.
    pub(crate) points: Vec<CrashPoint>,
    pub(crate) segments: Vec<Segment>,
    /// A schedule to be followed instead of exploring: (thread, turns).
    forced: Option<Vec<(usize, u32)>>,
    preemptions: u32,
    steps: u64,
    created: bool,
    pub(crate) wrong: Option<Wrong>,
    pub(crate) totals: Totals,
}

/// Notes crash points while the trace is taken over.
struct Points<'a> {
    past: &'a mut Past,
    marks: &'a [Mark],
    crashed: &'a mut HashSet<Digest, Mix>,
    points: &'a mut Vec<CrashPoint>,
    created: &'a mut bool,
    /// Whether this part of the execution is new.
    fresh: bool,
    /// Whether crash points like earlier ones are left out.
    prunes: bool,
    segments: &'a [Segment],
    promises: &'a [Promise],
    /// The first promise that was not kept.
    early: Option<Wrong>,
}

impl Points<'_> {
    /// The thread that ran at a position of the trace.
    fn thread_at(&self, seq: usize) -> Option<usize> {
        let segments = self.segments.partition_point(|segment| segment.from <= seq);
        Some(self.segments[segments.checked_sub(1)?].thread)
    }

    /// An operation returns: what it has promised is done, whatever other threads have on the way.
    fn demand(&mut self, event: usize, memory: &Online) {
        let (Some(me), Some(Mark::Returned(op, _))) = (self.thread_at(event), self.marks.get(self.past.marks.len()))
        else {
            return;
        };
        let is_own = |seq: u32| self.thread_at(seq as usize) == Some(me);
        let broken = self.promises.iter().find_map(|promise| {
            let at = match promise {
                Promise::Settled => memory.unsettled(is_own),
                Promise::Fenced => memory.unfenced(is_own),
            };
            at.map(|at| Wrong::Early { event, op: *op, promise: *promise, at })
        });
        self.early = self.early.take().or(broken);
    }

    fn crash(&mut self, seq: usize, memory: &mut Online, state: &State) {
        if !self.fresh || !*self.created {
            return;
        }
        if !self.prunes || self.crashed.insert(memory.digest(state).and(self.past.digest())) {
            self.points.push(CrashPoint { seq, marks: self.past.marks.len(), past: self.past.digest() });
        }
    }
}

impl Watch for Points<'_> {
    fn before(&mut self, seq: usize, event: &Event, raises: bool, memory: &mut Online, state: &State) {
        match event {
            Event::Created => *self.created = true,
            Event::Invoke => {
                self.crash(seq, memory, state);
                self.past.mark(self.marks[self.past.marks.len()]);
            }
            Event::Return(_) => {
                self.demand(seq, memory);
                self.past.mark(self.marks[self.past.marks.len()]);
            }
            _ if raises => self.crash(seq, memory, state),
            _ => {}
        }
    }
}

impl Scheduler {
    pub(crate) fn new(recorder: &'static Recorder, machine: Machine, bound: Option<u32>, prunes: bool) -> Self {
        Scheduler {
            recorder,
            machine,
            bound,
            prunes,
            verifies: false,
            settled: None,
            sampled: None,
            order: 0,
            driven: false,
            promises: Vec::new(),
            threads: Vec::new(),
            current: None,
            next: None,
            words: Words::default(),
            memory: Online::default(),
            past: Past::default(),
            marks: Vec::new(),
            path: Vec::new(),
            cursor: 0,
            visited: HashMap::default(),
            crashed: HashSet::default(),
            points: Vec::new(),
            segments: Vec::new(),
            forced: None,
            preemptions: 0,
            steps: 0,
            created: false,
            wrong: None,
            totals: Totals::default(),
        }
    }

    /// Picks the next schedule at random instead of exploring.
    pub(crate) fn sample(&mut self, seed: u64) {
        self.sampled = Some(seed);
    }

    /// Has schedules tried in another order.
    pub(crate) fn in_order(self, order: u64) -> Self {
        Scheduler { order, ..self }
    }

    /// Compares the digest of each state with one that is made afresh.
    pub(crate) fn verifying(self, verifies: bool) -> Self {
        Scheduler { verifies, ..self }
    }

    /// Has operations keep these promises when they return.
    pub(crate) fn demanding(self, promises: Vec<Promise>) -> Self {
        Scheduler { promises, ..self }
    }

    /// Leaves it to others to pick the threads, by [`take_turn`](Scheduler::take_turn).
    #[cfg(feature = "shuttle")]
    pub(crate) fn driven(self) -> Self {
        Scheduler { driven: true, ..self }
    }

    #[cfg(feature = "shuttle")]
    pub(crate) fn is_driven(&self) -> bool {
        self.driven
    }

    /// Follows a schedule instead of exploring.
    pub(crate) fn force(&mut self, schedule: Vec<(usize, u32)>) {
        self.forced = Some(schedule);
    }

    /// Before an execution.
    pub(crate) fn begin(&mut self, has_work: impl Iterator<Item = bool>) {
        self.threads.clear();
        // Each stands before its first operation.
        self.threads.extend(has_work.map(|work| Thread { fresh: true, done: !work, ..Thread::default() }));
        self.current = None;
        self.next = None;
        self.words.clear();
        self.memory.clear();
        self.past.clear();
        self.marks.clear();
        self.cursor = 0;
        self.points.clear();
        self.segments.clear();
        self.preemptions = 0;
        self.steps = 0;
        self.created = false;
        self.wrong = None;
        self.totals.executions += 1;
    }

    /// Moves on to the next schedule; false if there is none.
    pub(crate) fn next_schedule(&mut self) -> bool {
        while let Some(last) = self.path.last_mut() {
            if last.left != 0 {
                last.taken = last.left.trailing_zeros() as u8;
                last.left &= last.left - 1;
                return true;
            }
            self.path.pop();
        }
        false
    }

    /// The marks of this execution so far.
    pub(crate) fn marks(&self) -> &[Mark] {
        &self.marks
    }

    /// The thread that is to run next, told once.
    pub(crate) fn take_next(&mut self) -> Option<usize> {
        self.current = self.next.take();
        self.current
    }

    /// For the end of an execution that was cut short: which thread runs.
    pub(crate) fn set_current(&mut self, thread: Option<usize>) {
        self.current = thread;
    }

    fn observes(&self) -> bool {
        self.recorder.mode.load(Ordering::Relaxed) & (SCHEDULE | FINISH) == SCHEDULE
    }

    /// Lets what is left of the execution run unobserved.
    pub(crate) fn cut(&mut self) {
        self.recorder.mode.store(SCHEDULE | FINISH, Ordering::Relaxed);
        self.next = None;
    }

    /// What happens in a part that is not observed is met elsewhere, observed.
    pub(crate) fn fail(&mut self, wrong: Wrong) {
        if self.observes() {
            self.wrong = Some(wrong);
            self.cut();
        }
    }

    /// Chooses the first thread to run.
    pub(crate) fn start(&mut self) {
        self.pass_creation();
        if self.threads.iter().any(|thread| !thread.done) {
            self.choose();
        } else {
            // Nothing to run; what was created can be crashed all the same.
            self.catch_up(true);
        }
    }

    /// What creating the structure did is the same every time: once is enough to see whether it leaves anything open.
    fn pass_creation(&mut self) {
        if self.settled.is_none() {
            self.catch_up(false);
            self.settled = Some(self.memory.is_settled(&self.recorder.lock()));
        }
        if self.settled == Some(true) {
            self.memory.start_at(self.recorder.lock().trace.len());
            self.created = true;
        }
    }

    /// The current thread is about to take a step. True if it has to let another go first.
    pub(crate) fn arrive(&mut self, word: Option<&AtomicU64>, step: Step, at: At) -> bool {
        let Some(me) = self.current else { return false };
        if !self.observes() {
            // Unobserved, only a thread that waits makes room; and one that does not end.
            self.steps += 1;
            return matches!(step, Step::Spin) || self.steps > 2 * MAX_STEPS;
        }
        if std::mem::take(&mut self.threads[me].fresh) {
            self.threads[me].inside = true;
            return false;
        }
        let about = match (word, step) {
            (_, Step::Fence) => Digest::default().with(1),
            (_, Step::Spin) => Digest::default().with(2),
            (_, Step::Begin(op)) => Digest::default().with(3).with(op as u64),
            (Some(word), step) => match (self.recorder.word_of(word), step) {
                (Some(number), Step::Store(value)) => Digest::default().with(4).with(u64::from(number)).with(value),
                (Some(number), _) => Digest::default().with(5).with(u64::from(number)),
                (None, _) => Digest::default().with(6),
            },
            (None, _) => Digest::default(),
        };
        let thread = &mut self.threads[me];
        thread.about = about;
        thread.at = Some(at);
        match step {
            Step::Spin => thread.spins = true,
            Step::Begin(_) => thread.inside = false,
            _ => {}
        }
        self.choose();
        if self.next == Some(me) {
            self.next = None;
            return false;
        }
        true
    }

    /// The current thread takes its step now.
    pub(crate) fn perform(&mut self, word: Option<&AtomicU64>, step: Step) {
        let Some(me) = self.current.filter(|_| self.observes()) else { return };
        let thread = &mut self.threads[me];
        thread.steps += 1;
        match step {
            Step::Spin => {
                thread.spins = false;
                thread.reads.clear();
                thread.seen = thread.seen.with(2);
            }
            Step::Begin(op) => {
                thread.seen = thread.seen.with(3).with(op as u64);
                thread.fresh = true;
                thread.reads.clear();
                thread.idle = 0;
                self.mark(Mark::Invoked(op), Event::Invoke);
            }
            _ => {
                let Some(word) = word else { return };
                match self.recorder.word_of(word) {
                    Some(number) => self.persistent(me, number, word, step),
                    None => self.volatile(me, word, step),
                }
            }
        }
    }

    fn persistent(&mut self, me: usize, number: u32, word: &AtomicU64, step: Step) {
        let found = word.load(Ordering::Relaxed);
        let thread = &mut self.threads[me];
        if !matches!(step, Step::Store(_)) {
            thread.seen = thread.seen.with(u64::from(number) << 8 | 1).with(found);
            note(&mut thread.reads, Read::Persistent { word: number, found });
        }
        if writes(step, found).is_some_and(|new| new != found) {
            self.others_wake(me);
        }
    }

    fn volatile(&mut self, me: usize, word: &AtomicU64, step: Step) {
        let found = word.load(Ordering::Relaxed);
        let (index, name) = self.words.meet(std::ptr::from_ref(word).addr(), found, me);
        let thread = &mut self.threads[me];
        let kind = if matches!(step, Step::Store(_)) { 2 } else { 3 };
        thread.seen = thread.seen.with(u64::from(name) << 8 | kind);
        if kind == 3 {
            thread.seen = thread.seen.and(self.words.wrote(index));
            note(&mut thread.reads, Read::Volatile { word: index, found });
        }
        if let Some(new) = writes(step, found) {
            self.words.write(index, new, self.threads[me].seen);
            if new != found {
                self.others_wake(me);
            }
        }
    }

    fn others_wake(&mut self, me: usize) {
        for (number, thread) in self.threads.iter_mut().enumerate() {
            if number != me {
                thread.idle = 0;
            }
        }
    }

    /// An operation of the current thread has returned.
    pub(crate) fn returned(&mut self, op: usize, answer: usize) {
        if let Some(me) = self.current.filter(|_| self.observes()) {
            // An operation without any access leaves no trace in memory, but it has happened.
            self.threads[me].fresh = false;
            self.threads[me].inside = false;
            self.mark(Mark::Returned(op, answer), Event::Return(op as u32));
        }
    }

    fn mark(&mut self, mark: Mark, event: Event) {
        self.marks.push(mark);
        self.recorder.lock().trace.push(event);
    }

    /// The current thread has come to its end.
    pub(crate) fn finished(&mut self, thread: usize) {
        self.threads[thread].done = true;
        if self.observes() {
            self.current = None;
            if self.threads.iter().any(|t| !t.done) {
                self.choose();
            } else {
                self.catch_up(true);
                self.next = None;
            }
        }
    }

    /// Takes the trace over; at the end of an execution, that is a crash point, too.
    fn catch_up(&mut self, at_end: bool) {
        let fresh = self.forced.is_none() && self.cursor == self.path.len();
        let guard = self.recorder.lock();
        let mut points = Points {
            past: &mut self.past,
            marks: &self.marks,
            crashed: &mut self.crashed,
            points: &mut self.points,
            created: &mut self.created,
            fresh,
            prunes: self.prunes,
            segments: &self.segments,
            promises: &self.promises,
            early: None,
        };
        self.memory.catch_up(self.machine, &guard, &mut points);
        if at_end {
            points.crash(guard.trace.len(), &mut self.memory, &guard);
        }
        let early = points.early.take();
        drop(guard);
        if let Some(early) = early {
            self.fail(early);
        }
    }

    /// Back to recording, for the next execution.
    pub(crate) fn observe(&self) {
        self.recorder.mode.store(RECORD | SCHEDULE, Ordering::Relaxed);
    }
}

fn note(reads: &mut Vec<Read>, read: Read) {
    if !reads.contains(&read) {
        reads.push(read);
    }
}

/// What a step writes to a word that holds `found`.
fn writes(step: Step, found: u64) -> Option<u64> {
    match step {
        Step::Store(value) => Some(value),
        Step::Exchange(current, new) => (found == current).then_some(new),
        Step::Modify(op, operand) => Some(op.apply(found, operand)),
        Step::Load | Step::Fence | Step::Spin | Step::Begin(_) => None,
    }
}
