//! Transactions: several keys, all or nothing, one fence (section 4.4, mended).
//!
//! All entries of a transaction carry its version and their number. Recovery takes a transaction if it finds that many.
//! As printed, that goes wrong as soon as one of n entries is superseded and its slot reused: the other n − 1 would be
//! dropped. So there is a durable *watermark*: all transactions up to it have committed, and their entries count one by
//! one. Transactions commit one at a time, which makes the watermark a single number; it is stored with the next
//! transaction, or with an operation that would like to reuse an entry, and written back under that operation's own
//! fence. No entry of a transaction above the durable watermark is overwritten or erased.
//!
//! # Persist order
//! | edge | kept by | a crash between leaves | recovery |
//! |---|---|---|---|
//! | PS-T1 all entries of a transaction < it is acknowledged or visible | write-back + fence | some of its entries | fewer than the count: all are discarded, durably (PS-R1) |
//! | PS-T2 transaction v has committed < the watermark is v | PS-T1, then store | a watermark below v | v is above it and complete |
//! | PS-T3 the watermark v is durable < an entry of v is overwritten | fence of an operation before | all entries of v | complete |
//!
//! # Isolation
//! A transaction made by a closure remembers the version of every key it has read (or that it was absent), and commits
//! only if they are still the same while it holds the locks of all shards involved; otherwise the closure runs again.
//! After a few failures it runs with all shards locked. Shards are locked in ascending order.

use std::ops::Range;

use durix_pmem::{LockGuard, Medium, Op, Rmw};
use std::sync::atomic::Ordering;

use super::entry;
use super::error::{Error, Result};
use super::layout::MAX_TRANSACTION;
use super::reuse::Taken;
use super::set::PersistentSet;
use super::shard::{Found, Inner, New, class_of};
use super::update::{Change, Key, check_value, info_of};

/// How often the closure of a transaction runs before it gets all locks.
const OPTIMISTIC_RUNS: u32 = 8;

/// Changes to be made together: by [`PersistentSet::commit`].
#[derive(Clone, Debug, Default)]
pub struct Batch {
    bytes: Vec<u8>,
    changes: Vec<Item>,
}

#[derive(Clone, Debug)]
struct Item {
    key: Range<usize>,
    value: Option<Range<usize>>,
}

impl Batch {
    /// An empty one.
    pub fn new() -> Self {
        Batch::default()
    }

    /// Forgets all changes, keeps the memory.
    pub fn clear(&mut self) {
        self.bytes.clear();
        self.changes.clear();
    }

    /// Maps `key` to `value`. Of several changes to one key the last counts.
    pub fn insert(&mut self, key: &[u8], value: &[u8]) -> &mut Self {
        let key = self.copy(key);
        let value = Some(self.copy(value));
        self.changes.push(Item { key, value });
        self
    }

    /// Removes `key`, if it is there.
    pub fn remove(&mut self, key: &[u8]) -> &mut Self {
        let key = self.copy(key);
        self.changes.push(Item { key, value: None });
        self
    }

    /// Number of changes.
    pub fn len(&self) -> usize {
        self.changes.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.changes.is_empty()
    }

    fn copy(&mut self, bytes: &[u8]) -> Range<usize> {
        let start = self.bytes.len();
        self.bytes.extend_from_slice(bytes);
        start..self.bytes.len()
    }

    fn key(&self, index: usize) -> &[u8] {
        &self.bytes[self.changes[index].key.clone()]
    }

    fn change(&self, index: usize) -> Change<'_> {
        self.changes[index].value.clone().map(|v| &self.bytes[v])
    }

    /// What the batch makes of `key`, if it changes it.
    fn last(&self, key: &[u8]) -> Option<Change<'_>> {
        (0..self.len()).rev().find(|i| self.key(*i) == key).map(|i| self.change(i))
    }
}

/// A key that a transaction has read.
#[derive(Debug)]
struct Read {
    key: Vec<u8>,
    hash: u64,
    /// Version of its entry, `None` if it was not there.
    version: Option<u64>,
}

/// A transaction under way: see [`PersistentSet::txn`].
#[derive(Debug)]
pub struct Txn<'a, 's, M: Medium> {
    set: &'a PersistentSet<M>,
    op: &'a Op<'s, M>,
    reads: Vec<Read>,
    batch: Batch,
}

impl<M: Medium> Txn<'_, '_, M> {
    /// The value of `key` as this transaction sees it: what it wrote itself, or what is durable.
    ///
    /// # Errors
    /// As [`PersistentSet::get`].
    pub fn get(&mut self, key: &[u8]) -> Result<Option<Vec<u8>>> {
        if let Some(change) = self.batch.last(key) {
            return Ok(change.map(<[u8]>::to_vec));
        }
        let mut value = Vec::new();
        let sought = self.set.key(key)?;
        let found = self.set.lookup(self.op, sought, |entry| entry.read_value(self.op, &mut value))?;
        let version = found.map(|(_, meta)| meta.version());
        self.reads.push(Read { key: key.to_vec(), hash: sought.hash, version });
        Ok(version.map(|_| value))
    }

