//! A range whose snapshot is a number, and that holds one key which all look at.

use loom::cell::UnsafeCell;
use loom::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use loom::sync::atomic::{AtomicU64, fence};
use loom::sync::{Arc, Mutex, MutexGuard};

use super::*;
use crate::bloom::{self, FilterWord};
use crate::layout::State;
use crate::published::{self, Place};

mod split;

/// What a model leaves out, to see that something rests on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Without {
    Nothing,
    /// The look whether the active front may hold the key.
    Filter,
    /// The look whether the snapshot is still current.
    SecondLook,
    /// The order of a merge after the merge before it.
    Order,
    /// The look whether someone has claimed the range.
    Claim,
    /// Slots are given back only after the snapshot was replaced.
    GivingBackLast,
    /// A frozen front stays in the snapshot until the leaves have its entries.
    SecondFront,
    /// A filter is narrowed by one store a word.
    OneStore,
}

/// The key that all look at, its bits in a filter, and another key.
const KEY: u64 = 7;
const BITS: u64 = 0b101;
const OTHER: u64 = 9;
const OTHERS_VALUE: u64 = 99;
/// No slot, no front.
const NONE: u64 = 3;

/// A snapshot: which filter and which second front are its own, and in which slot the key is. Its serial number makes it another one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Snapshot {
    serial: u64,
    filter: usize,
    frozen: u64,
    slot: u64,
}

impl Snapshot {
    fn to_bits(self) -> u64 {
        self.serial << 6 | (self.filter as u64) << 4 | self.frozen << 2 | self.slot
    }

    fn from_bits(bits: u64) -> Self {
        Snapshot { serial: bits >> 6, filter: (bits >> 4 & 3) as usize, frozen: bits >> 2 & 3, slot: bits & 3 }
    }
}

#[derive(Debug, Default)]
struct Inner {
    active: usize,
    claim: Claim,
    /// After a restart, the record that goes into the front under the first lock.
    waiting: Option<u64>,
}

/// A value in a front: 0 says that the key is not there.
type Front = UnsafeCell<u64>;

struct Range {
    without: Without,
    current: AtomicU64,
    inner: Mutex<Inner>,
    filters: [AtomicU64; 2],
    fronts: [Front; 2],
    slots: [[AtomicU64; 2]; 2],
    /// The slot that nothing leads to.
    free: Mutex<Option<usize>>,
    /// Whether there is room for a merge.
    room: AtomicU64,
    /// The greatest value of the key that is durable.
    durable: AtomicU64,
    state: AtomicU64,
    /// Of each side, a bit for each slot.
    sides: [AtomicU64; 2],
}

impl Range {
    /// The key has the value 1, in slot 0. Its next one is 2.
    fn new(without: Without) -> Arc<Self> {
        let word = AtomicU64::new;
        Arc::new(Range {
            without,
            current: word(Snapshot { serial: 0, filter: 0, frozen: NONE, slot: 0 }.to_bits()),
            inner: Mutex::new(Inner::default()),
            filters: [word(0), word(0)],
            fronts: [Front::new(0), Front::new(0)],
            slots: [[word(KEY), word(1)], [word(0), word(0)]],
            free: Mutex::new(None),
            room: word(1),
            durable: word(1),
            state: word(0),
            sides: [word(0b01), word(0)],
        })
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        let mut inner = self.inner.lock().unwrap();
        if let Some(value) = inner.waiting.take() {
            self.put(inner.active, value);
            bloom::narrow(&Filter(self, self.snapshot().filter), BITS);
        }
        inner
    }

    fn snapshot(&self) -> Snapshot {
        Snapshot::from_bits(self.current.load(Acquire))
    }

    fn show(&self, new: Snapshot) {
        let serial = new.serial + 1;
        published::replace(self, Snapshot { serial, ..new }.to_bits());
    }

    fn front(&self, number: usize) -> u64 {
        // SAFETY: loom checks the access.
        self.fronts[number].with(|value| unsafe { *value })
    }

    fn put(&self, number: usize, value: u64) {
        // SAFETY: loom checks the access.
        self.fronts[number].with_mut(|place| unsafe { *place = value });
    }

    /// An update to a value, under the lock.
    fn update(&self, value: u64) {
        let inner = self.lock();
        bloom::add(&Filter(self, self.snapshot().filter), BITS);
        self.durable.store(value, Relaxed);
        self.put(inner.active, value);
    }

    /// The active front gets the second one.
    fn freeze(&self) {
        let mut inner = self.lock();
        let old = self.snapshot();
        let frozen = if self.without == Without::SecondFront { NONE } else { inner.active as u64 };
        inner.active = 1;
        self.show(Snapshot { filter: 1, frozen, ..old });
    }

