//! How crashes are explored: the options.

use crate::model::layer::Machine;
use crate::model::persistency::Persistency;
use crate::replay::Replay;
use crate::subject::Contract;

/// How crash states are enumerated.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Strategy {
    /// Words are decided when recovery reads them: one execution stands for all the states it cannot tell apart.
    #[default]
    Lazy,
    /// Every state is an execution of its own. The yardstick for the other.
    Eager,
}

/// Explores the crashes of an execution. Cheap to clone; see the [crate's documentation](crate).
#[derive(Clone, Debug)]
pub struct Explorer {
    pub(crate) machine: Machine,
    pub(crate) contract: Contract,
    pub(crate) strategy: Strategy,
    pub(crate) crashes: usize,
    pub(crate) every_event: bool,
    pub(crate) judge: bool,
    pub(crate) executions_per_point: u64,
    pub(crate) samples: u64,
    pub(crate) seed: u64,
    pub(crate) suggest: bool,
    pub(crate) crash_in_create: bool,
    pub(crate) crash_in_close: bool,
    pub(crate) crash_later: bool,
    pub(crate) crash_points: Option<u64>,
    pub(crate) settled_returns: bool,
    pub(crate) process_deaths: bool,
    pub(crate) deaths_in: Option<&'static str>,
    pub(crate) observe_first: bool,
    pub(crate) shrink_ops: bool,
    pub(crate) replay: Option<Replay>,
}

impl Default for Explorer {
    fn default() -> Self {
        Explorer {
            machine: Machine { model: Persistency::Pcso, locked_drains: false, flushes_at_once: false },
            contract: Contract::Strict,
            strategy: Strategy::Lazy,
            crashes: 1,
            every_event: false,
            judge: true,
            executions_per_point: 20_000,
            samples: 200,
            seed: 0x9E37_79B9_7F4A_7C15,
            suggest: true,
            crash_in_create: false,
            crash_in_close: false,
            crash_later: false,
            crash_points: None,
            settled_returns: false,
            process_deaths: false,
            deaths_in: None,
            observe_first: true,
            shrink_ops: false,
            replay: None,
        }
    }
}

impl Explorer {
    /// PCSO, strict contract, one crash, lazy, at most 20 000 executions a crash point and 200 samples beyond.
    /// ([`CrashTest`](crate::CrashTest) and [`crash_test!`](crate::crash_test) explore second crashes unless told otherwise.)
    pub fn new() -> Self {
        Explorer::default()
    }

    /// What may be found of a line after a crash.
    #[must_use]
    pub fn model(self, model: Persistency) -> Self {
        Explorer { machine: Machine { model, ..self.machine }, ..self }
    }

    /// Whether locked instructions wait for pending write-backs, as on x86. Off by default: code must be right without.
    #[must_use]
    pub fn locked_drains(self, locked_drains: bool) -> Self {
        Explorer { machine: Machine { locked_drains, ..self.machine }, ..self }
    }

    /// Whether a write-back waits for itself, as `clflush` does. Off by default: the others only start it. Where it is on,
    /// an operation that returns with something flushed and not fenced is a failure under [`Contract::Strict`]: on a machine
    /// with `clwb` it would be lost.
    #[must_use]
    pub fn flushes_at_once(self, flushes_at_once: bool) -> Self {
        Explorer { machine: Machine { flushes_at_once, ..self.machine }, ..self }
    }

    /// What the structure promises.
    #[must_use]
    pub fn contract(self, contract: Contract) -> Self {
        Explorer { contract, ..self }
    }

    /// How crash states are enumerated.
    #[must_use]
    pub fn strategy(self, strategy: Strategy) -> Self {
        Explorer { strategy, ..self }
    }

    /// How many crashes follow each other at most: with 2 every recovery is crashed too, and recovered again; and with
    /// [`crash_later`](Explorer::crash_later) the operations after it. What the first recovery has shown must be there after
    /// the second.
    #[must_use]
    pub fn crashes(self, crashes: usize) -> Self {
        Explorer { crashes: crashes.max(1), ..self }
    }

    /// Crashes also while the structure is being created: [`Subject::recover`](crate::Subject::recover) then has to cope with nothing, or with
    /// half of it, and create it anew.
    #[must_use]
    pub fn crash_in_create(self, crash_in_create: bool) -> Self {
        Explorer { crash_in_create, ..self }
    }

