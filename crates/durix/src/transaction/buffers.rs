//! The memory of a transaction. A thread keeps that of its last one for the next, so that small transactions allocate nothing.

use std::cell::Cell;

use super::touched::Touched;

thread_local! {
    static SPARE: Cell<Option<Box<Buffers>>> = const { Cell::new(None) };
}

/// Maps, and bytes of a buffer, whose memory is kept at most.
const KEPT_PARTS: usize = 16;
const KEPT_BYTES: usize = 64 << 10;

/// What a transaction needs memory for.
#[derive(Debug, Default)]
pub(super) struct Buffers {
    /// Of the maps that the transaction has touched, in that order.
    pub(super) parts: Vec<Touched>,
    /// Empty ones.
    free: Vec<Touched>,
    /// For the bytes of keys and values.
    pub(super) key: Vec<u8>,
    pub(super) value: Vec<u8>,
    /// For the record.
    pub(super) draft: Vec<u8>,
}

impl Buffers {
    pub(super) fn new() -> Box<Buffers> {
        SPARE.try_with(Cell::take).ok().flatten().unwrap_or_default()
    }

    /// Begins with another map.
    pub(super) fn add_part(&mut self) {
        let part = self.free.pop().unwrap_or_default();
        self.parts.push(part);
    }

    /// Keeps the memory for the thread's next transaction.
    pub(super) fn give_back(mut self: Box<Self>) {
        while let Some(mut part) = self.parts.pop() {
            if part.clear() && self.free.len() < KEPT_PARTS {
                self.free.push(part);
            }
        }
        for buffer in [&mut self.key, &mut self.value, &mut self.draft] {
            if buffer.capacity() > KEPT_BYTES {
                *buffer = Vec::new();
            }
        }
        // At the end of a thread it is freed.
        let _ = SPARE.try_with(|spare| spare.set(Some(self)));
    }
}
