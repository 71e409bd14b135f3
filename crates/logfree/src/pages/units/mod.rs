//! NV-epochs for records: units of one or more lines, which a map of words leads to by the offsets in its values.
//!
//! As for nodes: a session records a page as active, durably, before it takes units of it or has units of it taken out of the
//! map; after a crash only active pages are looked through. Sessions share tables, bitmaps and their races with nodes
//! (`active`, `words`). What is different:
//!
//! - A unit is as long as its page says. A page gets its length when it is first needed, and keeps it.
//! - Whether a unit is in use is asked of the map: the record holds its key, and the map says what that key leads to.
//! - A record leaves the map with the exchange that removes or replaces its value, which is durable when the map's operation
//!   returns: no link has to be remembered until it is.
//!
//! # Persist order
//! | edge | kept by | a crash before it leaves | recovery |
//! |---|---|---|---|
//! | LF-I1 heads of new pages < their extent is active | flush+fence | free chunks | the pool's |
//! | LF-I2 the extent < a page of it is active | flush+fence | pages without units | nothing |
//! | LF-I3 pages active < bits of them are set | flush+fence, one for all pages of a record | exact bitmaps | nothing to free |
//! | LF-I4 bits set, lengths of units, and all of a record < a node with its offset is linked | flush, with the fence of the node (LF-K1, LF-U1, LF-B1) | units that no key leads to, in active pages | frees them |
//! | LF-I5 pages of a record active < the exchange that takes it out of the map | flush+fence, one for all pages; none if they are | the record in the map | nothing to free |
//! | LF-I6 that exchange durable, grace period over < the units are handed out again | the map's own fence (LF-K2, LF-B2): it has returned | the record in the map, or units as in LF-I4 | as LF-I4 |
//! | LF-I7 bits of free units cleared < their page leaves the table | flush+fence, once for a trimming | active pages | as LF-I4 |
//! | LF-I8 what recovery has asked the map < bits are cleared | the map's: it answers with nothing that a crash can take back | the same, or the state before | the same again |
//! | LF-I9 recovered bitmaps < the table is emptied | flush+fence | active pages | the same again |
//!
//! A map that returns an error is as it was before: the units of the new record go back to the session, those of the old one
//! stay in the map.

mod recover;

use std::collections::VecDeque;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use durix_pmem::{Extent, Grace, Lock, LockGuard, Medium, Off, Op, PerSession, Root, Word};

use super::active::Active;
use super::extents::{GROWTH, LOOKED_AT, MAX_EXTENT, Run, new_segment, next_page, once_each};
use super::{WAITING, words};
use crate::error::{Error, Result};
use crate::layout::{HEAD_TAG, MAX_RECORD_PAGE, MIN_PAGE, PageShape, RECORDS, ROOT_RECORDS, Segment};
use crate::options::Options;

/// Words of the head of a page.
const HEAD: u64 = 8;

/// A unit: where it lies, and how many lines it has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Unit {
    pub(crate) off: u64,
    pub(crate) lines: u64,
}

/// The memory of the records of one structure.
pub(crate) struct Units<M: Medium> {
    root: Root<M>,
    /// Bytes of a page.
    page: u64,
    active_pages: usize,
    generation: usize,
    slots: PerSession<Lock<Slot>>,
    unassigned: Lock<Unassigned>,
}

/// What a session knows of the pages it works with. Volatile.
#[derive(Debug, Default)]
struct Slot {
    /// Of each page, `limbo` counts the units that something is under way with.
    active: Active,
    /// Units to be handed out, the last first, by their lines.
    free: ByLines,
    /// Units that were taken out of the map.
    limbo: Vec<Unit>,
    /// Generations of such units, and what they wait for.
    waiting: VecDeque<(Vec<Unit>, Grace)>,
}

/// Offsets, by a number of lines.
#[derive(Debug, Default)]
struct ByLines(Vec<Vec<u64>>);

