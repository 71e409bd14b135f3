//! Looking at a set: findings, statistics, dump.

use std::collections::BTreeMap;
use std::fmt::{self, Write};

use durix_index::Finding;
use durix_pmem::{Medium, OffsetMap, Op};

use super::arena::read_extent;
use super::entry::Entry;
use super::error::{Error, Result};
use super::layout::{Class, EXTENTS, WATERMARK, slot_off};
use super::recover::{Entered, Slot, missing_extents, not_whole, read_slot};
use super::reuse::Held;
use super::set::PersistentSet;
use super::table::Tag;

/// Numbers about a set.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Stats {
    /// Keys.
    pub keys: u64,
    /// Superseded entries whose slots wait for reuse.
    pub stale: u64,
    /// Tombstones whose slots wait for reuse.
    pub tombstones: u64,
    /// Slots without an entry.
    pub free: u64,
    /// Bytes of persistent memory in extents.
    pub extent_bytes: u64,
    /// Bytes of volatile memory in tables, outgrown ones included.
    pub table_bytes: u64,
    /// Shards.
    pub shards: u64,
    /// The highest version given to an entry.
    pub version: u64,
    /// Version of the last transaction that has committed.
    pub committed: u64,
    /// Version up to which transactions are covered by the durable watermark.
    pub watermark: u64,
}

/// What is known of a slot in volatile memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Role {
    Live,
    Waiting(Held),
}

/// What a check can find wrong. Tests have a row for each.
#[derive(Debug, thiserror::Error)]
pub(super) enum Fault {
    #[error("the slot is both {other:?} and {role:?}")]
    TwoRoles { other: Role, role: Role },
    #[error("{missing}; the pool's table of space has {known}")]
    Extents { missing: Error, known: usize },
    #[error("a slot in no extent is {role:?}")]
    InNoExtent { role: Role },
    #[error("{counted} keys are counted, {live} are there")]
    Count { counted: u64, live: u64 },
    #[error("{0}")]
    Unreadable(Error),
    #[error("{0}")]
    HalfWritten(Error),
    #[error("the slot is neither live nor waiting for reuse")]
    NoRole,
    #[error("the slot is {role:?}, and holds no entry")]
    NoEntry { role: Role },
    #[error("the slot is free, and holds an entry")]
    FreeEntry,
    #[error("a live tombstone")]
    LiveTombstone,
    #[error("the checksum of an entry is wrong")]
    Checksum,
    #[error("the same key and version as at {other:#x}")]
    SameVersion { other: u64 },
    #[error("the newest entry of its key (version {version}), but the index has {found:x?}")]
    NotNewest { version: u64, found: Option<u64> },
}

/// Faults, each with the offset of what it is about.
pub(super) type Faults = Vec<(u64, Fault)>;

/// The newest entry of a key found so far: version, offset, whether the key is not there.
type Newest = BTreeMap<Vec<u8>, (u64, u64, bool)>;

impl<M: Medium> PersistentSet<M> {
    /// Compares everything in persistent memory with the volatile index, and reports every inconsistency. Updates wait
    /// meanwhile; takes time and memory linear in the set.
    ///
    /// # Errors
    /// [`Error::Pool`] where the pool cannot be read at all.
    pub fn check(&self, op: &Op<'_, M>) -> Result<Vec<Finding>> {
        let finding = |(offset, fault): (u64, Fault)| Finding { offset, what: fault.to_string() };
        let mut findings: Vec<_> = self.faults(op)?.into_iter().map(finding).collect();
        findings.sort_by(|a, b| (a.offset, &a.what).cmp(&(b.offset, &b.what)));
        Ok(findings)
    }

