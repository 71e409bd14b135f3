//! Redo logging for the comparators: the paper's protocol, and the best we can build. Each thread has a log of its own.
//!
//! | protocol | order | fences an update |
//! |---|---|---|
//! | the paper's | record, new node < fence < apply < fence < truncate < fence | 3 |
//! | ours, the best we can build | record in sealed lines (CSO), new node < fence; apply; home lines are written back when the log wraps | 1, and one for each [`LINES`] lines |
//!
//! To its advantage the paper's protocol has one fence for a record, not two: what a line holds and its seal reach memory in
//! order, so the seal needs no fence of its own.
//!
//! Recovery (which no figure needs) applies the records of the log's last pass in their order. A node is initialised without
//! the log, so it must not be used again in the pass in which it was freed: see [`Nodes`](super::nodes::Nodes). The second
//! protocol is for one thread: with several, their records would have to be ordered among each other.

use std::sync::atomic::Ordering::{Relaxed, Release};

use durix_pmem::{Medium, Off, Op, Word, persistent};

persistent! {
    /// A line of a record: up to three words and their new values.
    pub struct Line: align(64) {
        writes: [Word; 6],
        /// Number of the update, words in all, number of the line.
        seal: Word,
        unused: Word,
    }
}

/// Lines of a log.
pub const LINES: u64 = 64;
/// Bytes of a log.
pub const LOG_BYTES: u64 = LINES * 64;
/// Words that fit a line.
const A_LINE: usize = 3;

/// A thread's log; with `CSO`, the one that costs one fence.
#[derive(Debug)]
pub struct Log<const CSO: bool> {
    first: u64,
    /// The next line.
    line: u64,
    sequence: u64,
    /// Words that were applied since the log wrapped.
    applied: Vec<Off<Word>>,
}

impl<const CSO: bool> Log<CSO> {
    /// A log in [`LOG_BYTES`] zeroed bytes from `first` on.
    pub fn new(first: u64) -> Self {
        Log { first, line: 0, sequence: 0, applied: Vec::new() }
    }

    /// Makes some words durable together, and with them what was written back before.
    #[inline(always)]
    pub fn update<M: Medium>(&mut self, op: &Op<'_, M>, writes: &[(&Word, u64)]) {
        let lines = writes.len().div_ceil(A_LINE) as u64;
        if CSO && self.line + lines > LINES {
            self.wrap(op);
        }
        let first = if CSO { self.line } else { 0 };
        self.line += lines;
        self.record(op, first, writes);
        // PERSIST record and node<apply: flush+fence
        op.fence();
        for (word, value) in writes {
            op.store(*word, *value, Release);
        }
        if CSO {
            self.applied.extend(writes.iter().map(|(word, _)| op.off_of(*word)));
            return;
        }
        for (word, _) in writes {
            op.write_back(*word);
        }
        // PERSIST apply<truncate: flush+fence
        op.fence();
        // Without its first line a record is none.
        let line = op.at(Off::<Line>::new(self.first));
        op.store(&line.seal, 0, Release);
        op.write_back(line);
        // PERSIST truncate<next record: flush+fence
        op.fence();
    }

    #[inline(always)]
    fn record<M: Medium>(&mut self, op: &Op<'_, M>, first: u64, writes: &[(&Word, u64)]) {
        self.sequence += 1;
        for (number, part) in writes.chunks(A_LINE).enumerate() {
            let line = op.at(Off::<Line>::new(self.first + (first + number as u64) * 64));
            for (i, (word, value)) in part.iter().enumerate() {
                op.store(&line.writes[2 * i], op.off_of(*word).get(), Relaxed);
                op.store(&line.writes[2 * i + 1], *value, Relaxed);
            }
            // PERSIST line<seal: same line
            op.store(&line.seal, self.sequence << 16 | (writes.len() << 8 | number) as u64, Release);
            op.write_back(line);
        }
    }

    /// Writes back what was applied, before its records are overwritten.
    #[cold]
    fn wrap<M: Medium>(&mut self, op: &Op<'_, M>) {
        for word in self.applied.drain(..) {
            op.defer(op.at(word));
        }
        op.drain();
        self.line = 0;
    }
}
