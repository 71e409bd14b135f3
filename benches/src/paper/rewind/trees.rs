//! Figures 7, 8 and 10: a B+-tree over the manager: logging by the part of updates, rollback and recovery, fence latency.

use std::sync::atomic::AtomicU64;

use durix_pmem::{Delayed, Hardware, Medium, Off, Session, Word};
use durix_rewind::{LogKind, Options, TransactionManager};

use super::micro::figure;
use super::world::{How, Steps, World, contestants, row};
use crate::interleave::{Contestant, Outcome, Series, Stopwatch, interleave_telling};
use crate::paper::report::{Claim, Form, Panel, Point};
use crate::paper::{Context, Error, Figure, Measured};
use crate::place::Place;
use crate::workload::medium;

pub(in crate::paper) const FIG7: Figure = figure("rewind-fig7", "logging under a B+-tree by the part of updates", fig7);
pub(in crate::paper) const FIG8: Figure =
    figure("rewind-fig8", "rollback and recovery of a B+-tree by operations", fig8);
pub(in crate::paper) const FIG10: Figure =
    figure("rewind-fig10", "group sizes by latency of the fence, under a B+-tree", fig10);

/// Operations of a transaction, as in figure 8 of the paper; the paper does not say it of the others.
const TOGETHER: usize = 200;

const TREE: &str = "one B+-tree for all: leaves of 7 unsorted records of 32 bytes, inner nodes of up to 15 keys";
const NVM: &str = "NVM: the same tree without atomicity; the lines that an operation has stored to are written back, one fence an \
     operation. The paper's NVM waits for each write";
const PEERS: &str = "Stasis, BerkeleyDB and Shore-MT are not built here: `benches/compare` has redb and LMDB";

/// A tree in rounds of so many operations.
struct Rounds<M: Medium> {
    name: String,
    world: World<M>,
    session: Session<M>,
    steps: Steps,
    updates: u64,
    operations: usize,
    together: usize,
}

impl<M: Medium> Rounds<M> {
    fn new(place: &Place, medium: M, (name, how): (&str, How), records: usize) -> Result<Self, Error> {
        // A leaf is half full at least; the same again for splits.
        let world = World::at(place, medium, how, (records as u64 * 160).max(16 << 20))?;
        let mut session = world.pool.session()?;
        let steps = Steps::new(records, 1);
        world.load(&mut session, 0, steps.keys().iter().map(|key| (*key, row(*key))))?;
        Ok(Rounds { name: name.into(), world, session, steps, updates: 100, operations: 2000, together: TOGETHER })
    }

    fn run(&mut self) -> Result<f64, Error> {
        let steps: Vec<_> = (0..self.operations).map(|_| self.steps.next(self.updates)).collect();
        let (world, tree) = (&self.world, self.world.tree(0));
        let start = Stopwatch::start();
        for chunk in steps.chunks(self.together) {
            world.transaction(&mut self.session, |words| {
                assert!(chunk.iter().all(|step| step.run(tree, words)), "the tree holds what the steps expect");
                true
            })?;
        }
        let time = start.elapsed().as_nanos() as f64 / self.operations as f64;
        // Without checkpoints, as in the paper: clearing is not charged.
        world.tm.checkpoint(&mut self.session)?;
        Ok(time)
    }
}

impl<M: Medium> Contestant<1> for Rounds<M> {
    fn name(&self) -> &str {
        &self.name
    }
    fn round(&mut self) -> [f64; 1] {
        [self.run().expect("a pool with room")]
    }
}

fn records(context: &Context<'_>) -> usize {
    if context.quick { 20_000 } else { 100_000 }
}

fn ratio(outcomes: &[Outcome<1>], name: &str, to: &str) -> f64 {
    let of = |name: &str| outcomes.iter().find(|outcome| outcome.name == name).map(|outcome| &outcome.phases[0]);
    of(name).zip(of(to)).map_or(f64::NAN, |(a, b)| a.ratio_to(b).median())
}

fn fig7(context: &Context<'_>) -> Result<Measured, Error> {
    let updates: &[u64] = if context.quick { &[10, 50, 100] } else { &[10, 20, 40, 60, 80, 100] };
    let rounds = if context.quick { 7 } else { 31 };
    context.expect(2 * updates.len(), rounds);
    let notes = [TREE, NVM, PEERS].map(String::from).to_vec();
    let mut measured = Measured { panels: Vec::new(), claims: Vec::new(), notes };
    for place in &context.places {
        for together in [TOGETHER, 1] {
            let how =
                format!("medians of {rounds} interleaved rounds of 2000 operations; {} records", records(context));
            let x = updates.iter().map(u64::to_string).collect();
            let title = format!("{together} operations a transaction").replace("1 operations", "one operation");
            let mut panel = Panel::new(title.clone(), place, medium().describe(), how).axes(
                "% of updates",
                x,
                "ns an operation",
                Form::Lines,
            );
            let all = contestants().into_iter().map(|who| Rounds::new(place, medium(), who, records(context)));
            let mut all = all.collect::<Result<Vec<_>, _>>()?;
            for (at, percent) in updates.iter().enumerate() {
                context.now(format!("{percent}% updates, {title}, {}", place.pages));
                all.iter_mut().for_each(|one| (one.updates, one.together) = (*percent, together));
                let mut boxed: Vec<Box<dyn Contestant<1> + '_>> =
                    all.iter_mut().map(|one| Box::new(ByRef(one)) as _).collect();
                let outcomes = interleave_telling(&mut boxed, 1, rounds, &mut || context.tick());
                for outcome in &outcomes {
                    panel.set(&outcome.name, at, Point::nanoseconds(&outcome.phases[0]));
                }
                if *percent == 100 {
                    measured.claims.extend(fig7_claims(&outcomes, &title, place));
                }
            }
            measured.panels.push(panel);
        }
    }
    Ok(measured)
}

