//! Space: failure-atomic allocation of extents and of small blocks.
//!
//! Allocation is in two steps. A *reservation* is volatile: it costs nothing in the pool, and a crash forgets it. An
//! *activation* makes it durable, in one of two ways:
//!
//! - [`Space::activate`]: one descriptor store, durable with the operation's next fence. For structures that find their
//!   extents by owner after a crash ([`Space::extents`]): nothing can leak, because the owner's descriptors are the truth.
//! - [`Space::prepare`], the owner's own fence, [`Prepared::complete`]: the block is allocated *and* a link to it set, or
//!   neither. The intent is durable with the object, under the object's own fence; the link's fence and one more follow
//!   inside `complete` (see `lane.rs`).
//!
//! A third way is for logs of other crates, whose transactions allocate and free: [`Space::apply`], see `logical.rs`.
//!
//! # Persist order
//! | edge | kept by | a crash before it leaves | recovery |
//! |---|---|---|---|
//! | SP-S1 contents of an extent that recovery relies on < its descriptor | the caller's fence before [`Space::activate`] | a free chunk | nothing to do |
//! | SP-S2 empty bitmap of a slab < its descriptor | flush+fence | a free chunk | nothing to do |
//! | SP-S3 slab descriptor < an intent on one of its blocks | flush+fence | a slab without blocks | given back when found empty |
//! | SP-S4 freed descriptor < the chunk is reserved again | flush+fence | the extent, still its owner's | the owner's business |
//! | SP-S5 a descriptor that recovery has seen < whatever is built on it | flush+fence | the same descriptor, or the one before | as before |
//! | SP-L1 to SP-L4 | see `lane.rs` | | |
//! | LA1 to LA4 | see `logical.rs` | | |
//!
//! Every persistent decision is one 8-byte store or sealed by a checksum, so all of it survives the `TornWords` model.

mod lane;
pub(crate) mod layout;
mod logical;
mod recover;
mod runs;
pub(crate) mod salvage;
mod slabs;

use std::collections::BTreeSet;
use std::sync::atomic::Ordering;

use lane::Intent;
use layout::{Descriptor, Effect, Role, Use, bitmap_lines};
pub use layout::{Heap, Owner};
pub use logical::{Allocation, Change};
pub use recover::Finding;
pub(crate) use recover::stats;
use runs::Runs;
pub use salvage::LenAt;
use slabs::{Slab, Slabs};

use crate::error::{Error, Result};
use crate::line::LINE;
use crate::lock::{Lock, LockGuard};
use crate::mapping::Mapping;
use crate::medium::Medium;
use crate::offset::Off;
use crate::session::Op;
use crate::word::{Bits, Word};

/// Makes the pool longer.
pub trait Grow: Send + Sync {
    /// Backs at least `min_len` bytes of the pool, durably, and returns how many are backed now. The new bytes read as
    /// zero.
    ///
    /// # Errors
    /// [`Error::Full`] at the pool's maximal size; whatever the file system says. The pool stays as it was.
    fn grow(&self, min_len: u64) -> Result<u64>;

    /// Told when space has become scarce, so that it may grow ahead of need. Called inside of operations: it must be quick.
    fn is_low(&self) {}
}

/// A pool that does not grow.
impl Grow for () {
    fn grow(&self, min_len: u64) -> Result<u64> {
        Err(Error::Full { needed: min_len })
    }
}

/// Whole chunks that belong to one owner.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Extent {
    /// Offset of the first byte, a multiple of the chunk size.
    pub off: u64,
    /// Bytes.
    pub len: u64,
}

/// What a pool's space is used for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SpaceStats {
    /// Bytes of a chunk.
    pub chunk: u64,
    /// Bytes in chunks, free or not.
    pub total: u64,
    /// Bytes in free chunks.
    pub free: u64,
    /// Bytes of the allocator's own tables.
    pub tables: u64,
    /// Bytes in extents and slabs, by owner.
    pub by_owner: Vec<(Owner, u64)>,
}

