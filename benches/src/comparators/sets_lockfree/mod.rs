//! The lock-free durable sets of OOPSLA'19 and PPoPP'22, written from their papers.
//!
//! | module | what it holds |
//! |---|---|
//! | [`scheme`] | how a linked node becomes durable: the trait, and link-free |
//! | [`flit`] | the same by FliT: a counter for each link, beside it or in a table |
//! | [`harris`] | Harris's list, and a hash table of such lists, over a scheme |
//! | [`tower`] | lock-free skip list over a scheme |
//! | [`soft`] | list and hash table by SOFT |
//!
//! Link-free and SOFT: Zuriel, Friedman, Sheffi, Cohen, Petrank: *Efficient Lock-Free Durable Sets* (OOPSLA'19). FliT: Wei, Ben-David,
//! Friedman, Blelloch, Petrank: *FliT: A Library for Simple and Efficient Persistent Algorithms* (PPoPP'22).
//!
//! | scheme | a successful insert | a successful remove | a read |
//! |---|---|---|---|
//! | SOFT | 1 write-back, 1 fence | 1, 1 | 0, 0 |
//! | link-free | 1, 1 | 1, 1 | 0, 0; 1, 1 where the key was changed so recently that the change is not durable yet |
//! | FliT | 2, 2: node, link | 2, 2: mark, unlinking | 0, 0; up to 2, 1 where a counter is not 0 |
//!
//! All are made to their advantage: the allocator is volatile ([`nodes`](super::sets_logged::nodes)), a bucket is found by the low bits
//! of the key without a hash function (in the figures this spreads the keys perfectly), there are as many buckets as keys and the table
//! never grows, a node is one line, only the lowest level of a skip list is made durable, and nothing is checked for damage. No figure
//! needs recovery, so there is none: link-free and SOFT would find the members by a walk over all nodes, FliT by the links.

pub mod flit;
pub mod harris;
pub mod scheme;
pub mod soft;
#[cfg(test)]
mod tests;
pub mod tower;
