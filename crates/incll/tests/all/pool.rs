//! Trees in pools: one consistent cut for all of them, crashes around creation, clean closing, reopening, damage.

use std::ops::{Bound, ControlFlow};
use std::sync::atomic::Ordering::Relaxed;

use durix_crashsim::{Contract, Explorer, Report, Sites, mutation_sweep};
use durix_incll::testing::trees as subject;
use durix_incll::{Error, MAX_KEY, Masstree};
use durix_pmem::backing::HeapBacking;
use durix_pmem::{Hardware, Plan, Pool, PoolOptions, Session};
use subject::{Both, LEN, Map, Put, Remove, Sync, SyncByOther, Tested, all, options};

fn scenario(plan: &'static Plan) -> Report {
    let explorer = Explorer::new().contract(Contract::Buffered).executions_per_point(3000).samples(100);
    let acts = [Put(0, 1, 1), Both(2, 102), Sync, Put(1, 1, 103), Remove(0, 1), Sync, Both(3, 4)];
    let after = [Put(0, 9, 9), Sync, Both(8, 108)];
    let mut report = explorer.run_then(&Tested { plan, used: false }, &acts, &after);
    let by_other = [Put(0, 1, 101), SyncByOther];
    for (used, acts) in [(true, &acts[..2]), (false, &acts[..1]), (false, &by_other)] {
        if report.failure.is_none() {
            let explorer = if used { explorer.clone() } else { explorer.clone().crash_in_create(true) };
            report.merge(explorer.run_then(&Tested { plan, used }, acts, &after));
        }
    }
    report
}

/// The sweep runs it without a fault first, and asks that it passes.
#[test]
fn two_trees_share_one_consistent_cut_and_what_creation_writes_back_is_needed() {
    let mut sites = Sites::in_files("crates/incll/src/alloc/slab.rs");
    sites.files.push("crates/incll/src/tree.rs".into());
    println!("{}", mutation_sweep(&sites, scenario).assert_all_caught(&[]));
}

// ---- files ----

fn fill(pool: &Pool, name: &str, keys: std::ops::Range<u32>) {
    let tree = Masstree::open(pool, name).unwrap();
    let mut session = pool.session().unwrap();
    for chunk in keys.collect::<Vec<_>>().chunks(50) {
        let op = session.enter().unwrap();
        for n in chunk {
            tree.insert(&op, format!("a key of some length {n}").as_bytes(), &n.to_le_bytes().repeat(5)).unwrap();
            tree.insert(&op, &u64::from(*n).to_be_bytes(), &u64::from(*n).to_le_bytes()).unwrap();
        }
        drop(op);
        tree.sync(&mut session).unwrap();
    }
}

#[test]
fn a_closed_pool_has_everything_and_fails_no_epoch() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("pool");
    for round in 0..4u32 {
        let pool: Pool = PoolOptions::new().open_or_create(&path).unwrap();
        assert_eq!(pool.epochs().unwrap().stats().failed_ranges, 0);
        fill(&pool, "users", round * 500..round * 500 + 500);
        let tree = Masstree::open(&pool, "users").unwrap();
        let mut session = pool.session().unwrap();
        {
            let op = session.enter().unwrap();
            tree.insert(&op, b"last", &round.to_le_bytes()).unwrap();
        }
        assert_eq!(all(&tree, &mut session).len() as u32, (round + 1) * 1000 + 1);
        assert_eq!(tree.check(&session.enter().unwrap()).unwrap(), []);
        // Not synced: closing crosses the last boundary.
        drop(tree);
        pool.close().unwrap();
    }
}

#[test]
fn threads_share_an_open_tree_and_an_index_can_be_dropped() {
    let dir = tempfile::tempdir().unwrap();
    let pool: Pool = PoolOptions::new().create(dir.path().join("pool")).unwrap();
    std::thread::scope(|s| {
        for thread in 0..3u32 {
            let pool = &pool;
            s.spawn(move || fill(pool, "users", thread * 1000..thread * 1000 + 1000));
        }
    });
    let tree = Masstree::open(&pool, "users").unwrap();
    let mut session = pool.session().unwrap();
    assert_eq!(tree.check(&session.enter().unwrap()).unwrap(), []);
    assert_eq!(tree.len(&session.enter().unwrap()).unwrap(), 6000);
    drop(tree);
    pool.drop_index("users").unwrap();
    let again = Masstree::open(&pool, "users").unwrap();
    assert!(again.is_empty(&session.enter().unwrap()).unwrap());
}

