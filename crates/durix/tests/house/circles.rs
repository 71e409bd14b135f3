//! Files of one crate that import each other in a circle can only be read together: a circle has four files at most.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use super::rust_files;

/// Files of the largest circle that is allowed.
const MOST: usize = 4;

/// The source of a crate: its files, by their modules. The root's path is empty.
#[derive(Default)]
struct Crate {
    files: BTreeMap<Vec<String>, Module>,
}

/// A module with a file of its own.
struct Module {
    file: String,
    imports: Vec<Import>,
}

/// A path that a module names, after `use` or in its code.
struct Import {
    /// From the root of the crate.
    path: Vec<String>,
    /// The name by which the module has it.
    name: String,
    /// Whether others may take it from the module (`pub use`).
    is_handed_on: bool,
}

/// The words and marks of a source, without comments and literals. `::` is one mark.
fn tokens(source: &str) -> Vec<String> {
    let chars: Vec<char> = source.chars().collect();
    let (mut tokens, mut at) = (Vec::new(), 0);
    let is_word = |c: char| c.is_alphanumeric() || c == '_';
    let rest = |at: usize, text: &str| chars[at..].iter().copied().take(text.len()).eq(text.chars());
    while let Some(&c) = chars.get(at) {
        if rest(at, "//") {
            at += chars[at..].iter().take_while(|c| **c != '\n').count();
        } else if rest(at, "/*") {
            let mut depth = 0;
            loop {
                match () {
                    () if at >= chars.len() => break,
                    () if rest(at, "/*") => (depth, at) = (depth + 1, at + 2),
                    () if rest(at, "*/") => (depth, at) = (depth - 1, at + 2),
                    () => at += 1,
                }
                if depth == 0 {
                    break;
                }
            }
        } else if c == '"' || (c == '\'' && (chars.get(at + 1) == Some(&'\\') || chars.get(at + 2) == Some(&'\''))) {
            at += 1;
            while at < chars.len() && chars[at] != c {
                at += if chars[at] == '\\' { 2 } else { 1 };
            }
            at += 1;
        } else if is_word(c) {
            let word: String = chars[at..].iter().take_while(|c| is_word(**c)).collect();
            at += word.chars().count();
            let marks = chars[at..].iter().take_while(|c| **c == '#').count();
            if ["r", "br", "cr"].contains(&&*word) && chars.get(at + marks) == Some(&'"') {
                let end: String = std::iter::once('"').chain(std::iter::repeat_n('#', marks)).collect();
                at += marks + 1;
                while at < chars.len() && !rest(at, &end) {
                    at += 1;
                }
                at += end.len();
            } else {
                tokens.push(word);
            }
        } else if rest(at, "::") {
            tokens.push("::".into());
            at += 2;
        } else {
            if !c.is_whitespace() {
                tokens.push(c.into());
            }
            at += 1;
        }
    }
    tokens
}

/// The paths of a tree of a `use`, from `at` on. Returns where it ends.
fn tree(tokens: &[String], mut at: usize, above: &[String], found: &mut Vec<(Vec<String>, String)>) -> usize {
    let mut path = above.to_vec();
    loop {
        let Some(token) = tokens.get(at) else { return at };
        match &**token {
            "{" => {
                // From the brace or a comma on.
                while tokens.get(at).is_some_and(|token| !["}", ";"].contains(&&**token)) {
                    at = tree(tokens, at + 1, &path, found);
                }
                return at + 1;
            }
            "::" => at += 1,
            "," | "}" | ";" => {
                // Nothing stands after the last comma.
                if path.len() > above.len() {
                    let name = path.last().cloned().unwrap_or_default();
                    found.push((path, name));
                }
                return at;
            }
            "as" => {
                found.push((path, tokens.get(at + 1).cloned().unwrap_or_default()));
                return at + 2;
            }
            word => {
                path.push(word.into());
                at += 1;
            }
        }
    }
}

