//! `restore`: a new pool from what [`dump`](super::dump) wrote.

use std::io::{BufRead, BufReader, Read};
use std::sync::Arc;

use durix::{Hardware, Index, Pool, Session, TypeNames, TypeTag, Types};
use serde_json::json;

use super::dump::{VERSION, WITHOUT_COUNT};
use crate::args::RestoreArgs;
use crate::failure::{Code, Failure};
use crate::output;
use crate::pools;
use crate::text::unescape;

pub fn run(args: &RestoreArgs) -> Result<Code, Failure> {
    pools::must_not_be_there(&args.pool.pool)?;
    if let Some(kind) = &args.kind {
        durix::kind::named::<durix::Hardware>(kind)?;
    }
    let reader: Box<dyn BufRead> = match args.file.as_deref().filter(|path| !pools::is_standard_input(path)) {
        Some(path) => {
            let file = std::fs::File::open(path).map_err(Failure::io(format!("opening {}", path.display())))?;
            Box::new(BufReader::with_capacity(1 << 16, file))
        }
        None => Box::new(std::io::stdin().lock()),
    };
    // The pool gets its name when it is whole: whatever goes wrong before leaves nothing under it.
    let partial = durix::copy::partial(&args.pool.pool);
    durix::copy::clear(&args.pool.pool)?;
    let made = restore(reader, args, &partial).and_then(|(restored, pool)| {
        durix::copy::publish(&pool, &args.pool.pool)?;
        Ok(restored)
    });
    let restored = made.inspect_err(|_| {
        let _ = durix::copy::clear(&args.pool.pool);
    })?;
    if args.json {
        let indices: Vec<_> = restored.iter().map(|(n, e)| json!({ "index": n, "entries": e })).collect();
        output::json(&json!({ "indices": indices }))?;
        return Ok(Code::Done);
    }
    for (name, entries) in restored {
        output::line(&format!("{name}: {entries} entries"))?;
    }
    Ok(Code::Done)
}

/// The lines of a dump.
struct Reader {
    reader: Box<dyn BufRead>,
    line: Vec<u8>,
    number: u64,
}

/// Bytes that the first line of a dump has at most: whatever else is named here need not have any line.
const FIRST_LINE: u64 = 64;

impl Reader {
    /// The fields of the first line, if it can be that of a dump.
    fn first(&mut self) -> Result<Option<Vec<&[u8]>>, Failure> {
        self.number += 1;
        let mut start = (&mut self.reader).take(FIRST_LINE);
        start.read_until(b'\n', &mut self.line).map_err(Failure::io("reading the dump"))?;
        Ok(self.line.strip_suffix(b"\n").map(|line| line.split(|b| *b == b'\t').collect()))
    }

    /// The fields of the next line; `None` at the end.
    fn next(&mut self) -> Result<Option<Vec<&[u8]>>, Failure> {
        self.line.clear();
        self.number += 1;
        let read = self.reader.read_until(b'\n', &mut self.line).map_err(Failure::io("reading the dump"))?;
        if read == 0 {
            return Ok(None);
        }
        match self.line.strip_suffix(b"\n") {
            Some(line) => Ok(Some(line.split(|b| *b == b'\t').collect())),
            None => Err(self.bad("it ends in the middle of a line, so it was cut off")),
        }
    }

    fn bad(&self, what: impl Into<String>) -> Failure {
        Failure::BadDump { line: self.number, what: what.into() }
    }
}

/// What of a dump's line is text.
fn utf8(field: &[u8]) -> Result<String, String> {
    String::from_utf8(unescape(field)?).map_err(|_| "a name that is no UTF-8".into())
}

