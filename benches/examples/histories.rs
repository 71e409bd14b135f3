//! Random histories on structures with nothing wrong: every alarm is a false one, or a bug.
//!
//! ```text
//! cargo run --release -p durix-bench --features histories --example histories -- 1000000 [structure]
//! ```
//!
//! Each history is run once, crashed in a few places picked at random, in a few states each, the recovery and what follows
//! it being crashed as well; then more operations run on what was recovered. Where a name ends in "threads", a history is a
//! program of two or three threads, run under one schedule picked at random. The number is how many histories there are in
//! all; structures take turns of the same time, so that those that recover fast have more of them. Words after the number
//! pick structures by a part of their names.

use std::marker::PhantomData;
use std::time::{Duration, Instant};

use durix::kind::Entry;
use durix_crashsim::{Concurrent, Contract, Explorer, Persistency, Report, Subject, Threads};
use durix_cso::log::{ChainLog, FvbLog, LinesLog, OneLine, RandomLog, VbLog, WordsLog};
use durix_cso::testing::{Do, Plain, Tested, Tiny};
use durix_incll::testing::subject as masstree;
use durix_logfree::testing as logfree;
use durix_logfree::{HashTable, LinkCacheMode, List, Options};
use durix_pmem::Plan;
use durix_pset::testing::concurrent as shared_set;
use durix_pset::testing::set::{self, SetUnderTest};
use durix_subjects::list::{Bug, List as Toy, ListOp};
use durix_subjects::space::{self, Allocator};
use proptest::collection::vec;
use proptest::prelude::{Strategy, prop_oneof};
use proptest::strategy::{BoxedStrategy, Just, ValueTree};
use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};

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

/// Two or three threads of up to three operations each.
fn threads<S: Concurrent + 'static>(
    name: &str,
    explorer: Explorer,
    subject: S,
    op: impl Strategy<Value = S::Op> + 'static,
) -> Structure {
    let op = op.boxed();
    let generate = (vec(vec(op.clone(), 1..=3), 2..=3), vec(op, 0..=2));
    let one = move |seed: u64| {
        let mut bytes = [0; 32];
        bytes[..8].copy_from_slice(&seed.to_le_bytes());
        let mut runner = TestRunner::new_with_rng(Config::default(), TestRng::from_seed(RngAlgorithm::ChaCha, &bytes));
        let (program, after) = generate.new_tree(&mut runner).expect("nothing is rejected").current();
        Threads::new(explorer.clone().seed(seed)).sampled(1).run(&subject, &program, &after)
    };
    let run = move |seed, histories| {
        let mut total = Report::default();
        for seed in seed..seed + histories {
            total.merge(one(seed));
            if total.failure.is_some() {
                break;
            }
        }
        total
    };
    Structure { name: format!("{name}, threads"), run: Box::new(run) }
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

/// What one thread does with a map.
fn map_op() -> BoxedStrategy<logfree::Act> {
    use logfree::Act;
    let (key, value) = (|| 0u64..5, || 1u64..50);
    prop_oneof![
        4 => (key(), value()).prop_map(|(k, v)| Act::Insert(k, v)),
        3 => key().prop_map(Act::Remove),
        2 => (key(), value()).prop_map(|(k, v)| Act::Update(k, v)),
        1 => key().prop_map(Act::Get),
    ]
    .boxed()
}

/// The same, or an insert by another session.
fn map_ops() -> BoxedStrategy<logfree::Act> {
    use logfree::Act;
    let other = (0u64..5, 1u64..50).prop_map(|(k, v)| Act::Other(Box::new(Act::Insert(k, v))));
    prop_oneof![10 => map_op(), 1 => other].boxed()
}

fn links<S: logfree::Map<logfree::Sim> + 'static>(name: &str) -> [Structure; 2] {
    let subject = || logfree::UnderTest::<S>::new(Plan::new());
    [structure(name, sparse(), subject(), map_ops(), 8), threads(name, sparse(), subject(), map_op())]
}

/// Adds each map.
struct Maps<'a>(&'a mut Vec<Structure>);

