//! The smallest kind of index: an ordered map of words in an array of lines. `docs/adding-a-kind.md` walks through it.
//!
//! Every operation takes one lock and looks at every line, so the kind is for small maps. It is complete in all else: it is
//! strict, it recovers, it checks itself, and its persist order is stated.
//!
//! | line of an extent | words |
//! |---|---|
//! | 0, 1, … | state (1 if used), key, value, five unused words |
//!
//! | edge | kept by | a crash between leaves | recovery |
//! |---|---|---|---|
//! | TK-1 lines of a new extent are zero < the extent is active | flush+fence | a free extent | the pool's |
//! | TK-2 key and value < the line is used | same line | an unused line | nothing to do |
//! | TK-3 a line as it was found < an answer that rests on it | flush+fence, at opening | the answer's change | nothing to do |

use std::fmt;
use std::sync::atomic::Ordering::{Relaxed, Release};

use durix_index::implement::{WORDS, Walk, WordRange, alone, key_word, value_word, writable};
use durix_index::{
    Cursor, Direction, Entry, Error, Finding, Index, IndexStats, KeyRange, Limits, Openable, OrderedIndex, Result,
};
use durix_pmem::pool::Durability;
use durix_pmem::{
    Hardware, Kind, Lock, LockGuard, Medium, Off, Op, Root, Session, Structure, Version, Word, layout, persistent,
};

/// The kinds of index of this crate.
pub fn kinds<M: Medium>() -> Vec<Entry<M>> {
    let about = "example: ordered map of 8-byte keys and values in an array, durable on return; for hundreds of keys";
    vec![Entry::new::<Toy<M>>("toy", about).ordered().meant_for(1000).experimental()]
}

persistent! {
    /// One pair, in one line.
    struct Line: align(64) { state: Word, key: Word, value: Word, rest: [Word; 5] }
}

const USED: u64 = 1;

/// Keys and values.
type Pairs = Vec<(u64, u64)>;

/// An ordered map of words, in an array of lines.
pub struct Toy<M: Medium = Hardware> {
    root: Root<M>,
    /// Offset and number of lines of each extent. Whoever holds it is alone.
    extents: Lock<Vec<(u64, u64)>>,
}

impl<M: Medium> fmt::Debug for Toy<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Toy").field("root", &self.root).finish_non_exhaustive()
    }
}

impl<M: Medium> Structure<M> for Toy<M> {
    const KIND: Kind = Kind { tag: *b"TOYKIND\0", version: Version::unreleased(layout!([Line], USED)) };
    type Options = ();
    type Error = durix_pmem::Error;

    fn create(_: &mut Session<M>, _: &Root<M>, (): &()) -> durix_pmem::Result<()> {
        // An index without extents is empty.
        Ok(())
    }

    fn open(session: &mut Session<M>, root: Root<M>, (): &()) -> durix_pmem::Result<Self> {
        let op = session.enter()?;
        let extents = root.pool().space().extents(&op, root.owner());
        let extents: Vec<_> =
            extents.iter().map(|extent| (extent.off, extent.len / size_of::<Line>() as u64)).collect();
        for extent in &extents {
            // What the last process has stored may be visible and not durable.
            op.write_back_slice(lines(&op, *extent)?);
        }
        op.fence(); // PERSIST TK-3: flush+fence
        drop(op);
        Ok(Toy { root, extents: Lock::new(extents) })
    }
}

fn lines<'s, M: Medium>(op: &Op<'s, M>, (off, count): (u64, u64)) -> durix_pmem::Result<&'s [Line]> {
    op.slice("the lines of an extent", Off::new(off), count)
}

/// The lines, for whoever is alone.
struct Lines<'a, 's, M: Medium> {
    op: &'a Op<'s, M>,
    root: &'a Root<M>,
    extents: LockGuard<'a, Vec<(u64, u64)>, M>,
}

