//! Ranges of keys.

use std::ops::{Bound, RangeBounds};

/// Entries that a walk takes in one go.
pub(crate) const BATCH: usize = 64;

/// The first and the last key that can lie in a range; `None` where none can.
pub(crate) fn ends(range: &impl RangeBounds<u64>) -> Option<(u64, u64)> {
    let first = match range.start_bound() {
        Bound::Included(key) => *key,
        Bound::Excluded(key) => key.checked_add(1)?,
        Bound::Unbounded => 0,
    };
    let last = match range.end_bound() {
        Bound::Included(key) => *key,
        Bound::Excluded(key) => key.checked_sub(1)?,
        Bound::Unbounded => u64::MAX,
    };
    (first <= last).then_some((first, last))
}

/// Where a walk goes on after entries that it has taken, unless those were all.
pub(crate) fn after(taken: &[(u64, u64)], all: bool) -> Option<u64> {
    taken.last().and_then(|(key, _)| key.checked_add(1)).filter(|_| !all)
}

/// As [`after`], of a walk downwards.
pub(crate) fn before(taken: &[(u64, u64)], all: bool) -> Option<u64> {
    taken.last().and_then(|(key, _)| key.checked_sub(1)).filter(|_| !all)
}

/// Calls `f` for all entries of a range, upwards. `take` appends up to [`BATCH`] entries between two keys, both included,
/// and returns whether those were all.
pub(crate) fn upwards<E>(
    range: &impl RangeBounds<u64>,
    mut take: impl FnMut((u64, u64), &mut Vec<(u64, u64)>) -> Result<bool, E>,
    mut f: impl FnMut(u64, u64),
) -> Result<(), E> {
    let (mut left, mut batch) = (ends(range), Vec::new());
    while let Some((first, last)) = left {
        batch.clear();
        let all = take((first, last), &mut batch)?;
        batch.iter().for_each(|(key, value)| f(*key, *value));
        left = after(&batch, all).filter(|next| *next <= last).map(|next| (next, last));
    }
    Ok(())
}

/// As [`upwards`], from the last entry to the first; `take` appends in that order.
pub(crate) fn downwards<E>(
    range: &impl RangeBounds<u64>,
    mut take: impl FnMut((u64, u64), &mut Vec<(u64, u64)>) -> Result<bool, E>,
    mut f: impl FnMut(u64, u64),
) -> Result<(), E> {
    let (mut left, mut batch) = (ends(range), Vec::new());
    while let Some((first, last)) = left {
        batch.clear();
        let all = take((first, last), &mut batch)?;
        batch.iter().for_each(|(key, value)| f(*key, *value));
        left = before(&batch, all).filter(|next| *next >= first).map(|next| (first, next));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ends_of_ranges() {
        use Bound::{Excluded, Included, Unbounded};
        let ends = |from, to| super::ends(&(from, to));
        assert_eq!(ends(Unbounded, Unbounded), Some((0, u64::MAX)));
        assert_eq!(ends(Excluded(0), Excluded(u64::MAX)), Some((1, u64::MAX - 1)));
        assert_eq!(ends(Included(7), Included(7)), Some((7, 7)));
        assert_eq!(ends(Excluded(u64::MAX), Unbounded), None);
        assert_eq!(ends(Unbounded, Excluded(0)), None);
        assert_eq!(ends(Included(8), Included(7)), None);
        assert_eq!(ends(Excluded(7), Excluded(8)), None);
    }
}
