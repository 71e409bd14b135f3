//! What a transaction has to do with the keys of one map: which it has locked, what it has read of them, what it will change.

use std::collections::BTreeMap;

use super::locks::Wanted;
use super::small::Small;
use crate::KeyRange;

/// Keys that are looked through one by one; where there are more, an index finds them.
const FEW: usize = 16;
/// Values up to this length are kept when they are read, so that a change and its undoing need not read them again.
const KEPT_VALUE: usize = 256;
/// Keys whose memory is kept for the next transaction, at most.
const KEPT: usize = 256;

/// A key that is locked.
#[derive(Debug)]
pub(super) struct Entry {
    pub(super) key: Small,
    /// Whether for writing.
    pub(super) is_exclusive: bool,
    pub(super) committed: Committed,
    /// What the commit makes of it; `Some(None)` removes it.
    pub(super) change: Option<Option<Small>>,
}

impl Entry {
    /// The value that the transaction sees, if it is known: what it has written, or else what it has read.
    #[inline]
    pub(super) fn known(&self) -> Option<Option<&[u8]>> {
        match (&self.change, &self.committed) {
            (Some(own), _) => Some(own.as_deref()),
            (None, Committed::Absent) => Some(None),
            (None, Committed::Value(value)) => Some(Some(value)),
            (None, Committed::Unknown) => None,
        }
    }
}

/// What is known of the committed value of a locked key, which does not change.
#[derive(Clone, Debug)]
pub(super) enum Committed {
    /// It was not read, or is too long to be kept.
    Unknown,
    Absent,
    Value(Small),
}

impl Committed {
    #[inline]
    pub(super) fn of(value: Option<&[u8]>) -> Committed {
        match value {
            None => Committed::Absent,
            Some(value) if value.len() <= KEPT_VALUE => Committed::Value(value.into()),
            Some(_) => Committed::Unknown,
        }
    }
}

/// The changes of a map's part at some moment: places of entries, and what becomes of them.
pub(super) type Changes = Vec<(usize, Option<Small>)>;

/// A map's part of a transaction.
#[derive(Debug, Default)]
pub(super) struct Touched {
    /// In the order in which they were locked.
    entries: Vec<Entry>,
    /// Their places, where they are more than a few.
    index: BTreeMap<Small, usize>,
    ranges: Vec<KeyRange>,
    /// How many have a change.
    changes: usize,
}

impl Touched {
    /// The place of a locked key.
    #[inline]
    pub(super) fn find(&self, key: &[u8]) -> Option<usize> {
        if self.entries.len() <= FEW {
            return self.entries.iter().position(|entry| entry.key.is(key));
        }
        self.index.get(key).copied()
    }

    pub(super) fn entry(&self, place: usize) -> &Entry {
        &self.entries[place]
    }

    /// Whether what is wanted is locked.
    pub(super) fn holds(&self, wanted: Wanted<'_>) -> bool {
        match wanted {
            Wanted::Read(key) => self.find(key).is_some() || self.in_range(key),
            Wanted::Write(key) => self.find(key).is_some_and(|place| self.entries[place].is_exclusive),
            Wanted::Range(range) => self.ranges.contains(range),
        }
    }

    /// Whether a locked range holds a key.
    pub(super) fn in_range(&self, key: &[u8]) -> bool {
        self.ranges.iter().any(|range| range.contains(key))
    }

    /// Notes a lock that was got.
    pub(super) fn note(&mut self, wanted: Wanted<'_>) {
        match wanted {
            Wanted::Read(key) => _ = self.locked(key, self.find(key), false),
            Wanted::Write(key) => _ = self.locked(key, self.find(key), true),
            Wanted::Range(range) => self.ranges.push(range.clone()),
        }
    }

    /// Notes a locked key, which has its entry at `place`, or none yet. Returns its place.
    #[inline]
    pub(super) fn locked(&mut self, key: &[u8], place: Option<usize>, is_exclusive: bool) -> usize {
        if let Some(place) = place {
            self.entries[place].is_exclusive |= is_exclusive;
            return place;
        }
        let entry = Entry { key: key.into(), is_exclusive, committed: Committed::Unknown, change: None };
        self.entries.push(entry);
        if self.entries.len() > FEW {
            // All of them, when it is begun.
            let first = self.index.len();
            self.index.extend((first..self.entries.len()).map(|place| (self.entries[place].key.clone(), place)));
        }
        self.entries.len() - 1
    }

