//! Exact numbers of lines written back and of fences: a fault that only writes back too much must fail a test.

use durix_incll::{BareOptions, Masstree};
use durix_pmem::{Counting, Hardware, Mapping, Session};

type M = Counting<Hardware>;

/// A tree on a counting medium.
struct Counted {
    medium: M,
    session: Session<M>,
    tree: Masstree<M>,
}

/// Lines written back, and fences.
type Costs = (u64, u64);

impl Counted {
    /// With these keys, whose epoch has ended.
    fn new(keys: &[u64]) -> Self {
        let medium = Counting::new(Hardware::PAGE_CACHE);
        let mapping = Mapping::heap(1 << 20, medium);
        let mut session = mapping.session().unwrap();
        let tree = Masstree::open_bare(&mut session, &mapping, BareOptions::default().chunk(4096)).unwrap();
        let mut counted = Counted { medium, session, tree };
        keys.iter().for_each(|key| counted.put(*key, 1));
        // Until nothing is left to do at a boundary, such as the sweep after opening.
        (0..8).for_each(|_| _ = counted.sync());
        counted
    }

    fn costs(&mut self, act: impl FnOnce(&mut Self)) -> Costs {
        let before = self.medium.counts();
        act(self);
        let costs = self.medium.counts() - before;
        (costs.write_backs, costs.fences)
    }

    fn put(&mut self, key: u64, value: u64) {
        let op = self.session.enter().unwrap();
        self.tree.insert(&op, &key.to_be_bytes(), &value.to_be_bytes()).unwrap();
    }

    fn remove(&mut self, key: u64) {
        assert!(self.tree.remove(&self.session.enter().unwrap(), &key.to_be_bytes()).unwrap());
    }

    fn get(&mut self, key: u64) {
        assert!(self.tree.contains(&self.session.enter().unwrap(), &key.to_be_bytes()).unwrap());
    }

    fn sync(&mut self) -> Costs {
        self.costs(|counted| counted.tree.sync(&mut counted.session).unwrap())
    }

    /// What some operations cost, and then the boundary beyond one at which nothing has changed.
    fn both(&mut self, act: impl FnOnce(&mut Self)) -> [Costs; 2] {
        let (lines, fences) = self.sync();
        let own = self.costs(act);
        let (after, fences_after) = self.sync();
        [own, (after - lines, fences_after - fences)]
    }
}

/// Line 0 of a border node holds the permutation and the epoch, lines 1 to 4 hold four slots each. Operations write back
/// nothing: the boundary does.
#[test]
fn a_boundary_writes_back_the_lines_that_changed_and_no_more() {
    let keys: Vec<u64> = (0..6).map(|key| key * 10).collect();
    let mut tree = Counted::new(&keys);
    assert_eq!(tree.both(|tree| keys.iter().for_each(|key| tree.get(*key))), [(0, 0), (0, 0)], "reads");
    assert_eq!(tree.both(|tree| tree.put(10, 2)), [(0, 0), (2, 0)], "an update: line 0, and the line of its new slot");
    let twice = tree.both(|tree| (0..2).for_each(|value| tree.put(10, 3 + value)));
    assert_eq!(twice, [(0, 0), (2, 0)], "the second update of a key in an epoch is in place");
    assert_eq!(tree.both(|tree| tree.remove(20)), [(0, 0), (1, 0)], "a removal: line 0");
    assert_eq!(tree.both(|tree| tree.put(25, 1)), [(0, 0), (2, 0)], "an insert: line 0, and that of its slot");
    let five = tree.both(|tree| [0, 10, 25, 30, 40].iter().for_each(|key| tree.put(*key, 7)));
    assert_eq!(five, [(0, 0), (4, 0)], "five updates take slots on three lines");
}

/// A node without a free slot is logged, under one fence.
#[test]
fn a_node_is_logged_once_an_epoch() {
    let mut full = Counted::new(&(0..14).collect::<Vec<_>>());
    assert_eq!(full.both(|tree| tree.put(3, 2)), [(0, 0), (2, 0)], "one slot is free");
    let two = |value| move |tree: &mut Counted| [3, 4, 5].iter().for_each(|key| tree.put(*key, value));
    // The first image makes a segment of the log.
    full.both(two(3));
    // The head of the segment, which is opened anew in each epoch, and six lines of the image.
    assert_eq!(full.both(two(4))[0], (7, 1), "one image of the node for all three updates");
}
