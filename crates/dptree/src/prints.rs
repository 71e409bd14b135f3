//! Where the keys of a leaf lie: a table in DRAM whose buckets are cache lines. A fingerprint of two bytes a key, compared all at a
//! time, leads to the slot: so a lookup touches one line of the table, and one line of the leaf.

/// Places of a bucket.
const PLACES: usize = 21;
/// Buckets of a table: at most 16 keys a bucket on average.
const BUCKETS: usize = 16;
/// In [`Bucket::len`]: a key whose home this is lies in a later bucket.
const OVERFLOWS: u8 = 0x80;

/// One cache line: fingerprints, and the slots that they stand for.
#[derive(Clone, Copy, Debug)]
#[repr(C, align(64))]
struct Bucket {
    prints: [u16; PLACES],
    slots: [u8; PLACES],
    /// Places that are taken, and [`OVERFLOWS`].
    len: u8,
}

const _: () = assert!(size_of::<Bucket>() == 64);

/// The slots of a leaf by their keys.
#[derive(Clone, Debug)]
pub struct Table {
    buckets: [Bucket; BUCKETS],
}

/// Two bytes of a key's hash.
#[inline(always)]
fn print_of(hash: u64) -> u16 {
    (hash >> 48) as u16
}

/// The bucket where a search begins. Other bits than those of the fingerprint.
#[inline(always)]
fn home_of(hash: u64) -> usize {
    (hash >> 28) as usize % BUCKETS
}

impl Bucket {
    const EMPTY: Bucket = Bucket { prints: [0; PLACES], slots: [0; PLACES], len: 0 };

    #[inline(always)]
    fn len(&self) -> usize {
        usize::from(self.len & !OVERFLOWS)
    }

    /// The places whose fingerprint is `print`: a bit each.
    #[inline(always)]
    fn equal(&self, print: u16) -> u32 {
        #[cfg(target_arch = "x86_64")]
        let bits = self.sse2(print);
        #[cfg(not(target_arch = "x86_64"))]
        let bits = self.portable(print);
        bits & ((1 << self.len()) - 1)
    }

    /// As [`equal`](Self::equal), one after the other.
    #[cfg_attr(target_arch = "x86_64", allow(dead_code, reason = "the tests compare the other version with it"))]
    fn portable(&self, print: u16) -> u32 {
        self.prints.iter().enumerate().fold(0, |bits, (place, found)| bits | u32::from(*found == print) << place)
    }

    /// As [`equal`](Self::equal), by instructions that every x86-64 has. The bits from 21 on mean nothing.
    #[cfg(target_arch = "x86_64")]
    #[inline(always)]
    fn sse2(&self, print: u16) -> u32 {
        use std::arch::x86_64::{
            __m128i, _mm_cmpeq_epi16, _mm_load_si128, _mm_movemask_epi8, _mm_packs_epi16, _mm_set1_epi16,
            _mm_setzero_si128,
        };
        let first = std::ptr::from_ref(self).cast::<__m128i>();
        // SAFETY: SSE2 belongs to x86-64. The three loads read the first 48 of the bucket's 64 bytes, which are aligned to 64.
        unsafe {
            let wanted = _mm_set1_epi16(print as i16);
            let low = _mm_cmpeq_epi16(_mm_load_si128(first), wanted);
            let middle = _mm_cmpeq_epi16(_mm_load_si128(first.add(1)), wanted);
            let high = _mm_cmpeq_epi16(_mm_load_si128(first.add(2)), wanted);
            let low = _mm_movemask_epi8(_mm_packs_epi16(low, middle)) as u32;
            low | (_mm_movemask_epi8(_mm_packs_epi16(high, _mm_setzero_si128())) as u32) << 16
        }
    }
}

impl Table {
    /// A table without keys.
    pub const EMPTY: Table = Table { buckets: [Bucket::EMPTY; BUCKETS] };

    /// The line where a search in a table begins.
    #[inline(always)]
    pub fn line_of(table: *const Table, hash: u64) -> *const u8 {
        table.cast::<u8>().wrapping_add(home_of(hash) * size_of::<Bucket>())
    }

