//! `copy`.

use durix::Db;
use serde_json::json;

use crate::args::CopyArgs;
use crate::failure::{Code, Failure};
use crate::output::{self, table};
use crate::pools;

pub fn run(args: &CopyArgs) -> Result<Code, Failure> {
    let pool = pools::open_to_read(&args.pool)?;
    pools::must_not_be_there(&args.to)?;
    let options = durix::PoolOptions::new().assume_pmem(args.pool.assume_pmem);
    let report = Db::over(pool).copy_to_with(&args.to, &options)?;
    if args.json {
        let indices: Vec<_> = report.indices.iter().map(|(n, e)| json!({ "index": n, "entries": e })).collect();
        output::json(&json!({ "indices": indices }))?;
    } else {
        let rows = report.indices.into_iter().map(|(name, entries)| vec![name, entries.to_string()]);
        output::line(&table(&["index", "entries"], rows.collect(), &[1]))?;
    }
    Ok(Code::Done)
}
