//! What ends the command: exit codes, and errors that say what to do.

use std::io;
use std::path::PathBuf;
use std::process::ExitCode;

/// How the command ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Code {
    /// It did what was asked.
    Done = 0,
    /// It worked, and the answer is no: a key is not there, a check has findings, a torture lost something.
    No = 1,
    /// The command line makes no sense (clap's own code).
    Usage = 2,
    /// The pool or the index is not there, or is not what it was taken for.
    Absent = 3,
    /// The contents cannot be used: not a pool, damaged, of another version, unclean after a power failure, a bad dump.
    Unusable = 4,
    /// Something around it is in the way: the pool is open elsewhere, the disk is full, permissions, input and output.
    Surroundings = 5,
}

impl From<Code> for ExitCode {
    fn from(code: Code) -> ExitCode {
        ExitCode::from(code as u8)
    }
}

/// Why the command could not do what was asked.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    #[error("{}", in_own_terms(.0))]
    Durix(#[from] durix::Error),

    #[error(
        "there is no pool at {}; check --pool, or make one with `durix load --pool {0} …` or `durix put --create --pool {0} …`",
        path.display()
    )]
    NoPool { path: PathBuf },

    #[error("{} is a directory; --pool takes a file", path.display())]
    Directory { path: PathBuf },

    #[error("there is no folder {}; make it first", path.display())]
    NoFolder { path: PathBuf },

    /// A pool that not even a repair can open.
    #[error("{}", in_own_terms(.0).replace(OR_REPAIR, "; too little is left for a repair: restore a copy"))]
    BeyondRepair(durix::Error),

    #[error(
        "{path} has no index named {index:?}; it has: {there}. `durix put --create` and `durix load` make a new index"
    )]
    NoIndex { path: String, index: String, there: String },

    #[error("{} is there already; name a file that is not, or remove it", path.display())]
    TargetExists { path: PathBuf },

    #[error("{what}: {source}")]
    Io {
        what: String,
        #[source]
        source: io::Error,
    },

    #[error("line {line} of the dump: {what}; nothing was restored")]
    BadDump { line: u64, what: String },

    #[error("line {line} of {input}: {what}")]
    BadInput { input: String, line: u64, what: String },

    #[error("{what}")]
    Usage { what: String },

    #[error("{what}")]
    BadText { what: String },
}

impl From<durix_pmem::Error> for Failure {
    fn from(error: durix_pmem::Error) -> Self {
        Failure::Durix(error.into())
    }
}

impl Failure {
    /// For `map_err` of what the system says.
    pub fn io(what: impl Into<String>) -> impl FnOnce(io::Error) -> Failure {
        let what = what.into();
        move |source| Failure::Io { what, source }
    }

    /// A wrong command line that clap cannot see.
    pub fn usage(what: impl Into<String>) -> Failure {
        Failure::Usage { what: what.into() }
    }

    pub fn is_broken_pipe(&self) -> bool {
        matches!(self, Failure::Io { source, .. } if source.kind() == io::ErrorKind::BrokenPipe)
    }

    pub fn code(&self) -> Code {
        match self {
            Failure::Usage { .. } | Failure::BadText { .. } => Code::Usage,
            Failure::NoPool { .. } | Failure::NoIndex { .. } | Failure::Directory { .. } => Code::Absent,
            Failure::BadDump { .. } | Failure::BadInput { .. } => Code::Unusable,
            Failure::TargetExists { .. } | Failure::NoFolder { .. } | Failure::Io { .. } => Code::Surroundings,
            Failure::Durix(error) | Failure::BeyondRepair(error) => code_of(error),
        }
    }
}

/// What there is to do about damage.
const OR_REPAIR: &str = "; restore a copy, or save what is left with `durix repair`";

/// What is wrong, without what there is to do about damage: for the report of a repair.
pub fn without_advice(finding: &str) -> &str {
    finding.split_once("; restore a copy").map_or(finding, |(what, _)| what)
}

/// What the library says to do about damage, as commands.
fn with_repair(message: &str) -> String {
    let message = message.replace("; restore a copy, or repair it", OR_REPAIR);
    let message = message.replace("or repair the pool", "or save what is left with `durix repair`");
    message.replace(
        "check all of it, then repair it or restore a copy",
        "run `durix check`, then `durix repair`, or restore a copy",
    )
}

