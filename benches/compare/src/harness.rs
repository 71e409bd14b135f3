//! The one harness for all: the same keys, the same threads, in turn.
//!
//! Each peer is filled with the same keys first, one peer after the other, and its memory is measured. Then come rounds, in
//! which all peers take turns: inserting new keys, each durable (what a store calls a commit) or durable every 64 ms, getting
//! keys that are there, scanning ten keys. Ratios are taken within rounds.

use std::fmt::Write as _;
use std::time::Instant;

use comfy_table::{CellAlignment, Table, presets};
use durix_bench::interleave::{Contestant, Outcome, Series, interleave};
use durix_bench::machine::Machine;

use crate::peers;
use crate::peers::peer::{Error, Make, Peer, Worker};
use crate::peers::value::LONG;
use crate::plan::{EVERY, Plan, SCAN, WARM_UP};

/// What a round does, in order.
pub const PHASES: [&str; 4] = ["insert", "commit each", "get", "scan of 10"];

const INSERT: usize = 0;
const GET: usize = 2;
const SCANNING: usize = 3;

/// Keys that are inserted at a time while a peer is filled.
const PIECE: u64 = 1 << 18;

/// Key number `i`: spread over all 64 bits, different for each `i`, never 0.
pub fn key(i: u64) -> u64 {
    let mut z = i.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    z = (z ^ z >> 32).wrapping_mul(0xd6e8_feb8_6659_fd93);
    z ^ z >> 32
}

/// Bytes that a peer takes.
#[derive(Clone, Copy, Debug, Default)]
pub struct Footprint {
    /// Memory of the process.
    pub memory: u64,
    /// Files.
    pub storage: u64,
}

/// A peer in rounds.
struct Rounds {
    peer: Box<dyn Peer>,
    plan: Plan,
    /// Keys that are there.
    keys: u64,
    /// Nanoseconds a key while the peer was filled, alone.
    filling: f64,
    footprint: Footprint,
}

impl Rounds {
    /// Fills a peer.
    fn fill(make: Make, plan: Plan) -> Result<Rounds, Error> {
        let before = anonymous_memory();
        let peer = make(&plan)?;
        let mut rounds = Rounds { peer, plan, keys: 0, filling: 0.0, footprint: Footprint::default() };
        // Piece by piece, so that the list of keys to insert does not count as memory of the peer.
        let mut time = 0.0;
        while rounds.keys < plan.keys {
            let count = PIECE.min(plan.keys - rounds.keys);
            time += rounds.insert(count) * count as f64;
        }
        rounds.filling = time / plan.keys as f64;
        rounds.footprint =
            Footprint { memory: anonymous_memory().saturating_sub(before), storage: rounds.peer.storage() };
        Ok(rounds)
    }

    /// Runs `work` on as many threads as planned, each with its part of `count` numbers from `from` on.
    fn spread(
        &self,
        from: u64,
        count: u64,
        work: &(dyn Fn(&mut dyn Worker, &[u64]) + Sync),
        pick: &(dyn Fn(u64) -> u64 + Sync),
    ) -> f64 {
        let part = count.div_ceil(self.plan.threads);
        let parts: Vec<Vec<u64>> = (0..self.plan.threads)
            .map(|t| (from + t * part..from + ((t + 1) * part).min(count)).map(pick).collect())
            .collect();
        let start = Instant::now();
        if let [keys] = &parts[..] {
            work(&mut *self.peer.worker(), keys);
        } else {
            std::thread::scope(|scope| {
                parts.iter().for_each(|keys| _ = scope.spawn(|| work(&mut *self.peer.worker(), keys)));
            });
        }
        start.elapsed().as_nanos() as f64 / count as f64
    }

    fn insert(&mut self, count: u64) -> f64 {
        let time = self.spread(self.keys, count, &|worker, keys| worker.insert(keys), &key);
        self.keys += count;
        time
    }

    fn commit_each(&mut self, count: u64) -> f64 {
        if !self.peer.is_durable() {
            return f64::NAN;
        }
        let time = self.spread(self.keys, count, &|worker, keys| worker.insert_each_durably(keys), &key);
        self.keys += count;
        time
    }

    /// A key that is there, by a number that changes from round to round.
    fn existing(&self) -> impl Fn(u64) -> u64 + Sync {
        let keys = self.keys;
        move |i| key(((u128::from(key(i ^ keys << 32)) * u128::from(keys)) >> 64) as u64)
    }

