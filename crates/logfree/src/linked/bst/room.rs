//! The keys that can lie below an edge: what tells a damaged tree from one that changes.
//!
//! A search keeps the bounds that the branches on its way have set. In a tree at rest every branch has its router within
//! them. In a tree that changes a bound can be out of date: others splice the branch out that has set it, and insert below
//! what is left a key that the branch had kept away. So a branch **out of order** does not yet say that the file is damaged;
//! the search begins again from the head. It says so if a search that began *after* that finds the same branch out of order.
//!
//! Why that is exact. A branch is inserted in the place of a leaf or of nothing, and splicing only brings branches nearer to
//! the head: along any way down, at any time, each branch is **younger** than the one before it. Let `B` be the branch, and
//! `P` the one that set the bound, in the second search. `P` was in the tree while that search ran, since the search began at
//! the head; `B` was inserted earlier, before the first search met it, and `P` before `B`. So `P` was in the tree when `B`
//! was inserted below it, and had sent `B` to its proper side.
//!
//! Bounds that still shrink end a search by themselves. Branches with one router in a row are watched for circles ([`Row`]).
//!
//! No branch that a search meets is used again before the search ends: others wait for its operation, and it allocates
//! nothing itself.

use crate::error::{Error, Result};
use crate::layout::Link;
use crate::row::Row;

/// The keys that can lie below an edge.
#[derive(Clone, Copy)]
pub(super) struct Room {
    pub(super) first: u64,
    pub(super) last: u64,
    row: Row,
}

impl Room {
    pub(super) const ALL: Room = Room { first: 0, last: u64::MAX, row: Row::NONE };
    /// No keys.
    const EMPTY: Room = Room { first: 1, last: 0, row: Row::NONE };

    /// The room of the left and of the right side of a branch.
    #[inline(always)]
    pub(super) fn split(self, branch: Link, router: u64) -> Result<[Room; 2], Stop> {
        if router < self.first || router > self.last {
            return Err(Stop::OutOfOrder { branch, router });
        }
        let row = if router == self.first { self.row.and(branch.off())? } else { Row::NONE };
        // An empty room where nothing is below the router: no key is looked for there.
        let left = router.checked_sub(1).map_or(Room::EMPTY, |last| Room { last, row: Row::NONE, ..self });
        Ok([left, Room { first: router, row, ..self }])
    }

    pub(super) fn contains(self, key: u64) -> bool {
        (self.first..=self.last).contains(&key)
    }

    pub(super) fn meets(self, (from, to): (u64, u64)) -> bool {
        self.first <= to && from <= self.last && self.first <= self.last
    }
}

/// Why a search or a walk has stopped.
pub(super) enum Stop {
    /// A branch whose router is not in its room.
    OutOfOrder {
        branch: Link,
        router: u64,
    },
    Failed(Error),
}

impl From<Error> for Stop {
    fn from(error: Error) -> Self {
        Stop::Failed(error)
    }
}

impl From<Stop> for Error {
    /// In a tree that does not change.
    fn from(stop: Stop) -> Self {
        match stop {
            Stop::OutOfOrder { branch, router } => {
                Error::Corrupt { what: "a branch out of order", offset: branch.off(), found: router }
            }
            Stop::Failed(error) => error,
        }
    }
}

/// The branch that an operation has last found out of order.
#[derive(Default)]
pub(super) struct Suspect(Option<u64>);

impl Suspect {
    /// Whether the operation may begin again from the head, once it has stopped.
    ///
    /// # Errors
    /// What has stopped it, unless that is a branch that was not suspect before.
    #[cold]
    pub(super) fn begin_again(&mut self, stop: Stop) -> Result<()> {
        match stop {
            Stop::OutOfOrder { branch, .. } if self.0 != Some(branch.off()) => {
                self.0 = Some(branch.off());
                Ok(())
            }
            stop => Err(stop.into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn is_corrupt<T>(result: Result<T, impl Into<Error>>) -> bool {
        matches!(result.map_err(Into::into), Err(Error::Corrupt { .. }))
    }

    #[test]
    fn a_branch_is_corrupt_when_it_is_out_of_order_twice() {
        let room = Room { first: 7, ..Room::ALL };
        let stop = |off, router| room.split(Link::to(off), router).map(drop).unwrap_err();
        let mut suspect = Suspect::default();
        suspect.begin_again(stop(64, 6)).unwrap();
        suspect.begin_again(stop(128, 6)).unwrap();
        assert!(is_corrupt(suspect.begin_again(stop(128, 6))));
        assert!(is_corrupt(room.split(Link::to(64), 6)) && room.split(Link::to(64), 7).is_ok());
    }

    /// The left room had all keys, so a walk of a damaged tree went back.
    #[test]
    fn nothing_is_left_of_the_smallest_key() {
        for room in [Room::ALL, Room { first: 7, ..Room::ALL }] {
            let Ok([left, right]) = room.split(Link::to(64), room.first) else { panic!("a router in its room") };
            assert!(!left.meets((0, u64::MAX)) && [0, 6, 7, u64::MAX].iter().all(|key| !left.contains(*key)));
            assert!((right.first, right.last) == (room.first, room.last));
        }
    }
}
