//! Allocating and freeing as logical records: for logs of other crates, which make them part of their transactions.
//!
//! A log carries *what* is allocated or freed (a [`Change`] of an [`Allocation`], two words), never an image of a bitmap
//! word: the bits next to it belong to others. Applying a change is one store, idempotent, and done by offset alone; so it
//! can be redone, and undone by applying its [inverse](Change::inverse), any number of times.
//!
//! The order in which a transaction uses it:
//!
//! 1. [`Space::reserve_block`] or [`Space::reserve_extent`]: volatile. A transaction that ends otherwise drops the
//!    reservation. The new object is filled.
//! 2. The record of [`Reserved::allocation`], or of [`Space::allocated`] for what is freed, becomes durable in the log.
//! 3. [`Space::apply`] stores the change, and says which word has to be durable before the record is trimmed.
//! 4. What was freed is available again only when its owner calls [`Space::release`]: after the change is durable and no
//!    record that names the space can be replayed any more, a record of a write into it included.
//!
//! # Persist order
//! | edge | kept by | a crash before it leaves | recovery |
//! |---|---|---|---|
//! | LA1 a slab's descriptor < a record that names one of its blocks | flush+fence, SP-S3 | no such record | nothing to do |
//! | LA2 the record < the word that `apply` stores | the log's fence | neither | nothing to do |
//! | LA3 that word < the record is trimmed | the log's fence | the record, the word old or new | applies it again |
//! | LA4 no record names the space any more < it is reserved again | the log, before `release` | the space, free and unused | nothing to do |

use std::sync::atomic::Ordering;

use super::layout::{Descriptor, Owner, Role, Use};
use super::{Place, Reserved, Space, State};
use crate::error::{Error, Result};
use crate::line::LINE;
use crate::medium::Medium;
use crate::session::Op;
use crate::word::{Bits, Word};

/// A block or an extent of an owner.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Allocation {
    off: u64,
    len: u64,
    owner: Owner,
}

/// What a record says of an allocation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Change {
    /// It is allocated.
    Allocate(Allocation),
    /// It is freed.
    Free(Allocation),
}

impl Allocation {
    /// Offset of its first byte.
    pub fn off(self) -> u64 {
        self.off
    }

    /// Bytes.
    #[expect(clippy::len_without_is_empty, reason = "an allocation is never empty")]
    pub fn len(self) -> u64 {
        self.len
    }

    /// Whom it belongs to.
    pub fn owner(self) -> Owner {
        self.owner
    }

    /// As two words, for a log.
    pub fn to_words(self) -> [u64; 2] {
        [self.off, self.len << 16 | u64::from(self.owner.0)]
    }

    /// From its two words; total. What they say is checked when it is applied.
    pub fn from_words([off, rest]: [u64; 2]) -> Self {
        Allocation { off, len: rest >> 16, owner: Owner(rest as u16) }
    }
}

impl Change {
    /// The allocation.
    pub fn allocation(self) -> Allocation {
        match self {
            Change::Allocate(allocation) | Change::Free(allocation) => allocation,
        }
    }

    /// What undoes it.
    #[must_use]
    pub fn inverse(self) -> Change {
        match self {
            Change::Allocate(allocation) => Change::Free(allocation),
            Change::Free(allocation) => Change::Allocate(allocation),
        }
    }
}

impl<M: Medium> Reserved<'_, M> {
    /// What a record says of it.
    pub fn allocation(&self) -> Allocation {
        let owner = match self.place {
            Place::Extent { owner, .. } | Place::Block { owner, .. } => owner,
        };
        Allocation { off: self.off(), len: self.len(), owner }
    }

    /// Ends the reservation without giving the space back: a log has the record and will [apply](Space::apply) it, or
    /// [release](Space::release) the space.
    pub fn keep(mut self) -> Allocation {
        self.given = true;
        self.allocation()
    }
}

impl<M: Medium> Space<M> {
    /// What is allocated at `off`, for the record that frees it.
    ///
    /// # Errors
    /// [`Error::NotAllocated`] if no allocated extent or block starts at `off`.
    pub fn allocated(&self, op: &Op<'_, M>, off: u64) -> Result<Allocation> {
        let found = Reserved { space: self, place: self.allocated_at(op, off)?, m: op.medium(), given: true };
        Ok(found.allocation())
    }

