//! The header: read and judged as a whole, written one self-checking word at a time.
//!
//! # Persist order
//! | edge | between | a crash before it leaves | which opening takes as |
//! |---|---|---|---|
//! | PL-C0<PL-C1 | file allocated, synced; `magic = CREATING` | zeroes only | creation interrupted: create again |
//! | PL-C1<PL-C2 | `magic = CREATING`; any other word | the mark, zeroes | creation interrupted: create again |
//! | PL-C2<PL-C3 | all other words, the spare header, lanes, roots, space; `magic = MAGIC` | the mark, anything | creation interrupted: create again |
//! | PL-B1<PL-B2 | boot id into the slot that the state does not name; state names it | the state before | clean, or unclean as before |
//! | PL-I1<PL-B2 | which file it is; state names it as open | the state before | clean; or unclean as before, in the file that was accepted |
//! | PL-B2<PL-B3 | state dirty; the first store to anything else | the state before, nothing else stored | clean, or unclean as before |
//! | PL-V1<PL-V2 | header and root entries as an opener sees them; the first store of that opener | what the opener saw, or the word before | as before: after the mere death of a process, stores are visible that may not be durable |
//! | PL-Z1<PL-Z2 | everything stored; state clean | state dirty | unclean: recovered |
//! | PL-G1<PL-G2 | file allocated to the new size, synced; the size word | a file longer than its header says | the tail is not used; growing takes it again |
//! | PL-G2<PL-G3 | the size word; the first store behind the old size | the old size, nothing stored behind it | as PL-G1<PL-G2 |
//!
//! Each edge but PL-B1<PL-B2 is a write-back and a fence. On a medium that survives only the death of the process it is also
//! a sync of the backing: that makes the mark "dirty" reach the disk before any other store, and "clean" after all of
//! them, so that an unclean pool is known as unclean after a power failure too. PL-B1<PL-B2 is that sync alone: where
//! write-backs are done a power failure loses nothing, and nobody asks which boot it was. One word is all that ever
//! changes between two fences where the order matters, so 8-byte atomicity is enough.

use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use super::geometry::{Geometry, HEADER_SIZE, SPARE_OFF, SPARE_SIZE};
use super::layout::{
    COMPATIBLE, HASH_ID, Header, KNOWN_INCOMPATIBLE, MAGIC, MAGIC_CREATING, SpareHeader, Stamp, VERSIONS,
};
use crate::backing::FileId;
use crate::error::{Error, Result};
use crate::ids::{BootId, PoolId};
use crate::medium::{Medium, Survives};
use crate::offset::Off;
use crate::session::Op;
use crate::version::Version;
use crate::word::{Bits, Word};

/// Whether a pool was closed, as its header says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum State {
    /// It was closed.
    Clean,
    /// It is open, or was not closed.
    Dirty {
        /// The boot under which it was opened.
        boot: BootId,
        /// What its medium was going to survive.
        survives: Survives,
    },
    /// It is open with a [journal](crate::journal), or was not closed: what is durable lies in file and journal together.
    Journaled,
    /// The header does not tell: it was damaged, and [`accept_unclean`](super::PoolOptions::accept_unclean) was given.
    Unknown,
}

/// The state word's 32 bits: what (8 bits), which boot id counts (8), and how often the pool was opened that had not been closed (16, and
/// then again from zero).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct StateBits(u32);

impl StateBits {
    const CLEAN: u32 = 1;
    const DIRTY_PROCESS: u32 = 2;
    const DIRTY_POWER: u32 = 3;
    const JOURNALED: u32 = 4;

    fn new(what: u32, slot: usize, crashes: u16) -> Self {
        StateBits(what | (slot as u32) << 8 | u32::from(crashes) << 16)
    }

    fn what(self) -> u32 {
        self.0 & 0xff
    }

    fn slot(self) -> Option<usize> {
        Some((self.0 >> 8 & 0xff) as usize).filter(|s| *s < 2)
    }

    fn crashes(self) -> u16 {
        (self.0 >> 16) as u16
    }
}

/// How often a number of operations is looked for that is stored meanwhile.
const LOOKS: usize = 100;
/// What counts as the number of crashes where the header does not tell.
const UNKNOWN_CRASHES: u16 = 0x8000;

