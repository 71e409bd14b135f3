//! `stat --watch`: figures of a pool, again and again, while another process works on it.

use std::path::Path;
use std::time::{Duration, SystemTime};

use durix::Pool;
use durix_pmem::pool::{Progress, Stats};
use serde_json::json;

use super::stat;
use crate::args::WatchArgs;
use crate::failure::{Code, Failure};
use crate::output::{self, human};
use crate::pools;

pub fn run(args: &WatchArgs, seconds: u32) -> Result<Code, Failure> {
    let path = &args.stat.pool.pool;
    pools::must_be_there(path)?;
    if !args.stat.json {
        output::line(&line(["ops/s", "commits/s", "size", "in use", "change", "free", "journal", "indices"], "state"))?;
    }
    let mut before: Option<Figures> = None;
    for nth in 0..args.times.unwrap_or(u64::MAX) {
        if nth > 0 {
            std::thread::sleep(Duration::from_secs(seconds.into()));
        }
        let now = Figures::of(&Pool::peek(path)?, path);
        if args.stat.json {
            output::json(&now.as_json(before.as_ref()))?;
        } else {
            output::line(&now.as_text(before.as_ref()))?;
        }
        before = Some(now);
    }
    Ok(Code::Done)
}

struct Figures {
    time: SystemTime,
    /// What the pool tells of the work.
    progress: Option<Progress>,
    size: u64,
    used: u64,
    free: u64,
    /// Bytes of the file of the journal; none where there is none.
    journal: Option<u64>,
    indices: usize,
    state: &'static str,
}

fn line(cells: [&str; 8], state: &str) -> String {
    let [ops, commits, size, used, change, free, journal, indices] = cells;
    format!("{ops:>9} {commits:>9} {size:>10} {used:>10} {change:>10} {free:>10} {journal:>10} {indices:>7}  {state}")
}

impl Figures {
    fn of(stats: &Stats, path: &Path) -> Self {
        let mut journal = path.as_os_str().to_owned();
        journal.push("-journal");
        Figures {
            time: SystemTime::now(),
            progress: stats.progress,
            size: stats.size,
            used: stats.space.total.saturating_sub(stats.space.free),
            free: stats.space.free,
            journal: std::fs::metadata(journal).ok().map(|file| file.len()),
            indices: pools::listed(stats.indices.clone()).len(),
            state: stat::state(stats.state),
        }
    }

    /// Operations and commits a second since `before`; `None` where nothing tells them, or the pool was opened anew meanwhile.
    fn rates(&self, before: Option<&Figures>) -> [Option<f64>; 2] {
        let since = || Some((before?, before?.progress?, self.progress?));
        let Some((before, was, is)) = since() else { return [None, None] };
        let more = |is: Option<u64>, was: Option<u64>| is?.checked_sub(was?);
        let rate = |count: Option<u64>, [from, to]: [SystemTime; 2]| {
            let passed = to.duration_since(from).ok()?;
            Some(count? as f64 / passed.as_secs_f64().max(1e-3))
        };
        let looks = [before.time, self.time];
        // Operations were counted some time before the look. Without new ones they were not counted again.
        let counted = was.counted.zip(is.counted).filter(|(was, is)| was != is).map_or(looks, |(was, is)| [was, is]);
        [rate(more(is.operations, was.operations), counted), rate(more(is.commits, was.commits), looks)]
    }

    fn as_text(&self, before: Option<&Figures>) -> String {
        let rates = self.rates(before).map(|rate| rate.map_or_else(|| "-".into(), |rate| format!("{rate:.0}")));
        let change = match before.map(|before| before.used) {
            None => "-".into(),
            Some(before) if before <= self.used => format!("+{}", human(self.used - before)),
            Some(before) => format!("-{}", human(before - self.used)),
        };
        let journal = self.journal.map_or_else(|| "-".into(), human);
        let [ops, commits] = &rates;
        let (size, used, free, indices) =
            (human(self.size), human(self.used), human(self.free), self.indices.to_string());
        let cells = [ops, commits, &size, &used, &change, &free, &journal, &indices];
        line(cells.map(String::as_str), self.state)
    }

    fn as_json(&self, before: Option<&Figures>) -> serde_json::Value {
        let [ops, commits] = self.rates(before);
        let seconds = self.time.duration_since(SystemTime::UNIX_EPOCH).map_or(0.0, |time| time.as_secs_f64());
        json!({
            "time": seconds, "state": self.state, "size": self.size, "used": self.used, "free": self.free,
            "journal": self.journal, "indices": self.indices,
            "operations": self.progress.and_then(|progress| progress.operations),
            "commits": self.progress.and_then(|progress| progress.commits),
            "operations_per_second": ops, "commits_per_second": commits,
        })
    }
}
