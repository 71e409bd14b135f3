//! A transaction under way: what it has locked, read and written.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use durix_pmem::pool::Guarantee;
use durix_pmem::{Hardware, Medium};

use super::guard::Guarded;
use super::later::Later;
use super::locks::{Age, Wanted};
use super::part::Part;
use super::shared::{Turn, Waiting};
use crate::sessions::Cached;
use crate::shared::Shared;
use crate::{Error, Index, KeyRange, Result};

/// Changes to any number of maps that are made together or not at all.
///
/// [`Db::transaction`](crate::Db::transaction) runs a closure with one, which is what most programs want;
/// [`Db::begin`](crate::Db::begin) is for those who cannot use closures. A transaction that is dropped without a
/// [`commit`](Self::commit) is rolled back.
///
/// Transactions are serialisable, among each other and with plain updates. Until the commit nobody else sees a change.
pub struct Transaction<M: Medium = Hardware> {
    pub(super) shared: Arc<Shared<M>>,
    pub(super) age: Age,
    pub(super) state: RefCell<State<M>>,
}

pub(super) struct State<M: Medium> {
    /// By owner of the index.
    pub(super) parts: BTreeMap<u16, Part<M>>,
    /// Has lost a conflict: it can only be rolled back.
    pub(super) lost: Option<Lost<M>>,
    pub(super) later: Option<Later<M>>,
}

/// The lock that was not got: the next attempt begins with it.
#[derive(Clone)]
pub(super) struct Lost<M: Medium> {
    pub(super) guard: Arc<Guarded<M>>,
    pub(super) wanted: Owned,
}

#[derive(Clone)]
pub(super) enum Owned {
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

    pub(super) fn wanted(&self) -> Wanted<'_> {
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

impl<M: Medium> Transaction<M> {
    pub(super) fn new(shared: Arc<Shared<M>>, age: Age) -> Self {
        Transaction { shared, age, state: RefCell::new(State { parts: BTreeMap::new(), lost: None, later: None }) }
    }

    pub(super) fn touch(&self, guard: &Arc<Guarded<M>>) {
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

    /// Changes nothing, and gives all locks back. Dropping it does the same.
    pub fn rollback(self) {}

    // ---- locks ----

    /// Locks something for the rest of the transaction.
    ///
    /// # Errors
    /// [`Error::Conflict`] if it may not wait, [`Error::Locked`] if it has waited too long.
    pub(super) fn lock(&self, guard: &Arc<Guarded<M>>, wanted: Wanted<'_>) -> Result<()> {
        if self.state.borrow().lost.is_some() {
            return Err(Error::Conflict { attempts: 1 });
        }
        if self.state.borrow().parts[&guard.root().owner().0].holds(wanted) {
            return Ok(());
        }
        self.wait_for(guard, wanted, false)
    }

    /// Waits for a lock. With `whoever`, for any holder: only where nothing is held yet.
    pub(super) fn wait_for(&self, guard: &Arc<Guarded<M>>, wanted: Wanted<'_>, whoever: bool) -> Result<()> {
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
            let turn = |cached: &mut Cached<M>| transactions.turn(&mut cached.session, &conflict, &mut waiting);
            if self.shared.sessions.with(&self.shared.pool, turn)? == Turn::TimedOut {
                return Err(guard.locked_out(wanted));
            }
        }
    }

    // ---- reading and writing ----

    pub(super) fn get(&self, guard: &Arc<Guarded<M>>, key: &[u8]) -> Result<Option<Vec<u8>>> {
        guard.limits().check(key, None)?;
        if let Some(own) = self.own(guard, key) {
            return Ok(own);
        }
        self.lock(guard, Wanted::Read(key))?;
        self.committed(guard, key)
    }

    /// What this transaction has written to a key.
    pub(super) fn own(&self, guard: &Guarded<M>, key: &[u8]) -> Option<Option<Vec<u8>>> {
        self.state.borrow().parts[&guard.root().owner().0].writes.get(key).cloned()
    }

    pub(super) fn committed(&self, guard: &Guarded<M>, key: &[u8]) -> Result<Option<Vec<u8>>> {
        let read = |cached: &mut Cached<M>| {
            let value = guard.raw().get_vec(&cached.session.enter()?, key)?;
            guard.note_read(&cached.session, key);
            self.shared.pool.settle(&mut cached.session)?;
            Ok(value)
        };
        self.shared.sessions.with(&self.shared.pool, read)
    }

    /// Changes a key if `decide` says so of its value. Returns whether it did.
    pub(super) fn change(
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
    pub(super) fn unlock(&self) {
        let state = self.state.borrow();
        state.parts.values().for_each(|part| part.unlock(self.age));
    }
}

impl<M: Medium> Drop for Transaction<M> {
    fn drop(&mut self) {
        self.unlock();
    }
}
