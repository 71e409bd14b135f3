//! What the machine offers.

use std::sync::atomic::{AtomicU64, Ordering, compiler_fence, fence};

use super::{Medium, Rmw, Survives};
use crate::arch;
use crate::journal::{Notes, NotesTicket};
use crate::line::Lines;
use crate::wide::Wide;
use crate::write_back::WriteBackKind;

/// The medium of real machines. Loads and stores are the plain instructions; a write-back costs one predictable branch
/// on the [kind](WriteBackKind), which was decided when the mapping was opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hardware {
    kind: WriteBackKind,
    /// Where lines are noted, for the kind that does.
    notes: u16,
}

impl Hardware {
    /// The medium for an ordinary file: survives the death of the process.
    pub const PAGE_CACHE: Hardware = Hardware::of(WriteBackKind::PageCache);

    const fn of(kind: WriteBackKind) -> Hardware {
        Hardware { kind, notes: 0 }
    }

    /// The medium of a journaled pool.
    pub(crate) fn journaled(notes: &NotesTicket) -> Hardware {
        Hardware { kind: WriteBackKind::Journal, notes: notes.0 }
    }

    /// The medium for persistent memory on this machine: fence only where the platform flushes its caches on power
    /// failure, otherwise the best write-back instruction there is; `None` where the processor has none that reaches
    /// the point of persistence.
    pub fn for_pmem() -> Option<Hardware> {
        let kind = if platform_flushes_caches() { WriteBackKind::FenceOnly } else { arch::best_write_back()? };
        Some(Hardware::of(kind))
    }

    /// The best write-back instruction of this processor, whatever the platform says about its caches: what the
    /// papers measured, for benches.
    pub fn write_back_instruction() -> Option<Hardware> {
        arch::best_write_back().map(Hardware::of)
    }

    /// How lines are written back.
    pub fn kind(self) -> WriteBackKind {
        self.kind
    }
}

impl WriteBackKind {
    /// The kind of current machines of this architecture, which is compiled inline; older ones pay a call.
    const BEST_HERE: WriteBackKind =
        if cfg!(target_arch = "aarch64") { WriteBackKind::DcCvap } else { WriteBackKind::Clwb };
}

impl Hardware {
    #[cold]
    #[inline(never)]
    fn write_back_otherwise(self, lines: Lines<'_>) {
        let write_back: unsafe fn(*const u8) = match self.kind {
            WriteBackKind::ClflushOpt => arch::clflushopt,
            WriteBackKind::Clflush => arch::clflush,
            // These need an instruction that is the best of its processors, and is compiled inline there.
            WriteBackKind::Clwb | WriteBackKind::DcCvap => arch::best,
            WriteBackKind::Journal => return self.note(lines),
            WriteBackKind::FenceOnly | WriteBackKind::PageCache => return,
        };
        // SAFETY: as in `write_back`.
        lines.iter().for_each(|line| unsafe { write_back(line) });
    }
}

impl Hardware {
    /// Older machines, and those without write-backs. A journal needs no fence.
    #[cold]
    #[inline(never)]
    fn fence_otherwise(self) {
        compiler_fence(Ordering::Release);
        if self.kind != WriteBackKind::Journal {
            arch::persist_fence();
        }
    }

    #[cold]
    #[inline(never)]
    fn note(self, lines: Lines<'_>) {
        if let Some(notes) = Notes::of(self.notes) {
            notes.note(lines);
        }
    }
}

fn store_all(to: &[AtomicU64], values: &[u64]) {
    to.iter().zip(values).for_each(|(word, value)| word.store(*value, Ordering::Relaxed));
}

/// Whether every persistent-memory region of this machine says that the processor caches are in its persistence domain
/// (eADR, CXL global persistent flush). No region, or one that says otherwise, means no.
fn platform_flushes_caches() -> bool {
    regions_are_cpu_cache(std::path::Path::new("/sys/bus/nd/devices"))
}

