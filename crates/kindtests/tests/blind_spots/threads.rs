//! Two writers and a reader of neighbouring keys, two operations each, two preemptions; memory that is used again beside a reader that
//! was interrupted; and what a split moves beside one.

use durix::Direction;
use durix_crashsim::{Report, Threads};

use crate::Act::{self, *};
use crate::{Kind, deep, every_kind, filled};

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

#[test]
fn two_writers_and_a_reader_of_neighbouring_keys() {
    every_kind(|entry| {
        let kind = Kind::new(entry, &filled());
        let [one, other] = writers();
        let programs = if deep() { 40 } else { 3 };
        threads(&kind, 60).drawn(&kind, &[one, other, reader(&kind)], 2, programs, &[Put(4, 9)])
    });
}

#[test]
fn memory_is_not_used_again_beside_a_reader() {
    every_kind(|entry| {
        let kind = Kind::new(entry, &filled());
        let mut reads = vec![Get(4)];
        reads.extend(kind.entry.ordered.then_some(Range(4, 5, Direction::Forward)));
        let writes = vec![Remove(4), Put(6, 6), Remove(5), Put(7, 7), Put(8, 8)];
        threads(&kind, 40).preemptions(1).run(&kind, &[reads, writes], &[])
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
        let mut total = Report::default();
        for read in &reads[..if deep() { reads.len() } else { 1 }] {
            if total.failure.is_none() {
                let explorer = kind.explorer().executions_per_point(1).samples(1).crash_points(2);
                let threads = Threads::new(explorer).preemptions(1);
                let threads = threads.max_schedules(if deep() { 4000 } else { 120 });
                total.merge(threads.run(&kind, &[read.clone(), vec![Put(7, 1)]], &[]));
            }
        }
        total
    });
}
