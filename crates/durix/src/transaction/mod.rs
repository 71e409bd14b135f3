//! Transactions: changes to any number of maps of any kind, all or nothing.
//!
//! Until its commit a transaction changes no map. It keeps its writes in DRAM, and locks what it reads and writes. The design,
//! with the classes of a commit and the proofs, is in `docs/transactions.md`.
//!
//! | module | what it holds |
//! |---|---|
//! | `locks` | the lock table of a map |
//! | `guard` | what stands before each open index |
//! | `shared` | what the transactions of a database share |
//! | `run` | `Db::transaction`: closures that run again |
//! | `typed`, `iter` | typed maps inside a transaction |
//! | `commit`, `pending` | how changes become durable together |
//! | `log`, `recover` | intents, and what a crash leaves of them |

mod bytes;
mod commit;
pub(crate) mod guard;
mod iter;
mod locks;
pub(crate) mod log;
mod pending;
pub mod recover;
mod run;
pub(crate) mod shared;
mod typed;

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use durix_pmem::pool::Guarantee;
use durix_pmem::{Hardware, Medium};

pub use bytes::TxIndex;
pub use commit::Later;
pub use iter::{TxIter, TxPairs, TxRange};
pub(crate) use run::is_own;
pub use typed::TxMap;

use crate::db::Shared;
use crate::encode::{Key, Value};
use crate::map::Map;
use crate::{Error, Result};
use crate::{Index, KeyRange};
use guard::Guarded;
use locks::{Age, Wanted};
use shared::{Turn, Waiting};

/// What a transaction has written to a map: the new value of each key, or `None` for its removal.
type Writes = BTreeMap<Vec<u8>, Option<Vec<u8>>>;

/// Changes to any number of maps that are made together or not at all.
///
/// [`Db::transaction`](crate::Db::transaction) runs a closure with one, which is what most programs want;
/// [`Db::begin`](crate::Db::begin) is for those who cannot use closures. A transaction that is dropped without a
/// [`commit`](Self::commit) is rolled back.
///
/// Transactions are serialisable, among each other and with plain updates. Until the commit nobody else sees a change.
pub struct Transaction<M: Medium = Hardware> {
    shared: Arc<Shared<M>>,
    age: Age,
    state: RefCell<State<M>>,
}

struct State<M: Medium> {
    /// By owner of the index.
    parts: BTreeMap<u16, Part<M>>,
    /// Has lost a conflict: it can only be rolled back.
    lost: Option<Lost<M>>,
    later: Option<Later<M>>,
}

/// What a transaction has to do with one map.
struct Part<M: Medium> {
    guard: Arc<Guarded<M>>,
    writes: Writes,
    /// Locked keys, and whether for writing.
    keys: BTreeMap<Vec<u8>, bool>,
    ranges: Vec<KeyRange>,
}

/// The lock that was not got: the next attempt begins with it.
#[derive(Clone)]
struct Lost<M: Medium> {
    guard: Arc<Guarded<M>>,
    wanted: Owned,
}

#[derive(Clone)]
enum Owned {
    Key(Vec<u8>, bool),
    Range(KeyRange),
}

impl Owned {
    fn of(wanted: Wanted<'_>) -> Owned {
        match wanted {
            Wanted::Read(key) => Owned::Key(key.to_vec(), false),
            Wanted::Write(key) => Owned::Key(key.to_vec(), true),
            Wanted::Range(range) => Owned::Range(range.clone()),
        }
    }

    fn wanted(&self) -> Wanted<'_> {
        match self {
            Owned::Key(key, false) => Wanted::Read(key),
            Owned::Key(key, true) => Wanted::Write(key),
            Owned::Range(range) => Wanted::Range(range),
        }
    }
}

impl<M: Medium> fmt::Debug for Transaction<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Transaction").field("age", &self.age).finish_non_exhaustive()
    }
}

impl<M: Medium> Part<M> {
    fn new(guard: Arc<Guarded<M>>) -> Self {
        Part { guard, writes: Writes::new(), keys: BTreeMap::new(), ranges: Vec::new() }
    }

