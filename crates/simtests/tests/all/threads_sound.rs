//! That cutting executions short loses nothing: the same outcomes with and without, and what must not be claimed.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};

use durix_crashsim::{Concurrent, Contract, Explorer, Persistency, Simulated, Strategy, Subject, Threads};
use durix_pmem::{Lock, Mapping, Medium, Off, Rmw, Session, Word, persistent};
use durix_subjects::concurrent_list as list;
use list::{Bug, List, ListOp::*};

/// With a few preemptions, everything can be run to its end: cut short or not, the outcomes are the same.
#[track_caller]
fn same<S: Concurrent>(subject: &S, program: &[Vec<S::Op>], bound: Option<u32>) -> usize {
    let start = std::time::Instant::now();
    let threads = |prunes, strategy| {
        let threads = Threads::new(Explorer::new().strategy(strategy)).prunes(prunes);
        bound.map_or(threads.clone(), |bound| threads.preemptions(bound))
    };
    let whole = threads(false, Strategy::Eager).outcomes(subject, program);
    println!("{} outcomes in {:?}", whole.len(), start.elapsed());
    for order in 0..12 {
        let pruned = threads(true, Strategy::Lazy).order(order).outcomes(subject, program);
        let missing: Vec<_> = whole.difference(&pruned).collect();
        assert!(missing.is_empty(), "lost: {missing:#?}");
        assert_eq!(pruned.len(), whole.len(), "made up: {:#?}", pruned.difference(&whole).collect::<Vec<_>>());
    }
    whole.len()
}

#[test]
fn lists_have_the_same_outcomes_when_nothing_is_cut_short() {
    for bug in [Bug::None, Bug::ReadNotDurable, Bug::PathNotDurable, Bug::UnlockBeforeWriteBack] {
        for list in [List::lock_free(bug), List::locked(bug)] {
            assert!(same(&list, &[vec![Insert(1, 10)], vec![Insert(2, 20), Get(1)]], Some(3)) > 10);
            assert!(same(&list, &[vec![Insert(1, 10)], vec![Remove(1)], vec![Get(1)]], Some(2)) > 10);
        }
    }
}

persistent! {
    struct Cells: align(64) { one: Word, two: Word, rest: [Word; 6] }
    struct Pair: align(128) { left: Cells, right: Cells }
}
const PAIR: Off<Pair> = Off::new(128);

/// How little programs share volatile state.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Sharing {
    /// Behind a lock.
    Lock,
    /// In a word of the medium.
    Word,
    /// In a word that the medium does not see, and that is admitted.
    Admitted,
    /// A loop that waits for a word, without `spin`.
    NoSpin,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Act {
    /// Volatile: doubles, and adds.
    Tick(u64),
    /// Writes the volatile value to the left cell.
    Save,
    /// Two stores to a line, one to another.
    Stores(u64),
    /// Reads both lines, without making anything durable.
    Sum,
    /// Stores to the left line, and leaves it there.
    Blind(u64),
    /// Stores to both lines, and makes the left one durable as it then is.
    Cover(u64),
    /// Stores to many lines, twice, and writes them back under one fence.
    Spread(u64),
    /// Volatile: becomes this, unread.
    Set(u64),
    /// Waits for the volatile value to become odd.
    Wait,
}
use Act::*;

struct Little(Sharing);

struct Shared {
    lock: Lock<u64>,
    word: AtomicU64,
}

impl Little {
    /// Changes the volatile value, and returns it.
    fn volatile(&self, shared: &Shared, m: Simulated, change: impl Fn(u64) -> u64) -> u64 {
        match self.0 {
            Sharing::Lock => {
                let mut value = shared.lock.lock(m);
                *value = change(*value);
                *value
            }
            Sharing::Word | Sharing::NoSpin => loop {
                let old = m.shared_load(&shared.word, Acquire);
                if m.shared_compare_exchange(&shared.word, old, change(old)).is_ok() {
                    return change(old);
                }
            },
            Sharing::Admitted => {
                let new = change(shared.word.load(SeqCst));
                shared.word.store(new, SeqCst);
                // Something to be interleaved at.
                m.order();
                m.fence();
                new
            }
        }
    }
}

type Handle = (Session<Simulated>, Arc<Shared>);

impl Subject for Little {
    type Op = Act;
    type Ret = Option<u64>;
    type State = [u64; 4];
    type Model = [u64; 4];
    type Store = Mapping<Simulated>;
    type Live = (Mapping<Simulated>, Handle);

    fn store(&self, medium: Simulated) -> Self::Store {
        Mapping::heap(4096, medium)
    }
    fn create(&self, store: &Self::Store) -> Self::Live {
        let shared = Arc::new(Shared { lock: Lock::new(0), word: AtomicU64::new(0) });
        (store.clone(), (store.session().unwrap(), shared))
    }
    fn recover(&self, store: &Self::Store) -> Result<Self::Live, String> {
        Ok(self.create(store))
    }
    fn apply(&self, live: &mut Self::Live, op: &Act) -> Option<u64> {
        self.run(&mut live.1, op)
    }
    fn observe(&self, live: &mut Self::Live) -> [u64; 4] {
        let op = live.1.0.enter().unwrap();
        let pair = op.at(PAIR);
        [&pair.left.one, &pair.left.two, &pair.right.one, &pair.right.two].map(|word| op.load(word, Relaxed))
    }
    fn model(&self) -> [u64; 4] {
        [0; 4]
    }
    fn step(&self, _model: &mut [u64; 4], _op: &Act) -> Option<u64> {
        None
    }
    fn expect(&self, model: &[u64; 4]) -> [u64; 4] {
        *model
    }
}

