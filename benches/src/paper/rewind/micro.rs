//! What the figures of REWIND's sensitivity analysis (VLDB'15, section 5.1) share: a table of words that transactions update, and
//! the same table without recoverability.

use std::hint::black_box;
use std::sync::Arc;

use durix_pmem::backing::{FileBacking, HeapBacking};
use durix_pmem::{Counting, Hardware, Medium, Off, Pool, PoolOptions, Session, Word};
use durix_rewind::{Layers, LogKind, Options, Policy, TransactionManager, Tx};

use crate::interleave::{Contestant, Stopwatch};
use crate::paper::figure::{Context, Error, Figure, Measured};
use crate::place::Place;
use crate::workload::Random;

/// Where all of it stands in the paper.
pub(in crate::paper) const SOURCE: &str = "Chatzistergiou, Cintra, Viglas: REWIND: Recovery Write-Ahead System for In-Memory Non-Volatile Data-Structures (VLDB'15)";

/// What a reader has to know of the comparator.
pub(in crate::paper) const CONTRACT: &str = "the non-recoverable table: each update is stored, written back and fenced, so it is persistent, \
     but no set of updates is atomic; paper: emulated memory with 150 ns a write, here the machine's own";

/// Words of the table.
const WORDS: u64 = 64 << 10;

