//! The command as a user tries it, with right and with wrong arguments.

mod common;
mod formats;
mod kinds;

use std::collections::{BTreeMap, BTreeSet};
use std::io::{BufRead, Write};
use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, Instant};

use common::{Place, change, fails};
use durix::{Hardware, Level, Pool, PoolOptions, Session};
use durix_pmem::{Kind, Moments, Root, Structure, Version};

fn json(text: &str) -> serde_json::Value {
    serde_json::from_str(text).unwrap_or_else(|error| panic!("{error}: {text}"))
}

// ---- what works ----

#[test]
fn entries_are_put_got_and_removed() {
    let place = Place::new();
    place.works(&["put", "--create", "--pool", "p", "grün", "ja"]);
    assert_eq!(place.works(&["get", "--pool", "p", "grün"]), "ja\n");
    place.works(&["put", "--pool", "p", "-e", "a\\tb", "line\\nline\\x00\\xff"]);
    assert_eq!(place.works(&["get", "--pool", "p", "-e", "a\\tb"]), "line\\nline\\x00\\xff\n");
    let raw = place.command(&["get", "--pool", "p", "--raw", "a\tb"]).output().unwrap();
    assert_eq!(raw.stdout, b"line\nline\x00\xff");
    let found = json(&place.works(&["get", "--pool", "p", "--json", "grün"]));
    assert_eq!((&found["value"], &found["found"]), (&"ja".into(), &true.into()));
    place.fails(&["put", "--pool", "p", "--if-absent", "grün", "nein"], 1, "grün is there already");
    assert_eq!(place.works(&["get", "--pool", "p", "grün"]), "ja\n");
    place.works(&["put", "--pool", "p", "", ""]);
    assert_eq!(place.works(&["get", "--pool", "p", ""]), "\n");
    place.works(&["del", "--pool", "p", "grün", ""]);
    place.fails(&["get", "--pool", "p", "grün"], 1, "grün is not there");
    place.fails(&["del", "--pool", "p", "grün"], 1, "grün was not there");
    assert_eq!(json(&place.durix(&["get", "--pool", "p", "--json", "grün"]).out)["found"], false);
}

#[test]
fn scans_are_in_the_order_of_keys_and_keep_to_their_range() {
    let place = Place::new();
    place.pool("p");
    let scan = |args: &[&str]| place.works(&[&["scan", "--pool", "p"], args].concat());
    assert_eq!(scan(&[]), "a\t1\nab\t12\nb\t2\nc\tthree\\n\\x00\n");
    assert_eq!(scan(&["--keys-only", "--reverse"]), "c\nb\nab\na\n");
    assert_eq!(scan(&["--prefix", "a"]), "a\t1\nab\t12\n");
    assert_eq!(scan(&["--from", "ab", "--to", "c", "--keys-only"]), "ab\nb\n");
    assert_eq!(scan(&["--limit", "2", "--keys-only"]), "a\nab\n");
    assert_eq!(scan(&["--limit", "2", "--keys-only", "--reverse"]), "c\nb\n");
    assert_eq!(scan(&["--limit", "0"]), "");
    assert_eq!(scan(&["--from", "z"]), "");
    let mut unsorted: Vec<_> = scan(&["--unsorted", "--keys-only"]).lines().map(str::to_owned).collect();
    unsorted.sort();
    assert_eq!(unsorted, ["a", "ab", "b", "c"]);
    let lines: Vec<_> = scan(&["--json", "--prefix", "b"]).lines().map(json).collect();
    assert_eq!((lines.len(), &lines[0]["value"]), (1, &"2".into()));
}

#[test]
fn a_reader_that_goes_away_gets_no_message_and_is_no_success() {
    let place = Place::new();
    let many: String = (0..50_000).map(|i| format!("key number {i}\n")).collect();
    assert_eq!(place.fed(&["load", "--pool", "p"], many.as_bytes()).code, 0);
    let mut child =
        place.command(&["scan", "--pool", "p"]).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    drop(child.stdout.take());
    let output = child.wait_with_output().unwrap();
    assert_eq!((output.status.code(), output.stderr.len()), (Some(141), 0));
}

#[test]
fn trees_are_loaded_and_loading_again_changes_nothing() {
    let place = Place::new();
    std::fs::create_dir_all(place.path("tree/sub")).unwrap();
    std::fs::write(place.path("tree/sub/file"), b"12345").unwrap();
    let first = json(&place.works(&["load", "--pool", "p", "--kind", "pset", "--tree", "tree", "--json"]));
    assert_eq!((&first["added"], &first["keys"]), (&3.into(), &3.into()));
    let value = place.works(&["get", "--pool", "p", "tree/sub/file"]);
    assert!(value.starts_with("5 1") && value.len() > 10, "size and time: {value}");
    let again = json(&place.works(&["load", "--pool", "p", "--tree", "tree", "--json"]));
    assert_eq!((&again["there"], &again["added"], &again["changed"]), (&3.into(), &0.into(), &0.into()));
    std::fs::write(place.path("tree/sub/file"), b"123456").unwrap();
    let changed = json(&place.works(&["load", "--pool", "p", "--tree", "tree", "--json"]));
    assert_eq!(changed["changed"], 1);
}

#[test]
fn files_of_lines_are_loaded_too_long_ones_are_passed_over() {
    let place = Place::new();
    std::fs::write(place.path("one"), "tree\ntrie\n").unwrap();
    std::fs::write(place.path("two"), format!("last line without an end\n{}\ntrie", "x".repeat(20_000))).unwrap();
    let said = place.works(&["load", "--pool", "p", "--index", "words", "one", "two"]);
    assert!(said.starts_with("3 added, 0 changed, 1 there already, 1 passed over (too long)"), "{said}");
    assert_eq!(
        place.works(&["scan", "--pool", "p", "--index", "words", "--prefix", "tr", "--keys-only"]),
        "tree\ntrie\n"
    );
}

