//! The explorer of files: against a naive one, and what it finds in a log with a bug that only deaths, faults or second crashes show.

use std::collections::{BTreeMap, BTreeSet};
use std::io;

use durix_crashsim::fs::{FileSubject, Files, Open, SimulatedFile, SimulatedFs};
use durix_crashsim::{Cause, Explorer};
use proptest::collection::vec;
use proptest::prelude::{Strategy, prop_oneof};

// ---- against a naive model ----

const FILES: [&str; 2] = ["a", "b"];

#[derive(Clone, Copy, Debug)]
enum Do {
    /// Overwrites a sector of a file by the next byte.
    Write(usize, u64),
    Sync(usize),
    SyncNames,
    /// Gives a name to another file.
    Rename(usize, usize),
    Remove(usize),
    /// A new file of two sectors, durable but for its name.
    Create(usize),
}

/// What each thing may hold: of each file its sectors, and the names. No more than lists of versions.
#[derive(Clone, Debug, Default)]
struct Naive {
    sectors: Vec<[Vec<u8>; 2]>,
    names: [Vec<Option<usize>>; 2],
}

/// Which file each name is, and a byte of each sector.
type Disk = (Vec<Option<usize>>, BTreeMap<(usize, usize), u8>);

impl Naive {
    fn run(&mut self, step: Do, byte: u8) {
        let last = |names: &[Vec<Option<usize>>; 2], name: usize| names[name].last().copied().flatten();
        match step {
            Do::Write(name, sector) => {
                if let Some(file) = last(&self.names, name) {
                    self.sectors[file][sector as usize].push(byte);
                }
            }
            Do::Sync(name) => {
                if let Some(file) = last(&self.names, name) {
                    self.sectors[file].iter_mut().for_each(|versions| drop(versions.drain(..versions.len() - 1)));
                }
            }
            Do::SyncNames => self.names.iter_mut().for_each(|versions| drop(versions.drain(..versions.len() - 1))),
            Do::Rename(from, to) => {
                if let Some(file) = last(&self.names, from)
                    && last(&self.names, to) != Some(file)
                {
                    self.names[to].push(Some(file));
                    self.names[from].push(None);
                }
            }
            Do::Remove(name) => {
                if last(&self.names, name).is_some() {
                    self.names[name].push(None);
                }
            }
            Do::Create(name) => {
                if last(&self.names, name).is_none() {
                    self.sectors.push([vec![byte], vec![byte]]);
                    self.names[name].push(Some(self.sectors.len() - 1));
                }
            }
        }
    }

    /// Every combination, told.
    fn outcomes(&self) -> BTreeSet<String> {
        let mut all: Vec<Disk> = vec![Disk::default()];
        for name in &self.names {
            let with = |(names, bytes): &Disk| {
                let (names, bytes) = (names.clone(), bytes.clone());
                name.iter()
                    .map(move |entry| (names.iter().copied().chain([*entry]).collect(), bytes.clone()))
                    .collect::<Vec<_>>()
            };
            all = all.iter().flat_map(with).collect();
        }
        for (file, sectors) in self.sectors.iter().enumerate() {
            for (sector, versions) in sectors.iter().enumerate() {
                let with = |(names, bytes): &Disk| {
                    let used = names.contains(&Some(file));
                    let versions = if used { versions.clone() } else { vec![0] };
                    let one = |byte: u8| {
                        let mut bytes = bytes.clone();
                        bytes.insert((file, sector), byte);
                        (names.clone(), bytes)
                    };
                    versions.into_iter().map(one).collect::<Vec<_>>()
                };
                all = all.iter().flat_map(with).collect();
            }
        }
        let told = |(names, bytes): &Disk| {
            let file = |file: &Option<usize>| file.map(|file| [0, 1].map(|sector| bytes[&(file, sector)]));
            format!("{:?}", names.iter().map(file).collect::<Vec<_>>())
        };
        all.iter().map(told).collect()
    }
}

/// Runs the steps on the simulated file system as it is created, so that the power fails at their end.
struct Steps {
    steps: Vec<Do>,
    /// Reads every sector of every file before it looks.
    read_all: bool,
}