#[test]
fn opening_takes_the_same_time_however_many_keys() {
    let counts = [100u32, 20_000].map(|keys| {
        let medium = durix_pmem::Counting::new(Hardware::PAGE_CACHE);
        let backing = HeapBacking::new(256 << 20);
        let options = PoolOptions::new().initial_size(64 << 20).max_size(64 << 20);
        let pool = options.create_on(backing, medium).unwrap();
        {
            let tree = Masstree::open(&pool, "t").unwrap();
            let mut session = pool.session().unwrap();
            let op = session.enter().unwrap();
            for n in 0..keys {
                tree.insert(&op, &u64::from(n).to_be_bytes(), &[1; 8]).unwrap();
            }
            drop(op);
            tree.sync(&mut session).unwrap();
        }
        let before = medium.counts();
        drop(Masstree::open(&pool, "t").unwrap());
        let after = medium.counts();
        (after.stores - before.stores, after.write_backs - before.write_backs, after.fences - before.fences)
    });
    // The segments of the external log are read and written back; there are as many in both.
    println!("stores, write-backs and fences of an opening with 100 and with 20000 keys: {counts:?}");
    assert!(counts[1].1 <= counts[0].1 + 1100 && counts[1].0 <= counts[0].0 + 100, "{counts:?}");
}

/// The bytes of a pool as they are.
fn image_of(session: &mut Session<Hardware>) -> Vec<u8> {
    let mut image = vec![0; LEN as usize];
    let op = session.enter().unwrap();
    let words = op.slice("all", durix_pmem::Off::<durix_pmem::Word>::new(0), LEN / 8).unwrap();
    op.load_bytes(words, &mut image);
    image
}

/// A pool with a tree that nobody has closed.
fn small_image(options: &PoolOptions) -> Vec<u8> {
    let pool = options.create_on(HeapBacking::new(LEN), Hardware::PAGE_CACHE).unwrap();
    let tree = Masstree::open(&pool, "t").unwrap();
    let mut session = pool.session().unwrap();
    for n in 0..60u64 {
        let op = session.enter().unwrap();
        tree.insert(&op, &(n % 40).to_be_bytes(), &[1; 8]).unwrap();
        tree.insert(&op, &[&b"shared--prefix"[..], &[n as u8 % 7; 9]].concat(), &[n as u8; 30]).unwrap();
        if n == 30 {
            drop(op);
            tree.sync(&mut session).unwrap();
        }
    }
    image_of(&mut session)
}

/// Every word of a small pool, one at a time, gets one of a few bad values: whatever is called then ends with a result or
/// an error.
#[test]
fn a_damaged_pool_never_panics() {
    let options = options();
    let image = small_image(&options);
    let mut random = 1u64;
    let used: Vec<usize> = (0..image.len() / 8).filter(|w| image[w * 8..w * 8 + 8] != [0; 8]).collect();
    for (round, word) in used.iter().enumerate().filter(|(round, word)| **word > 512 && round % 3 == 0) {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let old = u64::from_le_bytes(image[word * 8..word * 8 + 8].try_into().unwrap());
        let bad = [old ^ 1 << (random >> 58), u64::MAX, old.wrapping_add(64), random, 0, 4096 + 64][round % 6];
        // Lock bits that nobody gives back are waited for, five seconds each: tested on their own.
        if old.wrapping_sub(bad) <= 3 || bad & 3 == 3 && old & 7 == 0 {
            continue;
        }
        let mut damaged = image.clone();
        damaged[word * 8..word * 8 + 8].copy_from_slice(&bad.to_le_bytes());
        use_it(&options, damaged);
    }
}

fn use_it(options: &PoolOptions, image: Vec<u8>) {
    let Ok(unrecovered) = options.open_on(HeapBacking::from_image(image), Hardware::PAGE_CACHE) else { return };
    let Ok(pool) = unrecovered.recover() else { return };
    let Ok(tree) = Masstree::open(&pool, "t") else { return };
    let mut session = pool.session().unwrap();
    let op = session.enter().unwrap();
    let _ = tree.check(&op);
    let mut left = 500;
    let _ = tree.range(&op, Bound::Unbounded, Bound::Unbounded, |_, v| {
        left -= 1;
        let _ = v.len();
        if left == 0 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    });
    for n in 0..10u64 {
        let stuck = [
            tree.get_vec(&op, &n.to_be_bytes()).map(drop),
            tree.insert(&op, &n.to_be_bytes(), &[2; 20]).map(drop),
            tree.insert(&op, &[&b"shared--prefix"[..], &[n as u8; 9]].concat(), b"x").map(drop),
            tree.remove(&op, &(n + 20).to_be_bytes()).map(drop),
        ];
        if stuck.iter().any(|done| matches!(done, Err(Error::Stuck { .. }))) {
            return;
        }
    }
}

