//! What lies in the lines of a damaged structure, whether anything leads to it or not: for repair.
//!
//! First come the lines that links lead to, from the root on, wherever they lie: so the pool's table of space may be lost. Then those that
//! the bitmaps of the owner's pages say are allocated, and what these lead to. A line counts if its checksum is right, and if it is live:
//!
//! | line | is live if | gives |
//! |---|---|---|
//! | node of a list, a hash table | its link is not marked deleted | its key and value |
//! | node of a skip list | the same, and it has 1 to 11 levels | its key and value |
//! | branch | no edge is frozen | the leaves that its edges lead to, if they lie on their sides of the router |
//! | member (SOFT), whatever bitmaps say: there are none | its state is one of a live member | its key and value |
//!
//! A removed node is marked, a spliced branch frozen, so neither comes back. What a link says that leads nowhere means nothing: it is damaged,
//! and the line keeps its entry; so does the side of a branch with such an edge, where no other line has the key.
//!
//! Members have no links, and no head that names their owner. Where the pool's table of space is damaged, all chunks that belong to nobody
//! are read: members of an index that was dropped can be among them.

use std::sync::atomic::Ordering::Relaxed;

use durix_index::Leftover;
use durix_pmem::{Bits, Extent, Medium, Off, OffsetSet, Op, Root, Word};

use crate::layout::{
    HEIGHT, LEVELS, Link, MAX_PAGE, MIN_PAGE, NODE, PageShape, ROOT_HEAD, ROOT_PAGE, TALL_SUM, branch_sum, node_sum,
    tall_sum,
};
use crate::linked::hash::{gather, heads_of};
use crate::options::Options;
use crate::pages::units::holds_records;
use crate::soft::{live_member, salvaged_extents};

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
    /// The extents of the owner, as far as the table of space knows.
    extents: Vec<Extent>,
}

/// Keys and values of all lines that count. Of a key that comes twice the first one counts.
pub(crate) fn read<M: Medium>(op: &Op<'_, M>, root: &Root<M>, lines: Lines) -> Vec<Leftover> {
    if lines == Lines::Members {
        return members(op, root);
    }
    let words = root.words(op);
    let bytes = op.load(&words[ROOT_PAGE], Relaxed);
    let is_sound = bytes.is_power_of_two() && (MIN_PAGE..=MAX_PAGE).contains(&bytes);
    let shape = PageShape::of_nodes(if is_sound { bytes } else { Options::default().page });
    let extents = root.pool().space().extents(op, root.owner());
    Blocks { op, lines, shape, extents }.read(first_links(op, root, lines))
}

/// The links that the root of a structure holds, or leads to.
fn first_links<M: Medium>(op: &Op<'_, M>, root: &Root<M>, lines: Lines) -> Vec<Link> {
    let head = op.load(&root.words(op)[ROOT_HEAD], Relaxed);
    let load = |words: &[Word]| words.iter().map(|word| Link::from_bits(op.load(word, Relaxed))).collect();
    match lines {
        Lines::List | Lines::Tree => vec![Link::from_bits(head)],
        Lines::Skip => op.slice("first links", Off::<Word>::new(head), LEVELS as u64).map(load).unwrap_or_default(),
        Lines::Hash => heads_of(op, root),
        Lines::Members => Vec::new(),
    }
}

/// All members that are live.
fn members<M: Medium>(op: &Op<'_, M>, root: &Root<M>) -> Vec<Leftover> {
    let extents = salvaged_extents(op, root);
    let lines = extents.iter().flat_map(|extent| (extent.off..extent.off + extent.len).step_by(NODE as usize));
    lines.filter_map(|off| live_member(op, off)).map(|(key, word)| Leftover { key, word }).collect()
}

impl<M: Medium> Blocks<'_, '_, M> {
    fn read(&self, first: Vec<Link>) -> Vec<Leftover> {
        let (mut seen, mut counted) = (OffsetSet::default(), Vec::new());
        self.follow(first.into_iter().filter(|link| !link.is_null()).map(Link::off).collect(), &mut seen, &mut counted);
        self.follow(self.allocated(), &mut seen, &mut counted);
        let (mut entries, mut doubtful) = (Vec::new(), Vec::new());
        for (off, line) in &counted {
            self.add_entries(*off, line, &mut entries, &mut doubtful);
        }
        entries.extend(doubtful);
        entries
    }

