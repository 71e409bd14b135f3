//! Inner nodes in DRAM: a B+-tree that maps the least key of each leaf to the leaf's offset. It would be rebuilt from the leaves after a
//! crash.

/// Entries of a node, as in the concurrent FPTree.
const FAN: usize = 128;

#[derive(Clone, Debug)]
struct Node {
    len: usize,
    keys: [u64; FAN],
    /// Nodes below, or leaves on the lowest level: one for the keys from `keys[i]` up to `keys[i + 1]`.
    below: [u64; FAN],
}

impl Node {
    const EMPTY: Node = Node { len: 0, keys: [0; FAN], below: [0; FAN] };

    /// The entry that is responsible for a key. The first entry is for all smaller keys, too.
    #[inline(always)]
    fn entry_of(&self, key: u64) -> usize {
        self.keys[..self.len].partition_point(|least| *least <= key).saturating_sub(1)
    }

    fn insert(&mut self, at: usize, key: u64, below: u64) {
        self.keys.copy_within(at..self.len, at + 1);
        self.below.copy_within(at..self.len, at + 1);
        self.keys[at] = key;
        self.below[at] = below;
        self.len += 1;
    }

    /// Moves the upper half to a new node.
    fn split(&mut self) -> Node {
        let mut upper = Node::EMPTY;
        let half = self.len / 2;
        upper.len = self.len - half;
        upper.keys[..upper.len].copy_from_slice(&self.keys[half..self.len]);
        upper.below[..upper.len].copy_from_slice(&self.below[half..self.len]);
        self.len = half;
        upper
    }
}

/// Leaves by their least keys.
#[derive(Debug)]
pub struct Index {
    nodes: Vec<Node>,
    root: usize,
    /// Levels above the leaves, at least 1.
    height: usize,
}

impl Index {
    /// With one leaf, for all keys. Room for so many leaves before memory is moved.
    pub fn new(leaf: u64, leaves: u64) -> Self {
        // Nodes are half full at least.
        let mut nodes = Vec::with_capacity(leaves as usize / (FAN / 2) + leaves as usize / (FAN * 16) + 4);
        let mut root = Node::EMPTY;
        root.insert(0, 0, leaf);
        nodes.push(root);
        Index { nodes, root: 0, height: 1 }
    }

    /// With these leaves, each with its least key, in order, and the first one for all smaller keys, too.
    ///
    /// # Panics
    /// Without leaves.
    pub fn of(leaves: &[(u64, u64)]) -> Self {
        assert!(!leaves.is_empty(), "a tree has a leaf");
        // Not full, so that the next leaf has room.
        const FILL: usize = FAN * 3 / 4;
        let mut nodes = Vec::with_capacity(leaves.len() / FILL + leaves.len() / (FILL * FILL) + 4);
        let (mut level, mut height) = (leaves.to_vec(), 0);
        while height == 0 || level.len() > 1 {
            let above = level.chunks(FILL).map(|entries| {
                let mut node = Node::EMPTY;
                for (at, (least, below)) in entries.iter().enumerate() {
                    (node.keys[at], node.below[at]) = (*least, *below);
                }
                node.len = entries.len();
                nodes.push(node);
                (entries[0].0, nodes.len() as u64 - 1)
            });
            level = above.collect();
            height += 1;
        }
        Index { root: nodes.len() - 1, nodes, height }
    }

    /// The leaf that is responsible for a key.
    #[inline(always)]
    pub fn leaf_of(&self, key: u64) -> u64 {
        let mut at = self.root as u64;
        for _ in 0..self.height {
            let node = &self.nodes[at as usize];
            at = node.below[node.entry_of(key)];
        }
        at
    }

    /// Adds a leaf, for the keys from `least` up to the next leaf.
    pub fn insert(&mut self, least: u64, leaf: u64) {
        if let Some((key, upper)) = self.insert_below(self.root, self.height, least, leaf) {
            let mut root = Node::EMPTY;
            root.insert(0, 0, self.root as u64);
            root.insert(1, key, upper);
            self.nodes.push(root);
            self.root = self.nodes.len() - 1;
            self.height += 1;
        }
    }

    /// Inserts below a node; returns a new neighbour of it and the least key of that.
    fn insert_below(&mut self, node: usize, height: usize, least: u64, leaf: u64) -> Option<(u64, u64)> {
        let at = self.nodes[node].entry_of(least);
        let (least, below) = if height == 1 {
            (least, leaf)
        } else {
            self.insert_below(self.nodes[node].below[at] as usize, height - 1, least, leaf)?
        };
        self.nodes[node].insert(at + 1, least, below);
        if self.nodes[node].len < FAN {
            return None;
        }
        let upper = self.nodes[node].split();
        let key = upper.keys[0];
        self.nodes.push(upper);
        Some((key, self.nodes.len() as u64 - 1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    #[test]
    fn leaves_are_found_by_any_key_of_theirs() {
        let (mut index, mut model) = (Index::new(1, 10), BTreeMap::from([(0, 1)]));
        for i in 2..30_000u64 {
            let least = i.wrapping_mul(0x9e37_79b9_7f4a_7c15);
            index.insert(least, i);
            model.insert(least, i);
        }
        assert!(index.height >= 3);
        let built = Index::of(&model.iter().map(|(least, leaf)| (*least, *leaf)).collect::<Vec<_>>());
        for i in 0..30_000u64 {
            for key in [i.wrapping_mul(0x9e37_79b9_7f4a_7c15), i.wrapping_mul(0xd6e8_feb8_6659_fd93), u64::MAX - i] {
                let expected = model.range(..=key).next_back().map(|(_, leaf)| *leaf);
                assert_eq!([&index, &built].map(|index| Some(index.leaf_of(key))), [expected; 2]);
            }
        }
    }
}
