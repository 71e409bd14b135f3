//! Where records go: one body for the transaction manager over both layerings and all logs.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Release;

use durix_pmem::{Lock, Medium, Off, Op, Rmw, Root, Word};

use crate::arena::Arena;
use crate::config::{Layers, Options};
use crate::error::Result;
use crate::layout::{Anchor, Kind, Record, TreeNode};
use crate::log::{Log, Pos, Shape};
use crate::record::Entry;
use crate::tree::{self, Tree};

/// Records that every transaction may need beyond its own: ROLLBACK and END.
const AT_THE_END: u64 = 2;

/// The records of a log.
#[derive(Debug)]
pub(crate) struct Store<M: Medium> {
    pub(crate) arena: Arena<M>,
    anchor: Off<Anchor>,
    shape: Shape,
    /// The logs: one, or several, among which sessions are distributed.
    lanes: Box<[Index]>,
    /// Number of the next record, of whichever lane.
    next_id: AtomicU64,
}

#[derive(Debug)]
enum Index {
    One(Lock<Log>),
    Two(Lock<Tree>),
}

/// What a running transaction knows of its records.
#[derive(Debug, Default)]
pub(crate) struct Chain {
    pub(crate) tx: u64,
    /// The log that it is in.
    pub(crate) lane: usize,
    /// Records that room is promised for.
    promised: u64,
    /// One layer: where its records stand, and as of which generation of the log.
    own: Vec<(Pos, Off<Record>)>,
    generation: u64,
    /// Its last record.
    pub(crate) last: Option<Off<Record>>,
    /// Two layers: its node, and the records that the node does not lead to yet.
    node: Option<Off<TreeNode>>,
    staged: Vec<Off<Record>>,
}

/// A record that was found.
pub(crate) type Found = (Off<Record>, Entry);

impl<M: Medium> Store<M> {
    /// Finds the records: finishes what is pending in the structures that hold them.
    ///
    /// # Errors
    /// [`Error::Corrupt`](crate::Error::Corrupt).
    pub(crate) fn recover(op: &Op<'_, M>, root: Root<M>, anchor: Off<Anchor>, options: Options) -> Result<Self> {
        let shape = options.shape();
        let arena = Arena::new(root);
        arena.recover(op)?;
        let lane = |number: u64| {
            let anchor = anchor.byte_add(number * size_of::<Anchor>() as u64);
            Ok(match options.layers {
                Layers::One => Index::One(Lock::new(Log::recover(op, anchor, shape)?)),
                Layers::Two => Index::Two(Lock::new(Tree::recover(op, anchor, shape)?)),
            })
        };
        let lanes = (0..options.lanes).map(lane).collect::<Result<_>>()?;
        Ok(Store { arena, anchor, shape, lanes, next_id: AtomicU64::new(1) })
    }

    /// How many logs there are.
    pub(crate) fn lanes(&self) -> usize {
        self.lanes.len()
    }

    /// The log of a transaction: its number says which.
    fn lane_of(&self, tx: u64) -> usize {
        (tx % self.lanes.len() as u64) as usize
    }

    /// From now on numbers are above `id`.
    pub(crate) fn number_from(&self, m: M, id: u64) {
        m.shared_rmw(&self.next_id, Rmw::Max, id + 1);
    }

    /// A record's number.
    pub(crate) fn number(&self, m: M) -> u64 {
        m.shared_rmw(&self.next_id, Rmw::Add, 1)
    }

    /// Makes all units free that nothing leads to.
    ///
    /// # Errors
    /// [`Error::Corrupt`](crate::Error::Corrupt).
    pub(crate) fn release_unused(&self, op: &Op<'_, M>) -> Result<()> {
        let mut live = BTreeSet::from([self.anchor.get()]);
        for lane in &self.lanes {
            self.add_units(op, lane, &mut live)?;
        }
        self.arena.release_all_but(op, &live)
    }

    /// The units that a lane leads to.
    fn add_units(&self, op: &Op<'_, M>, lane: &Index, live: &mut BTreeSet<u64>) -> Result<()> {
        match lane {
            Index::One(log) => {
                let log = log.lock(op.medium());
                live.extend(log.units(op)?);
                if self.shape.record_lines() == 1 {
                    live.extend(log.scan(op)?.into_iter().map(|(_, record)| record.get()));
                }
            }
            Index::Two(tree) => {
                let tree = tree.lock(op.medium());
                live.extend(tree.lower_units(op)?);
                for (_, node) in tree.nodes(op)? {
                    live.insert(node.get());
                    live.extend(tree::chain(op, node)?.into_iter().map(|(record, _)| record.get()));
                }
            }
        }
        Ok(())
    }

