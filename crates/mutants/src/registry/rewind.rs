//! The transaction manager of `durix-rewind`.

use durix_pmem::Plan;
use durix_rewind::testing::{few_options, runs};

use crate::scenario::{Of, Scenario};
use crate::sweep::Structure;

const FILES: &[&str] = &[
    "rewind/src/arena.rs",
    "rewind/src/checkpoint.rs",
    "rewind/src/log.rs",
    "rewind/src/recover.rs",
    "rewind/src/store.rs",
    "rewind/src/tm.rs",
    "rewind/src/tree.rs",
    "rewind/src/tx.rs",
];

/// The manager over several logs. The list below them is a structure of its own, with a sweep in its unit tests.
pub(super) fn all() -> Vec<Structure> {
    let scenarios = few_options().into_iter().flat_map(|options| {
        let names: Vec<&str> = runs(Plan::new(), options).iter().map(|run| run.name).collect();
        names.into_iter().enumerate().map(move |(number, name)| -> Box<dyn Scenario> {
            let pick = move |plan| runs(plan, options).swap_remove(number);
            let run = pick(Plan::new());
            let of = Of::new(format!("{name}, {options}"), move |plan| pick(plan).tested, &run.acts);
            let of = of.with(run.explorer.clone());
            // The number of crashes is the scenario's, not the explorer's.
            if name.starts_with("recovery") {
                of.after(&run.after).nested().boxed()
            } else {
                of.after(&run.after).boxed()
            }
        })
    });
    vec![Structure { name: "REWIND", files: FILES, releases: false, scenarios: scenarios.collect(), equivalent: &[] }]
}