/// Everything a header says, after it was found sound.
#[derive(Clone, Debug)]
pub(crate) struct Sound {
    pub(crate) id: PoolId,
    pub(crate) geometry: Geometry,
    /// Bytes.
    pub(crate) size: u64,
    pub(crate) state: State,
    /// The slot for the next boot id.
    free_boot: usize,
}

/// A header that is being looked at or written, with the name that errors use.
pub(crate) struct HeaderRef<'a, 's, M: Medium> {
    op: &'a Op<'s, M>,
    header: &'s Header,
    name: &'a str,
}

/// Number of a header word: its stamp's salt.
fn number(offset: usize) -> u32 {
    (offset / size_of::<u64>()) as u32
}

macro_rules! at {
    ($field:ident) => {
        std::mem::offset_of!(Header, $field)
    };
}

impl<'a, 's, M: Medium> HeaderRef<'a, 's, M> {
    pub(crate) fn new(op: &'a Op<'s, M>, name: &'a str) -> Self {
        HeaderRef { op, header: op.at(Off::<Header>::new(0)), name }
    }

    // ---- reading ----

    /// Reads and judges the whole header. `backed` is how many bytes there are.
    ///
    /// # Errors
    /// What is wrong with it, and is not accepted.
    pub(crate) fn read(&self, backed: u64, accept: Accept) -> Result<Sound> {
        self.check_magic(backed)?;
        let format = self.get("format version", &self.header.format, at!(format))?;
        // The layout id of a version that nobody knows counts as far as it can be read.
        let layout = self.op.load(&self.header.layout_id, Acquire).value(number(at!(layout_id)));
        let is_known = |layout| VERSIONS.opens(version(format, layout));
        if layout.map_or(!knows_number(format), |layout| !is_known(layout)) {
            let found = version(format, layout.unwrap_or_default());
            return Err(Error::Format { name: self.name.into(), found, known: VERSIONS });
        }
        let created = self.read_created()?;
        let geometry = self.judge_created(&created)?;
        let size = match self.read_size(&geometry, backed) {
            Err(Error::Damaged { .. } | Error::Truncated { .. })
                if accept == Accept::Damaged && backed >= geometry.min_size() =>
            {
                backed - backed % geometry.chunk
            }
            other => other?,
        };
        let (state, free_boot) = match self.read_state() {
            Err(Error::Damaged { .. }) if accept != Accept::Sound => (State::Unknown, 0),
            other => other?,
        };
        let mut id = [0; 16];
        for (bytes, value) in id.as_chunks_mut::<4>().0.iter_mut().zip(&created[1..5]) {
            *bytes = value.to_le_bytes();
        }
        Ok(Sound { id: PoolId(id), geometry, size, state, free_boot })
    }

    fn check_magic(&self, backed: u64) -> Result<()> {
        if backed < HEADER_SIZE {
            return Err(not_a_pool_by_length(self.name, backed));
        }
        let magic = self.op.load(&self.header.magic, Acquire);
        match magic {
            MAGIC => Ok(()),
            MAGIC_CREATING => Err(Error::Unfinished { name: self.name.into() }),
            0 if self.holds_nothing(backed) => Err(Error::Unfinished { name: self.name.into() }),
            found if backed >= SPARE_OFF + SPARE_SIZE && self.has_spare() => Err(self.damaged("magic", 0, found)),
            found => Err(Error::NotAPool { name: self.name.into(), found: format!("{found:#018x} as its first word") }),
        }
    }

    /// Whether the spare says that there is a pool.
    pub(super) fn has_spare(&self) -> bool {
        let spare = self.op.at(Off::<SpareHeader>::new(SPARE_OFF));
        created_of(&spare.words.each_ref().map(|word| self.op.load(word, Acquire))).is_some()
    }

    /// Whether all is zero but for the spare, which an interrupted creation may have left.
    fn holds_nothing(&self, backed: u64) -> bool {
        let pages = (0..backed / HEADER_SIZE).map(|page| page * HEADER_SIZE);
        pages.map(|off| (off, self.op.at(Off::<[Word; (HEADER_SIZE / 8) as usize]>::new(off)))).all(|(off, words)| {
            let skipped = if off == SPARE_OFF { SPARE_SIZE as usize / size_of::<Word>() } else { 0 };
            words.iter().skip(skipped).all(|word| self.op.load(word, Relaxed) == 0)
        })
    }

