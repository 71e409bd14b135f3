//! What does not fit, what does not belong, and what things cost.

use std::sync::Arc;

use durix_pmem::backing::HeapBacking;
use durix_pmem::testing::{Before, Interposed};
use durix_pmem::{Counting, Error as PoolError, Hardware, Medium, Off, Pool, PoolOptions, Session, Word};
use durix_rewind::{Error, Layers, LogKind, LogRecovery, Options, Policy, TransactionManager};

const SMALL: u64 = 4096 * 16;

fn pool<M: Medium>(len: u64, medium: M) -> Pool<M> {
    let options = PoolOptions::new().chunk_size(4096).lanes(1).max_indices(2);
    options.initial_size(len).max_size(len).create_on(HeapBacking::new(len), medium).unwrap()
}

fn open<M: Medium>(pool: &Pool<M>, options: Options) -> (Arc<TransactionManager<M>>, Session<M>) {
    (TransactionManager::open(pool, "log", &options).unwrap(), pool.session().unwrap())
}

fn all() -> Vec<Options> {
    let mut all = Vec::new();
    for log in [LogKind::Simple, LogKind::Optimized, LogKind::Batch(8)] {
        for layers in [Layers::One, Layers::Two] {
            for policy in [Policy::Force, Policy::NoForce] {
                all.push(Options::default().log(log).layers(layers).policy(policy).bucket(8));
            }
        }
    }
    all
}

/// Writes until the pool is full. Returns how many writes there were.
fn fill<M: Medium>(tm: &TransactionManager<M>, tx: &mut durix_rewind::Tx<'_, M>) -> u64 {
    for n in 0.. {
        match tx.set(tm.cell(n as usize % 8), n + 100) {
            Ok(()) => {}
            Err(Error::Pool(PoolError::Full { .. })) => return n,
            Err(other) => panic!("{other}"),
        }
    }
    unreachable!("a pool of {SMALL} bytes is full some time")
}

#[test]
fn a_full_log_can_be_rolled_back_and_used_again() {
    for options in all() {
        let pool = pool(SMALL, Hardware::PAGE_CACHE);
        let (tm, mut session) = open(&pool, options);
        let mut written = Vec::new();
        for round in 0..3 {
            let mut tx = tm.begin(&mut session).unwrap();
            written.push(fill(&tm, &mut tx));
            tx.rollback().unwrap();
            tm.checkpoint(&mut session).unwrap();
            let cells: Vec<u64> =
                (0..8).map(|n| tm.transaction(&mut session, |tx| tx.get(tm.cell(n))).unwrap()).collect();
            assert_eq!(cells, [0; 8], "{options}, round {round}");
            assert_eq!(tm.records(&mut session).unwrap(), 0, "{options}");
        }
        assert!(written[0] > 100 && written[2] >= written[1], "{options}: {written:?} writes fit");
    }
}

#[test]
fn a_full_log_can_commit() {
    for options in all() {
        let pool = pool(SMALL, Hardware::PAGE_CACHE);
        let (tm, mut session) = open(&pool, options);
        let mut tx = tm.begin(&mut session).unwrap();
        let written = fill(&tm, &mut tx);
        tx.commit().unwrap();
        let last = tm.cell((written - 1) as usize % 8);
        assert_eq!(tm.transaction(&mut session, |tx| tx.get(last)).unwrap(), written + 99, "{options}");
    }
}

#[test]
fn nothing_is_lost_of_a_log_that_is_used_for_long() {
    for options in all() {
        let pool = pool(SMALL, Hardware::PAGE_CACHE);
        let (tm, mut session) = open(&pool, options);
        for n in 0..600u64 {
            let result = tm.transaction(&mut session, |tx| {
                tx.set(tm.cell(n as usize % 8), n)?;
                tx.set(tm.cell(7), n)?;
                if n % 3 == 0 { Err(Error::RolledBack) } else { Ok(()) }
            });
            assert_eq!(result.is_err(), n % 3 == 0, "{options}: {result:?}");
            if n % 20 == 0 {
                tm.checkpoint(&mut session).unwrap();
            }
        }
        assert_eq!(tm.check(&mut session).unwrap(), [""; 0], "{options}");
        assert_eq!(tm.transaction(&mut session, |tx| tx.get(tm.cell(7))).unwrap(), 599, "{options}");
    }
}

