//! A skip list.

mod recover;
mod run;
mod tower;

use std::fmt;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

use durix_pmem::pool::tally;
use durix_pmem::{Hardware, Kind, Medium, Off, OffsetSet, Op, PerSession, Root, Session, Structure, Word};

use crate::error::{Error, Result};
use crate::finding::Finding;
use crate::layout::{HEIGHT, LEVELS, Link, ROOT_HEAD, SKIP_LAYOUT_VERSION, TallNode};
use crate::link::{persist_own, swing_own};
use crate::linked::chain::Chain;
use crate::map::{Found, OrderedWordMap, WordMap};
use crate::options::Options;
use crate::pages::{PageStats, Pages};
use crate::range::{BATCH, after};
use crate::words::Words;
use tower::{Last, NewNode, Rising, Towers, Trust};

/// A durable lock-free skip list of 8-byte keys and values: an ordered map whose operations take logarithmic time. Its upper
/// levels are durable, too, so it recovers in the time of a search for each node in a page that was active, whatever its size.
pub type SkipList<M = Hardware> = Words<SkipCore<M>, M>;

/// What a [`SkipList`] is made of.
pub struct SkipCore<M: Medium> {
    pages: Pages<M>,
    heads: Off<Word<Link>>,
    /// The number of this opening.
    run: u64,
    /// Bits of randomness that a further level of a tower takes.
    ratio_bits: u32,
    /// State of each session's random numbers.
    random: PerSession<AtomicU64>,
}

impl<M: Medium> Structure<M> for SkipCore<M> {
    const KIND: Kind = Kind { tag: *b"LF-SKIP ", version: SKIP_LAYOUT_VERSION };
    const TALLIES: bool = true;
    type Options = Options;
    type Error = Error;

    fn create(session: &mut Session<M>, root: &Root<M>, options: &Options) -> Result<()> {
        let op = session.enter()?;
        Pages::create(&op, root, options)?;
        let (space, words) = (root.pool().space(), root.words(&op));
        let reserved = space.reserve_extent(&op, root.owner(), (LEVELS * size_of::<Word<Link>>()) as u64)?;
        reserved.zero(&op)?;
        let array = space.activate(&op, reserved)?;
        op.store(&words[ROOT_HEAD], array.off, Relaxed);
        // PERSIST LF-H1: flush, with the fence before the index goes live.
        op.write_back(words);
        Ok(())
    }

    fn open(session: &mut Session<M>, root: Root<M>, options: &Options) -> Result<Self> {
        let op = session.enter()?;
        let heads = op.load(&root.words(&op)[ROOT_HEAD], Relaxed);
        op.slice("the first links", Off::<Word<Link>>::new(heads), LEVELS as u64)?;
        options.refuse_link_cache()?;
        let run = run::begin(&op, &root);
        let (pages, found) = Pages::open(&op, root, &[heads], options)?;
        drop(op);
        let random = PerSession::new(|slot| AtomicU64::new(mix(u64::from(slot))));
        let ratio_bits = options.tower_ratio.trailing_zeros();
        let map = SkipCore { pages, heads: Off::new(heads), run, ratio_bits, random };
        map.pages.recover_in_order(session, &found, &map)?;
        Ok(map)
    }
}

/// Where the way of a node with so many levels is noted: nowhere for most, which have one, since filling the room takes time.
#[inline(always)]
fn noted<'p, 's, M: Medium>(
    towers: &Towers<'_, 's, M>,
    room: &'p mut Option<[Last<'s>; LEVELS - 1]>,
    height: usize,
) -> &'p mut [Last<'s>] {
    if height == 1 { &mut [] } else { &mut room.get_or_insert_with(|| towers.room())[..height - 1] }
}

