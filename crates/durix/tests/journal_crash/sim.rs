//! Two files, or three with that of the checksums, whose writes and syncs are recorded, and what a power failure may leave of them.
//!
//! After a power failure each sector of 512 bytes holds any of its contents since the last sync of its file, the length is any of those
//! since then, and a name that was not synced may be missing. A sync that fails loses pages: what it should have made durable stays
//! open until it is written and synced again.

use std::collections::BTreeMap;
use std::sync::{Arc, Condvar, Mutex};

use durix_pmem::backing::{Access, Backing, BackingKind, Window};
use durix_pmem::{Error, JournalFile, JournalPlace, Reserve, Result};

const SECTOR: usize = 512;
/// Bytes that a pool can have.
pub const LIMIT: u64 = 1 << 20;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Name {
    Pool,
    Journal,
    Sums,
}

const NAMES: [Name; 3] = [Name::Pool, Name::Journal, Name::Sums];

#[derive(Clone, Debug)]
pub enum Event {
    Write(Name, u64, Vec<u8>),
    Len(Name, u64),
    Sync(Name),
    FailedSync(Name),
    SyncName(Name),
    Create(Name),
    /// So many operations have returned.
    Done(usize),
}

/// What is visible of a file.
type Content = Option<Vec<u8>>;

/// What is visible of all files: the pool's, the journal, the checksums.
#[derive(Clone, Debug, Default)]
pub struct Files {
    pub pool: Content,
    pub journal: Content,
    sums: Content,
    /// Whether there is a place for checksums.
    has_sums: bool,
}

impl Files {
    pub fn of(pool: Content, journal: Content) -> Files {
        Files { pool, journal, ..Files::default() }
    }

    /// None yet, with a place for checksums.
    pub fn with_sums() -> Files {
        Files { has_sums: true, ..Files::default() }
    }

    pub fn is_none(&self) -> bool {
        self.pool.is_none() && self.journal.is_none()
    }

    pub fn bytes(&self) -> u64 {
        self.all().into_iter().flatten().map(|file| file.len() as u64).sum()
    }

    fn all(&self) -> [&Content; 3] {
        [&self.pool, &self.journal, &self.sums]
    }

    fn content(&mut self, name: Name) -> &mut Content {
        match name {
            Name::Pool => &mut self.pool,
            Name::Journal => &mut self.journal,
            Name::Sums => &mut self.sums,
        }
    }
}

/// The files as programs see them, and what happened to them.
#[derive(Clone, Debug, Default)]
pub struct Disk {
    files: Files,
    pub events: Vec<Event>,
    /// The sync to fail, counted down.
    pub fail_sync: Option<usize>,
    /// The write to the journal to fail, counted down; half of it is done.
    pub fail_write: Option<usize>,
    /// Bytes that all files can have together.
    pub room: Option<u64>,
}

/// A handle to a disk.
#[derive(Clone, Debug, Default)]
pub struct Sim(Arc<Mutex<Disk>>, Arc<(Mutex<Hold>, Condvar)>);

/// Whether syncs of the journal are held up, and how many are.
#[derive(Debug, Default)]
struct Hold {
    holds: bool,
    held: usize,
}

/// While it lives, no sync of the journal ends.
pub struct Held(Sim);

impl Held {
    pub fn wait_for_a_sync(&self) {
        let (hold, changed) = &*self.0.1;
        drop(changed.wait_while(hold.lock().unwrap(), |hold| hold.held == 0).unwrap());
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        let (hold, changed) = &*self.0.1;
        hold.lock().unwrap().holds = false;
        changed.notify_all();
    }
}

fn eio(action: &str) -> Error {
    Error::Io { action: action.into(), source: std::io::Error::from_raw_os_error(5) }
}

impl Disk {
    fn file(&mut self, name: Name) -> &mut Vec<u8> {
        self.files.content(name).get_or_insert_default()
    }

    fn write(&mut self, name: Name, at: u64, bytes: &[u8]) -> Result<()> {
        if name == Name::Journal && due(&mut self.fail_write) {
            let half = &bytes[..bytes.len() / 2];
            self.apply(Event::Write(name, at, half.to_vec()));
            return Err(eio("writing (planted)"));
        }
        self.apply(Event::Write(name, at, bytes.to_vec()));
        Ok(())
    }

