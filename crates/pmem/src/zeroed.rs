//! Zeroed words of volatile memory, for large tables.

use std::ops::Deref;
use std::sync::atomic::AtomicU64;

use memmap2::MmapMut;

use crate::huge::advise_huge_pages;

/// From how many words on a table comes from the system. The allocator would zero such memory by itself, all of it at one go, if it has had
/// it before.
const LARGE: usize = 64 << 10 >> 3;

/// Words of volatile memory, zeroed at first, for tables that are filled little by little. Making a large one takes one system call: the system
/// zeroes a page when it is touched, so whoever makes it holds up nobody. It asks for large pages, like [`advise_huge_pages`].
///
/// ```
/// use std::sync::atomic::Ordering::Relaxed;
///
/// let table = durix_pmem::ZeroedWords::new(1 << 20);
/// assert_eq!((table.len(), table[1 << 19].load(Relaxed)), (1 << 20, 0));
/// table[7].store(1, Relaxed);
/// ```
#[derive(Debug)]
pub struct ZeroedWords(Memory);

#[derive(Debug)]
enum Memory {
    Small(Box<[AtomicU64]>),
    Large(MmapMut),
}

impl ZeroedWords {
    /// So many words.
    ///
    /// # Panics
    /// If they are more than a quarter of all addresses. If memory is used up, the process ends, as it does for a `Vec`.
    pub fn new(len: usize) -> ZeroedWords {
        let bytes = len.checked_mul(size_of::<AtomicU64>()).expect("at most a quarter of the addresses");
        if len >= LARGE
            && let Ok(map) = MmapMut::map_anon(bytes)
        {
            let words = ZeroedWords(Memory::Large(map));
            advise_huge_pages(&words);
            return words;
        }
        ZeroedWords(Memory::Small((0..len).map(|_| AtomicU64::new(0)).collect()))
    }
}

impl Deref for ZeroedWords {
    type Target = [AtomicU64];

    #[inline]
    fn deref(&self) -> &[AtomicU64] {
        match &self.0 {
            Memory::Small(words) => words,
            // SAFETY: the mapping begins at a page, has whole words, and lives as long as the borrow. All access to it is by these atomics: nobody
            // else has the mapping.
            Memory::Large(map) => unsafe {
                std::slice::from_raw_parts(map.as_ptr().cast(), map.len() / size_of::<AtomicU64>())
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::Ordering::Relaxed;

    #[test]
    fn words_are_zeroed_and_keep_what_is_stored() {
        for len in [0, 1, 7, LARGE - 1, LARGE, LARGE + 1, 1 << 20] {
            let words = ZeroedWords::new(len);
            assert_eq!(words.len(), len);
            assert!(words.iter().all(|word| word.load(Relaxed) == 0));
            words.iter().enumerate().for_each(|(at, word)| word.store(at as u64 + 1, Relaxed));
            assert!(words.iter().enumerate().all(|(at, word)| word.load(Relaxed) == at as u64 + 1));
        }
    }

    /// Also where the allocator has such memory left over from before.
    #[cfg(all(target_os = "linux", not(miri)))]
    #[test]
    fn making_a_large_table_touches_none_of_it() {
        let faults = || {
            let stat = std::fs::read_to_string("/proc/thread-self/stat").unwrap();
            stat.rsplit(')').next().unwrap().split_whitespace().nth(7).unwrap().parse::<u64>().unwrap()
        };
        for bytes in [128 << 10, 1 << 20, 16 << 20] {
            // Freed again, which tells the allocator to keep memory of this size.
            drop(std::hint::black_box(vec![1u8; bytes]));
            let before = faults();
            let words = ZeroedWords::new(bytes / 8);
            assert!(faults() - before < 16, "{} page faults for {bytes} bytes", faults() - before);
            assert_eq!(words[bytes / 16].load(Relaxed), 0);
        }
    }
}
