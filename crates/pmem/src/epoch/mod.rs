//! Checkpoint epochs: buffered durability for any number of structures, on one consistent cut.
//!
//! Execution is divided into *epochs*. A structure that takes part undoes, after a crash, whatever it had changed in the
//! epoch that the crash ended; so nothing needs to be written back while an epoch runs. At its *boundary* everything that
//! it has dirtied is written back at once, and the next begins. After ASPLOS'19, section 3 ("Fine-Grained Checkpointing");
//! the paper flushes the whole cache by a privileged instruction, we write back the lines that sessions have
//! [noted](Epochs::dirty).
//!
//! No thread is started: a boundary is run by whoever calls [`Pool::tick`](crate::Pool::tick), of which the epochs are a
//! [`Service`], or [`Epochs::tick`], [`Epochs::sync`] or [`Epochs::wait`]. The same caller then takes a step of [sweeping](Sweep) in every structure that has one to take.
//!
//! # Persist order
//!
//! | edge | how | a crash before it leaves | recovery |
//! |---|---|---|---|
//! | EP-B1 all lines of epoch e < epoch word e+1 | write-back of every noted line by the coordinator, fence | epoch word e | e has failed: its structures undo it |
//! | EP-B2 epoch word e+1 < first store of e+1 | write-back, fence, with the gate closed | epoch word e, nothing of e+1 | the same |
//! | EP-O0 epoch word as the opener reads it < that epoch in the failed set | write-back, fence | the word, or the one before it | takes what it finds |
//! | EP-O1 crashed epoch in the failed set < epoch word after it | write-back, fence | the old epoch word, the failed set with or without it | adds it, if it is not there |
//! | EP-O2 epoch word < first store of that epoch | write-back, fence | the failed set, the old epoch word | the same |
//! | EP-J1, EP-W1, EP-W2, EP-F1 | see [`sweep`](Sweeping) | | |
//! | EP-Z1 all lines < epoch word "closed" | as EP-B1, and no operation enters any more | epoch word e, not closed | e has failed |
//!
//! The coordinator re-issues the write-backs of all sessions itself, because a fence covers only its own thread's. Without
//! EP-B2 a node stamped e+1 could be found beside an epoch word e, and would pass for one of the next run.
//!
//! # Rounds: writing back ahead of the boundary
//! Most lines need not wait for the boundary. [`Epochs::tick`] first begins a new *round* of the epoch: it waits for the
//! operations that were open (a grace period; nobody waits for it), and then writes back and fences what was noted in
//! the rounds before, while operations go on. What was noted meanwhile is written back by another round, until one has no more
//! than `FEW_LINES`. The boundary that follows, with operations kept out, is left with what was noted during the last round: some
//! hundred lines, some ten microseconds, however many the epoch has dirtied.
//!
//! A line that is stored to after it was written back must be on a list again. So a line counts as noted for its round
//! only: who changes an object looks at the round too, and notes it again in a new one. Why this
//! suffices: let a store be made by an operation that takes the round for r, and let the lists of round r be taken after
//! the grace period behind the beginning of round r+1. Either the operation was open when the period began; then it has
//! ended before the lists are taken, the store comes before the write-back, and the line is on a list of round r, by this
//! operation or by the one whose mark it has found. Or it was not open: then it has seen round r+1, which is on the lists
//! that are left. An entry may land in a later list than the mark on the object says (the round may change between the
//! two); then it is written back later, and the next to change it notes it once more.
//!
//! After the mere death of a process the epoch word may be visible and not durable. So the opener first makes durable what
//! it has read (EP-O0); otherwise an epoch could be known as failed, and after a power failure come again. All that EP-B1 had
//! covered was durable before the word was stored.

mod dirty;
pub mod layout;
mod sharing;
mod sweep;

use std::fmt;
use std::sync::Weak;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crossbeam_utils::CachePadded;

use crate::error::{Error, Result};
use crate::line::{LINE, Lines};
use crate::lock::Lock;
use crate::mapping::Mapping;
use crate::medium::{GIVES_WAY, Medium, Rmw};
use crate::offset::Off;
use crate::service::{Due, Service, Urgency};
use crate::session::{Op, Session};
use crate::word::Persistent;
use dirty::{DirtyLists, MAX_MASK};
use layout::{EpochRecord, EpochWord, FailedRange, LAST_EPOCH, MAX_EPOCH, MAX_FAILED, Seat};
pub(crate) use sweep::Needs;
pub use sweep::{Sweep, Sweeping};

