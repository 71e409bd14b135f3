//! The keys of a damaged group that nothing sound leads to, for repair.

use durix_pmem::Medium;

use crate::group::{Group, Loaded, Node, Seen};

/// Keys of a group that its root does not lead to any more, because a node cannot be read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Gap {
    /// The smallest one.
    lower: Vec<u8>,
    /// The first one that is not among them, if there is one.
    upper: Option<Vec<u8>>,
}

impl Gap {
    /// All keys.
    pub(crate) const ALL: Gap = Gap { lower: Vec::new(), upper: None };

    fn contains(&self, key: &[u8]) -> bool {
        key >= &self.lower[..] && self.upper.as_ref().is_none_or(|upper| key < &upper[..])
    }
}

impl<M: Medium> Group<'_, '_, M> {
    /// The gaps of a group. An entry that cannot be read is none: no other record holds what its key is mapped to.
    pub(crate) fn gaps(&self, root: u64) -> Vec<Gap> {
        let mut gaps = Vec::new();
        match self.load(root) {
            Ok(Loaded::Node(node)) => self.add_gaps(&node, None, &mut Seen::default(), &mut gaps),
            Ok(Loaded::Entry(_)) => {}
            Err(_) => gaps.push(Gap::ALL),
        }
        gaps
    }

    /// Adds those below a node, whose keys are below `upper`.
    fn add_gaps(&self, node: &Node, upper: Option<&[u8]>, seen: &mut Seen, gaps: &mut Vec<Gap>) {
        if node.level == 0 || seen.note(node).is_err() {
            return;
        }
        let first = |at: usize| self.entry(node.children[at].first).ok().map(|entry| entry.key().to_vec());
        for (at, child) in node.children.iter().enumerate() {
            let above = (at + 1..node.children.len()).find_map(first);
            let upper = above.as_deref().or(upper);
            match self.node_below(node.level, child.off) {
                Ok(below) => self.add_gaps(&below, upper, seen, gaps),
                Err(_) => {
                    let lower = first(at).unwrap_or_else(|| self.least(child.hint));
                    gaps.push(Gap { lower, upper: upper.map(<[u8]>::to_vec) });
                }
            }
        }
    }

    /// A key that no key with this hint is below.
    fn least(&self, hint: u64) -> Vec<u8> {
        let bytes = [self.word, hint].map(u64::to_be_bytes).concat();
        let len = bytes.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1);
        bytes[..len].to_vec()
    }

    /// Calls `found` with the offsets of the entries in gaps that a record of the group is or leads to, if it is an entry, or a node above
    /// entries.
    pub(crate) fn entries_in(&self, gaps: &[Gap], off: u64, found: &mut dyn FnMut(u64)) {
        let mut add = |off| {
            if let Ok(entry) = self.entry(off)
                && gaps.iter().any(|gap| gap.contains(entry.key()))
            {
                found(entry.off);
            }
        };
        match self.load(off) {
            _ if gaps.is_empty() => {}
            Ok(Loaded::Entry(entry)) => add(entry.off),
            Ok(Loaded::Node(node)) if node.level == 0 => {
                let there = (0..).zip(&node.children).filter(|(at, _)| !node.is_gone(*at));
                there.for_each(|(_, child)| add(child.off));
            }
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gap_has_its_smallest_key_and_not_the_first_one_above() {
        let gap = Gap { lower: b"b".to_vec(), upper: Some(b"d".to_vec()) };
        for (key, expected) in [(&b"a"[..], false), (b"b", true), (b"b\0", true), (b"c", true), (b"d", false)] {
            assert_eq!(gap.contains(key), expected, "{key:?}");
            assert!(Gap::ALL.contains(key));
        }
    }
}
