//! The tree as [`Index`]: a map of words, which takes keys and values of exactly 8 bytes. Bytes are words in big-endian order, so the
//! order of words is the order of bytes.

use std::fmt;
use std::ops::Bound;

use durix_index::implement::{STEP, alone, writable};
use durix_index::{
    Batch, Change, Cursor, Direction, Entry, Error, Finding, Index, IndexStats, KeyRange, Leftover, Lengths, Limits,
    Openable, OrderedIndex, Result,
};
use durix_pmem::pool::Durability;
use durix_pmem::{Medium, Op, Root, Session};

use crate::{DpTree, DpTreeBytes, DpTreeValues, MAX_BATCH, leftovers};

/// Bytes of a key and of a value.
const WORD: usize = size_of::<u64>();
const WORDS: Limits = Limits { key: Lengths::Exactly(WORD), value: Lengths::Exactly(WORD), batch: MAX_BATCH };

/// The kinds of index of this crate.
pub fn kinds<M: Medium>() -> Vec<Entry<M>> {
    let about = "ordered map of 8-byte keys and values, durable on return with one fence an update, atomic batches (DPTree); recovery reads a line a leaf and a log";
    vec![
        Entry::new::<DpTree<M>>("dptree", about).ordered(),
        Entry::new::<DpTreeValues<M>>("dptree-values", "as dptree, with values of any length").ordered().experimental(),
        Entry::new::<DpTreeBytes<M>>("dptree-bytes", "as dptree, with keys and values of any length")
            .ordered()
            .experimental(),
    ]
}

impl From<crate::Error> for Error {
    fn from(error: crate::Error) -> Self {
        match error {
            crate::Error::Pool(error) => Error::of_structure(error),
            crate::Error::Corrupt { what, offset, found } => Error::corrupt(what, offset, found),
            crate::Error::BatchTooLarge { keys, limit } => Error::BatchTooLarge { keys, limit },
            // Nobody sets the options of an index that is opened by its kind.
            bad @ crate::Error::BadShape { .. } => Error::Corrupt { index: String::new(), what: bad.to_string() },
        }
    }
}

fn word(role: &'static str, bytes: &[u8]) -> Result<u64> {
    let word = bytes.try_into().map_err(|_| Error::WrongLength { role, len: bytes.len(), expected: WORD })?;
    Ok(u64::from_be_bytes(word))
}

fn key(bytes: &[u8]) -> Result<u64> {
    word("key", bytes)
}

fn value(bytes: &[u8]) -> Result<u64> {
    word("value", bytes)
}

impl<M: Medium> Index<M> for DpTree<M> {
    fn root(&self) -> &Root<M> {
        DpTree::root(self)
    }

    fn durability(&self) -> Durability {
        Durability::Strict
    }

    fn limits(&self) -> Limits {
        WORDS
    }

    fn as_ordered(&self) -> Option<&dyn OrderedIndex<M>> {
        Some(self)
    }

    fn get(&self, op: &Op<'_, M>, bytes: &[u8], into: &mut Vec<u8>) -> Result<bool> {
        into.clear();
        let found = DpTree::get(self, op, key(bytes)?)?;
        found.inspect(|word| into.extend_from_slice(&word.to_be_bytes()));
        Ok(found.is_some())
    }

    fn contains(&self, op: &Op<'_, M>, bytes: &[u8]) -> Result<bool> {
        Ok(DpTree::contains(self, op, key(bytes)?)?)
    }

    fn get_many(&self, op: &Op<'_, M>, keys: &[&[u8]], found: &mut dyn FnMut(usize, Option<&[u8]>)) -> Result<()> {
        let words = keys.iter().map(|bytes| key(bytes)).collect::<Result<Vec<_>>>()?;
        DpTree::get_many(self, op, &words, |number, word| match word {
            Some(word) => found(number, Some(&word.to_be_bytes())),
            None => found(number, None),
        })?;
        Ok(())
    }

