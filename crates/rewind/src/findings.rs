//! A row for everything that recovery, a check or an operation can find wrong in a log: one damage, and exactly what is said of it.

use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex};

use durix_pmem::backing::HeapBacking;
use durix_pmem::testing::assert_each_has_a_row;
use durix_pmem::{
    Bits, Extent, Hardware, Kind as PoolKind, LINE, Off, Op, Pool, PoolOptions, Recovery, RecoveryError, Root, Session,
    Word,
};

use crate::adll::Adll;
use crate::layout::{Anchor, ExtentHead, Header, Kind, Node, Record, RecordHead, TreeNode};
use crate::log::{Log, most_nodes};
use crate::tm::stored;
use crate::tree::{Tree, chain};
use crate::{Error, Layers, LogKind, LogRecovery, Options, Policy, StorePolicy, TransactionManager};

const LEN: u64 = 4096 * 48;
/// The last line of the pool.
const LAST: u64 = LEN - LINE as u64;
/// Beyond the largest number of a record.
const LARGE: u64 = 1 << 55;

#[derive(Clone, Copy, Debug)]
enum Of {
    /// A list of records.
    List,
    Buckets,
    Groups,
    Tree,
}

impl Of {
    fn options(self) -> Options {
        let (log, layers) = match self {
            Of::List => (LogKind::Simple, Layers::One),
            Of::Buckets => (LogKind::Optimized, Layers::One),
            Of::Groups => (LogKind::Batch(3), Layers::One),
            Of::Tree => (LogKind::Optimized, Layers::Two),
        };
        Options::default().log(log).layers(layers).bucket(8)
    }
}

fn pool_options() -> PoolOptions {
    PoolOptions::new().chunk_size(4096).lanes(1).max_indices(2).initial_size(LEN).max_size(LEN)
}

fn create(options: &Options) -> (Pool, Arc<TransactionManager>, Session) {
    let pool = pool_options().create_on(HeapBacking::new(LEN), Hardware::PAGE_CACHE).unwrap();
    let tm = TransactionManager::open(&pool, "log", options).unwrap();
    let session = pool.session().unwrap();
    (pool, tm, session)
}

/// What a process leaves that dies in a transaction, after others.
fn left(options: &Options) -> Vec<u8> {
    let (pool, tm, mut session) = create(options);
    for number in 0..14 {
        tm.transaction(&mut session, |tx| tx.set(tm.cell(number % 7), 1)).unwrap();
    }
    let mut tx = tm.begin(&mut session).unwrap();
    (0..4).for_each(|cell| tx.set(tm.cell(cell), 2).unwrap());
    HeapBacking::image_of(pool.mapping())
}

/// A log as it is found.
struct Sound<'s> {
    op: &'s Op<'s, Hardware>,
    root: &'s Root<Hardware>,
    options: Options,
    at: Off<Anchor>,
}

impl Sound<'_> {
    fn store<T: Bits>(&self, word: &Word<T>, value: T) {
        self.op.store(word, value, Relaxed);
    }

    fn anchor(&self) -> &Anchor {
        self.op.at(self.at)
    }

    fn header_off(&self) -> Off<Header> {
        let current = self.op.load(&self.anchor().current, Relaxed);
        self.op.off_of(&self.anchor().headers[current as usize])
    }

    fn header(&self) -> &Header {
        self.op.at(self.header_off())
    }

    /// A node of the list, from the first one on.
    fn node(&self, number: usize) -> (u64, &Node) {
        let list = Adll::new(self.header_off(), StorePolicy::WriteBack);
        let off = list.nodes(self.op, most_nodes(self.op)).unwrap()[number];
        (off.get(), self.op.at(off))
    }

    /// The first slot of the first bucket.
    fn slot(&self) -> &Word {
        self.op.at(Off::new(self.node(0).0 + LINE as u64))
    }

    /// The oldest record of a log of one layer; it is about a word.
    fn record(&self) -> (u64, &Record) {
        let log = Log::recover(self.op, self.at, self.options.shape()).unwrap();
        let off = log.scan(self.op).unwrap()[0].1;
        (off.get(), self.op.at(off))
    }

    /// Nodes of the tree, ascending.
    fn tree(&self) -> Vec<Off<TreeNode>> {
        let tree = Tree::recover(self.op, self.at, self.options.shape()).unwrap();
        tree.nodes(self.op).unwrap().into_iter().map(|(_, node)| node).collect()
    }

    fn extent(&self) -> (Extent, &ExtentHead) {
        let extent = self.root.pool().space().extents(self.op, self.root.owner())[0];
        (extent, self.op.at(Off::new(extent.off)))
    }

    /// The last line of the pool, all zero.
    fn last(&self) -> Off<Node> {
        let words: &[Word; 8] = self.op.at(Off::new(LAST));
        words.iter().for_each(|word| self.store(word, 0));
        Off::new(LAST)
    }

    /// Makes the list one of one node.
    fn only(&self, node: Off<Node>) {
        self.store(&self.header().head, node);
        self.store(&self.header().tail, node);
    }
}

