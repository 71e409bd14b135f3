//! What is saved of a damaged tree: all entries but those of one node.

use std::collections::BTreeMap;

use durix_incll::{Masstree, TreeOptions};
use durix_pmem::backing::HeapBacking;
use durix_pmem::{Hardware, Pool, PoolOptions};

const CHUNK: u64 = 4096;
/// Entries of a border node: what one damaged line may cost.
const NODE: usize = 14;
/// Keys that share their first eight bytes.
const IN_LAYER: u32 = 40;

type Map = BTreeMap<Vec<u8>, Vec<u8>>;

fn options() -> PoolOptions {
    PoolOptions::new().chunk_size(CHUNK).lanes(1).max_indices(2).accept_unclean(true).pool_id([1; 16]).boot_id([2; 16])
}

/// Short keys with values in line, long keys with records, and a layer.
fn entries(count: u32) -> Map {
    let random = |n: u32| u64::from(n).wrapping_mul(0x9e37_79b9_7f4a_7c15).to_be_bytes().to_vec();
    let short = (0..count).map(|n| (random(n), u64::from(n).to_le_bytes().to_vec()));
    let long = (count..count + count / 4).map(|n| ([random(n), vec![n as u8; 9]].concat(), vec![n as u8; 30]));
    let layer = (0..IN_LAYER).map(|n| (format!("a prefix {n}").into_bytes(), vec![7; n as usize]));
    short.chain(long).chain(layer).collect()
}

fn image_of(entries: &Map, close: bool) -> Vec<u8> {
    let pool = options().create_on(HeapBacking::new(1024 * CHUNK), Hardware::PAGE_CACHE).unwrap();
    let tree = Masstree::open(&pool, "t").unwrap();
    let mut session = pool.session().unwrap();
    for (key, value) in entries {
        tree.insert(&session.enter().unwrap(), key, value).unwrap();
    }
    tree.sync(&mut session).unwrap();
    let image = HeapBacking::image_of(pool.mapping());
    if !close {
        return image;
    }
    drop((tree, session));
    pool.close().unwrap();
    HeapBacking::image_of(pool.mapping())
}

struct Saved {
    lost: usize,
    /// Of these, keys that lie in no layer but the first.
    lost_above: usize,
    wrong: usize,
    findings: usize,
}

/// `None` where the pool itself refuses.
fn save(image: Vec<u8>, all: &Map) -> Option<Saved> {
    let backing = HeapBacking::from_image(image).with_limit(1024 * CHUNK);
    let pool: Pool = options().open_on(backing, Hardware::PAGE_CACHE).ok()?.recover().ok()?;
    let tree = pool.open_existing::<Masstree>("t", &TreeOptions::default().salvage(true)).ok()?;
    let mut session = pool.session().unwrap();
    let (mut found, mut wrong) = (Map::new(), 0);
    let findings = tree
        .salvage(&session.enter().unwrap(), &mut |key, value| {
            wrong += usize::from(all.get(key).is_none_or(|right| right != value));
            found.insert(key.to_vec(), value.to_vec());
        })
        .unwrap();
    let lost: Vec<_> = all.iter().filter(|(key, value)| found.get(*key) != Some(value)).collect();
    let lost_above = lost.iter().filter(|(key, _)| !key.starts_with(b"a prefix")).count();
    Some(Saved { lost: lost.len(), lost_above, wrong, findings: findings.len() })
}

#[test]
fn a_sound_tree_is_saved_whole() {
    let all = entries(400);
    for close in [true, false] {
        let saved = save(image_of(&all, close), &all).unwrap();
        assert_eq!((saved.lost, saved.wrong, saved.findings), (0, 0, 0));
    }
}

/// The lines of the tree's extents.
fn lines(image: &[u8]) -> impl Iterator<Item = usize> {
    let used = |line: &usize| image[line * 64..line * 64 + 64].iter().any(|byte| *byte != 0);
    let heap = 8192 / 64..image.len() / 64;
    heap.filter(used).collect::<Vec<_>>().into_iter()
}

#[test]
fn a_zeroed_line_costs_at_most_one_node() {
    let all = entries(400);
    let image = image_of(&all, true);
    let (mut tried, mut lost, mut most) = (0, 0, 0);
    for line in lines(&image) {
        let mut damaged = image.clone();
        damaged[line * 64..line * 64 + 64].fill(0);
        let Some(saved) = save(damaged, &all) else { continue };
        assert!(saved.lost_above <= NODE, "line {line}: {} lost", saved.lost);
        // Also where the line holds the link to a layer: its nodes say where they belong.
        assert!(saved.lost <= NODE, "line {line}: {} lost", saved.lost);
        // Records have no checksums: values of which only bytes were zeroed, or that may have been empty, come as they are.
        assert!(saved.wrong <= 4, "line {line}: {} wrong", saved.wrong);
        let silently = if saved.findings > 0 { 0 } else { saved.lost };
        assert!(silently <= saved.wrong, "line {line}: {silently} lost, and nothing was said");
        (tried, lost, most) = (tried + 1, lost + saved.lost, most.max(saved.lost));
    }
    println!("{tried} lines of {} entries: {lost} entries lost in all, {most} at most", all.len());
    assert!(tried > 300, "{tried} lines were tried");
}

