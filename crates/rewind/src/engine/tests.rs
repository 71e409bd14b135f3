use super::*;
use durix_pmem::backing::HeapBacking;
use durix_pmem::testing::{Before, Interposed};
use durix_pmem::{Counting, Killable, Pool, PoolOptions};

type M = Counting<Hardware>;

const CHUNK: u64 = 4096;

fn options() -> PoolOptions {
    PoolOptions::new().chunk_size(CHUNK).initial_size(64 * CHUNK).lanes(1).max_indices(2)
}

fn pool(chunks: u64) -> (Pool<M>, M) {
    let medium = Counting::new(Hardware::for_pmem().unwrap_or(Hardware::PAGE_CACHE));
    (options().initial_size(8 * CHUNK).create_on(HeapBacking::new(chunks * CHUNK), medium).unwrap(), medium)
}

fn engine(pool: &Pool<M>, trim_at: usize) -> Arc<Engine<M>> {
    pool.open_structure::<Engine<M>>("tm", &Options { segment: CHUNK, trim_at }).unwrap()
}

fn cells(tm: &Engine<M>, session: &mut Session<M>, count: u64) -> Cell<u64> {
    tm.transaction(session, |tx| tx.alloc::<u64>(count)).unwrap()
}

#[test]
fn a_transaction_costs_one_fence_and_growth_and_trimming_next_to_nothing() {
    let (pool, medium) = pool(2000);
    let tm = pool.open_structure::<Engine<M>>("tm", &Options::default()).unwrap();
    let mut session = pool.session().unwrap();
    let base = tm.transaction(&mut session, |tx| tx.alloc::<u64>(128)).unwrap();
    for words in [1, 4, 16] {
        let before = medium.counts();
        let count = 20_000;
        for i in 0..count {
            tm.transaction(&mut session, |tx| {
                (0..words).try_for_each(|w| tx.set(base.field::<u64>((i * 7 + w * 5) % 128), i))
            })
            .unwrap();
        }
        let fences = (medium.counts() - before).fences;
        assert!(
            (count..=count + count / 100).contains(&fences),
            "{words} words: {fences} fences for {count} transactions"
        );
        println!(
            "{words} words: {} fences, {} write-backs a transaction",
            fences as f64 / count as f64,
            (medium.counts() - before).write_backs as f64 / count as f64
        );
    }
    let before = medium.counts();
    tm.transaction(&mut session, |tx| tx.get(base)).unwrap();
    tm.transaction(&mut session, |_| Ok::<_, Error>(())).unwrap();
    let cost = medium.counts() - before;
    assert_eq!((cost.stores, cost.write_backs, cost.fences), (0, 0, 0), "reading costs nothing");
}

/// A trim writes back each line of a new block whose words were in the record, wherever in its line the block begins and ends.
#[test]
fn a_trim_writes_back_all_lines_of_a_new_block() {
    let (pool, medium) = pool(2000);
    let tm = engine(&pool, 100);
    let mut session = pool.session().unwrap();
    let (mut others, mut ends) = (Vec::new(), std::collections::BTreeSet::new());
    for len in (1..=17).cycle().take(340) {
        let op = session.enter().unwrap();
        let mut changes = tm.changes();
        let off = changes.alloc(&op, 8 * len, Contents::Logged).unwrap();
        (0..len).for_each(|word| changes.set(&op, off + 8 * word, word + 1).unwrap());
        tm.commit_in(&op, changes, |store| store()).unwrap();
        drop(op);
        let before = medium.counts();
        tm.trim(&mut session).unwrap();
        let lines = (off + 8 * len - 1) / 64 - off / 64 + 1;
        ends.insert((off + 8 * len) % 64);
        others.push((medium.counts() - before).write_backs - lines);
    }
    assert!(others.iter().all(|other| *other == others[0]), "{others:?}");
    assert!(ends.contains(&8), "a last word that begins a line: {ends:?}");
}

