//! A set of versioned entries, as `durix-pset` keeps them: superseded entries are reused first in, first out; a removal leaves a
//! tombstone; the entries of a transaction count if all of them are there, or if a durable watermark covers it.

use std::collections::VecDeque;
use std::sync::atomic::Ordering::{Relaxed, Release};

use durix_crashsim::Explorer;
use durix_pmem::{Medium, Op};

use super::pattern::{Host, Map, Pattern, word};

#[derive(Clone, Copy, Debug, PartialEq)]
enum Bug {
    /// Recovery queues what lost by its place, and not by its version: a tombstone is reused before what it hides.
    OutOfOrder,
    /// The watermark counts when it is stored, and not when it is durable.
    MarkEarly,
}

#[derive(Clone, Copy, Debug)]
enum Do {
    Put(u64, u64),
    Remove(u64),
    /// Keys 1 and 2, together.
    Pair(u64),
}

struct Set;

/// What a process knows: in which order entries can be reused, with the version of the transaction of each.
struct Known {
    reusable: VecDeque<(usize, u64)>,
    version: u64,
    committed: u64,
    durable_mark: u64,
}

const MARK: u64 = 64;
const SLOTS: usize = 5;

#[derive(Clone, Copy, Debug, PartialEq)]
struct Entry {
    version: u64,
    /// Entries of its transaction, 0 without one.
    count: u64,
    key: u64,
    /// 0 is a tombstone.
    value: u64,
}

fn at(slot: usize) -> u64 {
    128 + 64 * slot as u64
}

fn read<M: Medium>(op: &Op<'_, M>, slot: usize) -> Option<Entry> {
    let word = op.load(word(op, at(slot)), Relaxed);
    let part = |shift: u32| word >> shift & 0xff;
    (word != 0).then(|| Entry { version: part(24), count: part(16), key: part(8), value: part(0) })
}

fn write<M: Medium>(op: &Op<'_, M>, slot: usize, entry: Entry) {
    let Entry { version, count, key, value } = entry;
    op.store(word(op, at(slot)), version << 24 | count << 16 | key << 8 | value, Release);
    op.write_back(word(op, at(slot)));
}

fn entries<M: Medium>(op: &Op<'_, M>) -> Vec<(usize, Entry)> {
    (0..SLOTS).filter_map(|slot| Some((slot, read(op, slot)?))).collect()
}

/// The newest entry of a key.
fn newest<M: Medium>(op: &Op<'_, M>, key: u64) -> Option<(usize, Entry)> {
    entries(op).into_iter().filter(|(_, entry)| entry.key == key).max_by_key(|(_, entry)| entry.version)
}

impl Known {
    /// A slot to write, and whether the watermark has to be written back with it.
    fn take<M: Medium>(&mut self, op: &Op<'_, M>, bug: Option<Bug>) -> (usize, bool) {
        let mut raised = false;
        if let Some((slot, transaction)) = self.reusable.front().copied() {
            if transaction > self.durable_mark {
                op.store(word(op, MARK), self.committed, Release);
                op.write_back(word(op, MARK));
                raised = true;
            }
            if transaction <= self.durable_mark || bug == Some(Bug::MarkEarly) {
                self.reusable.pop_front();
                return (slot, raised);
            }
        }
        let free = (0..SLOTS).find(|slot| read(op, *slot).is_none());
        (free.expect("the histories are short"), raised)
    }

    fn change<M: Medium>(&mut self, op: &Op<'_, M>, bug: Option<Bug>, changes: &[(u64, u64)]) {
        self.version += 1;
        let count = if changes.len() > 1 { changes.len() as u64 } else { 0 };
        let mut superseded = Vec::new();
        let mut raised = false;
        for (key, value) in changes {
            let old = newest(op, *key);
            let (slot, raises) = self.take(op, bug);
            raised |= raises;
            let entry = Entry { version: self.version, count, key: *key, value: *value };
            write(op, slot, entry);
            // What is superseded, and after it its tombstone.
            superseded.extend(old.filter(|(_, old)| old.value != 0));
            superseded.extend((*value == 0).then_some((slot, entry)));
        }
        op.fence();
        if raised {
            self.durable_mark = self.committed;
        }
        if count > 0 {
            self.committed = self.version;
        }
        self.reusable.extend(superseded.iter().map(|(slot, old)| (*slot, transaction_of(*old))));
    }
}

