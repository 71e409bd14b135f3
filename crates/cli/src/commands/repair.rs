//! `repair`.

use durix::{Direction, Hardware, Index, KeyRange, Pool, PoolOptions};
use durix_pmem::pool::IndexInfo;
use serde_json::json;

use crate::args::RepairArgs;
use crate::failure::{Code, Failure};
use crate::output::{self, table};
use crate::pools;

/// What became of an index.
struct Saved {
    name: String,
    entries: u64,
    /// What was wrong with it.
    lost: Vec<String>,
}

pub fn run(args: &RepairArgs) -> Result<Code, Failure> {
    pools::must_be_there(&args.pool.pool)?;
    pools::must_not_be_there(&args.into)?;
    let source = PoolOptions::new().read_only(true).accept_unclean(true).open(&args.pool.pool)?;
    let (indices, damaged) = source.readable_indices()?;
    let partial = durix::copy::partial(&args.into);
    let _ = std::fs::remove_file(&partial);
    let saved = save_all(&source, &indices, args, &partial).inspect_err(|_| {
        let _ = std::fs::remove_file(&partial);
    })?;
    durix::copy::publish(&partial, &args.into)?;
    let damaged: Vec<String> = damaged.iter().map(ToString::to_string).collect();
    let whole = damaged.is_empty() && saved.iter().all(|saved| saved.lost.is_empty());
    report(args.json, &saved, &damaged)?;
    Ok(if whole { Code::Done } else { Code::No })
}

fn save_all(
    source: &Pool,
    indices: &[IndexInfo],
    args: &RepairArgs,
    partial: &std::path::Path,
) -> Result<Vec<Saved>, Failure> {
    let target = PoolOptions::new().assume_pmem(args.pool.assume_pmem).create(partial)?;
    let mut all = Vec::new();
    for info in indices {
        all.push(save(source, info, &target)?);
    }
    target.close()?;
    Ok(all)
}

fn save(source: &Pool, info: &IndexInfo, target: &Pool) -> Result<Saved, Failure> {
    let mut saved = Saved { name: info.name.clone(), entries: 0, lost: Vec::new() };
    let Some(kind) = durix::kind::of::<Hardware>(info.kind) else {
        saved.lost.push(format!("is of kind {}, which this build cannot read", info.kind));
        return Ok(saved);
    };
    let from = match kind.salvage(source, &info.name) {
        Ok(from) => from,
        Err(error @ durix::Error::Corrupt { .. }) => {
            saved.lost.push(error.to_string());
            return Ok(saved);
        }
        Err(error) => return Err(error.into()),
    };
    match from.check(&mut source.session()?) {
        Ok(findings) => saved.lost = findings.iter().map(ToString::to_string).collect(),
        Err(error) => saved.lost.push(error.to_string()),
    }
    let to = kind.open_or_create(target, &info.name)?;
    if let Err(error) = durix::copy::copy_index(source, &from, target, &to) {
        saved.lost.push(corrupt(error)?);
        saved.lost.extend(save_from_behind(source, &*from, target, &*to)?);
    }
    let mut session = target.session()?;
    to.sync(&mut session)?;
    saved.entries = to.len(&mut session)?;
    Ok(saved)
}

/// What is wrong with an index; any other error ends the repair.
fn corrupt(error: durix::Error) -> Result<String, Failure> {
    match error {
        error @ durix::Error::Corrupt { .. } => Ok(error.to_string()),
        other => Err(other.into()),
    }
}

/// Copies an ordered index from its last key down, as far as it can be read: a copy has ended at what is damaged. Returns
/// what ended this one.
fn save_from_behind(source: &Pool, from: &dyn Index, target: &Pool, to: &dyn Index) -> Result<Option<String>, Failure> {
    let Some(ordered) = from.as_ordered() else { return Ok(None) };
    let (mut reading, mut writing) = (source.session()?, target.session()?);
    let mut cursor = ordered.range(&KeyRange::all(), Direction::Backward);
    let (mut key, mut value) = (Vec::new(), Vec::new());
    loop {
        match cursor.next_into(&reading.enter()?, &mut key, &mut value) {
            // What is there already was copied from the front.
            Ok(true) if to.insert_if_absent(&writing.enter()?, &key, &value)? => {}
            Ok(_) => return Ok(None),
            Err(error) => return Ok(Some(corrupt(error)?)),
        }
    }
}

fn report(as_json: bool, saved: &[Saved], damaged: &[String]) -> Result<(), Failure> {
    if as_json {
        let index = |s: &Saved| json!({ "index": s.name, "entries": s.entries, "findings": s.lost });
        let indices: Vec<_> = saved.iter().map(index).collect();
        return output::json(&json!({ "indices": indices, "unreadable": damaged }));
    }
    let row = |s: &Saved| vec![s.name.clone(), s.entries.to_string(), s.lost.len().to_string()];
    let mut out = output::Out::new();
    out.line(&table(&["index", "entries saved", "findings"], saved.iter().map(row).collect(), &[1, 2]))?;
    for saved in saved {
        saved.lost.iter().try_for_each(|what| out.line(&format!("{}: {what}", saved.name)))?;
    }
    damaged.iter().try_for_each(|what| out.line(&format!("an index is lost: {what}")))?;
    out.finish()
}
