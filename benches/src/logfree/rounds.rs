//! A set at work.

use std::hint::black_box;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use durix_pmem::{Mapping, Medium, Pool, Session};

use super::key;
use crate::interleave::{Contestant, Stopwatch};
use crate::sets_logged::Set;
use crate::workload::{Random, scaled};

/// Operations of a round, for each thread.
pub const OPERATIONS: u64 = 2 << 10;
/// The same where several threads are at work, which must not be over before all have begun.
const OPERATIONS_TOGETHER: u64 = 8 << 10;

/// What a round does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mix {
    /// Reads, in percent; the rest are half inserts, half removes.
    pub reads: u64,
    /// Operations of a round of one thread, and of each thread where several are at work.
    pub operations: [u64; 2],
}

impl Mix {
    /// The workload of the paper, in short rounds.
    pub const UPDATES: Mix = Mix { reads: 0, operations: [OPERATIONS, OPERATIONS_TOGETHER] };

    /// So many percent reads, in rounds so long that the content of the caches, which the contestant before took away, counts little.
    pub const fn long(reads: u64) -> Mix {
        Mix { reads, operations: [LONG; 2] }
    }
}

/// Operations of a long round, for each thread.
pub const LONG: u64 = 32 << 10;

/// A set and the threads at work on it.
pub struct Rounds<M: Medium, S: Set<M>> {
    set: S,
    workers: Vec<Worker<M, S>>,
    mix: Mix,
    _memory: Memory<M>,
}

/// What has to live as long as the set.
pub enum Memory<M: Medium> {
    /// The pool of one of ours.
    Pool(Pool<M>),
    /// The mapping of a comparator.
    Mapping(Mapping<M>),
}

impl<M: Medium> Memory<M> {
    fn session(&self) -> Result<Session<M>, durix_pmem::Error> {
        match self {
            Memory::Pool(pool) => pool.session(),
            Memory::Mapping(mapping) => mapping.session(),
        }
    }
}

struct Worker<M: Medium, S: Set<M>> {
    session: Session<M>,
    local: S::Local,
    keys: u64,
    random: Random,
}

impl<M: Medium, S: Set<M>> Worker<M, S> {
    /// Runs so many operations, of 1024 so many reads; returns how many have changed something.
    #[inline(never)]
    fn batch(&mut self, set: &S, operations: u64, reads: u64) -> u64 {
        let mut changed = 0;
        for _ in 0..operations {
            let random = self.random.next();
            let key = key(scaled(random, 2 * self.keys));
            let op = self.session.enter().expect("the pool is open");
            if random >> 1 & 1023 < reads {
                black_box(set.contains(&mut self.local, &op, key));
                continue;
            }
            let done = if random & 1 == 0 {
                set.insert(&mut self.local, &op, key, 1)
            } else {
                set.remove(&mut self.local, &op, key)
            };
            changed += u64::from(done);
        }
        changed
    }

    fn timed(&mut self, set: &S, operations: u64, mix: Mix) -> (u64, Duration) {
        let start = Stopwatch::start();
        let changed = self.batch(set, operations, mix.reads * 1024 / 100);
        (changed, start.elapsed())
    }
}

impl<M: Medium, S: Set<M>> Rounds<M, S> {
    /// Fills a set with every other of twice `keys` keys.
    ///
    /// # Errors
    /// [`durix_pmem::Error`] without a session for each thread.
    pub fn new(set: S, memory: Memory<M>, keys: u64, threads: u64) -> Result<Self, durix_pmem::Error> {
        let worker = |thread: u64| {
            let (session, local) = (memory.session()?, set.local(thread));
            Ok(Worker { session, local, keys, random: Random(88_172_645_463_325_252 + thread * 7919) })
        };
        let workers = (0..threads).map(worker).collect::<Result<Vec<_>, durix_pmem::Error>>()?;
        let mut rounds = Rounds { set, workers, mix: Mix::UPDATES, _memory: memory };
        for i in 0..keys {
            let count = rounds.workers.len();
            let worker = &mut rounds.workers[i as usize % count];
            let op = worker.session.enter()?;
            rounds.set.insert(&mut worker.local, &op, key(2 * i), i);
        }
        Ok(rounds)
    }

    /// The same, with another mix.
    #[must_use]
    pub fn mixed(self, mix: Mix) -> Self {
        Rounds { mix, ..self }
    }

    /// All threads at once: changes and time of each.
    fn together(&mut self) -> Vec<(u64, Duration)> {
        let (set, mix, count, ready) = (&self.set, self.mix, self.workers.len(), AtomicUsize::new(0));
        std::thread::scope(|scope| {
            let start = |worker| {
                let ready = &ready;
                move || {
                    ready.fetch_add(1, Ordering::AcqRel);
                    while ready.load(Ordering::Acquire) < count {
                        std::hint::spin_loop();
                    }
                    Worker::timed(worker, set, mix.operations[1], mix)
                }
            };
            let handles: Vec<_> = self.workers.iter_mut().map(|worker| scope.spawn(start(worker))).collect();
            handles.into_iter().map(|handle| handle.join().expect("a worker does not panic")).collect()
        })
    }
}

impl<M: Medium, S: Set<M>> Contestant<2> for Rounds<M, S> {
    fn name(&self) -> &str {
        self.set.name()
    }

    /// Nanoseconds an operation, and a successful update; of several threads, what all get done in the time of one.
    fn round(&mut self) -> [f64; 2] {
        let [alone, together] = self.mix.operations;
        let (operations, all) = match self.workers.as_mut_slice() {
            [one] => (alone, vec![one.timed(&self.set, alone, self.mix)]),
            _ => (together, self.together()),
        };
        let rate = |what: &dyn Fn(u64) -> f64| -> f64 {
            1.0 / all.iter().map(|(changed, time)| what(*changed) / time.as_nanos() as f64).sum::<f64>()
        };
        [rate(&|_| operations as f64), rate(&|changed| changed as f64)]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sets_logged::lazy::Lazy;
    use durix_pmem::Hardware;

    #[test]
    fn half_of_the_operations_change_something() {
        for threads in [1, 2] {
            let set = Lazy::<false>::table(1024);
            let bytes = Set::<Hardware>::bytes(&set, threads) as usize;
            let mapping = Mapping::heap(bytes.next_multiple_of(4096), Hardware::PAGE_CACHE);
            let mut rounds = Rounds::new(set, Memory::Mapping(mapping), 1024, threads).unwrap();
            let [each, update] = rounds.round();
            assert!((1.6..2.4).contains(&(update / each)), "{each} ns an operation, {update} ns an update");
            // Of a tenth that are updates, half.
            let [each, update] = rounds.mixed(Mix::long(90)).round();
            assert!((17.0..23.0).contains(&(update / each)), "{each} ns an operation, {update} ns an update");
        }
    }
}
