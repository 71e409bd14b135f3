//! What an index has to know of each map beyond [`WordMap`]: whether it is an ordered index, and what its lines are when it is damaged.

use durix_index::OrderedIndex;
use durix_pmem::Medium;

use crate::leftovers::Lines;
use crate::linked::{bst::BstCore, hash::HashCore, list::ListCore, skip::SkipCore};
use crate::map::{OrderedWordMap, WordMap};
use crate::records::Blobs;
use crate::soft::{SoftHashCore, SoftOrderedCore};
use crate::words::Words;

/// A map that can be an index.
pub trait Indexed<M: Medium>: WordMap<M> {
    /// [`Ordered`] or [`Unordered`].
    type Order: Order<Self, M>;
    /// What its lines are.
    const LINES: Lines;
}

impl<M: Medium> Indexed<M> for ListCore<M> {
    type Order = Ordered;
    const LINES: Lines = Lines::List;
}

impl<M: Medium> Indexed<M> for SkipCore<M> {
    type Order = Ordered;
    const LINES: Lines = Lines::Skip;
}

impl<M: Medium> Indexed<M> for HashCore<M> {
    type Order = Unordered;
    const LINES: Lines = Lines::Hash;
}

impl<M: Medium> Indexed<M> for BstCore<M> {
    type Order = Ordered;
    const LINES: Lines = Lines::Tree;
}

impl<M: Medium> Indexed<M> for SoftHashCore<M> {
    type Order = Unordered;
    const LINES: Lines = Lines::Members;
}

impl<M: Medium, const N: usize> Indexed<M> for SoftOrderedCore<M, N> {
    type Order = Ordered;
    const LINES: Lines = Lines::Members;
}

/// Whether a map keeps the order of keys. The compiler asks an [`Ordered`] map for [`OrderedWordMap`].
pub trait Order<S, M: Medium> {
    /// A map of words as one that keeps the order of keys, if it does.
    fn of_words(map: &Words<S, M>) -> Option<&dyn OrderedIndex<M>>;

    /// As `of_words`, of a map with records.
    fn of_blobs(map: &Blobs<S, M>) -> Option<&dyn OrderedIndex<M>>;
}

/// The order of keys is kept.
pub struct Ordered;

/// Keys have no order.
pub struct Unordered;

impl<S: Indexed<M> + OrderedWordMap<M>, M: Medium> Order<S, M> for Ordered {
    fn of_words(map: &Words<S, M>) -> Option<&dyn OrderedIndex<M>> {
        Some(map)
    }

    fn of_blobs(map: &Blobs<S, M>) -> Option<&dyn OrderedIndex<M>> {
        Some(map)
    }
}

impl<S, M: Medium> Order<S, M> for Unordered {
    fn of_words(_: &Words<S, M>) -> Option<&dyn OrderedIndex<M>> {
        None
    }

    fn of_blobs(_: &Blobs<S, M>) -> Option<&dyn OrderedIndex<M>> {
        None
    }
}
