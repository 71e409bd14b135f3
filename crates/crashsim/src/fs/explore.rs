//! The explorer of files: one execution, every crash.

use std::collections::BTreeSet;
use std::fmt::Debug;
use std::rc::Rc;
use std::sync::{Arc, Mutex, PoisonError};

use proptest::strategy::Strategy as Generate;

use super::cell::Decisions;
use super::fault::{Call, Fault};
use super::files::{Asked, Change, SimulatedFs, Snapshot, Step};
use super::story::Stop;
use super::subject::FileSubject;
use super::world::{Promises, World};
use crate::count::Count;
use crate::drive;
use crate::explore::Explorer;
use crate::panics::quietly;
use crate::random::next;
use crate::report::{Cause, Failure, Report};
use crate::shrink;
use crate::subject::Contract;

/// Explores the crashes of something that keeps its data in files: an [`Explorer`], whose contract, crashes, budgets, seed, deaths of
/// the process and replay string hold here, too, and what is assumed of the file system. Cheap to clone; see the
/// [module's documentation](super).
#[derive(Clone, Debug)]
pub struct Files {
    pub(super) explorer: Explorer,
    pub(super) promises: Promises,
    pub(super) sector: usize,
    pub(super) each_fault: bool,
    pub(super) change: Option<Change>,
    /// Where syncs were asked for, if somebody wants to know.
    pub(super) sites: Option<Arc<Mutex<Vec<Asked>>>>,
}

impl Default for Files {
    fn default() -> Self {
        Files::new(Explorer::new())
    }
}

impl Files {
    /// The settings of an explorer, and a file system that promises the [least](Promises::Least), with sectors of 512 bytes.
    pub fn new(explorer: Explorer) -> Self {
        Files { explorer, promises: Promises::Least, sector: 512, each_fault: false, change: None, sites: None }
    }

    /// What the file system promises of names.
    #[must_use]
    pub fn promises(self, promises: Promises) -> Self {
        Files { promises, ..self }
    }

    /// Bytes that are written whole or not at all. A disk promises 512; fewer stand for a page that is written while it changes.
    ///
    /// # Panics
    /// If there are none.
    #[must_use]
    pub fn sector(self, bytes: usize) -> Self {
        assert!(bytes > 0, "a sector has bytes");
        Files { sector: bytes, ..self }
    }

    /// Explores each history once more for each call of the operations to the file system, and each way in which it can
    /// [fail](Call::faults). An operation that says that it [has failed](FileSubject::has_failed) may have happened or not; all others
    /// are held to what they promise.
    #[must_use]
    pub fn each_fault(self, each_fault: bool) -> Self {
        Files { each_fault, ..self }
    }

    pub(super) fn with(&self, explorer: &Explorer) -> Self {
        Files { explorer: explorer.clone(), ..self.clone() }
    }

    /// Runs `ops`, then crashes and recovers in every way that the model allows, and compares with the reference model.
    #[must_use = "a report may hold a failure: call `assert_ok`, or look at `failure`"]
    pub fn run<S: FileSubject>(&self, subject: &S, ops: &[S::Op]) -> Report {
        self.run_then(subject, ops, &[])
    }

    /// As [`run`](Files::run), and runs `after` on what was recovered.
    #[must_use = "a report may hold a failure: call `assert_ok`, or look at `failure`"]
    pub fn run_then<S: FileSubject>(&self, subject: &S, ops: &[S::Op], after: &[S::Op]) -> Report {
        if let Some((ops, after)) = self.explorer.kept(ops, after) {
            let mut report = self.with_faults(subject, &ops, &after);
            let case = self.explorer.replay.as_ref().map(|replay| replay.case.clone()).unwrap_or_default();
            report.failure.iter_mut().for_each(|failure| failure.set_case(case.clone()));
            return report;
        }
        let report = self.with_faults(subject, ops, after);
        if !self.explorer.shrink_ops {
            return report;
        }
        let run =
            |explorer: &Explorer, ops: &[S::Op], after: &[S::Op]| self.with(explorer).run_then(subject, ops, after);
        shrink::shrunk(&self.explorer, ops, after, report, |_, _| true, run)
    }

    /// Runs every sequence of exactly `len` operations out of `alphabet`: as [`Explorer::sequences`].
    #[must_use = "a report may hold a failure: call `assert_ok`, or look at `failure`"]
    pub fn sequences<S: FileSubject>(&self, subject: &S, alphabet: &[S::Op], len: usize, after: &[S::Op]) -> Report {
        let run =
            |explorer: &Explorer, ops: &[S::Op], after: &[S::Op]| self.with(explorer).run_then(subject, ops, after);
        drive::sequences(&self.explorer, alphabet, len, after, run)
    }