/// Nothing of a new block has reached memory when the record has: all its words come from the record.
#[test]
fn a_record_has_all_words_of_a_new_block() {
    for len in 1..=17 {
        let (pool, medium) = pool(64);
        let tm = engine(&pool, 100);
        let mut session = pool.session().unwrap();
        let op = session.enter().unwrap();
        let mut changes = tm.changes();
        let off = changes.alloc(&op, 8 * len, Contents::Logged).unwrap();
        (0..len).for_each(|word| changes.set(&op, off + 8 * word, word + 1).unwrap());
        tm.commit_in(&op, changes, |store| store()).unwrap();
        let mut image = HeapBacking::image_of(pool.mapping());
        image[off as usize..][..8 * len as usize].fill(0);
        let pool = options().open_on(HeapBacking::from_image(image), medium).unwrap();
        let pool = pool.recover_with(&[&EngineRecovery]).unwrap();
        let mut session = pool.session().unwrap();
        let op = session.enter().unwrap();
        let found: Vec<u64> =
            (0..len).map(|word| op.load(op.at(Off::<Word>::new(off + 8 * word)), Ordering::Relaxed)).collect();
        assert_eq!(found, (1..=len).collect::<Vec<_>>());
    }
}

/// A panic in the middle of a commit leaves its record to recovery. A trim would take it for done.
#[test]
fn nothing_is_trimmed_after_a_panic_in_a_commit() {
    let (pool, medium) = pool(64);
    let tm = engine(&pool, 100);
    let mut session = pool.session().unwrap();
    let words = cells(&tm, &mut session, 2).off().get();
    {
        let op = session.enter().unwrap();
        let mut changes = tm.changes();
        (0..2).for_each(|word| changes.set(&op, words + 8 * word, 7).unwrap());
        let commit = || tm.commit_in(&op, changes, |_| panic!("planted"));
        assert!(std::panic::catch_unwind(std::panic::AssertUnwindSafe(commit)).is_err());
    }
    let refused = tm.trim(&mut session);
    assert!(matches!(refused, Err(Error::Pool(durix_pmem::Error::Poisoned { .. }))), "{refused:?}");
    // Closing the engine trims nothing, either: the pool goes on asking for recovery.
    drop((session, tm));
    let left = || HeapBacking::from_image(HeapBacking::image_of(pool.mapping()));
    assert!(options().open_on(left(), medium).unwrap().recover().unwrap().has_pending_records());
    let pool = options().open_on(left(), medium).unwrap().recover_with(&[&EngineRecovery]).unwrap();
    let mut session = pool.session().unwrap();
    let op = session.enter().unwrap();
    let found = [0, 8].map(|at| op.load(op.at(Off::<Word>::new(words + at)), Ordering::Relaxed));
    assert_eq!(found, [7, 7]);
}

/// A panic in a trim leaves lines in no list that may not be durable. The next trim would take them for done.
#[test]
fn nothing_is_trimmed_after_a_panic_in_a_trim() {
    let medium = Killable::new(Hardware::PAGE_CACHE);
    let pool = options().create_on(HeapBacking::new(64 * CHUNK), medium).unwrap();
    let tm = pool.open_structure::<Engine<_>>("tm", &Options { segment: CHUNK, trim_at: 100 }).unwrap();
    let mut session = pool.session().unwrap();
    let a = tm.root_cell::<u64>(0).unwrap();
    tm.transaction(&mut session, |tx| tx.set(a, 7)).unwrap();
    assert!(medium.dying_at(1, || _ = tm.trim(&mut session)));
    let refused = tm.trim(&mut session);
    assert!(matches!(refused, Err(Error::Pool(durix_pmem::Error::Poisoned { .. }))), "{refused:?}");
}

