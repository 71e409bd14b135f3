//! Recovery: the index is rebuilt from the slots.
//!
//! All slots of all extents are read once, by several threads; time and reads are linear in the space that the set has
//! ever used (one line read for a slot of one line, one word of every line otherwise). Of each key the valid entry with the
//! highest version wins. The others are queued for reuse in the order of their versions, which is the order in which
//! they were superseded; tombstones that win leave the index and are queued among them. Slots without a valid entry are
//! free.
//!
//! A transaction above the watermark counts if all its entries are found. Entries of others are erased:
//!
//! | edge | kept by | a crash between leaves | recovery |
//! |---|---|---|---|
//! | PS-R1 entries of incomplete transactions are erased < any new operation | write-back + fence | the same transactions, with fewer entries | the same again |
//!
//! Without PS-R1 a later watermark would cover them. Recovery changes nothing else, so a crash within it changes nothing.
//!
//! What recovery reads may not be durable: where only the process has died, it sees what the processor's caches hold. It
//! must not build on that, or a power failure later takes away what readers have seen, or an entry whose predecessor has
//! been overwritten meanwhile. So everything that it reads is written back:
//!
//! | edge | kept by | a crash between leaves | recovery |
//! |---|---|---|---|
//! | PS-R2 what recovery has read < any new operation | write-back + fence | some older state, which was as good | the same again |
//!
//! On a journaled pool all that is read is durable, so only what recovery changes is written back.
//!
//! Slots that an interrupted update has left half written are marked as erased, under PS-R2: no slot is found so that a crash cannot explain.
//! A set that was recovered to the end before its pool was closed has none, so one is an error there, whether the pool is only read or not:
//! nothing of it is erased. Checksums are
//! for [`PersistentSet::check`], and for salvage: an entry whose checksum is wrong keeps older values of its key from coming back, and is
//! neither live nor queued for reuse.
//!
//! Versions start above every version *and every tag* that was found, valid or not: a line that an interrupted update has
//! left behind must not match an entry written later.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use durix_pmem::{Bits, Lock, Medium, Off, Op, Rmw, Root, Session, Word, on_threads};

use super::arena::{Run, guess_extent, read_extent};
use super::entry::{self, Entry};
use super::error::{Error, Part, Result};
use super::layout::{
    Class, EXTENTS, Holds, Info, MAX_FOUND, Meta, RECOVERED, Tail, WATERMARK, fresh_info, head_at, slot_off, tails_at,
};
use super::set::{PersistentSet, SetOptions};
use super::shard::{Inner, Shard, class_of, transaction_of};
use super::table::{Cell, Tag};

/// Lines of slots that one thread reads at a time, within one operation.
const UNIT_LINES: u64 = 1 << 14;
/// Below this many lines a thread of its own does not pay.
const LINES_A_THREAD: u64 = 1 << 15;
/// Most threads, whatever the machine has.
const MAX_THREADS: usize = 64;

/// Some slots of an extent.
#[derive(Clone, Copy, Debug)]
struct Unit {
    class: Class,
    first: u64,
    slots: u64,
}

/// An entry found in a slot.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Entered {
    pub(super) off: u64,
    pub(super) version: u64,
    pub(super) info: Info,
}

/// What a slot holds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Slot {
    /// No entry.
    Free,
    /// What an interrupted update has left.
    Interrupted,
    /// An entry.
    Entry(Entered),
}

/// What is collected for one shard until all slots are read.
#[derive(Debug, Default)]
struct Losers {
    /// Entries that lost against a newer one.
    stale: Vec<Entered>,
    /// Tombstones that have won so far, with the hash of the key.
    tombstones: Vec<(Entered, u64)>,
    /// The same of entries whose checksums are wrong, when as much as possible is to be read.
    damaged: Vec<(Entered, u64)>,
}

/// What is collected for all shards.
#[derive(Debug)]
struct Collected {
    shards: Box<[Lock<Losers>]>,
    /// Entries of transactions above the watermark.
    undecided: Mutex<Vec<Entered>>,
    max_version: AtomicU64,
}

