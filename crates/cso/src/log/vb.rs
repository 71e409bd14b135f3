//! CSO-VB with slots of a fixed size (3.1.1): contiguous payloads of up to 24, 56 or 119 bytes.
//!
//! Every line of every slot is written on every lap, and its validity bit lies at a place where no payload ever lies
//! (Definition 3.1). Both matter: a line skipped on one lap would, two laps later, show an old bit that looks valid,
//! and so would payload that happened to lie under a movable bit.
//!
//! # Persist order within a record
//!
//! | edge | how | a crash before it leaves | recovery |
//! |---|---|---|---|
//! | as CS-V1: payload words of a line < its validity bit | same line, release store | a line with the last lap's bit | the record is not whole: the log ends there |
//!
//! Lines of one record are not ordered among themselves: the record is whole when all of them are.

use std::marker::PhantomData;
use std::sync::atomic::Ordering;

use durix_pmem::{Medium, Off, Op, Persistent};

use super::error::{Error, Result};
use super::layout::{HalfSlot, LineSlot, Meta, PairSlot};
use super::record::{Place, Record};
use super::ring::{Cells, Cursor, Region, Ring, Shape};
use super::source::Source;
use super::{Finding, Log, Position};

mod sealed {
    pub trait Sealed {}
}

/// The size of a [`VbLog`]'s slots: [`HalfLine`], [`OneLine`] or [`TwoLines`].
pub trait Geometry: sealed::Sealed + Copy + Default + Send + std::fmt::Debug + 'static {
    /// Bytes of the largest payload.
    const PAYLOAD: usize;
    /// The kind in the header.
    #[doc(hidden)]
    const KIND: u32;
    /// Where the payload starts in the slot, in bytes.
    #[doc(hidden)]
    const START: u64;
    /// The slot.
    #[doc(hidden)]
    type Slot: Persistent;

    /// Writes a record into a slot and issues its write-back.
    #[doc(hidden)]
    fn write<M: Medium, S: Source>(op: &Op<'_, M>, slot: &Self::Slot, valid: u64, tag: u8, payload: S);

    /// The meta word, and whether each line's validity bit is `valid`.
    #[doc(hidden)]
    fn read<M: Medium>(op: &Op<'_, M>, slot: &Self::Slot, valid: u64) -> (Meta, bool);

    /// Whether any line's validity bit is `valid`.
    #[doc(hidden)]
    fn any_valid<M: Medium>(op: &Op<'_, M>, slot: &Self::Slot, valid: u64) -> bool;

    /// Turns every validity bit that is `valid`.
    #[doc(hidden)]
    fn scrub<M: Medium>(op: &Op<'_, M>, slot: &Self::Slot, valid: u64);
}

/// Slots of half a line: payloads of up to 24 bytes.
#[derive(Clone, Copy, Debug, Default)]
pub struct HalfLine;

/// Slots of a line: payloads of up to 56 bytes.
#[derive(Clone, Copy, Debug, Default)]
pub struct OneLine;

/// Slots of two lines: contiguous payloads of up to 119 bytes. Both lines are written for every record.
#[derive(Clone, Copy, Debug, Default)]
pub struct TwoLines;

impl sealed::Sealed for HalfLine {}
impl sealed::Sealed for OneLine {}
impl sealed::Sealed for TwoLines {}

macro_rules! slot_within_a_line {
    ($geometry:ident, $slot:ident, $words:literal, $kind:literal) => {
        impl Geometry for $geometry {
            const PAYLOAD: usize = $words * 8;
            const KIND: u32 = $kind;
            const START: u64 = 0;
            type Slot = $slot;

            #[inline(always)]
            fn write<M: Medium, S: Source>(op: &Op<'_, M>, slot: &$slot, valid: u64, tag: u8, payload: S) {
                payload.store(op, 0, &slot.payload);
                // PERSIST CS-V1: same line
                op.store(&slot.meta, Meta::first(valid, tag, payload.len() as u32), Ordering::Release);
                op.write_back(slot);
            }

            #[inline(always)]
            fn read<M: Medium>(op: &Op<'_, M>, slot: &$slot, valid: u64) -> (Meta, bool) {
                let meta = op.load(&slot.meta, Ordering::Relaxed);
                (meta, meta.valid() == valid)
            }

            fn any_valid<M: Medium>(op: &Op<'_, M>, slot: &$slot, valid: u64) -> bool {
                Self::read(op, slot, valid).1
            }

            fn scrub<M: Medium>(op: &Op<'_, M>, slot: &$slot, valid: u64) {
                let meta = op.load(&slot.meta, Ordering::Relaxed);
                if meta.valid() == valid {
                    op.store(&slot.meta, meta.flipped(), Ordering::Relaxed);
                }
            }
        }
    };
}
slot_within_a_line!(HalfLine, HalfSlot, 3, 1);
slot_within_a_line!(OneLine, LineSlot, 7, 2);

/// Bit of the last word that is the validity bit of a [`TwoLines`] slot's second line: the lowest of its last byte.
const LAST: u32 = 56;

impl Geometry for TwoLines {
    const PAYLOAD: usize = 119;
    const KIND: u32 = 3;
    const START: u64 = 8;
    type Slot = PairSlot;

    #[inline(always)]
    fn write<M: Medium, S: Source>(op: &Op<'_, M>, slot: &PairSlot, valid: u64, tag: u8, payload: S) {
        payload.store(op, 0, &slot.payload);
        let last = if payload.len() > 14 * 8 { payload.word(14) } else { 0 };
        // PERSIST CS-V1: same line
        op.store(&slot.meta, Meta::first(valid, tag, payload.len() as u32), Ordering::Release);
        // PERSIST CS-V1: same line
        op.store(&slot.last, last | valid << LAST, Ordering::Release);
        op.write_back(slot);
    }

    #[inline(always)]
    fn read<M: Medium>(op: &Op<'_, M>, slot: &PairSlot, valid: u64) -> (Meta, bool) {
        let meta = op.load(&slot.meta, Ordering::Relaxed);
        let last = op.load(&slot.last, Ordering::Relaxed) >> LAST & 1;
        (meta, meta.valid() == valid && last == valid)
    }

    fn any_valid<M: Medium>(op: &Op<'_, M>, slot: &PairSlot, valid: u64) -> bool {
        let last = op.load(&slot.last, Ordering::Relaxed) >> LAST & 1;
        op.load(&slot.meta, Ordering::Relaxed).valid() == valid || last == valid
    }

    fn scrub<M: Medium>(op: &Op<'_, M>, slot: &PairSlot, valid: u64) {
        let meta = op.load(&slot.meta, Ordering::Relaxed);
        if meta.valid() == valid {
            op.store(&slot.meta, meta.flipped(), Ordering::Relaxed);
        }
        let last = op.load(&slot.last, Ordering::Relaxed);
        if last >> LAST & 1 == valid {
            op.store(&slot.last, last ^ 1 << LAST, Ordering::Relaxed);
        }
    }
}

/// A log with validity bits in slots of a fixed size.
#[derive(Debug)]
pub struct VbLog<G: Geometry = OneLine> {
    ring: Ring,
    _geometry: PhantomData<G>,
}

struct Slots<G>(PhantomData<G>);

impl<G: Geometry> Cells for Slots<G> {
    fn whole<M: Medium>(&self, op: &Op<'_, M>, ring: &Ring, position: u64, limit: u64) -> Option<u64> {
        let at = ring.cursor(position);
        let (meta, valid) = G::read(op, op.at(Off::<G::Slot>::new(at.off)), at.valid);
        (limit > 0 && valid && meta.len() as usize <= G::PAYLOAD).then_some(1)
    }

    fn looks_valid<M: Medium>(&self, op: &Op<'_, M>, at: Cursor) -> bool {
        G::any_valid(op, op.at(Off::<G::Slot>::new(at.off)), at.valid)
    }

    fn scrub<M: Medium>(&self, op: &Op<'_, M>, at: Cursor) {
        G::scrub(op, op.at(Off::<G::Slot>::new(at.off)), at.valid);
    }
}

impl<G: Geometry> Log for VbLog<G> {
    type Options = ();

    fn format<M: Medium>(op: &Op<'_, M>, region: Region, (): &()) -> Result<Self> {
        let unit = size_of::<G::Slot>() as u64;
        let units = region.units(unit);
        let ring = Ring::format(op, region, Shape { kind: G::KIND, unit, units, params: [0; 3] }, 0)?;
        Ok(VbLog { ring, _geometry: PhantomData })
    }

    fn recover<M: Medium>(op: &Op<'_, M>, region: Region) -> Result<Self> {
        let shape = Ring::read_shape(op, region, G::KIND)?;
        if shape.unit != size_of::<G::Slot>() as u64 {
            return Err(Error::Corrupt { off: region.off, what: "slot size", found: shape.unit });
        }
        let ring = Ring::recover(op, region, shape, &Slots::<G>(PhantomData))?;
        Ok(VbLog { ring, _geometry: PhantomData })
    }

    #[inline(always)]
    fn stage_from<M: Medium, S: Source>(&mut self, op: &Op<'_, M>, tag: u8, payload: S) -> Result<Position> {
        if payload.len() > G::PAYLOAD {
            return Err(Error::TooLong { len: payload.len(), max: G::PAYLOAD });
        }
        let at = self.ring.claim(op, 1)?;
        G::write(op, op.at(Off::new(at.off)), at.valid, tag, payload);
        let position = self.ring.tail();
        self.ring.advance(1);
        op.prefetch_write(Off::<G::Slot>::new(self.ring.next().off));
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
        let at = self.ring.cursor(position.0);
        let (meta, _) = G::read(op, op.at(Off::<G::Slot>::new(at.off)), at.valid);
        Some(Record {
            op,
            position,
            next: Position(position.0 + 1),
            tag: meta.tag(),
            len: (meta.len() as usize).min(G::PAYLOAD),
            place: Place::Contiguous { off: at.off + G::START },
            skip: 0,
        })
    }

    bounds_of_ring!();

    fn capacity(&self) -> u64 {
        self.ring.units() * self.ring.unit()
    }

    fn max_payload(&self) -> usize {
        G::PAYLOAD
    }

    fn check<M: Medium>(&self, op: &Op<'_, M>) -> Vec<Finding> {
        self.ring.check(op, &Slots::<G>(PhantomData), self.ring.durable_limit())
    }
}
