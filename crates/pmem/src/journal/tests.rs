//! What takes threads that meet at one place.

use super::*;
use crate::LINE;
use crate::backing::FileBacking;
use crate::testing::{Call, FaultBacking, Faults};

/// A journal with segments of 4096 bytes, and the pool's file.
fn journal(dir: &tempfile::TempDir) -> (Journal, Arc<FileBacking>) {
    journal_of(dir, 0)
}

/// Such a journal that may grow.
fn journal_of(dir: &tempfile::TempDir, limit: u64) -> (Journal, Arc<FileBacking>) {
    let backing = Arc::new(FileBacking::create(dir.path().join("pool")).unwrap());
    backing.allocate(1 << 16).unwrap();
    let begin = Begin {
        name: "pool".into(),
        file: Arc::new(DiskJournal::create(dir.path().join("journal")).unwrap()),
        backing: Arc::clone(&backing) as Arc<dyn Backing>,
        notes: Arc::new(NotesTicket::take().unwrap()),
        level: Level::Immediate,
        segment: layout::SLOT,
        limit,
        sums: None,
        written_limit: 1 << 20,
        scrub_every: Duration::ZERO,
    };
    (Journal::begin(begin, PoolId([7; 16])).unwrap(), backing)
}

/// Commits lines, with the number in each of their words.
fn commit(journal: &Journal, writer: &mut Writer, number: u64, lines: std::ops::Range<u64>) {
    writer.draft.clear();
    lines.for_each(|line| writer.draft.push(line, &[number; 8]));
    journal.append(writer, number).unwrap();
}

/// The sound headers of the journal, by slot.
fn headers(journal: &Journal) -> [Option<Header>; 2] {
    [0, layout::SLOT].map(|at| {
        let mut bytes = [0; layout::HEADER];
        journal.file.read_at(at, &mut bytes).unwrap();
        Header::decode(&bytes)
    })
}

fn word_of(backing: &FileBacking, line: u64) -> u64 {
    let mut bytes = [0; 8];
    backing.read(line * LINE as u64, &mut bytes).unwrap();
    u64::from_le_bytes(bytes)
}

/// Between its look for a generation that waits and its own, another thread fills the segment and has its generation wait.
#[test]
fn a_generation_that_comes_to_wait_meanwhile_is_carried_over_too() {
    let dir = tempfile::tempdir().unwrap();
    let (journal, backing) = journal(&dir);
    let mut writer = journal.writer();
    commit(&journal, &mut writer, 1, 3..4);
    std::thread::scope(|scope| {
        let carries = scope.spawn(|| journal.carry_over().unwrap());
        // It has looked by then, and waits for the writer.
        std::thread::sleep(Duration::from_millis(50));
        commit(&journal, &mut writer, 2, 10..72);
        assert!(journal.is_full(), "the first record is of a generation of its own");
        drop(writer);
        assert!(carries.join().unwrap());
    });
    journal.carry_over().unwrap();
    assert_eq!([3, 10, 71].map(|line| word_of(&backing, line)), [1, 2, 2]);
    assert_eq!((journal.carried(), journal.is_full()), (2, false));
}

/// A record fits into its segment to the last byte, or goes into the next one. One that were a line longer would lie in the first line of
/// the other segment, whose records it would destroy.
#[test]
fn no_record_is_longer_than_what_is_left_of_its_segment() {
    let dir = tempfile::tempdir().unwrap();
    let (journal, backing) = journal(&dir);
    let mut writer = journal.writer();
    // Two records of 31 lines take 4112 bytes, and 30 and 31 take 4048.
    commit(&journal, &mut writer, 1, 100..131);
    commit(&journal, &mut writer, 2, 200..231);
    assert_eq!((writer.generation, journal.is_full()), (1, true));
    let second = writer.used;
    assert!(second <= writer.segment);
    commit(&journal, &mut writer, 3, 300..330);
    assert_eq!((writer.generation, writer.used), (1, second + RECORD_HEAD as u64 + 8 + 30 * LINE as u64));
    drop(writer);
    journal.carry_over().unwrap();
    assert_eq!([100, 130, 200, 230, 300, 329].map(|line| word_of(&backing, line)), [1, 1, 2, 2, 3, 3]);
}

