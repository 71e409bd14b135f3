//! Keys that share their first eight bytes: a *group*. To the tree a group is one word, and leads to a record of `durix-logfree`:
//!
//! ```text
//! entry  bytes of the key: 4 bytes    bytes of the value: 4 bytes    key    value
//! node   marks: 8 bytes    level: 4 bytes    children: 4 bytes    children
//! child  hint: 8 bytes    offset: 8 bytes    above level 0: offset of the first entry: 8 bytes
//! ```
//!
//! A group of one key is its entry. A larger one is a tree of nodes: those of level 0 lead to entries, in the order of keys. Nothing of it is
//! changed in place but marks: a change writes new records for all nodes on the way to the root, and the tree then leads to the new root. So
//! whoever has found a root reads the group as of one moment.
//!
//! A *hint* is what the first key below a child has after the eight bytes, eight more, in big-endian order. Where hints tie, entries are read.
//!
//! *Marks* say which entries of a node of level 0 are gone: a removal in a full pool, which has no room for new nodes. The next change of the node
//! leaves these entries out. Who meets a mark writes it back and fences before relying on it.

use std::cmp::Ordering;
use std::collections::BTreeMap;

use durix_logfree::{Error, MAX_KEY, Record, RecordStore, Result};
use durix_pmem::{Medium, OffsetSet, Op};

use durix_index::Direction;

/// Most children of a node.
pub(crate) const MOST: usize = 14;
/// A node with fewer children is joined with its neighbour, if both fit.
const FEW: usize = MOST / 3;
/// Levels of a group: with two children a node, more than there are offsets.
const MAX_LEVEL: u32 = 48;
/// The upper half of the low half of marks. No key is so long.
const NODE: u32 = 0xffff_0000;
/// Bytes of an entry before its key, and of a node before its children.
const HEAD: [usize; 2] = [8, 16];
/// Bytes of a word.
const WORD: usize = size_of::<u64>();
/// Bytes of a record that are read at first. All nodes, and most entries, have fewer.
const FRONT: usize = 1024;

/// The eight bytes of a key from `at` on, missing ones zero, as a word that orders as they do.
pub(crate) fn word_of(key: &[u8], at: usize) -> u64 {
    let mut word = [0; WORD];
    word.iter_mut().zip(key.iter().skip(at)).for_each(|(to, from)| *to = *from);
    u64::from_be_bytes(word)
}

/// What a node leads to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Child {
    pub(crate) hint: u64,
    pub(crate) off: u64,
    /// The first entry below it.
    pub(crate) first: u64,
}

/// A node, as it was read.
#[derive(Debug)]
pub(crate) struct Node {
    pub(crate) off: u64,
    pub(crate) level: u32,
    pub(crate) children: Vec<Child>,
    /// Which children are gone.
    gone: u32,
}

impl Node {
    pub(crate) fn is_gone(&self, child: usize) -> bool {
        self.gone >> child & 1 == 1
    }
}

/// An entry, as far as it was read.
#[derive(Debug)]
pub(crate) struct Entry {
    pub(crate) off: u64,
    /// The whole of it, or its lengths and its key.
    bytes: Vec<u8>,
    key_len: usize,
    /// All bytes that it has.
    len: usize,
}

impl Entry {
    pub(crate) fn key(&self) -> &[u8] {
        &self.bytes[HEAD[0]..HEAD[0] + self.key_len]
    }
}

/// Where the look for a key of a group stands.
#[derive(Debug)]
pub(crate) enum Look {
    /// At the root.
    Root(u64),
    /// At a node, below one of this level.
    Node(u32, u64),
    /// At its entry.
    Entry(u64),
    Done(Option<Entry>),
}

impl Look {
    /// The record that is read next.
    pub(crate) fn record(&self) -> Option<u64> {
        match self {
            Look::Root(off) | Look::Node(_, off) | Look::Entry(off) => Some(*off),
            Look::Done(_) => None,
        }
    }
}

