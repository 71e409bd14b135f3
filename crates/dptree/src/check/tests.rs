//! A row for everything that a check, or an opening, can find wrong: one damage, and exactly what is said of it.

use std::collections::BTreeSet;
use std::sync::Arc;

use durix_pmem::backing::HeapBacking;
use durix_pmem::testing::assert_each_has_a_row;
use durix_pmem::{Bits, Hardware, Pool, PoolOptions, Word};

use super::*;
use crate::error::Wrong;
use crate::layout::{Descriptor, LINE_SLOTS, PAGE_MAGIC, UNITS_MAGIC};
use crate::layout::{ExtentHead, ROOT_MAGIC, SANE_VERSION, Shape, State, head_sum, record_line, root_words, slot_line};
use crate::record::{Place, Record};
use crate::{Options, Result};

durix_pmem::variants!(FAULTS, fault_name: Fault {
    RangeBegin, LastRange, SameUnit, NotFound, OutsideLeaf, Order, OutsideFront, Block, NoLeaves, Descriptor, Units, Bytes,
    LogPages, Unreadable, Mark, OtherEntries,
});
durix_pmem::variants!(PARTS, part_name: Wrong {
    ExtentHead, UnitsHead, PageHead, Polarity, RootWord, Parameters, RangePlace, RangeMagic, RangeLow, RangeState, NoLeaves,
    LeafNumber, LeafSlots, LeafPlace, LeafLow, Version, RecordSum, LeafOrder, TreeOrder,
});

/// Parts that an opening does not look at: what merges and walks find.
const NOT_AT_OPENING: [&str; 2] = ["LeafOrder", "TreeOrder"];

const SHAPE: Shape = Shape { slots: 4, leaves: 3, page_lines: 2 };

fn options() -> Options {
    Options::default().shape(SHAPE).least_front(4)
}

/// Keys 10, 20, … in leaves of several ranges, of which the last one is empty, and one key in a front.
struct Sound<'s> {
    op: &'s Op<'s, Hardware>,
    tree: &'s DpTree<Hardware>,
    ranges: Vec<Arc<Range>>,
}

impl Sound<'_> {
    fn store<T: Bits>(&self, word: &Word<T>, value: T) {
        self.op.store(word, value, Relaxed);
    }

    fn snapshot(&self, range: usize) -> &Snapshot {
        self.ranges[range].snapshot.get(self.op)
    }

    fn block(&self, range: usize) -> u64 {
        self.ranges[range].block.get()
    }

    fn head(&self, range: usize) -> &RangeHead {
        self.op.at(self.ranges[range].block)
    }

    fn leaf(&self, range: usize, leaf: usize) -> &Leaf {
        &self.snapshot(range).leaves[leaf].leaf
    }

    fn descriptor(&self, range: usize, leaf: usize) -> &Descriptor {
        self.op.at(SHAPE.descriptor(self.ranges[range].block, self.snapshot(range).side, leaf))
    }

    /// The words of the slot of a leaf's key with a number, in the order of keys.
    fn slot(&self, range: usize, leaf: usize, number: usize) -> &[Word; 2] {
        let leaf = self.leaf(range, leaf);
        let slot = usize::from(leaf.order(self.op).slots(leaf.count())[number]);
        &self.op.at(slot_line(leaf.off, slot)).slots[slot % LINE_SLOTS]
    }

    fn key(&self, range: usize, leaf: usize, number: usize) -> u64 {
        self.op.load(&self.slot(range, leaf, number)[0], Relaxed)
    }

    /// Changes a key in its slot; returns where the leaf lies.
    fn set_key(&self, range: usize, leaf: usize, number: usize, key: u64) -> u64 {
        self.store(&self.slot(range, leaf, number)[0], key);
        self.leaf(range, leaf).off
    }

    /// Leaves a range out of the directory.
    fn forget(&self, range: usize) {
        let kept = self.ranges.iter().enumerate().filter(|(number, _)| *number != range);
        let kept = kept.map(|(number, range)| (self.snapshot(number).low, Arc::clone(range)));
        drop(self.tree.directory.replace(self.op, Directory::of(self.op, kept)));
    }

    /// An extent of units, or of a log page, with its magic.
    fn extent(&self, magic: u64) -> (u64, &ExtentHead) {
        let extents = own_extents(self.op, self.tree.root(), &self.tree.options);
        let mut all = extents.iter().map(|extent| (extent.off, self.op.at(Off::<ExtentHead>::new(extent.off))));
        all.find(|(_, head)| self.op.load(&head.magic, Relaxed) == magic).unwrap()
    }

    /// The words of the record of the key in a front.
    fn record(&self) -> (u64, &[Word; 4], u64, Record) {
        let (pages, _) = self.tree.log.all_pages(self.op.medium());
        for page in pages {
            let polarity = self.op.load(&self.op.at(Off::<ExtentHead>::new(page)).polarity, Relaxed);
            for words in (0..SHAPE.page_lines).flat_map(|line| &self.op.at(record_line(page, line)).records) {
                match Record::load(self.op, words, polarity) {
                    Ok(Some(record)) if record.key == IN_FRONT => {
                        return (self.op.off_of(words).get(), words, polarity, record);
                    }
                    _ => {}
                }
            }
        }
        panic!("no record of the key in a front")
    }

    fn root(&self) -> (u64, &crate::layout::RootWords) {
        let words = root_words(self.op, self.tree.root());
        (self.op.off_of(words).get(), words)
    }

    fn last(&self) -> usize {
        self.ranges.len() - 1
    }
}

