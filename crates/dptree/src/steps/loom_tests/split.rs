//! A range that is split: one key, with its record and its entry, goes from the first range to the second, which only the next directory has.

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
}

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
        })
    }

    /// Makes the second range, with what the first one had.
    fn split(&self) {
        let mut lower = self.inner[0].lock().unwrap();
        {
            let mut upper = self.inner[1].lock().unwrap();
            *upper = std::mem::take(&mut *lower);
            self.oldest[1].store(upper.oldest, Release);
        }
        publish(Split(self));
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

    /// Appends another record for the key, and seals its page.
    fn append(&self) {
        let mut upper = self.inner[1].lock().unwrap();
        upper.oldest = self.clock.load(Acquire);
        self.oldest[1].store(upper.oldest, Release);
        self.sealed.store(self.clock.fetch_add(1, AcqRel), Relaxed);
    }
}

struct Split<'a>(&'a Tree);

impl Publication for Split<'_> {
    fn show_directory(&self) {
        published::replace(&self.0.directory, 2);
    }
    fn tell_oldest(&self) {
        self.0.oldest[0].store(NO_RECORD, Release);
    }
    fn show_snapshot(self) {
        published::replace(&self.0.snapshot, 1);
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
