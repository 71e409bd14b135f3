//! The sweep: one site at a time is made faulty, and the scenarios that reach it have to notice.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use durix_pmem::{Mutation, Plan, Site, SiteKind};

use crate::scenario::{Bound, Rung, Scenario, Told};

/// A structure whose persistence code is mutated.
pub struct Structure {
    /// Its name.
    pub name: &'static str,
    /// Sites in files whose path contains one of these are its own.
    pub files: &'static [&'static str],
    /// Whether its release stores keep stores to one line in order. Elsewhere they are for the eyes of other threads, which
    /// the simulator's interleavings, sequentially consistent, do not tell from relaxed ones: loom's part.
    pub releases: bool,
    /// What reaches its sites.
    pub scenarios: Vec<Box<dyn Scenario>>,
}

/// How much is done.
#[derive(Clone, Copy, Debug)]
pub struct Effort {
    /// Only dropped calls, nothing delayed or redirected.
    pub quick: bool,
    /// Failures are shrunk and their suggestions tried.
    pub quality: bool,
}

/// What became of one fault.
#[derive(Clone, Debug)]
pub struct Fault {
    /// Whose it is.
    pub structure: String,
    /// Where it is.
    pub place: String,
    /// What is wrong there.
    pub kind: String,
    /// Whether a write-back or a fence was dropped, for which a suggestion is expected to put it back.
    pub droppable: bool,
    /// By which bound it was caught, if it was.
    pub caught: Option<Bound>,
    /// In which scenario.
    pub by: String,
    /// Recoveries run until then.
    pub executions: u64,
    /// How long that took.
    pub time: Duration,
    /// The failure, shrunk.
    pub told: Option<Told>,
}

/// A scenario and one way to explore it, with the sites that it reaches unmutated.
struct Reach<'a> {
    scenario: &'a dyn Scenario,
    rung: &'a Rung,
    sites: BTreeMap<Site, usize>,
    time: Duration,
}

/// Every fault of a structure, tried.
///
/// # Panics
/// If a scenario fails without any fault: a false alarm.
pub fn sweep(structure: &Structure, effort: Effort, mut progress: impl FnMut(&Fault)) -> Vec<Fault> {
    let plan = Plan::new();
    let mut reaches = reaches(structure, plan);
    // The cheapest way that can notice comes first.
    reaches.sort_by_key(|reach| reach.time);
    let mut sites: BTreeMap<Site, usize> = BTreeMap::new();
    for (site, lines) in reaches.iter().flat_map(|reach| &reach.sites) {
        let known = sites.entry(*site).or_default();
        *known = (*known).max(*lines);
    }
    let mut faults = Vec::new();
    for (site, lines) in sites {
        for mutation in mutations(site.kind, lines, effort.quick) {
            let fault = attempt(structure, &reaches, plan, (site, mutation), effort);
            progress(&fault);
            faults.push(fault);
        }
    }
    faults
}

fn reaches<'a>(structure: &'a Structure, plan: &'static Plan) -> Vec<Reach<'a>> {
    let mut reaches = Vec::new();
    for scenario in &structure.scenarios {
        for rung in scenario.rungs() {
            plan.forget();
            let start = Instant::now();
            let report = scenario.run(plan, rung);
            assert!(report.failure.is_none(), "{}, {}: {:#?}", structure.name, scenario.name(), report.failure);
            let own = |site: &Site| {
                (structure.releases || site.kind != SiteKind::Release)
                    && structure.files.iter().any(|f| site.file.contains(f))
            };
            let sites = plan.sites().into_iter().map(|(site, _)| site).filter(own);
            let sites = sites.map(|site| (site, plan.lines(site))).collect();
            reaches.push(Reach { scenario: &**scenario, rung, sites, time: start.elapsed() });
        }
    }
    reaches
}

/// What can be made wrong at a site.
fn mutations(kind: SiteKind, lines: usize, quick: bool) -> Vec<Mutation> {
    let mut mutations = vec![Mutation::Drop];
    if quick {
        return mutations;
    }
    if kind != SiteKind::Release {
        mutations.push(Mutation::Delay);
    }
    if kind == SiteKind::WriteBack {
        mutations.push(Mutation::Redirect);
        if lines > 1 {
            mutations.extend([Mutation::FirstLineOnly, Mutation::WithoutLastLine]);
        }
    }
    mutations
}

fn attempt(
    structure: &Structure,
    reaches: &[Reach<'_>],
    plan: &'static Plan,
    (site, mutation): (Site, Mutation),
    effort: Effort,
) -> Fault {
    plan.mutate(site, mutation);
    let start = Instant::now();
    let mut executions = 0;
    let mut found = None;
    for reach in reaches.iter().filter(|reach| reach.sites.contains_key(&site)) {
        let report = reach.scenario.run(plan, reach.rung);
        executions += report.executions;
        if let Some(failure) = report.failure {
            found = Some((reach, reach.rung.bound_of(&failure)));
            break;
        }
    }
    let time = start.elapsed();
    plan.restore();
    let told = found.as_ref().filter(|_| effort.quality);
    let told = told.and_then(|(reach, _)| reach.scenario.tell(plan, (site, mutation), reach.rung));
    Fault {
        structure: structure.name.into(),
        place: format!("{}:{}:{}", site.file, site.line, site.column),
        kind: format!("{:?} {mutation:?}", site.kind),
        droppable: mutation == Mutation::Drop && matches!(site.kind, SiteKind::WriteBack | SiteKind::Fence),
        caught: found.as_ref().map(|(_, bound)| *bound),
        by: found.map_or_else(String::new, |(reach, _)| reach.scenario.name().to_owned()),
        executions,
        time,
        told,
    }
}
