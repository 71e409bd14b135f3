//! Figure 9: how often a node that is handed out or taken out lies in a page that is active already, and what is gained by
//! recording pages instead of nodes.
//!
//! The second panel compares two runs of the same hash table: one that first writes down each node which it is about to allocate
//! or to free, durably, as persistent allocators do (one more write-back and fence an update), and one that does not. Both look
//! first whether the update will succeed, so what is gained is, if anything, understated.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use durix_logfree::{Bst, HashTable, Options, PageStats, WordMap, Words};
use durix_pmem::{Hardware, Mapping, Medium, Off, Op, Pool, Session, Structure, Word};

use super::sets::{check_room, figure, fits, panel, rounds, rounds_of_a_point, sizes_text};
use crate::interleave::{Contestant, interleave_telling};
use crate::logfree::Error as SetError;
use crate::logfree::key;
use crate::logfree::make::{Protocol, Shape, Site, What};
use crate::logfree::report::warm_up;
use crate::logfree::rounds::{Memory, Mix, Rounds};
use crate::paper::figure::{Context, Error, Figure, Measured};
use crate::paper::report::{Claim, Form, Panel, Point};
use crate::place::Place;
use crate::sets_logged::Set;
use crate::workload::{Random, medium, scaled};

pub(in crate::paper) const FIGURE: Figure = figure(
    "logfree-fig9",
    "hit rates of the active pages, and what they gain",
    Some("the one size of all sets, instead of several"),
    run,
);

fn sizes(context: &Context<'_>) -> Vec<u64> {
    match (context.keys, context.quick) {
        (Some(keys), _) => vec![keys],
        (None, true) => vec![1 << 10, 64 << 10],
        (None, false) => vec![1 << 10, 16 << 10, 256 << 10, 1 << 20, 4 << 20],
    }
}

/// Page sizes that are tried: nodes are 64 bytes.
const PAGES: [u64; 2] = [4 << 10, 64 << 10];

/// Hits of allocations and of unlinks, in percent, over some operations by one thread.
fn hit_rates<S>(place: &Place, keys: u64, options: &S::Options, operations: u64) -> Result<[f64; 2], SetError>
where
    S: Structure<Hardware, Error = durix_logfree::Error> + Stats,
    Arc<S>: Set<Hardware, Local = ()>,
{
    // Counts need no write-backs.
    let pool: Pool<Hardware> = place.pool(Hardware::PAGE_CACHE, keys)?;
    let set: Arc<S> = pool.open_structure("set", options)?;
    let mut session = pool.session()?;
    for i in 0..keys {
        let op = session.enter()?;
        set.insert(&mut (), &op, key(2 * i), i);
    }
    let before = set.stats(&session.enter()?);
    let mut random = Random(88_172_645_463_325_252);
    for _ in 0..operations {
        let drawn = random.next();
        let key = key(scaled(drawn, 2 * keys));
        let op = session.enter()?;
        _ = if drawn & 1 == 0 { set.insert(&mut (), &op, key, 1) } else { set.remove(&mut (), &op, key) };
    }
    let after = set.stats(&session.enter()?);
    let rate = |all: u64, misses: u64| 100.0 * (1.0 - misses as f64 / all.max(1) as f64);
    Ok([
        rate(after.allocations - before.allocations, after.allocation_misses - before.allocation_misses),
        rate(after.unlinks - before.unlinks, after.unlink_misses - before.unlink_misses),
    ])
}

/// What tells how its pages are used.
trait Stats {
    fn stats(&self, op: &Op<'_, Hardware>) -> PageStats;
}

impl<S: WordMap<Hardware>> Stats for Words<S> {
    fn stats(&self, op: &Op<'_, Hardware>) -> PageStats {
        self.page_stats(op)
    }
}

/// A hash table that looks before it changes something; with `LOG`, it writes down what it is about to do.
struct Intending<M: Medium, const LOG: bool> {
    table: Arc<HashTable<M>>,
    log: Mapping<M>,
}

/// A thread's log of intentions: a few lines, used in turn.
struct Intentions<M: Medium> {
    session: Session<M>,
    next: u64,
}

const LINES: u64 = 64;

impl<M: Medium> Intentions<M> {
    #[inline(always)]
    fn write_down(&mut self, what: u64) {
        let op = self.session.enter().expect("the mapping is open");
        let line: &Word = op.at(Off::new((1 + self.next % LINES) * 64));
        self.next += 1;
        op.store(line, what, Relaxed);
        op.write_back(line);
        // PERSIST intention<update: flush+fence
        op.fence();
    }
}

impl<M: Medium, const LOG: bool> Set<M> for Intending<M, LOG> {
    type Local = Intentions<M>;

