//! A transaction's writes, in volatile memory: a word once, with its last value.

/// Writes that are looked through one by one; beyond them an index is kept.
const FEW: usize = 8;

/// Offsets and values, in the order of the first write to each.
#[derive(Debug, Default)]
pub(super) struct Buffer {
    writes: Vec<[u64; 2]>,
    /// Places in `writes`, plus one, by hash of the offset; a power of two of them, at most half full. Empty while there are few.
    index: Vec<u32>,
}

impl Buffer {
    pub(super) fn writes(&self) -> &[[u64; 2]] {
        &self.writes
    }

    #[inline]
    pub(super) fn get(&self, off: u64) -> Option<u64> {
        self.find(off).map(|at| self.writes[at][1])
    }

    #[inline]
    pub(super) fn set(&mut self, off: u64, value: u64) {
        match self.find(off) {
            Some(at) => self.writes[at][1] = value,
            None => {
                self.writes.push([off, value]);
                self.added();
            }
        }
    }

    #[inline]
    fn find(&self, off: u64) -> Option<usize> {
        if self.index.is_empty() {
            return self.writes.iter().position(|write| write[0] == off);
        }
        let mut at = self.slot(off);
        loop {
            match self.index[at] {
                0 => return None,
                place if self.writes[place as usize - 1][0] == off => return Some(place as usize - 1),
                _ => at = (at + 1) & (self.index.len() - 1),
            }
        }
    }

    fn slot(&self, off: u64) -> usize {
        ((off >> 3).wrapping_mul(0x9E37_79B9_7F4A_7C15) >> (64 - self.index.len().trailing_zeros())) as usize
    }

    /// Keeps the index up with the write that was added.
    fn added(&mut self) {
        let count = self.writes.len();
        if count <= FEW {
            return;
        }
        if count * 2 > self.index.len() {
            self.index = vec![0; (count * 4).next_power_of_two()];
            (0..count).for_each(|place| self.enter(place));
        } else {
            self.enter(count - 1);
        }
    }

    fn enter(&mut self, place: usize) {
        let mut at = self.slot(self.writes[place][0]);
        while self.index[at] != 0 {
            at = (at + 1) & (self.index.len() - 1);
        }
        self.index[at] = place as u32 + 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::HashMap;

    proptest! {
        #[test]
        fn it_is_a_map(writes in prop::collection::vec((0..60u64, any::<u64>()), 0..200)) {
            let (mut buffer, mut model) = (Buffer::default(), HashMap::new());
            for (word, value) in writes {
                buffer.set(word * 8, value);
                model.insert(word * 8, value);
                prop_assert_eq!(buffer.get(word * 8), Some(value));
            }
            for word in 0..60u64 {
                prop_assert_eq!(buffer.get(word * 8), model.get(&(word * 8)).copied());
            }
            let all: HashMap<u64, u64> = buffer.writes().iter().map(|w| (w[0], w[1])).collect();
            prop_assert_eq!(all.len(), buffer.writes().len());
            prop_assert_eq!(all, model);
        }
    }
}
