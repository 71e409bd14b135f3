//! What is mutated: every structure of the workspace, a few lines each.
//!
//! # To add a structure
//! 1. Put its [`Subject`](durix_crashsim::Subject) into `subjects/<structure>.rs`, generic over nothing, with its medium
//!    `Mutating<Simulated>` made from a [`Plan`](durix_pmem::Plan). The structure's own crash tests use it from there
//!    (`durix-mutants = { path = "../mutants" }` under `[dev-dependencies]`).
//! 2. Add the crate to the dependencies of `durix-mutants`.
//! 3. Add a function here like `list`, and name it in [`structures`].
//!
//! A scenario is a run that reaches some of the sites. It should be short: each is explored once for every site that it
//! reaches. Where a site matters only to operations after the recovery, to a crash in it, or after the mere death of a
//! process, say so with `after`, `nested` or `deaths`.

use std::marker::PhantomData;

use durix_crashsim::{Explorer, Persistency};
use durix_cso::log::{
    ChainLog, FvbEntryLog, FvbLog, HalfLine, LinesLog, OneLine, RandomLog, TwoLines, VbLog, WordsLog,
};

use crate::scenario::{Of, Scenario};
use crate::subjects::list::{Bug, List, ListOp};
use crate::subjects::logs::{self, Tested, Tiny};
use crate::subjects::pool::{self, Action, Lifetime};
use crate::subjects::set;
use crate::subjects::space::{self, Allocator};
use crate::sweep::Structure;

/// All of them.
pub fn structures() -> Vec<Structure> {
    let mut all = vec![list(), space(), pool()];
    all.extend(all_logs());
    all.push(set());
    all
}

/// The list of the simulator's own tests.
fn list() -> Structure {
    use ListOp::{Insert, Remove};
    let ops = [Insert(1, 10), Insert(2, 20), Remove(1), Insert(2, 21), Insert(3, 30)];
    let make = |plan| List::with_plan(Bug::None, plan);
    let scenario = Of::new("inserts and removals", make, &ops).after(&[Insert(4, 40), Remove(2)]).deaths();
    Structure { name: "list", files: &["subjects/list.rs"], releases: false, scenarios: vec![scenario.boxed()] }
}

fn space() -> Structure {
    let scenario = |(number, history): (usize, &&[space::Action])| {
        let of = Of::new(format!("history {number}"), |plan| Allocator { plan }, history);
        of.after(&space::AFTER).nested().boxed()
    };
    Structure {
        name: "space",
        files: &["pmem/src/space/"],
        releases: false,
        scenarios: space::HISTORIES.iter().enumerate().map(scenario).collect(),
    }
}

fn pool() -> Structure {
    use Action::{Close, Create, Drop, Open, OpenAgain, Rename};
    let torn = || Explorer::new().model(Persistency::TornWords);
    let from_nothing = |plan| Lifetime { from_nothing: true, ..Lifetime::new(plan) };
    let closing = |plan| Lifetime { closing: true, ..Lifetime::new(plan) };
    let dying: [&[Action]; 3] =
        [&[Open("a", 1), Action::Set("a", 8)], &[Open("a", 1), Rename("a", "b")], &[Open("a", 1), Drop("a")]];
    let mut scenarios: Vec<Box<dyn Scenario>> = vec![
        Of::new("creation", from_nothing, &[Create, Open("a", 1)]).with(torn()).boxed(),
        Of::new("closing", closing, &[Open("a", 1), Close, OpenAgain, Rename("a", "b"), Close]).with(torn()).boxed(),
    ];
    for (number, history) in pool::HISTORIES.iter().enumerate() {
        let of = Of::new(format!("history {number}"), Lifetime::new, history).with(torn());
        scenarios.push(of.after(&pool::AFTER).nested().boxed());
    }
    for history in dying {
        scenarios.push(Of::new("death", Lifetime::new, history).after(&pool::AFTER[..1]).deaths().boxed());
    }
    Structure { name: "pool", files: &["pmem/src/pool/"], releases: false, scenarios }
}

fn log<L: Tiny + 'static>(name: &'static str, files: &'static [&'static str]) -> Structure {
    let scenario = |(number, (age, holed, ops)): (usize, &(usize, bool, &[logs::Do]))| {
        let (age, holed) = (*age, *holed);
        let make = move |plan| Tested::<L, _> { age, held: 0, holed, wrap: plan, _log: PhantomData };
        let base = Explorer::new().executions_per_point(2_000).samples(50);
        Of::new(format!("run {number}"), make, ops).with(base).after(&logs::AFTER).boxed()
    };
    let short = logs::SHORT.iter().flat_map(|(holed, ops)| (0..7).map(move |age| (age, *holed, *ops)));
    let runs: Vec<_> = short.chain(logs::RUNS).collect();
    Structure { name, files, releases: true, scenarios: runs.iter().enumerate().map(scenario).collect() }
}

fn all_logs() -> Vec<Structure> {
    const OWN: &[&str] = &["cso/src/log/"];
    vec![
        log::<VbLog<HalfLine>>("log VB half line", OWN),
        log::<VbLog<OneLine>>("log VB one line", OWN),
        log::<VbLog<TwoLines>>("log VB two lines", OWN),
        log::<LinesLog>("log of lines", OWN),
        log::<WordsLog<4, 3, 56>>("log of words 4", OWN),
        log::<WordsLog<16, 5, 0>>("log of words 16", OWN),
        log::<FvbLog>("log FVB", OWN),
        log::<FvbEntryLog>("log FVB entries", OWN),
        log::<RandomLog>("log random", OWN),
        log::<ChainLog>("log chain", &["cso/src/log/chain", "cso/src/log/lines"]),
    ]
}

fn set() -> Structure {
    let names: Vec<&str> = set::scenarios(durix_pmem::Plan::new()).iter().map(|(name, ..)| *name).collect();
    let scenario = |(number, name): (usize, &str)| {
        let pick = move |plan| set::scenarios(plan).swap_remove(number);
        let (_, subject, acts) = pick(durix_pmem::Plan::new());
        let after = if subject.chunks < 3 { vec![set::Act::Remove(12), set::Act::Put(13, 3)] } else { set::after() };
        let of = Of::new(name, move |plan| pick(plan).1, &acts).after(&after);
        match name {
            "recovered transactions" => of.nested().boxed(),
            "last slots" => of.after(&[set::Act::Remove(10)]).deaths().boxed(),
            _ => of.boxed(),
        }
    };
    let scenarios = names.into_iter().enumerate().map(scenario).collect();
    Structure { name: "PersistentSet", files: &["cso/src/set/"], releases: true, scenarios }
}