    /// Runs `cases` generated pairs of operations and operations after the recovery. A failure is shrunk: as [`Explorer::check`].
    #[must_use = "a report may hold a failure: call `assert_ok`, or look at `failure`"]
    pub fn check<S: FileSubject>(
        &self,
        subject: &S,
        cases: u64,
        generate: &impl Generate<Value = (Vec<S::Op>, Vec<S::Op>)>,
    ) -> Report {
        let run =
            |explorer: &Explorer, ops: &[S::Op], after: &[S::Op]| self.with(explorer).run_then(subject, ops, after);
        drive::check(&self.explorer, cases, generate, run)
    }

    /// What is observed after a crash anywhere in `ops`, over all crash states; nothing is judged.
    pub fn outcomes<S: FileSubject>(&self, subject: &S, ops: &[S::Op]) -> BTreeSet<String> {
        let mut outcomes = BTreeSet::new();
        let mut observe = |state: &dyn Debug| {
            outcomes.insert(format!("{state:?}"));
        };
        let explorer = Explorer { judge: false, ..self.explorer.clone() };
        let files = self.with(&explorer);
        let mut run = Run::new(&files, subject, ops, &[], None);
        run.observe = Some(&mut observe);
        run.run().assert_ok();
        outcomes
    }

    fn with_faults<S: FileSubject>(&self, subject: &S, ops: &[S::Op], after: &[S::Op]) -> Report {
        let replayed = self.explorer.replay.as_ref();
        let mut run = Run::new(self, subject, ops, after, replayed.and_then(|replay| replay.fault));
        let mut report = run.run();
        let of_this_run = replayed.is_some_and(|replay| replay.fault.is_some() || !replay.crashes.is_empty());
        if !self.each_fault || of_this_run {
            return report;
        }
        let (first, calls) = (run.first_call, run.calls);
        for (number, call) in calls.iter().enumerate().skip(first) {
            for fault in 0..call.faults().len() {
                if report.failure.is_none() {
                    report.merge(Run::new(self, subject, ops, after, Some((number as u64 + 1, fault))).run());
                }
            }
        }
        report.cases = 1;
        report
    }
}

/// What may be found after a crash in a part of an execution.
pub(super) struct Stage<S: FileSubject> {
    models: Vec<S::Model>,
    pub(super) states: Vec<S::State>,
    /// Fewest and most operations that are done.
    pub(super) oldest: usize,
    pub(super) newest: usize,
    /// Operations that have returned.
    pub(super) done: usize,
    pub(super) in_flight: bool,
}

impl<S: FileSubject> Stage<S> {
    fn new(subject: &S, history: &[Vec<S::Model>], oldest: usize, in_flight: Option<Vec<S::Model>>) -> Rc<Self> {
        let done = history.len() - 1;
        let newest = done + usize::from(in_flight.is_some());
        let of_op = in_flight.is_some();
        let models: Vec<_> =
            history[oldest..].iter().flatten().cloned().chain(in_flight.into_iter().flatten()).collect();
        let states = models.iter().map(|model| subject.expect(model)).collect();
        Rc::new(Stage { models, states, oldest, newest, done, in_flight: of_op })
    }

    /// Whether a crash with nothing changed since one in `other` is covered by that one.
    fn is_implied_by(&self, other: &Self) -> bool {
        self.oldest <= other.oldest && other.newest <= self.newest
    }
}

type Observe<'a> = &'a mut dyn FnMut(&dyn Debug);

type Stages<S> = Vec<Rc<Stage<S>>>;

/// A state that is not allowed, and how it came to be.
pub(super) struct Found {
    pub(super) cause: Cause,
    pub(super) stops: Vec<Stop>,
    /// How far each unknown is behind its newest version.
    pub(super) back: Vec<u16>,
}

/// One execution under exploration.
pub(super) struct Run<'a, S: FileSubject> {
    pub(super) files: &'a Files,
    pub(super) subject: &'a S,
    pub(super) ops: &'a [S::Op],
    pub(super) after: &'a [S::Op],
    pub(super) fs: SimulatedFs,
    pub(super) fault: Option<(u64, usize)>,
    pub(super) observe: Option<Observe<'a>>,
    pub(super) trace: Vec<Step>,
    pub(super) snapshots: Rc<Vec<Snapshot>>,
    pub(super) stages: Stages<S>,
    pub(super) report: Report,
    random: u64,
    /// Calls before the first operation.
    first_call: usize,
    calls: Vec<Call>,
}