    fn claim(&self) -> bool {
        let mut inner = self.lock();
        let waits = self.snapshot().frozen != NONE;
        inner.claim.take(waits)
    }

    /// Merges the second front, if there is one.
    fn merge(&self) {
        if self.claim() {
            merge(&mut Claimed(self)).unwrap_or_else(|()| assert_eq!(self.frozen_value(), 2, "an entry is lost"));
        }
    }

    /// What the second front has for the key.
    fn frozen_value(&self) -> u64 {
        self.front(self.snapshot().frozen as usize)
    }

    /// What a lookup returns, which looks again until it has an answer.
    fn get(&self) -> u64 {
        loop {
            let snapshot = self.snapshot();
            let value = match look_up(&InSnapshot(self, snapshot)) {
                Seen::Found(value) => value,
                Seen::AskTheHolder => {
                    let inner = self.lock();
                    match self.front(inner.active) {
                        0 => InSnapshot(self, self.snapshot()).find(),
                        value => value,
                    }
                }
                Seen::Changed => {
                    loom::thread::yield_now();
                    continue;
                }
            };
            fence(Acquire);
            assert!(value == 1 || value == 2, "the key has never had the value {value}");
            assert!(self.durable.load(Relaxed) >= value, "{value} is returned, and not durable");
            return value;
        }
    }
}

impl Place for Range {
    type Object = u64;

    fn swap(&self, new: u64) -> u64 {
        self.current.swap(new, AcqRel)
    }
    fn load(&self) -> u64 {
        self.current.load(Relaxed)
    }
    fn order(&self) {
        fence(Release);
    }
    fn acquire(&self) {
        fence(Acquire);
    }
}

struct Filter<'a>(&'a Range, usize);

impl FilterWord for Filter<'_> {
    fn load(&self, order: std::sync::atomic::Ordering) -> u64 {
        self.0.filters[self.1].load(order)
    }
    fn store(&self, bits: u64) {
        if self.0.without == Without::OneStore {
            self.0.filters[self.1].store(0, Release);
        }
        self.0.filters[self.1].store(bits, Release);
    }
}

impl StateWord for Range {
    fn load(&self) -> State {
        durix_pmem::Bits::from_bits(self.state.load(Relaxed))
    }
    fn store(&self, state: State) {
        self.state.store(durix_pmem::Bits::to_bits(state), Release);
    }
}

struct InSnapshot<'a>(&'a Range, Snapshot);

impl Lookup for InSnapshot<'_> {
    type Found = u64;

    fn may_be_active(&self) -> bool {
        self.0.without != Without::Filter && bloom::may_have(&Filter(self.0, self.1.filter), BITS)
    }

    fn find(&self) -> u64 {
        let InSnapshot(range, Snapshot { frozen, slot, .. }) = self;
        if *frozen != NONE {
            match range.front(*frozen as usize) {
                0 => {}
                value => return value,
            }
        }
        let [key, value] = &range.slots[*slot as usize];
        if key.load(Relaxed) == KEY { value.load(Relaxed) } else { 0 }
    }

    fn is_current(&self) -> bool {
        self.0.without == Without::SecondLook || published::is_still(self.0, self.1.to_bits())
    }

    fn is_on_its_way(&self, _found: u64) -> bool {
        false
    }
}

/// A range that is merged: the key goes into the other slot, with its entry or as it was.
struct Claimed<'a>(&'a Range);

impl Merging for Claimed<'_> {
    type Plan = u64;
    type Freed = usize;
    type Error = ();

    fn order(&self) {
        if self.0.without != Without::Order {
            fence(Release);
        }
    }

    fn plan(&mut self) -> Result<u64, ()> {
        if self.0.room.load(Relaxed) == 0 {
            return Err(());
        }
        let old = self.0.snapshot();
        let slot = 1 - old.slot;
        let [key, value] = &self.0.slots[slot as usize];
        let kept = self.0.slots[old.slot as usize][1].load(Relaxed);
        let entry = self.0.front(old.frozen as usize);
        key.store(KEY, Relaxed);
        value.store(if entry == 0 { kept } else { entry }, Relaxed);
        if self.0.without == Without::GivingBackLast {
            self.give_back(old.slot as usize);
        }
        Ok(slot)
    }

    fn wait_for_plan(&self) {}

    fn flip(&self, _slot: &u64) {}

    fn wait_for_flip(&self) {}

    fn publish(&mut self, slot: u64) -> usize {
        let mut inner = self.0.lock();
        let old = self.0.snapshot();
        inner.claim.end();
        self.0.show(Snapshot { frozen: NONE, slot, ..old });
        old.slot as usize
    }

    fn give_back(&self, slot: usize) {
        *self.0.free.lock().unwrap() = Some(slot);
    }

    fn give_up(&mut self) {
        self.0.lock().claim.end();
    }
}