impl<'s, M: Medium> Lines<'_, 's, M> {
    fn all(&self) -> Result<Vec<&'s Line>> {
        let mut all = Vec::new();
        for extent in self.extents.iter() {
            all.extend(lines(self.op, *extent).map_err(Error::of_structure)?);
        }
        Ok(all)
    }

    fn is_used(&self, line: &Line) -> bool {
        self.op.load(&line.state, Relaxed) == USED
    }

    fn find(&self, key: u64) -> Result<Option<&'s Line>> {
        let is_it = |line: &&&Line| self.is_used(line) && self.op.load(&line.key, Relaxed) == key;
        Ok(self.all()?.iter().find(is_it).copied())
    }

    fn value(&self, line: &Line) -> u64 {
        self.op.load(&line.value, Relaxed)
    }

    /// All pairs, in the order of keys.
    fn pairs(&self) -> Result<Pairs> {
        let used = self.all()?.into_iter().filter(|line| self.is_used(line));
        let mut pairs: Pairs = used.map(|line| (self.op.load(&line.key, Relaxed), self.value(line))).collect();
        pairs.sort_unstable();
        Ok(pairs)
    }

    /// Makes `key` hold `new`; `line` is where it is.
    fn set(&mut self, line: Option<&Line>, key: u64, new: Option<u64>) -> Result<()> {
        match (line, new) {
            (None, None) => {}
            (Some(line), Some(value)) => self.store(&line.value, value, line),
            (Some(line), None) => self.store(&line.state, 0, line),
            (None, Some(value)) => {
                let line = self.free_line()?;
                self.op.store(&line.key, key, Relaxed);
                self.op.store(&line.value, value, Relaxed);
                self.store(&line.state, USED, line); // PERSIST TK-2: same line
            }
        }
        Ok(())
    }

    fn store(&self, word: &Word, value: u64, line: &Line) {
        self.op.store(word, value, Release);
        self.op.persist(line);
    }

    fn free_line(&mut self) -> Result<&'s Line> {
        if let Some(free) = self.all()?.into_iter().find(|line| !self.is_used(line)) {
            return Ok(free);
        }
        let space = self.root.pool().space();
        let reserved = space.reserve_extent(self.op, self.root.owner(), size_of::<Line>() as u64)?;
        reserved.zero(self.op)?;
        self.op.fence(); // PERSIST TK-1: flush+fence
        let extent = space.activate(self.op, reserved)?;
        self.extents.push((extent.off, extent.len / size_of::<Line>() as u64));
        // The fence of the first pair makes it durable.
        Ok(self.op.at(Off::new(extent.off)))
    }
}

impl<M: Medium> Toy<M> {
    fn lines<'a, 's>(&'a self, op: &'a Op<'s, M>) -> Lines<'a, 's, M> {
        Lines { op, root: &self.root, extents: self.extents.lock(op.medium()) }
    }

    /// Lets `decide` say what a key is to hold after what it holds; `None` changes nothing. Returns what it held.
    fn change(
        &self,
        op: &Op<'_, M>,
        key: u64,
        decide: impl FnOnce(Option<u64>) -> Option<Option<u64>>,
    ) -> Result<Option<u64>> {
        writable(self)?;
        let mut lines = self.lines(op);
        let line = lines.find(key)?;
        let held = line.map(|line| lines.value(line));
        if let Some(new) = decide(held) {
            lines.set(line, key, new)?;
        }
        Ok(held)
    }
}

impl<M: Medium> Index<M> for Toy<M> {
    fn root(&self) -> &Root<M> {
        &self.root
    }

    fn durability(&self) -> Durability {
        Durability::Strict
    }

    fn limits(&self) -> Limits {
        WORDS
    }

    fn as_ordered(&self) -> Option<&dyn OrderedIndex<M>> {
        Some(self)
    }

    fn get(&self, op: &Op<'_, M>, key: &[u8], value: &mut Vec<u8>) -> Result<bool> {
        value.clear();
        let (key, lines) = (key_word(key)?, self.lines(op));
        let found = lines.find(key)?.map(|line| lines.value(line));
        found.inspect(|word| value.extend_from_slice(&word.to_be_bytes()));
        Ok(found.is_some())
    }

    fn contains(&self, op: &Op<'_, M>, key: &[u8]) -> Result<bool> {
        Ok(self.lines(op).find(key_word(key)?)?.is_some())
    }

