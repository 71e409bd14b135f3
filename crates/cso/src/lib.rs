//! Structures that need one round trip to memory for an update, because writes to one cache line reach memory in order
//! (persistent cache store order; Cohen, Friedman and Larus, OOPSLA'17).
//!
//! | module | what it holds |
//! |---|---|
//! | [`set`] | the single-trip persistent set: a durable concurrent hash map from byte strings to byte strings |

pub mod set;
