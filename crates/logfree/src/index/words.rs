//! The log-free maps as [`Index`]: maps of words, which take keys and values of exactly 8 bytes.
//!
//! Bytes are words in big-endian order, so the order of words is the order of bytes, and `u64`, `i64` and whatever else
//! encodes to 8 bytes keeps its order.

use durix_index::implement::{WORDS, Walk, WordRange, alone, key_word as key, value_word as value, writable};
use durix_index::{
    Cursor, Direction, Error, Finding, Index, IndexStats, KeyRange, Leftover, Limits, Openable, OrderedIndex, Result,
    Ticket,
};
use durix_pmem::pool::Durability;
use durix_pmem::{Medium, Op, Root, Session, Structure};
use std::fmt;

use super::order::{Indexed, Order};
use crate::leftovers;
use crate::map::OrderedWordMap;
use crate::words::Words;

/// Keys and values.
type Pairs = Vec<(u64, u64)>;

impl From<crate::Error> for Error {
    fn from(error: crate::Error) -> Self {
        use crate::Error as E;
        match error {
            E::Pool(error) => Error::of_structure(error),
            E::BadOption { option, value, rule } => durix_pmem::Error::BadOption { option, value, rule }.into(),
            E::TooLong { what, len, limit } => super::bytes::too_long(what, len, limit),
            // The name is added by whoever knows it: see `Entry::open`.
            E::Corrupt { what, offset, found } => Error::corrupt(what, offset, found),
        }
    }
}

pub(crate) fn finding(found: crate::Finding) -> Finding {
    Finding { offset: found.offset(), what: found.to_string() }
}

/// Bytes of all extents of an index.
pub(crate) fn extent_bytes<M: Medium>(root: &Root<M>, op: &Op<'_, M>) -> u64 {
    root.pool().space().extents(op, root.owner()).iter().map(|extent| extent.len).sum()
}

impl<S: Indexed<M>, M: Medium> Index<M> for Words<S, M> {
    fn root(&self) -> &Root<M> {
        self.map.root()
    }

    fn durability(&self) -> Durability {
        self.map.durability()
    }

    /// Nothing has to be waited for: a link cache is flushed at once.
    fn ticket(&self, op: &Op<'_, M>) -> Ticket {
        let flushed = self.map.sync(op);
        assert!(flushed.is_ok(), "an operation of another pool");
        Ticket::DURABLE
    }

    fn sync(&self, session: &mut Session<M>) -> Result<()> {
        Ok(self.map.sync(&session.enter()?)?)
    }

    fn limits(&self) -> Limits {
        WORDS
    }

    fn as_ordered(&self) -> Option<&dyn OrderedIndex<M>> {
        S::Order::of_words(self)
    }

    fn get(&self, op: &Op<'_, M>, bytes: &[u8], into: &mut Vec<u8>) -> Result<bool> {
        into.clear();
        let found = self.map.get(op, key(bytes)?)?;
        found.inspect(|word| into.extend_from_slice(&word.to_be_bytes()));
        Ok(found.is_some())
    }

    fn contains(&self, op: &Op<'_, M>, bytes: &[u8]) -> Result<bool> {
        Ok(self.map.contains(op, key(bytes)?)?)
    }

    fn cursor(&self) -> Box<dyn Cursor<M> + '_> {
        let order = Index::as_ordered(self).map(|_| Direction::Forward);
        Box::new(Walk::new(order, Some(0), move |op: &Op<'_, M>, from, into: &mut Pairs| {
            Ok(self.map.walk(op, from, into)?)
        }))
    }

    fn insert(&self, op: &Op<'_, M>, bytes: &[u8], new: &[u8]) -> Result<bool> {
        writable(self)?;
        let (key, value) = (key(bytes)?, value(new)?);
        // Each of the two takes effect at a moment of its own, and only if the key is, or is not, there.
        loop {
            if Words::update(self, op, key, value)?.is_some() {
                return Ok(false);
            }
            if Words::insert(self, op, key, value)? {
                return Ok(true);
            }
        }
    }

    fn insert_if_absent(&self, op: &Op<'_, M>, bytes: &[u8], new: &[u8]) -> Result<bool> {
        writable(self)?;
        Ok(Words::insert(self, op, key(bytes)?, value(new)?)?)
    }

    fn update(&self, op: &Op<'_, M>, bytes: &[u8], new: &[u8]) -> Result<bool> {
        writable(self)?;
        Ok(Words::update(self, op, key(bytes)?, value(new)?)?.is_some())
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
        // A value of another length cannot be the one that is there.
        let expected = match expected.map(value) {
            Some(Err(_)) => return Ok(false),
            Some(Ok(word)) => Some(word),
            None => None,
        };
        Ok(match (expected, new) {
            (None, None) => !self.map.contains(op, key)?,
            (None, Some(new)) => Words::insert(self, op, key, new)?,
            (Some(old), Some(new)) => Words::compare_and_set(self, op, key, old, new)?,
            (Some(old), None) => Words::compare_and_remove(self, op, key, old)?,
        })
    }

    fn remove(&self, op: &Op<'_, M>, bytes: &[u8]) -> Result<bool> {
        writable(self)?;
        Ok(Words::remove(self, op, key(bytes)?)?.is_some())
    }

    fn check(&self, session: &mut Session<M>) -> Result<Vec<Finding>> {
        let findings = alone(self, session, |op| Ok(Words::check(self, op)?))?;
        Ok(findings.into_iter().map(finding).collect())
    }

    fn stats(&self, session: &mut Session<M>) -> Result<IndexStats> {
        let keys = Index::count(self, session)?;
        let op = session.enter()?;
        Ok(IndexStats::new(keys, extent_bytes(self.map.root(), &op), self.map.volatile_bytes(&op)))
    }

    fn dump(&self, op: &Op<'_, M>, out: &mut dyn fmt::Write) -> fmt::Result {
        let mut cursor = self.cursor();
        while let Some((key, value)) = cursor.next(op).map_err(|_| fmt::Error)? {
            writeln!(out, "{} {}", key.escape_ascii(), value.escape_ascii())?;
        }
        Ok(())
    }
}

