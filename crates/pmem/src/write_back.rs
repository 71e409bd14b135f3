//! How lines are written back: what processors offer, and what a file needs.

use std::fmt;

/// How lines are written back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum WriteBackKind {
    /// x86-64 `clwb`: keeps the line in the cache.
    Clwb,
    /// x86-64 `clflushopt`: evicts the line.
    ClflushOpt,
    /// x86-64 `clflush`: evicts the line and waits.
    Clflush,
    /// aarch64 `dc cvap`: cleans to the point of persistence.
    DcCvap,
    /// The caches are in the persistence domain (eADR, CXL global persistent flush): a fence alone.
    FenceOnly,
    /// An ordinary file: the page cache keeps every store when the process dies; nothing is issued.
    PageCache,
    /// An ordinary file with a [journal](crate::journal): lines are noted for the next commit.
    Journal,
}

impl fmt::Display for WriteBackKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            WriteBackKind::Clwb => "clwb",
            WriteBackKind::ClflushOpt => "clflushopt",
            WriteBackKind::Clflush => "clflush",
            WriteBackKind::DcCvap => "dc cvap",
            WriteBackKind::FenceOnly => "fence only (caches are persistent)",
            WriteBackKind::PageCache => "page cache (no write-backs)",
            WriteBackKind::Journal => "journal (lines are noted for the next commit)",
        })
    }
}