#[test]
fn wrong_use_is_refused() {
    let first = pool(SMALL, Hardware::PAGE_CACHE);
    let (tm, mut session) = open(&first, Options::default());
    let other = pool(SMALL, Hardware::PAGE_CACHE);
    assert!(matches!(tm.begin(&mut other.session().unwrap()), Err(Error::ForeignSession)));
    let mut tx = tm.begin(&mut session).unwrap();
    for wrong in [0, 4, SMALL, u64::MAX] {
        let wrong = Off::<Word>::new(wrong);
        assert!(matches!(tx.set(wrong, 1), Err(Error::NoWord { .. })), "{wrong:?}");
        assert!(matches!(tx.get(wrong), Err(Error::NoWord { .. })), "{wrong:?}");
        assert!(matches!(tx.free(wrong), Err(Error::Pool(_))), "{wrong:?}");
    }
    assert!(matches!(tx.alloc(&[0; 1 << 20]), Err(Error::BlockTooLarge { .. })));
    let block = tx.alloc(&[1, 2]).unwrap();
    tx.commit().unwrap();
    // The same block twice in one transaction: it is freed once.
    tm.transaction(&mut session, |tx| tx.free(block).and_then(|()| tx.free(block))).unwrap();
    tm.checkpoint(&mut session).unwrap();
    assert!(matches!(tm.transaction(&mut session, |tx| tx.free(block)), Err(Error::Pool(_))));
    drop(tm);
    let asked = Options::default().policy(Policy::Force);
    assert!(matches!(TransactionManager::open(&first, "log", &asked), Err(Error::OtherConfig { .. })));
    for wrong in [Options::default().bucket(3), Options::default().log(LogKind::Batch(65))] {
        assert!(matches!(TransactionManager::open(&first, "another", &wrong), Err(Error::Option { .. })));
    }
}

#[test]
fn a_panic_rolls_back() {
    let pool = pool(SMALL, Hardware::PAGE_CACHE);
    let (tm, mut session) = open(&pool, Options::default());
    let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        let _: Result<(), Error> = tm.transaction(&mut session, |tx| {
            tx.set(tm.cell(0), 1)?;
            panic!("in the closure");
        });
    }));
    assert!(panicked.is_err());
    assert_eq!(tm.transaction(&mut pool.session().unwrap(), |tx| tx.get(tm.cell(0))).unwrap(), 0);
}

/// Write-backs and fences of a transaction of so many writes, once the log's memory is there.
fn cost(options: Options, writes: usize) -> (u64, u64) {
    let counting = Counting::new(Hardware::PAGE_CACHE);
    let pool = pool(1 << 20, counting);
    let (tm, mut session) = open(&pool, options);
    let mut run = || {
        let before = counting.counts();
        let write = |tx: &mut durix_rewind::Tx<'_, _>| (0..writes).try_for_each(|n| tx.set(tm.cell(n % 8), n as u64));
        tm.transaction(&mut session, write).unwrap();
        let spent = counting.counts() - before;
        (spent.write_backs, spent.fences)
    };
    run();
    run()
}

#[test]
fn costs_are_exact() {
    let cost = |log, layers, policy, writes| cost(Options::default().log(log).layers(layers).policy(policy), writes);
    use {Layers::*, LogKind::*, Policy::*};
    // Without a write nothing is written back.
    assert_eq!(cost(Batch(8), Two, NoForce, 0), (0, 0));
    // A record, its node, the node before, the header twice: five lines and three fences, for 7 writes and END.
    assert_eq!(cost(Simple, One, NoForce, 7), (5 * 8, 3 * 8));
    // A record and its pointer, each fenced.
    assert_eq!(cost(Optimized, One, NoForce, 7), (2 * 8, 2 * 8));
    // A group: eight records, their pointers (on one line), and the count.
    assert_eq!(cost(Batch(8), One, NoForce, 7), (8 + 1 + 1, 2));
    assert_eq!(cost(Batch(16), One, NoForce, 15), (16 + 2 + 1, 2));
}

