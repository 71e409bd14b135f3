//! `check`.

use durix::Pool;
use serde_json::json;

use crate::args::StatArgs;
use crate::failure::{Code, Failure};
use crate::output;
use crate::pools;

/// What is wrong, and where: an index, or the pool itself.
type Findings = Vec<(String, String)>;

pub fn run(args: &StatArgs) -> Result<Code, Failure> {
    let pool = pools::open_to_read(&args.pool)?;
    let (indices, damaged) = pool.readable_indices()?;
    if let Some(wanted) = args.index.as_ref().filter(|wanted| !indices.iter().any(|info| info.name == **wanted)) {
        let there: Vec<_> = indices.into_iter().map(|info| info.name).collect();
        let path = pool.name().into();
        return Err(Failure::NoIndex { path, index: wanted.clone(), there: there.join(", ") });
    }
    let mut findings: Findings = damaged.iter().map(|error| ("pool".into(), error.to_string())).collect();
    if damaged.is_empty() {
        let mut session = pool.session()?;
        let live = |owner| indices.iter().any(|info| info.owner == owner);
        let found = pool.space().check(&session.enter()?, live);
        findings.extend(found.iter().map(|finding| ("space".into(), finding.to_string())));
    }
    let indices = pools::listed(indices);
    let mut checked = Vec::new();
    for info in indices.iter().filter(|info| args.index.as_ref().is_none_or(|wanted| *wanted == info.name)) {
        match check_index(&pool, &info.name) {
            Ok((keys, found)) => {
                checked.push((info.name.clone(), keys));
                findings.extend(found.into_iter().map(|what| (info.name.clone(), what)));
            }
            Err(error @ Failure::Durix(durix::Error::Corrupt { .. })) => {
                findings.push((info.name.clone(), error.to_string()));
            }
            Err(other) => return Err(other),
        }
    }
    report(args.json, &checked, &findings)?;
    Ok(if findings.is_empty() { Code::Done } else { Code::No })
}

fn check_index(pool: &Pool, name: &str) -> Result<(u64, Vec<String>), Failure> {
    let index = durix::kind::open_as_is(pool, name)?;
    let mut session = pool.session()?;
    let findings = index.check(&mut session)?;
    Ok((index.len(&mut session)?, findings.iter().map(ToString::to_string).collect()))
}

fn report(as_json: bool, checked: &[(String, u64)], findings: &Findings) -> Result<(), Failure> {
    if as_json {
        let checked: Vec<_> = checked.iter().map(|(name, keys)| json!({ "index": name, "keys": keys })).collect();
        let findings: Vec<_> = findings.iter().map(|(place, what)| json!({ "place": place, "what": what })).collect();
        return output::json(&json!({ "checked": checked, "findings": findings }));
    }
    let mut out = output::Out::new();
    for (place, what) in findings {
        out.line(&format!("{place}: {what}"))?;
    }
    for (name, keys) in checked {
        out.line(&format!("{name}: {keys} keys looked at"))?;
    }
    let verdict = match findings.len() {
        0 => "no inconsistency was found".to_owned(),
        count => format!("{count} inconsistencies were found; `durix repair` saves what can be read into a new pool"),
    };
    out.line(&verdict)?;
    out.finish()
}
