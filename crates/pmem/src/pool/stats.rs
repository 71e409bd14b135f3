//! Figures of a pool: from inside, or of a live pool from another process.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use super::file::PoolFile;
use super::geometry::HEADER_SIZE;
use super::header::{Accept, HeaderRef, State, journal_of, not_a_pool_by_length};
use super::indices::{IndexInfo, list};
use super::layout::Header;
use super::{Geometry, Pool};
use crate::backing::{Access, Backing, FileBacking};
use crate::error::{Error, Result};
use crate::ids::PoolId;
use crate::journal::{BesidePool, Of, Progress, Replay};
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
    /// The work on it, of a pool that is open: what the commits of its journal tell, or what [`Pool::show_operations`] stores. Only
    /// [`Pool::peek`] says it; [`Pool::journal_stats`] has more for whoever has the pool open.
    pub progress: Option<Progress>,
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
    /// be counted; of a pool with a journal what its last commit holds is.
    ///
    /// # Errors
    /// As [`PoolOptions::open`](super::PoolOptions::open), apart from locks and unclean pools.
    pub fn peek(path: impl AsRef<Path>) -> Result<Stats> {
        let path = path.as_ref();
        let backing: Arc<dyn Backing> = Arc::new(FileBacking::open_read_only(path)?);
        loop {
            let len = backing.len()?;
            match peek(&backing, len, path) {
                // It has grown since its length was asked for.
                Err(Error::Truncated { .. }) if backing.len()? > len => {}
                done => return done,
            }
        }
    }
}

/// How often a look at a journaled pool is repeated where a checkpoint meets it.
const LOOKS: usize = 5;

fn peek(backing: &Arc<dyn Backing>, len: u64, path: &Path) -> Result<Stats> {
    let name = backing.describe();
    if len < HEADER_SIZE {
        return Err(not_a_pool_by_length(&name, len));
    }
    let mut found = peek_once(backing, len, path)?;
    for _ in 1..LOOKS {
        let is_one_state = match found.1 {
            Looked::Without => true,
            // Until the journal is trimmed, the file and the records that were read make one state, whatever a checkpoint writes meanwhile.
            Looked::At(replay) => replay.is_current(),
            // A checkpoint may have met it; what is damaged stays so.
            Looked::InVain => false,
        };
        if is_one_state {
            break;
        }
        found = peek_once(backing, len, path)?;
    }
    Ok(found.0)
}

/// What a look at the journal has found.
enum Looked {
    /// There is none.
    Without,
    At(Box<Replay>),
    /// One that cannot be read. Whoever opens the pool is told why.
    InVain,
}

/// The figures, and what the journal says that the file may not.
fn peek_once(backing: &Arc<dyn Backing>, len: u64, path: &Path) -> Result<(Stats, Looked)> {
    let name = backing.describe();
    let mut head = [0; size_of::<Header>()];
    backing.read(0, &mut head)?;
    let read = |(pool, salt)| Replay::peek(&BesidePool::new(path), Of { name: &name, pool, salt, len });
    let replay = journal_of(&head).map(read);
    let has_journal = replay.is_some();
    let replay = replay.and_then(Result::ok);
    let access = if replay.is_some() { Access::Private } else { Access::Peek };
    let (backing, medium) = (Arc::clone(backing), Hardware::PAGE_CACHE);
    let mut file = PoolFile::map(backing, medium, access, len, len, Geometry::default())?;
    let (stats, shown) = file.alone(|_, op| {
        replay.as_ref().inspect(|replay| replay.images().store(op));
        look(op, &name, len).map(|stats| (stats, HeaderRef::new(op, &name).shown_operations()))
    })?;
    let shown = || {
        let (operations, counted) = shown.filter(|_| matches!(stats.state, State::Dirty { .. }))?;
        let counted = SystemTime::UNIX_EPOCH + Duration::from_nanos(counted);
        Some(Progress { commits: None, operations: Some(operations), counted: Some(counted) })
    };
    let progress = replay.as_ref().map(Replay::progress).or_else(shown);
    let looked = match replay {
        Some(replay) => Looked::At(Box::new(replay)),
        None if has_journal => Looked::InVain,
        None => Looked::Without,
    };
    Ok((Stats { progress, ..stats }, looked))
}

fn look<M: Medium>(op: &Op<'_, M>, name: &str, file_size: u64) -> Result<Stats> {
    let sound = HeaderRef::new(op, name).read(file_size, Accept::Unclean)?;
    let indices = list(op, &sound.geometry)?;
    let heap = sound.geometry.heap();
    let space = crate::space::stats(op, heap, heap.chunks(sound.size));
    let (id, geometry, size, state) = (sound.id, sound.geometry, sound.size, sound.state);
    Ok(Stats { id, geometry, size, file_size, state, indices, space, progress: None })
}
