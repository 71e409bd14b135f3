//! Threads on one word or node: faults that take two operations a thread and two preemptions, or a reader that is stopped
//! inside its operation while others go on.

use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use durix_crashsim::{Concurrent, Explorer, Report, Simulated, Subject, Threads};
use durix_pmem::{Mapping, Op, Session};

use super::pattern::{Bound, Map, Outcome, Pattern, word};
use crate::scenario::Told;

type M = Simulated;

#[derive(Clone, Copy, Debug, PartialEq)]
enum Do {
    Put(u64),
    Get,
    /// Takes the node out and frees it.
    Remove,
    /// Puts a node of another key in.
    Other(u64),
}

/// Which structure.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Which {
    /// A word with a mark that says that it may not be durable. Who stores it clears the mark after its fence. The bug: without
    /// a version the mark may be that of a later store of the same value.
    Marked,
    /// A node that a reader reaches by its link. The bug: it is used again without waiting for the reader.
    Reused,
}

struct Shared {
    which: Which,
    planted: bool,
}

const WORD: u64 = 64;
/// The word's mark, below its version.
const MARK: u64 = 1 << 16;
const LINK: u64 = 128;
const NODES: [u64; 2] = [192, 256];
/// Set while a reader looks: not persistent in meaning.
const READING: u64 = 320;

fn load(op: &Op<'_, M>, off: u64) -> u64 {
    op.load(word(op, off), Acquire)
}

fn put(op: &Op<'_, M>, off: u64, value: u64) {
    op.store(word(op, off), value, Release);
    op.persist(word(op, off));
}

impl Shared {
    fn act(&self, op: &Op<'_, M>, what: Do) -> Option<u64> {
        match (self.which, what) {
            (Which::Marked, Do::Put(value)) => self.put_marked(op, value),
            (Which::Marked, Do::Get) => {
                let found = load(op, WORD);
                if found & MARK != 0 {
                    op.persist(word(op, WORD));
                }
                Some(found & 0xff)
            }
            (Which::Reused, Do::Get) => self.read_node(op),
            (Which::Reused, Do::Remove) => {
                put(op, LINK, 0);
                None
            }
            (Which::Reused, Do::Other(value)) => self.insert_other(op, value),
            other => unreachable!("{other:?}"),
        }
    }

    fn put_marked(&self, op: &Op<'_, M>, value: u64) -> Option<u64> {
        loop {
            let old = load(op, WORD);
            let version = if self.planted { 0 } else { (old >> 17) + 1 };
            let new = version << 17 | MARK | value;
            if old & MARK != 0 {
                // Not over what is not durable: its writer would clear the mark of this one.
                op.persist(word(op, WORD));
            }
            if op.compare_exchange(word(op, WORD), old, new).is_ok() {
                op.persist(word(op, WORD));
                let _ = op.compare_exchange(word(op, WORD), new, new & !MARK);
                return None;
            }
        }
    }

    /// The key and the value of the node, which are one word here: the key is what its link says.
    fn read_node(&self, op: &Op<'_, M>) -> Option<u64> {
        op.store(word(op, READING), 1, Release);
        let link = load(op, LINK);
        let found = (link != 0 && link & 1 == 0).then(|| load(op, link));
        // It answers what is durable.
        op.persist(word(op, LINK));
        op.store(word(op, READING), 0, Release);
        found
    }

    /// Links of the other key are odd: a reader of the first key does not follow them.
    fn insert_other(&self, op: &Op<'_, M>, value: u64) -> Option<u64> {
        let waits = !self.planted && load(op, READING) != 0;
        let node = NODES[usize::from(waits)];
        let taken = load(op, LINK) != 0;
        // The removal is durable before its node is used again, whoever has removed it.
        op.persist(word(op, LINK));
        if taken {
            return Some(0);
        }
        put(op, node, value);
        put(op, LINK, node | 1);
        None
    }
}

impl Subject for Shared {
    type Op = Do;
    type Ret = Option<u64>;
    type State = Map;
    type Model = Map;
    type Store = Mapping<M>;
    type Live = (Mapping<M>, Session<M>);

