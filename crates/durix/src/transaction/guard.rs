//! The guard before an open index: every update passes it.
//!
//! One word says whether there is anything to do: whether the map has a lock table, and whether a snapshot is open. While
//! the word is zero, an update costs one predicted branch more.
//!
//! The word changes from zero in a moment without operations ([`Mapping::quiesce`](durix_pmem::Mapping::quiesce)), and an
//! update reads it inside its operation. Either the operation began before that moment; then the moment waited for its end. Or it
//! begins after the moment; then it sees the word. So no update that has seen zero is under way while a transaction holds a
//! lock or a snapshot is open.
//!
//! The table goes again when no transaction has used it for a while: [`Guarded::retire_table`]. Plain updates count, and the update that finds
//! the table idle has it go, so no thread of the database is needed. The flag is cleared under the lock of the table, where no lock is held, in an
//! operation:
//!
//! - Either a transaction gets its lock first; then the table is in use and stays.
//! - Or the flag is cleared first; then the transaction, which looks at the flag under the same lock, finds it cleared, and sets it again in a
//!   moment without operations, as the first transaction does.

use std::fmt;
use std::ops::Bound;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use durix_pmem::pool::Durability;
use durix_pmem::{Lock, Medium, Op, Owner, Pool, Rmw, Root, Session};

use super::locks::{Age, Conflict, Plain, Table, Wanted};
use super::running;
use super::shared::{Transactions, Turn, Waiting};
use super::turns::PATIENCE;
use crate::Batch;
use crate::{Cursor, Direction, Finding, Index, IndexStats, KeyRange, Limits, OrderedIndex, Pairs, Ticket};
use crate::{Error, Result};

/// How long it waits for those who hold an index for a step.
const A_STEP: Duration = Duration::from_secs(1);

/// The map has a lock table: its updates lock.
const LOCKS: u64 = 1;
/// A snapshot is open: updates store old values.
const VERSIONS: u64 = 2;

/// An open index, and what stands before its updates.
pub(crate) struct Guarded<M: Medium> {
    raw: Arc<dyn Index<M>>,
    transactions: Arc<Transactions<M>>,
    owner: Owner,
    /// No record names a key of it.
    is_buffered: bool,
    armed: AtomicU64,
    table: Lock<Table>,
    plain: Plain,
    /// How often locks were given back: what a thread waits for that has met one.
    released: AtomicU64,
}

impl<M: Medium> fmt::Debug for Guarded<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Guarded").field("root", self.raw.root()).finish_non_exhaustive()
    }
}

impl<M: Medium> Guarded<M> {
    pub(super) fn new(transactions: Arc<Transactions<M>>, raw: Arc<dyn Index<M>>) -> Self {
        let mut armed = if transactions.versions.is_open() { VERSIONS } else { 0 };
        // Retired records may know keys of this index, from before it was closed: its updates look at them.
        if transactions.retirements.any(transactions.medium()) {
            armed |= LOCKS;
        }
        let (owner, is_buffered) = (raw.root().owner(), raw.durability() == Durability::Buffered);
        let (armed, table) = (AtomicU64::new(armed), Lock::new(Table::default()));
        let released = AtomicU64::new(0);
        Guarded { raw, transactions, owner, is_buffered, armed, table, plain: Plain::default(), released }
    }

    /// The index itself.
    pub(crate) fn raw(&self) -> &dyn Index<M> {
        &*self.raw
    }

    /// The pool of the index, without asking the index.
    #[inline]
    pub(crate) fn pool(&self) -> &Pool<M> {
        &self.transactions.pool
    }