#[test]
fn a_load_that_is_killed_goes_on_where_it_was() {
    let place = Place::new();
    let lines: Vec<String> = (0..60_000).map(|i| format!("key {i}\tvalue {}\n", i * 7)).collect();
    let args = ["load", "--pool", "p", "--format", "tsv"];
    for kill in 0..3 {
        let mut child = place.command(&args).stdin(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap();
        let mut stdin = child.stdin.take().unwrap();
        let part = lines[..(kill + 1) * 15_000].concat();
        stdin.write_all(part.as_bytes()).unwrap();
        stdin.flush().unwrap();
        std::thread::sleep(Duration::from_millis(20));
        child.kill().unwrap();
        child.wait().unwrap();
    }
    let stat = json(&place.works(&["stat", "--pool", "p", "--json"]));
    assert!(stat["state"].as_str().unwrap().contains("not closed"), "{stat}");
    let resumed = place.fed(&[&args[..], &["--json"]].concat(), lines.concat().as_bytes());
    let said = json(&resumed.out);
    assert_eq!(said["keys"], 60_000);
    let there = said["there"].as_u64().unwrap();
    assert!((30_000..60_000).contains(&there), "{there} entries were there already");
    assert_eq!(said["changed"], 0);
    assert_eq!(place.works(&["get", "--pool", "p", "key 59999"]), format!("value {}\n", 59_999 * 7));
    place.works(&["check", "--pool", "p"]);
}

#[test]
fn a_load_commits_what_it_has_read_while_it_waits_for_more() {
    let place = Place::new();
    let args = ["load", "--pool", "p", "--durability", "immediate"];
    let mut child = place.command(&args).stdin(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap();
    let mut stdin = child.stdin.take().unwrap();
    stdin.write_all(b"a line that nobody follows\n").unwrap();
    stdin.flush().unwrap();
    let start = Instant::now();
    let is_there = || {
        let journal = std::fs::read(place.path("p-journal")).unwrap_or_default();
        journal.windows(26).any(|bytes| bytes == b"a line that nobody follows")
    };
    while !is_there() {
        assert!(start.elapsed() < Duration::from_secs(60), "it is not in the journal");
        std::thread::sleep(Duration::from_millis(20));
    }
    child.kill().unwrap();
    child.wait().unwrap();
    assert_eq!(place.works(&["scan", "--pool", "p", "--keys-only"]), "a line that nobody follows\n");
}

#[test]
fn stat_says_what_a_pool_is_also_of_one_that_is_open() {
    let place = Place::new();
    let path = place.pool("p");
    let text = place.works(&["stat", "--pool", "p", "--durability", "process"]);
    for part in
        ["closed", "page cache", "what is durable survives the death of the process", "main", "pset", "on return"]
    {
        assert!(text.contains(part), "{part:?} is not in {text}");
    }
    let one = place.works(&["stat", "--pool", "p", "--index", "main"]);
    assert!(one.contains("tombstones"), "{one}");
    // Without a word: what has returned survives power failure, unless the folder lies in memory.
    let said = json(&place.works(&["stat", "--pool", "p", "--json"]));
    let expected = match said["mapping"].as_str().unwrap() {
        "file in memory (tmpfs)" => {
            "survives the death of the process, not a power failure or a crash of the operating system"
        }
        _ => "an operation that has returned survives power failure, by a flush of the journal",
    };
    assert!(said["guarantee"].as_str().unwrap().contains(expected), "{said}");
    if Path::new("/dev/shm").is_dir() {
        let there = tempfile::tempdir_in("/dev/shm").unwrap();
        let copy = there.path().join("p");
        std::fs::copy(&path, &copy).unwrap();
        let args = ["stat", "--durability", "immediate", "--json", "--pool", copy.to_str().unwrap()];
        let said = json(&place.works(&args));
        assert_eq!(
            said["mapping"] == "file in memory (tmpfs)",
            said["guarantee"].as_str().unwrap().contains("not a power failure")
        );
    }
    let pmem = json(&place.works(&["stat", "--pool", "p", "--assume-pmem", "--json"]));
    assert!(
        pmem["guarantee"].as_str().unwrap().contains("survives power failure, if the mapping is persistent memory")
    );
    let index = &pmem["indices"][0];
    assert_eq!((&index["keys"], &index["kind"], &index["key_type"]), (&4.into(), &"pset".into(), &"bytes".into()));
    let db = durix::Db::open(&path).unwrap();
    let users = db.map::<u64, String>("users").unwrap();
    users.insert(&7, "seven").unwrap();
    let live = place.works(&["stat", "--pool", "p"]);
    assert!(live.contains("open in another process") && live.contains("users"), "{live}");
    place.fails(&["get", "--pool", "p", "a"], 5, "is open already in process");
    place.fails(&["put", "--pool", "p", "a", "b"], 5, "is open already");
    let ways = "close it there, wait for that with --wait SECONDS, or look at it with `durix stat --pool p`";
    place.fails(&["get", "--pool", "p", "a"], 5, ways);
    // Closed while they wait.
    drop(users);
    let wait = ["--wait", "60"];
    let waiting: Vec<_> = [&["get", "--pool", "p", "a"][..], &["repair", "--pool", "p", "--into", "q"]]
        .into_iter()
        .map(|args| place.command(&[args, &wait].concat()).spawn().unwrap())
        .collect();
    std::thread::sleep(std::time::Duration::from_millis(200));
    db.close().unwrap();
    for mut waiting in waiting {
        assert!(waiting.wait().unwrap().success());
    }
}

#[test]
fn a_pool_without_its_journal_is_contents_that_cannot_be_used() {
    let place = Place::new();
    let db = durix::Db::builder().durability(durix::Level::Immediate).create(place.path("p")).unwrap();
    db.map::<Vec<u8>, Vec<u8>>("main").unwrap().insert(&b"k"[..], &b"v"[..]).unwrap();
    // Taken while it is open, without the file beside it.
    std::fs::copy(place.path("p"), place.path("q")).unwrap();
    place.fails(&["get", "--pool", "q", "k"], 4, "put the journal back beside it");
    // With it, it is a copy of a pool that was open.
    std::fs::copy(place.path("p-journal"), place.path("q-journal")).unwrap();
    for verb in [&["get", "--pool", "q", "k"][..], &["check", "--pool", "q"], &["put", "--pool", "q", "k", "w"]] {
        place.fails(verb, 4, "q was copied from a pool that was open, or that a crash had left (it has another inode");
    }
    assert_eq!(place.works(&["get", "--pool", "q", "--accept-unclean", "k"]), "v\n");
    std::fs::write(place.path("q-journal"), [7; 100_000]).unwrap();
    place.fails(&["get", "--pool", "q", "k"], 4, "restore");
}

#[test]
fn typed_indices_are_shown_and_written_as_their_types() {
    let place = Place::new();
    let db = durix::Db::open_or_create(place.path("p")).unwrap();
    db.map::<u64, String>("users").unwrap().insert(&7, "seven").unwrap();
    db.map::<(i32, String), bool>("flags").unwrap().insert(&(-5, "x,y"), &true).unwrap();
    db.close().unwrap();
    assert_eq!(place.works(&["get", "--pool", "p", "--index", "users", "7"]), "seven\n");
    assert_eq!(place.works(&["scan", "--pool", "p", "--index", "flags"]), "-5,x,y\ttrue\n");
    place.works(&["put", "--pool", "p", "--index", "users", "8", "eight"]);
    place.works(&["put", "--pool", "p", "--index", "flags", "0,z", "false"]);
    place.fails(
        &["put", "--pool", "p", "--index", "users", "x", "y"],
        2,
        "key \"x\" is not of type u64: invalid digit",
    );
    place.fails(&["put", "--pool", "p", "--index", "flags", "0,z", "maybe"], 2, "value \"maybe\" is not of type bool");
    let commas = "its parts are written with commas between them";
    place.fails(&["put", "--pool", "p", "--index", "flags", "(0, z)", "true"], 2, commas);
    place.fails(&["load", "--pool", "p", "--index", "users", "--tree", "."], 2, "index holds u64 to string");
    let db = durix::Db::open(place.path("p")).unwrap();
    assert_eq!(db.map::<u64, String>("users").unwrap().get(&8).unwrap().as_deref(), Some("eight"));
    assert_eq!(db.map::<(i32, String), bool>("flags").unwrap().get(&(0, "z")).unwrap(), Some(false));
}

// ---- dump, restore, copy, repair ----

fn contents(place: &Place, pool: &str, index: &str) -> BTreeMap<String, String> {
    let text = place.works(&["scan", "--pool", pool, "--index", index]);
    text.lines().filter_map(|line| line.split_once('\t')).map(|(k, v)| (k.to_owned(), v.to_owned())).collect()
}

#[test]
fn what_is_dumped_is_restored() {
    let place = Place::new();
    place.pool("p");
    let binary: Vec<u8> = (0..=255).collect();
    let db = durix::Db::open(place.path("p")).unwrap();
    db.map::<Vec<u8>, Vec<u8>>("main").unwrap().insert(&binary, &binary).unwrap();
    db.map::<u64, String>("tab\tname").unwrap().insert(&1, "x").unwrap();
    db.map::<u64, u64>("empty").unwrap();
    db.close().unwrap();
    let dump = place.works(&["dump", "--pool", "p", "--sort"]);
    assert!(
        dump.starts_with("durix-dump\t2\nindex\t") && dump.ends_with("\nindices\t3\n") && dump.is_ascii(),
        "{dump}"
    );
    let said = place.fed(&["restore", "--pool", "q"], dump.as_bytes());
    assert_eq!(said.code, 0, "{}", said.err);
    assert_eq!(place.works(&["dump", "--pool", "q", "--sort"]), dump);
    assert_eq!(contents(&place, "p", "main"), contents(&place, "q", "main"));
    let db = durix::Db::open(place.path("q")).unwrap();
    assert_eq!(db.map::<u64, String>("tab\tname").unwrap().get(&1).unwrap().as_deref(), Some("x"));
    assert_eq!(db.map::<Vec<u8>, Vec<u8>>("main").unwrap().get(&binary).unwrap(), Some(binary));
    db.close().unwrap();
    std::fs::write(place.path("one.dump"), place.works(&["dump", "--pool", "p", "--index", "empty"])).unwrap();
    assert_eq!(place.works(&["restore", "--pool", "r", "--kind", "pset", "one.dump"]), "empty: 0 entries\n");
}

#[test]
fn a_bad_dump_is_refused_and_leaves_nothing() {
    let place = Place::new();
    place.pool("p");
    let dump = place.works(&["dump", "--pool", "p", "--sort"]);
    let main = dump.strip_suffix("indices\t1\n").unwrap();
    let cases = [
        ("", "line 1 of the dump: it does not begin with \"durix-dump\""),
        ("garbage\n", "line 1 of the dump: it does not begin with \"durix-dump\""),
        ("durix-dump\t7\n", "line 1 of the dump: it is of format 7, and this build reads 1 and 2"),
        ("durix-dump\t2\n", "line 2 of the dump: it ends without the number of indices, so it was cut off"),
        (&dump[..dump.len() - 3], "it ends in the middle of a line, so it was cut off"),
        (&dump.split_inclusive('\n').take(4).collect::<String>(), "line 5 of the dump: it ends within an index"),
        (&dump.replace("ab\t12", "ab\t13"), "entries with checksum"),
        (&dump.replace("ab\t12", "ab\t\\q"), "line 4 of the dump: \\q is no escape"),
        (&dump.replace("ab\t12", "ab"), "line 4 of the dump: 1 field,"),
        (&dump.replace("bytes\tbytes", "bytes\tnothing"), "line 2 of the dump: \"nothing\" names no type"),
        (&format!("{main}{}", &dump[13..]), "a second index named \"main\""),
        (&format!("{main}more\n"), "neither a new index nor the number of indices is here"),
        (&format!("{dump}more\n"), "line 9 of the dump: something follows the number of indices"),
        (&format!("{dump}{}", &dump[13..]), "line 9 of the dump: something follows the number of indices"),
        (main, "line 8 of the dump: it ends without the number of indices, so it was cut off"),
        (&format!("{main}indices\t2\n"), "line 8 of the dump: 2 indices were dumped, 1 is here"),
    ];
    // Without an end, and without a line.
    let endless = ["restore", "--pool", "q", "/dev/zero"];
    fails(&place.fed(&endless, b""), &endless, 4, "it does not begin with \"durix-dump\"");
    for (dump, says) in cases {
        let ended = place.fed(&["restore", "--pool", "q"], dump.as_bytes());
        fails(&ended, &["restore"], 4, says);
        assert!(!place.path("q").exists() && !place.path("q.partial").exists(), "something is left after {says:?}");
    }
    let other = dump.replace("pset", "btree");
    fails(
        &place.fed(&["restore", "--pool", "q"], other.as_bytes()),
        &["restore"],
        2,
        "no kind of index named \"btree\"",
    );
    place.fails(&["restore", "--pool", "p"], 5, "is there already");
    place.fails(&["restore", "--pool", "q", "nowhere"], 5, "opening nowhere: No such file");
    place.fails(&["restore", "--pool", "q", "--kind", "btree", "/dev/null"], 2, "no kind of index named \"btree\"");
}

/// As a dump ends whose pool has an index that does not open, or that was cut off between two.
#[test]
fn a_dump_of_fewer_indices_than_there_were_is_refused() {
    let place = Place::new();
    place.pool("p");
    place.works(&["put", "--create", "--pool", "p", "--index", "second", "needle", "1"]);
    let whole = place.works(&["dump", "--pool", "p"]);
    change(&place.path("p"), |bytes| {
        let at = bytes.windows(6).position(|w| w == b"needle").unwrap();
        bytes[at - 8..at].fill(0xff);
    });
    let ended = place.durix(&["dump", "--pool", "p"]);
    assert_eq!(ended.code, 4, "{}", ended.err);
    assert!(ended.out.contains("\nend\t4\t") && whole.starts_with(&ended.out), "{}", ended.out);
    let restored = place.fed(&["restore", "--pool", "q"], ended.out.as_bytes());
    fails(&restored, &["restore"], 4, "it ends without the number of indices, so it was cut off");
    assert!(!place.path("q").exists());
    // Format 1 had no such line.
    let old = whole.replace("durix-dump\t2", "durix-dump\t1").replace("indices\t2\n", "");
    let restored = place.fed(&["restore", "--pool", "q"], old.as_bytes());
    assert_eq!((restored.code, &*restored.out), (0, "main: 4 entries\nsecond: 1 entries\n"), "{}", restored.err);
    assert!(restored.err.contains("a dump of format 1 does not say how many indices it has"), "{}", restored.err);
    let restored = place.fed(&["restore", "--pool", "r"], whole.as_bytes());
    assert_eq!((restored.code, &*restored.err), (0, ""));
}

#[test]
fn two_restores_into_one_file_do_not_mix() {
    let place = Place::new();
    place.pool("p");
    let dump = place.works(&["dump", "--pool", "p"]);
    std::fs::write(place.path("q.partial"), "what a dead process has left").unwrap();
    let mut first =
        place.command(&["restore", "--pool", "q"]).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let mut stdin = first.stdin.take().unwrap();
    let begun = dump.find("\nend").unwrap();
    stdin.write_all(&dump.as_bytes()[..begun]).unwrap();
    stdin.flush().unwrap();
    let start = Instant::now();
    while !place.path("q.partial").metadata().is_ok_and(|file| file.len() >= 4096) {
        assert!(start.elapsed() < Duration::from_secs(60));
        std::thread::sleep(Duration::from_millis(10));
    }
    let second = place.fed(&["restore", "--pool", "q"], dump.as_bytes());
    fails(&second, &["restore"], 5, "q.partial is open already in");
    fails(&place.durix(&["copy", "--pool", "p", "--to", "q"]), &["copy"], 5, "q.partial is open already in");
    fails(&place.durix(&["repair", "--pool", "p", "--into", "q"]), &["repair"], 5, "q.partial is open already in");
    stdin.write_all(&dump.as_bytes()[begun..]).unwrap();
    drop(stdin);
    assert!(first.wait().unwrap().success());
    assert_eq!(contents(&place, "p", "main"), contents(&place, "q", "main"));
    assert!(!place.path("q.partial").exists());
}

#[test]
fn pools_are_copied() {
    let place = Place::new();
    place.pool("p");
    let said = json(&place.works(&["copy", "--pool", "p", "--to", "q", "--json"]));
    assert_eq!(said["indices"][0]["entries"], 4);
    assert_eq!(contents(&place, "p", "main"), contents(&place, "q", "main"));
    place.works(&["check", "--pool", "q"]);
    place.fails(&["copy", "--pool", "p", "--to", "q"], 5, "q is there already; name a file that is not");
    place.fails(&["copy", "--pool", "p", "--to", "no/folder/q"], 5, "there is no folder no/folder; make it first");
}

#[test]
fn pools_are_compacted_and_a_kill_leaves_one_of_both() {
    let place = Place::new();
    let path = place.path("p");
    let db = durix::Db::builder().durability(durix::Level::Process).create(&path).unwrap();
    let map = db.map::<Vec<u8>, Vec<u8>>("main").unwrap();
    map.bulk_load((0..20_000_u32).map(|key| (key.to_string().into_bytes(), vec![7; 100]))).unwrap();
    for key in (0..20_000_u32).filter(|key| key % 10 != 0) {
        map.remove(&key.to_string().into_bytes()).unwrap();
    }
    drop(map);
    db.close().unwrap();
    drop(db);
    let before = path.metadata().unwrap().len();
    let entries = contents(&place, "p", "main");
    assert_eq!(entries.len(), 2000);
    for round in 0..12 {
        let mut child =
            place.command(&["compact", "--pool", "p"]).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        std::thread::sleep(Duration::from_millis(round * 4));
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!(contents(&place, "p", "main"), entries, "killed after {} ms", round * 4);
        place.works(&["check", "--pool", "p"]);
    }
    let said = json(&place.works(&["compact", "--pool", "p", "--json"]));
    assert_eq!(said["indices"][0]["entries"], 2000);
    assert_eq!(said["after"], path.metadata().unwrap().len());
    assert!(path.metadata().unwrap().len() < before / 2, "{said}");
    assert_eq!(contents(&place, "p", "main"), entries);
    let there: Vec<_> = std::fs::read_dir(place.dir.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(there, ["p"], "no journal, no checksums, nothing that a kill has left");
    assert!(place.works(&["compact", "--pool", "p"]).contains("before,"));
    place.fails(&["compact", "--pool", "q"], 3, "there is no pool at q");
    let _open = durix::Db::open(&path).unwrap();
    place.fails(&["compact", "--pool", "p"], 5, "is open already");
}

#[test]
fn what_can_be_read_of_a_damaged_pool_is_saved() {
    let place = Place::new();
    let lines: String = (0..2000).map(|i| format!("key {i}\tvalue {i}\n")).collect();
    place.fed(&["load", "--pool", "p", "--format", "tsv"], lines.as_bytes());
    let checked = place.works(&["check", "--pool", "p"]);
    let lines: Vec<&str> = checked.lines().collect();
    // Between them: what the checksums of pages cover, which depends on the file system.
    assert!(matches!(lines[..], ["main: 2000 keys looked at", _, "no inconsistency was found"]), "{checked}");
    let sound = json(&place.works(&["repair", "--pool", "p", "--into", "sound", "--json"]));
    assert_eq!(sound["indices"][0]["entries"], 2000);
    // An entry's second word says how long key and value are; here it says what cannot be.
    change(&place.path("p"), |bytes| {
        let at = bytes.windows(7).position(|w| w == b"key 123").unwrap();
        bytes[at - 8..at].fill(0xff);
    });
    let checked = place.durix(&["check", "--pool", "p"]);
    assert_eq!(checked.code, 1, "{}", checked.err);
    assert!(checked.out.contains("index \"main\" is corrupt: the lengths of an entry"), "{}", checked.out);
    place.fails(&["get", "--pool", "p", "key 1"], 4, "run `durix check`, then `durix repair` or restore a copy");
    let repaired = place.durix(&["repair", "--pool", "p", "--into", "q"]);
    assert_eq!(repaired.code, 1, "something was lost: {}", repaired.err);
    assert!(repaired.out.contains("1999") && repaired.out.contains("the lengths of an entry"), "{}", repaired.out);
    assert_eq!(contents(&place, "q", "main").len(), 1999);
    place.works(&["check", "--pool", "q"]);
    place.fails(&["repair", "--pool", "p", "--into", "q"], 5, "q is there already");
}

#[test]
fn a_damaged_root_costs_nothing_and_without_its_spare_its_own_index_only() {
    let place = Place::new();
    place.pool("p");
    place.works(&["put", "--create", "--pool", "p", "--index", "second", "k", "v"]);
    let damage_a_name = || {
        change(&place.path("p"), |bytes| {
            let name = bytes.windows(4).position(|w| w == b"main").unwrap();
            bytes[name] = b'M';
        });
    };
    damage_a_name();
    let checked = json(&place.durix(&["check", "--pool", "p", "--json"]).out);
    assert!(checked["findings"][0]["what"].as_str().unwrap().contains("root entry 0 is damaged"), "{checked}");
    let repaired = place.durix(&["repair", "--pool", "p", "--into", "q"]);
    assert_eq!(repaired.code, 1);
    assert!(repaired.out.contains("root entry 0 was damaged, and its spare was taken"), "{}", repaired.out);
    assert_eq!(contents(&place, "q", "main").len(), 4);
    assert_eq!(place.works(&["get", "--pool", "q", "--index", "second", "k"]), "v\n");
    // The second copy of the name.
    damage_a_name();
    let repaired = place.durix(&["repair", "--pool", "p", "--into", "r"]);
    assert_eq!(repaired.code, 1);
    assert!(repaired.out.contains("an index is lost: root entry 0 is damaged"), "{}", repaired.out);
    assert_eq!(place.works(&["get", "--pool", "r", "--index", "second", "k"]), "v\n");
}

/// A log of a kind that no command knows.
struct ForeignLog;

impl Structure<Hardware> for ForeignLog {
    const KIND: Kind = Kind { tag: *b"NOTKNOWN", version: Version::new(1) };
    type Options = ();
    type Error = durix_pmem::Error;

    fn create(_: &mut Session, root: &Root<Hardware>, (): &()) -> durix_pmem::Result<()> {
        let mut session = root.pool().session()?;
        root.ask(&session.enter()?, Moments::BEFORE);
        Ok(())
    }

    fn open(_: &mut Session, _: Root<Hardware>, (): &()) -> durix_pmem::Result<Self> {
        Ok(ForeignLog)
    }
}

#[test]
fn records_of_a_log_that_no_command_knows_are_told_and_stay() {
    let place = Place::new();
    place.pool("p");
    let pool: Pool = PoolOptions::new().durability(Level::Immediate).open(place.path("p")).unwrap();
    pool.open_structure::<ForeignLog>("log", &()).unwrap();
    pool.close().unwrap();
    let there = || {
        let files = std::fs::read_dir(place.dir.path()).unwrap().map(|file| file.unwrap().path());
        files.map(|file| (file.clone(), std::fs::read(file).unwrap())).collect::<BTreeMap<_, _>>()
    };
    let before = there();
    let says = "index \"log\" holds records of work that a crash interrupted, of the kind NOTKNOWN v1, which this command does not know; open \
                the pool first with the program that made the index";
    for verb in [
        &["check", "--pool", "p"][..],
        &["dump", "--pool", "p"],
        &["copy", "--pool", "p", "--to", "q"],
        &["get", "--pool", "p", "a"],
    ] {
        place.fails(verb, 4, says);
        assert!(there() == before, "{verb:?} has changed a file, or left one");
    }
    assert_eq!(json(&place.works(&["stat", "--pool", "p", "--json"]))["indices"].as_array().unwrap().len(), 2);
    assert!(there() == before);
    // A repair saves what there is, and says what it may be.
    let repaired = place.durix(&["repair", "--pool", "p", "--into", "q"]);
    assert_eq!(repaired.code, 1, "{}", repaired.err);
    for says in [
        "log: index \"log\" is of kind NOTKNOWN v1, which this build cannot open",
        "pool: what a crash has interrupted may be found half done, in any index: index \"log\" holds records",
    ] {
        assert!(repaired.out.contains(says), "{}", repaired.out);
    }
    assert_eq!(contents(&place, "q", "main").len(), 4);
    place.works(&["check", "--pool", "q"]);
    std::fs::remove_file(place.path("q")).unwrap();
    assert!(there() == before, "a repair has changed its source, or left a file");
    // Those that open it for writing change no more than its state.
    for verb in [&["put", "--pool", "p", "a", "2"][..], &["scrub", "--pool", "p"], &["compact", "--pool", "p"]] {
        place.fails(verb, 4, says);
    }
    place.fails(&["check", "--pool", "p"], 4, says);
}

// ---- what does not work ----

#[test]
fn pools_that_are_not_there_or_not_pools_are_told() {
    let place = Place::new();
    for verb in [
        &["get", "--pool", "p", "k"][..],
        &["scan", "--pool", "p"],
        &["stat", "--pool", "p"],
        &["check", "--pool", "p"],
    ] {
        place.fails(verb, 3, "there is no pool at p; check --pool, or make one with `durix load --pool p");
    }
    place.fails(&["put", "--pool", "p", "k", "v"], 3, "there is no pool at p");
    place.fails(&["dump", "--pool", "p"], 3, "there is no pool at p");
    place.fails(&["copy", "--pool", "p", "--to", "q"], 3, "there is no pool at p");
    place.fails(&["repair", "--pool", "p", "--into", "q"], 3, "there is no pool at p");
    assert!(!place.path("p").exists() && !place.path("q").exists(), "looking for a pool made one");
    place.fails(&["stat", "--pool", "."], 3, "is a directory; --pool takes a file");
    place.fails(&["load", "--pool", "."], 3, "is a directory; --pool takes a file");
    std::fs::write(place.path("letter"), "Dear reader, this is no pool. It is a letter.").unwrap();
    for verb in [&["get", "--pool", "letter", "k"][..], &["stat", "--pool", "letter"], &["load", "--pool", "letter"]] {
        place.fails(verb, 4, "letter is not a Durix pool");
    }
    std::fs::write(place.path("short"), "x").unwrap();
    place.fails(&["stat", "--pool", "short"], 4, "short is not a Durix pool (1 byte in all)");
    assert_eq!(std::fs::read(place.path("letter")).unwrap().len(), 45, "a foreign file stays as it is");
}

#[test]
fn indices_and_kinds_that_are_not_there_are_told() {
    let place = Place::new();
    place.pool("p");
    place.fails(&["get", "--pool", "p", "--index", "nain", "k"], 3, "p has no index named \"nain\"; it has: main");
    place.fails(&["check", "--pool", "p", "--index", "nain"], 3, "it has: main");
    place.fails(&["stat", "--pool", "p", "--index", "nain"], 3, "it has: main");
    place.fails(&["dump", "--pool", "p", "--index", "nain"], 3, "it has: main");
    place.fails(&["put", "--pool", "p", "--index", "nain", "k", "v"], 3, "it has: main");
    place.fails(
        &["get", "--pool", "p", "--kind", "btree", "k"],
        2,
        "there is no kind of index named \"btree\"; there are: pset, masstree, bplustree, hash",
    );
    place.fails(&["load", "--pool", "new", "--kind", "btree"], 2, "there is no kind of index named \"btree\"");
    assert!(!place.path("new").exists());
    place.fails(&["bench", "--kind", "btree"], 2, "there is no kind of index named \"btree\"");
    place.fails(&["torture", "btree"], 2, "there is no kind of index named \"btree\"");
    place.fails(&["load", "--pool", "p", "--index", &"n".repeat(64)], 2, "names have 1 to 63 bytes");
    place.fails(&["load", "--pool", "p", "--index", ""], 2, "names have 1 to 63 bytes");
    // Another structure of this build: a log is no index.
    let pool = durix::PoolOptions::new().open(place.path("p")).unwrap();
    drop(durix_cso::log::NamedLog::<_, durix_cso::log::LinesLog>::open(&pool, "log", &Default::default()).unwrap());
    pool.close().unwrap();
    place.fails(&["scan", "--pool", "p", "--index", "log"], 3, "is of kind CSO-LOG");
}

#[test]
fn wrong_arguments_are_told() {
    let place = Place::new();
    place.pool("p");
    place.fails(&[], 2, "Usage: durix <COMMAND>");
    place.fails(&["got"], 2, "unrecognized subcommand 'got'");
    place.fails(&["get", "k"], 2, "--pool <FILE>");
    place.fails(&["scan", "--pool", "p", "--prefix", "a", "--from", "b"], 2, "cannot be used with");
    place.fails(&["scan", "--pool", "p", "--limit=-1"], 2, "invalid value '-1' for '--limit <N>'");
    place.fails(&["get", "--pool", "p", "-e", "\\q"], 2, "\\q is no escape; a backslash is \\\\");
    place.fails(&["load", "--pool", "p", "nowhere"], 5, "opening nowhere: No such file");
    place.fails(&["load", "--pool", "p", "--tree", "nowhere"], 2, "nowhere is not a directory; --tree takes one");
    place.fails(&["put", "--pool", "p", &"k".repeat(20_000), "v"], 2, "a key of 20000 bytes is longer than 16384");
    place.fails(&["bench", "--workload", "e"], 2, "workload E scans ranges, and pset keeps no order of keys");
    place.fails(&["bench", "--threads", "0"], 2, "0 is not in 1..=256");
    place.fails(&["torture", "pset", "--medium", "hardware", "--plant"], 2, "on the shadow medium only");
    place.fails(&["torture", "pset", "--dir", "nowhere"], 5, "making a folder in nowhere");
    let ended = place.fed(&["load", "--pool", "p", "--format", "tsv"], b"good\t1\nbad\n");
    fails(&ended, &["load"], 4, "line 2 of standard input: no tab, which ends the key; use --format lines");
    assert_eq!(place.works(&["get", "--pool", "p", "good"]), "1\n", "what came before the bad line is there");
}

#[test]
fn a_folder_that_is_not_there_is_told() {
    let place = Place::new();
    place.pool("p");
    std::fs::write(place.path("dump"), place.works(&["dump", "--pool", "p"])).unwrap();
    for args in [
        &["put", "--create", "--pool", "none/q", "a", "1"][..],
        &["load", "--pool", "none/q", "dump"],
        &["restore", "--pool", "none/q", "dump"],
        &["copy", "--pool", "p", "--to", "none/q"],
        &["repair", "--pool", "p", "--into", "none/q"],
    ] {
        place.fails(args, 5, "there is no folder none; make it first");
    }
    place.fails(&["get", "--pool", "none/q", "a"], 3, "there is no pool at none/q");
}

#[test]
fn a_file_of_which_too_little_is_left_is_told_and_a_repair_does_not_send_to_a_repair() {
    let place = Place::new();
    let path = place.pool("p");
    let whole = std::fs::read(&path).unwrap();
    std::fs::write(&path, &whole[..65536]).unwrap();
    place.fails(&["get", "--pool", "p", "a"], 4, "restore a copy, or save what is left with `durix repair`");
    let repair = ["repair", "--pool", "p", "--into", "q"];
    place.fails(&repair, 4, "it was truncated; too little is left for a repair: restore a copy");
    assert!(!place.path("q").exists());
    // Where more is left, the report has no advice that was taken already.
    std::fs::write(&path, &whole[..whole.len() / 2]).unwrap();
    let repaired = place.durix(&repair);
    assert!(repaired.code == 1 && repaired.out.contains("it was truncated\n"), "{}{}", repaired.out, repaired.err);
}

#[test]
fn files_that_may_not_be_written_can_be_read() {
    use std::os::unix::fs::PermissionsExt;
    let place = Place::new();
    let path = place.pool("p");
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o444)).unwrap();
    assert_eq!(place.works(&["get", "--pool", "p", "a"]), "1\n");
    // The administrator may write everything.
    if std::fs::OpenOptions::new().write(true).open(&path).is_err() {
        place.fails(&["put", "--pool", "p", "a", "2"], 5, "p may not be written; change its permissions");
    }
}

#[test]
fn a_pool_that_may_not_grow_is_full_and_keeps_what_it_has() {
    let place = Place::new();
    let lines: String = (0..200_000).map(|i| format!("key {i}\n")).collect();
    let args = ["load", "--pool", "p", "--max-size", "4000000"];
    fails(&place.fed(&args, lines.as_bytes()), &args, 5, "the pool is full");
    let stat = json(&place.works(&["stat", "--pool", "p", "--json"]));
    let keys = stat["indices"][0]["keys"].as_u64().unwrap();
    assert!(keys > 10_000, "{keys}");
    place.works(&["check", "--pool", "p"]);
    place.works(&["del", "--pool", "p", "key 1"]);
}

#[test]
fn a_pool_of_before_a_power_failure_is_opened_on_demand_only() {
    let place = Place::new();
    let pool = durix::PoolOptions::new().boot_id([9; 16]).create(place.path("p")).unwrap();
    let db = durix::Db::over(pool);
    db.map::<Vec<u8>, Vec<u8>>("main").unwrap().insert(&b"k"[..], &b"v"[..]).unwrap();
    // A pool that was never closed, from another boot.
    std::fs::copy(place.path("p"), place.path("q")).unwrap();
    place.fails(&["get", "--pool", "q", "k"], 4, "was not closed before the system stopped");
    place.fails(
        &["get", "--pool", "q", "k"],
        4,
        "save what is there with `durix repair`, or take it as it is with --accept-unclean",
    );
    assert_eq!(place.works(&["get", "--pool", "q", "--accept-unclean", "k"]), "v\n");
    assert!(place.works(&["stat", "--pool", "q"]).contains("indices were not looked into: q was not closed"));
    place.works(&["repair", "--pool", "q", "--into", "r"]);
    assert_eq!(place.works(&["get", "--pool", "r", "k"]), "v\n");
}

// ---- bench, shell ----

#[test]
fn benches_report_throughput_latencies_and_counts() {
    let place = Place::new();
    let small = ["bench", "--keys", "2000", "--ops", "5000", "--dir", ".", "--json"];
    for workload in ["a", "B", "c", "d", "f"] {
        let said = json(&place.works(&[&small[..], &["--workload", workload, "--threads", "2"]].concat()));
        assert!(said["ops_per_second"].as_f64().unwrap() > 0.0);
        let counted: u64 = said["latency_ns"].as_object().unwrap().values().map(|l| l["count"].as_u64().unwrap()).sum();
        assert_eq!(counted, 5000, "{said}");
    }
    let update_heavy = json(&place.works(&[&small[..], &["--distribution", "uniform"]].concat()));
    let fences = update_heavy["fences_per_op"].as_f64().unwrap();
    assert!((0.45..0.55).contains(&fences), "half of the operations are updates of one fence: {fences}");
    let reads = json(&place.works(&[&small[..], &["--workload", "c"]].concat()));
    assert_eq!((&reads["fences_per_op"], &reads["write_backs_per_op"]), (&0.0.into(), &0.0.into()));
    let text = place.works(&["bench", "--keys", "1000", "--ops", "1000", "--dir", "."]);
    assert!(text.contains("throughput") && text.contains("p99.9") && text.contains("zipfian"), "{text}");
    let left = std::fs::read_dir(place.dir.path()).unwrap().count();
    assert_eq!(left, 0, "a bench removes its pool");
}

#[test]
fn new_orders_are_placed_by_transactions_over_five_maps() {
    let place = Place::new();
    let args =
        ["bench", "--workload", "tpcc-neworder", "--keys", "300", "--ops", "600", "--dir", ".", "--threads", "2"];
    for kind in ["bplustree", "pset"] {
        let said = json(&place.works(&[&args[..], &["--kind", kind, "--json"]].concat()));
        let placed = said["placed"].as_u64().unwrap();
        assert!((560..600).contains(&placed), "one of a hundred is rolled back: {said}");
        assert_eq!(said["latency_ns"]["new-order"]["count"], 600);
        assert!(said["fences_per_op"].as_f64().unwrap() >= 1.0, "{said}");
    }
    let text = place.works(&[&args[..], &["--kind", "bplustree"]].concat());
    assert!(text.contains("orders/min") && text.contains("p99.9"), "{text}");
    place.fails(&[&args[..], &["--kind", "skiplist"]].concat(), 2, "needs keys of 8 and values of 24 bytes");
}

#[test]
fn completions_and_the_manual_page_are_printed() {
    let place = Place::new();
    for shell in ["bash", "zsh", "fish"] {
        assert!(place.works(&["completions", shell]).contains("torture"), "{shell}");
    }
    let page = place.works(&["man"]);
    assert!(
        page.contains(".TH durix 1") && page.contains("durix\\-scan") && !page.contains("torture\\-child"),
        "{page}"
    );
    let help = place.works(&["--help"]);
    assert!(help.contains("Exit codes:") && !help.contains("torture-child"), "{help}");
    assert!(place.works(&["--version"]).starts_with("durix 0."));
}

#[test]
fn the_examples_of_the_help_work() {
    let place = Place::new();
    let binary = std::path::Path::new(env!("CARGO_BIN_EXE_durix")).parent().unwrap();
    let path = format!("{}:{}", binary.display(), std::env::var("PATH").unwrap());
    // In an order in which each finds what it needs.
    let verbs = [
        "put",
        "get",
        "load",
        "scan",
        "exec",
        "del",
        "stat",
        "kinds",
        "check",
        "scrub",
        "copy",
        "compact",
        "dump",
        "restore",
        "repair",
        "bench",
        "torture",
        "completions",
        "man",
    ];
    // A line of a command in the help is indented, and its name ends in the first column.
    let help = place.works(&["-h"]);
    let commands = help.lines().filter_map(|line| line.strip_prefix("  ")?.split(' ').next());
    let there: BTreeSet<&str> = commands.filter(|name| !name.is_empty() && !name.starts_with('-')).collect();
    assert_eq!(there, verbs.into_iter().chain(["help"]).collect());
    for verb in verbs {
        let help = place.works(&[verb, "--help"]);
        let examples: Vec<&str> = help.lines().filter_map(|line| line.strip_prefix("  $ ")).collect();
        assert!(!examples.is_empty(), "{help}");
        examples.into_iter().for_each(|example| _ = run(&place, &path, example));
    }
    assert_eq!(place.works(&["get", "--pool", "restored.durix", "kurt"]), "1906\n");
    assert_eq!(place.works(&["get", "--pool", "smaller.durix", "kurt"]), "1906\n", "copied and compacted");
    for (file, holds) in [("durix.bash", "complete"), ("durix.1", ".TH durix 1"), ("keys.svg", "<svg")] {
        assert!(std::fs::read_to_string(place.path(file)).unwrap().contains(holds), "{file}");
    }
}

/// Runs a line of shell in the folder, which has to work; returns what it printed.
fn run(place: &Place, path: &str, line: &str) -> String {
    let mut shell = std::process::Command::new("sh");
    shell.args(["-c", line]).current_dir(place.dir.path()).env("PATH", path).stdin(Stdio::null());
    let output = shell.output().unwrap();
    assert!(output.status.success(), "{line}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn the_commands_of_the_page_about_operations_work() {
    let place = Place::new();
    let db = durix::Db::builder().durability(durix::Level::Immediate).create(place.path("app.durix")).unwrap();
    db.map::<String, String>("notes").unwrap().insert("monday", "rain").unwrap();
    db.close().unwrap();
    drop(db);
    // A file that has lost its checksums, as the page says of copies.
    std::fs::remove_file(place.path("app.durix-sums")).unwrap();
    let binary = std::path::Path::new(env!("CARGO_BIN_EXE_durix")).parent().unwrap();
    let path = format!("{}:{}", binary.display(), std::env::var("PATH").unwrap());
    let page = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/guide/operations.md")).unwrap();
    let blocks = page.split("```sh\n").skip(1).map(|rest| rest.split("```").next().unwrap());
    let lines: Vec<&str> = blocks.flat_map(str::lines).collect();
    assert!(lines.len() >= 5 && lines.iter().any(|line| line.starts_with("durix scrub")), "{lines:?}");
    let mut said = BTreeMap::new();
    for line in lines {
        let verb = line.split(' ').nth(1).unwrap();
        // A hundred rounds take a minute; one is as good here. And this build stands for the old one, too.
        let line = line.replace("--rounds 100", "--rounds 1").replace("durix-old", "durix");
        said.insert(verb, run(&place, &path, &line));
    }
    assert!(said["scrub"].contains("no inconsistency"), "{}", said["scrub"]);
    assert_eq!(said["scan"], "monday\train\n");
    let checked = place.works(&["check", "--pool", "app.durix"]);
    assert!(!checked.contains("have none yet") && !checked.contains("no checksums"), "{checked}");
}

#[test]
fn watching_shows_the_operations_and_commits_of_another_process() {
    let place = Place::new();
    let db = durix::Db::builder().durability(durix::Level::Immediate).create(place.path("p")).unwrap();
    let map = db.map::<u64, u64>("m").unwrap();
    map.insert(&0, &0).unwrap();
    let watch = |times: &str| {
        let said = place.works(&["stat", "--pool", "p", "--watch", "1", "--times", times, "--json"]);
        said.lines().map(json).collect::<Vec<_>>()
    };
    let figure = |line: &serde_json::Value, name: &str| line[name].as_f64().unwrap_or_else(|| panic!("{name}: {line}"));
    let before = watch("1").remove(0);
    for key in 0..20 {
        map.insert(&key, &key).unwrap();
    }
    let after = watch("1").remove(0);
    // Each insert of one thread is a commit.
    assert!(figure(&after, "commits") >= figure(&before, "commits") + 20.0, "{before} {after}");
    assert!(figure(&after, "operations") >= figure(&before, "operations") + 20.0, "{before} {after}");
    assert!(before["commits_per_second"].is_null(), "nothing to compare with: {before}");
    let stop = std::sync::atomic::AtomicBool::new(false);
    let is_seen = std::thread::scope(|scope| {
        scope.spawn(|| {
            for key in 0.. {
                map.insert(&(key % 100), &key).unwrap();
                if stop.load(std::sync::atomic::Ordering::Relaxed) {
                    break;
                }
            }
        });
        // A disk may be busy for a second, not for a minute.
        let is_seen = (0..60).any(|_| watch("2")[1]["commits_per_second"].as_f64().is_some_and(|rate| rate > 0.0));
        stop.store(true, std::sync::atomic::Ordering::Relaxed);
        is_seen
    });
    assert!(is_seen, "no commit in a minute");
    let text = place.works(&["stat", "--pool", "p", "--watch", "--times", "1"]);
    assert!(text.contains("ops/s") && text.contains("commits/s"), "{text}");
    drop(map);
    db.close().unwrap();
    let closed = watch("1").remove(0);
    assert!(closed["commits"].is_null() && closed["operations_per_second"].is_null(), "{closed}");
}

#[test]
fn watching_shows_the_operations_of_a_pool_without_a_journal() {
    let place = Place::new();
    let create = || durix::Db::builder().durability(durix::Level::Process).open_or_create(place.path("p")).unwrap();
    let look = || json(&place.works(&["stat", "--pool", "p", "--watch", "--times", "1", "--json"]));
    let db = create();
    let map = db.map::<u64, u64>("m").unwrap();
    let first = look();
    assert!(first["operations"].is_u64() && first["commits"].is_null(), "{first}");
    // A thread of the database stores the number; the machine may be busy.
    let told = (0..100).any(|round| {
        (0..1000).for_each(|key| _ = map.insert(&key, &round).unwrap());
        let told = look()["operations"].as_u64().unwrap();
        told >= 1000 || {
            std::thread::sleep(std::time::Duration::from_millis(100));
            false
        }
    });
    assert!(told, "no operation was shown in ten seconds");
    let shown = look()["operations"].as_u64().unwrap();
    let stop = std::sync::atomic::AtomicBool::new(false);
    let rate = std::thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                map.get(&1).unwrap();
            }
        });
        let rates = (0..60).find_map(|_| {
            let lines = place.works(&["stat", "--pool", "p", "--watch", "1", "--times", "2", "--json"]);
            json(lines.lines().last().unwrap())["operations_per_second"].as_f64().filter(|rate| *rate > 0.0)
        });
        stop.store(true, std::sync::atomic::Ordering::Relaxed);
        rates
    });
    assert!(rate.is_some(), "reads are operations, too: {shown} and no more in a minute");
    drop(map);
    db.close().unwrap();
    assert!(look()["operations"].is_null(), "a closed pool has none");
    // The numbers of another opening are not shown.
    let db = create();
    assert!(look()["operations"].as_u64().unwrap() < 1000, "counted anew");
    drop(db);
}

