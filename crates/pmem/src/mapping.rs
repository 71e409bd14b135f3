//! A mapping: a reserve of addresses, its medium, and the sessions at work in it.
//!
//! [`Mapping`] is what lies under a pool, and all that a bare structure needs (tests, benches, simulation): a place to
//! resolve offsets, and sessions. It knows nothing of headers, roots or space.

use std::any::Any;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering, fence};
use std::time::{Duration, Instant};

use crossbeam_utils::CachePadded;
use memmap2::MmapMut;

use crate::error::{Error, Result};
use crate::gate::{self, Atomic};
use crate::lock::Lock;
use crate::medium::{GIVES_WAY, Medium, Rmw};
use crate::reserve::Reserve;
use crate::session::Session;

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

#[derive(Debug)]
struct Shared<M: Medium> {
    reserve: Reserve,
    /// Bytes from the base on that are backed; grows.
    len: AtomicU64,
    medium: M,
    gate: Gate,
    asymmetric: bool,
    quiescing: Lock<()>,
    /// One bit a slot.
    taken: [AtomicU64; MAX_SESSIONS as usize / 64],
    slots: Box<[CachePadded<Slot>]>,
    /// What must outlive the reserve: the lock of the file that is mapped over it. Last, so that it is dropped last.
    _keep: Option<Box<dyn Any + Send + Sync>>,
}

/// The volatile state of a session that others look at.
#[derive(Debug, Default)]
pub(crate) struct Slot {
    /// How often operations have entered and left: odd while one is open.
    pub(crate) active: AtomicU64,
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
            // atomic only.
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
        medium.attach(reserve.base().as_ptr(), reserve.len());
        let shared = Shared {
            reserve,
            len: AtomicU64::new(len),
            medium,
            gate,
            asymmetric: membarrier::register(),
            quiescing: Lock::new(()),
            taken: std::array::from_fn(|_| AtomicU64::new(0)),
            slots: (0..MAX_SESSIONS).map(|_| CachePadded::default()).collect(),
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

    /// The reserve of addresses.
    pub fn reserve(&self) -> &Reserve {
        &self.shared.reserve
    }

    /// Makes known that bytes up to `len` are now backed: what grows a mapping calls it after backing them.
    pub fn set_len(&self, len: u64) {
        self.shared.len.store(len, Ordering::Release);
    }

    /// Opens a session: tens of nanoseconds, no system call.
    ///
    /// # Errors
    /// [`Error::TooManySessions`] beyond [`MAX_SESSIONS`]; [`Error::Forked`] in a forked child.
    pub fn session(&self) -> Result<Session<M>> {
        let m = self.shared.medium;
        if m.shared_load(self.gate(), Ordering::Acquire) == gate::FORKED {
            return Err(Error::Forked);
        }
        for (index, group) in self.shared.taken.iter().enumerate() {
            let mut bits = m.shared_load(group, Ordering::Acquire);
            while bits != u64::MAX {
                let bit = bits.trailing_ones();
                match gate::take_slot(&Seen(m, group), bits, bit, || fence(Ordering::SeqCst)) {
                    Ok(()) => return Ok(Session::new(self.clone(), index as u32 * 64 + bit)),
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
        &self.shared.slots[slot as usize]
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

    /// Runs `f` at a moment without any operation in flight, and lets them enter again afterwards. Open sessions,
    /// [`Pin`](crate::Pin)s and forgotten iterators do not hold it up, only open [`Op`](crate::Op)s do. Taking the
    /// caller's session by `&mut` makes sure that the caller itself holds none.
    ///
    /// # Errors
    /// [`Error::Busy`] if operations were still open after `patience`; [`Error::Forked`], [`Error::Shut`].
    pub fn quiesce<R>(
        &self,
        session: &mut Session<M>,
        patience: Duration,
        f: impl FnOnce(&mut Session<M>) -> R,
    ) -> Result<R> {
        let m = self.shared.medium;
        let _turn = self.shared.quiescing.lock(m);
        // A session of another mapping has a slot here that is another's.
        let own = Arc::ptr_eq(&session.mapping().shared, &self.shared).then(|| session.slot());
        let others = || self.taken().filter(|slot| Some(*slot) != own);
        let closed = gate::close(
            &Seen(m, self.gate()),
            || fence(Ordering::SeqCst),
            || others().next().is_some(),
            || membarrier::heavy(self.asymmetric()),
        );
        match closed {
            Ok(()) => {}
            Err(gate::FORKED) => return Err(Error::Forked),
            Err(_) => return Err(Error::Shut { reason: "it was closed" }),
        }
        let _reopen = Reopen(self);
        let start = Instant::now();
        let mut turn = 0;
        for slot in others() {
            while gate::is_inside(&Seen(m, &self.slot(slot).active)) {
                if turn > GIVES_WAY && start.elapsed() > patience {
                    let operations =
                        others().filter(|slot| self.slot(*slot).active.load(Ordering::Relaxed) & 1 == 1).count();
                    return Err(Error::Busy { operations, waited: start.elapsed() });
                }
                m.spin(turn);
                turn = turn.saturating_add(1);
            }
        }
        Ok(session.with_gate_closed(f))
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

/// Opens the gate again, also when the closure panics.
struct Reopen<'a, M: Medium>(&'a Mapping<M>);

impl<M: Medium> Drop for Reopen<'_, M> {
    fn drop(&mut self) {
        gate::reopen(&Seen(self.0.shared.medium, self.0.gate()));
    }
}

impl<M: Medium> Drop for Shared<M> {
    fn drop(&mut self) {
        self.medium.detach(self.reserve.base().as_ptr());
    }
}

/// Asymmetric fences: the frequent side runs a compiler fence, the rare side a system call that makes every thread of
/// the process execute a full fence.
pub(crate) mod membarrier {
    use std::sync::OnceLock;
    use std::sync::atomic::{Ordering, compiler_fence, fence};

    /// Whether the kernel offers it to this process.
    #[cfg(target_os = "linux")]
    pub(crate) fn register() -> bool {
        use rustix::thread::{MembarrierCommand, membarrier};
        static REGISTERED: OnceLock<bool> = OnceLock::new();
        *REGISTERED.get_or_init(|| {
            membarrier(MembarrierCommand::RegisterPrivateExpedited).is_ok()
                && membarrier(MembarrierCommand::PrivateExpedited).is_ok()
        })
    }

    /// Not on this system.
    #[cfg(not(target_os = "linux"))]
    pub(crate) fn register() -> bool {
        static REGISTERED: OnceLock<bool> = OnceLock::new();
        *REGISTERED.get_or_init(|| false)
    }

    /// The frequent side.
    #[inline(always)]
    pub(crate) fn light(asymmetric: bool) {
        if asymmetric { compiler_fence(Ordering::SeqCst) } else { fence(Ordering::SeqCst) }
    }

    /// The rare side.
    pub(crate) fn heavy(asymmetric: bool) {
        fence(Ordering::SeqCst);
        #[cfg(target_os = "linux")]
        if asymmetric {
            use rustix::thread::{MembarrierCommand, membarrier};
            membarrier(MembarrierCommand::PrivateExpedited).expect("membarrier worked when it was registered");
        }
        #[cfg(not(target_os = "linux"))]
        let _ = asymmetric;
    }
}