/// What an error says, with the options of the command in the place of those of the library.
fn in_own_terms(error: &durix::Error) -> String {
    use durix::Error as E;
    use durix_pmem::Error as P;
    let pool = match error {
        E::Pool(pool) => pool,
        E::WrongKind { index, found, expected } => {
            return format!(
                "index {index:?} is a {found}, not a {expected}; leave --kind out, or choose another --index"
            );
        }
        E::NotOrdered { index, kind } => {
            return format!(
                "index {index:?} is a {kind}, which keeps no order of keys; copy it into an ordered kind: `durix dump`, then `durix restore --kind masstree`"
            );
        }
        E::Unsettled { source } => {
            return format!(
                "the transaction is committed, but not all its changes could be made: {}; make room, and run any command that writes to the \
                 pool: it finishes the transaction",
                in_own_terms(source)
            );
        }
        E::SnapshotTooOld { limit } => {
            return format!(
                "more than {limit} bytes have changed while the command was reading; run it again when less is written"
            );
        }
        other => return other.to_string(),
    };
    match pool {
        P::Locked { name, holder } => {
            format!(
                "{name} is open already in {holder}; close it there, wait for that with --wait SECONDS, or look at it with `durix stat \
                 --pool {name}`"
            )
        }
        P::NotPowerSafe { name } => format!(
            "{name} was not closed before the system stopped, and it had no journal, so entries may be missing or mixed: restore a copy, \
             save what is there with `durix repair`, or take it as it is with --accept-unclean"
        ),
        P::CopiedOpen { name, differs } => format!(
            "{name} was copied from a pool that was open, or that a crash had left ({differs} than the file that was open), so it may hold \
             parts of different moments: close the pool in the process that has it open, then copy it with `durix copy`; or have that process \
             make the copy; save what is in this copy with `durix repair`; if nobody had it open while it was copied, take it as it is with \
             --accept-unclean, and run `durix check`"
        ),
        P::DiskFull { name, wanted } => format!(
            "the file system has no room for {name} to reach {wanted} bytes, or files may not become that long (`ulimit -f`); free some \
             space, or allow longer files"
        ),
        P::Full { needed } => format!(
            "the pool is full: it would have to reach {needed} bytes; remove entries, or let it grow further: `durix load --max-size BYTES`"
        ),
        P::ReadOnly { name } => format!("{name} was opened for reading only, and this needs to write to it"),
        P::TooManyIndices { limit } => {
            format!("the pool has {limit} indices, which is all it can have; put the new index into another pool")
        }
        P::PendingRecords { name, kind } => format!(
            "index {name:?} holds records of work that a crash interrupted, of the kind {kind}, which this command does not know; open the pool \
             first with the program that made the index"
        ),
        P::ReadOnlyFile { name } => {
            format!("{name} may not be written; change its permissions, or mount its file system for writing")
        }
        other => with_repair(&other.to_string()),
    }
}

fn code_of(error: &durix::Error) -> Code {
    use durix::Error as E;
    use durix_pmem::Error as P;
    match error {
        E::UnknownKind { .. } | E::KeyTooLong { .. } | E::ValueTooLong { .. } | E::NotOrdered { .. } => Code::Usage,
        E::WrongLength { .. } | E::UnfitType { .. } => Code::Usage,
        E::WrongKind { .. } | E::WrongType { .. } | E::ForeignKind { .. } => Code::Absent,
        E::Corrupt { .. } | E::Undecodable { .. } => Code::Unusable,
        E::Pool(P::BadName { .. } | P::BadOption { .. }) => Code::Usage,
        E::Pool(P::NoSuchIndex { .. } | P::WrongKind { .. }) => Code::Absent,
        E::Pool(
            P::NotAPool { .. }
            | P::Unfinished { .. }
            | P::Format { .. }
            | P::Features { .. }
            | P::OtherVersion { .. }
            | P::HashFunction { .. }
            | P::Damaged { .. }
            | P::DamagedRoot { .. }
            | P::Truncated { .. }
            | P::NotPowerSafe { .. }
            | P::CopiedOpen { .. }
            | P::MissingJournal { .. }
            | P::ForeignJournal { .. }
            | P::StrayJournal { .. }
            | P::DamagedJournal { .. }
            | P::PendingRecords { .. }
            | P::DamagedSegment { .. }
            | P::DamagedEpochs { .. }
            | P::OutOfBounds { .. },
        ) => Code::Unusable,
        _ => Code::Surroundings,
    }
}

#[cfg(test)]
mod tests {
    /// What the library says of a repair, of which it has no command, in the text of its errors.
    #[test]
    fn errors_that_speak_of_a_repair_name_the_command() {
        let text = include_str!("../../pmem/src/error.rs");
        let mut seen = 0;
        for message in
            text.split("#[error(").skip(1).filter_map(|part| part.split_once(")]")).map(|(message, _)| message)
        {
            // Lines of source are joined as the compiler joins them.
            let message = message.split("\\\n").map(str::trim_start).collect::<String>();
            seen += usize::from(message.contains("repair"));
            let told = super::with_repair(&message);
            assert_eq!(told.matches("repair").count(), told.matches("`durix repair`").count(), "{told}");
        }
        assert!(seen >= 4, "{seen} messages speak of a repair");
    }

    /// Mistakes that only a program can make, not the command.
    const OF_PROGRAMS: [&str; 3] = ["Nested", "ForeignMap", "ForeignSession"];