// ---- what is wrong around it ----

#[test]
fn a_file_that_was_cut_off_is_told_and_stays_as_it_is() {
    let place = Place::new();
    let path = place.pool("p");
    let whole = std::fs::read(&path).unwrap();
    let told =
        [(0, "the creation of p was interrupted"), (1000, "p"), (whole.len() / 2, "it was truncated; restore a copy")];
    for (len, says) in told {
        std::fs::write(&path, &whole[..len]).unwrap();
        for verb in [&["get", "--pool", "p", "a"][..], &["scan", "--pool", "p"], &["check", "--pool", "p"]] {
            let ended = place.durix(verb);
            assert_eq!(ended.code, 4, "{verb:?} of {len} bytes: {}{}", ended.out, ended.err);
            assert!(ended.err.contains(says), "{len} bytes: {}", ended.err);
        }
        assert_eq!(std::fs::read(&path).unwrap().len(), len);
    }
}

#[test]
fn a_repair_needs_neither_the_first_page_nor_the_root_entries_nor_the_end_of_the_file() {
    for kind in ["pset", "masstree", "bplustree", "hash-bytes"] {
        let place = Place::new();
        let entries: String = (0..500).map(|i| format!("key {i:03}\tvalue {i}\n")).collect();
        let load = ["load", "--pool", "p", "--kind", kind, "--format", "tsv", "--index", "first"];
        assert_eq!(place.fed(&load, entries.as_bytes()).code, 0);
        place.works(&["put", "--pool", "p", "--index", "other", "--create", "one", "1"]);
        let sound = std::fs::read(place.path("p")).unwrap();
        let repair = |damaged: &[u8], entries_at_least: usize, says: &str| {
            std::fs::write(place.path("p"), damaged).unwrap();
            let _ = std::fs::remove_file(place.path("saved"));
            let told = place.durix(&["check", "--pool", "p"]);
            assert!(told.code != 0 && !told.err.contains("create it again"), "{kind}: {}{}", told.out, told.err);
            let ended = place.durix(&["repair", "--pool", "p", "--into", "saved"]);
            assert!(ended.code == 1 && ended.out.contains(says), "{kind}: {}{}", ended.out, ended.err);
            assert!(ended.out.contains("\nfirst            500"), "{kind}: {}", ended.out);
            let found = place.works(&["scan", "--pool", "saved", "--index", "first"]);
            let mut count = 0;
            for line in found.lines() {
                assert!(entries.lines().any(|entry| entry == line), "{kind}: {line:?} was never written");
                count += 1;
            }
            assert!(count >= entries_at_least, "{kind}: {count} of 500 saved, {says}");
            assert_eq!(std::fs::read(place.path("p")).unwrap(), damaged, "{kind}: the damaged file stays as it is");
        };
        for with in [0, 0xff] {
            let mut damaged = sound.clone();
            damaged[..4096].fill(with);
            repair(&damaged, 500, "pool: the header was damaged");
            // The entries of the first indices, and what their own words say.
            let mut damaged = sound.clone();
            damaged[12288..16384].fill(with);
            repair(&damaged, 480, "its spare was taken: the index has its first name, first");
        }
        repair(&sound[..sound.len() - (1 << 20)], 500, "it was truncated");
    }
}

