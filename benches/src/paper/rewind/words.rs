//! Not in the paper: what a transaction of the one-fence engine costs, in floors.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use durix_pmem::backing::{FileBacking, HeapBacking};
use durix_pmem::{Bits, Counting, Hardware, Medium, Off, Op, Pool, PoolOptions, Session, Word};
use durix_rewind::engine::{Cell, Engine};

use super::micro::figure;
use crate::interleave::{Contestant, Stopwatch, interleave_telling};
use crate::paper::report::{Claim, Form, Panel, Point};
use crate::paper::{Context, Error, Figure, Measured};
use crate::place::Place;
use crate::workload::medium;

pub(in crate::paper) const FIGURE: Figure =
    figure("rewind-words", "a transaction of the one-fence engine by its words, in floors", run);

/// Words that are drawn from.
const WORDS: u64 = 1 << 20;
/// Words of a transaction, with the goal and the best peer of the issue, in floors.
const SIZES: [(u64, f64, &str); 4] = [(1, 1.1, "1.1"), (4, 1.2, "1.4"), (16, 2.0, "2.4"), (64, 4.5, "5.4")];
/// Transactions of a round.
const TRANSACTIONS: u64 = 512;
/// Bytes that the floor goes over.
const FLOOR: u64 = 64 << 20;

fn pool_options() -> PoolOptions {
    PoolOptions::new().initial_size(96 << 20).max_size(512 << 20).assume_pmem(true)
}

/// Words in a pool, and the engine.
struct Words<M: Medium> {
    name: String,
    tm: Arc<Engine<M>>,
    session: Session<M>,
    first: u64,
    size: u64,
    random: u64,
}

impl<M: Medium> Words<M> {
    fn new(pool: &Pool<M>, size: u64) -> Result<Self, Error> {
        let tm = pool.open_structure::<Engine<M>>("tm", &Default::default())?;
        let mut session = pool.session()?;
        let op = session.enter()?;
        // It goes with the pool, which has no name.
        let reserved = pool.space().reserve_extent(&op, tm.root().owner(), WORDS * 8)?;
        let first = reserved.off();
        std::mem::forget(reserved);
        touch(&op, first, WORDS * 8);
        drop(op);
        Ok(Words { name: format!("{size} words"), tm, session, first, size, random: 88_172_645_463_325_252 })
    }

    /// Transactions on random words. What trimming takes is in it, whenever a log is long enough.
    fn transactions(&mut self, count: u64) -> Result<(), Error> {
        let Words { tm, session, first, size, random, .. } = self;
        for _ in 0..count {
            let mut drawn = *random;
            tm.transaction(session, |tx| {
                drawn = *random;
                for _ in 0..*size {
                    drawn ^= drawn << 13;
                    drawn ^= drawn >> 7;
                    drawn ^= drawn << 17;
                    tx.set(Cell::<u64>::at(Off::new(*first + drawn % WORDS * 8)), u64::from_bits(drawn))?;
                }
                Ok::<_, durix_rewind::engine::Error>(())
            })?;
            *random = drawn;
        }
        Ok(())
    }
}

impl<M: Medium> Contestant<1> for Words<M> {
    fn name(&self) -> &str {
        &self.name
    }
    fn round(&mut self) -> [f64; 1] {
        let start = Stopwatch::start();
        self.transactions(TRANSACTIONS).expect("a log with room");
        [start.elapsed().as_nanos() as f64 / TRANSACTIONS as f64]
    }
}

/// Stores to every page, so that the first touch of a page, which the kernel answers, is not in the time of whoever comes there first.
fn touch<M: Medium>(op: &Op<'_, M>, first: u64, bytes: u64) {
    const PAGE: usize = 4096;
    (first..first + bytes).step_by(PAGE).for_each(|off| op.store(op.at(Off::<Word>::new(off)), 0, Relaxed));
}

/// A store, a write-back and a fence over successive lines.
pub(in crate::paper) struct Floor<M: Medium> {
    session: Session<M>,
    first: u64,
    next: u64,
    bytes: u64,
}

impl<M: Medium> Floor<M> {
    /// Over so many bytes of a pool, a power of two, which stay its own.
    pub(in crate::paper) fn new(pool: &Pool<M>, bytes: u64) -> Result<Self, Error> {
        let mut session = pool.session()?;
        let owner = pool.open_structure::<Engine<M>>("floor", &Default::default())?.root().owner();
        // It goes with the pool, which has no name.
        let op = session.enter()?;
        let reserved = pool.space().reserve_extent(&op, owner, bytes)?;
        let first = reserved.off();
        std::mem::forget(reserved);
        touch(&op, first, bytes);
        drop(op);
        Ok(Floor { session, first, next: 0, bytes })
    }
}