impl Concurrent for Little {
    type Thread = Handle;

    fn thread(&self, live: &Self::Live, _number: usize) -> Handle {
        (live.0.session().unwrap(), Arc::clone(&live.1.1))
    }

    fn run(&self, (session, shared): &mut Handle, act: &Act) -> Option<u64> {
        let op = session.enter().unwrap();
        let (m, pair) = (op.medium(), op.at(PAIR));
        match *act {
            Tick(by) => _ = self.volatile(shared, m, |value| value * 2 + by),
            Save => {
                let value = self.volatile(shared, m, |value| value);
                let cell = if value.is_multiple_of(2) { &pair.left.one } else { &pair.left.two };
                op.store(cell, value, Release);
                op.persist(&pair.left);
            }
            Stores(value) => {
                op.store(&pair.left.one, value, Relaxed);
                op.rmw(&pair.right.one, Rmw::Add, value);
                op.store(&pair.left.two, value, Relaxed);
                op.write_back(&pair.right);
                op.store_nt(&pair.right.two, value);
                op.fence();
            }
            Sum => return Some(op.load(&pair.left.one, Acquire) * 100 + op.load(&pair.right.one, Acquire)),
            Blind(value) => op.store(&pair.left.two, value, Relaxed),
            Cover(value) => {
                op.store(&pair.left.one, value, Relaxed);
                op.store(&pair.right.one, value, Relaxed);
                op.write_back(&pair.left);
                // What was stored after the request is not covered, though it is seen before the fence.
                let seen = op.load(&pair.left.two, Relaxed);
                op.fence();
                return Some(seen);
            }
            Spread(value) => {
                let words = op.slice("lines", Off::<Word>::new(1024), 64).unwrap();
                for (turn, line) in words.chunks(8).chain(words.chunks(8).take(3)).enumerate() {
                    op.store(&line[turn % 4], value, if turn % 3 == 0 { Release } else { Relaxed });
                    if turn % 4 == 1 {
                        op.store_nt(&line[7], value);
                    }
                    op.write_back_slice(line);
                }
                op.fence();
            }
            Set(value) => m.shared_store(&shared.word, value, Release),
            Wait => {
                let mut turn = 0;
                while m.shared_load(&shared.word, Acquire) % 2 == 0 {
                    if self.0 != Sharing::NoSpin {
                        m.spin(turn);
                    }
                    turn += 1;
                }
            }
        }
        None
    }

    fn hidden(&self) -> Option<String> {
        (self.0 == Sharing::Admitted).then(|| "a word".into())
    }
}

#[test]
fn stores_of_several_threads_have_the_same_outcomes() {
    let little = Little(Sharing::Lock);
    assert!(same(&little, &[vec![Stores(1)], vec![Stores(2)]], None) > 100);
    assert!(same(&little, &[vec![Stores(1)], vec![Sum, Stores(2)]], Some(3)) > 100);
    assert!(same(&little, &[vec![Stores(1)], vec![Sum], vec![Stores(2)]], Some(1)) > 100);
}

/// Nothing is read here, so that only the memory itself tells what happened.
#[test]
fn blind_stores_have_the_same_outcomes() {
    let little = Little(Sharing::Word);
    same(&little, &[vec![Blind(1), Cover(3)], vec![Blind(2)]], Some(3));
    same(&little, &[vec![Blind(1)], vec![Cover(3), Cover(4)]], Some(3));
    same(&little, &[vec![Cover(1)], vec![Cover(2)]], Some(3));
    same(&little, &[vec![Set(1), Save], vec![Set(2)]], Some(3));
    same(&little, &[vec![Sum], vec![Sum, Sum]], Some(2));
}

/// What lies behind a lock is not seen, and yet the order in which threads changed it is never mixed up.
#[test]
fn what_lies_behind_a_lock_is_told_apart() {
    for sharing in [Sharing::Lock, Sharing::Word] {
        let little = Little(sharing);
        same(&little, &[vec![Tick(1)], vec![Tick(2), Save]], Some(4));
        same(&little, &[vec![Tick(1), Save], vec![Tick(2), Save]], Some(3));
        same(
            &little,
            &[vec![Tick(1)], vec![Tick(2)], vec![Tick(3), Save]],
            Some(if sharing == Sharing::Lock { 3 } else { 2 }),
        );
        let program = [vec![Tick(1)], vec![Tick(2)], vec![Save]];
        let saved = Threads::new(Explorer::new()).outcomes(&little, &program);
        // Nothing, either, both in either order.
        for (one, two) in [(0, 0), (0, 1), (2, 0), (4, 0), (0, 5)] {
            let state = format!("[{one}, {two}, 0, 0]");
            let found = saved.iter().any(|o| o.matches(":None").count() == 3 && o.ends_with(&state));
            assert!(found, "{sharing:?}: {state} is missing in {saved:#?}");
        }
    }
}

