//! The range of addresses that a mapping lives in.
//!
//! A reserve is a power of two of bytes, followed by a guard of [`MAX_OBJECT`] bytes. All of it is readable and writable
//! private memory from the start; a file is mapped over its front and grows into it. An offset masked to the reserve can
//! therefore be read at any type, whatever a corrupt file says.

use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::cell::RefCell;
use std::ptr::NonNull;
use std::sync::Arc;

use memmap2::{MmapMut, MmapOptions};

use crate::error::{Error, Result};
use crate::word::MAX_OBJECT;

/// Alignment of a reserve made of pages, so that huge pages fit.
const HUGE: usize = 2 << 20;
/// Alignment of a reserve on the heap.
const PAGE: usize = 4096;

/// A range of addresses: `len()` bytes, a power of two, and a guard.
#[derive(Debug)]
pub struct Reserve {
    base: NonNull<u8>,
    len: usize,
    memory: Memory,
}

#[derive(Debug)]
enum Memory {
    /// Held for its `Drop`, which unmaps whatever was mapped over it.
    Pages {
        _map: MmapMut,
    },
    Heap(Arc<Heap>),
}

/// Memory of the heap, freed with the last reserve of it.
#[derive(Debug)]
struct Heap(Block);

/// An allocation, with a reserve from its first whole page on.
#[derive(Clone, Copy, Debug)]
struct Block {
    start: NonNull<u8>,
    layout: Layout,
}

impl Block {
    /// Zeroed memory. The allocator takes much of it from the system, which zeroes a page when it is touched. It is asked for no
    /// alignment: aligned memory it would zero by itself, all of it.
    fn zeroed(layout: Layout) -> Block {
        // SAFETY: the size is not zero.
        let start = unsafe { alloc_zeroed(layout) };
        Block { start: NonNull::new(start).unwrap_or_else(|| handle_alloc_error(layout)), layout }
    }

    /// Frees it.
    ///
    /// # Safety
    /// Nobody uses it any more, and it was not freed.
    unsafe fn free(self) {
        // SAFETY: allocated with this layout; the rest is the caller's.
        unsafe { dealloc(self.start.as_ptr(), self.layout) }
    }

    /// Its first whole page.
    fn base(self) -> NonNull<u8> {
        let base = self.start.as_ptr().map_addr(|start| start.next_multiple_of(PAGE));
        NonNull::new(base).expect("an allocation does not end at the last address")
    }
}

// SAFETY: as of `Reserve`, below.
unsafe impl Send for Heap {}
// SAFETY: as above.
unsafe impl Sync for Heap {}

impl Drop for Heap {
    fn drop(&mut self) {
        if !Spare::keep(self.0) {
            // SAFETY: the last reserve of it is gone.
            unsafe { self.0.free() }
        }
    }
}

/// Freed heap reserves that a thread keeps for the next of the same size: a simulation makes one for each recovery, and the
/// system would hand its pages out and take them back each time.
#[derive(Default)]
struct Spare(Vec<Block>);

/// Most of them, and the largest, in bytes. None under a sanitizer, which then sees who uses one that was freed.
const SPARES: usize = if cfg!(durix_sanitize) { 0 } else { 2 };
const LARGEST_SPARE: usize = 1 << 20;

thread_local! {
    static SPARE: RefCell<Spare> = RefCell::default();
}

impl Spare {
    /// Memory of this layout, with whatever its last owner left in it.
    fn take(layout: Layout) -> Option<Block> {
        let taken = SPARE.try_with(|spare| {
            let spare = &mut spare.borrow_mut().0;
            let at = spare.iter().position(|block| block.layout == layout)?;
            Some(spare.swap_remove(at))
        });
        taken.ok().flatten()
    }

    /// Whether the memory was kept.
    fn keep(block: Block) -> bool {
        let keep = |spare: &RefCell<Spare>| {
            let spare = &mut spare.borrow_mut().0;
            let room = spare.len() < SPARES && block.layout.size() <= LARGEST_SPARE;
            if room {
                spare.push(block);
            }
            room
        };
        SPARE.try_with(keep).unwrap_or(false)
    }
}

