//! Memory for objects in DRAM that operations meet at random: leaves and fronts. It comes in chunks under pages of 2 MiB, so that an
//! access does not miss the cache and the table of pages, too.
//!
//! One arena serves the process. What is given back is used again for objects of the same class of sizes, by all trees, and is not given
//! back to the system.
//!
//! Under a sanitizer (`cfg(durix_sanitize)`) each piece comes from the allocator and goes back to it, so that the sanitizer sees who uses
//! a piece that was given back.

use std::alloc::{Layout, alloc, dealloc, handle_alloc_error};
use std::collections::BTreeMap;
use std::fmt;
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::{Mutex, MutexGuard, PoisonError};

use durix_pmem::{LINE, Reserve};

/// Sizes of chunks: each is twice as large as the one before.
const FIRST_CHUNK: usize = 2 << 20;
const LARGEST_CHUNK: usize = 64 << 20;
/// A chunk is handed out in pieces of a page.
const PIECE: usize = 2 << 20;
/// Bytes that the open piece has left when the next one is made ready: nearly all, as writers take some while the service is late.
const READY_AT: usize = PIECE / 8 * 7;
/// The smallest pages there are: a touch in each of them is a touch of all.
const SMALL_PAGE: usize = 4 << 10;

/// Memory that belongs to its holder: its first address, and bytes.
#[derive(Debug, PartialEq, Eq)]
struct Piece {
    at: NonNull<u8>,
    len: usize,
}

impl Piece {
    const EMPTY: Piece = Piece { at: NonNull::dangling(), len: 0 };

    /// Its first bytes, if it has so many; the rest is left.
    fn cut(&mut self, len: usize) -> Option<NonNull<u8>> {
        let rest = self.len.checked_sub(len)?;
        let cut = self.at;
        // SAFETY: the piece has at least `len` bytes, so the sum is at most its end.
        *self = Piece { at: unsafe { cut.add(len) }, len: rest };
        Some(cut)
    }

    /// Writes to every page of it, so that the system provides them now.
    fn touch(&mut self) {
        // SAFETY: the piece is ours, and the offsets are within it.
        (0..self.len).step_by(SMALL_PAGE).for_each(|at| unsafe { self.at.add(at).write_volatile(0) });
    }
}

#[derive(Default)]
struct Arena {
    /// The memory. Each chunk lives as long as the process.
    chunks: Vec<Reserve>,
    /// What the last chunk has left.
    uncut: Piece,
    /// What objects are cut from.
    open: Piece,
    /// The piece that comes after the open one, already touched.
    ready: Option<Piece>,
    /// Somebody touches the next piece.
    making: bool,
    /// Memory that was given back, by its class.
    free: BTreeMap<usize, Vec<NonNull<u8>>>,
}

impl Default for Piece {
    fn default() -> Self {
        Piece::EMPTY
    }
}

// SAFETY: it owns its memory, and hands each piece out once until the piece is given back.
unsafe impl Send for Arena {}

/// Locked for some instructions, in which nothing goes through a medium: so a scheduler of threads never waits for it.
static ARENA: Mutex<Arena> = Mutex::new(Arena {
    chunks: Vec::new(),
    uncut: Piece::EMPTY,
    open: Piece::EMPTY,
    ready: None,
    making: false,
    free: BTreeMap::new(),
});

fn arena() -> MutexGuard<'static, Arena> {
    ARENA.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The bytes that an object of a size gets: at most an eighth more than it needs, or a line.
fn class_of(size: usize) -> usize {
    let step = (size.next_power_of_two() / 16).max(LINE);
    size.max(LINE).next_multiple_of(step)
}

impl Arena {
    fn take(&mut self, class: usize) -> NonNull<u8> {
        if let Some(piece) = self.free.get_mut(&class).and_then(Vec::pop) {
            return piece;
        }
        if let Some(piece) = self.open.cut(class) {
            return piece;
        }
        self.take_from_next(class)
    }

