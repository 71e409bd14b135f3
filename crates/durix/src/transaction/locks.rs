//! The lock table of a map: keys and ranges of keys, shared or exclusive.
//!
//! The table knows who holds what, and nothing of waiting: [`Table::try_lock`] says whether a lock was got or with whom it
//! conflicts. Holders are told apart by their [`Age`]. Who may wait for whom is decided in `guard` and by
//! [`Age::may_wait_for`].
//!
//! # Plain updates of one key
//! They exclude transactions, and not each other: a map needs no lock for that. So the table notes for each session which key it is updating, and a word
//! of the session says whether it still is ([`Plain`]). The session notes the key under the lock of the table, and gives it back by a
//! plain store to its word.
//!
//! - Either the session notes its key first; then a transaction that asks for the lock finds the word set, or the update has ended.
//! - Or the transaction has the lock first; then the session finds it in the table, and notes nothing.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::time::{Duration, Instant};

use durix_pmem::{Medium, PerSession};

use super::small::Small;
use crate::KeyRange;

/// When the holder of a lock has begun: smaller is older, and no two are equal.
///
/// Plain updates are younger than every transaction. They hold one lock and wait for none while they hold it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Age(u64);

impl Age {
    const PLAIN: u64 = 1 << 63;

    fn is_plain(self) -> bool {
        self.0 & Self::PLAIN != 0
    }

    /// Of a transaction, by its number.
    pub(crate) fn transaction(number: u64) -> Age {
        Age(number & !Self::PLAIN)
    }

    /// Of a plain update, by the slot of its session.
    pub(crate) fn plain(slot: u32) -> Age {
        Age(u64::from(slot) | Self::PLAIN)
    }

    /// Whether it may wait for all of these holders without a cycle of waits: an older one waits for younger ones, and a
    /// plain update, which holds nothing, for anybody.
    pub(crate) fn may_wait_for(self, holders: &[Age]) -> bool {
        self.is_plain() || holders.iter().all(|holder| self < *holder)
    }
}

