//! Persistent memory acted out by a real process: what was not written back *and* fenced does not reach the file.
//!
//! A killed process proves nothing on an ordinary file, because the page cache keeps every store. Under [`Shadow`] a
//! process works on a private copy of the file. A fence copies the lines that its session has written back into the file
//! itself, each with one 64-byte store; now and then a line that was stored and not written back is copied too, as a
//! cache evicts lines when it likes. After SIGKILL the file holds what persistent memory would hold.
//!
//! Two copies of one line are made one after the other, under a hashed lock: otherwise an older copy could overwrite a
//! newer one. Where the processor cannot load and store a line at once, a copy can tear; [`Shadow::can_tear`] says so.

use std::sync::atomic::{AtomicPtr, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError, RwLock};
use std::time::Duration;

use super::mix;
use crate::backing::{Access, Backing, BackingKind, FileBacking, FileId, Window};
use crate::error::Result;
use crate::line::{LINE, Lines};
use crate::mapping::MAX_SESSIONS;
use crate::medium::{Medium, Rmw, Survives, forward};
use crate::reserve::Reserve;

const LOCKS: usize = 1024;
/// One fence in so many has to wait.
const RESTS_ONE_IN: u64 = 16;
const REST: Duration = Duration::from_micros(100);
/// Lines stored lately by a session, out of which evictions are drawn.
const RECENT: usize = 16;

/// The medium that acts out persistent memory over `M`. Made together with its backing by [`Shadow::over`].
#[derive(Clone, Copy, Debug)]
pub struct Shadow<M> {
    inner: M,
    stage: &'static Stage,
    slot: u32,
}

/// What all handles share; lives until the process ends.
#[derive(Debug)]
struct Stage {
    /// Where the process works, and how many bytes that is.
    base: AtomicPtr<u8>,
    len: AtomicUsize,
    /// Where the file is mapped.
    file: OnceLock<Reserve>,
    /// One store in so many evicts a line; zero: none does.
    evict_one_in: u64,
    sessions: Box<[Mutex<Pending>]>,
    locks: Box<[Mutex<()>]>,
    /// Held by those who copy lines, and alone by whoever lets the mapping go: a handle may be used without a session.
    copying: RwLock<()>,
}

#[derive(Debug, Default)]
struct Pending {
    /// Numbers of lines written back since the last fence.
    lines: Vec<usize>,
    recent: [usize; RECENT],
    stored: usize,
    random: u64,
}

impl<M: Medium> Shadow<M> {
    /// A medium over `inner`, and the backing that a pool in `file` has to be created or opened with. One store in
    /// `evict_one_in` also copies a line that nobody has written back (zero: none does); `seed` decides which.
    ///
    /// It serves one pool at a time.
    pub fn over(inner: M, file: FileBacking, evict_one_in: u64, seed: u64) -> (ShadowBacking, Shadow<M>) {
        let pending = |slot| Mutex::new(Pending { random: seed ^ mix(u64::from(slot) + 1), ..Pending::default() });
        let stage: &'static Stage = Box::leak(Box::new(Stage {
            base: AtomicPtr::new(std::ptr::null_mut()),
            len: AtomicUsize::new(0),
            file: OnceLock::new(),
            evict_one_in,
            sessions: (0..MAX_SESSIONS).map(pending).collect(),
            locks: (0..LOCKS).map(|_| Mutex::new(())).collect(),
            copying: RwLock::new(()),
        }));
        (ShadowBacking { file, stage }, Shadow { inner, stage, slot: 0 })
    }

    /// Whether a copied line can be found torn after a kill, because this processor has no load and store of 64 bytes.
    pub fn can_tear(self) -> bool {
        !copy::is_whole()
    }

    fn pending(&self) -> MutexGuard<'static, Pending> {
        self.stage.sessions[self.slot as usize].lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A word was stored: its line is one that may be evicted.
    fn stored(self, word: &AtomicU64) {
        let distance = std::ptr::from_ref(word).addr().wrapping_sub(self.stage.base.load(Ordering::Relaxed).addr());
        if self.stage.evict_one_in == 0 || distance >= self.stage.len.load(Ordering::Relaxed) {
            return;
        }
        let mut pending = self.pending();
        let at = pending.stored % RECENT;
        pending.recent[at] = distance / LINE;
        pending.stored += 1;
        pending.random = mix(pending.random);
        if pending.random.is_multiple_of(self.stage.evict_one_in) {
            let drawn = (pending.random >> 32) as usize % RECENT.min(pending.stored);
            self.stage.copy(pending.recent[drawn]);
        }
    }
}

impl Stage {
    /// Brings a line of the file up to date.
    fn copy(&self, line: usize) {
        let _stays_mapped = self.copying.read().unwrap_or_else(PoisonError::into_inner);
        let (base, len) = (self.base.load(Ordering::Acquire), self.len.load(Ordering::Acquire));
        let Some(file) = self.file.get() else { return };
        if base.is_null() || line * LINE >= len.min(file.len()) {
            return;
        }
        let _one_at_a_time = self.locks[line % LOCKS].lock().unwrap_or_else(PoisonError::into_inner);
        // SAFETY: the line lies in both mappings, which are aligned to pages. The first is attached, and stays so while the lock is
        // held, whoever uses a handle; the second is never unmapped. Both are accessed as atomics elsewhere, and a machine copy of
        // a line behaves as eight of those.
        unsafe { copy::line(base.add(line * LINE), file.base().as_ptr().add(line * LINE)) }
    }
}

