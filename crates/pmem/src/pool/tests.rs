//! What a pool does, on memory and on files.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::*;
use crate::backing::HeapBacking;
use crate::medium::{Rmw, forward};
use crate::pool::layout::{Header, RootEntry, Stamp};
use crate::pool::moments::Moments;
use crate::pool::roots::RootRef;
use crate::space::Grow;
use crate::testing::{Call, FaultBacking, Faults};
use crate::word::Bits;
use crate::{Lines, Op, Owner, Survives};

/// A number in a block of its own, as a structure.
#[derive(Debug)]
struct Cell<M: Medium> {
    root: Root<M>,
    extent: u64,
}

impl<M: Medium> Structure<M> for Cell<M> {
    const KIND: Kind = Kind { tag: *b"cell\0\0\0\0", version: crate::Version::new(1) };
    type Options = u64;
    type Error = Error;

    fn create(session: &mut Session<M>, root: &Root<M>, options: &u64) -> Result<()> {
        let op = session.enter()?;
        let space = root.pool().space();
        let extent = space.activate(&op, space.reserve_extent(&op, root.owner(), 1)?)?;
        let words = root.words(&op);
        op.store(&words[0], extent.off, Ordering::Relaxed);
        op.store(&words[1], *options, Ordering::Relaxed);
        op.write_back(words);
        Ok(())
    }

    fn open(session: &mut Session<M>, root: Root<M>, _options: &u64) -> Result<Self> {
        let op = session.enter()?;
        let extent = op.load(&root.words(&op)[0], Ordering::Relaxed);
        Ok(Cell { root, extent })
    }
}

impl<M: Medium> Cell<M> {
    fn value(&self, op: &Op<'_, M>) -> u64 {
        op.load(&self.root.words(op)[1], Ordering::Relaxed)
    }
}

fn options() -> PoolOptions {
    PoolOptions::new().chunk_size(4096).max_indices(4).lanes(2).pool_id([7; 16]).boot_id([9; 16])
}

fn heap_pool() -> Pool {
    options().create_on(HeapBacking::new(96 << 10), Hardware::PAGE_CACHE).unwrap()
}

fn reopen(pool: &Pool) -> Pool {
    let image = HeapBacking::image_of(pool.mapping());
    options().open_on(HeapBacking::from_image(image), Hardware::PAGE_CACHE).unwrap().recover().unwrap()
}

#[test]
fn a_structure_is_found_again_by_its_name() {
    let pool = heap_pool();
    let cell = pool.open_structure::<Cell<_>>("a", &5).unwrap();
    assert_eq!(cell.root.owner(), Owner(0));
    let again = pool.open_structure::<Cell<_>>("a", &6).unwrap();
    assert!(Arc::ptr_eq(&cell, &again), "the same name twice is the same structure");
    let pool = reopen(&pool);
    let cell = pool.open_existing::<Cell<_>>("a", &0).unwrap();
    let mut session = pool.session().unwrap();
    let op = session.enter().unwrap();
    assert_eq!(cell.value(&op), 5);
    assert_eq!(pool.space().extents(&op, Owner(0)).len(), 1);
    assert_eq!(pool.space().extents(&op, Owner(0))[0].off, cell.extent);
}

fn open_image(image: Vec<u8>) -> Result<Pool> {
    options().open_on(HeapBacking::from_image(image), Hardware::PAGE_CACHE)?.recover()
}

/// What an error is called that a flipped bit in a header word must lead to; `None` where it can do no harm.
fn field_of_word(word: usize) -> Option<&'static str> {
    Some(match word {
        0 => "magic",
        1 => "format version",
        2..=5 => "pool id",
        6 => "compatible features",
        7 => "incompatible features",
        8 => "layout id",
        9 => "hash id",
        10 => "chunk size",
        11 => "number of lanes",
        12 => "number of indices",
        13 => "creation checksum",
        16 => "size",
        17 => "state",
        24..=31 => "boot id",
        _ => return None,
    })
}