fn regions_are_cpu_cache(devices: &std::path::Path) -> bool {
    let Ok(entries) = std::fs::read_dir(devices) else { return false };
    let mut domains = entries
        .flatten()
        .filter(|e| e.file_name().to_string_lossy().starts_with("region"))
        .map(|e| std::fs::read_to_string(e.path().join("persistence_domain")).unwrap_or_default())
        .peekable();
    domains.peek().is_some() && domains.all(|d| d.trim() == "cpu_cache")
}

// SAFETY: every access is the one of the atomic itself, or the same instruction.
unsafe impl Medium for Hardware {
    fn describe(self) -> String {
        format!("hardware ({})", self.kind)
    }

    fn survives(self) -> Survives {
        match self.kind {
            WriteBackKind::PageCache => Survives::ProcessDeath,
            _ => Survives::PowerFailure,
        }
    }

    unsafe fn attach(self, base: *const u8, len: usize) {
        if let (WriteBackKind::Journal, Some(notes)) = (self.kind, Notes::of(self.notes)) {
            notes.attach(base, len);
        }
    }

    unsafe fn detach(self, base: *const u8) {
        if let (WriteBackKind::Journal, Some(notes)) = (self.kind, Notes::of(self.notes)) {
            notes.detach(base);
        }
    }

    #[inline(always)]
    fn load(self, word: &AtomicU64, order: Ordering) -> u64 {
        word.load(order)
    }

    #[inline(always)]
    fn load_words<const N: usize>(self, from: &[AtomicU64; N]) -> [u64; N] {
        arch::load_words(from)
    }

    #[inline(always)]
    fn store(self, word: &AtomicU64, value: u64, order: Ordering) {
        word.store(value, order);
    }

    #[inline(always)]
    fn store_words<const N: usize>(self, to: &[AtomicU64; N], values: &[u64; N]) {
        arch::store_words(to, values);
    }

    #[inline(always)]
    fn store_nt(self, word: &AtomicU64, value: u64) {
        match self.kind {
            WriteBackKind::PageCache | WriteBackKind::FenceOnly => word.store(value, Ordering::Relaxed),
            WriteBackKind::Journal => {
                word.store(value, Ordering::Relaxed);
                self.note(Lines::of_words(std::slice::from_ref(word)));
            }
            _ => arch::store_nt(word, value),
        }
    }

    #[inline(always)]
    fn store_nt_line(self, line: &[AtomicU64; 8], values: &[u64; 8]) {
        match self.kind {
            WriteBackKind::PageCache | WriteBackKind::FenceOnly => store_all(line, values),
            WriteBackKind::Journal => {
                store_all(line, values);
                self.note(Lines::of_words(line));
            }
            _ => arch::store_nt_line(line, values),
        }
    }

    #[inline(always)]
    fn store_words_nt(self, to: &[AtomicU64], values: &[u64]) {
        match self.kind {
            WriteBackKind::PageCache | WriteBackKind::FenceOnly => store_all(to, values),
            WriteBackKind::Journal => {
                store_all(to, values);
                self.note(Lines::of_words(to));
            }
            _ => arch::store_words_nt(to, values),
        }
    }

    #[inline(always)]
    fn compare_exchange(self, word: &AtomicU64, current: u64, new: u64) -> Result<u64, u64> {
        word.compare_exchange(current, new, Ordering::AcqRel, Ordering::Acquire)
    }

    #[inline(always)]
    fn rmw(self, word: &AtomicU64, op: Rmw, operand: u64) -> u64 {
        match op {
            Rmw::Swap => word.swap(operand, Ordering::AcqRel),
            Rmw::Add => word.fetch_add(operand, Ordering::AcqRel),
            Rmw::Or => word.fetch_or(operand, Ordering::AcqRel),
            Rmw::And => word.fetch_and(operand, Ordering::AcqRel),
            Rmw::Max => word.fetch_max(operand, Ordering::AcqRel),
        }
    }

    #[inline(always)]
    fn wide(self) -> Option<Wide> {
        Wide::of_this_processor()
    }

    #[inline(always)]
    fn order(self) {
        fence(Ordering::Release);
    }

