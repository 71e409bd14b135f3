//! A table that grows: root → header (capacity, slots) → array of pointers → cells. The space for arrays has been used
//! before, and is not zero.

use std::sync::atomic::Ordering::{Relaxed, Release};

use durix_pmem::{Medium, Op};

use super::pattern::{Bound, Host, Map, Pattern, word};

#[derive(Clone, Copy, Debug, PartialEq)]
enum Bug {
    Root,
    InnerHeader,
    BulkArray,
    PointerSlots,
    OldArrayInstead,
    PointerInsteadOfPointee,
    CapacityFirst,
}

struct Directory;

const ROOT: u64 = 64;
const ARRAYS: u64 = 1024;
const JUNK: u64 = 0x8000;

/// Puts a key with ten times itself.
#[derive(Clone, Copy, Debug)]
struct Put(u64);

struct Free {
    line: u64,
    array: u64,
}

fn header<M: Medium>(op: &Op<'_, M>) -> u64 {
    op.load(word(op, ROOT), Relaxed)
}

fn slots<M: Medium>(op: &Op<'_, M>) -> Vec<u64> {
    let header = header(op);
    if header == 0 {
        return Vec::new();
    }
    let (capacity, array) = (op.load(word(op, header), Relaxed).min(8), op.load(word(op, header + 8), Relaxed));
    (0..capacity).map(|i| array + i * 8).collect()
}

fn grow<M: Medium>(op: &Op<'_, M>, free: &mut Free, bug: Option<Bug>) {
    let old = slots(op);
    let capacity = (old.len() as u64 * 2).max(2);
    let array = free.array;
    free.array += 64;
    for i in 0..capacity {
        let kept = old.get(i as usize).map_or(0, |slot| op.load(word(op, *slot), Relaxed));
        op.store(word(op, array + i * 8), kept, Relaxed);
    }
    match bug {
        Some(Bug::BulkArray) => {}
        Some(Bug::OldArrayInstead) => old.first().into_iter().for_each(|slot| op.write_back(word(op, *slot))),
        _ => op.write_back(word(op, array)),
    }
    if bug == Some(Bug::CapacityFirst) && header(op) != 0 {
        op.fence();
        op.store(word(op, header(op)), capacity, Release);
        op.persist(word(op, header(op)));
        op.store(word(op, header(op) + 8), array, Release);
        op.persist(word(op, header(op)));
        return;
    }
    let header = free.line;
    free.line += 64;
    op.store(word(op, header), capacity, Relaxed);
    op.store(word(op, header + 8), array, Relaxed);
    if bug != Some(Bug::InnerHeader) {
        op.write_back(word(op, header));
    }
    op.fence();
    op.store(word(op, ROOT), header, Release);
    if bug != Some(Bug::Root) {
        op.write_back(word(op, ROOT));
    }
    op.fence();
}

impl Host for Directory {
    type Bug = Bug;
    type Do = Put;
    type Volatile = Free;

    fn create<M: Medium>(op: &Op<'_, M>, _: Option<Bug>) -> Free {
        for off in (ARRAYS..ARRAYS + 512).step_by(8) {
            op.store(word(op, off), JUNK, Relaxed);
        }
        (ARRAYS..ARRAYS + 512).step_by(64).for_each(|off| op.write_back(word(op, off)));
        op.fence();
        Free { line: 128, array: ARRAYS }
    }

    fn recover<M: Medium>(op: &Op<'_, M>, bug: Option<Bug>) -> Result<Free, String> {
        if header(op) == 0 {
            return Ok(Self::create(op, bug));
        }
        let mut free = Free { line: header(op) + 64, array: slots(op).first().map_or(ARRAYS, |s| s / 64 * 64 + 64) };
        for slot in slots(op) {
            let cell = op.load(word(op, slot), Relaxed);
            if cell >= ARRAYS {
                return Err(format!("a pointer to {cell:#x}"));
            }
            free.line = free.line.max(cell + 64);
        }
        Ok(free)
    }

    fn apply<M: Medium>((op, _): (&Op<'_, M>, &Op<'_, M>), free: &mut Free, bug: Option<Bug>, put: Put) -> Option<u64> {
        let slot = loop {
            if let Some(slot) = slots(op).into_iter().find(|slot| op.load(word(op, *slot), Relaxed) == 0) {
                break slot;
            }
            grow(op, free, bug);
        };
        let cell = free.line;
        free.line += 64;
        op.store(word(op, cell), put.0, Relaxed);
        op.store(word(op, cell + 8), put.0 * 10, Relaxed);
        op.write_back(word(op, if bug == Some(Bug::PointerInsteadOfPointee) { slot } else { cell }));
        op.fence();
        op.store(word(op, slot), cell, Release);
        if bug != Some(Bug::PointerSlots) {
            op.write_back(word(op, slot));
        }
        op.fence();
        None
    }

    fn contents<M: Medium>(op: &Op<'_, M>) -> Map {
        let cells = slots(op).into_iter().map(|slot| op.load(word(op, slot), Relaxed)).filter(|cell| *cell != 0);
        cells.map(|cell| (op.load(word(op, cell), Relaxed), op.load(word(op, cell + 8), Relaxed))).collect()
    }

    fn step(model: &mut Map, put: Put) -> Option<u64> {
        model.insert(put.0, put.0 * 10);
        None
    }
}

pub(super) fn patterns() -> Vec<Pattern> {
    let planted = |group, name, bug| {
        Pattern::new::<Directory>(group, name, Bound::Sequential, bug, (&[Put(1), Put(2), Put(3)], &[Put(4)]))
    };
    vec![
        planted("write-back", "root object", Bug::Root),
        planted("write-back", "inner header", Bug::InnerHeader),
        planted("write-back", "bulk-initialised array", Bug::BulkArray),
        planted("write-back", "pointer-array slots", Bug::PointerSlots),
        planted("write-back", "old array flushed instead of the new directory", Bug::OldArrayInstead),
        planted("write-back", "pointer instead of pointee", Bug::PointerInsteadOfPointee),
        planted("atomicity", "capacity published before the table", Bug::CapacityFirst),
    ]
}
