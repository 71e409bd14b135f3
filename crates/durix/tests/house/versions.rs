//! Every layout has a version that the switch of the release knows, or is named here: see `durix_pmem::Version`.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use durix_pmem::RELEASED;

use super::rust_files;

/// Layouts that a release leaves out, as file and number: no fixture keeps them, so nobody promises to open them.
const NOT_RELEASED: [(&str, usize); 6] = [
    ("crates/cso/src/log/layout.rs", 1),
    ("crates/dptree/src/layout.rs", 1),
    ("crates/logfree/src/layout.rs", 2),
    ("crates/logfree/src/soft/layout.rs", 1),
    ("crates/rewind/src/engine/mod.rs", 1),
    ("crates/rewind/src/layout.rs", 1),
];

/// Constants that are called a version and are none of a layout.
const OTHERS: [(&str, &str); 5] = [
    // The text of a dump, which every build reads: it has a number of its own.
    ("crates/cli/src/commands/dump.rs", "VERSION"),
    // Bits, and numbers of changes of a key.
    ("crates/dptree/src/layout.rs", "MAX_VERSION"),
    ("crates/dptree/src/layout.rs", "SANE_VERSION"),
    ("crates/dptree/src/record.rs", "VERSION"),
    ("crates/pset/src/layout.rs", "MAX_VERSION"),
];

/// Structs that lie over words of any layout.
const VIEWS: [&str; 1] = ["AnyLine"];

/// Crates of tests, whose pools nobody keeps.
const OF_TESTS: [&str; 4] = ["crashsim", "fuzzing", "simtests", "subjects"];

/// The sources of a workspace, without tests: file and text without comments.
fn sources(root: &Path) -> Vec<(String, String)> {
    let mut files = Vec::new();
    for folder in std::fs::read_dir(root.join("crates")).unwrap().map(|entry| entry.unwrap().path()) {
        let is_of_tests = OF_TESTS.iter().any(|name| folder.ends_with(name));
        if !is_of_tests {
            rust_files(&folder.join("src"), &mut files);
        }
    }
    let is_source =
        |path: &PathBuf| !path.ends_with("tests.rs") && !path.components().any(|part| part.as_os_str() == "tests");
    let read = |path: PathBuf| {
        let text = std::fs::read_to_string(&path).unwrap();
        let file = path.strip_prefix(root).unwrap().display().to_string();
        (file, without_tests(&text))
    };
    files.into_iter().filter(is_source).map(read).collect()
}

/// A text up to its tests, without comments.
fn without_tests(text: &str) -> String {
    let text = text.split("\n#[cfg(test)]\nmod tests {").next().unwrap_or_default();
    text.lines().filter(|line| !line.trim_start().starts_with("//")).map(|line| format!("{line}\n")).collect()
}

/// The first word of a text.
fn word(text: &str) -> &str {
    let text = text.trim_start();
    &text[..text.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(text.len())]
}

/// What is wrong with the versions of a file.
fn versions(file: &str, text: &str) -> Vec<String> {
    if file == "crates/pmem/src/version.rs" {
        return Vec::new();
    }
    let mut wrong = Vec::new();
    for (number, line) in text.lines().enumerate() {
        let at = format!("{file}, line {number} without comments: {}", line.trim());
        if let Some((_, rest)) = line.split_once("const ") {
            let (name, rest) = (word(rest), rest.split_once(':').map_or("", |(_, rest)| rest.trim()));
            let is_version =
                (name == "VERSION" || name.ends_with("_VERSION") || name == "FORMAT") && !rest.starts_with("Version ");
            if is_version && !OTHERS.contains(&(file, name)) && !line.contains("<const ") && !name.starts_with("NO_") {
                wrong.push(format!("{at}: is no `Version`"));
            }
        }
        let given = line.split_once("version: ").filter(|_| line.contains("tag: "));
        if given.is_some_and(|(_, rest)| rest.starts_with(|c: char| c.is_ascii_digit())) {
            wrong.push(format!("{at}: has a version that the switch of the release does not know"));
        }
        if line.contains("Version::new(") {
            wrong.push(format!("{at}: is released whatever the switch says"));
        }
        for of in line.split("Version::of(").skip(1) {
            let of = word(of).parse::<u32>();
            if !of.is_ok_and(|of| (1..=RELEASED + 1).contains(&of)) {
                wrong.push(format!("{at}: skips a version"));
            }
        }
        if line.contains(" 999;") {
            wrong.push(format!("{at}: `UNRELEASED` is the name of it"));
        }
    }
    wrong
}