#[test]
fn waiting_ends_and_has_the_same_outcomes() {
    let little = Little(Sharing::Word);
    same(&little, &[vec![Wait, Stores(1)], vec![Stores(2), Tick(1)]], Some(2));
    same(&little, &[vec![Wait], vec![Wait, Tick(1)], vec![Tick(1), Tick(3)]], Some(1));
}

/// The digest of a state is kept from step to step, and changes only with what has changed. It must be the one that the state has when
/// nothing is kept: of many lines under one fence, of lines written again while they are on their way, of several sessions.
#[test]
fn digests_that_are_kept_are_those_of_the_state() {
    let little = Little(Sharing::Word);
    let programs = [
        [vec![Spread(1), Sum], vec![Spread(2)]],
        [vec![Spread(1), Cover(5)], vec![Blind(2), Stores(3)]],
        [vec![Stores(1), Stores(2)], vec![Sum, Tick(1), Save]],
        [vec![Cover(1), Blind(4)], vec![Stores(2), Spread(3)]],
    ];
    let plain = Explorer::new();
    let explorers = [
        plain.clone().model(Persistency::TornWords),
        plain.clone().model(Persistency::Eadr),
        plain.clone().locked_drains(false),
        plain.clone().flushes_at_once(true),
        plain,
    ];
    for program in &programs {
        for explorer in &explorers {
            let threads = Threads::new(explorer.clone()).preemptions(2).verifies(true);
            assert!(threads.outcomes(&little, program).len() > 10, "{program:?} is hardly explored");
        }
    }
}

fn judged(little: Little, program: &[Vec<Act>]) -> durix_crashsim::Report {
    Threads::new(Explorer::new().contract(Contract::Buffered)).run(&little, program, &[])
}

#[test]
fn waiting_for_ever_is_reported() {
    let failure = judged(Little(Sharing::Word), &[vec![Wait], vec![Tick(2)]]).failure.expect("nobody makes it odd");
    assert!(failure.to_string().contains("wait for each other"), "{failure}");
    let failure = judged(Little(Sharing::NoSpin), &[vec![Wait], vec![Tick(2)]]).failure.expect("it never ends");
    assert!(failure.to_string().contains("without `spin`"), "{failure}");
}

#[test]
fn what_passes_the_medium_by_is_not_called_complete() {
    let program = [vec![Tick(2), Tick(1)], vec![Tick(1), Tick(2)]];
    let complete = |sharing| {
        let report = judged(Little(sharing), &program).assert_ok();
        println!("{sharing:?}: {report}");
        assert_eq!(report.complete, report.to_string().ends_with(": complete"));
        report.complete
    };
    assert!(complete(Sharing::Lock));
    assert!(complete(Sharing::Word));
    assert!(!complete(Sharing::Admitted));
    // Not admitted, and found out: equal states that go on differently.
    let found_out = Threads::new(Explorer::new()).run(&Silent, &[vec![(); 2], vec![(); 2]], &[]).assert_ok();
    println!("{found_out}");
    assert!(!found_out.complete && found_out.to_string().contains("passes the medium by"), "{found_out}");
}

/// Threads take turns at a word that the medium does not see; where they store depends on it.
struct Silent;

impl Subject for Silent {
    type Op = ();
    type Ret = ();
    type State = ();
    type Model = ();
    type Store = Mapping<Simulated>;
    type Live = (Mapping<Simulated>, Arc<AtomicU64>);

    fn store(&self, medium: Simulated) -> Self::Store {
        Mapping::heap(4096, medium)
    }
    fn create(&self, store: &Self::Store) -> Self::Live {
        (store.clone(), Arc::default())
    }
    fn recover(&self, store: &Self::Store) -> Result<Self::Live, String> {
        Ok(self.create(store))
    }
    fn apply(&self, _live: &mut Self::Live, (): &()) {}
    fn observe(&self, _live: &mut Self::Live) {}
    fn model(&self) {}
    fn step(&self, (): &mut (), (): &()) {}
    fn expect(&self, (): &()) {}
}

impl Concurrent for Silent {
    type Thread = (Session<Simulated>, Arc<AtomicU64>, u64);

    fn thread(&self, live: &Self::Live, number: usize) -> Self::Thread {
        (live.0.session().unwrap(), Arc::clone(&live.1), number as u64)
    }

    fn run(&self, (session, turn, number): &mut Self::Thread, (): &()) {
        let op = session.enter().unwrap();
        op.fence();
        let before = turn.swap(*number, SeqCst);
        op.fence();
        let words = op.at(PAIR);
        op.store(if before == *number { &words.left.one } else { &words.right.one }, 1, Relaxed);
        op.persist(words);
    }
}