fn transaction_of(entry: Entry) -> u64 {
    if entry.count > 0 { entry.version } else { 0 }
}

impl Host for Set {
    type Bug = Bug;
    type Do = Do;
    type Volatile = Known;

    fn create<M: Medium>(_: &Op<'_, M>, _: Option<Bug>) -> Known {
        Known { reusable: VecDeque::new(), version: 0, committed: 0, durable_mark: 0 }
    }

    fn recover<M: Medium>(op: &Op<'_, M>, bug: Option<Bug>) -> Result<Known, String> {
        let mark = op.load(word(op, MARK), Relaxed);
        let all = entries(op);
        let of = |version| all.iter().filter(|(_, entry)| entry.version == version).count() as u64;
        let mut known = Known { reusable: VecDeque::new(), version: mark, committed: mark, durable_mark: mark };
        for (slot, entry) in &all {
            known.version = known.version.max(entry.version);
            if entry.count > 0 && entry.version > mark {
                if of(entry.version) == entry.count {
                    known.committed = known.committed.max(entry.version);
                } else {
                    op.store(word(op, at(*slot)), 0, Release);
                    op.write_back(word(op, at(*slot)));
                }
            }
        }
        op.fence();
        let mut losers: Vec<(usize, Entry)> = entries(op);
        losers.retain(|(slot, entry)| entry.value == 0 || newest(op, entry.key).is_some_and(|(won, _)| won != *slot));
        losers.sort_by_key(|(_, entry)| entry.version);
        if bug == Some(Bug::OutOfOrder) {
            losers.reverse();
        }
        known.reusable.extend(losers.iter().map(|(slot, entry)| (*slot, transaction_of(*entry))));
        Ok(known)
    }

    fn apply<M: Medium>(
        (op, _): (&Op<'_, M>, &Op<'_, M>),
        known: &mut Known,
        bug: Option<Bug>,
        what: Do,
    ) -> Option<u64> {
        match what {
            Do::Put(key, value) => known.change(op, bug, &[(key, value)]),
            Do::Remove(key) => known.change(op, bug, &[(key, 0)]),
            Do::Pair(value) => known.change(op, bug, &[(1, value), (2, value)]),
        }
        None
    }

    fn contents<M: Medium>(op: &Op<'_, M>) -> Map {
        let live = |key| newest(op, key).filter(|(_, entry)| entry.value != 0).map(|(_, entry)| (key, entry.value));
        (1..8).filter_map(live).collect()
    }

    fn step(model: &mut Map, what: Do) -> Option<u64> {
        match what {
            Do::Put(key, value) => _ = model.insert(key, value),
            Do::Remove(key) => _ = model.remove(&key),
            Do::Pair(value) => model.extend([(1, value), (2, value)]),
        }
        None
    }
}

pub(super) fn patterns() -> Vec<Pattern> {
    use Do::{Pair, Put, Remove};
    let explorer = || Explorer::new().crashes(2);
    vec![
        // The same key again hides it: its new entry is the newest.
        Pattern::blind::<Set, Set>(
            ("versions", "what lost is queued out of order"),
            Bug::OutOfOrder,
            (explorer(), &[Put(1, 1), Put(1, 2), Remove(1)], &[Put(1, 3)]),
            (explorer(), &[Put(1, 1), Put(1, 2), Remove(1)], &[Put(3, 3)]),
        ),
        // It takes a third operation to reuse an entry of the transaction.
        Pattern::blind::<Set, Set>(
            ("versions", "the watermark counts before it is durable"),
            Bug::MarkEarly,
            (explorer(), &[Pair(1), Put(1, 2)], &[Put(3, 3)]),
            (explorer(), &[Pair(1), Put(1, 2), Put(1, 3)], &[]),
        ),
    ]
}