    // ---- a transaction's records ----

    /// Begins a transaction: room for its end, and in two layers its node.
    ///
    /// # Errors
    /// [`Error::Pool`](crate::Error::Pool) where the pool has no room.
    pub(crate) fn begin(&self, op: &Op<'_, M>, tx: u64) -> Result<Chain> {
        let mut chain = Chain { tx, lane: self.lane_of(tx), ..Chain::default() };
        self.promise(op, &mut chain, AT_THE_END)?;
        if let Index::Two(tree) = &self.lanes[chain.lane] {
            match tree.lock(op.medium()).insert(op, &self.arena, tx) {
                Ok(node) => chain.node = Some(node),
                Err(error) => {
                    self.unpromise(op.medium(), &mut chain);
                    return Err(error);
                }
            }
        }
        Ok(chain)
    }

    /// A transaction that recovery found, with room for so many records more.
    pub(crate) fn adopt(&self, op: &Op<'_, M>, tx: u64, records: u64) -> Result<Chain> {
        // No position of its records is known: a generation that no log has.
        let mut chain = Chain { tx, lane: self.lane_of(tx), generation: u64::MAX, ..Chain::default() };
        self.promise(op, &mut chain, records)?;
        if let Index::Two(tree) = &self.lanes[chain.lane] {
            let nodes = tree.lock(op.medium()).nodes(op)?;
            chain.node = nodes.into_iter().find(|(key, _)| *key == tx).map(|(_, node)| node);
            let newest = chain.node.map_or(Ok(Vec::new()), |node| tree::chain(op, node))?;
            chain.last = newest.first().map(|(record, _)| *record);
        }
        Ok(chain)
    }

    /// Promises room for `count` records more.
    ///
    /// # Errors
    /// [`Error::Pool`](crate::Error::Pool) where the pool is full.
    pub(crate) fn promise(&self, op: &Op<'_, M>, chain: &mut Chain, count: u64) -> Result<()> {
        match &self.lanes[chain.lane] {
            Index::One(log) => log.lock(op.medium()).promise(op, &self.arena, count)?,
            Index::Two(_) => self.arena.promise(op, 1, count as usize)?,
        }
        chain.promised += count;
        Ok(())
    }

    /// Takes all promises back.
    pub(crate) fn unpromise(&self, m: M, chain: &mut Chain) {
        let count = std::mem::take(&mut chain.promised);
        match &self.lanes[chain.lane] {
            _ if count == 0 => {}
            Index::One(log) => log.lock(m).unpromise(m, &self.arena, count),
            Index::Two(_) => self.arena.unpromise(m, 1, count as usize),
        }
    }

    /// Appends a record, for which there is room. Returns whether all of the transaction's records are durable.
    pub(crate) fn append(&self, op: &Op<'_, M>, chain: &mut Chain, entry: &Entry) -> bool {
        chain.promised -= 1;
        match &self.lanes[chain.lane] {
            Index::One(log) => {
                let record = self.shape.new_record(op, &self.arena, entry);
                let mut log = log.lock(op.medium());
                Self::append_to(&mut log, op, &self.arena, chain, record);
                !log.is_staged()
            }
            Index::Two(_) => {
                let record = Off::new(self.arena.take_promised(op.medium(), 1));
                entry.store(op, record, chain.last.unwrap_or(Off::NULL));
                chain.last = Some(record);
                chain.staged.push(record);
                if chain.staged.len() as u64 >= self.shape.group {
                    self.flush(op, chain);
                }
                chain.staged.is_empty()
            }
        }
    }

    fn append_to(log: &mut Log, op: &Op<'_, M>, arena: &Arena<M>, chain: &mut Chain, record: Off<Record>) {
        let pos = log.append(op, arena, record);
        if chain.own.is_empty() && chain.generation != u64::MAX {
            chain.generation = log.generation();
        }
        chain.own.push((pos, record));
        chain.last = Some(record);
    }

