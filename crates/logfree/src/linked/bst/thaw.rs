//! What recovery does with branches that were about to be spliced (LF-B4 of `tree.rs`).

use std::sync::atomic::Ordering::Relaxed;

use durix_pmem::{Medium, Op};

use crate::layout::Branch;

/// Takes the freezing marks off the edges of a branch. The fence is the caller's.
pub(super) fn thaw<M: Medium>(op: &Op<'_, M>, branch: &Branch) {
    for word in &branch.edges {
        let seen = op.load(word, Relaxed);
        if seen.is_deleted() {
            op.store(word, seen.thawed(), Relaxed);
            // PERSIST LF-B4: flush, with the caller's fence.
            op.write_back(word);
        }
    }
}
