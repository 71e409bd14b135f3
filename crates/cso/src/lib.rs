//! Single-round-trip structures for persistent memory, after Cohen, Friedman and Larus, *Efficient Logging in
//! Non-Volatile Memory by Exploiting Coherency Protocols* (OOPSLA 2017).
//!
//! | module | what it holds |
//! |---|---|
//! | [`log`] | logs whose append costs one round trip to memory: one write-back per line touched and one fence |

pub mod log;
