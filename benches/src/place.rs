//! Where the benches keep their persistent memory: a file in `DURIX_DIR`, mapped and taken for persistent memory.

use std::ffi::CString;
use std::fs::{File, OpenOptions};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use durix_pmem::{Mapping, Medium, Reserve};
use rustix::mm::{MapFlags, ProtFlags};

/// The page size that the kernel promises for a directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pages {
    /// 4 KiB: ordinary page cache, `/dev/shm` as distributions mount it.
    Small,
    /// 2 MiB: a tmpfs mounted with `huge=always`, or a DAX mapping.
    Huge,
}

impl std::fmt::Display for Pages {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Pages::Small => "4 KiB pages",
            Pages::Huge => "2 MiB pages",
        })
    }
}

/// Bytes that a file gets before it is the next one's turn.
const TURN: u64 = 2 << 20;

/// A directory to measure in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// The directory.
    pub dir: PathBuf,
    /// Its page size.
    pub pages: Pages,
}

/// What stands in the way of measuring in a directory.
#[derive(Debug, thiserror::Error)]
#[error("{action} {}: {source}; set DURIX_DIR to a directory with enough room", .path.display())]
pub struct Refused {
    action: &'static str,
    path: PathBuf,
    source: std::io::Error,
}

impl Place {
    /// The directory that `DURIX_DIR` names, `/dev/shm` without it.
    pub fn from_env() -> Place {
        let dir = std::env::var_os("DURIX_DIR").map_or_else(|| PathBuf::from("/dev/shm"), PathBuf::from);
        Place::at(dir)
    }

    /// A directory, with its page size looked up among the mounts.
    pub fn at(dir: PathBuf) -> Place {
        let mounts = std::fs::read_to_string("/proc/mounts").unwrap_or_default();
        let real = dir.canonicalize().unwrap_or_else(|_| dir.clone());
        let pages = pages_of(&mounts, &real);
        Place { dir, pages }
    }

    /// A directory with the other page size than this one, if the machine has one that can be written: `DURIX_HUGE_DIR`,
    /// or any tmpfs mounted with `huge=always`. For a place of huge pages, `/dev/shm`.
    pub fn other_page_size(&self) -> Option<Place> {
        let mounts = std::fs::read_to_string("/proc/mounts").unwrap_or_default();
        let named = std::env::var_os("DURIX_HUGE_DIR").map(PathBuf::from);
        let candidates = match self.pages {
            Pages::Small => named.into_iter().chain(huge_mounts(&mounts)).collect(),
            Pages::Huge => vec![PathBuf::from("/dev/shm")],
        };
        candidates.into_iter().map(Place::at).find(|p| p.pages != self.pages && p.is_writable())
    }

    fn is_writable(&self) -> bool {
        let path = self.unused_path();
        let made = File::create_new(&path).is_ok();
        let _ = std::fs::remove_file(&path);
        made
    }

    /// A path in this directory at which there is nothing.
    pub fn unused_path(&self) -> PathBuf {
        use std::sync::atomic::{AtomicU64, Ordering};
        static FILES: AtomicU64 = AtomicU64::new(0);
        let file = FILES.fetch_add(1, Ordering::Relaxed);
        self.dir.join(format!("durix-bench-{}-{file}", std::process::id()))
    }

    /// Maps `len` bytes of a new file in this directory, all of them allocated, zeroed and touched. The file has no name any
    /// more when this returns, so nothing is left behind however the process ends.
    ///
    /// # Errors
    /// [`Refused`] where the file cannot be made, allocated or mapped.
    pub fn map<M: Medium>(&self, len: u64, medium: M) -> Result<Mapping<M>, Refused> {
        let file = self.unnamed_file()?;
        self.allocate(&file, 0, len)?;
        self.map_file(&file, len, medium)
    }