    /// Adds the lines that count of some, and of all that these lead to.
    fn follow(&self, mut todo: Vec<u64>, seen: &mut OffsetSet, counted: &mut Vec<(u64, Line)>) {
        while let Some(off) = todo.pop() {
            if !seen.insert(off) {
                continue;
            }
            let Some(line) = self.line(off).filter(|line| self.is_live(off, line)) else { continue };
            // What a run is being cut from may have no other link yet.
            let links = self.links(&line).into_iter().map(|link| if link.is_cut() { link.rest() } else { link });
            todo.extend(links.filter(|link| !link.is_null()).map(Link::off));
            counted.push((off, line));
        }
    }

    /// The lines that bitmaps say are allocated.
    fn allocated(&self) -> Vec<u64> {
        let mut lines = Vec::new();
        let pages = |extent: &Extent| (extent.off..extent.off + extent.len).step_by(self.shape.bytes as usize);
        for page in self.extents.iter().flat_map(pages) {
            if holds_records(self.op, &Extent { off: page, len: self.shape.bytes }) {
                continue;
            }
            let bitmap = self.op.slice("the head of a page", Off::<Word>::new(page), self.shape.words());
            for (index, word) in bitmap.unwrap_or_default().iter().enumerate() {
                let bits = self.op.load(word, Relaxed) & self.shape.mask(index as u64);
                let set = (0..64).filter(|bit| bits >> bit & 1 == 1);
                lines.extend(set.map(|bit| page + (index as u64 * 64 + bit) * NODE));
            }
        }
        lines
    }

    /// A line of the structure, with its checksum.
    fn line(&self, off: u64) -> Option<Line> {
        let words = self.op.slice("a node", Off::<Word>::new(off), 8).ok().filter(|_| off.is_multiple_of(NODE))?;
        let line: Line = std::array::from_fn(|number| self.op.load(&words[number], Relaxed));
        let is_sealed = match self.lines {
            Lines::Tree => line[7] == branch_sum(off, line[2], [(line[3], line[4]), (line[5], line[6])]),
            Lines::Skip => {
                let levels = line[LEVEL_WORD];
                levels >> TALL_SUM << TALL_SUM == tall_sum(off, line[1], line[2], levels, line[MORE_WORD])
                    && (1..=LEVELS as u64).contains(&(levels & HEIGHT))
            }
            Lines::List | Lines::Hash | Lines::Members => line[3] == node_sum(off, line[1], line[2]),
        };
        is_sealed.then_some(line)
    }

    /// The links of a line, on the lowest level.
    fn links(&self, line: &Line) -> Vec<Link> {
        let links = if self.lines == Lines::Tree { 2 } else { 1 };
        line[..links].iter().map(|bits| Link::from_bits(*bits)).collect()
    }

    /// Whether a link leads to nothing, or to a line of the structure.
    fn is_sound(&self, link: Link, from: u64) -> bool {
        let off = link.off();
        let is_known = || {
            let at = self.extents.partition_point(|extent| extent.off <= off);
            at.checked_sub(1).is_some_and(|at| off - self.extents[at].off < self.extents[at].len)
        };
        link.is_null() || off.is_multiple_of(NODE) && off != from && (is_known() || self.line(off).is_some())
    }

    fn is_live(&self, off: u64, line: &Line) -> bool {
        !self.links(line).iter().any(|link| link.is_deleted() && self.is_sound(*link, off))
    }

    /// Adds the entries of a line; to `doubtful` those of a side whose edge is damaged.
    fn add_entries(&self, off: u64, line: &Line, entries: &mut Vec<Leftover>, doubtful: &mut Vec<Leftover>) {
        if self.lines != Lines::Tree {
            let key = if self.lines == Lines::Hash { gather(line[1]) } else { line[1] };
            return entries.push(Leftover { key, word: line[2] });
        }
        for (side, (key, word)) in [(line[3], line[4]), (line[5], line[6])].into_iter().enumerate() {
            let edge = Link::from_bits(line[side]);
            if (key >= line[2]) != (side == 1) {
                continue;
            }
            if edge.is_leaf() {
                entries.push(Leftover { key, word });
            } else if !self.is_sound(edge, off) && (key, word) != (0, 0) {
                doubtful.push(Leftover { key, word });
            }
        }
    }
}
