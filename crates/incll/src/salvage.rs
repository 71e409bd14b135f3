//! What can still be read of a damaged tree.
//!
//! A scan follows one link after the other, and ends at the first that makes no sense. Here every link is followed that leads to a
//! node: from interior nodes to their children, from border nodes to their right siblings and to the layers below. So a node is
//! found unless *all* links to it are damaged. Nodes that nothing leads to are taken from the allocator: their slabs say
//! which blocks are in use, and each border node says which [layer](LayerName) it belongs to. So what its keys begin with is known, layer by
//! layer, and no entry comes back under another key: a node of another layer, to which a damaged link leads, is passed over.
//!
//! | damaged | lost |
//! |---|---|
//! | the first line of a border node | its entries: at most 14 |
//! | another line of a border node | the entries of that line: at most 4 |
//! | an interior node | nothing: right siblings lead to its children, and say where they start |
//! | a record | its entry |
//! | the link to a layer, a root, or all that it leads to | nothing but the root's own entries, if the layer above can be read |
//! | all of a layer, and the link to it | its entries: nodes of the layers below say what leads to it |
//! | all of two layers, one below the other, and the links to them | their entries, and those of layers below: what their keys begin with lies nowhere else |
//! | a node in whose place lies another one | its entries: it says that it belongs elsewhere, and is passed over |
//! | all links to a node, and the words that name its layer | its entries |
//! | the head or a bitmap of a slab, or what the pool says of its space | nothing |
//!
//! Values have no checksums: bytes that were changed within a value are given back as they are.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::atomic::Ordering::Relaxed;

use durix_index::Finding;
use durix_pmem::{Medium, Off, Op, Persistent};

use crate::error::Result;
use crate::layout::{Border, LayerName, Node, Permutation, SLOTS, kind, place_of, slab_kind};
use crate::node::context::Context;
use crate::node::entry::Entry;
use crate::tree::Masstree;
use crate::value::Record;
use crate::{MAX_KEY, MAX_VALUE, Policy};

