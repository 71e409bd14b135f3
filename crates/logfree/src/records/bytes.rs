//! Byte strings for keys.
//!
//! The key of the map of words is a hash. A record holds all entries whose keys have that hash, nearly always one:
//!
//! ```text
//! bytes of the key: 4 bytes    bytes of the value: 4 bytes    key    value    (and the next entry)
//! ```
//!
//! A change of one of several entries writes a new record with all of them. It replaces or removes the very record that it was made
//! from, so it takes effect in one exchange, whatever others do with keys of the same hash meanwhile.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use durix_index::Leftover;
use durix_pmem::pool::Durability;
use durix_pmem::{Hardware, Kind, Medium, Op, Pool, Root, Session, Structure};

use super::blobs::BlobHash;
use super::record::MAX_VALUE;
use crate::error::{Error, Result};
use crate::finding::Finding;
use crate::layout::{RECORDS_LAYOUT_VERSION, ROOT_HASH_BITS};
use crate::options::Options;
use crate::pages::PageStats;

/// Bytes of the longest key of a [`BytesHash`].
pub const MAX_KEY: usize = 65_535;
/// Bytes of the longest value of a [`BytesHash`] with pages of 4 KiB, the default.
pub const MAX_BYTES_VALUE: usize = MAX_VALUE - LENGTHS - MAX_KEY;
/// Bytes before the key of an entry.
const LENGTHS: usize = 8;

/// A durable hash table from byte strings to byte strings, both of any length, 0 included, up to [`MAX_KEY`] and
/// [`max_value`](BytesHash::max_value).
///
/// All operations take the calling thread's [`Op`]; an update is durable when it returns. Reads copy. Recovery takes the time of a
/// look-up for each node and record in a page that was active. The hash is fixed, so somebody who chooses the keys can choose ones with
/// equal hashes, which are found one after the other; they stay right.
///
/// ```
/// use durix_logfree::BytesHash;
/// use durix_pmem::{Hardware, PoolOptions, backing::HeapBacking};
///
/// let pool = PoolOptions::new().create_on(HeapBacking::new(64 << 20), Hardware::PAGE_CACHE)?;
/// let users = BytesHash::open(&pool, "users")?;
/// let mut session = pool.session()?;
/// let op = session.enter()?;
/// assert!(users.insert(&op, b"ada", b"countess of Lovelace")?);
/// assert!(!users.insert(&op, b"ada", b"somebody else")?);
/// let mut value = Vec::new();
/// assert!(users.get(&op, b"ada", &mut value)? && value == b"countess of Lovelace");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct BytesHash<M: Medium = Hardware> {
    blobs: BlobHash<M>,
    /// How many bits of the hash count: all, but in tests.
    bits: u32,
}

impl<M: Medium> fmt::Debug for BytesHash<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BytesHash").field("root", self.root()).finish_non_exhaustive()
    }
}

impl<M: Medium> Structure<M> for BytesHash<M> {
    const KIND: Kind = Kind { tag: *b"LF-BYTES", version: RECORDS_LAYOUT_VERSION };
    const TALLIES: bool = true;
    type Options = Options;
    type Error = Error;

    fn create(session: &mut Session<M>, root: &Root<M>, options: &Options) -> Result<()> {
        BlobHash::create(session, root, options)?;
        let op = session.enter()?;
        let word = &root.words(&op)[ROOT_HASH_BITS];
        op.store(word, u64::from(options.hash_bits) + 1, Relaxed);
        // PERSIST LF-H1: flush, with the fence before the index goes live.
        op.write_back(word);
        Ok(())
    }

    fn open(session: &mut Session<M>, root: Root<M>, options: &Options) -> Result<Self> {
        let bits = {
            let op = session.enter()?;
            let word = &root.words(&op)[ROOT_HASH_BITS];
            let found = op.load(word, Relaxed);
            if !(1..=65).contains(&found) {
                return Err(Error::Corrupt { what: "the bits of a hash", offset: op.off_of(word).get(), found });
            }
            found as u32 - 1
        };
        Ok(BytesHash { blobs: Structure::open(session, root, options)?, bits })
    }
}

/// Both halves of a product.
fn fold(a: u64, b: u64) -> u64 {
    let product = u128::from(a) * u128::from(b);
    product as u64 ^ (product >> 64) as u64
}

