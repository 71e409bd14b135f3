//! From a failing state to the few things that matter, and their story.

use std::rc::Rc;

use super::cell::{Target, Unknown};
use super::explore::{Attempt, Found, Run, Stage, crashed};
use super::files::{At, Change, Snapshot, Step};
use super::subject::FileSubject;
use super::world::{NO_STEP, World};
use crate::explore::Explorer;
use crate::model::trace::place;
use crate::model::window::{Positions, WORDS};
use crate::replay::{Crash, Replay};
use crate::report::{Cause, Failure};
use crate::subject::Contract;

/// Recoveries spent on finding a state in which fewer things are lost.
const FEWER: usize = 3000;

/// Places where an added sync is tried.
const TRIED: usize = 6;

/// Where an execution crashes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Stop {
    /// Number of the snapshot.
    pub(super) index: usize,
    /// The process dies, and the power stays on.
    pub(super) death: bool,
}

/// One failing state, run again.
struct Told<S: FileSubject> {
    cause: Cause,
    world: World,
    /// Where each crash was: the snapshot, and the stages of its execution.
    crashes: Vec<(Snapshot, Rc<Stage<S>>)>,
    /// The steps of the recoveries that were crashed, and of the last one.
    traces: Vec<Vec<Step>>,
}

impl<S: FileSubject> Run<'_, S> {
    /// Runs one state: where each execution crashes, and how far each thing is behind. `None` where it does not come so far.
    fn one(&mut self, stops: &[Stop], back: &[u16], tell: bool) -> Option<Result<(), Told<S>>> {
        let live = Rc::clone(&self.snapshots);
        let snapshot = live.get(stops[0].index)?.clone();
        let stage = Rc::clone(&self.stages[snapshot.stage as usize]);
        let (mut world, mut stage_now) = (settled(crashed(&snapshot), back), Rc::clone(&stage));
        let mut crashes = vec![(snapshot, stage)];
        let mut traces = Vec::new();
        for stop in &stops[1..] {
            let Attempt { snapshots, stages, trace, .. } =
                self.attempt(&stage_now, world, Default::default(), true, tell);
            let snapshot = snapshots.get(stop.index)?.clone();
            stage_now = Rc::clone(stages.get(snapshot.stage as usize)?);
            world = settled(crashed(&snapshot), back);
            traces.push(trace);
            crashes.push((snapshot, Rc::clone(&stage_now)));
        }
        let open = world.clone();
        let Attempt { outcome, trace, .. } = self.attempt(&stage_now, world, Default::default(), false, tell);
        traces.push(trace);
        Some(outcome.map_err(|cause| Told { cause, world: open, crashes, traces }))
    }

    fn fails(&mut self, stops: &[Stop], back: &[u16]) -> bool {
        matches!(self.one(stops, back, false), Some(Err(_)))
    }

    /// Runs the one state that a replay string names.
    pub(super) fn rerun(&mut self, replay: &Replay) -> Result<(), Box<Found>> {
        let died = replay.death.is_some();
        let stop = |(number, crash): (usize, &Crash)| Stop { index: crash.event, death: died && number == 0 };
        let stops: Vec<Stop> = replay.crashes.iter().enumerate().map(stop).collect();
        if replay.crashes.iter().any(|crash| crash.lines.is_none()) {
            let snapshots = Rc::clone(&self.snapshots);
            let Some(snapshot) = snapshots.get(stops[0].index) else { return Ok(()) };
            let stage = Rc::clone(&self.stages[snapshot.stage as usize]);
            return self.explore(&stage, &crashed(snapshot), &stops[..1]);
        }
        let mut back = Vec::new();
        for (group, positions) in replay.crashes.iter().filter_map(|crash| crash.lines.as_ref()).flatten() {
            let first = *group as usize * WORDS;
            if back.len() < first + WORDS {
                back.resize(first + WORDS, 0);
            }
            back[first..first + WORDS].copy_from_slice(positions);
        }
        match self.one(&stops, &back, false) {
            Some(Err(told)) => Err(Box::new(Found { cause: told.cause, stops, back })),
            _ => Ok(()),
        }
    }

    /// Lets as much as possible reach the disk while it still fails: one thing alone lost, or two, or as few as can be.
    fn minimised(&mut self, stops: &[Stop], back: &[u16]) -> Vec<u16> {
        let Some(Err(told)) = self.one(stops, back, false) else { return back.to_vec() };
        let options: Vec<u16> = told.world.unknowns.all.iter().map(|unknown| unknown.steps.len() as u16).collect();
        let none = vec![0; options.len()];
        let single = || (0..options.len()).flat_map(|at| (1..options[at]).map(move |by| (at, by)));
        let mut budget = FEWER;
        if self.fails(stops, &none) {
            return none;
        }
        for (first, by) in single() {
            let mut one = none.clone();
            one[first] = by;
            budget = budget.saturating_sub(1);
            if budget > 0 && self.fails(stops, &one) {
                return one;
            }
        }
        for (first, by) in single() {
            for (second, other) in single().filter(|(second, _)| *second > first) {
                let mut two = none.clone();
                (two[first], two[second]) = (by, other);
                budget = budget.saturating_sub(1);
                if budget > 0 && self.fails(stops, &two) {
                    return two;
                }
            }
        }
        let mut back = back.to_vec();
        for at in 0..back.len() {
            for less in 0..back[at] {
                let before = std::mem::replace(&mut back[at], less);
                if self.fails(stops, &back) {
                    break;
                }
                back[at] = before;
            }
        }
        back
    }

    /// Tells a state that is not allowed.
    pub(super) fn story(&mut self, found: Found) -> Failure {
        let Found { cause, stops, back } = found;
        let replaying = self.files.explorer.replay.is_some();
        let explored = self.report.so_far();
        let nondeterministic = matches!(cause, Cause::Nondeterministic);
        let back = if replaying || nondeterministic { back } else { self.minimised(&stops, &back) };
        let Some(Err(told)) = self.one(&stops, &back, true) else {
            // It fails, but not when it is run again.
            return self.plain_failure(Cause::Nondeterministic);
        };
        let lost: Vec<&Unknown> = told.world.unknowns.all.iter().filter(|unknown| is_lost(unknown)).collect();
        let suggestion = if self.files.explorer.suggest { self.suggest(&told, &lost) } else { None };
        let mut crashes: Vec<String> =
            told.crashes.iter().enumerate().map(|(depth, crash)| self.place_of(depth, crash)).collect();
        let death = stops[0].death.then(|| crashes.remove(0));
        let replay = Replay {
            crashes: encoded(&stops, &back),
            death: stops[0].death.then_some(stops[0].index),
            fault: self.fault,
            ..Replay::default()
        };
        let first = &told.crashes[0].1;
        let mut details: Vec<String> = self.fault.iter().map(|fault| self.tell_fault(*fault)).collect();
        details.extend(lost.iter().flat_map(|unknown| self.tell(unknown, &told)));
        if details.is_empty() {
            details.push("every write, size and name had reached the disk".into());
        }
        Failure {
            crash: Some((first.done, first.in_flight)),
            crashes,
            death,
            crash_after: told.crashes.get(1).filter(|_| stops[0].death).map(|(_, stage)| (stage.done, stage.in_flight)),
            details,
            deviating: lost.len(),
            suggestion,
            replay: replay.encode(),
            code: replay,
            after: self.after.iter().map(|op| format!("{op:?}")).collect(),
            assumed: self.assumptions(),
            explored,
            ..self.plain_failure(told.cause)
        }
    }

    fn assumptions(&self) -> String {
        let contract = match self.files.explorer.contract {
            Contract::Strict => "what has returned is durable",
            Contract::Buffered => "a prefix survives that is no older than the last sync",
        };
        let names = match self.files.promises {
            super::Promises::Least => "each name on its own",
            super::Promises::OrderedNames => "names in order",
        };
        format!(
            "files behind the page cache (each sector and each size on its own, {names}, until a sync); contract: {contract}"
        )
    }

    fn place_of(&self, depth: usize, (snapshot, stage): &(Snapshot, Rc<Stage<S>>)) -> String {
        let within = match (depth, snapshot.stage) {
            (0, 0) => "in the creation".into(),
            (0, _) if stage.in_flight => format!("in operation {}", stage.done),
            (0, _) => format!("after {} operations", stage.done),
            (_, 0) => "in the recovery".into(),
            (_, _) if stage.in_flight => format!("in operation {} after the recovery", stage.done),
            (_, _) => format!("after the recovery and {} operations", stage.done),
        };
        match snapshot.before {
            Some(at) => format!("{within}, just before the sync at {}", place(at)),
            None => within,
        }
    }

    fn tell_fault(&self, (call, number): (u64, usize)) -> String {
        let fault = ["an I/O error (EIO)", "a full disk (ENOSPC)", "a short write of one byte"][number];
        format!("call {call} of the file system met {fault}")
    }

    /// What was lost of one thing.
    fn tell(&self, unknown: &Unknown, told: &Told<S>) -> Vec<String> {
        let world = &told.world;
        let what = match unknown.target {
            Target::Sector { inode, number } => {
                let (from, to) = (number * world.atom as u64, (number + 1) * world.atom as u64);
                format!("bytes {from} to {to} of {}", path_of(world, inode))
            }
            Target::Size { inode } => format!("the length of {}", path_of(world, inode)),
            Target::Name { directory, name } => {
                let name = &world.names[name as usize];
                match path_of(world, directory) {
                    path if path == "/" => format!("the name {name}"),
                    path => format!("the name {name} in {path}"),
                }
            }
            Target::Names => "names".into(),
        };
        let found = usize::from(unknown.newest());
        let trace = if unknown.layer == 0 { &self.trace } else { &told.traces[unknown.layer as usize - 1] };
        let whose = if unknown.layer == 0 { "" } else { " after the recovery" };
        let missing: Vec<&Step> = self.missing(unknown, trace);
        let total = unknown.steps.iter().filter(|step| **step != NO_STEP).count();
        let mut lines =
            vec![format!("{what}: {} of {total} changes since the last sync did not reach the disk", missing.len())];
        for step in missing {
            let by = match (unknown.layer, step.stage) {
                (0, 0 | 1) => ", by the creation".into(),
                (_, 0 | 1) => ", by the recovery".into(),
                (_, stage) => format!(", by operation {}{whose}", (stage - 2) / 2),
            };
            lines.push(format!("    {} at {}{by}", step.what, place(step.at)));
        }
        let found = unknown.steps[found];
        lines.push(match trace.get(found as usize) {
            Some(step) if found != NO_STEP => format!("    found as after: {} at {}", step.what, place(step.at)),
            _ => "    found as it was when it was last durable".into(),
        });
        lines
    }

    fn missing<'t>(&self, unknown: &Unknown, trace: &'t [Step]) -> Vec<&'t Step> {
        let newer = &unknown.steps[usize::from(unknown.newest()) + 1..];
        newer.iter().filter_map(|step| trace.get(*step as usize)).collect()
    }

    /// A sync with which this case passes.
    fn suggest(&self, told: &Told<S>, lost: &[&Unknown]) -> Option<String> {
        let mut places: Vec<(At, bool)> = Vec::new();
        for unknown in lost {
            let trace = if unknown.layer == 0 { &self.trace } else { &told.traces[unknown.layer as usize - 1] };
            for step in self.missing(unknown, trace) {
                let of_directory = told.world.inodes.get(step.inode as usize).is_some_and(|inode| inode.is_directory);
                if !places.iter().any(|(at, _)| std::ptr::eq(*at, step.at)) {
                    places.push((step.at, of_directory));
                }
            }
        }
        places.truncate(TRIED);
        let explorer = Explorer { suggest: false, replay: None, shrink_ops: false, ..self.files.explorer.clone() };
        places.into_iter().find_map(|(at, of_directory)| {
            let mut files = self.files.with(&explorer);
            files.change = Some(Change::SyncAfter(at));
            let report = Run::new(&files, self.subject, self.ops, self.after, self.fault).run();
            let what = if of_directory { "the directory" } else { "the file" };
            report.failure.is_none().then(|| format!("a sync of {what} after the step at {}", place(at)))
        })
    }
}

