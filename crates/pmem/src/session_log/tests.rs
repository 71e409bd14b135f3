use std::sync::Arc;

use super::*;
use crate::backing::HeapBacking;
use crate::pool::{Kind, Pool, PoolOptions, Structure};
use crate::{Counting, Hardware, Session};

type M = Counting<Hardware>;

const CHUNK: u64 = 4096;
const WORDS: u64 = (CHUNK - HEAD) / 8;

struct Notes {
    logs: Arc<SessionLogs<M>>,
}

impl Structure<M> for Notes {
    const KIND: Kind = Kind { tag: *b"notes\0\0\0", version: crate::Version::new(1) };
    type Options = ();
    type Error = Error;

    fn create(_: &mut Session<M>, _: &Root<M>, (): &()) -> Result<()> {
        Ok(())
    }

    fn open(session: &mut Session<M>, root: Root<M>, (): &()) -> Result<Self> {
        Ok(Notes { logs: SessionLogs::open(&session.enter()?, root, 1)? })
    }
}

fn options() -> PoolOptions {
    PoolOptions::new().chunk_size(CHUNK).initial_size(8 * CHUNK).lanes(1).max_indices(2)
}

fn pool(chunks: u64) -> (Pool<M>, M) {
    let medium = Counting::new(Hardware::for_pmem().unwrap_or(Hardware::PAGE_CACHE));
    (options().create_on(HeapBacking::new(chunks * CHUNK), medium).unwrap(), medium)
}

fn again(pool: Pool<M>, medium: M) -> Pool<M> {
    let image = HeapBacking::image_of(pool.mapping());
    pool.mapping().shut();
    drop(pool);
    options().open_on(HeapBacking::from_image(image), medium).unwrap().recover().unwrap()
}

/// Appends `words` times `value`.
fn put(chain: &mut Chain<M>, op: &Op<'_, M>, words: u64, value: u64) -> Result<u64> {
    let (number, room) = chain.room(op, words)?;
    for word in room {
        op.store(word, value, Ordering::Relaxed);
    }
    chain.append(op, words)?;
    Ok(number)
}

fn first_words(chain: &Chain<M>, op: &Op<'_, M>) -> Vec<u64> {
    chain.segments().map(|segment| op.load(&segment.words(op).unwrap()[0], Ordering::Relaxed)).collect()
}

#[test]
fn an_entry_costs_its_lines_and_one_fence_and_entering_a_spare_segment_a_line_and_a_fence() {
    let (pool, medium) = pool(16);
    let notes = pool.open_structure::<Notes>("n", &()).unwrap();
    let mut session = pool.session().unwrap();
    let op = session.enter().unwrap();
    let mut chain = notes.logs.chain(&op).unwrap();
    put(&mut chain, &op, 8, 1).unwrap();
    chain.commit(&op).unwrap();
    let before = medium.counts();
    put(&mut chain, &op, 16, 2).unwrap();
    chain.commit(&op).unwrap();
    let cost = medium.counts() - before;
    assert_eq!((cost.stores, cost.write_backs, cost.fences), (16, 2, 1));

    let full = put(&mut chain, &op, WORDS - 24, 3).unwrap();
    put(&mut chain, &op, 8, 4).unwrap();
    chain.give_back(&op, full).unwrap();
    chain.commit(&op).unwrap();
    assert_eq!(notes.logs.spare(&op), 1);
    put(&mut chain, &op, WORDS - 8, 5).unwrap();
    chain.commit(&op).unwrap();
    let before = medium.counts();
    let number = put(&mut chain, &op, 8, 6).unwrap();
    chain.commit(&op).unwrap();
    let cost = medium.counts() - before;
    assert_eq!((cost.stores, cost.write_backs, cost.fences), (9, 2, 2), "the head and the entry");
    assert!(number > full);
    assert_eq!(notes.logs.spare(&op), 0);
}

#[test]
fn segments_go_from_the_middle_and_the_others_stay_in_order() {
    let (pool, medium) = pool(32);
    let notes = pool.open_structure::<Notes>("n", &()).unwrap();
    let mut session = pool.session().unwrap();
    let op = session.enter().unwrap();
    let mut chain = notes.logs.chain(&op).unwrap();
    let numbers: Vec<u64> = (0..5).map(|i| put(&mut chain, &op, WORDS, 10 + i).unwrap()).collect();
    chain.give_back(&op, numbers[2]).unwrap();
    chain.give_back(&op, numbers[0]).unwrap();
    chain.commit(&op).unwrap();
    assert!(matches!(chain.give_back(&op, numbers[2]), Err(Error::NotAllocated { .. })));
    assert_eq!(first_words(&chain, &op), [11, 13, 14]);
    drop(chain);
    drop(op);
    drop((session, notes));
    let pool = again(pool, medium);
    let notes = pool.open_existing::<Notes>("n", &()).unwrap();
    let mut session = pool.session().unwrap();
    let op = session.enter().unwrap();
    let orphans = notes.logs.orphans(&op);
    assert_eq!(orphans.len(), 1);
    assert_eq!(first_words(&orphans[0], &op), [11, 13, 14]);
    assert_eq!(notes.logs.spare(&op), 2);
}

