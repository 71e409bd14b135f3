use std::collections::BTreeMap;
use std::sync::atomic::Ordering::Relaxed;

use proptest::prelude::*;

use super::*;
use crate::medium::{Counting, Hardware};
use crate::session::Session;
use crate::testing::{Before, Interposed};

mod findings;

const CHUNK: u64 = 4096;
const HEAP: Heap = Heap { chunk: CHUNK, lanes: 2, lanes_off: 512, heap_off: CHUNK };
const A: Owner = Owner(0);
const B: Owner = Owner(1);

type M = Counting<Hardware>;

struct Bench {
    mapping: Mapping<M>,
    counting: M,
}

impl Bench {
    fn new(chunks: u64) -> Self {
        let counting = Counting::new(Hardware::PAGE_CACHE);
        Bench { mapping: Mapping::heap((CHUNK + chunks * CHUNK) as usize, counting), counting }
    }

    fn session(&self) -> Session<M> {
        self.mapping.session().unwrap()
    }

    fn space(&self, op: &Op<'_, M>) -> Space<M> {
        Space::recover(op, self.mapping.clone(), HEAP, Box::new(())).unwrap()
    }
}

/// A link in root-entry territory: behind the lanes, before the heap.
fn link<'s>(op: &Op<'s, M>, index: u64) -> &'s Word<Off<Word>> {
    op.at(Off::new(1024 + index * 8))
}

#[test]
fn an_extent_is_its_owners_after_a_restart_and_a_reservation_is_not() {
    let bench = Bench::new(16);
    let mut session = bench.session();
    let op = session.enter().unwrap();
    let space = bench.space(&op);
    let extent = space.activate(&op, space.reserve_extent(&op, A, CHUNK + 1).unwrap()).unwrap();
    assert_eq!(extent.len, 2 * CHUNK);
    let reserved = space.reserve_extent(&op, A, 1).unwrap();
    assert!(reserved.off() >= extent.off + extent.len);
    drop(reserved);
    let other = space.activate(&op, space.reserve_extent(&op, B, 1).unwrap()).unwrap();
    assert_eq!(space.extents(&op, A), [extent]);
    let again = bench.space(&op);
    assert_eq!(again.extents(&op, A), [extent]);
    assert_eq!(again.extents(&op, B), [other]);
    let stats = again.stats(&op);
    assert_eq!((stats.total, stats.free, stats.tables), (16 * CHUNK, 12 * CHUNK, CHUNK));
    assert_eq!(stats.by_owner, [(A, 2 * CHUNK), (B, CHUNK)]);
    assert_eq!(again.check(&op, |owner| owner == A), [Finding::UnknownOwner { off: other.off, owner: B }]);
    again.free_owner(&op, A);
    again.free_extent(&op, other).unwrap();
    assert!(matches!(again.free_extent(&op, other), Err(Error::NotAnExtent { .. })));
    assert_eq!(bench.space(&op).stats(&op).free, 15 * CHUNK);
}

/// One word of the table hid all extents behind it from repair, and from everybody else.
#[test]
fn an_extent_that_claims_too_many_chunks_hides_nothing_and_is_found() {
    let bench = Bench::new(40);
    let mut session = bench.session();
    let op = session.enter().unwrap();
    let space = bench.space(&op);
    let extent =
        |owner, chunks| space.activate(&op, space.reserve_extent(&op, owner, chunks * CHUNK).unwrap()).unwrap();
    let (first, second) = (extent(A, 2), extent(B, 3));
    let block = space.reserve_block(&op, B, 64).unwrap().keep();
    space.apply(&op, Change::Allocate(block)).unwrap();
    let last = extent(A, 1);
    let stats = space.stats(&op);
    let word = op.at(HEAP.descriptor(HEAP.chunk_of(first.off).unwrap()));
    for claimed in [3, 7, 20] {
        let what = Use::Extent { owner: A, chunks: claimed, role: Role::Data };
        op.store(word, Descriptor::new(what), Relaxed);
        for space in [&space, &bench.space(&op)] {
            assert_eq!((space.extents(&op, A), space.extents(&op, B)), (vec![first, last], vec![second]), "{claimed}");
            assert_eq!(space.blocks(&op, B), [(block.off(), 64)]);
            let len = u64::from(claimed) * CHUNK;
            assert_eq!(space.check(&op, |_| true), [Finding::Overlap { off: first.off, len }]);
            assert_eq!(space.stats(&op).by_owner, stats.by_owner);
        }
    }
}

