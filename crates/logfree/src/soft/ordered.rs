//! The sorted list and the skip list.

use std::sync::Mutex;

use durix_pmem::pool::Poison;
use durix_pmem::{Hardware, Kind, Medium, Op, Root, Session, Structure};

use super::SoftOptions;
use super::layout::ORDERED_LAYOUT_VERSION;
use super::links::{Entry, Links, hold_live, is_deleted, read, wait_for_unlink};
use super::nodes::LEVELS;
use super::recover::recover;
use super::store::{Freed, Made, Store};
use crate::error::{Error, Result};
use crate::finding::Finding;
use crate::map::{Found, OrderedWordMap, WordMap};
use crate::range::{after, before};
use crate::words::Words;

/// A durable concurrent sorted list of 8-byte keys and values, with its links in volatile memory. Operations are linear in its
/// length: it is for small numbers of keys. Otherwise as [`SoftSkipList`].
pub type SoftList<M = Hardware> = Words<SoftOrderedCore<M, 1>, M>;

/// A durable concurrent ordered map of 8-byte keys and values, with its links in volatile memory: one fence an update, none a
/// read. Opening it reads all of it.
///
/// ```
/// use durix_logfree::SoftSkipList;
/// use durix_pmem::PoolOptions;
///
/// # let dir = tempfile::tempdir()?;
/// # let path = dir.path().join("years.pool");
/// let pool = PoolOptions::new().open_or_create(&path)?;
/// let years = SoftSkipList::open(&pool, "years")?;
/// let mut session = pool.session()?;
/// let op = session.enter()?;
/// assert!(years.insert(&op, 1990, 1)? && years.insert(&op, 1985, 2)?);
/// assert_eq!(years.put(&op, 1990, 3)?, Some(1));
/// let mut found = Vec::new();
/// years.range_rev(&op, 1980.., |year, value| found.push((year, value)))?;
/// assert_eq!(found, [(1990, 3), (1985, 2)]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub type SoftSkipList<M = Hardware> = Words<SoftOrderedCore<M, LEVELS>, M>;

/// What a [`SoftSkipList`] and a [`SoftList`] are made of: members in persistent memory, and up to `N` levels of links in volatile memory.
pub struct SoftOrderedCore<M: Medium, const N: usize> {
    store: Store<M>,
    links: Links<N>,
    poison: Poison<M>,
}

impl<M: Medium, const N: usize> Structure<M> for SoftOrderedCore<M, N> {
    const KIND: Kind = Kind { tag: if N == 1 { *b"LF-SOFTL" } else { *b"LF-SOFTS" }, version: ORDERED_LAYOUT_VERSION };
    type Options = SoftOptions;
    type Error = Error;

    fn create(_session: &mut Session<M>, _root: &Root<M>, _options: &SoftOptions) -> Result<()> {
        // An empty map has no extents.
        Ok(())
    }

    fn open(session: &mut Session<M>, root: Root<M>, options: &SoftOptions) -> Result<Self> {
        let poison = Poison::new(root.clone());
        let links = Links::new(&session.enter()?);
        let map = SoftOrderedCore { store: Store::new(root), links, poison };
        map.recover(session, options)?;
        Ok(map)
    }
}

impl<M: Medium, const N: usize> SoftOrderedCore<M, N> {
    /// Reads all members, sorts them, and links them.
    fn recover(&self, session: &mut Session<M>, options: &SoftOptions) -> Result<()> {
        let all = Mutex::new(Vec::new());
        recover(&self.store, session, options.recovery_threads, |_, members| {
            let entries = members.iter().map(|member| (member.key, Entry::new(member.place, member.value)));
            all.lock().unwrap_or_else(|e| e.into_inner()).extend(entries);
            Ok(())
        })?;
        let mut all = all.into_inner().unwrap_or_else(|e| e.into_inner());
        all.sort_unstable_by_key(|(key, _)| *key);
        if let Some([_, second]) = all.windows(2).find(|pair| pair[0].0 == pair[1].0).map(|p| [p[0], p[1]]) {
            let (found, entry) = second;
            return Err(Error::Corrupt { what: "a second member with one key", offset: entry.place().get(), found });
        }
        self.links.build(&session.enter()?, all);
        Ok(())
    }
}

impl<M: Medium, const N: usize> WordMap<M> for SoftOrderedCore<M, N> {
    const NAME: &'static str = if N == 1 { "SoftList" } else { "SoftSkipList" };
    const ORDERED: bool = true;

    fn root(&self) -> &Root<M> {
        self.store.root()
    }

    #[inline(always)]
    fn get(&self, op: &Op<'_, M>, key: u64) -> Result<Option<u64>> {
        self.store.expect_own(op)?;
        Ok(self.links.get(op, key))
    }

    #[inline]
    fn insert_with(&self, op: &Op<'_, M>, key: u64, value: impl Fn() -> Option<u64>) -> Result<bool> {
        self.store.expect_own(op)?;
        let (m, mut turn, mut drawn) = (op.medium(), 0, None);
        loop {
            let path = self.links.path(m, key);
            if let Some((node, _)) = path.found {
                if !is_deleted(m, node) {
                    return Ok(false);
                }
                // Whoever has deleted it takes it out, if he has not panicked.
                self.poison.check(op)?;
                wait_for_unlink(m, node, &mut turn);
                continue;
            }
            let _guard = self.poison.guard(op)?;
            let place = self.store.next(op)?;
            let Some(value) = value() else { return Ok(false) };
            let mut local = self.links.nodes.local(op);
            let levels = *drawn.get_or_insert_with(|| local.levels(N));
            let made = Made::new(place, key, value, 0);
            let Some(around) = path.lock(m, levels) else { continue };
            let name = self.links.nodes.take(op, &mut local, levels);
            let node = self.links.nodes.at(name);
            self.store.begin_insert(op, &made);
            // What is volatile costs nothing while the line is on its way; nothing locked may be among it.
            self.store.take(op);
            around.prepare(node, key, Entry::new(place, 0));
            // PERSIST LF-M4: flush+fence.
            op.fence();
            around.link(node, name);
            return Ok(true);
        }
    }

