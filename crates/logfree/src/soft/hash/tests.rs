//! Rows for every class of finding of maps with volatile links: one damage, and exactly what is said of it.

use std::collections::BTreeSet;
use std::sync::atomic::Ordering::Relaxed;

use durix_pmem::backing::HeapBacking;
use durix_pmem::testing::{Before, Interposed, assert_each_has_a_row};
use durix_pmem::{Bits, Counting, Off, PoolOptions, Unsettled};

use super::*;
use crate::soft::layout::{Member, State};
use crate::soft::store::Place;

durix_pmem::variants!(CLASSES, class_of: Finding {
    Leaked, NotAllocated, Misplaced, Damaged, OtherEntries, DamagedMark,
});

/// Members say by themselves whether they count, so there is no tally and no mark.
const NOT_HERE: [&str; 2] = ["OtherEntries", "DamagedMark"];

/// The map, what its index leads to, and a line that is free.
struct Sound<'s> {
    op: &'s Op<'s, Hardware>,
    places: Vec<Place>,
    free: u64,
}

impl Sound<'_> {
    fn member(&self, off: u64) -> &Member {
        self.op.at(Off::new(off))
    }
}

type Row = (&'static str, &'static [&'static str], fn(&mut Sound<'_>) -> u64);

const CHECKS: &[Row] = &[
    ("Misplaced", &[], |s| {
        s.places.push(s.places[0]);
        s.places[0].get()
    }),
    ("Leaked", &[], |s| s.places.pop().unwrap().get()),
    // A member that says that it is free; one that is known to be free, too.
    ("NotAllocated", &[], |s| {
        let off = s.places[0].get();
        s.op.store(&s.member(off).state, State::free(off), Relaxed);
        off
    }),
    ("NotAllocated", &["Damaged"], |s| {
        let member = s.member(s.free);
        let [key, value] = [&member.key, &member.values[0]].map(|word| s.op.load(word, Relaxed));
        s.op.store(&member.state, State::live(s.free, key, value, 0), Relaxed);
        s.places.push(Off::new(s.free));
        s.free
    }),
    ("Damaged", &[], |s| {
        let off = s.places[0].get();
        s.op.store(&s.member(off).key, 77, Relaxed);
        off
    }),
    ("Damaged", &[], |s| {
        let off = s.places[0].get();
        s.op.store(&s.member(off).values[0], 77, Relaxed);
        off
    }),
    ("Damaged", &[], |s| {
        s.op.store(&s.member(s.free).state, State::from_bits(0), Relaxed);
        s.free
    }),
];

