//! The one-layer logs: a list of records (Simple), and buckets of pointers to records, one at a time (Optimized) or in groups
//! (Batch). Section 3.3 of the paper.
//!
//! # Persist order
//! | edge | between | kept by | a crash before it leaves | recovery |
//! |---|---|---|---|---|
//! | RW-B1 | a record; the pointer to it | flush+fence | the log without the record | nothing to do |
//! | RW-B2 | the pointer; the append returns | flush+fence | the log with or without the record | finds the next position behind the last pointer |
//! | RW-G1 | all records and pointers of a group; the bucket's durable count | flush+fence | the log without the group | ignores pointers beyond the count |
//! | RW-G2 | the durable count; the append returns | flush+fence | the log with or without the group | as above |
//! | RW-B3 | an empty bucket; it is appended to the list | RW-D1 of the list | a unit that is nobody's | free |
//! | RW-B4 | the gap in the place of a pointer; the record is used again | flush+fence | the log with the record | finds it again |
//! | RW-C1 | all of a new log; `current` names it | flush+fence | the old log | the new one's units are free |
//! | RW-C2 | `current`; units of the old log are used again | flush+fence | the old log, whole | as above |
//!
//! RW-D1 to RW-D6 stand in `adll.rs`. Nothing beyond single words is assumed to become durable together.

use std::collections::VecDeque;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use durix_pmem::{LINE, Medium, Off, Op, Word};

use crate::adll::{Adll, StorePolicy, checked, corrupt};
use crate::arena::Arena;
use crate::error::Result;
use crate::layout::{Anchor, Node, Record, SLOTS_A_LINE};
use crate::record::Entry;

/// What a slot holds in place of a pointer that was removed. Records are aligned to lines, so no pointer is 1.
const GAP: u64 = 1;

/// Lines of a node with its record.
const SIMPLE_UNIT: u64 = 2;

/// How a one-layer log keeps its records.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Shape {
    /// Slots of a bucket; 0 for a list of records without buckets.
    pub(crate) slots: u64,
    /// Records that become durable together.
    pub(crate) group: u64,
    /// How the list's header is stored.
    pub(crate) policy: StorePolicy,
}

impl Shape {
    fn has_buckets(self) -> bool {
        self.slots > 0
    }

    /// Lines of the unit that a record lies in.
    pub(crate) fn record_lines(self) -> u64 {
        if self.has_buckets() { 1 } else { SIMPLE_UNIT }
    }

    fn bucket_lines(self) -> u64 {
        1 + self.slots.div_ceil(SLOTS_A_LINE)
    }

    /// The unit that a record lies in.
    fn unit_of(self, record: Off<Record>) -> u64 {
        if self.has_buckets() { record.get() } else { record.get().wrapping_sub(LINE as u64) }
    }

    /// Writes an entry into a promised unit. What the shape can make durable without the log's latch is durable then.
    pub(crate) fn new_record<M: Medium>(self, op: &Op<'_, M>, arena: &Arena<M>, entry: &Entry) -> Off<Record> {
        let unit = arena.take_promised(op.medium(), self.record_lines());
        let at = Off::<Record>::new(if self.has_buckets() { unit } else { unit + LINE as u64 });
        entry.store(op, at, Off::NULL);
        if self.group == 1 {
            op.write_back(op.at(at));
            if self.has_buckets() {
                // PERSIST RW-B1: flush+fence. In a list of records the fence of RW-D1 does it.
                op.fence();
            }
        }
        at
    }
}

/// Where a record stands in the log, until the log is compacted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Pos {
    node: Off<Node>,
    slot: u64,
}

/// What is known of a bucket without reading it.
#[derive(Clone, Copy, Debug)]
struct Bucket {
    node: Off<Node>,
    /// Slots in use, gaps included.
    used: u64,
    /// Slots with a record.
    live: u64,
}