    fn get(&self, field: &'static str, word: &Word<Stamp>, offset: usize) -> Result<u32> {
        let found = self.op.load(word, Acquire);
        found.value(number(offset)).ok_or_else(|| self.damaged(field, offset, found.to_bits()))
    }

    fn damaged(&self, field: &'static str, offset: usize, found: u64) -> Error {
        Error::Damaged { name: self.name.into(), field, offset: offset as u64, found }
    }

    /// The twelve values that creation has fixed, in the order of their words, each found sound by itself.
    fn read_created(&self) -> Result<[u32; 12]> {
        let h = self.header;
        let mut values = [0; 12];
        values[0] = self.get("format version", &h.format, at!(format))?;
        for (i, word) in h.pool_id.iter().enumerate() {
            values[1 + i] = self.get("pool id", word, at!(pool_id) + 8 * i)?;
        }
        values[5] = self.get("compatible features", &h.compatible, at!(compatible))?;
        values[6] = self.get("incompatible features", &h.incompatible, at!(incompatible))?;
        values[7] = self.get("layout id", &h.layout_id, at!(layout_id))?;
        values[8] = self.get("hash id", &h.hash_id, at!(hash_id))?;
        values[9] = self.get("chunk size", &h.chunk, at!(chunk))?;
        values[10] = self.get("number of lanes", &h.lanes, at!(lanes))?;
        values[11] = self.get("number of indices", &h.indices, at!(indices))?;
        let checksum = self.get("creation checksum", &h.creation, at!(creation))?;
        if checksum != created_checksum(&values) {
            return Err(self.damaged("creation checksum", at!(creation), checksum.into()));
        }
        Ok(values)
    }

    fn judge_created(&self, values: &[u32; 12]) -> Result<Geometry> {
        let name = || self.name.to_owned();
        let unknown = values[6] & !KNOWN_INCOMPATIBLE;
        if unknown != 0 {
            return Err(Error::Features { name: name(), unknown });
        }
        if values[8] != HASH_ID {
            return Err(Error::HashFunction { name: name(), found: values[8], expected: HASH_ID });
        }
        let geometry = Geometry { chunk: values[9].into(), lanes: values[10], indices: values[11] };
        match geometry.validate() {
            Err(Error::BadOption { option: "chunk_size", .. }) => {
                Err(self.damaged("chunk size", at!(chunk), geometry.chunk))
            }
            Err(Error::BadOption { option: "lanes", .. }) => {
                Err(self.damaged("number of lanes", at!(lanes), geometry.lanes.into()))
            }
            Err(_) => Err(self.damaged("number of indices", at!(indices), geometry.indices.into())),
            Ok(()) => Ok(geometry),
        }
    }

    /// The size in bytes.
    fn read_size(&self, geometry: &Geometry, backed: u64) -> Result<u64> {
        let chunks = self.get("size", &self.header.size, at!(size))?;
        let size = u64::from(chunks) * geometry.chunk;
        if size < geometry.min_size() {
            return Err(self.damaged("size", at!(size), chunks.into()));
        }
        if size > backed {
            return Err(Error::Truncated { name: self.name.into(), expected: size, found: backed });
        }
        Ok(size)
    }

    fn read_state(&self) -> Result<(State, usize)> {
        let value = self.get("state", &self.header.state, at!(state))?;
        let mut boots = [BootId::default(); 2];
        for (slot, words) in self.header.boot.iter().enumerate() {
            let (parts, _) = boots[slot].0.as_chunks_mut::<4>();
            for (i, (part, word)) in parts.iter_mut().zip(words).enumerate() {
                *part = self.get("boot id", word, boot_offset(slot, i))?.to_le_bytes();
            }
        }
        let bits = StateBits(value);
        let damaged = || self.damaged("state", at!(state), value.into());
        let slot = bits.slot().ok_or_else(damaged)?;
        let dirty = |survives| State::Dirty { boot: boots[slot], survives };
        let state = match bits.what() {
            StateBits::CLEAN => State::Clean,
            StateBits::DIRTY_PROCESS => dirty(Survives::ProcessDeath),
            StateBits::DIRTY_POWER => dirty(Survives::PowerFailure),
            StateBits::JOURNALED => State::Journaled,
            _ => return Err(damaged()),
        };
        Ok((state, 1 - slot))
    }

