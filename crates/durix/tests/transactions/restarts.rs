//! Crash states that are made by hand, of lines of images of the pool: what takes several power failures to show.

use std::ops::Range;

use durix::{Db, Map, PoolOptions};
use durix_pmem::Hardware;
use durix_pmem::backing::HeapBacking;

use crate::words;

const LEN: u64 = 4 << 20;
const LINE: usize = 64;

fn options() -> PoolOptions {
    PoolOptions::new().initial_size(LEN).max_size(LEN)
}

/// Two maps, and their database.
struct Bank {
    db: Db,
    maps: [Map<u64, u64>; 2],
}

impl Bank {
    fn over(pool: durix_pmem::Pool) -> Bank {
        let db = Db::builder().no_background_threads().over(pool).unwrap();
        let maps = [words(&db, "first", "pset"), words(&db, "second", "pset")];
        Bank { db, maps }
    }

    fn create() -> Bank {
        Bank::over(options().create_on(HeapBacking::new(LEN), Hardware::PAGE_CACHE).unwrap())
    }

    /// After a crash that has left that.
    fn recover(image: Vec<u8>) -> Bank {
        let pool = options().open_on(HeapBacking::from_image(image), Hardware::PAGE_CACHE).unwrap();
        Bank::over(pool.recover().unwrap())
    }

    /// All stores so far, which are all in memory if the caches are empty.
    fn image(&self) -> Vec<u8> {
        HeapBacking::image_of(self.db.pool().mapping())
    }

    /// One transaction: keys of the first map, and of the second.
    fn set(&self, first: &[(u64, u64)], second: &[(u64, u64)]) {
        let done = self.db.transaction(|tx| {
            for (map, pairs) in self.maps.iter().zip([first, second]) {
                let map = tx.map(map)?;
                pairs.iter().try_for_each(|(key, value)| map.insert(key, value).map(drop))?;
            }
            Ok(())
        });
        done.unwrap();
    }

    fn get(&self, map: usize, key: u64) -> Option<u64> {
        self.maps[map].get(&key).unwrap()
    }
}

/// Where the lane of the log begins, which must be one.
fn lane(image: &[u8]) -> usize {
    let lanes: Vec<usize> = (0..image.len()).step_by(LINE).filter(|at| image[*at..].starts_with(b"DURIXtxn")).collect();
    let [lane] = lanes[..] else { panic!("{} lanes", lanes.len()) };
    lane
}

/// `before`, with some lines of the lane as they are in `after`.
fn with_lines(before: &[u8], after: &[u8], lines: Range<usize>) -> Vec<u8> {
    let at = lane(after) + lines.start * LINE..lane(after) + lines.end * LINE;
    assert_ne!(before[at.clone()], after[at.clone()], "lines {lines:?} are the same");
    let mut image = before.to_vec();
    image[at.clone()].copy_from_slice(&after[at]);
    image
}

/// `before`, with the root of the log as it is in `after`: a commit of a process makes that durable before its first record.
fn with_root(before: &[u8], after: &[u8]) -> Vec<u8> {
    const ENTRY: usize = 4 * LINE;
    let name = b"#transactions";
    let root = (0..after.len()).step_by(8).find(|at| after[*at..].starts_with(name)).expect("a root") / ENTRY * ENTRY;
    assert_ne!(before[root..root + ENTRY], after[root..root + ENTRY], "the root is the same");
    let mut image = before.to_vec();
    image[root..root + ENTRY].copy_from_slice(&after[root..root + ENTRY]);
    image
}

/// A crash leaves the first line of a record, another one the rest of a record with the same changes: together they are a transaction that has
/// never happened, and that must not take back what was acknowledged between.
#[test]
fn a_record_that_was_cut_off_is_not_made_whole_by_a_later_one() {
    let bank = Bank::create();
    bank.set(&[(1, 1)], &[(1, 1)]);
    // The retirement becomes durable.
    bank.maps[0].insert(&1, &2).unwrap();
    let before = bank.image();
    bank.set(&[(1, 10), (2, 11)], &[(3, 12)]);
    // The first power failure: the header and the first change have got to memory, the others not.
    let bank = Bank::recover(with_lines(&before, &bank.image(), 1..2));
    assert_eq!((bank.get(0, 1), bank.get(0, 2), bank.get(1, 3)), (Some(2), None, None));
    bank.maps[0].insert(&2, &77).unwrap();
    let before = bank.image();
    bank.set(&[(1, 99), (2, 11)], &[(3, 12)]);
    // The second one: all but the header and the first change have got to memory.
    let after = bank.image();
    let bank = Bank::recover(with_lines(&with_root(&before, &after), &after, 2..3));
    assert_eq!((bank.get(0, 1), bank.get(0, 2), bank.get(1, 3)), (Some(2), Some(77), None));
}