    /// Whether the index is open nowhere else. Services of the pool hold it for a step now and then (the sweep of a checkpoint, a merge), so who
    /// holds it below the facade is waited for, [`A_STEP`] at most.
    pub(crate) fn is_sole(self: &Arc<Self>) -> bool {
        let begun = Instant::now();
        loop {
            if Arc::strong_count(self) > 1 {
                return false;
            }
            if Arc::strong_count(&self.raw) == 1 {
                return true;
            }
            if begun.elapsed() >= A_STEP {
                return false;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    #[inline(always)]
    fn armed(&self, m: M) -> u64 {
        m.shared_load(&self.armed, Ordering::Acquire)
    }

    // ---- plain updates ----

    /// Runs an update of one key in an operation of its own, locked if the map has a table. Waits before it enters the
    /// operation.
    ///
    /// # Errors
    /// [`Error::Locked`] if the lock was not got in time; what the update says.
    #[inline]
    pub(crate) fn change<R>(
        &self,
        session: &mut Session<M>,
        key: &[u8],
        update: impl FnOnce(&dyn Index<M>, &Op<'_, M>) -> Result<R>,
    ) -> Result<R> {
        self.change_and_end(session, key, &mut AtOnce, update)
    }

    /// The same in an operation that ends as `ending` says.
    ///
    /// # Errors
    /// As [`change`](Self::change).
    #[inline]
    pub(crate) fn change_and_end<R>(
        &self,
        session: &mut Session<M>,
        key: &[u8],
        ending: &mut impl Ending<M>,
        update: impl FnOnce(&dyn Index<M>, &Op<'_, M>) -> Result<R>,
    ) -> Result<R> {
        let op = ending.enter(session)?;
        let armed = self.armed(op.medium());
        let mut held = None;
        if armed != 0 {
            // In most cases without waiting, so in this operation.
            match self.prepare_one(&op, armed, key) {
                Ok(Prepared::Holding(got)) => held = got,
                Ok(Prepared::Waits) => {
                    ending.leave(&*self.raw, op);
                    return self.change_armed(session, &[key], ending, update);
                }
                Err(error) => {
                    ending.leave(&*self.raw, op);
                    return Err(error);
                }
            }
        }
        self.note(&op, [key]);
        let result = update(&*self.raw, &op);
        ending.leave(&*self.raw, op);
        drop(held);
        result
    }

    /// Before an update of one key, in an operation that has found the word armed.
    #[inline(never)]
    fn prepare_one(&self, op: &Op<'_, M>, armed: u64, key: &[u8]) -> Result<Prepared<'_, M>> {
        let mut held = None;
        if armed & LOCKS != 0 {
            let Ok((one, is_idle)) = self.try_hold(op.medium(), op.slot(), key) else { return Ok(Prepared::Waits) };
            held = Some(one);
            if is_idle {
                self.retire_table(op);
            }
            self.settle_keys(op, [key], None);
        }
        self.save(op, armed, &[key])?;
        Ok(Prepared::Holding(held))
    }

    /// As [`change`](Self::change), for all keys of a batch.
    pub(crate) fn change_all<R>(
        &self,
        session: &mut Session<M>,
        batch: &Batch,
        update: impl FnOnce(&dyn Index<M>, &Op<'_, M>) -> Result<R>,
    ) -> Result<R> {
        {
            let op = session.enter()?;
            if self.armed(op.medium()) == 0 {
                self.note(&op, batch.iter().map(|(key, _)| key));
                return update(&*self.raw, &op);
            }
        }
        let keys: Vec<&[u8]> = batch.iter().map(|(key, _)| key).collect();
        self.change_armed(session, &keys, &mut AtOnce, update)
    }

    #[cold]
    fn change_armed<R>(
        &self,
        session: &mut Session<M>,
        keys: &[&[u8]],
        ending: &mut impl Ending<M>,
        update: impl FnOnce(&dyn Index<M>, &Op<'_, M>) -> Result<R>,
    ) -> Result<R> {
        let mut held = None;
        loop {
            if held.is_none() && self.armed(session.mapping().medium()) & LOCKS != 0 {
                held = Some(self.lock_keys(session, keys)?);
            }
            let op = ending.enter(session)?;
            let armed = self.armed(op.medium());
            // The table may have come since.
            if armed & LOCKS != 0 && held.is_none() {
                ending.leave(&*self.raw, op);
                continue;
            }
            if armed & LOCKS != 0 {
                if held.as_ref().is_some_and(|held| held.is_idle) {
                    self.retire_table(&op);
                }
                self.settle_keys(&op, keys.iter().copied(), None);
            }
            let result = self.save(&op, armed, keys).and_then(|()| {
                self.note(&op, keys.iter().copied());
                update(&*self.raw, &op)
            });
            ending.leave(&*self.raw, op);
            return result;
        }
    }

    /// Locks keys for a plain update. One key is waited for without holding anything. Several are got all at once, or given
    /// back before the next attempt, so that nothing is held while waiting either.
    fn lock_keys<'g>(&'g self, session: &mut Session<M>, keys: &'g [&'g [u8]]) -> Result<Held<'g, M>> {
        let mut waiting = Waiting::default();
        loop {
            match self.try_lock_keys(session.slot(), keys) {
                Ok(held) => return Ok(held),
                Err((key, conflict)) => {
                    // Who waits for a closure of this very thread waits for ever.
                    let own = running::is_own(running::id(&*self.transactions), &conflict);
                    if own || self.transactions.turn(session, &conflict, &mut waiting)? == Turn::TimedOut {
                        return Err(self.locked(key));
                    }
                }
            }
        }
    }

    /// One key is held by its session, several are locked as a transaction locks them.
    fn try_lock_keys<'g>(&'g self, slot: u32, keys: &'g [&'g [u8]]) -> Result<Held<'g, M>, (&'g [u8], Conflict)> {
        let m = self.transactions.medium();
        if let [key] = keys {
            let (one, is_idle) = self.try_hold(m, slot, key).map_err(|conflict| (*key, conflict))?;
            return Ok(Held { one: Some(one), several: None, is_idle });
        }
        let mut several = HeldKeys { guard: self, age: Age::plain(slot), keys: &[] };
        for (count, key) in keys.iter().enumerate() {
            let mut table = self.table.lock(m);
            let got = table.try_lock(m, &self.plain, several.age, Wanted::Write(key));
            got.map_err(|conflict| {
                self.note_waiting(m);
                (*key, conflict)
            })?;
            several.keys = &keys[..=count];
        }
        Ok(Held { one: None, several: Some(several), is_idle: false })
    }

    #[inline]
    fn try_hold(&self, m: M, slot: u32, key: &[u8]) -> Result<(HeldOne<'_, M>, bool), Conflict> {
        let mut table = self.table.lock(m);
        let got = table.try_hold(m, &self.plain, slot, key, self.transactions.idle());
        let is_idle = got.inspect_err(|_| self.note_waiting(m))?;
        Ok((HeldOne { guard: self, slot }, is_idle))
    }

    /// What a transaction says that has waited too long.
    pub(super) fn locked_out(&self, wanted: Wanted<'_>) -> Error {
        match wanted {
            Wanted::Read(key) | Wanted::Write(key) => self.locked(key),
            Wanted::Range(range) => Error::Locked { index: self.raw.root().name(), key: format!("range {range:?}") },
        }
    }

    fn locked(&self, key: &[u8]) -> Error {
        Error::Locked { index: self.raw.root().name(), key: key.escape_ascii().to_string() }
    }

    /// Runs an update in the caller's operation: never waits.
    #[inline]
    fn within<R>(&self, op: &Op<'_, M>, key: &[u8], update: impl FnOnce(&dyn Index<M>) -> Result<R>) -> Result<R> {
        if self.armed(op.medium()) == 0 {
            self.note(op, [key]);
            return update(&*self.raw);
        }
        self.within_armed(op, &[key], update)
    }

    #[cold]
    fn within_armed<R>(
        &self,
        op: &Op<'_, M>,
        keys: &[&[u8]],
        update: impl FnOnce(&dyn Index<M>) -> Result<R>,
    ) -> Result<R> {
        let armed = self.armed(op.medium());
        let mut held = None;
        if armed & LOCKS != 0 {
            let got = self.try_lock_keys(op.slot(), keys).map_err(|(key, _)| self.locked(key))?;
            if held.insert(got).is_idle {
                self.retire_table(op);
            }
            self.settle_keys(op, keys.iter().copied(), None);
        }
        self.save(op, armed, keys)?;
        self.note(op, keys.iter().copied());
        let result = update(&*self.raw);
        drop(held);
        result
    }

    /// Before the keys of an update change: a thread that reads them waits until that is durable.
    #[inline]
    pub(super) fn note<'k>(&self, op: &Op<'_, M>, keys: impl IntoIterator<Item = &'k [u8]>) {
        self.transactions.visible.update(op, || self.owner, keys);
    }

    /// After a key was read: has the session wait until what it has seen is durable.
    #[inline]
    pub(crate) fn note_read(&self, session: &Session<M>, key: &[u8]) {
        self.transactions.visible.read(session, || self.owner, key);
    }

    /// The same inside the operation of the read.
    #[inline]
    pub(crate) fn note_read_in(&self, op: &Op<'_, M>, key: &[u8]) {
        self.transactions.visible.read_in(op, || self.owner, key);
    }

    /// The same after any other read.
    #[inline]
    pub(crate) fn note_reads(&self, session: &Session<M>) {
        self.transactions.visible.read_all(session);
    }

    // ---- for transactions ----

    /// Makes sure that the map's updates lock from now on. Waits for the operations in flight, the first time.
    ///
    /// # Errors
    /// [`Error::Pool`] if they do not end within 10 s, or the pool is shut.
    pub(super) fn arm_locks(&self, session: &mut Session<M>) -> Result<()> {
        if !self.has_locks() {
            let mapping = self.transactions.pool.mapping();
            mapping.quiesce(session, PATIENCE, |_| self.set(LOCKS))?;
        }
        Ok(())
    }

    /// Whether its updates lock.
    #[inline]
    pub(super) fn has_locks(&self) -> bool {
        self.armed(self.transactions.medium()) & LOCKS != 0
    }

    fn set(&self, bit: u64) {
        self.transactions.medium().shared_rmw(&self.armed, Rmw::Or, bit);
    }

    /// Has updates store old values, or not: called in a moment without operations to begin, at any time to end.
    pub(crate) fn keep_versions(&self, keep: bool) {
        if keep {
            self.set(VERSIONS);
        } else {
            self.transactions.medium().shared_rmw(&self.armed, Rmw::And, !VERSIONS);
        }
    }

    /// Has the map's updates lock no more, if no transaction holds a lock of it. Afterwards updates do not look at retirements, so these
    /// become durable first.
    #[cold]
    fn retire_table(&self, op: &Op<'_, M>) {
        let m = op.medium();
        let mut table = self.table.lock(m);
        // All transactions on the map have given their locks back under this lock, so all their retirements are known here.
        if table.is_free() {
            // PERSIST TX-R: flush+fence, inside
            self.transactions.retirements.settle_all(op);
            m.shared_rmw(&self.armed, Rmw::And, !LOCKS);
            table.forget_updates(m, &self.plain);
        }
    }

    /// Takes a lock for a transaction. A conflict with nobody: the map has no table, see [`arm_locks`](Self::arm_locks).
    pub(super) fn try_lock(&self, who: Age, wanted: Wanted<'_>) -> Result<(), Conflict> {
        let m = self.transactions.medium();
        let mut table = self.table.lock(m);
        match self.has_locks() {
            true => table.try_lock(m, &self.plain, who, wanted).inspect_err(|_| self.note_waiting(m)),
            false => Err(Vec::new()),
        }
    }

    /// Has a scheduler see what a thread waits for. The word of the table's lock is as before when a lock was given back.
    #[cold]
    fn note_waiting(&self, m: M) {
        m.shared_load(&self.released, Ordering::Relaxed);
    }

    pub(super) fn unlock<'k>(&self, who: Age, keys: impl Iterator<Item = &'k [u8]>, ranges: bool) {
        let m = self.transactions.medium();
        let mut table = self.table.lock(m);
        keys.for_each(|key| table.unlock(who, key));
        if ranges {
            table.unlock_ranges(who);
        }
        let released = self.released.load(Ordering::Relaxed);
        m.shared_store(&self.released, released.wrapping_add(1), Ordering::Relaxed);
    }