/// The first commit of a journal is too large for it: the header that speaks of more is not written over the only one.
#[test]
fn the_header_of_a_larger_journal_lies_beside_the_one_before() {
    let dir = tempfile::tempdir().unwrap();
    let (journal, _) = journal(&dir);
    assert_eq!(headers(&journal).map(|header| header.map(|header| header.segment)), [Some(4096), None]);
    commit(&journal, &mut journal.writer(), 1, 100..200);
    assert_eq!(headers(&journal).map(|header| header.map(|header| header.segment)), [Some(4096), Some(8192)]);
}

/// When the pool is closed, and when the next segment is full, too.
#[test]
fn a_generation_that_waits_is_carried_over_before_the_next_one_waits() {
    for closes in [false, true] {
        let dir = tempfile::tempdir().unwrap();
        let (journal, backing) = journal(&dir);
        let mut writer = journal.writer();
        commit(&journal, &mut writer, 1, 100..131);
        commit(&journal, &mut writer, 2, 200..231);
        assert!(journal.is_full());
        if closes {
            journal.finish(&mut writer).unwrap();
        } else {
            commit(&journal, &mut writer, 3, 300..331);
            drop(writer);
            journal.carry_over().unwrap();
            journal.carry_over().unwrap();
        }
        assert_eq!([100, 130, 200, 230].map(|line| word_of(&backing, line)), [1, 1, 2, 2], "closes: {closes}");
    }
}

/// Commits that no checkpoint keeps up with add segments, up to the limit; one checkpoint carries over all generations that wait, and their
/// segments are used again.
#[test]
fn a_journal_gets_segments_where_commits_outrun_the_checkpoints() {
    let dir = tempfile::tempdir().unwrap();
    let (journal, backing) = journal_of(&dir, 5 * layout::SLOT);
    let mut writer = journal.writer();
    let places = |journal: &Journal| (lock(&journal.header).places, journal.stats().checkpoints);
    for (number, expected) in [(2, 0), (2, 0), (3, 0), (4, 0), (5, 0), (5, 1), (5, 1), (5, 1)].into_iter().enumerate() {
        let (number, line) = (number as u64 + 1, number as u64 * 60);
        commit(&journal, &mut writer, number, line..line + 50);
        assert_eq!(places(&journal), expected, "after commit {number}");
    }
    assert_eq!(headers(&journal).iter().flatten().map(|header| header.places).collect::<Vec<_>>(), [5, 5]);
    assert_eq!([0, 4 * 60, 5 * 60].map(|line| word_of(&backing, line)), [1, 0, 0], "the one that was written waits");
    drop(writer);
    journal.carry_over().unwrap();
    let written: Vec<u64> = (0..8).map(|number| word_of(&backing, number * 60 + 49)).collect();
    assert_eq!((written, places(&journal)), ((1..=8).collect(), (5, 2)));
    let mut free = lock(&journal.segments).free.clone();
    free.sort_unstable();
    assert_eq!(free.len(), 4, "all but the writer's: {free:?}");
    free.dedup();
    assert_eq!((free.len(), free.contains(&journal.writer().place.0)), (4, false), "{free:?}");
}

/// The journal's file, watched: no header is written before the one before it is durable. It may be narrow, and its next sync may take long and
/// fail; those after it succeed, as on Linux, where a failure is told once.
#[derive(Debug)]
struct Watched {
    file: DiskJournal,
    /// Bytes that there is room for.
    room: u64,
    fails: AtomicBool,
    /// Header slots that were written since the last sync.
    headers: Mutex<Vec<u64>>,
}

impl Watched {
    fn new(dir: &tempfile::TempDir, room: u64, fails: bool) -> Arc<Self> {
        let file = DiskJournal::open(dir.path().join("journal")).unwrap().unwrap();
        Arc::new(Watched { file, room, fails: AtomicBool::new(fails), headers: Mutex::default() })
    }
}