/// A figure of section 5.
pub(in crate::paper) const fn figure(
    name: &'static str,
    title: &'static str,
    run: fn(&Context<'_>) -> Result<Measured, Error>,
) -> Figure {
    Figure { name, title, source: SOURCE, keys: None, run }
}

/// The configurations of figure 3, by the paper's names, and the group of records that is the default here.
pub(in crate::paper) fn configurations() -> Vec<(&'static str, Options)> {
    let optimized = Options::default().log(LogKind::Optimized);
    vec![
        ("1L-NFP", optimized),
        ("1L-FP", optimized.policy(Policy::Force)),
        ("2L-NFP", optimized.layers(Layers::Two)),
        ("2L-FP", optimized.layers(Layers::Two).policy(Policy::Force)),
        ("Batch 8 1L-NFP", Options::default()),
        ("Batch 8 2L-NFP", Options::default().layers(Layers::Two)),
    ]
}

/// Work that has nothing to do with memory.
pub(in crate::paper) fn compute(turns: u64) {
    let mut x = black_box(turns);
    for _ in 0..turns {
        x = black_box(x.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ x >> 29);
    }
    black_box(x);
}

/// Nanoseconds of one turn of [`compute`].
pub(in crate::paper) fn turn_ns() -> f64 {
    let turns = 4_000_000;
    let start = Stopwatch::start();
    compute(turns);
    start.elapsed().as_nanos() as f64 / turns as f64
}

/// A table in a pool, and the log of its transactions.
pub(in crate::paper) struct Table<M: Medium> {
    pub(in crate::paper) tm: Arc<TransactionManager<M>>,
    pub(in crate::paper) session: Session<M>,
    pub(in crate::paper) other: Session<M>,
    pub(in crate::paper) options: Options,
    pool: Pool<M>,
    first: Off<Word>,
    random: Random,
}

impl<M: Medium> Table<M> {
    fn within(pool: Pool<M>, options: Options) -> Result<Self, Error> {
        let tm = TransactionManager::open(&pool, "log", &options)?;
        let (mut session, other) = (pool.session()?, pool.session()?);
        let op = session.enter()?;
        // It goes with the pool, which has no name.
        let reserved = pool.space().reserve_extent(&op, tm.root().owner(), WORDS * 8)?;
        let first = Off::new(reserved.off());
        std::mem::forget(reserved);
        drop(op);
        Ok(Table { tm, session, other, options, pool, first, random: Random(88_172_645_463_325_252) })
    }

    /// In a file of `place` that has no name.
    pub(in crate::paper) fn at(place: &Place, medium: M, options: Options) -> Result<Self, Error> {
        let path = place.unused_path();
        let pool = pool_options().create_on(FileBacking::create(&path)?, medium);
        let _ = std::fs::remove_file(&path);
        Table::within(pool?, options)
    }

    /// The next word: anywhere.
    pub(in crate::paper) fn next(&mut self) -> (Off<Word>, u64) {
        let random = self.random.next();
        (self.first.byte_add(random % WORDS * 8), random)
    }

    /// Drops the log as a dead process drops it, and opens it again. Returns milliseconds.
    pub(in crate::paper) fn reopen(&mut self) -> Result<f64, Error> {
        // The name is free once the first log is gone.
        let aside = TransactionManager::open(&self.pool, "aside", &self.options)?;
        drop(std::mem::replace(&mut self.tm, aside));
        let start = Stopwatch::start();
        self.tm = TransactionManager::open(&self.pool, "log", &self.options)?;
        Ok(start.elapsed().as_secs_f64() * 1e3)
    }
}

fn pool_options() -> PoolOptions {
    PoolOptions::new().initial_size(64 << 20).max_size(512 << 20).assume_pmem(true)
}

/// One transaction of so many updates a round, each after some computation.
pub(in crate::paper) struct Logged<M: Medium> {
    pub(in crate::paper) name: String,
    pub(in crate::paper) table: Table<M>,
    pub(in crate::paper) updates: u64,
    pub(in crate::paper) turns: u64,
}

impl<M: Medium> Logged<M> {
    fn run(&mut self) -> Result<f64, durix_rewind::Error> {
        let words: Vec<_> = (0..self.updates).map(|_| self.table.next()).collect();
        let Table { tm, session, .. } = &mut self.table;
        let start = Stopwatch::start();
        let mut tx = tm.begin(session)?;
        for (word, value) in words {
            compute(self.turns);
            tx.set(word, value)?;
        }
        tx.commit()?;
        let time = start.elapsed().as_nanos() as f64 / self.updates as f64;
        // As the paper does, clearing the log is not charged to no-force.
        tm.checkpoint(session)?;
        Ok(time)
    }
}

impl<M: Medium> Contestant<1> for Logged<M> {
    fn name(&self) -> &str {
        &self.name
    }
    fn round(&mut self) -> [f64; 1] {
        [self.run().expect("a log with room")]
    }
}

/// The same without recoverability.
pub(in crate::paper) struct Plain<M: Medium> {
    pub(in crate::paper) table: Table<M>,
    pub(in crate::paper) updates: u64,
    pub(in crate::paper) turns: u64,
}

/// Its name.
pub(in crate::paper) const PLAIN: &str = "non-recoverable";

impl<M: Medium> Contestant<1> for Plain<M> {
    fn name(&self) -> &str {
        PLAIN
    }
    fn round(&mut self) -> [f64; 1] {
        let words: Vec<_> = (0..self.updates).map(|_| self.table.next()).collect();
        let start = Stopwatch::start();
        for (word, value) in words {
            compute(self.turns);
            let op = self.table.session.enter().expect("an open pool");
            let word = op.at(word);
            op.store(word, value, std::sync::atomic::Ordering::Release);
            op.persist(word);
        }
        [start.elapsed().as_nanos() as f64 / self.updates as f64]
    }
}

/// Write-backs and fences of one update in a transaction of `updates`, commit included: exact.
pub(in crate::paper) fn counted(options: Options, updates: u64) -> Result<(f64, f64), Error> {
    let counting = Counting::new(Hardware::PAGE_CACHE);
    let pool = pool_options().create_on(HeapBacking::new(64 << 20), counting)?;
    let mut table = Table::within(pool, options)?;
    let mut spent = (0.0, 0.0);
    // The second round finds the log's memory there.
    for _ in 0..2 {
        let words: Vec<_> = (0..updates).map(|_| table.next()).collect();
        let before = counting.counts();
        let write = |tx: &mut Tx<'_, _>| words.iter().try_for_each(|(word, value)| tx.set(*word, *value));
        table.tm.transaction(&mut table.session, write)?;
        let counts = counting.counts() - before;
        spent = (counts.write_backs as f64 / updates as f64, counts.fences as f64 / updates as f64);
        table.tm.checkpoint(&mut table.session)?;
    }
    Ok(spent)
}