impl<S: Indexed<M> + OrderedWordMap<M>, M: Medium> OrderedIndex<M> for Words<S, M> {
    fn range(&self, range: &KeyRange, direction: Direction) -> Box<dyn Cursor<M> + '_> {
        let words = WordRange::of(range);
        match direction {
            Direction::Forward => Box::new(Walk::new(
                Some(direction),
                words.map(|w| w.first),
                move |op: &Op<'_, M>, from, into: &mut Pairs| {
                    let walked = self.map.walk(op, from, into);
                    let next = words.and_then(|words| words.cut_above(walked.as_ref().ok().copied().flatten(), into));
                    Ok(walked.map(|_| next)?)
                },
            )),
            Direction::Backward => Box::new(Walk::new(
                Some(direction),
                words.map(|w| w.last),
                move |op: &Op<'_, M>, to, into: &mut Pairs| {
                    // What comes with an error need not be the next.
                    let next = self.map.walk_back(op, to, into).inspect_err(|_| into.clear())?;
                    Ok(words.and_then(|words| words.cut_below(next, into)))
                },
            )),
        }
    }
}

impl<S: Indexed<M> + Structure<M, Error = crate::Error>, M: Medium> Openable<M> for Words<S, M> {
    const LIMITS: Limits = WORDS;
    const HAS_LEFTOVERS: bool = true;

    fn leftovers(op: &Op<'_, M>, root: &Root<M>) -> Vec<Leftover> {
        leftovers::read(op, root, S::LINES)
    }

    fn read_leftovers(_: &Op<'_, M>, _: &Root<M>, leftovers: &[Leftover], found: &mut dyn FnMut(&[u8], &[u8])) {
        leftovers.iter().for_each(|left| found(&left.key.to_be_bytes(), &left.word.to_be_bytes()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_buffered_link_cache_is_told_and_synced() {
        use crate::{HashTable, LinkCacheMode, Options};
        use durix_pmem::{Counting, Hardware, PoolOptions, backing::HeapBacking};
        let medium = Counting::new(Hardware::PAGE_CACHE);
        let options = PoolOptions::new().initial_size(1 << 20).max_size(4 << 20);
        let pool = options.create_on(HeapBacking::new(4 << 20), medium).unwrap();
        let table = |name, mode| HashTable::open_with(&pool, name, &Options::default().link_cache(mode, 4)).unwrap();
        let (strict, buffered) = (table("strict", LinkCacheMode::Durable), table("buffered", LinkCacheMode::Buffered));
        assert_eq!(Index::durability(&*strict), Durability::Strict);
        assert_eq!(Index::guarantee(&*buffered).durability, Durability::BufferedByKey);
        let mut session = pool.session().unwrap();
        let key = 7u64.to_be_bytes();
        assert!(Index::insert(&*buffered, &session.enter().unwrap(), &key, &key).unwrap());
        let fences = |sync: &mut dyn FnMut()| {
            let before = medium.counts().fences;
            sync();
            medium.counts().fences - before
        };
        assert_eq!(fences(&mut || Index::sync(&*buffered, &mut session).unwrap()), 1);
        assert_eq!(fences(&mut || Index::sync(&*buffered, &mut session).unwrap()), 0, "all is durable");
    }
}