fn mix(seed: u64) -> u64 {
    let z = (seed + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    z ^ z >> 31
}

impl<M: Medium> SkipCore<M> {
    #[inline(always)]
    fn towers<'a, 's>(&'a self, op: &'a Op<'s, M>) -> Towers<'a, 's, M> {
        let heads = op.slice("the first links", self.heads, LEVELS as u64).unwrap_or_default();
        Towers { op, heads, trust: Trust::Run(self.run), announced: self.pages.announced() }
    }

    /// The same, in an operation of a caller.
    ///
    /// # Errors
    /// [`Error::Pool`], if it is one of another pool.
    #[inline(always)]
    fn towers_of<'a, 's>(&'a self, op: &'a Op<'s, M>) -> Result<Towers<'a, 's, M>> {
        self.pages.expect_own(op)?;
        Ok(self.towers(op))
    }

    #[inline(always)]
    fn chain<'a, 's>(
        &'a self,
        towers: Towers<'a, 's, M>,
        start: &'s Word<Link>,
    ) -> Chain<'a, 's, M, Towers<'a, 's, M>> {
        Chain { op: towers.op, pages: &self.pages, head: start, above: towers }
    }

    /// The levels of the next node of a session.
    fn height(&self, op: &Op<'_, M>) -> usize {
        let state = self.random.of(op.slot());
        // A session is one thread's at a time.
        let mut x = state.load(Relaxed);
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        state.store(x, Relaxed);
        (1 + (x.wrapping_mul(0x2545_F491_4F6C_DD1D) | 1 << 63).trailing_zeros() / self.ratio_bits).min(LEVELS as u32)
            as usize
    }

    /// A node of so many levels; where the pool has one line left and not two, of as many as one line holds.
    fn allocate(&self, op: &Op<'_, M>, height: usize) -> Result<NewNode> {
        const ONE_LINE: usize = 1 + crate::layout::INNER;
        let off = self.pages.allocate(op)?;
        if height <= ONE_LINE {
            return Ok(NewNode { off, more: None, height });
        }
        match self.pages.allocate(op).map_err(Error::from) {
            Ok(more) => Ok(NewNode { off, more: Some(more), height }),
            Err(Error::Pool(error)) if error.is_no_room() => Ok(NewNode { off, more: None, height: ONE_LINE }),
            Err(error) => {
                self.pages.give_back(op, off);
                Err(error)
            }
        }
    }

    /// Gives a node back that was not linked.
    fn discard(&self, op: &Op<'_, M>, new: Option<NewNode>) {
        let lines = new.into_iter().flat_map(|new| new.more.into_iter().chain([new.off]));
        lines.for_each(|line| self.pages.give_back(op, line));
    }

    /// As `insert_with`; leaves a node in `spare` that was allocated, and that nothing has led to.
    #[inline(always)]
    fn insert_using(
        &self,
        op: &Op<'_, M>,
        key: u64,
        value: impl Fn() -> Option<u64>,
        spare: &mut Option<NewNode>,
    ) -> Result<bool> {
        let (towers, height) = (self.towers_of(op)?, self.height(op));
        let mut room = None;
        loop {
            let above = noted(&towers, &mut room, height);
            let chain = self.chain(towers, towers.descend(key, true, above)?);
            let Some(place) = chain.try_find(key)? else {
                towers.expect_first_link()?;
                continue;
            };
            let link = chain.settle(place.link.0, place.link.1);
            if place.with(key).is_some() {
                return Ok(false);
            }
            // The new node is as reachable as its predecessor.
            chain.settle(place.incoming.0, place.incoming.1);
            let new = match spare.take() {
                Some(new) => spare.insert(new),
                None => spare.insert(self.allocate(op, height)?),
            };
            let above = &above[..new.height - 1];
            let Some(value) = value() else { return Ok(false) };
            let node = towers.write(new, (key, value), link.clean(), above);
            let rising = towers.raise(node, above);
            let level_0 = chain.link(place.link.0);
            if swing_own(&level_0, link, node).is_ok() {
                self.pages.tally(|tally| tally.inserted(op.slot(), tally::entry(key, value)));
                towers.write_back(&rising);
                persist_own(&level_0);
                self.finish(&towers, &rising);
                *spare = None;
                return Ok(true);
            }
            self.give_up(op, spare, &towers.abandon(&rising));
        }
    }

    /// Ends the rising of a node that is on level 0.
    #[inline(always)]
    fn finish(&self, towers: &Towers<'_, '_, M>, rising: &Rising<'_>) {
        let links = towers.finish(rising);
        if !links.is_empty() {
            // PERSIST LF-U9: flush+fence, with the generation or the trimming.
            self.pages.keep_links(towers.op, &links);
        }
    }

    /// Retires a node that did not get to level 0, if others may still look at its tower; `links` have led to it.
    #[cold]
    fn give_up(&self, op: &Op<'_, M>, spare: &mut Option<NewNode>, links: &[Off<Word<Link>>]) {
        if let Some(new) = spare.take_if(|_| !links.is_empty()) {
            self.pages.retire_unlinked(op, new.more.into_iter().chain([new.off]), links);
        }
    }

    /// As `update_with`; leaves a node in `spare` that was allocated, and that nothing has led to.
    #[inline(always)]
    fn update_using(
        &self,
        op: &Op<'_, M>,
        key: u64,
        new: impl Fn(u64) -> Option<u64>,
        spare: &mut Option<NewNode>,
    ) -> Result<Found> {
        let (towers, height) = (self.towers_of(op)?, self.height(op));
        let mut room = None;
        loop {
            let above = noted(&towers, &mut room, height);
            let chain = self.chain(towers, towers.descend(key, true, above)?);
            let Some(place) = chain.try_find(key)? else {
                towers.expect_first_link()?;
                continue;
            };
            // Whatever becomes of it: the new node is as reachable as the old one, and what is not there stays away.
            chain.settle(place.link.0, place.link.1);
            let Some((node, next)) = place.with(key) else { return Ok(None) };
            let old = op.load(&node.value, Relaxed);
            let Some(value) = new(old) else { return Ok(Some((old, false))) };
            let next = chain.settle(&node.next, next);
            let fresh = match spare.take() {
                Some(new) => spare.insert(new),
                None => spare.insert(self.allocate(op, height)?),
            };
            let above = &above[..fresh.height - 1];
            let link = towers.write(fresh, (key, value), next.clean(), above);
            let rising = towers.raise(link, above);
            let mut linked = false;
            let finish = || {
                self.finish(&towers, &rising);
                linked = true;
            };
            let deleted = chain.delete(&place, node, next, link, || towers.write_back(&rising), finish);
            if linked {
                *spare = None;
            } else {
                self.give_up(op, spare, &towers.abandon(&rising));
            }
            if deleted?.is_some() {
                return Ok(Some((old, true)));
            }
        }
    }

    /// The entries up to `last` from a node some way before it, which does not count; returns that node's key.
    fn before(&self, op: &Op<'_, M>, last: u64, into: &mut Vec<(u64, u64)>) -> Result<Option<u64>> {
        /// About 64 entries, where one of four nodes is on the next level.
        const LEVEL: usize = 3;
        let towers = self.towers_of(op)?;
        let (start, key) = towers.path(last, false)?.back(&towers, LEVEL)?;
        let from = key.map_or(0, |key| key.saturating_add(1));
        let chain = self.chain(towers, start);
        chain.collect_to(from, last, into)?;
        Ok(key)
    }
}

impl<M: Medium> WordMap<M> for SkipCore<M> {
    const NAME: &'static str = "SkipList";
    const ORDERED: bool = true;

    fn root(&self) -> &Root<M> {
        self.pages.root()
    }

    #[inline]
    fn get(&self, op: &Op<'_, M>, key: u64) -> Result<Option<u64>> {
        let towers = self.towers_of(op)?;
        self.chain(towers, towers.descend(key, false, &mut [])?).get(key)
    }

    #[inline(always)]
    fn insert_with(&self, op: &Op<'_, M>, key: u64, value: impl Fn() -> Option<u64>) -> Result<bool> {
        let mut spare = None;
        let inserted = self.insert_using(op, key, value, &mut spare);
        self.discard(op, spare);
        inserted
    }

    #[inline]
    fn update_with(&self, op: &Op<'_, M>, key: u64, new: impl Fn(u64) -> Option<u64>) -> Result<Found> {
        let mut spare = None;
        let outcome = self.update_using(op, key, new, &mut spare);
        self.discard(op, spare);
        outcome
    }

    #[inline]
    fn remove_with(&self, op: &Op<'_, M>, key: u64, wanted: impl Fn(u64) -> bool) -> Result<Found> {
        let towers = self.towers_of(op)?;
        loop {
            let chain = self.chain(towers, towers.descend(key, true, &mut [])?);
            let Some(place) = chain.try_find(key)? else {
                towers.expect_first_link()?;
                continue;
            };
            let Some((node, next)) = place.with(key) else {
                chain.settle(place.link.0, place.link.1);
                return Ok(None);
            };
            let value = op.load(&node.value, Relaxed);
            if !wanted(value) {
                chain.settle(place.link.0, place.link.1);
                return Ok(Some((value, false)));
            }
            let next = chain.settle(&node.next, next);
            if let Some(value) = chain.delete(&place, node, next, next, || (), || ())? {
                return Ok(Some((value, true)));
            }
        }
    }

    fn walk(&self, op: &Op<'_, M>, from: u64, into: &mut Vec<(u64, u64)>) -> Result<Option<u64>> {
        let towers = self.towers_of(op)?;
        let all = self.chain(towers, towers.descend(from, false, &mut [])?).collect(from, BATCH, into)?;
        Ok(after(into, all))
    }

    fn check(&self, op: &Op<'_, M>) -> Result<Vec<Finding>> {
        let (towers, mut findings) = (self.towers_of(op)?, Vec::new());
        let (mut nodes, mut lines) = (OffsetSet::default(), OffsetSet::default());
        // LF-U7: no node is of this run before one was written.
        let idle = self.pages.stats(op).allocations == 0;
        self.chain(towers, &towers.heads[0]).walk(|_, node, key| {
            // A node that comes twice is an error of the walk.
            nodes.insert(node.get());
            if idle && towers.is_of_run(node, self.run) {
                findings.push(Finding::Misplaced { off: node.get(), key });
            }
            if !towers.is_sealed(node) {
                findings.push(Finding::Damaged { off: node.get() });
            }
            lines.extend(towers.more(node).map(Off::get));
        })?;
        lines.extend(&nodes);
        for level in 1..LEVELS {
            let above = towers.on_level(level)?;
            let stray = above.iter().filter(|(node, _, taken)| *taken && !nodes.contains(node));
            findings.extend(stray.map(|(node, key, _)| Finding::Misplaced { off: *node, key: *key }));
            nodes = above.into_iter().map(|(node, ..)| node).collect();
        }
        findings.extend(self.pages.check(op, &lines, &[self.heads.get()]));
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

impl<M: Medium> OrderedWordMap<M> for SkipCore<M> {
    fn walk_back(&self, op: &Op<'_, M>, to: u64, into: &mut Vec<(u64, u64)>) -> Result<Option<u64>> {
        let mut last = Some(to);
        while let Some(to) = last.filter(|_| into.is_empty()) {
            last = self.before(op, to, into)?;
        }
        into.reverse();
        Ok(last)
    }

    fn first(&self, op: &Op<'_, M>) -> Result<Option<(u64, u64)>> {
        let (towers, mut found) = (self.towers_of(op)?, Vec::new());
        self.chain(towers, &towers.heads[0]).collect(0, 1, &mut found)?;
        Ok(found.pop())
    }
}

impl<M: Medium> SkipList<M> {
    /// Writes every node with its height and its marks, in the order of keys, for people who look for a fault.
    ///
    /// # Errors
    /// What `out` returns.
    pub fn dump(&self, op: &Op<'_, M>, out: &mut dyn fmt::Write) -> fmt::Result {
        let (towers, mut result) = (self.map.towers_of(op).map_err(|_| fmt::Error)?, Ok(()));
        let walked = self.map.chain(towers, &towers.heads[0]).walk(|_, off, key| {
            let node: &TallNode = op.at(off.cast());
            let (next, value) = (op.load(&node.next, Relaxed), op.load(&node.value, Relaxed));
            let (height, marks) =
                (op.load(&node.height, Relaxed) & HEIGHT, if next.is_deleted() { " deleted" } else { "" });
            if result.is_ok() {
                result = writeln!(out, "{:#x}: {key} = {value}, {height} levels{marks}", off.get());
            }
        });
        result?;
        if let Err(error) = walked {
            writeln!(out, "{error}")?;
        }
        Ok(())
    }
}
