//! Reading all members when a structure is opened, by as many threads as pay.

use std::sync::atomic::{AtomicUsize, Ordering};

use durix_pmem::{Extent, Medium, Op, Session};

use super::store::{Live, Store};
use crate::error::Result;

/// Bytes of members that one thread reads at a time, within one operation.
const UNIT: u64 = 1 << 20;
/// Most threads, whatever the machine has.
const MAX_THREADS: usize = 64;

/// Calls `adopt` with all members, many at a time, by up to `threads` threads (0: one a processor), and makes everything that
/// was read durable.
///
/// # Errors
/// [`Error::Corrupt`]; what `adopt` says; [`Error::Pool`] without sessions.
pub(super) fn recover<M: Medium>(
    store: &Store<M>,
    session: &mut Session<M>,
    threads: usize,
    adopt: impl Fn(&Op<'_, M>, &[Live]) -> Result<()> + Sync,
) -> Result<()> {
    let units = units(store, &session.enter()?);
    let wanted = match threads {
        0 => durix_pmem::processors(),
        threads => threads,
    };
    let threads = units.len().clamp(1, wanted.clamp(1, MAX_THREADS));
    let next = AtomicUsize::new(0);
    durix_pmem::on_threads(session, threads, &|session: &mut Session<M>| read(store, session, &units, &next, &adopt))
}

fn units<M: Medium>(store: &Store<M>, op: &Op<'_, M>) -> Vec<Extent> {
    let cut = |e: Extent| {
        let units = (e.off..e.off + e.len).step_by(UNIT as usize);
        units.map(move |off| Extent { off, len: UNIT.min(e.off + e.len - off) })
    };
    store.extents(op).into_iter().flat_map(cut).collect()
}

fn read<M: Medium>(
    store: &Store<M>,
    session: &mut Session<M>,
    units: &[Extent],
    next: &AtomicUsize,
    adopt: &impl Fn(&Op<'_, M>, &[Live]) -> Result<()>,
) -> Result<()> {
    while let Some(unit) = units.get(next.fetch_add(1, Ordering::Relaxed)) {
        let op = session.enter()?;
        let members = store.adopt(&op, *unit)?;
        adopt(&op, &members)?;
    }
    let op = session.enter()?;
    // PERSIST LF-M8: flush+fence, by each thread for what it has read.
    op.fence();
    Ok(())
}