#[test]
fn a_full_disk_is_told_and_what_was_there_stays() {
    let place = Place::new();
    place.pool("p");
    // A file that may not become larger than so many KiB fails as a full disk does.
    let full = |args: &str| {
        let script = format!("ulimit -f 20000; exec {} {args}", env!("CARGO_BIN_EXE_durix"));
        let mut command = std::process::Command::new("bash");
        let output = command.args(["-c", &script]).current_dir(place.dir.path()).output().unwrap();
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
        common::Ended { code: output.status.code().unwrap(), out: text(output.stdout), err: text(output.stderr) }
    };
    let many: String = (0..400_000).map(|i| format!("a key with number {i}, to take room\n")).collect();
    std::fs::write(place.path("many"), many).unwrap();
    for kind in ["pset", "masstree"] {
        let args = format!("load --quiet --pool {kind} --kind {kind} many");
        let ended = full(&args);
        assert_eq!(ended.code, 5, "{}{}", ended.out, ended.err);
        assert!(ended.err.contains("has no room for") && ended.err.contains("ulimit -f"), "{}", ended.err);
        let said = json(&place.works(&["check", "--pool", kind, "--json"]));
        assert_eq!(said["findings"], serde_json::json!([]));
        assert!(said["checked"][0]["keys"].as_u64().unwrap() > 10_000, "{said}");
    }
    let ended = full("copy --pool masstree --to copy");
    assert!(ended.code == 0 || (ended.code == 5 && !place.path("copy").exists()), "{}", ended.err);
    assert!(!place.path("copy.partial").exists());
}

