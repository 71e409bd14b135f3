//! Pools whose bytes were changed: they open or are refused, and whatever opens can be checked, read, and written, without
//! a panic and without hanging.

use std::sync::{Arc, OnceLock};

use durix_pmem::backing::HeapBacking;
use durix_pmem::{Hardware, Pool, PoolOptions};
use durix_pset::{PersistentSet, SetOptions};

const CHUNK: u64 = 4096;
const LIMIT: u64 = 32 * CHUNK;

fn options() -> PoolOptions {
    PoolOptions::new()
        .chunk_size(CHUNK)
        .lanes(2)
        .max_indices(4)
        .initial_size(13 * CHUNK)
        .pool_id([1; 16])
        .boot_id([2; 16])
}

fn set_options() -> SetOptions {
    SetOptions::default().shards(2).recovery_threads(1)
}

/// A pool with something of everything: sets with entries of one and of several lines, removed and overwritten ones,
/// transactions, a renamed and a dropped index.
pub fn pristine() -> &'static [u8] {
    static IMAGE: OnceLock<Vec<u8>> = OnceLock::new();
    IMAGE.get_or_init(|| {
        let pool = options().create_on(HeapBacking::new(LIMIT), Hardware::PAGE_CACHE).expect("a pool");
        fill(&pool);
        pool.close().expect("nothing is open");
        HeapBacking::image_of(pool.mapping())
    })
}

fn fill(pool: &Pool) {
    let mut session = pool.session().expect("a session");
    for name in ["small", "gone", "mixed"] {
        let set: Arc<PersistentSet> = PersistentSet::open_with(pool, name, &set_options()).expect("a set");
        let op = session.enter().expect("an operation");
        for i in 0..12u8 {
            set.insert(&op, &[i], &vec![i; usize::from(i) * 9]).expect("room");
        }
        for i in 0..6 {
            set.remove(&op, &[i * 2]).expect("room");
        }
        set.insert(&op, &[200; 150], &[7; 300]).expect("room");
        set.insert(&op, b"", b"").expect("room");
    }
    pool.drop_index("gone").expect("nobody has it open");
    pool.rename("small", "renamed").expect("a free name");
}

/// Applies a mutation to the pristine image and uses what comes out. The input is a sequence of six-byte steps: three of
/// offset, one of what to do, two of operand.
pub fn mutate_and_use(input: &[u8]) {
    let mut image = pristine().to_vec();
    mutate(&mut image, input);
    use_image(image);
}

/// Applies a mutation to an image; an image that is too short to be one is left alone.
pub(crate) fn mutate(image: &mut Vec<u8>, input: &[u8]) {
    for step in input.chunks_exact(6).take(64) {
        let at = u32::from_le_bytes([step[0], step[1], step[2], 0]) as usize % image.len();
        match step[3] % 8 {
            0..=2 => image[at] ^= 1 << (step[4] % 8),
            3 => image[at] = step[4],
            4 => set_word(image, at, u64::from(u16::from_le_bytes([step[4], step[5]]))),
            5 => set_word(image, at, u64::MAX << (step[4] % 64)),
            6 => copy_line(image, at, usize::from(u16::from_le_bytes([step[4], step[5]])) * 64),
            _ => image.truncate(at.max(1)),
        }
    }
}

fn set_word(image: &mut [u8], at: usize, value: u64) {
    if let Some(word) = image.get_mut(at / 8 * 8..at / 8 * 8 + 8) {
        word.copy_from_slice(&value.to_le_bytes());
    }
}

fn copy_line(image: &mut [u8], to: usize, from: usize) {
    let (to, from) = (to / 64 * 64, from % image.len() / 64 * 64);
    if to + 64 <= image.len() && from + 64 <= image.len() {
        image.copy_within(from..from + 64, to);
    }
}

