//! Torture, and its self-test.

mod common;

use common::Place;

fn json(text: &str) -> serde_json::Value {
    serde_json::from_str(text).unwrap_or_else(|error| panic!("{error}: {text}"))
}

/// Tortures without a loss until each of `wanted` has been counted so often. How much a child does before its kill depends
/// on the machine, so that one run may do too little; twenty runs that do are a defect.
fn until(place: &Place, args: &[&str], wanted: &[(&str, u64)]) {
    let mut counted = vec![0; wanted.len()];
    for _ in 0..20 {
        let said = json(&place.works(args));
        assert_eq!(said["lost"], false, "{args:?}: {said}");
        for (counted, (what, _)) in counted.iter_mut().zip(wanted) {
            *counted += said[what].as_u64().unwrap();
        }
        if counted.iter().zip(wanted).all(|(counted, (_, at_least))| counted >= at_least) {
            return;
        }
    }
    panic!("{args:?}: twenty runs counted {counted:?}, not {wanted:?}");
}

#[test]
fn nothing_acknowledged_is_lost() {
    let place = Place::new();
    let rounds = if std::env::var_os("DURIX_DEEP").is_some() { "500" } else { "40" };
    for (medium, threads) in [("shadow", "4"), ("hardware", "2")] {
        let args =
            ["torture", "pset", "--rounds", rounds, "--medium", medium, "--threads", threads, "--dir", ".", "--json"];
        let kills = rounds.parse().unwrap();
        until(&place, &args, &[("kills", kills), ("acknowledged", 1000), ("kills_in_recovery", 1)]);
    }
    assert_eq!(std::fs::read_dir(place.dir.path()).unwrap().count(), 0, "a torture that lost nothing leaves nothing");
}

#[test]
fn nothing_promised_is_lost_by_any_kind() {
    let place = Place::new();
    let rounds = if std::env::var_os("DURIX_DEEP").is_some() { "500" } else { "10" };
    for kind in durix::kind::kinds::<durix::Hardware>() {
        let args = ["torture", kind.name, "--rounds", rounds, "--threads", "4", "--dir", ".", "--json"];
        until(&place, &args, &[("acknowledged", 1000)]);
    }
    assert_eq!(std::fs::read_dir(place.dir.path()).unwrap().count(), 0, "a torture that lost nothing leaves nothing");
}

/// The pool is full from the first insert on, and merges, splits and growth find no room.
#[test]
fn nothing_promised_is_lost_in_a_full_pool() {
    let place = Place::new();
    let is_deep = std::env::var_os("DURIX_DEEP").is_some();
    let rounds = if is_deep { "500" } else { "4" };
    for kind in durix::kind::offered::<durix::Hardware>() {
        let is_quick = ["pset", "bplustree", "bst", "dptree"].contains(&kind.name);
        if kind.durability != durix::Durability::Strict || !(is_quick || is_deep) {
            continue;
        }
        let args = ["torture", kind.name, "--rounds", rounds, "--threads", "4", "--dir", ".", "--json"];
        let args = [&args[..], &["--keys", "100000", "--max-size", "2000000"]].concat();
        until(&place, &args, &[("refused", 4)]);
    }
    let ended = place.durix(&["torture", "masstree", "--max-size", "2000000", "--dir", "."]);
    assert!(ended.code != 0 && ended.err.contains("strict kinds"), "{}", ended.err);
    assert_eq!(std::fs::read_dir(place.dir.path()).unwrap().count(), 0, "a torture that lost nothing leaves nothing");
}

#[test]
fn a_fence_left_out_is_found_within_fifty_rounds_in_every_kind() {
    let place = Place::new();
    for kind in durix::kind::kinds::<durix::Hardware>() {
        let args = ["torture", kind.name, "--rounds", "50", "--threads", "4", "--plant", "--dir", "."];
        let ended = place.durix(&args);
        assert_eq!(ended.code, 1, "{}: {}{}", kind.name, ended.out, ended.err);
        assert!(ended.out.starts_with("LOST in round "), "{}: {}", kind.name, ended.out);
        let pool = ended.out.lines().find_map(|line| line.trim().strip_prefix("pool")).unwrap();
        let pool = std::path::Path::new(pool.trim().split(" (").next().unwrap());
        std::fs::remove_dir_all(place.dir.path().join(pool.parent().unwrap())).unwrap();
    }
}

