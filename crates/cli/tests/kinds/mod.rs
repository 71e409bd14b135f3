//! Every verb on every kind, and what each kind refuses.

use super::common::{Place, change, fails};
use super::json;

use durix::kind::{Entry, kinds};
use durix::{Durability, Hardware, Lengths};

fn all() -> Vec<Entry> {
    kinds::<Hardware>()
}

/// The kinds that take 8 bytes only: their indices hold numbers unless told otherwise.
fn of_words() -> impl Iterator<Item = Entry> {
    let exact =
        |kind: &Entry| matches!((kind.limits.key, kind.limits.value), (Lengths::Exactly(_), Lengths::Exactly(_)));
    all().into_iter().filter(exact)
}

/// Numbers as TSV; shorter than a list is meant for.
fn numbers(count: u64) -> String {
    (0..count).map(|i| format!("{}\t{i}\n", (i * 7919) % 100_000)).collect()
}

fn load(place: &Place, pool: &str, kind: &str, input: &str) {
    let args = ["load", "--pool", pool, "--kind", kind, "--key-type", "u64", "--value-type", "u64", "--format", "tsv"];
    let ended = place.fed(&args, input.as_bytes());
    assert_eq!(ended.code, 0, "{kind}: {}", ended.err);
}

#[test]
fn every_verb_works_on_every_kind() {
    let place = Place::new();
    for kind in all() {
        let name = kind.name;
        load(&place, name, name, &numbers(800));
        assert_eq!(place.works(&["get", "--pool", name, "7919"]), "1\n");
        place.works(&["put", "--pool", name, "5", "55"]);
        place.works(&["put", "--pool", name, "7919", "1000"]);
        place.fails(&["put", "--pool", name, "--if-absent", "5", "6"], 1, "5 is there already; it stays as it is");
        place.works(&["del", "--pool", name, "15838"]);
        place.fails(&["get", "--pool", name, "15838"], 1, "15838 is not there");
        place.fails(&["del", "--pool", name, "15838"], 1, "15838 was not there");
        assert_eq!(place.works(&["scan", "--pool", name, "--limit", "3"]), "0\t0\n5\t55\n17\t543\n", "{name}");
        assert_eq!(place.works(&["scan", "--pool", name, "--to", "6", "--reverse"]), "5\t55\n0\t0\n", "{name}");
        let json_of = |args: &[&str]| json(&place.works(&[args, &["--json"]].concat()));
        let index = &json_of(&["stat", "--pool", name])["indices"][0];
        assert_eq!((&index["kind"], &index["keys"]), (&name.into(), &800.into()));
        assert_eq!((&index["key_type"], &index["value_type"]), (&"u64".into(), &"u64".into()));
        let durable = place.works(&["stat", "--pool", name, "--index", "main", "--durability", "process"]);
        let expected = match kind.durability {
            Durability::Strict => "an operation that has returned survives the death of the process",
            _ => "what the last completed sync covers survives the death of the process",
        };
        assert!(durable.contains(expected), "{durable}");
        assert_eq!(json_of(&["check", "--pool", name])["checked"][0]["keys"], 800);
        let copy = format!("{name} copy");
        assert_eq!(json_of(&["copy", "--pool", name, "--to", &copy])["indices"][0]["entries"], 800);
        let dump = place.works(&["dump", "--pool", name, "--sort"]);
        assert_eq!(place.works(&["dump", "--pool", &copy, "--sort"]), dump);
        let restored = format!("{name} restored");
        let said = json(&place.fed(&["restore", "--pool", &restored, "--json"], dump.as_bytes()).out);
        assert_eq!(said["indices"][0]["entries"], 800);
        assert_eq!(place.works(&["dump", "--pool", &restored, "--sort"]), dump);
        let repaired = format!("{name} repaired");
        assert_eq!(json_of(&["repair", "--pool", name, "--into", &repaired])["indices"][0]["entries"], 800);
        assert_eq!(place.works(&["dump", "--pool", &repaired, "--sort"]), dump);
    }
}

