//! Sessions, and the two tickets that come from them: [`Op`], which can write, and [`Pin`], which only protects.

use std::cell::{Cell, RefCell};
use std::marker::PhantomData;
use std::mem::MaybeUninit;
use std::ptr::NonNull;
use std::sync::Weak;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::arch;
use crate::error::{Error, Result};
use crate::gate;
use crate::grace::Grace;
use crate::line::{LINE, Lines};
use crate::mapping::{MAX_SESSIONS, Mapping, Seen};
use crate::medium::Medium;
use crate::membarrier;
use crate::offset::Off;
use crate::unsettled::{Settles, Unsettled};
use crate::word::{Bits, MAX_OBJECT, Persistent, Word};
use crate::{Hardware, Rmw};

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
    /// [`Error::TooManySessions`] beyond [`MAX_SESSIONS`]; [`Error::Forked`] in a forked child.
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

/// A short scope in which a thread may read and write persistent memory. References into the mapping live no longer.
///
/// An operation holds up a checkpoint, never another thread. Write-backs are either issued at once
/// ([`write_back`](Op::write_back)) or collected without duplicates and issued just before the
/// [`drain`](Op::drain) ([`defer`](Op::defer)): a locked instruction between a write-back and its fence waits for the
/// write-back, so batches are made of the second.
#[derive(Debug)]
pub struct Op<'s, M: Medium = Hardware> {
    base: NonNull<u8>,
    mask: u64,
    m: M,
    /// Whether updates may be settled later.
    later: bool,
    session: &'s Session<M>,
    _not_send: PhantomData<*mut ()>,
}

/// Finds objects that are a line by words whose low six bits mean something else; see [`Op::lines`].
#[derive(Clone, Copy, Debug)]
pub struct LineAt<'s> {
    base: NonNull<u8>,
    mask: u64,
    _mapping: PhantomData<&'s ()>,
}

impl<'s> LineAt<'s> {
    /// The object at the offset that `bits` holds, without their low six. Total, as [`Op::at`].
    #[inline(always)]
    pub fn at<T: Persistent>(&self, bits: u64) -> &'s T {
        const { assert!(size_of::<T>() <= MAX_OBJECT && align_of::<T>() <= LINE) };
        // SAFETY: as in `Op::at`: the mask is that of the reserve, without the bits within a line, to which the object is
        // aligned. A caller chooses the bits, and every choice is right; base and mask are private.
        unsafe { self.base.add((bits & self.mask) as usize).cast::<T>().as_ref() }
    }

    /// As [`Op::prefetch`].
    #[inline(always)]
    pub fn prefetch<T: Persistent>(&self, bits: u64) {
        prefetch(self.at::<T>(bits));
    }
}

#[inline(always)]
fn prefetch<T: Persistent>(object: &T) {
    let first = std::ptr::from_ref(object).cast::<u8>();
    for line in 0..size_of::<T>().div_ceil(LINE) {
        arch::prefetch_read(first.wrapping_add(line * LINE));
    }
}

impl<'s, M: Medium> Op<'s, M> {
    /// The medium's handle of this session.
    #[inline(always)]
    pub fn medium(&self) -> M {
        self.m
    }

    /// The session's slot.
    #[inline(always)]
    pub fn slot(&self) -> u32 {
        self.session.slot
    }

