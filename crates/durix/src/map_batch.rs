//! Changes to a typed map that are made together.

use std::marker::PhantomData;

use crate::coding::encoded;
use crate::encode::{GivenAs, Key, Value};
use crate::{Batch, Result};

/// Changes to a map, to be made together by [`Map::apply`](crate::Map::apply).
///
/// ```
/// # let heap = durix_pmem::backing::HeapBacking::new(64 << 20);
/// # let db = durix::Db::over(durix::PoolOptions::new().create_on(heap, durix::Hardware::PAGE_CACHE)?);
/// let map = db.map::<String, u64>("ages")?;
/// let mut batch = durix::MapBatch::new();
/// batch.insert("ada", &36)?.insert("grace", &85)?.remove("alan")?;
/// map.apply(&batch)?;
/// assert_eq!(map.count()?, 2);
/// # Ok::<(), durix::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct MapBatch<K, V> {
    pub(crate) batch: Batch,
    types: PhantomData<fn(K) -> V>,
}

impl<K: Key, V: Value> Default for MapBatch<K, V> {
    fn default() -> Self {
        MapBatch { batch: Batch::new(), types: PhantomData }
    }
}

impl<K: Key, V: Value> MapBatch<K, V> {
    /// An empty batch.
    ///
    /// ```
    /// let batch = durix::MapBatch::<String, u64>::new();
    /// assert!(batch.is_empty());
    /// ```
    pub fn new() -> Self {
        Self::default()
    }

    /// Maps `key` to `value`. Of several changes to one key the last counts.
    ///
    /// ```
    /// # let heap = durix_pmem::backing::HeapBacking::new(64 << 20);
    /// # let db = durix::Db::over(durix::PoolOptions::new().create_on(heap, durix::Hardware::PAGE_CACHE)?);
    /// let map = db.map::<String, u64>("ages")?;
    /// let mut batch = durix::MapBatch::new();
    /// batch.insert("ada", &36)?.insert("ada", &37)?;
    /// map.apply(&batch)?;
    /// assert_eq!(map.get("ada")?, Some(37));
    /// # Ok::<(), durix::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Unfit`](crate::Error::Unfit).
    pub fn insert<Q, W>(&mut self, key: &Q, value: &W) -> Result<&mut Self>
    where
        K: GivenAs<Q>,
        Q: ?Sized,
        V: GivenAs<W>,
        W: ?Sized,
    {
        self.batch.insert(&encoded::<K, Q>(key)?, &encoded::<V, W>(value)?);
        Ok(self)
    }

    /// Removes `key`, if it is there.
    ///
    /// ```
    /// # let heap = durix_pmem::backing::HeapBacking::new(64 << 20);
    /// # let db = durix::Db::over(durix::PoolOptions::new().create_on(heap, durix::Hardware::PAGE_CACHE)?);
    /// let map = db.map::<String, u64>("ages")?;
    /// map.insert("ada", &36)?;
    /// let mut batch = durix::MapBatch::new();
    /// batch.remove("ada")?;
    /// map.apply(&batch)?;
    /// assert!(map.is_empty()?);
    /// # Ok::<(), durix::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Unfit`](crate::Error::Unfit).
    pub fn remove<Q>(&mut self, key: &Q) -> Result<&mut Self>
    where
        K: GivenAs<Q>,
        Q: ?Sized,
    {
        self.batch.remove(&encoded::<K, Q>(key)?);
        Ok(self)
    }

    /// Number of changes.
    ///
    /// ```
    /// let mut batch = durix::MapBatch::<String, u64>::new();
    /// batch.insert("ada", &36)?;
    /// assert_eq!(batch.len(), 1);
    /// # Ok::<(), durix::Error>(())
    /// ```
    pub fn len(&self) -> usize {
        self.batch.len()
    }

    /// Whether the batch has no change.
    ///
    /// ```
    /// assert!(durix::MapBatch::<String, u64>::new().is_empty());
    /// ```
    pub fn is_empty(&self) -> bool {
        self.batch.is_empty()
    }

    /// Forgets all changes, keeps the memory.
    ///
    /// ```
    /// let mut batch = durix::MapBatch::<String, u64>::new();
    /// batch.insert("ada", &36)?;
    /// batch.clear();
    /// assert!(batch.is_empty());
    /// # Ok::<(), durix::Error>(())
    /// ```
    pub fn clear(&mut self) {
        self.batch.clear();
    }
}
