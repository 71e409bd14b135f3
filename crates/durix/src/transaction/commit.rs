//! Commit: all changes of a transaction, or none.
//!
//! | class | maps | how |
//! |---|---|---|
//! | none | nothing written | nothing to do |
//! | direct | one change of one strict map, or a batch that the map makes atomically; any changes of buffered maps | in one operation |
//! | whole | all others, in a pool that commits operations whole (a journaled one) | in one operation, without records |
//! | logged | only strict maps touched | intents, changes, retirement in one operation |
//! | mixed | strict maps written, a buffered map touched | intents and the buffered changes in one operation; the strict changes after the boundary, by [`pending`](super::pending) |
//!
//! # Persist order
//! Besides the edges of the [log](super::log):
//!
//! | edge | kept by | a crash before it leaves | recovery |
//! |---|---|---|---|
//! | TX-E record and buffered changes in epoch e < the boundary of e | one operation, which the boundary waits for | e has failed: the buffered maps undo their part | drops the record |
//! | TX-W all changes of a whole commit < the end of its operation < the record of the journal that holds them | the journal takes what it commits between operations; [`Pool::whole`](durix_pmem::Pool::whole) where the operation ends before | nothing of it | nothing to do |
//! | TX-S the boundary of e < the first strict change | [`Epochs::wait`](durix_pmem::Epochs::wait) | the record of a completed epoch, any of the strict changes | makes the strict changes |

use std::sync::Arc;

use durix_pmem::{Epochs, Level, Medium, Op, Session};

use super::buffers::Buffers;
use super::later::State;
use super::log::record;
use super::log::room::{Need, Room};
use super::log::{self};
use super::part::{Kept, Part};
use super::pending::Work;
use super::put::{put, settle};
use super::touched::Committed;
use super::tx::Transaction;
use crate::{Error, Index, Result, Ticket};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Class {
    Nothing,
    Direct,
    Whole,
    Logged,
    Mixed,
}

/// `is_whole`: whether the pool commits operations whole.
fn classify<'p, M: Medium>(parts: impl Iterator<Item = Part<'p, M>> + Clone, is_whole: bool) -> Class {
    let mut written = parts.clone().filter(|part| part.is_written());
    let Some(first) = written.next() else { return Class::Nothing };
    let is_one = written.clone().next().is_none();
    if first.is_buffered() && written.all(Part::is_buffered) {
        Class::Direct
    } else if is_whole {
        if is_one && first.is_atomic() { Class::Direct } else { Class::Whole }
    } else if { parts }.any(Part::is_buffered) {
        Class::Mixed
    } else if is_one && first.is_atomic() {
        Class::Direct
    } else {
        Class::Logged
    }
}

/// What is needed to put old values back: those that the transaction does not know.
struct Undo(Vec<(Vec<u8>, Option<Vec<u8>>)>);

impl Undo {
    /// Before the first change.
    fn of<'p, M: Medium>(op: &Op<'_, M>, parts: impl Iterator<Item = Part<'p, M>>) -> Result<Self> {
        let mut old = Vec::new();
        for part in parts {
            for (key, _, committed) in part.touched.changed() {
                if matches!(committed, Committed::Unknown) {
                    old.push((key.to_vec(), part.guard.raw().get_vec(op, key)?));
                }
            }
        }
        Ok(Undo(old))
    }

    /// The keys of the same parts, or of the first of them, with the old values.
    fn for_each<'u, 'p: 'u, M: Medium>(
        &'u self,
        parts: impl Iterator<Item = Part<'p, M>>,
        mut f: impl FnMut(Part<'p, M>, &'u [u8], Option<&'u [u8]>),
    ) {
        let mut read = self.0.iter();
        for part in parts {
            for (key, _, committed) in part.touched.changed() {
                let old = match committed {
                    Committed::Absent => None,
                    Committed::Value(value) => Some(&value[..]),
                    Committed::Unknown => read.next().expect("the same parts").1.as_deref(),
                };
                f(part, key, old);
            }
        }
    }

    /// What putting the old values back can need.
    fn need<'p, M: Medium>(&self, parts: impl Iterator<Item = Part<'p, M>> + Clone) -> Need {
        let mut need = Need::default();
        parts.clone().for_each(|_| need.map());
        self.for_each(parts, |_, key, old| {
            need.change((key.len() + old.map_or(0, <[u8]>::len)) as u64, old.is_none());
        });
        need
    }

    /// Puts the old values of the same parts, or of the first of them, back. Removals first: they make room.
    fn run<'p, M: Medium>(self, op: &Op<'_, M>, parts: impl Iterator<Item = Part<'p, M>>) -> Result<()> {
        let mut all = Vec::new();
        self.for_each(parts, |part, key, old| all.push((part.guard.raw(), key, old)));
        all.sort_by_key(|(_, _, old)| old.is_some());
        all.into_iter().try_for_each(|(index, key, old)| {
            put(index, op, key, old)?;
            settle(index, op);
            Ok(())
        })
    }
}

