//! A row for everything that opening a log can find wrong: one damage, and exactly what is said of it.

use std::sync::atomic::Ordering::Relaxed;

use durix_pmem::testing::assert_each_has_a_row;
use durix_pmem::{Bits, Hardware, LINE, Mapping, Off, Op, Word};

use super::layout::{Header, LineSlot, SharedHeader};
use super::*;

durix_pmem::variants!(VARIANTS, variant_of: Error {
    Pmem, TooLong, WrongLength, NoTags, BitInUse, Full, BadRegion, BadOption, NotALog, Mismatch, Corrupt, NotARecord, Extents,
});

/// What calls say of their arguments, and of a log without room; [`Extents`](Error::Extents) is what a pool gives a log: see
/// `a_named_log_has_one_extent`.
const OF_CALLS: &[&str] = &[
    "Pmem",
    "TooLong",
    "WrongLength",
    "NoTags",
    "BitInUse",
    "Full",
    "BadRegion",
    "BadOption",
    "NotARecord",
    "Extents",
];

const REGION: Region = Region { off: 4096, len: 8192 };

type Words = WordsLog<2, 0, 0>;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Of {
    Lines,
    Slots,
    Flexible,
    Entries,
    Words,
    Random,
    Chain,
    Shared,
}
use Of::*;

/// Formats a log and writes to it.
fn fill<L: Log>(op: &Op<'_, Hardware>, options: &L::Options) {
    let mut log = L::format(op, REGION, options).unwrap();
    (0..5_u8).for_each(|number| _ = log.append(op, 0, &[number & 0x3e; 16]).unwrap());
}

impl Of {
    fn fill(self, op: &Op<'_, Hardware>) {
        match self {
            Lines => fill::<LinesLog>(op, &()),
            Slots => fill::<VbLog>(op, &()),
            Flexible => fill::<FvbLog>(op, &FvbOptions::default()),
            Entries => fill::<FvbEntryLog>(op, &FvbEntryOptions { entry_lines: 16 }),
            Words => fill::<self::Words>(op, &()),
            Random => fill::<RandomLog>(op, &RandomOptions::default()),
            Chain => fill::<ChainLog>(op, &ChainOptions { segments: 4 }),
            Shared => {
                let options = SharedOptions::<LinesLog> { lanes: 2, lane: () };
                let log = SharedLog::format(op, REGION, &options).unwrap();
                (0..5).for_each(|number| _ = log.append(op, 0, &[number; 16]).unwrap());
            }
        }
    }

    fn recover(self, op: &Op<'_, Hardware>) -> Result<()> {
        match self {
            Lines => LinesLog::recover(op, REGION).map(drop),
            Slots => <VbLog>::recover(op, REGION).map(drop),
            Flexible => FvbLog::recover(op, REGION).map(drop),
            Entries => FvbEntryLog::recover(op, REGION).map(drop),
            Words => self::Words::recover(op, REGION).map(drop),
            Random => RandomLog::recover(op, REGION).map(drop),
            Chain => ChainLog::recover(op, REGION).map(drop),
            Shared => SharedLog::<LinesLog>::recover(op, REGION).map(drop),
        }
    }
}

/// A log as it is found.
struct Sound<'s>(&'s Op<'s, Hardware>);

impl Sound<'_> {
    fn store<T: Bits>(&self, word: &Word<T>, value: T) {
        self.0.store(word, value, Relaxed);
    }

    fn load(&self, word: &Word) -> u64 {
        self.0.load(word, Relaxed)
    }

    /// The header of a ring, or of a segment of a chain.
    fn header(&self, off: u64) -> &Header {
        self.0.at(Off::new(off))
    }

    fn first(&self) -> &Header {
        self.header(REGION.off)
    }

    fn shared(&self) -> &SharedHeader {
        self.0.at(Off::new(REGION.off))
    }

    /// Makes the checksum of a header right again.
    fn seal(&self, off: u64) -> u64 {
        let header = self.header(off);
        let params = [0, 1, 2].map(|number| self.load(&header.params[number]));
        let (unit, units) = (self.load(&header.unit), self.load(&header.units));
        self.store(&header.check, ring::Shape { kind: self.load(&header.kind) as u32, unit, units, params }.check());
        off
    }

    fn sealed(&self, change: fn(&Self, &Header)) -> u64 {
        change(self, self.first());
        self.seal(REGION.off)
    }

    /// Makes it a log of two units of that many bytes.
    fn of_unit(&self, bytes: u64) -> u64 {
        self.store(&self.first().unit, bytes);
        self.store(&self.first().units, 2);
        self.seal(REGION.off)
    }

    fn seal_shared(&self) -> u64 {
        let header = self.shared();
        let words = [&header.version, &header.lanes, &header.lane_len].map(|word| self.load(word));
        self.store(&header.check, shared::check(words));
        REGION.off
    }

    /// Where a segment of the chain begins.
    fn segment(&self, number: u64) -> u64 {
        REGION.off + number * self.load(&self.first().params[1])
    }

    /// The words of a record's entry: where its payload lies, and its length.
    fn entry(&self, number: u64) -> &LineSlot {
        self.0.at(Off::new(REGION.off + ring::HEADER + number * LINE as u64))
    }
}