/// Transactions run while the log is compacted by others: their records have other places then.
#[test]
fn transactions_that_run_find_their_records_after_a_compaction() {
    for log in [LogKind::Optimized, LogKind::Batch(8)] {
        let pool = pool(1 << 20, Hardware::PAGE_CACHE);
        let (tm, mut session) = open(&pool, Options::default().log(log).policy(Policy::Force).bucket(8));
        let mut sessions: Vec<_> = (0..3).map(|_| pool.session().unwrap()).collect();
        let mut running = Vec::new();
        for (cell, own) in sessions.iter_mut().enumerate() {
            let mut tx = tm.begin(own).unwrap();
            tx.set(tm.cell(cell), 7).unwrap();
            running.push(tx);
            // They leave gaps, in more than a bucket.
            (0..8).for_each(|value| tm.transaction(&mut session, |tx| tx.set(tm.cell(7), value)).unwrap());
        }
        running.into_iter().for_each(|tx| tx.commit().unwrap());
        assert_eq!(tm.records(&mut session).unwrap(), 0, "{log:?}");
        assert_eq!(tm.check(&mut session).unwrap(), [""; 0]);
    }
}

/// The old buckets of a compaction go to other lanes when the anchor no longer leads to them. A transaction of another lane runs to
/// its end before each fence of the compaction; the process dies right after it.
#[test]
fn other_lanes_get_the_old_buckets_of_a_compaction_after_the_swap() {
    for log in [LogKind::Optimized, LogKind::Batch(3)] {
        let options = Options::default().log(log).policy(Policy::Force).bucket(8).lanes(2);
        let mut met = 0;
        for fence in 1.. {
            let medium = Interposed::new(Hardware::PAGE_CACHE);
            let pool = pool(1 << 20, medium);
            let (tm, mut compacts) = open(&pool, options);
            // Every second session is in the same lane.
            let (mut other, mut stays) = (pool.session().unwrap(), pool.session().unwrap());
            let write = |session: &mut Session<_>, cell: usize, value| {
                let all =
                    |tx: &mut durix_rewind::Tx<'_, _>| (0..20u64).try_for_each(|n| tx.set(tm.cell(cell), value + n));
                tm.transaction(session, all).unwrap();
            };
            // Then the log has memory enough: it would grow under a lock that the other one waits for.
            (0..3).for_each(|_| write(&mut other, 5, 1));
            let mut running = tm.begin(&mut stays).unwrap();
            let mut sparse = tm.begin(&mut compacts).unwrap();
            for turn in 0..24 {
                let (tx, cell) = if turn % 6 == 0 { (&mut running, 0) } else { (&mut sparse, 1) };
                tx.set(tm.cell(cell), 100 + turn).unwrap();
            }
            let compact = || sparse.commit().unwrap();
            let image = std::sync::Mutex::new(None);
            let beside = || {
                write(&mut other, 2, 30);
                *image.lock().unwrap() = Some(HeapBacking::image_of(pool.mapping()));
            };
            let ((), came) = medium.interrupt(Before::Fence, fence, compact, beside);
            if !came {
                break;
            }
            met += 1;
            let left = HeapBacking::from_image(image.into_inner().unwrap().expect("it came"));
            let dead = PoolOptions::new().chunk_size(4096).lanes(1).max_indices(2).max_size(1 << 20);
            let dead = dead.open_on(left, Hardware::PAGE_CACHE).unwrap().recover().unwrap();
            let recovered = dead.recover_logs(&[&LogRecovery]);
            assert!(recovered.is_ok(), "{log:?}, before fence {fence}: {recovered:?}");
            let (tm, mut session) = open(&dead, options);
            let cells = [0, 1, 2].map(|cell| tm.transaction(&mut session, |tx| tx.get(tm.cell(cell))).unwrap());
            assert!(matches!(cells, [0, 0 | 123, 49]), "{log:?}, before fence {fence}: {cells:?}");
        }
        assert!(met > 4, "{log:?}: {met} fences");
    }
}

