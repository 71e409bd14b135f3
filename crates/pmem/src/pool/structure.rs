//! Structures: what is opened by name, and how the same name twice is the same structure.
//!
//! The registry is volatile and holds nothing alive. An index is *busy* while someone creates, opens or drops it, and
//! *open* as long as its structure or a [`Root`] of it lives; a structure keeps its `Root`, so an index is not opened
//! again before the last of the old structure is gone.
//!
//! Lock order: an operation is entered before the registry is locked, and nothing is waited for under the lock.

use std::any::Any;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::atomic::{Ordering, fence};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use super::Pool;
use super::indices::{IndexInfo, list};
use super::roots::{RootRecord, RootRef, RootState, check_name};
use super::tally::{Marked, Tally};
use crate::epoch::layout::Seat;
use crate::error::{Error, Result};
use crate::kind::Kind;
use crate::lock::Lock;
use crate::medium::{GIVES_WAY, Medium};
use crate::session::{Op, Session};
use crate::space::Owner;
use crate::version::{Version, Versions};
use crate::word::{Persistent, Word};

/// How long an index that nobody can reach any more may take to go away, before it counts as in use.
const PATIENCE: Duration = Duration::from_secs(5);

/// A data structure that lives in a pool under a name.
pub trait Structure<M: Medium>: Sized + Send + Sync + 'static {
    /// What it is, and the version of its layout: what it creates.
    const KIND: Kind;
    /// Older versions of its layout that it opens, too. [`Root::version`] tells which one an index has.
    const OLDER: &'static [Version] = &[];
    /// How it is created and opened.
    type Options: Clone + Default;
    /// What can go wrong.
    type Error: From<Error> + std::error::Error;

    /// Whether it tells its [`Tally`] of every change of an entry: see [`Root::tally`].
    const TALLIES: bool = false;

    /// Writes the initial content into `root`. What it writes back through `session` is fenced before the index goes
    /// live; a crash before that leaves nothing.
    ///
    /// # Errors
    /// The index is then not created, and the space that it took is given back.
    fn create(session: &mut Session<M>, root: &Root<M>, options: &Self::Options) -> Result<(), Self::Error>;

    /// Opens it, recovering it. It keeps `root` for as long as it may touch the pool. It must not open its own name.
    ///
    /// # Errors
    /// The index then stays as it is, and is not open.
    fn open(session: &mut Session<M>, root: Root<M>, options: &Self::Options) -> Result<Self, Self::Error>;

    /// Called once when it was opened, before anyone has it: the place to hand out weak references to itself.
    fn opened(self: &Arc<Self>) {}
}

/// The place of an index in its pool. It keeps the pool alive.
pub struct Root<M: Medium> {
    shared: Arc<Shared<M>>,
}

struct Shared<M: Medium> {
    pool: Pool<M>,
    owner: Owner,
    name: Lock<String>,
    /// `None` of a structure that does not tell it.
    tally: Option<Arc<Tally>>,
    /// Whether it is open for the first time since its pool was opened.
    is_first: bool,
}

impl<M: Medium> Clone for Root<M> {
    fn clone(&self) -> Self {
        Root { shared: Arc::clone(&self.shared) }
    }
}

impl<M: Medium> fmt::Debug for Root<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Root").field("owner", &self.owner()).field("name", &self.name()).finish()
    }
}

impl<M: Medium> Root<M> {
    pub(super) fn new(pool: &Pool<M>, owner: Owner, name: &str) -> Self {
        Root::of(Shared { pool: pool.clone(), owner, name: Lock::new(name.into()), tally: None, is_first: false })
    }

    /// The same, of a structure that is being opened, and perhaps tells its tally of changes.
    fn opening(pool: &Pool<M>, owner: Owner, name: &str, tally: Option<Arc<Tally>>) -> Self {
        let is_first = pool.registry().opened.insert(owner.0);
        Root::of(Shared { pool: pool.clone(), owner, name: Lock::new(name.into()), tally, is_first })
    }

    fn of(shared: Shared<M>) -> Self {
        Root { shared: Arc::new(shared) }
    }

    /// Whether all that the opening of the index finds is durable: as [`Op::finds_what_is_durable`], but not where the index was open before
    /// since the pool was opened. An index that puts notes off, and was dropped, has left changes in memory that no commit will hold.
    pub fn finds_what_is_durable(&self, op: &Op<'_, M>) -> bool {
        self.shared.is_first && op.finds_what_is_durable()
    }

