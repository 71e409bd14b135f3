//! Changes to be made together.

use std::ops::Range;

/// A change to a key: its new value, or `None` for its removal.
pub type Change<'a> = Option<&'a [u8]>;

/// Changes to be made together: by [`Index::apply`](crate::Index::apply). Keeps its memory when it is cleared.
#[derive(Clone, Debug, Default)]
pub struct Batch {
    bytes: Vec<u8>,
    items: Vec<Item>,
}

#[derive(Clone, Debug)]
struct Item {
    key: Range<usize>,
    value: Option<Range<usize>>,
}

impl Batch {
    /// An empty batch.
    pub fn new() -> Self {
        Batch::default()
    }

    /// An empty batch with memory for this number of changes, and for `bytes` bytes of their keys and values.
    pub fn with_capacity(changes: usize, bytes: usize) -> Self {
        Batch { bytes: Vec::with_capacity(bytes), items: Vec::with_capacity(changes) }
    }

    /// Maps `key` to `value`, whatever it was mapped to. Of several changes to one key the last counts.
    pub fn insert(&mut self, key: &[u8], value: &[u8]) -> &mut Self {
        let key = self.copy(key);
        let value = Some(self.copy(value));
        self.items.push(Item { key, value });
        self
    }

    /// Removes `key`, if it is there.
    pub fn remove(&mut self, key: &[u8]) -> &mut Self {
        let key = self.copy(key);
        self.items.push(Item { key, value: None });
        self
    }

    /// The changes, in the order in which they were made.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = (&[u8], Change<'_>)> {
        let bytes = |range: &Range<usize>| &self.bytes[range.clone()];
        self.items.iter().map(move |item| (bytes(&item.key), item.value.as_ref().map(bytes)))
    }

    /// Number of changes.
    pub fn len(&self) -> usize {
        self.items.len()
    }

    /// Whether the batch has no change.
    pub fn is_empty(&self) -> bool {
        self.items.is_empty()
    }

    /// Forgets all changes.
    pub fn clear(&mut self) {
        self.bytes.clear();
        self.items.clear();
    }

    fn copy(&mut self, bytes: &[u8]) -> Range<usize> {
        let start = self.bytes.len();
        self.bytes.extend_from_slice(bytes);
        start..self.bytes.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changes_come_out_as_they_went_in() {
        let mut batch = Batch::new();
        batch.insert(b"a", b"1").remove(b"").insert(b"", b"");
        let changes: Vec<_> = batch.iter().collect();
        assert_eq!(changes, [(&b"a"[..], Some(&b"1"[..])), (b"", None), (b"", Some(b""))]);
        batch.clear();
        assert!(batch.is_empty() && batch.iter().next().is_none());
    }
}
