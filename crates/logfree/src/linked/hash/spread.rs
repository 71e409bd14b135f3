//! How keys are spread over buckets.

const FACTOR: u64 = 0xD6E8_FEB8_6659_FD93;
/// The factor that undoes [`FACTOR`], modulo 2^64.
const INVERSE: u64 = inverse(FACTOR);

/// Newton's iteration doubles the number of right bits, three at first.
const fn inverse(odd: u64) -> u64 {
    let (mut inverse, mut round) = (odd, 0);
    while round < 5 {
        inverse = inverse.wrapping_mul(2u64.wrapping_sub(odd.wrapping_mul(inverse)));
        round += 1;
    }
    inverse
}

/// Spreads keys over buckets; a bijection. It decides where keys lie in the pool, so it never changes.
#[inline(always)]
pub(super) fn spread(key: u64) -> u64 {
    let mut h = key;
    h = (h ^ h >> 32).wrapping_mul(FACTOR);
    h = (h ^ h >> 32).wrapping_mul(FACTOR);
    h ^ h >> 32
}

/// The key that was spread.
#[inline(always)]
pub(crate) fn gather(spread: u64) -> u64 {
    let mut h = spread;
    h = (h ^ h >> 32).wrapping_mul(INVERSE);
    h = (h ^ h >> 32).wrapping_mul(INVERSE);
    h ^ h >> 32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_come_back() {
        // It decides where keys lie in the pool.
        assert_eq!([spread(0), spread(1), spread(2)], [0, 0x4179_B061_E0C0_E0D0, 0x1C99_6330_5FEB_C252]);
        let mut key = 1u64;
        for low in 0..1000 {
            key = key.wrapping_mul(0x9E37_79B9_7F4A_7C15).wrapping_add(low);
            for key in [key, low, u64::MAX - low, 1 << (low % 64)] {
                assert_eq!(gather(spread(key)), key);
                assert_eq!(spread(gather(key)), key);
            }
        }
    }
}
