//! Typed maps, and handles to them.

use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;

use durix_pmem::pool::Guarantee;
use durix_pmem::{Hardware, Medium};

use crate::coding::{decoded, encode_into, encoded, undecodable};
use crate::encode::{GivenAs, Key, Value};
use crate::map_batch::MapBatch;
use crate::map_iter::Iter;
use crate::sessions::Cached;
use crate::shared::Shared;
use crate::transaction::guard::{Ending, Guarded};
use crate::{Error, Finding, Index, IndexStats, Result, Ticket, Unsettled};

/// A map from `K` to `V` in a [`Db`](crate::Db). Clones share it; it keeps the database open.
///
/// Any thread may call it, through a session that the database keeps; [`handle`](Self::handle) gives one of its own, which
/// is faster. Keys and values are given as they are or in a borrowed form ([`GivenAs`]): a `Map<String, _>` is asked for a `&str`.
///
/// ```
/// # let heap = durix_pmem::backing::HeapBacking::new(64 << 20);
/// # let db = durix::Db::over(durix::PoolOptions::new().create_on(heap, durix::Hardware::PAGE_CACHE)?);
/// let map = db.map::<String, u64>("ages")?;
/// map.insert("ada", &36)?;
/// assert_eq!(map.get("ada")?, Some(36));
/// for pair in &map {
///     let (name, age) = pair?;
///     println!("{name}: {age}");
/// }
/// # Ok::<(), durix::Error>(())
/// ```
pub struct Map<K, V, M: Medium = Hardware> {
    pub(crate) shared: Arc<Shared<M>>,
    pub(crate) guard: Arc<Guarded<M>>,
    /// The same, for those who want to call it by themselves.
    pub(crate) index: Arc<dyn Index<M>>,
    types: PhantomData<fn(K) -> V>,
}

impl<K, V, M: Medium> Clone for Map<K, V, M> {
    fn clone(&self) -> Self {
        let (guard, index) = (Arc::clone(&self.guard), Arc::clone(&self.index));
        Map { shared: Arc::clone(&self.shared), guard, index, types: PhantomData }
    }
}

impl<K, V, M: Medium> fmt::Debug for Map<K, V, M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Map").field("root", self.index.root()).finish_non_exhaustive()
    }
}

/// A map with a session of its own: the fast path of one thread. It may move between threads.
///
/// ```
/// # let heap = durix_pmem::backing::HeapBacking::new(64 << 20);
/// # let db = durix::Db::over(durix::PoolOptions::new().create_on(heap, durix::Hardware::PAGE_CACHE)?);
/// let map = db.map::<String, u64>("ages")?;
/// let mut handle = map.handle()?;                  // one for each thread
/// handle.insert("ada", &36)?;
/// assert_eq!(handle.get("ada")?, Some(36));
/// # Ok::<(), durix::Error>(())
/// ```
#[derive(Debug)]
pub struct Handle<K, V, M: Medium = Hardware> {
    map: Map<K, V, M>,
    cached: Cached<M>,
}

// Keys and values are encoded before an operation is entered and decoded after it has ended: encoding and decoding may
// be the user's own code, which may do anything, call this map included.