impl<'a, S: FileSubject> Run<'a, S> {
    pub(super) fn new(
        files: &'a Files,
        subject: &'a S,
        ops: &'a [S::Op],
        after: &'a [S::Op],
        fault: Option<(u64, usize)>,
    ) -> Self {
        let fs = SimulatedFs::over(World::new(files.sector, files.promises));
        fs.shared().change = files.change;
        fs.shared().syncs = files.sites.is_some().then(Vec::new);
        let random = files.explorer.seed | 1;
        Run {
            files,
            subject,
            ops,
            after,
            fs,
            fault,
            observe: None,
            trace: Vec::new(),
            snapshots: Rc::default(),
            stages: Vec::new(),
            report: Report::default(),
            random,
            first_call: 0,
            calls: Vec::new(),
        }
    }

    pub(super) fn run(&mut self) -> Report {
        let failure = match self.record() {
            Err(failure) => Some(*failure),
            Ok(()) => self.crash_everywhere().err().map(|found| self.story(*found)),
        };
        let picked = self.files.explorer.replay.is_some() || self.files.explorer.crash_points.is_some();
        self.report.complete &= failure.is_none() && !picked;
        self.report.failure = failure;
        if let Some(sites) = &self.files.sites {
            let asked = self.fs.shared().syncs.take().unwrap_or_default();
            sites.lock().unwrap_or_else(PoisonError::into_inner).extend(asked);
        }
        std::mem::take(&mut self.report)
    }

    /// Runs the operations to their end, and keeps what may be crashed.
    fn record(&mut self) -> Result<(), Box<Failure>> {
        let explorer = &self.files.explorer;
        {
            let mut shared = self.fs.shared();
            let world = World::new(self.files.sector, self.files.promises);
            shared.restart(world);
            shared.recovering = false;
            shared.trace = Some(Vec::new());
            shared.faults.log = Some(Vec::new());
            shared.wants_power_failures = explorer.crash_in_create;
            shared.wants_deaths = explorer.crash_in_create && explorer.process_deaths;
        }
        let (subject, fs) = (self.subject, self.fs.now());
        let start = vec![vec![subject.model()]];
        let mut stages = vec![Stage::new(subject, &start, 0, None)];
        let outcome = quietly(|| {
            let mut live = subject.create(&fs);
            {
                let mut shared = fs.shared();
                self.first_call = shared.faults.log.as_ref().map_or(0, Vec::len);
                shared.faults.one = self.fault();
                shared.wants_power_failures = true;
                shared.wants_deaths = explorer.process_deaths;
                shared.changed = true;
                shared.end_stage(1);
            }
            let done = self.operate(&mut live, self.ops, start.into_iter().next().unwrap_or_default(), &mut stages);
            let mut shared = fs.shared();
            shared.wants_power_failures = explorer.crash_in_close;
            shared.wants_deaths = false;
            drop(shared);
            drop(live);
            if explorer.crash_in_close {
                let stage = fs.shared().stage;
                fs.shared().end_stage(stage);
            }
            done
        });
        let mut shared = self.fs.shared();
        self.trace = shared.trace.take().unwrap_or_default();
        self.calls = shared.faults.log.take().unwrap_or_default();
        self.snapshots = Rc::new(std::mem::take(&mut shared.snapshots));
        shared.faults.one = None;
        drop(shared);
        self.stages = stages;
        self.report.cases = 1;
        self.report.events = self.trace.len() as u64;
        let cause = match outcome {
            Ok(Ok(_)) => return Ok(()),
            Ok(Err(Cause::Later { number, answer, expected, .. })) => Cause::Answer { number, answer, expected },
            Ok(Err(cause)) => cause,
            Err(message) => Cause::Panic { during: "the operations", message },
        };
        Err(Box::new(self.plain_failure(cause)))
    }

    fn fault(&self) -> Option<(u64, Fault)> {
        // The kind of the call is known once it was made without a fault; each kind lists its faults in the same order.
        self.fault.map(|(call, number)| (call, [Fault::Io, Fault::NoSpace, Fault::Short(1)][number]))
    }

