//! What can go wrong, said in one line with what to do about it.

/// Result of this crate's fallible calls.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// What can go wrong in an index, with the offending values.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The pool refused something.
    #[error(transparent)]
    Pool(#[from] durix_pmem::Error),

    /// The key is longer than the kind of index takes.
    #[error("a key of {len} bytes is longer than {limit}; store a hash of it, and the key in the value")]
    KeyTooLong {
        /// Its length in bytes.
        len: usize,
        /// The most there can be, in bytes.
        limit: usize,
    },

    /// The value is longer than the kind of index takes.
    #[error("a value of {len} bytes is longer than {limit}; split it over several keys in one batch")]
    ValueTooLong {
        /// Its length in bytes.
        len: usize,
        /// The most there can be, in bytes.
        limit: usize,
    },

    /// The kind of index takes keys, or values, of one length only.
    #[error(
        "a {role} of {} does not fit: this kind of index takes {role}s of exactly {expected} bytes (u64, i64, [u8; 8]); use a kind that takes any length (`durix kinds` lists all)",
        counted(*len, "byte")
    )]
    WrongLength {
        /// Which of the two: "key" or "value".
        role: &'static str,
        /// Its length in bytes.
        len: usize,
        /// The length there must be, in bytes.
        expected: usize,
    },

    /// The kind of index cannot hold keys, or values, of that type.
    #[error(
        "a {kind} takes {role}s of exactly {expected} bytes (u64, i64, [u8; 8]), so {role}s of type {found} do not fit; kinds that take any: {others}"
    )]
    UnfitType {
        /// The name of the kind.
        kind: &'static str,
        /// Which of the two: "key" or "value".
        role: &'static str,
        /// The type that was asked for.
        found: String,
        /// The length there must be, in bytes.
        expected: usize,
        /// The names of the kinds that take any length.
        others: String,
    },

    /// The batch changes more keys than the kind of index takes at once.
    #[error("a batch of {keys} keys is larger than {limit}; split it")]
    BatchTooLarge {
        /// How many keys it changes.
        keys: usize,
        /// The most there can be.
        limit: usize,
    },

    /// What lies in the pool was not written by this code.
    #[error("{} is corrupt: {what}; run `durix check`, then `durix repair` or restore a copy", titled(index))]
    Corrupt {
        /// The index; empty where only the structure is known.
        index: String,
        /// What makes no sense.
        what: String,
    },

    /// No structure is known by that name.
    #[error("there is no kind of index named {name:?}; there are: {known}")]
    UnknownKind {
        /// The name.
        name: String,
        /// The names there are.
        known: String,
    },

    /// The pool holds an index of a kind that this build does not know.
    #[error(
        "index {index:?} is of kind {found}, which this build cannot open; open it with the build that wrote it; to bring it here, run `durix \
         dump` there and `durix restore` here"
    )]
    ForeignKind {
        /// The index.
        index: String,
        /// Kind and version in the pool.
        found: durix_pmem::Kind,
    },

    /// The index is of another kind than asked for.
    #[error("index {index:?} is a {found}, and it was to be opened as a {expected}; open it as what it is, or drop it")]
    WrongKind {
        /// The index.
        index: String,
        /// The name of its kind.
        found: &'static str,
        /// The name of the kind that was asked for.
        expected: &'static str,
    },

    /// The kind of index keeps no order.
    #[error("index {index:?} is a {kind}, which keeps no order of keys; use an ordered kind, or iterate and sort")]
    NotOrdered {
        /// The index.
        index: String,
        /// The name of its kind.
        kind: &'static str,
    },

    /// The index holds keys or values of another type.
    #[error(
        "the {role} of index {index:?} are of type {found}, not {expected}; open it with the type it was filled with"
    )]
    WrongType {
        /// The index.
        index: String,
        /// Which of the two: "keys" or "values".
        role: &'static str,
        /// The type in the pool.
        found: String,
        /// The type that was asked for.
        expected: String,
    },

    /// A value that cannot be written.
    #[error("{0}; change the value or its type")]
    Unfit(#[from] Unfit),

    /// A key is locked by a transaction.
    #[error("key {key} of index {index:?} is locked by a transaction; try again, or change it inside a transaction")]
    Locked {
        /// The index.
        index: String,
        /// The key, or the range.
        key: String,
    },

    /// The transaction has given way to an older one. `Db::transaction` of the facade runs its closure again.
    #[error(
        "the transaction lost a conflict over a key ({}); nothing was changed, run it again",
        counted(*attempts as usize, "attempt")
    )]
    Conflict {
        /// How often it was tried.
        attempts: u32,
    },

    /// A transaction was begun inside another one.
    #[error("a transaction of this database runs on this thread already; use its `tx`, or begin after it has ended")]
    Nested,

    /// The transaction was rolled back by its closure.
    #[error("the transaction was rolled back: {0}")]
    Aborted(#[source] Box<dyn std::error::Error + Send + Sync>),

    /// The transaction has not been committed.
    #[error("the transaction has not been committed, so there is nothing to wait for; commit it first")]
    NotCommitted,

    /// The transaction changes more than its log takes.
    #[error("a transaction with {bytes} bytes of changes is larger than {limit}; split it")]
    TransactionTooLarge {
        /// Bytes of its changes.
        bytes: u64,
        /// The most there can be.
        limit: u64,
    },

    /// The transaction is committed, and a map refuses a change.
    #[error(
        "the transaction is committed, but not all its changes could be made: {source}; make room and call `sync`, or open the database again, which finishes it"
    )]
    Unsettled {
        /// What the map says.
        source: Box<Error>,
    },

    /// The map is not of this database.
    #[error("index {index:?} was not opened by this database; open it with the `Db` that runs the transaction")]
    ForeignMap {
        /// The index.
        index: String,
    },

    /// Too much has changed since the snapshot was opened.
    #[error(
        "more than {limit} bytes have changed since the snapshot was opened; open a new one, or raise `snapshot_limit`"
    )]
    SnapshotTooOld {
        /// The most there can be.
        limit: u64,
    },

    /// A snapshot is open, which may still be asked for the index.
    #[error("index {index:?} cannot be dropped while a snapshot is open; drop the snapshot first")]
    SnapshotOpen {
        /// The index.
        index: String,
    },

    /// Stored bytes are not of the index's type.
    #[error("an entry of index {index:?} is not of its type: {what}; look at it as bytes, and remove or rewrite it")]
    Undecodable {
        /// The index.
        index: String,
        /// What is wrong.
        what: String,
    },
}

