//! The link cache (section 4 of David et al.): links that were changed and are not durable yet, to be written back together.
//!
//! A fixed number of [buckets](bucket) of one cache line each, in volatile memory. An update of a key changes its link and
//! leaves the link's address in the bucket of the key ([`publish`](LinkCache::publish)) instead of waiting for it to be durable.
//! Whoever depends on what was done to a key looks for it ([`scan`](LinkCache::scan)) and, where it is there, flushes the bucket:
//! up to seven links under one fence.
//!
//! | mode | an update returns | a crash takes back |
//! |---|---|---|
//! | [`LinkCacheMode::Durable`] | when its link is durable | nothing that has returned |
//! | [`LinkCacheMode::Buffered`] | when its link is in the cache | updates since the last `sync` that nobody has asked about, each key by itself |
//!
//! # Without hardware transactions
//! The paper changes link and bucket in one hardware transaction; processors of today have none. Its fall-back marks the
//! link while the entry is pending, and takes the mark off again. Here the entry is filled in before the link is changed, so
//! whoever has seen the change finds the entry, and no mark is needed: one locked instruction less. Nobody waits for anybody:
//! see `bucket.rs`.
//!
//! # Beyond the paper
//! - An update that finds its bucket full writes the whole bucket back together with its own link, under one fence.
//! - A deleted node is bypassed before its mark is durable: who asks for its key afterwards finds it by the scan.
//!
//! # Persist order
//! | edge | kept by | a crash before it leaves | recovery |
//! |---|---|---|---|
//! | LF-C1 a link was written back < its entry is free | flush+fence, of any flusher | the old link or the new: both are states of the map | nothing |
//! | LF-C2 a link that a scan finds pending < the answer of the operation that scans | flush+fence, its own | as LF-C1 | nothing |
//! | LF-C3 all links changed before < a node that was bypassed is handed out again (LF-K4), or a page leaves the table (LF-N7) | flush+fence, once for a generation or a trimming | the node reachable by an old link; or unreachable, in an active page | bypassed again; freed |
//! | LF-C4 what leads to the predecessor < a new node is linked behind it | flush+fence, by a scan for the predecessor's key | neither reachable | both freed |
//! | LF-C5 the page of a node is active (LF-N5) < the node is bypassed | flush+fence | the node reachable | nothing to free |
//!
//! Why LF-C3 takes pending links, too: the node may have been reached by a link that somebody has changed and not yet declared
//! busy; by the end of the grace period that entry is busy, but not durable.
//!
//! A page is recorded before a node of it is marked: after the mere death of a process the mark is visible, and nothing says
//! that it may not be durable. Recovery then writes back the links of all nodes of active pages (LF-N8).

pub(crate) mod bucket;

use std::fmt;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use durix_pmem::{Medium, Off, Op, Rmw, Word};

use crate::error::Result;
use crate::layout::{Link, Node};
use crate::link::{Announced, DurableLink, settle, swing};
use crate::linked::chain::{Chain, Nothing, Place, UpperLayer};
use crate::options::LinkCacheMode;
use crate::pages::Unlinking;
use bucket::{Added, Around};

/// A bucket, on a line of its own.
#[repr(align(64))]
#[derive(Default)]
struct Bucket([AtomicU64; 8]);

/// Links that may not be durable. Volatile.
pub(crate) struct LinkCache {
    /// A power of two of them.
    buckets: Box<[Bucket]>,
    mode: LinkCacheMode,
}

impl fmt::Debug for LinkCache {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LinkCache").field("buckets", &self.buckets.len()).field("mode", &self.mode).finish()
    }
}

/// A bucket in an operation.
struct At<'a, 's, M: Medium> {
    op: &'a Op<'s, M>,
    bucket: &'a Bucket,
}

impl<M: Medium> Around for At<'_, '_, M> {
    #[inline(always)]
    fn load(&self, word: u32) -> u64 {
        self.op.medium().shared_load(&self.bucket.0[word as usize], Acquire)
    }

    #[inline(always)]
    fn store(&self, word: u32, value: u64) {
        self.op.medium().shared_store(&self.bucket.0[word as usize], value, Release);
    }

    #[inline(always)]
    fn compare_exchange(&self, word: u32, current: u64, new: u64) -> bool {
        self.op.medium().shared_compare_exchange(&self.bucket.0[word as usize], current, new).is_ok()
    }

    #[inline(always)]
    fn add(&self, word: u32, value: u64) {
        self.op.medium().shared_rmw(&self.bucket.0[word as usize], Rmw::Add, value);
    }

    #[inline(always)]
    #[track_caller]
    fn write_back(&self, link: u64) {
        self.op.write_back(self.op.at(Off::<Word<Link>>::new(link)));
    }

    #[inline(always)]
    #[track_caller]
    fn fence(&self) {
        self.op.fence();
    }
}

impl LinkCache {
    pub(crate) fn new((mode, buckets): (LinkCacheMode, usize)) -> Self {
        LinkCache { buckets: (0..buckets).map(|_| Bucket::default()).collect(), mode }
    }

    pub(crate) fn mode(&self) -> LinkCacheMode {
        self.mode
    }

    /// The bucket of a key, and the key's hash in it.
    #[inline(always)]
    fn place<'a, 's, M: Medium>(&'a self, op: &'a Op<'s, M>, key: u64) -> (At<'a, 's, M>, u16) {
        let mixed = (key ^ key >> 32).wrapping_mul(0xD6E8_FEB8_6659_FD93);
        let bucket = &self.buckets[(mixed >> 32) as usize & (self.buckets.len() - 1)];
        (At { op, bucket }, (mixed >> 48) as u16)
    }

