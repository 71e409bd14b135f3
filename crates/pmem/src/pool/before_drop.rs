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

    /// Called after each call of [`before_drop`](Self::before_drop), when the index is dropped, or will not be.
    fn after_drop(&self, index: &IndexInfo) {
        let _ = index;
    }
}

/// Those that were asked, who are told when the drop is over.
pub(super) struct Dropping<M: Medium> {
    asked: Vec<Arc<dyn BeforeDrop<M>>>,
    index: IndexInfo,
}

impl<M: Medium> Drop for Dropping<M> {
    fn drop(&mut self) {
        self.asked.iter().for_each(|asked| asked.after_drop(&self.index));
    }
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

    /// Asks all of them. The caller keeps what it gets until the drop is over.
    pub(super) fn before_drop(&self, session: &mut Session<M>, index: IndexInfo) -> Result<Dropping<M>> {
        // Not under the lock: they write back.
        let all: Vec<_> = {
            let all = self.inner.before_drops.lock(self.mapping().medium());
            all.iter().filter_map(Weak::upgrade).collect()
        };
        let mut dropping = Dropping { asked: Vec::with_capacity(all.len()), index };
        for asked in all {
            dropping.asked.push(asked);
            dropping.asked[dropping.asked.len() - 1].before_drop(session, &dropping.index)?;
        }
        Ok(dropping)
    }
}
