//! The calls that the maps over pages have alike, said once: [`List`](crate::List), [`HashTable`](crate::HashTable),
//! [`SkipList`](crate::SkipList) and [`Bst`](crate::Bst).

/// The calls of a map that rest on its `pages`, `insert_with`, `update_with`, `remove_with`, `get` and `for_each`. `$what` stands
/// for the map in the texts, and `$recovery` says how long an opening takes.
macro_rules! map_calls {
    ($Map:ident, $what:literal, $recovery:literal) => {
        impl<M: Medium> std::fmt::Debug for $Map<M> {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.debug_struct(stringify!($Map)).field("root", self.pages.root()).finish_non_exhaustive()
            }
        }

        impl<M: Medium> $Map<M> {
            #[doc = concat!("Opens the ", $what, " named `name`, creating it if it is not there. Recovery ", $recovery, ".")]
            ///
            /// # Errors
            /// [`Error::Pool`]: what the pool says, also where `name` is something else. [`Error::Corrupt`],
            /// [`Error::BadOption`].
            pub fn open(pool: &durix_pmem::Pool<M>, name: &str) -> Result<std::sync::Arc<Self>> {
                Self::open_with(pool, name, &Options::default())
            }

            #[doc = concat!("As [`open`](Self::open), with options. A ", $what, " that is open already stays as it is.")]
            ///
            /// # Errors
            /// As [`open`](Self::open).
            pub fn open_with(
                pool: &durix_pmem::Pool<M>,
                name: &str,
                options: &Options,
            ) -> Result<std::sync::Arc<Self>> {
                pool.open_structure(name, options)
            }

            /// Its place in its pool.
            pub fn root(&self) -> &Root<M> {
                self.pages.root()
            }

            /// Inserts a key with its value, if it is not there; returns whether it was not. Two fences, and one more for a page
            /// newly active; none if the key is there.
            ///
            /// # Errors
            /// [`Error::Pool`] where the pool is full; [`Error::Corrupt`].
            pub fn insert(&self, op: &Op<'_, M>, key: u64, value: u64) -> Result<bool> {
                self.insert_with(op, key, || Some(value))
            }

            /// Whether a key is there; as [`get`](Self::get).
            ///
            /// # Errors
            /// As [`get`](Self::get).
            pub fn contains(&self, op: &Op<'_, M>, key: u64) -> Result<bool> {
                Ok(self.get(op, key)?.is_some())
            }

            /// Replaces the value of a key that is there; returns the old one. Two fences; none if it is not there.
            ///
            /// # Errors
            /// As [`insert`](Self::insert).
            pub fn update(&self, op: &Op<'_, M>, key: u64, value: u64) -> Result<Option<u64>> {
                Ok(self.update_with(op, key, |_| Some(value))?.map(|(old, _)| old))
            }

            /// Replaces the value of a key if it is `expected`; returns whether it was. Two fences; none if it was not.
            ///
            /// # Errors
            /// As [`insert`](Self::insert).
            pub fn compare_and_set(&self, op: &Op<'_, M>, key: u64, expected: u64, value: u64) -> Result<bool> {
                let outcome = self.update_with(op, key, |old| (old == expected).then_some(value))?;
                Ok(outcome.is_some_and(|(_, replaced)| replaced))
            }

            /// Removes a key if its value is `expected`; returns whether it did. One fence; none if it was not.
            ///
            /// # Errors
            /// As [`remove`](Self::remove).
            pub fn compare_and_remove(&self, op: &Op<'_, M>, key: u64, expected: u64) -> Result<bool> {
                let outcome = self.remove_with(op, key, |value| value == expected)?;
                Ok(outcome.is_some_and(|(_, removed)| removed))
            }

            /// Number of keys. Linear.
            ///
            /// # Errors
            /// As [`for_each`](Self::for_each).
            pub fn len(&self, op: &Op<'_, M>) -> Result<u64> {
                let mut len = 0;
                self.for_each(op, |_, _| len += 1)?;
                Ok(len)
            }

            #[doc = concat!("How the memory of the ", $what, " is used.")]
            pub fn page_stats(&self, op: &Op<'_, M>) -> PageStats {
                self.pages.stats(op)
            }

            /// The line that the calling session's next insert uses, as an offset in the pool, if it needs no new page.
            pub fn next_address(&self, op: &Op<'_, M>) -> Option<u64> {
                self.pages.next_address(op)
            }
        }
    };
}
pub(crate) use map_calls;

/// The calls of a map whose links a cache may hold back.
macro_rules! link_cache_calls {
    ($Map:ident) => {
        impl<M: Medium> $Map<M> {
            /// When an update is durable: before it returns, or, with a link cache in
            /// [`LinkCacheMode::Buffered`](crate::LinkCacheMode::Buffered), after the next [`sync`](Self::sync).
            pub fn durability(&self) -> durix_pmem::pool::Durability {
                self.pages.durability()
            }

            /// Makes everything durable that was done before, by any thread, and has returned. At most one fence; none without
            /// a link cache, and none if it is.
            ///
            /// # Errors
            /// [`Error::Pool`] where the operation is one of another pool.
            pub fn sync(&self, op: &Op<'_, M>) -> Result<()> {
                self.pages.expect_own(op)?;
                self.pages.flush_links(op);
                Ok(())
            }
        }
    };
}
pub(crate) use link_cache_calls;