fn restore(
    reader: Box<dyn BufRead>,
    args: &RestoreArgs,
    partial: &std::path::Path,
) -> Result<(Vec<(String, u64)>, Pool), Failure> {
    let mut reader = Reader { reader, line: Vec::new(), number: 0 };
    let has_count = match reader.first()?.as_deref() {
        Some([b"durix-dump", version]) if *version == VERSION.as_bytes() => true,
        Some([b"durix-dump", version]) if *version == WITHOUT_COUNT.as_bytes() => false,
        Some([b"durix-dump", version]) => {
            let version = version.escape_ascii();
            let what = format!("it is of format {version}, and this build reads {WITHOUT_COUNT} and {VERSION}");
            return Err(reader.bad(what));
        }
        _ => return Err(reader.bad("it does not begin with \"durix-dump\", so it is no dump")),
    };
    let pool = pools::options(&args.pool).durability(durix::Level::Process).create(partial)?;
    let mut restored = Vec::new();
    let mut is_whole = !has_count;
    while let Some(fields) = reader.next()? {
        let header = match fields.as_slice() {
            [b"indices", count] if has_count => {
                let count = count.escape_ascii().to_string();
                must_be_the_end(&mut reader, &count, restored.len())?;
                is_whole = true;
                break;
            }
            [b"index", name, kind, key, value] => utf8(name).and_then(|name| {
                let mut names = TypeNames::default();
                let types = Types { key: type_of(key, &mut names)?, value: type_of(value, &mut names)? };
                Ok((name, utf8(kind)?, types, names))
            }),
            _ if has_count => Err("neither a new index nor the number of indices is here".into()),
            _ => Err("neither a new index nor the end was expected here".into()),
        };
        let (name, kind, types, names) = header.map_err(|what| reader.bad(what))?;
        if restored.iter().any(|(other, _)| *other == name) {
            return Err(reader.bad(format!("a second index named {name:?}")));
        }
        let entry = durix::kind::named::<Hardware>(args.kind.as_deref().unwrap_or(&kind))?;
        types.fit(entry.limits, entry.name).map_err(|error| reader.bad(error.to_string()))?;
        let index = entry.open_or_create(&pool, &name)?;
        names.keep(&pool, types)?;
        let entries = restore_index(&mut reader, &pool, &index, types)?;
        restored.push((name, entries));
    }
    if !is_whole {
        return Err(reader.bad("it ends without the number of indices, so it was cut off"));
    }
    if !has_count {
        eprintln!(
            "durix: warning: a dump of format 1 does not say how many indices it has; one that was cut off between two cannot be told from a \
             whole one"
        );
    }
    Ok((restored, pool))
}

/// That the line with the number of indices is right, and the last one.
fn must_be_the_end(reader: &mut Reader, count: &str, restored: usize) -> Result<(), Failure> {
    if count != restored.to_string() {
        let are = if restored == 1 { "is" } else { "are" };
        return Err(reader.bad(format!("{count} indices were dumped, {restored} {are} here")));
    }
    match reader.next()? {
        Some(_) => Err(reader.bad("something follows the number of indices")),
        None => Ok(()),
    }
}

/// A type, and the name that a dump may give for it.
fn type_of(field: &[u8], names: &mut TypeNames) -> Result<TypeTag, String> {
    let field = utf8(field)?;
    let (tag, name) = match field.split_once(' ').filter(|(tag, _)| tag.starts_with("type#")) {
        Some((tag, name)) => (tag, Some(name)),
        None => (&field[..], None),
    };
    let tag: TypeTag = tag.parse().map_err(|unfit: durix::encode::Unfit| unfit.to_string())?;
    if let Some(name) = name {
        names.insert(tag, name.into());
    }
    Ok(tag)
}

fn restore_index(reader: &mut Reader, pool: &Pool, index: &Arc<dyn Index>, types: Types) -> Result<u64, Failure> {
    let mut session = pool.session()?;
    types.declare(&**index, &session.enter()?);
    let (mut count, mut sum) = (0, 0);
    loop {
        let Some(fields) = reader.next()? else {
            return Err(reader.bad("it ends within an index, so it was cut off"));
        };
        match fields.as_slice() {
            [key, value] => {
                let pair = unescape(key).and_then(|key| Ok((key, unescape(value)?)));
                let (key, value) = pair.map_err(|what| reader.bad(what))?;
                insert(&mut session, &**index, &key, &value).map_err(|failure| reader.at_line(failure))?;
                count += 1;
                sum = crc32c::crc32c_append(sum, &reader.line);
            }
            [b"end", entries, crc] => {
                let (entries, crc) = (entries.escape_ascii().to_string(), crc.escape_ascii().to_string());
                if entries != count.to_string() || crc != format!("{sum:08x}") {
                    let what =
                        format!("{entries} entries with checksum {crc} were dumped, {count} with {sum:08x} are here");
                    return Err(reader.bad(what));
                }
                index.sync(&mut session)?;
                return Ok(count);
            }
            fields => {
                let what = format!(
                    "{}, where an entry has two and the end three",
                    output::counted(fields.len() as u64, "field")
                );
                return Err(reader.bad(what));
            }
        }
    }
}

fn insert(session: &mut Session, index: &dyn Index, key: &[u8], value: &[u8]) -> Result<(), durix::Error> {
    if index.insert(&session.enter()?, key, value)? {
        return Ok(());
    }
    // Two entries of one key cannot come from a dump of one moment; from a live one they can, and the last one counts.
    Ok(())
}

impl Reader {
    fn at_line(&self, error: durix::Error) -> Failure {
        match error {
            error @ (durix::Error::KeyTooLong { .. }
            | durix::Error::ValueTooLong { .. }
            | durix::Error::WrongLength { .. }) => self.bad(error.to_string()),
            other => other.into(),
        }
    }
}