#[test]
fn every_flipped_bit_of_the_header_is_named_or_harmless() {
    let pool = heap_pool();
    pool.open_structure::<Cell<_>>("a", &5).unwrap();
    pool.open_structure::<Cell<_>>("b", &6).unwrap();
    pool.rename("b", "c").unwrap();
    let open = HeapBacking::image_of(pool.mapping());
    pool.close().unwrap();
    let closed = HeapBacking::image_of(pool.mapping());
    for image in [&open, &closed] {
        // All bits of the header's words, and one of each word that is not read.
        let unread = (32..geometry::HEADER_SIZE as usize / 8).map(|word| 64 * word + word % 64);
        for bit in (0..64 * 32).chain(unread) {
            let flip = |image: &mut [u8]| image[bit / 8] ^= 1 << (bit % 8);
            let mut flipped = image.clone();
            flip(&mut flipped);
            let opened = open_image(flipped);
            let Some(field) = field_of_word(bit / 64) else {
                assert_eq!(opened.unwrap().indices().unwrap().len(), 2, "bit {bit}");
                continue;
            };
            let error = opened.map(|_| ()).expect_err(field);
            let text = error.to_string();
            assert!(!text.contains('\n'), "one line: {text}");
            match error {
                Error::NotAPool { .. } => assert_eq!(field, "magic"),
                Error::Damaged { field: named, offset, .. } => {
                    assert_eq!((named, offset), (field, bit as u64 / 64 * 8));
                }
                other => panic!("bit {bit} of {field}: {other}"),
            }
        }
    }
    assert_eq!(size_of::<Header>(), 32 * 8);
}

/// Earlier builds left the number of a root entry out of its checksum. Their pools are told by the layout, and not taken for damaged ones.
#[test]
fn a_pool_of_another_layout_is_refused_by_name() {
    const EARLIER: u32 = 0x7da1_7fb5;
    let pool = heap_pool();
    pool.open_structure::<Cell<_>>("a", &5).unwrap();
    pool.close().unwrap();
    let mut image = HeapBacking::image_of(pool.mapping());
    let mut put = |word: u32, value: u32| {
        image[word as usize * 8..][..8].copy_from_slice(&Stamp::of(word, value).to_bits().to_le_bytes());
        image[8..13 * 8].chunks(8).flat_map(|word| word[..4].to_vec()).collect::<Vec<u8>>()
    };
    let values = put(8, EARLIER);
    put(13, crc32c::crc32c(&values));
    let error = open_image(image).map(|_| ()).unwrap_err();
    assert!(matches!(error, Error::Format { found, .. } if found.layout() == EARLIER), "{error}");
    assert!(error.to_string().contains("open it with the build that wrote it"), "{error}");
}

#[test]
fn root_entries_that_change_places_are_found() {
    let pool = heap_pool();
    for name in ["first", "other"] {
        pool.open_structure::<Cell<_>>(name, &5).unwrap();
    }
    pool.close().unwrap();
    let image = HeapBacking::image_of(pool.mapping());
    let [first, other] = [0, 1].map(|number| pool.geometry().root_off(Owner(number)) as usize);
    // The line of the state, with any of the others, or the line of the name alone.
    for lines in (1..16).step_by(2).chain([2]) {
        let mut changed = image.clone();
        for line in (0..4).filter(|line| lines >> line & 1 == 1) {
            (0..64).for_each(|byte| changed.swap(first + line * 64 + byte, other + line * 64 + byte));
        }
        let found = open_image(changed).unwrap().indices();
        assert!(matches!(found, Err(Error::DamagedRoot { .. })), "lines {lines:#b}: {found:?}");
    }
}