/// Runs the command by a shell.
fn by_shell(place: &Place, script: &str) -> common::Ended {
    let mut command = std::process::Command::new("bash");
    let script = script.replace("durix", env!("CARGO_BIN_EXE_durix"));
    let output = command.args(["-c", &script]).current_dir(place.dir.path()).output().unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
    common::Ended { code: output.status.code().unwrap_or(-1), out: text(output.stdout), err: text(output.stderr) }
}

#[test]
fn a_file_that_may_not_become_long_enough_is_no_pool() {
    let place = Place::new();
    let ended = by_shell(&place, "ulimit -f 100; exec durix put --create --pool p k v");
    assert_eq!((ended.code, place.path("p").exists()), (5, false), "{}", ended.err);
    assert!(ended.err.contains("has no room for") && ended.err.contains("ulimit -f"), "{}", ended.err);
}

#[test]
fn an_output_that_nobody_reads_is_no_success() {
    let place = Place::new();
    place.pool("p");
    for verb in ["scan", "stat", "check", "get"] {
        let key = if verb == "get" { " a" } else { "" };
        let closed = by_shell(&place, &format!("exec durix {verb} --pool p{key} >&-"));
        assert_eq!(closed.code, 5, "{verb}: {}", closed.err);
        assert!(closed.err.contains("writing to standard output: it is closed"), "{}", closed.err);
        let full = by_shell(&place, &format!("exec durix {verb} --pool p{key} >/dev/full"));
        assert_eq!(full.code, 5, "{verb}: {}", full.err);
        assert_eq!(by_shell(&place, &format!("exec durix {verb} --pool p{key} >/dev/null")).code, 0);
    }
    // Nobody at the other end when it begins to write.
    let gone = by_shell(
        &place,
        "{ sleep 0.2; durix dump --pool p; echo $? >code; } | true; while ! test -s code; do sleep 0.1; done; cat code",
    );
    assert_eq!((gone.out.as_str(), gone.err.as_str()), ("141\n", ""));
    // What prints nothing needs no output.
    assert_eq!(by_shell(&place, "exec durix put --pool p k v >&-").code, 0);
    assert_eq!(place.works(&["get", "--pool", "p", "k"]), "v\n");
    // A load is done before it says so.
    assert_eq!(by_shell(&place, "echo key | durix load --pool p >&-").code, 5);
    place.works(&["get", "--pool", "p", "key"]);
}

