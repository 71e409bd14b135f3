//! Not in the paper: looking up keys in batches, beside one by one.

use std::hint::black_box;

use durix_incll::{Durable, Masstree, Transient};
use durix_pmem::{Medium, Session};

use super::trees::{Draw, Drawn, Kind, Tree, WARM_UP, drawn, empty, figure, keys_of, panel, room_for, rounded};
use crate::interleave::{Contestant, Outcome, Stopwatch, interleave_telling};
use crate::paper::figure::{Context, Error, Figure, Measured};
use crate::paper::report::{Claim, Form, Point};
use crate::place::Place;
use crate::workload::medium;

pub(in crate::paper) const FIGURE: Figure =
    figure("incll-many", "lookups one by one and in batches (not in the paper)", run);

/// Keys of a batch.
const BATCHES: [usize; 3] = [16, 64, 256];
/// Lookups of a phase.
const LOOKUPS: usize = 1 << 17;
const PHASES: usize = 1 + BATCHES.len();

struct Rounds<'d, M: Medium, P: Kind> {
    tree: Tree<M, P>,
    keys: &'d [[u8; 8]],
    turn: usize,
}

fn one_by_one<M: Medium, P: Kind>(tree: &Masstree<M, P>, session: &mut Session<M>, keys: &[[u8; 8]]) -> usize {
    let mut found = 0;
    for batch in keys.chunks(64) {
        let op = session.enter().expect("a session");
        let get = |key: &[u8; 8]| tree.get(&op, key).expect("a sound tree").map(|value| black_box(value.as_u64()));
        found += batch.iter().filter(|key| get(key).is_some()).count();
    }
    found
}

fn batches<M: Medium, P: Kind>(
    tree: &Masstree<M, P>,
    session: &mut Session<M>,
    keys: &[[u8; 8]],
    size: usize,
) -> usize {
    let mut found = 0;
    for batch in keys.chunks(size) {
        let op = session.enter().expect("a session");
        let values = tree.get_many(&op, batch).expect("a sound tree");
        for value in values.iter().flatten() {
            black_box(value.as_u64());
            found += 1;
        }
    }
    found
}

impl<M: Medium, P: Kind> Contestant<PHASES> for Rounds<'_, M, P> {
    fn name(&self) -> &str {
        P::NAME
    }

    fn round(&mut self) -> [f64; PHASES] {
        std::array::from_fn(|phase| {
            // Other keys for each phase: what one has fetched must not help the next.
            let keys = &self.keys[self.turn * LOOKUPS..][..LOOKUPS];
            self.turn = (self.turn + 1) % (self.keys.len() / LOOKUPS);
            let Tree { tree, session, .. } = &mut self.tree;
            let start = Stopwatch::start();
            let found = match phase.checked_sub(1) {
                None => one_by_one(tree, session, keys),
                Some(number) => batches(tree, session, keys, BATCHES[number]),
            };
            let time = start.elapsed();
            assert_eq!(found, LOOKUPS, "all keys are there");
            time.as_nanos() as f64 / LOOKUPS as f64
        })
    }
}

fn measure(context: &Context<'_>, place: &Place, keys: u64, rounds: usize) -> Result<Vec<Outcome<PHASES>>, Error> {
    let Drawn(drawn) = drawn(keys, Draw::Uniform, 9);
    let drawn: Vec<[u8; 8]> = drawn.iter().map(|(key, _)| key.to_be_bytes()).collect();
    let room = &mut room_for(place, medium(), (2, keys))?;
    let base = Rounds { tree: Tree::<_, Transient>::fill_in(room, keys)?, keys: &drawn, turn: 0 };
    let ours = Rounds { tree: Tree::<_, Durable>::fill_in(room, keys)?, keys: &drawn, turn: 0 };
    let mut contestants: Vec<Box<dyn Contestant<PHASES> + '_>> = vec![Box::new(base), Box::new(ours)];
    Ok(interleave_telling(&mut contestants, WARM_UP, rounds, &mut || context.tick()))
}

fn run(context: &Context<'_>) -> Result<Measured, Error> {
    let mut how = rounded(context, keys_of(context).max(LOOKUPS as u64));
    (how.rounds, how.fillings) = (if context.quick { 15 } else { 25 }, 1);
    context.expect(1, how.rounds + WARM_UP);
    let mut measured = empty(context, how.keys);
    for place in &context.places {
        context.now(format!("lookups, {}", place.pages));
        let outcomes = measure(context, place, how.keys, how.rounds)?;
        let x =
            std::iter::once("one by one".to_owned()).chain(BATCHES.map(|size| format!("batches of {size}"))).collect();
        let axes = ("lookups", x);
        let mut panel = panel("lookups, uniform keys", place, &how, axes, ("million lookups/s", Form::Bars));
        panel.method = format!("{} keys, one thread; medians of {} rounds of {LOOKUPS} lookups", how.keys, how.rounds);
        for outcome in &outcomes {
            for (at, series) in outcome.phases.iter().enumerate() {
                panel.set(&outcome.name, at, Point::throughput(series));
            }
            let ratio = outcome.phases[0].ratio_to(&outcome.phases[2]).median();
            measured.claims.push(Claim {
                what: format!("{}: batches of {} to one by one, {}", outcome.name, BATCHES[1], place.pages),
                paper: "–".into(),
                ours: format!("{ratio:.2} times (goal: 3)"),
                holds: Some(ratio >= 3.0),
            });
        }
        measured.panels.push(panel);
    }
    Ok(measured)
}
