//! What takes threads that meet at one place.

use super::*;
use crate::LINE;
use crate::backing::FileBacking;

/// A journal with segments of 4096 bytes, and the pool's file.
fn journal(dir: &tempfile::TempDir) -> (Journal, Arc<FileBacking>) {
    let backing = Arc::new(FileBacking::create(dir.path().join("pool")).unwrap());
    backing.allocate(1 << 16).unwrap();
    let begin = Begin {
        name: "pool".into(),
        file: Arc::new(DiskJournal::create(dir.path().join("journal")).unwrap()),
        backing: Arc::clone(&backing) as Arc<dyn Backing>,
        notes: Arc::new(NotesTicket::take().unwrap()),
        level: Level::Immediate,
        segment: layout::SLOT,
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
