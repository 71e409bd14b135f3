//! What lies in the lines of a damaged structure, whether anything leads to it or not: for repair.
//!
//! The extents of the owner are read, page by page, without the structure's own links. A line counts if its page's bitmap says that it is
//! allocated, or a line that counts leads to it; and if it looks like what it should be:
//!
//! | line | counts if | what it gives |
//! |---|---|---|
//! | node of a list | its link is not marked deleted, and leads to a line of the structure or to nothing | its key and value |
//! | node of a skip list | the same, and it has 1 to 11 levels, and is no line of upper links | its key and value |
//! | node of a hash table | the same; the last link of a run is an end | its key and value |
//! | member (SOFT), whatever bitmaps say: there are none | its state is one of a live member | its key and value |
//! | branch | no edge is frozen | the leaves that its edges lead to, if they lie on their sides of the router |
//!
//! A removed node is marked, a spliced branch frozen, so neither comes back. Lines that were never written are all zero in a pool that
//! was never used otherwise, and do not count; lines of chunks that had another owner before can hold what that wrote.

use std::collections::BTreeSet;
use std::sync::atomic::Ordering::Relaxed;

use durix_index::Leftover;
use durix_pmem::{Bits, Medium, Off, OffsetSet, Op, Root, Word};

use crate::layout::{HEIGHT, LEVELS, Link, MAX_PAGE, MIN_PAGE, NODE, PageShape, ROOT_HEAD, ROOT_PAGE};
use crate::linked::hash::{arrays_of, gather};
use crate::options::Options;
use crate::pages::units::holds_records;
use crate::soft::live_member;

/// What the lines of a structure are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lines {
    /// Nodes of a list.
    List,
    /// Nodes of a skip list, and their upper links.
    Skip,
    /// Nodes of a hash table.
    Hash,
    /// Branches.
    Tree,
    /// Members, of the maps with volatile links.
    Members,
}

/// Words of a line.
type Line = [u64; 8];

/// Word of a node of a skip list: its levels.
const LEVEL_WORD: usize = 3;
/// Word of a node of a skip list: the line with its upper links.
const MORE_WORD: usize = 7;

struct Blocks<'a, 's, M: Medium> {
    op: &'a Op<'s, M>,
    lines: Lines,
    shape: PageShape,
    /// Offset and length of each extent that holds pages.
    extents: Vec<(u64, u64)>,
    /// Whether arrays of buckets may be among them.
    has_arrays: bool,
}

/// Keys and values of all lines that count.
pub(crate) fn read<M: Medium>(op: &Op<'_, M>, root: &Root<M>, lines: Lines) -> Vec<Leftover> {
    if lines == Lines::Members {
        return members(op, root);
    }
    let words = root.words(op);
    let bytes = op.load(&words[ROOT_PAGE], Relaxed);
    let is_sound = bytes.is_power_of_two() && (MIN_PAGE..=MAX_PAGE).contains(&bytes);
    let shape = PageShape::of_nodes(if is_sound { bytes } else { Options::default().page });
    let head = op.load(&words[ROOT_HEAD], Relaxed);
    let arrays = match lines {
        Lines::List | Lines::Tree | Lines::Members => Some(Vec::new()),
        Lines::Skip => Some(vec![head]),
        Lines::Hash => arrays_of(op, root),
    };
    let (has_arrays, arrays) = (arrays.is_none(), arrays.unwrap_or_default());
    let mut extents = root.pool().space().extents(op, root.owner());
    extents.retain(|extent| !arrays.contains(&extent.off) && !holds_records(op, extent));
    let extents = extents.iter().map(|extent| (extent.off, extent.len)).collect();
    Blocks { op, lines, shape, extents, has_arrays }.read()
}

/// All members that are live.
fn members<M: Medium>(op: &Op<'_, M>, root: &Root<M>) -> Vec<Leftover> {
    let extents = root.pool().space().extents(op, root.owner());
    let lines = extents.iter().flat_map(|extent| (extent.off..extent.off + extent.len).step_by(NODE as usize));
    lines.filter_map(|off| live_member(op, off)).map(|(key, word)| Leftover { key, word }).collect()
}

