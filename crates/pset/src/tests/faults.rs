//! A row for everything that a check, or an opening, can find wrong: one damage, and exactly what is said of it.

use std::collections::BTreeSet;
use std::mem::offset_of;

use durix_pmem::testing::assert_each_has_a_row;
use durix_pmem::{Bits, Extent, Off, Word};

use super::*;
use crate::check::Fault;
use crate::error::Part;
use crate::layout::{Class, EXTENTS, ExtentHead, Head, Info, MAX_FOUND, MAX_VERSION, Meta, Tail, WATERMARK};
use crate::layout::{MAX_LINES, extent_sum, fresh_info};
use crate::reuse::Held;

durix_pmem::variants!(FAULTS, fault_name: Fault {
    TwoRoles, Extents, InNoExtent, Count, Unreadable, HalfWritten, NoRole, NoEntry, FreeEntry, LiveTombstone, Checksum,
    SameVersion, NotNewest,
});
durix_pmem::variants!(PARTS, part_name: Part {
    ExtentMagic, ExtentSum, ExtentClass, ExtentSlots, Extents, Version, Validity, Fresh, Lengths, Line, EntrySum, Watermark,
    Transaction,
});

/// Parts that only an opening looks at, or that a fault of its own tells of.
const NOT_UNREADABLE: [&str; 5] = ["Extents", "Line", "EntrySum", "Watermark", "Transaction"];

/// The set of keys `a`, `b` and [`LONG`], and where its slots lie.
struct Sound<'s> {
    op: &'s Op<'s, Hardware>,
    set: &'s PersistentSet<Hardware>,
    /// The entry of `b`, and the entries of `a`, of which one is newer.
    b: u64,
    a: u64,
    old_a: u64,
    /// The same of the key whose entries have several lines.
    long: u64,
    old_long: u64,
    /// A slot that was never written.
    fresh: u64,
    /// The extents of slots of one line, and of more.
    short_extent: Extent,
    long_extent: Extent,
}

const LONG: &[u8] = b"of several lines";
const LONG_VALUE: [u8; 100] = [7; 100];

impl Sound<'_> {
    fn store<T: Bits>(&self, word: &Word<T>, value: T) {
        self.op.store(word, value, Ordering::Relaxed);
    }

    fn head(&self, slot: u64) -> &Head {
        self.op.at(Off::new(slot))
    }

    fn version(&self, slot: u64) -> u64 {
        self.op.load(&self.head(slot).meta, Ordering::Relaxed).version()
    }

    fn set_meta(&self, slot: u64, change: impl Fn(Meta) -> Meta) -> u64 {
        let word = &self.head(slot).meta;
        self.store(word, change(self.op.load(word, Ordering::Relaxed)));
        slot
    }

    fn set_info(&self, slot: u64, info: Info) -> u64 {
        self.store(&self.head(slot).info, info);
        slot
    }

    /// The word that every further line of an entry begins with.
    fn tag(&self, slot: u64) -> &Word {
        &self.op.at(Off::<Tail>::new(slot + size_of::<Head>() as u64)).tag
    }

    /// Writes the header of an extent, with its checksum.
    fn set_extent(&self, extent: Extent, lines: u64, slots: impl Fn(u64) -> u64) -> u64 {
        let head = self.op.at(Off::<ExtentHead>::new(extent.off));
        let slots = slots(self.op.load(&head.slots, Ordering::Relaxed));
        self.store(&head.lines, lines);
        self.store(&head.slots, slots);
        self.store(&head.sum, extent_sum(extent.off, lines, slots));
        extent.off
    }

    /// Writes a sound entry into a slot behind the set's back.
    fn write(&self, slot: u64, version: u64, key: &[u8], value: &[u8]) -> u64 {
        entry::write(self.op, slot, version, Info::of(key.len(), value.len()), key, value);
        slot
    }
}

