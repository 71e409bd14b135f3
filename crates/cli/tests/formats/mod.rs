//! What the command prints and reads: TSV, CSV, JSON, hexadecimal digits.

use std::collections::{BTreeMap, BTreeSet};

use durix::{Db, Named};

use crate::common::{Place, change, fails};
use crate::json;

#[derive(serde::Serialize, serde::Deserialize)]
struct User {
    name: String,
}

impl Named for User {
    const NAME: &'static str = "User 1";
}

/// Entries that every format has to keep.
fn tricky(place: &Place) {
    let db = Db::open_or_create(place.path("p")).unwrap();
    let map = db.map::<Vec<u8>, Vec<u8>>("main").unwrap();
    let pieces: [&[u8]; 9] =
        [b"", b"a", b"a,b", b"say \"x\"", b"two\nlines\r\n", b"\t", b"\xff\x00", b"\\", "ü".as_bytes()];
    for (at, key) in pieces.iter().enumerate() {
        map.insert(*key, pieces[pieces.len() - 1 - at]).unwrap();
    }
    drop(map);
    db.close().unwrap();
}

#[test]
fn every_format_is_read_as_it_was_written() {
    let place = Place::new();
    tricky(&place);
    let hex = place.works(&["scan", "--pool", "p", "--format", "hex"]);
    assert_eq!(hex.lines().count(), 9);
    for format in ["tsv", "csv", "json", "hex"] {
        let written = place.command(&["scan", "--pool", "p", "--format", format]).output().unwrap().stdout;
        let loaded = place.fed(&["load", "--pool", format, "--format", format], &written);
        assert_eq!(loaded.code, 0, "{format}: {}", loaded.err);
        assert_eq!(place.works(&["scan", "--pool", format, "--format", "hex"]), hex, "{format}");
    }
}

#[test]
fn keys_of_several_parts_are_read_as_they_were_written() {
    let place = Place::new();
    let db = Db::open_or_create(place.path("p")).unwrap();
    let map = db.ordered_map::<(String, String), f64>("main").unwrap();
    for (key, float) in [(("a,b", "c"), 0.945_270_695_553_922_3), (("\"", "c,\"d\""), -f64::NAN), (("a", "b,c"), 1.0)] {
        map.insert(&key, &float).unwrap();
    }
    drop(map);
    db.close().unwrap();
    let tsv = place.works(&["scan", "--pool", "p"]);
    assert!(tsv.contains("\"a,b\",c\t0.9452706955539223\n"), "{tsv}");
    let hex = place.works(&["scan", "--pool", "p", "--format", "hex"]);
    for format in ["tsv", "csv", "json", "hex"] {
        let written = place.works(&["scan", "--pool", "p", "--format", format]);
        let types = ["--key-type", "(string, string)", "--value-type", "f64", "--kind", "masstree"];
        let loaded =
            place.fed(&[&["load", "--pool", format, "--format", format], &types[..]].concat(), written.as_bytes());
        assert_eq!(loaded.code, 0, "{format}: {}", loaded.err);
        assert_eq!(place.works(&["scan", "--pool", format, "--format", "hex"]), hex, "{format}");
    }
    assert_eq!(place.works(&["get", "--pool", "p", "\"a,b\",c"]), "0.9452706955539223\n");
}

/// Each further line counted all quotes of the record again, and all of it was kept.
#[test]
fn a_stray_quote_of_csv_is_told_where_it_is() {
    let place = Place::new();
    let load = ["load", "--pool", "p", "--format", "csv", "--kind", "hash", "--key-type", "u64", "--value-type", "u64"];
    let lines = "1,1\n".repeat(1_000_000);
    let ended = place.fed(&load, format!("7,7\n8,\"8\n{lines}").as_bytes());
    fails(&ended, &load, 4, "line 2 of standard input: a field whose quotes do not end within 1048608 bytes");
    assert_eq!(place.works(&["scan", "--pool", "p"]), "7\t7\n");
    // What is shorter than that is read to its end, and lines without quotes may be longer.
    let ended = place.fed(&load, format!("9,\"9\n{}", &lines[..100_000]).as_bytes());
    fails(&ended, &load, 4, "line 1 of standard input: a field whose quotes do not end");
    let load = [&load[..], &["--columns", "1,2"]].concat();
    let ended = place.fed(&load, format!("9,9,{}\n", "x".repeat(2_000_000)).as_bytes());
    assert_eq!(ended.code, 0, "{}", ended.err);
}