/// How much space is left, in bytes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Level {
    /// In free chunks.
    pub(crate) free: u64,
    /// In chunks, free or not.
    pub(crate) total: u64,
    /// Of a chunk.
    pub(crate) chunk: u64,
}

/// The allocator of a pool.
pub struct Space<M: Medium> {
    mapping: Mapping<M>,
    heap: Heap,
    grow: Box<dyn Grow>,
    lanes: Box<[Lock<()>]>,
    state: Lock<State>,
}

#[derive(Debug, Default)]
struct State {
    /// Chunks that the tables cover so far.
    chunks: u64,
    free: Runs,
    slabs: Slabs,
}

impl<M: Medium> std::fmt::Debug for Space<M> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Space").field("heap", &self.heap).finish_non_exhaustive()
    }
}

/// Space that is set aside in volatile memory. Dropping it gives it back; so does a crash.
#[must_use = "a reservation that is dropped is given back"]
pub struct Reserved<'s, M: Medium> {
    space: &'s Space<M>,
    place: Place,
    m: M,
    given: bool,
}

/// What a reservation is of.
#[derive(Clone, Copy, Debug)]
enum Place {
    Extent { owner: Owner, chunk: u64, chunks: u32, role: Role },
    Block { owner: Owner, chunk: u64, lines: u32, index: u32 },
}

/// What a byte of a pool's heap belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Holder {
    Tables,
    Free,
    Owned(Owner),
    Unclear,
}

impl<M: Medium> Space<M> {
    pub(crate) fn new(mapping: Mapping<M>, heap: Heap, grow: Box<dyn Grow>) -> Self {
        let lanes = (0..heap.lanes.max(1)).map(|_| Lock::new(())).collect();
        Space { mapping, heap, grow, lanes, state: Lock::new(State::default()) }
    }

    /// Bytes of a chunk: the unit of extents.
    pub fn chunk(&self) -> u64 {
        self.heap.chunk
    }

    /// The largest block that [`Space::reserve_block`] gives, in bytes.
    pub fn max_block(&self) -> u64 {
        u64::from(self.heap.max_block_lines()) * LINE as u64
    }

    /// Makes sure that an operation is one of this pool.
    fn expect_own(&self, op: &Op<'_, M>) -> Result<()> {
        op.expect_base(self.mapping.base_addr())
    }

    /// The same where there is no error to return.
    fn assert_own(&self, op: &Op<'_, M>) {
        assert!(self.expect_own(op).is_ok(), "{}", Error::ForeignSession);
    }

    // ---- reserving ----