#[test]
fn a_dump_of_one_kind_becomes_an_index_of_any_other() {
    let place = Place::new();
    load(&place, "p", "pset", &numbers(300));
    let dump = place.works(&["dump", "--pool", "p", "--sort"]);
    for kind in all() {
        let ended = place.fed(&["restore", "--pool", kind.name, "--kind", kind.name], dump.as_bytes());
        assert_eq!((ended.code, &ended.out[..]), (0, "main: 300 entries\n"), "{}", ended.err);
        let again = place.works(&["dump", "--pool", kind.name, "--sort"]);
        assert_eq!(again, dump.replace("\tpset\t", &format!("\t{}\t", kind.name)));
    }
    place.pool("texts");
    let texts = place.works(&["dump", "--pool", "texts"]);
    for kind in of_words() {
        let args = ["restore", "--pool", "never", "--kind", kind.name];
        let ended = place.fed(&args, texts.as_bytes());
        fails(&ended, &args, 4, " does not fit: this kind of index takes keys of exactly 8 bytes");
        let typed = texts.replace("\tbytes\tbytes", "\tstring\tbytes");
        let ended = place.fed(&args, typed.as_bytes());
        fails(&ended, &args, 4, "line 2 of the dump: a ");
        assert!(!place.path("never").exists() && !place.path("never.partial").exists());
    }
}

#[test]
fn a_tree_is_loaded_into_an_ordered_kind_and_comes_back_in_order() {
    let place = Place::new();
    std::fs::create_dir_all(place.path("tree/sub")).unwrap();
    for file in ["tree/z", "tree/sub/b", "tree/sub/a", "tree/A"] {
        std::fs::write(place.path(file), file).unwrap();
    }
    let said = json(&place.works(&["load", "--pool", "p", "--kind", "masstree", "--tree", "tree", "--json"]));
    assert_eq!((&said["added"], &said["keys"]), (&6.into(), &6.into()));
    // Unsorted, so in the order of the index itself.
    let keys = place.works(&["scan", "--pool", "p", "--keys-only", "--unsorted"]);
    assert_eq!(keys, "tree\ntree/A\ntree/sub\ntree/sub/a\ntree/sub/b\ntree/z\n");
    let sub =
        place.works(&["scan", "--pool", "p", "--keys-only", "--prefix", "tree/sub/", "--reverse", "--limit", "1"]);
    assert_eq!(sub, "tree/sub/b\n");
    assert!(place.works(&["stat", "--pool", "p", "--durability", "process"]).contains("at checkpoints"));
    assert!(place.works(&["stat", "--pool", "p", "--durability", "immediate"]).contains("on return"));
    let again = json(&place.works(&["load", "--pool", "p", "--tree", "tree", "--json"]));
    assert_eq!((&again["there"], &again["added"]), (&6.into(), &0.into()));
}

#[test]
fn a_load_of_keys_in_order_into_a_tree_that_is_not_balanced_warns_once() {
    let place = Place::new();
    let tsv = |numbers: &mut dyn Iterator<Item = u64>| numbers.map(|n| format!("{n}\t{n}\n")).collect::<String>();
    let up = tsv(&mut (0..2500));
    let down = tsv(&mut (0..2500).rev());
    // An odd factor: all numbers below 2^12, in no order.
    let mixed = tsv(&mut (0..4096u64).map(|n| n * 2_654_435_761 % 4096));
    for (kind, input, warnings) in
        [("bst", &up, 1), ("bst", &down, 1), ("bst", &mixed, 0), ("bst-values", &up, 1), ("skiplist", &up, 0)]
    {
        let pool = format!("{kind} {warnings} {}", input.len() + input.as_bytes()[0] as usize);
        let args =
            ["load", "--pool", &pool, "--kind", kind, "--key-type", "u64", "--value-type", "u64", "--format", "tsv"];
        let ended = place.fed(&args, input.as_bytes());
        assert_eq!((ended.code, ended.err.matches("is not balanced").count()), (0, warnings), "{kind}: {}", ended.err);
    }
}

