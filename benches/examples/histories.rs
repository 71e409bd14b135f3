//! Random histories on structures with nothing wrong: every alarm is a false one, or a bug.
//!
//! ```text
//! cargo run --release -p durix-bench --example histories -- 1000000 [structure]
//! ```
//!
//! Each history is run once, crashed in a few places picked at random, in a few states each, the recovery and what follows
//! it being crashed as well; then more operations run on what was recovered. The number is how many histories there are in
//! all; structures take turns of the same time, so that those that recover fast have more of them. Words after the number
//! pick structures by a part of their names.

#[path = "../../crates/logfree/tests/common/mod.rs"]
mod logfree;
#[path = "../../crates/incll/tests/crash/subject.rs"]
#[allow(dead_code)]
mod masstree;

use std::marker::PhantomData;
use std::time::{Duration, Instant};

use durix_crashsim::{Contract, Explorer, Persistency, Report, Subject};
use durix_cso::log::{ChainLog, FvbLog, LinesLog, OneLine, RandomLog, VbLog, WordsLog};
use durix_logfree::{Bst, HashTable, List, SkipList, SoftHash, SoftList, SoftSkipList};
use durix_mutants::subjects::list::{Bug, List as Toy, ListOp};
use durix_mutants::subjects::logs::{Do, Plain, Tested, Tiny};
use durix_mutants::subjects::set::{self, SetUnderTest};
use durix_mutants::subjects::space::{self, Allocator};
use durix_pmem::Plan;
use proptest::collection::vec;
use proptest::prelude::{Strategy, prop_oneof};
use proptest::strategy::Just;

/// Histories of a structure that run between two looks at the clock.
const ROUND: u64 = 20;

/// How long a structure runs before it is the next one's turn.
const TURN: Duration = Duration::from_millis(500);

/// How often it is said how far things have come.
const TELL: Duration = Duration::from_secs(60);

const FIRST_SEED: u64 = 0x5EED;

/// A structure: runs so many histories with a seed, and says what it has done.
struct Structure {
    name: String,
    run: Box<dyn Fn(u64, u64) -> Report>,
}

/// Few places, few states: the histories are many.
fn sparse() -> Explorer {
    Explorer::new().crash_points(2).executions_per_point(3).samples(2).crashes(2).crash_later(true).suggest(false)
}

fn structure<S: Subject + 'static>(
    name: &str,
    explorer: Explorer,
    subject: S,
    op: impl Strategy<Value = S::Op> + 'static,
    len: usize,
) -> Structure {
    let op = op.boxed();
    generated(name, explorer, subject, (vec(op.clone(), 1..=len), vec(op, 0..=2)))
}

fn generated<S: Subject + 'static>(
    name: &str,
    explorer: Explorer,
    subject: S,
    generate: impl Strategy<Value = (Vec<S::Op>, Vec<S::Op>)> + 'static,
) -> Structure {
    let run = move |seed, histories| explorer.clone().seed(seed).check(&subject, histories, &generate);
    Structure { name: name.into(), run: Box::new(run) }
}

fn log<L: Tiny + 'static>(name: &str) -> Structure {
    let op = prop_oneof![
        5 => (0..2usize).prop_map(Do::Stage),
        4 => Just(Do::Commit),
        2 => (1..3usize).prop_map(Do::Trim),
        1 => Just(Do::Reopen),
    ];
    let subject = Tested::<L, _> { age: 3, held: 0, holed: false, wrap: Plain, _log: PhantomData };
    let op = op.boxed();
    let after = vec(op.clone(), 0..=2).prop_map(|ops| [vec![Do::Crashed], ops].concat());
    generated(name, sparse(), subject, (vec(op, 1..=8), after))
}

fn links<S: logfree::Map<logfree::Sim> + 'static>(name: &str) -> Structure {
    use logfree::Act;
    let (key, value) = (|| 0u64..5, || 1u64..50);
    let op = prop_oneof![
        4 => (key(), value()).prop_map(|(k, v)| Act::Insert(k, v)),
        3 => key().prop_map(Act::Remove),
        2 => (key(), value()).prop_map(|(k, v)| Act::Update(k, v)),
        1 => key().prop_map(Act::Get),
        1 => (key(), value()).prop_map(|(k, v)| Act::Other(Box::new(Act::Insert(k, v)))),
    ];
    structure(name, sparse(), logfree::UnderTest::<S>::new(Plan::new()), op, 8)
}

fn toy(name: &str, model: Persistency) -> Structure {
    let op = prop_oneof![
        3 => (0..6u64, 1..99u64).prop_map(|(k, v)| ListOp::Insert(k, v)),
        2 => (0..6u64).prop_map(ListOp::Remove),
    ];
    structure(name, sparse().model(model), Toy::new(Bug::None), op, 12)
}