    fn count(&self, session: &mut Session<M>) -> Result<u64> {
        Ok(DpTree::len(self, &session.enter()?))
    }

    fn cursor(&self) -> Box<dyn Cursor<M> + '_> {
        self.range(&KeyRange::all(), Direction::Forward)
    }

    fn insert(&self, op: &Op<'_, M>, bytes: &[u8], new: &[u8]) -> Result<bool> {
        writable(self)?;
        Ok(DpTree::insert(self, op, key(bytes)?, value(new)?)?)
    }

    fn update(&self, op: &Op<'_, M>, bytes: &[u8], new: &[u8]) -> Result<bool> {
        writable(self)?;
        Ok(DpTree::update(self, op, key(bytes)?, value(new)?)?)
    }

    fn compare_and_set(
        &self,
        op: &Op<'_, M>,
        bytes: &[u8],
        expected: Option<&[u8]>,
        new: Option<&[u8]>,
    ) -> Result<bool> {
        writable(self)?;
        let (key, new) = (key(bytes)?, new.map(value).transpose()?);
        match expected.map(value).transpose() {
            Ok(expected) => Ok(DpTree::compare_and_set(self, op, key, expected, new)?),
            // A value of another length cannot be the one that is there.
            Err(_) => Ok(false),
        }
    }

    fn remove(&self, op: &Op<'_, M>, bytes: &[u8]) -> Result<bool> {
        writable(self)?;
        Ok(DpTree::remove(self, op, key(bytes)?)?)
    }

    fn apply(&self, op: &Op<'_, M>, batch: &Batch) -> Result<()> {
        writable(self)?;
        let word_of = |(bytes, change): (&[u8], Change<'_>)| Ok((key(bytes)?, change.map(value).transpose()?));
        let mut changes = batch.iter().map(word_of).collect::<Result<Vec<_>>>()?;
        Ok(DpTree::change_many(self, op, &mut changes)?)
    }

    fn batch_is_atomic(&self) -> bool {
        true
    }

    fn check(&self, session: &mut Session<M>) -> Result<Vec<Finding>> {
        alone(self, session, |op| Ok(DpTree::check(self, op)))
    }

    fn stats(&self, session: &mut Session<M>) -> Result<IndexStats> {
        let stats = DpTree::stats(self, &session.enter()?);
        let all = IndexStats::new(stats.keys, stats.unit_bytes + stats.log_bytes, Some(stats.volatile_bytes));
        let all =
            all.with("ranges", stats.ranges).with("leaves", stats.leaves).with("keys in leaves", stats.keys_in_leaves);
        let all = all.with("buffered", stats.active + stats.frozen).with("free units", stats.free_units);
        Ok(all.with("log pages", stats.log_pages).with("free log pages", stats.free_log_pages))
    }

    fn dump(&self, op: &Op<'_, M>, out: &mut dyn fmt::Write) -> fmt::Result {
        DpTree::dump(self, op, out)
    }
}

impl<M: Medium> OrderedIndex<M> for DpTree<M> {
    fn range(&self, range: &KeyRange, direction: Direction) -> Box<dyn Cursor<M> + '_> {
        let ends = words_of(range);
        let next = ends.map(|(low, high)| if direction == Direction::Forward { low } else { high });
        let ends = ends.unwrap_or((0, 0));
        Box::new(Walk {
            tree: self,
            direction,
            ends,
            next,
            pairs: Vec::new(),
            given: 0,
            key: [0; WORD],
            value: [0; WORD],
        })
    }
}

impl<M: Medium> Openable<M> for DpTree<M> {
    const LIMITS: Limits = WORDS;
    const HAS_LEFTOVERS: bool = true;

    fn leftovers(op: &Op<'_, M>, root: &Root<M>) -> Vec<Leftover> {
        leftovers::read(op, root)
    }

    fn read_leftovers(_: &Op<'_, M>, _: &Root<M>, leftovers: &[Leftover], found: &mut dyn FnMut(&[u8], &[u8])) {
        leftovers.iter().for_each(|left| found(&left.key.to_be_bytes(), &left.word.to_be_bytes()));
    }
}