impl Drop for Spare {
    fn drop(&mut self) {
        for block in self.0.drain(..) {
            // SAFETY: its reserves are gone.
            unsafe { block.free() }
        }
    }
}

// SAFETY: the memory is owned by the reserve, and nothing here is bound to a thread; all access is through atomics. A caller gets the
// base as a pointer, which it cannot follow without `unsafe`.
unsafe impl Send for Reserve {}
// SAFETY: as above.
unsafe impl Sync for Reserve {}

impl Reserve {
    /// Reserves at least `min_len` bytes of address space, and `wanted` if the kernel allows it, without committing
    /// memory.
    ///
    /// # Errors
    /// [`Error::Io`] where not even `min_len` can be had.
    pub fn pages(min_len: u64, wanted: u64) -> Result<Reserve> {
        let round = |len: u64| usize::try_from(len).ok().and_then(|l| l.max(HUGE).checked_next_power_of_two());
        let least = round(min_len);
        let mut len = round(wanted.max(min_len)).or(least);
        loop {
            let attempt =
                len.and_then(|l| l.checked_add(HUGE + MAX_OBJECT)).ok_or(std::io::ErrorKind::OutOfMemory.into());
            match attempt.and_then(|total| MmapOptions::new().len(total).no_reserve_swap().map_anon()) {
                Ok(mut map) => {
                    let start = map.as_mut_ptr();
                    let base = start.map_addr(|a| a.next_multiple_of(HUGE));
                    let base = NonNull::new(base).expect("a mapping is not at address zero");
                    return Ok(Reserve { base, len: len.unwrap_or_default(), memory: Memory::Pages { _map: map } });
                }
                Err(_) if len > least => len = len.map(|l| l / 2),
                Err(source) => {
                    let action = format!("reserving {min_len} bytes of address space (is there a limit, `ulimit -v`?)");
                    return Err(Error::Io { action, source });
                }
            }
        }
    }

    /// Zeroed heap memory of at least `min_len` bytes: cheap to make, for tests and simulation.
    ///
    /// # Panics
    /// If that is more than a quarter of all addresses.
    pub fn heap(min_len: usize) -> Reserve {
        let (len, layout) = heap_layout(min_len).expect("a reserve of at most a quarter of the addresses");
        let block = Spare::take(layout).inspect(|block| {
            // SAFETY: it has this layout, and no other owner.
            unsafe { block.start.write_bytes(0, layout.size()) }
        });
        let block = block.unwrap_or_else(|| Block::zeroed(layout));
        Reserve { base: block.base(), len, memory: Memory::Heap(Arc::new(Heap(block))) }
    }

    /// Another reserve of the same heap memory, for a simulation that maps the same bytes again and again. `None` for one made
    /// of pages. The memory is freed with the last of them.
    ///
    /// # Safety
    /// While one of them is in use, nothing may be copied into the memory, or mapped over it, by way of another: the backing that
    /// hands it out has to leave what is there alone.
    pub unsafe fn again(&self) -> Option<Reserve> {
        match &self.memory {
            Memory::Heap(heap) => Some(Reserve { memory: Memory::Heap(Arc::clone(heap)), ..*self }),
            Memory::Pages { .. } => None,
        }
    }

    /// Whether no other reserve has this memory.
    pub fn is_sole(&self) -> bool {
        match &self.memory {
            Memory::Heap(heap) => Arc::strong_count(heap) == 1,
            Memory::Pages { .. } => true,
        }
    }

    /// Whether it consists of pages that a file can be mapped over.
    pub(crate) fn is_pages(&self) -> bool {
        matches!(self.memory, Memory::Pages { .. })
    }

    /// Asks the kernel for pages of 2 MiB under the reserve, private memory or files of a tmpfs that allows them, which are
    /// mapped already. A hint: what was touched before may stay in small pages. Returns whether the kernel takes it.
    pub fn advise_huge_pages(&self) -> bool {
        #[cfg(target_os = "linux")]
        if self.is_pages() {
            // SAFETY: the range is mapped and ours; the advice changes no content.
            let advised =
                unsafe { rustix::mm::madvise(self.base.as_ptr().cast(), self.len, rustix::mm::Advice::LinuxHugepage) };
            return advised.is_ok();
        }
        false
    }

