//! Sessions, and the two tickets that come from them: [`Op`], which can write, and [`Pin`], which only protects.

mod access;
mod op;
mod persist;

use std::cell::{Cell, RefCell};
use std::marker::PhantomData;
use std::sync::atomic::{Ordering, fence};

use crate::Hardware;
use crate::arch;
use crate::error::{Error, Result};
use crate::gate;
use crate::mapping::{Mapping, Seen};
use crate::medium::Medium;
use crate::membarrier;
use crate::offset::Off;
use crate::unsettled::Unsettled;
use crate::word::Persistent;

pub use op::{LineAt, Op};

/// A thread's ticket to a mapping: a slot, and the write-backs it has deferred. It may move between threads.
#[derive(Debug)]
pub struct Session<M: Medium = Hardware> {
    mapping: Mapping<M>,
    slot: u32,
    m: M,
    asymmetric: bool,
    /// The slot's count of operations begun and ended; odd while one is open.
    count: Cell<u64>,
    /// Lines to be written back before the next drain: base-relative line numbers, without duplicates.
    deferred: RefCell<Vec<u64>>,
    /// What the open operation, if it is to be settled later, has put off.
    unsettled: RefCell<Unsettled<M>>,
    /// Whether it is [at once](Op::at_once) for now. Not in `Op`: nothing in that may change, or each store has the medium read again.
    at_once: Cell<bool>,
    /// Whether the open operation has something to do when it ends.
    ends: Cell<bool>,
    /// The commit that was [noted](Op::note_commit) last.
    commit: Cell<u64>,
}

impl<M: Medium> Mapping<M> {
    /// Opens a session: tens of nanoseconds, no system call.
    ///
    /// # Errors
    /// [`Error::TooManySessions`] beyond [`MAX_SESSIONS`](crate::MAX_SESSIONS); [`Error::Forked`] in a forked child.
    pub fn session(&self) -> Result<Session<M>> {
        Ok(Session::new(self.clone(), self.take_slot()?))
    }
}

impl<M: Medium> Session<M> {
    fn new(mapping: Mapping<M>, slot: u32) -> Self {
        let m = mapping.medium().for_session(slot);
        let asymmetric = mapping.asymmetric();
        // It goes on where the slot's last session ended: a grace period must never see a number twice.
        let count = Cell::new(m.shared_load(&mapping.slot(slot).active, Ordering::Relaxed));
        let (deferred, unsettled) = (RefCell::default(), RefCell::default());
        let (ends, at_once, commit) = (Cell::new(false), Cell::new(false), Cell::new(0));
        Session { mapping, slot, m, asymmetric, count, deferred, unsettled, at_once, ends, commit }
    }

    /// The slot, unique among the open sessions of the mapping, below [`MAX_SESSIONS`](crate::MAX_SESSIONS). Persistent
    /// per-session state of a structure is kept by slot, and goes to the next session that gets it.
    pub fn slot(&self) -> u32 {
        self.slot
    }

    /// The mapping this session belongs to.
    pub fn mapping(&self) -> &Mapping<M> {
        &self.mapping
    }

    /// The number of the commit that an operation of this session has [noted](Op::note_commit) last.
    #[inline(always)]
    pub fn noted_commit(&self) -> u64 {
        self.commit.get()
    }

    /// As [`Op::prefetch_write`], outside of operations: it is no access.
    #[inline(always)]
    pub fn prefetch_write<T: Persistent>(&self, off: Off<T>) {
        let reserve = self.mapping.reserve();
        let within = off.get() & (reserve.len() as u64 - 1);
        arch::prefetch_write(reserve.base().as_ptr().wrapping_add(within as usize));
    }

    /// Has this session wait for a commit, where it would not otherwise: what it has read is part of it.
    #[inline(always)]
    pub fn raise_commit(&self, number: u64) {
        self.commit.set(self.commit.get().max(number));
    }

    /// Has this session wait for no commit that it has noted so far.
    pub(crate) fn forget_commit(&self) {
        self.commit.set(0);
    }