#[test]
fn a_dash_is_the_standard_input() {
    let place = Place::new();
    std::fs::write(place.path("first"), "a\n").unwrap();
    let loaded = place.fed(&["load", "--pool", "p", "first", "-"], b"b\n");
    assert_eq!(loaded.code, 0, "{}", loaded.err);
    let script = place.fed(&["exec", "--pool", "p", "-"], b"put main c d\n");
    assert_eq!(script.code, 0, "{}", script.err);
    let dump = place.works(&["dump", "--pool", "p"]);
    let restored = place.fed(&["restore", "--pool", "q", "-"], dump.as_bytes());
    assert_eq!(restored.code, 0, "{}", restored.err);
    let entries: BTreeSet<_> = place.works(&["scan", "--pool", "q"]).lines().map(String::from).collect();
    assert_eq!(entries, ["a\t", "b\t", "c\td"].map(String::from).into());
}

#[test]
fn json_follows_the_types() {
    let place = Place::new();
    let db = Db::open_or_create(place.path("p")).unwrap();
    let mixed = db.ordered_map::<(u32, String), Option<f64>>("mixed").unwrap();
    mixed.insert(&(7, "a\"\n"), &Some(0.5)).unwrap();
    mixed.insert(&(8, String::new()), &None).unwrap();
    let lists = db.ordered_map::<i64, Vec<u128>>("lists").unwrap();
    lists.insert(&-1, &vec![1, u128::MAX]).unwrap();
    db.map::<u64, User>("users").unwrap().insert(&1, &User { name: "Ada".into() }).unwrap();
    drop((mixed, lists));
    db.close().unwrap();
    let scan = |index: &str| place.works(&["scan", "--pool", "p", "--index", index, "--json"]);
    let mixed = "{\"key\":[7,\"a\\\"\\n\"],\"value\":0.5}\n{\"key\":[8,\"\"],\"value\":null}\n";
    assert_eq!(scan("mixed"), mixed);
    let lists = "{\"key\":-1,\"value\":[1,\"340282366920938463463374607431768211455\"]}\n";
    assert_eq!(scan("lists"), lists);
    assert_eq!(scan("users"), "{\"key\":1,\"value\":{\"hex\":\"03416461\"}}\n");
    for (index, entries) in [("mixed", mixed), ("lists", lists), ("users", &scan("users"))] {
        let keys: Vec<_> = json(&format!("[{}]", entries.trim_end().replace('\n', ","))).as_array().unwrap().to_vec();
        let load = ["load", "--pool", "p", "--index", index, "--format", "json", "--json"];
        let loaded = json(&place.fed(&load, entries.as_bytes()).out);
        assert_eq!(loaded["there"], keys.len(), "{index}: {loaded}");
    }
    let got = json(&place.works(&["get", "--pool", "p", "--index", "users", "1", "--json"]));
    assert_eq!(got, serde_json::json!({ "key": 1, "found": true, "value": { "hex": "03416461" } }));
    assert_eq!(place.works(&["get", "--pool", "p", "--index", "users", "1", "--format", "hex"]), "03416461\n");
    place.fails(
        &["put", "--pool", "p", "--index", "users", "2", "x"],
        2,
        "are of type User 1, which cannot be given as text",
    );
}

