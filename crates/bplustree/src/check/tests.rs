//! A row for everything that a check can find wrong: one damage, and exactly what is said of it.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use durix_index::Index;
use durix_pmem::backing::HeapBacking;
use durix_pmem::testing::assert_each_has_a_row;
use durix_pmem::{Change, Hardware, Off, Pool, PoolOptions, Word};

use super::*;
use crate::layout::{Form, SLOTS, tag};

durix_pmem::variants!(FAULTS, fault_name: Fault {
    TwoLinks, Order, Separators, Child, Link, LastLink, Entry, Outside, NotAbove, Checksum, Unreadable, NotReached,
    NotAllocated, Mark, OtherEntries,
});

/// The largest key, with a value of several blocks.
const LONG: &[u8] = &[0xff; 30];
const LEN: u64 = 1 << 20;

/// A root above some leaves of keys of 8 bytes, the last of which has a record, too.
struct Sound<'s> {
    op: &'s Op<'s, Hardware>,
    tree: &'s BPlusTree<Hardware>,
}

impl Sound<'_> {
    fn word(&self, off: u64) -> u64 {
        self.op.load(self.op.at(Off::<Word>::new(off)), Relaxed)
    }

    /// Changes a word, and returns where its node or block lies.
    fn set(&self, of: u64, at: u64, value: u64) -> u64 {
        self.op.store(self.op.at(Off::<Word>::new(of + at)), value, Relaxed);
        of
    }

    fn words(&self) -> Committed<'_, '_, Hardware> {
        Committed { op: self.op, block_words: self.tree.block_words() }
    }

    fn root(&self) -> Node {
        Node::root(&self.words(), self.word(self.tree.root_off)).unwrap()
    }

    fn leaf(&self, number: usize) -> Node {
        self.root().child(&self.words(), number).unwrap()
    }

    fn last(&self) -> Node {
        self.leaf(self.root().len())
    }

    /// Where the word of the key, and of the value, at a place of a node lies in it.
    fn key_at(node: Node, place: usize) -> u64 {
        at::KEYS + 8 * node.order.slot(place) as u64
    }

    fn value_at(node: Node, place: usize) -> u64 {
        at::VALUES + 8 * node.order.slot(place) as u64
    }

    fn key(&self, node: Node, place: usize) -> u64 {
        self.word(node.off + Self::key_at(node, place))
    }

    fn set_key(&self, node: Node, place: usize, key: u64) -> u64 {
        self.set(node.off, Self::key_at(node, place), key)
    }

    /// Copies a leaf to a place that is free, and has the tree lead there.
    fn copy_leaf(&self, beside: u64) -> u64 {
        let space = self.tree.root.pool().space();
        let free = space.reserve_block(self.op, self.tree.root.owner(), 2 * NODE).unwrap().off() + beside;
        let leaf = self.leaf(1).off;
        (0..NODE).step_by(8).for_each(|at| _ = self.set(free, at, self.word(leaf + at)));
        self.set(self.leaf(0).off, at::LINK, free);
        self.set(self.root().off, Self::value_at(self.root(), 0), free);
        free
    }

    /// The record of [`LONG`], and where its node has its offset.
    fn record(&self) -> (Record, u64, u64) {
        let leaf = self.last();
        let at = Self::value_at(leaf, leaf.len() - 1);
        (Record::read(&self.words(), self.word(leaf.off + at)).unwrap(), leaf.off, at)
    }
}

fn pool() -> Pool {
    let options = PoolOptions::new().chunk_size(4096).lanes(1).max_indices(2).initial_size(LEN).max_size(LEN);
    options.create_on(HeapBacking::new(LEN), Hardware::PAGE_CACHE).unwrap()
}

fn fill(pool: &Pool) -> Arc<BPlusTree> {
    let tree = BPlusTree::open(pool, "tree").unwrap();
    let mut session = pool.session().unwrap();
    let op = session.enter().unwrap();
    (0..64_u64).for_each(|n| _ = tree.insert(&op, &(n * 4).to_be_bytes(), &n.to_le_bytes()).unwrap());
    let value = vec![7; 3 * pool.space().max_block() as usize];
    tree.insert(&op, LONG, &value).unwrap();
    tree
}