/// The class, the log, and the damage, which returns the offset that is reported.
type Row = (&'static str, Of, fn(&Sound<'_>) -> u64);

const AT_RECOVERY: &[Row] = &[
    ("the log's options", Of::Buckets, |s| {
        s.store(&s.root.words(s.op)[0], 0);
        s.op.off_of(&s.root.words(s.op)[0]).get()
    }),
    ("the place of the log's anchor", Of::Buckets, |s| {
        s.store(&s.root.words(s.op)[1], 0);
        s.op.off_of(&s.root.words(s.op)[0]).get()
    }),
    ("the place of the log's anchor", Of::Buckets, |s| {
        s.store(&s.root.words(s.op)[1], LEN);
        s.op.off_of(&s.root.words(s.op)[0]).get()
    }),
    ("the number of a list's header", Of::Buckets, |s| {
        s.store(&s.anchor().current, 2);
        s.at.get()
    }),
    // Out of the pool, within a line; a first node, one whose step is pending, and its neighbours.
    ("a link", Of::List, |s| {
        s.store(&s.header().head, Off::new(LEN));
        0
    }),
    ("a link", Of::List, |s| {
        s.store(&s.header().head, Off::new(s.node(0).0 + 8));
        0
    }),
    ("a link", Of::List, |s| {
        s.store(&s.header().to_append, Off::new(LEN));
        0
    }),
    ("a link", Of::List, |s| {
        s.store(&s.header().to_remove, Off::new(LEN));
        0
    }),
    ("a link", Of::List, |s| {
        let (off, node) = s.node(0);
        s.store(&s.header().to_remove, Off::new(off));
        s.store(&node.prior, Off::new(LEN));
        0
    }),
    ("a link", Of::List, |s| {
        let (off, node) = s.node(0);
        s.store(&s.header().to_remove, Off::new(off));
        s.store(&node.next, Off::new(LEN));
        0
    }),
    // Of a record.
    ("a link", Of::List, |s| {
        s.store(&s.node(0).1.element, LEN);
        0
    }),
    ("a link", Of::Buckets, |s| {
        s.store(s.slot(), LEN);
        0
    }),
    ("a node's link to the one before", Of::List, |s| {
        let (off, node) = s.node(1);
        s.store(&node.prior, Off::NULL);
        off
    }),
    // A circle.
    ("a node's link to the one before", Of::List, |s| {
        let off = s.node(0).0;
        s.store(&s.node(2).1.next, Off::new(off));
        off
    }),
    ("the list's tail", Of::List, |s| {
        s.store(&s.header().tail, Off::new(s.node(0).0));
        s.header_off().get()
    }),
    ("a bucket", Of::Buckets, |s| {
        s.only(s.last());
        LAST
    }),
    ("a bucket's count", Of::Groups, |s| {
        let (off, node) = s.node(0);
        s.store(&node.persistent, 9);
        off
    }),
    ("a record's kind", Of::Buckets, |s| {
        let (off, record) = s.record();
        s.store(&record.head, RecordHead::from_bits(7));
        off
    }),
    ("the address in a record", Of::Buckets, |s| {
        let (off, record) = s.record();
        s.store(&record.addr, LEN);
        off
    }),
    ("the address in a record", Of::Buckets, |s| {
        let (off, record) = s.record();
        s.store(&record.addr, 4100);
        off
    }),
    ("a link out of the log's memory,", Of::Buckets, |s| {
        s.last();
        let [from, to] = [s.record().0, LAST].map(|off| s.op.at(Off::<[Word; 8]>::new(off)));
        from.iter().zip(to).for_each(|(from, to)| s.store(to, s.op.load(from, Relaxed)));
        s.store(s.slot(), LAST);
        LAST
    }),
    ("an extent's magic", Of::Buckets, |s| {
        s.store(&s.extent().1.magic, 7);
        s.extent().0.off
    }),
    ("the size of an extent's units", Of::Buckets, |s| {
        s.store(&s.extent().1.lines, 0);
        s.extent().0.off
    }),
    ("the size of an extent's units", Of::Buckets, |s| {
        s.store(&s.extent().1.lines, s.extent().0.len / LINE as u64 + 1);
        s.extent().0.off
    }),
    // So many that their bytes fit no word.
    ("the size of an extent's units", Of::Buckets, |s| {
        s.store(&s.extent().1.lines, 1 << 58);
        s.extent().0.off
    }),
    ("the number of the last checkpoint", Of::Buckets, |s| {
        s.store(&s.anchor().checkpointed, LARGE);
        s.at.get()
    }),
    ("the number of a record or its transaction", Of::Buckets, |s| {
        let (off, record) = s.record();
        s.store(&record.head, RecordHead::new(LARGE, Kind::Update));
        off
    }),
    ("the number of a record or its transaction", Of::Buckets, |s| {
        let (off, record) = s.record();
        s.store(&record.tx, LARGE);
        off
    }),
    ("the order of the tree's keys", Of::Tree, |s| {
        let tree = s.tree();
        s.store(&s.op.at(tree[1]).key, s.op.load(&s.op.at(tree[2]).key, Relaxed));
        tree[2].get()
    }),
    ("the tree's height or size", Of::Tree, |s| {
        let first = s.tree()[0];
        s.store(&s.op.at(first).child[0], first);
        first.get()
    }),
    // Each level leads to the next one twice: not high, and more nodes than the pool has lines.
    ("the tree's height or size", Of::Tree, |s| {
        let tree = s.tree();
        for pair in tree.windows(2) {
            s.op.at(pair[0]).child.iter().for_each(|child| s.store(child, pair[1]));
        }
        s.op.at(tree[tree.len() - 1]).child.iter().for_each(|child| s.store(child, Off::NULL));
        s.store(&s.anchor().root, tree[0]);
        0
    }),
    ("the order of a transaction's records", Of::Tree, |s| {
        let node = *s.tree().last().unwrap();
        let oldest = chain(s.op, node).unwrap().last().unwrap().0;
        s.store(&s.op.at(oldest).prev, oldest);
        oldest.get()
    }),
];