    fn store(&self, medium: M) -> Self::Store {
        Mapping::heap(4096, medium)
    }
    fn create(&self, store: &Self::Store) -> Self::Live {
        let mut session = store.session().unwrap();
        if self.which == Which::Reused {
            let op = session.enter().unwrap();
            put(&op, NODES[0], 5);
            put(&op, LINK, NODES[0]);
        }
        (store.clone(), session)
    }
    fn recover(&self, store: &Self::Store) -> Result<Self::Live, String> {
        Ok((store.clone(), store.session().unwrap()))
    }
    fn apply(&self, (_, session): &mut Self::Live, what: &Do) -> Option<u64> {
        self.act(&session.enter().unwrap(), *what)
    }
    fn observe(&self, (_, session): &mut Self::Live) -> Map {
        let op = session.enter().unwrap();
        let read = |off| op.load(word(&op, off), Relaxed);
        if self.which == Which::Marked {
            return [(1, read(WORD) & 0xff)].into_iter().filter(|(_, value)| *value != 0).collect();
        }
        let link = read(LINK);
        (link != 0).then(|| (1 + (link & 1), read(link & !1))).into_iter().collect()
    }
    fn model(&self) -> Map {
        if self.which == Which::Reused { Map::from([(1, 5)]) } else { Map::new() }
    }
    fn step(&self, model: &mut Map, what: &Do) -> Option<u64> {
        match *what {
            Do::Put(value) => _ = model.insert(1, value),
            Do::Get if self.which == Which::Marked => return Some(model.get(&1).copied().unwrap_or(0)),
            Do::Get => return model.get(&1).copied(),
            Do::Remove => model.clear(),
            Do::Other(_) if !model.is_empty() => return Some(0),
            Do::Other(value) => _ = model.insert(2, value),
        }
        None
    }
    fn expect(&self, model: &Map) -> Map {
        model.clone()
    }
}

impl Concurrent for Shared {
    type Thread = Session<M>;

    fn thread(&self, (mapping, _): &Self::Live, _: usize) -> Session<M> {
        mapping.session().unwrap()
    }
    fn run(&self, session: &mut Session<M>, what: &Do) -> Option<u64> {
        self.act(&session.enter().unwrap(), *what)
    }
}

/// Programs under a bound on preemptions.
struct Question(u32, &'static [[&'static [Do]; 2]]);

impl Question {
    fn ask(&self, subject: &Shared, replay: Option<&str>) -> Report {
        let mut explorer = Explorer::new().suggest(false);
        if let Some(replay) = replay {
            explorer = explorer.replay(replay);
        }
        let threads = Threads::new(explorer).preemptions(self.0);
        let mut total = Report::default();
        for program in self.1 {
            if total.failure.is_none() {
                total.merge(threads.run(subject, &program.map(<[Do]>::to_vec), &[]));
            }
        }
        total
    }
}

fn pattern(
    (group, name): (&'static str, &'static str),
    which: Which,
    usual: Question,
    asked: (u32, &'static [[&'static [Do]; 2]]),
) -> Pattern {
    let subject = move |planted| Shared { which, planted };
    for planted in [false, true] {
        let seen = usual.ask(&subject(planted), None);
        let failure = seen.failure.map(|failure| failure.to_string());
        assert_eq!(failure, None, "{name} ({planted}): the usual question shows it, too");
    }
    let run =
        move |planted| Outcome { report: Question(asked.0, asked.1).ask(&subject(planted), None), off_budget: false };
    let tell = move || {
        let question = Question(asked.0, asked.1);
        let failure = question.ask(&subject(true), None).failure?;
        let again = question.ask(&subject(true), Some(&failure.replay)).failure;
        Some(Told::new(failure, again, false))
    };
    Pattern { group, name, bound: Bound::TwoThreads, run: Box::new(run), tell: Box::new(tell) }
}

pub(super) fn patterns() -> Vec<Pattern> {
    use Do::{Get, Other, Put, Remove};
    const ONE_EACH: &[[&[Do]; 2]] = &[[&[Put(1)], &[Put(2)]], [&[Put(1)], &[Get]], [&[Put(1)], &[Put(1)]]];
    const TWO_EACH: &[[&[Do]; 2]] = &[[&[Put(1), Get], &[Put(2), Put(1)]]];
    const NO_INSERTER: &[[&[Do]; 2]] = &[[&[Get], &[Remove]], [&[Remove], &[Other(7)]]];
    const READER: &[[&[Do]; 2]] = &[[&[Get], &[Remove, Other(7)]]];
    vec![
        pattern(
            ("threads", "a mark is cleared that a later store of the same value has set"),
            Which::Marked,
            Question(2, ONE_EACH),
            (2, TWO_EACH),
        ),
        pattern(
            ("reuse", "a node is used again beside a reader that was stopped"),
            Which::Reused,
            Question(2, NO_INSERTER),
            (2, READER),
        ),
    ]
}
