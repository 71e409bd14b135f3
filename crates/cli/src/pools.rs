//! Opening pools and indices as the arguments say.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use durix::kind::Entry;
use durix::{Hardware, Index, Lengths, Level, Pool, PoolOptions, Session, TypeNames, TypeTag, Types};
use durix_pmem::pool::IndexInfo;

use crate::args::{IndexArgs, PoolArgs, TypeArgs};
use crate::failure::Failure;
use crate::text::Codec;

pub fn options(args: &PoolArgs) -> PoolOptions {
    let options = PoolOptions::new().assume_pmem(args.assume_pmem).accept_unclean(args.accept_unclean);
    let options = options.usual_durability(Level::Immediate).open_timeout(patience(args));
    let options = args.durability.map_or(options.clone(), |level| options.durability(level));
    args.written_memory.map_or(options.clone(), |mib| options.written_memory(mib << 20))
}

/// How long to wait for another process to close the pool.
pub fn patience(args: &PoolArgs) -> Duration {
    Duration::from_secs(args.wait.into())
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

/// Whether that name of an input means the standard input.
pub fn is_standard_input(path: &Path) -> bool {
    path.as_os_str() == "-"
}

/// That a new pool can be made there.
pub fn must_not_be_there(path: &Path) -> Result<(), Failure> {
    match path.symlink_metadata() {
        Ok(_) => Err(Failure::TargetExists { path: path.into() }),
        Err(_) => folder_must_be_there(path),
    }
}

/// That the folder of a file is there.
pub fn folder_must_be_there(path: &Path) -> Result<(), Failure> {
    match path.parent() {
        Some(folder) if !folder.as_os_str().is_empty() && !folder.exists() => {
            Err(Failure::NoFolder { path: folder.into() })
        }
        _ => Ok(()),
    }
}

/// Opens a pool that is there, for reading only: what recovery mends stays in memory.
pub fn open_to_read(args: &PoolArgs) -> Result<Pool, Failure> {
    must_be_there(&args.pool)?;
    settled(options(args).read_only(true).open(&args.pool)?)
}

/// Opens a pool that is there, for writing.
pub fn open_to_write(args: &PoolArgs) -> Result<Pool, Failure> {
    must_be_there(&args.pool)?;
    settled(options(args).open(&args.pool)?)
}

/// The pool, after the transactions were finished that a crash has interrupted.
pub fn settled(pool: Pool) -> Result<Pool, Failure> {
    durix::recover(&pool)?;
    Ok(pool)
}

/// The indices of a pool, without those of the facade itself.
pub fn listed(mut indices: Vec<IndexInfo>) -> Vec<IndexInfo> {
    indices.retain(|info| !durix::kind::is_internal(info.kind));
    indices
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

    /// Opens an index, or makes it: of the kind asked for, or the default one, to hold the types asked for.
    pub fn existing_or_new(pool: Pool, args: &IndexArgs, types: &TypeArgs) -> Result<Opened, Failure> {
        let there = pool.indices()?.iter().any(|info| info.name == args.index);
        let mut opened = if there {
            Self::existing(pool, args)?
        } else {
            let entry = new_kind(args)?;
            new_types(&entry, types)?;
            let index = entry.open_or_create(&pool, &args.index)?;
            Self::over(pool, index, args)?
        };
        opened.settle_types(args, types)?;
        Ok(opened)
    }

    /// Gives an index that is empty its types, and compares those of another with what was asked for.
    fn settle_types(&mut self, args: &IndexArgs, asked: &TypeArgs) -> Result<(), Failure> {
        let op = self.session.enter()?;
        let found = Types::of(&*self.index, &op);
        let info = self.pool.indices()?.into_iter().find(|info| info.name == args.index);
        let entry = info.and_then(|info| durix::kind::of::<Hardware>(info.kind));
        // An interrupted run may have left it without types.
        if let Some(entry) = entry
            && found == Types::default()
            && self.index.is_empty(&op)?
        {
            let types = new_types(&entry, asked)?;
            types.declare(&*self.index, &op);
            self.codec = Codec::new(types, TypeNames::default(), args.escaped);
            return Ok(());
        }
        let differs = |asked: Option<TypeTag>, found| asked.is_some_and(|asked| asked != found);
        if differs(asked.key_type, found.key) || differs(asked.value_type, found.value) {
            let found = self.codec.type_names();
            let what = format!("index {:?} holds {found}; leave --key-type and --value-type out", args.index);
            return Err(Failure::usage(what));
        }
        Ok(())
    }

    fn over(pool: Pool, index: Arc<dyn Index>, args: &IndexArgs) -> Result<Opened, Failure> {
        let mut session = pool.session()?;
        let types = Types::of(&*index, &session.enter()?);
        let codec = Codec::new(types, TypeNames::of(&pool), args.escaped);
        Ok(Opened { pool, index, session, codec })
    }

    /// Ends the work: everything is durable as far as the medium goes, and the pool is marked as closed.
    pub fn close(self) -> Result<(), Failure> {
        let Opened { pool, index, mut session, .. } = self;
        index.sync(&mut session)?;
        drop((index, session));
        Ok(pool.close()?)
    }
}

/// The kind of a new index.
pub fn new_kind(args: &IndexArgs) -> Result<Entry, Failure> {
    Ok(durix::kind::named(args.kind.as_deref().unwrap_or(durix::kind::DEFAULT))?)
}

/// The types of a new index of a kind: what was asked for, or bytes, or numbers where the kind takes 8 bytes only.
pub fn new_types(entry: &Entry, asked: &TypeArgs) -> Result<Types, Failure> {
    let usual = |lengths| match lengths {
        Lengths::UpTo(_) => TypeTag::BYTES,
        Lengths::Exactly(_) => <u64 as durix::Key>::tag(),
    };
    let types = Types {
        key: asked.key_type.unwrap_or_else(|| usual(entry.limits.key)),
        value: asked.value_type.unwrap_or_else(|| usual(entry.limits.value)),
    };
    types.fit(entry.limits, entry.name)?;
    Ok(types)
}

fn no_index(pool: &Pool, index: String) -> Failure {
    let names: Vec<String> = listed(pool.indices().unwrap_or_default()).into_iter().map(|info| info.name).collect();
    let there = if names.is_empty() { "none".into() } else { names.join(", ") };
    Failure::NoIndex { path: pool.name().into(), index, there }
}
