//! Append-only logs in persistent memory. An entry is durable when `append` returns, after one fence: no separate commit mark has to be
//! written. Use them where a program records events or changes and reads them again after a crash. An entry is found whole or not at all,
//! if the stores to one cache line reach memory in order (persistent cache store order, PCSO). From Cohen, Friedman and Larus,
//! *Efficient Logging in Non-Volatile Memory by Exploiting Coherency Protocols* (OOPSLA 2017).
//!
//! | module | what it holds |
//! |---|---|
//! | [`log`] | logs whose append costs one round trip to memory: one write-back per line touched and one fence |

pub mod log;
#[cfg(feature = "testing")]
#[doc(hidden)]
pub mod testing;
