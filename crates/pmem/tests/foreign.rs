//! An operation, or a session, of another pool is refused at the border, and changes nothing in either.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

use durix_pmem::backing::HeapBacking;
use durix_pmem::pool::Poison;
use durix_pmem::{
    Counting, Error, Extent, Hardware, Kind, Lines, Mapping, Medium, Mutating, Mutation, Off, Owner, Persistent, Plan,
    Pool, PoolOptions, Result, Root, Session, SiteKind, Structure, Word,
};

type M = Hardware;

/// A structure with a link in its own words.
struct Linked {
    root: Root<M>,
    poison: Poison<M>,
}

impl Structure<M> for Linked {
    const KIND: Kind = Kind { tag: *b"linked\0\0", version: durix_pmem::Version::new(1) };
    type Options = ();
    type Error = Error;

    fn create(_: &mut Session<M>, _: &Root<M>, (): &()) -> Result<()> {
        Ok(())
    }
    fn open(_: &mut Session<M>, root: Root<M>, (): &()) -> Result<Self> {
        Ok(Linked { poison: Poison::new(root.clone()), root })
    }
}

fn pool() -> Pool {
    let options = PoolOptions::new().initial_size(1 << 20).max_indices(4);
    options.create_on(HeapBacking::new(1 << 20), Hardware::PAGE_CACHE).unwrap()
}

fn image(pool: &Pool) -> Vec<u8> {
    HeapBacking::image_of(pool.mapping())
}

#[track_caller]
fn refused<T>(result: Result<T>) {
    assert!(matches!(result.map(drop), Err(Error::ForeignSession)));
}

#[track_caller]
fn panics<T>(call: impl FnOnce() -> T) {
    let panic = catch_unwind(AssertUnwindSafe(call)).map(drop).unwrap_err();
    let text = panic.downcast_ref::<String>().map(String::as_str).or(panic.downcast_ref::<&str>().copied());
    assert!(text.unwrap().contains("another"), "{text:?}");
}

#[test]
fn an_operation_of_another_pool_is_refused_by_all_that_a_pool_offers() {
    let (ours, theirs) = (pool(), pool());
    let (a, b) = (ours.open_structure::<Linked>("x", &()).unwrap(), theirs.open_structure::<Linked>("x", &()).unwrap());
    let epochs = ours.epochs().unwrap();
    let (mut own, mut foreign) = (ours.session().unwrap(), theirs.session().unwrap());
    let (extent, block) = {
        let op = own.enter().unwrap();
        let reserved = ours.space().reserve_extent(&op, Owner(0), 1).unwrap();
        let extent = ours.space().activate(&op, reserved).unwrap();
        op.fence();
        (extent, ours.space().reserve_block(&op, Owner(0), 64).unwrap())
    };
    let before = [image(&ours), image(&theirs)];
    let op = foreign.enter().unwrap();
    let space = ours.space();
    refused(space.reserve_extent(&op, Owner(0), 1));
    refused(space.reserve_block(&op, Owner(0), 64));
    refused(space.free_extent(&op, extent));
    refused(block.zero(&op));
    let link: &Word<Off<u64>> = op.at(Off::new(b.root.words(&op).as_ptr().addr() as u64 - op.base_addr() as u64));
    refused(space.prepare_free(&op, extent.off, link, Off::NULL));
    refused(space.prepare(&op, block, link));
    panics(|| space.extents(&op, Owner(0)));
    panics(|| space.blocks(&op, Owner(0)));
    panics(|| space.stats(&op));
    panics(|| space.check(&op, |_| true));
    panics(|| space.free_owner(&op, Owner(0)));
    panics(|| a.root.words(&op));
    panics(|| a.root.seat(&op));
    refused(a.poison.check(&op));
    refused(a.poison.guard(&op));
    refused(a.poison.expect_own(&op));
    let theirs_seat = b.root.seat(&op);
    panics(|| epochs.join(&op, theirs_seat));
    panics(|| epochs.dirty(&op, theirs_seat));
    panics(|| epochs.dirty_lines(&op, theirs_seat, 1));
    panics(|| epochs.seat(&op));
    assert_eq!([image(&ours), image(&theirs)], before, "nothing was stored anywhere");
    drop(op);
    refused(ours.tick(&mut foreign));
    refused(epochs.sync(&mut foreign));
    refused(epochs.tick(&mut foreign).and_then(|_| epochs.write_ahead(&mut foreign)));
    // An operation of its own goes on.
    let op = own.enter().unwrap();
    a.poison.check(&op).unwrap();
    assert_eq!(space.extents(&op, Owner(0)), [Extent { ..extent }]);
    assert_eq!(op.load(&a.root.words(&op)[0], Relaxed), 0);
}

#[test]
fn nobody_gets_past_a_closed_gate() {
    let (ours, theirs) = (pool(), pool());
    let (mut own, mut other, mut foreign) =
        (ours.session().unwrap(), ours.session().unwrap(), theirs.session().unwrap());
    let exclusive = |session: &mut Session<M>| drop(session.enter_exclusive());
    let patience = std::time::Duration::from_secs(5);
    assert!(catch_unwind(AssertUnwindSafe(|| exclusive(&mut own))).is_err(), "nobody keeps operations out");
    ours.mapping()
        .quiesce(&mut own, patience, |session| {
            exclusive(session);
            assert!(catch_unwind(AssertUnwindSafe(|| exclusive(&mut other))).is_err(), "another session does");
            assert!(catch_unwind(AssertUnwindSafe(|| exclusive(&mut foreign))).is_err(), "of another pool");
        })
        .unwrap();
    assert!(catch_unwind(AssertUnwindSafe(|| exclusive(&mut own))).is_err(), "it is over");
    refused(ours.mapping().quiesce(&mut foreign, patience, |_| ()));
    drop(own.enter().unwrap());
}

#[test]
fn a_delayed_write_back_keeps_no_line_that_may_go_away() {
    let plan = Plan::new();
    let Some(pmem) = Hardware::for_pmem() else { return };
    let counting = Counting::new(pmem);
    let medium = Mutating::new(counting, plan);
    let mapping = Mapping::heap(4096, medium);
    let elsewhere: Box<[AtomicU64; 64]> = Box::new(std::array::from_fn(|_| AtomicU64::new(0)));
    // The one site of this test.
    let write_back = |words: &[AtomicU64]| medium.write_back(Lines::of_words(words));
    write_back(&elsewhere[..]);
    let (site, _) = plan.sites().into_iter().find(|(site, _)| site.kind == SiteKind::WriteBack).unwrap();
    plan.mutate(site, Mutation::Delay);
    let before = counting.counts().write_backs;
    write_back(&elsewhere[..]);
    assert!(counting.counts().write_backs > before, "at once: it lies in no mapping");
    drop(elsewhere);
    let mut session = mapping.session().unwrap();
    let op = session.enter().unwrap();
    let before = counting.counts().write_backs;
    write_back(op.at(Off::<[Word; 8]>::new(64)).words());
    assert_eq!(counting.counts().write_backs, before, "later");
    medium.fence();
    assert_eq!(counting.counts().write_backs, before + 1);
    write_back(op.at(Off::<[Word; 8]>::new(64)).words());
    drop(op);
    drop((session, mapping));
    let before = counting.counts().write_backs;
    medium.fence();
    assert_eq!(counting.counts().write_backs, before, "what was delayed goes with its mapping");
}