/// A block whose contents the record does not hold is durable before the record is written: without that fence a record could be there,
/// and the contents not.
#[test]
fn contents_that_are_written_ahead_cost_a_fence_of_their_own() {
    let (pool, medium) = pool(64);
    let tm = engine(&pool, 100);
    let mut session = pool.session().unwrap();
    let op = session.enter().unwrap();
    for (turn, contents) in [Contents::Logged, Contents::Logged, Contents::Ahead].into_iter().enumerate() {
        let mut changes = tm.changes();
        let off = changes.alloc(&op, 64, contents).unwrap();
        (0..8).for_each(|word| changes.set(&op, off + 8 * word, word + 1).unwrap());
        let before = medium.counts();
        tm.commit_in(&op, changes, |store| store()).unwrap();
        let fences = (medium.counts() - before).fences;
        // The first one asks for recovery, too.
        assert!(turn == 0 || fences == turn as u64, "{contents:?}: {fences}");
    }
}

/// A transaction frees a block that it has allocated: nobody gets it before the trim, which frees it once.
#[test]
fn a_block_that_comes_and_goes_in_one_transaction_is_free_once() {
    let (pool, _) = pool(16);
    let tm = engine(&pool, 100);
    let mut session = pool.session().unwrap();
    let come_and_go = tm.transaction(&mut session, |tx| {
        (0..32).try_for_each(|_| {
            let cell = tx.alloc::<u64>(64)?;
            tx.free(cell)
        })
    });
    come_and_go.unwrap();
    let mut blocks = std::collections::BTreeSet::new();
    for _ in 0..2 {
        while let Ok(cell) = tm.transaction(&mut session, |tx| tx.alloc::<u64>(64)) {
            assert!(blocks.insert(cell.off().get()), "a block is allocated twice");
        }
        tm.trim(&mut session).unwrap();
    }
    assert!(blocks.len() > 32);
    assert_eq!(pool.check_space(&session.enter().unwrap(), |_| true), []);
}

/// The service trims before commits have to, and costs no more.
#[test]
fn trimming_by_the_service_is_charged_too() {
    let (pool, medium) = pool(4000);
    let options = Options { segment: 64 << 10, trim_at: 4 };
    let tm = pool.open_structure::<Engine<M>>("tm", &options).unwrap();
    let mut session = pool.session().unwrap();
    let base = cells(&tm, &mut session, 128);
    let (before, count, mut steps) = (medium.counts(), 40_000, 0);
    for i in 0..count {
        tm.transaction(&mut session, |tx| tx.set(base.field::<u64>(i * 7 % 128), i)).unwrap();
        let segments = || tm.slots.of(session.slot()).lane.lock(medium).ends.len();
        assert!(segments() <= 2, "the service comes at half");
        if tm.is_long.load(Ordering::Relaxed) == 1 {
            while pool.tick(&mut session).unwrap() == durix_pmem::Tick::Worked {}
            steps += 1;
            assert_eq!(tm.slots.of(session.slot()).lane.lock(medium).ends.len(), 0, "all of the log was given back");
        }
    }
    let fences = (medium.counts() - before).fences;
    println!("{steps} steps, {} fences a transaction", fences as f64 / count as f64);
    assert!(steps > 5 && (count..=count + count / 100).contains(&fences), "{steps} steps, {fences} fences");
}

#[test]
fn a_transaction_sees_its_own_writes_and_nobody_sees_those_of_one_that_ends_badly() {
    let (pool, _) = pool(64);
    let tm = engine(&pool, 16);
    let mut session = pool.session().unwrap();
    let (a, b) = (tm.root_cell::<u64>(0).unwrap(), tm.root_cell::<u64>(4).unwrap());
    tm.transaction(&mut session, |tx| {
        tx.set(a, 5)?;
        assert_eq!(tx.get(a)?, 5);
        tx.set(b, 6)
    })
    .unwrap();
    let blocks = |session: &mut Session<M>| {
        let op = session.enter().unwrap();
        pool.space().blocks(&op, tm.root().owner())
    };
    let refused = tm.transaction(&mut session, |tx| {
        tx.set(a, 7)?;
        let block = tx.alloc::<u64>(3)?;
        tx.set(block, 9)?;
        tx.free(block)?;
        Err::<(), _>(Error::RolledBack)
    });
    assert!(matches!(refused, Err(Error::RolledBack)));
    let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        tm.transaction(&mut session, |tx| {
            tx.set(b, 8)?;
            tx.alloc::<u64>(3)?;
            if true {
                panic!("in the closure");
            }
            Ok::<(), Error>(())
        })
    }));
    assert!(panicked.is_err());
    assert_eq!((tm.peek(&mut session, a).unwrap(), tm.peek(&mut session, b).unwrap()), (5, 6));
    assert_eq!(blocks(&mut session), []);
    // The locks are free again, and so is the space.
    tm.transaction(&mut session, |tx| tx.set(b, 1)).unwrap();
}

