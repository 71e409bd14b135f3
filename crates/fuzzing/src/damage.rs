//! Damaged indices in use: words, lines and pages of an index of any kind are changed, and then everything is called that a user
//! would call. Errors are right; so are wrong values, where nothing checks them. Wrong are panics, walks that do not end or go
//! back, calls that wait, and a repair whose new pool is not sound.
//!
//! Half of the damages are made where a pool is most sensitive: words that look like links into the pool, and words that look like counts,
//! lengths or states, are told by their values (`Words`). What is called after that is a `Plan`, drawn from the damages.

mod files;
mod uses;

use std::cell::Cell;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use durix::kind::{self, Entry};
use durix::repair::salvage_into;
use durix::{DbBuilder, Hardware, Lengths, Pool, PoolOptions};
use durix_pmem::backing::HeapBacking;

pub use files::{Files, damage_files};
use uses::Use;

const CHUNK: u64 = 4096;
const LIMIT: u64 = 256 * CHUNK;
const NAME: &str = "damaged";
/// The other index of a pool with transactions.
const SECOND: &str = "second";
/// Keys of an index before it is damaged.
const KEYS: u16 = 300;
/// No walk meets more pairs: damaged links may show some twice in indices without order, but no loop is endless.
const MOST_PAIRS: usize = 100 * KEYS as usize;
/// No call takes longer, in tests: these run beside others, without optimisation, on any machine. A long run on a quiet machine allows
/// less ([`longest_call`]). The time for which a busy machine lets the thread wait for a processor is not counted.
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
    /// Two pages change places.
    SwapPages(u32, u32),
    /// A page gets the bytes of another.
    CopyPage(u32, u32),
    /// A link leads where another one leads.
    Link(u32, u32),
    /// A link leads so many bytes further.
    LinkBy(u32, i16),
    /// A link leads to its own line, or to a line of its page.
    LinkHome(u32, u8),
    /// A word of counts, lengths or states gets another value in so many bits (1 to 16) from one on.
    Field(u32, u8, u16),
}

/// Where damage is worth it: numbers of words.
struct Words {
    /// Words that are not zero, the header left out: damage elsewhere is seldom looked at.
    used: Vec<u32>,
    /// Those of them whose value, without marks in the low bits and the highest 16, is an offset in the pool's heap.
    links: Vec<u32>,
    /// Those whose upper half is zero, or that have few bits: counts, lengths, bitmaps, states.
    counts: Vec<u32>,
}

impl Words {
    /// Those from a place on.
    fn of(image: &[u8], from: u64) -> Self {
        let word = |at: u32| u64::from_le_bytes(image[at as usize * 8..][..8].try_into().expect("eight"));
        let used: Vec<u32> = (from as u32 / 8..image.len() as u32 / 8).filter(|at| word(*at) != 0).collect();
        let leads_into_the_pool = |at: &u32| (CHUNK..image.len() as u64).contains(&(word(*at) << 16 >> 16 & !7));
        let is_small = |at: &u32| word(*at) >> 32 == 0 || word(*at).count_ones() < 12;
        let links = used.iter().copied().filter(leads_into_the_pool).collect();
        let counts = used.iter().copied().filter(is_small).collect();
        Words { used, links, counts }
    }

    /// The byte at which a word lies, of one of these lists.
    fn place(list: &[u32], number: u32) -> usize {
        list[number as usize % list.len()] as usize * 8
    }
}

/// What is called, in bits.
#[derive(Clone, Copy, Debug)]
struct Plan(u64);

impl Plan {
    const LOOK_FIRST: u32 = 0;
    const UPDATE: u32 = 1;
    const SPLIT: u32 = 2;
    const MERGE: u32 = 3;
    const REOPEN_INDEX: u32 = 4;
    const REOPEN_POOL: u32 = 5;
    const CRASH: u32 = 6;
    const REPAIR: u32 = 7;
    const REPAIR_USED: u32 = 8;
    const CLEAR: u32 = 9;

