//! The free chunks of a pool, in volatile memory, as maximal runs.

use std::collections::BTreeMap;

/// Disjoint runs of free chunks; neighbours are always merged.
#[derive(Debug, Default)]
pub(super) struct Runs {
    /// Start to length.
    by_start: BTreeMap<u64, u64>,
}

impl Runs {
    /// Takes `len` chunks from the smallest run that has them; among equals, the lowest. `O(runs)`.
    pub(super) fn take(&mut self, len: u64) -> Option<u64> {
        let fitting = self.by_start.iter().filter(|(_, run)| **run >= len);
        let (&start, &run) = fitting.min_by_key(|(_, run)| **run)?;
        self.by_start.remove(&start);
        if run > len {
            self.by_start.insert(start + len, run - len);
        }
        Some(start)
    }

    /// Gives chunks back.
    pub(super) fn put(&mut self, start: u64, len: u64) {
        if len == 0 {
            return;
        }
        let mut run = (start, len);
        if let Some((&before, &before_len)) = self.by_start.range(..start).next_back() {
            debug_assert!(before + before_len <= start, "chunk {start} was free already");
            if before + before_len == start {
                self.by_start.remove(&before);
                run = (before, before_len + len);
            }
        }
        if let Some(after_len) = self.by_start.remove(&(start + len)) {
            run.1 += after_len;
        }
        self.by_start.insert(run.0, run.1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_merge_and_best_fit_is_taken() {
        let mut runs = Runs::default();
        runs.put(10, 5);
        runs.put(20, 2);
        runs.put(15, 1);
        assert_eq!(runs.by_start, BTreeMap::from([(10, 6), (20, 2)]));
        assert_eq!(runs.take(2), Some(20), "the smallest that fits");
        assert_eq!(runs.take(2), Some(10));
        assert_eq!(runs.take(5), None);
        runs.put(10, 2);
        assert_eq!(runs.by_start, BTreeMap::from([(10, 6)]));
        assert_eq!(runs.take(6), Some(10));
        assert!(runs.by_start.is_empty());
    }
}
