//! The memory of a log: extents of the log's owner, divided into units of whole lines. A unit has no state of its own: what the
//! log leads to is in use, the rest is free. So taking and giving back cost nothing in the pool, and recovery cannot leak.
//!
//! # Persist order
//! | edge | between | kept by | a crash before it leaves | recovery |
//! |---|---|---|---|---|
//! | RW-M1 | the extent's head; the extent's activation | flush+fence | space that is nobody's | the pool gives it back |
//! | RW-M2 | the extent's activation; a unit of it is linked | flush+fence | space that is nobody's | as above |

use std::collections::BTreeSet;
use std::sync::atomic::Ordering::Relaxed;

use durix_pmem::{Extent, LINE, Lock, Medium, Off, Op, Root, Word};

use crate::adll::corrupt;
use crate::error::Result;
use crate::layout::{EXTENT_MAGIC, ExtentHead};

/// Units of one size.
#[derive(Debug, Default)]
struct Class {
    /// Lines of a unit.
    lines: u64,
    free: Vec<u64>,
    /// How many of the free units are promised to somebody.
    promised: usize,
    /// Units in all.
    total: u64,
}

/// What the log's memory is made of.
pub(crate) struct Arena<M: Medium> {
    root: Root<M>,
    classes: Lock<Vec<Class>>,
}

impl<M: Medium> Arena<M> {
    /// The arena of a root's owner, empty until [`recover`](Self::recover).
    pub(crate) fn new(root: Root<M>) -> Self {
        Arena { root, classes: Lock::new(Vec::new()) }
    }

    /// Finds the units. None of them counts as free before [`release_all_but`](Self::release_all_but).
    pub(crate) fn recover(&self, op: &Op<'_, M>) -> Result<()> {
        let mut classes = self.classes.lock(op.medium());
        classes.clear();
        for extent in self.root.pool().space().extents(op, self.root.owner()) {
            let lines = unit_lines(op, extent)?;
            let units = units(extent, lines);
            class(&mut classes, lines).total += units.count() as u64;
        }
        Ok(())
    }

    /// Makes all units free but those of `live`.
    ///
    /// # Errors
    /// [`Error::Corrupt`](crate::Error::Corrupt) where one of these is no unit of the log.
    pub(crate) fn release_all_but(&self, op: &Op<'_, M>, live: &BTreeSet<u64>) -> Result<()> {
        let mut classes = self.classes.lock(op.medium());
        classes.iter_mut().for_each(|class| class.free.clear());
        let mut unknown = live.clone();
        for extent in self.root.pool().space().extents(op, self.root.owner()) {
            let lines = unit_lines(op, extent)?;
            let free = units(extent, lines).rev().filter(|unit| !unknown.remove(unit));
            class(&mut classes, lines).free.extend(free);
        }
        let stray = unknown.first().copied();
        stray.map_or(Ok(()), |unit| Err(corrupt("a link out of the log's memory,", Off::<Word>::new(unit), unit)))
    }

    /// Units in use and in all, of each size in lines.
    pub(crate) fn usage(&self, m: M) -> Vec<(u64, u64, u64)> {
        let classes = self.classes.lock(m);
        classes.iter().map(|c| (c.lines, c.total - c.free.len() as u64, c.total)).collect()
    }

    /// Promises `count` units of `lines` lines: so many can be taken by [`take_promised`](Self::take_promised), whatever else
    /// is taken.
    ///
    /// # Errors
    /// [`Error::Pool`](crate::Error::Pool) where the pool is full; nothing is promised then.
    pub(crate) fn promise(&self, op: &Op<'_, M>, lines: u64, count: usize) -> Result<()> {
        let mut classes = self.classes.lock(op.medium());
        let class = class(&mut classes, lines);
        while class.free.len() < class.promised + count {
            self.grow(op, class)?;
        }
        class.promised += count;
        Ok(())
    }

    /// Takes a promise back.
    pub(crate) fn unpromise(&self, m: M, lines: u64, count: usize) {
        let mut classes = self.classes.lock(m);
        let class = class(&mut classes, lines);
        class.promised = class.promised.saturating_sub(count);
    }