#[test]
fn kinds_of_words_say_what_they_do_not_take_before_anything_is_made() {
    let place = Place::new();
    std::fs::create_dir(place.path("tree")).unwrap();
    for kind in of_words() {
        let name = kind.name;
        let load = |args: &[&str], code, says: &str| {
            place.fails(&[&["load", "--pool", "p", "--kind", name], args].concat(), code, says);
            assert!(!place.path("p").exists(), "{args:?} made a pool");
        };
        let tree = format!(
            "--tree loads paths, and {name} takes keys of exactly 8 bytes; kinds that take any: pset, masstree, bplustree, hash-bytes"
        );
        load(&["--tree", "tree"], 2, &tree);
        let lines = format!("lines have no values, and {name} takes values of exactly 8 bytes: use --format tsv");
        load(&[], 2, &lines);
        let text =
            format!("a {name} takes keys of exactly 8 bytes (u64, i64, [u8; 8]), so keys of type string do not fit");
        load(&["--format", "tsv", "--key-type", "string"], 2, &text);
        load(&["--format", "tsv", "--key-type", "text"], 2, "\"text\" names no type");
        place.fails(
            &["put", "--create", "--pool", "p", "--kind", name, "--value-type", "u8", "1", "2"],
            2,
            "so values of type u8 do not fit",
        );
        assert!(!place.path("p").exists());

        let pool = format!("{name}.pool");
        place.works(&["put", "--create", "--pool", &pool, "--kind", name, "1", "2"]);
        place.fails(&["put", "--pool", &pool, "a long key", "2"], 2, "key \"a long key\" is not of type u64");
        place.fails(&["put", "--pool", &pool, "1", "-2"], 2, "value \"-2\" is not of type u64");
        place.fails(&["get", "--pool", &pool, "18446744073709551616"], 2, "is not of type u64: number too large");
        place.fails(&["load", "--pool", &pool, "--tree", "tree"], 2, "index \"main\" takes keys of exactly 8 bytes");
        place.fails(
            &["scan", "--pool", &pool, "--prefix", "1"],
            2,
            "keys of type u64 have no prefix; use --from and --to",
        );
        let args = ["load", "--pool", &pool, "--format", "tsv"];
        fails(
            &place.fed(&args, b"7\t8\nseven\t8\n"),
            &args,
            4,
            "line 2 of standard input: key \"seven\" is not of type u64",
        );
        assert_eq!(place.works(&["get", "--pool", &pool, "7"]), "8\n", "what came before the bad line is there");
    }
}

#[test]
fn types_are_given_to_new_indices_and_kept() {
    let place = Place::new();
    let put = ["put", "--create", "--pool", "p", "--kind", "masstree", "--key-type", "(i32, string)"];
    place.works(&[&put[..], &["--value-type", "bool", "--", "-5,x", "true"]].concat());
    place.works(&["put", "--pool", "p", "--", "-70,y", "false"]);
    assert_eq!(place.works(&["scan", "--pool", "p"]), "-70,y\tfalse\n-5,x\ttrue\n");
    place.fails(
        &["put", "--create", "--pool", "p", "--key-type", "u64", "1", "true"],
        2,
        "index \"main\" holds (i32, string) to bool; leave --key-type and --value-type out",
    );
    place.fails(&["put", "--pool", "p", "--key-type", "u64", "1", "x"], 2, "a new index only; add --create");
    place.works(&["put", "--create", "--pool", "p", "--index", "i", "--key-type", "i64", "-5", "x"]);
    assert_eq!(place.works(&["scan", "--pool", "p", "--index", "i", "--from", "-6", "--to", "-4"]), "-5\tx\n");
    assert_eq!(place.works(&["get", "--pool", "p", "--index", "i", "-5"]), "x\n");
    place.works(&["del", "--pool", "p", "--index", "i", "-5"]);
    let db = durix::Db::open(place.path("p")).unwrap();
    let map = db.ordered_map::<(i32, String), bool>("main").unwrap();
    assert_eq!(map.get(&(-5, "x".to_owned())).unwrap(), Some(true));
}

#[test]
fn an_index_of_another_kind_than_asked_for_is_told() {
    let place = Place::new();
    for kind in all() {
        load(&place, kind.name, kind.name, "1\t2\n");
        for other in all().into_iter().filter(|other| other.name != kind.name) {
            let says = format!("index \"main\" is a {}, not a {}; leave --kind out", kind.name, other.name);
            place.fails(&["get", "--pool", kind.name, "--kind", other.name, "1"], 3, &says);
            place.fails(&["put", "--pool", kind.name, "--kind", other.name, "1", "2"], 3, &says);
            let args = ["load", "--pool", kind.name, "--kind", other.name, "--format", "tsv"];
            fails(&place.fed(&args, b"1\t2\n"), &args, 3, &says);
        }
    }
}

