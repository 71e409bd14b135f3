//! The write-optimised log: pages of records, one open page a session.
//!
//! Each page has a polarity of its own, so any page can be used again at any time: where all its words have the validity bits of
//! records, the polarity is turned over (one write-back, one fence); where some have not, the others are made invalid first.
//!
//! | edge | kept by | a crash between leaves | recovery |
//! |---|---|---|---|
//! | DP-A1 record < the update is visible, and returns | flush+fence | a record, or not | the update in flight has happened or not |
//! | DP-P1 head and words of a new page < its extent is active < a record in it | flush+fence; the fence of DP-A1 | a free chunk; an empty page | the pool's; a free page |
//! | DP-P2 new polarity < the page's first update is visible, and returns | the fence of DP-A1 | old records below their floors; the new one if both lines are durable | the update in flight has happened or not |
//! | DP-P3 words made invalid < a record in the page | flush+fence | old records below their floors, some gone | nothing counts |
//! | DP-P4 polarities of pages, and what leads from one to the next < a record of a batch that they share | flush+fence | old records below their floors, or none | nothing counts |
//! | DP-E1 all records of a batch < any of its entries is visible, and the batch returns | flush+fence | some of its records | none of them counts |
//!
//! # Batches
//! The records of a batch lie one after the other. Each says whether the one before it and the one after it are of the same batch. Recovery
//! takes all of them or none, see [`chains`](crate::chains). A batch that does not fit into what is left of its session's page fills that up with records that count
//! nowhere, and begins in another page. One that is larger than a page takes as many as it needs, and they lead to each other; a fence more makes
//! that durable before its first record (DP-P4).
//!
//! As long as one record of a batch counts, all of them are there: its ranges note the clock from before its first record, so its pages are free
//! together; after a restart all pages of a batch of which a record counts are sealed; and a record that is taken out in a full pool stays where it is.
//!
//! # When a page is free
//! The clock counts pages that were sealed. A range remembers the clock at the first record of its fronts, loaded before that record
//! was appended; a sealed page remembers the clock before it was sealed. A record in a sealed page was appended before, so its range
//! remembers a number that is not larger than the page's, until the record is merged. Who looks for free pages first loads the clock, and
//! then looks at the ranges: pages that are sealed meanwhile have at least that clock, and are left alone.

use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{Acquire, Relaxed};

use crossbeam_utils::CachePadded;
use durix_pmem::{Extent, Lock, Medium, Off, Op, PerSession, Rmw, Root, Word};

use crate::chains::{Chains, Found};
use crate::error::{Error, Result, Wrong};
use crate::layout::{ExtentHead, LINE_RECORDS, PAGE_MAGIC, Shape, head_sum, record_line};
use crate::record::{Damaged, Place, Record};

/// The log of a tree.
pub(crate) struct Log {
    shape: Shape,
    /// Pages sealed so far.
    clock: CachePadded<AtomicU64>,
    tails: PerSession<Tail>,
    pages: Lock<Pages>,
    /// Sealed pages from which on it pays to look which of them are free.
    look_from: AtomicU64,
}

impl fmt::Debug for Log {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Log").field("shape", &self.shape).finish_non_exhaustive()
    }
}

/// The open page of a session: used by its thread alone.
#[derive(Debug, Default)]
struct Tail {
    /// 0 if there is none.
    page: AtomicU64,
    /// The next record; the page's polarity in bit 63.
    next: AtomicU64,
}

#[derive(Debug, Default)]
struct Pages {
    free: Vec<FreePage>,
    sealed: Vec<Sealed>,
    /// All pages, open ones too.
    count: u64,
    bytes: u64,
}

/// A page without records that count.
#[derive(Clone, Copy, Debug)]
struct FreePage {
    off: u64,
    /// Whether all its words have the validity bits of its polarity: it was full.
    whole: bool,
}