    /// Starts writing back what the opening of the index has read, and builds on, unless it is
    /// [durable already](Self::finds_what_is_durable).
    #[inline]
    #[track_caller]
    pub fn write_back_found<T: Persistent>(&self, op: &Op<'_, M>, object: &T) {
        if !self.finds_what_is_durable(op) {
            op.write_back(object);
        }
    }

    /// What the structure tells of every change of an entry, when the change has happened, once; `None` of one that does not
    /// [tally](Structure::TALLIES).
    #[inline(always)]
    pub fn tally(&self) -> Option<&Tally> {
        self.shared.tally.as_deref()
    }

    /// What the index should hold, for a check that nobody writes beside: what it held when its pool was closed, and what has changed since.
    pub fn marked(&self, op: &Op<'_, M>) -> Marked {
        let pool = self.pool();
        let is_known = !pool.is_read_only() || pool.is_as_closed();
        match self.tally() {
            Some(tally) if is_known && pool.inner.poisoned.lock(op.medium()).is_none() => tally.says(),
            _ => Marked::Nothing,
        }
    }

    /// The pool.
    pub fn pool(&self) -> &Pool<M> {
        &self.shared.pool
    }

    /// Whom the index's space belongs to.
    pub fn owner(&self) -> Owner {
        self.shared.owner
    }

    /// The name of the index, as of now.
    pub fn name(&self) -> String {
        self.shared.name.lock(self.pool().mapping().medium()).clone()
    }

    /// The version of the layout that the index was created with: that of [`Structure::KIND`], or one of [`Structure::OLDER`].
    ///
    /// # Errors
    /// [`Error::DamagedRoot`].
    ///
    /// # Panics
    /// If the operation is one of another pool.
    pub fn version(&self, op: &Op<'_, M>) -> Result<Version> {
        let record = self.entry(op).read()?;
        record.map(|record| record.kind.version).ok_or(Error::NoSuchIndex { name: self.name() })
    }

    /// The index's entry, through an operation of its pool.
    fn entry<'a, 's>(&'a self, op: &'a Op<'s, M>) -> RootRef<'a, 's, M> {
        assert!(op.base_addr() == self.pool().mapping().base_addr(), "{}", Error::ForeignSession);
        RootRef::new(op, self.pool().geometry(), self.owner())
    }

    /// The index's part in the checkpoint epochs: see [`Epochs::join`](crate::Epochs::join).
    ///
    /// # Panics
    /// If the operation is one of another pool.
    pub fn seat<'s>(&self, op: &Op<'s, M>) -> &'s Seat {
        self.entry(op).seat()
    }

    /// The index's own line in its root entry; zero when it is created. The last two words are not the structure's: whoever
    /// opens it by name keeps there what it holds (the facade, the types of keys and values).
    ///
    /// # Panics
    /// If the operation is one of another pool.
    pub fn words<'s>(&self, op: &Op<'s, M>) -> &'s [Word; 8] {
        self.entry(op).user()
    }

    /// Keeps the last two of these words in the spare of the root entry, too: to be called when they have been stored, before the fence that
    /// makes them durable.
    ///
    /// # Panics
    /// If the operation is one of another pool.
    pub fn keep(&self, op: &Op<'_, M>) {
        self.entry(op).keep();
    }

    /// What was kept of them last, for a repair; none if it is damaged.
    ///
    /// # Panics
    /// If the operation is one of another pool.
    pub fn kept(&self, op: &Op<'_, M>) -> Option<[u64; 2]> {
        self.entry(op).kept()
    }
}

/// What is known of the indices that someone works with.
pub(super) struct Registry<M: Medium> {
    entries: BTreeMap<u16, Entry<M>>,
    /// Slots of which an index was opened or created since the pool was opened.
    opened: BTreeSet<u16>,
}

enum Entry<M: Medium> {
    /// Being created, opened or dropped, under this name.
    Busy(String),
    Open {
        kind: Kind,
        structure: Weak<dyn Any + Send + Sync>,
        root: Weak<Shared<M>>,
    },
}

impl<M: Medium> Default for Registry<M> {
    fn default() -> Self {
        Registry { entries: BTreeMap::new(), opened: BTreeSet::new() }
    }
}

impl<M: Medium> Entry<M> {
    fn is_alive(&self) -> bool {
        match self {
            Entry::Busy(_) => true,
            Entry::Open { structure, root, .. } => structure.strong_count() > 0 || root.strong_count() > 0,
        }
    }
}

impl<M: Medium> Registry<M> {
    /// A slot that is in use, if any.
    pub(super) fn alive(&self) -> Option<Owner> {
        self.entries.iter().find(|(_, entry)| entry.is_alive()).map(|(slot, _)| Owner(*slot))
    }