/// Calls `with` with a new sound set.
fn with_sound(with: impl FnOnce(&Sound<'_>)) {
    let pool = pool(1 << 19, Hardware::PAGE_CACHE);
    let set = open(&pool, &SetOptions::default().shards(1));
    let mut session = pool.session().unwrap();
    let op = session.enter().unwrap();
    for (key, value) in [(&b"b"[..], &b"1"[..]), (b"a", b"1"), (b"a", b"2"), (LONG, &LONG_VALUE), (LONG, &LONG_VALUE)] {
        set.insert(&op, key, value).unwrap();
    }
    let live = |key: &[u8]| set.shards[0].find(&op, set.key(key).unwrap().tag(), key).unwrap().off;
    let extents = set.extents(&op);
    let extent = |of: u64| *extents.iter().find(|e| (e.off..e.off + e.len).contains(&of)).unwrap();
    let waits: Vec<u64> = {
        let inner = set.shards[0].lock(op.medium());
        inner.reuse.iter().filter(|(_, held)| *held == Held::Stale).map(|(off, _)| off).collect()
    };
    let (a, b, long) = (live(b"a"), live(b"b"), live(LONG));
    let (short_extent, long_extent) = (extent(a), extent(long));
    assert_ne!(short_extent, long_extent, "of several lines");
    let stale = |of: Extent| waits.iter().copied().find(|off| extent(*off) == of).unwrap();
    let fresh = set.arena.free_slots(op.medium()).into_iter().find(|off| extent(*off) == short_extent).unwrap();
    let (old_a, old_long) = (stale(short_extent), stale(long_extent));
    with(&Sound { op: &op, set: &set, b, a, old_a, long, old_long, fresh, short_extent, long_extent });
}

/// The class of a fault: its variant, or the part that cannot be read.
fn class_of(fault: &Fault) -> &'static str {
    let parts = [
        Part::ExtentMagic,
        Part::ExtentSum,
        Part::ExtentClass,
        Part::ExtentSlots,
        Part::Version,
        Part::Validity,
        Part::Fresh,
        Part::Lengths,
    ];
    match fault {
        Fault::Unreadable(Error::Corrupt { what, .. }) => {
            part_name(parts.iter().find(|part| part.text() == *what).expect("a part that a check cannot read"))
        }
        other => fault_name(other),
    }
}

/// What is damaged, and which classes are reported: the first one at the offset that the damage returns.
type Row = (&'static str, &'static [&'static str], fn(&Sound<'_>) -> u64);

const EXTENT_LOST: &[&str] = &["Count", "InNoExtent"];