    /// Runs operations; at least one of the models must agree all along. Takes note of what may be found after each.
    fn operate(
        &self,
        live: &mut S::Live,
        ops: &[S::Op],
        models: Vec<S::Model>,
        stages: &mut Stages<S>,
    ) -> Result<Vec<S::Model>, Cause> {
        let (subject, explorer) = (self.subject, &self.files.explorer);
        let buffered = explorer.contract == Contract::Buffered;
        let mut history = vec![models];
        stages.push(Stage::new(subject, &history, 0, None));
        let (mut synced, mut failing) = (0, false);
        for (number, op) in ops.iter().enumerate() {
            let before = history.last().expect("models from the start").clone();
            let stepped: Vec<_> = before.iter().cloned().map(|mut m| (subject.step(&mut m, op), m)).collect();
            let oldest = if buffered { synced } else { number };
            let under_way = stepped.iter().map(|(_, model)| model.clone()).collect();
            stages.push(Stage::new(subject, &history, oldest, Some(under_way)));
            self.fs.shared().stage = stages.len() as u32 - 1;
            let answer = subject.apply(live, op);
            // What has failed once may go on to fail.
            failing |= self.fault.is_some() && subject.has_failed(&answer);
            let has_failed = failing && subject.has_failed(&answer);
            let expected = stepped.first().map(|(expected, _)| format!("{expected:?}")).unwrap_or_default();
            let models: Vec<_> = match has_failed {
                true => before.into_iter().chain(stepped.into_iter().map(|(_, model)| model)).collect(),
                false => stepped.into_iter().filter(|(ret, _)| *ret == answer).map(|(_, model)| model).collect(),
            };
            if models.is_empty() && explorer.judge {
                return Err(Cause::Later { number, op: format!("{op:?}"), answer: format!("{answer:?}"), expected });
            }
            if subject.is_sync(op) && !has_failed {
                synced = number + 1;
            }
            history.push(models);
            let oldest = if buffered { synced } else { number + 1 };
            stages.push(Stage::new(subject, &history, oldest, None));
            self.fs.shared().end_stage(stages.len() as u32 - 1);
        }
        Ok(history.pop().unwrap_or_default())
    }

    /// Crashes at each point where a crash can leave what it could not before, or may leave less.
    fn crash_everywhere(&mut self) -> Result<(), Box<Found>> {
        let snapshots = Rc::clone(&self.snapshots);
        if let Some(replay) = self.files.explorer.replay.clone().filter(|replay| !replay.crashes.is_empty()) {
            return self.rerun(&replay);
        }
        let mut last: Option<&Snapshot> = None;
        let mut picked = self.picked();
        for (index, snapshot) in snapshots.iter().enumerate() {
            if picked.as_mut().is_some_and(|picked| !picked.contains(&index)) {
                continue;
            }
            if !snapshot.death {
                let stages = &self.stages;
                let stage = |snapshot: &Snapshot| Rc::clone(&stages[snapshot.stage as usize]);
                let known = last.is_some_and(|last| stage(snapshot).is_implied_by(&stage(last)));
                if known && !snapshot.changed {
                    continue;
                }
                last = Some(snapshot);
                self.report.crash_points += 1;
            } else {
                self.report.deaths += 1;
            }
            let stage = Rc::clone(&self.stages[snapshot.stage as usize]);
            let world = crashed(snapshot);
            let stop = Stop { index, death: snapshot.death };
            self.explore(&stage, &world, &[stop])?;
        }
        Ok(())
    }

    /// The snapshots that [`Explorer::crash_points`] leaves.
    fn picked(&mut self) -> Option<Vec<usize>> {
        let points = self.files.explorer.crash_points?;
        let mut places: Vec<usize> = (0..self.snapshots.len()).collect();
        let mut picked = Vec::new();
        while !places.is_empty() && (picked.len() as u64) < points {
            let at = next(&mut self.random) % places.len() as u64;
            picked.push(places.swap_remove(at as usize));
        }
        Some(picked)
    }

