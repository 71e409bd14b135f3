//! What belongs to an owner where the table of space may be damaged: for repair.
//!
//! The table is one word a chunk, without a checksum, so a damaged word can say anything. Repair asks what lies in the chunks:
//!
//! | the table says of a chunk | what lies there | the chunk is |
//! |---|---|---|
//! | an extent of the owner | a head that says how long it is | as long as the head says |
//! | an extent of the owner | no head | as long as the table says |
//! | nothing, nothing known, an owner that is no index, or another use by the owner | a head | *lost*, and the owner's |
//! | an extent or a slab of another index | anything | the other index's |
//!
//! Heads do not name their owner. So lost chunks of several indices of a kind, and those that an index has left which was dropped, cannot be
//! told apart: an index asks for lost chunks only if something says that it lacks some. An index whose blocks are linked needs no heads: what
//! a sound link leads to, with a sound checksum, is the index's.

use super::layout::{Owner, Role, Use};
use super::recover::Walk;
use super::{Extent, Space};
use crate::medium::Medium;
use crate::session::Op;

/// Says how many bytes the extent has that begins at an offset, by what lies there; `None` where none begins. The second number is how many
/// bytes there are at most.
pub type LenAt<'a> = &'a mut dyn FnMut(u64, u64) -> Option<u64>;

/// What the table says of a chunk, to an owner that looks for its own.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Claim {
    /// An extent of the owner begins here, of so many chunks.
    Own(u64),
    /// A chunk of an extent of the owner, but the first.
    Rest,
    /// Nobody's, as far as the table can be believed.
    Lost,
    /// Somebody else's, or a table.
    Taken,
}

impl<M: Medium> Space<M> {
    /// The extents of an owner, ascending, by what the table says, and what `len_at` finds. `live` tells which owners exist; with `lost` the
    /// chunks that belong to nobody are looked at, too. `O(chunks)`.
    pub(crate) fn salvaged_extents(
        &self,
        op: &Op<'_, M>,
        owner: Owner,
        live: impl Fn(Owner) -> bool,
        lost: bool,
        len_at: LenAt<'_>,
    ) -> Vec<Extent> {
        self.assert_own(op);
        let claims = self.claims(op, owner, live);
        let room = self.room_behind(&claims);
        let size = self.heap.chunk;
        let mut found = Vec::new();
        let mut chunk = 0;
        while chunk < claims.len() {
            let table_says = match claims[chunk] {
                Claim::Own(chunks) => chunks,
                // Behind what a head says is shorter than the table does.
                Claim::Rest => 0,
                Claim::Lost if lost => 0,
                _ => {
                    chunk += 1;
                    continue;
                }
            };
            let (off, most) = (self.heap.chunk_off(chunk as u64), 1 + u64::from(room[chunk]));
            let chunks_at = len_at(off, most * size).map(|len| len.div_ceil(size));
            let chunks = chunks_at.filter(|chunks| (1..=most).contains(chunks)).unwrap_or(table_says);
            if chunks > 0 {
                found.push(Extent { off, len: chunks * size });
            }
            chunk += chunks.max(1) as usize;
        }
        found
    }

    /// How many chunks an extent that begins in a chunk can have beside that one. Extents end with their zone.
    fn room_behind(&self, claims: &[Claim]) -> Vec<u32> {
        let mut room = vec![0; claims.len()];
        for chunk in (1..claims.len()).rev() {
            let can_go_on = matches!(claims[chunk], Claim::Lost | Claim::Rest) && !self.heap.is_table(chunk as u64);
            room[chunk - 1] = if can_go_on { room[chunk] + 1 } else { 0 };
        }
        room
    }

    fn claims(&self, op: &Op<'_, M>, owner: Owner, live: impl Fn(Owner) -> bool) -> Vec<Claim> {
        let end = self.backed_chunks(op);
        let mut claims = vec![Claim::Taken; end as usize];
        for (chunk, what) in Walk::new(op, self.heap, end) {
            let (first, others, chunks) = match what {
                Use::Extent { owner: of, chunks, role: Role::Data } if of == owner => {
                    (Claim::Own(chunks.into()), Claim::Rest, chunks)
                }
                Use::Extent { owner: of, chunks, .. } if of == owner || !live(of) => (Claim::Lost, Claim::Lost, chunks),
                Use::Extent { chunks, .. } => (Claim::Taken, Claim::Taken, chunks),
                Use::Slab { owner: of, .. } if of == owner || !live(of) => (Claim::Lost, Claim::Lost, 1),
                Use::Slab { .. } => (Claim::Taken, Claim::Taken, 1),
                Use::Free | Use::Unknown => (Claim::Lost, Claim::Lost, 1),
            };
            let all = &mut claims[chunk as usize..(chunk + u64::from(chunks)).min(end) as usize];
            all.fill(others);
            all[0] = first;
        }
        claims
    }
}
