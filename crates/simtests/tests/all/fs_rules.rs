//! The rules of the simulated file system (`docs/crashsim-files.md`), each as little programs, with every outcome that a power failure at
//! their end may leave: exactly those are found, no more and no less.

use std::collections::BTreeSet;
use std::io;

use durix_crashsim::fs::{Call, Fault, FileSubject, Files, Open, Promises, SimulatedFile, SimulatedFs};
use durix_crashsim::{Cause, Contract, Explorer};

/// What a program does, and how one looks at what is left.
struct Program {
    run: fn(&SimulatedFs),
    look: fn(&SimulatedFs) -> String,
}

impl FileSubject for Program {
    type Op = ();
    type Ret = ();
    type State = String;
    type Model = ();
    type Live = SimulatedFs;

    fn create(&self, fs: &SimulatedFs) -> SimulatedFs {
        (self.run)(fs);
        fs.clone()
    }
    fn recover(&self, fs: &SimulatedFs) -> Result<SimulatedFs, String> {
        Ok(fs.clone())
    }
    fn apply(&self, _: &mut SimulatedFs, (): &()) {}
    fn observe(&self, fs: &mut SimulatedFs) -> String {
        (self.look)(fs)
    }
    fn model(&self) {}
    fn step(&self, (): &mut (), (): &()) {}
    fn expect(&self, (): &()) -> String {
        String::new()
    }
}

fn least() -> Files {
    Files::new(Explorer::new())
}

fn ordered() -> Files {
    least().promises(Promises::OrderedNames)
}

/// Exactly these outcomes are left.
#[track_caller]
fn leaves(files: &Files, run: fn(&SimulatedFs), look: fn(&SimulatedFs) -> String, expected: &[&str]) {
    let found = files.outcomes(&Program { run, look }, &[]);
    let expected: BTreeSet<String> = expected.iter().map(|outcome| format!("{outcome:?}")).collect();
    assert_eq!(found, expected);
}

/// A file whose name is durable.
fn file(fs: &SimulatedFs) -> SimulatedFile {
    let file = fs.open("f", Open::OrNew).unwrap();
    fs.sync_directory("/").unwrap();
    file
}

/// A durable file of two sectors full of `a`.
fn sectors(fs: &SimulatedFs) -> SimulatedFile {
    let file = file(fs);
    file.write_all_at(&[b'a'; 1024], 0).unwrap();
    file.sync_all().unwrap();
    file
}

/// The first byte of each sector of `f`, `-` where it is not there.
fn look(fs: &SimulatedFs) -> String {
    let Ok(file) = fs.open("f", Open::Existing) else { return "none".into() };
    [0, 512].map(|at| byte(&file, at)).iter().collect()
}

fn byte(file: &SimulatedFile, at: u64) -> char {
    let mut byte = [0];
    match file.read_at(&mut byte, at) {
        Ok(1) if byte[0] == 0 => '0',
        Ok(1) => byte[0] as char,
        _ => '-',
    }
}

/// Which of the names are there, and what begins with which byte.
fn names(fs: &SimulatedFs) -> String {
    let told = |name: &String| match fs.open(name, Open::Existing) {
        Ok(file) => format!("{name}{}", byte(&file, 0)),
        Err(_) => name.clone(),
    };
    fs.read_dir("/").unwrap().iter().map(told).collect::<Vec<_>>().join(" ")
}

fn put(fs: &SimulatedFs, name: &str, byte: u8) {
    let file = fs.open(name, Open::OrNew).unwrap();
    file.write_all_at(&[byte], 0).unwrap();
    file.sync_all().unwrap();
}

// ---- F1: contents ----

#[test]
fn f1_each_sector_holds_any_of_its_versions_since_the_last_sync() {
    let run = |fs: &SimulatedFs| {
        let file = sectors(fs);
        file.write_all_at(&[b'b'; 512], 0).unwrap();
        file.write_all_at(&[b'c'; 512], 0).unwrap();
        file.write_all_at(&[b'x'; 512], 512).unwrap();
    };
    leaves(&least(), run, look, &["aa", "ba", "ca", "ax", "bx", "cx"]);
}