/// The calls that maps and handles have in common; `$self` is `&self` or `&mut self`, and `with` gives a session.
macro_rules! calls {
    ($self:ident, $($receiver:tt)+) => {
        /// The value of `key`, if it is there. Durable where the index is strict; takes no lock that a writer holds.
        ///
        /// ```
        /// # let heap = durix_pmem::backing::HeapBacking::new(64 << 20);
        /// # let db = durix::Db::over(durix::PoolOptions::new().create_on(heap, durix::Hardware::PAGE_CACHE)?);
        /// let map = db.map::<String, u64>("ages")?;
        /// map.insert("ada", &36)?;
        /// assert_eq!((map.get("ada")?, map.get("alan")?), (Some(36), None));
        /// # Ok::<(), durix::Error>(())
        /// ```
        ///
        /// # Errors
        /// [`Error::Undecodable`]; otherwise as [`Index::get`].
        pub fn get<Q>($($receiver)+, key: &Q) -> Result<Option<V>>
        where
            K: GivenAs<Q>,
            Q: ?Sized,
        {
            $self.with_unsettled(|index, cached| {
                encode_into::<K, Q>(key, &mut cached.key)?;
                let found = index.raw().get(&cached.session.enter()?, &cached.key, &mut cached.value)?;
                index.note_read(&cached.session, &cached.key);
                index.pool().settle(&mut cached.session)?;
                // Last, so that a large value is copied once.
                if !found {
                    return Ok(None);
                }
                match V::decode(&cached.value) {
                    Ok(value) => Ok(Some(value)),
                    Err(unfit) => Err(undecodable(index, &unfit)),
                }
            })
        }

        /// Whether `key` is there.
        ///
        /// ```
        /// # let heap = durix_pmem::backing::HeapBacking::new(64 << 20);
        /// # let db = durix::Db::over(durix::PoolOptions::new().create_on(heap, durix::Hardware::PAGE_CACHE)?);
        /// let map = db.map::<String, u64>("ages")?;
        /// map.insert("ada", &36)?;
        /// assert!(map.contains("ada")? && !map.contains("alan")?);
        /// # Ok::<(), durix::Error>(())
        /// ```
        ///
        /// # Errors
        /// As [`Index::get`].
        pub fn contains<Q>($($receiver)+, key: &Q) -> Result<bool>
        where
            K: GivenAs<Q>,
            Q: ?Sized,
        {
            $self.with(|index, cached| {
                encode_into::<K, Q>(key, &mut cached.key)?;
                let found = index.contains(&cached.session.enter()?, &cached.key)?;
                index.note_read(&cached.session, &cached.key);
                Ok(found)
            })
        }

        /// The values of many keys, in their order, looked up in one operation with overlapping cache misses where the
        /// kind of index can; each is as of a moment of its own.
        ///
        /// ```
        /// # let heap = durix_pmem::backing::HeapBacking::new(64 << 20);
        /// # let db = durix::Db::over(durix::PoolOptions::new().create_on(heap, durix::Hardware::PAGE_CACHE)?);
        /// let map = db.map::<String, u64>("ages")?;
        /// map.insert("ada", &36)?;
        /// assert_eq!(map.get_many(&["alan", "ada"])?, [None, Some(36)]);
        /// # Ok::<(), durix::Error>(())
        /// ```
        ///
        /// # Errors
        /// As [`get`](Self::get).
        pub fn get_many<Q>($($receiver)+, keys: &[&Q]) -> Result<Vec<Option<V>>>
        where
            K: GivenAs<Q>,
            Q: ?Sized,
        {
            let encoded = keys.iter().map(|key| encoded::<K, Q>(key)).collect::<Result<Vec<_>>>()?;
            let keys: Vec<&[u8]> = encoded.iter().map(|key| &key[..]).collect();
            let mut values: Vec<Option<Vec<u8>>> = vec![None; keys.len()];
            $self.with(|index, cached| {
                let op = cached.session.enter()?;
                index.get_many(&op, &keys, &mut |at, value| values[at] = value.map(<[u8]>::to_vec))?;
                drop(op);
                keys.iter().for_each(|key| index.note_read(&cached.session, key));
                values.iter().map(|v| v.as_ref().map(|bytes| decoded(index, bytes)).transpose()).collect()
            })
        }

        /// Maps `key` to `value`, whatever it was mapped to (upsert). Returns whether the key is new.
        ///
        /// Durability point: before it returns where the index is strict, the next completed sync where it is buffered.
        ///
        /// ```
        /// # let heap = durix_pmem::backing::HeapBacking::new(64 << 20);
        /// # let db = durix::Db::over(durix::PoolOptions::new().create_on(heap, durix::Hardware::PAGE_CACHE)?);
        /// let map = db.map::<String, u64>("ages")?;
        /// assert!(map.insert("ada", &36)?);                 // the key is new
        /// assert!(!map.insert("ada", &37)?);
        /// assert_eq!(map.get("ada")?, Some(37));
        /// # Ok::<(), durix::Error>(())
        /// ```
        ///
        /// # Errors
        /// [`Error::Unfit`]; otherwise as [`Index::insert`]. The map then is as it was.
        pub fn insert<Q, W>($($receiver)+, key: &Q, value: &W) -> Result<bool>
        where
            K: GivenAs<Q>,
            Q: ?Sized,
            V: GivenAs<W>,
            W: ?Sized,
        {
            $self.with_update(|index, cached| {
                encode_into::<K, Q>(key, &mut cached.key)?;
                encode_into::<V, W>(value, &mut cached.value)?;
                let Cached { session, key, value, .. } = cached;
                index.change(session, key, |index, op| index.insert(op, key, value))
            })
        }

        /// Maps `key` to `value` if it is not there. Returns whether it did; if not, nothing is written. Durable as
        /// [`insert`](Self::insert).
        ///
        /// ```
        /// # let heap = durix_pmem::backing::HeapBacking::new(64 << 20);
        /// # let db = durix::Db::over(durix::PoolOptions::new().create_on(heap, durix::Hardware::PAGE_CACHE)?);
        /// let map = db.map::<String, u64>("ages")?;
        /// assert!(map.insert_if_absent("ada", &36)?);
        /// assert!(!map.insert_if_absent("ada", &37)?);
        /// assert_eq!(map.get("ada")?, Some(36));
        /// # Ok::<(), durix::Error>(())
        /// ```
        ///
        /// # Errors
        /// As [`insert`](Self::insert).
        pub fn insert_if_absent<Q, W>($($receiver)+, key: &Q, value: &W) -> Result<bool>
        where
            K: GivenAs<Q>,
            Q: ?Sized,
            V: GivenAs<W>,
            W: ?Sized,
        {
            $self.with_update(|index, cached| {
                encode_into::<K, Q>(key, &mut cached.key)?;
                encode_into::<V, W>(value, &mut cached.value)?;
                let Cached { session, key, value, .. } = cached;
                index.change(session, key, |index, op| index.insert_if_absent(op, key, value))
            })
        }

        /// Maps `key` to `value` if it is there. Returns whether it did; if not, nothing is written. Durable as
        /// [`insert`](Self::insert).
        ///
        /// ```
        /// # let heap = durix_pmem::backing::HeapBacking::new(64 << 20);
        /// # let db = durix::Db::over(durix::PoolOptions::new().create_on(heap, durix::Hardware::PAGE_CACHE)?);
        /// let map = db.map::<String, u64>("ages")?;
        /// assert!(!map.update("ada", &36)?);                // not there
        /// map.insert("ada", &36)?;
        /// assert!(map.update("ada", &37)?);
        /// # Ok::<(), durix::Error>(())
        /// ```
        ///
        /// # Errors
        /// As [`insert`](Self::insert).
        pub fn update<Q, W>($($receiver)+, key: &Q, value: &W) -> Result<bool>
        where
            K: GivenAs<Q>,
            Q: ?Sized,
            V: GivenAs<W>,
            W: ?Sized,
        {
            $self.with_update(|index, cached| {
                encode_into::<K, Q>(key, &mut cached.key)?;
                encode_into::<V, W>(value, &mut cached.value)?;
                let Cached { session, key, value, .. } = cached;
                index.change(session, key, |index, op| index.update(op, key, value))
            })
        }

        /// Changes `key` from `expected` to `new`, where `None` stands for absent. Returns whether it was as expected (in
        /// its bytes); if not, nothing is written. Durable as [`insert`](Self::insert).
        ///
        /// ```
        /// # let heap = durix_pmem::backing::HeapBacking::new(64 << 20);
        /// # let db = durix::Db::over(durix::PoolOptions::new().create_on(heap, durix::Hardware::PAGE_CACHE)?);
        /// let map = db.map::<String, u64>("ages")?;
        /// assert!(map.compare_and_set("ada", None, Some(&36))?);
        /// assert!(!map.compare_and_set("ada", Some(&1), Some(&37))?);
        /// assert!(map.compare_and_set("ada", Some(&36), None)?);
        /// assert!(map.is_empty()?);
        /// # Ok::<(), durix::Error>(())
        /// ```
        ///
        /// # Errors
        /// As [`insert`](Self::insert).
        pub fn compare_and_set<Q, W>(
            $($receiver)+,
            key: &Q,
            expected: Option<&W>,
            new: Option<&W>,
        ) -> Result<bool>
        where
            K: GivenAs<Q>,
            Q: ?Sized,
            V: GivenAs<W>,
            W: ?Sized,
        {
            let expected = expected.map(|value| encoded::<V, W>(value)).transpose()?;
            let new = new.map(|value| encoded::<V, W>(value)).transpose()?;
            $self.with_update(|index, cached| {
                encode_into::<K, Q>(key, &mut cached.key)?;
                let Cached { session, key, .. } = cached;
                let (expected, new) = (expected.as_deref(), new.as_deref());
                index.change(session, key, |index, op| index.compare_and_set(op, key, expected, new))
            })
        }

        /// Removes `key`. Returns whether it was there; if not, nothing is written. Durable as [`insert`](Self::insert).
        ///
        /// ```
        /// # let heap = durix_pmem::backing::HeapBacking::new(64 << 20);
        /// # let db = durix::Db::over(durix::PoolOptions::new().create_on(heap, durix::Hardware::PAGE_CACHE)?);
        /// let map = db.map::<String, u64>("ages")?;
        /// map.insert("ada", &36)?;
        /// assert!(map.remove("ada")?);
        /// assert!(!map.remove("ada")?);
        /// # Ok::<(), durix::Error>(())
        /// ```
        ///
        /// # Errors
        /// As [`Index::remove`].
        pub fn remove<Q>($($receiver)+, key: &Q) -> Result<bool>
        where
            K: GivenAs<Q>,
            Q: ?Sized,
        {
            $self.with_update(|index, cached| {
                encode_into::<K, Q>(key, &mut cached.key)?;
                let Cached { session, key, .. } = cached;
                index.change(session, key, |index, op| index.remove(op, key))
            })
        }

        /// As [`insert`](Self::insert), durable when the ticket was [waited](Unsettled::wait) for. Many updates, on several maps of the
        /// database, can be made durable by one fence, or one flush of the journal. Until then a crash can take back any of them.
        ///
        /// With a journal all kinds save flushes. On persistent memory only `pset` and `hash` put their fences off, which pays where a fence
        /// takes long; other kinds wait in the call.
        ///
        /// ```
        /// # let heap = durix_pmem::backing::HeapBacking::new(64 << 20);
        /// # let db = durix::Db::over(durix::PoolOptions::new().create_on(heap, durix::Hardware::PAGE_CACHE)?);
        /// let map = db.map::<String, u64>("ages")?;
        /// let mut unsettled = durix::Unsettled::new();
        /// let is_new = map.insert_later("ada", &36, &mut unsettled)?;
        /// map.insert_later("grace", &85, &mut unsettled)?;
        /// unsettled.wait()?;                                // durable, and may be acknowledged
        /// assert!(is_new);
        /// # Ok::<(), durix::Error>(())
        /// ```
        ///
        /// # Errors
        /// As [`insert`](Self::insert); [`Error::Pool`] with `ForeignTicket` if the ticket is one of another database.
        pub fn insert_later<Q, W>(
            $($receiver)+,
            key: &Q,
            value: &W,
            unsettled: &mut Unsettled<M>,
        ) -> Result<bool>
        where
            K: GivenAs<Q>,
            Q: ?Sized,
            V: GivenAs<W>,
            W: ?Sized,
        {
            $self.with_later(unsettled, |index, cached, ending| {
                encode_into::<K, Q>(key, &mut cached.key)?;
                encode_into::<V, W>(value, &mut cached.value)?;
                let Cached { session, key, value, .. } = cached;
                index.change_and_end(session, key, ending, |index, op| index.insert(op, key, value))
            })
        }

        /// As [`insert_if_absent`](Self::insert_if_absent), durable when the ticket was [waited](Unsettled::wait) for. Wait for it also
        /// where the key was there: what was found may not be durable yet.
        ///
        /// ```
        /// # let heap = durix_pmem::backing::HeapBacking::new(64 << 20);
        /// # let db = durix::Db::over(durix::PoolOptions::new().create_on(heap, durix::Hardware::PAGE_CACHE)?);
        /// let map = db.map::<String, u64>("ages")?;
        /// let mut unsettled = durix::Unsettled::new();
        /// assert!(map.insert_if_absent_later("ada", &36, &mut unsettled)?);
        /// assert!(!map.insert_if_absent_later("ada", &37, &mut unsettled)?);
        /// unsettled.wait()?;
        /// # Ok::<(), durix::Error>(())
        /// ```
        ///
        /// # Errors
        /// As [`insert_later`](Self::insert_later).
        pub fn insert_if_absent_later<Q, W>(
            $($receiver)+,
            key: &Q,
            value: &W,
            unsettled: &mut Unsettled<M>,
        ) -> Result<bool>
        where
            K: GivenAs<Q>,
            Q: ?Sized,
            V: GivenAs<W>,
            W: ?Sized,
        {
            $self.with_later(unsettled, |index, cached, ending| {
                encode_into::<K, Q>(key, &mut cached.key)?;
                encode_into::<V, W>(value, &mut cached.value)?;
                let Cached { session, key, value, .. } = cached;
                index.change_and_end(session, key, ending, |index, op| index.insert_if_absent(op, key, value))
            })
        }

        /// As [`update`](Self::update), durable when the ticket was [waited](Unsettled::wait) for. Wait for it also where the key was not
        /// there: its removal may not be durable yet.
        ///
        /// ```
        /// # let heap = durix_pmem::backing::HeapBacking::new(64 << 20);
        /// # let db = durix::Db::over(durix::PoolOptions::new().create_on(heap, durix::Hardware::PAGE_CACHE)?);
        /// let map = db.map::<String, u64>("ages")?;
        /// map.insert("ada", &36)?;
        /// let mut unsettled = durix::Unsettled::new();
        /// assert!(map.update_later("ada", &37, &mut unsettled)?);
        /// unsettled.wait()?;
        /// # Ok::<(), durix::Error>(())
        /// ```
        ///
        /// # Errors
        /// As [`insert_later`](Self::insert_later).
        pub fn update_later<Q, W>(
            $($receiver)+,
            key: &Q,
            value: &W,
            unsettled: &mut Unsettled<M>,
        ) -> Result<bool>
        where
            K: GivenAs<Q>,
            Q: ?Sized,
            V: GivenAs<W>,
            W: ?Sized,
        {
            $self.with_later(unsettled, |index, cached, ending| {
                encode_into::<K, Q>(key, &mut cached.key)?;
                encode_into::<V, W>(value, &mut cached.value)?;
                let Cached { session, key, value, .. } = cached;
                index.change_and_end(session, key, ending, |index, op| index.update(op, key, value))
            })
        }

        /// As [`compare_and_set`](Self::compare_and_set), durable when the ticket was [waited](Unsettled::wait) for. Wait for it also where
        /// the key was not as expected: what was found may not be durable yet.
        ///
        /// ```
        /// # let heap = durix_pmem::backing::HeapBacking::new(64 << 20);
        /// # let db = durix::Db::over(durix::PoolOptions::new().create_on(heap, durix::Hardware::PAGE_CACHE)?);
        /// let map = db.map::<String, u64>("ages")?;
        /// let mut unsettled = durix::Unsettled::new();
        /// assert!(map.compare_and_set_later("ada", None, Some(&36), &mut unsettled)?);
        /// assert!(map.compare_and_set_later("ada", Some(&36), Some(&37), &mut unsettled)?);
        /// unsettled.wait()?;
        /// # Ok::<(), durix::Error>(())
        /// ```
        ///
        /// # Errors
        /// As [`insert_later`](Self::insert_later).
        pub fn compare_and_set_later<Q, W>(
            $($receiver)+,
            key: &Q,
            expected: Option<&W>,
            new: Option<&W>,
            unsettled: &mut Unsettled<M>,
        ) -> Result<bool>
        where
            K: GivenAs<Q>,
            Q: ?Sized,
            V: GivenAs<W>,
            W: ?Sized,
        {
            let expected = expected.map(|value| encoded::<V, W>(value)).transpose()?;
            let new = new.map(|value| encoded::<V, W>(value)).transpose()?;
            $self.with_later(unsettled, |index, cached, ending| {
                encode_into::<K, Q>(key, &mut cached.key)?;
                let Cached { session, key, .. } = cached;
                let (expected, new) = (expected.as_deref(), new.as_deref());
                index.change_and_end(session, key, ending, |index, op| index.compare_and_set(op, key, expected, new))
            })
        }

        /// As [`remove`](Self::remove), durable when the ticket was [waited](Unsettled::wait) for. Wait for it also where the key was not
        /// there: its removal may not be durable yet.
        ///
        /// ```
        /// # let heap = durix_pmem::backing::HeapBacking::new(64 << 20);
        /// # let db = durix::Db::over(durix::PoolOptions::new().create_on(heap, durix::Hardware::PAGE_CACHE)?);
        /// let map = db.map::<String, u64>("ages")?;
        /// map.insert("ada", &36)?;
        /// let mut unsettled = durix::Unsettled::new();
        /// assert!(map.remove_later("ada", &mut unsettled)?);
        /// unsettled.wait()?;
        /// # Ok::<(), durix::Error>(())
        /// ```
        ///
        /// # Errors
        /// As [`insert_later`](Self::insert_later).
        pub fn remove_later<Q>($($receiver)+, key: &Q, unsettled: &mut Unsettled<M>) -> Result<bool>
        where
            K: GivenAs<Q>,
            Q: ?Sized,
        {
            $self.with_later(unsettled, |index, cached, ending| {
                encode_into::<K, Q>(key, &mut cached.key)?;
                let Cached { session, key, .. } = cached;
                index.change_and_end(session, key, ending, |index, op| index.remove(op, key))
            })
        }

        /// As [`get`](Self::get), for an answer that is given after the ticket was [waited](Unsettled::wait) for. A value that is not durable
        /// yet is made so by the ticket, where [`get`](Self::get) would wait for it.
        ///
        /// ```
        /// # let heap = durix_pmem::backing::HeapBacking::new(64 << 20);
        /// # let db = durix::Db::over(durix::PoolOptions::new().create_on(heap, durix::Hardware::PAGE_CACHE)?);
        /// let map = db.map::<String, u64>("ages")?;
        /// let mut unsettled = durix::Unsettled::new();
        /// map.insert_later("ada", &36, &mut unsettled)?;
        /// let age = map.get_later("ada", &mut unsettled)?;
        /// unsettled.wait()?;
        /// assert_eq!(age, Some(36));
        /// # Ok::<(), durix::Error>(())
        /// ```
        ///
        /// # Errors
        /// As [`get`](Self::get); [`Error::Pool`] with `ForeignTicket` if the ticket is one of another database.
        pub fn get_later<Q>($($receiver)+, key: &Q, unsettled: &mut Unsettled<M>) -> Result<Option<V>>
        where
            K: GivenAs<Q>,
            Q: ?Sized,
        {
            $self.with_ticket(unsettled, |index, cached, ending| {
                encode_into::<K, Q>(key, &mut cached.key)?;
                let op = ending.enter(&mut cached.session)?;
                let found = index.raw().get(&op, &cached.key, &mut cached.value);
                index.note_read_in(&op, &cached.key);
                ending.leave_read(op);
                if !found? {
                    return Ok(None);
                }
                match V::decode(&cached.value) {
                    Ok(value) => Ok(Some(value)),
                    Err(unfit) => Err(undecodable(index, &unfit)),
                }
            })
        }

        /// Makes all changes of a batch; all or none where [`Index::batch_is_atomic`]. Durable as
        /// [`insert`](Self::insert).
        ///
        /// ```
        /// # let heap = durix_pmem::backing::HeapBacking::new(64 << 20);
        /// # let db = durix::Db::over(durix::PoolOptions::new().create_on(heap, durix::Hardware::PAGE_CACHE)?);
        /// let map = db.map::<String, u64>("ages")?;
        /// let mut batch = durix::MapBatch::new();
        /// batch.insert("ada", &36)?.insert("grace", &85)?;
        /// map.apply(&batch)?;
        /// assert_eq!(map.get("grace")?, Some(85));
        /// # Ok::<(), durix::Error>(())
        /// ```
        ///
        /// # Errors
        /// As [`Index::apply`].
        pub fn apply($($receiver)+, batch: &MapBatch<K, V>) -> Result<()> {
            $self.with_update(|index, cached| {
                index.change_all(&mut cached.session, &batch.batch, |index, op| index.apply(op, &batch.batch))
            })
        }

        /// Number of keys, where the kind of index keeps it: of a `pset`, which [`Db::map`](crate::Db::map) makes. `None` for other
        /// kinds: [`count`](Self::count) counts their keys. Constant time; exact while no thread writes.
        ///
        /// ```
        /// # let heap = durix_pmem::backing::HeapBacking::new(64 << 20);
        /// # let db = durix::Db::over(durix::PoolOptions::new().create_on(heap, durix::Hardware::PAGE_CACHE)?);
        /// let map = db.map::<String, u64>("ages")?;
        /// map.insert("ada", &36)?;
        /// assert_eq!(map.len()?, Some(1));
        /// assert_eq!(db.ordered_map::<String, u64>("in order")?.len()?, None);
        /// # Ok::<(), durix::Error>(())
        /// ```
        ///
        /// # Errors
        /// [`Error::Pool`] where the pool is shut.
        pub fn len($($receiver)+) -> Result<Option<u64>> {
            $self.with(|index, cached| {
                let len = index.len(&cached.session.enter()?);
                index.note_reads(&cached.session);
                Ok(len)
            })
        }

        /// Counts the keys: exact while no thread writes. Constant time where [`len`](Self::len) is known; otherwise linear, a walk over all
        /// keys, which blocks no other call.
        ///
        /// ```
        /// # let heap = durix_pmem::backing::HeapBacking::new(64 << 20);
        /// # let db = durix::Db::over(durix::PoolOptions::new().create_on(heap, durix::Hardware::PAGE_CACHE)?);
        /// let map = db.map::<String, u64>("ages")?;
        /// map.insert("ada", &36)?;
        /// assert_eq!(map.count()?, 1);
        /// # Ok::<(), durix::Error>(())
        /// ```
        ///
        /// # Errors
        /// As [`Index::get`].
        pub fn count($($receiver)+) -> Result<u64> {
            $self.with(|index, cached| {
                let count = index.count(&mut cached.session)?;
                index.note_reads(&cached.session);
                Ok(count)
            })
        }

        /// Whether there is no key. Looks for the first one only.
        ///
        /// ```
        /// # let heap = durix_pmem::backing::HeapBacking::new(64 << 20);
        /// # let db = durix::Db::over(durix::PoolOptions::new().create_on(heap, durix::Hardware::PAGE_CACHE)?);
        /// let map = db.map::<String, u64>("ages")?;
        /// assert!(map.is_empty()?);
        /// map.insert("ada", &36)?;
        /// assert!(!map.is_empty()?);
        /// # Ok::<(), durix::Error>(())
        /// ```
        ///
        /// # Errors
        /// As [`Index::get`].
        pub fn is_empty($($receiver)+) -> Result<bool> {
            $self.with(|index, cached| {
                let empty = index.is_empty(&cached.session.enter()?)?;
                index.note_reads(&cached.session);
                Ok(empty)
            })
        }

        /// Makes everything durable that was done before, by any thread. Returns at once where the index is strict;
        /// otherwise it waits for a checkpoint.
        ///
        /// ```
        /// # let heap = durix_pmem::backing::HeapBacking::new(64 << 20);
        /// # let db = durix::Db::over(durix::PoolOptions::new().create_on(heap, durix::Hardware::PAGE_CACHE)?);
        /// let words = db.ordered_map::<String, u64>("words")?; // buffered
        /// words.insert("tree", &1)?;
        /// words.sync()?;                                       // now no crash takes it back
        /// # Ok::<(), durix::Error>(())
        /// ```
        ///
        /// # Errors
        /// As [`Index::sync`].
        pub fn sync($($receiver)+) -> Result<()> {
            $self.with(|index, cached| {
                index.sync(&mut cached.session)?;
                Ok(index.root().pool().services().failure()?)
            })
        }

        /// What has to be waited for until all that was done before is durable.
        ///
        /// ```
        /// # let heap = durix_pmem::backing::HeapBacking::new(64 << 20);
        /// # let db = durix::Db::over(durix::PoolOptions::new().create_on(heap, durix::Hardware::PAGE_CACHE)?);
        /// let words = db.ordered_map::<String, u64>("words")?; // buffered
        /// words.insert("tree", &1)?;
        /// let ticket = words.ticket()?;
        /// words.insert("trie", &2)?;
        /// words.wait(ticket)?;                                 // "tree" is durable
        /// # Ok::<(), durix::Error>(())
        /// ```
        ///
        /// # Errors
        /// [`Error::Pool`] where the pool is shut.
        pub fn ticket($($receiver)+) -> Result<Ticket> {
            $self.with(|index, cached| Ok(index.ticket(&cached.session.enter()?)))
        }

        /// Waits until what `ticket` stands for is durable: at once where the index is strict, otherwise for the
        /// checkpoint.
        ///
        /// ```
        /// # let heap = durix_pmem::backing::HeapBacking::new(64 << 20);
        /// # let db = durix::Db::over(durix::PoolOptions::new().create_on(heap, durix::Hardware::PAGE_CACHE)?);
        /// let map = db.map::<String, u64>("ages")?;
        /// map.insert("ada", &36)?;
        /// let ticket = map.ticket()?;
        /// map.wait(ticket)?;
        /// # Ok::<(), durix::Error>(())
        /// ```
        ///
        /// # Errors
        /// As [`Index::sync`].
        pub fn wait($($receiver)+, ticket: Ticket) -> Result<()> {
            $self.with(|index, cached| index.wait(&mut cached.session, ticket))
        }
    };
}

