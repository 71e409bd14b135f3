//! `repair`.

use std::path::Path;

use durix::repair::{Repaired, RepairedIndex, salvage_into};
use durix::{Pool, PoolOptions};
use serde_json::json;

use crate::args::RepairArgs;
use crate::commands::check::page_findings;
use crate::failure::{Code, Failure, without_advice};
use crate::output::{self, table};
use crate::pools;

/// Findings of an index that are printed. A lost root leaves one for each block.
const MOST_FINDINGS: usize = 20;

pub fn run(args: &RepairArgs) -> Result<Code, Failure> {
    pools::must_be_there(&args.pool.pool)?;
    pools::must_not_be_there(&args.into)?;
    let partial = durix::copy::partial(&args.into);
    durix::copy::clear(&args.into)?;
    let made = save_all(args, &partial).and_then(|(repaired, pool)| {
        durix::copy::publish(&pool, &args.into)?;
        Ok(repaired)
    });
    let repaired = made.inspect_err(|_| {
        let _ = durix::copy::clear(&args.into);
    })?;
    report(args.json, &repaired)?;
    Ok(if repaired.is_whole() { Code::Done } else { Code::No })
}

fn save_all(args: &RepairArgs, partial: &Path) -> Result<(Repaired, Pool), Failure> {
    let patience = pools::patience(&args.pool);
    let source = PoolOptions::new().for_repair().open_timeout(patience).open(&args.pool.pool);
    let source = source.map_err(|error| Failure::BeyondRepair(error.into()))?;
    let target = PoolOptions::new().assume_pmem(args.pool.assume_pmem).create(partial)?;
    let repaired = salvage_into(&source, &target)?;
    Ok((repaired, target))
}

fn report(as_json: bool, repaired: &Repaired) -> Result<(), Failure> {
    let Repaired { indices, unreadable, .. } = repaired;
    let pages = match &repaired.pages {
        Ok(pages) => page_findings(pages),
        Err(error) => vec![error.clone()],
    };
    let pool: Vec<_> = repaired.pool.iter().map(|finding| without_advice(finding).to_owned()).collect();
    let of_pool = [("pool", &pool), ("pages", &pages), ("space", &repaired.space)];
    if as_json {
        let index = |i: &RepairedIndex| json!({ "index": i.name, "entries": i.entries, "held": i.held, "missing": i.missing(), "findings": i.findings });
        let indices: Vec<_> = indices.iter().map(index).collect();
        let mut all = json!({ "indices": indices, "unreadable": unreadable });
        of_pool.iter().for_each(|(place, findings)| all[*place] = json!(findings));
        return output::json(&all);
    }
    let row = |i: &RepairedIndex| {
        let missing = i.missing().map_or_else(|| "unknown".into(), |missing| missing.to_string());
        vec![i.name.clone(), i.entries.to_string(), missing, i.findings.len().to_string()]
    };
    let mut out = output::Out::new();
    let titles = ["index", "entries saved", "missing", "findings"];
    out.line(&table(&titles, indices.iter().map(row).collect(), &[1, 2, 3]))?;
    for index in indices {
        index.findings.iter().take(MOST_FINDINGS).try_for_each(|what| out.line(&format!("{}: {what}", index.name)))?;
        match index.findings.len().saturating_sub(MOST_FINDINGS) {
            0 => {}
            more => out.line(&format!("{}: {more} more findings; --json prints them all", index.name))?,
        }
    }
    for (place, findings) in of_pool {
        findings.iter().try_for_each(|what| out.line(&format!("{place}: {what}")))?;
    }
    unreadable.iter().try_for_each(|what| out.line(&format!("an index is lost: {what}")))?;
    out.finish()
}
