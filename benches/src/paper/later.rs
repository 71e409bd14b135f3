//! Not in a paper: inserts that are acknowledged after one fence for all of them, in floors.

use std::sync::Arc;

use durix::Index;
use durix_logfree::{SoftHash, SoftOptions};
use durix_pmem::backing::{FileBacking, HeapBacking};
use durix_pmem::{Counting, Hardware, Medium, Pool, PoolOptions, Session, Unsettled};
use durix_pset::PersistentSet;

use super::fenceless::Fenceless;
use super::report::{Claim, Form, Panel, Point};
use super::rewind::words::Floor;
use super::{Context, Error, Figure, Measured};
use crate::interleave::{Contestant, Series, Stopwatch, interleave_telling};
use crate::place::Place;
use crate::workload::medium;

pub(super) const FIGURE: Figure = Figure {
    name: "acknowledge-later",
    title: "inserts under one fence, beyond the same inserts without write-backs and fences",
    source: "none: a measurement of this project",
    keys: None,
    run,
};

/// Keys of a map; a batch replaces values of random ones.
const KEYS: u64 = 1 << 14;
/// Inserts under one fence.
const SIZES: [u64; 4] = [1, 4, 16, 64];
/// Inserts of a round.
const INSERTS: u64 = 4096;
/// What is promised.
const GOAL: (u64, f64) = (16, 2.0);

/// The maps that can.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Pset,
    SoftHash,
}

impl Kind {
    const ALL: [Kind; 2] = [Kind::Pset, Kind::SoftHash];

    fn name(self) -> &'static str {
        match self {
            Kind::Pset => "pset",
            Kind::SoftHash => "hash",
        }
    }

    fn open<M: Medium>(self, pool: &Pool<M>) -> Result<Arc<dyn Index<M>>, Error> {
        Ok(match self {
            Kind::Pset => PersistentSet::open(pool, "map").map_err(durix::Error::from)?,
            Kind::SoftHash => SoftHash::open_with(pool, "map", &SoftOptions::default().buckets(KEYS / 2))
                .map_err(durix::Error::from)?,
        })
    }
}

/// Batches of inserts, and what they wait for.
struct Batches<M: Medium> {
    name: String,
    pool: Pool<M>,
    session: Session<M>,
    map: Arc<dyn Index<M>>,
    /// Inserts of a batch, and whether they are settled together.
    size: u64,
    later: bool,
    ticket: Unsettled<M>,
    next: u64,
}

/// Spreads numbers. No key comes twice before all have come.
fn key(number: u64) -> [u8; 8] {
    (number.wrapping_mul(0x9E37_79B9) % KEYS).to_be_bytes()
}

impl<M: Medium> Batches<M> {
    fn new(name: &str, kind: Kind, pool: Pool<M>, size: u64, later: bool) -> Result<Self, Error> {
        let (map, mut session) = (kind.open(&pool)?, pool.session()?);
        for number in 0..KEYS {
            let key = number.to_be_bytes();
            map.insert(&session.enter()?, &key, &key)?;
        }
        let name = format!("{name}, {size}");
        let mut batches = Batches { name, pool, session, map, size, later, ticket: Unsettled::new(), next: 0 };
        // What is replaced first takes new slots.
        (0..KEYS / size).try_for_each(|_| batches.batch())?;
        Ok(batches)
    }

    fn batch(&mut self) -> durix::Result<()> {
        for _ in 0..self.size {
            self.next += 1;
            let (key, value) = (key(self.next), self.next.to_be_bytes());
            if self.later {
                let op = self.session.enter_later(&mut self.ticket)?;
                self.map.insert(&op, &key, &value)?;
                self.ticket = op.finish();
            } else {
                self.map.insert(&self.session.enter()?, &key, &value)?;
            }
        }
        Ok(self.pool.wait(&mut self.session, &mut self.ticket)?)
    }
}

impl<M: Medium> Contestant<1> for Batches<M> {
    fn name(&self) -> &str {
        &self.name
    }
    fn round(&mut self) -> [f64; 1] {
        let batches = INSERTS / self.size;
        let start = Stopwatch::start();
        (0..batches).try_for_each(|_| self.batch()).expect("a pool with room");
        [start.elapsed().as_nanos() as f64 / batches as f64]
    }
}

fn options() -> PoolOptions {
    PoolOptions::new().initial_size(8 << 20).max_size(64 << 20).assume_pmem(true)
}