/// What a module imports. Modules within it count as it: `super` in one of them is the module itself.
fn imports(source: &str, module: &[String]) -> Vec<Import> {
    let tokens = tokens(source);
    let (mut found, mut at, mut depth) = (Vec::new(), 0, 0);
    // The depths of braces at which modules within the file begin.
    let mut within: Vec<usize> = Vec::new();
    let mut is_test: Option<usize> = None;
    while at < tokens.len() {
        let mut paths = Vec::new();
        let mut is_handed_on = false;
        match &*tokens[at] {
            "{" => depth += 1,
            "}" => {
                depth -= 1;
                within.retain(|begun| *begun <= depth);
                is_test = is_test.filter(|begun| *begun < depth);
            }
            // A module of tests takes whatever it likes: who reads the file for what it does leaves it out.
            "mod" if tokens.get(at + 2).is_some_and(|token| token == "{") => {
                let attribute = ["#", "[", "cfg", "(", "test", ")", "]"];
                is_test = tokens[..at].ends_with(&attribute.map(String::from)).then_some(depth).or(is_test);
                within.push(depth + 1);
            }
            "use" if tokens.get(at + 1).is_some_and(|token| token != "<") => {
                is_handed_on = at > 0 && (tokens[at - 1] == "pub" || tokens[at - 1] == ")");
                at = tree(&tokens, at + 1, &[], &mut paths) - 1;
            }
            // Who may see an item is no import.
            "pub" if tokens[at..].starts_with(&["pub", "(", "in"].map(String::from)) => {
                at += tokens[at..].iter().take_while(|token| *token != ")").count();
            }
            _ if tokens.get(at + 1).is_some_and(|token| token == "::") => {
                let mut path = vec![tokens[at].clone()];
                while tokens.get(at + 1).is_some_and(|token| token == "::")
                    && tokens
                        .get(at + 2)
                        .is_some_and(|token| token.starts_with(|c: char| c.is_alphabetic() || c == '_'))
                {
                    path.push(tokens[at + 2].clone());
                    at += 2;
                }
                paths.push((path, String::new()));
            }
            _ => {}
        }
        at += 1;
        for (path, name) in paths.into_iter().filter(|_| is_test.is_none()) {
            let is_handed_on = is_handed_on && within.is_empty();
            // From the root of the crate.
            let (mut from, mut inner, mut rest) = (module.to_vec(), within.len(), &path[..]);
            match rest.first().map(|first| &**first) {
                Some("crate") => (from, rest) = (Vec::new(), &rest[1..]),
                Some("self") => rest = &rest[1..],
                _ => {}
            }
            while rest.first().is_some_and(|first| first == "super") {
                rest = &rest[1..];
                match inner {
                    0 => drop(from.pop()),
                    _ => inner -= 1,
                }
            }
            from.extend(rest.iter().cloned());
            found.push(Import { path: from, name, is_handed_on });
        }
    }
    found
}

impl Crate {
    fn add(&mut self, module: Vec<String>, file: String, source: &str) {
        let imports = imports(source, &module);
        self.files.insert(module, Module { file, imports });
    }

    /// The file that a path leads to: that of its longest module; through what that module hands on of others. None if that is another
    /// crate's.
    fn target(&self, path: &[String], steps: usize) -> Option<&[String]> {
        let longest = (1..=path.len()).rev().find(|len| self.files.contains_key(&path[..*len]));
        let (module, found) = self.files.get_key_value(&path[..longest.unwrap_or(0)])?;
        let Some(name) = path.get(module.len()).filter(|_| steps > 0) else { return Some(module) };
        let handed = found.imports.iter().filter(|import| import.is_handed_on && import.name == *name);
        // A name can be handed on twice: a module and a function, say.
        let targets = handed.map(|import| self.target(&import.path, steps - 1).filter(|target| *target != &module[..]));
        match targets.reduce(Option::or) {
            Some(target) => target,
            None => Some(module),
        }
    }

    /// Which file imports which. A module that only hands names of its parts on does not import them.
    fn arrows(&self) -> BTreeMap<&[String], BTreeSet<&[String]>> {
        let arrows = |(module, found): (&'_ Vec<String>, &Module)| -> BTreeSet<&[String]> {
            let taken = found.imports.iter().filter(|import| !import.is_handed_on);
            taken.filter_map(|import| self.target(&import.path, 8)).filter(|target| *target != &module[..]).collect()
        };
        self.files.iter().map(|file| (&file.0[..], arrows(file))).collect()
    }

    /// The files of each circle.
    fn circles(&self) -> BTreeSet<Vec<&str>> {
        let arrows = self.arrows();
        let reached_from = |from: &[String]| {
            let (mut seen, mut left) = (BTreeSet::new(), vec![&arrows[from]]);
            while let Some(targets) = left.pop() {
                left.extend(targets.iter().filter(|target| seen.insert(**target)).map(|target| &arrows[target]));
            }
            seen
        };
        let reached: BTreeMap<_, _> = arrows.keys().map(|module| (*module, reached_from(module))).collect();
        let circle = |module: &[String]| {
            let circle = reached[module].iter().filter(|other| reached[*other].contains(module));
            circle.map(|other| &*self.files[*other].file).collect()
        };
        reached.iter().filter(|(module, others)| others.contains(*module)).map(|(module, _)| circle(module)).collect()
    }
}

/// The crate whose root lies in `folder`. A `main.rs` beside a `lib.rs` counts as a module of its own.
fn crate_in(folder: &Path) -> Crate {
    let mut files = Vec::new();
    rust_files(folder, &mut files);
    let mut found = Crate::default();
    let root = if folder.join("lib.rs").exists() { "lib" } else { "main" };
    for path in files {
        let inner = path.strip_prefix(folder).unwrap();
        let mut module: Vec<String> =
            inner.with_extension("").iter().map(|part| part.to_str().unwrap().to_owned()).collect();
        if module.last().is_some_and(|last| last == "mod") || module == [root] {
            module.pop();
        }
        found.add(module, inner.display().to_string(), &std::fs::read_to_string(&path).unwrap());
    }
    found
}