fn cso_set() -> Structure {
    use set::Act;
    let op = prop_oneof![
        4 => (0..4u8, 1..120u8).prop_map(|(k, v)| Act::Put(k, v)),
        2 => (0..4u8, 1..90u8).prop_map(|(k, v)| Act::PutNew(k, v)),
        3 => (0..4u8).prop_map(Act::Remove),
        1 => (0..2u8, 2..4u8, 1..90u8).prop_map(|(a, b, v)| Act::Commit(vec![(a, Some(v)), (b, None)])),
    ];
    structure("PersistentSet", sparse(), SetUnderTest::new(), op, 8)
}

fn tree() -> Structure {
    use masstree::Act;
    let op = prop_oneof![
        5 => (0..8u8, 1..120u8).prop_map(|(k, v)| Act::Put(k, v)),
        2 => (0..8u8).prop_map(Act::Remove),
        1 => (0..8u8).prop_map(Act::Get),
        2 => Just(Act::Sync),
    ];
    let explorer = sparse().contract(Contract::Buffered);
    structure("Masstree", explorer, masstree::Tested::new(Plan::new(), Vec::new()), op, 10)
}

fn structures() -> Vec<Structure> {
    let space = prop_oneof![
        Just(space::ALPHABET[0]),
        Just(space::ALPHABET[1]),
        Just(space::ALPHABET[2]),
        Just(space::ALPHABET[3]),
        Just(space::ALPHABET[4]),
        Just(space::ALPHABET[5]),
    ];
    vec![
        toy("toy list", Persistency::Pcso),
        toy("toy list, eADR", Persistency::Eadr),
        log::<VbLog<OneLine>>("log VB"),
        log::<LinesLog>("log of lines"),
        log::<WordsLog<4, 3, 56>>("log of words"),
        log::<FvbLog>("log FVB"),
        log::<RandomLog>("log random"),
        log::<ChainLog>("log chain"),
        structure("space", sparse(), Allocator { plan: Plan::new() }, space, 8),
        cso_set(),
        links::<List<logfree::Sim>>("List"),
        links::<HashTable<logfree::Sim>>("HashTable"),
        links::<Bst<logfree::Sim>>("Bst"),
        links::<SkipList<logfree::Sim>>("SkipList"),
        links::<SoftHash<logfree::Sim>>("SoftHash"),
        links::<SoftList<logfree::Sim>>("SoftList"),
        links::<SoftSkipList<logfree::Sim>>("SoftSkipList"),
        tree(),
    ]
}

fn histories(all: &[Running]) -> u64 {
    all.iter().map(Running::histories).sum()
}

/// Runs histories of all structures in turn, each for a moment, until there are so many.
fn run(all: &mut [Running], wanted: u64) {
    let mut told = Instant::now();
    while histories(all) < wanted && !all.iter().all(Running::has_failed) {
        all.iter_mut().filter(|running| !running.has_failed()).for_each(Running::turn);
        if told.elapsed() > TELL {
            eprintln!("{} of {wanted} histories", histories(all));
            told = Instant::now();
        }
    }
}

/// A structure, and what its histories have come to.
struct Running {
    structure: Structure,
    total: Report,
    time: Duration,
}

impl Running {
    fn new(structure: Structure) -> Self {
        Running { structure, total: Report::default(), time: Duration::ZERO }
    }

    fn histories(&self) -> u64 {
        self.total.cases
    }

    fn has_failed(&self) -> bool {
        self.total.failure.is_some()
    }

    fn turn(&mut self) {
        let start = Instant::now();
        while start.elapsed() < TURN && !self.has_failed() {
            self.total.merge((self.structure.run)(FIRST_SEED + self.histories(), ROUND));
        }
        self.time += start.elapsed();
    }

    fn print(&self) {
        let Report { crash_points, nested_points, executions, certified, samples, .. } = &self.total;
        println!(
            "{:18} {:8} histories, {crash_points:8} crash points and {nested_points:8} in recoveries, {certified:9} of them \
             complete with certificate, {executions:9} recoveries, {samples:8} of them samples, {:.1} s",
            self.structure.name,
            self.histories(),
            self.time.as_secs_f64()
        );
        self.total.failure.iter().for_each(|alarm| println!("{alarm}\n"));
    }
}

fn main() {
    let mut args = std::env::args().skip(1);
    let wanted: u64 = args.next().map_or(10_000, |n| n.parse().expect("a number of histories"));
    let names: Vec<String> = args.collect();
    let picked = |s: &Structure| names.is_empty() || names.iter().any(|name| s.name.contains(name.as_str()));
    let mut all: Vec<Running> = structures().into_iter().filter(picked).map(Running::new).collect();
    run(&mut all, wanted);
    all.iter().for_each(Running::print);
    let alarms = all.iter().filter(|running| running.has_failed()).count();
    println!("histories {}, alarms {alarms}", histories(&all));
    std::process::exit(i32::from(alarms > 0));
}