    /// The same for the same damages everywhere.
    fn of(damages: &[Damage]) -> Self {
        let bytes = format!("{damages:?}").into_bytes();
        let mixed = bytes
            .into_iter()
            .fold(0xcbf2_9ce4_8422_2325_u64, |mixed, byte| (mixed ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3));
        Plan(mixed ^ mixed >> 32)
    }

    fn has(self, step: u32) -> bool {
        self.0 >> step & 1 == 1
    }
}

/// A pool of one kind with an index that was filled and partly emptied, as the process left it when it died.
pub struct Pristine {
    /// The kind.
    pub entry: Entry,
    /// Whether there is a second index beside it, and a log of transactions over both.
    transactions: bool,
    image: Vec<u8>,
    words: Words,
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

/// Keys that lie together, between two of the others.
fn near_key(entry: &Entry, number: u16) -> Vec<u8> {
    let mut key = key(entry, 21);
    let last = key.len() - 2;
    key[last..].copy_from_slice(&number.to_be_bytes());
    key
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

/// Fills an index, and removes a fourth again.
fn fill(entry: &Entry, pool: &Pool) {
    let index = entry.open_or_create(pool, NAME).expect("an index");
    let mut session = pool.session().expect("a session");
    for number in 0..keys(entry) {
        index.insert(&session.enter().expect("open"), &key(entry, number), &value(entry, number)).expect("room");
    }
    index.sync(&mut session).expect("a sync");
    for number in (0..keys(entry)).step_by(4) {
        index.remove(&session.enter().expect("open"), &key(entry, number)).expect("removed");
    }
    index.sync(&mut session).expect("a sync");
}

fn database() -> DbBuilder {
    DbBuilder::default().no_background_threads().lock_timeout(Duration::from_millis(1))
}

/// Changes both indices of a pool in transactions.
fn transact(db: &durix::Db, entry: &Entry, numbers: std::ops::Range<u16>) -> durix::Result<()> {
    let (first, second) = (db.open_index(NAME, Some(entry.name))?, db.open_index(SECOND, Some("pset"))?);
    for number in numbers {
        db.transaction(|tx| {
            tx.index(&first)?.insert(&key(entry, number), &value(entry, number))?;
            tx.index(&second)?.insert(&number.to_be_bytes(), &[number as u8; 30])?;
            Ok(())
        })?;
    }
    Ok(())
}

impl Pristine {
    fn new(entry: Entry, transactions: bool) -> Self {
        let options = if transactions { options().max_indices(4).initial_size(32 * CHUNK) } else { options() };
        let pool = options.create_on(HeapBacking::new(LIMIT), Hardware::PAGE_CACHE).expect("a pool");
        fill(&entry, &pool);
        // Neither is closed: their process died.
        let db = transactions.then(|| database().over(pool.clone()).expect("a database"));
        if let Some(db) = &db {
            transact(db, &entry, 0..40).expect("room");
        }
        let image = HeapBacking::image_of(pool.mapping());
        let words = Words::of(&image, 4096);
        Pristine { entry, transactions, image, words }
    }

    /// The words that can be damaged.
    pub fn words(&self) -> usize {
        self.words.used.len()
    }

    fn damaged(&self, damages: &[Damage]) -> Vec<u8> {
        let mut image = self.image.clone();
        damages.iter().for_each(|damage| damage.apply(&mut image, &self.words));
        image
    }

    /// Damages a copy and uses it.
    ///
    /// # Panics
    /// Where something is wrong with what calls do about it.
    pub fn damage_and_use(&self, damages: &[Damage]) {
        self.damage_and(damages, |used, plan| used.everything(plan), Plan::of(damages));
    }

    /// Damages a copy and walks over it, in all ways there are.
    ///
    /// # Panics
    /// As [`damage_and_use`](Self::damage_and_use).
    pub fn damage_and_walk(&self, damages: &[Damage]) {
        self.damage_and(damages, |mut used, _| used.walks(), Plan(0));
    }

    /// A call that took too long may have met a busy machine: it has to be slow each time.
    fn damage_and(&self, damages: &[Damage], f: fn(Use<'_>, Plan), plan: Plan) {
        let slow = Cell::new(None);
        for _ in 0..TIMES_SLOW {
            slow.set(None);
            self.damage_once(damages, &slow, f, plan);
            let Some(told) = slow.take() else { return };
            slow.set(Some(told));
        }
        panic!("{}: {} after {damages:?}", self.entry.name, slow.take().unwrap_or_default());
    }

    fn damage_once(&self, damages: &[Damage], slow: &Cell<Option<String>>, f: fn(Use<'_>, Plan), plan: Plan) {
        let longest = Duration::from_millis(LONGEST.load(Ordering::Relaxed));
        let watch = Watch { what: self.entry.name, damages, longest, starved: starved(), slow };
        let start = Instant::now();
        let damaged = self.damaged(damages);
        if plan.has(Plan::REPAIR) {
            self.repair(damaged.clone(), &watch);
        }
        if let Some(left) = self.use_once(damaged, &watch, f, plan) {
            let left = if plan.has(Plan::REOPEN_POOL) {
                self.use_once(left, &watch, f, Plan(plan.0 >> 10))
            } else {
                Some(left)
            };
            if let Some(left) = left.filter(|_| plan.has(Plan::REPAIR_USED)) {
                self.repair(left, &watch);
            }
        }
        let took = start.elapsed();
        if took >= LONGEST_CASE && took.saturating_sub(starved() - watch.starved) >= LONGEST_CASE {
            slow.set(Some(format!("all calls together took {took:?}")));
        }
    }

    /// Opens an image for writing, uses the index, and closes the pool, if it does not crash. Returns what it leaves.
    fn use_once(&self, image: Vec<u8>, watch: &Watch<'_>, f: fn(Use<'_>, Plan), plan: Plan) -> Option<Vec<u8>> {
        let backing = HeapBacking::from_image(image).with_limit(LIMIT);
        let opened = watch.call("open", || options().accept_unclean(true).open_on(backing, Hardware::PAGE_CACHE));
        let pool = watch.call("recover", || opened.ok()?.recover().ok())?;
        if self.transactions && watch.call("recover transactions", || durix::recover(&pool)).is_err() {
            pool.accept_pending_records();
        }
        let opened = watch.call("open the index", || kind::open_as_is(&pool, NAME));
        if let (Ok(index), Ok(session)) = (opened, pool.session()) {
            f(Use { entry: &self.entry, pool: &pool, index, session, watch: *watch }, plan);
        }
        if self.transactions {
            self.transact(&pool, watch);
        }
        // What was left is used by itself: in this process the index goes where its pool was not closed.
        let left = plan.has(Plan::CRASH).then(|| {
            let left = HeapBacking::image_of(pool.mapping());
            let _ = watch.call("drop the index", || pool.drop_index(NAME));
            left
        });
        let _ = watch.call("close", || Pool::close(&pool));
        Some(left.unwrap_or_else(|| HeapBacking::image_of(pool.mapping())))
    }

    /// Both indices in transactions, and as a snapshot shows them.
    fn transact(&self, pool: &Pool, watch: &Watch<'_>) {
        let Ok(db) = watch.call("a database", || database().over(pool.clone())) else { return };
        let _ = watch.call("transactions", || transact(&db, &self.entry, 30..50));
        let Ok(snapshot) = watch.call("a snapshot", || db.snapshot()) else { return };
        for name in [NAME, SECOND] {
            let Ok(index) = db.open_index(name, None) else { continue };
            let Ok(view) = snapshot.index(&index) else { continue };
            let pairs =
                watch.call("a snapshot's pairs", || view.iter().take(MOST_PAIRS).take_while(Result::is_ok).count());
            assert!(pairs < MOST_PAIRS, "{}: a snapshot does not end after {:?}", watch.what, watch.damages);
        }
    }

    /// What `durix repair` does, with the pool opened for reading as the command opens it.
    fn repair(&self, image: Vec<u8>, watch: &Watch<'_>) {
        let backing = HeapBacking::from_image(image).with_limit(LIMIT);
        let opened = watch.call("open to read", || {
            let options = options().for_repair();
            options.open_on(backing, Hardware::PAGE_CACHE)?.recover()
        });
        if let Ok(source) = opened {
            repaired(&source, watch);
        }
    }
}

/// Repairs a pool; the new one has to be sound.
fn repaired(source: &Pool, watch: &Watch<'_>) {
    let (what, damages) = (watch.what, watch.damages);
    let options = options().max_indices(4);
    let target = options.create_on(HeapBacking::new(2 * LIMIT), Hardware::PAGE_CACHE).expect("a pool");
    let repaired = watch.call("repair", || salvage_into(source, &target));
    let repaired = repaired.unwrap_or_else(|error| panic!("{what}: repair fails: {error}, after {damages:?}"));
    for saved in &repaired.indices {
        assert!(saved.entries < MOST_PAIRS as u64, "{what}: repair saves {} entries after {damages:?}", saved.entries);
        // An index that cannot be read is not in the new pool.
        let Ok(index) = kind::open_as_is(&target, &saved.name) else { continue };
        let found = index.check(&mut target.session().expect("a session")).expect("readable");
        assert_eq!(found, [], "{what}: a repaired index is damaged after {damages:?}");
    }
}

impl Damage {
    fn apply(&self, image: &mut [u8], words: &Words) {
        let place = |number| Words::place(&words.used, number);
        let line = |number| place(number) / 64 * 64;
        let page = |number| place(number) / 4096 * 4096;
        let link = |number| Words::place(if words.links.is_empty() { &words.used } else { &words.links }, number);
        let count = |number| Words::place(if words.counts.is_empty() { &words.used } else { &words.counts }, number);
        let read = |image: &[u8], at: usize| u64::from_le_bytes(image[at..at + 8].try_into().expect("eight"));
        let write = |image: &mut [u8], at: usize, word: u64| image[at..at + 8].copy_from_slice(&word.to_le_bytes());
        match *self {
            Damage::Word(at, to) => write(image, place(at), to),
            Damage::Copy(to, from) => image.copy_within(place(from)..place(from) + 8, place(to)),
            Damage::Bit(at, bit) => image[place(at) + usize::from(bit / 8 % 8)] ^= 1 << (bit % 8),
            Damage::ZeroLine(at) => image[line(at)..][..64].fill(0),
            Damage::SwapLines(a, b) => (0..64).for_each(|byte| image.swap(line(a) + byte, line(b) + byte)),
            Damage::ZeroPage(at) => image[page(at)..][..4096].fill(0),
            Damage::SwapPages(a, b) => (0..4096).for_each(|byte| image.swap(page(a) + byte, page(b) + byte)),
            Damage::CopyPage(to, from) => image.copy_within(page(from)..page(from) + 4096, page(to)),
            Damage::Link(to, from) => image.copy_within(link(from)..link(from) + 8, link(to)),
            Damage::LinkBy(at, by) => {
                let word = read(image, link(at));
                write(image, link(at), word.wrapping_add_signed(i64::from(by)));
            }
            Damage::LinkHome(at, to) => {
                let kept = read(image, link(at)) & (0xffff << 48 | 7);
                let home = link(at) / 4096 * 4096 + usize::from(to % 64) * 64;
                let home = if to < 128 { link(at) / 64 * 64 } else { home };
                write(image, link(at), home as u64 | kept);
            }
            Damage::Field(at, from, to) => {
                let (from, len) = (u32::from(from) % 64, 1 + u32::from(to) % 16);
                let mask = ((1 << len) - 1_u64) << from;
                let word = read(image, count(at));
                write(image, count(at), word & !mask | u64::from(to) << from & mask);
            }
        }
    }
}

/// A pristine pool for each kind, and then one with transactions for each.
pub fn pristine() -> &'static [Pristine] {
    static ALL: OnceLock<Vec<Pristine>> = OnceLock::new();
    ALL.get_or_init(|| {
        let of_all = |transactions| kind::kinds::<Hardware>().into_iter().map(move |e| Pristine::new(e, transactions));
        of_all(false).chain(of_all(true)).collect()
    })
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
    longest: Duration,
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
        if took >= self.longest {
            took = took.saturating_sub(starved() - self.starved);
        }
        if took >= self.longest {
            self.slow.set(Some(format!("{name} took {took:?}")));
        }
        result
    }
}

/// Damages an index by an input of the fuzzer: the first byte chooses the kind, and ten follow for each damage.
pub fn damage_and_use(input: &[u8]) {
    let Some((first, rest)) = input.split_first() else { return };
    let (all, kinds) = (pristine(), pristine().len() / 2);
    let damages: Vec<Damage> = rest.chunks_exact(10).take(4).map(decode).collect();
    let first = usize::from(*first);
    // One of four has transactions.
    let transactions = first / kinds % 4 == 3;
    all[first % kinds + if transactions { kinds } else { 0 }].damage_and_use(&damages);
}

fn decode(bytes: &[u8]) -> Damage {
    let (at, value) = (
        u32::from(u16::from_le_bytes([bytes[1], bytes[2]])),
        u64::from_le_bytes(bytes[2..10].try_into().expect("eight")),
    );
    let other = (value >> 8) as u32 & 0xffff;
    if bytes[0] >= 128 {
        return match bytes[0] % 8 {
            0 | 1 => Damage::Link(at, other),
            2 => Damage::LinkBy(
                at,
                [8, 16, 64, 256, 4096, -8, -64, -4096, 1, 2, 4, 128, 320, 512, -512, 24][other as usize % 16],
            ),
            3 => Damage::LinkHome(at, other as u8),
            4 | 5 => Damage::Field(at, (value >> 24) as u8, (value >> 32) as u16),
            6 => Damage::SwapPages(at, other),
            _ => Damage::CopyPage(at, other),
        };
    }
    match bytes[0] % 8 {
        0 => Damage::Word(at, value),
        1 => Damage::Word(at, value >> 40),
        2 | 3 => Damage::Copy(at, other),
        4 => Damage::Bit(at, (value >> 8) as u8),
        5 => Damage::ZeroLine(at),
        6 => Damage::SwapLines(at, other),
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

    /// A record was given the block of the node that was to lead to it; the node was full, and then it was not.
    #[test]
    fn a_block_of_a_full_node_that_is_given_out_again_is_no_panic() {
        let text = "a395f245f46e59ee1290afd548db8bc5bc7a01022380805b39333b443d767a";
        let bytes = (0..text.len()).step_by(2).map(|at| u8::from_str_radix(&text[at..at + 2], 16).unwrap());
        damage_and_use(&bytes.collect::<Vec<u8>>());
    }

    /// Each file of a journaled pool of every kind, closed and not.
    #[test]
    fn a_damaged_journaled_pool_answers_or_refuses() {
        let directory = tempfile::tempdir().unwrap();
        let mut random = Random(0xf11e);
        let rounds = if crate::is_deep() { 600 } else { 6 };
        for (kind, round) in
            (0..kind::kinds::<Hardware>().len() as u8).flat_map(|kind| (0..rounds).map(move |r| (kind, r)))
        {
            let damages = [random.next(), random.next(), random.next()].map(u64::to_le_bytes).concat();
            damage_files(directory.path(), &[&[kind, (round % 6) as u8], &damages[..20]].concat());
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
