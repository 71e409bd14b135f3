//! A file.

use std::ffi::c_void;
use std::fs::{File, OpenOptions, TryLockError};
use std::io;
use std::ops::Range;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::fs::{SeekFrom, seek};
use rustix::mm::{MapFlags, ProtFlags, mmap, mmap_anonymous, munmap};

use super::{Access, Backing, BackingKind, CleanPages, FileId, Window};
use crate::error::{Error, Result};

/// A pool in a file: persistent memory where the file system offers it (`MAP_SYNC`), otherwise the page cache.
#[derive(Debug)]
pub struct FileBacking {
    path: PathBuf,
    file: File,
    writable: bool,
    dax: bool,
    /// Whether the file system has no device.
    in_memory: bool,
    /// Whether opening made the file.
    created: bool,
    /// The process that opened the file: a forked child must not give the lock back.
    process: u32,
    /// Bytes from the start that this process has allocated.
    filled: AtomicU64,
}

impl FileBacking {
    /// Opens an existing file for reading and writing.
    ///
    /// # Errors
    /// [`Error::ReadOnlyFile`] if it may not be written; [`Error::Io`] otherwise.
    pub fn open(path: impl AsRef<Path>) -> Result<Self> {
        Self::with(path.as_ref(), OpenOptions::new().read(true).write(true), true)
    }

    /// Opens an existing file for reading.
    ///
    /// # Errors
    /// [`Error::Io`].
    pub fn open_read_only(path: impl AsRef<Path>) -> Result<Self> {
        Self::with(path.as_ref(), OpenOptions::new().read(true), false)
    }