    #[inline]
    fn update_with(&self, op: &Op<'_, M>, key: u64, new: impl Fn(u64) -> Option<u64>) -> Result<Found> {
        self.store.expect_own(op)?;
        let m = op.medium();
        let Some((node, _)) = self.links.path(m, key).found else { return Ok(None) };
        match read(op, node) {
            None => return Ok(None),
            Some(old) if new(old).is_none() => return Ok(Some((old, false))),
            Some(_) => {}
        }
        let _guard = self.poison.guard(op)?;
        let Some(held) = hold_live(m, node) else { return Ok(None) };
        let old = held.entry().load(op);
        let Some(value) = new(old) else { return Ok(Some((old, false))) };
        let next = held.entry().other_value();
        self.store.begin_update(op, &Made::new(next.place(), key, value, next.value()));
        // PERSIST LF-M6: flush+fence.
        op.fence();
        held.replace(next);
        Ok(Some((old, true)))
    }

    #[inline]
    fn remove_with(&self, op: &Op<'_, M>, key: u64, wanted: impl Fn(u64) -> bool) -> Result<Found> {
        self.store.expect_own(op)?;
        let m = op.medium();
        let path = self.links.path(m, key);
        let Some((node, name)) = path.found else { return Ok(None) };
        match read(op, node) {
            None => return Ok(None),
            Some(value) if !wanted(value) => return Ok(Some((value, false))),
            Some(_) => {}
        }
        let _guard = self.poison.guard(op)?;
        let Some(mut held) = hold_live(m, node) else { return Ok(None) };
        let entry = held.entry();
        let value = entry.load(op);
        if !wanted(value) {
            return Ok(Some((value, false)));
        }
        let (mut path, freed) = (Some(path), Freed::new(entry.place()));
        loop {
            // The node stays where it is while it is held; what is before it may have changed.
            let path = path.take().unwrap_or_else(|| self.links.path(m, key));
            let Some(around) = path.lock(m, held.levels()) else { continue };
            self.store.begin_remove(op, &freed);
            // PERSIST LF-M7: flush+fence.
            op.fence();
            around.unlink(&mut held);
            break;
        }
        drop(held);
        self.store.give_back(op, entry.place());
        self.links.nodes.retire(op, &mut self.links.nodes.local(op), name);
        Ok(Some((value, true)))
    }

    fn walk(&self, op: &Op<'_, M>, from: u64, into: &mut Vec<(u64, u64)>) -> Result<Option<u64>> {
        let all = self.walk_within(op, (from, u64::MAX), into)?;
        Ok(after(into, all))
    }

    fn check(&self, op: &Op<'_, M>) -> Result<Vec<Finding>> {
        self.store.expect_own(op)?;
        Ok(self.store.check(op, self.links.places(op)))
    }

    fn volatile_bytes(&self, op: &Op<'_, M>) -> Option<u64> {
        Some(self.links.nodes.bytes(op))
    }
}

impl<M: Medium, const N: usize> OrderedWordMap<M> for SoftOrderedCore<M, N> {
    fn walk_back(&self, op: &Op<'_, M>, to: u64, into: &mut Vec<(u64, u64)>) -> Result<Option<u64>> {
        let all = self.walk_back_within(op, (0, to), into)?;
        Ok(before(into, all))
    }

    fn walk_within(&self, op: &Op<'_, M>, ends: (u64, u64), into: &mut Vec<(u64, u64)>) -> Result<bool> {
        self.store.expect_own(op)?;
        Ok(self.links.up(op, ends, into))
    }

    fn walk_back_within(&self, op: &Op<'_, M>, ends: (u64, u64), into: &mut Vec<(u64, u64)>) -> Result<bool> {
        self.store.expect_own(op)?;
        Ok(self.links.down(op, ends, into))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use durix_pmem::PoolOptions;
    use durix_pmem::backing::HeapBacking;

    /// The insert waited for ever for the node to be taken out.
    #[test]
    fn an_insert_does_not_wait_for_a_remover_that_has_panicked() {
        let options = PoolOptions::new().initial_size(1 << 20).max_size(1 << 20);
        let pool = options.create_on(HeapBacking::new(1 << 20), Hardware::PAGE_CACHE).unwrap();
        let list = SoftList::<Hardware>::open(&pool, "list").unwrap();
        let mut session = pool.session().unwrap();
        let op = session.enter().unwrap();
        assert!(list.insert(&op, 1, 10).unwrap());
        let panics = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            let _guard = list.map.poison.guard(&op).unwrap();
            let (node, _) = list.map.links.path(op.medium(), 1).found.unwrap();
            hold_live(op.medium(), node).unwrap().leave_deleted();
            panic!("in a remove");
        }));
        assert!(panics.is_err());
        assert!(matches!(list.insert(&op, 1, 11), Err(Error::Pool(durix_pmem::Error::Poisoned { .. }))));
    }
}
