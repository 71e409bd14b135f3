//! Not in a paper: what the facade costs. A typed map beside the bare tree below it.
//!
//! Both are the same tree: the bare calls go to the `Masstree` that the database has opened. So both have the same nodes, the same
//! pages and the same depth, and each round asks for other keys.

use std::hint::black_box;
use std::ops::{Bound, ControlFlow};
use std::sync::Arc;

use durix::{Db, OrderedHandle, OrderedMap, Value};
use durix_incll::Masstree;
use durix_pmem::backing::FileBacking;
use durix_pmem::{Medium, PoolOptions, Session};

use super::report::{Claim, Form, Panel, Point};
use super::{Context, Error, Figure, Measured};
use crate::interleave::{Contestant, Outcome, Stopwatch, interleave_telling};
use crate::place::Place;
use crate::workload::medium;

pub(super) const FIGURE: Figure = Figure {
    name: "facade-cost",
    title: "a handle to a typed map beside the bare tree: get, insert, scan of 10 (not in a paper)",
    source: "none: a measurement of this project",
    keys: Some("keys of each map; 2 million unless set, with --quick, too"),
    run,
};

/// What is timed, in order.
const CALLS: [&str; 3] = ["get", "insert", "scan of 10"];
/// Pairs of a scan.
const SCAN: usize = 10;
/// Calls of the bare tree within one operation.
const BATCH: usize = 64;
/// What part of the bare tree's speed the facade is to have.
const GOAL: f64 = 0.9;

/// Key number `i`: spread over all 64 bits, different for each `i`.
fn key(i: u64) -> u64 {
    let mut z = i.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    z = (z ^ z >> 32).wrapping_mul(0xd6e8_feb8_6659_fd93);
    z ^ z >> 32
}

/// How many calls of each sort a round has.
#[derive(Clone, Copy)]
struct Plan {
    gets: usize,
    inserts: usize,
    scans: usize,
}

/// A value of `N` bytes, the first of which tell its key.
fn value_of<const N: usize>(key: u64) -> [u8; N] {
    let mut value = [0x5a; N];
    value[..8].copy_from_slice(&key.to_le_bytes());
    value
}

/// A database with one map, and the tree below it.
struct World<const N: usize> {
    db: Db,
    map: OrderedMap<u64, [u8; N]>,
    tree: Arc<Masstree>,
}

impl<const N: usize> World<N>
where
    [u8; N]: Value,
{
    fn new(place: &Place, most_keys: u64) -> Result<Self, Error> {
        let path = place.unused_path();
        let room = most_keys * (N as u64 + 72) * 3 / 2 + (64 << 20);
        let options = PoolOptions::new().initial_size(room).assume_pmem(true);
        let pool = options.create_on(FileBacking::create(&path)?, medium());
        let _ = std::fs::remove_file(&path);
        let db = Db::builder().no_background_threads().over(pool?)?;
        let map = db.ordered_map("cost")?;
        let tree = Masstree::open(db.pool(), "cost")?;
        Ok(World { db, map, tree })
    }

    /// Inserts the first `keys` keys.
    fn fill(&self, bare: &mut Bare<'_>, keys: u64) -> Result<(), Error> {
        for first in (0..keys).step_by(1 << 14) {
            let piece: Vec<u64> = (first..(first + (1 << 14)).min(keys)).map(key).collect();
            Access::<N>::insert(bare, &piece);
            self.db.sync()?;
        }
        Ok(())
    }
}

/// One way to the tree, in rounds. `NEXT` is how many ways there are: each inserts every `NEXT`-th new key.
struct Route<'w, A: Access<N>, const N: usize> {
    access: A,
    world: &'w World<N>,
    plan: Plan,
    /// Keys that are there for sure.
    keys: u64,
    /// The next new key, and how far apart this way's new keys are.
    fresh: u64,
    ways: u64,
    /// Numbers of the keys that a round gets and scans from.
    random: u64,
}

/// What is timed: many calls of a sort.
trait Access<const N: usize> {
    const NAME: &'static str;
    fn get(&mut self, keys: &[u64]);
    fn insert(&mut self, keys: &[u64]);
    fn scan(&mut self, starts: &[u64]);
}

/// The tree's own calls, many in one operation.
struct Bare<'w> {
    tree: &'w Masstree,
    session: Session,
}

