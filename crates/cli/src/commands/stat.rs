//! `stat`.

use durix::{Durability, Guarantee, Hardware, Index, Level, Medium, Pool, Reach, TypeNames, Types};
use durix_pmem::backing::{Backing, BackingKind, FileBacking};
use durix_pmem::pool::{State, Stats};
use serde_json::{Value, json};

use crate::args::{PoolArgs, StatArgs};
use crate::failure::{Code, Failure};
use crate::output::{self, human, table};
use crate::pools;

/// What a pool would get if it was opened for writing here.
struct Here {
    mapping: &'static str,
    medium: String,
    guarantee: Guarantee,
    /// Bytes that written pages could take in memory, with a journal.
    written_limit: Option<u64>,
}

/// What is found of an index.
struct IndexRow {
    name: String,
    kind: String,
    bytes: u64,
    inside: Option<Inside>,
    error: Option<String>,
}

struct Inside {
    types: Types,
    names: TypeNames,
    stats: durix::IndexStats,
    guarantee: Guarantee,
}

pub fn run(args: &StatArgs) -> Result<Code, Failure> {
    pools::must_be_there(&args.pool.pool)?;
    let stats = Pool::peek(&args.pool.pool)?;
    let here = here(&args.pool)?;
    let (rows, note) = rows(args, &stats, here.guarantee)?;
    if let Some(wanted) = &args.index
        && rows.is_empty()
    {
        let names: Vec<_> = pools::listed(stats.indices.clone()).into_iter().map(|info| info.name).collect();
        let there = if names.is_empty() { "none".into() } else { names.join(", ") };
        let path = args.pool.pool.display().to_string();
        return Err(Failure::NoIndex { path, index: wanted.clone(), there });
    }
    if args.json {
        output::json(&as_json(&stats, &here, &rows, note.as_deref()))?;
    } else {
        output::line(&as_text(args, &stats, &here, &rows, note.as_deref()))?;
    }
    Ok(Code::Done)
}

fn here(args: &PoolArgs) -> Result<Here, Failure> {
    // Opening for writing tells whether the file system maps synchronously. Nothing is written, and no lock is taken.
    let file = FileBacking::open(&args.pool).or_else(|_| FileBacking::open_read_only(&args.pool))?;
    let dax = file.kind() == BackingKind::Dax;
    let mapping = match (dax, args.assume_pmem) {
        (true, _) => "persistent memory (DAX, MAP_SYNC)",
        (false, true) => "ordinary file, taken as persistent memory",
        (false, false) if file.is_in_memory() => "file in memory (tmpfs)",
        (false, false) => "ordinary file",
    };
    let medium = if dax || args.assume_pmem {
        Hardware::for_pmem().ok_or(durix_pmem::Error::NoWriteBack)?
    } else {
        Hardware::PAGE_CACHE
    };
    let options = pools::options(args);
    let is_journaled = !dax && !args.assume_pmem && options.level_on(&file) != Level::Process;
    let written_limit = is_journaled.then(|| options.written_limit());
    let guarantee = if dax || args.assume_pmem {
        Guarantee { reach: Reach::PowerFailure, assumed: !dax, ..Guarantee::at(Level::Process) }
    } else {
        let guarantee = Guarantee::at(options.level_on(&file));
        if file.is_in_memory() { guarantee.in_memory() } else { guarantee }
    };
    // Without the word that the line already begins with.
    let medium = medium.describe();
    let medium =
        medium.strip_prefix("hardware (").and_then(|kind| kind.strip_suffix(')')).unwrap_or(&medium).to_owned();
    Ok(Here { mapping, medium, guarantee, written_limit })
}

/// The indices, looked into if the pool can be opened beside whoever has it open; otherwise a note says why not.
fn rows(args: &StatArgs, stats: &Stats, here: Guarantee) -> Result<(Vec<IndexRow>, Option<String>), Failure> {
    let wanted = |name: &str| args.index.as_ref().is_none_or(|index| index == name);
    let shown = pools::listed(stats.indices.clone());
    let (pool, note) = match pools::open_to_read(&args.pool) {
        Ok(pool) => (Some(pool), None),
        Err(Failure::Durix(durix::Error::Pool(durix_pmem::Error::Locked { .. }))) => {
            (None, Some("open in another process, so indices were not looked into".into()))
        }
        Err(error) => (None, Some(format!("indices were not looked into: {error}"))),
    };
    let mut rows = Vec::new();
    for info in shown.iter().filter(|info| wanted(&info.name)) {
        let kind = durix::kind::of::<Hardware>(info.kind);
        let bytes = stats.space.by_owner.iter().filter(|(owner, _)| *owner == info.owner).map(|(_, bytes)| bytes).sum();
        let mut row = IndexRow {
            name: info.name.clone(),
            kind: kind.map_or_else(|| info.kind.to_string(), |entry| entry.name.into()),
            bytes,
            inside: None,
            error: None,
        };
        if let Some(pool) = &pool {
            match durix::kind::open_as_is(pool, &info.name).map_err(Failure::from).and_then(|i| inside(pool, &*i, here))
            {
                Ok(inside) => row.inside = Some(inside),
                Err(error) => row.error = Some(error.to_string()),
            }
        }
        rows.push(row);
    }
    Ok((rows, note))
}

