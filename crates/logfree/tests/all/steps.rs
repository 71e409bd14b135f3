//! How far searches of a skip list go after a power failure, which leaves its mark on nearly all upper links.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use durix_logfree::{Options, SkipList};
use durix_pmem::backing::FileBacking;

use durix_pmem::medium::Survives;
use durix_pmem::testing::Shadow;
use durix_pmem::{Hardware, Lines, Medium, PoolOptions, Rmw};

static LOADS: AtomicU64 = AtomicU64::new(0);

/// Counts loads.
#[derive(Clone, Copy, Debug)]
struct Loads(Hardware);

// SAFETY: every access is handed on unchanged; it only counts loads.
unsafe impl Medium for Loads {
    fn describe(self) -> String {
        self.0.describe()
    }
    fn survives(self) -> Survives {
        self.0.survives()
    }
    fn load(self, word: &AtomicU64, order: Ordering) -> u64 {
        LOADS.fetch_add(1, Ordering::Relaxed);
        self.0.load(word, order)
    }
    fn store(self, word: &AtomicU64, value: u64, order: Ordering) {
        self.0.store(word, value, order);
    }
    fn store_nt(self, word: &AtomicU64, value: u64) {
        self.0.store_nt(word, value);
    }
    fn store_nt_line(self, line: &[AtomicU64; 8], values: &[u64; 8]) {
        self.0.store_nt_line(line, values);
    }
    fn compare_exchange(self, word: &AtomicU64, current: u64, new: u64) -> Result<u64, u64> {
        self.0.compare_exchange(word, current, new)
    }
    fn rmw(self, word: &AtomicU64, op: Rmw, operand: u64) -> u64 {
        self.0.rmw(word, op, operand)
    }
    fn order(self) {
        self.0.order();
    }
    fn write_back(self, lines: Lines<'_>) {
        self.0.write_back(lines);
    }
    fn fence(self) {
        self.0.fence();
    }
}

const KEYS: u64 = 20_000;

fn options() -> Options {
    Options::default().recovery_threads(2)
}

fn pool_options() -> PoolOptions {
    PoolOptions::new().initial_size(8 << 20).max_size(64 << 20).accept_copy(true)
}

/// Inserts keys under a medium that keeps what was written back, and fenced, in the file; leaves the file as a power failure does.
fn fill(file: &Path, keys: &[u64]) {
    let keys = keys.chunks(keys.len().div_ceil(2));
    let live = file.with_extension("live");
    drop(pool_options().create_on(FileBacking::create(&live).unwrap(), Hardware::PAGE_CACHE).unwrap());
    let (backing, shadow) = Shadow::over(Hardware::PAGE_CACHE, FileBacking::create(&live).unwrap(), 0, 1);
    let pool = pool_options().open_on(backing, shadow).unwrap().recover().unwrap();
    let mut session = pool.session().unwrap();
    // In two runs: links to nodes of both are marked.
    for keys in keys {
        let map: Arc<SkipList<_>> = pool.open_structure("map", &options()).unwrap();
        for key in keys {
            assert!(map.insert(&session.enter().unwrap(), *key, !key).unwrap());
        }
    }
    std::fs::copy(&live, file).unwrap();
}

/// Loads of opening the file for each key, and of a search for each.
fn loads(file: &Path) -> [u64; 2] {
    let unrecovered = pool_options().open_on(FileBacking::create(file).unwrap(), Loads(Hardware::PAGE_CACHE)).unwrap();
    let pool = unrecovered.recover().unwrap();
    let start = LOADS.load(Ordering::Relaxed);
    let map: Arc<SkipList<_>> = pool.open_structure("map", &options()).unwrap();
    let opened = LOADS.load(Ordering::Relaxed);
    let mut session = pool.session().unwrap();
    for key in 0..KEYS {
        assert_eq!(map.get(&session.enter().unwrap(), key).unwrap(), Some(!key), "{key}");
    }
    let searched = LOADS.load(Ordering::Relaxed);
    assert_eq!(map.check(&session.enter().unwrap()).unwrap(), []);
    [(opened - start) / KEYS, (searched - opened) / KEYS]
}

/// A search of 20 000 keys makes some 110 loads: seven levels, some three nodes on each, five words of each. Recovery makes one for each
/// node, and one for each line that is free.
const MOST: [u64; 2] = [300, 200];

#[test]
fn the_skip_list_is_searched_in_logarithmic_time_after_a_power_failure() {
    let dir = tempfile::tempdir().unwrap();
    type Order = fn(u64) -> u64;
    let orders: [Order; 3] = [|i| i, |i| KEYS - 1 - i, |i| i * 7919 % KEYS];
    for (name, key) in ["ascending", "descending", "mixed"].into_iter().zip(orders) {
        let file = dir.path().join(name);
        fill(&file, &(0..KEYS).map(key).collect::<Vec<_>>());
        let [opening, search] = loads(&file);
        println!("{name}: {opening} loads a key of opening, {search} of a search");
        assert!(opening <= MOST[0] && search <= MOST[1], "{name}: {opening}, {search}");
    }
}