#[test]
fn only_blocks_of_the_log_can_be_freed_and_only_once() {
    for policy in [Policy::Force, Policy::NoForce] {
        let pool = pool(SMALL, Hardware::PAGE_CACHE);
        let options = Options::default().policy(policy);
        let (tm, mut session) = open(&pool, options);
        let other = TransactionManager::open(&pool, "other", &options).unwrap();
        let block = tm.transaction(&mut session, |tx| tx.alloc(&[1, 2])).unwrap();
        let foreign = other.transaction(&mut session, |tx| tx.alloc(&[3])).unwrap();
        let extents = pool.space().extents(&session.enter().unwrap(), tm.root().owner());
        for wrong in [foreign, Off::new(extents[0].off)] {
            let freed = tm.transaction(&mut session, |tx| tx.free(wrong));
            assert!(matches!(freed, Err(Error::NotABlock { offset }) if offset == wrong.get()), "{freed:?}");
        }
        // A transaction that is rolled back keeps the block; one that runs has it for itself.
        let mut tx = tm.begin(&mut session).unwrap();
        tx.free(block).unwrap();
        let mut second = pool.session().unwrap();
        assert!(matches!(tm.transaction(&mut second, |tx| tx.free(block)), Err(Error::Pool(_))));
        tx.rollback().unwrap();
        tm.transaction(&mut session, |tx| tx.free(block)).unwrap();
        assert!(matches!(tm.transaction(&mut session, |tx| tx.free(block)), Err(Error::Pool(_))), "it is freed");
        tm.checkpoint(&mut session).unwrap();
        let blocks = pool.space().blocks(&session.enter().unwrap(), tm.root().owner());
        assert_eq!(blocks, [], "{policy:?}");
        // The same block comes again, and is freed again.
        for _ in 0..2 {
            assert_eq!(tm.transaction(&mut session, |tx| tx.alloc(&[4])).unwrap(), block);
            tm.transaction(&mut session, |tx| tx.free(block)).unwrap();
            tm.checkpoint(&mut session).unwrap();
        }
        assert_eq!(tm.check(&mut session).unwrap(), [""; 0]);
    }
}

#[test]
fn a_pool_with_pending_records_opens_only_for_those_who_recover_them() {
    for options in all() {
        let pool = pool(SMALL, Hardware::PAGE_CACHE);
        let (tm, mut session) = open(&pool, options);
        tm.transaction(&mut session, |tx| tx.set(tm.cell(0), 41)).unwrap();
        let mut tx = tm.begin(&mut session).unwrap();
        tx.set(tm.cell(0), 42).unwrap();
        let crashed = HeapBacking::image_of(pool.mapping());
        tx.rollback().unwrap();
        let cell = tm.cell(0);
        drop((session, tm));
        pool.close().unwrap();
        let closed = HeapBacking::image_of(pool.mapping());
        drop(pool);
        let medium = Hardware::PAGE_CACHE;
        let reopen = |image| {
            let options = PoolOptions::new().chunk_size(4096).lanes(1).max_indices(2).max_size(SMALL);
            options.open_on(HeapBacking::from_image(image), medium).unwrap().recover().unwrap()
        };
        let read = |pool: &Pool<Hardware>| {
            let mut session = pool.session().unwrap();
            let op = session.enter().unwrap();
            op.load(op.at(cell), std::sync::atomic::Ordering::Acquire)
        };
        let pool = reopen(closed);
        assert!(!pool.has_pending_records(), "{options}: a log that was closed asks for nothing");
        assert_eq!(read(&pool), 41, "{options}");
        let pool = reopen(crashed);
        let refused = TransactionManager::open(&pool, "log", &options);
        assert!(matches!(refused, Err(Error::Pool(PoolError::PendingRecords { .. }))), "{options}");
        pool.recover_logs(&[&LogRecovery]).unwrap();
        // Before the log is opened.
        assert_eq!(read(&pool), 41, "{options}");
        let (tm, mut session) = open(&pool, options);
        assert_eq!((tm.found_records(), tm.records(&mut session).unwrap()), (0, 0), "{options}");
    }
}

