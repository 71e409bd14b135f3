//! A row for everything that a check can find wrong: one damage, and exactly what is said of it.

use std::collections::BTreeSet;
use std::sync::Arc;

use durix_pmem::backing::HeapBacking;
use durix_pmem::testing::assert_each_has_a_row;
use durix_pmem::{Bits, Hardware, Mapping, Pool, PoolOptions, Structure, Word};

use super::*;
use crate::layout::{
    Bitmap, Border, Interior, LayerName, RecordHead, SLOTS, SlabHead, Slotted, Stamp, TreeRoot, place_of, slab_kind,
};
use crate::{BareOptions, Durable, InteriorInLine, TreeOptions};

durix_pmem::variants!(FAULTS, fault_name: Fault {
    TwoLinks, Levels, NoNode, Stamp, Deleted, Sibling, LastSibling, Slotted, Separators, Count, SpareKey, Permutation, Order,
    Outside, Kind, Suffix, Checksum, Unreadable, NotReached, OtherSize, NotTaken, Mark, OtherEntries, Place, Layer,
});

/// A key with a suffix, and two that share a layer.
const SUFFIXED: &[u8] = b"suffixed, of more bytes";
const LAYERED: [&[u8]; 2] = [b"layered: one", b"layered: two"];
/// A value that has a record, of a key that ends in its slice.
const WITH_RECORD: u64 = 0;

/// A tree of some border nodes below one interior node, with a key of each kind.
struct Sound<'s> {
    op: &'s Op<'s, Hardware>,
    tree: &'s Masstree<Hardware>,
}

impl<'s> Sound<'s> {
    fn store<T: Bits>(&self, word: &Word<T>, value: T) {
        self.op.store(word, value, Relaxed);
    }

    fn root(&self) -> u64 {
        self.tree.root.get()
    }

    fn interior(&self) -> &'s Interior {
        self.op.at(self.tree.root.cast())
    }

    /// A border node of the first layer, from the left.
    fn child(&self, number: usize) -> Off<Node> {
        self.op.load(&self.interior().children[number], Relaxed)
    }

    fn last(&self) -> usize {
        self.op.load(&self.interior().count, Relaxed) as usize
    }

    fn border(&self, number: usize) -> &'s Border {
        self.op.at(self.child(number).cast())
    }

    fn permutation(&self, number: usize) -> Permutation {
        self.op.load(&self.border(number).permutation, Relaxed)
    }

    /// The words of a rank: slice and value.
    fn slot(&self, number: usize, rank: usize) -> &'s [Word; 2] {
        &self.border(number).slots[self.permutation(number).slot(rank)]
    }

    fn slice(&self, number: usize, rank: usize) -> u64 {
        self.op.load(&self.slot(number, rank)[0], Relaxed)
    }

    /// Changes the slice of a rank; returns where the node lies.
    fn set_slice(&self, number: usize, rank: usize, slice: u64) -> u64 {
        self.store(&self.slot(number, rank)[0], slice);
        self.child(number).get()
    }

    /// The border node and the rank of the first slot of a kind.
    fn of_kind(&self, kind: u64) -> (usize, usize) {
        let of = |number| (0..self.permutation(number).len()).map(move |rank| (number, rank));
        let is_it = |(number, rank): &(usize, usize)| {
            let slot = self.permutation(*number).slot(*rank);
            self.op.load(&self.border(*number).kinds, Relaxed).get(slot) == kind
        };
        (0..=self.last()).flat_map(of).find(is_it).unwrap()
    }

    fn set_kind(&self, (number, rank): (usize, usize), kind: u64) -> u64 {
        let (border, slot) = (self.border(number), self.permutation(number).slot(rank));
        self.store(&border.kinds, self.op.load(&border.kinds, Relaxed).with(slot, kind));
        self.child(number).get()
    }

    /// The record of the key with a suffix.
    fn record(&self) -> u64 {
        let (number, rank) = self.of_kind(kind::SUFFIX);
        self.op.load(&self.slot(number, rank)[1], Relaxed)
    }

    /// Changes the head of a record, with its checksum.
    fn set_record(&self, off: u64, suffix: usize, value: usize) -> u64 {
        let words = self.op.slice("a record", Off::<Word>::new(off), 1 + 64).unwrap();
        let head = RecordHead::new(suffix, value);
        let (first, second) = words[1..].split_at(suffix.div_ceil(8));
        let loads = |words: &[Word], bytes: usize| {
            words[..bytes.div_ceil(8)].iter().map(|word| self.op.load(word, Relaxed)).collect::<Vec<_>>()
        };
        let sum = head.checksum(off).words(loads(first, suffix).into_iter()).words(loads(second, value).into_iter());
        self.store(&words[0], head.with_sum(sum).to_bits());
        off
    }

    /// The first extent of a kind.
    fn extent(&self, kind: u64) -> (u64, &'s SlabHead) {
        let extents = self.tree.extents(self.op).unwrap();
        let off = extents.iter().find(|(_, head)| head.kind == kind).unwrap().0.off;
        (off, self.op.at(Off::new(off)))
    }

    /// Changes the bit of a block in the bitmap of an extent with this kind of blocks.
    fn flip_taken(&self, kind: u64, block: u64) {
        let extents = self.tree.extents(self.op).unwrap();
        let taken = |(extent, head): &(durix_pmem::Extent, _)| {
            let cx = self.tree.cx(self.op, &[]).unwrap();
            (extent.off, self.tree.slabs.taken(self.op, cx.durably(), *extent, *head))
        };
        let of_kind = extents.iter().filter(|(_, head)| head.kind == kind).map(taken);
        let (off, blocks) =
            of_kind.into_iter().find(|(_, blocks)| blocks.iter().any(|(off, _)| *off == block)).unwrap();
        let (first, size) = blocks[0];
        let (bitmap, index): (&Bitmap, u64) = (self.op.at(Off::new(off + 64)), (block - first) / size);
        let word = &bitmap.now[(index / 64) as usize];
        self.store(word, self.op.load(word, Relaxed) ^ 1 << (index % 64));
    }
}

