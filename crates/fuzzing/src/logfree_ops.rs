//! Runs operations, given as bytes, on three maps of `durix-logfree` and on a model, with reopening in between; in a second
//! part of the input, words of the pool are changed first, and nothing may panic or hang then.

use std::collections::BTreeMap;
use std::sync::Arc;

use durix_logfree::{Error, HashTable, List, Options, SoftHash, SoftOptions, WordMap, Words};
use durix_pmem::backing::HeapBacking;
use durix_pmem::{Hardware, Off, Op, Pool, PoolOptions, Word};
use std::sync::atomic::Ordering;

const CHUNK: u64 = 4096;
const LEN: u64 = 40 * CHUNK;
/// Bytes of an operation: what, key, value.
const STEP: usize = 3;

/// What is done with a map, whichever.
trait Map {
    /// What it answers.
    fn run(&self, op: &Op<'_>, what: u8, key: u64, value: u64) -> Result<Option<u64>, Error>;
    /// How much a check finds.
    fn check(&self, op: &Op<'_>) -> Result<usize, Error>;
    fn len(&self, op: &Op<'_>) -> Result<u64, Error>;
}

impl<S: WordMap<Hardware>> Map for Words<S> {
    fn run(&self, op: &Op<'_>, what: u8, key: u64, value: u64) -> Result<Option<u64>, Error> {
        let flag = |done: bool| done.then_some(value);
        match what % 6 {
            0 | 1 => self.insert(op, key, value).map(flag),
            2 => self.remove(op, key),
            3 => self.update(op, key, value),
            4 => self.compare_and_set(op, key, value ^ 1, value).map(flag),
            _ => self.get(op, key),
        }
    }

    fn check(&self, op: &Op<'_>) -> Result<usize, Error> {
        Ok(Words::check(self, op)?.len())
    }

    fn len(&self, op: &Op<'_>) -> Result<u64, Error> {
        Words::len(self, op)
    }
}

/// Maps, over the same operations.
struct Maps([Arc<dyn Map>; 3]);

impl Maps {
    fn open(pool: &Pool) -> Result<Maps, Error> {
        let options = Options::default().page_size(256).active_pages(4).generation(2).buckets(4).recovery_threads(1);
        let soft = SoftOptions::default().recovery_threads(1);
        Ok(Maps([
            List::open_with(pool, "list", &options)?,
            HashTable::open_with(pool, "hash", &options)?,
            SoftHash::open_with(pool, "soft", &soft)?,
        ]))
    }

    /// What all maps answer.
    fn run(&self, op: &Op<'_>, what: u8, key: u64, value: u64) -> [Result<Option<u64>, Error>; 3] {
        self.0.each_ref().map(|map| map.run(op, what, key, value))
    }

    fn check(&self, op: &Op<'_>) -> Result<usize, Error> {
        self.0.iter().try_fold(0, |found, map| Ok(found + map.check(op)?))
    }
}

fn step(model: &mut BTreeMap<u64, u64>, what: u8, key: u64, value: u64) -> Option<u64> {
    match what % 6 {
        0 | 1 if model.contains_key(&key) => None,
        0 | 1 => {
            model.insert(key, value);
            Some(value)
        }
        2 => model.remove(&key),
        3 => model.get_mut(&key).map(|old| std::mem::replace(old, value)),
        4 => model.get_mut(&key).filter(|old| **old == value ^ 1).map(|old| {
            *old = value;
            value
        }),
        _ => model.get(&key).copied(),
    }
}

fn pool() -> Pool {
    let options = PoolOptions::new().chunk_size(CHUNK).lanes(1).max_indices(4).pool_id([7; 16]).boot_id([7; 16]);
    let options = options.initial_size(LEN).max_size(LEN);
    options.create_on(HeapBacking::new(LEN), Hardware::PAGE_CACHE).expect("a pool in memory")
}

/// An input of the fuzzer: a first byte of 0 stands for [`corrupt`], others for [`run`].
pub fn run_or_corrupt(input: &[u8]) {
    match input.split_first() {
        Some((0, rest)) => corrupt(rest),
        Some((_, rest)) => run(rest),
        None => {}
    }
}

/// Runs the operations in `input` on all maps and on a model.
///
/// # Panics
/// Where a map and the model differ, or a check finds something.
pub fn run(input: &[u8]) {
    let pool = pool();
    let mut model = BTreeMap::new();
    // Each part begins with a recovery.
    for part in input.chunks(STEP * 64) {
        let maps = Maps::open(&pool).expect("the pool is sound");
        let mut session = pool.session().expect("sessions enough");
        let op = session.enter().expect("the pool is open");
        for bytes in part.chunks_exact(STEP) {
            let (what, key, value) = (bytes[0], u64::from(bytes[1] % 48), u64::from(bytes[2]));
            let expected = step(&mut model, what, key, value);
            for answer in maps.run(&op, what, key, value) {
                assert_eq!(answer.expect("room enough"), expected, "{what} {key} {value}");
            }
        }
        assert_eq!(maps.check(&op).expect("the pool is sound"), 0);
        for map in &maps.0 {
            assert_eq!(map.len(&op).expect("the pool is sound"), model.len() as u64);
        }
    }
}

/// Fills the maps, changes words of the pool as `input` says (where, bit), and goes on. Answers may be wrong then.
///
/// # Panics
/// Never, on any input: that is what is tested.
pub fn corrupt(input: &[u8]) {
    let pool = pool();
    let mut session = pool.session().expect("sessions enough");
    if let Ok(maps) = Maps::open(&pool) {
        let op = session.enter().expect("the pool is open");
        for key in 0..30 {
            for answer in maps.run(&op, 0, key, key) {
                answer.expect("room enough");
            }
        }
    }
    {
        let op = session.enter().expect("the pool is open");
        // The pool's own header and tables are the business of another target: the first seven chunks stay.
        let words = op.slice("words", Off::<Word>::new(7 * CHUNK), (LEN - 7 * CHUNK) / 8).expect("within the pool");
        for change in input.chunks_exact(STEP) {
            let word = &words[usize::from(u16::from_le_bytes([change[0], change[1]])) % words.len()];
            let old = op.load(word, Ordering::Relaxed);
            op.store(word, old ^ 1 << (change[2] % 64), Ordering::Release);
        }
    }
    let Ok(maps) = Maps::open(&pool) else { return };
    let op = session.enter().expect("the pool is open");
    for key in 0..40 {
        for what in [5, 3, 2, 0] {
            let _ = maps.run(&op, what, key, 7);
        }
    }
    let _ = maps.check(&op);
    let _ = maps.0.each_ref().map(|map| map.len(&op));
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #![proptest_config(crate::cases(200, 4000))]

        #[test]
        fn all_maps_agree_with_the_model(input in prop::collection::vec(any::<u8>(), 0..900)) {
            run(&input);
        }

        #[test]
        fn changed_words_never_panic(input in prop::collection::vec(any::<u8>(), 0..30)) {
            corrupt(&input);
        }

        #[test]
        fn changed_links_never_panic(changes in prop::collection::vec((0..700u16, 0..16u8), 1..6)) {
            let bytes = |(at, bit): &(u16, u8)| [at.to_le_bytes()[0], at.to_le_bytes()[1], *bit];
            corrupt(&changes.iter().flat_map(bytes).collect::<Vec<_>>());
        }
    }
}
