//! The tests of all sets and maps, in one binary: what they share is compiled once.

mod durable_links;
mod leftovers;
mod maps;
mod moving;
mod soft;
mod soft_later;
mod threads;
