//! Two writers and a reader of neighbouring keys, two operations each, two preemptions; and memory that is used again beside a
//! reader that was interrupted.

use durix::Direction;
use durix_crashsim::Threads;

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
