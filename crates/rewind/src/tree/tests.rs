//! The tree alone: any order of insertions and removals, and every crash state of what transactions do not come to, because their numbers
//! ascend.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::*;
use crate::config::{LogKind, Options};
use crate::error::Error;
use durix_crashsim::{Explorer, Persistency, Simulated, Subject};
use durix_pmem::backing::HeapBacking;
use durix_pmem::{Hardware, Kind as PoolKind, LINE, Pool, PoolOptions, Root, Session, Structure, Version};
use proptest::prelude::*;

const CHUNK: u64 = 4096;

/// A tree's anchor in a pool.
struct Place<M: Medium>(Root<M>);

impl<M: Medium> Structure<M> for Place<M> {
    const KIND: PoolKind = PoolKind { tag: *b"treetest", version: Version::new(1) };
    type Options = ();
    type Error = Error;

    fn create(session: &mut Session<M>, root: &Root<M>, (): &()) -> Result<()> {
        let op = session.enter()?;
        let lines = (size_of::<Anchor>() / LINE) as u64;
        let anchor = Off::<Word>::new(Arena::new(root.clone()).take(&op, lines)?);
        let zeroed = op.slice("anchor", anchor, lines * 8)?;
        zeroed.iter().for_each(|word| op.store(word, 0, Relaxed));
        op.write_back_slice(zeroed);
        op.store(&root.words(&op)[0], anchor.get(), Relaxed);
        op.write_back(root.words(&op));
        Ok(())
    }

    fn open(_: &mut Session<M>, root: Root<M>, (): &()) -> Result<Self> {
        Ok(Place(root))
    }
}

#[derive(Clone, Copy, Debug)]
enum Act {
    /// Nothing where the key is there.
    Insert(u64),
    /// Nothing where it is not.
    Remove(u64),
}
use Act::{Insert, Remove};

fn step(model: &mut BTreeSet<u64>, act: Act) {
    match act {
        Insert(key) => _ = model.insert(key),
        Remove(key) => _ = model.remove(&key),
    }
}

/// A tree at work.
struct Live<M: Medium> {
    session: Session<M>,
    tree: Tree,
    arena: Arena<M>,
    anchor: u64,
    /// Keeps the pool open.
    _place: Arc<Place<M>>,
}

impl<M: Medium> Live<M> {
    fn open(pool: &Pool<M>, options: Options) -> Result<Self> {
        let place = pool.open_structure::<Place<M>>("tree", &())?;
        let mut session = pool.session()?;
        let op = session.enter()?;
        let anchor = op.load(&place.0.words(&op)[0], Acquire);
        let arena = Arena::new(place.0.clone());
        arena.recover(&op)?;
        let tree = Tree::recover(&op, Off::new(anchor), options.shape())?;
        let mut live = BTreeSet::from([anchor]);
        live.extend(tree.lower_units(&op)?);
        live.extend(tree.nodes(&op)?.into_iter().map(|(_, node)| node.get()));
        arena.release_all_but(&op, &live)?;
        drop(op);
        Ok(Live { session, tree, arena, anchor, _place: place })
    }

    fn apply(&mut self, act: Act) {
        let keys = self.keys();
        let op = self.session.enter().unwrap();
        match act {
            Insert(key) if !keys.contains(&key) => _ = self.tree.insert(&op, &self.arena, key).unwrap(),
            Remove(key) if keys.contains(&key) => self.tree.remove(&op, &self.arena, key).unwrap(),
            Insert(_) | Remove(_) => {}
        }
    }

    fn keys(&mut self) -> Vec<u64> {
        let op = self.session.enter().unwrap();
        self.tree.nodes(&op).unwrap().into_iter().map(|(key, _)| key).collect()
    }

    /// Heights and balance; and as many nodes in use as there are keys.
    fn check(&mut self) -> Vec<String> {
        let op = self.session.enter().unwrap();
        let mut findings = self.tree.check(&op);
        let mut units = self.tree.lower_units(&op).unwrap();
        let nodes = self.tree.nodes(&op).unwrap();
        units.extend(nodes.iter().map(|(_, node)| node.get()).chain([self.anchor]));
        let used: u64 = self.arena.usage(op.medium()).iter().map(|(_, used, _)| used).sum();
        if used != units.len() as u64 {
            findings.push(format!("{used} units are in use, {} are reached", units.len()));
        }
        findings
    }

    /// The keys, each before those below it.
    fn shape(&mut self) -> Vec<u64> {
        fn below<M: Medium>(op: &Op<'_, M>, at: Link, keys: &mut Vec<u64>) {
            if let Some(node) = op.get(at).filter(|_| !at.is_null()) {
                keys.push(op.load(&node.key, Relaxed));
                node.child.iter().for_each(|child| below(op, op.load(child, Relaxed), keys));
            }
        }
        let op = self.session.enter().unwrap();
        let mut keys = Vec::new();
        below(&op, self.tree.root(&op), &mut keys);
        keys
    }
}

fn all_options() -> [Options; 3] {
    [LogKind::Simple, LogKind::Optimized, LogKind::Batch(3)].map(|log| Options::default().log(log).bucket(8))
}

fn pool_options() -> PoolOptions {
    PoolOptions::new().chunk_size(CHUNK).lanes(1).max_indices(2).pool_id([7; 16]).boot_id([7; 16])
}

