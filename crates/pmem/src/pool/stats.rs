//! Figures of a pool: from inside, or of a live pool from another process.

use std::path::Path;
use std::sync::Arc;

use super::file::PoolFile;
use super::geometry::HEADER_SIZE;
use super::header::{HeaderRef, PoolId, State, not_a_pool_by_length};
use super::structure::{IndexInfo, list};
use super::{Geometry, Pool};
use crate::backing::{Access, Backing, FileBacking};
use crate::error::{Error, Result};
use crate::medium::{Hardware, Medium};
use crate::session::Op;
use crate::space::SpaceStats;

/// Figures of a pool.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Stats {
    /// Its identity.
    pub id: PoolId,
    /// Its geometry.
    pub geometry: Geometry,
    /// Its size in bytes.
    pub size: u64,
    /// Bytes of its file; more than its size if a crash met it while it grew.
    pub file_size: u64,
    /// Whether it is closed.
    pub state: State,
    /// Its indices.
    pub indices: Vec<IndexInfo>,
    /// Its space.
    pub space: SpaceStats,
}

impl<M: Medium> Pool<M> {
    /// Figures of the pool. `O(chunks + indices)`.
    ///
    /// # Errors
    /// As [`indices`](Self::indices), and [`Error::Io`].
    pub fn stats(&self) -> Result<Stats> {
        let mut session = self.session()?;
        // The header of an open pool may run ahead of any length that was asked for before.
        let stats = look(&session.enter()?, self.name(), u64::MAX)?;
        Ok(Stats { file_size: self.inner.file.backing.len()?, ..stats })
    }
}

impl Pool<Hardware> {
    /// Figures of a pool that may be open elsewhere: takes no lock, writes nothing. What changes meanwhile may or may not
    /// be counted.
    ///
    /// # Errors
    /// As [`PoolOptions::open`](super::PoolOptions::open), apart from locks and unclean pools.
    pub fn peek(path: impl AsRef<Path>) -> Result<Stats> {
        let backing: Arc<dyn Backing> = Arc::new(FileBacking::open_read_only(path)?);
        loop {
            let len = backing.len()?;
            match peek(&backing, len) {
                // It has grown since its length was asked for.
                Err(Error::Truncated { .. }) if backing.len()? > len => {}
                done => return done,
            }
        }
    }
}

fn peek(backing: &Arc<dyn Backing>, len: u64) -> Result<Stats> {
    let name = backing.describe();
    if len < HEADER_SIZE {
        return Err(not_a_pool_by_length(&name, len));
    }
    let (backing, medium) = (Arc::clone(backing), Hardware::PAGE_CACHE);
    let mut file = PoolFile::map(backing, medium, Access::Peek, len, len, Geometry::default())?;
    file.alone(|_, op| look(op, &name, len))
}

fn look<M: Medium>(op: &Op<'_, M>, name: &str, file_size: u64) -> Result<Stats> {
    let sound = HeaderRef::new(op, name).read(file_size, true)?;
    let indices = list(op, &sound.geometry)?;
    let heap = sound.geometry.heap();
    let space = crate::space::stats(op, heap, heap.chunks(sound.size));
    let (id, geometry, size, state) = (sound.id, sound.geometry, sound.size, sound.state);
    Ok(Stats { id, geometry, size, file_size, state, indices, space })
}
