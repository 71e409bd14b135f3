//! The pages in memory that were written to: private copies, which the kernel cannot drop.
//!
//! A commit enters the pages whose lines it captures, with its number. Once a checkpoint has carried that commit to the pool's file, a page that
//! equals the file can be dropped: see "Dropping private pages" in `docs/design/journal.md`.

use super::notes::PAGE;

/// Entries of a leaf.
const LEAF: usize = 2048;
/// Leaves that a search looks at, at most: captures wait for it.
const LEAVES: usize = 32;

/// The newest commit that holds lines of a unit, plus one. Zero: the unit was not written to since it was dropped.
type Entry = u64;

#[derive(Debug)]
struct Leaf {
    entries: Box<[Entry; LEAF]>,
    /// Entries that are not zero.
    count: usize,
}

/// The written pages, in *units*: pages of the system, or of a checksum if those are larger.
#[derive(Debug)]
pub(crate) struct Written {
    unit: u64,
    leaves: Vec<Option<Leaf>>,
    count: u64,
    /// Where the next search begins.
    hand: u64,
}

/// A unit that a checkpoint has carried to the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Candidate {
    pub(crate) unit: u64,
    entry: Entry,
}

impl Written {
    /// None yet. `page` is the size of a page of the system, in bytes.
    pub(crate) fn new(page: u64) -> Self {
        Written { unit: page.max(PAGE), leaves: Vec::new(), count: 0, hand: 0 }
    }

    /// Bytes of a unit.
    pub(crate) fn unit(&self) -> u64 {
        self.unit
    }

    /// Bytes of all of them.
    pub(crate) fn bytes(&self) -> u64 {
        self.count * self.unit
    }

    /// Enters a page of [`PAGE`] bytes that commit `number` holds lines of. The first unit is never entered: its header is written past
    /// commits.
    pub(crate) fn enter(&mut self, page: u64, number: u64) {
        let unit = page * PAGE / self.unit;
        if unit == 0 {
            return;
        }
        let leaf = unit as usize / LEAF;
        if self.leaves.len() <= leaf {
            self.leaves.resize_with(leaf + 1, || None);
        }
        let leaf = self.leaves[leaf].get_or_insert_with(|| Leaf { entries: Box::new([0; LEAF]), count: 0 });
        let entry = &mut leaf.entries[unit as usize % LEAF];
        if *entry == 0 {
            leaf.count += 1;
            self.count += 1;
        }
        *entry = number + 1;
    }

    /// The next search begins at the first unit.
    pub(crate) fn rewind(&mut self) {
        self.hand = 0;
    }

    /// Up to `most` units whose newest commit is `carried` or an older one, from where the last search ended on. `true`: the end of the
    /// table was met, and the next search begins anew.
    pub(crate) fn candidates(&mut self, carried: u64, most: usize) -> (Vec<Candidate>, bool) {
        let (mut found, end) = (Vec::new(), self.hand + (LEAVES * LEAF) as u64);
        while let Some(place) = self.leaves.get(self.hand as usize / LEAF) {
            let within = self.hand as usize % LEAF;
            let Some(leaf) = place.as_ref().filter(|leaf| leaf.count > 0) else {
                self.hand += (LEAF - within) as u64;
                continue;
            };
            if self.hand >= end {
                return (found, false);
            }
            let entry = leaf.entries[within];
            if (1..=carried + 1).contains(&entry) {
                if found.len() == most {
                    return (found, false);
                }
                found.push(Candidate { unit: self.hand, entry });
            }
            self.hand += 1;
        }
        self.hand = 0;
        (found, true)
    }

    /// Whether no commit has captured a line of the unit since it became a candidate.
    pub(crate) fn is_unchanged(&self, candidate: Candidate) -> bool {
        let leaf = self.leaves.get(candidate.unit as usize / LEAF).and_then(Option::as_ref);
        leaf.is_some_and(|leaf| leaf.entries[candidate.unit as usize % LEAF] == candidate.entry)
    }

    /// Forgets a unit that was dropped.
    pub(crate) fn remove(&mut self, unit: u64) {
        let Some(leaf) = self.leaves.get_mut(unit as usize / LEAF).and_then(Option::as_mut) else { return };
        if std::mem::take(&mut leaf.entries[unit as usize % LEAF]) != 0 {
            leaf.count -= 1;
            self.count -= 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn units(found: &[Candidate]) -> Vec<u64> {
        found.iter().map(|candidate| candidate.unit).collect()
    }

    #[test]
    fn only_units_whose_newest_commit_was_carried_over_are_candidates() {
        let mut written = Written::new(4096);
        [(0, 1), (1, 1), (2, 1), (9000, 2), (2, 3)].into_iter().for_each(|(page, number)| written.enter(page, number));
        assert_eq!(written.bytes(), 3 * 4096, "without the header's");
        assert_eq!(written.candidates(0, 10), (vec![], true));
        let (found, ended) = written.candidates(2, 10);
        assert_eq!((units(&found), ended), (vec![1, 9000], true));
        written.enter(9000, 4);
        assert_eq!(found.iter().map(|one| written.is_unchanged(*one)).collect::<Vec<_>>(), [true, false]);
        written.remove(1);
        written.remove(1);
        assert_eq!((written.bytes(), written.is_unchanged(found[0])), (2 * 4096, false));
        let (found, ended) = written.candidates(9, 1);
        assert_eq!((units(&found), ended), (vec![2], false));
        let (found, ended) = written.candidates(9, 1);
        assert_eq!((units(&found), ended), (vec![9000], true), "it goes on where it ended");
        assert_eq!(units(&written.candidates(9, 9).0), [2, 9000]);
        written.candidates(9, 1);
        written.rewind();
        assert_eq!(units(&written.candidates(9, 9).0), [2, 9000]);
    }

    #[test]
    fn a_search_looks_at_some_leaves_only() {
        let mut written = Written::new(4096);
        (0..2 * LEAVES).for_each(|leaf| written.enter((leaf * LEAF + 1) as u64, 9));
        written.enter((2 * LEAVES * LEAF) as u64, 1);
        assert_eq!(written.candidates(1, 9), (vec![], false));
        assert_eq!(written.candidates(1, 9), (vec![], false));
        let (found, ended) = written.candidates(1, 9);
        assert_eq!((found.len(), ended), (1, true));
    }

    #[test]
    fn a_unit_is_as_large_as_a_page_of_the_system() {
        let mut written = Written::new(65536);
        [3, 16, 31, 32].into_iter().for_each(|page| written.enter(page, 1));
        assert_eq!((written.unit(), written.bytes()), (65536, 2 * 65536));
        assert_eq!(units(&written.candidates(1, 9).0), [1, 2]);
        assert_eq!(Written::new(512).unit(), 4096);
    }
}
