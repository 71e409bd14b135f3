//! Not in the paper: what the choices of layout are worth. 14 keys a node against 15, which only the transient tree can have
//! (an update of the durable one needs a slot that is free); values of 8 bytes in place against the paper's pointers.

use durix_incll::{Durable, Pointers, Transient, Transient15};

use super::trees::{
    Contestants, Draw, Filled, MIXES, Phase, Rounded, contestant, drawn, empty, figure, in_turn, keys_of, panel,
    room_for, rounded, series,
};
use crate::interleave::Outcome;
use crate::paper::figure::{Context, Error, Figure, Measured};
use crate::paper::report::{Claim, Form, Point};
use crate::place::Place;
use crate::workload::medium;

pub(in crate::paper) const FIGURE: Figure =
    figure("incll-layouts", "keys a node, values in place (not in the paper)", run);

const PHASES: usize = MIXES.len();

fn run(context: &Context<'_>) -> Result<Measured, Error> {
    let how = Rounded { rounds: 7, fillings: 1, ..rounded(context, keys_of(context)) };
    context.expect(1, how.all_rounds(PHASES));
    let mut measured = empty(context, how.keys);
    let drawn = drawn(how.keys, Draw::Uniform, 15);
    let phases: [Phase<'_>; PHASES] =
        std::array::from_fn(|mix| Phase { mix: MIXES[mix].1, drawn: &drawn, before: &|| {} });
    for place in &context.places {
        context.now(format!("layouts, {}", place.pages));
        let room = &mut room_for(place, medium(), (4, how.keys))?;
        let filled: Vec<Filled<'_>> = vec![
            contestant::<_, Transient>(room, &how, &phases)?,
            contestant::<_, Transient15>(room, &how, &phases)?,
            contestant::<_, Durable>(room, &how, &phases)?,
            contestant::<_, Pointers>(room, &how, &phases)?,
        ];
        let x = vec!["insert, ns".into(), "bytes a key".into()];
        let mut filling = panel("filling, in random order", place, &how, ("quantity", x), ("ns, bytes", Form::Bars));
        filling.method = "once, one tree after the other, their memory allocated in turn".into();
        let mut contestants = Contestants::new();
        for (contestant, quantities) in filled {
            for (number, quantity) in quantities.into_iter().enumerate() {
                filling.set(contestant.name(), number, Point::exact(quantity));
            }
            contestants.push(contestant);
        }
        let outcomes: Vec<Outcome<PHASES>> = in_turn(&mut contestants, (how.order, how.rounds), &mut || context.tick());
        let x = MIXES.iter().map(|(mix, _)| format!("YCSB {mix}")).collect();
        let mut mixes = panel("uniform keys", place, &how, ("workload", x), ("million operations/s", Form::Bars));
        for outcome in &outcomes {
            (0..PHASES).for_each(|mix| mixes.set(&outcome.name, mix, Point::throughput(&outcome.phases[mix])));
        }
        measured.panels.extend([filling, mixes]);
        measured.claims.extend(claims(place, &outcomes));
    }
    Ok(measured)
}

/// How much faster the second of each pair is on YCSB A.
fn claims(place: &Place, outcomes: &[Outcome<PHASES>]) -> Vec<Claim> {
    let pairs = [
        ("15 keys a node to 14, transient", "MT+", "MT+, 15 keys a node"),
        ("values in place to pointers, durable", "INCLL, values out of line", "INCLL"),
    ];
    let claim = |(what, base, ours): (&str, &str, &str)| {
        let ratio = series(outcomes, base, 0)?.ratio_to(series(outcomes, ours, 0)?).median();
        Some(Claim {
            what: format!("{what}, YCSB A, {}", place.pages),
            paper: "–".into(),
            ours: format!("{ratio:.2} times"),
            holds: None,
        })
    };
    pairs.into_iter().filter_map(claim).collect()
}
