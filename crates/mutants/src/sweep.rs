//! The sweep: one site at a time is made faulty, and the scenarios that reach it have to notice.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use durix_pmem::{Mutation, Plan, Site, SiteKind};

use crate::clock::processor_time;
use crate::scenario::{Bound, Recovered, Rung, Scenario, Told};

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
    /// Faults that change nothing.
    pub equivalent: &'static [Equivalent],
}

/// A claim that a fault changes nothing: nothing can be recovered with it that cannot be without, and the other way round.
/// The sweep checks it, and does not believe it otherwise.
#[derive(Clone, Copy, Debug)]
pub struct Equivalent {
    /// The end of the file's path.
    pub file: &'static str,
    /// The line of the source, or a part of it.
    pub line: &'static str,
    /// The fault there.
    pub mutation: Mutation,
    /// Why.
    pub reason: &'static str,
}

/// How much is done.
#[derive(Clone, Copy, Debug)]
pub struct Effort {
    /// Only dropped calls, nothing delayed or redirected.
    pub quick: bool,
    /// Failures are shrunk and their suggestions tried.
    pub quality: bool,
}

/// Recoveries from which on a scenario is tried only after all that take fewer.
const DEAR: u64 = 3000;

/// Scenarios that are asked for a smaller failure.
const TELLERS: usize = 8;

/// How a claim was checked.
#[derive(Clone, Debug)]
pub struct Shown {
    /// Why nothing changes.
    pub reason: &'static str,
    /// Scenarios in which all that can be recovered is the same, completely.
    pub scenarios: usize,
    /// Recoveries run for that.
    pub executions: u64,
    /// The call can be left out altogether: it should be.
    pub redundant: bool,
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
    /// That it changes nothing, where that was claimed and holds.
    pub shown: Option<Shown>,
    /// In which scenario it was caught.
    pub by: String,
    /// Recoveries run until then.
    pub executions: u64,
    /// Processor time that took.
    pub time: Duration,
    /// The failure, shrunk.
    pub told: Option<Told>,
}

impl Fault {
    /// Neither caught nor shown to change nothing.
    pub fn is_missed(&self) -> bool {
        self.caught.is_none() && self.shown.is_none()
    }

    /// A scenario fails without any fault: counted as missed, since nothing that it says can be believed.
    fn alarm(structure: &str, scenario: &str, executions: u64) -> Self {
        Fault {
            structure: structure.into(),
            place: scenario.into(),
            kind: "ALARM without a fault".into(),
            droppable: false,
            caught: None,
            shown: None,
            by: String::new(),
            executions,
            time: Duration::ZERO,
            told: None,
        }
    }

    /// Left out of the count: it changes nothing, although the call itself is needed.
    pub fn is_excluded(&self) -> bool {
        self.shown.as_ref().is_some_and(|shown| !shown.redundant)
    }
}

/// A scenario and one way to explore it, with the sites that it reaches unmutated.
struct Reach<'a> {
    scenario: &'a dyn Scenario,
    rung: &'a Rung,
    sites: BTreeMap<Site, usize>,
    executions: u64,
}

/// Every fault of a structure, tried. `progress` is told each, with how many there are.
///
/// # Panics
/// If a claim is about no site.
pub fn sweep(structure: &Structure, effort: Effort, mut progress: impl FnMut(&Fault, usize)) -> Vec<Fault> {
    let plan = Plan::new();
    let (mut reaches, alarms) = reaches(structure, plan);
    // The smallest that can notice comes first, but the dear ones last; nothing here may depend on how long something took.
    reaches.sort_by_key(|reach| (reach.executions > DEAR, reach.scenario.ops(), reach.executions));
    let mut sites: BTreeMap<Site, usize> = BTreeMap::new();
    for (site, lines) in reaches.iter().flat_map(|reach| &reach.sites) {
        let known = sites.entry(*site).or_default();
        *known = (*known).max(*lines);
    }
    let claims = claims(structure, sites.keys());
    let all: Vec<(Site, Mutation)> = sites
        .iter()
        .flat_map(|(site, lines)| mutations(site.kind, *lines, effort.quick).into_iter().map(move |m| (*site, m)))
        .collect();
    let mut faults = alarms;
    for fault in &all {
        let mut outcome = attempt(structure, &reaches, plan, *fault, effort);
        if let (None, Some(claim)) = (outcome.caught, claims.iter().find(|(about, _)| about == fault)) {
            outcome.shown = show(&reaches, plan, *fault, claim.1.reason);
        }
        progress(&outcome, all.len());
        faults.push(outcome);
    }
    faults
}