    /// Opens a file for reading and writing, and makes it if it is not there.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub fn create(path: impl AsRef<Path>) -> Result<Self> {
        let path = path.as_ref();
        match Self::with(path, OpenOptions::new().read(true).write(true).create_new(true), true) {
            Err(Error::Io { source, .. }) if source.kind() == io::ErrorKind::AlreadyExists => Self::open(path),
            made => made.map(|mut backing| {
                backing.created = true;
                backing
            }),
        }
    }

    fn with(path: &Path, options: &OpenOptions, writable: bool) -> Result<Self> {
        // A pipe would wait for somebody at its other end, and a device has no length.
        if path.metadata().is_ok_and(|there| !there.is_file()) {
            let source = io::Error::new(io::ErrorKind::InvalidInput, "it is no regular file");
            return Err(Error::Io { action: format!("opening {}", path.display()), source });
        }
        let file = options.open(path).map_err(|source| match source.kind() {
            // Where there is no file, it is the folder that may not be written.
            io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem if writable && path.exists() => {
                Error::ReadOnlyFile { name: path.display().to_string() }
            }
            _ => Error::Io { action: format!("opening {}", path.display()), source },
        })?;
        let dax = writable && offers_sync(&file);
        let (in_memory, filled, process) = (lies_in_memory(&file), AtomicU64::new(0), std::process::id());
        Ok(FileBacking { path: path.into(), file, writable, dax, in_memory, created: false, process, filled })
    }

    /// Whether opening made the file.
    pub fn was_created(&self) -> bool {
        self.created
    }

    /// The text is made where there is an error, and not before.
    fn io<'a>(&'a self, action: &'a str) -> impl FnOnce(io::Error) -> Error + 'a {
        move |source| Error::Io { action: format!("{action} {}", self.path.display()), source }
    }

    fn flags(&self, access: Access) -> (ProtFlags, MapFlags) {
        let both = ProtFlags::READ | ProtFlags::WRITE;
        match access {
            // Only pages that are written to take memory: the size of the file must not be asked for beforehand.
            Access::Private | Access::Journaled => (both, MapFlags::PRIVATE | MapFlags::NORESERVE),
            Access::Peek => (ProtFlags::READ, MapFlags::SHARED),
            #[cfg(target_os = "linux")]
            Access::Shared if self.dax => (both, MapFlags::SHARED_VALIDATE | MapFlags::SYNC),
            Access::Shared => (both, MapFlags::SHARED),
        }
    }

    /// Whether the name leads to another file now: one that was put in its place while this one was waited for.
    fn has_lost_its_name(&self) -> bool {
        match (self.file.metadata(), self.path.metadata()) {
            (Ok(own), Ok(named)) => (own.ino(), own.dev()) != (named.ino(), named.dev()),
            _ => false,
        }
    }

    /// Allocates all of `[0, len)`, also holes below the end of the file. What was allocated before is not asked for again: some
    /// file systems look at every page of it.
    fn fill(&self, len: u64) -> io::Result<()> {
        let from = self.filled.load(Ordering::Acquire);
        if from < len {
            self.fill_from(from, len)?;
            self.filled.fetch_max(len, Ordering::AcqRel);
        }
        Ok(())
    }

    fn fill_from(&self, from: u64, len: u64) -> io::Result<()> {
        #[cfg(target_os = "linux")]
        match rustix::fs::fallocate(&self.file, rustix::fs::FallocateFlags::empty(), from, len - from) {
            Err(rustix::io::Errno::OPNOTSUPP | rustix::io::Errno::NOSYS) => {}
            Err(errno) => return Err(errno.into()),
            Ok(()) => return Ok(()),
        }
        self.fill_by_writing(from, len)
    }

    /// The same where the file system cannot allocate: zeroes are written to holes, and behind the end. Nobody stores to a hole meanwhile:
    /// holes are below the end only when a pool is opened.
    fn fill_by_writing(&self, from: u64, len: u64) -> io::Result<()> {
        let end = self.file.metadata()?.len();
        for hole in self.holes(from..end.min(len)) {
            self.write_zeroes(hole)?;
        }
        self.write_zeroes(end..len)
    }

    fn write_zeroes(&self, range: Range<u64>) -> io::Result<()> {
        static ZEROES: [u8; 64 << 10] = [0; 64 << 10];
        let mut at = range.start;
        while at < range.end {
            let count = (range.end - at).min(ZEROES.len() as u64);
            self.file.write_all_at(&ZEROES[..count as usize], at)?;
            at += count;
        }
        Ok(())
    }

    /// The parts of a range below the end of the file that are not allocated, as far as the file system tells.
    fn holes(&self, range: Range<u64>) -> Vec<Range<u64>> {
        let mut holes = Vec::new();
        let mut at = range.start;
        while at < range.end {
            let Ok(start) = seek(&self.file, SeekFrom::Hole(at)) else { break };
            if start >= range.end {
                break;
            }
            // No data behind it: it goes on to the end.
            let end = seek(&self.file, SeekFrom::Data(start)).unwrap_or(range.end).min(range.end);
            holes.push(start..end);
            at = end.max(start + 1);
        }
        holes
    }

    /// Puts memory of this process in the place of holes, where reading one would allocate it: in a file system in memory that is full, a
    /// read of a hole ends the process.
    fn cover_holes(&self, at: *mut c_void, range: Range<u64>, prot: ProtFlags) -> io::Result<()> {
        let page = rustix::param::page_size() as u64;
        for hole in self.holes(range.clone()) {
            let (start, end) = (hole.start.next_multiple_of(page), hole.end.next_multiple_of(page).min(range.end));
            if start >= end {
                continue;
            }
            let flags = MapFlags::PRIVATE | MapFlags::FIXED | MapFlags::NORESERVE;
            let at = at.wrapping_byte_add((start - range.start) as usize);
            // SAFETY: a part of the range that the caller has just mapped, which nobody has been told of; page by page. It holds zeroes as the
            // hole does.
            unsafe { mmap_anonymous(at, (end - start) as usize, prot, flags) }?;
        }
        Ok(())
    }
}

/// Whether the file system maps this file synchronously: then stores need nothing but a write-back to be durable.
#[cfg(target_os = "linux")]
fn offers_sync(file: &File) -> bool {
    let flags = MapFlags::SHARED_VALIDATE | MapFlags::SYNC;
    let page = rustix::param::page_size();
    // SAFETY: a new mapping at an address that the kernel chooses; nothing refers to it, and it is unmapped at once, at the address and
    // length that it was made with. Nothing in it is read or written, so a file without contents is right, too, and so is any that a
    // caller may have opened.
    unsafe {
        let probe = mmap(std::ptr::null_mut(), page, ProtFlags::READ | ProtFlags::WRITE, flags, file, 0);
        probe.is_ok_and(|at| munmap(at, page).is_ok())
    }
}

