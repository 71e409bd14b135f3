//! The members: where they lie, how they are written, and which places are free.
//!
//! | edge | kept by | a crash before it leaves | recovery |
//! |---|---|---|---|
//! | LF-M1 lines of a new extent are free < the extent is active | flush+fence | free chunks | the pool's |
//! | LF-M2 the extent < a member in it | flush+fence | an extent of free lines | nothing |
//! | LF-M3 key and value < state live, with their checksum | same line, by a release store | a free line | nothing |
//! | LF-M4 state live < the insert returns, and is seen | flush+fence | the key not there | nothing |
//! | LF-M5 the new value < the state that names it, with its checksum | same line, by a release store | the old value | nothing |
//! | LF-M6 that state < the update returns, and is seen | flush+fence | the old value | nothing |
//! | LF-M7 state free < the remove returns, is seen, or the line is used again | flush+fence | the key still there | nothing |
//! | LF-L1 to LF-L4 | see `later.rs` | | |
//! | LF-M8 what recovery has read < any new operation | flush+fence; durable already on a journaled pool | the state before, which was as good | the same again |
//!
//! A line whose state does not go with its key and value, or with its place, is none that a crash can leave.
//!
//! Free lines are volatile knowledge: after a crash every line that is not live is free. Nothing can leak.

use std::sync::atomic::Ordering::{Relaxed, Release};
use std::sync::atomic::{AtomicU64, fence};

use durix_pmem::{Bits, Extent, Lock, Medium, Off, OffsetSet, Op, PerSession, Root};

use super::layout::{MEMBER, Member, State};
use crate::error::{Error, Result};
use crate::finding::Finding;

/// Lines that a session takes at a time.
const BATCH: u64 = 64;
/// Free lines that a session keeps at most, a power of two; when there are more, half go to the others.
const RING: u64 = 512;
/// Free lines that a session keeps at least, if it can: writing a line again while its last write-back is on its way takes
/// half as long again as the write-back of another (`docs/measurements/README.md`).
const REST: u64 = 8;
/// An extent is this part of what there is already, so that the number of extents stays small.
const GROWTH: u64 = 8;
/// Largest extent that is asked for: zeroing it holds an operation up.
const MAX_EXTENT: u64 = 1 << 20;

/// Lines in a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Run {
    off: u64,
    count: u64,
}

#[derive(Debug, Default)]
struct Unassigned {
    free: Vec<Run>,
    /// Bytes of all extents.
    bytes: u64,
}

/// Free lines of one session, in the order in which they were freed.
///
/// Only the session of the slot changes it, so nothing here is locked, and its words need not go through the medium. They
/// are atomics so that [`Store::free_lines`] may look while nothing else is under way.
#[derive(Debug)]
struct FreeLines {
    ring: Box<[AtomicU64]>,
    /// How many were ever taken out, and put in.
    out: AtomicU64,
    put: AtomicU64,
    /// Below so many lines the session asks for more.
    least: AtomicU64,
}

impl Default for FreeLines {
    fn default() -> Self {
        let ring = (0..RING).map(|_| AtomicU64::new(0)).collect();
        FreeLines { ring, out: AtomicU64::new(0), put: AtomicU64::new(0), least: AtomicU64::new(REST) }
    }
}

impl FreeLines {
    #[inline(always)]
    fn len(&self) -> u64 {
        self.put.load(Relaxed) - self.out.load(Relaxed)
    }

    #[inline(always)]
    fn least(&self) -> u64 {
        self.least.load(Relaxed)
    }

    #[inline(always)]
    fn cell(&self, number: u64) -> &AtomicU64 {
        &self.ring[(number % RING) as usize]
    }

    /// The line that is taken next; arbitrary if there is none.
    #[inline(always)]
    fn first(&self) -> Place {
        Off::new(self.cell(self.out.load(Relaxed)).load(Relaxed))
    }

    #[inline(always)]
    fn pop(&self) {
        self.out.store(self.out.load(Relaxed) + 1, Relaxed);
    }

    /// Adds a line; there must be room.
    #[inline(always)]
    fn push(&self, place: Place) {
        let put = self.put.load(Relaxed);
        self.cell(put).store(place.get(), Relaxed);
        self.put.store(put + 1, Relaxed);
    }

    fn lines(&self) -> Vec<u64> {
        (self.out.load(Relaxed)..self.put.load(Relaxed)).map(|i| self.cell(i).load(Relaxed)).collect()
    }
}

