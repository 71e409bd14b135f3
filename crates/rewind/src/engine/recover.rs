//! Recovery: all records from the watermark on are redone, in the order of their commits.
//!
//! It is repeatable: a crash in it leaves the watermark and the records as they were, or nothing to do.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use durix_pmem::{Chain, Change, Kind, Medium, Op, Recovery, RecoveryError, Root, Session, SessionLogs, Structure};

use super::error::{Error, Result};
use super::record::{self, Entry, Record};
use super::{Engine, Options, WATERMARK, word, words};

/// Redoes the pending records of engines, before any structure of their pool is opened: for
/// [`Pool::recover_logs`](durix_pmem::Pool::recover_logs).
#[derive(Clone, Copy, Debug, Default)]
pub struct EngineRecovery;

impl<M: Medium> Recovery<M> for EngineRecovery {
    fn kind(&self) -> Kind {
        <Engine<M> as Structure<M>>::KIND
    }

    fn before(&self, session: &mut Session<M>, log: &Root<M>) -> Result<(), RecoveryError> {
        let op = session.enter()?;
        let logs = SessionLogs::open(&op, log.clone(), Options::default().segment)?;
        redo(&op, &logs)?;
        Ok(())
    }
}

/// Redoes what is pending, gives all segments back, and returns the number of the next commit. Durable on return.
pub(super) fn redo<M: Medium>(op: &Op<'_, M>, logs: &Arc<SessionLogs<M>>) -> Result<u64> {
    let root = logs.root();
    let watermark = &root.words(op)[WATERMARK];
    // The process that has moved it up may have died before its fence. Whatever rests on it needs it durable: otherwise an older
    // watermark could come back when records above it are gone.
    // PERSIST RE-E8: PL-V1 of the pool, which has written its root entries back when it was opened
    let from = op.load(watermark, Ordering::Relaxed);
    let mut chains = logs.orphans(op);
    let mut records = pending(op, &chains, from)?;
    let next = records.last().map_or(from, |record| record.number.saturating_add(1)).max(1);
    if !records.is_empty() {
        // After the mere death of a process the records may not be durable, while a line of what is stored now may become so.
        // PERSIST RE-E5: flush
        records.iter().for_each(|record| op.write_back_slice(record.words));
        // PERSIST RE-E5: flush+fence
        op.fence();
        for record in &mut records {
            apply(op, root, record)?;
        }
        // PERSIST RE-E6: flush+fence
        op.drain();
        op.store(watermark, next, Ordering::Release);
        // PERSIST RE-E6: flush+fence
        op.persist(watermark);
        release(op, root, &records);
    }
    for chain in &mut chains {
        let segments: Vec<u64> = chain.segments().map(|segment| segment.number()).collect();
        for segment in segments {
            // Whenever that becomes durable: the records are below the watermark.
            chain.give_back(op, segment)?;
        }
    }
    Ok(next)
}

/// The whole records from a number on, by number.
fn pending<'s, M: Medium>(op: &Op<'s, M>, chains: &[Chain<M>], from: u64) -> Result<Vec<Record<'s>>> {
    let mut records = Vec::new();
    for segment in chains.iter().flat_map(Chain::segments) {
        let found = record::read_all(op, segment.words(op)?, segment.number());
        records.extend(found.into_iter().filter(|record| record.number >= from));
    }
    records.sort_by_key(|record| record.number);
    Ok(records)
}

fn apply<M: Medium>(op: &Op<'_, M>, root: &Root<M>, record: &Record<'_>) -> Result<()> {
    let corrupt = |what| Error::Corrupt { what, number: record.number };
    let change = |change: Change| {
        if change.allocation().owner() != root.owner() {
            return Err(corrupt("an owner"));
        }
        op.defer(root.pool().space().apply(op, change)?);
        Ok(())
    };
    for entry in record.entries(op) {
        match entry.ok_or(corrupt("an entry"))? {
            Entry::Write(off, value) => {
                let word = word(op, root, off).ok_or(corrupt("an offset"))?;
                op.store(word, value, Ordering::Release);
                op.defer(word);
            }
            Entry::Run(off, from) => {
                let to = words(op, root, off, from.len() as u64).ok_or(corrupt("a run"))?;
                for (to, from) in to.iter().zip(from) {
                    op.store(to, op.load(from, Ordering::Relaxed), Ordering::Relaxed);
                }
                op.defer(to);
            }
            Entry::Zeroed(allocation) => {
                change(Change::Allocate(allocation))?;
                let block = words(op, root, allocation.off(), allocation.len() / 8).ok_or(corrupt("a block"))?;
                block.iter().for_each(|word| op.store(word, 0, Ordering::Relaxed));
                op.defer(block);
            }
            Entry::Change(what) => change(what)?,
        }
    }
    Ok(())
}

/// Makes available what the records have freed.
fn release<M: Medium>(op: &Op<'_, M>, root: &Root<M>, records: &[Record<'_>]) {
    for entry in records.iter().flat_map(|record| record.entries(op)) {
        if let Some(Entry::Change(Change::Free(allocation))) = entry {
            root.pool().space().release(op, allocation);
        }
    }
}
