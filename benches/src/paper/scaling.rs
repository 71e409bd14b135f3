//! Not in a paper: what a second thread on a second processor gains. A thread that writes shares its processor with a thread that runs the
//! services of the pool (trimming, merging), so that what one processor does alone is compared with what two do together.
//!
//! A round is a number of updates for each writer, and ends when no service has anything to do any more. It is timed by the clock on the
//! wall: what else runs on the machine counts.

use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::{Acquire, Release};
use std::sync::{Arc, Barrier, Mutex, PoisonError};
use std::thread::Thread;
use std::time::{Duration, Instant};

use durix_pmem::{Driver, Hardware, Lane, Medium, Pool, Session, Tick};

use super::dptree::trees::{Tree, key, pool_for};
use super::report::{Claim, Form, Panel, Point};
use super::rewind::words::{SIZES, Words, new_pool, next_of, transactions};
use super::{Context, Error, Figure, Measured};
use crate::interleave::Series;
use crate::place::Place;
use crate::processors::{allowed, pin, share_a_core};
use crate::workload::medium;

pub(super) const REWIND: Figure = Figure {
    name: "rewind-scaling",
    title: "transactions of the one-fence engine: two threads on two processors beside one on one, services included",
    source: "none: a measurement of this project",
    keys: None,
    run: words,
};

pub(super) const DPTREE: Figure = Figure {
    name: "dptree-scaling",
    title: "inserts into a DPTree: two writers on two processors beside one on one, merges included",
    source: "none: a measurement of this project",
    keys: Some("keys of the tree at first, instead of 10 million (one million with --quick)"),
    run: inserts,
};

/// Two processors against one: at least so many times as fast.
const GOAL: f64 = 1.8;
/// Longest sleep of a thread that finds no service due.
const NAP: Duration = Duration::from_millis(1);
const NOTE: &str = "time that passes: other work on the machine counts, so it has to be idle";

/// Wakes the threads that run services.
#[derive(Default)]
struct Sleepers(Mutex<Vec<Thread>>);

impl Driver for Sleepers {
    fn wake(&self, _: Lane) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).iter().for_each(Thread::unpark);
    }
}

/// Runs services until `ended` and none is due.
fn serve(pool: &Pool<Hardware>, sleepers: &Sleepers, ended: &AtomicBool) -> Result<(), Error> {
    let mut session = pool.session()?;
    sleepers.0.lock().unwrap_or_else(PoisonError::into_inner).push(std::thread::current());
    loop {
        // Before the look: what was due when it was set is found by it.
        let is_last = ended.load(Acquire);
        match pool.tick(&mut session)? {
            Tick::Worked => {}
            Tick::Idle(_) if is_last => return Ok(()),
            Tick::Idle(next) => std::thread::park_timeout(next.unwrap_or(NAP).min(NAP)),
        }
    }
}

/// What a writer does, by its number.
type Work<'a> = dyn Fn(&mut Session<Hardware>, u64) -> Result<(), Error> + Sync + 'a;

/// Seconds in which a writer on each of these processors does its work, and the services what comes of it, a thread for them on each
/// of the processors. `work` is told the number of the writer.
fn seconds(pool: &Pool<Hardware>, processors: &[usize], work: &Work<'_>) -> Result<f64, Error> {
    let (sleepers, ended) = (Arc::new(Sleepers::default()), AtomicBool::new(false));
    let barrier = Barrier::new(2 * processors.len() + 1);
    pool.services().drive(Some(sleepers.clone()));
    let on = |processor: usize| {
        let pinned = pin(processor);
        barrier.wait();
        pinned.map_err(|source| Error::File {
            action: "pinning a thread to",
            path: format!("processor {processor}"),
            source,
        })
    };
    let write = |number: u64, processor: usize| {
        let session = pool.session();
        on(processor)?;
        work(&mut session?, number)
    };
    let run = |processor: usize| {
        on(processor)?;
        serve(pool, &sleepers, &ended)
    };
    let took = std::thread::scope(|scope| {
        let (write, run) = (&write, &run);
        let servers: Vec<_> = processors.iter().map(|at| scope.spawn(move || run(*at))).collect();
        let writers = processors.iter().enumerate();
        let writers: Vec<_> = writers.map(|(number, at)| scope.spawn(move || write(number as u64, *at))).collect();
        barrier.wait();
        let start = Instant::now();
        let join =
            |thread: std::thread::ScopedJoinHandle<'_, Result<(), Error>>| thread.join().expect("no thread panics");
        let written = writers.into_iter().map(join).collect::<Result<Vec<()>, Error>>();
        ended.store(true, Release);
        sleepers.wake(Lane::Prompt);
        let served = servers.into_iter().map(join).collect::<Result<Vec<()>, Error>>();
        let took = start.elapsed().as_secs_f64();
        written.and(served).map(|_| took)
    });
    pool.services().drive(None);
    took
}

