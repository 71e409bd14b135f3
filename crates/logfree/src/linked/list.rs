//! A sorted list.

use std::ops::{Bound, RangeBounds};

use durix_pmem::{Hardware, Kind, Medium, Off, OffsetSet, Op, Root, Session, Structure, Word};

use crate::error::{Error, Result};
use crate::finding::Finding;
use crate::layout::{LAYOUT_VERSION, Link, ROOT_HEAD};
use crate::linked::chain::{self, Chain, Nothing};
use crate::linked::link_cache::on_chain;
use crate::linked::map_calls::{link_cache_calls, map_calls};
use crate::options::Options;
use crate::pages::{PageStats, Pages, Reachable};

/// Entries that an iteration takes in one go.
const BATCH: usize = 64;

/// A durable lock-free sorted list of 8-byte keys and values. Operations are linear in its length: it is for small
/// numbers of keys.
///
/// All operations take the calling thread's [`Op`]; an update is durable when it returns.
pub struct List<M: Medium = Hardware> {
    pages: Pages<M>,
    head: Off<Word<Link>>,
}

impl<M: Medium> Structure<M> for List<M> {
    const KIND: Kind = Kind { tag: *b"LF-LIST ", version: LAYOUT_VERSION };
    const TALLIES: bool = true;
    type Options = Options;
    type Error = Error;

    fn create(session: &mut Session<M>, root: &Root<M>, options: &Options) -> Result<()> {
        let op = session.enter()?;
        Pages::create(&op, root, options)?;
        // Durable before the index goes live.
        op.write_back(root.words(&op));
        Ok(())
    }

    fn open(session: &mut Session<M>, root: Root<M>, options: &Options) -> Result<Self> {
        let op = session.enter()?;
        let head = op.off_of(&root.words(&op)[ROOT_HEAD]).cast();
        let (pages, found) = Pages::open(&op, root, &[], options)?;
        let list = List { pages: pages.with_link_cache(), head };
        let mut reachable = OffsetSet::default();
        let mut last = op.at(list.head);
        list.chain(&op)?.walk(|link, node, _| {
            // PERSIST LF-N8: flush.
            op.write_back(link);
            last = &op.at(node).next;
            if list.pages.is_in(&found, node) {
                reachable.insert(node.get());
            }
        })?;
        // PERSIST LF-N8: flush+fence, of all links.
        op.write_back(last);
        op.fence();
        drop(op);
        list.pages.recover(session, &found, &Reachable::Set(&reachable))?;
        Ok(list)
    }
}

map_calls!(List, "list", "walks it once");
link_cache_calls!(List);

impl<M: Medium> List<M> {
    #[inline(always)]
    fn chain<'a, 's>(&'a self, op: &'a Op<'s, M>) -> Result<Chain<'a, 's, M>> {
        self.pages.expect_own(op)?;
        Ok(Chain { op, pages: &self.pages, head: op.at(self.head), above: Nothing })
    }

    #[cfg(test)]
    pub(crate) fn test_chain<'a, 's>(&'a self, op: &'a Op<'s, M>) -> Chain<'a, 's, M> {
        self.chain(op).expect("the operation is one of its pool")
    }

    /// As [`insert`](Self::insert), with what `value` gives when it is needed, and may give nothing.
    pub(crate) fn insert_with(&self, op: &Op<'_, M>, key: u64, value: impl Fn() -> Option<u64>) -> Result<bool> {
        on_chain!(self, self.chain(op)?, insert(key, value))
    }

    /// Replaces a value by what `new` makes of it. Returns the value found, and whether it was replaced.
    pub(crate) fn update_with(
        &self,
        op: &Op<'_, M>,
        key: u64,
        new: impl Fn(u64) -> Option<u64>,
    ) -> Result<Option<(u64, bool)>> {
        on_chain!(self, self.chain(op)?, update(key, new))
    }

    /// Removes a key if its value is `wanted`. Returns the value found, and whether it was removed.
    pub(crate) fn remove_with(
        &self,
        op: &Op<'_, M>,
        key: u64,
        wanted: impl Fn(u64) -> bool,
    ) -> Result<Option<(u64, bool)>> {
        on_chain!(self, self.chain(op)?, remove_if(key, wanted))
    }

