//! Calls of [`Map`] that change many pairs.

use std::borrow::Borrow;

use durix_pmem::Medium;

use crate::Result;
use crate::coding::{decoded, encoded};
use crate::encode::{Key, Value};
use crate::map::Map;
use crate::map_batch::MapBatch;

impl<K: Key, V: Value, M: Medium> Map<K, V, M> {
    /// Removes all pairs but those for which `keep` says `true`; returns how many. A pair that another thread changes during the walk stays.
    /// Linear in the map; durable as [`remove`](Self::remove), each removal by itself.
    ///
    /// ```
    /// # let heap = durix_pmem::backing::HeapBacking::new(64 << 20);
    /// # let db = durix::Db::over(durix::PoolOptions::new().create_on(heap, durix::Hardware::PAGE_CACHE)?);
    /// let map = db.map::<String, u64>("ages")?;
    /// map.try_extend([("ada".to_owned(), 36), ("grace".to_owned(), 85)])?;
    /// assert_eq!(map.retain(|_, age| *age > 40)?, 1);     // how many were removed
    /// assert!(!map.contains("ada")?);
    /// # Ok::<(), durix::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`remove`](Self::remove); what was removed before stays removed.
    pub fn retain(&self, mut keep: impl FnMut(&K, &V) -> bool) -> Result<u64> {
        let (mut cursor, mut removed) = (self.index.cursor(), 0);
        let (mut key, mut value) = (Vec::new(), Vec::new());
        let mut step = |key: &mut Vec<u8>, value: &mut Vec<u8>| {
            self.with(|index, cached| {
                let found = cursor.next_into(&cached.session.enter()?, key, value)?;
                index.note_reads(&cached.session);
                Ok(found)
            })
        };
        while step(&mut key, &mut value)? {
            let stays = keep(&decoded(&*self.index, &key)?, &decoded(&*self.index, &value)?);
            removed += u64::from(!stays && self.change_bytes(&key, Some(&value), None)?);
        }
        Ok(removed)
    }

    /// Inserts all pairs, each as [`insert`](Self::insert) does; in batches of 256 pairs or 1 MiB of keys and values, whatever comes first.
    /// With a journal, a batch is one commit. `pairs` may give owned or borrowed forms.
    ///
    /// ```
    /// # let heap = durix_pmem::backing::HeapBacking::new(64 << 20);
    /// # let db = durix::Db::over(durix::PoolOptions::new().create_on(heap, durix::Hardware::PAGE_CACHE)?);
    /// let map = db.map::<String, u64>("ages")?;
    /// map.try_extend((0..1000).map(|n| (n.to_string(), n)))?;
    /// assert_eq!(map.get("700")?, Some(700));
    /// # Ok::<(), durix::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`apply`](Self::apply); what was inserted before stays.
    pub fn try_extend<Q, W>(&self, pairs: impl IntoIterator<Item = (Q, W)>) -> Result<()>
    where
        Q: Borrow<K>,
        W: Borrow<V>,
    {
        const PAIRS: usize = 256;
        const BYTES: usize = 1 << 20;
        let (mut batch, mut bytes) = (MapBatch::new(), 0);
        for (key, value) in pairs {
            let (key, value) = (encoded::<K, K>(key.borrow())?, encoded::<V, V>(value.borrow())?);
            bytes += key.len() + value.len();
            batch.batch.insert(&key, &value);
            if batch.len() == PAIRS || bytes >= BYTES {
                self.apply(&batch)?;
                batch.clear();
                bytes = 0;
            }
        }
        if batch.is_empty() { Ok(()) } else { self.apply(&batch) }
    }

    /// Inserts many pairs with as few waits as can be: with a journal, a commit for every 4 MiB of keys and values, where
    /// [`try_extend`](Self::try_extend) waits for one each 256 pairs. Returns how many keys are new. All pairs are durable on return;
    /// of a buffered index, too.
    ///
    /// A crash, or an error, leaves some of the first pairs. Do it again: pairs that are there are written once more.
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let db = durix::Db::open_or_create(dir.path().join("squares"))?;
    /// let squares = db.map::<u64, u64>("squares")?;
    /// assert_eq!(squares.bulk_load((0..1000).map(|n| (n, n * n)))?, 1000);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// As [`insert`](Self::insert), and [`sync`](Self::sync); what was inserted before stays.
    pub fn bulk_load<Q, W>(&self, pairs: impl IntoIterator<Item = (Q, W)>) -> Result<u64>
    where
        Q: Borrow<K>,
        W: Borrow<V>,
    {
        const PAIRS: usize = 256;
        let (mut step, mut new, mut uncommitted) = (Vec::new(), 0, 0);
        for (key, value) in pairs {
            step.push((encoded::<K, K>(key.borrow())?, encoded::<V, V>(value.borrow())?));
            if step.len() == PAIRS {
                new += self.load_step(&step, &mut uncommitted)?;
                step.clear();
            }
        }
        new += self.load_step(&step, &mut uncommitted)?;
        self.sync()?;
        Ok(new)
    }

    /// Inserts pairs without waiting for a commit, but for each 4 MiB. Returns how many keys are new.
    fn load_step(&self, pairs: &[(Vec<u8>, Vec<u8>)], uncommitted: &mut usize) -> Result<u64> {
        const BYTES: usize = 4 << 20;
        let (pool, guard) = (&self.shared.pool, &*self.guard);
        self.shared.sessions.with(pool, |cached| {
            let mut new = 0;
            for (key, value) in pairs {
                pool.services().admit(&mut cached.session)?;
                new += u64::from(guard.change(&mut cached.session, key, |index, op| index.insert(op, key, value))?);
                *uncommitted += key.len() + value.len();
                if *uncommitted >= BYTES {
                    pool.commit(&mut cached.session)?;
                    *uncommitted = 0;
                }
            }
            Ok(new)
        })
    }
}
