//! The trees that DPTree is compared with, section 4 of its paper: durable ordered maps of words, for one thread.
//!
//! | module | what it holds |
//! |---|---|
//! | [`fast_fair`] | FAST&FAIR (Hwang et al., FAST 2018): sorted nodes in persistent memory, shifted word by word |
//! | [`fptree`] | FPTree (Oukid et al., SIGMOD 2016): unsorted leaves with fingerprints, inner nodes in DRAM |
//! | [`lb_tree`] | LB+-Tree (Liu et al., VLDB 2020): unsorted leaves of four lines, most inserts change one of them |
//! | [`wort`] | WORT (Lee et al., FAST 2017): a radix tree in persistent memory |
//! | [`hashed_leaf`] | leaves of hashed slots, and four ways to search them |
//! | [`two_tier`] | a B+-tree over a buffer manager in DRAM and persistent memory |
//! | [`index`] | inner nodes in DRAM |
//! | [`memory`] | where nodes come from |
//!
//! All of them are durable when a call returns, and the tests crash them everywhere to see it. What is left out: removal, recovery, threads, and the bookkeeping of a persistent
//! allocator (memory is cut from a mapping, and nothing is written back for that), which is in their favour.

#[cfg(test)]
mod crash;
pub mod fast_fair;
pub mod fptree;
pub mod hashed_leaf;
pub mod index;
pub mod lb_tree;
pub mod memory;
#[cfg(test)]
mod tests;
pub mod two_tier;
pub mod wort;

use durix_pmem::{Mapping, Medium, Op};

/// A durable ordered map of words.
///
/// Values are neither 0 nor `u64::MAX`, and no two keys have the same value: in FAST&FAIR they are addresses, and what tells a valid
/// entry from one that was shifted half-way.
pub trait Ordered<M: Medium>: Sized {
    /// The name in tables.
    const NAME: &'static str;

    /// Bytes of persistent memory for so many keys, inserted in random order.
    fn bytes(keys: u64) -> u64;

    /// Bytes of persistent memory that are in use now.
    fn used(&self) -> u64;

    /// Makes an empty map in a mapping of zeroes.
    ///
    /// # Errors
    /// Where the mapping gives no session.
    fn create(mapping: &Mapping<M>) -> durix_pmem::Result<Self>;

    /// Gives a key a value, durably when this returns; whether the key is new.
    fn insert(&mut self, op: &Op<'_, M>, key: u64, value: u64) -> bool;

    /// Gives a key that is there another value, durably when this returns; whether it is there.
    fn update(&mut self, op: &Op<'_, M>, key: u64, value: u64) -> bool;

    /// The value of a key.
    fn get(&self, op: &Op<'_, M>, key: u64) -> Option<u64>;

    /// Calls `visit` with the pairs from `from` on, ascending, until it says `false`.
    fn scan(&self, op: &Op<'_, M>, from: u64, visit: impl FnMut(u64, u64) -> bool);
}

/// Opens a tree after a crash.
#[cfg(test)]
trait Reopen<M: Medium>: Ordered<M> + std::fmt::Debug {
    fn reopen(mapping: &Mapping<M>) -> Self;
}
