//! The names of types whose [`TypeTag`] is only a hash, so that messages and `durix stat` can show them.
//!
//! The table of names is a structure of its own in the pool, named [`NAME`], that only this module opens. It is made when the first
//! such type is given to an index. A name is looked up for messages only: without it, the hash is shown.
//!
//! # Persist order
//! | edge | kept by | a crash between leaves | recovery |
//! |---|---|---|---|
//! | TY-N1 the record of a name < the tags of an index (TY-T1) | flush + fence | a name that no index uses | nothing to do |
//! | TY-N2 zeroed extent < its descriptor | flush + fence | a free chunk | nothing to do |
//!
//! A record counts if its hash holds, so no two of its words need to become durable together.

pub(crate) mod layout;

use std::collections::HashMap;

use durix_pmem::{Kind, Medium, Off, Op, Pool, Root, Session, Structure};
use xxhash_rust::xxh3::xxh3_64;

use self::layout::{EXTENT, MAX_NAME, NAME_AT, NameRecord, RECORD};
use crate::encode::TypeTag;
use crate::types::Types;
use crate::{Error, Result};

/// The name of the table's index.
pub(crate) const NAME: &str = "#types";
/// What it is.
pub(crate) const KIND: Kind = Kind { tag: *b"TYPENAME", version: layout::VERSION };

/// The table of a pool.
struct Table<M: Medium> {
    root: Root<M>,
}

impl<M: Medium> Structure<M> for Table<M> {
    const KIND: Kind = KIND;
    type Options = ();
    type Error = Error;

    fn create(_: &mut Session<M>, _: &Root<M>, (): &()) -> Result<()> {
        Ok(())
    }

    fn open(_: &mut Session<M>, root: Root<M>, (): &()) -> Result<Self> {
        Ok(Table { root })
    }
}

impl<M: Medium> Table<M> {
    fn records<'s>(&self, op: &Op<'s, M>) -> Vec<&'s NameRecord> {
        let extents = self.root.pool().space().extents(op, self.root.owner());
        let offsets = extents.iter().flat_map(|extent| {
            let (first, len) = (extent.off, extent.len / RECORD as u64);
            (0..len).map(move |nth| first + nth * RECORD as u64)
        });
        offsets.map(|off| op.at(Off::<NameRecord>::new(off))).collect()
    }

    /// Makes sure that a name is there, durably: one fence, two where the table grows.
    fn put(&self, op: &Op<'_, M>, tag: TypeTag, name: &str) -> Result<()> {
        let records = self.records(op);
        let there = records.iter().find(|record| read(op, record).is_some_and(|(found, _)| found == tag));
        if let Some(record) = there {
            // PERSIST TY-N1: flush+fence, again: what is visible may not be durable.
            op.persist(*record);
            return Ok(());
        }
        let record = match records.into_iter().find(|record| read(op, record).is_none()) {
            Some(free) => free,
            None => self.grow(op)?,
        };
        op.store_bytes(&record.words, &written(tag, name));
        // PERSIST TY-N1: flush+fence
        op.persist(record);
        Ok(())
    }

    /// Another extent; returns its first record.
    fn grow<'s>(&self, op: &Op<'s, M>) -> Result<&'s NameRecord> {
        let space = self.root.pool().space();
        let reserved = space.reserve_extent(op, self.root.owner(), EXTENT)?;
        reserved.zero(op)?;
        // PERSIST TY-N2: flush+fence
        op.fence();
        // The fence of the record makes the descriptor durable, too.
        Ok(op.at(Off::new(space.activate(op, reserved)?.off)))
    }
}

/// The bytes of a record.
fn written(tag: TypeTag, name: &str) -> [u8; RECORD] {
    let mut bytes = [0; RECORD];
    let len = kept(name);
    bytes[8..16].copy_from_slice(&tag.word().to_le_bytes());
    bytes[16..24].copy_from_slice(&(len as u64).to_le_bytes());
    bytes[NAME_AT..NAME_AT + len].copy_from_slice(&name.as_bytes()[..len]);
    let hash = xxh3_64(&bytes[8..]);
    bytes[..8].copy_from_slice(&hash.to_le_bytes());
    bytes
}

