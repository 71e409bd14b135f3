//! Optimistic reads. A reader takes no lock: it reads the version, then words, then the version again, and begins anew if a commit has
//! stored words meanwhile. If the reader comes first, it has what was durable before the commit; if the commit's first store comes
//! first, the reader finds the version odd, or changed. Words are stored after the fence that makes them durable, so a
//! reader never returns what a crash can take back. A block that is freed has changed the version before it can be used again.
//!
//! A reader that meets too many commits takes the writers' latch.

use std::ops::Bound;
use std::sync::atomic::Ordering;

use durix_index::Direction;
use durix_pmem::{Medium, Op};

use crate::BPlusTree;
use crate::error::{Error, Result};
use crate::layout::NODE;
use crate::node::{Committed, Node, Words, key_of, leaf_of, value_of};

/// Attempts before a reader takes the latch.
const ATTEMPTS: u32 = 64;

/// Pairs in the order of a walk.
pub(crate) type Pairs = Vec<(Vec<u8>, Vec<u8>)>;

impl<M: Medium> BPlusTree<M> {
    /// Runs `read` on the words of one moment.
    pub(crate) fn read<R>(
        &self,
        op: &Op<'_, M>,
        mut read: impl FnMut(&Committed<'_, '_, M>) -> Result<R>,
    ) -> Result<R> {
        self.poison.check(op)?;
        let (m, words) = (op.medium(), Committed { op, block_words: self.block_words() });
        for attempt in 0..ATTEMPTS {
            let before = m.shared_load(&self.version, Ordering::Acquire);
            if before & 1 == 0 {
                let found = read(&words);
                // The loads of `read` are acquiring, so this one comes after them.
                if m.shared_load(&self.version, Ordering::Acquire) == before {
                    return found;
                }
            }
            m.spin(attempt);
        }
        let _latch = self.latch.lock(m);
        read(&words)
    }

    /// Puts the value of a key into `value`, if the key is there; returns whether it is.
    pub(crate) fn look_up(&self, op: &Op<'_, M>, key: &[u8], value: Option<&mut Vec<u8>>) -> Result<bool> {
        let root = self.root_off;
        let mut value = value;
        self.read(op, |words| {
            if let Some(value) = &mut value {
                value.clear();
            }
            find(words, words.word(root), key, value.as_deref_mut())
        })
    }

    /// The pairs of the next leaf that has some, from a bound on.
    pub(crate) fn step(&self, op: &Op<'_, M>, from: Bound<&[u8]>, direction: Direction) -> Result<Pairs> {
        let root = self.root_off;
        self.read(op, |words| {
            let mut walk = Walk { words, from, direction, pairs: Pairs::new(), left: op.mapping().len() / NODE + 2 };
            if words.word(root) != 0 {
                walk.node(Node::root(words, words.word(root))?)?;
            }
            Ok(walk.pairs)
        })
    }
}

/// Looks a key up below a root, or 0 for none.
pub(crate) fn find(words: &impl Words, root: u64, key: &[u8], value: Option<&mut Vec<u8>>) -> Result<bool> {
    if root == 0 {
        return Ok(false);
    }
    let leaf = leaf_of(words, root, key, None)?;
    let Ok(place) = leaf.seek(words, key)? else { return Ok(false) };
    if let Some(value) = value {
        value_of(words, leaf.slot(words, place), value)?;
    }
    Ok(true)
}

struct Walk<'a, W: Words> {
    words: &'a W,
    from: Bound<&'a [u8]>,
    direction: Direction,
    pairs: Pairs,
    /// Nodes that may still be visited: more than fit into the pool are visited in a corrupt tree only.
    left: u64,
}

