//! An operation on a tree.

use durix_pmem::{Medium, Off, Op, Wide};

use crate::Policy;
use crate::error::Error;
use crate::layout::{Border, Interior, Node};
use crate::tree::Masstree;

/// An operation on a tree.
pub(crate) struct Context<'a, M: Medium, P: Policy> {
    pub(crate) tree: &'a Masstree<M, P>,
    pub(crate) op: &'a Op<'a, M>,
    pub(crate) epoch: u64,
    /// The round of the epoch: what was noted in another is noted again.
    pub(crate) round: u64,
    /// How to search, where words need not be loaded one by one.
    pub(crate) wide: Option<Wide>,
}

impl<M: Medium, P: Policy> Clone for Context<'_, M, P> {
    fn clone(&self) -> Self {
        *self
    }
}
impl<M: Medium, P: Policy> Copy for Context<'_, M, P> {}

/// A node without its kind.
pub(crate) type At<'a> = (Off<Node>, &'a Node);

impl<'a, M: Medium, P: Policy> Context<'a, M, P> {
    pub(crate) fn corrupt(&self, what: &'static str, off: Off<Node>, found: u64) -> Error {
        Error::Corrupt { what, offset: off.get(), found }
    }

    #[inline(always)]
    pub(crate) fn border(&self, off: Off<Node>) -> &'a Border {
        self.op.at(off.cast())
    }

    pub(crate) fn interior(&self, off: Off<Node>) -> &'a Interior {
        self.op.at(off.cast())
    }
}
