//! Section 6.2: what the boundary of an epoch takes. The paper flushes the whole cache by a privileged instruction; here the
//! lines that the epoch has dirtied are written back. The pause is the time for which the boundary keeps operations out;
//! either all lines are written back meanwhile, or most of them before, while operations go on.

use durix_incll::Durable;
use durix_pmem::Hardware;

use super::trees::{DRAWS, Draw, Drawn, MIXES, Mix, Tree, drawn, empty, figure, keys_of, panel, rounded};
use crate::interleave::Series;
use crate::paper::figure::{Context, Error, Figure, Measured};
use crate::paper::report::{Claim, Form, Point};
use crate::workload::medium;

pub(in crate::paper) const FIGURE: Figure = figure("incll-flush", "what the boundary of an epoch takes", run);

/// How many of the mixes: what follows only reads.
const LOADS: usize = 3;

/// Quantiles of the pause.
const QUANTILES: [(&str, f64); 4] = [("p50", 0.5), ("p99", 0.99), ("p99.9", 0.999), ("most", 1.0)];

/// Where the lines are written back.
const WAYS: [&str; 2] = ["inside (sync)", "ahead (tick)"];

fn run(context: &Context<'_>) -> Result<Measured, Error> {
    let mut how = rounded(context, keys_of(context));
    how.epochs = if context.quick { 60 } else { 200 };
    (how.rounds, how.fillings) = (1, 1);
    context.expect(LOADS * 2, 1);
    let mut measured = empty(context, how.keys);
    let drawn = [Draw::Uniform, Draw::Zipfian].map(|draw| drawn(how.keys, draw, 62));
    for place in &context.places {
        let mut tree = Tree::<_, Durable>::fill(place, medium(), how.keys)?;
        for (draw, (name, _)) in DRAWS.iter().enumerate() {
            let x: Vec<String> = MIXES[..LOADS].iter().map(|(mix, _)| format!("YCSB {mix}")).collect();
            let of_pauses = |way| {
                let axes = ("workload", x.clone());
                panel(format!("pause, lines {way}, {name}"), place, &how, axes, ("microseconds", Form::Bars))
            };
            let mut pauses = WAYS.map(of_pauses);
            let axes = ("workload", x.clone());
            let mut lines = panel(format!("lines, {name}"), place, &how, axes, ("lines an epoch", Form::Bars));
            for (at, (mix_name, mix)) in MIXES[..LOADS].iter().enumerate() {
                context.now(format!("YCSB {mix_name} {name}, {}", place.pages));
                for (way, pauses) in pauses.iter_mut().enumerate() {
                    let found = boundaries(&mut tree, (*mix, &drawn[draw]), how.epochs, way)?;
                    for (quantile, q) in QUANTILES {
                        pauses.set(quantile, at, Point::exact(found.pauses.quantile(q)));
                    }
                    lines.set(&format!("in a pause, {}", WAYS[way]), at, Point::exact(found.inside));
                    lines.set(&format!("before it, {}", WAYS[way]), at, Point::exact(found.ahead));
                    if at == 0 {
                        measured.claims.push(claim(WAYS[way], &format!("{name}, {}", place.pages), &found));
                    }
                }
                context.tick();
            }
            measured.panels.extend(pauses);
            measured.panels.push(lines);
        }
    }
    if how.epochs < 1000 {
        measured.notes.push(format!("{} boundaries each, so p99.9 lies close to the longest", how.epochs));
    }
    Ok(measured)
}

/// What some boundaries were like.
struct Boundaries {
    /// Microseconds for which operations were kept out.
    pauses: Series,
    /// Lines written back meanwhile, and before, for each of them.
    inside: f64,
    ahead: f64,
}

fn boundaries(
    tree: &mut Tree<Hardware, Durable>,
    (mix, drawn): (Mix, &Drawn),
    epochs: usize,
    way: usize,
) -> Result<Boundaries, Error> {
    tree.tree.sync(&mut tree.session)?;
    let (before, mut found) = (tree.tree.epochs().stats(), Vec::new());
    if way == 0 {
        tree.work_inside(mix, drawn, epochs, &mut found)?;
    } else {
        tree.work(mix, drawn, epochs, &mut found)?;
    }
    let after = tree.tree.epochs().stats();
    Ok(Boundaries {
        pauses: Series::new(found.iter().map(|ns| *ns as f64 / 1000.0).collect()),
        inside: (after.lines - before.lines) as f64 / epochs as f64,
        ahead: (after.ahead - before.ahead) as f64 / epochs as f64,
    })
}

fn claim(way: &str, what: &str, found: &Boundaries) -> Claim {
    let pause = found.pauses.median();
    Claim {
        what: format!("a boundary, lines {way}, YCSB A {what}"),
        paper: "1.38 to 1.39 ms, 2.2% of the time".into(),
        ours: format!("{:.3} ms, {:.2}% of the time, {:.0} lines before it", pause / 1e3, pause / 640.0, found.ahead),
        holds: None,
    }
}