#[test]
fn a_load_into_a_buffered_kind_that_is_killed_keeps_what_checkpoints_cover() {
    use std::io::Write;
    let place = Place::new();
    let lines: Vec<String> = (0..60_000).map(|i| format!("key {i}\tvalue {i}\n")).collect();
    let args = ["load", "--pool", "p", "--kind", "masstree", "--format", "tsv"];
    let mut child =
        place.command(&args).stdin(std::process::Stdio::piped()).stdout(std::process::Stdio::null()).spawn().unwrap();
    let mut stdin = child.stdin.take().unwrap();
    // Slowly, so that checkpoints come in between; then it is killed.
    for part in lines[..30_000].chunks(5000) {
        stdin.write_all(part.concat().as_bytes()).unwrap();
        stdin.flush().unwrap();
        std::thread::sleep(std::time::Duration::from_millis(120));
    }
    child.kill().unwrap();
    child.wait().unwrap();
    let said = json(&place.works(&["check", "--pool", "p", "--json"]));
    assert_eq!(said["findings"], serde_json::json!([]));
    let kept = said["checked"][0]["keys"].as_u64().unwrap();
    assert!((10_000..=30_000).contains(&kept), "{kept} keys were kept");
    // What was kept is the beginning of the input: a crash leaves one moment.
    let keys = place.works(&["scan", "--pool", "p", "--keys-only"]);
    let numbers: std::collections::BTreeSet<u64> =
        keys.lines().map(|line| line.strip_prefix("key ").unwrap().parse().unwrap()).collect();
    assert_eq!(numbers, (0..kept).collect());
    let resumed = json(&place.fed(&[&args[..], &["--json"]].concat(), lines.concat().as_bytes()).out);
    assert_eq!((&resumed["there"], &resumed["keys"]), (&kept.into(), &60_000.into()));
}

#[test]
fn what_can_be_read_of_a_damaged_tree_is_saved_from_both_ends() {
    let place = Place::new();
    let lines: String = (0..5000).map(|i| format!("key {i:05}\tthe value of number {i}\n")).collect();
    let args = ["load", "--pool", "p", "--kind", "masstree", "--format", "tsv"];
    assert_eq!(place.fed(&args, lines.as_bytes()).code, 0);
    // The head of the record says how long its value is; here it says what cannot be.
    change(&place.path("p"), |bytes| {
        let value = b"the value of number 2505";
        let at = bytes.windows(value.len()).position(|window| window == value).unwrap();
        bytes[at - 16..at].fill(0xff);
    });
    let checked = place.durix(&["check", "--pool", "p"]);
    assert_eq!(checked.code, 1, "{}{}", checked.out, checked.err);
    assert!(checked.out.contains("; `durix repair` saves"), "{}", checked.out);
    let repaired = place.durix(&["repair", "--pool", "p", "--into", "q"]);
    assert_eq!(repaired.code, 1, "something was lost: {}{}", repaired.out, repaired.err);
    let said = json(&place.works(&["check", "--pool", "q", "--json"]));
    let saved = said["checked"][0]["keys"].as_u64().unwrap();
    assert!((4980..5000).contains(&saved), "{saved} of 5000 entries were saved: {}", repaired.out);
    for key in ["key 00000", "key 02000", "key 03000", "key 04999"] {
        place.works(&["get", "--pool", "q", key]);
    }
}

#[test]
fn benches_run_on_every_kind_and_count_what_each_has_to_do() {
    let place = Place::new();
    for kind in all() {
        let args = ["bench", "--kind", kind.name, "--keys", "500", "--ops", "4000", "--dir", ".", "--json"];
        let said = json(&place.works(&[&args[..], &["--threads", "2"]].concat()));
        assert!(said["ops_per_second"].as_f64().unwrap() > 0.0, "{said}");
        let fences = said["fences_per_op"].as_f64().unwrap();
        match kind.durability {
            // Half of the operations are updates.
            Durability::Strict => assert!((0.45..1.6).contains(&fences), "{}: {fences}", kind.name),
            _ => assert!(fences < 0.05 && said["checkpoints"]["count"].as_u64().is_some(), "{}: {fences}", kind.name),
        }
        let scans = place.durix(&[&args[..], &["--workload", "e"]].concat());
        assert_eq!(scans.code, if kind.ordered { 0 } else { 2 }, "{}", scans.err);
    }
    place.fails(&["bench", "--kind", "hash", "--value-bytes", "100"], 2, "hash does not take values of 100 bytes");
    place.fails(&["bench", "--kind", "list", "--keys", "5000"], 2, "list is meant for 1000 keys at most");
    place.fails(&["torture", "list", "--keys", "5000"], 2, "list is meant for 1000 keys at most, not 5000");
}

