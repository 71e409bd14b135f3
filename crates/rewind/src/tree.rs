//! The atomic AVL tree (section 3.4): indexes the records of two-layer logs by transaction. A node leads to its transaction's
//! last record, and each record to the one before.
//!
//! An insertion or removal is worked out in volatile memory first: the words that change, and what they become. They go
//! to a one-layer log, ended by an END record; then they are stored; then the log is emptied. One operation is pending at a time.
//!
//! # Persist order
//! | edge | between | kept by | a crash before it leaves | recovery |
//! |---|---|---|---|---|
//! | RW-T1 | a new node; END in the lower log | flush+fence | the tree as it was | empties the lower log |
//! | RW-T2 | END in the lower log; the first store to the tree | the append's fence | the tree as it was, or END | redoes all records where END is found |
//! | RW-T3 | all stores to the tree; END is removed | flush+fence | END | redoes all records |
//! | RW-T4 | END is removed; the first other record is removed | the removal's fence | some records without END | empties the lower log |
//! | RW-T5 | the lower log as recovery has read it; stores to the tree, and the next operation | flush+fence | the tree as it was | decides anew |
//! | RW-T6 | a chain's records; the node's link to the last | flush+fence | the transaction without the records | units that are nobody's are free |
//! | RW-T7 | the node's link; the append returns | flush+fence | the transaction with or without them | as above |

use std::cmp::Ordering as Compare;
use std::collections::BTreeMap;
use std::mem::offset_of;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use durix_pmem::{Medium, Off, Op, Word};

use crate::adll::{checked, corrupt};
use crate::arena::Arena;
use crate::error::Result;
use crate::layout::{Anchor, Kind, Record, TreeNode};
use crate::log::{Log, Shape, most_nodes};
use crate::record::Entry;

/// No tree in a pool of any size is higher.
const MAX_HEIGHT: u64 = 64;

type Link = Off<TreeNode>;

/// The tree, and the log below it. The caller holds its latch.
#[derive(Debug)]
pub(crate) struct Tree {
    anchor: Off<Anchor>,
    shape: Shape,
    lower: Log,
    /// Room in the lower log.
    room: u64,
}

impl Tree {
    /// Finds the tree of an anchor, and finishes the operation that was pending.
    ///
    /// # Errors
    /// [`Error::Corrupt`](crate::Error::Corrupt).
    pub(crate) fn recover<M: Medium>(op: &Op<'_, M>, anchor: Off<Anchor>, shape: Shape) -> Result<Self> {
        let mut lower = Log::recover(op, anchor, shape)?;
        let load = |(_, at)| Ok(Entry::load(op, at)?.0);
        let entries = lower.scan(op)?.into_iter().map(load).collect::<Result<Vec<_>>>()?;
        lower.write_back_all(op)?;
        // PERSIST RW-T5: flush+fence.
        op.fence();
        if entries.iter().any(|entry| entry.kind == Kind::End) {
            let updates = entries.iter().filter(|entry| entry.kind == Kind::Update);
            store_all(op, updates.map(|entry| (entry.addr.get(), entry.new)));
        }
        if !entries.is_empty() {
            // PERSIST RW-T3: flush+fence, RW-C1 of the lower log.
            lower.clear(op);
        }
        lower.keep_room();
        Ok(Tree { anchor, shape, lower, room: 0 })
    }

    fn root<M: Medium>(&self, op: &Op<'_, M>) -> Link {
        op.load(&op.at(self.anchor).root, Acquire)
    }

    fn root_word(&self) -> Off<Word> {
        self.anchor.byte_add(offset_of!(Anchor, root) as u64).cast()
    }

    /// Makes the tree empty by a pointer swap. Needs no room; which units are free is for the caller to find out.
    pub(crate) fn clear<M: Medium>(&mut self, op: &Op<'_, M>) {
        let root = &op.at(self.anchor).root;
        op.store(root, Off::NULL, Release);
        op.write_back(root);
        // PERSIST RW-C2: flush+fence.
        op.fence();
    }

    /// Units of the lower log.
    pub(crate) fn lower_units<M: Medium>(&self, op: &Op<'_, M>) -> Result<Vec<u64>> {
        self.lower.units(op)
    }