    /// Applies a change: redo, or undo by its inverse. Idempotent: one store, of which nothing is written back. Returns the
    /// word that has to be durable before the change's record is trimmed. What is freed is not available before
    /// [`release`](Self::release).
    ///
    /// # Errors
    /// [`Error::NotAllocated`]: at that place something else is allocated, or nothing can be. Nothing was changed.
    pub fn apply<'s>(&self, op: &Op<'s, M>, change: Change) -> Result<&'s Word> {
        let mut state = self.state.lock(op.medium());
        let place = self.place_of(op, &state, change.allocation())?;
        let allocated = matches!(change, Change::Allocate(_));
        let word = match place {
            Place::Extent { owner, chunk, chunks, role } => {
                let what = if allocated { Use::Extent { owner, chunks, role } } else { Use::Free };
                let word = op.at(self.heap.descriptor(chunk).cast::<Word>());
                if allocated {
                    state.free.remove(chunk, u64::from(chunks));
                }
                op.store(word, Descriptor::new(what).to_bits(), Ordering::Release);
                word
            }
            Place::Block { chunk, lines, index, .. } => {
                let blocks = self.heap.blocks(lines);
                let (word, bit) = self.heap.bitmap(chunk, index);
                let word = op.at(word);
                if let Some(slab) = state.slabs.get_mut(chunk) {
                    // Taken in volatile memory whichever it is: what was freed waits for `release`.
                    let taken = slab.taken.get_or_insert_with(|| self.read_bitmap(op, chunk, blocks));
                    taken[index as usize / 64] |= 1 << (index % 64);
                }
                let bits = op.load(word, Ordering::Relaxed);
                let bits = if allocated { bits | 1 << bit } else { bits & !(1 << bit) };
                op.store(word, bits, Ordering::Release);
                word
            }
        };
        Ok(word)
    }

    /// The word that [`apply`](Self::apply) stores to, as it is.
    ///
    /// # Errors
    /// As [`apply`](Self::apply).
    pub fn word_of<'s>(&self, op: &Op<'s, M>, change: Change) -> Result<&'s Word> {
        let state = self.state.lock(op.medium());
        Ok(match self.place_of(op, &state, change.allocation())? {
            Place::Extent { chunk, .. } => op.at(self.heap.descriptor(chunk).cast()),
            Place::Block { chunk, index, .. } => op.at(self.heap.bitmap(chunk, index).0),
        })
    }

    /// Makes space available that [`apply`](Self::apply) has freed, durably by now. What is allocated stays so. A slab that
    /// is empty then goes back to the pool if its class has another one: one write-back, one fence.
    pub fn release(&self, op: &Op<'_, M>, allocation: Allocation) {
        let mut state = self.state.lock(op.medium());
        let Ok(place) = self.place_of(op, &state, allocation) else { return };
        match place {
            Place::Extent { chunk, chunks, .. } => self.put_free(op, &mut state, chunk, u64::from(chunks)),
            Place::Block { owner, chunk, lines, index } => {
                let (word, bit) = self.heap.bitmap(chunk, index);
                if op.load(op.at(word), Ordering::Relaxed) >> bit & 1 == 1 {
                    return;
                }
                let empty = state.slabs.give_back(chunk, index);
                if empty && state.slabs.has_room_beside(chunk, owner, lines) {
                    self.free_slab(op, &mut state, chunk);
                }
            }
        }
    }

    /// The place of an allocation, which must be one that can be: a block of a slab of its owner and class, or chunks that are
    /// free or this very extent.
    fn place_of(&self, op: &Op<'_, M>, state: &State, Allocation { off, len, owner }: Allocation) -> Result<Place> {
        let wrong = || Error::NotAllocated { off };
        let within = |c: &u64| *c < state.chunks && !self.heap.is_table(*c);
        let chunk = self.heap.chunk_of(off).filter(within).ok_or_else(wrong)?;
        let chunks = u32::try_from(len / self.heap.chunk).ok();
        let starts = self.heap.chunk_off(chunk) == off && len.is_multiple_of(self.heap.chunk);
        match (self.heap.sound_use(op, chunk, state.chunks), chunks) {
            (Use::Slab { owner: of, lines }, _) if of == owner && u64::from(lines) * LINE as u64 == len => {
                let index = self.heap.block_index(chunk, lines, off).ok_or_else(wrong)?;
                Ok(Place::Block { owner, chunk, lines, index })
            }
            (Use::Extent { owner: of, chunks: found, role: Role::Data }, Some(chunks))
                if starts && of == owner && found == chunks =>
            {
                Ok(Place::Extent { owner, chunk, chunks, role: Role::Data })
            }
            (Use::Free, Some(chunks)) if starts && chunks > 0 && self.all_free(op, state, chunk, chunks) => {
                Ok(Place::Extent { owner, chunk, chunks, role: Role::Data })
            }
            _ => Err(wrong()),
        }
    }

    fn all_free(&self, op: &Op<'_, M>, state: &State, chunk: u64, chunks: u32) -> bool {
        let fits = self.heap.extent_fits(chunk, chunks, state.chunks);
        fits && !self.is_covered(op, chunk)
            && (chunk..chunk + u64::from(chunks)).all(|c| self.heap.raw_use(op, c) == Use::Free)
    }

    /// Whether a chunk lies in an extent that starts before it. `O(free chunks before it)`, within its zone.
    fn is_covered(&self, op: &Op<'_, M>, chunk: u64) -> bool {
        let zone = chunk / self.heap.zone_chunks() * self.heap.zone_chunks();
        let before =
            (zone + 1..chunk).rev().map(|c| (c, self.heap.raw_use(op, c))).find(|(_, what)| *what != Use::Free);
        matches!(before, Some((first, Use::Extent { chunks, .. })) if first + u64::from(chunks) > chunk)
    }

    /// Gives the chunk of an empty slab back.
    pub(super) fn free_slab(&self, op: &Op<'_, M>, state: &mut State, chunk: u64) {
        self.describe(op, chunk, Use::Free);
        // PERSIST SP-S4: flush+fence.
        op.fence();
        state.slabs.remove(chunk);
        state.free.put(chunk, 1);
    }
}
