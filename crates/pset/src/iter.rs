//! Iteration: copies of all pairs, a shard at a time.

use durix_pmem::{Medium, Op};

use super::entry::Entry;
use super::error::Result;
use super::set::PersistentSet;

/// A walk over all pairs of a set.
///
/// It holds copies only, so it may live long, and may be forgotten, without holding anything up. Each shard is copied at
/// one moment: every key that is there from the first to the last call comes exactly once, with a value that it had
/// meanwhile. The order is arbitrary. A shard's writers wait while it is copied; memory for a copy of one shard is needed.
#[derive(Debug)]
pub struct Cursor<'a, M: Medium> {
    set: &'a PersistentSet<M>,
    shard: usize,
    bytes: Vec<u8>,
    /// Ends of key and value in `bytes`.
    pairs: Vec<(usize, usize)>,
    next: usize,
    start: usize,
}

impl<M: Medium> Cursor<'_, M> {
    /// Copies the next pair into `key` and `value`; `false` at the end.
    ///
    /// # Errors
    /// [`Error::Pool`](super::Error::Pool) after a panic in an update.
    pub fn next(&mut self, op: &Op<'_, M>, key: &mut Vec<u8>, value: &mut Vec<u8>) -> Result<bool> {
        let Some((k, v)) = self.next_ref(op)? else { return Ok(false) };
        key.clear();
        key.extend_from_slice(k);
        value.clear();
        value.extend_from_slice(v);
        Ok(true)
    }

    /// The next pair, as a copy that lives until the next call; `None` at the end.
    ///
    /// # Errors
    /// [`Error::Pool`](super::Error::Pool) after a panic in an update.
    pub fn next_ref(&mut self, op: &Op<'_, M>) -> Result<Option<(&[u8], &[u8])>> {
        while self.next == self.pairs.len() {
            if self.shard == self.set.shards.len() {
                return Ok(None);
            }
            self.copy_shard(op)?;
        }
        let (key_end, value_end) = self.pairs[self.next];
        let start = std::mem::replace(&mut self.start, value_end);
        self.next += 1;
        Ok(Some((&self.bytes[start..key_end], &self.bytes[key_end..value_end])))
    }

    fn copy_shard(&mut self, op: &Op<'_, M>) -> Result<()> {
        let m = op.medium();
        let shard = &self.set.shards[self.shard];
        self.bytes.clear();
        self.pairs.clear();
        (self.next, self.start) = (0, 0);
        let mut inner = shard.lock(m);
        self.set.poison.check(op)?;
        self.set.settle_shard(op, shard, &mut inner);
        let mut part = Vec::new();
        for cell in shard.index.iter(m) {
            let Some(entry) = Entry::at(op, cell.off()) else { continue };
            entry.read_key(op, &mut part);
            self.bytes.extend_from_slice(&part);
            let key_end = self.bytes.len();
            entry.read_value(op, &mut part);
            self.bytes.extend_from_slice(&part);
            self.pairs.push((key_end, self.bytes.len()));
        }
        self.shard += 1;
        Ok(())
    }
}

impl<M: Medium> PersistentSet<M> {
    /// A walk over all pairs.
    pub fn cursor(&self) -> Cursor<'_, M> {
        Cursor { set: self, shard: 0, bytes: Vec::new(), pairs: Vec::new(), next: 0, start: 0 }
    }

    /// Runs `f` on copies of all pairs, as a [`Cursor`] gives them; no lock is held meanwhile.
    ///
    /// # Errors
    /// [`Error::Pool`](super::Error::Pool) after a panic in an update.
    pub fn for_each(&self, op: &Op<'_, M>, mut f: impl FnMut(&[u8], &[u8])) -> Result<()> {
        let mut cursor = self.cursor();
        while let Some((key, value)) = cursor.next_ref(op)? {
            f(key, value);
        }
        Ok(())
    }
}
