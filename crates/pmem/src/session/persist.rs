//! Write-backs and fences of an [`Op`].

use super::Op;
use crate::line::{LINE, Lines};
use crate::medium::Medium;
use crate::word::Persistent;

impl<M: Medium> Op<'_, M> {
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

#[cfg(test)]
mod tests {
    use crate::{Counting, Hardware, Mapping, Off, Rmw, Word, persistent};
    use std::sync::atomic::Ordering;

    persistent! {
        struct Node: align(64) { key: Word, next: Word<Off<Node>>, rest: [Word; 6] }
    }

    fn mapping() -> (Mapping<Counting<Hardware>>, Counting<Hardware>) {
        let counting = Counting::new(Hardware::for_pmem().unwrap_or(Hardware::PAGE_CACHE));
        (Mapping::heap(4096, counting), counting)
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
}
