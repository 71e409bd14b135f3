//! Scenarios: operations on a subject, and the bounds under which they are crashed.

use std::fmt;

use durix_crashsim::{Cause, Concurrent, Explorer, Failure, Persistency, Report, Subject, Threads};
use durix_pmem::{Mutation, Plan, Site};

use crate::erased::{Erased, Operation, erase};

/// Recoveries at a crash point at most where nothing but a complete exploration will do.
const COMPLETELY: u64 = 1 << 20;

/// By which bound a fault was caught.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Bound {
    /// Sequential operations and one crash.
    Sequential,
    /// Two threads.
    TwoThreads,
    /// Operations after the crash, a crash in the recovery, or a process that died before the power failed.
    Recovery,
    /// The check of the space: a leak, or something owned twice.
    Allocator,
    /// Torn lines.
    Tearing,
    /// The count of write-backs and fences.
    Count,
}

impl fmt::Display for Bound {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Bound::Sequential => "S",
            Bound::TwoThreads => "C",
            Bound::Recovery => "R",
            Bound::Allocator => "A",
            Bound::Tearing => "T",
            Bound::Count => "N",
        })
    }
}

/// One way to explore a scenario.
#[derive(Clone, Debug)]
pub struct Rung {
    bound: Bound,
    explorer: Explorer,
    /// Whether the operations after the recovery run.
    after: bool,
}

/// What is found out about a fault that was caught.
#[derive(Clone, Debug)]
pub struct Told {
    /// The failure, with as few operations as possible, and its suggestion.
    pub failure: Failure,
    /// Operations of the failure: before the crash, and after it where they matter.
    pub ops: usize,
    /// Whether running its replay string gives the same failure again.
    pub replays: bool,
    /// Whether the suggestion puts back what was left out.
    pub named: bool,
}

impl Told {
    /// About a failure, run `again` from its replay string.
    pub fn new(failure: Failure, again: Option<Failure>, named: bool) -> Self {
        let later = if failure.concerns_later_operations() { failure.after.len() } else { 0 };
        let ops = failure.ops.len() + later;
        let replays = again.is_some_and(|again| again.tells_the_same(&failure) && again.replay == failure.replay);
        Told { failure, ops, replays, named }
    }

    /// What makes it hard to read: preemptions, operations and deviating lines.
    pub fn size(&self) -> (bool, u32, usize, usize) {
        (!self.is_small(), self.failure.preemptions, self.ops, self.failure.deviating)
    }

    /// Whether it is as small as a failure should be: at most 3 operations, 2 preemptions and 2 deviating lines.
    pub fn is_small(&self) -> bool {
        self.ops <= 3 && self.failure.preemptions <= 2 && self.failure.deviating <= 2
    }
}

/// Everything that can be recovered: after each number of operations, the states over all crashes up to there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Recovered {
    states: Vec<std::collections::BTreeSet<String>>,
    /// Whether these are all, with a certificate.
    pub complete: bool,
    /// Recoveries run.
    pub executions: u64,
}

impl Recovered {
    /// Whether the same states can be recovered.
    pub fn equals(&self, other: &Recovered) -> bool {
        self.complete && other.complete && self.states == other.states
    }
}

/// Something that runs under a [`Plan`] and may fail: a subject, its operations, and how they are crashed.
pub trait Scenario {
    /// Its name.
    fn name(&self) -> &str;

    /// How many operations it has.
    fn ops(&self) -> usize;

    /// The ways to explore it, the cheapest first.
    fn rungs(&self) -> &[Rung];

