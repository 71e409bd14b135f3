//! `get`, `put`, `del`.

use serde_json::json;

use crate::args::{DelArgs, GetArgs, PutArgs, Shown};
use crate::csv;
use crate::failure::{Code, Failure};
use crate::output::{self, Out};
use crate::pools::{self, Opened};
use crate::text::hex;

pub fn get(args: &GetArgs) -> Result<Code, Failure> {
    let mut at = Opened::existing(pools::open_to_read(&args.at.pool)?, &args.at)?;
    let key = at.codec.key(&args.key)?;
    let found = at.index.get_vec(&at.session.enter()?, &key)?;
    let shown = args.at.shown(args.format);
    let Some(value) = found else {
        if shown == Shown::Json {
            output::json(&json!({ "key": at.codec.json_of_key(&key), "found": false }))?;
        } else {
            eprintln!("durix: {} is not there", at.codec.show_key(&key));
        }
        return Ok(Code::No);
    };
    let mut out = Out::new();
    match shown {
        _ if args.raw => out.bytes(&value)?,
        Shown::Tsv => out.line(&at.codec.show_value(&value))?,
        Shown::Hex => out.line(&hex(&value))?,
        Shown::Csv => {
            let mut field = Vec::new();
            csv::write_field(&at.codec.field_of_value(&value), &mut field);
            field.push(b'\n');
            out.bytes(&field)?;
        }
        Shown::Json => {
            let (key, value) = (at.codec.json_of_key(&key), at.codec.json_of_value(&value));
            out.line(&json!({ "key": key, "found": true, "value": value }).to_string())?;
        }
    }
    out.finish()?;
    Ok(Code::Done)
}

pub fn put(args: &PutArgs) -> Result<Code, Failure> {
    let mut at = if args.create {
        // Before a pool is made for it.
        pools::new_types(&pools::new_kind(&args.at)?, &args.types)?;
        pools::folder_must_be_there(&args.at.pool.pool)?;
        let pool = pools::settled(pools::options(&args.at.pool).open_or_create(&args.at.pool.pool)?)?;
        Opened::existing_or_new(pool, &args.at, &args.types)?
    } else {
        if args.types.key_type.is_some() || args.types.value_type.is_some() {
            return Err(Failure::usage("types are given to a new index only; add --create"));
        }
        Opened::existing(pools::open_to_write(&args.at.pool)?, &args.at)?
    };
    let (key, value) = (at.codec.key(&args.key)?, at.codec.value(&args.value)?);
    let op = at.session.enter()?;
    let done = if args.if_absent {
        at.index.insert_if_absent(&op, &key, &value)?
    } else {
        at.index.insert(&op, &key, &value)?
    };
    drop(op);
    let refused = args.if_absent && !done;
    let (key, key_json) = (at.codec.show_key(&key), at.codec.json_of_key(&key));
    // Before anything is said.
    at.close()?;
    if args.at.json {
        output::json(&json!({ "key": key_json, "new": done, "written": !refused }))?;
    } else if refused {
        eprintln!("durix: {key} is there already; it stays as it is");
    }
    Ok(if refused { Code::No } else { Code::Done })
}

pub fn del(args: &DelArgs) -> Result<Code, Failure> {
    let mut at = Opened::existing(pools::open_to_write(&args.at.pool)?, &args.at)?;
    let keys = args.keys.iter().map(|key| at.codec.key(key)).collect::<Result<Vec<_>, _>>()?;
    let mut missing = Vec::new();
    for key in &keys {
        if !at.index.remove(&at.session.enter()?, key)? {
            missing.push((at.codec.show_key(key), at.codec.json_of_key(key)));
        }
    }
    at.close()?;
    if args.at.json {
        let missing: Vec<_> = missing.iter().map(|(_, key)| key).collect();
        output::json(&json!({ "removed": keys.len() - missing.len(), "missing": missing }))?;
    } else {
        missing.iter().for_each(|(key, _)| eprintln!("durix: {key} was not there"));
    }
    Ok(if missing.is_empty() { Code::Done } else { Code::No })
}