/// Copying a line in one piece.
mod copy {
    /// Whether a line is copied by one load and one store.
    #[cfg(target_arch = "x86_64")]
    pub(super) fn is_whole() -> bool {
        std::arch::is_x86_feature_detected!("avx512f")
    }

    #[cfg(not(target_arch = "x86_64"))]
    pub(super) fn is_whole() -> bool {
        false
    }

    /// Copies 64 bytes.
    ///
    /// # Safety
    /// Both addresses are aligned to 64, and mapped for reading and writing.
    pub(super) unsafe fn line(from: *const u8, to: *mut u8) {
        #[cfg(target_arch = "x86_64")]
        if is_whole() {
            // SAFETY: the processor has AVX-512F; the rest by contract.
            unsafe { line_at_once(from, to) };
            return;
        }
        for word in 0..8 {
            // SAFETY: by contract; each word is aligned to 8 and accessed as an atomic.
            unsafe {
                let value = std::sync::atomic::AtomicU64::from_ptr(from.cast_mut().cast::<u64>().add(word));
                let value = value.load(std::sync::atomic::Ordering::Acquire);
                let to = std::sync::atomic::AtomicU64::from_ptr(to.cast::<u64>().add(word));
                to.store(value, std::sync::atomic::Ordering::Release);
            }
        }
    }

    /// As [`line`], with one load and one store.
    ///
    /// # Safety
    /// As for [`line`], and the processor has AVX-512F.
    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "avx512f")]
    unsafe fn line_at_once(from: *const u8, to: *mut u8) {
        // SAFETY: by contract. Inline assembly, so that the compiler cannot split or elide the two accesses.
        unsafe {
            std::arch::asm!(
                "vmovdqa64 {line}, [{from}]",
                "vmovdqa64 [{to}], {line}",
                from = in(reg) from, to = in(reg) to, line = out(zmm_reg) _,
                options(nostack, preserves_flags),
            );
        }
    }
}

// SAFETY: every access is handed on unchanged; copies go to the second file, which nobody else maps.
unsafe impl<M: Medium> Medium for Shadow<M> {
    forward! { load, checked, order, shared_load, shared_store, shared_compare_exchange, shared_rmw, synced, spin }

    fn describe(self) -> String {
        let tear = if self.can_tear() { ", lines can tear" } else { "" };
        format!("shadow over {}{tear}", self.inner.describe())
    }

    fn survives(self) -> Survives {
        Survives::PowerFailure
    }

    fn for_session(self, slot: u32) -> Self {
        Shadow { inner: self.inner.for_session(slot), slot, ..self }
    }

    unsafe fn attach(self, base: *const u8, len: usize) {
        let _nobody_copies = self.stage.copying.write().unwrap_or_else(PoisonError::into_inner);
        assert!(self.stage.base.load(Ordering::Acquire).is_null(), "a shadow serves one pool at a time");
        // SAFETY: the caller's contract is the same.
        unsafe { self.inner.attach(base, len) }
        self.stage.len.store(len, Ordering::Release);
        self.stage.base.store(base.cast_mut(), Ordering::Release);
    }

    unsafe fn detach(self, base: *const u8) {
        let _nobody_copies = self.stage.copying.write().unwrap_or_else(PoisonError::into_inner);
        if std::ptr::eq(self.stage.base.load(Ordering::Acquire), base) {
            self.stage.base.store(std::ptr::null_mut(), Ordering::Release);
        }
        // SAFETY: the caller's contract is the same.
        unsafe { self.inner.detach(base) }
    }

    fn store(self, word: &AtomicU64, value: u64, order: Ordering) {
        self.inner.store(word, value, order);
        self.stored(word);
    }

    fn store_nt(self, word: &AtomicU64, value: u64) {
        self.inner.store(word, value, Ordering::Relaxed);
        self.write_back(Lines::of_words(std::slice::from_ref(word)));
    }

    fn store_nt_line(self, line: &[AtomicU64; 8], values: &[u64; 8]) {
        for (word, value) in line.iter().zip(values) {
            self.store_nt(word, *value);
        }
    }

    fn compare_exchange(self, word: &AtomicU64, current: u64, new: u64) -> std::result::Result<u64, u64> {
        let done = self.inner.compare_exchange(word, current, new);
        self.stored(word);
        done
    }

    fn rmw(self, word: &AtomicU64, op: Rmw, operand: u64) -> u64 {
        let old = self.inner.rmw(word, op, operand);
        self.stored(word);
        old
    }

    fn write_back(self, lines: Lines<'_>) {
        let base = self.stage.base.load(Ordering::Relaxed).addr();
        let numbers = lines.iter().map(|line| line.addr().wrapping_sub(base) / LINE);
        self.pending().lines.extend(numbers);
    }

