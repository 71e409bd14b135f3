//! Damaged indices in use: words, lines and pages of an index of any kind are changed, and then everything is called that a user
//! would call. Errors are right; so are wrong values, where nothing checks them. Wrong are panics, walks that do not end or go
//! back, and calls that wait.

use std::cell::Cell;
use std::ops::Bound;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use durix::kind::{self, Entry};
use durix::{Cursor, Direction, Hardware, Index, KeyRange, Lengths, Pool, PoolOptions, Session};
use durix_pmem::backing::HeapBacking;

const CHUNK: u64 = 4096;
const LIMIT: u64 = 256 * CHUNK;
const NAME: &str = "damaged";
/// Keys of an index before it is damaged.
const KEYS: u16 = 300;
/// No walk meets more pairs: damaged links may show some twice in indices without order, but no loop is endless.
const MOST_PAIRS: usize = 100 * KEYS as usize;
/// No call takes longer. The time for which a busy machine lets the thread wait for a processor is not counted.
const LONGEST_CALL: Duration = Duration::from_secs(2);
/// What a long run allows instead: see [`longest_call`].
static LONGEST: AtomicU64 = AtomicU64::new(LONGEST_CALL.as_millis() as u64);
/// Nor do all calls of a case together: not each of them may wait for something that does not come, or go a million steps.
const LONGEST_CASE: Duration = Duration::from_secs(4);
/// How often a call has to take too long before that is a fault: a machine may have other things to do.
const TIMES_SLOW: u32 = 3;

/// One change of a pool's bytes. Places and values are taken modulo what there is.
#[derive(Clone, Copy, Debug)]
pub enum Damage {
    /// A word gets another value.
    Word(u32, u64),
    /// A word gets the value of another: a link that leads elsewhere, a count of another node.
    Copy(u32, u32),
    /// A bit of a byte is flipped.
    Bit(u32, u8),
    /// A line is zeroed.
    ZeroLine(u32),
    /// Two lines change places.
    SwapLines(u32, u32),
    /// A page is zeroed.
    ZeroPage(u32),
}

/// A pool of one kind with an index that was filled and partly emptied, as the process left it when it died.
pub struct Pristine {
    /// The kind.
    pub entry: Entry,
    image: Vec<u8>,
    /// Words that are not zero, the header left out: damage elsewhere is seldom looked at.
    words: Vec<u32>,
}

fn options() -> PoolOptions {
    let options = PoolOptions::new().chunk_size(CHUNK).lanes(1).max_indices(2).initial_size(24 * CHUNK);
    options.pool_id([1; 16]).boot_id([2; 16])
}

/// A key that the kind takes.
fn key(entry: &Entry, number: u16) -> Vec<u8> {
    let word = u64::from(number).wrapping_mul(0x9e37_79b9_7f4a_7c15).to_be_bytes();
    match entry.limits.key {
        Lengths::Exactly(_) => word.to_vec(),
        // Some share their first bytes, some are long.
        Lengths::UpTo(_) if number.is_multiple_of(5) => [b"the same beginning of", &word[..], &[7; 40]].concat(),
        Lengths::UpTo(_) => word.to_vec(),
    }
}

fn value(entry: &Entry, number: u16) -> Vec<u8> {
    match entry.limits.value {
        Lengths::Exactly(len) => vec![number as u8; len],
        Lengths::UpTo(_) => vec![number as u8; usize::from(number % 4) * 20],
    }
}

fn keys(entry: &Entry) -> u16 {
    KEYS.min(u16::try_from(entry.meant_for).unwrap_or(KEYS) / 8).max(60)
}

impl Pristine {
    fn new(entry: Entry) -> Self {
        let pool = options().create_on(HeapBacking::new(LIMIT), Hardware::PAGE_CACHE).expect("a pool");
        let index = entry.open_or_create(&pool, NAME).expect("an index");
        let mut session = pool.session().expect("a session");
        for number in 0..keys(&entry) {
            index.insert(&session.enter().expect("open"), &key(&entry, number), &value(&entry, number)).expect("room");
        }
        index.sync(&mut session).expect("a sync");
        for number in (0..keys(&entry)).step_by(4) {
            index.remove(&session.enter().expect("open"), &key(&entry, number)).expect("removed");
        }
        index.sync(&mut session).expect("a sync");
        let image = HeapBacking::image_of(pool.mapping());
        let word = |at: &u32| image[*at as usize * 8..*at as usize * 8 + 8] != [0; 8];
        let words = (512..image.len() as u32 / 8).filter(word).collect();
        Pristine { entry, image, words }
    }

    /// The words that can be damaged.
    pub fn words(&self) -> usize {
        self.words.len()
    }