fn fig7_claims(outcomes: &[Outcome<1>], title: &str, place: &Place) -> Vec<Claim> {
    let claim = |what: &str, paper: &str, ours: f64, holds| Claim {
        what: format!("{what}, 100% updates, {title}, {}", place.pages),
        paper: paper.into(),
        ours: format!("{ours:.2}"),
        holds,
    };
    let batch = ratio(outcomes, "Batch 8", "NVM");
    vec![
        claim("Batch 8 to NVM", "1.5 times", batch, title.starts_with("200").then_some(batch <= 1.5)),
        claim("Optimized to Simple", "0.73 (27% better)", ratio(outcomes, "Optimized", "Simple"), None),
        claim("Batch 8 to Simple", "0.63 (37% better)", ratio(outcomes, "Batch 8", "Simple"), None),
    ]
}

/// A contestant that is kept for the next point.
struct ByRef<'a, C>(&'a mut C);

impl<C: Contestant<1>> Contestant<1> for ByRef<'_, C> {
    fn name(&self) -> &str {
        self.0.name()
    }
    fn round(&mut self) -> [f64; 1] {
        self.0.round()
    }
}

fn logged() -> Vec<(&'static str, How)> {
    contestants().into_iter().filter(|(_, how)| matches!(how, How::Logged(_))).collect()
}

fn fig8(context: &Context<'_>) -> Result<Measured, Error> {
    let operations: &[usize] = if context.quick { &[1000, 4000] } else { &[10_000, 20_000, 40_000, 80_000] };
    let rounds = if context.quick { 5 } else { 9 };
    context.expect(2 * operations.len(), rounds);
    let notes =
        vec![TREE.into(), PEERS.into(), "recovery: the process dies, memory stays as the caches have it".into()];
    let mut measured = Measured { panels: Vec::new(), claims: Vec::new(), notes };
    for place in &context.places {
        for (title, dies) in
            [("rollback of one transaction", false), ("recovery of transactions of 200 operations", true)]
        {
            let how = format!("medians of {rounds} rounds; half insertions, half removals");
            let x = operations.iter().map(usize::to_string).collect();
            let panel = Panel::new(title, place, medium().describe(), how);
            let mut panel = panel.axes("operations", x, "milliseconds", Form::Lines);
            for (at, count) in operations.iter().enumerate() {
                context.now(format!("{title}, {count} operations, {}", place.pages));
                let all = logged().into_iter().map(|who| Rounds::new(place, medium(), who, records(context)));
                let mut all = all.collect::<Result<Vec<_>, _>>()?;
                let mut times = vec![Vec::new(); all.len()];
                for _ in 0..rounds {
                    for (one, times) in all.iter_mut().zip(&mut times) {
                        times.push(if dies { recovered(one, *count)? } else { rolled_back(one, *count)? });
                    }
                    if !context.tick() && times[0].len() >= 3 {
                        break;
                    }
                }
                for (one, times) in all.iter().zip(times) {
                    panel.set(&one.name, at, Point::nanoseconds(&Series::new(times)));
                }
            }
            let last = |name: &str| {
                let curve = panel.series.iter().find(|curve| curve.name == name);
                curve.and_then(|curve| curve.points.last().copied().flatten()).map_or(f64::NAN, |point| point.median)
            };
            measured.claims.push(Claim {
                what: format!("{title}, {}", place.pages),
                paper: if dies { "20, 14, 8 times" } else { "30, 12, 4 times" }.to_owned() + " faster than its peers",
                ours: format!(
                    "Batch 8 {:.2} ms, Simple {:.2} ms (peers: not measured)",
                    last("Batch 8"),
                    last("Simple")
                ),
                holds: None,
            });
            measured.panels.push(panel);
        }
    }
    Ok(measured)
}

