//! Logs whose entries are valid if their checksum is right.
//!
//! The checksum covers the payload and the number of the pass, so that an entry that an earlier pass left in the same
//! slot does not pass for a new one.
//!
//! | edge | how | a crash in between |
//! |---|---|---|
//! | digest and payload < return | `flush+fence` | the checksum is wrong, but for 1 in 2^bits: the entry was not appended |

use std::marker::PhantomData;
use std::sync::atomic::Ordering::Acquire;

use durix_pmem::{Medium, Op, Word};
use md5::Digest as _;
use zerocopy::IntoBytes;

use super::append::{AppendLog, Claim, Error, Region};
use super::ring::{Cursor, MAX_STRIDE, Ring, load_words, stride_words};

/// A checksum of words.
pub trait Checksum {
    /// As the paper calls it.
    const NAME: &'static str;
    /// Words of a digest, 1 to 3.
    const WORDS: usize;
    /// What it promises.
    const CLAIM: Claim;

    /// Whether this processor can do it.
    ///
    /// # Errors
    /// [`Error::Missing`] if not.
    fn available() -> Result<(), Error> {
        Ok(())
    }

    /// The digest of `pass` and `payload`; words beyond [`WORDS`](Checksum::WORDS) are zero.
    fn digest(pass: u64, payload: &[u64]) -> [u64; 3];
}

/// CRC-32C by the instruction of the processor.
#[derive(Clone, Copy, Debug)]
pub struct Crc32;

impl Checksum for Crc32 {
    const NAME: &'static str = "CRC32";
    const WORDS: usize = 1;
    const CLAIM: Claim = Claim::WordsLikely;

    #[cfg(target_arch = "x86_64")]
    fn available() -> Result<(), Error> {
        if is_x86_feature_detected!("sse4.2") { Ok(()) } else { Err(Error::Missing("crc32 instruction")) }
    }

    #[cfg(target_arch = "x86_64")]
    #[inline(always)]
    fn digest(pass: u64, payload: &[u64]) -> [u64; 3] {
        let mut crc = !0;
        for word in std::iter::once(&pass).chain(payload) {
            // As assembly, because the intrinsic cannot be inlined into code compiled for the baseline.
            // SAFETY: no log with this checksum exists where `available` has not found the instruction; it works on
            // registers alone.
            unsafe {
                std::arch::asm!("crc32 {0}, {1}", inout(reg) crc, in(reg) *word,
                    options(pure, nomem, nostack, preserves_flags));
            }
        }
        [!crc & 0xffff_ffff, 0, 0]
    }

    #[cfg(not(target_arch = "x86_64"))]
    #[inline(always)]
    fn digest(pass: u64, payload: &[u64]) -> [u64; 3] {
        let crc = crc32c::crc32c_append(crc32c::crc32c(pass.as_bytes()), payload.as_bytes());
        [u64::from(crc), 0, 0]
    }
}

/// CRC-64 (NVME) by carry-less multiplication.
#[derive(Clone, Copy, Debug)]
pub struct Crc64;

impl Checksum for Crc64 {
    const NAME: &'static str = "CRC64";
    const WORDS: usize = 1;
    const CLAIM: Claim = Claim::WordsLikely;

    #[inline(always)]
    fn digest(pass: u64, payload: &[u64]) -> [u64; 3] {
        // In one piece: a second call costs more than copying what goes before it.
        let mut words = [0; MAX_STRIDE];
        words[0] = pass;
        words[1..=payload.len()].copy_from_slice(payload);
        [crc_fast::checksum(crc_fast::CrcAlgorithm::Crc64Nvme, words[..=payload.len()].as_bytes()), 0, 0]
    }
}

/// MD5.
#[derive(Clone, Copy, Debug)]
pub struct Md5;

impl Checksum for Md5 {
    const NAME: &'static str = "MD5";
    const WORDS: usize = 2;
    const CLAIM: Claim = Claim::Words;

    fn digest(pass: u64, payload: &[u64]) -> [u64; 3] {
        let digest: [u8; 16] =
            md5::Md5::new().chain_update(pass.as_bytes()).chain_update(payload.as_bytes()).finalize().into();
        words_of(&digest)
    }
}

/// SHA-1.
#[derive(Clone, Copy, Debug)]
pub struct Sha1;

impl Checksum for Sha1 {
    const NAME: &'static str = "SHA1";
    const WORDS: usize = 3;
    const CLAIM: Claim = Claim::Words;

    fn digest(pass: u64, payload: &[u64]) -> [u64; 3] {
        let digest: [u8; 20] =
            sha1::Sha1::new().chain_update(pass.as_bytes()).chain_update(payload.as_bytes()).finalize().into();
        words_of(&digest)
    }
}

/// Bytes as words, filled up with zeroes.
fn words_of(bytes: &[u8]) -> [u64; 3] {
    let mut words = [0; 3];
    words.as_mut_bytes()[..bytes.len()].copy_from_slice(bytes);
    words
}