    /// Sets whole chunks aside, at least `bytes` in a row, for `owner`; grows the pool if it has to. Contents are
    /// arbitrary: see [`Reserved::zero`].
    ///
    /// # Errors
    /// [`Error::Full`] if the pool cannot grow that far; what growing says; [`Error::ForeignSession`].
    pub fn reserve_extent(&self, op: &Op<'_, M>, owner: Owner, bytes: u64) -> Result<Reserved<'_, M>> {
        self.reserve_chunks(op, owner, bytes, Role::Data)
    }

    /// As [`reserve_extent`](Self::reserve_extent), for a segment of the owner's logs: found by
    /// [`segments`](Self::segments), never by [`extents`](Self::extents).
    pub(crate) fn reserve_segment(&self, op: &Op<'_, M>, owner: Owner, bytes: u64) -> Result<Reserved<'_, M>> {
        self.reserve_chunks(op, owner, bytes, Role::Log)
    }

    fn reserve_chunks(&self, op: &Op<'_, M>, owner: Owner, bytes: u64, role: Role) -> Result<Reserved<'_, M>> {
        self.expect_own(op)?;
        let full = || Error::Full { needed: bytes };
        let chunks = u32::try_from(bytes.max(1).div_ceil(self.heap.chunk)).map_err(|_| full())?;
        if u64::from(chunks) >= self.heap.zone_chunks() {
            return Err(Error::TooLarge { bytes, limit: (self.heap.zone_chunks() - 1) * self.heap.chunk });
        }
        let chunk = self.take_chunks(op, u64::from(chunks))?;
        Ok(self.reserved(op, Place::Extent { owner, chunk, chunks, role }))
    }

    fn reserved(&self, op: &Op<'_, M>, place: Place) -> Reserved<'_, M> {
        Reserved { space: self, place, m: op.medium(), given: false }
    }

    fn take_chunks(&self, op: &Op<'_, M>, chunks: u64) -> Result<u64> {
        loop {
            let mut state = self.state.lock(op.medium());
            let (taken, level, seen) = (state.free.take(chunks), self.level_of(&state), state.chunks);
            // Not across what follows, which may be system calls.
            drop(state);
            match taken {
                Some(chunk) => {
                    if level.is_low() {
                        self.grow.is_low();
                    }
                    return Ok(chunk);
                }
                None => self.grow_for(op.medium(), seen, chunks)?,
            }
        }
    }

    /// Makes the pool longer than `seen` chunks, so that so many in a row are free, unless others take them.
    fn grow_for(&self, m: M, seen: u64, chunks: u64) -> Result<()> {
        // Worst case: none of the tail is usable, and a table chunk lies in the way. Where there is no room for that, what there is may do.
        let len = match self.grow.grow(self.heap.chunk_off(seen + chunks + 1)) {
            Err(error) if error.is_no_room() => {
                self.grow.grow(self.heap.chunk_off(seen + chunks)).map_err(|_| error)?
            }
            grown => grown?,
        };
        if self.heap.chunks(len) <= seen {
            return Err(Error::Full { needed: chunks * self.heap.chunk });
        }
        self.take_over(m, len);
        Ok(())
    }

    /// Takes over chunks that were backed just now; their descriptors are zero, which is free.
    pub(crate) fn take_over(&self, m: M, len: u64) {
        let mut state = self.state.lock(m);
        let chunks = self.heap.chunks(len);
        let mut at = state.chunks;
        while at < chunks {
            let end = chunks.min((at / self.heap.zone_chunks() + 1) * self.heap.zone_chunks());
            let first = at + u64::from(self.heap.is_table(at));
            state.free.put(first, end - first);
            at = end;
        }
        state.chunks = state.chunks.max(chunks);
    }

    fn level_of(&self, state: &State) -> Level {
        let chunk = self.heap.chunk;
        Level { free: state.free.total() * chunk, total: state.chunks * chunk, chunk }
    }

    /// How much space is left; nothing while another thread is at it.
    pub(crate) fn level(&self) -> Option<Level> {
        self.state.try_lock(self.mapping.medium()).map(|state| self.level_of(&state))
    }

    /// Sets a block of at least `bytes` aside for `owner`, aligned to a line. Its size is rounded up to whole lines;
    /// above eight lines, to an eighth of its power of two. Contents are arbitrary.
    ///
    /// A class of an owner that has no room yet gets a slab, which costs two fences.
    ///
    /// # Errors
    /// [`Error::TooLarge`] above [`Space::max_block`]; [`Error::Full`] and what growing says; [`Error::ForeignSession`].
    pub fn reserve_block(&self, op: &Op<'_, M>, owner: Owner, bytes: u64) -> Result<Reserved<'_, M>> {
        self.expect_own(op)?;
        if bytes > self.max_block() {
            return Err(Error::TooLarge { bytes, limit: self.max_block() });
        }
        let lines = class_lines(bytes.div_ceil(LINE as u64).max(1) as u32).min(self.heap.max_block_lines());
        loop {
            let mut state = self.state.lock(op.medium());
            let Some(chunk) = state.slabs.with_room(owner, lines) else {
                drop(state);
                self.new_slab(op, owner, lines)?;
                continue;
            };
            let blocks = self.heap.blocks(lines);
            let slab = state.slabs.get_mut(chunk).expect("a slab with room is a slab");
            slab.taken.get_or_insert_with(|| self.read_bitmap(op, chunk, blocks));
            match slab.take(blocks) {
                Some(index) => return Ok(self.reserved(op, Place::Block { owner, chunk, lines, index })),
                None => state.slabs.no_room(chunk, owner, lines),
            }
        }
    }

    /// Makes a chunk, which nobody else has until then, a slab of the class.
    fn new_slab(&self, op: &Op<'_, M>, owner: Owner, lines: u32) -> Result<()> {
        let chunk = self.take_chunks(op, 1)?;
        let words = u64::from(bitmap_lines(self.heap.blocks(lines))) * 8;
        let bitmap = op.slice("bitmap", Off::<Word>::new(self.heap.chunk_off(chunk)), words)?;
        for word in bitmap {
            op.store(word, 0, Ordering::Relaxed);
        }
        // PERSIST SP-S2: flush+fence.
        op.write_back_slice(bitmap);
        op.fence();
        self.describe(op, chunk, Use::Slab { owner, lines });
        // PERSIST SP-S3: flush+fence.
        op.fence();
        let taken = Some(vec![0; self.heap.blocks(lines).div_ceil(64) as usize].into());
        self.state.lock(op.medium()).slabs.add(chunk, Slab { owner, lines, taken });
        Ok(())
    }

    fn read_bitmap(&self, op: &Op<'_, M>, chunk: u64, blocks: u32) -> Box<[u64]> {
        let word = |i: u32| op.load(op.at(self.heap.bitmap(chunk, i * 64).0), Ordering::Relaxed);
        (0..blocks.div_ceil(64)).map(word).collect()
    }

    /// Stores a descriptor and starts writing it back.
    #[track_caller]
    fn describe(&self, op: &Op<'_, M>, chunk: u64, what: Use) {
        let word = op.at(self.heap.descriptor(chunk));
        op.store(word, Descriptor::new(what), Ordering::Release);
        op.write_back(word);
    }

    // ---- extents, found by owner ----

    /// Makes a reserved extent its owner's, durably with the operation's next fence. Whatever recovery will rely on in it
    /// has to be durable before (SP-S1). One store, one write-back.
    ///
    /// # Errors
    /// [`Error::NotAnExtent`] for a reserved block: blocks are not found by owner, so they need a link. [`Error::ForeignSession`].
    pub fn activate(&self, op: &Op<'_, M>, mut reserved: Reserved<'_, M>) -> Result<Extent> {
        self.expect_own(op)?;
        let Place::Extent { owner, chunk, chunks, role } = reserved.place else {
            return Err(Error::NotAnExtent { off: reserved.off() });
        };
        self.describe(op, chunk, Use::Extent { owner, chunks, role });
        reserved.given = true;
        Ok(Extent { off: reserved.off(), len: reserved.len() })
    }

    /// All extents of an owner but the segments of its logs, ascending. `O(chunks)`.
    ///
    /// # Panics
    /// If the operation is one of another pool.
    pub fn extents(&self, op: &Op<'_, M>, owner: Owner) -> Vec<Extent> {
        self.extents_for(op, owner, Role::Data)
    }

    /// All segments of an owner's logs, ascending. `O(chunks)`.
    pub(crate) fn segments(&self, op: &Op<'_, M>, owner: Owner) -> Vec<Extent> {
        self.extents_for(op, owner, Role::Log)
    }

    fn extents_for(&self, op: &Op<'_, M>, owner: Owner, wanted: Role) -> Vec<Extent> {
        self.assert_own(op);
        let mine = recover::Walk::new(op, self.heap, self.backed_chunks(op));
        mine.filter_map(|(chunk, what)| match what {
            Use::Extent { owner: of, chunks, role } if of == owner && role == wanted => {
                Some(Extent { off: self.heap.chunk_off(chunk), len: u64::from(chunks) * self.heap.chunk })
            }
            _ => None,
        })
        .collect()
    }

    /// All allocated blocks of an owner, as offset and length in bytes, ascending. `O(chunks + blocks)`.
    ///
    /// # Panics
    /// If the operation is one of another pool.
    pub fn blocks(&self, op: &Op<'_, M>, owner: Owner) -> Vec<(u64, u64)> {
        self.assert_own(op);
        let mut found = Vec::new();
        for (chunk, what) in recover::Walk::new(op, self.heap, self.backed_chunks(op)) {
            let Use::Slab { owner: of, lines } = what else { continue };
            if of != owner {
                continue;
            }
            let blocks = self.heap.blocks(lines);
            let taken = self.read_bitmap(op, chunk, blocks);
            let allocated = (0..blocks).filter(|i| taken[*i as usize / 64] >> (i % 64) & 1 == 1);
            found.extend(allocated.map(|i| (self.heap.block_off(chunk, lines, i), u64::from(lines) * LINE as u64)));
        }
        found
    }

    /// Everybody whom extents, segments or slabs belong to. `O(chunks)`.
    pub(crate) fn owners(&self, op: &Op<'_, M>) -> BTreeSet<Owner> {
        self.assert_own(op);
        let all = recover::Walk::new(op, self.heap, self.backed_chunks(op));
        all.filter_map(|(_, what)| match what {
            Use::Extent { owner, .. } | Use::Slab { owner, .. } => Some(owner),
            _ => None,
        })
        .collect()
    }

    /// Calls `f` with the words of the tables that are not zero, and where they lie.
    pub(crate) fn each_word(&self, op: &Op<'_, M>, mut f: impl FnMut(u64, u64)) {
        for chunk in 0..self.backed_chunks(op) {
            let off = self.heap.descriptor(chunk);
            match op.load(op.at(off), Ordering::Relaxed).to_bits() {
                0 => {}
                word => f(off.get(), word),
            }
        }
    }

    /// What a byte of the file belongs to, as far as the tables tell. `O(chunks of a zone)`.
    pub(crate) fn holder_of(&self, op: &Op<'_, M>, off: u64) -> Holder {
        let end = self.backed_chunks(op);
        let Some(wanted) = self.heap.chunk_of(off).filter(|chunk| *chunk < end) else { return Holder::Free };
        if self.heap.is_table(wanted) {
            return Holder::Tables;
        }
        // An extent begins in the zone that it lies in.
        let zone = wanted / self.heap.zone_chunks() * self.heap.zone_chunks();
        let last = recover::Walk::from(op, self.heap, zone, end).take_while(|(chunk, _)| *chunk <= wanted).last();
        match last {
            Some((chunk, Use::Extent { owner, chunks, .. })) if wanted < chunk + u64::from(chunks) => {
                Holder::Owned(owner)
            }
            Some((_, Use::Slab { owner, .. })) => Holder::Owned(owner),
            Some((_, Use::Free)) => Holder::Free,
            _ => Holder::Unclear,
        }
    }

    fn backed_chunks(&self, op: &Op<'_, M>) -> u64 {
        self.state.lock(op.medium()).chunks
    }

    /// Gives an extent back. Durable on return: one write-back, one fence.
    ///
    /// # Errors
    /// [`Error::NotAnExtent`] if no extent of that length starts there; [`Error::ForeignSession`].
    pub fn free_extent(&self, op: &Op<'_, M>, extent: Extent) -> Result<()> {
        self.expect_own(op)?;
        let missing = || Error::NotAnExtent { off: extent.off };
        let mut state = self.state.lock(op.medium());
        let chunk = self.heap.chunk_of(extent.off).filter(|c| *c < state.chunks).ok_or_else(missing)?;
        match self.heap.sound_use(op, chunk, state.chunks) {
            Use::Extent { chunks, .. }
                if self.heap.chunk_off(chunk) == extent.off && u64::from(chunks) * self.heap.chunk == extent.len =>
            {
                self.describe(op, chunk, Use::Free);
                // PERSIST SP-S4: flush+fence.
                op.fence();
                self.put_free(op, &mut state, chunk, u64::from(chunks));
                Ok(())
            }
            _ => Err(missing()),
        }
    }

    /// Gives back everything that belongs to `owner`. Durable on return; a crash in the middle leaves some of it, so the
    /// caller records first that the owner is going. `O(chunks)`, one fence.
    ///
    /// # Panics
    /// If the operation is one of another pool.
    pub fn free_owner(&self, op: &Op<'_, M>, owner: Owner) {
        self.assert_own(op);
        let mut state = self.state.lock(op.medium());
        let chunks = state.chunks;
        let mut freed = Vec::new();
        for (chunk, what) in recover::Walk::new(op, self.heap, chunks) {
            match what {
                Use::Extent { owner: of, chunks, .. } if of == owner => freed.push((chunk, u64::from(chunks))),
                Use::Slab { owner: of, .. } if of == owner => freed.push((chunk, 1)),
                _ => {}
            }
        }
        for (chunk, _) in &freed {
            self.describe(op, *chunk, Use::Free);
        }
        // PERSIST SP-S4: flush+fence.
        op.fence();
        for (chunk, chunks) in freed {
            state.slabs.remove(chunk);
            self.put_free(op, &mut state, chunk, chunks);
        }
    }

    /// Makes chunks available that were just freed, durably. A chunk within them that has a descriptor of its own is
    /// somebody else's: the extent was corrupt.
    fn put_free(&self, op: &Op<'_, M>, state: &mut State, chunk: u64, chunks: u64) {
        for chunk in chunk..(chunk + chunks).min(state.chunks) {
            if !self.heap.is_table(chunk) && self.heap.raw_use(op, chunk) == Use::Free {
                state.free.put(chunk, 1);
            }
        }
    }

    // ---- allocated and linked, in one step ----

    /// Prepares to make a reservation durable together with a link to it. What it writes back is covered by the
    /// operation's own next fence, the one of the object itself; then [`Prepared::complete`] sets the link. From here
    /// until `complete` returns nobody else may change the link.
    ///
    /// # Errors
    /// [`Error::Dangling`] if the link names the reserved place already; [`Error::ForeignSession`].
    pub fn prepare<'s, T>(
        &'s self,
        op: &Op<'_, M>,
        mut reserved: Reserved<'s, M>,
        link: &Word<Off<T>>,
    ) -> Result<Prepared<'s, M>> {
        self.expect_own(op)?;
        let (off, link_off) = (reserved.off(), op.off_of(link));
        if op.load(link, Ordering::Relaxed).get() == off {
            return Err(Error::Dangling { link: link_off.get(), off });
        }
        reserved.given = true;
        let place = reserved.place;
        let intent = self.intent(place, link_off.cast(), off, false);
        Ok(self.write_intent(op, intent, place, false))
    }

    /// The intent that sets `link` to `link_value` and allocates (or frees) `place`.
    fn intent(&self, place: Place, link: Off<Word>, link_value: u64, frees: bool) -> Intent {
        let (target, allocated, free) = match place {
            Place::Extent { owner, chunk, chunks, role } => (
                self.heap.descriptor(chunk).cast(),
                Effect::Describe(Descriptor::new(Use::Extent { owner, chunks, role })),
                Effect::Describe(Descriptor::new(Use::Free)),
            ),
            Place::Block { chunk, index, .. } => {
                let (word, bit) = self.heap.bitmap(chunk, index);
                (word, Effect::Set(bit), Effect::Clear(bit))
            }
        };
        let (effect, otherwise) = if frees { (free, allocated) } else { (allocated, free) };
        Intent { link, link_value, target, effect, otherwise }
    }

    /// Prepares to free what was allocated at `off` together with setting `link` to `new`: the reverse of
    /// [`Space::prepare`].
    ///
    /// # Errors
    /// [`Error::NotAllocated`] if no allocated extent or block starts at `off`; [`Error::ForeignSession`].
    pub fn prepare_free<'s, T>(
        &'s self,
        op: &Op<'_, M>,
        off: u64,
        link: &Word<Off<T>>,
        new: Off<T>,
    ) -> Result<Prepared<'s, M>> {
        self.expect_own(op)?;
        let place = self.allocated_at(op, off)?;
        let intent = self.intent(place, op.off_of(link).cast(), new.get(), true);
        Ok(self.write_intent(op, intent, place, true))
    }

    fn allocated_at(&self, op: &Op<'_, M>, off: u64) -> Result<Place> {
        let missing = || Error::NotAllocated { off };
        let state = self.state.lock(op.medium());
        let chunk =
            self.heap.chunk_of(off).filter(|c| *c < state.chunks && !self.heap.is_table(*c)).ok_or_else(missing)?;
        match self.heap.sound_use(op, chunk, state.chunks) {
            Use::Extent { owner, chunks, role } if self.heap.chunk_off(chunk) == off => {
                Ok(Place::Extent { owner, chunk, chunks, role })
            }
            Use::Slab { owner, lines } => {
                let index = self.heap.block_index(chunk, lines, off).ok_or_else(missing)?;
                let (word, bit) = self.heap.bitmap(chunk, index);
                if op.load(op.at(word), Ordering::Relaxed) >> bit & 1 == 0 {
                    return Err(missing());
                }
                Ok(Place::Block { owner, chunk, lines, index })
            }
            _ => Err(missing()),
        }
    }

    fn write_intent<'s>(&'s self, op: &Op<'_, M>, intent: Intent, place: Place, frees: bool) -> Prepared<'s, M> {
        let lane = op.slot() % self.lanes.len() as u32;
        let guard = self.lanes[lane as usize].lock(op.medium());
        intent.write(op, self.heap.lane(lane));
        Prepared { space: self, intent, place, frees, lane, guard: Some(guard), done: false }
    }

    // ---- looking ----

    /// What the space is used for.
    ///
    /// # Panics
    /// If the operation is one of another pool.
    pub fn stats(&self, op: &Op<'_, M>) -> SpaceStats {
        self.assert_own(op);
        recover::stats(op, self.heap, self.backed_chunks(op))
    }
}

/// Lines of the size class for `lines`: itself up to eight, above that the next multiple of an eighth of its power of
/// two, so that at most an eighth is wasted.
const fn class_lines(lines: u32) -> u32 {
    if lines <= 8 {
        return lines;
    }
    let step = 1 << (31 - (lines - 1).leading_zeros() - 2);
    lines.div_ceil(step) * step
}

impl<M: Medium> Reserved<'_, M> {
    /// Where it lies: offset in bytes, a multiple of a line (blocks) or of a chunk (extents).
    pub fn off(&self) -> u64 {
        match self.place {
            Place::Extent { chunk, .. } => self.space.heap.chunk_off(chunk),
            Place::Block { chunk, lines, index, .. } => self.space.heap.block_off(chunk, lines, index),
        }
    }