/// Seconds with one writer, and with two of them.
type Times = [Vec<f64>; 2];

/// One round: one processor and two, in an order that changes from round to round.
fn round(
    times: &mut Times,
    number: usize,
    processors: &[usize; 2],
    run: &mut dyn FnMut(&[usize]) -> Result<f64, Error>,
) -> Result<(), Error> {
    for turn in 0..2 {
        let which = (number + turn) % 2;
        times[which].push(run(&processors[..=which])?);
    }
    Ok(())
}

/// Two processors that this process may run on, or says why there are none.
fn two(measured: &mut Measured) -> Result<Option<[usize; 2]>, Error> {
    measured.notes.push(NOTE.into());
    let all = allowed().map_err(|source| Error::File {
        action: "asking for",
        path: "the processors of this process".into(),
        source,
    })?;
    let [one, other, ..] = all[..] else {
        measured.notes.push(format!("this process may run on {} processor(s): nothing was measured", all.len()));
        return Ok(None);
    };
    if share_a_core(one, other) == Some(true) {
        measured
            .notes
            .push(format!("processors {one} and {other} are threads of one core, as far as the kernel knows"));
    }
    Ok(Some([one, other]))
}

/// Times of one point; returns the ratio of the speeds.
fn show(panel: &mut Panel, at: usize, updates: u64, times: Times) -> (Series, f64) {
    let [one, both] = times.map(Series::new);
    let rate = |series: &Series, writers: f64| {
        Series::new(series.samples().iter().map(|seconds| writers * updates as f64 / seconds / 1e6).collect())
    };
    let (slow, fast) = (rate(&one, 1.0), rate(&both, 2.0));
    panel.set("one processor", at, Point::nanoseconds(&slow));
    panel.set("two processors", at, Point::nanoseconds(&fast));
    (fast.ratio_to(&slow), slow.median())
}

fn claim(what: String, ratio: &Series, alone: f64) -> Claim {
    Claim {
        what,
        paper: format!("goal {GOAL} times"),
        ours: format!("{:.2} times {alone:.2} million a second", ratio.median()),
        holds: Some(ratio.median() >= GOAL),
    }
}

fn words(context: &Context<'_>) -> Result<Measured, Error> {
    let rounds = if context.quick { 7 } else { 31 };
    context.expect(SIZES.len(), rounds);
    let mut measured = Measured { panels: Vec::new(), claims: Vec::new(), notes: Vec::new() };
    let Some(processors) = two(&mut measured)? else { return Ok(measured) };
    for place in &context.places {
        let how =
            format!("medians of {rounds} rounds, in turn; each until the log is as short as the services leave it");
        let panel = Panel::new("transactions on random words", place, medium().describe(), how);
        let x = SIZES.map(|(size, ..)| size.to_string()).to_vec();
        let mut panel = panel.axes("words a transaction", x, "million transactions/s", Form::Bars);
        for (at, (size, ..)) in SIZES.into_iter().enumerate() {
            context.now(format!("{size} words, {}", place.pages));
            let pool = new_pool(place)?;
            let (words, mut times, mut seed) = (Words::new(&pool, size)?, Times::default(), 0);
            let (updates, (engine, first, size)) = (2 * words.count(), words.region());
            for number in 0..rounds {
                round(&mut times, number, &processors, &mut |processors| {
                    seed += 2;
                    seconds(&pool, processors, &|session, writer| {
                        let mut random = next_of(seed + writer);
                        transactions((&engine, first, size), session, &mut random, updates)
                    })
                })?;
                if !context.tick() && times[0].len() >= 5 {
                    break;
                }
            }
            let (ratio, alone) = show(&mut panel, at, updates, times);
            measured.claims.push(claim(
                format!("two threads on two processors to one and its services on one, {size} words, {}", place.pages),
                &ratio,
                alone,
            ));
        }
        measured.panels.push(panel);
    }
    Ok(measured)
}

