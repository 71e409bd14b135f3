//! NV-epochs (section 5 of David et al.): memory of nodes, allocated and reclaimed without logging single nodes.
//!
//! Nodes lie in pages that hold nothing else. A session that allocates from a page, or takes nodes of it out of the
//! structure, first records the page as *active*, durably. After a crash only active pages can hold nodes that are allocated
//! and not reachable, so only they are looked through.
//!
//! What this adds to the paper: while a page is active its bitmap need not be exact. A session takes all free nodes of a
//! page at once, and hands nodes that were unlinked out again, without touching the bitmap, until the page leaves the table
//! (*trimming*): an insert usually writes no metadata at all.
//!
//! | state of a page | its bitmap |
//! |---|---|
//! | in no session's table | exact: a bit is set if and only if the node is reachable |
//! | active | every reachable node's bit is set |
//!
//! # Persist order
//! | edge | kept by | a crash before it leaves | recovery |
//! |---|---|---|---|
//! | LF-N1 heads of new pages are zero < their extent is active | flush+fence | free chunks | the pool's |
//! | LF-N2 the extent < a page of it is active | flush+fence | pages without nodes | nothing |
//! | LF-N3 page active < bits of it are set | flush+fence | an exact bitmap | nothing to free |
//! | LF-N4 bits set < a node of them is linked | flush+fence, the node's own (LF-K1) | nodes not reachable, in an active page | frees them |
//! | LF-N5 page active < a node of it is bypassed | flush+fence, of its deletion mark (LF-K3) or of its own | the node reachable | nothing to free |
//! | LF-N6 bypass durable (LF-K4), grace period over < the node is handed out again | flush+fence, once for a generation | a node not reachable in an active page | frees it |
//! | LF-N7 bits of free nodes cleared < the page leaves the table | flush+fence, once for a trimming | an active page | as LF-N6 |
//! | LF-N8 what recovery has read < anything is built on it | flush+fence | the same, or the state before | the same again |
//! | LF-N9 recovered bitmaps < the table is emptied | flush+fence | active pages | the same again |
//!
//! Why a page that leaves the table by LF-N7 may be found in it after a crash: it is then looked through once more.
//!
//! Each slot's state is guarded by a lock that is never contended: a slot belongs to one session, a session has one
//! operation. Operations of another pool, whose slots have the same numbers, are refused before.
//!
//! A trim leaves what an operation has under way: pages with nodes in limbo, of the last two allocations, and the one that it has asked
//! for by [`Pages::is_active`].

mod active;
mod extents;
mod known;
mod recover;
pub(crate) mod units;
mod words;

use std::collections::VecDeque;
use std::sync::atomic::Ordering;

use durix_pmem::pool::Durability;
use durix_pmem::pool::tally::{self, Marked, Tally, Totals};
use durix_pmem::{Grace, Lock, LockGuard, Medium, Off, Op, PerSession, Root, Word};

use crate::error::{Error, Quick, Result};
use crate::finding::Finding;
use crate::layout::{Link, MAX_PAGE, MIN_PAGE, Node, PageShape, ROOT_PAGE, ROOT_SEGMENTS, Segment};
use crate::link::{Announced, DurableLink};
use crate::linked::link_cache::LinkCache;
use crate::options::{LinkCacheMode, Options};
use active::Active;
use extents::Unassigned;
pub(crate) use known::Known;
pub(crate) use recover::{InOrder, Reachable};

/// Makes sure that an operation is one of the mapping at `base`: in another, offsets are somebody else's.
#[inline(always)]
pub(crate) fn expect_base<M: Medium>(op: &Op<'_, M>, base: usize) -> Result<()> {
    if op.base_addr() == base { Ok(()) } else { Err(foreign()) }
}

#[cold]
fn foreign() -> Error {
    durix_pmem::Error::ForeignSession.into()
}

/// Generations of a session that wait, at most, where no operation is open for long.
const WAITING: usize = 2;

/// How often pages had to be recorded as active.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PageStats {
    /// Nodes handed out.
    pub allocations: u64,
    /// Pages that had to be recorded for an allocation.
    pub allocation_misses: u64,
    /// Nodes taken out of the structure.
    pub unlinks: u64,
    /// Pages that had to be recorded for that.
    pub unlink_misses: u64,
    /// Times a table was trimmed.
    pub trimmings: u64,
    /// Pages that are active now.
    pub active: u64,
}

