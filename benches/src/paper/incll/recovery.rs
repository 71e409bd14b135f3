//! Section 6.3: recovery. The worst case of the paper: a tree of a million keys, a write-heavy epoch, and a crash right before
//! its boundary; here with InCLL, and with the external log alone, which puts back as many nodes as the paper's. The crash is
//! that of the process: memory stays as the caches have it, so that recovery has all the work that it can have.

use std::time::Instant;

use durix_incll::{Durable, LoggingOnly};
use durix_pmem::Hardware;

use super::trees::{Draw, Kind, Mix, Rounded, Tree, drawn, empty, figure, keys_of, millions, panel, rounded};
use crate::interleave::Series;
use crate::paper::figure::{Context, Error, Figure, Measured};
use crate::paper::report::{Claim, Form, Panel, Point};
use crate::place::Place;
use crate::workload::medium;

pub(in crate::paper) const FIGURE: Figure = figure("incll-recovery", "recovery after a crash", run);

/// Keys of the paper's worst case.
const WORST: u64 = 1_000_000;

/// What a crash and an opening came to.
struct Crash {
    logged: u64,
    /// Milliseconds.
    opening: f64,
    first_scan: f64,
    second_scan: f64,
}

/// Works for almost an epoch, crashes, opens, and reads everything twice: the first time all nodes are recovered.
fn crash<P: Kind>(tree: Tree<Hardware, P>, seed: u64) -> Result<(Crash, Tree<Hardware, P>), Error> {
    let Tree { tree, mut session, mapping, keys } = tree;
    let drawn = drawn(keys, Draw::Uniform, seed);
    tree.sync(&mut session)?;
    let before = tree.logged_nodes(&session.enter()?);
    super::trees::almost_an_epoch(&tree, &mut session, Mix::Puts(50), &drawn)?;
    let logged = tree.logged_nodes(&session.enter()?) - before;
    drop(tree);
    let start = Instant::now();
    let tree = P::make(&mut session, &mapping)?;
    let opening = start.elapsed().as_secs_f64() * 1e3;
    let mut scan = || -> Result<f64, Error> {
        let start = Instant::now();
        let found = tree.len(&session.enter()?)?;
        assert_eq!(found, keys, "keys after recovery");
        Ok(start.elapsed().as_secs_f64() * 1e3)
    };
    let (first_scan, second_scan) = (scan()?, scan()?);
    Ok((Crash { logged, opening, first_scan, second_scan }, Tree { tree, session, mapping, keys }))
}

/// Several crashes of one tree.
fn crashes<P: Kind>(context: &Context<'_>, place: &Place, keys: u64) -> Result<Vec<Crash>, Error> {
    context.now(format!("{}, {} keys, {}", P::NAME, millions(keys), place.pages));
    let mut tree = Tree::<_, P>::fill(place, medium(), keys)?;
    let mut found = Vec::new();
    for seed in 0..if context.quick { 3 } else { 7 } {
        let (crash, next) = crash(tree, 63 + seed)?;
        found.push(crash);
        tree = next;
    }
    context.tick();
    Ok(found)
}

fn set(panel: &mut Panel, at: usize, crashes: &[Crash]) -> Point {
    let of = |f: fn(&Crash) -> f64| Point::nanoseconds(&Series::new(crashes.iter().map(f).collect()));
    let opening = of(|crash| crash.opening);
    panel.set("opening, ms", at, opening);
    panel.set("first scan of all keys, ms", at, of(|crash| crash.first_scan));
    panel.set("second scan of all keys, ms", at, of(|crash| crash.second_scan));
    panel.set("nodes in the log, thousands", at, of(|crash| crash.logged as f64 / 1e3));
    opening
}

fn run(context: &Context<'_>) -> Result<Measured, Error> {
    let how = Rounded { fillings: 1, rounds: 1, ..rounded(context, keys_of(context)) };
    context.expect(3, 1);
    let mut measured = empty(context, how.keys);
    for place in &context.places {
        let large = millions(how.keys);
        let x = vec!["LOGGING, 1M keys".into(), "INCLL, 1M keys".into(), format!("INCLL, {large} keys")];
        let mut panel = panel("after a crash", place, &how, ("tree", x), ("milliseconds, thousands", Form::Bars));
        panel.method = "medians over several crashes right before a boundary, YCSB A uniform, one thread".into();
        let without = set(&mut panel, 0, &crashes::<LoggingOnly>(context, place, WORST)?);
        let with = set(&mut panel, 1, &crashes::<Durable>(context, place, WORST)?);
        let reopened = set(&mut panel, 2, &crashes::<Durable>(context, place, how.keys)?);
        let claim = |what: &str, paper: &str, point: Point| Claim {
            what: format!("{what}, {}", place.pages),
            paper: paper.into(),
            ours: format!("{:.2} ms", point.median),
            holds: None,
        };
        measured.claims.extend([
            claim("opening 1M keys, external log alone", "15 ms for 84 K nodes", without),
            claim("opening 1M keys, InCLL", "15 ms for 84 K nodes", with),
            claim(&format!("opening {large} keys"), "–", reopened),
        ]);
        measured.panels.push(panel);
    }
    Ok(measured)
}