    /// The same for `count` files that are to be compared: their pages are allocated in turn, 2 MiB of each. What the kernel
    /// gives first is scattered over the memory of the machine, what it gives later lies together, and a random access to the
    /// one takes up to a fifth longer than to the other; so no contestant may have the first pages for itself.
    ///
    /// # Errors
    /// As [`map`](Self::map).
    pub fn map_in_turn<M: Medium>(&self, count: usize, len: u64, medium: M) -> Result<Vec<Mapping<M>>, Refused> {
        self.map_each_in_turn(&vec![(len, medium); count])
    }

    /// The same for files of different lengths, each on its medium.
    ///
    /// # Errors
    /// As [`map`](Self::map).
    pub fn map_each_in_turn<M: Medium>(&self, wanted: &[(u64, M)]) -> Result<Vec<Mapping<M>>, Refused> {
        let count = wanted.len();
        let files = wanted.iter().map(|_| self.unnamed_file()).collect::<Result<Vec<_>, _>>()?;
        let longest = wanted.iter().map(|(len, _)| *len).max().unwrap_or(0);
        for (turn, from) in (0..longest).step_by(TURN as usize).enumerate() {
            for who in (0..count).map(|who| (turn + who) % count).filter(|who| from < wanted[*who].0) {
                self.allocate(&files[who], from, TURN.min(wanted[who].0 - from))?;
            }
        }
        files.iter().zip(wanted).map(|(file, (len, medium))| self.map_file(file, *len, *medium)).collect()
    }

    fn refused(&self, action: &'static str, source: impl Into<std::io::Error>) -> Refused {
        Refused { action, path: self.dir.clone(), source: source.into() }
    }

    /// A new file, unlinked already.
    fn unnamed_file(&self) -> Result<File, Refused> {
        let path = self.unused_path();
        let file = OpenOptions::new().read(true).write(true).create_new(true).open(&path);
        let file = file.map_err(|e| self.refused("creating a file in", e))?;
        std::fs::remove_file(&path).map_err(|e| self.refused("unlinking a file in", e))?;
        Ok(file)
    }

    fn allocate(&self, file: &File, from: u64, len: u64) -> Result<(), Refused> {
        let flags = rustix::fs::FallocateFlags::empty();
        rustix::fs::fallocate(file, flags, from, len).map_err(|e| self.refused("allocating a file in", e))
    }

    fn map_file<M: Medium>(&self, file: &File, len: u64, medium: M) -> Result<Mapping<M>, Refused> {
        let other = |e: durix_pmem::Error| std::io::Error::other(e);
        let reserve = Reserve::pages(len, len).map_err(|e| self.refused("reserving addresses for", other(e)))?;
        map_over(&reserve, file, len).map_err(|e| self.refused("mapping a file in", e))?;
        Mapping::new(reserve, len, medium, true).map_err(|e| self.refused("opening a mapping in", other(e)))
    }
}

/// Maps the first `len` bytes of `file` over the front of the reserve: synchronously where the file system is DAX.
fn map_over(reserve: &Reserve, file: &File, len: u64) -> std::io::Result<()> {
    assert!(len <= reserve.len() as u64);
    let kinds = [MapFlags::SHARED_VALIDATE | MapFlags::SYNC, MapFlags::SHARED];
    let mut result = Ok(());
    for kind in kinds {
        // SAFETY: the range was reserved by us, is owned by `reserve`, nothing refers to its contents yet, and
        // whatever is mapped over it is unmapped together with it. The file is ours alone and has its full length
        // allocated.
        let mapped = unsafe {
            rustix::mm::mmap(
                reserve.base().as_ptr().cast(),
                len as usize,
                ProtFlags::READ | ProtFlags::WRITE,
                kind | MapFlags::FIXED | MapFlags::POPULATE,
                file,
                0,
            )
        };
        match mapped {
            Ok(_) => return Ok(()),
            Err(errno) => result = Err(errno.into()),
        }
    }
    result
}

