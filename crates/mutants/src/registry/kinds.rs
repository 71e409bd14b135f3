//! Every kind of index whose crate has no scenarios of its own, and does not sweep itself: swept with operations that any kind
//! has. A kind comes here by being registered.

use std::collections::BTreeMap;

use durix::kind::{self, Entry};
use durix_kindtests::Act::{self, Apply, Other, Put, PutNew, Remove, Reopen, Swap, Sync, Update};
use durix_kindtests::{Kind, M, kinds};
use durix_pmem::backing::HeapBacking;
use durix_pmem::{Hardware, PoolOptions};

use crate::scenario::{Interleaved, Of, Scenario};
use crate::sweep::Structure;

/// Crates whose crash tests sweep all of their sites, with operations that reach splits and merges.
const SWEEP_THEMSELVES: [&str; 2] = ["crates/bplustree/src/", "crates/dptree/src/"];

/// The crates with kinds of index that none of `own` covers.
pub(super) fn others(own: &[Structure]) -> Vec<Structure> {
    let mut crates: BTreeMap<&'static str, Vec<Entry<M>>> = BTreeMap::new();
    for entry in kinds() {
        let sources = sources(entry.source);
        let mut files = own.iter().flat_map(|structure| structure.files);
        let is_covered = files.any(|file| sources.contains(file) || file.contains(sources));
        if !is_covered && !SWEEP_THEMSELVES.contains(&sources) {
            crates.entry(sources).or_default().push(entry);
        }
    }
    crates.into_iter().map(|(sources, entries)| structure(sources, &entries)).collect()
}

/// The folder of a crate's sources, by the path of a file in it.
fn sources(file: &'static str) -> &'static str {
    const FOLDER: &str = "/src/";
    file.find(FOLDER).map_or(file, |at| &file[..at + FOLDER.len()])
}

fn structure(sources: &'static str, entries: &[Entry<M>]) -> Structure {
    let names: Vec<&str> = entries.iter().map(|entry| entry.name).collect();
    Structure {
        // They live as long as the program.
        name: names.join(", ").leak(),
        files: vec![sources].leak(),
        releases: false,
        scenarios: entries.iter().flat_map(|entry| scenarios(*entry)).collect(),
        equivalent: &[],
    }
}

/// Operations that any kind has, so that each of its calls is made on a new index, on a small one and on one that has grown,
/// by one session and by two, before a crash, after it, and in the recovery between.
fn scenarios(entry: Entry<M>) -> Vec<Box<dyn Scenario>> {
    let scenario = |name: &str, before: &[Act], acts: &[Act]| {
        let before = before.to_vec();
        let explorer = Kind::new(entry, &[]).explorer();
        let make = move |plan| Kind { plan, ..Kind::new(entry, &before) };
        Of::new(format!("{}: {name}", entry.name), make, acts).with(explorer)
    };
    let used = Of::new(
        format!("{}: used space", entry.name),
        move |plan| Kind { plan, used_before: true, ..Kind::new(entry, &[]) },
        &[Put(60, 1), Put(61, 2), Sync],
    );
    let used = used.with(Kind::new(entry, &[]).explorer());
    let few = [Put(3, 1), Put(4, 2), Put(9, 1)];
    let grown: Vec<Act> = (10..34).map(|k| Put(k, k)).collect();
    let after = [Put(4, 7), Remove(3), Put(60, 8), Sync];
    let other = |act| Other(Box::new(act));
    let changes = [(4, Some(3)), (5, Some(4)), (3, None)];
    // Where a crash may leave a part of a batch, only one change can be judged.
    let batch = Apply(changes[..if batches_are_atomic(entry.name) { 3 } else { 1 }].to_vec());
    let threads = [vec![Put(4, 5)], vec![Remove(3), Put(3, 6)]];
    let threads = Interleaved::new(
        format!("{}: two threads", entry.name),
        move |plan| Kind { plan, ..Kind::new(entry, &[Put(3, 1), Put(9, 1)]) },
        &threads,
        &after,
    );
    vec![
        scenario("first operations", &[], &[Put(3, 1), Remove(3), Put(4, 2), Sync]).after(&after).nested().boxed(),
        scenario("changes", &few, &[Update(4, 5), Swap(3, Some(1), Some(6)), PutNew(5, 7), Sync]).after(&after).boxed(),
        scenario("removals", &few, &[Remove(4), Swap(3, Some(1), None), Put(4, 8), Sync]).after(&after).boxed(),
        scenario("a batch", &few, &[batch, Sync, Put(5, 1)]).after(&after).boxed(),
        scenario("two sessions", &few, &[other(Put(5, 1)), Put(4, 9), other(Remove(4)), Sync]).after(&after).boxed(),
        scenario("opened again", &few, &[Put(5, 1), Reopen, Put(6, 2), Sync]).after(&after).boxed(),
        scenario("grown", &grown, &[Put(40, 1), Put(41, 2), Remove(12), Put(42, 3), Sync]).after(&after).boxed(),
        scenario("a death", &few, &[Put(5, 1), Remove(4), Sync]).after(&after).deaths().boxed(),
        used.after(&after).boxed(),
        threads.boxed(),
    ]
}

fn batches_are_atomic(kind: &str) -> bool {
    let options = PoolOptions::new().initial_size(1 << 20).max_size(1 << 20);
    let pool = options.create_on(HeapBacking::new(1 << 20), Hardware::PAGE_CACHE).expect("a pool in memory");
    let entry = kind::named::<Hardware>(kind).expect("one of the kinds");
    entry.open_or_create(&pool, "asked").expect("an empty index").batch_is_atomic()
}
