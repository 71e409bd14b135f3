//! The B+-tree of section 5.2 of the REWIND paper: records of 32 bytes, one body over whatever stores its words, so that all
//! contestants run the same code.
//!
//! Leaves are unsorted (a bitmap says which slots hold records), inner nodes are sorted. A leaf that becomes empty stays.

/// Words of a node.
pub(in crate::paper) const NODE: usize = 32;
/// Records of a leaf.
const RECORDS: u64 = 7;
/// Keys of an inner node.
const KEYS: usize = 15;
/// In word 0: a leaf, with the bitmap below. An inner node has the number of its keys there.
const LEAF: u64 = 1 << 63;

/// A record without its key.
pub(in crate::paper) type Row = [u64; 3];

/// What stores the words of a tree.
pub(in crate::paper) trait Words {
    /// The word at an offset.
    fn get(&mut self, at: u64) -> u64;
    /// Stores it.
    fn set(&mut self, at: u64, value: u64);
    /// A new node.
    fn alloc(&mut self, content: &[u64; NODE]) -> u64;
    /// An operation has ended.
    fn done(&mut self) {}
}

/// A tree: the place of the word that holds its root.
#[derive(Clone, Copy, Debug)]
pub(in crate::paper) struct Tree(pub(in crate::paper) u64);

fn slot(leaf: u64, slot: u64) -> u64 {
    leaf + 16 + slot * 32
}

fn key_word(node: u64, index: usize) -> u64 {
    node + 8 * (1 + index as u64)
}

fn child_word(node: u64, index: usize) -> u64 {
    node + 8 * (1 + KEYS + index) as u64
}

impl Tree {
    /// Makes it an empty tree.
    pub(in crate::paper) fn format(self, words: &mut impl Words) {
        let mut leaf = [0; NODE];
        leaf[0] = LEAF;
        let leaf = words.alloc(&leaf);
        words.set(self.0, leaf);
    }

    fn leaf_of(self, words: &mut impl Words, key: u64, path: &mut Vec<(u64, usize)>) -> u64 {
        let mut at = words.get(self.0);
        loop {
            let head = words.get(at);
            if head & LEAF != 0 {
                return at;
            }
            let (mut low, mut high) = (0, head as usize);
            while low < high {
                let middle = (low + high) / 2;
                if words.get(key_word(at, middle)) <= key { low = middle + 1 } else { high = middle }
            }
            path.push((at, low));
            at = words.get(child_word(at, low));
        }
    }

    fn find(words: &mut impl Words, leaf: u64, key: u64) -> (u64, Option<u64>) {
        let head = words.get(leaf);
        (head, (0..RECORDS).find(|s| head >> s & 1 == 1 && words.get(slot(leaf, *s)) == key))
    }

    /// The place of a record's first word after the key.
    pub(in crate::paper) fn place(self, words: &mut impl Words, key: u64) -> Option<u64> {
        let leaf = self.leaf_of(words, key, &mut Vec::new());
        Self::find(words, leaf, key).1.map(|s| slot(leaf, s) + 8)
    }

    /// Reads a record.
    pub(in crate::paper) fn get(self, words: &mut impl Words, key: u64) -> Option<Row> {
        self.place(words, key).map(|at| [0, 8, 16].map(|word| words.get(at + word)))
    }

    /// Inserts a record. Returns whether it is new.
    pub(in crate::paper) fn insert(self, words: &mut impl Words, key: u64, row: Row) -> bool {
        let mut path = Vec::with_capacity(8);
        let mut leaf = self.leaf_of(words, key, &mut path);
        let (mut head, found) = Self::find(words, leaf, key);
        if found.is_some() {
            return false;
        }
        if head.trailing_ones() as u64 >= RECORDS {
            leaf = self.split(words, leaf, key, path);
            head = words.get(leaf);
        }
        let free = head.trailing_ones().into();
        for (word, value) in [key, row[0], row[1], row[2]].into_iter().enumerate() {
            words.set(slot(leaf, free) + 8 * word as u64, value);
        }
        words.set(leaf, head | 1 << free);
        true
    }

    /// Removes a record. Returns whether it was there.
    pub(in crate::paper) fn remove(self, words: &mut impl Words, key: u64) -> bool {
        let leaf = self.leaf_of(words, key, &mut Vec::new());
        let (head, found) = Self::find(words, leaf, key);
        if let Some(slot) = found {
            words.set(leaf, head & !(1 << slot));
        }
        found.is_some()
    }

