//! Tables of redb, with the feature `redb`.

use std::path::Path;

use crate::failure::Failure;

/// The types of a table, and what reads it.
pub struct Table {
    pub types: durix::Types,
    #[cfg(feature = "redb")]
    read: read::Read,
    #[cfg(feature = "redb")]
    opened: read::Opened,
}

/// Writes indices as tables of a new file, which appears when it is whole; what it says of each index.
#[cfg(feature = "redb")]
pub fn write(pool: &durix::Pool, indices: &[String], path: &Path) -> Result<Vec<(String, u64)>, Failure> {
    write::write(pool, indices, path)
}

#[cfg(not(feature = "redb"))]
pub fn write(_: &durix::Pool, _: &[String], path: &Path) -> Result<Vec<(String, u64)>, Failure> {
    Err(absent("write", path))
}

#[cfg(not(feature = "redb"))]
fn absent(what: &str, path: &Path) -> Failure {
    let path = path.display();
    Failure::usage(format!("this build cannot {what} {path}; get one with `cargo install durix-cli --features redb`"))
}

/// What entries are given to.
pub type Put<'a> = dyn FnMut(&[u8], &[u8]) -> Result<(), Failure> + 'a;

#[cfg(not(feature = "redb"))]
impl Table {
    pub fn open(path: &Path, table: Option<&str>) -> Result<Table, Failure> {
        let _ = table;
        Err(absent("read", path))
    }

    pub fn for_each(&self, put: &mut Put<'_>) -> Result<(), Failure> {
        let _ = put;
        Ok(())
    }
}

#[cfg(feature = "redb")]
impl Table {
    /// The table of that name, or the only one.
    pub fn open(path: &Path, table: Option<&str>) -> Result<Table, Failure> {
        let opened = read::Opened::new(path, table)?;
        let (types, read) = opened.types()?;
        Ok(Table { types, read, opened })
    }

    /// Gives all entries away, in the order of the table, as Durix writes them.
    pub fn for_each(&self, put: &mut Put<'_>) -> Result<(), Failure> {
        (self.read)(&self.opened, put)
    }
}

#[cfg(feature = "redb")]
mod write {
    use std::os::unix::fs::PermissionsExt;
    use std::path::Path;

    use durix::{Index, Pool, TypeNames, Types};
    use redb::{Database, TableDefinition, WriteTransaction};

    use super::read::{Same, pairs};
    use crate::failure::Failure;
    use crate::pools;