fn in_memory(options: Options) -> (Pool<Hardware>, Live<Hardware>) {
    let backing = HeapBacking::new(512 * CHUNK);
    let pool = pool_options().initial_size(16 * CHUNK).create_on(backing, Hardware::PAGE_CACHE).unwrap();
    let live = Live::open(&pool, options).unwrap();
    (pool, live)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, ..ProptestConfig::default() })]
    #[test]
    fn any_order_follows_the_model(which in 0..3usize, acts in prop::collection::vec((any::<bool>(), 0..40u64), 1..120)) {
        let options = all_options()[which];
        let (pool, mut live) = in_memory(options);
        let mut model = BTreeSet::new();
        for (inserts, key) in acts {
            let act = if inserts { Insert(key) } else { Remove(key) };
            live.apply(act);
            step(&mut model, act);
            prop_assert_eq!(live.keys(), model.iter().copied().collect::<Vec<_>>());
            prop_assert_eq!(live.check(), Vec::<String>::new());
        }
        let mut again = Live::open(&pool, options).unwrap();
        prop_assert_eq!(again.keys(), model.into_iter().collect::<Vec<_>>());
        prop_assert_eq!(again.check(), Vec::<String>::new());
    }
}

/// Insertions, an act, and the keys of the tree after it, each before those below it.
type Case = (&'static [u64], Act, &'static [u64]);

const CASES: [Case; 6] = [
    // A double rotation, on either side.
    (&[30, 10], Insert(20), &[20, 10, 30]),
    (&[10, 30], Insert(20), &[20, 10, 30]),
    // The same for a removal.
    (&[20, 10, 40, 30], Remove(10), &[30, 20, 40]),
    // The node has two children: its successor is one of them, or lies deeper.
    (&[20, 10, 30], Remove(20), &[30, 10]),
    (&[40, 20, 60, 10, 30, 50, 70], Remove(40), &[50, 20, 10, 30, 60, 70]),
    // The successor leaves a subtree that has to be rotated twice.
    (&[40, 20, 70, 10, 30, 50, 90, 5, 80], Remove(40), &[50, 20, 10, 5, 30, 80, 70, 90]),
];

#[test]
fn the_cases_are_what_they_are_for() {
    for (before, act, expected) in CASES {
        let (_pool, mut live) = in_memory(all_options()[0]);
        before.iter().for_each(|key| live.apply(Insert(*key)));
        live.apply(act);
        assert_eq!((live.shape(), live.check()), (expected.to_vec(), vec![]), "{act:?} after {before:?}");
    }
}

struct Tested {
    options: Options,
    before: &'static [u64],
}

impl Subject for Tested {
    type Op = Act;
    type Ret = ();
    type State = Vec<u64>;
    type Model = BTreeSet<u64>;
    type Store = Simulated;
    type Live = (Live<Simulated>, Pool<Simulated>);

    fn store(&self, medium: Simulated) -> Simulated {
        medium
    }

    fn create(&self, medium: &Simulated) -> Self::Live {
        let len = 10 * CHUNK;
        let options = pool_options().initial_size(len).max_size(len);
        let pool = options.create_on(medium.backing(0).with_limit(len), *medium).unwrap();
        let mut live = Live::open(&pool, self.options).unwrap();
        self.before.iter().for_each(|key| live.apply(Insert(*key)));
        (live, pool)
    }

    fn recover(&self, medium: &Simulated) -> Result<Self::Live, String> {
        let len = 10 * CHUNK;
        let options = pool_options().initial_size(len).max_size(len);
        let found = options.open_on(medium.backing(len), *medium).map_err(|e| e.to_string())?;
        let pool = found.recover().map_err(|e| e.to_string())?;
        let live = Live::open(&pool, self.options).map_err(|e| e.to_string())?;
        Ok((live, pool))
    }

    fn apply(&self, (live, _): &mut Self::Live, act: &Act) {
        live.apply(*act);
    }

    fn observe(&self, (live, _): &mut Self::Live) -> Vec<u64> {
        live.keys()
    }

    fn check(&self, (live, _): &mut Self::Live) -> Vec<String> {
        live.check()
    }

    fn model(&self) -> BTreeSet<u64> {
        self.before.iter().copied().collect()
    }

    fn step(&self, model: &mut BTreeSet<u64>, act: &Act) {
        step(model, *act);
    }

    fn expect(&self, model: &BTreeSet<u64>) -> Vec<u64> {
        model.iter().copied().collect()
    }
}

#[test]
fn double_rotations_and_removals_between_two_children_are_crashed() {
    let explorer = Explorer::new().model(Persistency::TornWords);
    for options in all_options() {
        for (number, (before, act, _)) in CASES.into_iter().enumerate() {
            let tested = Tested { options, before };
            let after = [Insert(25), Remove(30)];
            let report = explorer.clone().executions_per_point(12).samples(3).run_then(&tested, &[act], &after);
            println!("{options}, {act:?} after {before:?}: {}", report.assert_ok());
            // A crash in the recovery, too.
            if [0, 4].contains(&number) {
                let twice = explorer.clone().executions_per_point(4).samples(1).crashes(2);
                println!("{options}, twice: {}", twice.run_then(&tested, &[act], &after[..1]).assert_ok());
            }
        }
    }
}
