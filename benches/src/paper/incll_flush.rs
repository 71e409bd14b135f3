//! Section 6.2: what the boundary of an epoch takes. The paper flushes the whole cache by a privileged instruction; here the
//! lines that the epoch has dirtied are written back. The pause is the time for which the boundary keeps operations out.

use durix_incll::Durable;

use super::incll_trees::{DRAWS, Draw, MIXES, Tree, drawn, empty, figure, keys_of, panel, rounded};
use super::report::{Claim, Form, Point};
use super::{Context, Error, Figure, Measured};
use crate::cso_append::medium;
use crate::interleave::Series;

pub(super) const FIGURE: Figure = figure("incll-flush", "what the boundary of an epoch takes", run);

/// Quantiles of the pause.
const QUANTILES: [(&str, f64); 4] = [("p50", 0.5), ("p99", 0.99), ("p99.9", 0.999), ("most", 1.0)];

fn run(context: &Context<'_>) -> Result<Measured, Error> {
    let mut how = rounded(context, keys_of(context));
    how.epochs = if context.quick { 60 } else { 200 };
    how.rounds = 1;
    let mixes = &MIXES[..3];
    context.expect(mixes.len() * 2, 1);
    let mut measured = empty(context, how.keys);
    let drawn = [Draw::Uniform, Draw::Zipfian].map(|draw| drawn(how.keys, draw, 62));
    for place in &context.places {
        let mut tree = Tree::<_, Durable>::fill(place, medium(), how.keys)?;
        for (draw, (name, _)) in DRAWS.iter().enumerate() {
            let x: Vec<String> = mixes.iter().map(|(mix, _)| format!("YCSB {mix}")).collect();
            let axes = ("workload", x.clone());
            let mut pauses = panel(format!("pause, {name}"), place, &how, axes, ("microseconds", Form::Bars));
            let axes = ("workload", x);
            let mut lines = panel(format!("lines, {name}"), place, &how, axes, ("lines a boundary", Form::Bars));
            for (at, (mix_name, mix)) in mixes.iter().enumerate() {
                context.now(format!("YCSB {mix_name} {name}, {}", place.pages));
                tree.tree.sync(&mut tree.session)?;
                let (before, mut found) = (tree.tree.epochs().stats().lines, Vec::new());
                tree.work(*mix, &drawn[draw], how.epochs, &mut found)?;
                let written = tree.tree.epochs().stats().lines - before;
                let found = Series::new(found.iter().map(|ns| *ns as f64 / 1000.0).collect());
                for (quantile, q) in QUANTILES {
                    pauses.set(quantile, at, Point::exact(found.quantile(q)));
                }
                lines.set("written back", at, Point::exact(written as f64 / how.epochs as f64));
                if at == 0 {
                    measured.claims.push(Claim {
                        what: format!("a boundary, YCSB {mix_name} {name}, {}", place.pages),
                        paper: "1.38 to 1.39 ms, 2.2% of the time".into(),
                        ours: format!("{:.2} ms, {:.1}%", found.median() / 1e3, found.median() / 640.0),
                        holds: None,
                    });
                }
                context.tick();
            }
            measured.panels.extend([pauses, lines]);
        }
    }
    if how.epochs < 1000 {
        measured.notes.push(format!("{} boundaries each, so p99.9 lies close to the longest", how.epochs));
    }
    Ok(measured)
}
