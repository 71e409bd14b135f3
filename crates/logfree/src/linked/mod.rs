//! Maps whose links are durable: lists, hash tables, skip lists and search trees over link-and-persist ([`crate::link`]).
//!
//! | module | what it holds |
//! |---|---|
//! | `chain` | Harris's list over durable links: one code for list, buckets and levels |
//! | `list`, `hash`, `skip`, `bst` | the maps |
//! | `link_cache` | the link cache: links that are written back together, in two modes |

pub(crate) mod bst;
pub(crate) mod chain;
pub(crate) mod hash;
pub(crate) mod link_cache;
pub(crate) mod list;
pub(crate) mod skip;
