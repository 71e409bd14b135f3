//! The outcome as tables, as JSON, and as the last line.

use std::fmt::Write;
use std::time::Duration;

use comfy_table::presets::NOTHING;
use comfy_table::{CellAlignment, Table};

use crate::scenario::Bound;
use crate::sweep::Fault;

const BOUNDS: [Bound; 6] =
    [Bound::Sequential, Bound::TwoThreads, Bound::Recovery, Bound::Allocator, Bound::Tearing, Bound::Count];

/// What the letters mean.
pub const LEGEND: &str = "\
caught by: S sequential operations and one crash, C two threads, R operations after the crash, a crash in the recovery or a
process that died before, A the check of the space, T torn lines, N the count of write-backs and fences";

fn empty(header: &[&str], numbers: std::ops::Range<usize>) -> Table {
    let mut table = Table::new();
    table.load_preset(NOTHING).set_header(header);
    for number in numbers {
        table.column_mut(number).expect("a column").set_cell_alignment(CellAlignment::Right);
    }
    table
}

fn millis(time: Duration) -> String {
    format!("{:.1}", time.as_secs_f64() * 1e3)
}

fn verdict(fault: &Fault) -> String {
    match (&fault.caught, &fault.shown) {
        (Some(bound), _) => bound.to_string(),
        (None, Some(shown)) if shown.redundant => "REDUNDANT".into(),
        (None, Some(_)) => "changes nothing".into(),
        (None, None) => "MISSED".into(),
    }
}

/// A row a fault.
pub fn faults(faults: &[Fault]) -> String {
    let header = ["structure", "place", "fault", "caught", "by", "executions", "ms"];
    let mut table = empty(&header, 5..7);
    for fault in faults {
        let (executions, ms) = (fault.executions.to_string(), millis(fault.time));
        table.add_row([&fault.structure, &fault.place, &fault.kind, &verdict(fault), &fault.by, &executions, &ms]);
    }
    table.to_string()
}

/// A row a pattern.
pub fn patterns(patterns: &[Fault]) -> String {
    let mut table = empty(&["planted pattern", "class", "caught", "executions", "ms"], 3..5);
    for pattern in patterns {
        let (executions, ms) = (pattern.executions.to_string(), millis(pattern.time));
        table.add_row([&pattern.place, &pattern.kind, &verdict(pattern), &executions, &ms]);
    }
    table.to_string()
}

/// A row a structure: how many faults, and by which bound they were caught.
pub fn structures(faults: &[Fault]) -> String {
    let header =
        ["structure", "faults", "caught", "S", "C", "R", "A", "T", "N", "executions", "median ms", "longest ms"];
    let mut table = empty(&header, 1..12);
    for group in faults.chunk_by(|a, b| a.structure == b.structure) {
        let counted: Vec<&Fault> = group.iter().filter(|fault| !fault.is_excluded()).collect();
        let mut times: Vec<Duration> = counted.iter().map(|fault| fault.time).collect();
        times.sort_unstable();
        let by = |bound: &Bound| counted.iter().filter(|fault| fault.caught == Some(*bound)).count();
        let mut row = vec![group[0].structure.clone(), counted.len().to_string()];
        row.push(counted.iter().filter(|fault| fault.caught.is_some()).count().to_string());
        row.extend(BOUNDS.iter().map(|bound| by(bound).to_string()));
        row.push(counted.iter().map(|fault| fault.executions).sum::<u64>().to_string());
        row.extend(
            [times.get(times.len() / 2), times.last()].map(|time| time.map_or_else(String::new, |t| millis(*t))),
        );
        table.add_row(row);
    }
    table.to_string()
}

/// The faults that change nothing, a line each, with the reason and how it was checked.
pub fn excluded(faults: &[Fault]) -> String {
    let mut out = String::new();
    for (fault, shown) in faults.iter().filter_map(|fault| Some((fault, fault.shown.as_ref()?))) {
        writeln!(
            out,
            "{} {} {}: {}\n  shown: in {} scenarios the same can be recovered at each point, completely ({} recoveries)",
            fault.structure, fault.place, fault.kind, shown.reason, shown.scenarios, shown.executions
        )
        .expect("text");
    }
    out
}

/// The last line. A fault is caught, or the call is redundant, which is shown, or it is missed. Faults that are shown to change
/// nothing although the call is needed do not count.
pub fn summary(faults: &[Fault]) -> String {
    let counted: Vec<&Fault> = faults.iter().filter(|fault| !fault.is_excluded()).collect();
    let caught = counted.iter().filter(|fault| fault.caught.is_some()).count();
    let missed = counted.iter().filter(|fault| fault.is_missed()).count();
    let redundant = counted.len() - caught - missed;
    format!("sites {}, caught {caught}, redundant {redundant}, missed {missed}", counted.len())
}

/// One object a line.
pub fn json(faults: &[Fault]) -> String {
    let quote = |text: &str| format!("\"{}\"", text.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n"));
    let mut out = String::new();
    for fault in faults {
        let caught = fault.caught.map_or("null".to_owned(), |bound| quote(&bound.to_string()));
        write!(
            out,
            "{{\"structure\":{},\"place\":{},\"fault\":{},\"verdict\":{},\"caught\":{caught},\"by\":{},\"executions\":{},\
             \"ms\":{:.3}",
            quote(&fault.structure),
            quote(&fault.place),
            quote(&fault.kind),
            quote(&verdict(fault)),
            quote(&fault.by),
            fault.executions,
            fault.time.as_secs_f64() * 1e3
        )
        .expect("text");
        if let Some(told) = &fault.told {
            let suggestion = told.failure.suggestion.as_deref().map_or("null".to_owned(), quote);
            write!(
                out,
                ",\"operations\":{},\"preemptions\":{},\"lines\":{},\"replays\":{},\"suggestion\":{suggestion},\
                 \"named\":{}",
                told.ops, told.failure.preemptions, told.failure.deviating, told.replays, told.named
            )
            .expect("text");
        }
        out += "}\n";
    }
    out
}