/// The process dies with a log that has no room for one record more: what undoes and ends its transaction fits all the same.
#[test]
fn a_full_log_is_recovered() {
    for options in all() {
        for commits in [false, true] {
            let full = pool(SMALL, Hardware::PAGE_CACHE);
            let (tm, mut session) = open(&full, options);
            let mut tx = tm.begin(&mut session).unwrap();
            let written = fill(&tm, &mut tx);
            let image = if commits {
                tx.commit().unwrap();
                HeapBacking::image_of(full.mapping())
            } else {
                let image = HeapBacking::image_of(full.mapping());
                tx.rollback().unwrap();
                image
            };
            let dead = PoolOptions::new().chunk_size(4096).lanes(1).max_indices(2).max_size(SMALL);
            let dead = dead.open_on(HeapBacking::from_image(image), Hardware::PAGE_CACHE).unwrap().recover().unwrap();
            let recovered = dead.recover_logs(&[&LogRecovery]);
            assert!(recovered.is_ok(), "{options}, commits: {commits}: {recovered:?}");
            let (tm, mut session) = open(&dead, options);
            assert_eq!((tm.found_records(), tm.records(&mut session).unwrap()), (0, 0), "{options}");
            let newest = |cell| (0..written).filter(|n| n % 8 == cell).max().map_or(0, |n| n + 100);
            for cell in 0..8 {
                let found = tm.transaction(&mut session, |tx| tx.get(tm.cell(cell as usize))).unwrap();
                assert_eq!(found, if commits { newest(cell) } else { 0 }, "{options}, commits: {commits}, cell {cell}");
            }
            // As many fit again.
            let mut tx = tm.begin(&mut session).unwrap();
            assert!(fill(&tm, &mut tx) >= written, "{options}, commits: {commits}");
            tx.rollback().unwrap();
        }
    }
}

/// A transaction is about to free a block; before each of its fences another one asks to free the same block. If that were accepted, it would
/// free the block once more when somebody else has it.
#[test]
fn a_block_that_is_being_freed_cannot_be_freed_by_another_transaction() {
    for policy in [Policy::Force, Policy::NoForce] {
        let options = Options::default().policy(policy).lanes(2);
        let mut met = 0;
        for fence in 1.. {
            let medium = Interposed::new(Hardware::PAGE_CACHE);
            let pool = pool(1 << 20, medium);
            let (tm, mut session) = open(&pool, options);
            let (mut other, mut third) = (pool.session().unwrap(), pool.session().unwrap());
            let block = tm.transaction(&mut session, |tx| tx.alloc(&[1, 2])).unwrap();
            // Otherwise the block's slab would go back to the pool, under a lock that the other one waits for.
            tm.transaction(&mut session, |tx| tx.alloc(&[8, 9])).unwrap();
            tm.checkpoint(&mut session).unwrap();
            let mut late = tm.begin(&mut other).unwrap();
            late.set(tm.cell(0), 1).unwrap();
            let free = || {
                tm.transaction(&mut session, |tx| tx.free(block)).unwrap();
                tm.checkpoint(&mut session).unwrap();
            };
            let mut refused = None;
            let ((), came) = medium.interrupt(Before::Fence, fence, free, || refused = Some(late.free(block)));
            if !came {
                break;
            }
            met += 1;
            // Somebody else gets the block, and keeps it.
            assert_eq!(tm.transaction(&mut third, |tx| tx.alloc(&[3])).unwrap(), block);
            late.commit().unwrap();
            tm.checkpoint(&mut third).unwrap();
            let blocks = pool.space().blocks(&third.enter().unwrap(), tm.root().owner());
            assert_eq!(blocks.len(), 2, "{policy:?}, before fence {fence}: the block of another transaction was freed");
            assert!(matches!(refused, Some(Err(Error::Pool(_)))), "{policy:?}, before fence {fence}: {refused:?}");
        }
        assert!(met >= 4, "{policy:?}: {met} fences");
    }
}
