//! Every error of a pool, by its one line.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use durix_pmem::backing::{Access, Backing, BackingKind, FileBacking, FileId, HeapBacking, Window};
use durix_pmem::journal::{BesidePool, DiskJournal, JournalFile, JournalPlace, Level};
use durix_pmem::pool::{Kind, Root, Structure};
use durix_pmem::testing::{Call, FaultBacking, Faults};
use durix_pmem::{Error, Hardware, Medium, Pool, PoolOptions, Session, Unsettled};

/// A structure without content, of a kind that a test chooses.
struct Empty<const VERSION: u32>;

impl<M: Medium, const VERSION: u32> Structure<M> for Empty<VERSION> {
    const KIND: Kind = Kind { tag: *b"empty\0\0\0", version: durix_pmem::Version::new(VERSION) };
    type Options = ();
    type Error = Error;
    fn create(_: &mut Session<M>, _: &Root<M>, (): &()) -> Result<(), Error> {
        Ok(())
    }
    fn open(_: &mut Session<M>, _: Root<M>, (): &()) -> Result<Self, Error> {
        Ok(Empty)
    }
}

/// A structure that keeps its root, as structures do.
struct Holder<M: Medium>(Root<M>);

impl<M: Medium> Structure<M> for Holder<M> {
    const KIND: Kind = Kind { tag: *b"holder\0\0", version: durix_pmem::Version::new(3) };
    type Options = ();
    type Error = Error;
    fn create(_: &mut Session<M>, _: &Root<M>, (): &()) -> Result<(), Error> {
        Ok(())
    }
    fn open(_: &mut Session<M>, root: Root<M>, (): &()) -> Result<Self, Error> {
        Ok(Holder(root))
    }
}

struct Bench {
    dir: tempfile::TempDir,
}

impl Bench {
    fn new() -> Self {
        Bench { dir: tempfile::tempdir().unwrap() }
    }

    fn path(&self) -> PathBuf {
        self.dir.path().join("x.pool")
    }

    /// The error's text, with the file called PATH.
    #[track_caller]
    fn text<T>(&self, result: Result<T, Error>) -> String {
        let Err(error) = result else { panic!("no error") };
        let text = error.to_string().replace(&self.path().display().to_string(), "PATH");
        assert!(!text.contains('\n'), "one line: {text}");
        text
    }

    fn pool(&self) -> Pool {
        options().create(self.path()).unwrap()
    }

    /// A closed pool with these bytes changed.
    fn damaged(&self, offset: usize, bytes: &[u8]) {
        let _ = std::fs::remove_file(self.path());
        self.pool().close().unwrap();
        let mut image = std::fs::read(self.path()).unwrap();
        image[offset..offset + bytes.len()].copy_from_slice(bytes);
        std::fs::write(self.path(), image).unwrap();
    }
}

fn options() -> PoolOptions {
    PoolOptions::new().initial_size(1).chunk_size(4096).max_indices(2).lanes(2).boot_id([1; 16])
}

/// What to do with a file of another version.
const ELSEWHERE: &str =
    "open it with the build that wrote it; to bring it here, run `durix dump` there and `durix restore` here";

/// The version of the pools of this build, as its header says it.
struct Version {
    number: u32,
    layout: u32,
    /// As messages say it.
    own: String,
}

fn own_version(bench: &Bench) -> Version {
    bench.damaged(0, &[]);
    let image = std::fs::read(bench.path()).unwrap();
    let [number, layout] = [8, 64].map(|at| u32::from_le_bytes(image[at..at + 4].try_into().unwrap()));
    let version = durix_pmem::Version::from_word(u64::from(layout) << 32 | u64::from(number));
    Version { number, layout, own: version.to_string() }
}

/// A header word with a check that holds.
fn stamp(offset: u64, value: u32) -> [u8; 8] {
    let crc = crc32c::crc32c(&((offset / 8) << 32 | u64::from(value)).to_le_bytes());
    (u64::from(crc) << 32 | u64::from(value)).to_le_bytes()
}

#[test]
fn a_foreign_file_is_never_overwritten() {
    let bench = Bench::new();
    let foreign = b"{\"not\": \"a pool\"}".repeat(1000);
    std::fs::write(bench.path(), &foreign).unwrap();
    let text = "PATH is not a Durix pool (0x22203a22746f6e22 as its first word); it is left as it is";
    let text = text.replace("0x22203a22746f6e22", &format!("{:#018x}", u64::from_le_bytes(*b"{\"not\": ")));
    assert_eq!(bench.text(options().create(bench.path())), text);
    assert_eq!(bench.text(options().open(bench.path())), text);
    assert_eq!(bench.text(options().open_or_create(bench.path())), text);
    assert_eq!(bench.text(Pool::peek(bench.path())), text);
    assert_eq!(std::fs::read(bench.path()).unwrap(), foreign);

    std::fs::write(bench.path(), "hello").unwrap();
    assert_eq!(
        bench.text(options().open_or_create(bench.path())),
        "PATH is not a Durix pool (5 bytes in all); it is left as it is"
    );
    assert_eq!(
        bench.text(options().open(bench.path())),
        "PATH is not a Durix pool (5 bytes in all); it is left as it is"
    );
    // Zeroes in front do not make it ours.
    let mut zeroes = vec![0; 100_000];
    zeroes[99_999] = 1;
    std::fs::write(bench.path(), &zeroes).unwrap();
    assert!(matches!(options().create(bench.path()), Err(Error::NotAPool { .. })));
    assert_eq!(std::fs::read(bench.path()).unwrap(), zeroes);
}

#[test]
fn an_interrupted_creation_says_so_and_is_repeated() {
    let bench = Bench::new();
    let creating = !u64::from_le_bytes(*b"DURIXpm\x1a");
    let mut half = vec![0xAB; 50_000];
    half[..8].copy_from_slice(&creating.to_le_bytes());
    for left in [Vec::new(), vec![0; 100], vec![0; 4096], vec![0; 70_000], half[..4096].to_vec(), half] {
        std::fs::write(bench.path(), &left).unwrap();
        if left.is_empty() || left.len() >= 4096 {
            assert_eq!(
                bench.text(options().open(bench.path())),
                "the creation of PATH was interrupted; create it again"
            );
        }
        options().create(bench.path()).unwrap().close().unwrap();
        options().open(bench.path()).unwrap().close().unwrap();
        std::fs::write(bench.path(), &left).unwrap();
        options().open_or_create(bench.path()).unwrap().close().unwrap();
        options().open(bench.path()).unwrap().close().unwrap();
    }
}

#[test]
fn a_pool_is_not_created_twice() {
    let bench = Bench::new();
    bench.pool().close().unwrap();
    assert_eq!(bench.text(options().create(bench.path())), "PATH holds a pool already; open it, or remove it first");
}

#[test]
fn a_missing_file_is_an_error_of_the_system() {
    let bench = Bench::new();
    assert_eq!(bench.text(options().open(bench.path())), "opening PATH: No such file or directory (os error 2)");
    assert!(!bench.path().exists());
}

#[test]
fn a_second_opener_can_wait() {
    let bench = Bench::new();
    let pool = bench.pool();
    let patient = options().open_timeout(Duration::from_secs(30));
    std::thread::scope(|scope| {
        let second = scope.spawn(|| patient.open(bench.path()).map(|pool| pool.close()));
        std::thread::sleep(Duration::from_millis(50));
        assert!(!second.is_finished());
        pool.close().unwrap();
        second.join().unwrap().unwrap().unwrap();
    });
    let _pool = options().open(bench.path()).unwrap();
    let begun = Instant::now();
    let impatient = options().open_timeout(Duration::from_millis(30)).open(bench.path());
    assert!(matches!(impatient, Err(Error::Locked { .. })) && begun.elapsed() >= Duration::from_millis(30));
}