/// What is to be locked.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Wanted<'k> {
    /// A key, present or absent, to read it.
    Read(&'k [u8]),
    /// A key to change it.
    Write(&'k [u8]),
    /// All keys of a range, present or absent, to read them.
    Range(&'k KeyRange),
}

impl Wanted<'_> {
    /// Whether a writer of a key stands against it.
    #[inline]
    fn meets(self, written: &Small) -> bool {
        match self {
            Wanted::Read(key) | Wanted::Write(key) => written.is(key),
            Wanted::Range(range) => range.contains(written),
        }
    }
}

/// The holders that stand against a lock.
pub(crate) type Conflict = Vec<Age>;

/// Who holds a key: a writer, or readers.
#[derive(Debug)]
struct Holders {
    is_exclusive: bool,
    first: Age,
    more: Vec<Age>,
}

impl Holders {
    fn all(&self) -> impl Iterator<Item = Age> {
        std::iter::once(self.first).chain(self.more.iter().copied())
    }

    fn others(&self, who: Age) -> Conflict {
        self.all().filter(|holder| *holder != who).collect()
    }

    fn writer(&self) -> Option<Age> {
        self.is_exclusive.then_some(self.first)
    }

    /// Takes a holder away. Returns whether none is left.
    fn remove(&mut self, who: Age) -> bool {
        if self.first == who {
            match self.more.pop() {
                Some(last) => self.first = last,
                None => return true,
            }
        } else {
            self.more.retain(|holder| *holder != who);
        }
        false
    }
}

/// Keys that are looked through one by one; more lie in a tree.
const FEW: usize = 16;

/// The holders of keys.
#[derive(Debug, Default)]
struct Keys {
    few: Vec<(Small, Holders)>,
    more: BTreeMap<Small, Holders>,
}

impl Keys {
    #[inline]
    fn place(&self, key: &[u8]) -> Option<usize> {
        self.few.iter().position(|(held, _)| held.is(key))
    }

    #[inline]
    fn get_mut(&mut self, key: &[u8]) -> Option<&mut Holders> {
        match self.place(key) {
            Some(place) => Some(&mut self.few[place].1),
            None if self.more.is_empty() => None,
            None => match Small::short(key) {
                Some(key) => self.more.get_mut(&key),
                None => self.more.get_mut(key),
            },
        }
    }

    /// Adds a key that is not there.
    fn add(&mut self, key: &[u8], holders: Holders) {
        if self.few.len() < FEW {
            self.few.push((key.into(), holders));
        } else {
            self.more.insert(key.into(), holders);
        }
    }

    /// Takes a holder of a key away, and the key with its last one.
    fn remove(&mut self, who: Age, key: &[u8]) {
        if let Some(place) = self.place(key) {
            if self.few[place].1.remove(who) {
                self.few.swap_remove(place);
            }
        } else if self.more.get_mut(key).is_some_and(|holders| holders.remove(who)) {
            self.more.remove(key);
        }
    }

    fn writers(&self, range: &KeyRange) -> impl Iterator<Item = Age> {
        let few = self.few.iter().filter(|(key, _)| range.contains(key)).map(|(_, holders)| holders);
        let more = self.more.range::<[u8], _>((borrowed(&range.lower), borrowed(&range.upper)));
        few.chain(more.map(|(_, holders)| holders)).filter_map(Holders::writer)
    }
}

/// Whether sessions are in a plain update of one key: not zero while they are.
#[derive(Debug, Default)]
pub(crate) struct Plain(PerSession<AtomicU64>);

impl Plain {
    fn is_held<M: Medium>(&self, m: M, slot: u32) -> bool {
        m.shared_load(self.0.of(slot), Acquire) != 0
    }

    /// The update of a session has ended.
    #[inline]
    pub(crate) fn release<M: Medium>(&self, m: M, slot: u32) {
        m.shared_store(self.0.of(slot), 0, Release);
    }
}

/// How many plain updates without a transaction on the map between them, and how much time, make its table idle.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Idle {
    /// Not zero. The clock is read once for that many updates.
    pub(crate) updates: u32,
    pub(crate) time: Duration,
}

/// The locks of one map.
#[derive(Debug, Default)]
pub(crate) struct Table {
    keys: Keys,
    ranges: Vec<(KeyRange, Age)>,
    /// The key that each session has last updated by a plain update of one key, by slot. Whether it still does, [`Plain`] says.
    plain: Vec<(u32, Small)>,
    /// Plain updates since the clock was read.
    updates: u32,
    /// When the clock was first read since a transaction has locked something.
    idle_since: Option<Instant>,
}

impl Table {
    /// Takes a lock for a transaction, or for a plain update of several keys, or says who stands against it. A holder gets it again; a
    /// sole reader becomes the writer.
    pub(crate) fn try_lock<M: Medium>(
        &mut self,
        m: M,
        plain: &Plain,
        who: Age,
        wanted: Wanted<'_>,
    ) -> Result<(), Conflict> {
        if !who.is_plain() {
            self.idle_since = None;
        }
        // Calls, and lists of holders, only where there are some: each transaction comes here several times.
        if !self.plain.is_empty() {
            self.ensure_not_updated(m, plain, wanted)?;
        }
        match wanted {
            Wanted::Read(key) => self.read(who, key),
            Wanted::Write(key) => self.write(who, key),
            Wanted::Range(range) => self.range(who, range),
        }
    }

