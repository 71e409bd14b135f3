//! A hash table: an array of buckets, each a list.
//!
//! | edge | kept by | a crash before it leaves | recovery |
//! |---|---|---|---|
//! | H1 all buckets empty, root words < the index goes live | flush+fence, of the pool's | an index that was never created | the pool's |

use std::collections::HashSet;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use durix_pmem::pool::Durability;
use durix_pmem::{Hardware, Kind, Medium, Off, Op, Pool, Root, Session, Structure, Word};

use crate::chain::{Chain, Nothing};
use crate::error::{Error, Result};
use crate::finding::Finding;
use crate::layout::{LAYOUT_VERSION, Link, ROOT_BUCKETS, ROOT_HEAD};
use crate::link_cache::on_chain;
use crate::options::Options;
use crate::pages::{PageStats, Pages, Reachable};

/// A durable lock-free hash table of 8-byte keys and values, with links in persistent memory: it recovers in the time that
/// its active pages take, whatever its size. The number of buckets is chosen when it is created.
///
/// All operations take the calling thread's [`Op`]; an update is durable when it returns.
pub struct HashTable<M: Medium = Hardware> {
    pages: Pages<M>,
    buckets: Off<Word<Link>>,
    /// Number of buckets less one.
    mask: u64,
}

impl<M: Medium> fmt::Debug for HashTable<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HashTable").field("root", self.pages.root()).field("mask", &self.mask).finish_non_exhaustive()
    }
}

/// Spreads keys over buckets; a bijection. It decides where keys lie in the pool, so it never changes.
#[inline(always)]
fn spread(key: u64) -> u64 {
    let mut h = key;
    h = (h ^ h >> 32).wrapping_mul(0xD6E8_FEB8_6659_FD93);
    h = (h ^ h >> 32).wrapping_mul(0xD6E8_FEB8_6659_FD93);
    h ^ h >> 32
}

impl<M: Medium> Structure<M> for HashTable<M> {
    const KIND: Kind = Kind { tag: *b"LF-HASH ", version: LAYOUT_VERSION };
    type Options = Options;
    type Error = Error;

    fn create(session: &mut Session<M>, root: &Root<M>, options: &Options) -> Result<()> {
        let op = session.enter()?;
        Pages::create(&op, root, options)?;
        let (space, words) = (root.pool().space(), root.words(&op));
        let bytes = options.buckets * size_of::<Word<Link>>() as u64;
        let reserved = space.reserve_extent(&op, root.owner(), bytes)?;
        reserved.zero(&op)?;
        let array = space.activate(&op, reserved)?;
        op.store(&words[ROOT_HEAD], array.off, Relaxed);
        op.store(&words[ROOT_BUCKETS], options.buckets, Relaxed);
        // PERSIST H1: flush, with the fence before the index goes live.
        op.write_back(words);
        Ok(())
    }

    fn open(session: &mut Session<M>, root: Root<M>, options: &Options) -> Result<Self> {
        let op = session.enter()?;
        let words = root.words(&op);
        let (array, buckets) = (op.load(&words[ROOT_HEAD], Relaxed), op.load(&words[ROOT_BUCKETS], Relaxed));
        let offset = op.off_of(&words[ROOT_BUCKETS]).get();
        if !buckets.is_power_of_two() {
            return Err(Error::Corrupt { what: "the number of buckets", offset, found: buckets });
        }
        op.slice("the buckets", Off::<Word<Link>>::new(array), buckets)?;
        let (pages, found) = Pages::open(&op, root, &[array], options)?;
        drop(op);
        let table = HashTable { pages: pages.with_link_cache(), buckets: Off::new(array), mask: buckets - 1 };
        table.pages.recover(session, &found, &Reachable::Search(&|op, node| table.reaches(op, node)))?;
        Ok(table)
    }
}

