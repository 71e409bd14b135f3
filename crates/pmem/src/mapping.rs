//! A mapping: a reserve of addresses, its medium, and the sessions at work in it.
//!
//! [`Mapping`] is what lies under a pool, and all that a bare structure needs (tests, benches, simulation): a place to
//! resolve offsets, and sessions. It knows nothing of headers, roots or space.

use std::any::Any;
use std::cell::Cell;
use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering, fence};
use std::sync::{Arc, OnceLock};

use crossbeam_utils::CachePadded;
use memmap2::MmapMut;

use crate::backing::HeapBacking;
use crate::error::{Error, Result};
use crate::gate::{self, Atomic};
use crate::lock::Lock;
use crate::medium::{Medium, Rmw};
use crate::membarrier;
use crate::reserve::Reserve;

/// How many sessions can be open in one mapping at a time.
pub const MAX_SESSIONS: u32 = 512;

/// A mapped range of persistent memory. Clones share it; it goes away with the last clone and the last session.
#[derive(Debug)]
pub struct Mapping<M: Medium> {
    shared: Arc<Shared<M>>,
}

impl<M: Medium> Clone for Mapping<M> {
    fn clone(&self) -> Self {
        Mapping { shared: Arc::clone(&self.shared) }
    }
}

struct Shared<M: Medium> {
    reserve: Reserve,
    /// Bytes from the base on that are backed; grows.
    len: AtomicU64,
    medium: M,
    gate: Gate,
    asymmetric: bool,
    quiescing: Lock<()>,
    /// The slot of the session that has the mapping for itself, plus one.
    alone: AtomicU64,
    /// The number of the commit that will hold what is done now; changes only while no operation is open. Zero without a journal.
    gathering: AtomicU64,
    /// Most objects of a generation of unlinked memory: tests make it smaller.
    generation: AtomicUsize,
    /// Beginnings and ends of operations that do not count.
    left_out: AtomicU64,
    /// Why nothing can enter any more, if it was not closed.
    broken: OnceLock<Box<dyn Fn() -> Error + Send + Sync>>,
    /// One bit a slot.
    taken: [AtomicU64; MAX_SESSIONS as usize / 64],
    slots: Slots,
    /// What must outlive the reserve: the lock of the file that is mapped over it. Last, so that it is dropped last.
    _keep: Option<Box<dyn Any + Send + Sync>>,
}

impl<M: Medium> std::fmt::Debug for Shared<M> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Shared").field("reserve", &self.reserve).field("len", &self.len).finish_non_exhaustive()
    }
}

/// The volatile state of a session that others look at.
#[derive(Debug, Default)]
pub(crate) struct Slot {
    /// How often operations have entered and left: odd while one is open.
    pub(crate) active: AtomicU64,
    /// 0, or what the session rests for: it has no operation open, and opens none before it has awoken.
    pub(crate) resting: AtomicU64,
}

/// The slots of a mapping. They are many: a thread keeps those of a mapping that is gone for its next one, because a simulation
/// makes a mapping for each recovery.
#[derive(Debug)]
struct Slots {
    /// Empty only while it is being dropped.
    slots: Box<[CachePadded<Slot>]>,
    /// Slots from here on have never been taken.
    taken: AtomicU32,
}

thread_local! {
    static SPARE: Cell<Option<Box<[CachePadded<Slot>]>>> = const { Cell::new(None) };
}

impl Slots {
    fn new() -> Self {
        let spare = SPARE.try_with(Cell::take).ok().flatten();
        let slots = spare.unwrap_or_else(|| (0..MAX_SESSIONS).map(|_| CachePadded::default()).collect());
        Slots { slots, taken: AtomicU32::new(0) }
    }

    #[inline(always)]
    fn get(&self, slot: u32) -> &Slot {
        &self.slots[slot as usize]
    }

    fn note_taken(&self, slot: u32) {
        if self.taken.load(Ordering::Relaxed) <= slot {
            self.taken.fetch_max(slot + 1, Ordering::Relaxed);
        }
    }
}

impl Drop for Slots {
    fn drop(&mut self) {
        let taken = *self.taken.get_mut() as usize;
        for slot in &mut self.slots[..taken] {
            *slot.active.get_mut() = 0;
            *slot.resting.get_mut() = 0;
        }
        let slots = std::mem::take(&mut self.slots);
        // At the end of a thread they are freed.
        let _ = SPARE.try_with(|spare| spare.set(Some(slots)));
    }
}

