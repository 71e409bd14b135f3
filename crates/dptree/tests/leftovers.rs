//! What repair reads of a tree: all of a sound one, and nearly all of one with a damaged line, whichever it is.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering::Relaxed;

use durix_dptree::{DpTree, DpTreeValues, Options, Shape};
use durix_index::kind::Entry;
use durix_index::{Index, Openable};
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

/// The pool's table of space says where the blocks lie. Without it, their heads do.
#[test]
fn a_lost_table_of_space_costs_no_key() {
    let pool = pool();
    let pairs = filled(&pool, &mut |_, _, _| {});
    let tree = DpTree::open_with(&pool, "tree", &options()).unwrap();
    let mut session = pool.session().unwrap();
    let op = session.enter().unwrap();
    let first = pool.space().extents(&op, tree.root().owner()).iter().map(|extent| extent.off).min().unwrap();
    // The chunk before the first extent.
    let table = op.slice("table", Off::<Word>::new(first - 4096), 512).unwrap();
    let before: Vec<u64> = table.iter().map(|word| op.load(word, Relaxed)).collect();
    assert!(before.iter().any(|word| *word != 0));
    for with in [0, u64::MAX] {
        table.iter().for_each(|word| op.store(word, with, Relaxed));
        let (extents, found) = (pool.space().extents(&op, tree.root().owner()), leftovers(&op, tree.root()));
        table.iter().zip(&before).for_each(|(word, before)| op.store(word, *before, Relaxed));
        assert!(extents.is_empty());
        assert_eq!(found, pairs);
    }
}

/// A batch of which a record is damaged is not read: a crash may have left it like that.
#[test]
fn a_batch_that_is_not_whole_is_not_read() {
    let pool = pool();
    let pairs = filled(&pool, &mut |_, _, _| {});
    let tree = DpTree::open_with(&pool, "tree", &options()).unwrap();
    let mut session = pool.session().unwrap();
    let op = session.enter().unwrap();
    let keys: Vec<u64> = (0..70).map(|i| i * 10).collect();
    tree.change_many(&op, &mut keys.iter().map(|key| (*key, Some(1 << 40))).collect()).unwrap();
    let changed = |found: &Pairs| keys.iter().filter(|key| found.get(key) == Some(&(1 << 40))).count();
    assert_eq!(changed(&leftovers(&op, tree.root())), keys.len());
    let (mut all, mut none) = (0, 0);
    let is_log = |off| op.load(&op.at::<[Word; 8]>(Off::new(off))[0], Relaxed) == u64::from_le_bytes(*b"DURIXDPL");
    let extents = pool.space().extents(&op, tree.root().owner());
    for extent in extents.iter().filter(|extent| is_log(extent.off)) {
        for line in (extent.off..extent.off + extent.len).step_by(LINE).skip(1) {
            let word = &op.at::<[Word; 8]>(Off::new(line))[1];
            let before = op.load(word, Relaxed);
            op.store(word, before ^ 1, Relaxed);
            let found = leftovers(&op, tree.root());
            op.store(word, before, Relaxed);
            match changed(&found) {
                0 => none += 1,
                number if number == keys.len() => all += 1,
                number => panic!("{number} changes of {} are read, with line {line:#x} damaged", keys.len()),
            }
        }
    }
    assert!(none >= keys.len() / 2 && all > 100, "none of it {none} times, all of it {all} times");
    assert!(pairs.len() > keys.len());
}

/// Blocks of ranges, each with the side that counts.
fn ranges_of(tree: &DpTree, op: &Op<'_, Hardware>) -> Vec<(u64, u64)> {
    let mut dump = String::new();
    tree.dump(op, &mut dump).unwrap();
    let ranges = dump.lines().filter_map(|line| line.strip_prefix("range 0x"));
    ranges
        .map(|line| {
            let (off, rest) = line.split_once(':').unwrap();
            let (_, side) = rest.rsplit_once(' ').unwrap();
            (u64::from_str_radix(off, 16).unwrap(), side.parse().unwrap())
        })
        .collect()
}

