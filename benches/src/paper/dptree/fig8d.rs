//! Figure 8d: write-backs of an insert, where merges are made in place and where they are not; counted. Besides: how many keys one merge
//! takes at most, since writers wait for it in the paper's tree.
//!
//! | contestant | what it is |
//! |---|---|
//! | ranges, in place | our tree |
//! | whole tree, in place | our tree, whose fronts are merged all at once when they hold a tenth of the keys, as in the paper |
//! | whole tree, out of place | the paper's comparator: sorted entries in one piece of persistent memory, written anew by each merge |
//!
//! All of them log an insert with one write-back and one fence.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use durix_dptree::{DpTree, Options};
use durix_pmem::backing::HeapBacking;
use durix_pmem::{Counting, Counts, Hardware, Off, Op, Pool, PoolOptions, Session, Word};

use super::trees::{TICK, figure, key};
use crate::paper::figure::{Context, Error, Figure, Measured};
use crate::paper::report::{Claim, Form, Panel, Point};

pub(in crate::paper) const FIGURE: Figure =
    figure("dptree-fig8d", "write-backs of an insert, merged in place and out of place, counted", "keys inserted", run);

type M = Counting<Hardware>;

/// Part of the keys that is buffered, as in the paper, and the least number of them.
const RATIO: u64 = 10;
const LEAST: u64 = 256;
const LINE: u64 = 64;

/// Something to insert keys into.
trait Contestant {
    fn insert(&mut self, number: u64, keys: u64) -> Result<(), Error>;
    /// All pairs, ascending.
    fn pairs(&mut self) -> Result<Vec<(u64, u64)>, Error>;
}

fn pool_for(medium: M, keys: u64) -> Result<Pool<M>, Error> {
    let size = (keys * 96 + (96 << 20)).next_multiple_of(64 << 20);
    Ok(PoolOptions::new().initial_size(size).max_size(size).create_on(HeapBacking::new(size), medium)?)
}

struct Tree {
    tree: Arc<DpTree<M>>,
    session: Session<M>,
    /// Merges are of the whole tree.
    whole: bool,
    buffered: u64,
}

impl Tree {
    fn new(medium: M, keys: u64, whole: bool) -> Result<Self, Error> {
        // Fronts that never get full are merged when this figure wants it.
        let options = if whole { Options::default().merge_ratio(0.5) } else { Options::default() };
        let pool = pool_for(medium, keys)?;
        let tree = DpTree::open_with(&pool, "tree", &options)?;
        Ok(Tree { tree, session: pool.session()?, whole, buffered: 0 })
    }
}

impl Contestant for Tree {
    fn insert(&mut self, number: u64, keys: u64) -> Result<(), Error> {
        self.tree.insert(&self.session.enter()?, key(number), number)?;
        self.buffered += 1;
        if self.whole {
            if self.buffered >= LEAST.max((keys - self.buffered) / RATIO) {
                self.tree.merge_all(&mut self.session)?;
                self.buffered = 0;
            }
        } else if number.is_multiple_of(TICK) {
            self.tree.tick(&mut self.session)?;
        }
        Ok(())
    }

    fn pairs(&mut self) -> Result<Vec<(u64, u64)>, Error> {
        let mut pairs = Vec::new();
        let op = self.session.enter()?;
        self.tree.scan(&op, .., durix_dptree::Direction::Forward, |key, value| {
            pairs.push((key, value));
            true
        })?;
        Ok(pairs)
    }
}

/// A log, a buffer in DRAM, and sorted entries that each merge writes anew beside the old ones.
struct Sorted {
    session: Session<M>,
    log: u64,
    logged: u64,
    /// Where entries are written, and the word that says which of the two places counts.
    places: [u64; 2],
    state: u64,
    side: usize,
    len: u64,
    buffer: BTreeMap<u64, u64>,
    _owner: Arc<DpTree<M>>,
}

impl Sorted {
    fn new(medium: M, keys: u64) -> Result<Self, Error> {
        let pool = pool_for(medium, keys)?;
        let owner = DpTree::open(&pool, "owner")?;
        let mut session = pool.session()?;
        let op = session.enter()?;
        let reserve = |bytes: u64| -> Result<u64, Error> {
            let reserved = pool.space().reserve_extent(&op, owner.root().owner(), bytes)?;
            let off = reserved.off();
            // It goes with the pool, which is memory of this process.
            std::mem::forget(reserved);
            Ok(off)
        };
        // A log of twice the largest buffer, used round and round: its old records are merged.
        let log = reserve((keys / RATIO + LEAST) * LINE)?;
        let places = [reserve(keys * 16 + LINE)?, reserve(keys * 16 + LINE)?];
        let state = reserve(LINE)?;
        drop(op);
        let buffer = BTreeMap::new();
        Ok(Sorted { session, log, logged: 0, places, state, side: 0, len: 0, buffer, _owner: owner })
    }

    fn load(op: &Op<'_, M>, place: u64, number: u64) -> (u64, u64) {
        let word = |at: u64| op.load(op.at(Off::<Word>::new(place + at)), Relaxed);
        (word(number * 16), word(number * 16 + 8))
    }