#[test]
fn space_that_was_freed_comes_back_after_a_trim() {
    let (pool, _) = pool(64);
    let tm = engine(&pool, 16);
    let mut session = pool.session().unwrap();
    let first = cells(&tm, &mut session, 8);
    let kept = cells(&tm, &mut session, 8);
    tm.transaction(&mut session, |tx| tx.free(first)).unwrap();
    assert_ne!(cells(&tm, &mut session, 8), first, "records may still name it");
    assert!(tm.trim(&mut session).unwrap());
    assert_eq!(cells(&tm, &mut session, 8), first);
    let twice = tm.transaction(&mut session, |tx| {
        tx.free(kept)?;
        tx.free(kept)
    });
    assert!(matches!(twice, Err(Error::NoCell { .. })));
    tm.transaction(&mut session, |tx| tx.free(kept)).unwrap();
    assert!(tm.transaction(&mut session, |tx| tx.free(kept)).is_err());
}

#[test]
fn cells_of_a_block_that_the_transaction_has_freed_are_no_cells() {
    let (pool, _) = pool(64);
    let tm = engine(&pool, 16);
    let mut session = pool.session().unwrap();
    let (freed, kept) = (cells(&tm, &mut session, 8), cells(&tm, &mut session, 8));
    tm.transaction(&mut session, |tx| {
        let fresh = tx.alloc::<u64>(8)?;
        for block in [freed, fresh] {
            tx.set(block.field::<u64>(7), 1)?;
            tx.free(block)?;
            for cell in [0, 7].map(|word| block.field::<u64>(word)) {
                let (read, written) = (tx.get(cell), tx.set(cell, 2));
                assert!(matches!(read, Err(Error::NoCell { offset }) if offset == cell.off().get()), "{read:?}");
                assert!(matches!(written, Err(Error::NoCell { .. })), "{written:?}");
            }
        }
        tx.set(kept, 3)?;
        tx.set(kept.field::<u64>(7), 4)
    })
    .unwrap();
    assert_eq!(tm.peek(&mut session, kept).unwrap(), 3);
}

/// The process dies with the record of a freed block pending: recovery makes the block available.
#[test]
fn what_recovery_has_freed_is_used_again() {
    let (pool, medium) = pool(64);
    let tm = engine(&pool, 16);
    let mut session = pool.session().unwrap();
    let first = cells(&tm, &mut session, 8);
    tm.transaction(&mut session, |tx| tx.free(first)).unwrap();
    let left = HeapBacking::from_image(HeapBacking::image_of(pool.mapping()));
    let pool = options().open_on(left, medium).unwrap().recover_with(&[&EngineRecovery]).unwrap();
    let tm = engine(&pool, 16);
    assert_eq!(cells(&tm, &mut pool.session().unwrap(), 8), first);
}