#[test]
fn every_flipped_bit_of_a_root_entry_is_found_or_harmless() {
    let pool = heap_pool();
    pool.open_structure::<Cell<_>>("first name", &5).unwrap();
    pool.rename("first name", "name").unwrap();
    pool.close().unwrap();
    let image = HeapBacking::image_of(pool.mapping());
    let entry = pool.geometry().root_off(Owner(0)) as usize;
    for bit in 0..8 * size_of::<RootEntry>() {
        let mut flipped = image.clone();
        flipped[entry + bit / 8] ^= 1 << (bit % 8);
        let pool = open_image(flipped).unwrap();
        let found = pool.indices();
        // State, kind and version; and the part of buffer B that the name takes.
        let counts = bit < 3 * 64 || (128 * 8..132 * 8).contains(&bit);
        assert_eq!(found.is_err(), counts, "bit {bit}: {found:?}");
        if counts {
            assert!(matches!(found, Err(Error::DamagedRoot { slot: 0, .. })));
            assert!(matches!(pool.open_structure::<Cell<_>>("name", &1), Err(Error::DamagedRoot { .. })));
        } else if (7 * 64..8 * 64).contains(&bit) {
            // Whether it asks for recovery cannot be told: nothing is handed out, unless somebody takes that on himself.
            assert!(matches!(pool.open_structure::<Cell<_>>("name", &1), Err(Error::DamagedRoot { slot: 0, .. })));
            assert!(matches!(pool.recover_logs(&[]), Err(Error::DamagedRoot { slot: 0, .. })));
            pool.accept_pending_records();
            pool.open_existing::<Cell<_>>("name", &1).unwrap();
        }
    }
}

/// Growth syncs the pool's file: not while a checkpoint has written to it and not synced it, whose failure its sync would be told.
#[test]
fn growth_does_not_sync_the_file_beside_a_checkpoint() {
    let dir = tempfile::tempdir().unwrap();
    let options = options().durability(crate::journal::Level::Immediate).initial_size(1 << 20).max_size(1 << 30);
    let pool = options.create(dir.path().join("pool")).unwrap();
    let (file, len) = (&pool.inner.file, pool.mapping().len());
    let alone = file.journal.get().expect("a journal").pool_file();
    std::thread::scope(|scope| {
        let grows = scope.spawn(|| file.grow(len + 1).unwrap());
        std::thread::sleep(std::time::Duration::from_millis(50));
        assert_eq!(pool.mapping().len(), len);
        drop(alone);
        assert!(grows.join().unwrap() > len && pool.mapping().len() > len);
    });
}

#[test]
fn a_damaged_state_can_be_accepted() {
    let pool = heap_pool();
    pool.open_structure::<Cell<_>>("a", &5).unwrap();
    for word in [17, 24, 29] {
        let mut image = HeapBacking::image_of(pool.mapping());
        image[8 * word] ^= 0x40;
        let accepting = options().accept_unclean(true);
        let unrecovered = accepting.open_on(HeapBacking::from_image(image), Hardware::PAGE_CACHE).unwrap();
        assert_eq!(unrecovered.state(), State::Unknown);
        let pool = unrecovered.recover().unwrap();
        assert_eq!(pool.indices().unwrap().len(), 1);
        // All of it is sound again.
        open_image(HeapBacking::image_of(pool.mapping())).unwrap();
        pool.close().unwrap();
        open_image(HeapBacking::image_of(pool.mapping())).unwrap();
    }
}

#[test]
fn the_state_says_who_had_the_pool_open() {
    let closed = |pool: &Pool| {
        pool.close().unwrap();
        HeapBacking::image_of(pool.mapping())
    };
    let state = |image: &[u8]| {
        options().open_on(HeapBacking::from_image(image.to_vec()), Hardware::PAGE_CACHE).unwrap().state()
    };
    let pool = heap_pool();
    let boot = BootId([9; 16]);
    let dirty = |survives| State::Dirty { boot, survives };
    assert_eq!(state(&HeapBacking::image_of(pool.mapping())), dirty(Survives::ProcessDeath));
    let image = closed(&pool);
    assert_eq!(state(&image), State::Clean);
    let mut image = image;
    for round in 0..3u8 {
        let options = options().boot_id([round + 20; 16]);
        let pool = options.open_on(HeapBacking::from_image(image), Hardware::PAGE_CACHE).unwrap().recover().unwrap();
        let (boot, survives) = (BootId([round + 20; 16]), Survives::ProcessDeath);
        assert_eq!(pool.stats().unwrap().state, State::Dirty { boot, survives });
        image = closed(&pool);
    }
    if let Some(pmem) = Hardware::for_pmem() {
        // What a power-safe medium has written is whole under any boot, for whoever opens it.
        let pool = options().create_on(HeapBacking::new(1 << 20), pmem).unwrap();
        let image = HeapBacking::image_of(pool.mapping());
        assert_eq!(state(&image), dirty(Survives::PowerFailure));
        let later = options().boot_id([1; 16]);
        later.open_on(HeapBacking::from_image(image), Hardware::PAGE_CACHE).unwrap().recover().unwrap();
    }
}

