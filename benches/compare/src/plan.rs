//! How much is done.

use std::time::Duration;

/// Rounds that do not count, before the others.
pub const WARM_UP: usize = 1;

/// How often a store makes its inserts durable where not each of them is to be.
pub const EVERY: Duration = Duration::from_millis(64);

/// Keys of a scan.
pub const SCAN: usize = 10;

/// How much is done.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    /// Keys that are there before the first round.
    pub keys: u64,
    /// New keys that a round inserts.
    pub inserts: u64,
    /// New keys that a round inserts and commits one by one.
    pub commits: u64,
    /// Keys that a round gets.
    pub gets: u64,
    /// Scans of a round.
    pub scans: u64,
    /// Rounds that count.
    pub rounds: usize,
    /// Threads.
    pub threads: u64,
}

impl Plan {
    /// The full one, or the one that only shows that everything works.
    pub fn new(quick: bool) -> Plan {
        let number = |name: &str| std::env::var(name).ok().and_then(|v| v.parse::<u64>().ok()).filter(|n| *n > 0);
        let threads = number("DURIX_COMPARE_THREADS").unwrap_or(1).min(64);
        let keys = |default| number("DURIX_COMPARE_KEYS").unwrap_or(default).clamp(1 << 10, 1 << 27);
        let full = Plan {
            keys: keys(2_000_000),
            inserts: 64 << 10,
            commits: 256,
            gets: 64 << 10,
            scans: 16 << 10,
            rounds: 9,
            threads,
        };
        let short = Plan {
            keys: keys(20_000),
            inserts: 4 << 10,
            commits: 32,
            gets: 4 << 10,
            scans: 1 << 10,
            rounds: 3,
            ..full
        };
        if quick { short } else { full }
    }

    /// Keys that a run needs at most.
    pub fn all_keys(&self) -> u64 {
        self.keys + (self.inserts + self.commits) * (self.rounds as u64 + WARM_UP as u64)
    }
}
