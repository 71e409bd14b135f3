//! `exec`: a script of `put`, `del` and `get` over several indices, in one transaction.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::sync::Arc;

use durix::{Db, Index, Transaction, TypeNames, Types};
use serde_json::json;

use crate::args::ExecArgs;
use crate::failure::{Code, Failure};
use crate::output::{self, Out};
use crate::pools;
use crate::text::{Codec, unescape};

/// A line of the script.
struct Step {
    index: String,
    key: Vec<u8>,
    what: What,
}

enum What {
    Get,
    Put(Vec<u8>),
    Del,
}

/// The indices that the script names.
type Indices = BTreeMap<String, (Arc<dyn Index>, Codec)>;

/// What a read of the script has found, as text and as JSON.
struct Got {
    index: String,
    key: String,
    key_json: serde_json::Value,
    value: Option<(String, serde_json::Value)>,
}

/// What the script's reads have found, in its order.
type Found = Vec<Got>;

pub fn run(args: &ExecArgs) -> Result<Code, Failure> {
    let (input, script) = read(args)?;
    pools::must_be_there(&args.pool.pool)?;
    let db = Db::builder().pool_options(pools::options(&args.pool)).no_background_threads().open(&args.pool.pool)?;
    let done = execute(&db, &input, &script);
    let (found, changes, guarantee) = match done {
        Ok(done) => done,
        Err(failure) => {
            // What the failure says is worth more than what closing says.
            let _ = db.close();
            return Err(failure);
        }
    };
    db.sync()?;
    db.close()?;
    report(args.json, &found, changes, &guarantee)?;
    Ok(if found.iter().all(|read| read.value.is_some()) { Code::Done } else { Code::No })
}

/// The script, and what messages call it.
fn read(args: &ExecArgs) -> Result<(String, Vec<u8>), Failure> {
    let mut script = Vec::new();
    match args.script.as_deref().filter(|path| !pools::is_standard_input(path)) {
        Some(path) => {
            script = std::fs::read(path).map_err(Failure::io(format!("reading {}", path.display())))?;
            Ok((path.display().to_string(), script))
        }
        None => {
            std::io::stdin().read_to_end(&mut script).map_err(Failure::io("reading standard input"))?;
            Ok((PathBuf::from("standard input").display().to_string(), script))
        }
    }
}

fn execute(db: &Db, input: &str, script: &[u8]) -> Result<(Found, usize, String), Failure> {
    let mut indices = Indices::new();
    let mut steps = Vec::new();
    for (number, line) in script.split(|byte| *byte == b'\n').enumerate() {
        if line.trim_ascii().is_empty() || line.trim_ascii_start().starts_with(b"#") {
            continue;
        }
        steps.push(parse(db, &mut indices, line).map_err(|failure| match failure {
            Failure::Usage { what } | Failure::BadText { what } => {
                Failure::BadInput { input: input.into(), line: number as u64 + 1, what }
            }
            other => other,
        })?);
    }
    let mut guarantee = String::new();
    let found = db.transaction(|tx| {
        let found = steps.iter().filter_map(|step| step.run(tx, &indices).transpose()).collect();
        guarantee = tx.guarantee().to_string();
        found
    })?;
    let changes = steps.iter().filter(|step| !matches!(step.what, What::Get)).count();
    Ok((found, changes, guarantee))
}

/// The next word of a line, and what comes after it.
fn word(line: &[u8]) -> (&[u8], &[u8]) {
    let line = line.trim_ascii_start();
    line.split_at(line.iter().position(u8::is_ascii_whitespace).unwrap_or(line.len()))
}

fn parse(db: &Db, indices: &mut Indices, line: &[u8]) -> Result<Step, Failure> {
    let (verb, rest) = word(line);
    let (name, rest) = word(rest);
    let (key, rest) = word(rest);
    let value = rest.trim_ascii();
    if name.is_empty() || key.is_empty() {
        return Err(Failure::usage("a line is `put INDEX KEY VALUE`, `del INDEX KEY` or `get INDEX KEY`"));
    }
    let name = unescape(name).ok().and_then(|name| String::from_utf8(name).ok());
    let name = name.ok_or_else(|| Failure::usage("the name of the index is no text"))?;
    if !indices.contains_key(&name) {
        indices.insert(name.clone(), open(db, &name)?);
    }
    let codec = &indices[&name].1;
    let what = match verb {
        // What a script forgot is not what it meant: an empty value is asked for by the blank in front of it.
        b"put" if matches!(rest, b"" | b"\r") => {
            return Err(Failure::usage("put takes a value; for an empty one, let a blank follow the key"));
        }
        b"put" => What::Put(codec.value(OsStr::from_bytes(value))?),
        b"del" | b"get" if !value.is_empty() => {
            return Err(Failure::usage(format!("{} takes no value", String::from_utf8_lossy(verb))));
        }
        b"del" => What::Del,
        b"get" => What::Get,
        other => {
            let other = String::from_utf8_lossy(other);
            return Err(Failure::usage(format!("{other:?} is none of put, del, get")));
        }
    };
    Ok(Step { key: codec.key(OsStr::from_bytes(key))?, index: name, what })
}

/// Opens an index that is there.
fn open(db: &Db, name: &str) -> Result<(Arc<dyn Index>, Codec), Failure> {
    let names: Vec<String> = db.indices()?.into_iter().map(|info| info.name).collect();
    if !names.iter().any(|there| there == name) {
        let there = if names.is_empty() { "none".into() } else { names.join(", ") };
        return Err(Failure::NoIndex { path: db.pool().name().into(), index: name.into(), there });
    }
    let index = db.open_index(name, None)?;
    let types = Types::of(&*index, &db.pool().session()?.enter()?);
    Ok((index, Codec::new(types, TypeNames::of(db.pool()), true)))
}

impl Step {
    /// Runs it; returns what a read has found.
    fn run(&self, tx: &Transaction, indices: &Indices) -> durix::Result<Option<Got>> {
        let (index, codec) = &indices[&self.index];
        let at = tx.index(index)?;
        match &self.what {
            What::Put(value) => _ = at.insert(&self.key, value)?,
            What::Del => _ = at.remove(&self.key)?,
            What::Get => {
                let read = Got {
                    index: self.index.clone(),
                    key: codec.show_key(&self.key),
                    key_json: codec.json_of_key(&self.key),
                    value: at.get(&self.key)?.map(|value| (codec.show_value(&value), codec.json_of_value(&value))),
                };
                return Ok(Some(read));
            }
        }
        Ok(None)
    }
}

fn report(as_json: bool, found: &Found, changes: usize, guarantee: &str) -> Result<(), Failure> {
    let mut out = Out::new();
    if as_json {
        let object = |read: &Got| {
            let mut object = json!({ "index": read.index, "key": read.key_json, "found": read.value.is_some() });
            if let Some((_, value)) = &read.value {
                object["value"] = value.clone();
            }
            object
        };
        let found: Vec<_> = found.iter().map(object).collect();
        out.line(&json!({ "changes": changes, "found": found, "guarantee": guarantee }).to_string())?;
        return out.finish();
    }
    for Got { index, key, value, .. } in found {
        match value {
            Some((value, _)) => out.line(&format!("{index}\t{key}\t{value}"))?,
            None => eprintln!("durix: {key} is not there in {index}"),
        }
    }
    out.finish()?;
    eprintln!("durix: {} in one transaction; {guarantee}", output::counted(changes as u64, "change"));
    Ok(())
}
