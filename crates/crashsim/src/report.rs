//! What an exploration has found, and how it is told.

use std::fmt;

use crate::brief::brief;
use crate::count::Count;
use crate::replay::{Case, Replay};

/// What was explored, and what was wrong.
#[derive(Clone, Debug)]
pub struct Report {
    /// Sequences of operations.
    pub cases: u64,
    /// Events of the memory in them.
    pub events: u64,
    /// Crash points, in the operations.
    pub crash_points: u64,
    /// Crash points in recoveries.
    pub nested_points: u64,
    /// Recoveries run.
    pub executions: u64,
    /// Deaths of the process, with the power on.
    pub deaths: u64,
    /// Crash points, in operations and in recoveries, of which every state was explored and the numbers added up; the others
    /// were sampled.
    pub certified: u64,
    /// Executions that were samples.
    pub samples: u64,
    /// Crash states that the executions stand for, without the samples.
    pub crash_states: Count,
    /// Whether every crash state was explored, and the numbers add up.
    pub complete: bool,
    /// The first state that was wrong.
    pub failure: Option<Failure>,
    /// What was explored of the interleavings of threads, if there were any.
    pub schedules: Option<Schedules>,
}

/// What was explored of the interleavings of threads.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Schedules {
    /// Executions, whole or until they met a state that was known.
    pub executions: u64,
    /// States at which several threads could go on.
    pub states: u64,
    /// Steps taken.
    pub steps: u64,
    /// Most preemptions in an execution.
    pub preemptions: u32,
    /// The bound on preemptions, if it has ruled anything out.
    pub bound: Option<u32>,
    /// Why it is not complete, each reason once.
    pub incomplete: Vec<String>,
}

impl Schedules {
    fn merge(&mut self, other: Schedules) {
        self.executions += other.executions;
        self.states += other.states;
        self.steps += other.steps;
        self.preemptions = self.preemptions.max(other.preemptions);
        self.bound = self.bound.into_iter().chain(other.bound).min();
        for reason in other.incomplete {
            if !self.incomplete.contains(&reason) {
                self.incomplete.push(reason);
            }
        }
    }
}

impl fmt::Display for Schedules {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} schedules with {} states of the threads and", self.executions, self.states)?;
        match self.bound {
            Some(bound) => write!(f, " at most {bound} preemptions"),
            None => write!(f, " no bound on preemptions (there were up to {})", self.preemptions),
        }
    }
}

impl Default for Report {
    fn default() -> Self {
        Report {
            cases: 0,
            events: 0,
            crash_points: 0,
            nested_points: 0,
            executions: 0,
            deaths: 0,
            certified: 0,
            samples: 0,
            crash_states: Count::default(),
            complete: true,
            failure: None,
            schedules: None,
        }
    }
}

impl Report {
    pub(crate) fn count(&mut self, states: &Count, added_up: bool) {
        self.crash_states.add(states);
        self.certified += u64::from(added_up);
        self.complete &= added_up;
    }

    /// What was explored up to a failure.
    pub(crate) fn so_far(&self) -> String {
        let (executions, points) = (self.executions, self.crash_points);
        let recoveries =
            if self.nested_points > 0 { format!(", {} in recoveries", self.nested_points) } else { String::new() };
        let deaths = if self.deaths > 0 { format!(", {} deaths of the process", self.deaths) } else { String::new() };
        format!("{executions} recoveries at {points} crash points{recoveries}{deaths} until this one")
    }

    /// Adds what another exploration has found; the first failure stays.
    pub fn merge(&mut self, other: Report) {
        self.cases += other.cases;
        self.events += other.events;
        self.crash_points += other.crash_points;
        self.nested_points += other.nested_points;
        self.executions += other.executions;
        self.deaths += other.deaths;
        self.certified += other.certified;
        self.samples += other.samples;
        self.crash_states.add(&other.crash_states);
        self.complete &= other.complete;
        self.failure = self.failure.take().or(other.failure);
        if let Some(schedules) = other.schedules {
            self.schedules.get_or_insert_default().merge(schedules);
        }
    }

    /// Hands the report back if nothing was wrong.
    ///
    /// # Panics
    /// With the story of the failure, if there is one.
    #[track_caller]
    pub fn assert_ok(self) -> Self {
        if let Some(failure) = &self.failure {
            panic!("{failure}\n{self}");
        }
        self
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} case(s), {} events: ", self.cases, self.events)?;
        if let Some(schedules) = &self.schedules {
            write!(f, "{schedules}; ")?;
        }
        write!(f, "explored {} executions standing for {} crash states", self.executions, self.crash_states)?;
        write!(f, " at {} crash points", self.crash_points)?;
        if self.nested_points > 0 {
            write!(f, " and {} in recoveries", self.nested_points)?;
        }
        if self.deaths > 0 {
            write!(f, ", after {} deaths of the process", self.deaths)?;
        }
        match (&self.failure, self.complete) {
            (Some(_), _) => write!(f, ": FAILED"),
            (None, true) => write!(f, ": complete"),
            (None, false) if self.samples > 0 => {
                write!(f, ": not complete ({} of the executions were samples)", self.samples)
            }
            (None, false) => write!(f, ": not complete"),
        }?;
        let reasons = self.schedules.iter().flat_map(|schedules| &schedules.incomplete);
        reasons.into_iter().try_for_each(|reason| write!(f, "; {reason}"))
    }
}

