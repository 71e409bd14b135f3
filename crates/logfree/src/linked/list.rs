//! A sorted list.

use durix_pmem::pool::Durability;
use durix_pmem::{Hardware, Kind, Medium, Off, OffsetSet, Op, Root, Session, Structure, Word};

use crate::error::{Error, Result};
use crate::finding::Finding;
use crate::layout::{LIST_LAYOUT_VERSION, Link, ROOT_HEAD};
use crate::linked::chain::{self, Chain, Nothing};
use crate::linked::link_cache::on_chain;
use crate::map::{Found, OrderedWordMap, WordMap};
use crate::options::Options;
use crate::pages::{PageStats, Pages, Reachable};
use crate::range::{BATCH, after, before};
use crate::words::Words;

/// A durable lock-free sorted list of 8-byte keys and values. Operations are linear in its length: it is for small
/// numbers of keys. Recovery walks it once.
pub type List<M = Hardware> = Words<ListCore<M>, M>;

/// What a [`List`] is made of.
pub struct ListCore<M: Medium> {
    pages: Pages<M>,
    head: Off<Word<Link>>,
}

impl<M: Medium> Structure<M> for ListCore<M> {
    const KIND: Kind = Kind { tag: *b"LF-LIST ", version: LIST_LAYOUT_VERSION };
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
        let list = ListCore { pages: pages.with_link_cache(), head };
        let mut reachable = OffsetSet::default();
        let mut last = op.at(list.head);
        list.chain(&op)?.walk(|link, node, _| {
            // PERSIST LF-N8: flush.
            list.pages.root().write_back_found(&op, link);
            last = &op.at(node).next;
            if list.pages.is_in(&found, node) {
                reachable.insert(node.get());
            }
        })?;
        // PERSIST LF-N8: flush+fence, of all links.
        list.pages.root().write_back_found(&op, last);
        op.fence();
        drop(op);
        list.pages.recover(session, &found, &Reachable::Set(&reachable))?;
        Ok(list)
    }
}

impl<M: Medium> ListCore<M> {
    #[inline(always)]
    fn chain<'a, 's>(&'a self, op: &'a Op<'s, M>) -> Result<Chain<'a, 's, M>> {
        self.pages.expect_own(op)?;
        Ok(Chain { op, pages: &self.pages, head: op.at(self.head), above: Nothing })
    }

    #[cfg(test)]
    pub(crate) fn test_chain<'a, 's>(&'a self, op: &'a Op<'s, M>) -> Chain<'a, 's, M> {
        self.chain(op).expect("the operation is one of its pool")
    }
}

impl<M: Medium> WordMap<M> for ListCore<M> {
    const NAME: &'static str = "List";
    const ORDERED: bool = true;

    fn root(&self) -> &Root<M> {
        self.pages.root()
    }

    fn get(&self, op: &Op<'_, M>, key: u64) -> Result<Option<u64>> {
        on_chain!(self, self.chain(op)?, get(key))
    }

    fn insert_with(&self, op: &Op<'_, M>, key: u64, value: impl Fn() -> Option<u64>) -> Result<bool> {
        on_chain!(self, self.chain(op)?, insert(key, value))
    }

    fn update_with(&self, op: &Op<'_, M>, key: u64, new: impl Fn(u64) -> Option<u64>) -> Result<Found> {
        on_chain!(self, self.chain(op)?, update(key, new))
    }

    fn remove_with(&self, op: &Op<'_, M>, key: u64, wanted: impl Fn(u64) -> bool) -> Result<Found> {
        on_chain!(self, self.chain(op)?, remove_if(key, wanted))
    }

    fn remove(&self, op: &Op<'_, M>, key: u64) -> Result<Option<u64>> {
        on_chain!(self, self.chain(op)?, remove(key))
    }

    fn walk(&self, op: &Op<'_, M>, from: u64, into: &mut Vec<(u64, u64)>) -> Result<Option<u64>> {
        let all = on_chain!(self, self.chain(op)?, collect(from, BATCH, into))?;
        Ok(after(into, all))
    }

    fn check(&self, op: &Op<'_, M>) -> Result<Vec<Finding>> {
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

    fn durability(&self) -> Durability {
        self.pages.durability()
    }

    fn sync(&self, op: &Op<'_, M>) -> Result<()> {
        self.pages.expect_own(op)?;
        self.pages.flush_links(op);
        Ok(())
    }

    fn page_stats(&self, op: &Op<'_, M>) -> PageStats {
        self.pages.stats(op)
    }

    fn next_address(&self, op: &Op<'_, M>) -> Option<u64> {
        self.pages.next_address(op)
    }
}

impl<M: Medium> OrderedWordMap<M> for ListCore<M> {
    /// Links lead one way, so each call walks up to `to` from the first key on.
    fn walk_back(&self, op: &Op<'_, M>, to: u64, into: &mut Vec<(u64, u64)>) -> Result<Option<u64>> {
        let all = on_chain!(self, self.chain(op)?, collect_back(to, BATCH, into))?;
        Ok(before(into, all))
    }
}
