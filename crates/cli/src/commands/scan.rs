//! `scan`.

use std::collections::BTreeMap;
use std::ops::Bound;

use durix::{Cursor, Direction, KeyRange};
use serde_json::json;

use crate::args::{ScanArgs, Shown};
use crate::csv;
use crate::failure::{Code, Failure};
use crate::output::Out;
use crate::pools::{self, Opened};
use crate::text::{Codec, hex};

pub fn run(args: &ScanArgs) -> Result<Code, Failure> {
    let mut at = Opened::existing(pools::open_to_read(&args.at.pool)?, &args.at)?;
    let range = range(args, &at.codec)?;
    let direction = if args.reverse { Direction::Backward } else { Direction::Forward };
    let mut printer =
        Printer { out: Out::new(), codec: at.codec.clone(), args, left: args.limit.unwrap_or(usize::MAX) };
    printer.heading()?;
    let Opened { index, session, .. } = &mut at;
    if let Some(ordered) = index.as_ordered() {
        print_all(&mut *ordered.range(&range, direction), session, &range, &mut printer)?;
    } else if args.unsorted {
        print_all(&mut *index.cursor(), session, &range, &mut printer)?;
    } else {
        for (key, value) in sorted(&mut *index.cursor(), session, &range, direction, printer.left)? {
            printer.print(&key, &value)?;
        }
    }
    printer.out.finish()?;
    Ok(Code::Done)
}

fn range(args: &ScanArgs, codec: &Codec) -> Result<KeyRange, Failure> {
    if let Some(prefix) = &args.prefix {
        return Ok(KeyRange::prefix(&codec.prefix(prefix)?));
    }
    let key = |text: &Option<std::ffi::OsString>| text.as_ref().map(|text| codec.key(text)).transpose();
    Ok(KeyRange {
        lower: key(&args.from)?.map_or(Bound::Unbounded, Bound::Included),
        upper: key(&args.to)?.map_or(Bound::Unbounded, Bound::Excluded),
    })
}

fn print_all(
    cursor: &mut dyn Cursor,
    session: &mut durix::Session,
    range: &KeyRange,
    printer: &mut Printer<'_>,
) -> Result<(), Failure> {
    let (mut key, mut value) = (Vec::new(), Vec::new());
    while printer.left > 0 && cursor.next_into(&session.enter()?, &mut key, &mut value)? {
        if range.contains(&key) {
            printer.print(&key, &value)?;
        }
    }
    Ok(())
}

/// Key and value.
type Pair = (Vec<u8>, Vec<u8>);

/// The first `limit` pairs of a range in the order of keys, or the last ones backwards.
fn sorted(
    cursor: &mut dyn Cursor,
    session: &mut durix::Session,
    range: &KeyRange,
    direction: Direction,
    limit: usize,
) -> Result<Vec<Pair>, Failure> {
    let mut kept = BTreeMap::new();
    let (mut key, mut value) = (Vec::new(), Vec::new());
    while limit > 0 && cursor.next_into(&session.enter()?, &mut key, &mut value)? {
        if range.contains(&key) {
            kept.insert(std::mem::take(&mut key), std::mem::take(&mut value));
            if kept.len() > limit {
                match direction {
                    Direction::Forward => kept.pop_last(),
                    Direction::Backward => kept.pop_first(),
                };
            }
        }
    }
    let pairs = kept.into_iter();
    Ok(match direction {
        Direction::Forward => pairs.collect(),
        Direction::Backward => pairs.rev().collect(),
    })
}

struct Printer<'a> {
    out: Out,
    codec: Codec,
    args: &'a ScanArgs,
    left: usize,
}

impl Printer<'_> {
    fn heading(&mut self) -> Result<(), Failure> {
        let (is_csv, keys_only) = (self.args.at.shown(self.args.format) == Shown::Csv, self.args.keys_only);
        match (self.args.header, is_csv) {
            (false, _) => Ok(()),
            (true, false) => Err(Failure::usage("only CSV has a heading; add --format csv")),
            (true, true) => self.out.line(if keys_only { "key" } else { "key,value" }),
        }
    }

    fn print(&mut self, key: &[u8], value: &[u8]) -> Result<(), Failure> {
        self.left -= 1;
        let value = (!self.args.keys_only).then_some(value);
        entry(&mut self.out, &self.codec, self.args.at.shown(self.args.format), key, value)
    }
}

/// Prints an entry, or only its key.
fn entry(out: &mut Out, codec: &Codec, shown: Shown, key: &[u8], value: Option<&[u8]>) -> Result<(), Failure> {
    let tabbed = |key: String, value: Option<String>| match value {
        Some(value) => format!("{key}\t{value}"),
        None => key,
    };
    match shown {
        Shown::Tsv => out.line(&tabbed(codec.show_key(key), value.map(|value| codec.show_value(value)))),
        Shown::Hex => out.line(&tabbed(hex(key), value.map(hex))),
        Shown::Json => {
            let mut object = json!({ "key": codec.json_of_key(key) });
            if let Some(value) = value {
                object["value"] = codec.json_of_value(value);
            }
            out.line(&object.to_string())
        }
        Shown::Csv => {
            let mut record = Vec::new();
            csv::write_field(&codec.field_of_key(key), &mut record);
            if let Some(value) = value {
                record.push(b',');
                csv::write_field(&codec.field_of_value(value), &mut record);
            }
            record.push(b'\n');
            out.bytes(&record)
        }
    }
}