    /// Adds a transaction without records. Durable when it returns. `O(log n)`.
    ///
    /// # Errors
    /// [`Error::Pool`](crate::Error::Pool) where the pool has no room; [`Error::Corrupt`](crate::Error::Corrupt).
    pub(crate) fn insert<M: Medium>(&mut self, op: &Op<'_, M>, arena: &Arena<M>, key: u64) -> Result<Link> {
        self.make_room(op, arena)?;
        let at = Link::new(arena.take(op, 1)?);
        let node = op.at(at);
        op.store(&node.key, key, Relaxed);
        node.child.iter().for_each(|child| op.store(child, Off::NULL, Relaxed));
        op.store(&node.height, 1, Relaxed);
        op.store(&node.last, Off::NULL, Relaxed);
        // PERSIST RW-T1: the lower log's first fence is behind it.
        op.write_back(node);
        let mut patch = Patch::new(op);
        let planned = patch.insert(self.root(op), at, key, MAX_HEIGHT).inspect(|root| {
            patch.set(self.root_word(), root.get());
        });
        if let Err(error) = planned {
            arena.give_back(op.medium(), 1, [at.get()]);
            return Err(error);
        }
        let words = patch.words;
        self.execute(op, arena, words);
        Ok(at)
    }

    /// Removes a transaction, and gives its node back, but not its records. `O(log n)`; needs no room.
    ///
    /// # Errors
    /// [`Error::Corrupt`](crate::Error::Corrupt).
    pub(crate) fn remove<M: Medium>(&mut self, op: &Op<'_, M>, arena: &Arena<M>, key: u64) -> Result<()> {
        let mut patch = Patch::new(op);
        let (root, removed) = patch.remove(self.root(op), key, MAX_HEIGHT)?;
        patch.set(self.root_word(), root.get());
        let words = patch.words;
        self.execute(op, arena, words);
        arena.give_back(op.medium(), 1, [removed.get()]);
        Ok(())
    }

    /// Room in the lower log for this insertion, and for any removal later. A double rotation changes three words of each of
    /// three nodes; a removal may need one on each level.
    fn make_room<M: Medium>(&mut self, op: &Op<'_, M>, arena: &Arena<M>) -> Result<()> {
        let height = op.get(self.root(op)).map_or(0, |node| op.load(&node.height, Relaxed));
        let needed = 9 * (height.min(MAX_HEIGHT) + 2) + 4;
        if needed > self.room {
            self.lower.promise(op, arena, needed - self.room)?;
            self.room = needed;
        }
        Ok(())
    }

    fn execute<M: Medium>(&mut self, op: &Op<'_, M>, arena: &Arena<M>, words: BTreeMap<u64, u64>) {
        let mut records = Vec::with_capacity(words.len() + 1);
        let update =
            |(addr, new): (&u64, &u64)| Entry { addr: Off::new(*addr), new: *new, ..Entry::new(0, Kind::Update, 0) };
        for entry in words.iter().map(update).chain([Entry::new(0, Kind::End, 0)]) {
            let record = self.shape.new_record(op, arena, &entry);
            records.push((self.lower.append(op, arena, record), record));
        }
        // PERSIST RW-T1, RW-T2: flush+fence, by the log.
        self.lower.flush(op);
        store_all(op, words.into_iter());
        // PERSIST RW-T3: flush+fence.
        op.fence();
        let (end, updates) = records.split_last().expect("END at least");
        // PERSIST RW-T4: flush+fence, by the log.
        self.lower.remove(op, arena, &[*end]);
        self.lower.remove(op, arena, updates);
    }

    /// All transactions and their nodes, ascending.
    ///
    /// # Errors
    /// [`Error::Corrupt`](crate::Error::Corrupt).
    pub(crate) fn nodes<M: Medium>(&self, op: &Op<'_, M>) -> Result<Vec<(u64, Link)>> {
        let mut nodes = Vec::new();
        walk(op, self.root(op), (MAX_HEIGHT, &mut most_nodes(op)), &mut |key, at, _| nodes.push((key, at)))?;
        if let Some(pair) = nodes.windows(2).find(|pair| pair[0].0 >= pair[1].0) {
            return Err(corrupt("the order of the tree's keys", pair[1].1, pair[1].0));
        }
        Ok(nodes)
    }

