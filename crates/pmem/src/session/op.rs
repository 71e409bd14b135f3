//! [`Op`]: a scope that may read and write, what it says when it ends, and how it finds objects.

use std::marker::PhantomData;
use std::ptr::NonNull;
use std::sync::Weak;
use std::sync::atomic::Ordering;

use super::Session;
use crate::Hardware;
use crate::arch;
use crate::error::{Error, Result};
use crate::line::LINE;
use crate::mapping::{MAX_SESSIONS, Mapping};
use crate::medium::Medium;
use crate::offset::Off;
use crate::unsettled::{Settles, Unsettled};
use crate::word::{MAX_OBJECT, Persistent};

/// A short scope in which a thread may read and write persistent memory. References into the mapping live no longer.
///
/// An operation holds up a checkpoint, never another thread. Write-backs are either issued at once
/// ([`write_back`](Op::write_back)) or collected without duplicates and issued just before the
/// [`drain`](Op::drain) ([`defer`](Op::defer)): a locked instruction between a write-back and its fence waits for the
/// write-back, so batches are made of the second.
#[derive(Debug)]
pub struct Op<'s, M: Medium = Hardware> {
    pub(super) base: NonNull<u8>,
    pub(super) mask: u64,
    pub(super) m: M,
    /// Whether updates may be settled later.
    pub(super) later: bool,
    pub(super) session: &'s Session<M>,
    pub(super) _not_send: PhantomData<*mut ()>,
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

    /// Whether operations announce themselves with a light fence, so that whoever looks for them needs a heavy one.
    pub(crate) fn is_asymmetric(&self) -> bool {
        self.session.asymmetric
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

    /// Whether all that an opening finds is durable: on a journaled pool, whose file holds what its journal said, and is synced. There a
    /// recovery writes back what it has changed, and not what it has only read: a page of which all lines were written back counts as
    /// written anew, and a damaged one would be taken for sound. For structures whose operations note all that they store before they end;
    /// others ask [`Root::finds_what_is_durable`](crate::Root::finds_what_is_durable).
    #[inline]
    pub fn finds_what_is_durable(&self) -> bool {
        self.session.mapping.gathering() != 0
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
    use crate::{Word, persistent};

    persistent! {
        struct Node: align(64) { words: [Word; 8] }
    }

    #[test]
    fn any_offset_resolves_within_the_reserve_and_aligned() {
        let mapping = Mapping::heap(4096, Hardware::PAGE_CACHE);
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
}