/// The members of one structure.
pub(super) struct Store<M: Medium> {
    root: Root<M>,
    /// First address of the pool's mapping.
    base: usize,
    sessions: PerSession<FreeLines>,
    unassigned: Lock<Unassigned>,
}

/// What is about to be stored in a member's line. It is made before anything is locked: the checksum in its state takes some 15 cycles, which
/// pass there while the bucket's line is waited for, and would be waited for between a lock and a fence.
#[derive(Clone, Copy)]
pub(super) struct Made {
    pub(super) place: Place,
    key: u64,
    value: u64,
    /// Which word holds the value.
    word: usize,
    state: State,
}

impl Made {
    #[inline(always)]
    pub(super) fn new(place: Place, key: u64, value: u64, word: usize) -> Self {
        Made { place, key, value, word, state: State::live(place.get(), key, value, word) }
    }
}

/// A line that is about to be free, with its state; made ahead as [`Made`].
#[derive(Clone, Copy)]
pub(super) struct Freed {
    place: Place,
    state: State,
}

impl Freed {
    #[inline(always)]
    pub(super) fn new(place: Place) -> Self {
        Freed { place, state: State::free(place.get()) }
    }
}

/// A member that recovery has found.
#[derive(Clone, Copy, Debug)]
pub(super) struct Live {
    pub(super) place: Place,
    pub(super) key: u64,
    /// Which word holds the value.
    pub(super) value: usize,
}

/// Key and value of the member at an offset, if it is live. The pool may be damaged.
pub(crate) fn live_member<M: Medium>(op: &Op<'_, M>, off: u64) -> Option<(u64, u64)> {
    let member = &op.slice("a member", Off::<Member>::new(off), 1).ok()?[0];
    let (key, values) = read(op, member);
    let value = op.load(&member.state, Relaxed).decode(off, key, values).ok()??;
    Some((key, values[value]))
}

/// The extents of a structure whose pool may have a damaged table of space. Extents have no heads, so a chunk counts by itself if there is a
/// line in it as members, or free lines, are.
pub(crate) fn salvaged_extents<M: Medium>(op: &Op<'_, M>, root: &Root<M>) -> Vec<Extent> {
    let chunk = root.pool().space().chunk();
    root.salvaged_extents(op, root.has_doubtful_space(op), &mut |off, _| {
        let is_line = |line| {
            let member = op.at(Off::<Member>::new(line));
            let (key, values) = read(op, member);
            op.load(&member.state, Relaxed).decode(line, key, values).is_ok()
        };
        (off..off + chunk).step_by(MEMBER as usize).any(is_line).then_some(chunk)
    })
}

/// Key and values of a member, that count or not.
fn read<M: Medium>(op: &Op<'_, M>, member: &Member) -> (u64, [u64; 2]) {
    (op.load(&member.key, Relaxed), [0, 1].map(|word| op.load(&member.values[word], Relaxed)))
}

/// Where a member is, or could be.
pub(super) type Place = Off<Member>;

impl<M: Medium> Store<M> {
    pub(super) fn new(root: Root<M>) -> Self {
        let sessions = PerSession::default();
        let base = root.pool().mapping().reserve().base().addr().get();
        Store { root, base, sessions, unassigned: Lock::new(Unassigned::default()) }
    }

    /// Makes sure that an operation is one of the structure's pool.
    ///
    /// # Errors
    /// [`Error::Pool`] with [`ForeignSession`](durix_pmem::Error::ForeignSession).
    #[inline(always)]
    pub(super) fn expect_own(&self, op: &Op<'_, M>) -> Result<()> {
        crate::pages::expect_base(op, self.base)
    }

    pub(super) fn root(&self) -> &Root<M> {
        &self.root
    }

    #[inline(always)]
    fn free_lines_of(&self, op: &Op<'_, M>) -> &FreeLines {
        self.sessions.of(op.slot())
    }

    // ---- free lines ----

    /// The free line that [`take`](Self::take) will take next.
    ///
    /// # Errors
    /// [`Error::Pool`] where the pool is full.
    #[inline(always)]
    pub(super) fn next(&self, op: &Op<'_, M>) -> Result<Place> {
        let free = self.free_lines_of(op);
        if free.len() < free.least() {
            self.refill(op, free)?;
        }
        Ok(free.first())
    }

    /// Takes that line. No locked instruction.
    #[inline(always)]
    pub(super) fn take(&self, op: &Op<'_, M>) {
        let free = self.free_lines_of(op);
        free.pop();
        // Its write-back may have evicted it.
        op.prefetch_write(free.first());
    }

