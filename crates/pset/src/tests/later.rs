//! Updates that are settled later.

use super::*;
use durix_pmem::Unsettled;

type Counted = Counting<Hardware>;

/// A set of one shard, its medium, and a session.
fn counted(len: u64) -> (Counted, Pool<Counted>, Arc<PersistentSet<Counted>>, Session<Counted>) {
    let counting = Counting::new(Hardware::PAGE_CACHE);
    let pool = pool(len, counting);
    let set = open(&pool, &options().shards(1));
    let session = pool.session().unwrap();
    (counting, pool, set, session)
}

/// Runs `run` in an operation that is settled later.
fn later<M: Medium, R>(session: &mut Session<M>, ticket: &mut Unsettled<M>, run: impl FnOnce(&Op<'_, M>) -> R) -> R {
    let op = session.enter_later(ticket).unwrap();
    let result = run(&op);
    *ticket = op.finish();
    result
}

/// Write-backs and fences.
fn cost<R>(counting: Counted, run: impl FnOnce() -> R) -> (R, u64, u64) {
    let before = counting.counts();
    let result = run();
    let cost = counting.counts() - before;
    (result, cost.write_backs, cost.fences)
}

fn unsettled<M: Medium>(set: &PersistentSet<M>, m: M) -> u64 {
    set.shards.iter().map(|shard| shard.unsettled(m)).sum()
}

#[test]
fn sixteen_inserts_cost_sixteen_write_backs_and_one_fence() {
    let (m, pool, set, mut session) = counted(1 << 20);
    let keys: Vec<[u8; 8]> = (0..16u64).map(u64::to_le_bytes).collect();
    for round in 0..5u8 {
        let mut ticket = Unsettled::new();
        let spent = cost(m, || {
            for key in &keys {
                later(&mut session, &mut ticket, |op| set.insert(op, key, &[round]).unwrap());
            }
        });
        // New slots are taken for the first entries, and for those of the round that finds none replaced.
        assert!(round < 2 || (spent.1, spent.2) == (0, 0), "round {round}: {spent:?}");
        assert_eq!(unsettled(&set, m), 16);
        assert_eq!(cost(m, || pool.wait(&mut session, &mut ticket).unwrap()), ((), 16, 1));
        assert_eq!((unsettled(&set, m), ticket.is_empty()), (0, true));
        let op = session.enter().unwrap();
        assert_eq!(cost(m, || set.get_vec(&op, &keys[3]).unwrap()), (Some(vec![round]), 0, 0));
    }
    let mut ticket = Unsettled::new();
    for key in &keys {
        later(&mut session, &mut ticket, |op| assert!(set.remove(op, key).unwrap()));
    }
    assert_eq!(cost(m, || pool.wait(&mut session, &mut ticket).unwrap()), ((), 16, 1));
    let op = session.enter().unwrap();
    assert_eq!((set.len(&op), content(&set, &op).len(), set.check(&op).unwrap()), (0, 0, Vec::new()));
}

#[test]
fn who_meets_an_unsettled_entry_settles_it_alone() {
    let (m, pool, set, mut session) = counted(1 << 20);
    let op = session.enter().unwrap();
    for key in [b"a", b"b", b"c", b"d"] {
        (0..3).for_each(|_| _ = set.insert(&op, key, b"0").unwrap());
    }
    drop(op);
    let mut ticket = Unsettled::new();
    for key in [b"a", b"b", b"c"] {
        later(&mut session, &mut ticket, |op| set.insert(op, key, b"1").unwrap());
    }
    let op = session.enter().unwrap();
    assert_eq!(cost(m, || set.get_vec(&op, b"d").unwrap().unwrap()), (b"0".to_vec(), 0, 0));
    assert_eq!(cost(m, || set.get_vec(&op, b"a").unwrap().unwrap()), (b"1".to_vec(), 1, 1));
    assert_eq!(cost(m, || set.get_vec(&op, b"a").unwrap().unwrap()), (b"1".to_vec(), 0, 0));
    assert_eq!(cost(m, || set.insert_if_absent(&op, b"b", b"2").unwrap()), (false, 1, 1));
    assert_eq!(unsettled(&set, m), 1);
    // The new entry, and the one that it replaces.
    assert_eq!(cost(m, || set.insert(&op, b"c", b"2").unwrap()), (false, 2, 2));
    drop(op);
    // The ticket does not know.
    assert_eq!(cost(m, || pool.wait(&mut session, &mut ticket).unwrap()), ((), 3, 1));
    let op = session.enter().unwrap();
    assert_eq!(set.get_vec(&op, b"c").unwrap().unwrap(), b"2");
    assert_eq!(set.check(&op).unwrap(), []);
}

#[test]
fn what_an_unsettled_entry_replaces_is_not_used_again() {
    let (m, pool, set, mut session) = counted(1 << 20);
    let op = session.enter().unwrap();
    set.insert(&op, b"a", b"0").unwrap();
    let stale = |set: &PersistentSet<_>| set.shards[0].lock(m).reuse.lengths().stale;
    assert_eq!(stale(&set), 0);
    drop(op);
    let (mut one, mut two) = (Unsettled::new(), Unsettled::new());
    later(&mut session, &mut one, |op| set.insert(op, b"a", b"1").unwrap());
    later(&mut session, &mut two, |op| set.insert(op, b"a", b"2").unwrap());
    assert_eq!(stale(&set), 0);
    // The second ticket has the line of the first entry, too.
    assert_eq!(cost(m, || pool.wait(&mut session, &mut two).unwrap()), ((), 2, 1));
    assert_eq!((stale(&set), unsettled(&set, m)), (2, 0));
    pool.wait(&mut session, &mut one).unwrap();
    assert_eq!(stale(&set), 2);
    let op = session.enter().unwrap();
    assert_eq!((set.get_vec(&op, b"a").unwrap().unwrap(), set.check(&op).unwrap()), (b"2".to_vec(), Vec::new()));
}

#[test]
fn one_key_many_times_by_one_ticket_is_a_line_each_time() {
    let (m, pool, set, mut session) = counted(1 << 20);
    let mut ticket = Unsettled::new();
    // The first takes slots from the arena, which costs fences.
    later(&mut session, &mut ticket, |op| set.insert(op, b"a", &[0]).unwrap());
    for n in 1..60u8 {
        later(&mut session, &mut ticket, |op| set.insert(op, b"a", &[n]).unwrap());
    }
    assert_eq!(ticket.len(), 60);
    assert_eq!(cost(m, || pool.wait(&mut session, &mut ticket).unwrap()), ((), 60, 1));
    // A shard does not keep more than so many.
    for n in 0..200u8 {
        later(&mut session, &mut ticket, |op| set.insert(op, b"a", &[n.min(99)]).unwrap());
        assert!(unsettled(&set, m) <= crate::later::MOST as u64);
    }
    pool.wait(&mut session, &mut ticket).unwrap();
    let op = session.enter().unwrap();
    assert_eq!((set.get_vec(&op, b"a").unwrap().unwrap(), set.check(&op).unwrap()), (vec![99], Vec::new()));
}

/// An update that has to write back more than its entry is durable when it returns.
#[test]
fn what_scrubs_or_raises_the_watermark_does_not_wait() {
    let (m, pool, set, mut session) = counted(1 << 20);
    let mut ticket = Unsettled::new();
    let op = session.enter().unwrap();
    set.commit(&op, Batch::new().insert(b"a", b"1").insert(b"b", b"1")).unwrap();
    set.commit(&op, Batch::new().insert(b"a", b"2").insert(b"b", b"2")).unwrap();
    drop(op);
    let mut fences = 0;
    for n in 0..100u8 {
        fences += cost(m, || later(&mut session, &mut ticket, |op| set.insert(op, b"a", &[n; 90]).unwrap())).2;
        fences += cost(m, || later(&mut session, &mut ticket, |op| set.remove(op, b"a").unwrap())).2;
    }
    assert!((1..100).contains(&fences), "{fences}");
    pool.wait(&mut session, &mut ticket).unwrap();
    let op = session.enter().unwrap();
    assert_eq!((set.contains(&op, b"a").unwrap(), set.check(&op).unwrap()), (false, Vec::new()));
}

#[test]
fn a_full_pool_settles_what_it_can_use_again() {
    let (_, pool, set, mut session) = counted(6 * 4096);
    let mut ticket = Unsettled::new();
    let mut keys = 0u64;
    while later(&mut session, &mut ticket, |op| set.insert(op, &keys.to_le_bytes(), b"1")).is_ok() {
        keys += 1;
    }
    assert!(keys > 50, "{keys}");
    for n in 0..keys {
        later(&mut session, &mut ticket, |op| assert!(set.remove(op, &n.to_le_bytes()).unwrap()));
    }
    pool.wait(&mut session, &mut ticket).unwrap();
    let op = session.enter().unwrap();
    assert_eq!((set.len(&op), set.check(&op).unwrap()), (0, Vec::new()));
    assert!(set.insert(&op, b"12345678", b"1").unwrap());
}

#[test]
fn tickets_of_other_pools_and_of_poisoned_sets_are_errors() {
    let ((_, one, set, mut session), (_, two, other, mut foreign)) = (counted(1 << 20), counted(1 << 20));
    let mut ticket = Unsettled::new();
    later(&mut session, &mut ticket, |op| set.insert(op, b"a", b"1").unwrap());
    assert!(matches!(two.wait(&mut foreign, &mut ticket), Err(PoolError::ForeignTicket)));
    assert!(matches!(one.wait(&mut foreign, &mut ticket), Err(PoolError::ForeignSession)));
    let op = foreign.enter_later(&mut Unsettled::new()).unwrap();
    assert!(matches!(set.insert(&op, b"a", b"2"), Err(Error::Pool(PoolError::ForeignSession))));
    drop(op);
    later(&mut foreign, &mut Unsettled::new(), |op| other.insert(op, b"b", b"1").unwrap());
    set.poison.poison();
    assert!(matches!(one.wait(&mut session, &mut ticket), Err(PoolError::Poisoned { .. })));
    // The lines are durable all the same.
    assert_eq!(again(&set, &options()).len(&session.enter().unwrap()), 1);
}

/// Where no session is to be had when a ticket is dropped, the set keeps what is left, and settles it when it goes.
#[test]
fn what_a_dropped_ticket_could_not_settle_the_set_does() {
    for read in [true, false] {
        let (m, pool, set, mut session) = counted(1 << 20);
        let mut ticket = Unsettled::new();
        later(&mut session, &mut ticket, |op| set.insert(op, b"a", b"1").unwrap());
        let all: Vec<_> = std::iter::from_fn(|| pool.session().ok()).collect();
        drop(ticket);
        assert_eq!(unsettled(&set, m), 1);
        drop(all);
        if read {
            assert_eq!(set.get_vec(&session.enter().unwrap(), b"a").unwrap().unwrap(), b"1");
            assert_eq!(unsettled(&set, m), 0);
        }
        let fences = cost(m, || drop(set)).2;
        assert_eq!(fences > 0, !read);
        drop(session);
        pool.close().unwrap();
    }
}

#[test]
fn a_ticket_that_is_forgotten_keeps_the_pool_from_closing() {
    let (_, pool, set, mut session) = counted(1 << 20);
    let mut ticket = Unsettled::new();
    later(&mut session, &mut ticket, |op| set.insert(op, b"a", b"1").unwrap());
    drop((set, session));
    assert!(matches!(pool.close(), Err(PoolError::InUse { .. })));
    drop(ticket);
    pool.close().unwrap();
}

/// A closure that runs with all shards locked may drop tickets, and read: nothing waits for its own locks.
#[test]
fn a_transaction_that_holds_all_locks_waits_for_no_ticket() {
    let (m, pool, set, mut session) = counted(1 << 20);
    let mut ticket = Unsettled::new();
    let mut other = pool.session().unwrap();
    let mut runs = 0;
    let op = session.enter().unwrap();
    set.txn(&op, |t| {
        runs += 1;
        let seen = t.get(b"a")?;
        if runs <= 8 {
            // Another thread is faster each time.
            later(&mut other, &mut ticket, |op| set.insert(op, b"a", &[runs]).unwrap());
        } else {
            assert_eq!(seen, Some(vec![8]));
            // It waits for the first of its eight changes, and for no other.
            let before = m.counts();
            drop(std::mem::take(&mut ticket));
            let turns = (m.counts() - before).locked;
            assert!(turns < 2 * u64::from(crate::shard::PATIENCE), "{turns} turns");
        }
        t.insert(b"b", &[runs]);
        Ok::<_, Error>(())
    })
    .unwrap();
    assert_eq!((runs, set.get_vec(&op, b"b").unwrap()), (9, Some(vec![9])));
    assert_eq!(set.check(&op).unwrap(), []);
}

/// Nobody waits for a ticket or meets its entry: its record blocks no tombstones for ever.
#[test]
fn a_forgotten_ticket_costs_no_space() {
    for long in [false, true] {
        let (m, _pool, set, mut session) = counted(4 << 20);
        let op = session.enter().unwrap();
        (0..2).for_each(|_| _ = set.insert(&op, b"a", b"1").unwrap());
        drop(op);
        let mut ticket = Unsettled::new();
        // Into the slot of the older one.
        later(&mut session, &mut ticket, |op| set.insert(op, b"b", b"1").unwrap());
        std::mem::forget(ticket);
        let op = session.enter().unwrap();
        let pair = |n: u64| {
            let key = if long { n.to_le_bytes().repeat(8) } else { n.to_le_bytes().to_vec() };
            assert!(set.insert(&op, &key, b"1").unwrap() && set.remove(&op, &key).unwrap());
        };
        (0..200).for_each(pair);
        let bytes = set.arena.totals(m).1;
        (200..10_000).for_each(pair);
        assert_eq!(set.arena.totals(m).1, bytes, "keys of several lines: {long}");
        assert_eq!(set.check(&op).unwrap(), []);
    }
}

#[test]
fn threads_and_tickets_share_a_set() {
    let pool = pool(8 << 20, Hardware::PAGE_CACHE);
    let set = open(&pool, &options());
    std::thread::scope(|scope| {
        for thread in 0..4u64 {
            let (pool, set) = (&pool, &set);
            scope.spawn(move || {
                let mut session = pool.session().unwrap();
                let mut ticket = Unsettled::new();
                for n in 0..4000u64 {
                    let key = ((n * 7 + thread) % 50).to_le_bytes();
                    match (n + thread) % 5 {
                        0 => _ = set.remove(&session.enter().unwrap(), &key).unwrap(),
                        1 => drop(set.get_vec(&session.enter().unwrap(), &key).unwrap()),
                        2 => later(&mut session, &mut ticket, |op| _ = set.remove(op, &key).unwrap()),
                        _ => later(&mut session, &mut ticket, |op| _ = set.insert(op, &key, &n.to_le_bytes()).unwrap()),
                    }
                    if n % 16 == thread {
                        pool.wait(&mut session, &mut ticket).unwrap();
                    }
                }
            });
        }
    });
    let mut session = pool.session().unwrap();
    let op = session.enter().unwrap();
    assert_eq!(set.check(&op).unwrap(), []);
    assert_eq!(content(&set, &op), content(&again(&set, &options()), &op));
}

/// The entry of a ticket was settled by a reader, and replaced, and its slot holds a later entry of another ticket: that one is not
/// durable when the first ticket has been waited for.
#[test]
fn a_ticket_does_not_settle_a_later_entry_in_the_same_place() {
    let (m, pool, set, mut session) = counted(1 << 20);
    let place = || set.shards[0].lock(m).reuse.unsettled.iter().map(|put| format!("{put:?}")).collect::<String>();
    let off = |put: &str| put.split(", ").next().unwrap_or_default().to_owned();
    let mut met = 0;
    for between in 0..24 {
        let (mut one, mut two) = (Unsettled::new(), Unsettled::new());
        later(&mut session, &mut one, |op| set.insert(op, b"a", b"1").unwrap());
        let first = off(&place());
        let op = session.enter().unwrap();
        assert_eq!(set.get_vec(&op, b"a").unwrap(), Some(b"1".to_vec()));
        (0..between).for_each(|_| _ = set.insert(&op, b"a", b"2").unwrap());
        drop(op);
        later(&mut session, &mut two, |op| set.insert(op, b"a", b"3").unwrap());
        met += u32::from(off(&place()) == first);
        pool.wait(&mut session, &mut one).unwrap();
        assert_eq!(unsettled(&set, m), 1, "after {between} updates");
        pool.wait(&mut session, &mut two).unwrap();
        assert_eq!(unsettled(&set, m), 0);
    }
    assert!(met > 0, "no slot was used again");
}

/// A tombstone hides an older entry of another length, and an unsettled entry came between the two. However they are settled, the slot of
/// the tombstone is not used again before the older entry is gone: or recovery would find the key.
#[test]
fn a_tombstone_outlives_what_it_hides_however_it_was_settled() {
    type Settle = fn(&Pool<Counted>, &PersistentSet<Counted>, &mut Session<Counted>, &mut Unsettled<Counted>);
    let ways: [Settle; 4] = [
        |pool, _, session, ticket| pool.wait(session, ticket).unwrap(),
        |_, set, session, _| assert_eq!(set.get_vec(&session.enter().unwrap(), b"a").unwrap(), None),
        |_, set, session, _| set.for_each(&session.enter().unwrap(), |_, _| ()).unwrap(),
        // By its ticket, which did not get the lock for the entry before.
        |_, set, session, _| {
            let op = session.enter().unwrap();
            let newest = set.shards[0].lock(op.medium()).reuse.unsettled.iter().map(|put| (put.version, put.off)).max();
            newest.into_iter().for_each(|(version, off)| {
                assert!(set.settled_entry(&op, [0, version], off, 1));
            });
        },
    ];
    for (number, settle) in ways.iter().enumerate() {
        let (_, pool, set, mut session) = counted(1 << 20);
        set.insert(&session.enter().unwrap(), b"a", &[0; 150]).unwrap();
        let (mut one, mut two) = (Unsettled::new(), Unsettled::new());
        later(&mut session, &mut one, |op| set.insert(op, b"a", b"1").unwrap());
        later(&mut session, &mut two, |op| assert!(set.remove(op, b"a").unwrap()));
        settle(&pool, &set, &mut session, &mut two);
        let op = session.enter().unwrap();
        [b"b", b"c", b"d"].into_iter().for_each(|key| _ = set.insert(&op, key, b"1").unwrap());
        let found = content(&again(&set, &options()), &op);
        assert!(found.keys().eq([b"b", b"c", b"d"]), "way {number}: {found:?}");
        drop(op);
        pool.wait(&mut session, &mut one).unwrap();
        pool.wait(&mut session, &mut two).unwrap();
    }
}