/// A node that an operation is about to bypass.
#[derive(Debug)]
#[must_use = "its page stays active until it is retired, or given up"]
pub(crate) struct Unlinking {
    node: Off<Node>,
    /// The cell that names its page, if that is new and not durable.
    cell: Option<Off<Word>>,
}

impl Unlinking {
    /// Whether the page is durably active.
    #[inline(always)]
    pub(crate) fn is_active(&self) -> bool {
        self.cell.is_none()
    }

    /// Starts writing back that the page is active (LF-N5). Returns whether a fence has to follow before the bypass.
    #[inline]
    #[track_caller]
    pub(crate) fn write_back<M: Medium>(&self, op: &Op<'_, M>) -> bool {
        if let Some(cell) = self.cell {
            op.write_back(op.at(cell));
        }
        self.cell.is_some()
    }
}

/// The nodes' memory of one structure.
pub(crate) struct Pages<M: Medium> {
    root: Root<M>,
    /// First address of the pool's mapping.
    base: usize,
    shape: PageShape,
    options: Options,
    slots: PerSession<Lock<Slot>>,
    unassigned: Lock<Unassigned>,
    /// Links of the structure that may not be durable.
    cache: Option<LinkCache>,
    /// Links that sessions are changing.
    announced: Announced,
}

/// What a session knows of the pages it works with. Volatile.
#[derive(Debug, Default)]
struct Slot {
    active: Active,
    /// Nodes that are allocated and that nothing leads to: to be handed out, the last first.
    free: Vec<u64>,
    /// Nodes that were unlinked, and the link that was changed for it, if that may not be durable.
    limbo: Vec<(u64, Off<Word<Link>>)>,
    /// Other links that have to be durable before these nodes are used again.
    links: Vec<Off<Word<Link>>>,
    /// Generations of unlinked nodes, and what they wait for.
    waiting: VecDeque<(Vec<u64>, Grace)>,
    /// The pages of the last two allocations: an insert in flight may be using them. And the page that was asked for last.
    recent: [u64; 3],
    stats: PageStats,
}

impl<M: Medium> Pages<M> {
    /// Sets the root word of a new structure; the caller writes it back.
    ///
    /// # Errors
    /// [`Error::BadOption`] for pages larger than the pool's chunks.
    pub(crate) fn create(op: &Op<'_, M>, root: &Root<M>, options: &Options) -> Result<()> {
        let limit = root.pool().space().chunk();
        if options.page > limit {
            let rule = "a page is at most as large as the pool's chunks";
            return Err(Error::BadOption { option: "page_size", value: options.page, rule });
        }
        op.store(&root.words(op)[ROOT_PAGE], options.page, Ordering::Relaxed);
        Ok(())
    }

    fn new(op: &Op<'_, M>, root: Root<M>, options: &Options) -> Result<Self> {
        let word = &root.words(op)[ROOT_PAGE];
        let bytes = op.load(word, Ordering::Relaxed);
        let sound = bytes.is_power_of_two() && (MIN_PAGE..=MAX_PAGE).contains(&bytes);
        if !sound || bytes > root.pool().space().chunk() {
            let offset = op.off_of(word).get();
            return Err(Error::Corrupt { what: "the size of a page", offset, found: bytes });
        }
        let (shape, options) = (PageShape::of_nodes(bytes), options.clone());
        Ok(Pages {
            root,
            base: op.base_addr(),
            shape,
            options,
            slots: PerSession::default(),
            unassigned: Lock::new(Unassigned::default()),
            cache: None,
            announced: Announced::new(),
        })
    }

    /// Makes sure that an operation is one of the structure's pool.
    ///
    /// # Errors
    /// [`Error::Pool`] with [`ForeignSession`](durix_pmem::Error::ForeignSession).
    #[inline(always)]
    pub(crate) fn expect_own(&self, op: &Op<'_, M>) -> Result<()> {
        expect_base(op, self.base)
    }

    /// Gives the structure a link cache, if the options say so.
    #[must_use]
    pub(crate) fn with_link_cache(mut self) -> Self {
        self.cache = self.options.link_cache.map(LinkCache::new);
        self
    }

    /// When an update of the structure is durable.
    pub(crate) fn durability(&self) -> Durability {
        match self.cache.as_ref().map(LinkCache::mode) {
            Some(LinkCacheMode::Buffered) => Durability::BufferedByKey,
            Some(LinkCacheMode::Durable) | None => Durability::Strict,
        }
    }

