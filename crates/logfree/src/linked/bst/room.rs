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
//! Bounds that still shrink end a search by themselves. Branches whose router is the first key of their room leave it as it is: they
//! are watched for circles ([`Row`]), those of all such keys of a search together.
//!
//! No branch that a search meets is used again before the search ends: others wait for its operation, and it allocates
//! nothing itself.

use crate::error::{Error, Failure, Quick, Result};
use crate::layout::Link;
use crate::row::Row;

/// The keys that can lie below an edge.
#[derive(Clone, Copy)]
pub(super) struct Room {
    pub(super) first: u64,
    pub(super) last: u64,
}

impl Room {
    pub(super) const ALL: Room = Room { first: 0, last: u64::MAX };
    /// No keys.
    const EMPTY: Room = Room { first: 1, last: 0 };

    /// The room of the left and of the right side of a branch. `row` has the branches on the way there that left the room as it was.
    pub(super) fn split(self, row: &mut Row, branch: Link, router: u64) -> Result<[Room; 2], Stop> {
        let right = self.side(row, branch, router, true)?;
        // An empty room where nothing is below the router: no key is looked for there.
        let left = router.checked_sub(1).map_or(Room::EMPTY, |last| Room { last, ..self });
        Ok([left, right])
    }

    /// The room of one side of a branch, as [`split`](Self::split).
    #[inline(always)]
    pub(super) fn side(self, row: &mut Row, branch: Link, router: u64, right: bool) -> Result<Room, Stop> {
        if router <= self.first || router > self.last {
            return self.side_at_the_end(row, branch, router, right);
        }
        Ok(if right { Room { first: router, ..self } } else { Room { last: router - 1, ..self } })
    }

    /// The same of a branch whose router is the first key of the room, or not in it.
    #[cold]
    fn side_at_the_end(self, row: &mut Row, branch: Link, router: u64, right: bool) -> Result<Room, Stop> {
        if router != self.first || router > self.last {
            return Err(Stop::OutOfOrder { branch, router });
        }
        *row = row.and(branch.off())?;
        Ok(if right { self } else { Room::EMPTY })
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
    Failed(Failure),
}

impl From<Failure> for Stop {
    fn from(failure: Failure) -> Self {
        Stop::Failed(failure)
    }
}

impl From<Error> for Stop {
    fn from(error: Error) -> Self {
        Stop::Failed(error.into())
    }
}

impl From<Stop> for Error {
    /// In a tree that does not change.
    fn from(stop: Stop) -> Self {
        match stop {
            Stop::OutOfOrder { branch, router } => {
                Error::Corrupt { what: "a branch out of order", offset: branch.off(), found: router }
            }
            Stop::Failed(failure) => failure.into(),
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
    pub(super) fn begin_again(&mut self, stop: Stop) -> Quick<()> {
        match stop {
            Stop::OutOfOrder { branch, .. } if self.0 != Some(branch.off()) => {
                self.0 = Some(branch.off());
                Ok(())
            }
            stop => Err(Error::from(stop).into()),
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
        let split = |off, router| {
            let mut row = Row::NONE;
            room.split(&mut row, Link::to(off), router)
        };
        let stop = |off, router| split(off, router).map(drop).unwrap_err();
        let mut suspect = Suspect::default();
        suspect.begin_again(stop(64, 6)).unwrap();
        suspect.begin_again(stop(128, 6)).unwrap();
        assert!(is_corrupt(suspect.begin_again(stop(128, 6))));
        assert!(is_corrupt(split(64, 6)) && split(64, 7).is_ok());
    }

    /// The left room had all keys, so a walk of a damaged tree went back.
    #[test]
    fn nothing_is_left_of_the_smallest_key() {
        for room in [Room::ALL, Room { first: 7, ..Room::ALL }] {
            let mut row = Row::NONE;
            let split = room.split(&mut row, Link::to(64), room.first);
            let Ok([left, right]) = split else { panic!("a router in its room") };
            assert!(!left.meets((0, u64::MAX)) && [0, 6, 7, u64::MAX].iter().all(|key| !left.contains(*key)));
            assert!((right.first, right.last) == (room.first, room.last));
        }
    }
}