    fn sync(&mut self, name: Name) -> Result<()> {
        if due(&mut self.fail_sync) {
            self.apply(Event::FailedSync(name));
            return Err(eio("syncing (planted)"));
        }
        self.apply(Event::Sync(name));
        Ok(())
    }

    fn lengthen(&mut self, name: Name, len: u64) -> Result<()> {
        let there = self.file(name).len() as u64;
        let total = self.files.bytes();
        if self.room.is_some_and(|room| total - there + len.max(there) > room) || len > 4 * LIMIT {
            return Err(Error::DiskFull { name: format!("{name:?}"), wanted: len });
        }
        if there < len {
            self.apply(Event::Len(name, len));
        }
        Ok(())
    }

    pub fn apply(&mut self, event: Event) {
        match &event {
            Event::Write(name, at, bytes) => {
                let (file, at) = (self.file(*name), *at as usize);
                file.resize(file.len().max(at + bytes.len()), 0);
                file[at..at + bytes.len()].copy_from_slice(bytes);
            }
            Event::Len(name, len) => self.file(*name).resize(*len as usize, 0),
            Event::Create(name) => _ = self.file(*name),
            _ => {}
        }
        self.events.push(event);
    }
}

fn due(countdown: &mut Option<usize>) -> bool {
    let Some(left) = countdown else { return false };
    *left = left.saturating_sub(1);
    let due = *left == 0;
    if due {
        *countdown = None;
    }
    due
}

impl Sim {
    pub fn of(files: Files) -> Sim {
        Sim(Arc::new(Mutex::new(Disk { files, ..Disk::default() })), Arc::default())
    }

    pub fn disk(&self) -> std::sync::MutexGuard<'_, Disk> {
        self.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    pub fn done(&self, count: usize) {
        self.disk().apply(Event::Done(count));
    }

    /// The files as they are visible: what the death of the process leaves.
    pub fn visible(&self) -> Files {
        self.disk().files.clone()
    }

    pub fn hold_syncs(&self) -> Held {
        self.1.0.lock().unwrap().holds = true;
        Held(self.clone())
    }

    fn pass_hold(&self) {
        let (hold, changed) = &*self.1;
        let mut hold = hold.lock().unwrap();
        hold.held += 1;
        changed.notify_all();
        let mut hold = changed.wait_while(hold, |hold| hold.holds).unwrap();
        hold.held -= 1;
    }

    pub fn backing(&self) -> SimPool {
        SimPool(self.clone())
    }

    pub fn place(&self) -> SimPlace {
        SimPlace(self.clone(), Name::Journal)
    }
}

#[derive(Debug)]
pub struct SimPool(Sim);

impl Backing for SimPool {
    fn describe(&self) -> String {
        "pool".into()
    }
    fn kind(&self) -> BackingKind {
        BackingKind::File
    }
    fn len(&self) -> Result<u64> {
        Ok(self.0.disk().file(Name::Pool).len() as u64)
    }
    fn limit(&self) -> u64 {
        LIMIT
    }
    fn try_lock(&self, _access: Access) -> Result<()> {
        Ok(())
    }
    fn unlock(&self) {}
    fn read(&self, offset: u64, bytes: &mut [u8]) -> Result<()> {
        let mut disk = self.0.disk();
        let file = disk.file(Name::Pool);
        let from = offset as usize;
        let there = file.get(from..from + bytes.len()).ok_or_else(|| eio("reading"))?;
        bytes.copy_from_slice(there);
        Ok(())
    }
    fn write(&self, offset: u64, bytes: &[u8]) -> Result<()> {
        self.0.disk().write(Name::Pool, offset, bytes)
    }
    fn reset(&self) -> Result<()> {
        self.0.disk().apply(Event::Len(Name::Pool, 0));
        Ok(())
    }
    fn allocate(&self, len: u64) -> Result<()> {
        self.0.disk().lengthen(Name::Pool, len)?;
        self.sync()
    }
    fn cut(&self, len: u64) -> Result<()> {
        let mut disk = self.0.disk();
        if disk.file(Name::Pool).len() as u64 > len {
            disk.apply(Event::Len(Name::Pool, len));
        }
        Ok(())
    }
    fn reserve(&self, _least: u64, _wanted: u64) -> Result<Reserve> {
        Ok(Reserve::heap(LIMIT as usize))
    }
    fn map(&self, window: &Window<'_>) -> Result<()> {
        let mut disk = self.0.disk();
        let file = disk.file(Name::Pool);
        let range = window.range().start as usize..(window.range().end as usize).min(file.len());
        let bytes = &file[range.clone()];
        assert_eq!(window.access(), Access::Journaled, "the simulation has private pages only");
        // SAFETY: a window lies in its reserve, and nobody has been told of its bytes yet.
        unsafe {
            let to = window.reserve().base().as_ptr().add(range.start);
            std::ptr::copy_nonoverlapping(bytes.as_ptr(), to, bytes.len());
        }
        Ok(())
    }
    fn sync(&self) -> Result<()> {
        self.0.disk().sync(Name::Pool)
    }
}