/// What is found, the log, and the damage, which returns where the log lies.
type Row = (&'static str, Of, fn(&Sound<'_>) -> u64);

const AT_OPENING: &[Row] = &[
    ("NotALog", Lines, |s| {
        s.store(&s.first().magic, 7);
        REGION.off
    }),
    ("NotALog", Shared, |s| {
        s.store(&s.shared().magic, 7);
        REGION.off
    }),
    // No segment says that it is the first one.
    ("NotALog", Chain, |s| s.sealed(|s, header| s.store(&header.params[0], 9))),
    ("version", Lines, |s| {
        s.store(&s.first().kind, s.load(&s.first().kind) ^ 1 << 32);
        REGION.off
    }),
    ("version", Shared, |s| {
        s.store(&s.shared().version, 1);
        REGION.off
    }),
    ("header checksum", Lines, |s| {
        s.store(&s.first().params[2], 7);
        REGION.off
    }),
    ("header checksum", Shared, |s| {
        s.store(&s.shared().lanes, 1);
        REGION.off
    }),
    ("kind", Lines, |s| {
        let other = s.load(&s.first().kind) + 1;
        s.store(&s.first().kind, other);
        s.seal(REGION.off)
    }),
    ("number of units", Lines, |s| s.sealed(|s, header| s.store(&header.unit, 0))),
    ("number of units", Lines, |s| s.sealed(|s, header| s.store(&header.units, 0))),
    ("number of units", Lines, |s| s.sealed(|s, header| s.store(&header.units, REGION.data_lines() + 1))),
    // Half lines come in pairs.
    ("number of units", Lines, |s| {
        s.sealed(|s, header| {
            s.store(&header.unit, 32);
            s.store(&header.units, 3);
        })
    }),
    ("head", Lines, |s| {
        s.store(&s.first().head, layout::Head::from_bits(7));
        REGION.off
    }),
    ("head", Chain, |s| {
        s.store(&s.first().head, layout::Head::from_bits(7));
        REGION.off
    }),
    ("line size", Lines, |s| s.of_unit(128)),
    ("slot size", Slots, |s| s.of_unit(128)),
    ("slot size", Flexible, |s| s.sealed(|s, header| s.store(&header.unit, 96))),
    ("slot size", Flexible, |s| {
        s.sealed(|s, header| {
            s.store(&header.unit, 47 * LINE as u64);
            s.store(&header.units, 1);
        })
    }),
    ("number of payload lines", Entries, |s| s.sealed(|s, header| s.store(&header.params[0], 0))),
    ("number of payload lines", Entries, |s| s.sealed(|s, header| s.store(&header.params[0], REGION.data_lines()))),
    ("number of payload lines", Entries, |s| s.sealed(|s, header| s.store(&header.params[0], u64::MAX))),
    ("number of payload lines", Entries, |s| s.sealed(|s, header| s.store(&header.unit, 128))),
    // Before that of the entry before; more than a lap behind that of the first entry. Both payloads are empty: they are whole.
    ("position of a payload", Entries, |s| {
        let entry = s.entry(2);
        s.store(&entry.payload[0], 0);
        empty(s, 2)
    }),
    ("position of a payload", Entries, |s| {
        let lines = s.load(&s.first().params[0]);
        s.store(&s.entry(4).payload[0], 2 * lines);
        empty(s, 4)
    }),
    ("record size", Words, |s| s.of_unit(32)),
    ("word with the unused bit", Words, |s| s.sealed(|s, header| s.store(&header.params[0], 1))),
    ("unused bit", Words, |s| s.sealed(|s, header| s.store(&header.params[1], 1))),
    ("line size, number of lines or pattern", Random, |s| s.sealed(|s, header| s.store(&header.unit, 32))),
    ("line size, number of lines or pattern", Random, |s| s.sealed(|s, header| s.store(&header.units, 2))),
    ("line size, number of lines or pattern", Random, |s| s.sealed(|s, header| s.store(&header.params[0], 0))),
    ("segment length", Chain, |s| s.sealed(|s, header| s.store(&header.params[1], 64))),
    ("segment length", Chain, |s| s.sealed(|s, header| s.store(&header.params[1], REGION.len + 64))),
    ("number in its chain", Chain, |s| {
        let off = s.segment(1);
        s.store(&s.header(off).params[0], 0);
        s.seal(off)
    }),
    ("number of lines", Chain, |s| {
        let off = s.segment(1);
        s.store(&s.header(off).units, 1);
        s.seal(off)
    }),
    ("number of lines", Chain, |s| {
        let off = s.segment(1);
        s.store(&s.header(off).unit, 32);
        s.seal(off)
    }),
    // Two segments with one number; a head before the first one, or within a segment that is not there.
    ("head, or the sequence of segments behind it", Chain, |s| {
        [1, 2]
            .into_iter()
            .for_each(|number| s.store(&s.header(s.segment(number)).state, layout::SegmentState::new(9, 0)));
        REGION.off
    }),
    ("head, or the sequence of segments behind it", Chain, |s| {
        s.store(&s.first().head, layout::Head::new(1));
        REGION.off
    }),
    ("head, or the sequence of segments behind it", Chain, |s| {
        s.store(&s.first().head, layout::Head::new(1000 * s.load(&s.first().units) + 1));
        REGION.off
    }),
    ("number of lanes", Shared, |s| {
        s.store(&s.shared().lanes, 3);
        s.store(&s.shared().lane_len, 1024);
        s.seal_shared()
    }),
    ("number of lanes", Shared, |s| {
        s.store(&s.shared().lane_len, 0);
        s.seal_shared()
    }),
    ("number of lanes", Shared, |s| {
        s.store(&s.shared().lane_len, REGION.len / 2);
        s.seal_shared()
    }),
    ("number of lanes", Shared, |s| {
        s.store(&s.shared().lane_len, 1 << 63);
        s.seal_shared()
    }),
];