    /// Explores it.
    fn run(&self, plan: &'static Plan, rung: &Rung) -> Report;

    /// Explores it with one site made faulty, for the smallest failure.
    fn tell(&self, plan: &'static Plan, fault: (Site, Mutation), rung: &Rung) -> Option<Told>;

    /// What can be recovered, if that can be said.
    fn recovered(&self, plan: &'static Plan, rung: &Rung) -> Option<Recovered>;
}

impl Rung {
    /// The bound that caught a failure.
    pub fn bound_of(&self, failure: &Failure) -> Bound {
        match failure.cause {
            _ if self.bound == Bound::Tearing => Bound::Tearing,
            Cause::Findings { .. } if self.bound != Bound::TwoThreads => Bound::Allocator,
            _ => self.bound,
        }
    }
}

/// A scenario of one subject.
pub struct Of<S: Subject> {
    name: String,
    make: Box<dyn Fn(&'static Plan) -> S>,
    ops: Vec<S::Op>,
    after: Vec<S::Op>,
    base: Explorer,
    rungs: Vec<Rung>,
}

impl<S: Subject> Of<S> {
    /// Runs `ops` with one crash anywhere.
    pub fn new(name: impl Into<String>, make: impl Fn(&'static Plan) -> S + 'static, ops: &[S::Op]) -> Self {
        let base = Explorer::new().crashes(1);
        let first = Rung { bound: Bound::Sequential, explorer: base.clone(), after: false };
        Of { name: name.into(), make: Box::new(make), ops: ops.to_vec(), after: Vec::new(), base, rungs: vec![first] }
    }

    /// Explores with these settings. Comes before anything that adds a way to explore.
    #[must_use]
    pub fn with(mut self, base: Explorer) -> Self {
        // A crash in the recovery is a rung of its own.
        let base = base.crashes(1);
        self.rungs[0].explorer = base.clone();
        Of { base, ..self }
    }

    /// Runs `after` on what was recovered, too.
    #[must_use]
    pub fn after(mut self, after: &[S::Op]) -> Self {
        self.after = after.to_vec();
        let explorer = self.base.clone();
        self.rung(Bound::Recovery, explorer)
    }

    /// Crashes the recoveries, too.
    #[must_use]
    pub fn nested(self) -> Self {
        let explorer = self.base.clone().crashes(2);
        self.rung(Bound::Recovery, explorer)
    }

    /// Crashes the recoveries and what follows them, too.
    #[must_use]
    pub fn later(self) -> Self {
        let explorer = self.base.clone().crashes(2).crash_later(true);
        self.rung(Bound::Recovery, explorer)
    }

    /// Lets the process die with the power on, too.
    #[must_use]
    pub fn deaths(self) -> Self {
        let explorer = self.base.clone().process_deaths(true);
        self.rung(Bound::Recovery, explorer)
    }

    /// The same, and the recoveries and what follows them are crashed twice.
    #[must_use]
    pub fn nested_deaths(self) -> Self {
        let explorer = self.base.clone().process_deaths(true).crashes(2);
        self.rung(Bound::Recovery, explorer)
    }

    /// With torn lines, too.
    #[must_use]
    pub fn torn(self) -> Self {
        let explorer = self.base.clone().model(Persistency::TornWords).crashes(2);
        self.rung(Bound::Tearing, explorer)
    }

    /// As a trait object.
    pub fn boxed(self) -> Box<dyn Scenario>
    where
        S: 'static,
        S::Op: 'static,
    {
        let Of { name, make, ops, after, rungs, .. } = self;
        let make = Box::new(move |plan| erase(make(plan)));
        Box::new(Explored { name, make, ops: Operation::all(&ops), after: Operation::all(&after), rungs })
    }

    fn rung(mut self, bound: Bound, explorer: Explorer) -> Self {
        self.rungs.push(Rung { bound, explorer, after: true });
        self
    }
}

/// A scenario whose subject has lost its type.
struct Explored {
    name: String,
    make: Box<dyn Fn(&'static Plan) -> Erased>,
    ops: Vec<Operation>,
    after: Vec<Operation>,
    rungs: Vec<Rung>,
}

impl Explored {
    fn after_of(&self, rung: &Rung) -> &[Operation] {
        if rung.after { &self.after } else { &[] }
    }
}

impl Scenario for Explored {
    fn name(&self) -> &str {
        &self.name
    }

    fn ops(&self) -> usize {
        self.ops.len()
    }

    fn rungs(&self) -> &[Rung] {
        &self.rungs
    }

    fn run(&self, plan: &'static Plan, rung: &Rung) -> Report {
        rung.explorer.clone().suggest(false).run_then(&(self.make)(plan), &self.ops, self.after_of(rung))
    }

    fn tell(&self, plan: &'static Plan, (site, mutation): (Site, Mutation), rung: &Rung) -> Option<Told> {
        let (subject, after) = ((self.make)(plan), self.after_of(rung));
        let explorer = &rung.explorer;
        plan.mutate(site, mutation);
        let report = explorer.clone().suggest(false).run_then(&subject, &self.ops, after);
        // Leaving operations out must not break the scenario itself.
        let still_a_scenario = |ops: &[Operation], after: &[Operation]| {
            plan.restore();
            let report = explorer.clone().suggest(false).run_then(&subject, ops, after);
            plan.mutate(site, mutation);
            report.failure.is_none()
        };
        let failure = explorer.shrunk(&subject, &self.ops, after, report, still_a_scenario).failure;
        let again = failure.as_ref().map(|f| explorer.clone().replay(&f.replay).run_then(&subject, &self.ops, after));
        plan.restore();
        let failure = failure?;
        let is_site =
            |at: &std::panic::Location<'_>| (at.file(), at.line(), at.column()) == (site.file, site.line, site.column);
        let named = explorer.suggestion_names(&subject, &self.ops, after, &failure, is_site);
        Some(Told::new(failure, again.and_then(|again| again.failure), named))
    }

    fn recovered(&self, plan: &'static Plan, rung: &Rung) -> Option<Recovered> {
        let subject = (self.make)(plan);
        let mut recovered = Recovered { states: Vec::new(), complete: true, executions: 0 };
        // Whatever it takes: a sample shows nothing.
        let explorer = rung.explorer.clone().executions_per_point(COMPLETELY);
        for len in 0..=self.ops.len() {
            let (states, report) = explorer.recovered(&subject, &self.ops[..len]);
            recovered.complete &= report.failure.is_none() && report.complete;
            recovered.executions += report.executions;
            recovered.states.push(states);
        }
        Some(recovered)
    }
}

/// Threads on one subject, in every interleaving.
pub struct Interleaved<S: Concurrent> {
    name: String,
    make: Box<dyn Fn(&'static Plan) -> S>,
    program: Vec<Vec<S::Op>>,
    after: Vec<S::Op>,
    rung: [Rung; 1],
    preemptions: u32,
}

impl<S: Concurrent> Interleaved<S> {
    /// One sequence of operations for each thread, at most one preemption, and `after` on what was recovered.
    pub fn new(
        name: impl Into<String>,
        make: impl Fn(&'static Plan) -> S + 'static,
        program: &[Vec<S::Op>],
        after: &[S::Op],
    ) -> Self {
        let explorer = Explorer::new().crashes(1).executions_per_point(100).samples(20);
        let rung = [Rung { bound: Bound::TwoThreads, explorer, after: true }];
        Interleaved {
            name: name.into(),
            make: Box::new(make),
            program: program.to_vec(),
            after: after.to_vec(),
            rung,
            preemptions: 1,
        }
    }

    /// As a trait object.
    pub fn boxed(self) -> Box<dyn Scenario>
    where
        S: 'static,
    {
        Box::new(self)
    }

    fn explore(&self, plan: &'static Plan, explorer: Explorer) -> Report {
        Threads::new(explorer).preemptions(self.preemptions).run(&(self.make)(plan), &self.program, &self.after)
    }
}

impl<S: Concurrent> Scenario for Interleaved<S> {
    fn name(&self) -> &str {
        &self.name
    }

    fn ops(&self) -> usize {
        // Dearer than any sequence: comes last.
        100 + self.program.iter().map(Vec::len).sum::<usize>()
    }

    fn rungs(&self) -> &[Rung] {
        &self.rung
    }

    fn run(&self, plan: &'static Plan, rung: &Rung) -> Report {
        self.explore(plan, rung.explorer.clone())
    }

    fn tell(&self, plan: &'static Plan, (site, mutation): (Site, Mutation), rung: &Rung) -> Option<Told> {
        plan.mutate(site, mutation);
        let failure = self.explore(plan, rung.explorer.clone()).failure;
        let again = failure.as_ref().map(|f| self.explore(plan, rung.explorer.clone().replay(&f.replay)));
        plan.restore();
        Some(Told::new(failure?, again.and_then(|again| again.failure), false))
    }

    fn recovered(&self, _: &'static Plan, _: &Rung) -> Option<Recovered> {
        None
    }
}
