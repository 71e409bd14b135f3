//! What a thread does in a round, and what it saw.

use std::ops::Bound;
use std::sync::atomic::{AtomicU64, Ordering};

use durix::{Batch, Cursor, Direction, Durability, Error, Hardware, Index, KeyRange, Op, Session};

use crate::Random;
use crate::history::{Act, Event, Held};
use crate::keys::{Keys, OWN};

/// Keys of a batch or a look-up of many, at most.
const MANY: u64 = 5;

/// A thread at work on an index.
pub(crate) struct Worker<'a> {
    pub(crate) index: &'a dyn Index,
    pub(crate) keys: &'a Keys,
    /// The moments.
    pub(crate) clock: &'a AtomicU64,
    pub(crate) session: Session,
    pub(crate) thread: usize,
    /// Whether the pool may be full.
    pub(crate) may_be_full: bool,
    pub(crate) random: Random,
    /// What it saw of each key that all share.
    pub(crate) seen: Vec<Vec<Event>>,
    /// How many keys of its own there are, and where they begin.
    pub(crate) own: Vec<u64>,
    /// Operations that found the pool full.
    pub(crate) refused: u64,
}

/// What was wrong.
pub(crate) type Wrong = String;

impl Worker<'_> {
    fn now(&self) -> u64 {
        self.clock.fetch_add(1, Ordering::SeqCst)
    }

    fn key(&mut self) -> usize {
        self.random.below(self.keys.shared.len() as u64) as usize
    }

    /// A value that nobody else writes.
    fn new_value(&mut self) -> u64 {
        self.now() << 8 | self.thread as u64
    }

    fn note(&mut self, key: usize, begin: u64, act: Act) {
        let end = self.now();
        self.seen[key].push(Event { begin, end, act });
    }

    /// What an operation returned; `None` where the pool was full, which changes nothing.
    fn settled<T>(&mut self, what: &str, result: durix::Result<T>) -> Result<Option<T>, Wrong> {
        match result {
            Ok(done) => Ok(Some(done)),
            Err(error) if self.may_be_full && is_full(&error) => {
                self.refused += 1;
                Ok(None)
            }
            Err(error) => Err(format!("{what} failed: {error}")),
        }
    }

    /// Some operations.
    pub(crate) fn work(&mut self, operations: u64) -> Result<(), Wrong> {
        (0..operations).try_for_each(|_| self.operation())
    }

    fn operation(&mut self) -> Result<(), Wrong> {
        match self.random.below(32) {
            0..4 => self.get(),
            4..7 => self.insert(),
            7..10 => self.insert_if_absent(),
            10..14 => self.update(),
            14..19 => self.remove(),
            19..22 => self.swap(),
            22 => self.contains(),
            23 => self.get_many(),
            24 | 25 => self.batch(),
            26 | 27 => self.walk_all(),
            28 | 29 => self.walk_a_range(),
            30 => self.grow(),
            _ => self.shrink(),
        }
    }

    // ---- one key ----

    fn get(&mut self) -> Result<(), Wrong> {
        let (key, begin) = (self.key(), self.now());
        let found = self.index.get_vec(&self.session.enter().map_err(said)?, &self.keys.shared[key]).map_err(said)?;
        let held = held_in(self.keys, found.as_deref())?;
        self.note(key, begin, Act::Read(held));
        Ok(())
    }

    fn contains(&mut self) -> Result<(), Wrong> {
        let (key, begin) = (self.key(), self.now());
        let there = self.index.contains(&self.session.enter().map_err(said)?, &self.keys.shared[key]).map_err(said)?;
        self.note(key, begin, Act::There(there));
        Ok(())
    }

    /// Changes a key, and notes what `act` says of what that returned.
    fn change(
        &mut self,
        what: &str,
        change: impl FnOnce(&dyn Index, &Op<'_, Hardware>, &[u8]) -> durix::Result<bool>,
        act: impl FnOnce(bool) -> Act,
    ) -> Result<(), Wrong> {
        let (key, begin) = (self.key(), self.now());
        let done = change(self.index, &self.session.enter().map_err(said)?, &self.keys.shared[key]);
        if let Some(done) = self.settled(what, done)? {
            self.note(key, begin, act(done));
        }
        Ok(())
    }

    fn insert(&mut self) -> Result<(), Wrong> {
        let value = self.new_value();
        let bytes = self.keys.value(value);
        self.change("insert", |index, op, key| index.insert(op, key, &bytes), |new| Act::Insert(value, new))
    }

    fn insert_if_absent(&mut self) -> Result<(), Wrong> {
        let value = self.new_value();
        let bytes = self.keys.value(value);
        let insert = |index: &dyn Index, op: &Op<'_, Hardware>, key: &[u8]| index.insert_if_absent(op, key, &bytes);
        self.change("insert_if_absent", insert, |done| Act::InsertIfAbsent(value, done))
    }

    fn update(&mut self) -> Result<(), Wrong> {
        let value = self.new_value();
        let bytes = self.keys.value(value);
        self.change("update", |index, op, key| index.update(op, key, &bytes), |done| Act::Update(value, done))
    }

    fn remove(&mut self) -> Result<(), Wrong> {
        self.change("remove", |index, op, key| index.remove(op, key), Act::Remove)
    }

    /// Compares and sets: from what is there, mostly.
    fn swap(&mut self) -> Result<(), Wrong> {
        let (key, begin) = (self.key(), self.now());
        let name = &self.keys.shared[key];
        let found = self.index.get_vec(&self.session.enter().map_err(said)?, name).map_err(said)?;
        let held = held_in(self.keys, found.as_deref())?;
        self.note(key, begin, Act::Read(held));
        let expected = if self.random.below(8) == 0 { None } else { held };
        let new = if self.random.below(4) == 0 { None } else { Some(self.new_value()) };
        let bytes = |value: Held| value.map(|value| self.keys.value(value));
        let (was, will, begin) = (bytes(expected), bytes(new), self.now());
        let op = self.session.enter().map_err(said)?;
        let done = self.index.compare_and_set(&op, name, was.as_deref(), will.as_deref());
        drop(op);
        if let Some(done) = self.settled("compare_and_set", done)? {
            self.note(key, begin, Act::Swap(expected, new, done));
        }
        Ok(())
    }

    // ---- several keys ----

    /// Some different keys.
    fn some_keys(&mut self) -> Vec<usize> {
        let mut keys: Vec<usize> = (0..1 + self.random.below(MANY)).map(|_| self.key()).collect();
        keys.sort_unstable();
        keys.dedup();
        keys
    }

    fn get_many(&mut self) -> Result<(), Wrong> {
        let (keys, begin) = (self.some_keys(), self.now());
        let names: Vec<&[u8]> = keys.iter().map(|key| &self.keys.shared[*key][..]).collect();
        let mut found = vec![None; keys.len()];
        let mut take = |at: usize, value: Option<&[u8]>| found[at] = Some(value.map(<[u8]>::to_vec));
        self.index.get_many(&self.session.enter().map_err(said)?, &names, &mut take).map_err(said)?;
        for (key, value) in keys.into_iter().zip(found) {
            let value = value.ok_or("get_many did not say what became of a key")?;
            let held = held_in(self.keys, value.as_deref())?;
            self.note(key, begin, Act::Read(held));
        }
        Ok(())
    }

    fn batch(&mut self) -> Result<(), Wrong> {
        let (keys, begin, mut batch) = (self.some_keys(), self.now(), Batch::new());
        let mut sets = Vec::new();
        for key in keys {
            let new = if self.random.below(3) == 0 { None } else { Some(self.new_value()) };
            match new {
                Some(value) => batch.insert(&self.keys.shared[key], &self.keys.value(value)),
                None => batch.remove(&self.keys.shared[key]),
            };
            sets.push((key, new));
        }
        let done = self.index.apply(&self.session.enter().map_err(said)?, &batch);
        let done = self.settled("apply", done)?;
        // Buffered kinds are atomic in a crash only: what was made before the pool was full stays.
        if done.is_none() && self.index.batch_is_atomic() && self.index.durability() == Durability::Strict {
            return Ok(());
        }
        for (key, new) in sets {
            self.note(key, begin, if done.is_some() { Act::Set(new) } else { Act::Maybe(new) });
        }
        Ok(())
    }

    // ---- walks ----

    fn walk_all(&mut self) -> Result<(), Wrong> {
        let index = self.index;
        match index.as_ordered() {
            Some(ordered) => {
                let direction = self.direction();
                self.walk(|| ordered.range(&KeyRange::all(), direction), &KeyRange::all(), Some(direction))
            }
            None => self.walk(|| index.cursor(), &KeyRange::all(), None),
        }
    }

    fn walk_a_range(&mut self) -> Result<(), Wrong> {
        let Some(ordered) = self.index.as_ordered() else { return self.walk_all() };
        let (one, other, direction) = (self.key(), self.key(), self.direction());
        let (one, other) = (&self.keys.shared[one], &self.keys.shared[other]);
        let (first, last) = if one < other { (one, other) } else { (other, one) };
        let upper = if self.random.below(2) == 0 { Bound::Excluded(&last[..]) } else { Bound::Included(&last[..]) };
        let range = KeyRange::new(Bound::Included(first), upper);
        self.walk(|| ordered.range(&range, direction), &range, Some(direction))
    }

    fn direction(&mut self) -> Direction {
        if self.random.below(2) == 0 { Direction::Forward } else { Direction::Backward }
    }

    /// Walks over a range, in operations of some steps each. It looks at each key of the range at some moment.
    fn walk<'i>(
        &mut self,
        begin: impl FnOnce() -> Box<dyn Cursor + 'i>,
        range: &KeyRange,
        direction: Option<Direction>,
    ) -> Result<(), Wrong> {
        let (moment, mut steps) = (self.now(), 1 + self.random.below(20));
        let keys = self.keys;
        let (mut cursor, mut met, mut found) = (begin(), Vec::new(), vec![None; self.keys.shared.len()]);
        let (mut key, mut value) = (Vec::new(), Vec::new());
        'walk: loop {
            let op = self.session.enter().map_err(said)?;
            for _ in 0..steps {
                if !cursor.next_into(&op, &mut key, &mut value).map_err(said)? {
                    break 'walk;
                }
                if let Some(number) = self.keys.number(&key) {
                    found[number] = held_in(keys, Some(&value))?;
                }
                met.push(key.clone());
            }
            steps = 64;
        }
        drop(cursor);
        self.expect_order(&met, range, direction)?;
        for (number, held) in found.into_iter().enumerate() {
            if range.contains(&self.keys.shared[number]) {
                self.note(number, moment, Act::Read(held));
            }
        }
        Ok(())
    }

    fn expect_order(&self, met: &[Vec<u8>], range: &KeyRange, direction: Option<Direction>) -> Result<(), Wrong> {
        let name = |key: &Vec<u8>| key.escape_ascii().to_string();
        if let Some(key) = met.iter().find(|key| !range.contains(key)) {
            return Err(format!("a walk over {range:?} met {}", name(key)));
        }
        let wrong = match direction {
            Some(Direction::Forward) => met.windows(2).find(|pair| pair[0] >= pair[1]),
            Some(Direction::Backward) => met.windows(2).find(|pair| pair[0] <= pair[1]),
            None => None,
        };
        if let Some([before, after]) = wrong {
            return Err(format!("a walk {direction:?} met {} after {}", name(after), name(before)));
        }
        let mut all: Vec<&Vec<u8>> = met.iter().collect();
        all.sort_unstable();
        match all.windows(2).find(|pair| pair[0] == pair[1]) {
            Some(pair) => Err(format!("a walk met {} twice", name(pair[0]))),
            None => Ok(()),
        }
    }

    // ---- keys of its own ----

    /// Inserts some keys of its own.
    fn grow(&mut self) -> Result<(), Wrong> {
        if self.own.len() as u64 >= 4 * OWN {
            return self.shrink();
        }
        for number in (0..).filter(|number| !self.own.contains(number)).take(OWN as usize).collect::<Vec<_>>() {
            let (key, bytes) =
                (self.keys.own(self.thread, number), self.keys.value(self.clock.load(Ordering::Relaxed)));
            let done = self.index.insert(&self.session.enter().map_err(said)?, &key, &bytes);
            match self.settled("insert", done)? {
                Some(true) => self.own.push(number),
                Some(false) => return Err(format!("{} was there, and had been removed", key.escape_ascii())),
                None => break,
            }
        }
        Ok(())
    }

    /// Removes all keys of its own.
    pub(crate) fn leave_none(&mut self) -> Result<(), Wrong> {
        while !self.own.is_empty() {
            let had = self.own.len();
            self.shrink()?;
            if self.own.len() == had {
                return Err("nothing can be removed, because the pool is full".into());
            }
        }
        Ok(())
    }

    /// Removes some keys of its own.
    fn shrink(&mut self) -> Result<(), Wrong> {
        let from = self.own.len().saturating_sub(2 * OWN as usize);
        for number in self.own.split_off(from) {
            let key = self.keys.own(self.thread, number);
            let done = self.index.remove(&self.session.enter().map_err(said)?, &key);
            match self.settled("remove", done)? {
                Some(true) => {}
                Some(false) => return Err(format!("{} was not there, and had been inserted", key.escape_ascii())),
                None => self.own.push(number),
            }
        }
        Ok(())
    }
}

/// The number of a value that was found.
fn held_in(keys: &Keys, bytes: Option<&[u8]>) -> Result<Held, Wrong> {
    let number = |bytes| keys.value_of(bytes).ok_or_else(|| format!("a value that nobody wrote: {bytes:x?}"));
    bytes.map(number).transpose()
}

fn said(error: impl std::fmt::Display) -> Wrong {
    format!("a look failed: {error}")
}

/// Whether an error says that there is no room.
pub(crate) fn is_full(error: &Error) -> bool {
    matches!(error, Error::Pool(durix_pmem::Error::Full { .. }))
}