#[test]
fn a_second_opener_is_refused() {
    let bench = Bench::new();
    let pool = bench.pool();
    let text = bench.text(options().open(bench.path()));
    let (start, end) = (
        "PATH is open already in this process",
        "; close it there, wait for that with `open_timeout`, read a copy that it makes with `Db::copy_to`, or look at it with `Pool::peek`",
    );
    // A container may not show who has it.
    assert!([start.to_string() + end, format!("{start} or another{end}")].contains(&text), "{text}");
    assert_eq!(bench.text(options().open(bench.path())), text);
    assert_eq!(bench.text(options().create(bench.path())), text);
    assert_eq!(bench.text(options().open_or_create(bench.path())), text);
    assert_eq!(bench.text(options().read_only(true).open(bench.path())), text);
    assert_eq!(Pool::peek(bench.path()).unwrap().id, pool.id());
    // A session that is left over does not keep the file once the pool was closed.
    let session = pool.session().unwrap();
    pool.close().unwrap();
    let pool = options().open(bench.path()).unwrap();
    drop(session);
    assert_eq!(bench.text(options().open(bench.path())), text);
    drop(pool);
    let readers = [0, 1].map(|_| options().read_only(true).open(bench.path()).unwrap());
    assert_eq!(bench.text(options().open(bench.path())), text);
    drop(readers);
    options().open(bench.path()).unwrap();
}

#[test]
fn other_formats_features_layouts_and_hashes_are_named() {
    let bench = Bench::new();
    let Version { number, layout, own } = own_version(&bench);
    let other = |found: &str| format!("PATH has format {found}, and this build opens {own}; {ELSEWHERE}");
    for (offset, value, found) in
        [(8, number + 1, format!("{}-{layout:08x}", number + 1)), (64, 0x1234, format!("{number}-00001234"))]
    {
        bench.damaged(offset, &stamp(offset as u64, value));
        assert_eq!(bench.text(options().open(bench.path())), other(&found));
        assert_eq!(bench.text(options().for_repair().read_only(true).open(bench.path())), other(&found));
    }
    // A version that keeps no layout id.
    bench.damaged(8, &[stamp(8, 7), [0; 8]].concat()[..8]);
    let mut image = std::fs::read(bench.path()).unwrap();
    image[64..72].fill(0);
    std::fs::write(bench.path(), image).unwrap();
    assert_eq!(bench.text(options().open(bench.path())), other("7"));
    // The rest is covered by the creation checksum as well.
    let cases = [
        (56, 6, format!("PATH uses features that this build does not know (bits 0x6); {ELSEWHERE}")),
        (72, 2, format!("PATH stores hashes of function 2, and this build has function 1; {ELSEWHERE}")),
    ];
    for (offset, value, text) in cases {
        bench.damaged(offset, &stamp(offset as u64, value));
        let mut image = std::fs::read(bench.path()).unwrap();
        let values: Vec<u8> = (1..13).flat_map(|word: usize| image[8 * word..8 * word + 4].to_vec()).collect();
        image[104..112].copy_from_slice(&stamp(104, crc32c::crc32c(&values)));
        std::fs::write(bench.path(), image).unwrap();
        assert_eq!(bench.text(options().open(bench.path())), text);
    }
    // A compatible feature of another version is no reason to refuse.
    bench.damaged(48, &stamp(48, 1));
    let mut image = std::fs::read(bench.path()).unwrap();
    let values: Vec<u8> = (1..13).flat_map(|word: usize| image[8 * word..8 * word + 4].to_vec()).collect();
    image[104..112].copy_from_slice(&stamp(104, crc32c::crc32c(&values)));
    std::fs::write(bench.path(), image).unwrap();
    options().open(bench.path()).unwrap();
}

#[test]
fn a_damaged_header_names_the_field() {
    let bench = Bench::new();
    bench.damaged(80, &[0; 8]);
    assert_eq!(
        bench.text(options().open(bench.path())),
        "the header of PATH is damaged: its chunk size at 0x50 holds 0x0, which fails its check; restore a copy, \
         or repair it"
    );
    // A word of another pool whose own check holds is found by the checksum over all of them.
    bench.damaged(88, &stamp(88, 3));
    let text = bench.text(options().open(bench.path()));
    assert!(text.starts_with("the header of PATH is damaged: its creation checksum at 0x68 holds 0x"), "{text}");
}

#[test]
fn a_truncated_file_is_named() {
    let bench = Bench::new();
    bench.pool().close().unwrap();
    let len = std::fs::metadata(bench.path()).unwrap().len();
    std::fs::OpenOptions::new().write(true).open(bench.path()).unwrap().set_len(len - 4096).unwrap();
    let text = format!(
        "PATH has {} bytes, and its header says {len}: it was truncated; restore a copy, or repair it",
        len - 4096
    );
    assert_eq!(bench.text(options().open(bench.path())), text);
    assert_eq!(bench.text(Pool::peek(bench.path())), text);
    std::fs::OpenOptions::new().write(true).open(bench.path()).unwrap().set_len(100).unwrap();
    assert_eq!(
        bench.text(options().open(bench.path())),
        "PATH is not a Durix pool (100 bytes in all); it is left as it is"
    );
}

#[test]
fn an_unclean_pool_of_another_boot_is_not_opened_silently() {
    let bench = Bench::new();
    // A pool that is forgotten is one that was killed.
    std::fs::copy(
        {
            std::mem::forget(bench.pool());
            bench.path()
        },
        bench.dir.path().join("copy"),
    )
    .unwrap();
    std::fs::rename(bench.dir.path().join("copy"), bench.path()).unwrap();
    let text = "PATH was not closed before the system stopped, and its medium survives the death of the process only, so \
                stores may be missing: look at it with `PoolOptions::read_only` and `accept_unclean`, restore a copy, or \
                take it as it is with `accept_unclean(true)`";
    let other = options().boot_id([2; 16]);
    assert_eq!(bench.text(other.open(bench.path())), text);
    assert_eq!(bench.text(other.open_or_create(bench.path())), text);
    assert_eq!(bench.text(other.clone().read_only(true).open(bench.path())), text);
    assert_eq!(bench.text(options().boot_id([0; 16]).open(bench.path())), text, "an unknown boot is another one");
    // Looking does not change it.
    other.clone().read_only(true).accept_unclean(true).open(bench.path()).unwrap();
    assert_eq!(bench.text(other.open(bench.path())), text);
    // The same boot: the page cache has kept everything.
    let pool = options().accept_copy(true).open(bench.path()).unwrap();
    std::fs::copy(bench.path(), bench.dir.path().join("copy")).unwrap();
    drop(pool);
    std::fs::rename(bench.dir.path().join("copy"), bench.path()).unwrap();
    other.clone().accept_unclean(true).open(bench.path()).unwrap().close().unwrap();
    options().open(bench.path()).unwrap().close().unwrap();
}