const IN_FRONT: u64 = 15;

fn pool() -> Pool {
    let options = PoolOptions::new().chunk_size(4096).lanes(1).max_indices(2).initial_size(1 << 20).max_size(1 << 20);
    options.create_on(HeapBacking::new(1 << 20), Hardware::PAGE_CACHE).unwrap()
}

fn fill(pool: &Pool) -> Arc<DpTree> {
    let tree = DpTree::open_with(pool, "tree", &options()).unwrap();
    let mut session = pool.session().unwrap();
    let merge = |session: &mut _| tree.merge_all(session).unwrap();
    for key in (10..400).step_by(10) {
        tree.insert(&session.enter().unwrap(), key, key + 1).unwrap();
        merge(&mut session);
    }
    let op = session.enter().unwrap();
    let low = tree.directory.get(&op).ranges().last().unwrap().snapshot.get(&op).low;
    (low..400).for_each(|key| _ = tree.remove(&op, key).unwrap());
    drop(op);
    merge(&mut session);
    let op = session.enter().unwrap();
    tree.insert(&op, IN_FRONT, 1).unwrap();
    tree.log.stock(&op, tree.root()).unwrap();
    tree
}

fn with_sound(with: impl FnOnce(&Sound<'_>)) {
    let pool = pool();
    let tree = fill(&pool);
    let mut session = pool.session().unwrap();
    let op = session.enter().unwrap();
    let ranges: Vec<_> = tree.directory.get(&op).ranges().cloned().collect();
    let sound = Sound { op: &op, tree: &tree, ranges };
    assert!(sound.ranges.len() > 3 && sound.snapshot(0).leaves.len() > 1 && sound.snapshot(1).leaves.len() > 1);
    assert!(sound.snapshot(sound.last()).leaves.is_empty());
    with(&sound);
}

/// The tree as a restart finds it, beside the one that is open.
fn again(tree: &DpTree) -> Result<DpTree> {
    DpTree::recover(&mut tree.root().pool().session().unwrap(), tree.root().clone(), &options())
}

/// Which tree is checked.
#[derive(Clone, Copy, PartialEq, Eq)]
enum After {
    /// The one that was open when the damage was done.
    Damage,
    /// The one that a restart finds.
    Restart,
}
use After::{Damage, Restart};

/// Which tree is checked, what is damaged, and which classes are reported: the first one at the offset that the damage returns.
type Row = (&'static str, &'static [&'static str], After, fn(&Sound<'_>) -> u64);

const CHECKS: &[Row] = &[
    ("RangeBegin", &["Units"], Damage, |s| {
        s.forget(1);
        s.block(2)
    }),
    ("LastRange", &["Units"], Damage, |s| {
        s.forget(s.last());
        0
    }),
    ("SameUnit", &[], Damage, |s| {
        s.tree.units.give_back(s.op.medium(), &[s.leaf(1, 0).off]);
        s.leaf(1, 0).off
    }),
    ("SameUnit", &[], Damage, |s| {
        s.tree.units.give_back(s.op.medium(), &[s.block(1)]);
        s.block(1)
    }),
    ("NotFound", &["OtherEntries"], Damage, |s| s.set_key(1, 0, 0, s.key(1, 0, 0) + 1)),
    // Below and above what the range holds.
    ("OutsideLeaf", &["OtherEntries"], Restart, |s| s.set_key(1, 0, 0, s.snapshot(1).low - 1)),
    ("OutsideLeaf", &["OtherEntries"], Restart, |s| {
        let leaf = s.snapshot(1).leaves.len() - 1;
        s.set_key(1, leaf, s.leaf(1, leaf).count() - 1, s.snapshot(1).last + 1)
    }),
    ("Order", &["NotFound", "Unreadable"], Restart, |s| s.set_key(1, 0, 1, s.key(1, 0, 0))),
    ("OutsideFront", &[], Damage, |s| {
        let key = s.snapshot(1).last + 1;
        s.ranges[1].lock(s.op).active.put(key, hash(key), None);
        s.block(1)
    }),
    // To a side that is the same.
    ("Block", &[], Damage, |s| {
        let state = s.op.load(&s.head(1).state, Relaxed);
        for leaf in 0..SHAPE.leaves {
            let other = s.op.at(SHAPE.descriptor(s.ranges[1].block, 1 - state.side(), leaf));
            let descriptor = s.descriptor(1, leaf);
            s.store(&other.leaf, s.op.load(&descriptor.leaf, Relaxed));
            s.store(&other.low, s.op.load(&descriptor.low, Relaxed));
            other.taken.iter().zip(&descriptor.taken).for_each(|(to, from)| s.store(to, s.op.load(from, Relaxed)));
            s.store(&other.count, s.op.load(&descriptor.count, Relaxed));
            s.store(&other.next, s.op.load(&descriptor.next, Relaxed));
        }
        s.store(&s.head(1).state, State::new(1 - state.side(), state.floor()));
        s.block(1)
    }),
    ("Block", &[], Damage, |s| {
        s.store(&s.descriptor(1, 0).count, 1);
        s.block(1)
    }),
    ("Block", &[], Damage, |s| {
        s.store(&s.descriptor(1, 0).next, Off::NULL);
        s.block(1)
    }),
    ("NoLeaves", &[], Damage, |s| {
        s.store(&s.descriptor(s.last(), 0).leaf, 0);
        s.block(s.last())
    }),
    ("Descriptor", &[], Damage, |s| {
        s.store(&s.descriptor(1, 0).leaf, s.leaf(1, 1).off);
        s.block(1)
    }),
    ("Descriptor", &[], Damage, |s| {
        s.store(&s.descriptor(1, 1).low, s.key(1, 1, 0) + 1);
        s.block(1)
    }),
    ("Descriptor", &[], Damage, |s| {
        s.store(&s.descriptor(1, 1).taken[0], s.leaf(1, 1).taken[0] & (s.leaf(1, 1).taken[0] - 1));
        s.block(1)
    }),
    ("Descriptor", &[], Damage, |s| {
        s.store(&s.descriptor(1, 1).taken[3], 1);
        s.block(1)
    }),
    ("Units", &[], Damage, |s| {
        s.tree.units.take(s.op, s.tree.root()).unwrap();
        0
    }),
    ("Bytes", &[], Damage, |s| {
        let space = s.tree.root().pool().space();
        let reserved = space.reserve_extent(s.op, s.tree.root().owner(), 64).unwrap();
        space.activate(s.op, reserved).unwrap();
        0
    }),
    ("LogPages", &[], Damage, |s| {
        s.tree.log.lose_page(s.op.medium(), false);
        0
    }),
    // One twice, and another not at all.
    ("LogPages", &[], Damage, |s| {
        s.tree.log.lose_page(s.op.medium(), true);
        0
    }),
    // A leaf that begins below what the one before it holds, which ends a walk.
    ("Unreadable", &["Order", "OutsideLeaf"], Restart, |s| {
        s.set_key(1, 1, 0, s.key(1, 0, 0) + 1);
        0
    }),
    ("OtherEntries", &[], Damage, |s| {
        s.store(&s.slot(1, 0, 0)[1], 0);
        s.root().0
    }),
    ("OtherEntries", &[], Restart, |s| {
        s.set_key(1, 0, 0, s.key(1, 0, 0) + 1);
        s.root().0
    }),
];

/// What is wrong with what a check found.
fn difference((class, with, ..): &Row, offset: u64, faults: &[(u64, Fault)]) -> Option<String> {
    let found: BTreeSet<_> = faults.iter().map(|(_, fault)| fault_name(fault)).collect();
    let expected: BTreeSet<_> = with.iter().copied().chain([*class]).collect();
    let is_it = |(at, fault): &(u64, Fault)| (*at, fault_name(fault)) == (offset, *class);
    let is_right = found == expected && faults.iter().any(is_it);
    (!is_right).then(|| format!("{class} at {offset:#x} and {with:?}, found {faults:x?}"))
}

#[test]
fn a_check_reports_each_damage_by_its_own_class() {
    let mut wrong = Vec::new();
    for (number, row @ (_, _, after, damage)) in CHECKS.iter().enumerate() {
        with_sound(|sound| {
            assert!(sound.tree.faults(sound.op).is_empty(), "sound before");
            let offset = damage(sound);
            let restarted = (*after == Restart).then(|| again(sound.tree).unwrap());
            let tree = restarted.as_ref().unwrap_or(sound.tree);
            let faults = tree.faults(sound.op);
            wrong.extend(difference(row, offset, &faults).map(|what| format!("row {number}: {what}")));
            assert_eq!(tree.check(sound.op).len(), faults.len());
        });
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert_each_has_a_row(FAULTS, CHECKS.iter().map(|(class, ..)| *class).chain(["Mark"]));
}

#[test]
fn a_damaged_mark_is_reported() {
    let pool = pool();
    let owner = fill(&pool).root().owner();
    pool.close().unwrap();
    let mut image = HeapBacking::image_of(pool.mapping());
    let mark = pool.geometry().mark_off(owner);
    for damaged in [false, true] {
        image[mark as usize] ^= u8::from(damaged);
        let backing = HeapBacking::from_image(image.clone()).with_limit(1 << 20);
        let pool = PoolOptions::new().open_on(backing, Hardware::PAGE_CACHE).unwrap().recover().unwrap();
        let tree = DpTree::open_with(&pool, "tree", &options()).unwrap();
        let faults = tree.faults(&pool.session().unwrap().enter().unwrap());
        let found: Vec<_> = faults.iter().map(|(at, fault)| (*at, fault_name(fault))).collect();
        assert_eq!(found, if damaged { vec![(mark, "Mark")] } else { vec![] });
    }
}

/// What is damaged, and which part an opening then calls corrupt, at the offset that the damage returns.
type Opening = (Wrong, fn(&Sound<'_>) -> u64);

const OPENINGS: &[Opening] = &[
    (Wrong::ExtentHead, |s| {
        let (off, head) = s.extent(UNITS_MAGIC);
        s.store(&head.magic, 1);
        off
    }),
    (Wrong::UnitsHead, |s| {
        let (off, head) = s.extent(UNITS_MAGIC);
        s.store(&head.sum, 1);
        off
    }),
    (Wrong::UnitsHead, |s| {
        let (off, head) = s.extent(UNITS_MAGIC);
        s.store(&head.size, 128);
        s.store(&head.sum, head_sum(UNITS_MAGIC, 128));
        off
    }),
    (Wrong::PageHead, |s| {
        let (off, head) = s.extent(PAGE_MAGIC);
        s.store(&head.sum, 1);
        off
    }),
    (Wrong::PageHead, |s| {
        let (off, head) = s.extent(PAGE_MAGIC);
        s.store(&head.size, 1);
        s.store(&head.sum, head_sum(PAGE_MAGIC, 1));
        off
    }),
    // The pages are shorter than their heads say, all alike.
    (Wrong::PageHead, |s| {
        let lines = 4096 / 64;
        s.store(&s.root().1.page_lines, lines);
        let extents = own_extents(s.op, s.tree.root(), &s.tree.options);
        for head in extents.iter().map(|extent| s.op.at(Off::<ExtentHead>::new(extent.off))) {
            if s.op.load(&head.magic, Relaxed) == PAGE_MAGIC {
                s.store(&head.size, lines);
                s.store(&head.sum, head_sum(PAGE_MAGIC, lines));
            }
        }
        s.extent(PAGE_MAGIC).0
    }),
    (Wrong::Polarity, |s| {
        let (off, head) = s.extent(PAGE_MAGIC);
        s.store(&head.polarity, 2);
        off
    }),
    (Wrong::RootWord, |s| {
        let (off, words) = s.root();
        s.store(&words.magic, ROOT_MAGIC + 1);
        off
    }),
    (Wrong::Parameters, |s| {
        let (off, words) = s.root();
        s.store(&words.units, 0);
        off
    }),
    (Wrong::RangePlace, |s| {
        s.store(&s.root().1.first, Off::new(s.block(0) + 64));
        s.block(0) + 64
    }),
    // A circle.
    (Wrong::RangePlace, |s| {
        s.store(&s.descriptor(1, 0).next, s.ranges[0].block);
        s.block(0)
    }),
    (Wrong::RangeMagic, |s| {
        s.store(&s.head(1).magic, 0);
        s.block(1)
    }),
    (Wrong::RangeLow, |s| {
        s.store(&s.head(0).low, 1);
        s.block(0)
    }),
    (Wrong::RangeLow, |s| {
        s.store(&s.head(1).low, s.snapshot(0).low);
        s.block(1)
    }),
    (Wrong::RangeState, |s| {
        s.store(&s.head(1).state, State::new(s.snapshot(1).side, 0));
        s.block(1)
    }),
    (Wrong::RangeState, |s| {
        s.store(&s.head(1).state, State::new(s.snapshot(1).side, SANE_VERSION + 1));
        s.block(1)
    }),
    (Wrong::NoLeaves, |s| {
        let first = s.descriptor(s.last(), 0);
        s.store(&first.leaf, 0);
        s.op.off_of(first).get()
    }),
    (Wrong::LeafNumber, |s| {
        s.store(&s.descriptor(1, 0).count, SHAPE.leaves as u64 + 1);
        s.block(1)
    }),
    (Wrong::LeafSlots, |s| {
        s.store(&s.descriptor(1, 0).taken[0], 0);
        s.leaf(1, 0).off
    }),
    (Wrong::LeafSlots, |s| {
        s.store(&s.descriptor(1, 0).taken[0], 1 << SHAPE.slots);
        s.leaf(1, 0).off
    }),
    (Wrong::LeafPlace, |s| {
        s.store(&s.descriptor(1, 0).leaf, s.leaf(1, 0).off + 64);
        s.leaf(1, 0).off + 64
    }),
    (Wrong::LeafPlace, |s| {
        s.store(&s.descriptor(1, 1).leaf, s.leaf(1, 0).off);
        s.leaf(1, 0).off
    }),
    // Below its range, not above the leaf before it, beyond its range.
    (Wrong::LeafLow, |s| {
        s.store(&s.descriptor(1, 0).low, s.snapshot(1).low - 1);
        s.leaf(1, 0).off
    }),
    (Wrong::LeafLow, |s| {
        s.store(&s.descriptor(1, 1).low, s.op.load(&s.descriptor(1, 0).low, Relaxed));
        s.leaf(1, 1).off
    }),
    (Wrong::LeafLow, |s| {
        let leaf = s.snapshot(1).leaves.len() - 1;
        s.store(&s.descriptor(1, leaf).low, s.snapshot(1).last + 1);
        s.leaf(1, leaf).off
    }),
    (Wrong::Version, |s| {
        let (_, words, polarity, record) = s.record();
        Record { version: SANE_VERSION + 1, place: Place::default(), ..record }.store(s.op, words, polarity);
        s.block(0)
    }),
    (Wrong::RecordSum, |s| {
        let (off, words, ..) = s.record();
        s.store(&words[1], s.op.load(&words[1], Relaxed) ^ 2);
        off
    }),
];

#[test]
fn an_opening_calls_each_damage_by_its_own_part() {
    for (number, (part, damage)) in OPENINGS.iter().enumerate() {
        with_sound(|sound| {
            let at = damage(sound);
            let Err(Error::Corrupt { what, offset, .. }) = again(sound.tree).map(drop) else {
                panic!("row {number}: it opens")
            };
            assert_eq!((what, offset), (part.text(), at), "row {number}");
        });
    }
    let parts: Vec<_> = PARTS.iter().copied().filter(|name| !NOT_AT_OPENING.contains(name)).collect();
    assert_each_has_a_row(&parts, OPENINGS.iter().map(|(part, _)| part_name(part)));
}

/// Its grace periods are not those of the tree's pool: what it looks at could be dropped beside it.
#[test]
fn no_call_takes_an_operation_of_another_pool() {
    use std::panic::{AssertUnwindSafe, catch_unwind};

    type Call = fn(&DpTree<Hardware>, &Op<'_, Hardware>) -> bool;
    let refused: [Call; 12] = [
        |tree, op| tree.get(op, 10).is_err(),
        |tree, op| tree.get_many(op, &[10], |_, _| ()).is_err(),
        |tree, op| tree.insert(op, 10, 1).is_err(),
        |tree, op| tree.insert_if_absent(op, 10, 1).is_err(),
        |tree, op| tree.update(op, 10, 1).is_err(),
        |tree, op| tree.remove(op, 10).is_err(),
        |tree, op| tree.compare_and_set(op, 10, None, None).is_err(),
        |tree, op| tree.change_many(op, &mut vec![(10, Some(1))]).is_err(),
        |tree, op| tree.walk(op, 0, Direction::Forward, 8, &mut Vec::new()).is_err(),
        |tree, op| tree.scan(op, .., Direction::Backward, |_, _| true).is_err(),
        |tree, op| tree.first(op).is_err() && tree.last(op).is_err() && tree.is_empty(op).is_err(),
        |tree, op| tree.tick_in(op).is_err(),
    ];
    let panics: [Call; 4] = [
        |tree, op| tree.len(op) > 0,
        |tree, op| tree.check(op).is_empty(),
        |tree, op| tree.stats(op).keys > 0,
        |tree, op| tree.dump(op, &mut String::new()).is_ok(),
    ];
    let (ours, theirs) = (pool(), pool());
    let (tree, _other) = (fill(&ours), fill(&theirs));
    let mut foreign = theirs.session().unwrap();
    let op = foreign.enter().unwrap();
    for (number, call) in refused.iter().enumerate() {
        assert!(call(&tree, &op), "call {number}");
    }
    for (number, call) in panics.iter().enumerate() {
        let panic = catch_unwind(AssertUnwindSafe(|| call(&tree, &op))).unwrap_err();
        let text = panic.downcast_ref::<String>().unwrap();
        assert!(text.contains("another pool"), "call {number}: {text}");
    }
}
