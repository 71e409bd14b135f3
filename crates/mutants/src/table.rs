//! The outcome as a table, as JSON, and as the last line.

use std::fmt::Write;
use std::time::Duration;

use comfy_table::presets::NOTHING;
use comfy_table::{CellAlignment, Table};

use crate::sweep::Fault;

/// A row a fault.
pub fn table(faults: &[Fault]) -> String {
    let mut table = Table::new();
    table.load_preset(NOTHING).set_header(["structure", "place", "fault", "caught", "by", "executions", "ms"]);
    for fault in faults {
        let ms = format!("{:.1}", fault.time.as_secs_f64() * 1e3);
        let caught = fault.caught.map_or("MISSED".to_owned(), |bound| bound.to_string());
        let executions = fault.executions.to_string();
        table.add_row([&fault.structure, &fault.place, &fault.kind, &caught, &fault.by, &executions, &ms]);
    }
    for right in [5, 6] {
        table.column_mut(right).expect("a column").set_cell_alignment(CellAlignment::Right);
    }
    table.to_string()
}

/// What the failures are like: a line each.
pub fn quality(faults: &[Fault]) -> String {
    let mut out = String::new();
    let mut times: Vec<Duration> = faults.iter().map(|f| f.time).collect();
    times.sort_unstable();
    if let (Some(median), Some(longest)) = (times.get(times.len() / 2), times.last()) {
        let slow = times.iter().filter(|t| t.as_secs() >= 10).count();
        writeln!(out, "time to catch: median {median:.1?}, longest {longest:.1?}, {slow} of them 10 s or more")
            .expect("text");
    }
    let told: Vec<_> = faults.iter().filter_map(|f| Some((f, f.told.as_ref()?))).collect();
    if told.is_empty() {
        return out;
    }
    let percent = |name: &str, good: usize, all: usize| {
        format!("{name}: {good} of {all} ({:.1} %)\n", good as f64 * 100.0 / all.max(1) as f64)
    };
    let small = told.iter().filter(|(_, t)| t.ops <= 3 && t.failure.deviating <= 2).count();
    out += &percent("at most 3 operations and 2 deviating lines", small, told.len());
    out += &percent("replayed exactly", told.iter().filter(|(_, t)| t.replays).count(), told.len());
    let dropped: Vec<_> = told.iter().filter(|(f, _)| f.droppable).collect();
    let named = dropped.iter().filter(|(_, t)| t.named).count();
    out += &percent("dropped write-backs and fences that the suggestion puts back", named, dropped.len());
    out
}

/// The last line. A fault is caught or missed; nobody excuses one as redundant, since such a site is taken out of the code. So
/// that number is always zero, and stands there for those who read the line by its form.
pub fn summary(faults: &[Fault]) -> String {
    let missed = faults.iter().filter(|f| f.caught.is_none()).count();
    format!("sites {}, caught {}, redundant 0, missed {missed}", faults.len(), faults.len() - missed)
}

/// One object a line.
pub fn json(faults: &[Fault]) -> String {
    let quote = |text: &str| format!("\"{}\"", text.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n"));
    let mut out = String::new();
    for fault in faults {
        let caught = fault.caught.map_or("null".to_owned(), |bound| quote(&bound.to_string()));
        write!(
            out,
            "{{\"structure\":{},\"place\":{},\"fault\":{},\"caught\":{caught},\"by\":{},\"executions\":{},\"ms\":{:.3}",
            quote(&fault.structure),
            quote(&fault.place),
            quote(&fault.kind),
            quote(&fault.by),
            fault.executions,
            fault.time.as_secs_f64() * 1e3
        )
        .expect("text");
        if let Some(told) = &fault.told {
            let suggestion = told.failure.suggestion.as_deref().map_or("null".to_owned(), quote);
            write!(
                out,
                ",\"operations\":{},\"lines\":{},\"replays\":{},\"suggestion\":{suggestion},\"named\":{}",
                told.ops, told.failure.deviating, told.replays, told.named
            )
            .expect("text");
        }
        out += "}\n";
    }
    out
}
