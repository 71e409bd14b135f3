//! Maps in files with a journal, which are dropped and opened again while their pool is open.

use std::path::Path;

use durix_logfree::{HashTable, List, SkipList};
use durix_pmem::journal::Level;
use durix_pmem::{Hardware, Op, Pool, PoolOptions};

/// The first removal of a page's node puts the note of its bypass off. A map that is dropped then leaves a link in memory that no commit holds:
/// recovery, which frees the node by it, has to note it. Otherwise the node is used again, and after a crash the old link leads to it.
/// A search tree is not among them: it puts no bypass off (LF-B3).
macro_rules! a_map_that_is_opened_again_notes_what_it_builds_on {
    ($name:ident, $map:ty) => {
        #[test]
        fn $name() {
            let place = tempfile::tempdir().unwrap();
            let path = place.path().join("pool");
            let options = || PoolOptions::new().initial_size(1 << 20).max_size(1 << 20).durability(Level::Immediate);
            let open = |pool: &Pool| <$map>::open(pool, "map").unwrap();
            let pool = options().create(&path).unwrap();
            let all =
                |pool: &Pool, keys: &mut dyn Iterator<Item = u64>, change: &dyn Fn(&$map, &Op<'_, Hardware>, u64)| {
                    let (map, mut session) = (open(pool), pool.session().unwrap());
                    keys.for_each(|key| change(&map, &session.enter().unwrap(), key));
                    pool.commit(&mut session).unwrap();
                };
            all(&pool, &mut (1000..1040), &|map, op, key| assert!(map.insert(op, key, key).unwrap()));
            pool.close().unwrap();
            drop(pool);

            let pool = options().open(&path).unwrap();
            all(&pool, &mut [1010].into_iter(), &|map, op, key| assert_eq!(map.remove(op, key).unwrap(), Some(key)));
            all(&pool, &mut (1..100), &|map, op, key| assert!(map.insert(op, key, key).unwrap()));
            let crashed = place.path().join("crashed");
            copy(&path, &crashed);
            drop(pool);

            let pool = options().accept_copy(true).open(&crashed).unwrap();
            let (map, mut session) = (open(&pool), pool.session().unwrap());
            assert_eq!(map.check(&session.enter().unwrap()).unwrap(), []);
            for key in 1..1100 {
                let expected = ((1..100).contains(&key) || (1000..1040).contains(&key) && key != 1010).then_some(key);
                assert_eq!(map.get(&session.enter().unwrap(), key).unwrap(), expected, "{key}");
            }
        }
    };
}

a_map_that_is_opened_again_notes_what_it_builds_on!(a_list_that_is_opened_again_notes_what_it_builds_on, List);
a_map_that_is_opened_again_notes_what_it_builds_on!(
    a_hash_table_that_is_opened_again_notes_what_it_builds_on,
    HashTable
);
a_map_that_is_opened_again_notes_what_it_builds_on!(a_skip_list_that_is_opened_again_notes_what_it_builds_on, SkipList);

/// Copies a pool as a power failure would leave it: nothing is under way.
fn copy(from: &Path, to: &Path) {
    for added in ["", "-journal", "-sums"] {
        let of = |path: &Path| format!("{}{added}", path.display());
        std::fs::copy(of(from), of(to)).unwrap();
    }
}