/// The smallest and the largest key of 8 bytes that lie in a range of bytes, if there are any.
fn words_of(range: &KeyRange) -> Option<(u64, u64)> {
    let low = match &range.lower {
        Bound::Unbounded => 0,
        // A key that goes on after the bound's bytes comes after the bound.
        Bound::Included(bytes) if bytes.len() <= WORD => padded(bytes),
        Bound::Excluded(bytes) if bytes.len() < WORD => padded(bytes),
        Bound::Included(bytes) | Bound::Excluded(bytes) => padded(bytes).checked_add(1)?,
    };
    let high = match &range.upper {
        Bound::Unbounded => u64::MAX,
        Bound::Included(bytes) if bytes.len() >= WORD => padded(bytes),
        Bound::Excluded(bytes) if bytes.len() > WORD => padded(bytes),
        Bound::Included(bytes) | Bound::Excluded(bytes) => padded(bytes).checked_sub(1)?,
    };
    (low <= high).then_some((low, high))
}

/// The first 8 bytes as a word; missing ones are zero.
fn padded(bytes: &[u8]) -> u64 {
    let mut word = [0; WORD];
    word.iter_mut().zip(bytes).for_each(|(to, from)| *to = *from);
    u64::from_be_bytes(word)
}

/// A walk over the pairs of a range of keys.
struct Walk<'t, M: Medium> {
    tree: &'t DpTree<M>,
    direction: Direction,
    /// Smallest and largest key.
    ends: (u64, u64),
    next: Option<u64>,
    /// The last batch, and how many of its pairs were given.
    pairs: Vec<(u64, u64)>,
    given: usize,
    key: [u8; WORD],
    value: [u8; WORD],
}

impl<M: Medium> Cursor<M> for Walk<'_, M> {
    fn next(&mut self, op: &Op<'_, M>) -> Result<Option<(&[u8], &[u8])>> {
        let (low, high) = self.ends;
        while self.given == self.pairs.len() {
            let Some(from) = self.next.filter(|from| (low..=high).contains(from)) else { return Ok(None) };
            self.pairs.clear();
            self.given = 0;
            self.next = self.tree.walk(op, from, self.direction, STEP, &mut self.pairs)?;
            let beyond = self.pairs.iter().rev().take_while(|(key, _)| !(low..=high).contains(key)).count();
            self.pairs.truncate(self.pairs.len() - beyond);
        }
        let Some((key, value)) = self.pairs.get(self.given) else { return Ok(None) };
        self.given += 1;
        (self.key, self.value) = (key.to_be_bytes(), value.to_be_bytes());
        Ok(Some((&self.key, &self.value)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_of_bytes_are_ranges_of_words() {
        let keys = [0, 1, 255, 256, 1 << 56, (1 << 56) + 1, u64::MAX - 1, u64::MAX].map(u64::to_be_bytes);
        let mut bounds: Vec<Vec<u8>> = vec![Vec::new()];
        for key in &keys {
            let longer = |byte| [&key[..], &[byte]].concat();
            bounds.extend([key.to_vec(), key[..7].to_vec(), key[..1].to_vec(), longer(0), longer(255)]);
        }
        type Make = fn(&[u8]) -> Bound<&[u8]>;
        let make: [Make; 3] = [|bytes| Bound::Included(bytes), |bytes| Bound::Excluded(bytes), |_| Bound::Unbounded];
        for (lower, upper) in bounds.iter().flat_map(|lower| bounds.iter().map(move |upper| (lower, upper))) {
            for (a, b) in (0..9).map(|i| (make[i / 3], make[i % 3])) {
                let range = KeyRange::new(a(lower), b(upper));
                let words = words_of(&range);
                for key in &keys {
                    let within = words.is_some_and(|(low, high)| (low..=high).contains(&u64::from_be_bytes(*key)));
                    assert_eq!(within, range.contains(key), "{key:?} in {range:?}");
                }
            }
        }
    }
}
