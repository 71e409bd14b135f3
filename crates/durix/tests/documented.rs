//! Every public item of the facade has an example, which runs as a doctest.

use std::path::Path;

/// What is public by a line of source.
fn public(line: &str) -> Option<&str> {
    let item = line.trim_start().strip_prefix("pub ")?;
    // What another crate has, and the facade passes on: one item a line, so that each can have an example.
    if let Some(path) = item.strip_prefix("use durix_") {
        return Some(path.rsplit("::").next().unwrap_or(path).trim_end_matches(';'));
    }
    let item = ["const fn", "unsafe fn"].iter().fold(item, |item, words| match item.strip_prefix(words) {
        Some(rest) if !rest.is_empty() => &item[words.len() - 2..],
        _ => item,
    });
    let (word, rest) = item.split_once(' ')?;
    let name = rest.split(|c: char| !c.is_alphanumeric() && c != '_').next()?;
    ["fn", "struct", "enum", "trait", "type", "const", "union"].contains(&word).then_some(name)
}

/// The public items of a file whose documentation has no example. Those of tests and hidden ones are nobody's.
fn without_example(source: &str) -> Vec<String> {
    let (mut missing, mut example, mut within, mut hidden, mut exported) = (Vec::new(), false, false, false, false);
    // Within an attribute of several lines.
    let mut attribute = false;
    for line in source.lines().take_while(|line| *line != "#[cfg(test)]") {
        let text = line.trim_start();
        match text {
            _ if text.starts_with("///") => {
                if text.starts_with("/// ```") {
                    // One that only compiles, or not even that, runs nothing.
                    example |= !within && text == "/// ```";
                    within = !within;
                }
            }
            _ if attribute || text.starts_with("#[") => {
                hidden |= text.contains("doc(hidden)");
                exported |= text == "#[macro_export]";
                attribute = !text.ends_with(']');
            }
            _ => {
                let of_macro =
                    line.strip_prefix("macro_rules! ").filter(|_| exported).and_then(|name| name.split(' ').next());
                if let Some(name) = public(line).or(of_macro)
                    && !example
                    && !hidden
                {
                    missing.push(name.to_owned());
                }
                (example, within, hidden, exported) = (false, false, false, false);
            }
        }
    }
    missing
}

fn look(folder: &Path, missing: &mut Vec<String>, files: &mut usize) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            look(&path, missing, files);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            *files += 1;
            let found = without_example(&std::fs::read_to_string(&path).unwrap());
            missing.extend(found.into_iter().map(|name| format!("{}: {name}", path.display())));
        }
    }
}

#[test]
fn every_public_item_has_an_example() {
    let (mut missing, mut files) = (Vec::new(), 0);
    look(&Path::new(env!("CARGO_MANIFEST_DIR")).join("src"), &mut missing, &mut files);
    assert!(files > 40, "{files} files");
    assert!(missing.is_empty(), "without an example in their documentation:\n{}", missing.join("\n"));
}

#[test]
fn an_item_without_an_example_is_found() {
    let source = "\
/// A struct.
pub struct Bare;

/// ```
/// let run = 1;
/// ```
#[derive(Debug)]
#[diagnostic::on_unimplemented(
    message = \"none\"
)]
pub struct Shown;

impl Shown {
    /// ```no_run
    /// endless();
    /// ```
    pub const fn only_compiled() {}

    #[doc(hidden)]
    pub fn hidden() {}

    pub(crate) fn inner() {}
    pub fn undocumented() {}
}

/// ```
/// # use crate::Trait;
/// ```
pub trait Trait {
    fn method();
}
macro_rules! inner {}
#[macro_export]
macro_rules! outer {}
pub use durix_index::Batch;
pub use durix_index::{Cursor, Direction};
/// ```
/// let ticket = durix::Ticket::DURABLE;
/// ```
#[doc(inline)]
pub use durix_index::Ticket;
pub use inner::Inner;
#[cfg(test)]
pub fn of_a_test() {}
";
    let missing = ["Bare", "only_compiled", "undocumented", "outer", "Batch", "{Cursor, Direction}"];
    assert_eq!(without_example(source), missing);
}