impl<M: Medium> Transaction<M> {
    /// Makes all changes. Durable on return where all maps are strict; where strict and buffered maps are mixed, after the
    /// checkpoint that this waits for, unless [`later`](Self::later) was called; where all maps are buffered, with the
    /// next checkpoint.
    ///
    /// ```
    /// # let heap = durix_pmem::backing::HeapBacking::new(64 << 20);
    /// # let db = durix::Db::over(durix::PoolOptions::new().create_on(heap, durix::Hardware::PAGE_CACHE)?);
    /// let map = db.map::<String, u64>("ages")?;
    /// let tx = db.begin()?;
    /// tx.map(&map)?.insert("ada", &36)?;
    /// tx.commit()?;
    /// assert_eq!(map.get("ada")?, Some(36));
    /// # Ok::<(), durix::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Conflict`] if a call on this transaction has lost a conflict: nothing was changed, begin again.
    /// [`Error::Pool`] where the pool is full: nothing was changed. [`Error::TransactionTooLarge`]. [`Error::Unsettled`].
    pub fn commit(self) -> Result<()> {
        if self.state.borrow().lost.is_some() {
            return Err(Error::Conflict { attempts: 1 });
        }
        commit(&self)
    }
}

fn commit<M: Medium>(tx: &Transaction<M>) -> Result<()> {
    let shared = &*tx.shared;
    shared.sessions.with(&shared.pool, |cached| {
        // From here on the commit gives the locks back, not the transaction.
        let Some(buffers) = tx.end() else { return Ok(()) };
        let commit = Commit { tx, buffers: Some(buffers), keeps_locks: false };
        let writes = commit.written().next().is_some();
        if writes {
            // As before any update: what a service has failed at is told, and one that is outrun holds writers up. Nothing has happened yet.
            shared.pool.services().admit(&mut cached.session)?;
        }
        commit.run(&mut cached.session)?;
        // What it has read may be newer than what it has written. Its place is fixed, and its locks are given back.
        shared.transactions.visible.read_all(&cached.session);
        if writes && tx.state.borrow().later.is_some() {
            // Whoever has the ticket waits, whatever the level.
            return Ok(shared.pool.settle_at(&mut cached.session, Level::Process)?);
        }
        let Some(level) = tx.state.borrow().level else { return Ok(shared.pool.settle(&mut cached.session)?) };
        if !writes {
            // Nobody has noted which commits hold what it has read.
            cached.session.raise_commit(shared.pool.mapping().gathering());
        }
        Ok(shared.pool.settle_at(&mut cached.session, level)?)
    })
}

struct Commit<'t, M: Medium> {
    tx: &'t Transaction<M>,
    /// `None` once they are given back.
    buffers: Option<Box<Buffers>>,
    /// Changes are under way that must be finished before anybody else gets the keys.
    keeps_locks: bool,
}

impl<M: Medium> Drop for Commit<'_, M> {
    fn drop(&mut self) {
        if !self.keeps_locks {
            self.unlock();
        }
        self.buffers.take().expect("until here").give_back();
    }
}