/// What a killed process leaves opens wherever it is renamed to, after a reboot too; a copy of it does not.
#[test]
fn a_copy_of_an_open_pool_is_told_from_the_pool() {
    let says = |differs: &str| {
        format!(
            "PATH was copied from a pool that was open, or that a crash had left ({differs} than the file that was open), so it may hold \
             parts of different moments: copy an open pool by `Db::copy_to`, or close it first; if nobody had it open while it was copied, \
             or the copy is of one moment (a snapshot), take it with `accept_copy(true)`, and check it"
        )
    };
    for level in [Level::Process, Level::Immediate] {
        let bench = Bench::new();
        let at = |name: &str| bench.dir.path().join(name);
        let options = || options().durability(level);
        let pool = options().create(at("open")).unwrap();
        drop(pool.open_structure::<Empty<1>>("index", &()).unwrap());
        pool.commit(&mut pool.session().unwrap()).unwrap();
        let copy = || {
            std::fs::copy(at("open"), bench.path()).unwrap();
            if level == Level::Immediate {
                std::fs::copy(journal(&at("open")), journal(&bench.path())).unwrap();
            }
        };
        copy();
        let before = std::fs::read(bench.path()).unwrap();
        for options in [options(), options().read_only(true)] {
            assert_eq!(bench.text(options.open(bench.path())), says("it has another inode"));
        }
        assert_eq!(before, std::fs::read(bench.path()).unwrap(), "looking does not change it");
        // With either option it opens; closed, it is a pool of its own.
        options().accept_unclean(true).read_only(true).open(bench.path()).unwrap();
        let taken = options().accept_copy(true).open(bench.path()).unwrap();
        assert_eq!(taken.indices().unwrap().len(), 1);
        drop(taken);
        copy();
        // Once it was taken, it is that file: a crash leaves it as a pool that is no copy, under any name.
        let accepting = options().accept_copy(true);
        let backing = Telling::truth(&bench.path());
        std::mem::forget(match level {
            Level::Process => accepting.open_on(backing, Hardware::PAGE_CACHE).unwrap().recover().unwrap(),
            _ => accepting.open_journaled_on(backing, BesidePool::new(bench.path())).unwrap().recover().unwrap(),
        });
        let renamed = at("renamed");
        std::fs::rename(bench.path(), &renamed).unwrap();
        if level == Level::Immediate {
            std::fs::rename(journal(&bench.path()), journal(&renamed)).unwrap();
        }
        let renamed = options().open(&renamed).unwrap();
        assert_eq!(renamed.indices().unwrap().len(), 1);
        renamed.close().unwrap();
        pool.close().unwrap();
        // A pool that was closed may be copied by anybody.
        std::fs::copy(at("open"), bench.path()).unwrap();
        options().open(bench.path()).unwrap().close().unwrap();
    }
}

/// A file whose file system tells nothing but what a test says. It takes no lock, so a pool in it that is forgotten is one that was killed.
#[derive(Debug)]
struct Telling(FileBacking, Option<FileId>);

impl Telling {
    fn truth(path: &Path) -> Self {
        let file = FileBacking::create(path).unwrap();
        let id = file.identity();
        Telling(file, id)
    }
}

impl Backing for Telling {
    fn describe(&self) -> String {
        self.0.describe()
    }
    fn kind(&self) -> BackingKind {
        self.0.kind()
    }
    fn len(&self) -> Result<u64, Error> {
        self.0.len()
    }
    fn identity(&self) -> Option<FileId> {
        self.1
    }
    fn try_lock(&self, _: Access) -> Result<(), Error> {
        Ok(())
    }
    fn unlock(&self) {}
    fn write(&self, offset: u64, bytes: &[u8]) -> Result<(), Error> {
        self.0.write(offset, bytes)
    }
    fn read(&self, offset: u64, bytes: &mut [u8]) -> Result<(), Error> {
        self.0.read(offset, bytes)
    }
    fn reset(&self) -> Result<(), Error> {
        self.0.reset()
    }
    fn allocate(&self, len: u64) -> Result<(), Error> {
        self.0.allocate(len)
    }
    fn map(&self, window: &Window<'_>) -> Result<(), Error> {
        self.0.map(window)
    }
    fn sync(&self) -> Result<(), Error> {
        self.0.sync()
    }
}

#[test]
fn what_a_file_system_does_not_tell_keeps_no_pool_from_opening() {
    let bench = Bench::new();
    let telling = |id| Telling(FileBacking::create(bench.path()).unwrap(), id);
    let opens = |id| {
        std::mem::forget(options().open_on(telling(id), Hardware::PAGE_CACHE)?.recover()?);
        Ok(())
    };
    let known = FileId { inode: 5, birth: 6, system: 7 };
    let nothing = FileId::default();
    std::mem::forget(options().create_on(telling(Some(nothing)), Hardware::PAGE_CACHE).unwrap());
    // Nothing was recorded; nobody tells; then everything is recorded, and a part is told.
    for id in [Some(nothing), None, Some(known), None, Some(known), Some(FileId { birth: 0, system: 0, ..known })] {
        opens(id).unwrap();
    }
    // What is recorded is what the last opener was told: no time of birth.
    opens(Some(FileId { birth: 9, ..known })).unwrap();
    let said = |id| {
        let text = bench.text(opens(Some(id)));
        text.split_once(" (").and_then(|(_, rest)| rest.split_once(" than ")).map(|(differs, _)| differs.to_owned())
    };
    assert_eq!(said(known).as_deref(), Some("it was made at another time"));
    assert_eq!(said(FileId { system: 8, birth: 9, ..known }).as_deref(), Some("it lies on another file system"));
    assert_eq!(said(nothing).as_deref(), Some("it lies on a file system that does not tell files apart"));
}

/// Two boots that the system does not tell have the same id, and may still be two.
#[test]
fn two_boots_that_the_system_does_not_tell_are_not_one() {
    let bench = Bench::new();
    let copy = bench.dir.path().join("copy");
    let unknown = options().boot_id([0; 16]);
    // Killed: forgotten, and its file without the lock.
    std::mem::forget(unknown.create(bench.path()).unwrap());
    std::fs::copy(bench.path(), &copy).unwrap();
    for options in [unknown.clone(), unknown.clone().read_only(true), options()] {
        let refused = options.open(&copy).unwrap_err();
        assert!(matches!(refused, Error::NotPowerSafe { .. }), "{refused}");
    }
    let pool = unknown.accept_unclean(true).open(&copy).unwrap();
    pool.close().unwrap();
    // Closed, it does not matter which boot it was.
    options().boot_id([0; 16]).open(&copy).unwrap().close().unwrap();
}

#[test]
fn a_file_that_may_not_be_written_says_how_to_read_it() {
    let bench = Bench::new();
    bench.pool().close().unwrap();
    let backing = FileBacking::open_read_only(bench.path()).unwrap();
    let text = "PATH may not be written; change its permissions, or open it with `PoolOptions::read_only`";
    assert_eq!(bench.text(options().open_on(backing, Hardware::PAGE_CACHE)), text);
    let backing = FileBacking::open_read_only(bench.path()).unwrap();
    assert_eq!(bench.text(options().create_on(backing, Hardware::PAGE_CACHE)), text);
    let mut permissions = std::fs::metadata(bench.path()).unwrap().permissions();
    permissions.set_readonly(true);
    std::fs::set_permissions(bench.path(), permissions).unwrap();
    if std::fs::OpenOptions::new().write(true).open(bench.path()).is_ok() {
        eprintln!("permissions: skipped, this user may write everything; shown through the backing only");
    } else {
        assert_eq!(bench.text(options().open(bench.path())), text);
    }
    options().read_only(true).open(bench.path()).unwrap();
}

#[test]
fn a_pool_opened_for_reading_changes_nothing() {
    let bench = Bench::new();
    let pool = bench.pool();
    drop(pool.open_structure::<Empty<1>>("old", &()).unwrap());
    pool.close().unwrap();
    let before = std::fs::read(bench.path()).unwrap();
    let text = "PATH was opened for reading only; open it without `PoolOptions::read_only`";
    assert_eq!(bench.text(options().read_only(true).create(bench.path())), text);
    let pool = options().read_only(true).open(bench.path()).unwrap();
    assert!(pool.is_read_only());
    assert_eq!(pool.guarantee().to_string(), "nothing survives the end of the process: changes stay in its memory");
    pool.open_structure::<Empty<1>>("old", &()).unwrap();
    assert_eq!(bench.text(pool.open_structure::<Empty<1>>("new", &())), "the pool has no index named \"new\"");
    assert_eq!(bench.text(pool.rename("old", "new")), text);
    assert_eq!(bench.text(pool.drop_index("old")), text);
    {
        let mut session = pool.session().unwrap();
        let op = session.enter().unwrap();
        assert_eq!(bench.text(pool.space().reserve_extent(&op, durix_pmem::Owner(0), 1 << 20)), text);
        let word: &durix_pmem::Word = op.at(durix_pmem::Off::new(before.len() as u64 - 8));
        op.store(word, 1, std::sync::atomic::Ordering::Release);
    }
    pool.close().unwrap();
    assert_eq!(std::fs::read(bench.path()).unwrap(), before);
}

