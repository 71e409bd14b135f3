//! `stat --watch`: figures of a pool, again and again, while another process works on it.

use std::path::Path;
use std::time::{Duration, SystemTime};

use durix::Pool;
use durix_pmem::pool::Stats;
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
        output::line(&line(["size", "in use", "change", "free", "journal", "indices"], "state"))?;
    }
    let mut before = None;
    for nth in 0..args.times.unwrap_or(u64::MAX) {
        if nth > 0 {
            std::thread::sleep(Duration::from_secs(seconds.into()));
        }
        let now = Figures::of(&Pool::peek(path)?, path);
        if args.stat.json {
            output::json(&now.as_json())?;
        } else {
            output::line(&now.as_text(before))?;
        }
        before = Some(now.used);
    }
    Ok(Code::Done)
}

struct Figures {
    size: u64,
    used: u64,
    free: u64,
    /// Bytes of the file of the journal; none where there is none.
    journal: Option<u64>,
    indices: usize,
    state: &'static str,
}

fn line(cells: [&str; 6], state: &str) -> String {
    let [size, used, change, free, journal, indices] = cells;
    format!("{size:>12} {used:>12} {change:>12} {free:>12} {journal:>12} {indices:>8}  {state}")
}

impl Figures {
    fn of(stats: &Stats, path: &Path) -> Self {
        let mut journal = path.as_os_str().to_owned();
        journal.push("-journal");
        Figures {
            size: stats.size,
            used: stats.space.total.saturating_sub(stats.space.free),
            free: stats.space.free,
            journal: std::fs::metadata(journal).ok().map(|file| file.len()),
            indices: pools::listed(stats.indices.clone()).len(),
            state: stat::state(stats.state),
        }
    }

    fn as_text(&self, before: Option<u64>) -> String {
        let change = match before {
            None => "-".into(),
            Some(before) if before <= self.used => format!("+{}", human(self.used - before)),
            Some(before) => format!("-{}", human(before - self.used)),
        };
        let journal = self.journal.map_or_else(|| "-".into(), human);
        let cells =
            [&human(self.size), &human(self.used), &change, &human(self.free), &journal, &self.indices.to_string()];
        line(cells.map(String::as_str), self.state)
    }

    fn as_json(&self) -> serde_json::Value {
        let seconds = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0.0, |time| time.as_secs_f64());
        json!({
            "time": seconds, "state": self.state, "size": self.size, "used": self.used, "free": self.free,
            "journal": self.journal, "indices": self.indices,
        })
    }
}
