//! The file system, as a program sees it.

use std::io;
use std::panic::Location;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::cell::Decisions;
use super::fault::{Call, Fault, Faults};
use super::story::path_of;
use super::world::{ROOT, World};

pub(super) type At = &'static Location<'static>;

/// A sync that is left out, or made where there is none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Change {
    /// Syncs made here do nothing.
    Drop(At),
    /// The n-th sync of the operations does nothing, or that of each recovery.
    DropNumber { recovering: bool, number: u64 },
    /// After a step that was made here, the file or the directory that it changed is synced.
    SyncAfter(At),
}

/// A sync that was asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Asked {
    pub(super) at: At,
    pub(super) recovering: bool,
    pub(super) number: u64,
    /// Of which file or directory.
    pub(super) path: String,
}

/// Something that was done to the file system.
#[derive(Clone, Debug)]
pub(super) struct Step {
    pub(super) what: String,
    pub(super) at: At,
    pub(super) stage: u32,
    /// The inode that a sync has to be asked for.
    pub(super) inode: u32,
}

/// What a crash is taken of.
#[derive(Clone, Debug)]
pub(super) struct Snapshot {
    pub(super) world: World,
    pub(super) stage: u32,
    /// Decisions so far.
    pub(super) made: usize,
    /// Something has changed since the last one.
    pub(super) changed: bool,
    /// What comes next, if it is a sync; nothing, if a stage has just ended.
    pub(super) before: Option<At>,
    /// For the death of the process, not for a power failure.
    pub(super) death: bool,
}

#[derive(Debug)]
pub(super) struct Shared {
    pub(super) world: World,
    pub(super) decisions: Decisions,
    /// Handles of an earlier process do nothing.
    pub(super) generation: u32,
    pub(super) stage: u32,
    pub(super) steps: u32,
    /// The steps, if they are to be told.
    pub(super) trace: Option<Vec<Step>>,
    pub(super) snapshots: Vec<Snapshot>,
    pub(super) wants_power_failures: bool,
    pub(super) wants_deaths: bool,
    pub(super) changed: bool,
    pub(super) faults: Faults,
    pub(super) change: Option<Change>,
    /// A process recovers what an earlier one has left.
    pub(super) recovering: bool,
    /// Syncs that this process has asked for.
    pub(super) asked: u64,
    /// All different ones, if somebody asks.
    pub(super) syncs: Option<Vec<Asked>>,
    /// Files that are locked alone, and those that are locked together with others, once for each handle.
    locked: Vec<(u32, bool)>,
}

impl Shared {
    fn new(world: World) -> Self {
        Shared {
            world,
            decisions: Decisions::default(),
            generation: 0,
            stage: 0,
            steps: 0,
            trace: None,
            snapshots: Vec::new(),
            wants_power_failures: false,
            wants_deaths: false,
            changed: false,
            faults: Faults::default(),
            change: None,
            recovering: false,
            asked: 0,
            syncs: None,
            locked: Vec::new(),
        }
    }

    /// A new process finds the world.
    pub(super) fn restart(&mut self, world: World) {
        self.world = world;
        self.generation += 1;
        (self.stage, self.steps, self.changed, self.asked) = (0, 0, false, 0);
        self.snapshots.clear();
        self.locked.clear();
        (self.wants_power_failures, self.wants_deaths) = (false, false);
    }

    pub(super) fn snapshot(&mut self, before: Option<At>, death: bool) {
        if self.faults.one.is_some_and(|(call, _)| self.faults.all < call) {
            // Up to the fault nothing is new.
            return;
        }
        let (world, made) = (self.world.clone(), self.decisions.made());
        let (stage, changed) = (self.stage, self.changed);
        self.snapshots.push(Snapshot { world, stage, made, changed, before, death });
        if !death {
            self.changed = false;
        }
    }

    /// Ends a stage: here, too, the power may fail.
    pub(super) fn end_stage(&mut self, stage: u32) {
        self.stage = stage;
        if self.wants_power_failures {
            self.snapshot(None, false);
        }
    }

    fn step(&mut self, at: At, inode: u32, what: impl FnOnce() -> String) -> u32 {
        let stage = self.stage;
        if let Some(trace) = &mut self.trace {
            trace.push(Step { what: what(), at, stage, inode });
        }
        self.steps += 1;
        self.changed = true;
        self.steps - 1
    }