    // ---- writing ----

    /// Stores what creation has fixed, as the bytes of a header have it. For a pool that is only read.
    pub(crate) fn store_created(op: &Op<'_, M>, head: &[u8; size_of::<Header>()]) {
        let words = op.at(Off::<[Word; 14]>::new(0));
        for (at, word) in words.iter().enumerate() {
            op.store(word, word_of(head, 8 * at), Relaxed);
        }
    }

    /// The mark that says that all else in the file may be thrown away.
    pub(crate) fn mark_creating(&self) {
        self.op.store(&self.header.magic, MAGIC_CREATING, Release);
        self.op.persist(&self.header.magic); // PERSIST PL-C1<PL-C2: flush+fence
    }

    /// Everything but the magic. `size` is in bytes.
    pub(crate) fn fill(&self, id: PoolId, geometry: &Geometry, size: u64, boot: BootId, file: Option<FileId>) {
        let mut values = [0; 12];
        values[0] = VERSIONS.writes.number();
        for (value, bytes) in values[1..5].iter_mut().zip(id.0.as_chunks::<4>().0) {
            *value = u32::from_le_bytes(*bytes);
        }
        values[5] = COMPATIBLE;
        values[7] = VERSIONS.writes.layout();
        values[8] = HASH_ID;
        values[9] = geometry.chunk as u32;
        values[10] = geometry.lanes;
        values[11] = geometry.indices;
        let h = self.header;
        let fixed = [&h.format, &h.pool_id[0], &h.pool_id[1], &h.pool_id[2], &h.pool_id[3], &h.compatible];
        let more = [&h.incompatible, &h.layout_id, &h.hash_id, &h.chunk, &h.lanes, &h.indices];
        for (i, (word, value)) in fixed.into_iter().chain(more).zip(values).enumerate() {
            self.put(word, at!(format) + 8 * i, value);
        }
        self.put(&h.creation, at!(creation), created_checksum(&values));
        self.put(&h.size, at!(size), (size / geometry.chunk) as u32);
        self.put_boot(0, boot);
        self.put_boot(1, BootId::default());
        if let Some(file) = file {
            self.store_file(file);
        }
        self.put(&h.state, at!(state), self.dirty_in(0, 0).0);
        let spare = self.op.at(Off::<SpareHeader>::new(SPARE_OFF));
        let words = self.op.at(Off::<[Word; 14]>::new(0));
        for (spare, word) in spare.words.iter().zip(words).skip(1) {
            self.op.store(spare, self.op.load(word, Relaxed), Relaxed);
        }
        self.op.store(&spare.words[0], MAGIC, Relaxed);
        self.op.write_back(spare);
        self.op.persist(h);
    }

    /// The mark that makes it a pool. Opening it makes the mark durable (PL-V1).
    pub(crate) fn mark_created(&self) {
        self.op.store(&self.header.magic, MAGIC, Release);
    }

    /// Stores the boot id where the state does not look. It counts only after the death of a process, which keeps every
    /// store, or behind a sync of the backing; so there is nothing to write back.
    pub(crate) fn write_boot(&self, sound: &Sound, boot: BootId) {
        self.put_boot(sound.free_boot, boot);
        if sound.state == State::Unknown {
            // Whatever damaged the state may have damaged the other boot id too; both are made sound.
            self.put_boot(1 - sound.free_boot, boot);
        }
    }

    /// Says that the pool is open; durable on return.
    pub(crate) fn write_dirty(&self, sound: &Sound) {
        self.forget_operations();
        self.put_state(self.dirty_in(sound.free_boot, self.next_crashes()));
    }

    /// Stores the salt of the journal, where nobody looks until the state says so.
    pub(crate) fn write_journal(&self, salt: u64) {
        // The mark of a pool that was just created was stored only.
        self.op.write_back(&self.header.magic);
        for (i, (word, half)) in self.header.journal.iter().zip([salt as u32, (salt >> 32) as u32]).enumerate() {
            self.put(word, at!(journal) + 8 * i, half);
        }
        self.op.persist(&self.header.journal);
    }