/// What was wrong with a recovery.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Cause {
    /// An operation answered wrongly, without any crash.
    Answer {
        /// Which operation.
        number: usize,
        /// What it answered.
        answer: String,
        /// What the model answers.
        expected: String,
    },
    /// An operation returned while something it stored was not durable yet (asked for by
    /// [`Explorer::settled_returns`](crate::Explorer::settled_returns)).
    Unsettled {
        /// Which operation.
        number: usize,
    },
    /// An operation returned with something flushed and not fenced (where write-backs wait for themselves, as asked for by
    /// [`Explorer::flushes_at_once`](crate::Explorer::flushes_at_once)).
    Unfenced {
        /// Which operation.
        number: usize,
        /// Where it was flushed.
        flushed_at: String,
    },
    /// A panic, also one for a loop without end.
    Panic {
        /// When.
        during: &'static str,
        /// Its message.
        message: String,
    },
    /// Recovery gave an error.
    Recovery {
        /// Its message.
        message: String,
    },
    /// The recovered contents are none that the contract allows.
    State {
        /// What was observed.
        observed: String,
        /// What is allowed, with the number of operations done.
        allowed: Vec<(usize, String)>,
    },
    /// The contents recovered after a crash of several threads are none that the contract allows.
    Recovered {
        /// What was observed.
        observed: String,
        /// What is allowed.
        allowed: Vec<String>,
    },
    /// The structure's own check found something.
    Findings {
        /// When.
        when: &'static str,
        /// What.
        findings: Vec<String>,
    },
    /// An operation after the recovery answered wrongly.
    Later {
        /// Which of the operations after the recovery.
        number: usize,
        /// The operation.
        op: String,
        /// What it answered.
        answer: String,
        /// What the model answers.
        expected: String,
    },
    /// The contents were wrong after the operations that followed the recovery.
    LaterState {
        /// What was observed.
        observed: String,
        /// What is allowed.
        allowed: Vec<String>,
    },
    /// The answers of concurrent operations have no explanation, without any crash.
    NotLinearizable {
        /// The calls, one a line.
        history: String,
    },
    /// Recovery, run again on the same crash state, read something else.
    Nondeterministic,
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let allowed = |f: &mut fmt::Formatter<'_>, allowed: &[(usize, String)]| {
            allowed
                .iter()
                .try_for_each(|(done, state)| write!(f, "\n  allowed: {} (after {done} operations)", brief(state)))
        };
        match self {
            Cause::Answer { number, answer, expected } => {
                write!(f, "operation {number} answered {answer} where the model answers {expected} (no crash involved)")
            }
            Cause::Unsettled { number } => {
                write!(f, "operation {number} returned while something it stored was not guaranteed to be durable")
            }
            Cause::Unfenced { number, flushed_at } => write!(
                f,
                "operation {number} returned without a fence behind the write-back at {flushed_at}: it is durable only where \
                 write-backs wait for themselves (clflush)"
            ),
            Cause::Panic { during, message } => write!(f, "panic during {during}: {message}"),
            Cause::Recovery { message } => write!(f, "recovery failed: {message}"),
            Cause::State { observed, allowed: states } => {
                write!(f, "the recovered contents are not allowed\n  found:   {}", brief(observed))?;
                allowed(f, states)
            }
            Cause::Recovered { observed, allowed: states } => {
                write!(f, "the recovered contents are not allowed\n  found:   {}", brief(observed))?;
                states.iter().try_for_each(|state| write!(f, "\n  allowed: {}", brief(state)))
            }
            Cause::Findings { when, findings } => write!(f, "the check {when} found: {}", findings.join("; ")),
            Cause::Later { number, op, answer, expected } => {
                write!(
                    f,
                    "after the recovery, operation {number} ({op}) answered {answer} where the model answers {expected}"
                )
            }
            Cause::LaterState { observed, allowed: states } => {
                write!(
                    f,
                    "after operations on the recovered structure its contents are wrong\n  found:   {}",
                    brief(observed)
                )?;
                states.iter().try_for_each(|state| write!(f, "\n  allowed: {}", brief(state)))
            }
            Cause::NotLinearizable { history } => {
                write!(f, "no order of the operations explains their answers (no crash involved)\n{history}")
            }
            Cause::Nondeterministic => {
                write!(f, "nondeterministic recovery: run again on the same crash state, it read something else")
            }
        }
    }
}