pub(crate) enum Loaded {
    Entry(Entry),
    Node(Node),
}

#[cold]
fn corrupt(what: &'static str, offset: u64, found: u64) -> Error {
    Error::Corrupt { what, offset, found }
}

fn marks_of(gone: u32) -> u64 {
    let low = NODE | gone;
    u64::from(low) | u64::from(!low) << 32
}

fn number(bytes: &[u8], at: usize) -> u32 {
    bytes.get(at..at + 4).and_then(|four| four.try_into().ok()).map_or(0, u32::from_le_bytes)
}

fn long(bytes: &[u8], at: usize) -> u64 {
    bytes.get(at..at + WORD).and_then(|word| word.try_into().ok()).map_or(0, u64::from_le_bytes)
}

/// Bytes of a child of a node.
fn child_bytes(level: u32) -> usize {
    WORD * if level == 0 { 2 } else { 3 }
}

/// The nodes that a walk of a group has met. A node leads to larger keys than the one before it, so a walk meets each once. Nodes with forged checksums
/// can lead to the same ones again and again: fourteen ways on each of 49 levels.
#[derive(Debug, Default)]
pub(crate) struct Seen(OffsetSet);

impl Seen {
    /// # Errors
    /// [`Error::Corrupt`] if the walk has met the node before.
    pub(crate) fn note(&mut self, node: &Node) -> Result<()> {
        let is_new = self.0.insert(node.off);
        if is_new { Ok(()) } else { Err(corrupt("a node that its group leads to twice", node.off, node.level.into())) }
    }
}

/// The records of one word.
pub(crate) struct Group<'a, 's, M: Medium> {
    pub(crate) op: &'a Op<'s, M>,
    pub(crate) records: &'a RecordStore<M>,
    pub(crate) word: u64,
}

impl<M: Medium> Group<'_, '_, M> {
    // ---- reading ----

    pub(crate) fn load(&self, off: u64) -> Result<Loaded> {
        let mut bytes = Vec::new();
        let len = self.records.read_front(self.op, self.word, off, FRONT, &mut bytes)?;
        let first = number(&bytes, 0);
        if first >= NODE {
            return self.node(off, &bytes, len).map(Loaded::Node);
        }
        let (key_len, value_len) = (first as usize, number(&bytes, 4));
        if len != HEAD[0] as u64 + u64::from(first) + u64::from(value_len) || key_len > MAX_KEY || bytes.len() < HEAD[0]
        {
            return Err(corrupt("the lengths of an entry", off, long(&bytes, 0)));
        }
        if bytes.len() < HEAD[0] + key_len {
            bytes.clear();
            self.records.read_front(self.op, self.word, off, HEAD[0] + key_len, &mut bytes)?;
        }
        let entry = Entry { off, bytes, key_len, len: len as usize };
        if word_of(entry.key(), 0) != self.word {
            return Err(corrupt("the key of an entry", off, word_of(entry.key(), 0)));
        }
        Ok(Loaded::Entry(entry))
    }

    fn node(&self, off: u64, bytes: &[u8], len: u64) -> Result<Node> {
        let (low, high, level, count) = (number(bytes, 0), number(bytes, 4), number(bytes, 8), number(bytes, 12));
        let gone = low & !NODE;
        let is_marked = high == !low && (level == 0 || gone == 0) && gone >> count.min(MOST as u32) == 0;
        let sound = is_marked && level <= MAX_LEVEL && (1..=MOST as u32).contains(&count);
        if !sound || len != (HEAD[1] + count as usize * child_bytes(level)) as u64 || len > FRONT as u64 {
            return Err(corrupt("a node of a group", off, long(bytes, 0)));
        }
        let child = |at: usize| {
            let (hint, off) = (long(bytes, at), long(bytes, at + WORD));
            Child { hint, off, first: if level == 0 { off } else { long(bytes, at + 2 * WORD) } }
        };
        let children = (0..count as usize).map(|i| child(HEAD[1] + i * child_bytes(level))).collect();
        Ok(Node { off, level, children, gone })
    }