#[test]
fn a_set_without_its_fence_is_found_out_within_fifty_rounds() {
    let place = Place::new();
    let ended = place.durix(&["torture", "pset", "--rounds", "50", "--plant", "--seed", "11", "--dir", "."]);
    assert_eq!(ended.code, 1, "{}{}", ended.out, ended.err);
    for part in ["LOST in round", "seed    11", "again   durix torture pset --rounds", "--seed 11", "--plant"] {
        assert!(ended.out.contains(part), "{part:?} is not in {}", ended.out);
    }
    let lost = ended.out.lines().next().unwrap();
    // What is met first: an own key of a thread, one of all threads, or the structure.
    let words = ["promised", "removed, or never written", "of all threads", "check"];
    assert!(words.iter().any(|words| lost.contains(words)), "{lost}");
    // What was lost can be looked at.
    let pool = ended.out.lines().find_map(|line| line.trim().strip_prefix("pool")).unwrap();
    let pool = pool.trim().split(" (").next().unwrap();
    assert!(place.works(&["stat", "--pool", pool]).contains("tortured"));
}

#[test]
fn growth_and_many_keys_are_reached() {
    let place = Place::new();
    let args = ["torture", "pset", "--rounds", "4", "--keys", "60000", "--seed", "2", "--dir", ".", "--json"];
    let said = json(&place.works(&args));
    assert_eq!((&said["lost"], &said["largest_keys"]), (&false.into(), &60_000.into()));
}

#[test]
fn nothing_promised_is_lost_on_a_pool_with_a_journal() {
    let place = Place::new();
    let is_deep = std::env::var_os("DURIX_DEEP").is_some();
    let (rounds, mut all) = (if is_deep { "500" } else { "6" }, vec!["pset", "masstree", "transactions"]);
    if is_deep {
        let kinds = durix::kind::kinds::<durix::Hardware>();
        all.extend(kinds.iter().map(|kind| kind.name).filter(|name| !["pset", "masstree"].contains(name)));
    }
    for what in all {
        for level in ["immediate", "interval=5ms"] {
            let args = ["torture", what, "--rounds", rounds, "--threads", "3", "--durability", level, "--dir", "."];
            let said = json(&place.works(&[&args[..], &["--json"]].concat()));
            assert_eq!(said["lost"], false, "{what}, {level}: {said}");
            assert!(said["kills"].as_u64().unwrap() >= rounds.parse().unwrap(), "{said}");
        }
    }
    assert_eq!(std::fs::read_dir(place.dir.path()).unwrap().count(), 0, "a torture that lost nothing leaves nothing");
}

#[test]
fn transactions_keep_every_sum() {
    let place = Place::new();
    let rounds = if std::env::var_os("DURIX_DEEP").is_some() { "500" } else { "40" };
    let said =
        json(&place.works(&["torture", "transactions", "--rounds", rounds, "--threads", "4", "--dir", ".", "--json"]));
    assert_eq!(said["lost"], false, "{said}");
    assert!(said["kills"].as_u64().unwrap() >= rounds.parse().unwrap(), "{said}");
    assert_eq!(std::fs::read_dir(place.dir.path()).unwrap().count(), 0, "a torture that lost nothing leaves nothing");
}

#[test]
fn intents_that_are_not_written_back_are_found_out() {
    let place = Place::new();
    let ended = place.durix(&["torture", "transactions", "--rounds", "200", "--threads", "4", "--plant", "--dir", "."]);
    assert_eq!(ended.code, 1, "{}{}", ended.out, ended.err);
    assert!(ended.out.starts_with("LOST in round "), "{}", ended.out);
}
