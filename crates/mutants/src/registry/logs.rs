//! The logs of `durix-cso`.

use std::marker::PhantomData;

use durix_crashsim::Explorer;
use durix_cso::log::{
    ChainLog, FvbEntryLog, FvbLog, HalfLine, LinesLog, OneLine, RandomLog, TwoLines, VbLog, WordsLog,
};
use durix_pmem::Mutation;

use crate::scenario::Of;
use crate::sweep::{Equivalent, Structure};
use durix_cso::testing::{AFTER, Do, HELD, RUNS, SHORT, Tested, Tiny};

const OWN: &[&str] = &["cso/src/log/"];

/// A run: the age of the log, the records that it holds, whether it has a hole, and what is done.
type Run = (usize, usize, bool, &'static [Do]);

fn runs() -> Vec<Run> {
    let short = SHORT.iter().flat_map(|(holed, ops)| (0..7).map(move |age| (age, 0, *holed, *ops)));
    let held = HELD.iter().map(|(age, held, ops)| (*age, *held, false, *ops));
    held.chain(short).chain(RUNS.map(|(age, holed, ops)| (age, 0, holed, ops))).collect()
}

fn log<L: Tiny + 'static>(name: &'static str, files: &'static [&'static str]) -> Structure {
    let scenario = |(age, held, holed, ops): Run| {
        let make = move |plan| Tested::<L, _> { age, held, holed, wrap: plan, _log: PhantomData };
        let base = Explorer::new().executions_per_point(2_000).samples(50);
        let hole = if holed { ", with a hole" } else { "" };
        Of::new(format!("age {age}, holding {held}{hole}"), make, ops).with(base).after(&AFTER).boxed()
    };
    Structure { name, files, releases: true, scenarios: runs().into_iter().map(scenario).collect(), equivalent: &[] }
}

/// All kinds.
pub(super) fn all() -> Vec<Structure> {
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
        Structure { equivalent: &CHAIN, ..log::<ChainLog>("log chain", &["cso/src/log/chain", "cso/src/log/lines"]) },
    ]
}

const CHAIN: [Equivalent; 1] = [Equivalent {
    file: "cso/src/log/chain.rs",
    line: "op.write_back(&header.magic)",
    mutation: Mutation::Delay,
    reason: "one fence later is early enough: until then the next segment has no magic either, without which there is no log",
}];