fn perform(fs: &SimulatedFs, step: Do, byte: u8) -> io::Result<()> {
    match step {
        Do::Write(name, sector) => fs.open(FILES[name], Open::Existing)?.write_all_at(&[byte; 512], sector * 512),
        Do::Sync(name) => fs.open(FILES[name], Open::Existing)?.sync_all(),
        Do::SyncNames => fs.sync_directory("/"),
        Do::Rename(from, to) => fs.rename(FILES[from], FILES[to]),
        Do::Remove(name) => fs.remove_file(FILES[name]),
        Do::Create(name) => {
            let file = fs.open(FILES[name], Open::New)?;
            file.write_all_at(&[byte; 1024], 0)?;
            file.sync_all()
        }
    }
}

impl FileSubject for Steps {
    type Op = ();
    type Ret = ();
    type State = Vec<Option<[u8; 2]>>;
    type Model = ();
    type Live = SimulatedFs;

    fn create(&self, fs: &SimulatedFs) -> SimulatedFs {
        for (number, step) in self.steps.iter().enumerate() {
            let _ = perform(fs, *step, number as u8 + 1);
        }
        fs.clone()
    }
    fn recover(&self, fs: &SimulatedFs) -> Result<SimulatedFs, String> {
        if self.read_all {
            for name in fs.read_dir("/").unwrap() {
                fs.read(name).unwrap();
            }
        }
        Ok(fs.clone())
    }
    fn apply(&self, _: &mut SimulatedFs, (): &()) {}
    fn observe(&self, fs: &mut SimulatedFs) -> Self::State {
        let byte = |file: &SimulatedFile, at| {
            let mut byte = [0];
            file.read_exact_at(&mut byte, at).unwrap();
            byte[0]
        };
        FILES.map(|name| fs.open(name, Open::Existing).ok().map(|file| [byte(&file, 0), byte(&file, 512)])).into()
    }
    fn model(&self) {}
    fn step(&self, (): &mut (), (): &()) {}
    fn expect(&self, (): &()) -> Self::State {
        Vec::new()
    }
}

#[test]
fn random_programs_leave_what_a_naive_model_says() {
    let step = prop_oneof![
        4 => (0..2usize, 0..2u64).prop_map(|(name, sector)| Do::Write(name, sector)),
        1 => (0..2usize).prop_map(Do::Sync),
        1 => (0..1usize).prop_map(|_| Do::SyncNames),
        1 => (0..2usize).prop_map(|from| Do::Rename(from, 1 - from)),
        1 => (0..2usize).prop_map(Do::Remove),
        3 => (0..2usize).prop_map(Do::Create),
    ];
    let mut runner = proptest::test_runner::TestRunner::deterministic();
    let mut open = 0;
    for _ in 0..400 {
        let tree = vec(step.clone(), 3..12).new_tree(&mut runner).unwrap();
        let steps = proptest::strategy::ValueTree::current(&tree);
        let mut naive = Naive { names: [vec![None], vec![None]], ..Naive::default() };
        steps.iter().enumerate().for_each(|(number, step)| naive.run(*step, number as u8 + 1));
        let expected = naive.outcomes();
        open += usize::from(expected.len() > 4);
        for read_all in [false, true] {
            let found = Files::default().outcomes(&Steps { steps: steps.clone(), read_all }, &[]);
            assert_eq!(found, expected, "{steps:?} {naive:?}");
        }
    }
    assert!(open > 100, "only {open} programs have left more than four states");
}

// ---- a log of sectors ----

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Bug {
    None,
    /// Its name is never synced.
    NoName,
    /// Appends return before they are durable.
    NoSync,
    /// What a dead process left in the cache is shown before it is durable.
    ShownEarly,
    /// The same, and it syncs, but does not write again what a failed sync has marked clean.
    NotWrittenAgain,
    /// After a failed sync it tries again, and goes on.
    TriesAgain,
    /// Does not look how much was written.
    ShortWrite,
    /// Records without a checksum.
    NoChecksum,
}

const RECORDS: u64 = 6;
const RECORD: usize = 1024;

struct Log(Bug);

struct Live {
    file: SimulatedFile,
    values: Vec<u8>,
    failed: bool,
    bug: Bug,
}

fn record(number: u64, value: u8) -> [u8; RECORD] {
    let mut record = [value; RECORD];
    record[0] = number as u8 + 1;
    // Of the second sector the last byte is the checksum of both.
    record[RECORD - 1] = value ^ (number as u8) ^ 0x5a;
    record
}

