//! A whole pool under simulation: created, filled, crashed anywhere, its creation included, and opened again on a
//! backing made from what the crash has left.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering::{Relaxed, Release};

use durix_crashsim::{Explorer, Simulated, Subject};
use durix_pmem::backing::HeapBacking;
use durix_pmem::{Error, Kind, Pool, PoolOptions, Root, Session, Structure};

/// A number in the root entry of an index.
#[derive(Debug)]
struct Register {
    root: Root<Simulated>,
}

impl Structure<Simulated> for Register {
    const KIND: Kind = Kind { tag: *b"register", version: 1 };
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
        Live::of(options().create_on(HeapBacking::new(SIZE as u64), *medium).unwrap()).unwrap()
    }

    fn recover(&self, medium: &Simulated) -> Result<Live, String> {
        let image = medium.image(SIZE);
        let opened = options().open_on(HeapBacking::from_image(image), *medium).and_then(|pool| pool.recover());
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
