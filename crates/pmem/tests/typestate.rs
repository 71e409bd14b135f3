//! The rules that types enforce, of publication and of memory safety, shown by programs that do not compile.
//!
//! The wording of a compiler's messages changes from release to release; what is compared is which errors it finds, by
//! code, and in which lines. The messages of one release lie beside the programs, for readers.
//! `DURIX_BLESS=1 cargo test -p durix-pmem --test typestate` writes them anew.

use std::path::{Path, PathBuf};
use std::process::Command;

/// Set in the child that compiles the programs of a directory.
const DIR: &str = "DURIX_UI_DIR";

/// The programs of a directory, or the messages beside them, by name.
fn files(dir: &Path, extension: &str) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(dir).unwrap().map(|e| e.unwrap().path());
    let mut found: Vec<_> = entries.filter(|p| p.extension().is_some_and(|e| e == extension)).collect();
    found.sort();
    found
}

/// The errors in a compiler's messages, as code and line.
fn errors(messages: &str) -> Vec<(String, u32)> {
    let mut found = Vec::new();
    let mut code = None;
    for line in messages.lines() {
        if let Some(rest) = line.strip_prefix("error") {
            let code_of = |text: &str| text.strip_prefix('[').and_then(|t| t.split(']').next()).map(str::to_owned);
            code = Some(code_of(rest).unwrap_or_else(|| "no code".into()));
        } else if let (Some((_, place)), Some(_)) = (line.split_once("--> "), &code) {
            let number = place.split(':').nth(1).and_then(|n| n.parse().ok()).expect("a line number");
            found.push((code.take().unwrap(), number));
        }
    }
    // One mistake can be reported for several reasons.
    found.dedup();
    found
}

#[test]
fn what_breaks_the_rules_does_not_compile() {
    if let Some(dir) = std::env::var_os(DIR) {
        trybuild::TestCases::new().compile_fail(Path::new(&dir).join("*.rs"));
        return;
    }
    let ui = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/ui");
    let temporary = tempfile::tempdir().unwrap();
    let programs = files(&ui, "rs");
    assert_eq!(programs.len(), 17);
    for program in &programs {
        std::fs::copy(program, temporary.path().join(program.file_name().unwrap())).unwrap();
    }
    // In a child, because the variable that makes `trybuild` write messages down is the whole process's.
    let mut child = Command::new(std::env::current_exe().unwrap());
    child.args(["what_breaks_the_rules_does_not_compile", "--exact", "--nocapture"]);
    let out = child.env(DIR, temporary.path()).env("TRYBUILD", "overwrite").output().unwrap();
    assert!(out.status.success(), "a program compiles that must not:\n{}", String::from_utf8_lossy(&out.stderr));
    for program in programs {
        let expected = program.with_extension("stderr");
        let messages = std::fs::read_to_string(temporary.path().join(expected.file_name().unwrap())).unwrap();
        if std::env::var_os("DURIX_BLESS").is_some() {
            let here = temporary.path().display().to_string();
            std::fs::write(&expected, messages.replace(&here, "$DIR")).unwrap();
        }
        let wanted = errors(&std::fs::read_to_string(&expected).unwrap());
        assert!(!wanted.is_empty());
        assert_eq!(errors(&messages), wanted, "{}:\n{messages}", program.display());
    }
}
