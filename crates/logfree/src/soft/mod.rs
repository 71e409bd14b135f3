//! Members in persistent memory, links in volatile memory: SOFT and link-free sets (Zuriel et al., *Efficient Lock-Free
//! Durable Sets*, OOPSLA 2019).
//!
//! What has to survive of a set is which members it has, not how they are found. Each member is a line that says of itself
//! whether it counts; the index over them is volatile and rebuilt when the structure is opened. An update is one line
//! written back and ONE fence; reads and failed updates need none.
//!
//! What this adds to the paper: values can be replaced (the line has room for two), the hash table grows on-line, and a line is
//! used again at once. What it gives up: writers of neighbours wait for each other. Readers wait for nobody.
//!
//! | module | what it holds |
//! |---|---|
//! | `layout` | the member |
//! | `store` | how members are written (edges LF-M1 to LF-M8), and which lines are free |
//! | `recover` | reading all members when a structure is opened |
//! | `later` | updates of the hash table that are settled later (LF-L1 to LF-L4) |
//! | `table`, `hash` | the volatile hash table; [`SoftHash`] |
//! | `nodes`, `links`, `ordered` | the volatile skip list; [`SoftList`], [`SoftSkipList`] |
//!
//! # Guarantees
//! All operations are durably linearizable. A member is published in the index when it is durable, and taken out when its
//! removal is: nobody sees what a crash can take back. What is assumed beyond 8-byte atomicity: stores to one cache line
//! reach memory in order (PCSO). On a medium that tears lines a member can be found with another key or value.

mod hash;
mod later;
mod layout;
mod links;
mod nodes;
mod ordered;
mod recover;
mod store;
mod table;

pub use hash::{SoftHash, SoftHashCore};
pub use layout::LAYOUT_VERSION;
pub use ordered::{SoftList, SoftOrderedCore, SoftSkipList};
pub(crate) use store::{live_member, salvaged_extents};

/// A segment of volatile memory, in huge pages where it is large and the system gives them.
fn segment_of<T: Default>(len: u64) -> Box<[T]> {
    let mut segment = Vec::with_capacity(len as usize);
    durix_pmem::advise_huge_pages(segment.spare_capacity_mut());
    segment.resize_with(len as usize, T::default);
    segment.into_boxed_slice()
}

/// How a structure with links in volatile memory is opened. None of it changes what lies in the pool.
#[derive(Clone, Debug)]
pub struct SoftOptions {
    buckets: u64,
    recovery_threads: usize,
}

impl Default for SoftOptions {
    fn default() -> Self {
        SoftOptions { buckets: 64, recovery_threads: 0 }
    }
}

impl SoftOptions {
    /// Number of buckets of a hash table to begin with, rounded up to a power of two; 64 unless set. A bucket is a line of volatile memory
    /// for two keys or so; the table grows by itself.
    #[must_use]
    pub fn buckets(self, buckets: u64) -> Self {
        SoftOptions { buckets, ..self }
    }

    /// Most threads that recovery uses; 0, unless set, for one a processor.
    #[must_use]
    pub fn recovery_threads(self, threads: usize) -> Self {
        SoftOptions { recovery_threads: threads, ..self }
    }
}