#[test]
fn bad_use_is_an_error_and_loses_nothing() {
    let (pool, _) = pool(64);
    let (other, _) = self::pool(64);
    let tm = engine(&pool, 16);
    let (mut session, mut foreign) = (pool.session().unwrap(), other.session().unwrap());
    let a = tm.root_cell::<u64>(0).unwrap();
    assert!(matches!(tm.root_cell::<u64>(5), Err(Error::NoCell { .. })));
    assert!(matches!(tm.transaction(&mut foreign, |tx| tx.get(a)), Err(Error::ForeignSession)));
    for off in [0, 8, a.off().get() - 8, a.off().get() + 1, a.off().get() + 48, u64::MAX, 1 << 40] {
        let cell = Cell::<u64>::at(Off::new(off));
        assert!(matches!(tm.transaction(&mut session, |tx| tx.set(cell, 1)), Err(Error::NoCell { .. })), "{off:#x}");
        assert!(tm.transaction(&mut session, |tx| tx.free(cell)).is_err(), "{off:#x}");
        assert!(tm.peek(&mut session, cell).is_err());
    }
    // A pool that is full refuses before anything happens.
    tm.transaction(&mut session, |tx| tx.set(a, 1)).unwrap();
    let block = cells(&tm, &mut session, 64);
    let error = loop {
        let done = tm.transaction(&mut session, |tx| {
            tx.set(a, 2)?;
            tx.set(block.field::<u64>(1), 2)?;
            tx.alloc::<u64>(64)
        });
        if let Err(error) = done {
            break error;
        }
        tm.transaction(&mut session, |tx| tx.set(a, 1)).unwrap();
    };
    assert!(matches!(error, Error::Pool(durix_pmem::Error::Full { .. })), "{error}");
    assert_eq!(tm.peek(&mut session, a).unwrap(), 1);
}

#[test]
fn transactions_of_threads_are_serialisable() {
    const ACCOUNTS: u64 = 16;
    const EACH: u64 = 100;
    let (pool, _) = pool(400);
    let tm = engine(&pool, 2);
    let base = cells(&tm, &mut pool.session().unwrap(), ACCOUNTS);
    tm.transaction(&mut pool.session().unwrap(), |tx| (0..ACCOUNTS).try_for_each(|i| tx.set(base.field(i), EACH)))
        .unwrap();
    std::thread::scope(|scope| {
        for thread in 0..4u64 {
            let (tm, pool) = (&tm, &pool);
            scope.spawn(move || {
                let mut session = pool.session().unwrap();
                let mut random = thread * 77 + 1;
                for round in 0..3000u64 {
                    random = random.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
                    let (from, to) = (random >> 33 & 15, random >> 40 & 15);
                    tm.transaction(&mut session, |tx| {
                        let balance = tx.get(base.field::<u64>(from))?;
                        tx.set(base.field(from), balance.saturating_sub(1))?;
                        let other = tx.get(base.field::<u64>(to))?;
                        tx.set(base.field(to), other + balance.min(1))
                    })
                    .unwrap();
                    if round % 100 == thread {
                        let sum = tm.transaction(&mut session, |tx| {
                            (0..ACCOUNTS).try_fold(0, |sum, i| Ok::<_, Error>(sum + tx.get(base.field::<u64>(i))?))
                        });
                        assert_eq!(sum.unwrap(), ACCOUNTS * EACH);
                    }
                }
            });
        }
    });
    let image = HeapBacking::image_of(pool.mapping());
    pool.mapping().shut();
    drop((tm, pool));
    // The process has died: its records are redone over what is there, and change nothing.
    let medium = Counting::new(Hardware::PAGE_CACHE);
    let found = options().open_on(HeapBacking::from_image(image), medium).unwrap();
    let pool = found.recover_with(&[&EngineRecovery]).unwrap();
    let (tm, mut session) = (engine(&pool, 2), pool.session().unwrap());
    let sum: u64 = (0..ACCOUNTS).map(|i| tm.peek(&mut session, base.field::<u64>(i)).unwrap()).sum();
    assert_eq!(sum, ACCOUNTS * EACH);
}

