//! Figure 8: what each technique contributes: updates over those of the log-based sets at 1024 elements, for one thread and two.
//!
//! The link cache (32 lines, for list and hash table) is measured beside link-and-persist, in rounds of its own: durable on return,
//! which is what the others promise; made durable every 16 operations, as by a server that answers so many requests together;
//! and once a round.

use super::sets::{CONTRACT, Expected, claim, figure, fits, measure_at, panel, rounds_of_a_point, set_ratios};
use crate::logfree::make::{PerUpdate, Protocol, Shape, What, count};
use crate::logfree::rounds::Mix;
use crate::paper::figure::{Context, Error, Figure, Measured};
use crate::paper::report::{Claim, Form};
use crate::place::Place;
use crate::workload::medium;

pub(in crate::paper) const FIGURE: Figure = figure(
    "logfree-fig8",
    "updates over those of log-based sets at one size, by technique",
    Some("keys of the sets (default 1024)"),
    run,
);

const WAYS: [Protocol; 3] = [Protocol::Soft, Protocol::Links, Protocol::Redo];
const CACHES: [Protocol; 3] = [Protocol::Cached, Protocol::Batched, Protocol::Buffered];
/// The sets that can have a link cache.
const CACHED: [Shape; 2] = [Shape::List, Shape::Hash];
const THREADS: [u64; 2] = [1, 2];
const BUFFERED: &str = "a link cache that is synced now and then is buffered: an update that has returned is lost by a crash before \
     the sync, each key by itself; all else is durable on return";

/// What an update costs with each kind of link cache, counted.
fn counts(keys: u64) -> Result<Vec<Claim>, Error> {
    let mut claims = Vec::new();
    for shape in CACHED {
        for way in [Protocol::Links].into_iter().chain(CACHES) {
            let Some(counted) = count(What { shape, way, keys, threads: 1, mix: Mix::UPDATES })? else { continue };
            let PerUpdate { write_backs, fences, implicit_drains } = counted;
            claims.push(Claim {
                what: format!("an update, {}, {}", shape.name(), way.name()),
                paper: "(ours)".into(),
                ours: format!("{write_backs:.2} write-backs, {fences:.2} fences, {implicit_drains:.2} implicit"),
                holds: None,
            });
        }
    }
    Ok(claims)
}

fn run(context: &Context<'_>) -> Result<Measured, Error> {
    let keys = context.keys_or(1 << 10);
    context.expect((Shape::ALL.len() + CACHED.len()) * THREADS.len(), rounds_of_a_point(context));
    let x: Vec<String> = Shape::ALL.iter().map(|shape| shape.name().to_owned()).collect();
    let notes = vec![CONTRACT.into(), BUFFERED.into(), fits(keys)];
    let mut measured = Measured { panels: Vec::new(), claims: counts(keys)?, notes };
    for place in &context.places {
        for threads in THREADS {
            let title = format!("{keys} keys, {threads} thread(s): over the redo log");
            let mut ratios = panel(context, place, title, ("set", &x), "times the redo log");
            ratios.form = Form::Bars;
            for (at, shape) in Shape::ALL.into_iter().enumerate() {
                context.now(format!("{}, {threads} thread(s), {}", shape.name(), place.pages));
                let what = WAYS.map(|way| What { shape, way, keys, threads, mix: Mix::UPDATES });
                let outcomes = measure_at(context, place, medium(), &what)?;
                set_ratios(&mut ratios, at, &outcomes, Protocol::Redo);
                let paper = "link-and-persist ahead for all sets, with one thread and with several";
                let what = format!("{}, {threads} thread(s), {}", shape.name(), place.pages);
                let ways = (Protocol::Links, Protocol::Redo);
                measured.claims.extend(claim(&outcomes, Expected { what, paper, ways, goal: Some(1.0) }));
            }
            measured.panels.push(ratios);
            caches(context, place, (keys, threads), &mut measured)?;
        }
    }
    Ok(measured)
}

/// What the link cache adds to link-and-persist.
fn caches(
    context: &Context<'_>,
    place: &Place,
    (keys, threads): (u64, u64),
    measured: &mut Measured,
) -> Result<(), Error> {
    let x = CACHED.map(|shape| shape.name().to_owned());
    let title = format!("{keys} keys, {threads} thread(s): over link-and-persist");
    let mut ratios = panel(context, place, title, ("set", &x), "times link-and-persist");
    ratios.form = Form::Bars;
    for (at, shape) in CACHED.into_iter().enumerate() {
        let point = format!("{}, {threads} thread(s), {}", shape.name(), place.pages);
        context.now(format!("link cache, {point}"));
        let ways = [Protocol::Links].into_iter().chain(CACHES);
        let what: Vec<What> = ways.map(|way| What { shape, way, keys, threads, mix: Mix::UPDATES }).collect();
        let outcomes = measure_at(context, place, medium(), &what)?;
        set_ratios(&mut ratios, at, &outcomes, Protocol::Links);
        for way in CACHES {
            let paper = "the link cache brings more in most cases";
            let expected = Expected { what: point.clone(), paper, ways: (way, Protocol::Links), goal: None };
            measured.claims.extend(claim(&outcomes, expected));
        }
    }
    measured.panels.push(ratios);
    Ok(())
}