/// A walk goes on behind the last key that it has met. Behind one that was longer than keys can be it came to that one again, and again.
#[test]
fn a_record_that_claims_more_than_the_longest_key_is_corrupt() {
    let pool: Pool = PoolOptions::new().create_on(HeapBacking::new(8 << 20), Hardware::PAGE_CACHE).unwrap();
    let tree = Masstree::open(&pool, "t").unwrap();
    let mut session = pool.session().unwrap();
    let (key, value) = (b"a key of some length", [7; 20]);
    let op = session.enter().unwrap();
    tree.insert(&op, key, &value).unwrap();
    // The lengths of a record's first word, without its checksum.
    let head = |suffix: usize| (suffix as u64) << 29 | value.len() as u64;
    let is_head = |word: u64| word << 18 >> 18 == head(key.len() - 8);
    let words = op.slice("all", durix_pmem::Off::<durix_pmem::Word>::new(0), op.mapping().len() / 8).unwrap();
    let heads: Vec<_> = words.iter().filter(|word| is_head(op.load(word, Relaxed))).collect();
    let [record] = heads[..] else { panic!("{} words look like the record", heads.len()) };
    for (suffix, is_sound) in [(MAX_KEY - 8, true), (MAX_KEY - 7, false)] {
        op.store(record, head(suffix), Relaxed);
        let mut longest = 0;
        let walked = tree.range(&op, Bound::Unbounded, Bound::Unbounded, |key, _| {
            longest = longest.max(key.len());
            ControlFlow::Continue(())
        });
        if is_sound {
            assert_eq!((walked.unwrap(), longest), ((), MAX_KEY));
        } else {
            assert!(matches!(walked, Err(Error::Corrupt { .. })), "{walked:?}, {longest}");
        }
    }
}

/// A few words at a time, and files that end too early.
#[test]
fn a_pool_with_many_damaged_words_or_a_part_missing_never_panics() {
    let options = options();
    let image = small_image(&options);
    let used: Vec<usize> = (512..image.len() / 8).filter(|w| image[w * 8..w * 8 + 8] != [0; 8]).collect();
    let mut random = 7u64;
    let mut next = || {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (random >> 33) as usize
    };
    for round in 0..400 {
        let mut damaged = image.clone();
        for _ in 0..2 + next() % 20 {
            let at = used[next() % used.len()] * 8;
            let old = u64::from_le_bytes(damaged[at..at + 8].try_into().unwrap());
            let other = used[next() % used.len()] * 8;
            let word = u64::from_le_bytes(image[other..other + 8].try_into().unwrap());
            let bad = [old ^ 4 << (next() % 62), word, (next() as u64) << 3, old.wrapping_add(320), 0][next() % 5];
            // Lock bits that nobody gives back are waited for, five seconds each: tested on their own.
            damaged[at..at + 8].copy_from_slice(&(bad & !3 | old & 3).to_le_bytes());
        }
        if round % 8 == 0 {
            damaged.truncate(next() % (image.len() / 8) * 8);
        }
        use_it(&options, damaged);
    }
}

/// Each round ends without closing, behind a boundary and changes that no boundary follows. One of the trees stays closed
/// for hundreds of rounds, with something left to undo in it.
#[test]
fn five_hundred_crashes_never_fill_the_set_of_failed_epochs() {
    let options = options();
    let mut image: Option<Vec<u8>> = None;
    let mut models = [Map::new(), Map::new()];
    let mut most = 0;
    for round in 0..520u64 {
        let pool = match image.take() {
            None => options.create_on(HeapBacking::new(LEN), Hardware::PAGE_CACHE).unwrap(),
            Some(image) => {
                options.open_on(HeapBacking::from_image(image), Hardware::PAGE_CACHE).unwrap().recover().unwrap()
            }
        };
        let mut session = pool.session().unwrap();
        let open = if (100..400).contains(&round) { 1 } else { 2 };
        let trees: Vec<_> = ["a", "b"][..open].iter().map(|name| Masstree::open(&pool, name).unwrap()).collect();
        most = most.max(pool.epochs().unwrap().stats().failed_ranges);
        let put = |tree: usize, key: u64, value: u64, session: &mut Session<Hardware>| {
            let (key, value) = (key.to_be_bytes(), value.to_le_bytes());
            trees[tree].insert(&session.enter().unwrap(), &key, &value).unwrap();
            (key.to_vec(), value.to_vec())
        };
        for tree in 0..open {
            assert_eq!(all(&trees[tree], &mut session), models[tree], "round {round}, tree {tree}");
            models[tree].extend([put(tree, round % 20, round, &mut session)]);
        }
        // No time for a sweep in every seventh round, and in the last one before a tree is closed for long.
        for _ in 0..if round % 7 == 0 || round == 99 { 1 } else { 3 } {
            pool.epochs().unwrap().sync(&mut session).unwrap();
        }
        (0..open).for_each(|tree| _ = put(tree, (round + 3) % 20, 1 << 40, &mut session));
        image = Some(image_of(&mut session));
    }
    println!("at most {most} ranges at a time");
    assert!((2..10).contains(&most), "{most} ranges");
}

