//! The calls of maps and handles that return before they are durable, as a macro.

/// Calls that end with a ticket ([`Unsettled`](crate::Unsettled)); `$self` is `&self` or `&mut self`.
macro_rules! later_calls {
    ($self:ident, $($receiver:tt)+) => {
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
    };
}
pub(crate) use later_calls;