    /// The structure's link cache, if it has one.
    #[inline(always)]
    pub(crate) fn cache(&self) -> Option<&LinkCache> {
        self.cache.as_ref()
    }

    /// A link of the structure.
    #[inline(always)]
    pub(crate) fn link<'a, 's>(&'a self, op: &'a Op<'s, M>, word: &'s Word<Link>) -> DurableLink<'a, 's, M> {
        DurableLink::new(op, &self.announced, word)
    }

    /// What sessions say of the links that they are changing.
    #[inline(always)]
    pub(crate) fn announced(&self) -> &Announced {
        &self.announced
    }

    /// Makes all links durable that were changed.
    pub(crate) fn flush_links(&self, op: &Op<'_, M>) {
        if let Some(cache) = &self.cache {
            cache.flush(op);
        }
    }

    /// The place of the structure.
    pub(crate) fn root(&self) -> &Root<M> {
        &self.root
    }

    /// Tells what has changed, by numbers of entries, if the structure tells that.
    #[inline(always)]
    pub(crate) fn tally(&self, tell: impl FnOnce(&Tally)) {
        if let Some(tally) = self.root.tally() {
            tell(tally);
        }
    }

    /// What is wrong with the entries of a structure, by what it held when its pool was closed. `collect` adds all that a walk meets.
    pub(crate) fn check_tally(
        &self,
        op: &Op<'_, M>,
        collect: impl FnOnce(&mut dyn FnMut(u64, u64)) -> Result<()>,
    ) -> Result<Option<Finding>> {
        match self.root.marked(op) {
            Marked::Nothing => Ok(None),
            Marked::Damaged { offset } => Ok(Some(Finding::DamagedMark { off: offset })),
            Marked::Held(held) => {
                let mut found = Totals::default();
                collect(&mut |key, value| found.add(tally::entry(key, value)))?;
                let off = op.off_of(&self.root.words(op)[0]).get();
                Ok((found != held).then_some(Finding::OtherEntries { off, held: held.count, found: found.count }))
            }
        }
    }

