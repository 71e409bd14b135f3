//! A range that is split: one key, with its record and its entry, goes from the first range to the second, which only the next directory has.
//! So does the slot of another key, in a leaf that both ranges reach until the first one's snapshot is replaced.

use super::*;

/// A place whose object is a number.
struct Number(AtomicU64);

impl Place for Number {
    type Object = u64;

    fn swap(&self, new: u64) -> u64 {
        self.0.swap(new, AcqRel)
    }
    fn load(&self) -> u64 {
        self.0.load(Relaxed)
    }
    fn order(&self) {
        fence(Release);
    }
    fn acquire(&self) {
        fence(Acquire);
    }
}

const NO_RECORD: u64 = 100;
/// The clock at the key's record.
const RECORD: u64 = 1;

/// What the holder of a range's lock owns.
#[derive(Debug, Default)]
struct Owned {
    /// The key's value in the active front.
    value: Option<u64>,
    oldest: u64,
}

struct Tree {
    /// The number of ranges. The last one has the key.
    directory: Number,
    /// Whether the first range has the key no more.
    snapshot: Number,
    clock: AtomicU64,
    oldest: [AtomicU64; 2],
    inner: [Mutex<Owned>; 2],
    /// The clock at the last record of the page that was sealed.
    sealed: AtomicU64,
    /// The leaf's slot.
    slot: AtomicU64,
}

/// In the slot: what it holds first, and what a merge of the second range stores there.
const MINE: u64 = 2;
const ANOTHERS: u64 = 3;

impl Tree {
    fn new() -> Arc<Self> {
        let owned = |value, oldest| Mutex::new(Owned { value, oldest });
        Arc::new(Tree {
            directory: Number(AtomicU64::new(1)),
            snapshot: Number(AtomicU64::new(0)),
            clock: AtomicU64::new(RECORD),
            oldest: [AtomicU64::new(RECORD), AtomicU64::new(NO_RECORD)],
            inner: [owned(Some(2), RECORD), owned(None, NO_RECORD)],
            sealed: AtomicU64::new(NO_RECORD),
            slot: AtomicU64::new(MINE),
        })
    }

    /// Makes the second range, with what the first one had.
    fn split(&self) {
        self.split_by(true);
    }

    fn split_by(&self, holds: bool) {
        let mut lower = self.inner[0].lock().unwrap();
        {
            let mut upper = self.inner[1].lock().unwrap();
            *upper = std::mem::take(&mut *lower);
            self.oldest[1].store(upper.oldest, Release);
        }
        publish(Split { tree: self, holds });
        drop(lower);
    }

    /// The value of the key, as the front says that has it.
    fn get(&self) -> u64 {
        loop {
            let ranges = self.directory.0.load(Acquire);
            if ranges == 2 {
                return self.inner[1].lock().unwrap().value.unwrap();
            }
            let lower = self.inner[0].lock().unwrap();
            if self.snapshot.0.load(Acquire) == 0 {
                return lower.value.unwrap();
            }
            assert_eq!(self.directory.0.load(Acquire), 2, "the key is in no range");
        }
    }

    /// Merges the second range, if it is there: the slot is used again.
    fn merge_upper(&self) {
        if self.directory.0.load(Acquire) == 2 {
            drop(self.inner[1].lock().unwrap());
            self.snapshot.order();
            self.slot.store(ANOTHERS, Relaxed);
        }
    }

    /// What a lookup finds in the slot by the first range's snapshot, if that is still the current one.
    fn look_into_the_slot(&self) -> Option<u64> {
        let snapshot = self.snapshot.load();
        self.snapshot.acquire();
        let found = self.slot.load(Relaxed);
        (snapshot == 0 && published::is_still(&self.snapshot, snapshot)).then_some(found)
    }

    /// Appends another record for the key, and seals its page.
    fn append(&self) {
        let mut upper = self.inner[1].lock().unwrap();
        upper.oldest = self.clock.load(Acquire);
        self.oldest[1].store(upper.oldest, Release);
        self.sealed.store(self.clock.fetch_add(1, AcqRel), Relaxed);
    }
}

struct Split<'a> {
    tree: &'a Tree,
    holds: bool,
}

impl<'a> Publication for Split<'a> {
    type Held = Option<MutexGuard<'a, Owned>>;

    fn hold(&self) -> Self::Held {
        self.holds.then(|| self.tree.inner[1].lock().unwrap())
    }
    fn show_directory(&self) {
        published::replace(&self.tree.directory, 2);
    }
    fn tell_oldest(&self) {
        self.tree.oldest[0].store(NO_RECORD, Release);
    }
    fn show_snapshot(self) {
        published::replace(&self.tree.snapshot, 1);
    }
}

impl Records for Tree {
    type Directory = u64;

    fn clock(&self) -> u64 {
        self.clock.load(Acquire)
    }
    fn directory(&self) -> u64 {
        self.directory.0.load(Acquire)
    }
    fn oldest(&self, directory: u64) -> u64 {
        let oldest = self.oldest[..directory as usize].iter().map(|word| word.load(Acquire)).min();
        oldest.unwrap()
    }
    fn is_current(&self, directory: u64) -> bool {
        published::is_still(&self.directory, directory)
    }
}

fn explore(one: fn(&Tree), other: fn(&Tree)) {
    loom::model(move || {
        let tree = Tree::new();
        let beside = {
            let tree = Arc::clone(&tree);
            loom::thread::spawn(move || one(&tree))
        };
        other(&tree);
        beside.join().unwrap();
    });
}

#[test]
fn loom_a_key_is_found_before_and_after_its_range_is_split() {
    explore(Tree::split, |tree| assert_eq!(tree.get(), 2));
}

#[test]
fn loom_no_oldest_record_is_missed_in_a_split() {
    explore(Tree::split, |tree| {
        tree.clock.store(5, Relaxed);
        assert_eq!(oldest_needed(tree), RECORD);
    });
}

#[test]
fn loom_a_page_is_not_free_while_its_record_is_needed() {
    explore(
        |tree| {
            tree.split();
            // As if the first record had been merged.
            tree.oldest[1].store(NO_RECORD, Release);
            tree.append();
        },
        |tree| {
            let oldest = oldest_needed(tree);
            let sealed = tree.sealed.load(Relaxed);
            assert!(sealed >= oldest, "a page is free whose last record was appended at {sealed}, {oldest} is needed");
        },
    );
}

/// A split, a merge of the new range, and a lookup that has found the range before.
fn merge_of_the_new_range(holds: bool) {
    loom::model(move || {
        let tree = Tree::new();
        let [splits, merges] = [Arc::clone(&tree), Arc::clone(&tree)];
        let splits = loom::thread::spawn(move || splits.split_by(holds));
        let merges = loom::thread::spawn(move || merges.merge_upper());
        assert!(tree.look_into_the_slot().is_none_or(|found| found == MINE));
        splits.join().unwrap();
        merges.join().unwrap();
    });
}

#[test]
fn loom_a_new_range_is_merged_after_the_old_snapshot_was_replaced() {
    merge_of_the_new_range(true);
}

#[test]
#[should_panic]
fn loom_a_new_range_that_is_merged_at_once_takes_a_readers_slot() {
    merge_of_the_new_range(false);
}