    fn holds(&self, wanted: Wanted<'_>) -> bool {
        match wanted {
            Wanted::Read(key) => self.keys.contains_key(key) || self.ranges.iter().any(|range| range.contains(key)),
            Wanted::Write(key) => self.keys.get(key) == Some(&true),
            Wanted::Range(range) => self.ranges.contains(range),
        }
    }

    fn note(&mut self, wanted: Wanted<'_>) {
        match wanted {
            Wanted::Read(key) => _ = self.keys.entry(key.to_vec()).or_insert(false),
            Wanted::Write(key) => _ = self.keys.insert(key.to_vec(), true),
            Wanted::Range(range) => self.ranges.push(range.clone()),
        }
    }

    fn unlock(&self, age: Age) {
        self.guard.unlock(age, self.keys.keys().map(Vec::as_slice), !self.ranges.is_empty());
    }
}

impl<M: Medium> Transaction<M> {
    fn new(shared: Arc<Shared<M>>, age: Age) -> Self {
        Transaction { shared, age, state: RefCell::new(State { parts: BTreeMap::new(), lost: None, later: None }) }
    }

    /// A map inside this transaction. The map's first transaction waits for the operations in flight.
    ///
    /// # Errors
    /// [`Error::ForeignMap`] where the map is of another database; [`Error::Pool`] where operations in flight do not end
    /// within 10 s, or the pool is shut.
    pub fn map<K: Key, V: Value>(&self, map: &Map<K, V, M>) -> Result<TxMap<'_, K, V, M>> {
        Ok(TxMap::new(self.index(map.index())?))
    }

    /// An index inside this transaction, for the vocabulary of bytes.
    ///
    /// # Errors
    /// As [`map`](Self::map).
    pub fn index(&self, index: &Arc<dyn Index<M>>) -> Result<TxIndex<'_, M>> {
        let guard = self.shared.transactions.guard_of(&**index)?;
        self.shared.sessions.with(&self.shared.pool, |cached| guard.arm_locks(&mut cached.session))?;
        self.touch(&guard);
        Ok(TxIndex::new(self, guard))
    }

    fn touch(&self, guard: &Arc<Guarded<M>>) {
        let owner = guard.root().owner().0;
        self.state.borrow_mut().parts.entry(owner).or_insert_with(|| Part::new(Arc::clone(guard)));
    }

    /// What will survive what, once it is committed: the minimum over the maps it has touched.
    pub fn guarantee(&self) -> Guarantee {
        let state = self.state.borrow();
        let of_maps = state.parts.values().map(|part| part.guard.guarantee());
        of_maps.fold(self.shared.pool.guarantee(), Guarantee::min)
    }

    /// Has the commit not wait for a checkpoint: the [`Later`] that this returns says when the transaction is durable, and
    /// can be waited for. Only a transaction over strict maps *and* a buffered one would wait. Until then the changes of its
    /// strict maps cannot be seen, and their keys stay locked.
    pub fn later(&self) -> Later<M> {
        self.state.borrow_mut().later.get_or_insert_with(|| Later::new(&self.shared)).clone()
    }

    /// Makes all changes. Durable on return where all maps are strict; where strict and buffered maps are mixed, after the
    /// checkpoint that this waits for, unless [`later`](Self::later) was called; where all maps are buffered, with the
    /// next checkpoint.
    ///
    /// # Errors
    /// [`Error::Conflict`] if a call on this transaction has lost a conflict: nothing was changed, begin again.
    /// [`Error::Pool`] where the pool is full: nothing was changed. [`Error::TransactionTooLarge`]. [`Error::Unsettled`].
    pub fn commit(self) -> Result<()> {
        if self.state.borrow().lost.is_some() {
            return Err(Error::Conflict { attempts: 1 });
        }
        commit::commit(self)
    }

    /// Changes nothing, and gives all locks back. Dropping it does the same.
    pub fn rollback(self) {}

    // ---- locks ----

    /// Locks something for the rest of the transaction.
    ///
    /// # Errors
    /// [`Error::Conflict`] if it may not wait, [`Error::Locked`] if it has waited too long.
    fn lock(&self, guard: &Arc<Guarded<M>>, wanted: Wanted<'_>) -> Result<()> {
        if self.state.borrow().lost.is_some() {
            return Err(Error::Conflict { attempts: 1 });
        }
        if self.state.borrow().parts[&guard.root().owner().0].holds(wanted) {
            return Ok(());
        }
        self.wait_for(guard, wanted, false)
    }

    /// Waits for a lock. With `whoever`, for any holder: only where nothing is held yet.
    fn wait_for(&self, guard: &Arc<Guarded<M>>, wanted: Wanted<'_>, whoever: bool) -> Result<()> {
        let transactions = &self.shared.transactions;
        let mut waiting = Waiting::default();
        loop {
            let Err(conflict) = guard.try_lock(self.age, wanted) else {
                let mut state = self.state.borrow_mut();
                let part = state.parts.get_mut(&guard.root().owner().0).expect("touched before");
                part.note(wanted);
                return Ok(());
            };
            // Who only waits for a checkpoint waits for no lock.
            let pends = |age: &Age| transactions.pending.holds(transactions.medium(), *age);
            let others: Vec<Age> = conflict.iter().copied().filter(|age| !pends(age)).collect();
            if !whoever && !self.age.may_wait_for(&others) {
                let lost = Lost { guard: Arc::clone(guard), wanted: Owned::of(wanted) };
                self.state.borrow_mut().lost = Some(lost);
                return Err(Error::Conflict { attempts: 1 });
            }
            let turn = |cached: &mut crate::sessions::Cached<M>| {
                transactions.turn(&mut cached.session, &conflict, &mut waiting)
            };
            if self.shared.sessions.with(&self.shared.pool, turn)? == Turn::TimedOut {
                return Err(guard.locked_out(wanted));
            }
        }
    }

    // ---- reading and writing ----

    fn get(&self, guard: &Arc<Guarded<M>>, key: &[u8]) -> Result<Option<Vec<u8>>> {
        guard.limits().check(key, None)?;
        if let Some(own) = self.own(guard, key) {
            return Ok(own);
        }
        self.lock(guard, Wanted::Read(key))?;
        self.committed(guard, key)
    }

    /// What this transaction has written to a key.
    fn own(&self, guard: &Guarded<M>, key: &[u8]) -> Option<Option<Vec<u8>>> {
        self.state.borrow().parts[&guard.root().owner().0].writes.get(key).cloned()
    }

    fn committed(&self, guard: &Guarded<M>, key: &[u8]) -> Result<Option<Vec<u8>>> {
        let read = |cached: &mut crate::sessions::Cached<M>| {
            let value = guard.raw().get_vec(&cached.session.enter()?, key)?;
            guard.note_read(&cached.session, key);
            self.shared.pool.settle(&mut cached.session)?;
            Ok(value)
        };
        self.shared.sessions.with(&self.shared.pool, read)
    }

    /// Changes a key if `decide` says so of its value. Returns whether it did.
    fn change(
        &self,
        guard: &Arc<Guarded<M>>,
        key: &[u8],
        new: Option<&[u8]>,
        decide: impl FnOnce(Option<&[u8]>) -> bool,
    ) -> Result<Option<Vec<u8>>> {
        self.shared.pool.ensure_writable()?;
        guard.limits().check(key, new)?;
        self.lock(guard, Wanted::Write(key))?;
        let old = match self.own(guard, key) {
            Some(own) => own,
            None => self.committed(guard, key)?,
        };
        if decide(old.as_deref()) {
            let mut state = self.state.borrow_mut();
            let part = state.parts.get_mut(&guard.root().owner().0).expect("touched before");
            part.writes.insert(key.to_vec(), new.map(<[u8]>::to_vec));
        }
        Ok(old)
    }

    /// Gives all locks back.
    fn unlock(&self) {
        let state = self.state.borrow();
        state.parts.values().for_each(|part| part.unlock(self.age));
    }
}

impl<M: Medium> Drop for Transaction<M> {
    fn drop(&mut self) {
        self.unlock();
    }
}
