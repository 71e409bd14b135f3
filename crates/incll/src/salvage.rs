//! What can still be read of a damaged tree.
//!
//! A scan follows one link after the other, and ends at the first that makes no sense. Here every link is followed that leads to a
//! node: from interior nodes to their children, from border nodes to their right siblings and to the layers below. So a node is
//! found unless *all* links to it are damaged. Nodes that nothing leads to are taken from the allocator: their slabs say
//! which blocks are in use, and what such a node leads to says which layer it belongs to.
//!
//! | damaged | lost |
//! |---|---|
//! | the first line of a border node | its entries: at most 14 |
//! | another line of a border node | the entries of that line: at most 4 |
//! | an interior node | nothing: right siblings lead to its children |
//! | a record | its entry |
//! | the link to a layer | the keys of that layer |
//! | a node in whose place lies another one | its entries: it says that it belongs elsewhere, and is passed over |
//! | the root of a layer, or all that it leads to | nothing but its own entries, if no other layer has lost as much; otherwise the keys of these layers |
//! | the link to the root, or the root | nothing but its own entries |
//! | the head or a bitmap of a slab, or what the pool says of its space | nothing |
//!
//! Values have no checksums: bytes that were changed within a value are given back as they are.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::Ordering::Relaxed;

use durix_index::Finding;
use durix_pmem::{Medium, Off, Op, Persistent};

use crate::error::Result;
use crate::layout::{Border, Node, Permutation, SLOTS, kind, place_of, slab_kind};
use crate::node::context::Context;
use crate::node::entry::Entry;
use crate::tree::Masstree;
use crate::value::Record;
use crate::{MAX_KEY, MAX_VALUE, Policy};

/// Findings that are kept.
const MAX_FINDINGS: usize = 100;
/// Levels of a layer: more than any has.
const MAX_LEVELS: usize = 64;

/// Gets a key and its value.
pub type Found<'f> = &'f mut dyn FnMut(&[u8], &[u8]);

/// A node to look at, with the slices that it may hold as far as they are known.
#[derive(Clone, Copy)]
struct Visit {
    off: Off<Node>,
    low: Option<u64>,
    high: Option<u64>,
}

impl Visit {
    fn whole(off: Off<Node>) -> Self {
        Visit { off, low: None, high: None }
    }

    fn holds(&self, slice: u64) -> bool {
        self.low.is_none_or(|low| low <= slice) && self.high.is_none_or(|high| slice < high)
    }
}

/// Border nodes that lead to each other, and nothing else to them.
struct Run {
    /// Those that no node leads to from above, and interior nodes above others.
    topmost: Vec<Off<Node>>,
    borders: BTreeSet<Off<Node>>,
}

struct Salvage<'a, 'f, M: Medium, P: Policy> {
    cx: Context<'a, M, P>,
    found: Found<'f>,
    findings: Vec<Finding>,
    /// Extents of the tree: offset and length.
    extents: BTreeMap<u64, u64>,
    /// Blocks in use of slabs that can be read, with their sizes.
    blocks: BTreeMap<u64, u64>,
    /// Slabs with a head that makes sense, and the size of their blocks.
    readable: BTreeMap<u64, u64>,
    /// What nodes in blocks in use say of their places, once somebody asks.
    places: std::cell::OnceCell<BTreeSet<u64>>,
    /// The number of the layer that a node belongs to.
    layer_of: BTreeMap<Off<Node>, usize>,
    /// The bytes that lead to each layer.
    prefixes: Vec<Vec<u8>>,
    /// Layers that were met and not walked yet.
    todo: Vec<(Off<Node>, Vec<u8>)>,
    /// The numbers of layers whose links led to no entry.
    headless: Vec<usize>,
    /// The numbers of layers with an entry.
    filled: BTreeSet<usize>,
}

impl<'a, 'f, M: Medium, P: Policy> Salvage<'a, 'f, M, P> {
    fn new(cx: Context<'a, M, P>, found: Found<'f>) -> Self {
        let mut salvage = Salvage {
            cx,
            found,
            findings: Vec::new(),
            extents: BTreeMap::new(),
            blocks: BTreeMap::new(),
            readable: BTreeMap::new(),
            places: std::cell::OnceCell::new(),
            layer_of: BTreeMap::new(),
            prefixes: Vec::new(),
            todo: Vec::new(),
            headless: Vec::new(),
            filled: BTreeSet::new(),
        };
        salvage.read_slabs();
        salvage
    }