fn is_lost(unknown: &Unknown) -> bool {
    usize::from(unknown.newest()) + 1 < unknown.steps.len()
}

/// Settles every unknown.
fn settled(mut world: World, back: &[u16]) -> World {
    for (id, unknown) in world.unknowns.all.iter_mut().enumerate() {
        let back = usize::from(back.get(id).copied().unwrap_or_default());
        let at = unknown.alive.len().saturating_sub(1 + back);
        unknown.alive = vec![unknown.alive[at]];
    }
    world
}

fn encoded(stops: &[Stop], back: &[u16]) -> Vec<Crash> {
    let group = |(number, chunk): (usize, &[u16])| {
        let mut positions: Positions = [0; WORDS];
        positions[..chunk.len()].copy_from_slice(chunk);
        (number as u32, positions)
    };
    let lines: Vec<_> =
        back.chunks(WORDS).enumerate().map(group).filter(|(_, positions)| *positions != [0; WORDS]).collect();
    let crash = |stop: &Stop| Crash { event: stop.index, lines: Some(Vec::new()) };
    let mut crashes: Vec<Crash> = stops.iter().map(crash).collect();
    if let Some(first) = crashes.first_mut() {
        first.lines = Some(lines);
    }
    crashes
}

/// A name of an inode, as the crash has left names.
pub(super) fn path_of(world: &World, inode: u32) -> String {
    if inode == super::world::ROOT {
        return "/".into();
    }
    for (directory, of) in world.inodes.iter().enumerate() {
        for (name, entry) in &of.names {
            if entry.may_be(&Some(inode)) {
                let path = path_of(world, directory as u32);
                return format!("{}/{}", path.trim_end_matches('/'), world.names[*name as usize]);
            }
        }
    }
    "a file without a name".into()
}