    fn is_busy(&self, name: &str) -> bool {
        self.entries.values().any(|e| matches!(e, Entry::Busy(n) if n == name))
    }
}

/// What an attempt to get hold of a name gave.
enum Claim {
    /// The structure is open.
    Open(Kind, Arc<dyn Any + Send + Sync>),
    /// The index is there, and is now ours to open or drop.
    Found(Owner, RootRecord),
    /// There is no such index, and this entry is now ours to create it in.
    Free(Owner),
    /// Someone else is at work on it.
    Wait,
    /// It is held by handles that outlive their structure.
    Held,
}

/// A slot that is busy on our behalf.
struct Busy<'p, M: Medium> {
    pool: &'p Pool<M>,
    owner: Owner,
}

impl<M: Medium> Drop for Busy<'_, M> {
    fn drop(&mut self) {
        let mut registry = self.pool.registry();
        if let Some(Entry::Busy(_)) = registry.entries.get(&self.owner.0) {
            registry.entries.remove(&self.owner.0);
        }
    }
}

/// An index that is being created: unless it goes live, its entry and its space are given back.
struct Creation<'p, M: Medium> {
    busy: Busy<'p, M>,
    root: Root<M>,
    record: Option<RootRecord>,
}

impl<M: Medium> Drop for Creation<'_, M> {
    fn drop(&mut self) {
        if self.record.is_none() {
            return;
        }
        // If this fails (a forked child, a pool that was shut), the entry stays "creating", and recovery ends it.
        let pool = self.busy.pool;
        if let Ok(mut session) = pool.session()
            && let Ok(op) = session.enter()
        {
            pool.space().free_owner(&op, self.root.owner());
            RootRef::new(&op, pool.geometry(), self.root.owner()).free();
        }
    }
}

impl<M: Medium> Pool<M> {
    /// Opens the structure named `name`, creating it if it is not there. A name that is open gives the same structure.
    /// The lookup is `O(indices)`.
    ///
    /// # Errors
    /// [`Error::WrongKind`], [`Error::BadName`], [`Error::TooManyIndices`], [`Error::ReadOnly`], [`Error::InUse`] (a
    /// [`Root`] outlives its structure), [`Error::DamagedRoot`], [`Error::PendingRecords`],
    /// [`Error::TooManySessions`], [`Error::Forked`], [`Error::Shut`], and what the structure says.
    pub fn open_structure<S: Structure<M>>(&self, name: &str, options: &S::Options) -> Result<Arc<S>, S::Error> {
        check_name(name)?;
        let mut session = self.session()?;
        match self.claim(&mut session, name, !self.is_read_only())? {
            Claim::Free(owner) => self.create_structure(&mut session, owner, name, options),
            claim => self.open_claimed(&mut session, claim, name, options),
        }
    }

    /// Opens the structure named `name`, which must be there.
    ///
    /// # Errors
    /// [`Error::NoSuchIndex`], otherwise as [`open_structure`](Self::open_structure).
    pub fn open_existing<S: Structure<M>>(&self, name: &str, options: &S::Options) -> Result<Arc<S>, S::Error> {
        check_name(name)?;
        let mut session = self.session()?;
        let claim = self.claim(&mut session, name, false)?;
        self.open_claimed(&mut session, claim, name, options)
    }

    fn create_structure<S: Structure<M>>(
        &self,
        session: &mut Session<M>,
        owner: Owner,
        name: &str,
        options: &S::Options,
    ) -> Result<Arc<S>, S::Error> {
        let busy = Busy { pool: self, owner };
        let m = self.mapping().medium();
        let root = Root::opening(self, owner, name, S::TALLIES.then(|| self.inner.tallies.created(m, owner)));
        let mut creation = Creation { busy, root, record: None };
        {
            let op = session.enter()?;
            creation.record = Some(RootRef::new(&op, self.geometry(), owner).begin(S::KIND, name));
        }
        S::create(session, &creation.root, options)?;
        {
            let op = session.enter()?;
            if let Some(record) = creation.record.take() {
                RootRef::new(&op, self.geometry(), owner).make_live(record);
            }
        }
        let root = creation.root.clone();
        let structure = self.register::<S>(session, root, options)?;
        drop(creation);
        Ok(structure)
    }