#[test]
fn f1_nothing_older_than_the_last_sync() {
    let run = |fs: &SimulatedFs| {
        let file = sectors(fs);
        file.write_all_at(b"b", 0).unwrap();
        file.sync_all().unwrap();
        file.write_all_at(b"c", 0).unwrap();
    };
    leaves(&least(), run, look, &["ba", "ca"]);
}

#[test]
fn f1_a_sector_does_not_tear_and_a_write_across_two_does() {
    let ends = |fs: &SimulatedFs| {
        let file = fs.open("f", Open::Existing).unwrap();
        [0, 511, 512, 1023].map(|at| byte(&file, at)).iter().collect()
    };
    let run = |fs: &SimulatedFs| sectors(fs).write_all_at(&[b'b'; 1024], 0).unwrap();
    leaves(&least(), run, ends, &["aaaa", "bbaa", "aabb", "bbbb"]);
    // With smaller sectors there are more of them.
    leaves(
        &least().sector(256),
        |fs| {
            let file = sectors(fs);
            file.write_all_at(&[b'b'; 512], 0).unwrap();
        },
        ends,
        &["aaaa", "baaa", "abaa", "bbaa"],
    );
}

#[test]
fn f1_a_partial_write_keeps_the_rest_of_its_sector() {
    let run = |fs: &SimulatedFs| sectors(fs).write_all_at(b"b", 1).unwrap();
    let look = |fs: &SimulatedFs| {
        let file = fs.open("f", Open::Existing).unwrap();
        [0, 1, 2].map(|at| byte(&file, at)).iter().collect()
    };
    leaves(&least(), run, look, &["aaa", "aba"]);
}

// ---- F2: syncs of files ----

#[test]
fn f2_a_sync_covers_what_was_written_before_through_any_handle() {
    let run = |fs: &SimulatedFs| {
        let file = sectors(fs);
        fs.open("f", Open::Existing).unwrap().write_all_at(b"b", 0).unwrap();
        file.sync_data().unwrap();
        file.write_all_at(b"c", 512).unwrap();
    };
    leaves(&least(), run, look, &["ba", "bc"]);
}

#[test]
fn f2_a_sync_covers_no_other_file() {
    let run = |fs: &SimulatedFs| {
        let file = sectors(fs);
        file.write_all_at(b"b", 0).unwrap();
        fs.open("g", Open::New).unwrap().sync_all().unwrap();
        fs.sync_directory("/").unwrap();
    };
    leaves(&least(), run, look, &["aa", "ba"]);
}

// ---- F3: sizes ----

#[test]
fn f3_the_length_and_the_contents_are_independent() {
    let run = |fs: &SimulatedFs| file(fs).write_all_at(b"b", 0).unwrap();
    // Not there, there, and long enough but without the contents.
    leaves(&least(), run, look, &["--", "b-", "0-"]);
}

#[test]
fn f3_each_length_since_the_last_sync_may_be_found() {
    let len = |fs: &SimulatedFs| fs.open("f", Open::Existing).unwrap().len().unwrap().to_string();
    let run = |fs: &SimulatedFs| {
        let file = sectors(fs);
        file.set_len(100).unwrap();
        file.append(b"xy").unwrap();
    };
    leaves(&least(), run, len, &["1024", "100", "102"]);
    let run = |fs: &SimulatedFs| {
        let file = sectors(fs);
        file.allocate(1024, 1024).unwrap();
        file.sync_all().unwrap();
        file.set_len(7).unwrap();
    };
    leaves(&least(), run, len, &["2048", "7"]);
}

#[test]
fn f3_a_data_sync_makes_growth_durable_and_no_cut() {
    let len = |fs: &SimulatedFs| fs.open("f", Open::Existing).unwrap().len().unwrap().to_string();
    let grown = |fs: &SimulatedFs| {
        let file = sectors(fs);
        file.append(b"xy").unwrap();
        file.sync_data().unwrap();
    };
    leaves(&least(), grown, len, &["1026"]);
    let cut = |fs: &SimulatedFs| {
        let file = sectors(fs);
        file.set_len(7).unwrap();
        file.sync_data().unwrap();
    };
    leaves(&least(), cut, len, &["1024", "7"]);
}