#[test]
fn numbers_from_csv_with_a_heading() {
    let place = Place::new();
    let load = ["load", "--pool", "p", "--format", "csv", "--header", "--key-type", "string", "--value-type", "u64"];
    let ended = place.fed(&load, b"name,born\r\nada,1815\r\n\"hopper, grace\",1906\r\n");
    assert_eq!(ended.code, 0, "{}", ended.err);
    let csv = place.works(&["scan", "--pool", "p", "--format", "csv", "--header"]);
    assert_eq!(csv, "key,value\nada,1815\n\"hopper, grace\",1906\n");
    // Two columns of many.
    let load = ["load", "--pool", "q", "--format", "csv", "--header", "--columns", "3,1"];
    let ended = place.fed(&load, b"born,died,name\n1815,1852,ada\n1906,,\"hopper, grace\"\n1912,1954\n");
    fails(&ended, &load, 4, "line 4 of standard input: 2 fields, and no column 3");
    assert_eq!(place.works(&["scan", "--pool", "q"]), "ada\t1815\nhopper, grace\t1906\n");
    place.fails(&["load", "--pool", "q", "--columns", "0,1"], 2, "two numbers from 1 are expected");
    place.fails(&["load", "--pool", "q", "--columns", "1,2"], 2, "add --format csv");
    assert_eq!(
        place.works(&["get", "--pool", "p", "ada", "--json"]),
        "{\"found\":true,\"key\":\"ada\",\"value\":1815}\n"
    );
}

#[test]
fn lines_that_cannot_be_read_are_told_with_their_number() {
    let place = Place::new();
    let typed = ["--key-type", "u8", "--value-type", "string"];
    for (format, input, says) in [
        ("csv", "1,a\n2,b,c\n", "line 2 of standard input: 3 fields, not a key and a value; choose two with --columns"),
        ("csv", "3,\"a\nb\"\nx,c\n", "line 3 of standard input: key"),
        ("csv", "1,\"a\n", "line 1 of standard input: a field whose quotes do not end"),
        ("json", "{\"key\":1,\"value\":\"a\"}\n\n{\"key\":2}\n", "line 3 of standard input: \"value\" is missing"),
        ("json", "{\"key\":256,\"value\":\"a\"}\n", "line 1 of standard input: key 256: 256 is not of type u8"),
        ("json", "{\"key\":1,\n", "line 1 of standard input: not JSON"),
        ("json", "{\"key\":{\"hex\":\"0102\"},\"value\":\"a\"}\n", "these bytes are no u8"),
        ("hex", "01\t616\n", "line 1 of standard input: value 616: bytes have two hexadecimal digits"),
        ("hex", "01 61\n", "no tab"),
    ] {
        let args = [&["load", "--pool", "p", "--format", format][..], &typed].concat();
        fails(&place.fed(&args, input.as_bytes()), &args, 4, says);
    }
    assert_eq!(place.works(&["get", "--pool", "p", "3"]), "a\\nb\n", "records before a bad one are kept");
    place.fails(&["scan", "--pool", "p", "--header"], 2, "only CSV has a heading");
    place.fails(&["scan", "--pool", "p", "--json", "--format", "csv"], 2, "cannot be used with");
}

#[test]
fn names_of_types_are_shown_and_kept_by_copies() {
    let place = Place::new();
    let db = Db::open_or_create(place.path("p")).unwrap();
    db.map::<(u8, (u8, String)), User>("users").unwrap().insert(&(1, (2, "x")), &User { name: "Ada".into() }).unwrap();
    db.close().unwrap();
    let dumped = place.works(&["dump", "--pool", "p"]);
    std::fs::write(place.path("dumped"), dumped).unwrap();
    place.works(&["restore", "--pool", "restored", "dumped"]);
    place.works(&["copy", "--pool", "p", "--to", "copied"]);
    place.works(&["repair", "--pool", "p", "--into", "repaired"]);
    for pool in ["p", "restored", "copied", "repaired"] {
        let text = place.works(&["stat", "--pool", pool]);
        assert!(text.contains("(u8, (u8, string)) to User 1"), "{pool}: {text}");
        assert!(!text.contains("type#") && !text.contains("#types"), "{pool}: {text}");
        let index = &json(&place.works(&["stat", "--pool", pool, "--json"]))["indices"][0];
        assert_eq!((&index["key_type"], &index["value_type"]), (&"(u8, (u8, string))".into(), &"User 1".into()));
        place.works(&["check", "--pool", pool]);
    }
}