/// Opens an image in every way and uses what opens.
pub fn use_image(image: Vec<u8>) {
    let backing = HeapBacking::from_image(image).with_limit(LIMIT);
    let Ok(unrecovered) = options().accept_unclean(true).open_on(backing, Hardware::PAGE_CACHE) else { return };
    let Ok(pool) = unrecovered.recover() else { return };
    let _ = pool.guarantee().to_string();
    let Ok(mut session) = pool.session() else { return };
    if let Ok(op) = session.enter() {
        let findings = pool.space().check(&op, |owner| owner.0 < 4);
        let _ = findings.iter().map(ToString::to_string).collect::<Vec<_>>();
        let stats = pool.space().stats(&op);
        assert!(stats.free <= stats.total, "{stats:?}");
    }
    let names: Vec<String> = match pool.indices() {
        Ok(found) => found.into_iter().map(|info| info.name).collect(),
        Err(_) => ["renamed", "mixed"].map(str::to_owned).into(),
    };
    for name in &names {
        if let Ok(set) = PersistentSet::open_with(&pool, name, &set_options()) {
            let op = session.enter().expect("the pool is open");
            use_set(&set, &op);
        }
    }
    for name in names {
        let _ = pool.drop_index(&name);
    }
    let _ = pool.close();
}

fn use_set(set: &PersistentSet, op: &durix_pmem::Op<'_>) {
    let findings = set.check(op).unwrap_or_default();
    let _ = findings.iter().map(ToString::to_string).collect::<Vec<_>>();
    let mut count = 0u64;
    let _ = set.for_each(op, |key, value| count += (key.len() + value.len()) as u64);
    let mut value = Vec::new();
    for i in 0..14u8 {
        let _ = set.get(op, &[i], &mut value);
        let _ = set.insert(op, &[i, i], &[i; 100]);
        let _ = set.remove(op, &[i]);
    }
    let _ = set.get(op, &[200; 150], &mut value);
    let _ = set.insert(op, &[200; 150], &[1; 500]);
    if set.insert(op, b"fresh", b"value").is_ok() {
        assert!(matches!(set.get(op, b"fresh", &mut value), Ok(true)) && value == b"value", "what was written is read");
    }
    let mut text = String::new();
    let _ = set.dump(op, &mut text);
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_pristine_pool_is_whole() {
        let backing = HeapBacking::from_image(pristine().to_vec()).with_limit(LIMIT);
        let pool = options().open_on(backing, Hardware::PAGE_CACHE).unwrap().recover().unwrap();
        let mut names: Vec<_> = pool.indices().unwrap().into_iter().map(|i| i.name).collect();
        names.sort();
        assert_eq!(names, ["mixed", "renamed"]);
        let mut session = pool.session().unwrap();
        for name in names {
            let set = PersistentSet::open_with(&pool, &name, &set_options()).unwrap();
            let op = session.enter().unwrap();
            assert_eq!(set.len(&op), 8);
            assert!(set.check(&op).unwrap().is_empty());
            assert_eq!(set.get_vec(&op, &[11]).unwrap(), Some(vec![11; 99]));
        }
        mutate_and_use(&[]);
    }

    #[test]
    fn an_extent_that_hides_another_owners_is_dropped_without_a_panic() {
        mutate_and_use(&[0, 32, 0, 32, 249, 96, 26, 32, 0, 9, 159, 6, 229]);
    }

    proptest! {
        #![proptest_config(crate::cases(3000, 60000))]

        #[test]
        fn changed_bytes_never_panic(input in prop::collection::vec(any::<u8>(), 0..72)) {
            mutate_and_use(&input);
        }

        #[test]
        fn changed_words_of_tables_never_panic(
            steps in prop::collection::vec((0..24_000u32, 3..6u8, any::<[u8; 2]>()), 1..8),
        ) {
            let step = |(at, what, operand): &(u32, u8, [u8; 2])| {
                let at = at.to_le_bytes();
                [at[0], at[1], at[2], *what, operand[0], operand[1]]
            };
            mutate_and_use(&steps.iter().flat_map(step).collect::<Vec<_>>());
        }
    }
}