    /// Before locked keys change: makes durable that no retired record will change them again. See
    /// [`Retirements::settle_keys`](super::log::retired::Retirements::settle_keys).
    #[inline]
    pub(super) fn settle_keys<'k>(&self, op: &Op<'_, M>, keys: impl IntoIterator<Item = &'k [u8]>, own: Option<usize>) {
        if !self.is_buffered {
            self.transactions.retirements.settle_keys(op, self.owner, keys, own);
        }
    }

    /// Stores the old values of keys, if a snapshot is open.
    pub(super) fn save_all<'k>(&self, op: &Op<'_, M>, mut keys: impl Iterator<Item = &'k [u8]>) -> Result<()> {
        let armed = self.armed(op.medium());
        keys.try_for_each(|key| self.save(op, armed, &[key]))
    }

    #[inline]
    fn save(&self, op: &Op<'_, M>, armed: u64, keys: &[&[u8]]) -> Result<()> {
        if armed & VERSIONS == 0 {
            return Ok(());
        }
        // A snapshot returns no old value that a crash can take back.
        op.at_once(|| {
            keys.iter().try_for_each(|key| self.transactions.versions.save(op, &*self.raw, self.owner.0, key))
        })
    }
}

/// How the operation of a plain update begins and ends.
pub(crate) trait Ending<M: Medium> {
    /// Enters it.
    ///
    /// # Errors
    /// As [`Session::enter`].
    fn enter<'s>(&mut self, session: &'s mut Session<M>) -> durix_pmem::Result<Op<'s, M>>;

    /// Ends it, whatever the update says.
    fn leave(&mut self, index: &dyn Index<M>, op: Op<'_, M>);
}