/// Time between boundaries unless set.
pub const DEFAULT_INTERVAL: Duration = Duration::from_millis(64);
/// The word of the moment: bits 0–39 the epoch, bits 40–45 the round.
const ROUND: u32 = 40;
/// The last round of an epoch.
const LAST_ROUND: u64 = 63;
/// The rounds of an epoch end when one has written back no more than so many lines: the boundary has fewer.
const FEW_LINES: u64 = 2048;
/// Most rounds before a boundary, where lines are dirtied as fast as they are written back.
const MOST_ROUNDS: u32 = 8;
/// How long a round waits for the operations that were open when it began; then the boundary writes back what it would have.
const ROUND_PATIENCE: Duration = Duration::from_millis(10);
/// How long a boundary waits for the operations in flight.
const PATIENCE: Duration = Duration::from_secs(10);

/// A promise: everything that was done before it was drawn is durable once it [has come](Epochs::is_durable).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[must_use = "a ticket says when something is durable; wait for it or ask"]
pub struct Ticket(u64);

impl Ticket {
    /// The number of the epoch that has to end.
    pub fn epoch(self) -> u64 {
        self.0
    }
}

/// Figures of the boundaries so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct EpochStats {
    /// Number of the epoch in progress.
    pub epoch: u64,
    /// Boundaries since the pool was opened.
    pub boundaries: u64,
    /// Lines written back at them.
    pub lines: u64,
    /// Lines written back before them, while operations went on.
    pub ahead: u64,
    /// Time that the last one kept operations out, in nanoseconds.
    pub last_pause: u64,
    /// The longest of these times.
    pub longest_pause: u64,
    /// Failed epochs that are still remembered, in ranges.
    pub failed_ranges: usize,
}

/// The checkpoint epochs of a mapping. Structures keep it in an [`Arc`](std::sync::Arc).
pub struct Epochs<M: Medium> {
    mapping: Mapping<M>,
    record: Off<EpochRecord>,
    current: CachePadded<AtomicU64>,
    /// The epoch in which it was opened.
    first: u64,
    /// Epochs from here on have not failed; fixed while it is open.
    trusted: u64,
    /// First and count, ascending; as found on opening.
    failed: Box<[(u64, u64)]>,
    dirty: DirtyLists,
    /// Held by whoever begins a round.
    rounds: Lock<()>,
    /// Held by whoever runs a boundary for those who wait.
    leading: Lock<()>,
    /// How many others waited for the last boundary that was run for those who wait.
    together: AtomicU64,
    interval: AtomicU64,
    state: Lock<State>,
    /// Ranges that the record still holds.
    remembered: AtomicU64,
    seats: Seats<M>,
    /// Structures that may have something to undo.
    members: Lock<Vec<Weak<dyn Sweep<M>>>>,
    /// How many they are.
    sweeping: AtomicU64,
    /// The structure for which no boundary is crossed any more.
    stopped: Lock<Option<String>>,
    /// How many operations had begun and ended at the last boundary.
    settled: AtomicU64,
    /// 1 once a round of this epoch has written lines back: then there is something to cross a boundary for, though the lists are empty.
    ahead: AtomicU64,
}

/// Calls back with the needs of every structure that has ever taken part and is still there.
pub(crate) type Seats<M> = Box<dyn Fn(&Op<'_, M>, &mut dyn FnMut(Needs)) -> Result<()> + Send + Sync>;

/// What became of a round.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ahead {
    /// Another thread has one under way.
    Busy,
    /// There are no more rounds, or an operation did not end in time: all of it is left to the boundary.
    GaveUp,
    /// So many lines were written back.
    Wrote(u64),
}

#[derive(Debug)]
struct State {
    last: Instant,
    stats: EpochStats,
}

impl<M: Medium> fmt::Debug for Epochs<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Epochs").field("trusted", &self.trusted).field("failed", &self.failed).finish_non_exhaustive()
    }
}

impl<M: Medium> Epochs<M> {
    /// Opens the epochs of a record, 1024 bytes that were zero when it was first opened. The epoch that a crash has ended
    /// counts as failed from now on. Durable on return: at most three fences. `op` must be of `mapping`, and nothing that
    /// takes part may be at work. One structure can take part, with the record's own [seat](Self::seat).
    ///
    /// # Errors
    /// [`Error::DamagedEpochs`]; [`Error::TooManyFailedEpochs`]; [`Error::EpochsExhausted`].
    pub fn open(op: &Op<'_, M>, mapping: &Mapping<M>, record: Off<EpochRecord>) -> Result<Self> {
        Self::open_at(op, mapping, record, 1)
    }

