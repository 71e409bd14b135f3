//! The log of intents: what a commit is going to change, durable before it changes anything.
//!
//! The log is a structure of its own in the pool, named [`NAME`], that only this module opens. Each of its extents is a
//! *lane*, which holds the record of one transaction at a time; a commit takes a free lane, or makes one. So
//! commits of several threads never wait for each other here.
//!
//! # Persist order
//! | edge | kept by | a crash before it leaves | recovery |
//! |---|---|---|---|
//! | TX-A zeroed lane with its magic < its descriptor | flush + fence | a free chunk | nothing to do |
//! | TX-I the descriptor of its lane, the whole record < the first change of a strict map | descriptor: flush; record: stored around the cache; + fence | no lane or no record, no change | nothing to do |
//! | TX-D all changes < `retired`, and < the lane's next record | each map's own fence; stored after | the record, any of the changes | makes all changes again |
//! | TX-R `retired`, or the lane's next record in the place of this one < the next change of one of its keys, by anybody | flush + fence by whoever changes the key ([`retired`]), or TX-I | the record, its keys as it left them | makes the same changes again |
//! | TX-F free chunks for replay are held back, in volatile memory < the record (TX-I); until its retirement is durable | nobody else gets them: see [`room`] | room for all changes | makes them, and does not find the pool full, but for removals that had no room to hold back |
//! | TX-C `retired` above the number of a record that a crash has cut off < the lane's next record | flush + fence by recovery | some words of that record | the same |
//! | TX-V what recovery has read < what it does about it | write-back of header and record, fence | the same, or what was durable before | as before |
//!
//! TX-E and TX-S, the edges with the checkpoint epochs, are in `commit` and `pending`.
//!
//! While the log is open for commits, its root [asks](durix_pmem::pool::Recovery) for recovery: a pool found after a crash
//! hands out no index before `recover` has run. Edges RC-K1 to RC-K3 are those of [`durix_pmem::pool::Recovery`].
//!
//! A record counts if its number is above `retired` and its hash holds, so no two words need to become durable together. As a
//! rule `retired` is not written back: the lane's next record takes the place of the last one. While that is half done, neither
//! counts, and none has to: the changes of the last one are durable (TX-D), those of the next have not begun (TX-I).
//!
//! Words of a record that a crash has cut off stay in the lane. Words of a later record with the same changes could make it whole again, after a
//! second crash, when others have changed its keys. So recovery raises `retired` above its number (TX-C).

#[cfg(test)]
mod dropped;
pub(crate) mod layout;
pub(crate) mod record;
pub(crate) mod retired;
pub(crate) mod room;
#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use durix_pmem::pool::Moments;
use durix_pmem::{Extent, Kind, Lock, Medium, Off, Op, Owner, Pool, Root, Session, Structure, Word};

use self::layout::{LaneHeader, MAGIC, PAYLOAD_AT, RECORD_AT, RecordHeader};
use self::record::Intent;
use self::retired::{LANES, Retirements};
use self::room::{Need, Room};
use crate::{Error, Result};

/// The name of the log's index.
pub(crate) const NAME: &str = "#transactions";
/// What it is.
pub(crate) const KIND: Kind = Kind { tag: *b"TXINTENT", version: layout::VERSION };
/// The largest number of a record: see [`retired`].
const MAX_NUMBER: u64 = u64::MAX / LANES as u64 / 2;
/// Most bytes of changes that a transaction can have in the log.
pub(crate) const MAX_BYTES: u64 = 64 << 20;

/// The log of a pool.
pub(crate) struct IntentLog<M: Medium> {
    root: Root<M>,
    lanes: Lock<Lanes>,
    /// What lanes hold back for recovery, in the order of the lanes. Locked after `lanes`, by the commit that has taken a lane.
    rooms: Lock<Vec<Room>>,
}

/// The lanes of a log.
#[derive(Clone, Debug, Default)]
struct Lanes {
    all: Vec<Lane>,
    /// All before it are taken. Transactions that wait for a checkpoint keep theirs, so these can be many.
    first: usize,
}

