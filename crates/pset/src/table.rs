//! The volatile index of one shard: an open-addressing table of 64-bit cells, written under the shard's lock, read
//! without any.
//!
//! A cell holds the line number of an entry (40 bits), whether the entry is unsettled (`later.rs`), and a tag (the top 23 bits of the
//! key's hash); 0 is empty. A key's
//! home cell follows from its tag, so neither growing nor closing a gap has to read persistent memory. Probing is linear;
//! removing closes the gap by moving cells back, so no markers pile up.
//!
//! # Readers
//! The shard's sequence number is odd while cells move, and changes when the table is replaced. A reader takes it first;
//! a *miss* counts if it is the same and even afterwards: no cell of a key that was there all along has then moved past
//! the probe. A *hit* counts if moreover the cell and the entry's meta word are as they were: see `read.rs`. Updates in
//! place, inserts into empty cells and removals that move nothing leave the sequence alone, so readers hardly ever try
//! again.
//!
//! # Growth
//! A table that is three quarters full is followed by one of twice its size. Cells move there a line at a time: each new key moves one
//! line of old cells, so no insert pays for all of them. Until all have moved there are two tables, and each key is in one of them:
//! - new keys come to the new table; the writer moves a key that it looks for in the old one;
//! - a cell is first put into the new table, then replaced by [`MOVED`] in the old one, which so keeps its chains of probes;
//! - a reader that looks in the old table first, and then in the new one, meets every key that is there all along: one that it misses
//!   in the old table has moved before. A hit in the new table alone is right, too; a miss in it alone is not.
//!
//! The sequence number changes when growth begins and when it has ended, so that a reader knows whether it has looked into both tables of
//! one growth. It need not change when cells move.
//!
//! Tables that were outgrown stay until the set is dropped, because a reader may still be in one; as sizes double, they
//! take less than the current one. A new table is memory that the system hands out zeroed, page by page, when it is touched.

use std::sync::atomic::{AtomicU64, Ordering};

use durix_pmem::{LINE, Medium, ZeroedWords};

/// Bits of a cell that hold the line number; the tag is above.
const LINE_BITS: u32 = 40;
/// The entry is unsettled.
const UNSETTLED: u64 = 1 << LINE_BITS;
const TAG_SHIFT: u32 = LINE_BITS + 1;
const TAG_BITS: u32 = 64 - TAG_SHIFT;
const CELLS_A_LINE: usize = 8;
/// Cells of the old table that each new key moves; two would be enough to be done before the new table is full.
const STEP: usize = CELLS_A_LINE;
/// What is left in the old table of a cell that has moved: no entry lies at offset 0.
const MOVED: u64 = 1 << TAG_SHIFT;
/// How many cells a hint looks at.
const HINT: usize = 4;

/// Offsets below this can be indexed: 64 TiB.
pub(super) const MAX_OFF: u64 = (1 << LINE_BITS) * LINE as u64;

/// What of a key's hash is kept in its cell.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Tag(u64);

impl Tag {
    /// The tag of a hash.
    #[inline(always)]
    pub(super) fn of(hash: u64) -> Tag {
        Tag(hash >> TAG_SHIFT)
    }
}

/// A cell's content.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Cell(u64);

impl Cell {
    /// An entry at `off`, a multiple of the line size below [`MAX_OFF`].
    #[inline(always)]
    pub(super) fn new(tag: Tag, off: u64) -> Cell {
        Cell((tag.0 << TAG_SHIFT) | (off / LINE as u64))
    }

    /// The same, of an entry that a crash can still take back.
    #[inline]
    pub(super) fn unsettled(tag: Tag, off: u64) -> Cell {
        Cell(Cell::new(tag, off).0 | UNSETTLED)
    }

    /// Whether a crash can still take the entry back.
    #[inline(always)]
    pub(super) fn is_unsettled(self) -> bool {
        self.0 & UNSETTLED != 0
    }

    #[inline(always)]
    pub(super) fn tag(self) -> Tag {
        Tag(self.0 >> TAG_SHIFT)
    }

    /// Whether this is what a cell has left in the old table.
    #[inline(always)]
    pub(super) fn has_moved(self) -> bool {
        self.0 == MOVED
    }

    /// Where the entry lies.
    #[inline(always)]
    pub(super) fn off(self) -> u64 {
        (self.0 & ((1 << LINE_BITS) - 1)) * LINE as u64
    }
}