/// The table of docs/cli.md: the fields that each verb's JSON has, those that may be missing with a question mark.
fn documented() -> BTreeMap<String, BTreeSet<String>> {
    let page = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/cli.md")).unwrap();
    let section = page.split("\n| verb | fields |\n").nth(1).expect("a table of fields").split("\n\n").next().unwrap();
    let rows = section.lines().filter_map(|line| line.strip_prefix("| `"));
    rows.map(|row| {
        let mut cells = row.split('|').map(|cell| cell.trim().trim_end_matches('`').to_owned());
        let verb = cells.next().unwrap();
        let fields = cells.next().unwrap();
        (verb, fields.split(", ").map(|field| field.trim_matches('`').to_owned()).collect())
    })
    .collect()
}

#[test]
fn json_has_the_fields_that_are_documented() {
    let place = Place::new();
    place.pool("p");
    std::fs::write(place.path("script"), "get main a\n").unwrap();
    std::fs::write(place.path("dump"), place.works(&["dump", "--pool", "p"])).unwrap();
    std::fs::write(place.path("keys"), "one\ntwo\nthree\n").unwrap();
    let runs: [(&str, &[&str]); 19] = [
        ("stat --watch", &["0", "--times", "1", "--pool", "p"]),
        ("bench --keys-from", &["keys", "--ops", "100", "--dir", "."]),
        ("bench --workload tpcc-neworder", &["--kind", "pset", "--keys", "100", "--ops", "50", "--dir", "."]),
        ("get", &["--pool", "p", "a"]),
        ("put", &["--pool", "p", "z", "26"]),
        ("del", &["--pool", "p", "z"]),
        ("scan", &["--pool", "p", "--limit", "1"]),
        ("load", &["--pool", "p", "script"]),
        ("exec", &["--pool", "p", "script"]),
        ("stat", &["--pool", "p"]),
        ("check", &["--pool", "p"]),
        ("scrub", &["--pool", "p"]),
        ("repair", &["--pool", "p", "--into", "repaired"]),
        ("restore", &["--pool", "restored", "dump"]),
        ("copy", &["--pool", "p", "--to", "copied"]),
        ("compact", &["--pool", "copied"]),
        ("kinds", &[]),
        ("bench", &["--keys", "100", "--ops", "100", "--dir", "."]),
        ("torture", &["pset", "--rounds", "1", "--dir", "."]),
    ];
    let documented = documented();
    assert_eq!(
        documented.keys().cloned().collect::<BTreeSet<_>>(),
        runs.iter().map(|(verb, _)| verb.to_string()).collect()
    );
    for (verb, args) in runs {
        let said = json(&place.works(&[&verb.split(' ').collect::<Vec<_>>()[..], args, &["--json"]].concat()));
        let found: BTreeSet<String> = said.as_object().unwrap().keys().cloned().collect();
        let wanted = &documented[verb];
        let required: BTreeSet<String> = wanted.iter().filter(|field| !field.ends_with('?')).cloned().collect();
        let allowed: BTreeSet<String> = wanted.iter().map(|field| field.trim_end_matches('?').to_owned()).collect();
        assert!(found.is_superset(&required) && found.is_subset(&allowed), "{verb}: {found:?}, documented {wanted:?}");
    }
}

/// The table of docs/cli.md of what is within fields: where, as `stat indices[]`, and the fields there. `[]` stands for the elements of an
/// array, `.*` for the values of an object whose names are data.
fn documented_within() -> BTreeMap<String, BTreeSet<String>> {
    let page = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/cli.md")).unwrap();
    let section = page.split("\n| within | fields | meaning |\n").nth(1).expect("a table of what is within fields");
    let rows = section.split("\n\n").next().unwrap().lines().filter_map(|line| line.strip_prefix("| `"));
    rows.map(|row| {
        let mut cells = row.split('|').map(|cell| cell.trim().trim_end_matches('`').to_owned());
        let (place, fields) = (cells.next().unwrap(), cells.next().unwrap());
        (place, fields.split(", ").map(|field| field.trim_matches('`').to_owned()).collect())
    })
    .collect()
}

/// The names of the objects' fields within a value, by their places.
fn objects(place: &str, value: &serde_json::Value, data: &[&str], found: &mut BTreeMap<String, Vec<BTreeSet<String>>>) {
    match value {
        serde_json::Value::Array(elements) => {
            elements.iter().for_each(|element| objects(&format!("{place}[]"), element, data, found));
        }
        serde_json::Value::Object(fields) if data.contains(&place) => {
            fields.values().for_each(|value| objects(&format!("{place}.*"), value, data, found));
        }
        serde_json::Value::Object(fields) => {
            found.entry(place.to_owned()).or_default().push(fields.keys().cloned().collect());
            fields.iter().for_each(|(name, value)| objects(&format!("{place}.{name}"), value, data, found));
        }
        _ => {}
    }
}