/// With `DURIX_BLESS=1` the tables are written to the page instead.
#[test]
fn the_guide_has_the_tables_that_the_command_prints() {
    let page = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/guide/which-kind.md");
    let mut text = std::fs::read_to_string(&page).unwrap();
    let printed = Place::new().works(&["kinds", "--markdown"]);
    let [limits, place, figures]: [&str; 3] = printed.trim_end().split("\n\n").collect::<Vec<_>>().try_into().unwrap();
    for (head, printed) in [("| kind | keys |", limits), ("Measured on ", place), ("| kind | insert ns |", figures)] {
        let start = text.find(head).unwrap_or_else(|| panic!("the guide has no {head:?}"));
        let end = start + text[start..].find("\n\n").unwrap();
        if std::env::var_os("DURIX_BLESS").is_some() {
            text.replace_range(start..end, printed);
        } else {
            assert_eq!(&text[start..end], printed, "run this test with DURIX_BLESS=1");
        }
    }
    if std::env::var_os("DURIX_BLESS").is_some() {
        std::fs::write(&page, text).unwrap();
    }
}

#[test]
fn each_kind_that_is_offered_was_measured() {
    let place = Place::new();
    let said = json(&place.works(&["kinds", "--all", "--json"]));
    assert!(["date", "machine", "command"].iter().all(|name| said["measured"][*name].is_string()), "{said}");
    for kind in said["kinds"].as_array().unwrap() {
        let measured = &kind["measured"];
        assert_eq!(measured.is_null(), kind["experimental"] == true, "ci/measure-kinds.sh measures them: {kind}");
        if measured.is_null() {
            continue;
        }
        let positive = ["insert_ns", "get_ns", "put_ns", "recovery_ms", "bytes_per_key"];
        assert!(positive.iter().all(|name| measured[*name].as_f64().unwrap() > 0.0), "{kind}");
        assert_eq!(measured["scan_ns_per_entry"].is_number(), kind["ordered"] == true, "{kind}");
        // Kinds that are durable on return have a fence for each put, at least.
        let fences = measured["put_fences"].as_f64().unwrap();
        assert_eq!(fences >= 1.0, kind["durable"] == "on return", "{kind}");
    }
    let figures = place.works(&["kinds"]);
    assert!(figures.contains("insert ns") && figures.contains("durix bench --keys-from FILE"), "{figures}");
}

#[test]
fn experimental_kinds_are_not_offered_and_can_be_had_by_name() {
    let place = Place::new();
    let names = |args: &[&str]| -> Vec<String> {
        let listed = json(&place.works(args));
        listed["kinds"].as_array().unwrap().iter().map(|kind| kind["kind"].as_str().unwrap().to_owned()).collect()
    };
    let (offered, known) = (names(&["kinds", "--json"]), names(&["kinds", "--all", "--json"]));
    assert_eq!(known, all().iter().map(|kind| kind.name).collect::<Vec<_>>());
    let table = place.works(&["kinds"]);
    let lists = |text: &str, name: &str| text.lines().any(|line| line.split_whitespace().next() == Some(name));
    for kind in all() {
        assert_eq!(offered.contains(&kind.name.to_owned()), !kind.experimental, "{}", kind.name);
        assert_eq!(lists(&table, kind.name), !kind.experimental, "{}", kind.name);
    }
    assert!(all().iter().any(|kind| kind.experimental));
    assert!([durix::kind::DEFAULT, durix::kind::DEFAULT_ORDERED].iter().all(|name| offered.contains(&(*name).into())));
    load(&place, "p", "skiplist-rebuilt", &numbers(10));
    assert_eq!(place.works(&["scan", "--pool", "p", "--limit", "1"]), "0\t0\n");
    place.fails(&["load", "--pool", "q", "--kind", "btree"], 2, &format!("there are: {}", offered.join(", ")));
}