/// Runs an update, after telling what a service has failed at, and waiting where one is outrun.
#[inline]
fn admitted<M: Medium, R>(
    index: &Guarded<M>,
    cached: &mut Cached<M>,
    call: impl FnOnce(&Guarded<M>, &mut Cached<M>) -> Result<R>,
) -> Result<R> {
    index.pool().services().admit(&mut cached.session)?;
    call(index, cached)
}

/// Runs a call, and then waits as long as the level of a journaled pool asks for: for the commit of what the call has written or
/// seen. No operation is open then.
#[inline]
fn settled<M: Medium, R>(
    index: &Guarded<M>,
    cached: &mut Cached<M>,
    call: impl FnOnce(&Guarded<M>, &mut Cached<M>) -> Result<R>,
) -> Result<R> {
    let result = call(index, cached)?;
    index.pool().settle(&mut cached.session)?;
    Ok(result)
}

impl<K: Key, V: Value, M: Medium> Map<K, V, M> {
    pub(crate) fn new(shared: Arc<Shared<M>>, guard: Arc<Guarded<M>>) -> Self {
        let index: Arc<dyn Index<M>> = guard.clone();
        Map { shared, guard, index, types: PhantomData }
    }

    /// Its guard, if it is a map of this database.
    pub(crate) fn guard_in(&self, shared: &Arc<Shared<M>>) -> Option<&Arc<Guarded<M>>> {
        Arc::ptr_eq(&self.shared, shared).then_some(&self.guard)
    }

