//! What the tool has to reach over all faults, and what it has reached.

use std::fmt;
use std::time::Duration;

use crate::scenario::Told;
use crate::sweep::Fault;

/// One goal.
#[derive(Clone, Debug)]
pub struct Goal {
    /// What is measured.
    pub what: &'static str,
    /// What was reached.
    pub reached: String,
    /// What is asked for.
    pub asked: &'static str,
    /// Whether it holds.
    pub holds: bool,
}

impl fmt::Display for Goal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Goal { what, reached, asked, holds } = self;
        write!(f, "{}  {what}: {reached} (asked for: {asked})", if *holds { "holds   " } else { "NOT MET " })
    }
}

/// The goals, as far as these faults tell: the last ones only where failures were shrunk.
pub fn goals(faults: &[Fault]) -> Vec<Goal> {
    let tried: Vec<&Fault> = faults.iter().filter(|fault| !fault.is_excluded()).collect();
    let mut goals = Vec::new();
    goals.extend(times(&tried));
    let told: Vec<(&Fault, &Told)> = tried.iter().filter_map(|f| Some((*f, f.told.as_ref()?))).collect();
    if told.is_empty() {
        return goals;
    }
    let small = told.iter().filter(|(_, told)| told.is_small()).count();
    let what = "shrunk failures of at most 3 operations, 2 preemptions and 2 deviating lines";
    goals.push(share(what, small, told.len(), 95, "95 %"));
    let dropped: Vec<_> = told.iter().filter(|(fault, _)| fault.droppable).collect();
    let named = dropped.iter().filter(|(_, told)| told.named).count();
    let what = "dropped write-backs and fences that the suggested fix puts back, named first";
    goals.push(share(what, named, dropped.len(), 90, "90 %"));
    let replayed = told.iter().filter(|(_, told)| told.replays).count();
    goals.push(share("failures whose replay string gives exactly the same again", replayed, told.len(), 100, "all"));
    goals
}

fn share(what: &'static str, good: usize, all: usize, percent: usize, asked: &'static str) -> Goal {
    let reached = format!("{good} of {all}, {:.1} %", good as f64 * 100.0 / all.max(1) as f64);
    Goal { what, reached, asked, holds: good * 100 >= all * percent }
}

/// Processor time until each was caught.
fn times(tried: &[&Fault]) -> Vec<Goal> {
    let mut times: Vec<(Duration, &Fault)> = tried.iter().map(|fault| (fault.time, *fault)).collect();
    times.sort_by_key(|(time, _)| *time);
    let Some((longest, slowest)) = times.last() else { return Vec::new() };
    let median = times[times.len() / 2].0;
    vec![
        Goal {
            what: "longest time to catch one, on one core",
            reached: format!("{longest:.1?}, {} {} {}", slowest.structure, slowest.place, slowest.kind),
            asked: "10 s",
            holds: longest.as_secs() < 10,
        },
        Goal {
            what: "median time to catch one",
            reached: format!("{median:.1?}"),
            asked: "0.2 s",
            holds: median < Duration::from_millis(200),
        },
    ]
}