    #[cold]
    fn take_from_next(&mut self, class: usize) -> NonNull<u8> {
        if class > PIECE {
            return self.add_chunk(class).at;
        }
        self.open = match self.ready.take() {
            Some(piece) => piece,
            None => self.next_piece(),
        };
        self.open.cut(class).expect("a piece has room for every class up to its size")
    }

    /// The next piece, which nobody has touched, as a rule.
    fn next_piece(&mut self) -> Piece {
        if self.uncut.len < PIECE {
            let len = (FIRST_CHUNK << self.chunks.len().min(10)).min(LARGEST_CHUNK);
            self.uncut = self.add_chunk(len);
        }
        let at = self.uncut.cut(PIECE).expect("a chunk has a piece at least");
        Piece { at, len: PIECE }
    }

    fn add_chunk(&mut self, len: usize) -> Piece {
        let chunk = Reserve::pages(len as u64, len as u64).unwrap_or_else(|_| Reserve::heap(len));
        // Small pages do, too.
        let _ = chunk.advise_huge_pages();
        let piece = Piece { at: chunk.base(), len: chunk.len() };
        self.chunks.push(chunk);
        piece
    }

    /// The next piece for the caller to touch, if the open one is in use and nobody has made or makes the next one ready.
    fn begin_ready(&mut self) -> Option<Piece> {
        if self.making || self.ready.is_some() || self.open.len >= READY_AT {
            return None;
        }
        self.making = true;
        Some(self.next_piece())
    }

    fn end_ready(&mut self, piece: Piece) {
        self.making = false;
        self.ready = Some(piece);
    }
}

/// Touches the next piece ahead of need: the system may take some milliseconds to provide a page of 2 MiB, which a writer would wait for.
/// The lock is not held meanwhile.
pub(crate) fn make_ready() {
    let next = arena().begin_ready();
    if let Some(mut piece) = next {
        piece.touch();
        arena().end_ready(piece);
    }
}

/// How the allocator is asked for a piece, where it comes from there.
fn allocated(layout: Layout) -> Layout {
    Layout::from_size_align(class_of(layout.size()), LINE).expect("an object of at most half of the addresses")
}

/// Memory for an object of a layout, aligned to a line, with arbitrary content.
fn take(layout: Layout) -> NonNull<u8> {
    assert!(layout.align() <= LINE, "an alignment of {}", layout.align());
    if cfg!(durix_sanitize) {
        let layout = allocated(layout);
        // SAFETY: the size is not zero.
        return NonNull::new(unsafe { alloc(layout) }).unwrap_or_else(|| handle_alloc_error(layout));
    }
    arena().take(class_of(layout.size()))
}

/// Takes memory back.
///
/// # Safety
/// It came from [`take`] with this layout, and nobody uses it any more.
unsafe fn give_back(piece: NonNull<u8>, layout: Layout) {
    if cfg!(durix_sanitize) {
        // SAFETY: by contract it came from `take`, which has allocated it with this layout.
        unsafe { dealloc(piece.as_ptr(), allocated(layout)) }
        return;
    }
    arena().free.entry(class_of(layout.size())).or_default().push(piece);
}

/// An object in the arena that has several owners, as [`Arc`](std::sync::Arc).
pub(crate) struct Shared<T>(NonNull<Counted<T>>);

#[repr(C)]
struct Counted<T> {
    object: T,
    owners: AtomicUsize,
}

// SAFETY: as for `Arc`: owners in several threads share the object, and the last one drops it.
unsafe impl<T: Send + Sync> Send for Shared<T> {}
// SAFETY: as above.
unsafe impl<T: Send + Sync> Sync for Shared<T> {}

impl<T> Shared<T> {
    #[cfg(test)]
    fn new(object: T) -> Self {
        // SAFETY: `fill` writes all of it.
        unsafe { Shared::filled(|place| place.write(object)) }
    }