/// The error for what an interrupted update has left, where none was interrupted.
pub(super) fn not_whole(off: u64, version: u64) -> Error {
    Error::corrupt(Part::Line, off, version)
}

/// The error for extents that the pool's tables do not know of.
pub(super) fn missing_extents(off: u64, number: u64) -> Error {
    Error::corrupt(Part::Extents, off, number)
}

/// Reads the slot at `off`, raising `max_version` to what any of its lines names.
///
/// # Errors
/// [`Error::Corrupt`] for what no crash can leave.
pub(super) fn read_slot<M: Medium>(op: &Op<'_, M>, class: Class, off: u64, max_version: &mut u64) -> Result<Slot> {
    let meta: Meta = op.load(&op.at(head_at(off)).meta, Ordering::Relaxed);
    let mut newest = meta.version();
    if class.lines() > 1 {
        for tail in op.slice("slot", tails_at(off), class.lines() as u64 - 1)? {
            newest = newest.max(op.load(&tail.tag, Ordering::Relaxed));
        }
    }
    if newest > MAX_FOUND {
        return Err(Error::corrupt(Part::Version, off, newest));
    }
    *max_version = newest.max(*max_version);
    let info: Info = op.load(&op.at(head_at(off)).info, Ordering::Relaxed);
    match meta.holds() {
        None => return Err(Error::corrupt(Part::Validity, off, meta.to_bits())),
        Some(Holds::Fresh) if info != fresh_info(off) => {
            return Err(Error::corrupt(Part::Fresh, off, info.to_bits()));
        }
        Some(Holds::Fresh | Holds::Erased) => return Ok(Slot::Free),
        Some(Holds::Writing) => return Ok(Slot::Interrupted),
        Some(Holds::Entry) => {}
    }
    let entry = Entry::at(op, off).filter(|_| class_of(info) == class);
    let entry = entry.ok_or_else(|| Error::corrupt(Part::Lengths, off, info.to_bits()))?;
    if !entry.is_whole(op) {
        return Ok(Slot::Interrupted);
    }
    Ok(Slot::Entry(Entered { off, version: meta.version(), info }))
}

impl<M: Medium> PersistentSet<M> {
    /// Opens the set at `root`.
    ///
    /// # Errors
    /// [`Error::Corrupt`]; [`Error::Pool`].
    pub(super) fn recover(session: &mut Session<M>, root: Root<M>, options: &SetOptions) -> Result<Self> {
        let mut set = PersistentSet::new(root, options.clone());
        set.is_as_closed = set.was_recovered(&session.enter()?);
        let collected = Collected {
            shards: (0..set.shards.len()).map(|_| Lock::new(Losers::default())).collect(),
            undecided: Mutex::default(),
            max_version: AtomicU64::new(0),
        };
        let units = set.units(session)?;
        set.read_watermark(session, &collected)?;
        set.read_all(session, &units, &collected)?;
        let op = session.enter()?;
        set.decide(&op, &collected)?;
        set.finish(&op, &collected);
        set.note_recovery(&op);
        drop(op);
        Ok(set)
    }

    fn units(&self, session: &mut Session<M>) -> Result<Vec<Unit>> {
        let op = session.enter()?;
        let mut units = Vec::new();
        self.count_extents(&op)?;
        for extent in self.extents(&op) {
            let (class, slots) = match read_extent(&op, extent.off, extent.len) {
                Err(_) if self.options.salvage => match guess_extent(&op, extent.off, extent.len) {
                    Some(guessed) => guessed,
                    None => continue,
                },
                read => read?,
            };
            let step = (UNIT_LINES / class.lines() as u64).max(1);
            self.arena.adopt(op.medium(), class, extent.len, &[]);
            units.extend((0..slots).step_by(step as usize).map(|first| Unit {
                class,
                first: slot_off(extent.off, class, first),
                slots: step.min(slots - first),
            }));
        }
        Ok(units)
    }

