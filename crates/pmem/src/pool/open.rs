//! Creating, opening and recovering a pool. The edges C, B, Z and G are those of [`header`](super::header).

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use super::Pool;
use super::asking::asking;
use super::file::PoolFile;
use super::geometry::{EPOCHS_OFF, Geometry, HEADER_SIZE, SPARE_OFF, SPARE_SIZE};
use super::header::{
    Accept, HeaderRef, Sound, State, bytes_in_all, journal_of, journal_of_damaged, not_a_pool_by_length,
    refuse_other_version, replayed_state, salt_of, with_spare,
};
use super::layout::{Header, MAGIC, MAGIC_CREATING};
use super::options::PoolOptions;
use super::pages::Audit;
use super::recovery::Recovery;
use super::roots::{RootRef, RootState};
use super::salvage::Table;
use crate::backing::{Access, Backing};
use crate::error::{Error, Result};
use crate::ids::{BootId, PoolId};
use crate::journal::{
    Begin, BeginSums, Journal, JournalPlace, Leftovers, Level, NotesTicket, Of, PAGE, Replay, Sums, layout,
    refuse_foreign,
};
use crate::medium::{Medium, Survives};
use crate::offset::Off;
use crate::session::Op;
use crate::space::Space;
use crate::word::Word;

/// What a backing holds, as far as creation is concerned.
enum Content {
    /// No byte, only zeroes, or what an interrupted creation left.
    Nothing,
    Pool,
    /// Something else, and how one can tell.
    Foreign(String),
}

/// Looks at the raw bytes, because a foreign file is not ours to map.
fn content(backing: &dyn Backing) -> Result<Content> {
    let len = backing.len()?;
    let mut word = [0; 8];
    if len >= 8 {
        backing.read(0, &mut word)?;
    }
    Ok(match u64::from_le_bytes(word) {
        MAGIC if len >= HEADER_SIZE => Content::Pool,
        MAGIC_CREATING => Content::Nothing,
        0 if is_zero(backing, len)? => Content::Nothing,
        _ if len < 8 => Content::Foreign(bytes_in_all(len)),
        found => Content::Foreign(format!("{found:#018x} as its first word")),
    })
}

/// Whether a pool may be created there.
pub(super) fn holds_nothing(backing: &dyn Backing) -> Result<bool> {
    Ok(matches!(content(backing)?, Content::Nothing))
}

/// Whether a backing holds nothing but zeroes, and perhaps a spare header. Creation leaves at most a page of zeroes before its mark, and the
/// spare of an attempt before it; but an image that was taken elsewhere, or a file that was allocated beforehand, can be longer.
fn is_zero(backing: &dyn Backing, len: u64) -> Result<bool> {
    let mut block = vec![0; (1 << 20).min(len as usize)];
    let mut at = 0;
    while at < len {
        let count = block.len().min((len - at) as usize);
        backing.read(at, &mut block[..count])?;
        if at == 0 && count > SPARE_OFF as usize {
            let end = count.min((SPARE_OFF + SPARE_SIZE) as usize);
            block[SPARE_OFF as usize..end].fill(0);
        }
        if block[..count].iter().any(|b| *b != 0) {
            return Ok(false);
        }
        at += count as u64;
    }
    Ok(true)
}

/// What the journal of a pool takes.
#[derive(Clone, Debug, Default)]
pub(super) struct Journals {
    /// Where it lies, also where there is to be none: one that a crash has left is replayed.
    pub(super) place: Option<Arc<dyn JournalPlace>>,
    /// Where its medium notes lines; none if it is to have no journal.
    pub(super) notes: Option<Arc<NotesTicket>>,
    pub(super) level: Option<Level>,
    pub(super) segment: u64,
    pub(super) limit: u64,
    /// Bytes that written pages may take in memory.
    pub(super) written_limit: u64,
    /// How long a pass of the scrub takes; zero: there is none.
    pub(super) scrub_every: Duration,
}

impl Journals {
    fn access(&self) -> Access {
        if self.notes.is_some() { Access::Journaled } else { Access::Shared }
    }