/// The hash of a key. It decides where keys lie in the pool, so it never changes.
fn hash(key: &[u8]) -> u64 {
    const MIX: [u64; 3] = [0x9E37_79B9_7F4A_7C15, 0xD6E8_FEB8_6659_FD93, 0xA076_1D64_78BD_642F];
    let (words, rest) = key.as_chunks::<8>();
    let mut last = [0; 8];
    last[..rest.len()].copy_from_slice(rest);
    let start = fold(key.len() as u64 ^ MIX[0], MIX[1]);
    let words = words.iter().chain([&last]).map(|word| u64::from_le_bytes(*word));
    // Each word is added to what came before, multiplied so that the order counts, so that no word can wipe it out.
    let mixed =
        words.fold(start, |hash, word| fold(hash.rotate_left(29) ^ word ^ MIX[2], MIX[0]).wrapping_add(hash ^ word));
    fold(mixed ^ MIX[1], MIX[2])
}

/// The bytes of one entry.
fn entry(key: &[u8], value: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(LENGTHS + key.len() + value.len());
    bytes.extend_from_slice(&(key.len() as u32).to_le_bytes());
    bytes.extend_from_slice(&(value.len() as u32).to_le_bytes());
    bytes.extend_from_slice(key);
    bytes.extend_from_slice(value);
    bytes
}

/// Takes the first entry off some bytes: key, value, and the rest. `None` where the lengths make no sense.
fn split(bytes: &[u8]) -> Option<(&[u8], &[u8], &[u8])> {
    let (lengths, rest) = bytes.split_first_chunk::<LENGTHS>()?;
    let lengths = u64::from_le_bytes(*lengths);
    let (key, rest) = rest.split_at_checked((lengths & u64::from(u32::MAX)) as usize)?;
    let (value, rest) = rest.split_at_checked((lengths >> 32) as usize)?;
    Some((key, value, rest))
}

/// As that of `blobs`, with the keys that records hold, as far as they have the hash that led to them.
pub(crate) fn read_leftovers<M: Medium>(
    op: &Op<'_, M>,
    root: &Root<M>,
    leftovers: &[Leftover],
    found: &mut dyn FnMut(&[u8], &[u8]),
) {
    let bits = op.load(&root.words(op)[ROOT_HASH_BITS], Relaxed);
    let bits = if (1..=65).contains(&bits) { bits as u32 - 1 } else { 64 };
    super::blobs::read_leftovers(op, root, leftovers, &mut |expected, mut bytes| {
        while let Some((key, value, rest)) = split(bytes) {
            if cut(hash(key), bits) == expected {
                found(key, value);
            }
            bytes = rest;
        }
    });
}

/// The bits of a hash that count.
fn cut(hash: u64, bits: u32) -> u64 {
    if bits == 0 { 0 } else { hash >> (64 - bits) }
}

/// An entry that was found in the bytes of a record.
struct Entry<'a> {
    value: &'a [u8],
    /// What stands before it and behind it.
    around: (&'a [u8], &'a [u8]),
}

/// What is to become of an entry.
enum Fate<'a> {
    Keep,
    Set(&'a [u8]),
    Remove,
}

/// Says what becomes of an entry, by its value, if it is there.
type Decide<'a, 'v> = &'a mut dyn FnMut(Option<&[u8]>) -> Fate<'v>;

impl<M: Medium> BytesHash<M> {
    /// Opens the table named `name`, creating it if it is not there. Recovers it.
    ///
    /// # Errors
    /// [`Error::Pool`]: what the pool says, also where `name` is something else. [`Error::Corrupt`],
    /// [`Error::BadOption`], also for a link cache.
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

    /// Its place in its pool.
    pub fn root(&self) -> &Root<M> {
        self.blobs.root()
    }

    /// When an update is durable: before it returns.
    pub fn durability(&self) -> Durability {
        Durability::Strict
    }

    /// Bytes of the longest value, whatever its key, as long as no other key has the same hash: [`MAX_BYTES_VALUE`] with pages of
    /// 4 KiB.
    pub fn max_value(&self) -> u64 {
        self.blobs.max_value().saturating_sub((LENGTHS + MAX_KEY) as u64)
    }

    fn hash(&self, key: &[u8]) -> u64 {
        cut(hash(key), self.bits)
    }