    /// Forgets the journal of an earlier opening; durable on return.
    pub(crate) fn forget_journal(&self) {
        if self.header.journal.iter().any(|word| self.op.load(word, Acquire).to_bits() != 0) {
            self.header.journal.iter().for_each(|word| self.op.store(word, Stamp::from_bits(0), Relaxed));
            self.op.persist(&self.header.journal);
        }
    }

    /// Says which file it is, where nobody looks until the state says that the pool is open; durable on return. Where that cannot be told,
    /// what was said before stays.
    pub(crate) fn write_file(&self, file: Option<FileId>) {
        let Some(file) = file else { return };
        if self.store_file(file) {
            self.op.persist(&self.header.file);
        }
    }

    /// Whether anything had to be stored.
    fn store_file(&self, file: FileId) -> bool {
        let mut changed = false;
        for (i, (word, value)) in self.header.file.iter().zip([file.inode, file.birth, file.system]).enumerate() {
            let offset = at!(file) + 8 * i;
            let stamp = if value == 0 { Stamp::from_bits(0) } else { Stamp::of(number(offset), value) };
            if self.op.load(word, Relaxed) != stamp {
                self.op.store(word, stamp, Relaxed);
                changed = true;
            }
        }
        changed
    }

    /// Says that the pool is open with that journal.
    pub(crate) fn write_journaled(&self) {
        self.put_state(StateBits::new(StateBits::JOURNALED, 0, self.next_crashes()));
    }

    /// Says that the pool is closed; durable on return. The boot id no longer counts, whichever it is.
    pub(crate) fn write_clean(&self) {
        self.forget_operations();
        self.put_state(StateBits::new(StateBits::CLEAN, 0, self.crashes()));
    }

    /// Stores how many operations have ended, and when they were counted. One thread at a time.
    pub(crate) fn show_operations(&self, operations: u64, counted: u64) {
        // Whoever looks finds the same time before and after the number, or looks again.
        self.op.store(&self.header.counted, 0, Release);
        self.op.store(&self.header.operations, operations, Release);
        self.op.store(&self.header.counted, counted, Release);
    }

    /// What [`show_operations`](Self::show_operations) stored last, by whichever process.
    pub(crate) fn shown_operations(&self) -> Option<(u64, u64)> {
        let look = || {
            let counted = self.op.load(&self.header.counted, Acquire);
            let operations = self.op.load(&self.header.operations, Acquire);
            (counted != 0 && self.op.load(&self.header.counted, Acquire) == counted).then_some((operations, counted))
        };
        (0..LOOKS).find_map(|_| look())
    }

    /// Forgets the operations of an opening.
    fn forget_operations(&self) {
        if self.op.load(&self.header.counted, Relaxed) != 0 {
            self.show_operations(0, 0);
        }
    }

    /// Says how large the pool is, in bytes; durable on return.
    pub(crate) fn write_size(&self, geometry: &Geometry, size: u64) {
        let stamp = Stamp::of(number(at!(size)), (size / geometry.chunk) as u32);
        self.op.store(&self.header.size, stamp, Release);
        self.op.persist(&self.header.size); // PERSIST PL-G2<PL-G3: flush+fence
    }

    /// How often the pool was opened that had not been closed, modulo 2^16. While it is open for writing, this time is counted, too. It
    /// changes with the state, in one word.
    pub(crate) fn crashes(&self) -> u16 {
        self.state_bits().map_or(UNKNOWN_CRASHES, StateBits::crashes)
    }

    /// The same, once it says that it is open.
    fn next_crashes(&self) -> u16 {
        let was_closed = self.state_bits().is_some_and(|state| state.what() == StateBits::CLEAN);
        self.crashes().wrapping_add(u16::from(!was_closed))
    }

    fn state_bits(&self) -> Option<StateBits> {
        self.op.load(&self.header.state, Acquire).value(number(at!(state))).map(StateBits)
    }

    fn dirty_in(&self, slot: usize, crashes: u16) -> StateBits {
        let what = match self.op.medium().survives() {
            Survives::PowerFailure => StateBits::DIRTY_POWER,
            Survives::ProcessDeath => StateBits::DIRTY_PROCESS,
        };
        StateBits::new(what, slot, crashes)
    }

    fn put_state(&self, state: StateBits) {
        self.op.store(&self.header.state, Stamp::of(number(at!(state)), state.0), Release);
        self.op.persist(&self.header.state); // PERSIST PL-B2<PL-B3, PL-Z2: flush+fence
    }

