//! The keys and values that threads meet on.

use std::collections::HashMap;

use durix::{Lengths, Limits};
use durix_pmem::testing::mix;

/// Keys of their own that a thread inserts at a time.
pub(crate) const OWN: u64 = 40;

/// What keys and values look like in an index with some limits.
#[derive(Clone, Debug)]
pub(crate) struct Keys {
    words: bool,
    short_values: bool,
    /// The keys that all threads share, and the number of each.
    pub(crate) shared: Vec<Vec<u8>>,
    numbers: HashMap<Vec<u8>, usize>,
}

impl Keys {
    pub(crate) fn new(limits: Limits, count: u64) -> Self {
        let words = matches!(limits.key, Lengths::Exactly(_));
        let short_values = matches!(limits.value, Lengths::Exactly(_));
        let shared: Vec<_> = (0..count).map(|number| if words { word(number, 0) } else { text(number, 0) }).collect();
        let numbers = shared.iter().cloned().zip(0..).collect();
        Keys { words, short_values, shared, numbers }
    }

    /// The number of a key that all share.
    pub(crate) fn number(&self, key: &[u8]) -> Option<usize> {
        self.numbers.get(key).copied()
    }

    /// A key of a thread's own, next to one that all share.
    pub(crate) fn own(&self, thread: usize, number: u64) -> Vec<u8> {
        let (beside, salt) =
            (number % self.shared.len() as u64, 1 + thread as u64 + 64 * (number / self.shared.len() as u64));
        if self.words { word(beside, salt) } else { text(beside, salt) }
    }

    /// The bytes of a value.
    pub(crate) fn value(&self, value: u64) -> Vec<u8> {
        let mut bytes = value.to_be_bytes().to_vec();
        if !self.short_values {
            let random = mix(value);
            let len = match random % 16 {
                0 => random >> 8 & 0xfff,
                1..4 => random >> 8 & 0xff,
                4..10 => random >> 8 & 0x1f,
                _ => 0,
            };
            bytes.extend((0..len).map(|at| (random >> (at % 7 * 8)) as u8));
        }
        bytes
    }

    /// The number of a value, if these are its bytes.
    pub(crate) fn value_of(&self, bytes: &[u8]) -> Option<u64> {
        let value = u64::from_be_bytes(*bytes.first_chunk()?);
        (self.value(value) == bytes).then_some(value)
    }
}

fn word(number: u64, salt: u64) -> Vec<u8> {
    (number << 16 | salt).to_be_bytes().to_vec()
}

/// Short ones and long ones, with beginnings in common.
fn text(number: u64, salt: u64) -> Vec<u8> {
    let name = if salt == 0 { format!("{number}") } else { format!("{number}/{salt}") };
    match number % 5 {
        0 => name.into_bytes(),
        1 => format!("in one slice {name}").into_bytes(),
        2 => format!("in one slice and then in one more {name}").into_bytes(),
        3 => [&b"12345678".repeat(1 + number as usize % 3)[..], name.as_bytes()].concat(),
        _ => format!("{name}{}", "-".repeat(number as usize % 4 * 20)).into_bytes(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_and_values_are_told_apart() {
        for entry in durix::kind::kinds::<durix::Hardware>() {
            let keys = Keys::new(entry.limits, 64);
            let mut all: Vec<_> = keys.shared.clone();
            all.extend(
                (0..4).flat_map(|thread| (0..200).map(move |number| (thread, number))).map(|(t, n)| keys.own(t, n)),
            );
            let count = all.len();
            assert!((0..64).all(|number| keys.number(&keys.shared[number]) == Some(number)));
            assert!(all[64..].iter().all(|key| keys.number(key).is_none()));
            all.sort();
            all.dedup();
            assert_eq!(all.len(), count);
            for value in 0..500 {
                let bytes = keys.value(mix(value));
                entry.limits.check(&all[value as usize], Some(&bytes)).unwrap();
                assert_eq!(keys.value_of(&bytes), Some(mix(value)));
                assert!(keys.value_of(&bytes[1..]).is_none_or(|found| found != mix(value)));
            }
        }
    }
}
