//! Not in the paper: how far two trees of one kind lie apart, which is what the other figures can be wrong by. Their memory is
//! allocated in turn, as in all figures that compare trees, and, to show why, one tree's after the other's.

use durix_incll::Transient;
use durix_pmem::Hardware;

use super::trees::{
    Contestants, DRAWS, Draw, MIXES, Phase, Room, Rounded, bytes_for, contestant, drawn, empty, figure, in_turn,
    keys_of, panel, room_for, rounded,
};
use crate::interleave::Outcome;
use crate::paper::figure::{Context, Error, Figure, Measured};
use crate::paper::report::{Claim, Form, Point};
use crate::place::Place;
use crate::workload::medium;

pub(in crate::paper) const FIGURE: Figure =
    figure("incll-same", "two trees of one kind beside each other (not in the paper)", run);

/// Every mix with both ways of drawing.
const PHASES: usize = MIXES.len() * DRAWS.len();

/// How the memory of the two trees is allocated.
const WAYS: [&str; 2] = ["in turn", "one after the other"];

fn room(place: &Place, how: &Rounded, way: usize) -> Result<Room<Hardware>, Error> {
    if way == 0 {
        return room_for(place, medium(), (2, how.keys));
    }
    let one_by_one =
        (0..2).map(|_| Ok(place.map(bytes_for(how.keys), medium())?)).collect::<Result<Vec<_>, Error>>()?;
    Ok(one_by_one.into_iter())
}

/// Two trees, filled anew as often as the figure says; the one that was made first comes first.
fn two_trees(
    context: &Context<'_>,
    (place, way): (&Place, usize),
    how: &Rounded,
    phases: &[Phase<'_>; PHASES],
) -> Result<[Outcome<PHASES>; 2], Error> {
    let mut both: Option<[Outcome<PHASES>; 2]> = None;
    for _ in 0..how.fillings {
        let room = &mut room(place, how, way)?;
        let mut trees = Contestants::new();
        for _ in 0..2 {
            trees.push(contestant::<_, Transient>(room, how, phases)?.0);
        }
        let outcomes: Vec<Outcome<PHASES>> = in_turn(&mut trees, (how.order, how.rounds), &mut || context.tick());
        let outcomes: [Outcome<PHASES>; 2] = outcomes.try_into().expect("an outcome for each tree");
        match &mut both {
            Some(both) => both.iter_mut().zip(&outcomes).for_each(|(all, new)| all.append(new)),
            None => both = Some(outcomes),
        }
    }
    Ok(both.expect("at least one filling"))
}

fn run(context: &Context<'_>) -> Result<Measured, Error> {
    let how = rounded(context, keys_of(context));
    context.expect(WAYS.len(), how.all_rounds(PHASES));
    let mut measured = empty(context, how.keys);
    let drawn = [Draw::Uniform, Draw::Zipfian].map(|draw| drawn(how.keys, draw, 2));
    let phases: [Phase<'_>; PHASES] =
        std::array::from_fn(|n| Phase { mix: MIXES[n / 2].1, drawn: &drawn[n % 2], before: &|| {} });
    for place in &context.places {
        let x = (0..PHASES).map(|n| format!("{} {}", MIXES[n / 2].0, DRAWS[n % 2].0)).collect();
        let y = ("longer, %", Form::Bars);
        let mut panel = panel("an operation of the first tree, by that of the second", place, &how, ("workload", x), y);
        for (way, name) in WAYS.iter().enumerate() {
            context.now(format!("memory allocated {name}, {}", place.pages));
            let outcomes = two_trees(context, (place, way), &how, &phases)?;
            let apart: Vec<f64> = (0..PHASES).map(|phase| apart(&outcomes, phase)).collect();
            apart.iter().enumerate().for_each(|(at, apart)| panel.set(name, at, Point::exact(*apart)));
            measured.claims.push(claim(place, name, &apart));
        }
        measured.panels.push(panel);
    }
    Ok(measured)
}

/// How much longer an operation of the tree that was made first takes, in percent.
fn apart(outcomes: &[Outcome<PHASES>; 2], phase: usize) -> f64 {
    (outcomes[0].phases[phase].ratio_to(&outcomes[1].phases[phase]).median() - 1.0) * 100.0
}

fn claim(place: &Place, way: &str, apart: &[f64]) -> Claim {
    let mean = apart.iter().sum::<f64>() / apart.len() as f64;
    let most = apart.iter().copied().max_by(|a, b| a.abs().total_cmp(&b.abs())).unwrap_or(f64::NAN);
    Claim {
        what: format!("two trees of one kind, memory allocated {way}, {}", place.pages),
        paper: "–".into(),
        ours: format!("{mean:.1}% apart on average, {most:.1}% at most"),
        holds: None,
    }
}