impl<M: Medium> Blocks<'_, '_, M> {
    fn read(&self) -> Vec<Leftover> {
        let mut todo: Vec<u64> = self.allocated();
        let mut seen: OffsetSet = todo.iter().copied().collect();
        let mut counted = Vec::new();
        while let Some(off) = todo.pop() {
            let Some(line) = self.line(off) else { continue };
            if !self.counts(off, &line) {
                continue;
            }
            counted.push((off, line));
            let links = if self.lines == Lines::Tree { 2 } else { 1 };
            for link in line[..links].iter().map(|bits| Link::from_bits(*bits)).filter(|link| !link.is_null()) {
                if self.holds(link.off()) && seen.insert(link.off()) {
                    todo.push(link.off());
                }
            }
        }
        // What is upper links of one node is no node.
        let upper: BTreeSet<u64> = match self.lines {
            Lines::Skip => counted.iter().map(|(_, line)| line[MORE_WORD]).filter(|more| *more != 0).collect(),
            _ => BTreeSet::new(),
        };
        counted.sort_unstable_by_key(|(off, _)| *off);
        counted.retain(|(off, _)| !upper.contains(off));
        counted.iter().flat_map(|(_, line)| self.entries(line)).collect()
    }

    /// The lines that bitmaps say are allocated.
    fn allocated(&self) -> Vec<u64> {
        let mut lines = Vec::new();
        for (start, len) in &self.extents {
            for page in (*start..start + len).step_by(self.shape.bytes as usize) {
                let bitmap = self.op.slice("the head of a page", Off::<Word>::new(page), self.shape.words());
                for (index, word) in bitmap.unwrap_or_default().iter().enumerate() {
                    let bits = self.op.load(word, Relaxed) & self.shape.mask(index as u64);
                    let set = (0..64).filter(|bit| bits >> bit & 1 == 1);
                    lines.extend(set.map(|bit| page + (index as u64 * 64 + bit) * NODE));
                }
            }
        }
        lines
    }

    fn line(&self, off: u64) -> Option<Line> {
        let words = self.op.slice("a node", Off::<Word>::new(off), 8).ok()?;
        Some(std::array::from_fn(|number| self.op.load(&words[number], Relaxed)))
    }

    /// Whether a line of the structure lies there.
    fn holds(&self, off: u64) -> bool {
        let at = self.extents.partition_point(|(start, _)| *start <= off);
        off.is_multiple_of(NODE) && at.checked_sub(1).is_some_and(|at| off - self.extents[at].0 < self.extents[at].1)
    }

    fn counts(&self, off: u64, line: &Line) -> bool {
        let link = Link::from_bits(line[0]);
        let leads = |link: Link| link.is_null() || self.holds(link.off()) && link.off() != off;
        let is_node = !link.is_deleted() && leads(link) && *line != [0; 8];
        match self.lines {
            Lines::Tree => {
                let edges = [0, 1].map(|side| Link::from_bits(line[side]));
                edges.iter().all(|edge| !edge.is_deleted() && (edge.is_leaf() || leads(*edge)))
            }
            Lines::List | Lines::Members => is_node,
            // An array of buckets has links in the place of keys and values.
            Lines::Hash => {
                is_node && link.off() != 0 && !(self.has_arrays && (1..3).all(|word| line[word].is_multiple_of(NODE)))
            }
            Lines::Skip => is_node && (1..=LEVELS as u64).contains(&(line[LEVEL_WORD] & HEIGHT)),
        }
    }

    fn entries(&self, line: &Line) -> Vec<Leftover> {
        if self.lines != Lines::Tree {
            let key = if self.lines == Lines::Hash { gather(line[1]) } else { line[1] };
            return vec![Leftover { key, word: line[2] }];
        }
        let (router, leaves) = (line[2], [(line[3], line[4]), (line[5], line[6])]);
        let is_there = |side: usize| Link::from_bits(line[side]).is_leaf();
        let sides = [0, 1].into_iter().filter(|side| is_there(*side) && (leaves[*side].0 >= router) == (*side == 1));
        sides.map(|side| Leftover { key: leaves[side].0, word: leaves[side].1 }).collect()
    }
}