#[test]
fn a_full_disk_is_an_error_that_leaves_the_file_as_it_was() {
    let bench = Bench::new();
    let faults = Faults::default();
    let create = |faults: &Faults| {
        let backing = FaultBacking::new(FileBacking::create(bench.path()).unwrap(), faults.clone());
        options().initial_size(1 << 20).create_on(backing, Hardware::PAGE_CACHE)
    };
    faults.room(Some(100_000));
    let text = |len| {
        format!("the file system has no room for PATH to reach {len} bytes; free some space, or choose a smaller size")
    };
    assert_eq!(bench.text(create(&faults)), text(1 << 20));
    assert_eq!(std::fs::metadata(bench.path()).unwrap().len(), 0);
    faults.room(Some((1 << 20) + 8192));
    let pool = create(&faults).unwrap();
    let mut session = pool.session().unwrap();
    let op = session.enter().unwrap();
    let owner = durix_pmem::Owner(0);
    let error = pool.space().reserve_extent(&op, owner, 1 << 20);
    let found = bench.text(error);
    assert!(found.starts_with("the file system has no room for PATH to reach "), "{found}");
    assert_eq!(std::fs::metadata(bench.path()).unwrap().len(), 1 << 20);
    assert_eq!(pool.mapping().len(), 1 << 20);
    // What fits is given, although the pool would rather have grown by more.
    let all: Vec<_> = std::iter::from_fn(|| pool.space().reserve_extent(&op, owner, 4096).ok()).collect();
    assert!((1 << 20) < pool.mapping().len() && pool.mapping().len() <= (1 << 20) + 8192);
    drop(all);
    drop(op);
    faults.room(None);
    assert!(pool.space().reserve_extent(&session.enter().unwrap(), owner, 1 << 20).is_ok());
    pool.close().unwrap();
}

/// A file system of its own with one megabyte, if this user may mount one.
struct SmallDisk(PathBuf);

impl SmallDisk {
    fn mount(at: &Path) -> Option<Self> {
        let mut mount = std::process::Command::new("mount");
        let status = mount.args(["-t", "tmpfs", "-o", "size=1m", "tmpfs"]).arg(at).stderr(std::process::Stdio::null());
        status.status().is_ok_and(|s| s.success()).then(|| SmallDisk(at.into()))
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _ = std::process::Command::new("umount").arg(&self.0).status();
    }
}

#[test]
fn a_really_full_disk_is_the_same_error() {
    let bench = Bench::new();
    let Some(_disk) = SmallDisk::mount(bench.dir.path()) else {
        eprintln!("full disk: skipped, no file system can be mounted here; shown through the fault backing only");
        return;
    };
    let error = options().initial_size(2 << 20).create(bench.path());
    assert_eq!(
        bench.text(error),
        "the file system has no room for PATH to reach 2097152 bytes; free some space, or choose a smaller size"
    );
    assert!(!bench.path().exists(), "what could not be created is not left behind");
    let pool = options().initial_size(512 << 10).create(bench.path()).unwrap();
    let len = pool.mapping().len();
    let mut session = pool.session().unwrap();
    let op = session.enter().unwrap();
    let found = bench.text(pool.space().reserve_extent(&op, durix_pmem::Owner(0), 1 << 20));
    assert!(found.starts_with("the file system has no room for PATH to reach "), "{found}");
    assert_eq!(std::fs::metadata(bench.path()).unwrap().len(), len);
    drop(op);
    drop(session);
    pool.close().unwrap();
    options().open(bench.path()).unwrap().close().unwrap();
}

#[test]
fn a_pool_at_its_maximal_size_is_full() {
    let bench = Bench::new();
    let pool = options().initial_size(100_000).max_size(1 << 20).create(bench.path()).unwrap();
    let mut session = pool.session().unwrap();
    let op = session.enter().unwrap();
    let text = bench.text(pool.space().reserve_extent(&op, durix_pmem::Owner(0), 1 << 20));
    assert!(text.starts_with("the pool is full: it would have to reach 11"), "{text}");
    let some = pool.space().reserve_extent(&op, durix_pmem::Owner(0), 512 << 10).unwrap();
    assert!(some.off() + some.len() <= pool.mapping().len());
    assert_eq!(std::fs::metadata(bench.path()).unwrap().len(), pool.mapping().len());
    assert_eq!(pool.stats().unwrap().size, pool.mapping().len());
}

#[test]
fn options_out_of_range_are_named() {
    let bench = Bench::new();
    let text = |options: PoolOptions| bench.text(options.create(bench.path()));
    assert_eq!(
        text(options().chunk_size(5000)),
        "option chunk_size is 5000; it must be a power of two from 4096 to 2097152"
    );
    assert_eq!(text(options().lanes(0)), "option lanes is 0; it must be from 1 to 1024");
    assert_eq!(text(options().max_indices(65536)), "option max_indices is 65536; it must be from 1 to 65535");
    assert_eq!(
        text(options().initial_size(1 << 20).max_size(1 << 19)),
        "option max_size is 524288; it must be at least the initial size, which includes the tables"
    );
    assert_eq!(
        text(options().initial_size(1 << 50)),
        "option initial_size is 1125899906842624; it must be at most 4294967295 chunks; choose a larger chunk_size"
    );
    assert!(!bench.path().exists());
}

#[test]
fn planted_faults_come_out_as_what_the_system_said() {
    let bench = Bench::new();
    for call in Call::ALL {
        let faults = Faults::default();
        faults.fail(call, 1, ErrorKind::Other);
        let backing = FaultBacking::new(FileBacking::create(bench.path()).unwrap(), faults.clone());
        let created = options().create_on(backing, Hardware::PAGE_CACHE);
        if call == Call::Read {
            assert!(created.is_ok(), "an empty file is not read");
            drop(created);
            std::fs::remove_file(bench.path()).unwrap();
            continue;
        }
        assert_eq!(bench.text(created), format!("{call:?} of PATH (planted): other error"));
    }
}

#[test]
fn indices_that_are_not_what_was_asked_for() {
    let bench = Bench::new();
    let pool = bench.pool();
    let a = pool.open_structure::<Empty<1>>("a", &()).unwrap();
    let wrong = "index \"a\" is of kind empty v1, and it was to be opened as";
    assert_eq!(
        bench.text(pool.open_structure::<Empty<2>>("a", &())),
        format!("{wrong} empty v2; open it as what it is, or drop it; if only the version differs, {ELSEWHERE}")
    );
    assert_eq!(
        bench.text(pool.open_existing::<Holder<Hardware>>("a", &())),
        format!("{wrong} holder v3; open it as what it is, or drop it; if only the version differs, {ELSEWHERE}")
    );
    assert_eq!(bench.text(pool.open_existing::<Empty<1>>("b", &())), "the pool has no index named \"b\"");
    assert_eq!(bench.text(pool.rename("b", "c")), "the pool has no index named \"b\"");
    let in_use = "index \"a\" is in use; drop every handle to it first";
    assert_eq!(bench.text(pool.drop_index("a")), in_use);
    assert_eq!(bench.text(pool.close()), in_use);
    drop(a);
    assert_eq!(
        bench.text(pool.open_structure::<Empty<2>>("a", &())),
        format!("{wrong} empty v2; open it as what it is, or drop it; if only the version differs, {ELSEWHERE}"),
        "the same when it is not open"
    );
    pool.open_structure::<Empty<1>>("b", &()).unwrap();
    assert_eq!(bench.text(pool.rename("a", "b")), "the pool has an index named \"b\" already; drop or rename it first");
    assert_eq!(
        bench.text(pool.open_structure::<Empty<1>>("c", &())),
        "the pool has 2 indices, which is all it can have; drop one, or create it with a larger `max_indices`"
    );
    let long = "x".repeat(64);
    for name in ["", &long] {
        let text = format!("an index cannot be named {name:?} ({} bytes); names have 1 to 63 bytes", name.len());
        assert_eq!(bench.text(pool.open_structure::<Empty<1>>(name, &())), text);
        assert_eq!(bench.text(pool.rename("a", name)), text);
    }
    pool.rename("a", &long[..63]).unwrap();
    assert_eq!(pool.indices().unwrap()[0].name, long[..63]);
}