#[test]
fn a_younger_transaction_gives_up_and_an_older_one_waits() {
    let locks = Locks::new();
    let m = Hardware::PAGE_CACHE;
    let locks::Got::Taken(stripe) = locks.lock(m, 64, 5) else { panic!("it was free") };
    assert_eq!(locks.lock(m, 64, 5), locks::Got::Held);
    assert_eq!(locks.lock(m, 64, 6), locks::Got::Lost);
    std::thread::scope(|scope| {
        let older = scope.spawn(|| locks.lock(m, 64, 4));
        std::thread::sleep(std::time::Duration::from_millis(20));
        assert!(!older.is_finished());
        locks.unlock(m, stripe);
        assert_eq!(older.join().unwrap(), locks::Got::Taken(stripe));
    });
}

#[test]
fn a_pool_that_was_closed_opens_without_the_recovery_and_one_that_was_not_does_not() {
    let (pool, medium) = pool(64);
    let tm = engine(&pool, 16);
    let mut session = pool.session().unwrap();
    let a = tm.root_cell::<u64>(0).unwrap();
    tm.transaction(&mut session, |tx| tx.set(a, 41)).unwrap();
    let crashed = HeapBacking::image_of(pool.mapping());
    drop((session, tm));
    pool.close().unwrap();
    let closed = HeapBacking::image_of(pool.mapping());
    drop(pool);
    let open = |image| options().open_on(HeapBacking::from_image(image), medium).unwrap().recover().unwrap();
    let reopened = open(closed);
    assert!(!reopened.has_pending_records());
    assert_eq!(engine(&reopened, 16).peek(&mut reopened.session().unwrap(), a).unwrap(), 41);
    let reopened = open(crashed);
    let refused = reopened.open_structure::<Engine<M>>("tm", &Options::default());
    assert!(matches!(refused, Err(Error::Pool(durix_pmem::Error::PendingRecords { .. }))));
    reopened.recover_logs(&[&EngineRecovery]).unwrap();
    assert_eq!(engine(&reopened, 16).peek(&mut reopened.session().unwrap(), a).unwrap(), 41);
}

/// The record that frees a block counts until the next trim. If this one gave the block away, its slab could become another index's, and
/// recovery, which frees the block once more, would find none.
#[test]
fn what_is_freed_beside_a_trim_is_given_back_by_the_next_one() {
    let mut met = 0;
    for fence in 1.. {
        let medium = Interposed::new(Hardware::PAGE_CACHE);
        let pool = options().initial_size(8 * CHUNK).create_on(HeapBacking::new(24 * CHUNK), medium).unwrap();
        let open = |name| pool.open_structure::<Engine<_>>(name, &Options { segment: CHUNK, trim_at: 100 }).unwrap();
        let (tm, neighbour) = (open("tm"), open("neighbour"));
        let (mut trimmer, mut session) = (pool.session().unwrap(), pool.session().unwrap());
        let alloc = |tm: &Engine<_>, session: &mut Session<_>| tm.transaction(session, |tx| tx.alloc::<u64>(64));
        // Two slabs: one has room, so the other one goes back to the pool when its block is free.
        let first = alloc(&tm, &mut session).unwrap();
        let alone = std::iter::repeat_with(|| alloc(&tm, &mut session).unwrap());
        let alone = alone.into_iter().find(|block| block.off().get() / CHUNK != first.off().get() / CHUNK).unwrap();
        tm.transaction(&mut session, |tx| tx.free(first)).unwrap();
        assert!(tm.trim(&mut session).unwrap());
        let trim = || assert!(tm.trim(&mut trimmer).unwrap());
        let free = || tm.transaction(&mut session, |tx| tx.free(alone)).unwrap();
        let ((), came) = medium.interrupt(Before::Fence, fence, trim, free);
        if !came {
            break;
        }
        met += 1;
        // The neighbour takes all chunks that there are.
        while alloc(&neighbour, &mut session).is_ok() {}
        let left = HeapBacking::from_image(HeapBacking::image_of(pool.mapping()));
        let found = options().open_on(left, Hardware::PAGE_CACHE).unwrap().recover_with(&[&EngineRecovery]);
        assert!(found.is_ok(), "before fence {fence}: {found:?}");
    }
    assert!(met >= 2, "{met} fences");
}