    pub(crate) fn with<R>(&self, call: impl FnOnce(&Guarded<M>, &mut Cached<M>) -> Result<R>) -> Result<R> {
        self.shared.sessions.with(&self.shared.pool, |cached| settled(&self.guard, cached, call))
    }

    /// The same with the session of a handle.
    pub(crate) fn with_own<R>(
        &self,
        cached: &mut Cached<M>,
        call: impl FnOnce(&Guarded<M>, &mut Cached<M>) -> Result<R>,
    ) -> Result<R> {
        settled(&self.guard, cached, call)
    }

    /// As [`with`](Self::with) for a call that settles itself.
    #[inline(always)]
    fn with_unsettled<R>(&self, call: impl FnOnce(&Guarded<M>, &mut Cached<M>) -> Result<R>) -> Result<R> {
        self.shared.sessions.with(&self.shared.pool, |cached| call(&self.guard, cached))
    }

    fn with_update<R>(&self, call: impl FnOnce(&Guarded<M>, &mut Cached<M>) -> Result<R>) -> Result<R> {
        self.with(|index, cached| admitted(index, cached, call))
    }

    /// Runs a call that ends with a ticket, which waits for what its level asks for.
    fn with_ticket<R>(
        &self,
        unsettled: &mut Unsettled<M>,
        call: impl FnOnce(&Guarded<M>, &mut Cached<M>, &mut Unsettled<M>) -> Result<R>,
    ) -> Result<R> {
        unsettled.belong_to(&self.shared)?;
        self.with_unsettled(|index, cached| call(index, cached, unsettled))
    }