#[test]
fn a_chain_is_adopted_and_goes_on_with_higher_numbers() {
    let (pool, medium) = pool(32);
    let notes = pool.open_structure::<Notes>("n", &()).unwrap();
    let (mut one, mut two) = (pool.session().unwrap(), pool.session().unwrap());
    let number = {
        let op = one.enter().unwrap();
        let mut chain = notes.logs.chain(&op).unwrap();
        put(&mut chain, &op, 8, 7).unwrap();
        chain.number()
    };
    let op = two.enter().unwrap();
    let mut chain = notes.logs.chain(&op).unwrap();
    assert_eq!(chain.number(), number, "the orphan first");
    let before = medium.counts();
    chain.commit(&op).unwrap();
    // The entry: nobody had fenced it.
    assert_eq!((medium.counts() - before).write_backs, 1);
    put(&mut chain, &op, 8, 8).unwrap();
    assert_eq!(chain.current().unwrap().used(), 16, "in one process the room that is left is used");
    let other = notes.logs.chain(&op).unwrap();
    assert_ne!(other.number(), number);
    drop((chain, other));
    drop(op);
    drop((one, two, notes));

    let pool = again(pool, medium);
    let notes = pool.open_existing::<Notes>("n", &()).unwrap();
    let mut session = pool.session().unwrap();
    let op = session.enter().unwrap();
    let mut chain = notes.logs.chain(&op).unwrap();
    let found: Vec<u64> = chain.segments().map(|segment| segment.number()).collect();
    assert!(chain.current().is_none(), "after a crash nobody knows where the entries end");
    assert!(put(&mut chain, &op, 8, 9).unwrap() > found[0]);
    assert_eq!(first_words(&chain, &op), [7, 9]);
}

#[test]
fn numbers_of_a_segment_never_come_again_when_all_are_given_back() {
    let (mut pool, medium) = pool(16);
    let mut last = 0;
    for shrink in [false, false, true, false] {
        {
            let notes = pool.open_structure::<Notes>("n", &()).unwrap();
            let mut session = pool.session().unwrap();
            let op = session.enter().unwrap();
            let mut chain = notes.logs.chain(&op).unwrap();
            let number = put(&mut chain, &op, 8, 7).unwrap();
            assert!(number > last, "{number} after {last}");
            chain.give_back(&op, number).unwrap();
            chain.commit(&op).unwrap();
            last = number;
            if shrink {
                assert_eq!(notes.logs.shrink(&op, 0).unwrap(), 1);
                // What comes from the pool is zeroed, so numbers may begin again.
                assert_eq!(pool.space().segments(&op, notes.logs.root().owner()), []);
                last = 0;
            }
        }
        pool = again(pool, medium);
    }
}

#[test]
fn a_long_entry_gets_a_segment_of_its_own_and_a_full_pool_costs_nothing() {
    let (pool, _) = pool(14);
    let notes = pool.open_structure::<Notes>("n", &()).unwrap();
    let mut session = pool.session().unwrap();
    let op = session.enter().unwrap();
    let mut chain = notes.logs.chain(&op).unwrap();
    put(&mut chain, &op, 8, 1).unwrap();
    let long = put(&mut chain, &op, 3 * WORDS, 2).unwrap();
    assert_eq!(chain.current().map(|segment| segment.number()), Some(long));
    chain.commit(&op).unwrap();
    let entries = chain.segments().len();
    let error = loop {
        match put(&mut chain, &op, WORDS, 3) {
            Ok(_) => chain.commit(&op).unwrap(),
            Err(error) => break error,
        }
    };
    assert!(matches!(error, Error::Full { .. }), "{error}");
    let kept = first_words(&chain, &op);
    assert_eq!(kept[..entries], [1, 2]);
    assert!(put(&mut chain, &op, WORDS, 4).is_err());
    assert_eq!(first_words(&chain, &op), kept);
    chain.give_back(&op, long).unwrap();
    // Without a commit in between.
    put(&mut chain, &op, WORDS, 4).unwrap();
    assert_eq!(first_words(&chain, &op).last(), Some(&4));
    assert_eq!(pool.space().extents(&op, notes.logs.root().owner()), [], "a segment is no extent of the client");
}

#[test]
fn a_damaged_head_is_an_error_with_its_place() {
    let (pool, _) = pool(16);
    let notes = pool.open_structure::<Notes>("n", &()).unwrap();
    let mut session = pool.session().unwrap();
    let op = session.enter().unwrap();
    let root = notes.logs.root().clone();
    let mut chain = notes.logs.chain(&op).unwrap();
    put(&mut chain, &op, WORDS, 1).unwrap();
    put(&mut chain, &op, WORDS, 2).unwrap();
    let segments: Vec<_> = chain.segments().collect();
    let state = |i: usize| &op.at(Off::<SegmentHead>::new(segments[i].off() - HEAD)).state;
    let word = op.load(state(0), Ordering::Relaxed);
    op.store(state(0), op.load(state(1), Ordering::Relaxed), Ordering::Relaxed);
    let twice = SessionLogs::open(&op, root.clone(), 1).unwrap_err();
    assert!(matches!(twice, Error::DamagedSegment { .. }), "{twice}");
    op.store(state(0), crate::Bits::from_bits(crate::Bits::to_bits(word) ^ 4), Ordering::Relaxed);
    let flipped = SessionLogs::open(&op, root, 1).unwrap_err();
    assert!(flipped.to_string().contains(&format!("{:#x}", segments[0].off() - HEAD)), "{flipped}");
}
