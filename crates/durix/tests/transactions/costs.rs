//! Write-backs and fences of transactions, exactly.

use durix::{Db, Map, PoolOptions, Result, Transaction};
use durix_pmem::backing::HeapBacking;
use durix_pmem::{Counting, Hardware};

type M = Counting<Hardware>;

struct At {
    db: Db<M>,
    medium: M,
    maps: [Map<u64, u64, M>; 2],
}

impl At {
    fn new(kinds: [&str; 2]) -> At {
        let medium = Counting::new(Hardware::PAGE_CACHE);
        let pool = PoolOptions::new().initial_size(8 << 20).create_on(HeapBacking::new(64 << 20), medium).unwrap();
        let db = Db::over(pool);
        let maps = [db.map_of_kind("a", kinds[0]).unwrap(), db.map_of_kind("b", kinds[1]).unwrap()];
        for (map, key) in maps.iter().flat_map(|map| [1, 2].map(|key| (map, key))) {
            map.insert(&key, &0).unwrap();
        }
        At { db, medium, maps }
    }

    /// Write-backs and fences of a transaction, in the long run.
    fn counts(&self, run: impl Fn(&Transaction<M>) -> Result<()>) -> (u64, u64) {
        (0..3).for_each(|_| self.db.transaction(&run).unwrap());
        self.medium_counts(|| self.db.transaction(&run).unwrap())
    }

    fn medium_counts(&self, call: impl FnOnce()) -> (u64, u64) {
        let before = self.medium.counts();
        call();
        let after = self.medium.counts();
        (after.write_backs - before.write_backs, after.fences - before.fences)
    }

    fn plain(&self, map: usize) -> (u64, u64) {
        (0..3).for_each(|value| _ = self.maps[map].insert(&1, &value).unwrap());
        self.medium_counts(|| _ = self.maps[map].insert(&1, &9).unwrap())
    }
}

#[test]
fn a_transaction_that_writes_nothing_writes_nothing_back() {
    let at = At::new(["pset", "skiplist"]);
    assert_eq!(at.counts(|_| Ok(())), (0, 0));
    let reads = at.counts(|tx| {
        tx.map(&at.maps[0])?.get(&1)?;
        tx.map(&at.maps[1])?.iter()?.count();
        Ok(())
    });
    assert_eq!(reads, (0, 0));
}

#[test]
fn intents_cost_two_fences_and_three_lines() {
    for kinds in [["hash", "hash"], ["hash", "skiplist"], ["pset", "hash-links"], ["bst", "bst"]] {
        let at = At::new(kinds);
        let alone = [at.plain(0), at.plain(1)];
        let value = std::cell::Cell::new(100);
        let together = at.counts(|tx| {
            value.set(value.get() + 1);
            tx.map(&at.maps[0])?.insert(&1, &value.get())?;
            tx.map(&at.maps[1])?.insert(&1, &value.get())?;
            Ok(())
        });
        // Two lines of the record (12 words), one of the retirement.
        let expected = (alone[0].0 + alone[1].0 + 3, alone[0].1 + alone[1].1 + 2);
        assert_eq!(together.1, expected.1, "fences, {kinds:?}: {alone:?}");
        // Nodes of other kinds lie on one line or two.
        if kinds == ["hash", "hash"] {
            assert_eq!(together.0, expected.0, "lines, {alone:?}");
        }
    }
}

#[test]
fn one_map_that_is_atomic_needs_no_intents() {
    let at = At::new(["pset", "masstree"]);
    let alone = at.plain(0);
    let one = at.counts(|tx| tx.map(&at.maps[0])?.insert(&1, &5).map(drop));
    assert_eq!(one, alone);
    let two = at.counts(|tx| {
        let map = tx.map(&at.maps[0])?;
        map.insert(&1, &5)?;
        map.insert(&2, &5).map(drop)
    });
    assert!(two.1 <= alone.1 + 1, "a batch of the set: {two:?}, one insert: {alone:?}");
    let buffered = at.counts(|tx| {
        let map = tx.map(&at.maps[1])?;
        map.insert(&1, &5)?;
        map.insert(&2, &5).map(drop)
    });
    assert_eq!(buffered.1, 0, "no fence before the checkpoint");
}

/// Words of a B+-tree are changed by one redo record, however many keys there are.
#[test]
fn a_transaction_over_one_b_plus_tree_is_one_record_under_one_fence() {
    let at = At::new(["bplustree", "hash"]);
    let value = std::cell::Cell::new(100);
    let alone = at.plain(0);
    let three = at.counts(|tx| {
        value.set(value.get() + 1);
        let map = tx.map(&at.maps[0])?;
        map.insert(&1, &value.get())?;
        map.insert(&2, &value.get())?;
        map.insert(&value.get(), &value.get()).map(drop)
    });
    assert_eq!((alone.1, three.1), (1, 1), "fences");
    // Two words changed in place and three for the new key: twelve words of log, where the last record has ended.
    assert!(three.0 <= 3, "{three:?}");
}
