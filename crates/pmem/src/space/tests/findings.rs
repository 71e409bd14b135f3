//! A row for every class of finding of the space of a pool: one damage, and exactly what is said of it.

use super::*;
use crate::space::lane::Intent;
use crate::space::layout::{Effect, LANE_STRIDE};
use crate::testing::assert_each_has_a_row;
use crate::word::Bits;

crate::variants!(CLASSES, class_of: Finding { UnknownDescriptor, Overlap, BadSlab, BadIntent, UnknownOwner, NotAsClosed });

/// Chunks of the heap: two zones, the second one with a table and 100 more.
const CHUNKS: u64 = CHUNK / 8 + 101;

/// A heap with an extent of two chunks, another one, and a slab of blocks of a line.
struct Sound<'s> {
    op: &'s Op<'s, M>,
    extent: u64,
    other: u64,
    slab: u64,
    mapped: u64,
}

impl Sound<'_> {
    /// Changes what a chunk is used for; returns where it lies.
    fn describe(&self, off: u64, what: Use) -> u64 {
        self.op.store(self.op.at(HEAP.descriptor(HEAP.chunk_of(off).unwrap())), Descriptor::new(what), Relaxed);
        off
    }

    fn set_bits(&self, off: u64, bits: u64) -> u64 {
        self.op.store(self.op.at(HEAP.descriptor(HEAP.chunk_of(off).unwrap())), Descriptor::from_bits(bits), Relaxed);
        off
    }

    fn bits(&self, off: u64) -> u64 {
        self.op.load(self.op.at(HEAP.descriptor(HEAP.chunk_of(off).unwrap())), Relaxed).to_bits()
    }

    /// Writes an intent into the second lane, with its seal.
    fn intend(&self, link: u64, target: u64) -> u64 {
        let (effect, otherwise) = (Effect::Set(0), Effect::Clear(0));
        Intent { link: Off::new(link), link_value: 1, target: Off::new(target), effect, otherwise }
            .write(self.op, HEAP.lane(1));
        1
    }
}

/// Where an intent may lead.
const LINK: u64 = 1024;
const TARGET: u64 = 2 * CHUNK;

const fn extent(owner: Owner, chunks: u32) -> Use {
    Use::Extent { owner, chunks, role: Role::Data }
}

/// What is damaged, and the one class that is reported, at the offset (or in the lane) that the damage returns.
type Row = (&'static str, fn(&Sound<'_>) -> u64);

const CHECKS: &[Row] = &[
    ("UnknownDescriptor", |s| s.set_bits(s.extent, 7)),
    // Bits that are always zero; an extent and a slab of nothing.
    ("UnknownDescriptor", |s| s.set_bits(s.extent, s.bits(s.extent) | 1 << 60)),
    ("UnknownDescriptor", |s| s.describe(s.extent, extent(A, 0))),
    ("UnknownDescriptor", |s| s.describe(s.slab, Use::Slab { owner: A, lines: 0 })),
    // Over the next extent; over the table of the next zone; beyond the end.
    ("Overlap", |s| s.describe(s.extent, extent(A, 3))),
    ("Overlap", |s| s.describe(HEAP.chunk_off(CHUNK / 8 - 2), extent(A, 3))),
    ("Overlap", |s| s.describe(HEAP.chunk_off(CHUNKS - 2), extent(A, 3))),
    ("BadSlab", |s| s.describe(s.slab, Use::Slab { owner: A, lines: HEAP.max_block_lines() + 1 })),
    ("BadIntent", |s| s.intend(LINK + 4, TARGET)),
    ("BadIntent", |s| s.intend(HEAP.lanes_off + u64::from(HEAP.lanes) * LANE_STRIDE - 8, TARGET)),
    ("BadIntent", |s| s.intend(s.mapped, TARGET)),
    ("BadIntent", |s| s.intend(LINK, TARGET + 4)),
    ("BadIntent", |s| s.intend(LINK, HEAP.heap_off - 8)),
    ("BadIntent", |s| s.intend(LINK, s.mapped)),
    ("UnknownOwner", |s| s.describe(s.other, extent(Owner(2), 1))),
    ("UnknownOwner", |s| s.describe(s.slab, Use::Slab { owner: Owner(2), lines: 1 })),
];

fn place_of(finding: &Finding) -> u64 {
    match finding {
        Finding::UnknownDescriptor { off }
        | Finding::Overlap { off, .. }
        | Finding::BadSlab { off, .. }
        | Finding::UnknownOwner { off, .. }
        | Finding::NotAsClosed { off } => *off,
        Finding::BadIntent { lane } => u64::from(*lane),
    }
}

#[test]
fn a_check_reports_each_damage_by_its_own_class() {
    for (number, (class, damage)) in CHECKS.iter().enumerate() {
        let bench = Bench::new(CHUNKS);
        let mut session = bench.session();
        let op = session.enter().unwrap();
        let space = bench.space(&op);
        let new = |chunks| space.activate(&op, space.reserve_extent(&op, A, chunks * CHUNK).unwrap()).unwrap().off;
        let (extent, other) = (new(2), new(1));
        let block = space.reserve_block(&op, B, 64).unwrap().keep();
        space.apply(&op, Change::Allocate(block)).unwrap();
        let slab = block.off() & !(CHUNK - 1);
        assert_eq!(space.check(&op, |owner| owner != Owner(2)), []);
        let place = damage(&Sound { op: &op, extent, other, slab, mapped: CHUNK + CHUNKS * CHUNK });
        let findings = space.check(&op, |owner| owner != Owner(2));
        let found: Vec<_> = findings.iter().map(|finding| (class_of(finding), place_of(finding))).collect();
        assert_eq!(found, [(*class, place)], "row {number}: {findings:?}");
    }
    // The pool says that one: `a_table_of_space_that_has_changed_since_closing_is_found`.
    let elsewhere = ["NotAsClosed"];
    assert_each_has_a_row(CLASSES, CHECKS.iter().map(|(class, _)| *class).chain(elsewhere));
}

#[test]
fn an_intent_within_the_bounds_is_no_finding() {
    let bench = Bench::new(CHUNKS);
    let mut session = bench.session();
    let op = session.enter().unwrap();
    let space = bench.space(&op);
    let mapped = CHUNK + CHUNKS * CHUNK;
    let sound = Sound { op: &op, extent: 0, other: 0, slab: 0, mapped };
    let first = HEAP.lanes_off + u64::from(HEAP.lanes) * LANE_STRIDE;
    for (link, target) in [(LINK, TARGET), (first, HEAP.heap_off), (mapped - 8, mapped - 8)] {
        sound.intend(link, target);
        assert_eq!(space.check(&op, |_| true), []);
    }
}
