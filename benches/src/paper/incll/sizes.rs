//! Figures 5, 6 and 7: YCSB A by the size of the tree: throughput, what durability costs, and how many nodes go to the
//! external log, with InCLL and without.

use super::trees::{
    DRAWS, Draw, Drawn, Kind, Mix, Phase, Rounded, Take, Tree, drawn, empty, figure, keys_of, measure, millions,
    overhead, panel, rounded, series,
};
use crate::paper::figure::{Context, Error, Figure, Measured};
use crate::paper::report::{Claim, Form, Panel, Point};
use crate::place::Place;
use crate::workload::medium;
use durix_incll::{Durable, LoggingOnly};

pub(in crate::paper) const FIG5: Figure =
    figure("incll-fig5", "throughput by the size of the tree, YCSB A", throughput);
pub(in crate::paper) const FIG6: Figure =
    figure("incll-fig6", "cost of durability by the size of the tree, YCSB A", cost);
pub(in crate::paper) const FIG7: Figure =
    figure("incll-fig7", "nodes in the external log by the size of the tree, YCSB A", logged);

/// Sizes that the figures go through, up to the number of keys that was asked for.
const SIZES: [u64; 8] = [10_000, 100_000, 1_000_000, 3_000_000, 10_000_000, 20_000_000, 50_000_000, 100_000_000];

/// What durability may cost at any size, in percent.
const GOAL: f64 = 12.0;

/// The paper's mix.
const A: Mix = Mix::Puts(50);

fn sizes(context: &Context<'_>) -> Vec<u64> {
    let most = keys_of(context);
    let mut sizes: Vec<u64> = SIZES.into_iter().filter(|size| *size <= most).collect();
    if sizes.last() != Some(&most) {
        sizes.push(most);
    }
    sizes
}

fn both_ways(keys: u64) -> [Drawn; 2] {
    [Draw::Uniform, Draw::Zipfian].map(|draw| drawn(keys, draw, 5))
}

/// Calls `each` with the outcomes of every size in every place.
fn throughput(context: &Context<'_>) -> Result<Measured, Error> {
    by_size(context, "million operations/s", None, |panel, at, outcomes, draw| {
        for name in ["MT+", "INCLL"] {
            if let Some(series) = series(outcomes, name, draw) {
                panel.set(name, at, Point::throughput(series));
            }
        }
    })
}

fn cost(context: &Context<'_>) -> Result<Measured, Error> {
    by_size(context, "cost of durability, %", Some(GOAL), |panel, at, outcomes, draw| {
        panel.set("INCLL over MT+", at, Point::exact(overhead(outcomes, draw)));
    })
}

type SetPoints = fn(&mut Panel, usize, &[crate::interleave::Outcome<2>], usize);

/// Measures all sizes in all places, and claims what durability costs at most.
fn by_size(context: &Context<'_>, y: &str, goal: Option<f64>, set: SetPoints) -> Result<Measured, Error> {
    let sizes = sizes(context);
    let how = rounded(context, *sizes.last().expect("at least one"));
    context.expect(sizes.len(), how.all_rounds(DRAWS.len()));
    let mut measured = empty(context, how.keys);
    for place in &context.places {
        let x: Vec<String> = sizes.iter().map(|keys| millions(*keys)).collect();
        let mut panels =
            DRAWS.map(|(name, _)| panel(format!("YCSB A, {name}"), place, &how, ("keys", x.clone()), (y, Form::Lines)));
        let mut worst = [(f64::NEG_INFINITY, 0); 2];
        for (at, keys) in sizes.iter().enumerate() {
            context.now(format!("{} keys, {}", millions(*keys), place.pages));
            let (how, drawn) = (Rounded { keys: *keys, ..how }, both_ways(*keys));
            let phases = [0, 1].map(|n| Phase { mix: A, drawn: &drawn[n], before: &|| {} });
            let take = Take { transient: true, logging: false };
            let outcomes = measure(context, (place, medium()), &how, take, &phases)?;
            for draw in 0..2 {
                set(&mut panels[draw], at, &outcomes, draw);
                worst[draw] = worst[draw].max_by_cost((overhead(&outcomes, draw), *keys));
            }
        }
        for (draw, (name, _)) in DRAWS.iter().enumerate() {
            let (cost, keys) = worst[draw];
            measured.claims.push(Claim {
                what: format!("the most that durability costs, {name}, {}", place.pages),
                paper: "27% (between 1M and 3M keys)".to_owned()
                    + &goal.map_or(String::new(), |goal| format!("; goal {goal}% at every size")),
                ours: format!("{cost:.1}% (at {} keys; of {} sizes)", millions(keys), sizes.len()),
                holds: goal.map(|goal| cost.is_finite() && cost <= goal),
            });
        }
        measured.panels.extend(panels);
    }
    Ok(measured)
}

trait MaxByCost {
    fn max_by_cost(self, other: Self) -> Self;
}

impl MaxByCost for (f64, u64) {
    fn max_by_cost(self, other: Self) -> Self {
        if other.0 > self.0 { other } else { self }
    }
}

/// Nodes that a million operations write to the external log, over whole epochs.
fn logged_by<P: Kind>(place: &Place, keys: u64, epochs: usize, drawn: &[Drawn; 2]) -> Result<[f64; 2], Error> {
    let mut tree = Tree::<_, P>::fill(place, medium(), keys)?;
    let mut found = [0.0; 2];
    for (draw, drawn) in drawn.iter().enumerate() {
        let logged = |tree: &mut Tree<_, P>| {
            tree.session.enter().map(|op| tree.tree.logged_nodes(&op)).map_err(durix_incll::Error::from)
        };
        let before = logged(&mut tree)?;
        let done = tree.work(A, drawn, epochs, &mut Vec::new())?;
        found[draw] = (logged(&mut tree)? - before) as f64 * 1e6 / done as f64;
    }
    Ok(found)
}

fn logged(context: &Context<'_>) -> Result<Measured, Error> {
    let sizes = sizes(context);
    let how = Rounded { rounds: 1, fillings: 1, ..rounded(context, *sizes.last().expect("at least one")) };
    context.expect(sizes.len(), 1);
    let mut measured = empty(context, how.keys);
    // Counts do not depend on the size of a page.
    let place = &context.places[0];
    let x: Vec<String> = sizes.iter().map(|keys| millions(*keys)).collect();
    let axes = |name: &str| {
        panel(
            format!("YCSB A, {name}"),
            place,
            &how,
            ("keys", x.clone()),
            ("nodes logged a million operations", Form::Lines),
        )
    };
    let mut panels = DRAWS.map(|(name, _)| axes(name));
    for (at, keys) in sizes.iter().enumerate() {
        context.now(format!("{} keys", millions(*keys)));
        let drawn = both_ways(*keys);
        let (with, without) = (
            logged_by::<Durable>(place, *keys, how.epochs, &drawn)?,
            logged_by::<LoggingOnly>(place, *keys, how.epochs, &drawn)?,
        );
        for draw in 0..2 {
            panels[draw].set("INCLL", at, Point::exact(with[draw]));
            panels[draw].set("LOGGING", at, Point::exact(without[draw]));
        }
        if at + 1 == sizes.len() {
            for (draw, (name, _)) in DRAWS.iter().enumerate() {
                measured.claims.push(Claim {
                    what: format!("nodes logged with InCLL, of those without, {} keys, {name}", millions(*keys)),
                    paper: "far fewer in large trees".into(),
                    ours: format!("{:.2}%", 100.0 * with[draw] / without[draw]),
                    holds: None,
                });
            }
        }
        context.tick();
    }
    measured.panels.extend(panels);
    Ok(measured)
}