#[test]
fn what_was_being_created_or_dropped_is_gone_after_recovery() {
    let pool = heap_pool();
    let free = pool.stats().unwrap().space.free;
    pool.open_structure::<Cell<_>>("live", &1).unwrap();
    let cell = pool.open_structure::<Cell<_>>("dropping", &2).unwrap();
    let owner = cell.root.owner();
    drop(cell);
    let mut session = pool.session().unwrap();
    let op = session.enter().unwrap();
    let root = RootRef::new(&op, pool.geometry(), owner);
    root.begin_drop(root.read().unwrap().unwrap());
    let creating = Owner(3);
    RootRef::new(&op, pool.geometry(), creating).begin(<Cell<Hardware> as Structure<_>>::KIND, "creating");
    let extent = pool.space().reserve_extent(&op, creating, 9000).unwrap();
    pool.space().activate(&op, extent).unwrap();
    drop(op);
    assert_eq!(pool.stats().unwrap().space.by_owner.len(), 3);
    let pool = reopen(&pool);
    let stats = pool.stats().unwrap();
    assert_eq!(stats.indices.iter().map(|i| i.name.as_str()).collect::<Vec<_>>(), ["live"]);
    assert_eq!(stats.space.by_owner, [(Owner(0), 4096)]);
    assert_eq!(stats.space.free, free - 4096);
}

/// An entry is used again: the index that has it finds no word of the one before.
#[test]
fn words_of_a_dropped_index_are_zero_in_the_next_one() {
    let pool = heap_pool();
    let mut session = pool.session().unwrap();
    let op = session.enter().unwrap();
    let root = RootRef::new(&op, pool.geometry(), Owner(2));
    let kind = <Cell<Hardware> as Structure<_>>::KIND;
    root.begin(kind, "before");
    let seat = root.seat();
    let words = || root.user().iter().chain([&seat.opened, &seat.swept, &seat.target, &seat.cursor]);
    words().for_each(|word| op.store(word, 7, Ordering::Relaxed));
    root.ask(Moments::BEFORE);
    root.keep();
    root.free();
    root.begin(kind, "after");
    assert!(words().all(|word| op.load(word, Ordering::Relaxed) == 0));
    assert_eq!((root.asks(), root.kept()), (Ok(Moments::NONE), Some([0; 2])));
    // What one entry keeps is nothing to another.
    let other = RootRef::new(&op, pool.geometry(), Owner(3));
    assert_eq!((other.kept(), other.spare()), (None, None));
}

#[test]
fn a_dropped_index_gives_its_space_and_its_entry_back() {
    let pool = heap_pool();
    let free = pool.stats().unwrap().space.free;
    for round in 0..20 {
        for name in ["a", "b", "c", "d"] {
            pool.open_structure::<Cell<_>>(name, &round).unwrap();
        }
        for name in ["b", "a", "d", "c"] {
            pool.drop_index(name).unwrap();
        }
    }
    assert_eq!(pool.stats().unwrap().space.free, free);
    assert!(reopen(&pool).indices().unwrap().is_empty());
}