impl Live {
    fn append(&mut self, value: u8) -> io::Result<()> {
        if self.failed {
            return Err(io::Error::other("failed before"));
        }
        let (record, at) = (record(self.values.len() as u64, value), self.values.len() as u64 * RECORD as u64);
        let result = self.write(&record, at);
        self.failed = result.is_err();
        result.map(|()| self.values.push(value))
    }

    fn write(&mut self, record: &[u8], at: u64) -> io::Result<()> {
        match self.bug {
            Bug::ShortWrite => self.file.write_at(record, at).map(drop)?,
            _ => self.file.write_all_at(record, at)?,
        }
        match self.bug {
            Bug::NoSync => Ok(()),
            Bug::TriesAgain => self.file.sync_data().or_else(|_| self.file.sync_data()),
            _ => self.file.sync_data(),
        }
    }
}

impl FileSubject for Log {
    type Op = u8;
    type Ret = bool;
    type State = Vec<u8>;
    type Model = Vec<u8>;
    type Live = Live;

    fn create(&self, fs: &SimulatedFs) -> Live {
        let file = fs.open("log", Open::OrNew).unwrap();
        file.write_all_at(&[0; RECORD * RECORDS as usize], 0).unwrap();
        file.sync_all().unwrap();
        if self.0 != Bug::NoName {
            fs.sync_directory("/").unwrap();
        }
        Live { file, values: Vec::new(), failed: false, bug: self.0 }
    }

    fn recover(&self, fs: &SimulatedFs) -> Result<Live, String> {
        let file = fs.open("log", Open::Existing).map_err(|error| error.to_string())?;
        let mut values = Vec::new();
        let mut found = [0; RECORD];
        for number in 0..RECORDS {
            file.read_exact_at(&mut found, number * RECORD as u64).map_err(|error| error.to_string())?;
            let whole = match self.0 {
                Bug::NoChecksum => found[0] == number as u8 + 1,
                _ => found == record(number, found[1]),
            };
            if !whole {
                break;
            }
            values.push(found[RECORD - 2]);
        }
        if let (Some(value), false) = (values.last(), self.0 == Bug::ShownEarly) {
            let last = values.len() as u64 - 1;
            if self.0 != Bug::NotWrittenAgain {
                file.write_all_at(&record(last, *value), last * RECORD as u64).map_err(|error| error.to_string())?;
            }
            file.sync_data().map_err(|error| error.to_string())?;
        }
        Ok(Live { file, values, failed: false, bug: self.0 })
    }

    fn apply(&self, live: &mut Live, value: &u8) -> bool {
        live.append(*value).is_ok()
    }
    fn observe(&self, live: &mut Live) -> Vec<u8> {
        live.values.clone()
    }
    fn model(&self) -> Vec<u8> {
        Vec::new()
    }
    fn step(&self, model: &mut Vec<u8>, value: &u8) -> bool {
        model.push(*value);
        true
    }
    fn expect(&self, model: &Vec<u8>) -> Vec<u8> {
        model.clone()
    }
    fn has_failed(&self, answer: &bool) -> bool {
        !answer
    }
}

fn explorer() -> Explorer {
    Explorer::new().crashes(2).crash_later(true)
}

fn all() -> Files {
    Files::new(explorer().process_deaths(true)).each_fault(true)
}

const OPS: [u8; 3] = [1, 2, 3];
const AFTER: [u8; 1] = [9];

#[test]
fn a_right_log_survives_crashes_deaths_and_faults() {
    let report = all().run_then(&Log(Bug::None), &OPS, &AFTER).assert_ok();
    println!("{report}");
    assert!(report.complete && report.deaths > 10 && report.nested_points > 100, "{report}");
    assert_eq!(report.certified, report.crash_points + report.nested_points + report.deaths);
}

