//! A transaction under way: what it has locked, read and written.

use std::cell::RefCell;
use std::fmt;
use std::sync::Arc;

use durix_pmem::pool::Guarantee;
use durix_pmem::{Hardware, Level, Medium};

use super::buffers::Buffers;
use super::guard::Guarded;
use super::later::Later;
use super::locks::{Age, Conflict, Wanted};
use super::part::{Guards, Part};
use super::shared::{Turn, Waiting};
use super::small::Small;
use super::touched::Committed;
use crate::sessions::Cached;
use crate::shared::Shared;
use crate::{Error, Index, KeyRange, Result};

/// Changes to any number of maps that are made together or not at all.
///
/// [`Db::transaction`](crate::Db::transaction) runs a closure with one, which is what most programs want;
/// [`Db::begin`](crate::Db::begin) is for those who cannot use closures. A transaction that is dropped without a
/// [`commit`](Self::commit) is rolled back.
///
/// Transactions are serialisable, among each other and with plain updates. Until the commit no other thread sees a change.
///
/// ```
/// # let heap = durix_pmem::backing::HeapBacking::new(64 << 20);
/// # let db = durix::Db::over(durix::PoolOptions::new().create_on(heap, durix::Hardware::PAGE_CACHE)?);
/// let map = db.map::<String, u64>("ages")?;
/// let total = db.transaction(|tx| {
///     let map = tx.map(&map)?;
///     map.insert("ada", &36)?;
///     map.insert("grace", &85)?;
///     map.count()
/// })?;
/// assert_eq!(total, 2);
/// # Ok::<(), durix::Error>(())
/// ```
pub struct Transaction<M: Medium = Hardware> {
    pub(super) shared: Arc<Shared<M>>,
    pub(super) age: Age,
    /// The maps that it has touched; what it has to do with each is in `state`, at the same place.
    pub(super) guards: Guards<M>,
    pub(super) state: RefCell<State<M>>,
}

pub(super) struct State<M: Medium> {
    /// `None` at the end.
    buffers: Option<Box<Buffers>>,
    /// Has lost a conflict: it can only be rolled back.
    pub(super) lost: Option<Lost<M>>,
    pub(super) later: Option<Later<M>>,
    /// What returned means, if not what the database says.
    pub(super) level: Option<Level>,
}

impl<M: Medium> State<M> {
    pub(super) fn buffers(&mut self) -> &mut Buffers {
        self.buffers.as_mut().expect("until the end")
    }
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

/// What a change has found and done.
pub(super) struct Changed {
    /// Whether the key was there.
    pub(super) was_there: bool,
    /// Whether it was changed.
    pub(super) is_changed: bool,
}

impl<M: Medium> fmt::Debug for Transaction<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Transaction").field("age", &self.age).finish_non_exhaustive()
    }
}

impl<M: Medium> Transaction<M> {
    pub(super) fn new(shared: Arc<Shared<M>>, age: Age) -> Self {
        let state = State { buffers: Some(Buffers::new()), lost: None, later: None, level: None };
        Transaction { shared, age, guards: Guards::new(), state: RefCell::new(state) }
    }

    /// Sets the level of durability of this transaction, in a database with a journal: another level than that of the
    /// [database](crate::DbBuilder::durability). The last call counts. Without a journal the call has no effect.
    ///
    /// | level | the commit |
    /// |---|---|
    /// | [`Immediate`](Level::Immediate) | returns when it survives power failure, together with all that it has read |
    /// | [`Interval`](Level::Interval) | returns at once, unless the journal's last flush is longer ago than twice that time; it is durable with the next flush: of another update, or by the database after 64 ms, or after the interval of the database |
    /// | [`Process`](Level::Process) | returns at once; the same |
    ///
    /// In a database of [`Level::Immediate`] a read waits until the transaction that wrote the value is durable. At each level a crash loses all of a
    /// transaction, or nothing.
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let path = dir.path().join("app.durix");
    /// use std::time::Duration;
    ///
    /// use durix::{Db, Level};
    ///
    /// let db = Db::builder().durability(Level::Interval(Duration::from_secs(1))).create(&path)?;
    /// let paid = db.map::<String, u64>("paid")?;
    /// db.transaction(|tx| {
    ///     tx.durability(Level::Immediate);
    ///     tx.map(&paid)?.insert("ada", &36)
    /// })?; // now it survives power failure
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn durability(&self, level: Level) {
        self.state.borrow_mut().level = Some(level);
    }