impl Lanes {
    /// Takes the first free lane that will do.
    fn take(&mut self, will_do: impl Fn(&Lane) -> bool) -> Option<(usize, Lane)> {
        let taken = self.all[self.first..].iter().take_while(|lane| lane.taken).count();
        self.first += taken;
        let found = self.all[self.first..].iter().position(|lane| !lane.taken && will_do(lane));
        let at = self.first + found?;
        self.all[at].taken = true;
        Some((at, self.all[at]))
    }

    /// Gives a lane back.
    fn give_back(&mut self, at: usize, lane: Lane) {
        self.all[at] = Lane { taken: false, ..lane };
        self.first = self.first.min(at);
    }
}

/// What is known of a lane in DRAM.
#[derive(Clone, Copy, Debug)]
struct Lane {
    extent: Extent,
    taken: bool,
    /// The number of its last record.
    number: u64,
    /// Bytes that it holds back for recovery, in all and in one piece at least: see [`room`].
    room: (u64, u64),
}

/// A record that was not retired.
#[derive(Debug)]
pub(crate) struct Found {
    pub(crate) lane: usize,
    pub(crate) number: u64,
    pub(crate) epoch: u64,
    pub(crate) intents: Vec<Intent>,
}

impl<M: Medium> Structure<M> for IntentLog<M> {
    const KIND: Kind = KIND;
    type Options = ();
    type Error = Error;

    fn create(_: &mut Session<M>, _: &Root<M>, (): &()) -> Result<()> {
        Ok(())
    }

    fn open(session: &mut Session<M>, root: Root<M>, (): &()) -> Result<Self> {
        let op = session.enter()?;
        let extents = root.pool().space().extents(&op, root.owner());
        let lanes = extents.into_iter().map(|extent| Lane::open(&op, extent)).collect::<Result<_>>()?;
        let lanes = Lanes { all: lanes, first: 0 };
        Ok(IntentLog { root, lanes: Lock::new(lanes), rooms: Lock::new(Vec::new()) })
    }
}

impl Lane {
    fn open<M: Medium>(op: &Op<'_, M>, extent: Extent) -> Result<Lane> {
        let header = op.at(Off::<LaneHeader>::new(extent.off));
        let magic = op.load(&header.magic, Relaxed);
        if magic != MAGIC {
            return Err(corrupt("the first word of a lane", extent.off, magic));
        }
        let retired = op.load(&header.retired, Acquire);
        if retired > MAX_NUMBER {
            return Err(corrupt("the number of the last retired record", extent.off, retired));
        }
        // Recovery retires what counts; what does not count has a number that it makes worthless.
        let lane = Lane { extent, taken: false, number: retired, room: (0, 0) };
        Ok(Lane { taken: read(op, &lane)?.is_some(), ..lane })
    }

    fn header<'s, M: Medium>(&self, op: &Op<'s, M>) -> &'s LaneHeader {
        op.at(Off::new(self.extent.off))
    }

    /// A number above that of every record whose words can lie here, where none of them counts: the one that a crash has cut off came
    /// after the one before it was durable.
    fn first_unused<M: Medium>(&self, op: &Op<'_, M>) -> u64 {
        let header = op.at(Off::<RecordHeader>::new(self.extent.off + RECORD_AT));
        let last = Some(op.load(&header.number, Relaxed)).filter(|number| *number <= MAX_NUMBER);
        last.unwrap_or(0).max(op.load(&self.header(op).retired, Acquire)) + 1
    }

    /// Stores that a record needs nothing any more.
    fn retire<M: Medium>(&self, op: &Op<'_, M>, number: u64) {
        // PERSIST TX-D: stored after the changes, which are durable
        op.store(&self.header(op).retired, number, Release);
    }

    /// The same, durably: one fence.
    fn retire_now<M: Medium>(&self, op: &Op<'_, M>, number: u64) {
        self.retire(op, number);
        op.write_back(self.header(op));
        // PERSIST TX-R: flush+fence
        op.fence();
    }
}

fn corrupt(what: &str, offset: u64, found: u64) -> Error {
    Error::Corrupt { index: NAME.into(), what: format!("{what} at {offset:#x} holds {found:#x}") }
}

impl<M: Medium> IntentLog<M> {
    /// The log of a pool, made where there is none.
    pub(crate) fn open_or_create(pool: &Pool<M>) -> Result<Arc<Self>> {
        pool.open_structure(NAME, &())
    }

