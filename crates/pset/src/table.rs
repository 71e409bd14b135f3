//! The volatile index of one shard: an open-addressing table of 64-bit cells, written under the shard's lock, read
//! without any.
//!
//! A cell holds the line number of an entry (40 bits) and a tag (the top 24 bits of the key's hash); 0 is empty. A key's
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
//! Tables that were outgrown stay until the set is dropped, because a reader may still be in one; as sizes double, they
//! take less than the current one.

use std::sync::atomic::{AtomicU64, Ordering};

use durix_pmem::{LINE, Medium};

/// Bits of a cell that hold the line number; the tag is above.
const LINE_BITS: u32 = 40;
const TAG_BITS: u32 = 64 - LINE_BITS;
const CELLS_A_LINE: usize = 8;
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
        Tag(hash >> LINE_BITS)
    }
}

/// A cell's content.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Cell(u64);

impl Cell {
    /// An entry at `off`, a multiple of the line size below [`MAX_OFF`].
    #[inline(always)]
    pub(super) fn new(tag: Tag, off: u64) -> Cell {
        Cell((tag.0 << LINE_BITS) | (off / LINE as u64))
    }

    #[inline(always)]
    pub(super) fn tag(self) -> Tag {
        Tag(self.0 >> LINE_BITS)
    }

    /// Where the entry lies.
    #[inline(always)]
    pub(super) fn off(self) -> u64 {
        (self.0 & ((1 << LINE_BITS) - 1)) * LINE as u64
    }
}

#[derive(Debug, Default)]
#[repr(align(64))]
#[expect(dead_code, reason = "read as a slice of words, see `Index::cells`")]
struct CellLine([AtomicU64; CELLS_A_LINE]);

/// The part of a shard's index that readers see.
#[derive(Debug)]
pub(super) struct Index {
    /// Odd while cells move.
    seq: AtomicU64,
    /// Address of the current table, a multiple of 64, plus the binary logarithm of its number of cells.
    table: AtomicU64,
}

/// The part that the holder of the shard's lock owns: all tables so far, the current one last.
#[derive(Debug)]
pub(super) struct Tables {
    tables: Vec<Box<[CellLine]>>,
    used: usize,
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

    /// Puts a cell into the first empty place for its tag.
    #[inline]
    fn put<M: Medium>(self, m: M, cell: Cell) {
        let mut at = self.home(cell.tag());
        for _ in 0..self.cells.len() {
            if self.load(m, at).is_none() {
                return self.store(m, at, cell);
            }
            at = (at + 1) & self.mask();
        }
        unreachable!("a table is never full");
    }

    /// All cells that are not empty.
    pub(super) fn iter<M: Medium>(self, m: M) -> impl Iterator<Item = Cell> + 'a {
        (0..self.cells.len()).filter_map(move |at| self.load(m, at))
    }
}

impl Index {
    /// An empty index, and what its writer owns.
    pub(super) fn new() -> (Index, Tables) {
        let first = new_table(CELLS_A_LINE);
        let index = Index { seq: AtomicU64::new(0), table: AtomicU64::new(word_of(&first)) };
        (index, Tables { tables: vec![first], used: 0 })
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

    /// The current table's cells.
    #[inline(always)]
    pub(super) fn cells<M: Medium>(&self, m: M) -> Cells<'_> {
        self.cells_of(m.shared_load(&self.table, Ordering::Acquire))
    }

    #[inline(always)]
    fn cells_of(&self, word: u64) -> Cells<'_> {
        let len = 1usize << (word & 63);
        let first = std::ptr::with_exposed_provenance::<AtomicU64>((word & !63) as usize);
        // SAFETY: the word was made by `word_of` from a table of `len` cells, which stays in `Tables` until the shard is
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

    /// Makes room for `more` cells.
    #[inline]
    pub(super) fn reserve<M: Medium>(&self, m: M, tables: &mut Tables, more: usize) {
        let len = self.cells(m).cells.len();
        if tables.used + more > len / 4 * 3 {
            self.grow(m, tables, more);
        }
    }

    #[cold]
    fn grow<M: Medium>(&self, m: M, tables: &mut Tables, more: usize) {
        let old = self.cells(m);
        let len = (old.cells.len() * 2).max(((tables.used + more) * 4 / 3 + 1).next_power_of_two());
        let table = new_table(len);
        let word = word_of(&table);
        tables.tables.push(table);
        let fresh = Index { seq: AtomicU64::new(0), table: AtomicU64::new(word) };
        let cells = fresh.cells(m);
        old.iter(m).for_each(|cell| cells.put(m, cell));
        m.shared_store(&self.table, word, Ordering::Release);
        // Until this store, both tables say the same; a reader that began in the old one and ends after it tries again.
        self.bump(m, Ordering::Release);
        self.bump(m, Ordering::Release);
    }

    /// The place of the cell that names `off`.
    pub(super) fn find_off<M: Medium>(&self, m: M, tag: Tag, off: u64) -> Option<usize> {
        let cells = self.cells(m);
        let mut probe = cells.probe(tag);
        while let Some((at, cell)) = cells.next(m, &mut probe) {
            if cell.off() == off {
                return Some(at);
            }
        }
        None
    }

    /// Adds a cell, for which room must have been made.
    #[inline]
    pub(super) fn add<M: Medium>(&self, m: M, tables: &mut Tables, cell: Cell) {
        tables.used += 1;
        self.cells(m).put(m, cell);
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
        self.tables.iter().map(|t| size_of_val(&**t)).sum()
    }
}

fn new_table(cells: usize) -> Box<[CellLine]> {
    (0..cells / CELLS_A_LINE).map(|_| CellLine::default()).collect()
}

fn word_of(table: &[CellLine]) -> u64 {
    let cells = table.len() * CELLS_A_LINE;
    table.as_ptr().expose_provenance() as u64 | u64::from(cells.trailing_zeros())
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

    proptest! {
        #[test]
        fn holds_what_a_map_holds(ops in prop::collection::vec((any::<bool>(), 0u64..40, 0u64..3), 0..400)) {
            let (index, mut tables) = Index::new();
            let mut model = BTreeMap::new();
            for (add, key, spread) in ops {
                // Few homes, many tags: long runs and gaps that have to be closed across the end of the table.
                let (tag, off) = (Tag(key % 5 + (spread << 20)), (key + 1) * 64);
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
            prop_assert_eq!(index.cells(M).iter(M).count(), model.len());
        }
    }

    #[test]
    fn homes_stay_in_bounds_where_there_are_more_cells_than_tags() {
        // Only the arithmetic: a table of 2^26 cells is not made here.
        let log = 26;
        let home = ((1usize << TAG_BITS) - 1) << (log - TAG_BITS);
        assert!(home < 1 << log);
        assert_eq!(Cell::new(Tag::of(u64::MAX), MAX_OFF - 64).off(), MAX_OFF - 64);
        assert_eq!(Cell::new(Tag::of(u64::MAX), 64).tag(), Tag(0xff_ffff));
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
            index.add(M, &mut tables, Cell::new(Tag(i.wrapping_mul(0x9e37_79b9) & 0xff_ffff), i * 64));
        }
        assert_eq!(index.cells(M).cells.len(), 8192);
        assert!(tables.bytes() < 2 * 8192 * 8);
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