/// A page that takes no more records.
#[derive(Clone, Copy, Debug)]
struct Sealed {
    page: FreePage,
    /// The clock at its last record, at most.
    last: u64,
}

/// A page for records of a batch: where it lies, and its polarity.
pub(crate) type NextPage = (u64, u64);

const POLARITY: u32 = 63;
/// Free pages that are kept in stock.
const STOCK: usize = 4;

impl Log {
    /// A log without pages.
    pub(crate) fn new(shape: Shape) -> Self {
        // Pages that recovery finds are sealed at 0.
        Log {
            shape,
            clock: CachePadded::new(AtomicU64::new(1)),
            tails: PerSession::default(),
            pages: Lock::new(Pages::default()),
            look_from: AtomicU64::new(0),
        }
    }

    /// The number that a range remembers with the first record of a front; loaded before the record is appended.
    #[inline(always)]
    pub(crate) fn clock<M: Medium>(&self, m: M) -> u64 {
        m.shared_load(&self.clock, Acquire)
    }

    /// Appends a record, for which there is room, and starts writing it back.
    #[inline(always)]
    pub(crate) fn append<M: Medium>(&self, op: &Op<'_, M>, record: Record) {
        let tail = self.tails.of(op.slot());
        let (page, next) = (tail.page.load(Relaxed), tail.next.load(Relaxed));
        let (at, polarity) = (next & !(1 << POLARITY), next >> POLARITY);
        let line = op.at(record_line(page, at / LINE_RECORDS));
        record.store(op, &line.records[(at % LINE_RECORDS) as usize], polarity);
        op.write_back(line); // PERSIST DP-A1: the caller's fence
        tail.next.store(next + 1, Relaxed);
    }

    /// Asks the processor for the line after that of the session's next record, to write it soon. A hint: after the last line of a page
    /// comes something else.
    #[inline(always)]
    pub(crate) fn prefetch<M: Medium>(&self, op: &Op<'_, M>) {
        let tail = self.tails.of(op.slot());
        let (page, at) = (tail.page.load(Relaxed), tail.next.load(Relaxed) & !(1 << POLARITY));
        op.prefetch_write(record_line(page, at / LINE_RECORDS + 1));
    }

    /// Seals the session's page and opens another, for a record that is appended before the next fence (DP-P2).
    ///
    /// # Errors
    /// [`Error::Pool`] where the pool is full.
    #[cold]
    pub(crate) fn open_page<M: Medium>(&self, op: &Op<'_, M>, root: &Root<M>) -> Result<()> {
        let free = self.pages.lock(op.medium()).free.pop();
        let page = match free {
            Some(page) => page,
            None => self.new_page(op, root)?,
        };
        self.seal(op, &mut self.pages.lock(op.medium()));
        let polarity = self.renew(op, page);
        self.enter(op, page.off, polarity);
        Ok(())
    }

    /// Makes free pages, if there are few: to fill one with invalid records takes some hundred microseconds.
    ///
    /// # Errors
    /// [`Error::Pool`], but not where the pool is full.
    pub(crate) fn stock<M: Medium>(&self, op: &Op<'_, M>, root: &Root<M>) -> Result<()> {
        while self.pages.lock(op.medium()).free.len() < STOCK {
            match self.add_free(op, root) {
                // Whoever needs a page finds out, too, or another one has got free by then.
                Err(error) if error.is_full() => return Ok(()),
                made => made?,
            }
        }
        Ok(())
    }

    fn add_free<M: Medium>(&self, op: &Op<'_, M>, root: &Root<M>) -> Result<()> {
        let page = self.new_page(op, root)?;
        op.fence(); // PERSIST DP-P1: flush+fence, for records of other sessions
        self.pages.lock(op.medium()).free.push(page);
        Ok(())
    }

