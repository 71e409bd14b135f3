//! Two trees in a pool, on one consistent cut, with a map each as their model.

use std::collections::BTreeMap;
use std::ops::{Bound, ControlFlow};
use std::sync::Arc;

use crate::Masstree;
use durix_crashsim::{Simulated, Subject};
use durix_pmem::{Medium, Mutating, Plan, Pool, PoolOptions, Session};

pub type M = Mutating<Simulated>;
pub type Map = BTreeMap<Vec<u8>, Vec<u8>>;

pub const LEN: u64 = 24 * 4096;

pub fn options() -> PoolOptions {
    let options = PoolOptions::new().chunk_size(4096).lanes(1).max_indices(3).pool_id([7; 16]).boot_id([7; 16]);
    options.initial_size(LEN).max_size(LEN)
}

#[derive(Clone, Debug)]
pub enum Act {
    Put(usize, u8, u8),
    Remove(usize, u8),
    /// One operation on both trees.
    Both(u8, u8),
    Sync,
    /// By another session than the one that has made the changes: its fences do not cover theirs.
    SyncByOther,
}
pub use Act::{Both, Put, Remove, Sync, SyncByOther};

/// Two trees in a pool; with `used`, in chunks that another tree has left full of old nodes.
pub struct Tested {
    pub plan: &'static Plan,
    pub used: bool,
}

pub struct Live {
    session: Session<M>,
    other: Session<M>,
    trees: [Arc<Masstree<M>>; 2],
}

fn value(v: u8) -> Vec<u8> {
    vec![v; if v < 100 { 8 } else { 20 }]
}

pub fn all<M: Medium>(tree: &Masstree<M>, session: &mut Session<M>) -> Map {
    let op = session.enter().unwrap();
    let mut map = Map::new();
    tree.range(&op, Bound::Unbounded, Bound::Unbounded, |k, v| {
        map.insert(k.to_vec(), v.to_vec());
        ControlFlow::Continue(())
    })
    .unwrap();
    map
}

impl Tested {
    fn live(pool: &Pool<M>) -> Result<Live, String> {
        let open = |name| Masstree::open(pool, name).map_err(|e| e.to_string());
        let trees = [open("a")?, open("b")?];
        let [session, other] = [pool.session(), pool.session()];
        Ok(Live { trees, session: session.map_err(|e| e.to_string())?, other: other.map_err(|e| e.to_string())? })
    }
}

impl Subject for Tested {
    type Op = Act;
    type Ret = bool;
    type State = [Map; 2];
    type Model = [Map; 2];
    type Store = (Simulated, M);
    type Live = Live;

    fn store(&self, medium: Simulated) -> Self::Store {
        (medium, Mutating::new(medium, self.plan))
    }
    fn create(&self, (simulated, medium): &Self::Store) -> Live {
        let pool = options().create_on(simulated.backing(0).with_limit(LEN), *medium).unwrap();
        if self.used {
            let old = Masstree::open(&pool, "old").unwrap();
            let mut session = pool.session().unwrap();
            let op = session.enter().unwrap();
            (0..60u8).for_each(|k| assert!(old.insert(&op, &[k; 9], &value(k)).unwrap()));
            drop((old, op));
            pool.drop_index("old").unwrap();
        }
        Tested::live(&pool).unwrap()
    }
    fn recover(&self, (simulated, medium): &Self::Store) -> Result<Live, String> {
        let backing = simulated.backing(LEN);
        let pool = match options().open_on(backing, *medium) {
            Ok(unrecovered) => unrecovered.recover().map_err(|e| e.to_string())?,
            // A crash in the creation of the pool itself, before there was any tree.
            Err(durix_pmem::Error::Unfinished { .. } | durix_pmem::Error::NotAPool { .. }) => {
                let backing = simulated.backing(LEN);
                options().create_on(backing, *medium).map_err(|e| e.to_string())?
            }
            Err(error) => return Err(error.to_string()),
        };
        Tested::live(&pool)
    }
    fn apply(&self, live: &mut Live, act: &Act) -> bool {
        match act {
            Sync => return live.trees[0].sync(&mut live.session).is_ok(),
            SyncByOther => return live.trees[0].sync(&mut live.other).is_ok(),
            _ => {}
        }
        let op = live.session.enter().unwrap();
        match act {
            Put(tree, k, v) => live.trees[*tree].insert(&op, &[*k], &value(*v)).unwrap(),
            Remove(tree, k) => live.trees[*tree].remove(&op, &[*k]).unwrap(),
            Both(k, v) => [0, 1].map(|i| live.trees[i].insert(&op, &[*k], &value(*v)).unwrap()) == [true; 2],
            Sync | SyncByOther => true,
        }
    }
    fn observe(&self, live: &mut Live) -> [Map; 2] {
        [0, 1].map(|i| all(&live.trees[i], &mut live.session))
    }
    fn check(&self, live: &mut Live) -> Vec<String> {
        let op = live.session.enter().unwrap();
        live.trees.iter().flat_map(|tree| tree.check(&op).unwrap()).map(|f| f.to_string()).collect()
    }
    fn model(&self) -> [Map; 2] {
        Default::default()
    }
    fn step(&self, model: &mut [Map; 2], act: &Act) -> bool {
        match act {
            Put(tree, k, v) => model[*tree].insert(vec![*k], value(*v)).is_none(),
            Remove(tree, k) => model[*tree].remove(&vec![*k]).is_some(),
            Both(k, v) => model.each_mut().map(|map| map.insert(vec![*k], value(*v)).is_none()) == [true; 2],
            Sync | SyncByOther => true,
        }
    }
    fn expect(&self, model: &[Map; 2]) -> [Map; 2] {
        model.clone()
    }
    fn is_sync(&self, act: &Act) -> bool {
        matches!(act, Sync | SyncByOther)
    }
}
