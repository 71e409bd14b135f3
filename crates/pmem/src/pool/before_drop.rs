//! Who is asked before an index is dropped.

use std::sync::{Arc, Weak};

use super::Pool;
use super::indices::IndexInfo;
use crate::error::Result;
use crate::lock::Lock;
use crate::medium::Medium;
use crate::session::Session;

/// Keeps records that name indices by their owners, as a log of transactions does. The owner of an index that is dropped becomes that of
/// another one; so no record that recovery would follow may name it any more. See [`Pool::ask_before_drops`].
pub trait BeforeDrop<M: Medium>: Send + Sync {
    /// Makes durable that no record changes this index, or refuses. Nobody has it open, and nobody gets it before the call has returned;
    /// no operation is open here. What the last user of the index has done is visible.
    ///
    /// # Errors
    /// The index is then not dropped.
    fn before_drop(&self, session: &mut Session<M>, index: &IndexInfo) -> Result<()>;
}

/// All that are asked.
pub(super) type Asked<M> = Lock<Vec<Weak<dyn BeforeDrop<M>>>>;

impl<M: Medium> Pool<M> {
    /// Has `asked` called before an index is dropped, as long as it lives: by [`drop_index`](Self::drop_index), through whichever handle of the
    /// pool.
    pub fn ask_before_drops<B: BeforeDrop<M> + 'static>(&self, asked: &Arc<B>) {
        let weak: Weak<B> = Arc::downgrade(asked);
        let mut all = self.inner.before_drops.lock(self.mapping().medium());
        all.retain(|other| other.strong_count() > 0);
        all.push(weak);
    }

    /// Asks all of them.
    pub(super) fn before_drop(&self, session: &mut Session<M>, index: &IndexInfo) -> Result<()> {
        // Not under the lock: they write back.
        let all: Vec<_> = {
            let all = self.inner.before_drops.lock(self.mapping().medium());
            all.iter().filter_map(Weak::upgrade).collect()
        };
        all.iter().try_for_each(|asked| asked.before_drop(session, index))
    }
}
