//! What the journal asks of the file system: a seam of its own, beside [`Backing`](crate::backing::Backing), so that writes,
//! syncs and lengths can be recorded, torn and made to fail.

use std::fmt;
use std::fs::{File, OpenOptions, Permissions};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::layout::{HEADER, SEGMENTS, SLOT, word};
use crate::error::{Error, Result};
use crate::line::LINE;

/// A file that a journal lives in.
///
/// Nothing is durable before [`sync`](JournalFile::sync) has returned without an error; until then a power failure leaves each
/// sector at any of its contents since the last sync. After a `sync` that has failed nobody knows what is durable: the journal never
/// asks again, it fails until it is opened anew.
///
/// Every error is one line that names the file.
pub trait JournalFile: fmt::Debug + Send + Sync + 'static {
    /// What messages call it: its path.
    fn describe(&self) -> String;

    /// Its length in bytes.
    ///
    /// # Errors
    /// [`Error::Io`].
    fn len(&self) -> Result<u64>;

    /// Whether it is empty.
    ///
    /// # Errors
    /// As [`len`](JournalFile::len).
    fn is_empty(&self) -> Result<bool> {
        Ok(self.len()? == 0)
    }

    /// Reads bytes.
    ///
    /// # Errors
    /// [`Error::Io`] if they are not all there.
    fn read_at(&self, offset: u64, bytes: &mut [u8]) -> Result<()>;

    /// Where the first byte from `offset` on lies that can be other than zero: a hole is before it. `None` if there is none up to the end
    /// of the file. `offset` itself where the file does not tell, which is what it returns if it is not overridden.
    fn data_from(&self, offset: u64) -> Option<u64> {
        Some(offset)
    }

    /// Writes bytes, all of them. On an error some of them may have been written.
    ///
    /// # Errors
    /// [`Error::DiskFull`]; [`Error::Io`].
    fn write_at(&self, offset: u64, bytes: &[u8]) -> Result<()>;

    /// Cuts it, or makes it longer by zeroes that need not be allocated.
    ///
    /// # Errors
    /// [`Error::Io`].
    fn set_len(&self, len: u64) -> Result<()>;

    /// Makes it at least `len` bytes long, all of them allocated and *written* as zeroes where they are new, so that overwriting
    /// them later changes nothing but contents: a sync then has no metadata to write. Durable only after [`sync`](JournalFile::sync).
    ///
    /// # Errors
    /// [`Error::DiskFull`]; [`Error::Io`].
    fn allocate(&self, len: u64) -> Result<()>;

    /// Waits until everything written so far is on the disk, its length too (`fdatasync`).
    ///
    /// # Errors
    /// [`Error::Io`] if the system says that it is not.
    fn sync(&self) -> Result<()>;

    /// Waits until its name is on the disk (`fsync` of its directory): once, after it was made.
    ///
    /// # Errors
    /// [`Error::Io`].
    fn sync_name(&self) -> Result<()>;
}

/// A journal in a file of the operating system.
#[derive(Debug)]
pub struct DiskJournal {
    path: PathBuf,
    file: File,
}

impl DiskJournal {
    /// Where the journal of the pool at `pool` lies: its path with `-journal` added.
    pub fn path_of(pool: &Path) -> PathBuf {
        let mut path = pool.as_os_str().to_owned();
        path.push("-journal");
        path.into()
    }

    /// Where the checksums of the pages of the pool at `pool` lie: its path with `-sums` added.
    pub fn sums_of(pool: &Path) -> PathBuf {
        let mut path = pool.as_os_str().to_owned();
        path.push("-sums");
        path.into()
    }

    /// Opens a journal for reading and writing. `None` where there is no such file.
    ///
    /// # Errors
    /// [`Error::Io`].
    pub fn open(path: impl Into<PathBuf>) -> Result<Option<Self>> {
        Self::with(path.into(), OpenOptions::new().read(true).write(true))
    }

    /// Opens a journal for reading. `None` where there is no such file.
    ///
    /// # Errors
    /// [`Error::Io`].
    pub fn open_read_only(path: impl Into<PathBuf>) -> Result<Option<Self>> {
        Self::with(path.into(), OpenOptions::new().read(true))
    }

    /// Opens a journal, and makes an empty file where there is none.
    ///
    /// # Errors
    /// [`Error::Io`].
    pub fn create(path: impl Into<PathBuf>) -> Result<Self> {
        Self::create_like(path.into(), None)
    }