#[test]
fn no_circle_of_imports_has_more_than_four_files() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let mut roots: Vec<PathBuf> =
        ["benches", "benches/compare", "benches/compare/journal"].map(|crate_| root.join(crate_)).into();
    roots.extend(std::fs::read_dir(root.join("crates")).unwrap().map(|entry| entry.unwrap().path()));
    let (mut files, mut larger) = (0, Vec::new());
    for root in &roots {
        let mut folders = vec![root.join("src")];
        // Each folder of tests is a crate, too.
        let tests = std::fs::read_dir(root.join("tests")).into_iter().flatten().map(|entry| entry.unwrap().path());
        folders.extend(tests.filter(|path| path.join("main.rs").exists()));
        for folder in folders {
            let found = crate_in(&folder);
            files += found.files.len();
            let circles = found.circles().into_iter().filter(|circle| circle.len() > MOST);
            larger.extend(circles.map(|circle| format!("{}: {}", folder.display(), circle.join(", "))));
        }
    }
    assert!(files > 500, "{files} files");
    assert!(larger.is_empty(), "circles of more than {MOST} files; move what they share down:\n{}", larger.join("\n"));
}

/// The circles of a crate of these files.
fn circles_of(files: &[(&str, &str)]) -> Vec<String> {
    let mut found = Crate::default();
    for (file, source) in files {
        let module = file.split('/').filter(|part| !["lib", "mod"].contains(part));
        found.add(module.map(String::from).collect(), (*file).into(), source);
    }
    found.circles().iter().map(|circle| circle.join(" ")).collect()
}

#[test]
fn circles_are_found_however_an_import_is_written() {
    let lib = ("lib", "mod a; mod b; mod c; pub use c::C; pub use b::{inner::D, B};");
    for (a, is_import) in [
        ("use crate::b::B;", true),
        ("use crate::{b::{self, B as Other}, X};", true),
        ("pub use super::b::B; use super::b::Y;", true),
        ("use crate::B;", true),
        ("fn f() -> crate::b::B { loop {} }", true),
        ("mod inner { use super::super::b::B; }", true),
        ("fn f() { for x in crate::b::all() {} }", true),
        ("fn f<'a>(text: &'a str) { (r#\"\"use\"#, '\"', '\\''); } use crate::b::B;", true),
        ("#[cfg(test)] mod tests { use crate::b::B; } fn f() {}", false),
        ("#[cfg(test)] mod tests { mod inner {} use crate::b::B; }", false),
        ("#[cfg(test)] mod tests { } use crate::b::B;", true),
        ("// use crate::b::B;\n /* use crate::b::B; */ fn f() { \"crate::b::B\"; r#\"\" crate::b::B\"#; }", false),
        ("pub(in crate::b) fn f() {}", false),
        ("fn f() -> impl Sized + use<'_> {}", false),
        ("use other::b::B; use std::{b, fmt};", false),
    ] {
        let b = "use crate::a::A; pub struct B;";
        let found = circles_of(&[lib, ("a", a), ("b", b), ("c", "use crate::b::B;")]);
        let expected: &[&str] = if is_import { &["a b"] } else { &[] };
        assert_eq!(found, expected, "{a}");
    }
}

#[test]
fn circles_lead_through_parts_and_names_handed_on() {
    // Handing names of its parts on is no import; using a part is.
    let part = ("a/part", "use super::A; pub struct P;");
    let lib = ("lib", "mod a; mod b;");
    assert!(circles_of(&[lib, ("a/mod", "mod part; pub use part::P; pub struct A;"), part]).is_empty());
    assert_eq!(circles_of(&[lib, ("a/mod", "mod part; pub struct A(part::P);"), part]), ["a/mod a/part"]);
    // A name is of the file that defines it, whoever hands it on.
    let through =
        [lib, ("a/mod", "mod part; pub use part::P;"), ("a/part", "use crate::b::B;"), ("b", "use crate::a::P;")];
    assert_eq!(circles_of(&through), ["a/part b"]);
    // Circles with a file in common are one.
    let three = [lib, ("a", "use crate::b::B;"), ("b", "use crate::{a::A, c::C};"), ("c", "use crate::b::B;")];
    assert_eq!(circles_of(&three), ["a b c"]);
}

#[test]
fn the_root_of_a_crate_is_a_file_as_any_other() {
    let a = ("a", "use super::Set;");
    assert_eq!(circles_of(&[("lib", "mod a; use a::A; pub struct Set(A);"), a]), ["lib a"]);
    assert!(circles_of(&[("lib", "mod a; pub use a::A; pub struct Set;"), a]).is_empty(), "hands a name on");
    // Names of other crates are no imports, neither by themselves nor handed on by the root.
    let lib = ("lib", "mod a; use a::A; pub use other::Other;");
    assert!(circles_of(&[lib, ("a", "use crate::Other; use other::{Set, b::B}; use std::fmt;")]).is_empty());
}