#[test]
fn every_bug_is_found_by_what_can_show_it() {
    let with = |deaths: bool, faults: bool| {
        move |explorer: Explorer| Files::new(explorer.process_deaths(deaths)).each_fault(faults)
    };
    for (bug, (deaths, faults), blind) in [
        (Bug::NoName, (false, false), None),
        (Bug::NoSync, (false, false), None),
        (Bug::NoChecksum, (false, false), None),
        (Bug::ShownEarly, (true, false), Some((false, false))),
        (Bug::NotWrittenAgain, (true, true), Some((true, false))),
        (Bug::TriesAgain, (false, true), Some((true, false))),
        (Bug::ShortWrite, (false, true), Some((true, false))),
    ] {
        let files = with(deaths, faults);
        let report = files(explorer()).run_then(&Log(bug), &OPS, &AFTER);
        let failure = report.failure.unwrap_or_else(|| panic!("{bug:?} missed"));
        println!("{bug:?}: {failure}\n");
        assert!(failure.deviating <= 2, "{failure}");
        let again = files(explorer().replay(&failure.replay)).run_then(&Log(bug), &OPS, &AFTER);
        let again = again.failure.expect("not repeated");
        assert_eq!((&again.cause, &again.details, &again.replay), (&failure.cause, &failure.details, &failure.replay));
        // Where it takes deaths or faults, nothing less will do.
        if let Some((deaths, faults)) = blind {
            let report = with(deaths, faults)(explorer()).run_then(&Log(bug), &OPS, &AFTER);
            assert!(report.assert_ok().complete, "{bug:?}");
        }
    }
}

#[test]
fn suggestions_name_the_missing_sync() {
    let files = Files::new(explorer());
    let suggestion = |bug| files.run_then(&Log(bug), &OPS, &AFTER).failure.expect("missed").suggestion;
    assert!(suggestion(Bug::NoName).is_some_and(|told| told.starts_with("a sync of the directory after")));
    assert!(suggestion(Bug::NoSync).is_some_and(|told| told.starts_with("a sync of the file after")));
}

#[test]
fn every_sync_of_the_log_is_needed() {
    let test = |files: &Files| files.run_then(&Log(Bug::None), &OPS, &AFTER);
    let sweep = Files::new(explorer().process_deaths(true)).each_fault(false).syncs_dropped(test);
    println!("{sweep}");
    let sweep = sweep.assert_all_caught(&[]);
    assert_eq!(sweep.syncs.len(), 4);
}

#[test]
fn generated_failures_are_shrunk_and_repeated() {
    let generate = (vec(1..100u8, 1..6), vec(1..100u8, 0..2));
    let files = Files::new(explorer());
    let first = files.check(&Log(Bug::NoSync), 100, &generate).failure.expect("missed");
    println!("{first}");
    assert!(first.ops.len() == 1 && first.replay.len() <= 200, "{first}");
    let replaying = Files::new(explorer().replay(&first.replay));
    let again = replaying.check(&Log(Bug::NoSync), 1, &generate).failure.expect("not repeated");
    assert_eq!((&again.cause, &again.ops), (&first.cause, &first.ops));
    let shrunk = Files::new(explorer().shrink_ops(true)).run_then(&Log(Bug::NoSync), &OPS, &AFTER);
    assert!(shrunk.failure.expect("missed").ops.len() <= 1);
}

#[test]
fn beyond_the_budget_states_are_sampled() {
    let few = Explorer::new().executions_per_point(2).samples(40);
    let report = Files::new(few.clone()).run(&Log(Bug::None), &OPS).assert_ok();
    assert!(!report.complete && report.samples > 0, "{report}");
    for bug in [Bug::NoName, Bug::NoSync] {
        let _ = Files::new(few.clone()).run(&Log(bug), &OPS).failure.unwrap_or_else(|| panic!("{bug:?} missed"));
    }
}

#[test]
fn answers_and_panics_are_failures() {
    struct Wrong;
    impl FileSubject for Wrong {
        type Op = bool;
        type Ret = u8;
        type State = ();
        type Model = ();
        type Live = ();
        fn create(&self, _: &SimulatedFs) {}
        fn recover(&self, _: &SimulatedFs) -> Result<(), String> {
            Ok(())
        }
        fn apply(&self, (): &mut (), panics: &bool) -> u8 {
            assert!(!panics, "as told");
            1
        }
        fn observe(&self, (): &mut ()) {}
        fn model(&self) {}
        fn step(&self, (): &mut (), _: &bool) -> u8 {
            2
        }
        fn expect(&self, (): &()) {}
    }
    let cause = |op| Files::default().run(&Wrong, &[op]).failure.expect("missed").cause;
    assert!(matches!(cause(false), Cause::Answer { number: 0, .. }));
    assert!(matches!(cause(true), Cause::Panic { .. }));
}
