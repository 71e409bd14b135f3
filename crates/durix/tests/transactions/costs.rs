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
fn intents_cost_one_fence_and_no_write_back() {
    for kinds in [["hash", "hash"], ["hash", "skiplist"], ["pset", "hash-fast-open"], ["bst", "bst"]] {
        let at = At::new(kinds);
        let alone = [at.plain(0), at.plain(1)];
        let value = std::cell::Cell::new(100);
        let together = at.counts(|tx| {
            value.set(value.get() + 1);
            tx.map(&at.maps[0])?.insert(&1, &value.get())?;
            tx.map(&at.maps[1])?.insert(&1, &value.get())?;
            Ok(())
        });
        // The record is stored around the cache; the next record makes the retirement durable.
        let expected = (alone[0].0 + alone[1].0, alone[0].1 + alone[1].1 + 1);
        assert_eq!(together.1, expected.1, "fences, {kinds:?}: {alone:?}");
        // Nodes of other kinds lie on one line or two.
        if kinds == ["hash", "hash"] {
            assert_eq!(together.0, expected.0, "lines, {alone:?}");
        }
    }
}

/// A plain update makes the retirement of a transaction that has changed its key durable, once.
#[test]
fn the_next_plain_update_of_a_key_settles_the_retirement() {
    let at = At::new(["hash", "skiplist"]);
    let both = |value: u64| {
        at.db
            .transaction(|tx| {
                tx.map(&at.maps[0])?.insert(&1, &value)?;
                tx.map(&at.maps[1])?.insert(&1, &value).map(drop)
            })
            .unwrap();
    };
    let fences = |key: u64| at.medium_counts(|| _ = at.maps[0].insert(&key, &3).unwrap()).1;
    let alone = fences(2);
    both(1);
    assert_eq!(fences(2), alone, "a key of no transaction");
    assert_eq!(fences(1), alone + 1);
    assert_eq!(fences(1), alone, "it is durable");
    // Another transaction's record takes the place of this one.
    both(5);
    at.db.transaction(|tx| [0, 1].iter().try_for_each(|map| tx.map(&at.maps[*map])?.insert(&2, &6).map(drop))).unwrap();
    assert_eq!(fences(1), alone);
    assert_eq!(fences(2), alone + 1);
}

/// Only so many retirements may wait: where more transactions are pending, the next one retires durably at once.
#[test]
fn beyond_64_lanes_a_retirement_is_durable_at_once() {
    let at = At::new(["masstree", "hash"]);
    let mixed = |key: u64| {
        at.db
            .transaction(|tx| {
                tx.map(&at.maps[0])?.insert(&key, &1)?;
                tx.map(&at.maps[1])?.insert(&key, &1)?;
                Ok(tx.later())
            })
            .unwrap()
    };
    let logged = |key: u64| {
        let call = |tx: &Transaction<M>| {
            [key, key + 1].iter().try_for_each(|key| tx.map(&at.maps[1])?.insert(key, &2).map(drop))
        };
        at.db.transaction(call).unwrap();
        at.medium_counts(|| at.db.transaction(call).unwrap()).1
    };
    let few = logged(1);
    let later: Vec<_> = (100..163).map(mixed).collect();
    assert_eq!(logged(3), few, "lane 63");
    let last = mixed(163);
    assert_eq!(logged(5), few + 1, "lane 64");
    later.iter().chain([&last]).for_each(|later| later.wait().unwrap());
    assert_eq!(logged(7), few);
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
    // The record is stored around the cache, and a trim writes the words back.
    assert_eq!([alone, three], [(0, 1); 2], "write-backs and fences");
}