    /// Maps `key` to `value` when the transaction commits.
    pub fn insert(&mut self, key: &[u8], value: &[u8]) {
        self.batch.insert(key, value);
    }

    /// Removes `key` when the transaction commits, if it is there.
    pub fn remove(&mut self, key: &[u8]) {
        self.batch.remove(key);
    }
}

/// A change that is going to be made.
struct Write<'b> {
    key: Key<'b>,
    change: Change<'b>,
    /// Which of the guards holds its shard.
    guard: usize,
    old: Option<Found>,
    taken: Option<Taken>,
}

/// The locks of the shards of a transaction, ascending.
type Guards<'a, M> = Vec<(usize, LockGuard<'a, Inner, M>)>;

impl<M: Medium> PersistentSet<M> {
    /// Makes all changes of a batch, or none; durable when it returns. One write-back a line, one more for the watermark
    /// of the transaction before, one fence. Removing keys that are not there costs nothing.
    ///
    /// # Errors
    /// [`Error::KeyTooLong`], [`Error::ValueTooLong`], [`Error::TransactionTooLarge`]; [`Error::Pool`] where the pool is
    /// full, or after a panic in an update. The set then is as it was.
    pub fn commit(&self, op: &Op<'_, M>, batch: &Batch) -> Result<()> {
        let writes = self.writes(batch)?;
        let _committing = self.committing.lock(op.medium());
        let mut guards = self.lock_shards(op, &writes, &[]);
        self.settle_shards(op, &mut guards);
        self.commit_locked(op, writes, &mut guards)
    }

    /// Runs `f` as a transaction: what it reads is as of one moment, the moment at which all that it writes becomes
    /// visible to other transactions; durable when this returns. If it returns an error, nothing is written. It may run
    /// several times, in the end with all shards locked: it must not change this set other than through its argument.
    ///
    /// # Errors
    /// What `f` returns, and as [`commit`](Self::commit).
    pub fn txn<R, E: From<Error>>(
        &self,
        op: &Op<'_, M>,
        mut f: impl FnMut(&mut Txn<'_, '_, M>) -> Result<R, E>,
    ) -> Result<R, E> {
        let mut txn = Txn { set: self, op, reads: Vec::new(), batch: Batch::new() };
        for _ in 0..OPTIMISTIC_RUNS {
            let result = f(&mut txn)?;
            let writes = self.writes(&txn.batch)?;
            let _committing = self.committing.lock(op.medium());
            let mut guards = self.lock_shards(op, &writes, &txn.reads);
            self.settle_shards(op, &mut guards);
            if self.is_current(op, &txn.reads) {
                self.commit_locked(op, writes, &mut guards)?;
                return Ok(result);
            }
            drop(guards);
            txn.reads.clear();
            txn.batch.clear();
        }
        let _committing = self.committing.lock(op.medium());
        let mut guards = (0..self.shards.len()).map(|s| (s, self.shards[s].lock(op.medium()))).collect();
        // What the closure reads must not wait for one of these locks.
        self.settle_shards(op, &mut guards);
        let result = f(&mut txn)?;
        self.commit_locked(op, self.writes(&txn.batch)?, &mut guards)?;
        Ok(result)
    }

