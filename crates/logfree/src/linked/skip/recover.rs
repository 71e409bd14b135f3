//! What recovery does on the upper levels (LF-U6, LF-U8; `tower.rs` states them).

use std::sync::atomic::Ordering::{Acquire, Relaxed};

use durix_pmem::{Medium, Off, Op};

use super::tower::{Path, Towers, Trust};
use super::{SkipCore, run};
use crate::error::Result;
use crate::layout::{LEVELS, Link, NODE, Node, TallNode, Upper};
use crate::pages::{InOrder, Known};

/// Steps for which recovery waits together: four or so on each level.
const WARM_STEPS: usize = 64;

impl<M: Medium> InOrder<M> for SkipCore<M> {
    fn is_node(&self, op: &Op<'_, M>, line: Off<Node>, known: &Known<'_>) -> Result<bool> {
        let towers = Towers { trust: Trust::Known(known), ..self.towers(op) };
        let node: &TallNode = op.at(line.cast());
        let key = op.load(&node.key, Relaxed);
        if towers.height(node) == 1 {
            return self.chain(towers, towers.descend(key, false, &mut [])?).reaches(line);
        }
        let path = towers.path(key, false)?;
        if !self.chain(towers, path.start).reaches(line)? {
            return Ok(false);
        }
        towers.complete(line, &path, known, self.pages.root().finds_what_is_durable(op))?;
        if let Some(more) = towers.more(line) {
            known.add(more);
        }
        Ok(true)
    }

    fn is_part(&self, op: &Op<'_, M>, line: Off<Node>, known: &Known<'_>) -> Result<bool> {
        let towers = Towers { trust: Trust::Known(known), ..self.towers(op) };
        let owner = op.load(&op.at(line.cast::<Upper>()).node, Relaxed);
        let is_line = owner != 0 && owner.is_multiple_of(NODE) && owner < op.mapping().len();
        let owner = Off::<Node>::new(owner);
        if is_line && towers.more(owner) == Some(line) {
            let start = towers.descend(op.load(&op.at(owner).key, Relaxed), false, &mut [])?;
            if self.chain(towers, start).reaches(owner)? {
                return Ok(true);
            }
        }
        if towers.height(op.at(line.cast())) > 1 {
            towers.forget(line)?;
        }
        Ok(false)
    }

    fn warm(&self, op: &Op<'_, M>, lines: &[Off<Node>]) {
        self.towers(op).warm(lines);
    }

    fn end(&self, op: &Op<'_, M>, known: &Known<'_>) {
        run::write_back(op, self.pages.root());
        for link in known.take_links() {
            // PERSIST LF-U8: flush, with the fence of LF-N9.
            op.write_back(op.at(link));
        }
    }
}

impl<'s, M: Medium> Towers<'_, 's, M> {
    /// Keeps the upper links to a node that is on level 0, to be made durable if they may not be; from the first level on where it is missing,
    /// takes them out: its insert did not get further. A deleted node may be missing anywhere, and nothing descends from it.
    fn complete(&self, off: Off<Node>, path: &Path<'s>, known: &Known<'_>, is_durable: bool) -> Result<()> {
        let op = self.op;
        let node: &TallNode = op.at(off.cast());
        let key = op.load(&node.key, Relaxed);
        let mut whole = true;
        for level in 1..self.height(node) {
            let Some((word, seen)) = self.locate(level, path.above[level - 1].word, key, off)? else {
                whole = op.load(&node.next, Acquire).is_deleted();
                continue;
            };
            let is_taken_out = !whole && seen.is_dirty();
            if is_taken_out {
                let own = self.word(Some(node), level).map_or(Link::NULL, |own| op.load(own, Acquire));
                // Nobody else changes it: it leads to this node, which is looked at once.
                let _ = op.compare_exchange(word, seen, Link::to(own.off()));
            }
            if is_taken_out || !is_durable {
                known.keep(op.off_of(word));
            }
        }
        Ok(())
    }

    /// Takes a line that is to be freed out of the upper levels, if it is a node there. Writes the links past it back; the
    /// fence is the caller's.
    pub(super) fn forget(&self, off: Off<Node>) -> Result<()> {
        let mut links = Vec::new();
        self.sever(off, &mut links)?;
        for link in links {
            // PERSIST LF-U6: flush, with the caller's fence.
            self.op.write_back(self.op.at(link));
        }
        Ok(())
    }

    /// Reads what searches for some nodes will read, a step of each in turn, so that their misses are waited for together.
    /// Checks nothing: wherever it gets to is in the mapping, and it ends after some steps.
    pub(super) fn warm(&self, nodes: &[Off<Node>]) {
        let op = self.op;
        let key = |node: &TallNode| op.load(&node.key, Relaxed);
        let mut ways: Vec<_> = nodes.iter().map(|off| (key(op.at(off.cast())), None, LEVELS - 1)).collect();
        for _ in 0..WARM_STEPS {
            ways.retain_mut(|(wanted, from, level)| {
                let next = |from, level| self.word(from, level).map_or(Off::NULL, |word| op.load(word, Relaxed).node());
                match op.get(next(*from, *level).cast::<TallNode>()) {
                    Some(node) if key(node) < *wanted => *from = Some(node),
                    _ if *level == 0 => return false,
                    _ => *level -= 1,
                }
                op.prefetch(next(*from, *level));
                true
            });
            if ways.is_empty() {
                return;
            }
        }
    }

    /// The nodes on a level with their keys, and whether searches may descend from them.
    pub(super) fn on_level(&self, level: usize) -> Result<Vec<(u64, u64, bool)>> {
        let (mut word, mut nodes, mut last) = (&self.heads[level], Vec::new(), None);
        loop {
            let seen = self.op.load(word, Acquire);
            let Some(node) = self.op.get(seen.node().cast::<TallNode>()) else { return Ok(nodes) };
            let key = self.op.load(&node.key, Relaxed);
            let own = self.word(Some(node), level).filter(|_| level < self.height(node));
            let (Some(own), true) = (own, last.is_none_or(|last| last <= key)) else {
                return Err(self.corrupt(seen, key));
            };
            if nodes.len() as u64 > self.op.mapping().len() / NODE {
                return Err(self.corrupt(seen, key));
            }
            nodes.push((seen.off(), key, !self.is_to_rising(seen) && !self.op.load(&node.next, Acquire).is_deleted()));
            (word, last) = (own, Some(key));
        }
    }
}