    /// First address.
    #[inline]
    pub fn base(&self) -> NonNull<u8> {
        self.base
    }

    /// Bytes without the guard, a power of two.
    #[inline]
    #[expect(clippy::len_without_is_empty, reason = "a reserve is never empty")]
    pub fn len(&self) -> usize {
        self.len
    }
}

/// The length of a heap reserve of at least `min_len` bytes, a power of two, and its layout with the guard and what comes before its
/// first page.
fn heap_layout(min_len: usize) -> Option<(usize, Layout)> {
    let len = min_len.max(64).checked_next_power_of_two()?;
    let layout = Layout::from_size_align(len.checked_add(MAX_OBJECT + PAGE)?, align_of::<u64>()).ok()?;
    Some((len, layout))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Resident memory of this process in bytes.
    #[cfg(target_os = "linux")]
    fn resident() -> usize {
        let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
        statm.split_whitespace().nth(1).unwrap().parse::<usize>().unwrap() * PAGE
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn a_heap_reserve_takes_no_memory_before_it_is_touched() {
        let before = resident();
        let reserve = Reserve::heap(1 << 30);
        let taken = resident().saturating_sub(before);
        assert!(taken < reserve.len() / 2, "{taken} bytes of {}", reserve.len());
        assert!(reserve.base().as_ptr().addr().is_multiple_of(PAGE));
    }

    #[test]
    fn reserves_are_powers_of_two_with_an_accessible_guard() {
        for reserve in
            [Reserve::heap(1), Reserve::heap(5000), Reserve::pages(1, 1).unwrap(), Reserve::pages(1, 1 << 40).unwrap()]
        {
            assert!(reserve.len().is_power_of_two());
            let last = reserve.base().as_ptr().wrapping_add(reserve.len() + MAX_OBJECT - 1);
            // SAFETY: the last byte of the guard.
            unsafe {
                assert_eq!(last.read(), 0);
                last.write(1);
            }
        }
    }

    #[test]
    fn lengths_that_do_not_fit_into_the_addresses_are_refused() {
        for len in [usize::MAX, usize::MAX / 2 + 2, usize::MAX / 2 + 1, isize::MAX as usize] {
            assert!(heap_layout(len).is_none(), "{len:#x}");
            let refused = std::panic::catch_unwind(|| Reserve::heap(len)).is_err();
            assert!(refused, "{len:#x}: also where arithmetic wraps");
        }
        assert_eq!(heap_layout(usize::MAX / 4 + 1).unwrap().0, usize::MAX / 4 + 1);
    }

    #[test]
    fn a_heap_reserve_that_is_used_again_is_zeroed() {
        for len in [4096, 4096, 8192, 4096, 8192, 2 << 20] {
            let reserve = Reserve::heap(len);
            let bytes = reserve.base().as_ptr();
            for at in [0, len / 2, len, len + MAX_OBJECT - 1] {
                // SAFETY: within the reserve or its guard.
                unsafe {
                    assert_eq!(bytes.add(at).read(), 0, "byte {at} of {len}");
                    bytes.add(at).write(7);
                }
            }
        }
    }

    #[test]
    fn a_heap_reserve_can_be_had_again() {
        let reserve = Reserve::heap(4096);
        assert!(reserve.is_sole());
        // SAFETY: nothing is mapped over either.
        let again = unsafe { reserve.again() }.unwrap();
        assert!(!reserve.is_sole() && again.base() == reserve.base() && again.len() == reserve.len());
        drop(reserve);
        // SAFETY: within the reserve, which `again` keeps.
        unsafe { again.base().write(1) }
        assert!(again.is_sole());
    }

    #[test]
    fn a_reserve_that_cannot_be_had_shrinks_and_then_is_an_error() {
        let reserve = Reserve::pages(1, 1 << 62).expect("falls back to less");
        assert!(reserve.len() >= 2 << 20);
        let error = Reserve::pages(1 << 62, 1 << 62).unwrap_err();
        assert!(error.to_string().starts_with("reserving 4611686018427387904 bytes of address space"), "{error}");
    }
}