    /// Begins the journal of a pool whose file holds everything, and says so in its header.
    /// `sums` are the checksums of its pages, and the salt that they go with; if there are none, `written` bytes may have been written to.
    fn begin<M: Medium>(
        &self,
        file: &mut PoolFile<M>,
        id: PoolId,
        sums: Option<(Sums, u64)>,
        written: u64,
    ) -> Result<()> {
        let (Some(place), Some(notes), Some(level)) = (&self.place, &self.notes, self.level) else { return Ok(()) };
        let (backing, notes) = (Arc::clone(&file.backing), Arc::clone(notes));
        let sums = place.sums().map(|place| BeginSums { place, there: sums, pages: written.div_ceil(PAGE) });
        let (name, file_of_journal) = (file.name.clone(), place.create()?);
        refuse_foreign(&*file_of_journal, layout::MAGIC)?;
        let Journals { segment, limit, written_limit, scrub_every, .. } = *self;
        let begin = Begin {
            name,
            file: file_of_journal,
            backing,
            notes,
            level,
            segment,
            limit,
            sums,
            written_limit,
            scrub_every,
        };
        let journal = Journal::begin(begin, id)?;
        file.alone(|file, op| {
            let header = HeaderRef::new(op, &file.name);
            header.write_journal(journal.salt());
            header.write_file(file.backing.identity());
            file.settle(op)?; // PERSIST JN-J2<JN-J3: sync
            header.write_journaled();
            file.settle(op) // PERSIST JN-J3<JN-A1: sync
        })?;
        // Zero is no number of a commit.
        file.mapping.next_commit();
        let _ = file.journal.set(Arc::new(journal));
        Ok(())
    }

    /// What the journal says that the file does not, if its header says that it was open with one.
    fn replay(&self, backing: &dyn Backing, read_only: bool, accept_unclean: bool) -> Result<Option<Replay>> {
        let mut head = [0; size_of::<Header>()];
        backing.read(0, &mut head)?;
        let Some((id, salt)) = journal_of(&head) else { return Ok(None) };
        let name = backing.describe();
        let read = match &self.place {
            Some(place) => {
                let of = Of { name: &name, pool: id, salt, len: backing.len()? };
                Replay::read(&**place, read_only, of)
            }
            None => Err(Error::MissingJournal { name, journal: "(none was given)".into() }),
        };
        match read {
            Err(Error::MissingJournal { .. } | Error::ForeignJournal { .. } | Error::DamagedJournal { .. })
                if accept_unclean =>
            {
                Ok(None)
            }
            read => read.map(Some),
        }
    }

    /// The same for a repair, which takes what there is of a journal that cannot be replayed, in its own memory. Returns what is wrong, too.
    fn replay_for_repair(
        &self,
        backing: &dyn Backing,
        head: &[u8; size_of::<Header>()],
    ) -> Result<(Option<Replay>, Option<Leftovers>)> {
        let Some((id, salt)) = journal_of_damaged(head) else { return Ok((None, None)) };
        let Some(place) = &self.place else { return Ok((None, None)) };
        let (name, len) = (backing.describe(), backing.len()?);
        match salt.map(|salt| Replay::read(&**place, true, Of { name: &name, pool: id, salt, len })) {
            Some(Ok(replay)) => return Ok((Some(replay), None)),
            // It is not damaged. What it holds is lost to a repair by this build.
            Some(Err(error @ Error::OtherVersion { .. })) => return Err(error),
            _ => {}
        }
        Ok((None, Some(Leftovers::read(&**place, id, salt, len)?)))
    }

    /// Refuses to begin a journal where one of another pool than `own` lies, with commits that the file of that pool may not have.
    fn refuse_stray(&self, name: &str, own: Option<PoolId>) -> Result<()> {
        match (&self.place, &self.notes) {
            (Some(place), Some(_)) => Replay::refuse_stray(&**place, name, own),
            _ => Ok(()),
        }
    }

    /// The checksums that go with a pool whose journal has that salt, and the salt, or why there are none.
    fn sums(&self, named: Option<(PoolId, u64)>, read_only: bool) -> Result<Result<(Sums, u64), String>> {
        let Some((id, salt)) = named else {
            return Ok(Err("it was last open without a journal".into()));
        };
        let Some(place) = self.place.as_ref().and_then(|place| place.sums()) else {
            return Ok(Err("no place for them was given".into()));
        };
        Ok(Sums::open(&*place, read_only, id, salt)?.map(|sums| (sums, salt)))
    }
}

