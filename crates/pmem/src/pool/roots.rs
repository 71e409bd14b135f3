//! Root entries: the named indices of a pool, each step failure-atomic.
//!
//! # Persist order
//! An entry's state is one word with a checksum over the entry's number, kind, version and name; whatever it does not name does not count.
//!
//! | edge | between | a crash before it leaves | recovery |
//! |---|---|---|---|
//! | RT-R1<RT-R2 | name, kind, version, zeroed words, the spare; `state = creating` | a free entry | nothing to do |
//! | RT-R2<RT-R3 | `state = creating`; the structure's first allocation | a free entry | nothing to do |
//! | RT-R3<RT-R4 | all that the structure's creation wrote back; `state = live` | `creating`, some space owned | frees the owner's space, then the entry |
//! | RT-N1<RT-N2 | the new name in the buffer that is not named; `state` names it | the old name | nothing to do |
//! | RT-D1<RT-D2 | `state = dropping`; the first piece of space given back | the live index, whole | nothing to do |
//! | RT-D2<RT-D3 | the owner's space given back; `state = free` | `dropping`, some space owned | frees the rest, then the entry |
//!
//! The spare, on another page, says kind, version and first name once more, and holds the last two of the structure's words. Repair makes an
//! entry of it that is damaged. A spare of a free entry says nothing: it may be that of an index that was dropped.
//!
//! Each edge is a write-back and a fence. No two words are assumed to become durable together.

use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use super::geometry::Geometry;
use super::layout::{MAX_NAME, RootEntry, SpareRoot, Stamp};
use super::moments::Moments;
use crate::epoch::Needs;
use crate::epoch::layout::Seat;
use crate::error::{Error, Result};
use crate::kind::Kind;
use crate::medium::Medium;
use crate::offset::Off;
use crate::session::Op;
use crate::space::Owner;
use crate::version::Version;
use crate::word::{Bits, Word};

/// The number of [`RootEntry::asks`] in its stamp.
const ASKS: u32 = 7;

/// Where an index is in its life. A free entry is in none of these states.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RootState {
    /// Its creation has begun and not ended.
    Creating = 1,
    /// An index.
    Live = 2,
    /// Its removal has begun and not ended.
    Dropping = 3,
}

/// The state word's 32 bits.
///
/// | bits | what |
/// |---|---|
/// | 0–7 | 1 creating, 2 live, 3 dropping |
/// | 8 | name buffer |
/// | 16–21 | length of the name in bytes |
///
/// Above them lies a CRC-32C over these bits, the entry's number, kind, version and name. A free entry is all zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct RootBits(u32);

impl RootBits {
    fn new(state: RootState, buffer: usize, name_len: usize) -> Self {
        debug_assert!(buffer < 2 && name_len <= MAX_NAME);
        RootBits(state as u32 | (buffer as u32) << 8 | (name_len as u32) << 16)
    }

    fn state(self) -> Option<RootState> {
        match self.0 & 0xff {
            1 => Some(RootState::Creating),
            2 => Some(RootState::Live),
            3 => Some(RootState::Dropping),
            _ => None,
        }
    }

    fn buffer(self) -> usize {
        (self.0 >> 8 & 1) as usize
    }

    fn name_len(self) -> usize {
        (self.0 >> 16 & 0x3f) as usize
    }

    fn seal(self, owner: Owner, kind: Kind, name: &str) -> u64 {
        let mut crc = crc32c::crc32c(&[self.0, owner.0.into()].map(u32::to_le_bytes).concat());
        crc = crc32c::crc32c_append(crc, &kind.tag);
        crc = crc32c::crc32c_append(crc, &kind.version.to_word().to_le_bytes());
        crc = crc32c::crc32c_append(crc, name.as_bytes());
        u64::from(crc) << 32 | u64::from(self.0)
    }
}

/// What an entry says, after it was found sound.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RootRecord {
    pub(crate) state: RootState,
    pub(crate) kind: Kind,
    pub(crate) name: String,
    buffer: usize,
}

/// Calls `f` with what every live index needs of the checkpoint epochs.
///
/// # Errors
/// [`Error::DamagedRoot`].
pub(crate) fn needs<M: Medium>(op: &Op<'_, M>, geometry: &Geometry, f: &mut dyn FnMut(Needs)) -> Result<()> {
    for root in RootRef::all(op, geometry) {
        if root.read()?.is_some_and(|record| record.state == RootState::Live) {
            Needs::of(op, root.seat()).into_iter().for_each(&mut *f);
        }
    }
    Ok(())
}

/// Checks that a name may be given to an index: 1 to [`MAX_NAME`] bytes.
pub(crate) fn check_name(name: &str) -> Result<()> {
    if name.is_empty() || name.len() > MAX_NAME {
        return Err(Error::BadName { name: name.into(), len: name.len(), limit: MAX_NAME });
    }
    Ok(())
}

/// One entry of a pool that is open for an operation.
#[derive(Clone, Copy)]
pub(crate) struct RootRef<'a, 's, M: Medium> {
    op: &'a Op<'s, M>,
    owner: Owner,
    entry: &'s RootEntry,
    spare: &'s SpareRoot,
}

