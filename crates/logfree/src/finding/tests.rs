//! Rows for every class of finding, of every map with durable links: one damage, and exactly what is said of it.

use std::collections::BTreeSet;
use std::mem::offset_of;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use durix_pmem::backing::HeapBacking;
use durix_pmem::testing::assert_each_has_a_row;
use durix_pmem::{Bits, Hardware, Off, Op, Pool, PoolOptions, Root, Word};

use super::*;
use crate::layout::{
    Branch, HEIGHT, Leaf, Link, NODE, Node, ROOT_HEAD, ROOT_RUN, RUN_SHIFT, RUNS, TallNode, branch_sum, node_sum,
    tall_sum,
};
use crate::layout::{PART_HEAD, RECORD_HEAD};
use crate::testing::Map;
use crate::{BlobList, Bst, Error, HashTable, List, SkipList};

durix_pmem::variants!(CLASSES, class_of: Finding {
    Leaked, NotAllocated, Misplaced, Damaged, OtherEntries, DamagedMark,
});

const LEN: u64 = 1 << 18;
/// Bytes of a page of nodes.
const PAGE: u64 = 256;

/// How the nodes of a map lie in their lines.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Form {
    Node,
    Tall,
    Branch,
}

/// A map of the keys 1 to 8, each with 100 more as its value.
struct Sound<'s> {
    op: &'s Op<'s, Hardware>,
    root: Root<Hardware>,
    form: Form,
}

impl Sound<'_> {
    fn word(&self, off: u64) -> u64 {
        self.op.load(self.op.at(Off::<Word>::new(off)), Relaxed)
    }

    fn set(&self, off: u64, value: u64) {
        self.op.store(self.op.at(Off::<Word>::new(off)), value, Relaxed);
    }

    fn lines(&self) -> Vec<u64> {
        let extents = self.root.pool().space().extents(self.op, self.root.owner());
        extents.iter().flat_map(|extent| (extent.off..extent.off + extent.len).step_by(NODE as usize)).collect()
    }

    /// What the checksum of a node should be, and where it lies.
    fn sum(&self, node: u64) -> (u64, u64) {
        let word = |at: usize| self.word(node + at as u64);
        match self.form {
            Form::Node => {
                let (key, value) = (word(offset_of!(Node, key)), word(offset_of!(Node, value)));
                (node_sum(node, key, value), offset_of!(Node, sum) as u64)
            }
            Form::Tall => {
                let (key, value) = (word(offset_of!(TallNode, key)), word(offset_of!(TallNode, value)));
                let (height, more) = (word(offset_of!(TallNode, height)), word(offset_of!(TallNode, more)));
                let sum = tall_sum(node, key, value, height, more);
                (sum | height & ((1 << crate::layout::TALL_SUM) - 1), offset_of!(TallNode, height) as u64)
            }
            Form::Branch => {
                let leaf = |side: usize| {
                    let at = offset_of!(Branch, leaves) + side * size_of::<Leaf>();
                    (word(at + offset_of!(Leaf, key)), word(at + offset_of!(Leaf, value)))
                };
                let sum = branch_sum(node, word(offset_of!(Branch, router)), [leaf(0), leaf(1)]);
                (sum, offset_of!(Branch, sum) as u64)
            }
        }
    }

    /// Where the values of a node lie in it.
    fn values(&self) -> Vec<u64> {
        match self.form {
            Form::Node => vec![offset_of!(Node, value) as u64],
            Form::Tall => vec![offset_of!(TallNode, value) as u64],
            Form::Branch => (0..2)
                .map(|side| (offset_of!(Branch, leaves) + side * size_of::<Leaf>() + offset_of!(Leaf, value)) as u64)
                .collect(),
        }
    }

    /// The node with a value, and where the value lies in it.
    fn node(&self, value: u64) -> (u64, u64) {
        let places = self.lines().into_iter().flat_map(|node| self.values().into_iter().map(move |at| (node, at)));
        let is_it = |(node, at): &(u64, u64)| {
            let (sum, sum_at) = self.sum(*node);
            let is_leaf = self.form != Form::Branch || {
                let side = u64::from(*at != self.values()[0]);
                Link::from_bits(self.word(node + 8 * side)).is_leaf()
            };
            self.word(node + at) == value && self.word(node + sum_at) == sum && is_leaf
        };
        places.into_iter().find(is_it).expect("a node")
    }

    /// Makes the checksum of a node right.
    fn seal(&self, node: u64) {
        let (sum, at) = self.sum(node);
        self.set(node + at, sum);
    }

    /// Changes the bit of a line in the bitmap of its page.
    fn flip_allocated(&self, line: u64) {
        let page = line & !(PAGE - 1);
        self.set(page, self.word(page) ^ 1 << ((line - page) / NODE));
    }

    /// A line of a page that was never used, in a chunk with nodes.
    fn unused(&self) -> u64 {
        let chunk = self.node(103).0 & !4095;
        let page = (chunk..chunk + 4096).step_by(PAGE as usize).find(|page| self.word(*page) == 0);
        page.expect("a page that was never used") + NODE
    }

    /// The node whose link leads to another; or the head.
    fn link_to(&self, node: u64) -> u64 {
        let head = self.op.off_of(&self.root.words(self.op)[ROOT_HEAD]).get();
        // In a skip list only those on the lowest level.
        let words = if self.form == Form::Tall { 1 } else { 8 };
        let heads = std::iter::once(head)
            .chain(self.lines().into_iter().flat_map(|line| (0..words).map(move |word| line + 8 * word)));
        let leads = |at: &u64| {
            let link = Link::from_bits(self.word(*at));
            !link.is_null() && link.off() == node
        };
        heads.into_iter().find(leads).expect("a link")
    }
}