    /// An object that `fill` makes where it lies: so what it leaves arbitrary is not touched.
    ///
    /// # Safety
    /// What `fill` is given is an object when it returns.
    #[inline(always)]
    pub(crate) unsafe fn filled(fill: impl FnOnce(NonNull<T>)) -> Self {
        let at = take(Layout::new::<Counted<T>>()).cast::<Counted<T>>();
        // SAFETY: the memory is ours, large enough and aligned; `fill` makes the object.
        unsafe {
            fill(NonNull::new_unchecked(&raw mut (*at.as_ptr()).object));
            (&raw mut (*at.as_ptr()).owners).write(AtomicUsize::new(1));
        }
        Shared(at)
    }

    fn counted(&self) -> &Counted<T> {
        // SAFETY: the object lives as long as one of its owners.
        unsafe { self.0.as_ref() }
    }
}

impl<T> Deref for Shared<T> {
    type Target = T;

    #[inline(always)]
    fn deref(&self) -> &T {
        &self.counted().object
    }
}

impl<T> Clone for Shared<T> {
    fn clone(&self) -> Self {
        let owners = self.counted().owners.fetch_add(1, Relaxed);
        assert!(owners < usize::MAX / 2, "too many owners");
        Shared(self.0)
    }
}

impl<T> Drop for Shared<T> {
    fn drop(&mut self) {
        if self.counted().owners.fetch_sub(1, Release) != 1 {
            return;
        }
        if cfg!(durix_sanitize) {
            // ThreadSanitizer does not know fences; the load acquires the same.
            self.counted().owners.load(Acquire);
        } else {
            std::sync::atomic::fence(Acquire);
        }
        // SAFETY: this was the last owner; what the others did came before.
        unsafe {
            self.0.drop_in_place();
            give_back(self.0.cast(), Layout::new::<Counted<T>>());
        }
    }
}

impl<T: fmt::Debug> fmt::Debug for Shared<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        T::fmt(self, f)
    }
}

/// A slice in the arena, as a box.
pub(crate) struct Slice<T: Copy> {
    first: NonNull<T>,
    len: usize,
}

// SAFETY: it owns its elements.
unsafe impl<T: Copy + Send> Send for Slice<T> {}
// SAFETY: as above.
unsafe impl<T: Copy + Sync> Sync for Slice<T> {}

impl<T: Copy> Slice<T> {
    /// So many copies of an element.
    pub(crate) fn of(element: T, len: usize) -> Self {
        if len == 0 {
            return Self::default();
        }
        let first = take(Self::layout(len)).cast::<T>();
        // SAFETY: the memory is ours, large enough and aligned.
        (0..len).for_each(|at| unsafe { first.add(at).write(element) });
        Slice { first, len }
    }

    fn layout(len: usize) -> Layout {
        Layout::array::<T>(len).expect("a slice of at most half of the addresses")
    }
}

impl<T: Copy> Default for Slice<T> {
    fn default() -> Self {
        Slice { first: NonNull::dangling(), len: 0 }
    }
}

impl<T: Copy> Deref for Slice<T> {
    type Target = [T];

    #[inline(always)]
    fn deref(&self) -> &[T] {
        // SAFETY: it owns so many elements, all of them written.
        unsafe { std::slice::from_raw_parts(self.first.as_ptr(), self.len) }
    }
}

impl<T: Copy> DerefMut for Slice<T> {
    #[inline(always)]
    fn deref_mut(&mut self) -> &mut [T] {
        // SAFETY: as above.
        unsafe { std::slice::from_raw_parts_mut(self.first.as_ptr(), self.len) }
    }
}