#[test]
fn a_file_that_is_cut_shorter_while_it_is_open_ends_the_command_with_words() {
    let place = Place::new();
    let args = ["load", "--pool", "p", "--durability", "process", "--acknowledge"];
    let mut child =
        place.command(&args).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut stdin = child.stdin.take().unwrap();
    stdin.write_all(b"one\n").unwrap();
    let mut said = std::io::BufReader::new(child.stdout.take().unwrap());
    said.read_line(&mut String::new()).unwrap();
    std::fs::OpenOptions::new().write(true).open(place.path("p")).unwrap().set_len(4096).unwrap();
    let _ = stdin.write_all(b"two\n");
    drop(stdin);
    let ended = child.wait_with_output().unwrap();
    let text = String::from_utf8_lossy(&ended.stderr).into_owned();
    assert_eq!(ended.status.code(), Some(5), "{text}");
    assert!(text.contains("another program has cut the file shorter"), "{text}");
    place.fails(&["check", "--pool", "p"], 4, "it was truncated");
}

#[test]
fn a_load_from_a_slow_pipe_says_what_is_durable_and_keeps_it() {
    for (kind, durability) in
        [("pset", "immediate"), ("pset", "interval=1s"), ("masstree", "immediate"), ("masstree", "process")]
    {
        let place = Place::new();
        let args = ["load", "--pool", "p", "--kind", kind, "--durability", durability, "--acknowledge"];
        let mut child = place.command(&args).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let mut stdin = child.stdin.take().unwrap();
        let mut said = std::io::BufReader::new(child.stdout.take().unwrap()).lines();
        // Far fewer than any count could wait for; more follow only when these were acknowledged.
        for end in [3, 7] {
            for number in end - 3..end {
                writeln!(stdin, "key {number}").unwrap();
            }
            let expected = format!("{} entries are durable", if end == 3 { 3 } else { 6 });
            while said.next().expect("it goes on").unwrap() != expected {}
        }
        child.kill().unwrap();
        child.wait().unwrap();
        let keys = place.works(&["scan", "--pool", "p", "--keys-only"]);
        assert_eq!(keys.lines().collect::<Vec<_>>(), ["key 0", "key 1", "key 2", "key 4", "key 5", "key 6"], "{kind}");
        // The whole ends with all of it, and as JSON.
        let ended = place.fed(&[&args[..], &["--json"]].concat(), b"key 6\nkey 7\n");
        let lines: Vec<_> = ended.out.lines().map(json).collect();
        assert_eq!(lines[lines.len() - 2]["durable"], 2);
        assert_eq!((&lines[lines.len() - 1]["added"], &lines[lines.len() - 1]["keys"]), (&1.into(), &7.into()));
    }
}