    /// Recovers from every state of a crashed world.
    pub(super) fn explore(&mut self, stage: &Rc<Stage<S>>, world: &World, stops: &[Stop]) -> Result<(), Box<Found>> {
        let explorer = &self.files.explorer;
        let died = stops.last().is_some_and(|stop| stop.death);
        let most = if stops.iter().any(|stop| stop.death) { explorer.crashes.max(1) + 1 } else { explorer.crashes };
        let (nested, later) = (stops.len() < most, explorer.crash_later || died);
        let (total, unknowns) = (world.states(), world.unknowns.all.len());
        let (mut sum, mut executions) = (Count::default(), 0);
        let (mut decisions, mut first) = (Decisions::default(), None);
        loop {
            if executions == explorer.executions_per_point {
                self.report.complete = false;
                return self.sample(stage, world, stops);
            }
            executions += 1;
            let attempt = self.attempt(stage, world.clone(), decisions, nested, false);
            let found =
                |cause, world: &World| Box::new(Found { cause, stops: stops.to_vec(), back: back(world, unknowns) });
            if let Err(cause) = attempt.outcome {
                return Err(found(cause, &attempt.world));
            }
            decisions = attempt.decisions;
            sum.add(&states_of(&attempt.world, unknowns));
            if nested {
                self.crash_again(&attempt.snapshots, &attempt.stages, first, later, died, stops)?;
            }
            let changes = decisions.advance();
            if decisions.astray {
                return Err(found(Cause::Nondeterministic, &attempt.world));
            }
            if changes.is_none() {
                break;
            }
            first = changes;
        }
        self.report.count(&total, sum == total);
        Ok(())
    }

    /// Crashes a recovery, and what follows it, where no earlier execution with the same decisions was crashed. `first` is the
    /// decision from which on the execution differs from earlier ones.
    fn crash_again(
        &mut self,
        snapshots: &[Snapshot],
        stages: &[Rc<Stage<S>>],
        first: Option<usize>,
        later: bool,
        died: bool,
        stops: &[Stop],
    ) -> Result<(), Box<Found>> {
        let mut last: Option<&Snapshot> = None;
        for (index, snapshot) in snapshots.iter().enumerate() {
            let stage = &stages[snapshot.stage as usize];
            let known = match last {
                Some(last) => !snapshot.changed && stage.is_implied_by(&stages[last.stage as usize]),
                // What has written nothing leaves what it found.
                None => !snapshot.changed && !died,
            };
            if known || (snapshot.stage > 1 && !later) {
                continue;
            }
            last = Some(snapshot);
            if first.is_some_and(|first| snapshot.made <= first) {
                continue;
            }
            self.report.nested_points += 1;
            let stops: Vec<Stop> = stops.iter().copied().chain([Stop { index, death: false }]).collect();
            self.explore(stage, &crashed(snapshot), &stops)?;
        }
        Ok(())
    }

    /// Recovers, and compares.
    pub(super) fn attempt(
        &mut self,
        stage: &Rc<Stage<S>>,
        world: World,
        decisions: Decisions,
        crash: bool,
        tell: bool,
    ) -> Attempt<S> {
        {
            let mut shared = self.fs.shared();
            shared.restart(world);
            shared.recovering = true;
            shared.decisions = decisions;
            shared.wants_power_failures = crash;
            shared.trace = tell.then(Vec::new);
        }
        self.report.executions += 1;
        let (subject, fs) = (self.subject, self.fs.now());
        let mut stages = vec![Rc::clone(stage)];
        let during = std::cell::Cell::new("the recovery");
        let outcome = quietly(|| {
            let mut live = subject.recover(&fs).map_err(|message| Cause::Recovery { message })?;
            during.set("the operations after the recovery");
            self.judge(stage, &mut live, &mut stages)?;
            during.set("closing");
            fs.shared().wants_power_failures = false;
            drop(live);
            Ok(())
        });
        let mut shared = self.fs.shared();
        // What is left of this process can do no more.
        shared.generation += 1;
        Attempt {
            outcome: outcome.unwrap_or_else(|message| Err(Cause::Panic { during: during.get(), message })),
            world: shared.world.clone(),
            decisions: std::mem::take(&mut shared.decisions),
            snapshots: std::mem::take(&mut shared.snapshots),
            trace: shared.trace.take().unwrap_or_default(),
            stages,
        }
    }

    fn judge(&mut self, stage: &Stage<S>, live: &mut S::Live, stages: &mut Stages<S>) -> Result<(), Cause> {
        let explorer = &self.files.explorer;
        if !explorer.observe_first && explorer.judge && !self.after.is_empty() {
            self.fs.shared().end_stage(1);
            let models = self.operate(live, self.after, stage.models.clone(), stages)?;
            return self.judge_later(live, &models);
        }
        let observed = self.subject.observe(live);
        if let Some(observe) = &mut self.observe {
            observe(&observed);
        }
        if !explorer.judge {
            return Ok(());
        }
        let agrees = |(_, state): &(&S::Model, &S::State)| **state == observed;
        let matching: Vec<_> = stage.models.iter().zip(&stage.states).filter(agrees).map(|(m, _)| m.clone()).collect();
        if matching.is_empty() {
            let allowed = stage.states.iter().map(|state| format!("{state:?}")).collect();
            return Err(Cause::Recovered { observed: format!("{observed:?}"), allowed });
        }
        self.find("after the recovery", live)?;
        self.fs.shared().end_stage(1);
        let models = self.operate(live, self.after, matching, stages)?;
        if self.after.is_empty() { Ok(()) } else { self.judge_later(live, &models) }
    }

