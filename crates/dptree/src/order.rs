//! Sorted lists that scans use: the slots of a leaf and the entries of a front, in the order of their keys. Both keep every sixteenth key
//! beside the list: so a search waits for memory twice, and not once a halving.

use durix_pmem::{LINE, Medium, Op};

use crate::front::prefetch;
use crate::layout::MAX_SLOTS;
use crate::leaf::load_key;

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
    pub(crate) fn of(mut keys: Vec<(u64, u8)>) -> Self {
        keys.sort_unstable();
        let mut order = SlotOrder { samples: [u64::MAX; MAX_SLOTS / GROUP], slots: [0; MAX_SLOTS] };
        for (number, (key, slot)) in keys.into_iter().enumerate() {
            order.slots[number] = slot;
            if number.is_multiple_of(GROUP) {
                order.samples[number / GROUP] = key;
            }
        }
        order
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
        let below = |slot: &&u8| load_key(op, leaf, usize::from(**slot)) < key;
        group + self.slots[group..count.min(group + GROUP)].iter().filter(below).count()
    }
}

/// An entry of a front by its key: where it lies.
type Placed = (u64, u32);

/// The entries of a front in the order of their keys, once a scan has asked for it. Costs a writer nothing before that.
#[derive(Debug, Default)]
pub(crate) struct EntryOrder {
    is_kept: bool,
    sorted: Vec<Placed>,
    /// The key of every sixteenth of them.
    samples: Vec<u64>,
    /// Entries that came since, in the order of their arrival.
    recent: Vec<Placed>,
}

impl EntryOrder {
    /// Notes an entry of a new key.
    #[inline(always)]
    pub(crate) fn note(&mut self, key: u64, place: u32) {
        if self.is_kept {
            self.recent.push((key, place));
        }
    }

    /// Sorts what it has not yet, all entries the first time. There are `len`.
    #[inline(always)]
    pub(crate) fn refresh(&mut self, len: usize, all: impl Iterator<Item = Placed>) {
        if !self.is_kept {
            self.is_kept = true;
            self.recent.reserve_exact(len);
            self.recent.extend(all);
        }
        if !self.recent.is_empty() {
            self.merge_recent();
        }
    }

    #[cold]
    fn merge_recent(&mut self) {
        let EntryOrder { sorted, samples, recent, .. } = self;
        recent.sort_unstable();
        let mut end = sorted.len();
        sorted.resize(end + recent.len(), (0, 0));
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

    /// The places of the entries from `key` on, in ascending order; after [`refresh`](Self::refresh).
    #[inline(always)]
    pub(crate) fn up_from(&self, key: u64) -> impl Iterator<Item = Placed> + '_ {
        self.sorted[self.rank(key)..].iter().copied()
    }

    /// The places of the entries up to `key`, in descending order; after [`refresh`](Self::refresh).
    #[inline(always)]
    pub(crate) fn down_from(&self, key: u64) -> impl Iterator<Item = Placed> + '_ {
        let end = key.checked_add(1).map_or(self.sorted.len(), |above| self.rank(above));
        self.sorted[..end].iter().rev().copied()
    }

    /// Bytes of its lists.
    pub(crate) fn bytes(&self) -> usize {
        (self.sorted.capacity() + self.recent.capacity()) * size_of::<Placed>() + self.samples.capacity() * 8
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_order_grows_by_what_is_noted() {
        let mut state = 1_u64;
        let mut random = move || {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            state >> 33
        };
        for (most, step) in [(1, 1), (16, 1), (17, 3), (300, 1), (300, 7), (300, 100)] {
            let (mut order, mut model) = (EntryOrder::default(), std::collections::BTreeMap::new());
            let edges = [0, 1, u64::MAX - 1, u64::MAX];
            while model.len() < most {
                for _ in 0..step {
                    let key = if random() % 16 == 0 { edges[random() as usize % 4] } else { random() % 1000 };
                    let place = model.len() as u32;
                    if let std::collections::btree_map::Entry::Vacant(new) = model.entry(key) {
                        new.insert(place);
                        order.note(key, place);
                    }
                }
                let all = || model.iter().map(|(key, place)| (*key, *place));
                order.refresh(model.len(), all());
                for key in edges.into_iter().chain((0..4).map(|_| random() % 1000)) {
                    assert!(order.up_from(key).eq(all().filter(|(k, _)| *k >= key)), "from {key}");
                    assert!(order.down_from(key).eq(all().rev().filter(|(k, _)| *k <= key)), "down from {key}");
                }
            }
        }
    }
}
