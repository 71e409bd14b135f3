//! The log-free maps with records as [`Index`]: byte strings for values, with keys of exactly 8 bytes, or byte strings for both.
//!
//! Keys of 8 bytes are words in big-endian order, as in `words`.

use durix_index::implement::{WORD, Walk, WordRange, alone, key_word as key, writable};
use durix_index::{
    Cursor, Direction, Error, Finding, Index, IndexStats, KeyRange, Leftover, Lengths, Limits, Openable, OrderedIndex,
    Result,
};
use durix_pmem::pool::Durability;
use durix_pmem::{Medium, Op, Root, Session, Structure};
use std::fmt;

use super::order::{Indexed, Order};
use super::words::{extent_bytes, finding};
use crate::leftovers::{self, Lines};
use crate::map::OrderedWordMap;
use crate::records::{RecordMap, read_blobs, read_bytes};
use crate::{Blobs, BytesHash, MAX_KEY, MAX_VALUE, Options};

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

/// Implements [`Index`] for a map with records: `$key` makes its keys of bytes, `$walk` appends pairs from a place on.
///
/// A macro, since keys of the two maps have different types, and [`Index`] is another crate's: a trait over both could not implement it.
macro_rules! record_index {
    ([$($generic:tt)*] $map:ty, $limits:expr, $key:ident, walk: $walk:expr $(, ordered: $as_ordered:item)?) => {
        impl<$($generic)*> Index<M> for $map {
            fn root(&self) -> &Root<M> {
                <$map>::root(self)
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
                Ok(<$map>::get(self, op, $key(bytes)?, into)?)
            }

            fn contains(&self, op: &Op<'_, M>, bytes: &[u8]) -> Result<bool> {
                Ok(<$map>::contains(self, op, $key(bytes)?)?)
            }

            fn cursor(&self) -> Box<dyn Cursor<M> + '_> {
                let walk: fn(&$map, &Op<'_, M>, u64, &mut Pairs) -> Result<Option<u64>> = $walk;
                let order = Index::as_ordered(self).map(|_| Direction::Forward);
                Box::new(Walk::new(order, Some(0), move |op: &Op<'_, M>, from, into: &mut Pairs| walk(self, op, from, into)))
            }

            fn insert(&self, op: &Op<'_, M>, bytes: &[u8], new: &[u8]) -> Result<bool> {
                writable(self)?;
                let key = $key(bytes)?;
                // Each of the two takes effect at a moment of its own, and only if the key is, or is not, there.
                loop {
                    if <$map>::update(self, op, key, new)? {
                        return Ok(false);
                    }
                    if <$map>::insert(self, op, key, new)? {
                        return Ok(true);
                    }
                }
            }

            fn insert_if_absent(&self, op: &Op<'_, M>, bytes: &[u8], new: &[u8]) -> Result<bool> {
                writable(self)?;
                Ok(<$map>::insert(self, op, $key(bytes)?, new)?)
            }

            fn update(&self, op: &Op<'_, M>, bytes: &[u8], new: &[u8]) -> Result<bool> {
                writable(self)?;
                Ok(<$map>::update(self, op, $key(bytes)?, new)?)
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
                    (None, None) => !<$map>::contains(self, op, key)?,
                    (None, Some(new)) => <$map>::insert(self, op, key, new)?,
                    (Some(old), Some(new)) => <$map>::compare_and_set(self, op, key, old, new)?,
                    (Some(old), None) => <$map>::compare_and_remove(self, op, key, old)?,
                })
            }

            fn remove(&self, op: &Op<'_, M>, bytes: &[u8]) -> Result<bool> {
                writable(self)?;
                Ok(<$map>::remove(self, op, $key(bytes)?)?)
            }

            fn check(&self, session: &mut Session<M>) -> Result<Vec<Finding>> {
                let findings = alone(self, session, |op| Ok(<$map>::check(self, op)?))?;
                Ok(findings.into_iter().map(finding).collect())
            }

            fn stats(&self, session: &mut Session<M>) -> Result<IndexStats> {
                let keys = Index::count(self, session)?;
                let op = session.enter()?;
                Ok(IndexStats::new(keys, extent_bytes(<$map>::root(self), &op), None))
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

record_index!([S: Indexed<M>, M: Medium] Blobs<S, M>, VALUES, key, walk: |map, op, from, into| {
    let mut entries = Vec::new();
    let next = map.walk(op, from, &mut entries);
    into.extend(pairs(entries));
    Ok(next?)
}, ordered: fn as_ordered(&self) -> Option<&dyn OrderedIndex<M>> { S::Order::of_blobs(self) });

record_index!([M: Medium] BytesHash<M>, BYTES, bytes, walk: |map, op, from, into| Ok(map.walk(op, from, into)?));

impl<S: Indexed<M> + OrderedWordMap<M>, M: Medium> OrderedIndex<M> for Blobs<S, M> {
    fn range(&self, range: &KeyRange, direction: Direction) -> Box<dyn Cursor<M> + '_> {
        let words = WordRange::of(range);
        match direction {
            Direction::Forward => Box::new(Walk::new(
                Some(direction),
                words.map(|w| w.first),
                move |op: &Op<'_, M>, from, into: &mut Pairs| {
                    let mut entries = Vec::new();
                    let walked = self.walk(op, from, &mut entries);
                    let next = walked.as_ref().ok().copied().flatten();
                    let next = words.and_then(|words| words.cut_above(next, &mut entries));
                    into.extend(pairs(entries));
                    Ok(walked.map(|_| next)?)
                },
            )),
            Direction::Backward => Box::new(Walk::new(
                Some(direction),
                words.map(|w| w.last),
                move |op: &Op<'_, M>, to, into: &mut Pairs| {
                    let mut entries = Vec::new();
                    let next = self.walk_back(op, to, &mut entries)?;
                    let next = words.and_then(|words| words.cut_below(next, &mut entries));
                    into.extend(pairs(entries));
                    Ok(next)
                },
            )),
        }
    }
}

impl<S, M: Medium> Openable<M> for Blobs<S, M>
where
    S: Indexed<M> + RecordMap<M> + Structure<M, Options = Options, Error = crate::Error>,
{
    const LIMITS: Limits = VALUES;
    const HAS_LEFTOVERS: bool = true;

    fn leftovers(op: &Op<'_, M>, root: &Root<M>) -> Vec<Leftover> {
        leftovers::read(op, root, S::LINES)
    }

    fn read_leftovers(op: &Op<'_, M>, root: &Root<M>, all: &[Leftover], found: &mut dyn FnMut(&[u8], &[u8])) {
        read_blobs(op, root, all, &mut |key, value| found(&key.to_be_bytes(), value));
    }
}

impl<M: Medium> Openable<M> for BytesHash<M> {
    const LIMITS: Limits = BYTES;
    const HAS_LEFTOVERS: bool = true;

    fn leftovers(op: &Op<'_, M>, root: &Root<M>) -> Vec<Leftover> {
        leftovers::read(op, root, Lines::Hash)
    }

    fn read_leftovers(op: &Op<'_, M>, root: &Root<M>, all: &[Leftover], found: &mut dyn FnMut(&[u8], &[u8])) {
        read_bytes(op, root, all, found);
    }
}

/// What a map says of a key or a value that is too long.
pub(crate) fn too_long(what: &str, len: u64, limit: u64) -> Error {
    let (len, limit) = (usize::try_from(len).unwrap_or(usize::MAX), usize::try_from(limit).unwrap_or(usize::MAX));
    if what == "a key" { Error::KeyTooLong { len, limit } } else { Error::ValueTooLong { len, limit } }
}