    /// Crashes also while the structure is being dropped, after the last operation.
    #[must_use]
    pub fn crash_in_close(self, crash_in_close: bool) -> Self {
        Explorer { crash_in_close, ..self }
    }

    /// Whether with [`crashes`](Explorer::crashes) beyond one the operations after a recovery are crashed as the recovery is. Off
    /// by default: it multiplies the executions.
    #[must_use]
    pub fn crash_later(self, crash_later: bool) -> Self {
        Explorer { crash_later, ..self }
    }

    /// Crashes at so many places of an execution only, picked at random by the [seed](Explorer::seed) and the operations: for
    /// many random histories. The report then says "not complete".
    #[must_use]
    pub fn crash_points(self, points: u64) -> Self {
        Explorer { crash_points: Some(points), ..self }
    }

    /// Demands that no operation returns while something it stored is not durable yet, whether or not recovery can tell:
    /// a dropped write-back that no state of this size shows. Not for structures that leave lines unwritten on purpose. Of
    /// several [`Threads`](crate::Threads) each answers for what it has stored itself.
    #[must_use]
    pub fn settled_returns(self, settled_returns: bool) -> Self {
        Explorer { settled_returns, ..self }
    }

    /// Lets the process die, too, with the power on: after each store, the next process finds everything that was visible,
    /// recovers, and runs the operations after the recovery; then the power fails. What the first process had not made
    /// durable is found, may be built upon, and can still be lost: recovery has to write back what it reads.
    #[must_use]
    pub fn process_deaths(self, process_deaths: bool) -> Self {
        Explorer { process_deaths, ..self }
    }

    /// As [`process_deaths`](Explorer::process_deaths), after some stores only: those that a source file makes whose path contains
    /// `file`; of several in a row from one place in the source, after the last. For the edges of one module, where a death after
    /// every store of the whole operation takes too long. The report then says "not complete".
    #[must_use]
    pub fn deaths_in(self, file: &'static str) -> Self {
        Explorer { process_deaths: true, deaths_in: Some(file), ..self }
    }

    /// Whether all of the structure is read and checked right after a recovery, before the operations that follow. On by
    /// default. Off, the first of these operations is the first that looks at what was recovered: reading everything may have
    /// repaired what this operation would have met. What was recovered is then judged by the answers, and by what is observed
    /// at the end. See [`first_looks`](Explorer::first_looks).
    #[must_use]
    pub fn observe_first(self, observe_first: bool) -> Self {
        Explorer { observe_first, ..self }
    }

    /// Whether a failure comes with a suggestion, which costs a few runs of the case. On by default.
    #[must_use]
    pub fn suggest(self, suggest: bool) -> Self {
        Explorer { suggest, ..self }
    }

    /// Leaves operations out of a failing [`run`](Explorer::run) while it still fails in the same way.
    /// ([`sequences`](Explorer::sequences) and [`check`](Explorer::check) look for small cases anyway.)
    #[must_use]
    pub fn shrink_ops(self, shrink_ops: bool) -> Self {
        Explorer { shrink_ops, ..self }
    }

    /// Crashes before every event of the memory, not only where it can make a difference. For testing the reduction.
    #[must_use]
    pub fn every_event(self, every_event: bool) -> Self {
        Explorer { every_event, ..self }
    }

    /// Executions for each crash point, beyond which the rest is sampled and the report says "not complete".
    #[must_use]
    pub fn executions_per_point(self, executions: u64) -> Self {
        Explorer { executions_per_point: executions.max(1), ..self }
    }

    /// Samples for a crash point that is beyond the budget.
    #[must_use]
    pub fn samples(self, samples: u64) -> Self {
        Explorer { samples, ..self }
    }

    /// Seed of the random samples.
    #[must_use]
    pub fn seed(self, seed: u64) -> Self {
        Explorer { seed, ..self }
    }

    /// Runs only what a failure's replay string names, with everything else as it was when the string was printed.
    ///
    /// # Panics
    /// If it is no replay string.
    #[must_use]
    pub fn replay(self, replay: &str) -> Self {
        let replay = replay.parse().unwrap_or_else(|error| panic!("{error}"));
        Explorer { replay: Some(replay), ..self }
    }
}
