//! Updates: one write-back a line, one fence.
//!
//! # Persist order
//! | edge | kept by | a crash between leaves | recovery |
//! |---|---|---|---|
//! | PS-U1 the new entry, whole < it is reachable, and the operation returns | write-back + fence | the new entry, whole or invalid; the old one untouched | the highest valid version of the key |
//! | PS-U2 the entry superseded < its slot is written | PS-U1 of the superseding update, same shard, same lock | – | – |
//! | PS-U3 everything older of a key is overwritten or erased < its tombstone is | the shard's lock is held across the fence; `reuse.rs` | the tombstone, and nothing or something older | the key is absent |
//! | PS-U4 a transaction is covered by the durable watermark < one of its entries is overwritten | fence of an earlier operation | all entries of the transaction | the transaction counts as committed |
//! | PS-U5 (full pool) everything stale in the shard erased < the entry of the key to remove is erased | write-back + fence, twice | the entry, or nothing of its key | present, or absent |
//! | PS-U6 (full pool) everything stale in a shard erased < another shard writes the slot of one of its tombstones | PS-U5's fence | the tombstone, and nothing older | the key is absent |
//!
//! The lock is taken before the write-back and released after the fence by a plain store, so no locked instruction waits
//! for the write-back before the fence does. `insert` looks its key up while the write-back is in flight (appendix A).

use std::sync::atomic::Ordering;

use durix_pmem::{Error as PoolError, Medium, Op, Rmw};

use super::entry;
use super::error::{Error, Result};
use super::layout::{Class, Info, MAX_KEY, MAX_VALUE, WATERMARK, head_at};
use super::reuse::{SCRUB, Stale, Taken};
use super::set::PersistentSet;
use super::shard::{Found, Inner, New, Shard, class_of};
use super::table::Tag;

/// A key and where it belongs.
#[derive(Clone, Copy, Debug)]
pub(super) struct Key<'k> {
    pub(super) bytes: &'k [u8],
    pub(super) hash: u64,
}

impl Key<'_> {
    #[inline(always)]
    pub(super) fn tag(&self) -> Tag {
        Tag::of(self.hash)
    }
}

/// What becomes of a key: a new value, or none.
pub(super) type Change<'v> = Option<&'v [u8]>;

/// The entry that says so.
#[inline]
pub(super) fn info_of(key: &[u8], change: Change<'_>) -> Info {
    match change {
        Some(value) => Info::of(key.len(), value.len()),
        None => Info::tombstone(key.len()),
    }
}

/// # Errors
/// [`Error::ValueTooLong`]
#[inline]
pub(super) fn check_value(value: &[u8]) -> Result<()> {
    if value.len() > MAX_VALUE { Err(Error::ValueTooLong { len: value.len() }) } else { Ok(()) }
}

/// Whether the pool cannot grow any further.
pub(super) fn is_full(error: &Error) -> bool {
    matches!(error, Error::Pool(error) if error.is_no_room() || matches!(error, PoolError::TooLarge { .. }))
}

/// What an operation writes back besides its entry.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Extra {
    scrub: Scrub,
    watermark: Option<u64>,
}

impl Extra {
    /// Whether there is anything.
    pub(super) fn is_some(&self) -> bool {
        self.watermark.is_some() || self.scrub.iter().any(Option::is_some)
    }
}

/// Slots whose entries an operation erases, so that others can be reused later.
pub(super) type Scrub = [Option<u64>; SCRUB];

