//! A whole pool under simulation: created, filled, crashed anywhere, its creation included, and opened again on a
//! backing made from what the crash has left.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering::{Relaxed, Release};

use durix_crashsim::{Explorer, Simulated, Subject};
use durix_pmem::backing::HeapBacking;
use durix_pmem::testing::{Call, FaultBacking, Faults};
use durix_pmem::{Error, Hardware, Kind, Pool, PoolOptions, Root, Session, Structure};

/// A number in the root entry of an index.
#[derive(Debug)]
struct Register {
    root: Root<Simulated>,
}

impl Structure<Simulated> for Register {
    const KIND: Kind = Kind { tag: *b"register", version: durix_pmem::Version::new(1) };
    type Options = ();
    type Error = Error;

    fn create(_: &mut Session<Simulated>, _: &Root<Simulated>, (): &()) -> Result<(), Error> {
        Ok(())
    }

    fn open(_: &mut Session<Simulated>, root: Root<Simulated>, (): &()) -> Result<Self, Error> {
        Ok(Register { root })
    }
}

#[derive(Clone, Debug)]
enum PoolOp {
    Set(&'static str, u64),
    Drop(&'static str),
}
use PoolOp::*;

struct Registers {
    write_back: bool,
}

struct Live {
    pool: Pool<Simulated>,
    session: Session<Simulated>,
}

impl Live {
    fn of(pool: Pool<Simulated>) -> Result<Live, Error> {
        Ok(Live { session: pool.session()?, pool })
    }
}

const SIZE: usize = 64 << 10;

fn options() -> PoolOptions {
    PoolOptions::new()
        .initial_size(SIZE as u64)
        .chunk_size(4096)
        .max_indices(2)
        .lanes(1)
        .pool_id([7; 16])
        .boot_id([8; 16])
}

impl Subject for Registers {
    type Op = PoolOp;
    type Ret = ();
    type State = BTreeMap<String, u64>;
    type Model = BTreeMap<String, u64>;
    type Store = Simulated;
    type Live = Live;

    fn store(&self, medium: Simulated) -> Simulated {
        medium
    }

    fn create(&self, medium: &Simulated) -> Live {
        Live::of(options().create_on(medium.backing(0).with_limit(SIZE as u64), *medium).unwrap()).unwrap()
    }

    fn recover(&self, medium: &Simulated) -> Result<Live, String> {
        let opened = options().open_on(medium.backing(SIZE as u64), *medium).and_then(|pool| pool.recover());
        let pool = match opened {
            // Nothing had been promised yet.
            Err(Error::Unfinished { .. } | Error::NotAPool { .. }) => {
                options().create_on(HeapBacking::new(SIZE as u64), *medium)
            }
            other => other,
        };
        pool.and_then(Live::of).map_err(|e| e.to_string())
    }

    fn apply(&self, live: &mut Live, op: &PoolOp) {
        match op {
            Set(name, value) => {
                let register: Arc<Register> = live.pool.open_structure(name, &()).unwrap();
                let op = live.session.enter().unwrap();
                let word = &register.root.words(&op)[0];
                op.store(word, *value, Release);
                if self.write_back {
                    op.write_back(word);
                }
                op.fence();
            }
            Drop(name) => match live.pool.drop_index(name) {
                Ok(()) | Err(Error::NoSuchIndex { .. }) => {}
                Err(error) => panic!("{error}"),
            },
        }
    }

    fn observe(&self, live: &mut Live) -> BTreeMap<String, u64> {
        let mut all = BTreeMap::new();
        for index in live.pool.indices().unwrap() {
            let register: Arc<Register> = live.pool.open_existing(&index.name, &()).unwrap();
            let op = live.session.enter().unwrap();
            let value = op.load(&register.root.words(&op)[0], Relaxed);
            // An index that was created and not yet set is as good as none.
            if value != 0 {
                all.insert(index.name.clone(), value);
            }
        }
        all
    }

    fn model(&self) -> BTreeMap<String, u64> {
        BTreeMap::new()
    }

    fn step(&self, model: &mut BTreeMap<String, u64>, op: &PoolOp) {
        match op {
            Set(name, value) => drop(model.insert((*name).into(), *value)),
            Drop(name) => drop(model.remove(*name)),
        }
    }

    fn expect(&self, model: &BTreeMap<String, u64>) -> BTreeMap<String, u64> {
        model.clone()
    }
}

const OPS: [PoolOp; 5] = [Set("a", 1), Set("b", 2), Set("a", 3), Drop("a"), Set("a", 4)];
const AFTER: [PoolOp; 2] = [Set("b", 5), Drop("b")];

#[test]
fn a_pool_survives_crashes_in_its_operations() {
    let report = Explorer::new().run_then(&Registers { write_back: true }, &OPS, &AFTER).assert_ok();
    println!("{report}");
    assert!(report.complete);
}

#[test]
fn a_pool_survives_crashes_in_its_creation() {
    let explorer = Explorer::new().crash_in_create(true);
    let report = explorer.run(&Registers { write_back: true }, &OPS[..1]).assert_ok();
    println!("{report}");
    assert!(report.complete);
}

#[test]
fn a_pool_survives_crashes_in_its_recovery() {
    let explorer = Explorer::new().crashes(2);
    let report = explorer.run(&Registers { write_back: true }, &OPS[..2]).assert_ok();
    println!("{report}");
    assert!(report.complete && report.nested_points > 0);
}

#[test]
fn a_missing_write_back_is_found_through_the_pool() {
    let failure = Explorer::new().run(&Registers { write_back: false }, &OPS).failure.expect("missed");
    println!("{failure}");
    assert_eq!(failure.deviating, 1);
    assert!(failure.to_string().contains("pool.rs"), "{failure}");
}

/// A pool that is created and grows through a backing of which a call fails.
struct Growing {
    /// The call that fails in creation, and the one in each operation; counted from 1.
    creating: Option<(Call, u64)>,
    growing: Option<(Call, u64)>,
    /// After a crash the file is as short as it can be, which is what its header says. Otherwise as long as it was made.
    short: bool,
}

const CHUNK: u64 = 4096;
const MOST: u64 = 12 * CHUNK;
/// How often an operation asks for space.
const TRIES: usize = 3;

#[derive(Clone, Copy, Debug, PartialEq)]
enum Step {
    /// Creates the pool, while a call fails.
    Create,
    /// Takes an extent, while a call fails; asks again when it was refused.
    Extend,
}
use Step::{Create, Extend};

/// The medium, which has the contents, and the length that the file was given.
#[derive(Clone)]
struct Sparse {
    medium: Simulated,
    len: Rc<Cell<u64>>,
}

struct Extents {
    pool: Pool<Simulated>,
    session: Session<Simulated>,
    register: Arc<Register>,
    faults: Faults,
}

impl Growing {
    fn options() -> PoolOptions {
        let options = PoolOptions::new().chunk_size(CHUNK).max_indices(2).lanes(1);
        options.initial_size(4 * CHUNK).max_size(MOST).pool_id([7; 16]).boot_id([8; 16])
    }

    fn planted(fault: Option<(Call, u64)>) -> Faults {
        let faults = Faults::default();
        fault.into_iter().for_each(|(call, nth)| faults.fail(call, nth, std::io::ErrorKind::Other));
        faults
    }

    /// Whether creating a pool meets the fault.
    fn creation_fails(&self) -> bool {
        let backing = FaultBacking::new(HeapBacking::new(MOST), Growing::planted(self.creating));
        Growing::options().create_on(backing, Hardware::PAGE_CACHE).is_err()
    }

    fn create_pool(&self, store: &Sparse) -> Option<Extents> {
        let faults = Growing::planted(self.creating);
        let backing = FaultBacking::new(HeapBacking::new(MOST), faults.clone());
        match Growing::options().create_on(backing, store.medium) {
            Ok(pool) => Some(Extents::of(pool, store, faults)),
            Err(Error::Io { .. }) => None,
            Err(error) => panic!("{error}"),
        }
    }

    fn open_pool(&self, store: &Sparse) -> Result<Extents, Error> {
        let of_length = |len: u64| store.medium.backing(len).with_limit(MOST);
        let mut backing = of_length(store.len.get());
        if self.short {
            let size = Growing::options().open_on(of_length(store.len.get()), store.medium)?.size();
            backing = of_length(size);
        }
        let faults = Faults::default();
        let backing = FaultBacking::new(backing, faults.clone());
        let pool = Growing::options().open_on(backing, store.medium)?.recover()?;
        Ok(Extents::of(pool, store, faults))
    }
}

impl Extents {
    fn of(pool: Pool<Simulated>, store: &Sparse, faults: Faults) -> Self {
        let register = pool.open_structure("extents", &()).unwrap();
        let extents = Extents { session: pool.session().unwrap(), pool, register, faults };
        extents.note(store);
        extents
    }

    /// Notes how long the file has become.
    fn note(&self, store: &Sparse) {
        store.len.set(store.len.get().max(self.pool.mapping().len()));
    }

    fn extend(&mut self, fault: Option<(Call, u64)>) {
        fault.into_iter().for_each(|(call, nth)| self.faults.fail(call, nth, std::io::ErrorKind::Other));
        let op = self.session.enter().unwrap();
        let (space, owner) = (self.pool.space(), self.register.root.owner());
        let reserved = (0..TRIES).find_map(|_| match space.reserve_extent(&op, owner, CHUNK) {
            Err(Error::Io { .. }) => None,
            done => Some(done.unwrap()),
        });
        space.activate(&op, reserved.expect("one call fails, once")).unwrap();
        op.fence();
    }
}

impl Subject for Growing {
    type Op = Step;
    type Ret = ();
    type State = usize;
    /// Whether there is a pool, and the number of extents.
    type Model = (bool, usize);
    type Store = Sparse;
    type Live = (Option<Extents>, Sparse);

    fn store(&self, medium: Simulated) -> Sparse {
        Sparse { medium, len: Rc::new(Cell::new(4 * CHUNK)) }
    }

    fn create(&self, store: &Sparse) -> Self::Live {
        (None, store.clone())
    }

    fn recover(&self, store: &Sparse) -> Result<Self::Live, String> {
        match self.open_pool(store) {
            Ok(extents) => Ok((Some(extents), store.clone())),
            Err(Error::Unfinished { .. } | Error::NotAPool { .. }) => Ok((None, store.clone())),
            Err(error) => Err(error.to_string()),
        }
    }

    fn apply(&self, (live, store): &mut Self::Live, step: &Step) {
        match (step, live.as_mut()) {
            (Create, None) => *live = self.create_pool(store),
            (Extend, Some(extents)) => {
                extents.extend(self.growing);
                extents.note(store);
            }
            _ => {}
        }
    }

    fn observe(&self, (live, _): &mut Self::Live) -> usize {
        let Some(extents) = live else { return 0 };
        let op = extents.session.enter().unwrap();
        extents.pool.space().extents(&op, extents.register.root.owner()).len()
    }

    fn check(&self, (live, _): &mut Self::Live) -> Vec<String> {
        let Some(extents) = live else { return Vec::new() };
        let op = extents.session.enter().unwrap();
        let owner = extents.register.root.owner();
        extents.pool.space().check(&op, |of| of == owner).iter().map(ToString::to_string).collect()
    }

    fn model(&self) -> (bool, usize) {
        (false, 0)
    }

    fn step(&self, (exists, extents): &mut (bool, usize), step: &Step) {
        match step {
            Create => *exists = *exists || !self.creation_fails(),
            Extend => *extents += usize::from(*exists),
        }
    }

    fn expect(&self, (_, extents): &(bool, usize)) -> usize {
        *extents
    }
}

#[test]
fn a_call_of_the_backing_that_fails_in_creation_leaves_no_half_of_a_pool() {
    let mut failing = 0;
    for (call, nth) in Call::ALL.into_iter().flat_map(|call| [(call, 1), (call, 2)]) {
        let subject = Growing { creating: Some((call, nth)), growing: None, short: false };
        failing += usize::from(subject.creation_fails());
        let report = Explorer::new().crashes(2).run(&subject, &[Create]).assert_ok();
        assert!(report.complete, "{call:?} {nth}: {report}");
    }
    assert!(failing >= 3, "{failing} of the calls are made");
}

#[test]
fn a_pool_survives_crashes_while_it_grows_and_the_backing_fails() {
    for fault in [None, Some((Call::Allocate, 1)), Some((Call::Map, 1)), Some((Call::Allocate, 2))] {
        for short in [false, true] {
            let subject = Growing { creating: None, growing: fault, short };
            let ops = [Create, Extend, Extend, Extend, Extend, Extend];
            let report = Explorer::new().run_then(&subject, &ops, &[Extend]).assert_ok();
            println!("{fault:?}, short {short}: {report}");
            assert!(report.complete, "{report}");
        }
    }
}
