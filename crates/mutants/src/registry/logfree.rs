//! The log-free maps.

use durix_crashsim::Explorer;
use durix_logfree::{BlobHash, Bst, BytesHash, HashTable, List, SkipList, SoftHash, SoftList, SoftSkipList};
use durix_pmem::{Mutation, Plan};

use crate::scenario::{Interleaved, Of, Scenario};
use crate::sweep::{Equivalent, Structure};
use durix_logfree::testing::Act::{self, Aside, Cas, Grow, Insert, Killed, Other, Remove, Update};
use durix_logfree::testing::{
    Map, Sim, UnderTest, Window, behind_a_resolved_tower, behind_a_rising_tower, upper_levels,
};

fn after() -> Vec<Act> {
    vec![Insert(1, 90), Remove(0), Insert(0, 91), Update(1, 92), Insert(5, 93), Remove(1), Insert(6, 94)]
}

fn inserts(keys: std::ops::Range<u64>) -> Vec<Act> {
    keys.map(|k| Insert(k, k + 100)).collect()
}

fn killed(act: Act, fence: u64, happens: bool) -> Act {
    Killed(Box::new(act), fence, happens)
}

fn other(act: Act) -> Act {
    Other(Box::new(act))
}

/// A map, with what is there before.
fn with<S: Map<Sim>>(plan: &'static Plan, before: &[Act]) -> UnderTest<S> {
    UnderTest { before: before.to_vec(), ..UnderTest::new(plan) }
}

fn explorer() -> Explorer {
    Explorer::new().executions_per_point(200).samples(60)
}

fn scenario<S: Map<Sim> + 'static>(name: &str, before: &[Act], acts: &[Act]) -> Of<UnderTest<S>> {
    let before = before.to_vec();
    Of::new(name, move |plan| with::<S>(plan, &before), acts).with(explorer()).after(&after())
}

/// Runs that reach the sites of the maps with durable links, a few operations each.
fn durable_links<S: Map<Sim> + 'static>() -> Vec<Box<dyn Scenario>> {
    let of = scenario::<S>;
    // What lies in chunks that others have had.
    let space = |name, make: fn(&'static Plan) -> UnderTest<S>| {
        Of::new(name, make, &[Insert(0, 1), Insert(1, 2)]).with(explorer()).after(&after()).boxed()
    };
    let two = [Insert(0, 1), Insert(1, 2)];
    // Nodes of several pages go, after a process has died: the table is trimmed with free nodes in it.
    let sparse =
        [inserts(10..25), vec![killed(Insert(9, 9), 1, false)], [10, 11, 13, 14, 16, 17, 19, 20].map(Remove).to_vec()];
    let reopened = [inserts(10..16), vec![killed(Insert(9, 9), 1, false)]].concat();
    let [insert, remove, update] = S::last_fences();
    // A remove has those fences right after the map was opened, an update after an insert that follows opening.
    let dying = [
        vec![killed(Insert(1, 10), insert, true), Insert(2, 20)],
        vec![
            killed(Insert(1, 10), insert, true),
            killed(Remove(1), remove, true),
            Insert(2, 20),
            killed(Update(2, 21), update, true),
            Insert(3, 30),
        ],
    ];
    // The bypass is visible, and not written back when the process dies.
    let (pair, bypass) = ([Insert(1, 10), Insert(2, 20)], killed(Insert(3, 30), 1, false));
    // The same in an inactive page; and a removal that only the link past its node makes durable.
    let inactive = |key| [Remove(key), bypass.clone(), Insert(4, 40), Remove(12)];
    let removal = |key| [killed(Remove(key), 1, true), Insert(0, 40), Insert(5, 50)];
    let mut all: Vec<Box<dyn Scenario>> = vec![
        of("process death after a bypass in an inactive page", &reopened, &inactive(10)).boxed(),
        of("the same, of the last in an inactive page", &reopened, &inactive(15)).boxed(),
        of("process death at a removal", &pair, &removal(1)).boxed(),
        of("process death at the removal of the last", &pair, &removal(2)).boxed(),
        of("first operations", &[], &[Insert(0, 1), Remove(0), Insert(1, 2)]).nested().boxed(),
        of("first update", &[Insert(1, 2)], &[Update(1, 3)]).nested().boxed(),
        of("creation", &[], &[Aside, Insert(0, 1)]).boxed(),
        of("reuse", &two, &[Remove(0), Remove(1), Insert(2, 3), Insert(3, 4)]).boxed(),
        of("updates", &[Insert(0, 1)], &[Update(0, 2), Cas(0, 2, 3), Remove(0)]).boxed(),
        space("used space", |plan| UnderTest { used_before: true, ..UnderTest::new(plan) }),
        space("filled space", |plan| UnderTest { filled_before: true, ..UnderTest::new(plan) }),
        of("trimming", &inserts(10..22), &[Insert(0, 1), Remove(10), Insert(1, 2), Remove(11), Insert(2, 3)]).boxed(),
        of("trimming free nodes", &sparse.concat(), &[Remove(22), Insert(0, 1), Insert(1, 2), other(Insert(2, 2))])
            .boxed(),
        of("second session", &[Insert(0, 1)], &[other(Insert(1, 2)), other(Remove(0)), Remove(1)]).boxed(),
        of("unlink in an inactive page", &reopened, &[Remove(10), Remove(13), Insert(0, 1), Insert(1, 2)]).boxed(),
        of("a second extent", &inserts(10..57), &[Insert(0, 1), Insert(1, 2)]).boxed(),
        of("process death after a bypass", &pair, &[Remove(1), bypass.clone(), Insert(4, 40)]).boxed(),
        of("the same, of the last", &pair, &[Remove(2), bypass.clone(), Insert(0, 40)]).boxed(),
    ];
    all.extend(dying.iter().map(|acts| of("process death", &[Insert(30, 1)], acts).boxed()));
    all
}