/// How many bytes of a name are kept: whole characters.
fn kept(name: &str) -> usize {
    (0..=name.len().min(MAX_NAME)).rev().find(|at| name.is_char_boundary(*at)).unwrap_or(0)
}

/// What a record says, if it counts.
fn read<M: Medium>(op: &Op<'_, M>, record: &NameRecord) -> Option<(TypeTag, String)> {
    let mut bytes = [0; RECORD];
    let is_sound = op.load_checked(record, || {
        op.load_bytes(&record.words, &mut bytes);
        word(&bytes, 0) == xxh3_64(&bytes[8..])
    });
    let len = usize::try_from(word(&bytes, 16)).ok().filter(|len| is_sound && *len <= MAX_NAME)?;
    let name = String::from_utf8(bytes[NAME_AT..NAME_AT + len].to_vec()).ok()?;
    Some((TypeTag::from_word(word(&bytes, 8)), name))
}

fn word(bytes: &[u8; RECORD], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().expect("8 bytes"))
}

/// Makes the names of types durable, as far as their tags do not say them. A pool that has no room for names goes without.
///
/// # Errors
/// What is wrong with the pool.
pub(crate) fn remember<M: Medium>(pool: &Pool<M>, names: &[(TypeTag, String)]) -> Result<()> {
    let hashed: Vec<_> = names.iter().filter(|(tag, name)| tag.is_hash() && !name.is_empty()).collect();
    if hashed.is_empty() || pool.is_read_only() {
        return Ok(());
    }
    let put_all = || {
        let table = pool.open_structure::<Table<M>>(NAME, &())?;
        let mut session = pool.session()?;
        hashed.iter().try_for_each(|(tag, name)| table.put(&session.enter()?, *tag, name))
    };
    match put_all() {
        Err(Error::Pool(error)) if error.is_no_room() || matches!(error, durix_pmem::Error::TooManyIndices { .. }) => {
            Ok(())
        }
        done => done,
    }
}

/// The names of the types in a pool.
///
/// ```
/// use durix::{Db, Named, TypeNames, Types};
///
/// #[derive(serde::Serialize, serde::Deserialize)]
/// struct User { name: String }
/// impl Named for User { const NAME: &'static str = "User 1"; }
///
/// # let dir = tempfile::tempdir()?;
/// let db = Db::open_or_create(dir.path().join("app.durix"))?;
/// let users = db.map::<u64, User>("users")?;
/// let types = Types::of(&**users.index(), &db.pool().session()?.enter()?);
/// assert_eq!(TypeNames::of(db.pool()).both(types), "u64 to User 1");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, Default)]
pub struct TypeNames {
    names: HashMap<u64, String>,
}

impl TypeNames {
    /// The names that a pool knows; none where they cannot be read.
    ///
    /// ```
    /// # let heap = durix_pmem::backing::HeapBacking::new(64 << 20);
    /// # let db = durix::Db::over(durix::PoolOptions::new().create_on(heap, durix::Hardware::PAGE_CACHE)?);
    /// let map = db.map::<u64, [u8; 3]>("colours")?;
    /// let types = durix::Types::of(&**map.index(), &db.pool().session()?.enter()?);
    /// assert_eq!(durix::TypeNames::of(db.pool()).name(types.value), "[u8; 3]");
    /// # Ok::<(), durix::Error>(())
    /// ```
    pub fn of<M: Medium>(pool: &Pool<M>) -> TypeNames {
        let there = pool.readable_indices().is_ok_and(|(found, _)| found.iter().any(|info| info.kind == KIND));
        let names = || {
            let table = pool.open_existing::<Table<M>>(NAME, &())?;
            let mut session = pool.session()?;
            let op = session.enter()?;
            let read = table.records(&op).into_iter().filter_map(|record| read(&op, record));
            Ok::<_, Error>(read.map(|(tag, name)| (tag.word(), name)).collect())
        };
        TypeNames { names: there.then(names).and_then(Result::ok).unwrap_or_default() }
    }

