//! Units: the pieces of a size that range blocks and leaves are made of. They have no allocation state in the pool: a unit is
//! used if the ranges lead to it, and recovery finds out which ones do.
//!
//! | edge | kept by | a crash between leaves | recovery |
//! |---|---|---|---|
//! | DP-U1 head of an extent < it is active < one of its units is linked | flush+fence, twice | a free chunk; free units | the pool's; free |
//! | as DP-B2: flip that unlinks a unit < it is used again | the merge's second fence | the unit, linked | nothing to do |

use std::collections::BTreeMap;
use std::sync::atomic::Ordering::Relaxed;

use durix_pmem::{Extent, LINE, Lock, Medium, Off, Op, Root};

use crate::error::{Error, Result, Wrong};
use crate::layout::{ExtentHead, UNITS_MAGIC, head_sum};

/// An extent is this part of what the tree has, so that the number of extents stays small.
const GROWTH: u64 = 8;
/// Largest extent.
const MAX_EXTENT: u64 = 4 << 20;

/// The units of a tree.
#[derive(Debug)]
pub(crate) struct Units {
    unit: u64,
    state: Lock<State>,
}

#[derive(Debug, Default)]
struct State {
    free: Vec<u64>,
    /// Number of units by the offset of their extent.
    extents: BTreeMap<u64, u64>,
    bytes: u64,
}

/// What recovery knows of units while it walks the ranges.
#[derive(Debug, Default)]
pub(crate) struct Survey {
    /// Which units are used, by the offset of their extent.
    extents: BTreeMap<u64, Vec<bool>>,
    bytes: u64,
}

impl Survey {
    /// Adds an extent of units.
    pub(crate) fn add<M: Medium>(&mut self, op: &Op<'_, M>, extent: Extent, unit: u64) -> Result<()> {
        let head = op.at(Off::<ExtentHead>::new(extent.off));
        let [size, sum] = [&head.size, &head.sum].map(|word| op.load(word, Relaxed));
        if size != unit || sum != head_sum(UNITS_MAGIC, size) {
            return Err(Error::corrupt(Wrong::UnitsHead, extent.off, size));
        }
        self.extents.insert(extent.off, vec![false; units_in(extent.len, unit) as usize]);
        self.bytes += extent.len;
        Ok(())
    }

    /// Marks the unit at `off` as used; `None` if it is none, or used already.
    pub(crate) fn mark(&mut self, off: u64, unit: u64) -> Option<()> {
        let (extent, used) = self.extents.range_mut(..=off).next_back()?;
        let within = off.checked_sub(extent + LINE as u64)?;
        let used = used.get_mut((within / unit) as usize)?;
        (within.is_multiple_of(unit) && !std::mem::replace(used, true)).then_some(())
    }

    /// The offsets of units that are not used, descending.
    pub(crate) fn free(&self, unit: u64) -> Vec<u64> {
        let of = |(extent, used): (&u64, &Vec<bool>)| {
            let first = extent + LINE as u64;
            let free = used.iter().enumerate().filter(|(_, used)| !**used);
            free.map(move |(i, _)| first + i as u64 * unit).collect::<Vec<_>>()
        };
        self.extents.iter().flat_map(of).rev().collect()
    }
}

pub(crate) fn units_in(len: u64, unit: u64) -> u64 {
    len.saturating_sub(LINE as u64) / unit
}

impl Units {
    /// No units yet.
    pub(crate) fn new(unit: u64) -> Self {
        Units { unit, state: Lock::new(State::default()) }
    }

    /// What a survey has found.
    pub(crate) fn from_survey(survey: Survey, unit: u64) -> Self {
        let free = survey.free(unit);
        let extents = survey.extents.into_iter().map(|(off, used)| (off, used.len() as u64)).collect();
        Units { unit, state: Lock::new(State { free, extents, bytes: survey.bytes }) }
    }

    /// Takes a unit; its content is arbitrary.
    ///
    /// # Errors
    /// [`Error::Pool`] where the pool is full.
    pub(crate) fn take<M: Medium>(&self, op: &Op<'_, M>, root: &Root<M>) -> Result<u64> {
        let mut state = self.state.lock(op.medium());
        if state.free.is_empty() {
            self.add_extent(op, root, &mut state)?;
        }
        Ok(state.free.pop().expect("an extent has units"))
    }

    /// Gives units back that nothing durable leads to.
    pub(crate) fn give_back<M: Medium>(&self, m: M, units: &[u64]) {
        self.state.lock(m).free.extend(units);
    }

    #[cold]
    fn add_extent<M: Medium>(&self, op: &Op<'_, M>, root: &Root<M>, state: &mut State) -> Result<()> {
        let least = self.unit + LINE as u64;
        let wanted = ((state.bytes / GROWTH).min(MAX_EXTENT) + LINE as u64).max(least);
        let (space, owner) = (root.pool().space(), root.owner());
        // In a pool that is nearly full one unit will do.
        let reserved = space.reserve_extent(op, owner, wanted).or_else(|_| space.reserve_extent(op, owner, least))?;
        let head = op.at(Off::<ExtentHead>::new(reserved.off()));
        op.store(&head.magic, UNITS_MAGIC, Relaxed);
        op.store(&head.size, self.unit, Relaxed);
        op.store(&head.sum, head_sum(UNITS_MAGIC, self.unit), Relaxed);
        op.persist(head); // PERSIST DP-U1: flush+fence
        let extent = space.activate(op, reserved)?;
        op.fence(); // PERSIST DP-U1: flush+fence, for merges of other sessions
        let units = units_in(extent.len, self.unit);
        state.free.extend((0..units).rev().map(|i| extent.off + LINE as u64 + i * self.unit));
        state.extents.insert(extent.off, units);
        state.bytes += extent.len;
        Ok(())
    }

    /// The free units, and the bytes of all extents.
    pub(crate) fn totals<M: Medium>(&self, m: M) -> (Vec<u64>, u64) {
        let state = self.state.lock(m);
        (state.free.clone(), state.bytes)
    }

    /// Number of units, free or not.
    pub(crate) fn count<M: Medium>(&self, m: M) -> u64 {
        self.state.lock(m).extents.values().sum()
    }
}
