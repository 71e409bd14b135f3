//! Runs: each opening of a skip list has a number (LF-U7; `tower.rs` says what for).

use std::sync::atomic::Ordering::Relaxed;

use durix_pmem::{Medium, Op, Root};

use crate::layout::{ROOT_RUN, RUNS};

/// Begins a run; returns its number, which no node carries yet. A number that is lost in a crash and comes again costs time
/// only: nodes of the first run with it are taken for rising ones in the second.
pub(super) fn begin<M: Medium>(op: &Op<'_, M>, root: &Root<M>) -> u64 {
    let word = &root.words(op)[ROOT_RUN];
    let run = op.load(word, Relaxed).wrapping_add(1) & RUNS;
    op.store(word, run, Relaxed);
    run
}

/// Writes the number of the run back.
pub(super) fn write_back<M: Medium>(op: &Op<'_, M>, root: &Root<M>) {
    // PERSIST LF-U7: flush, with the fence of LF-N9.
    op.write_back(&root.words(op)[ROOT_RUN]);
}