fn pool() -> Pool {
    let options = PoolOptions::new().chunk_size(4096).lanes(1).max_indices(2).initial_size(LEN).max_size(LEN);
    options.create_on(HeapBacking::new(LEN), Hardware::PAGE_CACHE).unwrap()
}

fn fill<S: Map<Hardware>>(pool: &Pool) -> Arc<S> {
    let map = pool.open_structure::<S>("map", &S::small()).unwrap();
    let mut session = pool.session().unwrap();
    let op = session.enter().unwrap();
    (1..=8).for_each(|key| assert!(map.insert(&op, key, key + 100).unwrap()));
    map.sync(&op);
    drop(op);
    map
}

/// What a check says: classes and offsets; `Corrupt` for an error.
fn look<S: Map<Hardware>>(map: &S, op: &Op<'_, Hardware>) -> Vec<(u64, &'static str)> {
    match map.check(op) {
        Ok(findings) => findings.iter().map(|finding| (finding.offset(), class_of(finding))).collect(),
        Err(Error::Corrupt { offset, .. }) => vec![(offset, "Corrupt")],
        Err(error) => panic!("{error}"),
    }
}

/// What is damaged, and which classes are reported: the first one at the offset that the damage returns.
type Row = (&'static str, &'static [&'static str], fn(&Sound<'_>) -> u64);

fn wrong<S: Map<Hardware>>(name: &str, form: Form, root: fn(&S) -> &Root<Hardware>, rows: &[Row]) -> Vec<String> {
    let mut wrong = Vec::new();
    for (number, (class, with, damage)) in rows.iter().enumerate() {
        let pool = pool();
        let map = fill::<S>(&pool);
        let mut session = pool.session().unwrap();
        let op = session.enter().unwrap();
        assert_eq!(look(&*map, &op), [], "{name}: sound before");
        let offset = damage(&Sound { op: &op, root: root(&map).clone(), form });
        let said = look(&*map, &op);
        let found: BTreeSet<_> = said.iter().map(|(_, class)| *class).collect();
        let expected: BTreeSet<_> = with.iter().copied().chain([*class]).collect();
        if found != expected || !said.contains(&(offset, class)) {
            wrong.push(format!("{name} row {number}: {class} at {offset:#x} and {with:?}, found {said:x?}"));
        }
    }
    wrong
}

/// A map whose values lie in its nodes.
const WORDS: &[Row] = &[
    ("Leaked", &[], |s| {
        let line = s.unused();
        s.flip_allocated(line);
        line
    }),
    ("NotAllocated", &[], |s| {
        s.flip_allocated(s.node(103).0);
        s.node(103).0
    }),
    ("Damaged", &["OtherEntries"], |s| {
        let (node, at) = s.node(103);
        s.set(node + at, 99);
        node
    }),
    ("Damaged", &[], |s| {
        let (node, _) = s.node(103);
        let (sum, at) = s.sum(node);
        s.set(node + at, sum ^ 1 << 63);
        node
    }),
    ("OtherEntries", &[], |s| {
        let (node, at) = s.node(103);
        s.set(node + at, 99);
        s.seal(node);
        s.op.off_of(&s.root.words(s.op)[0]).get()
    }),
];

/// A node that is cut out.
const CUT_OUT: Row = ("OtherEntries", &["Leaked"], |s| {
    let (node, _) = s.node(103);
    s.set(s.link_to(node), s.word(node));
    s.op.off_of(&s.root.words(s.op)[0]).get()
});

