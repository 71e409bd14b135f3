//! The table of `cargo bench -p durix-bench --bench logfree`: the hash tables by size, beside the floor.

use comfy_table::{CellAlignment, Table, presets};
use durix_pmem::Medium;

use super::Error;
use super::make::{PerUpdate, Protocol, Shape, What, count, make};
use super::rounds::{Mix, OPERATIONS};
use crate::floor::{Floor, Stores};
use crate::interleave::{Contestant, Outcome, Series, interleave_telling};
use crate::logs::Region;
use crate::machine::Machine;
use crate::place::Place;
use crate::workload::medium;

/// What is measured beside the floor.
pub const WAYS: [Protocol; 4] = [Protocol::Soft, Protocol::Links, Protocol::Redo, Protocol::Cso];

/// Outcomes by way; the floor has none.
pub type Outcomes = Vec<(Option<Protocol>, Outcome<2>)>;

/// The floor in rounds of as many persists as a set has operations.
///
/// # Errors
/// Without room.
pub fn floor<M: Medium>(place: &Place, medium: M) -> Result<Box<dyn Contestant<2>>, Error> {
    let region = Region { off: 4096, len: 64 << 20 };
    let mapping = place.map(region.off + region.len, medium)?;
    Ok(Box::new(Floor::<M, 1>::new(mapping.session()?, region, Stores::Word, OPERATIONS as usize)))
}

/// Measures the floor and the given ways, as far as there are such sets. Calls `filling` before each is filled.
///
/// # Errors
/// What the directory refuses.
pub fn measure<M: Medium>(
    place: &Place,
    medium: M,
    what: &[What],
    rounds: usize,
    mut filling: impl FnMut(Protocol),
    after_round: &mut dyn FnMut() -> bool,
) -> Result<Outcomes, Error> {
    let (mut ways, mut contestants) = (vec![None], vec![floor(place, medium)?]);
    for what in what {
        filling(what.way);
        if let Some(contestant) = make(place, medium, *what)? {
            ways.push(Some(what.way));
            contestants.push(contestant);
        }
    }
    let outcomes = interleave_telling(&mut contestants, warm_up(rounds), rounds, after_round);
    Ok(ways.into_iter().zip(outcomes).collect())
}

/// Rounds that are not counted.
pub fn warm_up(rounds: usize) -> usize {
    rounds / 10 + 1
}

/// The outcome of a way; `None` for the floor.
pub fn of(outcomes: &Outcomes, way: Option<Protocol>) -> Option<&Outcome<2>> {
    outcomes.iter().find(|(w, _)| *w == way).map(|(_, outcome)| outcome)
}

/// How many times as many operations `ours` does as `other`, round by round.
pub fn ratio(outcomes: &Outcomes, ours: Protocol, other: Protocol) -> Option<f64> {
    let each = |way| of(outcomes, Some(way)).map(|outcome| &outcome.phases[0]);
    Some(each(other)?.ratio_to(each(ours)?).median())
}

/// Time of a successful update, in floors.
pub fn floors(outcomes: &Outcomes, way: Protocol) -> Option<f64> {
    let floor = &of(outcomes, None)?.phases[0];
    Some(of(outcomes, Some(way))?.phases[1].ratio_to(floor).median())
}

/// Measures and prints everything.
///
/// # Errors
/// What the directory refuses.
pub fn report(quick: bool) -> Result<(), Error> {
    let place = Place::from_env();
    let (sizes, rounds): (&[u64], _) =
        if quick { (&[1 << 10], 30) } else { (&[128, 1 << 10, 16 << 10, 256 << 10], 400) };
    println!("\nlogfree: {}", Machine::this());
    println!(
        "{}: {}, {}; medians of {rounds} interleaved rounds of {OPERATIONS} operations, 1 thread",
        place.dir.display(),
        medium().describe(),
        place.pages
    );
    let mut table = table();
    for keys in sizes {
        let what = WAYS.map(|way| What { shape: Shape::Hash, way, keys: *keys, threads: 1, mix: Mix::UPDATES });
        let counts = what.map(|what| (what.way, count(what)));
        let outcomes = measure(&place, medium(), &what, rounds, |_| (), &mut || true)?;
        for (way, outcome) in &outcomes {
            let counted = counts.iter().find(|(w, _)| Some(*w) == *way).and_then(|(_, c)| c.as_ref().ok()?.as_ref());
            table.add_row(row(*keys, *way, outcome, &outcomes, counted));
        }
    }
    println!("{table}");
    println!(
        "goals at 1024 keys: durable links over the redo log at least 1.8; volatile over durable links at least 2;"
    );
    println!("the best table at most 1.35 floors a successful update");
    Ok(())
}

const HEADER: [&str; 9] = [
    "keys",
    "table",
    "ns an operation",
    "spread",
    "over redo log",
    "over durable links",
    "floors an update",
    "write-backs",
    "fences (implicit)",
];

fn table() -> Table {
    let mut table = Table::new();
    table.load_preset(presets::ASCII_MARKDOWN);
    table.set_header(HEADER);
    for column in table.column_iter_mut().skip(2) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    table
}

fn row(
    keys: u64,
    way: Option<Protocol>,
    outcome: &Outcome<2>,
    all: &Outcomes,
    counted: Option<&PerUpdate>,
) -> [String; HEADER.len()] {
    let number = |value: Option<f64>| value.map_or(String::new(), |value| format!("{value:.2}"));
    let each: &Series = &outcome.phases[0];
    [
        keys.to_string(),
        outcome.name.clone(),
        format!("{:.1}", each.median()),
        format!("±{:.0}%", each.spread() * 100.0),
        number(way.and_then(|way| ratio(all, way, Protocol::Redo))),
        number(way.and_then(|way| ratio(all, way, Protocol::Links))),
        number(way.and_then(|way| floors(all, way))),
        number(counted.map(|c| c.write_backs)),
        counted.map_or(String::new(), |c| format!("{:.2} ({:.2})", c.fences, c.implicit_drains)),
    ]
}
