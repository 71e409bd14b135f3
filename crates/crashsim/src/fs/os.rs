//! What simulated files and files of the operating system have in common, for code that runs on both.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use super::{Open, SimulatedFile, SimulatedFs};

/// A file system: the code under test is generic over it, runs on [`OsFs`] in production and on [`SimulatedFs`] in its crash test. Errors
/// are those of the system.
#[expect(clippy::missing_errors_doc, reason = "said once, above")]
pub trait FileSystem: Clone {
    /// An open file.
    type File: OpenFile;
    /// Opens a file for reading and writing.
    #[track_caller]
    fn open(&self, path: impl AsRef<Path>, how: Open) -> io::Result<Self::File>;
    /// Whether there is a file or a directory of that name.
    fn exists(&self, path: impl AsRef<Path>) -> io::Result<bool>;
    /// The names in a directory, sorted.
    fn read_dir(&self, path: impl AsRef<Path>) -> io::Result<Vec<String>>;
    /// Gives a file another name, and takes that name from whatever has it.
    #[track_caller]
    fn rename(&self, from: impl AsRef<Path>, to: impl AsRef<Path>) -> io::Result<()>;
    /// Gives a file a second name, which must be free.
    #[track_caller]
    fn hard_link(&self, from: impl AsRef<Path>, to: impl AsRef<Path>) -> io::Result<()>;
    /// Takes a name from a file.
    #[track_caller]
    fn remove_file(&self, path: impl AsRef<Path>) -> io::Result<()>;
    /// Makes a directory.
    #[track_caller]
    fn create_dir(&self, path: impl AsRef<Path>) -> io::Result<()>;
    /// Makes the names in a directory durable.
    #[track_caller]
    fn sync_directory(&self, path: impl AsRef<Path>) -> io::Result<()>;
}

/// An open file of a [`FileSystem`].
#[expect(clippy::missing_errors_doc, reason = "said at the file system")]
#[expect(clippy::len_without_is_empty, reason = "files are asked for their length, and that fails")]
pub trait OpenFile {
    /// Its length in bytes.
    fn len(&self) -> io::Result<u64>;
    /// Reads from an offset on. Returns how many bytes there were.
    fn read_at(&self, bytes: &mut [u8], offset: u64) -> io::Result<usize>;
    /// Writes from an offset on. Returns how many bytes were written.
    #[track_caller]
    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<usize>;
    /// Cuts it, or makes it longer by zeroes.
    #[track_caller]
    fn set_len(&self, len: u64) -> io::Result<()>;
    /// Makes contents and length durable (`fsync`).
    #[track_caller]
    fn sync_all(&self) -> io::Result<()>;
    /// Makes contents durable, and as much of the length as it takes to read them (`fdatasync`).
    #[track_caller]
    fn sync_data(&self) -> io::Result<()>;

    /// Writes all bytes, by as many calls as it takes.
    #[track_caller]
    fn write_all_at(&self, mut bytes: &[u8], mut offset: u64) -> io::Result<()> {
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

    /// All of it.
    fn read_all(&self) -> io::Result<Vec<u8>> {
        let mut bytes = vec![0; self.len()? as usize];
        let mut at = 0;
        while at < bytes.len() {
            match self.read_at(&mut bytes[at..], at as u64)? {
                0 => return Err(io::ErrorKind::UnexpectedEof.into()),
                read => at += read,
            }
        }
        Ok(bytes)
    }
}

/// Files of the operating system, below a directory.
#[derive(Clone, Debug)]
pub struct OsFs {
    root: PathBuf,
}

impl OsFs {
    /// Those below `root`, which must be there.
    pub fn new(root: impl Into<PathBuf>) -> Self {
        OsFs { root: root.into() }
    }

    fn at(&self, path: impl AsRef<Path>) -> PathBuf {
        let path = path.as_ref();
        self.root.join(path.strip_prefix("/").unwrap_or(path))
    }
}

impl FileSystem for OsFs {
    type File = File;

