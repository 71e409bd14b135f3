//! The scheduler: which thread takes the next step, and which executions need not be run to their end.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicU64, Ordering};

use durix_pmem::Rmw;

use super::digest::{Digest, Mix};
use super::history::{Mark, Past};
use super::online::{Online, Watch};
use super::words::Words;
use crate::layer::Machine;
use crate::recorder::{FINISH, RECORD, Recorder, SCHEDULE, State};
use crate::trace::{At, Event};

/// Steps after which an execution is taken for endless.
const MAX_STEPS: u64 = 1 << 16;

/// Turns of a spin, without anything written by others meanwhile, that are run to see whether the loop makes a
/// difference by itself.
const IDLE_TURNS: u8 = 2;

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

/// A point at which several threads could go on.
#[derive(Clone, Copy, Debug)]
struct Node {
    enabled: u16,
    /// Those still to be tried.
    left: u16,
    taken: u8,
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
}

/// What is known of a state that was reached before.
#[derive(Clone, Copy, Debug)]
struct Known {
    /// Preemptions that were left.
    left: u32,
    about: u64,
}

#[derive(Debug)]
pub(crate) struct Scheduler {
    recorder: &'static Recorder,
    machine: Machine,
    bound: Option<u32>,
    prunes: bool,
    /// Whether creating the structure leaves nothing open, once that is known.
    settled: Option<bool>,
    /// Which schedules come first; with 0 those with few switches.
    order: u64,
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
}