#[test]
fn a_full_pool_is_an_error_and_stays_usable() {
    let bench = Bench::new(8);
    let mut session = bench.session();
    let op = session.enter().unwrap();
    let space = bench.space(&op);
    let all = space.reserve_extent(&op, A, 7 * CHUNK).unwrap();
    assert!(matches!(space.reserve_extent(&op, A, 1), Err(Error::Full { .. })));
    assert!(matches!(space.reserve_block(&op, A, 64), Err(Error::Full { .. })));
    drop(all);
    assert!(space.reserve_block(&op, A, 64).is_ok());
    assert!(matches!(space.reserve_block(&op, A, CHUNK), Err(Error::TooLarge { limit: 1024, .. })));
    assert!(matches!(space.reserve_extent(&op, A, 1 << 40), Err(Error::TooLarge { .. })));
}

#[test]
fn a_block_is_allocated_with_its_link_and_freed_with_it() {
    let bench = Bench::new(8);
    let mut session = bench.session();
    let op = session.enter().unwrap();
    let space = bench.space(&op);
    drop(space.reserve_block(&op, A, 100).unwrap());
    let before = bench.counting.counts();
    let reserved = space.reserve_block(&op, A, 100).unwrap();
    let (off, len) = (reserved.off(), reserved.len());
    assert_eq!((off % 64, len), (0, 128));
    let prepared = space.prepare(&op, reserved, link(&op, 0)).unwrap();
    assert_eq!(op.load(link(&op, 0), Relaxed), Off::NULL);
    op.fence();
    prepared.complete(&op);
    let counts = bench.counting.counts() - before;
    assert_eq!((counts.write_backs, counts.fences), (4, 3), "intent; link and bitmap; intent cleared");
    assert_eq!(op.load(link(&op, 0), Relaxed).get(), off);
    assert_eq!(bench.space(&op).blocks(&op, A), [(off, 128)]);

    assert!(matches!(space.prepare_free(&op, off + 64, link(&op, 0), Off::NULL), Err(Error::NotAllocated { .. })));
    let prepared = space.prepare_free(&op, off, link(&op, 0), Off::NULL).unwrap();
    op.fence();
    prepared.complete(&op);
    assert_eq!(op.load(link(&op, 0), Relaxed), Off::NULL);
    assert!(matches!(space.prepare_free(&op, off, link(&op, 0), Off::NULL), Err(Error::NotAllocated { .. })));
    assert_eq!(space.stats(&op).free, 7 * CHUNK, "the emptied slab is given back");
}

/// After a restart. The block's bit is cleared before its lane is, and another session allocates in between: it must not get the block, which
/// would be free once more when the first one has ended.
#[test]
fn a_block_that_is_being_freed_is_nobody_elses_before_it_is_free() {
    let mut met = 0;
    for fence in 1.. {
        let medium = Interposed::new(Hardware::PAGE_CACHE);
        let mapping = Mapping::heap(9 * CHUNK as usize, medium);
        let [mut first, mut other] = [mapping.session().unwrap(), mapping.session().unwrap()];
        let recovered =
            |op: &Op<'_, Interposed<Hardware>>| Space::recover(op, mapping.clone(), HEAP, Box::new(())).unwrap();
        let (space, off) = {
            let op = first.enter().unwrap();
            let space = recovered(&op);
            // Two, so that the slab stays: it would be given back under the lock that the other one needs.
            let offs = [1024, 1032].map(|link| {
                let reserved = space.reserve_block(&op, A, 64).unwrap();
                let off = reserved.off();
                let prepared = space.prepare(&op, reserved, op.at(Off::<Word<Off<Word>>>::new(link))).unwrap();
                op.fence();
                prepared.complete(&op);
                off
            });
            (recovered(&op), offs[0])
        };
        let taken = std::sync::Mutex::new(Vec::new());
        let take = |session: &mut Session<Interposed<Hardware>>| {
            let op = session.enter().unwrap();
            let reserved = space.reserve_block(&op, A, 64).unwrap();
            taken.lock().unwrap().push(reserved.off());
            std::mem::forget(reserved);
        };
        let free = || {
            let op = first.enter().unwrap();
            let prepared = space.prepare_free(&op, off, op.at(Off::<Word<Off<Word>>>::new(1024)), Off::NULL).unwrap();
            op.fence();
            prepared.complete(&op);
        };
        let ((), came) = medium.interrupt(Before::Fence, fence, free, || take(&mut other));
        if !came {
            break;
        }
        met += 1;
        (0..3).for_each(|_| take(&mut first));
        let mut taken = taken.into_inner().unwrap();
        taken.sort_unstable();
        taken.dedup();
        assert_eq!(taken.len(), 4, "before fence {fence}: a block was given out twice");
    }
    assert!(met >= 3, "{met} fences");
}

