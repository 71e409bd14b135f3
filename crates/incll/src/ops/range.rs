//! Ranges, prefixes, and what is counted and found by them.

use std::ops::{Bound, ControlFlow};

use durix_pmem::{Medium, Op};

use crate::error::Result;
use crate::tree::Masstree;
use crate::value::Value;
use crate::{MAX_KEY, Policy};

/// As much of a bound as a key can have, and whether that is not all: then no key lies between the two.
fn cut(bound: &[u8]) -> (&[u8], bool) {
    let cut = &bound[..bound.len().min(MAX_KEY)];
    (cut, cut.len() < bound.len())
}

/// The first key behind all that start with `prefix`; none where it consists of `0xff`.
fn behind(prefix: &[u8]) -> Option<Vec<u8>> {
    let mut end = prefix.to_vec();
    while let Some(last) = end.last_mut() {
        if *last < 0xff {
            *last += 1;
            return Some(end);
        }
        end.pop();
    }
    None
}

impl<M: Medium, P: Policy> Masstree<M, P> {
    /// Calls `visit` with keys and values from `from` to `to`, ascending, until it breaks or the range ends. Each key comes at
    /// most once, with a value that it had at some moment of the scan. Bounds may be longer than keys. Holds the operation open: in
    /// long scans, break and go on with a new operation from the last key, so that boundaries are not held up.
    ///
    /// # Errors
    /// As [`get`](Self::get).
    pub fn range<'a>(
        &'a self,
        op: &'a Op<'_, M>,
        from: Bound<&[u8]>,
        to: Bound<&[u8]>,
        visit: impl FnMut(&[u8], Value<'a, M>) -> ControlFlow<()>,
    ) -> Result<()> {
        self.range_expecting(op, from, to, usize::MAX, visit)
    }

    /// As [`range`](Self::range), where `visit` breaks after `expected` keys: no value is fetched beyond them. A hint.
    ///
    /// # Errors
    /// As [`get`](Self::get).
    pub fn range_expecting<'a>(
        &'a self,
        op: &'a Op<'_, M>,
        from: Bound<&[u8]>,
        to: Bound<&[u8]>,
        expected: usize,
        mut visit: impl FnMut(&[u8], Value<'a, M>) -> ControlFlow<()>,
    ) -> Result<()> {
        let (start, inclusive) = match from {
            Bound::Included(key) => (Some(cut(key).0), !cut(key).1),
            Bound::Excluded(key) => (Some(cut(key).0), false),
            Bound::Unbounded => (None, true),
        };
        self.cx(op, start.unwrap_or_default())?.scan::<false, _>(start, inclusive, expected, |key, value| match to {
            Bound::Included(end) if key > end => ControlFlow::Break(()),
            Bound::Excluded(end) if key >= end => ControlFlow::Break(()),
            _ => visit(key, value),
        })
    }

    /// As [`range`](Self::range), descending: from `to` down to `from`.
    ///
    /// # Errors
    /// As [`get`](Self::get).
    pub fn range_rev<'a>(
        &'a self,
        op: &'a Op<'_, M>,
        from: Bound<&[u8]>,
        to: Bound<&[u8]>,
        mut visit: impl FnMut(&[u8], Value<'a, M>) -> ControlFlow<()>,
    ) -> Result<()> {
        let (end, inclusive) = match to {
            Bound::Included(key) => (Some(cut(key).0), true),
            Bound::Excluded(key) => (Some(cut(key).0), cut(key).1),
            Bound::Unbounded => (None, true),
        };
        self.cx(op, end.unwrap_or_default())?.scan::<true, _>(end, inclusive, usize::MAX, |key, value| match from {
            Bound::Included(start) if key < start => ControlFlow::Break(()),
            Bound::Excluded(start) if key <= start => ControlFlow::Break(()),
            _ => visit(key, value),
        })
    }

    /// Calls `visit` with all keys that start with `prefix`, ascending, and their values.
    ///
    /// # Errors
    /// As [`get`](Self::get).
    pub fn prefix<'a>(
        &'a self,
        op: &'a Op<'_, M>,
        prefix: &[u8],
        visit: impl FnMut(&[u8], Value<'a, M>) -> ControlFlow<()>,
    ) -> Result<()> {
        let end = behind(prefix);
        let to = end.as_deref().map_or(Bound::Unbounded, Bound::Excluded);
        self.range(op, Bound::Included(prefix), to, visit)
    }

    /// Number of keys: counts them, so linear in it.
    ///
    /// # Errors
    /// As [`get`](Self::get).
    pub fn len(&self, op: &Op<'_, M>) -> Result<u64> {
        let mut count = 0;
        self.range(op, Bound::Unbounded, Bound::Unbounded, |_, _| {
            count += 1;
            ControlFlow::Continue(())
        })?;
        Ok(count)
    }

    /// Whether there is no key.
    ///
    /// # Errors
    /// As [`get`](Self::get).
    pub fn is_empty(&self, op: &Op<'_, M>) -> Result<bool> {
        Ok(self.first(op)?.is_none())
    }

    /// The smallest key, with its value.
    ///
    /// # Errors
    /// As [`get`](Self::get).
    pub fn first<'a>(&'a self, op: &'a Op<'_, M>) -> Result<Option<(Vec<u8>, Value<'a, M>)>> {
        let mut first = None;
        self.range(op, Bound::Unbounded, Bound::Unbounded, |key, value| {
            first = Some((key.to_vec(), value));
            ControlFlow::Break(())
        })?;
        Ok(first)
    }

    /// The largest key, with its value.
    ///
    /// # Errors
    /// As [`get`](Self::get).
    pub fn last<'a>(&'a self, op: &'a Op<'_, M>) -> Result<Option<(Vec<u8>, Value<'a, M>)>> {
        let mut last = None;
        self.range_rev(op, Bound::Unbounded, Bound::Unbounded, |key, value| {
            last = Some((key.to_vec(), value));
            ControlFlow::Break(())
        })?;
        Ok(last)
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn behind_a_prefix() {
        assert_eq!(super::behind(b"ab"), Some(b"ac".to_vec()));
        assert_eq!(super::behind(b"a\xff"), Some(b"b".to_vec()));
        assert_eq!(super::behind(b"\xff\xff"), None);
        assert_eq!(super::behind(b""), None);
    }
}