const CHECKS: &[Row] = &[
    ("TwoRoles", &[], |s| {
        s.set.shards[0].lock(s.op.medium()).reuse.push_stale(Class::FIRST, s.a, 0);
        s.a
    }),
    ("Extents", &[], |s| {
        let word = &s.set.root.words(s.op)[EXTENTS];
        s.store(word, s.op.load(word, Ordering::Relaxed) + 1);
        s.op.off_of(word).get()
    }),
    ("InNoExtent", &[], |s| {
        let slot = s.short_extent.off + s.short_extent.len;
        s.set.shards[0].lock(s.op.medium()).reuse.push_free(Class::FIRST, slot);
        slot
    }),
    ("Count", &[], |s| {
        s.set.shards[0].set_len(s.op.medium(), 2);
        0
    }),
    ("HalfWritten", &[], |s| s.set_meta(s.old_a, Meta::invalidated)),
    ("HalfWritten", &[], |s| {
        s.store(s.tag(s.old_long), 0);
        s.old_long
    }),
    // In the place of a live entry its key is missing, too.
    ("HalfWritten", &["Count"], |s| s.set_meta(s.b, Meta::invalidated)),
    ("NoRole", &[], |s| {
        let taken = s.set.shards[0].lock(s.op.medium()).reuse.take_plain().unwrap();
        assert_eq!(taken, s.old_a);
        taken
    }),
    ("NoEntry", &[], |s| s.set_meta(s.old_a, Meta::erased)),
    ("NoEntry", &["Count"], |s| s.set_meta(s.b, Meta::erased)),
    // An older entry of a key that is there.
    ("FreeEntry", &[], |s| s.write(s.fresh, s.version(s.b), b"a", b"1")),
    ("LiveTombstone", &["Count", "NotNewest"], |s| {
        entry::write(s.op, s.b, s.version(s.b), Info::tombstone(1), b"b", b"");
        s.b
    }),
    ("Checksum", &[], |s| {
        s.store(&s.head(s.a).payload[1], 3);
        s.a
    }),
    // Of the key: the one before it is then the newest of `a`.
    ("Checksum", &["Count", "NotNewest"], |s| {
        s.store(&s.head(s.a).payload[0], u64::from(b'x'));
        s.a
    }),
    ("Checksum", &[], |s| {
        s.store(&s.head(s.long).payload[5], 3);
        s.long
    }),
    ("Checksum", &[], |s| {
        s.store(&s.op.at(Off::<Tail>::new(s.long + size_of::<Head>() as u64)).payload[0], 3);
        s.long
    }),
    ("SameVersion", &["NotNewest"], |s| {
        let (first, second) = (s.b.min(s.old_a), s.b.max(s.old_a));
        assert_eq!((first, second), (s.b, s.old_a), "the one that is met second is reported");
        s.write(s.old_a, s.version(s.b), b"b", b"1")
    }),
    ("NotNewest", &[], |s| s.write(s.old_a, s.version(s.a) + 1, b"a", b"3")),
    // Another key in the place of `b`, with its checksum.
    ("NotNewest", &[], |s| s.write(s.b, s.version(s.b), b"c", b"1")),
    ("ExtentMagic", EXTENT_LOST, |s| {
        s.store(&s.op.at(Off::<ExtentHead>::new(s.short_extent.off)).magic, 1);
        s.short_extent.off
    }),
    ("ExtentSum", EXTENT_LOST, |s| {
        s.store(&s.op.at(Off::<ExtentHead>::new(s.short_extent.off)).sum, 1);
        s.short_extent.off
    }),
    ("ExtentSum", EXTENT_LOST, |s| {
        s.store(&s.op.at(Off::<ExtentHead>::new(s.short_extent.off)).slots, 1);
        s.short_extent.off
    }),
    // The head of another extent, whose slots are longer: all slots would be read as what they are not.
    ("ExtentSum", EXTENT_LOST, |s| {
        let [from, to] = [s.long_extent, s.short_extent].map(|extent| s.op.at(Off::<ExtentHead>::new(extent.off)));
        for (from, to) in [(&from.lines, &to.lines), (&from.slots, &to.slots), (&from.sum, &to.sum)] {
            s.store(to, s.op.load(from, Ordering::Relaxed));
        }
        s.short_extent.off
    }),
    ("ExtentClass", EXTENT_LOST, |s| s.set_extent(s.short_extent, 5, |slots| slots)),
    ("ExtentSlots", EXTENT_LOST, |s| s.set_extent(s.short_extent, 1, |slots| slots + 1)),
    ("ExtentSlots", EXTENT_LOST, |s| s.set_extent(s.long_extent, 1, |slots| slots)),
    // Not one slot of that size fits.
    ("ExtentSlots", EXTENT_LOST, |s| s.set_extent(s.long_extent, MAX_LINES as u64, |_| 0)),
    ("Version", &[], |s| {
        s.store(s.tag(s.old_long), MAX_VERSION + 1);
        s.old_long
    }),
    // No number is left for the next entry.
    ("Version", &[], |s| {
        s.store(s.tag(s.old_long), MAX_VERSION);
        s.old_long
    }),
    ("Validity", &[], |s| s.set_meta(s.old_a, |_| Meta::from_bits(0))),
    ("Validity", &[], |s| s.set_meta(s.old_a, |meta| Meta::from_bits(meta.to_bits() ^ 1 << 56))),
    ("Fresh", &[], |s| s.set_info(s.fresh, fresh_info(s.fresh + 64))),
    // A value for a tombstone; what needs another size of slot.
    ("Lengths", &[], |s| s.set_info(s.old_a, Info::from_bits(Info::tombstone(1).to_bits() | 1 << 8))),
    ("Lengths", &[], |s| s.set_info(s.old_a, Info::of(LONG.len(), LONG_VALUE.len()))),
];

#[test]
fn a_check_reports_each_damage_by_its_own_class() {
    for (number, (class, with, damage)) in CHECKS.iter().enumerate() {
        with_sound(|sound| {
            assert!(sound.set.faults(sound.op).unwrap().is_empty(), "sound before");
            let offset = damage(sound);
            let faults = sound.set.faults(sound.op).unwrap();
            let found: BTreeSet<_> = faults.iter().map(|(_, fault)| class_of(fault)).collect();
            let expected: BTreeSet<_> = with.iter().copied().chain([*class]).collect();
            assert_eq!(found, expected, "row {number}: {faults:x?}");
            assert!(
                faults.iter().any(|(at, fault)| (*at, class_of(fault)) == (offset, class)),
                "row {number}: {class} at {offset:#x} in {faults:x?}"
            );
            assert_eq!(sound.set.check(sound.op).unwrap().len(), faults.len());
        });
    }
}

#[test]
fn each_class_of_a_check_has_a_row() {
    let rows = || CHECKS.iter().map(|(class, ..)| *class);
    let faults: Vec<_> = FAULTS.iter().copied().filter(|name| *name != "Unreadable").collect();
    assert_each_has_a_row(&faults, rows());
    let parts: Vec<_> = PARTS.iter().copied().filter(|name| !NOT_UNREADABLE.contains(name)).collect();
    assert_each_has_a_row(&parts, rows());
}

