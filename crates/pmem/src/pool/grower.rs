//! The state of growth, and how large the next piece is: see [`growth`](super::growth).

use std::time::Duration;

use crate::medium::Medium;
use crate::session::Session;

/// Growth in one go is half of the size, and at most this many bytes more than is needed. As much the service keeps free.
pub(super) const MAX_STEP: u64 = 64 << 20;
/// The first piece, in bytes.
const FIRST_PIECE: u64 = 1 << 20;
/// A piece that took longer to allocate and to touch is followed by one of half its size; one that took a quarter of it, by a larger one.
pub(super) const PIECE_TIME: Duration = Duration::from_micros(500);

/// The state of whoever makes the pool grow.
pub(super) struct Grower<M: Medium> {
    /// Its own, because the thread that needs space is inside an operation of another session, and because sessions may
    /// run out.
    pub(super) session: Session<M>,
    /// Bytes of the file that are allocated, if more than are published.
    pub(super) allocated: u64,
    /// Bytes of the file whose allocation was synced, if the size in the header may be more than what is published.
    pub(super) synced: u64,
    /// Bytes of the next piece.
    pub(super) piece: u64,
    /// Whether the last publication was slow.
    pub(super) slow: bool,
}

impl<M: Medium> Grower<M> {
    pub(super) fn new(session: Session<M>) -> Self {
        Grower { session, allocated: 0, synced: 0, piece: FIRST_PIECE, slow: false }
    }

    /// Makes the next piece as large as can be allocated in the time there is, given how long `bytes` have taken.
    pub(super) fn learn(&mut self, bytes: u64, took: Duration, chunk: u64) {
        if took > PIECE_TIME {
            self.piece = (bytes / 2).clamp(chunk, MAX_STEP);
        } else if took < PIECE_TIME / 4 && bytes >= self.piece {
            self.piece = (self.piece * 2).min(MAX_STEP);
        }
    }
}