    /// As [`open`](Self::open), for several structures of a bare mapping, whose seats lie at these offsets: half lines, zero at
    /// first, which must be listed also for structures that stay closed.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub fn open_for(
        op: &Op<'_, M>,
        mapping: &Mapping<M>,
        record: Off<EpochRecord>,
        seats: &[Off<Seat>],
    ) -> Result<Self> {
        let seats = seats.to_vec();
        let seats: Seats<M> = Box::new(move |op, f| {
            seats.iter().filter_map(|seat| Needs::of(op, op.at(*seat))).for_each(f);
            Ok(())
        });
        Self::open_with(op, mapping, record, 1, seats)
    }

    /// As [`open`](Self::open); a record that was never used starts with epoch `first`. For tests that drive an epoch's
    /// number over the edge of some field.
    ///
    /// # Errors
    /// As [`open`](Self::open); [`Error::BadOption`] if `first` is zero or too large.
    pub fn open_at(op: &Op<'_, M>, mapping: &Mapping<M>, record: Off<EpochRecord>, first: u64) -> Result<Self> {
        let seats: Seats<M> = Box::new(move |op, f| {
            Needs::of(op, &op.at(record).seat).into_iter().for_each(f);
            Ok(())
        });
        Self::open_with(op, mapping, record, first, seats)
    }

    /// As [`open_at`](Self::open_at), for the structures whose needs `seats` tells.
    pub(crate) fn open_with(
        op: &Op<'_, M>,
        mapping: &Mapping<M>,
        record: Off<EpochRecord>,
        first: u64,
        seats: Seats<M>,
    ) -> Result<Self> {
        op.expect_base(mapping.base_addr())?;
        if first == 0 || first > LAST_EPOCH {
            let rule = "between 1 and the last epoch";
            return Err(Error::BadOption { option: "first epoch", value: first, rule });
        }
        let at = op.at(record);
        let word = op.load(&at.epoch, Ordering::Relaxed);
        let (found, clean) = match word.get() {
            Some(state) => state,
            None if word == EpochWord::UNUSED => (first, true),
            None => return Err(damaged(record.get(), crate::Bits::to_bits(word))),
        };
        let current = if clean {
            found
        } else {
            // PERSIST EP-O0<EP-O1: flush+fence
            op.write_back(&at.epoch);
            op.fence();
            add_failed(op, at, found, &seats)?; // PERSIST EP-O1<EP-O2: flush+fence, inside
            found + 1
        };
        if current > MAX_EPOCH {
            return Err(Error::EpochsExhausted { last: MAX_EPOCH });
        }
        op.store(&at.epoch, EpochWord::new(current, false), Ordering::Release);
        op.write_back(&at.epoch);
        // PERSIST EP-O2: flush+fence, before the caller does anything in this epoch
        op.fence();
        let failed = read_failed(op, at)?;
        let trusted = failed.last().map_or(0, |(first, count)| first + count);
        let stats = EpochStats { epoch: current, failed_ranges: failed.len(), ..EpochStats::default() };
        Ok(Epochs {
            mapping: mapping.clone(),
            record,
            current: CachePadded::new(AtomicU64::new(current)),
            first: current,
            trusted,
            remembered: AtomicU64::new(failed.len() as u64),
            failed: failed.into(),
            dirty: DirtyLists::new(),
            rounds: Lock::new(()),
            leading: Lock::new(()),
            together: AtomicU64::new(0),
            interval: AtomicU64::new(DEFAULT_INTERVAL.as_nanos() as u64),
            state: Lock::new(State { last: Instant::now(), stats }),
            seats,
            members: Lock::new(Vec::new()),
            sweeping: AtomicU64::new(0),
            stopped: Lock::new(None),
            settled: AtomicU64::new(mapping.operations()),
            ahead: AtomicU64::new(0),
        })
    }

    // ---- for structures ----

    /// The epoch in progress: it does not change while `op` is open.
    #[inline(always)]
    pub fn current(&self, op: &Op<'_, M>) -> u64 {
        self.now(op).0
    }

    /// The epoch in progress, and its round, below 64: see [`dirty`](Self::dirty). The round may change while `op` is open.
    #[inline(always)]
    pub fn now(&self, op: &Op<'_, M>) -> (u64, u64) {
        let moment = op.medium().shared_load(&self.current, Ordering::Relaxed);
        (moment & MAX_EPOCH, moment >> ROUND)
    }

    /// The oldest epoch from which on nothing has failed: what bears a number below it may need to be undone, and holds
    /// no lock that counts. Zero where no failed epoch is remembered.
    #[inline(always)]
    pub fn trusted(&self) -> u64 {
        self.trusted
    }

    /// Whether a crash has ended that epoch.
    pub fn is_failed(&self, epoch: u64) -> bool {
        epoch < self.trusted && self.failed.iter().any(|(first, count)| epoch.wrapping_sub(*first) < *count)
    }

    /// Notes that an object has been, or is about to be, changed in this epoch by this operation: its lines are written
    /// back at the boundary or before, with the content that they have then. A structure that marks what it has noted, so
    /// as not to note it again, marks it with epoch *and* round, read before this call. Noting a line twice costs a second
    /// write-back, nothing else.
    ///
    /// # Panics
    /// If the operation is of another mapping, or the object does not lie in it.
    #[inline]
    pub fn dirty<T: Persistent + ?Sized>(&self, op: &Op<'_, M>, object: &T) {
        let first = self.first_line(op, object);
        let count = Lines::of_words(object.words()).count();
        self.dirty.push_run(op.slot(), self.now(op).1, first, count);
    }

    /// The same for some lines of an object, a bit each, from its first line on.
    ///
    /// # Panics
    /// If the operation is of another mapping, or the object does not lie in it, or has fewer lines.
    #[inline(always)]
    pub fn dirty_lines<T: Persistent + ?Sized>(&self, op: &Op<'_, M>, object: &T, lines: u64) {
        let first = self.first_line(op, object);
        let count = Lines::of_words(object.words()).count();
        assert!(count <= MAX_MASK && lines >> count == 0, "lines that the object does not have");
        if lines != 0 {
            self.dirty.push_mask(op.slot(), self.now(op).1, first, lines);
        }
    }

    /// Where an object lies, in lines from the start of the mapping.
    #[inline(always)]
    fn first_line<T: Persistent + ?Sized>(&self, op: &Op<'_, M>, object: &T) -> usize {
        self.assert_own(op);
        let base = self.mapping.base_addr();
        let first = object.words().as_ptr().addr().wrapping_sub(base);
        let len = size_of_val(object);
        assert!(first.checked_add(len).is_some_and(|end| end <= self.mapping.reserve().len() + crate::MAX_OBJECT));
        first / LINE
    }

    #[inline(always)]
    fn assert_own(&self, op: &Op<'_, M>) {
        assert!(op.base_addr() == self.mapping.base_addr(), "an operation of another mapping");
    }

    /// How many objects are noted for the boundary, about.
    pub(crate) fn noted(&self) -> usize {
        self.dirty.count(self.mapping.slots_used())
    }

    // ---- for users ----

    /// A ticket for everything that this thread has done, `op` included as far as it has come.
    pub fn ticket(&self, op: &Op<'_, M>) -> Ticket {
        Ticket(self.current(op))
    }

    /// Whether what a ticket stands for is durable.
    pub fn is_durable(&self, ticket: Ticket) -> bool {
        self.mapping.medium().shared_load(&self.current, Ordering::Acquire) & MAX_EPOCH > ticket.0
    }

    /// Runs a boundary if the interval has passed since the last. Returns whether it did. Call it as often as you like, from
    /// any thread that holds no operation. Most of the write-backs are done before operations are kept out.
    ///
    /// # Errors
    /// As [`sync`](Self::sync).
    pub fn tick(&self, session: &mut Session<M>) -> Result<bool> {
        let m = self.mapping.medium();
        let interval = Duration::from_nanos(m.shared_load(&self.interval, Ordering::Relaxed));
        let Some(due) = self.state.try_lock(m).map(|state| state.last.elapsed() >= interval) else {
            return Ok(false);
        };
        if due {
            self.own(session)?;
            let seen = m.shared_load(&self.current, Ordering::Acquire) & MAX_EPOCH;
            let mut ahead = self.round(session)?;
            for _ in 1..MOST_ROUNDS {
                // What was noted while a round was written back is left to the next one.
                match ahead {
                    Ahead::Wrote(lines) if lines > FEW_LINES => ahead = self.round(session)?,
                    _ => break,
                }
            }
            if ahead == Ahead::Busy {
                // Another thread is at it, and runs the boundary.
                return Ok(false);
            }
            self.mapping.quiesce(session, PATIENCE, |session| {
                // Another thread may have been faster.
                let now = m.shared_load(&self.current, Ordering::Relaxed) & MAX_EPOCH;
                if now == seen { self.cross(session, false) } else { Ok(()) }
            })??;
            self.sweep(session)?;
        }
        Ok(due)
    }

    /// Sets the time between boundaries that [`tick`](Self::tick) keeps; [`DEFAULT_INTERVAL`] unless set. What a crash can
    /// lose is what was done in that time.
    pub fn set_interval(&self, interval: Duration) {
        let nanos = u64::try_from(interval.as_nanos()).unwrap_or(u64::MAX);
        self.mapping.medium().shared_store(&self.interval, nanos, Ordering::Relaxed);
    }

    /// Figures of the boundaries so far.
    pub fn stats(&self) -> EpochStats {
        let m = self.mapping.medium();
        let failed_ranges = m.shared_load(&self.remembered, Ordering::Relaxed) as usize;
        EpochStats { failed_ranges, ..self.state.lock(m).stats }
    }

    // ---- taking part ----

    /// The seat of the only structure of a bare mapping.
    ///
    /// # Panics
    /// If the operation is of another mapping.
    pub fn seat<'s>(&self, op: &Op<'s, M>) -> &'s Seat {
        self.assert_own(op);
        &op.at(self.record).seat
    }

    /// Whether the structure with that seat has [joined](Self::join) since this service was opened. Then it may have changes of the
    /// epoch in progress, which neither a crash has undone nor a boundary has made durable: before it is opened again, and forgets
    /// what only memory knows of them, a boundary must be [crossed](Self::sync).
    pub fn has_joined(&self, op: &Op<'_, M>, seat: &Seat) -> bool {
        op.load(&seat.opened, Ordering::Relaxed) >= self.first
    }

    /// Has the structure with that seat take part from now on: to be called when it is opened, before it changes anything
    /// that it would undo. Durable on return: one fence. A structure that takes part without a seat would have its failed
    /// epochs forgotten.
    ///
    /// # Panics
    /// If the operation is of another mapping.
    pub fn join(&self, op: &Op<'_, M>, seat: &Seat) {
        self.assert_own(op);
        let now = self.current(op);
        if op.load(&seat.opened, Ordering::Relaxed) == 0 {
            // Nothing of it is older.
            op.store(&seat.swept, now, Ordering::Relaxed);
        }
        op.store(&seat.opened, now, Ordering::Release);
        op.write_back(seat);
        // PERSIST EP-J1: flush+fence
        op.fence();
    }

    /// Has a structure that has [joined](Self::join) swept behind each boundary, for as long as it lives.
    pub fn drive(&self, member: Weak<dyn Sweep<M>>) {
        let m = self.mapping.medium();
        self.members.lock(m).push(member);
        m.shared_rmw(&self.sweeping, Rmw::Add, 1);
    }

    /// Crosses no boundary any more: the structure of that name may have left something half done, which is undone if the epoch in
    /// progress fails, and would be durable otherwise.
    pub fn stop(&self, name: String) {
        self.stopped.lock(self.mapping.medium()).get_or_insert(name);
    }

    /// Whether so many failed epochs are remembered that a step should be a twentieth of the whole pass, however large.
    pub fn is_pressed(&self) -> bool {
        self.mapping.medium().shared_load(&self.remembered, Ordering::Relaxed) as usize > MAX_FAILED / 2
    }

    /// Takes a step in every structure that may have something to undo.
    fn sweep(&self, session: &mut Session<M>) -> Result<()> {
        let m = self.mapping.medium();
        if m.shared_load(&self.sweeping, Ordering::Relaxed) == 0 {
            return Ok(());
        }
        // Not under the lock, and let go outside of the operation: the last handle of a structure may close its pool.
        let members = std::mem::take(&mut *self.members.lock(m));
        let before = members.len();
        let alive: Vec<_> = members.iter().filter_map(|member| Some((member, member.upgrade()?))).collect();
        let mut left = Vec::new();
        let mut result = Ok(());
        for (weak, member) in &alive {
            let may_have_more = match session.enter() {
                Ok(op) => member.sweep(&op),
                Err(error) => {
                    result = Err(error);
                    true
                }
            };
            if may_have_more {
                left.push(Weak::clone(weak));
            }
        }
        m.shared_rmw(&self.sweeping, Rmw::Add, ((before - left.len()) as u64).wrapping_neg());
        self.members.lock(m).extend(left);
        result
    }

    /// Removes the failed epochs that no structure needs from the record; until this service is opened again they still
    /// [count](Self::is_failed). Where an index cannot be read, nothing is forgotten.
    fn forget(&self, op: &Op<'_, M>) {
        let at = op.at(self.record);
        let Ok((failed, needs)) = read_failed(op, at).and_then(|f| Ok((f, needs(op, &self.seats)?))) else { return };
        let mut left = failed.len();
        for word in unneeded(op, at, &failed, &needs) {
            // EP-F1 holds. Noted, not fenced: see `sweep`.
            op.store(word, FailedRange::FREE, Ordering::Relaxed);
            self.dirty(op, word);
            left -= 1;
        }
        op.medium().shared_store(&self.remembered, left as u64, Ordering::Relaxed);
    }

    // ---- the boundary ----

    fn own(&self, session: &Session<M>) -> Result<()> {
        if session.mapping().is_same(&self.mapping) { Ok(()) } else { Err(Error::ForeignSession) }
    }

    /// Crosses a boundary; no operation is open. With `closing`, the next epoch is marked as one in which nothing happens.
    pub(crate) fn cross(&self, session: &mut Session<M>, closing: bool) -> Result<()> {
        self.own(session)?;
        let start = Instant::now();
        let op = session.enter_exclusive();
        if let Some(name) = &*self.stopped.lock(op.medium()) {
            return Err(Error::Poisoned { name: name.clone() });
        }
        let next = self.current(&op) + 1;
        let last = if closing { MAX_EPOCH } else { LAST_EPOCH };
        if next > last {
            return Err(Error::EpochsExhausted { last });
        }
        // SAFETY: the gate is closed and all operations have ended, but for `op`, which notes nothing. `enter_exclusive` has asserted
        // that this session has its mapping for itself, and `own` that it is a session of this mapping, so no caller can get here
        // beside an operation that notes something.
        let lines = unsafe { self.write_back_noted(&op, 0) + self.write_back_noted(&op, 1) };
        // PERSIST EP-B1<EP-B2, EP-Z1: flush+fence
        op.fence();
        let at = op.at(self.record);
        op.store(&at.epoch, EpochWord::new(next, closing), Ordering::Release);
        op.write_back(&at.epoch);
        // PERSIST EP-B2: flush+fence
        op.fence();
        op.medium().shared_store(&self.current, next, Ordering::Release);
        let m = op.medium();
        m.shared_store(&self.ahead, 0, Ordering::Relaxed);
        drop(op);
        m.shared_store(&self.settled, self.mapping.operations(), Ordering::Relaxed);
        self.note_boundary(start, next, lines);
        Ok(())
    }

    /// As [`cross`](Self::cross), if anything was noted since the last boundary, be it written back by a round already: what was done in an epoch
    /// counts only when the next one has begun.
    pub(crate) fn cross_if_dirty(&self, session: &mut Session<M>) -> Result<()> {
        self.own(session)?;
        assert!(self.mapping.is_alone(session.slot()), "a look at all lists outside of `Mapping::quiesce`");
        // SAFETY: as just asserted, this session has the mapping for itself: no operation of another one is open or enters meanwhile.
        // Of its own none is open, since an operation borrows the session, and one that was forgotten notes nothing more.
        let nothing_left = unsafe { self.dirty.is_empty(self.mapping.slots_used()) };
        let nothing_ahead = self.mapping.medium().shared_load(&self.ahead, Ordering::Relaxed) == 0;
        if nothing_left && nothing_ahead { Ok(()) } else { self.cross(session, false) }
    }

    /// Begins a round, and makes durable what was noted in the rounds before, while operations go on: see the head of the
    /// module. Returns whether the caller is the one to run the boundary.
    ///
    /// # Errors
    /// [`Error::Forked`], [`Error::Shut`], [`Error::ForeignSession`].
    pub fn write_ahead(&self, session: &mut Session<M>) -> Result<bool> {
        Ok(self.round(session)? != Ahead::Busy)
    }

    fn round(&self, session: &mut Session<M>) -> Result<Ahead> {
        self.own(session)?;
        let Some(_turn) = self.rounds.try_lock(self.mapping.medium()) else { return Ok(Ahead::Busy) };
        // While it is open, no boundary begins, and the epoch stays.
        let op = session.enter()?;
        let (epoch, round) = self.now(&op);
        if round == LAST_ROUND {
            return Ok(Ahead::GaveUp);
        }
        op.medium().shared_store(&self.current, epoch | (round + 1) << ROUND, Ordering::Release);
        // Either an operation was open before, and is waited for; or it sees the new round. Mirror: `gate::try_enter`.
        let mut grace = op.grace();
        let start = Instant::now();
        let mut turn = 0;
        while !grace.is_over(&self.mapping) {
            if turn > GIVES_WAY && start.elapsed() > ROUND_PATIENCE {
                return Ok(Ahead::GaveUp);
            }
            op.medium().spin(turn);
            turn = turn.saturating_add(1);
        }
        // SAFETY: whoever could push for this round, or the one two before, has ended; this operation pushes nothing, and
        // the next such round begins under the lock. A caller cannot have a second operation open in this session, which the grace
        // period does not wait for: the first borrows the session. A round that gave up has left its list as it was, and the grace
        // period of the round after it waits for the same operations once more.
        let lines = unsafe { self.write_back_noted(&op, round) };
        // PERSIST EP-B1: flush+fence, ahead
        op.fence();
        if lines > 0 {
            // While the operation is open: it keeps the boundary out that clears it.
            op.medium().shared_store(&self.ahead, 1, Ordering::Relaxed);
        }
        drop(op);
        self.state.lock(self.mapping.medium()).stats.ahead += lines;
        Ok(Ahead::Wrote(lines))
    }

    /// Writes back what was noted in rounds that are even, or odd, as `round` is. Returns how many lines.
    ///
    /// # Safety
    /// As [`DirtyLists::take`].
    unsafe fn write_back_noted(&self, op: &Op<'_, M>, round: u64) -> u64 {
        let base = self.mapping.reserve().base().as_ptr();
        let m = op.medium();
        let mut lines = 0;
        let mut write_back = |first: usize, count: usize| {
            // SAFETY: the lines of an object that `first_line` has checked to lie in this mapping or its guard, which are mapped as long
            // as `self`; nothing else gets onto the lists. A caller may pass any object to `dirty`: one that lies elsewhere panics there.
            m.write_back(unsafe { Lines::from_raw(base.wrapping_add(first * LINE), count) });
            lines += count as u64;
        };
        // SAFETY: the caller's contract.
        unsafe { self.dirty.take(round, self.mapping.slots_used(), &mut write_back) };
        lines
    }

    fn note_boundary(&self, start: Instant, epoch: u64, lines: u64) {
        let mut state = self.state.lock(self.mapping.medium());
        let pause = u64::try_from(start.elapsed().as_nanos()).unwrap_or(u64::MAX);
        state.last = Instant::now();
        let stats = &mut state.stats;
        stats.epoch = epoch;
        stats.boundaries += 1;
        stats.lines += lines;
        stats.last_pause = pause;
        stats.longest_pause = stats.longest_pause.max(pause);
    }
}