/// A page that is lost takes the entries that lie in it, and no others: nodes that nothing leads to any more say which layer they belong to, and
/// none comes back under another key.
#[test]
fn a_lost_page_costs_what_lies_in_it_and_no_key_comes_back_as_another() {
    // Two layers, each with several nodes; and five, where a page can have all of one that has one node, and the link to it.
    let deep = |n: u32| [&b"one more layer, and "[..], &n.to_be_bytes(), b"the last", &n.to_le_bytes()].concat();
    let wide = |n: u32| [&b"and another layer: "[..], &n.to_be_bytes()].concat();
    let two = entries(300).into_iter().chain((0..300).map(|n| (wide(n * 7919), vec![n as u8; 30])));
    let five = (0..300).map(|n| (deep(n / 2 * 7919), vec![n as u8; 9]));
    for all in [two.collect::<Map>(), five.collect()] {
        for close in [true, false] {
            let image = image_of(&all, close);
            let pages: std::collections::BTreeSet<usize> = lines(&image).map(|line| line / 64).collect();
            for (page, with) in pages.iter().flat_map(|page| [(page, 0), (page, 0xff)]) {
                let mut damaged = image.clone();
                damaged[page * 4096..][..4096].fill(with);
                let Some(saved) = save(damaged, &all) else { continue };
                assert_eq!(saved.wrong, 0, "page {page}, filled with {with}");
                // A page has twelve nodes at most.
                assert!(
                    saved.lost <= 12 * NODE,
                    "page {page}, filled with {with}: {} of {} lost",
                    saved.lost,
                    all.len()
                );
                assert!(saved.findings > 0 || saved.lost == 0);
            }
        }
    }
}

/// The root of a layer never moves: it becomes an interior node, and a border node again, which says once more which layer it is.
#[test]
fn a_layer_that_shrinks_to_its_root_says_which_it_is() {
    let pool = options().create_on(HeapBacking::new(1024 * CHUNK), Hardware::PAGE_CACHE).unwrap();
    let tree = Masstree::open(&pool, "t").unwrap();
    let mut session = pool.session().unwrap();
    // One layer, and one below another.
    let keys = |n: u32| [format!("a prefix {n:03}"), format!("and two prefixes {n:03}")].map(String::into_bytes);
    let op = session.enter().unwrap();
    (0..100).flat_map(keys).for_each(|key| _ = tree.insert(&op, &key, b"value").unwrap());
    assert!(tree.shape(&op).unwrap().interiors >= 2 && tree.check(&op).unwrap().is_empty());
    (3..100).flat_map(keys).for_each(|key| assert!(tree.remove(&op, &key).unwrap()));
    let shape = tree.shape(&op).unwrap();
    assert_eq!((shape.interiors, shape.layers, shape.keys), (0, 4, 6));
    assert_eq!(tree.check(&op).unwrap(), []);
}

/// Interior nodes lie in pages of their own. Without one of these nothing leads to the nodes below, but they lead to each other; and what is
/// in a layer below them is found through them.
#[test]
fn a_lost_page_of_interior_nodes_costs_no_key() {
    let long = |n: u32| [b"the same beginni".to_vec(), n.wrapping_mul(0x9e37_79b9).to_be_bytes().to_vec()].concat();
    let long = (0..400u32).map(|n| (long(n), vec![n as u8; 20]));
    let all: Map = entries(900).into_iter().chain(long).collect();
    let image = image_of(&all, true);
    let kind = |chunk: usize| u64::from_le_bytes(image[chunk * 4096 + 8..][..8].try_into().unwrap());
    let chunks = 2..image.len() / 4096;
    let interiors: Vec<usize> =
        chunks.filter(|chunk| image[chunk * 4096..][..8] == *b"DURIXSLB" && kind(*chunk) == 5).collect();
    assert!(!interiors.is_empty());
    for chunk in interiors {
        let mut damaged = image.clone();
        damaged[chunk * 4096..][..4096].fill(0);
        let saved = save(damaged, &all).unwrap();
        println!(
            "{chunk}: {} lost, {} of the first layer, {} wrong, {} findings",
            saved.lost, saved.lost_above, saved.wrong, saved.findings
        );
        assert_eq!((saved.lost, saved.wrong), (0, 0), "the page at {:#x}", chunk * 4096);
        assert!(saved.findings > 0);
    }
}

/// Siblings say where a node starts, so a separator that was changed costs none of the entries that it cuts off.
#[test]
fn a_damaged_separator_costs_no_key() {
    let all = entries(900);
    let image = image_of(&all, true);
    let word = |at: usize| u64::from_le_bytes(image[at..at + 8].try_into().unwrap());
    let is_interiors = |chunk: &usize| image[chunk * 4096..][..8] == *b"DURIXSLB" && word(chunk * 4096 + 8) == 5;
    let mut tried = 0;
    for chunk in (2..image.len() / 4096).filter(is_interiors) {
        let lines = (chunk * 4096..chunk * 4096 + 4096).step_by(64);
        // The stamp of an interior node, and the number of its keys.
        for node in lines.filter(|at| word(at + 24) >> 41 & 1 == 1 && (1..=15).contains(&word(at + 8))) {
            for key in 0..word(node + 8) as usize {
                for bit in (0..64).step_by(9) {
                    let mut damaged = image.clone();
                    damaged[node + 32 + key * 8 + bit / 8] ^= 1 << (bit % 8);
                    let saved = save(damaged, &all).unwrap();
                    assert_eq!((saved.lost, saved.wrong), (0, 0), "bit {bit} of separator {key} at {node:#x}");
                    tried += 1;
                }
            }
        }
    }
    assert!(tried > 200, "{tried} bits");
}