#[test]
fn f3_what_was_cut_off_comes_back_as_zeroes_only() {
    let run = |fs: &SimulatedFs| {
        let file = sectors(fs);
        file.set_len(0).unwrap();
        file.set_len(1024).unwrap();
        file.sync_all().unwrap();
    };
    leaves(&least(), run, look, &["00"]);
    let gap = |fs: &SimulatedFs| {
        let file = sectors(fs);
        file.set_len(0).unwrap();
        file.write_all_at(b"z", 600).unwrap();
        file.sync_all().unwrap();
    };
    leaves(&least(), gap, look, &["00"]);
}

#[test]
fn f3_a_hole_is_a_version() {
    let run = |fs: &SimulatedFs| sectors(fs).punch_hole(0, 512).unwrap();
    leaves(&least(), run, look, &["aa", "0a"]);
}

// ---- F4, F5: names ----

#[test]
fn f4_a_name_needs_a_sync_of_its_directory() {
    let run = |fs: &SimulatedFs| put(fs, "f", b'b');
    leaves(&least(), run, look, &["none", "b-"]);
    let synced = |fs: &SimulatedFs| {
        put(fs, "f", b'b');
        fs.sync_directory("/").unwrap();
    };
    leaves(&least(), synced, look, &["b-"]);
}

#[test]
fn f4_names_are_independent_of_each_other() {
    let run = |fs: &SimulatedFs| {
        put(fs, "a", b'1');
        put(fs, "b", b'2');
    };
    leaves(&least(), run, names, &["", "a1", "b2", "a1 b2"]);
    leaves(
        &least(),
        |fs| {
            put(fs, "a", b'1');
            fs.sync_directory("/").unwrap();
            fs.remove_file("a").unwrap();
            put(fs, "a", b'2');
        },
        names,
        &["", "a1", "a2"],
    );
}

#[test]
fn f5_a_sync_of_a_directory_covers_its_names_and_no_contents() {
    let run = |fs: &SimulatedFs| {
        file(fs).write_all_at(b"b", 0).unwrap();
        fs.sync_directory("/").unwrap();
    };
    leaves(&least(), run, look, &["--", "b-", "0-"]);
    let elsewhere = |fs: &SimulatedFs| {
        fs.create_dir("d").unwrap();
        put(fs, "d/f", b'b');
        fs.sync_directory("d").unwrap();
    };
    // The directory's own name is its parent's.
    let look = |fs: &SimulatedFs| format!("{} {}", fs.exists("d").unwrap(), fs.exists("d/f").unwrap());
    leaves(&least(), elsewhere, look, &["false false", "true true"]);
    let parent_only = |fs: &SimulatedFs| {
        fs.create_dir("d").unwrap();
        put(fs, "d/f", b'b');
        fs.sync_directory("/").unwrap();
    };
    leaves(&least(), parent_only, look, &["true false", "true true"]);
}

// ---- F6: renames ----

fn replaced(fs: &SimulatedFs) {
    put(fs, "a", b'1');
    put(fs, "b", b'2');
    fs.sync_directory("/").unwrap();
    fs.rename("b", "a").unwrap();
}

#[test]
fn f6_the_new_name_of_a_rename_is_never_empty() {
    leaves(&least(), replaced, names, &["a1", "a1 b2", "a2", "a2 b2"]);
    leaves(&ordered(), replaced, names, &["a1 b2", "a2"]);
}

#[test]
fn f6_a_rename_says_nothing_of_contents() {
    let run = |fs: &SimulatedFs| {
        fs.write("b", "2").unwrap();
        fs.rename("b", "a").unwrap();
        fs.sync_directory("/").unwrap();
    };
    for files in [least(), ordered()] {
        leaves(&files, run, names, &["a-", "a0", "a2"]);
    }
}

// ---- F7: removal ----

#[test]
fn f7_a_removal_is_a_version_of_the_name() {
    let run = |fs: &SimulatedFs| {
        let file = sectors(fs);
        fs.remove_file("f").unwrap();
        file.write_all_at(b"b", 0).unwrap();
        file.sync_all().unwrap();
    };
    leaves(&least(), run, look, &["none", "ba"]);
    // Under ordered names the sync of the file commits the removal before it.
    leaves(&ordered(), run, look, &["none"]);
    let linked = |fs: &SimulatedFs| {
        put(fs, "a", b'1');
        fs.sync_directory("/").unwrap();
        fs.hard_link("a", "b").unwrap();
        fs.remove_file("a").unwrap();
    };
    leaves(&least(), linked, names, &["a1", "b1", "a1 b1", ""]);
    leaves(&ordered(), linked, names, &["a1", "a1 b1", "b1"]);
}