/// Recovers a log that it damages before.
struct Damaging {
    damage: fn(&Sound<'_>) -> u64,
    expected: Mutex<u64>,
    found: Mutex<Option<Error>>,
    /// Whether it has stored anything.
    has_stored: Mutex<bool>,
}

impl Recovery<Hardware> for Damaging {
    fn kind(&self) -> PoolKind {
        Recovery::<Hardware>::kind(&LogRecovery)
    }

    fn before(&self, session: &mut Session, root: &Root<Hardware>) -> Result<(), RecoveryError> {
        let op = session.enter()?;
        let (options, at) = stored(&op, root)?;
        *self.expected.lock().unwrap() = (self.damage)(&Sound { op: &op, root, options, at });
        let image = || HeapBacking::image_of(root.pool().mapping());
        let before = image();
        let recovered = stored(&op, root)
            .and_then(|(options, at)| TransactionManager::recovered(&op, root.clone(), at, options).map(drop));
        *self.found.lock().unwrap() = recovered.err();
        *self.has_stored.lock().unwrap() = image() != before;
        Ok(())
    }
}

/// What recovery finds, the offset that it should name, and whether it has stored anything.
fn recover(of: Of, damage: fn(&Sound<'_>) -> u64) -> (Option<Error>, u64, bool) {
    let image = HeapBacking::from_image(left(&of.options()));
    let pool = pool_options().open_on(image, Hardware::PAGE_CACHE).unwrap().recover().unwrap();
    let damaging =
        Damaging { damage, expected: Mutex::default(), found: Mutex::default(), has_stored: Mutex::default() };
    // It says nothing of what it has found.
    let _ = pool.recover_logs(&[&damaging]);
    let expected = *damaging.expected.lock().unwrap();
    (damaging.found.into_inner().unwrap(), expected, damaging.has_stored.into_inner().unwrap())
}

/// All classes, as the sources have them.
fn classes() -> Vec<&'static str> {
    let sources = [
        include_str!("adll.rs"),
        include_str!("arena.rs"),
        include_str!("checkpoint.rs"),
        include_str!("log.rs"),
        include_str!("record.rs"),
        include_str!("recover.rs"),
        include_str!("store.rs"),
        include_str!("tm.rs"),
        include_str!("tree.rs"),
        include_str!("tx.rs"),
    ];
    let of = |source: &'static str| {
        ["corrupt(\"", "not_ours(\""].into_iter().flat_map(move |begin| source.split(begin).skip(1))
    };
    sources.into_iter().flat_map(of).map(|rest| rest.split('"').next().unwrap()).collect()
}