/// The log of a session fills its only segment, and the rest of the pool is full: no commit that succeeds would ask for a trim.
#[test]
fn a_full_log_in_a_full_pool_is_trimmed_by_the_commit_that_finds_it() {
    let (pool, _) = pool(16);
    let tm = engine(&pool, 100);
    let mut session = pool.session().unwrap();
    let a = tm.root_cell::<u64>(0).unwrap();
    let mut blocks = Vec::new();
    while let Ok(block) = tm.transaction(&mut session, |tx| tx.alloc::<u64>(64)) {
        blocks.push(block);
    }
    while tm.transaction(&mut session, |tx| tx.alloc::<u64>(1)).is_ok() {}
    // More than a segment holds.
    for value in 1..=CHUNK / 8 {
        let done = tm.transaction(&mut session, |tx| tx.set(a, value));
        assert!(done.is_ok(), "commit {value}: {done:?}");
    }
    assert_eq!(tm.peek(&mut session, a).unwrap(), CHUNK / 8);
    for block in blocks {
        tm.transaction(&mut session, |tx| tx.free(block)).unwrap();
    }
    assert_eq!(pool.check_space(&session.enter().unwrap(), |_| true), []);
}

/// What was freed is available after a trim, and nobody else trims.
#[test]
fn an_allocation_in_a_full_pool_gets_what_was_freed_before() {
    let (pool, _) = pool(16);
    let tm = engine(&pool, 100);
    let mut session = pool.session().unwrap();
    let mut last = None;
    while let Ok(block) = tm.transaction(&mut session, |tx| tx.alloc::<u64>(64)) {
        last = Some(block);
    }
    let last = last.unwrap();
    tm.transaction(&mut session, |tx| tx.free(last)).unwrap();
    let mut runs = 0;
    let again = tm.transaction(&mut session, |tx| {
        runs += 1;
        tx.alloc::<u64>(64)
    });
    assert_eq!((again.unwrap(), runs), (last, 1), "the closure need not run again");
    let full = tm.transaction(&mut session, |tx| tx.alloc::<u64>(64));
    assert!(matches!(full, Err(Error::Pool(durix_pmem::Error::Full { .. }))), "{full:?}");
}

/// A panic in another session comes between the record of a commit and the trim that it asks for: the transaction has happened all the same.
#[test]
fn a_commit_whose_trim_fails_has_happened() {
    let medium = Interposed::new(Hardware::PAGE_CACHE);
    let pool = options().initial_size(8 * CHUNK).create_on(HeapBacking::new(64 * CHUNK), medium).unwrap();
    let tm = pool.open_structure::<Engine<_>>("tm", &Options { segment: CHUNK, trim_at: 1 }).unwrap();
    let (mut session, mut other) = (pool.session().unwrap(), pool.session().unwrap());
    let (a, b) = (tm.root_cell::<u64>(0).unwrap(), tm.root_cell::<u64>(1).unwrap());
    tm.transaction(&mut session, |tx| tx.set(a, 1)).unwrap();
    let commit = || tm.transaction(&mut session, |tx| tx.set(a, 2));
    let panic = || {
        let op = other.enter().unwrap();
        let mut changes = tm.changes();
        changes.set(&op, b.off().get(), 7).unwrap();
        let commit = || tm.commit_in(&op, changes, |_| panic!("planted"));
        assert!(std::panic::catch_unwind(std::panic::AssertUnwindSafe(commit)).is_err());
    };
    let (done, came) = medium.interrupt(Before::Fence, 1, commit, panic);
    assert!(came);
    assert!(done.is_ok(), "{done:?}");
    assert_eq!(tm.peek(&mut session, a).unwrap(), 2);
    // The next one is told, and has not happened.
    let refused = tm.transaction(&mut session, |tx| tx.set(a, 3));
    assert!(matches!(refused, Err(Error::Pool(durix_pmem::Error::Poisoned { .. }))), "{refused:?}");
    assert_eq!(tm.peek(&mut session, a).unwrap(), 2);
}

