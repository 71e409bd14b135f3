//! What reads wait for on a journaled pool, so that none returns what a power failure can still take back.
//!
//! A table in DRAM holds, for a hash of index and key, the number of the newest commit that an update of such a key is part of. Two
//! orders make it work:
//! - An update stores its number before its change becomes visible, inside its operation, in which the number does not change.
//! - A read looks at the table after it has read, and then, outside of its operation, waits until that commit is durable.
//!
//! Either a read sees a change; then it sees its number too, or a larger one, and waits. Or it does not see the change, and owes it
//! nothing. Keys that share a place wait for each other's commits, which costs time only. Walks and counts look at the newest commit of
//! all. A place is never emptied: numbers only rise, and durable ones are not waited for.

use std::sync::atomic::{AtomicU64, Ordering};

use durix_pmem::{Level, Medium, Op, Owner, Pool, Session};
use xxhash_rust::xxh3::xxh3_64_with_seed;

/// Places of the table.
const PLACES: usize = 1 << 14;

/// The table, empty where no thread waits for commits.
#[derive(Debug)]
pub(crate) struct Visible {
    newest: AtomicU64,
    table: Box<[AtomicU64]>,
}

impl Visible {
    pub(crate) fn new<M: Medium>(pool: &Pool<M>) -> Self {
        let places = if pool.level() == Some(Level::Immediate) { PLACES } else { 0 };
        Visible { newest: AtomicU64::new(0), table: (0..places).map(|_| AtomicU64::new(0)).collect() }
    }

    fn place(&self, owner: Owner, key: &[u8]) -> &AtomicU64 {
        &self.table[xxh3_64_with_seed(key, owner.0.into()) as usize % PLACES]
    }

    /// Before an update of keys becomes visible, inside its operation.
    #[inline]
    pub(crate) fn update<'k, M: Medium>(
        &self,
        op: &Op<'_, M>,
        owner: impl FnOnce() -> Owner,
        keys: impl IntoIterator<Item = &'k [u8]>,
    ) {
        let number = op.note_commit();
        if !self.table.is_empty() {
            let owner = owner();
            raise(&self.newest, number);
            keys.into_iter().for_each(|key| raise(self.place(owner, key), number));
        }
    }

    /// After a read of a key.
    #[inline]
    pub(crate) fn read<M: Medium>(&self, session: &Session<M>, owner: impl FnOnce() -> Owner, key: &[u8]) {
        if !self.table.is_empty() {
            session.raise_commit(self.place(owner(), key).load(Ordering::Acquire));
        }
    }

    /// The same, inside the operation of the read.
    #[inline]
    pub(crate) fn read_in<M: Medium>(&self, op: &Op<'_, M>, owner: impl FnOnce() -> Owner, key: &[u8]) {
        if !self.table.is_empty() {
            op.raise_commit(self.place(owner(), key).load(Ordering::Acquire));
        }
    }

    /// After a read of anything else.
    #[inline]
    pub(crate) fn read_all<M: Medium>(&self, session: &Session<M>) {
        if !self.table.is_empty() {
            session.raise_commit(self.newest.load(Ordering::Acquire));
        }
    }
}

/// Stores a number that is not smaller than the stored number.
fn raise(place: &AtomicU64, number: u64) {
    if place.load(Ordering::Acquire) < number {
        place.fetch_max(number, Ordering::AcqRel);
    }
}
