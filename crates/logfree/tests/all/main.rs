//! The tests of all sets and maps, in one binary: what they share is compiled once.

mod blobs;
mod durable_links;
mod growth;
mod journaled;
mod leftovers;
mod link_cache;
mod maps;
mod moving;
mod records;
mod soft;
mod soft_later;
mod steps;
mod threads;