/// Another range that takes the slot, and merges another key into it.
struct Neighbour<'a>(&'a Range, usize);

impl Merging for Neighbour<'_> {
    type Plan = ();
    type Freed = ();
    type Error = ();

    fn order(&self) {
        Claimed(self.0).order();
    }

    fn plan(&mut self) -> Result<(), ()> {
        let [key, value] = &self.0.slots[self.1];
        key.store(OTHER, Relaxed);
        value.store(OTHERS_VALUE, Relaxed);
        Ok(())
    }

    fn wait_for_plan(&self) {}
    fn flip(&self, _: &()) {}
    fn wait_for_flip(&self) {}
    fn publish(&mut self, (): ()) {}
    fn give_back(&self, (): ()) {}
    fn give_up(&mut self) {}
}

type Act = fn(&Range);

/// Runs threads on a range, in all orders with up to three preemptions; then one more look.
fn explore<const N: usize>(without: Without, threads: [Act; N], last: Act) {
    explore_from(without, |_| (), threads, last);
}

fn explore_from<const N: usize>(without: Without, prepare: Act, threads: [Act; N], last: Act) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(3);
    builder.check(move || {
        let range = Range::new(without);
        prepare(&range);
        let others = threads.map(|act| {
            let range = Arc::clone(&range);
            loom::thread::spawn(move || act(&range))
        });
        others.into_iter().for_each(|thread| thread.join().unwrap());
        last(&range);
    });
}

/// Looks twice: what was seen stays.
fn looks(range: &Range) {
    let first = range.get();
    let second = range.get();
    assert!(second >= first, "{first}, and then {second}");
}

/// An update that has returned is seen, wherever its entry goes: to the second front, to the leaf.
fn fronts(without: Without) {
    let writes: Act = |range| {
        range.update(2);
        assert_eq!(range.get(), 2, "not seen in the first front");
    };
    let moves: Act = |range| {
        range.freeze();
        range.merge();
    };
    explore(without, [writes, moves], |range| assert_eq!(range.get(), 2));
}

/// What a reader has seen stays.
fn beside_a_reader(without: Without) {
    let writes: Act = |range| {
        range.update(2);
        range.freeze();
        range.merge();
    };
    explore(without, [writes, looks], |range| assert_eq!(range.get(), 2));
}

#[test]
fn loom_what_a_reader_has_seen_stays() {
    beside_a_reader(Without::Nothing);
}

#[test]
fn loom_an_update_is_seen_in_each_front_and_in_the_leaf() {
    fronts(Without::Nothing);
}

#[test]
#[should_panic]
fn loom_without_a_look_at_the_filter_an_update_is_not_seen() {
    fronts(Without::Filter);
}

#[test]
#[should_panic]
fn loom_without_the_second_front_an_update_is_not_seen_until_it_is_merged() {
    fronts(Without::SecondFront);
}

/// After a restart a front is made under the first lock; until then its filter has all bits.
fn first_lock(without: Without) {
    let recovers: Act = |range| assert_eq!(range.get(), 2);
    let prepare: Act = |range| {
        range.filters[0].store(u64::MAX, Relaxed);
        range.durable.store(2, Relaxed);
        range.inner.lock().unwrap().waiting = Some(2);
    };
    explore_from(without, prepare, [recovers, recovers], recovers);
}

#[test]
fn loom_a_record_is_seen_before_and_after_its_front_is_made() {
    first_lock(Without::Nothing);
}

#[test]
#[should_panic]
fn loom_a_filter_that_is_narrowed_by_two_stores_misses_a_record() {
    first_lock(Without::OneStore);
}

/// A slot that a merge has freed is used again by another thread, which knows of it by a lock only.
fn collection(without: Without) {
    let merges: Act = |range| {
        range.freeze();
        range.merge();
    };
    let uses_again: Act = |range| {
        let freed = range.free.lock().unwrap().take();
        if let Some(slot) = freed {
            merge(&mut Neighbour(range, slot)).unwrap();
        }
    };
    let reads: Act = |range| _ = range.get();
    explore(without, [merges, uses_again, reads], |range| assert_eq!(range.get(), 1));
}