#[test]
fn a_cancelled_preparation_leaves_nothing_and_a_forgotten_one_shuts_the_pool() {
    let bench = Bench::new(8);
    let mut session = bench.session();
    let mut other = bench.session();
    let op = session.enter().unwrap();
    let space = bench.space(&op);
    let first = space.reserve_extent(&op, A, CHUNK).unwrap();
    let off = first.off();
    space.prepare(&op, first, link(&op, 0)).unwrap().cancel(&op);
    assert_eq!(space.stats(&op).free, 7 * CHUNK);
    let again = space.reserve_extent(&op, A, CHUNK).unwrap();
    assert_eq!(again.off(), off);
    op.store(link(&op, 1), Off::new(off), Relaxed);
    let error = space.prepare(&op, again, link(&op, 1)).unwrap_err();
    assert!(matches!(error, Error::Dangling { .. }), "{error}");
    let third = space.reserve_block(&op, A, 64).unwrap();
    drop(space.prepare(&op, third, link(&op, 0)).unwrap());
    assert!(matches!(other.enter(), Err(Error::Shut { .. })));
}

#[test]
fn an_intent_found_by_recovery_follows_its_link() {
    for linked in [false, true] {
        for frees in [false, true] {
            let bench = Bench::new(8);
            let mut session = bench.session();
            let op = session.enter().unwrap();
            let space = bench.space(&op);
            let reserved = space.reserve_block(&op, A, 64).unwrap();
            let off = reserved.off();
            let prepared = space.prepare(&op, reserved, link(&op, 0)).unwrap();
            let prepared = if frees {
                prepared.complete(&op);
                space.prepare_free(&op, off, link(&op, 0), Off::NULL).unwrap()
            } else {
                prepared
            };
            if linked {
                op.store(link(&op, 0), Off::new(if frees { 0 } else { off }), Relaxed);
            }
            std::mem::forget(prepared);
            let again = bench.space(&op);
            let expected = if linked != frees { vec![(off, 64)] } else { vec![] };
            assert_eq!(again.blocks(&op, A), expected, "linked {linked} frees {frees}");
            assert_eq!(bench.space(&op).blocks(&op, A), expected, "a second recovery changes nothing");
        }
    }
}

#[test]
fn sessions_allocate_side_by_side_without_sharing_a_byte() {
    let bench = Bench::new(500);
    let mut session = bench.session();
    let space = bench.space(&session.enter().unwrap());
    let spans = std::sync::Mutex::new(BTreeMap::new());
    std::thread::scope(|s| {
        for thread in 0..3u64 {
            let (space, spans, bench) = (&space, &spans, &bench);
            s.spawn(move || {
                let mut session = bench.session();
                for i in 0..60u64 {
                    let op = session.enter().unwrap();
                    let slot = link(&op, thread * 60 + i);
                    let reserved = match i % 7 {
                        0 => space.reserve_extent(&op, A, CHUNK),
                        size => space.reserve_block(&op, A, size * 100),
                    };
                    let reserved = reserved.unwrap();
                    let span = (reserved.off(), reserved.len());
                    let prepared = space.prepare(&op, reserved, slot).unwrap();
                    op.fence();
                    prepared.complete(&op);
                    if i % 3 == 0 {
                        let prepared = space.prepare_free(&op, span.0, slot, Off::NULL).unwrap();
                        op.fence();
                        prepared.complete(&op);
                    } else {
                        assert!(spans.lock().unwrap().insert(span.0, span.1).is_none());
                    }
                }
            });
        }
    });
    let spans = spans.into_inner().unwrap();
    let mut end = 0;
    for (off, len) in &spans {
        assert!(*off >= end, "{off:#x} overlaps what lies before");
        end = off + len;
    }
    let op = session.enter().unwrap();
    let space = bench.space(&op);
    let mut found: Vec<_> = space.blocks(&op, A);
    found.extend(space.extents(&op, A).into_iter().map(|e| (e.off, e.len)));
    found.sort_unstable();
    assert_eq!(found, spans.into_iter().collect::<Vec<_>>());
    assert_eq!(space.check(&op, |_| true), []);
}

