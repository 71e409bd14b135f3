//! What the figures over B+-trees share (section 5.2 and 5.3): a pool with trees in it, and the three ways to change them: in
//! DRAM, persistent but not recoverable, in transactions.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use durix_pmem::backing::FileBacking;
use durix_pmem::{LINE, Medium, Off, Op, Pool, PoolOptions, Session, Word};
use durix_rewind::{LogKind, Options, TransactionManager, Tx};

use super::tree::{NODE, Row, Tree, Words};
use crate::paper::Error;
use crate::place::Place;
use crate::workload::Random;

/// How a contestant changes its trees.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(in crate::paper) enum How {
    /// Nothing is written back.
    Dram,
    /// Each operation is persistent when it returns, and none is atomic.
    Plain,
    /// In transactions.
    Logged(Options),
}

/// The contestants of figure 7.
pub(in crate::paper) fn contestants() -> Vec<(&'static str, How)> {
    vec![
        ("DRAM", How::Dram),
        ("NVM", How::Plain),
        ("Simple", How::Logged(Options::default().log(LogKind::Simple))),
        ("Optimized", How::Logged(Options::default().log(LogKind::Optimized))),
        ("Batch 8", How::Logged(Options::default())),
    ]
}

/// Words that roots of trees may lie in.
const ROOTS: u64 = 64;

/// A pool with trees.
pub(in crate::paper) struct World<M: Medium> {
    pub(in crate::paper) how: How,
    pub(in crate::paper) pool: Pool<M>,
    pub(in crate::paper) tm: Arc<TransactionManager<M>>,
    first: u64,
    end: u64,
    next: AtomicU64,
}

impl<M: Medium> World<M> {
    /// In a file of `place` that has no name, with room for so many bytes of nodes that are not allocated by transactions.
    pub(in crate::paper) fn at(place: &Place, medium: M, how: How, nodes: u64) -> Result<Self, Error> {
        let path = place.unused_path();
        let options = PoolOptions::new().initial_size(nodes + (64 << 20)).max_size(nodes + (1 << 30)).assume_pmem(true);
        let pool = options.create_on(FileBacking::create(&path)?, medium);
        let _ = std::fs::remove_file(&path);
        let pool = pool?;
        let log = if let How::Logged(options) = how { options } else { Options::default() };
        let tm = TransactionManager::open(&pool, "log", &log)?;
        let mut session = pool.session()?;
        let op = session.enter()?;
        // It goes with the pool, which has no name.
        let reserved = pool.space().reserve_extent(&op, tm.root().owner(), nodes)?;
        let (first, end) = (reserved.off(), reserved.off() + reserved.len());
        std::mem::forget(reserved);
        drop(op);
        Ok(World { how, pool, tm, first, end, next: AtomicU64::new(first + ROOTS * 8) })
    }

    /// Tree number `number`.
    pub(in crate::paper) fn tree(&self, number: u64) -> Tree {
        assert!(number < ROOTS);
        Tree(self.first + number * 8)
    }

    /// Fills tree `number`, in DRAM speed; then all is written back.
    pub(in crate::paper) fn load(
        &self,
        session: &mut Session<M>,
        number: u64,
        records: impl Iterator<Item = (u64, Row)>,
    ) -> Result<(), Error> {
        let (tree, op) = (self.tree(number), session.enter()?);
        let mut words = Direct::new(self, &op, false);
        tree.format(&mut words);
        records.for_each(|(key, row)| assert!(tree.insert(&mut words, key, row), "the keys differ"));
        let used = self.next.load(Relaxed);
        for line in (self.first..used).step_by(LINE) {
            op.write_back(op.at(Off::<Word>::new(line)));
        }
        op.fence();
        Ok(())
    }

    /// Runs `f` in one transaction, which is rolled back if it returns false. Without transactions nothing is rolled back.
    pub(in crate::paper) fn transaction(
        &self,
        session: &mut Session<M>,
        f: impl FnOnce(&mut Any<'_, '_, M>) -> bool,
    ) -> Result<(), Error> {
        if let How::Logged(_) = self.how {
            let mut tx = self.tm.begin(session)?;
            let goes = f(&mut Any::Logged(&mut tx));
            let ended = if goes { tx.commit() } else { tx.rollback() };
            return Ok(ended?);
        }
        let op = session.enter()?;
        let mut words = Any::Direct(Direct::new(self, &op, self.how == How::Plain));
        f(&mut words);
        words.done();
        Ok(())
    }
}

/// Words that are stored at once.
pub(in crate::paper) struct Direct<'w, 's, M: Medium> {
    world: &'w World<M>,
    op: &'w Op<'s, M>,
    is_durable: bool,
    /// The line that was stored to last: consecutive stores to one line are one write, as in the paper.
    line: u64,
}

