//! The upper levels of the skip list.
//!
//! Every node is in the list of level 0 (`chain.rs`), which alone says what the map holds: a node is deleted when its link on
//! level 0 says so. Some are in lists above as well, which searches take to get near a key. A search descends only from
//! nodes that are not deleted, and that are not *rising*: being put on their levels by an insert that has not ended.
//!
//! # The upper levels are durable, and never wrong
//! They lie in the nodes and are there after a restart, whatever their size. A link to memory that is used again, or a node
//! that is on some level and not on one below it, would lead a search astray, so this has to hold in every crash state:
//! **a clean link on an upper level leads to a node that is on all lower levels, and whose memory is not used again.**
//!
//! # Marks that a crash has left
//! Links on upper levels are written back with their mark, which is then taken off in the cache alone: after a power failure
//! most of them carry it. So the mark alone does not say that a node is rising. Each opening of the list is a *run* with a
//! number; a node carries that of the run that wrote it. **A marked link to a node of an earlier run counts as clean**, for
//! good: recovery has seen to it that the node is on all levels below (LF-U8). It needs to look at nodes in active pages only:
//! an insert has ended, and what it wrote is durable, before the page of its node leaves the table (LF-N7, LF-U9). While recovery
//! is under way, a marked link counts as clean if its node lies in no active page, or has been looked at. Nodes are looked at
//! in the order of their keys, so that searches pass few that have not been.
//!
//! A search without `change` goes around a rising node as around a deleted one: by the node's own link, which is sound where
//! the node is linked on that level.
//!
//! | edge | kept by | a crash before it leaves | recovery |
//! |---|---|---|---|
//! | LF-U1 contents of a node, its tower with the successors found included < a link to it on any level | flush+fence (LF-K1) | the node unreachable | frees it |
//! | LF-U2 links on all levels < the mark *dirty* is taken off on an upper one, from below | flush+fence: the one of LF-K2 | dirty links on upper levels to a node that is not on all lower ones | LF-U8; where the node is not on level 0, LF-U6 |
//! | LF-U3 deletion mark on level 0 < the node is taken out on an upper level | flush+fence (LF-K3) | a deleted node, on some levels or all | taken out by who comes by, at the latest with its bypass on level 0 |
//! | LF-U4 the node out on all upper levels < its bypass on level 0 | order of the same thread; it need not be durable before | a node that is out on level 0 and on upper levels not | recovery takes it out: its page is active (LF-N5) |
//! | LF-U5 the links past a node on all levels < its memory is used again | flush+fence, once for a generation (LF-N6) | as LF-U4 | as LF-U4 |
//! | LF-U6 what recovery has changed on upper levels < freed nodes are used | flush+fence, before LF-N9 | as before | the same again |
//! | LF-U7 the number of the run < a node carries it | flush, with LF-N9 | two runs with one number: nodes of the first count as rising in the second, and are resolved one by one | nothing |
//! | LF-U8 the upper links to a node of an active page are durable, and none is left above a level where it is missing < the table is emptied | flush, with LF-N9 | active pages | the same again |
//! | LF-U9 links that were taken back from a node < its page leaves the table | flush+fence, with the generation (LF-N6) or the trimming | a marked link to a node that is not on all lower levels, in an active page | LF-U8 |
//!
//! An insert sets the links on the upper levels first, marked dirty, then the link on level 0, and writes all back under the
//! one fence that it needs anyway. So a node has no link to come once it is on level 0, and whoever deletes it finds all of
//! them. The links are cleaned from below, so a clean one shows that all below it are durable. A remove writes nothing back
//! for the upper levels until its generation ends.
//!
//! LF-U5 needs only the links that *now* lead past the node, as a search finds them, whoever has changed them: any older value
//! that may still be the durable one leads over deleted nodes with keys between, none of which is used again, back to this
//! level; and the only link on the level from which such a way can lead to the node is the one before it.
//!
//! # Resolving a dirty link
//! It leads to a rising node. If the node is on all lower levels, everything is written back and the link is cleaned. If not,
//! the link is taken back; the tower of the node then ends below this level. Taking it back is right for an insert that has
//! not got to level 0, and for one that a crash has cut off on the way.
//!
//! # The races
//! *One takes a dirty link back, the insert that set it cleans it.* Both expect the dirty value. If the cleaning comes
//! first, the link stays, with everything below it durable; if the taking back comes first, the insert ends the tower there
//! and takes its own links above back.
//!
//! *One takes a link back that it met before the node was on level 0, another cleans the links above meanwhile, having found the
//! node on all levels.* Both expect the dirty value of the lower link, and it is cleaned before those above. Who cannot clean it
//! cleans none above; so nothing descends to a level from which the node was taken back.
//!
//! *One deletes a node, its insert is still cleaning.* All links to it are set by then. The deleter takes them out, dirty or
//! clean; the insert cleans what it finds as it left it, and sets nothing.
//!
//! *One inserts behind a node on an upper level, another takes that node out there.* The node's own link is frozen first
//! (the deletion mark of the link). If the insert's exchange comes first, the freezing takes the new link in; if the
//! freezing comes first, the insert fails on this level, and its tower ends below.