/// It is durable when it has ended, as far as the index says so.
struct AtOnce;

impl<M: Medium> Ending<M> for AtOnce {
    #[inline(always)]
    fn enter<'s>(&mut self, session: &'s mut Session<M>) -> durix_pmem::Result<Op<'s, M>> {
        session.enter()
    }

    #[inline(always)]
    fn leave(&mut self, _index: &dyn Index<M>, op: Op<'_, M>) {
        drop(op);
    }
}

/// The key of a plain update, until dropped.
struct HeldOne<'g, M: Medium> {
    guard: &'g Guarded<M>,
    slot: u32,
}

impl<M: Medium> Drop for HeldOne<'_, M> {
    #[inline]
    fn drop(&mut self) {
        self.guard.plain.release(self.guard.transactions.medium(), self.slot);
    }
}

/// The locks of a plain update of several keys, until dropped.
struct HeldKeys<'g, M: Medium> {
    guard: &'g Guarded<M>,
    age: Age,
    keys: &'g [&'g [u8]],
}

impl<M: Medium> Drop for HeldKeys<'_, M> {
    fn drop(&mut self) {
        self.guard.unlock(self.age, self.keys.iter().copied(), false);
    }
}

/// Whether an update of one key may go on.
enum Prepared<'g, M: Medium> {
    Holding(Option<HeldOne<'g, M>>),
    /// Its lock has to be waited for, outside of the operation.
    Waits,
}