impl<M: Medium> HashTable<M> {
    /// Opens the hash table named `name`, creating it if it is not there. Recovery takes the time of a search for each node
    /// in a page that was active.
    ///
    /// # Errors
    /// [`Error::Pool`]: what the pool says, also where `name` is something else. [`Error::Corrupt`],
    /// [`Error::BadOption`].
    pub fn open(pool: &Pool<M>, name: &str) -> Result<Arc<Self>> {
        Self::open_with(pool, name, &Options::default())
    }

    /// As [`open`](Self::open), with options. A table that is open already stays as it is.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub fn open_with(pool: &Pool<M>, name: &str, options: &Options) -> Result<Arc<Self>> {
        pool.open_structure(name, options)
    }

    #[inline(always)]
    fn index(&self, key: u64) -> u64 {
        spread(key) & self.mask
    }

    #[inline(always)]
    fn bucket<'a, 's>(&'a self, op: &'a Op<'s, M>, index: u64) -> Chain<'a, 's, M> {
        let head = op.at(self.buckets.byte_add(index * size_of::<Word<Link>>() as u64));
        Chain { op, pages: &self.pages, head, above: Nothing }
    }

    #[inline(always)]
    fn chain<'a, 's>(&'a self, op: &'a Op<'s, M>, key: u64) -> Chain<'a, 's, M> {
        self.bucket(op, self.index(key))
    }

    fn reaches(&self, op: &Op<'_, M>, node: Off<crate::layout::Node>) -> Result<bool> {
        self.chain(op, op.load(&op.at(node).key, Relaxed)).reaches(node)
    }

    /// Its place in its pool.
    pub fn root(&self) -> &Root<M> {
        self.pages.root()
    }

    /// When an update is durable: before it returns, or, with a link cache in
    /// [`LinkCacheMode::Buffered`](crate::LinkCacheMode::Buffered), after the next [`sync`](Self::sync).
    pub fn durability(&self) -> Durability {
        self.pages.durability()
    }

    /// Makes everything durable that was done before, by any thread, and has returned. At most one fence; none without a link cache, and
    /// none if it is.
    pub fn sync(&self, op: &Op<'_, M>) {
        self.pages.flush_links(op);
    }

    /// Inserts a key with its value, if it is not there; returns whether it was not. Two fences, and one more for a page
    /// newly active; none if the key is there.
    ///
    /// # Errors
    /// [`Error::Pool`] where the pool is full; [`Error::Corrupt`].
    pub fn insert(&self, op: &Op<'_, M>, key: u64, value: u64) -> Result<bool> {
        on_chain!(self, self.chain(op, key), insert(key, value))
    }

    /// Removes a key; returns its value. One fence; none if it is not there.
    ///
    /// # Errors
    /// [`Error::Corrupt`]; [`Error::Pool`] where the table of active pages has to grow and the pool is full.
    pub fn remove(&self, op: &Op<'_, M>, key: u64) -> Result<Option<u64>> {
        on_chain!(self, self.chain(op, key), remove(key))
    }

    /// The value of a key. No fence, unless it was changed so recently that this read has to make it durable.
    ///
    /// # Errors
    /// [`Error::Corrupt`].
    pub fn get(&self, op: &Op<'_, M>, key: u64) -> Result<Option<u64>> {
        on_chain!(self, self.chain(op, key), get(key))
    }

    /// Whether a key is there; as [`get`](Self::get).
    ///
    /// # Errors
    /// As [`get`](Self::get).
    pub fn contains(&self, op: &Op<'_, M>, key: u64) -> Result<bool> {
        Ok(self.get(op, key)?.is_some())
    }

    /// Replaces the value of a key that is there; returns the old one. Two fences; none if it is not there.
    ///
    /// # Errors
    /// As [`insert`](Self::insert).
    pub fn update(&self, op: &Op<'_, M>, key: u64, value: u64) -> Result<Option<u64>> {
        Ok(on_chain!(self, self.chain(op, key), update(key, |_| Some(value)))?.map(|(old, _)| old))
    }

    /// Replaces the value of a key if it is `expected`; returns whether it was. Two fences; none if it was not.
    ///
    /// # Errors
    /// As [`insert`](Self::insert).
    pub fn compare_and_set(&self, op: &Op<'_, M>, key: u64, expected: u64, value: u64) -> Result<bool> {
        let outcome = on_chain!(self, self.chain(op, key), update(key, |old| (old == expected).then_some(value)))?;
        Ok(outcome.is_some_and(|(_, replaced)| replaced))
    }

    /// Removes a key if its value is `expected`; returns whether it did. One fence; none if it was not.
    ///
    /// # Errors
    /// As [`remove`](Self::remove).
    pub fn compare_and_remove(&self, op: &Op<'_, M>, key: u64, expected: u64) -> Result<bool> {
        let outcome = on_chain!(self, self.chain(op, key), remove_if(key, |value| value == expected))?;
        Ok(outcome.is_some_and(|(_, removed)| removed))
    }

    /// Appends the entries of a part of the table: the one at `from`, 0 for the first; returns where to go on, if it was not
    /// the last. Each entry was there at some moment of the call; in a walk over all parts none comes twice.
    ///
    /// # Errors
    /// [`Error::Corrupt`].
    pub fn walk(&self, op: &Op<'_, M>, from: u64, into: &mut Vec<(u64, u64)>) -> Result<Option<u64>> {
        on_chain!(self, self.bucket(op, from & self.mask), collect(0, usize::MAX, into))?;
        Ok((from < self.mask).then(|| from + 1))
    }

    /// Calls `f` for each entry, in no order. Each entry was there at some moment of the call; it is no snapshot. `f` may
    /// change the table.
    ///
    /// # Errors
    /// [`Error::Corrupt`].
    pub fn for_each(&self, op: &Op<'_, M>, mut f: impl FnMut(u64, u64)) -> Result<()> {
        let mut entries = Vec::new();
        for index in 0..=self.mask {
            entries.clear();
            on_chain!(self, self.bucket(op, index), collect(0, usize::MAX, &mut entries))?;
            entries.iter().for_each(|(key, value)| f(*key, *value));
        }
        Ok(())
    }

    /// Number of keys. Linear.
    ///
    /// # Errors
    /// As [`for_each`](Self::for_each).
    pub fn len(&self, op: &Op<'_, M>) -> Result<u64> {
        let mut len = 0;
        self.for_each(op, |_, _| len += 1)?;
        Ok(len)
    }

    /// Whether there is no key. Linear in the number of buckets.
    ///
    /// # Errors
    /// As [`for_each`](Self::for_each).
    pub fn is_empty(&self, op: &Op<'_, M>) -> Result<bool> {
        Ok(self.len(op)? == 0)
    }

    /// How the table's memory is used.
    pub fn page_stats(&self, op: &Op<'_, M>) -> PageStats {
        self.pages.stats(op)
    }

    /// The node that the calling session's next insert uses, as an offset in the pool, if it needs no new page.
    pub fn next_address(&self, op: &Op<'_, M>) -> Option<u64> {
        self.pages.next_address(op)
    }

    /// Compares what is allocated with what is reachable. No other operation may be open meanwhile.
    ///
    /// # Errors
    /// [`Error::Corrupt`].
    pub fn check(&self, op: &Op<'_, M>) -> Result<Vec<Finding>> {
        let (mut reachable, mut findings) = (HashSet::new(), Vec::new());
        for index in 0..=self.mask {
            self.bucket(op, index).walk(|_, node, key| {
                if !reachable.insert(node.get()) || self.index(key) != index {
                    findings.push(Finding::Misplaced { off: node.get(), key });
                }
            })?;
        }
        findings.extend(self.pages.check(op, &reachable, &[self.buckets.get()]));
        Ok(findings)
    }
}
