//! Models of what a crash leaves of the caches.

/// What may be found of a cache line after a crash.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Persistency {
    /// Any prefix of its stores, in the order in which they became visible, since its last guaranteed write-back.
    #[default]
    Pcso,
    /// Each 8-byte word independently at any of its values since then: what Intel and SNIA promise at least.
    TornWords,
    /// Everything visible: the caches are in the persistence domain.
    Eadr,
    /// A file in the page cache: each word of its 512-byte sectors independently at any of its values since the last
    /// sync ([`Medium::synced`](durix_pmem::Medium::synced)). Write-backs and fences guarantee nothing.
    PageCache,
}

impl Persistency {
    /// Whether stores to one line reach memory in order.
    pub(crate) fn orders_lines(self) -> bool {
        matches!(self, Persistency::Pcso | Persistency::Eadr)
    }

    /// Whether write-backs and fences make anything durable.
    pub(crate) fn writes_back(self) -> bool {
        self != Persistency::PageCache
    }
}

impl std::fmt::Display for Persistency {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Persistency::Pcso => "PCSO (lines are written back whole, their stores in order)",
            Persistency::TornWords => "torn words (each 8-byte word on its own)",
            Persistency::Eadr => "eADR (everything visible survives)",
            Persistency::PageCache => "page cache (each word of a sector on its own, until a sync)",
        })
    }
}
