//! Every crash state of short sequences of operations on a durable tree, under the buffered contract: what comes back is
//! the tree of some boundary, no older than the last one, with every block reached exactly once. With `DURIX_DEEP` set,
//! sequences are longer.

mod interior;
mod threads;

use durix_crashsim::{Contract, Explorer, Report, Sites, mutation_sweeps};
use durix_incll::testing::{scenarios, subject};
use durix_incll::{BareOptions, Masstree};
use durix_pmem::epoch::layout::LAST_EPOCH;
use durix_pmem::{Hardware, Mapping, Plan, SiteKind};
use durix_subjects::explored::{complete, deep};
use scenarios::{after, below_the_root, puts, scenarios};
use subject::Act::{self, *};
use subject::Tested;

fn explorer() -> Explorer {
    Explorer::new().contract(Contract::Buffered)
}

/// Windows of the sweep take it a slab at a time.
fn tested(name: &str, plan: &'static Plan, before: Vec<Act>) -> Tested {
    Tested { sweep_step: if name.starts_with('W') { 1 } else { 2048 }, ..Tested::new(plan, before) }
}

fn run(explorer: &Explorer, plan: &'static Plan, names: &str) -> Report {
    let mut total = Report::default();
    for (name, before, acts) in scenarios().into_iter().filter(|(name, ..)| name.contains(names)) {
        let start = std::time::Instant::now();
        let report = explorer.run_then(&tested(name, plan, before), &acts, &after());
        if std::env::var_os("DURIX_VERBOSE").is_some() {
            println!("{name}: {:?} {report}", start.elapsed());
        }
        total.merge(report);
        if total.failure.is_some() {
            break;
        }
    }
    total
}

#[test]
fn every_window_comes_back_whole() {
    complete("windows", run(&explorer(), Plan::new(), ""));
}

#[test]
fn an_interior_node_below_the_root_splits() {
    let (before, acts) = below_the_root();
    println!("{}", explorer().run_then(&Tested::new(Plan::new(), before), &acts, &after()).assert_ok());
}

#[test]
fn scenarios_of_interior_nodes_split_them() {
    let name = "an interior root splits";
    let (_, before, acts) = scenarios().into_iter().find(|(found, ..)| *found == name).unwrap();
    for (name, (before, acts), interiors) in [(name, (before, acts), [1, 3]), ("below it", below_the_root(), [3, 4])] {
        let mapping = Mapping::heap(64 << 10, Hardware::PAGE_CACHE);
        let mut session = mapping.session().unwrap();
        let tree = Masstree::open_bare(&mut session, &mapping, BareOptions::default().chunk(4096)).unwrap();
        let op = session.enter().unwrap();
        let put = |act: &Act| match act {
            Put(k, v) => tree.insert(&op, &subject::key(*k), &subject::value(*v)).unwrap(),
            other => panic!("{other:?}"),
        };
        before.iter().for_each(|act| _ = put(act));
        assert_eq!(tree.shape(&op).unwrap().interiors, interiors[0], "{name}");
        put(&acts[0]);
        assert_eq!(tree.shape(&op).unwrap().interiors, interiors[1], "{name}");
    }
}

fn sequences(name: &str, before: Vec<Act>, alphabet: &[Act], crashes: usize) {
    let len = if deep() { 4 } else { 3 };
    let tested = Tested::new(Plan::new(), before);
    complete(name, explorer().crashes(crashes).sequences(&tested, alphabet, len, &after()));
}

#[test]
fn all_short_sequences_in_one_node() {
    let alphabet = [Put(0, 2), Put(0, 3), Remove(0), Put(1, 2), Remove(10), Sync];
    sequences("one node", puts([0, 10, 20].into_iter(), 1), &alphabet, 1);
}

#[test]
fn all_short_sequences_with_records_and_restarts() {
    let alphabet = [Put(0, 102), Remove(0), Put(1, 103), Sync, Restart];
    sequences("records", vec![Put(0, 101)], &alphabet, 1);
}

#[test]
fn all_short_sequences_with_layers() {
    let alphabet = [Put(200, 2), Put(201, 103), Remove(200), Sync];
    sequences("layers", vec![Put(200, 101)], &alphabet, 1);
}

#[test]
fn crashes_in_recovery_change_nothing() {
    let explorer = explorer().crashes(2);
    for names in ["P1 P2", "a restart undoes", "a record", "a layer goes", "merely read"] {
        complete(names, run(&explorer, Plan::new(), names));
    }
    let full = puts(0..14, 1);
    let tested = Tested::new(Plan::new(), full);
    let report = explorer.run_then(&tested, &[Put(0, 2), Put(1, 3), Restart, Put(0, 4)], &[Put(2, 5)]).assert_ok();
    println!("external log: {report}");
}