#[test]
fn a_new_index_finds_its_words_zero() {
    let pool = heap_pool();
    pool.open_structure::<Cell<_>>("a", &77).unwrap();
    pool.drop_index("a").unwrap();
    struct Look;
    impl<M: Medium> Structure<M> for Look {
        const KIND: Kind = Kind { tag: *b"look\0\0\0\0", version: crate::Version::new(1) };
        type Options = ();
        type Error = Error;
        fn create(session: &mut Session<M>, root: &Root<M>, (): &()) -> Result<()> {
            let op = session.enter()?;
            assert_eq!(root.owner(), Owner(0));
            assert!(root.words(&op).iter().all(|w| op.load(w, Ordering::Relaxed) == 0));
            Ok(())
        }
        fn open(_: &mut Session<M>, _: Root<M>, (): &()) -> Result<Self> {
            Ok(Look)
        }
    }
    pool.open_structure::<Look>("z", &()).unwrap();
}

/// A structure whose creation takes space and then fails or panics.
struct Failing;

impl<M: Medium> Structure<M> for Failing {
    const KIND: Kind = Kind { tag: *b"failing\0", version: crate::Version::new(1) };
    type Options = bool;
    type Error = Error;
    fn create(session: &mut Session<M>, root: &Root<M>, panics: &bool) -> Result<()> {
        let op = session.enter()?;
        let reserved = root.pool().space().reserve_extent(&op, root.owner(), 1)?;
        root.pool().space().activate(&op, reserved)?;
        assert!(!panics, "planted");
        Err(Error::NoSuchIndex { name: "planted".into() })
    }
    fn open(_: &mut Session<M>, _: Root<M>, _: &bool) -> Result<Self> {
        Ok(Failing)
    }
}

/// What the table of space says after closing can make sense, and not be what it said before.
#[test]
fn a_table_of_space_that_has_changed_since_closing_is_found() {
    let pool = heap_pool();
    drop(pool.open_structure::<Cell<_>>("one", &1).unwrap());
    let open_image = HeapBacking::image_of(pool.mapping());
    pool.close().unwrap();
    let closed = HeapBacking::image_of(pool.mapping());
    let table = pool.geometry().heap_off() as usize;
    let found = |pool: &Pool| {
        let findings = pool.check_space(&pool.session().unwrap().enter().unwrap(), |_| true);
        assert!(
            findings.iter().all(|finding| matches!(finding, crate::space::Finding::NotAsClosed { .. })),
            "{findings:?}"
        );
        findings.len()
    };
    for image in [closed.clone(), open_image.clone()] {
        assert_eq!(found(&open_image_of(image)), 0);
    }
    // Each word of the table and of its mark, zeroed.
    let words = (table..table + 4096).step_by(8).chain((256..288).step_by(8));
    let mut damaged = Vec::new();
    for word in words.filter(|word| closed[*word..word + 8] != [0; 8]) {
        let mut image = closed.clone();
        image[word..word + 8].fill(0);
        if word != 256 + 16 {
            assert_eq!(found(&open_image_of(image.clone())), 1, "{word:#x}");
            damaged.push(image);
        }
    }
    assert!(damaged.len() > 3);
    for image in damaged {
        // Closing it once more does not make it right.
        let pool = open_image_of(image);
        pool.close().unwrap();
        assert_eq!(found(&reopen(&pool)), 1);
    }
    // A crash makes the mark void; the next closing makes a new one.
    let pool = open_image_of(closed);
    drop(pool.open_structure::<Cell<_>>("two", &2).unwrap());
    let pool = open_image_of(HeapBacking::image_of(pool.mapping()));
    assert_eq!(found(&pool), 0);
    pool.close().unwrap();
    assert_eq!(found(&reopen(&pool)), 0);
}

fn open_image_of(image: Vec<u8>) -> Pool {
    open_image(image).unwrap()
}

#[test]
fn a_creation_that_fails_or_panics_leaves_nothing() {
    let pool = heap_pool();
    let free = pool.stats().unwrap().space.free;
    for _ in 0..10 {
        assert!(matches!(pool.open_structure::<Failing>("f", &false), Err(Error::NoSuchIndex { .. })));
        let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            let _ = pool.open_structure::<Failing>("f", &true);
        }));
        assert!(panicked.is_err());
    }
    assert_eq!(pool.stats().unwrap().space.free, free);
    assert!(pool.indices().unwrap().is_empty());
    pool.open_structure::<Cell<_>>("f", &1).unwrap();
}

