//! `kinds`: the kinds of index, from their entries. The table of `docs/guide/which-kind.md` is its output.

use durix::kind::{self, DEFAULT, DEFAULT_ORDERED, Entry};
use durix::{Durability, Lengths};
use serde_json::{Value, json};

use crate::args::KindsArgs;
use crate::failure::{Code, Failure};
use crate::output::{self, table};

const HEADER: [&str; 7] = ["kind", "keys", "values", "ordered", "durable", "meant for", "what it is"];

pub fn run(args: &KindsArgs) -> Result<Code, Failure> {
    let kinds = if args.all { kind::kinds() } else { kind::offered() };
    if args.json {
        output::json(&json!({ "kinds": kinds.iter().map(as_json).collect::<Vec<_>>() }))?;
    } else if args.markdown {
        output::line(&markdown(&kinds))?;
    } else {
        output::line(&table(&HEADER, kinds.iter().map(|entry| row(entry).into()).collect(), &[]))?;
    }
    Ok(Code::Done)
}

fn markdown(kinds: &[Entry]) -> String {
    let line = |cells: [String; 7]| format!("| {} |", cells.join(" | "));
    let rows = kinds.iter().map(|entry| {
        let mut cells = row(entry);
        cells[0] = cells[0].replacen(entry.name, &format!("`{}`", entry.name), 1);
        line(cells)
    });
    let head = [line(HEADER.map(str::to_owned)), "|---".repeat(HEADER.len()) + "|"];
    head.into_iter().chain(rows).collect::<Vec<_>>().join("\n")
}

fn row(entry: &Entry) -> [String; 7] {
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
    [
        name,
        lengths(entry.limits.key),
        lengths(entry.limits.value),
        ordered.into(),
        durable(entry).into(),
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
    })
}
