//! The lock table of a map: keys and ranges of keys, shared or exclusive.
//!
//! The table knows who holds what, and nothing of waiting: [`Table::try_lock`] says whether a lock was got or with whom it
//! conflicts. Holders are told apart by their [`Age`]. Who may wait for whom is decided in `guard` and by
//! [`Age::may_wait_for`].

use std::collections::BTreeMap;
use std::ops::Bound;

use super::small::Small;
use crate::KeyRange;

/// When the holder of a lock has begun: smaller is older, and no two are equal.
///
/// Plain updates are younger than every transaction. They hold one lock and wait for none while they hold it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Age(u64);

impl Age {
    const PLAIN: u64 = 1 << 63;

    /// Of a transaction, by its number.
    pub(crate) fn transaction(number: u64) -> Age {
        Age(number & !Self::PLAIN)
    }

    /// Of a plain update, by its number.
    pub(crate) fn plain(number: u64) -> Age {
        Age(number | Self::PLAIN)
    }

    /// Whether it may wait for all of these holders without a cycle of waits: an older one waits for younger ones, and a
    /// plain update, which holds nothing, for anybody.
    pub(crate) fn may_wait_for(self, holders: &[Age]) -> bool {
        self.0 & Self::PLAIN != 0 || holders.iter().all(|holder| self < *holder)
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
            None => self.more.get_mut(key),
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

/// The locks of one map.
#[derive(Debug, Default)]
pub(crate) struct Table {
    keys: Keys,
    ranges: Vec<(KeyRange, Age)>,
}

impl Table {
    /// Takes a lock, or says who stands against it. A holder gets it again; a sole reader becomes the
    /// writer.
    pub(crate) fn try_lock(&mut self, who: Age, wanted: Wanted<'_>) -> Result<(), Conflict> {
        match wanted {
            Wanted::Read(key) => self.read(who, key),
            Wanted::Write(key) => self.write(who, key),
            Wanted::Range(range) => self.range(who, range),
        }
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

    /// Whether no lock is held.
    #[cfg(test)]
    pub(crate) fn is_free(&self) -> bool {
        self.keys.few.is_empty() && self.keys.more.is_empty() && self.ranges.is_empty()
    }
}

fn borrowed(bound: &Bound<Vec<u8>>) -> Bound<&[u8]> {
    bound.as_ref().map(Vec::as_slice)
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: Age = Age(1);
    const B: Age = Age(2);
    const C: Age = Age(3);

    #[test]
    fn readers_share_a_writer_does_not() {
        let mut table = Table::default();
        assert_eq!(table.try_lock(A, Wanted::Read(b"k")), Ok(()));
        assert_eq!(table.try_lock(B, Wanted::Read(b"k")), Ok(()));
        assert_eq!(table.try_lock(B, Wanted::Write(b"k")), Err(vec![A]));
        assert_eq!(table.try_lock(C, Wanted::Write(b"k")), Err(vec![A, B]));
        table.unlock(A, b"k");
        assert_eq!(table.try_lock(B, Wanted::Write(b"k")), Ok(()), "a sole reader becomes the writer");
        assert_eq!(table.try_lock(B, Wanted::Read(b"k")), Ok(()));
        assert_eq!(table.try_lock(A, Wanted::Read(b"k")), Err(vec![B]));
        table.unlock(A, b"k");
        assert_eq!(table.try_lock(A, Wanted::Read(b"k")), Err(vec![B]), "only the holder gives a lock back");
        table.unlock(B, b"k");
        assert!(table.is_free());
    }

    #[test]
    fn a_range_keeps_writers_out_of_it_and_of_nothing_else() {
        let mut table = Table::default();
        let range = KeyRange::new(Bound::Included(b"b"), Bound::Excluded(b"d"));
        assert_eq!(table.try_lock(A, Wanted::Range(&range)), Ok(()));
        for key in [&b"b"[..], b"bb", b"c"] {
            assert_eq!(table.try_lock(B, Wanted::Write(key)), Err(vec![A]), "{key:?}");
            assert_eq!(table.try_lock(B, Wanted::Read(key)), Ok(()), "{key:?}");
            assert_eq!(table.try_lock(A, Wanted::Write(key)), Err(vec![B]), "{key:?}");
            table.unlock(B, key);
        }
        for key in [&b"a"[..], b"d", b""] {
            assert_eq!(table.try_lock(B, Wanted::Write(key)), Ok(()), "{key:?}");
        }
        assert_eq!(table.try_lock(C, Wanted::Range(&KeyRange::all())), Err(vec![B, B, B]));
        assert_eq!(table.try_lock(C, Wanted::Range(&range)), Ok(()), "ranges share");
        table.unlock_ranges(A);
        assert_eq!(table.try_lock(B, Wanted::Write(b"c")), Err(vec![C]));
        table.unlock_ranges(C);
        assert_eq!(table.try_lock(B, Wanted::Write(b"c")), Ok(()));
        let crossed = KeyRange::new(Bound::Included(b"z"), Bound::Excluded(b"a"));
        assert_eq!(table.try_lock(C, Wanted::Range(&crossed)), Ok(()), "a range that holds nothing");
    }

    #[test]
    fn many_keys_are_held_as_few_are() {
        let mut table = Table::default();
        let keys: Vec<[u8; 2]> = (0..200u16).map(u16::to_be_bytes).collect();
        for key in &keys {
            assert_eq!(table.try_lock(A, Wanted::Write(key)), Ok(()));
            assert_eq!(table.try_lock(A, Wanted::Write(key)), Ok(()), "again");
        }
        let range = KeyRange::new(Bound::Included(&keys[10]), Bound::Excluded(&keys[30]));
        assert_eq!(table.try_lock(B, Wanted::Range(&range)), Err(vec![A; 20]));
        for (number, key) in keys.iter().enumerate() {
            assert_eq!(table.try_lock(B, Wanted::Read(key)), Err(vec![A]), "{number}");
            table.unlock(A, key);
            assert_eq!(table.try_lock(B, Wanted::Read(key)), Ok(()), "{number}");
        }
        assert_eq!(table.try_lock(C, Wanted::Range(&range)), Ok(()), "readers do not stand in its way");
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
}