/// Findings that are kept.
const MAX_FINDINGS: usize = 100;

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
    /// The number of each layer here, by its number in the tree.
    numbers: BTreeMap<u64, usize>,
    /// What the tree's nodes know each layer by.
    names: Vec<LayerName>,
    /// Where border nodes start, as their left siblings say.
    lows: BTreeMap<Off<Node>, u64>,
    /// Entries that the separators above do not allow, with their layer and their node.
    astray: Vec<(usize, Off<Node>, Entry)>,
    /// The number of each layer here, by its mark.
    marks: BTreeMap<u64, usize>,
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
            numbers: BTreeMap::new(),
            names: Vec::new(),
            lows: BTreeMap::new(),
            astray: Vec::new(),
            marks: BTreeMap::new(),
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
        in_use || self.cx.is_stamped(off)
    }

    /// Whether another node of a layer was copied over a node. One that names no place of a node has a damaged name: it may be read.
    fn is_another(&self, layer: usize, off: Off<Node>) -> bool {
        let name = self.names[layer];
        let of_nodes = || self.blocks.iter().filter(|(_, size)| **size == size_of::<Node>() as u64);
        !self.cx.is_placed(off, name) && {
            let places = self.places.get_or_init(|| of_nodes().map(|(off, _)| place_of(*off)).collect());
            places.contains(&self.cx.place_but_for(off, name))
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

    /// The number of the layer whose keys begin with these bytes.
    fn number(&mut self, prefix: Vec<u8>) -> usize {
        let (next, name) = (self.prefixes.len(), LayerName::of(&prefix));
        let number = *self.numbers.entry(name.number()).or_insert(next);
        if number == next {
            self.prefixes.push(prefix);
            self.names.push(name);
            self.marks.insert(name.mark(), number);
        }
        number
    }

    /// Walks all layers that were met.
    fn layers(&mut self) {
        while let Some((root, prefix)) = self.todo.pop() {
            if prefix.len() > MAX_KEY {
                self.find(root.get(), "a layer of keys that are longer than any".into());
                continue;
            }
            let layer = self.number(prefix);
            if !self.is_node(root) {
                self.find(root.get(), "the link to a layer leads to no node".into());
            } else if self.layer_of.contains_key(&root) {
                self.find(root.get(), "two links lead to this node".into());
            } else {
                self.nodes(layer, Visit::whole(root));
            }
        }
    }

    /// Looks at a node of a layer, and at all that it leads to.
    fn nodes(&mut self, layer: usize, first: Visit) {
        let mut todo = VecDeque::from([first]);
        while let Some(visit) = todo.pop_back() {
            if !self.is_node(visit.off) {
                self.find(visit.off.get(), "a link leads to no node".into());
                continue;
            }
            if self.layer_of.contains_key(&visit.off) {
                continue;
            }
            if self.is_another(layer, visit.off) {
                self.find(visit.off.get(), "another node was copied over this one".into());
                continue;
            }
            if !self.cx.is_stamped(visit.off) || !self.cx.is_placed(visit.off, self.names[layer]) {
                self.find(visit.off.get(), "the first line of a node makes no sense".into());
            }
            let is_interior = self.is_interior(visit.off);
            if !is_interior && self.is_astray(visit) {
                // Some other link leads here rightly.
                self.find(visit.off.get(), "a link leads to a node with other keys".into());
                continue;
            }
            if !is_interior && self.is_elsewhere(layer, visit.off) {
                self.find(visit.off.get(), "a link leads to a node of another layer".into());
                continue;
            }
            self.layer_of.insert(visit.off, layer);
            // Siblings last: what the node above says of a child's bounds is more than what a sibling knows.
            if is_interior {
                todo.extend(self.children(visit));
            } else {
                self.border(layer, visit).into_iter().for_each(|sibling| todo.push_front(sibling));
            }
        }
    }

    /// Whether a border node says that it belongs to another layer: by its words, which lie in its last line, and by its seal, which lies
    /// in its first one.
    fn is_elsewhere(&self, layer: usize, off: Off<Node>) -> bool {
        let (said, name) = (self.cx.layer_name(off), self.names[layer]);
        said.words() != name.words() && said.seal() != name.seal()
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
        if !next.is_null() {
            self.lows.insert(next, low);
        }
        (!next.is_null()).then_some(Visit { off: next, low: is_sound.then_some(low), high: None })
    }

    fn entry(&mut self, layer: usize, visit: Visit, entry: Entry) {
        if !entry.is_canonical() {
            return self.misplaced(visit.off, entry);
        }
        if !visit.holds(entry.slice) {
            return self.astray.push((layer, visit.off, entry));
        }
        let prefix = &self.prefixes[layer];
        if entry.kind == kind::LAYER {
            let below = [&prefix[..], &entry.slice.to_be_bytes()].concat();
            return self.todo.push((Off::new(entry.word), below));
        }
        let mut key = prefix.clone();
        let is_inline = entry.inline && entry.kind <= kind::LAST_SHORT;
        if !is_inline && !self.is_record(entry.word) {
            return self.find(visit.off.get(), format!("the record of slice {:#x} cannot be read", entry.slice));
        }
        match self.cx.resolve(entry, &mut key) {
            Ok(value) if key.len() <= MAX_KEY && value.len() <= MAX_VALUE => {
                (self.found)(&key, &value.to_vec());
            }
            Ok(_) => self.find(entry.word, "a record that is longer than any".into()),
            Err(error) => self.find(visit.off.get(), error.to_string()),
        }
    }

    fn misplaced(&mut self, off: Off<Node>, entry: Entry) {
        self.find(off.get(), format!("an entry that does not belong here, of slice {:#x}", entry.slice));
    }

    /// Gives those entries out that the separators above do not allow, and both siblings do: then a separator is damaged, and not the
    /// entry.
    fn between_siblings(&mut self) {
        for (layer, off, entry) in std::mem::take(&mut self.astray) {
            let (next, border) = (self.sibling(off), self.cx.border(off));
            let high = (!next.is_null()).then(|| self.cx.op.load(&border.high, Relaxed));
            let visit = Visit { off, low: self.lows.get(&off).copied(), high };
            if (visit.low.is_some() || high.is_some()) && visit.holds(entry.slice) {
                self.find(off.get(), format!("a separator above does not allow the entry of slice {:#x}", entry.slice));
                self.entry(layer, visit, entry);
            } else {
                self.misplaced(off, entry);
            }
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

    /// The number of the layer of that name, if it is known, or the one above it is, or the one above that: then it is a layer to which
    /// no sound link leads, and the layer between may be lost.
    fn number_of(&mut self, name: LayerName) -> Option<usize> {
        let above = match self.numbers.get(&name.above()) {
            Some(above) => *above,
            None if name == LayerName::FIRST => return self.numbers.get(&name.number()).copied(),
            None => {
                let two_above = *self.marks.get(&name.mark_above()?)?;
                let above = self.names[two_above].below_by_number(name.above());
                self.number_below(two_above, above)?
            }
        };
        (self.names[above].below(name.slice()?) == name).then(|| self.number_below(above, name))?
    }

    /// The number of a layer below a known one.
    fn number_below(&mut self, above: usize, name: LayerName) -> Option<usize> {
        let prefix = [&self.prefixes[above][..], &name.slice()?.to_be_bytes()].concat();
        (prefix.len() <= MAX_KEY).then(|| self.number(prefix))
    }

    /// Looks at border nodes that nothing leads to, where it can be told what layer they belong to: by what they say, and otherwise that of their
    /// right siblings. Interior nodes have no entries.
    fn adopt(&mut self) {
        loop {
            self.layers();
            let mut orphans = self.orphans();
            orphans.retain(|off| !self.is_interior(*off));
            let mut adopted = 0;
            for off in &orphans {
                let number = self.number_of(self.cx.layer_name(*off));
                adopted += usize::from(number.is_some_and(|number| self.adopt_into(number, *off)));
            }
            if adopted == 0 {
                for off in &orphans {
                    let number = self.layer_of.get(&self.sibling(*off)).copied();
                    adopted += usize::from(number.is_some_and(|number| self.adopt_into(number, *off)));
                }
            }
            if adopted == 0 {
                let what = "nothing leads to this node, and the first bytes of its keys are unknown";
                return orphans.iter().for_each(|off| self.find(off.get(), what.into()));
            }
        }
    }

    /// Looks at a node of a layer, unless that was done meanwhile.
    fn adopt_into(&mut self, layer: usize, off: Off<Node>) -> bool {
        let is_new = !self.layer_of.contains_key(&off);
        if is_new {
            self.nodes(layer, Visit::whole(off));
            // What says that it is of another layer is looked at once.
            self.layer_of.entry(off).or_insert(layer);
        }
        is_new
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
        while !salvage.todo.is_empty() {
            salvage.adopt();
            salvage.between_siblings();
        }
        Ok(salvage.findings)
    }
}