// ---- F8: ordered names ----

#[test]
fn f8_ordered_names_survive_as_a_prefix_across_directories() {
    let run = |fs: &SimulatedFs| {
        fs.create_dir("d").unwrap();
        fs.sync_directory("/").unwrap();
        put(fs, "d/x", b'1');
        fs.open("y", Open::New).unwrap();
        fs.open("d/z", Open::New).unwrap();
    };
    let look = |fs: &SimulatedFs| {
        ["d/x", "y", "d/z"].map(|name| if fs.exists(name).unwrap() { '1' } else { '0' }).iter().collect()
    };
    leaves(&least(), run, look, &["000", "001", "010", "011", "100", "101", "110", "111"]);
    // The sync of x commits its own name.
    leaves(&ordered(), run, look, &["100", "110", "111"]);
}

// ---- F9: failed syncs ----

fn failed(fs: &SimulatedFs) {
    let file = sectors(fs);
    file.write_all_at(b"b", 0).unwrap();
    fs.fail(Call::Sync, 1, Fault::Io);
    assert!(file.sync_all().is_err());
    // The error comes once, and nothing is written by the next one.
    file.sync_all().unwrap();
}

#[test]
fn f9_a_failed_sync_loses_any_of_its_pages_for_good() {
    leaves(&least(), failed, look, &["aa", "ba"]);
    let again = |fs: &SimulatedFs| {
        failed(fs);
        let file = fs.open("f", Open::Existing).unwrap();
        assert_eq!(byte(&file, 0), 'b', "the cache still has it");
        file.write_all_at(b"b", 0).unwrap();
        file.sync_all().unwrap();
    };
    // Written again, it is durable.
    leaves(&least(), again, look, &["ba"]);
}

#[test]
fn f9_a_failed_sync_of_a_directory_loses_names() {
    let run = |fs: &SimulatedFs| {
        put(fs, "f", b'b');
        fs.fail(Call::SyncDirectory, 1, Fault::Io);
        assert!(fs.sync_directory("/").is_err());
        fs.sync_directory("/").unwrap();
    };
    leaves(&least(), run, look, &["none", "b-"]);
}

// ---- F10: deaths of the process ----

/// One write, not synced, under a lock.
struct Written;

impl FileSubject for Written {
    type Op = ();
    type Ret = ();
    type State = String;
    type Model = bool;
    type Live = (SimulatedFs, SimulatedFile);

    fn create(&self, fs: &SimulatedFs) -> Self::Live {
        let file = sectors(fs);
        file.try_lock(true).unwrap();
        (fs.clone(), file)
    }
    fn recover(&self, fs: &SimulatedFs) -> Result<Self::Live, String> {
        let file = fs.open("f", Open::Existing).map_err(|error| error.to_string())?;
        file.try_lock(true).map_err(|error| error.to_string())?;
        Ok((fs.clone(), file))
    }
    fn apply(&self, (_, file): &mut Self::Live, (): &()) {
        file.write_all_at(b"b", 0).unwrap();
    }
    fn observe(&self, (fs, _): &mut Self::Live) -> String {
        look(fs)
    }
    fn model(&self) -> bool {
        false
    }
    fn step(&self, model: &mut bool, (): &()) {
        *model = true;
    }
    fn expect(&self, model: &bool) -> String {
        if *model { "ba" } else { "aa" }.into()
    }
}

#[test]
fn f10_after_the_death_of_a_process_all_is_visible_and_nothing_more_is_durable() {
    let buffered = Explorer::new().contract(Contract::Buffered).crashes(2);
    assert!(Files::new(buffered.clone()).run(&Written, &[()]).assert_ok().complete);
    let failure = Files::new(buffered.process_deaths(true)).run(&Written, &[()]).failure.expect("it was shown");
    let Cause::Recovered { observed, allowed } = &failure.cause else { panic!("{failure}") };
    assert_eq!((observed.as_str(), allowed.as_slice()), ("\"aa\"", &["\"ba\"".to_owned()][..]));
    assert!(failure.death.is_some());
}

