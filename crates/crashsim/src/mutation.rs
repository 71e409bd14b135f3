//! Automatic mutation: every write-back and fence site of the code under test is dropped in turn, and a crash test has
//! to notice.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
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
    /// elsewhere. An entry of `except` names the sites of one place: `file suffix:label` those under the comment `// PERSIST label` of that
    /// file, or `file suffix:line`. A label holds up to the next blank line, label or end of a block, and is looked for in the sources
    /// of the workspace.
    ///
    /// # Panics
    /// With the table, otherwise; also where an excuse is of no use: it names no site that was missed.
    #[track_caller]
    pub fn assert_all_caught(self, except: &[&str]) -> Self {
        assert!(!self.mutants.is_empty(), "nothing was mutated: the test reaches no such site in these files\n{self}");
        let missed: Vec<&Mutant> = self.missed().collect();
        let excuses = |excuse: &str, mutant: &Mutant| {
            let (file, place) =
                excuse.rsplit_once(':').expect("an excuse is `file suffix:label` or `file suffix:line`");
            let site = &mutant.site;
            site.file.ends_with(file)
                && match place.parse::<u32>() {
                    Ok(line) => site.line == line,
                    Err(_) => labels_of(site.file, site.line).iter().any(|label| label == place),
                }
        };
        let idle: Vec<_> = except.iter().filter(|e| !missed.iter().any(|mutant| excuses(e, mutant))).collect();
        assert!(idle.is_empty(), "no site was missed that these excuse: {idle:?}; take them out\n{self}");
        let missed = missed.iter().filter(|mutant| !except.iter().any(|e| excuses(e, mutant))).count();
        assert!(missed == 0, "{missed} mutant(s) missed\n{self}");
        self
    }
}

/// The labels over a line of a source: those of the nearest comment `// PERSIST a, b: how` before it, in its block.
fn labels_of(file: &str, line: u32) -> Vec<String> {
    let here = std::env::current_dir().expect("the test has a working directory");
    let source = here.ancestors().find_map(|dir| std::fs::read_to_string(dir.join(file)).ok());
    let source = source.unwrap_or_else(|| panic!("the source {file} is not below {} or above", here.display()));
    let before: Vec<&str> = source.lines().take(line as usize).map(str::trim).collect();
    let in_block = before.iter().rev().take_while(|line| !line.is_empty() && **line != "}");
    let comment = in_block.clone().find_map(|line| line.split_once("// PERSIST "));
    let Some((_, labels)) = comment else { return Vec::new() };
    let labels = labels.split(':').next().unwrap_or_default();
    labels.split(',').map(|label| label.trim().to_owned()).collect()
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
    /// No files whose path contains one of these.
    pub except: Vec<String>,
    /// What is done at the site.
    pub kinds: Vec<SiteKind>,
    /// What is made wrong.
    pub mutations: Vec<Mutation>,
}

impl Sites {
    /// Drops write-backs and fences in files whose path contains `file`, but not in a module `testing` of a crate.
    pub fn in_files(file: &str) -> Self {
        Sites {
            files: vec![file.to_owned()],
            except: vec!["/src/testing".to_owned()],
            kinds: vec![SiteKind::WriteBack, SiteKind::Fence],
            mutations: vec![Mutation::Drop],
        }
    }

    fn matches(&self, site: &Site) -> bool {
        let in_one = |files: &[String]| files.iter().any(|f| site.file.contains(f));
        self.kinds.contains(&site.kind) && (self.files.is_empty() || in_one(&self.files)) && !in_one(&self.except)
    }
}