#[test]
fn caches_that_survive_change_nothing() {
    let explorer = explorer().model(durix_crashsim::Persistency::Eadr);
    complete("eADR", run(&explorer, Plan::new(), ""));
}

#[test]
fn a_crash_in_creation_leaves_nothing_or_an_empty_tree() {
    let tested = Tested::new(Plan::new(), vec![]);
    complete("creation", explorer().crash_in_create(true).run_then(&tested, &[Put(0, 1)], &after()));
}

#[test]
fn epochs_of_forty_bits() {
    for first_epoch in [0xfffe, 0xffff_fffe, (1 << 39) - 1] {
        let tested = Tested { first_epoch, ..Tested::new(Plan::new(), puts(0..14, 101)) };
        let acts = [Put(0, 2), Sync, Put(1, 3), Sync, Remove(2), Restart, Put(3, 4), Sync, Put(4, 5)];
        complete("large epochs", explorer().run_then(&tested, &acts, &after()));
    }
}

/// A stamp has six bits for the round: what changes behind the last round of an epoch is left to its boundary.
#[test]
fn more_rounds_than_an_epoch_has() {
    let early = [Put(0, 2)].into_iter().chain(std::iter::repeat_n(Ahead, 61));
    let around = [Put(1, 3), Ahead, Put(0, 3), Ahead, Remove(2), Ahead, Put(3, 102), Ahead, Put(0, 5)];
    let behind = [Sync, Put(0, 4), Ahead, Put(1, 5), Sync];
    let acts: Vec<_> = early.chain(around).chain(behind).collect();
    complete("rounds", explorer().run_then(&Tested::new(Plan::new(), puts(0..6, 1)), &acts, &after()));
}

/// The last boundary is crossed; what was done before it stays, whatever comes behind.
#[test]
fn the_last_of_all_epochs() {
    for (from_end, syncs) in [(0, 0), (1, 1), (2, 2)] {
        let tested = Tested { first_epoch: LAST_EPOCH - 1 - from_end, ..Tested::new(Plan::new(), puts(0..14, 101)) };
        let acts: Vec<_> = (0..syncs).flat_map(|n| [Put(0, n + 2), Sync]).chain([Put(1, 9), Remove(2)]).collect();
        let after = [Get(0), Restart, Get(1), Put(3, 4), Restart];
        complete("the last epochs", explorer().run_then(&tested, &acts, &after));
    }
}

/// The places in the source right behind a comment that holds `words`, as the sweep names them.
fn marked(words: &str) -> Vec<String> {
    let files = [
        ("src/node/lock.rs", include_str!("../../src/node/lock.rs")),
        ("src/ops/update.rs", include_str!("../../src/ops/update.rs")),
    ];
    let lines = |(file, text): (&str, &str)| {
        let marked = text.lines().enumerate().filter(|(_, line)| line.contains(words));
        marked.map(|(number, _)| format!("{file}:{}", number + 2)).collect::<Vec<_>>()
    };
    files.into_iter().flat_map(lines).collect()
}

/// The windows, with a smaller budget for each crash point.
fn quick(plan: &'static Plan) -> Report {
    let explorer = explorer().executions_per_point(400).samples(60);
    let mut total = Report::default();
    let creation = Tested::new(plan, vec![]);
    total.merge(explorer.clone().crash_in_create(true).run_then(&creation, &[Put(0, 1)], &after()));
    for (name, before, acts) in scenarios().into_iter().filter(|(name, ..)| *name != "an interior root splits") {
        if total.failure.is_some() {
            break;
        }
        total.merge(explorer.run_then(&tested(name, plan, before), &acts, &after()));
    }
    total
}

#[test]
fn every_write_back_fence_and_order_of_stores_is_needed() {
    let calls = Sites::in_files("crates/incll/src/");
    let orders = Sites { kinds: vec![SiteKind::Order, SiteKind::Release], ..calls.clone() };
    let volatile = marked("elease for other threads alone");
    // The scenarios run once for both.
    for (sweep, except) in mutation_sweeps([&calls, &orders], quick).into_iter().zip([Vec::new(), volatile]) {
        println!("{}", sweep.assert_all_caught(&except.iter().map(String::as_str).collect::<Vec<_>>()));
    }
}

#[test]
fn a_block_freed_before_its_slab_was_read_is_not_given_out_twice() {
    let tested = Tested::new(Plan::new(), vec![Put(0, 101)]);
    complete("double", explorer().run_then(&tested, &[Restart, Put(0, 7), Put(60, 107), Sync, Put(0, 108)], &after()));
}
