//! Everything that is compared.

mod maps;
mod ours;
pub mod peer;
mod stores;
mod trees;

use peer::Make;

/// All peers, in the order of the table, each with what its row is called in `cargo bench -- NAME`.
pub const ALL: &[(&str, Make)] = &[
    ("set", ours::set),
    ("durable", trees::durable),
    ("volatile", trees::volatile),
    ("huge", trees::volatile_huge),
    ("batches", trees::volatile_batches),
    ("redb", stores::redb),
    ("lmdb", stores::lmdb),
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

/// The peers that are asked for by name; all of them where nothing is asked for.
///
/// # Errors
/// The name that there is not.
pub fn select(names: &[String]) -> Result<Vec<Make>, String> {
    if let Some(unknown) = names.iter().find(|name| ALL.iter().all(|(known, _)| known != name)) {
        let known: Vec<&str> = ALL.iter().map(|(name, _)| *name).collect();
        return Err(format!("there is no row \"{unknown}\"; there are {}", known.join(", ")));
    }
    let wanted = |name: &str| names.is_empty() || names.iter().any(|n| n == name);
    Ok(ALL.iter().filter(|(name, _)| wanted(name)).map(|(_, make)| *make).collect())
}