impl ByLines {
    fn of(&mut self, lines: u64) -> &mut Vec<u64> {
        let at = lines as usize;
        if self.0.len() <= at {
            self.0.resize_with(at + 1, Vec::new);
        }
        &mut self.0[at]
    }
}

/// What no session has.
#[derive(Debug, Default)]
struct Unassigned {
    /// Pages with a good part of their units free, by the lines of these; 0 while that is not decided. One may be here twice, or
    /// active, but for those that are not decided.
    pages: ByLines,
    /// Pages with fewer free units, for when the pool is full.
    poor: ByLines,
    /// Pages that were not looked at since the structure was opened.
    runs: Vec<Run>,
    segments: Vec<Off<Segment>>,
    /// Bytes of all extents.
    bytes: u64,
}

/// Whether an extent holds pages of records.
pub(crate) fn holds_records<M: Medium>(op: &Op<'_, M>, extent: &Extent) -> bool {
    let head = op.slice("the first head of an extent", Off::<Word>::new(extent.off), HEAD).unwrap_or_default();
    // Bit 0 is clear in pages of nodes; arrays of links never hold the tag.
    head.len() as u64 == HEAD
        && op.load(&head[0], Relaxed) & 1 == 1
        && op.load(&head[HEAD_TAG], Relaxed) & !0xffff == RECORDS
}

impl<M: Medium> Units<M> {
    fn new(root: Root<M>, page: u64, options: &Options) -> Self {
        let page = page.min(MAX_RECORD_PAGE);
        let slots = PerSession::default();
        let (active_pages, generation) = (options.active_pages, options.generation);
        Units { root, page, active_pages, generation, slots, unassigned: Lock::new(Unassigned::default()) }
    }

    /// Units of a map that may be damaged, to read records of: their pages are not looked for.
    pub(crate) fn to_read(op: &Op<'_, M>, root: Root<M>, page_word: usize) -> Self {
        let page = op.load(&root.words(op)[page_word], Relaxed);
        let units = Units::new(root, page, &Options::default());
        let is_sound = units.page.is_power_of_two() && units.page >= MIN_PAGE;
        Units { page: if is_sound { units.page } else { Options::default().page }, ..units }
    }

    /// Lines of the largest unit: all of a page but its head.
    pub(crate) fn largest(&self) -> u64 {
        self.shape(1).nodes()
    }

    /// Lines of the units that are used for so many lines, at most the largest: as long as they can be if as many of them are to
    /// fit a page.
    pub(crate) fn fitting(&self, lines: u64) -> u64 {
        let all = self.largest();
        all / (all / lines.clamp(1, all))
    }

    fn shape(&self, lines: u64) -> PageShape {
        PageShape { bytes: self.page, unit: lines }
    }