#[test]
fn what_is_within_the_fields_of_json_is_documented() {
    let place = Place::new();
    place.pool("p");
    place.works(&["put", "--create", "--pool", "p", "--index", "ordered", "--kind", "masstree", "k", "v"]);
    place.works(&["copy", "--pool", "p", "--to", "copied"]);
    std::fs::write(place.path("script"), "get main a\nget main none\n").unwrap();
    std::fs::write(place.path("dump"), place.works(&["dump", "--pool", "p"])).unwrap();
    std::fs::write(place.path("keys"), "one\ntwo\nthree\n").unwrap();
    // An index that does not open: the word before a key says how long key and value are.
    place.works(&["put", "--create", "--pool", "damaged", "needle", "1"]);
    change(&place.path("damaged"), |bytes| {
        let at = bytes.windows(6).position(|w| w == b"needle").unwrap();
        bytes[at - 8..at].fill(0xff);
    });
    let runs: [(&str, &[&str], i32); 18] = [
        ("exec", &["--pool", "p", "script"], 1),
        ("stat", &["--pool", "p"], 0),
        ("stat", &["--pool", "damaged"], 0),
        ("check", &["--pool", "p"], 0),
        ("check", &["--pool", "damaged"], 1),
        ("scrub", &["--pool", "p"], 0),
        ("repair", &["--pool", "p", "--into", "repaired"], 0),
        ("repair", &["--pool", "damaged", "--into", "saved"], 1),
        ("restore", &["--pool", "restored", "dump"], 0),
        ("copy", &["--pool", "p", "--to", "copy"], 0),
        ("compact", &["--pool", "copied"], 0),
        ("kinds", &["--all"], 0),
        ("bench", &["--keys", "100", "--ops", "100", "--dir", "."], 0),
        ("bench", &["--keys", "100", "--ops", "100", "--dir", ".", "--kind", "masstree"], 0),
        ("bench --workload tpcc-neworder", &["--kind", "pset", "--keys", "100", "--ops", "50", "--dir", "."], 0),
        ("bench --keys-from", &["keys", "--ops", "100", "--dir", "."], 0),
        ("load", &["--pool", "p", "script"], 0),
        ("stat --watch", &["0", "--times", "1", "--pool", "p"], 0),
    ];
    let documented = documented_within();
    let mut data: Vec<&str> = documented.keys().filter_map(|place| place.strip_suffix(".*")).collect();
    // Its values are numbers.
    data.push("stat indices[].details");
    let mut found = BTreeMap::new();
    for (verb, args, code) in runs {
        let ended = place.durix(&[&verb.split(' ').collect::<Vec<_>>()[..], args, &["--json"]].concat());
        assert_eq!(ended.code, code, "{verb} {args:?}: {}{}", ended.out, ended.err);
        for (name, value) in json(&ended.out).as_object().unwrap() {
            objects(&format!("{verb} {name}"), value, &data, &mut found);
        }
    }
    for (place, all) in &found {
        let wanted = documented.get(place).unwrap_or_else(|| panic!("{place} is not documented: {all:?}"));
        for fields in all {
            let required: BTreeSet<_> = wanted.iter().filter(|field| !field.ends_with('?')).cloned().collect();
            let allowed: BTreeSet<_> = wanted.iter().map(|field| field.trim_end_matches('?').to_owned()).collect();
            assert!(fields.is_superset(&required) && fields.is_subset(&allowed), "{place}: {fields:?}, {wanted:?}");
        }
        // What may be missing is seen, or the row says what nothing does.
        let seen: BTreeSet<_> = all.iter().flatten().cloned().collect();
        assert!(wanted.iter().all(|field| seen.contains(field.trim_end_matches('?'))), "{place}: {seen:?}, {wanted:?}");
    }
    let never: Vec<_> = documented.keys().filter(|place| !found.contains_key(*place)).collect();
    assert!(never.is_empty(), "documented, and not seen: {never:?}");
}