/// A pool as bytes, closed unless it says otherwise, and where in it what lies.
struct Closed {
    image: Vec<u8>,
    extent: u64,
    /// Slots: `b`, one of the transaction's, one of several lines, one that was never written.
    b: u64,
    of_transaction: u64,
    long: u64,
    fresh: u64,
    watermark: u64,
    extents: u64,
}

impl Closed {
    fn new() -> Closed {
        Closed::by(|pool| pool.close().unwrap())
    }

    /// As the process leaves it when it dies.
    fn died() -> Closed {
        Closed::by(|_| ())
    }

    fn by(close: impl FnOnce(&Pool<Hardware>)) -> Closed {
        let mut closed = None;
        with_sound(|s| {
            let mut batch = Batch::new();
            batch.insert(b"x", b"1").insert(b"y", b"1");
            s.set.commit(s.op, &batch).unwrap();
            let of_transaction = s.set.shards[0].find(s.op, s.set.key(b"x").unwrap().tag(), b"x").unwrap().off;
            let [watermark, extents] = [WATERMARK, EXTENTS].map(|at| s.op.off_of(&s.set.root.words(s.op)[at]).get());
            let fresh = s.set.arena.free_slots(s.op.medium())[0];
            let places = (s.short_extent.off, s.b, of_transaction, s.long, fresh, watermark, extents);
            closed = Some((s.set.root.pool().clone(), places));
        });
        let (pool, (extent, b, of_transaction, long, fresh, watermark, extents)) = closed.unwrap();
        close(&pool);
        let image = HeapBacking::image_of(pool.mapping());
        Closed { image, extent, b, of_transaction, long, fresh, watermark, extents }
    }

    fn word(&self, at: u64) -> u64 {
        u64::from_le_bytes(self.image[at as usize..][..8].try_into().unwrap())
    }

    fn set_word(&mut self, at: u64, value: u64) -> u64 {
        self.image[at as usize..][..8].copy_from_slice(&value.to_le_bytes());
        at
    }

    fn set_meta(&mut self, slot: u64, change: impl Fn(Meta) -> Meta) -> u64 {
        let at = slot + offset_of!(Head, meta) as u64;
        let meta = change(Meta::from_bits(self.word(at)));
        self.set_word(at, meta.to_bits());
        slot
    }

    fn set_extent(&mut self, lines: u64, more_slots: u64) -> u64 {
        let head = self.extent;
        let slots = self.word(head + offset_of!(ExtentHead, slots) as u64) + more_slots;
        self.set_word(head + offset_of!(ExtentHead, lines) as u64, lines);
        self.set_word(head + offset_of!(ExtentHead, slots) as u64, slots);
        self.set_word(head + offset_of!(ExtentHead, sum) as u64, extent_sum(head, lines, slots));
        head
    }
}

/// What is damaged, and which part an opening then calls corrupt, at the offset that the damage returns.
type Opening = (Part, fn(&mut Closed) -> u64);

const OPENINGS: &[Opening] = &[
    (Part::ExtentMagic, |c| c.set_word(c.extent, 1)),
    (Part::ExtentSum, |c| {
        c.set_word(c.extent + offset_of!(ExtentHead, sum) as u64, 1);
        c.extent
    }),
    (Part::ExtentClass, |c| c.set_extent(5, 0)),
    (Part::ExtentSlots, |c| c.set_extent(1, 1)),
    (Part::Extents, |c| c.set_word(c.extents, c.word(c.extents) + 1)),
    (Part::Version, |c| {
        c.set_word(c.long + 64 + offset_of!(Tail, tag) as u64, MAX_VERSION + 1);
        c.long
    }),
    // No number is left for the next entry.
    (Part::Version, |c| {
        c.set_word(c.long + 64 + offset_of!(Tail, tag) as u64, MAX_VERSION);
        c.long
    }),
    (Part::Validity, |c| c.set_meta(c.b, |_| Meta::from_bits(0))),
    (Part::Fresh, |c| {
        c.set_word(c.fresh + offset_of!(Head, info) as u64, 0);
        c.fresh
    }),
    (Part::Lengths, |c| {
        c.set_word(c.b + offset_of!(Head, info) as u64, Info::of(LONG.len(), LONG_VALUE.len()).to_bits());
        c.b
    }),
    (Part::Line, |c| c.set_meta(c.b, Meta::invalidated)),
    (Part::Line, |c| {
        c.set_word(c.long + 64 + offset_of!(Tail, tag) as u64, 0);
        c.long
    }),
    (Part::EntrySum, |c| {
        c.set_word(c.watermark, 0);
        c.set_word(c.of_transaction + offset_of!(Head, payload) as u64 + 8, 2);
        c.of_transaction
    }),
    (Part::Watermark, |c| c.set_word(c.watermark, MAX_VERSION + 1)),
    (Part::Watermark, |c| c.set_word(c.watermark, MAX_VERSION)),
    (Part::Transaction, |c| {
        c.set_word(c.watermark, 0);
        // One of two entries is gone; the other one is reported.
        c.set_meta(c.of_transaction, Meta::erased);
        0
    }),
];

