//! `check` and `scrub`.

use durix::Pool;
use durix_pmem::pool::{DamagedPage, PageOwner, PageReport};
use serde_json::json;

use crate::args::{ScrubArgs, StatArgs};
use crate::failure::{Code, Failure};
use crate::output;
use crate::pools;

/// What is wrong, and where: an index, or the pool itself.
type Findings = Vec<(String, String)>;

pub fn run(args: &StatArgs) -> Result<Code, Failure> {
    let pool = pools::open_to_read(&args.pool)?;
    let (indices, _) = pool.readable_indices()?;
    if let Some(wanted) = args.index.as_ref().filter(|wanted| !indices.iter().any(|info| info.name == **wanted)) {
        let there: Vec<_> = indices.into_iter().map(|info| info.name).collect();
        let path = pool.name().into();
        return Err(Failure::NoIndex { path, index: wanted.clone(), there: there.join(", ") });
    }
    let pages = pool.check_pages().map_err(durix::Error::from)?;
    let (checked, findings) = look(&pool, args.index.as_deref(), &pages)?;
    report(args.json, &checked, &pages, &findings)?;
    Ok(if findings.is_empty() { Code::Done } else { Code::No })
}

/// Checks everything; if nothing is wrong, gives pages that have no checksum yet one.
pub fn scrub(args: &ScrubArgs) -> Result<Code, Failure> {
    let pool = pools::open_to_write(&args.pool)?;
    let mut pages = pool.check_pages().map_err(durix::Error::from)?;
    let (checked, findings) = look(&pool, None, &pages)?;
    if findings.is_empty() && pages.unknown > 0 {
        pages = pool.scrub().map_err(durix::Error::from)?;
    }
    pool.close().map_err(durix::Error::from)?;
    report(args.json, &checked, &pages, &findings)?;
    Ok(if findings.is_empty() { Code::Done } else { Code::No })
}

/// Looks at pages, space, and one or all indices.
fn look(pool: &Pool, index: Option<&str>, pages: &PageReport) -> Result<(Vec<(String, u64)>, Findings), Failure> {
    let (indices, damaged) = pool.readable_indices()?;
    let mut findings: Findings = damaged.iter().map(|error| ("pool".into(), error.to_string())).collect();
    let spares = pool.check_spares(&pool.session()?.enter()?);
    findings.extend(spares.into_iter().map(|what| ("pool".into(), format!("{what}; no entry is lost"))));
    if damaged.is_empty() {
        let mut session = pool.session()?;
        let live = |owner| indices.iter().any(|info| info.owner == owner);
        let found = pool.check_space(&session.enter()?, live);
        findings.extend(found.iter().map(|finding| ("space".into(), finding.to_string())));
    }
    let mut checked = Vec::new();
    for info in pools::listed(indices).iter().filter(|info| index.is_none_or(|wanted| *wanted == info.name)) {
        match check_index(pool, &info.name) {
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
    findings.extend(page_findings(pages).into_iter().map(|what| ("pages".into(), what)));
    Ok((checked, findings))
}

/// Bytes of the smallest entry of any kind: a word of key, a word of value.
const SMALLEST_ENTRY: u64 = 16;

/// What is damaged, and what that means for what lies there.
pub fn page_findings(pages: &PageReport) -> Vec<String> {
    let meaning = |page: &DamagedPage| match page.owner {
        PageOwner::Index(_) => {
            let most = (page.range.end - page.range.start) / SMALLEST_ENTRY;
            format!("its entries there, at most {most}, may be lost or wrong")
        }
        PageOwner::Free => "no entry is lost".into(),
        PageOwner::Directory => "indices may be lost".into(),
        _ => "any index may be hit".into(),
    };
    pages.damaged.iter().map(|page| format!("{page}; {}", meaning(page))).collect()
}

/// What the checksums of the pages cover, in a sentence.
fn covered(pages: &PageReport) -> String {
    match (&pages.missing, pages.unknown) {
        (Some(why), _) => format!("pages have no checksums: {why}"),
        (None, 0) => format!("{} pages were compared with their checksums", pages.pages),
        (None, unknown) => format!(
            "{} pages were compared with their checksums; {unknown} others have none yet, and `durix scrub` gives them one",
            pages.pages - unknown
        ),
    }
}

fn check_index(pool: &Pool, name: &str) -> Result<(u64, Vec<String>), Failure> {
    let index = durix::kind::open_as_is(pool, name)?;
    let mut session = pool.session()?;
    let findings = index.check(&mut session)?;
    Ok((index.count(&mut session)?, findings.iter().map(ToString::to_string).collect()))
}

fn report(as_json: bool, checked: &[(String, u64)], pages: &PageReport, findings: &Findings) -> Result<(), Failure> {
    if as_json {
        let checked: Vec<_> = checked.iter().map(|(name, keys)| json!({ "index": name, "keys": keys })).collect();
        let findings: Vec<_> = findings.iter().map(|(place, what)| json!({ "place": place, "what": what })).collect();
        let pages = json!({ "read": pages.pages, "without_checksum": pages.unknown, "no_checksums": pages.missing });
        return output::json(&json!({ "checked": checked, "pages": pages, "findings": findings }));
    }
    let mut out = output::Out::new();
    for (place, what) in findings {
        out.line(&format!("{place}: {what}"))?;
    }
    for (name, keys) in checked {
        out.line(&format!("{name}: {} looked at", output::counted(*keys, "key")))?;
    }
    out.line(&covered(pages))?;
    let verdict = match findings.len() {
        0 => "no inconsistency was found".to_owned(),
        count => format!(
            "found {}; `durix repair` saves what can be read into a new pool",
            output::counted(count as u64, "inconsistency")
        ),
    };
    out.line(&verdict)?;
    out.finish()
}
