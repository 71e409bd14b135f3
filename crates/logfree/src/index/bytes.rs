//! The log-free maps with records as [`Index`]: byte strings for values, with keys of exactly 8 bytes, or byte strings for both.
//!
//! Keys of 8 bytes are words in big-endian order, as in `words`.

use durix_index::implement::{WORD, Walk, WordRange, alone, key_word as key, writable};
use durix_index::{
    Cursor, Direction, Error, Finding, Index, IndexStats, KeyRange, Leftover, Lengths, Limits, Openable, OrderedIndex,
    Result,
};
use durix_pmem::pool::Durability;
use durix_pmem::{Medium, Op, Root, Session};
use std::fmt;

use super::words::{extent_bytes, finding};
use crate::leftovers::{self, Lines};
use crate::records::{read_blobs, read_bytes};
use crate::{BlobBst, BlobHash, BlobList, BlobSkipList, BytesHash, MAX_KEY, MAX_VALUE};

/// Keys and values.
type Pairs = Vec<(Vec<u8>, Vec<u8>)>;

/// Of maps with keys of 8 bytes, in pages of the default size.
const VALUES: Limits = Limits { key: Lengths::Exactly(WORD), value: Lengths::UpTo(MAX_VALUE), batch: usize::MAX };

/// Of maps with byte strings for keys.
const BYTES: Limits =
    Limits { key: Lengths::UpTo(MAX_KEY), value: Lengths::UpTo(crate::MAX_BYTES_VALUE), batch: usize::MAX };

/// Limits of a map with pages of another size: that of its values.
fn limited(limits: Limits, max_value: u64) -> Limits {
    let most = usize::try_from(max_value).unwrap_or(usize::MAX);
    Limits { value: Lengths::UpTo(most), ..limits }
}

/// The key as it is, if it is not too long.
fn bytes(key: &[u8]) -> Result<&[u8]> {
    BYTES.check(key, None).map(|()| key)
}

/// Entries of 8-byte keys as pairs.
fn pairs(entries: Vec<(u64, Vec<u8>)>) -> impl Iterator<Item = (Vec<u8>, Vec<u8>)> {
    entries.into_iter().map(|(key, value)| (key.to_be_bytes().to_vec(), value))
}

