//! `kinds`: the kinds of index, from their entries. The table of `docs/guide/which-kind.md` is its output.

use durix::kind::{self, Cost, DEFAULT, DEFAULT_ORDERED, Entry};
use durix::{Durability, Lengths};
use serde_json::{Value, json};

use crate::args::KindsArgs;
use crate::failure::{Code, Failure};
use crate::output::{self, table};

const HEADER: [&str; 12] = [
    "kind",
    "keys",
    "values",
    "ordered",
    "durable",
    "write",
    "read",
    "scan",
    "recovery",
    "bytes/key",
    "meant for",
    "what it is",
];
/// What the measured columns say.
const LEGEND: &str = "write, read, scan: time of a call in times of the fastest kind; recovery: time to open after a crash. Measured with 200,000 keys\n\
                      of 8 bytes in random order (lists: 500) and values of 8 bytes. `durix bench --keys-from FILE` measures your keys.";

pub fn run(args: &KindsArgs) -> Result<Code, Failure> {
    let kinds = if args.all { kind::kinds() } else { kind::offered() };
    if args.json {
        output::json(&json!({ "kinds": kinds.iter().map(as_json).collect::<Vec<_>>() }))?;
    } else if args.markdown {
        output::line(&markdown(&kinds))?;
    } else {
        let rows = kinds.iter().map(|entry| row(entry).into()).collect();
        output::line(&format!("{}\n\n{LEGEND}", table(&HEADER, rows, &MEASURED)))?;
    }
    Ok(Code::Done)
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

/// The columns of numbers.
const MEASURED: [usize; 5] = [5, 6, 7, 8, 9];

fn row(entry: &Entry) -> [String; HEADER.len()] {
    let of = |what: &str| format!("{} (default of {what})", entry.name);
    let name = match entry.name {
        DEFAULT => of("maps"),
        DEFAULT_ORDERED => of("ordered maps"),
        name if entry.experimental => format!("{name} (experimental)"),
        name => name.into(),
    };
    let meant_for = match entry.meant_for {
        u64::MAX if entry.unbalanced => "any number of keys, in random order".into(),
        u64::MAX => "any number of keys".into(),
        keys => format!("up to {keys} keys"),
    };
    let ordered = if entry.ordered { "yes" } else { "no" };
    let measured = |of: &dyn Fn(&Cost) -> String| entry.cost.as_ref().map_or_else(|| "-".into(), of);
    [
        name,
        lengths(entry.limits.key),
        lengths(entry.limits.value),
        ordered.into(),
        durable(entry).into(),
        measured(&|cost| format!("{:.1}", cost.write)),
        measured(&|cost| format!("{:.1}", cost.read)),
        measured(&|cost| cost.scan.map_or_else(|| "-".into(), |scan| format!("{scan:.1}"))),
        measured(&|cost| format!("{} ms", cost.recovery_ms)),
        measured(&|cost| cost.bytes.to_string()),
        meant_for,
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
        "cost": entry.cost.map(|cost| json!({
            "write": cost.write,
            "read": cost.read,
            "scan": cost.scan,
            "recovery_ms": cost.recovery_ms,
            "bytes_per_key": cost.bytes,
        })),
    })
}