    /// Whether a text names a type of the library, or a call of one.
    fn names_the_library(text: &str) -> bool {
        let types = ["DbBuilder", "PoolOptions"];
        let paths = ["Db::", "Error::", "Index::", "Level::", "Map::", "Pool::", "Session::", "durix::", "durix_"];
        let calls = ["accept_copy(", "accept_unclean(", "max_size(", "open_timeout(", "read_only("];
        [&types[..], &paths, &calls].concat().iter().any(|name| text.contains(name))
    }

    /// The errors whose messages name something of the library: its types and calls, and all in backticks but commands.
    fn with_names_of_the_library(source: &str) -> Vec<&str> {
        let quotes = |message: &str| message.split('`').skip(1).step_by(2).any(|quoted| !quoted.starts_with("durix "));
        let names = |message: &str| quotes(message) || names_the_library(message);
        let mut found = Vec::new();
        for part in source.split("#[error(").skip(1) {
            let Some((message, after)) = part.split_once(")]") else { continue };
            let variant = after.trim_start().split(|c: char| !c.is_alphanumeric()).next().unwrap_or_default();
            if names(message) {
                found.push(variant);
            }
        }
        found
    }

    /// What a source can print: its literals of text; and of comments those that become help.
    fn printed(source: &str, is_help: bool) -> Vec<String> {
        let (mut texts, mut rest) = (Vec::new(), source);
        while let Some(at) = rest.find(['"', '/', '\'']) {
            let from = &rest[at..];
            if from.starts_with("//") {
                let (line, after) = from.split_once('\n').unwrap_or((from, ""));
                if is_help && line.starts_with("/// ") {
                    texts.push(line.into());
                }
                rest = after;
            } else if from.starts_with('"') {
                let is_raw = rest[..at].ends_with(['r', '#']);
                let end = if rest[..at].ends_with('#') { "\"#" } else { "\"" };
                let mut len = 1;
                while !from[len..].starts_with(end) {
                    let is_escaped = !is_raw && from[len..].starts_with('\\');
                    len += from[len..].chars().take(1 + usize::from(is_escaped)).map(char::len_utf8).sum::<usize>();
                }
                // Lines of source are joined as the compiler joins them.
                texts.push(from[1..len].split("\\\n").map(str::trim_start).collect());
                rest = &from[len + end.len()..];
            } else {
                // A quotation mark as a character is no text.
                let literal = ["'\"'", "'\\\"'", "'\\''"].iter().find(|literal| from.starts_with(**literal));
                rest = &from[literal.map_or(1, |literal| literal.len())..];
            }
        }
        texts
    }

    /// The texts of a folder of sources that name something of the library, tests left out.
    fn texts_that_name_the_library(folder: &std::path::Path, seen: &mut usize) -> Vec<String> {
        let mut found = Vec::new();
        for path in std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()) {
            if path.is_dir() {
                found.extend(texts_that_name_the_library(&path, seen));
                continue;
            }
            let source = std::fs::read_to_string(&path).unwrap();
            let source = source.split("#[cfg(test)]").next().unwrap();
            let texts = printed(source, path.ends_with("args.rs"));
            *seen += texts.len();
            let names = texts.into_iter().filter(|text| names_the_library(text));
            found.extend(names.map(|text| format!("{}: {text}", path.display())));
        }
        found
    }

    #[test]
    fn no_text_of_the_command_names_the_library() {
        let mut seen = 0;
        let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
        let found = texts_that_name_the_library(&folder, &mut seen);
        assert!(seen > 900, "{seen} texts were found");
        assert!(found.is_empty(), "say it in the terms of the command:\n{}", found.join("\n"));
    }

    #[test]
    fn texts_are_found_however_they_are_written() {
        let source = r##"// "a"
            let b = ["b \"c\" Db::\
                open", '"', r#"d "e" \"#, '\'', "\\"]; /// f"##;
        assert_eq!(printed(source, false), ["b \\\"c\\\" Db::open", "d \"e\" \\", "\\\\"]);
        assert_eq!(printed(source, true).last().unwrap(), "/// f");
    }

    #[test]
    fn errors_that_name_calls_of_the_library_have_words_of_the_command() {
        let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
        let own = include_str!("failure.rs").split("fn code_of").next().unwrap();
        let mut seen = 0;
        for source in ["pmem/src/error.rs", "index/src/error.rs"] {
            let text = std::fs::read_to_string(folder.join(source)).unwrap();
            for variant in with_names_of_the_library(&text) {
                seen += 1;
                let is_named = own.contains(&format!("P::{variant} ")) || own.contains(&format!("E::{variant} "));
                assert!(is_named || OF_PROGRAMS.contains(&variant), "{source}: {variant} needs words of the command");
            }
        }
        assert!(seen >= 8, "{seen} messages were found");
    }
}