/// The page size of the mount that holds `dir`, from the text of `/proc/mounts`.
fn pages_of(mounts: &str, dir: &Path) -> Pages {
    let holding = parse(mounts).filter(|m| dir.starts_with(&m.point)).max_by_key(|m| m.point.as_os_str().len());
    match holding {
        Some(mount) if mount.huge() => Pages::Huge,
        _ => Pages::Small,
    }
}

/// The mounts with huge pages, from the text of `/proc/mounts`.
fn huge_mounts(mounts: &str) -> Vec<PathBuf> {
    parse(mounts).filter(Mount::huge).map(|m| m.point).collect()
}

struct Mount {
    point: PathBuf,
    kind: String,
    options: String,
}

impl Mount {
    fn huge(&self) -> bool {
        let tmpfs = self.kind == "tmpfs" && self.options.split(',').any(|o| o == "huge=always");
        let dax = self.options.split(',').any(|o| o == "dax" || o == "dax=always");
        tmpfs || dax
    }
}

fn parse(mounts: &str) -> impl Iterator<Item = Mount> {
    mounts.lines().filter_map(|line| {
        let mut fields = line.split(' ').skip(1);
        let point = PathBuf::from(fields.next()?.replace("\\040", " "));
        Some(Mount { point, kind: fields.next()?.into(), options: fields.next()?.into() })
    })
}

/// Bytes free in a directory, or `None` where the kernel does not say.
pub fn free_bytes(dir: &Path) -> Option<u64> {
    let path = CString::new(dir.as_os_str().as_bytes()).ok()?;
    let stat = rustix::fs::statvfs(path.as_c_str()).ok()?;
    Some(stat.f_bavail * stat.f_frsize)
}

#[cfg(test)]
mod tests {
    use super::*;
    use durix_pmem::{Hardware, Off, Word};
    use std::sync::atomic::Ordering;

    const MOUNTS: &str = "\
/dev/root / ext4 rw,relatime 0 0
tmpfs /dev/shm tmpfs rw,nosuid 0 0
none /mnt/huge\\040pages tmpfs rw,huge=always,size=2097152k 0 0
none /mnt/within tmpfs rw,huge=within_size 0 0
/dev/pmem0 /mnt/pmem ext4 rw,relatime,dax=always 0 0
broken";

    #[test]
    fn the_longest_mount_point_decides_about_the_pages() {
        for (dir, pages) in [
            ("/dev/shm", Pages::Small),
            ("/home", Pages::Small),
            ("/mnt/huge pages", Pages::Huge),
            ("/mnt/huge pages/below", Pages::Huge),
            ("/mnt/hugely", Pages::Small),
            ("/mnt/within", Pages::Small),
            ("/mnt/pmem/x", Pages::Huge),
        ] {
            assert_eq!(pages_of(MOUNTS, Path::new(dir)), pages, "{dir}");
        }
        assert_eq!(huge_mounts(MOUNTS), [Path::new("/mnt/huge pages"), Path::new("/mnt/pmem")]);
    }

    #[test]
    fn a_mapped_file_is_zeroed_writable_and_leaves_no_name() {
        let dir = std::env::temp_dir().join(format!("durix-bench-place-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        let place = Place::at(dir.clone());
        let mapping = place.map(3 << 20, Hardware::PAGE_CACHE).unwrap();
        assert_eq!(std::fs::read_dir(&dir).unwrap().count(), 0);
        let mut session = mapping.session().unwrap();
        let op = session.enter().unwrap();
        let words = op.slice("words", Off::<Word>::new(0), (3 << 20) / 8).unwrap();
        assert!(words.iter().all(|w| op.load(w, Ordering::Relaxed) == 0));
        op.store(words.last().unwrap(), 7, Ordering::Relaxed);
        assert_eq!(op.load(words.last().unwrap(), Ordering::Relaxed), 7);
        std::fs::remove_dir(&dir).unwrap();
        let error = place.map(1 << 20, Hardware::PAGE_CACHE).unwrap_err().to_string();
        assert!(error.starts_with("creating a file in ") && error.contains("DURIX_DIR"), "{error}");
    }
}