    fn fence(self) {
        let mut pending = self.pending();
        if self.stage.evict_one_in > 0 && (pending.random >> 16).is_multiple_of(RESTS_ONE_IN) {
            // Before a fence most is not durable: a kill is more likely to find the process so.
            std::thread::sleep(REST);
        }
        for line in pending.lines.drain(..) {
            self.stage.copy(line);
        }
        self.inner.fence();
    }
}

/// The backing of a pool on a [`Shadow`]: a private mapping to work on, and the file beside it.
#[derive(Debug)]
pub struct ShadowBacking {
    file: FileBacking,
    stage: &'static Stage,
}

impl Backing for ShadowBacking {
    fn describe(&self) -> String {
        self.file.describe()
    }

    fn kind(&self) -> BackingKind {
        BackingKind::File
    }

    fn len(&self) -> Result<u64> {
        self.file.len()
    }

    fn limit(&self) -> u64 {
        self.file.limit()
    }

    fn identity(&self) -> Option<FileId> {
        self.file.identity()
    }

    fn is_writable(&self) -> bool {
        self.file.is_writable()
    }

    fn try_lock(&self, access: Access) -> Result<()> {
        self.file.try_lock(access)
    }

    fn unlock(&self) {
        self.file.unlock();
    }

    fn read(&self, offset: u64, bytes: &mut [u8]) -> Result<()> {
        self.file.read(offset, bytes)
    }

    fn reset(&self) -> Result<()> {
        self.file.reset()
    }

    fn allocate(&self, len: u64) -> Result<()> {
        self.file.allocate(len)
    }

    fn allocate_ahead(&self, len: u64) -> Result<()> {
        self.file.allocate_ahead(len)
    }

    fn cut(&self, len: u64) -> Result<()> {
        self.file.cut(len)
    }

    fn map(&self, window: &Window<'_>) -> Result<()> {
        if window.access() == Access::Shared {
            let len = window.reserve().len() as u64;
            let file = match self.stage.file.get() {
                Some(file) => file,
                None => {
                    let made = Reserve::pages(len, len)?;
                    self.stage.file.get_or_init(|| made)
                }
            };
            self.file.map(&Window::new(file, window.range(), Access::Shared))?;
        }
        self.file.map(&Window::new(window.reserve(), window.range(), Access::Private))
    }

    fn sync(&self) -> Result<()> {
        // What the file survives here is the death of the process.
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Hardware, Off, PoolOptions, Word};

    fn pool(path: &std::path::Path, evict_one_in: u64) -> crate::Pool<Shadow<Hardware>> {
        let (backing, medium) = Shadow::over(Hardware::PAGE_CACHE, FileBacking::create(path).unwrap(), evict_one_in, 1);
        PoolOptions::new().initial_size(1 << 20).max_size(8 << 20).create_on(backing, medium).unwrap()
    }

    /// A word of the file at `off` as another process would see it.
    fn in_file(path: &std::path::Path, off: u64) -> u64 {
        let bytes = std::fs::read(path).unwrap();
        u64::from_le_bytes(bytes[off as usize..off as usize + 8].try_into().unwrap())
    }

    #[test]
    fn only_what_was_written_back_and_fenced_reaches_the_file() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("p");
        let pool = pool(&path, 0);
        let mut session = pool.session().unwrap();
        let mut other = pool.session().unwrap();
        let op = session.enter().unwrap();
        let reserved = pool.space().reserve_extent(&op, crate::Owner(0), 1).unwrap();
        let off = reserved.off();
        let word = op.at(Off::<Word>::new(off));
        op.store(word, 7, Ordering::Release);
        op.fence();
        assert_eq!(in_file(&path, off), 0, "not written back");
        op.write_back(word);
        other.enter().unwrap().fence();
        assert_eq!(in_file(&path, off), 0, "fenced by another session");
        op.fence();
        assert_eq!(in_file(&path, off), 7);
        let far = op.at(Off::<Word>::new(off + 4096));
        op.store_nt(far, 9);
        assert_eq!(in_file(&path, off + 4096), 0);
        op.fence();
        assert_eq!(in_file(&path, off + 4096), 9);
    }

    #[test]
    fn lines_are_evicted_when_asked_for_and_growth_reaches_both_mappings() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("p");
        let pool = pool(&path, 4);
        let mut session = pool.session().unwrap();
        let op = session.enter().unwrap();
        let reserved = pool.space().reserve_extent(&op, crate::Owner(0), 2 << 20).unwrap();
        let off = reserved.off();
        for i in 0..1000 {
            op.store(op.at(Off::<Word>::new(off + i * 64)), 5, Ordering::Release);
        }
        let bytes = std::fs::read(&path).unwrap();
        let evicted = (0..1000).filter(|i| bytes[(off + i * 64) as usize] == 5).count();
        assert!((100..600).contains(&evicted), "{evicted} of 1000");
        let last = op.at(Off::<Word>::new(off + (2 << 20) - 8));
        op.store(last, 3, Ordering::Release);
        op.persist(last);
        assert_eq!(in_file(&path, off + (2 << 20) - 8), 3);
    }
}
