//! What lies in the blocks of a damaged tree, whether it opens or not: for repair.
//!
//! Units and log pages come from the extents of the owner. A tree that does not open for one damaged line has all others:
//!
//! | what | counts if | what it gives |
//! |---|---|---|
//! | range block | the root or another one leads to it; where that chain is broken, or what leads on is damaged: it begins as a range block, and lies above what was reached | its leaves, its floor |
//! | descriptor | it names a unit and taken slots that there are | the keys in these slots, if they lie between its smallest key and that of the next |
//! | the other side of a range | a descriptor of the side that counts is damaged, its first one is zero, or the side is not known | the leaves that the first side does not name |
//! | log record | its version is at least its range's floor; of one key the highest version; of a batch all records are there | its key and value, or that the key is not there |
//!
//! Where a range does not say its floor, an old log record may count in place of what was merged since. The closing mark tells which records count;
//! if it does not go with any, the keys of these records are *doubtful*.
//!
//! Where the pool's table of space is damaged, so that a range or a leaf lies in no extent of the owner, chunks that belong to nobody count, too,
//! if they begin as an extent of a tree does.
//!
//! Of an extent whose head is damaged the ranges say what it is: units, if one lies there or leads there, otherwise a log page.

use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::convert::Infallible;
use std::sync::atomic::Ordering::Relaxed;

use durix_index::Leftover;
use durix_pmem::pool::tally::{self, Marked, Totals};
use durix_pmem::{Extent, LINE, Medium, Off, Op, Root, Word};

use crate::Options;
use crate::chains::Chains;
use crate::layout::{
    Descriptor, ExtentHead, MAX_LEAVES, NAMED, PAGE_MAGIC, RANGE_MAGIC, RangeHead, SANE_VERSION, Shape, UNITS_MAGIC,
    head_sum, root_words,
};
use crate::leaf::{Taken, bits, count, load_pair};
use crate::record::Record;
use crate::recover::read_shape;
use crate::units::units_in;
use crate::values::Records;

/// Keys and values of all blocks that count.
pub(crate) fn read<M: Medium>(op: &Op<'_, M>, root: &Root<M>) -> Vec<Leftover> {
    read_blocks(op, root).all
}

/// The same, and with it what `more` gives: records to which nothing in them leads, of words that are lost. It is called with what tells of a
/// word whether it is. `known` tells the words to which something sound leads; of these the doubtful ones may be lost. What was removed lately has its record still, and in the log the
/// record of its removal. If the closing mark says that what leads to the words is as it was, or that no word is missing, none is lost. If it says
/// that one is, it tells which record that one led to.
pub(crate) fn read_with_records<M: Medium>(
    op: &Op<'_, M>,
    root: &Root<M>,
    known: impl Fn(&[Leftover]) -> BTreeSet<u64>,
    heads: &[(u64, u64)],
    more: impl FnOnce(&dyn Fn(u64) -> bool) -> Vec<Leftover>,
) -> Vec<Leftover> {
    let Read { mut all, removed, doubtful } = read_blocks(op, root);
    let mut sound = &known(&all) - &doubtful;
    let mut none_is_lost = false;
    if let Marked::Held(held) = root.marked(op) {
        if let Some(missing) = only_missing(&all, &sound, held, heads) {
            all.retain(|left| left.key != missing.key);
            all.push(missing);
            sound = known(&all);
        }
        none_is_lost = held == totals(&all) || held.count <= sound.len() as u64;
    }
    all.extend(more(&|word| !none_is_lost && !sound.contains(&word) && !removed.contains(&word)));
    all
}

/// The only word that is missing, with the record that it led to: what the closing mark holds beyond the sound ones.
fn only_missing(all: &[Leftover], sound: &BTreeSet<u64>, held: Totals, heads: &[(u64, u64)]) -> Option<Leftover> {
    if held.count != sound.len() as u64 + 1 {
        return None;
    }
    let others = all.iter().filter(|left| sound.contains(&left.key)).map(|left| tally::entry(left.key, left.word));
    let rest = others.fold(held.sum, u64::wrapping_sub);
    let found = heads.iter().find(|(key, word)| !sound.contains(key) && tally::entry(*key, *word) == rest);
    found.map(|(key, word)| Leftover { key: *key, word: *word })
}