#[test]
fn input_that_is_no_text_is_kept_as_bytes_or_refused_with_its_line() {
    let place = Place::new();
    let args = ["load", "--pool", "p", "--format", "tsv"];
    assert_eq!(place.fed(&args, b"bad\xff\xfeutf\tv\xc3\n").code, 0);
    assert_eq!(place.works(&["scan", "--pool", "p"]), "bad\\xff\\xfeutf\tv\\xc3\n");
    assert_eq!(place.works(&["get", "--pool", "p", "-e", "bad\\xff\\xfeutf"]), "v\\xc3\n");
    use std::os::unix::ffi::OsStrExt;
    let mut command = place.command(&["get", "--pool", "p"]);
    let raw = command.arg(std::ffi::OsStr::from_bytes(b"bad\xff\xfeutf")).output().unwrap();
    assert_eq!(raw.status.code(), Some(0), "arguments need not be UTF-8 either");
    let strings = ["load", "--pool", "s", "--format", "tsv", "--key-type", "string"];
    let ended = place.fed(&strings, b"good\t1\nbad\xff\t2\n");
    fails(&ended, &strings, 4, "line 2 of standard input: key");
    fails(&place.fed(&args, b"k\t\\q\n"), &args, 4, "line 1 of standard input: value \"\\\\q\": \\q is no escape");
    assert_eq!(place.works(&["scan", "--pool", "s", "--keys-only"]), "good\n");
}

