//! Large pages under memory of the heap.

/// A large page of the processors that have them this way, in bytes.
const HUGE: usize = 2 << 20;

/// Asks the kernel for pages of 2 MiB under memory that is about to be used at random, such as a hash table: a lookup in a large table then
/// seldom waits for the processor's own table of pages. To be called before the memory is touched, for instance with
/// [`Vec::spare_capacity_mut`]; what was touched before may stay in small pages.
///
/// A hint, without effect on what the memory holds. Memory of less than two large pages is left alone. Returns whether the kernel takes the
/// advice.
pub fn advise_huge_pages<T>(memory: &[T]) -> bool {
    #[cfg(all(target_os = "linux", not(miri)))]
    if size_of_val(memory) >= 2 * HUGE {
        let page = rustix::param::page_size();
        let first = memory.as_ptr().cast_mut().cast::<u8>();
        let skip = first.align_offset(page);
        let len = (size_of_val(memory) - skip) / page * page;
        // SAFETY: the range consists of whole pages within the memory that is borrowed. The advice changes no contents, and is about how the
        // kernel finds pages from now on: whoever gets the memory later sees no difference.
        let advised =
            unsafe { rustix::mm::madvise(first.wrapping_add(skip).cast(), len, rustix::mm::Advice::LinuxHugepage) };
        return advised.is_ok();
    }
    let _ = memory;
    false
}

#[cfg(all(test, target_os = "linux", not(miri)))]
mod tests {
    use super::*;

    /// The flags of the mapping that an address lies in.
    fn flags(address: usize) -> String {
        let (smaps, mut within) = (std::fs::read_to_string("/proc/self/smaps").unwrap(), false);
        for line in smaps.lines() {
            let range = line.split(' ').next().and_then(|range| range.split_once('-'));
            let ends = range.and_then(|(from, to)| {
                Some((usize::from_str_radix(from, 16).ok()?, usize::from_str_radix(to, 16).ok()?))
            });
            if let Some((from, to)) = ends {
                within = (from..to).contains(&address);
            } else if let Some(flags) = line.strip_prefix("VmFlags:").filter(|_| within) {
                return flags.to_owned();
            }
        }
        panic!("{address:x} is not mapped")
    }

    #[test]
    fn large_memory_is_advised_and_small_memory_is_not() {
        if !std::path::Path::new("/sys/kernel/mm/transparent_hugepage").exists() {
            eprintln!("left out: this kernel has no large pages");
            return;
        }
        let mut large = Vec::<u64>::with_capacity(8 << 20 >> 3);
        assert!(advise_huge_pages(large.spare_capacity_mut()));
        let middle = large.as_ptr() as usize + (4 << 20);
        assert!(flags(middle).contains(" hg"), "{}", flags(middle));
        large.resize(8 << 20 >> 3, 7);
        assert!(large.iter().all(|word| *word == 7), "the contents are as they were written");
        let small = vec![1u8; HUGE];
        assert!(!advise_huge_pages(&small));
    }
}