use std::sync::atomic::Ordering::{Acquire, Relaxed};

use durix_pmem::{Bits, Medium, Off, Op, Word};

use crate::error::{Error, Quick, Result};
use crate::layout::{HEIGHT, INNER, LEVELS, Link, Node, RUN_SHIFT, RUNS, TALL_SUM, TallNode, Upper, tall_sum};
use crate::link::{Announced, DurableLink, settle};
use crate::linked::chain::UpperLayer;
use crate::pages::Known;
use crate::row::Row;

/// Steps on a level that bring a search no further, at most; more are a loop. In a sound list a step that does not come to a
/// higher key meets a node that is deleted or rising, or follows a change by somebody else. (No row of nodes with one
/// key grows as in the list below: an update links the new node before the old one here.) Nodes of one key that are passed are
/// watched for circles besides ([`Row`]), so that a damaged file does not cost each search that many steps.
const MAX_IDLE: u32 = 1 << 16;
/// Times that a node is looked for anew to take it out on its upper levels: each but the first follows a change by somebody else.
const MAX_SEVERS: u32 = 1 << 14;

/// The upper levels, by their first links; the first of all, that of level 0, included.
pub(super) struct Towers<'a, 's, M: Medium> {
    pub(super) op: &'a Op<'s, M>,
    pub(super) heads: &'s [Word<Link>],
    pub(super) trust: Trust<'a>,
    pub(super) announced: &'a Announced,
}

/// Which marked links on upper levels count as clean.
#[derive(Clone, Copy)]
pub(super) enum Trust<'a> {
    /// Those to nodes of other runs than this one.
    Run(u64),
    /// In recovery: those to nodes in no active page, and to nodes that were looked at.
    Known(&'a Known<'a>),
}

impl<M: Medium> Clone for Towers<'_, '_, M> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<M: Medium> Copy for Towers<'_, '_, M> {}

/// The last link on a level that does not lead past a key.
#[derive(Clone, Copy)]
pub(super) struct Last<'s> {
    pub(super) word: &'s Word<Link>,
    /// What it leads to, if it can be changed.
    seen: Option<Link>,
    /// The key of the node that holds it; `None` at the head.
    from: Option<u64>,
}

/// The way to a key.
pub(super) struct Path<'s> {
    /// The link on level 0 from which the key is reached.
    pub(super) start: &'s Word<Link>,
    /// Level 1 first.
    pub(super) above: [Last<'s>; LEVELS - 1],
}

impl<'s> Path<'s> {
    /// A link on level 0 from which some more nodes lie before the key, about `ratio` to the power of `level`, and the key
    /// of the node that holds it.
    pub(super) fn back<M: Medium>(
        &self,
        towers: &Towers<'_, 's, M>,
        level: usize,
    ) -> Quick<(&'s Word<Link>, Option<u64>)> {
        let last = &self.above[level - 1];
        let Some(key) = last.from else { return Ok((&towers.heads[0], None)) };
        Ok((towers.descend(key.saturating_add(1), false, &mut [])?, Some(key)))
    }
}

/// Keeps watch that keys do not descend along a level, and that they ascend some time. How many nodes lie on the way to a key
/// is no sign of anything: others may have inserted them since the way was looked for.
struct Passing {
    last: u64,
    idle: u32,
    /// Nodes with the key `last` that were passed.
    row: Row,
}

impl Passing {
    const START: Passing = Passing { last: 0, idle: 0, row: Row::NONE };

