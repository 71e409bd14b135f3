//! A search tree.

mod room;
mod thaw;
mod tree;

use std::fmt;
use std::ops::RangeBounds;

use durix_pmem::{Hardware, Kind, Medium, Off, OffsetSet, Op, Root, Session, Structure, Word};

use crate::error::{Error, Result};
use crate::finding::Finding;
use crate::layout::{LAYOUT_VERSION, Link, Node, ROOT_HEAD};
use crate::linked::map_calls::map_calls;
use crate::options::Options;
use crate::pages::{PageStats, Pages, Reachable};
use crate::range::{BATCH, downwards, upwards};
use tree::Tree;

/// A durable lock-free binary search tree of 8-byte keys and values. It is not balanced: operations take logarithmic time
/// where keys come in random order, and linear time where they come sorted.
///
/// All operations take the calling thread's [`Op`]; an update is durable when it returns.
pub struct Bst<M: Medium = Hardware> {
    pages: Pages<M>,
    head: Off<Word<Link>>,
}

impl<M: Medium> Structure<M> for Bst<M> {
    const KIND: Kind = Kind { tag: *b"LF-BST  ", version: LAYOUT_VERSION };
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
        options.refuse_link_cache()?;
        let (pages, found) = Pages::open(&op, root, &[], options)?;
        drop(op);
        let map = Bst { pages, head };
        let search = |op: &Op<'_, M>, node: Off<Node>| map.tree(op)?.reaches(node.cast());
        let warm = |op: &Op<'_, M>, nodes: &[Off<Node>]| _ = map.tree(op).map(|tree| tree.warm(nodes));
        map.pages.recover(session, &found, &Reachable::WarmSearch(&search, &warm))?;
        Ok(map)
    }
}

map_calls!(Bst, "tree", "takes the time of a search for each branch in a page that was active");

impl<M: Medium> Bst<M> {
    #[inline(always)]
    fn tree<'a, 's>(&'a self, op: &'a Op<'s, M>) -> Result<Tree<'a, 's, M>> {
        self.pages.expect_own(op)?;
        Ok(Tree { op, pages: &self.pages, head: op.at(self.head) })
    }

    /// As [`insert`](Self::insert), with what `value` gives when it is needed, and may give nothing.
    pub(crate) fn insert_with(&self, op: &Op<'_, M>, key: u64, value: impl Fn() -> Option<u64>) -> Result<bool> {
        self.tree(op)?.insert(key, value)
    }

    /// Replaces a value by what `new` makes of it. Returns the value found, and whether it was replaced.
    pub(crate) fn update_with(
        &self,
        op: &Op<'_, M>,
        key: u64,
        new: impl Fn(u64) -> Option<u64>,
    ) -> Result<Option<(u64, bool)>> {
        self.tree(op)?.update(key, new)
    }

    /// Removes a key if its value is `wanted`. Returns the value found, and whether it was removed.
    pub(crate) fn remove_with(
        &self,
        op: &Op<'_, M>,
        key: u64,
        wanted: impl Fn(u64) -> bool,
    ) -> Result<Option<(u64, bool)>> {
        self.tree(op)?.remove_if(key, wanted)
    }

    /// Removes a key; returns its value. One fence; none if it is not there.
    ///
    /// # Errors
    /// [`Error::Corrupt`]; [`Error::Pool`] where the table of active pages has to grow and the pool is full.
    pub fn remove(&self, op: &Op<'_, M>, key: u64) -> Result<Option<u64>> {
        self.tree(op)?.remove(key)
    }

    /// The value of a key. No fence, unless it was changed so recently that this read has to make it durable.
    ///
    /// # Errors
    /// [`Error::Corrupt`].
    pub fn get(&self, op: &Op<'_, M>, key: u64) -> Result<Option<u64>> {
        self.tree(op)?.get(key)
    }

    /// Appends some entries from key `from` on, ascending; returns where to go on, if that was not all. Each entry was there
    /// at some moment of the call. `into` is empty at first.
    ///
    /// # Errors
    /// [`Error::Corrupt`].
    pub fn walk(&self, op: &Op<'_, M>, from: u64, into: &mut Vec<(u64, u64)>) -> Result<Option<u64>> {
        let all = self.tree(op)?.collect((from, u64::MAX), true, BATCH, into)?;
        Ok(into.last().and_then(|(key, _)| key.checked_add(1)).filter(|_| !all))
    }

    /// As [`walk`](Self::walk), from key `to` down, descending.
    ///
    /// # Errors
    /// [`Error::Corrupt`].
    pub fn walk_back(&self, op: &Op<'_, M>, to: u64, into: &mut Vec<(u64, u64)>) -> Result<Option<u64>> {
        let all = self.tree(op)?.collect((0, to), false, BATCH, into)?;
        Ok(into.last().and_then(|(key, _)| key.checked_sub(1)).filter(|_| !all))
    }