    /// Makes room for the records of a batch, one after the other. Returns the pages for them, where the session's page has no room for
    /// all: then that is full.
    ///
    /// # Errors
    /// [`Error::Pool`] where the pool is full; then the session's page is as it was.
    pub(crate) fn reserve<M: Medium>(&self, op: &Op<'_, M>, root: &Root<M>, records: u64) -> Result<Vec<NextPage>> {
        if records <= self.room(op) {
            return Ok(Vec::new());
        }
        let number = records.div_ceil(self.shape.page_records()) as usize;
        let free = loop {
            if let Some(free) = self.take_free(op.medium(), number) {
                break free;
            }
            self.add_free(op, root)?;
        };
        self.append_in_row(op, (0..self.room(op)).map(|_| Record::NOTHING));
        let next: Vec<NextPage> = free.iter().map(|page| (page.off, self.renew(op, *page))).collect();
        if number > 1 {
            self.link(op, &next);
        }
        Ok(next)
    }

    /// Has the pages of a batch lead to each other, durably.
    #[cold]
    fn link<M: Medium>(&self, op: &Op<'_, M>, pages: &[NextPage]) {
        let off_of = |number: usize| pages.get(number).map_or(0, |(off, _)| *off);
        for number in 0..pages.len() {
            let head = op.at(Off::<ExtentHead>::new(off_of(number)));
            op.store(&head.next, off_of(number + 1), Relaxed);
            op.store(&head.before, off_of(number.wrapping_sub(1)), Relaxed);
            op.write_back(head);
        }
        op.fence(); // PERSIST DP-P4: flush+fence
    }

    fn take_free<M: Medium>(&self, m: M, number: usize) -> Option<Vec<FreePage>> {
        let mut pages = self.pages.lock(m);
        let left = pages.free.len().checked_sub(number)?;
        Some(pages.free.split_off(left))
    }

    /// Appends the records of a batch, for which there is room in the session's page, or in these, and starts writing them back.
    pub(crate) fn append_batch<M: Medium>(
        &self,
        op: &Op<'_, M>,
        records: impl ExactSizeIterator<Item = Record>,
        next: Vec<NextPage>,
    ) {
        let number = records.len();
        let place = |i| Place { joins: i > 0, goes_on: i + 1 < number };
        let mut records = records.enumerate().map(|(i, record)| Record { place: place(i), ..record });
        if next.is_empty() {
            return self.append_in_row(op, records);
        }
        for (off, polarity) in next {
            self.seal(op, &mut self.pages.lock(op.medium()));
            self.enter(op, off, polarity);
            self.append_in_row(op, records.by_ref().take(self.shape.page_records() as usize));
        }
    }

    /// Appends records that fit into the session's page, and starts writing them back, each line once.
    fn append_in_row<M: Medium>(&self, op: &Op<'_, M>, records: impl Iterator<Item = Record>) {
        let tail = self.tails.of(op.slot());
        let (page, next) = (tail.page.load(Relaxed), tail.next.load(Relaxed));
        let (first, polarity) = (next & !(1 << POLARITY), next >> POLARITY);
        let line_of = |at: u64| op.at(record_line(page, at / LINE_RECORDS));
        let mut at = first;
        for record in records {
            record.store(op, &line_of(at).records[(at % LINE_RECORDS) as usize], polarity);
            at += 1;
            if at.is_multiple_of(LINE_RECORDS) {
                op.write_back(line_of(at - 1)); // PERSIST DP-E1: the caller's fence
            }
        }
        if at > first && !at.is_multiple_of(LINE_RECORDS) {
            op.write_back(line_of(at)); // PERSIST DP-E1: the caller's fence
        }
        tail.next.store(polarity << POLARITY | at, Relaxed);
    }

    /// Makes an empty page the session's.
    fn enter<M: Medium>(&self, op: &Op<'_, M>, page: u64, polarity: u64) {
        let tail = self.tails.of(op.slot());
        tail.page.store(page, Relaxed);
        tail.next.store(polarity << POLARITY, Relaxed);
    }