/// Not on this system.
#[cfg(not(target_os = "linux"))]
fn offers_sync(_file: &File) -> bool {
    false
}

/// Whether the file lies on tmpfs, ramfs or hugetlbfs. Where the system does not tell, it is taken for a file on a device.
#[cfg(target_os = "linux")]
fn lies_in_memory(file: &File) -> bool {
    const TMPFS: u64 = 0x0102_1994;
    const RAMFS: u64 = 0x8584_58f6;
    const HUGETLBFS: u64 = 0x9584_58f6;
    rustix::fs::fstatfs(file)
        .is_ok_and(|found| [TMPFS, RAMFS, HUGETLBFS].contains(&(found.f_type as u64 & 0xffff_ffff)))
}

/// Not known on this system.
#[cfg(not(target_os = "linux"))]
fn lies_in_memory(_file: &File) -> bool {
    false
}

impl Backing for FileBacking {
    fn describe(&self) -> String {
        self.path.display().to_string()
    }

    fn kind(&self) -> BackingKind {
        if self.dax { BackingKind::Dax } else { BackingKind::File }
    }

    fn len(&self) -> Result<u64> {
        self.file.metadata().map(|m| m.len()).map_err(self.io("asking for the length of"))
    }

    fn is_in_memory(&self) -> bool {
        self.in_memory
    }

    fn identity(&self) -> Option<FileId> {
        Some(FileId::of(&self.file))
    }

    fn is_writable(&self) -> bool {
        self.writable
    }

    fn try_lock(&self, access: Access) -> Result<()> {
        let locked = match access {
            Access::Shared | Access::Journaled => self.file.try_lock(),
            Access::Private => self.file.try_lock_shared(),
            Access::Peek => Ok(()),
        };
        locked.map_err(|error| match error {
            TryLockError::WouldBlock => {
                Error::Locked { name: self.describe(), holder: super::holder::holder(&self.file) }
            }
            TryLockError::Error(source) => self.io("locking")(source),
        })?;
        if access != Access::Peek && self.has_lost_its_name() {
            self.unlock();
            let source = io::Error::other("another file has got its name meanwhile; open it again");
            return Err(self.io("opening")(source));
        }
        Ok(())
    }

    fn unlock(&self) {
        // Closing alone would not do: a forked child holds the same open file, and the lock with it.
        if std::process::id() == self.process {
            let _ = self.file.unlock();
        }
    }

    fn read(&self, offset: u64, bytes: &mut [u8]) -> Result<()> {
        self.file.read_exact_at(bytes, offset).map_err(self.io("reading"))
    }

    fn write(&self, offset: u64, bytes: &[u8]) -> Result<()> {
        self.file.write_all_at(bytes, offset).map_err(self.io("writing"))
    }

    fn private_page(&self) -> u64 {
        rustix::param::page_size() as u64
    }

    #[cfg(target_os = "linux")]
    fn drop_private(&self, pages: &CleanPages<'_>) -> bool {
        let (reserve, range) = (pages.reserve(), pages.range());
        if !reserve.is_pages() {
            return false;
        }
        let at = reserve.base().as_ptr().wrapping_add(range.start as usize).cast();
        // SAFETY: the range lies in the reserve, which is mapped (`CleanPages`; only a pool makes one). The advice takes private pages away, so
        // that the next access reads the file, which holds the same. A backing of a caller may hand it to a file that is not the pool's:
        // the advice does not ask for a file; what the memory shows then is what the pool's mapping has below it, and what is read of
        // persistent memory is taken for anything, as atomics that are valid for every value. Pages that the kernel must keep (`mlock`) are
        // refused, and stay.
        unsafe { rustix::mm::madvise(at, (range.end - range.start) as usize, rustix::mm::Advice::LinuxDontNeed) }
            .is_ok()
    }