/// Milliseconds of rolling back one transaction of so many operations.
fn rolled_back(one: &mut Rounds<Hardware>, count: usize) -> Result<f64, Error> {
    // The steps are undone: the next round draws them from the same state.
    let mut steps = Steps::new(0, 0);
    std::mem::swap(&mut steps, &mut one.steps);
    let kept = steps.clone();
    let drawn: Vec<_> = (0..count).map(|_| steps.next(100)).collect();
    one.steps = kept;
    let (world, tree) = (&one.world, one.world.tree(0));
    let mut start = Stopwatch::start();
    world.transaction(&mut one.session, |words| {
        assert!(drawn.iter().all(|step| step.run(tree, words)), "the tree is as it was");
        start = Stopwatch::start();
        false
    })?;
    let time = start.elapsed().as_secs_f64() * 1e3;
    world.tm.checkpoint(&mut one.session)?;
    Ok(time)
}

/// Milliseconds of recovering committed transactions of [`TOGETHER`] operations, and one that has not committed.
fn recovered(one: &mut Rounds<Hardware>, count: usize) -> Result<f64, Error> {
    let drawn: Vec<_> = (0..count).map(|_| one.steps.next(100)).collect();
    let How::Logged(options) = one.world.how else { return Ok(0.0) };
    let (world, tree) = (&one.world, one.world.tree(0));
    for chunk in drawn.chunks(TOGETHER) {
        world.transaction(&mut one.session, |words| chunk.iter().all(|step| step.run(tree, words)))?;
    }
    // A transaction that is forgotten leaves the log as a dead process does.
    let mut tx = world.tm.begin(&mut one.session)?;
    tx.set(Off::<Word>::new(tree.0 + 8), 1)?;
    std::mem::forget(tx);
    one.world.reopen(options)
}

static DELAY: AtomicU64 = AtomicU64::new(0);

fn fig10(context: &Context<'_>) -> Result<Measured, Error> {
    let delays: &[u64] = if context.quick { &[0, 500, 1000] } else { &[0, 100, 200, 400, 600, 800, 1000] };
    let rounds = if context.quick { 7 } else { 31 };
    context.expect(delays.len(), rounds);
    let slow = "nanoseconds are added to each fence by a busy loop; the paper does not name its highest latency, ours is 1000 ns";
    let notes = vec![TREE.into(), slow.into()];
    let mut measured = Measured { panels: Vec::new(), claims: Vec::new(), notes };
    let mut who = vec![("Optimized", How::Logged(Options::default().log(LogKind::Optimized)))];
    let groups = [("Batch 8", 8), ("Batch 16", 16), ("Batch 32", 32)];
    who.extend(groups.map(|(name, group)| (name, How::Logged(Options::default().log(LogKind::Batch(group))))));
    for place in &context.places {
        DELAY.store(0, std::sync::atomic::Ordering::Relaxed);
        let slowed = Delayed::adjustable(medium(), &DELAY);
        let all = who.iter().map(|who| Rounds::new(place, slowed, *who, records(context)));
        let mut all = all.collect::<Result<Vec<_>, _>>()?;
        let how = format!("medians of {rounds} interleaved rounds of 2000 updates, {TOGETHER} a transaction");
        let x = delays.iter().map(u64::to_string).collect();
        let panel = Panel::new("100% updates", place, medium().describe(), how);
        let mut panel = panel.axes("ns added to a fence", x, "ns an operation", Form::Lines);
        let mut first: Vec<f64> = Vec::new();
        for (at, delay) in delays.iter().enumerate() {
            context.now(format!("{delay} ns added, {}", place.pages));
            DELAY.store(*delay, std::sync::atomic::Ordering::Relaxed);
            let mut boxed: Vec<Box<dyn Contestant<1> + '_>> =
                all.iter_mut().map(|one| Box::new(ByRef(one)) as _).collect();
            let outcomes = interleave_telling(&mut boxed, 1, rounds, &mut || context.tick());
            for outcome in &outcomes {
                panel.set(&outcome.name, at, Point::nanoseconds(&outcome.phases[0]));
            }
            let medians: Vec<f64> = outcomes.iter().map(|outcome| outcome.phases[0].median()).collect();
            if at == 0 {
                first = medians;
            } else if at + 1 == delays.len() {
                for (((name, _), median), first) in who.iter().zip(medians).zip(&first) {
                    let paper = match *name {
                        "Optimized" => "5",
                        "Batch 8" => "1.63",
                        "Batch 16" => "1.32",
                        _ => "1.18",
                    };
                    let ours = median / first;
                    measured.claims.push(Claim {
                        what: format!("{name} slowed down at {delay} ns, {}", place.pages),
                        paper: format!("{paper} times"),
                        ours: format!("{ours:.2} times"),
                        holds: (*name == "Batch 32").then_some(ours <= 1.18),
                    });
                }
            }
        }
        measured.panels.push(panel);
    }
    Ok(measured)
}

impl World<Hardware> {
    /// Drops the log, in which a transaction was forgotten, and opens it again. Returns milliseconds.
    fn reopen(&mut self, options: Options) -> Result<f64, Error> {
        // The name is free once the first log is gone.
        let aside = TransactionManager::open(&self.pool, "aside", &options)?;
        drop(std::mem::replace(&mut self.tm, aside));
        let start = Stopwatch::start();
        self.tm = TransactionManager::open(&self.pool, "log", &options)?;
        Ok(start.elapsed().as_secs_f64() * 1e3)
    }
}