/// Opens the set for reading.
fn open_image(image: Vec<u8>) -> Result<Arc<PersistentSet<Hardware>>> {
    let backing = HeapBacking::from_image(image).with_limit(1 << 19);
    let pool = PoolOptions::new().read_only(true).open_on(backing, Hardware::PAGE_CACHE).unwrap().recover().unwrap();
    PersistentSet::open_with(&pool, "set", &options())
}

#[test]
fn an_opening_calls_each_damage_by_its_own_part() {
    open_image(Closed::new().image).unwrap();
    for (number, (part, damage)) in OPENINGS.iter().enumerate() {
        let mut closed = Closed::new();
        let at = damage(&mut closed);
        let error = open_image(closed.image).map(drop).unwrap_err();
        let Error::Corrupt { what, offset, .. } = error else { panic!("row {number}: {error}") };
        assert_eq!(what, part.text(), "row {number}");
        assert!(offset == at || at == 0, "row {number}: {offset:#x}, not {at:#x}");
    }
    assert_each_has_a_row(PARTS, OPENINGS.iter().map(|(part, _)| part_name(part)));
}

/// The process dies within a transaction, the first opening afterwards fails, and the pool is closed: what was left is no damage.
#[test]
fn an_opening_that_fails_has_not_recovered_the_set() {
    let mut died = Closed::died();
    died.set_word(died.watermark, 0);
    died.set_meta(died.of_transaction, Meta::erased);
    let at = died.b + offset_of!(Head, meta) as u64;
    let was = died.word(at);
    died.set_word(at, 0);
    let open = |image: Vec<u8>| {
        let backing = HeapBacking::from_image(image).with_limit(1 << 19);
        let pool = PoolOptions::new().open_on(backing, Hardware::PAGE_CACHE).unwrap().recover().unwrap();
        let set = PersistentSet::open_with(&pool, "set", &options());
        (pool, set)
    };
    let (pool, set) = open(died.image);
    assert!(matches!(set.unwrap_err(), Error::Corrupt { .. }));
    pool.close().unwrap();
    died.image = HeapBacking::image_of(pool.mapping());
    died.set_word(at, was);
    // For all that can be read it counts as little.
    for salvage in [true, false] {
        let backing = HeapBacking::from_image(died.image.clone()).with_limit(1 << 19);
        let pool = PoolOptions::new().read_only(salvage).open_on(backing, Hardware::PAGE_CACHE).unwrap();
        let pool = pool.recover().unwrap();
        let set = PersistentSet::open_with(&pool, "set", &options().salvage(salvage)).unwrap();
        let mut session = pool.session().unwrap();
        let found: Vec<Vec<u8>> = content(&set, &session.enter().unwrap()).into_keys().collect();
        assert_eq!(found, [b"a".to_vec(), b"b".to_vec(), LONG.to_vec()], "salvage: {salvage}");
    }
    // An opening that succeeds has recovered it: a slot that is not whole is damage then.
    let (pool, set) = open(died.image);
    drop(set.unwrap());
    pool.close().unwrap();
    died.image = HeapBacking::image_of(pool.mapping());
    died.set_meta(died.b, Meta::invalidated);
    assert!(open(died.image).1.is_err());
}

/// Versions go on from the largest that was found.
#[test]
fn the_largest_version_that_an_opening_accepts_leaves_room_for_more() {
    let mut closed = Closed::new();
    closed.set_word(closed.watermark, MAX_FOUND);
    let pool =
        PoolOptions::new().open_on(HeapBacking::from_image(closed.image).with_limit(1 << 19), Hardware::PAGE_CACHE);
    let pool = pool.unwrap().recover().unwrap();
    let set = open(&pool, &options());
    let mut session = pool.session().unwrap();
    let op = session.enter().unwrap();
    assert!(!set.insert(&op, b"a", b"new").unwrap());
    assert_eq!(set.get_vec(&op, b"a").unwrap().unwrap(), b"new");
    set.commit(&op, Batch::new().insert(b"a", b"1").insert(b"b", b"1")).unwrap();
    assert_eq!(set.get_vec(&op, b"b").unwrap().unwrap(), b"1");
}