#[test]
fn a_root_that_outlives_its_structure_keeps_it_in_use() {
    let bench = Bench::new();
    let pool = bench.pool();
    let structure = pool.open_structure::<Holder<Hardware>>("h", &()).unwrap();
    let root = structure.0.clone();
    drop(structure);
    assert_eq!(
        bench.text(pool.open_structure::<Holder<Hardware>>("h", &())),
        "index \"h\" is in use; drop every handle to it first"
    );
    drop(root);
    pool.open_structure::<Holder<Hardware>>("h", &()).unwrap();
}

#[test]
fn a_damaged_root_entry_is_named_where_it_matters() {
    let bench = Bench::new();
    let pool = bench.pool();
    pool.open_structure::<Empty<1>>("a", &()).unwrap();
    pool.open_structure::<Empty<1>>("b", &()).unwrap();
    let first = pool.geometry().roots_off() as usize;
    pool.close().unwrap();
    let mut image = std::fs::read(bench.path()).unwrap();
    image[first + 64] ^= 1;
    let state = u64::from_le_bytes(image[first..first + 8].try_into().unwrap());
    std::fs::write(bench.path(), image).unwrap();
    let pool = options().open(bench.path()).unwrap();
    pool.open_existing::<Empty<1>>("b", &()).unwrap();
    let text = format!(
        "root entry 0 is damaged: its state {state:#018x} fails its check, so no index can be ruled out or created; restore \
         a copy, or repair it"
    );
    assert_eq!(bench.text(pool.open_structure::<Empty<1>>("a", &())), text);
    assert_eq!(bench.text(pool.indices()), text);
}

#[test]
fn a_lost_header_or_root_entry_comes_from_its_spare_for_a_repair() {
    let bench = Bench::new();
    let pool = options().initial_size(64 << 10).create(bench.path()).unwrap();
    let holder = pool.open_structure::<Holder<Hardware>>("a", &()).unwrap();
    let mut session = pool.session().unwrap();
    let op = session.enter().unwrap();
    let extent = pool.space().reserve_extent(&op, holder.0.owner(), 4096).unwrap();
    pool.space().activate(&op, extent).unwrap();
    drop(op);
    drop((holder, session));
    pool.open_structure::<Empty<1>>("b", &()).unwrap();
    pool.rename("a", "c").unwrap();
    let geometry = *pool.geometry();
    pool.close().unwrap();
    drop(pool);
    let sound = std::fs::read(bench.path()).unwrap();
    let names = |pool: &Pool| {
        let mut names: Vec<_> = pool.readable_indices().unwrap().0.into_iter().map(|info| info.name).collect();
        names.sort();
        names
    };
    let damaged = |from: u64, to: u64, with: u8| {
        let mut image = sound.clone();
        image[from as usize..to as usize].fill(with);
        std::fs::write(bench.path(), image).unwrap();
    };
    let repair = || options().for_repair().open(bench.path());
    damaged(0, 0, 0);
    let pool = repair().unwrap();
    assert_eq!((names(&pool), pool.mended()), (vec!["b".into(), "c".into()], &[][..]));
    assert!(pool.check_spares(&pool.session().unwrap().enter().unwrap()).is_empty());
    drop(pool);

    // The page of the header; it is neither taken for something else nor for a pool that was never finished.
    for with in [0, 0xff, 0x77] {
        damaged(0, 4096, with);
        let text = bench.text(options().open(bench.path()));
        assert!(text.starts_with("the header of PATH is damaged: its magic at 0x0 holds "), "{text}");
        assert!(bench.text(options().open_or_create(bench.path())).contains("PATH"));
        let pool = repair().unwrap();
        assert_eq!(names(&pool), ["b", "c"]);
        assert!(pool.mended()[0].contains("comes from its spare"), "{:?}", pool.mended());
    }
    // The root entries: the one that has space was wiped out, or cannot be read; its first name comes back.
    let roots = (geometry.roots_off(), geometry.marks_off());
    damaged(roots.0, roots.1, 0);
    assert_eq!(names(&repair().unwrap()), ["a"], "the other one has no space, so nothing is lost with it");
    damaged(roots.0, roots.1, 0x77);
    let pool = repair().unwrap();
    assert_eq!(names(&pool), ["a"]);
    let said = "root entry 0 was damaged, and its spare was taken: the index has its first name, a";
    assert_eq!(pool.mended(), [said], "all others are free");
    assert!(pool.readable_indices().unwrap().1.is_empty());
    drop(pool);
    // Of both, one cannot be had: as before.
    damaged(0, 4224, 0x77);
    assert!(bench.text(repair()).ends_with("it is left as it is"));
    // A damaged spare costs nothing, and is told of.
    damaged(geometry.spares_off(), geometry.spares_off() + 1, 0x77);
    let pool = repair().unwrap();
    let spares = pool.check_spares(&pool.session().unwrap().enter().unwrap());
    assert_eq!(spares, [format!("the spare of root entry 0, at {:#x}, is damaged", geometry.spares_off())]);
    assert_eq!(names(&pool), ["b", "c"]);
    drop(pool);
    // What is left of a file that was cut off.
    std::fs::write(bench.path(), &sound[..sound.len() - 5000]).unwrap();
    let pool = repair().unwrap();
    assert!(pool.mended()[0].contains("it was truncated"), "{:?}", pool.mended());
    assert_eq!(names(&pool), ["b", "c"]);
    drop(pool);
    std::fs::write(bench.path(), &sound[..geometry.heap_off() as usize]).unwrap();
    assert!(bench.text(repair()).contains("it was truncated"), "nothing is left that could be read");
}

#[test]
fn a_pool_that_is_closed_is_shut() {
    let bench = Bench::new();
    let pool = bench.pool();
    let mut session = pool.session().unwrap();
    pool.close().unwrap();
    pool.close().unwrap();
    assert_eq!(bench.text(session.enter()), "the pool is shut: it was closed; open it again");
    assert_eq!(bench.text(pool.open_structure::<Empty<1>>("a", &())), "the pool is shut: it was closed; open it again");
}

#[test]
fn sessions_run_out_with_a_message() {
    let pool = options().create_on(HeapBacking::new(1 << 20), Hardware::PAGE_CACHE).unwrap();
    let sessions: Vec<_> = std::iter::from_fn(|| pool.session().ok()).collect();
    assert_eq!(sessions.len() as u32, durix_pmem::MAX_SESSIONS - 2, "two are the pool's own");
    let bench = Bench::new();
    assert_eq!(
        bench.text(pool.session()),
        "all 512 sessions of the pool are in use; drop one, or share sessions between threads"
    );
    // Growing and closing still work.
    let pool = Arc::new(pool);
    let mut session = sessions.into_iter().next().unwrap();
    drop(pool.space().reserve_extent(&session.enter().unwrap(), durix_pmem::Owner(0), 4096).unwrap());
    pool.close().unwrap();
}

// ---- other versions ----

/// Gives both headers of a file beside a pool, each of so many bytes, another version; all else stays right.
fn with_version(file: &Path, header: usize, version: durix_pmem::Version) {
    let mut bytes = std::fs::read(file).unwrap();
    let mut changed = 0;
    for at in [0, 4096] {
        let header = &mut bytes[at..at + header];
        if header.iter().any(|byte| *byte != 0) {
            header[16..24].copy_from_slice(&version.to_word().to_le_bytes());
            let checksum = xxhash_rust::xxh3::xxh3_64(&header[8..]);
            header[..8].copy_from_slice(&checksum.to_le_bytes());
            changed += 1;
        }
    }
    assert!(changed > 0);
    std::fs::write(file, bytes).unwrap();
}