    fn put_boot(&self, slot: usize, boot: BootId) {
        let (parts, _) = boot.0.as_chunks::<4>();
        for (i, (word, part)) in self.header.boot[slot].iter().zip(parts).enumerate() {
            self.put(word, boot_offset(slot, i), u32::from_le_bytes(*part));
        }
    }

    fn put(&self, word: &Word<Stamp>, offset: usize, value: u32) {
        self.op.store(word, Stamp::of(number(offset), value), Relaxed);
    }
}

/// What a reader takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Accept {
    /// What is sound.
    Sound,
    /// Also a pool that was not closed, and a state that cannot be read.
    Unclean,
    /// Also a size that is not the file's.
    Damaged,
}

/// The twelve values that creation has fixed, of the words since the magic, if all are sound.
fn created_of(words: &[u64; 14]) -> Option<[u32; 12]> {
    let mut values = [0; 12];
    let value = |at: usize| Stamp::from_bits(words[at]).value(at as u32);
    for (i, found) in values.iter_mut().enumerate() {
        *found = value(1 + i)?;
    }
    (words[0] == MAGIC && value(13)? == created_checksum(&values)).then_some(values)
}

/// The header that a file begins with, with what creation has fixed taken from the spare, if that is sound and the header is not.
pub(crate) fn with_spare(
    head: &[u8; size_of::<Header>()],
    spare: &[u8; SPARE_SIZE as usize],
) -> Option<[u8; size_of::<Header>()]> {
    let words = |bytes: &[u8]| {
        std::array::from_fn(|i| u64::from_le_bytes(bytes[8 * i..8 * i + 8].try_into().expect("8 bytes")))
    };
    if created_of(&words(head)).is_some() || created_of(&words(spare)).is_none() {
        return None;
    }
    let mut mended = *head;
    mended[..14 * 8].copy_from_slice(&spare[..14 * 8]);
    Some(mended)
}

/// The pool's id and its journal's salt, if the header that a file begins with says that it is open with a journal. It looks at
/// words that do not change while that is so, because the others may be torn until the journal is replayed.
pub(crate) fn journal_of(bytes: &[u8; size_of::<Header>()]) -> Option<(PoolId, u64)> {
    let state = Stamp::from_bits(word_of(bytes, at!(state))).value(number(at!(state))).map(StateBits)?;
    if state.what() == StateBits::JOURNALED { salt_of(bytes) } else { None }
}

/// The pool's id, and its journal's salt if that is sound, unless the header that a file begins with says that it was closed, or open without a
/// journal. For a repair.
pub(crate) fn journal_of_damaged(bytes: &[u8; size_of::<Header>()]) -> Option<(PoolId, Option<u64>)> {
    let state = Stamp::from_bits(word_of(bytes, at!(state))).value(number(at!(state))).map(StateBits);
    let values = created_of(&std::array::from_fn(|at| word_of(bytes, 8 * at)))?;
    let mut id = [0; 16];
    id.as_chunks_mut::<4>().0.iter_mut().zip(&values[1..5]).for_each(|(part, value)| *part = value.to_le_bytes());
    let is_open = state.is_none_or(|state| state.what() == StateBits::JOURNALED);
    is_open.then(|| (PoolId(id), salt_of(bytes).map(|(_, salt)| salt)))
}

fn version(format: u32, layout: u32) -> Version {
    Version::from_word(u64::from(layout) << 32 | u64::from(format))
}

/// Whether this build opens a version with that number.
fn knows_number(format: u32) -> bool {
    std::iter::once(&VERSIONS.writes).chain(VERSIONS.older).any(|version| version.number() == format)
}

/// Refuses a file that begins with the header of another version, before anything else of it is read. It looks at words that creation has
/// fixed. A header whose version cannot be read is judged later.
///
/// # Errors
/// [`Error::Format`].
pub(crate) fn refuse_other_version(name: &str, bytes: &[u8; size_of::<Header>()]) -> Result<()> {
    let value = |offset: usize| Stamp::from_bits(word_of(bytes, offset)).value(number(offset));
    let Some(format) = value(at!(format)).filter(|_| word_of(bytes, at!(magic)) == MAGIC) else { return Ok(()) };
    let found = match value(at!(layout_id)) {
        Some(layout) => version(format, layout),
        None if knows_number(format) => return Ok(()),
        None => version(format, 0),
    };
    if VERSIONS.opens(found) { Ok(()) } else { Err(Error::Format { name: name.into(), found, known: VERSIONS }) }
}

