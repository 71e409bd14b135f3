//! The front of a range: a hash table in DRAM whose buckets are cache lines, so that an update or a lookup touches one line.
//!
//! The log is what makes a front durable, and a merge sorts what it takes; so a front keeps no order, until a scan asks for
//! one. It belongs to the holder of its range's lock until it is frozen; then nobody changes it any more.

use std::fmt;
use std::sync::OnceLock;

use durix_index::Direction;

use crate::arena::Slice;
use crate::bloom::{Bloom, hash};
use crate::order::EntryOrder;

/// An entry of a front: a key and what it is mapped to, `None` if it was removed.
pub(crate) type Entry = (u64, Option<u64>);

/// Entries of a bucket.
const PLACES: usize = 3;

/// A cache line of entries, filled from the first place on.
#[derive(Clone, Copy, Default)]
#[repr(C, align(64))]
struct Bucket {
    keys: [u64; PLACES],
    values: [u64; PLACES],
    /// Places that are taken.
    len: u32,
    /// A bit for each place: the key was removed.
    removed: u32,
}

impl Bucket {
    #[inline(always)]
    fn place_of(&self, key: u64) -> Option<usize> {
        (0..PLACES).find(|place| self.keys[*place] == key && *place < self.len as usize)
    }

    #[inline(always)]
    fn value(&self, place: usize) -> Option<u64> {
        (self.removed >> place & 1 == 0).then_some(self.values[place])
    }

    #[inline(always)]
    fn set(&mut self, place: usize, value: Option<u64>) {
        self.values[place] = value.unwrap_or(0);
        self.removed = self.removed & !(1 << place) | u32::from(value.is_none()) << place;
    }
}

/// Entries of a range.
#[derive(Default)]
#[repr(C)]
pub(crate) struct Front {
    buckets: Slice<Bucket>,
    len: usize,
    order: EntryOrder,
}

impl fmt::Debug for Front {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Front").field("len", &self.len).finish_non_exhaustive()
    }
}

impl Front {
    /// A front that takes so many entries without growing.
    pub(crate) fn new(entries: usize) -> Self {
        Front { buckets: Slice::of(Bucket::default(), entries * 5 / 9 + 1), len: 0, order: EntryOrder::default() }
    }

    pub(crate) fn of(entries: impl ExactSizeIterator<Item = Entry>, least: usize) -> Self {
        let mut front = Front::new(entries.len().max(least));
        entries.for_each(|(key, value)| front.put(key, hash(key), value));
        front
    }

    /// Number of entries.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Bytes of its buckets, and of their order.
    pub(crate) fn bytes(&self) -> usize {
        size_of_val(&*self.buckets) + self.order.bytes()
    }

    #[inline(always)]
    fn home(&self, hash: u64) -> usize {
        (((hash >> 32) * self.buckets.len() as u64) >> 32) as usize
    }

    /// Asks the processor for the line of a key.
    #[inline(always)]
    pub(crate) fn prefetch(&self, hash: u64) {
        prefetch(&raw const self.buckets[self.home(hash)]);
    }

    /// The entry of a key: what it is mapped to.
    #[inline(always)]
    pub(crate) fn get(&self, key: u64, hash: u64) -> Option<Option<u64>> {
        let mut at = self.home(hash);
        loop {
            let bucket = &self.buckets[at];
            if let Some(place) = bucket.place_of(key) {
                return Some(bucket.value(place));
            }
            if (bucket.len as usize) < PLACES {
                return None;
            }
            at = if at + 1 == self.buckets.len() { 0 } else { at + 1 };
        }
    }

    /// Sets what a key is mapped to.
    #[inline(always)]
    pub(crate) fn put(&mut self, key: u64, hash: u64, value: Option<u64>) {
        let mut at = self.home(hash);
        loop {
            let bucket = &mut self.buckets[at];
            if let Some(place) = bucket.place_of(key) {
                bucket.set(place, value);
                self.order.note((key, value), self.len);
                return;
            }
            let place = bucket.len as usize;
            if place < PLACES {
                bucket.keys[place] = key;
                bucket.set(place, value);
                bucket.len += 1;
                self.len += 1;
                break;
            }
            at = if at + 1 == self.buckets.len() { 0 } else { at + 1 };
        }
        self.order.note((key, value), self.len);
        // One place in six stays free, so every search ends.
        if self.len * 2 > self.buckets.len() * 5 {
            self.grow();
        }
    }

