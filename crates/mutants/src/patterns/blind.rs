//! Faults of the kinds that tests are apt not to ask for. Each is planted where the usual question does not see it, and where
//! the question of its class does: a pattern whose usual question sees it, too, is in the wrong file, and says so.
//!
//! The questions are those of `crates/kindtests`, which asks them of every kind of index.

use std::marker::PhantomData;
use std::sync::atomic::Ordering::{Relaxed, Release};

use durix_crashsim::{Contract, Explorer};
use durix_pmem::{Medium, Op};

use super::pattern::{Host, Map, Pattern, word};

/// All of them have one bug: it is there or not.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Planted;

type Bug = Option<Planted>;

fn put<M: Medium>(op: &Op<'_, M>, off: u64, value: u64) {
    op.store(word(op, off), value, Release);
    op.persist(word(op, off));
}

fn get<M: Medium>(op: &Op<'_, M>, off: u64) -> u64 {
    op.load(word(op, off), Relaxed)
}

/// A structure of one session and no volatile state, which most of these are.
trait Simple: Sized + 'static {
    type Do: Copy + std::fmt::Debug + 'static;
    fn recover<M: Medium>(op: &Op<'_, M>, bug: Bug) -> Result<(), String>;
    fn apply<M: Medium>(op: &Op<'_, M>, bug: Bug, what: Self::Do) -> Option<u64>;
    fn contents<M: Medium>(op: &Op<'_, M>) -> Map;
    fn step(model: &mut Map, what: Self::Do) -> Option<u64>;
    fn acknowledges(_: Self::Do) -> bool {
        true
    }
}

struct Of<S>(PhantomData<S>);

impl<S: Simple> Host for Of<S> {
    type Bug = Planted;
    type Do = S::Do;
    type Volatile = ();

    fn create<M: Medium>(_: &Op<'_, M>, _: Bug) {}
    fn recover<M: Medium>(op: &Op<'_, M>, bug: Bug) -> Result<(), String> {
        S::recover(op, bug)
    }
    fn apply<M: Medium>((op, _): (&Op<'_, M>, &Op<'_, M>), (): &mut (), bug: Bug, what: S::Do) -> Option<u64> {
        S::apply(op, bug, what)
    }
    fn contents<M: Medium>(op: &Op<'_, M>) -> Map {
        S::contents(op)
    }
    fn step(model: &mut Map, what: S::Do) -> Option<u64> {
        S::step(model, what)
    }
    fn acknowledges(what: S::Do) -> bool {
        S::acknowledges(what)
    }
}

// ---- the first operations after a restart ----

/// Two words that change together. Their old values are noted, which counts while the page is active; the first operation of
/// a session makes it so.
struct Pages;

#[derive(Clone, Copy, Debug)]
struct Both(u64);

const ACTIVE: u64 = 64;
const NOTED: u64 = 128;
const NOTES: [u64; 2] = [192, 256];
const WORDS: [u64; 2] = [320, 384];

impl Host for Pages {
    type Bug = Planted;
    type Do = Both;
    /// Whether this process has made the page active.
    type Volatile = bool;

    fn create<M: Medium>(_: &Op<'_, M>, _: Bug) -> bool {
        false
    }

    fn recover<M: Medium>(op: &Op<'_, M>, bug: Bug) -> Result<bool, String> {
        if get(op, ACTIVE) != 0 {
            if get(op, NOTED) != 0 {
                NOTES.iter().zip(WORDS).for_each(|(note, word)| put(op, word, get(op, *note)));
                put(op, NOTED, 0);
            }
            put(op, ACTIVE, 0);
        }
        // The bug: the page is taken to be active, as it was when the process died.
        Ok(bug.is_some())
    }

    fn apply<M: Medium>((op, _): (&Op<'_, M>, &Op<'_, M>), active: &mut bool, _: Bug, what: Both) -> Option<u64> {
        NOTES.iter().zip(WORDS).for_each(|(note, word)| put(op, *note, get(op, word)));
        if !std::mem::replace(active, true) {
            put(op, ACTIVE, 1);
        }
        put(op, NOTED, 1);
        WORDS.iter().for_each(|word| put(op, *word, what.0));
        put(op, NOTED, 0);
        None
    }

    fn contents<M: Medium>(op: &Op<'_, M>) -> Map {
        WORDS.iter().map(|word| (*word, get(op, *word))).filter(|(_, value)| *value != 0).collect()
    }

    fn step(model: &mut Map, what: Both) -> Option<u64> {
        model.extend(WORDS.map(|word| (word, what.0)));
        None
    }
}

// ---- a death of the process, then a power failure ----

/// A value, and another that is derived from it.
struct Derived;

#[derive(Clone, Copy, Debug)]
enum OfDerived {
    Put(u64),
    Derive,
}

const VALUE: u64 = 64;
const DERIVED: u64 = 128;

impl Simple for Derived {
    type Do = OfDerived;

    fn recover<M: Medium>(op: &Op<'_, M>, bug: Bug) -> Result<(), String> {
        // The bug: what is there is taken to be durable.
        if bug.is_none() {
            op.persist(word(op, VALUE));
        }
        Ok(())
    }

    fn apply<M: Medium>(op: &Op<'_, M>, _: Bug, what: OfDerived) -> Option<u64> {
        match what {
            OfDerived::Put(value) => put(op, VALUE, value),
            OfDerived::Derive => put(op, DERIVED, get(op, VALUE)),
        }
        None
    }

    fn contents<M: Medium>(op: &Op<'_, M>) -> Map {
        [VALUE, DERIVED].map(|off| (off, get(op, off))).into_iter().filter(|(_, value)| *value != 0).collect()
    }

    fn step(model: &mut Map, what: OfDerived) -> Option<u64> {
        match what {
            OfDerived::Put(value) => _ = model.insert(VALUE, value),
            OfDerived::Derive => model.extend(model.get(&VALUE).map(|value| (DERIVED, *value))),
        }
        None
    }
}

// ---- the order at closing ----

/// A buffered value, and a mark that says that the pool was closed. Whether the mark is looked at is the question.
struct Closing<const LOOKS: bool>;

#[derive(Clone, Copy, Debug)]
enum OfClosing {
    Put(u64),
    Close,
}

const MARK: u64 = 128;

impl<const LOOKS: bool> Simple for Closing<LOOKS> {
    type Do = OfClosing;

    fn recover<M: Medium>(_: &Op<'_, M>, _: Bug) -> Result<(), String> {
        Ok(())
    }

    fn apply<M: Medium>(op: &Op<'_, M>, bug: Bug, what: OfClosing) -> Option<u64> {
        match what {
            OfClosing::Put(value) => op.store(word(op, VALUE), value, Release),
            OfClosing::Close => {
                op.write_back(word(op, VALUE));
                // The bug: one fence for both.
                if bug.is_none() {
                    op.fence();
                }
                put(op, MARK, 1);
            }
        }
        None
    }

    fn contents<M: Medium>(op: &Op<'_, M>) -> Map {
        let seen = [VALUE, MARK].into_iter().take(if LOOKS { 2 } else { 1 });
        seen.map(|off| (off, get(op, off))).filter(|(_, value)| *value != 0).collect()
    }

    fn step(model: &mut Map, what: OfClosing) -> Option<u64> {
        match what {
            OfClosing::Put(value) => _ = model.insert(VALUE, value),
            OfClosing::Close => _ = LOOKS.then(|| model.insert(MARK, 1)),
        }
        None
    }

    fn acknowledges(what: OfClosing) -> bool {
        matches!(what, OfClosing::Close)
    }
}

// ---- two boots with one id ----

/// A value under a lock that names the boot of its holder. Whether the next boot has another id is the question.
struct Boots<const SAME: bool>;

#[derive(Clone, Copy, Debug)]
struct Change(u64);

const LOCK: u64 = 128;

impl<const SAME: bool> Host for Boots<SAME> {
    type Bug = Planted;
    type Do = Change;
    /// The id of this boot.
    type Volatile = u64;

    fn create<M: Medium>(_: &Op<'_, M>, _: Bug) -> u64 {
        7
    }

    fn recover<M: Medium>(op: &Op<'_, M>, bug: Bug) -> Result<u64, String> {
        // The bug: locks of other boots are free anyway, so recovery leaves them.
        if bug.is_none() {
            put(op, LOCK, 0);
        }
        Ok(if SAME { 7 } else { 8 })
    }

    fn apply<M: Medium>((op, _): (&Op<'_, M>, &Op<'_, M>), boot: &mut u64, _: Bug, what: Change) -> Option<u64> {
        if get(op, LOCK) == *boot {
            // It would wait for ever.
            return Some(LOCK);
        }
        op.store(word(op, LOCK), *boot, Release);
        put(op, VALUE, what.0);
        op.store(word(op, LOCK), 0, Release);
        None
    }

    fn contents<M: Medium>(op: &Op<'_, M>) -> Map {
        [(VALUE, get(op, VALUE))].into_iter().filter(|(_, value)| *value != 0).collect()
    }

    fn step(model: &mut Map, what: Change) -> Option<u64> {
        model.insert(VALUE, what.0);
        None
    }
}

// ---- placement ----

/// A list of nodes: its head, and how many nodes are used. Where the head lies is the question.
struct Placed<const HEAD: u64>;

#[derive(Clone, Copy, Debug)]
struct Insert(u64);

const COUNT: u64 = 64;

impl<const HEAD: u64> Simple for Placed<HEAD> {
    type Do = Insert;

    fn recover<M: Medium>(_: &Op<'_, M>, _: Bug) -> Result<(), String> {
        Ok(())
    }

    fn apply<M: Medium>(op: &Op<'_, M>, bug: Bug, what: Insert) -> Option<u64> {
        let count = get(op, COUNT);
        let node = 512 + 64 * count;
        op.store(word(op, node + 8), get(op, HEAD), Relaxed);
        put(op, node, what.0);
        op.store(word(op, COUNT), count + 1, Release);
        if bug.is_none() {
            op.persist(word(op, COUNT));
        }
        op.store(word(op, HEAD), node, Release);
        // The bug: only the line of the count is written back.
        op.persist(word(op, if bug.is_none() { HEAD } else { COUNT }));
        None
    }

    fn contents<M: Medium>(op: &Op<'_, M>) -> Map {
        let step = |node: &u64| Some(get(op, node + 8)).filter(|next| *next != 0);
        let nodes = std::iter::successors(Some(get(op, HEAD)).filter(|node| *node != 0), step);
        nodes.map(|node| (get(op, node), 1)).collect()
    }

    fn step(model: &mut Map, what: Insert) -> Option<u64> {
        model.insert(what.0, 1);
        None
    }
}

// ---- counts of lines ----

/// A node of five lines, of which an operation changes two.
struct Node;

impl Simple for Node {
    type Do = Insert;

    fn recover<M: Medium>(_: &Op<'_, M>, _: Bug) -> Result<(), String> {
        Ok(())
    }

    fn apply<M: Medium>(op: &Op<'_, M>, bug: Bug, what: Insert) -> Option<u64> {
        let node = op.slice("a node", durix_pmem::Off::new(320), 40).expect("in the arena");
        let slot = 8 + what.0 as usize;
        op.store(&node[slot], what.0, Relaxed);
        op.write_back(&node[slot]);
        op.fence();
        op.store(&node[0], get(op, 320) | 1 << what.0, Release);
        match bug {
            None => op.write_back(&node[0]),
            Some(Planted) => op.write_back_slice(node),
        }
        op.fence();
        None
    }

    fn contents<M: Medium>(op: &Op<'_, M>) -> Map {
        let used = get(op, 320);
        (1..30).filter(|k| used >> k & 1 == 1).map(|k| (k, get(op, 320 + 64 + 8 * k))).collect()
    }

    fn step(model: &mut Map, what: Insert) -> Option<u64> {
        model.insert(what.0, what.0);
        None
    }
}

// ---- the patterns ----

pub(super) fn patterns() -> Vec<Pattern> {
    use OfClosing::Close;
    use OfDerived::Derive;
    let strict = || Explorer::new().crashes(2);
    let buffered = || Explorer::new().contract(Contract::Buffered);
    let simple = |explorer: Explorer| explorer.crashes(1);
    vec![
        Pattern::blind::<Pages, Pages>(
            ("first operations", "the page of a process that died is taken to be active"),
            Planted,
            (strict(), &[Both(1), Both(2)], &[Both(3)]),
            (strict().crash_later(true), &[Both(1)], &[Both(3)]),
        ),
        Pattern::blind::<Of<Derived>, Of<Derived>>(
            ("death, then power", "what a dead process has left in the caches is built upon"),
            Planted,
            (strict().crash_later(true), &[OfDerived::Put(1), Derive], &[Derive]),
            (simple(Explorer::new()).process_deaths(true), &[OfDerived::Put(1)], &[Derive]),
        ),
        Pattern::blind::<Of<Closing<false>>, Of<Closing<true>>>(
            ("closing", "the clean mark under the fence of the data"),
            Planted,
            (buffered(), &[OfClosing::Put(1), OfClosing::Put(2), Close], &[]),
            (buffered(), &[OfClosing::Put(1), Close], &[]),
        ),
        Pattern::blind::<Boots<false>, Boots<true>>(
            ("one boot id", "a lock of another boot is told by its id"),
            Planted,
            (strict(), &[Change(1)], &[Change(2)]),
            (strict(), &[Change(1)], &[Change(2)]),
        ),
        Pattern::blind::<Of<Placed<72>>, Of<Placed<192>>>(
            ("placement", "a list head that only its neighbour's write-back covers"),
            Planted,
            (strict(), &[Insert(1), Insert(2)], &[Insert(3)]),
            (strict(), &[Insert(1)], &[]),
        ),
        Pattern::cost::<Of<Node>>(
            "line count",
            "a whole node written back instead of its lines",
            Planted,
            Insert(3),
            (2, 2),
        ),
    ]
}