/// What a plain update holds.
struct Held<'g, M: Medium> {
    #[expect(dead_code, reason = "held until dropped")]
    one: Option<HeldOne<'g, M>>,
    #[expect(dead_code, reason = "held until dropped")]
    several: Option<HeldKeys<'g, M>>,
    /// Whether no transaction has used the table for a while.
    is_idle: bool,
}

impl<M: Medium> Index<M> for Guarded<M> {
    fn root(&self) -> &Root<M> {
        self.raw.root()
    }

    fn durability(&self) -> Durability {
        self.raw.durability()
    }

    fn limits(&self) -> Limits {
        self.raw.limits()
    }

    fn as_ordered(&self) -> Option<&dyn OrderedIndex<M>> {
        self.raw.as_ordered().map(|_| self as &dyn OrderedIndex<M>)
    }

    #[inline]
    fn get(&self, op: &Op<'_, M>, key: &[u8], value: &mut Vec<u8>) -> Result<bool> {
        self.raw.get(op, key, value)
    }

    #[inline]
    fn contains(&self, op: &Op<'_, M>, key: &[u8]) -> Result<bool> {
        self.raw.contains(op, key)
    }

    fn get_many(&self, op: &Op<'_, M>, keys: &[&[u8]], found: &mut dyn FnMut(usize, Option<&[u8]>)) -> Result<()> {
        self.raw.get_many(op, keys, found)
    }

    fn len(&self, op: &Op<'_, M>) -> Option<u64> {
        self.raw.len(op)
    }

    fn count(&self, session: &mut Session<M>) -> Result<u64> {
        self.raw.count(session)
    }

    fn is_empty(&self, op: &Op<'_, M>) -> Result<bool> {
        self.raw.is_empty(op)
    }

