//! Every write-back and every fence of the manager is dropped in turn, and a crash test has to notice.

use durix_crashsim::{Report, Sites, mutation_sweep};
use durix_pmem::Plan;
use durix_rewind::testing::{few_options, runs};

fn all(plan: &'static Plan) -> Report {
    let mut total = Report::default();
    for run in few_options().into_iter().flat_map(|options| runs(plan, options)) {
        total.merge(run.explore());
        if total.failure.is_some() {
            break;
        }
    }
    total
}

#[test]
fn every_write_back_and_fence_is_needed() {
    let mut sites = Sites::in_files("rewind/src/");
    // The list has a sweep of its own (`adll/tests.rs`), the engine too (`engine_crash.rs`).
    sites.except.extend(["adll.rs", "/engine/"].map(str::to_owned));
    let sweep = mutation_sweep(&sites, all);
    println!("{sweep}");
    // A site that no run reaches any more would not be missed.
    assert_eq!(sweep.assert_all_caught(&[]).mutants.len(), 45);
}