    /// Takes one of the promised units. Its content is arbitrary.
    pub(crate) fn take_promised(&self, m: M, lines: u64) -> u64 {
        let mut classes = self.classes.lock(m);
        let class = class(&mut classes, lines);
        assert!(class.promised > 0, "a unit of {lines} lines that was not promised");
        class.promised -= 1;
        class.free.pop().expect("promised units are free")
    }

    /// Takes a unit.
    ///
    /// # Errors
    /// [`Error::Pool`](crate::Error::Pool) where the pool is full.
    pub(crate) fn take(&self, op: &Op<'_, M>, lines: u64) -> Result<u64> {
        self.promise(op, lines, 1)?;
        Ok(self.take_promised(op.medium(), lines))
    }

    /// Gives units back that nothing leads to any more, durably.
    pub(crate) fn give_back(&self, m: M, lines: u64, units: impl IntoIterator<Item = u64>) {
        let mut classes = self.classes.lock(m);
        class(&mut classes, lines).free.extend(units);
    }

    /// As [`give_back`](Self::give_back), to whoever had them promised: they stay promised.
    pub(crate) fn give_back_promised(&self, m: M, lines: u64, units: impl IntoIterator<Item = u64>) {
        let mut classes = self.classes.lock(m);
        let class = class(&mut classes, lines);
        let before = class.free.len();
        class.free.extend(units);
        class.promised += class.free.len() - before;
    }

    /// One extent more. An eighth of what is there, so that extents stay few.
    fn grow(&self, op: &Op<'_, M>, class: &mut Class) -> Result<()> {
        let space = self.root.pool().space();
        let unit = class.lines * LINE as u64;
        let least = unit + LINE as u64;
        let wanted = (class.total / 8 * unit).clamp(least, least.max(4 << 20));
        let owner = self.root.owner();
        let reserved = space.reserve_extent(op, owner, wanted).or_else(|_| space.reserve_extent(op, owner, least))?;
        let head = op.at(Off::<ExtentHead>::new(reserved.off()));
        op.store(&head.magic, EXTENT_MAGIC, Relaxed);
        op.store(&head.lines, class.lines, Relaxed);
        op.write_back(head);
        // PERSIST RW-M1: flush+fence.
        op.fence();
        let extent = space.activate(op, reserved)?;
        // PERSIST RW-M2: flush+fence.
        op.fence();
        let units: Vec<u64> = units(extent, class.lines).rev().collect();
        class.total += units.len() as u64;
        class.free.extend(units);
        Ok(())
    }
}

impl<M: Medium> std::fmt::Debug for Arena<M> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Arena").field("root", &self.root).finish_non_exhaustive()
    }
}

fn class(classes: &mut Vec<Class>, lines: u64) -> &mut Class {
    let at = classes.iter().position(|class| class.lines == lines).unwrap_or_else(|| {
        classes.push(Class { lines, ..Class::default() });
        classes.len() - 1
    });
    &mut classes[at]
}

/// The size of an extent's units, in lines.
fn unit_lines<M: Medium>(op: &Op<'_, M>, extent: Extent) -> Result<u64> {
    let off = Off::<ExtentHead>::new(extent.off);
    op.slice("extent", Off::<Word>::new(extent.off), extent.len / 8)?;
    let head = op.at(off);
    let (magic, lines) = (op.load(&head.magic, Relaxed), op.load(&head.lines, Relaxed));
    if magic != EXTENT_MAGIC {
        return Err(corrupt("an extent's magic", off, magic));
    }
    match lines {
        1.. if lines.checked_mul(LINE as u64).is_some_and(|len| len <= extent.len) => Ok(lines),
        _ => Err(corrupt("the size of an extent's units", off, lines)),
    }
}

/// The units of an extent, ascending.
fn units(extent: Extent, lines: u64) -> impl DoubleEndedIterator<Item = u64> + Clone {
    let (first, len) = (extent.off + LINE as u64, lines * LINE as u64);
    (0..(extent.len - LINE as u64) / len).map(move |i| first + i * len)
}