// ---- F11: faults ----

#[test]
fn f11_calls_fail_where_they_are_told_to() {
    let fs = SimulatedFs::new();
    let file = fs.open("f", Open::New).unwrap();
    for call in [Call::Write, Call::Sync, Call::Resize, Call::Open, Call::Name, Call::Read, Call::SyncDirectory] {
        fs.fail(call, 2, Fault::Io);
    }
    let once = |run: &dyn Fn() -> io::Result<()>| {
        assert!(run().is_ok());
        assert_eq!(run().unwrap_err().raw_os_error(), Some(5));
        assert!(run().is_ok());
    };
    once(&|| file.write_all_at(b"abc", 0));
    once(&|| file.sync_all());
    once(&|| file.set_len(3));
    once(&|| fs.open("f", Open::Existing).map(drop));
    once(&|| file.read_at(&mut [0; 3], 0).map(drop));
    once(&|| fs.sync_directory("/"));
    once(&|| fs.hard_link("f", "g").or_else(|e| if e.raw_os_error().is_some() { Err(e) } else { Ok(()) }));
    assert_eq!((fs.calls(Call::Write), fs.calls(Call::Name)), (3, 3));
    fs.fail(Call::Write, 1, Fault::NoSpace);
    assert_eq!(file.append(b"d").unwrap_err().kind(), io::ErrorKind::StorageFull);
    fs.fail(Call::Write, 1, Fault::Short(1));
    assert_eq!(file.write_at(b"xyz", 0).unwrap(), 1);
    assert_eq!(file.read_all().unwrap(), b"xbc");
}

// ---- the calls themselves ----

#[test]
fn calls_answer_as_the_system_does() {
    use io::ErrorKind::{
        AlreadyExists, DirectoryNotEmpty, IsADirectory, NotADirectory, NotFound, UnexpectedEof, WouldBlock,
    };
    let fs = SimulatedFs::new();
    let kind = |result: io::Result<()>| result.unwrap_err().kind();
    assert_eq!(kind(fs.open("f", Open::Existing).map(drop)), NotFound);
    fs.write("f", "hello").unwrap();
    assert_eq!(kind(fs.open("f", Open::New).map(drop)), AlreadyExists);
    assert_eq!(kind(fs.open("f/g", Open::OrNew).map(drop)), NotADirectory);
    fs.create_dir("/d").unwrap();
    assert_eq!(kind(fs.create_dir("d")), AlreadyExists);
    assert_eq!(kind(fs.open("d", Open::OrNew).map(drop)), IsADirectory);
    fs.write("d/x", "1").unwrap();
    assert_eq!(kind(fs.remove_dir("d")), DirectoryNotEmpty);
    assert_eq!(kind(fs.rename("f", "d")), IsADirectory);
    assert_eq!(kind(fs.rename("d", "f")), NotADirectory);
    assert_eq!(kind(fs.hard_link("f", "d/x")), AlreadyExists);
    fs.hard_link("f", "d/y").unwrap();
    fs.rename("f", "d/x").unwrap();
    assert_eq!(fs.read_dir("d").unwrap(), ["x", "y"]);
    assert_eq!(fs.read("d/x").unwrap(), b"hello");
    let file = fs.open("d/y", Open::Existing).unwrap();
    assert_eq!(kind(file.read_exact_at(&mut [0; 6], 0)), UnexpectedEof);
    file.try_lock(true).unwrap();
    let other = fs.open("d/x", Open::Existing).unwrap();
    assert_eq!(kind(other.try_lock(false)), WouldBlock);
    drop(file);
    other.try_lock(false).unwrap();
    fs.open("d/x", Open::Existing).unwrap().try_lock(false).unwrap();
    fs.remove_file("d/x").unwrap();
    fs.remove_file("d/y").unwrap();
    assert_eq!(other.read_all().unwrap(), b"hello", "who has it open goes on");
    fs.remove_dir("d").unwrap();
    assert!(fs.read_dir("/").unwrap().is_empty() && !fs.exists("d").unwrap());
}