    fn judge_later(&self, live: &mut S::Live, models: &[S::Model]) -> Result<(), Cause> {
        let observed = self.subject.observe(live);
        let states: Vec<S::State> = models.iter().map(|model| self.subject.expect(model)).collect();
        if !states.contains(&observed) {
            let allowed = states.iter().map(|state| format!("{state:?}")).collect();
            return Err(Cause::LaterState { observed: format!("{observed:?}"), allowed });
        }
        self.find("after the operations that followed the recovery", live)
    }

    fn find(&self, when: &'static str, live: &mut S::Live) -> Result<(), Cause> {
        let findings = self.subject.check(live);
        if findings.is_empty() { Ok(()) } else { Err(Cause::Findings { when, findings }) }
    }

    /// Beyond the budget: states picked where bugs are. Everything lost, everything there, each thing alone lost or alone there,
    /// then at random.
    fn sample(&mut self, stage: &Rc<Stage<S>>, world: &World, stops: &[Stop]) -> Result<(), Box<Found>> {
        let most: Vec<u16> = world.unknowns.all.iter().map(|unknown| unknown.alive.len() as u16 - 1).collect();
        let open: Vec<usize> = (0..most.len()).filter(|at| most[*at] > 0).collect();
        let none = vec![0; most.len()];
        let mut plan = vec![none.clone(), most.clone()];
        for at in &open {
            for (base, value) in [(&none, most[*at]), (&most, 0), (&none, most[*at] / 2)] {
                let mut back = base.clone();
                back[*at] = value;
                plan.push(back);
            }
        }
        let samples = self.files.explorer.samples as usize;
        plan.truncate(samples);
        while plan.len() < samples {
            let random = &mut self.random;
            plan.push(most.iter().map(|most| (next(random) % (u64::from(*most) + 1)) as u16).collect());
        }
        for sample in plan {
            self.report.samples += 1;
            let mut of_this = world.clone();
            // Of what was decided before a second crash only what is left can be.
            for (unknown, back) in of_this.unknowns.all.iter_mut().zip(&sample) {
                let at = unknown.alive.len() - 1 - usize::from(*back);
                unknown.alive = vec![unknown.alive[at]];
            }
            let of_state = back(&of_this, most.len());
            let attempt = self.attempt(stage, of_this, Decisions::default(), false, false);
            if let Err(cause) = attempt.outcome {
                return Err(Box::new(Found { cause, stops: stops.to_vec(), back: of_state }));
            }
        }
        Ok(())
    }

    pub(super) fn plain_failure(&self, cause: Cause) -> Failure {
        Failure::plain(cause, self.ops.iter().map(|op| format!("{op:?}")).collect())
    }
}

/// One recovery.
pub(super) struct Attempt<S: FileSubject> {
    pub(super) outcome: Result<(), Cause>,
    pub(super) world: World,
    pub(super) decisions: Decisions,
    pub(super) snapshots: Vec<Snapshot>,
    pub(super) trace: Vec<Step>,
    pub(super) stages: Stages<S>,
}

/// What a crash leaves of a snapshot.
pub(super) fn crashed(snapshot: &Snapshot) -> World {
    if snapshot.death { snapshot.world.process_death() } else { snapshot.world.power_failure() }
}

/// How far the first unknowns are behind their newest versions, each being the newest that it still can be.
fn back(world: &World, unknowns: usize) -> Vec<u16> {
    let of = |unknown: &super::cell::Unknown| unknown.steps.len() as u16 - 1 - unknown.newest();
    world.unknowns.all[..unknowns].iter().map(of).collect()
}

fn states_of(world: &World, unknowns: usize) -> Count {
    let mut states = Count::one();
    for unknown in world.unknowns.all[..unknowns].iter().filter(|unknown| unknown.alive.len() > 1) {
        states = states.times(unknown.alive.len() as u128);
    }
    states
}