    /// Bytes.
    #[expect(clippy::len_without_is_empty, reason = "a reservation is never empty")]
    pub fn len(&self) -> u64 {
        match self.place {
            Place::Extent { chunks, .. } => u64::from(chunks) * self.space.heap.chunk,
            Place::Block { lines, .. } => u64::from(lines) * LINE as u64,
        }
    }

    /// Zeroes all of it and starts writing it back; the next fence makes it durable.
    ///
    /// # Errors
    /// [`Error::OutOfBounds`] if the pool was corrupted since; [`Error::ForeignSession`].
    pub fn zero(&self, op: &Op<'_, M>) -> Result<()> {
        self.fill(op, |_| [0; 8])
    }

    /// Stores what `line` gives for the offset of each line and starts writing it back; the next fence makes it durable.
    ///
    /// # Errors
    /// As [`zero`](Self::zero).
    #[inline]
    pub fn fill(&self, op: &Op<'_, M>, line: impl Fn(u64) -> [u64; 8]) -> Result<()> {
        self.space.expect_own(op)?;
        let lines = op.slice("reservation", Off::<[Word; 8]>::new(self.off()), self.len() / LINE as u64)?;
        for (off, words) in (self.off()..).step_by(LINE).zip(lines) {
            for (word, value) in words.iter().zip(line(off)) {
                op.store(word, value, Ordering::Relaxed);
            }
        }
        op.write_back_slice(lines);
        Ok(())
    }
}

