//! Figure 4: throughput by the number of threads, YCSB A.

use std::sync::Barrier;
use std::time::{Duration, Instant};

use durix_incll::{Durable, Transient};
use durix_pmem::Hardware;

use super::trees::{
    DRAWS, Draw, Drawn, Kind, Mix, Rounded, Tree, drawn, empty, figure, keys_of, panel, room_for, rounded, work_on,
};
use crate::interleave::Series;
use crate::paper::figure::{Context, Error, Figure, Measured};
use crate::paper::report::{Claim, Form, Point};
use crate::place::Place;
use crate::workload::medium;

pub(in crate::paper) const FIGURE: Figure = figure("incll-fig4", "throughput by the number of threads, YCSB A", run);

/// Threads, up to twice as many as there are processors: beyond, only the scheduler is measured.
const THREADS: [usize; 7] = [1, 2, 4, 8, 16, 28, 56];

fn threads() -> Vec<usize> {
    let processors = std::thread::available_parallelism().map_or(1, usize::from);
    THREADS.into_iter().filter(|threads| *threads <= 2 * processors).collect()
}

fn run(context: &Context<'_>) -> Result<Measured, Error> {
    let (how, threads) = (rounded(context, keys_of(context)), threads());
    context.expect(1, how.rounds * how.fillings);
    let mut measured = empty(context, how.keys);
    measured.notes.push("threads are timed by the clock on the wall: other work on the machine counts".into());
    let most = *threads.last().expect("one thread can always be had");
    let drawn: [Vec<Drawn>; 2] = [Draw::Uniform, Draw::Zipfian]
        .map(|draw| (0..most as u64).map(|thread| drawn(how.keys, draw, 11 + thread)).collect());
    for place in &context.places {
        context.now(format!("threads, {}", place.pages));
        let [bases, found] = both(context, place, &how, &threads, &drawn)?;
        for (draw, (name, _)) in DRAWS.iter().enumerate() {
            let x = threads.iter().map(usize::to_string).collect();
            let y = ("million operations/s", Form::Lines);
            let mut panel = panel(format!("YCSB A, {name}"), place, &how, ("threads", x), y);
            panel.method = panel.method.replace("one thread; ", "");
            for at in 0..threads.len() {
                panel.set("MT+", at, Point::throughput(&bases[at * 2 + draw]));
                panel.set("INCLL", at, Point::throughput(&found[at * 2 + draw]));
                measured.claims.push(claim(place, (threads[at], name), &found[at * 2 + draw], &bases[at * 2 + draw]));
            }
            measured.panels.push(panel);
        }
    }
    Ok(measured)
}

/// The series of the transient tree and of the durable one, of each number of threads with both ways of drawing. Each filling
/// begins with the other tree.
fn both(
    context: &Context<'_>,
    place: &Place,
    how: &Rounded,
    threads: &[usize],
    drawn: &[Vec<Drawn>; 2],
) -> Result<[Vec<Series>; 2], Error> {
    let points = threads.len() * 2;
    let (mut bases, mut found) = (vec![Vec::new(); points], vec![Vec::new(); points]);
    for filling in 0..how.fillings {
        let room = &mut room_for(place, medium(), (2, how.keys))?;
        let (mut base, mut ours);
        if filling % 2 == 0 {
            ours = Tree::<_, Durable>::fill_in(room, how.keys)?;
            base = Tree::<_, Transient>::fill_in(room, how.keys)?;
        } else {
            base = Tree::<_, Transient>::fill_in(room, how.keys)?;
            ours = Tree::<_, Durable>::fill_in(room, how.keys)?;
        }
        for _ in 0..how.rounds {
            for point in 0..points {
                let (count, drawn) = (threads[point / 2], &drawn[point % 2]);
                bases[point].push(round(&mut base, &drawn[..count], how.epochs));
                found[point].push(round(&mut ours, &drawn[..count], how.epochs));
            }
            if !context.tick() {
                break;
            }
        }
    }
    Ok([bases, found].map(|all| all.into_iter().map(Series::new).collect()))
}

fn claim(place: &Place, (threads, name): (usize, &str), ours: &Series, base: &Series) -> Claim {
    Claim {
        what: format!("cost of durability, {threads} thread(s), {name}, {}", place.pages),
        paper: if name == "uniform" { "14.6 to 21.3%" } else { "3.0 to 19.3%" }.into(),
        ours: format!("{:.1}%", (ours.ratio_to(base).median() - 1.0) * 100.0),
        holds: None,
    }
}

/// Nanoseconds an operation of all threads together, over whole epochs.
fn round<P: Kind>(tree: &mut Tree<Hardware, P>, drawn: &[Drawn], epochs: usize) -> f64 {
    tree.tree.sync(&mut tree.session).expect("a boundary");
    let (shared, mapping) = (&tree.tree, &tree.mapping);
    let until = shared.epochs().stats().boundaries + epochs as u64;
    let barrier = &Barrier::new(drawn.len());
    let start_and_count = std::thread::scope(|scope| {
        let threads: Vec<_> = drawn
            .iter()
            .map(|drawn| {
                scope.spawn(move || {
                    let mut session = mapping.session().expect("a session");
                    barrier.wait();
                    let start = Instant::now();
                    let count = work_on(shared, &mut session, Mix::Puts(50), drawn, until).expect("a sound tree");
                    (start.elapsed(), count)
                })
            })
            .collect();
        threads.into_iter().map(|thread| thread.join().expect("no panic")).collect::<Vec<_>>()
    });
    let time = start_and_count.iter().map(|(time, _)| *time).max().unwrap_or(Duration::ZERO);
    let count: usize = start_and_count.iter().map(|(_, count)| count).sum();
    time.as_nanos() as f64 / count as f64
}
