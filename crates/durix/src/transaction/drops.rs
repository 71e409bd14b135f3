//! Drops of indices, and snapshots that are opened beside them: a snapshot must not list an index that goes.
//!
//! A drop counts itself as begun, then looks for an open snapshot, and is refused where there is one. Whoever opens a snapshot looks how many
//! drops there were, before it lists the indices, and again when the snapshot counts as open. Both store before they look at the other's word, in
//! the one order of all sequentially consistent accesses. Either the drop's count comes first; then the opening finds it, and begins anew.
//! Or the snapshot's count comes first; then the drop finds it, and is refused.

use std::sync::atomic::{AtomicU64, Ordering, fence};
use std::time::{Duration, Instant};

use super::turns::PATIENCE;

/// Counts drops.
#[derive(Debug, Default)]
pub(crate) struct Drops {
    begun: AtomicU64,
    /// Also those that were refused.
    ended: AtomicU64,
}

impl Drops {
    /// Before a drop looks for snapshots.
    pub(super) fn begin(&self) {
        self.begun.fetch_add(1, Ordering::SeqCst);
        fence(Ordering::SeqCst);
    }

    pub(super) fn end(&self) {
        self.ended.fetch_add(1, Ordering::SeqCst);
    }

    /// Waits until no drop is under way. Returns how many there were; `None` if one takes too long.
    pub(crate) fn wait(&self) -> Option<u64> {
        let since = Instant::now();
        loop {
            // Not the other way round: one that begins and ends in between would hide one that goes on.
            let ended = self.ended.load(Ordering::SeqCst);
            if self.begun.load(Ordering::SeqCst) == ended {
                return Some(ended);
            }
            if since.elapsed() > PATIENCE {
                return None;
            }
            std::thread::sleep(Duration::from_micros(50));
        }
    }

    /// Whether none has begun since there were `count`. After the snapshot counts as open.
    pub(crate) fn none_since(&self, count: u64) -> bool {
        fence(Ordering::SeqCst);
        self.begun.load(Ordering::SeqCst) == count
    }
}