    /// The root word that leads to the first segment.
    fn segments<'s>(&self, op: &Op<'s, M>) -> &'s Word<Off<Segment>> {
        op.at(op.off_of(&self.root.words(op)[ROOT_RECORDS]).cast())
    }

    fn head<'s>(&self, op: &Op<'s, M>, page: u64) -> Result<&'s [Word]> {
        Ok(op.slice("the head of a page of records", Off::<Word>::new(page), HEAD)?)
    }

    /// Lines of the units of a page, 0 while that is not decided.
    fn lines_of(&self, op: &Op<'_, M>, page: u64) -> Result<u64> {
        let tag = &self.head(op, page)?[HEAD_TAG];
        let found = op.load(tag, Acquire);
        let lines = found ^ RECORDS;
        if lines <= self.largest() {
            return Ok(lines);
        }
        Err(Error::Corrupt { what: "the head of a page of records", offset: op.off_of(tag).get(), found })
    }

    /// Makes sure that a unit of so many lines can lie at an offset that was read.
    ///
    /// # Errors
    /// [`Error::Corrupt`].
    pub(crate) fn expect(&self, op: &Op<'_, M>, unit: Unit) -> Result<()> {
        let shape = self.shape(unit.lines);
        let found = self.lines_of(op, shape.page_of(unit.off))?;
        let (word, bit) = shape.bit_of(unit.off);
        let begins = unit.off.is_multiple_of(crate::layout::NODE) && shape.mask(word) >> bit & 1 == 1;
        if found == unit.lines && begins {
            return Ok(());
        }
        Err(Error::Corrupt { what: "the offset of a record", offset: unit.off, found })
    }

    fn slot<'a>(&'a self, op: &Op<'_, M>) -> LockGuard<'a, Slot, M> {
        self.slots.of(op.slot()).lock(op.medium())
    }

    // ---- allocating ----

    /// Some units of so many lines, which nothing leads to. They stay allocated until they are [linked](Self::linked) or
    /// [given back](Self::give_back). No fence where the session has them; otherwise one for all pages that it gets.
    ///
    /// # Errors
    /// [`Error::Pool`] where the pool is full; [`Error::Corrupt`]. Nothing is allocated then.
    pub(crate) fn allocate(&self, op: &Op<'_, M>, lines: u64, count: usize) -> Result<Vec<Unit>> {
        let slot = &mut *self.slot(op);
        if slot.free.of(lines).len() < count {
            self.poll(op, slot);
        }
        while slot.free.of(lines).len() < count {
            if let Err(error) = self.refill(op, slot, lines, count) {
                // Units that were taken out of the map, and are not enough for a generation yet.
                let had = slot.free.of(lines).len();
                slot.close_generation(op);
                self.poll(op, slot);
                if slot.free.of(lines).len() == had {
                    return Err(error);
                }
            }
        }
        let free = slot.free.of(lines);
        let units = free.split_off(free.len() - count).into_iter().rev();
        let units: Vec<_> = units.map(|off| Unit { off, lines }).collect();
        for unit in &units {
            let entry = slot.active.entry(self.page_of(*unit));
            entry.free -= 1;
            entry.limbo += 1;
        }
        Ok(units)
    }

    fn page_of(&self, unit: Unit) -> u64 {
        self.shape(unit.lines).page_of(unit.off)
    }

    /// Makes pages active and takes their free units: as many as have room for what is missing, if all of theirs are free. What
    /// is there already stays.
    #[cold]
    fn refill(&self, op: &Op<'_, M>, slot: &mut Slot, lines: u64, count: usize) -> Result<()> {
        let there: Vec<_> = slot.free.of(lines).iter().map(|off| self.page_of(Unit { off: *off, lines })).collect();
        // Or making room would give them up, and each call would take again what the last one had.
        there.iter().for_each(|page| slot.active.entry(*page).limbo += 1);
        let result = self.take_pages(op, slot, lines, count - there.len());
        there.iter().for_each(|page| slot.active.entry(*page).limbo -= 1);
        result
    }

    fn take_pages(&self, op: &Op<'_, M>, slot: &mut Slot, lines: u64, missing: usize) -> Result<()> {
        let (mut pages, mut is_new, mut error) = (Vec::new(), false, None);
        for _ in 0..(missing as u64).div_ceil(self.shape(lines).nodes()) {
            match self.make_room(op, slot).and_then(|()| self.take_page(op, lines)) {
                Ok(page) => {
                    is_new |= slot.active.enter(op, page);
                    // It has to stay when room is made for the next.
                    slot.active.entry(page).limbo += 1;
                    pages.push(page);
                }
                Err(found) => {
                    error = Some(found);
                    break;
                }
            }
        }
        if is_new {
            // PERSIST LF-I3: flush+fence.
            op.fence();
        }
        for page in pages {
            let free = slot.free.of(lines);
            let first = free.len();
            // PERSIST LF-I4: flush, with the fence of the first node: bits and length lie on one line.
            words::take_nodes(op, self.shape(lines), page, free);
            let taken = (free.len() - first) as u32;
            let entry = slot.active.entry(page);
            entry.limbo -= 1;
            entry.free += taken;
        }
        error.map_or(Ok(()), Err)
    }

    /// Gives units back that were allocated and that nothing ever led to.
    pub(crate) fn give_back(&self, op: &Op<'_, M>, units: &[Unit]) {
        let slot = &mut *self.slot(op);
        for unit in units {
            let entry = slot.active.entry(self.page_of(*unit));
            entry.limbo -= 1;
            entry.free += 1;
            slot.free.of(unit.lines).push(unit.off);
        }
    }

    /// Units that were allocated are durably in the map.
    pub(crate) fn linked(&self, op: &Op<'_, M>, units: &[Unit]) {
        self.forget(op, units);
    }

    fn forget(&self, op: &Op<'_, M>, units: &[Unit]) {
        let slot = &mut *self.slot(op);
        units.iter().for_each(|unit| slot.active.entry(self.page_of(*unit)).limbo -= 1);
    }

    // ---- taking out of the map ----

    /// Enters the pages of units that this operation is about to take out of the map, durably, and keeps them in the table until
    /// [`retire`](Self::retire) or [`cancel`](Self::cancel). One fence, if one of the pages was not active.
    ///
    /// # Errors
    /// [`Error::Pool`] where the pool is full.
    pub(crate) fn begin_retire(&self, op: &Op<'_, M>, units: &[Unit]) -> Result<()> {
        let slot = &mut *self.slot(op);
        let (mut begun, mut is_new, mut error) = (0, false, None);
        for unit in units {
            let page = self.page_of(*unit);
            if !slot.active.contains(page) {
                if let Err(found) = self.make_room(op, slot) {
                    error = Some(found);
                    break;
                }
                is_new |= slot.active.enter(op, page);
            }
            slot.active.entry(page).limbo += 1;
            begun += 1;
        }
        if is_new {
            // PERSIST LF-I5: flush+fence.
            op.fence();
        }
        let Some(error) = error else { return Ok(()) };
        units[..begun].iter().for_each(|unit| slot.active.entry(self.page_of(*unit)).limbo -= 1);
        Err(error)
    }

    /// Ends what [`begin_retire`](Self::begin_retire) has begun: the units are still in the map, or somebody else has taken them
    /// out.
    pub(crate) fn cancel(&self, op: &Op<'_, M>, units: &[Unit]) {
        self.forget(op, units);
    }

    /// Takes over units that this operation has taken out of the map, durably (LF-I6). They are handed out again when nobody can
    /// hold them any more.
    pub(crate) fn retire(&self, op: &Op<'_, M>, units: &[Unit]) {
        let slot = &mut *self.slot(op);
        slot.limbo.extend(units);
        if op.is_generation(slot.limbo.len(), units.len(), self.generation) {
            slot.close_generation(op);
            self.poll(op, slot);
        }
    }

    /// Takes back the generations that nobody can hold any more, and trims the table where something that has ended has kept it long.
    fn poll(&self, op: &Op<'_, M>, slot: &mut Slot) {
        self.take_back(op, slot);
        if slot.waiting.len() <= WAITING && slot.active.is_long(self.active_pages) {
            self.trim(op, slot);
        }
    }

    fn take_back(&self, op: &Op<'_, M>, slot: &mut Slot) {
        while let Some((_, grace)) = slot.waiting.front_mut()
            && grace.is_over(op.mapping())
        {
            let (units, _) = slot.waiting.pop_front().expect("has a front");
            for unit in units {
                let entry = slot.active.entry(self.page_of(unit));
                entry.limbo -= 1;
                entry.free += 1;
                slot.free.of(unit.lines).push(unit.off);
            }
        }
    }

    // ---- pages ----

    /// Sees to it that a page can be made active.
    fn make_room(&self, op: &Op<'_, M>, slot: &mut Slot) -> Result<()> {
        if slot.active.len() >= slot.active.trim_at(self.active_pages) {
            self.trim(op, slot);
        }
        if slot.active.has_vacancy() {
            return Ok(());
        }
        match self.take_segment(op) {
            Ok(segment) => slot.active.add_segment(op, segment),
            Err(error) => {
                self.trim(op, slot);
                if !slot.active.has_vacancy() {
                    return Err(error);
                }
            }
        }
        Ok(())
    }

    /// Takes the pages out of the table that nothing is under way in.
    #[cold]
    fn trim(&self, op: &Op<'_, M>, slot: &mut Slot) {
        slot.close_generation(op);
        self.take_back(op, slot);
        let leaving = slot.active.idle(&[]);
        let (mut freed, shape) = (Vec::new(), self.shape(1));
        for free in &mut slot.free.0 {
            let leaves = |off: &mut u64| leaving.binary_search(&shape.page_of(*off)).is_ok();
            freed.extend(free.extract_if(.., leaves));
        }
        // PERSIST LF-I7: flush+fence.
        words::clear_bits(op, shape, &freed);
        slot.active.leave(op, &leaving);
        let mut unassigned = self.unassigned.lock(op.medium());
        for page in leaving {
            self.offer(op, &mut unassigned, page);
        }
    }

    /// Notes a page with free units: an eighth of them is worth the fence that makes it active. A page with a head that makes no
    /// sense is left alone.
    fn offer(&self, op: &Op<'_, M>, unassigned: &mut Unassigned, page: u64) {
        let Ok(lines) = self.lines_of(op, page) else { return };
        if lines == 0 {
            return unassigned.pages.of(0).push(page);
        }
        let (shape, head) = (self.shape(lines), self.head(op, page).unwrap_or_default());
        let words = (0u64..).zip(head).take(shape.words() as usize);
        let free = words.map(|(index, word)| u64::from((shape.mask(index) & !op.load(word, Relaxed)).count_ones()));
        let noted = match free.sum::<u64>() {
            0 => return,
            free if free * 8 >= shape.nodes() => unassigned.pages.of(lines),
            _ => unassigned.poor.of(lines),
        };
        noted.push(page);
        once_each(noted, unassigned.bytes / self.page);
    }

    /// A page that probably has free units of so many lines; asks the pool for more where none is known.
    fn take_page(&self, op: &Op<'_, M>, lines: u64) -> Result<u64> {
        let mut unassigned = self.unassigned.lock(op.medium());
        let mut looked_at = 0;
        loop {
            if let Some(page) = unassigned.pages.of(lines).pop() {
                return Ok(page);
            }
            let undecided = !unassigned.pages.of(0).is_empty();
            if looked_at < LOOKED_AT
                && !undecided
                && let Some(page) = next_page(&mut unassigned.runs, self.page)
            {
                looked_at += 1;
                self.offer(op, &mut unassigned, page);
            } else if let Some(page) = unassigned.pages.of(0).pop() {
                let tag = &self.head(op, page)?[HEAD_TAG];
                op.store(tag, RECORDS | lines, Release);
                return Ok(page);
            } else if let Err(error) = self.add_extent(op, &mut unassigned) {
                // The pool is full: all pages are looked at, and then those with few free units are taken.
                while let Some(page) = next_page(&mut unassigned.runs, self.page) {
                    self.offer(op, &mut unassigned, page);
                }
                if [lines, 0].iter().all(|lines| unassigned.pages.of(*lines).is_empty()) {
                    return unassigned.poor.of(lines).pop().ok_or(error);
                }
            }
        }
    }

    /// Adds an extent of pages without units.
    #[cold]
    fn add_extent(&self, op: &Op<'_, M>, unassigned: &mut Unassigned) -> Result<()> {
        let space = self.root.pool().space();
        let (owner, wanted) = (self.root.owner(), (unassigned.bytes / GROWTH).min(MAX_EXTENT));
        // In a pool that is nearly full a chunk will do.
        let reserved = space.reserve_extent(op, owner, wanted).or_else(|_| space.reserve_extent(op, owner, 1))?;
        let (first, len) = (reserved.off(), reserved.len());
        let pages = (first..first + len).step_by(self.page as usize);
        for page in pages.clone() {
            let head = self.head(op, page)?;
            for (number, word) in head.iter().enumerate() {
                let value = if number == HEAD_TAG { RECORDS } else { u64::from(number == 0) };
                op.store(word, value, Relaxed);
            }
            op.write_back_slice(head);
        }
        // PERSIST LF-I1: flush+fence.
        op.fence();
        space.activate(op, reserved)?;
        // PERSIST LF-I2: flush+fence.
        op.fence();
        unassigned.bytes += len;
        unassigned.pages.of(0).extend(pages);
        // The first is handed out first.
        unassigned.pages.of(0).reverse();
        Ok(())
    }

    fn take_segment(&self, op: &Op<'_, M>) -> Result<Off<Segment>> {
        let mut unassigned = self.unassigned.lock(op.medium());
        match unassigned.segments.pop() {
            Some(segment) => Ok(segment),
            None => new_segment(op, &self.root, self.segments(op)),
        }
    }
}