/// The last handle goes in the middle of an epoch, and the tree is opened again before the boundary: what undoes the epoch is kept.
#[test]
fn a_tree_opened_again_within_an_epoch_is_still_undone() {
    for opens in 1..4 {
        let options = options();
        let pool = options.create_on(HeapBacking::new(LEN), Hardware::PAGE_CACHE).unwrap();
        let mut session = pool.session().unwrap();
        let put = |tree: &Masstree, session: &mut Session<Hardware>, n: u64, len: usize| {
            tree.insert(&session.enter().unwrap(), &n.to_be_bytes(), &vec![n as u8; len]).unwrap();
        };
        let tree = Masstree::open(&pool, "t").unwrap();
        (0..14).for_each(|n| put(&tree, &mut session, n * 10, 12));
        drop(tree);
        let mut durable = Map::new();
        for round in 0..opens {
            let tree = Masstree::open(&pool, "t").unwrap();
            // Opening has crossed a boundary.
            durable = all(&tree, &mut session);
            // Splits, and frees a record that the next one may take.
            (0..20).for_each(|n| put(&tree, &mut session, n * 7 + round, 12));
            tree.remove(&session.enter().unwrap(), &(round * 10).to_be_bytes()).unwrap();
        }
        let image = image_of(&mut session);
        let unrecovered = options.open_on(HeapBacking::from_image(image), Hardware::PAGE_CACHE).unwrap();
        let pool = unrecovered.recover().unwrap();
        let mut session = pool.session().unwrap();
        let tree = Masstree::open(&pool, "t").unwrap();
        assert_eq!(tree.check(&session.enter().unwrap()).unwrap(), [], "opened {opens} times");
        assert_eq!(all(&tree, &mut session), durable, "opened {opens} times");
    }
}

fn opened(options: &PoolOptions, image: Vec<u8>) -> (Pool, std::sync::Arc<Masstree>) {
    let pool = options.open_on(HeapBacking::from_image(image), Hardware::PAGE_CACHE).unwrap().recover().unwrap();
    let tree = Masstree::open(&pool, "t").unwrap();
    (pool, tree)
}

/// Large values that a crash has undone leave extents of all lengths; a value of another length gets their space.
#[test]
fn space_of_large_values_that_crashes_have_undone_serves_other_lengths() {
    let options = options();
    let pool = options.create_on(HeapBacking::new(LEN), Hardware::PAGE_CACHE).unwrap();
    let mut session = pool.session().unwrap();
    let tree = Masstree::open(&pool, "t").unwrap();
    tree.sync(&mut session).unwrap();
    let mut image = image_of(&mut session);
    for round in 0..20 {
        let (pool, tree) = opened(&options, image);
        let mut session = pool.session().unwrap();
        let value = vec![1; 2000 + 4096 * (round % 7)];
        tree.insert(&session.enter().unwrap(), b"key", &value).unwrap_or_else(|e| panic!("round {round}: {e}"));
        image = image_of(&mut session);
    }
}

/// The line of a lock that changes nothing may reach memory while the node is locked: a pool that was closed opens with it unlocked.
#[test]
fn a_lock_that_was_written_back_does_not_survive_a_clean_closing() {
    let options = options();
    for key in [b"here", b"none"] {
        let pool = options.create_on(HeapBacking::new(LEN), Hardware::PAGE_CACHE).unwrap();
        let mut session = pool.session().unwrap();
        let tree = Masstree::open(&pool, "t").unwrap();
        tree.insert(&session.enter().unwrap(), b"here", b"1").unwrap();
        tree.sync(&mut session).unwrap();
        let lines = tree.epochs().stats().lines;
        {
            let op = session.enter().unwrap();
            tree.change(&op, key, |_| durix_incll::Change::Keep).unwrap();
        }
        tree.sync(&mut session).unwrap();
        assert!(tree.epochs().stats().lines > lines, "{key:?}: the line is on the list");
    }
}

