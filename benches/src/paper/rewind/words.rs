//! Not in the paper: what a transaction of the one-fence engine costs, in floors. A round is as many transactions as lie between
//! [`TRIMS`] trims of the log, so that trimming is in the time of each round, as often as it comes. Beside it runs what no engine can do
//! without: a log, a fence and the stores, without locks, atomicity of several words, write-back of the words and trimming.

use std::sync::Arc;
use std::sync::atomic::Ordering::{Relaxed, Release};

use durix_pmem::backing::{FileBacking, HeapBacking};
use durix_pmem::{Bits, Counting, Hardware, LINE, Medium, Off, Op, Pool, PoolOptions, Root, Session, Word};
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
pub(in crate::paper) const SIZES: [(u64, f64, &str); 4] =
    [(1, 1.1, "1.1"), (4, 1.2, "1.4"), (16, 2.0, "2.4"), (64, 4.5, "5.4")];
/// Trims of a round.
const TRIMS: u64 = 4;
/// A log that does not trim within so many transactions does not trim at all.
const PATIENCE: u64 = 1 << 22;
/// Fences beyond the one of the commit: for growth and trimming.
const MORE_FENCES: f64 = 0.01;
/// Bytes of the bare log, about as many as the log of the engine has when it is trimmed.
const BARE_LOG: u64 = 1 << 20;
/// Persists of a round of the floor, where nothing else is said.
const PERSISTS: u64 = 512;
/// Bytes that the floor goes over.
const FLOOR: u64 = 64 << 20;

fn pool_options() -> PoolOptions {
    PoolOptions::new().initial_size(96 << 20).max_size(512 << 20).assume_pmem(true)
}

/// Words in a pool, and the engine.
pub(in crate::paper) struct Words<M: Medium> {
    name: String,
    tm: Arc<Engine<M>>,
    session: Session<M>,
    first: u64,
    size: u64,
    random: u64,
    /// Transactions of a round.
    count: u64,
}

/// One after the other, from a seed that is not 0.
#[inline(always)]
pub(in crate::paper) fn next_of(mut drawn: u64) -> u64 {
    drawn ^= drawn << 13;
    drawn ^= drawn >> 7;
    drawn ^ drawn << 17
}

const SEED: u64 = 88_172_645_463_325_252;

/// So many bytes of a pool, all of them touched. They stay with the pool, which has no name.
fn take<M: Medium>((pool, owner): (&Pool<M>, &Root<M>), session: &mut Session<M>, bytes: u64) -> Result<u64, Error> {
    let op = session.enter()?;
    let reserved = pool.space().reserve_extent(&op, owner.owner(), bytes)?;
    let first = reserved.off();
    std::mem::forget(reserved);
    touch(&op, first, bytes);
    Ok(first)
}

impl<M: Medium> Words<M> {
    /// With rounds of [`TRIMS`] trims.
    pub(in crate::paper) fn new(pool: &Pool<M>, size: u64) -> Result<Self, Error> {
        let mut words = Words::unmeasured(pool, size)?;
        words.count = TRIMS * words.distance()?;
        Ok(words)
    }

    fn unmeasured(pool: &Pool<M>, size: u64) -> Result<Self, Error> {
        let tm = pool.open_structure::<Engine<M>>("tm", &Default::default())?;
        let mut session = pool.session()?;
        let first = take((pool, tm.root()), &mut session, WORDS * 8)?;
        Ok(Words { name: format!("{size} words"), tm, session, first, size, random: SEED, count: 0 })
    }

    /// Transactions between two trims, found by trying: a trim moves the watermark. The log has grown when this returns.
    fn distance(&mut self) -> Result<u64, Error> {
        let mut between = 0;
        // The first one comes after less than the others.
        for _ in 0..2 {
            let before = self.watermark()?;
            between = 0;
            while self.watermark()? == before {
                self.transactions(1)?;
                between += 1;
                assert!(between < PATIENCE, "{between} transactions of {} words, and no trim", self.size);
            }
        }
        Ok(between)
    }