const IN_HASH: &[Row] = &[
    CUT_OUT,
    // The last node of the first bucket has a key of the second one.
    ("Misplaced", &["OtherEntries"], |s| {
        let of_first = |value: &u64| {
            let (node, _) = s.node(*value);
            let is_last = Link::from_bits(s.word(node)).is_null();
            is_last && s.word(node + offset_of!(Node, key) as u64) >> 63 == 0
        };
        let (node, _) = s.node((101..=108).find(of_first).expect("a last node"));
        let key = node + offset_of!(Node, key) as u64;
        s.set(key, s.word(key) | 1 << 63);
        s.seal(node);
        node
    }),
    // The first node of the second bucket has a key of the first one.
    ("Misplaced", &["OtherEntries"], |s| {
        let nodes = (101..=108).map(|value| s.node(value).0 + offset_of!(Node, key) as u64);
        let key = nodes.filter(|key| s.word(*key) >> 63 == 1).min_by_key(|key| s.word(*key)).expect("a first node");
        s.set(key, s.word(key) & !(1 << 63));
        let node = key - offset_of!(Node, key) as u64;
        s.seal(node);
        node
    }),
];

const IN_SKIP_LIST: &[Row] = &[
    CUT_OUT,
    CIRCLE,
    // A node of several levels is cut out of the lowest one.
    ("Misplaced", &["Leaked", "OtherEntries"], |s| {
        let height = |node: u64| s.word(node + offset_of!(TallNode, height) as u64) & HEIGHT;
        let (node, _) =
            (101..=108).map(|value| s.node(value)).find(|(node, _)| height(*node) > 1).expect("a tall node");
        s.set(s.link_to(node), s.word(node));
        node
    }),
];

/// A circle: the second node leads to the first one.
const CIRCLE: Row = ("Corrupt", &[], |s| {
    let (first, _) = s.node(101);
    s.set(s.node(102).0, Link::to(first).to_bits());
    first
});

const IN_TREE: &[Row] = &[
    // The key of a leaf.
    ("Misplaced", &["OtherEntries"], |s| {
        let (branch, at) = s.node(103);
        let key = branch + at - (offset_of!(Leaf, value) - offset_of!(Leaf, key)) as u64;
        s.set(key, 1003);
        s.seal(branch);
        key - offset_of!(Leaf, key) as u64
    }),
    // A branch that leads to itself.
    ("Corrupt", &[], |s| {
        let (branch, at) = s.node(103);
        s.set(branch + 8 * u64::from(at != s.values()[0]), Link::to(branch).to_bits());
        branch
    }),
];

#[test]
fn a_check_reports_each_damage_of_each_map_by_its_own_class() {
    let rows = |more: &[Row]| [WORDS, more].concat();
    let mut all = wrong::<List>("list", Form::Node, List::root, &rows(&[CUT_OUT, CIRCLE]));
    all.extend(wrong::<HashTable>("hash", Form::Node, HashTable::root, &rows(IN_HASH)));
    all.extend(wrong::<SkipList>("skip list", Form::Tall, SkipList::root, &rows(IN_SKIP_LIST)));
    all.extend(wrong::<Bst>("search tree", Form::Branch, Bst::root, &rows(IN_TREE)));
    assert!(all.is_empty(), "{}", all.join("\n"));
    assert_each_has_a_row(CLASSES, [WORDS, IN_HASH].concat().iter().map(|(class, ..)| *class).chain(["DamagedMark"]));
}

fn marks<S: Map<Hardware>>(name: &str, root: fn(&S) -> &Root<Hardware>) {
    let pool = pool();
    let owner = root(&fill::<S>(&pool)).owner();
    pool.close().unwrap();
    let mut image = HeapBacking::image_of(pool.mapping());
    let mark = pool.geometry().mark_off(owner);
    for damaged in [false, true] {
        image[mark as usize] ^= u8::from(damaged);
        let backing = HeapBacking::from_image(image.clone()).with_limit(LEN);
        let pool = PoolOptions::new().open_on(backing, Hardware::PAGE_CACHE).unwrap().recover().unwrap();
        let map = pool.open_structure::<S>("map", &S::small()).unwrap();
        let said = look(&*map, &pool.session().unwrap().enter().unwrap());
        assert_eq!(said, if damaged { vec![(mark, "DamagedMark")] } else { vec![] }, "{name}");
    }
}

#[test]
fn a_damaged_mark_is_reported_by_each_map() {
    marks::<List>("list", List::root);
    marks::<HashTable>("hash", HashTable::root);
    marks::<SkipList>("skip list", SkipList::root);
    marks::<Bst>("search tree", Bst::root);
}

