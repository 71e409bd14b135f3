//! Recovery of leaks (section 5.5), and the check.
//!
//! Only the pages that were active are looked through. There are two ways to tell which of their nodes are reachable:
//! [`Pages::recover`] with [`Reachable::Search`] asks the structure for each node (fast where a search is), with
//! [`Reachable::Set`] the structure was walked once before. The time is linear in the number of active pages, in the first
//! case times that of a search, in the second plus that of a walk. [`Pages::recover_in_order`] searches, too, in the order of keys,
//! for structures in which a search may only rely on nodes that recovery has looked at ([`Known`]).
//!
//! After the mere death of a process, links and bypasses are visible that may not be durable. What recovery decides from
//! them others build on, so the structure writes back every link that it follows for recovery (LF-N8).

use std::collections::BTreeSet;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use durix_pmem::{Extent, Medium, Off, OffsetSet, Op, Root, Session, Word};

use super::Pages;
use super::extents::{Run, empty_segments};
use super::known::Known;
use super::units;
use crate::error::{Error, Result};
use crate::finding::Finding;
use crate::layout::{NODE, Node, Segment};
use crate::options::Options;

/// Active pages that one thread looks through at a time, within one operation.
const UNIT: usize = 8;
/// Below this many pages a thread of its own does not pay.
const PAGES_A_THREAD: usize = 32;
/// Lines that one thread looks for at a time, in the order of keys, within one operation.
const LINES: usize = 512;
/// Nodes that are looked for together.
const TOGETHER: usize = 16;
/// Most threads, whatever the machine has.
const MAX_THREADS: usize = 64;