    /// The log of a pool that has one.
    pub(crate) fn existing(pool: &Pool<M>) -> Result<Arc<Self>> {
        pool.open_existing(NAME, &())
    }

    /// Has the pool hand out no index after a crash before the log is recovered, or not: before the first record is written,
    /// and when none is left. At most one fence.
    pub(crate) fn ask(&self, op: &Op<'_, M>, moments: Moments) -> Result<()> {
        if self.root.asks(op)? != moments {
            // PERSIST RC-K1, RC-K3: flush+fence, inside
            self.root.ask(op, moments);
        }
        Ok(())
    }

    #[cfg(test)]
    pub(crate) fn asks(&self, op: &Op<'_, M>) -> Result<Moments> {
        Ok(self.root.asks(op)?)
    }

    /// Has the pool hand out no index before the log is recovered, while it holds a record that counts. What its lanes hold back is free
    /// then, as after a crash.
    pub(crate) fn leave_pending(&self, op: &Op<'_, M>) {
        if !self.is_idle(op.medium()) {
            // A damaged root is found by the next commit.
            let _ = self.root.leave_pending(op);
            self.give_room_back(op);
        }
    }

    /// Whether no lane holds a record that counts.
    pub(crate) fn is_idle(&self, m: M) -> bool {
        self.lanes.lock(m).all.iter().all(|lane| !lane.taken)
    }

    /// Whether a record that counts changes an index that is not open. So no commit is under way that changes it.
    pub(crate) fn names(&self, op: &Op<'_, M>, owner: Owner) -> bool {
        let lanes = self.lanes.lock(op.medium()).clone();
        lanes.all.iter().filter(|lane| lane.taken).any(|lane| {
            // What is being written meanwhile, by another commit, does not count yet, or names others.
            let intents = read(op, lane).ok().flatten().and_then(|(.., payload)| record::parse(&payload));
            intents.is_some_and(|intents| intents.iter().any(|intent| intent.owner == owner))
        })
    }

    // ---- committing ----

    /// Takes a lane with room for a payload of this length, which holds back what its replay can need. At most two fences, where one
    /// is made.
    ///
    /// # Errors
    /// [`Error::TransactionTooLarge`], [`Error::Pool`] where the pool is full.
    pub(crate) fn take(self: Arc<Self>, op: &Op<'_, M>, payload: u64, need: &Need) -> Result<LaneGuard<M>> {
        if payload > MAX_BYTES {
            return Err(Error::TransactionTooLarge { bytes: payload, limit: MAX_BYTES });
        }
        let only_removes = need.only_removes();
        let need = need.chunks(self.root.pool().space().chunk(), self.root.pool().mapping().len());
        let fits = |lane: &Lane| lane.extent.len - PAYLOAD_AT >= payload;
        let has_room = |lane: &Lane| lane.room.0 >= need.0 && lane.room.1 >= need.1;
        let m = op.medium();
        let mut lanes = self.lanes.lock(m);
        if let Some((at, lane)) = lanes.take(|lane| fits(lane) && has_room(lane)) {
            drop(lanes);
            return Ok(self.guard(m, at, lane, false));
        }
        if let Some((at, lane)) = lanes.take(fits) {
            drop(lanes);
            let mut guard = self.guard(m, at, lane, false);
            return guard.hold_back(op, need).or_else(|error| may_do_without(error, only_removes)).map(|()| guard);
        }
        drop(lanes);
        let lane = self.new_lane(op, payload)?;
        let mut lanes = self.lanes.lock(m);
        lanes.all.push(lane);
        let at = lanes.all.len() - 1;
        drop(lanes);
        let mut guard = self.guard(m, at, lane, true);
        if let Err(error) = guard.hold_back(op, need).or_else(|error| may_do_without(error, only_removes)) {
            guard.cancel(op);
            return Err(error);
        }
        Ok(guard)
    }

    /// Gives back what the lanes hold back for recovery: no record counts any more.
    pub(crate) fn give_room_back(&self, op: &Op<'_, M>) {
        self.lanes.lock(op.medium()).all.iter_mut().for_each(|lane| lane.room = (0, 0));
        let space = self.root.pool().space();
        self.rooms.lock(op.medium()).iter_mut().for_each(|room| room.give_back(op, space));
    }