/// What each scenario reaches without a fault; and those that fail without one, which is one more thing that is wrong.
fn reaches<'a>(structure: &'a Structure, plan: &'static Plan) -> (Vec<Reach<'a>>, Vec<Fault>) {
    let (mut reaches, mut alarms) = (Vec::new(), Vec::new());
    for scenario in &structure.scenarios {
        for rung in scenario.rungs() {
            plan.forget();
            let report = scenario.run(plan, rung);
            if let Some(failure) = &report.failure {
                eprintln!("{}, {}: an alarm without a fault\n{failure}", structure.name, scenario.name());
                alarms.push(Fault::alarm(structure.name, scenario.name(), report.executions));
                continue;
            }
            let own = |site: &Site| {
                (structure.releases || site.kind != SiteKind::Release)
                    && structure.files.iter().any(|f| site.file.contains(f))
                    && !site.file.contains("/src/testing")
            };
            let sites = plan.sites().into_iter().map(|(site, _)| site).filter(own);
            let sites = sites.map(|site| (site, plan.lines(site))).collect();
            reaches.push(Reach { scenario: &**scenario, rung, sites, executions: report.executions });
        }
    }
    (reaches, alarms)
}

/// The claims by what they are about.
fn claims<'a>(
    structure: &'a Structure,
    sites: impl Iterator<Item = &'a Site> + Clone,
) -> Vec<((Site, Mutation), &'a Equivalent)> {
    let mut claims = Vec::new();
    for claim in structure.equivalent {
        let about = sites.clone().filter(|site| site.file.ends_with(claim.file) && source(site).contains(claim.line));
        let before = claims.len();
        claims.extend(about.map(|site| ((*site, claim.mutation), claim)));
        assert!(claims.len() > before, "{}: a claim about no site: {claim:?}", structure.name);
    }
    claims
}

/// The line of the source where a site is; empty if there is none.
fn source(site: &Site) -> String {
    let workspace = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let text = std::fs::read_to_string(workspace.join(site.file)).unwrap_or_default();
    text.lines().nth(site.line as usize - 1).unwrap_or_default().to_owned()
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
    let start = processor_time();
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
    let time = processor_time() - start;
    plan.restore();
    let told = found.as_ref().filter(|_| effort.quality);
    let told = told.and_then(|(first, _)| {
        // Those before it did not fail.
        let failing = reaches.iter().skip_while(|reach| !std::ptr::eq(*reach, *first));
        smallest(failing.filter(|reach| reach.sites.contains_key(&site)), plan, (site, mutation))
    });
    Fault {
        structure: structure.name.into(),
        place: format!("{}:{}:{}", site.file, site.line, site.column),
        kind: format!("{:?} {mutation:?}", site.kind),
        droppable: mutation == Mutation::Drop && matches!(site.kind, SiteKind::WriteBack | SiteKind::Fence),
        caught: found.as_ref().map(|(_, bound)| *bound),
        shown: None,
        by: found.map_or_else(String::new, |(reach, _)| reach.scenario.name().to_owned()),
        executions,
        time,
        told,
    }
}

/// The smallest failure that some of these tell; the first that is small enough will do.
fn smallest<'a>(
    reaches: impl Iterator<Item = &'a Reach<'a>>,
    plan: &'static Plan,
    fault: (Site, Mutation),
) -> Option<Told> {
    let mut smallest: Option<Told> = None;
    for reach in reaches.take(TELLERS) {
        let told = reach.scenario.tell(plan, fault, reach.rung).into_iter();
        smallest = told.chain(smallest).min_by_key(Told::size);
        if smallest.as_ref().is_some_and(Told::is_small) {
            break;
        }
    }
    smallest
}

/// Compares all that can be recovered with the fault and without, wherever the site is reached.
fn show(
    reaches: &[Reach<'_>],
    plan: &'static Plan,
    (site, mutation): (Site, Mutation),
    reason: &'static str,
) -> Option<Shown> {
    // A release store that might be relaxed is no call to leave out.
    let redundant = mutation == Mutation::Drop && site.kind != SiteKind::Release;
    let mut shown = Shown { reason, scenarios: 0, executions: 0, redundant };
    for reach in reaches.iter().filter(|reach| reach.sites.contains_key(&site)) {
        let intact: Recovered = reach.scenario.recovered(plan, reach.rung)?;
        plan.mutate(site, mutation);
        let faulty = reach.scenario.recovered(plan, reach.rung);
        plan.restore();
        let faulty = faulty.filter(|faulty| faulty.equals(&intact))?;
        shown.scenarios += 1;
        shown.executions += intact.executions + faulty.executions;
    }
    Some(shown)
}
