//! Interior nodes under InCLL, the experiment of section 6.1: all crash states of its windows, each shown to be reached by the
//! number of images in the external log, beside the number that the same takes where interior nodes are always logged.

use durix_crashsim::{Explorer, Report};
use durix_incll::{BareOptions, Durable, InteriorInLine, Masstree, Policy};
use durix_pmem::{Hardware, Mapping, Plan};

use super::scenarios::{after, puts, scenarios};
use super::subject::Act::{self, *};
use super::subject::{self, Tested};
use super::{complete, deep, explorer};

/// Keys apart from each other, put in descending order: all border nodes but the first get seven of them.
fn apart(count: u16) -> Vec<Act> {
    (0..count).rev().map(|n| PutWide(apart_at(n))).collect()
}

fn apart_at(n: u16) -> u16 {
    1000 + 20 * n
}

/// `count` keys behind number `n` of those.
fn behind(n: u16, count: u16) -> impl Iterator<Item = Act> {
    (1..=count).map(move |i| PutWide(apart_at(n) + i))
}

fn remove(numbers: std::ops::Range<u16>) -> Vec<Act> {
    numbers.map(|n| RemoveWide(apart_at(n))).collect()
}

fn all(parts: &[&[Act]]) -> Vec<Act> {
    parts.concat()
}

struct Window {
    name: &'static str,
    before: Vec<Act>,
    acts: Vec<Act>,
    /// Images that the acts write, up to the first restart: with InCLL for interior nodes, and without.
    images: [u64; 2],
    /// Whether all crash states are gone through.
    complete: bool,
}

/// 15 keys of the root are 14 + 15 * 7 keys of the tree; 175 fill the leftmost interior node below the root.
const ROOT_FULL: u16 = 119;
const BELOW_FULL: u16 = 175;

fn windows() -> Vec<Window> {
    // Behind a boundary all of it has to be there: so each line that has changed was noted.
    let window = |name, before, acts: Vec<Act>, images, complete| {
        let acts = acts.into_iter().chain([Sync, PutWide(apart_at(21))]).collect();
        Window { name, before, acts, images, complete }
    };
    // Three border nodes, of 8, 7 and 7 keys.
    let three = apart(22);
    // The second one of them full, and the key that splits it.
    let full = |n| behind(n, 7).collect::<Vec<_>>();
    let split = |n| vec![PutWide(apart_at(n) + 8)];
    let root = apart(ROOT_FULL);
    let below = apart(BELOW_FULL);
    vec![
        window("P1 P2 a separator comes", all(&[&three, &full(10)]), split(10), [1, 2], true),
        window(
            "P1 P2 two separators come in one epoch",
            all(&[&three, &full(10), &full(17)]),
            all(&[&split(17), &split(10)]),
            [2, 3],
            false,
        ),
        window("P1 P2 a separator goes", three.clone(), remove(8..15), [1, 2], true),
        window(
            "P4 a separator goes, then one comes, in one epoch",
            all(&[&three, &full(17), &remove(9..15)]),
            all(&[&remove(8..9), &split(17)]),
            [2, 3],
            false,
        ),
        window(
            "P3 a separator goes from a full node, then one comes",
            all(&[&root, &full(60), &remove(15..21)]),
            all(&[&remove(14..15), &split(60)]),
            [3, 3],
            false,
        ),
        window(
            "a separator comes into the right half of a full node",
            all(&[&below, &full(91)]),
            split(91),
            [1, 3],
            false,
        ),
        window(
            "P3 a separator comes into the left half of a full node",
            all(&[&below, &full(30)]),
            split(30),
            [2, 3],
            false,
        ),
        window(
            "two separators split a node that was not full",
            // One goes, so that the node is not full when the epoch begins.
            all(&[&below, &remove(14..21), &full(91), &full(30)]),
            all(&[&split(91), &split(30)]),
            [2, 4],
            false,
        ),
        window("P3 an interior root splits", all(&[&root, &full(60)]), split(60), [2, 2], false),
        window("P3 the root gets lower", apart(15), remove(0..8), [1, 1], true),
        window(
            "a separator is undone by a restart",
            all(&[&three, &full(10)]),
            all(&[&split(10), &[Restart], &split(10), &[Sync, Restart]]),
            [1, 2],
            true,
        ),
        window(
            "R1 an interior node merely read after a restart",
            all(&[&three, &full(10), &full(17)]),
            all(&[&split(10), &[Sync], &split(17), &[Restart, Get(0), Restart, Get(0)]]),
            [2, 4],
            false,
        ),
        window(
            "the process dies when a separator comes",
            all(&[&three, &full(10)]),
            vec![
                Killed(Box::new(PutWide(apart_at(10) + 8))),
                Other(Box::new(PutWide(apart_at(10) + 9))),
                Other(Box::new(Sync)),
                Put(1, 3),
            ],
            [0, 0],
            true,
        ),
        window(
            "B1 separators on both sides of a round",
            all(&[&three, &full(10), &full(17)]),
            all(&[&split(10), &[Ahead], &split(17), &[Ahead, Sync], &remove(0..1)]),
            [2, 3],
            false,
        ),
    ]
}