impl<const N: usize> Access<N> for Bare<'_> {
    const NAME: &'static str = "bare tree";

    #[inline(never)]
    fn get(&mut self, keys: &[u64]) {
        let mut bytes = Vec::with_capacity(N);
        for batch in keys.chunks(BATCH) {
            let op = self.session.enter().expect("an open pool");
            for key in batch {
                let value = self.tree.get(&op, &key.to_be_bytes()).expect("a sound tree").expect("a key that is there");
                value.read_into(&mut bytes);
                assert!(bytes.len() == N && bytes[..8] == key.to_le_bytes());
            }
        }
    }

    #[inline(never)]
    fn insert(&mut self, keys: &[u64]) {
        for batch in keys.chunks(BATCH) {
            let op = self.session.enter().expect("an open pool");
            for key in batch {
                let is_new = self.tree.insert(&op, &key.to_be_bytes(), &value_of::<N>(*key)).expect("room");
                assert!(is_new);
            }
        }
    }

    #[inline(never)]
    fn scan(&mut self, starts: &[u64]) {
        let mut bytes = Vec::with_capacity(N);
        for batch in starts.chunks(BATCH) {
            let op = self.session.enter().expect("an open pool");
            for start in batch {
                let mut left = SCAN;
                let visit = |key: &[u8], value: durix_incll::Value<'_, _>| {
                    value.read_into(&mut bytes);
                    let key = u64::from_be_bytes(key.try_into().expect("eight bytes"));
                    assert!(bytes.len() == N && bytes[..8] == key.to_le_bytes());
                    left -= 1;
                    if left > 0 { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
                };
                let from = start.to_be_bytes();
                self.tree
                    .range_expecting(&op, Bound::Included(&from), Bound::Unbounded, SCAN, visit)
                    .expect("a sound tree");
                black_box(left);
            }
        }
    }
}

/// A handle.
struct Typed<const N: usize> {
    handle: OrderedHandle<u64, [u8; N]>,
}

impl<const N: usize> Access<N> for Typed<N>
where
    [u8; N]: Value,
{
    const NAME: &'static str = "handle";

    #[inline(never)]
    fn get(&mut self, keys: &[u64]) {
        for key in keys {
            let value = self.handle.get(key).expect("a sound tree").expect("a key that is there");
            assert!(value[..8] == key.to_le_bytes());
            black_box(&value);
        }
    }

    #[inline(never)]
    fn insert(&mut self, keys: &[u64]) {
        for key in keys {
            assert!(self.handle.insert(key, &value_of(*key)).expect("room"));
        }
    }

    #[inline(never)]
    fn scan(&mut self, starts: &[u64]) {
        for start in starts {
            for pair in self.handle.range(*start..).expect("a range").take(SCAN) {
                let (key, value) = pair.expect("a sound tree");
                assert!(value[..8] == key.to_le_bytes());
                black_box(&value);
            }
        }
    }
}

impl<'w, A: Access<N>, const N: usize> Route<'w, A, N>
where
    [u8; N]: Value,
{
    /// The only way to a tree of so many keys.
    fn new(access: A, world: &'w World<N>, keys: u64) -> Self {
        let plan = Plan { gets: 0, inserts: 0, scans: 0 };
        Route { access, world, plan, keys, fresh: keys, ways: 1, random: 0 }
    }

    fn existing(&mut self, count: usize) -> Vec<u64> {
        let pick = |random: u64| key(((u128::from(key(random)) * u128::from(self.keys)) >> 64) as u64);
        let from = self.random;
        self.random += count as u64;
        (from..self.random).map(pick).collect()
    }
}

/// Fills a tree with `keys` keys and makes `calls` calls of one sort on one way, `bare` or `handle`: nothing else, for profilers and for
/// counting instructions. Returns nanoseconds a call; `None` for a way or a sort of calls that there is not.
///
/// # Errors
/// What making the pool says.
pub fn alone<const N: usize>(
    place: &Place,
    (way, call): (&str, &str),
    keys: u64,
    calls: usize,
) -> Result<Option<f64>, Error>
where
    [u8; N]: Value,
{
    let world = World::<N>::new(place, keys + calls as u64)?;
    let mut bare = Bare { tree: &world.tree, session: world.db.pool().session()? };
    world.fill(&mut bare, keys)?;
    Ok(match way {
        "bare" => one_call(Route::new(bare, &world, keys), call, calls),
        "handle" => one_call(Route::new(Typed { handle: world.map.handle()? }, &world, keys), call, calls),
        _ => None,
    })
}