    /// The changes of a batch, checked, by shard, the last of each key only.
    fn writes<'b>(&self, batch: &'b Batch) -> Result<Vec<Write<'b>>> {
        let mut writes = Vec::with_capacity(batch.len());
        for index in 0..batch.len() {
            let (key, change) = (self.key(batch.key(index))?, batch.change(index));
            check_value(change.unwrap_or_default())?;
            writes.push(Write { key, change, guard: 0, old: None, taken: None });
        }
        // The sort is stable: of equal keys, the last one is last.
        writes.sort_by_key(|w| (self.shard_index(w.key.hash), w.key.bytes));
        writes.reverse();
        writes.dedup_by(|next, kept| next.key.bytes == kept.key.bytes);
        writes.reverse();
        if writes.len() > MAX_TRANSACTION {
            return Err(Error::TransactionTooLarge { keys: writes.len() });
        }
        Ok(writes)
    }

    fn lock_shards(&self, op: &Op<'_, M>, writes: &[Write<'_>], reads: &[Read]) -> Guards<'_, M> {
        let hashes = writes.iter().map(|w| w.key.hash).chain(reads.iter().map(|r| r.hash));
        let mut shards: Vec<_> = hashes.map(|h| self.shard_index(h)).collect();
        shards.sort_unstable();
        shards.dedup();
        shards.into_iter().map(|s| (s, self.shards[s].lock(op.medium()))).collect()
    }

    /// Settles all entries of the locked shards: a transaction replaces durable ones only, and has read nothing else.
    fn settle_shards(&self, op: &Op<'_, M>, guards: &mut Guards<'_, M>) {
        for (shard, inner) in guards {
            self.settle_shard(op, &self.shards[*shard], inner);
        }
    }

    /// Whether the keys read are as they were, under the locks of their shards.
    fn is_current(&self, op: &Op<'_, M>, reads: &[Read]) -> bool {
        reads.iter().all(|read| {
            let key = Key { bytes: &read.key, hash: read.hash };
            let found = self.shard(read.hash).find(op, key.tag(), key.bytes);
            found.map(|f| f.meta.version()) == read.version
        })
    }

    fn commit_locked(&self, op: &Op<'_, M>, mut writes: Vec<Write<'_>>, guards: &mut Guards<'_, M>) -> Result<()> {
        let m = op.medium();
        self.poison.check(op)?;
        self.resolve(op, &mut writes, guards);
        if writes.is_empty() {
            return Ok(());
        }
        self.take_slots(op, &mut writes, guards)?;
        let _guard = self.poison.guard(op)?;
        let watermark = self.raise_watermark(op);
        let version = self.version_for(m, guards);
        // A single entry is atomic by itself.
        let count = if writes.len() == 1 { 0 } else { writes.len() as u16 };
        for write in &writes {
            self.write_one(op, write, version, count, guards);
        }
        if watermark.is_some() {
            self.write_back_watermark(op);
        }
        // PERSIST PS-T1: flush+fence.
        op.fence();
        // PERSIST PS-T2: the transaction is durable.
        if count > 0 {
            m.shared_rmw(&self.committed, Rmw::Max, version);
        }
        self.watermark_is_durable(m, watermark);
        self.publish_all(op, writes, version, count, guards);
        Ok(())
    }

    /// Finds the keys, drops what changes nothing, makes room in the indices.
    fn resolve(&self, op: &Op<'_, M>, writes: &mut Vec<Write<'_>>, guards: &mut Guards<'_, M>) {
        let m = op.medium();
        for write in writes.iter_mut() {
            let shard = self.shard_index(write.key.hash);
            write.guard = guards.binary_search_by_key(&shard, |g| g.0).expect("the shard is locked");
        }
        for group in writes.chunk_by_mut(|a, b| a.guard == b.guard) {
            let (shard, inner) = &mut guards[group[0].guard];
            let shard = &self.shards[*shard];
            shard.index.reserve(m, &mut inner.tables, group.len());
            group.iter_mut().for_each(|w| w.old = shard.find(op, w.key.tag(), w.key.bytes));
        }
        writes.retain(|w| w.change.is_some() || w.old.is_some());
    }

    /// Takes a slot for every write, or none.
    fn take_slots(&self, op: &Op<'_, M>, writes: &mut [Write<'_>], guards: &mut Guards<'_, M>) -> Result<()> {
        for index in 0..writes.len() {
            let write = &mut writes[index];
            let class = class_of(info_of(write.key.bytes, write.change));
            let (shard, inner) = &mut guards[write.guard];
            match self.take(op, &self.shards[*shard], inner, class) {
                Ok(taken) => write.taken = Some(taken),
                Err(error) => {
                    for write in writes[..index].iter_mut().rev() {
                        let taken = write.taken.take().expect("taken before");
                        guards[write.guard].1.reuse.give_back(taken);
                    }
                    guards.iter_mut().for_each(|(_, inner)| inner.reuse.settle());
                    return Err(error);
                }
            }
        }
        Ok(())
    }

    fn write_one(&self, op: &Op<'_, M>, write: &Write<'_>, version: u64, count: u16, guards: &mut Guards<'_, M>) {
        let info = info_of(write.key.bytes, write.change).in_transaction(count);
        let taken = write.taken.expect("taken above");
        let inner = &mut guards[write.guard].1;
        let scrub = self.scrub(op, inner, class_of(info), taken);
        entry::write(op, taken.off, version, info, write.key.bytes, write.change.unwrap_or_default());
        Self::erase_all(op, &scrub);
    }

    /// A version above all of the shards involved and of all transactions before.
    fn version_for(&self, m: M, guards: &mut Guards<'_, M>) -> u64 {
        let last = m.shared_load(&self.committed, Ordering::Acquire);
        let version = guards.iter().map(|(_, inner)| inner.version()).fold(last, u64::max) + 1;
        guards.iter_mut().for_each(|(_, inner)| inner.raise_version(version));
        version
    }

    fn publish_all(
        &self,
        op: &Op<'_, M>,
        writes: Vec<Write<'_>>,
        version: u64,
        count: u16,
        guards: &mut Guards<'_, M>,
    ) {
        let m = op.medium();
        guards.iter_mut().for_each(|(_, inner)| inner.reuse.settle());
        for write in writes {
            let (shard, inner) = &mut guards[write.guard];
            let shard = &self.shards[*shard];
            let info = info_of(write.key.bytes, write.change).in_transaction(count);
            let new = New {
                tag: write.key.tag(),
                off: write.taken.expect("taken above").off,
                version,
                info,
                class: class_of(info),
            };
            // An earlier removal of this transaction may have moved the cell.
            let tag = write.key.tag();
            let old = write.old.and_then(|old| Some(Found { at: shard.index.find_off(m, tag, old.off)?, ..old }));
            shard.publish(m, inner, new, old);
            self.prefetch(op, inner, class_of(info));
        }
    }
}
