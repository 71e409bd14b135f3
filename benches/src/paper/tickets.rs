//! Not in a paper: a Masstree on persistent memory whose writers each wait for a ticket, so that nothing which has returned is lost.
//! Threads that wait at the same time share a boundary of the checkpoint epochs.

use std::path::Path;
use std::time::Duration;

use durix::Db;
use durix_pmem::PoolOptions;
use durix_pmem::backing::FileBacking;

use super::figure::{Context, Error, Figure, Measured, medium_text};
use super::report::{Claim, Form, Panel, Point};
use super::working;
use crate::interleave::Series;
use crate::workload::{key, medium};

pub(super) const FIGURE: Figure = Figure {
    name: "masstree-tickets",
    title: "inserts a second of a Masstree whose writers wait for a ticket each (not in a paper)",
    source: "none: a measurement of this project",
    keys: None,
    run,
};

const THREADS: [u64; 2] = [1, 8];

/// What one run of threads has done.
#[derive(Clone, Copy, Debug)]
struct Run {
    /// Inserts a second.
    rate: f64,
    /// Inserts a boundary.
    shared: f64,
}

/// Inserts of 8 + 8 bytes by some threads, each of which waits for its ticket.
fn inserts(path: &Path, threads: u64, time: Duration) -> Result<Run, Error> {
    let options = PoolOptions::new().initial_size(64 << 20).max_size(4 << 30).assume_pmem(true);
    let pool = options.create_on(FileBacking::create(path)?, medium())?;
    let db = Db::builder().no_background_threads().over(pool)?;
    let index = db.open_index("tickets", Some("masstree"))?;
    let epochs = db.pool().epochs()?;
    let before = epochs.stats().boundaries;
    let done = working::work(threads, time, || {
        let mut session = db.pool().session()?;
        let index = &index;
        Ok(move |number| {
            let key = key(number).to_be_bytes();
            let op = session.enter()?;
            index.insert(&op, &key, &key)?;
            let ticket = index.ticket(&op);
            drop(op);
            Ok(index.wait(&mut session, ticket)?)
        })
    })?;
    let boundaries = (epochs.stats().boundaries - before) as f64;
    Ok(Run { rate: done.pieces / done.seconds, shared: done.pieces / boundaries })
}

fn run(context: &Context<'_>) -> Result<Measured, Error> {
    let (rounds, time) = if context.quick { (7, Duration::from_millis(100)) } else { (21, Duration::from_millis(300)) };
    context.expect(1, rounds);
    let mut measured = Measured { panels: Vec::new(), claims: Vec::new(), notes: Vec::new() };
    for place in &context.places {
        context.now(format!("tickets, {}", place.pages));
        let mut runs = THREADS.map(|_| Vec::new());
        for _ in 0..rounds {
            for (threads, runs) in THREADS.into_iter().zip(&mut runs) {
                let path = place.unused_path();
                let run = inserts(&path, threads, time);
                let _ = std::fs::remove_file(&path);
                runs.push(run?);
            }
            context.tick();
        }
        let series = |of: fn(&Run) -> f64| runs.each_ref().map(|runs| Series::new(runs.iter().map(of).collect()));
        let ([one, eight], shared) = (series(|run| run.rate), series(|run| run.shared));
        let method = format!("{rounds} rounds in turn, {time:?} each, inserts of 8 + 8 bytes");
        let title = "a ticket waited for after each insert";
        let x = THREADS.iter().map(u64::to_string).collect();
        let mut panel = Panel::new(title, place, medium_text(medium()), method);
        panel = panel.axes("threads", x, "inserts a second", Form::Bars);
        [&one, &eight]
            .into_iter()
            .enumerate()
            .for_each(|(at, rate)| panel.set("masstree", at, Point::nanoseconds(rate)));
        measured.panels.push(panel);
        let ratio = eight.ratio_to(&one).median();
        measured.claims.push(Claim {
            what: format!("eight threads that wait for a ticket each, against one, {}", place.pages),
            paper: "goal: at least 1".into(),
            ours: format!("{ratio:.2}"),
            holds: Some(ratio >= 1.0),
        });
        let [one, eight] = shared.map(|shared| shared.median());
        measured
            .notes
            .push(format!("inserts a boundary, {}: {one:.2} with one thread, {eight:.2} with eight", place.pages));
    }
    Ok(measured)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::place::Place;

    #[test]
    fn each_insert_of_one_thread_takes_a_boundary_and_eight_take_no_more() {
        for threads in THREADS {
            let path = Place::from_env().unused_path();
            let run = inserts(&path, threads, Duration::from_millis(20));
            std::fs::remove_file(&path).unwrap();
            let run = run.unwrap();
            assert!(run.rate > 0.0 && run.shared >= 1.0, "{threads} threads: {run:?}");
            assert!(threads > 1 || run.shared == 1.0, "{run:?}");
        }
    }
}