    /// The number below which all commits are durable in place: the first word of the engine's root.
    fn watermark(&mut self) -> Result<u64, Error> {
        let op = self.session.enter()?;
        Ok(op.load(&self.tm.root().words(&op)[0], Relaxed))
    }

    /// Transactions on random words. What trimming takes is in it, whenever a log is long enough.
    fn transactions(&mut self, count: u64) -> Result<(), Error> {
        let Words { tm, session, first, size, random, .. } = self;
        transactions((tm, *first, *size), session, random, count)
    }

    /// What other sessions need for the same: the engine, where its words begin, and how many of them a transaction has.
    pub(in crate::paper) fn region(&self) -> (Arc<Engine<M>>, u64, u64) {
        (Arc::clone(&self.tm), self.first, self.size)
    }

    /// Transactions of a round.
    pub(in crate::paper) fn count(&self) -> u64 {
        self.count
    }
}

/// Transactions on random words, from a seed on.
pub(in crate::paper) fn transactions<M: Medium>(
    (tm, first, size): (&Engine<M>, u64, u64),
    session: &mut Session<M>,
    random: &mut u64,
    count: u64,
) -> Result<(), Error> {
    for _ in 0..count {
        let mut drawn = *random;
        tm.transaction(session, |tx| {
            drawn = *random;
            for _ in 0..size {
                drawn = next_of(drawn);
                tx.set(Cell::<u64>::at(Off::new(first + drawn % WORDS * 8)), u64::from_bits(drawn))?;
            }
            Ok::<_, durix_rewind::engine::Error>(())
        })?;
        *random = drawn;
    }
    Ok(())
}

impl<M: Medium> Contestant<1> for Words<M> {
    fn name(&self) -> &str {
        &self.name
    }
    fn round(&mut self) -> [f64; 1] {
        let start = Stopwatch::start();
        self.transactions(self.count).expect("a log with room");
        [start.elapsed().as_nanos() as f64 / self.count as f64]
    }
}

/// What is left without an engine: a record of the words goes to a log, one fence, then they are stored in place. Nothing recovers it.
struct Bare {
    name: String,
    session: Session<Hardware>,
    log: u64,
    next: u64,
    words: u64,
    size: u64,
    random: u64,
    count: u64,
}

impl Bare {
    fn new(pool: &Pool<Hardware>, size: u64, count: u64) -> Result<Self, Error> {
        let owner = pool.open_structure::<Engine<Hardware>>("bare", &Default::default())?;
        let mut session = pool.session()?;
        let words = take((pool, owner.root()), &mut session, WORDS * 8)?;
        let log = take((pool, owner.root()), &mut session, BARE_LOG)?;
        let name = format!("bare, {size} words");
        Ok(Bare { name, session, log, next: 0, words, size, random: SEED, count })
    }

    #[inline(always)]
    fn transaction(&mut self, number: u64) -> Result<(), Error> {
        let op = self.session.enter()?;
        // A head of two words, as the engine's records have, and two words for each.
        let lines = (2 + 2 * self.size).div_ceil(8);
        if (self.next + lines) * LINE as u64 > BARE_LOG {
            self.next = 0;
        }
        let (mut line, mut fill, mut drawn) = ([number, self.size, 0, 0, 0, 0, 0, 0], 2, self.random);
        let mut put = |line: &[u64; 8]| {
            let to: &[Word; 8] = op.at(Off::new(self.log + self.next * LINE as u64));
            op.store_words(to, line);
            op.write_back(to);
            self.next += 1;
        };
        for _ in 0..self.size {
            drawn = next_of(drawn);
            (line[fill], line[fill + 1]) = (self.words + drawn % WORDS * 8, drawn);
            fill += 2;
            if fill == line.len() {
                put(&line);
                fill = 0;
            }
        }
        if fill > 0 {
            put(&line);
        }
        op.fence();
        let mut drawn = self.random;
        for _ in 0..self.size {
            drawn = next_of(drawn);
            op.store(op.at(Off::<Word>::new(self.words + drawn % WORDS * 8)), drawn, Release);
        }
        self.random = drawn;
        Ok(())
    }
}