    #[inline(always)]
    fn write_back(self, lines: Lines<'_>) {
        if self.kind == WriteBackKind::BEST_HERE {
            // SAFETY: `Lines` can only be made from mapped memory, and the kind is only ever one that CPUID (or its
            // counterpart) has shown to be there.
            lines.iter().for_each(|line| unsafe { arch::best(line) });
        } else if !matches!(self.kind, WriteBackKind::FenceOnly | WriteBackKind::PageCache) {
            self.write_back_otherwise(lines);
        }
    }

    #[inline(always)]
    fn fence(self) {
        // The same test as in `write_back`, so that the two are one branch.
        if self.kind == WriteBackKind::BEST_HERE {
            arch::persist_fence();
        } else if self.kind == WriteBackKind::PageCache {
            compiler_fence(Ordering::Release);
        } else {
            self.fence_otherwise();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn caches_count_as_persistent_only_if_every_region_says_so() {
        let dir = tempfile::tempdir().unwrap();
        assert!(!regions_are_cpu_cache(&dir.path().join("missing")));
        assert!(!regions_are_cpu_cache(dir.path()), "no region at all");
        let region = |name: &str, domain: Option<&str>| {
            let path = dir.path().join(name);
            std::fs::create_dir_all(&path).unwrap();
            if let Some(domain) = domain {
                std::fs::write(path.join("persistence_domain"), domain).unwrap();
            }
        };
        region("nmem0", None);
        assert!(!regions_are_cpu_cache(dir.path()), "a device that is no region");
        region("region0", Some("cpu_cache\n"));
        assert!(regions_are_cpu_cache(dir.path()));
        region("region1", Some("memory_controller\n"));
        assert!(!regions_are_cpu_cache(dir.path()));
        region("region1", Some("cpu_cache\n"));
        assert!(regions_are_cpu_cache(dir.path()));
        region("region2", None);
        assert!(!regions_are_cpu_cache(dir.path()), "a region that does not say");
    }

    #[test]
    fn every_access_does_what_it_says_on_every_kind() {
        #[repr(align(64))]
        struct Block([AtomicU64; 8]);
        let mut media = vec![Hardware::PAGE_CACHE, Hardware::of(WriteBackKind::FenceOnly)];
        media.extend(Hardware::for_pmem());
        let notes = NotesTicket::take().unwrap();
        media.push(Hardware::journaled(&notes));
        for m in media {
            let block = Block(std::array::from_fn(|_| AtomicU64::new(0)));
            m.store_words(&block.0, &[9; 8]);
            assert!(block.0.iter().all(|w| m.load(w, Ordering::Relaxed) == 9));
            m.store_words(block.0[1..4].first_chunk().unwrap(), &[1, 2, 3]);
            assert_eq!([0, 1, 2, 3, 4].map(|i| m.load(&block.0[i], Ordering::Relaxed)), [9, 1, 2, 3, 9]);
            m.store_words(&[], &[]);
            m.store_nt_line(&block.0, &[1, 2, 3, 4, 5, 6, 7, 8]);
            m.store_words_nt(&block.0[6..], &[60, 70]);
            assert_eq!([6, 7].map(|at: usize| m.load(&block.0[at], Ordering::Relaxed)), [60, 70]);
            m.store_words_nt(&block.0[6..], &[7, 8]);
            m.store_nt(&block.0[1], 20);
            m.store(&block.0[2], 30, Ordering::Release);
            m.order();
            m.write_back(Lines::of_words(&block.0));
            m.fence();
            assert_eq!(m.compare_exchange(&block.0[3], 4, 40), Ok(4));
            assert_eq!(m.compare_exchange(&block.0[3], 4, 41), Err(40));
            for (op, new) in [(Rmw::Swap, 6), (Rmw::Add, 12), (Rmw::Or, 14), (Rmw::And, 6), (Rmw::Max, 6)] {
                let old = m.load(&block.0[4], Ordering::Relaxed);
                assert_eq!(m.rmw(&block.0[4], op, 6), old);
                assert_eq!(op.apply(old, 6), m.load(&block.0[4], Ordering::Relaxed));
                assert_eq!(op.apply(old, 6), new);
            }
            let words: Vec<_> = block.0.iter().map(|w| m.load(w, Ordering::Acquire)).collect();
            assert_eq!(words, [1, 20, 30, 40, 6, 6, 7, 8]);
        }
    }
}
