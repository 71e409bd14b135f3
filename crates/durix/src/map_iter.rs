//! [`Iter`]: all pairs of a [`Map`].

use std::fmt;

use durix_pmem::{Hardware, Medium};

use crate::coding::decoded;
use crate::encode::{Key, Value};
use crate::map::Map;
use crate::sessions::Cached;
use crate::{Cursor, Result};

/// A walk over pairs of a map.
///
/// It holds copies only: it may live long without holding anything up, and every thread, its owner included, may write during the walk.
/// A key that stays in the map from the first to the last step is returned exactly once, with a value it held at some moment during the
/// walk. A key that is inserted or removed during the walk is returned once or not at all. After an error the walk goes on with the next pair.
///
/// ```
/// # let heap = durix_pmem::backing::HeapBacking::new(64 << 20);
/// # let db = durix::Db::over(durix::PoolOptions::new().create_on(heap, durix::Hardware::PAGE_CACHE)?);
/// let map = db.map::<String, u64>("ages")?;
/// map.insert("ada", &36)?;
/// let pairs: Vec<(String, u64)> = map.iter().collect::<durix::Result<_>>()?;
/// assert_eq!(pairs, [("ada".to_owned(), 36)]);
/// # Ok::<(), durix::Error>(())
/// ```
pub struct Iter<'a, K, V, M: Medium = Hardware> {
    map: &'a Map<K, V, M>,
    cursor: Box<dyn Cursor<M> + 'a>,
}

impl<K, V, M: Medium> fmt::Debug for Iter<'_, K, V, M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Iter").field("map", self.map).finish_non_exhaustive()
    }
}

impl<'a, K: Key, V: Value, M: Medium> Iter<'a, K, V, M> {
    pub(crate) fn new(map: &'a Map<K, V, M>, cursor: Box<dyn Cursor<M> + 'a>) -> Self {
        Iter { map, cursor }
    }

    fn step(&mut self) -> Result<Option<(K, V)>> {
        let (cursor, index) = (&mut self.cursor, &*self.map.index);
        // Most pairs were read by an earlier step.
        if let Some((key, value)) = cursor.ready()? {
            return Ok(Some((decoded(index, key)?, decoded(index, value)?)));
        }
        self.map.with(|index, cached| {
            let Cached { session, key, value, .. } = cached;
            let found = cursor.next_into(&session.enter()?, key, value)?;
            index.note_reads(session);
            if !found {
                return Ok(None);
            }
            Ok(Some((decoded(index, key)?, decoded(index, value)?)))
        })
    }
}

impl<K: Key, V: Value, M: Medium> Iterator for Iter<'_, K, V, M> {
    type Item = Result<(K, V)>;

    fn next(&mut self) -> Option<Result<(K, V)>> {
        self.step().transpose()
    }
}