#[test]
fn files_and_folders_that_may_not_be_used_are_told() {
    use std::os::unix::fs::PermissionsExt;
    let place = Place::new();
    let path = place.pool("p");
    place.fails(
        &["load", "--pool", "no/such/folder/p", "--kind", "masstree"],
        5,
        "there is no folder no/such/folder; make it first",
    );
    place.fails(&["put", "--create", "--pool", "p/below", "k", "v"], 5, "Not a directory");
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o000)).unwrap();
    // The administrator may read everything.
    if std::fs::File::open(&path).is_err() {
        place.fails(&["get", "--pool", "p", "a"], 5, "permission");
        place.fails(&["stat", "--pool", "p"], 5, "permission");
    }
}

#[test]
fn a_script_changes_several_indices_or_none() {
    let place = Place::new();
    let types = ["--key-type", "string", "--value-type", "u64"];
    let put = |index: &str, kind: &str, key: &str, value: &str, types: &[&str]| {
        let args = ["put", "--create", "--pool", "p", "--index", index, "--kind", kind, key, value];
        place.works(&[&args[..], types].concat());
    };
    put("accounts", "pset", "ada", "100", &types);
    put("log", "skiplist", "0", "0", &[]);
    let exec = |script: &str| place.fed(&["exec", "--pool", "p"], script.as_bytes());
    let script = "# a transfer\nget accounts ada\nput accounts ada 70\nput  accounts\tgrace 30\n\ndel log 0\nput log 1 30\nget accounts ada\n";
    let done = exec(script);
    assert_eq!((done.code, &done.out[..]), (0, "accounts\tada\t100\naccounts\tada\t70\n"), "{}", done.err);
    assert!(done.err.contains("4 changes in one transaction"), "{}", done.err);
    let all = || (contents(&place, "p", "accounts"), contents(&place, "p", "log"));
    let before = all();
    assert_eq!(before.0.into_iter().map(|(k, v)| format!("{k}={v}")).collect::<Vec<_>>(), ["ada=70", "grace=30"]);
    for (script, code, told) in [
        ("put accounts ada 1\nput log 2 x\n", 4, "line 2 of standard input"),
        ("put accounts ada 1\nmove log 2 3\n", 4, "none of put, del, get"),
        ("put accounts ada 1\nput nothere 2 3\n", 3, "accounts, log"),
        ("put accounts\n", 4, "put INDEX KEY VALUE"),
        ("put accounts ada 1\nput log 2\n", 4, "put takes a value"),
        ("del accounts ada 5\n", 4, "takes no value"),
    ] {
        let failed = exec(script);
        assert_eq!(failed.code, code, "{script:?}: {}", failed.err);
        assert!(failed.err.contains(told), "{script:?}: {}", failed.err);
        assert_eq!(contents(&place, "p", "accounts")["ada"], "70", "{script:?}");
    }
    put("notes", "pset", "a", "b", &[]);
    assert_eq!(exec("put notes empty \n").code, 0);
    assert_eq!(contents(&place, "p", "notes")["empty"], "");
    let missing = exec("get accounts nobody\nput accounts eve 5\n");
    assert_eq!((missing.code, contents(&place, "p", "accounts")["eve"].as_str()), (1, "5"));
    place.works(&["check", "--pool", "p"]);
    assert!(!place.works(&["stat", "--pool", "p"]).contains("#transactions"), "the log is nobody's index");
}