#[test]
fn a_check_reports_each_damage_by_its_own_class() {
    let mut wrong = Vec::new();
    for (number, (class, with, damage)) in CHECKS.iter().enumerate() {
        let options = PoolOptions::new().initial_size(1 << 20).max_size(1 << 20);
        let pool = options.create_on(HeapBacking::new(1 << 20), Hardware::PAGE_CACHE).unwrap();
        let map = SoftHash::open(&pool, "map").unwrap();
        let mut session = pool.session().unwrap();
        let op = session.enter().unwrap();
        (1..=8).for_each(|key| assert!(map.insert(&op, key, key + 100).unwrap()));
        assert_eq!(map.check(&op).unwrap(), []);
        let places = map.map.table.places(&op);
        let used: BTreeSet<_> = places.iter().map(|place| place.get()).collect();
        let extent = map.map.store.extents(&op)[0];
        let free = (extent.off..extent.off + extent.len).step_by(64).find(|off| !used.contains(off)).unwrap();
        let mut sound = Sound { op: &op, places, free };
        let offset = damage(&mut sound);
        let findings = map.map.store.check(&op, sound.places);
        let found: BTreeSet<_> = findings.iter().map(class_of).collect();
        let expected: BTreeSet<_> = with.iter().copied().chain([*class]).collect();
        if found != expected || !findings.iter().any(|f| (f.offset(), class_of(f)) == (offset, class)) {
            wrong.push(format!("row {number}: {class} at {offset:#x} and {with:?}, found {findings:x?}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    let classes: Vec<_> = CLASSES.iter().copied().filter(|name| !NOT_HERE.contains(name)).collect();
    assert_each_has_a_row(&classes, CHECKS.iter().map(|(class, ..)| *class));
}

/// A bucket is split while the marks of its entries are looked for: whose entry has moved is settled where it lies now.
#[test]
fn a_mark_that_a_split_moves_out_of_sight_is_found() {
    const CELLS: usize = 6;
    // As many keys as the first bucket has cells, the last of which a split moves into the next bucket, and one more.
    let index = |key: u64, size: u64| crate::soft::table::index(hash(key), size);
    let of_first = |key: &u64| index(*key, 16) == 0;
    let moved = (1..).find(|key| of_first(key) && index(*key, 17) == 16).unwrap();
    let others: Vec<u64> = (1..).filter(|key| of_first(key) && *key != moved).take(CELLS).collect();
    // The size, the version, the size again, and the cells.
    for load in 1..=3 + CELLS as u64 {
        let medium = Interposed::new(Hardware::PAGE_CACHE);
        let options = PoolOptions::new().initial_size(1 << 20).max_size(1 << 20);
        let pool = options.create_on(HeapBacking::new(1 << 20), medium).unwrap();
        let map = SoftHash::open_with(&pool, "map", &SoftOptions::default().buckets(1)).unwrap();
        let (mut session, mut other) = (pool.session().unwrap(), pool.session().unwrap());
        let op = session.enter().unwrap();
        others[1..].iter().for_each(|key| assert!(map.insert(&op, *key, 1).unwrap()));
        drop(op);
        let op = session.enter_later(&mut Unsettled::new()).unwrap();
        assert!(map.insert(&op, moved, 1).unwrap());
        let ticket = op.finish();
        let op = session.enter().unwrap();
        let find = || map.map.table.look(&op, hash(moved), moved, |_| ()).found.unwrap().0.entry;
        assert!(find().is_unsettled() && map.map.table.size(medium) == 16);
        let place = find().place();
        let settle = || map.map.settle(&op, hash(moved), place);
        let split = || assert!(map.insert(&other.enter().unwrap(), others[0], 1).unwrap());
        let ((), came) = medium.interrupt(Before::SharedLoad, load, settle, split);
        assert!(came && map.map.table.size(medium) == 17, "before load {load}");
        assert!(!find().is_unsettled(), "before load {load}: a crash could take the key back");
        drop(op);
        drop(ticket);
    }
}

/// A bucket is split while a ticket waits: what others have changed in the bucket since keeps its mark until it is written back, too.
#[test]
fn a_split_gives_no_bucket_a_version_that_a_ticket_has_noted() {
    let index = |key: u64, size: u64| crate::soft::table::index(hash(key), size);
    let moved = (1..).find(|key| index(*key, 16) == 0 && index(*key, 17) == 16).unwrap();
    // One more than the second bucket has cells.
    let neighbours: Vec<u64> = (1..).filter(|key| index(*key, 16) == 1).take(7).collect();
    for removes in [false, true] {
        let counting = Counting::new(Hardware::PAGE_CACHE);
        let medium = Interposed::new(counting);
        let options = PoolOptions::new().initial_size(1 << 20).max_size(1 << 20);
        let pool = options.create_on(HeapBacking::new(1 << 20), medium).unwrap();
        let map = SoftHash::open_with(&pool, "map", &SoftOptions::default().buckets(1)).unwrap();
        let (mut session, mut other) = (pool.session().unwrap(), pool.session().unwrap());
        let op = session.enter_later(&mut Unsettled::new()).unwrap();
        assert!(map.insert(&op, moved, 1).unwrap());
        let (mut ticket, mut others, mut before) = (op.finish(), Unsettled::new(), None);
        let change_and_split = || {
            let op = other.enter_later(&mut others).unwrap();
            if removes {
                assert_eq!(map.remove(&op, moved).unwrap(), Some(1));
            } else {
                assert_eq!(map.update(&op, moved, 2).unwrap(), Some(1));
            }
            others = op.finish();
            let op = other.enter().unwrap();
            neighbours.iter().for_each(|key| assert!(map.insert(&op, *key, 1).unwrap()));
            before = Some(counting.counts());
        };
        let wait = || pool.wait(&mut session, &mut ticket).unwrap();
        let ((), came) = medium.interrupt(Before::Fence, 1, wait, change_and_split);
        assert!(came && map.map.table.size(medium) > 16);
        let counts = counting.counts() - before.unwrap();
        let op = session.enter().unwrap();
        let entry = map.map.table.look(&op, hash(moved), moved, |_| ()).found.map(|(found, ())| found.entry);
        let is_marked = entry.is_some_and(|entry| entry.is_unsettled());
        // Its line again, and a fence after the ticket's own.
        let is_durable = counts.write_backs == 1 && counts.fences == 2;
        assert!(is_marked || is_durable, "removes: {removes}: a crash could take the change back: {counts:?}");
        drop(op);
        drop(others);
    }
}
