//! `kinds`: the kinds of index, from their entries, and what was measured of them. The table of `docs/guide/which-kind.md` is its output.

use durix::kind::{self, DEFAULT, DEFAULT_ORDERED, Entry};
use durix::{Durability, Lengths};
use serde_json::{Value, json};

use crate::args::KindsArgs;
use crate::failure::{Code, Failure};
use crate::output::{self, table};

const HEADER: [&str; 13] = [
    "kind",
    "keys",
    "values",
    "ordered",
    "durable",
    "insert ns",
    "put ns",
    "get ns",
    "scan ns",
    "recovery ms",
    "bytes/key",
    "DRAM/key",
    "what it is",
];

/// What `durix bench --keys-from keys --key-type u64 --json` printed for 200,000 numbers in random order.
const MEASURED: &str = include_str!("measured.json");
/// Where and when.
const MEASURED_ON: &str = "26 November 2026, AMD EPYC, 2 processors, beside other work";

pub fn run(args: &KindsArgs) -> Result<Code, Failure> {
    let kinds = if args.all { kind::kinds() } else { kind::offered() };
    if args.json {
        output::json(&json!({ "kinds": kinds.iter().map(as_json).collect::<Vec<_>>() }))?;
    } else if args.markdown {
        output::line(&markdown(&kinds))?;
    } else {
        output::line(&table(&HEADER, kinds.iter().map(|entry| row(entry).into()).collect(), &[5, 6, 7, 8, 9, 10, 11]))?;
        output::line(&format!(
            "\nMeasured with 200,000 keys of 8 bytes and values of 8 bytes, one thread, on memory that stands for persistent memory, on\n\
             {MEASURED_ON}.\nYour keys: durix bench --keys-from FILE"
        ))?;
    }
    Ok(Code::Done)
}

/// The figures of a kind, by their names; null where it was not measured.
fn measured(entry: &Entry) -> Value {
    let all: Value = serde_json::from_str(MEASURED).unwrap_or_default();
    let kinds = all["kinds"].as_array().into_iter().flatten();
    let Some(found) = kinds.filter(|kind| kind["kind"] == entry.name).find_map(Value::as_object) else {
        return Value::Null;
    };
    let others = ["kind", "ordered", "strict", "open_ms"];
    found
        .iter()
        .filter(|(name, _)| !others.contains(&name.as_str()))
        .map(|(name, value)| (name.clone(), value.clone()))
        .collect()
}

fn markdown(kinds: &[Entry]) -> String {
    let line = |cells: [String; HEADER.len()]| format!("| {} |", cells.join(" | "));
    let rows = kinds.iter().map(|entry| {
        let mut cells = row(entry);
        cells[0] = cells[0].replacen(entry.name, &format!("`{}`", entry.name), 1);
        line(cells)
    });
    let head = [line(HEADER.map(str::to_owned)), "|---".repeat(HEADER.len()) + "|"];
    head.into_iter().chain(rows).collect::<Vec<_>>().join("\n")
}

fn row(entry: &Entry) -> [String; HEADER.len()] {
    let of = |what: &str| format!("{} (default of {what})", entry.name);
    let name = match entry.name {
        DEFAULT => of("maps"),
        DEFAULT_ORDERED => of("ordered maps"),
        name if entry.experimental => format!("{name} (experimental)"),
        name => name.into(),
    };
    let measured = measured(entry);
    let figure = |name: &str| measured[name].as_f64().map_or_else(|| "-".into(), |value| format!("{value:.0}"));
    let recovery = measured["recovery_ms"].as_f64().map_or_else(|| "-".into(), |value| format!("{value:.1}"));
    let ordered = if entry.ordered { "yes" } else { "no" };
    [
        name,
        lengths(entry.limits.key),
        lengths(entry.limits.value),
        ordered.into(),
        durable(entry).into(),
        figure("insert_ns"),
        figure("put_ns"),
        figure("get_ns"),
        figure("scan_ns_per_entry"),
        recovery,
        figure("bytes_per_key"),
        figure("volatile_bytes_per_key"),
        entry.about.into(),
    ]
}

fn durable(entry: &Entry) -> &'static str {
    match entry.durability {
        Durability::Strict => "on return",
        _ => "at checkpoints",
    }
}

fn lengths(lengths: Lengths) -> String {
    match lengths {
        Lengths::Exactly(len) => format!("{len} bytes"),
        Lengths::UpTo(len) if len % (1 << 20) == 0 => format!("to {} MiB", len >> 20),
        Lengths::UpTo(len) if len % (1 << 10) == 0 => format!("to {} KiB", len >> 10),
        Lengths::UpTo(len) => format!("to {len} bytes"),
    }
}

fn as_json(entry: &Entry) -> Value {
    let limit = |lengths| match lengths {
        Lengths::Exactly(len) => json!({ "exactly": len }),
        Lengths::UpTo(len) => json!({ "up_to": len }),
    };
    json!({
        "kind": entry.name,
        "about": entry.about,
        "ordered": entry.ordered,
        "durable": durable(entry),
        "key_bytes": limit(entry.limits.key),
        "value_bytes": limit(entry.limits.value),
        "meant_for": (entry.meant_for < u64::MAX).then_some(entry.meant_for),
        "unbalanced": entry.unbalanced,
        "experimental": entry.experimental,
        "measured": measured(entry),
    })
}