    /// Whether it may pass a node of this key, which lies at `off`.
    fn passes(&mut self, key: u64, off: u64) -> bool {
        let row = if key > self.last { Row::NONE } else { self.row };
        let passed = row.and(off).map(|row| self.row = row);
        self.goes_on(key) && passed.is_ok()
    }

    /// Whether it may look again at the link that it is at, which somebody has changed.
    fn stays(&mut self) -> bool {
        self.idle += 1;
        self.idle < MAX_IDLE
    }

    /// Whether it may go on with a node of this key.
    fn goes_on(&mut self, key: u64) -> bool {
        let ascends = key > self.last;
        self.idle = if ascends { 0 } else { self.idle + 1 };
        std::mem::replace(&mut self.last, key) <= key && self.idle < MAX_IDLE
    }
}

/// A new node, on its way to its upper levels.
pub(super) struct Rising<'s> {
    /// The clean link to it.
    link: Link,
    /// Links that lead to it, and what they led to before, level 1 first.
    set: Vec<(&'s Word<Link>, Link)>,
}

impl<'a, 's, M: Medium> Towers<'a, 's, M> {
    /// Number of levels of a node.
    #[inline(always)]
    pub(super) fn height(&self, node: &TallNode) -> usize {
        ((self.op.load(&node.height, Relaxed) & HEIGHT) as usize).clamp(1, LEVELS)
    }

    /// Whether a link on an upper level leads to a node that may not be on all lower ones.
    #[inline(always)]
    pub(super) fn is_to_rising(&self, link: Link) -> bool {
        link.is_dirty() && self.is_rising(link.node())
    }

    /// Whether a node was written in a run.
    #[inline(always)]
    pub(super) fn is_of_run(&self, off: Off<Node>, run: u64) -> bool {
        let node: &TallNode = self.op.at(off.cast());
        self.op.load(&node.height, Relaxed) >> RUN_SHIFT & RUNS == run
    }

    fn is_rising(&self, off: Off<Node>) -> bool {
        match self.trust {
            Trust::Run(run) => self.is_of_run(off, run),
            Trust::Known(known) => !known.vouches_for(off),
        }
    }

