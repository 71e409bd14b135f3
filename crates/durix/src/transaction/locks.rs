//! The lock table of a map: keys and ranges of keys, shared or exclusive.
//!
//! The table knows who holds what, and nothing of waiting: [`Table::try_lock`] says whether a lock was got or with whom it
//! conflicts. Holders are told apart by their [`Age`]. Who may wait for whom is decided in `guard` and by
//! [`Age::may_wait_for`].

use std::collections::BTreeMap;
use std::ops::Bound;

use crate::KeyRange;

/// When somebody who locks has begun: smaller is older, and no two are equal.
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

#[derive(Debug)]
enum Holders {
    Readers(Vec<Age>),
    Writer(Age),
}

impl Holders {
    fn others(&self, who: Age) -> Conflict {
        match self {
            Holders::Readers(readers) => readers.iter().copied().filter(|reader| *reader != who).collect(),
            Holders::Writer(writer) if *writer == who => Vec::new(),
            Holders::Writer(writer) => vec![*writer],
        }
    }

    fn writer(&self) -> Option<Age> {
        match self {
            Holders::Writer(writer) => Some(*writer),
            Holders::Readers(_) => None,
        }
    }
}

/// The locks of one map.
#[derive(Debug, Default)]
pub(crate) struct Table {
    keys: BTreeMap<Box<[u8]>, Holders>,
    ranges: Vec<(KeyRange, Age)>,
}

impl Table {
    /// Takes a lock, or says who stands against it. Whoever holds it already gets it again; a sole reader becomes the
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
            None => _ = self.keys.insert(key.into(), Holders::Readers(vec![who])),
            Some(Holders::Readers(readers)) if readers.contains(&who) => {}
            Some(Holders::Readers(readers)) => readers.push(who),
            Some(Holders::Writer(writer)) if *writer == who => {}
            Some(Holders::Writer(writer)) => return Err(vec![*writer]),
        }
        Ok(())
    }

    fn write(&mut self, who: Age, key: &[u8]) -> Result<(), Conflict> {
        let mut conflict = self.keys.get(key).map(|holders| holders.others(who)).unwrap_or_default();
        conflict.extend(self.ranges.iter().filter(|(range, by)| *by != who && range.contains(key)).map(|(_, by)| *by));
        if !conflict.is_empty() {
            return Err(conflict);
        }
        match self.keys.get_mut(key) {
            Some(holders) => *holders = Holders::Writer(who),
            None => _ = self.keys.insert(key.into(), Holders::Writer(who)),
        }
        Ok(())
    }

    fn range(&mut self, who: Age, range: &KeyRange) -> Result<(), Conflict> {
        if range.is_empty() {
            return Ok(());
        }
        let bounds = (borrowed(&range.lower), borrowed(&range.upper));
        let writers = self.keys.range::<[u8], _>(bounds).filter_map(|(_, holders)| holders.writer());
        let conflict: Conflict = writers.filter(|writer| *writer != who).collect();
        if !conflict.is_empty() {
            return Err(conflict);
        }
        self.ranges.push((range.clone(), who));
        Ok(())
    }

    /// Gives a key back.
    pub(crate) fn unlock(&mut self, who: Age, key: &[u8]) {
        let Some(holders) = self.keys.get_mut(key) else { return };
        let is_free = match holders {
            Holders::Writer(writer) => *writer == who,
            Holders::Readers(readers) => {
                readers.retain(|reader| *reader != who);
                readers.is_empty()
            }
        };
        if is_free {
            self.keys.remove(key);
        }
    }

    /// Gives all ranges back that somebody holds.
    pub(crate) fn unlock_ranges(&mut self, who: Age) {
        self.ranges.retain(|(_, by)| *by != who);
    }

    /// Whether nobody holds anything.
    #[cfg(test)]
    pub(crate) fn is_free(&self) -> bool {
        self.keys.is_empty() && self.ranges.is_empty()
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
    fn waits_go_from_old_to_young() {
        let plain = Age::plain(0);
        assert!(A.may_wait_for(&[B, C, plain]));
        assert!(!B.may_wait_for(&[A, C]));
        assert!(!B.may_wait_for(&[B]));
        assert!(plain.may_wait_for(&[A, Age::plain(1)]));
        assert!(Age::transaction(u64::MAX) < plain);
    }
}