impl Points<'_> {
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
            Event::Return(_) => self.past.mark(self.marks[self.past.marks.len()]),
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
            settled: None,
            order: 0,
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

    /// Has schedules tried in another order.
    pub(crate) fn in_order(self, order: u64) -> Self {
        Scheduler { order, ..self }
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
        };
        self.memory.catch_up(self.machine, &guard, &mut points);
        if at_end {
            points.crash(guard.trace.len(), &mut self.memory, &guard);
        }
    }

    // ---- choosing ----

    fn is_enabled(&self, thread: &Thread) -> bool {
        if thread.done {
            return false;
        }
        // A loop that waits would find what it found before, unless something it read has changed.
        !thread.spins || thread.idle < IDLE_TURNS && thread.reads.iter().any(|read| self.has_changed(*read))
    }

    fn has_changed(&self, read: Read) -> bool {
        match read {
            Read::Volatile { word, found } => self.words.value(word) != found,
            Read::Persistent { word, found } => self.recorder.now(word) != found,
        }
    }

    /// Decides which thread takes the next step: into `next`, or cuts the execution.
    fn choose(&mut self) {
        self.steps += 1;
        self.totals.steps += 1;
        if self.steps > MAX_STEPS {
            return self.fail(Wrong::Endless);
        }
        let mut enabled = 0u16;
        for (number, thread) in self.threads.iter().enumerate() {
            enabled |= u16::from(self.is_enabled(thread)) << number;
        }
        if enabled == 0 {
            return self.fail(Wrong::Deadlock);
        }
        let chosen = if self.forced.is_some() { self.follow(enabled) } else { self.explore(enabled) };
        if let Some(chosen) = chosen {
            self.go(chosen);
        }
    }

    fn go(&mut self, chosen: usize) {
        let preempted = self.current.is_some_and(|me| me != chosen && self.is_preempted(me));
        self.preemptions += u32::from(preempted);
        self.totals.preemptions = self.totals.preemptions.max(self.preemptions);
        if self.threads[chosen].spins {
            self.threads[chosen].idle += 1;
        }
        match self.segments.last_mut() {
            Some(last) if last.thread == chosen => last.turns += 1,
            last => {
                if let Some(last) = last {
                    last.stopped = self.current.and_then(|me| self.threads[me].at);
                    last.preempted = preempted;
                }
                let from = self.recorder.lock().trace.len();
                self.segments.push(Segment { thread: chosen, turns: 1, from, stopped: None, preempted: false });
            }
        }
        self.next = Some(chosen);
    }

    /// Whether a thread that could go on within an operation is kept from it if another runs.
    fn is_preempted(&self, me: usize) -> bool {
        let thread = &self.threads[me];
        thread.inside && !thread.spins && !thread.done
    }

    fn follow(&mut self, enabled: u16) -> Option<usize> {
        let mut turns = self.segments.iter().map(|s| u64::from(s.turns)).sum::<u64>();
        let forced = self.forced.as_deref().unwrap_or_default();
        let named = forced.iter().find(|(_, n)| {
            let within = turns < u64::from(*n);
            turns = turns.saturating_sub(u64::from(*n));
            within
        });
        match named {
            Some((thread, _)) if enabled >> thread & 1 == 1 => Some(*thread),
            Some(_) => {
                self.fail(Wrong::Nondeterministic);
                None
            }
            // The schedule named goes as far as the crash.
            None => {
                self.catch_up(true);
                self.cut();
                None
            }
        }
    }

    fn explore(&mut self, enabled: u16) -> Option<usize> {
        let stay = self.current.filter(|me| enabled >> me & 1 == 1);
        if enabled.count_ones() == 1 && self.current.is_some() {
            return Some(enabled.trailing_zeros() as usize);
        }
        if self.bound.is_some_and(|bound| self.preemptions >= bound)
            && let Some(me) = stay
            && self.is_preempted(me)
        {
            self.totals.ruled_out += 1;
            return Some(me);
        }
        if let Some(node) = self.path.get(self.cursor).filter(|_| enabled.count_ones() > 1) {
            let (node, last) = (*node, self.cursor + 1 == self.path.len());
            if last {
                // What comes after this choice is new; what came before was seen by an earlier execution.
                self.catch_up(false);
            }
            self.cursor += 1;
            if node.enabled != enabled {
                self.fail(Wrong::Nondeterministic);
                return None;
            }
            return Some(usize::from(node.taken));
        }
        if self.cursor == self.path.len() {
            self.catch_up(false);
            if self.prunes && self.was_here() {
                self.cut();
                return None;
            }
        }
        if enabled.count_ones() == 1 {
            return Some(enabled.trailing_zeros() as usize);
        }
        let taken = match self.order {
            0 => stay.unwrap_or(enabled.trailing_zeros() as usize),
            order => {
                let pick = Digest::default().with(order).with(self.steps).low() % u64::from(enabled.count_ones());
                (0..).filter(|t| enabled >> t & 1 == 1).nth(pick as usize).expect("one of those enabled")
            }
        };
        self.path.push(Node { enabled, left: enabled & !(1 << taken), taken: taken as u8 });
        self.cursor += 1;
        Some(taken)
    }

    /// Whether this state was reached before, with at least as many preemptions left.
    fn was_here(&mut self) -> bool {
        let (state, about) = self.state();
        let left = self.bound.map_or(0, |bound| bound - self.preemptions.min(bound));
        let mut state = state;
        if self.bound.is_some() {
            // Whom it costs a preemption to leave decides what can follow.
            state = state.with(self.current.filter(|me| self.is_preempted(*me)).map_or(u64::MAX, |me| me as u64));
        }
        match self.visited.get_mut(&state) {
            Some(known) if known.about != about => {
                // Equal in everything that goes through the medium, and yet about to do something else.
                self.totals.hidden += 1;
                false
            }
            Some(known) if known.left >= left => true,
            Some(known) => {
                known.left = left;
                false
            }
            None => {
                self.visited.insert(state, Known { left, about });
                self.totals.states += 1;
                false
            }
        }
    }

    /// The state: equal ones have equal futures. Beside it, what the threads are about to do, which follows from it.
    fn state(&mut self) -> (Digest, u64) {
        let (memory, sessions) = {
            let guard = self.recorder.lock();
            (self.memory.digest(&guard), self.memory.sessions(&guard))
        };
        let mut state = Digest::default().and(memory).and(sessions).and(self.words.digest()).and(self.past.digest());
        let mut about = Digest::default();
        for thread in &self.threads {
            let flags = u64::from(thread.done)
                | u64::from(thread.spins) << 1
                | u64::from(thread.inside) << 2
                | u64::from(thread.idle) << 8;
            state = state.and(thread.seen).with(thread.steps).with(flags);
            if !thread.done {
                about = about.and(thread.about);
            }
        }
        (state, about.low())
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