    /// What is out of balance, a line each.
    pub(crate) fn check<M: Medium>(&self, op: &Op<'_, M>) -> Vec<String> {
        let mut findings = Vec::new();
        let height = |link: Link| op.get(link).map_or(0, |node| op.load(&node.height, Relaxed));
        let walked = walk(op, self.root(op), (MAX_HEIGHT, &mut most_nodes(op)), &mut |key, at, node| {
            let [low, high] = [0, 1].map(|side| height(op.load(&node.child[side], Relaxed)));
            if low.abs_diff(high) > 1 || height(at) != 1 + low.max(high) {
                findings.push(format!("transaction {key}: height {} over {low} and {high}", height(at)));
            }
        });
        findings.extend(walked.err().map(|error| error.to_string()));
        findings
    }
}

/// Stores words and starts writing them back.
fn store_all<M: Medium>(op: &Op<'_, M>, words: impl Iterator<Item = (u64, u64)>) {
    for (addr, value) in words {
        let word = op.at(Off::<Word>::new(addr));
        op.store(word, value, Release);
        op.write_back(word);
    }
}

/// Calls `visit` with each key, its place and its node, in order. Bounded: so many levels, and so many nodes in all.
fn walk<'op, M: Medium>(
    op: &Op<'op, M>,
    at: Link,
    (depth, left): (u64, &mut u64),
    visit: &mut impl FnMut(u64, Link, &'op TreeNode),
) -> Result<()> {
    if at.is_null() {
        return Ok(());
    }
    if depth == 0 || *left == 0 {
        return Err(corrupt("the tree's height or size", at, depth));
    }
    *left -= 1;
    let node = checked(op, at)?;
    walk(op, op.load(&node.child[0], Acquire), (depth - 1, left), visit)?;
    visit(op.load(&node.key, Relaxed), at, node);
    walk(op, op.load(&node.child[1], Acquire), (depth - 1, left), visit)
}

/// The tree as it will be: the words that an operation changes.
struct Patch<'p, 's, M: Medium> {
    op: &'p Op<'s, M>,
    words: BTreeMap<u64, u64>,
}

impl<'p, 's, M: Medium> Patch<'p, 's, M> {
    fn new(op: &'p Op<'s, M>) -> Self {
        Patch { op, words: BTreeMap::new() }
    }

    fn get(&self, at: Off<Word>) -> u64 {
        self.words.get(&at.get()).copied().unwrap_or_else(|| self.op.load(self.op.at(at), Acquire))
    }

    fn set(&mut self, at: Off<Word>, value: u64) {
        if self.get(at) != value {
            self.words.insert(at.get(), value);
        }
    }

    fn key(&self, node: Link) -> u64 {
        self.get(node.byte_add(offset_of!(TreeNode, key) as u64).cast())
    }

    fn child(&self, node: Link, side: usize) -> Link {
        Link::new(self.get(child_word(node, side)))
    }

    fn set_child(&mut self, node: Link, side: usize, child: Link) {
        self.set(child_word(node, side), child.get());
    }

    fn height(&self, node: Link) -> u64 {
        if node.is_null() { 0 } else { self.get(height_word(node)) }
    }

    /// By how much the `side` of `node` is higher.
    fn lean(&self, node: Link, side: usize) -> i64 {
        let height = |side| self.height(self.child(node, side)) as i64;
        height(side).wrapping_sub(height(1 - side))
    }

    fn sound(&self, node: Link, depth: u64) -> Result<()> {
        if depth == 0 {
            return Err(corrupt("the tree's height", node, MAX_HEIGHT));
        }
        checked(self.op, node).map(drop)
    }

    /// The root of the subtree `at` with `new` in it.
    fn insert(&mut self, at: Link, new: Link, key: u64, depth: u64) -> Result<Link> {
        if at.is_null() {
            return Ok(new);
        }
        self.sound(at, depth)?;
        let side = match key.cmp(&self.key(at)) {
            Compare::Less => 0,
            Compare::Greater => 1,
            Compare::Equal => return Err(corrupt("a new transaction's number, taken already,", at, key)),
        };
        let child = self.insert(self.child(at, side), new, key, depth - 1)?;
        self.set_child(at, side, child);
        self.balance(at)
    }