pub(super) fn create<M: Medium>(
    options: &PoolOptions,
    backing: Arc<dyn Backing>,
    medium: M,
    journals: &Journals,
) -> Result<Pool<M>> {
    let name = backing.describe();
    if options.read_only {
        return Err(Error::ReadOnly { name });
    }
    if !backing.is_writable() {
        return Err(Error::ReadOnlyFile { name });
    }
    let geometry = options.checked_geometry()?;
    let sizes = options.sizes(backing.limit())?;
    let id = options.new_pool_id()?;
    options.lock(&*backing, Access::Shared)?;
    match content(&*backing)? {
        Content::Nothing => {
            // A creation that was interrupted has left none with commits.
            journals.refuse_stray(&name, None)?;
            backing.reset()?;
        }
        Content::Pool => return Err(Error::AlreadyExists { name }),
        Content::Foreign(found) => return Err(Error::NotAPool { name, found }),
    }
    let journals = journals.clone();
    let birth = Birth { journals, id, geometry, initial: sizes.initial, max: sizes.max, boot: options.current_boot() };
    let pool = birth.happen(Arc::clone(&backing), medium);
    if pool.is_err() {
        // Leaves it as empty as it was; should this fail too, the mark says that the rest does not count.
        let _ = backing.reset();
    }
    pool
}

/// Everything that is decided before a pool is created.
struct Birth {
    journals: Journals,
    id: PoolId,
    geometry: Geometry,
    initial: u64,
    max: u64,
    boot: BootId,
}

impl Birth {
    fn happen<M: Medium>(self, backing: Arc<dyn Backing>, medium: M) -> Result<Pool<M>> {
        // First a page for the mark, so that at no time a long file lies around that does not say what it is.
        backing.allocate(HEADER_SIZE)?; // PERSIST PL-C0<PL-C1: the backing syncs
        backing.sync_name()?; // PERSIST PL-N<PL-C3: sync of the folder
        let access = self.journals.access();
        let mut file = PoolFile::map(backing, medium, access, HEADER_SIZE, self.max, self.geometry)?;
        file.notes.clone_from(&self.journals.notes);
        file.alone(|file, op| -> Result<()> {
            HeaderRef::new(op, &file.name).mark_creating(); // PERSIST PL-C1<PL-C2: flush+fence
            file.settle(op)?;
            file.backing.allocate(self.initial)?;
            file.extend(HEADER_SIZE, self.initial)?;
            file.mapping.set_len(self.initial);
            // Lanes, roots and space are all zero, which is their empty state.
            HeaderRef::new(op, &file.name).fill(
                self.id,
                &self.geometry,
                self.initial,
                self.boot,
                file.backing.identity(),
            ); // PERSIST PL-C2<PL-C3: flush+fence
            file.settle(op)?;
            HeaderRef::new(op, &file.name).mark_created();
            file.settle(op)
        })?;
        self.journals.begin(&mut file, self.id, None, 0)?;
        start(file, self.id)
    }
}

pub(super) fn open<M: Medium>(
    options: &PoolOptions,
    backing: Arc<dyn Backing>,
    medium: M,
    journals: &Journals,
) -> Result<Unrecovered<M>> {
    let access = if options.read_only { Access::Private } else { journals.access() };
    let name = backing.describe();
    if !options.read_only && !backing.is_writable() {
        return Err(Error::ReadOnlyFile { name });
    }
    options.lock(&*backing, access)?;
    let len = backing.len()?;
    if len < HEADER_SIZE {
        return Err(not_a_pool_by_length(&name, len));
    }
    let mut head = [0; size_of::<Header>()];
    backing.read(0, &mut head)?;
    // Before its journal is looked at, which may be of another version, too.
    refuse_other_version(&name, &head)?;
    let mended = if options.for_repair { mended_head(&*backing, len, &head)? } else { None };
    head = mended.unwrap_or(head);
    refuse_other_version(&name, &head)?;
    let (mut replay, leftovers) = if options.for_repair {
        journals.replay_for_repair(&*backing, &head)?
    } else {
        (journals.replay(&*backing, options.read_only, options.accept_unclean)?, None)
    };
    let of_leftovers = || Some((journal_of_damaged(&head)?.0, leftovers.as_ref()?.salt?));
    let mut sums = journals.sums(salt_of(&head).or_else(of_leftovers), options.read_only)?;
    if journal_of(&head).is_some() && replay.is_none() && leftovers.is_none() {
        sums = Err("the journal that goes with them could not be replayed".into());
    }
    let copied = options.refuse_copy(&*backing, &head);
    if replay.is_some() {
        copied?;
    }
    if let Some(replay) = replay.take_if(|_| !options.read_only) {
        replay.apply(&*backing, replayed_state(&head), sums.as_ref().ok().map(|(sums, _)| sums))?;
    }
    let mut file = PoolFile::map(backing, medium, access, len, options.max_for(len), Geometry::default())?;
    file.notes.clone_from(&journals.notes);
    if let Some(replay) = &replay {
        // It is only read: the journal is replayed in this process's memory.
        file.alone(|_, op| replay.images().store(op));
    }
    if let Some(leftovers) = &leftovers {
        let sums = sums.as_ref().ok().map(|(sums, _)| sums);
        file.alone(|file, op| leftovers.store(op, &*file.backing, sums))?;
    }
    if mended.is_some() {
        // Its own line 2 is as it was found, or as the journal says.
        file.alone(|_, op| HeaderRef::store_created(op, &head));
    }
    let accept = match (options.for_repair, options.accept_unclean) {
        (true, _) => Accept::Damaged,
        (_, true) => Accept::Unclean,
        (_, false) => Accept::Sound,
    };
    let sound = file.alone(|file, op| HeaderRef::new(op, &file.name).read(len, accept))?;
    if replay.is_none() && !options.accept_unclean {
        journals.refuse_stray(&name, Some(sound.id))?;
    }
    let boot = options.current_boot();
    if !options.accept_unclean && lost_power(&sound, boot) {
        return Err(Error::NotPowerSafe { name });
    }
    options.refuse_copy(&*file.backing, &head)?;
    file.geometry = sound.geometry;
    file.was_closed = sound.state == State::Clean;
    file.mapping.set_len(sound.size);
    // What lies behind may not be durable, and no sync would make it so: see `growth`.
    file.doubtful.store(len > sound.size, Ordering::Release);
    if options.for_repair {
        let of_spare = mended.map(|_| "the header was damaged: what it says comes from its spare".to_owned());
        // What was accepted above.
        let said = file.alone(|file, op| HeaderRef::new(op, &file.name).read(len, Accept::Unclean).err());
        let of_journal = leftovers.as_ref().map(|leftovers| leftovers.said.clone());
        let of_header = said.map(|error| error.to_string());
        file.mended = Some(of_spare.into_iter().chain(of_header).chain(of_journal).collect());
    }
    if options.read_only {
        let _ = file.audit.set(Audit::new(sums.map(|(sums, _)| sums), replay, leftovers, &head));
        return Ok(Unrecovered { file, sound, boot, journals: journals.clone(), sums: None });
    }
    Ok(Unrecovered { file, sound, boot, journals: journals.clone(), sums: sums.ok() })
}