    /// After a step: the process may die, and a sync may be on trial.
    fn stepped(&mut self, at: At, inode: u32) {
        if self.wants_deaths {
            self.snapshot(None, true);
        }
        if self.change == Some(Change::SyncAfter(at)) {
            self.before_sync(at);
            self.sync(inode, true);
        }
    }

    fn before_sync(&mut self, at: At) {
        if self.wants_power_failures && self.changed {
            self.snapshot(Some(at), false);
        }
    }

    fn sync(&mut self, inode: u32, all: bool) {
        match self.world.inodes[inode as usize].is_directory {
            true => self.world.sync_directory(inode),
            false => self.world.sync_file(inode, all),
        }
    }

    fn asked_to_sync(&mut self, call: Call, at: At, inode: u32, all: bool) -> io::Result<()> {
        self.asked += 1;
        if let Some(syncs) = &mut self.syncs {
            let path = path_of(&self.world, inode);
            let asked = Asked { at, recovering: self.recovering, number: self.asked, path };
            if !syncs.contains(&asked) {
                syncs.push(asked);
            }
        }
        self.before_sync(at);
        let fault = self.faults.hit(call);
        let this = Change::DropNumber { recovering: self.recovering, number: self.asked };
        if self.change == Some(Change::Drop(at)) || self.change == Some(this) {
            return Ok(());
        }
        match fault {
            None => {
                self.sync(inode, all);
                Ok(())
            }
            Some(fault) => {
                self.world.fail_sync(inode);
                self.changed = true;
                if self.wants_deaths {
                    self.snapshot(None, true);
                }
                Err(fault.error())
            }
        }
    }

    fn refuse(&mut self, call: Call) -> io::Result<()> {
        self.faults.hit(call).map_or(Ok(()), |fault| Err(fault.error()))
    }

    fn entry(&mut self, directory: u32, name: &str) -> Option<u32> {
        let name = self.world.number_of(name);
        self.world.entry(&mut self.decisions, directory, name)
    }

    fn set_entry(&mut self, directory: u32, name: &str, entry: Option<u32>, step: u32) {
        let name = self.world.number_of(name);
        self.world.set_entry(directory, name, entry, step);
    }

    /// The directory that a path ends in, and the last name.
    fn parent<'p>(&mut self, path: &'p Path) -> io::Result<(u32, &'p str)> {
        let text = path.to_str().ok_or(io::ErrorKind::InvalidInput)?;
        let mut names = text.split('/').filter(|name| !matches!(*name, "" | ".")).peekable();
        let mut at = ROOT;
        while let Some(name) = names.next() {
            if names.peek().is_none() {
                return Ok((at, name));
            }
            at = self.directory(at, name)?;
        }
        Ok((at, "."))
    }

    fn directory(&mut self, within: u32, name: &str) -> io::Result<u32> {
        let found = if name == "." { Some(within) } else { self.entry(within, name) };
        let found = found.ok_or(io::ErrorKind::NotFound)?;
        match self.world.inodes[found as usize].is_directory {
            true => Ok(found),
            false => Err(io::ErrorKind::NotADirectory.into()),
        }
    }

    fn directory_at(&mut self, path: &Path) -> io::Result<u32> {
        let (parent, name) = self.parent(path)?;
        self.directory(parent, name)
    }

    fn file_at(&mut self, path: &Path) -> io::Result<u32> {
        let (parent, name) = self.parent(path)?;
        let found = self.entry(parent, name).ok_or(io::ErrorKind::NotFound)?;
        match self.world.inodes[found as usize].is_directory {
            true => Err(io::ErrorKind::IsADirectory.into()),
            false => Ok(found),
        }
    }

    fn is_empty(&mut self, directory: u32) -> bool {
        let names: Vec<u32> = self.world.inodes[directory as usize].names.keys().copied().collect();
        names.into_iter().all(|name| self.world.entry(&mut self.decisions, directory, name).is_none())
    }
}

/// A file system in memory, on which power failures are simulated. Clones are the same file system, as one process sees it: after a
/// crash the handles of the process before are of no use, and every call on them fails.
///
/// The calls are those of `std::fs`, and [`sync_directory`](Self::sync_directory). Paths are `/`-separated, from the root, which is
/// always there. Every call takes at most a few microseconds and answers errors as the system does.
#[derive(Clone, Debug)]
pub struct SimulatedFs {
    shared: Arc<Mutex<Shared>>,
    generation: u32,
}

/// How a file is opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Open {
    /// It must be there.
    Existing,
    /// It is made if it is not there.
    OrNew,
    /// It must not be there.
    New,
    /// It is emptied, or made.
    Emptied,
}