fn totals(all: &[Leftover]) -> Totals {
    let sum = all.iter().map(|left| tally::entry(left.key, left.word)).fold(0, u64::wrapping_add);
    Totals { count: all.len() as u64, sum }
}

/// What the blocks hold.
struct Read {
    /// Keys and values of all blocks that count.
    all: Vec<Leftover>,
    /// Keys whose newest log record is that of a removal, whether it counts or was merged.
    removed: BTreeSet<u64>,
    /// Keys of which it is not known whether their newest log record counts.
    doubtful: BTreeSet<u64>,
}

/// A log record in a range that does not say its floor, and what the leaves hold instead.
struct Doubtful {
    version: u64,
    key: u64,
    logged: Option<u64>,
    merged: Option<u64>,
}

/// Takes the oldest of these records back, as many as make the entries those of the closing mark, and returns whether there is such a number.
fn take_back(pairs: &mut BTreeMap<u64, u64>, doubtful: &mut [Doubtful], held: Totals) -> bool {
    let part = |key, value: Option<u64>| value.map_or((0, 0), |value| (1, tally::entry(key, value)));
    let all = pairs.iter().map(|(key, value)| tally::entry(*key, *value));
    let mut now = Totals { count: pairs.len() as u64, sum: all.fold(0, u64::wrapping_add) };
    doubtful.sort_by_key(|one| one.version);
    let mut back = 0;
    while now != held {
        let Some(one) = doubtful.get(back) else { return false };
        let [(logged, out), (merged, into)] = [one.logged, one.merged].map(|value| part(one.key, value));
        now.count = now.count + merged - logged;
        now.sum = now.sum.wrapping_sub(out).wrapping_add(into);
        back += 1;
    }
    for one in &doubtful[..back] {
        match one.merged {
            Some(value) => _ = pairs.insert(one.key, value),
            None => _ = pairs.remove(&one.key),
        }
    }
    true
}

fn read_blocks<M: Medium>(op: &Op<'_, M>, root: &Root<M>) -> Read {
    let shape = read_shape(op, root).unwrap_or(Options::default().shape);
    let first = op.load(&root_words(op, root).first, Relaxed).get();
    let known = root.pool().space().extents(op, root.owner());
    let all = with_lost(op, root, shape);
    let is_known = |off: u64| {
        let before = known.partition_point(|extent| extent.off <= off).checked_sub(1);
        before.is_some_and(|at| off - known[at].off < known[at].len)
    };
    let (in_known, in_all) = (Blocks::new(op, shape, &known), Blocks::new(op, shape, &all));
    // What links lead to, and what begins as an extent of a tree, the table has lost.
    let are_lost = !in_all.led_to(first).into_iter().all(is_known) || root.has_doubtful_space(op);
    let blocks = if are_lost { in_all } else { in_known };
    let ranges = blocks.ranges(first);
    // Where ranges lie, and where they lead to, there is no log.
    let taken = ranges.iter().flat_map(|range| range.parts.iter().map(|part| part.leaf).chain([range.off]));
    let taken: BTreeSet<u64> = taken.filter_map(|off| blocks.extent_of(off)).collect();
    let pages: Vec<u64> = blocks.pages.iter().copied().filter(|page| !taken.contains(page)).collect();

    let mut pairs = BTreeMap::new();
    ranges.iter().for_each(|range| blocks.add_pairs(range, &mut pairs));
    let (newest, removed) = blocks.newest(&ranges, &pages);
    let mut doubtful = Vec::new();
    for (key, Newer { version, value: logged, is_certain }) in newest {
        let merged = match logged {
            Some(value) => pairs.insert(key, value),
            None => pairs.remove(&key),
        };
        if !is_certain && logged != merged {
            doubtful.push(Doubtful { version, key, logged, merged });
        }
    }
    if let Marked::Held(held) = root.marked(op)
        && take_back(&mut pairs, &mut doubtful, held)
    {
        doubtful.clear();
    }
    let doubtful = doubtful.into_iter().map(|one| one.key).collect();
    Read { all: pairs.into_iter().map(|(key, word)| Leftover { key, word }).collect(), removed, doubtful }
}