/// The word that lets operations enter. In a mapping of pages it lies in a page that is wiped in a forked child.
#[derive(Debug)]
enum Gate {
    Page(MmapMut),
    Heap(Box<AtomicU64>),
}

impl Gate {
    fn new(fork_aware: bool) -> Result<Self> {
        if !fork_aware {
            return Ok(Gate::Heap(Box::new(AtomicU64::new(gate::OPEN))));
        }
        let io = |source| Error::Io { action: "mapping a page that tells a fork".into(), source };
        let page = MmapMut::map_anon(size_of::<AtomicU64>()).map_err(io)?;
        #[cfg(target_os = "linux")]
        // SAFETY: the page is ours, private and anonymous, as this advice needs; wiping it in a child breaks no type.
        unsafe {
            rustix::mm::madvise(page.as_ptr().cast_mut().cast(), page.len(), rustix::mm::Advice::LinuxWipeOnFork)
                .map_err(|errno| io(errno.into()))?;
        }
        let gate = Gate::Page(page);
        gate.word().store(gate::OPEN, Ordering::Release);
        Ok(gate)
    }

    #[inline(always)]
    fn word(&self) -> &AtomicU64 {
        match self {
            // SAFETY: the page is at least 8 bytes long, aligned, lives as long as `self`, and is accessed as this
            // atomic only; it is private to this module. A fork zeroes it in the child, which is a value like any other.
            Gate::Page(page) => unsafe { &*page.as_ptr().cast::<AtomicU64>() },
            Gate::Heap(word) => word,
        }
    }
}

impl<M: Medium> Mapping<M> {
    /// A mapping of the first `len` bytes of `reserve`. With `fork_aware`, sessions refuse to work in a forked child;
    /// private memory does not need it.
    ///
    /// # Errors
    /// [`Error::Io`] where the kernel refuses the page that tells a fork.
    ///
    /// # Panics
    /// If `len` exceeds the reserve.
    pub fn new(reserve: Reserve, len: u64, medium: M, fork_aware: bool) -> Result<Self> {
        Self::new_keeping(reserve, len, medium, fork_aware, None)
    }

    /// The same, and keeps something until nothing is mapped any more.
    pub(crate) fn new_keeping(
        reserve: Reserve,
        len: u64,
        medium: M,
        fork_aware: bool,
        keep: Option<Box<dyn Any + Send + Sync>>,
    ) -> Result<Self> {
        assert!(len <= reserve.len() as u64, "a mapping of {len} bytes in a reserve of {}", reserve.len());
        let gate = Gate::new(fork_aware)?;
        // SAFETY: the reserve is mapped from its making to its end, which comes after `detach`, in `Shared::drop`; persistent memory
        // is reached as atomics only.
        unsafe { medium.attach(reserve.base().as_ptr(), reserve.len()) }
        let shared = Shared {
            reserve,
            len: AtomicU64::new(len),
            medium,
            gate,
            asymmetric: membarrier::register(),
            quiescing: Lock::new(()),
            alone: AtomicU64::new(0),
            gathering: AtomicU64::new(0),
            generation: AtomicUsize::new(usize::MAX),
            left_out: AtomicU64::new(0),
            broken: OnceLock::new(),
            taken: std::array::from_fn(|_| AtomicU64::new(0)),
            slots: Slots::new(),
            _keep: keep,
        };
        Ok(Mapping { shared: Arc::new(shared) })
    }

    /// A mapping of `len` zeroed bytes of heap memory, for tests, benches of bare structures, and simulation.
    ///
    /// # Panics
    /// If memory runs out.
    pub fn heap(len: usize, medium: M) -> Self {
        Mapping::new(Reserve::heap(len), len as u64, medium, false).expect("needs nothing from the kernel")
    }

    /// The medium, outside any session.
    #[inline]
    pub fn medium(&self) -> M {
        self.shared.medium
    }

    /// Backed bytes, from offset zero.
    #[inline]
    pub fn len(&self) -> u64 {
        self.shared.len.load(Ordering::Acquire)
    }

    /// Whether nothing is backed.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Slots from this number on have never been taken.
    pub(crate) fn slots_used(&self) -> usize {
        self.shared.slots.taken.load(Ordering::Acquire) as usize
    }

    /// Whether both are clones of one mapping.
    pub fn is_same(&self, other: &Mapping<M>) -> bool {
        Arc::ptr_eq(&self.shared, &other.shared)
    }

