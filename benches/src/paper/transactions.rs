//! Not in a paper: what a transaction over two maps costs beyond its calls without atomicity, in floors.

use durix::{Db, Map};
use durix_pmem::backing::{FileBacking, HeapBacking};
use durix_pmem::{Counting, Hardware, Medium, PoolOptions};

use super::report::{Claim, Form, Panel, Point};
use super::rewind::words::Floor;
use super::{Context, Error, Figure, Measured};
use crate::interleave::{Contestant, Series, Stopwatch, interleave_telling};
use crate::place::Place;
use crate::workload::medium;

pub(super) const FIGURE: Figure = Figure {
    name: "transactions",
    title: "two gets and two updates over two maps in a transaction, beyond the same calls alone",
    source: "none: a measurement of this project",
    keys: None,
    run,
};

/// A kind of each class: native words, transactions of its own, an epoch, logical records.
const CLASSES: [&str; 4] = ["bplustree", "pset", "masstree", "skiplist"];
const BUFFERED: &str = "masstree";
/// Keys of a map, and calls of a round: a round uses no key twice, because a mixed transaction keeps its keys until its checkpoint.
const KEYS: u64 = 4096;
const CALLS: u64 = 256;

/// Two maps, of which two keys each are read and changed together or one by one.
struct Pair<M: Medium = Hardware> {
    name: String,
    kinds: [&'static str; 2],
    db: Db<M>,
    maps: [Map<u64, u64, M>; 2],
    is_transaction: bool,
    next: u64,
}

impl<M: Medium> Pair<M> {
    fn new(db: Db<M>, kinds: [&'static str; 2], is_transaction: bool) -> Result<Self, Error> {
        let maps = [db.map_of_kind("a", kinds[0])?, db.map_of_kind("b", kinds[1])?];
        for key in 0..KEYS {
            maps.iter().try_for_each(|map| map.insert(&key, &key).map(drop))?;
        }
        db.sync()?;
        let name = format!("{} + {}", kinds[0], kinds[1]);
        Ok(Pair { name, kinds, db, maps, is_transaction, next: 0 })
    }

    fn call(&mut self) -> durix::Result<()> {
        self.next += 1;
        let (Pair { db, maps: [a, b], .. }, value) = (&*self, self.next);
        // Steps of an odd number: no key comes twice before all have come.
        let (first, second) = (value * 5 % KEYS, value * 11 % KEYS);
        if !self.is_transaction {
            let sum = a.get(&first)?.unwrap_or(0).wrapping_add(b.get(&second)?.unwrap_or(0));
            a.insert(&first, &(sum ^ value))?;
            b.insert(&second, &value)?;
            return Ok(());
        }
        let is_mixed = self.is_mixed();
        db.transaction(|tx| {
            if is_mixed {
                tx.later();
            }
            let (a, b) = (tx.map(a)?, tx.map(b)?);
            let sum = a.get(&first)?.unwrap_or(0).wrapping_add(b.get(&second)?.unwrap_or(0));
            a.insert(&first, &(sum ^ value))?;
            b.insert(&second, &value)?;
            Ok(())
        })
    }

    fn is_mixed(&self) -> bool {
        self.kinds.contains(&BUFFERED) && self.kinds != [BUFFERED; 2]
    }
}

impl Contestant<1> for Pair {
    fn name(&self) -> &str {
        &self.name
    }
    fn round(&mut self) -> [f64; 1] {
        let start = Stopwatch::start();
        (0..CALLS).try_for_each(|_| self.call()).expect("a pool with room");
        let took = start.elapsed().as_nanos() as f64 / CALLS as f64;
        // The checkpoint, and what mixed transactions do after it, are not in it.
        self.db.sync().expect("a checkpoint");
        [took]
    }
}

fn pairs() -> Vec<[&'static str; 2]> {
    let second = |first: usize| CLASSES[first..].iter().map(move |kind| [CLASSES[first], *kind]);
    (0..CLASSES.len()).flat_map(second).collect()
}

/// Floors beyond the calls alone: more where intents are written.
fn goal(kinds: [&str; 2]) -> f64 {
    let needs_intents = kinds != ["bplustree"; 2] && kinds != ["pset"; 2] && kinds != [BUFFERED; 2];
    if needs_intents { 2.5 } else { 2.0 }
}

fn options() -> PoolOptions {
    PoolOptions::new().initial_size(48 << 20).max_size(512 << 20).assume_pmem(true)
}

fn new_db(place: &Place) -> Result<Db, Error> {
    let path = place.unused_path();
    let pool = options().create_on(FileBacking::create(&path)?, medium());
    let _ = std::fs::remove_file(&path);
    Ok(Db::builder().no_background_threads().over(pool?)?)
}

fn run(context: &Context<'_>) -> Result<Measured, Error> {
    let rounds = if context.quick { 9 } else { 61 };
    context.expect(1, rounds);
    let notes = vec![
        "processor time of one thread. Alone: the same calls on maps that have never met a transaction. Mixtures with a buffered kind \
         do not wait for their checkpoint, and what follows it is not in their time"
            .into(),
    ];
    let mut measured = Measured { panels: Vec::new(), claims: nothing_written(context)?, notes };
    for place in &context.places {
        context.now(format!("pairs of classes, {}", place.pages));
        let mut all: Vec<Box<dyn Contestant<1>>> = Vec::new();
        for kinds in pairs() {
            for is_transaction in [false, true] {
                all.push(Box::new(Pair::new(new_db(place)?, kinds, is_transaction)?));
            }
        }
        let below = new_db(place)?;
        all.push(Box::new(Floor::new(below.pool(), 16 << 20)?));
        let outcomes = interleave_telling(&mut all, 2, rounds, &mut || context.tick());
        let floor = &outcomes.last().expect("the floor is the last").phases[0];
        let how = format!("medians of {rounds} interleaved rounds of {CALLS} calls, differences within rounds");
        let panel = Panel::new("two gets, two updates, two maps", place, medium().describe(), how);
        let x = pairs().iter().map(|[a, b]| format!("{a} + {b}")).collect();
        let mut panel = panel.axes("kinds", x, "floors", Form::Bars);
        for (at, (kinds, both)) in pairs().into_iter().zip(outcomes.chunks(2)).enumerate() {
            let [alone, together] = [&both[0].phases[0], &both[1].phases[0]].map(|series| series.ratio_to(floor));
            let more = together.samples().iter().zip(alone.samples()).map(|(with, without)| with - without);
            let more = Series::new(more.collect());
            panel.set("alone", at, Point::nanoseconds(&alone));
            panel.set("in a transaction", at, Point::nanoseconds(&together));
            panel.set("more", at, Point::nanoseconds(&more));
            measured.claims.push(Claim {
                what: format!("{} + {}, {}", kinds[0], kinds[1], place.pages),
                paper: format!("goal {:.1} floors more", goal(kinds)),
                ours: format!("{:.2} floors of {:.0} ns", more.median(), floor.median()),
                holds: Some(more.median() <= goal(kinds)),
            });
        }
        measured.panels.push(panel);
    }
    Ok(measured)
}

/// Empty transactions, and those that only read, write nothing back.
fn nothing_written(context: &Context<'_>) -> Result<Vec<Claim>, Error> {
    let mut claims = Vec::new();
    for kinds in pairs() {
        context.step("counting");
        let counting = Counting::new(Hardware::PAGE_CACHE);
        let pool = options().create_on(HeapBacking::new(64 << 20), counting)?;
        let mut pair = Pair::new(Db::builder().no_background_threads().over(pool)?, kinds, true)?;
        // Their tables are there from the first transaction on.
        pair.call()?;
        pair.db.sync()?;
        let before = counting.counts();
        for key in 0..100 {
            pair.db.transaction(|_| Ok(()))?;
            pair.db.transaction(|tx| {
                tx.map(&pair.maps[0])?.get(&key)?;
                tx.map(&pair.maps[1])?.get(&key).map(drop)
            })?;
        }
        let counts = counting.counts() - before;
        claims.push(Claim {
            what: format!("{}: transactions that write nothing", pair.name),
            paper: "goal 0 write-backs, 0 fences".into(),
            ours: format!("{} write-backs, {} fences", counts.write_backs, counts.fences),
            holds: Some(counts.write_backs + counts.fences == 0),
        });
    }
    Ok(claims)
}