/// A log of checksummed entries: the digest, then the payload.
#[derive(Clone, Copy, Debug)]
pub struct Checksummed<C, const W: usize> {
    ring: Ring,
    oldest: Cursor,
    next: Cursor,
    live: u64,
    _checksum: PhantomData<C>,
}

impl<C: Checksum, const W: usize> Checksummed<C, W> {
    const STRIDE: usize = stride_words(C::WORDS + W);

    fn new(ring: Ring, start: Cursor) -> Self {
        Checksummed { ring, oldest: start, next: start, live: 0, _checksum: PhantomData }
    }

    #[inline(always)]
    fn parts<'s, M: Medium>(&self, op: &Op<'s, M>, slot: u64) -> (&'s [Word], &'s [Word]) {
        let words: &[Word; MAX_STRIDE] = self.ring.entry(op, slot);
        words[..C::WORDS + W].split_at(C::WORDS)
    }

    /// The payload at a place, if it is that of this pass.
    fn valid<M: Medium>(&self, op: &Op<'_, M>, at: Cursor) -> Option<[u64; W]> {
        let (digest, data) = self.parts(op, at.slot);
        let found: [u64; 3] = std::array::from_fn(|i| digest.get(i).map_or(0, |w| op.load(w, Acquire)));
        let payload = load_words(op, data);
        (found == C::digest(at.pass, &payload)).then_some(payload)
    }
}

impl<M: Medium, C: Checksum, const W: usize> AppendLog<M, W> for Checksummed<C, W> {
    const NAME: &'static str = C::NAME;
    const CLAIM: Claim = C::CLAIM;

    fn format(op: &Op<'_, M>, region: Region) -> Result<Self, Error> {
        C::available()?;
        let ring = Ring::new(region, Self::STRIDE, true)?;
        let start = Cursor { slot: 0, pass: 1 };
        ring.set_oldest(op, start);
        Ok(Self::new(ring, start))
    }

    fn recover(op: &Op<'_, M>, region: Region) -> Result<(Self, Vec<[u64; W]>), Error> {
        C::available()?;
        let ring = Ring::new(region, Self::STRIDE, true)?;
        let mut log = Self::new(ring, ring.oldest(op));
        let mut entries = Vec::new();
        while let Some(payload) = log.valid(op, log.next) {
            if log.live == ring.slots() {
                break;
            }
            entries.push(payload);
            log.next = ring.next(log.next);
            log.live += 1;
        }
        Ok((log, entries))
    }

    #[inline(always)]
    fn append(&mut self, op: &Op<'_, M>, payload: &[u64; W]) -> Result<(), Error> {
        if self.live == self.ring.slots() {
            return Err(Error::Full);
        }
        let digest = C::digest(self.next.pass, payload);
        let word = |i| if i < C::WORDS { digest[i] } else { payload[i - C::WORDS] };
        // PERSIST entry<return: flush+fence
        self.ring.put(op, self.next.slot, C::WORDS + W, word);
        op.fence();
        self.next = self.ring.next(self.next);
        self.live += 1;
        Ok(())
    }

    #[inline(always)]
    fn consume(&mut self, op: &Op<'_, M>, mut sink: impl FnMut(&[u64; W])) {
        while self.live > 0 {
            sink(&load_words(op, self.parts(op, self.oldest.slot).1));
            self.oldest = self.ring.next(self.oldest);
            self.live -= 1;
        }
        self.ring.set_oldest(op, self.oldest);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digests_are_those_of_the_standards() {
        let pass = u64::from_le_bytes(*b"12345678");
        let payload = [u64::from_le_bytes(*b"9abcdefg"), u64::from_le_bytes(*b"hijklmno")];
        let text = b"123456789abcdefghijklmno";
        assert_eq!(Crc32::digest(pass, &payload)[0], u64::from(crc32c::crc32c(text)));
        let crc64 = crc_fast::checksum(crc_fast::CrcAlgorithm::Crc64Nvme, text);
        assert_eq!(Crc64::digest(pass, &payload)[0], crc64);
        assert_eq!(Md5::digest(pass, &payload).as_bytes()[..16], md5::Md5::digest(text)[..]);
        assert_eq!(Sha1::digest(pass, &payload).as_bytes()[..20], sha1::Sha1::digest(text)[..]);
    }

    #[test]
    fn every_digest_depends_on_the_pass() {
        fn check<C: Checksum>() {
            assert_ne!(C::digest(1, &[0; 7]), C::digest(2, &[0; 7]), "{}", C::NAME);
            assert_ne!(C::digest(1, &[0; 7])[C::WORDS - 1], 0, "fresh memory is not a valid entry of {}", C::NAME);
        }
        check::<Crc32>();
        check::<Crc64>();
        check::<Md5>();
        check::<Sha1>();
    }
}