    /// Gives a free line back.
    #[inline(always)]
    pub(super) fn give_back(&self, op: &Op<'_, M>, place: Place) {
        let free = self.free_lines_of(op);
        if free.len() == RING {
            self.give_to_others(op, free);
        }
        free.push(place);
    }

    #[cold]
    fn give_to_others(&self, op: &Op<'_, M>, free: &FreeLines) {
        let mut unassigned = self.unassigned.lock(op.medium());
        for _ in 0..RING / 2 {
            unassigned.free.push(Run { off: free.first().get(), count: 1 });
            free.pop();
        }
    }

    /// Gets lines, at least one if there is none.
    #[cold]
    fn refill(&self, op: &Op<'_, M>, free: &FreeLines) -> Result<()> {
        match self.refill_from_all(op, free) {
            // A session that has lines goes on with them, and asks again when they are used up.
            Err(_) if free.len() > 0 => {
                free.least.store(1, Relaxed);
                Ok(())
            }
            done => {
                free.least.store(REST, Relaxed);
                done
            }
        }
    }

    fn refill_from_all(&self, op: &Op<'_, M>, free: &FreeLines) -> Result<()> {
        let mut unassigned = self.unassigned.lock(op.medium());
        let mut wanted = BATCH;
        while wanted > 0 {
            if unassigned.free.is_empty() && wanted < BATCH {
                break;
            }
            if unassigned.free.is_empty() {
                let run = self.add_extent(op, unassigned.bytes)?;
                unassigned.bytes += run.count * MEMBER;
                unassigned.free.push(run);
            }
            let run = unassigned.free.last_mut().expect("has one");
            let count = run.count.min(wanted);
            (0..count).for_each(|i| free.push(Off::new(run.off + i * MEMBER)));
            run.off += count * MEMBER;
            run.count -= count;
            wanted -= count;
            if run.count == 0 {
                unassigned.free.pop();
            }
        }
        Ok(())
    }

    fn add_extent(&self, op: &Op<'_, M>, had: u64) -> Result<Run> {
        let space = self.root.pool().space();
        let (owner, wanted) = (self.root.owner(), (had / GROWTH).min(MAX_EXTENT));
        // In a pool that is nearly full a chunk will do.
        let reserved = space.reserve_extent(op, owner, wanted).or_else(|_| space.reserve_extent(op, owner, 1))?;
        reserved.fill(op, |off| [State::free(off).to_bits(), 0, 0, 0, 0, 0, 0, 0])?;
        // PERSIST LF-M1: flush+fence.
        op.fence();
        let extent = space.activate(op, reserved)?;
        // PERSIST LF-M2: flush+fence.
        op.fence();
        Ok(Run { off: extent.off, count: extent.len / MEMBER })
    }

    // ---- members ----

    /// Starts making a member of a free line. The caller fences (LF-M4).
    #[inline(always)]
    pub(super) fn begin_insert(&self, op: &Op<'_, M>, made: &Made) {
        self.make(op, made);
        // PERSIST LF-M4: flush, with the caller's fence.
        op.write_back(op.at(made.place));
    }

    /// Makes a member of a free line, in the caches only.
    #[inline(always)]
    pub(super) fn make(&self, op: &Op<'_, M>, made: &Made) {
        let member = op.at(made.place);
        // A reader that still reads the line's last member must find its bucket changed. For readers only, so no
        // `Op::order`: in memory the state before is durable already (LF-M7).
        fence(Release);
        op.store(&member.key, made.key, Relaxed);
        op.store(&member.values[made.word & 1], made.value, Relaxed);
        // PERSIST LF-M3: same line.
        op.store(&member.state, made.state, Release);
    }

    /// Starts giving a member its next value, in the other word. The caller fences (LF-M6).
    #[inline(always)]
    pub(super) fn begin_update(&self, op: &Op<'_, M>, made: &Made) {
        let member = op.at(made.place);
        // For readers, as above: in memory the state before is durable already (LF-M4, LF-M6).
        fence(Release);
        op.store(&member.values[made.word & 1], made.value, Relaxed);
        // PERSIST LF-M5: same line.
        op.store(&member.state, made.state, Release);
        // PERSIST LF-M6: flush, with the caller's fence.
        op.write_back(member);
    }

    /// Starts freeing the line of a member. The caller fences (LF-M7).
    #[inline(always)]
    pub(super) fn begin_remove(&self, op: &Op<'_, M>, freed: &Freed) {
        let member = op.at(freed.place);
        op.store(&member.state, freed.state, Release);
        // PERSIST LF-M7: flush, with the caller's fence.
        op.write_back(member);
    }