    fn place(&self, number: u32) -> usize {
        self.words[number as usize % self.words.len()] as usize * 8
    }

    fn damaged(&self, damages: &[Damage]) -> Vec<u8> {
        let mut image = self.image.clone();
        let line = |number| self.place(number) / 64 * 64;
        for damage in damages {
            match *damage {
                Damage::Word(at, to) => image[self.place(at)..][..8].copy_from_slice(&to.to_le_bytes()),
                Damage::Copy(to, from) => image.copy_within(self.place(from)..self.place(from) + 8, self.place(to)),
                Damage::Bit(at, bit) => image[self.place(at) + usize::from(bit / 8 % 8)] ^= 1 << (bit % 8),
                Damage::ZeroLine(at) => image[line(at)..][..64].fill(0),
                Damage::SwapLines(a, b) => (0..64).for_each(|byte| image.swap(line(a) + byte, line(b) + byte)),
                Damage::ZeroPage(at) => image[self.place(at) / 4096 * 4096..][..4096].fill(0),
            }
        }
        image
    }

    /// Damages a copy and uses it.
    ///
    /// # Panics
    /// Where something is wrong with what calls do about it.
    pub fn damage_and_use(&self, damages: &[Damage]) {
        self.damage_and(damages, |used| used.everything());
    }

    /// Damages a copy and walks over it, in all ways there are.
    ///
    /// # Panics
    /// As [`damage_and_use`](Self::damage_and_use).
    pub fn damage_and_walk(&self, damages: &[Damage]) {
        self.damage_and(damages, |mut used| used.walks());
    }

    /// A call that took too long may have met a busy machine: it has to be slow each time.
    fn damage_and(&self, damages: &[Damage], f: fn(Use<'_>)) {
        let slow = Cell::new(None);
        for _ in 0..TIMES_SLOW {
            slow.set(None);
            self.damage_once(damages, &slow, f);
            let Some(told) = slow.take() else { return };
            slow.set(Some(told));
        }
        panic!("{}: {} after {damages:?}", self.entry.name, slow.take().unwrap_or_default());
    }

    fn damage_once(&self, damages: &[Damage], slow: &Cell<Option<String>>, f: fn(Use<'_>)) {
        let (start, starved_before) = (Instant::now(), starved());
        self.damage_unwatched(damages, slow, f);
        let took = start.elapsed();
        if took >= LONGEST_CASE && took.saturating_sub(starved() - starved_before) >= LONGEST_CASE {
            slow.set(Some(format!("all calls together took {took:?}")));
        }
    }

    fn damage_unwatched(&self, damages: &[Damage], slow: &Cell<Option<String>>, f: fn(Use<'_>)) {
        let backing = HeapBacking::from_image(self.damaged(damages)).with_limit(LIMIT);
        let watch = Watch { what: self.entry.name, damages, starved: starved(), slow };
        let opened = watch.call("open", || options().accept_unclean(true).open_on(backing, Hardware::PAGE_CACHE));
        let Ok(unrecovered) = opened else { return };
        let Ok(pool) = watch.call("recover", || unrecovered.recover()) else { return };
        let opened = watch.call("open the index", || kind::open_as_is(&pool, NAME));
        if let (Ok(index), Ok(session)) = (opened, pool.session()) {
            f(Use { entry: &self.entry, pool: &pool, index, session, watch });
        }
        let _ = watch.call("drop the index", || pool.drop_index(NAME));
        let _ = watch.call("close", || Pool::close(&pool));
    }
}

/// A pristine pool for each kind.
pub fn pristine() -> &'static [Pristine] {
    static ALL: OnceLock<Vec<Pristine>> = OnceLock::new();
    ALL.get_or_init(|| kind::kinds::<Hardware>().into_iter().map(Pristine::new).collect())
}

/// Sets how long a call of a case may take, in whole milliseconds, from now on; 2 s if nobody says anything else.
pub fn longest_call(time: Duration) {
    LONGEST.store(time.as_millis() as u64, Ordering::Relaxed);
}

/// Looks at how long calls take.
#[derive(Clone, Copy)]
struct Watch<'d> {
    what: &'static str,
    damages: &'d [Damage],
    /// For how long the thread had waited for a processor when the watch began.
    starved: Duration,
    /// What took too long.
    slow: &'d Cell<Option<String>>,
}

/// For how long this thread has been ready to run, and has not run. Zero where the system does not say.
fn starved() -> Duration {
    let told = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    Duration::from_nanos(told.split_whitespace().nth(1).and_then(|nanos| nanos.parse().ok()).unwrap_or(0))
}

impl Watch<'_> {
    fn call<T>(&self, name: &str, f: impl FnOnce() -> T) -> T {
        let start = Instant::now();
        let result = f();
        let mut took = start.elapsed();
        let longest = Duration::from_millis(LONGEST.load(Ordering::Relaxed));
        if took >= longest {
            took = took.saturating_sub(starved() - self.starved);
        }
        if took >= longest {
            self.slow.set(Some(format!("{name} took {took:?}")));
        }
        result
    }
}

