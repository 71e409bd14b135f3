//! Records for structures that lead to them by themselves.

use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use durix_pmem::{Extent, Hardware, Medium, Off, OffsetSet, Op, Root, Session, Word};

use super::record::{Limits, Record, Records};
use crate::error::{Error, Result};
use crate::finding::Finding;
use crate::layout::RECORD_MARKS;
use crate::options::Options;
use crate::pages::units::{Unit, Units, holds_records};

/// The records of a structure of another crate, which leads to them by their offsets: what [`Blobs`](crate::Blobs) are made of, for
/// structures that are no map of words.
///
/// A record has a key and any number of bytes, one at least. It is [written](Self::write), then linked by the structure, durably, then
/// [noted](Self::linked). Before the structure unlinks it, it is [announced](Self::begin_retire), afterwards, durably, [retired](Self::retire).
/// The persist order is that of `pages/units` (LF-I1 to LF-I9).
///
/// A record with *marks* begins with a word that may be changed in place: it has no checksum.
pub struct RecordStore<M: Medium = Hardware>(pub(super) Units<M>);

impl<M: Medium> std::fmt::Debug for RecordStore<M> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RecordStore").finish_non_exhaustive()
    }
}

fn units(records: &[Record]) -> Vec<Unit> {
    records.iter().flat_map(|record| &record.units).copied().collect()
}

impl<M: Medium> RecordStore<M> {
    /// Notes in the root entry of a structure that is created how large its pages of records are: in word `page_word`; word 4 is that of the
    /// records, too. The caller writes them back, with the fence before the index goes live.
    pub fn format(op: &Op<'_, M>, root: &Root<M>, page_word: usize) {
        let page = Options::default().page.min(root.pool().space().chunk());
        op.store(&root.words(op)[page_word], page, Relaxed);
    }

    /// Opens the records of a structure that is recovered but for them, and that nobody else uses yet. `make` puts the records into it, `store`
    /// finds them there. Then, in pages that were active, records are freed to which nothing leads: `leads` is asked of a key and an offset.
    ///
    /// # Errors
    /// [`Error::Corrupt`].
    pub fn open<T>(
        session: &mut Session<M>,
        root: &Root<M>,
        page_word: usize,
        make: impl FnOnce(Self) -> T,
        leads: impl Fn(&T, &Op<'_, M>, u64, u64) -> Result<bool>,
        store: impl Fn(&T) -> &Self,
    ) -> Result<T> {
        let (units, found) = Units::open(&session.enter()?, root.clone(), page_word, &Options::default())?;
        let made = make(RecordStore(units));
        let in_use = |op: &Op<'_, M>, unit: Unit| {
            let records = store(&made).records(op);
            // A head whose first word is damaged can look like a part of anything.
            let of_unit = (records.key_of(unit)?, unit.off);
            let of_part = records.owner(unit)?.filter(|(_, head)| *head != unit.off);
            for (key, head) in of_part.into_iter().chain([of_unit]) {
                // PERSIST LF-I8: the structure's fence.
                if records.is_blank(head)? || !leads(&made, op, key, head)? {
                    continue;
                }
                // The structure leads to it, so it was whole. What is damaged stays as it is, for the check.
                let holds = |record: Record| {
                    let is_part = record.units.iter().any(|part| part.off == unit.off);
                    Ok(is_part || records.read(&record, &mut Vec::new()).map(|()| false)?)
                };
                return match records.at(key, head).and_then(holds) {
                    Err(Error::Corrupt { .. }) => Ok(true),
                    found => found,
                };
            }
            Ok(false)
        };
        store(&made).0.recover(session, &found, &in_use)?;
        Ok(made)
    }

    /// Records of a structure that may be damaged, to be read only.
    pub fn to_read(op: &Op<'_, M>, root: Root<M>, page_word: usize) -> Self {
        RecordStore(Units::to_read(op, root, page_word))
    }

    /// Keys and offsets of what may be records, by the bitmaps of their pages, whether anything leads to them or not: for a repair, which compares
    /// checksums as it reads them. One that was freed while a reader held it can be among them.
    pub fn heads(&self, op: &Op<'_, M>) -> Vec<(u64, u64)> {
        let records = self.records(op);
        let head = |unit: Unit| records.owner(unit).ok()?.filter(|(_, head)| *head == unit.off);
        let is_written = |(_, off): &(u64, u64)| records.is_blank(*off).is_ok_and(|is_blank| !is_blank);
        self.0.all_allocated(op).into_iter().filter_map(head).filter(is_written).collect()
    }

    /// Whether an extent of a structure holds records.
    pub fn holds_records(op: &Op<'_, M>, extent: &Extent) -> bool {
        holds_records(op, extent)
    }

    /// Most bytes of a record.
    pub fn most_bytes(&self) -> u64 {
        Limits { lines: self.0.largest() }.bytes()
    }

    fn records<'a, 's>(&'a self, op: &'a Op<'s, M>) -> Records<'a, 's, M> {
        Records { op, units: &self.0, have_marks: true }
    }

    /// Allocates a record, writes it, and starts writing it back: it is durable with the next fence of this session. One with marks has
    /// them in the first word.
    ///
    /// # Errors
    /// [`Error::TooLong`]; [`Error::Pool`] where the pool is full. Nothing is allocated then.
    pub fn write(&self, op: &Op<'_, M>, key: u64, bytes: &[u8], has_marks: bool) -> Result<Record> {
        self.records(op).write_with(key, bytes, if has_marks { RECORD_MARKS } else { 0 })
    }

