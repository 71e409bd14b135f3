//! Copying a pool's indices into a new pool, entry by entry.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use durix_pmem::{Medium, Pool, PoolOptions};

use crate::error::{Error, Result};
use crate::index::Index;
use crate::kind;
use crate::types::Types;

/// How many entries were copied of which index.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CopyReport {
    /// Name and number of entries, in the order of copying.
    pub indices: Vec<(String, u64)>,
}

/// Entries that are read in one operation.
const STEP: usize = 64;

/// Where a copy is made until it is whole.
pub fn partial(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".partial");
    name.into()
}

/// Gives a finished copy its name, which nobody may have taken meanwhile.
///
/// # Errors
/// [`Error::Pool`] with `AlreadyExists`, or what the system says.
pub fn publish(partial: &Path, path: &Path) -> Result<()> {
    let io = |action: &str, source| Error::Pool(durix_pmem::Error::Io { action: action.into(), source });
    // Unlike a rename, a link never replaces what is there.
    std::fs::hard_link(partial, path).map_err(|error| match error.kind() {
        std::io::ErrorKind::AlreadyExists => exists(path),
        _ => io(&format!("giving {} its name", path.display()), error),
    })?;
    let _ = std::fs::remove_file(partial);
    // The name itself is durable once its folder is.
    let folder = path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
    std::fs::File::open(folder).and_then(|f| f.sync_all()).map_err(|e| io(&format!("syncing {}", folder.display()), e))
}

fn exists(path: &Path) -> Error {
    Error::Pool(durix_pmem::Error::AlreadyExists { name: path.display().to_string() })
}

pub(crate) fn copy_pool<M: Medium>(source: &Pool<M>, path: &Path, options: &PoolOptions) -> Result<CopyReport> {
    if path.try_exists().unwrap_or(true) {
        return Err(exists(path));
    }
    let partial = partial(path);
    match std::fs::remove_file(&partial) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            let action = format!("removing what an earlier copy left, {}", partial.display());
            return Err(durix_pmem::Error::Io { action, source: error }.into());
        }
        _ => {}
    }
    let done = copy_into(source, &partial, options);
    match done {
        Ok(report) => publish(&partial, path).map(|()| report),
        Err(error) => {
            let _ = std::fs::remove_file(&partial);
            Err(error)
        }
    }
}

fn copy_into<M: Medium>(source: &Pool<M>, path: &Path, options: &PoolOptions) -> Result<CopyReport> {
    let target: Pool = options.create(path)?;
    let mut report = CopyReport::default();
    for info in source.indices()? {
        let from = match kind::open_as_is(source, &info.name) {
            // It was dropped or renamed meanwhile.
            Err(Error::Pool(durix_pmem::Error::NoSuchIndex { .. })) => continue,
            opened => opened?,
        };
        let entry = kind::of::<durix_pmem::Hardware>(info.kind)
            .ok_or_else(|| Error::ForeignKind { index: info.name.clone(), found: info.kind })?;
        let to = entry.open_or_create(&target, &info.name)?;
        let copied = copy_index(source, &from, &target, &to)?;
        report.indices.push((info.name, copied));
    }
    target.close()?;
    sync_file(path)?;
    Ok(report)
}

/// Makes the copy durable on the disk, too, where it is an ordinary file.
fn sync_file(path: &Path) -> Result<()> {
    let io = |source| Error::Pool(durix_pmem::Error::Io { action: format!("syncing {}", path.display()), source });
    std::fs::File::open(path).and_then(|file| file.sync_all()).map_err(io)
}

/// Copies all entries and the types of one index into another, which is empty. Returns how many entries there were.
///
/// # Errors
/// As [`Index::get`] and [`Index::insert`].
pub fn copy_index<M: Medium, N: Medium>(
    source: &Pool<M>,
    from: &Arc<dyn Index<M>>,
    target: &Pool<N>,
    to: &Arc<dyn Index<N>>,
) -> Result<u64> {
    let (mut reading, mut writing) = (source.session()?, target.session()?);
    let types = Types::of(&**from, &reading.enter()?);
    types.declare(&**to, &writing.enter()?);
    let mut cursor = from.cursor();
    let mut copied = 0;
    let mut step: Vec<(Vec<u8>, Vec<u8>)> = Vec::new();
    loop {
        {
            // Not longer than a step: an operation holds up checkpoints.
            let op = reading.enter()?;
            while step.len() < STEP
                && let Some((key, value)) = cursor.next(&op)?
            {
                step.push((key.to_vec(), value.to_vec()));
            }
        }
        if step.is_empty() {
            break;
        }
        for (key, value) in step.drain(..) {
            copied += u64::from(to.insert(&writing.enter()?, &key, &value)?);
        }
    }
    to.sync(&mut writing)?;
    Ok(copied)
}
