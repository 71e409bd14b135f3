//! The medium: the one seam between an index and its hardware.
//!
//! Every access to a persistent word, every write-back and every fence goes through a [`Medium`], and so does every
//! access to a volatile word that threads share and a scheduler has to see (locks, gates: the `shared_` methods). The code that ships on
//! [`Hardware`] is therefore, to the letter, the code that the crash simulator runs.
//!
//! # The order of stores
//! A store is *ordered* or *unordered*, by the ordering it is given:
//!
//! | call | becomes visible, and so may reach memory on its line |
//! |---|---|
//! | `store(w, v, Release)` | after every earlier store of its thread |
//! | `store(w, v, Relaxed)` | after the last [`order`](Medium::order) of its thread; in any order with its neighbours |
//! | any read-modify-write | after every earlier store, and before every later one |
//!
//! A data word that must not reach memory before a `Release` store that precedes it needs [`order`](Medium::order) in
//! between: a release store holds back what comes before it, not what comes after. On x86-64 both are free.

mod counting;
mod delayed;
mod forward;
mod hardware;

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

pub use counting::{Counting, Counts};
pub use delayed::Delayed;
pub(crate) use forward::forward;
pub use hardware::Hardware;

use crate::line::Lines;
use crate::wide::Wide;
pub use crate::write_back::WriteBackKind;

/// What contents survive, by the medium alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Survives {
    /// The death of the process (the operating system holds the pages), not a power failure or a kernel crash.
    ProcessDeath,
    /// Power failure: what was written back and fenced is in the persistence domain.
    PowerFailure,
}

impl fmt::Display for Survives {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Survives::ProcessDeath => "survives the death of the process, not a power failure",
            Survives::PowerFailure => "survives power failure",
        })
    }
}

/// A read-modify-write on a word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rmw {
    /// Replace.
    Swap,
    /// Add, wrapping.
    Add,
    /// Bitwise or.
    Or,
    /// Bitwise and.
    And,
    /// Unsigned maximum.
    Max,
}

impl Rmw {
    /// The new value of a word that held `old`.
    #[inline]
    pub fn apply(self, old: u64, operand: u64) -> u64 {
        match self {
            Rmw::Swap => operand,
            Rmw::Add => old.wrapping_add(operand),
            Rmw::Or => old | operand,
            Rmw::And => old & operand,
            Rmw::Max => old.max(operand),
        }
    }
}

/// Turns of [`Medium::spin`] after which each gives the processor away. On a busy machine it comes back after milliseconds, so
/// whoever has limited patience looks at a clock from then on.
pub(crate) const GIVES_WAY: u32 = 64;
/// Turns after which each sleeps. A thread that only yields keeps its processor busy: if whoever it waits for has lost the other one, the
/// system moves it here only when this one is idle.
const SLEEPS: u32 = 192;
/// How long, in addition to what the system adds (50 µs on Linux).
const NAP: Duration = Duration::from_micros(20);