/// The header, from its spare, if that is sound and it is not.
fn mended_head(
    backing: &dyn Backing,
    len: u64,
    head: &[u8; size_of::<Header>()],
) -> Result<Option<[u8; size_of::<Header>()]>> {
    let mut spare = [0; SPARE_SIZE as usize];
    if len < SPARE_OFF + SPARE_SIZE {
        return Ok(None);
    }
    backing.read(SPARE_OFF, &mut spare)?;
    Ok(with_spare(head, &spare))
}

/// Whether stores may be missing: it was not closed, by someone whose medium survives the death of the process only, and
/// the system has been started since.
fn lost_power(sound: &Sound, now: BootId) -> bool {
    match sound.state {
        State::Dirty { boot, survives: Survives::ProcessDeath } => !boot.is_same_boot(now),
        _ => false,
    }
}

/// A pool whose header is sound, before anything was written to it.
#[derive(Debug)]
#[must_use = "a pool that is not recovered can do nothing"]
pub struct Unrecovered<M: Medium> {
    file: PoolFile<M>,
    sound: Sound,
    boot: BootId,
    journals: Journals,
    /// The checksums of the pages, and the salt that they go with.
    sums: Option<(Sums, u64)>,
}

impl<M: Medium> Unrecovered<M> {
    /// Whether it was closed.
    pub fn state(&self) -> State {
        self.sound.state
    }

    /// Its identity.
    pub fn id(&self) -> PoolId {
        self.sound.id
    }

    /// Its geometry.
    pub fn geometry(&self) -> Geometry {
        self.sound.geometry
    }

    /// Its size in bytes.
    pub fn size(&self) -> u64 {
        self.sound.size
    }

    /// Recovers it: marks it as open, settles what was under way in its space, and gives back what belongs to indices
    /// whose creation or removal was interrupted. A crash in it is as a crash before it. `O(chunks + indices)`.
    ///
    /// # Errors
    /// [`Error::DiskFull`] if the file has holes and there is no room to fill them; [`Error::Io`].
    pub fn recover(mut self) -> Result<Pool<M>> {
        if self.file.refuse_read_only().is_ok() {
            self.mark_open()?;
        }
        start(self.file, self.sound.id)
    }

    /// As [`recover`](Self::recover), and recovers the records of logs: see [`Pool::recover_logs`].
    ///
    /// # Errors
    /// As both.
    pub fn recover_with(self, recoveries: &[&dyn Recovery<M>]) -> Result<Pool<M>> {
        let pool = self.recover()?;
        pool.recover_logs(recoveries)?;
        Ok(pool)
    }