    /// The root of the subtree `at` without `key`, and the node that held it.
    fn remove(&mut self, at: Link, key: u64, depth: u64) -> Result<(Link, Link)> {
        if at.is_null() {
            return Err(corrupt("a transaction that the tree must hold but does not", at, key));
        }
        self.sound(at, depth)?;
        let side = match key.cmp(&self.key(at)) {
            Compare::Equal => return Ok((self.join(at, depth)?, at)),
            Compare::Less => 0,
            Compare::Greater => 1,
        };
        let (child, removed) = self.remove(self.child(at, side), key, depth - 1)?;
        self.set_child(at, side, child);
        Ok((self.balance(at)?, removed))
    }

    /// The two subtrees of a node that goes, as one.
    fn join(&mut self, at: Link, depth: u64) -> Result<Link> {
        let [low, high] = [0, 1].map(|side| self.child(at, side));
        if low.is_null() || high.is_null() {
            return Ok(if low.is_null() { high } else { low });
        }
        let (rest, first) = self.take_first(high, depth - 1)?;
        self.set_child(first, 0, low);
        self.set_child(first, 1, rest);
        self.balance(first)
    }

    /// The subtree `at` without its first node, and that node.
    fn take_first(&mut self, at: Link, depth: u64) -> Result<(Link, Link)> {
        self.sound(at, depth)?;
        let low = self.child(at, 0);
        if low.is_null() {
            return Ok((self.child(at, 1), at));
        }
        let (rest, first) = self.take_first(low, depth - 1)?;
        self.set_child(at, 0, rest);
        Ok((self.balance(at)?, first))
    }

    /// Restores heights and balance at `at`, whose subtrees are in order. Returns the new root.
    fn balance(&mut self, at: Link) -> Result<Link> {
        let side = usize::from(self.lean(at, 1) > 0);
        if self.lean(at, side) < 2 {
            self.measure(at);
            return Ok(at);
        }
        let child = self.child(at, side);
        checked(self.op, child)?;
        if self.lean(child, 1 - side) > 0 {
            let inner = self.rotate(child, 1 - side)?;
            self.set_child(at, side, inner);
        }
        self.rotate(at, side)
    }

    /// Lifts the child on `side` over `at`.
    fn rotate(&mut self, at: Link, side: usize) -> Result<Link> {
        let up = self.child(at, side);
        checked(self.op, up)?;
        let between = self.child(up, 1 - side);
        self.set_child(at, side, between);
        self.measure(at);
        self.set_child(up, 1 - side, at);
        self.measure(up);
        Ok(up)
    }

    fn measure(&mut self, at: Link) {
        let height = [0, 1].map(|side| self.height(self.child(at, side))).into_iter().max();
        self.set(height_word(at), height.unwrap_or(0).wrapping_add(1));
    }
}

fn child_word(node: Link, side: usize) -> Off<Word> {
    node.byte_add(offset_of!(TreeNode, child) as u64 + side as u64 * 8).cast()
}

fn height_word(node: Link) -> Off<Word> {
    node.byte_add(offset_of!(TreeNode, height) as u64).cast()
}

/// Leads a transaction's node to its newest records, which are linked to each other and stored but not written back. Durable
/// when it returns.
pub(crate) fn extend<M: Medium>(op: &Op<'_, M>, node: Link, staged: &[Off<Record>]) {
    let Some(last) = staged.last() else { return };
    staged.iter().for_each(|record| op.write_back(op.at(*record)));
    // PERSIST RW-T6: flush+fence.
    op.fence();
    let link = &op.at(node).last;
    op.store(link, *last, Release);
    op.write_back(link);
    // PERSIST RW-T7: flush+fence.
    op.fence();
}

/// The records of a node's transaction, newest first.
///
/// # Errors
/// [`Error::Corrupt`](crate::Error::Corrupt).
pub(crate) fn chain<M: Medium>(op: &Op<'_, M>, node: Link) -> Result<Vec<(Off<Record>, Entry)>> {
    let mut at = op.load(&checked(op, node)?.last, Acquire);
    let mut records: Vec<(Off<Record>, Entry)> = Vec::new();
    while !at.is_null() {
        let (entry, prev) = Entry::load(op, at)?;
        if records.last().is_some_and(|(_, newer)| newer.id <= entry.id) {
            return Err(corrupt("the order of a transaction's records", at, entry.id));
        }
        records.push((at, entry));
        at = prev;
    }
    Ok(records)
}

#[cfg(test)]
mod tests;