struct Use<'a> {
    entry: &'a Entry,
    pool: &'a Pool,
    index: Arc<dyn Index>,
    session: Session,
    watch: Watch<'a>,
}

impl Use<'_> {
    fn everything(mut self) {
        self.look();
        self.update(0, 64);
        self.update(KEYS, KEYS + 200);
        self.look();
        let _ = self.watch.call("sync", || self.index.sync(&mut self.session));
        self.copy();
    }

    fn look(&mut self) {
        let found = self.watch.call("check", || self.index.check(&mut self.session));
        let _ = found.iter().flatten().map(ToString::to_string).collect::<Vec<_>>();
        self.walks();
        let index = Arc::clone(&self.index);
        if let Some(ordered) = index.as_ordered() {
            let (mut key, mut value) = (Vec::new(), Vec::new());
            let op = self.session.enter().expect("open");
            let _ = self.watch.call("first", || ordered.first(&op, &mut key, &mut value));
            let _ = self.watch.call("last", || ordered.last(&op, &mut key, &mut value));
        }
        let all: Vec<Vec<u8>> = (0..64).map(|number| key(self.entry, number)).collect();
        let all: Vec<&[u8]> = all.iter().map(Vec::as_slice).collect();
        let op = self.session.enter().expect("open");
        let _ = self.watch.call("get_many", || index.get_many(&op, &all, &mut |_, _| ()));
        let _ = self.watch.call("dump", || index.dump(&op, &mut String::new()));
        drop(op);
        let _ = self.watch.call("stats", || index.stats(&mut self.session));
    }

    fn walks(&mut self) {
        let index = Arc::clone(&self.index);
        let ordered = index.as_ordered();
        self.walk("walk", &mut *index.cursor(), ordered.map(|_| Direction::Forward));
        if let Some(ordered) = ordered {
            let from = key(self.entry, 21);
            let part = KeyRange::new(Bound::Excluded(&from), Bound::Unbounded);
            for (range, direction) in [KeyRange::all(), part]
                .iter()
                .flat_map(|range| [Direction::Forward, Direction::Backward].map(|direction| (range, direction)))
            {
                self.walk("range", &mut *ordered.range(range, direction), Some(direction));
            }
        }
    }

    fn walk(&mut self, name: &str, cursor: &mut dyn Cursor, direction: Option<Direction>) {
        let (mut key, mut value, mut last) = (Vec::new(), Vec::new(), None::<Vec<u8>>);
        for _ in 0..MOST_PAIRS {
            let op = self.session.enter().expect("open");
            match self.watch.call(name, || cursor.next_into(&op, &mut key, &mut value)) {
                Ok(true) => {}
                Ok(false) | Err(_) => return,
            }
            let ascends = match (direction, &last) {
                (Some(Direction::Forward), Some(last)) => *last < key,
                (Some(Direction::Backward), Some(last)) => *last > key,
                _ => true,
            };
            assert!(
                ascends,
                "{}: a {name} goes back, {direction:?} from {last:x?} to {key:x?}, after {:?}",
                self.watch.what, self.watch.damages
            );
            last = Some(key.clone());
        }
        panic!("{}: a {name} does not end after {:?}", self.watch.what, self.watch.damages);
    }

    fn update(&mut self, from: u16, to: u16) {
        for number in from..to {
            let (key, value) = (key(self.entry, number), value(self.entry, number));
            let (index, op) = (&self.index, self.session.enter().expect("open"));
            let _ = self.watch.call("get", || index.get_vec(&op, &key));
            let _ = self.watch.call("an update", || match number % 4 {
                0 => index.insert(&op, &key, &value),
                1 => index.update(&op, &key, &value),
                2 => index.compare_and_set(&op, &key, Some(&value), None),
                _ => index.remove(&op, &key),
            });
            let _ = self.watch.call("insert", || index.insert(&op, &key, &value));
        }
    }

    /// As a repair does it.
    fn copy(&mut self) {
        let target = options().create_on(HeapBacking::new(LIMIT), Hardware::PAGE_CACHE).expect("a pool");
        let to = self.entry.open_or_create(&target, NAME).expect("an index");
        let _ = self.watch.call("copy", || durix::copy::copy_index(self.pool, &self.index, &target, &to));
    }
}

