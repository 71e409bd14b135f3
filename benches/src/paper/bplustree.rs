//! Not in a paper as such: the B+-tree on the one-fence engine beside the other ordered kinds that are durable on return.

use std::ops::Bound;
use std::sync::Arc;

use durix::{Direction, Index, KeyRange};
use durix_pmem::backing::FileBacking;
use durix_pmem::{Hardware, Medium, Pool, PoolOptions, Session, Tick};

use super::report::{Form, Panel, Point};
use super::{Context, Error, Figure, Measured};
use crate::interleave::{Contestant, Stopwatch, interleave_telling};
use crate::place::Place;
use crate::workload::medium;

pub(super) const FIGURE: Figure = Figure {
    name: "bplustree",
    title: "the B+-tree of the one-fence engine beside the other ordered kinds that are durable on return",
    source: super::rewind::micro::SOURCE,
    keys: Some("keys that are there all the time; 1000000 unless given, quick 100000"),
    run,
};

/// The first is what the others are compared with.
const KINDS: [&str; 7] = ["bplustree", "dptree", "bst", "skiplist", "dptree-values", "bst-values", "skiplist-values"];
/// Calls of a round, of each sort; and pairs of a scan.
const CALLS: u64 = 1000;
const SCANNED: u64 = 50;
const SORTS: [&str; 5] = ["insert", "update", "get", "scan, a pair", "remove"];

/// An index with keys of 8 bytes in random order, of which the oldest are removed.
struct Kept {
    name: &'static str,
    pool: Pool<Hardware>,
    index: Arc<dyn Index<Hardware>>,
    session: Session<Hardware>,
    first: u64,
    next: u64,
    random: u64,
}

/// A bijection, so that keys are distinct.
fn scatter(mut x: u64) -> u64 {
    x ^= x >> 33;
    x = x.wrapping_mul(0xff51_afd7_ed55_8ccd);
    x ^= x >> 33;
    x = x.wrapping_mul(0xc4ce_b9fe_1a85_ec53);
    x ^ x >> 33
}

impl Kept {
    fn new(name: &'static str, place: &Place) -> Result<Self, Error> {
        let path = place.unused_path();
        let options = PoolOptions::new().initial_size(96 << 20).max_size(8 << 30).assume_pmem(true);
        let pool = options.create_on(FileBacking::create(&path)?, medium());
        let _ = std::fs::remove_file(&path);
        let pool = pool?;
        let index = durix::kind::named(name)?.open_or_create(&pool, "kept")?;
        let session = pool.session()?;
        Ok(Kept { name, pool, index, session, first: 0, next: 0, random: 7 })
    }

    /// A key that is there.
    fn any(&mut self) -> [u8; 8] {
        self.random = self.random.wrapping_add(0x9E37_79B9_7F4A_7C15);
        scatter(self.first + scatter(self.random) % (self.next - self.first)).to_be_bytes()
    }

    fn call(&mut self, sort: usize) -> durix::Result<()> {
        match sort {
            0 => {
                let (key, value) = (scatter(self.next).to_be_bytes(), self.next.to_le_bytes());
                self.next += 1;
                self.index.insert(&self.session.enter()?, &key, &value)?;
            }
            1 => {
                let (key, value) = (self.any(), self.random.to_le_bytes());
                self.index.insert(&self.session.enter()?, &key, &value)?;
            }
            2 => {
                let (key, mut value) = (self.any(), Vec::with_capacity(8));
                let found = self.index.get(&self.session.enter()?, &key, &mut value)?;
                assert!(found && value.len() == 8, "{} has lost a key", self.name);
            }
            3 => {
                let key = self.any();
                let op = self.session.enter()?;
                let from = KeyRange::new(Bound::Included(&key[..]), Bound::Unbounded);
                let ordered = self.index.as_ordered().expect("an ordered kind");
                let mut cursor = ordered.range(&from, Direction::Forward);
                for _ in 0..SCANNED {
                    let Some((_, value)) = cursor.next(&op)? else { break };
                    std::hint::black_box(value);
                }
            }
            _ => {
                let key = scatter(self.first).to_be_bytes();
                self.first += 1;
                self.index.remove(&self.session.enter()?, &key)?;
            }
        }
        Ok(())
    }

    /// The services of the pool, in this thread: trimming is a part of what an update costs.
    fn serve(&mut self) -> durix::Result<()> {
        while self.pool.tick(&mut self.session)? == Tick::Worked {}
        Ok(())
    }

    fn calls(&mut self, sort: usize, calls: u64) -> durix::Result<()> {
        (0..calls).try_for_each(|_| self.call(sort))?;
        self.serve()
    }
}

impl Contestant<5> for Kept {
    fn name(&self) -> &str {
        self.name
    }
    fn round(&mut self) -> [f64; 5] {
        std::array::from_fn(|sort| {
            let (calls, each) = if sort == 3 { (CALLS / 10, SCANNED) } else { (CALLS, 1) };
            let start = Stopwatch::start();
            self.calls(sort, calls).expect("a pool with room");
            start.elapsed().as_nanos() as f64 / (calls * each) as f64
        })
    }
}

fn run(context: &Context<'_>) -> Result<Measured, Error> {
    let keys = context.keys_or(if context.quick { 100_000 } else { 1_000_000 });
    let rounds = if context.quick { 9 } else { 41 };
    context.expect(1, rounds);
    let notes = vec![
        "processor time of the thread; services of the pool run in it. One thread: writers of one B+-tree take turns, those of the \
         other kinds do not"
            .into(),
    ];
    let mut measured = Measured { panels: Vec::new(), claims: Vec::new(), notes };
    for place in &context.places {
        context.now(format!("{keys} keys, {}", place.pages));
        let mut kept = KINDS.into_iter().map(|name| Kept::new(name, place)).collect::<Result<Vec<_>, _>>()?;
        // In turn, so that nobody has the first pages for itself.
        for _ in 0..keys.div_ceil(CALLS) {
            kept.iter_mut().try_for_each(|kept| kept.calls(0, CALLS))?;
        }
        let mut all: Vec<Box<dyn Contestant<5>>> = Vec::new();
        kept.into_iter().for_each(|kept| all.push(Box::new(kept)));
        let outcomes = interleave_telling(&mut all, 1, rounds, &mut || context.tick());
        let panel = |title: &str, y: &str| {
            let how =
                format!("medians of {rounds} interleaved rounds of {CALLS} calls of each sort, ratios within rounds");
            let title = format!("{keys} keys of 8 bytes in random order: {title}");
            let panel = Panel::new(title, place, medium().describe(), how);
            panel.axes("call", SORTS.map(str::to_owned).to_vec(), y, Form::Bars)
        };
        let (mut times, mut ratios) = (panel("time", "ns"), panel("beside the B+-tree", "times its time"));
        for outcome in &outcomes {
            for (at, series) in outcome.phases.iter().enumerate() {
                times.set(&outcome.name, at, Point::nanoseconds(series));
                let ratio = series.ratio_to(&outcomes[0].phases[at]);
                ratios.set(&outcome.name, at, Point::nanoseconds(&ratio));
            }
        }
        measured.panels.extend([times, ratios]);
    }
    Ok(measured)
}
