//! The benchmark of ATC'18, section 6.1 (Figure 5): half inserts, half removes of keys drawn uniformly from twice as many as
//! are there; the durable hash tables, and the log-based one of the paper, in one interleaved run beside the floor.

use std::time::Instant;

use comfy_table::{CellAlignment, Table, presets};
use durix_logfree::{HashTable, Options, SoftHash, SoftOptions};
use durix_pmem::backing::{FileBacking, HeapBacking};
use durix_pmem::{Counting, Mapping, Medium, Pool, PoolOptions, Session};

use crate::cso_append::medium;
use crate::floor::{Floor, Stores};
use crate::interleave::{Contestant, Outcome, interleave};
use crate::logs::Region;
use crate::machine::Machine;
use crate::place::{Place, Refused};
use crate::sets_logged::Set;
use crate::sets_logged::lazy_hash::LazyHash;

/// Operations of a round.
const OPERATIONS: u64 = 2 << 10;

/// Why the bench cannot run.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The directory.
    #[error(transparent)]
    Place(#[from] Refused),
    /// The pool.
    #[error("{0}; set DURIX_DIR to a directory with enough room")]
    Pool(#[from] durix_pmem::Error),
    /// The table.
    #[error("{0}; set DURIX_DIR to a directory with enough room")]
    Table(#[from] durix_logfree::Error),
}

/// A set at work.
struct Rounds<M: Medium, S> {
    session: Session<M>,
    set: S,
    keys: u64,
    random: u64,
    _pool: Option<Pool<M>>,
}

impl<M: Medium, S: Set<M>> Rounds<M, S> {
    fn new(session: Session<M>, set: S, keys: u64, pool: Option<Pool<M>>) -> Self {
        let mut rounds = Rounds { session, set, keys, random: 88_172_645_463_325_252, _pool: pool };
        for i in 0..keys {
            let op = rounds.session.enter().expect("the pool is open");
            rounds.set.insert(&op, key(2 * i), i);
        }
        rounds
    }

    /// Runs so many operations; returns how many have changed something.
    #[inline(never)]
    fn batch(&mut self, operations: u64) -> u64 {
        let mut changed = 0;
        for _ in 0..operations {
            // xorshift64: cheap, and the same sequence for everyone.
            self.random ^= self.random << 13;
            self.random ^= self.random >> 7;
            self.random ^= self.random << 17;
            let key = key(((u128::from(self.random) * u128::from(2 * self.keys)) >> 64) as u64);
            let op = self.session.enter().expect("the pool is open");
            let done = if self.random & 1 == 0 { self.set.insert(&op, key, 1) } else { self.set.remove(&op, key) };
            changed += u64::from(done);
        }
        changed
    }
}

/// Key number `i`: spread over all 64 bits, different for each `i`.
fn key(i: u64) -> u64 {
    (i + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

impl<M: Medium, S: Set<M>> Contestant<2> for Rounds<M, S> {
    fn name(&self) -> &str {
        S::NAME
    }

    /// Nanoseconds an operation, and a successful update.
    fn round(&mut self) -> [f64; 2] {
        let start = Instant::now();
        let changed = self.batch(OPERATIONS);
        let time = start.elapsed().as_nanos() as f64;
        [time / OPERATIONS as f64, time / changed as f64]
    }
}

fn options(keys: u64) -> PoolOptions {
    PoolOptions::new().initial_size(keys * 64 * 6 + (64 << 20)).assume_pmem(true)
}

/// A pool in a file without a name, so that nothing is left behind.
fn pool<M: Medium>(place: &Place, medium: M, keys: u64) -> Result<Pool<M>, Error> {
    let path = place.unused_path();
    let pool = options(keys).create_on(FileBacking::create(&path)?, medium);
    let _ = std::fs::remove_file(&path);
    Ok(pool?)
}

fn durable_links<M: Medium>(pool: Pool<M>, keys: u64) -> Result<Box<dyn Contestant<2>>, Error> {
    let table = HashTable::open_with(&pool, "table", &Options::default().buckets(keys))?;
    Ok(Box::new(Rounds::new(pool.session()?, table, keys, Some(pool))))
}

fn volatile_links<M: Medium>(pool: Pool<M>, keys: u64) -> Result<Box<dyn Contestant<2>>, Error> {
    let table = SoftHash::open_with(&pool, "table", &SoftOptions::default())?;
    Ok(Box::new(Rounds::new(pool.session()?, table, keys, Some(pool))))
}

fn logged<M: Medium, const CSO: bool>(mapping: &Mapping<M>, keys: u64) -> Result<Box<dyn Contestant<2>>, Error> {
    Ok(Box::new(Rounds::new(mapping.session()?, LazyHash::<CSO>::new(mapping, keys), keys, None)))
}

/// Measures tables of `keys` keys. The outcomes: floor, volatile links, durable links, log-based, over the CSO log.
///
/// # Errors
/// What the directory refuses.
pub fn measure<M: Medium>(place: &Place, medium: M, keys: u64, rounds: usize) -> Result<Vec<Outcome<2>>, Error> {
    let region = Region { off: 4096, len: 64 << 20 };
    let floor = place.map(region.off + region.len, medium)?;
    let bytes = LazyHash::<true>::bytes(keys);
    let mut contestants: Vec<Box<dyn Contestant<2>>> = vec![
        Box::new(Floor::<M, 1>::new(floor.session()?, region, Stores::Word, OPERATIONS as usize)),
        volatile_links(pool(place, medium, keys)?, keys)?,
        durable_links(pool(place, medium, keys)?, keys)?,
        logged::<M, false>(&place.map(bytes, medium)?, keys)?,
        logged::<M, true>(&place.map(bytes, medium)?, keys)?,
    ];
    Ok(interleave(&mut contestants, rounds / 10 + 1, rounds))
}

/// Write-backs, fences and implicit drains of a successful update, in the order of [`measure`] without the floor.
///
/// # Errors
/// What the pool refuses.
pub fn counts(keys: u64) -> Result<[(f64, f64, f64); 4], Error> {
    let heap = |keys: u64| HeapBacking::new((keys * 64 * 8 + (128 << 20)).next_power_of_two());
    let bytes = LazyHash::<true>::bytes(keys) as usize;
    let mut all = [(0.0, 0.0, 0.0); 4];
    for (i, counted) in all.iter_mut().enumerate() {
        let counting = Counting::new(medium());
        let pool = || options(keys).create_on(heap(keys), counting);
        let mut contestant = match i {
            0 => volatile_links(pool()?, keys)?,
            1 => durable_links(pool()?, keys)?,
            2 => logged::<_, false>(&Mapping::heap(bytes, counting), keys)?,
            _ => logged::<_, true>(&Mapping::heap(bytes, counting), keys)?,
        };
        contestant.round();
        let before = counting.counts();
        let [each, update] = contestant.round();
        let (counts, updates) = (counting.counts() - before, OPERATIONS as f64 * each / update);
        let per = |n: u64| n as f64 / updates;
        *counted = (per(counts.write_backs), per(counts.fences), per(counts.implicit_drains));
    }
    Ok(all)
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
        add_rows(&mut table, *keys, &measure(&place, medium(), *keys, rounds)?, counts(*keys)?);
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
    "redo log / this",
    "durable links / this",
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

fn add_rows(table: &mut Table, keys: u64, outcomes: &[Outcome<2>], counts: [(f64, f64, f64); 4]) {
    let (floor, durable, log) = (&outcomes[0].phases[0], &outcomes[2].phases[0], &outcomes[3].phases[0]);
    for (i, outcome) in outcomes.iter().enumerate() {
        let [each, update] = &outcome.phases;
        let ratio = |to: &crate::interleave::Series| match i {
            0 => String::new(),
            _ => format!("{:.2}", to.ratio_to(each).median()),
        };
        let counted = i.checked_sub(1).map(|i| counts[i]);
        table.add_row([
            keys.to_string(),
            outcome.name.clone(),
            format!("{:.1}", each.median()),
            format!("±{:.0}%", each.spread() * 100.0),
            ratio(log),
            ratio(durable),
            counted.map_or(String::new(), |_| format!("{:.2}", update.ratio_to(floor).median())),
            counted.map_or(String::new(), |(wb, ..)| format!("{wb:.2}")),
            counted.map_or(String::new(), |(_, fences, drains)| format!("{fences:.2} ({drains:.2})")),
        ]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fences_are_what_each_protocol_promises() {
        let [soft, links, log, cso] = counts(256).unwrap();
        assert_eq!((soft.0, soft.1, soft.2), (1.0, 1.0, 0.0));
        assert!(links.1 <= 1.6 && links.2 == 0.0, "two an insert, one a remove: {links:?}");
        assert_eq!(log.1, 3.0);
        assert!((1.0..1.03).contains(&cso.1), "{cso:?}");
    }

    #[test]
    fn the_comparators_are_maps() {
        fn check<const CSO: bool>() {
            let mapping = Mapping::heap(LazyHash::<CSO>::bytes(64) as usize, durix_pmem::Hardware::PAGE_CACHE);
            let (mut set, mut model) = (LazyHash::<CSO>::new(&mapping, 64), std::collections::BTreeSet::new());
            let mut session = mapping.session().unwrap();
            let mut random = 7u64;
            for _ in 0..5000 {
                random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                let (key, op) = ((random >> 40) % 100, session.enter().unwrap());
                if random >> 63 == 0 {
                    assert_eq!(set.insert(&op, key, 1), model.insert(key));
                } else {
                    assert_eq!(set.remove(&op, key), model.remove(&key));
                }
            }
        }
        check::<false>();
        check::<true>();
    }
}