/// Asks a structure whether a node is reachable by its key; writes back every link it follows, and may leave the fence to
/// the caller.
pub(crate) type Search<'a, M> = &'a (dyn Fn(&Op<'_, M>, Off<Node>) -> Result<bool> + Sync);

/// Asks for what searches for some nodes will read: they run one after the other, each from miss to miss, and the misses of
/// several can be waited for together.
pub(crate) type Warm<'a, M> = &'a (dyn Fn(&Op<'_, M>, &[Off<Node>]) + Sync);

/// A structure that is recovered in the order of keys.
pub(crate) trait InOrder<M: Medium>: Sync {
    /// Whether a line is a node that is reachable by its key; then searches may rely on it from now on. Writes back every
    /// link that it follows; the fence is the caller's.
    fn is_node(&self, op: &Op<'_, M>, line: Off<Node>, known: &Known<'_>) -> Result<bool>;
    /// Whether a line that is no reachable node is part of one, when all nodes are known; if not, nothing leads to it
    /// afterwards. Writes back what it follows or changes for that.
    fn is_part(&self, op: &Op<'_, M>, line: Off<Node>, known: &Known<'_>) -> Result<bool>;
    /// Reads what searches for some lines will read.
    fn warm(&self, op: &Op<'_, M>, lines: &[Off<Node>]);
    /// Writes back what else has to be durable before the table of active pages is emptied; the fence is the caller's (LF-N9).
    fn end(&self, op: &Op<'_, M>, known: &Known<'_>);
}

/// Whether a line is in use, as far as [`InOrder`] can say.
type Look<'a, M> = &'a (dyn Fn(&Op<'_, M>, Off<Node>, &Known<'_>) -> Result<bool> + Sync);

/// How reachable nodes are told from others.
pub(crate) enum Reachable<'a, M: Medium> {
    /// By searching for each.
    Search(Search<'a, M>),
    /// The same, where searches are long.
    WarmSearch(Search<'a, M>, Warm<'a, M>),
    /// By having walked over all; every link was written back and fenced.
    Set(&'a OffsetSet),
}

/// What was found when the structure was opened: the pages that were active, and where that is written.
pub(crate) struct Found {
    /// Active pages, each once.
    pub(crate) active: Vec<u64>,
    pub(super) segments: Vec<Off<Segment>>,
}

impl<M: Medium> Pages<M> {
    /// Opens the pages of `root`; `others` are the extents of its owner that hold no pages. Nothing is allocated before
    /// [`Pages::recover`] has run.
    ///
    /// # Errors
    /// [`Error::Corrupt`].
    pub(crate) fn open(op: &Op<'_, M>, root: Root<M>, others: &[u64], options: &Options) -> Result<(Self, Found)> {
        let pages = Pages::new(op, root, options)?;
        let extents = pages.extents(op, others);
        let found = read_segments(op, pages.segments(op), |page| is_page(&extents, pages.shape.bytes, page))?;
        Ok((pages, found))
    }

    /// The extents that hold pages, ascending.
    fn extents(&self, op: &Op<'_, M>, others: &[u64]) -> Vec<Extent> {
        let mut extents = self.root.pool().space().extents(op, self.root.owner());
        extents.retain(|extent| !others.contains(&extent.off) && !units::holds_records(op, extent));
        let mut unassigned = self.unassigned.lock(op.medium());
        for extent in &extents {
            unassigned.bytes += extent.len;
            unassigned.runs.push(Run { page: extent.off, pages: extent.len / self.shape.bytes });
        }
        extents
    }

    /// Frees the nodes of active pages that are not reachable, and empties the tables.
    ///
    /// # Errors
    /// [`Error::Corrupt`]; what opening sessions says.
    pub(crate) fn recover(&self, session: &mut Session<M>, found: &Found, reachable: &Reachable<'_, M>) -> Result<()> {
        self.on_threads(session, found, &|s, next| self.recover_units(s, found, next, reachable))?;
        self.end_recovery(&session.enter()?, found);
        Ok(())
    }

    /// Empties the tables, of pages whose bitmaps are durably exact.
    fn end_recovery(&self, op: &Op<'_, M>, found: &Found) {
        // PERSIST LF-N9: flush+fence, of `recover_units` or `recover_in_order` before this.
        empty_segments(op, &found.segments);
        self.unassigned.lock(op.medium()).segments.extend(&found.segments);
    }

    /// Has several threads do some work, as far as there are sessions for them; they share a counter.
    fn on_threads(
        &self,
        session: &mut Session<M>,
        found: &Found,
        work: &(dyn Fn(&mut Session<M>, &AtomicUsize) -> Result<()> + Sync),
    ) -> Result<()> {
        let next = AtomicUsize::new(0);
        durix_pmem::on_threads(session, self.recovery_threads(found.active.len()), &|session: &mut Session<M>| {
            work(session, &next)
        })
    }

    // ---- in the order of keys ----

    /// As [`recover`](Self::recover), in the order of keys. First all nodes are found, then what belongs to them: a line that
    /// does not is taken out by who may rely on all nodes.
    ///
    /// # Errors
    /// As [`recover`](Self::recover).
    pub(crate) fn recover_in_order(&self, session: &mut Session<M>, found: &Found, by: &dyn InOrder<M>) -> Result<()> {
        let known = Known::new(self.shape, &found.active);
        let mut lines = self.in_order(session, found)?;
        let (node, part): (Look<'_, M>, Look<'_, M>) =
            (&|op, line, known| by.is_node(op, line, known), &|op, line, known| by.is_part(op, line, known));
        let own = session.slot();
        // Most of the rest need no search.
        for (look, warm, is_last) in [(node, true, false), (part, false, true)] {
            let by = warm.then_some(by);
            self.on_threads(session, found, &|session, next| {
                look_for(session, &lines, next, &known, by, look)?;
                // A thread that ends makes durable what it has written back; the caller's fence comes when all is done.
                if is_last || session.slot() != own {
                    // PERSIST LF-N8, LF-U6: flush+fence, of the links that were followed or changed.
                    session.enter()?.fence();
                }
                Ok(())
            })?;
            lines.retain(|(_, line)| !known.vouches_for(Off::new(*line)));
        }
        let op = session.enter()?;
        self.store_bitmaps(&op, &known);
        by.end(&op, &known);
        // PERSIST LF-N9, LF-U7, LF-U8: flush+fence.
        op.fence();
        self.end_recovery(&op, found);
        Ok(())
    }

    /// The allocated lines of active pages in the order of their keys, with these. A line that is no node has any key.
    fn in_order(&self, session: &mut Session<M>, found: &Found) -> Result<Vec<(u64, u64)>> {
        let all = Mutex::new(Vec::new());
        self.on_threads(session, found, &|session, next| {
            let mut lines = Vec::new();
            while let Some(pages) = found.active.chunks(UNIT).nth(next.fetch_add(1, Ordering::Relaxed)) {
                let op = session.enter()?;
                let key = |line| op.load(&op.at(Off::<Node>::new(line)).key, Ordering::Relaxed);
                lines.extend(pages.iter().flat_map(|page| self.allocated(&op, *page)).map(|line| (key(line), line)));
            }
            lines.sort_unstable();
            all.lock().unwrap_or_else(|e| e.into_inner()).append(&mut lines);
            Ok(())
        })?;
        let mut all = all.into_inner().unwrap_or_else(|e| e.into_inner());
        // The stable sort only merges what the threads have sorted.
        all.sort();
        Ok(all)
    }

    /// Writes down what is in use. The fence is the caller's (LF-N9).
    fn store_bitmaps(&self, op: &Op<'_, M>, known: &Known<'_>) {
        for (page, bits) in known.bitmaps() {
            let bits = bits.iter().map(|bits| bits.load(Ordering::Relaxed));
            store_exact(op, &self.root, self.bitmap(op, page), bits);
        }
    }

    // ---- page by page ----

    fn recovery_threads(&self, pages: usize) -> usize {
        let wanted = match self.options.recovery_threads {
            0 => durix_pmem::processors(),
            threads => threads,
        };
        (pages / PAGES_A_THREAD).clamp(1, wanted.clamp(1, MAX_THREADS))
    }

    fn recover_units(
        &self,
        session: &mut Session<M>,
        found: &Found,
        next: &AtomicUsize,
        reachable: &Reachable<'_, M>,
    ) -> Result<()> {
        let mut units = found.active.chunks(UNIT);
        let mut taken = 0;
        loop {
            let wanted = next.fetch_add(1, Ordering::Relaxed);
            let Some(unit) = units.nth(wanted - taken) else { break };
            taken = wanted + 1;
            let op = session.enter()?;
            let bitmaps: Vec<_> =
                unit.iter().map(|page| self.exact_bitmap(&op, *page, reachable)).collect::<Result<_>>()?;
            if !matches!(reachable, Reachable::Set(_)) {
                // PERSIST LF-N8: flush+fence, of the links that were followed.
                op.fence();
            }
            for (page, bitmap) in unit.iter().zip(bitmaps) {
                store_exact(&op, &self.root, self.bitmap(&op, *page), bitmap);
            }
        }
        let op = session.enter()?;
        // PERSIST LF-N9: flush+fence.
        op.fence();
        Ok(())
    }

    /// The nodes of a page that are allocated, by the bitmap.
    fn allocated(&self, op: &Op<'_, M>, page: u64) -> Vec<u64> {
        let mut nodes = Vec::new();
        for (index, word) in self.bitmap(op, page).iter().enumerate() {
            let mut allocated = op.load(word, Ordering::Relaxed) & self.shape.mask(index as u64);
            while allocated != 0 {
                nodes.push(page + (index as u64 * 64 + u64::from(allocated.trailing_zeros())) * NODE);
                allocated &= allocated - 1;
            }
        }
        nodes
    }

    /// The bitmap of a page as its nodes are reachable.
    fn exact_bitmap(&self, op: &Op<'_, M>, page: u64, reachable: &Reachable<'_, M>) -> Result<Vec<u64>> {
        let mut exact = vec![0; self.shape.words() as usize];
        for nodes in self.allocated(op, page).chunks(TOGETHER) {
            if let Reachable::WarmSearch(_, warm) = reachable {
                let nodes: Vec<_> = nodes.iter().map(|node| Off::new(*node)).collect();
                warm(op, &nodes);
            }
            for node in nodes {
                let is_reachable = match reachable {
                    Reachable::Search(search) | Reachable::WarmSearch(search, _) => search(op, Off::new(*node))?,
                    Reachable::Set(set) => set.contains(node),
                };
                let (word, bit) = self.shape.bit_of(*node);
                exact[word as usize] |= u64::from(is_reachable) << bit;
            }
        }
        Ok(exact)
    }

    /// Whether a page is one of those active when the structure was opened.
    pub(crate) fn is_in(&self, found: &Found, node: Off<Node>) -> bool {
        found.active.binary_search(&self.shape.page_of(node.get())).is_ok()
    }

    /// Compares what is allocated with what is reachable, while no other operation is open.
    pub(crate) fn check(&self, op: &Op<'_, M>, reachable: &OffsetSet, others: &[u64]) -> Vec<Finding> {
        let held: OffsetSet = self.held(op).into_iter().collect();
        let mut allocated = OffsetSet::default();
        let mut findings = Vec::new();
        let mut extents = self.root.pool().space().extents(op, self.root.owner());
        extents.retain(|extent| !others.contains(&extent.off) && !units::holds_records(op, extent));
        let pages = extents.iter().flat_map(|e| (e.off..e.off + e.len).step_by(self.shape.bytes as usize));
        for page in pages {
            for (index, word) in self.bitmap(op, page).iter().enumerate() {
                // Those of the head, too: they are never set.
                let mut bits = op.load(word, Ordering::Relaxed) & self.shape.all(index as u64);
                while bits != 0 {
                    let node = page + (index as u64 * 64 + u64::from(bits.trailing_zeros())) * NODE;
                    bits &= bits - 1;
                    allocated.insert(node);
                    if !reachable.contains(&node) && !held.contains(&node) {
                        findings.push(Finding::Leaked { off: node });
                    }
                }
            }
        }
        // In order: what is found twice is told the same way twice.
        let missing: BTreeSet<_> = reachable.difference(&allocated).chain(held.intersection(reachable)).collect();
        findings.extend(missing.into_iter().map(|off| Finding::NotAllocated { off: *off }));
        findings
    }
}

/// Makes a bitmap exact, and starts writing it back, unless it was so durably.
pub(super) fn store_exact<M: Medium>(
    op: &Op<'_, M>,
    root: &Root<M>,
    bitmap: &[Word],
    exact: impl IntoIterator<Item = u64>,
) {
    let mut is_durable = root.finds_what_is_durable(op);
    for (word, bits) in bitmap.iter().zip(exact) {
        is_durable &= op.load(word, Ordering::Relaxed) == bits;
        op.store(word, bits, Ordering::Release);
    }
    if !is_durable {
        op.write_back_slice(bitmap);
    }
}

/// Reads which pages were active, from the segment on that `head` leads to.
pub(super) fn read_segments<M: Medium>(
    op: &Op<'_, M>,
    head: &Word<Off<Segment>>,
    is_page: impl Fn(u64) -> bool,
) -> Result<Found> {
    let (mut active, mut segments) = (BTreeSet::new(), Vec::new());
    let backed = op.mapping().len();
    let mut next = op.load(head, Ordering::Acquire);
    while !next.is_null() {
        // A loop in the chain would be longer than the pool.
        if segments.len() as u64 > backed / size_of::<Segment>() as u64 {
            let offset = op.off_of(head).get();
            return Err(Error::Corrupt { what: "the chain of active pages", offset, found: next.get() });
        }
        let segment = &op.slice("a segment of active pages", next, 1).map_err(Error::from)?[0];
        for cell in &segment.cells {
            let page = op.load(cell, Ordering::Relaxed);
            if page != 0 && !is_page(page) {
                let offset = op.off_of(cell).get();
                return Err(Error::Corrupt { what: "the address of an active page", offset, found: page });
            }
            active.extend((page != 0).then_some(page));
        }
        segments.push(next);
        next = op.load(&segment.next, Ordering::Relaxed);
    }
    Ok(Found { active: active.into_iter().collect(), segments })
}

/// Whether a page of so many bytes begins there, in one of some extents, which ascend.
pub(super) fn is_page(extents: &[Extent], bytes: u64, page: u64) -> bool {
    let at = extents.partition_point(|extent| extent.off <= page);
    let extent = at.checked_sub(1).map(|at| extents[at]);
    page.is_multiple_of(bytes) && extent.is_some_and(|e| page - e.off < e.len)
}

/// Looks for lines, a part of them at a time, in the order in which they are given.
fn look_for<M: Medium>(
    session: &mut Session<M>,
    lines: &[(u64, u64)],
    next: &AtomicUsize,
    known: &Known<'_>,
    warm: Option<&dyn InOrder<M>>,
    look: Look<'_, M>,
) -> Result<()> {
    while let Some(part) = lines.chunks(LINES).nth(next.fetch_add(1, Ordering::Relaxed)) {
        let op = session.enter()?;
        for some in part.chunks(TOGETHER) {
            let some: Vec<_> = some.iter().map(|(_, line)| Off::new(*line)).collect();
            if let Some(by) = warm {
                by.warm(&op, &some);
            }
            for line in some {
                if look(&op, line, known)? {
                    known.add(line);
                }
            }
        }
    }
    Ok(())
}