    pub(crate) fn entry(&self, off: u64) -> Result<Entry> {
        match self.load(off)? {
            Loaded::Entry(entry) => Ok(entry),
            Loaded::Node(node) => Err(corrupt("an entry of a group", off, u64::from(node.level))),
        }
    }

    pub(crate) fn node_below(&self, above: u32, off: u64) -> Result<Node> {
        match self.load(off)? {
            Loaded::Node(node) if node.level + 1 == above => Ok(node),
            _ => Err(corrupt("the level of a node of a group", off, u64::from(above))),
        }
    }

    /// The value of an entry.
    pub(crate) fn value(&self, entry: Entry) -> Result<Vec<u8>> {
        let Entry { off, mut bytes, key_len, len } = entry;
        if bytes.len() < len {
            bytes.clear();
            self.records.read(self.op, self.word, off, &mut bytes)?;
        }
        Ok(bytes.split_off((HEAD[0] + key_len).min(bytes.len())))
    }

    /// How a key compares with the first one below a child.
    fn compare(&self, key: &[u8], child: &Child) -> Result<Ordering> {
        match word_of(key, WORD).cmp(&child.hint) {
            Ordering::Equal => Ok(key.cmp(self.entry(child.first)?.key())),
            other => Ok(other),
        }
    }

    /// The place of a key among children: of the one that begins with it, or of the first one above it.
    fn search(&self, key: &[u8], children: &[Child]) -> Result<std::result::Result<usize, usize>> {
        let (mut low, mut high) = (0, children.len());
        while low < high {
            let middle = low.midpoint(high);
            match self.compare(key, &children[middle])? {
                Ordering::Equal => return Ok(Ok(middle)),
                Ordering::Less => high = middle,
                Ordering::Greater => low = middle + 1,
            }
        }
        Ok(Err(low))
    }

    /// The child that a key belongs to.
    fn child_of(&self, key: &[u8], node: &Node) -> Result<usize> {
        Ok(self.search(key, &node.children)?.unwrap_or_else(|above| above.saturating_sub(1)))
    }

    /// Makes durable what the marks of a node say, if anything.
    fn keep_marks(&self, node: &Node) -> Result<()> {
        if node.gone != 0 {
            self.records.keep_marks(self.op, self.word, node.off)?;
            self.op.fence(); // PERSIST DP-M2: flush+fence
        }
        Ok(())
    }

    /// The node of level 0 to which a key belongs, from a root on that is a node.
    fn leaf(&self, mut node: Node, key: &[u8]) -> Result<Node> {
        while node.level > 0 {
            node = self.node_below(node.level, node.children[self.child_of(key, &node)?].off)?;
        }
        Ok(node)
    }

    /// The entry of a key.
    pub(crate) fn find(&self, root: u64, key: &[u8]) -> Result<Option<Entry>> {
        let mut look = Look::Root(root);
        loop {
            match self.look_on(look, key)? {
                Look::Done(entry) => return Ok(entry),
                on_the_way => look = on_the_way,
            }
        }
    }

    /// Reads the next record of a look for a key.
    pub(crate) fn look_on(&self, look: Look, key: &[u8]) -> Result<Look> {
        let node = match look {
            Look::Root(off) => match self.load(off)? {
                Loaded::Entry(entry) => return Ok(Look::Done((entry.key() == key).then_some(entry))),
                Loaded::Node(node) => node,
            },
            Look::Node(above, off) => self.node_below(above, off)?,
            Look::Entry(off) => return Ok(Look::Done(Some(self.entry(off)?))),
            done @ Look::Done(_) => return Ok(done),
        };
        if node.level > 0 {
            return Ok(Look::Node(node.level, node.children[self.child_of(key, &node)?].off));
        }
        let Ok(child) = self.search(key, &node.children)? else { return Ok(Look::Done(None)) };
        if node.is_gone(child) {
            self.keep_marks(&node)?;
            return Ok(Look::Done(None));
        }
        Ok(Look::Entry(node.children[child].off))
    }

