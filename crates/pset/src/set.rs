//! The set: what is open, how it is opened, and the operations on one key.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, Weak};

use crossbeam_utils::CachePadded;
use durix_pmem::pool::Poison;
use durix_pmem::{Extent, Hardware, Kind, Lock, Medium, Op, Pool, Root, Session, Structure};
use xxhash_rust::xxh3::xxh3_64_with_seed;

use super::arena::{Arena, salvaged_extents};
use super::entry::Entry;
use super::error::{Error, Result};
use super::layout::{EXTENTS, LAYOUT_VERSION};
use super::shard::{Found, Shard};

/// How a set is opened. None of it changes what lies in the pool.
#[derive(Clone, Debug)]
pub struct SetOptions {
    pub(super) shards: usize,
    pub(super) recovery_threads: usize,
    pub(super) overlap: bool,
    pub(super) seed: u64,
    pub(super) salvage: bool,
}

impl Default for SetOptions {
    fn default() -> Self {
        SetOptions { shards: 256, recovery_threads: 0, overlap: true, seed: 0, salvage: false }
    }
}

/// Most shards of a set.
pub const MAX_SHARDS: usize = 1 << 16;

impl SetOptions {
    /// Number of shards, rounded up to a power of two, between 1 and [`MAX_SHARDS`]; 256 unless set. Writers of one
    /// shard wait for each other. An empty shard takes about 500 bytes of volatile memory.
    #[must_use]
    pub fn shards(self, shards: usize) -> Self {
        SetOptions { shards: shards.clamp(1, MAX_SHARDS).next_power_of_two(), ..self }
    }

    /// Most threads that recovery uses; 0, unless set, for one a processor. Small sets are recovered by one thread.
    #[must_use]
    pub fn recovery_threads(self, threads: usize) -> Self {
        SetOptions { recovery_threads: threads, ..self }
    }

    /// Whether [`PersistentSet::insert`] searches the index while its entry is being written back (appendix A of the
    /// paper), as it does unless set.
    #[must_use]
    pub fn overlap(self, overlap: bool) -> Self {
        SetOptions { overlap, ..self }
    }

    /// Whether slots and extents that no crash can have left so are passed over, instead of refusing the whole set. What
    /// they held is missing then, or an older value of it comes back. To read what is readable out of a damaged pool
    /// that was opened for reading; [`PersistentSet::check`] reports what was passed over.
    #[must_use]
    pub fn salvage(self, salvage: bool) -> Self {
        SetOptions { salvage, ..self }
    }

    /// Seed of the volatile hash; 0 unless set. Where keys come from strangers, a random one keeps them from choosing
    /// keys that collide.
    #[must_use]
    pub fn hash_seed(self, seed: u64) -> Self {
        SetOptions { seed, ..self }
    }
}

/// A durable concurrent hash map from byte strings to byte strings.
///
/// ```
/// use durix_pset::PersistentSet;
/// use durix_pmem::PoolOptions;
///
/// # let dir = tempfile::tempdir()?;
/// # let path = dir.path().join("users.pool");
/// let pool = PoolOptions::new().open_or_create(&path)?;
/// let users = PersistentSet::open(&pool, "users")?;
/// let mut session = pool.session()?;
/// let op = session.enter()?;
/// users.insert(&op, b"alice", b"1990")?;
/// users.txn(&op, |t| {
///     let year = t.get(b"alice")?.unwrap_or_default();
///     t.insert(b"bob", &year);
///     Ok::<_, durix_pset::Error>(())
/// })?;
/// assert_eq!(users.get_vec(&op, b"bob")?.as_deref(), Some(&b"1990"[..]));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// Keys are up to [`MAX_KEY`](crate::MAX_KEY) bytes long, values up to [`MAX_VALUE`](crate::MAX_VALUE); both may be empty. All operations take the calling
/// thread's [`Op`]; an update is durable when it returns. See the [crate](crate) for the guarantees.
pub struct PersistentSet<M: Medium = Hardware> {
    pub(super) root: Root<M>,
    pub(super) options: SetOptions,
    pub(super) shards: Box<[CachePadded<Shard>]>,
    pub(super) arena: Arena,
    /// Held by the one transaction that commits at a time.
    pub(super) committing: Lock<()>,
    /// Version of the last transaction that has committed.
    pub(super) committed: CachePadded<AtomicU64>,
    /// Version up to which the durable watermark covers transactions.
    pub(super) durable_watermark: CachePadded<AtomicU64>,
    pub(super) poison: Poison<M>,
    /// Whether an interrupted update can have left nothing in it.
    pub(super) is_as_closed: bool,
    /// Itself, for tickets.
    pub(super) me: OnceLock<Weak<Self>>,
}