impl SimulatedFs {
    /// An empty one, with sectors of 512 bytes, for a look around: nothing crashes by itself. [`Files`](super::Files) makes its own.
    #[expect(clippy::new_without_default, reason = "an empty file system is no default of anything")]
    pub fn new() -> Self {
        Self::over(World::new(512, super::Promises::Least))
    }

    pub(super) fn over(world: World) -> Self {
        SimulatedFs { shared: Arc::new(Mutex::new(Shared::new(world))), generation: 0 }
    }

    /// The same for the process that runs now.
    pub(super) fn now(&self) -> Self {
        SimulatedFs { shared: Arc::clone(&self.shared), generation: self.shared().generation }
    }

    pub(super) fn shared(&self) -> MutexGuard<'_, Shared> {
        self.shared.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn alive(&self) -> io::Result<MutexGuard<'_, Shared>> {
        let shared = self.shared();
        match shared.generation == self.generation {
            true => Ok(shared),
            false => Err(io::Error::other("the process of this handle is gone: it crashed in the simulation")),
        }
    }

    /// Makes the `n`-th call of a kind from now on fail, counted from 1.
    pub fn fail(&self, call: Call, n: u64, fault: Fault) {
        self.shared().faults.fail(call, n, fault);
    }

    /// How many calls of a kind there have been.
    pub fn calls(&self, call: Call) -> u64 {
        self.shared().faults.calls(call)
    }

    /// Opens a file for reading and writing.
    ///
    /// # Errors
    /// As the system: `NotFound`, `AlreadyExists`, `IsADirectory`; or a planted fault.
    #[track_caller]
    pub fn open(&self, path: impl AsRef<Path>, how: Open) -> io::Result<SimulatedFile> {
        let (at, path) = (Location::caller(), path.as_ref());
        let mut shared = self.alive()?;
        shared.refuse(Call::Open)?;
        let inode = match (shared.file_at(path), how) {
            (Ok(_), Open::New) => return Err(io::ErrorKind::AlreadyExists.into()),
            (Ok(inode), Open::Emptied) => {
                let step = shared.step(at, inode, || format!("emptied {}", path.display()));
                let shared = &mut *shared;
                shared.world.set_len(&mut shared.decisions, inode, 0, step);
                shared.stepped(at, inode);
                inode
            }
            (Ok(inode), _) => inode,
            (Err(error), how) if how == Open::Existing || error.kind() != io::ErrorKind::NotFound => return Err(error),
            (Err(_), _) => {
                let (parent, name) = shared.parent(path)?;
                let inode = shared.world.new_inode(false);
                let step = shared.step(at, parent, || format!("created {}", path.display()));
                shared.set_entry(parent, name, Some(inode), step);
                shared.stepped(at, parent);
                inode
            }
        };
        Ok(SimulatedFile { fs: self.clone(), inode, path: path.display().to_string().into(), lock: Mutex::default() })
    }

    /// Whether there is a file or a directory of that name.
    ///
    /// # Errors
    /// Only from a handle of a process that is gone.
    pub fn exists(&self, path: impl AsRef<Path>) -> io::Result<bool> {
        let mut shared = self.alive()?;
        let Ok((parent, name)) = shared.parent(path.as_ref()) else { return Ok(false) };
        Ok(name == "." || shared.entry(parent, name).is_some())
    }

    /// The names in a directory, sorted.
    ///
    /// # Errors
    /// As the system; or a planted fault.
    pub fn read_dir(&self, path: impl AsRef<Path>) -> io::Result<Vec<String>> {
        let shared = &mut *self.alive()?;
        shared.refuse(Call::Read)?;
        let directory = shared.directory_at(path.as_ref())?;
        let names: Vec<u32> = shared.world.inodes[directory as usize].names.keys().copied().collect();
        let there = |name: &u32| shared.world.entry(&mut shared.decisions, directory, *name).is_some();
        let there: Vec<u32> = names.into_iter().filter(there).collect();
        let mut names: Vec<String> = there.iter().map(|name| shared.world.names[*name as usize].to_string()).collect();
        names.sort();
        Ok(names)
    }

    /// The contents of a file.
    ///
    /// # Errors
    /// As [`open`](Self::open) and [`SimulatedFile::read_at`].
    #[track_caller]
    pub fn read(&self, path: impl AsRef<Path>) -> io::Result<Vec<u8>> {
        self.open(path, Open::Existing)?.read_all()
    }

    /// Empties a file or makes it, and writes its contents. Nothing is durable.
    ///
    /// # Errors
    /// As [`open`](Self::open) and [`SimulatedFile::write_all_at`].
    #[track_caller]
    pub fn write(&self, path: impl AsRef<Path>, contents: impl AsRef<[u8]>) -> io::Result<()> {
        self.open(path, Open::Emptied)?.write_all_at(contents.as_ref(), 0)
    }

    /// Gives a file or directory another name, and takes that name from whatever has it.
    ///
    /// # Errors
    /// As the system; or a planted fault.
    #[track_caller]
    pub fn rename(&self, from: impl AsRef<Path>, to: impl AsRef<Path>) -> io::Result<()> {
        let (at, from, to) = (Location::caller(), from.as_ref(), to.as_ref());
        let mut shared = self.alive()?;
        shared.refuse(Call::Name)?;
        let (old_parent, old_name) = shared.parent(from)?;
        let moved = shared.entry(old_parent, old_name).ok_or(io::ErrorKind::NotFound)?;
        let (parent, name) = shared.parent(to)?;
        if let Some(replaced) = shared.entry(parent, name) {
            let both = [moved, replaced].map(|inode| shared.world.inodes[inode as usize].is_directory);
            match both {
                _ if moved == replaced => return Ok(()),
                [false, true] => return Err(io::ErrorKind::IsADirectory.into()),
                [true, false] => return Err(io::ErrorKind::NotADirectory.into()),
                [true, true] if !shared.is_empty(replaced) => return Err(io::ErrorKind::DirectoryNotEmpty.into()),
                _ => {}
            }
        }
        let step = shared.step(at, parent, || format!("renamed {} to {}", from.display(), to.display()));
        shared.set_entry(parent, name, Some(moved), step);
        shared.set_entry(old_parent, old_name, None, step);
        shared.stepped(at, parent);
        Ok(())
    }

    /// Gives a file a second name, which must be free.
    ///
    /// # Errors
    /// As the system; or a planted fault.
    #[track_caller]
    pub fn hard_link(&self, from: impl AsRef<Path>, to: impl AsRef<Path>) -> io::Result<()> {
        let (at, from, to) = (Location::caller(), from.as_ref(), to.as_ref());
        let mut shared = self.alive()?;
        shared.refuse(Call::Name)?;
        let inode = shared.file_at(from)?;
        let (parent, name) = shared.parent(to)?;
        if shared.entry(parent, name).is_some() {
            return Err(io::ErrorKind::AlreadyExists.into());
        }
        let step = shared.step(at, parent, || format!("linked {} as {}", from.display(), to.display()));
        shared.set_entry(parent, name, Some(inode), step);
        shared.stepped(at, parent);
        Ok(())
    }

    /// Takes a name from a file. Who has it open goes on.
    ///
    /// # Errors
    /// As the system; or a planted fault.
    #[track_caller]
    pub fn remove_file(&self, path: impl AsRef<Path>) -> io::Result<()> {
        let (at, path) = (Location::caller(), path.as_ref());
        let mut shared = self.alive()?;
        shared.refuse(Call::Name)?;
        shared.file_at(path)?;
        shared.remove(path, at)
    }

    /// Removes an empty directory.
    ///
    /// # Errors
    /// As the system; or a planted fault.
    #[track_caller]
    pub fn remove_dir(&self, path: impl AsRef<Path>) -> io::Result<()> {
        let (at, path) = (Location::caller(), path.as_ref());
        let mut shared = self.alive()?;
        shared.refuse(Call::Name)?;
        let directory = shared.directory_at(path)?;
        match shared.is_empty(directory) {
            true => shared.remove(path, at),
            false => Err(io::ErrorKind::DirectoryNotEmpty.into()),
        }
    }

    /// Makes a directory.
    ///
    /// # Errors
    /// As the system; or a planted fault.
    #[track_caller]
    pub fn create_dir(&self, path: impl AsRef<Path>) -> io::Result<()> {
        let (at, path) = (Location::caller(), path.as_ref());
        let mut shared = self.alive()?;
        shared.refuse(Call::Name)?;
        let (parent, name) = shared.parent(path)?;
        if name == "." || shared.entry(parent, name).is_some() {
            return Err(io::ErrorKind::AlreadyExists.into());
        }
        let inode = shared.world.new_inode(true);
        let step = shared.step(at, parent, || format!("made the directory {}", path.display()));
        shared.set_entry(parent, name, Some(inode), step);
        shared.stepped(at, parent);
        Ok(())
    }

    /// Makes the names in a directory durable, as they are now: what `File::open(directory)?.sync_all()` does. Contents and sizes of the
    /// files are no names.
    ///
    /// # Errors
    /// As the system; or a planted fault, after which any of the names may be lost.
    #[track_caller]
    pub fn sync_directory(&self, path: impl AsRef<Path>) -> io::Result<()> {
        let at = Location::caller();
        let mut shared = self.alive()?;
        let directory = shared.directory_at(path.as_ref())?;
        shared.asked_to_sync(Call::SyncDirectory, at, directory, true)
    }
}

