//! Zero cost: what the generic path compiles to is what one would write by hand.
//!
//! The program in `asm/` is compiled in release mode as a crate of its own, and the paths through its machine code are
//! followed. The listing of one release lies in `snapshots/`, for readers; `DURIX_BLESS=1` writes it anew.

#![cfg(not(miri))]

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;

const FUNCTION: &str = "durix_publish_node";

/// What matters of an instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Event {
    Store,
    WriteBack,
    Fence,
    Branch,
    Call,
    /// A locked instruction, or a full fence.
    Locked,
}
use Event::*;

/// Compiles the program and returns its assembly.
fn compile(dir: &Path) -> String {
    let package = Path::new(env!("CARGO_MANIFEST_DIR"));
    std::fs::create_dir_all(dir).unwrap();
    let program = package.join("tests/asm/publish_node.rs");
    let manifest = format!(
        "[package]\nname = \"publish_node\"\nedition = \"2024\"\n[lib]\npath = {program:?}\n[dependencies]\n\
         durix-pmem = {{ path = {package:?} }}\n[workspace]\n[profile.release]\ncodegen-units = 1\n"
    );
    std::fs::write(dir.join("Cargo.toml"), manifest).unwrap();
    if let Some(lock) = package.ancestors().map(|p| p.join("Cargo.lock")).find(|p| p.exists()) {
        std::fs::copy(lock, dir.join("Cargo.lock")).unwrap();
    }
    let target = dir.join("target");
    let mut cargo = Command::new(env!("CARGO"));
    cargo.args(["rustc", "--quiet", "--release", "--lib", "--target-dir"]).arg(&target).current_dir(dir);
    cargo.args(["--", "--emit", "asm"]).env_remove("RUSTFLAGS").env_remove("CARGO_ENCODED_RUSTFLAGS");
    assert!(cargo.status().unwrap().success());
    let newest = |a: &PathBuf| std::fs::metadata(a).unwrap().modified().unwrap();
    let files = std::fs::read_dir(target.join("release/deps")).unwrap().map(|e| e.unwrap().path());
    let listing = files.filter(|p| p.extension().is_some_and(|e| e == "s")).max_by_key(newest).expect("a listing");
    std::fs::read_to_string(listing).unwrap()
}

/// The instructions and labels of the function, without directives and comments.
fn body(assembly: &str) -> Vec<String> {
    let start = format!("{FUNCTION}:");
    let lines = assembly.lines().skip_while(|l| l.trim() != start).take_while(|l| l.trim() != ".cfi_endproc");
    let code = lines.map(|l| l.split(['#', ';']).next().unwrap_or_default().trim().replace('\t', " "));
    code.filter(|l| !l.is_empty() && (!l.starts_with('.') || l.ends_with(':'))).collect()
}

fn event(instruction: &str) -> Option<Event> {
    let (name, operands) = instruction.split_once(' ').unwrap_or((instruction, ""));
    let destination = operands.rsplit(", ").next().unwrap_or_default();
    let is_memory = operands.trim_end().ends_with(')') && !destination.contains("%rsp");
    match name {
        "clwb" | "clflush" | "clflushopt" => Some(WriteBack),
        "sfence" => Some(Fence),
        "lock" | "mfence" | "lfence" => Some(Locked),
        _ if name.starts_with("xchg") && operands.contains('(') => Some(Locked),
        _ if name.starts_with("call") => Some(Call),
        _ if name.starts_with('j') && name != "jmp" => Some(Branch),
        _ if (name.starts_with("mov") || name.starts_with("vmov")) && is_memory && operands.contains(", ") => {
            // AT&T: the destination is last. A store has a register or a constant before it.
            (!operands.split(", ").next().unwrap_or_default().contains('(')).then_some(Store)
        }
        _ => None,
    }
}

/// All paths through the function, as events; each instruction is visited at most once a path.
fn paths(code: &[String]) -> Vec<Vec<Event>> {
    let mut found = Vec::new();
    let mut open = vec![(0, Vec::new(), BTreeSet::new())];
    while let Some((mut at, mut events, mut seen)) = open.pop() {
        while let Some(line) = code.get(at) {
            assert!(seen.insert(at), "a loop in the function");
            let (name, operands) = line.split_once(' ').unwrap_or((line, ""));
            events.extend(event(line));
            if name.starts_with("ret") {
                found.push(events);
                break;
            }
            let target = || code.iter().position(|l| *l == format!("{}:", operands.trim()));
            if matches!(name, "jmp" | "jmpq") {
                match target() {
                    Some(target) => at = target,
                    None => {
                        // A jump out of the function is a call in its last position.
                        events.push(Call);
                        found.push(events);
                        break;
                    }
                }
                continue;
            }
            if name.starts_with('j') {
                open.push((target().expect("a label in the function"), events.clone(), seen.clone()));
            }
            at += 1;
        }
    }
    found
}

fn is_as_by_hand(code: &[String]) {
    let paths = paths(code);
    let direct: Vec<_> = paths.iter().filter(|p| p.contains(&WriteBack) && !p.contains(&Call)).collect();
    assert_eq!(direct.len(), 1, "one path with write-backs inline: {paths:?}");
    let persistence: Vec<_> = direct[0].iter().copied().filter(|e| *e != Branch).collect();
    assert_eq!(persistence, [Store, Store, WriteBack, Fence, Store, WriteBack, Fence]);
    assert_eq!(direct[0].iter().filter(|e| **e == Branch).count(), 1, "one branch, on the kind: {direct:?}");
    for path in &paths {
        assert!(!path.contains(&Locked));
        assert_eq!(path.iter().filter(|e| **e == Store).count(), 3, "every path stores the same: {path:?}");
    }
}

#[test]
fn publishing_a_node_costs_what_it_costs_by_hand() {
    if !cfg!(target_arch = "x86_64") {
        println!("skipped: the listing is of x86-64");
        return;
    }
    let snapshot = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/snapshots/publish_node.x86_64.s");
    let code = body(&compile(&Path::new(env!("CARGO_TARGET_TMPDIR")).join("asm")));
    if std::env::var_os("DURIX_BLESS").is_some() {
        std::fs::write(&snapshot, code.join("\n") + "\n").unwrap();
    }
    is_as_by_hand(&code);
    let kept: Vec<_> = std::fs::read_to_string(snapshot).unwrap().lines().map(str::to_owned).collect();
    is_as_by_hand(&kept);
}

#[test]
#[should_panic(expected = "left: [Store, WriteBack, Fence, Store, Store, WriteBack, Fence]")]
fn a_store_behind_the_write_back_is_noticed() {
    let code = "f:\nmovq %rax, (%rdi)\ntestl %ecx, %ecx\njne .L\nclwb (%rdi)\nsfence\nmovq %rax, 8(%rdi)\nmovq %rdx, (%rsi)\n\
                clwb (%rsi)\nsfence\n.L:\nretq";
    is_as_by_hand(&code.lines().map(str::to_owned).collect::<Vec<_>>());
}