impl<M: Medium> fmt::Debug for PersistentSet<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PersistentSet").field("options", &self.options).finish_non_exhaustive()
    }
}

impl<M: Medium> Structure<M> for PersistentSet<M> {
    const KIND: Kind = Kind { tag: *b"CSO-STPS", version: LAYOUT_VERSION };
    type Options = SetOptions;
    type Error = Error;

    fn create(_session: &mut Session<M>, _root: &Root<M>, _options: &SetOptions) -> Result<()> {
        // An empty set has no extents, and its root's words are zero: no transaction has committed.
        Ok(())
    }

    fn open(session: &mut Session<M>, root: Root<M>, options: &SetOptions) -> Result<Self> {
        PersistentSet::recover(session, root, options)
    }

    fn opened(self: &Arc<Self>) {
        self.me.get_or_init(|| Arc::downgrade(self));
    }
}

/// The hash of a key of 8 bytes, in a fifth of the instructions: both halves of the product of two words that depend on the
/// seed, mixed once more so that all of its bits depend on all of the key's.
#[inline(always)]
pub(super) fn hash_word(word: u64, seed: u64) -> u64 {
    let fold = |a: u64, b: u64| {
        let product = u128::from(a) * u128::from(b);
        product as u64 ^ (product >> 64) as u64
    };
    let mixed = fold(word ^ seed ^ 0x9e37_79b9_7f4a_7c15, 0xd6e8_feb8_6659_fd93 ^ seed.rotate_left(32));
    fold(mixed, 0xa076_1d64_78bd_642f)
}

impl<M: Medium> PersistentSet<M> {
    /// Opens the set named `name`, creating it if it is not there. Recovers it: linear in the space that it has used.
    ///
    /// # Errors
    /// [`Error::Pool`]: what the pool says, also where `name` is something else. [`Error::Corrupt`].
    pub fn open(pool: &Pool<M>, name: &str) -> Result<Arc<Self>> {
        Self::open_with(pool, name, &SetOptions::default())
    }