    /// Notes the key of a plain update, or says who stands against it. Returns whether the table has been idle for long enough.
    #[inline]
    pub(crate) fn try_hold<M: Medium>(
        &mut self,
        m: M,
        plain: &Plain,
        slot: u32,
        key: &[u8],
        idle: Idle,
    ) -> Result<bool, Conflict> {
        if let Some(holders) = self.keys.get_mut(key) {
            return Err(holders.all().collect());
        }
        if self.ranges.iter().any(|(range, _)| range.contains(key)) {
            return Err(self.ranges.iter().filter(|(range, _)| range.contains(key)).map(|(_, by)| *by).collect());
        }
        match self.plain.iter_mut().find(|(of, _)| *of == slot) {
            Some((_, last)) if last.is(key) => {}
            Some((_, last)) => *last = key.into(),
            None => self.plain.push((slot, key.into())),
        }
        // The lock of the table is released after it.
        m.shared_store(plain.0.of(slot), 1, Relaxed);
        self.updates += 1;
        Ok(self.updates >= idle.updates && self.is_idle(idle.time))
    }

    /// Gives the memory back that sessions without a plain update under way have used.
    pub(crate) fn forget_updates<M: Medium>(&mut self, m: M, plain: &Plain) {
        self.plain.retain(|(slot, _)| plain.is_held(m, *slot));
    }

    #[cold]
    fn is_idle(&mut self, time: Duration) -> bool {
        self.updates = 0;
        self.idle_since.get_or_insert_with(Instant::now).elapsed() >= time
    }

    fn ensure_not_updated<M: Medium>(&self, m: M, plain: &Plain, wanted: Wanted<'_>) -> Result<(), Conflict> {
        let met = self.plain.iter().filter(|(_, key)| wanted.meets(key)).map(|(slot, _)| *slot);
        let conflict: Conflict = met.filter(|slot| plain.is_held(m, *slot)).map(Age::plain).collect();
        if conflict.is_empty() { Ok(()) } else { Err(conflict) }
    }

    fn read(&mut self, who: Age, key: &[u8]) -> Result<(), Conflict> {
        match self.keys.get_mut(key) {
            None => self.add(who, key, false),
            Some(holders) if holders.all().any(|holder| holder == who) => {}
            Some(holders) if holders.is_exclusive => return Err(vec![holders.first]),
            Some(holders) => holders.more.push(who),
        }
        Ok(())
    }

    fn add(&mut self, who: Age, key: &[u8], is_exclusive: bool) {
        self.keys.add(key, Holders { is_exclusive, first: who, more: Vec::new() });
    }

    fn write(&mut self, who: Age, key: &[u8]) -> Result<(), Conflict> {
        if self.ranges.is_empty() {
            match self.keys.get_mut(key) {
                None => {
                    self.add(who, key, true);
                    return Ok(());
                }
                Some(holders) if holders.first == who && holders.more.is_empty() => {
                    holders.is_exclusive = true;
                    return Ok(());
                }
                Some(_) => {}
            }
        }
        self.write_beside(who, key)
    }

    /// The same where others hold the key, or a range.
    fn write_beside(&mut self, who: Age, key: &[u8]) -> Result<(), Conflict> {
        let ranges = self.ranges.iter().filter(|(range, by)| *by != who && range.contains(key)).map(|(_, by)| *by);
        let Some(holders) = self.keys.get_mut(key) else {
            let conflict: Conflict = ranges.collect();
            if conflict.is_empty() {
                self.add(who, key, true);
                return Ok(());
            }
            return Err(conflict);
        };
        let mut conflict = holders.others(who);
        conflict.extend(ranges);
        if !conflict.is_empty() {
            return Err(conflict);
        }
        holders.is_exclusive = true;
        Ok(())
    }

    fn range(&mut self, who: Age, range: &KeyRange) -> Result<(), Conflict> {
        if range.is_empty() {
            return Ok(());
        }
        let conflict: Conflict = self.keys.writers(range).filter(|writer| *writer != who).collect();
        if !conflict.is_empty() {
            return Err(conflict);
        }
        self.ranges.push((range.clone(), who));
        Ok(())
    }

    /// Gives a key back.
    pub(crate) fn unlock(&mut self, who: Age, key: &[u8]) {
        self.keys.remove(who, key);
    }

    /// Gives all ranges back that a transaction holds.
    pub(crate) fn unlock_ranges(&mut self, who: Age) {
        self.ranges.retain(|(_, by)| *by != who);
    }

