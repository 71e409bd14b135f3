//! The calls that maps and handles have in common, as macros: a map takes `&self`, a handle `&mut self`. Keys and values are encoded before
//! an operation is entered and decoded after it has ended: encoding and decoding may be the user's own code, which may do anything, call
//! this map included.

/// Calls that wait until they are durable; `$self` is `&self` or `&mut self`, and `with` gives a session.
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
        /// [`Error::Unfit`]; otherwise as [`Index::insert`]. The map then is as it was; but with a journal [`Error::Pool`] with
        /// `Busy` or `JournalFailed` can come from the wait for the commit, after the change, whose outcome is unknown then: others may see
        /// it, and a crash may keep it or not.
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
pub(crate) use calls;