    fn get(&self, count: u64) -> f64 {
        let name = self.peer.name().to_owned();
        let work = move |worker: &mut dyn Worker, keys: &[u64]| {
            assert_eq!(worker.get(keys), keys.len(), "{name} has lost keys");
        };
        self.spread(0, count, &work, &self.existing())
    }

    fn scan(&self, count: u64) -> f64 {
        if !self.peer.is_ordered() {
            return f64::NAN;
        }
        let name = self.peer.name().to_owned();
        // All but the few scans that start at the last keys find as many as they ask for.
        let work = move |worker: &mut dyn Worker, keys: &[u64]| {
            let found = worker.scan(keys);
            assert!(found * 100 >= keys.len() * SCAN * 99, "{name} finds {found} in {} scans", keys.len());
        };
        self.spread(0, count, &work, &self.existing())
    }
}

impl Contestant<4> for Rounds {
    fn name(&self) -> &str {
        self.peer.name()
    }

    fn round(&mut self) -> [f64; 4] {
        let plan = self.plan;
        [self.insert(plan.inserts), self.commit_each(plan.commits), self.get(plan.gets), self.scan(plan.scans)]
    }
}

/// Bytes of anonymous memory of this process.
fn anonymous_memory() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|l| l.strip_prefix("RssAnon:"));
    line.and_then(|l| l.trim().trim_end_matches(" kB").parse::<u64>().ok()).unwrap_or(0) * 1024
}

/// What one peer did.
#[derive(Debug)]
pub struct Row {
    /// Its times.
    pub outcome: Outcome<4>,
    /// What survives what.
    pub durability: &'static str,
    /// How it was set up.
    pub parameters: String,
    /// Nanoseconds a key while it was filled: once, alone, not interleaved.
    pub filling: f64,
    /// Bytes a key.
    pub footprint: Footprint,
    /// Keys when the footprint was measured.
    pub keys: u64,
}

/// Fills and measures all peers.
///
/// # Errors
/// What a peer refuses.
pub fn measure(plan: Plan, make: &[Make]) -> Result<Vec<Row>, Error> {
    let mut rounds: Vec<Rounds> = Vec::new();
    for make in make {
        rounds.push(Rounds::fill(*make, plan)?);
        let last = rounds.last().expect("just pushed");
        eprintln!("filled {} ({})", last.peer.name(), last.peer.parameters());
    }
    let about: Vec<_> =
        rounds.iter().map(|r| (r.peer.durability(), r.peer.parameters(), r.filling, r.footprint)).collect();
    let mut contestants: Vec<Box<dyn Contestant<4>>> = rounds.into_iter().map(|r| Box::new(r) as _).collect();
    let outcomes = interleave(&mut contestants, WARM_UP, plan.rounds);
    let row = |(outcome, (durability, parameters, filling, footprint))| Row {
        outcome,
        durability,
        parameters,
        filling,
        footprint,
        keys: plan.keys,
    };
    Ok(outcomes.into_iter().zip(about).map(row).collect())
}

/// The table of peers with values of `value` bytes, and how each was set up.
pub fn render(plan: &Plan, value: usize, rows: &[Row]) -> String {
    let mut table = Table::new();
    table.load_preset(presets::ASCII_MARKDOWN);
    let header = ["", "survives", "fill", "insert", "commit each", "get", "scan of 10", "bytes a key: memory", "files"];
    table.set_header(header);
    table.column_iter_mut().skip(2).for_each(|c| c.set_cell_alignment(CellAlignment::Right));
    for row in rows {
        let rate = |phase: usize| rate(&row.outcome.phases[phase]);
        let bytes = |bytes: u64| format!("{:.0}", bytes as f64 / row.keys as f64);
        let Footprint { memory, storage } = row.footprint;
        let [name, survives] = [row.outcome.name.clone(), row.durability.to_owned()];
        let fill = format!("{:.2}", 1000.0 / row.filling);
        table.add_row([name, survives, fill, rate(0), rate(1), rate(2), rate(3), bytes(memory), bytes(storage)]);
    }
    let setups: String = rows.iter().map(|r| format!("{}: {}\n", r.outcome.name, r.parameters)).collect();
    format!(
        "{}\n{} keys of 8 bytes with values of {value}, {} thread(s); million operations a second, medians of {} interleaved \
         rounds\nfill: all keys, once, alone; insert: stores make durable every {} ms; commit each: every insert is durable when it returns\n{table}\n{setups}",
        Machine::this(),
        plan.keys,
        plan.threads,
        plan.rounds,
        EVERY.as_millis(),
    )
}