    /// The first slot that `is_it` accepts, of those whose fingerprint fits.
    #[inline(always)]
    pub fn find<T>(&self, hash: u64, mut is_it: impl FnMut(usize) -> Option<T>) -> Option<T> {
        let (home, print) = (home_of(hash), print_of(hash));
        for step in 0..BUCKETS {
            let bucket = &self.buckets[(home + step) % BUCKETS];
            let mut found = bucket.equal(print);
            while found != 0 {
                let answer = is_it(usize::from(bucket.slots[found.trailing_zeros() as usize]));
                if answer.is_some() {
                    return answer;
                }
                found &= found - 1;
            }
            if bucket.len & OVERFLOWS == 0 {
                return None;
            }
        }
        None
    }

    /// Adds a key's slot, of which there are at most 256.
    #[inline(always)]
    pub fn add(&mut self, hash: u64, slot: usize) {
        let home = home_of(hash);
        for step in 0..BUCKETS {
            let bucket = &mut self.buckets[(home + step) % BUCKETS];
            let place = bucket.len();
            if place < PLACES {
                bucket.prints[place] = print_of(hash);
                bucket.slots[place] = slot as u8;
                bucket.len += 1;
                return;
            }
            bucket.len |= OVERFLOWS;
        }
        unreachable!("a table has room for more keys than a leaf has slots");
    }

    /// The place of a key's slot, which is in the table.
    fn place_of(&mut self, hash: u64, slot: usize) -> (&mut Bucket, usize) {
        let (home, print) = (home_of(hash), print_of(hash));
        for step in 0..BUCKETS {
            let at = (home + step) % BUCKETS;
            let mut found = self.buckets[at].equal(print);
            while found != 0 {
                let place = found.trailing_zeros() as usize;
                if usize::from(self.buckets[at].slots[place]) == slot {
                    return (&mut self.buckets[at], place);
                }
                found &= found - 1;
            }
        }
        unreachable!("slot {slot} was found in the table before");
    }

    /// Says that a key lies in another slot now.
    pub fn move_to(&mut self, hash: u64, from: usize, to: usize) {
        let (bucket, place) = self.place_of(hash, from);
        bucket.slots[place] = to as u8;
    }

    /// Removes a key's slot.
    pub fn remove(&mut self, hash: u64, slot: usize) {
        let (bucket, place) = self.place_of(hash, slot);
        let last = bucket.len() - 1;
        bucket.prints[place] = bucket.prints[last];
        bucket.slots[place] = bucket.slots[last];
        bucket.len -= 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn random() -> impl FnMut() -> u64 {
        let mut state = 1u64;
        move || {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            state
        }
    }

    #[test]
    fn both_versions_agree() {
        let mut random = random();
        for round in 0..2000 {
            let prints = std::array::from_fn(|_| {
                let state = random();
                match state >> 61 {
                    0 | 1 => 0,
                    2 => 0x8000,
                    3 => 0xffff,
                    4 => 7,
                    _ => (state >> 40) as u16,
                }
            });
            let len = (round % (PLACES + 1)) as u8;
            let bucket = Bucket { prints, slots: [0xff; PLACES], len };
            for print in [0, 7, 0x8000, 0xffff, 0x7fff, prints[20], prints[16], prints[7]] {
                let expected = bucket.portable(print) & ((1 << len) - 1);
                assert_eq!(bucket.equal(print), expected, "{print:#x} in {prints:x?}");
            }
        }
    }

    #[test]
    fn slots_are_found_moved_and_removed_in_crowded_tables() {
        let mut random = random();
        for crowd in [u64::MAX, 0xffff_ffff_0fff_ffff, 0x0001_ffff_3fff_ffff] {
            let mut table = Table::EMPTY;
            let mut hashes: Vec<u64> = (0..256).map(|_| random() & crowd).collect();
            hashes.iter().enumerate().for_each(|(slot, hash)| table.add(*hash, slot));
            let is_there =
                |table: &Table, hash, wanted| table.find(hash, |slot| (slot == wanted).then_some(())).is_some();
            assert!(hashes.iter().enumerate().all(|(slot, hash)| is_there(&table, *hash, slot)));
            hashes.iter().enumerate().take(100).for_each(|(slot, hash)| table.remove(*hash, slot));
            table.move_to(hashes[200], 200, 0);
            assert!(is_there(&table, hashes[200], 0) && !is_there(&table, hashes[200], 200));
            table.move_to(hashes[200], 0, 200);
            for (slot, hash) in hashes.iter_mut().enumerate().take(100) {
                assert!(!is_there(&table, *hash, slot));
                *hash = random() & crowd;
                table.add(*hash, slot);
            }
            assert!(hashes.iter().enumerate().all(|(slot, hash)| is_there(&table, *hash, slot)));
        }
    }
}