    /// Whether no lock is held, but by plain updates of one key.
    pub(crate) fn is_free(&self) -> bool {
        self.keys.few.is_empty() && self.keys.more.is_empty() && self.ranges.is_empty()
    }
}

fn borrowed(bound: &Bound<Vec<u8>>) -> Bound<&[u8]> {
    bound.as_ref().map(Vec::as_slice)
}

#[cfg(test)]
mod tests {
    use durix_pmem::Hardware;

    use super::*;

    const M: Hardware = Hardware::PAGE_CACHE;

    impl Table {
        fn lock(&mut self, who: Age, wanted: Wanted<'_>) -> Result<(), Conflict> {
            self.try_lock(M, &Plain::default(), who, wanted)
        }
    }

    const A: Age = Age(1);
    const B: Age = Age(2);
    const C: Age = Age(3);

    #[test]
    fn readers_share_a_writer_does_not() {
        let mut table = Table::default();
        assert_eq!(table.lock(A, Wanted::Read(b"k")), Ok(()));
        assert_eq!(table.lock(B, Wanted::Read(b"k")), Ok(()));
        assert_eq!(table.lock(B, Wanted::Write(b"k")), Err(vec![A]));
        assert_eq!(table.lock(C, Wanted::Write(b"k")), Err(vec![A, B]));
        table.unlock(A, b"k");
        assert_eq!(table.lock(B, Wanted::Write(b"k")), Ok(()), "a sole reader becomes the writer");
        assert_eq!(table.lock(B, Wanted::Read(b"k")), Ok(()));
        assert_eq!(table.lock(A, Wanted::Read(b"k")), Err(vec![B]));
        table.unlock(A, b"k");
        assert_eq!(table.lock(A, Wanted::Read(b"k")), Err(vec![B]), "only the holder gives a lock back");
        table.unlock(B, b"k");
        assert!(table.is_free());
    }

    #[test]
    fn a_range_keeps_writers_out_of_it_and_of_nothing_else() {
        let mut table = Table::default();
        let range = KeyRange::new(Bound::Included(b"b"), Bound::Excluded(b"d"));
        assert_eq!(table.lock(A, Wanted::Range(&range)), Ok(()));
        for key in [&b"b"[..], b"bb", b"c"] {
            assert_eq!(table.lock(B, Wanted::Write(key)), Err(vec![A]), "{key:?}");
            assert_eq!(table.lock(B, Wanted::Read(key)), Ok(()), "{key:?}");
            assert_eq!(table.lock(A, Wanted::Write(key)), Err(vec![B]), "{key:?}");
            table.unlock(B, key);
        }
        for key in [&b"a"[..], b"d", b""] {
            assert_eq!(table.lock(B, Wanted::Write(key)), Ok(()), "{key:?}");
        }
        assert_eq!(table.lock(C, Wanted::Range(&KeyRange::all())), Err(vec![B, B, B]));
        assert_eq!(table.lock(C, Wanted::Range(&range)), Ok(()), "ranges share");
        table.unlock_ranges(A);
        assert_eq!(table.lock(B, Wanted::Write(b"c")), Err(vec![C]));
        table.unlock_ranges(C);
        assert_eq!(table.lock(B, Wanted::Write(b"c")), Ok(()));
        let crossed = KeyRange::new(Bound::Included(b"z"), Bound::Excluded(b"a"));
        assert_eq!(table.lock(C, Wanted::Range(&crossed)), Ok(()), "a range that holds nothing");
    }