fn inside(pool: &Pool, index: &dyn Index, here: Guarantee) -> Result<Inside, Failure> {
    let mut session = pool.session()?;
    let stats = index.stats(&mut session)?;
    let types = Types::of(index, &session.enter()?);
    Ok(Inside { types, names: TypeNames::of(pool), stats, guarantee: here.with(index.durability()) })
}

pub fn state(state: State) -> &'static str {
    match state {
        State::Clean => "closed",
        State::Dirty { .. } => "open, or not closed",
        State::Journaled => "open with a journal, or not closed",
        _ => "not known",
    }
}

/// What a pool's contents survive; when what is durable is a matter of each index.
fn reach(guarantee: Guarantee) -> String {
    guarantee.to_string().replace("an operation that has returned", "what is durable")
}

fn as_text(args: &StatArgs, stats: &Stats, here: &Here, rows: &[IndexRow], note: Option<&str>) -> String {
    let space = &stats.space;
    let lines = [
        ("pool", args.pool.pool.display().to_string()),
        ("id", stats.id.to_string()),
        ("state", state(stats.state).into()),
        (
            "size",
            format!(
                "{} ({} free, {} in chunks of {})",
                human(stats.size),
                human(space.free),
                human(space.total),
                human(space.chunk)
            ),
        ),
        ("mapping", here.mapping.into()),
        ("hardware", here.medium.clone()),
        ("guarantee", reach(here.guarantee)),
        (
            "memory",
            here.written_limit.map_or_else(
                || "the system's page cache".into(),
                |limit| format!("at most {} of written pages, when opened for writing", human(limit)),
            ),
        ),
        ("indices", format!("{} of {}", stats.indices.len(), stats.geometry.indices)),
    ];
    let rows_of = |(name, value): (&str, String)| vec![name.to_owned(), value];
    let note = note.map(|note| ("note", note.to_owned()));
    let mut text = table(&[], lines.into_iter().chain(note).map(rows_of).collect(), &[]);
    if !rows.is_empty() {
        let cells = |row: &IndexRow| {
            let number = |of: fn(&Inside) -> u64| row.inside.as_ref().map_or_else(|| "-".into(), |i| of(i).to_string());
            let dram = row.inside.as_ref().and_then(|i| i.stats.volatile_bytes).map_or_else(|| "-".into(), human);
            let types = row.inside.as_ref().map_or_else(|| "-".into(), |i| i.names.both(i.types));
            let durable = row.inside.as_ref().map_or("-", |i| match i.guarantee.durability {
                Durability::Strict => "on return",
                _ => "at checkpoints",
            });
            let name = row.name.clone();
            vec![name, row.kind.clone(), number(|i| i.stats.keys), human(row.bytes), dram, types, durable.into()]
        };
        let header = ["index", "kind", "keys", "persistent", "volatile", "types", "durable"];
        text.push_str("\n\n");
        text.push_str(&table(&header, rows.iter().map(cells).collect(), &[2, 3, 4]));
    }
    for row in rows {
        if let Some(error) = &row.error {
            text.push_str(&format!("\n{}: {error}", row.name));
        }
    }
    if let (Some(_), [IndexRow { inside: Some(inside), .. }]) = (&args.index, rows) {
        text.push_str(&format!("\n\n{}", inside.guarantee));
        let details = inside.stats.details.iter().map(|(name, value)| vec![(*name).to_owned(), value.to_string()]);
        let details: Vec<_> = details.collect();
        if !details.is_empty() {
            text.push_str(&format!("\n\n{}", table(&[], details, &[1])));
        }
    }
    text
}

fn as_json(stats: &Stats, here: &Here, rows: &[IndexRow], note: Option<&str>) -> Value {
    let index = |row: &IndexRow| {
        let mut value = json!({ "name": row.name, "kind": row.kind, "persistent_bytes": row.bytes });
        if let Some(inside) = &row.inside {
            let details: serde_json::Map<_, _> =
                inside.stats.details.iter().map(|(name, value)| ((*name).to_owned(), json!(value))).collect();
            value["keys"] = json!(inside.stats.keys);
            value["volatile_bytes"] = json!(inside.stats.volatile_bytes);
            value["key_type"] = json!(inside.names.name(inside.types.key));
            value["value_type"] = json!(inside.names.name(inside.types.value));
            value["guarantee"] = json!(inside.guarantee.to_string());
            value["details"] = Value::Object(details);
        }
        if let Some(error) = &row.error {
            value["error"] = json!(error);
        }
        value
    };
    json!({
        "id": stats.id.to_string(),
        "state": state(stats.state),
        "size": stats.size,
        "file_size": stats.file_size,
        "chunk": stats.space.chunk,
        "space_total": stats.space.total,
        "space_free": stats.space.free,
        "mapping": here.mapping,
        "hardware": here.medium,
        "guarantee": here.guarantee.to_string(),
        "written_limit": here.written_limit,
        "max_indices": stats.geometry.indices,
        "indices": rows.iter().map(index).collect::<Vec<_>>(),
        "note": note,
    })
}