    /// Calls `visit` with the entries of a group in a direction, from a key on, if there is one, until it returns `false`. Returns whether it never did.
    pub(crate) fn walk(
        &self,
        root: u64,
        direction: Direction,
        from: Option<&[u8]>,
        visit: &mut dyn FnMut(Entry) -> Result<bool>,
    ) -> Result<bool> {
        match self.load(root)? {
            Loaded::Node(node) => self.walk_node(&node, direction, from, &mut Seen::default(), visit),
            Loaded::Entry(entry) => {
                let is_before = from.is_some_and(|from| match direction {
                    Direction::Forward => entry.key() < from,
                    Direction::Backward => entry.key() > from,
                });
                if is_before { Ok(true) } else { visit(entry) }
            }
        }
    }

    fn walk_node(
        &self,
        node: &Node,
        direction: Direction,
        from: Option<&[u8]>,
        seen: &mut Seen,
        visit: &mut dyn FnMut(Entry) -> Result<bool>,
    ) -> Result<bool> {
        seen.note(node)?;
        self.keep_marks(node)?;
        let place = match from {
            Some(key) if node.level == 0 => self.search(key, &node.children)?,
            Some(key) => Ok(self.child_of(key, node)?),
            None if direction == Direction::Forward => Ok(0),
            None => Ok(node.children.len() - 1),
        };
        let (first, count) = match (place, direction) {
            (Ok(at) | Err(at), Direction::Forward) => (at, node.children.len() - at),
            (Ok(at), Direction::Backward) => (at, at + 1),
            (Err(at), Direction::Backward) => (at.saturating_sub(1), at),
        };
        for step in 0..count {
            let at = if direction == Direction::Forward { first + step } else { first - step };
            let off = node.children[at].off;
            let goes_on = if node.level > 0 {
                let below = self.node_below(node.level, off)?;
                self.walk_node(&below, direction, from.filter(|_| step == 0), seen, visit)?
            } else {
                node.is_gone(at) || visit(self.entry(off)?)?
            };
            if !goes_on {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Number of keys of a group.
    pub(crate) fn count(&self, root: u64) -> Result<u64> {
        let node = match self.load(root)? {
            Loaded::Entry(_) => return Ok(1),
            Loaded::Node(node) => node,
        };
        self.count_below(&node, &mut Seen::default())
    }

    fn count_below(&self, node: &Node, seen: &mut Seen) -> Result<u64> {
        seen.note(node)?;
        self.keep_marks(node)?;
        if node.level == 0 {
            return Ok(node.children.len() as u64 - u64::from(node.gone.count_ones()));
        }
        node.children.iter().map(|child| self.count_below(&self.node_below(node.level, child.off)?, seen)).sum()
    }

    // ---- recovery and check ----

    /// Whether a root leads to a record. The record need not be one: its unit may hold anything. `met` is of the same recovery.
    pub(crate) fn leads_to(&self, root: u64, off: u64, met: &mut Met) -> Result<bool> {
        if root == off {
            return Ok(true);
        }
        let root = match self.load(root) {
            Ok(Loaded::Node(node)) => node,
            Ok(Loaded::Entry(_)) => return Ok(false),
            // What is damaged stays as it is, for the check.
            Err(error) => return stays(error),
        };
        match self.whole(off) {
            Ok((level, key)) => self.is_on_the_way(root, level, &key, off).or_else(stays),
            // Not whole: nothing leads to it, unless it is damaged.
            Err(Error::Corrupt { .. }) => Ok(met.of(self, &root).has(off)),
            Err(error) => Err(error),
        }
    }

    /// The word that the keys of a record say they belong to, where that is another one than the record says: of damaged ones, one is right.
    pub(crate) fn other_word(&self, off: u64) -> Result<Option<u64>> {
        // No more than is needed: of a record that a crash has cut off, each word more can be old or new, and has to be explored.
        let front = |off, most| {
            let mut bytes = Vec::new();
            match self.records.read_unchecked(self.op, off, most, &mut bytes) {
                Ok(()) => Ok(Some(bytes)),
                Err(Error::Corrupt { .. }) => Ok(None),
                Err(error) => Err(error),
            }
        };
        let Some(mut read) = front(off, HEAD[0] + WORD)? else { return Ok(None) };
        if number(&read, 0) >= NODE {
            let Some(node) = front(off, HEAD[1] + child_bytes(1))? else { return Ok(None) };
            // Above level 0 the first entry stands behind the first child.
            let first = long(&node, HEAD[1] + child_bytes(number(&node, 8).min(1)) - WORD);
            match front(first, HEAD[0] + WORD)? {
                Some(entry) => read = entry,
                None => return Ok(None),
            }
        }
        let key_len = number(&read, 0) as usize;
        let key = read.get(HEAD[0]..HEAD[0] + key_len.min(WORD)).map(|key| word_of(key, 0));
        Ok(key.filter(|word| *word != self.word))
    }

    /// The key of an entry.
    #[cfg(test)]
    pub(crate) fn first_key(&self, off: u64) -> Result<Vec<u8>> {
        Ok(self.entry(off)?.key().to_vec())
    }

    /// The level of a record that is whole, or `None` for an entry, and its first key.
    fn whole(&self, off: u64) -> Result<(Option<u32>, Vec<u8>)> {
        match self.load(off)? {
            Loaded::Node(node) => Ok((Some(node.level), self.entry(node.children[0].first)?.key().to_vec())),
            Loaded::Entry(entry) => {
                let key = entry.key().to_vec();
                self.value(entry)?;
                Ok((None, key))
            }
        }
    }

    fn is_on_the_way(&self, mut node: Node, level: Option<u32>, key: &[u8], off: u64) -> Result<bool> {
        loop {
            if level == Some(node.level) {
                return Ok(node.off == off);
            }
            if node.level == 0 {
                let found = self.search(key, &node.children)?;
                return Ok(found.is_ok_and(|child| level.is_none() && node.children[child].off == off));
            }
            node = self.node_below(node.level, node.children[self.child_of(key, &node)?].off)?;
        }
    }

    /// Calls `found` with the offsets of all records of a group, and `wrong` with what is wrong about them.
    pub(crate) fn survey(&self, root: u64, found: &mut dyn FnMut(u64), wrong: &mut dyn FnMut(Error)) {
        found(root);
        match self.load(root) {
            Ok(Loaded::Entry(_)) => {}
            Ok(Loaded::Node(node)) => {
                self.survey_node(&node, (&mut None, &mut Seen::default()), found, wrong);
            }
            Err(error) => wrong(error),
        }
    }

    fn survey_node(
        &self,
        node: &Node,
        (last, seen): (&mut Option<Vec<u8>>, &mut Seen),
        found: &mut dyn FnMut(u64),
        wrong: &mut dyn FnMut(Error),
    ) {
        if let Err(error) = seen.note(node) {
            return wrong(error);
        }
        for child in &node.children {
            found(child.off);
            let first = match self.entry(child.first) {
                Ok(entry) => entry,
                Err(error) => {
                    wrong(error);
                    continue;
                }
            };
            if word_of(first.key(), WORD) != child.hint {
                wrong(corrupt("the hint of an entry", child.first, child.hint));
            }
            if node.level == 0 {
                if last.as_ref().is_some_and(|last| last[..] >= *first.key()) {
                    wrong(corrupt("the order of an entry", child.off, child.hint));
                }
                *last = Some(first.key().to_vec());
                continue;
            }
            match self.node_below(node.level, child.off) {
                Ok(below) => {
                    if below.children[0].first != child.first {
                        wrong(corrupt("the first entry of a node", child.off, child.first));
                    }
                    self.survey_node(&below, (last, seen), found, wrong);
                }
                Err(error) => wrong(error),
            }
        }
    }
}

impl<M: Medium> Group<'_, '_, M> {
    /// Calls `found` with all keys and values below a root that can be read, whatever else cannot be.
    pub(crate) fn read_what_is_whole(&self, root: u64, found: &mut dyn FnMut(&[u8], &[u8])) {
        match self.load(root) {
            Ok(Loaded::Entry(entry)) => {
                let key = entry.key().to_vec();
                _ = self.value(entry).map(|value| found(&key, &value));
            }
            Ok(Loaded::Node(node)) => self.read_below(&node, &mut Seen::default(), found),
            Err(_) => {}
        }
    }

    fn read_below(&self, node: &Node, seen: &mut Seen, found: &mut dyn FnMut(&[u8], &[u8])) {
        if seen.note(node).is_err() {
            return;
        }
        for (at, child) in node.children.iter().enumerate() {
            if node.level == 0 && !node.is_gone(at) && self.entry(child.off).is_ok() {
                self.read_what_is_whole(child.off, found);
            } else if node.level > 0
                && let Ok(below) = self.node_below(node.level, child.off)
            {
                self.read_below(&below, seen, found);
            }
        }
    }
}

/// The records that a group leads to, of the group that recovery has asked for last: a unit that holds no whole record is looked up there.
#[derive(Debug, Default)]
pub(crate) struct Met {
    /// The first eight bytes of its keys, once there is one.
    word: Option<u64>,
    offs: OffsetSet,
    is_damaged: bool,
}

impl Met {
    fn of<M: Medium>(&mut self, group: &Group<'_, '_, M>, root: &Node) -> &Self {
        if self.word != Some(group.word) {
            let (mut offs, mut is_damaged) = (OffsetSet::default(), false);
            let (mut last, mut seen) = (None, Seen::default());
            group
                .survey_node(root, (&mut last, &mut seen), &mut |off| _ = offs.insert(off), &mut |_| is_damaged = true);
            *self = Met { word: Some(group.word), offs, is_damaged };
        }
        self
    }

    /// Whether a record is one of them, or may be: what is damaged stays as it is, for the check.
    fn has(&self, off: u64) -> bool {
        self.is_damaged || self.offs.contains(&off)
    }
}

/// What recovery does with a record of a group that cannot be read.
fn stays(error: Error) -> Result<bool> {
    match error {
        Error::Corrupt { .. } => Ok(true),
        error => Err(error),
    }
}

/// A change of a group: the records that come, and those that go.
#[derive(Debug, Default)]
pub(crate) struct Edit {
    pub(crate) written: Vec<Record>,
    /// Offsets.
    pub(crate) replaced: Vec<u64>,
}

impl Edit {
    /// Maps a key to a value, or removes it, where `None` is given, which is there. Returns the new root; `None` where no key is left.
    ///
    /// # Errors
    /// [`Error::Pool`] where the pool is full; [`Error::Corrupt`]. Then what was written is not used.
    pub(crate) fn change<M: Medium>(
        &mut self,
        group: &Group<'_, '_, M>,
        root: Option<u64>,
        key: &[u8],
        value: Option<&[u8]>,
    ) -> Result<Option<u64>> {
        let Some(root) = root else {
            return value.map(|value| Ok(self.write_entry(group, key, value)?.off)).transpose();
        };
        let (mut level, mut children, mut at_end) = match group.load(root)? {
            Loaded::Node(node) => {
                let (children, at_end) = self.change_node(group, &node, key, value)?;
                (node.level, children, at_end)
            }
            Loaded::Entry(entry) => {
                let order = key.cmp(entry.key());
                let mut children = Vec::new();
                if order == Ordering::Equal {
                    self.replaced.push(root);
                } else {
                    children.push(Child { hint: word_of(entry.key(), WORD), off: root, first: root });
                }
                if let Some(value) = value {
                    let new = self.write_entry(group, key, value)?;
                    children.insert(if order == Ordering::Less { 0 } else { children.len() }, new);
                }
                (0, children, false)
            }
        };
        loop {
            if let [] | [_] = children[..] {
                return Ok(children.first().map(|child| child.off));
            }
            children = self.write_nodes(group, level, &children, at_end)?;
            (level, at_end) = (level + 1, false);
        }
    }

    /// Makes several changes, one after the other; removals of keys that are not there do nothing. Returns the new root.
    ///
    /// # Errors
    /// As [`change`](Self::change).
    pub(crate) fn change_all<'c, M: Medium>(
        &mut self,
        group: &Group<'_, '_, M>,
        mut root: Option<u64>,
        changes: impl Iterator<Item = (&'c [u8], Option<&'c [u8]>)>,
    ) -> Result<Option<u64>> {
        let mut written: BTreeMap<u64, Record> = BTreeMap::new();
        for (key, new) in changes {
            let mut step = Edit::default();
            let changed = step.change_if_there(group, root, key, new);
            for off in step.replaced {
                match written.remove(&off) {
                    // One change has written it, another has replaced it: nothing ever leads to it.
                    Some(record) => group.records.give_back(group.op, &[record]),
                    None => self.replaced.push(off),
                }
            }
            written.extend(step.written.into_iter().map(|record| (record.off(), record)));
            match changed {
                Ok(changed) => root = changed,
                Err(error) => {
                    self.written.extend(written.into_values());
                    return Err(error);
                }
            }
        }
        self.written.extend(written.into_values());
        Ok(root)
    }

    fn change_if_there<M: Medium>(
        &mut self,
        group: &Group<'_, '_, M>,
        root: Option<u64>,
        key: &[u8],
        new: Option<&[u8]>,
    ) -> Result<Option<u64>> {
        let is_there = || -> Result<bool> { root.map_or(Ok(false), |root| Ok(group.find(root, key)?.is_some())) };
        if new.is_some() || is_there()? { self.change(group, root, key, new) } else { Ok(root) }
    }

    /// What a node leads to after a change, and whether the change was at the end of all.
    fn change_node<M: Medium>(
        &mut self,
        group: &Group<'_, '_, M>,
        node: &Node,
        key: &[u8],
        value: Option<&[u8]>,
    ) -> Result<(Vec<Child>, bool)> {
        self.replaced.push(node.off);
        if node.level == 0 {
            return self.change_leaf(group, node, key, value);
        }
        let mut children = node.children.clone();
        let at = group.child_of(key, node)?;
        let below = group.node_below(node.level, children[at].off)?;
        let (mut changed, at_end) = self.change_node(group, &below, key, value)?;
        let at_end = at_end && at + 1 == children.len();
        let mut taken = at..at + 1;
        if changed.len() < FEW && children.len() > 1 {
            let beside = if at > 0 { at - 1 } else { 1 };
            let neighbour = group.node_below(node.level, children[beside].off)?;
            if changed.len() + neighbour.children.len() <= MOST && neighbour.gone == 0 {
                self.replaced.push(neighbour.off);
                let place = if beside < at { 0 } else { changed.len() };
                changed.splice(place..place, neighbour.children);
                taken = at.min(beside)..at.max(beside) + 1;
            }
        }
        let nodes = self.write_nodes(group, below.level, &changed, at_end)?;
        children.splice(taken, nodes);
        Ok((children, at_end))
    }

    fn change_leaf<M: Medium>(
        &mut self,
        group: &Group<'_, '_, M>,
        node: &Node,
        key: &[u8],
        value: Option<&[u8]>,
    ) -> Result<(Vec<Child>, bool)> {
        let mut children = Vec::with_capacity(MOST + 1);
        for (at, child) in node.children.iter().enumerate() {
            if node.is_gone(at) {
                self.replaced.push(child.off);
            } else {
                children.push(*child);
            }
        }
        let place = group.search(key, &children)?;
        let at_end = place == Err(children.len());
        let new = value.map(|value| self.write_entry(group, key, value)).transpose()?;
        match (place, new) {
            (Ok(at), new) => {
                self.replaced.push(children[at].off);
                children.splice(at..=at, new);
            }
            (Err(at), new) => drop(children.splice(at..at, new)),
        }
        Ok((children, at_end))
    }

    fn write_entry<M: Medium>(&mut self, group: &Group<'_, '_, M>, key: &[u8], value: &[u8]) -> Result<Child> {
        let mut bytes = Vec::with_capacity(HEAD[0] + key.len() + value.len());
        for len in [key.len(), value.len()] {
            bytes.extend_from_slice(&(len as u32).to_le_bytes());
        }
        bytes.extend_from_slice(key);
        bytes.extend_from_slice(value);
        let off = self.write(group, &bytes, false)?;
        Ok(Child { hint: word_of(key, WORD), off, first: off })
    }

    /// Writes children as one node or two; none if there are none.
    fn write_nodes<M: Medium>(
        &mut self,
        group: &Group<'_, '_, M>,
        level: u32,
        children: &[Child],
        at_end: bool,
    ) -> Result<Vec<Child>> {
        let left = match children.len() {
            ..=MOST => children.len(),
            // Ascending keys fill nodes.
            _ if at_end => MOST,
            all => all / 2,
        };
        let (left, right) = children.split_at(left);
        let parts = [left, right].into_iter().filter(|part| !part.is_empty());
        parts.map(|part| self.write_node(group, level, part)).collect()
    }

    fn write_node<M: Medium>(&mut self, group: &Group<'_, '_, M>, level: u32, children: &[Child]) -> Result<Child> {
        let mut bytes = Vec::with_capacity(HEAD[1] + children.len() * child_bytes(level));
        bytes.extend_from_slice(&marks_of(0).to_le_bytes());
        bytes.extend_from_slice(&level.to_le_bytes());
        bytes.extend_from_slice(&(children.len() as u32).to_le_bytes());
        for Child { hint, off, first } in children {
            let words = [*hint, *off, *first];
            words[..child_bytes(level) / WORD].iter().for_each(|word| bytes.extend_from_slice(&word.to_le_bytes()));
        }
        let off = self.write(group, &bytes, true)?;
        Ok(Child { off, ..children[0] })
    }

    fn write<M: Medium>(&mut self, group: &Group<'_, '_, M>, bytes: &[u8], has_marks: bool) -> Result<u64> {
        let record = group.records.write(group.op, group.word, bytes, has_marks)?;
        let off = record.off();
        self.written.push(record);
        Ok(off)
    }

    /// Removes a key that is there without writing records: returns whether all keys are gone, so that the group can go; otherwise the entry is
    /// marked, durably.
    ///
    /// # Errors
    /// [`Error::Corrupt`].
    pub(crate) fn remove_in_place<M: Medium>(
        &mut self,
        group: &Group<'_, '_, M>,
        root: u64,
        key: &[u8],
    ) -> Result<bool> {
        let Loaded::Node(root) = group.load(root)? else {
            self.replaced.push(root);
            return Ok(true);
        };
        let is_root = root.level == 0;
        let node = group.leaf(root, key)?;
        let Ok(at) = group.search(key, &node.children)? else {
            return Err(corrupt("a node of a group that had a key", node.off, group.word));
        };
        if is_root && (node.gone | 1 << at).count_ones() as usize == node.children.len() {
            self.replaced.extend(node.children.iter().map(|child| child.off).chain([node.off]));
            return Ok(true);
        }
        if !group.records.set_marks(group.op, group.word, node.off, marks_of(node.gone | 1 << at))? {
            return Err(corrupt("a node of a group", node.off, group.word));
        }
        group.op.fence(); // PERSIST DP-M1: flush+fence
        Ok(false)
    }
}