/// A boundary is due when the interval has passed since the last one and any operation has begun since: only operations can
/// have changed something.
impl<M: Medium> Service<M> for Epochs<M> {
    fn name(&self) -> String {
        "the checkpoint".into()
    }

    fn due(&self) -> Due {
        let m = self.mapping.medium();
        let interval = Duration::from_nanos(m.shared_load(&self.interval, Ordering::Relaxed));
        let Some(passed) = self.state.try_lock(m).map(|state| state.last.elapsed()) else { return Due::In(interval) };
        if passed < interval {
            return Due::In(interval - passed);
        }
        if m.shared_load(&self.settled, Ordering::Relaxed) == self.mapping.operations() {
            return Due::In(interval);
        }
        match (self.stopped.lock(m).is_some(), passed > 4 * interval) {
            // Nobody can make it go on; a `sync` says why.
            (true, _) => Due::No,
            (false, late) => Due::Now(if late { Urgency::Pressing } else { Urgency::Due }),
        }
    }

    fn step(&self, session: &mut Session<M>) -> Result<()> {
        self.tick(session).map(|_| ())
    }
}

fn damaged(offset: u64, found: u64) -> Error {
    Error::DamagedEpochs { offset, found }
}

/// Makes a record readable whose words are damaged, of a pool that is only read: as if it had been closed in the last epoch, and without the failed
/// epochs that cannot be read. Returns whether anything was.
pub(crate) fn mend<M: Medium>(op: &Op<'_, M>, record: Off<EpochRecord>) -> bool {
    let at = op.at(record);
    let word = op.load(&at.epoch, Ordering::Relaxed);
    let is_damaged = word != EpochWord::UNUSED && word.get().is_none();
    if is_damaged {
        op.store(&at.epoch, EpochWord::new(LAST_EPOCH - 1, true), Ordering::Relaxed);
    }
    let failed = at.failed.iter().filter(|range| {
        let found = op.load(*range, Ordering::Relaxed);
        found != FailedRange::FREE && found.get().is_none()
    });
    is_damaged | (failed.map(|range| op.store(range, FailedRange::FREE, Ordering::Relaxed)).count() > 0)
}

