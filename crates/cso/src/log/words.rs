//! CSO-VB without metadata: a bit that the payload leaves unused is the validity bit (3.1.1, Definition 3.1).
//!
//! Records have `W` words and nothing else. Where a word of every line of the record has a bit that is always zero for the
//! user (the lowest bit of an aligned address, the top bits of a user-space address), that bit serves. An undo record
//! of address and old value is two words, four of them to a line. A record of a single word is valid or not by one 8-byte store,
//! and so needs nothing of the hardware beyond 8-byte atomicity.
//!
//! # Persist order within a record
//!
//! | edge | how | a crash before it leaves | recovery |
//! |---|---|---|---|
//! | CS-V1 words of a line < the word with the validity bit | same line, release store | a line with the last lap's bit | the record is not whole: the log ends there |

use std::sync::atomic::Ordering;

use durix_pmem::{Medium, Off, Op, Word};

use super::error::{Error, Result};
use super::record::{Place, Record};
use super::ring::{Cells, Cursor, Region, Ring, Shape};
use super::source::Source;
use super::{Finding, Log, Position};

/// The kind in the header.
const KIND: u32 = 6;

/// A log of records of `W` words, of which bit `BIT` of word `WORD` (of each eight) is unused.
///
/// `W` is 1, 2, 4, or a multiple of 8. Records have no tag.
///
/// ```
/// use durix_cso::log::{Log, Region, WordsLog};
/// use durix_pmem::{Hardware, Mapping};
///
/// // Undo records: an address that is a multiple of 8, and the old value there.
/// type Undo = WordsLog<2, 0, 0>;
/// let mapping = Mapping::heap(8192, Hardware::PAGE_CACHE);
/// let mut session = mapping.session()?;
/// let op = session.enter()?;
/// let region = Region { off: 4096, len: 4096 };
/// let mut log = Undo::format(&op, region, &())?;
/// log.append_words(&op, 0, &[0x1000, u64::MAX])?;
/// let found: Vec<u64> = log.iter(&op).flat_map(|r| r.words().collect::<Vec<_>>()).collect();
/// assert_eq!(found, [0x1000, u64::MAX]);
/// # Ok::<(), durix_cso::log::Error>(())
/// ```
#[derive(Debug)]
pub struct WordsLog<const W: usize, const WORD: usize, const BIT: u32> {
    ring: Ring,
}

struct Records<const W: usize, const WORD: usize, const BIT: u32>;

impl<const W: usize, const WORD: usize, const BIT: u32> Records<W, WORD, BIT> {
    const LEN: usize = W * 8;
    /// Lines of a record; one for a part of a line.
    const LINES: usize = W.div_ceil(8);
    const FITS: () = {
        assert!(matches!(W, 1 | 2 | 4) || W > 0 && W.is_multiple_of(8), "records of 1, 2, 4 or whole lines of words");
        assert!(WORD < W && WORD < 8 && BIT < 64, "the unused bit lies in the record's words");
    };

    #[inline(always)]
    fn words<'a, M: Medium>(op: &Op<'a, M>, at: Cursor) -> &'a [Word; W] {
        let () = Self::FITS;
        op.at(Off::new(at.off))
    }

    #[inline(always)]
    fn write<M: Medium, S: Source>(op: &Op<'_, M>, at: Cursor, payload: S) {
        let words = Self::words(op, at);
        for line in 0..Self::LINES {
            let from = line * 8;
            let marked = from + WORD;
            payload.store_some(op, from, &words[from..marked]);
            payload.store_some(op, marked + 1, &words[marked + 1..W.min(from + 8)]);
            // PERSIST CS-V1: same line
            op.store(&words[marked], payload.word(marked) | at.valid << BIT, Ordering::Release);
            op.write_back(&words[marked]);
        }
    }

    /// Whether each line's bit says VALID.
    fn bits<'a, M: Medium>(op: &'a Op<'_, M>, at: Cursor) -> impl Iterator<Item = bool> + 'a {
        let words = Self::words(op, at);
        (0..Self::LINES).map(move |l| op.load(&words[l * 8 + WORD], Ordering::Relaxed) >> BIT & 1 == at.valid)
    }
}

impl<const W: usize, const WORD: usize, const BIT: u32> Cells for Records<W, WORD, BIT> {
    fn whole<M: Medium>(&self, op: &Op<'_, M>, ring: &Ring, position: u64, limit: u64) -> Option<u64> {
        let at = ring.cursor(position);
        (limit > 0 && Self::bits(op, at).all(|valid| valid)).then_some(1)
    }