/// A one-layer log. The caller holds its latch.
#[derive(Debug)]
pub(crate) struct Log {
    anchor: Off<Anchor>,
    current: u64,
    list: Adll,
    shape: Shape,
    buckets: VecDeque<Bucket>,
    /// Records of the group that is being filled; the last slots of the last bucket.
    staged: Vec<Off<Record>>,
    /// Records that room was promised for.
    promised: u64,
    /// Buckets that were promised for them.
    held: u64,
    /// Whether the room of a record that is removed stays promised.
    keeps_room: bool,
    /// Grows when records change their positions.
    generation: u64,
}

impl Log {
    fn of(anchor: Off<Anchor>, current: u64, shape: Shape) -> Self {
        let header = anchor.byte_add(std::mem::offset_of!(Anchor, headers) as u64 + (current & 1) * LINE as u64);
        let list = Adll::new(header.cast(), shape.policy);
        let (buckets, staged) = (VecDeque::new(), Vec::new());
        Log { anchor, current, list, shape, buckets, staged, promised: 0, held: 0, keeps_room: false, generation: 0 }
    }

    /// Finds the log of an anchor: finishes what is pending in the list, and rebuilds counts and the next position.
    ///
    /// # Errors
    /// [`Error::Corrupt`](crate::Error::Corrupt).
    pub(crate) fn recover<M: Medium>(op: &Op<'_, M>, anchor: Off<Anchor>, shape: Shape) -> Result<Self> {
        let current = op.load(&op.at(anchor).current, Acquire);
        if current > 1 {
            return Err(corrupt("the number of a list's header", anchor, current));
        }
        let mut log = Log::of(anchor, current, shape);
        log.list.recover(op)?;
        if shape.has_buckets() {
            for node in log.list.nodes(op, most_nodes(op))? {
                let bucket = log.analyse(op, node)?;
                log.buckets.push_back(bucket);
            }
        }
        Ok(log)
    }

    /// Counts the slots of a bucket.
    fn analyse<M: Medium>(&self, op: &Op<'_, M>, node: Off<Node>) -> Result<Bucket> {
        let slots = self.slots(op, node)?;
        let used = if self.shape.group > 1 {
            op.load(&checked(op, node)?.persistent, Acquire)
        } else {
            slots.iter().rposition(|slot| op.load(slot, Acquire) != 0).map_or(0, |last| last as u64 + 1)
        };
        if used > self.shape.slots {
            return Err(corrupt("a bucket's count", node, used));
        }
        let live = slots[..used as usize].iter().filter(|slot| op.load(slot, Acquire) > GAP).count() as u64;
        Ok(Bucket { node, used, live })
    }