    fn reset(&self) -> Result<()> {
        self.filled.store(0, Ordering::Release);
        self.file.set_len(0).map_err(self.io("emptying"))
    }

    fn allocate(&self, len: u64) -> Result<()> {
        self.allocate_ahead(len)?;
        self.sync()
    }

    fn allocate_ahead(&self, len: u64) -> Result<()> {
        let before = self.len()?;
        let filled = self.fill(len.max(before)).map_err(|source| match source.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded | io::ErrorKind::FileTooLarge => {
                Error::DiskFull { name: self.describe(), wanted: len }
            }
            _ => self.io("allocating space for")(source),
        });
        if filled.is_err() && before < len {
            // A refused allocation may have lengthened the file by a part. If it cannot be cut back, the header still
            // says how much of it counts.
            let _ = self.file.set_len(before);
        }
        filled
    }

    fn cut(&self, len: u64) -> Result<()> {
        if self.len()? > len {
            self.filled.fetch_min(len, Ordering::AcqRel);
            self.file.set_len(len).map_err(self.io("shortening"))?;
        }
        Ok(())
    }

    fn map(&self, window: &Window<'_>) -> Result<()> {
        let (reserve, range, access) = (window.reserve(), window.range(), window.access());
        assert!(reserve.is_pages(), "a file over memory that is not made of pages");
        let (len, end) = (self.len()?, range.end);
        if len < end {
            // A load or a store behind the end of a file ends the process.
            let source = io::Error::new(io::ErrorKind::UnexpectedEof, format!("it has {len} of {end} bytes"));
            return Err(Error::Io { action: format!("mapping {}", self.path.display()), source });
        }
        let page = rustix::param::page_size() as u64;
        // The page that the range before ends in is mapped, to its end. Mapped once more, it would lose what is private to this process.
        let start = range.start.next_multiple_of(page);
        let len = (end.next_multiple_of(page).max(start) - start) as usize;
        if len == 0 {
            return Ok(());
        }
        let (prot, flags) = self.flags(access);
        let at = reserve.base().as_ptr().wrapping_add(start as usize).cast();
        // `memmap2` maps where the kernel likes; only the reserve is made with it. Here the address is given.
        // SAFETY: the range, rounded up to pages, lies in the reserve (`Window`; its length is a multiple of the page), so only pages owned
        // by it are replaced, and none that an operation has been told of: a window begins where the pool's length ends. A caller
        // without `unsafe` cannot make a window. A backing of his own may hand it to a file that is not the pool's, or to two:
        // that changes contents, and what is read of persistent memory is taken for anything, as atomics that are valid for every
        // value, so references into the range stay valid. The file may be cut shorter by others later: a signal ends the process then.
        unsafe { mmap(at, len, prot, flags | MapFlags::FIXED, &self.file, start) }
            .map_err(|errno| self.io("mapping")(errno.into()))?;
        if self.in_memory && matches!(access, Access::Private | Access::Peek) {
            self.cover_holes(at, start..start + len as u64, prot).map_err(self.io("mapping"))?;
        }
        #[cfg(target_os = "linux")]
        // SAFETY: the range was just mapped, by this call; the advice changes no contents. Refusal costs speed only.
        let _ = unsafe { rustix::mm::madvise(at, len, rustix::mm::Advice::LinuxHugepage) };
        Ok(())
    }

    /// Only of a file in memory: elsewhere the pages that are touched would all have to be written to the disk.
    #[cfg(target_os = "linux")]
    fn touch(&self, window: &Window<'_>) {
        let (reserve, range) = (window.reserve(), window.range());
        if !self.in_memory || window.access() != Access::Shared || !reserve.is_pages() {
            return;
        }
        let page = rustix::param::page_size() as u64;
        let (start, end) = (range.start.next_multiple_of(page), range.end / page * page);
        if start < end {
            let at = reserve.base().as_ptr().wrapping_add(start as usize).cast();
            // SAFETY: the range lies in the reserve (`Window`), which is mapped. The advice changes no contents: it does what a store to each page
            // makes the kernel do, and stores nothing. What it does not do (an old kernel, no memory), the first store does.
            let _ = unsafe { rustix::mm::madvise(at, (end - start) as usize, rustix::mm::Advice::LinuxPopulateWrite) };
        }
    }

    fn sync(&self) -> Result<()> {
        self.file.sync_all().map_err(self.io("syncing"))
    }

    fn sync_name(&self) -> Result<()> {
        let folder = self.path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
        match File::open(folder).and_then(|folder| folder.sync_all()) {
            // A file system that cannot sync folders has no such promise to keep.
            Err(error) if matches!(error.kind(), io::ErrorKind::InvalidInput | io::ErrorKind::Unsupported) => Ok(()),
            synced => synced.map_err(self.io("syncing the folder of")),
        }
    }
}

