//! The tests of the tree, in one binary: what they share is compiled once.

mod counts;
mod crash;
mod model;
mod pool;
mod salvage;