    fn open_claimed<S: Structure<M>>(
        &self,
        session: &mut Session<M>,
        claim: Claim,
        name: &str,
        options: &S::Options,
    ) -> Result<Arc<S>, S::Error> {
        let wrong = |found| Error::WrongKind { name: name.into(), found, expected: S::KIND };
        match claim {
            Claim::Open(kind, structure) => structure.downcast().map_err(|_| {
                // The same kind as another Rust type (another medium, another key type) cannot share one structure.
                if kind == S::KIND { Error::InUse { name: name.into() } } else { wrong(kind) }.into()
            }),
            Claim::Found(owner, record) => {
                let _busy = Busy { pool: self, owner };
                let versions = Versions { writes: S::KIND.version, older: S::OLDER };
                if record.kind.tag != S::KIND.tag || !versions.opens(record.kind.version) {
                    return Err(wrong(record.kind).into());
                }
                let tally = if S::TALLIES { Some(self.tally_of(session, owner)?) } else { None };
                let root = Root::opening(self, owner, name, tally);
                self.register::<S>(session, root, options)
            }
            _ => Err(Error::NoSuchIndex { name: name.into() }.into()),
        }
    }

    /// The tally of an index that is about to be opened.
    fn tally_of(&self, session: &mut Session<M>, owner: Owner) -> Result<Arc<Tally>> {
        let op = session.enter()?;
        Ok(self.inner.tallies.opened(&op, self.geometry(), owner, self.crashes(&op)))
    }

    /// Opens a structure and makes it known.
    fn register<S: Structure<M>>(
        &self,
        session: &mut Session<M>,
        root: Root<M>,
        options: &S::Options,
    ) -> Result<Arc<S>, S::Error> {
        let (owner, weak) = (root.owner(), Arc::downgrade(&root.shared));
        let structure = Arc::new(S::open(session, root, options)?);
        S::opened(&structure);
        let any: Arc<dyn Any + Send + Sync> = structure.clone();
        let entry = Entry::Open { kind: S::KIND, structure: Arc::downgrade(&any), root: weak };
        self.registry().entries.insert(owner.0, entry);
        Ok(structure)
    }

    /// Gets hold of a name, waiting while someone else is at work on it.
    fn claim(&self, session: &mut Session<M>, name: &str, create: bool) -> Result<Claim> {
        self.ensure_recovered()?;
        let start = Instant::now();
        let mut turn = 0;
        loop {
            match self.try_claim(&session.enter()?, name, create)? {
                Claim::Held if turn > GIVES_WAY && start.elapsed() > PATIENCE => {
                    return Err(Error::InUse { name: name.into() });
                }
                Claim::Wait | Claim::Held => self.mapping().medium().spin(turn),
                claim => return Ok(claim),
            }
            turn = turn.saturating_add(1);
        }
    }

    fn try_claim(&self, op: &Op<'_, M>, name: &str, create: bool) -> Result<Claim> {
        let mut registry = self.registry();
        if registry.is_busy(name) {
            return Ok(Claim::Wait);
        }
        let (owner, claim) = match self.find(op, name)? {
            Some((owner, record)) => match registry.entries.get(&owner.0) {
                Some(Entry::Busy(_)) => return Ok(Claim::Wait),
                Some(Entry::Open { kind, structure, root }) => match structure.upgrade() {
                    Some(structure) => return Ok(Claim::Open(*kind, structure)),
                    None if root.strong_count() > 0 => return Ok(Claim::Held),
                    None => (owner, Claim::Found(owner, record)),
                },
                None => (owner, Claim::Found(owner, record)),
            },
            None if !create => return Err(Error::NoSuchIndex { name: name.into() }),
            None => {
                let owner = self.find_free(op, &registry)?;
                (owner, Claim::Free(owner))
            }
        };
        registry.entries.insert(owner.0, Entry::Busy(name.into()));
        Ok(claim)
    }

    /// The live index of that name.
    ///
    /// # Errors
    /// [`Error::DamagedRoot`] if it is not found, and an entry that cannot be read might be it.
    fn find(&self, op: &Op<'_, M>, name: &str) -> Result<Option<(Owner, RootRecord)>> {
        let mut damaged = None;
        for root in RootRef::all(op, self.geometry()) {
            match root.read() {
                Ok(Some(record)) if record.state == RootState::Live && record.name == name => {
                    return Ok(Some((root.owner(), record)));
                }
                Ok(_) => {}
                Err(error) => damaged = Some(error),
            }
        }
        damaged.map_or(Ok(None), Err)
    }

    fn find_free(&self, op: &Op<'_, M>, registry: &Registry<M>) -> Result<Owner> {
        let in_use = |owner: Owner| registry.entries.get(&owner.0).is_some_and(Entry::is_alive);
        let mut all = RootRef::all(op, self.geometry());
        let free = all.find(|root| matches!(root.read(), Ok(None)) && !in_use(root.owner()));
        free.map(|root| root.owner()).ok_or(Error::TooManyIndices { limit: self.geometry().indices })
    }