    /// The root word that leads to the first segment.
    fn segments<'s>(&self, op: &Op<'s, M>) -> &'s Word<Off<Segment>> {
        op.at(op.off_of(&self.root.words(op)[ROOT_SEGMENTS]).cast())
    }

    /// The bitmap of a page.
    fn bitmap<'s>(&self, op: &Op<'s, M>, page: u64) -> &'s [Word] {
        let words = op.slice("the head of a page", Off::<Word>::new(page), self.shape.words());
        words.unwrap_or_default()
    }

    fn slot<'a>(&'a self, op: &Op<'_, M>) -> LockGuard<'a, Slot, M> {
        self.slots.of(op.slot()).lock(op.medium())
    }

    // ---- allocating ----

    /// A node that nothing leads to. It stays allocated while the operation is open; the caller links it or gives it back
    /// before it asks for a third.
    ///
    /// # Errors
    /// [`Error::Pool`] where the pool is full.
    pub(crate) fn allocate(&self, op: &Op<'_, M>) -> Quick<Off<Node>> {
        let slot = &mut *self.slot(op);
        if slot.free.is_empty() {
            self.poll(op, slot);
        }
        if slot.free.is_empty() {
            self.refill(op, slot)?;
        }
        slot.stats.allocations += 1;
        let node = slot.free.pop().expect("was filled just now");
        if let Some(next) = slot.free.last() {
            // Its write-back may have evicted it, and the next insert writes it.
            op.prefetch_write(Off::<Node>::new(*next));
        }
        let page = self.shape.page_of(node);
        slot.active.entry(page).free -= 1;
        slot.recent = [page, slot.recent[0], slot.recent[2]];
        Ok(Off::new(node))
    }

    /// Takes over lines that were not linked, but that somebody may have seen; they are handed out again as nodes that were,
    /// when `links` are durable.
    #[cold]
    pub(crate) fn retire_unlinked(
        &self,
        op: &Op<'_, M>,
        lines: impl Iterator<Item = Off<Node>>,
        links: &[Off<Word<Link>>],
    ) {
        let slot = &mut *self.slot(op);
        for line in lines {
            slot.active.entry(self.shape.page_of(line.get())).limbo += 1;
            slot.limbo.push((line.get(), Off::NULL));
        }
        slot.links.extend(links);
    }

    /// Takes over links that have to be durable before any page of this session leaves its table.
    #[cold]
    pub(crate) fn keep_links(&self, op: &Op<'_, M>, links: &[Off<Word<Link>>]) {
        self.slot(op).links.extend(links);
    }

    /// Gives a node back that was not linked.
    pub(crate) fn give_back(&self, op: &Op<'_, M>, node: Off<Node>) {
        let slot = &mut *self.slot(op);
        slot.active.entry(self.shape.page_of(node.get())).free += 1;
        slot.free.push(node.get());
    }

    /// The node that the next allocation of this session hands out, if it needs no new page.
    pub(crate) fn next_address(&self, op: &Op<'_, M>) -> Option<u64> {
        self.slot(op).free.last().copied()
    }

    /// Sees to it that there is a free node: of a page, or, where the pool is full, one of those that were unlinked and are not
    /// enough for a generation yet.
    #[cold]
    fn refill(&self, op: &Op<'_, M>, slot: &mut Slot) -> Result<()> {
        let refilled = self.take_free_page(op, slot);
        if refilled.is_err() {
            self.end_generation(op, slot);
        }
        if slot.free.is_empty() { refilled } else { Ok(()) }
    }

    /// Makes a page active and takes its free nodes. One fence, if the page was not active.
    fn take_free_page(&self, op: &Op<'_, M>, slot: &mut Slot) -> Result<()> {
        self.make_room(op, slot)?;
        while slot.free.is_empty() {
            let page = self.take_page(op)?;
            if slot.active.enter(op, page) {
                slot.stats.allocation_misses += 1;
                // PERSIST LF-N3: flush+fence.
                op.fence();
            }
            self.take_nodes(op, slot, page);
            if slot.free.is_empty() {
                self.make_room(op, slot)?;
            }
        }
        Ok(())
    }

    /// Takes all free nodes of an active page.
    fn take_nodes(&self, op: &Op<'_, M>, slot: &mut Slot, page: u64) {
        let first = slot.free.len();
        words::take_nodes(op, self.shape, page, &mut slot.free);
        slot.active.entry(page).free += (slot.free.len() - first) as u32;
    }

    // ---- unlinking ----

    /// Enters the page of a node that this operation is about to bypass, and keeps it in the table until
    /// [`retire_begun`](Pages::retire_begun) or [`cancel_unlink`](Pages::cancel_unlink). The caller has to see to
    /// [`Unlinking::write_back`]. Trims the table where it has grown.
    ///
    /// # Errors
    /// [`Error::Pool`] where the pool is full.
    #[inline]
    pub(crate) fn begin_unlink(&self, op: &Op<'_, M>, node: Off<Node>) -> Quick<Unlinking> {
        let slot = &mut *self.slot(op);
        let page = self.shape.page_of(node.get());
        let mut cell = None;
        if !slot.active.contains(page) {
            self.make_room(op, slot)?;
            cell = Some(slot.active.enter_later(op, page));
            slot.stats.unlink_misses += 1;
        }
        slot.active.entry(page).limbo += 1;
        Ok(Unlinking { node, cell })
    }

    /// Whether the page of a node is durably active for this session. It stays so until the session asks for something else here.
    #[inline]
    pub(crate) fn is_active(&self, op: &Op<'_, M>, node: Off<Node>) -> bool {
        let slot = &mut *self.slot(op);
        slot.recent[2] = self.shape.page_of(node.get());
        slot.active.contains(slot.recent[2])
    }

    /// Ends what [`begin_unlink`](Pages::begin_unlink) has begun, without having bypassed the node.
    #[cold]
    pub(crate) fn cancel_unlink(&self, op: &Op<'_, M>, begun: Unlinking) {
        if begun.write_back(op) {
            // PERSIST LF-N5: flush+fence: whoever finds the page in the table next takes it for durable.
            op.fence();
        }
        self.slot(op).active.entry(self.shape.page_of(begun.node.get())).limbo -= 1;
    }

    /// Takes over a node that this operation has bypassed by changing `link` (null if that is durable), and a line that goes
    /// with it. They are handed out again when nobody can hold them any more, and `links` are durable, too.
    #[inline(always)]
    pub(crate) fn retire_begun(
        &self,
        op: &Op<'_, M>,
        begun: Unlinking,
        link: Off<Word<Link>>,
        more: Option<Unlinking>,
        links: &[Off<Word<Link>>],
    ) {
        let slot = &mut *self.slot(op);
        slot.stats.unlinks += 1;
        slot.limbo.push((begun.node.get(), link));
        let added = 1 + usize::from(more.is_some());
        if let Some(more) = more {
            slot.limbo.push((more.node.get(), Off::NULL));
        }
        slot.links.extend(links);
        if op.is_generation(slot.limbo.len(), added, self.options.generation) {
            self.end_generation(op, slot);
        }
    }

    #[cold]
    fn end_generation(&self, op: &Op<'_, M>, slot: &mut Slot) {
        // PERSIST LF-C3: flush+fence.
        self.flush_links(op);
        slot.close_generation(op);
        self.poll(op, slot);
    }

    /// Takes back the generations that nobody can hold any more. Where an operation that was open for long has kept pages in the table,
    /// they leave it when it has ended: in a session that has free nodes now nobody else would see to that.
    fn poll(&self, op: &Op<'_, M>, slot: &mut Slot) {
        slot.poll(op, self.shape);
        if slot.waiting.len() <= WAITING && slot.active.is_long(self.options.active_pages) {
            self.trim(op, slot);
        }
    }

    /// Sees to it that a page can be made active.
    #[inline]
    fn make_room(&self, op: &Op<'_, M>, slot: &mut Slot) -> Result<()> {
        if slot.active.len() >= slot.active.trim_at(self.options.active_pages) {
            self.trim(op, slot);
        }
        if !slot.active.has_vacancy() {
            self.add_segment(op, slot)?;
        }
        Ok(())
    }

    /// Adds cells to the table; where the pool is full, takes out of it what can leave.
    #[cold]
    fn add_segment(&self, op: &Op<'_, M>, slot: &mut Slot) -> Result<()> {
        match self.take_segment(op) {
            Ok(segment) => slot.active.add_segment(op, segment),
            Err(error) => {
                self.trim(op, slot);
                if !slot.active.has_vacancy() {
                    return Err(error);
                }
            }
        }
        Ok(())
    }

    /// Takes the pages out of the table that nothing is under way in.
    #[cold]
    fn trim(&self, op: &Op<'_, M>, slot: &mut Slot) {
        slot.stats.trimmings += 1;
        // PERSIST LF-C3: flush+fence.
        self.flush_links(op);
        slot.close_generation(op);
        slot.poll(op, self.shape);
        let leaving = slot.active.idle(&slot.recent);
        let (kept, freed) = std::mem::take(&mut slot.free)
            .into_iter()
            .partition(|node| leaving.binary_search(&self.shape.page_of(*node)).is_err());
        slot.free = kept;
        words::clear_bits(op, self.shape, &freed);
        slot.active.leave(op, &leaving);
        self.offer(op, &leaving);
    }

    // ---- looking ----

    /// Counts of all sessions.
    pub(crate) fn stats(&self, op: &Op<'_, M>) -> PageStats {
        let mut sum = PageStats::default();
        for slot in self.slots.iter() {
            let slot = slot.lock(op.medium());
            sum.allocations += slot.stats.allocations;
            sum.allocation_misses += slot.stats.allocation_misses;
            sum.unlinks += slot.stats.unlinks;
            sum.unlink_misses += slot.stats.unlink_misses;
            sum.trimmings += slot.stats.trimmings;
            sum.active += slot.active.len() as u64;
        }
        sum
    }

    /// Nodes that sessions hold: allocated, not reachable. While no operation is open, but the caller's.
    fn held(&self, op: &Op<'_, M>) -> Vec<u64> {
        let mut held = Vec::new();
        for slot in self.slots.iter() {
            let slot = slot.lock(op.medium());
            held.extend(&slot.free);
            held.extend(slot.limbo.iter().map(|(node, _)| *node));
            held.extend(slot.waiting.iter().flat_map(|(nodes, _)| nodes));
        }
        held
    }
}