#[test]
fn loom_a_slot_is_used_again_only_after_its_last_reader() {
    collection(Without::Nothing);
}

#[test]
#[should_panic]
fn loom_without_a_second_look_a_reader_takes_anothers_slot_for_its_own() {
    collection(Without::SecondLook);
}

#[test]
#[should_panic]
fn loom_without_the_order_of_a_merge_a_reader_takes_anothers_slot_for_its_own() {
    collection(Without::Order);
}

#[test]
#[should_panic]
fn loom_a_slot_that_is_given_back_before_it_is_replaced_is_read_by_others() {
    collection(Without::GivingBackLast);
}

/// Two that help merge a range: one of them does. The other one, or none, uses the slot again that was freed.
fn two_merges(range: &Range) {
    range.merge();
    let freed = range.free.lock().unwrap().take();
    if let Some(slot) = freed {
        merge(&mut Neighbour(range, slot)).unwrap();
    }
}

#[test]
fn loom_a_front_is_merged_by_one_of_two() {
    let prepare: Act = |range| {
        range.update(2);
        range.freeze();
    };
    explore_from(Without::Nothing, prepare, [two_merges, two_merges], |range| assert_eq!(range.get(), 2));
}

#[test]
fn loom_a_merge_that_found_no_room_is_made_later() {
    let prepare: Act = |range| {
        range.update(2);
        range.freeze();
        range.room.store(0, Relaxed);
    };
    let makes_room: Act = |range| {
        range.room.store(1, Relaxed);
        while range.snapshot().frozen != NONE {
            range.merge();
            loom::thread::yield_now();
        }
    };
    explore_from(Without::Nothing, prepare, [Range::merge, makes_room], |range| assert_eq!(range.get(), 2));
}

/// A merge that adds a slot to the side that counts.
struct Adds<'a>(&'a Range);

impl Merging for Adds<'_> {
    type Plan = usize;
    type Freed = ();
    type Error = ();

    fn order(&self) {}

    fn plan(&mut self) -> Result<usize, ()> {
        let side = StateWord::load(self.0).side();
        self.0.sides[1 - side].store(self.0.sides[side].load(Relaxed) | 0b10, Relaxed);
        Ok(1 - side)
    }

    fn wait_for_plan(&self) {}

    fn flip(&self, side: &usize) {
        flip(self.0, *side, 2);
    }

    fn wait_for_flip(&self) {}

    fn publish(&mut self, _side: usize) {
        self.0.lock().claim.end();
    }

    fn give_back(&self, (): ()) {}

    fn give_up(&mut self) {
        unreachable!("there is room")
    }
}

/// Takes a slot out of the side that counts, as a removal in a full pool does.
fn take_out(range: &Range) {
    loop {
        let inner = range.lock();
        if inner.claim.is_taken() && range.without != Without::Claim {
            drop(inner);
            loom::thread::yield_now();
            continue;
        }
        let side = StateWord::load(range).side();
        range.sides[1 - side].store(range.sides[side].load(Relaxed) & !0b01, Relaxed);
        flip_only(range, 1 - side);
        return;
    }
}

/// A merge, and a removal in a full pool.
fn range_word(without: Without) {
    let merges: Act = |range| {
        let claims = range.lock().claim.take(true);
        assert!(claims);
        merge(&mut Adds(range)).unwrap();
    };
    explore(without, [merges, take_out], |range| {
        let _inner = range.lock();
        let state = StateWord::load(range);
        assert_eq!(state.floor(), 2, "records that were merged count again");
        assert_eq!(range.sides[state.side()].load(Relaxed), 0b10, "of two changes one is lost");
    });
}

#[test]
fn loom_a_range_word_keeps_the_floor_of_a_merge() {
    range_word(Without::Nothing);
}

#[test]
#[should_panic]
fn loom_without_the_claim_a_removal_takes_the_floor_back() {
    range_word(Without::Claim);
}

/// Looks at a range as a crash would leave it, if all that was stored was durable: at any moment one side is whole, with its floor.
fn crashes(range: &Range) {
    let state: State = durix_pmem::Bits::from_bits(range.state.load(Acquire));
    let side = range.sides[state.side()].load(Relaxed);
    let expected = if state.floor() == 2 { 0b11 } else { 0b01 };
    assert_eq!(side, expected, "with the floor {}", state.floor());
}

#[test]
fn loom_at_any_moment_a_range_word_names_a_whole_side() {
    let merges: Act = |range| {
        assert!(range.lock().claim.take(true));
        merge(&mut Adds(range)).unwrap();
    };
    explore(Without::Nothing, [merges, crashes], crashes);
}
