//! Two writers and a reader of neighbouring keys, two operations each, two preemptions; memory that is used again beside a reader that
//! was interrupted; and what a split moves beside one.

use durix::Direction;
use durix_crashsim::Threads;

use crate::Act::{self, *};
use crate::{Kind, deep, every_kind, filled, in_turn};

fn writers() -> [Vec<Act>; 2] {
    [
        vec![Put(4, 7), Remove(4), Put(5, 7), Remove(5), Swap(4, Some(2), Some(8))],
        vec![Remove(4), Put(4, 6), Put(6, 6), Remove(5), PutNew(4, 5)],
    ]
}

/// Of one key each: a walk, and a call for many keys, looks at each at a moment of its own.
fn reader(kind: &Kind) -> Vec<Act> {
    let mut reads = vec![Get(4), Contains(5), GetMany(vec![4])];
    if kind.entry.ordered {
        reads.extend([Range(4, 5, Direction::Forward), Range(5, 6, Direction::Backward)]);
    }
    reads
}

fn threads(kind: &Kind, schedules: u64) -> Threads {
    let explorer = kind.explorer().executions_per_point(6).samples(2).crash_points(6);
    Threads::new(explorer).preemptions(2).max_schedules(if deep() { 20 * schedules } else { schedules })
}

/// How many times as long a schedule takes as with the others.
fn cost(kind: &Kind) -> u64 {
    if kind.entry.name.starts_with("dptree") { 20 } else { 1 }
}

#[test]
fn two_writers_and_a_reader_of_neighbouring_keys() {
    every_kind(|entry| {
        let kind = Kind::new(entry, &filled());
        let [one, other] = writers();
        let programs = if deep() { 40 } else { 3 };
        threads(&kind, 60).drawn(&kind, &[one, other, reader(&kind)], 2, programs, &[Put(4, 9)])
    });
}

/// The reader is stopped anywhere on its way to a key, or past it. Meanwhile a neighbour or the key itself is removed, and a new key
/// gets what memory there is.
#[test]
fn memory_is_not_used_again_beside_a_reader() {
    every_kind(|entry| {
        let ordered = entry.ordered;
        let kind = Kind { reuses_at_once: true, ..Kind::new(entry, &filled()) };
        // Values of the size of the old one, so that the new key gets its memory.
        let mut programs = vec![[vec![Get(4)], vec![Remove(4), Put(6, 5)]], [vec![Get(5)], vec![Remove(4), Put(8, 5)]]];
        if ordered {
            programs.extend(
                [Direction::Forward, Direction::Backward]
                    .map(|direction| [vec![Range(4, 5, direction)], vec![Remove(4), Put(6, 5), Remove(5), Put(7, 7)]]),
            );
        }
        let explorer = kind.explorer().executions_per_point(1).samples(1).crash_points(2);
        let threads = Threads::new(explorer).preemptions(if deep() { 2 } else { 1 });
        let threads = threads.max_schedules(if deep() { 20_000 } else { 80 / cost(&kind) });
        in_turn(programs.iter().map(|program| threads.run(&kind, program, &[])))
    });
}

/// A change that is interrupted before its fence, and each entry point that may learn of it meanwhile: a lookup, a walk either way,
/// another change that fails. What it answers, no crash takes back. With `DURIX_DEEP` set, every entry point.
#[test]
fn no_crash_takes_back_what_another_thread_was_told() {
    every_kind(|entry| {
        let kind = Kind::new(entry, &filled());
        let told = |key| {
            let mut looks = vec![PutNew(key, 5), Update(key, 8), Remove(key)];
            looks.extend([Some(8), None].into_iter().flat_map(|new| [2, 6].map(|old| Swap(key, Some(old), new))));
            if kind.entry.ordered {
                looks.extend([Direction::Forward, Direction::Backward].map(|walk| Range(key, key + 1, walk)));
            }
            if deep() {
                looks.extend([Get(key), Contains(key), GetMany(vec![key]), Swap(key, None, Some(5))]);
            }
            looks
        };
        let mut programs: Vec<[Vec<Act>; 2]> = Vec::new();
        for change in [Put(6, 6), Remove(4), Update(4, 9), Remove(9)] {
            let key = match change {
                Put(key, _) | Update(key, _) | Remove(key) => key,
                _ => unreachable!("not among the changes"),
            };
            let is_asked = |look: &Act| match (&change, look) {
                _ if deep() => true,
                // What finds something, builds upon the change, or fails because of it.
                (Put(..), look) => matches!(look, Range(..) | Update(..)),
                (Remove(4), look) => matches!(look, Range(_, _, Direction::Forward)),
                (Update(..), look) => matches!(look, Swap(_, Some(2), Some(_))),
                _ => false,
            };
            let looks = told(key).into_iter().filter(is_asked);
            programs.extend(looks.map(|look| [vec![change.clone()], vec![look]]));
        }
        let explorer = kind.explorer().executions_per_point(4).samples(1).crash_points(if deep() { 100 } else { 6 });
        let threads = Threads::new(explorer).preemptions(1).max_schedules(if deep() { 4000 } else { 40 / cost(&kind) });
        in_turn(programs.iter().map(|program| threads.run(&kind, program, &[])))
    });
}

/// The reader looks for a key in a full node, which a writer splits meanwhile: it is found, and only once.
#[test]
fn a_key_that_a_split_moves_beside_a_reader_is_found() {
    every_kind(|entry| {
        // Nodes of the trees have 15 slots. The new key comes in between, so that half of the others move.
        let before: Vec<Act> = (1..=15).map(|k| Put(2 * k, k)).collect();
        let kind = Kind::new(entry, &before);
        let mut reads = vec![vec![Get(28)], vec![GetMany(vec![4, 28])]];
        if kind.entry.ordered {
            reads.extend([Direction::Forward, Direction::Backward].map(|direction| vec![Range(28, 29, direction)]));
        }
        in_turn(reads[..if deep() { reads.len() } else { 1 }].iter().map(|read| {
            let explorer = kind.explorer().executions_per_point(1).samples(1).crash_points(2);
            let threads = Threads::new(explorer).preemptions(1);
            let threads = threads.max_schedules(if deep() { 4000 } else { 120 });
            threads.run(&kind, &[read.clone(), vec![Put(7, 1)]], &[])
        }))
    });
}