    /// The first address: by it [`Op::expect_base`](crate::Op::expect_base) tells operations of one mapping from those of another.
    #[inline]
    pub fn base_addr(&self) -> usize {
        self.shared.reserve.base().addr().get()
    }

    /// A number that changes whenever an operation begins or ends, in any session.
    pub(crate) fn operations(&self) -> u64 {
        let count = |slot: &CachePadded<Slot>| self.shared.medium.shared_load(&slot.active, Ordering::Relaxed);
        let slots = &self.shared.slots.slots[..self.slots_used()];
        let all = slots.iter().fold(0_u64, |sum, slot| sum.wrapping_add(count(slot)));
        all.wrapping_sub(self.shared.left_out.load(Ordering::Relaxed))
    }

    /// Has that many operations that have ended not count: those that only look at the others.
    pub(crate) fn leave_out_of_operations(&self, ended: u64) {
        self.shared.left_out.fetch_add(2 * ended, Ordering::Relaxed);
    }

    /// The reserve of addresses.
    pub fn reserve(&self) -> &Reserve {
        &self.shared.reserve
    }

    /// Makes known that bytes up to `len` are now backed: what grows a mapping calls it after backing them.
    pub(crate) fn set_len(&self, len: u64) {
        assert!(len <= self.shared.reserve.len() as u64, "{len} bytes in a reserve of {}", self.shared.reserve.len());
        self.shared.len.store(len, Ordering::Release);
    }

    /// Takes a slot for a session.
    pub(crate) fn take_slot(&self) -> Result<u32> {
        let m = self.shared.medium;
        if m.shared_load(self.gate(), Ordering::Acquire) == gate::FORKED {
            return Err(Error::Forked);
        }
        for (index, group) in self.shared.taken.iter().enumerate() {
            let mut bits = m.shared_load(group, Ordering::Acquire);
            while bits != u64::MAX {
                let bit = bits.trailing_ones();
                match gate::take_slot(&Seen(m, group), bits, bit, || fence(Ordering::SeqCst)) {
                    Ok(()) => {
                        let slot = index as u32 * 64 + bit;
                        self.shared.slots.note_taken(slot);
                        return Ok(slot);
                    }
                    Err(now) => bits = now,
                }
            }
        }
        Err(Error::TooManySessions { limit: MAX_SESSIONS })
    }

    /// The slots of the open sessions.
    pub(crate) fn taken(&self) -> impl Iterator<Item = u32> {
        let m = self.shared.medium;
        self.shared.taken.iter().enumerate().flat_map(move |(index, group)| {
            let mut bits = m.shared_load(group, Ordering::Acquire);
            std::iter::from_fn(move || {
                let bit = bits.trailing_zeros();
                bits &= bits.wrapping_sub(1);
                (bit < 64).then_some(index as u32 * 64 + bit)
            })
        })
    }

    /// Whether any open session but `own` may be in an operation, or begin one, without a fence in between: none that
    /// [rests](Session::rest). A full fence comes before.
    pub(crate) fn is_any_awake(&self, own: u32) -> bool {
        let m = self.shared.medium;
        self.taken().any(|slot| slot != own && !gate::is_resting(&Seen(m, &self.slot(slot).resting)))
    }

    /// How many sessions rest for that: an estimate, which nothing rests on. So no medium sees these loads, whose number depends on time.
    pub(crate) fn resting_for(&self, what: u64) -> usize {
        let slots = &self.shared.slots.slots[..self.slots_used()];
        slots.iter().filter(|slot| slot.resting.load(Ordering::Relaxed) == what).count()
    }

    pub(crate) fn give_back(&self, slot: u32) {
        let group = &self.shared.taken[slot as usize / 64];
        self.shared.medium.shared_rmw(group, Rmw::And, !(1 << (slot % 64)));
    }

    #[inline(always)]
    pub(crate) fn gate(&self) -> &AtomicU64 {
        self.shared.gate.word()
    }

    #[inline(always)]
    pub(crate) fn slot(&self, slot: u32) -> &Slot {
        self.shared.slots.get(slot)
    }

    /// Whether operations enter without a fence of their own, because `membarrier` provides one.
    #[inline(always)]
    pub(crate) fn asymmetric(&self) -> bool {
        self.shared.asymmetric
    }