fn pool() -> Pool {
    PoolOptions::new()
        .initial_size(4 << 20)
        .max_size(4 << 20)
        .create_on(HeapBacking::new(4 << 20), Hardware::PAGE_CACHE)
        .unwrap()
}

fn fill<P: Policy>(tree: &Masstree<Hardware, P>, op: &Op<'_, Hardware>) {
    for n in 0..60_u64 {
        tree.insert(op, &(n * 4).to_be_bytes(), &n.to_le_bytes()).unwrap();
    }
    tree.insert(op, &WITH_RECORD.to_be_bytes(), &[1; 100]).unwrap();
    tree.insert(op, SUFFIXED, &[2; 40]).unwrap();
    LAYERED.iter().for_each(|key| _ = tree.insert(op, key, b"12345678").unwrap());
}

/// Calls `with` with a new sound tree; returns the tree.
fn with_sound(with: impl FnOnce(&Sound<'_>)) -> Arc<Masstree> {
    let pool = pool();
    let tree: Arc<Masstree> = Masstree::open(&pool, "tree").unwrap();
    {
        let mut session = pool.session().unwrap();
        let op = session.enter().unwrap();
        fill(&tree, &op);
        let sound = Sound { op: &op, tree: &tree };
        assert!(sound.last() > 3 && sound.last() < KEYS && op.load(&op.at(tree.root).stamp, Relaxed).is_interior());
        assert!(tree.faults(&op).unwrap().is_empty(), "sound before");
        with(&sound);
    }
    tree
}

/// What is damaged, and which classes are reported: the first one at the offset that the damage returns.
type Row = (&'static str, &'static [&'static str], fn(&Sound<'_>) -> u64);

const CHECKS: &[Row] = &[
    ("TwoLinks", &["NotReached", "Outside", "Sibling"], |s| {
        s.store(&s.interior().children[1], s.child(2));
        s.child(2).get()
    }),
    // A record that two keys lead to.
    ("TwoLinks", &[], |s| {
        let (number, rank) = s.of_kind(kind::SUFFIX);
        let other = s.slot(number, rank);
        let record = s.record();
        let slice = s.op.load(&other[0], Relaxed) + 1;
        let (to, permutation) = (s.border(number), s.permutation(number));
        let free = (0..SLOTS).find(|slot| !permutation.contains(*slot)).unwrap();
        s.store(&to.slots[free][0], slice);
        s.store(&to.slots[free][1], record);
        s.store(&to.kinds, s.op.load(&to.kinds, Relaxed).with(free, kind::SUFFIX));
        s.store(&to.inline, s.op.load(&to.inline, Relaxed) & !(1 << free));
        s.store(&to.permutation, permutation.insert(rank + 1, free));
        record
    }),
    // Nodes below each other that never end.
    ("Levels", &["NotReached"], |s| {
        for n in 60..700_u64 {
            s.tree.insert(s.op, &(n * 4).to_be_bytes(), &n.to_le_bytes()).unwrap();
        }
        let interiors = (0..=s.last()).map(|number| -> &Interior { s.op.at(s.child(number).cast()) });
        let children = interiors.flat_map(|interior| {
            let count = s.op.load(&interior.count, Relaxed) as usize;
            interior.children[..=count].iter().map(|child| s.op.load(child, Relaxed))
        });
        let all: Vec<_> = children.take(MAX_LEVELS + 1).collect();
        assert_eq!(all.len(), MAX_LEVELS + 1);
        let chain: Vec<_> = std::iter::once(s.tree.root).chain(all).collect();
        for pair in chain.windows(2) {
            let interior: &Interior = s.op.at(pair[0].cast());
            s.store(&interior.stamp, s.op.load(&interior.stamp, Relaxed).of_kind(true));
            s.store(&interior.count, 0);
            s.store(&interior.place, place_of(pair[0].get()));
            interior.keys.iter().for_each(|key| s.store(key, u64::MAX));
            s.store(&interior.children[0], pair[1]);
        }
        chain[MAX_LEVELS + 1].get()
    }),
    ("NoNode", &["NotReached", "Sibling"], |s| {
        s.store(&s.interior().children[1], Off::NULL);
        0
    }),
    ("NoNode", &["NotReached", "Sibling"], |s| {
        s.store(&s.interior().children[1], Off::new(s.child(1).get() + 8));
        s.op.load(&s.interior().children[1], Relaxed).get()
    }),
    ("NoNode", &["NotReached", "Sibling"], |s| {
        s.store(&s.interior().children[1], Off::new(1 << 40));
        1 << 40
    }),
    ("Stamp", &[], |s| {
        s.store(&s.border(1).stamp, Stamp::new(s.tree.epochs().current(s.op) + 1, false, true, 0));
        s.child(1).get()
    }),
    // A bit that no stamp has.
    ("Stamp", &[], |s| {
        let stamp = s.op.load(&s.border(1).stamp, Relaxed);
        s.store(&s.border(1).stamp, Stamp::from_bits(stamp.to_bits() | 1 << 60));
        s.child(1).get()
    }),
    // A damaged name, and the sound one of another layer.
    ("Layer", &[], |s| {
        s.store(&s.border(1).slots[SLOTS][0], 1);
        s.child(1).get()
    }),
    ("Layer", &[], |s| {
        let words = LayerName::of(b"eight by").words();
        s.border(1).slots[SLOTS].iter().zip(words).for_each(|(word, bits)| s.store(word, bits));
        s.child(1).get()
    }),
    // The place that the node beside it names.
    ("Place", &[], |s| {
        s.store(&s.border(1).inline, s.op.load(&s.border(2).inline, Relaxed));
        s.child(1).get()
    }),
    ("Place", &[], |s| {
        s.store(&s.interior().place, s.op.load(&s.interior().place, Relaxed) ^ 1 << 20);
        s.root()
    }),
    ("Deleted", &[], |s| {
        let word = &s.op.at(s.child(1)).version;
        s.store(word, s.op.load(word, Relaxed) | version::DELETED);
        s.child(1).get()
    }),
    ("Sibling", &[], |s| {
        s.store(&s.border(1).next, s.child(3));
        s.child(1).get()
    }),
    ("Sibling", &[], |s| {
        s.store(&s.border(1).high, s.op.load(&s.border(1).high, Relaxed) + 1);
        s.child(1).get()
    }),
    ("LastSibling", &[], |s| {
        s.store(&s.border(s.last()).next, s.child(0));
        s.child(s.last()).get()
    }),
    ("Separators", &["Outside", "Sibling"], |s| {
        let keys = &s.interior().keys;
        let [first, second] = [0, 1].map(|at| s.op.load(&keys[at], Relaxed));
        s.store(&keys[0], second);
        s.store(&keys[1], first);
        s.root()
    }),
    ("Count", &["NoNode", "Separators"], |s| {
        s.store(&s.interior().count, KEYS as u64 + 1);
        s.root()
    }),
    ("SpareKey", &[], |s| {
        s.store(&s.interior().keys[KEYS - 1], 7);
        s.root()
    }),
    // A slot twice, and more slots than a node has.
    ("Permutation", &["Order"], |s| {
        let permutation = s.permutation(1);
        s.store(&s.border(1).permutation, permutation.replace(1, permutation.slot(0)));
        s.child(1).get()
    }),
    ("Permutation", &[], |s| {
        let (node, border) = (s.last(), s.border(s.last()));
        let permutation = (0..Durable::CAPACITY + 1).fold(s.permutation(node), |permutation, slot| {
            let is_in = permutation.contains(slot);
            let rank = permutation.len();
            if !is_in {
                let slice = s.op.load(&border.slots[permutation.slot(rank - 1)][0], Relaxed) + 1;
                s.store(&border.slots[slot][0], slice);
                s.store(&border.kinds, s.op.load(&border.kinds, Relaxed).with(slot, 8));
                s.store(&border.inline, s.op.load(&border.inline, Relaxed) | 1 << slot);
            }
            if is_in { permutation } else { permutation.insert(rank, slot) }
        });
        s.store(&border.permutation, permutation);
        s.child(node).get()
    }),
    ("Order", &[], |s| {
        let permutation = s.permutation(1);
        let swapped = permutation.replace(0, permutation.slot(1)).replace(1, permutation.slot(0));
        s.store(&s.border(1).permutation, swapped);
        s.child(1).get()
    }),
    ("Order", &[], |s| s.set_slice(1, 1, s.slice(1, 0))),
    // Below what its node holds, and above.
    ("Outside", &[], |s| s.set_slice(1, 0, s.slice(1, 0) - 1)),
    ("Outside", &[], |s| s.set_slice(1, s.permutation(1).len() - 1, s.slice(2, 0))),
    ("Kind", &["NotReached"], |s| s.set_kind(s.of_kind(kind::SUFFIX), kind::LAYER + 1)),
    // What lies in line where a record has to be.
    ("Kind", &["NotReached"], |s| s.set_kind(s.of_kind(kind::LAYER), kind::LAYER + 2)),
    ("Suffix", &[], |s| s.set_record(s.record(), 0, 56)),
    ("Suffix", &[], |s| {
        let record = s.op.load(&s.slot(0, 0)[1], Relaxed);
        s.set_record(record, 8, 92)
    }),
    ("Checksum", &[], |s| {
        s.store(&s.op.slice("a record", Off::<Word>::new(s.record()), 3).unwrap()[2], 1);
        s.record()
    }),
    ("Unreadable", &["NotReached"], |s| {
        let (number, rank) = s.of_kind(kind::SUFFIX);
        s.store(&s.slot(number, rank)[1], 1 << 40);
        s.child(number).get()
    }),
    // A node, a record, and what nothing leads to.
    ("NotReached", &[], |s| {
        let record = s.record();
        let (number, rank) = s.of_kind(kind::SUFFIX);
        s.store(&s.border(number).permutation, s.permutation(number).remove(rank));
        record
    }),
    ("OtherSize", &[], |s| s.set_record(s.record(), 15, 300)),
    ("NotTaken", &[], |s| {
        s.flip_taken(slab_kind::RECORDS, s.record());
        s.record()
    }),
    ("NotTaken", &[], |s| {
        s.flip_taken(slab_kind::NODES, s.child(1).get());
        s.child(1).get()
    }),
    ("OtherEntries", &[], |s| {
        s.store(&s.slot(1, 0)[1], 7777);
        s.op.off_of(&s.tree.root().unwrap().words(s.op)[0]).get()
    }),
];

/// What is wrong with what a check found.
fn difference((class, with, _): &Row, offset: u64, faults: &[(u64, Fault)]) -> Option<String> {
    let found: BTreeSet<_> = faults.iter().map(|(_, fault)| fault_name(fault)).collect();
    let expected: BTreeSet<_> = with.iter().copied().chain([*class]).collect();
    let is_it = |(at, fault): &(u64, Fault)| (*at, fault_name(fault)) == (offset, *class);
    let is_right = found == expected && faults.iter().any(is_it);
    (!is_right).then(|| format!("{class} at {offset:#x} and {with:?}, found {:x?}", &faults[..faults.len().min(5)]))
}

#[test]
fn a_check_reports_each_damage_by_its_own_class() {
    let mut wrong = Vec::new();
    for (number, row) in CHECKS.iter().enumerate() {
        with_sound(|sound| {
            let offset = row.2(sound);
            let faults = sound.tree.faults(sound.op).unwrap();
            wrong.extend(difference(row, offset, &faults).map(|what| format!("row {number}: {what}")));
            assert_eq!(sound.tree.check(sound.op).unwrap().len(), faults.len());
        });
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert_each_has_a_row(FAULTS, CHECKS.iter().map(|(class, ..)| *class).chain(["Mark", "Slotted"]));
}

#[test]
fn a_damaged_mark_is_reported() {
    let pool = pool();
    let tree: Arc<Masstree> = Masstree::open(&pool, "tree").unwrap();
    fill(&tree, &pool.session().unwrap().enter().unwrap());
    let owner = tree.root().unwrap().owner();
    drop(tree);
    pool.close().unwrap();
    let mut image = HeapBacking::image_of(pool.mapping());
    let mark = pool.geometry().mark_off(owner);
    for damaged in [false, true] {
        image[mark as usize] ^= u8::from(damaged);
        let backing = HeapBacking::from_image(image.clone()).with_limit(4 << 20);
        let pool = PoolOptions::new().open_on(backing, Hardware::PAGE_CACHE).unwrap().recover().unwrap();
        let tree: Arc<Masstree> = Masstree::open(&pool, "tree").unwrap();
        let faults = tree.faults(&pool.session().unwrap().enter().unwrap()).unwrap();
        let found: Vec<_> = faults.iter().map(|(at, fault)| (*at, fault_name(fault))).collect();
        assert_eq!(found, if damaged { vec![(mark, "Mark")] } else { vec![] });
    }
}

#[test]
fn a_slotted_node_whose_permutation_has_a_slot_twice_is_reported() {
    let mapping = Mapping::heap(4 << 20, Hardware::PAGE_CACHE);
    let mut session = mapping.session().unwrap();
    let tree: Masstree<Hardware, InteriorInLine> =
        Masstree::open_bare_as(&mut session, &mapping, BareOptions::default()).unwrap();
    let op = session.enter().unwrap();
    fill(&tree, &op);
    assert!(tree.faults(&op).unwrap().is_empty());
    let root: &Slotted = op.at(tree.root.cast());
    let permutation = op.load(&root.permutation, Relaxed);
    op.store(&root.permutation, permutation.replace(1, permutation.slot(0)), Relaxed);
    let faults = tree.faults(&op).unwrap();
    assert!(faults.iter().any(|(at, fault)| (*at, fault_name(fault)) == (tree.root.get(), "Slotted")), "{faults:?}");
}

/// Its block would be taken for an extent of its own, and its slab would go back to the pool with all other records in it. Or it would be
/// taken for a block of another size, and a neighbour's bit would be cleared.
#[test]
fn a_record_that_claims_another_length_takes_no_neighbour_along() {
    for claimed in [4000 + (1 << 14), 370] {
        with_sound(|sound| {
            let (op, tree) = (sound.op, sound.tree);
            for key in [b"one", b"two"] {
                assert!(tree.insert(op, key, &[7; 4000]).unwrap());
            }
            let is_its = |(_, head): &(durix_pmem::Extent, crate::alloc::arena::Head)| {
                head.kind == slab_kind::RECORDS && (4008..4500).contains(&head.block)
            };
            let extents = tree.extents(op).unwrap();
            let (extent, head) = extents.iter().find(|found| is_its(found)).unwrap();
            let first = extent.off + 128;
            let record: &Word = op.at(Off::new(first));
            let was = op.load(record, Relaxed);
            sound.store(record, RecordHead::new(0, claimed).to_bits());
            let removed = tree.remove(op, b"one");
            assert!(matches!(removed, Err(Error::Corrupt { offset, .. }) if offset == first), "{claimed}: {removed:?}");
            sound.store(record, was);
            let cx = tree.cx(op, &[]).unwrap();
            let taken = tree.slabs.taken(op, cx.durably(), *extent, *head);
            let both = first..first + 2 * head.block;
            assert_eq!(taken.iter().filter(|(off, _)| both.contains(off)).count(), 2, "{claimed}");
            assert_eq!(tree.get(op, b"two").unwrap().unwrap().to_vec(), [7; 4000]);
        });
    }
}

/// What is damaged, and what an opening then calls corrupt.
type Opening = (&'static str, fn(&Sound<'_>));

const OPENINGS: &[Opening] = &[
    ("the first word of an extent", |s| s.store(&s.extent(slab_kind::RECORDS).1.magic, 0)),
    ("the check word of an extent", |s| s.store(&s.extent(slab_kind::RECORDS).1.blocks, 0)),
    ("the block size", |s| set_head(s, slab_kind::RECORDS, slab_kind::RECORDS, |block| block + 8)),
    // An extent that is longer than a slab.
    ("the block size", |s| {
        s.tree.insert(s.op, b"large", &[7; 300_000]).unwrap();
        let [from, to] = [slab_kind::RECORDS, slab_kind::LARGE].map(|kind| s.extent(kind).1);
        let from = [&from.kind, &from.block, &from.blocks, &from.check];
        let to = [&to.kind, &to.block, &to.blocks, &to.check];
        to.iter().zip(from).for_each(|(to, from)| s.store(to, s.op.load(from, Relaxed)));
    }),
    ("the kind", |s| set_head(s, slab_kind::RECORDS, 77, |block| block)),
    ("the kind", |s| set_head(s, slab_kind::RECORDS, slab_kind::LARGE, |_| u64::MAX)),
    ("the link to the root node", |s| s.store(&root_line(s).root, Off::NULL)),
    ("the link to the root node", |s| s.store(&root_line(s).root, Off::new(s.root() + 8))),
];

fn root_line<'s>(s: &Sound<'s>) -> &'s TreeRoot {
    s.op.at(s.op.off_of(s.tree.root().unwrap().words(s.op)).cast())
}

/// Changes the head of an extent, with its check word.
fn set_head(s: &Sound<'_>, of: u64, kind: u64, block: impl Fn(u64) -> u64) {
    let (_, head) = s.extent(of);
    let old = [&head.kind, &head.block].map(|word| s.op.load(word, Relaxed));
    let new = [kind, block(old[1])];
    s.store(&head.kind, new[0]);
    s.store(&head.block, new[1]);
    let change = (old[0] ^ new[0]).rotate_left(48) ^ (old[1] ^ new[1]).rotate_left(16);
    s.store(&head.check, s.op.load(&head.check, Relaxed) ^ change);
}

#[test]
fn an_opening_names_each_damage() {
    for (number, (what, damage)) in OPENINGS.iter().enumerate() {
        let tree = with_sound(damage);
        let root = tree.root().unwrap().clone();
        let mut session = root.pool().session().unwrap();
        let again = <Masstree as Structure<Hardware>>::open(&mut session, root, &TreeOptions::default());
        let error = again.map(drop).map_err(|error| error.to_string());
        assert!(error.as_ref().is_err_and(|error| error.contains(what)), "row {number}: {what}, not {error:?}");
    }
}
