//! The benchmark of OOPSLA'17, section 5.4 (Figure 7): half reads, half updates of keys that are there, drawn
//! uniformly; the single-trip persistent set and its comparators in one interleaved run, beside the floor.

use std::hint::black_box;
use std::time::Duration;

use comfy_table::{CellAlignment, Table, presets};
use durix_pmem::backing::{FileBacking, HeapBacking};
use durix_pmem::{Counting, Hardware, Mapping, Medium, Pool, PoolOptions, Session};

use crate::cso_append::{BATCH, medium, warm_up};
use crate::floor::{Floor, Stores};
use crate::interleave::{Contestant, Outcome, Stopwatch, interleave_telling};
use crate::logs::Region;
use crate::machine::Machine;
use crate::place::{Place, Refused};
use crate::sets::chained::Chained;
use crate::sets::ours::Ours;
use crate::sets::{Map, value_bytes};
use crate::workload::{Random, scaled};

/// Operations of a phase, and of the reads before it that are not timed: every change of contestant costs the next one its
/// content of the caches, which is not what the paper measured.
pub const OPERATIONS: usize = 16 << 10;

/// The phases of a round.
pub const PHASES: [&str; 3] = ["half reads, half updates", "updates", "reads"];

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
    /// The set.
    #[error("{0}; set DURIX_DIR to a directory with enough room")]
    Set(#[from] durix_pset::Error),
}

/// A set that holds all keys, in rounds.
#[derive(Debug)]
pub struct SetRounds<M: Medium, S> {
    session: Session<M>,
    set: S,
    keys: u64,
    random: Random,
    value: Vec<u8>,
    found: Vec<u8>,
    /// Keeps what the set lies in.
    _pool: Option<Pool<M>>,
}