    fn slots<'op, M: Medium>(&self, op: &Op<'op, M>, node: Off<Node>) -> Result<&'op [Word]> {
        let first = node.byte_add(LINE as u64).cast::<Word>();
        op.slice("bucket", first, self.shape.slots).map_err(|_| corrupt("a bucket", node, node.get()))
    }

    // ---- room ----

    /// Promises room for `count` records: nothing that is appended by virtue of a promise can fail.
    ///
    /// # Errors
    /// [`Error::Pool`](crate::Error::Pool) where the pool is full.
    pub(crate) fn promise<M: Medium>(&mut self, op: &Op<'_, M>, arena: &Arena<M>, count: u64) -> Result<()> {
        arena.promise(op, self.shape.record_lines(), count as usize)?;
        let buckets = self.buckets_for(self.promised + count).saturating_sub(self.held);
        if buckets > 0
            && let Err(error) = arena.promise(op, self.shape.bucket_lines(), buckets as usize)
        {
            arena.unpromise(op.medium(), self.shape.record_lines(), count as usize);
            return Err(error);
        }
        self.promised += count;
        self.held += buckets;
        Ok(())
    }

    /// Takes promises back.
    pub(crate) fn unpromise<M: Medium>(&mut self, m: M, arena: &Arena<M>, count: u64) {
        arena.unpromise(m, self.shape.record_lines(), count as usize);
        self.promised -= count;
        self.let_buckets_go(m, arena);
    }

    /// Takes back the promises of buckets that are not needed any more.
    fn let_buckets_go<M: Medium>(&mut self, m: M, arena: &Arena<M>) {
        let surplus = self.held.saturating_sub(self.buckets_for(self.promised));
        if surplus > 0 && !self.keeps_room {
            arena.unpromise(m, self.shape.bucket_lines(), surplus as usize);
            self.held -= surplus;
        }
    }

    /// Buckets that have to be free for so many records more.
    fn buckets_for(&self, records: u64) -> u64 {
        if !self.shape.has_buckets() {
            return 0;
        }
        if self.keeps_room {
            // The last bucket may be full of gaps when the records come again; and it is never given back.
            return records.div_ceil(self.shape.slots) + u64::from(self.buckets.is_empty());
        }
        let here = self.buckets.back().map_or(0, |last| self.shape.slots - last.used);
        records.saturating_sub(here).div_ceil(self.shape.slots)
    }

    /// Whether removing a record leaves its room promised.
    pub(crate) fn keep_room(&mut self) {
        self.keeps_room = true;
    }

    // ---- appending ----

    /// Appends a record that [`Shape::new_record`] has made. Returns its position; it is durable unless
    /// [`is_staged`](Self::is_staged).
    pub(crate) fn append<M: Medium>(&mut self, op: &Op<'_, M>, arena: &Arena<M>, record: Off<Record>) -> Pos {
        if !self.shape.has_buckets() {
            self.promised -= 1;
            let node = Off::new(self.shape.unit_of(record));
            self.list.append(op, node, record.get());
            return Pos { node, slot: 0 };
        }
        let pos = self.next_slot(op, arena);
        self.promised -= 1;
        self.let_buckets_go(op.medium(), arena);
        let slot = self.slot(op, pos);
        op.store(slot, record.get(), Release);
        if self.shape.group == 1 {
            op.write_back(slot);
            // PERSIST RW-B2: flush+fence.
            op.fence();
        } else {
            self.staged.push(record);
            if self.staged.len() as u64 == self.shape.group || pos.slot + 1 == self.shape.slots {
                self.flush(op);
            }
        }
        pos
    }

    /// The slot that is used next; adds a bucket where the last one is full.
    fn next_slot<M: Medium>(&mut self, op: &Op<'_, M>, arena: &Arena<M>) -> Pos {
        if self.buckets.back().is_none_or(|last| last.used == self.shape.slots) {
            self.add_bucket(op, arena);
        }
        let last = self.buckets.back_mut().expect("a bucket was added");
        last.used += 1;
        last.live += 1;
        Pos { node: last.node, slot: last.used - 1 }
    }

    fn add_bucket<M: Medium>(&mut self, op: &Op<'_, M>, arena: &Arena<M>) {
        let node = Off::<Node>::new(arena.take_promised(op.medium(), self.shape.bucket_lines()));
        self.held -= 1;
        if self.shape.group == 1 {
            let slots = self.slots(op, node).expect("a unit lies in the pool");
            slots.iter().for_each(|slot| op.store(slot, 0, Relaxed));
            // PERSIST RW-B3: the list's RW-D1 fences it. Where a count says which slots are in use, their content does not matter.
            op.write_back_slice(slots);
        }
        self.list.append(op, node, node.get() + LINE as u64);
        self.buckets.push_back(Bucket { node, used: 0, live: 0 });
    }

    fn slot<'op, M: Medium>(&self, op: &Op<'op, M>, pos: Pos) -> &'op Word {
        op.at(pos.node.byte_add((1 + pos.slot / SLOTS_A_LINE) * LINE as u64 + pos.slot % SLOTS_A_LINE * 8).cast())
    }

    /// Whether some records are not durable yet.
    pub(crate) fn is_staged(&self) -> bool {
        !self.staged.is_empty()
    }

    /// Makes all records durable.
    pub(crate) fn flush<M: Medium>(&mut self, op: &Op<'_, M>) {
        if self.staged.is_empty() {
            return;
        }
        // Whoever appended them: a fence covers only the write-backs of its own session.
        for record in self.staged.drain(..) {
            op.write_back(op.at(record));
        }
        let last = *self.buckets.back().expect("staged records stand in the last bucket");
        let node = op.at(last.node);
        let first = op.load(&node.persistent, Relaxed);
        let slots = self.slots(op, last.node).expect("a bucket lies in the pool");
        op.write_back_slice(&slots[first.min(last.used) as usize..last.used as usize]);
        // PERSIST RW-G1: flush+fence.
        op.fence();
        op.store(&node.persistent, last.used, Release);
        op.write_back(&node.persistent);
        // PERSIST RW-G2: flush+fence.
        op.fence();
    }

    // ---- reading ----

    /// All records and where they stand, oldest first.
    ///
    /// # Errors
    /// [`Error::Corrupt`](crate::Error::Corrupt).
    pub(crate) fn scan<M: Medium>(&self, op: &Op<'_, M>) -> Result<Vec<(Pos, Off<Record>)>> {
        if !self.shape.has_buckets() {
            let nodes = self.list.nodes(op, most_nodes(op))?;
            let element = |node| Ok((Pos { node, slot: 0 }, Off::new(op.load(&checked(op, node)?.element, Relaxed))));
            return nodes.into_iter().map(element).collect();
        }
        let mut found = Vec::new();
        for bucket in &self.buckets {
            for (slot, word) in (0..bucket.used).zip(self.slots(op, bucket.node)?) {
                let record = op.load(word, Acquire);
                if record != GAP {
                    found.push((Pos { node: bucket.node, slot }, Off::new(record)));
                }
            }
        }
        Ok(found)
    }

    /// Grows when records change their positions.
    pub(crate) fn generation(&self) -> u64 {
        self.generation
    }

    /// Units that the log itself is made of, its records not included.
    pub(crate) fn units<M: Medium>(&self, op: &Op<'_, M>) -> Result<Vec<u64>> {
        let nodes = self.list.nodes(op, most_nodes(op))?;
        Ok(nodes.into_iter().map(Off::get).collect())
    }

    /// Writes back whatever recovery has read, or would read: a process may have died with it in the caches. Durable with the
    /// next fence. What leads to records was stored after they were durable (RW-B1, RW-G1, RW-D1).
    pub(crate) fn write_back_all<M: Medium>(&self, op: &Op<'_, M>) -> Result<()> {
        for unit in self.units(op)? {
            let node = Off::<Node>::new(unit);
            op.write_back(checked(op, node)?);
            op.write_back_slice(self.slots(op, node)?);
        }
        op.write_back(op.at(self.anchor));
        Ok(())
    }

    // ---- removing ----

    /// Removes durable records, in one go: a crash leaves any of them. They may be used for something else when it returns.
    pub(crate) fn remove<M: Medium>(&mut self, op: &Op<'_, M>, arena: &Arena<M>, records: &[(Pos, Off<Record>)]) {
        if records.is_empty() {
            return;
        }
        if self.shape.has_buckets() {
            self.leave_gaps(op, records);
        } else {
            records.iter().for_each(|(pos, _)| self.list.remove(op, pos.node));
        }
        let units = records.iter().map(|(_, record)| self.shape.unit_of(*record));
        self.give_back(op.medium(), arena, self.shape.record_lines(), units);
        self.promised += if self.keeps_room { records.len() as u64 } else { 0 };
        self.drop_empty_buckets(op, arena);
    }

    fn give_back<M: Medium>(&self, m: M, arena: &Arena<M>, lines: u64, units: impl IntoIterator<Item = u64>) {
        if self.keeps_room {
            arena.give_back_promised(m, lines, units);
        } else {
            arena.give_back(m, lines, units);
        }
    }

    fn leave_gaps<M: Medium>(&mut self, op: &Op<'_, M>, records: &[(Pos, Off<Record>)]) {
        for (pos, _) in records {
            let slot = self.slot(op, *pos);
            op.store(slot, GAP, Release);
            op.defer(slot);
            if let Some(bucket) = self.buckets.iter_mut().find(|bucket| bucket.node == pos.node) {
                bucket.live -= 1;
            }
        }
        // PERSIST RW-B4: flush+fence.
        op.drain();
    }

    fn drop_empty_buckets<M: Medium>(&mut self, op: &Op<'_, M>, arena: &Arena<M>) {
        let (list, last) = (self.list, self.buckets.back().map(|bucket| bucket.node));
        let (empty, kept) = self.buckets.iter().partition(|b| b.live == 0 && Some(b.node) != last);
        self.buckets = kept;
        let empty: VecDeque<Bucket> = empty;
        empty.iter().for_each(|bucket| list.remove(op, bucket.node));
        self.give_back(op.medium(), arena, self.shape.bucket_lines(), empty.iter().map(|b| b.node.get()));
        self.held += if self.keeps_room { empty.len() as u64 } else { 0 };
    }

    // ---- replacing ----

    /// Whether buckets are so empty that a new log is worth its making.
    pub(crate) fn is_sparse(&self) -> bool {
        let live: u64 = self.buckets.iter().map(|bucket| bucket.live).sum();
        self.buckets.len() > 2 && live < self.buckets.len() as u64 * self.shape.slots / 4
    }

    /// Replaces the log by one in new buckets, with the same records. Leaves it as it is where the pool has no room.
    pub(crate) fn compact<M: Medium>(&mut self, op: &Op<'_, M>, arena: &Arena<M>) -> Result<()> {
        self.flush(op);
        let records: Vec<_> = self.scan(op)?.into_iter().map(|(_, record)| record).collect();
        let buckets = 1 + (records.len() as u64).div_ceil(self.shape.slots);
        if arena.promise(op, self.shape.bucket_lines(), buckets as usize).is_err() {
            return Ok(());
        }
        let mut new = self.beside(op);
        new.held += buckets;
        records.into_iter().for_each(|record| new.adopt(op, arena, record));
        new.flush(op);
        new.let_buckets_go(op.medium(), arena);
        let old: Vec<u64> = self.buckets.iter().map(|bucket| bucket.node.get()).collect();
        self.replace_by(op, new);
        arena.give_back(op.medium(), self.shape.bucket_lines(), old);
        Ok(())
    }

    /// Appends a record that is durable, without a promise of room.
    fn adopt<M: Medium>(&mut self, op: &Op<'_, M>, arena: &Arena<M>, record: Off<Record>) {
        let pos = self.next_slot(op, arena);
        let slot = self.slot(op, pos);
        op.store(slot, record.get(), Release);
        if self.shape.group == 1 {
            op.write_back(slot);
            return;
        }
        self.staged.push(record);
        if pos.slot + 1 == self.shape.slots {
            self.flush(op);
        }
    }

    /// Makes the log empty by a pointer swap. Needs no room; which units are free is for the caller to find out.
    pub(crate) fn clear<M: Medium>(&mut self, op: &Op<'_, M>) {
        let new = self.beside(op);
        self.staged.clear();
        self.replace_by(op, new);
    }

    /// An empty log under the anchor's other header.
    fn beside<M: Medium>(&self, op: &Op<'_, M>) -> Log {
        let mut new = Log::of(self.anchor, 1 - self.current, self.shape);
        (new.promised, new.held, new.keeps_room) = (self.promised, self.held, self.keeps_room);
        new.generation = self.generation + 1;
        new.list.format(op);
        new
    }

    fn replace_by<M: Medium>(&mut self, op: &Op<'_, M>, new: Log) {
        // PERSIST RW-C1: flush+fence.
        op.fence();
        let current = &op.at(self.anchor).current;
        op.store(current, new.current, Release);
        op.write_back(current);
        // PERSIST RW-C2: flush+fence.
        op.fence();
        *self = new;
    }
}

/// More nodes than any list or tree in this pool can have.
pub(crate) fn most_nodes<M: Medium>(op: &Op<'_, M>) -> u64 {
    op.mapping().len() / LINE as u64
}
