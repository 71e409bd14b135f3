//! One change of an index, as commits and recovery make it.

use durix_pmem::pool::Durability;
use durix_pmem::{Medium, Op};

use crate::{Index, Result};

pub(super) fn put<M: Medium>(index: &dyn Index<M>, op: &Op<'_, M>, key: &[u8], value: Option<&[u8]>) -> Result<()> {
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
