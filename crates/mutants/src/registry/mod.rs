//! What is mutated: every structure of the workspace, a few lines each.
//!
//! # To add a structure
//! 1. Put its [`Subject`](durix_crashsim::Subject) into `src/testing.rs` of its crate, behind the feature `testing`, with its
//!    medium `Mutating<Simulated>` made from a [`Plan`](durix_pmem::Plan). The structure's own crash tests use it from there:
//!    the crate has itself, with that feature, under `[dev-dependencies]`. Sites in `src/testing` are not mutated.
//! 2. Add the crate to the dependencies of `durix-mutants`, with the feature.
//! 3. Add a function here like `list`, and name it in [`structures`].
//!
//! A kind of index whose crate has none of this is swept with operations that any kind has: see [`kinds`].
//!
//! A scenario is a run that reaches some of the sites. It should be short: each is explored once for every site that it
//! reaches. Where a site matters only to operations after the recovery, to a crash in it, or after the mere death of a
//! process, say so with `after`, `nested` or `deaths`.

mod incll;
mod kinds;
mod logfree;
mod logs;
mod rewind;

use durix_crashsim::{Explorer, Persistency};

use crate::scenario::{Of, Scenario};
use crate::sweep::Structure;
use durix_pset::testing::set;
use durix_subjects::list::{Bug, List, ListOp};
use durix_subjects::pool::{self, Action, Lifetime};
use durix_subjects::space::{self, Allocator};

/// All of them.
pub fn structures() -> Vec<Structure> {
    let mut all = vec![list(), space(), pool()];
    all.extend(logs::all());
    all.extend([set(), incll::epochs(), incll::masstree()]);
    all.extend(logfree::all());
    all.extend(rewind::all());
    all.extend(kinds::others(&all));
    all
}

/// The list of the simulator's own tests.
fn list() -> Structure {
    use ListOp::{Insert, Remove};
    let ops = [Insert(1, 10), Insert(2, 20), Remove(1), Insert(2, 21), Insert(3, 30)];
    let make = |plan| List::with_plan(Bug::None, plan);
    let scenario = Of::new("inserts and removals", make, &ops).after(&[Insert(4, 40), Remove(2)]).deaths();
    Structure {
        name: "list",
        files: &["subjects/src/list.rs"],
        releases: false,
        scenarios: vec![scenario.boxed()],
        equivalent: &[],
    }
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
        equivalent: &[],
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
    const GROWN: &[Action] = &[Open("a", 3), Action::Extend("a"), Action::Extend("a")];
    let grown = |plan| Lifetime { before: GROWN, ..Lifetime::new(plan) };
    let growing = [Action::Extend("a"), Action::Extend("a"), Drop("a")];
    scenarios.push(Of::new("growth", grown, &growing).with(torn()).after(&pool::AFTER).boxed());
    let ahead = [Action::Ahead, Action::Extend("a"), Drop("a")];
    scenarios.push(Of::new("growth ahead", grown, &ahead).with(torn()).after(&pool::AFTER).boxed());
    for history in dying {
        scenarios.push(Of::new("death", Lifetime::new, history).after(&pool::AFTER[..1]).deaths().boxed());
    }
    Structure { name: "pool", files: &["pmem/src/pool/"], releases: false, scenarios, equivalent: &[] }
}

fn set() -> Structure {
    let names: Vec<&str> = set::scenarios(durix_pmem::Plan::new()).iter().map(|(name, ..)| *name).collect();
    let scenario = |(number, name): (usize, &str)| {
        let pick = move |plan| set::scenarios(plan).swap_remove(number);
        let (_, subject, acts) = pick(durix_pmem::Plan::new());
        let of = Of::new(name, move |plan| pick(plan).1, &acts).after(&set::follows(&subject));
        match name {
            "recovered transactions" => of.nested().boxed(),
            "last slots" => of.after(&[set::Act::Remove(10)]).deaths().boxed(),
            _ => of.boxed(),
        }
    };
    let scenarios = names.into_iter().enumerate().map(scenario).collect();
    Structure { name: "PersistentSet", files: &["pset/src/"], releases: true, scenarios, equivalent: &[] }
}