    fn find(&mut self, off: u64, what: String) {
        if self.findings.len() < MAX_FINDINGS {
            self.findings.push(Finding { offset: off, what });
        }
    }

    /// Learns which blocks are in use. Returns nothing: a slab that cannot be read only makes less known.
    fn read_slabs(&mut self) {
        let cx = self.cx;
        for extent in cx.tree.arena.extents(cx.op) {
            self.extents.insert(extent.off, extent.len);
            match crate::alloc::arena::Head::read(cx.op, extent.off) {
                Ok(head) => {
                    let taken = cx.tree.slabs.taken(cx.op, cx.durably(), extent, head);
                    if head.kind != slab_kind::LOG {
                        self.readable.insert(extent.off, head.block);
                    }
                    self.blocks.extend(taken);
                }
                Err(error) => self.find(extent.off, error.to_string()),
            }
        }
    }

    /// The extent that a block lies in, if the pool knows it.
    fn extent_of(&self, off: u64) -> Option<u64> {
        let (start, len) = self.extents.range(..=off).next_back()?;
        (off - start < *len).then_some(*start)
    }

    /// Whether a node can lie there: in a block in use, or with a stamp as nodes have it. Bitmaps, heads of slabs, and what the pool
    /// says of its space may be damaged, too.
    fn is_node(&self, off: Off<Node>) -> bool {
        let is_aligned = !off.is_null() && off.get().is_multiple_of(64);
        if !is_aligned || self.cx.op.slice("a node", off, 1).is_err() {
            return false;
        }
        let in_use = self.blocks.get(&off.get()) == Some(&(size_of::<Node>() as u64));
        (in_use || self.cx.is_stamped(off)) && !self.is_another(off)
    }

    /// Whether another node was copied over a node. One that names no place of a node has a damaged name: it may be read.
    fn is_another(&self, off: Off<Node>) -> bool {
        let of_nodes = || self.blocks.iter().filter(|(_, size)| **size == size_of::<Node>() as u64);
        !self.cx.is_placed(off) && {
            let places = self.places.get_or_init(|| of_nodes().map(|(off, _)| place_of(*off)).collect());
            places.contains(&self.cx.place(off))
        }
    }