#[test]
fn each_damage_is_found_as_what_it_is() {
    for of in [Of::List, Of::Buckets, Of::Groups, Of::Tree] {
        let (found, ..) = recover(of, |_| 0);
        assert!(found.is_none(), "{of:?}: {found:?}");
    }
    let mut wrong = Vec::new();
    for (number, (class, of, damage)) in AT_RECOVERY.iter().enumerate() {
        let (found, expected, has_stored) = recover(*of, *damage);
        // A step of a list is not finished by way of a link that leads nowhere.
        let is_left_alone = !has_stored || !matches!(of, Of::List);
        let is_it = |what, offset| is_left_alone && what == *class && (offset == expected || expected == 0);
        if !matches!(found, Some(Error::Corrupt { what, offset, .. }) if is_it(what, offset)) {
            wrong.push(format!("row {number}: {class} at {expected:#x}: {found:?}, stored: {has_stored}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    let rows = AT_RECOVERY.iter().map(|(class, ..)| *class).chain(AT_WORK.iter().map(|(class, _)| *class));
    assert_each_has_a_row(&classes(), rows);
}

/// What an operation says of a tree at work, and the offset that it should name.
type AtWork = (&'static str, fn() -> (Error, u64));

/// Of a log with a tree: damages its root, with the number that the next transaction gets.
fn damage_root(tm: &TransactionManager, damage: impl Fn(&Op<'_, Hardware>, Off<TreeNode>, u64)) -> u64 {
    let mut session = tm.root().pool().session().unwrap();
    let op = session.enter().unwrap();
    let root = op.load(&op.at(tm.anchor).root, Relaxed);
    damage(&op, root, tm.next_tx(&op) + 1);
    root.get()
}

const AT_WORK: &[AtWork] = &[
    ("the tree's height", || {
        let (_pool, tm, mut session) = create(&Of::Tree.options());
        tm.transaction(&mut session, |tx| tx.set(tm.cell(0), 1)).unwrap();
        let root = damage_root(&tm, |op, root, _| {
            op.at(root).child.iter().for_each(|child| op.store(child, root, Relaxed));
        });
        (tm.transaction(&mut session, |tx| tx.set(tm.cell(0), 2)).unwrap_err(), root)
    }),
    ("a new transaction's number, taken already,", || {
        let (_pool, tm, mut session) = create(&Of::Tree.options());
        tm.transaction(&mut session, |tx| tx.set(tm.cell(0), 1)).unwrap();
        let root = damage_root(&tm, |op, root, next| op.store(&op.at(root).key, next, Relaxed));
        (tm.transaction(&mut session, |tx| tx.set(tm.cell(0), 2)).unwrap_err(), root)
    }),
    ("a transaction that the tree must hold but does not", || {
        let (_pool, tm, mut session) = create(&Of::Tree.options().policy(Policy::Force));
        let mut tx = tm.begin(&mut session).unwrap();
        tx.set(tm.cell(0), 1).unwrap();
        damage_root(&tm, |op, root, _| op.store(&op.at(root).key, LARGE, Relaxed));
        (tx.commit().unwrap_err(), 0)
    }),
];

#[test]
fn operations_say_what_is_wrong_with_a_tree() {
    for (class, work) in AT_WORK {
        let (found, expected) = work();
        let is_it = matches!(found, Error::Corrupt { what, offset, .. } if (what, offset) == (*class, expected));
        assert!(is_it, "{class} at {expected:#x}: {found:?}");
    }
}

/// A check looks at the balance, too, which recovery does not need.
#[test]
fn a_check_finds_a_tree_out_of_balance() {
    type Damage = fn(&Op<'_, Hardware>, &TreeNode);
    let rows: [(Damage, usize); 2] = [
        // The root's height; and a subtree that is gone, under a root of the right height.
        (|op, root| op.store(&root.height, op.load(&root.height, Relaxed) + 1, Relaxed), 1),
        (|op, root| op.store(&root.child[0], Off::NULL, Relaxed), 1),
    ];
    for (number, (damage, count)) in rows.into_iter().enumerate() {
        let (_pool, tm, mut session) = create(&Of::Tree.options());
        (0..7).for_each(|number| tm.transaction(&mut session, |tx| tx.set(tm.cell(number), 1)).unwrap());
        assert_eq!(tm.check(&mut session).unwrap(), [] as [String; 0]);
        damage_root(&tm, |op, root, _| damage(op, op.at(root)));
        let findings = tm.check(&mut session).unwrap();
        assert!(findings.len() == count && findings[0].contains(": height "), "row {number}: {findings:?}");
    }
}