#[derive(Clone, Debug)]
enum Action {
    Extent(u64),
    Block(u64),
    Free(prop::sample::Index),
    Restart,
}

fn action() -> impl Strategy<Value = Action> {
    prop_oneof![
        2 => (1..4 * CHUNK).prop_map(Action::Extent),
        5 => (0..=1024u64).prop_map(Action::Block),
        4 => any::<prop::sample::Index>().prop_map(Action::Free),
        1 => Just(Action::Restart),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    #[test]
    fn what_is_allocated_is_disjoint_and_found_again(actions in prop::collection::vec(action(), 1..80)) {
        let bench = Bench::new(40);
        let mut session = bench.session();
        let op = session.enter().unwrap();
        let mut space = bench.space(&op);
        let mut live: BTreeMap<u64, (u64, u64)> = BTreeMap::new();
        let mut links = (0..300u64).rev().collect::<Vec<_>>();
        for action in actions {
            let reserved = match action {
                Action::Extent(bytes) => space.reserve_extent(&op, A, bytes),
                Action::Block(bytes) => space.reserve_block(&op, A, bytes),
                Action::Free(index) => {
                    if let Some((&off, &(_, slot))) = live.iter().nth(index.index(live.len().max(1))) {
                        let prepared = space.prepare_free(&op, off, link(&op, slot), Off::NULL).unwrap();
                        op.fence();
                        prepared.complete(&op);
                        live.remove(&off);
                        links.push(slot);
                    }
                    continue;
                }
                Action::Restart => {
                    space = bench.space(&op);
                    continue;
                }
            };
            let reserved = match reserved {
                Ok(reserved) => reserved,
                Err(Error::Full { .. }) => continue,
                Err(error) => panic!("{error}"),
            };
            let (off, len) = (reserved.off(), reserved.len());
            let before = live.range(..off + len).next_back().map_or(0, |(o, (l, _))| o + l);
            prop_assert!(before <= off, "overlap");
            let slot = links.pop().unwrap();
            let prepared = space.prepare(&op, reserved, link(&op, slot)).unwrap();
            op.fence();
            prepared.complete(&op);
            live.insert(off, (len, slot));
        }
        let mut found = space.blocks(&op, A);
        found.extend(space.extents(&op, A).into_iter().map(|e| (e.off, e.len)));
        found.sort_unstable();
        prop_assert_eq!(found, live.iter().map(|(o, (l, _))| (*o, *l)).collect::<Vec<_>>());
        prop_assert_eq!(space.check(&op, |_| true), []);
    }

    #[test]
    fn corrupt_tables_are_findings_never_panics(
        words in prop::collection::vec((0..40u64, any::<u64>()), 0..20),
        lanes in prop::collection::vec((0..12u64, any::<u64>()), 0..6),
        small in prop::collection::vec((0..40u64, 0..3u64, 0..60u64), 0..20),
    ) {
        let bench = Bench::new(40);
        let mut session = bench.session();
        let op = session.enter().unwrap();
        for (index, bits) in words {
            op.store(op.at(Off::<Word>::new(CHUNK + index * 8)), bits, Relaxed);
        }
        for (index, state, len) in small {
            op.store(op.at(Off::<Word>::new(CHUNK + index * 8)), state | len << 20, Relaxed);
        }
        for (index, bits) in lanes {
            op.store(op.at(Off::<Word>::new(512 + index / 6 * 128 + index % 6 * 8)), bits, Relaxed);
        }
        let space = bench.space(&op);
        let findings = space.check(&op, |_| true);
        let _ = findings.iter().map(ToString::to_string).collect::<Vec<_>>();
        let stats = space.stats(&op);
        prop_assert!(stats.free <= stats.total);
        for owner in [A, B] {
            for (off, len) in space.blocks(&op, owner) {
                prop_assert!(off + len <= CHUNK * 41);
            }
        }
        while let Ok(reserved) = space.reserve_block(&op, A, 64) {
            space.prepare(&op, reserved, link(&op, 0)).map(|p| p.cancel(&op)).ok();
            if space.reserve_extent(&op, A, 1).and_then(|r| space.activate(&op, r)).is_err() {
                break;
            }
        }
        space.free_owner(&op, A);
    }
}

#[test]
fn changes_are_idempotent_and_touch_no_neighbour() {
    let bench = Bench::new(12);
    let mut session = bench.session();
    let op = session.enter().unwrap();
    let space = bench.space(&op);
    let neighbour = space.reserve_block(&op, A, 64).unwrap().keep();
    space.apply(&op, Change::Allocate(neighbour)).unwrap();
    let block = space.reserve_block(&op, A, 64).unwrap().keep();
    let extent = space.reserve_extent(&op, B, 2 * CHUNK).unwrap().keep();
    let owned = |space: &Space<_>| (space.blocks(&op, A).len(), space.extents(&op, B).len());
    for allocation in [block, extent] {
        assert_eq!(Allocation::from_words(allocation.to_words()), allocation);
        for change in [Change::Allocate(allocation), Change::Allocate(allocation).inverse()] {
            for _ in 0..2 {
                space.apply(&op, change).unwrap();
                let there = usize::from(matches!(change, Change::Allocate(_)));
                let expected = if allocation == block { (1 + there, 0) } else { (1, there) };
                assert_eq!(owned(&space), expected, "{change:?}");
            }
        }
    }
    // Freed, and not available: the log may still hold records of it.
    let next = space.reserve_block(&op, A, 64).unwrap();
    assert_ne!(next.off(), block.off());
    space.release(&op, block);
    space.release(&op, block);
    assert_eq!(space.reserve_block(&op, A, 64).unwrap().off(), block.off());
    space.release(&op, neighbour);
    assert_eq!(owned(&space), (1, 0), "what is allocated is not released");
    let all = space.stats(&op).free / CHUNK;
    let chunk = space.reserve_extent(&op, B, CHUNK).unwrap();
    assert_ne!(chunk.off(), extent.off());
    space.release(&op, extent);
    drop(chunk);
    assert_eq!(space.reserve_extent(&op, B, all * CHUNK).unwrap().len(), all * CHUNK, "all of it is there again");
}

#[test]
fn changes_are_redone_after_a_crash_before_anything_is_reserved() {
    let bench = Bench::new(12);
    let mut session = bench.session();
    let op = session.enter().unwrap();
    let (block, extent, freed) = {
        let space = bench.space(&op);
        let freed = space.reserve_block(&op, A, 64).unwrap().keep();
        space.apply(&op, Change::Allocate(freed)).unwrap();
        let block = space.reserve_block(&op, A, 64).unwrap().keep();
        (block, space.reserve_extent(&op, B, 3 * CHUNK).unwrap().keep(), freed)
    };
    // Only the records are left of them.
    let space = bench.space(&op);
    for change in [Change::Allocate(block), Change::Allocate(extent), Change::Free(freed)] {
        space.apply(&op, change).unwrap();
    }
    space.release(&op, freed);
    let extents = space.extents(&op, B);
    assert_eq!(extents, [Extent { off: extent.off(), len: extent.len() }]);
    assert_eq!(space.blocks(&op, A), [(block.off(), 64)]);
    assert_eq!(space.allocated(&op, block.off()).unwrap(), block);
    while let Ok(reserved) = space.reserve_extent(&op, A, CHUNK) {
        let within = extent.off()..extent.off() + extent.len();
        assert!(!within.contains(&reserved.off()), "given out twice");
        reserved.keep();
    }
    assert_eq!(space.reserve_block(&op, A, 64).unwrap().off(), freed.off());
}

#[test]
fn changes_that_cannot_be_are_refused_and_change_nothing() {
    let bench = Bench::new(12);
    let mut session = bench.session();
    let op = session.enter().unwrap();
    let space = bench.space(&op);
    let block = space.reserve_block(&op, A, 64).unwrap().keep();
    let extent = space.reserve_extent(&op, A, 2 * CHUNK).unwrap().keep();
    space.apply(&op, Change::Allocate(extent)).unwrap();
    let [off, rest] = block.to_words();
    let [extent_off, extent_rest] = extent.to_words();
    let wrong = [
        [off + 8, rest],
        [off, rest + 1],
        [off, rest + (64 << 16)],
        [0, rest],
        [u64::MAX, rest],
        [off, u64::MAX],
        [extent_off + CHUNK, extent_rest],
        [extent_off, extent_rest + (CHUNK << 16)],
        [extent_off, extent_rest + 1],
        [CHUNK, extent_rest],
        [CHUNK * 2, 0],
    ];
    let before = (space.blocks(&op, A), space.extents(&op, A), space.stats(&op));
    for words in wrong {
        for change in [Change::Allocate, Change::Free] {
            let error = space.apply(&op, change(Allocation::from_words(words))).unwrap_err();
            assert!(matches!(error, Error::NotAllocated { .. }), "{words:?}: {error}");
        }
        space.release(&op, Allocation::from_words(words));
    }
    assert_eq!((space.blocks(&op, A), space.extents(&op, A), space.stats(&op)), before);
}

/// Heads say which chunks belong together where the table does not.
#[test]
fn extents_are_found_by_their_heads_where_the_table_is_damaged() {
    let bench = Bench::new(24);
    let mut session = bench.session();
    let op = session.enter().unwrap();
    let space = bench.space(&op);
    let extent = |owner, chunks: u64| {
        let extent = space.activate(&op, space.reserve_extent(&op, owner, chunks * CHUNK).unwrap()).unwrap();
        // The head of this test: whose it is, and how long.
        op.store(op.at(Off::<Word>::new(extent.off)), u64::from(owner.0) << 32 | chunks << 8 | 7, Relaxed);
        extent
    };
    let (first, second, other, last) = (extent(A, 2), extent(A, 3), extent(B, 2), extent(A, 1));
    let salvaged = |lost: bool| {
        space.salvaged_extents(&op, A, |owner| owner == A || owner == B, lost, &mut |off, most| {
            let head = op.load(op.at(Off::<Word>::new(off)), Relaxed);
            let len = (head >> 8 & 0xff) * CHUNK;
            (head & 0xff == 7 && head >> 32 == 0 && len <= most).then_some(len)
        })
    };
    let mine = [first, second, last];
    assert_eq!(salvaged(true), mine);
    assert_eq!(salvaged(false), mine);
    let word = |extent: Extent| op.at(HEAP.descriptor(HEAP.chunk_of(extent.off).unwrap()));
    let (unknown, dead) = (Descriptor::from_bits(u64::MAX), Descriptor::new(Use::Slab { owner: Owner(9), lines: 1 }));
    let (short, log) = (
        Descriptor::new(Use::Extent { owner: A, chunks: 1, role: Role::Data }),
        Descriptor::new(Use::Extent { owner: A, chunks: 3, role: Role::Log }),
    );
    for what in [Descriptor::new(Use::Free), unknown, dead, short, log] {
        let before = op.load(word(second), Relaxed);
        op.store(word(second), what, Relaxed);
        assert_eq!(salvaged(true), mine, "{what:?}");
        // Without a look at what is nobody's, only what the table gives to the owner.
        let expected: &[Extent] = if what == short { &mine } else { &[first, last] };
        assert_eq!(salvaged(false), expected, "{what:?}");
        op.store(word(second), before, Relaxed);
    }
    // All of the table, but what belongs to others.
    let table = op.slice("table", HEAP.descriptor(1), 20).unwrap();
    table.iter().filter(|found| !std::ptr::eq(*found, word(other))).for_each(|word| op.store(word, unknown, Relaxed));
    assert_eq!(salvaged(true), mine);
    // Without heads the table counts, and what is nobody's does not.
    table.iter().for_each(|word| op.store(word, Descriptor::new(Use::Free), Relaxed));
    op.store(word(second), Descriptor::new(Use::Extent { owner: A, chunks: 3, role: Role::Data }), Relaxed);
    op.store(op.at(Off::<Word>::new(second.off)), 0, Relaxed);
    assert_eq!(salvaged(true), mine);
}