    /// The place of a map in this transaction.
    pub(super) fn touch(&self, guard: &Arc<Guarded<M>>) -> usize {
        let place = self.guards.place_of(guard);
        let mut state = self.state.borrow_mut();
        if place == state.buffers().parts.len() {
            state.buffers().add_part();
        }
        place
    }

    /// What will survive what, once it is committed: the minimum over the maps it has touched.
    ///
    /// ```
    /// # let heap = durix_pmem::backing::HeapBacking::new(64 << 20);
    /// # let db = durix::Db::over(durix::PoolOptions::new().create_on(heap, durix::Hardware::PAGE_CACHE)?);
    /// let map = db.map::<String, u64>("ages")?;
    /// let tx = db.begin()?;
    /// tx.map(&map)?.insert("ada", &36)?;
    /// println!("{}", tx.guarantee());
    /// tx.commit()?;
    /// # Ok::<(), durix::Error>(())
    /// ```
    pub fn guarantee(&self) -> Guarantee {
        let places = 0..self.state.borrow_mut().buffers().parts.len();
        let of_maps = places.map(|place| self.guards.at(place).guarantee());
        of_maps.fold(self.shared.pool.guarantee(), Guarantee::min)
    }

    /// Has the commit not wait for a checkpoint: the [`Later`] that this returns says when the transaction is durable, and
    /// can be waited for. Only a transaction over strict maps *and* a buffered one would wait, and only without a journal. Until then the
    /// changes of its strict maps cannot be seen, and their keys stay locked. With a journal the [`Later`] stands for the journal's commit, for which
    /// this commit does not wait at any [level](Self::durability).
    ///
    /// ```
    /// # let heap = durix_pmem::backing::HeapBacking::new(64 << 20);
    /// # let db = durix::Db::over(durix::PoolOptions::new().create_on(heap, durix::Hardware::PAGE_CACHE)?);
    /// let ages = db.map::<String, u64>("ages")?;              // strict
    /// let log = db.ordered_map::<u64, String>("log")?;        // buffered: a commit of both waits for a checkpoint
    /// let tx = db.begin()?;
    /// tx.map(&ages)?.insert("ada", &36)?;
    /// tx.map(&log)?.insert(&1, "ada")?;
    /// let later = tx.later();
    /// tx.commit()?;                                           // does not wait
    /// later.wait()?;
    /// # Ok::<(), durix::Error>(())
    /// ```
    pub fn later(&self) -> Later<M> {
        self.state.borrow_mut().later.get_or_insert_with(|| Later::new(&self.shared)).clone()
    }

    /// Changes nothing, and gives all locks back. Dropping it does the same.
    ///
    /// ```
    /// # let heap = durix_pmem::backing::HeapBacking::new(64 << 20);
    /// # let db = durix::Db::over(durix::PoolOptions::new().create_on(heap, durix::Hardware::PAGE_CACHE)?);
    /// let map = db.map::<String, u64>("ages")?;
    /// let tx = db.begin()?;
    /// tx.map(&map)?.insert("ada", &36)?;
    /// tx.rollback();
    /// assert_eq!(map.get("ada")?, None);
    /// # Ok::<(), durix::Error>(())
    /// ```
    pub fn rollback(self) {}

    // ---- locks ----

    /// Locks something for the rest of the transaction.
    ///
    /// # Errors
    /// [`Error::Conflict`] if it may not wait, [`Error::Locked`] if it has waited too long.
    pub(super) fn lock(&self, place: usize, wanted: Wanted<'_>) -> Result<()> {
        {
            let mut state = self.state.borrow_mut();
            if state.lost.is_some() {
                return Err(Error::Conflict { attempts: 1 });
            }
            if state.buffers().parts[place].holds(wanted) {
                return Ok(());
            }
        }
        self.wait_for(place, wanted, false)
    }

    /// The entry of a locked key, if it has one.
    #[inline]
    fn find(&self, place: usize, key: &[u8]) -> Option<usize> {
        self.state.borrow_mut().buffers().parts[place].find(key)
    }

    /// Locks a key for the rest of the transaction, whose entry is at `at`, if it has one. Returns its entry: none where it is read in a
    /// locked range.
    ///
    /// # Errors
    /// As [`lock`](Self::lock).
    fn lock_key(&self, place: usize, key: &[u8], at: Option<usize>, is_exclusive: bool) -> Result<Option<usize>> {
        {
            let mut state = self.state.borrow_mut();
            if state.lost.is_some() {
                return Err(Error::Conflict { attempts: 1 });
            }
            let part = &state.buffers().parts[place];
            let is_held = match at {
                Some(at) => !is_exclusive || part.entry(at).is_exclusive,
                None => !is_exclusive && part.in_range(key),
            };
            if is_held {
                return Ok(at);
            }
        }
        self.acquire(place, if is_exclusive { Wanted::Write(key) } else { Wanted::Read(key) }, false)?;
        Ok(Some(self.state.borrow_mut().buffers().parts[place].locked(key, at, is_exclusive)))
    }