    /// Where a key is in the bytes of the record at `off`.
    fn search<'a>(&self, off: u64, bytes: &'a [u8], key: &[u8]) -> Result<Option<Entry<'a>>> {
        let mut left = bytes;
        while !left.is_empty() {
            let Some((found, value, rest)) = split(left) else {
                return Err(Error::Corrupt { what: "an entry of a record", offset: off, found: left.len() as u64 });
            };
            if found == key {
                let around = (&bytes[..bytes.len() - left.len()], rest);
                return Ok(Some(Entry { value, around }));
            }
            left = rest;
        }
        Ok(None)
    }

    /// The bytes of a record. Read anew each time: see the races of `records`.
    fn bytes(&self, op: &Op<'_, M>, hash: u64, off: u64) -> Result<Vec<u8>> {
        let mut bytes = Vec::new();
        self.blobs.read(op, hash, off, &mut bytes)?;
        Ok(bytes)
    }

    // ---- reading ----

    /// Replaces the content of `into` by the value of a key; returns whether it is there. No fence, unless it was changed so recently
    /// that this read has to make it durable.
    ///
    /// # Errors
    /// [`Error::Corrupt`].
    pub fn get(&self, op: &Op<'_, M>, key: &[u8], into: &mut Vec<u8>) -> Result<bool> {
        into.clear();
        let hash = self.hash(key);
        let Some(off) = self.blobs.find(op, hash)? else { return Ok(false) };
        self.blobs.read(op, hash, off, into)?;
        let Some(entry) = self.search(off, into, key)? else {
            into.clear();
            return Ok(false);
        };
        let (len, behind) = (entry.value.len(), entry.around.1.len());
        into.truncate(into.len() - behind);
        into.drain(..into.len() - len);
        Ok(true)
    }

    /// Whether a key is there; as [`get`](Self::get).
    ///
    /// # Errors
    /// As [`get`](Self::get).
    pub fn contains(&self, op: &Op<'_, M>, key: &[u8]) -> Result<bool> {
        self.get(op, key, &mut Vec::new())
    }

    // ---- changing ----

    /// Inserts a key with its value, if it is not there; returns whether it was not. Two fences, and one more for pages newly
    /// active; none if the key is there.
    ///
    /// # Errors
    /// [`Error::TooLong`]; [`Error::Pool`] where the pool is full; [`Error::Corrupt`].
    pub fn insert(&self, op: &Op<'_, M>, key: &[u8], value: &[u8]) -> Result<bool> {
        self.alter(op, key, &mut |old| if old.is_none() { Fate::Set(value) } else { Fate::Keep })
    }

    /// Replaces the value of a key that is there; returns whether it is. Two fences, and one more for each of pages newly active and a
    /// page of the old value that is not; none if the key is not there.
    ///
    /// # Errors
    /// As [`insert`](Self::insert).
    pub fn update(&self, op: &Op<'_, M>, key: &[u8], value: &[u8]) -> Result<bool> {
        self.alter(op, key, &mut |old| if old.is_some() { Fate::Set(value) } else { Fate::Keep })
    }

    /// Maps a key to a value, whatever it was mapped to; returns whether the key is new. Fences as for an
    /// [`insert`](Self::insert) or [`update`](Self::update).
    ///
    /// # Errors
    /// As [`insert`](Self::insert).
    pub fn set(&self, op: &Op<'_, M>, key: &[u8], value: &[u8]) -> Result<bool> {
        let mut is_new = false;
        self.alter(op, key, &mut |old| {
            is_new = old.is_none();
            Fate::Set(value)
        })?;
        Ok(is_new)
    }

    /// As [`update`](Self::update); replaces the content of `old` by the value that was replaced.
    ///
    /// # Errors
    /// As [`insert`](Self::insert).
    pub fn replace(&self, op: &Op<'_, M>, key: &[u8], value: &[u8], old: &mut Vec<u8>) -> Result<bool> {
        self.alter(op, key, &mut |found| copy(found, old).map_or(Fate::Keep, |()| Fate::Set(value)))
    }

    /// Replaces the value of a key if it is `expected`; returns whether it was. Fences as for an [`update`](Self::update); none if
    /// it was not.
    ///
    /// # Errors
    /// As [`insert`](Self::insert).
    pub fn compare_and_set(&self, op: &Op<'_, M>, key: &[u8], expected: &[u8], value: &[u8]) -> Result<bool> {
        self.alter(op, key, &mut |old| if old == Some(expected) { Fate::Set(value) } else { Fate::Keep })
    }

    /// Removes a key; returns whether it was there. One fence, and one more if a page of the value is not active; where another key has
    /// the same hash, as an [`update`](Self::update). None if it was not there.
    ///
    /// # Errors
    /// [`Error::Corrupt`]; [`Error::Pool`] where the pool is full.
    pub fn remove(&self, op: &Op<'_, M>, key: &[u8]) -> Result<bool> {
        self.alter(op, key, &mut |old| if old.is_some() { Fate::Remove } else { Fate::Keep })
    }

    /// As [`remove`](Self::remove); replaces the content of `old` by the value that was removed.
    ///
    /// # Errors
    /// As [`remove`](Self::remove).
    pub fn take(&self, op: &Op<'_, M>, key: &[u8], old: &mut Vec<u8>) -> Result<bool> {
        self.alter(op, key, &mut |found| copy(found, old).map_or(Fate::Keep, |()| Fate::Remove))
    }

    /// Removes a key if its value is `expected`; returns whether it did. Fences as for a [`remove`](Self::remove).
    ///
    /// # Errors
    /// As [`remove`](Self::remove).
    pub fn compare_and_remove(&self, op: &Op<'_, M>, key: &[u8], expected: &[u8]) -> Result<bool> {
        self.alter(op, key, &mut |old| if old == Some(expected) { Fate::Remove } else { Fate::Keep })
    }

    /// Does with the entry of a key what `decide` says; returns whether that was a change. It may be asked several times: the last time
    /// counts.
    fn alter(&self, op: &Op<'_, M>, key: &[u8], decide: Decide<'_, '_>) -> Result<bool> {
        if key.len() > MAX_KEY {
            return Err(Error::TooLong { what: "a key", len: key.len() as u64, limit: MAX_KEY as u64 });
        }
        let hash = self.hash(key);
        loop {
            let Some(off) = self.blobs.find(op, hash)? else {
                let Fate::Set(value) = decide(None) else { return Ok(false) };
                if self.insert_first(op, hash, key, value)? {
                    return Ok(true);
                }
                continue;
            };
            let bytes = self.bytes(op, hash, off)?;
            let found = self.search(off, &bytes, key)?;
            let around = found.as_ref().map_or((&bytes[..], &[][..]), |entry| entry.around);
            let new = match decide(found.map(|entry| entry.value)) {
                Fate::Keep => return Ok(false),
                Fate::Set(value) => [around.0, &self.entry(key, value)?[..], around.1].concat(),
                Fate::Remove => [around.0, around.1].concat(),
            };
            let new = (!new.is_empty()).then_some(&new[..]);
            if self.blobs.change(op, hash, new, &|record| Ok(record.off() == off))? == Some(true) {
                return Ok(true);
            }
        }
    }

    fn insert_first(&self, op: &Op<'_, M>, hash: u64, key: &[u8], value: &[u8]) -> Result<bool> {
        self.blobs.insert(op, hash, &self.entry(key, value)?)
    }

    fn entry(&self, key: &[u8], value: &[u8]) -> Result<Vec<u8>> {
        let (len, limit) = (value.len() as u64, self.max_value().max(self.blobs.max_value() / 2));
        if len > limit {
            return Err(Error::TooLong { what: "a value", len, limit });
        }
        Ok(entry(key, value))
    }

    // ---- walking ----

    /// Appends the entries of a part of the table: the one at `from`, 0 for the first; returns where to go on, if it was not the last.
    /// Each entry was there at some moment of the call; in a walk over all parts none comes twice, and growth hides none.
    ///
    /// # Errors
    /// [`Error::Corrupt`].
    pub fn walk(&self, op: &Op<'_, M>, from: u64, into: &mut Vec<(Vec<u8>, Vec<u8>)>) -> Result<Option<u64>> {
        let mut records = Vec::new();
        let next = self.blobs.walk(op, from, &mut records);
        for (hash, bytes) in records {
            let mut left = &bytes[..];
            while !left.is_empty() {
                let Some((key, value, rest)) = split(left) else {
                    return Err(Error::Corrupt {
                        what: "an entry of a record with hash",
                        offset: hash,
                        found: left.len() as u64,
                    });
                };
                into.push((key.to_vec(), value.to_vec()));
                left = rest;
            }
        }
        next
    }

    /// Calls `f` for each entry, in no order. Each entry was there at some moment of the call; it is no snapshot. `f` may change the table.
    ///
    /// # Errors
    /// [`Error::Corrupt`].
    pub fn for_each(&self, op: &Op<'_, M>, mut f: impl FnMut(&[u8], &[u8])) -> Result<()> {
        let (mut entries, mut from) = (Vec::new(), Some(0));
        while let Some(part) = from {
            entries.clear();
            from = self.walk(op, part, &mut entries)?;
            entries.iter().for_each(|(key, value)| f(key, value));
        }
        Ok(())
    }

    /// Number of keys. Linear, and reads all records.
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
        self.blobs.is_empty(op)
    }

    /// Doubles the number of buckets: see [`HashTable::grow`](crate::HashTable::grow).
    ///
    /// # Errors
    /// As [`HashTable::grow`](crate::HashTable::grow).
    pub fn grow(&self, op: &Op<'_, M>) -> Result<()> {
        self.blobs.grow(op)
    }

    /// How the memory of the nodes is used; that of the records does not count.
    pub fn page_stats(&self, op: &Op<'_, M>) -> PageStats {
        self.blobs.page_stats(op)
    }

    /// Compares what is allocated with what is reachable, and keys with their places. No other operation may be open meanwhile.
    ///
    /// # Errors
    /// [`Error::Corrupt`].
    pub fn check(&self, op: &Op<'_, M>) -> Result<Vec<Finding>> {
        let (mut findings, mut from) = (self.blobs.check(op)?, Some(0));
        while let Some(part) = from {
            let mut records = Vec::new();
            from = self.blobs.walk(op, part, &mut records)?;
            for (hash, bytes) in records {
                let mut left = &bytes[..];
                while let Some((key, _, rest)) = split(left) {
                    if self.hash(key) != hash {
                        let off = self.blobs.find(op, hash)?.unwrap_or_default();
                        findings.push(Finding::Misplaced { off, key: hash });
                    }
                    left = rest;
                }
            }
        }
        Ok(findings)
    }
}