    /// Splits a full leaf. Returns the half for `key`.
    fn split(self, words: &mut impl Words, leaf: u64, key: u64, path: Vec<(u64, usize)>) -> u64 {
        let mut order: Vec<(u64, u64)> = (0..RECORDS).map(|s| (words.get(slot(leaf, s)), s)).collect();
        order.sort_unstable();
        let moved = &order[RECORDS as usize / 2..];
        let mut right = [0; NODE];
        right[0] = LEAF | ((1 << moved.len()) - 1);
        right[1] = words.get(leaf + 8);
        for (to, (_, from)) in moved.iter().enumerate() {
            for word in 0..4 {
                right[2 + to * 4 + word] = words.get(slot(leaf, *from) + 8 * word as u64);
            }
        }
        let new = words.alloc(&right);
        let gone = moved.iter().fold(0, |bits, (_, s)| bits | 1 << s);
        let head = words.get(leaf);
        words.set(leaf + 8, new);
        words.set(leaf, head & !gone);
        let middle = moved[0].0;
        self.link(words, path, middle, new);
        if key < middle { leaf } else { new }
    }

    /// Adds a child behind the one that was split.
    fn link(self, words: &mut impl Words, mut path: Vec<(u64, usize)>, key: u64, new: u64) {
        let (mut key, mut new) = (key, new);
        while let Some((node, at)) = path.pop() {
            let count = words.get(node) as usize;
            let mut keys: Vec<u64> = (0..count).map(|i| words.get(key_word(node, i))).collect();
            let mut children: Vec<u64> = (0..=count).map(|i| words.get(child_word(node, i))).collect();
            keys.insert(at, key);
            children.insert(at + 1, new);
            if count < KEYS {
                (at..=count).for_each(|i| words.set(key_word(node, i), keys[i]));
                (at + 1..=count + 1).for_each(|i| words.set(child_word(node, i), children[i]));
                words.set(node, count as u64 + 1);
                return;
            }
            let half = keys.len() / 2;
            let mut right = [0; NODE];
            let upper = &keys[half + 1..];
            right[0] = upper.len() as u64;
            right[1..][..upper.len()].copy_from_slice(upper);
            right[1 + KEYS..][..upper.len() + 1].copy_from_slice(&children[half + 1..]);
            new = words.alloc(&right);
            (at..half).for_each(|i| words.set(key_word(node, i), keys[i]));
            (at + 1..=half).for_each(|i| words.set(child_word(node, i), children[i]));
            words.set(node, half as u64);
            key = keys[half];
        }
        let mut root = [0; NODE];
        (root[0], root[1], root[1 + KEYS], root[2 + KEYS]) = (1, key, words.get(self.0), new);
        let root = words.alloc(&root);
        words.set(self.0, root);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    /// Words in a vector; word 0 is the root's.
    struct Memory(Vec<u64>);

    impl Words for Memory {
        fn get(&mut self, at: u64) -> u64 {
            self.0[at as usize / 8]
        }
        fn set(&mut self, at: u64, value: u64) {
            self.0[at as usize / 8] = value;
        }
        fn alloc(&mut self, content: &[u64; NODE]) -> u64 {
            self.0.extend_from_slice(content);
            (self.0.len() - NODE) as u64 * 8
        }
    }

    #[test]
    fn it_is_a_map() {
        let (mut memory, tree, mut model) = (Memory(vec![0]), Tree(0), BTreeMap::new());
        tree.format(&mut memory);
        let mut drawn = crate::workload::Random(88_172_645_463_325_252);
        for _ in 0..20_000 {
            let random = drawn.next();
            let (key, row) = (random % 4000, [random, 1, 2]);
            match random >> 60 {
                0..10 => assert_eq!(tree.insert(&mut memory, key, row), {
                    let new = !model.contains_key(&key);
                    model.entry(key).or_insert(row);
                    new
                }),
                10..14 => assert_eq!(tree.remove(&mut memory, key), model.remove(&key).is_some()),
                _ => assert_eq!(tree.get(&mut memory, key), model.get(&key).copied()),
            }
        }
        assert!(model.len() > 1000, "{} records", model.len());
        for key in 0..4000 {
            assert_eq!(tree.get(&mut memory, key), model.get(&key).copied(), "{key}");
        }
    }
}
