//! What is there before, what is done, and what follows every recovery: the windows of a durable tree, one each.

use super::subject::Act::{self, *};

pub fn puts(keys: impl Iterator<Item = u8>, v: u8) -> Vec<Act> {
    keys.map(|k| Put(k, v)).collect()
}

fn other(act: Act) -> Act {
    Other(Box::new(act))
}

/// Follows every recovery.
pub fn after() -> Vec<Act> {
    vec![Put(0, 7), Put(60, 107), Remove(1), Sync, Put(0, 108), Put(61, 8)]
}

/// A full interior node below the root, and what splits it: with three nodes in the log, too many states to go through them all.
pub fn below_the_root() -> (Vec<Act>, Vec<Act>) {
    (puts((25..200).rev(), 1), vec![Put(24, 2), Remove(190), Sync, Put(100, 2)])
}

/// Two interior nodes below a root, of the border nodes with keys 25 to 143 and 144 to 199, without some of the keys.
fn two_interiors_without(keys: impl Iterator<Item = u8>) -> Vec<Act> {
    puts((25..200).rev(), 1).into_iter().chain(keys.map(Remove)).collect()
}

/// A name, what is there before, and what is done.
type Window = (&'static str, Vec<Act>, Vec<Act>);

/// All windows.
pub fn scenarios() -> Vec<Window> {
    [changes(), layers_and_merges(), restarts(), boundaries()].concat()
}

/// One node changes, or splits.
fn changes() -> Vec<Window> {
    let some = puts((0..6).map(|k| k * 10), 1);
    let full = puts(0..14, 1);
    let records = puts(0..3, 101);
    let evens = puts((0..28).map(|k| k * 2), 1);
    let interior_full = puts((81..200).rev(), 1);
    vec![
        ("P1 P2 first change: insert", some.clone(), vec![Put(5, 2)]),
        ("P1 P2 first change: update takes a slot", some.clone(), vec![Put(10, 2)]),
        ("P1 P2 first change: remove", some.clone(), vec![Remove(10)]),
        ("P4 remove, then insert, in one epoch", some.clone(), vec![Remove(10), Put(5, 2), Put(10, 3)]),
        (
            "P4 a slot of the epoch before is taken behind a boundary",
            (0..6).map(|k| PutWide(k * 10)).collect(),
            vec![RemoveWide(20), PutWide(25), Sync, PutWide(20), RemoveWide(25)],
        ),
        ("a new key is updated in place", some.clone(), vec![Put(5, 2), Put(5, 3), Put(5, 104), Put(5, 4)]),
        ("two hot values, and the same value again", some.clone(), vec![Put(0, 2), Put(10, 2), Put(0, 2), Put(10, 3)]),
        ("P3 no slot is left", full.clone(), vec![Put(0, 2), Put(1, 3), Put(0, 4), Remove(2)]),
        (
            "P3 after InCLLp was used, inserts",
            full[..13].to_vec(),
            vec![Remove(0), Put(1, 2), Put(2, 3), Put(20, 4), Put(21, 4)],
        ),
        ("root splits", full.clone(), vec![Put(7, 2), Put(14, 2), Put(15, 2)]),
        ("border splits", evens, vec![Put(5, 2), Put(0, 3), Sync, Put(30, 2)]),
        ("an interior root splits", interior_full, vec![Put(80, 2), Remove(190), Sync, Put(100, 2)]),
        (
            "records: free, and take in the next epoch",
            records,
            vec![Put(0, 102), Remove(1), Sync, Put(0, 103), Put(5, 104), Remove(2)],
        ),
        ("a record that nobody has seen", vec![], vec![Put(0, 101), Put(0, 102), Remove(0), Put(0, 103)]),
        ("a large value", vec![Put(0, 250)], vec![Put(1, 251), Remove(0), Sync, Put(2, 252)]),
    ]
}

/// Layers come and go; nodes merge.
fn layers_and_merges() -> Vec<Window> {
    let two = puts(0..15, 1);
    vec![
        ("a layer is made", vec![Put(200, 1)], vec![Put(201, 2), Put(202, 103), Remove(200)]),
        ("layers in layers", vec![Put(230, 1)], vec![Put(231, 2), Put(200, 3), Remove(230), Remove(231)]),
        ("a layer goes", vec![Put(200, 1), Put(201, 1), Put(0, 1)], vec![Remove(200), Remove(201), Put(202, 3)]),
        (
            "nodes merge, the root gets lower",
            two,
            [Remove(14), Put(0, 2)].into_iter().chain((7..14).map(Remove)).chain([Sync, Put(0, 3)]).collect(),
        ),
        (
            "the last border node of an interior one goes with it, the first of the tree",
            two_interiors_without(25..143),
            vec![Remove(143), Put(100, 2), Sync, Put(100, 3)],
        ),
        (
            "the last border node of an interior one goes with it, the last of the tree",
            two_interiors_without((145..200).rev()),
            vec![Remove(144), Put(150, 2), Sync, Put(150, 3)],
        ),
        (
            "the first border node of an interior one goes, behind another interior one",
            two_interiors_without(145..151),
            vec![Remove(144), Put(145, 2), Sync, Put(145, 3)],
        ),
    ]
}

/// Several sessions, restarts, and processes that die.
fn restarts() -> Vec<Window> {
    let some = puts((0..6).map(|k| k * 10), 1);
    let full = puts(0..14, 1);
    vec![
        (
            "two sessions",
            some.clone(),
            vec![Put(5, 2), other(Put(6, 103)), other(Sync), other(Put(10, 3)), Put(0, 104)],
        ),
        ("a restart undoes", some.clone(), vec![Put(5, 2), Remove(0), Restart, Put(6, 3), Sync, Put(6, 4)]),
        (
            "a node merely read after a restart",
            some.clone(),
            vec![Put(5, 2), Sync, Put(6, 2), Restart, Get(5), Restart, Get(5)],
        ),
        (
            // 12 has a slot on the last line.
            "a log that is replayed, and is not again",
            full,
            vec![Put(0, 2), Put(12, 3), Restart, Put(0, 4), Sync, Put(2, 5), Restart],
        ),
        (
            "blocks after a restart",
            puts(0..3, 101),
            vec![Remove(0), Put(5, 102), Restart, Put(6, 103), Put(0, 104), Sync, Put(1, 105)],
        ),
        (
            "a log that is replayed counts no more, whoever fences",
            puts(0..14, 1),
            vec![Put(0, 2), Put(1, 3), Restart, other(Put(0, 4)), other(Sync), other(Put(2, 5))],
        ),
        (
            "the process dies in an update",
            puts(0..3, 101),
            vec![Put(5, 1), Killed(Box::new(Put(0, 102))), other(Put(6, 104)), other(Sync), Put(1, 3)],
        ),
        (
            "the process dies with a new slab",
            vec![],
            vec![Killed(Box::new(Put(0, 101))), other(Put(1, 101)), other(Sync), Put(2, 102)],
        ),
        (
            "the process dies in a split",
            puts(0..14, 1),
            vec![Killed(Box::new(Put(14, 2))), other(Put(15, 3)), other(Sync), Put(16, 3)],
        ),
        (
            "the process dies with an image",
            puts(0..14, 1),
            vec![Put(0, 2), Killed(Box::new(Put(1, 3))), other(Put(0, 4)), other(Sync)],
        ),
        ("a split is undone by a restart", puts(0..14, 1), vec![Put(14, 2), Restart, Put(15, 2), Sync, Put(16, 3)]),
    ]
}

/// Sweeps, rounds, and boundaries.
fn boundaries() -> Vec<Window> {
    let some = puts((0..6).map(|k| k * 10), 1);
    vec![
        (
            "W1 F1 a sweep undoes what nobody looks at",
            puts(0..15, 1),
            vec![Put(0, 2), Put(14, 3), Restart, Sync, Sync, Sync, Restart, Put(0, 4)],
        ),
        (
            "W2 passes of several steps, cut short by restarts",
            [puts(0..15, 1), puts(20..22, 101)].concat(),
            // The second restart falls behind the start of a second pass, and the third behind its end.
            [Put(0, 2), Put(14, 102), Restart, Sync, Sync, Put(1, 3)]
                .into_iter()
                .chain((0..10).map(|i| if i % 3 == 0 { Restart } else { Sync }))
                .collect(),
        ),
        (
            "W1 a sweep among changes",
            puts(0..15, 1),
            vec![Put(0, 2), Restart, Put(20, 101), Sync, Remove(14), Sync, Put(1, 3), Sync],
        ),
        (
            "B1 changes before and after a round: by InCLLp, in place, records",
            some.clone(),
            vec![Put(5, 2), Put(0, 102), Ahead, Put(5, 3), Put(0, 103), Ahead, Remove(10), Put(5, 4), Sync, Put(5, 5)],
        ),
        (
            "B1 changes before and after a round: logged nodes, a split",
            puts(0..14, 1),
            vec![
                Put(0, 2),
                Put(1, 3),
                Ahead,
                Put(0, 4),
                Put(1, 5),
                Sync,
                Put(14, 2),
                Ahead,
                Put(15, 3),
                Put(0, 6),
                Sync,
            ],
        ),
        (
            "a hot node: logged, then words in place, over a round and a boundary",
            puts(0..14, 1),
            vec![Put(0, 2), Put(1, 3), Put(1, 4), Ahead, Put(1, 5), Put(1, 6), Sync, Put(1, 7), Put(1, 8)],
        ),
        ("a boundary between", some, vec![Put(5, 2), Sync, Put(5, 3), Remove(0), Sync, Put(0, 4)]),
    ]
}
