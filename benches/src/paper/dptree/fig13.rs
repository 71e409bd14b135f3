//! Figure 13: the time from a crash to the first answer, by the number of keys; one thread. The crash is that of the process: memory stays
//! as the caches have it.
//!
//! | contestant | what it does |
//! |---|---|
//! | DPTree | opens the tree, whose log holds what a tenth of the keys in fronts leaves there, and looks a key up |
//! | FPTree | the paper's comparator: walks the list of leaves (56 entries, 70 % full, in no order of addresses), looks for the greatest key of each, and builds a sorted list of them, which costs less than its inner nodes |
//! | metadata, read once | reads as many lines as the tree has descriptors of leaves, in the order of their addresses |

use std::hint::black_box;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Instant;

use durix_dptree::{DpTree, Options};
use durix_pmem::{Hardware, Off, Op, Pool, Session, Word};

use super::trees::{Random, Tree, figure, key, pool_for};
use crate::cso_append::medium;
use crate::interleave::Series;
use crate::paper::figure::{Context, Error, Figure, Measured};
use crate::paper::report::{Claim, Form, Panel, Point};
use crate::place::Place;

pub(in crate::paper) const FIGURE: Figure = figure(
    "dptree-fig13",
    "time from a crash to the first answer",
    "largest number of keys, instead of 16 million (one million with --quick)",
    run,
);

const LINE: u64 = 64;
const POINTS: usize = 3;
const NAMES: [&str; 3] = ["DPTree", "FPTree", "metadata, read once"];

/// A list of leaves of 1 KiB: a line with the next leaf and a bitmap, a line of fingerprints, 56 entries.
struct Leaves {
    session: Session<Hardware>,
    /// Where the leaves lie, side by side.
    base: u64,
    /// The first one in the order of keys.
    first: u64,
    number: u64,
    _owner: Arc<DpTree<Hardware>>,
}

const LEAF: u64 = 1024;
const ENTRIES: u64 = 56;
const TAKEN: u64 = ENTRIES * 7 / 10;

fn word<'s>(op: &Op<'s, Hardware>, at: u64) -> &'s Word {
    op.at(Off::new(at))
}

impl Leaves {
    fn new(place: &Place, keys: u64) -> Result<Self, Error> {
        let pool: Pool<Hardware> = pool_for(place, keys)?;
        let owner = DpTree::open(&pool, "owner")?;
        let mut session = pool.session()?;
        let op = session.enter()?;
        let number = keys.div_ceil(TAKEN);
        let reserved = pool.space().reserve_extent(&op, owner.root().owner(), number * LEAF)?;
        let base = reserved.off();
        // It goes with the pool, which has no name.
        std::mem::forget(reserved);
        let mut places: Vec<u64> = (0..number).map(|i| base + i * LEAF).collect();
        let mut random = Random(88_172_645_463_325_252);
        for i in (1..places.len()).rev() {
            places.swap(i, (random.next() % (i as u64 + 1)) as usize);
        }
        for (i, leaf) in places.iter().enumerate() {
            op.store(word(&op, *leaf), places.get(i + 1).copied().unwrap_or(0), Relaxed);
            op.store(word(&op, leaf + 8), (1 << TAKEN) - 1, Relaxed);
            for slot in 0..TAKEN {
                // In no order, as keys come.
                let key = i as u64 * TAKEN + slot * 11 % TAKEN;
                op.store(word(&op, leaf + 2 * LINE + slot * 16), key, Relaxed);
                op.store(word(&op, leaf + 2 * LINE + slot * 16 + 8), key, Relaxed);
            }
        }
        let first = places[0];
        drop(op);
        Ok(Leaves { session, base, first, number, _owner: owner })
    }

    /// The leaves by their greatest keys, and the value of a key.
    fn recover(&mut self, wanted: u64) -> Result<(), Error> {
        let op = self.session.enter()?;
        let (mut leaf, mut index) = (self.first, Vec::new());
        while leaf != 0 {
            let taken = op.load(word(&op, leaf + 8), Relaxed);
            let keys = (0..ENTRIES).filter(|slot| taken >> slot & 1 == 1);
            let greatest = keys.map(|slot| op.load(word(&op, leaf + 2 * LINE + slot * 16), Relaxed)).max();
            index.push((greatest.unwrap_or(0), leaf));
            leaf = op.load(word(&op, leaf), Relaxed);
        }
        assert_eq!(index.len() as u64, self.number, "leaves");
        let (_, leaf) = index[index.partition_point(|(greatest, _)| *greatest < wanted)];
        let found = (0..TAKEN).any(|slot| op.load(word(&op, leaf + 2 * LINE + slot * 16), Relaxed) == wanted);
        assert!(found, "key {wanted}");
        Ok(())
    }