    /// Seals the session's page if it is full, so that it can be free again.
    #[cold]
    pub(crate) fn seal_full<M: Medium>(&self, op: &Op<'_, M>) {
        if !self.has_room(op) {
            self.seal(op, &mut self.pages.lock(op.medium()));
        }
    }

    /// Seals the session's page, if it has one. It is full.
    fn seal<M: Medium>(&self, op: &Op<'_, M>, pages: &mut Pages) {
        let tail = self.tails.of(op.slot());
        let old = tail.page.load(Relaxed);
        if old == 0 {
            return;
        }
        // Mirror: the range's number was stored before; see the module.
        let last = op.medium().shared_rmw(&self.clock, Rmw::Add, 1);
        pages.sealed.push(Sealed { page: FreePage { off: old, whole: true }, last });
        tail.page.store(0, Relaxed);
    }

    /// Makes a free page empty; returns its polarity.
    fn renew<M: Medium>(&self, op: &Op<'_, M>, page: FreePage) -> u64 {
        let head = op.at(Off::<ExtentHead>::new(page.off));
        let polarity = op.load(&head.polarity, Relaxed) & 1;
        if page.whole {
            op.store(&head.polarity, 1 - polarity, Relaxed);
            op.write_back(head); // PERSIST DP-P2: the fence of the page's first record
            return 1 - polarity;
        }
        self.fill(op, page.off, 1 - polarity);
        op.fence(); // PERSIST DP-P3: flush+fence
        polarity
    }

    /// Gives every word of every record the same validity bit, and starts writing them back.
    fn fill<M: Medium>(&self, op: &Op<'_, M>, page: u64, bit: u64) {
        for number in 0..self.shape.page_lines {
            let line = op.at(record_line(page, number));
            line.records.iter().flatten().for_each(|word| op.store(word, bit, Relaxed));
            op.write_back(line);
        }
    }

    /// A page that belongs to the caller, who fences before its first record is durable (DP-P1).
    fn new_page<M: Medium>(&self, op: &Op<'_, M>, root: &Root<M>) -> Result<FreePage> {
        let space = root.pool().space();
        let reserved = space.reserve_extent(op, root.owner(), self.shape.page_bytes())?;
        let off = reserved.off();
        self.fill(op, off, 0);
        let head = op.at(Off::<ExtentHead>::new(off));
        op.store(&head.magic, PAGE_MAGIC, Relaxed);
        op.store(&head.size, self.shape.page_lines, Relaxed);
        op.store(&head.sum, head_sum(PAGE_MAGIC, self.shape.page_lines), Relaxed);
        // All its words are 0, as those of records under the polarity 0: `renew` turns it over.
        op.store(&head.polarity, 0, Relaxed);
        op.persist(head); // PERSIST DP-P1: flush+fence
        let extent = space.activate(op, reserved)?; // PERSIST DP-P1: the fence of the page's first record
        let mut pages = self.pages.lock(op.medium());
        pages.count += 1;
        pages.bytes += extent.len;
        Ok(FreePage { off, whole: true })
    }

    /// Frees the sealed pages whose records are all merged: that were sealed before `oldest`, which is at most the clock when the caller
    /// began to look at the ranges, and at most the smallest number that a range remembers. Returns how many sealed pages are left.
    pub(crate) fn free_before<M: Medium>(&self, m: M, oldest: u64) -> usize {
        let mut pages = self.pages.lock(m);
        let (freed, left): (Vec<Sealed>, Vec<Sealed>) = pages.sealed.drain(..).partition(|sealed| sealed.last < oldest);
        pages.free.extend(freed.iter().map(|sealed| sealed.page));
        pages.sealed = left;
        // A look costs a load for each range; so the log grows by an eighth between two looks.
        self.look_from.store((pages.sealed.len() + pages.sealed.len() / 8 + 1) as u64, Relaxed);
        pages.sealed.len()
    }

