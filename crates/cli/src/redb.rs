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

/// What entries are given to.
pub type Put<'a> = dyn FnMut(&[u8], &[u8]) -> Result<(), Failure> + 'a;

#[cfg(not(feature = "redb"))]
impl Table {
    pub fn open(path: &Path, table: Option<&str>) -> Result<Table, Failure> {
        let _ = table;
        let what = format!(
            "this build cannot read {}; get one with `cargo install durix-cli --features redb`",
            path.display()
        );
        Err(Failure::usage(what))
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
mod read {
    use std::path::Path;

    use durix::{Encode, TypeTag, Types, Value};
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
    trait Same: redb::Value + 'static {
        fn tag() -> TypeTag;
        fn write(value: &Self::SelfType<'_>, out: &mut Vec<u8>) -> Result<(), durix::encode::Unfit>;
    }

    macro_rules! same {
        ($($type:ty, $own:ty;)*) => {$(
            impl Same for $type {
                fn tag() -> TypeTag {
                    <$own as Value>::tag()
                }

                fn write(value: &Self::SelfType<'_>, out: &mut Vec<u8>) -> Result<(), durix::encode::Unfit> {
                    value.encode(out)
                }
            }
        )*};
    }

    same! {
        &'static [u8], Vec<u8>;
        &'static str, String;
        u32, u32;
        u64, u64;
        i64, i64;
        u128, u128;
        f64, f64;
        bool, bool;
        (), ();
    }

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
            attempt! {
                &'static [u8]: &'static [u8], &'static str, u32, u64, i64, u128, f64, bool, ();
                &'static str: &'static [u8], &'static str, u32, u64, i64, u128, f64, bool, ();
                u32: &'static [u8], &'static str, u32, u64, i64, u128, f64, bool, ();
                u64: &'static [u8], &'static str, u32, u64, i64, u128, f64, bool, ();
                i64: &'static [u8], &'static str, u32, u64, i64, u128, f64, bool, ();
                u128: &'static [u8], &'static str, u32, u64, i64, u128, f64, bool, ();
            }
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