/// The memory of a table. Its cells begin at a line.
#[derive(Debug)]
struct Table {
    words: ZeroedWords,
    first: usize,
    len: usize,
}

/// The part of a shard's index that readers see.
#[derive(Debug)]
pub(super) struct Index {
    /// Odd while cells move.
    seq: AtomicU64,
    /// Address of the current table, a multiple of 64, plus the binary logarithm of its number of cells.
    table: AtomicU64,
    /// The same of the table that cells still move from; 0 while there is none.
    old: AtomicU64,
}

/// The part that the holder of the shard's lock owns: all tables so far, the current one last.
#[derive(Debug)]
pub(super) struct Tables {
    tables: Vec<Table>,
    /// Cells in use, of both tables.
    used: usize,
    /// While there is an old table, its first cell that may not have moved.
    moving: Option<usize>,
}

/// The cells of the current table.
#[derive(Clone, Copy, Debug)]
pub(super) struct Cells<'a> {
    cells: &'a [AtomicU64],
}

/// How far a probe has come.
#[derive(Clone, Copy, Debug)]
pub(super) struct Probe {
    tag: Tag,
    at: usize,
    left: usize,
}

impl<'a> Cells<'a> {
    #[inline(always)]
    fn mask(self) -> usize {
        self.cells.len() - 1
    }

    /// The cell at which the search for a tag starts: its low bits where they suffice, spread out where the table has
    /// more cells than there are tags.
    #[inline(always)]
    fn home(self, tag: Tag) -> usize {
        let log = self.cells.len().trailing_zeros();
        if log <= TAG_BITS { tag.0 as usize & self.mask() } else { (tag.0 as usize) << (log - TAG_BITS) }
    }

    /// A probe for `tag`.
    #[inline(always)]
    pub(super) fn probe(self, tag: Tag) -> Probe {
        Probe { tag, at: self.home(tag), left: self.cells.len() }
    }

    /// The next cell with the probe's tag, and its place; `None` at the first empty cell.
    #[inline(always)]
    pub(super) fn next<M: Medium>(self, m: M, probe: &mut Probe) -> Option<(usize, Cell)> {
        while probe.left > 0 {
            let at = probe.at;
            let cell = self.load(m, at)?;
            probe.at = (at + 1) & self.mask();
            probe.left -= 1;
            if cell.tag() == probe.tag {
                return Some((at, cell));
            }
        }
        None
    }

    /// The cell at place `at`, `None` if it is empty.
    #[inline(always)]
    pub(super) fn load<M: Medium>(self, m: M, at: usize) -> Option<Cell> {
        let word = m.shared_load(&self.cells[at], Ordering::Acquire);
        (word != 0).then_some(Cell(word))
    }

    /// Replaces the cell at place `at`: publishes an entry.
    #[inline(always)]
    pub(super) fn store<M: Medium>(self, m: M, at: usize, cell: Cell) {
        m.shared_store(&self.cells[at], cell.0, Ordering::Release);
    }

    /// Puts a cell into the first empty place for its tag, and returns the place.
    #[inline]
    fn put<M: Medium>(self, m: M, cell: Cell) -> usize {
        let mut at = self.home(cell.tag());
        for _ in 0..self.cells.len() {
            if self.load(m, at).is_none() {
                self.store(m, at, cell);
                return at;
            }
            at = (at + 1) & self.mask();
        }
        unreachable!("a table is never full");
    }

    /// All cells with an entry.
    fn iter<M: Medium>(self, m: M) -> impl Iterator<Item = Cell> + 'a {
        (0..self.cells.len()).filter_map(move |at| self.load(m, at)).filter(|cell| !cell.has_moved())
    }
}

impl Index {
    /// An empty index, and what its writer owns.
    pub(super) fn new() -> (Index, Tables) {
        let first = Table::new(CELLS_A_LINE);
        let index = Index { seq: AtomicU64::new(0), table: AtomicU64::new(first.word()), old: AtomicU64::new(0) };
        (index, Tables { tables: vec![first], used: 0, moving: None })
    }

    /// The sequence number, if it is even.
    #[inline(always)]
    pub(super) fn even_seq<M: Medium>(&self, m: M) -> Option<u64> {
        let seq = m.shared_load(&self.seq, Ordering::Acquire);
        (seq & 1 == 0).then_some(seq)
    }

