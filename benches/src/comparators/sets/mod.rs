//! The set of section 5.4 of OOPSLA'17 and its comparators, behind one trait.

pub mod chained;
pub mod ours;

use durix_pmem::{Medium, Op};

/// A durable map from 64-bit keys to values of one length.
pub trait Map<M: Medium> {
    /// As the paper calls it.
    const NAME: &'static str;

    /// Maps `key` to `value`; durable on return.
    fn put(&mut self, op: &Op<'_, M>, key: u64, value: &[u8]);

    /// Replaces the content of `value` by that of `key`. Returns whether the key is there.
    fn get(&self, op: &Op<'_, M>, key: u64, value: &mut Vec<u8>) -> bool;
}

/// Bytes of a value with which a key of 8 bytes fills `lines` lines in both: 48 bytes of payload in the first line, 56 in every
/// other; of several lines our checksum takes 8.
/// (The comparators have as much: a pointer and the lengths take what meta word and lengths take in ours. They have no checksum, and 8
/// bytes free.)
pub const fn value_bytes(lines: usize) -> usize {
    let sum = if lines > 1 { 8 } else { 0 };
    40 + 56 * (lines - 1) - sum
}

#[cfg(test)]
mod tests {
    use super::chained::Chained;
    use super::ours::Ours;
    use super::*;
    use durix_pmem::backing::HeapBacking;
    use durix_pmem::{Counting, Hardware, Mapping, PoolOptions};
    use std::collections::HashMap;

    fn behaves_like_a_map<M: Medium, S: Map<M>>(map: &mut S, op: &Op<'_, M>, lines: usize) {
        let mut model = HashMap::new();
        let (mut found, mut seed) = (Vec::new(), 1u64);
        for step in 0..3000u64 {
            seed = seed.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(1);
            let key = (seed >> 40) % 300;
            let value = vec![step as u8; value_bytes(lines)];
            map.put(op, key, &value);
            model.insert(key, value);
            let other = (seed >> 20) % 300;
            assert_eq!(map.get(op, other, &mut found), model.contains_key(&other));
            assert_eq!(found, model.get(&other).cloned().unwrap_or_default(), "{} after {step}", S::NAME);
        }
    }

    #[test]
    fn all_sets_behave_like_a_map_at_every_entry_size() {
        for lines in [1, 2, 4, 16] {
            let mapping = Mapping::heap(2 << 20, Hardware::PAGE_CACHE);
            let mut session = mapping.session().unwrap();
            let op = session.enter().unwrap();
            behaves_like_a_map(&mut Chained::<false>::new(&mapping, 64, 300, lines), &op, lines);
            let bytes = 64 + Chained::<true>::bytes(300, lines) as usize;
            let mapping = Mapping::heap(bytes.next_power_of_two(), Hardware::PAGE_CACHE);
            let mut session = mapping.session().unwrap();
            let op = session.enter().unwrap();
            behaves_like_a_map(&mut Chained::<true>::new(&mapping, 64, 300, lines), &op, lines);
            let pool = PoolOptions::new().create_on(HeapBacking::new(64 << 20), Hardware::PAGE_CACHE).unwrap();
            let mut session = pool.session().unwrap();
            let mut ours = Ours::new(&pool).unwrap();
            behaves_like_a_map(&mut ours, &session.enter().unwrap(), lines);
        }
    }

    /// The paper's claim in exact numbers: one round trip for an update instead of two.
    #[test]
    fn an_update_of_ours_takes_one_fence_and_one_of_the_comparator_two() {
        fn comparator<const SHARED: bool>() {
            let counting = Counting::new(Hardware::PAGE_CACHE);
            let mapping = Mapping::heap(1 << 20, counting);
            let mut session = mapping.session().unwrap();
            let op = session.enter().unwrap();
            let mut chained = Chained::<SHARED>::new(&mapping, 64, 10, 2);
            let value = [7; value_bytes(2)];
            chained.put(&op, 1, &value);
            let before = counting.counts();
            chained.put(&op, 1, &value);
            let counts = counting.counts() - before;
            assert_eq!((counts.write_backs, counts.fences, counts.implicit_drains), (3, 2, 0));
        }
        comparator::<true>();
        comparator::<false>();
        let value = [7; value_bytes(2)];

        let counting = Counting::new(Hardware::PAGE_CACHE);
        let pool = PoolOptions::new().create_on(HeapBacking::new(64 << 20), counting).unwrap();
        let mut session = pool.session().unwrap();
        let mut ours = Ours::new(&pool).unwrap();
        let op = session.enter().unwrap();
        (0..100).for_each(|_| ours.put(&op, 1, &value));
        let before = counting.counts();
        (0..100).for_each(|_| ours.put(&op, 1, &value));
        let counts = counting.counts() - before;
        assert_eq!((counts.fences, counts.implicit_drains), (100, 0));
        assert_eq!(counts.write_backs, 200);
    }
}
