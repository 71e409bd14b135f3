//! Records of an index that was dropped. An index that takes its place has its number, and is none of theirs.

use std::collections::BTreeMap;

use durix_crashsim::{Explorer, Simulated, Subject};
use durix_pmem::PoolOptions;

use crate::{Db, Map};

type M = Simulated;

/// Two maps; the first one goes, and a third one takes its place.
struct Places;

struct Live {
    db: Db<M>,
    first: Option<Map<u64, u64, M>>,
    second: Map<u64, u64, M>,
    third: Option<Map<u64, u64, M>>,
}

#[derive(Clone, Copy, Debug)]
enum Do {
    /// Sets a key of the first two maps in one transaction.
    Both(u64),
    /// Drops the first map as [`Db::drop_index`] does it, when a commit of another thread has ended just before.
    Drop,
    /// Creates the third map.
    Create,
}

const LEN: u64 = 80 * 4096;

fn options() -> PoolOptions {
    let options = PoolOptions::new().chunk_size(4096).max_indices(6).lanes(1).pool_id([7; 16]).boot_id([7; 16]);
    options.initial_size(LEN).max_size(LEN)
}

impl Subject for Places {
    type Op = Do;
    type Ret = ();
    /// What the third map holds.
    type State = BTreeMap<u64, u64>;
    type Model = Self::State;
    type Store = Simulated;
    type Live = Live;

    fn store(&self, medium: Simulated) -> Simulated {
        medium
    }

    fn create(&self, medium: &Simulated) -> Live {
        let db = Db::over(options().create_on(medium.backing(0).with_limit(LEN), *medium).unwrap());
        let map = |name| db.map_of_kind(name, "list").unwrap();
        Live { first: Some(map("first")), second: map("second"), third: None, db }
    }

    fn recover(&self, medium: &Simulated) -> Result<Live, String> {
        let pool = options().open_on(medium.backing(LEN), *medium).and_then(|pool| pool.recover());
        let db = Db::over(pool.map_err(|error| error.to_string())?);
        let second = db.map_of_kind("second", "list").map_err(|error| error.to_string())?;
        let has_third = db.indices().unwrap().iter().any(|info| info.name == "third");
        let third =
            has_third.then(|| db.map_of_kind("third", "list")).transpose().map_err(|error| error.to_string())?;
        Ok(Live { first: None, second, third, db })
    }

    fn apply(&self, live: &mut Live, op: &Do) {
        match *op {
            Do::Both(value) => {
                let first = live.first.as_ref().unwrap();
                let set = |tx: &crate::Transaction<M>| {
                    [first, &live.second].iter().try_for_each(|map| tx.map(map)?.insert(&1, &value).map(drop))
                };
                live.db.transaction(set).unwrap();
            }
            Do::Drop => {
                live.first = None;
                live.db.pool().drop_index("first").unwrap();
            }
            Do::Create => live.third = Some(live.db.map_of_kind("third", "list").unwrap()),
        }
    }

    fn observe(&self, live: &mut Live) -> Self::State {
        live.third.as_ref().map(|map| map.iter().collect::<Result<_, _>>().unwrap()).unwrap_or_default()
    }

    fn check(&self, live: &mut Live) -> Vec<String> {
        let maps = live.third.iter().chain([&live.second]);
        maps.flat_map(|map| map.check().unwrap()).map(|finding| finding.to_string()).collect()
    }

    fn model(&self) -> Self::State {
        BTreeMap::new()
    }

    fn step(&self, _: &mut Self::State, _: &Do) {}

    fn expect(&self, model: &Self::State) -> Self::State {
        model.clone()
    }
}

#[test]
fn a_record_of_a_dropped_index_changes_none_that_takes_its_place() {
    let explorer = Explorer::new().executions_per_point(40).samples(40).suggest(false);
    println!("{}", explorer.run(&Places, &[Do::Both(1), Do::Both(2), Do::Drop, Do::Create]).assert_ok());
}