fn word_of(bytes: &[u8; size_of::<Header>()], offset: usize) -> u64 {
    u64::from_le_bytes(bytes[offset..offset + 8].try_into().expect("8 bytes"))
}

/// Whether the words that name a journal, or the file, are damaged: neither zero nor sound.
pub(crate) fn is_name_damaged(bytes: &[u8; size_of::<Header>()]) -> bool {
    let is_damaged = |offset: usize| Stamp::from_bits(word_of(bytes, offset)).value(number(offset)).is_none();
    let salt = [at!(journal), at!(journal) + 8];
    let has_salt = salt.iter().any(|offset| word_of(bytes, *offset) != 0);
    (has_salt && salt.into_iter().any(is_damaged))
        || file_offsets().into_iter().any(|offset| word_of(bytes, offset) != 0 && is_damaged(offset))
}

fn file_offsets() -> [usize; 3] {
    [0, 8, 16].map(|more| at!(file) + more)
}

/// Which file a pool was open in, if the header that a file begins with says that it was not closed. It looks at words that do not change
/// while that is so. A word that is damaged counts as one that is not known; nothing is known of a header that makes no sense.
pub(crate) fn open_in(bytes: &[u8; size_of::<Header>()]) -> FileId {
    let value = |offset: usize| Stamp::from_bits(word_of(bytes, offset)).value(number(offset));
    let state = value(at!(state)).map(|state| StateBits(state).what());
    if word_of(bytes, at!(magic)) != MAGIC || state.is_none_or(|state| state == StateBits::CLEAN) {
        return FileId::default();
    }
    let [inode, birth, system] = file_offsets().map(|offset| value(offset).unwrap_or_default());
    FileId { inode, birth, system }
}

/// The pool's id, and the salt of the journal that it was last open with, if nobody has opened it without one since.
pub(crate) fn salt_of(bytes: &[u8; size_of::<Header>()]) -> Option<(PoolId, u64)> {
    let value = |offset: usize| Stamp::from_bits(word_of(bytes, offset)).value(number(offset));
    if word_of(bytes, at!(magic)) != MAGIC {
        return None;
    }
    let mut id = [0; 16];
    for (i, part) in id.as_chunks_mut::<4>().0.iter_mut().enumerate() {
        *part = value(at!(pool_id) + 8 * i)?.to_le_bytes();
    }
    let [low, high] = [value(at!(journal))?, value(at!(journal) + 8)?];
    Some((PoolId(id), u64::from(high) << 32 | u64::from(low)))
}

/// Where the state lies in a file, and the word that says "open, and everything that was written back is there", for a file that begins
/// with a header.
pub(crate) fn replayed_state(bytes: &[u8; size_of::<Header>()]) -> (u64, [u8; 8]) {
    let before = Stamp::from_bits(word_of(bytes, at!(state))).value(number(at!(state))).map(StateBits);
    let state = StateBits::new(StateBits::DIRTY_POWER, 0, before.map_or(UNKNOWN_CRASHES, StateBits::crashes));
    (at!(state) as u64, Stamp::of(number(at!(state)), state.0).to_bits().to_le_bytes())
}

fn boot_offset(slot: usize, part: usize) -> usize {
    at!(boot) + (4 * slot + part) * size_of::<u64>()
}

fn created_checksum(values: &[u32; 12]) -> u32 {
    let bytes: Vec<u8> = values.iter().flat_map(|v| v.to_le_bytes()).collect();
    crc32c::crc32c(&bytes)
}

/// What a file of `len` bytes, too short for a header, is.
pub(crate) fn not_a_pool_by_length(name: &str, len: u64) -> Error {
    if len == 0 {
        Error::Unfinished { name: name.into() }
    } else {
        Error::NotAPool { name: name.into(), found: bytes_in_all(len) }
    }
}

/// What is found in a file that is too short.
pub(super) fn bytes_in_all(len: u64) -> String {
    if len == 1 { "1 byte in all".into() } else { format!("{len} bytes in all") }
}
