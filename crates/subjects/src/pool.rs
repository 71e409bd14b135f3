//! Short lives of a pool: creating it, indices that come, go and change their names, growing, closing and opening again.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::atomic::Ordering;

use durix_crashsim::{Simulated, SimulatedBacking, Subject};
use durix_pmem::backing::{Backing, HeapBacking};
use durix_pmem::pool::State;
use durix_pmem::{Error, Kind, Mutating, Off, Plan, Pool, PoolOptions, Root, Session, Structure, Tick, Word};

/// The medium.
pub type M = Mutating<Simulated>;

const CHUNK: u64 = 4096;
/// Bytes that the file can grow to.
pub const LIMIT: u64 = 16 * CHUNK;

/// What a crash leaves: the length of the file, and the simulator's medium, which has the contents. A file that is
/// longer than its header says is the crash state of growing it.
#[derive(Clone)]
pub struct Disk {
    medium: M,
    len: Rc<Cell<u64>>,
}

impl Disk {
    /// The file, empty or as the crash left it.
    fn backing(&self) -> SimulatedBacking {
        self.medium.inner().backing(self.len.get()).with_limit(LIMIT)
    }

    fn open(&self, backing: impl Backing) -> Result<(Pool<M>, bool), Error> {
        let unrecovered = options().open_on(backing, self.medium)?;
        let closed = unrecovered.state() == State::Clean;
        Ok((unrecovered.recover()?, closed))
    }
}

/// The options of the small pool.
pub fn options() -> PoolOptions {
    PoolOptions::new()
        .initial_size(6 * CHUNK)
        .chunk_size(CHUNK)
        .lanes(1)
        .max_indices(4)
        .pool_id([7; 16])
        .boot_id([9; 16])
}

/// A structure: a value in its own words, and a sum of the values in the extents that it owns.
struct Counter {
    root: Root<M>,
}

impl Structure<M> for Counter {
    const KIND: Kind = Kind { tag: *b"counter\0", version: durix_pmem::Version::new(1) };
    type Options = u64;
    type Error = Error;

    fn create(session: &mut Session<M>, root: &Root<M>, value: &u64) -> Result<(), Error> {
        let op = session.enter()?;
        // The words are zero, and durably so, when a structure gets them.
        if *value != 0 {
            op.store(&root.words(&op)[0], *value, Ordering::Relaxed);
            op.store(&root.words(&op)[7], *value, Ordering::Relaxed);
            root.keep(&op);
            op.write_back(root.words(&op));
        }
        add_extent(&op, root, 1)
    }

    fn open(_: &mut Session<M>, root: Root<M>, _: &u64) -> Result<Self, Error> {
        Ok(Counter { root })
    }
}

/// Gives the structure another extent, which holds a value. Durable with the next fence.
fn add_extent(op: &durix_pmem::Op<'_, M>, root: &Root<M>, value: u64) -> Result<(), Error> {
    let space = root.pool().space();
    let reserved = space.reserve_extent(op, root.owner(), CHUNK)?;
    let word = op.at(Off::<Word>::new(reserved.off()));
    op.store(word, value, Ordering::Relaxed);
    op.persist(word);
    space.activate(op, reserved)?;
    Ok(())
}

