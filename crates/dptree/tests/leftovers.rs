//! What repair reads of a tree: all of a sound one, and nearly all of one with a damaged line, whichever it is.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering::Relaxed;

use durix_dptree::{DpTree, Options, Shape};
use durix_index::Openable;
use durix_pmem::backing::HeapBacking;
use durix_pmem::{Hardware, LINE, Off, Op, Pool, PoolOptions, Root, Word};

const LEN: u64 = 1 << 20;
/// Slots of a leaf, leaves of a range.
const SHAPE: (usize, usize) = (16, 5);

type Pairs = BTreeMap<u64, u64>;

fn pool() -> Pool<Hardware> {
    let options = PoolOptions::new().chunk_size(4096).lanes(1).max_indices(2).initial_size(LEN).max_size(LEN);
    options.create_on(HeapBacking::new(LEN), Hardware::PAGE_CACHE).unwrap()
}

fn options() -> Options {
    let (slots, leaves) = SHAPE;
    Options::default().shape(Shape { slots, leaves, page_lines: 31 }).least_front(16)
}

fn leftovers(op: &Op<'_, Hardware>, root: &Root<Hardware>) -> Pairs {
    let found = <DpTree<Hardware> as Openable<Hardware>>::leftovers(op, root);
    let pairs: Pairs = found.iter().map(|left| (left.key, left.word)).collect();
    assert_eq!(pairs.len(), found.len(), "each key once");
    pairs
}

/// Looks at a pool whose tree holds these pairs.
type Look<'a> = dyn FnMut(&Op<'_, Hardware>, &Root<Hardware>, &Pairs) + 'a;

/// A tree of some ranges after inserts, updates and removals, with records in its log; `look` is called now and then on the way.
fn filled(pool: &Pool<Hardware>, look: &mut Look<'_>) -> Pairs {
    let tree = DpTree::open_with(pool, "tree", &options()).unwrap();
    let mut session = pool.session().unwrap();
    let mut pairs = Pairs::new();
    for step in 0..3000_u64 {
        let key = step.wrapping_mul(0x9e37_79b9_7f4a_7c15) % 700;
        let op = session.enter().unwrap();
        if step % 3 == 2 {
            assert_eq!(tree.remove(&op, key).unwrap(), pairs.remove(&key).is_some());
        } else {
            tree.insert(&op, key, step + 1).unwrap();
            pairs.insert(key, step + 1);
        }
        drop(op);
        if step % 100 == 0 {
            look(&session.enter().unwrap(), tree.root(), &pairs);
            tree.tick(&mut session).unwrap();
            look(&session.enter().unwrap(), tree.root(), &pairs);
        }
    }
    assert!(tree.stats(&session.enter().unwrap()).ranges > 5);
    pairs
}

#[test]
fn all_of_a_sound_tree_is_read_and_nothing_else() {
    let mut looks = 0;
    filled(&pool(), &mut |op, root, pairs| {
        looks += 1;
        assert_eq!(leftovers(op, root), *pairs);
    });
    assert_eq!(looks, 60);
}

/// A line that is zeroed costs at most the keys of a leaf; one that says what counts can bring as many older pairs back.
#[test]
fn a_damaged_line_costs_a_leaf_at_most() {
    let pool = pool();
    let pairs = filled(&pool, &mut |_, _, _| {});
    let tree = DpTree::open_with(&pool, "tree", &options()).unwrap();
    let mut session = pool.session().unwrap();
    let op = session.enter().unwrap();
    let extents = pool.space().extents(&op, tree.root().owner());
    let lines = extents.iter().flat_map(|extent| (extent.off..extent.off + extent.len).step_by(LINE));
    let (mut fewest, mut most_wrong, mut looked) = (pairs.len(), 0, 0);
    let mut damage = |words: &[Word]| {
        let before: Vec<u64> = words.iter().map(|word| op.load(word, Relaxed)).collect();
        if before.iter().all(|word| *word == 0) {
            return;
        }
        words.iter().for_each(|word| op.store(word, 0, Relaxed));
        let found = leftovers(&op, tree.root());
        words.iter().zip(&before).for_each(|(word, before)| op.store(word, *before, Relaxed));
        let right = found.iter().filter(|(key, value)| pairs.get(*key) == Some(value)).count();
        (fewest, most_wrong, looked) = (fewest.min(right), most_wrong.max(found.len() - right), looked + 1);
    };
    for line in lines {
        let words: &[Word; 8] = op.at(Off::new(line));
        damage(words);
    }
    let (slots, _) = SHAPE;
    println!("{looked} lines: {fewest} of {} keys at least, {most_wrong} wrong pairs at most", pairs.len());
    assert!(looked > 200, "{looked}");
    assert!(fewest >= pairs.len() - slots, "{fewest} of {}", pairs.len());
    assert!(most_wrong <= slots, "{most_wrong}");
    assert_eq!(leftovers(&op, tree.root()), pairs);
}