/// The first descriptor of a range says how many leaves it has, and which range is next: without it a part of the tree is gone. An empty tree,
/// a tree of which all keys but those of one range were removed, and a full one.
#[test]
fn a_first_descriptor_that_is_zeroed_is_found() {
    let mut ranges_without_leaves = 0;
    for kind in 0..3 {
        let pool = pool();
        let tree = DpTree::open_with(&pool, "tree", &options()).unwrap();
        let mut session = pool.session().unwrap();
        if kind > 0 {
            tree.load(&mut session, (0..700).map(|key| (key, key))).unwrap();
        }
        if kind == 1 {
            (300..700).for_each(|key| assert!(tree.remove(&session.enter().unwrap(), key).unwrap()));
            tree.merge_all(&mut session).unwrap();
        }
        let ranges = ranges_of(&tree, &session.enter().unwrap());
        assert!(ranges.len() > 5 * usize::from(kind > 0), "{ranges:?}");
        assert!(tree.check(&session.enter().unwrap()).is_empty());
        let places: Vec<u64> =
            ranges.iter().map(|(block, side)| block + (1 + side * SHAPE.1 as u64) * LINE as u64).collect();
        let zeroed = |op: &Op<'_, Hardware>, place: u64, with: [u64; 8]| {
            let words: &[Word; 8] = op.at(Off::new(place));
            let before = words.each_ref().map(|word| op.load(word, Relaxed));
            words.iter().zip(with).for_each(|(word, value)| op.store(word, value, Relaxed));
            before
        };
        for place in &places {
            let op = session.enter().unwrap();
            let before = zeroed(&op, *place, [0; 8]);
            assert!(!tree.check(&op).is_empty(), "the first descriptor at {place:#x}");
            ranges_without_leaves += usize::from(before[6] == 0);
            zeroed(&op, *place, before);
        }
        drop(tree);
        for place in places {
            let before = zeroed(&session.enter().unwrap(), place, [0; 8]);
            let error = DpTree::open_with(&pool, "tree", &options()).expect_err("a descriptor that was zeroed");
            assert!(error.to_string().contains(&format!("{place:#x}")), "{error}");
            zeroed(&session.enter().unwrap(), place, before);
        }
        assert!(DpTree::open_with(&pool, "tree", &options()).is_ok());
    }
    assert!(ranges_without_leaves > 3, "{ranges_without_leaves}");
}

/// What repair saves of a pool with a tree `tree` of that kind; `None` where the pool does not open.
fn saved(image: Vec<u8>, kind: &Entry<Hardware>) -> Option<BTreeMap<Vec<u8>, Vec<u8>>> {
    let backing = HeapBacking::from_image(image).with_limit(LEN);
    let options = PoolOptions::new().read_only(true).accept_unclean(true);
    let pool = options.open_on(backing, Hardware::PAGE_CACHE).ok()?.recover().ok()?;
    let (mut all, mut session) = (BTreeMap::new(), pool.session().unwrap());
    let index = kind.salvage(&pool, "tree").unwrap();
    let mut found = |key: &[u8], value: &[u8]| _ = all.entry(key.to_vec()).or_insert_with(|| value.to_vec());
    let _ = index.salvage(&mut session, &mut found).unwrap();
    Some(all)
}

/// A walk ends at the first damaged record, and a tree with a damaged log record does not open. Values in records are read without either.
#[test]
fn a_damaged_line_of_a_tree_with_values_costs_two_leaves_at_most() {
    let pool = pool();
    let map = DpTreeValues::open_with(&pool, "tree", &options()).unwrap();
    let mut session = pool.session().unwrap();
    let mut pairs = BTreeMap::new();
    for step in 0..500_u64 {
        let (key, value) = ((step * 7919 % 300).to_be_bytes(), vec![step as u8; step as usize % 90]);
        Index::insert(&*map, &session.enter().unwrap(), &key, &value).unwrap();
        pairs.insert(key.to_vec(), value);
    }
    let extents = pool.space().extents(&session.enter().unwrap(), map.tree().root().owner());
    drop((map, session));
    pool.close().unwrap();
    let image = HeapBacking::image_of(pool.mapping());
    let kind = durix_dptree::kinds::<Hardware>().into_iter().find(|kind| kind.name == "dptree-values").unwrap();
    assert_eq!(saved(image.clone(), &kind).unwrap(), pairs);
    let lines =
        extents.iter().flat_map(|extent| (extent.off as usize..(extent.off + extent.len) as usize).step_by(LINE));
    let is_used = |line: &usize| image[*line..*line + LINE] != [0; LINE];
    let (mut fewest, mut looked) = (pairs.len(), 0);
    for line in lines.filter(is_used) {
        let mut damaged = image.clone();
        damaged[line..line + LINE].fill(0);
        let saved = saved(damaged, &kind).unwrap();
        let right = saved.iter().filter(|(key, value)| pairs.get(*key) == Some(value)).count();
        (fewest, looked) = (fewest.min(right), looked + 1);
    }
    let (slots, _) = SHAPE;
    println!("{looked} lines: {fewest} of {} keys at least", pairs.len());
    // Without its first line a range does not say which of its leaves count, and older ones lead to records that are gone.
    assert!(looked > 300 && fewest >= pairs.len() - 2 * slots, "{fewest} of {}, {looked} lines", pairs.len());
}