    /// The mapping.
    pub fn mapping(&self) -> &'s Mapping<M> {
        self.session.mapping()
    }

    /// Begins a grace period: what nothing leads to any more may be reused once it is over. See [`Grace`].
    pub fn grace(&self) -> Grace {
        Grace::begin(self.mapping(), self.session.slot, self.session.asymmetric)
    }

    /// Whether so many unlinked objects, the last `added` of them just now, are enough for a [`grace`](Op::grace) period, which
    /// interrupts every processor that is at work on the mapping: `most` are, and while nobody else is, each 64.
    #[inline(always)]
    pub fn is_generation(&self, objects: usize, added: usize, most: usize) -> bool {
        let most = most.min(self.mapping().generation());
        objects >= most || (objects / 64 != objects.saturating_sub(added) / 64 && self.seems_alone())
    }

    /// How many operations the session of a slot has begun and ended, both counted: odd while it is inside one. It never comes
    /// back to an earlier number, also when another session gets the slot. Zero where there is no such slot.
    #[cold]
    pub fn operations_of(&self, slot: u32) -> u64 {
        let within = slot < MAX_SESSIONS;
        if within { self.m.shared_load(&self.mapping().slot(slot).active, Ordering::Acquire) } else { 0 }
    }

    /// All [operations](Self::operations_of) of other sessions, if none is under way. If two calls return the same number, no
    /// other session was inside an operation between them. One load for each slot.
    #[cold]
    pub fn quiet(&self) -> Option<u64> {
        let others = (0..MAX_SESSIONS).filter(|slot| *slot != self.slot());
        let mut sum = 0u64;
        for count in others.map(|slot| self.operations_of(slot)) {
            if count & 1 == 1 {
                return None;
            }
            sum = sum.wrapping_add(count);
        }
        Some(sum)
    }

    /// Whether no operation of another session was seen: a hint.
    #[cold]
    fn seems_alone(&self) -> bool {
        let (m, mapping) = (self.m, self.mapping());
        let is_inside = |slot: u32| m.shared_load(&mapping.slot(slot).active, Ordering::Relaxed) & 1 == 1;
        !mapping.taken().any(|slot| slot != self.slot() && is_inside(slot))
    }

    // ---- updates that are settled later ----

    /// Ends an operation, and returns what has to be waited for until its updates are durable: what was put off, and on a pool with a
    /// journal the commit. Does not wait.
    #[inline]
    pub fn finish(self) -> Unsettled<M> {
        self.note_commit();
        self.finish_reading()
    }

    /// As [`finish`](Self::finish), of an operation that has changed nothing, or has [noted](Self::note_commit) its commit: what has to be
    /// waited for is the commit that the session has noted. The session need not wait for it any more.
    #[inline]
    pub fn finish_reading(self) -> Unsettled<M> {
        let mut unsettled = self.session.unsettled.take();
        let commit = self.session.commit.take();
        if commit > 0 && unsettled.belong_to(self.mapping()).is_ok() {
            unsettled.raise_commit(commit);
        }
        self.session.ends.set(!self.session.deferred.borrow().is_empty());
        unsettled
    }

    /// Whether its updates need not be durable when they return: a structure may [put off](Self::put_off) their lines.
    #[inline(always)]
    pub fn settles_later(&self) -> bool {
        self.later && !self.session.at_once.get()
    }

    /// Runs `f` as in an ordinary operation: what it changes and reads is durable when it returns.
    pub fn at_once<R>(&self, f: impl FnOnce() -> R) -> R {
        let before = self.session.at_once.replace(true);
        let result = f();
        self.session.at_once.set(before);
        result
    }

    /// The number of the ticket that gets what is put off; unique among those that are not settled.
    #[inline]
    pub fn ticket(&self) -> u64 {
        self.session.unsettled.borrow().id()
    }

    /// Says which structure puts off what comes next. Returns whether it may: not in an ordinary operation, and not if the structure
    /// is going.
    #[inline]
    pub fn begin_put_off<S: Settles<M> + 'static>(&self, structure: &Weak<S>) -> bool {
        self.settles_later() && self.session.unsettled.borrow_mut().begin(structure)
    }

    /// Leaves the write-back of lines to whoever settles the ticket, and with it what [`Settles`] says of `words`. From the structure of
    /// [`begin_put_off`](Self::begin_put_off).
    ///
    /// # Panics
    /// If no structure has begun to put off in this operation.
    #[inline]
    pub fn put_off(&self, off: u64, lines: u64, words: [u64; 2]) {
        self.session.unsettled.borrow_mut().put_off(off, lines, words);
    }

    // ---- commits ----

    /// Notes the commit that will hold what this operation does, and returns its number: on a journaled pool it is durable once that
    /// commit is ([`Pool::settle`](crate::Pool::settle)). Zero on others. Two loads and a store.
    #[inline(always)]
    pub fn note_commit(&self) -> u64 {
        let number = self.session.mapping.gathering();
        self.session.commit.set(number);
        number
    }

    /// As [`Session::raise_commit`], inside the operation.
    #[inline(always)]
    pub fn raise_commit(&self, number: u64) {
        self.session.raise_commit(number);
    }

    // ---- offsets ----

    /// The object at `off`. Total: whatever `off` is, the result lies within the mapping's reserve and is aligned, so a
    /// corrupt offset gives a wrong object, never a stray access. One `and` and one `add`.
    #[inline(always)]
    pub fn at<T: Persistent>(&self, off: Off<T>) -> &'s T {
        const { assert!(size_of::<T>() <= MAX_OBJECT && align_of::<T>() <= 4096) };
        let within = off.get() & self.mask & !(align_of::<T>() as u64 - 1);
        // SAFETY: `within` is below the reserve's length, and a guard of `MAX_OBJECT` bytes follows the reserve; the
        // base is aligned to a page, so the object is aligned. All of it is mapped while the session is borrowed, and
        // `Persistent` types are sequences of atomics, valid for every bit pattern and shared by nature. A caller chooses offset and
        // type: every offset is right, and types are `Persistent` by an `unsafe` promise or by `persistent!`, which proves it.
        unsafe { self.base.add(within as usize).cast::<T>().as_ref() }
    }

    /// The object at `off`, or `None` for null.
    #[inline(always)]
    pub fn get<T: Persistent>(&self, off: Off<T>) -> Option<&'s T> {
        if off.is_null() { None } else { Some(self.at(off)) }
    }

    /// What resolves offsets of whole lines in one `and`, for searches that go from line to line: each instruction between two
    /// loads is waited for.
    #[inline(always)]
    pub fn lines(&self) -> LineAt<'s> {
        LineAt { base: self.base, mask: self.mask & !(LINE as u64 - 1), _mapping: PhantomData }
    }

    /// `len` objects from `off` on, which must lie within the backed bytes.
    ///
    /// # Errors
    /// [`Error::OutOfBounds`] where they do not, or where `off` is not aligned for a `T`.
    #[inline]
    pub fn slice<T: Persistent>(&self, what: &'static str, off: Off<T>, len: u64) -> Result<&'s [T]> {
        let bytes = len.checked_mul(size_of::<T>() as u64);
        let end = bytes.and_then(|b| off.get().checked_add(b));
        let backed = self.session.mapping.len();
        if end.is_none_or(|e| e > backed) || !off.get().is_multiple_of(align_of::<T>() as u64) {
            return Err(Error::OutOfBounds { what, offset: off.get(), len: backed });
        }
        // SAFETY: the range was checked to be backed and aligned, and what is backed lies in the reserve: only this crate says how much
        // it is (`Mapping::set_len`), and is checked; the rest as in `at`.
        Ok(unsafe { std::slice::from_raw_parts(self.base.add(off.get() as usize).cast::<T>().as_ptr(), len as usize) })
    }

    /// Asks the processor for the first line of the object at `off`, to write it soon: a hint that hides the wait for
    /// the line's old content. It is no access, for any medium.
    #[inline(always)]
    pub fn prefetch_write<T: Persistent>(&self, off: Off<T>) {
        arch::prefetch_write(std::ptr::from_ref(self.at(off)).cast());
    }

    /// Asks the processor for all lines of the object at `off`, to read them soon. A hint, and no access, as
    /// [`prefetch_write`](Op::prefetch_write).
    #[inline(always)]
    pub fn prefetch<T: Persistent>(&self, off: Off<T>) {
        prefetch(self.at(off));
    }

    /// The first address of the mapping: tells operations of one from those of another.
    #[inline(always)]
    pub fn base_addr(&self) -> usize {
        self.base.addr().get()
    }

    /// Makes sure that this is an operation of the mapping at `base`: what every structure asks at its border, before it follows
    /// an offset or stores one. A compare and a branch.
    ///
    /// # Errors
    /// [`Error::ForeignSession`].
    #[inline(always)]
    pub fn expect_base(&self, base: usize) -> Result<()> {
        if self.base_addr() == base { Ok(()) } else { Err(Error::ForeignSession) }
    }

    /// The offset of an object that lies in this mapping.
    ///
    /// # Panics
    /// If it does not: an object of another pool.
    #[inline]
    pub fn off_of<T: Persistent>(&self, object: &T) -> Off<T> {
        let distance = std::ptr::from_ref(object).addr().wrapping_sub(self.base.addr().get()) as u64;
        assert!(distance <= self.mask, "an object that does not lie in this mapping");
        Off::new(distance)
    }

    // ---- words ----

    /// Loads a persistent word.
    #[inline(always)]
    #[track_caller]
    pub fn load<T: Bits>(&self, word: &Word<T>, order: Ordering) -> T {
        T::from_bits(self.m.load(word.raw(), order))
    }

    /// Stores a persistent word: `Release` keeps earlier stores before it, `Relaxed` promises no order (see
    /// [`medium`](crate::medium)).
    #[inline(always)]
    #[track_caller]
    pub fn store<T: Bits>(&self, word: &Word<T>, value: T, order: Ordering) {
        self.m.store(word.raw(), value.to_bits(), order);
    }

    /// Stores words, unordered, in fewer instructions than one by one where the processor can.
    #[inline(always)]
    #[track_caller]
    pub fn store_words<const N: usize>(&self, to: &[Word; N], values: &[u64; N]) {
        self.m.store_words(to.words().try_into().expect("as many words"), values);
    }

    /// Stores a word around the cache; durable after the next fence, unordered until then.
    #[inline(always)]
    #[track_caller]
    pub fn store_nt<T: Bits>(&self, word: &Word<T>, value: T) {
        self.m.store_nt(word.raw(), value.to_bits());
    }

    /// Stores a line around the cache; as eight calls of [`store_nt`](Op::store_nt).
    #[inline(always)]
    #[track_caller]
    pub fn store_nt_line(&self, line: &[Word; 8], values: &[u64; 8]) {
        let words: &[AtomicU64; 8] = line.words().try_into().expect("eight words");
        self.m.store_nt_line(words, values);
    }

    /// Compares and exchanges a persistent word (a locked instruction: drains).
    ///
    /// # Errors
    /// The value found, where it was not `current`.
    #[inline(always)]
    #[track_caller]
    pub fn compare_exchange<T: Bits>(&self, word: &Word<T>, current: T, new: T) -> Result<T, T> {
        match self.m.compare_exchange(word.raw(), current.to_bits(), new.to_bits()) {
            Ok(old) => Ok(T::from_bits(old)),
            Err(found) => Err(T::from_bits(found)),
        }
    }

    /// Reads, modifies and writes a persistent word (a locked instruction: drains). Returns the old value.
    #[inline(always)]
    #[track_caller]
    pub fn rmw(&self, word: &Word, op: Rmw, operand: u64) -> u64 {
        self.m.rmw(word.raw(), op, operand)
    }

    /// Orders all earlier stores before all later ones (a release fence); no instruction on x86-64.
    #[inline(always)]
    #[track_caller]
    pub fn order(&self) {
        self.m.order();
    }

    // ---- bytes ----

    /// Copies bytes into words, unordered, the first byte into the lowest of the first word. The rest of the last word
    /// becomes zero; words behind it stay.
    ///
    /// # Panics
    /// If the words are fewer than the bytes need.
    #[inline(always)]
    #[track_caller]
    pub fn store_bytes(&self, to: &[Word], bytes: &[u8]) {
        assert!(bytes.len() <= size_of_val(to), "{} bytes into {} words", bytes.len(), to.len());
        let (pieces, end) = bytes.as_chunks::<16>();
        let (pairs, _) = to.words().as_chunks::<2>();
        for (pair, piece) in pairs.iter().zip(pieces) {
            let value = u128::from_le_bytes(*piece);
            self.m.store_words(pair, &[value as u64, (value >> 64) as u64]);
        }
        let (whole, rest) = end.as_chunks::<8>();
        let to = &to[pieces.len() * 2..];
        if let [chunk] = whole {
            self.m.store(to[0].raw(), u64::from_le_bytes(*chunk), Ordering::Relaxed);
        }
        if !rest.is_empty() {
            let mut last = [0; 8];
            last[..rest.len()].copy_from_slice(rest);
            self.m.store(to[whole.len()].raw(), u64::from_le_bytes(last), Ordering::Relaxed);
        }
    }

    /// Appends the first `len` bytes of words to a buffer, word by word: safe also while others write them (the caller then
    /// validates).
    ///
    /// # Panics
    /// If the words are fewer than the bytes need.
    #[inline]
    #[track_caller]
    pub fn append_bytes(&self, from: &[Word], len: usize, to: &mut Vec<u8>) {
        let from = &from.words()[..len.div_ceil(8)];
        // Whole words are written; what is too much of the last one is not counted.
        to.reserve(size_of_val(from));
        let (room, _) = to.spare_capacity_mut().as_chunks_mut::<8>();
        let (pairs, last) = from.as_chunks::<2>();
        let (rooms, rest) = room[..from.len()].as_chunks_mut::<2>();
        for (pair, room) in pairs.iter().zip(rooms) {
            let values = self.m.load_words(pair).map(u64::to_le);
            // SAFETY: both are sixteen bytes, and any will do.
            *room = unsafe { std::mem::transmute::<[u64; 2], [[MaybeUninit<u8>; 8]; 2]>(values) };
        }
        if let ([word], [room]) = (last, rest) {
            *room = self.m.load(word, Ordering::Relaxed).to_le_bytes().map(MaybeUninit::new);
        }
        // SAFETY: all words were written, and `len` is at most their bytes.
        unsafe { to.set_len(to.len() + len) };
    }

    /// Copies bytes out of words, word by word: safe also while others write them (the caller then validates).
    ///
    /// # Panics
    /// If the words are fewer than the bytes need.
    #[inline]
    #[track_caller]
    pub fn load_bytes(&self, from: &[Word], bytes: &mut [u8]) {
        assert!(bytes.len() <= size_of_val(from), "{} bytes out of {} words", bytes.len(), from.len());
        let (pieces, end) = bytes.as_chunks_mut::<16>();
        let (pairs, _) = from.words().as_chunks::<2>();
        for (pair, piece) in pairs.iter().zip(pieces.iter_mut()) {
            let [low, high] = self.m.load_words(pair);
            *piece = (u128::from(low) | u128::from(high) << 64).to_le_bytes();
        }
        let from = &from[pieces.len() * 2..];
        let (whole, rest) = end.as_chunks_mut::<8>();
        if let [chunk] = whole {
            *chunk = self.m.load(from[0].raw(), Ordering::Relaxed).to_le_bytes();
        }
        if !rest.is_empty() {
            let last = self.m.load(from[whole.len()].raw(), Ordering::Relaxed).to_le_bytes();
            rest.copy_from_slice(&last[..rest.len()]);
        }
    }

    /// Verifies an object that a checksum covers: `verify` loads it through this operation, and says whether it is sound.
    /// The answer is that of `verify`; the crash simulator takes the object as one thing, sound or not, instead of
    /// splitting on each of its words.
    #[inline(always)]
    pub fn load_checked<T: Persistent + ?Sized>(&self, object: &T, verify: impl FnOnce() -> bool) -> bool {
        self.m.checked(object.words(), verify)
    }

    // ---- persistence ----

    /// Starts writing an object back now. For a type aligned to a line the number of instructions is a constant.
    #[inline(always)]
    #[track_caller]
    pub fn write_back<T: Persistent>(&self, object: &T) {
        self.m.write_back(Lines::of(object));
    }

    /// Starts writing a range of objects back now.
    #[inline(always)]
    #[track_caller]
    pub fn write_back_slice<T: Persistent>(&self, objects: &[T]) {
        self.m.write_back(Lines::of_words(objects.words()));
    }

    /// Has an object written back just before the next [`drain`](Op::drain); lines that are deferred twice are written
    /// back once. The latest value by then is what becomes durable.
    ///
    /// # Panics
    /// If the object does not lie in this mapping.
    pub fn defer<T: Persistent + ?Sized>(&self, object: &T) {
        self.session.ends.set(true);
        let mut deferred = self.session.deferred.borrow_mut();
        for line in Lines::of_words(object.words()).iter() {
            let number = (line.addr().wrapping_sub(self.base.addr().get()) / LINE) as u64;
            assert!(number <= self.mask / LINE as u64, "an object that does not lie in this mapping");
            // Batches write neighbouring lines most of the time; `drain` removes what this look-back misses.
            if !deferred.iter().rev().take(8).any(|d| *d == number) {
                deferred.push(number);
            }
        }
    }

    /// Waits until all that this session has written back is durable. Deferred lines are not included:
    /// [`drain`](Op::drain) issues them first.
    #[inline(always)]
    #[track_caller]
    pub fn fence(&self) {
        self.m.fence();
    }

    /// Issues what was deferred, then waits until all that this session has written back is durable. One fence.
    #[inline]
    #[track_caller]
    pub fn drain(&self) {
        if !self.session.deferred.borrow().is_empty() {
            self.issue_deferred();
        }
        self.m.fence();
    }

    /// Writes an object back and waits: [`write_back`](Op::write_back), then [`fence`](Op::fence).
    #[inline(always)]
    #[track_caller]
    pub fn persist<T: Persistent>(&self, object: &T) {
        self.write_back(object);
        self.fence();
    }

    #[track_caller]
    fn issue_deferred(&self) {
        let mut deferred = self.session.deferred.borrow_mut();
        deferred.sort_unstable();
        deferred.dedup();
        for number in deferred.drain(..) {
            // SAFETY: `defer` has checked that the number is one of a line of this mapping, which is mapped while the session lives; a
            // caller cannot reach the list otherwise.
            let lines = unsafe { Lines::from_raw(self.base.as_ptr().wrapping_add(number as usize * LINE), 1) };
            self.m.write_back(lines);
        }
    }
}