    /// The same. A new file gets these permissions.
    fn create_like(path: PathBuf, permissions: Option<Permissions>) -> Result<Self> {
        refuse_irregular(&path)?;
        let mut options = OpenOptions::new();
        options.read(true).write(true).mode(permissions.as_ref().map_or(0o666, PermissionsExt::mode));
        let file = match options.clone().create_new(true).open(&path) {
            // The mask of the process may have taken some away.
            Ok(file) => permissions.map_or(Ok(()), |permissions| file.set_permissions(permissions)).map(|()| file),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => options.open(&path),
            Err(error) => Err(error),
        };
        let file = file.map_err(|source| io_error("creating the journal", &path, source))?;
        Ok(DiskJournal { path, file })
    }

    fn with(path: PathBuf, options: &OpenOptions) -> Result<Option<Self>> {
        refuse_irregular(&path)?;
        match options.open(&path) {
            Ok(file) => Ok(Some(DiskJournal { path, file })),
            Err(source) if source.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(source) => Err(io_error("opening", &path, source)),
        }
    }

    fn io(&self, action: &str) -> impl FnOnce(io::Error) -> Error {
        move |source| io_error(action, &self.path, source)
    }

    /// The error of a call that needs room.
    fn room(&self, action: &str, wanted: u64) -> impl FnOnce(io::Error) -> Error {
        move |source| match source.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded | io::ErrorKind::FileTooLarge => {
                Error::DiskFull { name: self.describe(), wanted }
            }
            _ => self.io(action)(source),
        }
    }
}

/// A pipe would wait for somebody at its other end, and a device has no length.
fn refuse_irregular(path: &Path) -> Result<()> {
    if path.metadata().is_ok_and(|there| !there.is_file()) {
        let source = io::Error::new(io::ErrorKind::InvalidInput, "it is no regular file");
        return Err(io_error("opening", path, source));
    }
    Ok(())
}

fn io_error(action: &str, path: &Path, source: io::Error) -> Error {
    Error::Io { action: format!("{action} {}", path.display()), source }
}

impl JournalFile for DiskJournal {
    fn describe(&self) -> String {
        self.path.display().to_string()
    }

    fn len(&self) -> Result<u64> {
        self.file.metadata().map(|m| m.len()).map_err(self.io("asking for the length of"))
    }

    fn read_at(&self, offset: u64, bytes: &mut [u8]) -> Result<()> {
        self.file.read_exact_at(bytes, offset).map_err(self.io("reading"))
    }

    fn data_from(&self, offset: u64) -> Option<u64> {
        match rustix::fs::seek(&self.file, rustix::fs::SeekFrom::Data(offset)) {
            Ok(at) => Some(at),
            Err(rustix::io::Errno::NXIO) => None,
            Err(_) => Some(offset),
        }
    }

    fn write_at(&self, offset: u64, bytes: &[u8]) -> Result<()> {
        self.file.write_all_at(bytes, offset).map_err(self.room("writing", offset + bytes.len() as u64))
    }

    fn set_len(&self, len: u64) -> Result<()> {
        self.file.set_len(len).map_err(self.room("setting the length of", len))
    }

    fn allocate(&self, len: u64) -> Result<()> {
        static ZEROES: [u8; 64 << 10] = [0; 64 << 10];
        let before = self.len()?;
        let mut at = before;
        while at < len {
            let count = (len - at).min(ZEROES.len() as u64);
            let wrote = self.file.write_all_at(&ZEROES[..count as usize], at);
            if let Err(source) = wrote {
                // What was added is of no use. If it cannot be cut off, it stays, as zeroes that count for nothing.
                let _ = self.file.set_len(before);
                return Err(self.room("allocating space for", len)(source));
            }
            at += count;
        }
        Ok(())
    }

    fn sync(&self) -> Result<()> {
        self.file.sync_data().map_err(self.io("syncing"))
    }

    fn sync_name(&self) -> Result<()> {
        let directory = self.path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
        match File::open(directory).and_then(|directory| directory.sync_all()) {
            // A file system that cannot sync directories has no such promise to keep.
            Err(error) if matches!(error.kind(), io::ErrorKind::InvalidInput | io::ErrorKind::Unsupported) => Ok(()),
            synced => synced.map_err(|source| io_error("syncing the directory of", &self.path, source)),
        }
    }
}