/// The ages of sessions are their own counts: a session that has run many transactions would be younger than each new one for ever.
#[test]
fn a_transaction_that_has_lost_is_older_than_those_of_new_sessions() {
    use std::sync::atomic::AtomicU32;
    let (pool, _) = pool(64);
    let tm = engine(&pool, 16);
    let (mut session, mut new) = (pool.session().unwrap(), pool.session().unwrap());
    let a = tm.root_cell::<u64>(0).unwrap();
    (0..1000).for_each(|value| tm.transaction(&mut session, |tx| tx.set(a, value)).unwrap());
    let (locked, runs) = (std::sync::Barrier::new(2), AtomicU32::new(0));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            tm.transaction(&mut new, |tx| {
                tx.set(a, 5)?;
                locked.wait();
                while runs.load(Ordering::Relaxed) < 2 {
                    std::thread::yield_now();
                }
                std::thread::sleep(std::time::Duration::from_millis(20));
                Ok::<_, Error>(())
            })
            .unwrap();
        });
        locked.wait();
        tm.transaction(&mut session, |tx| {
            runs.fetch_add(1, Ordering::Relaxed);
            tx.set(a, 6)
        })
        .unwrap();
    });
    assert_eq!(runs.into_inner(), 2, "the second run waits");
    assert_eq!(tm.peek(&mut session, a).unwrap(), 6);
}

/// Two cells have the same stripe. The inner transaction waits for the outer one, which waits for the inner one's end.
#[test]
fn a_transaction_inside_another_one_is_busy_after_a_while() {
    let (pool, _) = pool(400);
    let tm = engine(&pool, 16);
    tm.locks.patience.store(50_000_000, Ordering::Relaxed);
    let (mut session, mut second) = (pool.session().unwrap(), pool.session().unwrap());
    let base = cells(&tm, &mut session, 100);
    let all = (0..90).flat_map(|_| {
        let block = cells(&tm, &mut session, 100);
        (0..100).map(move |word| block.field::<u64>(word))
    });
    let stripe = |cell: Cell<u64>| Locks::stripe(cell.off().get());
    let other = all.into_iter().find(|cell| stripe(*cell) == stripe(base)).expect("9000 cells, 4096 stripes");
    for turn in 0..2 {
        tm.transaction(&mut session, |tx| {
            tx.set(base, turn)?;
            let inner = tm.transaction(&mut second, |tx| tx.set(other, turn));
            assert!(matches!(inner, Err(Error::Busy)), "{inner:?}");
            Ok::<_, Error>(())
        })
        .unwrap();
    }
    tm.transaction(&mut second, |tx| tx.set(other, 7)).unwrap();
    assert_eq!(tm.peek(&mut session, base).unwrap(), 1);
}

/// A long transaction needs many segments. Who finds the pool full later gets their room.
#[test]
fn segments_that_nobody_needs_go_back_to_the_pool() {
    let medium = Counting::new(Hardware::PAGE_CACHE);
    let pool = options().create_on(HeapBacking::new(64 * CHUNK), medium).unwrap();
    let tm = engine(&pool, 100);
    let mut session = pool.session().unwrap();
    let base = cells(&tm, &mut session, 64);
    let free = |session: &mut Session<M>| pool.space().stats(&session.enter().unwrap()).free;
    let had = free(&mut session);
    for turn in 0..200 {
        tm.transaction(&mut session, |tx| (0..60).try_for_each(|w| tx.set(base.field::<u64>(w), turn))).unwrap();
    }
    let long = free(&mut session);
    tm.make_room(&session.enter().unwrap()).unwrap();
    let after = free(&mut session);
    // The one that is being written to, and one that is spare.
    assert!(had - long > 20 * CHUNK && had - after <= 2 * CHUNK, "{had} bytes were free, then {long}, then {after}");
}