    // ---- members that are settled later ----

    /// Gives a member its next value, or a free line that was its key's one again, in the other word; in the caches only.
    pub(super) fn change_later(&self, op: &Op<'_, M>, made: &Made) {
        let member = op.at(made.place);
        // PERSIST LF-L3: same line. The state before may not be durable; it was stored before the bucket was locked, which is a
        // read-modify-write. For readers, as above.
        fence(Release);
        op.store(&member.values[made.word & 1], made.value, Relaxed);
        // PERSIST LF-M5: same line.
        op.store(&member.state, made.state, Release);
    }

    /// Frees the line of a member, in the caches only. The key stays in it.
    pub(super) fn remove_later(&self, op: &Op<'_, M>, place: Place) {
        op.store(&op.at(place).state, State::free(place.get()), Release);
    }

    // ---- recovery ----

    /// All extents, ascending.
    pub(super) fn extents(&self, op: &Op<'_, M>) -> Vec<Extent> {
        self.root.pool().space().extents(op, self.root.owner())
    }

    /// Reads some lines of an extent: returns the members, remembers the others as free, writes all back that may not be durable. The caller
    /// fences (LF-M8).
    ///
    /// # Errors
    /// [`Error::Corrupt`].
    pub(super) fn adopt(&self, op: &Op<'_, M>, lines: Extent) -> Result<Vec<Live>> {
        let members = op.slice("members", Off::<Member>::new(lines.off), lines.len / MEMBER)?;
        let (mut live, mut free): (Vec<Live>, Vec<Run>) = (Vec::new(), Vec::new());
        for (index, member) in members.iter().enumerate() {
            let off = lines.off + index as u64 * MEMBER;
            let (key, values) = read(op, member);
            let state = op.load(&member.state, Relaxed).decode(off, key, values);
            match state.map_err(|found| Error::Corrupt { what: "the state of a member", offset: off, found })? {
                Some(value) => live.push(Live { place: Off::new(off), key, value }),
                None => match free.last_mut() {
                    Some(run) if run.off + run.count * MEMBER == off => run.count += 1,
                    _ => free.push(Run { off, count: 1 }),
                },
            }
        }
        if !op.finds_what_is_durable() {
            // PERSIST LF-M8: flush, with the caller's fence.
            op.write_back_slice(members);
        }
        let mut unassigned = self.unassigned.lock(op.medium());
        unassigned.bytes += lines.len;
        unassigned.free.extend(free);
        Ok(live)
    }

    /// Compares the members with what an index leads to, and with what is known to be free. Nothing else may be under way.
    pub(super) fn check(&self, op: &Op<'_, M>, places: impl IntoIterator<Item = Place>) -> Vec<Finding> {
        let (mut indexed, mut findings) = (OffsetSet::default(), Vec::new());
        let free: OffsetSet = self.free_lines(op).into_iter().collect();
        for place in places {
            let (member, off) = (op.at(place), place.get());
            let (key, values) = read(op, member);
            if !indexed.insert(off) {
                findings.push(Finding::Misplaced { off, key });
            }
            let state = op.load(&member.state, Relaxed).decode(off, key, values);
            if free.contains(&off) || state == Ok(None) {
                findings.push(Finding::NotAllocated { off });
            }
            if state.is_err() {
                findings.push(Finding::Damaged { off });
            }
        }
        let is_free = |off: &&u64| op.load(&op.at(Place::new(**off)).state, Relaxed) == State::free(**off);
        findings.extend(free.iter().filter(|off| !is_free(off)).map(|off| Finding::Damaged { off: *off }));
        for extent in self.extents(op) {
            let lines = (extent.off..extent.off + extent.len).step_by(MEMBER as usize);
            let lost = lines.filter(|off| !indexed.contains(off) && !free.contains(off));
            findings.extend(lost.map(|off| Finding::Leaked { off }));
        }
        findings
    }

    /// Offsets of all lines that are known to be free.
    fn free_lines(&self, op: &Op<'_, M>) -> Vec<u64> {
        let runs = self.unassigned.lock(op.medium()).free.clone();
        let mut all: Vec<u64> = runs.iter().flat_map(|run| (0..run.count).map(|i| run.off + i * MEMBER)).collect();
        for session in self.sessions.iter() {
            all.extend(session.lines());
        }
        all
    }
}
