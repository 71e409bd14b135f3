//! Every crash state of short lives of a pool: creating it, indices that come, go and change their names, growing,
//! closing and opening again.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use durix_crashsim::{Explorer, Persistency, Simulated, Sites, Subject, mutation_sweep};
use durix_pmem::backing::{Access, Backing, BackingKind, HeapBacking};
use durix_pmem::{
    Error, Kind, Mutating, Mutation, Off, Plan, Pool, PoolOptions, Reserve, Root, Session, SiteKind, Structure, Word,
};

type M = Mutating<Simulated>;

const CHUNK: u64 = 4096;
const LIMIT: u64 = 16 * CHUNK;

/// Memory whose length survives the simulated crash. Its contents are the simulator's.
#[derive(Debug, Clone)]
struct Disk {
    len: Arc<AtomicU64>,
}

impl Backing for Disk {
    fn describe(&self) -> String {
        "disk".into()
    }
    fn kind(&self) -> BackingKind {
        BackingKind::Anonymous
    }
    fn len(&self) -> Result<u64, Error> {
        Ok(self.len.load(Ordering::Relaxed))
    }
    fn limit(&self) -> u64 {
        LIMIT
    }
    fn try_lock(&self, _: Access) -> Result<(), Error> {
        Ok(())
    }
    fn unlock(&self) {}
    fn read(&self, _: u64, bytes: &mut [u8]) -> Result<(), Error> {
        bytes.fill(0);
        Ok(())
    }
    fn reset(&self) -> Result<(), Error> {
        Ok(())
    }
    fn allocate(&self, len: u64) -> Result<(), Error> {
        self.len.fetch_max(len, Ordering::Relaxed);
        Ok(())
    }
    fn reserve(&self, _: u64, _: u64) -> Result<Reserve, Error> {
        Ok(Reserve::heap(LIMIT as usize))
    }
    fn map(&self, _: &Reserve, _: std::ops::Range<u64>, _: Access) -> Result<(), Error> {
        Ok(())
    }
    fn sync(&self) -> Result<(), Error> {
        Ok(())
    }
}

struct Store {
    medium: M,
    disk: Disk,
}

fn options() -> PoolOptions {
    PoolOptions::new()
        .initial_size(6 * CHUNK)
        .chunk_size(CHUNK)
        .lanes(1)
        .max_indices(4)
        .pool_id([7; 16])
        .boot_id([9; 16])
}

/// A structure: a value in its own words, and a sum of the values in the extents that it owns.
struct Cell {
    root: Root<M>,
}

impl Structure<M> for Cell {
    const KIND: Kind = Kind { tag: *b"cell\0\0\0\0", version: 1 };
    type Options = u64;
    type Error = Error;

    fn create(session: &mut Session<M>, root: &Root<M>, value: &u64) -> Result<(), Error> {
        let op = session.enter()?;
        op.store(&root.words(&op)[0], *value, Ordering::Relaxed);
        op.write_back(root.words(&op));
        add_extent(&op, root, 1)
    }