    /// The node, with what a failed epoch has left in it undone.
    fn node(&self, off: Off<Node>) -> &'a Node {
        let node = self.cx.op.at(off);
        if self.cx.is_old(node, self.cx.tree.trusted) {
            self.cx.recover(off, node);
        }
        node
    }

    fn is_interior(&self, off: Off<Node>) -> bool {
        self.cx.op.load(&self.node(off).stamp, Relaxed).is_interior()
    }

    fn sibling(&self, off: Off<Node>) -> Off<Node> {
        self.cx.op.load(&self.cx.border(off).next, Relaxed)
    }

    // ---- layers ----

    /// Walks all layers that were met.
    fn layers(&mut self) {
        while let Some((root, prefix)) = self.todo.pop() {
            if prefix.len() > MAX_KEY || !self.is_node(root) {
                self.find(root.get(), "the link to a layer leads to no node".into());
                if prefix.len() <= MAX_KEY {
                    self.headless.push(self.prefixes.len());
                    self.prefixes.push(prefix);
                }
                continue;
            }
            if self.layer_of.contains_key(&root) {
                self.find(root.get(), "two links lead to this node".into());
                continue;
            }
            self.prefixes.push(prefix);
            let layer = self.prefixes.len() - 1;
            self.nodes(layer, Visit::whole(root));
            if !self.filled.contains(&layer) {
                self.headless.push(layer);
            }
        }
    }

    /// Looks at a node of a layer, and at all that it leads to.
    fn nodes(&mut self, layer: usize, first: Visit) {
        let mut todo = vec![first];
        while let Some(visit) = todo.pop() {
            if !self.is_node(visit.off) {
                self.find(visit.off.get(), "a link leads to no node".into());
                continue;
            }
            if self.layer_of.contains_key(&visit.off) {
                continue;
            }
            if !self.cx.is_stamped(visit.off) || !self.cx.is_placed(visit.off) {
                self.find(visit.off.get(), "the first line of a node makes no sense".into());
            }
            let is_interior = self.is_interior(visit.off);
            if !is_interior && self.is_astray(visit) {
                // Some other link leads here rightly.
                self.find(visit.off.get(), "a link leads to a node with other keys".into());
                continue;
            }
            self.layer_of.insert(visit.off, layer);
            // Siblings last: what the node above says of a child's bounds is more than what a sibling knows.
            if is_interior {
                todo.extend(self.children(visit));
            } else {
                todo.splice(0..0, self.border(layer, visit));
            }
        }
    }

    fn children(&self, visit: Visit) -> Vec<Visit> {
        let (keys, children) = self.cx.content(visit.off);
        let ascends = keys.windows(2).all(|pair| pair[0] < pair[1]);
        let bound = |index: usize| if ascends { keys.get(index).copied() } else { None };
        let child = |(index, off): (usize, &Off<Node>)| Visit {
            off: *off,
            low: index.checked_sub(1).map_or(visit.low, bound),
            high: if index < keys.len() { bound(index) } else { visit.high },
        };
        children.iter().enumerate().filter(|(_, off)| !off.is_null()).map(child).collect()
    }

    /// The entries of a border node; none where its first line makes no sense.
    fn entries(&self, off: Off<Node>) -> Option<Vec<Entry>> {
        let border: &Border = self.node(off).view();
        let permutation: Permutation = self.cx.op.load(&border.permutation, Relaxed);
        let mask = permutation.mask();
        let is_sound = mask.count_ones() as usize == permutation.len() && mask >> SLOTS == 0;
        is_sound.then(|| self.cx.entries(border))
    }

    /// Whether a border node holds none of the slices that the link to it promises, and others.
    fn is_astray(&self, visit: Visit) -> bool {
        let entries = self.entries(visit.off).unwrap_or_default();
        !entries.is_empty() && !entries.iter().any(|entry| visit.holds(entry.slice))
    }

    /// Gives the entries of a border node out. Returns its right sibling.
    fn border(&mut self, layer: usize, visit: Visit) -> Option<Visit> {
        match self.entries(visit.off) {
            Some(entries) => {
                let sound = ascending(&entries);
                if sound.len() < entries.len() {
                    self.find(visit.off.get(), format!("{} keys out of order", entries.len() - sound.len()));
                }
                sound.into_iter().for_each(|entry| self.entry(layer, visit, entry));
            }
            None => self.find(visit.off.get(), "a node whose entries cannot be told".into()),
        }
        let (next, border) = (self.sibling(visit.off), self.cx.border(visit.off));
        let low = self.cx.op.load(&border.high, Relaxed);
        let is_sound = visit.high.is_none_or(|high| high == low);
        (!next.is_null()).then_some(Visit { off: next, low: is_sound.then_some(low), high: None })
    }

    fn entry(&mut self, layer: usize, visit: Visit, entry: Entry) {
        if !entry.is_canonical() || !visit.holds(entry.slice) {
            return self
                .find(visit.off.get(), format!("an entry that does not belong here, of slice {:#x}", entry.slice));
        }
        let prefix = &self.prefixes[layer];
        if entry.kind == kind::LAYER {
            let below = [&prefix[..], &entry.slice.to_be_bytes()].concat();
            self.filled.insert(layer);
            return self.todo.push((Off::new(entry.word), below));
        }
        let mut key = prefix.clone();
        let is_inline = entry.inline && entry.kind <= kind::LAST_SHORT;
        if !is_inline && !self.is_record(entry.word) {
            return self.find(visit.off.get(), format!("the record of slice {:#x} cannot be read", entry.slice));
        }
        match self.cx.resolve(entry, &mut key) {
            Ok(value) if key.len() <= MAX_KEY && value.len() <= MAX_VALUE => {
                self.filled.insert(layer);
                (self.found)(&key, &value.to_vec());
            }
            Ok(_) => self.find(entry.word, "a record that is longer than any".into()),
            Err(error) => self.find(visit.off.get(), error.to_string()),
        }
    }

    /// Whether a record lies there, with its checksum, in a block of its size.
    fn is_record(&self, off: u64) -> bool {
        let Ok(record) = Record::read(self.cx.op, off) else { return false };
        let slab = self.extent_of(off).and_then(|extent| self.readable.get(&extent));
        let size = self.cx.tree.slabs.block_size(record.head.bytes());
        self.blocks.get(&off).or(slab).is_none_or(|block| *block == size) && record.is_sealed()
    }

    // ---- nodes that nothing leads to ----

    fn orphans(&self) -> Vec<Off<Node>> {
        let bytes = size_of::<Node>() as u64;
        let nodes = self.blocks.iter().filter(|(_, size)| **size == bytes).map(|(off, _)| Off::<Node>::new(*off));
        // Records may have blocks of a node's size; a border node whose entries cannot be told is one of those, or lost.
        let is_node = |off: &Off<Node>| self.is_node(*off) && self.is_slab_of_nodes(off.get());
        nodes.filter(|off| !self.layer_of.contains_key(off)).filter(is_node).collect()
    }

    fn is_slab_of_nodes(&self, off: u64) -> bool {
        let head = self.extent_of(off).map(|extent| crate::alloc::arena::Head::read(self.cx.op, extent));
        head.is_some_and(|head| head.is_ok_and(|head| matches!(head.kind, slab_kind::NODES | slab_kind::INTERIORS)))
    }

    /// What a node leads to: its children, or its right sibling.
    fn led_to(&self, off: Off<Node>) -> Vec<Off<Node>> {
        if self.is_interior(off) { self.cx.content(off).1 } else { vec![self.sibling(off)] }
    }

    /// Looks at nodes that nothing leads to, where it can be told what layer they belong to: that of what they lead to.
    fn adopt(&mut self) {
        loop {
            self.layers();
            let orphans = self.orphans();
            let mut before: BTreeMap<Off<Node>, Vec<Off<Node>>> = BTreeMap::new();
            for off in &orphans {
                self.led_to(*off).into_iter().for_each(|next| before.entry(next).or_default().push(*off));
            }
            let known = before.iter().filter_map(|(next, orphans)| Some((self.layer_of.get(next)?, orphans)));
            let mut known: Vec<_> = known.flat_map(|(layer, all)| all.iter().map(|off| (*off, *layer))).collect();
            if known.is_empty() {
                return self.guess(&orphans);
            }
            while let Some((off, layer)) = known.pop() {
                if !self.layer_of.contains_key(&off) {
                    self.nodes(layer, Visit::whole(off));
                    // A node that is astray is none of this layer.
                    self.layer_of.entry(off).or_insert(layer);
                    known.extend(before.get(&off).into_iter().flatten().map(|off| (*off, layer)));
                }
            }
        }
    }

    /// What is left, and no node of it leads to. Nodes of a layer are a run of siblings, and each run belongs to a layer whose root cannot be
    /// read: the first layer, if no entry of it was found, or one that a link of another layer leads to. Where that can be told in one
    /// way only, it is taken.
    fn guess(&mut self, orphans: &[Off<Node>]) {
        let mut runs = self.runs(orphans);
        let first_is_empty = !self.filled.contains(&0);
        if self.prefixes.is_empty() {
            self.prefixes.push(Vec::new());
        }
        if first_is_empty && !runs.is_empty() {
            // Links of the first layer lead to all others.
            let leads_to_others = |run: &Run| self.lost_roots_below(run) == runs.len() - 1;
            let firsts: Vec<usize> = (0..runs.len()).filter(|run| leads_to_others(&runs[*run])).collect();
            match firsts[..] {
                [first] => self.take_run(0, &runs.remove(first)),
                _ => std::mem::take(&mut runs).iter().for_each(|run| self.take_run(0, run)),
            }
        }
        let headless = self.headless.iter().copied().filter(|layer| *layer != 0 && !self.filled.contains(layer));
        let headless: Vec<usize> = headless.collect();
        match (&headless[..], &runs[..]) {
            ([layer], [run]) => {
                self.find(
                    run.topmost[0].get(),
                    "nothing leads to this node; the first bytes of its keys are a guess".into(),
                );
                self.take_run(*layer, run);
            }
            _ => runs.iter().flat_map(|run| &run.topmost).for_each(|off| {
                let what = "nothing leads to this node, and the first bytes of its keys are unknown";
                self.find(off.get(), what.into());
            }),
        }
    }

    fn take_run(&mut self, layer: usize, run: &Run) {
        run.topmost.iter().for_each(|off| self.nodes(layer, Visit::whole(*off)));
        self.layers();
    }

    /// The runs of siblings among nodes that nothing leads to, but those of layers below others.
    fn runs(&self, orphans: &[Off<Node>]) -> Vec<Run> {
        let (interiors, borders): (Vec<_>, Vec<_>) = orphans.iter().copied().partition(|off| self.is_interior(*off));
        let children = interiors.iter().flat_map(|above| self.cx.content(*above).1);
        let below: BTreeSet<Off<Node>> = borders.iter().flat_map(|off| self.layers_of(*off)).chain(children).collect();
        let mut topmost: BTreeMap<Option<Off<Node>>, Vec<Off<Node>>> = BTreeMap::new();
        for off in orphans.iter().filter(|off| !below.contains(off)) {
            topmost.entry(self.first_border(*off)).or_default().push(*off);
        }
        let siblings: BTreeSet<Off<Node>> = borders.iter().map(|off| self.sibling(*off)).collect();
        let borders: BTreeSet<Off<Node>> = borders.into_iter().collect();
        let firsts: Vec<_> =
            topmost.keys().copied().filter(|first| first.is_none_or(|off| !siblings.contains(&off))).collect();
        let mut runs = Vec::new();
        for first in firsts {
            let mut run = Run { topmost: topmost.remove(&first).unwrap_or_default(), borders: BTreeSet::new() };
            let mut next = first;
            while let Some(off) = next.filter(|off| borders.contains(off) && run.borders.insert(*off)) {
                run.topmost.extend(topmost.remove(&Some(off)).unwrap_or_default());
                next = Some(self.sibling(off));
            }
            runs.push(run);
        }
        // Siblings in a circle are damaged.
        runs.extend(topmost.into_values().map(|topmost| Run { topmost, borders: BTreeSet::new() }));
        runs
    }

    /// The border node of the smallest keys below a node, if there is one.
    fn first_border(&self, off: Off<Node>) -> Option<Off<Node>> {
        let mut off = off;
        for _ in 0..MAX_LEVELS {
            if !self.is_interior(off) {
                return Some(off);
            }
            off = self.cx.content(off).1.first().copied().filter(|off| self.is_node(*off))?;
        }
        None
    }

    /// How many layers have roots that cannot be read, or lead to no node, of those that the borders of a run lead to, from layer to layer.
    fn lost_roots_below(&self, run: &Run) -> usize {
        let (mut lost, mut seen) = (0, BTreeSet::new());
        let mut todo: Vec<Off<Node>> = run.borders.iter().copied().collect();
        let can_be_read = |off: &Off<Node>| self.is_node(*off) && self.cx.is_stamped(*off);
        while let Some(off) = todo.pop() {
            if !can_be_read(&off) {
                lost += 1;
            } else if seen.insert(off) {
                let is_interior = self.is_interior(off);
                let mut next = if is_interior { self.cx.content(off).1 } else { self.layers_of(off) };
                if is_interior {
                    next.retain(can_be_read);
                    lost += usize::from(next.is_empty());
                }
                todo.extend(next);
            }
        }
        lost
    }

    fn layers_of(&self, off: Off<Node>) -> Vec<Off<Node>> {
        let entries = if self.is_interior(off) { None } else { self.entries(off) };
        let layers = entries.into_iter().flatten().filter(|entry| entry.kind == kind::LAYER);
        layers.map(|entry| Off::new(entry.word)).collect()
    }
}