impl logfree::Visit<logfree::Sim> for Maps<'_> {
    fn map<S: logfree::Listed<logfree::Sim>>(&mut self, entry: Entry<logfree::Sim>) {
        self.0.extend(links::<S>(entry.name));
    }
}

/// With a link cache of one bucket, durable and buffered.
fn with_link_cache<S: logfree::Map<logfree::Sim, Options = Options> + 'static>(name: &str) -> [Structure; 3] {
    use logfree::{Act, UnderTest, small};
    let subject = |mode| UnderTest::<S> { options: small().link_cache(mode, 1), ..UnderTest::new(Plan::new()) };
    let durable = || subject(LinkCacheMode::Durable);
    let buffered = sparse().contract(Contract::Buffered);
    let syncing = prop_oneof![8 => map_ops(), 1 => Just(Act::Sync)];
    [
        structure(&format!("{name}, link cache"), sparse(), durable(), map_ops(), 8),
        structure(&format!("{name}, buffered"), buffered, subject(LinkCacheMode::Buffered), syncing, 8),
        threads(&format!("{name}, link cache"), sparse(), durable(), map_op()),
    ]
}

fn toy(name: &str, model: Persistency) -> Structure {
    let op = prop_oneof![
        3 => (0..6u64, 1..99u64).prop_map(|(k, v)| ListOp::Insert(k, v)),
        2 => (0..6u64).prop_map(ListOp::Remove),
    ];
    structure(name, sparse().model(model), Toy::new(Bug::None), op, 12)
}

fn cso_set() -> [Structure; 2] {
    use set::Act;
    let op = prop_oneof![
        4 => (0..4u8, 1..120u8).prop_map(|(k, v)| Act::Put(k, v)),
        2 => (0..4u8, 1..90u8).prop_map(|(k, v)| Act::PutNew(k, v)),
        3 => (0..4u8).prop_map(Act::Remove),
        1 => (0..2u8, 2..4u8, 1..90u8).prop_map(|(a, b, v)| Act::Commit(vec![(a, Some(v)), (b, None)])),
    ];
    let shared = {
        use shared_set::Act;
        prop_oneof![
            4 => (0..3u8, 1..90u8).prop_map(|(k, v)| Act::Put(k, v)),
            2 => (0..3u8, 1..90u8).prop_map(|(k, v)| Act::PutNew(k, v)),
            3 => (0..3u8).prop_map(Act::Remove),
            2 => (0..3u8).prop_map(Act::Get),
        ]
    };
    [
        structure("PersistentSet", sparse(), SetUnderTest::new(), op, 8),
        threads("PersistentSet", sparse(), shared_set::SetUnderTest::new(&[]), shared),
    ]
}

fn tree() -> [Structure; 2] {
    use masstree::Act;
    let subject = || masstree::Tested::new(Plan::new(), Vec::new());
    let op = prop_oneof![
        5 => (0..8u8, 1..120u8).prop_map(|(k, v)| Act::Put(k, v)),
        2 => (0..8u8).prop_map(Act::Remove),
        1 => (0..8u8).prop_map(Act::Get),
        2 => Just(Act::Sync),
    ]
    .boxed();
    let explorer = || sparse().contract(Contract::Buffered);
    [structure("Masstree", explorer(), subject(), op.clone(), 10), threads("Masstree", explorer(), subject(), op)]
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
    let mut all = vec![
        toy("toy list", Persistency::Pcso),
        toy("toy list, eADR", Persistency::Eadr),
        log::<VbLog<OneLine>>("log VB"),
        log::<LinesLog>("log of lines"),
        log::<WordsLog<4, 3, 56>>("log of words"),
        log::<FvbLog>("log FVB"),
        log::<RandomLog>("log random"),
        log::<ChainLog>("log chain"),
        structure("space", sparse(), Allocator { plan: Plan::new() }, space, 8),
    ];
    all.extend(cso_set());
    logfree::each(&mut Maps(&mut all));
    all.extend(with_link_cache::<List<logfree::Sim>>("list"));
    all.extend(with_link_cache::<HashTable<logfree::Sim>>("hash-fast-open"));
    all.extend(tree());
    all
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
            "{:30} {:8} histories, {crash_points:8} crash points and {nested_points:8} in recoveries, {certified:9} of them \
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
