//! Logs that need one round trip to memory for an append, because writes to one cache line reach memory in order
//! (persistent cache store order): Cohen, Friedman and Larus, *Efficient Logging in Non-Volatile Memory by Exploiting
//! Coherency Protocols* (OOPSLA 2017).
//!
//! | module | what it holds |
//! |---|---|
//! | [`log`] | logs whose append costs one round trip to memory: one write-back per line touched and one fence |

pub mod log;
#[cfg(feature = "testing")]
#[doc(hidden)]
pub mod testing;
