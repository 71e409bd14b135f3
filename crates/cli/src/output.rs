//! Writing to standard output: tables, JSON, lines.

use std::io::{self, BufWriter, StdoutLock, Write};

use comfy_table::{CellAlignment, Table, presets};

use crate::failure::Failure;
use crate::surroundings;

/// Standard output, buffered; a reader that went away is [`Failure::is_broken_pipe`].
pub struct Out {
    out: BufWriter<StdoutLock<'static>>,
}

impl Out {
    pub fn new() -> Self {
        Out { out: BufWriter::with_capacity(1 << 16, io::stdout().lock()) }
    }

    pub fn bytes(&mut self, bytes: &[u8]) -> Result<(), Failure> {
        let written = match surroundings::output_was_closed() {
            true => Err(io::Error::other("it is closed; redirect it to /dev/null if nobody is to read it")),
            false => self.out.write_all(bytes),
        };
        written.map_err(Failure::io("writing to standard output"))
    }

    pub fn line(&mut self, line: &str) -> Result<(), Failure> {
        self.bytes(line.as_bytes())?;
        self.bytes(b"\n")
    }

    pub fn finish(mut self) -> Result<(), Failure> {
        self.out.flush().map_err(Failure::io("writing to standard output"))
    }
}

/// A number with its noun: "1 key", "2 keys".
pub fn counted(number: u64, noun: &str) -> String {
    match noun.strip_suffix('y').filter(|stem| !stem.ends_with('e')) {
        _ if number == 1 => format!("{number} {noun}"),
        Some(stem) => format!("{number} {stem}ies"),
        None => format!("{number} {noun}s"),
    }
}

pub fn line(line: &str) -> Result<(), Failure> {
    let mut out = Out::new();
    out.line(line)?;
    out.finish()
}

pub fn json(value: &serde_json::Value) -> Result<(), Failure> {
    line(&value.to_string())
}

/// A table; columns whose number is in `right` are aligned to the right.
pub fn table(header: &[&str], rows: Vec<Vec<String>>, right: &[usize]) -> String {
    let mut table = Table::new();
    table.load_preset(presets::NOTHING);
    if !header.is_empty() {
        table.set_header(header);
    }
    table.add_rows(rows);
    for (at, column) in table.column_iter_mut().enumerate() {
        column.set_padding((0, 2));
        if right.contains(&at) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    table.lines().map(|line| line.trim_end().to_owned()).collect::<Vec<_>>().join("\n")
}

/// Bytes for people.
pub fn human(bytes: u64) -> String {
    indicatif::HumanBytes(bytes).to_string()
}