    /// An index, and where it goes.
    struct Going<'a> {
        pool: &'a Pool,
        index: &'a dyn Index,
        name: &'a str,
        to: &'a WriteTransaction,
        path: &'a Path,
    }

    /// Writes an index of certain types; returns the number of entries.
    type Write = fn(&Going<'_>) -> Result<u64, Failure>;

    pub fn write(pool: &Pool, indices: &[String], path: &Path) -> Result<Vec<(String, u64)>, Failure> {
        pools::must_not_be_there(path)?;
        let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
        // What others may do with it, the process says (umask).
        let open = std::fs::Permissions::from_mode(0o666);
        let partial = tempfile::Builder::new().prefix(".durix-dump-").permissions(open).tempfile_in(folder);
        let partial = partial.map_err(Failure::io(format!("making a file in {}", folder.display())))?;
        let failed = |error: redb::Error| failed(path, &error);
        let db = Database::create(partial.path()).map_err(|error| failed(error.into()))?;
        let to = db.begin_write().map_err(|error| failed(error.into()))?;
        let mut written = Vec::new();
        for name in indices {
            let index = durix::kind::open_as_is(pool, name)?;
            let types = Types::of(&*index, &pool.session()?.enter()?);
            let write = writer(types).ok_or_else(|| {
                let types = TypeNames::of(pool).both(types);
                Failure::usage(format!(
                    "index {name:?} holds {types}, for which this command knows no types of redb (bytes, string, u32, u64, i64, u128; values \
                     also f64, bool, ()); name another --index, or write a program"
                ))
            })?;
            let entries = write(&Going { pool, index: &*index, name, to: &to, path })?;
            written.push((name.clone(), entries));
        }
        to.commit().map_err(|error| failed(error.into()))?;
        drop(db);
        let kept = partial.persist_noclobber(path).map_err(|error| error.error);
        kept.map_err(Failure::io(format!("giving the new file the name {}", path.display())))?;
        Ok(written)
    }

    /// What writes an index of these types.
    fn writer(types: Types) -> Option<Write> {
        macro_rules! attempt {
            ($($key:ty: $($value:ty),*;)*) => {$($(
                if types == (Types { key: <$key as Same>::tag(), value: <$value as Same>::tag() }) {
                    return Some(write_index::<$key, $value>);
                }
            )*)*};
        }
        pairs!(attempt);
        None
    }

    fn write_index<K: redb::Key + Same, V: Same>(going: &Going<'_>) -> Result<u64, Failure> {
        let failed = |error: redb::Error| failed(going.path, &error);
        let table = going.to.open_table(TableDefinition::<K, V>::new(going.name));
        let mut table = table.map_err(|error| failed(error.into()))?;
        let (mut session, mut cursor) = (going.pool.session()?, going.index.cursor());
        let (mut key, mut value, mut entries) = (Vec::new(), Vec::new(), 0);
        while cursor.next_into(&session.enter()?, &mut key, &mut value)? {
            let inserted = K::read(&key, |k| V::read(&value, |v| table.insert(k, v).map(drop)));
            let unfit = |unfit: durix::encode::Unfit| durix::Error::Undecodable {
                index: going.name.into(),
                what: unfit.to_string(),
            };
            let inserted = inserted.and_then(|inserted| inserted).map_err(unfit)?;
            inserted.map_err(|error| failed(error.into()))?;
            entries += 1;
        }
        Ok(entries)
    }

    fn failed(path: &Path, error: &redb::Error) -> Failure {
        let what = format!("writing {}", path.display());
        Failure::Io { what, source: std::io::Error::other(error.to_string()) }
    }
}

#[cfg(feature = "redb")]
mod read {
    use std::path::Path;

    use durix::encode::Unfit;
    use durix::{Decode, Encode, TypeTag, Types, Value};
    use redb::{
        ReadOnlyDatabase, ReadTransaction, ReadableDatabase, ReadableTable, TableDefinition, TableError, TableHandle,
    };

    use super::Put;
    use crate::failure::Failure;