/// The failed epochs of a record, ascending.
fn read_failed<M: Medium>(op: &Op<'_, M>, at: &EpochRecord) -> Result<Vec<(u64, u64)>> {
    let mut ranges = Vec::new();
    for word in &at.failed {
        match op.load(word, Ordering::Relaxed) {
            FailedRange::FREE => {}
            range => match range.get() {
                Some(range) => ranges.push(range),
                None => return Err(damaged(op.off_of(word).get(), crate::Bits::to_bits(range))),
            },
        }
    }
    ranges.sort_unstable();
    Ok(ranges)
}

/// The needs of all structures that take part.
fn needs<M: Medium>(op: &Op<'_, M>, seats: &Seats<M>) -> Result<Vec<Needs>> {
    let mut needs = Vec::new();
    seats(op, &mut |need| needs.push(need))?;
    Ok(needs)
}

/// The words of a record that hold failed epochs, of all `failed` ones, that nobody needs.
fn unneeded<'s, M: Medium>(
    op: &Op<'_, M>,
    at: &'s EpochRecord,
    failed: &[(u64, u64)],
    needs: &[Needs],
) -> Vec<&'s crate::Word<FailedRange>> {
    let is_needed = |range| needs.iter().any(|need| need.touches(range, failed));
    let is_free = |word: &&crate::Word<FailedRange>| {
        op.load(*word, Ordering::Relaxed).get().is_some_and(|range| !is_needed(range))
    };
    at.failed.iter().filter(is_free).collect()
}