const JOURNAL_HEADER: usize = 112;
const SUMS_HEADER: usize = 80;

fn versions_of(text: &str) -> String {
    let own = text.split_once("this build opens ").unwrap().1.split_once(';').unwrap().0;
    own.to_owned()
}

#[test]
fn a_journal_or_checksums_of_another_version_are_not_taken_for_damaged() {
    let bench = Bench::new();
    let pool = killed(&bench, "a", 1);
    let sums = DiskJournal::sums_of(&pool);
    std::fs::copy(DiskJournal::sums_of(&bench.dir.path().join("a.open")), &sums).unwrap();
    let whole = [&pool, &journal(&pool), &sums].map(|path| std::fs::read(path).unwrap());
    let files = || [&pool, &journal(&pool), &sums].map(|path| std::fs::read(path).unwrap());
    let open = [options(), options().durability(Level::Immediate), options().accept_unclean(true)];
    let open = open.into_iter().chain([options().read_only(true), options().read_only(true).for_repair()]);
    let open: Vec<_> = open.map(|options| options.accept_copy(true)).collect();
    for version in [durix_pmem::Version::new(77), durix_pmem::Version::unreleased(0x1234)] {
        let cases =
            [(journal(&pool), JOURNAL_HEADER, "the journal"), (sums.clone(), SUMS_HEADER, "the file of checksums")];
        for (file, header, what) in cases {
            with_version(&file, header, version);
            let before = files();
            for options in &open {
                let error = options.open(&pool).map(drop).unwrap_err();
                assert!(matches!(error, Error::OtherVersion { found, .. } if found == version), "{error}");
                let text = error.to_string();
                let own = versions_of(&text);
                let file = file.display();
                let elsewhere = ELSEWHERE.replacen("it", "the pool", 1).replacen("wrote the pool", "wrote it", 1);
                assert_eq!(
                    text,
                    format!("{what} {file} has version {version}, and this build opens {own}; {elsewhere}")
                );
                assert!(!text.contains("damage"), "{text}");
            }
            assert_eq!(files(), before, "nothing was changed");
            [&pool, &journal(&pool), &sums]
                .into_iter()
                .zip(&whole)
                .for_each(|(path, bytes)| std::fs::write(path, bytes).unwrap());
        }
    }
    // As they were, they open.
    assert_eq!(options().accept_copy(true).open(&pool).unwrap().indices().unwrap().len(), 1);
}

/// The journal of another pool, of a version that nobody here can read, is not written over. That of the own pool, which was closed, is.
#[test]
fn a_journal_of_another_version_beside_a_closed_pool() {
    let bench = Bench::new();
    let (pool, other) = (bench.dir.path().join("closed"), killed(&bench, "a", 0));
    let create = || options().durability(Level::Immediate).create(&pool).unwrap().close().unwrap();
    create();
    let open = || options().durability(Level::Immediate).open(&pool).and_then(|pool| pool.close());
    let own = std::fs::read(journal(&pool)).unwrap();
    std::fs::copy(journal(&other), journal(&pool)).unwrap();
    open().unwrap();
    std::fs::copy(journal(&other), journal(&pool)).unwrap();
    with_version(&journal(&pool), JOURNAL_HEADER, durix_pmem::Version::new(77));
    let theirs = std::fs::read(journal(&pool)).unwrap();
    assert!(matches!(open(), Err(Error::StrayJournal { .. })));
    assert_eq!(std::fs::read(journal(&pool)).unwrap(), theirs);
    std::fs::write(journal(&pool), own).unwrap();
    with_version(&journal(&pool), JOURNAL_HEADER, durix_pmem::Version::new(77));
    open().unwrap();
}

/// A killed pool of another version was recovered by this build's rules before anybody looked at its version.
#[test]
fn a_pool_of_another_version_is_refused_before_its_journal_is_replayed() {
    let bench = Bench::new();
    let pool = killed(&bench, "a", 1);
    let mut image = std::fs::read(&pool).unwrap();
    image[64..72].copy_from_slice(&stamp(64, 0x1234));
    std::fs::write(&pool, &image).unwrap();
    let before = [&pool, &journal(&pool)].map(|path| std::fs::read(path).unwrap());
    let error = options().accept_copy(true).open(&pool).map(drop).unwrap_err();
    assert!(matches!(error, Error::Format { .. }), "{error}");
    assert_eq!([&pool, &journal(&pool)].map(|path| std::fs::read(path).unwrap()), before);
}

/// A structure of version 2 that opens version 1, too: as a later build has it.
struct Later(u32);

impl<M: Medium> Structure<M> for Later {
    const KIND: Kind = Kind { version: durix_pmem::Version::new(2), ..<Empty<1> as Structure<M>>::KIND };
    const OLDER: &'static [durix_pmem::Version] = &[durix_pmem::Version::new(1)];
    type Options = ();
    type Error = Error;
    fn create(_: &mut Session<M>, _: &Root<M>, (): &()) -> Result<(), Error> {
        Ok(())
    }
    fn open(session: &mut Session<M>, root: Root<M>, (): &()) -> Result<Self, Error> {
        Ok(Later(root.version(&session.enter()?)?.number()))
    }
}

#[test]
fn a_later_build_opens_the_older_versions_that_it_names() {
    let bench = Bench::new();
    let pool = bench.pool();
    drop(pool.open_structure::<Empty<1>>("old", &()).unwrap());
    assert_eq!(pool.open_existing::<Later>("old", &()).unwrap().0, 1);
    assert_eq!(pool.open_structure::<Later>("new", &()).unwrap().0, 2);
    assert!(matches!(pool.open_existing::<Empty<1>>("new", &()), Err(Error::WrongKind { .. })), "an earlier build");
    drop(pool.open_structure::<Empty<1>>("old", &()).unwrap());
    pool.drop_index("new").unwrap();
    drop(pool.open_structure::<Empty<3>>("latest", &()).unwrap());
    assert!(matches!(pool.open_existing::<Later>("latest", &()), Err(Error::WrongKind { .. })));
}

// ---- journals ----

/// A journaled pool as the death of its process leaves it, under a name of its own, with its journal. `commits` are made before.
fn killed(bench: &Bench, name: &str, commits: u64) -> PathBuf {
    let (open, left) = (bench.dir.path().join(format!("{name}.open")), bench.dir.path().join(name));
    let _ = std::fs::remove_file(&open);
    let _ = std::fs::remove_file(journal(&open));
    let pool = options().durability(Level::Immediate).create(&open).unwrap();
    for number in 0..commits {
        drop(pool.open_structure::<Empty<1>>(&number.to_string(), &()).unwrap());
        pool.commit(&mut pool.session().unwrap()).unwrap();
    }
    std::fs::copy(&open, &left).unwrap();
    std::fs::copy(journal(&open), journal(&left)).unwrap();
    left
}

fn journal(pool: &Path) -> PathBuf {
    DiskJournal::path_of(pool)
}

/// What opening a pool says, with its file called PATH and other names in its folder left alone.
#[track_caller]
fn said(bench: &Bench, path: &Path) -> String {
    let error = options().open(path).expect_err("an error").to_string();
    assert!(!error.contains('\n'), "one line: {error}");
    let text = error.replace(&path.display().to_string(), "PATH");
    text.replace(&bench.dir.path().display().to_string(), "DIR")
}