#[test]
fn threads_that_open_one_name_share_one_structure() {
    let pool = heap_pool();
    for round in 0..50 {
        let name = format!("n{}", round % 3);
        let cells: Vec<_> = std::thread::scope(|s| {
            let open = || pool.open_structure::<Cell<_>>(&name, &1).unwrap();
            let threads: Vec<_> = (0..4).map(|_| s.spawn(open)).collect();
            threads.into_iter().map(|t| t.join().unwrap()).collect()
        });
        assert!(cells.iter().all(|c| Arc::ptr_eq(c, &cells[0])));
        assert_eq!(cells[0].root.name(), name);
        pool.rename(&name, "elsewhere").unwrap();
        assert_eq!(cells[0].root.name(), "elsewhere");
        assert!(Arc::ptr_eq(&cells[0], &pool.open_existing::<Cell<_>>("elsewhere", &0).unwrap()));
        drop(cells);
        pool.drop_index("elsewhere").unwrap();
    }
}

#[test]
fn a_panic_in_an_operation_poisons_the_structure_and_leaves_the_pool_unclean() {
    let pool = heap_pool();
    let cell = pool.open_structure::<Cell<_>>("a", &1).unwrap();
    let poison = Poison::new(cell.root.clone());
    let mut session = pool.session().unwrap();
    drop(poison.guard(&session.enter().unwrap()).unwrap());
    let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        let op = session.enter().unwrap();
        let _guard = poison.guard(&op).unwrap();
        panic!("planted");
    }));
    assert!(panicked.is_err());
    let text = "index \"a\" met a panic in the middle of an operation; drop every handle to it and open the pool again, which \
                recovers it";
    assert_eq!(poison.guard(&session.enter().unwrap()).unwrap_err().to_string(), text);
    drop((poison, cell));
    assert_eq!(pool.close().unwrap_err().to_string(), text);
    let image = HeapBacking::image_of(pool.mapping());
    let found = options().open_on(HeapBacking::from_image(image), Hardware::PAGE_CACHE).unwrap();
    assert_ne!(found.state(), State::Clean);
    found.recover().unwrap().open_existing::<Cell<_>>("a", &0).unwrap();
}

/// The panic comes when closing has begun to wait for the operation, which a look at the gate tells.
#[test]
fn a_panic_in_an_operation_that_closing_waits_for_leaves_the_pool_unclean() {
    let pool = heap_pool();
    let cell = pool.open_structure::<Cell<_>>("a", &1).unwrap();
    let poison = Poison::new(cell.root.clone());
    let mut session = pool.session().unwrap();
    let text = std::thread::scope(|s| {
        let op = session.enter().unwrap();
        // As `close` does it when the index was opened after it had looked for open ones. It is gone before the operation ends.
        let closing = s.spawn(|| pool.inner.shut(Duration::from_secs(3600)));
        while pool.mapping().gate().load(Ordering::Acquire) != crate::gate::CLOSED {
            std::thread::yield_now();
        }
        let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            let _guard = poison.guard(&op).unwrap();
            panic!("planted");
        }));
        assert!(panicked.is_err());
        drop((cell, poison));
        drop(op);
        closing.join().unwrap().unwrap_err().to_string()
    });
    assert!(text.starts_with("index \"a\" met a panic in the middle of an operation"), "{text}");
    let image = HeapBacking::image_of(pool.mapping());
    let found = options().open_on(HeapBacking::from_image(image), Hardware::PAGE_CACHE).unwrap();
    assert_ne!(found.state(), State::Clean);
}

/// Memory that counts the turns of those who wait.
#[derive(Clone, Copy, Debug)]
struct Waited {
    inner: Hardware,
    turns: &'static AtomicU64,
}