/// Refuses to begin a journal, or a table of checksums, in a file that somebody else has given that name: one that is not empty, and does
/// not have `magic` as the second word of one of its headers, with a few flipped bits at most. Zeroes are what a crash leaves of a
/// beginning, and a part of a header, too.
pub(crate) fn refuse_foreign(file: &dyn JournalFile, magic: u64) -> Result<()> {
    let mut bytes = vec![0; file.len()?.min(SEGMENTS) as usize];
    file.read_at(0, &mut bytes)?;
    let has_magic = |slot: &[u8]| slot.len() >= 16 && (word(slot, 1) ^ magic).count_ones() <= 8;
    if bytes.chunks(SLOT as usize).any(has_magic) {
        return Ok(());
    }
    for slot in bytes.chunks_mut(SLOT as usize).filter(|slot| slot.len() >= HEADER) {
        // A crash may have left this part of a header alone.
        slot[LINE..HEADER].fill(0);
    }
    if bytes.iter().all(|byte| *byte == 0) {
        return Ok(());
    }
    let what = "a file that is none of Durix's has this name; give it another name, or remove it if it is not needed";
    let source = io::Error::new(io::ErrorKind::AlreadyExists, what);
    Err(Error::Io { action: format!("beginning {}", file.describe()), source })
}

/// Where the journal of a pool lies, whether it is there or not.
pub trait JournalPlace: fmt::Debug + Send + Sync {
    /// What messages call it: its path.
    fn describe(&self) -> String;

    /// Opens the journal, for reading only or not. `None` where there is none.
    ///
    /// # Errors
    /// [`Error::Io`].
    fn open(&self, read_only: bool) -> Result<Option<Arc<dyn JournalFile>>>;

    /// Opens the journal, and makes an empty one where there is none.
    ///
    /// # Errors
    /// [`Error::Io`].
    fn create(&self) -> Result<Arc<dyn JournalFile>>;

    /// Where the checksums of the pool's pages lie. `None`, which is what it returns if it is not overridden: nowhere, pages have no
    /// checksums.
    fn sums(&self) -> Option<Arc<dyn JournalPlace>> {
        None
    }
}

/// The place beside a pool's file: its path with `-journal` added. Of a symbolic link it is the file that counts, so that every name
/// leads to the same journal. A new journal gets the permissions of the pool's file: it holds the same data.
#[derive(Clone, Debug)]
pub struct BesidePool {
    pool: PathBuf,
    journal: PathBuf,
}

impl BesidePool {
    /// That of the pool at `pool`.
    pub fn new(pool: impl AsRef<Path>) -> Self {
        let pool = pool.as_ref();
        let target = if pool.is_symlink() { std::fs::canonicalize(pool).ok() } else { None };
        let pool = target.unwrap_or_else(|| pool.to_owned());
        BesidePool { journal: DiskJournal::path_of(&pool), pool }
    }
}

/// The same place for the checksums of the pages.
#[derive(Debug)]
struct SumsBesidePool(BesidePool);

impl JournalPlace for SumsBesidePool {
    fn describe(&self) -> String {
        self.0.describe()
    }
    fn open(&self, read_only: bool) -> Result<Option<Arc<dyn JournalFile>>> {
        self.0.open(read_only)
    }
    fn create(&self) -> Result<Arc<dyn JournalFile>> {
        self.0.create()
    }
}

impl JournalPlace for BesidePool {
    fn describe(&self) -> String {
        self.journal.display().to_string()
    }

    fn open(&self, read_only: bool) -> Result<Option<Arc<dyn JournalFile>>> {
        let file =
            if read_only { DiskJournal::open_read_only(&self.journal) } else { DiskJournal::open(&self.journal) };
        Ok(file?.map(|file| Arc::new(file) as Arc<dyn JournalFile>))
    }

    fn create(&self) -> Result<Arc<dyn JournalFile>> {
        let permissions = self.pool.metadata().ok().map(|there| there.permissions());
        Ok(Arc::new(DiskJournal::create_like(self.journal.clone(), permissions)?))
    }

    fn sums(&self) -> Option<Arc<dyn JournalPlace>> {
        let sums = BesidePool { journal: DiskJournal::sums_of(&self.pool), pool: self.pool.clone() };
        Some(Arc::new(SumsBesidePool(sums)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As FAT and some file systems of networks do.
    #[test]
    #[cfg(target_os = "linux")]
    fn a_file_system_that_cannot_sync_folders_is_good_enough() {
        let Ok(folder) = File::open("/proc/self") else { return };
        if folder.sync_all().is_ok() {
            return;
        }
        let Ok(file) = File::open("/proc/self/status") else { return };
        DiskJournal { path: "/proc/self/status".into(), file }.sync_name().unwrap();
        let gone = DiskJournal { path: "/nowhere/at/all".into(), file: folder };
        assert!(gone.sync_name().is_err());
    }
}