impl<M: Medium> Commit<'_, M> {
    fn run(mut self, session: &mut Session<M>) -> Result<()> {
        let state = match classify(self.parts(), self.tx.shared.pool.commits_operations_whole()) {
            Class::Nothing => State::Ticket(Ticket::DURABLE),
            Class::Direct => self.direct(session)?,
            Class::Whole => State::Commit(self.whole(session)?),
            Class::Logged => State::Ticket(self.logged(session)?),
            Class::Mixed => return self.mixed(session),
        };
        if let Some(later) = &self.tx.state.borrow().later {
            later.set(state);
        }
        Ok(())
    }

    fn buffers(&self) -> &Buffers {
        self.buffers.as_ref().expect("until the end")
    }

    fn parts(&self) -> impl Iterator<Item = Part<'_, M>> + Clone {
        let parts = self.buffers().parts.iter().enumerate();
        parts.map(|(place, touched)| Part { guard: self.tx.guards.at(place), touched })
    }

    fn written(&self) -> impl Iterator<Item = Part<'_, M>> + Clone {
        self.parts().filter(|part| part.is_written())
    }

    fn buffered(&self) -> impl Iterator<Item = Part<'_, M>> + Clone {
        self.written().filter(|part| part.is_buffered())
    }

    fn strict(&self) -> impl Iterator<Item = Part<'_, M>> + Clone {
        self.written().filter(|part| !part.is_buffered())
    }

    fn unlock(&self) {
        self.parts().for_each(|part| part.unlock(self.tx.age));
    }

    /// Before the keys of some parts change, and before the record. Returns how to put the old values back.
    fn prepare<'p>(
        op: &Op<'_, M>,
        parts: impl Iterator<Item = Part<'p, M>> + Clone,
        own: Option<usize>,
    ) -> Result<Undo> {
        parts.clone().try_for_each(|part| part.prepare(op, own))?;
        Undo::of(op, parts)
    }

    fn direct(&mut self, session: &mut Session<M>) -> Result<State<M>> {
        let epochs = self.buffered().next().map(|_| self.tx.shared.transactions.epochs()).transpose()?;
        let op = session.enter()?;
        match epochs {
            Some(epochs) if self.written().map(|part| part.touched.changes()).sum::<usize>() > 1 => {
                let undo = Self::prepare(&op, self.written(), None)?;
                if let Err(error) = self.written().try_for_each(|part| part.change(&op)) {
                    Self::undo_buffered(&op, undo, self.written(), epochs)?;
                    return Err(error);
                }
            }
            // One map, which makes all changes or none.
            _ => self.written().try_for_each(|part| {
                part.prepare(&op, None)?;
                part.change(&op)
            })?,
        }
        if self.tx.shared.pool.commits_operations_whole() {
            // A boundary of the epochs is in memory only until then, and maps without epochs are no sooner durable either.
            return Ok(State::Commit(op.note_commit()));
        }
        let tickets = self.written().map(|part| part.guard.raw().ticket(&op));
        let last = tickets.max_by_key(|ticket| ticket.checkpoint().map(durix_pmem::Ticket::epoch));
        Ok(State::Ticket(last.unwrap_or(Ticket::DURABLE)))
    }

    /// Makes all changes in one operation, of which no commit of the pool holds a part. Returns the number of the commit that holds them.
    fn whole(&mut self, session: &mut Session<M>) -> Result<u64> {
        let (pool, rooms) = (&self.tx.shared.pool, &self.tx.shared.transactions.rooms);
        let op = session.enter()?;
        let undo = Self::prepare(&op, self.written(), None)?;
        let mut room = self.hold_back(&op, undo.need(self.written()))?;
        // PERSIST TX-W, TX-H: the operation ends after `done`, or after the pool
        let whole = pool.whole(&op)?;
        let mut reached = 0;
        let changed = self.written().try_for_each(|part| {
            reached += 1;
            part.change(&op)
        });
        let Err(error) = changed else {
            whole.done();
            rooms.keep(&op, room);
            return Ok(op.note_commit());
        };
        room.give_back(&op, pool.space());
        if undo.run(&op, self.written().take(reached)).is_ok() {
            whole.done();
            return Err(error);
        }
        // Memory holds a part of the changes, so it goes: what opens the pool next finds nothing of them.
        drop(whole);
        drop(op);
        Err(session.enter().map_or_else(Error::from, |_| error))
    }

    /// Holds back what putting old values back can need. What only removes does without where there is none: it makes room.
    fn hold_back(&self, op: &Op<'_, M>, need: Need) -> Result<Room> {
        let changes = || self.written().flat_map(|part| part.touched.changed());
        let bytes = changes().map(|(key, value, _)| (key.len() + value.map_or(0, <[u8]>::len)) as u64).sum();
        if bytes > log::MAX_BYTES {
            return Err(Error::TransactionTooLarge { bytes, limit: log::MAX_BYTES });
        }
        let pool = &self.tx.shared.pool;
        let need = need.chunks(pool.space().chunk(), pool.mapping().len());
        let owner = self.written().next().expect("something is written").guard.root().owner();
        match self.tx.shared.transactions.rooms.take(op, pool.space(), owner, need) {
            Err(Error::Pool(error)) if error.is_no_room() && changes().all(|(_, value, _)| value.is_none()) => {
                Ok(Room::default())
            }
            room => room,
        }
    }

    /// Puts the old values of buffered maps back. If a map refuses, no boundary is crossed any more: the epoch fails when the
    /// pool is opened again, and all its changes are undone.
    fn undo_buffered<'p>(
        op: &Op<'_, M>,
        undo: Undo,
        parts: impl Iterator<Item = Part<'p, M>>,
        epochs: &Epochs<M>,
    ) -> Result<()> {
        undo.run(op, parts).inspect_err(|_| epochs.stop(super::log::NAME.into()))
    }

    /// The changes of strict maps, as a record to be, and what its replay can need.
    fn draft(&mut self) -> (Vec<u8>, Need) {
        let mut need = Need::default();
        let mut draft = std::mem::take(&mut self.buffers.as_mut().expect("until the end").draft);
        record::begin(&mut draft);
        for part in self.strict() {
            let owner = part.guard.root().owner();
            need.map();
            part.touched.changed().for_each(|(key, value, _)| {
                record::push(&mut draft, owner, key, value);
                need.change((key.len() + value.map_or(0, <[u8]>::len)) as u64, value.is_none());
            });
        }
        (draft, need)
    }

    fn logged(&mut self, session: &mut Session<M>) -> Result<Ticket> {
        let (mut draft, need) = self.draft();
        let transactions = &self.tx.shared.transactions;
        let (log, retirements) = (transactions.log()?, &transactions.retirements);
        let op = session.enter()?;
        let mut lane = log.take(&op, record::payload(&draft), &need)?;
        let undo = match Self::prepare(&op, self.written(), Some(lane.number())) {
            Ok(undo) => undo,
            Err(error) => {
                lane.cancel(&op);
                return Err(error);
            }
        };
        // Where it fails, nothing was stored.
        lane.write(&op, retirements, 0, &mut draft)?;
        self.keeps_locks = true;
        self.buffers.as_mut().expect("until the end").draft = draft;
        let changed = self.written().try_for_each(|part| part.change(&op));
        let Err(error) = changed else {
            lane.retire(&op, retirements, self.written().flat_map(Part::changed_keys));
            self.keeps_locks = false;
            return Ok(Ticket::DURABLE);
        };
        if undo.run(&op, self.written()).is_ok() {
            // Durably: what has failed must not happen after a crash.
            lane.retire_now(&op);
            self.keeps_locks = false;
            return Err(error);
        }
        let work = Work::new(self.tx.age, None, self.keep(|_| true), lane);
        transactions.pending.add(op.medium(), work);
        Err(Error::Unsettled { source: Box::new(error) })
    }

    /// Takes parts out, to be kept beyond the transaction.
    fn keep(&mut self, which: impl Fn(Part<'_, M>) -> bool) -> Vec<Kept<M>> {
        let mut kept = Vec::new();
        let parts = &mut self.buffers.as_mut().expect("until the end").parts;
        for (place, touched) in parts.iter_mut().enumerate() {
            let guard = self.tx.guards.at(place);
            if which(Part { guard, touched }) {
                kept.push(Kept { guard: Arc::clone(guard), touched: std::mem::take(touched) });
            }
        }
        kept
    }

    fn mixed(mut self, session: &mut Session<M>) -> Result<()> {
        let transactions = &self.tx.shared.transactions;
        let epochs = transactions.epochs()?;
        let (mut draft, need) = self.draft();
        let log = transactions.log()?;
        transactions.turns.give_way(transactions.medium());
        let work = {
            let op = session.enter()?;
            let mut lane = log.take(&op, record::payload(&draft), &need)?;
            self.strict().for_each(|part| part.settle_keys(&op, Some(lane.number())));
            let undo = match Self::prepare(&op, self.buffered(), None) {
                Ok(undo) => undo,
                Err(error) => {
                    lane.cancel(&op);
                    return Err(error);
                }
            };
            // Where it fails, nothing was stored.
            lane.write(&op, &transactions.retirements, epochs.current(&op), &mut draft)?;
            self.keeps_locks = true;
            self.buffers.as_mut().expect("until the end").draft = draft;
            // PERSIST TX-E: in the operation that has written the record
            let changed = self.buffered().try_for_each(|part| part.change(&op));
            if let Err(error) = changed {
                Self::undo_buffered(&op, undo, self.buffered(), epochs)?;
                lane.retire_now(&op);
                self.keeps_locks = false;
                return Err(error);
            }
            let left = self.keep(|part| part.is_written() && !part.is_buffered());
            let ticket = (Arc::clone(epochs), epochs.ticket(&op));
            // Known before the operation ends: a snapshot must not see one half without the other.
            transactions.pending.add(op.medium(), Work::new(self.tx.age, Some(ticket), left, lane))
        };
        // The locks that are left are of maps that need nothing any more.
        self.unlock();
        if let Some(later) = &self.tx.state.borrow().later {
            later.set(State::Work(work));
            transactions.serve();
            return Ok(());
        }
        transactions.finish(&work, session)
    }
}