    /// Records that were written are linked, durably.
    pub fn linked(&self, op: &Op<'_, M>, written: &[Record]) {
        self.0.linked(op, &units(written));
    }

    /// Records that were written are not linked, and never were.
    pub fn give_back(&self, op: &Op<'_, M>, written: &[Record]) {
        self.0.give_back(op, &units(written));
    }

    /// Announces, durably, that the records at some offsets are about to be unlinked. One fence, if one of their pages is not active in this session.
    ///
    /// # Errors
    /// [`Error::Corrupt`]; [`Error::Pool`] where a table of active pages has to grow and the pool is full. Nothing is announced then.
    pub fn begin_retire(&self, op: &Op<'_, M>, key: u64, offs: &[u64]) -> Result<Vec<Record>> {
        let records = self.records(op);
        let read = |off: &u64| records.at(key, *off).and_then(|record| records.expect(&record).map(|()| record));
        let announced: Vec<Record> = offs.iter().map(read).collect::<Result<_>>()?;
        self.0.begin_retire(op, &units(&announced))?;
        Ok(announced)
    }

    /// Records that were announced stay.
    pub fn cancel(&self, op: &Op<'_, M>, announced: &[Record]) {
        self.0.cancel(op, &units(announced));
    }

    /// Records that were announced are unlinked, durably: they are used again when nobody can hold them.
    pub fn retire(&self, op: &Op<'_, M>, announced: &[Record]) {
        self.0.retire(op, &units(announced));
    }

    /// Appends the bytes of the record of a key, and compares their checksum.
    ///
    /// # Errors
    /// [`Error::Corrupt`].
    pub fn read(&self, op: &Op<'_, M>, key: u64, off: u64, into: &mut Vec<u8>) -> Result<()> {
        let records = self.records(op);
        records.read(&records.at(key, off)?, into)
    }

    /// Appends up to so many first bytes of the record of a key, and returns how many it has. If these are all, compares their checksum.
    ///
    /// # Errors
    /// [`Error::Corrupt`].
    pub fn read_front(&self, op: &Op<'_, M>, key: u64, off: u64, most: usize, into: &mut Vec<u8>) -> Result<u64> {
        self.records(op).read_front(key, off, most, into)
    }

    /// Appends up to so many first bytes of the record at an offset, whatever its key and its checksum: for recovery, of a record that may be damaged.
    ///
    /// # Errors
    /// [`Error::Corrupt`] where there is no record.
    pub fn read_unchecked(&self, op: &Op<'_, M>, off: u64, most: usize, into: &mut Vec<u8>) -> Result<()> {
        self.records(op).read_unchecked(off, most, into)
    }

    /// Asks the processor for the first line of a record. A hint, and no access.
    #[inline]
    pub fn prefetch(&self, op: &Op<'_, M>, off: u64) {
        op.prefetch(Off::<Word>::new(off));
    }

    /// Asks the processor for the other lines of a record that lies in one unit, as its first line has them. A hint.
    #[inline]
    pub fn prefetch_rest(&self, op: &Op<'_, M>, off: u64) {
        self.records(op).prefetch_rest(off);
    }

    /// Replaces the marks of a record that has them, and lies in one unit; returns whether it does. Durable with the next fence of this
    /// session.
    ///
    /// # Errors
    /// [`Error::Corrupt`].
    pub fn set_marks(&self, op: &Op<'_, M>, key: u64, off: u64, marks: u64) -> Result<bool> {
        let records = self.records(op);
        let Some(word) = records.marks(&records.at(key, off)?)? else { return Ok(false) };
        op.store(word, marks, Release);
        op.write_back(word);
        Ok(true)
    }

    /// Starts writing back the marks of a record, if it has any: for somebody who has read them, and relies on them.
    ///
    /// # Errors
    /// [`Error::Corrupt`].
    pub fn keep_marks(&self, op: &Op<'_, M>, key: u64, off: u64) -> Result<()> {
        let records = self.records(op);
        if let Some(word) = records.marks(&records.at(key, off)?)? {
            // What is written back is what was read, or later.
            op.load(word, Acquire);
            op.write_back(word);
        }
        Ok(())
    }

    /// Compares what is allocated with records that are in use: offsets with their keys. Checksums, too. No other operation may be open.
    ///
    /// # Errors
    /// [`Error::Corrupt`].
    pub fn check(&self, op: &Op<'_, M>, in_use: &[(u64, u64)]) -> Result<Vec<Finding>> {
        let (mut findings, mut used, mut bytes) = (Vec::new(), OffsetSet::default(), Vec::new());
        for (key, off) in in_use {
            let found = self.records(op).at(*key, *off);
            let found = found.and_then(|record| self.records(op).expect(&record).map(|()| record));
            let record = match found {
                Err(Error::Corrupt { .. }) => {
                    findings.push(Finding::Damaged { off: *off });
                    continue;
                }
                found => found?,
            };
            bytes.clear();
            match self.records(op).read(&record, &mut bytes) {
                Err(Error::Corrupt { .. }) => findings.push(Finding::Damaged { off: *off }),
                read => read?,
            }
            let twice = record.units.iter().filter(|unit| !used.insert(unit.off));
            findings.extend(twice.map(|unit| Finding::Misplaced { off: unit.off, key: *key }));
        }
        findings.extend(self.0.check(op, &used));
        Ok(findings)
    }
}
