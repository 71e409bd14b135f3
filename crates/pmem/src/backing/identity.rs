//! Which file a file is, as far as its file system says so in words that last.

use std::fmt;
use std::fs::File;
use std::os::unix::fs::MetadataExt;
use std::time::UNIX_EPOCH;

/// What tells a file from a copy of it, each as 32 bits of a checksum; zero where the file system does not tell, or tells something
/// else after it was mounted again.
///
/// A rename within the file system changes none of them, a reboot neither. Device numbers are not among them: they change at a
/// reboot, and those of overlays and network file systems whenever they are mounted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct FileId {
    /// Of the inode's number.
    pub inode: u32,
    /// Of the time of birth, in nanoseconds.
    pub birth: u32,
    /// Of the file system's id.
    pub system: u32,
}

/// Why a file is not the one that was recorded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Differs {
    /// It has another inode.
    Inode,
    /// It was made at another time.
    Birth,
    /// It lies on another file system.
    System,
    /// It lies on a file system that does not tell, and the recorded one did not.
    Untold,
}

impl fmt::Display for Differs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Differs::Inode => "it has another inode",
            Differs::Birth => "it was made at another time",
            Differs::System => "it lies on another file system",
            Differs::Untold => "it lies on a file system that does not tell files apart",
        })
    }
}

impl FileId {
    /// That of a file.
    #[cfg(target_os = "linux")]
    pub(crate) fn of(file: &File) -> FileId {
        let kind = rustix::fs::fstatfs(file).map_or(0, |found| found.f_type as u64 & 0xffff_ffff);
        if !KEEPS_INODES.contains(&kind) {
            return FileId::default();
        }
        let mut id = Self::of_metadata(file);
        if KEEPS_ITS_ID.contains(&kind) {
            id.system = rustix::fs::fstatvfs(file).map_or(0, |found| hash(&found.f_fsid.to_le_bytes()));
        }
        id
    }

    /// That of a file.
    #[cfg(not(target_os = "linux"))]
    pub(crate) fn of(file: &File) -> FileId {
        Self::of_metadata(file)
    }

    fn of_metadata(file: &File) -> FileId {
        let Ok(found) = file.metadata() else { return FileId::default() };
        let birth = found.created().ok().and_then(|time| time.duration_since(UNIX_EPOCH).ok());
        FileId {
            inode: hash(&found.ino().to_le_bytes()),
            birth: birth.map_or(0, |time| hash(&(time.as_nanos() as u64).to_le_bytes())),
            system: 0,
        }
    }

    /// Whether anything is known.
    pub fn is_known(&self) -> bool {
        *self != FileId::default()
    }

    /// How a file differs from the one that was recorded. What one of the two does not tell is not compared.
    pub fn differs(&self, recorded: FileId) -> Option<Differs> {
        if !recorded.is_known() {
            return None;
        }
        if !self.is_known() {
            return Some(Differs::Untold);
        }
        let differ = |now: u32, then: u32| now != 0 && then != 0 && now != then;
        let parts = [
            (Differs::System, self.system, recorded.system),
            (Differs::Inode, self.inode, recorded.inode),
            (Differs::Birth, self.birth, recorded.birth),
        ];
        parts.into_iter().find(|(_, now, then)| differ(*now, *then)).map(|(what, ..)| what)
    }
}

fn hash(bytes: &[u8]) -> u32 {
    crc32c::crc32c(bytes).max(1)
}

/// File systems whose files keep their inode numbers and times of birth for good: ext2 to ext4, XFS, Btrfs, F2FS, bcachefs, ZFS, tmpfs,
/// ramfs, overlays, NFS. Others (FAT, exFAT, FUSE, 9P, SMB) may draw new numbers whenever they are mounted.
#[cfg(target_os = "linux")]
const KEEPS_INODES: [u64; 10] = [
    0xef53,
    0x5846_5342,
    0x9123_683e,
    0xf2f5_2010,
    0xca45_1a4e,
    0x2fc1_2fc1,
    0x0102_1994,
    0x8584_58f6,
    0x794c_7630,
    0x6969,
];

/// File systems whose id is a part of what lies on the disk: ext2 to ext4, Btrfs. That of XFS is the number of its device.
#[cfg(target_os = "linux")]
const KEEPS_ITS_ID: [u64; 2] = [0xef53, 0x9123_683e];

#[cfg(test)]
mod tests {
    use super::*;

    const HERE: FileId = FileId { inode: 1, birth: 2, system: 3 };

    #[test]
    fn what_is_not_told_is_not_compared() {
        assert_eq!(HERE.differs(HERE), None);
        assert_eq!(HERE.differs(FileId::default()), None, "nothing was recorded");
        assert_eq!(FileId::default().differs(HERE), Some(Differs::Untold));
        for (now, differs) in [
            (FileId { inode: 9, ..HERE }, Differs::Inode),
            (FileId { birth: 9, ..HERE }, Differs::Birth),
            (FileId { system: 9, ..HERE }, Differs::System),
        ] {
            assert_eq!((now.differs(HERE), HERE.differs(now)), (Some(differs), Some(differs)));
        }
        // A file system without times of birth, and one whose id does not last.
        for recorded in [FileId { birth: 0, ..HERE }, FileId { system: 0, ..HERE }] {
            assert_eq!((HERE.differs(recorded), recorded.differs(HERE)), (None, None));
            assert_eq!(FileId { inode: 9, ..HERE }.differs(recorded), Some(Differs::Inode));
        }
    }

    #[test]
    fn a_renamed_file_is_the_same_and_a_copied_one_is_not() {
        let dir = tempfile::tempdir().unwrap();
        let [old, new, copy] = ["old", "new", "copy"].map(|name| dir.path().join(name));
        let made = FileId::of(&File::create(&old).unwrap());
        std::fs::rename(&old, &new).unwrap();
        let renamed = FileId::of(&File::open(&new).unwrap());
        assert_eq!(made, renamed);
        std::fs::copy(&new, &copy).unwrap();
        let copied = FileId::of(&File::open(&copy).unwrap());
        // Where the temporary files lie on a file system of another sort, there is nothing to tell.
        assert_eq!(copied.differs(made).is_some(), made.is_known(), "{made:?} {copied:?}");
    }
}