impl Drop for FileBacking {
    fn drop(&mut self) {
        self.unlock();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::reserve::Reserve;

    fn file(len: u64) -> (tempfile::TempDir, FileBacking) {
        let dir = tempfile::tempdir().unwrap();
        let backing = FileBacking::create(dir.path().join("file")).unwrap();
        backing.allocate(len).unwrap();
        (dir, backing)
    }

    /// As where pages are larger than chunks.
    #[test]
    fn a_page_that_is_shared_with_the_range_before_keeps_what_is_private() {
        let (_dir, backing) = file(100);
        let reserve = Reserve::pages(1 << 20, 1 << 20).unwrap();
        let page = rustix::param::page_size() as u64;
        backing.map(&Window::new(&reserve, 0..100, Access::Journaled)).unwrap();
        // SAFETY: within the first page, which is mapped for reading and writing.
        unsafe { reserve.base().add(50).write(7) };
        backing.allocate(3 * page).unwrap();
        backing.write(2 * page, &[9]).unwrap();
        backing.map(&Window::new(&reserve, 100..3 * page, Access::Journaled)).unwrap();
        // SAFETY: within the pages that were mapped.
        let found = [50, 200, 2 * page].map(|at| unsafe { reserve.base().add(at as usize).read() });
        assert_eq!(found, [7, 0, 9]);
    }

    /// As a sparse copy on a file system that cannot allocate.
    #[test]
    fn holes_are_filled_by_writing_and_what_is_there_stays() {
        let dir = tempfile::tempdir().unwrap();
        let backing = FileBacking::create(dir.path().join("file")).unwrap();
        let (page, pages) = (4096, 300);
        for at in [1, 2, 200] {
            backing.file.write_all_at(&[7; 4096], at * page).unwrap();
        }
        backing.file.set_len(pages * page).unwrap();
        let blocks = || backing.file.metadata().unwrap().blocks() * 512;
        assert!(blocks() < pages * page, "{}", blocks());
        // As after a first part was allocated in another way.
        backing.fill_by_writing(0, 100 * page).unwrap();
        assert!((101 * page..pages * page).contains(&blocks()), "{}", blocks());
        backing.fill_by_writing(100 * page, (pages + 10) * page).unwrap();
        assert!(blocks() >= (pages + 10) * page && backing.holes(0..(pages + 10) * page).is_empty());
        let bytes = std::fs::read(&backing.path).unwrap();
        assert_eq!(bytes.len() as u64, (pages + 10) * page);
        for (at, found) in bytes.chunks(4096).enumerate() {
            let expected = if [1, 2, 200].contains(&at) { 7 } else { 0 };
            assert!(found.iter().all(|byte| *byte == expected), "page {at}");
        }
    }

    /// Page faults of this thread so far that needed no disk.
    #[cfg(target_os = "linux")]
    fn faults() -> u64 {
        let text = std::fs::read_to_string("/proc/thread-self/stat").unwrap();
        let (_, fields) = text.rsplit_once(')').unwrap();
        fields.split_ascii_whitespace().nth(7).unwrap().parse().unwrap()
    }

    /// On a file in memory; elsewhere nothing is touched.
    #[test]
    #[cfg(target_os = "linux")]
    fn what_was_touched_is_stored_to_without_a_page_fault() {
        let Ok(dir) = tempfile::tempdir_in("/dev/shm") else { return };
        let backing = FileBacking::create(dir.path().join("file")).unwrap();
        let (page, pages) = (rustix::param::page_size() as u64, 512);
        let reserve = Reserve::pages(8 << 20, 8 << 20).unwrap();
        let window = Window::new(&reserve, 0..2 * pages * page, Access::Shared);
        backing.allocate(window.range().end).unwrap();
        backing.map(&window).unwrap();
        let touched = pages * page..2 * pages * page;
        // SAFETY: within what was mapped.
        let store = |at: u64| unsafe { reserve.base().add((at * page) as usize).write_volatile(7) };
        store(pages + 1);
        backing.touch(&Window::new(&reserve, touched.clone(), Access::Shared));
        // SAFETY: as above. An old kernel does not know the advice.
        let known = unsafe {
            let at = reserve.base().as_ptr().wrapping_add(touched.start as usize).cast();
            rustix::mm::madvise(at, page as usize, rustix::mm::Advice::LinuxPopulateWrite).is_ok()
        };
        if !backing.in_memory || !known {
            return;
        }
        let before = faults();
        (pages..2 * pages).for_each(store);
        let after_touch = faults() - before;
        assert!(after_touch < pages / 8, "{after_touch} page faults in {pages} pages that were touched");
        // SAFETY: as above.
        let read = |at: u64| unsafe { reserve.base().add((at * page) as usize + 1).read_volatile() };
        assert!((0..2 * pages).all(|at| read(at) == 0), "touching has changed something");
    }

    /// A pool that is only read must not need room.
    #[test]
    fn reading_a_sparse_file_in_memory_allocates_nothing() {
        let Ok(dir) = tempfile::tempdir_in("/dev/shm") else { return };
        let page = rustix::param::page_size() as u64;
        let backing = FileBacking::create(dir.path().join("file")).unwrap();
        backing.file.write_all_at(&[7; 100], 3 * page).unwrap();
        backing.file.set_len(50 * page + 10).unwrap();
        let before = backing.file.metadata().unwrap().blocks();
        for access in [Access::Private, Access::Peek] {
            let reserve = Reserve::pages(1 << 20, 1 << 20).unwrap();
            backing.map(&Window::new(&reserve, 0..50 * page + 10, access)).unwrap();
            // SAFETY: within what was mapped; the file has a byte for each, or memory is in its place.
            let read = |at: u64| unsafe { reserve.base().add(at as usize).read_volatile() };
            let sum: u64 = (0..50 * page + 10).map(|at| u64::from(read(at))).sum();
            assert_eq!(sum, 700);
        }
        if lies_in_memory(&backing.file) {
            assert_eq!(backing.file.metadata().unwrap().blocks(), before);
        }
    }

    #[test]
    fn a_file_that_has_lost_its_name_is_not_locked() {
        let (dir, old) = file(4096);
        let path = dir.path().join("file");
        std::fs::write(dir.path().join("new"), "new").unwrap();
        std::fs::rename(dir.path().join("new"), &path).unwrap();
        for access in [Access::Shared, Access::Private, Access::Journaled] {
            let refused = old.try_lock(access).unwrap_err().to_string();
            assert!(refused.contains("another file has got its name meanwhile"), "{refused}");
        }
        FileBacking::open(&path).unwrap().try_lock(Access::Shared).unwrap();
        // Its lock was given back.
        old.file.try_lock().unwrap();
    }

    #[test]
    fn a_file_that_is_too_short_is_not_mapped() {
        let (_dir, backing) = file(4096);
        let reserve = Reserve::pages(1 << 20, 1 << 20).unwrap();
        let refused = backing.map(&Window::new(&reserve, 0..8192, Access::Shared)).unwrap_err();
        assert!(refused.to_string().contains("it has 4096 of 8192 bytes"), "{refused}");
        backing.map(&Window::new(&reserve, 0..4096, Access::Shared)).unwrap();
    }
}