/// Implements [`Index`] for a map of byte strings. `key` makes its keys of bytes, `walk` appends pairs from a place on.
macro_rules! long_index {
    ($map:ident, $limits:expr, $key:ident, walk: $walk:expr $(, ordered: $as_ordered:item)?) => {
        impl<M: Medium> Index<M> for $map<M> {
            fn root(&self) -> &Root<M> {
                $map::root(self)
            }

            fn durability(&self) -> Durability {
                Durability::Strict
            }

            fn limits(&self) -> Limits {
                limited($limits, self.max_value())
            }

            $($as_ordered)?

            fn get(&self, op: &Op<'_, M>, bytes: &[u8], into: &mut Vec<u8>) -> Result<bool> {
                into.clear();
                Ok($map::get(self, op, $key(bytes)?, into)?)
            }

            fn contains(&self, op: &Op<'_, M>, bytes: &[u8]) -> Result<bool> {
                Ok($map::contains(self, op, $key(bytes)?)?)
            }

            fn cursor(&self) -> Box<dyn Cursor<M> + '_> {
                let walk: fn(&$map<M>, &Op<'_, M>, u64, &mut Pairs) -> Result<Option<u64>> = $walk;
                let order = Index::as_ordered(self).map(|_| Direction::Forward);
                Box::new(Walk::new(order, Some(0), move |op: &Op<'_, M>, from, into: &mut Pairs| walk(self, op, from, into)))
            }

            fn insert(&self, op: &Op<'_, M>, bytes: &[u8], new: &[u8]) -> Result<bool> {
                writable(self)?;
                let key = $key(bytes)?;
                // Each of the two takes effect at a moment of its own, and only if the key is, or is not, there.
                loop {
                    if $map::update(self, op, key, new)? {
                        return Ok(false);
                    }
                    if $map::insert(self, op, key, new)? {
                        return Ok(true);
                    }
                }
            }

            fn insert_if_absent(&self, op: &Op<'_, M>, bytes: &[u8], new: &[u8]) -> Result<bool> {
                writable(self)?;
                Ok($map::insert(self, op, $key(bytes)?, new)?)
            }

            fn update(&self, op: &Op<'_, M>, bytes: &[u8], new: &[u8]) -> Result<bool> {
                writable(self)?;
                Ok($map::update(self, op, $key(bytes)?, new)?)
            }

            fn compare_and_set(
                &self,
                op: &Op<'_, M>,
                bytes: &[u8],
                expected: Option<&[u8]>,
                new: Option<&[u8]>,
            ) -> Result<bool> {
                writable(self)?;
                self.limits().check(bytes, new)?;
                let key = $key(bytes)?;
                Ok(match (expected, new) {
                    (None, None) => !$map::contains(self, op, key)?,
                    (None, Some(new)) => $map::insert(self, op, key, new)?,
                    (Some(old), Some(new)) => $map::compare_and_set(self, op, key, old, new)?,
                    (Some(old), None) => $map::compare_and_remove(self, op, key, old)?,
                })
            }

            fn remove(&self, op: &Op<'_, M>, bytes: &[u8]) -> Result<bool> {
                writable(self)?;
                Ok($map::remove(self, op, $key(bytes)?)?)
            }

            fn check(&self, session: &mut Session<M>) -> Result<Vec<Finding>> {
                let findings = alone(self, session, |op| Ok($map::check(self, op)?))?;
                Ok(findings.into_iter().map(finding).collect())
            }

            fn stats(&self, session: &mut Session<M>) -> Result<IndexStats> {
                let keys = Index::count(self, session)?;
                let op = session.enter()?;
                Ok(IndexStats::new(keys, extent_bytes($map::root(self), &op), None))
            }

            fn dump(&self, op: &Op<'_, M>, out: &mut dyn fmt::Write) -> fmt::Result {
                let mut cursor = self.cursor();
                while let Some((key, value)) = cursor.next(op).map_err(|_| fmt::Error)? {
                    writeln!(out, "{} {}", key.escape_ascii(), value.escape_ascii())?;
                }
                Ok(())
            }
        }
    };
}

/// Implements [`Openable`] for a map with records, whose lines are read as `lines` says, and its records by `read`.
macro_rules! openable {
    ($($map:ident, $limits:expr, $lines:expr, $read:expr;)*) => {$(
        impl<M: Medium> Openable<M> for $map<M> {
            const LIMITS: Limits = $limits;
            const HAS_LEFTOVERS: bool = true;

            fn leftovers(op: &Op<'_, M>, root: &Root<M>) -> Vec<Leftover> {
                leftovers::read(op, root, $lines)
            }

            fn read_leftovers(op: &Op<'_, M>, root: &Root<M>, all: &[Leftover], found: &mut dyn FnMut(&[u8], &[u8])) {
                $read(op, root, all, found);
            }
        }
    )*};
}

/// Reads the records of keys of 8 bytes.
fn read_values<M: Medium>(op: &Op<'_, M>, root: &Root<M>, all: &[Leftover], found: &mut dyn FnMut(&[u8], &[u8])) {
    read_blobs(op, root, all, &mut |key, value| found(&key.to_be_bytes(), value));
}

openable! {
    BlobList, VALUES, Lines::List, read_values;
    BlobSkipList, VALUES, Lines::Skip, read_values;
    BlobBst, VALUES, Lines::Tree, read_values;
    BlobHash, VALUES, Lines::Hash, read_values;
    BytesHash, BYTES, Lines::Hash, read_bytes;
}

/// As [`long_index`], for ordered maps with keys of 8 bytes.
macro_rules! long_ordered_index {
    ($map:ident) => {
        long_index!($map, VALUES, key, walk: |map, op, from, into| {
            let mut entries = Vec::new();
            let next = map.walk(op, from, &mut entries);
            into.extend(pairs(entries));
            Ok(next?)
        }, ordered: fn as_ordered(&self) -> Option<&dyn OrderedIndex<M>> { Some(self) });

        impl<M: Medium> OrderedIndex<M> for $map<M> {
            fn range(&self, range: &KeyRange, direction: Direction) -> Box<dyn Cursor<M> + '_> {
                let words = WordRange::of(range);
                match direction {
                    Direction::Forward => Box::new(Walk::new(Some(direction), words.map(|w| w.first), move |op: &Op<'_, M>, from, into: &mut Pairs| {
                        let mut entries = Vec::new();
                        let walked = self.walk(op, from, &mut entries);
                        let next = walked.as_ref().ok().copied().flatten();
                        let next = words.and_then(|words| words.cut_above(next, &mut entries));
                        into.extend(pairs(entries));
                        Ok(walked.map(|_| next)?)
                    })),
                    Direction::Backward => Box::new(Walk::new(Some(direction), words.map(|w| w.last), move |op: &Op<'_, M>, to, into: &mut Pairs| {
                        let mut entries = Vec::new();
                        let next = self.walk_back(op, to, &mut entries)?;
                        let next = words.and_then(|words| words.cut_below(next, &mut entries));
                        into.extend(pairs(entries));
                        Ok(next)
                    })),
                }
            }
        }
    };
}

long_ordered_index!(BlobList);
long_ordered_index!(BlobSkipList);
long_ordered_index!(BlobBst);
long_index!(BlobHash, VALUES, key, walk: |map, op, from, into| {
    let mut entries = Vec::new();
    let next = map.walk(op, from, &mut entries);
    into.extend(pairs(entries));
    Ok(next?)
});
long_index!(BytesHash, BYTES, bytes, walk: |map, op, from, into| Ok(map.walk(op, from, into)?));

/// What a map says of a key or a value that is too long.
pub(crate) fn too_long(what: &str, len: u64, limit: u64) -> Error {
    let (len, limit) = (usize::try_from(len).unwrap_or(usize::MAX), usize::try_from(limit).unwrap_or(usize::MAX));
    if what == "a key" { Error::KeyTooLong { len, limit } } else { Error::ValueTooLong { len, limit } }
}