    /// Calls `f` for each entry of a range, ascending. Each entry was there at some moment of the call; it is no snapshot.
    /// `f` may change the tree.
    ///
    /// # Errors
    /// [`Error::Corrupt`].
    pub fn range(&self, op: &Op<'_, M>, range: impl RangeBounds<u64>, f: impl FnMut(u64, u64)) -> Result<()> {
        upwards(&range, |keys, batch| self.tree(op)?.collect(keys, true, BATCH, batch), f)
    }

    /// As [`range`](Self::range), descending.
    ///
    /// # Errors
    /// As [`range`](Self::range).
    pub fn range_rev(&self, op: &Op<'_, M>, range: impl RangeBounds<u64>, f: impl FnMut(u64, u64)) -> Result<()> {
        downwards(&range, |keys, batch| self.tree(op)?.collect(keys, false, BATCH, batch), f)
    }

    fn end(&self, op: &Op<'_, M>, first: bool) -> Result<Option<(u64, u64)>> {
        let mut found = Vec::new();
        self.tree(op)?.collect((0, u64::MAX), first, 1, &mut found)?;
        Ok(found.pop())
    }

    /// The entry with the smallest key.
    ///
    /// # Errors
    /// As [`range`](Self::range).
    pub fn first(&self, op: &Op<'_, M>) -> Result<Option<(u64, u64)>> {
        self.end(op, true)
    }

    /// The entry with the largest key.
    ///
    /// # Errors
    /// As [`range`](Self::range).
    pub fn last(&self, op: &Op<'_, M>) -> Result<Option<(u64, u64)>> {
        self.end(op, false)
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
        Ok(self.first(op)?.is_none())
    }

    /// Compares what is allocated with what is reachable, and keys with their places. No other operation may be open
    /// meanwhile.
    ///
    /// # Errors
    /// [`Error::Corrupt`].
    pub fn check(&self, op: &Op<'_, M>) -> Result<Vec<Finding>> {
        let (mut reachable, mut findings) = (OffsetSet::default(), Vec::new());
        self.tree(op)?.walk((0, u64::MAX), true, |step| {
            // A branch that comes twice is an error of the walk: its router does not belong to both rooms.
            if step.edge.off() != 0 {
                reachable.insert(step.edge.off());
                if !tree::is_sealed(op, step.edge.off()) {
                    findings.push(Finding::Damaged { off: step.edge.off() });
                }
            }
            if let Some(leaf) = step.leaf.filter(|_| step.edge.is_leaf()) {
                let key = op.load(&leaf.key, std::sync::atomic::Ordering::Relaxed);
                if !step.room.contains(key) {
                    findings.push(Finding::Misplaced { off: op.off_of(leaf).get(), key });
                }
            }
            true
        })?;
        findings.extend(self.pages.check(op, &reachable, &[]));
        findings.extend(self.pages.check_tally(op, |add| self.for_each(op, add))?);
        Ok(findings)
    }

    /// Writes every branch with its edges and leaves, in the order of keys, for people who look for a fault.
    ///
    /// # Errors
    /// What `out` returns.
    pub fn dump(&self, op: &Op<'_, M>, out: &mut dyn fmt::Write) -> fmt::Result {
        let mut result = Ok(());
        let walked = self.tree(op).map_err(|_| fmt::Error)?.walk((0, u64::MAX), true, |step| {
            result = tree::describe(op, step, out);
            result.is_ok()
        });
        result?;
        if let Err(stop) = walked {
            writeln!(out, "{}", Error::from(stop))?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::Ordering::Relaxed;

    use durix_pmem::PoolOptions;
    use durix_pmem::backing::HeapBacking;

    use super::*;
    use crate::layout::Branch;

    /// Each change took the same branches out again and again, and noted each time that their lines could be used again: it never ended,
    /// and took all memory.
    #[test]
    fn frozen_branches_that_lead_in_a_circle_are_found() {
        for len in [1, 2, 3] {
            let options = PoolOptions::new().initial_size(1 << 20).max_size(1 << 20);
            let pool = options.create_on(HeapBacking::new(1 << 20), Hardware::PAGE_CACHE).unwrap();
            let map = Bst::open(&pool, "map").unwrap();
            let mut session = pool.session().unwrap();
            let op = session.enter().unwrap();
            (1..=len).for_each(|key| assert!(map.insert(&op, key, key).unwrap()));
            let mut branches = Vec::new();
            let mut off = op.load(op.at(map.head), Relaxed).off();
            while off != 0 {
                branches.push(off);
                off = op.load(&op.at(Off::<Branch>::new(off)).edges[1], Relaxed).off();
            }
            for (number, off) in branches.iter().enumerate() {
                let edges = &op.at(Off::<Branch>::new(*off)).edges;
                let next = branches[(number + 1) % branches.len()];
                op.store(&edges[0], Link::NULL.deleted(), Relaxed);
                op.store(&edges[1], Link::to(next).deleted(), Relaxed);
            }
            let error = map.insert(&op, 100, 1).unwrap_err();
            assert!(matches!(error, Error::Corrupt { .. }), "{error}");
        }
    }
}