impl Contestant<1> for Bare {
    fn name(&self) -> &str {
        &self.name
    }
    fn round(&mut self) -> [f64; 1] {
        let start = Stopwatch::start();
        (0..self.count).try_for_each(|number| self.transaction(number)).expect("an open pool");
        [start.elapsed().as_nanos() as f64 / self.count as f64]
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
    persists: u64,
}

impl<M: Medium> Floor<M> {
    /// Over so many bytes of a pool, a power of two, which stay its own.
    pub(in crate::paper) fn new(pool: &Pool<M>, bytes: u64) -> Result<Self, Error> {
        let mut session = pool.session()?;
        let owner = pool.open_structure::<Engine<M>>("floor", &Default::default())?;
        let first = take((pool, owner.root()), &mut session, bytes)?;
        Ok(Floor { session, first, next: 0, bytes, persists: PERSISTS })
    }

    /// With so many persists a round.
    fn persists(self, persists: u64) -> Self {
        Floor { persists, ..self }
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
        for _ in 0..self.persists {
            let word = op.at(Off::<Word>::new(self.first + self.next % self.bytes));
            op.store(word, self.next, Relaxed);
            op.persist(word);
            self.next += 64;
        }
        [start.elapsed().as_nanos() as f64 / self.persists as f64]
    }
}

fn run(context: &Context<'_>) -> Result<Measured, Error> {
    let rounds = if context.quick { 15 } else { 101 };
    context.expect(1, rounds);
    let notes = vec![
        "processor time of the thread: locking, storing in place and trimming are in it; the floor is a store, its write-back and a \
         fence over successive lines of 64 MiB"
            .into(),
        "each record of the bare log begins on a line of its own, over 1 MiB again and again; it locks nothing, trims nothing, and does not write \
         the words back"
            .into(),
        "peers: Quadra as measured outside of this repository".into(),
    ];
    let mut measured = Measured { panels: Vec::new(), claims: Vec::new(), notes };
    counts(context, &mut measured)?;
    for place in &context.places {
        context.now(format!("transactions, {}", place.pages));
        let pools = SIZES.map(|_| new_pool(place)).into_iter().collect::<Result<Vec<_>, _>>()?;
        let (below, mut counts) = (new_pool(place)?, Vec::new());
        let mut all: Vec<Box<dyn Contestant<1> + '_>> = Vec::new();
        for ((size, ..), pool) in SIZES.into_iter().zip(&pools) {
            let words = Words::new(pool, size)?;
            counts.push(words.count);
            all.push(Box::new(words));
        }
        for ((size, ..), count) in SIZES.into_iter().zip(&counts) {
            // One pool for all of them, of which one runs at a time.
            all.push(Box::new(Bare::new(&below, size, *count)?));
        }
        all.push(Box::new(Floor::new(&below, FLOOR)?.persists(32 * PERSISTS)));
        let outcomes = interleave_telling(&mut all, 3, rounds, &mut || context.tick());
        drop(all);
        let how = format!(
            "medians of {rounds} interleaved rounds, each of {TRIMS} trims: {} transactions; ratios within rounds",
            counts.iter().map(u64::to_string).collect::<Vec<_>>().join(", ")
        );
        let panel = Panel::new("transactions on random words", place, medium().describe(), how);
        let x = SIZES.map(|(size, ..)| size.to_string()).to_vec();
        let mut panel = panel.axes("words a transaction", x, "floors", Form::Lines);
        let floor = &outcomes.last().expect("the floor is the last").phases[0];
        let (engine, bare) = outcomes.split_at(SIZES.len());
        for (at, (size, goal, peer)) in SIZES.into_iter().enumerate() {
            let [ratio, least] = [&engine[at], &bare[at]].map(|outcome| outcome.phases[0].ratio_to(floor));
            panel.set("one-fence engine", at, Point::nanoseconds(&ratio));
            panel.set("bare log, fence and stores", at, Point::nanoseconds(&least));
            measured.claims.push(Claim {
                what: format!("{size} words, {}", place.pages),
                paper: format!("Quadra {peer}; goal {goal:.1}"),
                ours: format!(
                    "{:.2} floors of {:.0} ns; bare log, fence and stores {:.2}",
                    ratio.median(),
                    floor.median(),
                    least.median()
                ),
                holds: Some(ratio.median() <= goal),
            });
        }
        measured.panels.push(panel);
    }
    Ok(measured)
}

pub(in crate::paper) fn new_pool(place: &Place) -> Result<Pool<Hardware>, Error> {
    let path = place.unused_path();
    let pool = pool_options().create_on(FileBacking::create(&path)?, medium());
    let _ = std::fs::remove_file(&path);
    Ok(pool?)
}

/// Exact counts, growth and trimming included: from the first transaction on, over as many trims as a round has.
fn counts(context: &Context<'_>, measured: &mut Measured) -> Result<(), Error> {
    let x = SIZES.map(|(size, ..)| size.to_string()).to_vec();
    let how = format!("exact, over {TRIMS} trims; growth and trimming included");
    let panel = Panel::new("write-backs and fences a transaction", &context.places[0], "counting", how);
    let mut panel = panel.axes("words a transaction", x, "a transaction", Form::Bars);
    for (at, (size, ..)) in SIZES.into_iter().enumerate() {
        let new = || {
            let counting = Counting::new(Hardware::PAGE_CACHE);
            Ok::<_, Error>((pool_options().create_on(HeapBacking::new(256 << 20), counting)?, counting))
        };
        let count = Words::new(&new()?.0, size)?.count;
        let (pool, counting) = new()?;
        let mut words = Words::unmeasured(&pool, size)?;
        let before = counting.counts();
        words.transactions(count)?;
        let counts = counting.counts() - before;
        let [write_backs, fences] = [counts.write_backs, counts.fences].map(|n| n as f64 / count as f64);
        panel.set("write-backs", at, Point::exact(write_backs));
        panel.set("fences", at, Point::exact(fences));
        measured.claims.push(Claim {
            what: format!("{size} words: fences, growth and trimming included"),
            paper: format!("goal one, and at most {MORE_FENCES} more"),
            ours: format!("{fences:.4} (of {count} transactions, exact)"),
            holds: Some(fences <= 1.0 + MORE_FENCES),
        });
    }
    measured.panels.push(panel);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_round_has_its_trims() {
        let pool = pool_options().create_on(HeapBacking::new(256 << 20), Hardware::PAGE_CACHE).unwrap();
        let mut words = Words::new(&pool, 64).unwrap();
        let (mut last, mut trims) = (words.watermark().unwrap(), 0);
        for _ in 0..words.count {
            words.transactions(1).unwrap();
            let now = words.watermark().unwrap();
            trims += u64::from(now != last);
            last = now;
        }
        assert!((TRIMS - 1..=TRIMS + 1).contains(&trims), "{trims} trims in {} transactions", words.count);
    }

    #[test]
    fn a_bare_transaction_stores_its_words() {
        let place = Place::at(std::env::temp_dir());
        let pool = new_pool(&place).unwrap();
        let mut bare = Bare::new(&pool, 16, 100).unwrap();
        bare.round();
        let (mut drawn, words) = (SEED, bare.words);
        (0..16 * 100).for_each(|_| drawn = next_of(drawn));
        let op = bare.session.enter().unwrap();
        assert_eq!(op.load(op.at(Off::<Word>::new(words + drawn % WORDS * 8)), Relaxed), drawn);
    }
}