    /// Whether enough pages were sealed since the last look for free ones.
    pub(crate) fn should_look<M: Medium>(&self, m: M) -> bool {
        let sealed = self.pages.lock(m).sealed.len() as u64;
        sealed >= self.look_from.load(Relaxed)
    }

    /// Takes records out, the one with the highest version last, each durably before the next. Reads all pages that may hold any that
    /// count; the caller sees to it that no more of those that are `wanted` are appended.
    #[cold]
    pub(crate) fn take_out<M: Medium>(&self, op: &Op<'_, M>, wanted: impl Fn(Record) -> bool) {
        let mut found: Vec<(u64, &[Word; 4])> = Vec::new();
        let pages = self.pages.lock(op.medium());
        let open = self.tails.iter().map(|tail| tail.page.load(Relaxed)).filter(|page| *page != 0);
        // A page that is being sealed is met as both.
        let all: BTreeSet<u64> = open.chain(pages.sealed.iter().map(|sealed| sealed.page.off)).collect();
        for page in all {
            let polarity = op.load(&op.at(Off::<ExtentHead>::new(page)).polarity, Relaxed) & 1;
            for words in (0..self.shape.page_lines).flat_map(|number| &op.at(record_line(page, number)).records) {
                let record = Record::load(op, words, polarity).ok().flatten().filter(|record| wanted(*record));
                found.extend(record.map(|record| (record.version, words)));
            }
        }
        found.sort_unstable_by_key(|(version, _)| *version);
        for (_, words) in found {
            Record::take_out(op, words);
            op.persist(&words[2]); // PERSIST DP-D2, DP-D3: flush+fence
        }
    }

    /// The clock of the sealed page in the middle: half of the sealed pages are not younger.
    pub(crate) fn median<M: Medium>(&self, m: M) -> u64 {
        let pages = self.pages.lock(m);
        let mut clocks: Vec<u64> = pages.sealed.iter().map(|sealed| sealed.last).collect();
        clocks.sort_unstable();
        clocks.get(clocks.len() / 2).copied().unwrap_or(0)
    }

    /// Whether a page can be opened without asking the pool.
    pub(crate) fn has_free<M: Medium>(&self, m: M) -> bool {
        !self.pages.lock(m).free.is_empty()
    }

    /// Whether the session's next record has room.
    #[inline(always)]
    pub(crate) fn has_room<M: Medium>(&self, op: &Op<'_, M>) -> bool {
        self.room(op) > 0
    }

    /// Records of a page.
    pub(crate) fn page_records(&self) -> usize {
        self.shape.page_records() as usize
    }

    /// Records that the session's page has room for.
    #[inline(always)]
    fn room<M: Medium>(&self, op: &Op<'_, M>) -> u64 {
        let tail = self.tails.of(op.slot());
        match tail.page.load(Relaxed) {
            0 => 0,
            _ => self.shape.page_records() - (tail.next.load(Relaxed) & !(1 << POLARITY)),
        }
    }

    // ---- recovery ----

    /// The polarities of the pages that recovery has found. Starts writing their heads back, if they may not be durable.
    ///
    /// # Errors
    /// [`Error::Corrupt`] where a head makes no sense.
    pub(crate) fn recover_heads<M: Medium>(&self, op: &Op<'_, M>, pages: &[Extent]) -> Result<BTreeMap<u64, u64>> {
        pages.iter().map(|page| Ok((page.off, self.recover_head(op, page)?))).collect()
    }

