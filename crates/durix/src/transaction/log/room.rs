//! Room that recovery needs to make the changes of a record again.
//!
//! Before a record is written, its lane holds back free chunks of the pool, as many as replay can need. They are held back in volatile
//! memory: nobody else gets them as long as the process lives, and a crash makes them free. Recovery comes before every other user, so
//! it finds them. A lane keeps what it holds back for its next records, since its last record may be replayed until the next one
//! has taken its place. So a commit reserves nothing as a rule.
//!
//! | a crash | leaves | recovery |
//! |---|---|---|
//! | before the record is durable | what is held back, free | nothing to do |
//! | between the record and the last change, or while a change that the pool has refused is undone | the record, any of the changes, and what is held back, free | makes the changes again; what they need is free, or in extents that the map has got for them |
//! | after the retirement, which is not durable, and when others have filled the pool | the record, all changes, what is held back, free | makes the changes again: new copies need room, too |
//! | in recovery | the same, where some chunks are the map's by now | finds their room in the map |
//! | after the retirement is durable | nothing | nothing to do |
//!
//! Changes are made at most twice at a time, by the commit and by replay, each in its own copy: what an interrupted replay has left
//! is free when the map is opened again.

use durix_pmem::{Allocation, Lock, Medium, Op, Owner, Space};

use crate::Result;

/// Bytes of a map's own nodes for one change: a split node of a tree, and what leads to it.
const NODES: u64 = 512;
/// Copies of a change: the commit's, and that of replay.
const COPIES: u64 = 2;
/// Chunks that a map takes whatever the change is: of nodes, of inner nodes, of tables of pages, of one slab.
const FIXED_CHUNKS: u64 = 4;
/// The longest piece that a map takes at once for a log of its own, and the part of the pool that it is at most.
const LARGEST_LOG: u64 = 256 << 10;
const LOGS: u64 = 64;
/// Words of a set of classes: eight for each power of two, from 8 bytes to far above what a record can hold.
const CLASSES: usize = 256 / u64::BITS as usize;

/// What replay of a record can need.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Need {
    maps: u64,
    bytes: u64,
    longest: u64,
    /// The size of the change before, and the classes of all, a bit each.
    last: u64,
    classes: [u64; CLASSES],
    inserts: bool,
}

impl Need {
    /// Another map is changed; its changes follow.
    #[inline]
    pub(crate) fn map(&mut self) {
        self.maps += 1;
        self.last = u64::MAX;
    }

    /// A change of that many bytes of key and value, or of the key of a removal.
    #[inline]
    pub(crate) fn change(&mut self, bytes: u64, is_removal: bool) {
        self.inserts |= !is_removal;
        self.bytes += COPIES * (bytes + bytes / 4 + NODES);
        if bytes != self.last {
            self.last = bytes;
            self.longest = self.longest.max(bytes);
            let class = class(bytes);
            self.classes[class / 64 % CLASSES] |= 1 << (class % 64);
        }
    }

    /// Whether there are removals only. In a full pool they are made nevertheless, or no transaction could make room.
    pub(super) fn only_removes(&self) -> bool {
        !self.inserts
    }

    /// Bytes of free chunks, and of the longest run of them that is needed.
    pub(crate) fn chunks(&self, chunk: u64, pool: u64) -> (u64, u64) {
        let log = (pool / LOGS).min(LARGEST_LOG).next_multiple_of(chunk);
        let fixed = (FIXED_CHUNKS * chunk).max(log + 2 * chunk);
        let classes: u64 = self.classes.iter().map(|bits| u64::from(bits.count_ones())).sum();
        // A class of one map is one of another, too.
        let bytes = self.maps * (fixed + classes * chunk) + self.bytes;
        let longest = (self.longest + self.longest / 4 + NODES).max(log);
        (bytes.next_multiple_of(chunk), longest.next_multiple_of(chunk))
    }
}

/// The class of a size: its power of two and its next three bits.
fn class(bytes: u64) -> usize {
    let bytes = bytes.max(8);
    let power = bytes.ilog2();
    8 * (power as usize - 3) + (bytes >> (power - 3)) as usize % 8
}

/// Free chunks that are held back.
#[derive(Debug, Default)]
pub(crate) struct Room {
    pieces: Vec<Allocation>,
    bytes: u64,
    longest: u64,
}

impl Room {
    /// Bytes of all pieces and of the longest one.
    pub(super) fn held(&self) -> (u64, u64) {
        (self.bytes, self.longest)
    }

    /// Gives all of it back.
    pub(crate) fn give_back<M: Medium>(&mut self, op: &Op<'_, M>, space: &Space<M>) {
        self.pieces.drain(..).for_each(|piece| space.release(op, piece));
        *self = Room::default();
    }

    /// Makes it enough. Where it is not, it is empty.
    ///
    /// # Errors
    /// [`Error::Pool`](crate::Error::Pool) where the pool is full.
    #[cold]
    pub(super) fn fill<M: Medium>(
        &mut self,
        op: &Op<'_, M>,
        space: &Space<M>,
        owner: Owner,
        (bytes, longest): (u64, u64),
    ) -> Result<()> {
        self.give_back(op, space);
        let mut piece = bytes;
        while self.bytes < bytes {
            // The first piece is long enough for the longest run; the others may be of a chunk each.
            let least = if self.pieces.is_empty() { longest } else { space.chunk() };
            let wanted = piece.min(bytes - self.bytes).max(least);
            match space.reserve_extent(op, owner, wanted) {
                Ok(reserved) => {
                    let kept = reserved.keep();
                    self.bytes += kept.len();
                    self.longest = self.longest.max(kept.len());
                    self.pieces.push(kept);
                }
                // In one piece there is not so much, in several there may be.
                Err(error) if error.is_no_room() && wanted > least => piece = wanted / 2,
                Err(error) => {
                    self.give_back(op, space);
                    return Err(error.into());
                }
            }
        }
        Ok(())
    }
}

/// What commits without records hold back, to put old values back where a map refuses a change. As many as were under way at the same
/// time.
#[derive(Debug)]
pub(crate) struct Rooms(Lock<Vec<Room>>);

impl Rooms {
    pub(crate) fn new() -> Self {
        Rooms(Lock::new(Vec::new()))
    }

    /// Room for one commit: as a rule that of one before.
    ///
    /// # Errors
    /// [`Error::Pool`](crate::Error::Pool) where the pool is full.
    pub(crate) fn take<M: Medium>(
        &self,
        op: &Op<'_, M>,
        space: &Space<M>,
        owner: Owner,
        need: (u64, u64),
    ) -> Result<Room> {
        let mut rooms = self.0.lock(op.medium());
        let enough = rooms.iter().position(|room| room.bytes >= need.0 && room.longest >= need.1);
        if let Some(at) = enough {
            return Ok(rooms.swap_remove(at));
        }
        let mut room = rooms.pop().unwrap_or_default();
        drop(rooms);
        room.fill(op, space, owner, need)?;
        Ok(room)
    }

    /// Keeps room for the next commit.
    pub(crate) fn keep<M: Medium>(&self, op: &Op<'_, M>, room: Room) {
        if room.bytes > 0 {
            self.0.lock(op.medium()).push(room);
        }
    }

    /// Whether some is held back.
    pub(crate) fn any<M: Medium>(&self, m: M) -> bool {
        !self.0.lock(m).is_empty()
    }

    /// Gives all of it back that no commit has.
    pub(crate) fn give_back<M: Medium>(&self, op: &Op<'_, M>, space: &Space<M>) {
        self.0.lock(op.medium()).drain(..).for_each(|mut room| room.give_back(op, space));
    }
}