    /// Opens an operation: the only thing that can write. It costs a store and a load, and waits only while a
    /// quiescence (a checkpoint) is under way. Keep it short: it holds checkpoints up.
    ///
    /// # Errors
    /// [`Error::Forked`] in a forked child, [`Error::Shut`] after the mapping was shut.
    #[inline(always)]
    pub fn enter(&mut self) -> Result<Op<'_, M>> {
        if self.try_enter() != gate::OPEN {
            self.wait_at_gate()?;
        }
        Ok(self.op())
    }

    /// As [`enter`](Self::enter), but `None` where that would wait or fail: for a thread that helps another one. That one has an operation
    /// open, and waits for its helpers; a checkpoint keeps operations out until that operation ends.
    pub fn enter_at_once(&mut self) -> Option<Op<'_, M>> {
        if self.try_enter() != gate::OPEN {
            self.leave();
            return None;
        }
        Some(self.op())
    }

    /// Opens an operation whose updates need not be durable when they return. It takes what `unsettled` has: [`Op::finish`] ends it, and
    /// returns that with what is to be waited for now. See [`Unsettled`]. Dropped, it settles all of it. What knows nothing of it, and what it
    /// reads, is as ever. On a pool with a journal it is an ordinary operation.
    ///
    /// # Errors
    /// As [`enter`](Self::enter); [`Error::ForeignTicket`] if `unsettled` is one of another pool. It keeps what it has then.
    #[inline]
    pub fn enter_later(&mut self, unsettled: &mut Unsettled<M>) -> Result<Op<'_, M>> {
        unsettled.belong_to(&self.mapping)?;
        if self.ends.get() {
            // An operation that was forgotten may have left something.
            unsettled.join(self.unsettled.take())?;
        }
        if self.try_enter() != gate::OPEN {
            self.wait_at_gate()?;
        }
        *self.unsettled.borrow_mut() = std::mem::take(unsettled);
        self.ends.set(true);
        self.at_once.set(false);
        // A journal takes lines as they are noted, and has no fence to wait for.
        let mut op = self.op();
        op.later = self.mapping.gathering() == 0;
        Ok(op)
    }

    #[inline(always)]
    fn op(&self) -> Op<'_, M> {
        let reserve = self.mapping.reserve();
        let (base, mask) = (reserve.base(), reserve.len() as u64 - 1);
        Op { base, mask, m: self.m, later: false, session: self, _not_send: PhantomData }
    }

    #[inline(always)]
    fn try_enter(&self) -> u64 {
        let (active, gate) = (self.active(), Seen(self.m, self.mapping.gate()));
        self.count.set(self.count.get() | 1);
        gate::try_enter(&active, self.count.get(), &gate, || membarrier::light(self.asymmetric))
    }

    #[inline(always)]
    fn active(&self) -> Seen<'_, M> {
        Seen(self.m, &self.mapping.slot(self.slot).active)
    }

    /// Ends an operation.
    #[inline(always)]
    fn leave(&self) {
        // From odd to the next even number; an even one stays.
        self.count.set((self.count.get() + 1) & !1);
        gate::leave(&self.active(), self.count.get());
    }

    #[cold]
    fn wait_at_gate(&self) -> Result<()> {
        let mut turn = 0;
        loop {
            self.leave();
            match self.m.shared_load(self.mapping.gate(), Ordering::Acquire) {
                gate::FORKED => return Err(Error::Forked),
                gate::SHUT => return Err(self.mapping.shut_error()),
                gate::CLOSED => self.m.spin(turn),
                _ => {
                    if self.try_enter() == gate::OPEN {
                        return Ok(());
                    }
                }
            }
            turn = turn.saturating_add(1);
        }
    }

    /// Waits in `f`, for `what`, which is not 0. Meanwhile this session opens no operation, and others know: who keeps operations out, or begins a
    /// grace period, interrupts no processor for its sake.
    pub(crate) fn rest<R>(&mut self, what: u64, f: impl FnOnce(&Mapping<M>) -> R) -> R {
        struct Awake<'a, M: Medium>(&'a Session<M>);
        impl<M: Medium> Awake<'_, M> {
            fn word(&self) -> Seen<'_, M> {
                Seen(self.0.m, &self.0.mapping.slot(self.0.slot).resting)
            }
        }
        impl<M: Medium> Drop for Awake<'_, M> {
            fn drop(&mut self) {
                gate::awake(&self.word(), || fence(Ordering::SeqCst));
            }
        }
        // An operation that was forgotten ends here.
        self.leave();
        let until_here = Awake(self);
        gate::rest(&until_here.word(), what);
        f(&self.mapping)
    }

    /// Opens an operation inside [`Mapping::quiesce`], where [`enter`](Self::enter) would wait for itself.
    ///
    /// # Panics
    /// If this session does not have its mapping for itself: what others do while operations are kept out relies on it.
    pub fn enter_exclusive(&mut self) -> Op<'_, M> {
        assert!(self.mapping.is_alone(self.slot), "an exclusive operation outside of `Mapping::quiesce`");
        self.enter_past_gate()
    }

    /// Opens an operation without a look at the gate: while nothing else can be at work (creation, recovery), or for one that a
    /// quiescence may overlook.
    pub(crate) fn enter_past_gate(&mut self) -> Op<'_, M> {
        self.count.set(self.count.get() | 1);
        self.m.shared_store(&self.mapping.slot(self.slot).active, self.count.get(), Ordering::Release);
        // Mirror: `Grace::begin`, which has to see what may follow a pointer from here on.
        membarrier::light(self.asymmetric);
        self.op()
    }
}