    /// The same for an update.
    fn with_later<R>(
        &self,
        unsettled: &mut Unsettled<M>,
        call: impl FnOnce(&Guarded<M>, &mut Cached<M>, &mut Unsettled<M>) -> Result<R>,
    ) -> Result<R> {
        self.with_ticket(unsettled, |index, cached, ending| {
            admitted(index, cached, |index, cached| call(index, cached, ending))
        })
    }

    calls!(self, &self);

    /// Changes a key from one value to another; `None` stands for absent.
    pub(crate) fn change_bytes(&self, key: &[u8], expected: Option<&[u8]>, new: Option<&[u8]>) -> Result<bool> {
        self.with_update(|index, cached| {
            index.change(&mut cached.session, key, |index, op| index.compare_and_set(op, key, expected, new))
        })
    }

    /// Changes what `key` is mapped to by a function of what it was mapped to, in one step for all other threads; `None` stands for
    /// absent. Returns the value that it is mapped to now. Durable as [`insert`](Self::insert).
    ///
    /// The function is called again where another thread has changed the key in between. No lock is held while it runs: it may call this map.
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let db = durix::Db::open_or_create(dir.path().join("counts"))?;
    /// let counts = db.map::<String, u64>("counts")?;
    /// counts.update_with("visits", |old| Some(old.unwrap_or(0) + 1))?;
    /// assert_eq!(counts.update_with("visits", |old| Some(old.unwrap_or(0) + 1))?, Some(2));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Undecodable`]; otherwise as [`insert`](Self::insert).
    pub fn update_with<Q>(&self, key: &Q, mut change: impl FnMut(Option<V>) -> Option<V>) -> Result<Option<V>>
    where
        K: GivenAs<Q>,
        Q: ?Sized,
    {
        let key = encoded::<K, Q>(key)?;
        loop {
            let old = self.with(|index, cached| {
                let old = index.get_vec(&cached.session.enter()?, &key)?;
                index.note_read(&cached.session, &key);
                Ok(old)
            })?;
            let new = change(old.as_ref().map(|bytes| decoded(&*self.index, bytes)).transpose()?);
            let bytes = new.as_ref().map(encoded::<V, V>).transpose()?;
            if old == bytes || self.change_bytes(&key, old.as_deref(), bytes.as_deref())? {
                return Ok(new);
            }
        }
    }