/// Makes an entry that of an empty payload.
fn empty(s: &Sound<'_>, number: u64) -> u64 {
    let entry = s.entry(number);
    s.store(&entry.payload[1], 0);
    let meta = s.0.load(&entry.meta, Relaxed);
    s.store(&entry.meta, layout::Meta::first(meta.valid(), meta.tag(), 16));
    REGION.off
}

/// All classes, as the sources have them.
fn classes() -> Vec<&'static str> {
    let sources = [
        include_str!("chain.rs"),
        include_str!("fvb.rs"),
        include_str!("fvb_entry.rs"),
        include_str!("lines.rs"),
        include_str!("random.rs"),
        include_str!("ring.rs"),
        include_str!("shared.rs"),
        include_str!("vb.rs"),
        include_str!("words.rs"),
    ];
    let begins = ["what: \"", "what = \"", "corrupt(\"", "differs(\""];
    let of = |source: &'static str| begins.into_iter().flat_map(move |begin| source.split(begin).skip(1));
    sources.into_iter().flat_map(of).map(|rest| rest.split('"').next().unwrap()).collect()
}

#[test]
fn an_opening_calls_each_damage_by_its_own_class() {
    let mut wrong = Vec::new();
    let sound = [Lines, Slots, Flexible, Entries, Words, Random, Chain, Shared]
        .map(|of| ("", of, (|_| 0) as fn(&Sound<'_>) -> u64));
    for (number, (class, of, damage)) in sound.iter().chain(AT_OPENING).enumerate() {
        let mapping = Mapping::heap(4096 + REGION.len as usize + 4096, Hardware::PAGE_CACHE);
        let mut session = mapping.session().unwrap();
        let op = session.enter().unwrap();
        of.fill(&op);
        let expected = damage(&Sound(&op));
        let found = match of.recover(&op) {
            Ok(()) => (String::new(), 0),
            Err(Error::NotALog { off, .. }) => ("NotALog".into(), off),
            Err(Error::Mismatch { off, what, .. } | Error::Corrupt { off, what, .. }) => (what.into(), off),
            Err(other) => (other.to_string(), 0),
        };
        if found != ((*class).to_owned(), expected) {
            wrong.push(format!("row {number}, {of:?}: {class:?} at {expected:#x}: {found:?}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    let classes: Vec<_> = classes().into_iter().chain(["NotALog"]).collect();
    assert_each_has_a_row(&classes, AT_OPENING.iter().map(|(class, ..)| *class));
    // The rows are about these variants; a new one is named above.
    let found = ["NotALog", "Mismatch", "Corrupt"];
    assert!(VARIANTS.iter().all(|variant| OF_CALLS.contains(variant) != found.contains(variant)));
    assert_eq!(variant_of(&Error::NotALog { off: 0, found: 0 }), "NotALog");
}

/// One that has another extent, or none, is not what this code has made.
#[test]
fn a_named_log_has_one_extent() {
    use durix_pmem::backing::HeapBacking;
    use durix_pmem::{Change, PoolOptions};

    for adds in [true, false] {
        let options = PoolOptions::new().chunk_size(4096).initial_size(1 << 20).max_size(1 << 20);
        let pool = options.create_on(HeapBacking::new(1 << 20), Hardware::PAGE_CACHE).unwrap();
        let log = NamedLog::<_, LinesLog>::open(&pool, "log", &NamedOptions { bytes: 8192, log: () }).unwrap();
        let mut session = pool.session().unwrap();
        let op = session.enter().unwrap();
        let (space, owner) = (pool.space(), log.root().owner());
        if adds {
            space.activate(&op, space.reserve_extent(&op, owner, 4096).unwrap()).unwrap();
        } else {
            let extent = space.extents(&op, owner)[0];
            op.defer(space.apply(&op, Change::Free(space.allocated(&op, extent.off).unwrap())).unwrap());
            op.drain();
        }
        drop(op);
        drop(log);
        let refused = NamedLog::<_, LinesLog>::open(&pool, "log", &NamedOptions::default()).unwrap_err();
        let expected = if adds { 2 } else { 0 };
        assert!(matches!(refused, Error::Extents { found, .. } if found == expected), "{refused}");
    }
}
