//! `kinds`: the kinds of index, from their entries, and what was measured of them. Tables of `docs/guide/which-kind.md` are its output.

use durix::kind::{self, DEFAULT, DEFAULT_ORDERED, Entry};
use durix::{Durability, Lengths};
use serde_json::{Map, Value, json};

use crate::args::KindsArgs;
use crate::failure::{Code, Failure};
use crate::output::{self, table};

const HEADER: [&str; 7] = ["kind", "keys", "values", "ordered", "durable", "meant for", "what it is"];
const FIGURES: [&str; 10] =
    ["kind", "insert ns", "get ns", "put ns", "scan ns", "open ms", "bytes/key", "DRAM/key", "write-backs", "fences"];

/// What `ci/measure-kinds.sh` has measured: when, where, and of each kind what `durix bench --keys-from` says.
const MEASURED: &str = include_str!("measured.json");

pub fn run(args: &KindsArgs) -> Result<Code, Failure> {
    let kinds = if args.all { kind::kinds() } else { kind::offered() };
    let measured = Measured::read();
    let limits = || kinds.iter().map(row).collect();
    let figures = || kinds.iter().filter_map(|kind| measured.row(kind)).collect();
    if args.json {
        let kinds: Vec<Value> = kinds.iter().map(|kind| as_json(kind, &measured)).collect();
        output::json(&json!({ "kinds": kinds, "measured": measured.place() }))?;
    } else if args.markdown {
        let place = format!("Measured on {measured}.");
        output::line(&[markdown(&HEADER, limits()), place, markdown(&FIGURES, figures())].join("\n\n"))?;
    } else {
        let right: Vec<usize> = (1..FIGURES.len()).collect();
        output::line(&table(&HEADER, limits(), &[]))?;
        output::line(&format!("\n{}", table(&FIGURES, figures(), &right)))?;
        output::line(&format!(
            "\nMeasured on {measured}: 200,000 keys of 8 bytes, values of 8 bytes, one thread, on memory that\n\
             stands for persistent memory. A put gives a key another value, open is after a crash.\n\
             On your keys: durix bench --keys-from FILE"
        ))?;
    }
    Ok(Code::Done)
}

/// What was measured, and where.
struct Measured(Value);

impl Measured {
    fn read() -> Self {
        Measured(serde_json::from_str(MEASURED).unwrap_or_default())
    }

    fn place(&self) -> Value {
        ["date", "machine", "command"].map(|name| (name.to_owned(), self.0[name].clone())).into_iter().collect()
    }

    /// The figures of a kind; null where it was not measured.
    fn of(&self, entry: &Entry) -> Value {
        let kinds = self.0["kinds"].as_array().into_iter().flatten();
        let found = kinds.filter(|kind| kind["kind"] == entry.name).find_map(Value::as_object);
        let told = ["kind", "ordered", "strict"];
        let figures = |all: &Map<String, Value>| all.clone().into_iter().filter(|(name, _)| !told.contains(&&**name));
        found.map_or(Value::Null, |all| figures(all).collect())
    }

    /// Cells of a kind, if it was measured.
    fn row(&self, entry: &Entry) -> Option<Vec<String>> {
        let figures = self.of(entry);
        let figure =
            |name: &str, digits| figures[name].as_f64().map_or_else(|| "-".into(), |value| format!("{value:.digits$}"));
        let row = [
            entry.name.to_owned(),
            figure("insert_ns", 0),
            figure("get_ns", 0),
            figure("put_ns", 0),
            figure("scan_ns_per_entry", 0),
            figure("recovery_ms", 1),
            figure("bytes_per_key", 0),
            figure("volatile_bytes_per_key", 0),
            figure("put_write_backs", 1),
            figure("put_fences", 1),
        ];
        (!figures.is_null()).then(|| row.into())
    }
}

impl std::fmt::Display for Measured {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let [date, machine] = ["date", "machine"].map(|name| self.0[name].as_str().unwrap_or_default());
        write!(f, "{date}, {machine}")
    }
}

/// A table; the names of kinds, which come first, as code.
fn markdown(header: &[&str], rows: Vec<Vec<String>>) -> String {
    let line = |cells: &[String]| format!("| {} |", cells.join(" | "));
    let rows = rows.into_iter().map(|mut cells| {
        let (kind, more) =
            cells[0].split_once(' ').map_or((&*cells[0], String::new()), |(kind, more)| (kind, format!(" {more}")));
        cells[0] = format!("`{kind}`{more}");
        line(&cells)
    });
    let head =
        [line(&header.iter().map(|&name| name.to_owned()).collect::<Vec<_>>()), "|---".repeat(header.len()) + "|"];
    head.into_iter().chain(rows).collect::<Vec<_>>().join("\n")
}

fn row(entry: &Entry) -> Vec<String> {
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
    vec![
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

fn as_json(entry: &Entry, measured: &Measured) -> Value {
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
        "measured": measured.of(entry),
    })
}