    /// The word that says when the set was recovered, and what it says if that was after the pool's last crash.
    fn recovered<'s>(&self, op: &Op<'s, M>) -> (&'s Word, u64) {
        (&self.root.words(op)[RECOVERED], u64::from(self.root.pool().crashes(op)) + 1)
    }

    /// Whether nothing can be left of an interrupted update: the set was recovered since the last crash, and the pool closed since. A
    /// program that opens the pool after a crash need not open the set, and closes the pool all the same.
    fn was_recovered(&self, op: &Op<'_, M>) -> bool {
        let (word, now) = self.recovered(op);
        op.load(word, Ordering::Relaxed) == now && self.root.pool().is_as_closed()
    }

    /// Ends the recovery, when nothing of it can fail any more. An opening that fails leaves it to the next one, also where the pool is
    /// closed in between.
    fn note_recovery(&self, op: &Op<'_, M>) {
        let (word, now) = self.recovered(op);
        if op.load(word, Ordering::Relaxed) != now && self.root.pool().ensure_writable().is_ok() {
            op.store(word, now, Ordering::Relaxed);
        }
        // PERSIST PS-R2: write-back of watermark, number of extents, and that word, which lie in one line.
        op.write_back(&self.root.words(op)[WATERMARK]);
        // PERSIST PS-R1, PS-R2: fence.
        op.fence();
    }

    /// Compares the number of extents with that in the root, which may be smaller after a crash, and is raised then.
    ///
    /// # Errors
    /// [`Error::Corrupt`] where extents are missing.
    fn count_extents(&self, op: &Op<'_, M>) -> Result<()> {
        let word = &self.root.words(op)[EXTENTS];
        let known = self.root.pool().space().extents(op, self.root.owner()).len();
        if self.options.salvage {
            return Ok(());
        }
        if self.lacks_extents(op, known) && self.is_as_closed {
            return Err(missing_extents(op.off_of(word).get(), op.load(word, Ordering::Relaxed)));
        }
        // Written back by `note_recovery`.
        op.rmw(word, Rmw::Max, known as u64);
        Ok(())
    }

    fn read_watermark(&self, session: &mut Session<M>, collected: &Collected) -> Result<()> {
        let op = session.enter()?;
        let m = op.medium();
        let word = &self.root.words(&op)[WATERMARK];
        let watermark = op.load(word, Ordering::Relaxed);
        if watermark > MAX_FOUND && !self.options.salvage {
            let offset = op.off_of(word).get();
            return Err(Error::corrupt(Part::Watermark, offset, watermark));
        }
        m.shared_store(&self.durable_watermark, watermark, Ordering::Release);
        m.shared_store(&self.committed, watermark, Ordering::Release);
        collected.max_version.fetch_max(watermark.min(MAX_FOUND), Ordering::Relaxed);
        Ok(())
    }

    /// Reads all units, by as many threads as pay.
    ///
    /// # Errors
    /// [`Error::Corrupt`]; [`Error::Pool`].
    fn read_all(&self, session: &mut Session<M>, units: &[Unit], collected: &Collected) -> Result<()> {
        let lines: u64 = units.iter().map(|u| u.slots * u.class.lines() as u64).sum();
        let wanted = match self.options.recovery_threads {
            0 => durix_pmem::processors(),
            threads => threads,
        };
        let threads = (lines / LINES_A_THREAD).clamp(1, wanted.clamp(1, MAX_THREADS) as u64);
        let next = AtomicUsize::new(0);
        let own = session.slot();
        on_threads(session, threads as usize, &|session: &mut Session<M>| {
            self.read_units(session, units, &next, collected)?;
            if session.slot() != own {
                // PERSIST PS-R2: fence, by each thread for what it has read. The caller's comes at the end of the recovery.
                session.enter()?.fence();
            }
            Ok(())
        })
    }

    fn read_units(
        &self,
        session: &mut Session<M>,
        units: &[Unit],
        next: &AtomicUsize,
        collected: &Collected,
    ) -> Result<()> {
        let mut max_version = 0;
        while let Some(unit) = units.get(next.fetch_add(1, Ordering::Relaxed)) {
            let op = session.enter()?;
            let free = self.read_unit(&op, unit, &mut max_version, collected)?;
            self.arena.adopt(op.medium(), unit.class, 0, &free);
            if !op.finds_what_is_durable() {
                // PERSIST PS-R2: write-back.
                let lines = unit.slots * unit.class.lines() as u64;
                op.write_back_slice(op.slice("slots", Off::<Tail>::new(unit.first), lines)?);
            }
        }
        collected.max_version.fetch_max(max_version, Ordering::Relaxed);
        Ok(())
    }

    /// Reads some slots; returns the free ones.
    fn read_unit(&self, op: &Op<'_, M>, unit: &Unit, max_version: &mut u64, collected: &Collected) -> Result<Vec<Run>> {
        let watermark = op.medium().shared_load(&self.durable_watermark, Ordering::Relaxed);
        let mut free: Vec<Run> = Vec::new();
        let mut key = Vec::new();
        for index in 0..unit.slots {
            let off = unit.first + index * unit.class.bytes();
            let slot = match read_slot(op, unit.class, off, max_version) {
                Err(_) if self.options.salvage => continue,
                slot => slot?,
            };
            match slot {
                Slot::Interrupted if self.is_as_closed => {
                    if !self.options.salvage {
                        let meta: Meta = op.load(&op.at(head_at(off)).meta, Ordering::Relaxed);
                        return Err(not_whole(off, meta.version()));
                    }
                }
                Slot::Interrupted => {
                    // PERSIST PS-R2: write-back, with that of the unit, if there is one.
                    entry::mark_erased(op, off);
                    if op.finds_what_is_durable() {
                        op.write_back(op.at(head_at(off)));
                    }
                    add_free(&mut free, unit.class, off);
                }
                Slot::Free => add_free(&mut free, unit.class, off),
                Slot::Entry(entered) if entered.info.transaction() > 0 && entered.version > watermark => {
                    // What is counted decides about other entries.
                    if !self.options.salvage && !is_sealed_at(op, off) {
                        let found = entered.info.to_bits();
                        return Err(Error::corrupt(Part::EntrySum, off, found));
                    }
                    collected.undecided.lock().unwrap_or_else(|e| e.into_inner()).push(entered);
                }
                Slot::Entry(entered) => self.admit(op, entered, &mut key, collected),
            }
        }
        Ok(free)
    }

    /// Lets an entry win against what is known of its key so far, or lose.
    fn admit(&self, op: &Op<'_, M>, entered: Entered, key: &mut Vec<u8>, collected: &Collected) {
        let m = op.medium();
        let Some(entry) = Entry::at(op, entered.off) else { return };
        entry.read_key(op, key);
        let hash = self.hash(key);
        let (index, tag) = (self.shard_index(hash), Tag::of(hash));
        let shard = &self.shards[index];
        let inner = &mut *shard.lock(m);
        let losers = &mut *collected.shards[index].lock(m);
        match shard.find(op, tag, key) {
            None => {
                shard.index.reserve(m, &mut inner.tables, 1);
                shard.index.add(m, &mut inner.tables, Cell::new(tag, entered.off));
            }
            Some(other) => {
                let other_entered = Entered { off: other.off, version: other.meta.version(), info: other.info };
                // The copy of a line has the version of the entry itself, and a checksum of another place.
                let is_copy = || self.options.salvage && entry.is_sealed(op) && !is_sealed_at(op, other.off);
                if other_entered.version > entered.version || other_entered.version == entered.version && !is_copy() {
                    return losers.stale.push(entered);
                }
                losers.stale.push(other_entered);
                shard.index.cells(m).store(m, other.at, Cell::new(tag, entered.off));
            }
        }
        if self.options.salvage && !entry.is_sealed(op) {
            losers.damaged.push((entered, hash));
        } else if entered.info.is_tombstone() {
            losers.tombstones.push((entered, hash));
        }
    }

    /// Admits the complete transactions above the watermark, and erases the entries of the others.
    ///
    /// # Errors
    /// [`Error::Corrupt`]
    fn decide(&self, op: &Op<'_, M>, collected: &Collected) -> Result<()> {
        let m = op.medium();
        let mut transactions: BTreeMap<u64, Vec<Entered>> = BTreeMap::new();
        for entered in std::mem::take(&mut *collected.undecided.lock().unwrap_or_else(|e| e.into_inner())) {
            transactions.entry(entered.version).or_default().push(entered);
        }
        let mut erased = Vec::new();
        for (version, entries) in transactions {
            let is_complete = entries.iter().all(|e| usize::from(e.info.transaction()) == entries.len());
            // In one that was closed all have committed: what is missing is damaged.
            let is_closed = self.is_as_closed;
            if !is_complete && is_closed && !self.options.salvage {
                let (offset, found) = (entries[0].off, entries.len() as u64);
                return Err(Error::corrupt(Part::Transaction, offset, found));
            }
            if is_complete || is_closed {
                entries.into_iter().for_each(|e| self.admit(op, e, &mut Vec::new(), collected));
                m.shared_store(&self.committed, version, Ordering::Release);
            } else {
                erased.extend(entries);
            }
        }
        for entered in &erased {
            // PERSIST PS-R1: write-back, with the fence of `note_recovery`.
            entry::erase(op, entered.off);
            self.arena.adopt(m, class_of(entered.info), 0, &[Run { off: entered.off, count: 1 }]);
        }
        Ok(())
    }

    /// Takes the tombstones out of the index, and queues what can be reused in the order in which it was superseded.
    fn finish(&self, op: &Op<'_, M>, collected: &Collected) {
        let m = op.medium();
        let version = collected.max_version.load(Ordering::Relaxed);
        for (shard, losers) in self.shards.iter().zip(&collected.shards) {
            let inner = &mut *shard.lock(m);
            let losers = &mut *losers.lock(m);
            queue_losers(m, shard, inner, losers);
            inner.raise_version(version);
            shard.index.move_all(m, &mut inner.tables);
            shard.set_len(m, inner.tables.used() as u64);
        }
    }
}