    fn guard(self: Arc<Self>, m: M, at: usize, lane: Lane, fresh: bool) -> LaneGuard<M> {
        LaneGuard { log: self, m, at, lane, fresh, live: false }
    }

    fn new_lane(&self, op: &Op<'_, M>, payload: u64) -> Result<Lane> {
        let space = self.root.pool().space();
        let reserved = space.reserve_extent(op, self.root.owner(), PAYLOAD_AT + payload)?;
        reserved.zero(op)?;
        let header = op.at(Off::<LaneHeader>::new(reserved.off()));
        op.store(&header.magic, MAGIC, Release);
        op.write_back(header);
        // PERSIST TX-A: flush+fence
        op.fence();
        // The fence of its first record makes the descriptor durable, too: see `LaneGuard::cancel`.
        Ok(Lane { extent: space.activate(op, reserved)?, taken: true, number: 0, room: (0, 0) })
    }

    // ---- recovery ----

    /// The records that were not retired. Makes durable what it has read of every lane, and that what has been cut off stays
    /// worthless: one fence.
    ///
    /// # Errors
    /// [`Error::Corrupt`].
    pub(crate) fn unfinished(&self, op: &Op<'_, M>) -> Result<Vec<Found>> {
        let mut lanes = self.lanes.lock(op.medium()).clone();
        let mut found = Vec::new();
        for (at, lane) in lanes.all.iter_mut().enumerate() {
            if let Some((number, epoch, words, payload)) = read(op, lane)? {
                // PERSIST TX-V: flush
                op.write_back_slice(words);
                let intents = record::parse(&payload)
                    .ok_or_else(|| corrupt("a record that makes no sense", lane.extent.off, number))?;
                found.push(Found { lane: at, number, epoch, intents });
            } else {
                lane.number = lane.first_unused(op);
                lane.retire(op, lane.number);
            }
            op.write_back(lane.header(op));
        }
        // PERSIST TX-C, TX-V: flush+fence
        op.fence();
        *self.lanes.lock(op.medium()) = lanes;
        Ok(found)
    }

    /// Says durably that a record that was found needs nothing any more: one fence.
    pub(crate) fn retire(&self, op: &Op<'_, M>, found: &Found) {
        let mut lanes = self.lanes.lock(op.medium());
        let lane = Lane { number: found.number, ..lanes.all[found.lane] };
        lanes.give_back(found.lane, lane);
        drop(lanes);
        lane.retire_now(op, found.number);
    }
}

/// Number, epoch, words and payload of a lane's record, if it counts.
#[expect(clippy::type_complexity, reason = "read in one place")]
fn read<'s, M: Medium>(op: &Op<'s, M>, lane: &Lane) -> Result<Option<(u64, u64, &'s [Word], Vec<u8>)>> {
    let header = op.at(Off::<RecordHeader>::new(lane.extent.off + RECORD_AT));
    let number = op.load(&header.number, Relaxed);
    if number <= op.load(&lane.header(op).retired, Acquire) {
        return Ok(None);
    }
    let bytes = op.load(&header.bytes, Relaxed);
    if bytes > lane.extent.len - PAYLOAD_AT || !bytes.is_multiple_of(size_of::<u64>() as u64) {
        return Ok(None);
    }
    let words = (PAYLOAD_AT - RECORD_AT + bytes) / size_of::<u64>() as u64;
    let words = op.slice("a record of intents", Off::<Word>::new(lane.extent.off + RECORD_AT), words)?;
    let mut all = vec![0; size_of_val(words)];
    let is_sound = op.load_checked(words, || {
        op.load_bytes(words, &mut all);
        record::hash(&all) == u64::from_le_bytes(all[24..32].try_into().expect("8 bytes"))
    });
    if !is_sound {
        return Ok(None);
    }
    let epoch = u64::from_le_bytes(all[16..24].try_into().expect("8 bytes"));
    Ok(Some((number, epoch, words, all.split_off((PAYLOAD_AT - RECORD_AT) as usize))))
}