impl<M: Medium> Drop for Op<'_, M> {
    #[inline(always)]
    fn drop(&mut self) {
        if self.session.ends.get() {
            self.end();
        }
        self.session.leave();
    }
}

impl<M: Medium> Op<'_, M> {
    /// What was deferred, or put off, must not be left behind by an early return.
    #[cold]
    #[inline(never)]
    fn end(&self) {
        if !self.session.deferred.borrow().is_empty() {
            self.drain();
        }
        let mut unsettled = self.session.unsettled.take();
        if unsettled.has_changes() {
            // Nobody is told what a structure says: nobody has the ticket.
            _ = unsettled.settle(self);
        }
        self.session.ends.set(false);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Counting, persistent};
    use std::time::Duration;

    persistent! {
        struct Node: align(64) { key: Word, next: Word<Off<Node>>, rest: [Word; 6] }
    }

    fn mapping() -> (Mapping<Counting<Hardware>>, Counting<Hardware>) {
        let counting = Counting::new(Hardware::for_pmem().unwrap_or(Hardware::PAGE_CACHE));
        (Mapping::heap(4096, counting), counting)
    }

    #[test]
    fn any_offset_resolves_within_the_reserve_and_aligned() {
        let (mapping, _) = mapping();
        let mut session = mapping.session().unwrap();
        let op = session.enter().unwrap();
        let base = mapping.reserve().base().addr().get();
        for off in [0, 1, 63, 64, 4095, 4096, u64::MAX, 0x8000_0000_0000_0001] {
            let at = std::ptr::from_ref(op.at(Off::<Node>::new(off))).addr();
            assert_eq!(at % 64, 0);
            assert!((base..base + 4096).contains(&at));
        }
        assert!(op.get(Off::<Node>::NULL).is_none());
        assert!(op.slice("nodes", Off::<Node>::new(64), 63).is_ok());
        for (off, len) in [(64, 64), (8, 1), (u64::MAX - 63, 2), (0, u64::MAX)] {
            let error = op.slice("nodes", Off::<Node>::new(off), len).unwrap_err();
            assert!(error.to_string().contains("nodes"), "{error}");
        }
    }

    #[test]
    fn bytes_come_back_for_every_length() {
        let (mapping, _) = mapping();
        let mut session = mapping.session().unwrap();
        let op = session.enter().unwrap();
        let words = op.slice("words", Off::<Word>::new(64), 8).unwrap();
        for len in 0..=64usize {
            let bytes: Vec<u8> = (1..=len as u8).collect();
            op.store_bytes(words, &bytes);
            let mut back = vec![0; len];
            op.load_bytes(words, &mut back);
            assert_eq!(back, bytes);
        }
    }

    #[test]
    fn bytes_are_appended_for_every_length_on_every_medium() {
        fn appended<M: Medium>(m: M) {
            let mapping = Mapping::heap(4096, m);
            let mut session = mapping.session().unwrap();
            let op = session.enter().unwrap();
            let words = op.slice("words", Off::<Word>::new(64), 8).unwrap();
            let bytes: Vec<u8> = (1..=64).collect();
            op.store_bytes(words, &bytes);
            for first in 0..3 {
                for len in 0..=64 - first * 8 {
                    for mut to in [Vec::new(), vec![0xee; 3], Vec::with_capacity(100)] {
                        let before = to.len();
                        op.append_bytes(&words[first..], len, &mut to);
                        assert_eq!(to.len(), before + len);
                        assert!(to[..before].iter().all(|byte| *byte == 0xee));
                        assert_eq!(to[before..], bytes[first * 8..][..len]);
                    }
                }
            }
        }
        appended(Hardware::PAGE_CACHE);
        appended(Counting::new(Hardware::PAGE_CACHE));
    }

    #[test]
    #[should_panic(expected = "out of range")]
    fn bytes_that_there_are_not_are_not_appended() {
        let (mapping, _) = mapping();
        let mut session = mapping.session().unwrap();
        let op = session.enter().unwrap();
        let words = op.slice("words", Off::<Word>::new(64), 8).unwrap();
        op.append_bytes(&words[..7], 57, &mut Vec::new());
    }

    #[test]
    fn deferred_lines_are_written_back_once_and_before_the_fence() {
        let (mapping, counting) = mapping();
        let mut session = mapping.session().unwrap();
        let op = session.enter().unwrap();
        for i in [1u64, 2, 1, 3, 2, 1] {
            let node = op.at(Off::<Node>::new(i * 64));
            op.store(&node.key, i, Ordering::Relaxed);
            op.defer(node);
            op.defer(&node.rest);
        }
        assert_eq!(counting.counts().write_backs, 0);
        op.drain();
        let counts = counting.counts();
        assert_eq!((counts.stores, counts.write_backs, counts.fences), (6, 3, 1));
        op.defer(op.at(Off::<Node>::new(64)));
        drop(op);
        assert_eq!(counting.counts().fences, 2, "an operation that ends drains what it deferred");
    }

    #[test]
    fn locked_instructions_between_write_back_and_fence_are_counted() {
        let (mapping, counting) = mapping();
        let mut session = mapping.session().unwrap();
        let op = session.enter().unwrap();
        let node = op.at(Off::<Node>::new(64));
        assert_eq!(op.compare_exchange(&node.key, 0, 1), Ok(0));
        assert_eq!(counting.counts().implicit_drains, 0);
        op.write_back(node);
        op.rmw(&node.key, Rmw::Add, 1);
        op.rmw(&node.key, Rmw::Add, 1);
        assert_eq!(counting.counts().implicit_drains, 1);
        op.fence();
        assert_eq!(op.load(&node.key, Ordering::Relaxed), 3);
    }

    #[test]
    fn a_quiescence_waits_for_operations_and_for_nothing_else() {
        let (mapping, _) = mapping();
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
    fn no_operation_runs_during_a_quiescence() {
        let (mapping, _) = mapping();
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
    fn slots_are_unique_and_reused() {
        let (mapping, _) = mapping();
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