/// What part of the bare tree's speed the facade is to have.
const FACADE_GOAL: f64 = 0.9;
/// How many times as many scans as LMDB the bare tree is to do with long values.
const SCAN_GOAL: f64 = 1.3;

/// The ratios that there are goals for, a line each, as far as both sides were measured.
pub fn goals(value: usize, rows: &[Row]) -> String {
    let row = |name: &str| rows.iter().find(|row| row.outcome.name == name);
    let (Some(bare), mut text) = (row(peers::BARE), String::new()) else { return String::new() };
    let mut tell = |what: &str, ours: &Row, other: &Row, phase: usize, goal: f64| {
        // Times, so the other's stands above.
        let ratio = other.outcome.phases[phase].ratio_to(&ours.outcome.phases[phase]).median();
        let verdict = if ratio >= goal { "holds" } else { "does not hold" };
        let _ = writeln!(text, "{what}, values of {value} bytes: {ratio:.2}, goal at least {goal}: {verdict}");
    };
    if let Some(facade) = row(peers::FACADE) {
        for phase in [GET, INSERT, SCANNING] {
            tell(&format!("facade to bare tree, {}", PHASES[phase]), facade, bare, phase, FACADE_GOAL);
        }
    }
    if let Some(lmdb) = row(peers::LMDB).filter(|_| value == LONG) {
        tell("bare tree to LMDB, scan of 10", bare, lmdb, SCANNING, SCAN_GOAL);
    }
    text
}

/// Million operations a second, and the spread.
fn rate(series: &Series) -> String {
    if series.samples().iter().any(|s| s.is_nan()) {
        return "–".into();
    }
    let rate = 1000.0 / series.median();
    let digits = if rate < 0.1 { 4 } else { 2 };
    format!("{rate:.digits$} ±{:.0}%", series.spread() * 100.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_peers_keep_what_they_are_given() {
        let plan = Plan { keys: 3000, inserts: 200, commits: 20, gets: 500, scans: 100, rounds: 2, threads: 1 };
        let [words, long] = peers::select(&[]).unwrap();
        let rows = measure(plan, &words).unwrap();
        assert_eq!(rows.len(), peers::ALL.len());
        let text = render(&plan, 8, &rows);
        for name in [
            "Durix Masstree",
            "Durix OrderedMap",
            "redb",
            "LMDB",
            "fjall",
            "sled",
            "masstree",
            "congee",
            "scc",
            "skiplist",
            "dashmap",
        ] {
            assert!(text.contains(name), "{name} is missing in\n{text}");
        }
        assert_eq!(goals(8, &rows).lines().count(), 3);
        let rows = measure(plan, &long).unwrap();
        let (text, goals) = (render(&plan, LONG, &rows), goals(LONG, &rows));
        assert!(text.contains("values of 100") && rows.len() == peers::WITH_LONG_VALUES.len(), "{text}");
        assert!(goals.lines().count() == 4 && goals.contains("bare tree to LMDB, scan of 10"), "{goals}");
    }

    #[test]
    fn a_goal_is_the_ratio_of_speeds() {
        let row = |name: &str, ns: f64| Row {
            outcome: Outcome { name: name.into(), phases: std::array::from_fn(|_| Series::new(vec![ns])) },
            durability: "",
            parameters: String::new(),
            filling: 1.0,
            footprint: Footprint::default(),
            keys: 1,
        };
        let rows = [row(peers::BARE, 100.0), row(peers::FACADE, 125.0), row(peers::LMDB, 140.0)];
        let text = goals(LONG, &rows);
        assert!(
            text.contains("facade to bare tree, get, values of 100 bytes: 0.80, goal at least 0.9: does not hold"),
            "{text}"
        );
        assert!(
            text.contains("bare tree to LMDB, scan of 10, values of 100 bytes: 1.40, goal at least 1.3: holds"),
            "{text}"
        );
        assert_eq!(goals(LONG, &rows[1..]), "");
    }

    #[test]
    fn all_peers_work_with_threads() {
        let plan = Plan { keys: 3000, inserts: 200, commits: 20, gets: 500, scans: 100, rounds: 1, threads: 3 };
        let [words, long] = peers::select(&[]).unwrap();
        measure(plan, &words).unwrap();
        measure(plan, &long).unwrap();
    }

    #[test]
    fn keys_differ() {
        let keys: std::collections::HashSet<u64> = (0..100_000).map(key).collect();
        assert_eq!(keys.len(), 100_000);
    }
}