impl<M: Medium> PersistentSet<M> {
    /// # Errors
    /// [`Error::KeyTooLong`]
    #[inline]
    pub(super) fn key<'k>(&self, bytes: &'k [u8]) -> Result<Key<'k>> {
        if bytes.len() > MAX_KEY {
            return Err(Error::KeyTooLong { len: bytes.len() });
        }
        Ok(Key { bytes, hash: self.hash(bytes) })
    }

    #[inline]
    pub(super) fn insert_key(&self, op: &Op<'_, M>, key: Key<'_>, value: &[u8]) -> Result<bool> {
        if !self.options.overlap || op.settles_later() {
            return Ok(self.change_key(op, key, |_| Some(Some(value)))?.is_some_and(|before| !before));
        }
        check_value(value)?;
        let (m, tag) = (op.medium(), key.tag());
        let shard = self.shard(key.hash);
        // What the operation needs comes while it waits for the lock, and the fence of the one before ends.
        shard.prefetch(op, tag);
        let inner = &mut *shard.lock(m);
        let _guard = self.poison.guard(op)?;
        let info = Info::of(key.bytes.len(), value.len());
        if info.is_short()
            && let Some(off) = inner.reuse.take_plain()
        {
            let version = inner.next_version();
            entry::write_short(op, off, version, info, key.bytes, value);
            // The search overlaps with the write-back: it reads, and takes no locked instruction.
            let Some(old) = shard.find_short(op, tag, key.bytes) else {
                return Ok(self.finish_otherwise(op, shard, inner, key.bytes, tag, off, info));
            };
            // PERSIST PS-U1: flush+fence.
            op.fence();
            shard.publish(m, inner, New { tag, off, version, info, class: Class::FIRST }, Some(old));
            self.prefetch(op, inner, Class::FIRST);
            return Ok(false);
        }
        self.insert_otherwise(op, shard, inner, key.bytes, tag, value)
    }

    /// The end of an insert of one line whose key has no entry of one line yet, or is not the first with its tag.
    #[inline(never)]
    #[expect(clippy::too_many_arguments, reason = "what the caller has in registers")]
    fn finish_otherwise(
        &self,
        op: &Op<'_, M>,
        shard: &Shard,
        inner: &mut Inner,
        key: &[u8],
        tag: Tag,
        off: u64,
        info: Info,
    ) -> bool {
        let old = self.find_settled(op, shard, inner, tag, key);
        // PERSIST PS-U1: flush+fence.
        op.fence();
        let new = New { tag, off, version: inner.version(), info, class: Class::FIRST };
        shard.publish(op.medium(), inner, new, old);
        self.prefetch(op, inner, Class::FIRST);
        old.is_none()
    }

    /// The same where the entry is longer than a line, or there is more to write back, or no slot of a line is at hand.
    #[inline(never)]
    fn insert_otherwise(
        &self,
        op: &Op<'_, M>,
        shard: &Shard,
        inner: &mut Inner,
        key: &[u8],
        tag: Tag,
        value: &[u8],
    ) -> Result<bool> {
        let m = op.medium();
        let info = Info::of(key.len(), value.len());
        let class = class_of(info);
        let taken = self.take(op, shard, inner, class)?;
        let extra = self.extra(op, inner, class, taken);
        let version = inner.next_version();
        entry::write(op, taken.off, version, info, key, value);
        self.write_back_extra(op, extra.as_ref());
        let old = self.find_settled(op, shard, inner, tag, key);
        // PERSIST PS-U1: flush+fence.
        op.fence();
        self.settled(m, inner, extra.as_ref());
        shard.publish(m, inner, New { tag, off: taken.off, version, info, class }, old);
        self.prefetch(op, inner, class);
        Ok(old.is_none())
    }

    /// Changes a key as `decide` says, which is given its entry; nothing if it says `None`. Returns whether the key was
    /// there, if something was changed.
    #[inline]
    pub(super) fn change_key<'v>(
        &self,
        op: &Op<'_, M>,
        key: Key<'_>,
        decide: impl FnOnce(Option<Found>) -> Option<Change<'v>>,
    ) -> Result<Option<bool>> {
        let m = op.medium();
        let shard = self.shard(key.hash);
        shard.prefetch(op, key.tag());
        let inner = &mut *shard.lock(m);
        self.poison.check(op)?;
        if self.begins_to_put_off(op) {
            return self.change_key_later(op, shard, inner, key, decide);
        }
        let old = self.find_settled(op, shard, inner, key.tag(), key.bytes);
        let Some(change) = decide(old) else { return Ok(None) };
        check_value(change.unwrap_or_default())?;
        if change.is_none() && old.is_none() {
            return Ok(None);
        }
        self.replace(op, shard, inner, key, change, old)?;
        Ok(Some(old.is_some()))
    }

    #[inline]
    fn replace(
        &self,
        op: &Op<'_, M>,
        shard: &Shard,
        inner: &mut Inner,
        key: Key<'_>,
        change: Change<'_>,
        old: Option<Found>,
    ) -> Result<()> {
        let class = class_of(info_of(key.bytes, change));
        let settled = inner.reuse.settled;
        let taken = self.take(op, shard, inner, class);
        // Where that has settled something, cells have moved.
        let old = if inner.reuse.settled == settled { old } else { shard.find(op, key.tag(), key.bytes) };
        let taken = match (taken, change, old) {
            (Ok(taken), ..) => taken,
            (Err(error), None, Some(old)) if is_full(&error) => return self.remove_in_place(op, shard, inner, old),
            (Err(error), ..) => return Err(error),
        };
        let extra = self.extra(op, inner, class, taken);
        self.write_at_once(op, shard, inner, key, change, (old, taken, extra))
    }

    /// Writes the entry into the slot that was taken, and waits for it; what it replaces is settled.
    #[inline(always)]
    pub(super) fn write_at_once(
        &self,
        op: &Op<'_, M>,
        shard: &Shard,
        inner: &mut Inner,
        key: Key<'_>,
        change: Change<'_>,
        (old, taken, extra): (Option<Found>, Taken, Option<Extra>),
    ) -> Result<()> {
        let (m, info) = (op.medium(), info_of(key.bytes, change));
        let class = class_of(info);
        let _guard = self.poison.guard(op)?;
        let version = inner.next_version();
        entry::write(op, taken.off, version, info, key.bytes, change.unwrap_or_default());
        self.write_back_extra(op, extra.as_ref());
        // PERSIST PS-U1: flush+fence.
        op.fence();
        self.settled(m, inner, extra.as_ref());
        shard.publish(m, inner, New { tag: key.tag(), off: taken.off, version, info, class }, old);
        self.prefetch(op, inner, class);
        Ok(())
    }

    // ---- slots ----

    /// A slot of `class`, which only the caller knows.
    ///
    /// # Errors
    /// [`Error::Pool`] where the pool is full and the shard has nothing left to reclaim.
    #[inline(always)]
    pub(super) fn take(&self, op: &Op<'_, M>, shard: &Shard, inner: &mut Inner, class: Class) -> Result<Taken> {
        match inner.reuse.take(class, |s| self.may_overwrite(op, s)) {
            Some(taken) => Ok(taken),
            None => self.take_fresh(op, shard, inner, class),
        }
    }

    #[cold]
    fn take_fresh(&self, op: &Op<'_, M>, shard: &Shard, inner: &mut Inner, class: Class) -> Result<Taken> {
        if inner.reuse.is_blocked_by_unsettled(class) {
            self.settle_shard(op, shard, inner);
            if let Some(taken) = inner.reuse.take(class, |s| self.may_overwrite(op, s)) {
                return Ok(taken);
            }
        }
        match self.arena.take(op, &self.root, class) {
            Ok(run) => {
                (0..run.count).rev().for_each(|i| inner.reuse.push_free(class, run.off + i * class.bytes()));
            }
            Err(error) if !is_full(&error) => return Err(error),
            Err(error) => {
                // What unsettled entries replace may do.
                self.settle_shard(op, shard, inner);
                if let Some(taken) = inner.reuse.take(class, |s| self.may_overwrite(op, s)) {
                    return Ok(taken);
                }
                self.reclaim(op, shard, inner)?;
                // Tombstones of the class may have become free of what blocked them, or its own entries were erased.
                if let Some(taken) = inner.reuse.take(class, |s| self.may_overwrite(op, s)) {
                    return Ok(taken);
                }
                if !self.take_from_others(op, inner, class)? {
                    return Err(error);
                }
            }
        }
        Ok(inner.reuse.take(class, |s| self.may_overwrite(op, s)).expect("there is a slot now"))
    }

    /// Whether an entry may be overwritten as far as transactions go (PERSIST PS-U4).
    #[inline]
    fn may_overwrite(&self, op: &Op<'_, M>, stale: Stale) -> bool {
        stale.transaction() == 0
            || stale.transaction() <= op.medium().shared_load(&self.durable_watermark, Ordering::Acquire)
    }

    /// What this operation should write back besides its entry, so that slots which could not be reused now can be later.
    #[inline(always)]
    pub(super) fn extra(&self, op: &Op<'_, M>, inner: &mut Inner, class: Class, taken: Taken) -> Option<Extra> {
        inner.reuse.has_waiting(class).then(|| self.extra_for_waiting(op, inner, class, taken))
    }

    #[inline(never)]
    fn extra_for_waiting(&self, op: &Op<'_, M>, inner: &mut Inner, class: Class, taken: Taken) -> Extra {
        let watermark = if taken.is_new() { self.raise_watermark(op) } else { None };
        Extra { watermark, scrub: self.scrub(op, inner, class, taken) }
    }

    /// The stale entries to erase because tombstones of `class` wait for them, or soon will.
    #[inline]
    pub(super) fn scrub(&self, op: &Op<'_, M>, inner: &mut Inner, class: Class, taken: Taken) -> Scrub {
        let mut scrub = Scrub::default();
        if inner.reuse.wants_scrub(class, taken) {
            scrub.fill_with(|| inner.reuse.scrub(Some(class), |s| self.may_overwrite(op, s)));
        }
        scrub
    }

    /// Erases; durable with the operation's own fence.
    #[inline]
    pub(super) fn erase_all(op: &Op<'_, M>, scrub: &Scrub) {
        // PERSIST PS-U3: write-back, with this operation's fence.
        scrub.iter().flatten().for_each(|off| entry::erase(op, *off));
    }

    #[inline(always)]
    fn write_back_extra(&self, op: &Op<'_, M>, extra: Option<&Extra>) {
        let Some(extra) = extra else { return };
        Self::erase_all(op, &extra.scrub);
        if extra.watermark.is_some() {
            self.write_back_watermark(op);
        }
    }

    /// After the fence.
    #[inline(always)]
    fn settled(&self, m: M, inner: &mut Inner, extra: Option<&Extra>) {
        inner.reuse.settle();
        self.watermark_is_durable(m, extra.and_then(|e| e.watermark));
    }

    /// After the fence that covers the write-back of the watermark.
    #[inline]
    pub(super) fn watermark_is_durable(&self, m: M, watermark: Option<u64>) {
        if let Some(watermark) = watermark {
            m.shared_rmw(&self.durable_watermark, Rmw::Max, watermark);
        }
    }

    /// Stores the watermark of committed transactions if the durable one is behind, and returns it; still to be written
    /// back. A locked instruction, so before any write-back of the operation.
    pub(super) fn raise_watermark(&self, op: &Op<'_, M>) -> Option<u64> {
        let m = op.medium();
        let committed = m.shared_load(&self.committed, Ordering::Acquire);
        (committed > m.shared_load(&self.durable_watermark, Ordering::Acquire)).then(|| {
            op.rmw(&self.root.words(op)[WATERMARK], Rmw::Max, committed);
            committed
        })
    }

    pub(super) fn write_back_watermark(&self, op: &Op<'_, M>) {
        // PERSIST PS-U4: write-back, with the operation's fence.
        op.write_back(&self.root.words(op)[WATERMARK]);
    }

    /// Asks for the slot that the next update of this size will write.
    #[inline(always)]
    pub(super) fn prefetch(&self, op: &Op<'_, M>, inner: &Inner, class: Class) {
        if let Some(off) = inner.reuse.peek(class) {
            op.prefetch_write(head_at(off));
        }
    }

    // ---- a full pool ----

    /// Erases all stale entries of the shard, with fences of its own: what is left to do when the pool is full.
    fn reclaim(&self, op: &Op<'_, M>, shard: &Shard, inner: &mut Inner) -> Result<()> {
        let m = op.medium();
        // What unsettled entries replace, and what their slots held, is stale, too.
        self.settle_shard(op, shard, inner);
        if let Some(watermark) = self.raise_watermark(op) {
            self.write_back_watermark(op);
            op.fence();
            self.watermark_is_durable(m, Some(watermark));
        }
        let _guard = self.poison.guard(op)?;
        let mut erased = false;
        while let Some(off) = inner.reuse.scrub(None, |s| self.may_overwrite(op, s)) {
            entry::erase(op, off);
            erased = true;
        }
        if erased {
            // PERSIST PS-U5: flush+fence.
            op.fence();
            inner.reuse.settle_scrubbed();
        }
        Ok(())
    }

    /// Gives the shard a slot of `class` that another shard has, if one has any. Takes only locks that nobody holds, so it
    /// waits for nobody; what a shard at work has, it does not find.
    fn take_from_others(&self, op: &Op<'_, M>, inner: &mut Inner, class: Class) -> Result<bool> {
        for shard in &self.shards {
            let Some(mut other) = shard.try_lock(op.medium()) else { continue };
            self.reclaim(op, shard, &mut other)?;
            debug_assert_eq!(other.reuse.lengths().stale, 0, "what the watermark does not cover is not stale yet");
            let Some(taken) = other.reuse.take(class, |s| self.may_overwrite(op, s)) else { continue };
            // PERSIST PS-U6: by PS-U5's fence. Nothing stale is left there, so a tombstone has nothing to hide any more: to this
            // shard it is what a stale entry is, which may be overwritten whenever it likes, or given back.
            match taken.is_new() {
                true => inner.reuse.push_free(class, taken.off),
                false => inner.reuse.push_stale(class, taken.off, 0),
            }
            // No version that the slot has held may come back to it: a reader, and recovery, would take the lines of one
            // entry for those of another.
            inner.raise_version(other.version());
            return Ok(true);
        }
        Ok(false)
    }

    /// Removes a key without a tombstone, right after [`reclaim`](Self::reclaim): nothing older of the key is left, so
    /// erasing its entry, one store, removes it. Readers of the key wait for the fence.
    #[cold]
    pub(super) fn remove_in_place(&self, op: &Op<'_, M>, shard: &Shard, inner: &mut Inner, old: Found) -> Result<()> {
        let m = op.medium();
        let _guard = self.poison.guard(op)?;
        entry::erase(op, old.off);
        // PERSIST PS-U5: flush+fence.
        op.fence();
        shard.index.remove(m, &mut inner.tables, old.at);
        shard.set_len(m, inner.tables.used() as u64);
        inner.reuse.push_free(class_of(old.info), old.off);
        Ok(())
    }
}
