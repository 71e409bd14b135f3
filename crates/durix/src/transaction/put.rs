//! One change of an index, as commits and recovery make it.

use durix_pmem::pool::Durability;
use durix_pmem::{Medium, Op};

use crate::{Index, Result};

pub(super) fn put<M: Medium>(index: &dyn Index<M>, op: &Op<'_, M>, key: &[u8], value: Option<&[u8]>) -> Result<()> {
    #[cfg(test)]
    planted::meet(value.is_none())?;
    match value {
        Some(value) => index.insert(op, key, value)?,
        None => index.remove(op, key)?,
    };
    Ok(())
}

/// Flushes what an index holds back of each key by itself.
pub(super) fn settle<M: Medium>(index: &dyn Index<M>, op: &Op<'_, M>) {
    if index.durability() == Durability::BufferedByKey {
        let _durable = index.ticket(op);
    }
}

/// Faults of changes, for tests of what a commit does about them.
#[cfg(test)]
pub(super) mod planted {
    use std::cell::RefCell;

    use crate::{Error, Result};

    /// What happens instead of a change.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub(in crate::transaction) enum Fault {
        Panic,
        Full,
        /// There is room for removals only.
        FullForInserts,
    }

    thread_local! {
        /// What becomes of the next changes of this thread: the first one comes last.
        static NEXT: RefCell<Vec<Option<Fault>>> = const { RefCell::new(Vec::new()) };
    }

    pub(in crate::transaction) fn plant(next: &[Option<Fault>]) {
        NEXT.set(next.iter().rev().copied().collect());
    }

    pub(super) fn meet(removes: bool) -> Result<()> {
        match NEXT.with_borrow_mut(Vec::pop).flatten() {
            None => Ok(()),
            Some(Fault::FullForInserts) if removes => Ok(()),
            Some(Fault::Panic) => panic!("planted"),
            Some(Fault::Full | Fault::FullForInserts) => Err(Error::Pool(durix_pmem::Error::Full { needed: 1 })),
        }
    }
}