    /// A handle with a session of its own: as the map, without the search for a session. There can be about 500 at a
    /// time in a database; each gives its session back when it is dropped.
    ///
    /// ```
    /// # let heap = durix_pmem::backing::HeapBacking::new(64 << 20);
    /// # let db = durix::Db::over(durix::PoolOptions::new().create_on(heap, durix::Hardware::PAGE_CACHE)?);
    /// let map = db.map::<String, u64>("ages")?;
    /// let mut handle = map.handle()?;
    /// for n in 0..100 {
    ///     handle.insert(&n.to_string(), &n)?;
    /// }
    /// assert_eq!(map.count()?, 100);
    /// # Ok::<(), durix::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Pool`]: all sessions are taken, or the pool is shut.
    pub fn handle(&self) -> Result<Handle<K, V, M>> {
        Ok(Handle { cached: Cached::new(&self.shared.pool)?, map: self.clone() })
    }

    /// All pairs: see [`Iter`].
    ///
    /// ```
    /// # let heap = durix_pmem::backing::HeapBacking::new(64 << 20);
    /// # let db = durix::Db::over(durix::PoolOptions::new().create_on(heap, durix::Hardware::PAGE_CACHE)?);
    /// let map = db.map::<String, u64>("ages")?;
    /// map.insert("ada", &36)?;
    /// let oldest = map.iter().map(|pair| Ok(pair?.1)).try_fold(0, |most, age: durix::Result<u64>| age.map(|age| most.max(age)))?;
    /// assert_eq!(oldest, 36);
    /// # Ok::<(), durix::Error>(())
    /// ```
    pub fn iter(&self) -> Iter<'_, K, V, M> {
        Iter::new(self, self.index.cursor())
    }

    /// The name of the index, as of now.
    ///
    /// ```
    /// # let heap = durix_pmem::backing::HeapBacking::new(64 << 20);
    /// # let db = durix::Db::over(durix::PoolOptions::new().create_on(heap, durix::Hardware::PAGE_CACHE)?);
    /// let map = db.map::<String, u64>("ages")?;
    /// assert_eq!(map.name(), "ages");
    /// db.rename("ages", "years")?;
    /// assert_eq!(map.name(), "years");
    /// # Ok::<(), durix::Error>(())
    /// ```
    pub fn name(&self) -> String {
        self.index.root().name()
    }

    /// What survives what: the weaker of the index's contract and of what its medium survives.
    ///
    /// ```
    /// # let heap = durix_pmem::backing::HeapBacking::new(64 << 20);
    /// # let db = durix::Db::over(durix::PoolOptions::new().create_on(heap, durix::Hardware::PAGE_CACHE)?);
    /// let map = db.map::<String, u64>("ages")?;
    /// assert_eq!(map.guarantee().durability, durix::Durability::Strict);
    /// println!("{}", map.guarantee());
    /// # Ok::<(), durix::Error>(())
    /// ```
    pub fn guarantee(&self) -> Guarantee {
        self.index.guarantee()
    }

    /// The index, for operations on several indices in one scope, with bytes for keys and values. An update of a key that a
    /// transaction has locked is [`Error::Locked`].
    ///
    /// Its calls do not wait for the journal. After your operation has ended, call [`Pool::settle`](durix_pmem::Pool::settle) with its
    /// session: what you have updated is durable then. An operation that stays open keeps every commit waiting, and so every update.
    ///
    /// ```
    /// # let heap = durix_pmem::backing::HeapBacking::new(64 << 20);
    /// # let db = durix::Db::over(durix::PoolOptions::new().create_on(heap, durix::Hardware::PAGE_CACHE)?);
    /// let map = db.map::<String, u64>("ages")?;
    /// use durix::Encode;
    ///
    /// map.insert("ada", &36)?;
    /// let (mut key, index) = (Vec::new(), map.index());
    /// "ada".encode(&mut key)?;
    /// let mut session = db.pool().session()?;
    /// assert_eq!(index.get_vec(&session.enter()?, &key)?, Some(36_u64.to_be_bytes().to_vec()));
    /// db.pool().settle(&mut session)?;
    /// # Ok::<(), durix::Error>(())
    /// ```
    pub fn index(&self) -> &Arc<dyn Index<M>> {
        &self.index
    }

    /// Walks everything, and reports every inconsistency, also keys and values that are not of their types. Other calls
    /// may have to wait until it ends, in all of the database; linear in the index.
    ///
    /// ```
    /// # let heap = durix_pmem::backing::HeapBacking::new(64 << 20);
    /// # let db = durix::Db::over(durix::PoolOptions::new().create_on(heap, durix::Hardware::PAGE_CACHE)?);
    /// let map = db.map::<String, u64>("ages")?;
    /// map.insert("ada", &36)?;
    /// assert!(map.check()?.is_empty());
    /// # Ok::<(), durix::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`Index::check`].
    pub fn check(&self) -> Result<Vec<Finding>> {
        let mut findings = self.with(|index, cached| index.check(&mut cached.session))?;
        for pair in self.iter() {
            match pair {
                Err(Error::Undecodable { what, .. }) => findings.push(Finding { offset: 0, what }),
                other => drop(other?),
            }
        }
        Ok(findings)
    }

    /// Numbers about the index.
    ///
    /// ```
    /// # let heap = durix_pmem::backing::HeapBacking::new(64 << 20);
    /// # let db = durix::Db::over(durix::PoolOptions::new().create_on(heap, durix::Hardware::PAGE_CACHE)?);
    /// let map = db.map::<String, u64>("ages")?;
    /// map.insert("ada", &36)?;
    /// let stats = map.stats()?;
    /// assert_eq!(stats.keys, 1);
    /// println!("{} bytes", stats.persistent_bytes);
    /// # Ok::<(), durix::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Pool`] where the pool is shut.
    pub fn stats(&self) -> Result<IndexStats> {
        self.with(|index, cached| index.stats(&mut cached.session))
    }
}

