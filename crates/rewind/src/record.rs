//! Records: what a transaction says about its changes before it makes them.

use std::sync::atomic::Ordering::{Acquire, Relaxed};

use durix_pmem::{Medium, Off, Op, Word};

use crate::adll::{checked, corrupt};
use crate::error::Result;
use crate::layout::{Kind, Record, RecordHead};

/// A record's content.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Entry {
    /// Number: grows within a transaction.
    pub(crate) id: u64,
    /// What it is.
    pub(crate) kind: Kind,
    /// The transaction.
    pub(crate) tx: u64,
    /// The word that changes.
    pub(crate) addr: Off<Word>,
    /// Its value before.
    pub(crate) old: u64,
    /// Its value after; see [`Record::new`].
    pub(crate) new: u64,
    /// What a CLR undoes.
    pub(crate) undone: u64,
    /// The block of ALLOC and DELETE.
    pub(crate) block: Off<Word>,
}

impl Entry {
    /// A record that names no word.
    pub(crate) fn new(id: u64, kind: Kind, tx: u64) -> Self {
        Entry { id, kind, tx, addr: Off::NULL, old: 0, new: 0, undone: 0, block: Off::NULL }
    }

    /// Stores it into a free unit; the caller writes it back.
    pub(crate) fn store<M: Medium>(&self, op: &Op<'_, M>, at: Off<Record>, prev: Off<Record>) {
        let record = op.at(at);
        op.store(&record.head, RecordHead::new(self.id, self.kind), Relaxed);
        op.store(&record.tx, self.tx, Relaxed);
        op.store(&record.addr, self.addr.get(), Relaxed);
        op.store(&record.old, self.old, Relaxed);
        op.store(&record.new, self.new, Relaxed);
        op.store(&record.undone, self.undone, Relaxed);
        op.store(&record.prev, prev, Relaxed);
        op.store(&record.block, self.block, Relaxed);
    }

    /// Reads the record at `at`, and the link to the one before.
    ///
    /// # Errors
    /// [`Error::Corrupt`](crate::Error::Corrupt) where none lies there.
    pub(crate) fn load<M: Medium>(op: &Op<'_, M>, at: Off<Record>) -> Result<(Self, Off<Record>)> {
        let record = checked(op, at)?;
        let head = op.load(&record.head, Acquire);
        let kind = head.kind().ok_or_else(|| corrupt("a record's kind", at, durix_pmem::Bits::to_bits(head)))?;
        let entry = Entry {
            id: head.id(),
            kind,
            tx: op.load(&record.tx, Relaxed),
            addr: Off::new(op.load(&record.addr, Relaxed)),
            old: op.load(&record.old, Relaxed),
            new: op.load(&record.new, Relaxed),
            undone: op.load(&record.undone, Relaxed),
            block: op.load(&record.block, Relaxed),
        };
        if entry.names_a_word() && op.slice("word", entry.addr, 1).is_err() {
            return Err(corrupt("the address in a record", at, entry.addr.get()));
        }
        Ok((entry, op.load(&record.prev, Relaxed)))
    }

    /// Whether it is about a word.
    pub(crate) fn names_a_word(&self) -> bool {
        matches!(self.kind, Kind::Update | Kind::Clr)
    }

    /// Whether it may hold a block.
    pub(crate) fn names_a_block(&self) -> bool {
        matches!(self.kind, Kind::Alloc | Kind::Delete)
    }
}