fn pool_at<M: Medium>(place: &Place, medium: M) -> Result<Pool<M>, Error> {
    let path = place.unused_path();
    let pool = options().create_on(FileBacking::create(&path)?, medium);
    let _ = std::fs::remove_file(&path);
    Ok(pool?)
}

fn run(context: &Context<'_>) -> Result<Measured, Error> {
    let rounds = if context.quick { 9 } else { 61 };
    context.expect(context.places.len(), rounds);
    let notes = vec![
        "processor time of one thread. Each insert has an operation of its own, as a call of the facade has; a batch ends when its ticket \
         was waited for. Without write-backs and fences: the same code, on a medium that leaves both out"
            .into(),
    ];
    let mut measured = Measured { panels: Vec::new(), claims: counted(context)?, notes };
    for place in &context.places {
        context.now(format!("batches of inserts, {}", place.pages));
        let mut all: Vec<Box<dyn Contestant<1>>> = Vec::new();
        for kind in Kind::ALL {
            for size in SIZES {
                let without = Fenceless::new(Hardware::PAGE_CACHE, false);
                all.push(Box::new(Batches::new("later", kind, pool_at(place, medium())?, size, true)?));
                all.push(Box::new(Batches::new("without", kind, pool_at(place, without)?, size, true)?));
                all.push(Box::new(Batches::new("at once", kind, pool_at(place, medium())?, size, false)?));
            }
        }
        let below = pool_at(place, medium())?;
        all.push(Box::new(Floor::new(&below, 16 << 20)?));
        let outcomes = interleave_telling(&mut all, 2, rounds, &mut || context.tick());
        let floor = &outcomes.last().expect("the floor is the last").phases[0];
        for (kind, outcomes) in Kind::ALL.into_iter().zip(outcomes.chunks(3 * SIZES.len())) {
            let how = format!("medians of {rounds} interleaved rounds of {INSERTS} inserts, differences within rounds");
            let panel = Panel::new(format!("inserts into {}", kind.name()), place, medium().describe(), how);
            let x = SIZES.map(|size| size.to_string()).to_vec();
            let mut panel = panel.axes("inserts under one fence", x, "floors", Form::Bars);
            for (at, (size, three)) in SIZES.into_iter().zip(outcomes.chunks(3)).enumerate() {
                let [later, without, at_once] = [0, 1, 2].map(|which: usize| three[which].phases[0].ratio_to(floor));
                let more = later.samples().iter().zip(without.samples()).map(|(with, without)| with - without);
                let more = Series::new(more.collect());
                panel.set("settled together", at, Point::nanoseconds(&later));
                panel.set("without write-backs and fences", at, Point::nanoseconds(&without));
                panel.set("each by itself", at, Point::nanoseconds(&at_once));
                panel.set("more", at, Point::nanoseconds(&more));
                let goal = (size == GOAL.0).then_some(GOAL.1);
                measured.claims.push(Claim {
                    what: format!("{}, {size} inserts under one fence, {}", kind.name(), place.pages),
                    paper: goal.map_or("no goal".into(), |goal| format!("goal {goal:.1} floors more than without")),
                    ours: format!(
                        "{:.2} floors of {:.0} ns more; {:.1} together, {:.1} each by itself",
                        more.median(),
                        floor.median(),
                        later.median(),
                        at_once.median()
                    ),
                    holds: goal.map(|goal| more.median() <= goal),
                });
            }
            measured.panels.push(panel);
        }
    }
    Ok(measured)
}

/// Exact numbers: a write-back for each insert, and one fence for all.
fn counted(context: &Context<'_>) -> Result<Vec<Claim>, Error> {
    let mut claims = Vec::new();
    for kind in Kind::ALL {
        for size in SIZES {
            context.step("counting");
            let counting = Counting::new(Hardware::PAGE_CACHE);
            let pool = options().create_on(HeapBacking::new(64 << 20), counting)?;
            let mut batches = Batches::new("counted", kind, pool, size, true)?;
            let before = counting.counts();
            (0..100).try_for_each(|_| batches.batch())?;
            let counts = counting.counts() - before;
            claims.push(Claim {
                what: format!("{}: 100 batches of {size} inserts", kind.name()),
                paper: format!("goal {} write-backs, 100 fences", size * 100),
                ours: format!("{} write-backs, {} fences", counts.write_backs, counts.fences),
                holds: Some(counts.write_backs == size * 100 && counts.fences == 100),
            });
        }
    }
    Ok(claims)
}