impl<'a, 's, M: Medium> RootRef<'a, 's, M> {
    pub(crate) fn new(op: &'a Op<'s, M>, geometry: &Geometry, owner: Owner) -> Self {
        let spare = op.at(Off::new(geometry.spare_off(owner)));
        RootRef { op, owner, entry: op.at(Off::new(geometry.root_off(owner))), spare }
    }

    /// All entries of a pool.
    pub(crate) fn all(op: &'a Op<'s, M>, geometry: &'a Geometry) -> impl Iterator<Item = Self> {
        (0..geometry.indices).map(move |i| Self::new(op, geometry, Owner(i as u16)))
    }

    pub(crate) fn owner(&self) -> Owner {
        self.owner
    }

    /// The structure's own words.
    pub(crate) fn user(&self) -> &'s [Word; 8] {
        &self.entry.user
    }

    /// The structure's part in the checkpoint epochs.
    pub(crate) fn seat(&self) -> &'s Seat {
        &self.entry.seat
    }

    /// When recovery needs the index's records.
    ///
    /// # Errors
    /// The word that was found, if it was never written.
    pub(crate) fn asks(&self) -> Result<Moments, u64> {
        let word = self.op.load(&self.entry.asks, Acquire);
        let moments = Stamp::from_bits(word).value(ASKS).and_then(Moments::from_bits);
        let moments = if word == 0 { Some(Moments::NONE) } else { moments };
        moments.ok_or(word)
    }

    /// Says when recovery needs the index's records; the word is then to be written back.
    pub(crate) fn ask(&self, moments: Moments) -> &'s Word {
        let word = if moments == Moments::NONE { 0 } else { Stamp::of(ASKS, moments.bits()).to_bits() };
        self.op.store(&self.entry.asks, word, Release);
        &self.entry.asks
    }

    /// What the entry says; `None` if it is free.
    ///
    /// # Errors
    /// [`Error::DamagedRoot`].
    pub(crate) fn read(&self) -> Result<Option<RootRecord>> {
        let word = self.op.load(&self.entry.state, Acquire);
        if word == 0 {
            return Ok(None);
        }
        self.decode(word).map(Some).ok_or(Error::DamagedRoot { slot: self.owner.0, found: word })
    }

    fn decode(&self, word: u64) -> Option<RootRecord> {
        let bits = RootBits(word as u32);
        let state = bits.state()?;
        let version = Version::from_word(self.op.load(&self.entry.version, Relaxed));
        let kind = Kind { tag: self.op.load(&self.entry.kind, Relaxed).to_le_bytes(), version };
        let mut name = vec![0; bits.name_len()];
        self.op.load_bytes(&self.entry.names[bits.buffer()], &mut name);
        let name = String::from_utf8(name).ok()?;
        (bits.seal(self.owner, kind, &name) == word).then_some(RootRecord { state, kind, name, buffer: bits.buffer() })
    }

    /// Starts writing the entry back as it is visible.
    pub(crate) fn write_back(&self) {
        self.op.write_back(self.entry);
    }

    /// Turns a free entry into one that is being created.
    pub(crate) fn begin(&self, kind: Kind, name: &str) -> RootRecord {
        self.op.store(&self.entry.kind, u64::from_le_bytes(kind.tag), Relaxed);
        self.op.store(&self.entry.version, kind.version.to_word(), Relaxed);
        self.op.store_bytes(&self.entry.names[0], name.as_bytes());
        let Seat { opened, swept, target, cursor } = &self.entry.seat;
        let own = [opened, swept, target, cursor, &self.entry.asks];
        for word in self.entry.user.iter().chain(own) {
            self.op.store(word, 0, Relaxed);
        }
        self.write_spare(kind, name);
        self.op.write_back(self.entry);
        self.op.fence(); // PERSIST RT-R1<RT-R2: flush+fence
        let record = RootRecord { state: RootState::Creating, kind, name: name.into(), buffer: 0 };
        self.put(&record); // PERSIST RT-R2<RT-R3: flush+fence
        record
    }

    /// Makes an index live. The fence before covers what the caller's session has written back (RT-R3).
    pub(crate) fn make_live(&self, record: RootRecord) -> RootRecord {
        self.op.drain(); // PERSIST RT-R3<RT-R4: flush+fence
        let record = RootRecord { state: RootState::Live, ..record };
        self.put(&record);
        record
    }

    /// Gives an index another name.
    pub(crate) fn rename(&self, record: RootRecord, name: &str) -> RootRecord {
        let buffer = 1 - record.buffer;
        let words = &self.entry.names[buffer];
        self.op.store_bytes(words, name.as_bytes());
        self.op.persist(words); // PERSIST RT-N1<RT-N2: flush+fence
        let record = RootRecord { name: name.into(), buffer, ..record };
        self.put(&record);
        record
    }

    /// Marks an index as going away.
    pub(crate) fn begin_drop(&self, record: RootRecord) {
        self.put(&RootRecord { state: RootState::Dropping, ..record }); // PERSIST RT-D1<RT-D2: flush+fence
    }

    /// Makes the entry free. Everything that gave the owner's space back must be durable (RT-D2).
    pub(crate) fn free(&self) {
        self.op.store(&self.entry.state, 0, Release);
        self.op.persist(&self.entry.state);
    }

    fn write_spare(&self, kind: Kind, name: &str) {
        self.op.store(&self.spare.seal, self.spare_seal(kind, name), Relaxed);
        self.op.store(&self.spare.kind, u64::from_le_bytes(kind.tag), Relaxed);
        self.op.store(&self.spare.version, kind.version.to_word(), Relaxed);
        self.op.store_bytes(&self.spare.name, name.as_bytes());
        self.store_kept([0; 2]);
        self.op.write_back(self.spare);
    }

    fn store_kept(&self, words: [u64; 2]) {
        self.spare.kept.iter().zip(words).for_each(|(word, bits)| self.op.store(word, bits, Relaxed));
        self.op.store(&self.spare.kept_seal, self.kept_seal(words), Relaxed);
    }

    fn kept_seal(&self, words: [u64; 2]) -> u64 {
        let bytes = [self.owner.0.into(), words[0], words[1]].map(u64::to_le_bytes).concat();
        1 << 32 | u64::from(crc32c::crc32c(&bytes))
    }

    /// Starts writing the last two of the structure's words into the spare, as they are visible.
    pub(crate) fn keep(&self) {
        let [.., a, b] = self.entry.user.each_ref().map(|word| self.op.load(word, Acquire));
        self.store_kept([a, b]);
        // One line has all three words.
        self.op.write_back(&self.spare.kept_seal);
    }

    /// What was kept of them, if that is sound.
    pub(crate) fn kept(&self) -> Option<[u64; 2]> {
        let words = self.spare.kept.each_ref().map(|word| self.op.load(word, Relaxed));
        (self.op.load(&self.spare.kept_seal, Relaxed) == self.kept_seal(words)).then_some(words)
    }

    fn spare_seal(&self, kind: Kind, name: &str) -> u64 {
        let len = name.len() as u32;
        let mut crc = crc32c::crc32c(&[u32::from(self.owner.0), len].map(u32::to_le_bytes).concat());
        crc = crc32c::crc32c_append(crc, &kind.tag);
        crc = crc32c::crc32c_append(crc, &kind.version.to_word().to_le_bytes());
        crc = crc32c::crc32c_append(crc, name.as_bytes());
        u64::from(crc) << 32 | u64::from(len)
    }

    /// Kind and name by the spare, if it is sound.
    pub(crate) fn spare(&self) -> Option<(Kind, String)> {
        let seal = self.op.load(&self.spare.seal, Relaxed);
        let len = usize::try_from(seal & u64::from(u32::MAX)).ok().filter(|len| (1..=MAX_NAME).contains(len))?;
        let version = Version::from_word(self.op.load(&self.spare.version, Relaxed));
        let kind = Kind { tag: self.op.load(&self.spare.kind, Relaxed).to_le_bytes(), version };
        let mut name = vec![0; len];
        self.op.load_bytes(&self.spare.name, &mut name);
        let name = String::from_utf8(name).ok()?;
        (self.spare_seal(kind, &name) == seal).then_some((kind, name))
    }

    /// Makes an entry that is damaged a live one again, by its spare. What else a damaged line holds is forgotten. Returns the index's first
    /// name; none if the spare is damaged, too. For a pool that is only read.
    pub(crate) fn take_spare(&self) -> Option<String> {
        let (kind, name) = self.spare()?;
        let (tag, version) = (u64::from_le_bytes(kind.tag), kind.version.to_word());
        if self.op.load(&self.entry.kind, Relaxed) != tag || self.op.load(&self.entry.version, Relaxed) != version {
            let Seat { opened, swept, target, cursor } = &self.entry.seat;
            [opened, swept, target, cursor, &self.entry.asks].iter().for_each(|word| self.op.store(*word, 0, Relaxed));
        }
        self.op.store(&self.entry.kind, tag, Relaxed);
        self.op.store(&self.entry.version, version, Relaxed);
        self.op.store_bytes(&self.entry.names[0], name.as_bytes());
        if let Some(words) = self.kept() {
            self.entry.user[6..].iter().zip(words).for_each(|(word, bits)| self.op.store(word, bits, Relaxed));
        }
        self.put(&RootRecord { state: RootState::Live, kind, name: name.clone(), buffer: 0 });
        Some(name)
    }

    /// Makes a damaged entry a free one, of a pool that is only read.
    pub(crate) fn forget(&self) {
        self.op.store(&self.entry.state, 0, Release);
    }

    fn put(&self, record: &RootRecord) {
        let bits = RootBits::new(record.state, record.buffer, record.name.len());
        self.op.store(&self.entry.state, bits.seal(self.owner, record.kind, &record.name), Release);
        self.op.persist(&self.entry.state);
    }
}
