//! Reclamation of volatile memory, and [`Pin`]: the ticket that protects memory from reuse.
//!
//! Each open structure has one [`Reclaim`], so that what it deferred has run when it is closed, before its pool is
//! unmapped. (A collector shared by the whole process runs deferred frees after that.) It is crossbeam-epoch with the
//! collector made explicit.
//!
//! An [`Op`](crate::Op) holds up checkpoints and is short. A `Pin` holds up nothing but the reuse of memory, and may
//! live as long as it likes: iterators and borrowed bytes hold one, and take an `Op` for a step where they write. A pin
//! that is forgotten leaks what was retired since; it stops no checkpoint and no thread.

use std::fmt;

use crossbeam_epoch::{Collector, Guard, LocalHandle};

/// The reclamation of one open structure.
///
/// Dropping it, once all handles and pins are gone, runs everything that was deferred.
#[derive(Clone, Default)]
pub struct Reclaim {
    collector: Collector,
}

impl Reclaim {
    /// A structure's own collector.
    pub fn new() -> Self {
        Self::default()
    }

    /// Registers a participant, to be cached by whoever pins often: a few hundred nanoseconds, once.
    pub fn handle(&self) -> Handle {
        Handle(self.collector.register())
    }

    /// Pins at once. Use a [`Handle`] where this happens often.
    pub fn pin(&self) -> Pin {
        self.handle().pin()
    }
}

impl fmt::Debug for Reclaim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Reclaim")
    }
}

/// A registered participant of a [`Reclaim`], bound to its thread.
#[derive(Debug)]
pub struct Handle(LocalHandle);

impl Handle {
    /// Pins: a few nanoseconds, one locked instruction (which waits for pending write-backs: pin before writing back).
    #[inline]
    pub fn pin(&self) -> Pin {
        Pin(self.0.pin())
    }
}

/// While it lives, nothing that was reachable when it was made is reused.
#[must_use = "what a pin protects is protected only while it lives"]
pub struct Pin(Guard);

impl Pin {
    /// Runs `f` once no pin of this structure that is alive now is left; at the latest when the structure is closed.
    pub fn defer(&self, f: impl FnOnce() + Send + 'static) {
        self.0.defer(f);
    }

    /// Hands deferred work to whoever pins next, instead of keeping it in this thread's bag.
    pub fn flush(&self) {
        self.0.flush();
    }

    /// The guard of crossbeam-epoch, for its `Atomic` pointers.
    pub fn guard(&self) -> &Guard {
        &self.0
    }
}

impl fmt::Debug for Pin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Pin")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Hardware, Mapping};
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::time::Duration;

    #[test]
    fn what_is_deferred_waits_for_pins_and_runs_at_the_latest_on_close() {
        let ran = Arc::new(AtomicUsize::new(0));
        let reclaim = Reclaim::new();
        let reader = reclaim.pin();
        let writer = reclaim.pin();
        let counter = Arc::clone(&ran);
        writer.defer(move || _ = counter.fetch_add(1, Ordering::Relaxed));
        writer.flush();
        drop(writer);
        for _ in 0..1000 {
            reclaim.pin().flush();
        }
        assert_eq!(ran.load(Ordering::Relaxed), 0, "the reader is still there");
        drop(reader);
        drop(reclaim);
        assert_eq!(ran.load(Ordering::Relaxed), 1);
    }

    #[test]
    fn neither_a_live_nor_a_forgotten_pin_stops_a_checkpoint_or_a_writer() {
        let mapping = Mapping::heap(4096, Hardware::PAGE_CACHE);
        let reclaim = Reclaim::new();
        let live = reclaim.pin();
        std::mem::forget(reclaim.pin());
        let mut session = mapping.session().unwrap();
        mapping.quiesce(&mut session, Duration::from_secs(5), |_| ()).expect("a checkpoint goes on");
        std::thread::scope(|s| {
            s.spawn(|| {
                let mut session = mapping.session().unwrap();
                let op = session.enter().expect("other threads' writes go on");
                op.store(op.at(crate::Off::<crate::Word>::new(64)), 7, Ordering::Release);
            });
        });
        let op = session.enter().unwrap();
        assert_eq!(op.load(op.at(crate::Off::<crate::Word>::new(64)), Ordering::Acquire), 7);
        drop(live);
    }
}
