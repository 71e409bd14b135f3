//! The free chunks of a pool, in volatile memory, as maximal runs.

use std::collections::BTreeMap;

/// Disjoint runs of free chunks; neighbours are always merged.
#[derive(Debug, Default)]
pub(super) struct Runs {
    /// Start to length.
    by_start: BTreeMap<u64, u64>,
    /// Chunks in all of them.
    total: u64,
}

impl Runs {
    /// Takes `len` chunks from the smallest run that has them; among equals, the lowest. `O(runs)`.
    pub(super) fn take(&mut self, len: u64) -> Option<u64> {
        let fitting = self.by_start.iter().filter(|(_, run)| **run >= len);
        let (&start, &run) = fitting.min_by_key(|(_, run)| **run)?;
        self.by_start.remove(&start);
        self.total -= len;
        if run > len {
            self.by_start.insert(start + len, run - len);
        }
        Some(start)
    }

    /// Chunks in all runs.
    pub(super) fn total(&self) -> u64 {
        self.total
    }

    /// Gives chunks back. Those that are free already stay so: in a corrupt pool, extents can overlap.
    pub(super) fn put(&mut self, start: u64, len: u64) {
        let end = start + len;
        let mut at = start;
        while at < end {
            let before = self.by_start.range(..=at).next_back().map_or(0, |(start, len)| start + len);
            if before > at {
                at = before;
                continue;
            }
            let gap_end = self.by_start.range(at..end).next().map_or(end, |(start, _)| *start);
            self.insert(at, gap_end - at);
            at = gap_end;
        }
    }

    /// Takes these very chunks, as far as they are free.
    pub(super) fn remove(&mut self, start: u64, len: u64) {
        let end = start + len;
        let overlapping: Vec<_> =
            self.by_start.range(..end).rev().map_while(|(s, l)| (s + l > start).then_some((*s, *l))).collect();
        for (run, run_len) in overlapping {
            self.by_start.remove(&run);
            if run < start {
                self.by_start.insert(run, start - run);
            }
            if run + run_len > end {
                self.by_start.insert(end, run + run_len - end);
            }
        }
    }

    /// Adds a run that overlaps no other, merging it with its neighbours.
    fn insert(&mut self, start: u64, len: u64) {
        self.total += len;
        let mut run = (start, len);
        if let Some((&before, &before_len)) = self.by_start.range(..start).next_back()
            && before + before_len == start
        {
            self.by_start.remove(&before);
            run = (before, before_len + len);
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

    #[test]
    fn chunks_are_taken_by_place() {
        for mask in 0..1u32 << 8 {
            for (start, len) in [(0, 8), (2, 3), (0, 1), (7, 1), (3, 5)] {
                let mut runs = Runs::default();
                (0..8).filter(|i| mask >> i & 1 == 1).for_each(|i| runs.put(i, 1));
                runs.remove(start, len);
                let free: Vec<u64> = runs.by_start.iter().flat_map(|(s, l)| *s..s + l).collect();
                let expected: Vec<u64> =
                    (0..8).filter(|i| mask >> i & 1 == 1 && !(start..start + len).contains(i)).collect();
                assert_eq!(free, expected, "{mask:#b} {start} {len}");
            }
        }
    }

    #[test]
    fn chunks_given_back_twice_are_free_once() {
        for mask in 0..1u32 << 8 {
            for (start, len) in [(0, 8), (2, 3), (0, 1), (7, 1), (3, 5)] {
                let mut runs = Runs::default();
                (0..8).filter(|i| mask >> i & 1 == 1).for_each(|i| runs.put(i, 1));
                runs.put(start, len);
                let mut free: Vec<u64> = Vec::new();
                let mut last_end = None;
                for (s, l) in &runs.by_start {
                    assert!(last_end.is_none_or(|e| e < *s), "neighbours are merged: {runs:?}");
                    last_end = Some(s + l);
                    free.extend(*s..s + l);
                }
                let expected: Vec<u64> =
                    (0..8).filter(|i| mask >> i & 1 == 1 || (start..start + len).contains(i)).collect();
                assert_eq!(free, expected);
            }
        }
    }
}