    fn open(_: &mut Session<M>, root: Root<M>, _: &u64) -> Result<Self, Error> {
        Ok(Cell { root })
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

#[derive(Clone, Copy, Debug)]
enum Action {
    Create,
    Open(&'static str, u64),
    Extend(&'static str),
    Rename(&'static str, &'static str),
    Drop(&'static str),
    Reopen,
}
use Action::*;

/// Name to value and number of extents; nothing before the pool is created.
type Model = Option<BTreeMap<String, (u64, usize)>>;

struct Lifetime {
    plan: &'static Plan,
    /// Whether creating the pool is itself under test.
    from_nothing: bool,
}

struct Live {
    medium: M,
    disk: Disk,
    pool: Option<Pool<M>>,
}

impl Live {
    fn pool(&self) -> &Pool<M> {
        self.pool.as_ref().expect("a history creates the pool first")
    }
}

impl Subject for Lifetime {
    type Op = Action;
    type Ret = bool;
    type State = Model;
    type Model = Model;
    type Store = Store;
    type Live = Live;

    fn store(&self, medium: Simulated) -> Store {
        Store { medium: Mutating::new(medium, self.plan), disk: Disk { len: Arc::default() } }
    }

    fn create(&self, store: &Store) -> Live {
        let mut live = Live { medium: store.medium, disk: store.disk.clone(), pool: None };
        store.disk.len.store(0, Ordering::Relaxed);
        if !self.from_nothing {
            self.apply(&mut live, &Create);
        }
        live
    }

    fn recover(&self, store: &Store) -> Result<Live, String> {
        let pool = match options().open_on(store.disk.clone(), store.medium).and_then(|pool| pool.recover()) {
            Ok(pool) => Some(pool),
            Err(Error::Unfinished { .. } | Error::NotAPool { .. }) if self.from_nothing => None,
            Err(error) => return Err(error.to_string()),
        };
        Ok(Live { medium: store.medium, disk: store.disk.clone(), pool })
    }

    fn apply(&self, live: &mut Live, action: &Action) -> bool {
        match *action {
            Create => {
                live.pool = Some(options().create_on(live.disk.clone(), live.medium).unwrap());
                true
            }
            Open(name, value) => live.pool().open_structure::<Cell>(name, &value).is_ok(),
            Extend(name) => {
                let Ok(cell) = live.pool().open_existing::<Cell>(name, &0) else { return false };
                let mut session = live.pool().session().unwrap();
                let op = session.enter().unwrap();
                let added = add_extent(&op, &cell.root, 1).is_ok();
                op.fence();
                added
            }
            Rename(old, new) => live.pool().rename(old, new).is_ok(),
            Drop(name) => live.pool().drop_index(name).is_ok(),
            Reopen => {
                live.pool().close().unwrap();
                let image = HeapBacking::image_of(live.pool().mapping());
                live.pool = None;
                // What grows from now on, a recovery finds behind the end that the header names.
                live.disk.len.store(LIMIT, Ordering::Relaxed);
                let backing = HeapBacking::from_image(image).with_limit(LIMIT);
                live.pool = Some(options().open_on(backing, live.medium).unwrap().recover().unwrap());
                true
            }
        }
    }

    fn observe(&self, live: &mut Live) -> Model {
        let pool = live.pool.as_ref()?;
        let mut found = BTreeMap::new();
        for info in pool.indices().unwrap() {
            let cell = pool.open_existing::<Cell>(&info.name, &0).unwrap();
            let mut session = pool.session().unwrap();
            let op = session.enter().unwrap();
            let value = op.load(&cell.root.words(&op)[0], Ordering::Relaxed);
            let extents = pool.space().extents(&op, info.owner);
            let sum: u64 = extents.iter().map(|e| op.load(op.at(Off::<Word>::new(e.off)), Ordering::Relaxed)).sum();
            found.insert(info.name, (value, sum as usize));
        }
        Some(found)
    }

    fn check(&self, live: &mut Live) -> Vec<String> {
        let Some(pool) = &live.pool else { return vec![] };
        let owners: Vec<_> = pool.indices().unwrap().iter().map(|i| i.owner).collect();
        let mut session = pool.session().unwrap();
        let op = session.enter().unwrap();
        let findings = pool.space().check(&op, |owner| owners.contains(&owner));
        findings.iter().map(|f| format!("leaked or damaged: {f}")).collect()
    }

    fn model(&self) -> Model {
        (!self.from_nothing).then(BTreeMap::new)
    }

    fn step(&self, model: &mut Model, action: &Action) -> bool {
        let Some(model) = model else {
            *model = Some(BTreeMap::new());
            return true;
        };
        match *action {
            Create | Reopen => true,
            Open(name, value) => {
                model.entry(name.into()).or_insert((value, 1));
                true
            }
            Extend(name) => model.get_mut(name).map(|(_, extents)| *extents += 1).is_some(),
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

const AFTER: [Action; 4] = [Open("b", 5), Rename("b", "c"), Drop("c"), Reopen];

/// Histories that reach every persistence site of the pool.
const HISTORIES: [&[Action]; 4] = [
    &[Open("a", 1), Rename("a", "long name of twenty"), Open("b", 2), Drop("b"), Reopen],
    &[Open("a", 3), Extend("a"), Extend("a"), Extend("a"), Extend("a"), Extend("a"), Drop("a"), Open("d", 4)],
    &[Reopen, Open("a", 1), Reopen, Drop("a"), Reopen],
    &[Open("x", 1), Open("y", 2), Rename("x", "y"), Rename("y", "z"), Rename("z", "x2"), Drop("x"), Drop("x2")],
];

#[test]
fn short_lives_with_a_crash_in_recovery() {
    for model in [Persistency::Pcso, Persistency::TornWords, Persistency::Eadr] {
        let subject = Lifetime { plan: Plan::new(), from_nothing: false };
        for history in HISTORIES {
            let report = Explorer::new().model(model).crashes(2).run_then(&subject, history, &AFTER).assert_ok();
            println!("{model}: {report}");
            assert!(report.complete);
        }
    }
}

#[test]
fn all_sequences_of_index_changes() {
    let subject = Lifetime { plan: Plan::new(), from_nothing: false };
    let alphabet = [Open("a", 1), Open("b", 2), Rename("a", "b"), Drop("a"), Extend("a")];
    let report = Explorer::new().sequences(&subject, &alphabet, 3, &AFTER).assert_ok();
    println!("{report}");
    assert!(report.complete);
}

#[test]
fn a_crash_in_creation_leaves_a_pool_or_none() {
    for model in [Persistency::Pcso, Persistency::TornWords] {
        let subject = Lifetime { plan: Plan::new(), from_nothing: true };
        let report = Explorer::new().model(model).run(&subject, &[Create, Open("a", 1), Reopen]).assert_ok();
        println!("{model}: {report}");
        assert!(report.complete);
    }
}

#[test]
fn every_write_back_and_fence_is_needed() {
    let sites = Sites {
        files: vec!["pmem/src/pool/".into(), "pmem/src/space/".into()],
        kinds: vec![SiteKind::WriteBack, SiteKind::Fence],
        mutations: vec![Mutation::Drop],
    };
    let sweep = mutation_sweep(&sites, |plan| {
        let explorer = Explorer::new().model(Persistency::TornWords).crashes(2);
        let from_nothing = Lifetime { plan, from_nothing: true };
        let mut last = explorer.run(&from_nothing, &[Create, Open("a", 1)]);
        let subject = Lifetime { plan, from_nothing: false };
        for history in HISTORIES {
            if last.failure.is_none() {
                last = explorer.run_then(&subject, history, &AFTER);
            }
        }
        last
    });
    println!("{sweep}");
    sweep.assert_all_caught(&[]);
}