/// No node is of the run that an opening begins, before one was written.
#[test]
fn a_node_of_a_run_that_has_not_begun_is_reported() {
    let pool = pool();
    let map = fill::<SkipList>(&pool);
    let (mut session, run) =
        (pool.session().unwrap(), |s: &Sound<'_>| s.op.load(&s.root.words(s.op)[ROOT_RUN], Relaxed));
    let node = {
        let op = session.enter().unwrap();
        let s = Sound { op: &op, root: map.root().clone(), form: Form::Tall };
        let (node, _) = s.node(103);
        let height = node + offset_of!(TallNode, height) as u64;
        s.set(height, s.word(height) & !(RUNS << RUN_SHIFT) | (run(&s) + 1) << RUN_SHIFT);
        s.seal(node);
        node
    };
    drop((session, map));
    pool.close().unwrap();
    let backing = HeapBacking::from_image(HeapBacking::image_of(pool.mapping())).with_limit(LEN);
    let pool = PoolOptions::new().open_on(backing, Hardware::PAGE_CACHE).unwrap().recover().unwrap();
    let map = pool.open_structure::<SkipList>("map", &SkipList::<Hardware>::small()).unwrap();
    assert_eq!(look(&*map, &pool.session().unwrap().enter().unwrap()), [(node, "Misplaced")]);
}

// ---- maps with records ----

/// The record of a key, and the word of its node that leads there.
fn record(s: &Sound<'_>, key: u64) -> (u64, u64) {
    let is_node = |node: &u64| {
        s.word(node + offset_of!(Node, key) as u64) == key && s.word(node + s.sum(*node).1) == s.sum(*node).0
    };
    let node = s.lines().into_iter().find(is_node).expect("a node");
    let word = node + offset_of!(Node, value) as u64;
    (s.word(word), word)
}

/// A map whose values are records, by a list. The value of key 4 has one unit, those of 3 and 7 have parts.
const RECORDS: &[Row] = &[
    ("Damaged", &[], |s| {
        let (record, _) = record(s, 4);
        s.set(record + 8 * RECORD_HEAD, 77);
        record
    }),
    ("Damaged", &[], |s| {
        let (record, _) = record(s, 7);
        let part = s.word(record + 8 * RECORD_HEAD);
        s.set(part + 8 * PART_HEAD, 77);
        record
    }),
    // A part twice, in place of another one.
    ("Misplaced", &["Damaged", "Leaked"], |s| {
        let (record, _) = record(s, 7);
        let part = s.word(record + 8 * RECORD_HEAD);
        s.set(record + 8 * (RECORD_HEAD + 1), part);
        part
    }),
    ("NotAllocated", &[], |s| {
        let (record, _) = record(s, 3);
        s.flip_allocated(record);
        record
    }),
    // With its node, which nothing leads to.
    ("Leaked", &["OtherEntries"], |s| {
        let (record, word) = record(s, 3);
        let node = word - offset_of!(Node, value) as u64;
        s.set(s.link_to(node), s.word(node));
        record
    }),
    ("Leaked", &["OtherEntries"], |s| {
        let (_, word) = record(s, 3);
        let node = word - offset_of!(Node, value) as u64;
        s.set(s.link_to(node), s.word(node));
        node
    }),
    // Another key's record; one that begins no line.
    ("Corrupt", &[], |s| {
        let ((other, _), (_, word)) = (record(s, 4), record(s, 3));
        s.set(word, other);
        s.seal(word - offset_of!(Node, value) as u64);
        other
    }),
    ("Corrupt", &[], |s| {
        let (record, word) = record(s, 3);
        s.set(word, record + 8);
        s.seal(word - offset_of!(Node, value) as u64);
        record + 8
    }),
];

#[test]
fn a_check_reports_each_damage_of_records_by_its_own_class() {
    let all = wrong::<BlobList>("list of records", Form::Node, BlobList::root, RECORDS);
    assert!(all.is_empty(), "{}", all.join("\n"));
}

/// The lines with the links of high nodes are allocated as nodes are.
#[test]
fn the_upper_links_of_a_node_that_are_not_allocated_are_reported() {
    let pool = pool();
    let map = fill::<SkipList>(&pool);
    let mut session = pool.session().unwrap();
    let op = session.enter().unwrap();
    (9..=200).for_each(|key| assert!(map.insert(&op, key, key + 100).unwrap()));
    assert_eq!(look(&*map, &op), []);
    let s = Sound { op: &op, root: map.root().clone(), form: Form::Tall };
    let more = |value| s.word(s.node(value).0 + offset_of!(TallNode, more) as u64);
    let upper = (101..=300).map(more).find(|off| *off != 0).expect("a high node");
    s.flip_allocated(upper);
    assert_eq!(look(&*map, &op), [(upper, "NotAllocated")]);
}
