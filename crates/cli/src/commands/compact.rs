//! `compact`.

use durix::{Compacted, Db};
use serde_json::json;

use crate::args::CompactArgs;
use crate::failure::{Code, Failure};
use crate::output::{self, Out, human, table};
use crate::pools;

pub fn run(args: &CompactArgs) -> Result<Code, Failure> {
    pools::must_be_there(&args.pool.pool)?;
    let compacted = Db::builder().pool_options(pools::options(&args.pool)).compact(&args.pool.pool)?;
    let Compacted { indices, before, after, .. } = compacted;
    if args.json {
        let indices: Vec<_> = indices.iter().map(|(n, e)| json!({ "index": n, "entries": e })).collect();
        output::json(&json!({ "indices": indices, "before": before, "after": after }))?;
        return Ok(Code::Done);
    }
    let rows = indices.into_iter().map(|(name, entries)| vec![name, entries.to_string()]);
    let mut out = Out::new();
    out.line(&table(&["index", "entries"], rows.collect(), &[1]))?;
    out.line(&format!("{} before, {} now", human(before), human(after)))?;
    out.finish()?;
    Ok(Code::Done)
}