/// Whether the entry at `off` goes with its checksum.
fn is_sealed_at<M: Medium>(op: &Op<'_, M>, off: u64) -> bool {
    Entry::at(op, off).is_some_and(|entry| entry.is_sealed(op))
}

fn add_free(free: &mut Vec<Run>, class: Class, off: u64) {
    match free.last_mut() {
        Some(run) if run.off + run.count * class.bytes() == off => run.count += 1,
        _ => free.push(Run { off, count: 1 }),
    }
}

fn queue_losers<M: Medium>(m: M, shard: &Shard, inner: &mut Inner, losers: &mut Losers) {
    let mut order: Vec<(Entered, bool)> = losers.stale.iter().map(|e| (*e, false)).collect();
    for (entered, hash) in &losers.tombstones {
        // A tombstone that was beaten later is among the stale already.
        if let Some(at) = shard.index.find_off(m, Tag::of(*hash), entered.off) {
            shard.index.remove(m, &mut inner.tables, at);
            order.push((*entered, true));
        }
    }
    for (entered, hash) in &losers.damaged {
        // One that was beaten later is among the stale, too.
        if let Some(at) = shard.index.find_off(m, Tag::of(*hash), entered.off) {
            shard.index.remove(m, &mut inner.tables, at);
        }
    }
    order.sort_unstable_by_key(|(entered, _)| entered.version);
    for (entered, is_tombstone) in order {
        let class = class_of(entered.info);
        let transaction = transaction_of(entered.info, entered.version);
        if is_tombstone {
            inner.reuse.push_tombstone(class, entered.off, transaction);
        } else {
            inner.reuse.push_stale(class, entered.off, transaction);
        }
    }
}