    /// As [`check`](Self::check), in no order.
    pub(super) fn faults(&self, op: &Op<'_, M>) -> Result<Faults> {
        self.poison.expect_own(op)?;
        let m = op.medium();
        let _committing = self.committing.lock(m);
        let mut guards: Vec<_> = self.shards.iter().map(|s| s.lock(m)).collect();
        for (shard, inner) in self.shards.iter().zip(&mut guards) {
            self.settle_shard(op, shard, inner);
        }
        let mut faults = Faults::new();
        let mut roles: OffsetMap<Role> = OffsetMap::default();
        let mut give = |off, role, faults: &mut Faults| {
            if let Some(other) = roles.insert(off, role) {
                faults.push((off, Fault::TwoRoles { other, role }));
            }
        };
        for (shard, inner) in self.shards.iter().zip(&guards) {
            shard.index.iter(m).for_each(|cell| give(cell.off(), Role::Live, &mut faults));
            inner.reuse.iter().for_each(|(off, held)| give(off, Role::Waiting(held), &mut faults));
        }
        for off in self.arena.free_slots(m) {
            give(off, Role::Waiting(Held::Free), &mut faults);
        }
        let mut newest = Newest::new();
        let known = self.root.pool().space().extents(op, self.root.owner()).len();
        if self.lacks_extents(op, known) {
            let word = &self.root.words(op)[EXTENTS];
            let offset = op.off_of(word).get();
            let missing = missing_extents(offset, op.load(word, std::sync::atomic::Ordering::Relaxed));
            faults.push((offset, Fault::Extents { missing, known }));
        }
        for extent in self.extents(op) {
            self.check_extent(op, extent.off, extent.len, &mut roles, &mut newest, &mut faults);
        }
        faults.extend(roles.into_iter().map(|(off, role)| (off, Fault::InNoExtent { role })));
        self.check_newest(op, &newest, &mut faults);
        let (counted, live) = (self.live(op), newest.values().filter(|(.., gone)| !gone).count() as u64);
        if counted != live {
            faults.push((0, Fault::Count { counted, live }));
        }
        Ok(faults)
    }

    fn check_extent(
        &self,
        op: &Op<'_, M>,
        off: u64,
        len: u64,
        roles: &mut OffsetMap<Role>,
        newest: &mut Newest,
        faults: &mut Faults,
    ) {
        let (class, slots) = match read_extent(op, off, len) {
            Ok(read) => read,
            Err(error) => return faults.push((off, Fault::Unreadable(error))),
        };
        for index in 0..slots {
            let offset = slot_off(off, class, index);
            let mut report = |fault| faults.push((offset, fault));
            let role = roles.remove(&offset);
            let mut version = 0;
            let slot = match read_slot(op, class, offset, &mut version) {
                Ok(slot) => slot,
                Err(error) => {
                    report(Fault::Unreadable(error));
                    continue;
                }
            };
            // What as much as possible was read without: neither live nor waiting.
            let is_left_out = |entered: Entered| {
                let entry = Entry::at(op, entered.off);
                self.options.salvage && entry.is_none_or(|entry| !entry.is_sealed(op))
            };
            match (slot, role) {
                (Slot::Entry(entered), None) if is_left_out(entered) => {}
                (Slot::Interrupted, _) => report(Fault::HalfWritten(not_whole(offset, version))),
                (_, None) => report(Fault::NoRole),
                (Slot::Free, Some(Role::Waiting(Held::Free))) => {}
                (Slot::Free, Some(role)) => report(Fault::NoEntry { role }),
                (Slot::Entry(_), Some(Role::Waiting(Held::Free))) => report(Fault::FreeEntry),
                (Slot::Entry(e), Some(Role::Live)) if e.info.is_tombstone() => report(Fault::LiveTombstone),
                (Slot::Entry(_), Some(_)) => {}
            }
            if let Slot::Entry(entered) = slot
                && let Some(entry) = Entry::at(op, offset)
            {
                let is_sealed = entry.is_sealed(op);
                if !is_sealed {
                    report(Fault::Checksum);
                }
                let mut key = Vec::new();
                entry.read_key(op, &mut key);
                let is_gone = entered.info.is_tombstone() || self.options.salvage && !is_sealed;
                let this = (entered.version, offset, is_gone);
                let known = newest.entry(key).or_insert(this);
                if known.0 == this.0 && known.1 != this.1 {
                    report(Fault::SameVersion { other: known.1 });
                }
                *known = this.max(*known);
            }
        }
    }

