//! Transactions: what one sees, what others see, what a crash leaves.

mod behaviour;
mod costs;
mod histories;
mod restarts;
mod snapshots;

use durix::{Db, DbBuilder, Map, Result, Transaction, TxIndex};
use durix_pmem::backing::HeapBacking;
use durix_pmem::{Hardware, PoolOptions};

fn memory() -> Db {
    over(Db::builder())
}

fn over(builder: DbBuilder) -> Db {
    let pool = PoolOptions::new().create_on(HeapBacking::new(64 << 20), Hardware::PAGE_CACHE).unwrap();
    // Checkpoints are taken where the tests say.
    builder.no_background_threads().over(pool).unwrap()
}

/// A map of words of a kind.
fn words(db: &Db, name: &str, kind: &str) -> Map<u64, u64> {
    db.map_of_kind(name, kind).unwrap()
}

/// The names of all kinds there are.
fn kinds() -> Vec<&'static str> {
    durix::kind::kinds::<Hardware>().iter().map(|kind| kind.name).collect()
}

/// Kinds of which each stands for a class of commits.
const CLASSES: [&str; 5] = ["pset", "masstree", "hash", "skiplist", "hash-values"];

fn index<'t>(tx: &'t Transaction, map: &Map<u64, u64>) -> Result<TxIndex<'t>> {
    tx.index(map.index())
}