fn run(explorer: &Explorer, window: &Window) -> Report {
    let tested = Tested::<InteriorInLine> { len: 128 << 10, ..Tested::of(Plan::new(), window.before.clone()) };
    let start = std::time::Instant::now();
    let report = explorer.run_then(&tested, &window.acts, &after()).assert_ok();
    println!("{}, {:?}: {report}", window.name, start.elapsed());
    assert!(report.complete || !window.complete, "{} is not complete", window.name);
    report
}

#[test]
fn interior_windows_come_back_whole() {
    let [whole, some] = [explorer(), explorer().executions_per_point(400).samples(60)];
    for window in windows() {
        run(if deep() || window.complete { &whole } else { &some }, &window);
    }
}

/// Images that a window takes, before anything restarts.
fn images<P: Policy>(window: &Window) -> u64 {
    let mapping = Mapping::heap(128 << 10, Hardware::PAGE_CACHE);
    let mut session = mapping.session().unwrap();
    let options = BareOptions::default().chunk(4096);
    let tree = Masstree::<_, P>::open_bare_as(&mut session, &mapping, options).unwrap();
    let act = |session: &mut _, act: &Act| match act {
        Sync => tree.sync(session).unwrap(),
        Ahead => {}
        Put(k, v) => _ = tree.insert(&session.enter().unwrap(), &subject::key(*k), &subject::value(*v)).unwrap(),
        PutWide(k) => _ = tree.insert(&session.enter().unwrap(), &subject::wide(*k), &subject::value(1)).unwrap(),
        RemoveWide(k) => assert!(tree.remove(&session.enter().unwrap(), &subject::wide(*k)).unwrap()),
        other => panic!("{other:?}"),
    };
    window.before.iter().for_each(|a| act(&mut session, a));
    tree.sync(&mut session).unwrap();
    let before = tree.logged_nodes(&session.enter().unwrap());
    let is_restart = |act: &&Act| !matches!(act, Restart | Killed(_));
    window.acts.iter().take_while(is_restart).for_each(|a| act(&mut session, a));
    let op = session.enter().unwrap();
    assert_eq!(tree.check(&op).unwrap(), []);
    tree.logged_nodes(&op) - before
}

#[test]
fn interior_windows_take_fewer_images() {
    for window in windows() {
        let found = [images::<InteriorInLine>(&window), images::<Durable>(&window)];
        assert_eq!(found, window.images, "{}", window.name);
    }
}

/// What holds of border nodes holds where interior nodes are under InCLL.
#[test]
fn interior_trees_come_back_whole_from_the_windows_of_border_nodes() {
    let few = [
        "border splits",
        "root splits",
        "nodes merge",
        "a layer goes",
        "a split is undone",
        "dies in a split",
        "W1 F1",
    ];
    for (name, before, acts) in scenarios() {
        if name == "an interior root splits" || !(deep() || few.iter().any(|few| name.contains(few))) {
            continue;
        }
        let step = if name.starts_with('W') { 1 } else { 2048 };
        let tested = Tested::<InteriorInLine> { sweep_step: step, ..Tested::of(Plan::new(), before) };
        complete(name, explorer().run_then(&tested, &acts, &after()));
    }
}

#[test]
fn crashes_in_recovery_of_interior_nodes_change_nothing() {
    let explorer = explorer().crashes(2).executions_per_point(if deep() { 20_000 } else { 200 }).samples(20);
    let names = ["P1 P2 a separator comes", "P1 P2 a separator goes"];
    for window in windows().into_iter().filter(|window| names.contains(&window.name)) {
        run(&explorer, &Window { complete: false, ..window });
    }
}

#[test]
fn an_interior_tree_is_empty_or_not_there_after_a_crash_in_its_creation() {
    let tested = Tested::<InteriorInLine>::of(Plan::new(), vec![]);
    complete("creation", explorer().crash_in_create(true).run_then(&tested, &puts(0..2, 1), &after()));
}