#[test]
fn a_journal_that_is_missing_foreign_or_damaged_says_what_to_do() {
    let bench = Bench::new();
    let pool = killed(&bench, "a", 1);
    let id = Pool::peek(&pool).unwrap().id;
    let whole = std::fs::read(journal(&pool)).unwrap();

    std::fs::remove_file(journal(&pool)).unwrap();
    let missing = "PATH was not closed, and its journal PATH-journal is not there, without which it is not whole; put the journal \
                   back beside it, or restore a copy (a pool can be copied without its journal only while it is closed)";
    assert_eq!(said(&bench, &pool), missing);

    let other = killed(&bench, "b", 1);
    let theirs = Pool::peek(&other).unwrap().id;
    std::fs::copy(journal(&other), journal(&pool)).unwrap();
    let foreign = |what: &str| {
        format!(
            "PATH-journal is not the journal that PATH was last open with: {what}; put the right one back, or restore pool and \
             journal from the same copy"
        )
    };
    assert_eq!(said(&bench, &pool), foreign(&format!("it belongs to pool {theirs}, and this is pool {id}")));

    // The same pool, opened once more.
    let again = options().open(bench.dir.path().join("a.open")).unwrap();
    again.close().unwrap();
    let reopened = options().durability(Level::Immediate).open(bench.dir.path().join("a.open")).unwrap();
    std::fs::copy(journal(&bench.dir.path().join("a.open")), journal(&pool)).unwrap();
    drop(reopened);
    assert_eq!(said(&bench, &pool), foreign("it belongs to another opening of this pool"));

    let damaged = |what: &str| {
        format!("the journal PATH-journal is damaged: {what}; restore pool and journal from a copy, or repair the pool")
    };
    let mut headless = whole.clone();
    headless[..8192].fill(0xab);
    std::fs::write(journal(&pool), headless).unwrap();
    assert_eq!(said(&bench, &pool), damaged("no sound header in its first 8192 bytes"));
    std::fs::write(journal(&pool), &whole[..10_000]).unwrap();
    let speaks = damaged(&format!("it has 10000 bytes, and its header speaks of {}", whole.len()));
    assert_eq!(said(&bench, &pool), speaks);

    // None of that has changed anything: with its own journal it opens.
    std::fs::write(journal(&pool), whole).unwrap();
    let pool = options().accept_copy(true).open(&pool).unwrap();
    assert_eq!(pool.indices().unwrap().len(), 1);
}

#[test]
fn a_pool_that_was_closed_does_not_destroy_the_journal_of_another() {
    let bench = Bench::new();
    let (pool, other) = (bench.dir.path().join("closed"), killed(&bench, "a", 1));
    options().durability(Level::Immediate).create(&pool).unwrap().close().unwrap();
    let own = std::fs::read(journal(&pool)).unwrap();
    let theirs = std::fs::read(journal(&other)).unwrap();
    let id = Pool::peek(&other).unwrap().id;

    std::fs::copy(journal(&other), journal(&pool)).unwrap();
    let open = || options().durability(Level::Immediate).open(&pool).map(drop);
    let error = open().unwrap_err().to_string().replace(&pool.display().to_string(), "PATH");
    let stray = format!(
        "PATH-journal holds commits of another pool ({id}), and PATH would begin its own journal there; move it back beside that pool, \
         or remove it if that pool is not needed any more"
    );
    assert_eq!(error, stray);
    assert_eq!(std::fs::read(journal(&pool)).unwrap(), theirs);
    // Who takes it as it is, or only reads it, opens it.
    drop(options().read_only(true).open(&pool).unwrap());
    assert_eq!(std::fs::read(journal(&pool)).unwrap(), theirs);
    let accepting = options().durability(Level::Immediate).accept_unclean(true);
    accepting.open(&pool).unwrap().close().unwrap();

    // The journal of a pool that was closed holds nothing that its file lacks.
    let third = bench.dir.path().join("third");
    options().durability(Level::Immediate).create(&third).unwrap().close().unwrap();
    std::fs::write(journal(&third), own).unwrap();
    options().durability(Level::Immediate).open(&third).unwrap().close().unwrap();
}

/// The file of a pool that a crash has left was moved away, and its journal was forgotten.
#[test]
fn a_new_pool_does_not_destroy_the_journal_of_another() {
    let bench = Bench::new();
    let pool = killed(&bench, "a", 2);
    let id = Pool::peek(&pool).unwrap().id;
    std::fs::rename(&pool, bench.dir.path().join("old")).unwrap();
    let theirs = std::fs::read(journal(&pool)).unwrap();
    let stray = format!(
        "PATH-journal holds commits of another pool ({id}), and PATH would begin its own journal there; move it back beside that pool, \
         or remove it if that pool is not needed any more"
    );
    let options = options().durability(Level::Immediate);
    for turn in 0..3 {
        let created = if turn == 1 { options.create(&pool) } else { options.open_or_create(&pool) };
        let error = created.map(drop).unwrap_err().to_string().replace(&pool.display().to_string(), "PATH");
        assert_eq!((error, turn), (stray.clone(), turn));
        assert_eq!(std::fs::read(journal(&pool)).unwrap(), theirs);
        if turn == 1 {
            // What a crash has left of a creation.
            std::fs::write(&pool, []).unwrap();
        }
    }
    // Its first record is damaged, and a later one is not.
    let mut damaged = theirs.clone();
    damaged[8192 + 100] ^= 1;
    std::fs::write(journal(&pool), damaged).unwrap();
    assert!(matches!(options.create(&pool), Err(Error::StrayJournal { .. })));
    std::fs::remove_file(journal(&pool)).unwrap();
    options.create(&pool).unwrap().close().unwrap();
    // A journal without commits is none of another pool: that of one that was closed, or of a creation that was interrupted.
    std::fs::remove_file(&pool).unwrap();
    options.create(&pool).unwrap().close().unwrap();
}

#[test]
fn a_file_of_somebody_else_beside_a_pool_is_not_overwritten() {
    let options = options().durability(Level::Immediate);
    for (path_of, magic) in [
        (DiskJournal::path_of as fn(&Path) -> PathBuf, *b"DURIXjn\x1a"),
        (DiskJournal::sums_of as fn(&Path) -> PathBuf, *b"DURIXcs\x1a"),
    ] {
        let bench = Bench::new();
        let (pool, beside) = (bench.path(), path_of(&bench.path()));
        let theirs = b"my accounts of 2025, of which there is one copy".repeat(300);
        let suffix = beside.display().to_string().replace(&pool.display().to_string(), "PATH");
        let text = format!(
            "beginning {suffix}: a file that is none of Durix's has this name; give it another name, or remove it if it is not needed"
        );
        std::fs::write(&beside, &theirs).unwrap();
        assert_eq!(bench.text(options.create(&pool)), text);
        assert_eq!(bench.text(options.open_or_create(&pool)), text);
        std::fs::remove_file(&beside).unwrap();
        options.create(&pool).unwrap().close().unwrap();
        for theirs in [&theirs[..], &theirs[..5], b"\0\0\0\0\0\0\0\0some"] {
            std::fs::write(&beside, theirs).unwrap();
            assert_eq!(bench.text(options.open(&pool)), text);
            assert_eq!(std::fs::read(&beside).unwrap(), theirs);
        }
        // Nothing, zeroes, and headers that were damaged are ours.
        let mut damaged = vec![0xab; 20_000];
        damaged[4096 + 8..4096 + 16].copy_from_slice(&magic);
        damaged[4096 + 8] ^= 0x11;
        for ours in [vec![], vec![0; 10], vec![0; 20_000], damaged] {
            std::fs::write(&beside, ours).unwrap();
            options.open(&pool).unwrap().close().unwrap();
        }
    }
}

/// A pipe has nobody at its other end.
#[test]
fn what_is_no_file_beside_a_pool_is_an_error_and_holds_nobody_up() {
    let options = options().durability(Level::Immediate);
    for (path_of, read_only) in
        [(DiskJournal::path_of as fn(&Path) -> PathBuf, false), (DiskJournal::sums_of as fn(&Path) -> PathBuf, true)]
    {
        for is_pipe in [true, false] {
            let bench = Bench::new();
            options.create(bench.path()).unwrap().close().unwrap();
            let beside = path_of(&bench.path());
            std::fs::remove_file(&beside).unwrap();
            if is_pipe {
                let (kind, mode) = (rustix::fs::FileType::Fifo, rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR);
                rustix::fs::mknodat(rustix::fs::CWD, &beside, kind, mode, 0).unwrap();
            } else {
                std::fs::create_dir(&beside).unwrap();
            }
            let (say, said) = std::sync::mpsc::channel();
            let (options, path) = (options.clone().read_only(read_only), bench.path());
            std::thread::spawn(move || say.send(options.open(path).map(drop)));
            let opened = said.recv_timeout(Duration::from_secs(10)).expect("an answer");
            let suffix = beside.display().to_string().replace(&bench.path().display().to_string(), "PATH");
            assert_eq!(bench.text(opened), format!("opening {suffix}: it is no regular file"));
        }
    }
}