/// Why something could not be encoded or decoded.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Unfit(pub String);

/// A number with its noun, for a message: "1 byte", "2 bytes".
fn counted(number: usize, noun: &str) -> String {
    format!("{number} {noun}{}", if number == 1 { "" } else { "s" })
}

fn titled(index: &str) -> String {
    if index.is_empty() { "the index".into() } else { format!("index {index:?}") }
}

impl Error {
    /// Rolls a transaction back for a reason of one's own: `return Err(Error::abort(reason))`.
    pub fn abort(reason: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Self {
        Error::Aborted(reason.into())
    }

    /// What the pool told a structure: a link that leads out of the pool is the structure's fault.
    pub fn of_structure(error: durix_pmem::Error) -> Self {
        match error {
            out @ durix_pmem::Error::OutOfBounds { .. } => {
                let text = out.to_string();
                let what = text.strip_prefix("the pool is corrupt: ").unwrap_or(&text);
                let what = what.split_once(';').map_or(what, |(what, _)| what).to_owned();
                Error::Corrupt { index: String::new(), what }
            }
            other => Error::Pool(other),
        }
    }

    /// What a structure found; the index's name is added by the caller that knows it.
    pub fn corrupt(what: &str, offset: u64, found: u64) -> Self {
        Error::Corrupt { index: String::new(), what: format!("{what} at {offset:#x} holds {found:#x}") }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_agree_with_their_nouns() {
        let said = |attempts| Error::Conflict { attempts }.to_string();
        assert!(said(1).contains("(1 attempt);") && said(1000).contains("(1000 attempts);"), "{}", said(1));
        let said = |len| Error::WrongLength { role: "key", len, expected: 8 }.to_string();
        assert!(said(1).starts_with("a key of 1 byte does") && said(3).starts_with("a key of 3 bytes does"));
    }
}
