//! A search tree.

mod room;
mod thaw;
mod tree;

use std::fmt;

use durix_pmem::{Hardware, Kind, Medium, Off, OffsetSet, Op, Root, Session, Structure, Word};

use crate::error::{Error, Result};
use crate::finding::Finding;
use crate::layout::{LAYOUT_VERSION, Link, Node, ROOT_HEAD};
use crate::map::{Found, OrderedWordMap, WordMap};
use crate::options::Options;
use crate::pages::{PageStats, Pages, Reachable};
use crate::range::{BATCH, after, before};
use crate::words::Words;
use tree::Tree;

/// A durable lock-free binary search tree of 8-byte keys and values. It is not balanced: operations take logarithmic time
/// where keys come in random order, and linear time where they come sorted. Recovery takes the time of a search for each branch in a page
/// that was active.
pub type Bst<M = Hardware> = Words<BstCore<M>, M>;

/// What a [`Bst`] is made of.
pub struct BstCore<M: Medium> {
    pages: Pages<M>,
    head: Off<Word<Link>>,
}

impl<M: Medium> Structure<M> for BstCore<M> {
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
        let map = BstCore { pages, head };
        let search = |op: &Op<'_, M>, node: Off<Node>| map.tree(op)?.reaches(node.cast());
        let warm = |op: &Op<'_, M>, nodes: &[Off<Node>]| _ = map.tree(op).map(|tree| tree.warm(nodes));
        map.pages.recover(session, &found, &Reachable::WarmSearch(&search, &warm))?;
        Ok(map)
    }
}

impl<M: Medium> BstCore<M> {
    #[inline(always)]
    fn tree<'a, 's>(&'a self, op: &'a Op<'s, M>) -> Result<Tree<'a, 's, M>> {
        self.pages.expect_own(op)?;
        Ok(Tree { op, pages: &self.pages, head: op.at(self.head) })
    }

    fn end(&self, op: &Op<'_, M>, first: bool) -> Result<Option<(u64, u64)>> {
        let mut found = Vec::new();
        self.tree(op)?.collect((0, u64::MAX), first, 1, &mut found)?;
        Ok(found.pop())
    }
}

impl<M: Medium> WordMap<M> for BstCore<M> {
    const NAME: &'static str = "Bst";
    const ORDERED: bool = true;

    fn root(&self) -> &Root<M> {
        self.pages.root()
    }

    fn get(&self, op: &Op<'_, M>, key: u64) -> Result<Option<u64>> {
        self.tree(op)?.get(key)
    }

    fn insert_with(&self, op: &Op<'_, M>, key: u64, value: impl Fn() -> Option<u64>) -> Result<bool> {
        self.tree(op)?.insert(key, value)
    }

    fn update_with(&self, op: &Op<'_, M>, key: u64, new: impl Fn(u64) -> Option<u64>) -> Result<Found> {
        self.tree(op)?.update(key, new)
    }

    fn remove_with(&self, op: &Op<'_, M>, key: u64, wanted: impl Fn(u64) -> bool) -> Result<Found> {
        self.tree(op)?.remove_if(key, wanted)
    }

    fn remove(&self, op: &Op<'_, M>, key: u64) -> Result<Option<u64>> {
        self.tree(op)?.remove(key)
    }

    fn walk(&self, op: &Op<'_, M>, from: u64, into: &mut Vec<(u64, u64)>) -> Result<Option<u64>> {
        let all = self.walk_within(op, (from, u64::MAX), into)?;
        Ok(after(into, all))
    }

    fn check(&self, op: &Op<'_, M>) -> Result<Vec<Finding>> {
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

    fn page_stats(&self, op: &Op<'_, M>) -> PageStats {
        self.pages.stats(op)
    }

    fn next_address(&self, op: &Op<'_, M>) -> Option<u64> {
        self.pages.next_address(op)
    }
}

impl<M: Medium> OrderedWordMap<M> for BstCore<M> {
    fn walk_back(&self, op: &Op<'_, M>, to: u64, into: &mut Vec<(u64, u64)>) -> Result<Option<u64>> {
        let all = self.walk_back_within(op, (0, to), into)?;
        Ok(before(into, all))
    }

    fn walk_within(&self, op: &Op<'_, M>, ends: (u64, u64), into: &mut Vec<(u64, u64)>) -> Result<bool> {
        self.tree(op)?.collect(ends, true, BATCH, into)
    }

    fn walk_back_within(&self, op: &Op<'_, M>, ends: (u64, u64), into: &mut Vec<(u64, u64)>) -> Result<bool> {
        self.tree(op)?.collect(ends, false, BATCH, into)
    }

    fn first(&self, op: &Op<'_, M>) -> Result<Option<(u64, u64)>> {
        self.end(op, true)
    }

    fn last(&self, op: &Op<'_, M>) -> Result<Option<(u64, u64)>> {
        self.end(op, false)
    }
}

impl<M: Medium> Bst<M> {
    /// Writes every branch with its edges and leaves, in the order of keys, for people who look for a fault.
    ///
    /// # Errors
    /// What `out` returns.
    pub fn dump(&self, op: &Op<'_, M>, out: &mut dyn fmt::Write) -> fmt::Result {
        let mut result = Ok(());
        let walked = self.map.tree(op).map_err(|_| fmt::Error)?.walk((0, u64::MAX), true, |step| {
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
            let mut off = op.load(op.at(map.map.head), Relaxed).off();
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