// SAFETY: every access is handed on unchanged; it only counts.
unsafe impl Medium for Waited {
    forward! {
        survives, attach, detach, load, store, store_nt, store_nt_line, compare_exchange, rmw, checked,
        order, write_back, shared_load, shared_store, shared_compare_exchange, shared_rmw, synced
    }

    fn describe(self) -> String {
        self.inner.describe()
    }

    fn fence(self) {
        self.inner.fence();
    }

    fn spin(self, turn: u32) {
        self.turns.fetch_add(1, Ordering::Relaxed);
        self.inner.spin(turn);
    }
}

/// Closes a pool while something happens between the look for open indices and the closing of the gate: there `close` waits for
/// the end of another quiescence.
fn close_around<T>(
    turns: &'static AtomicU64,
    between: impl FnOnce(&Pool<Waited>) -> T,
) -> (Pool<Waited>, T, Result<()>) {
    let medium = Waited { inner: Hardware::PAGE_CACHE, turns };
    let pool = options().create_on(HeapBacking::new(96 << 10), medium).unwrap();
    let (happened, closed) = std::thread::scope(|s| {
        let turn = pool.mapping().quiescing().lock(medium);
        let before = turns.load(Ordering::Relaxed);
        let closing = s.spawn(|| pool.close());
        while turns.load(Ordering::Relaxed) == before {
            std::thread::yield_now();
        }
        let happened = between(&pool);
        drop(turn);
        (happened, closing.join().unwrap())
    });
    (pool, happened, closed)
}

#[test]
fn an_index_that_is_opened_when_closing_has_looked_for_open_ones_keeps_the_pool_open() {
    static TURNS: AtomicU64 = AtomicU64::new(0);
    let open = |pool: &Pool<Waited>| pool.open_structure::<Cell<_>>("late", &7).unwrap();
    let (pool, cell, closed) = close_around(&TURNS, open);
    let text = closed.unwrap_err().to_string();
    assert!(text.starts_with("index \"late\" is in use"), "{text}");
    let state = |pool: &Pool<Waited>| {
        let image = HeapBacking::image_of(pool.mapping());
        options().open_on(HeapBacking::from_image(image), Hardware::PAGE_CACHE).unwrap().state()
    };
    assert_ne!(state(&pool), State::Clean);
    assert_eq!(cell.value(&pool.session().unwrap().enter().unwrap()), 7);
    drop(cell);
    pool.close().unwrap();
    assert_eq!(state(&pool), State::Clean);
}

#[test]
fn epochs_that_are_opened_when_closing_has_looked_for_open_indices_end_with_a_boundary() {
    static TURNS: AtomicU64 = AtomicU64::new(0);
    let open = |pool: &Pool<Waited>| {
        let epochs = pool.epochs().unwrap();
        let ticket = epochs.ticket(&pool.session().unwrap().enter().unwrap());
        (epochs, ticket)
    };
    let (_pool, (epochs, ticket), closed) = close_around(&TURNS, open);
    closed.unwrap();
    assert!(epochs.is_durable(ticket), "epoch {} has not ended", ticket.epoch());
}

#[test]
fn a_guard_that_is_dropped_while_an_older_panic_unwinds_does_not_poison() {
    let pool = heap_pool();
    let cell = pool.open_structure::<Cell<_>>("a", &1).unwrap();
    let poison = Poison::new(cell.root.clone());
    struct Cleanup<'a>(&'a Pool, &'a Poison<Hardware>);
    impl Drop for Cleanup<'_> {
        fn drop(&mut self) {
            let mut session = self.0.session().unwrap();
            drop(self.1.guard(&session.enter().unwrap()).unwrap());
        }
    }
    let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        let _cleanup = Cleanup(&pool, &poison);
        panic!("planted");
    }));
    assert!(panicked.is_err());
    poison.check(&pool.session().unwrap().enter().unwrap()).unwrap();
}