/// Inserts the keys of these numbers, as the facade does: after what holds writers back.
fn insert(
    (pool, tree): (&Pool<Hardware>, &durix_dptree::DpTree<Hardware>),
    session: &mut Session<Hardware>,
    numbers: impl Iterator<Item = u64>,
) -> Result<(), Error> {
    for number in numbers {
        pool.services().admit(session)?;
        tree.insert(&session.enter()?, key(number), number)?;
    }
    Ok(())
}

fn inserts(context: &Context<'_>) -> Result<Measured, Error> {
    let keys = context.keys_or(if context.quick { 1_000_000 } else { 10_000_000 });
    let rounds = if context.quick { 7 } else { 21 };
    context.expect(1, rounds);
    let mut measured = Measured { panels: Vec::new(), claims: Vec::new(), notes: Vec::new() };
    let Some(processors) = two(&mut measured)? else { return Ok(measured) };
    for place in &context.places {
        let (ratio, alone, panel) = insert_rounds(context, place, (keys, rounds), &processors)?;
        measured.claims.push(claim(
            format!(
                "two writers and their workers on two processors to one and its worker on one, {keys} keys, {}",
                place.pages
            ),
            &ratio,
            alone,
        ));
        measured.panels.push(panel);
    }
    Ok(measured)
}

fn insert_rounds(
    context: &Context<'_>,
    place: &Place,
    (keys, rounds): (u64, usize),
    processors: &[usize; 2],
) -> Result<(Series, f64, Panel), Error> {
    // So that in each round about half of the ranges are merged.
    let each = (keys / 20).max(1000);
    let pool = pool_for(place, keys + 3 * each * rounds as u64)?;
    context.now(format!("{keys} keys, {}", place.pages));
    context.step("filling");
    let mut tree = Tree::new(&pool)?;
    tree.insert(keys)?;
    let Tree { tree, session, keys: mut next } = tree;
    drop(session);
    let mut times = Times::default();
    for number in 0..rounds {
        round(&mut times, number, processors, &mut |processors| {
            let (first, writers) = (next, processors.len() as u64);
            next += each * writers;
            seconds(&pool, processors, &|session, writer| {
                insert((&pool, &tree), session, (first + writer..first + each * writers).step_by(writers as usize))
            })
        })?;
        if !context.tick() && times[0].len() >= 5 {
            break;
        }
    }
    let how = format!("medians of {rounds} rounds of {each} new keys a writer, in turn; each until no merge is due");
    let panel = Panel::new("inserts of new keys", place, medium().describe(), how);
    let mut panel = panel.axes("keys at first", vec![keys.to_string()], "million inserts/s", Form::Bars);
    let (ratio, alone) = show(&mut panel, 0, each, times);
    Ok((ratio, alone, panel))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_that_writers_insert_is_there_and_merged() {
        let place = Place::at(std::env::temp_dir());
        let pool = pool_for(&place, 40_000).unwrap();
        let tree = durix_dptree::DpTree::open(&pool, "tree").unwrap();
        let here = allowed().unwrap()[0];
        let took = seconds(&pool, &[here, here], &|session, writer| {
            insert((&pool, &tree), session, (writer..20_000).step_by(2))
        });
        assert!(took.unwrap() > 0.0);
        let mut session = pool.session().unwrap();
        let op = session.enter().unwrap();
        assert_eq!(tree.len(&op), 20_000);
        let stats = tree.stats(&op);
        assert!(stats.keys_in_leaves > 0 && stats.frozen == 0, "{stats:?}");
    }
}
