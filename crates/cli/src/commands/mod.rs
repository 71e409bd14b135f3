//! The verbs that work on pools.

pub mod check;
pub mod compact;
pub mod copy;
pub mod dump;
pub mod entries;
pub mod exec;
pub mod kinds;
pub mod load;
pub mod repair;
pub mod restore;
pub mod scan;
pub mod shell;
pub mod stat;
pub mod watch;