/// Most of a node's entries, so that they ascend: what is left out was damaged.
fn ascending(entries: &[Entry]) -> Vec<Entry> {
    // The longest chain that ends with each entry: its length, and the entry before.
    let mut chains: Vec<(usize, Option<usize>)> = Vec::with_capacity(entries.len());
    for (index, entry) in entries.iter().enumerate() {
        let before = (0..index).filter(|before| entries[*before].part() < entry.part()).max_by_key(|b| chains[*b].0);
        chains.push((before.map_or(1, |before| chains[before].0 + 1), before));
    }
    let last = (0..entries.len()).max_by_key(|index| chains[*index].0);
    let mut sound: Vec<Entry> = std::iter::successors(last, |index| chains[*index].1).map(|i| entries[i]).collect();
    sound.reverse();
    sound
}

impl<M: Medium, P: Policy> Masstree<M, P> {
    /// Calls `found` with every entry that can still be read, in no order, whatever else is damaged, and returns what cannot be
    /// read, at most 100 findings. A sound tree gives what a scan gives. Nobody may write meanwhile. Reads all of the tree, and keeps
    /// the offsets of all its blocks in memory.
    ///
    /// # Errors
    /// [`Error::Pool`](crate::Error::Pool).
    pub fn salvage(&self, op: &Op<'_, M>, found: Found<'_>) -> Result<Vec<Finding>> {
        let mut salvage = Salvage::new(self.cx(op, &[])?, found);
        salvage.todo.push((self.root, Vec::new()));
        salvage.adopt();
        Ok(salvage.findings)
    }
}