    /// Waits for a lock. With `whoever`, for any holder: only where nothing is held yet.
    pub(super) fn wait_for(&self, place: usize, wanted: Wanted<'_>, whoever: bool) -> Result<()> {
        self.acquire(place, wanted, whoever)?;
        self.state.borrow_mut().buffers().parts[place].note(wanted);
        Ok(())
    }

    /// The same, and notes nothing.
    #[inline]
    fn acquire(&self, place: usize, wanted: Wanted<'_>, whoever: bool) -> Result<()> {
        match self.guards.at(place).try_lock(self.age, wanted) {
            Ok(()) => Ok(()),
            Err(conflict) => self.acquire_later(place, wanted, whoever, conflict),
        }
    }

    #[cold]
    fn acquire_later(&self, place: usize, wanted: Wanted<'_>, whoever: bool, mut conflict: Conflict) -> Result<()> {
        let (guard, transactions) = (self.guards.at(place), &self.shared.transactions);
        let mut waiting = Waiting::default();
        loop {
            // The map's table may have gone since the transaction has begun.
            self.shared.sessions.with(&self.shared.pool, |cached| guard.arm_locks(&mut cached.session))?;
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
            match guard.try_lock(self.age, wanted) {
                Ok(()) => return Ok(()),
                Err(again) => conflict = again,
            }
        }
    }

    // ---- reading and writing ----

    /// The value of a key, as this transaction sees it.
    pub(super) fn get(&self, place: usize, key: &[u8]) -> Result<Option<Small>> {
        self.guards.at(place).limits().check(key, None)?;
        let at = {
            let mut state = self.state.borrow_mut();
            let part = &state.buffers().parts[place];
            let at = part.find(key);
            if let Some(known) = at.and_then(|at| part.entry(at).known()) {
                return Ok(known.map(Small::from));
            }
            at
        };
        let at = self.lock_key(place, key, at, false)?;
        self.committed(place, key, at)
    }

    /// Reads the committed value of a locked key, and keeps it with its entry. A key of a locked range may have none.
    fn committed(&self, place: usize, key: &[u8], at: Option<usize>) -> Result<Option<Small>> {
        let guard = self.guards.at(place);
        let read = |cached: &mut Cached<M>| {
            let is_there = guard.raw().get(&cached.session.enter()?, key, &mut cached.value)?;
            guard.note_read(&cached.session, key);
            self.shared.pool.settle(&mut cached.session)?;
            let value = is_there.then_some(&cached.value[..]);
            if let Some(at) = at {
                self.state.borrow_mut().buffers().parts[place].keep(at, Committed::of(value));
            }
            Ok(value.map(Small::from))
        };
        self.shared.sessions.with(&self.shared.pool, read)
    }

    /// Changes a key if `decide` says so of its value. `decide` must not use the transaction.
    pub(super) fn change(
        &self,
        place: usize,
        key: &[u8],
        new: Option<&[u8]>,
        decide: impl FnOnce(Option<&[u8]>) -> bool,
    ) -> Result<Changed> {
        self.shared.pool.ensure_writable()?;
        self.guards.at(place).limits().check(key, new)?;
        let at = self.lock_key(place, key, self.find(place, key), true)?.expect("a key that is locked for writing");
        let is_known = self.state.borrow_mut().buffers().parts[place].entry(at).known().is_some();
        let read = if is_known { None } else { self.committed(place, key, Some(at))? };
        let mut state = self.state.borrow_mut();
        let part = &mut state.buffers().parts[place];
        let old = if is_known { part.entry(at).known().flatten() } else { read.as_deref() };
        let (was_there, is_changed) = (old.is_some(), decide(old));
        if is_changed {
            part.change(at, new);
        }
        Ok(Changed { was_there, is_changed })
    }

    /// The end: takes the buffers, which hold the locks.
    pub(super) fn end(&self) -> Option<Box<Buffers>> {
        self.state.borrow_mut().buffers.take()
    }
}

impl<M: Medium> Drop for Transaction<M> {
    fn drop(&mut self) {
        // A commit gives the locks back by itself.
        if let Some(buffers) = self.end() {
            for (place, touched) in buffers.parts.iter().enumerate() {
                Part { guard: self.guards.at(place), touched }.unlock(self.age);
            }
            buffers.give_back();
        }
    }
}