impl Shared {
    fn remove(&mut self, path: &Path, at: At) -> io::Result<()> {
        let (parent, name) = self.parent(path)?;
        let step = self.step(at, parent, || format!("removed {}", path.display()));
        self.set_entry(parent, name, None, step);
        self.stepped(at, parent);
        Ok(())
    }
}

/// An open file.
#[derive(Debug)]
pub struct SimulatedFile {
    fs: SimulatedFs,
    inode: u32,
    path: Arc<str>,
    /// The lock that it holds: alone (true), or with others.
    lock: Mutex<Option<bool>>,
}

impl SimulatedFile {
    /// The path that it was opened by.
    pub fn path(&self) -> &str {
        &self.path
    }

    /// Its length in bytes.
    ///
    /// # Errors
    /// Only from a handle of a process that is gone.
    pub fn len(&self) -> io::Result<u64> {
        let shared = &mut *self.fs.alive()?;
        Ok(shared.world.size(&mut shared.decisions, self.inode))
    }

    /// Whether it is empty.
    ///
    /// # Errors
    /// As [`len`](Self::len).
    pub fn is_empty(&self) -> io::Result<bool> {
        let shared = &mut *self.fs.alive()?;
        Ok(shared.world.size_up_to(&mut shared.decisions, self.inode, 1) == 0)
    }

