//! What can go wrong, said in one line with what to do about it.

use std::io;
use std::time::Duration;

use crate::version::{Version, Versions};

/// Result of this crate's fallible calls.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// A number with its noun: "1 operation", "2 operations".
fn counted(number: usize, noun: &str) -> String {
    format!("{number} {noun}{}", if number == 1 { "" } else { "s" })
}

/// What can go wrong in a pool, with the offending values.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The operating system refused something.
    #[error("{action}: {source}")]
    Io {
        /// What was tried, with the path.
        action: String,
        /// What it answered.
        #[source]
        source: io::Error,
    },

    /// This process was forked from the one that opened the pool.
    #[error(
        "the pool was opened before this process was forked; open it again in the child, after the parent has closed it"
    )]
    Forked,

    /// The pool was closed, or a panic inside it left it unusable.
    #[error("the pool is shut: {reason}; open it again")]
    Shut {
        /// Why.
        reason: &'static str,
    },

    /// The journal of a pool could not be written or synced. What was acknowledged is durable; what was not may be or not.
    #[error(
        "the journal of {name} failed: {reason}; nothing works in this pool until it is opened again, which keeps everything that was acknowledged"
    )]
    JournalFailed {
        /// The pool.
        name: String,
        /// What the system said.
        reason: String,
    },

    /// A pool was not closed, and its journal is not there.
    #[error(
        "{name} was not closed, and its journal {journal} is not there, without which it is not whole; put the journal back beside it, or restore a copy (a pool can be copied without its journal only while it is closed)"
    )]
    MissingJournal {
        /// The pool.
        name: String,
        /// Where the journal should be.
        journal: String,
    },

    /// A journal does not belong to the pool beside it.
    #[error(
        "{journal} is not the journal that {name} was last open with: {what}; put the right one back, or restore pool and journal from the same copy"
    )]
    ForeignJournal {
        /// The pool.
        name: String,
        /// The journal.
        journal: String,
        /// How one can tell.
        what: String,
    },

    /// A journal would begin where one of another pool lies, with commits that the file of that pool may not have.
    #[error(
        "{journal} holds commits of another pool ({pool}), and {name} would begin its own journal there; move it back beside that pool, or remove it if that pool is not needed any more"
    )]
    StrayJournal {
        /// The pool.
        name: String,
        /// The journal.
        journal: String,
        /// The pool that the journal belongs to.
        pool: String,
    },

    /// A journal makes no sense.
    #[error("the journal {journal} is damaged: {what}; restore pool and journal from a copy, or repair the pool")]
    DamagedJournal {
        /// The journal.
        journal: String,
        /// What is wrong with it.
        what: String,
    },

    /// The scrub of a journaled pool has found a page that does not have its checksum.
    #[error("{name} is damaged: {what}; check all of it, then repair it or restore a copy")]
    DamagedPage {
        /// The pool.
        name: String,
        /// Where the page lies, and what it belongs to.
        what: String,
    },

    /// All session slots are taken.
    #[error("all {limit} sessions of the pool are in use; drop one, or share sessions between threads")]
    TooManySessions {
        /// How many there can be.
        limit: u32,
    },

    /// Operations did not end in time.
    #[error(
        "{} of other sessions did not end within {waited:?}; an operation must not be kept open while waiting",
        counted(*operations, "operation")
    )]
    Busy {
        /// How many were still running.
        operations: usize,
        /// How long was waited.
        waited: Duration,
    },

    /// An object named by the file does not lie within it.
    #[error(
        "the pool is corrupt: {what} at {offset:#x} reaches beyond its {len} bytes; run a check, or restore a copy"
    )]
    OutOfBounds {
        /// What was looked for.
        what: &'static str,
        /// Where it should start.
        offset: u64,
        /// Size of the pool in bytes.
        len: u64,
    },

    /// An option is out of its range.
    #[error("option {option} is {value}; it must be {rule}")]
    BadOption {
        /// The option.
        option: &'static str,
        /// Its value.
        value: u64,
        /// What it must be.
        rule: &'static str,
    },

    /// The pool cannot become longer.
    #[error(
        "the pool is full: it would have to reach {needed} bytes; remove data, drop an index, or open it with a larger maximal size"
    )]
    Full {
        /// The length it would need, in bytes.
        needed: u64,
    },

    /// More was asked for than can lie in one piece.
    #[error(
        "{bytes} bytes in one piece were asked for, and {limit} is the most there can be; use a larger chunk size, or several pieces"
    )]
    TooLarge {
        /// What was asked for, in bytes.
        bytes: u64,
        /// The most there can be, in bytes.
        limit: u64,
    },

    /// There is no such extent.
    #[error("no extent like that starts at {off:#x}")]
    NotAnExtent {
        /// Where it should start.
        off: u64,
    },

    /// Nothing is allocated there.
    #[error("nothing is allocated at {off:#x}: it was freed before, or never allocated")]
    NotAllocated {
        /// Where it should be.
        off: u64,
    },

    /// A link names free space.
    #[error("the link at {link:#x} names {off:#x} already, although it is free; run a check")]
    Dangling {
        /// Where the link lies.
        link: u64,
        /// What it names.
        off: u64,
    },

    /// A log has records that must be recovered first.
    #[error(
        "index \"{name}\" holds records of work that a crash interrupted, and nothing in the pool can be opened before they are recovered; open it with a program that knows {kind}, and there by `Pool::recover_logs`"
    )]
    PendingRecords {
        /// The log's name.
        name: String,
        /// Its kind.
        kind: crate::kind::Kind,
    },

    /// The records of a log cannot be recovered.
    #[error("recovering the records of index \"{name}\" ({kind}) failed: {source}")]
    Recovery {
        /// The log's name.
        name: String,
        /// Its kind.
        kind: crate::kind::Kind,
        /// Why.
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },

    /// The head of a segment of an index's log is not as it was written.
    #[error("a log is damaged: its segment at {off:#x} begins with {found:#x}; restore a copy")]
    DamagedSegment {
        /// Where the segment lies.
        off: u64,
        /// Its first word.
        found: u64,
    },

    /// A session of another mapping.
    #[error("the session belongs to another pool; use one of the pool that this structure lives in")]
    ForeignSession,

    /// A ticket of another pool.
    #[error("the ticket belongs to another pool; wait for it there, and use one ticket for each pool")]
    ForeignTicket,

    // ---- services ----
    /// Work outside of operations went wrong.
    #[error("{service} failed: {source}")]
    Service {
        /// The service.
        service: String,
        /// What it met.
        #[source]
        source: Box<Error>,
    },

    /// A panic came out of a service.
    #[error("{service} met a panic and is not called any more; close the pool and open it again")]
    ServicePanicked {
        /// The service.
        service: String,
    },

    /// Writers are faster than a service, which did not catch up.
    #[error("{service} did not catch up within {waited:?}; the update was not begun, try it again later")]
    Overrun {
        /// The service.
        service: String,
        /// How long was waited.
        waited: Duration,
    },

    // ---- checkpoint epochs ----
    /// The record of the epochs is not as it was written.
    #[error("the record of the checkpoint epochs is damaged: the word at {offset:#x} holds {found:#x}; restore a copy")]
    DamagedEpochs {
        /// Where it lies, in bytes.
        offset: u64,
        /// What it holds.
        found: u64,
    },

    /// The number of epochs has come to its end.
    #[error(
        "epoch {last} is the last; what was durable stays, and can be read and copied: dump it, and restore it into a new pool"
    )]
    EpochsExhausted {
        /// The largest number.
        last: u64,
    },

    /// More crashes than can be remembered.
    #[error(
        "{limit} ranges of failed epochs are remembered, and there is no room for another: each is needed by an index that was last open before it; restore a copy, and open its indices after a crash"
    )]
    TooManyFailedEpochs {
        /// How many there can be.
        limit: usize,
    },

    // ---- opening ----
    /// The file is something else.
    #[error("{name} is not a Durix pool ({found}); it is left as it is")]
    NotAPool {
        /// The file.
        name: String,
        /// What was found instead.
        found: String,
    },

    /// A crash or an error ended the creation of the pool.
    #[error("the creation of {name} was interrupted; create it again")]
    Unfinished {
        /// The file.
        name: String,
    },

    /// There is a pool already.
    #[error("{name} holds a pool already; open it, or remove it first")]
    AlreadyExists {
        /// The file.
        name: String,
    },

    /// Another opener has the pool.
    #[error(
        "{name} is open already in {holder}; close it there, wait for that with `open_timeout`, read a copy that it makes with `Db::copy_to`, or look at it with `Pool::peek`"
    )]
    Locked {
        /// The file.
        name: String,
        /// Who has it open, as far as the system tells.
        holder: String,
    },

    /// The pool has a format that this build does not open: another version, or an unreleased one (999) of another build.
    #[error(
        "{name} has format {found}, and this build opens {known}; open it with the build that wrote it; to bring it here, run `durix dump` \
         there and `durix restore` here"
    )]
    Format {
        /// The file.
        name: String,
        /// Its format.
        found: Version,
        /// The formats that this build opens.
        known: Versions,
    },

    /// A file beside the pool has a version that this build does not open. It is not damaged.
    #[error(
        "the {what} {file} has version {found}, and this build opens {known}; open the pool with the build that wrote it; to bring it here, \
         run `durix dump` there and `durix restore` here"
    )]
    OtherVersion {
        /// What the file is.
        what: &'static str,
        /// The file.
        file: String,
        /// Its version.
        found: Version,
        /// The versions that this build opens.
        known: Versions,
    },

    /// The pool uses features that this build does not know.
    #[error(
        "{name} uses features that this build does not know (bits {unknown:#x}); open it with the build that wrote it; to bring it here, \
         run `durix dump` there and `durix restore` here"
    )]
    Features {
        /// The file.
        name: String,
        /// The bits that are not known.
        unknown: u32,
    },

    /// The pool stores hashes of another function.
    #[error(
        "{name} stores hashes of function {found}, and this build has function {expected}; open it with the build that wrote it; to bring it \
         here, run `durix dump` there and `durix restore` here"
    )]
    HashFunction {
        /// The file.
        name: String,
        /// Its hash id.
        found: u32,
        /// That of this build.
        expected: u32,
    },

    /// A field of the header is not as it was written.
    #[error(
        "the header of {name} is damaged: its {field} at {offset:#x} holds {found:#x}, which fails its check; restore a copy, \
         or repair it"
    )]
    Damaged {
        /// The file.
        name: String,
        /// The field.
        field: &'static str,
        /// Where it lies, in bytes.
        offset: u64,
        /// What it holds.
        found: u64,
    },

    /// The file is shorter than its header says.
    #[error("{name} has {found} bytes, and its header says {expected}: it was truncated; restore a copy, or repair it")]
    Truncated {
        /// The file.
        name: String,
        /// Bytes by the header.
        expected: u64,
        /// Bytes that are there.
        found: u64,
    },

    /// The pool was not closed before the system went down, and its medium does not survive that.
    #[error(
        "{name} was not closed before the system stopped, and its medium survives the death of the process only, so stores may be missing: \
         look at it with `PoolOptions::read_only` and `accept_unclean`, restore a copy, or take it as it is with `accept_unclean(true)`"
    )]
    NotPowerSafe {
        /// The file.
        name: String,
    },

    /// A pool that was not closed lies in another file than the one that it was open in.
    #[error(
        "{name} was copied from a pool that was open, or that a crash had left ({differs} than the file that was open), so it may hold parts of \
         different moments: copy an open pool by `Db::copy_to`, or close it first; if nobody had it open while it was \
         copied, or the copy is of one moment (a snapshot), take it with `accept_copy(true)`, and check it"
    )]
    CopiedOpen {
        /// The file.
        name: String,
        /// How one can tell.
        differs: crate::backing::Differs,
    },

    /// The file may not be written.
    #[error("{name} may not be written; change its permissions, or open it with `PoolOptions::read_only`")]
    ReadOnlyFile {
        /// The file.
        name: String,
    },

    /// The pool was opened for reading.
    #[error("{name} was opened for reading only; open it without `PoolOptions::read_only`")]
    ReadOnly {
        /// The file.
        name: String,
    },

    /// There is no room in the file system.
    #[error(
        "the file system has no room for {name} to reach {wanted} bytes; free some space, or choose a smaller size"
    )]
    DiskFull {
        /// The file.
        name: String,
        /// The length that was wanted, in bytes.
        wanted: u64,
    },

    /// Persistent memory without an instruction to reach it.
    #[error(
        "this processor has no instruction that writes a cache line back to persistent memory; use an ordinary file system"
    )]
    NoWriteBack,

    // ---- indices ----
    /// A name that no index can have.
    #[error("an index cannot be named {name:?} ({len} bytes); names have 1 to {limit} bytes")]
    BadName {
        /// The name.
        name: String,
        /// Its bytes.
        len: usize,
        /// The most there can be.
        limit: usize,
    },

    /// No index has that name.
    #[error("the pool has no index named {name:?}")]
    NoSuchIndex {
        /// The name.
        name: String,
    },

    /// Another index has that name.
    #[error("the pool has an index named {name:?} already; drop or rename it first")]
    NameTaken {
        /// The name.
        name: String,
    },

    /// An index is of another kind or layout version.
    #[error(
        "index {name:?} is of kind {found}, and it was to be opened as {expected}; open it as what it is, or drop it; if only the \
         version differs, open it with the build that wrote it; to bring it here, run `durix dump` there and `durix restore` here"
    )]
    WrongKind {
        /// The name.
        name: String,
        /// Kind and version in the pool.
        found: crate::kind::Kind,
        /// Kind and version that were asked for.
        expected: crate::kind::Kind,
    },

    /// An index is open.
    #[error("index {name:?} is in use; drop every handle to it first")]
    InUse {
        /// The name.
        name: String,
    },

    /// Whoever is asked before an index is dropped still needs it: see [`Pool::ask_before_drops`](crate::Pool::ask_before_drops).
    #[error("index {name:?} cannot be dropped while {needed_by}; end that first")]
    StillNeeded {
        /// The name.
        name: String,
        /// What needs it.
        needed_by: &'static str,
    },

    /// All root entries are taken.
    #[error(
        "the pool has {limit} indices, which is all it can have; drop one, or create it with a larger `max_indices`"
    )]
    TooManyIndices {
        /// How many there can be.
        limit: u32,
    },

    /// A root entry is not as it was written.
    #[error(
        "root entry {slot} is damaged: its state {found:#018x} fails its check, so no index can be ruled out or created; restore a copy, or \
         repair it"
    )]
    DamagedRoot {
        /// The entry.
        slot: u16,
        /// Its state word.
        found: u64,
    },

    /// A panic came out of an operation that may have left a write half done.
    #[error(
        "index {name:?} met a panic in the middle of an operation; drop every handle to it and open the pool again, which recovers it"
    )]
    Poisoned {
        /// The name.
        name: String,
    },
}

impl Error {
    /// Whether there was no room: the pool is full, or the disk. What gives room back in the pool may help.
    pub fn is_no_room(&self) -> bool {
        matches!(self, Error::Full { .. } | Error::DiskFull { .. })
    }
}