    /// Writes old entries and buffered ones together, and makes them count.
    fn merge(&mut self) -> Result<(), Error> {
        let op = self.session.enter()?;
        let (from, to) = (self.places[self.side], self.places[1 - self.side]);
        let mut new = std::mem::take(&mut self.buffer).into_iter().peekable();
        let (mut old, mut len) = (0, 0);
        while old < self.len || new.peek().is_some() {
            let stored = (old < self.len).then(|| Sorted::load(&op, from, old));
            let (key, value) = match (stored, new.peek()) {
                (Some(pair), Some((key, _))) if pair.0 < *key => pair,
                (Some(pair), None) => pair,
                _ => new.next().expect("one of the two has an entry"),
            };
            old += u64::from(stored.is_some_and(|pair| pair.0 == key));
            op.store(op.at(Off::<Word>::new(to + len * 16)), key, Relaxed);
            let last: &Word = op.at(Off::new(to + len * 16 + 8));
            op.store(last, value, Relaxed);
            len += 1;
            if len % 4 == 0 || (old == self.len && new.peek().is_none()) {
                op.write_back(last);
            }
        }
        op.fence();
        self.side = 1 - self.side;
        self.len = len;
        let state: &Word = op.at(Off::new(self.state));
        op.store(state, len << 1 | self.side as u64, Relaxed);
        op.persist(state);
        Ok(())
    }
}

impl Contestant for Sorted {
    fn insert(&mut self, number: u64, keys: u64) -> Result<(), Error> {
        {
            let op = self.session.enter()?;
            // Two records of three words in a line, as in our log.
            let at = self.log + self.logged / 2 * LINE + self.logged % 2 * 24;
            for (i, word) in [key(number), number, self.logged].into_iter().enumerate() {
                op.store(op.at(Off::<Word>::new(at + 8 * i as u64)), word, Relaxed);
            }
            op.persist(op.at(Off::<Word>::new(at)));
        }
        self.logged += 1;
        self.buffer.insert(key(number), number);
        if self.buffer.len() as u64 >= LEAST.max((keys - self.buffer.len() as u64) / RATIO) {
            self.merge()?;
            self.logged = 0;
        }
        Ok(())
    }

    fn pairs(&mut self) -> Result<Vec<(u64, u64)>, Error> {
        let op = self.session.enter()?;
        let mut pairs: Vec<_> = (0..self.len).map(|i| Sorted::load(&op, self.places[self.side], i)).collect();
        pairs.extend(self.buffer.iter().map(|(key, value)| (*key, *value)));
        pairs.sort_unstable();
        Ok(pairs)
    }
}

/// The write-backs and fences of `keys` inserts; all keys are there at the end.
fn count(medium: M, mut contestant: impl Contestant, keys: u64) -> Result<Counts, Error> {
    let before = medium.counts();
    (0..keys).try_for_each(|number| contestant.insert(number, number + 1))?;
    let counts = medium.counts() - before;
    let mut expected: Vec<(u64, u64)> = (0..keys).map(|number| (key(number), number)).collect();
    expected.sort_unstable();
    assert!(contestant.pairs()? == expected, "every pair is there");
    Ok(counts)
}

const NAMES: [&str; 3] = ["ranges, in place", "whole tree, in place", "whole tree, out of place"];

fn counts_of(number: usize, keys: u64) -> Result<Counts, Error> {
    let medium = Counting::new(Hardware::PAGE_CACHE);
    match number {
        0 => count(medium, Tree::new(medium, keys, false)?, keys),
        1 => count(medium, Tree::new(medium, keys, true)?, keys),
        _ => count(medium, Sorted::new(medium, keys)?, keys),
    }
}

fn run(context: &Context<'_>) -> Result<Measured, Error> {
    let keys = context.keys_or(if context.quick { 150_000 } else { 5_000_000 });
    context.expect(NAMES.len(), 1);
    let how =
        format!("exact, {keys} random keys from an empty tree, entries of 16 bytes, a tenth of the keys buffered");
    let panel = Panel::new("write-backs and fences of an insert", &context.places[0], "counting", how);
    let mut panel = panel.axes("merged", NAMES.map(String::from).to_vec(), "an insert", Form::Bars);
    let mut write_backs = [0.0; NAMES.len()];
    for (at, name) in NAMES.into_iter().enumerate() {
        context.now(format!("{name}, {keys} keys"));
        let counts = counts_of(at, keys)?;
        let of = |count: u64| count as f64 / keys as f64;
        write_backs[at] = of(counts.write_backs);
        panel.set("write-backs", at, Point::exact(of(counts.write_backs)));
        panel.set("fences", at, Point::exact(of(counts.fences)));
        context.tick();
    }
    let claim = |what: &str, paper: &str, at: usize, holds: Option<bool>| Claim {
        what: what.into(),
        paper: paper.into(),
        ours: format!("{:.2} ({:.2} an insert)", write_backs[at] / write_backs[0], write_backs[at]),
        holds,
    };
    let claims = vec![
        claim("out of place to in place, write-backs", "2.1 at least", 2, Some(write_backs[2] >= 2.1 * write_backs[0])),
        claim("whole tree to ranges, both in place, write-backs", "–", 1, None),
    ];
    let notes = vec![
        "a merge of a range takes a tenth of some thousand keys; a merge of the whole tree a tenth of all, and writers of a full buffer \
         wait for it"
            .into(),
    ];
    Ok(Measured { panels: vec![panel], claims, notes })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_contestants_hold_what_was_inserted() {
        for number in 0..NAMES.len() {
            let counts = counts_of(number, 5000).unwrap();
            assert!(counts.write_backs >= 5000 && counts.fences >= 5000, "an insert is durable when it returns");
        }
    }
}