#[derive(Clone, Debug)]
pub struct SimPlace(Sim, Name);

impl SimPlace {
    fn name(&self) -> String {
        format!("pool-{}", if self.1 == Name::Journal { "journal" } else { "sums" })
    }
}

impl JournalPlace for SimPlace {
    fn describe(&self) -> String {
        self.name()
    }
    fn open(&self, _read_only: bool) -> Result<Option<Arc<dyn JournalFile>>> {
        let there = self.0.disk().files.content(self.1).is_some();
        Ok(there.then(|| Arc::new(self.clone()) as Arc<dyn JournalFile>))
    }
    fn create(&self) -> Result<Arc<dyn JournalFile>> {
        let mut disk = self.0.disk();
        if disk.files.content(self.1).is_none() {
            disk.apply(Event::Create(self.1));
        }
        Ok(Arc::new(self.clone()))
    }
    fn sums(&self) -> Option<Arc<dyn JournalPlace>> {
        self.0.disk().files.has_sums.then(|| Arc::new(SimPlace(self.0.clone(), Name::Sums)) as Arc<dyn JournalPlace>)
    }
}

impl JournalFile for SimPlace {
    fn describe(&self) -> String {
        self.name()
    }
    fn len(&self) -> Result<u64> {
        Ok(self.0.disk().file(self.1).len() as u64)
    }
    fn read_at(&self, offset: u64, bytes: &mut [u8]) -> Result<()> {
        let mut disk = self.0.disk();
        let from = offset as usize;
        let there = disk.file(self.1).get(from..from + bytes.len()).ok_or_else(|| eio("reading"))?;
        bytes.copy_from_slice(there);
        Ok(())
    }
    fn write_at(&self, offset: u64, bytes: &[u8]) -> Result<()> {
        self.0.disk().write(self.1, offset, bytes)
    }
    fn set_len(&self, len: u64) -> Result<()> {
        self.0.disk().apply(Event::Len(self.1, len));
        Ok(())
    }
    fn allocate(&self, len: u64) -> Result<()> {
        self.0.disk().lengthen(self.1, len)
    }
    fn sync(&self) -> Result<()> {
        if self.1 == Name::Journal {
            self.0.pass_hold();
        }
        self.0.disk().sync(self.1)
    }
    fn sync_name(&self) -> Result<()> {
        self.0.disk().apply(Event::SyncName(self.1));
        Ok(())
    }
}

/// What is known of a file on the disk.
#[derive(Clone, Debug, Default)]
struct OnDisk {
    named: bool,
    durable: Vec<u8>,
    lens: Vec<usize>,
    /// Contents of a sector since the last sync, the newest last; and whether a failed sync has lost them.
    open: BTreeMap<usize, (Vec<[u8; SECTOR]>, bool)>,
}

impl OnDisk {
    /// The newest content of a sector.
    fn sector(&self, number: usize) -> [u8; SECTOR] {
        if let Some((versions, _)) = self.open.get(&number) {
            return *versions.last().unwrap();
        }
        let mut sector = [0; SECTOR];
        let there = self.durable.get(number * SECTOR..).unwrap_or_default();
        let len = there.len().min(SECTOR);
        sector[..len].copy_from_slice(&there[..len]);
        sector
    }

    fn visible_len(&self) -> usize {
        self.lens.last().copied().unwrap_or(self.durable.len())
    }