impl<'w, 's, M: Medium> Direct<'w, 's, M> {
    fn new(world: &'w World<M>, op: &'w Op<'s, M>, is_durable: bool) -> Self {
        Direct { world, op, is_durable, line: 0 }
    }

    fn leave_line(&mut self, next: u64) {
        if self.is_durable && self.line != 0 && self.line != next {
            self.op.write_back(self.op.at(Off::<Word>::new(self.line)));
        }
        self.line = next;
    }
}

impl<M: Medium> Words for Direct<'_, '_, M> {
    fn get(&mut self, at: u64) -> u64 {
        self.op.load(self.op.at(Off::<Word>::new(at)), Acquire)
    }

    fn set(&mut self, at: u64, value: u64) {
        self.leave_line(at & !(LINE as u64 - 1));
        self.op.store(self.op.at(Off::<Word>::new(at)), value, Release);
    }

    fn alloc(&mut self, content: &[u64; NODE]) -> u64 {
        let from = self.world.next.fetch_add(NODE as u64 * 8, Relaxed);
        assert!(from + NODE as u64 * 8 <= self.world.end, "the figure reserves enough for its nodes");
        content.iter().enumerate().for_each(|(word, value)| self.set(from + 8 * word as u64, *value));
        from
    }

    fn done(&mut self) {
        if self.line != 0 && self.is_durable {
            self.leave_line(0);
            self.op.fence();
        }
        self.line = 0;
    }
}

/// Words of whatever contestant.
pub(in crate::paper) enum Any<'w, 's, M: Medium> {
    Direct(Direct<'w, 's, M>),
    Logged(&'w mut Tx<'s, M>),
}

/// A pool of a figure has room for what the figure writes.
const ROOM: &str = "a pool with room";

impl<M: Medium> Words for Any<'_, '_, M> {
    fn get(&mut self, at: u64) -> u64 {
        match self {
            Any::Direct(words) => words.get(at),
            Any::Logged(tx) => tx.get(Off::<Word>::new(at)).expect(ROOM),
        }
    }

    fn set(&mut self, at: u64, value: u64) {
        match self {
            Any::Direct(words) => words.set(at, value),
            Any::Logged(tx) => tx.set(Off::<Word>::new(at), value).expect(ROOM),
        }
    }

    fn alloc(&mut self, content: &[u64; NODE]) -> u64 {
        match self {
            Any::Direct(words) => words.alloc(content),
            Any::Logged(tx) => tx.alloc(content).expect(ROOM).get(),
        }
    }

    fn done(&mut self) {
        if let Any::Direct(words) = self {
            words.done();
        }
    }
}

/// What is done to a tree.
#[derive(Clone, Copy, Debug)]
pub(in crate::paper) enum Step {
    Get(u64),
    Insert(u64),
    Remove(u64),
}

impl Step {
    /// Does it. Returns whether it found the tree as expected.
    pub(in crate::paper) fn run(self, tree: Tree, words: &mut impl Words) -> bool {
        let done = match self {
            Step::Get(key) => tree.get(words, key).is_some(),
            Step::Insert(key) => tree.insert(words, key, row(key)),
            Step::Remove(key) => tree.remove(words, key),
        };
        words.done();
        done
    }
}

/// What a record holds besides its key.
pub(in crate::paper) fn row(key: u64) -> Row {
    [key, key ^ 1, key ^ 2]
}

/// Random steps that keep the number of records: the same for all contestants of a seed.
#[derive(Clone)]
pub(in crate::paper) struct Steps {
    present: Vec<u64>,
    random: Random,
    inserts: bool,
}

impl Steps {
    /// Over a tree of `records` records, which [`keys`](Self::keys) gives.
    pub(in crate::paper) fn new(records: usize, seed: u64) -> Self {
        let mut steps =
            Steps { present: Vec::new(), random: Random(88_172_645_463_325_252 ^ seed << 7), inserts: false };
        steps.present = (0..records).map(|_| steps.random()).collect();
        steps
    }

    /// The keys that are there.
    pub(in crate::paper) fn keys(&self) -> &[u64] {
        &self.present
    }

    /// A random number.
    pub(in crate::paper) fn random(&mut self) -> u64 {
        self.random.next()
    }

    /// The next step: an update with a probability of so many percent, insertions and removals in turn.
    pub(in crate::paper) fn next(&mut self, updates: u64) -> Step {
        let random = self.random();
        let at = (random >> 8) as usize % self.present.len();
        if random % 100 >= updates {
            return Step::Get(self.present[at]);
        }
        self.inserts = !self.inserts;
        if self.inserts {
            let key = self.random();
            self.present.push(key);
            Step::Insert(key)
        } else {
            Step::Remove(self.present.swap_remove(at))
        }
    }
}