impl JournalFile for Watched {
    fn describe(&self) -> String {
        self.file.describe()
    }
    fn len(&self) -> Result<u64> {
        self.file.len()
    }
    fn read_at(&self, offset: u64, bytes: &mut [u8]) -> Result<()> {
        self.file.read_at(offset, bytes)
    }
    fn write_at(&self, offset: u64, bytes: &[u8]) -> Result<()> {
        if offset < layout::SEGMENTS {
            let mut headers = lock(&self.headers);
            assert_eq!(*headers, [], "a header before the one before it is durable: a crash could tear both");
            headers.push(offset);
        }
        self.file.write_at(offset, bytes)
    }
    fn set_len(&self, len: u64) -> Result<()> {
        self.file.set_len(len)
    }
    fn allocate(&self, len: u64) -> Result<()> {
        if len > self.room {
            return Err(Error::DiskFull { name: self.describe(), wanted: len });
        }
        self.file.allocate(len)
    }
    fn sync(&self) -> Result<()> {
        if self.fails.swap(false, Ordering::Relaxed) {
            std::thread::sleep(Duration::from_millis(100));
            return Err(Error::Io { action: "syncing".into(), source: std::io::ErrorKind::Other.into() });
        }
        lock(&self.headers).clear();
        self.file.sync()
    }
    fn sync_name(&self) -> Result<()> {
        self.file.sync_name()
    }
}

/// A checkpoint that ends after a segment was added and before there is a record in it.
#[test]
fn a_header_is_durable_before_the_next_one_is_written() {
    let dir = tempfile::tempdir().unwrap();
    let (mut journal, _) = journal_of(&dir, 5 * layout::SLOT);
    journal.file = Watched::new(&dir, u64::MAX, false);
    let mut writer = journal.writer();
    commit(&journal, &mut writer, 1, 0..50);
    commit(&journal, &mut writer, 2, 60..110);
    assert!(journal.add_segment().unwrap());
    assert!(journal.checkpoint().unwrap());
    assert!(journal.add_segment().unwrap());
}

/// The sync of a checkpoint's header writes the record, too, and is told that it failed.
#[test]
fn a_record_whose_write_another_sync_has_seen_failing_is_not_durable() {
    let dir = tempfile::tempdir().unwrap();
    let (mut journal, _) = journal_of(&dir, 5 * layout::SLOT);
    let mut writer = journal.writer();
    commit(&journal, &mut writer, 1, 0..50);
    commit(&journal, &mut writer, 2, 60..90);
    drop(writer);
    journal.file = Watched::new(&dir, u64::MAX, true);
    std::thread::scope(|scope| {
        let checkpoint = scope.spawn(|| journal.checkpoint());
        std::thread::sleep(Duration::from_millis(30));
        let mut writer = journal.writer();
        writer.draft.clear();
        writer.draft.push(100, &[3; 8]);
        assert!(journal.append(&mut writer, 3).is_err());
        assert!(checkpoint.join().unwrap().is_err());
    });
    assert_eq!(journal.durable(), 2);
}

/// Growth syncs the pool's file, too: not while a checkpoint has written to it and not synced it.
#[test]
fn a_checkpoint_and_others_sync_the_file_of_the_pool_in_turn() {
    let dir = tempfile::tempdir().unwrap();
    let (journal, backing) = journal_of(&dir, 5 * layout::SLOT);
    let mut writer = journal.writer();
    commit(&journal, &mut writer, 1, 1..50);
    commit(&journal, &mut writer, 2, 60..90);
    let alone = journal.pool_file();
    std::thread::scope(|scope| {
        let checkpoint = scope.spawn(|| journal.checkpoint().unwrap());
        std::thread::sleep(Duration::from_millis(50));
        assert_eq!(word_of(&backing, 1), 0);
        drop(alone);
        assert!(checkpoint.join().unwrap());
    });
    assert_eq!(word_of(&backing, 1), 1);
}

