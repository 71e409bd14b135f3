//! Two sorted leaves under a root: the root says from which key on the right one counts. The greatest key is kept apart.

use std::sync::atomic::Ordering::{Relaxed, Release};

use durix_pmem::{Medium, Op};

use super::pattern::{Bound, Host, Map, Pattern, word};

#[derive(Clone, Copy, Debug, PartialEq)]
enum Bug {
    Sibling,
    Metadata,
    CountFirst,
    RootNotSet,
    MovedWithoutLog,
}

#[derive(Clone, Copy, Debug)]
enum Do {
    /// Keys ascend.
    Add(u64),
    /// Moves the two greatest keys of the left leaf to the right one.
    Move,
}

struct Tree;

/// Separator (0: there is no right leaf).
const ROOT: u64 = 64;
const META: u64 = 128;
const LEAVES: [u64; 2] = [192, 256];
/// Small, so that few keys make a split.
const ROOM: u64 = 2;

fn keys<M: Medium>(op: &Op<'_, M>, leaf: u64) -> Vec<u64> {
    let count = op.load(word(op, leaf), Relaxed).min(7);
    (1..=count).map(|i| op.load(word(op, leaf + i * 8), Relaxed)).collect()
}

fn set_count<M: Medium>(op: &Op<'_, M>, leaf: u64, count: u64) {
    op.store(word(op, leaf), count, Release);
    op.persist(word(op, leaf));
}

/// Appends keys to a leaf; they count when its count says so, which lies on the same line.
fn append<M: Medium>(op: &Op<'_, M>, leaf: u64, keys_in: &[u64], bug: Option<Bug>) {
    let count = keys(op, leaf).len() as u64;
    if bug == Some(Bug::CountFirst) {
        op.store(word(op, leaf), count + keys_in.len() as u64, Release);
        op.order();
    }
    for (i, key) in keys_in.iter().enumerate() {
        op.store(word(op, leaf + (count + 1 + i as u64) * 8), *key, Relaxed);
    }
    op.store(word(op, leaf), count + keys_in.len() as u64, Release);
}

/// From the left leaf to the right: first into the right one, then the separator, then out of the left one.
fn shift<M: Medium>(op: &Op<'_, M>, left: &[u64], from: usize, bug: Option<Bug>) {
    let early = bug == Some(Bug::RootNotSet) || bug == Some(Bug::MovedWithoutLog);
    if early {
        set_count(op, LEAVES[0], from as u64);
    }
    let old = keys(op, LEAVES[1]);
    // What the right leaf held comes behind.
    for (i, key) in left[from..].iter().chain(&old).enumerate() {
        op.store(word(op, LEAVES[1] + (1 + i as u64) * 8), *key, Relaxed);
    }
    op.store(word(op, LEAVES[1]), (left.len() - from + old.len()) as u64, Release);
    if bug != Some(Bug::Sibling) {
        op.write_back(word(op, LEAVES[1]));
    }
    op.fence();
    op.store(word(op, ROOT), left[from], Release);
    op.persist(word(op, ROOT));
    if !early {
        set_count(op, LEAVES[0], from as u64);
    }
}

impl Host for Tree {
    type Bug = Bug;
    type Do = Do;
    type Volatile = ();

    fn create<M: Medium>(_: &Op<'_, M>, _: Option<Bug>) {}

    fn recover<M: Medium>(op: &Op<'_, M>, _: Option<Bug>) -> Result<(), String> {
        let separator = op.load(word(op, ROOT), Relaxed);
        if separator == 0 {
            // A right leaf that does not count yet.
            set_count(op, LEAVES[1], 0);
            return Ok(());
        }
        let left = keys(op, LEAVES[0]).iter().filter(|k| **k < separator).count();
        set_count(op, LEAVES[0], left as u64);
        Ok(())
    }

    fn apply<M: Medium>((op, _): (&Op<'_, M>, &Op<'_, M>), (): &mut (), bug: Option<Bug>, what: Do) -> Option<u64> {
        let left = keys(op, LEAVES[0]);
        let split = op.load(word(op, ROOT), Relaxed) != 0;
        let Do::Add(key) = what else {
            if !split && left.len() >= 2 {
                shift(op, &left, left.len() - 2, bug);
            }
            return None;
        };
        if !split && left.len() as u64 == ROOM {
            shift(op, &left, left.len() / 2, bug);
        }
        // An upper bound, so it may be durable before the key is there.
        op.store(word(op, META), key, Release);
        if bug != Some(Bug::Metadata) {
            op.write_back(word(op, META));
        }
        op.fence();
        let leaf = LEAVES[usize::from(op.load(word(op, ROOT), Relaxed) != 0)];
        append(op, leaf, &[key], bug);
        op.persist(word(op, leaf));
        None
    }

    fn contents<M: Medium>(op: &Op<'_, M>) -> Map {
        let (separator, greatest) = (op.load(word(op, ROOT), Relaxed), op.load(word(op, META), Relaxed));
        let left = keys(op, LEAVES[0]).into_iter().filter(|k| separator == 0 || *k < separator);
        let right = if separator == 0 { Vec::new() } else { keys(op, LEAVES[1]) };
        left.chain(right).filter(|k| *k <= greatest).map(|k| (k, k)).collect()
    }

    fn step(model: &mut Map, what: Do) -> Option<u64> {
        if let Do::Add(key) = what {
            model.insert(key, key);
        }
        None
    }
}

pub(super) fn patterns() -> Vec<Pattern> {
    use Do::{Add, Move};
    const SPLIT: (&[Do], &[Do]) = (&[Add(1), Add(2), Add(3)], &[Add(9)]);
    let planted = |group, name, bug, ops| Pattern::new::<Tree>(group, name, Bound::Sequential, bug, ops);
    vec![
        planted("write-back", "a split's new sibling", Bug::Sibling, SPLIT),
        planted("write-back", "metadata updated after a split", Bug::Metadata, SPLIT),
        planted("atomicity", "count before the keys of its line", Bug::CountFirst, (&[Add(1)], &[Add(9)])),
        planted("atomicity", "root split: sibling linked, root not set", Bug::RootNotSet, SPLIT),
        planted(
            "atomicity",
            "two slots moved without a log",
            Bug::MovedWithoutLog,
            (&[Add(1), Add(2), Move], &[Add(9)]),
        ),
    ]
}
