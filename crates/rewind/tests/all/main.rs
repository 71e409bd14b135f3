//! The tests of the engine and of the log, in one binary: what they share is compiled once.

mod crash;
mod damage;
mod engine_crash;
mod limits;
mod model;
mod sweep;
mod threads;