    fn name(&self) -> &'static str {
        if LOG { "each node written down" } else { "active pages" }
    }

    fn bytes(&self, _threads: u64) -> u64 {
        0
    }

    fn create(&self, _mapping: &Mapping<M>) {}

    fn local(&self, _thread: u64) -> Intentions<M> {
        Intentions { session: self.log.session().expect("sessions enough"), next: 0 }
    }

    #[inline(always)]
    fn contains(&self, _local: &mut Intentions<M>, op: &Op<'_, M>, key: u64) -> bool {
        Set::contains(&self.table, &mut (), op, key)
    }

    #[inline(always)]
    fn insert(&self, local: &mut Intentions<M>, op: &Op<'_, M>, key: u64, value: u64) -> bool {
        if Set::contains(&self.table, &mut (), op, key) {
            return false;
        }
        if LOG {
            local.write_down(key);
        }
        Set::insert(&self.table, &mut (), op, key, value)
    }

    #[inline(always)]
    fn remove(&self, local: &mut Intentions<M>, op: &Op<'_, M>, key: u64) -> bool {
        if !Set::contains(&self.table, &mut (), op, key) {
            return false;
        }
        if LOG {
            local.write_down(key);
        }
        Set::remove(&self.table, &mut (), op, key)
    }
}

fn intending<const LOG: bool>(place: &Place, keys: u64) -> Result<Box<dyn Contestant<2>>, SetError> {
    let pool: Pool<Hardware> = place.pool(medium(), keys)?;
    let table = HashTable::open_with(&pool, "set", &Options::default().buckets(keys))?;
    let log = place.map((1 + LINES) * 64, medium())?;
    Ok(Box::new(Rounds::new(Intending::<_, LOG> { table, log }, Memory::Pool(pool), keys, 1)?))
}

fn run(context: &Context<'_>) -> Result<Measured, Error> {
    let sizes = sizes(context);
    context.expect(sizes.len(), rounds_of_a_point(context));
    let x = sizes_text(&sizes);
    let mut measured = Measured { panels: Vec::new(), claims: Vec::new(), notes: Vec::new() };
    for place in &context.places {
        let mut hits = panel(context, place, "hits of the active pages".into(), ("keys", &x), "% of all");
        "exact, 1 thread; 256 pages a session".clone_into(&mut hits.method);
        hits.form = Form::Lines;
        let mut gain = panel(context, place, "hash table: updates".into(), ("keys", &x), "million operations/s");
        for (at, keys) in sizes.iter().enumerate() {
            context.now(format!("{} keys, {}", x[at], place.pages));
            check_room(
                place,
                &[What { shape: Shape::Hash, way: Protocol::Links, keys: *keys, threads: 1, mix: Mix::UPDATES }; 2],
            )?;
            context.step("counting hits");
            measured.claims.push(set_hits(&mut hits, at, place, *keys, &x[at])?);
            context.step("rounds");
            let mut contestants = [intending::<false>(place, *keys)?, intending::<true>(place, *keys)?];
            let rounds = rounds(context);
            let outcomes = interleave_telling(&mut contestants, warm_up(rounds), rounds, &mut || context.tick());
            outcomes.iter().for_each(|o| gain.set(&o.name, at, Point::throughput(&o.phases[0])));
            let ratio = outcomes[1].phases[0].ratio_to(&outcomes[0].phases[0]).median();
            measured.claims.push(Claim {
                what: format!("hash table, {} keys, {}: gain", x[at], place.pages),
                paper: "several-fold for small and medium sizes".into(),
                ours: format!("{ratio:.2} times"),
                holds: None,
            });
        }
        measured.panels.extend([hits, gain]);
    }
    measured.notes.extend(sizes.into_iter().map(fits));
    Ok(measured)
}

fn set_hits(panel: &mut Panel, at: usize, place: &Place, keys: u64, text: &str) -> Result<Claim, Error> {
    let operations = 200_000;
    let mut smallest: f64 = 100.0;
    for page in PAGES {
        let options = Options::default().page_size(page).buckets(keys);
        for (name, [allocations, unlinks]) in [
            ("hash table", hit_rates::<HashTable>(place, keys, &options, operations)?),
            ("BST", hit_rates::<Bst>(place, keys, &options, operations)?),
        ] {
            panel.set(&format!("{name}, pages of {} KiB, allocations", page >> 10), at, Point::exact(allocations));
            panel.set(&format!("{name}, pages of {} KiB, unlinks", page >> 10), at, Point::exact(unlinks));
            smallest = smallest.min(allocations);
        }
    }
    Ok(Claim {
        what: format!("{text} keys: allocations in active pages"),
        paper: "close to 100% at any size".into(),
        ours: format!("at least {smallest:.1}%"),
        holds: None,
    })
}