impl<M: Medium> Drop for Session<M> {
    fn drop(&mut self) {
        if !self.mapping.is_forked() {
            // An operation that was forgotten, not dropped, ends here.
            self.leave();
            self.mapping.give_back(self.slot);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicU64;
    use std::time::Duration;

    fn mapping() -> Mapping<Hardware> {
        Mapping::heap(4096, Hardware::PAGE_CACHE)
    }

    #[test]
    fn a_quiescence_waits_for_operations_and_for_nothing_else() {
        let mapping = mapping();
        let mut idle = mapping.session().unwrap();
        let mut mine = mapping.session().unwrap();
        assert_eq!(mapping.quiesce(&mut mine, Duration::from_secs(5), |_| 7).unwrap(), 7);
        let op = idle.enter().unwrap();
        let error = mapping.quiesce(&mut mine, Duration::from_millis(20), |_| ()).unwrap_err();
        assert!(matches!(error, Error::Busy { operations: 1, .. }), "{error}");
        drop(op);
        mapping.quiesce(&mut mine, Duration::from_secs(5), |_| ()).unwrap();
        // A forgotten operation ends with its session.
        std::mem::forget(idle.enter().unwrap());
        drop(idle);
        mapping.quiesce(&mut mine, Duration::from_secs(5), |_| ()).unwrap();
    }

    #[test]
    fn a_session_that_rests_is_waited_for_by_nobody_until_it_awakes() {
        let mapping = mapping();
        let [mut mine, mut other, third] = [(); 3].map(|()| mapping.session().unwrap());
        let own = mine.slot();
        drop(third);
        assert!(mapping.is_any_awake(own));
        std::mem::forget(other.enter().unwrap());
        let found = other.rest(7, |mapping| {
            assert_eq!((mapping.is_any_awake(own), mapping.resting_for(7), mapping.resting_for(8)), (false, 1, 0));
            assert!(mine.enter().unwrap().grace().is_over(mapping), "what was forgotten has ended");
            mapping.quiesce(&mut mine, Duration::from_millis(20), |_| 7).unwrap()
        });
        assert_eq!((found, mapping.is_any_awake(own), mapping.resting_for(7)), (7, true, 0));
        let panic = || other.rest(7, |_| panic!("within a rest"));
        assert!(std::panic::catch_unwind(std::panic::AssertUnwindSafe(panic)).is_err());
        assert!(mapping.is_any_awake(own));
        let op = other.enter().unwrap();
        let error = mapping.quiesce(&mut mine, Duration::from_millis(20), |_| ()).unwrap_err();
        assert!(matches!(error, Error::Busy { operations: 1, .. }), "{error}");
        drop(op);
    }

    #[test]
    fn no_operation_runs_during_a_quiescence() {
        let mapping = mapping();
        let inside = AtomicU64::new(0);
        let stop = AtomicU64::new(0);
        std::thread::scope(|s| {
            for _ in 0..2 {
                s.spawn(|| {
                    let mut session = mapping.session().unwrap();
                    while stop.load(Ordering::Relaxed) == 0 {
                        let op = session.enter().unwrap();
                        assert_eq!(inside.load(Ordering::Relaxed), 0);
                        drop(op);
                    }
                });
            }
            let mut session = mapping.session().unwrap();
            for _ in 0..200 {
                mapping
                    .quiesce(&mut session, Duration::from_secs(20), |_| {
                        inside.store(1, Ordering::Relaxed);
                        std::hint::spin_loop();
                        inside.store(0, Ordering::Relaxed);
                    })
                    .unwrap();
            }
            stop.store(1, Ordering::Relaxed);
        });
    }

    #[test]
    fn who_does_not_wait_enters_only_while_operations_are_let_in() {
        let mapping = mapping();
        let (mut mine, mut other) = (mapping.session().unwrap(), mapping.session().unwrap());
        assert!(other.enter_at_once().is_some());
        let kept_out = mapping.quiesce(&mut mine, Duration::from_secs(5), |_| other.enter_at_once().is_none());
        assert!(kept_out.unwrap());
        assert!(other.enter_at_once().is_some());
        mapping.quiesce(&mut mine, Duration::from_secs(5), |_| ()).unwrap();
    }

    #[test]
    fn slots_are_unique_and_reused() {
        let mapping = mapping();
        let sessions: Vec<_> = (0..crate::MAX_SESSIONS).map(|_| mapping.session().unwrap()).collect();
        let slots: std::collections::BTreeSet<_> = sessions.iter().map(Session::slot).collect();
        assert_eq!(slots.len(), crate::MAX_SESSIONS as usize);
        assert!(matches!(mapping.session(), Err(Error::TooManySessions { .. })));
        drop(sessions);
        assert_eq!(mapping.session().unwrap().slot(), 0);
        mapping.shut();
        assert!(matches!(mapping.session().unwrap().enter(), Err(Error::Shut { .. })));
    }
}
