//! Opening pools and indices as the arguments say.

use std::path::Path;
use std::sync::Arc;

use durix::{Index, Pool, PoolOptions, Session, Types};

use crate::args::{IndexArgs, PoolArgs};
use crate::failure::Failure;
use crate::text::Codec;

pub fn options(args: &PoolArgs) -> PoolOptions {
    PoolOptions::new().assume_pmem(args.assume_pmem).accept_unclean(args.accept_unclean)
}

/// That a pool can be there.
pub fn must_be_there(path: &Path) -> Result<(), Failure> {
    if path.is_dir() {
        return Err(Failure::Directory { path: path.into() });
    }
    match path.try_exists() {
        Ok(true) => Ok(()),
        Ok(false) => Err(Failure::NoPool { path: path.into() }),
        Err(source) => Err(Failure::Io { what: format!("looking for {}", path.display()), source }),
    }
}

/// That a new pool can be made there.
pub fn must_not_be_there(path: &Path) -> Result<(), Failure> {
    match path.symlink_metadata() {
        Ok(_) => Err(Failure::TargetExists { path: path.into() }),
        Err(_) => Ok(()),
    }
}

/// Opens a pool that is there, for reading only: what recovery mends stays in memory.
pub fn open_to_read(args: &PoolArgs) -> Result<Pool, Failure> {
    must_be_there(&args.pool)?;
    Ok(options(args).read_only(true).open(&args.pool)?)
}

/// Opens a pool that is there, for writing.
pub fn open_to_write(args: &PoolArgs) -> Result<Pool, Failure> {
    must_be_there(&args.pool)?;
    Ok(options(args).open(&args.pool)?)
}

/// An index, with a session to work on it.
pub struct Opened {
    pub pool: Pool,
    pub index: Arc<dyn Index>,
    pub session: Session,
    pub codec: Codec,
}

impl Opened {
    /// Opens an index that is there.
    pub fn existing(pool: Pool, args: &IndexArgs) -> Result<Opened, Failure> {
        let opened = match &args.kind {
            Some(kind) => durix::kind::named(kind)?.open(&pool, &args.index),
            None => durix::kind::open_as_is(&pool, &args.index),
        };
        let index = opened.map_err(|error| match error {
            durix::Error::Pool(durix_pmem::Error::NoSuchIndex { name }) => no_index(&pool, name),
            other => other.into(),
        })?;
        Self::over(pool, index, args)
    }

    /// Opens an index, or makes it: of the kind asked for, or the default one.
    pub fn existing_or_new(pool: Pool, args: &IndexArgs) -> Result<Opened, Failure> {
        if pool.indices()?.iter().any(|info| info.name == args.index) {
            return Self::existing(pool, args);
        }
        let kind = args.kind.as_deref().unwrap_or(durix::kind::DEFAULT);
        let index = durix::kind::named(kind)?.open_or_create(&pool, &args.index)?;
        Self::over(pool, index, args)
    }

    fn over(pool: Pool, index: Arc<dyn Index>, args: &IndexArgs) -> Result<Opened, Failure> {
        let mut session = pool.session()?;
        let types = Types::of(&*index, &session.enter()?);
        Ok(Opened { pool, index, session, codec: Codec::new(types, args.escaped) })
    }

    /// Ends the work: everything is durable as far as the medium goes, and the pool is marked as closed.
    pub fn close(self) -> Result<(), Failure> {
        let Opened { pool, index, mut session, .. } = self;
        index.sync(&mut session)?;
        drop((index, session));
        Ok(pool.close()?)
    }
}

fn no_index(pool: &Pool, index: String) -> Failure {
    let names: Vec<String> = pool.indices().unwrap_or_default().into_iter().map(|info| info.name).collect();
    let there = if names.is_empty() { "none".into() } else { names.join(", ") };
    Failure::NoIndex { path: pool.name().into(), index, there }
}
