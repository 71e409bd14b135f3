//! Figure 10: how long a structure takes to be opened after a crash, beyond the mapping of its pool, by size.
//!
//! The structure is filled and then changed at random, so that its sessions have pages active; then its handle is dropped, as a
//! dead process drops it, and it is opened again in the same pool. Before, a region larger than the last-level cache is gone
//! over, so that little of it is left in the caches; the tables of pages stay warm.

use std::hint::black_box;
use std::sync::Arc;
use std::time::Instant;

use durix_logfree::{Bst, HashTable, List, Options, SkipList, SoftHash, SoftOptions, SoftSkipList};
use durix_pmem::{Hardware, Pool, Structure};

use super::sets::{check_room, figure, panel, sizes_text};
use crate::interleave::Series;
use crate::logfree::Error as SetError;
use crate::logfree::key;
use crate::logfree::make::{Protocol, Shape, Site, What};
use crate::logfree::rounds::Mix;
use crate::machine::Machine;
use crate::paper::figure::{Context, Error, Figure, Measured};
use crate::paper::report::{Claim, Form, Point};
use crate::place::Place;
use crate::sets_logged::Set;
use crate::workload::{Random, medium, scaled};

pub(in crate::paper) const FIGURE: Figure = figure(
    "logfree-fig10",
    "recovery by size",
    Some("the one size of all sets, instead of several (lists: at most 64 K)"),
    run,
);

/// The size for which there is a goal, and the goal in milliseconds.
const GOAL: (u64, f64) = (4 << 20, 5.0);
/// Largest list: the paper's.
const LONGEST: u64 = 64 << 10;

fn sizes(context: &Context<'_>) -> Vec<u64> {
    match (context.keys, context.quick) {
        (Some(keys), _) => vec![keys],
        (None, true) => vec![1 << 10, 64 << 10],
        (None, false) => vec![1 << 10, 64 << 10, 1 << 20, 4 << 20],
    }
}

fn run(context: &Context<'_>) -> Result<Measured, Error> {
    let sizes = sizes(context);
    let x = sizes_text(&sizes);
    context.expect(sizes.len(), 5);
    let mut measured = Measured { panels: Vec::new(), claims: Vec::new(), notes: Vec::new() };
    for place in &context.places {
        let mut panel = panel(context, place, "opening after a crash".into(), ("keys", &x), "milliseconds");
        panel.form = Form::Lines;
        panel.method = format!("medians of {} crashes, {} thread(s)", crashes(context), Machine::this().processors);
        for (at, keys) in sizes.iter().copied().enumerate() {
            check_room(
                place,
                &[What { shape: Shape::Bst, way: Protocol::Links, keys, threads: 1, mix: Mix::UPDATES }],
            )?;
            let links = Options::default().buckets(keys);
            let soft = SoftOptions::default();
            let mut one = |name: &str, goal: Option<f64>, times: Vec<f64>| {
                context.tick();
                let point = Point::nanoseconds(&Series::new(times));
                panel.set(name, at, point);
                measured.claims.push(claim(format!("{name}, {} keys, {}", x[at], place.pages), point, goal));
            };
            let goal = (keys == GOAL.0).then_some(GOAL.1);
            context.now(format!("{} keys, {}", x[at], place.pages));
            one("hash table", goal, recoveries::<HashTable>(context, place, "hash table", (keys, false), &links)?);
            one("skip list", goal, recoveries::<SkipList>(context, place, "skip list", (keys, false), &links)?);
            one("BST", goal, recoveries::<Bst>(context, place, "BST", (keys, false), &links)?);
            if keys <= LONGEST {
                one("list", None, recoveries::<List>(context, place, "list", (keys, true), &links)?);
            }
            one(
                "SOFT hash table",
                None,
                recoveries::<SoftHash>(context, place, "SOFT hash table", (keys, false), &soft)?,
            );
            one(
                "SOFT skip list",
                None,
                recoveries::<SoftSkipList>(context, place, "SOFT skip list", (keys, false), &soft)?,
            );
        }
        measured.panels.push(panel);
    }
    Ok(measured)
}

fn claim(what: String, point: Point, goal: Option<f64>) -> Claim {
    let paper = if what.starts_with("SOFT") {
        "(ours; reads all members)"
    } else if what.starts_with("list") {
        "16 ms for 64 K keys"
    } else {
        "less than 5 ms for 4 M keys"
    };
    let goal_text = goal.map_or(String::new(), |goal| format!(" (goal: {goal} ms)"));
    let ours = format!("{:.2} ms{goal_text}", point.median);
    Claim { what, paper: paper.into(), ours, holds: goal.map(|goal| point.median <= goal) }
}

fn crashes(context: &Context<'_>) -> usize {
    if context.quick { 3 } else { 7 }
}

/// Milliseconds of each opening. `linear`: a list.
fn recoveries<S>(
    context: &Context<'_>,
    place: &Place,
    name: &str,
    (keys, linear): (u64, bool),
    options: &S::Options,
) -> Result<Vec<f64>, SetError>
where
    S: Structure<Hardware, Error = durix_logfree::Error>,
    Arc<S>: Set<Hardware, Local = ()>,
{
    context.step(&format!("filling: {name}"));
    let pool: Pool<Hardware> = place.pool(medium(), keys)?;
    let mut set: Arc<S> = pool.open_structure("set", options)?;
    let mut all: Vec<u64> = (0..keys).map(|i| key(2 * i)).collect();
    if linear {
        // A list takes them at its head.
        all.sort_unstable_by(|a, b| b.cmp(a));
    }
    let mut session = pool.session()?;
    for (i, key) in all.into_iter().enumerate() {
        set.insert(&mut (), &session.enter()?, key, i as u64);
    }
    let mut random = Random(88_172_645_463_325_252);
    let mut times = Vec::new();
    let churn = if linear { 2_000 } else { 50_000 };
    for crash in 1..=crashes(context) {
        context.step(&format!("crash {crash}: {name}"));
        for _ in 0..churn {
            let drawn = random.next();
            let key = key(scaled(drawn, 2 * keys));
            let op = session.enter()?;
            _ = if drawn & 1 == 0 { set.insert(&mut (), &op, key, 1) } else { set.remove(&mut (), &op, key) };
        }
        drop(set);
        empty_caches();
        let start = Instant::now();
        set = pool.open_structure("set", options)?;
        times.push(start.elapsed().as_secs_f64() * 1e3);
    }
    Ok(times)
}

/// Goes over more memory than the caches hold.
fn empty_caches() {
    let bytes = Machine::this().last_level_cache().unwrap_or(64 << 20) * 3 / 2;
    let region = vec![1u8; bytes as usize];
    black_box(region.iter().step_by(64).map(|byte| u64::from(*byte)).sum::<u64>());
}