    /// Reads a table of certain types.
    pub type Read = fn(&Opened, &mut Put<'_>) -> Result<(), Failure>;

    /// A table of a moment.
    pub struct Opened {
        path: String,
        table: String,
        moment: ReadTransaction,
    }

    /// A type of redb that Durix has, too.
    pub trait Same: redb::Value + 'static {
        fn tag() -> TypeTag;
        fn write(value: &Self::SelfType<'_>, out: &mut Vec<u8>) -> Result<(), Unfit>;
        /// Gives away the value that Durix has stored as these bytes.
        fn read<R>(bytes: &[u8], then: impl FnOnce(Self::SelfType<'_>) -> R) -> Result<R, Unfit>;
    }

    macro_rules! same {
        ($($type:ty, $own:ty, $decoded:ident => $given:expr;)*) => {$(
            impl Same for $type {
                fn tag() -> TypeTag {
                    <$own as Value>::tag()
                }

                fn write(value: &Self::SelfType<'_>, out: &mut Vec<u8>) -> Result<(), Unfit> {
                    value.encode(out)
                }

                fn read<R>(bytes: &[u8], then: impl FnOnce(Self::SelfType<'_>) -> R) -> Result<R, Unfit> {
                    let $decoded = <$own as Decode>::decode(bytes)?;
                    Ok(then($given))
                }
            }
        )*};
    }

    same! {
        &'static [u8], Vec<u8>, own => own.as_slice();
        &'static str, String, own => own.as_str();
        u32, u32, own => own;
        u64, u64, own => own;
        i64, i64, own => own;
        u128, u128, own => own;
        f64, f64, own => own;
        bool, bool, own => own;
        (), (), own => own;
    }

    /// Calls `$attempt` with each pair of types that both have.
    macro_rules! pairs {
        ($attempt:ident) => {
            $attempt! {
                &'static [u8]: &'static [u8], &'static str, u32, u64, i64, u128, f64, bool, ();
                &'static str: &'static [u8], &'static str, u32, u64, i64, u128, f64, bool, ();
                u32: &'static [u8], &'static str, u32, u64, i64, u128, f64, bool, ();
                u64: &'static [u8], &'static str, u32, u64, i64, u128, f64, bool, ();
                i64: &'static [u8], &'static str, u32, u64, i64, u128, f64, bool, ();
                u128: &'static [u8], &'static str, u32, u64, i64, u128, f64, bool, ();
            }
        };
    }
    pub(super) use pairs;

    fn read<K: redb::Key + Same, V: Same>(opened: &Opened, put: &mut Put<'_>) -> Result<(), Failure> {
        let failed = |error: redb::Error| opened.failed(&error);
        let table = opened.moment.open_table(TableDefinition::<K, V>::new(&opened.table));
        let table = table.map_err(|error| failed(error.into()))?;
        let entries = table.iter().map_err(|error| failed(error.into()))?;
        let (mut key, mut value) = (Vec::new(), Vec::new());
        for entry in entries {
            let (k, v) = entry.map_err(|error| failed(error.into()))?;
            key.clear();
            value.clear();
            K::write(&k.value(), &mut key).map_err(|unfit| opened.failed(&unfit))?;
            V::write(&v.value(), &mut value).map_err(|unfit| opened.failed(&unfit))?;
            put(&key, &value)?;
        }
        Ok(())
    }

    impl Opened {
        pub fn new(path: &Path, table: Option<&str>) -> Result<Opened, Failure> {
            let shown = path.display().to_string();
            let failed = |error: redb::Error| failed(&shown, &error);
            let db = ReadOnlyDatabase::open(path).map_err(|error| failed(error.into()))?;
            let moment = db.begin_read().map_err(|error| failed(error.into()))?;
            let tables = moment.list_tables().map_err(|error| failed(error.into()))?;
            let names: Vec<String> = tables.map(|table| table.name().to_owned()).collect();
            let found = match (table, names.as_slice()) {
                (Some(wanted), names) => names.iter().find(|name| *name == wanted),
                (None, [only]) => Some(only),
                (None, _) => None,
            };
            let Some(table) = found.cloned() else {
                let what = format!("{shown} has the tables: {}; choose one with --table", names.join(", "));
                return Err(Failure::usage(what));
            };
            Ok(Opened { path: shown, table, moment })
        }

        fn failed(&self, error: &dyn std::fmt::Display) -> Failure {
            failed(&self.path, error)
        }

        /// The types of the table: those with which it opens.
        pub fn types(&self) -> Result<(Types, Read), Failure> {
            macro_rules! attempt {
                ($($key:ty: $($value:ty),*;)*) => {$($(
                    match self.moment.open_table(TableDefinition::<$key, $value>::new(&self.table)) {
                        Ok(_) => return Ok((
                            Types { key: <$key as Same>::tag(), value: <$value as Same>::tag() },
                            read::<$key, $value>,
                        )),
                        Err(TableError::TableTypeMismatch { .. }) => {}
                        Err(error) => return Err(self.failed(&redb::Error::from(error))),
                    }
                )*)*};
            }
            pairs!(attempt);
            let what = format!(
                "table {:?} of {} has types that this command does not read (bytes, &str, u32, u64, i64, u128; values also f64, bool, ()): \
                 write a program that gives its entries to `try_extend`",
                self.table, self.path
            );
            Err(Failure::usage(what))
        }
    }

    fn failed(path: &str, error: &dyn std::fmt::Display) -> Failure {
        Failure::Io { what: format!("reading {path}"), source: std::io::Error::other(error.to_string()) }
    }
}