/// Key number `i`: spread over all 64 bits, different for each `i`.
fn key(i: u64) -> u64 {
    (i + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

impl<M: Medium, const SHARED: bool> SetRounds<M, Chained<SHARED>> {
    /// The comparator over a file of its own in a directory.
    ///
    /// # Errors
    /// What the directory refuses.
    pub fn chained(place: &Place, medium: M, keys: u64, lines: usize) -> Result<Self, Error> {
        let mapping = place.map(64 + Chained::<SHARED>::bytes(keys, lines), medium)?;
        Self::over(&mapping, keys, lines, |mapping| Chained::new(mapping, 64, keys, lines))
    }

    fn over(
        mapping: &Mapping<M>,
        keys: u64,
        lines: usize,
        make: impl FnOnce(&Mapping<M>) -> Chained<SHARED>,
    ) -> Result<Self, Error> {
        Ok(Self::filled(mapping.session()?, make(mapping), keys, lines, None))
    }
}

impl<M: Medium> SetRounds<M, Ours<M>> {
    /// Our set in a pool of its own, a file in a directory.
    ///
    /// # Errors
    /// What the directory, the pool or the set refuses.
    pub fn ours(place: &Place, medium: M, keys: u64, lines: usize) -> Result<Self, Error> {
        let path = place.unused_path();
        let backing = FileBacking::create(&path)?;
        let pool = Self::options(keys, lines).create_on(backing, medium);
        // Without its name, nothing is left behind however the process ends.
        let _ = std::fs::remove_file(&path);
        Self::within(pool?, keys, lines)
    }

    fn options(keys: u64, lines: usize) -> PoolOptions {
        let size = (keys * lines as u64 * 64) * 3 / 2 + (64 << 20);
        // No more addresses than needed: tools that watch a process map tables for all of them.
        PoolOptions::new().initial_size(size).max_size(size * 2).assume_pmem(true)
    }

    fn within(pool: Pool<M>, keys: u64, lines: usize) -> Result<Self, Error> {
        let set = Ours::new(&pool)?;
        Ok(Self::filled(pool.session()?, set, keys, lines, Some(pool)))
    }
}

impl<M: Medium, S: Map<M>> SetRounds<M, S> {
    fn filled(session: Session<M>, set: S, keys: u64, lines: usize, pool: Option<Pool<M>>) -> Self {
        let value = vec![0x5a; value_bytes(lines)];
        let mut rounds = SetRounds { session, set, keys, random: Random(1), value, found: Vec::new(), _pool: pool };
        for i in 0..keys {
            let op = rounds.session.enter().expect("the pool is open");
            rounds.set.put(&op, key(i), &rounds.value);
        }
        rounds
    }

    /// Runs so many operations; of each `of` the first `reads` are reads.
    #[inline(never)]
    pub fn run(&mut self, operations: usize, (reads, of): (u64, u64)) {
        let mut turn = 0;
        for _ in 0..operations {
            let random = self.random.next();
            let key = key(scaled(random, self.keys));
            let op = self.session.enter().expect("the pool is open");
            let read = turn < reads;
            turn = if turn + 1 == of { 0 } else { turn + 1 };
            if read {
                assert!(self.set.get(&op, key, &mut self.found), "{} lost a key", S::NAME);
                black_box(&self.found);
            } else {
                self.value[..8].copy_from_slice(&random.to_le_bytes());
                self.set.put(&op, key, &self.value);
            }
        }
    }

    /// A batch of the mix of the paper.
    pub fn mixed(&mut self) {
        self.run(BATCH, (1, 2));
    }

    fn updates(&mut self) {
        self.run(BATCH, (0, 1));
    }

    fn timed(&mut self, mix: (u64, u64)) -> f64 {
        let start = Stopwatch::start();
        self.run(OPERATIONS, mix);
        start.elapsed().as_nanos() as f64 / OPERATIONS as f64
    }
}

impl<M: Medium, S: Map<M>> Contestant<3> for SetRounds<M, S> {
    fn name(&self) -> &str {
        S::NAME
    }

    fn round(&mut self) -> [f64; 3] {
        // The paper runs one set alone: what the contestant before has driven out of the caches comes back first.
        self.run(OPERATIONS, (1, 1));
        [(1, 2), (0, 1), (1, 1)].map(|mix| self.timed(mix))
    }
}

/// The floor of a persist: in the place of an update.
struct UpdateFloor<M: Medium>(Floor<M, 1>);

impl<M: Medium> Contestant<3> for UpdateFloor<M> {
    fn name(&self) -> &str {
        self.0.name()
    }
    fn round(&mut self) -> [f64; 3] {
        let [persist, read] = self.0.round();
        [persist / 2.0 + read / 2.0, persist, read]
    }
}

/// Measures sets of `keys` keys with entries of `lines` lines, and calls `after_round` after each round. The outcomes: floor,
/// our set, the comparator with the contract of ours, the comparator for one thread.
///
/// # Errors
/// What the directory refuses.
pub fn measure<M: Medium>(
    place: &Place,
    medium: M,
    (keys, lines): (u64, usize),
    rounds: usize,
    after_round: &mut dyn FnMut() -> bool,
) -> Result<Vec<Outcome<3>>, Error> {
    let region = Region { off: 4096, len: 64 << 20 };
    let floor = place.map(region.off + region.len, medium)?;
    let mut contestants: Vec<Box<dyn Contestant<3>>> = vec![
        Box::new(UpdateFloor(Floor::new(floor.session()?, region, Stores::Word, BATCH))),
        Box::new(SetRounds::ours(place, medium, keys, lines)?),
        Box::new(SetRounds::<M, Chained<true>>::chained(place, medium, keys, lines)?),
        Box::new(SetRounds::<M, Chained<false>>::chained(place, medium, keys, lines)?),
    ];
    Ok(interleave_telling(&mut contestants, warm_up(rounds), rounds, after_round))
}

/// Write-backs and fences of an update: ours, then the comparators', which do not differ.
///
/// # Errors
/// What the pool refuses.
pub fn counts(lines: usize) -> Result<[(f64, f64); 2], Error> {
    let keys = 1000;
    let per_update = |counting: Counting<Hardware>, run: &mut dyn FnMut()| {
        run();
        let before = counting.counts();
        run();
        let counts = counting.counts() - before;
        (counts.write_backs as f64 / BATCH as f64, counts.fences as f64 / BATCH as f64)
    };
    let counting = Counting::new(medium());
    let options = SetRounds::<Hardware, Ours<Hardware>>::options(keys, lines);
    let pool = options.create_on(HeapBacking::new(256 << 20), counting)?;
    let mut ours = SetRounds::<_, Ours<_>>::within(pool, keys, lines)?;
    let first = per_update(counting, &mut || ours.updates());
    let counting = Counting::new(medium());
    let mapping = Mapping::heap(64 + Chained::<true>::bytes(keys, lines) as usize, counting);
    let make = |mapping: &_| Chained::new(mapping, 64, keys, lines);
    let mut chained = SetRounds::<_, Chained<true>>::over(&mapping, keys, lines, make)?;
    let second = per_update(counting, &mut || chained.updates());
    Ok([first, second])
}

/// Measures and prints everything.
///
/// # Errors
/// What the directory refuses.
pub fn report(quick: bool) -> Result<(), Error> {
    let place = Place::from_env();
    let (sizes, rounds): (&[u64], _) = if quick { (&[1 << 10], 3) } else { (&[16 << 10, 1 << 20], 60) };
    println!("\npset: {}", Machine::this());
    for place in [Some(place.clone()), place.other_page_size()].into_iter().flatten() {
        println!(
            "{}: {}, {}; medians of {rounds} interleaved rounds of {OPERATIONS} operations",
            place.dir.display(),
            medium().describe(),
            place.pages
        );
        let mut table = table();
        for keys in sizes {
            let outcomes = measure(&place, medium(), (*keys, 1), rounds, &mut || true)?;
            let counts = counts(1)?;
            add_rows(&mut table, *keys, &outcomes, counts);
        }
        println!("{table}");
    }
    println!(
        "the paper's claim for half reads, half updates: STPS 52 to 56% ahead where the set fits the cache, 23 to 29% beyond"
    );
    Ok(())
}

fn table() -> Table {
    let mut table = Table::new();
    table.load_preset(presets::ASCII_MARKDOWN);
    table.set_header(["keys", "operations", "set", "ns each", "spread", "TwoRounds / this", "write-backs", "fences"]);
    for column in table.column_iter_mut().skip(3) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    table
}

fn add_rows(table: &mut Table, keys: u64, outcomes: &[Outcome<3>], counts: [(f64, f64); 2]) {
    let comparator = outcomes.iter().find(|o| o.name == "TwoRounds").expect("the comparator takes part");
    for (phase, what) in PHASES.iter().enumerate() {
        for (i, outcome) in outcomes.iter().enumerate() {
            let series = &outcome.phases[phase];
            let counted = i.checked_sub(1).filter(|_| *what == "updates").map(|i| counts[i.min(1)]);
            let count = |n: Option<f64>| n.map_or(String::new(), |n| format!("{n:.2}"));
            table.add_row([
                keys.to_string(),
                (*what).to_owned(),
                outcome.name.clone(),
                format!("{:.1}", series.median()),
                format!("±{:.0}%", series.spread() * 100.0),
                format!("{:.3}", comparator.phases[phase].ratio_to(series).median()),
                count(counted.map(|c| c.0)),
                count(counted.map(|c| c.1)),
            ]);
        }
    }
}

/// The time of so many operations of the paper's mix, for criterion.
pub fn time_mixed<M: Medium, S: Map<M>>(rounds: &mut SetRounds<M, S>, count: u64) -> Duration {
    let batches = count.div_ceil(BATCH as u64);
    let start = Stopwatch::start();
    (0..batches).for_each(|_| rounds.mixed());
    start.elapsed().mul_f64(count as f64 / (batches * BATCH as u64) as f64)
}