/// Copies a value that was found; `None`, and nothing in `into`, where there is none.
fn copy(found: Option<&[u8]>, into: &mut Vec<u8>) -> Option<()> {
    into.clear();
    into.extend_from_slice(found?);
    Some(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hash_decides_where_keys_lie_and_never_changes() {
        let keys: [&[u8]; 6] = [b"", b"a", b"\0", b"12345678", b"123456780", &[7; 100]];
        let hashes = keys.map(hash);
        println!("{hashes:#X?}");
        let distinct: std::collections::BTreeSet<_> = hashes.iter().collect();
        assert_eq!(distinct.len(), keys.len());
    }

    #[test]
    fn hashes_of_similar_keys_differ_in_their_upper_bits() {
        // 2^16 keys: by chance some 8000 pairs would share 18 bits, and none 40.
        let keys = (0..1u32 << 16).flat_map(|n| [n.to_le_bytes().to_vec(), format!("key{n}").into_bytes()]);
        let mut upper: Vec<u64> = keys.map(|key| hash(&key) >> 16).collect();
        upper.sort_unstable();
        upper.dedup();
        assert_eq!(upper.len(), 2 << 16);
    }

    #[test]
    fn entries_come_back_and_lengths_that_make_no_sense_do_not() {
        for (key, value) in [(&b""[..], &b""[..]), (b"key", b""), (b"", b"value"), (b"key", b"value")] {
            let bytes = [entry(key, value), entry(b"next", b"1")].concat();
            let (found, its, rest) = split(&bytes).unwrap();
            assert_eq!((found, its, split(rest).unwrap().0), (key, value, &b"next"[..]));
            assert!((0..LENGTHS + key.len() + value.len()).all(|len| split(&bytes[..len]).is_none()));
        }
        assert!(split(&[0xff; 64]).is_none());
    }

    /// A record under a hash that is not that of its keys.
    #[test]
    fn a_key_under_another_hash_is_misplaced() {
        let options = durix_pmem::PoolOptions::new().initial_size(1 << 20).max_size(1 << 20);
        let pool = options.create_on(durix_pmem::backing::HeapBacking::new(1 << 20), Hardware::PAGE_CACHE).unwrap();
        let map = BytesHash::open(&pool, "map").unwrap();
        let mut session = pool.session().unwrap();
        let op = session.enter().unwrap();
        assert!(map.insert(&op, b"key", b"value").unwrap());
        assert_eq!(map.check(&op).unwrap(), []);
        let (hash, mut bytes) = (map.hash(b"key"), Vec::new());
        assert!(map.blobs.get(&op, hash, &mut bytes).unwrap());
        assert!(map.blobs.insert(&op, hash ^ 1, &bytes).unwrap());
        let off = map.blobs.find(&op, hash ^ 1).unwrap().unwrap();
        assert_eq!(map.check(&op).unwrap(), [Finding::Misplaced { off, key: hash ^ 1 }]);
    }
}