fn links<S: Map<Sim> + 'static>(name: &'static str) -> Structure {
    let scenarios = durable_links::<S>();
    Structure { name, files: &["crates/logfree/src/"], releases: false, scenarios, equivalent: &[] }
}

fn hash_table() -> Structure {
    let mut table = links::<HashTable<Sim>>("HashTable");
    let put = |k: u64| Insert(k, k + 100);
    // One bucket at first. By halves, in the order of the table: 3, 31, 22 | 8, 9.
    let some = [22, 3, 8].map(put);
    let grown = [&some[..], &[Grow]].concat();
    let dead = |fence| vec![killed(Grow, fence, false), Remove(22), put(9), Remove(3), put(31)];
    let of = |name: &str, before: &[Act], acts: &[Act], (used_before, filled_before): (bool, bool)| {
        let before = before.to_vec();
        let make = move |plan| {
            let options = HashTable::<Sim>::small().buckets(1);
            let under_test = with::<HashTable<Sim>>(plan, &before);
            UnderTest { options, chunks: 10, used_before, filled_before, ..under_test }
        };
        let after = [put(12), Remove(22), put(22), Remove(0), Grow, put(0)];
        Of::new(name, make, acts).with(explorer()).after(&after)
    };
    let new = (false, false);
    table.scenarios.extend([
        of("growth", &some, &[Grow, Remove(22), put(0)], new).nested().boxed(),
        of("growth in used space", &some, &[Grow, put(0)], (true, false)).boxed(),
        of("creation in filled space", &[], &[Aside, put(0)], (false, true)).boxed(),
        of("growth in filled space", &some, &[Grow, put(0)], (false, true)).boxed(),
        of("growth for the second time", &grown, &[put(0), Grow, put(2), put(9)], new).boxed(),
        of("growth, death before the extent", &some, &dead(2), new).boxed(),
        of("growth, death before the directory", &some, &dead(3), new).boxed(),
        // No page is active, so recovery has no fence but the last.
        of("growth of an empty table, death before the directory", &[], &[killed(Grow, 3, false), put(9), put(0)], new)
            .boxed(),
        of("growth, death before the cut", &some, &dead(4), new).boxed(),
        of("growth, death before the new head", &some, &dead(5), new).boxed(),
    ]);
    table
}

const THAWED: [Equivalent; 1] = [Equivalent {
    file: "logfree/src/linked/bst/thaw.rs",
    line: "op.write_back(word)",
    mutation: Mutation::Delay,
    reason: "one fence later is early enough: the thread that recovers a page has the fence of N9 to come, before which nothing rests on a thawed edge",
}];

fn bst() -> Structure {
    let mut bst = Structure { equivalent: &THAWED, ..links::<Bst<Sim>>("Bst") };
    // Thawed edges are durable before the table of active pages is emptied. Where words tear, one edge of a branch may be
    // found frozen, and the other with its leaf. The page is full, and no search for another of its branches comes by this one.
    let before = [Insert(1, 1), Insert(5, 2), Remove(5), Insert(7, 3)];
    let make = move |plan| UnderTest { fence_after_recovery: true, ..with::<Bst<Sim>>(plan, &before) };
    let thawing = Of::new("thawing", make, &[Remove(7)]).after(&[Insert(6, 90)]);
    bst.scenarios.push(thawing.torn().boxed());
    bst
}

fn skip_list() -> Structure {
    type S = SkipList<Sim>;
    let mut skip_list = links::<S>("SkipList");
    let windows = upper_levels().into_iter().map(|Window { name, filled, before, acts, after: follows }| {
        let make = move |plan| UnderTest { filled_before: filled, ..with::<S>(plan, &before) };
        match follows {
            None => Of::new(name, make, &acts).with(explorer()).after(&after()).boxed(),
            Some(follows) => Of::new(name, make, &acts).after(&follows).later().boxed(),
        }
    });
    skip_list.scenarios.extend(windows);
    let mut interleave = |name, before: Vec<Act>, program: &[Vec<Act>]| {
        let make = move |plan| with::<S>(plan, &before);
        skip_list.scenarios.push(Interleaved::new(name, make, program, &[]).boxed());
    };
    let (before, program) = behind_a_rising_tower();
    interleave("behind a tower that rises", before, &program);
    for (name, before, program) in behind_a_resolved_tower() {
        interleave(name, before, &program);
    }
    skip_list
}