    /// The link of a node on a level, or that of the head; `None` where the node ends below.
    #[inline(always)]
    pub(super) fn word(&self, node: Option<&'s TallNode>, level: usize) -> Option<&'s Word<Link>> {
        match node {
            None => Some(&self.heads[level]),
            Some(node) if level == 0 => Some(&node.next),
            Some(node) if level <= INNER => Some(&node.tower[level - 1]),
            Some(node) => {
                let more = self.op.load(&node.more, Relaxed);
                self.op.get(more).map(|more: &Upper| &more.links[level - 1 - INNER])
            }
        }
    }

    #[cold]
    pub(super) fn corrupt(&self, node: Link, key: u64) -> Error {
        Error::Corrupt { what: "an upper level out of order", offset: node.off(), found: key }
    }

    /// Makes sure that a search which begins anew can end: the first link of all is no node's, and nobody deletes it.
    #[cold]
    pub(super) fn expect_first_link(&self) -> Result<()> {
        let head = self.op.load(&self.heads[0], Acquire);
        if !head.is_deleted() {
            return Ok(());
        }
        let offset = self.op.off_of(&self.heads[0]).get();
        Err(Error::Corrupt { what: "the first link of a list", offset, found: head.to_bits() })
    }

    fn link(&self, word: &'s Word<Link>) -> DurableLink<'a, 's, M> {
        DurableLink::new(self.op, self.announced, word)
    }

    // ---- searching ----

    /// Goes down to a key; returns the link on level 0 from which it is reached. With `change`, takes deleted nodes out on
    /// the way and resolves links to rising ones; without, goes around both. Notes the way on the lower levels in `above`, level 1 first.
    #[inline(always)]
    pub(super) fn descend(&self, key: u64, change: bool, above: &mut [Last<'s>]) -> Quick<&'s Word<Link>> {
        let mut at = (None, None);
        for level in (1..LEVELS).rev() {
            let head = self.at_head(level);
            let last = match head.seen {
                // Nobody is so high.
                Some(Link::NULL) if at.0.is_none() => head,
                _ => self.go(level, key, &mut at, change)?,
            };
            if let Some(noted) = above.get_mut(level - 1) {
                *noted = last;
            }
        }
        Ok(self.word(at.0, 0).expect("every node has a level 0"))
    }

    /// The first link on a level.
    #[inline(always)]
    fn at_head(&self, level: usize) -> Last<'s> {
        let word = &self.heads[level];
        Last { word, seen: Some(self.op.load(word, Acquire)), from: None }
    }

    /// The whole way to a key.
    pub(super) fn path(&self, key: u64, change: bool) -> Quick<Path<'s>> {
        let mut above = self.room();
        let start = self.descend(key, change, &mut above)?;
        Ok(Path { start, above })
    }

    /// Room to note the way of a node with more than one level.
    pub(super) fn room(&self) -> [Last<'s>; LEVELS - 1] {
        [self.at_head(0); LEVELS - 1]
    }

    /// Goes as far as possible on one level, from the node `at`, whose key is beside it.
    #[inline(always)]
    fn go(
        &self,
        level: usize,
        key: u64,
        at: &mut (Option<&'s TallNode>, Option<u64>),
        change: bool,
    ) -> Quick<Last<'s>> {
        let op = self.op;
        let mut word = self.word(at.0, level).expect("a node is taken on its own levels");
        // Where deleted nodes are gone around, the link of one.
        let (mut around, mut seen) = (word, op.load(word, Acquire));
        let (mut idle, mut passed, mut row, lines) = (0, at.1, Row::NONE, op.lines());
        while !seen.is_null() {
            let node: &TallNode = lines.at(seen.to_bits());
            let found = op.load(&node.key, Relaxed);
            idle += 1;
            if found >= key {
                break;
            }
            let own = self.word(Some(node), level);
            let (Some(own), true) =
                (own, passed.is_none_or(|last| last <= found) && level < self.height(node) && idle < MAX_IDLE)
            else {
                return Err(self.corrupt(seen, found).into());
            };
            let rising = self.is_to_rising(seen);
            if !rising && !op.load(&node.next, Acquire).is_deleted() {
                *at = (Some(node), Some(found));
                (word, around) = (own, own);
            } else if change && rising {
                self.resolve(level, around, seen)?;
                seen = op.load(around, Acquire);
                continue;
            } else if change && !seen.is_deleted() {
                self.take_out(level, around, seen, node)?;
                seen = op.load(around, Acquire);
                continue;
            } else {
                around = own;
            }
            if passed == Some(found) {
                row = row.and(seen.off())?;
            } else {
                // The row goes on: nodes of another key are others.
                (idle, passed) = (0, Some(found));
            }
            seen = op.load(around, Acquire);
        }
        let fit = std::ptr::eq(around, word) && !seen.is_deleted() && !self.is_to_rising(seen);
        Ok(Last { word, seen: fit.then_some(seen), from: at.1 })
    }

    /// The link on a level that leads to a node, looked for from `word` on.
    pub(super) fn locate(
        &self,
        level: usize,
        mut word: &'s Word<Link>,
        key: u64,
        off: Off<Node>,
    ) -> Quick<Option<(&'s Word<Link>, Link)>> {
        let mut passing = Passing::START;
        loop {
            let seen = self.op.load(word, Acquire);
            if seen.node() == off {
                return Ok(Some((word, seen)));
            }
            let Some(node) = self.op.get(seen.node().cast::<TallNode>()) else { return Ok(None) };
            let found = self.op.load(&node.key, Relaxed);
            if found > key {
                return Ok(None);
            }
            let own = self.word(Some(node), level).filter(|_| passing.passes(found, seen.off()));
            word = own.ok_or_else(|| self.corrupt(seen, found))?;
        }
    }

    // ---- keeping the levels right ----

    /// Cleans a link to a rising node, if that is on all lower levels, or takes it back.
    #[cold]
    fn resolve(&self, level: usize, word: &'s Word<Link>, seen: Link) -> Result<()> {
        let op = self.op;
        let node: &TallNode = op.at(seen.node().cast());
        let key = op.load(&node.key, Relaxed);
        let path = self.path(key, false)?;
        let mut below = Vec::new();
        for lower in 0..level {
            let from = if lower == 0 { path.start } else { path.above[lower - 1].word };
            let Some(link) = self.locate(lower, from, key, seen.node())? else {
                let before = self.word(Some(node), level).map_or(Link::NULL, |own| op.load(own, Acquire));
                // The exchange fails where the insert, or somebody else, has got further: then this is done.
                let _ = op.compare_exchange(word, seen, Link::to(before.off()));
                return Ok(());
            };
            below.push(link);
        }
        for (word, _) in &below {
            op.write_back(*word);
        }
        op.write_back(word);
        // PERSIST LF-U2: flush+fence.
        op.fence();
        below.push((word, seen));
        self.clean_upwards(&below);
        Ok(())
    }

    /// Cleans links to a rising node that are durable, level 0 first; ends at one that is not what it was. Another may have
    /// come to a link before the node was on the levels below, and have taken it back since: then none above may be clean.
    fn clean_upwards(&self, links: &[(&'s Word<Link>, Link)]) {
        for (word, seen) in links.iter().filter(|(_, seen)| seen.is_dirty()) {
            let cleaned = self.op.compare_exchange(*word, *seen, seen.clean());
            if cleaned.is_err_and(|found| found != seen.clean()) {
                return;
            }
        }
    }

    /// Takes a deleted node out on one level, unless the link to it has changed.
    #[cold]
    fn take_out(&self, level: usize, word: &'s Word<Link>, seen: Link, node: &'s TallNode) -> Result<()> {
        let op = self.op;
        let next = op.load(&node.next, Acquire);
        if next.is_dirty() {
            // PERSIST LF-U3: flush+fence.
            settle(&self.link(&node.next), next);
        }
        let Some(own) = self.word(Some(node), level) else { return Err(self.corrupt(seen, level as u64)) };
        let frozen = loop {
            let link = op.load(own, Acquire);
            if self.is_to_rising(link) {
                self.resolve(level, own, link)?;
            } else if link.is_deleted() || op.compare_exchange(own, link, link.clean().deleted()).is_ok() {
                break link;
            }
        };
        let _ = op.compare_exchange(word, seen, Link::to(frozen.off()));
        Ok(())
    }

    /// Takes all deleted nodes with a key out on one level, and resolves links to rising nodes with it, from the link `word`
    /// on. Adds the links that lead past to `links`. Returns whether the level was gone through to the end.
    fn clear(
        &self,
        level: usize,
        mut word: &'s Word<Link>,
        key: u64,
        links: &mut Vec<Off<Word<Link>>>,
    ) -> Result<bool> {
        let (op, mut passing) = (self.op, Passing::START);
        loop {
            let seen = op.load(word, Acquire);
            let node = op.get(seen.node().cast::<TallNode>());
            let Some((node, found)) =
                node.map(|node| (node, op.load(&node.key, Relaxed))).filter(|(_, found)| *found <= key)
            else {
                links.push(op.off_of(word));
                return Ok(!seen.is_deleted());
            };
            if seen.is_deleted() {
                return Ok(false);
            }
            // Only the keys of nodes that stay ascend: in the place of one that is taken out, another inserts a lower one.
            let rising = self.is_to_rising(seen);
            let stays = !rising && !op.load(&node.next, Acquire).is_deleted();
            if !if stays { passing.goes_on(found) } else { passing.stays() } {
                return Err(self.corrupt(seen, found));
            }
            if rising {
                self.resolve(level, word, seen)?;
            } else if !stays {
                self.take_out(level, word, seen, node)?;
            } else {
                links.push(op.off_of(word));
                word = self.word(Some(node), level).ok_or_else(|| self.corrupt(seen, key))?;
            }
        }
    }

    /// Takes a node out on its upper levels that is deleted, or that is not on level 0.
    pub(super) fn sever(&self, off: Off<Node>, links: &mut Vec<Off<Word<Link>>>) -> Result<()> {
        let node: &TallNode = self.op.at(off.cast());
        let (key, height) = (self.op.load(&node.key, Relaxed), self.height(node));
        for _ in 0..MAX_SEVERS {
            let path = self.path(key, true)?;
            let mut done = true;
            for level in (1..height).rev() {
                done &= self.clear(level, path.above[level - 1].word, key, links)?;
            }
            if done {
                return Ok(());
            }
        }
        Err(self.corrupt(Link::to(off.get()), key))
    }

    /// Whether the checksum of a node is right.
    pub(super) fn is_sealed(&self, off: Off<Node>) -> bool {
        let node: &TallNode = self.op.at(off.cast());
        let [key, value, height] = [&node.key, &node.value, &node.height].map(|word| self.op.load(word, Relaxed));
        let more = self.op.load(&node.more, Relaxed).get();
        height >> TALL_SUM << TALL_SUM == tall_sum(off.get(), key, value, height, more)
    }

    /// The line with the upper links of a node, if it has one.
    pub(super) fn more(&self, off: Off<Node>) -> Option<Off<Node>> {
        let node: &TallNode = self.op.at(off.cast());
        let more = self.op.load(&node.more, Relaxed);
        (self.height(node) > INNER + 1 && !more.is_null()).then(|| more.cast())
    }

    // ---- inserting ----

    /// The number of this run. Nothing is inserted in recovery.
    fn run(&self) -> u64 {
        match self.trust {
            Trust::Run(run) => run,
            Trust::Known(_) => 0,
        }
    }

    /// Writes a node of this run, with a tower that leads where the way to it does, `above`. Durable on return.
    pub(super) fn write(&self, new: &NewNode, (key, value): (u64, u64), next: Link, above: &[Last<'s>]) -> Link {
        let op = self.op;
        let successor = |level: usize| {
            let seen = above.get(level - 1).and_then(|last| last.seen);
            Link::to(seen.unwrap_or(Link::NULL).off())
        };
        let node = op.fresh(new.off.cast::<TallNode>());
        op.store(&node.next, next, Relaxed);
        op.store(&node.key, key, Relaxed);
        op.store(&node.value, value, Relaxed);
        let (height, more) = (new.height as u64 | self.run() << RUN_SHIFT, new.more.map_or(0, Off::get));
        op.store(&node.height, height | tall_sum(new.off.get(), key, value, height, more), Relaxed);
        for (level, link) in (1..).zip(&node.tower) {
            op.store(link, successor(level), Relaxed);
        }
        op.store(&node.more, new.more.map_or(Off::NULL, Off::cast), Relaxed);
        if let Some(more) = new.more {
            let upper = op.fresh(more.cast::<Upper>());
            op.store(&upper.node, new.off.get(), Relaxed);
            for (level, link) in (1 + INNER..).zip(&upper.links) {
                op.store(link, successor(level), Relaxed);
            }
            // PERSIST LF-U1: flush, with the fence of the node.
            let _ = upper.write_back(op);
        }
        self.announced.fetch_back(op, new.off.get());
        let node = node.write_back(op);
        // PERSIST LF-U1, LF-N4: flush+fence.
        let node = op.settle(node);
        Link::to(node.off().get())
    }

    /// Sets the upper links to a new node, dirty, as far as the levels are as the way there has found them.
    pub(super) fn raise(&self, link: Link, above: &[Last<'s>]) -> Rising<'s> {
        let mut set = Vec::new();
        for last in above {
            let Some(seen) = last.seen else { break };
            if self.op.compare_exchange(last.word, seen, link.dirty()).is_err() {
                break;
            }
            set.push((last.word, seen));
        }
        Rising { link, set }
    }

    /// Starts writing the upper links back, for the fence of the link on level 0.
    pub(super) fn write_back(&self, rising: &Rising<'s>) {
        for (word, _) in &rising.set {
            // PERSIST LF-U2: flush, with the fence of LF-K2.
            self.op.write_back(*word);
        }
    }

    /// Cleans the upper links, from below, now that all are durable. Where somebody has taken one back, takes those above
    /// back, too; returns the links that have to be durable before the page of the node leaves the table.
    #[must_use]
    pub(super) fn finish(&self, rising: &Rising<'s>) -> Vec<Off<Word<Link>>> {
        let link = rising.link;
        for (level, (word, _)) in rising.set.iter().enumerate() {
            let cleaned = self.op.compare_exchange(*word, link.dirty(), link);
            if cleaned.is_err_and(|found| found != link) {
                return self.take_back(link, &rising.set[level..]);
            }
        }
        Vec::new()
    }

    /// Takes all upper links back to a node that has not got to level 0. They have to be durable before it is used again.
    pub(super) fn abandon(&self, rising: &Rising<'s>) -> Vec<Off<Word<Link>>> {
        self.take_back(rising.link, &rising.set)
    }

    /// Returns the links, which may not be durable.
    #[cold]
    fn take_back(&self, link: Link, set: &[(&'s Word<Link>, Link)]) -> Vec<Off<Word<Link>>> {
        for (word, before) in set.iter().rev() {
            let _ = self.op.compare_exchange(*word, link.dirty(), *before);
        }
        set.iter().map(|(word, _)| self.op.off_of(*word)).collect()
    }
}

/// A node before it is linked.
pub(super) struct NewNode {
    pub(super) off: Off<Node>,
    /// Its line with upper links.
    pub(super) more: Option<Off<Node>>,
    pub(super) height: usize,
}

impl<M: Medium> UpperLayer for Towers<'_, '_, M> {
    #[inline(always)]
    fn detach(&self, off: Off<Node>, links: &mut Vec<Off<Word<Link>>>) -> Result<Option<Off<Node>>> {
        // PERSIST LF-U4: order.
        if self.has(off) {
            self.sever(off, links)?;
        }
        Ok(self.more(off))
    }

    #[inline(always)]
    fn has(&self, off: Off<Node>) -> bool {
        self.height(self.op.at(off.cast())) > 1
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;
    use std::cmp::Ordering::{Equal, Greater, Less};
    use std::sync::atomic::{AtomicU64, Ordering};

    use super::super::SkipList;
    use super::*;
    use crate::Options;
    use durix_pmem::backing::HeapBacking;
    use durix_pmem::medium::Survives;
    use durix_pmem::{Hardware, Lines, Pool, PoolOptions, Rmw};

    fn pool<M: Medium>(medium: M) -> Pool<M> {
        let options = PoolOptions::new().initial_size(1 << 20).max_size(1 << 20);
        options.create_on(HeapBacking::new(1 << 20), medium).unwrap()
    }

    #[test]
    fn keys_that_ascend_are_passed_however_many_and_others_only_so_often() {
        let mut passing = Passing::START;
        assert!((0..=1 << 21).all(|key| passing.goes_on(key)));
        assert!((1..MAX_IDLE).all(|_| passing.goes_on(1 << 21)) && !passing.goes_on(1 << 21));
        assert!(!passing.goes_on(5), "it descends");
    }

    /// Each search went a million steps.
    #[test]
    fn a_circle_of_nodes_with_one_key_is_found_soon() {
        for len in [1, 2, 3, 100] {
            let mut passing = Passing::START;
            let passed = (0..).take_while(|step| passing.passes(7, 64 + 64 * (step % len))).count() as u64;
            assert!((len..=4 * len).contains(&passed), "{passed} steps in a circle of {len}");
        }
    }

    /// LF-U9. It takes two threads and four switches between them, too many for all interleavings.
    #[test]
    fn a_tower_ends_where_somebody_has_taken_a_link_back_and_the_links_are_kept() {
        let pool = pool(Hardware::PAGE_CACHE);
        let map = SkipList::open(&pool, "map").unwrap();
        let mut session = pool.session().unwrap();
        let op = session.enter().unwrap();
        let towers = map.map.towers(&op);
        let above = towers.path(7, true).unwrap().above;
        for taken_back in 1..=3 {
            let new = map.map.allocate(&op, 4).unwrap();
            let node = towers.write(&new, (7, 70), Link::NULL, &above[..3]);
            let rising = towers.raise(node, &above[..3]);
            let link = |level: usize| op.load(&towers.heads[level], Relaxed);
            assert!((1..=3).all(|level| link(level) == node.dirty() && towers.is_to_rising(link(level))));
            op.compare_exchange(&towers.heads[taken_back], node.dirty(), Link::NULL).unwrap();
            let kept = towers.finish(&rising);
            let expected: Vec<_> = (taken_back..=3).map(|level| op.off_of(&towers.heads[level])).collect();
            assert_eq!(kept, expected);
            for level in 1..=3 {
                assert_eq!(link(level), if level < taken_back { node } else { Link::NULL }, "level {level}");
                op.store(&towers.heads[level], Link::NULL, Relaxed);
            }
        }
    }

    /// A link could be cleaned above one that had been taken back; a search that came down there would follow a link which nobody
    /// keeps any more, to memory that may be used again. It takes three threads: one inserts, one has come to the link on level 1 before
    /// the node is on level 0 and takes it back after, one resolves level 2 meanwhile. Here only the last step is called.
    #[test]
    fn no_link_is_cleaned_above_one_that_was_taken_back() {
        let pool = pool(Hardware::PAGE_CACHE);
        let map = SkipList::open(&pool, "map").unwrap();
        let mut session = pool.session().unwrap();
        let op = session.enter().unwrap();
        let towers = map.map.towers(&op);
        let above = towers.path(7, true).unwrap().above;
        for taken_back in 0..=3 {
            let new = map.map.allocate(&op, 4).unwrap();
            let node = towers.write(&new, (7, 70), Link::NULL, &above[..3]);
            op.store(&towers.heads[0], node.dirty(), Relaxed);
            let _rising = towers.raise(node, &above[..3]);
            let located: Vec<_> = towers.heads.iter().take(4).map(|word| (word, op.load(word, Acquire))).collect();
            assert!(located.iter().all(|(_, seen)| *seen == node.dirty()));
            op.compare_exchange(&towers.heads[taken_back], node.dirty(), Link::NULL).unwrap();
            towers.clean_upwards(&located);
            for (level, (word, _)) in located.iter().enumerate() {
                let expected = match level.cmp(&taken_back) {
                    Less => node,
                    Equal => Link::NULL,
                    Greater => node.dirty(),
                };
                assert_eq!(op.load(word, Relaxed), expected, "level {level}, {taken_back} taken back");
                op.store(word, Link::NULL, Relaxed);
            }
        }
    }

    /// Bits of a link, and what to do once such a link is exchanged for another.
    type Then = (u64, Box<dyn FnOnce()>);

    /// Calls what is in [`AFTER`].
    #[derive(Clone, Copy, Debug)]
    struct Hooked(Hardware);

    thread_local! {
        static AFTER: RefCell<Option<Then>> = const { RefCell::new(None) };
    }

    // SAFETY: every access is handed on unchanged.
    unsafe impl Medium for Hooked {
        fn describe(self) -> String {
            self.0.describe()
        }
        fn survives(self) -> Survives {
            self.0.survives()
        }
        fn load(self, word: &AtomicU64, order: Ordering) -> u64 {
            self.0.load(word, order)
        }
        fn store(self, word: &AtomicU64, value: u64, order: Ordering) {
            self.0.store(word, value, order);
        }
        fn store_nt(self, word: &AtomicU64, value: u64) {
            self.0.store_nt(word, value);
        }
        fn store_nt_line(self, line: &[AtomicU64; 8], values: &[u64; 8]) {
            self.0.store_nt_line(line, values);
        }
        fn compare_exchange(self, word: &AtomicU64, current: u64, new: u64) -> std::result::Result<u64, u64> {
            let exchanged = self.0.compare_exchange(word, current, new);
            let due = AFTER.with_borrow_mut(|after| after.take_if(|(node, _)| exchanged == Ok(*node)));
            if let Some((_, then)) = due {
                then();
            }
            exchanged
        }
        fn rmw(self, word: &AtomicU64, op: Rmw, operand: u64) -> u64 {
            self.0.rmw(word, op, operand)
        }
        fn order(self) {
            self.0.order();
        }
        fn write_back(self, lines: Lines<'_>) {
            self.0.write_back(lines);
        }
        fn fence(self) {
            self.0.fence();
        }
    }

    /// Who took a node out took the list for corrupt when another had inserted a lower key in its place on an upper level.
    #[test]
    fn a_lower_key_in_the_place_of_a_node_that_is_taken_out_is_no_damage() {
        const KEY: u64 = 100;
        let pool = pool(Hooked(Hardware::PAGE_CACHE));
        let map = SkipList::open_with(&pool, "map", &Options::default().tower_ratio(2)).unwrap();
        let (mut own, mut other) = (pool.session().unwrap(), pool.session().unwrap());
        let op = own.enter().unwrap();
        let towers = map.map.towers(&op);
        let node = loop {
            assert!(map.insert(&op, KEY, 1).unwrap());
            let link = op.load(&towers.heads[1], Relaxed);
            if !link.is_null() {
                break link.clean();
            }
            map.remove(&op, KEY).unwrap();
        };
        let next = &op.at(node.node()).next;
        op.compare_exchange(next, Link::NULL, Link::NULL.deleted()).unwrap();
        let inserts = map.clone();
        let lower = move || (0..KEY).for_each(|key| assert!(inserts.insert(&other.enter().unwrap(), key, 2).unwrap()));
        AFTER.set(Some((node.to_bits(), Box::new(lower))));
        let mut links = Vec::new();
        towers.sever(node.node(), &mut links).unwrap();
        assert!(AFTER.take().is_none(), "the others were inserted");
        assert!(
            !links.is_empty()
                && (1..LEVELS)
                    .all(|level| { towers.on_level(level).unwrap().iter().all(|(off, ..)| *off != node.off()) })
        );
    }
}