#[cfg(test)]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind};
    use std::path::{Path, PathBuf};
    use std::time::Duration;

    use durix_pmem::backing::HeapBacking;
    use durix_pmem::journal::DiskJournal;
    use durix_pmem::{Hardware, PoolOptions};

    use super::super::put::planted::{self, Fault};
    use crate::{Db, Level, Map, Result};

    /// The kinds of the two maps: all strict, and mixed.
    const KINDS: [[&str; 2]; 3] = [["hash", "bplustree"], ["hash", "masstree"], ["pset", "dptree"]];
    const LEVELS: [Level; 2] = [Level::Immediate, Level::Interval(Duration::from_secs(3600))];

    struct Bank {
        db: Db,
        maps: [Map<u64, u64>; 2],
    }

    impl Bank {
        fn over(db: Db, kinds: [&str; 2]) -> Bank {
            let maps = [("a", kinds[0]), ("b", kinds[1])].map(|(name, kind)| db.map_of_kind(name, kind).unwrap());
            Bank { db, maps }
        }

        fn create(path: &Path, kinds: [&str; 2], level: Level) -> Bank {
            let builder = Db::builder().initial_size(4 << 20).durability(level).no_background_threads();
            Bank::over(builder.create(path).unwrap(), kinds)
        }

        fn open(path: &Path, kinds: [&str; 2]) -> Bank {
            Bank::over(Db::builder().no_background_threads().accept_copy(true).open(path).unwrap(), kinds)
        }

        /// Sets the key 1 of both maps.
        fn both(&self, value: u64) -> Result<()> {
            self.db.transaction(|tx| self.maps.iter().try_for_each(|map| tx.map(map)?.insert(&1, &value).map(drop)))
        }

        /// Sets keys of both maps.
        fn set(&self, keys: &[u64], value: u64) -> Result<()> {
            self.db.transaction(|tx| {
                self.maps.iter().try_for_each(|map| {
                    let map = tx.map(map)?;
                    keys.iter().try_for_each(|key| map.insert(key, &value).map(drop))
                })
            })
        }

        fn values(&self, keys: &[u64]) -> Vec<Option<u64>> {
            self.maps.iter().flat_map(|map| keys.iter().map(|key| map.get(key).unwrap())).collect()
        }

        fn found(&self) -> [Option<u64>; 2] {
            self.maps.each_ref().map(|map| map.get(&1).unwrap())
        }
    }

    /// What the death of the process leaves of a database now.
    fn killed(path: &Path) -> PathBuf {
        let copy = path.with_extension("killed");
        let files: [fn(&Path) -> PathBuf; 3] = [Path::to_path_buf, DiskJournal::path_of, DiskJournal::sums_of];
        for of in files {
            if of(path).exists() {
                std::fs::copy(of(path), of(&copy)).unwrap();
            }
        }
        copy
    }

    fn cases(run: impl Fn(&Path, [&str; 2], Level)) {
        for (kinds, level) in KINDS.into_iter().flat_map(|kinds| LEVELS.map(|level| (kinds, level))) {
            let dir = tempfile::tempdir().unwrap();
            println!("{kinds:?}, {level}");
            run(&dir.path().join("bank"), kinds, level);
        }
    }

    #[test]
    fn a_process_that_dies_leaves_whole_transactions_of_commits_and_no_log() {
        cases(|path, kinds, level| {
            let bank = Bank::create(path, kinds, level);
            bank.both(1).unwrap();
            bank.db.sync().unwrap();
            bank.both(2).unwrap();
            let last = if level == Level::Immediate { Some(2) } else { Some(1) };
            assert_eq!(Bank::open(&killed(path), kinds).found(), [last; 2]);
            bank.db.sync().unwrap();
            assert_eq!(Bank::open(&killed(path), kinds).found(), [Some(2); 2]);
            let all = bank.db.pool().readable_indices().unwrap().0;
            assert!(all.iter().all(|index| index.name != super::log::NAME), "{all:?}");
        });
    }

    #[test]
    fn what_a_map_refuses_in_a_journaled_pool_is_undone() {
        cases(|path, kinds, level| {
            let bank = Bank::create(path, kinds, level);
            bank.both(1).unwrap();
            planted::plant(&[None, Some(Fault::Full)]);
            let refused = bank.both(2).unwrap_err();
            assert!(matches!(refused, crate::Error::Pool(durix_pmem::Error::Full { .. })), "{refused}");
            assert_eq!(bank.found(), [Some(1); 2]);
            bank.db.sync().unwrap();
            assert_eq!(Bank::open(&killed(path), kinds).found(), [Some(1); 2]);
            bank.both(3).unwrap();
            assert_eq!(bank.found(), [Some(3); 2]);
        });
    }

    /// A bank whose maps are in memory, without a journal.
    fn in_memory(kinds: [&str; 2]) -> Bank {
        let pool = PoolOptions::new().create_on(HeapBacking::new(64 << 20), Hardware::PAGE_CACHE).unwrap();
        Bank::over(Db::builder().no_background_threads().over(pool).unwrap(), kinds)
    }

    /// Has each of the first changes of a transaction be refused that sets `keys` of both maps.
    fn refuse_each(bank: &Bank, keys: &[u64], changes: usize, is_as_before: impl Fn()) {
        for place in 0..changes {
            bank.db.sync().unwrap();
            let mut faults = vec![None; place];
            faults.push(Some(Fault::Full));
            planted::plant(&faults);
            let refused = bank.set(keys, 2).unwrap_err();
            assert!(matches!(refused, crate::Error::Pool(durix_pmem::Error::Full { .. })), "{place}: {refused}");
            assert_eq!(bank.values(keys), vec![Some(1); 2 * keys.len()], "{place}");
            is_as_before();
        }
        bank.set(keys, 3).unwrap();
        assert_eq!(bank.values(keys), vec![Some(3); 2 * keys.len()]);
        bank.set(keys, 1).unwrap();
    }

    #[test]
    fn whichever_change_is_refused_nothing_is_left_of_any() {
        // All strict, mixed, all buffered. Of the mixed ones the strict changes come after the boundary; several of the Masstree are one
        // batch.
        let (one, two) = (&[1][..], &[1, 2][..]);
        let cases = [
            (["hash", "skiplist"], one, 2),
            (["hash", "skiplist"], two, 4),
            (["hash", "masstree"], one, 1),
            (["masstree", "masstree"], one, 2),
        ];
        for (kinds, keys, changes) in cases {
            let bank = in_memory(kinds);
            bank.set(keys, 1).unwrap();
            let transactions = &bank.db.shared.transactions;
            refuse_each(&bank, keys, changes, || {
                assert!(!transactions.retirements.any(transactions.medium()), "{kinds:?}: a crash makes it happen");
            });
        }
    }

    /// What was inserted is taken out first, and makes room for the old values.
    #[test]
    fn old_values_are_put_back_where_only_a_removal_makes_room_for_them() {
        let bank = in_memory(["hash", "skiplist"]);
        let (kinds, dir) = (["hash", "skiplist"], tempfile::tempdir().unwrap());
        let journaled = Bank::create(&dir.path().join("bank"), kinds, LEVELS[1]);
        for bank in [bank, journaled] {
            bank.set(&[1], 1).unwrap();
            // In each map a value is replaced and a key inserted; the last change is refused. Then a removal has to come first.
            planted::plant(&[None, None, None, Some(Fault::Full), Some(Fault::FullForInserts)]);
            bank.set(&[1, 2], 2).unwrap_err();
            planted::plant(&[]);
            assert_eq!(bank.values(&[1, 2]), [Some(1), None, Some(1), None]);
            bank.set(&[1, 2], 3).unwrap();
        }
    }

    #[test]
    fn whichever_change_is_refused_in_a_journaled_pool_nothing_is_left_of_any() {
        let (kinds, dir) = (["hash", "skiplist"], tempfile::tempdir().unwrap());
        let path = dir.path().join("bank");
        let bank = Bank::create(&path, kinds, LEVELS[1]);
        bank.set(&[1, 2], 1).unwrap();
        refuse_each(&bank, &[1, 2], 4, || {
            bank.db.sync().unwrap();
            assert_eq!(Bank::open(&killed(&path), kinds).values(&[1, 2]), [Some(1); 4]);
        });
    }

    /// Half of it is in memory, and a boundary would make it durable.
    #[test]
    fn no_boundary_comes_after_buffered_changes_that_could_not_be_undone() {
        let full = Some(Fault::Full);
        for (kinds, faults) in
            [(["hash", "masstree"], &[full, full][..]), (["masstree", "masstree"], &[None, full, full])]
        {
            let bank = in_memory(kinds);
            bank.set(&[1], 1).unwrap();
            bank.db.sync().unwrap();
            planted::plant(faults);
            bank.set(&[1], 2).unwrap_err();
            planted::plant(&[]);
            assert!(bank.db.sync().is_err(), "{kinds:?}");
        }
    }

    /// Recovery will make the changes of its record again. Until then nobody changes its keys.
    #[test]
    fn a_panic_after_the_record_keeps_the_keys_locked() {
        let bank = in_memory(["hash", "skiplist"]);
        bank.set(&[1, 2], 1).unwrap();
        planted::plant(&[None, Some(Fault::Panic)]);
        catch_unwind(AssertUnwindSafe(|| bank.set(&[1, 2], 2))).unwrap_err();
        planted::plant(&[]);
        let mut session = bank.db.pool().session().unwrap();
        let op = session.enter().unwrap();
        for map in &bank.maps {
            let refused = map.index().insert(&op, &1u64.to_be_bytes(), &[3; 8]);
            assert!(matches!(refused, Err(crate::Error::Locked { .. })), "{refused:?}");
        }
    }

    /// Memory holds half of a transaction then. No commit takes it, not even one that has waited for the operation to end.
    #[test]
    fn half_of_a_transaction_is_never_committed() {
        let refused = &[None, Some(Fault::Full), Some(Fault::Full)][..];
        for faults in [&[None, Some(Fault::Panic)][..], refused] {
            cases(|path, kinds, level| {
                let bank = Bank::create(path, kinds, level);
                bank.both(1).unwrap();
                bank.db.sync().unwrap();
                planted::plant(faults);
                let ended = catch_unwind(AssertUnwindSafe(|| bank.both(2)));
                planted::plant(&[]);
                assert_eq!(ended.is_err(), faults.contains(&Some(Fault::Panic)), "{ended:?}");
                let says = |error: crate::Error| assert!(error.to_string().contains("half done"), "{error}");
                ended.into_iter().for_each(|refused| says(refused.unwrap_err()));
                says(bank.both(3).unwrap_err());
                says(bank.maps[0].get(&1).unwrap_err());
                says(bank.db.sync().unwrap_err());
                let Bank { db, maps } = bank;
                drop(maps);
                assert!(db.close().is_err());
                drop(db);
                let bank = Bank::open(path, kinds);
                assert_eq!(bank.found(), [Some(1); 2]);
                bank.both(4).unwrap();
                assert_eq!(bank.found(), [Some(4); 2]);
            });
        }
    }
}