    fn cursor(&self) -> Box<dyn Cursor<M> + '_> {
        self.raw.cursor()
    }

    #[inline]
    fn insert(&self, op: &Op<'_, M>, key: &[u8], value: &[u8]) -> Result<bool> {
        self.within(op, key, |index| index.insert(op, key, value))
    }

    #[inline]
    fn insert_if_absent(&self, op: &Op<'_, M>, key: &[u8], value: &[u8]) -> Result<bool> {
        self.within(op, key, |index| index.insert_if_absent(op, key, value))
    }

    #[inline]
    fn update(&self, op: &Op<'_, M>, key: &[u8], value: &[u8]) -> Result<bool> {
        self.within(op, key, |index| index.update(op, key, value))
    }

    #[inline]
    fn compare_and_set(&self, op: &Op<'_, M>, key: &[u8], expected: Option<&[u8]>, new: Option<&[u8]>) -> Result<bool> {
        self.within(op, key, |index| index.compare_and_set(op, key, expected, new))
    }

    #[inline]
    fn remove(&self, op: &Op<'_, M>, key: &[u8]) -> Result<bool> {
        self.within(op, key, |index| index.remove(op, key))
    }

    fn apply(&self, op: &Op<'_, M>, batch: &Batch) -> Result<()> {
        if self.armed(op.medium()) == 0 {
            self.note(op, batch.iter().map(|(key, _)| key));
            return self.raw.apply(op, batch);
        }
        let keys: Vec<&[u8]> = batch.iter().map(|(key, _)| key).collect();
        self.within_armed(op, &keys, |index| index.apply(op, batch))
    }

    fn batch_is_atomic(&self) -> bool {
        self.raw.batch_is_atomic()
    }

    /// Also finishes the transactions that waited for the checkpoint.
    fn sync(&self, session: &mut Session<M>) -> Result<()> {
        self.raw.sync(session)?;
        self.transactions.finish_ready(session)?;
        Ok(self.transactions.pool.commit(session)?)
    }

    fn ticket(&self, op: &Op<'_, M>) -> Ticket {
        self.raw.ticket(op)
    }

    fn wait(&self, session: &mut Session<M>, ticket: Ticket) -> Result<()> {
        self.raw.wait(session, ticket)?;
        self.transactions.finish_ready(session)?;
        // On a journaled pool a ticket stands for a boundary, and the boundary for a commit.
        Ok(self.transactions.pool.commit(session)?)
    }

    fn check(&self, session: &mut Session<M>) -> Result<Vec<Finding>> {
        self.raw.check(session)
    }

    fn stats(&self, session: &mut Session<M>) -> Result<IndexStats> {
        self.raw.stats(session)
    }

    fn dump(&self, op: &Op<'_, M>, out: &mut dyn fmt::Write) -> fmt::Result {
        self.raw.dump(op, out)
    }
}

impl<M: Medium> OrderedIndex<M> for Guarded<M> {
    fn range(&self, range: &KeyRange, direction: Direction) -> Box<dyn Cursor<M> + '_> {
        self.raw.as_ordered().expect("looked at in `as_ordered`").range(range, direction)
    }

    fn read_range(
        &self,
        op: &Op<'_, M>,
        bounds: (Bound<&[u8]>, Bound<&[u8]>),
        direction: Direction,
        most: usize,
        pairs: &mut Pairs,
    ) -> Result<bool> {
        let ordered = self.raw.as_ordered().expect("looked at in `as_ordered`");
        ordered.read_range(op, bounds, direction, most, pairs)
    }

    fn prefix(&self, prefix: &[u8], direction: Direction) -> Box<dyn Cursor<M> + '_> {
        self.raw.as_ordered().expect("looked at in `as_ordered`").prefix(prefix, direction)
    }
}

#[cfg(test)]
mod tests {
    use durix_pmem::backing::HeapBacking;
    use durix_pmem::{Hardware, Op, PoolOptions, Session};

    use crate::{Db, Map};

    struct At {
        db: Db,
        map: Map<u64, u64>,
    }

    impl At {
        fn new(kind: &str, updates: u32) -> At {
            let pool = PoolOptions::new().create_on(HeapBacking::new(64 << 20), Hardware::PAGE_CACHE).unwrap();
            let db = Db::builder().no_background_threads().over(pool).unwrap();
            db.set_idle_tables(updates, std::time::Duration::ZERO);
            let map = db.map_of_kind::<u64, u64>("map", kind).unwrap();
            At { db, map }
        }

        fn has_table(&self) -> bool {
            self.map.guard_in(&self.db.shared).unwrap().has_locks()
        }

        fn together(&self) {
            self.db
                .transaction(|tx| [1, 2].iter().try_for_each(|key| tx.map(&self.map)?.insert(key, &1).map(drop)))
                .unwrap();
        }

        fn is_pending(&self) -> bool {
            let transactions = &self.db.shared.transactions;
            transactions.retirements.any(transactions.medium())
        }
    }