const ONE: &str = "floor";

impl<M: Medium> Contestant<1> for Floor<M> {
    fn name(&self) -> &str {
        ONE
    }
    fn round(&mut self) -> [f64; 1] {
        let op = self.session.enter().expect("an open pool");
        let start = Stopwatch::start();
        for _ in 0..TRANSACTIONS {
            let word = op.at(Off::<Word>::new(self.first + self.next % self.bytes));
            op.store(word, self.next, Relaxed);
            op.persist(word);
            self.next += 64;
        }
        [start.elapsed().as_nanos() as f64 / TRANSACTIONS as f64]
    }
}

fn run(context: &Context<'_>) -> Result<Measured, Error> {
    let rounds = if context.quick { 15 } else { 101 };
    context.expect(1, rounds);
    let notes = vec![
        "processor time of the thread: locking, storing in place and trimming are in it; the floor is a store, its write-back and a \
         fence over successive lines of 64 MiB"
            .into(),
        "peers: Quadra as measured outside of this repository".into(),
    ];
    let mut measured = Measured { panels: Vec::new(), claims: Vec::new(), notes };
    measured.panels.push(counts(context)?);
    for place in &context.places {
        context.now(format!("transactions, {}", place.pages));
        let x = SIZES.map(|(size, ..)| size.to_string()).to_vec();
        let how =
            format!("medians of {rounds} interleaved rounds of {TRANSACTIONS} transactions, ratios within rounds");
        let panel = Panel::new("transactions on random words", place, medium().describe(), how);
        let mut panel = panel.axes("words a transaction", x, "floors", Form::Lines);
        let pools = SIZES.map(|_| new_pool(place)).into_iter().collect::<Result<Vec<_>, _>>()?;
        let mut all: Vec<Box<dyn Contestant<1> + '_>> = Vec::new();
        for ((size, ..), pool) in SIZES.into_iter().zip(&pools) {
            all.push(Box::new(Words::new(pool, size)?));
        }
        let below = new_pool(place)?;
        all.push(Box::new(Floor::new(&below, FLOOR)?));
        let outcomes = interleave_telling(&mut all, 3, rounds, &mut || context.tick());
        let floor = &outcomes.last().expect("the floor is the last").phases[0];
        for (at, ((size, goal, peer), outcome)) in SIZES.into_iter().zip(&outcomes).enumerate() {
            let ratio = outcome.phases[0].ratio_to(floor);
            panel.set("one-fence engine", at, Point::nanoseconds(&ratio));
            measured.claims.push(Claim {
                what: format!("{size} words, {}", place.pages),
                paper: format!("Quadra {peer}; goal {goal:.1}"),
                ours: format!("{:.2} floors of {:.0} ns", ratio.median(), floor.median()),
                holds: Some(ratio.median() <= goal),
            });
        }
        drop(all);
        measured.panels.push(panel);
    }
    Ok(measured)
}

fn new_pool(place: &Place) -> Result<Pool<Hardware>, Error> {
    let path = place.unused_path();
    let pool = pool_options().create_on(FileBacking::create(&path)?, medium());
    let _ = std::fs::remove_file(&path);
    Ok(pool?)
}

/// Exact counts, growth and trimming included.
fn counts(context: &Context<'_>) -> Result<Panel, Error> {
    const COUNTED: u64 = 20_000;
    let x = SIZES.map(|(size, ..)| size.to_string()).to_vec();
    let how = format!("exact, {COUNTED} transactions; growth and trimming included");
    let panel = Panel::new("write-backs and fences a transaction", &context.places[0], "counting", how);
    let mut panel = panel.axes("words a transaction", x, "a transaction", Form::Bars);
    for (at, (size, ..)) in SIZES.into_iter().enumerate() {
        let counting = Counting::new(Hardware::PAGE_CACHE);
        let pool = pool_options().create_on(HeapBacking::new(256 << 20), counting)?;
        let mut words = Words::new(&pool, size)?;
        let before = counting.counts();
        words.transactions(COUNTED)?;
        let counts = counting.counts() - before;
        panel.set("write-backs", at, Point::exact(counts.write_backs as f64 / COUNTED as f64));
        panel.set("fences", at, Point::exact(counts.fences as f64 / COUNTED as f64));
    }
    Ok(panel)
}