    /// The newest entry of each key must be what the index leads to.
    fn check_newest(&self, op: &Op<'_, M>, newest: &Newest, faults: &mut Faults) {
        for (key, (version, offset, is_tombstone)) in newest {
            let hash = self.hash(key);
            let shard = self.shard(hash);
            let found = shard.find(op, Tag::of(hash), key).map(|f| f.off);
            let expected = (!is_tombstone).then_some(*offset);
            if found != expected {
                faults.push((*offset, Fault::NotNewest { version: *version, found }));
            }
        }
    }

    /// Numbers about the set. Takes every shard's lock once.
    pub fn stats(&self, op: &Op<'_, M>) -> Stats {
        let m = op.medium();
        let (free, extent_bytes) = self.arena.totals(m);
        let mut stats = Stats {
            keys: self.live(op),
            free,
            extent_bytes,
            shards: self.shards.len() as u64,
            committed: m.shared_load(&self.committed, std::sync::atomic::Ordering::Acquire),
            watermark: m.shared_load(&self.durable_watermark, std::sync::atomic::Ordering::Acquire),
            ..Stats::default()
        };
        for shard in &self.shards {
            let inner = shard.lock(m);
            let lengths = inner.reuse.lengths();
            stats.stale += lengths.stale as u64;
            stats.tombstones += lengths.tombstones as u64;
            stats.free += lengths.free as u64;
            stats.table_bytes += inner.tables.bytes() as u64;
            stats.version = stats.version.max(inner.version());
        }
        stats
    }

    /// Writes a line for every slot that holds an entry, and for every extent.
    ///
    /// # Errors
    /// What `out` returns.
    pub fn dump(&self, op: &Op<'_, M>, out: &mut dyn Write) -> fmt::Result {
        let watermark = op.load(&self.root.words(op)[WATERMARK], std::sync::atomic::Ordering::Relaxed);
        writeln!(out, "watermark {watermark}")?;
        for extent in self.extents(op) {
            match read_extent(op, extent.off, extent.len) {
                Ok((class, slots)) => {
                    writeln!(out, "extent {:#x}: {slots} slots of {} line(s)", extent.off, class.lines())?;
                    (0..slots).try_for_each(|i| dump_slot(op, class, slot_off(extent.off, class, i), out))?;
                }
                Err(error) => writeln!(out, "extent {:#x}: {error}", extent.off)?,
            }
        }
        Ok(())
    }
}

fn dump_slot<M: Medium>(op: &Op<'_, M>, class: Class, off: u64, out: &mut dyn Write) -> fmt::Result {
    let entered = match read_slot(op, class, off, &mut 0) {
        Ok(Slot::Free) => return Ok(()),
        Ok(Slot::Interrupted) => return writeln!(out, "  {off:#x}: half written"),
        Ok(Slot::Entry(entered)) => entered,
        Err(error) => return writeln!(out, "  {off:#x}: {error}"),
    };
    let Some(entry) = Entry::at(op, off) else { return Ok(()) };
    let mut bytes = Vec::new();
    if !entry.is_sealed(op) {
        write!(out, "  {off:#x}: WRONG CHECKSUM,")?;
    }
    entry.read_key(op, &mut bytes);
    write!(out, "  {off:#x}: version {} key \"{}\"", entered.version, bytes.escape_ascii())?;
    if entered.info.is_tombstone() {
        write!(out, " removed")?;
    } else {
        entry.read_value(op, &mut bytes);
        write!(out, " value of {} bytes", bytes.len())?;
    }
    match entered.info.transaction() {
        0 => writeln!(out),
        count => writeln!(out, " in a transaction of {count}"),
    }
}
