//! One operation of a tree, many times, for a profiler: `dptree_profile insert|update|get|scan|recover|load|reload [KEYS]`, a million keys unless given. In
//! the folder `DURIX_DIR`, `/dev/shm` unless set. Nothing is written back, as a profiler that emulates a processor may not know how.
//!
//! What is to be looked at happens in the function `measured`: `valgrind --tool=callgrind --toggle-collect='*measured*'`.

use std::error::Error;
use std::hint::black_box;
use std::sync::Arc;

use durix_dptree::{Direction, DpTree};
use durix_pmem::{Hardware, Pool, PoolOptions, Session};

/// The `i`th of keys that look random.
fn key(i: u64) -> u64 {
    i.wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29).wrapping_mul(0xd6e8_feb8_6659_fd93)
}

/// The tree and what it is worked on with.
struct Work {
    pool: Pool<Hardware>,
    tree: Option<Arc<DpTree<Hardware>>>,
    session: Session<Hardware>,
    keys: u64,
}

type Done = Result<u64, Box<dyn Error>>;

impl Work {
    /// Calls a function with numbers, in an operation of its own each, and merges now and then. Returns how many.
    #[inline(always)]
    fn each(
        &mut self,
        numbers: std::ops::Range<u64>,
        mut f: impl FnMut(&DpTree<Hardware>, &durix_pmem::Op<'_, Hardware>, u64) -> Result<(), durix_dptree::Error>,
    ) -> Done {
        let tree = self.tree.as_ref().ok_or("the tree is open")?;
        let number = numbers.end - numbers.start;
        for i in numbers {
            f(tree, &self.session.enter()?, i)?;
            if i % 64 == 0 {
                tree.tick(&mut self.session)?;
            }
        }
        Ok(number)
    }

    fn insert(&mut self, numbers: std::ops::Range<u64>) -> Done {
        self.each(numbers, |tree, op, i| tree.insert(op, key(i), i).map(|_| ()))
    }

    #[inline(never)]
    fn measured(&mut self, what: &str) -> Done {
        let keys = self.keys;
        match what {
            "insert" => self.insert(keys..keys + keys / 2),
            "update" => self.each(0..keys / 2, |tree, op, i| tree.update(op, key(i * 7 % keys), i).map(|_| ())),
            "get" => self.each(0..keys / 2, |tree, op, i| tree.get(op, key(i * 7 % keys)).map(|v| _ = black_box(v))),
            "scan" => self.scan(1),
            // Sorted pairs, where nothing is yet.
            "load" => self.load("another"),
            // Other values of all keys.
            "reload" => self.load("tree"),
            "recover" => {
                drop(self.tree.take());
                self.tree = Some(DpTree::open(&self.pool, "tree")?);
                Ok(1)
            }
            _ => Err("insert, update, get, scan, recover, load or reload".into()),
        }
    }

    fn load(&mut self, name: &str) -> Done {
        let mut keys: Vec<u64> = (0..self.keys).map(key).collect();
        keys.sort_unstable();
        let tree = DpTree::open(&self.pool, name)?;
        tree.load(&mut self.session, keys.into_iter().map(|key| (key, !key)))?;
        Ok(self.keys)
    }

    /// Scans of 100 pairs each.
    fn scan(&mut self, seed: u64) -> Done {
        let most = u64::MAX - u64::MAX / self.keys * 300;
        self.each(0..self.keys / 100, |tree, op, i| {
            let mut left = 100;
            tree.scan(op, key(i * 7 + seed) % most.., Direction::Forward, |k, v| {
                black_box((k, v));
                left -= 1;
                left > 0
            })
        })
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let mut args = std::env::args().skip(1);
    let what = args.next().ok_or("insert, update, get, scan, recover, load or reload")?;
    let keys: u64 = args.next().map_or(Ok(1_000_000), |arg| arg.parse())?;
    let dir = std::env::var("DURIX_DIR").unwrap_or_else(|_| "/dev/shm".into());
    let dir = tempfile::tempdir_in(dir)?;
    let pool: Pool<Hardware> =
        PoolOptions::new().initial_size(keys * 64 + (96 << 20)).create(dir.path().join("profile.pool"))?;
    let tree = Some(DpTree::open(&pool, "tree")?);
    let session = pool.session()?;
    let mut work = Work { pool, tree, session, keys };
    work.insert(0..keys)?;
    if what == "scan" {
        // The first scan of a leaf sorts it.
        (0..4).try_for_each(|seed| work.scan(seed).map(|_| ()))?;
    }
    let start = std::time::Instant::now();
    let number = work.measured(&what)?;
    let each = start.elapsed().as_nanos() as f64 / number as f64;
    println!("{what}: {number} of {keys} keys, {each:.0} ns each");
    let op = work.session.enter()?;
    println!("{:?}", work.tree.as_ref().map(|tree| tree.stats(&op)));
    Ok(())
}