    /// Reads from an offset on. Returns how many bytes there were, fewer than asked for at the end of the file.
    ///
    /// # Errors
    /// A planted fault.
    pub fn read_at(&self, bytes: &mut [u8], offset: u64) -> io::Result<usize> {
        let shared = &mut *self.fs.alive()?;
        let len = match shared.faults.hit(Call::Read) {
            None => bytes.len(),
            Some(Fault::Short(len)) => len.min(bytes.len()),
            Some(fault) => return Err(fault.error()),
        };
        Ok(shared.world.read(&mut shared.decisions, self.inode, offset, &mut bytes[..len]))
    }

    /// Reads exactly as many bytes as there is room for.
    ///
    /// # Errors
    /// `UnexpectedEof` if there are fewer; a planted fault.
    pub fn read_exact_at(&self, mut bytes: &mut [u8], mut offset: u64) -> io::Result<()> {
        while !bytes.is_empty() {
            let read = self.read_at(bytes, offset)?;
            if read == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            bytes = &mut bytes[read..];
            offset += read as u64;
        }
        Ok(())
    }

    /// All of it.
    ///
    /// # Errors
    /// As [`read_exact_at`](Self::read_exact_at).
    pub fn read_all(&self) -> io::Result<Vec<u8>> {
        let mut bytes = vec![0; self.len()? as usize];
        self.read_exact_at(&mut bytes, 0)?;
        Ok(bytes)
    }

    /// Writes from an offset on; a gap before it is zero. Returns how many bytes were written.
    ///
    /// # Errors
    /// A planted fault.
    #[track_caller]
    pub fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<usize> {
        let at = Location::caller();
        let shared = &mut *self.fs.alive()?;
        let bytes = match shared.faults.hit(Call::Write) {
            None => bytes,
            Some(Fault::Short(len)) => &bytes[..len.min(bytes.len())],
            Some(fault) => return Err(fault.error()),
        };
        let step = shared.step(at, self.inode, || format!("wrote {} bytes at {offset} of {}", bytes.len(), self.path));
        shared.world.write(&mut shared.decisions, self.inode, offset, bytes, step);
        shared.stepped(at, self.inode);
        Ok(bytes.len())
    }

    /// Writes all bytes, by as many calls as it takes.
    ///
    /// # Errors
    /// `WriteZero` if nothing more can be written; a planted fault.
    #[track_caller]
    pub fn write_all_at(&self, mut bytes: &[u8], mut offset: u64) -> io::Result<()> {
        while !bytes.is_empty() {
            let written = self.write_at(bytes, offset)?;
            if written == 0 {
                return Err(io::ErrorKind::WriteZero.into());
            }
            bytes = &bytes[written..];
            offset += written as u64;
        }
        Ok(())
    }