    fn write(&mut self, at: usize, bytes: &[u8]) {
        let end = at + bytes.len();
        if end > self.visible_len() {
            self.lens.push(end);
        }
        for number in at / SECTOR..end.div_ceil(SECTOR) {
            let mut sector = self.sector(number);
            let (from, to) = ((number * SECTOR).max(at), (number * SECTOR + SECTOR).min(end));
            sector[from - number * SECTOR..to - number * SECTOR].copy_from_slice(&bytes[from - at..to - at]);
            let open = self.open.entry(number).or_default();
            open.0.push(sector);
            open.1 = false;
        }
    }

    fn sync(&mut self) {
        let len = self.visible_len();
        self.durable.resize(len, 0);
        self.lens.clear();
        let (lost, synced) = std::mem::take(&mut self.open).into_iter().partition(|(_, (_, lost))| *lost);
        self.open = lost;
        let synced: BTreeMap<usize, (Vec<_>, bool)> = synced;
        for (number, (versions, _)) in synced {
            self.store(number, versions.last().unwrap());
        }
    }

    fn store(&mut self, number: usize, sector: &[u8; SECTOR]) {
        let at = number * SECTOR;
        if at < self.durable.len() {
            let end = (at + SECTOR).min(self.durable.len());
            self.durable[at..end].copy_from_slice(&sector[..end - at]);
        }
    }

    /// One of the contents that a power failure may leave; `choose` picks one of so many.
    fn image(&self, may_lack_name: bool, choose: &mut dyn FnMut(usize) -> usize) -> Content {
        if may_lack_name && !self.named && choose(2) == 0 {
            return None;
        }
        let mut image = self.clone();
        let lens: Vec<_> = std::iter::once(self.durable.len()).chain(self.lens.iter().copied()).collect();
        image.durable.resize(lens[choose(lens.len())], 0);
        for (number, (versions, _)) in &self.open {
            let version = choose(versions.len() + 1);
            if version > 0 {
                image.store(*number, &versions[version - 1]);
            }
        }
        Some(image.durable)
    }
}

/// How the open sectors of a file are chosen.
#[derive(Clone, Copy, Debug)]
pub enum Mode {
    Old,
    New,
    Random,
    /// All new but the one of this number.
    OneOld(usize),
    OneNew(usize),
}

/// The disk as a trace leaves it, event by event.
#[derive(Clone, Debug, Default)]
pub struct Power {
    files: [OnDisk; 3],
    has_sums: bool,
    pub done: usize,
}

impl Power {
    /// The files as they lie on the disk, all of it durable.
    pub fn of(files: &Files) -> Self {
        let has_sums = files.has_sums;
        let files = files.all().map(|file| OnDisk {
            named: file.is_some(),
            durable: file.clone().unwrap_or_default(),
            ..OnDisk::default()
        });
        Power { files, has_sums, done: 0 }
    }

    pub fn step(&mut self, event: &Event) {
        match event {
            Event::Write(name, at, bytes) => self.files[*name as usize].write(*at as usize, bytes),
            Event::Len(name, len) => self.files[*name as usize].lens.push(*len as usize),
            Event::Sync(name) => self.files[*name as usize].sync(),
            Event::FailedSync(name) => {
                self.files[*name as usize].open.values_mut().for_each(|(_, lost)| *lost = true);
            }
            Event::SyncName(name) => self.files[*name as usize].named = true,
            Event::Create(_) => {}
            Event::Done(count) => self.done = *count,
        }
    }

    /// What a power failure may leave now.
    pub fn image(&self, modes: [Mode; 3], random: &mut dyn FnMut(usize) -> usize) -> Files {
        let [pool, journal, sums] = NAMES.map(|name| {
            let mut at = 0;
            let mut choose = |count: usize| {
                at += 1;
                let newest = match modes[name as usize] {
                    Mode::Old => false,
                    Mode::New => true,
                    Mode::OneOld(odd) => odd != at,
                    Mode::OneNew(odd) => odd == at,
                    Mode::Random => return random(count),
                };
                if newest { count - 1 } else { 0 }
            };
            self.files[name as usize].image(name != Name::Pool, &mut choose)
        });
        let sums = sums.filter(|_| self.has_sums);
        Files { pool, journal, sums, has_sums: self.has_sums }
    }

    /// How many choices there are.
    pub fn open(&self) -> [usize; 3] {
        [0, 1, 2].map(|file| self.files[file].open.len() + self.files[file].lens.len())
    }
}