    fn open(&self, path: impl AsRef<Path>, how: Open) -> io::Result<File> {
        let mut options = OpenOptions::new();
        options.read(true).write(true);
        match how {
            Open::Existing => &mut options,
            Open::OrNew => options.create(true),
            Open::New => options.create_new(true),
            Open::Emptied => options.create(true).truncate(true),
        };
        options.open(self.at(path))
    }

    fn exists(&self, path: impl AsRef<Path>) -> io::Result<bool> {
        self.at(path).try_exists()
    }

    fn read_dir(&self, path: impl AsRef<Path>) -> io::Result<Vec<String>> {
        let name = |entry: io::Result<std::fs::DirEntry>| entry.map(|e| e.file_name().to_string_lossy().into_owned());
        let mut names: Vec<String> = std::fs::read_dir(self.at(path))?.map(name).collect::<io::Result<_>>()?;
        names.sort();
        Ok(names)
    }

    fn rename(&self, from: impl AsRef<Path>, to: impl AsRef<Path>) -> io::Result<()> {
        std::fs::rename(self.at(from), self.at(to))
    }

    fn hard_link(&self, from: impl AsRef<Path>, to: impl AsRef<Path>) -> io::Result<()> {
        std::fs::hard_link(self.at(from), self.at(to))
    }

    fn remove_file(&self, path: impl AsRef<Path>) -> io::Result<()> {
        std::fs::remove_file(self.at(path))
    }

    fn create_dir(&self, path: impl AsRef<Path>) -> io::Result<()> {
        std::fs::create_dir(self.at(path))
    }

    fn sync_directory(&self, path: impl AsRef<Path>) -> io::Result<()> {
        File::open(self.at(path))?.sync_all()
    }
}

impl OpenFile for File {
    fn len(&self) -> io::Result<u64> {
        self.metadata().map(|metadata| metadata.len())
    }

    fn read_at(&self, bytes: &mut [u8], offset: u64) -> io::Result<usize> {
        FileExt::read_at(self, bytes, offset)
    }

    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<usize> {
        FileExt::write_at(self, bytes, offset)
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        File::set_len(self, len)
    }

    fn sync_all(&self) -> io::Result<()> {
        File::sync_all(self)
    }

    fn sync_data(&self) -> io::Result<()> {
        File::sync_data(self)
    }
}

impl FileSystem for SimulatedFs {
    type File = SimulatedFile;

    fn open(&self, path: impl AsRef<Path>, how: Open) -> io::Result<SimulatedFile> {
        SimulatedFs::open(self, path, how)
    }

    fn exists(&self, path: impl AsRef<Path>) -> io::Result<bool> {
        SimulatedFs::exists(self, path)
    }

    fn read_dir(&self, path: impl AsRef<Path>) -> io::Result<Vec<String>> {
        SimulatedFs::read_dir(self, path)
    }

    fn rename(&self, from: impl AsRef<Path>, to: impl AsRef<Path>) -> io::Result<()> {
        SimulatedFs::rename(self, from, to)
    }

    fn hard_link(&self, from: impl AsRef<Path>, to: impl AsRef<Path>) -> io::Result<()> {
        SimulatedFs::hard_link(self, from, to)
    }

    fn remove_file(&self, path: impl AsRef<Path>) -> io::Result<()> {
        SimulatedFs::remove_file(self, path)
    }

    fn create_dir(&self, path: impl AsRef<Path>) -> io::Result<()> {
        SimulatedFs::create_dir(self, path)
    }

    fn sync_directory(&self, path: impl AsRef<Path>) -> io::Result<()> {
        SimulatedFs::sync_directory(self, path)
    }
}

impl OpenFile for SimulatedFile {
    fn len(&self) -> io::Result<u64> {
        SimulatedFile::len(self)
    }

    fn read_at(&self, bytes: &mut [u8], offset: u64) -> io::Result<usize> {
        SimulatedFile::read_at(self, bytes, offset)
    }

    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<usize> {
        SimulatedFile::write_at(self, bytes, offset)
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        SimulatedFile::set_len(self, len)
    }

    fn sync_all(&self) -> io::Result<()> {
        SimulatedFile::sync_all(self)
    }

    fn sync_data(&self) -> io::Result<()> {
        SimulatedFile::sync_data(self)
    }
}