    // ---- names ----

    /// The indices of the pool, in the order of their entries.
    ///
    /// # Errors
    /// [`Error::DamagedRoot`], [`Error::TooManySessions`], [`Error::Forked`], [`Error::Shut`].
    pub fn indices(&self) -> Result<Vec<IndexInfo>> {
        let mut session = self.session()?;
        let op = session.enter()?;
        let _registry = self.registry();
        list(&op, self.geometry())
    }

    /// The indices whose root entries can be read, and what is wrong with the others: for salvage.
    ///
    /// # Errors
    /// [`Error::TooManySessions`], [`Error::Forked`], [`Error::Shut`].
    pub fn readable_indices(&self) -> Result<(Vec<IndexInfo>, Vec<Error>)> {
        let mut session = self.session()?;
        let op = session.enter()?;
        let _registry = self.registry();
        let (mut found, mut damaged) = (Vec::new(), Vec::new());
        for root in RootRef::all(&op, self.geometry()) {
            match root.read() {
                Ok(Some(RootRecord { state: RootState::Live, kind, name, .. })) => {
                    found.push(IndexInfo { name, kind, owner: root.owner() });
                }
                Ok(_) => {}
                Err(error) => damaged.push(error),
            }
        }
        Ok((found, damaged))
    }

    /// Gives an index another name; failure-atomic, durable on return. It may be open.
    ///
    /// # Errors
    /// [`Error::NoSuchIndex`], [`Error::NameTaken`], [`Error::BadName`], [`Error::ReadOnly`], [`Error::DamagedRoot`],
    /// [`Error::TooManySessions`], [`Error::Forked`], [`Error::Shut`].
    pub fn rename(&self, old: &str, new: &str) -> Result<()> {
        check_name(new)?;
        self.ensure_writable()?;
        self.ensure_recovered()?;
        let mut session = self.session()?;
        let mut turn = 0;
        while !self.try_rename(&session.enter()?, old, new)? {
            self.mapping().medium().spin(turn);
            turn = turn.saturating_add(1);
        }
        Ok(())
    }

    /// Returns whether it was done; it is not while someone works on one of the names.
    fn try_rename(&self, op: &Op<'_, M>, old: &str, new: &str) -> Result<bool> {
        let registry = self.registry();
        if registry.is_busy(old) || registry.is_busy(new) {
            return Ok(false);
        }
        let (owner, record) = self.find(op, old)?.ok_or_else(|| Error::NoSuchIndex { name: old.into() })?;
        if old == new {
            return Ok(true);
        }
        if self.find(op, new)?.is_some() {
            return Err(Error::NameTaken { name: new.into() });
        }
        RootRef::new(op, self.geometry(), owner).rename(record, new);
        if let Some(Entry::Open { root, .. }) = registry.entries.get(&owner.0)
            && let Some(shared) = root.upgrade()
        {
            *shared.name.lock(op.medium()) = new.into();
        }
        Ok(true)
    }

    /// Removes an index and gives its space back; failure-atomic, durable on return. `O(indices + chunks)`.
    ///
    /// # Errors
    /// [`Error::InUse`] while it is open, [`Error::NoSuchIndex`], [`Error::ReadOnly`], [`Error::DamagedRoot`],
    /// [`Error::TooManySessions`], [`Error::Forked`], [`Error::Shut`]; what those say who are [asked](Self::ask_before_drops).
    pub fn drop_index(&self, name: &str) -> Result<()> {
        self.ensure_writable()?;
        let mut session = self.session()?;
        // A step of a service keeps its structure alive.
        let _paused = self.services().pause(PATIENCE);
        let Claim::Found(owner, record) = self.claim(&mut session, name, false)? else {
            return Err(Error::InUse { name: name.into() });
        };
        let _busy = Busy { pool: self, owner };
        // The last user may have let go of it without a lock of ours.
        fence(Ordering::Acquire);
        let index = IndexInfo { name: record.name.clone(), kind: record.kind, owner };
        let _dropping = self.before_drop(&mut session, index)?;
        let op = session.enter()?;
        let root = RootRef::new(&op, self.geometry(), owner);
        root.begin_drop(record); // PERSIST RT-D1<RT-D2: flush+fence
        self.space().free_owner(&op, owner); // PERSIST RT-D2<RT-D3: flush+fence, inside
        root.free();
        Ok(())
    }
}