/// Adds an epoch to the failed ones, durably: one fence. Where the record is full, it takes the place of one that nobody
/// needs any more.
fn add_failed<M: Medium>(op: &Op<'_, M>, at: &EpochRecord, epoch: u64, seats: &Seats<M>) -> Result<()> {
    let (place, value) = match place_for(op, at, epoch) {
        Some(place) => place,
        None => {
            let mut failed = read_failed(op, at)?;
            failed.push((epoch, 1));
            let free = unneeded(op, at, &failed, &needs(op, seats)?);
            let word = *free.first().ok_or(Error::TooManyFailedEpochs { limit: MAX_FAILED })?;
            (word, FailedRange::new(epoch, 1))
        }
    };
    op.store(place, value, Ordering::Release);
    op.write_back(place);
    // PERSIST EP-O1<EP-O2: flush+fence. Also where it was there already: after the mere death of a process it may not be durable.
    op.fence();
    Ok(())
}

/// Where an epoch goes, and what is stored there.
fn place_for<'s, M: Medium>(
    op: &Op<'_, M>,
    at: &'s EpochRecord,
    epoch: u64,
) -> Option<(&'s crate::Word<FailedRange>, FailedRange)> {
    let mut free = None;
    for word in &at.failed {
        let range = op.load(word, Ordering::Relaxed);
        match range.get() {
            Some((first, count)) if epoch.wrapping_sub(first) < count => return Some((word, range)),
            Some((first, count)) if first + count == epoch && count < FailedRange::MAX_COUNT => {
                return Some((word, FailedRange::new(first, count + 1)));
            }
            None if range == FailedRange::FREE && free.is_none() => free = Some(word),
            Some(_) | None => {}
        }
    }
    free.map(|word| (word, FailedRange::new(epoch, 1)))
}