impl<T: Copy> Drop for Slice<T> {
    fn drop(&mut self) {
        // One without elements has no memory.
        if self.len > 0 {
            // SAFETY: it came from `of` with this layout, and goes away.
            unsafe { give_back(self.first.cast(), Self::layout(self.len)) }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    #[test]
    fn classes_hold_their_sizes_and_waste_little() {
        for size in (0..10_000).chain([1 << 20, (1 << 20) + 1, (5 << 20) - 1]) {
            let class = class_of(size);
            assert!(class >= size && class.is_multiple_of(LINE), "{size} in {class}");
            assert!(class <= size + (size / 8).max(LINE), "{size} in {class}");
            assert_eq!(class_of(class), class);
        }
    }

    #[test]
    fn a_piece_is_touched_ahead_of_need_and_used_next() {
        let mut arena = Arena::default();
        assert!(arena.begin_ready().is_some_and(|piece| piece.len == PIECE), "nothing is open");
        assert_eq!(arena.begin_ready(), None, "somebody makes it");
        arena.making = false;
        arena.take(PIECE - READY_AT);
        assert_eq!(arena.begin_ready(), None, "nearly all of the open piece is left");
        arena.take(PIECE / 2);
        let mut next = arena.begin_ready().expect("the open piece is in use");
        let (first, pages) = (next.at, PIECE / SMALL_PAGE);
        // SAFETY: the piece is ours, and so large.
        unsafe { first.write_bytes(7, PIECE) };
        next.touch();
        // SAFETY: as above.
        let touched = (0..pages).filter(|page| unsafe { first.add(page * SMALL_PAGE).read() } == 0).count();
        assert_eq!(touched, pages);
        // Somebody needs a piece before the next one is ready.
        let large = arena.take(PIECE);
        arena.end_ready(next);
        assert_eq!(arena.begin_ready(), None, "one is enough");
        assert_eq!(arena.take(PIECE / 4 * 3), first);
        let again = arena.begin_ready().expect("the ready piece is used");
        let mut pieces = [first, large, again.at].map(|at| at.addr().get());
        pieces.sort_unstable();
        assert!(pieces.is_sorted_by(|below, above| above - below >= PIECE), "{pieces:x?}");
    }

    #[test]
    fn an_object_larger_than_a_piece_leaves_the_open_one_alone() {
        let mut arena = Arena::default();
        let small = arena.take(LINE);
        let large = arena.take(3 * PIECE);
        assert!(large.addr().get().abs_diff(small.addr().get()) >= PIECE);
        assert_eq!(arena.take(LINE).addr().get(), small.addr().get() + LINE);
    }

    #[test]
    fn slices_do_not_overlap_and_keep_what_is_written() {
        let mut slices: Vec<Slice<u64>> = (0..300).map(|i| Slice::of(i, 1 + (i as usize * 37) % 900)).collect();
        slices.retain(|slice| slice[0] % 3 != 0);
        slices.extend((1000..1200).map(|i| Slice::of(i, 1 + (i as usize * 91) % 900)));
        slices.push(Slice::of(7777, 1 << 20));
        for slice in &mut slices {
            let last = slice.len() - 1;
            let first = slice[0];
            assert!(slice.iter().all(|element| *element == first));
            assert_eq!(slice.as_ptr().addr() % LINE, 0);
            slice[last] = first + 1_000_000;
        }
        let all: std::collections::BTreeSet<u64> = slices.iter().map(|slice| slice[slice.len() - 1]).collect();
        assert_eq!(all.len(), slices.len());
        assert!(Slice::<u64>::default().is_empty() && Slice::of(1_u64, 0).is_empty());
    }

    #[test]
    fn the_last_owner_drops_the_object() {
        let witness = Arc::new(());
        let object = Shared::new((Arc::clone(&witness), 5));
        let threads: Vec<_> = (0..4)
            .map(|_| {
                let object = object.clone();
                std::thread::spawn(move || (0..1000).map(|_| object.clone().1).sum::<i32>())
            })
            .collect();
        threads.into_iter().for_each(|thread| assert_eq!(thread.join().unwrap(), 5000));
        assert_eq!(Arc::strong_count(&witness), 2);
        drop(object);
        assert_eq!(Arc::strong_count(&witness), 1);
    }
}
