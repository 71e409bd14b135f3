//! The published bug patterns that no dropped call expresses, planted by hand: each in a small structure whose correct
//! variant stands beside it, and must give no alarm under the same operations.

mod blind;
mod blind_sets;
mod blind_space;
mod blind_threads;
mod directory;
mod heap;
mod journal;
mod looks;
mod pattern;
mod shared;
mod tree;

use pattern::Pattern;

/// All patterns.
pub fn patterns() -> Vec<Pattern> {
    let mut all = directory::patterns();
    all.extend(tree::patterns());
    all.extend(journal::patterns());
    all.extend(heap::patterns());
    all.extend(shared::patterns());
    all.extend(looks::patterns());
    all.extend(blind::patterns());
    all.extend(blind_sets::patterns());
    all.extend(blind_threads::patterns());
    all.extend(blind_space::patterns());
    all
}