impl<'a, K: Key, V: Value, M: Medium> IntoIterator for &'a Map<K, V, M> {
    type Item = Result<(K, V)>;
    type IntoIter = Iter<'a, K, V, M>;

    fn into_iter(self) -> Iter<'a, K, V, M> {
        self.iter()
    }
}

impl<K: Key, V: Value, M: Medium> Handle<K, V, M> {
    fn with<R>(&mut self, call: impl FnOnce(&Guarded<M>, &mut Cached<M>) -> Result<R>) -> Result<R> {
        settled(&self.map.guard, &mut self.cached, call)
    }

    fn with_ticket<R>(
        &mut self,
        unsettled: &mut Unsettled<M>,
        call: impl FnOnce(&Guarded<M>, &mut Cached<M>, &mut Unsettled<M>) -> Result<R>,
    ) -> Result<R> {
        unsettled.belong_to(&self.map.shared)?;
        call(&self.map.guard, &mut self.cached, unsettled)
    }

    fn with_later<R>(
        &mut self,
        unsettled: &mut Unsettled<M>,
        call: impl FnOnce(&Guarded<M>, &mut Cached<M>, &mut Unsettled<M>) -> Result<R>,
    ) -> Result<R> {
        self.with_ticket(unsettled, |index, cached, ending| {
            admitted(index, cached, |index, cached| call(index, cached, ending))
        })
    }