#[test]
fn an_operation_of_another_pool_is_refused_and_changes_neither() {
    let options = options();
    let [a, b] = [(); 2].map(|()| options.create_on(HeapBacking::new(LEN), Hardware::PAGE_CACHE).unwrap());
    let [of_a, of_b] = [&a, &b].map(|pool| Masstree::open(pool, "t").unwrap());
    let mut session = b.session().unwrap();
    of_b.insert(&session.enter().unwrap(), b"key", b"of b").unwrap();
    let op = session.enter().unwrap();
    let is_foreign = |error: Error| matches!(error, Error::Pool(durix_pmem::Error::ForeignSession));
    assert!(is_foreign(of_a.insert(&op, b"key", b"of a").unwrap_err()));
    assert!(is_foreign(of_a.get_vec(&op, b"key").unwrap_err()));
    assert!(is_foreign(of_a.first(&op).unwrap_err()));
    assert!(is_foreign(of_a.check(&op).unwrap_err()));
    assert_eq!(of_b.get_vec(&op, b"key").unwrap().as_deref(), Some(&b"of b"[..]));
}

/// A panic of whoever decides comes before any change: the tree goes on.
#[test]
fn a_panic_of_the_caller_leaves_the_tree_as_it_was() {
    let options = options();
    let pool = options.create_on(HeapBacking::new(LEN), Hardware::PAGE_CACHE).unwrap();
    let tree = Masstree::open(&pool, "t").unwrap();
    let mut session = pool.session().unwrap();
    tree.insert(&session.enter().unwrap(), b"key", b"1").unwrap();
    let panicking = std::panic::AssertUnwindSafe(|| {
        let mut session = pool.session().unwrap();
        let op = session.enter().unwrap();
        tree.change(&op, b"key", |_| panic!("on purpose")).unwrap();
    });
    assert!(std::panic::catch_unwind(panicking).is_err());
    tree.insert(&session.enter().unwrap(), b"key", b"2").unwrap();
    tree.sync(&mut session).unwrap();
    assert_eq!(tree.get_vec(&session.enter().unwrap(), b"key").unwrap().as_deref(), Some(&b"2"[..]));
    drop((tree, session));
    pool.close().unwrap();
}

/// A panic that may have left something half done: no boundary makes it durable, by whatever tree, nor by opening the tree again.
#[test]
fn after_a_panic_in_a_tree_the_pool_crosses_no_boundary() {
    use durix_pmem::pool::Poison;
    let options = options();
    let pool = options.create_on(HeapBacking::new(LEN), Hardware::PAGE_CACHE).unwrap();
    let [tree, other] = ["t", "other"].map(|name| Masstree::open(&pool, name).unwrap());
    let mut session = pool.session().unwrap();
    tree.insert(&session.enter().unwrap(), b"key", b"1").unwrap();
    tree.sync(&mut session).unwrap();
    tree.insert(&session.enter().unwrap(), b"key", b"half done").unwrap();
    // What a tree does when it meets a panic.
    let poison = Poison::stopping_epochs(tree.root().unwrap().clone());
    let panicking = std::panic::AssertUnwindSafe(|| {
        let mut session = pool.session().unwrap();
        let op = session.enter().unwrap();
        let _guard = poison.guard(&op).unwrap();
        panic!("on purpose");
    });
    assert!(std::panic::catch_unwind(panicking).is_err());
    let is_poisoned = |error: &durix_pmem::Error| matches!(error, durix_pmem::Error::Poisoned { name } if name == "t");
    assert!(is_poisoned(&other.epochs().sync(&mut session).unwrap_err()));
    drop((tree, poison));
    assert!(matches!(Masstree::open(&pool, "t"), Err(Error::Pool(error)) if is_poisoned(&error)));
    let image = image_of(&mut session);
    let (pool, tree) = opened(&options, image);
    let mut session = pool.session().unwrap();
    assert_eq!(tree.get_vec(&session.enter().unwrap(), b"key").unwrap().as_deref(), Some(&b"1"[..]));
}
