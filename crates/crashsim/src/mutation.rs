//! Automatic mutation: every write-back and fence site of the code under test is dropped in turn, and a crash test has
//! to notice.

use std::fmt;

use durix_pmem::{Mutation, Plan, Site, SiteKind};

use crate::report::Report;

/// What became of one mutated site.
#[derive(Clone, Debug)]
pub struct Mutant {
    /// The site.
    pub site: Site,
    /// What was made wrong there.
    pub mutation: Mutation,
    /// How often the site was reached without mutation.
    pub hits: u64,
    /// What the test found; a failure means that the mutant was caught.
    pub report: Report,
    /// How long the test ran.
    pub time: std::time::Duration,
}

impl Mutant {
    /// Whether the test has noticed.
    pub fn caught(&self) -> bool {
        self.report.failure.is_some()
    }
}

/// The outcome of a [`mutation_sweep`].
#[derive(Clone, Debug)]
pub struct Sweep {
    /// What the test found without mutation: no failure.
    pub baseline: Report,
    /// One entry a mutated site, in order of the sites.
    pub mutants: Vec<Mutant>,
}

impl Sweep {
    /// The sites whose mutation went unnoticed.
    pub fn missed(&self) -> impl Iterator<Item = &Mutant> {
        self.mutants.iter().filter(|m| !m.caught())
    }

    /// Hands the sweep back if there were sites and every one was caught, except those whose loss is known to show
    /// elsewhere: an entry of `except` is `file suffix:line`.
    ///
    /// # Panics
    /// With the table, otherwise.
    #[track_caller]
    pub fn assert_all_caught(self, except: &[&str]) -> Self {
        let excused = |m: &&Mutant| {
            let place = format!("{}:{}", m.site.file, m.site.line);
            except.iter().any(|e| place.ends_with(e))
        };
        assert!(!self.mutants.is_empty(), "nothing was mutated: the test reaches no such site in these files\n{self}");
        let missed = self.missed().filter(|m| !excused(m)).count();
        assert!(missed == 0, "{missed} mutant(s) missed\n{self}");
        self
    }
}

impl fmt::Display for Sweep {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "unmutated: {}", self.baseline)?;
        for mutant in &self.mutants {
            let verdict = if mutant.caught() { "caught" } else { "MISSED" };
            let (site, executions, time) = (&mutant.site, mutant.report.executions, mutant.time.as_millis());
            writeln!(
                f,
                "{verdict}  {site} {:?}: {} hits, {executions} executions, {time} ms",
                mutant.mutation, mutant.hits
            )?;
        }
        let (sites, missed) = (self.mutants.len(), self.missed().count());
        write!(f, "sites {sites}, caught {}, missed {missed}", sites - missed)
    }
}

/// Which sites a [`mutation_sweep`] mutates, and how.
#[derive(Clone, Debug)]
pub struct Sites {
    /// Only files whose path contains one of these; empty: all.
    pub files: Vec<String>,
    /// What is done at the site.
    pub kinds: Vec<SiteKind>,
    /// What is made wrong.
    pub mutations: Vec<Mutation>,
}

impl Sites {
    /// Drops write-backs and fences in files whose path contains `file`.
    pub fn in_files(file: &str) -> Self {
        Sites {
            files: vec![file.to_owned()],
            kinds: vec![SiteKind::WriteBack, SiteKind::Fence],
            mutations: vec![Mutation::Drop],
        }
    }

    fn matches(&self, site: &Site) -> bool {
        self.kinds.contains(&site.kind) && (self.files.is_empty() || self.files.iter().any(|f| site.file.contains(f)))
    }
}

/// Runs `test` once without mutation, then once for each of the `sites` reached, with that site faulty. The test puts
/// [`Mutating::new(simulated, plan)`](durix_pmem::Mutating) under its structure.
///
/// # Panics
/// If the test fails without mutation.
pub fn mutation_sweep(sites: &Sites, test: impl Fn(&'static Plan) -> Report) -> Sweep {
    let plan = Plan::new();
    let baseline = test(plan).assert_ok();
    let reached: Vec<(Site, u64)> = plan.sites().into_iter().filter(|(site, _)| sites.matches(site)).collect();
    let mut mutants = Vec::new();
    for (site, hits) in reached {
        for mutation in &sites.mutations {
            plan.mutate(site, *mutation);
            let start = std::time::Instant::now();
            let report = test(plan);
            mutants.push(Mutant { site, mutation: *mutation, hits, report, time: start.elapsed() });
            plan.restore();
        }
    }
    Sweep { baseline, mutants }
}