impl Slot {
    /// Begins the grace period of all units in limbo.
    fn close_generation<M: Medium>(&mut self, op: &Op<'_, M>) {
        if !self.limbo.is_empty() {
            // PERSIST LF-I6: not needed here: the map's fence.
            self.waiting.push_back((std::mem::take(&mut self.limbo), op.grace()));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use durix_pmem::backing::HeapBacking;
    use durix_pmem::{Hardware, PoolOptions};

    #[test]
    fn units_are_as_long_as_they_can_be_if_as_many_are_to_fit() {
        let pool = PoolOptions::new().initial_size(1 << 20).max_size(1 << 20);
        let pool = pool.create_on(HeapBacking::new(1 << 20), Hardware::PAGE_CACHE).unwrap();
        for (page, expected) in [(256, vec![1, 3]), (4096, vec![1, 2, 3, 4, 5, 6, 7, 9, 10, 12, 15, 21, 31, 63])] {
            let map = crate::List::open_with(&pool, &page.to_string(), &Options::default().page_size(page)).unwrap();
            let units = Units::new(map.root().clone(), page, &Options::default());
            let mut lengths: Vec<u64> = (1..=units.largest()).map(|lines| units.fitting(lines)).collect();
            assert!((1..).zip(&lengths).all(|(lines, unit)| *unit >= lines));
            lengths.dedup();
            assert_eq!(lengths, expected);
        }
    }

    fn in_memory(len: u64) -> durix_pmem::Pool<Hardware> {
        let options = PoolOptions::new().chunk_size(4096).lanes(1).max_indices(1).initial_size(len).max_size(len);
        options.create_on(HeapBacking::new(len), Hardware::PAGE_CACHE).unwrap()
    }

    /// As of nodes.
    #[test]
    fn pages_that_an_open_operation_has_kept_are_trimmed_when_it_has_ended() {
        let pool = in_memory(4 << 20);
        let options = Options::default().page_size(1024).active_pages(4).generation(2);
        let map = crate::BlobList::open_with(&pool, "map", &options).unwrap();
        let [mut a, mut b, mut reader] = [0; 3].map(|_| pool.session().unwrap());
        let insert = |session: &mut durix_pmem::Session<_>, key: u64| {
            assert!(map.insert(&session.enter().unwrap(), key, &[1; 400]).unwrap());
        };
        (0..800).rev().for_each(|key| insert(&mut a, key));
        let open = reader.enter().unwrap();
        (0..800).for_each(|key| assert!(map.remove(&a.enter().unwrap(), key).unwrap()));
        drop(open);
        for key in 0..6 {
            insert(&mut a, key);
            assert!(map.remove(&a.enter().unwrap(), key).unwrap());
        }
        let free = || pool.space().stats(&pool.session().unwrap().enter().unwrap()).free;
        let before = free();
        (0..700).rev().for_each(|key| insert(&mut b, key));
        // Segments of cells.
        assert!(before - free() <= 4 * 4096, "{before} bytes were free, and now {}", free());
        assert_eq!(map.check(&a.enter().unwrap()).unwrap(), []);
    }
}