impl<W: Words> Walk<'_, W> {
    /// Takes the pairs of the first leaf below a node that has some.
    fn node(&mut self, node: Node) -> Result<()> {
        let visited = Error::Corrupt { what: "a link that was followed before", offset: node.off, found: node.off };
        self.left = self.left.checked_sub(1).ok_or(visited)?;
        if node.level == 0 {
            return self.leaf(node);
        }
        let first = match (self.from, self.direction) {
            (Bound::Included(key) | Bound::Excluded(key), _) => node.child_of(self.words, key)?,
            (Bound::Unbounded, Direction::Forward) => 0,
            (Bound::Unbounded, Direction::Backward) => node.len(),
        };
        let children: &mut dyn Iterator<Item = usize> = match self.direction {
            Direction::Forward => &mut (first..=node.len()),
            Direction::Backward => &mut (0..=first).rev(),
        };
        for number in children {
            self.node(node.child(self.words, number)?)?;
            if !self.pairs.is_empty() {
                break;
            }
        }
        Ok(())
    }

    fn leaf(&mut self, leaf: Node) -> Result<()> {
        let place = match self.from {
            Bound::Included(key) | Bound::Excluded(key) => Some((key, leaf.seek(self.words, key)?)),
            Bound::Unbounded => None,
        };
        let is_included = matches!(self.from, Bound::Included(_));
        let places: &mut dyn Iterator<Item = usize> = match (self.direction, place) {
            (Direction::Forward, Some((_, Ok(place)))) => &mut (place + usize::from(!is_included)..leaf.len()),
            (Direction::Forward, Some((_, Err(place)))) => &mut (place..leaf.len()),
            (Direction::Forward, None) => &mut (0..leaf.len()),
            (Direction::Backward, Some((_, Ok(place)))) => &mut (0..place + usize::from(is_included)).rev(),
            (Direction::Backward, Some((_, Err(place)))) => &mut (0..place).rev(),
            (Direction::Backward, None) => &mut (0..leaf.len()).rev(),
        };
        for place in places {
            let (slot, mut key, mut value) = (leaf.slot(self.words, place), Vec::new(), Vec::new());
            key_of(self.words, slot, &mut key)?;
            if !self.is_next(&key) {
                return Err(Error::Corrupt { what: "a key out of order", offset: leaf.off, found: place as u64 });
            }
            value_of(self.words, slot, &mut value)?;
            self.pairs.push((key, value));
        }
        Ok(())
    }

    /// Whether a key comes after the last one, or lies within the bound if it is the first: in a damaged tree a walk that goes back
    /// might never end.
    fn is_next(&self, key: &[u8]) -> bool {
        let after = |last: &[u8]| match self.direction {
            Direction::Forward => key.cmp(last),
            Direction::Backward => last.cmp(key),
        };
        match (self.pairs.last(), self.from) {
            (Some((last, _)), _) => after(last).is_gt(),
            (None, Bound::Included(bound)) => after(bound).is_ge(),
            (None, Bound::Excluded(bound)) => after(bound).is_gt(),
            (None, Bound::Unbounded) => true,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use durix_pmem::backing::HeapBacking;
    use durix_pmem::{Hardware, PoolOptions};
    use std::sync::atomic::AtomicBool;
    use std::time::Duration;

    /// After its attempts a reader waits for the writer: it does not take what it reads meanwhile.
    #[test]
    fn a_reader_that_gives_up_waits_for_the_writer() {
        let options = PoolOptions::new().initial_size(4 << 20).max_size(4 << 20);
        let pool = options.create_on(HeapBacking::new(4 << 20), Hardware::PAGE_CACHE).unwrap();
        let tree = pool.open_structure::<BPlusTree>("tree", &Default::default()).unwrap();
        let [mut writer, mut reader] = [(); 2].map(|()| pool.session().unwrap());
        let (m, has_returned) = (Hardware::PAGE_CACHE, AtomicBool::new(false));
        // A writer that is held up in the middle of its stores.
        let latch = tree.latch.lock(m);
        let version = m.shared_load(&tree.version, Ordering::Relaxed);
        m.shared_store(&tree.version, version + 1, Ordering::Release);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let found = tree.look_up(&reader.enter().unwrap(), b"k", None).unwrap();
                has_returned.store(true, Ordering::SeqCst);
                assert!(!found);
            });
            std::thread::sleep(Duration::from_millis(200));
            let is_early = has_returned.load(Ordering::SeqCst);
            m.shared_store(&tree.version, version + 2, Ordering::Release);
            drop(latch);
            assert!(!is_early, "the reader has returned what it read beside a writer");
        });
        assert!(tree.look_up(&writer.enter().unwrap(), b"k", None).is_ok());
    }
}
