//! Running the command as a user would.
#![allow(dead_code)] // Each test program uses a part of it.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

/// A folder for a test, and the command in it.
pub struct Place {
    pub dir: tempfile::TempDir,
}

/// How a command ended.
pub struct Ended {
    pub code: i32,
    pub out: String,
    pub err: String,
}

impl Place {
    pub fn new() -> Self {
        Place { dir: tempfile::tempdir().unwrap() }
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    pub fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_durix"));
        command.args(args).current_dir(self.dir.path()).stdin(Stdio::null());
        command
    }

    /// Runs the command in the folder.
    pub fn durix(&self, args: &[&str]) -> Ended {
        ended(self.command(args).output().unwrap())
    }

    /// The same with something on its standard input.
    pub fn fed(&self, args: &[&str], input: &[u8]) -> Ended {
        let mut child =
            self.command(args).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let mut stdin = child.stdin.take().unwrap();
        let input = input.to_vec();
        // A command that fails early does not read on.
        let feeder = std::thread::spawn(move || drop(stdin.write_all(&input)));
        let output = child.wait_with_output().unwrap();
        feeder.join().unwrap();
        ended(output)
    }

    /// Runs the command, which has to work; returns what it printed.
    pub fn works(&self, args: &[&str]) -> String {
        let ended = self.durix(args);
        assert_eq!(ended.code, 0, "{args:?}: {}{}", ended.out, ended.err);
        ended.out
    }

    /// Runs the command, which has to fail with this code and a line on standard error that contains this.
    #[track_caller]
    pub fn fails(&self, args: &[&str], code: i32, says: &str) {
        fails(&self.durix(args), args, code, says);
    }

    /// Makes a pool with some entries in index "main".
    pub fn pool(&self, name: &str) -> PathBuf {
        let ended = self.fed(&["load", "--pool", name, "--format", "tsv"], b"b\t2\na\t1\nc\tthree\\n\\x00\nab\t12\n");
        assert_eq!(ended.code, 0, "{}", ended.err);
        self.path(name)
    }
}

#[track_caller]
pub fn fails(ended: &Ended, args: &[&str], code: i32, says: &str) {
    let Ended { out, err, .. } = ended;
    assert_eq!(ended.code, code, "{args:?}: {out}{err}");
    assert!(err.contains(says), "{args:?} says {err:?}, not {says:?}");
    assert!(!err.contains("panicked"), "{err}");
}

fn ended(output: Output) -> Ended {
    Ended {
        code: output.status.code().unwrap_or(-1),
        out: String::from_utf8_lossy(&output.stdout).into_owned(),
        err: String::from_utf8_lossy(&output.stderr).into_owned(),
    }
}

/// Changes a file's bytes.
pub fn change(path: &Path, change: impl FnOnce(&mut Vec<u8>)) {
    let mut bytes = std::fs::read(path).unwrap();
    change(&mut bytes);
    std::fs::write(path, bytes).unwrap();
}