/// Runs `test` once without mutation, then for each of the `sites` reached, with that site faulty. The test puts
/// [`Mutating::new(simulated, plan)`](durix_pmem::Mutating) under its structure.
///
/// The test may explore several scenarios, one after the other, up to the first that fails. Of a faulty site only those run
/// that reach it, up to the first that fails: in the others nothing is different. The cheapest come first, and those that have caught
/// other mutants of the same file; the order changes no verdict. Failures come without a suggestion, and with the schedule that was found.
///
/// # Panics
/// If the test fails without mutation.
pub fn mutation_sweep(sites: &Sites, test: impl Fn(&'static Plan) -> Report) -> Sweep {
    mutation_sweeps([sites], test).into_iter().next().expect("one for each")
}

/// Several [sweeps](mutation_sweep) of one test, which runs only once without mutation for all of them.
///
/// # Panics
/// If the test fails without mutation.
pub fn mutation_sweeps<'a>(
    sites: impl IntoIterator<Item = &'a Sites>,
    test: impl Fn(&'static Plan) -> Report,
) -> Vec<Sweep> {
    let plan = Plan::new();
    let (baseline, all) = Sweeping::run(plan, None, || test(plan));
    let baseline = baseline.assert_ok();
    let mut experience = Experience::default();
    let mut sweep = |sites: &Sites| {
        let mut mutants = Vec::new();
        for (site, hits) in all.hits.iter().filter(|(site, _)| sites.matches(site)) {
            for mutation in &sites.mutations {
                plan.mutate(*site, *mutation);
                let start = std::time::Instant::now();
                let mut report = Report::default();
                for number in all.that_reach(site, &experience) {
                    if report.failure.is_none() {
                        report.merge(Sweeping::run(plan, number, || test(plan)).0);
                        experience.note(site, number, report.failure.is_some());
                    }
                }
                mutants.push(Mutant { site: *site, mutation: *mutation, hits: *hits, report, time: start.elapsed() });
                plan.restore();
            }
        }
        Sweep { baseline: baseline.clone(), mutants }
    };
    sites.into_iter().map(&mut sweep).collect()
}

thread_local! {
    static UNDER_WAY: RefCell<Option<Sweeping>> = const { RefCell::new(None) };
}

/// One run of a test in a sweep: which of its explorations are to run, and what they reach.
struct Sweeping {
    plan: &'static Plan,
    /// The only exploration that is wanted, by its number in the test.
    only: Option<usize>,
    /// Inside an exploration.
    inside: bool,
    reached: Reached,
}

/// What the explorations of a test have reached.
#[derive(Default)]
struct Reached {
    /// Each one's sites, and how many recoveries it took.
    explorations: Vec<(BTreeSet<Site>, u64)>,
    /// How often each site was reached.
    hits: BTreeMap<Site, u64>,
    /// Sites that are also reached between explorations.
    between: BTreeSet<Site>,
}

impl Reached {
    /// The explorations that reach a site, those first that promise most for their cost; `None` stands for the whole test.
    fn that_reach(&self, site: &Site, experience: &Experience) -> Vec<Option<usize>> {
        let those = |(_, (sites, _)): &(usize, &(BTreeSet<Site>, u64))| sites.contains(site);
        let mut found: Vec<_> = self.explorations.iter().enumerate().filter(those).collect();
        found.sort_by_key(|(number, (_, executions))| experience.cost(site, *number, *executions));
        let whole = self.between.contains(site).then_some(None);
        found.into_iter().map(|(number, _)| Some(number)).chain(whole).collect()
    }

    /// Takes note of what the plan has seen since it was asked last.
    fn note(&mut self, plan: &Plan) -> BTreeSet<Site> {
        let sites = plan.sites();
        sites.iter().for_each(|(site, hits)| *self.hits.entry(*site).or_default() += hits);
        plan.forget();
        sites.into_iter().map(|(site, _)| site).collect()
    }
}

/// Which explorations have caught the mutants of which file so far. What one site of a recovery needs, say a death of the process, the
/// next one needs, too.
#[derive(Default)]
struct Experience {
    /// How many mutants of a file an exploration has caught, and how many it has missed.
    verdicts: BTreeMap<(&'static str, usize), (u64, u64)>,
}

impl Experience {
    /// What a verdict counts for against what was not tried yet.
    const WEIGHT: u64 = 4;

    fn note(&mut self, site: &Site, number: Option<usize>, caught: bool) {
        let Some(number) = number else { return };
        let (catches, misses) = self.verdicts.entry((site.file, number)).or_default();
        *if caught { catches } else { misses } += 1;
    }

    /// The recoveries of an exploration, fewer if it has caught mutants of that file, more if it has missed some.
    fn cost(&self, site: &Site, number: usize, executions: u64) -> u64 {
        let (catches, misses) = self.verdicts.get(&(site.file, number)).copied().unwrap_or_default();
        executions.saturating_mul(16 * (1 + Self::WEIGHT * misses)) / (1 + Self::WEIGHT * catches)
    }
}

/// Ends the run, also when the test panics.
struct Ending;

impl Drop for Ending {
    fn drop(&mut self) {
        UNDER_WAY.take();
    }
}

impl Sweeping {
    fn run(plan: &'static Plan, only: Option<usize>, test: impl FnOnce() -> Report) -> (Report, Reached) {
        plan.forget();
        UNDER_WAY.set(Some(Sweeping { plan, only, inside: false, reached: Reached::default() }));
        let _ending = Ending;
        let report = test();
        let mut reached = UNDER_WAY.take().map(|sweeping| sweeping.reached).unwrap_or_default();
        let between = reached.note(plan);
        reached.between.extend(between);
        (report, reached)
    }

    /// Before an exploration: whether it is to run.
    fn enter(&mut self) -> bool {
        let between = self.reached.note(self.plan);
        self.reached.between.extend(between);
        let number = self.reached.explorations.len();
        let wanted = self.only.is_none_or(|only| only == number);
        self.inside = wanted;
        if !wanted {
            self.reached.explorations.push(Default::default());
        }
        wanted
    }

    fn leave(&mut self, executions: u64) {
        self.inside = false;
        let sites = self.reached.note(self.plan);
        self.reached.explorations.push((sites, executions));
    }
}

/// Runs an exploration; in a sweep, if it is wanted, and quickly: without looking for small failures or suggestions.
pub(crate) fn exploration(run: impl FnOnce(bool) -> Report) -> Report {
    let with = |f: &mut dyn FnMut(&mut Sweeping)| {
        UNDER_WAY.with_borrow_mut(|sweeping| sweeping.as_mut().map(f));
    };
    let (mut sweeps, mut outermost, mut wanted) = (false, false, true);
    with(&mut |sweeping| {
        (sweeps, outermost) = (true, !sweeping.inside);
        wanted = !outermost || sweeping.enter();
    });
    if !wanted {
        return Report::default();
    }
    let report = run(sweeps);
    if outermost {
        with(&mut |sweeping| sweeping.leave(report.executions));
    }
    report
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A sweep with one missed site in this file.
    fn missed_at(line: u32) -> Sweep {
        let site = Site { file: file!(), line, column: 1, kind: SiteKind::Fence };
        let report = Report::default();
        let mutant = Mutant { site, mutation: Mutation::Drop, hits: 1, report, time: std::time::Duration::ZERO };
        Sweep { baseline: Report::default(), mutants: vec![mutant] }
    }

    fn labelled() -> [u32; 2] {
        // PERSIST AB-1, AB-2: flush
        let first = line!();
        // PERSIST AB-3: fence
        [first, line!()]
    }

    fn is_excused(line: u32, except: &[&str]) -> bool {
        std::panic::catch_unwind(|| missed_at(line).assert_all_caught(except)).is_ok()
    }

    #[test]
    fn an_excuse_is_for_the_sites_under_its_label_and_must_be_needed() {
        let [first, second] = labelled();
        assert!(!is_excused(first, &[]));
        for label in ["mutation.rs:AB-1", "src/mutation.rs:AB-2"] {
            assert!(is_excused(first, &[label]) && !is_excused(second, &[label]), "{label}");
        }
        assert!(is_excused(second, &["mutation.rs:AB-3"]) && !is_excused(first, &["mutation.rs:AB-3"]));
        assert!(!is_excused(first, &["other.rs:AB-1"]), "another file");
        assert!(is_excused(first, &[&format!("mutation.rs:{first}")]));
        // A second one that excuses nothing.
        assert!(!is_excused(first, &["mutation.rs:AB-1", "mutation.rs:AB-3"]));
        assert!(!is_excused(first, &["mutation.rs:AB-1", &format!("mutation.rs:{second}")]));
    }

    #[test]
    fn a_label_ends_with_its_block() {
        let line = line!();
        assert_eq!(labels_of(file!(), line), [""; 0], "those of the function above");
    }
}
