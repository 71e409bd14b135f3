//! Logs whose entries are linked by a next pointer: TwoRounds, the paper's baseline, and the log of Atlas.
//!
//! | edge | how | a crash in between |
//! |---|---|---|
//! | entry < next pointer of its predecessor | `flush+fence`; Atlas: `same line` where the two share one | the entry is not linked: it was not appended |
//! | next pointer < return | `flush+fence` | the entry may or may not be linked |
//!
//! The head names the last entry that was discarded, whose next pointer leads to the oldest one; an entry's own next
//! pointer is zeroed with its payload, so that nothing of an earlier pass is followed.

use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use durix_pmem::{Medium, Op, Word};

use super::append::{AppendLog, Claim, Error, Region};
use super::ring::{Cursor, MAX_STRIDE, Ring, load_words, stride_words};

/// Write the data and flush it, then link it by its predecessor's next pointer and flush that. Two round trips.
pub type TwoRounds<const W: usize> = Linked<false, W>;

/// The log of Atlas: as [`TwoRounds`], but one round trip is enough where predecessor and entry share a line, which is
/// every second time for the 32 bytes of its entries.
pub type Atlas<const W: usize> = Linked<true, W>;

/// A linked log of entries with one word of metadata. `SAME_LINE`: whether it makes use of a shared line.
#[derive(Clone, Copy, Debug)]
pub struct Linked<const SAME_LINE: bool, const W: usize> {
    ring: Ring,
    /// The last entry that was discarded.
    before: u64,
    /// The newest entry; `before` if there is none.
    newest: u64,
}

impl<const SAME_LINE: bool, const W: usize> Linked<SAME_LINE, W> {
    const STRIDE: usize = stride_words(1 + W);

    #[inline(always)]
    fn parts<'s, M: Medium>(&self, op: &Op<'s, M>, slot: u64) -> (&'s Word, &'s [Word]) {
        let words: &[Word; MAX_STRIDE] = self.ring.entry(op, slot);
        (&words[0], &words[1..1 + W])
    }

    /// The slot after `slot`.
    #[inline(always)]
    fn after(&self, slot: u64) -> u64 {
        if slot + 1 == self.ring.slots() { 0 } else { slot + 1 }
    }

    /// Whether two successive slots lie in one line.
    #[inline(always)]
    fn share_a_line(first: u64, second: u64) -> bool {
        Self::STRIDE == 4 && first & !1 == second & !1
    }
}

impl<M: Medium, const SAME_LINE: bool, const W: usize> AppendLog<M, W> for Linked<SAME_LINE, W> {
    const NAME: &'static str = if SAME_LINE { "AtlasLog" } else { "TwoRounds" };
    const CLAIM: Claim = Claim::SecondTrip;

    fn format(op: &Op<'_, M>, region: Region) -> Result<Self, Error> {
        let ring = Ring::new(region, Self::STRIDE, !SAME_LINE)?;
        ring.set_oldest(op, Cursor { slot: 0, pass: 1 });
        Ok(Linked { ring, before: 0, newest: 0 })
    }

    fn recover(op: &Op<'_, M>, region: Region) -> Result<(Self, Vec<[u64; W]>), Error> {
        let ring = Ring::new(region, Self::STRIDE, !SAME_LINE)?;
        let before = ring.oldest(op).slot;
        let mut log = Linked { ring, before, newest: before };
        let mut entries = Vec::new();
        while entries.len() as u64 + 1 < ring.slots() {
            let next = op.load(log.parts(op, log.newest).0, Acquire);
            // Zero ends the list; anything but the following slot cannot have been written by `append`.
            if next != log.after(log.newest) + 1 {
                break;
            }
            log.newest = next - 1;
            entries.push(load_words(op, log.parts(op, log.newest).1));
        }
        Ok((log, entries))
    }

    #[inline(always)]
    fn append(&mut self, op: &Op<'_, M>, payload: &[u64; W]) -> Result<(), Error> {
        let slot = self.after(self.newest);
        if slot == self.before {
            return Err(Error::Full);
        }
        let (link, _) = self.parts(op, self.newest);
        let word = |i| if i == 0 { 0 } else { payload[i - 1] };
        if SAME_LINE && Self::share_a_line(self.newest, slot) {
            // PERSIST entry<link: same line
            let words: &[Word; MAX_STRIDE] = self.ring.entry(op, slot);
            words[..1 + W].iter().enumerate().for_each(|(i, to)| op.store(to, word(i), Relaxed));
        } else {
            // PERSIST entry<link: flush+fence
            self.ring.put(op, slot, 1 + W, word);
            op.fence();
        }
        op.store(link, slot + 1, Release);
        // PERSIST link<return: flush+fence
        op.write_back(link);
        op.fence();
        self.newest = slot;
        Ok(())
    }

    #[inline(always)]
    fn consume(&mut self, op: &Op<'_, M>, mut sink: impl FnMut(&[u64; W])) {
        while self.before != self.newest {
            // Through the pointer, as any reader of a linked log.
            self.before = op.load(self.parts(op, self.before).0, Acquire) - 1;
            sink(&load_words(op, self.parts(op, self.before).1));
        }
        self.ring.set_oldest(op, Cursor { slot: self.before, pass: 1 });
    }
}

const _: () = assert!(Atlas::<3>::STRIDE * 8 == 32, "an entry of Atlas has 24 bytes and a pointer");