    fn cursor(&self) -> Box<dyn Cursor<M> + '_> {
        self.range(&KeyRange::all(), Direction::Forward)
    }

    fn insert(&self, op: &Op<'_, M>, key: &[u8], value: &[u8]) -> Result<bool> {
        let (key, value) = (key_word(key)?, value_word(value)?);
        Ok(self.change(op, key, |_| Some(Some(value)))?.is_none())
    }

    fn update(&self, op: &Op<'_, M>, key: &[u8], value: &[u8]) -> Result<bool> {
        let (key, value) = (key_word(key)?, value_word(value)?);
        Ok(self.change(op, key, |held| held.map(|_| Some(value)))?.is_some())
    }

    fn compare_and_set(&self, op: &Op<'_, M>, key: &[u8], expected: Option<&[u8]>, new: Option<&[u8]>) -> Result<bool> {
        let (key, new) = (key_word(key)?, new.map(value_word).transpose()?);
        // A value of another length cannot be the one that is there.
        let Ok(expected) = expected.map(value_word).transpose() else { return writable(self).map(|()| false) };
        Ok(self.change(op, key, |held| (held == expected).then_some(new))? == expected)
    }

    fn remove(&self, op: &Op<'_, M>, key: &[u8]) -> Result<bool> {
        Ok(self.change(op, key_word(key)?, |held| held.map(|_| None))?.is_some())
    }

    fn check(&self, session: &mut Session<M>) -> Result<Vec<Finding>> {
        alone(self, session, |op| {
            let lines = self.lines(op);
            let (mut keys, mut findings) = (std::collections::BTreeSet::new(), Vec::new());
            for line in lines.all()? {
                let [state, key] = [&line.state, &line.key].map(|word| op.load(word, Relaxed));
                let what = match state {
                    0 => continue,
                    USED if keys.insert(key) => continue,
                    USED => format!("key {key} stands in two lines"),
                    other => format!("a line has the state {other}"),
                };
                findings.push(Finding { offset: op.off_of(line).get(), what });
            }
            Ok(findings)
        })
    }

    fn stats(&self, session: &mut Session<M>) -> Result<IndexStats> {
        let op = session.enter()?;
        let lines = self.lines(&op);
        let bytes = lines.extents.iter().map(|(_, count)| count * size_of::<Line>() as u64).sum();
        Ok(IndexStats::new(lines.pairs()?.len() as u64, bytes, None))
    }

    fn dump(&self, op: &Op<'_, M>, out: &mut dyn fmt::Write) -> fmt::Result {
        let pairs = self.lines(op).pairs().map_err(|_| fmt::Error)?;
        pairs.iter().try_for_each(|(key, value)| writeln!(out, "{key} {value}"))
    }
}

impl<M: Medium> OrderedIndex<M> for Toy<M> {
    fn range(&self, range: &KeyRange, direction: Direction) -> Box<dyn Cursor<M> + '_> {
        // One step: everything, as of its moment.
        Box::new(Walk::new(
            Some(direction),
            WordRange::of(range),
            move |op: &Op<'_, M>, range: WordRange, into: &mut Pairs| {
                into.extend(self.lines(op).pairs()?);
                into.retain(|(key, _)| (range.first..=range.last).contains(key));
                if direction == Direction::Backward {
                    into.reverse();
                }
                Ok(None)
            },
        ))
    }
}

impl<M: Medium> Openable<M> for Toy<M> {
    const LIMITS: Limits = WORDS;
}

#[cfg(test)]
mod tests {
    use super::*;
    use durix_pmem::PoolOptions;

    /// Whoever changes one of these changes the version of the kind.
    #[test]
    fn the_layout_is_frozen() {
        use std::mem::offset_of;
        let offsets = [offset_of!(Line, state), offset_of!(Line, key), offset_of!(Line, value), offset_of!(Line, rest)];
        assert_eq!((offsets, size_of::<Line>(), align_of::<Line>()), ([0, 8, 16, 24], 64, 64));
        assert!(!<Toy as Structure<Hardware>>::KIND.version.is_released());
    }

    #[test]
    fn pairs_are_found_again_and_a_check_says_what_is_wrong() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("toys");
        let kind = kinds().remove(0);
        let word = u64::to_be_bytes;
        {
            let pool = PoolOptions::new().create(&path).unwrap();
            let toys = kind.open_or_create(&pool, "toys").unwrap();
            let mut session = pool.session().unwrap();
            let op = session.enter().unwrap();
            for key in 0..300 {
                assert!(toys.insert(&op, &word(key), &word(key + 1)).unwrap());
            }
            assert!(toys.remove(&op, &word(7)).unwrap() && !toys.remove(&op, &word(7)).unwrap());
            assert!(!toys.update(&op, &word(7), &word(1)).unwrap());
            assert!(toys.compare_and_set(&op, &word(8), Some(&word(9)), None).unwrap());
            assert!(!toys.compare_and_set(&op, &word(9), None, Some(&word(9))).unwrap());
            drop(op);
            drop((session, toys));
            pool.close().unwrap();
        }
        let pool = PoolOptions::new().open(&path).unwrap();
        let toys = kind.open(&pool, "toys").unwrap();
        let mut session = pool.session().unwrap();
        assert_eq!(toys.count(&mut session).unwrap(), 298);
        assert!(toys.check(&mut session).unwrap().is_empty());
        {
            let op = session.enter().unwrap();
            let (mut key, mut value) = (Vec::new(), Vec::new());
            assert!(toys.as_ordered().unwrap().last(&op, &mut key, &mut value).unwrap());
            assert_eq!((key, value), (word(299).to_vec(), word(300).to_vec()));
            let extent = pool.space().extents(&op, toys.root().owner())[0];
            op.store(&lines(&op, (extent.off, 9)).unwrap()[3].state, 5, Relaxed);
        }
        let said = toys.check(&mut session).unwrap();
        assert_eq!(said.len(), 1);
        assert!(said[0].what.contains("the state 5"), "{}", said[0]);
    }
}