    #[test]
    fn many_keys_are_held_as_few_are() {
        let mut table = Table::default();
        let keys: Vec<[u8; 2]> = (0..200u16).map(u16::to_be_bytes).collect();
        for key in &keys {
            assert_eq!(table.lock(A, Wanted::Write(key)), Ok(()));
            assert_eq!(table.lock(A, Wanted::Write(key)), Ok(()), "again");
        }
        let range = KeyRange::new(Bound::Included(&keys[10]), Bound::Excluded(&keys[30]));
        assert_eq!(table.lock(B, Wanted::Range(&range)), Err(vec![A; 20]));
        for (number, key) in keys.iter().enumerate() {
            assert_eq!(table.lock(B, Wanted::Read(key)), Err(vec![A]), "{number}");
            table.unlock(A, key);
            assert_eq!(table.lock(B, Wanted::Read(key)), Ok(()), "{number}");
        }
        assert_eq!(table.lock(C, Wanted::Range(&range)), Ok(()), "readers do not stand in its way");
        keys.iter().for_each(|key| table.unlock(B, key));
        table.unlock_ranges(C);
        assert!(table.is_free());
    }

    #[test]
    fn waits_go_from_old_to_young() {
        let plain = Age::plain(0);
        assert!(A.may_wait_for(&[B, C, plain]));
        assert!(!B.may_wait_for(&[A, C]));
        assert!(!B.may_wait_for(&[B]));
        assert!(plain.may_wait_for(&[A, Age::plain(1)]));
        assert!(Age::transaction(u64::MAX) < plain);
    }

    #[test]
    fn plain_updates_exclude_transactions_and_not_each_other() {
        const NEVER: Idle = Idle { updates: u32::MAX, time: Duration::ZERO };
        let (mut table, plain) = (Table::default(), Plain::default());
        let range = KeyRange::new(Bound::Included(b"b"), Bound::Excluded(b"d"));
        assert_eq!(table.try_hold(M, &plain, 3, b"k", NEVER), Ok(false));
        assert_eq!(table.try_hold(M, &plain, 9, b"k", NEVER), Ok(false));
        for wanted in [Wanted::Read(b"k"), Wanted::Write(b"k"), Wanted::Range(&KeyRange::all())] {
            assert_eq!(table.try_lock(M, &plain, A, wanted), Err(vec![Age::plain(3), Age::plain(9)]));
        }
        assert_eq!(table.try_lock(M, &plain, A, Wanted::Write(b"l")), Ok(()), "another key");
        assert_eq!(table.try_lock(M, &plain, A, Wanted::Range(&range)), Ok(()), "another range");
        plain.release(M, 3);
        assert_eq!(table.try_lock(M, &plain, A, Wanted::Write(b"k")), Err(vec![Age::plain(9)]));
        plain.release(M, 9);
        assert_eq!(table.try_lock(M, &plain, A, Wanted::Read(b"k")), Ok(()));
        for key in [&b"k"[..], b"l", b"c"] {
            assert_eq!(table.try_hold(M, &plain, 3, key, NEVER), Err(vec![A]), "{key:?}");
            assert!(!plain.is_held(M, 3), "{key:?}");
        }
        assert!(!table.is_free());
        [&b"k"[..], b"l"].iter().for_each(|key| table.unlock(A, key));
        table.unlock_ranges(A);
        assert_eq!(table.try_hold(M, &plain, 3, b"k", NEVER), Ok(false));
        assert!(table.is_free(), "a plain update does not keep it");
    }

    #[test]
    fn a_table_is_idle_after_updates_and_time_without_a_transaction() {
        let (mut table, plain) = (Table::default(), Plain::default());
        let hold = |table: &mut Table, time| table.try_hold(M, &plain, 0, b"k", Idle { updates: 4, time }).unwrap();
        let hour = Duration::from_secs(3600);
        for _ in 0..2 {
            assert_eq!([(); 5].map(|()| hold(&mut table, Duration::ZERO)), [false, false, false, true, false]);
            (0..3).for_each(|_| _ = hold(&mut table, hour));
        }
        (0..12).for_each(|_| assert!(!hold(&mut table, hour), "it has not lasted"));
        let since = table.idle_since.expect("the clock was read");
        assert_eq!(table.lock(A, Wanted::Read(b"a")), Ok(()));
        assert_eq!(table.idle_since, None, "a transaction is there");
        (0..4).for_each(|_| _ = hold(&mut table, hour));
        assert!(table.idle_since.expect("read again") >= since);
    }
}