    /// Writes all bytes at the end.
    ///
    /// # Errors
    /// As [`write_all_at`](Self::write_all_at).
    #[track_caller]
    pub fn append(&self, bytes: &[u8]) -> io::Result<()> {
        self.write_all_at(bytes, self.len()?)
    }

    /// Cuts it, or makes it longer by zeroes.
    ///
    /// # Errors
    /// A planted fault.
    #[track_caller]
    pub fn set_len(&self, len: u64) -> io::Result<()> {
        let at = Location::caller();
        let shared = &mut *self.fs.alive()?;
        shared.refuse(Call::Resize)?;
        let step = shared.step(at, self.inode, || format!("set the length of {} to {len}", self.path));
        shared.world.set_len(&mut shared.decisions, self.inode, len, step);
        shared.stepped(at, self.inode);
        Ok(())
    }

    /// Allocates bytes, and makes the file as long as they reach (`fallocate`). New ones are zero.
    ///
    /// # Errors
    /// A planted fault.
    #[track_caller]
    pub fn allocate(&self, offset: u64, len: u64) -> io::Result<()> {
        let at = Location::caller();
        let shared = &mut *self.fs.alive()?;
        shared.refuse(Call::Resize)?;
        let end = offset + len;
        let step = shared.step(at, self.inode, || format!("allocated {} up to {end}", self.path));
        shared.world.extend(&mut shared.decisions, self.inode, end, end, step);
        shared.stepped(at, self.inode);
        Ok(())
    }

    /// Zeroes bytes and gives their space back (`FALLOC_FL_PUNCH_HOLE`). The length stays.
    ///
    /// # Errors
    /// A planted fault.
    #[track_caller]
    pub fn punch_hole(&self, offset: u64, len: u64) -> io::Result<()> {
        let at = Location::caller();
        let shared = &mut *self.fs.alive()?;
        shared.refuse(Call::Resize)?;
        let step =
            shared.step(at, self.inode, || format!("punched a hole of {len} bytes at {offset} of {}", self.path));
        let end = shared.world.size_up_to(&mut shared.decisions, self.inode, offset + len);
        shared.world.zero(&mut shared.decisions, self.inode, offset, end, false, step);
        shared.stepped(at, self.inode);
        Ok(())
    }

    /// Makes contents and length durable, as they are now (`fsync`). Its name is not: that is the
    /// [directory's](SimulatedFs::sync_directory).
    ///
    /// # Errors
    /// A planted fault, after which any part of what was not durable may be lost for good, while the next sync succeeds.
    #[track_caller]
    pub fn sync_all(&self) -> io::Result<()> {
        let at = Location::caller();
        self.fs.alive()?.asked_to_sync(Call::Sync, at, self.inode, true)
    }

    /// Makes contents durable, and as much of the length as it takes to read them (`fdatasync`).
    ///
    /// # Errors
    /// As [`sync_all`](Self::sync_all).
    #[track_caller]
    pub fn sync_data(&self) -> io::Result<()> {
        let at = Location::caller();
        self.fs.alive()?.asked_to_sync(Call::Sync, at, self.inode, false)
    }

    /// Locks it, alone or together with others, until it is unlocked or dropped, or the process is gone.
    ///
    /// # Errors
    /// `WouldBlock` if another handle has it.
    pub fn try_lock(&self, alone: bool) -> io::Result<()> {
        let mut shared = self.fs.alive()?;
        let mut lock = self.lock.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(held) = lock.take() {
            shared.unlock(self.inode, held);
        }
        if shared.locked.iter().any(|(inode, held_alone)| *inode == self.inode && (alone || *held_alone)) {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        shared.locked.push((self.inode, alone));
        *lock = Some(alone);
        Ok(())
    }

    /// Gives the lock back.
    pub fn unlock(&self) {
        let held = self.lock.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let (Ok(mut shared), Some(held)) = (self.fs.alive(), held) {
            shared.unlock(self.inode, held);
        }
    }
}

impl Shared {
    fn unlock(&mut self, inode: u32, alone: bool) {
        if let Some(at) = self.locked.iter().position(|lock| *lock == (inode, alone)) {
            self.locked.swap_remove(at);
        }
    }
}

impl Drop for SimulatedFile {
    fn drop(&mut self) {
        self.unlock();
    }
}