/// The extents, those too that the pool's table of space has lost: they have heads. One of units reaches to the next head, or as far as chunks
/// belong to nobody. Those of trees that were dropped can be among them.
fn with_lost<M: Medium>(op: &Op<'_, M>, root: &Root<M>, shape: Shape) -> Vec<Extent> {
    let chunk = root.pool().space().chunk();
    let magic_at = |off: u64| {
        let head = op.at(Off::<ExtentHead>::new(off));
        let [magic, size, sum] = [&head.magic, &head.size, &head.sum].map(|word| op.load(word, Relaxed));
        let is_known = [(UNITS_MAGIC, shape.unit()), (PAGE_MAGIC, shape.page_lines)].contains(&(magic, size));
        (is_known && sum == head_sum(magic, size)).then_some(magic)
    };
    root.salvaged_extents(op, true, &mut |off, most| match magic_at(off)? {
        PAGE_MAGIC => Some(shape.page_bytes()),
        _ => Some((1..most / chunk).map(|more| more * chunk).find(|len| magic_at(off + len).is_some()).unwrap_or(most)),
    })
}

struct Blocks<'a, 's, M: Medium> {
    op: &'a Op<'s, M>,
    shape: Shape,
    /// Number of units by the offset of their extent.
    units: BTreeMap<u64, u64>,
    /// Extents that may be log pages.
    pages: Vec<u64>,
}

/// Each key's newest record.
type Newest = HashMap<u64, Newer>;

/// A log record that counts, or may count.
struct Newer {
    version: u64,
    /// No value: the key was removed.
    value: Option<u64>,
    /// Whether it counts for sure, because its range says its floor.
    is_certain: bool,
}

/// A range, as far as it can be read.
struct Range {
    off: u64,
    low: u64,
    /// 0 if it is not known: then all records count.
    floor: u64,
    parts: Vec<Part>,
    /// The next one, if what names it makes sense; 0 after the last.
    next: Option<u64>,
}

/// A leaf, as a descriptor names it.
struct Part {
    leaf: u64,
    low: u64,
    taken: Taken,
}

impl<'a, 's, M: Medium> Blocks<'a, 's, M> {
    fn new(op: &'a Op<'s, M>, shape: Shape, extents: &[Extent]) -> Self {
        let mut blocks = Blocks { op, shape, units: BTreeMap::new(), pages: Vec::new() };
        for extent in extents.iter().filter(|extent| !Records::<M>::holds_records(op, extent)) {
            let magic = op.load(&op.at(Off::<ExtentHead>::new(extent.off)).magic, Relaxed);
            if magic != PAGE_MAGIC {
                blocks.units.insert(extent.off, units_in(extent.len, shape.unit()));
            }
            if magic != UNITS_MAGIC && extent.len >= shape.page_bytes() {
                blocks.pages.push(extent.off);
            }
        }
        blocks
    }

    /// The extent in which a unit begins at `off`.
    fn extent_of(&self, off: u64) -> Option<u64> {
        let (extent, units) = self.units.range(..=off).next_back()?;
        let within = off.checked_sub(extent + LINE as u64)?;
        (within.is_multiple_of(self.shape.unit()) && within / self.shape.unit() < *units).then_some(*extent)
    }

    fn has_magic(&self, off: u64) -> bool {
        self.op.load(&self.op.at(Off::<RangeHead>::new(off)).magic, Relaxed) == RANGE_MAGIC
    }

    /// The ranges that the root leads to, and whether these are all.
    fn chain(&self, first: u64) -> (Vec<Range>, bool) {
        let (mut ranges, mut seen) = (Vec::<Range>::new(), BTreeSet::new());
        let is_range = |range: &Range| self.has_magic(range.off) || !range.parts.is_empty();
        let mut next = Some(first);
        while let Some(off) = next.filter(|off| *off != 0) {
            // One that leads back breaks the chain, too.
            let range = if seen.insert(off) { self.range(off).filter(is_range) } else { None };
            next = range.as_ref().and_then(|range| range.next);
            ranges.extend(range);
        }
        let are_all = next == Some(0) && !ranges.is_empty();
        (ranges, are_all)
    }

    /// Where the ranges lie that the root leads to, and their leaves.
    fn led_to(&self, first: u64) -> Vec<u64> {
        let of_range = |range: Range| range.parts.into_iter().map(|part| part.leaf).chain([range.off]);
        self.chain(first).0.into_iter().flat_map(of_range).collect()
    }