    fn mark_open(&mut self) -> Result<()> {
        // No store may hit a hole of a full disk, also in a file that was copied sparsely.
        self.file.backing.allocate(self.sound.size)?;
        if !matches!(self.sound.state, State::Clean | State::Dirty { survives: Survives::PowerFailure, .. }) {
            // What an earlier process left in the page cache must be durable before this one calls itself power-safe.
            self.file.sync()?;
        }
        if self.journals.notes.is_some() {
            let sums = self.sums.take();
            return self.journals.begin(&mut self.file, self.sound.id, sums, self.sound.size);
        }
        let (sound, boot) = (&self.sound, self.boot);
        self.file.alone(|file, op| {
            let header = HeaderRef::new(op, &file.name);
            // From now on stores go past the checksums of the pages.
            header.forget_journal();
            header.write_boot(sound, boot);
            header.write_file(file.backing.identity()); // PERSIST PL-I1<PL-B2: flush+fence
            file.settle(op)?; // PERSIST PL-B1<PL-B2: sync; where there is none, the state is stored with `Release`
            header.write_dirty(sound); // PERSIST PL-B2<PL-B3: flush+fence
            file.settle(op)
        })
    }
}

/// Makes a pool of a file whose header says that it is open.
fn start<M: Medium>(file: PoolFile<M>, id: PoolId) -> Result<Pool<M>> {
    let file = Arc::new(file);
    let geometry = file.geometry;
    let mut session = file.mapping.session()?;
    let op = session.enter_past_gate();
    settle_visible(&op, &file.geometry); // PERSIST PL-V1<PL-V2: flush+fence, with the first fence of the space's recovery
    let grow = Box::new(Arc::clone(&file));
    let space = Space::recover(&op, file.mapping.clone(), file.geometry.heap(), grow)?;
    let crashes = HeaderRef::new(&op, &file.name).crashes();
    let table = if file.was_closed { Table::read(&op, &space, crashes) } else { Table::Unknown };
    let mut mended = file.mended.clone();
    if let Some(mended) = &mut mended {
        mended.extend(take_spares(&op, &geometry, &space));
        if crate::epoch::mend(&op, Off::new(EPOCHS_OFF)) {
            let what =
                "the record of the checkpoint epochs was damaged: parts of what a crash had interrupted may be found";
            mended.push(what.into());
        }
    }
    finish_roots(&op, &geometry, &space);
    let asking = asking(&op, &file.geometry);
    drop(op);
    Ok(Pool::new(file, id, space, asking, table, mended.unwrap_or_default()))
}

/// Starts writing back the header's mark and the root entries as they are visible. After the mere death of a process its
/// last stores may not be durable, and from now on others build on them.
fn settle_visible<M: Medium>(op: &Op<'_, M>, geometry: &Geometry) {
    // Of the header only the mark may not be: the rest was durable before it, or shares a line with the state, which
    // opening has just made durable.
    op.write_back(op.at(Off::<Word>::NULL));
    for root in RootRef::all(op, geometry) {
        root.write_back();
    }
}

/// Makes root entries of their spares where they are damaged: they cannot be read, or are free while space belongs to them. Says which. An entry
/// that cannot be read and has no space is a free one: nothing is lost with it.
fn take_spares<M: Medium>(op: &Op<'_, M>, geometry: &Geometry, space: &Space<M>) -> Vec<String> {
    let (mut said, owners) = (Vec::new(), space.owners(op));
    for root in RootRef::all(op, geometry) {
        let what = match (root.read(), owners.contains(&root.owner())) {
            (Ok(Some(_)), _) | (Ok(None), false) => continue,
            (Err(_), false) => {
                root.forget();
                continue;
            }
            (Ok(None), true) => "wiped out",
            (Err(_), true) => "damaged",
        };
        if let Some(name) = root.take_spare() {
            let slot = root.owner().0;
            said.push(format!(
                "root entry {slot} was {what}, and its spare was taken: the index has its first name, {name}"
            ));
        }
    }
    said
}

/// Ends what creations and removals of indices have begun.
fn finish_roots<M: Medium>(op: &Op<'_, M>, geometry: &Geometry, space: &Space<M>) {
    for root in RootRef::all(op, geometry) {
        // A damaged entry stays as it is: nobody can say whose space is not needed. Looking up a name will tell.
        let Ok(Some(record)) = root.read() else { continue };
        if matches!(record.state, RootState::Creating | RootState::Dropping) {
            space.free_owner(op, root.owner());
            root.free(); // PERSIST RT-D2<RT-D3: flush+fence, by `free_owner`
        }
    }
}