/// A journal whose syncs fail from some moment on.
#[derive(Clone, Debug)]
struct Failing {
    place: BesidePool,
    fails: Arc<AtomicBool>,
}

#[derive(Debug)]
struct FailingFile {
    file: Arc<dyn JournalFile>,
    fails: Arc<AtomicBool>,
}

impl JournalPlace for Failing {
    fn describe(&self) -> String {
        self.place.describe()
    }
    fn open(&self, read_only: bool) -> Result<Option<Arc<dyn JournalFile>>, Error> {
        let wrapped = |file| Arc::new(FailingFile { file, fails: Arc::clone(&self.fails) }) as Arc<dyn JournalFile>;
        Ok(self.place.open(read_only)?.map(wrapped))
    }
    fn create(&self) -> Result<Arc<dyn JournalFile>, Error> {
        Ok(Arc::new(FailingFile { file: self.place.create()?, fails: Arc::clone(&self.fails) }))
    }
}

impl JournalFile for FailingFile {
    fn describe(&self) -> String {
        self.file.describe()
    }
    fn len(&self) -> Result<u64, Error> {
        self.file.len()
    }
    fn read_at(&self, offset: u64, bytes: &mut [u8]) -> Result<(), Error> {
        self.file.read_at(offset, bytes)
    }
    fn write_at(&self, offset: u64, bytes: &[u8]) -> Result<(), Error> {
        self.file.write_at(offset, bytes)
    }
    fn set_len(&self, len: u64) -> Result<(), Error> {
        self.file.set_len(len)
    }
    fn allocate(&self, len: u64) -> Result<(), Error> {
        self.file.allocate(len)
    }
    fn sync(&self) -> Result<(), Error> {
        if self.fails.load(Ordering::Relaxed) {
            return Err(Error::Io { action: "syncing the journal".into(), source: ErrorKind::Other.into() });
        }
        self.file.sync()
    }
    fn sync_name(&self) -> Result<(), Error> {
        self.file.sync_name()
    }
}

/// From the sync that fails on, everybody is told so, and nothing is tried again; what was acknowledged is found after opening.
#[test]
fn a_journal_that_fails_says_so_to_everybody() {
    let bench = Bench::new();
    let fails = Arc::new(AtomicBool::new(false));
    let place = Failing { place: BesidePool::new(bench.path()), fails: Arc::clone(&fails) };
    let options = options().durability(Level::Immediate);
    let pool = options.create_journaled_on(FileBacking::create(bench.path()).unwrap(), place).unwrap();
    let mut session = pool.session().unwrap();
    drop(pool.open_structure::<Empty<1>>("kept", &()).unwrap());
    pool.commit(&mut session).unwrap();
    let op = session.enter_later(&mut Unsettled::new()).unwrap();
    op.note_commit();
    let mut ticket = op.finish();

    fails.store(true, Ordering::Relaxed);
    let text = "the journal of PATH failed: syncing the journal: other error; nothing works in this pool until it is opened \
                again, which keeps everything that was acknowledged";
    // Somebody makes a change, and a commit that fails.
    let lost = pool.open_structure::<Empty<1>>("lost", &()).map(drop).and_then(|()| pool.commit(&mut session));
    assert_eq!(bench.text(lost), text);
    fails.store(false, Ordering::Relaxed);
    assert_eq!(bench.text(pool.commit(&mut session)), text, "no second try");
    for _ in 0..2 {
        assert_eq!(bench.text(pool.wait(&mut session, &mut ticket)), text);
        assert!(!ticket.is_empty(), "nothing of it is acknowledged");
    }
    assert_eq!(bench.text(session.enter()), text);
    assert_eq!(bench.text(pool.open_structure::<Empty<1>>("more", &())), text);
    assert_eq!(bench.text(pool.close()), text);
    drop((session, pool, ticket));

    let pool = options.open(bench.path()).unwrap();
    let names: Vec<String> = pool.indices().unwrap().into_iter().map(|index| index.name).collect();
    assert!(names.contains(&"kept".to_owned()) && !names.contains(&"more".to_owned()), "{names:?}");
}

/// Those that take an interrupted process, a service or a damaged log to provoke, which other tests do: here is what they say.
#[test]
fn errors_of_logs_services_and_blocks_say_what_to_do() {
    let kind = Kind { tag: *b"TESTLOGS", version: durix_pmem::Version::new(3) };
    let (name, service) = (|| "log".to_owned(), || "the service \"merge\"".to_owned());
    let waited = std::time::Duration::from_millis(1500);
    let full = || Box::new(Error::Full { needed: 4096 });
    let said: [(Error, &str); 17] = [
        (
            Error::Forked,
            "the pool was opened before this process was forked; open it again in the child, after the parent has closed it",
        ),
        (Error::Shut { reason: "it was closed" }, "the pool is shut: it was closed; open it again"),
        (
            Error::PendingRecords { name: name(), kind },
            "index \"log\" holds records of work that a crash interrupted, and nothing in the pool can be opened before they are \
             recovered; open it with a program that knows TESTLOGS v3, and there by `Pool::recover_logs`",
        ),
        (
            Error::Recovery { name: name(), kind, source: full() },
            "recovering the records of index \"log\" (TESTLOGS v3) failed: the pool is full: it would have to reach 4096 \
             bytes; remove data, drop an index, or open it with a larger maximal size",
        ),
        (
            Error::DamagedSegment { off: 0x40, found: 7 },
            "a log is damaged: its segment at 0x40 begins with 0x7; restore a copy",
        ),
        (
            Error::ForeignSession,
            "the session belongs to another pool; use one of the pool that this structure lives in",
        ),
        (
            Error::ForeignTicket,
            "the ticket belongs to another pool; wait for it there, and use one ticket for each pool",
        ),
        (
            Error::Service { service: service(), source: full() },
            "the service \"merge\" failed: the pool is full: it would have to reach 4096 bytes; remove data, drop an index, or \
             open it with a larger maximal size",
        ),
        (
            Error::ServicePanicked { service: service() },
            "the service \"merge\" met a panic and is not called any more; close the pool and open it again",
        ),
        (
            Error::Overrun { service: service(), waited },
            "the service \"merge\" did not catch up within 1.5s; the update was not begun, try it again later",
        ),
        (
            Error::Busy { operations: 1, waited },
            "1 operation of other sessions did not end within 1.5s; an operation must not be kept open while waiting",
        ),
        (
            Error::Busy { operations: 2, waited },
            "2 operations of other sessions did not end within 1.5s; an operation must not be kept open while waiting",
        ),
        (
            Error::TooManySessions { limit: 8 },
            "all 8 sessions of the pool are in use; drop one, or share sessions between threads",
        ),
        (
            Error::StillNeeded { name: "ages".into(), needed_by: "a snapshot is open" },
            "index \"ages\" cannot be dropped while a snapshot is open; end that first",
        ),
        (Error::NotAllocated { off: 0x80 }, "nothing is allocated at 0x80: it was freed before, or never allocated"),
        (Error::NotAnExtent { off: 0x80 }, "no extent like that starts at 0x80"),
        (
            Error::Dangling { link: 0x40, off: 0x80 },
            "the link at 0x40 names 0x80 already, although it is free; run a check",
        ),
    ];
    for (error, text) in said {
        assert_eq!(error.to_string(), text);
    }
}
