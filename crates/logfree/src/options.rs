//! Options.

use crate::error::{Error, Result};
use crate::layout::{MAX_PAGE, MIN_PAGE};

/// Most buckets of a link cache.
const MAX_BUCKETS: usize = 1 << 16;

/// When an update returns that leaves its link in the link cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LinkCacheMode {
    /// When the link is durable. Several threads can share a fence.
    Durable,
    /// At once. `sync` makes all of them durable, and so does for its key whoever asks for it. After a crash each key is found
    /// as it was at a moment no earlier than the last completed `sync`; different keys may be of different moments.
    Buffered,
}

/// How a [`List`](crate::List), [`HashTable`](crate::HashTable), [`SkipList`](crate::SkipList) or [`Bst`](crate::Bst) is created and opened.
#[derive(Clone, Debug)]
pub struct Options {
    pub(crate) page: u64,
    pub(crate) buckets: u64,
    pub(crate) grow_at: u32,
    pub(crate) active_pages: usize,
    pub(crate) generation: usize,
    pub(crate) recovery_threads: usize,
    pub(crate) tower_ratio: u32,
    pub(crate) hash_bits: u32,
    pub(crate) link_cache: Option<(LinkCacheMode, usize)>,
}

impl Default for Options {
    fn default() -> Self {
        Options {
            page: 4096,
            buckets: 1024,
            grow_at: 2,
            active_pages: 256,
            generation: 256,
            recovery_threads: 0,
            tower_ratio: 4,
            hash_bits: 64,
            link_cache: None,
        }
    }
}

impl Options {
    /// Bytes of a page of nodes, the unit in which active memory is recorded; 4096 unless set. A power of two, at least
    /// 256 and at most 64 KiB, and never more than the pool's chunk size. It counts when the structure is created and is
    /// kept in the pool.
    #[must_use]
    pub fn page_size(self, bytes: u64) -> Self {
        Options { page: bytes.clamp(MIN_PAGE, MAX_PAGE).next_power_of_two(), ..self }
    }

    /// At how many keys a bucket, on average, a hash table doubles its buckets, at most 1024; 2 unless set, 0 for never. It
    /// counts while the table is open, and is not kept in the pool.
    #[must_use]
    pub fn grow_at(self, keys: u32) -> Self {
        Options { grow_at: keys.min(1024), ..self }
    }

    /// Number of buckets of a hash table when it is created, rounded up to a power of two; 1024 unless set. See
    /// [`grow_at`](Self::grow_at).
    #[must_use]
    pub fn buckets(self, buckets: u64) -> Self {
        Options { buckets: buckets.clamp(1, 1 << 32).next_power_of_two(), ..self }
    }

    /// How many pages a session keeps active before it trims its table; 256 unless set, at least 4. More mean fewer
    /// fences where large structures are changed at random, and a longer recovery.
    #[must_use]
    pub fn active_pages(self, pages: usize) -> Self {
        Options { active_pages: pages.max(4), ..self }
    }

    /// How many unlinked nodes a session collects before it tries to free them together; 256 unless set, at least 1. While no
    /// other session is at work, 64 are enough.
    #[must_use]
    pub fn generation(self, nodes: usize) -> Self {
        Options { generation: nodes.max(1), ..self }
    }

    /// Most threads that recovery uses; 0, unless set, for one a processor.
    #[must_use]
    pub fn recovery_threads(self, threads: usize) -> Self {
        Options { recovery_threads: threads, ..self }
    }

    /// One node of so many on a level of a skip list is on the next level, too; 4 unless set, 2 to 16, rounded up to a power of
    /// two.
    #[must_use]
    pub fn tower_ratio(self, nodes: u32) -> Self {
        Options { tower_ratio: nodes.clamp(2, 16).next_power_of_two(), ..self }
    }

    /// How many bits of a key's hash count in a [`BytesHash`](crate::BytesHash) when it is created: for tests that want keys with equal
    /// hashes.
    #[doc(hidden)]
    #[must_use]
    pub fn hash_bits(self, bits: u32) -> Self {
        Options { hash_bits: bits.min(64), ..self }
    }

    /// Keeps changed links in a cache of so many lines of volatile memory, to be written back together (the paper's has
    /// 32); rounded up to a power of two, at most 65536. It is for lists and hash tables, and off unless set. The mode says when
    /// an update returns, and so what a crash can take back.
    #[must_use]
    pub fn link_cache(self, mode: LinkCacheMode, buckets: usize) -> Self {
        Options { link_cache: Some((mode, buckets.clamp(1, MAX_BUCKETS).next_power_of_two())), ..self }
    }

    /// For structures that cannot have a link cache.
    pub(crate) fn refuse_link_cache(&self) -> Result<()> {
        let rule = "only lists and hash tables have a link cache";
        match self.link_cache {
            Some((_, buckets)) => Err(Error::BadOption { option: "link_cache", value: buckets as u64, rule }),
            None => Ok(()),
        }
    }
}
