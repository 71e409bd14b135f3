//! What repair saves of a damaged map: every key that does not lie in what is damaged.

use std::collections::BTreeMap;

use durix_index::Lengths;
use durix_index::kind::Entry;
use durix_pmem::backing::HeapBacking;
use durix_pmem::{Extent, Hardware, PoolOptions};

const LEN: u64 = 1 << 20;
const PAGE: usize = 4096;

type Pairs = BTreeMap<Vec<u8>, Vec<u8>>;

fn kind(name: &str) -> Entry<Hardware> {
    durix_logfree::kinds().into_iter().find(|kind| kind.name == name).expect("a kind")
}

/// A closed pool with 300 keys, of which a third were removed again; its extents; and what it holds.
fn closed(kind: &Entry<Hardware>, chunk: u64) -> (Vec<u8>, Vec<Extent>, Pairs) {
    let options = PoolOptions::new().chunk_size(chunk).lanes(1).max_indices(2).initial_size(LEN).max_size(LEN);
    let pool = options.create_on(HeapBacking::new(LEN), Hardware::PAGE_CACHE).unwrap();
    let index = kind.open_or_create(&pool, "map").unwrap();
    let (mut session, mut pairs) = (pool.session().unwrap(), Pairs::new());
    let key = |number: u64| number.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_be_bytes();
    for number in 1..=300_u64 {
        let len = match kind.limits.value {
            Lengths::Exactly(len) => len,
            Lengths::UpTo(_) => 10 + number as usize % 80,
        };
        let value: Vec<u8> = number.to_le_bytes().into_iter().cycle().take(len).collect();
        index.insert(&session.enter().unwrap(), &key(number), &value).unwrap();
        pairs.insert(key(number).to_vec(), value);
    }
    for number in (1..=300).step_by(3) {
        assert!(index.remove(&session.enter().unwrap(), &key(number)).unwrap());
        pairs.remove(&key(number)[..]);
    }
    let extents = pool.space().extents(&session.enter().unwrap(), index.root().owner());
    drop((index, session));
    pool.close().unwrap();
    (HeapBacking::image_of(pool.mapping()), extents, pairs)
}

/// How many pairs repair loses.
fn lost(image: Vec<u8>, kind: &Entry<Hardware>, pairs: &Pairs) -> usize {
    let backing = HeapBacking::from_image(image).with_limit(LEN);
    let options = PoolOptions::new().read_only(true).accept_unclean(true);
    let pool = options.open_on(backing, Hardware::PAGE_CACHE).unwrap().recover().unwrap();
    let (mut saved, mut session) = (Pairs::new(), pool.session().unwrap());
    let index = kind.salvage(&pool, "map").unwrap();
    let mut found = |key: &[u8], value: &[u8]| _ = saved.entry(key.to_vec()).or_insert_with(|| value.to_vec());
    index.salvage(&mut session, &mut found).unwrap();
    pairs.iter().filter(|(key, value)| saved.get(*key) != Some(value)).count()
}

/// Whether a page says that it holds records.
fn holds_records(image: &[u8], page: usize) -> bool {
    image[page] & 1 == 1 && image[page + 58..page + 63] == *b"ROCER"
}

/// The first page of an extent says what the extent holds, but not for repair: what was copied there would hide the pages behind it.
#[test]
fn a_page_in_the_place_of_the_first_one_hides_no_page_behind_it() {
    for name in ["hash-values", "skiplist-values", "bst-values"] {
        let kind = kind(name);
        let (image, extents, pairs) = closed(&kind, 4 * PAGE as u64);
        let (records, nodes): (Vec<_>, Vec<_>) =
            extents.iter().map(|extent| extent.off as usize).partition(|page| holds_records(&image, *page));
        assert!(!records.is_empty() && !nodes.is_empty(), "{name}: {records:x?} {nodes:x?}");
        for page in &nodes {
            let mut damaged = image.clone();
            damaged.copy_within(records[0]..records[0] + PAGE, *page);
            let lost = lost(damaged, &kind, &pairs);
            // A line has two leaves at most.
            assert!(lost <= 2 * (PAGE / 64 - 1), "{name}: {lost} of {} with the page at {page:#x}", pairs.len());
        }
    }
}

/// A link that leads nowhere costs no entry: what it led to is found by bitmaps, and the line itself is sound but for the link.
#[test]
fn a_damaged_link_costs_no_key() {
    for (name, links) in [("list", 1), ("hash-fast-open", 1), ("skiplist", 1), ("bst", 2)] {
        let kind = kind(name);
        let (image, extents, pairs) = closed(&kind, PAGE as u64);
        let lines =
            extents.iter().flat_map(|extent| (extent.off as usize..(extent.off + extent.len) as usize).step_by(64));
        let mut looked = 0;
        for line in lines.filter(|line| image[*line..line + 64] != [0; 64]) {
            for word in (line..).step_by(8).take(links).filter(|word| image[*word..word + 8] != [0; 8]) {
                let mut damaged = image.clone();
                damaged[word..word + 8].copy_from_slice(&0x0000_7fff_ffff_ffc0_u64.to_le_bytes());
                assert_eq!(lost(damaged, &kind, &pairs), 0, "{name}: the word at {word:#x}");
                looked += 1;
            }
        }
        assert!(looked > 150, "{name}: {looked}");
    }
}