    #[inline(always)]
    fn with_unsettled<R>(&mut self, call: impl FnOnce(&Guarded<M>, &mut Cached<M>) -> Result<R>) -> Result<R> {
        call(&self.map.guard, &mut self.cached)
    }

    fn with_update<R>(&mut self, call: impl FnOnce(&Guarded<M>, &mut Cached<M>) -> Result<R>) -> Result<R> {
        self.with(|index, cached| admitted(index, cached, call))
    }

    calls!(self, &mut self);

    /// The bytes of `key`'s value, if it is there: a copy that the handle holds until its next call. Keeping it blocks no
    /// other call.
    ///
    /// ```
    /// # let heap = durix_pmem::backing::HeapBacking::new(64 << 20);
    /// # let db = durix::Db::over(durix::PoolOptions::new().create_on(heap, durix::Hardware::PAGE_CACHE)?);
    /// let map = db.map::<String, u64>("ages")?;
    /// map.insert("ada", &36)?;
    /// let mut handle = map.handle()?;
    /// assert_eq!(handle.get_bytes("ada")?, Some(&36_u64.to_be_bytes()[..]));
    /// # Ok::<(), durix::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`Index::get`].
    pub fn get_bytes<Q>(&mut self, key: &Q) -> Result<Option<&[u8]>>
    where
        K: GivenAs<Q>,
        Q: ?Sized,
    {
        let Handle { map, cached } = self;
        encode_into::<K, Q>(key, &mut cached.key)?;
        let found = map.guard.get(&cached.session.enter()?, &cached.key, &mut cached.value)?;
        map.guard.note_read(&cached.session, &cached.key);
        map.guard.pool().settle(&mut cached.session)?;
        Ok(found.then_some(&cached.value[..]))
    }

    /// The map.
    ///
    /// ```
    /// # let heap = durix_pmem::backing::HeapBacking::new(64 << 20);
    /// # let db = durix::Db::over(durix::PoolOptions::new().create_on(heap, durix::Hardware::PAGE_CACHE)?);
    /// let map = db.map::<String, u64>("ages")?;
    /// let handle = map.handle()?;
    /// assert_eq!(handle.map().name(), "ages");
    /// # Ok::<(), durix::Error>(())
    /// ```
    pub fn map(&self) -> &Map<K, V, M> {
        &self.map
    }

    pub(crate) fn parts(&mut self) -> (&Map<K, V, M>, &mut Cached<M>) {
        (&self.map, &mut self.cached)
    }

    /// The session: to enter operations for the vocabulary of bytes.
    ///
    /// ```
    /// # let heap = durix_pmem::backing::HeapBacking::new(64 << 20);
    /// # let db = durix::Db::over(durix::PoolOptions::new().create_on(heap, durix::Hardware::PAGE_CACHE)?);
    /// let map = db.map::<String, u64>("ages")?;
    /// let mut handle = map.handle()?;
    /// let op = handle.session().enter()?;
    /// assert!(map.index().is_empty(&op)?);
    /// # Ok::<(), durix::Error>(())
    /// ```
    pub fn session(&mut self) -> &mut durix_pmem::Session<M> {
        &mut self.cached.session
    }
}