    #[test]
    fn a_table_goes_after_plain_updates_and_comes_back_with_a_transaction() {
        let at = At::new("hash", 4);
        assert!(!at.has_table());
        for _ in 0..2 {
            at.together();
            assert!(at.has_table() && at.is_pending());
            (0..3).for_each(|_| _ = at.map.insert(&7, &1).unwrap());
            assert_eq!((at.has_table(), at.is_pending()), (true, true), "it is in use");
            at.map.insert(&7, &1).unwrap();
            assert!(!at.has_table() && !at.is_pending(), "its updates look at no retirement any more");
        }
        // Also where the updates are in the caller's own operations.
        at.together();
        let mut session = at.db.pool().session().unwrap();
        (0..4).for_each(|_| _ = at.map.index().insert(&session.enter().unwrap(), &[9; 8], &[9; 8]).unwrap());
        assert!(!at.has_table() && !at.is_pending());
        assert_eq!(at.map.get(&1).unwrap(), Some(1));
    }

    /// Between the look of an update and its operation a transaction arms the table and takes the key.
    struct Armed<'a> {
        at: &'a At,
        tx: Option<crate::Transaction>,
    }

    impl super::Ending<Hardware> for Armed<'_> {
        fn enter<'s>(&mut self, session: &'s mut Session<Hardware>) -> durix_pmem::Result<Op<'s, Hardware>> {
            if self.tx.is_none() {
                let tx = self.at.db.begin().unwrap();
                tx.map(&self.at.map).unwrap().insert(&1, &2).unwrap();
                self.tx = Some(tx);
            }
            session.enter()
        }

        fn leave(&mut self, _: &dyn crate::Index<Hardware>, op: Op<'_, Hardware>) {
            drop(op);
        }
    }

    #[test]
    fn a_table_that_comes_before_the_operation_of_an_update_is_looked_at() {
        let at = At::new("hash", 4);
        at.db.shared.transactions.set_lock_timeout(std::time::Duration::from_millis(10));
        at.map.insert(&1, &1).unwrap();
        let guard = at.map.guard_in(&at.db.shared).unwrap();
        let mut session = at.db.pool().session().unwrap();
        let (key, mut armed) = (1u64.to_be_bytes(), Armed { at: &at, tx: None });
        let update = |index: &dyn crate::Index<Hardware>, op: &Op<'_, Hardware>| index.insert(op, &key, &[0; 8]);
        let refused = guard.change_armed(&mut session, &[&key], &mut armed, update);
        assert!(matches!(refused, Err(crate::Error::Locked { .. })), "{refused:?}");
        armed.tx.take().unwrap().commit().unwrap();
        assert_eq!(at.map.get(&1).unwrap(), Some(2));
    }

    /// A transaction that has begun before its map's table went gets it back with its first lock, and keeps it with each lock.
    #[test]
    fn a_table_stays_while_a_lock_is_held() {
        let at = At::new("pset", 1);
        let tx = at.db.begin().unwrap();
        let map = tx.map(&at.map).unwrap();
        assert!(at.has_table());
        at.map.insert(&9, &1).unwrap();
        assert!(!at.has_table(), "no lock is held");
        map.insert(&1, &1).unwrap();
        assert!(at.has_table());
        at.map.insert(&9, &1).unwrap();
        assert!(at.has_table());
        assert!(at.map.insert_if_absent(&8, &1).unwrap() && at.has_table());
        tx.rollback();
        at.map.insert(&9, &1).unwrap();
        assert!(!at.has_table());
        let tx = at.db.begin().unwrap();
        tx.map(&at.map).unwrap().iter().unwrap().count();
        std::thread::scope(|scope| {
            let insert = scope.spawn(|| at.map.insert(&9, &2).unwrap());
            std::thread::sleep(std::time::Duration::from_millis(20));
            assert!(!insert.is_finished() && at.has_table(), "a range is locked");
            drop(tx);
        });
        assert!(!at.has_table());
    }

    /// The strict part of a transaction that waits for its checkpoint keeps its locks, and so the table.
    #[test]
    fn a_pending_transaction_keeps_the_table_of_its_strict_map() {
        let at = At::new("pset", 1);
        let buffered = at.db.ordered_map_of_kind::<u64, u64>("buffered", "masstree").unwrap();
        let later = at
            .db
            .transaction(|tx| {
                tx.map(&at.map)?.insert(&1, &1)?;
                tx.map(&buffered)?.insert(&1, &1)?;
                Ok(tx.later())
            })
            .unwrap();
        at.map.insert(&9, &1).unwrap();
        assert!(at.has_table() && at.map.get(&1).unwrap().is_none());
        later.wait().unwrap();
        at.map.insert(&9, &1).unwrap();
        assert!(!at.has_table());
        assert_eq!(at.map.get(&1).unwrap(), Some(1));
    }
}
