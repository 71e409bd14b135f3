//! The log of Mnemosyne (ASPLOS'11): one bit of each word tells whether the word was written in this pass.
//!
//! An entry is a stream of bits, 63 of them in each word, so both appending and reading shift every word.
//!
//! | edge | how | a crash in between |
//! |---|---|---|
//! | words of an entry < return | `flush+fence` | words of the old sense are left: the entry was not appended |
//! | old sense in all words of a torn entry < next append | `flush+fence` in `recover` | found torn again |

use std::sync::atomic::Ordering::{Acquire, Relaxed};

use durix_pmem::{Medium, Op, Word};

use super::append::{AppendLog, Claim, Error, Region};
use super::ring::{Cursor, MAX_STRIDE, Ring, stride_words};

/// The tornbit log.
#[derive(Clone, Copy, Debug)]
pub struct Tornbit<const W: usize> {
    ring: Ring,
    oldest: Cursor,
    next: Cursor,
    live: u64,
}

const TORN_BIT: u32 = 63;

impl<const W: usize> Tornbit<W> {
    /// Words that the payload needs at 63 bits each.
    const WORDS: usize = (W * 64).div_ceil(63);
    const STRIDE: usize = stride_words(Self::WORDS);

    /// The torn bit, in place, of words written in a pass: 1 in the first.
    #[inline(always)]
    fn sense(pass: u64) -> u64 {
        (pass & 1) << TORN_BIT
    }

    #[inline(always)]
    fn words<'s, M: Medium>(&self, op: &Op<'s, M>, slot: u64) -> &'s [Word] {
        let words: &[Word; MAX_STRIDE] = self.ring.entry(op, slot);
        &words[..Self::WORDS]
    }

    /// Word `i` of the stream, bits `63 i` to `63 i + 62` of the payload, torn bit zero: the last `i` bits of payload word
    /// `i - 1`, then the first of word `i`. That this holds is why entries have at most 62 words.
    #[inline(always)]
    fn encode(payload: &[u64; W], i: usize) -> u64 {
        const { assert!(W <= 62) };
        let low = if i > 0 { payload[i - 1] >> (64 - i) } else { 0 };
        let high = if i < W { payload[i] << i } else { 0 };
        (low | high) & !(1 << TORN_BIT)
    }

    /// Payload word `j`: bits `j` to 62 of word `j` of the stream, then the first `j + 1` of the next.
    #[inline(always)]
    fn decode(stream: &[u64; MAX_STRIDE], j: usize) -> u64 {
        (stream[j] & !(1 << TORN_BIT)) >> j | stream[j + 1] << (63 - j)
    }

    #[inline(always)]
    fn read<M: Medium>(&self, op: &Op<'_, M>, slot: u64) -> [u64; W] {
        let words = self.words(op, slot);
        let mut stream = [0; MAX_STRIDE];
        for (value, word) in stream.iter_mut().zip(words) {
            *value = op.load(word, Relaxed);
        }
        std::array::from_fn(|j| Self::decode(&stream, j))
    }

    fn is_valid<M: Medium>(&self, op: &Op<'_, M>, at: Cursor) -> bool {
        let sense = Self::sense(at.pass);
        self.words(op, at.slot).iter().all(|w| op.load(w, Acquire) & (1 << TORN_BIT) == sense)
    }

    /// Gives all words of a torn entry the sense of the pass before, so that none of them can complete a later one.
    fn scrub<M: Medium>(&self, op: &Op<'_, M>, at: Cursor) {
        let old = Self::sense(at.pass) ^ (1 << TORN_BIT);
        self.ring.put(op, at.slot, Self::WORDS, |_| old);
        op.fence();
    }
}

impl<M: Medium, const W: usize> AppendLog<M, W> for Tornbit<W> {
    const NAME: &'static str = "tornbit";
    const CLAIM: Claim = Claim::Words;

    fn format(op: &Op<'_, M>, region: Region) -> Result<Self, Error> {
        let ring = Ring::new(region, Self::STRIDE, true)?;
        let start = Cursor { slot: 0, pass: 1 };
        ring.set_oldest(op, start);
        Ok(Tornbit { ring, oldest: start, next: start, live: 0 })
    }

    fn recover(op: &Op<'_, M>, region: Region) -> Result<(Self, Vec<[u64; W]>), Error> {
        let ring = Ring::new(region, Self::STRIDE, true)?;
        let start = ring.oldest(op);
        let mut log = Tornbit { ring, oldest: start, next: start, live: 0 };
        let mut entries = Vec::new();
        while log.live < ring.slots() && log.is_valid(op, log.next) {
            entries.push(log.read(op, log.next.slot));
            log.next = ring.next(log.next);
            log.live += 1;
        }
        if log.live < ring.slots() {
            log.scrub(op, log.next);
        }
        Ok((log, entries))
    }

    #[inline(always)]
    fn append(&mut self, op: &Op<'_, M>, payload: &[u64; W]) -> Result<(), Error> {
        if self.live == self.ring.slots() {
            return Err(Error::Full);
        }
        let sense = Self::sense(self.next.pass);
        // PERSIST words<return: flush+fence
        self.ring.put(op, self.next.slot, Self::WORDS, |i| Self::encode(payload, i) | sense);
        op.fence();
        self.next = self.ring.next(self.next);
        self.live += 1;
        Ok(())
    }

    #[inline(always)]
    fn consume(&mut self, op: &Op<'_, M>, mut sink: impl FnMut(&[u64; W])) {
        while self.live > 0 {
            sink(&self.read(op, self.oldest.slot));
            self.oldest = self.ring.next(self.oldest);
            self.live -= 1;
        }
        self.ring.set_oldest(op, self.oldest);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn round_trip<const W: usize>(payload: [u64; W]) {
        let mut stream = [0; MAX_STRIDE];
        for (i, word) in stream[..Tornbit::<W>::WORDS].iter_mut().enumerate() {
            *word = Tornbit::<W>::encode(&payload, i);
            assert_eq!(*word >> TORN_BIT, 0, "the torn bit is left free");
            *word |= (i as u64 & 1) << TORN_BIT;
        }
        assert_eq!(std::array::from_fn(|j| Tornbit::<W>::decode(&stream, j)), payload);
    }

    proptest! {
        #[test]
        fn every_payload_survives_the_conversion(words in prop::collection::vec(any::<u64>(), 62)) {
            round_trip::<3>(words[..3].try_into().unwrap());
            round_trip::<7>(words[..7].try_into().unwrap());
            round_trip::<14>(words[..14].try_into().unwrap());
            round_trip::<28>(words[..28].try_into().unwrap());
            round_trip::<56>(words[..56].try_into().unwrap());
            round_trip::<62>(words[..62].try_into().unwrap());
        }
    }
}
