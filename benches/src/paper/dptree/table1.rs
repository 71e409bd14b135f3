//! Table 1: write-backs and fences of each operation, counted; log, merges, splits and allocation included.

use durix_pmem::backing::HeapBacking;
use durix_pmem::{Counting, Hardware, PoolOptions};

use super::trees::{Random, Tree, figure, key};
use crate::paper::figure::{Context, Error, Figure, Measured};
use crate::paper::report::{Claim, Form, Panel, Point};

pub(in crate::paper) const FIGURE: Figure =
    figure("dptree-table1", "write-backs and fences of each operation, counted", "new keys that are inserted", run);

/// Per insert: the paper's figure, and the goal.
const WRITE_BACKS: (f64, f64) = (2.26, 1.7);
const FENCES: (f64, f64) = (1.06, 1.01);

/// What is counted.
const OPERATIONS: [&str; 4] = ["insert of a new key", "update of a key", "insert over a key", "removal"];

fn run(context: &Context<'_>) -> Result<Measured, Error> {
    let keys = context.keys_or(if context.quick { 150_000 } else { 1_000_000 });
    context.expect(OPERATIONS.len(), 1);
    context.now(format!("{keys} keys"));
    let size = (keys * 64 + (96 << 20)).next_multiple_of(64 << 20);
    let counting = Counting::new(Hardware::PAGE_CACHE);
    let pool = PoolOptions::new().initial_size(size).max_size(size).create_on(HeapBacking::new(size), counting)?;
    let mut tree = Tree::new(&pool)?;
    let how = format!("exact, {keys} of each, on random keys, merges included");
    let panel = Panel::new("write-backs and fences of an operation", &context.places[0], "counting", how);
    let x = OPERATIONS.map(String::from).to_vec();
    let mut panel = panel.axes("operation", x, "an operation", Form::Bars);
    let mut inserts = (0.0, 0.0);
    for (at, what) in OPERATIONS.into_iter().enumerate() {
        let before = counting.counts();
        work(&mut tree, at, keys)?;
        let counts = counting.counts() - before;
        let of = |count: u64| count as f64 / keys as f64;
        panel.set("write-backs", at, Point::exact(of(counts.write_backs)));
        panel.set("fences", at, Point::exact(of(counts.fences)));
        if at == 0 {
            inserts = (of(counts.write_backs), of(counts.fences));
        }
        context.step(what);
        context.tick();
    }
    let claim = |what: &str, ours: f64, (paper, goal): (f64, f64)| Claim {
        what: what.into(),
        paper: format!("{paper}; goal {goal}"),
        ours: format!("{ours:.3}"),
        holds: Some(ours <= goal),
    };
    let claims =
        vec![claim("write-backs an insert", inserts.0, WRITE_BACKS), claim("fences an insert", inserts.1, FENCES)];
    let notes =
        vec![format!("inserts begin with an empty tree; a merge step after each {} operations", super::trees::TICK)];
    Ok(Measured { panels: vec![panel], claims, notes })
}

/// The operations of number `what`, on `keys` keys.
fn work(tree: &mut Tree<Counting<Hardware>>, what: usize, keys: u64) -> Result<(), Error> {
    if what == 0 {
        return tree.insert(keys);
    }
    let mut random = Random(88_172_645_463_325_252);
    for i in 0..keys {
        let op = tree.session.enter()?;
        let key = key(random.next() % keys);
        match what {
            1 => assert!(tree.tree.update(&op, key, i)?, "the key is there"),
            2 => assert!(!tree.tree.insert(&op, key, i)?, "the key is there"),
            // Each key once, so that each removal finds one.
            _ => assert!(tree.tree.remove(&op, super::trees::key(i))?, "the key is there"),
        }
        drop(op);
        tree.tick(i)?;
    }
    Ok(())
}