impl<M: Medium> Drop for Reserved<'_, M> {
    fn drop(&mut self) {
        if !self.given {
            let mut state = self.space.state.lock(self.m);
            match self.place {
                Place::Extent { chunk, chunks, .. } => state.free.put(chunk, u64::from(chunks)),
                // An emptied slab stays: its owner is likely to want it again.
                Place::Block { chunk, index, .. } => _ = state.slabs.give_back(chunk, index),
            }
        }
    }
}

impl<M: Medium> std::fmt::Debug for Reserved<'_, M> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Reserved({:?})", self.place)
    }
}

/// An allocation (or its reverse) whose intent is written: fence, then [`complete`](Prepared::complete).
///
/// Dropping it without either leaves an intent behind that only recovery can judge, so the pool is shut.
#[must_use = "fence, then complete; or cancel"]
pub struct Prepared<'s, M: Medium> {
    space: &'s Space<M>,
    intent: Intent,
    place: Place,
    frees: bool,
    lane: u32,
    guard: Option<LockGuard<'s, (), M>>,
    done: bool,
}

impl<M: Medium> std::fmt::Debug for Prepared<'_, M> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Prepared({:?})", self.intent)
    }
}

impl<M: Medium> Prepared<'_, M> {
    /// Sets the link and marks the block, after the operation's fence made intent and object durable. Durable on return:
    /// three write-backs, two fences.
    ///
    /// # Panics
    /// If the operation is one of another pool.
    pub fn complete(self, op: &Op<'_, M>) {
        self.complete_with(op, || ());
    }

    /// As [`complete`](Self::complete). Calls `settled` when all of it is durable, before what was freed can be allocated by anybody.
    ///
    /// # Panics
    /// If the operation is one of another pool.
    pub fn complete_with(mut self, op: &Op<'_, M>, settled: impl FnOnce()) {
        self.space.assert_own(op);
        {
            let mut state = self.space.state.lock(op.medium());
            if self.frees {
                // Before the bits say that it is free: nobody may have it before it is given back.
                self.space.know(op, &mut state, self.place);
            }
            self.intent.store(op);
        }
        self.intent.write_back(op);
        // PERSIST SP-L3: flush+fence.
        op.fence();
        lane::clear(op, self.space.heap.lane(self.lane));
        // PERSIST SP-L4: flush+fence.
        op.fence();
        self.guard = None;
        settled();
        if self.frees {
            self.space.give_back(op, self.place);
        }
        self.done = true;
    }

    /// Takes it back: nothing is allocated or freed, and a reservation is given back. One write-back, one fence.
    ///
    /// # Panics
    /// If the operation is one of another pool.
    pub fn cancel(mut self, op: &Op<'_, M>) {
        self.space.assert_own(op);
        lane::clear(op, self.space.heap.lane(self.lane));
        op.fence();
        self.guard = None;
        if !self.frees {
            self.space.give_back(op, self.place);
        }
        self.done = true;
    }
}

impl<M: Medium> Drop for Prepared<'_, M> {
    fn drop(&mut self) {
        if !self.done {
            self.space.mapping.shut();
            // The lane must not be reused over an intent that may be durable.
            std::mem::forget(self.guard.take());
        }
    }
}

impl<M: Medium> Space<M> {
    /// Reads which blocks of a block's slab are taken, if that is not known yet.
    fn know(&self, op: &Op<'_, M>, state: &mut State, place: Place) {
        if let Place::Block { chunk, lines, .. } = place
            && let Some(slab) = state.slabs.get_mut(chunk)
        {
            slab.taken.get_or_insert_with(|| self.read_bitmap(op, chunk, self.heap.blocks(lines)));
        }
    }

    /// Makes something free in volatile memory that is durably free.
    fn give_back(&self, op: &Op<'_, M>, place: Place) {
        let mut state = self.state.lock(op.medium());
        match place {
            Place::Extent { chunk, chunks, .. } => self.put_free(op, &mut state, chunk, u64::from(chunks)),
            Place::Block { chunk, index, .. } => {
                self.know(op, &mut state, place);
                if state.slabs.give_back(chunk, index) {
                    self.free_slab(op, &mut state, chunk);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests;
