//! Everything that is compared.

mod facade;
mod maps;
mod ours;
pub mod peer;
mod stores;
mod trees;
pub mod value;

use peer::Make;
use value::LONG;

pub use facade::FACADE;
pub use stores::LMDB;
pub use trees::BARE;

/// All peers with values of 8 bytes, in the order of the table, each with what its row is called in `cargo bench -- NAME`.
pub const ALL: &[(&str, Make)] = &[
    ("set", ours::set),
    ("durable", trees::durable::<8>),
    ("facade", facade::facade::<8>),
    ("volatile", trees::volatile),
    ("huge", trees::volatile_huge),
    ("batches", trees::volatile_batches),
    ("redb", stores::redb::<8>),
    ("lmdb", stores::lmdb::<8>),
    ("fjall", stores::fjall),
    ("sled", stores::sled),
    ("masstree", maps::masstree),
    ("congee", maps::congee),
    ("btree", maps::btree_map),
    ("scc-tree", maps::tree_index),
    ("scc-hash", maps::hash_map),
    ("skiplist", maps::skip_map),
    ("dashmap", maps::dash_map),
];

/// Those that are measured with values of [`LONG`] bytes, too.
pub const WITH_LONG_VALUES: &[(&str, Make)] = &[
    ("durable", trees::durable::<LONG>),
    ("facade", facade::facade::<LONG>),
    ("redb", stores::redb::<LONG>),
    ("lmdb", stores::lmdb::<LONG>),
];

/// The peers that are asked for by name, with values of 8 bytes and with long ones; all of them where nothing is asked for.
///
/// # Errors
/// The name that there is not.
pub fn select(names: &[String]) -> Result<[Vec<Make>; 2], String> {
    if let Some(unknown) = names.iter().find(|name| ALL.iter().all(|(known, _)| known != name)) {
        let known: Vec<&str> = ALL.iter().map(|(name, _)| *name).collect();
        return Err(format!("there is no row \"{unknown}\"; there are {}", known.join(", ")));
    }
    let wanted = |name: &str| names.is_empty() || names.iter().any(|n| n == name);
    let all = |rows: &[(&str, Make)]| rows.iter().filter(|(name, _)| wanted(name)).map(|(_, make)| *make).collect();
    Ok([all(ALL), all(WITH_LONG_VALUES)])
}