    /// The ranges that the root leads to; where that ends too early, those above them that look like ranges, those with the highest floor
    /// first.
    fn ranges(&self, first: u64) -> Vec<Range> {
        let (mut ranges, are_all) = self.chain(first);
        if are_all {
            return ranges;
        }
        let seen: BTreeSet<u64> = ranges.iter().map(|range| range.off).collect();
        let has_magic = |off: u64| self.has_magic(off);
        let reached = ranges.last().map(|range| range.low);
        let unit = self.shape.unit();
        let all =
            self.units.iter().flat_map(|(extent, units)| (0..*units).map(move |i| extent + LINE as u64 + i * unit));
        let others = all.filter(|off| !seen.contains(off) && has_magic(*off)).filter_map(|off| self.range(off));
        let mut others: Vec<Range> = others.filter(|range| reached.is_none_or(|reached| range.low > reached)).collect();
        others.sort_by_key(|range| std::cmp::Reverse(range.floor));
        ranges.extend(others);
        ranges
    }

    /// The range at `off`; `None` if no unit begins there.
    fn range(&self, off: u64) -> Option<Range> {
        self.extent_of(off)?;
        let block = Off::<RangeHead>::new(off);
        let head = self.op.at(block);
        let state = self.op.load(&head.state, Relaxed);
        let is_known = (1..=SANE_VERSION).contains(&state.floor());
        let (mut parts, is_whole, mut next) = self.side(block, state.side());
        if !is_known || !is_whole {
            let (others, _, _) = self.side(block, 1 - state.side());
            let named: BTreeSet<u64> = parts.iter().map(|part| part.leaf).collect();
            parts.extend(others.into_iter().filter(|part| !named.contains(&part.leaf)));
            // The other side may lead past ranges that were split off since.
            let are_blank = (0..2).all(|side| self.is_blank(block, side));
            let is_empty = are_blank && self.op.load(&head.named, Relaxed) != NAMED;
            next = if is_known { next.or(is_empty.then_some(0)) } else { None };
        }
        let is_headed = self.op.load(&head.magic, Relaxed) == RANGE_MAGIC;
        let low = if is_headed { self.op.load(&head.low, Relaxed) } else { u64::MAX };
        let low = parts.iter().map(|part| part.low).fold(low, u64::min);
        Some(Range { off, low, floor: if is_known { state.floor() } else { 0 }, parts, next })
    }

    /// Whether the first descriptor of a side is zero: that of the last range if it is empty, or one that was damaged.
    fn is_blank(&self, block: Off<RangeHead>, side: usize) -> bool {
        let words: &[Word; 8] = self.op.at(self.shape.descriptor(block, side, 0).cast());
        words.iter().all(|word| self.op.load(word, Relaxed) == 0)
    }

    /// The leaves that a side names, whether these are all, and the next range.
    fn side(&self, block: Off<RangeHead>, side: usize) -> (Vec<Part>, bool, Option<u64>) {
        let descriptor = |index| self.op.at(self.shape.descriptor(block, side, index));
        if self.is_blank(block, side) {
            // How many count is not known.
            let all = 1..self.shape.leaves.min(MAX_LEAVES);
            let parts: Vec<Part> = all.map_while(|index| self.part(descriptor(index))).collect();
            return (if parts.is_sorted_by(|a, b| a.low < b.low) { parts } else { Vec::new() }, false, None);
        }
        let number = self.op.load(&descriptor(0).count, Relaxed);
        let is_sound = number <= self.shape.leaves as u64;
        let number = if is_sound { number as usize } else { self.shape.leaves.min(MAX_LEAVES) };
        let parts: Vec<Part> = (0..number).filter_map(|index| self.part(descriptor(index))).collect();
        let is_whole = is_sound && parts.len() == number && parts.is_sorted_by(|a, b| a.low < b.low);
        let next = self.op.load(&descriptor(0).next, Relaxed).get();
        (parts, is_whole, (next == 0 || self.extent_of(next).is_some()).then_some(next))
    }

    fn part(&self, descriptor: &Descriptor) -> Option<Part> {
        let [leaf, low] = [&descriptor.leaf, &descriptor.low].map(|word| self.op.load(word, Relaxed));
        let taken: Taken = std::array::from_fn(|i| self.op.load(&descriptor.taken[i], Relaxed));
        let is_sound = count(&taken) > 0 && bits(&taken).all(|slot| slot < self.shape.slots);
        (is_sound && self.extent_of(leaf).is_some()).then_some(Part { leaf, low, taken })
    }

