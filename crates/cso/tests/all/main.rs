//! The tests of the logs, in one binary: what they share is compiled once.

mod crash;
mod logs;
mod named;
mod shared;