    /// Appends the transaction's last record, for which there is room, and makes all its records durable. In one go: the fence
    /// before anything leads to the record is one of this session, and covers what the session has written back before.
    pub(crate) fn append_last(&self, op: &Op<'_, M>, chain: &mut Chain, entry: &Entry) {
        let Index::One(log) = &self.lanes[chain.lane] else {
            self.append(op, chain, entry);
            return self.flush(op, chain);
        };
        chain.promised -= 1;
        let record = self.shape.new_record(op, &self.arena, entry);
        let mut log = log.lock(op.medium());
        Self::append_to(&mut log, op, &self.arena, chain, record);
        log.flush(op);
    }

    /// Makes all records of the transaction durable.
    pub(crate) fn flush(&self, op: &Op<'_, M>, chain: &mut Chain) {
        match &self.lanes[chain.lane] {
            Index::One(log) => log.lock(op.medium()).flush(op),
            Index::Two(_) => {
                if let Some(node) = chain.node {
                    tree::extend(op, node, &chain.staged);
                }
                chain.staged.clear();
            }
        }
    }

    /// The transaction's records, newest first.
    ///
    /// # Errors
    /// [`Error::Corrupt`](crate::Error::Corrupt).
    pub(crate) fn own(&self, op: &Op<'_, M>, chain: &mut Chain) -> Result<Vec<Found>> {
        if let Index::One(log) = &self.lanes[chain.lane] {
            self.locate(op, &log.lock(op.medium()), chain)?;
            let load = |(_, record): &(Pos, Off<Record>)| Ok((*record, Entry::load(op, *record)?.0));
            return chain.own.iter().rev().map(load).collect();
        }
        let mut records = Vec::new();
        let mut at = chain.last.unwrap_or(Off::NULL);
        while !at.is_null() {
            let (entry, prev) = Entry::load(op, at)?;
            records.push((at, entry));
            at = prev;
        }
        Ok(records)
    }

    /// Finds the transaction's records anew, where the log was compacted since.
    fn locate(&self, op: &Op<'_, M>, log: &Log, chain: &mut Chain) -> Result<()> {
        if chain.generation == log.generation() || (chain.own.is_empty() && chain.generation != u64::MAX) {
            return Ok(());
        }
        chain.own.clear();
        for (pos, record) in log.scan(op)? {
            if Entry::load(op, record)?.0.tx == chain.tx {
                chain.own.push((pos, record));
            }
        }
        chain.generation = log.generation();
        Ok(())
    }

    // ---- all records ----

    /// All records, in the order of their numbers in each transaction, and of the log in one layer. Records of several lanes are in
    /// the order of their numbers: numbers are drawn while the caller's locks are held, so records of one word are in the order
    /// in which it was changed.
    ///
    /// # Errors
    /// [`Error::Corrupt`](crate::Error::Corrupt).
    pub(crate) fn all(&self, op: &Op<'_, M>) -> Result<Vec<Found>> {
        let mut records = Vec::new();
        for lane in &self.lanes {
            match lane {
                Index::One(log) => {
                    let log = log.lock(op.medium());
                    for (_, at) in log.scan(op)? {
                        records.push((at, Entry::load(op, at)?.0));
                    }
                }
                Index::Two(tree) => {
                    for (_, node) in tree.lock(op.medium()).nodes(op)? {
                        records.extend(tree::chain(op, node)?);
                    }
                }
            }
        }
        if self.lanes.len() > 1 || matches!(self.lanes[0], Index::Two(_)) {
            records.sort_by_key(|(_, entry)| entry.id);
        }
        Ok(records)
    }