    /// What a type is called: the name it was given, or else what its tag says.
    ///
    /// ```
    /// use durix::{TypeNames, TypeTag};
    ///
    /// let mut names = TypeNames::default();
    /// let tag = TypeTag::named("User 1");
    /// assert_ne!(names.name(tag), "User 1");                // only the hash is known
    /// names.insert(tag, "User 1".to_owned());
    /// assert_eq!(names.name(tag), "User 1");
    /// ```
    pub fn name(&self, tag: TypeTag) -> String {
        self.names.get(&tag.word()).filter(|_| tag.is_hash()).cloned().unwrap_or_else(|| tag.to_string())
    }

    /// The types of keys and values, as `u64 to User 1`.
    ///
    /// ```
    /// let names = durix::TypeNames::default();
    /// assert_eq!(names.both(durix::Types::default()), "bytes to bytes");
    /// ```
    pub fn both(&self, types: Types) -> String {
        format!("{} to {}", self.name(types.key), self.name(types.value))
    }

    /// Gives a type a name, for messages about a pool that does not hold it yet.
    ///
    /// ```
    /// let mut names = durix::TypeNames::default();
    /// let tag = durix::TypeTag::named("User 1");
    /// names.insert(tag, "User 1".to_owned());
    /// assert_eq!(names.name(tag), "User 1");
    /// ```
    pub fn insert(&mut self, tag: TypeTag, name: String) {
        self.names.insert(tag.word(), name);
    }

    /// Keeps the names of these types in another pool, too: for copies. Durable on return.
    ///
    /// ```
    /// # let heap = durix_pmem::backing::HeapBacking::new(64 << 20);
    /// # let db = durix::Db::over(durix::PoolOptions::new().create_on(heap, durix::Hardware::PAGE_CACHE)?);
    /// let tag = durix::TypeTag::named("User 1");
    /// let mut names = durix::TypeNames::default();
    /// names.insert(tag, "User 1".to_owned());
    /// names.keep(db.pool(), durix::Types { key: tag, ..Default::default() })?;
    /// assert_eq!(durix::TypeNames::of(db.pool()).name(tag), "User 1");
    /// # Ok::<(), durix::Error>(())
    /// ```
    ///
    /// # Errors
    /// What is wrong with that pool. That it has no room for names is no error.
    pub fn keep<M: Medium>(&self, pool: &Pool<M>, types: Types) -> Result<()> {
        let known = |tag: TypeTag| Some((tag, self.names.get(&tag.word())?.clone()));
        let names: Vec<_> = [types.key, types.value].into_iter().filter_map(known).collect();
        remember(pool, &names)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_cut_at_a_character() {
        let long = "é".repeat(60);
        assert_eq!(word(&written(TypeTag::BYTES, &long), 16), 96);
        assert_eq!(word(&written(TypeTag::BYTES, &format!("a{long}")), 16), 95);
    }

    #[test]
    fn names_are_kept_beyond_one_extent_and_damaged_ones_are_passed_over() {
        let pool = durix_pmem::PoolOptions::new().chunk_size(4096);
        let backing = durix_pmem::backing::HeapBacking::new(1 << 20);
        let pool = pool.create_on(backing, durix_pmem::Hardware::PAGE_CACHE).unwrap();
        let names: Vec<_> = (0..100).map(|n| (TypeTag::named(&n.to_string()), n.to_string())).collect();
        remember(&pool, &names).unwrap();
        remember(&pool, &names[..3]).unwrap();
        let known = TypeNames::of(&pool);
        assert_eq!(known.names.len(), 100);
        assert!(names.iter().all(|(tag, name)| known.name(*tag) == *name));
        let table = pool.open_existing::<Table<_>>(NAME, &()).unwrap();
        let mut session = pool.session().unwrap();
        let op = session.enter().unwrap();
        op.store(&table.records(&op)[7].words[4], 1, std::sync::atomic::Ordering::Release);
        assert_eq!(TypeNames::of(&pool).names.len(), 99);
        drop(op);
        remember(&pool, &names).unwrap();
        assert_eq!(TypeNames::of(&pool).names.len(), 100);
    }
}