    /// Changes the link of an update of `key`. Returns whether it was `current`. In the durable mode it is durable on return;
    /// otherwise it is in the cache.
    #[inline]
    pub(crate) fn publish<'s, M: Medium>(
        &self,
        (op, announced): (&Op<'s, M>, &Announced),
        key: u64,
        word: &'s Word<Link>,
        current: Link,
        new: Link,
    ) -> bool {
        let (around, hash) = self.place(op, key);
        let change = || op.compare_exchange(word, current, new).is_ok();
        match bucket::try_link_and_add(&around, hash, op.off_of(word).get(), change) {
            Added::Changed => false,
            Added::Linked => {
                if self.mode == LinkCacheMode::Durable {
                    // If it is not there any more, another thread's fence was for it, too.
                    bucket::scan(&around, hash);
                }
                true
            }
            Added::Refused => publish_at_once(&around, &DurableLink::new(op, announced, word), current, new),
        }
    }

    /// Makes durable what was done to a key. No fence if that is durable.
    #[inline(always)]
    pub(crate) fn scan<M: Medium>(&self, op: &Op<'_, M>, key: u64) {
        let (around, hash) = self.place(op, key);
        bucket::scan(&around, hash);
    }

    /// Makes all links durable that were changed before. At most one fence.
    pub(crate) fn flush<M: Medium>(&self, op: &Op<'_, M>) {
        let around = |bucket| At { op, bucket };
        // All locked instructions before the first write-back.
        let begin = |bucket| bucket::begin(&around(bucket)).map(|flush| (bucket, flush));
        let mut flushes: Vec<_> = self.buckets.iter().filter_map(begin).collect();
        let mut any = !flushes.is_empty();
        for bucket in &self.buckets {
            any |= bucket::write_back_pending(&around(bucket));
        }
        for (bucket, flush) in &mut flushes {
            bucket::write_back(&around(bucket), flush);
        }
        if any {
            // PERSIST LF-C1, LF-C3: flush+fence.
            op.fence();
        }
        for (bucket, flush) in flushes {
            bucket::end(&around(bucket), flush);
        }
    }
}

/// Changes a link that its bucket does not take, and writes back both under one fence.
fn publish_at_once<M: Medium>(around: &At<'_, '_, M>, link: &DurableLink<'_, '_, M>, current: Link, new: Link) -> bool {
    let Ok(swung) = swing(link, current, new) else { return false };
    let mut flush = bucket::begin(around);
    if let Some(flush) = &mut flush {
        bucket::write_back(around, flush);
    }
    // PERSIST LF-C1, LF-K2: flush+fence.
    settle(link, swung);
    if let Some(flush) = flush {
        bucket::end(around, flush);
    }
    true
}

/// Calls a method of a list with the structure's link cache, or without one.
macro_rules! on_chain {
    ($self:ident, $chain:expr, $method:ident($($arg:expr),*)) => {
        match $self.pages.cache() {
            None => $chain.$method($($arg),*),
            Some(cache) => $chain.cached(cache).$method($($arg),*),
        }
    };
}
pub(crate) use on_chain;

/// A link cache stands above the list.
pub(crate) struct Cached<'a>(pub(crate) &'a LinkCache);

impl UpperLayer for Cached<'_> {
    #[inline(always)]
    fn cache(&self) -> Option<&LinkCache> {
        Some(self.0)
    }
}

impl<'a, 's, M: Medium> Chain<'a, 's, M, Nothing> {
    /// The same list, with a link cache.
    #[inline(always)]
    pub(crate) fn cached(self, cache: &'a LinkCache) -> Chain<'a, 's, M, Cached<'a>> {
        Chain { op: self.op, pages: self.pages, head: self.head, above: Cached(cache) }
    }
}

/// What lists do with a link cache; without one, nothing.
impl<'s, M: Medium, A: UpperLayer> Chain<'_, 's, M, A> {
    /// Makes durable what the answer about a key may depend on. To be called after looking: see `bucket.rs`.
    #[inline(always)]
    pub(crate) fn scan(&self, key: u64) {
        if let Some(cache) = self.above.cache() {
            // PERSIST LF-C1, LF-C2: flush+fence.
            cache.scan(self.op, key);
        }
    }

    /// Makes durable what the answer about many keys may depend on. To be called after looking.
    #[inline(always)]
    pub(crate) fn scan_all(&self) {
        if let Some(cache) = self.above.cache() {
            cache.flush(self.op);
        }
    }

    /// Makes durable what leads to the node that holds the link of a place.
    #[inline(always)]
    pub(crate) fn scan_predecessor(&self, place: &Place<'s>) {
        if let Some(cache) = self.above.cache()
            && !std::ptr::eq(place.link.0, place.incoming.0)
        {
            // A link is the first word of its node.
            let node = self.op.at(self.op.off_of(place.link.0).cast::<Node>());
            // PERSIST LF-C4: flush+fence.
            cache.scan(self.op, self.op.load(&node.key, Relaxed));
        }
    }

    /// As [`delete`](Chain::delete), with a link cache.
    pub(crate) fn delete_cached(
        &self,
        cache: &LinkCache,
        place: &Place<'s>,
        begun: Unlinking,
        node: &'s Node,
        next: Link,
        then: Link,
    ) -> Result<Option<u64>> {
        let op = self.op;
        let (key, value) = (op.load(&node.key, Relaxed), op.load(&node.value, Relaxed));
        if !cache.publish((op, self.pages.announced()), key, &node.next, next, then.deleted()) {
            self.pages.cancel_unlink(op, begun);
            return Ok(None);
        }
        self.tally_deletion(node, next, then);
        // PERSIST LF-C5, LF-N5: flush, with the fence of `take_out`.
        let is_new = begun.write_back(op);
        self.take_out(place.link, then.deleted(), begun, is_new)?;
        Ok(Some(value))
    }
}