/// Damages an index by an input of the fuzzer: the first byte chooses the kind, and ten follow for each damage.
pub fn damage_and_use(input: &[u8]) {
    let Some((first, rest)) = input.split_first() else { return };
    let all = pristine();
    let damages: Vec<Damage> = rest.chunks_exact(10).take(4).map(decode).collect();
    all[usize::from(*first) % all.len()].damage_and_use(&damages);
}

fn decode(bytes: &[u8]) -> Damage {
    let (at, value) = (
        u32::from(u16::from_le_bytes([bytes[1], bytes[2]])),
        u64::from_le_bytes(bytes[2..10].try_into().expect("eight")),
    );
    match bytes[0] % 8 {
        0 => Damage::Word(at, value),
        1 => Damage::Word(at, value >> 40),
        2 | 3 => Damage::Copy(at, (value >> 8) as u32 & 0xffff),
        4 => Damage::Bit(at, (value >> 8) as u8),
        5 => Damage::ZeroLine(at),
        6 => Damage::SwapLines(at, (value >> 8) as u32 & 0xffff),
        _ => Damage::ZeroPage(at),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A small generator: tests draw the same damages at each run.
    struct Random(u64);

    impl Random {
        fn next(&mut self) -> u64 {
            self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            self.0.rotate_left(32)
        }

        fn damage(&mut self) -> Damage {
            let bytes = [self.next().to_le_bytes(), self.next().to_le_bytes()].concat();
            decode(&bytes[..10])
        }
    }

    fn cases() -> u64 {
        match std::env::var("DURIX_DAMAGE_CASES") {
            Ok(number) => number.parse().expect("a number"),
            Err(_) if crate::is_deep() => 200_000,
            Err(_) => 60,
        }
    }

    fn pristine_of(kind: &str) -> &'static Pristine {
        pristine().iter().find(|pristine| pristine.entry.name == kind).expect("a kind")
    }

    /// A router of 0: the walk upwards gave the keys on the left of that branch after those that are smaller.
    #[test]
    fn a_walk_of_a_search_tree_with_a_branch_at_the_smallest_key_does_not_go_back() {
        for kind in ["bst", "bst-values"] {
            (0..64).for_each(|word| pristine_of(kind).damage_and_use(&[Damage::Word(word, 0)]));
        }
        damage_and_use(&[0x29, 0, 0x15, 0, 0, 0, 0, 0, 0, 0, 0]);
    }

    /// Each operation went a million steps round the upper levels.
    #[test]
    fn a_circle_on_an_upper_level_of_a_skip_list_is_found_soon() {
        for input in [
            [0x38, 0x0a, 0x01, 0x01, 0x00, 0xfd, 0x28, 0xff, 0xff, 0xff, 0x00],
            [0x78, 0x78, 0x78, 0x78, 0x31, 0x78, 0xd5, 0xc7, 0x2f, 0x67, 0xf5],
            [0xb8, 0x6e, 0xf2, 0xb7, 0x75, 0xaf, 0xbe, 0xe2, 0x61, 0xe9, 0x0b],
            [0x98, 0x58, 0xdf, 0xff, 0xff, 0xff, 0xfe, 0xf7, 0xda, 0xff, 0x29],
        ] {
            damage_and_use(&input);
        }
    }

    /// Words of every part of each ordered index, with the values that links, bounds and keys are wrong with most often.
    #[test]
    fn walks_of_an_ordered_index_with_a_wrong_word_keep_the_order_and_end() {
        for pristine in pristine().iter().filter(|pristine| pristine.entry.ordered) {
            let words = pristine.words() as u32;
            let places = match cases() {
                cases if cases > 60 => words,
                _ => 24,
            };
            let mut random = Random(0x0de2);
            for number in 0..places {
                let at = (u64::from(number) * u64::from(words) / u64::from(places)) as u32;
                let other = random.next() as u32;
                let damages = [
                    Damage::Word(at, 0),
                    Damage::Word(at, u64::MAX),
                    Damage::Copy(at, other),
                    Damage::Copy(at, at ^ 8),
                ];
                damages.iter().for_each(|damage| pristine.damage_and_walk(std::slice::from_ref(damage)));
            }
        }
    }

    #[test]
    fn a_damaged_index_answers_or_refuses() {
        let only = std::env::var("DURIX_DAMAGE_KIND").ok();
        for pristine in pristine().iter().filter(|p| only.as_deref().is_none_or(|only| only == p.entry.name)) {
            let mut random = Random(0x5eed);
            for _ in 0..cases() {
                let damages: Vec<Damage> = (0..1 + random.next() % 3).map(|_| random.damage()).collect();
                pristine.damage_and_use(&damages);
            }
        }
    }
}
