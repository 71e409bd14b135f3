//! Figure 13: the time from a crash to the first answer, by the number of keys; one thread. The crash is that of the process. Before each
//! measurement more memory than the last-level cache holds is walked, so nobody finds what the contestant before has read.
//!
//! | contestant | what it does |
//! |---|---|
//! | DPTree | opens the tree, whose log holds what a tenth of the keys in fronts leaves there, and looks a key up |
//! | FPTree | the comparator of the other figures, filled by the same inserts: ends a split, walks the list of leaves, reads all keys of each leaf for the least one, builds inner nodes three quarters full, and looks a key up |
//! | its metadata, along the list | walks the heads and descriptors of the DPTree's ranges, side by side, each line once |
//! | its metadata, by address | reads the same lines in the order of their addresses, which no program knows that begins with the file |

use std::hint::black_box;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Instant;

use durix_dptree::layout::RootWords;
use durix_dptree::{DpTree, Options, Shape};
use durix_pmem::{Hardware, Off, Op, Persistent, Root, Word};

use super::trees::{Tree, figure, key, pool_for};
use crate::cso_append::medium;
use crate::interleave::Series;
use crate::machine::{Bytes, Machine};
use crate::paper::figure::{Context, Error, Figure, Measured, check_room};
use crate::paper::report::{Claim, Form, Panel, Point};
use crate::place::Place;
use crate::trees::Ordered;
use crate::trees::fptree::FpTree;

pub(in crate::paper) const FIGURE: Figure = figure(
    "dptree-fig13",
    "time from a crash to the first answer",
    "largest number of keys, instead of 16 million (one million with --quick)",
    run,
);

const POINTS: usize = 3;
const NAMES: [&str; 4] = ["DPTree", "FPTree", "its metadata, along the list", "its metadata, by address"];

/// Memory that is walked to empty the caches.
struct Evict(Vec<u64>);

impl Evict {
    /// Several times what the last-level cache holds, as far as the kernel tells.
    fn new() -> Self {
        let cache = Machine::this().last_level_cache().unwrap_or(0);
        let bytes = (4 * cache).clamp(600 << 20, 2 << 30);
        Evict(vec![1; bytes as usize / 8])
    }

    /// Writes to each line. What was in the caches before is in them no longer.
    fn walk(&mut self) {
        self.0.iter_mut().step_by(8).for_each(|word| *word = word.wrapping_mul(3));
        black_box(&self.0);
    }
}

/// Calls `visit` with each line of the tree's own metadata: of each range its head, and the descriptors of the side that counts.
fn walk_metadata(op: &Op<'_, Hardware>, root: &Root<Hardware>, shape: Shape, mut visit: impl FnMut(u64)) {
    let mut block = op.load(&root.words(op).view::<RootWords>().first, Relaxed);
    while !block.is_null() {
        visit(block.get());
        let side = op.load(&op.at(block).state, Relaxed).side();
        let first = op.at(shape.descriptor(block, side, 0));
        let leaves = op.load(&first.count, Relaxed).max(1) as usize;
        for index in 0..leaves {
            let descriptor = shape.descriptor(block, side, index);
            black_box(op.load(&op.at(descriptor).leaf, Relaxed));
            visit(descriptor.get());
        }
        block = op.load(&first.next, Relaxed);
    }
}

/// Milliseconds of each contestant, for each round.
type Times = [Vec<f64>; NAMES.len()];

fn measure(place: &Place, keys: u64, rounds: usize) -> Result<(Times, String), Error> {
    let pool = pool_for(place, keys)?;
    let mut tree = Tree::new(&pool)?;
    tree.insert(keys)?;
    let bytes = <FpTree<true> as Ordered<Hardware>>::bytes(keys);
    check_room(place, bytes, || format!("an FPTree of {keys} keys"))?;
    let mapping = place.map(bytes, medium())?;
    let (mut fptree, mut theirs) = (FpTree::<true>::create(&mapping)?, mapping.session()?);
    for number in 0..keys {
        fptree.insert(&theirs.enter()?, key(number), number + 1);
    }
    drop(fptree);
    let stats = tree.tree.stats(&tree.session.enter()?);
    let shape = tree.tree.shape();
    let Tree { tree, mut session, .. } = tree;
    let mut lines = Vec::new();
    walk_metadata(&session.enter()?, tree.root(), shape, |line| lines.push(line));
    let along = lines.len();
    assert_eq!(along as u64, stats.ranges + stats.leaves, "a line a range and a line a leaf");
    lines.sort_unstable();
    let (mut tree, mut evict, mut times) = (Some(tree), Evict::new(), Times::default());
    for round in 0..rounds as u64 {
        drop(tree.take());
        let number = round * 7919 % keys;
        let mut timed = |who: usize, work: &mut dyn FnMut() -> Result<(), Error>| {
            evict.walk();
            let start = Instant::now();
            work()?;
            times[who].push(start.elapsed().as_secs_f64() * 1e3);
            Ok::<_, Error>(())
        };
        let mut opened = None;
        timed(0, &mut || {
            let tree = opened.insert(DpTree::open_with(&pool, "tree", &Options::default())?);
            assert_eq!(tree.get(&session.enter()?, key(number))?, Some(number), "the first answer");
            Ok(())
        })?;
        let opened = tree.insert(opened.expect("it was opened"));
        let mut recovered = None;
        timed(1, &mut || {
            let op = theirs.enter()?;
            let tree = recovered.insert(FpTree::<true>::recover(&op, bytes));
            assert_eq!(tree.get(&op, key(number)), Some(number + 1), "the first answer");
            Ok(())
        })?;
        timed(2, &mut || {
            let mut met = 0;
            walk_metadata(&session.enter()?, opened.root(), shape, |_| met += 1);
            assert_eq!(met, along, "lines");
            Ok(())
        })?;
        timed(3, &mut || {
            let op = session.enter()?;
            let word = |line: &u64| op.load(op.at(Off::<Word>::new(*line)), Relaxed);
            black_box(lines.iter().map(word).fold(0, u64::wrapping_add));
            Ok(())
        })?;
    }
    let note = format!(
        "{keys} keys: {} ranges, {} leaves, {} log pages, {} entries in fronts; {} of other memory are walked before each measurement",
        stats.ranges,
        stats.leaves,
        stats.log_pages,
        stats.active + stats.frozen,
        Bytes(evict.0.len() as u64 * 8),
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
        let method =
            format!("medians of {rounds} recoveries, one thread, contestants in turn, caches emptied before each");
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
                let [ours, theirs, along, by_address] = &series;
                let ratio = |a: &Series| a.ratio_to(ours).median();
                let what = |what: &str| format!("{what}, {keys} keys, {}", place.pages);
                let (fptree, floor) = (ratio(theirs), ours.ratio_to(along).median());
                measured.claims.push(Claim {
                    what: what("FPTree's time to ours"),
                    paper: "1.8 to 5.5".into(),
                    ours: format!("{fptree:.2} ({:.1} ms to {:.1} ms)", theirs.median(), ours.median()),
                    holds: Some(fptree >= 1.8),
                });
                measured.claims.push(Claim {
                    what: what("our time to that of reading the leaves' metadata once, from cold caches"),
                    paper: "goal 1.5, at 50 million keys".into(),
                    ours: format!(
                        "{floor:.1} ({:.2} ms along the list; {:.2} ms by address)",
                        along.median(),
                        by_address.median()
                    ),
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
