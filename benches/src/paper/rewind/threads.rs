//! Figure 9: threads on B+-trees.

use std::sync::{Barrier, Mutex};
use std::time::Instant;

use durix_pmem::{Hardware, Medium};

use super::micro::figure;
use super::world::{How, Step, Steps, World, contestants, row};
use crate::interleave::Series;
use crate::paper::report::{Claim, Form, Panel, Point};
use crate::paper::{Context, Error, Figure, Measured};
use crate::place::Place;
use crate::workload::medium;

pub(in crate::paper) const FIGURE: Figure = figure("rewind-fig9", "threads on B+-trees", run);

/// Trees: a record belongs to one of them by its key, and each has a lock, held until the commit.
const PARTS: u64 = 32;

fn run(context: &Context<'_>) -> Result<Measured, Error> {
    let threads: &[usize] = if context.quick { &[1, 2] } else { &[1, 2, 4, 8] };
    let (records, operations) = if context.quick { (20_000, 2000) } else { (100_000, 50_000) };
    let rounds = if context.quick { 5 } else { 9 };
    context.expect(threads.len(), rounds);
    let processors = std::thread::available_parallelism().map_or(1, usize::from);
    let notes = vec![
        format!(
            "{operations} operations a thread, each in a transaction of its own: an insertion and a removal, or a lookup"
        ),
        format!("{PARTS} B+-trees by key, each with a lock until the commit; the log is one for all threads"),
        format!("time that passes, not processor time: other work on the machine counts; {processors} processors"),
        "Stasis, BerkeleyDB and Shore-MT are not built here; `rewind-peers` has redb and LMDB".into(),
    ];
    let mut measured = Measured { panels: Vec::new(), claims: Vec::new(), notes };
    for place in &context.places {
        let how = format!("medians of {rounds} interleaved rounds; {records} records");
        let x = threads.iter().map(usize::to_string).collect();
        let panel = Panel::new("all threads to the end", place, medium().describe(), how);
        let mut panel = panel.axes("threads", x, "milliseconds", Form::Lines);
        let worlds = contestants().into_iter().map(|(name, how)| Ok((name, filled(place, how, records)?)));
        let worlds = worlds.collect::<Result<Vec<_>, Error>>()?;
        for (at, count) in threads.iter().enumerate() {
            context.now(format!("{count} threads, {}", place.pages));
            let mut times = vec![Vec::new(); worlds.len()];
            for round in 0..rounds {
                for ((_, world), times) in worlds.iter().zip(&mut times) {
                    times.push(together(world, *count, operations, round as u64)?);
                }
                if !context.tick() && times[0].len() >= 3 {
                    break;
                }
            }
            for ((name, _), times) in worlds.iter().zip(times) {
                panel.set(name, at, Point::nanoseconds(&Series::new(times)));
            }
        }
        let grows = |name: &str| {
            let points = panel.series.iter().find(|curve| curve.name == name).map(|curve| &curve.points);
            let at = |at: usize| points.and_then(|p| p[at]).map_or(f64::NAN, |point| point.median);
            at(1) / at(0)
        };
        let ours =
            format!("Batch 8 {:.2}, Optimized {:.2}, NVM {:.2}", grows("Batch 8"), grows("Optimized"), grows("NVM"));
        let what = format!("time of two threads, each with the work of one, to that of one, {}", place.pages);
        let paper = "about 1 on four cores (peers: linear in the threads)".into();
        measured.claims.push(Claim { what, paper, ours, holds: None });
        measured.panels.push(panel);
    }
    Ok(measured)
}

fn filled(place: &Place, how: How, records: usize) -> Result<World<Hardware>, Error> {
    let world = World::at(place, medium(), how, 128 << 20)?;
    let mut session = world.pool.session()?;
    let steps = Steps::new(records, 1);
    for part in 0..PARTS {
        let own = steps.keys().iter().filter(|key| *key % PARTS == part);
        world.load(&mut session, part, own.map(|key| (*key, row(*key))))?;
    }
    drop(session);
    Ok(world)
}

/// Milliseconds until all threads have done their work.
fn together(world: &World<Hardware>, threads: usize, operations: usize, seed: u64) -> Result<f64, Error> {
    let locks: Vec<Mutex<()>> = (0..PARTS).map(|_| Mutex::new(())).collect();
    let barrier = Barrier::new(threads + 1);
    let mut time = 0.0;
    let work = |thread: usize| {
        let mut session = world.pool.session()?;
        let mut steps = Steps::new(1, (seed << 8) + thread as u64 + 2);
        // 20% to 80% lookups.
        let lookups = 20 + 60 * thread as u64 / threads.max(2) as u64;
        // The first of the keys that all worlds hold.
        let present = Steps::new(1000, 1);
        barrier.wait();
        for _ in 0..operations {
            let random = steps.random();
            let looks_up = random % 100 < lookups;
            let key = if looks_up { present.keys()[(random >> 8) as usize % 1000] } else { random >> 7 };
            let tree = world.tree(key % PARTS);
            let _lock = locks[(key % PARTS) as usize].lock().expect("no thread panics");
            world.transaction(&mut session, |words| match looks_up {
                true => Step::Get(key).run(tree, words),
                false => Step::Insert(key).run(tree, words) && Step::Remove(key).run(tree, words),
            })?;
        }
        barrier.wait();
        Ok::<_, Error>(())
    };
    let done = std::thread::scope(|scope| {
        let work = &work;
        let handles: Vec<_> = (0..threads).map(|thread| scope.spawn(move || work(thread))).collect();
        barrier.wait();
        let start = Instant::now();
        barrier.wait();
        time = start.elapsed().as_secs_f64() * 1e3;
        handles.into_iter().try_for_each(|handle| handle.join().expect("no thread panics"))
    });
    done?;
    world.tm.checkpoint(&mut world.pool.session()?)?;
    Ok(time)
}
