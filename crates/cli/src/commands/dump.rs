//! `dump`: indices as text.
//!
//! ```text
//! durix-dump<TAB>2
//! index<TAB>NAME<TAB>KIND<TAB>TYPE OF KEYS<TAB>TYPE OF VALUES     type#HASH NAME for types that a program has named
//! KEY<TAB>VALUE                                     as many as there are
//! end<TAB>NUMBER OF ENTRIES<TAB>CRC-32C of their lines, newlines included, in hexadecimal
//! indices<TAB>NUMBER OF INDICES                     the last line
//! ```
//!
//! Names, keys and values are escaped as [`escape_into`] does it, so lines are told apart by their number of tabs. The file
//! says of itself what it is, and one that was cut off or changed is noticed. Format 1 has no last line, so the end of a dump that was cut off
//! between two indices looks like that of a whole one.

use std::collections::BTreeMap;

use durix::{Index, Pool, Session, TypeNames, TypeTag, Types};

use crate::args::DumpArgs;
use crate::failure::{Code, Failure};
use crate::output::{Out, counted};
use crate::pools;
use crate::redb;
use crate::text::{escape, escape_into};

/// Version of the format.
pub const VERSION: &str = "2";
/// The version without the last line.
pub const WITHOUT_COUNT: &str = "1";

pub fn run(args: &DumpArgs) -> Result<Code, Failure> {
    let pool = pools::open_to_read(&args.pool)?;
    let indices = pools::listed(pool.indices()?);
    if let Some(wanted) = args.index.as_ref().filter(|wanted| !indices.iter().any(|info| info.name == **wanted)) {
        let there: Vec<_> = indices.into_iter().map(|info| info.name).collect();
        return Err(Failure::NoIndex { path: pool.name().into(), index: wanted.clone(), there: there.join(", ") });
    }
    let asked = indices.iter().filter(|info| args.index.as_ref().is_none_or(|wanted| *wanted == info.name));
    let mut out = Out::new();
    if let Some(path) = &args.redb {
        let names: Vec<String> = asked.map(|info| info.name.clone()).collect();
        for (name, entries) in redb::write(&pool, &names, path)? {
            out.line(&format!("{name}: {}", counted(entries, "entry")))?;
        }
        out.finish()?;
        return Ok(Code::Done);
    }
    out.line(&format!("durix-dump\t{VERSION}"))?;
    let mut dumped = 0_u64;
    for info in asked {
        dump_index(&pool, &info.name, args.sort, &mut out)?;
        dumped += 1;
    }
    out.line(&format!("indices\t{dumped}"))?;
    out.finish()?;
    Ok(Code::Done)
}

fn dump_index(pool: &Pool, name: &str, sort: bool, out: &mut Out) -> Result<(), Failure> {
    let info = pool.indices()?.into_iter().find(|info| info.name == name);
    let kind = info.and_then(|info| durix::kind::of::<durix::Hardware>(info.kind)).map_or("?", |entry| entry.name);
    let index = durix::kind::open_as_is(pool, name)?;
    let mut session = pool.session()?;
    let Types { key, value } = Types::of(&*index, &session.enter()?);
    let names = TypeNames::of(pool);
    let [key, value] = [key, value].map(|tag| type_field(tag, &names));
    out.line(&format!("index\t{}\t{kind}\t{key}\t{value}", escape(name.as_bytes())))?;
    let mut lines = Lines { out, count: 0, sum: 0, line: String::new() };
    if sort && index.as_ordered().is_none() {
        sorted(&*index, &mut session)?.iter().try_for_each(|(key, value)| lines.entry(key, value))?;
    } else {
        let mut cursor = index.cursor();
        let (mut key, mut value) = (Vec::new(), Vec::new());
        while cursor.next_into(&session.enter()?, &mut key, &mut value)? {
            lines.entry(&key, &value)?;
        }
    }
    let end = format!("end\t{}\t{:08x}", lines.count, lines.sum);
    out.line(&end)
}

/// What a dump says of a type: what its tag says and, where that is a hash, after a space the name that goes with it.
fn type_field(tag: TypeTag, names: &TypeNames) -> String {
    let (shown, name) = (tag.to_string(), names.name(tag));
    if name == shown { shown } else { format!("{shown} {}", escape(name.as_bytes())) }
}

fn sorted(index: &dyn Index, session: &mut Session) -> Result<BTreeMap<Vec<u8>, Vec<u8>>, Failure> {
    let mut pairs = BTreeMap::new();
    let mut cursor = index.cursor();
    let (mut key, mut value) = (Vec::new(), Vec::new());
    while cursor.next_into(&session.enter()?, &mut key, &mut value)? {
        pairs.insert(std::mem::take(&mut key), std::mem::take(&mut value));
    }
    Ok(pairs)
}

struct Lines<'a> {
    out: &'a mut Out,
    count: u64,
    sum: u32,
    line: String,
}

impl Lines<'_> {
    fn entry(&mut self, key: &[u8], value: &[u8]) -> Result<(), Failure> {
        self.line.clear();
        escape_into(key, &mut self.line);
        self.line.push('\t');
        escape_into(value, &mut self.line);
        self.line.push('\n');
        self.count += 1;
        self.sum = crc32c::crc32c_append(self.sum, self.line.as_bytes());
        self.out.bytes(self.line.as_bytes())
    }
}