    /// As [`open`](Self::open), with options. A set that is open already stays as it is.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub fn open_with(pool: &Pool<M>, name: &str, options: &SetOptions) -> Result<Arc<Self>> {
        pool.open_structure(name, options)
    }

    pub(super) fn new(root: Root<M>, options: SetOptions) -> Self {
        PersistentSet {
            shards: (0..options.shards).map(|_| CachePadded::new(Shard::new())).collect(),
            options,
            arena: Arena::new(),
            committing: Lock::new(()),
            committed: CachePadded::default(),
            durable_watermark: CachePadded::default(),
            poison: Poison::new(root.clone()),
            root,
            is_as_closed: false,
            me: OnceLock::new(),
        }
    }

    /// Its place in the pool.
    pub fn root(&self) -> &Root<M> {
        &self.root
    }

    /// All extents, ascending. In a set that was opened for all that can be read, those too that the pool's tables have lost.
    pub(super) fn extents(&self, op: &Op<'_, M>) -> Vec<Extent> {
        let extents = self.root.pool().space().extents(op, self.root.owner());
        if !self.options.salvage {
            return extents;
        }
        let lost = self.lacks_extents(op, extents.len()) || self.root.has_doubtful_space(op);
        salvaged_extents(op, &self.root, lost)
    }

    /// Whether the pool's tables know of fewer extents than there are.
    pub(super) fn lacks_extents(&self, op: &Op<'_, M>, known: usize) -> bool {
        (known as u64) < op.load(&self.root.words(op)[EXTENTS], Ordering::Relaxed)
    }

    /// The hash of a key: volatile, never stored.
    #[inline(always)]
    pub(super) fn hash(&self, key: &[u8]) -> u64 {
        match <[u8; 8]>::try_from(key) {
            Ok(word) => hash_word(u64::from_le_bytes(word), self.options.seed),
            Err(_) => xxh3_64_with_seed(key, self.options.seed),
        }
    }

    #[inline(always)]
    pub(super) fn shard_index(&self, hash: u64) -> usize {
        // The low bits; the index uses the high ones. The number of shards is a power of two.
        hash as usize & (self.shards.len() - 1)
    }

    #[inline(always)]
    pub(super) fn shard(&self, hash: u64) -> &Shard {
        &self.shards[self.shard_index(hash)]
    }

    // ---- updates ----

    /// Maps `key` to `value`, whatever it was mapped to. Returns whether the key is new.
    ///
    /// Durable when it returns: one write-back a line of the entry (64 bytes hold key and value of 48 bytes in all, each
    /// rounded up to 8; every further line 56), one fence. Constant time.
    ///
    /// # Errors
    /// [`Error::KeyTooLong`], [`Error::ValueTooLong`]; [`Error::Pool`] where the pool is full, or after a
    /// panic in an update. The
    /// set then is as it was.
    #[inline]
    pub fn insert(&self, op: &Op<'_, M>, key: &[u8], value: &[u8]) -> Result<bool> {
        self.insert_key(op, self.key(key)?, value)
    }

    /// Maps `key` to `value` if it is not there. Returns whether it did; if not, nothing is written.
    ///
    /// # Errors
    /// As [`insert`](Self::insert).
    #[inline]
    pub fn insert_if_absent(&self, op: &Op<'_, M>, key: &[u8], value: &[u8]) -> Result<bool> {
        let decide = |old: Option<Found>| old.is_none().then_some(Some(value));
        Ok(self.change_key(op, self.key(key)?, decide)?.is_some())
    }

    /// Maps `key` to `value` if it is there. Returns whether it did; if not, nothing is written.
    ///
    /// # Errors
    /// As [`insert`](Self::insert).
    #[inline]
    pub fn update(&self, op: &Op<'_, M>, key: &[u8], value: &[u8]) -> Result<bool> {
        let decide = |old: Option<Found>| old.is_some().then_some(Some(value));
        Ok(self.change_key(op, self.key(key)?, decide)?.is_some())
    }

    /// Removes `key`. Returns whether it was there; if not, nothing is written.
    ///
    /// Durable when it returns: the write-back of a tombstone (one line for keys up to 48 bytes), one fence. Works in a
    /// full pool, too, with a few more fences.
    ///
    /// # Errors
    /// [`Error::KeyTooLong`]; [`Error::Pool`] after a panic in an update.
    #[inline]
    pub fn remove(&self, op: &Op<'_, M>, key: &[u8]) -> Result<bool> {
        Ok(self.change_key(op, self.key(key)?, |_| Some(None))?.is_some())
    }

    /// Changes `key` from `expected` to `new`, where `None` stands for absent. Returns whether the key was as expected; if
    /// not, nothing is written. Expecting and setting the same writes nothing only where both are `None`.
    ///
    /// # Errors
    /// As [`insert`](Self::insert).
    pub fn compare_and_set(
        &self,
        op: &Op<'_, M>,
        key: &[u8],
        expected: Option<&[u8]>,
        new: Option<&[u8]>,
    ) -> Result<bool> {
        let mut as_expected = false;
        self.change_key(op, self.key(key)?, |old| {
            as_expected = match (old, expected) {
                (Some(found), Some(value)) => Entry::at(op, found.off).is_some_and(|e| e.value_is(op, value)),
                (None, None) => true,
                _ => false,
            };
            as_expected.then_some(new)
        })?;
        Ok(as_expected)
    }

    // ---- reads ----

    /// Replaces the content of `value` by the value of `key`. Returns whether the key is there; if not, `value` is empty.
    ///
    /// Takes no lock and writes nothing; two cache misses where key and value fit in one line.
    ///
    /// # Errors
    /// [`Error::KeyTooLong`]; [`Error::Pool`] where an update that a panic has cut short stands in the way.
    #[inline]
    pub fn get(&self, op: &Op<'_, M>, key: &[u8], value: &mut Vec<u8>) -> Result<bool> {
        let found = self.lookup(op, self.key(key)?, |entry| entry.read_value(op, value))?;
        if found.is_none() {
            value.clear();
        }
        Ok(found.is_some())
    }

    /// The value of `key`, if it is there.
    ///
    /// # Errors
    /// As [`get`](Self::get).
    pub fn get_vec(&self, op: &Op<'_, M>, key: &[u8]) -> Result<Option<Vec<u8>>> {
        let mut value = Vec::new();
        Ok(self.get(op, key, &mut value)?.then_some(value))
    }

    /// Whether `key` is there.
    ///
    /// # Errors
    /// As [`get`](Self::get).
    #[inline]
    pub fn contains(&self, op: &Op<'_, M>, key: &[u8]) -> Result<bool> {
        Ok(self.lookup(op, self.key(key)?, |_| ())?.is_some())
    }

    /// Number of keys: exact while nobody writes. Takes time in the number of shards.
    pub fn len(&self, op: &Op<'_, M>) -> u64 {
        self.settle_all(op);
        self.live(op)
    }

    /// The same, unsettled keys included.
    pub(super) fn live(&self, op: &Op<'_, M>) -> u64 {
        self.shards.iter().map(|s| s.len(op.medium())).sum()
    }

    /// Whether there is no key.
    pub fn is_empty(&self, op: &Op<'_, M>) -> bool {
        self.len(op) == 0
    }
}