/// The seam between an index and its hardware: a `Copy` handle with the state of one session, held by value in each
/// operation.
///
/// Implementations that look at source locations rely on `#[track_caller]`.
///
/// # Safety
/// Locks, pointers in volatile tables and the proofs of `unsafe` blocks rest on what a medium answers. To each word the accesses
/// must behave as those of one `AtomicU64` do:
/// - [`shared_load`](Medium::shared_load), [`shared_store`](Medium::shared_store),
///   [`shared_compare_exchange`](Medium::shared_compare_exchange) and [`shared_rmw`](Medium::shared_rmw) act on the word that they
///   are given, at once and atomically, with the ordering asked for (the last two: `AcqRel`, `Acquire` on failure), and answer what
///   was in the word.
/// - A load of a persistent word answers what this thread, or one it is ordered after, stored there last, or what the mapping held
///   before. The same holds for exchanges. (After a crash any bits may be there; code that reads them proves nothing by them.)
/// - [`load_words`](Medium::load_words) answers what a [`load`](Medium::load) of each word does.
/// - [`checked`](Medium::checked) answers what `verify` does.
/// - [`wide`](Medium::wide) answers what another medium of this crate does, or nothing.
/// - [`write_back`](Medium::write_back) and [`attach`](Medium::attach) may read the memory that they are told of, as atomics, up
///   to [`detach`](Medium::detach), and not later.
///
/// Whether anything becomes durable is no matter of memory safety: a medium may drop every write-back and fence. A medium that hands
/// every call to another one, as those of this crate do, keeps the contract if it hands on the same arguments and the answer.
pub unsafe trait Medium: Copy + Send + Sync + 'static {
    /// One line that names the medium, e.g. `hardware (clwb)`.
    fn describe(self) -> String;

    /// What the contents survive on this medium.
    fn survives(self) -> Survives;

    /// The handle for the session in `slot`.
    #[must_use]
    fn for_session(self, slot: u32) -> Self {
        let _ = slot;
        self
    }

    /// Called once with the address range of a mapping before anything in it is touched. The range spans the whole
    /// reserve, so that growth needs no further call.
    ///
    /// # Safety
    /// The range is mapped, readable and writable, and consists of atomics to everybody, until it is [detached](Medium::detach).
    unsafe fn attach(self, base: *const u8, len: usize) {
        let _ = (base, len);
    }

    /// Called when the mapping at `base` is about to go away.
    ///
    /// # Safety
    /// A mapping was attached there, and nobody has an operation on it, or a reference into it, any more.
    unsafe fn detach(self, base: *const u8) {
        let _ = base;
    }

    /// Loads a word.
    #[track_caller]
    fn load(self, word: &AtomicU64, order: Ordering) -> u64;

    /// Loads words, unordered: as that many calls of [`load`](Medium::load) with `Relaxed`, by fewer instructions where the
    /// processor can.
    #[inline(always)]
    #[track_caller]
    fn load_words<const N: usize>(self, from: &[AtomicU64; N]) -> [u64; N] {
        let mut values = [0; N];
        for (value, word) in values.iter_mut().zip(from) {
            *value = self.load(word, Ordering::Relaxed);
        }
        values
    }

    /// Stores a word, `Relaxed` or `Release` (see the [module's](self) table). `SeqCst` is a locked instruction.
    #[track_caller]
    fn store(self, word: &AtomicU64, value: u64, order: Ordering);

    /// Stores words, unordered: as that many calls of [`store`](Medium::store) with `Relaxed`, by fewer instructions where
    /// the processor can.
    #[inline(always)]
    #[track_caller]
    fn store_words<const N: usize>(self, to: &[AtomicU64; N], values: &[u64; N]) {
        for (word, value) in to.iter().zip(values) {
            self.store(word, *value, Ordering::Relaxed);
        }
    }

    /// Stores a word around the cache (non-temporal): weakly ordered with everything until the next
    /// [`fence`](Medium::fence), and durable after it without a write-back. If the process dies before that fence, the next one may see the
    /// value in a cache, and has to write it back as any other.
    #[track_caller]
    fn store_nt(self, word: &AtomicU64, value: u64);

    /// Stores a whole line around the cache; as eight calls of [`store_nt`](Medium::store_nt).
    #[track_caller]
    fn store_nt_line(self, line: &[AtomicU64; 8], values: &[u64; 8]);

    /// Stores words around the cache, as many as there are values; as that many calls of [`store_nt`](Medium::store_nt).
    #[inline(always)]
    #[track_caller]
    fn store_words_nt(self, to: &[AtomicU64], values: &[u64]) {
        for (word, value) in to.iter().zip(values) {
            self.store_nt(word, *value);
        }
    }

    /// Compares and exchanges; a locked instruction, which waits for pending write-backs like a fence.
    ///
    /// # Errors
    /// The value found, where it was not `current`.
    #[track_caller]
    fn compare_exchange(self, word: &AtomicU64, current: u64, new: u64) -> Result<u64, u64>;

    /// Reads, modifies and writes; a locked instruction. Returns the old value.
    #[track_caller]
    fn rmw(self, word: &AtomicU64, op: Rmw, operand: u64) -> u64;

    /// Reads words that a checksum covers: `verify` loads them through the medium and says whether they are sound, and
    /// that is the answer. A simulator of crashes does not have to look at each of their states then.
    #[inline(always)]
    fn checked(self, words: &[AtomicU64], verify: impl FnOnce() -> bool) -> bool {
        let _ = words;
        verify()
    }

    /// The right to compare many words at a time, on a medium where a load need not be seen, and a processor that can. None
    /// elsewhere.
    #[inline(always)]
    fn wide(self) -> Option<Wide> {
        None
    }

    /// Orders all earlier stores of the thread before all later ones, as far as visibility goes (a release fence).
    /// No instruction on x86-64.
    #[track_caller]
    fn order(self);

    /// Starts writing lines back to the persistence domain. Returns at once; a later [`fence`](Medium::fence) of the
    /// same session waits.
    #[track_caller]
    fn write_back(self, lines: Lines<'_>);

    /// Waits until every write-back that this session has started, and every non-temporal store, is in the persistence
    /// domain.
    #[track_caller]
    fn fence(self);

    /// Told after the file behind the mapping has been synced (`fsync`, `msync`): all that was stored before the sync began is
    /// on the disk. It matters where the page cache holds the mapping, and write-backs and fences guarantee nothing.
    #[inline(always)]
    #[track_caller]
    fn synced(self) {}

    /// Loads a volatile word that threads share: a lock, a gate, a counter of an index.
    ///
    /// The four `shared_` accesses exist so that a scheduler sees every point where threads meet, and so that locked
    /// instructions between a write-back and its fence are counted. They have nothing to do with persistence.
    #[inline(always)]
    #[track_caller]
    fn shared_load(self, word: &AtomicU64, order: Ordering) -> u64 {
        word.load(order)
    }

    /// Stores a volatile word that threads share.
    #[inline(always)]
    #[track_caller]
    fn shared_store(self, word: &AtomicU64, value: u64, order: Ordering) {
        word.store(value, order);
    }

    /// Compares and exchanges a volatile word that threads share.
    ///
    /// # Errors
    /// The value found, where it was not `current`.
    #[inline(always)]
    #[track_caller]
    fn shared_compare_exchange(self, word: &AtomicU64, current: u64, new: u64) -> Result<u64, u64> {
        word.compare_exchange(current, new, Ordering::AcqRel, Ordering::Acquire)
    }

    /// Reads, modifies and writes a volatile word that threads share. Returns the old value.
    #[inline(always)]
    #[track_caller]
    fn shared_rmw(self, word: &AtomicU64, op: Rmw, operand: u64) -> u64 {
        match op {
            Rmw::Swap => word.swap(operand, Ordering::AcqRel),
            Rmw::Add => word.fetch_add(operand, Ordering::AcqRel),
            Rmw::Or => word.fetch_or(operand, Ordering::AcqRel),
            Rmw::And => word.fetch_and(operand, Ordering::AcqRel),
            Rmw::Max => word.fetch_max(operand, Ordering::AcqRel),
        }
    }

    /// One turn of a loop that waits for another thread; `turn` counts from 0.
    #[track_caller]
    fn spin(self, turn: u32) {
        match turn {
            ..GIVES_WAY => std::hint::spin_loop(),
            GIVES_WAY..SLEEPS => std::thread::yield_now(),
            _ => std::thread::sleep(NAP),
        }
    }
}
