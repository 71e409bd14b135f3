//! The ranges that wait to be merged, and the service that merges them.

use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{Acquire, Release};

use durix_pmem::service::{Due, Service, Urgency};
use durix_pmem::{Error as PoolError, Lock, Medium, Session};

use crate::DpTree;
use crate::error::Error;
use crate::range::Range;

/// Ranges with a second front, in the order in which it was frozen. One may be in it twice, or be merged already.
pub(crate) struct Queue {
    ranges: Lock<VecDeque<Arc<Range>>>,
    len: AtomicU64,
}

impl fmt::Debug for Queue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Queue")
    }
}

impl Queue {
    pub(crate) fn new() -> Self {
        Queue { ranges: Lock::new(VecDeque::new()), len: AtomicU64::new(0) }
    }

    pub(crate) fn push<M: Medium>(&self, m: M, range: Arc<Range>) {
        let mut ranges = self.ranges.lock(m);
        ranges.push_back(range);
        m.shared_store(&self.len, ranges.len() as u64, Release);
    }

    pub(crate) fn pop<M: Medium>(&self, m: M) -> Option<Arc<Range>> {
        if self.is_empty(m) {
            return None;
        }
        let mut ranges = self.ranges.lock(m);
        let range = ranges.pop_front();
        m.shared_store(&self.len, ranges.len() as u64, Release);
        range
    }

    pub(crate) fn is_empty<M: Medium>(&self, m: M) -> bool {
        m.shared_load(&self.len, Acquire) == 0
    }
}

/// Merges may run in several threads: each takes ranges of its own.
impl<M: Medium> Service<M> for DpTree<M> {
    fn name(&self) -> String {
        format!("the merge of index {:?}", self.root().name())
    }

    fn workers(&self) -> usize {
        std::thread::available_parallelism().map_or(1, usize::from)
    }

    fn due(&self) -> Due {
        let m = self.root().pool().mapping().medium();
        if self.queue.is_empty(m) { Due::No } else { Due::Now(Urgency::Due) }
    }

    fn step(&self, session: &mut Session<M>) -> durix_pmem::Result<()> {
        match self.tick(session) {
            Ok(_) => Ok(()),
            Err(Error::Pool(error)) => Err(error),
            Err(Error::Corrupt { what, offset, found }) => Err(PoolError::OutOfBounds { what, offset, len: found }),
            Err(Error::BadShape { .. } | Error::BatchTooLarge { .. }) => {
                unreachable!("a tree that is open has a sound shape, and a merge takes no batch")
            }
        }
    }
}
