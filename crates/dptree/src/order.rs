//! Sorted lists that scans use: the slots of a leaf and the entries of a front, in the order of their keys. Both keep every sixteenth key
//! beside the list: so a search waits for memory twice, and not once a halving.

use std::sync::atomic::Ordering::Relaxed;

use durix_pmem::{LINE, Medium, Op};

use crate::front::{Entry, prefetch};
use crate::layout::MAX_SLOTS;
use crate::leaf::slots_of;

/// Elements between two samples.
const GROUP: usize = 16;

/// How many of the first samples belong to groups that begin below `key`; the answer of the search lies in the last one of them.
#[inline(always)]
fn groups_below(samples: &[u64], key: u64) -> usize {
    samples.partition_point(|sample| *sample < key)
}

/// The slots of a leaf in the order of their keys.
#[derive(Clone, Copy, Debug)]
#[repr(C, align(64))]
pub(crate) struct SlotOrder {
    /// The key of every sixteenth slot; the largest there can be, where there are no more.
    samples: [u64; MAX_SLOTS / GROUP],
    slots: [u8; MAX_SLOTS],
}

impl SlotOrder {
    /// The order of these keys and slots, at most [`MAX_SLOTS`].
    pub(crate) fn of(keys: &[(u64, u8)]) -> Self {
        let spread = keys.iter().fold((u64::MAX, 0), |(least, most), (key, _)| ((*key).min(least), (*key).max(most)));
        let mut order = SlotOrder { samples: [u64::MAX; MAX_SLOTS / GROUP], slots: [0; MAX_SLOTS] };
        // The bits that all keys share make room for the slot: to sort words takes half of the time.
        let shared = (spread.0 ^ spread.1).leading_zeros().min(63);
        if shared >= u8::BITS {
            let mut words: Vec<u64> = keys.iter().map(|(key, slot)| key << shared | u64::from(*slot)).collect();
            words.sort_unstable();
            let above = spread.0 & !(u64::MAX >> shared);
            order.fill(words.into_iter().map(|word| (above | word >> shared, word as u8)));
        } else {
            let mut pairs = keys.to_vec();
            pairs.sort_unstable();
            order.fill(pairs.into_iter());
        }
        order
    }

    fn fill(&mut self, keys: impl Iterator<Item = (u64, u8)>) {
        for (number, (key, slot)) in keys.enumerate() {
            self.slots[number] = slot;
            if number.is_multiple_of(GROUP) {
                self.samples[number / GROUP] = key;
            }
        }
    }

    /// The first `count` slots: those of a leaf with so many keys.
    #[inline(always)]
    pub(crate) fn slots(&self, count: usize) -> &[u8] {
        &self.slots[..count]
    }

    /// Asks the processor for its lines, for a leaf with `count` keys. A hint.
    #[inline(always)]
    pub(crate) fn prefetch(&self, count: usize) {
        let first = std::ptr::from_ref(self).cast::<u8>();
        let bytes = size_of_val(&self.samples) + count;
        (0..bytes).step_by(LINE).for_each(|at| prefetch(first.wrapping_add(at)));
    }

    /// How many of a leaf's `count` keys are smaller than `key`.
    #[inline(always)]
    pub(crate) fn rank<M: Medium>(&self, op: &Op<'_, M>, leaf: u64, count: usize, key: u64) -> usize {
        let group = groups_below(&self.samples, key).saturating_sub(1) * GROUP;
        // All of them at once: they lie on lines of their own.
        let slots = slots_of(op, leaf);
        let below = |slot: &&u8| op.load(&slots[usize::from(**slot)][0], Relaxed) < key;
        group + self.slots[group..count.min(group + GROUP)].iter().filter(below).count()
    }
}

/// The entries of a front in the order of their keys, once a scan has asked for it. Costs a writer nothing before that.
#[derive(Debug, Default)]
#[repr(C)]
pub(crate) struct EntryOrder {
    is_kept: bool,
    sorted: Vec<Entry>,
    /// The key of every sixteenth of them.
    samples: Vec<u64>,
    /// What was put into the front since, in that order; a key may be there several times, and in `sorted`, too.
    recent: Vec<Entry>,
}

impl EntryOrder {
    /// Notes what is put into a front, which has `len` entries.
    #[inline(always)]
    pub(crate) fn note(&mut self, entry: Entry, len: usize) {
        if self.is_kept {
            self.keep(entry, len);
        }
    }

    #[inline(never)]
    fn keep(&mut self, entry: Entry, len: usize) {
        if self.recent.len() >= len.max(GROUP) {
            // Nobody scans any more: the next scan begins anew.
            *self = EntryOrder::default();
            return;
        }
        self.recent.push(entry);
    }

    /// Sorts what it has not yet, all entries of the front the first time.
    #[inline(always)]
    pub(crate) fn refresh(&mut self, all: impl Iterator<Item = Entry>) {
        if !self.is_kept {
            self.is_kept = true;
            self.recent.extend(all);
        }
        if !self.recent.is_empty() {
            self.merge_recent();
        }
    }