    /// Adds the pairs of a range's leaves, of which the first one of a key counts. Keys that lie in a leaf where they do not belong are
    /// damaged.
    fn add_pairs(&self, range: &Range, pairs: &mut BTreeMap<u64, u64>) {
        for part in &range.parts {
            let above = range.parts.iter().map(|other| other.low).filter(|low| *low > part.low).min();
            // Of the first leaf the range's smallest key counts.
            let is_first = range.parts.iter().all(|other| other.low >= part.low);
            let low = if is_first { range.low } else { part.low };
            for slot in bits(&part.taken) {
                let (key, value) = load_pair(self.op, part.leaf, slot);
                if key >= low && above.is_none_or(|above| key < above) {
                    pairs.entry(key).or_insert(value);
                }
            }
        }
    }

    /// Of each key the record with the highest version, if it counts; and the keys whose record with the highest version, whether it
    /// counts or not, is that of a removal.
    fn newest(&self, ranges: &[Range], pages: &[u64]) -> (Newest, BTreeSet<u64>) {
        let floors: BTreeMap<u64, u64> = ranges.iter().rev().map(|range| (range.low, range.floor)).collect();
        let floor_of = |key: u64| floors.range(..=key).next_back().map_or(0, |(_, floor)| *floor);
        let (mut newest, mut last) = (HashMap::new(), HashMap::<u64, (u64, bool)>::new());
        let mut add = |Record { key, value, version, .. }| {
            if (1..=SANE_VERSION).contains(&version) {
                let last = last.entry(key).or_default();
                *last = (*last).max((version, value.is_none()));
            }
            let floor = floor_of(key);
            if !(floor.max(1)..=SANE_VERSION).contains(&version) {
                return;
            }
            if newest.get(&key).is_none_or(|newer: &Newer| version >= newer.version) {
                newest.insert(key, Newer { version, value, is_certain: floor > 0 });
            }
        };
        let polarities: BTreeMap<u64, Option<u64>> = pages.iter().map(|page| (*page, self.polarity(*page))).collect();
        // Where a head does not say which records exist, all of them: those of an earlier turn are below their floors.
        for unknown in 0..2 {
            let known = |(page, polarity): (&u64, &Option<u64>)| (*page, polarity.unwrap_or(unknown));
            let polarities = polarities.iter().map(known).collect();
            let chains = Chains { op: self.op, shape: self.shape, polarities: &polarities, damaged: Cell::default() };
            for page in pages {
                let Ok(()) = chains.each(*page, |records| {
                    records.iter().for_each(|found| add(found.record));
                    Ok::<_, Infallible>(())
                });
            }
        }
        let removed = last.into_iter().filter(|(_, (_, is_removed))| *is_removed).map(|(key, _)| key).collect();
        (newest, removed)
    }

    /// The polarity of a log page, if its head makes sense.
    fn polarity(&self, page: u64) -> Option<u64> {
        let head = self.op.at(Off::<ExtentHead>::new(page));
        let [magic, size, polarity, sum] =
            [&head.magic, &head.size, &head.polarity, &head.sum].map(|word| self.op.load(word, Relaxed));
        (magic == PAGE_MAGIC && sum == head_sum(magic, size) && polarity < 2).then_some(polarity)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Three keys were merged at version 10, after what the log still has of two of them; a fourth was logged later.
    #[test]
    fn the_closing_mark_tells_which_log_records_of_a_range_without_a_floor_count() {
        let right = BTreeMap::from([(1, 11), (2, 22), (4, 44)]);
        let held = right.iter().map(|(key, value)| tally::entry(*key, *value)).fold(0, u64::wrapping_add);
        let held = Totals { count: 3, sum: held };
        let mut pairs = BTreeMap::from([(1, 11), (2, 20), (3, 30), (4, 44)]);
        let doubtful = |version, key, logged, merged| Doubtful { version, key, logged, merged };
        let mut all =
            [doubtful(12, 4, Some(44), None), doubtful(7, 2, Some(20), Some(22)), doubtful(3, 3, Some(30), None)];
        let before = pairs.clone();
        assert!(!take_back(&mut pairs, &mut all, Totals { count: 3, sum: 7 }));
        assert_eq!(pairs, before, "no number of them goes with that mark");
        assert!(take_back(&mut pairs, &mut all, held));
        assert_eq!(pairs, right);
        assert!(take_back(&mut pairs, &mut [], held), "all are right");
    }
}