/// The next one would skip what was not carried over. And who finds no free segment does not wait for ever.
#[test]
fn after_a_checkpoint_that_fails_there_is_no_other_one() {
    // Threads have to meet between the failure and its mark.
    for _ in 0..50 {
        let dir = tempfile::tempdir().unwrap();
        let (mut journal, backing) = journal_of(&dir, 3 * layout::SLOT);
        let faults = Faults::default();
        faults.fail(Call::Sync, 1, std::io::ErrorKind::Other);
        drop(backing);
        let file = FileBacking::open(dir.path().join("pool")).unwrap();
        journal.backing = Arc::new(FaultBacking::new(file, faults));
        let journal = &journal;
        let mut writer = journal.writer();
        (1..=3).for_each(|number| commit(journal, &mut writer, number, number * 60..number * 60 + 50));
        std::thread::scope(|scope| {
            let two = [(); 2].map(|()| scope.spawn(|| journal.checkpoint().is_err()));
            assert!(two.map(|one| one.join().unwrap()).iter().all(|failed| *failed));
        });
        assert_eq!(headers(journal).iter().flatten().map(|header| header.oldest).max(), Some(0));
        assert!(journal.free_place().is_err());
    }
}

/// Commits wait for checkpoints then, as they do at the limit.
#[test]
fn a_full_disk_keeps_the_journal_as_it_is() {
    let dir = tempfile::tempdir().unwrap();
    let (mut journal, backing) = journal_of(&dir, 5 * layout::SLOT);
    let most = lock(&journal.header).place(3);
    journal.file = Watched::new(&dir, most, false);
    for number in 1..=9 {
        commit(&journal, &mut journal.writer(), number, number * 60..number * 60 + 50);
    }
    assert_eq!((lock(&journal.header).places, journal.failure().is_none()), (3, true));
    journal.carry_over().unwrap();
    let written: Vec<u64> = (1..=9).map(|number| word_of(&backing, number * 60)).collect();
    assert_eq!(written, (1..=9).collect::<Vec<u64>>());
}

#[test]
fn after_a_failure_nothing_is_written_any_more() {
    let dir = tempfile::tempdir().unwrap();
    let (journal, backing) = journal(&dir);
    let mut writer = journal.writer();
    commit(&journal, &mut writer, 1, 3..4);
    journal.fail(&Error::ForeignSession);
    writer.draft.clear();
    writer.draft.push(5, &[2; 8]);
    assert!(journal.append(&mut writer, 2).is_err());
    journal.turn_over(&mut writer);
    assert!(journal.checkpoint().is_err());
    assert_eq!((journal.durable(), word_of(&backing, 3)), (1, 0));
}

/// Of the commit whose flush is under way, while operations of the next one are settled.
#[test]
fn the_oldest_operation_that_a_crash_can_take_back_is_remembered() {
    let dir = tempfile::tempdir().unwrap();
    let (journal, _) = journal(&dir);
    journal.exposed(1);
    let time = Duration::from_millis(5);
    std::thread::sleep(time);
    journal.note_capture(1);
    assert!(journal.exposed(2) >= time);
    commit(&journal, &mut journal.writer(), 1, 3..4);
    assert_eq!(journal.exposed(1), Duration::ZERO);
}

/// The copies that checkpoints are made from are the larger part of what a journal takes.
#[test]
fn the_copy_of_a_segment_takes_no_more_memory_than_the_segment() {
    let dir = tempfile::tempdir().unwrap();
    let (journal, _) = journal_of(&dir, 5 * layout::SLOT);
    let mut writer = journal.writer();
    (1..=40).for_each(|number| commit(&journal, &mut writer, number, number * 10..number * 10 + 3));
    let segments = lock(&journal.segments);
    assert!(segments.full.len() > 1);
    segments.full.iter().for_each(|full| assert!(full.records.capacity() <= 4096, "{}", full.records.capacity()));
}