    /// Reads the first word of so many lines.
    fn read(&mut self, lines: u64) -> Result<(), Error> {
        let op = self.session.enter()?;
        let all = self.number * LEAF / LINE;
        let sum: u64 = (0..lines.min(all)).map(|line| op.load(word(&op, self.base + line * LINE), Relaxed)).sum();
        black_box(sum);
        Ok(())
    }
}

/// Milliseconds of each contestant, for each round.
type Times = [Vec<f64>; NAMES.len()];

fn measure(place: &Place, keys: u64, rounds: usize) -> Result<(Times, String), Error> {
    let pool = pool_for(place, keys)?;
    let mut tree = Tree::new(&pool)?;
    tree.insert(keys)?;
    let mut leaves = Leaves::new(place, keys)?;
    let stats = tree.tree.stats(&tree.session.enter()?);
    let Tree { tree, mut session, .. } = tree;
    let mut tree = Some(tree);
    let mut times = Times::default();
    for round in 0..rounds as u64 {
        drop(tree.take());
        let start = Instant::now();
        let opened = DpTree::open_with(&pool, "tree", &Options::default())?;
        let number = round * 7919 % keys;
        assert_eq!(opened.get(&session.enter()?, key(number))?, Some(number), "the first answer");
        times[0].push(start.elapsed().as_secs_f64() * 1e3);
        tree = Some(opened);
        let start = Instant::now();
        leaves.recover(round * 7919 % keys)?;
        times[1].push(start.elapsed().as_secs_f64() * 1e3);
        let start = Instant::now();
        leaves.read(stats.leaves)?;
        times[2].push(start.elapsed().as_secs_f64() * 1e3);
    }
    let note = format!(
        "{keys} keys: {} ranges, {} leaves, {} log pages, {} entries in fronts",
        stats.ranges,
        stats.leaves,
        stats.log_pages,
        stats.active + stats.frozen
    );
    Ok((times, note))
}

fn run(context: &Context<'_>) -> Result<Measured, Error> {
    let most = context.keys_or(if context.quick { 1_000_000 } else { 16_000_000 });
    let rounds = if context.quick { 5 } else { 9 };
    let numbers: Vec<u64> = (0..POINTS as u32).rev().map(|i| most >> (2 * i)).collect();
    context.expect(numbers.len(), 1);
    let mut measured = Measured { panels: Vec::new(), claims: Vec::new(), notes: Vec::new() };
    for place in &context.places {
        let method = format!("medians of {rounds} recoveries, one thread, contestants in turn");
        let panel = Panel::new("time to the first answer", place, crate::paper::figure::medium_text(medium()), method);
        let x = numbers.iter().map(u64::to_string).collect();
        let mut panel = panel.axes("keys", x, "ms", Form::Lines);
        for (at, keys) in numbers.iter().enumerate() {
            context.now(format!("{keys} keys, {}", place.pages));
            let (times, note) = measure(place, *keys, rounds)?;
            let series = times.map(Series::new);
            for (name, series) in NAMES.into_iter().zip(&series) {
                panel.set(name, at, Point::nanoseconds(series));
            }
            measured.notes.push(note);
            if at + 1 == numbers.len() {
                let [ours, theirs, metadata] = &series;
                let ratio = |a: &Series| a.ratio_to(ours).median();
                let what = |what: &str| format!("{what}, {keys} keys, {}", place.pages);
                let (fptree, floor) = (ratio(theirs), 1.0 / ratio(metadata));
                measured.claims.push(Claim {
                    what: what("FPTree's time to ours"),
                    paper: "1.8 to 5.5".into(),
                    ours: format!("{fptree:.2} ({:.1} ms to {:.1} ms)", theirs.median(), ours.median()),
                    holds: Some(fptree >= 1.8),
                });
                measured.claims.push(Claim {
                    what: what("our time to that of reading the leaves' metadata once"),
                    paper: "goal 1.5, at 50 million keys".into(),
                    ours: format!("{floor:.1}"),
                    holds: Some(floor <= 1.5),
                });
            }
            context.tick();
        }
        measured.panels.push(panel);
    }
    Ok(measured)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_contestant_recovers() {
        let (times, _) = measure(&Place::at(std::env::temp_dir()), 20_000, 2).unwrap();
        assert!(times.iter().all(|times| times.len() == 2));
    }
}
