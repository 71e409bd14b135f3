//! The types of an index's keys and values, kept in its root entry.
//!
//! The last two words of the entry's own line hold the [`TypeTag`]s of key and value. Zero stands for raw bytes, so an index
//! that was made by the vocabulary of bytes, or by the command line, needs nothing.
//!
//! # Persist order
//! | edge | kept by | a crash between leaves | opening |
//! |---|---|---|---|
//! | TY-T1 both tags, and once more beside the spare of the root entry < TY-T2 the first entry of those types | write-back + fence | an empty index with any mixture of old and new tags | an empty index takes the types of its opener |
//!
//! After the mere death of a process the tags may be visible and not durable; so opening writes them back, too, before
//! anything of their types is inserted.

use std::fmt;
use std::sync::atomic::Ordering;

use durix_pmem::{Medium, Op, Session};

use crate::encode::TypeTag;
use crate::kind;
use crate::names::{self, TypeNames};
use crate::{Error, Index, Lengths, Limits, Result};

/// Which of the root's words they are.
const KEY: usize = 6;
const VALUE: usize = 7;

/// The types of an index.
///
/// ```
/// # let heap = durix_pmem::backing::HeapBacking::new(64 << 20);
/// # let db = durix::Db::over(durix::PoolOptions::new().create_on(heap, durix::Hardware::PAGE_CACHE)?);
/// let map = db.map::<u64, String>("names")?;
/// let types = durix::Types::of(&**map.index(), &db.pool().session()?.enter()?);
/// assert_eq!(types.to_string(), "u64 to string");
/// # Ok::<(), durix::Error>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Types {
    /// Of its keys.
    pub key: TypeTag,
    /// Of its values.
    pub value: TypeTag,
}

impl fmt::Display for Types {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} to {}", self.key, self.value)
    }
}

impl Types {
    /// The types of an index, as they are stored.
    ///
    /// ```
    /// # let heap = durix_pmem::backing::HeapBacking::new(64 << 20);
    /// # let db = durix::Db::over(durix::PoolOptions::new().create_on(heap, durix::Hardware::PAGE_CACHE)?);
    /// let index = db.open_index("raw", None)?;
    /// let types = durix::Types::of(&*index, &db.pool().session()?.enter()?);
    /// assert_eq!(types, durix::Types::default());           // bytes to bytes
    /// # Ok::<(), durix::Error>(())
    /// ```
    pub fn of<M: Medium>(index: &dyn Index<M>, op: &Op<'_, M>) -> Types {
        let words = index.root().words(op);
        let tag = |word: usize| TypeTag::from_word(op.load(&words[word], Ordering::Acquire));
        Types { key: tag(KEY), value: tag(VALUE) }
    }

    /// Stores them as those of an index; durable on return. One fence.
    ///
    /// Whatever the index holds must be of these types: it is not looked at. [`Db::map`](crate::Db::map) does look.
    ///
    /// ```
    /// # let heap = durix_pmem::backing::HeapBacking::new(64 << 20);
    /// # let db = durix::Db::over(durix::PoolOptions::new().create_on(heap, durix::Hardware::PAGE_CACHE)?);
    /// use durix::{Key, Types, Value};
    ///
    /// let index = db.open_index("names", None)?;
    /// let types = Types { key: <u64 as Key>::tag(), value: <String as Value>::tag() };
    /// types.declare(&*index, &db.pool().session()?.enter()?);
    /// db.map::<u64, String>("names")?.insert(&1, "ada")?;
    /// # Ok::<(), durix::Error>(())
    /// ```
    pub fn declare<M: Medium>(self, index: &dyn Index<M>, op: &Op<'_, M>) {
        let words = index.root().words(op);
        op.store(&words[KEY], self.key.word(), Ordering::Release);
        op.store(&words[VALUE], self.value.word(), Ordering::Release);
        index.root().keep(op);
        // PERSIST TY-T1<TY-T2: flush+fence.
        op.persist(words);
    }

    /// The types of an index that is read for a repair: as they were kept beside its root entry, if that is sound. An index that has entries
    /// was declared before, so it has the same types in both places, unless one is damaged.
    pub(crate) fn kept<M: Medium>(index: &dyn Index<M>, op: &Op<'_, M>) -> Types {
        let kept = index.root().kept(op).map(|words| words.map(TypeTag::from_word));
        kept.map_or_else(|| Types::of(index, op), |[key, value]| Types { key, value })
    }

    /// Whether a kind of index with these limits can hold keys and values of these types, as far as the types say how long
    /// they are.
    ///
    /// ```
    /// # let heap = durix_pmem::backing::HeapBacking::new(64 << 20);
    /// # let db = durix::Db::over(durix::PoolOptions::new().create_on(heap, durix::Hardware::PAGE_CACHE)?);
    /// use durix::{Key, Types, Value, kind};
    ///
    /// let hash = kind::named::<durix::Hardware>("hash")?;
    /// let words = Types { key: <u64 as Key>::tag(), value: <u64 as Value>::tag() };
    /// let names = Types { key: <String as Key>::tag(), ..words };
    /// assert!(words.fit(hash.limits, hash.name).is_ok());
    /// assert!(names.fit(hash.limits, hash.name).is_err());
    /// # Ok::<(), durix::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::UnfitType`].
    pub fn fit(&self, limits: Limits, kind: &'static str) -> Result<()> {
        for (role, tag, lengths) in [("key", self.key, limits.key), ("value", self.value, limits.value)] {
            if let Lengths::Exactly(expected) = lengths
                && tag.len().is_some_and(|len| len != Some(expected))
            {
                let others = kind::of_any_length();
                return Err(Error::UnfitType { kind, role, found: tag.to_string(), expected, others });
            }
        }
        Ok(())
    }

    /// Makes sure that an index holds keys and values of these types. An index that is empty, and that is open nowhere else
    /// (`is_sole`, which may wait a little), is given them.
    pub(crate) fn claim<M: Medium>(
        self,
        index: &dyn Index<M>,
        is_sole: &dyn Fn() -> bool,
        session: &mut Session<M>,
        names: (&dyn Fn() -> String, &dyn Fn() -> String),
    ) -> Result<()> {
        let (of_keys, of_values) = names;
        let pool = index.root().pool();
        let remember = || names::remember(pool, &[(self.key, of_keys()), (self.value, of_values())]);
        let found = Types::of(index, &session.enter()?);
        if found == self {
            // PERSIST TY-N1: flush+fence, inside, again
            remember()?;
            let op = session.enter()?;
            // PERSIST TY-T1<TY-T2: flush+fence, again: what is visible may not be durable.
            index.root().keep(&op);
            op.persist(index.root().words(&op));
            return Ok(());
        }
        if index.is_empty(&session.enter()?)? && is_sole() && index.is_empty(&session.enter()?)? {
            // PERSIST TY-N1: flush+fence, inside
            remember()?;
            self.declare(index, &session.enter()?);
            return Ok(());
        }
        let (role, found, expected) =
            if found.key == self.key { ("values", found.value, of_values()) } else { ("keys", found.key, of_keys()) };
        let found = TypeNames::of(pool).name(found);
        Err(Error::WrongType { index: index.root().name(), role, found, expected })
    }
}
