//! `repair`.

use durix::{Hardware, Index, Pool, PoolOptions, TypeNames, Types};
use durix_pmem::pool::IndexInfo;
use serde_json::json;

use crate::args::RepairArgs;
use crate::commands::check::page_findings;
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
    if durix::recover(&source).is_err() {
        // What a crash has interrupted of transactions is then found half done.
        source.accept_pending_records();
    }
    let (indices, damaged) = source.readable_indices()?;
    let pages = source.check_pages().map_or_else(|error| vec![error.to_string()], |pages| page_findings(&pages));
    // An entry that cannot be read may own space.
    let space = if damaged.is_empty() { space_findings(&source, &indices)? } else { Vec::new() };
    let indices = pools::listed(indices);
    let partial = durix::copy::partial(&args.into);
    let _ = std::fs::remove_file(&partial);
    let saved = save_all(&source, &indices, args, &partial).inspect_err(|_| {
        let _ = std::fs::remove_file(&partial);
    })?;
    durix::copy::publish(&partial, &args.into)?;
    let damaged: Vec<String> = damaged.iter().map(ToString::to_string).collect();
    let whole =
        [&damaged, &pages, &space].iter().all(|of| of.is_empty()) && saved.iter().all(|saved| saved.lost.is_empty());
    report(args.json, &saved, &damaged, &[("pages", pages), ("space", space)])?;
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
    let to = kind.open_or_create(target, &info.name)?;
    saved.lost = save_entries(source, &*from, target, &*to)?;
    if saved.lost.is_empty() {
        // What does not keep from reading may be wrong all the same.
        let mut session = source.session()?;
        saved.lost = match from.check(&mut session) {
            Ok(findings) => findings.iter().map(ToString::to_string).collect(),
            Err(error) => vec![error.to_string()],
        };
    }
    let mut session = target.session()?;
    to.sync(&mut session)?;
    saved.entries = to.count(&mut session)?;
    Ok(saved)
}

/// Copies every entry that can be read, and the types. Returns what could not be read.
fn save_entries(source: &Pool, from: &dyn Index, target: &Pool, to: &dyn Index) -> Result<Vec<String>, Failure> {
    let (mut reading, mut writing) = (source.session()?, target.session()?);
    let types = Types::of(from, &reading.enter()?);
    TypeNames::of(source).keep(target, types)?;
    types.declare(to, &writing.enter()?);
    let mut failed = None;
    let findings = from.salvage(&mut reading, &mut |key, value| {
        if failed.is_none() {
            let inserted =
                writing.enter().map_err(durix::Error::from).and_then(|op| to.insert_if_absent(&op, key, value));
            failed = inserted.err();
        }
    });
    match failed {
        Some(error) => Err(error.into()),
        None => Ok(findings?.iter().map(ToString::to_string).collect()),
    }
}

/// What is wrong with the table of space.
fn space_findings(source: &Pool, indices: &[IndexInfo]) -> Result<Vec<String>, Failure> {
    let live = |owner| indices.iter().any(|info| info.owner == owner);
    let findings = source.check_space(&source.session()?.enter()?, live);
    Ok(findings.iter().map(ToString::to_string).collect())
}

fn report(as_json: bool, saved: &[Saved], damaged: &[String], of_pool: &[(&str, Vec<String>)]) -> Result<(), Failure> {
    if as_json {
        let index = |s: &Saved| json!({ "index": s.name, "entries": s.entries, "findings": s.lost });
        let indices: Vec<_> = saved.iter().map(index).collect();
        let mut all = json!({ "indices": indices, "unreadable": damaged });
        of_pool.iter().for_each(|(place, findings)| all[*place] = json!(findings));
        return output::json(&all);
    }
    let row = |s: &Saved| vec![s.name.clone(), s.entries.to_string(), s.lost.len().to_string()];
    let mut out = output::Out::new();
    out.line(&table(&["index", "entries saved", "findings"], saved.iter().map(row).collect(), &[1, 2]))?;
    for saved in saved {
        saved.lost.iter().try_for_each(|what| out.line(&format!("{}: {what}", saved.name)))?;
    }
    for (place, findings) in of_pool {
        findings.iter().try_for_each(|what| out.line(&format!("{place}: {what}")))?;
    }
    damaged.iter().try_for_each(|what| out.line(&format!("an index is lost: {what}")))?;
    out.finish()
}