fn with_sound(with: impl FnOnce(&Sound<'_>)) {
    let pool = pool();
    let tree = fill(&pool);
    let mut session = pool.session().unwrap();
    let op = session.enter().unwrap();
    let sound = Sound { op: &op, tree: &tree };
    assert!(sound.root().level == 1 && sound.root().len() > 2 && sound.leaf(1).len() > 2 && sound.last().len() > 2);
    assert!(sound.record().0.blocks(&sound.words()).unwrap().len() > 2);
    let faults = tree.faults(&op);
    assert!(faults.is_empty(), "sound before: {faults:?}");
    with(&sound);
}

/// The class of a fault; of what cannot be read, also what makes no sense.
fn class_of(fault: &Fault) -> String {
    match fault {
        Fault::Child { error: Error::Corrupt { what, .. }, .. }
        | Fault::Entry { error: Error::Corrupt { what, .. }, .. }
        | Fault::Unreadable(Error::Corrupt { what, .. }) => format!("{}: {what}", fault_name(fault)),
        _ => fault_name(fault).into(),
    }
}

/// What is damaged, and which classes are reported: the first one at the offset that the damage returns.
type Row = (&'static str, &'static [&'static str], fn(&Sound<'_>) -> u64);

const OTHER: &[&str] = &["OtherEntries"];
const SUBTREE_LOST: &[&str] = &["Link", "NotReached", "OtherEntries"];

const CHECKS: &[Row] = &[
    ("TwoLinks", &["Link", "NotReached", "OtherEntries", "Outside"], |s| {
        s.set(s.root().off, Sound::value_at(s.root(), 0), s.leaf(2).off);
        s.leaf(2).off
    }),
    // Two entries with one record.
    ("TwoLinks", &["NotAbove", "OtherEntries"], |s| {
        let ((record, ..), leaf) = (s.record(), s.last());
        let before = leaf.order.slot(leaf.len() - 2);
        let forms = s.word(leaf.off + at::KEY_FORMS);
        s.set(leaf.off, at::KEY_FORMS, Form::RECORD.into_word(forms, before));
        let forms = s.word(leaf.off + at::VALUE_FORMS);
        s.set(leaf.off, at::VALUE_FORMS, Form::RECORD.into_word(forms, before));
        s.set(leaf.off, at::VALUES + 8 * before as u64, record.off);
        record.off
    }),
    // A slot twice among those that are free.
    ("Order", &[], |s| {
        let leaf = s.last();
        let free = leaf.order.slot(SLOTS - 2) as u64;
        let shift = 4 + 4 * (SLOTS - 1);
        s.set(leaf.off, at::ORDER, leaf.order.0 & !(15 << shift) | free << shift)
    }),
    ("Separators", &["Outside"], |s| {
        let [first, second] = [0, 1].map(|place| s.key(s.root(), place));
        s.set_key(s.root(), 0, second);
        s.set_key(s.root(), 1, first)
    }),
    // No node, a node of another level, nothing.
    ("Child: the tag of a node", SUBTREE_LOST, |s| {
        s.set(s.leaf(1).off, at::TAG, 0);
        s.root().off
    }),
    ("Child: the level of a node", SUBTREE_LOST, |s| {
        s.set(s.leaf(1).off, at::TAG, tag(1));
        s.root().off
    }),
    ("Child: the tag of a node", SUBTREE_LOST, |s| {
        s.set(s.root().off, Sound::value_at(s.root(), 0), s.leaf(1).off + 8)
    }),
    // A node that begins no line.
    ("Child: the tag of a node", SUBTREE_LOST, |s| {
        s.copy_leaf(8);
        s.root().off
    }),
    ("Link", &[], |s| s.set(s.leaf(1).off, at::LINK, s.leaf(3).off)),
    ("LastLink", &[], |s| s.set(s.last().off, at::LINK, s.leaf(0).off)),
    ("Entry: the lengths of a record", &["NotReached", "OtherEntries"], |s| {
        let (record, node, at) = s.record();
        s.set(node, at, record.off + 8)
    }),
    ("Entry: the next block of a record", &["NotReached", "OtherEntries"], |s| {
        let (record, node, _) = s.record();
        s.set(record.off, 8, 0);
        node
    }),
    ("Entry: the lengths of a record", &["NotReached", "OtherEntries"], |s| {
        let (record, node, _) = s.record();
        s.set(record.off, 0, u64::MAX >> 23);
        node
    }),
    // The last block: none, and one that begins no line.
    ("Entry: the next block of a record", &["NotReached", "OtherEntries"], |s| {
        let (record, node, _) = s.record();
        s.set(record.blocks(&s.words()).unwrap().into_iter().rev().nth(1).unwrap(), 8, 0);
        node
    }),
    ("Entry: the next block of a record", &["NotReached", "OtherEntries"], |s| {
        let ((record, node, _), words) = (s.record(), s.words());
        let blocks = record.blocks(&words).unwrap();
        s.set(blocks[blocks.len() - 2], 8, blocks[blocks.len() - 1] + 8);
        node
    }),
    // Below the separator to the left, and not below the one to the right.
    ("Outside", OTHER, |s| s.set_key(s.leaf(1), 0, s.key(s.leaf(1), 0) - 1)),
    ("Outside", &["NotAbove", "OtherEntries"], |s| s.set_key(s.leaf(1), s.leaf(1).len() - 1, s.key(s.leaf(2), 0))),
    ("NotAbove", OTHER, |s| s.set_key(s.leaf(1), 1, s.key(s.leaf(1), 0))),
    // In the first block, and in the last one.
    ("Checksum", &[], |s| {
        let (record, ..) = s.record();
        s.set(record.off, 8 * 20, 1)
    }),
    ("Checksum", &[], |s| {
        let record = s.record().0;
        let last = *record.blocks(&s.words()).unwrap().last().unwrap();
        s.set(last, 16, 1);
        record.off
    }),
    ("Unreadable: the tag of a node", &["NotReached", "OtherEntries"], |s| {
        let root = s.root().off;
        s.set(root, at::TAG, 0)
    }),
    ("NotReached", &[], |s| {
        let space = s.tree.root.pool().space();
        let block = space.reserve_block(s.op, s.tree.root.owner(), 64).unwrap().keep();
        space.apply(s.op, Change::Allocate(block)).unwrap();
        block.off()
    }),
    // A leaf that was copied to a place that is free.
    ("NotAllocated", &["NotReached"], |s| s.copy_leaf(0)),
    ("OtherEntries", &[], |s| {
        s.set(s.leaf(1).off, Sound::value_at(s.leaf(1), 0), 7777);
        s.tree.root_off
    }),
];

/// What is wrong with what a check found.
fn difference((class, with, _): &Row, offset: u64, faults: &Faults) -> Option<String> {
    let found: BTreeSet<_> = faults.iter().map(|(_, fault)| class_of(fault)).collect();
    let expected: BTreeSet<_> = with.iter().chain([class]).map(|class| (*class).to_owned()).collect();
    let is_it = |(at, fault): &(u64, Fault)| (*at, &class_of(fault)[..]) == (offset, *class);
    let is_right = found == expected && faults.iter().any(is_it);
    (!is_right)
        .then(|| format!("{class} at {offset:#x} and {with:?}, found {found:?} {:x?}", &faults[..faults.len().min(4)]))
}

#[test]
fn a_check_reports_each_damage_by_its_own_class() {
    let mut wrong = Vec::new();
    for (number, row) in CHECKS.iter().enumerate() {
        with_sound(|sound| {
            let offset = row.2(sound);
            let faults = sound.tree.faults(sound.op);
            wrong.extend(difference(row, offset, &faults).map(|what| format!("row {number}: {what}")));
            assert_eq!(sound.tree.check(sound.op).len(), faults.len());
        });
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    let rows = CHECKS.iter().map(|(class, ..)| class.split(':').next().expect("a class"));
    assert_each_has_a_row(FAULTS, rows.chain(["Mark"]));
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
        let backing = HeapBacking::from_image(image.clone()).with_limit(LEN);
        let pool = PoolOptions::new().open_on(backing, Hardware::PAGE_CACHE).unwrap().recover().unwrap();
        let tree = BPlusTree::open(&pool, "tree").unwrap();
        let faults = tree.faults(&pool.session().unwrap().enter().unwrap());
        let found: Vec<_> = faults.iter().map(|(at, fault)| (*at, fault_name(fault))).collect();
        assert_eq!(found, if damaged { vec![(mark, "Mark")] } else { vec![] });
    }
}