    /// Whether this process is a fork of the one that made the mapping.
    pub fn is_forked(&self) -> bool {
        self.gate().load(Ordering::Acquire) == gate::FORKED
    }

    /// Lets no operation enter any more, for good. Operations that are open go on.
    pub fn shut(&self) {
        if !self.is_forked() {
            self.shared.medium.shared_store(self.gate(), gate::SHUT, Ordering::Release);
        }
    }

    /// As [`shut`](Self::shut), because of an error, which everybody is told from then on.
    pub(crate) fn break_off(&self, error: impl Fn() -> Error + Send + Sync + 'static) {
        let _ = self.shared.broken.set(Box::new(error));
        self.shut();
    }

    /// Whether it was broken off.
    pub(crate) fn is_broken(&self) -> bool {
        self.shared.broken.get().is_some()
    }

    /// What is said to whoever comes after it was shut.
    pub(crate) fn shut_error(&self) -> Error {
        self.shared.broken.get().map_or(Error::Shut { reason: "it was closed" }, |error| error())
    }

    /// The number of the commit that will hold what is done now. While an operation is open it does not change. Zero without a
    /// journal.
    #[inline(always)]
    pub fn gathering(&self) -> u64 {
        self.shared.gathering.load(Ordering::Relaxed)
    }

    /// Has structures begin a grace period after so many unlinked objects, where they would collect more: for tests of what happens
    /// when memory is used again, which would need hundreds of removals otherwise.
    #[doc(hidden)]
    pub fn limit_generations(&self, objects: usize) {
        self.shared.generation.store(objects.max(1), Ordering::Relaxed);
    }

    #[inline(always)]
    pub(crate) fn generation(&self) -> usize {
        self.shared.generation.load(Ordering::Relaxed)
    }

    /// Begins the next commit: to be called while no operation is open. Returns the number of the one before.
    pub(crate) fn next_commit(&self) -> u64 {
        self.shared.gathering.fetch_add(1, Ordering::AcqRel)
    }

    /// Held by whoever keeps operations out.
    pub(crate) fn quiescing(&self) -> &Lock<()> {
        &self.shared.quiescing
    }

    /// From now on that session has the mapping for itself, or nobody has.
    pub(crate) fn leave_alone(&self, slot: Option<u32>) {
        let word = slot.map_or(0, |slot| u64::from(slot) + 1);
        self.shared.medium.shared_store(&self.shared.alone, word, Ordering::Relaxed);
    }

    /// Whether [`quiesce`](Self::quiesce) keeps all operations out but those of that session.
    pub(crate) fn is_alone(&self, slot: u32) -> bool {
        self.shared.medium.shared_load(&self.shared.alone, Ordering::Relaxed) == u64::from(slot) + 1
    }
}

/// A volatile word as its medium sees it.
pub(crate) struct Seen<'a, M>(pub(crate) M, pub(crate) &'a AtomicU64);

impl<M: Medium> Atomic for Seen<'_, M> {
    #[inline(always)]
    fn load(&self, order: Ordering) -> u64 {
        self.0.shared_load(self.1, order)
    }

    #[inline(always)]
    fn store(&self, value: u64, order: Ordering) {
        self.0.shared_store(self.1, value, order);
    }

    #[inline(always)]
    fn compare_exchange(&self, current: u64, new: u64) -> Result<u64, u64> {
        self.0.shared_compare_exchange(self.1, current, new)
    }
}

impl<M: Medium> Drop for Shared<M> {
    fn drop(&mut self) {
        // SAFETY: attached in `new_keeping`; sessions, and so operations and references, keep `Shared` alive.
        unsafe { self.medium.detach(self.reserve.base().as_ptr()) }
    }
}

impl HeapBacking {
    /// The contents of a mapping as they are visible now, to be opened again with [`from_image`](Self::from_image).
    pub fn image_of<M: Medium>(mapping: &Mapping<M>) -> Vec<u8> {
        let words = mapping.len() as usize / size_of::<u64>();
        let base = mapping.reserve().base().cast::<AtomicU64>();
        let word = |i| {
            // SAFETY: the words below the mapping's length lie in its reserve, which is borrowed, and are atomics by nature. A caller
            // cannot change the length (`Mapping::set_len`, `Mapping::new` checks it).
            let word: &AtomicU64 = unsafe { base.add(i).as_ref() };
            mapping.medium().load(word, Ordering::Acquire).to_le_bytes()
        };
        (0..words).flat_map(word).collect()
    }
}