    #[cold]
    fn merge_recent(&mut self) {
        let EntryOrder { sorted, samples, recent, .. } = self;
        // Of one key the last one counts: a stable sort leaves it behind the others.
        recent.sort_by_key(|(key, _)| *key);
        recent.dedup_by(|later, kept| {
            let is_same = later.0 == kept.0;
            if is_same {
                *kept = *later;
            }
            is_same
        });
        recent.retain(|(key, value)| match sorted.binary_search_by_key(key, |(key, _)| *key) {
            Ok(at) => {
                sorted[at].1 = *value;
                false
            }
            Err(_) => true,
        });
        let mut end = sorted.len();
        sorted.resize(end + recent.len(), (0, None));
        // From the last on: those above an entry make room for it, and for all before it.
        for (number, entry) in recent.iter().enumerate().rev() {
            let at = sorted[..end].partition_point(|(key, _)| *key < entry.0);
            sorted.copy_within(at..end, at + number + 1);
            sorted[at + number] = *entry;
            end = at;
        }
        // Nothing before the first of them has moved.
        let first = (end / GROUP).min(samples.len());
        samples.truncate(first);
        samples.extend(sorted[first * GROUP..].iter().step_by(GROUP).map(|(key, _)| *key));
        recent.clear();
    }

    /// How many keys are smaller than `key`; after [`refresh`](Self::refresh).
    #[inline(always)]
    fn rank(&self, key: u64) -> usize {
        let group = groups_below(&self.samples, key).saturating_sub(1) * GROUP;
        let end = self.sorted.len().min(group + GROUP);
        group + self.sorted[group..end].iter().filter(|(other, _)| *other < key).count()
    }

    /// The entries from `key` on, ascending; after [`refresh`](Self::refresh).
    #[inline(always)]
    pub(crate) fn up_from(&self, key: u64) -> &[Entry] {
        &self.sorted[self.rank(key)..]
    }

    /// The entries up to `key`, ascending; after [`refresh`](Self::refresh).
    #[inline(always)]
    pub(crate) fn up_to(&self, key: u64) -> &[Entry] {
        &self.sorted[..key.checked_add(1).map_or(self.sorted.len(), |above| self.rank(above))]
    }

    /// Bytes of its lists.
    pub(crate) fn bytes(&self) -> usize {
        (self.sorted.capacity() + self.recent.capacity()) * size_of::<Entry>() + self.samples.capacity() * 8
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    #[test]
    fn slots_are_in_the_order_of_their_keys_however_far_apart_these_are() {
        let mut state = 1_u64;
        for bits in [0, 1, 9, 55, 56, 57, 63, 64] {
            for count in [1, 16, 17, 180, 256] {
                let mut keys: Vec<(u64, u8)> = (0..count)
                    .map(|slot| {
                        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
                        let low = if bits == 0 { 0 } else { (state ^ state << 32) >> (64 - bits) };
                        (
                            0xfedc_ba98_7654_3210_u64.checked_shr(bits).unwrap_or(0).checked_shl(bits).unwrap_or(0)
                                | low,
                            slot as u8,
                        )
                    })
                    .collect();
                let order = SlotOrder::of(&keys);
                keys.sort_unstable();
                let (slots, samples): (Vec<u8>, Vec<u64>) = keys.iter().map(|(key, slot)| (*slot, *key)).unzip();
                assert_eq!(order.slots(count), slots, "{bits} bits");
                assert!(samples.iter().step_by(GROUP).eq(&order.samples[..count.div_ceil(GROUP)]), "{bits} bits");
            }
        }
    }

    #[test]
    fn an_order_grows_by_what_is_noted() {
        let mut state = 1_u64;
        let mut random = move || {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            state >> 33
        };
        let edges = [0, 1, u64::MAX - 1, u64::MAX];
        for (most, step) in [(1, 1), (16, 1), (17, 3), (300, 1), (300, 7), (300, 100), (40, 900)] {
            let (mut order, mut model) = (EntryOrder::default(), BTreeMap::new());
            let mut rounds = 0;
            // What is noted is bounded once there is an order: so there are rounds after the first one, too.
            while model.len() < most || rounds < 3 {
                rounds += 1;
                for _ in 0..step {
                    let key = if random() % 16 == 0 { edges[random() as usize % 4] } else { random() % 1000 };
                    let value = (random() % 3 > 0).then(&mut random);
                    model.insert(key, value);
                    order.note((key, value), model.len());
                    assert!(order.recent.len() <= model.len().max(GROUP), "what is noted stays bounded");
                }
                let all: Vec<Entry> = model.iter().map(|(key, value)| (*key, *value)).collect();
                order.refresh(all.iter().rev().copied());
                for key in edges.into_iter().chain((0..4).map(|_| random() % 1000)) {
                    let (from, to) = (all.partition_point(|e| e.0 < key), all.partition_point(|e| e.0 <= key));
                    assert_eq!(order.up_from(key), &all[from..], "from {key}");
                    assert_eq!(order.up_to(key), &all[..to], "up to {key}");
                }
            }
        }
    }
}