    /// Removes a key; returns its value. One fence; none if it is not there.
    ///
    /// # Errors
    /// [`Error::Corrupt`]; [`Error::Pool`] where the table of active pages has to grow and the pool is full.
    pub fn remove(&self, op: &Op<'_, M>, key: u64) -> Result<Option<u64>> {
        on_chain!(self, self.chain(op)?, remove(key))
    }

    /// The value of a key. No fence, unless it was changed so recently that this read has to make it durable.
    ///
    /// # Errors
    /// [`Error::Corrupt`].
    pub fn get(&self, op: &Op<'_, M>, key: u64) -> Result<Option<u64>> {
        on_chain!(self, self.chain(op)?, get(key))
    }

    /// Appends some entries from key `from` on, ascending; returns where to go on, if that was not all. Each entry was there
    /// at some moment of the call.
    ///
    /// # Errors
    /// [`Error::Corrupt`].
    pub fn walk(&self, op: &Op<'_, M>, from: u64, into: &mut Vec<(u64, u64)>) -> Result<Option<u64>> {
        let all = on_chain!(self, self.chain(op)?, collect(from, BATCH, into))?;
        Ok(into.last().and_then(|(key, _)| key.checked_add(1)).filter(|_| !all))
    }

    /// Appends some entries from key `to` down, descending; as [`walk`](Self::walk). Links lead one way, so each call walks
    /// up to `to` from the first key on.
    ///
    /// # Errors
    /// [`Error::Corrupt`].
    pub fn walk_back(&self, op: &Op<'_, M>, to: u64, into: &mut Vec<(u64, u64)>) -> Result<Option<u64>> {
        let all = on_chain!(self, self.chain(op)?, collect_back(to, BATCH, into))?;
        Ok(into.last().and_then(|(key, _)| key.checked_sub(1)).filter(|_| !all))
    }

    /// Calls `f` for each entry of a range, ascending. Each entry was there at some moment of the call; it is no snapshot.
    /// `f` may change the list.
    ///
    /// # Errors
    /// [`Error::Corrupt`].
    pub fn range(&self, op: &Op<'_, M>, range: impl RangeBounds<u64>, mut f: impl FnMut(u64, u64)) -> Result<()> {
        let mut from = match range.start_bound() {
            Bound::Included(key) => Some(*key),
            Bound::Excluded(key) => key.checked_add(1),
            Bound::Unbounded => Some(0),
        };
        let mut batch = Vec::new();
        while let Some(first) = from {
            batch.clear();
            let all = on_chain!(self, self.chain(op)?, collect(first, BATCH, &mut batch))?;
            for (key, value) in &batch {
                if !range.contains(key) {
                    return Ok(());
                }
                f(*key, *value);
            }
            from = batch.last().and_then(|(key, _)| key.checked_add(1)).filter(|_| !all);
        }
        Ok(())
    }

    /// Calls `f` for each entry, ascending; as [`range`](Self::range).
    ///
    /// # Errors
    /// As [`range`](Self::range).
    pub fn for_each(&self, op: &Op<'_, M>, f: impl FnMut(u64, u64)) -> Result<()> {
        self.range(op, .., f)
    }

    /// Whether there is no key.
    ///
    /// # Errors
    /// As [`range`](Self::range).
    pub fn is_empty(&self, op: &Op<'_, M>) -> Result<bool> {
        let mut first = Vec::new();
        on_chain!(self, self.chain(op)?, collect(0, 1, &mut first))?;
        Ok(first.is_empty())
    }

    /// Compares what is allocated with what is reachable. No other operation may be open meanwhile.
    ///
    /// # Errors
    /// [`Error::Corrupt`].
    pub fn check(&self, op: &Op<'_, M>) -> Result<Vec<Finding>> {
        let (mut reachable, mut findings) = (OffsetSet::default(), Vec::new());
        // A node that comes twice is an error of the walk.
        self.chain(op)?.walk(|_, node, _| {
            reachable.insert(node.get());
            findings.extend(chain::damaged(op, node));
        })?;
        findings.extend(self.pages.check(op, &reachable, &[]));
        findings.extend(self.pages.check_tally(op, |add| self.for_each(op, add))?);
        Ok(findings)
    }
}
