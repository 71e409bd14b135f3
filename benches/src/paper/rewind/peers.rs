//! Not a figure of the paper as such: figure 9's peers, with stores of today. A B+-tree of 100 000 records, a durable commit for each
//! operation, ours in persistent memory beside redb and LMDB, in memory and on a disk with its syncs. The stores are built and run by a
//! program of the workspace that has them, `benches/compare/journal`; this reads what it prints.

use std::process::{Command, Stdio};

use durix_pmem::Medium;

use crate::interleave::Series;
use crate::paper::report::{Claim, Form, Panel, Point};
use crate::paper::{Context, Error, Figure, Measured};
use crate::workload::medium;

pub(in crate::paper) const FIGURE: Figure = super::micro::figure(
    "rewind-peers",
    "a B+-tree of 100000 records, a durable commit for each operation, beside redb and LMDB",
    run,
);

const MANIFEST: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/compare/Cargo.toml");
const OURS: &str = "bplustree";
/// Store, where it lies, and how many times as fast ours is to be.
const GOALS: [(&str, &str, f64); 4] =
    [("redb", "memory", 10.0), ("LMDB", "memory", 5.0), ("redb", "disk", 100.0), ("LMDB", "disk", 100.0)];

/// What one store did: operations a second of each round.
#[derive(Debug, PartialEq)]
struct Row {
    directory: String,
    system: String,
    store: String,
    rates: Vec<f64>,
}

/// The lines of the program, `None` if one of them is not as it has to be.
fn parse(text: &str) -> Option<Vec<Row>> {
    let lines = text.lines().filter(|line| !line.starts_with('#'));
    let row = |line: &str| {
        let mut fields = line.split('\t').map(str::to_owned);
        let (directory, system, store) = (fields.next()?, fields.next()?, fields.next()?);
        let rates: Vec<f64> = fields.map(|rate| rate.parse().ok()).collect::<Option<_>>()?;
        (!rates.is_empty()).then_some(Row { directory, system, store, rates })
    };
    let rows: Vec<Row> = lines.map(row).collect::<Option<_>>()?;
    let rounds = rows.first()?.rates.len();
    rows.iter().all(|row| row.rates.len() == rounds).then_some(rows)
}

fn run(context: &Context<'_>) -> Result<Measured, Error> {
    let place = &context.places[0];
    context.expect(1, 1);
    context.now("the stores are built and run");
    let failed = |source| Error::File { action: "running cargo for", path: MANIFEST.into(), source };
    let mut cargo = Command::new("cargo");
    cargo.args(["run", "--release", "--manifest-path", MANIFEST, "-p", "durix-journal-peers", "--", "--records"]);
    cargo.args(context.quick.then_some("--quick")).env("DURIX_DIR", &place.dir).stderr(Stdio::inherit());
    let output = cargo.output().map_err(failed)?;
    if !output.status.success() {
        return Err(failed(std::io::Error::other(format!("it ended with {}; it has said why", output.status))));
    }
    let text = String::from_utf8_lossy(&output.stdout);
    let rows = parse(&text).ok_or_else(|| failed(std::io::Error::other(format!("it printed {text:?}"))))?;
    context.tick();
    report(context, &rows)
}

fn report(context: &Context<'_>, rows: &[Row]) -> Result<Measured, Error> {
    let place = &context.places[0];
    let rounds = rows.first().map_or(0, |row| row.rates.len());
    let how = format!("medians of {rounds} rounds in turn, time that passes, one thread; ratios within rounds");
    let panel = Panel::new("a commit for each insertion and removal", place, medium().describe(), how);
    let x = rows.iter().map(|row| format!("{}, {}", row.store, row.directory)).collect();
    let mut panel = panel.axes("store", x, "thousand operations/s", Form::Bars);
    for (at, row) in rows.iter().enumerate() {
        let series = Series::new(row.rates.iter().map(|rate| rate / 1e3).collect());
        panel.set("rate", at, Point::nanoseconds(&series));
    }
    let ours = rows.iter().find(|row| row.store == OURS);
    let mut measured = Measured { panels: vec![panel], claims: Vec::new(), notes: Vec::new() };
    measured.notes.push(
        "ours takes its directory for persistent memory; the others write files and sync them, which in memory costs them the system call. \
         Nobody has a thread in the background"
            .into(),
    );
    for (store, system, goal) in GOALS {
        let Some(ours) = ours else { break };
        let Some(theirs) = rows.iter().find(|row| row.store == store && row.system == system) else {
            measured.notes.push(format!("{store}, {system}: no such directory; TMPDIR names the one of the disk"));
            continue;
        };
        let ratio = Series::new(ours.rates.clone()).ratio_to(&Series::new(theirs.rates.clone())).median();
        measured.claims.push(Claim {
            what: format!("commits a second to those of {store} in {} ({system})", theirs.directory),
            paper: format!("two orders of magnitude over its peers; goal {goal} times"),
            ours: format!("{ratio:.1} times"),
            holds: Some(ratio >= goal),
        });
    }
    Ok(measured)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_program_prints_is_read_or_refused() {
        let text = "# for people\n/dev/shm\tmemory\tbplustree\t1000.5\t900.0\n/tmp\tdisk\tredb\t10.0\t9.0\n";
        let rows = parse(text).unwrap();
        assert_eq!((rows.len(), rows[0].rates[0], rows[1].store.as_str()), (2, 1000.5, "redb"));
        for wrong in ["", "# nothing\n", "/tmp\tdisk\tredb\n", "/tmp\tdisk\tredb\tx\n", "a\tb\tc\t1\nd\te\tf\t1\t2\n"] {
            assert_eq!(parse(wrong), None, "{wrong:?}");
        }
    }
}