#[test]
fn a_pool_grows_and_is_as_long_afterwards() {
    let options = options().initial_size(1);
    let pool = options.create_on(HeapBacking::new(1 << 22), Hardware::PAGE_CACHE).unwrap();
    let before = pool.mapping().len();
    assert_eq!(before, pool.geometry().min_size());
    let mut session = pool.session().unwrap();
    let op = session.enter().unwrap();
    let mut taken = Vec::new();
    let full = loop {
        match pool.space().reserve_extent(&op, Owner(0), 50_000) {
            Ok(reserved) => taken.push(pool.space().activate(&op, reserved).unwrap()),
            Err(error) => break error,
        }
    };
    assert!(matches!(full, Error::Full { .. }), "{full}");
    assert!(taken.len() >= 75, "{}", taken.len());
    taken.sort();
    drop(op);
    assert_eq!(pool.stats().unwrap().size, pool.mapping().len());
    let again = reopen(&pool);
    assert_eq!(again.mapping().len(), pool.mapping().len());
    assert_eq!(again.space().extents(&again.session().unwrap().enter().unwrap(), Owner(0)), taken);
}

#[test]
fn every_fault_of_the_backing_is_an_error_and_then_all_is_well() {
    for call in Call::ALL {
        for n in 1..8 {
            let faults = Faults::default();
            let backing = || FaultBacking::new(HeapBacking::new(1 << 22), faults.clone());
            let options = options().initial_size(1);
            faults.fail(call, n, std::io::ErrorKind::Other);
            let Ok(pool) = options.create_on(backing(), Hardware::PAGE_CACHE) else { continue };
            let mut session = pool.session().unwrap();
            let op = session.enter().unwrap();
            for _ in 0..4 {
                // An attempt that fails leaves the pool as it was, and the next one does better.
                let len = pool.mapping().len();
                match pool.space().reserve_extent(&op, Owner(0), 100_000) {
                    Ok(reserved) => _ = pool.space().activate(&op, reserved).unwrap(),
                    Err(error) => {
                        assert!(error.to_string().contains("planted"), "{error}");
                        assert_eq!(pool.mapping().len(), len);
                        let reserved = pool.space().reserve_extent(&op, Owner(0), 100_000).unwrap();
                        pool.space().activate(&op, reserved).unwrap();
                    }
                }
            }
            drop(op);
            let image = HeapBacking::image_of(pool.mapping());
            let closed = pool.close();
            assert!(closed.is_ok() || closed.unwrap_err().to_string().contains("planted"));
            faults.fail(call, n, std::io::ErrorKind::Other);
            let backing = FaultBacking::new(HeapBacking::from_image(image.clone()), faults.clone());
            let opened = options.open_on(backing, Hardware::PAGE_CACHE).and_then(Unrecovered::recover);
            assert!(opened.is_ok() || opened.unwrap_err().to_string().contains("planted"));
            let pool = open_image(image).unwrap();
            assert_eq!(pool.space().extents(&pool.session().unwrap().enter().unwrap(), Owner(0)).len(), 4);
        }
    }
}

#[test]
fn closing_waits_for_operations_and_the_last_handle_closes() {
    let pool = heap_pool();
    let mut session = pool.session().unwrap();
    let op = session.enter().unwrap();
    std::thread::scope(|s| {
        let closing = s.spawn(|| pool.close());
        std::thread::sleep(Duration::from_millis(20));
        assert!(!closing.is_finished());
        drop(op);
        closing.join().unwrap().unwrap();
    });
    let pool = heap_pool();
    let mapping = pool.mapping().clone();
    let clone = pool.clone();
    drop(pool);
    drop(clone.open_structure::<Cell<_>>("a", &1).unwrap());
    let cell = clone.open_structure::<Cell<_>>("a", &1).unwrap();
    drop(clone);
    assert!(mapping.session().unwrap().enter().is_ok(), "a structure keeps its pool open");
    drop(cell);
    assert!(mapping.session().unwrap().enter().is_err());
    let found = options().open_on(HeapBacking::from_image(HeapBacking::image_of(&mapping)), Hardware::PAGE_CACHE);
    assert_eq!(found.unwrap().state(), State::Clean);
}