/// The story of a failure.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Failure {
    /// What was wrong.
    pub cause: Cause,
    /// The operations, in order.
    pub ops: Vec<String>,
    /// With threads, how they were interleaved, up to the crash.
    pub timeline: Vec<String>,
    /// With threads, how often one was kept from going on within an operation.
    pub preemptions: u32,
    /// The operations that ran after the recovery, in order.
    pub after: Vec<String>,
    /// After how many of them the crash came, and whether the next one was under way.
    pub crash: Option<(usize, bool)>,
    /// Where the process died with the power on, if it did; `crash` says how far its operations had come.
    pub death: Option<String>,
    /// After how many of the operations that the next process ran the power failed, and whether one was under way; `None`
    /// in its recovery.
    pub crash_after: Option<(usize, bool)>,
    /// Where each crash was: in the operations, then in the recoveries.
    pub crashes: Vec<String>,
    /// The lines whose state matters, the stores missing in them, and why they could be missing.
    pub details: Vec<String>,
    /// Number of lines whose state differs from "everything has reached memory".
    pub deviating: usize,
    /// The least addition that makes this case pass, verified by running it, if one was found.
    pub suggestion: Option<String>,
    /// The persistency model and the contract that it is a failure of.
    pub assumed: String,
    /// How much of this case was explored before.
    pub explored: String,
    /// Give this to [`Explorer::replay`](crate::Explorer::replay) to run exactly this again; at most 200 characters.
    pub replay: String,
    pub(crate) code: Replay,
    pub(crate) fix: Option<crate::explore::fix::Fix>,
}

impl Failure {
    pub(crate) fn plain(cause: Cause, ops: Vec<String>) -> Self {
        Failure {
            cause,
            ops,
            timeline: Vec::new(),
            preemptions: 0,
            after: Vec::new(),
            crash: None,
            death: None,
            crash_after: None,
            crashes: Vec::new(),
            details: Vec::new(),
            deviating: 0,
            suggestion: None,
            assumed: String::new(),
            explored: String::new(),
            replay: Replay::default().to_string(),
            code: Replay::default(),
            fix: None,
        }
    }

    /// Whether the operations after the recovery have a part in it.
    #[doc(hidden)]
    pub fn concerns_later_operations(&self) -> bool {
        let answered = matches!(self.cause, Cause::Later { .. } | Cause::LaterState { .. });
        answered
            || self.death.is_some()
            || self.crashes.iter().any(|crash| {
                crash.contains("after the recovery") && !crash.contains("after the recovery and 0 operations")
            })
    }

    /// Whether the other tells the same: all but how much was explored before, and the replay string.
    #[doc(hidden)]
    pub fn tells_the_same(&self, other: &Failure) -> bool {
        let story = |f: &Failure| Failure { explored: String::new(), replay: String::new(), ..f.clone() }.to_string();
        story(self) == story(other)
    }

    /// Notes from which case this came.
    pub(crate) fn set_case(&mut self, case: Case) {
        self.code.case = case;
        self.replay = self.code.encode();
    }
}

impl Failure {
    fn tell_next_process(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some(death) = &self.death else { return Ok(()) };
        writeln!(f, "      THE PROCESS DIED {death}; the next one found every store, and recovered")?;
        for (number, op) in self.after.iter().enumerate() {
            let mark = match self.crash_after {
                Some((done, _)) if number < done => "done       ",
                Some((done, true)) if number == done => "CRASH IN IT",
                _ => "not reached",
            };
            writeln!(f, "  {number:3} {mark} {op}")?;
        }
        Ok(())
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "crash test failed: {}", self.cause)?;
        writeln!(f, "operations:")?;
        if !self.timeline.is_empty() {
            self.timeline.iter().try_for_each(|line| writeln!(f, "  {line}"))?;
        }
        for (number, op) in self.ops.iter().enumerate().filter(|_| self.timeline.is_empty()) {
            let mark = match self.crash {
                Some((done, _)) if number < done => "done       ",
                Some((done, true)) if number == done && self.death.is_some() => "DIED IN IT ",
                Some((done, true)) if number == done => "CRASH IN IT",
                Some(_) => "not reached",
                None => "           ",
            };
            writeln!(f, "  {number:3} {mark} {op}")?;
            if self.crash == Some((number + 1, false)) && self.death.is_none() {
                writeln!(f, "      CRASH")?;
            }
        }
        self.tell_next_process(f)?;
        for (depth, crash) in self.crashes.iter().enumerate() {
            writeln!(f, "crash {}: {crash}", depth + 1)?;
        }
        if self.death.is_none() && self.concerns_later_operations() {
            self.after.iter().try_for_each(|op| writeln!(f, "      AFTER IT    {op}"))?;
        }
        for line in &self.details {
            writeln!(f, "  {line}")?;
        }
        if self.details.is_empty() && self.crash.is_some() {
            writeln!(f, "  every store had reached memory")?;
        }
        if let Some(suggestion) = &self.suggestion {
            writeln!(f, "this case passes with {suggestion}")?;
        }
        for (what, told) in [("assumed", &self.assumed), ("explored", &self.explored)] {
            if !told.is_empty() {
                writeln!(f, "{what}: {told}")?;
            }
        }
        write!(f, "replay: {}", self.replay)
    }
}