/// What is done with a pool.
#[derive(Clone, Copy, Debug)]
pub enum Action {
    /// Creates the pool.
    Create,
    /// Opens an index, or creates it with a value.
    Open(&'static str, u64),
    /// Gives an index another extent.
    Extend(&'static str),
    /// The same, and the process dies before the last fence; the machine runs on, and the next process sees the extent.
    ExtendAndDie(&'static str),
    /// Has the services of the pool do all that is due: it grows ahead of need.
    Ahead,
    /// Stores a number in the index's own words.
    Set(&'static str, u64),
    /// Gives an index another name.
    Rename(&'static str, &'static str),
    /// Removes an index.
    Drop(&'static str),
    /// Closes the pool.
    Close,
    /// Opens what was closed.
    OpenAgain,
    /// Both.
    Reopen,
}
use Action::*;

/// What is observed.
#[derive(Clone, Debug, PartialEq, Default)]
pub struct Model {
    /// Name to value (and the number stored in its words) and number of extents; nothing before the pool is created.
    indices: Option<BTreeMap<String, (u64, u64, usize)>>,
    /// Whether the pool was closed.
    closed: bool,
}

/// A pool with up to four indices.
pub struct Lifetime {
    /// The mutations.
    pub plan: &'static Plan,
    /// Whether creating the pool is itself under test.
    pub from_nothing: bool,
    /// Whether what the header says of closing is looked at. A crash in recovery may take it back.
    pub closing: bool,
    /// Done before what is under test.
    pub before: &'static [Action],
}

impl Lifetime {
    /// A pool that has been created, its closing not looked at.
    pub fn new(plan: &'static Plan) -> Self {
        Lifetime { plan, from_nothing: false, closing: false, before: &[] }
    }
}

/// The pool at work.
pub struct Live {
    disk: Disk,
    pool: Option<Pool<M>>,
    closed: bool,
}

impl Live {
    fn pool(&self) -> &Pool<M> {
        self.pool.as_ref().expect("a history creates the pool first")
    }

    fn open_again(&mut self) {
        let image = HeapBacking::image_of(self.pool().mapping());
        self.pool = None;
        let backing = HeapBacking::from_image(image).with_limit(LIMIT);
        self.pool = Some(self.disk.open(backing).unwrap().0);
        self.closed = false;
    }
}

impl Subject for Lifetime {
    type Op = Action;
    type Ret = bool;
    type State = Model;
    type Model = Model;
    type Store = Disk;
    type Live = Live;

    fn store(&self, medium: Simulated) -> Disk {
        Disk { medium: Mutating::new(medium, self.plan), len: Rc::default() }
    }

    fn create(&self, disk: &Disk) -> Live {
        let mut live = Live { disk: disk.clone(), pool: None, closed: false };
        disk.len.set(0);
        if !self.from_nothing {
            self.apply(&mut live, &Create);
        }
        for action in self.before {
            self.apply(&mut live, action);
        }
        live
    }

    fn recover(&self, disk: &Disk) -> Result<Live, String> {
        let (pool, closed) = match disk.open(disk.backing()) {
            Ok((pool, closed)) => (Some(pool), closed),
            // Creation had not ended: it must be possible to begin anew.
            Err(Error::Unfinished { .. } | Error::NotAPool { .. }) if self.from_nothing => {
                let pool =
                    options().create_on(disk.backing(), disk.medium).map_err(|e| format!("creating again: {e}"))?;
                drop(pool);
                (None, false)
            }
            Err(error) => return Err(error.to_string()),
        };
        Ok(Live { disk: disk.clone(), pool, closed: closed && self.closing })
    }

    fn apply(&self, live: &mut Live, action: &Action) -> bool {
        match *action {
            Create => {
                let empty = live.disk.medium.inner().backing(0).with_limit(LIMIT);
                live.pool = Some(options().create_on(empty, live.disk.medium).unwrap());
                live.disk.len.set(LIMIT);
                true
            }
            Open(name, value) => live.pool().open_structure::<Counter>(name, &value).is_ok(),
            Extend(name) => {
                let Ok(counter) = live.pool().open_existing::<Counter>(name, &0) else { return false };
                let mut session = live.pool().session().unwrap();
                let op = session.enter().unwrap();
                let added = add_extent(&op, &counter.root, 1).is_ok();
                op.fence();
                added
            }
            Ahead => {
                let mut session = live.pool().session().unwrap();
                while live.pool().tick(&mut session).unwrap() == Tick::Worked {}
                true
            }
            ExtendAndDie(name) => {
                let Ok(counter) = live.pool().open_existing::<Counter>(name, &0) else { return false };
                // A session whose slot nobody gets again, so that nobody's fence covers what it has left.
                let mut sessions: [_; 4] = std::array::from_fn(|_| live.pool().session().unwrap());
                add_extent(&sessions[3].enter().unwrap(), &counter.root, 1).unwrap();
                drop((sessions, counter));
                // Nothing is closed any more.
                live.pool().mapping().shut();
                live.open_again();
                true
            }
            Set(name, value) => {
                let Ok(counter) = live.pool().open_existing::<Counter>(name, &0) else { return false };
                let mut session = live.pool().session().unwrap();
                let op = session.enter().unwrap();
                let word = &counter.root.words(&op)[1];
                op.store(word, value, Ordering::Relaxed);
                op.persist(word);
                true
            }
            Rename(old, new) => live.pool().rename(old, new).is_ok(),
            Drop(name) => live.pool().drop_index(name).is_ok(),
            Close => {
                live.pool().close().unwrap();
                live.closed = self.closing;
                true
            }
            OpenAgain => {
                live.open_again();
                true
            }
            Reopen => {
                live.pool().close().unwrap();
                live.open_again();
                true
            }
        }
    }

    fn observe(&self, live: &mut Live) -> Model {
        let closed = live.closed;
        let Some(pool) = live.pool.as_ref() else { return Model { indices: None, closed } };
        if closed && pool.session().unwrap().enter().is_err() {
            live.open_again();
        }
        let pool = live.pool();
        let mut found = BTreeMap::new();
        for info in pool.indices().unwrap() {
            let counter = pool.open_existing::<Counter>(&info.name, &0).unwrap();
            let mut session = pool.session().unwrap();
            let op = session.enter().unwrap();
            let value: Vec<u64> =
                counter.root.words(&op)[..2].iter().map(|word| op.load(word, Ordering::Relaxed)).collect();
            let extents = pool.space().extents(&op, info.owner);
            let sum: u64 = extents.iter().map(|e| op.load(op.at(Off::<Word>::new(e.off)), Ordering::Relaxed)).sum();
            found.insert(info.name, (value[0], value[1], sum as usize));
        }
        Model { indices: Some(found), closed }
    }

    fn check(&self, live: &mut Live) -> Vec<String> {
        let Some(pool) = &live.pool else { return vec![] };
        let indices = pool.indices().unwrap();
        let owners: Vec<_> = indices.iter().map(|i| i.owner).collect();
        let counters: Vec<_> =
            indices.iter().map(|info| pool.open_existing::<Counter>(&info.name, &0).unwrap()).collect();
        let mut session = pool.session().unwrap();
        let op = session.enter().unwrap();
        let findings = pool.check_space(&op, |owner| owners.contains(&owner));
        let spares = pool.check_spares(&op);
        let forgotten = counters.iter().filter(|counter| {
            let value = op.load(&counter.root.words(&op)[0], Ordering::Relaxed);
            counter.root.kept(&op) != Some([0, value])
        });
        let forgotten = forgotten.map(|counter| format!("{} has not kept its words", counter.root.name()));
        findings.iter().map(|f| format!("leaked or damaged: {f}")).chain(spares).chain(forgotten).collect()
    }

    fn model(&self) -> Model {
        let mut model = Model { indices: (!self.from_nothing).then(BTreeMap::new), closed: false };
        for action in self.before {
            self.step(&mut model, action);
        }
        model
    }

    fn step(&self, Model { indices, closed }: &mut Model, action: &Action) -> bool {
        *closed = self.closing && matches!(action, Close);
        let Some(model) = indices else {
            *indices = Some(BTreeMap::new());
            return true;
        };
        match *action {
            Create | Close | OpenAgain | Reopen | Ahead => true,
            Open(name, value) => {
                model.entry(name.into()).or_insert((value, 0, 1));
                true
            }
            Extend(name) | ExtendAndDie(name) => model.get_mut(name).map(|(.., extents)| *extents += 1).is_some(),
            Set(name, value) => model.get_mut(name).map(|(_, own, _)| *own = value).is_some(),
            Rename(old, new) if old == new => model.contains_key(old),
            Rename(old, new) if model.contains_key(new) || !model.contains_key(old) => false,
            Rename(old, new) => {
                let entry = model.remove(old);
                model.extend(entry.map(|e| (new.to_owned(), e)));
                true
            }
            Drop(name) => model.remove(name).is_some(),
        }
    }

    fn expect(&self, model: &Model) -> Model {
        model.clone()
    }
}

/// Follows every recovery.
pub const AFTER: [Action; 3] = [Open("b", 5), Rename("b", "c"), Drop("c")];

/// Histories that reach every persistence site of the pool.
pub const HISTORIES: [&[Action]; 7] = [
    &[Open("a", 1), Set("a", 8), Drop("a"), Open("b", 0), Open("c", 3)],
    &[Open("a", 1), ExtendAndDie("a"), Open("b", 2)],
    &[Open("a", 1), Rename("a", "long name of twenty"), Open("b", 2), Drop("b"), Reopen],
    &[Open("a", 3), Extend("a"), Extend("a"), Extend("a"), Extend("a"), Extend("a"), Drop("a"), Open("d", 4)],
    &[
        Open("a", 3),
        Extend("a"),
        Extend("a"),
        Ahead,
        Extend("a"),
        Extend("a"),
        Ahead,
        Extend("a"),
        Drop("a"),
        Open("d", 4),
    ],
    &[Reopen, Open("a", 1), Reopen, Drop("a")],
    &[Open("x", 1), Open("y", 2), Rename("x", "y"), Rename("y", "z"), Rename("z", "x2"), Drop("x"), Drop("x2")],
];