    /// The sequence number, waiting while it is odd.
    #[inline]
    pub(super) fn seq<M: Medium>(&self, m: M) -> u64 {
        let mut turn = 0;
        loop {
            if let Some(seq) = self.even_seq(m) {
                return seq;
            }
            m.spin(turn);
            turn = turn.saturating_add(1);
        }
    }

    /// Whether no cell has moved since `seq` was taken.
    #[inline(always)]
    pub(super) fn unmoved<M: Medium>(&self, m: M, seq: u64) -> bool {
        // Pairs with the fence in `begin_move`: a reader that has seen a moved cell sees the odd number, or a later one.
        std::sync::atomic::fence(Ordering::Acquire);
        m.shared_load(&self.seq, Ordering::Relaxed) == seq
    }

    /// The cells of the table that is being left, if any: a reader looks there first.
    #[inline]
    pub(super) fn old_cells<M: Medium>(&self, m: M) -> Option<Cells<'_>> {
        let word = m.shared_load(&self.old, Ordering::Acquire);
        (word != 0).then(|| self.cells_of(word))
    }

    /// The current table's cells.
    #[inline(always)]
    pub(super) fn cells<M: Medium>(&self, m: M) -> Cells<'_> {
        self.cells_of(m.shared_load(&self.table, Ordering::Acquire))
    }

    #[inline(always)]
    fn cells_of(&self, word: u64) -> Cells<'_> {
        let len = 1usize << (word & 63);
        let first = std::ptr::with_exposed_provenance::<AtomicU64>((word & !63) as usize);
        // SAFETY: the word was made by `Table::word` from a table of `len` cells, which stays in `Tables` until the shard is
        // dropped; `Index` and `Tables` live in the same shard.
        Cells { cells: unsafe { std::slice::from_raw_parts(first, len) } }
    }

    /// Where the entry with a tag lies, most likely: for prefetching, right or wrong. It is no access, for any medium.
    #[inline(always)]
    pub(super) fn hint(&self, tag: Tag) -> Option<u64> {
        let cells = self.cells_of(self.table.load(Ordering::Acquire));
        let home = cells.home(tag);
        (home..home + HINT)
            .map(|at| Cell(cells.cells[at & cells.mask()].load(Ordering::Relaxed)))
            .find(|cell| cell.tag() == tag)
            .map(Cell::off)
    }

    fn bump<M: Medium>(&self, m: M, order: Ordering) {
        let seq = m.shared_load(&self.seq, Ordering::Relaxed);
        m.shared_store(&self.seq, seq + 1, order);
    }

    fn begin_move<M: Medium>(&self, m: M) {
        self.bump(m, Ordering::Relaxed);
        std::sync::atomic::fence(Ordering::Release);
    }

    // ---- by the holder of the lock ----

    /// Makes room for `more` cells. Moves some of the old table, if there is one.
    #[inline]
    pub(super) fn reserve<M: Medium>(&self, m: M, tables: &mut Tables, more: usize) {
        if let Some(next) = tables.moving {
            self.move_some(m, tables, next, more.saturating_mul(STEP));
        }
        let len = self.cells(m).cells.len();
        if tables.used + more > len / 4 * 3 {
            self.grow(m, tables, more);
        }
    }

    #[cold]
    fn grow<M: Medium>(&self, m: M, tables: &mut Tables, more: usize) {
        self.move_all(m, tables);
        let len = self.cells(m).cells.len();
        let len = (len * 2).max(((tables.used + more) * 4 / 3 + 1).next_power_of_two());
        let table = Table::new(len);
        let word = table.word();
        tables.tables.push(table);
        self.begin_move(m);
        m.shared_store(&self.old, m.shared_load(&self.table, Ordering::Relaxed), Ordering::Release);
        m.shared_store(&self.table, word, Ordering::Release);
        self.bump(m, Ordering::Release);
        self.move_some(m, tables, 0, more.saturating_mul(STEP));
    }

    /// Moves the cells of up to `count` places of the old table, from `next` on.
    #[cold]
    fn move_some<M: Medium>(&self, m: M, tables: &mut Tables, next: usize, count: usize) {
        let Some(old) = self.old_cells(m) else { return };
        let end = next.saturating_add(count).min(old.cells.len());
        for at in next..end {
            if let Some(cell) = old.load(m, at).filter(|cell| !cell.has_moved()) {
                self.move_cell(m, old, at, cell);
            }
        }
        tables.moving = (end < old.cells.len()).then_some(end);
        if tables.moving.is_none() {
            // Before the old table is gone: whoever finds it gone, after a look in the new one, sees that it has to look again.
            let seq = m.shared_load(&self.seq, Ordering::Relaxed);
            m.shared_store(&self.seq, seq + 2, Ordering::Release);
            m.shared_store(&self.old, 0, Ordering::Release);
        }
    }

    /// Moves one cell, and returns its new place.
    fn move_cell<M: Medium>(&self, m: M, old: Cells<'_>, at: usize, cell: Cell) -> usize {
        let place = self.cells(m).put(m, cell);
        // After the new place, for readers that look here first.
        old.store(m, at, Cell(MOVED));
        place
    }

    /// Moves all that is left of the old table: for whoever fills the index at one go.
    pub(super) fn move_all<M: Medium>(&self, m: M, tables: &mut Tables) {
        if let Some(next) = tables.moving {
            self.move_some(m, tables, next, usize::MAX);
        }
    }

    /// The place, in the current table, of the first cell with `tag` that `is_it` accepts, and what it made of it.
    pub(super) fn find<M: Medium, R>(
        &self,
        m: M,
        tag: Tag,
        mut is_it: impl FnMut(Cell) -> Option<R>,
    ) -> Option<(usize, R)> {
        let cells = self.cells(m);
        let mut probe = cells.probe(tag);
        while let Some((at, cell)) = cells.next(m, &mut probe) {
            if let Some(found) = is_it(cell) {
                return Some((at, found));
            }
        }
        self.find_old(m, tag, is_it)
    }

    /// The same for a cell of the old table, which moves.
    #[inline(never)]
    fn find_old<M: Medium, R>(&self, m: M, tag: Tag, mut is_it: impl FnMut(Cell) -> Option<R>) -> Option<(usize, R)> {
        let old = self.old_cells(m)?;
        let mut probe = old.probe(tag);
        while let Some((at, cell)) = old.next(m, &mut probe) {
            if let Some(found) = (!cell.has_moved()).then(|| is_it(cell)).flatten() {
                return Some((self.move_cell(m, old, at, cell), found));
            }
        }
        None
    }

    /// The place of the cell that names `off`.
    pub(super) fn find_off<M: Medium>(&self, m: M, tag: Tag, off: u64) -> Option<usize> {
        self.find(m, tag, |cell| (cell.off() == off).then_some(())).map(|(at, ())| at)
    }

    /// All cells with an entry.
    pub(super) fn iter<M: Medium>(&self, m: M) -> impl Iterator<Item = Cell> + '_ {
        self.old_cells(m).into_iter().chain([self.cells(m)]).flat_map(move |cells| cells.iter(m))
    }

    /// Adds a cell, for which room must have been made.
    #[inline]
    pub(super) fn add<M: Medium>(&self, m: M, tables: &mut Tables, cell: Cell) {
        tables.used += 1;
        let _ = self.cells(m).put(m, cell);
    }

    /// Removes the cell at place `at` and closes the gap.
    pub(super) fn remove<M: Medium>(&self, m: M, tables: &mut Tables, at: usize) {
        tables.used -= 1;
        let cells = self.cells(m);
        let mask = cells.mask();
        let (mut gap, mut next, mut moving) = (at, at, false);
        loop {
            next = (next + 1) & mask;
            let Some(cell) = cells.load(m, next) else { break };
            let from_home = next.wrapping_sub(cells.home(cell.tag())) & mask;
            if from_home >= (next.wrapping_sub(gap) & mask) {
                if !std::mem::replace(&mut moving, true) {
                    self.begin_move(m);
                }
                cells.store(m, gap, cell);
                gap = next;
            }
        }
        m.shared_store(&cells.cells[gap], 0, Ordering::Release);
        if moving {
            self.bump(m, Ordering::Release);
        }
    }
}