    /// Calls `found` with the records of a page, but for those of a batch that is not whole. It says whether a record counts. Writes back what
    /// counts, if it may not be durable, and adds the pages of those records to `in_use`.
    ///
    /// # Errors
    /// [`Error::Corrupt`] where a record is damaged; what `found` returns.
    pub(crate) fn recover_records<M: Medium>(
        &self,
        op: &Op<'_, M>,
        (page, polarities): (u64, &BTreeMap<u64, u64>),
        in_use: &mut BTreeSet<u64>,
        mut found: impl FnMut(&Found) -> Result<bool>,
    ) -> Result<()> {
        let chains = Chains { op, shape: self.shape, polarities, damaged: Cell::default() };
        let (mut line, mut is_in_use) = (Off::NULL, false);
        chains.each(page, |records| {
            let mut count = false;
            for one in records {
                let counts = found(one)?;
                // One that was taken out may not be so durably.
                if (counts || one.record.is_nothing()) && line != one.line {
                    line = one.line;
                    if !op.finds_what_is_durable() {
                        op.write_back(op.at(line)); // PERSIST DP-R1: the caller's fence
                    }
                }
                count |= counts;
            }
            is_in_use |= count;
            if count && records.len() > 1 {
                // Also pages in which none counts any more: a batch that loses some of its records loses all.
                in_use.extend(records.iter().map(|one| one.page));
            }
            Ok::<(), Error>(())
        })?;
        if let Some(Damaged { off, found }) = chains.damaged.get() {
            return Err(Error::corrupt(Wrong::RecordSum, off, found));
        }
        if is_in_use {
            in_use.insert(page);
        }
        Ok(())
    }

    /// Takes over the pages that recovery has found: those that are in use are sealed, the others are free.
    pub(crate) fn adopt<M: Medium>(&self, m: M, extents: &[Extent], in_use: &BTreeSet<u64>) {
        let mut pages = self.pages.lock(m);
        for extent in extents {
            pages.count += 1;
            pages.bytes += extent.len;
            let page = FreePage { off: extent.off, whole: false };
            if in_use.contains(&extent.off) {
                pages.sealed.push(Sealed { page, last: 0 });
            } else {
                pages.free.push(page);
            }
        }
    }

    /// Looks at a page's head, and starts writing it back, if it may not be durable. Returns its polarity.
    fn recover_head<M: Medium>(&self, op: &Op<'_, M>, extent: &Extent) -> Result<u64> {
        let head = op.at(Off::<ExtentHead>::new(extent.off));
        let [size, polarity, sum] = [&head.size, &head.polarity, &head.sum].map(|word| op.load(word, Relaxed));
        let corrupt = |part, found| Error::corrupt(part, extent.off, found);
        if size != self.shape.page_lines || sum != head_sum(PAGE_MAGIC, size) || self.shape.page_bytes() > extent.len {
            return Err(corrupt(Wrong::PageHead, size));
        }
        if polarity > 1 {
            return Err(corrupt(Wrong::Polarity, polarity));
        }
        if !op.finds_what_is_durable() {
            op.write_back(head); // PERSIST DP-R1: the caller's fence
        }
        Ok(polarity)
    }

    // ---- looking ----

    /// Pages, those of them that are free, and the bytes of all.
    pub(crate) fn totals<M: Medium>(&self, m: M) -> (u64, u64, u64) {
        let pages = self.pages.lock(m);
        (pages.count, pages.free.len() as u64, pages.bytes)
    }

    /// Pages that are open, free and sealed, each by its offset, and how many there should be.
    pub(crate) fn all_pages<M: Medium>(&self, m: M) -> (Vec<u64>, u64) {
        let pages = self.pages.lock(m);
        let open = self.tails.iter().map(|tail| tail.page.load(Relaxed)).filter(|page| *page != 0);
        let rest = pages.free.iter().chain(pages.sealed.iter().map(|sealed| &sealed.page)).map(|page| page.off);
        (open.chain(rest).collect(), pages.count)
    }
}

#[cfg(test)]
impl Log {
    /// Forgets a page that is free, or takes another one for it.
    pub(crate) fn lose_page<M: Medium>(&self, m: M, by_another: bool) {
        let mut pages = self.pages.lock(m);
        pages.free.pop().expect("a free page");
        if by_another {
            let other = pages.free.last().copied().expect("another free page");
            pages.free.push(other);
        }
    }
}