/// What lies under maps of byte strings.
fn records<S: Map<Sim> + 'static>(name: &'static str) -> Structure {
    let of = scenario::<S>;
    let pages = |values: u64| (10..10 + values).map(|k| Insert(k, k * 4)).collect::<Vec<_>>();
    let reopen = killed(Insert(9, 8), 1, false);
    let reopened = [pages(6), vec![Insert(20, 3), reopen.clone()]].concat();
    // Free units of several pages when the table is trimmed.
    let sparse = [pages(12), vec![reopen], [10, 11, 13, 14, 16, 17, 19, 20].map(Remove).to_vec()].concat();
    let used = |plan| UnderTest::<S> { used_before: true, chunks: S::chunks() + 4, ..UnderTest::new(plan) };
    let filled = |plan| UnderTest::<S> { filled_before: true, ..UnderTest::new(plan) };
    let space = |name, make: fn(&'static Plan) -> UnderTest<S>| {
        Of::new(name, make, &[Insert(0, 4), Insert(1, 6)]).with(explorer()).after(&after()).boxed()
    };
    let death = [killed(Update(1, 10), 1, false), Insert(2, 4), Update(1, 7)];
    let scenarios = vec![
        of("first records", &[], &[Insert(0, 4), Insert(1, 5)]).nested().boxed(),
        of("parts", &[Insert(0, 4)], &[Insert(1, 7), Remove(1)]).boxed(),
        of("updates", &[Insert(0, 4)], &[Update(0, 6), Cas(0, 6, 8), Remove(0)]).boxed(),
        space("used space", used),
        space("filled space", filled),
        of("pages of a session before", &reopened, &[Remove(10), Insert(0, 4), Update(20, 8)]).boxed(),
        of("reuse", &[Insert(0, 4), Insert(1, 8)], &[Remove(0), Remove(1), Insert(2, 12), Insert(3, 16)]).boxed(),
        of("trimming", &sparse, &[Remove(21), Insert(0, 4), Insert(1, 7), other(Insert(2, 8))]).boxed(),
        of("process death", &[Insert(0, 4), Insert(1, 6)], &death).boxed(),
    ];
    let files = &["crates/logfree/src/records/", "crates/logfree/src/pages/units/"];
    Structure { name, files, releases: false, scenarios, equivalent: &[] }
}

fn soft<S: Map<Sim> + 'static>(name: &'static str) -> Structure {
    let full: Vec<Act> = (10..74).map(|k| Insert(k, k)).collect();
    let of = |name: &str, before: &[Act], acts: &[Act]| {
        let before = before.to_vec();
        let make = move |plan| UnderTest::<S> { chunks: 3, ..with(plan, &before) };
        Of::new(name, make, acts).with(explorer()).after(&after())
    };
    let used = |plan| UnderTest::<S> { chunks: 3, used_before: true, ..UnderTest::new(plan) };
    let shared = |plan| UnderTest::<S> { chunk: 8192, used_before: true, ..UnderTest::new(plan) };
    let scenarios = vec![
        of("reuse", &[Insert(0, 1)], &[Remove(0), Insert(1, 2), Remove(1), Insert(2, 3)]).boxed(),
        of("updates", &[Insert(0, 1)], &[Update(0, 2), Cas(0, 2, 3), Remove(0), Insert(0, 6)]).boxed(),
        of("creation", &[], &[Aside, Insert(0, 1)]).nested().boxed(),
        Of::new("used space", used, &[Insert(0, 1), Insert(1, 2), Remove(0)]).with(explorer()).after(&after()).boxed(),
        of("a second extent", &full, &[Insert(0, 1), Remove(10), Insert(1, 2)]).boxed(),
        of("two sessions", &[Insert(0, 1)], &[other(Insert(1, 2)), other(Remove(0)), Remove(1)]).boxed(),
        of("death in a remove", &[Insert(9, 9), Insert(0, 1)], &[killed(Remove(0), 1, true), Insert(0, 4)]).boxed(),
        of("death in an update", &[Insert(9, 9), Insert(0, 1)], &[killed(Update(0, 2), 1, true), Update(0, 3)]).boxed(),
        of("death in a full extent", &full[..63], &[killed(Insert(0, 1), 1, true), Remove(10)]).boxed(),
        // An extent that one session has added is used by another, whose fence does not cover it.
        Interleaved::new("a shared extent", shared, &[vec![Insert(0, 1)], vec![Insert(1, 2)]], &[]).boxed(),
    ];
    Structure { name, files: &["crates/logfree/src/soft/"], releases: false, scenarios, equivalent: &[] }
}

/// All of them.
pub(super) fn all() -> Vec<Structure> {
    vec![
        links::<List<Sim>>("List"),
        hash_table(),
        bst(),
        skip_list(),
        records::<BlobHash<Sim>>("BlobHash"),
        records::<BytesHash<Sim>>("BytesHash"),
        soft::<SoftHash<Sim>>("SoftHash"),
        soft::<SoftList<Sim>>("SoftList"),
        soft::<SoftSkipList<Sim>>("SoftSkipList"),
    ]
}