/// A lane that a commit has taken.
pub(crate) struct LaneGuard<M: Medium> {
    log: Arc<IntentLog<M>>,
    m: M,
    at: usize,
    lane: Lane,
    /// Whether its descriptor may not be durable yet.
    fresh: bool,
    /// Whether it holds a record that was not retired.
    live: bool,
}

/// Removals are made without room for their replay where there is none.
fn may_do_without(error: Error, only_removes: bool) -> Result<()> {
    match error {
        Error::Pool(error) if only_removes && error.is_no_room() => Ok(()),
        error => Err(error),
    }
}

impl<M: Medium> LaneGuard<M> {
    /// Which lane it is: see [`Retirements::settle_keys`].
    pub(crate) fn number(&self) -> usize {
        self.at
    }

    /// Has the lane hold back what recovery can need: see [`room`]. Its last record may still be replayed, and needs what it has: so
    /// its retirement becomes durable before that is given back.
    ///
    /// # Errors
    /// [`Error::Pool`] where the pool is full.
    #[cold]
    fn hold_back(&mut self, op: &Op<'_, M>, need: (u64, u64)) -> Result<()> {
        if self.lane.room.0 > 0 {
            self.lane.retire_now(op, self.lane.number);
        }
        let (root, mut rooms) = (&self.log.root, self.log.rooms.lock(op.medium()));
        if rooms.len() <= self.at {
            rooms.resize_with(self.at + 1, Room::default);
        }
        let filled = rooms[self.at].fill(op, root.pool().space(), root.owner(), need);
        self.lane.room = rooms[self.at].held();
        filled
    }

    /// Writes the record of a transaction: durable on return. One fence. `draft` begins with room for the header
    /// ([`record::begin`]).
    ///
    /// # Errors
    /// [`Error::Pool`] where the pool was corrupted since.
    pub(crate) fn write(
        &mut self,
        op: &Op<'_, M>,
        retirements: &Retirements,
        epoch: u64,
        draft: &mut [u8],
    ) -> Result<()> {
        self.lane.number += 1;
        record::finish(draft, self.lane.number, epoch);
        let words = (draft.len() / size_of::<u64>()) as u64;
        let words = op.slice("a record of intents", Off::<Word>::new(self.lane.extent.off + RECORD_AT), words)?;
        self.live = true;
        // Nobody reads it as a rule.
        op.store_bytes_nt(words, draft);
        // PERSIST TX-I: stored around the cache, + fence
        op.fence();
        self.fresh = false;
        retirements.overwritten(op.medium(), self.at, self.lane.number);
        Ok(())
    }

    /// Gives a lane back that was taken in this session and not written to.
    pub(crate) fn cancel(mut self, op: &Op<'_, M>) {
        if self.fresh {
            // Whoever takes it next has another session, whose fence does not cover the descriptor.
            op.fence();
            self.fresh = false;
        }
    }

    /// Says that the record needs nothing any more. Its keys are still locked; the next change of one of them makes this durable.
    pub(crate) fn retire<'k>(
        &mut self,
        op: &Op<'_, M>,
        retirements: &Retirements,
        keys: impl Iterator<Item = (Owner, &'k [u8])>,
    ) {
        if self.at >= LANES {
            return self.retire_now(op);
        }
        let (lane, number) = (self.lane, self.lane.number);
        lane.retire(op, number);
        retirements.retired(op, (self.at, lane.extent.off, number), keys);
        self.live = false;
    }

    /// Says durably that the record needs nothing any more: one fence.
    pub(crate) fn retire_now(&mut self, op: &Op<'_, M>) {
        self.lane.retire_now(op, self.lane.number);
        self.live = false;
    }
}

impl<M: Medium> Drop for LaneGuard<M> {
    fn drop(&mut self) {
        // A record that was not retired is left to recovery, and its lane is not used before; nor is one that a panic has left
        // without a durable descriptor.
        if !self.live && !self.fresh {
            self.log.lanes.lock(self.m).give_back(self.at, self.lane);
        }
    }
}

impl<M: Medium> std::fmt::Debug for LaneGuard<M> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("LaneGuard").field("lane", &self.at).field("live", &self.live).finish_non_exhaustive()
    }
}