#[test]
fn kinds_are_compared_on_the_users_own_keys() {
    let place = Place::new();
    let names: String = (0..2_000).map(|n| format!("user {}\n", n * 7919 % 2_003)).collect();
    std::fs::write(place.path("names"), names.clone() + &names.lines().take(5).collect::<Vec<_>>().join("\n")).unwrap();
    let numbers: String = (0..2_000).map(|n| format!("{}\n", n * 7919 % 2_003)).collect();
    std::fs::write(place.path("numbers"), numbers).unwrap();
    let args = ["bench", "--keys-from", "names", "--dir", ".", "--ops", "500", "--json"];
    let said = json(&place.works(&args));
    assert_eq!(said["keys"], 2_000, "keys that come twice count once");
    let kinds = |said: &serde_json::Value| -> Vec<String> {
        said["kinds"].as_array().unwrap().iter().map(|kind| kind["kind"].as_str().unwrap().to_owned()).collect()
    };
    let of_bytes = kinds(&said);
    assert!(["pset", "masstree", "bplustree"].iter().all(|kind| of_bytes.iter().any(|k| k == kind)), "{of_bytes:?}");
    assert!(!of_bytes.iter().any(|kind| kind == "hash"), "its keys have 8 bytes");
    for kind in said["kinds"].as_array().unwrap() {
        assert!(kind["get_ns"].as_f64().unwrap() > 0.0 && kind["bytes_per_key"].as_f64().unwrap() > 0.0, "{kind}");
        assert_eq!(kind["ordered"] == true, kind["scan_ns_per_entry"].is_number(), "{kind}");
    }
    let recommended = &said["recommended"];
    assert_eq!(recommended["ordered"], serde_json::json!(["bplustree"]));
    assert_eq!(recommended["ordered_at_checkpoints"], serde_json::json!(["masstree"]));
    assert!(!recommended["map"].as_array().unwrap().is_empty());
    assert_eq!(said["svg"], "names.svg", "beside the keys");
    assert!(std::fs::read_to_string(place.path("names.svg")).unwrap().starts_with("<svg"));
    let args =
        ["bench", "--keys-from", "numbers", "--key-type", "u64", "--dir", ".", "--ops", "500", "--svg", "kinds.svg"];
    let text = place.works(&args);
    assert!(text.contains("Recommended") && text.contains("a map in order, durable on return: "), "{text}");
    assert!(text.contains("kinds.svg has the times as a picture"), "{text}");
    let last = text.lines().last().unwrap();
    assert!(last.starts_with("  a map in order, durable at checkpoints: "), "ends with the recommendation: {text}");
    assert!(text.contains("hash-fast-open") && text.contains("skiplist"), "{text}");
    assert!(!text.contains("\nlist ") && !text.contains("\nlist-values "), "meant for 1000 keys: {text}");
    let svg = std::fs::read_to_string(place.path("kinds.svg")).unwrap();
    assert!(svg.starts_with("<svg") && svg.contains(">bplustree<") && svg.ends_with("</svg>\n"), "{svg}");
    std::fs::write(place.path("empty"), "").unwrap();
    place.fails(&["bench", "--keys-from", "empty"], 2, "has no line");
    place.fails(
        &["bench", "--keys-from", "names", "--key-type", "u64"],
        4,
        "line 1 of names: key \"user 0\" is not of type u64",
    );
    let left: Vec<_> = std::fs::read_dir(place.dir.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(left.len(), 5, "a bench removes its pools: {left:?}");
    // No other file is replaced.
    std::fs::write(place.path("names.svg"), "mine").unwrap();
    let args = ["bench", "--keys-from", "names", "--dir", ".", "--ops", "100", "--json"];
    let ended = place.durix(&args);
    assert!(ended.code == 0 && ended.err.contains("no picture was written to names.svg: another file is there"));
    assert!(json(&ended.out)["svg"].is_null());
    assert_eq!(std::fs::read(place.path("names.svg")).unwrap(), b"mine");
}

/// A journal makes every kind durable at the same moments, and nothing is written back.
#[test]
fn kinds_are_compared_with_a_journal() {
    let place = Place::new();
    let keys: String = (0..200).map(|n| format!("{n}\n")).collect();
    std::fs::write(place.path("keys"), keys).unwrap();
    let args = ["bench", "--keys-from", "keys", "--dir", ".", "--ops", "1", "--page-cache", "--durability"];
    let said = json(&place.works(&[&args[..], &["interval=5ms", "--json"]].concat()));
    for kind in said["kinds"].as_array().unwrap() {
        assert!(kind["strict"] == false && kind["put_fences"].is_null() && kind["put_ns"].is_number(), "{kind}");
    }
    let recommended = &said["recommended"];
    assert!(["map", "ordered"].iter().all(|need| !recommended[*need].as_array().unwrap().is_empty()), "{said}");
    assert_eq!(recommended["ordered_at_checkpoints"].as_array().unwrap().len(), 0, "{said}");
    let text = place.works(&[&args[..], &["interval=5ms"]].concat());
    assert!(text.contains("at commits") && !text.contains("on return"), "{text}");
    assert!(text.lines().last().unwrap().starts_with("  a map in order: "), "{text}");
    let left = std::fs::read_dir(place.dir.path()).unwrap().count();
    assert_eq!(left, 2, "the keys and the picture: a bench removes its pools and their journals");
}

#[test]
fn stat_watches_a_database_that_is_written_to() {
    let place = Place::new();
    let db = Db::open_or_create(place.path("p")).unwrap();
    let map = db.map::<u64, Vec<u8>>("main").unwrap();
    map.insert(&0, &vec![7; 100]).unwrap();
    let text = place.works(&["stat", "--pool", "p", "--watch", "0", "--times", "2"]);
    let lines: Vec<_> = text.lines().collect();
    assert_eq!(lines.len(), 3, "a heading and two lines: {text}");
    assert!(lines[0].contains("in use") && lines[0].contains("journal") && lines[1].contains("open"), "{text}");
    let watch = |times: &str| {
        let text = place.works(&["stat", "--pool", "p", "--watch", "0", "--times", times, "--json"]);
        text.lines().map(json).collect::<Vec<_>>()
    };
    let before = watch("1")[0]["used"].as_u64().unwrap();
    map.try_extend((0..20_000u64).map(|n| (n, vec![1u8; 200]))).unwrap();
    let after = &watch("2")[1];
    assert!(after["used"].as_u64().unwrap() > before + 2_000_000, "{before} {after}");
    place.fails(&["stat", "--pool", "p", "--times", "2"], 2, "--watch");
    place.fails(&["stat", "--pool", "nowhere", "--watch"], 3, "there is no pool");
}

#[cfg(not(feature = "redb"))]
#[test]
fn a_build_without_redb_says_how_to_get_one() {
    let place = Place::new();
    place.fails(&["load", "--pool", "p", "--redb", "old.redb"], 2, "cargo install durix-cli --features redb");
    assert!(!place.path("p").exists());
    place.pool("p");
    place.fails(&["dump", "--pool", "p", "--redb", "new.redb"], 2, "cargo install durix-cli --features redb");
    assert!(!place.path("new.redb").exists());
}

#[cfg(feature = "redb")]
#[test]
fn indices_are_dumped_as_tables_of_redb_and_loaded_again() {
    use redb::{ReadOnlyDatabase, ReadableDatabase, ReadableTableMetadata, TableDefinition, TableHandle};
    let place = Place::new();
    let db = Db::open_or_create(place.path("p")).unwrap();
    let ages = db.map::<String, u64>("ages").unwrap();
    ages.try_extend((0..1000u64).map(|n| (format!("user {n}"), n))).unwrap();
    let blobs = db.ordered_map::<i64, Vec<u8>>("blobs").unwrap();
    blobs.try_extend([(-1, vec![0xff, 0]), (i64::MIN, vec![]), (7, vec![7; 5000])]).unwrap();
    let flags = db.ordered_map::<u128, Option<u8>>("options").unwrap();
    flags.insert(&1, &None).unwrap();
    let floats = db.map::<u32, f64>("floats").unwrap();
    floats.try_extend([(1, -0.5), (2, f64::INFINITY)]).unwrap();
    drop((ages, blobs, flags, floats));
    db.close().unwrap();
    drop(db);
    let dump = |more: &[&'static str]| [&["dump", "--pool", "p", "--redb"][..], more].concat();
    place.fails(&dump(&["all.redb"]), 2, "index \"options\" holds u128 to Option<u8>, for which");
    assert!(!place.path("all.redb").exists(), "whole or not at all");
    place.fails(&dump(&["p"]), 5, "p is there already");
    place.fails(&dump(&["no/folder/x"]), 5, "there is no folder no/folder; make it first");
    place.fails(&dump(&["x", "--sort"]), 2, "cannot be used with");
    for (index, entries) in
        [("ages", "ages: 1000 entries\n"), ("blobs", "blobs: 3 entries\n"), ("floats", "floats: 2 entries\n")]
    {
        let file: &'static str = index;
        assert_eq!(place.works(&dump(&[file, "--index", index])), entries);
        place.works(&["load", "--pool", "q", "--index", index, "--redb", file]);
        let scan = |pool: &str| place.works(&["scan", "--pool", pool, "--index", index, "--format", "hex"]);
        assert_eq!(scan("p"), scan("q"), "{index}");
    }
    // redb itself finds them, with their types.
    let read = ReadOnlyDatabase::open(place.path("blobs")).unwrap().begin_read().unwrap();
    assert_eq!(read.list_tables().unwrap().map(|table| table.name().to_owned()).collect::<Vec<_>>(), ["blobs"]);
    let table = read.open_table(TableDefinition::<i64, &[u8]>::new("blobs")).unwrap();
    assert_eq!((table.len().unwrap(), table.get(-1).unwrap().unwrap().value()), (3, &[0xff, 0][..]));
    let left: Vec<_> = std::fs::read_dir(place.dir.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert!(left.iter().all(|name| !name.to_string_lossy().contains("durix-dump")), "{left:?}");
}

#[cfg(feature = "redb")]
#[test]
fn tables_of_redb_are_loaded_with_their_types() {
    use redb::{Database, TableDefinition};
    const AGES: TableDefinition<&str, u64> = TableDefinition::new("ages");
    const BLOBS: TableDefinition<i64, &[u8]> = TableDefinition::new("blobs");
    const PAIRS: TableDefinition<(u8, u8), u64> = TableDefinition::new("pairs");
    let place = Place::new();
    let db = Database::create(place.path("old.redb")).unwrap();
    let tx = db.begin_write().unwrap();
    let mut ages = tx.open_table(AGES).unwrap();
    (0..1000u64).for_each(|n| _ = ages.insert(&*format!("user {n}"), n).unwrap());
    drop(ages);
    tx.open_table(BLOBS).unwrap().insert(-1, &b"\xff"[..]).unwrap();
    tx.open_table(PAIRS).unwrap().insert((1, 2), 3).unwrap();
    tx.commit().unwrap();
    place.fails(&["load", "--pool", "p", "--redb", "old.redb"], 5, "old.redb");
    drop(db);
    let load = |index: &'static str, more: &[&'static str]| {
        [&["load", "--pool", "p", "--index", index, "--redb", "old.redb", "--table", index][..], more].concat()
    };
    place.fails(
        &["load", "--pool", "p", "--redb", "old.redb"],
        2,
        "has the tables: ages, blobs, pairs; choose one with --table",
    );
    place.fails(&load("pairs", &[]), 2, "types that this command does not read");
    let said = json(&place.works(&load("ages", &["--kind", "masstree", "--json"])));
    assert_eq!(said["added"], 1000);
    place.works(&load("blobs", &[]));
    assert_eq!(place.works(&["get", "--pool", "p", "--index", "ages", "user 7"]), "7\n");
    assert_eq!(place.works(&["scan", "--pool", "p", "--index", "blobs", "--format", "hex"]), "7fffffffffffffff\tff\n");
    assert!(place.works(&["stat", "--pool", "p"]).contains("string to u64"));
    assert_eq!(json(&place.works(&load("ages", &["--json"])))["there"], 1000, "again");
    place.fails(&["load", "--pool", "p", "--redb", "nowhere"], 5, "nowhere");
}