    fn looks_valid<M: Medium>(&self, op: &Op<'_, M>, at: Cursor) -> bool {
        Self::bits(op, at).any(|valid| valid)
    }

    fn scrub<M: Medium>(&self, op: &Op<'_, M>, at: Cursor) {
        let words = Self::words(op, at);
        for word in words.iter().skip(WORD).step_by(8) {
            let value = op.load(word, Ordering::Relaxed);
            if value >> BIT & 1 == at.valid {
                op.store(word, value ^ 1 << BIT, Ordering::Relaxed);
            }
        }
    }
}

impl<const W: usize, const WORD: usize, const BIT: u32> WordsLog<W, WORD, BIT> {
    const PARAMS: [u64; 3] = [WORD as u64, BIT as u64, 0];

    #[inline(always)]
    fn fits<S: Source>(tag: u8, payload: S) -> Result<()> {
        let exact = W * 8;
        if payload.len() != exact {
            return Err(Error::WrongLength { len: payload.len(), exact });
        }
        if tag != 0 {
            return Err(Error::NoTags { tag });
        }
        for line in 0..Records::<W, WORD, BIT>::LINES {
            let word = line * 8 + WORD;
            if payload.word(word) >> BIT & 1 != 0 {
                return Err(Error::BitInUse { word, bit: BIT });
            }
        }
        Ok(())
    }
}

impl<const W: usize, const WORD: usize, const BIT: u32> Log for WordsLog<W, WORD, BIT> {
    type Options = ();

    fn format<M: Medium>(op: &Op<'_, M>, region: Region, (): &()) -> Result<Self> {
        let () = Records::<W, WORD, BIT>::FITS;
        let unit = Records::<W, WORD, BIT>::LEN as u64;
        let units = region.units(unit);
        let ring = Ring::format(op, region, Shape { kind: KIND, unit, units, params: Self::PARAMS }, 0)?;
        Ok(WordsLog { ring })
    }

    fn recover<M: Medium>(op: &Op<'_, M>, region: Region) -> Result<Self> {
        let shape = Ring::read_shape(op, region, KIND)?;
        let off = region.off;
        let differs = |what, found, expected| Err(Error::Mismatch { off, what, found, expected });
        if shape.unit != W as u64 * 8 {
            return differs("record size", shape.unit, W as u64 * 8);
        }
        if shape.params[0] != Self::PARAMS[0] {
            return differs("word with the unused bit", shape.params[0], Self::PARAMS[0]);
        }
        if shape.params[1] != Self::PARAMS[1] {
            return differs("unused bit", shape.params[1], Self::PARAMS[1]);
        }
        Ok(WordsLog { ring: Ring::recover(op, region, shape, &Records::<W, WORD, BIT>)? })
    }

    #[inline(always)]
    fn stage_from<M: Medium, S: Source>(&mut self, op: &Op<'_, M>, tag: u8, payload: S) -> Result<Position> {
        Self::fits(tag, payload)?;
        let at = self.ring.claim(op, 1)?;
        Records::<W, WORD, BIT>::write(op, at, payload);
        let position = self.ring.tail();
        self.ring.advance(1);
        op.prefetch_write(Off::<Word>::new(self.ring.next().off));
        Ok(Position(position))
    }

    #[inline(always)]
    fn commit<M: Medium>(&mut self, op: &Op<'_, M>) {
        self.ring.commit(op);
    }

    fn trim_with<M: Medium>(&mut self, op: &Op<'_, M>, to: Position, floor: Option<u64>) -> Result<()> {
        self.ring.trim_units(op, to.0, floor)
    }

    #[inline]
    fn record_at<'a, M: Medium>(&'a self, op: &'a Op<'a, M>, position: Position) -> Option<Record<'a, M>> {
        if position < self.head() || position >= self.tail() {
            return None;
        }
        let off = self.ring.cursor(position.0).off;
        Some(Record {
            op,
            position,
            next: Position(position.0 + 1),
            tag: 0,
            len: Records::<W, WORD, BIT>::LEN,
            place: Place::Masked { off, word: WORD, mask: !(1 << BIT) },
            skip: 0,
        })
    }

    bounds_of_ring!();

    fn capacity(&self) -> u64 {
        self.ring.units() * self.ring.unit()
    }

    fn max_payload(&self) -> usize {
        W * 8
    }

    fn check<M: Medium>(&self, op: &Op<'_, M>) -> Vec<Finding> {
        self.ring.check(op, &Records::<W, WORD, BIT>, self.ring.durable_limit())
    }
}
