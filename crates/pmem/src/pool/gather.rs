//! What a commit of the journal holds.

use std::sync::atomic::Ordering;

use crate::journal::layout::Draft;
use crate::journal::{Notes, PAGE_LINES};
use crate::line::LINE;
use crate::medium::Medium;
use crate::offset::Off;
use crate::session::Op;
use crate::word::Word;

/// How many lines ahead of the copy the processor is asked for a line: they lie anywhere, and most are in no cache.
const AHEAD: usize = 16;

/// Copies all noted lines into the draft. Calls `f` with each of their pages. Lines behind the end of the pool are left out, and counted: a
/// damaged offset leads there, and a record that holds one could not be replayed.
pub(super) fn gather<M: Medium>(op: &Op<'_, M>, notes: &Notes, draft: &mut Draft, mut f: impl FnMut(u64)) -> u64 {
    let mut pages = Vec::new();
    notes.take(|page, mask| pages.push((page, mask)));
    pages.sort_unstable();
    let (end, mut left_out) = (op.mapping().len() / LINE as u64, 0);
    let sound = pages.partition_point(|(page, _)| (page + 1) * PAGE_LINES <= end);
    for (page, mask) in &mut pages[sound..] {
        let inside = end.saturating_sub(*page * PAGE_LINES);
        let outside = u64::MAX.checked_shl(inside as u32).unwrap_or(0) & *mask;
        left_out += u64::from(outside.count_ones());
        *mask &= !outside;
    }
    pages.retain(|(_, mask)| *mask != 0);
    let mut lines = Vec::new();
    for (page, mut mask) in pages {
        f(page);
        while mask != 0 {
            let line = page * PAGE_LINES + u64::from(mask.trailing_zeros());
            lines.push((line, Off::<[Word; 8]>::new(line * LINE as u64)));
            mask &= mask - 1;
        }
    }
    draft.clear();
    for (at, (line, off)) in lines.iter().enumerate() {
        lines.get(at + AHEAD).inspect(|(_, later)| op.prefetch(*later));
        draft.push(*line, &op.at(*off).each_ref().map(|word| op.load(word, Ordering::Relaxed)));
    }
    left_out
}