    #[cold]
    fn grow(&mut self) {
        let mut larger = Front::new(self.len * 2);
        self.iter().for_each(|(key, value)| larger.put(key, hash(key), value));
        *self = larger;
    }

    /// The entries, in no order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = Entry> + '_ {
        entries_of(&self.buckets)
    }

    /// Copies entries from `key` on in a direction, as many as `into` has room for. Returns their number. The first call sorts the
    /// entries, a later one what was put since.
    #[inline(always)]
    pub(crate) fn copy_from(&mut self, key: u64, direction: Direction, into: &mut [Entry]) -> usize {
        if self.is_empty() {
            return 0;
        }
        let Front { buckets, order, .. } = self;
        order.refresh(entries_of(buckets));
        match direction {
            Direction::Forward => copy(order.up_from(key).iter(), into),
            Direction::Backward => copy(order.up_to(key).iter().rev(), into),
        }
    }
}

fn entries_of(buckets: &[Bucket]) -> impl Iterator<Item = Entry> + '_ {
    let of = |bucket: &'_ Bucket| {
        let bucket = *bucket;
        (0..bucket.len as usize).map(move |place| (bucket.keys[place], bucket.value(place)))
    };
    buckets.iter().flat_map(of)
}

/// Copies as many elements as there is room for; returns their number.
#[inline(always)]
fn copy<'a, T: Copy + 'a>(from: impl Iterator<Item = &'a T>, into: &mut [T]) -> usize {
    into.iter_mut().zip(from).map(|(to, from)| *to = *from).count()
}

/// A front that takes no more updates.
#[derive(Debug)]
pub(crate) struct Frozen {
    pub(crate) front: Front,
    pub(crate) bloom: Bloom,
    /// Versions below are merged with it.
    pub(crate) floor: u64,
    sorted: OnceLock<Box<[Entry]>>,
}

impl Frozen {
    pub(crate) fn new(mut front: Front, bloom: Bloom, floor: u64) -> Self {
        // It was for the range's scans.
        front.order = EntryOrder::default();
        Frozen { front, bloom, floor, sorted: OnceLock::new() }
    }

    /// The entries in the order of keys; sorted on first use, so not by the writer that freezes the front.
    pub(crate) fn entries(&self) -> &[Entry] {
        self.sorted.get_or_init(|| {
            let mut entries = Vec::with_capacity(self.front.len());
            // A loop over buckets with one over places in it; `extend` would ask each time where it was.
            self.front.iter().for_each(|entry| entries.push(entry));
            entries.sort_unstable_by_key(|(key, _)| *key);
            entries.into()
        })
    }
}

/// Asks the processor for the line of `object`. A hint, and no access.
#[inline(always)]
pub(crate) fn prefetch<T>(object: *const T) {
    durix_pmem::prefetch_read(object.cast());
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    #[test]
    fn a_front_is_a_map() {
        for (keys, least) in [(5u64, 1usize), (300, 256), (3000, 4), (40, 400)] {
            let (mut front, mut model) = (Front::new(least), BTreeMap::new());
            let mut state = keys;
            for _ in 0..4000 {
                state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
                let key = (state >> 33) % keys;
                let value = (state >> 20 & 3 != 0).then_some(state);
                assert_eq!(front.get(key, hash(key)), model.get(&key).copied());
                front.put(key, hash(key), value);
                model.insert(key, value);
                if state >> 12 & 255 == 0 {
                    // What comes from here on is noted, and sorted in.
                    let mut found = vec![(0, None); model.len() + 1];
                    assert_eq!(front.copy_from(0, Direction::Forward, &mut found), model.len());
                    assert!(found.iter().zip(&model).all(|(found, (key, value))| *found == (*key, *value)));
                }
            }
            assert_eq!(front.len(), model.len());
            assert!((0..keys).all(|key| front.get(key, hash(key)) == model.get(&key).copied()));
            let (low, high) = (keys / 4, keys / 2);
            let part: Vec<Entry> = model.range(low..=high).map(|(k, v)| (*k, *v)).collect();
            let mut found = vec![(0, None); part.len()];
            assert_eq!(front.copy_from(low, Direction::Forward, &mut found), part.len());
            assert_eq!(found, part);
            assert_eq!(front.copy_from(high, Direction::Backward, &mut found), part.len());
            assert!(found.iter().rev().eq(&part));
            let all: Vec<Entry> = model.into_iter().collect();
            assert_eq!(Frozen::new(front, Bloom::new(1), 1).entries(), &all[..]);
        }
    }
}