    /// Keeps what was read of a locked key.
    pub(super) fn keep(&mut self, place: usize, committed: Committed) {
        self.entries[place].committed = committed;
    }

    /// What the commit is to make of a locked key.
    pub(super) fn change(&mut self, place: usize, new: Option<&[u8]>) {
        let entry = &mut self.entries[place];
        debug_assert!(entry.is_exclusive, "locked for writing before");
        self.changes += usize::from(entry.change.is_none());
        entry.change = Some(new.map(Small::from));
    }

    /// The changes as they are now.
    pub(super) fn changes_now(&self) -> Changes {
        let changed = self.entries.iter().enumerate();
        changed.filter_map(|(place, entry)| Some((place, entry.change.clone()?))).collect()
    }

    /// Makes the changes what they were; `None` for none. Entries are never taken away.
    pub(super) fn set_changes(&mut self, then: Option<&Changes>) {
        self.entries.iter_mut().for_each(|entry| entry.change = None);
        let then = then.map_or(&[][..], Vec::as_slice);
        then.iter().for_each(|(place, change)| self.entries[*place].change = Some(change.clone()));
        self.changes = then.len();
    }

    /// How many keys it changes.
    pub(super) fn changes(&self) -> usize {
        self.changes
    }

    /// The keys it changes, their new values, and what is known of the old ones.
    pub(super) fn changed(&self) -> impl Iterator<Item = (&[u8], Option<&[u8]>, &Committed)> + Clone {
        self.entries.iter().filter_map(|entry| {
            let new = entry.change.as_ref()?;
            Some((&*entry.key, new.as_deref(), &entry.committed))
        })
    }

    /// The keys it changes.
    pub(super) fn changed_keys(&self) -> impl Iterator<Item = &[u8]> + Clone {
        self.changed().map(|(key, ..)| key)
    }

    /// The locked keys.
    pub(super) fn keys(&self) -> impl Iterator<Item = &[u8]> {
        self.entries.iter().map(|entry| &*entry.key)
    }

    /// Whether nothing is locked.
    pub(super) fn is_empty(&self) -> bool {
        self.entries.is_empty() && self.ranges.is_empty()
    }

    pub(super) fn has_ranges(&self) -> bool {
        !self.ranges.is_empty()
    }

    /// Forgets all; keeps the memory, if it is little. Returns whether it did.
    pub(super) fn clear(&mut self) -> bool {
        self.entries.clear();
        // Emptying a tree that is empty costs more than to look.
        if !self.index.is_empty() {
            self.index.clear();
        }
        self.ranges.clear();
        self.changes = 0;
        self.entries.capacity() <= KEPT
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// How a transaction commits rests on how many changes it has, also after a return to a savepoint.
    #[test]
    fn as_many_changes_are_counted_as_there_are() {
        let mut touched = Touched::default();
        let mut then = Vec::new();
        for count in 0..2 * FEW {
            then.push(touched.changes_now());
            assert_eq!((touched.changes(), touched.changed().count()), (count, count));
            let place = touched.locked(&count.to_be_bytes(), None, true);
            touched.change(place, Some(b"1"));
            touched.change(place, None);
        }
        for (count, changes) in then.iter().enumerate().rev() {
            touched.set_changes(Some(changes));
            assert_eq!((touched.changes(), touched.changed().count()), (count, count));
        }
        touched.set_changes(None);
        assert_eq!(touched.changes(), 0);
        assert!(touched.clear() && touched.is_empty());
    }

    #[test]
    fn a_key_that_is_locked_to_be_read_is_not_held_to_be_changed() {
        let mut touched = Touched::default();
        touched.note(Wanted::Read(b"key"));
        assert_eq!([Wanted::Read(b"key"), Wanted::Write(b"key")].map(|wanted| touched.holds(wanted)), [true, false]);
        touched.note(Wanted::Write(b"key"));
        assert_eq!([Wanted::Read(b"key"), Wanted::Write(b"key")].map(|wanted| touched.holds(wanted)), [true, true]);
        assert!(!touched.holds(Wanted::Write(b"other")));
    }
}