fn one_call<A: Access<N>, const N: usize>(mut way: Route<'_, A, N>, call: &str, calls: usize) -> Option<f64>
where
    [u8; N]: Value,
{
    let existing = way.existing(calls);
    match call {
        "get" => Some(timed(&existing, |keys| way.access.get(keys))),
        "scan" => Some(timed(&existing, |starts| way.access.scan(starts))),
        "insert" => {
            let fresh: Vec<u64> = (0..calls as u64).map(|at| key(way.keys + at)).collect();
            Some(timed(&fresh, |keys| way.access.insert(keys)))
        }
        _ => None,
    }
}

/// Nanoseconds a call.
fn timed(keys: &[u64], calls: impl FnOnce(&[u64])) -> f64 {
    let start = Stopwatch::start();
    calls(keys);
    start.elapsed().as_nanos() as f64 / keys.len() as f64
}

impl<A: Access<N>, const N: usize> Contestant<3> for Route<'_, A, N>
where
    [u8; N]: Value,
{
    fn name(&self) -> &str {
        A::NAME
    }

    fn round(&mut self) -> [f64; 3] {
        let Plan { gets, inserts, scans } = self.plan;
        let (gets, scans) = (self.existing(gets), self.existing(scans));
        let fresh: Vec<u64> = (0..inserts as u64).map(|at| key(self.fresh + at * self.ways)).collect();
        self.fresh += inserts as u64 * self.ways;
        let get = timed(&gets, |keys| self.access.get(keys));
        let insert = timed(&fresh, |keys| self.access.insert(keys));
        // The checkpoint is the same for all, and nobody's.
        self.world.db.sync().expect("a checkpoint");
        let scan = timed(&scans, |starts| self.access.scan(starts));
        [get, insert, scan]
    }
}

fn run(context: &Context<'_>) -> Result<Measured, Error> {
    let rounds = if context.quick { 9 } else { 31 };
    context.expect(2, rounds);
    let notes = vec![format!(
        "processor time of one thread; both ways lead to the same tree. The bare tree makes {BATCH} calls in an operation, the handle \
         each call in an operation of its own. Checkpoints are taken between the timed calls. Values are copied out of the tree and \
         looked at"
    )];
    let mut measured = Measured { panels: Vec::new(), claims: Vec::new(), notes };
    for place in &context.places {
        size::<8>(context, place, rounds, &mut measured)?;
        size::<100>(context, place, rounds, &mut measured)?;
    }
    Ok(measured)
}

/// Measures values of `N` bytes.
fn size<const N: usize>(
    context: &Context<'_>,
    place: &Place,
    rounds: usize,
    measured: &mut Measured,
) -> Result<(), Error>
where
    [u8; N]: Value,
{
    const WAYS: u64 = 2;
    let keys = context.keys_or(2_000_000);
    let plan = if context.quick {
        Plan { gets: 64 << 10, inserts: 16 << 10, scans: 16 << 10 }
    } else {
        Plan { gets: 256 << 10, inserts: 32 << 10, scans: 64 << 10 }
    };
    let point = format!("values of {N} bytes, {}", place.pages);
    context.now(point.clone());
    context.step("filling");
    let world = World::<N>::new(place, keys + WAYS * (rounds as u64 + 1) * plan.inserts as u64)?;
    let mut bare = Bare { tree: &world.tree, session: world.db.pool().session()? };
    world.fill(&mut bare, keys)?;
    context.now(point);
    let typed = Typed { handle: world.map.handle()? };
    let mut ways: Vec<Box<dyn Contestant<3> + '_>> = vec![
        Box::new(Route { plan, ways: WAYS, ..Route::new(bare, &world, keys) }),
        Box::new(Route { plan, ways: WAYS, fresh: keys + 1, random: 1 << 40, ..Route::new(typed, &world, keys) }),
    ];
    let outcomes = interleave_telling(&mut ways, 1, rounds, &mut || context.tick());
    report::<N>(place, keys, &outcomes, measured);
    Ok(())
}

fn report<const N: usize>(place: &Place, keys: u64, outcomes: &[Outcome<3>], measured: &mut Measured) {
    let how = "medians of interleaved rounds, ratios within rounds";
    let panel = |what: &str, y: &str| {
        let title = format!("{keys} keys of 8 bytes, values of {N} bytes: {what}");
        let x = CALLS.map(str::to_owned).to_vec();
        Panel::new(title, place, medium().describe(), how).axes("call", x, y, Form::Bars)
    };
    let mut speeds = panel("speed", "M calls/s");
    let mut ratios = panel("beside the bare tree", "of its speed");
    for outcome in outcomes {
        for (at, series) in outcome.phases.iter().enumerate() {
            speeds.set(&outcome.name, at, Point::throughput(series));
            let ratio = outcomes[0].phases[at].ratio_to(series);
            ratios.set(&outcome.name, at, Point::nanoseconds(&ratio));
        }
    }
    for (at, call) in CALLS.into_iter().enumerate() {
        let ratio = outcomes[0].phases[at].ratio_to(&outcomes[1].phases[at]).median();
        measured.claims.push(Claim {
            what: format!("{call}, values of {N} bytes, {}", place.pages),
            paper: format!("goal {GOAL} of the bare tree's speed"),
            ours: format!("{ratio:.2} of {:.2} M/s", 1000.0 / outcomes[0].phases[at].median()),
            holds: Some(ratio >= GOAL),
        });
    }
    measured.panels.extend([speeds, ratios]);
}