/// The persistent structs of a text.
fn persistent(text: &str) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    for (at, _) in text.match_indices("persistent! {") {
        let (mut depth, body) = (0, &text[at + "persistent! ".len()..]);
        let end = body.char_indices().find(|(_, c)| {
            depth += i32::from(*c == '{') - i32::from(*c == '}');
            depth == 0
        });
        let body = &body[..end.map_or(body.len(), |(end, _)| end)];
        found.extend(body.split("struct ").skip(1).map(|rest| word(rest).to_owned()));
    }
    found
}

/// The structs in the digests of a text.
fn digested(text: &str) -> BTreeSet<String> {
    let lists = text.split("layout!(").skip(1).filter_map(|rest| rest.trim_start().strip_prefix('[')?.split_once(']'));
    lists.flat_map(|(list, _)| list.split(',').map(|name| name.trim().to_owned())).collect()
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

#[test]
fn every_layout_has_a_version_that_the_release_knows() {
    let (mut wrong, mut not_released) = (Vec::new(), Vec::new());
    let sources = sources(&root());
    assert!(sources.len() > 200, "{} files", sources.len());
    for (file, text) in &sources {
        wrong.extend(versions(file, text));
        let count = text.matches("Version::unreleased(").count();
        if count > 0 && file != "crates/pmem/src/version.rs" && !file.starts_with("crates/toykind") {
            not_released.push((file.as_str(), count));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    not_released.sort_unstable();
    assert_eq!(not_released, NOT_RELEASED, "what a release leaves out");
}

#[test]
fn every_persistent_struct_is_in_a_digest() {
    let (mut structs, mut digests) = (BTreeSet::new(), BTreeSet::new());
    for (file, text) in sources(&root()) {
        // That of another crate is another struct.
        let of = file.split('/').nth(1).unwrap().to_owned();
        structs.extend(persistent(&text).into_iter().map(|name| (of.clone(), name)));
        digests.extend(digested(&text).into_iter().map(|name| (of.clone(), name)));
    }
    assert!(structs.len() > 40, "{structs:?}");
    let forgotten: Vec<_> = structs.difference(&digests).filter(|(_, name)| !VIEWS.contains(&name.as_str())).collect();
    assert!(forgotten.is_empty(), "in no `layout!`: {forgotten:?}");
}

#[test]
fn what_is_wrong_is_found() {
    let wrong = |text: &str| versions("crates/a/src/layout.rs", text).len();
    assert_eq!(wrong("pub const LAYOUT_VERSION: Version = Version::of(1, LAYOUT);\n"), 0);
    assert_eq!(wrong("const KIND: Kind = Kind { tag: *b\"A\", version: LAYOUT_VERSION };\n"), 0);
    for line in [
        "pub const LAYOUT_VERSION: u32 = 3;\n",
        "pub const VERSION: u64 = OTHER;\n",
        "pub const FORMAT: u32 = 7;\n",
        "const KIND: Kind = Kind { tag: *b\"A\", version: 1 };\n",
        "const KIND: Kind = Kind { tag: *b\"A\", version: Version::new(1) };\n",
        "pub const V: Version = Version::of(9, LAYOUT);\n",
        "pub const DEVELOPMENT: u32 = 999;\n",
    ] {
        assert_eq!(wrong(line), 1, "{line}");
    }
    let text =
        "persistent! {\n    pub struct A: align(8) { a: Word }\n    struct B: align(8) { b: Word }\n}\nstruct C;\n";
    assert_eq!(persistent(text), ["A".to_owned(), "B".to_owned()].into());
    assert_eq!(digested("layout!([A, B], 1) layout!(\n    [D],\n 2)"), ["A", "B", "D"].map(str::to_owned).into());
    assert_eq!(without_tests("a\n// b\n#[cfg(test)]\nmod tests {\nc\n}\n"), "a\n");
}