impl Tables {
    /// Number of cells in use.
    pub(super) fn used(&self) -> usize {
        self.used
    }

    /// Bytes of memory of all tables.
    pub(super) fn bytes(&self) -> usize {
        self.tables.iter().map(|table| size_of_val(&*table.words)).sum()
    }
}

impl Table {
    fn new(len: usize) -> Table {
        let words = ZeroedWords::new(len + CELLS_A_LINE - 1);
        let first = words.as_ptr().align_offset(LINE);
        assert!(first < CELLS_A_LINE, "{first} words to the next line");
        Table { words, first, len }
    }

    /// What readers find it by.
    fn word(&self) -> u64 {
        self.words[self.first..][..self.len].as_ptr().expose_provenance() as u64 | u64::from(self.len.trailing_zeros())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use durix_pmem::Hardware;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    const M: Hardware = Hardware::PAGE_CACHE;

    fn find(index: &Index, tag: Tag, off: u64) -> Option<usize> {
        index.find_off(M, tag, off)
    }

    /// As a reader looks.
    fn is_seen(index: &Index, tag: Tag, off: u64) -> bool {
        let tables = index.old_cells(M).into_iter().chain([index.cells(M)]);
        tables.into_iter().any(|cells| {
            let mut probe = cells.probe(tag);
            std::iter::from_fn(|| cells.next(M, &mut probe)).any(|(_, cell)| !cell.has_moved() && cell.off() == off)
        })
    }

    proptest! {
        #[test]
        fn holds_what_a_map_holds(ops in prop::collection::vec((prop::bool::weighted(0.7), 0u64..60, 0u64..3), 0..400)) {
            let (index, mut tables) = Index::new();
            let mut model = BTreeMap::new();
            for (add, key, spread) in ops {
                // Few homes, many tags: long runs and gaps that have to be closed across the end of the table.
                let (tag, off) = (Tag(key % 5 + (spread << 20)), (key + 1) * 64);
                prop_assert_eq!(is_seen(&index, tag, off), model.contains_key(&(tag.0, off)));
                prop_assert_eq!(index.iter(M).count(), model.len());
                let at = find(&index, tag, off);
                prop_assert_eq!(at.is_some(), model.contains_key(&(tag.0, off)));
                match at {
                    None if add => {
                        index.reserve(M, &mut tables, 1);
                        index.add(M, &mut tables, Cell::new(tag, off));
                        model.insert((tag.0, off), ());
                    }
                    Some(at) if !add => {
                        index.remove(M, &mut tables, at);
                        model.remove(&(tag.0, off));
                    }
                    _ => {}
                }
                prop_assert_eq!(tables.used(), model.len());
                prop_assert_eq!(index.seq(M) % 2, 0);
            }
            for (tag, off) in model.keys() {
                prop_assert!(find(&index, Tag(*tag), *off).is_some());
            }
            prop_assert_eq!(index.iter(M).count(), model.len());
        }
    }

    #[test]
    fn homes_stay_in_bounds_where_there_are_more_cells_than_tags() {
        // Only the arithmetic: a table of 2^26 cells is not made here.
        let log = 26;
        let home = ((1usize << TAG_BITS) - 1) << (log - TAG_BITS);
        assert!(home < 1 << log);
        assert_eq!(Cell::new(Tag::of(u64::MAX), MAX_OFF - 64).off(), MAX_OFF - 64);
        assert_eq!(Cell::new(Tag::of(u64::MAX), 64).tag(), Tag(0x7f_ffff));
    }

    #[test]
    fn a_hint_names_an_entry_with_the_tag_or_none() {
        let (index, mut tables) = Index::new();
        for i in 1..=500u64 {
            index.reserve(M, &mut tables, 1);
            index.add(M, &mut tables, Cell::new(Tag(i * 7), i * 64));
        }
        let hints = (1..=500u64).filter_map(|i| Some((i, index.hint(Tag(i * 7))?)));
        assert!(hints.clone().all(|(i, off)| off == i * 64));
        assert!(hints.count() > 400, "most keys lie near their home");
        assert_eq!(index.hint(Tag(3)), None);
    }

    #[test]
    fn outgrown_tables_take_less_than_the_current_one() {
        let (index, mut tables) = Index::new();
        for i in 1..=5000u64 {
            index.reserve(M, &mut tables, 1);
            index.add(M, &mut tables, Cell::new(Tag(i.wrapping_mul(0x9e37_79b9) & 0x7f_ffff), i * 64));
        }
        assert_eq!(index.cells(M).cells.len(), 8192);
        let outgrown: usize = tables.tables.iter().map(|table| table.len).sum::<usize>() - 8192;
        assert!(outgrown < 8192 && tables.bytes() >= (8192 + outgrown) * 8);
    }

    /// No insert pays for a whole table, and growth is over long before the next one begins.
    #[test]
    fn a_new_key_moves_a_line_of_the_old_table() {
        let (index, mut tables) = Index::new();
        let in_new = |index: &Index| index.cells(M).iter(M).count();
        let mut growths = 0;
        for i in 1..=20_000u64 {
            let (len, before, was_moving) = (index.cells(M).cells.len(), in_new(&index), tables.moving.is_some());
            index.reserve(M, &mut tables, 1);
            let grown = index.cells(M).cells.len() > len;
            let moved = if grown { in_new(&index) } else { in_new(&index) - before };
            assert!(moved <= STEP, "key {i} moved {moved} cells");
            assert!(!grown || !was_moving, "key {i}: the growth before is not over");
            growths += u32::from(grown);
            index.add(M, &mut tables, Cell::new(Tag(i.wrapping_mul(0x9e37_79b9) & 0x7f_ffff), i * 64));
        }
        assert!(growths > 10 && index.iter(M).count() == 20_000);
        index.move_all(M, &mut tables);
        assert!(tables.moving.is_none() && index.old_cells(M).is_none() && in_new(&index) == 20_000);
    }

    /// A reader that looks in the old table first misses no key that is there all along.
    #[test]
    fn keys_are_found_while_the_table_grows() {
        let (stop, rounds) = (AtomicU64::new(0), AtomicU64::new(0));
        let (index, mut tables) = Index::new();
        let keys = || (1..=40u64).map(|i| (Tag(i * 7), i * 64));
        for (tag, off) in keys() {
            index.reserve(M, &mut tables, 1);
            index.add(M, &mut tables, Cell::new(tag, off));
        }
        std::thread::scope(|s| {
            s.spawn(|| {
                while stop.load(Ordering::Relaxed) == 0 {
                    for (tag, off) in keys() {
                        let seq = index.seq(M);
                        assert!(is_seen(&index, tag, off) || !index.unmoved(M, seq), "{tag:?}");
                    }
                    rounds.fetch_add(1, Ordering::Relaxed);
                }
            });
            for i in 41.. {
                index.reserve(M, &mut tables, 1);
                index.add(M, &mut tables, Cell::new(Tag(i & 0x7f_ffff), i * 64));
                if i > 200_000 && rounds.load(Ordering::Relaxed) > 100 {
                    break;
                }
                assert!(i < 20_000_000, "the reader does not run");
            }
            stop.store(1, Ordering::Relaxed);
        });
    }

    #[test]
    fn cells_are_found_while_others_come_and_go() {
        let (index, mut tables) = Index::new();
        index.reserve(M, &mut tables, 1);
        // At the end of a run that is shortened and lengthened all the time.
        let stable = Tag(3);
        let (stop, rounds) = (AtomicU64::new(0), AtomicU64::new(0));
        for i in 0..4 {
            index.add(M, &mut tables, Cell::new(Tag(i), (i + 1) * 64));
        }
        index.add(M, &mut tables, Cell::new(stable, 640));
        std::thread::scope(|s| {
            s.spawn(|| {
                while stop.load(Ordering::Relaxed) == 0 {
                    let seq = index.seq(M);
                    let found = find(&index, stable, 640).is_some();
                    assert!(found || !index.unmoved(M, seq));
                    rounds.fetch_add(1, Ordering::Relaxed);
                }
            });
            let mut turn = 0u64;
            while rounds.load(Ordering::Relaxed) < 20_000 {
                turn += 1;
                let i = turn % 4;
                if let Some(at) = find(&index, Tag(i), (i + 1) * 64) {
                    index.remove(M, &mut tables, at);
                } else {
                    index.reserve(M, &mut tables, 1);
                    index.add(M, &mut tables, Cell::new(Tag(i), (i + 1) * 64));
                }
                if turn.is_multiple_of(1000) && tables.bytes() < 1 << 20 {
                    index.grow(M, &mut tables, 1);
                }
            }
            stop.store(1, Ordering::Relaxed);
        });
    }
}