impl<M: Medium> Drop for Pages<M> {
    /// What a link cache holds back is durable when the structure is closed, so far as the pool still works.
    fn drop(&mut self) {
        let Some(cache) = &self.cache else { return };
        if let Ok(mut session) = self.root.pool().session()
            && let Ok(op) = session.enter()
        {
            cache.flush(&op);
        }
    }
}

impl Slot {
    /// Makes the bypasses of all unlinked nodes durable, and begins their grace period.
    fn close_generation<M: Medium>(&mut self, op: &Op<'_, M>) {
        if self.limbo.is_empty() && self.links.is_empty() {
            return;
        }
        let others = self.links.drain(..);
        let links = self.limbo.iter().map(|(_, link)| *link).filter(|link| !link.is_null()).chain(others);
        if links.map(|link| op.defer(op.at(link))).count() > 0 {
            // PERSIST LF-K4, LF-N6: flush+fence.
            op.drain();
        }
        let nodes = self.limbo.drain(..).map(|(node, _)| node).collect();
        self.waiting.push_back((nodes, op.grace()));
    }

    /// Takes back the generations that nobody can hold any more.
    fn poll<M: Medium>(&mut self, op: &Op<'_, M>, shape: PageShape) {
        while let Some((_, grace)) = self.waiting.front_mut()
            && grace.is_over(op.mapping())
        {
            let (nodes, _) = self.waiting.pop_front().expect("has a front");
            for node in &nodes {
                let entry = self.active.entry(shape.page_of(*node));
                entry.limbo -= 1;
                entry.free += 1;
            }
            self.free.extend(nodes);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use durix_pmem::backing::HeapBacking;
    use durix_pmem::{Counting, Hardware, PoolOptions};

    /// LF-U9: a trimming writes them back, whether nodes were unlinked or not.
    #[test]
    fn links_that_were_kept_are_durable_when_a_generation_is_closed() {
        let medium = Counting::new(Hardware::PAGE_CACHE);
        let options = PoolOptions::new().initial_size(1 << 20).max_size(1 << 20);
        let pool = options.create_on(HeapBacking::new(1 << 20), medium).unwrap();
        let mut session = pool.session().unwrap();
        let op = session.enter().unwrap();
        let mut slot = Slot { links: vec![Off::new(64 << 10), Off::new(128 << 10)], ..Slot::default() };
        for expected in [(2, 1), (0, 0)] {
            let before = medium.counts();
            slot.close_generation(&op);
            let counts = medium.counts() - before;
            assert_eq!((counts.write_backs, counts.fences), expected);
            assert!(slot.links.is_empty());
        }
    }

    fn in_memory(len: u64) -> durix_pmem::Pool<Hardware> {
        let options = PoolOptions::new().chunk_size(4096).lanes(1).max_indices(1).initial_size(len).max_size(len);
        options.create_on(HeapBacking::new(len), Hardware::PAGE_CACHE).unwrap()
    }

    /// An operation that stays open keeps pages active. When it has ended they go, and their nodes are for every session.
    #[test]
    fn pages_that_an_open_operation_has_kept_are_trimmed_when_it_has_ended() {
        let pool = in_memory(4 << 20);
        let options = Options::default().page_size(256).active_pages(4).generation(2);
        let map = crate::List::open_with(&pool, "map", &options).unwrap();
        let [mut a, mut b, mut reader] = [0; 3].map(|_| pool.session().unwrap());
        (0..3000).rev().for_each(|key| assert!(map.insert(&a.enter().unwrap(), key, 1).unwrap()));
        let open = reader.enter().unwrap();
        (0..3000).for_each(|key| assert!(map.remove(&a.enter().unwrap(), key).unwrap().is_some()));
        let in_operation = |look: &dyn Fn(&Op<'_, Hardware>) -> u64| look(&pool.session().unwrap().enter().unwrap());
        let active = || in_operation(&|op| map.page_stats(op).active);
        assert!(active() > 900, "{}", active());
        drop(open);
        // Some more removals end generations.
        for key in 0..6 {
            assert!(map.insert(&a.enter().unwrap(), key, 1).unwrap());
            assert!(map.remove(&a.enter().unwrap(), key).unwrap().is_some());
        }
        assert!(active() < 20, "{}", active());
        let free = || in_operation(&|op| pool.space().stats(op).free);
        let before = free();
        (0..2500).rev().for_each(|key| assert!(map.insert(&b.enter().unwrap(), key, 1).unwrap()));
        // A segment of cells.
        assert!(before - free() <= 2 * 4096, "{before} bytes were free, and now {}", free());
        assert_eq!(map.check(&a.enter().unwrap()).unwrap(), []);
    }
}