    /// Whether it holds no trace of a transaction.
    ///
    /// # Errors
    /// [`Error::Corrupt`](crate::Error::Corrupt).
    pub(crate) fn is_empty(&self, op: &Op<'_, M>) -> Result<bool> {
        for lane in &self.lanes {
            let is_empty = match lane {
                Index::One(log) => log.lock(op.medium()).scan(op)?.is_empty(),
                Index::Two(tree) => tree.lock(op.medium()).nodes(op)?.is_empty(),
            };
            if !is_empty {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Writes back all that recovery has read. Durable with the next fence.
    ///
    /// # Errors
    /// [`Error::Corrupt`](crate::Error::Corrupt).
    pub(crate) fn write_back_all(&self, op: &Op<'_, M>) -> Result<()> {
        for lane in &self.lanes {
            match lane {
                Index::One(log) => log.lock(op.medium()).write_back_all(op)?,
                Index::Two(tree) => {
                    // Records were durable before a node led to them (RW-T6), the anchor is since the tree was recovered (RW-T5).
                    tree.lock(op.medium()).nodes(op)?.iter().for_each(|(_, node)| op.write_back(op.at(*node)));
                }
            }
        }
        Ok(())
    }

    /// Removes the records of one transaction that has ended, END last.
    ///
    /// # Errors
    /// [`Error::Corrupt`](crate::Error::Corrupt).
    pub(crate) fn forget(&self, op: &Op<'_, M>, mut chain: Chain) -> Result<()> {
        match &self.lanes[chain.lane] {
            Index::One(log) => {
                let mut log = log.lock(op.medium());
                self.locate(op, &log, &mut chain)?;
                // The transaction's last record is its END.
                let Some((end, others)) = chain.own.split_last() else { return Ok(()) };
                // PERSIST RW-K1: END is removed last, behind the fence of the others' removal.
                log.remove(op, &self.arena, others);
                log.remove(op, &self.arena, &[*end]);
                self.compact_if_sparse(op, &mut log)
            }
            Index::Two(tree) => {
                let records = self.own(op, &mut chain)?;
                tree.lock(op.medium()).remove(op, &self.arena, chain.tx)?;
                self.arena.give_back(op.medium(), 1, records.into_iter().map(|(record, _)| record.get()));
                Ok(())
            }
        }
    }

    /// Removes the records of transactions that have ended, END records last. Nobody else removes records meanwhile.
    ///
    /// # Errors
    /// [`Error::Corrupt`](crate::Error::Corrupt).
    pub(crate) fn forget_all(&self, op: &Op<'_, M>, ended: &BTreeSet<u64>) -> Result<()> {
        self.lanes.iter().try_for_each(|lane| self.forget_in(op, lane, ended))
    }

    fn forget_in(&self, op: &Op<'_, M>, lane: &Index, ended: &BTreeSet<u64>) -> Result<()> {
        match lane {
            Index::One(log) => {
                let mut log = log.lock(op.medium());
                let mut kinds: BTreeMap<bool, Vec<(Pos, Off<Record>)>> = BTreeMap::new();
                for (pos, at) in log.scan(op)? {
                    let entry = Entry::load(op, at)?.0;
                    if ended.contains(&entry.tx) {
                        kinds.entry(entry.kind == Kind::End).or_default().push((pos, at));
                    }
                }
                // PERSIST RW-K1: false comes before true, so END records are removed last.
                kinds.values().for_each(|records| log.remove(op, &self.arena, records));
                self.compact_if_sparse(op, &mut log)
            }
            Index::Two(tree) => {
                let mut tree = tree.lock(op.medium());
                for (tx, node) in tree.nodes(op)? {
                    if ended.contains(&tx) {
                        let records = tree::chain(op, node)?;
                        tree.remove(op, &self.arena, tx)?;
                        self.arena.give_back(op.medium(), 1, records.into_iter().map(|(record, _)| record.get()));
                    }
                }
                Ok(())
            }
        }
    }

    fn compact_if_sparse(&self, op: &Op<'_, M>, log: &mut Log) -> Result<()> {
        if log.is_sparse() { log.compact(op, &self.arena) } else { Ok(()) }
    }

    /// Makes each lane empty by a pointer swap, and all units free. Nobody else is at work. A crash leaves some lanes cleared: where
    /// there are several, the others' records must not be redone any more (RW-R7).
    ///
    /// # Errors
    /// [`Error::Corrupt`](crate::Error::Corrupt).
    pub(crate) fn clear(&self, op: &Op<'_, M>) -> Result<()> {
        for lane in &self.lanes {
            match lane {
                Index::One(log) => log.lock(op.medium()).clear(op),
                Index::Two(tree) => tree.lock(op.medium()).clear(op),
            }
        }
        self.release_unused(op)
    }

    /// What is inconsistent, a line each.
    pub(crate) fn check(&self, op: &Op<'_, M>) -> Vec<String> {
        let mut findings: Vec<String> = self.all(op).err().iter().map(ToString::to_string).collect();
        for lane in &self.lanes {
            if let Index::Two(tree) = lane {
                findings.extend(tree.lock(op.medium()).check(op));
            }
        }
        findings
    }
}

/// Stores a word that a record speaks of.
pub(crate) fn store_word<M: Medium>(op: &Op<'_, M>, addr: Off<Word>, value: u64, durably: bool) {
    let word = op.at(addr);
    op.store(word, value, Release);
    if durably {
        op.write_back(word);
    }
}
