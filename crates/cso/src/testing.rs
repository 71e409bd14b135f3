//! A log as the subject of crash simulation: tiny logs, a reference model that knows what an unfenced batch may leave.

use std::collections::BTreeSet;
use std::marker::PhantomData;
use std::sync::atomic::Ordering::Relaxed;

use crate::log::{
    ChainLog, ChainOptions, FvbEntryLog, FvbEntryOptions, FvbLog, FvbOptions, HalfLine, LinesLog, Log, OneLine,
    RandomLog, RandomOptions, Region, TwoLines, VbLog, WordsLog,
};
use durix_crashsim::{Simulated, Subject};
use durix_pmem::{Mapping, Medium, Mutating, Off, Op, Plan, Session, Word};

/// Where the log lies in the arena.
const OFF: u64 = 4096;

/// What a payload has where CSO-Random looks for its pattern. Leaves the bits zero that the logs of words use.
pub const PATTERN: u64 = 0x2a2a_2a2a_2a2a_2a2a;

/// How a kind of log is set up for crash tests.
pub trait Tiny: Log {
    /// Bytes of the region.
    const LEN: u64;
    /// So many records of any tested length always fit.
    const ROOM: usize;
    /// Lengths of payloads, a short and a long one; at least 8 bytes.
    const LENS: [usize; 2];
    /// Options.
    fn tiny() -> Self::Options;
}

/// What is done with a log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Do {
    /// Stages a record of the short or the long length; trims first where the log holds all it surely can.
    Stage(usize),
    /// The fence.
    Commit,
    /// Removes so many of the oldest records.
    Trim(usize),
    /// The process dies and starts again; the power stays on.
    Reopen,
    /// Another session takes over, and does this.
    Other(&'static Do),
    /// Nothing; tells the model that a formatting is about to start.
    WillFormat,
    /// Writes an empty log over whatever is there.
    Format,
    /// Nothing; tells the model that a crash has been recovered from.
    Crashed,
}

/// A record by what identifies it: its number and its length.
type Id = (u64, usize);

/// What is observed, or what may be.
#[derive(Clone, Debug)]
pub enum State {
    /// The records found, or that there is no log.
    Found(Option<Vec<Id>>),
    /// What would be right.
    Allowed(BTreeSet<Option<Vec<Id>>>),
}

impl PartialEq for State {
    fn eq(&self, other: &State) -> bool {
        match (self, other) {
            (State::Found(found), State::Allowed(allowed)) | (State::Allowed(allowed), State::Found(found)) => {
                allowed.contains(found)
            }
            (State::Found(a), State::Found(b)) => a == b,
            (State::Allowed(a), State::Allowed(b)) => a == b,
        }
    }
}

/// One course that things may have taken.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct World {
    /// The log is about to be formatted.
    formatting: bool,
    /// All records since the durable head.
    records: Vec<Id>,
    /// How many of them are trimmed, and how many are durable (trimmed or not).
    trimmed: usize,
    durable: usize,
    /// Number of the last record.
    last: u64,
}

impl World {
    fn fence(&mut self) {
        self.records.drain(..self.trimmed);
        self.trimmed = 0;
        self.durable = self.records.len();
    }

    /// What a crash may leave: from any head since the durable one, to any record not yet fenced.
    fn after_crash(&self) -> BTreeSet<Option<Vec<Id>>> {
        let mut states = BTreeSet::new();
        if self.formatting {
            states.extend([None, Some(Vec::new())]);
        }
        for head in 0..=self.trimmed {
            for tail in self.durable.max(head)..=self.records.len() {
                states.insert(Some(self.records[head..tail].to_vec()));
            }
        }
        states
    }

    fn step<L: Tiny>(&mut self, what: Do) {
        match what {
            Do::Stage(len) => {
                let visible = self.records.len() - self.trimmed;
                self.trimmed += (visible + 1).saturating_sub(L::ROOM);
                self.last += 1;
                self.records.push((self.last, L::LENS[len]));
            }
            Do::Commit => self.fence(),
            Do::Trim(count) => self.trimmed = (self.trimmed + count).min(self.records.len()),
            Do::Reopen => {
                self.fence();
                self.last = self.records.last().map_or(0, |r| r.0);
            }
            Do::WillFormat => self.formatting = true,
            Do::Format => *self = World::default(),
            Do::Other(what) => self.step::<L>(*what),
            Do::Crashed => {}
        }
    }
}

/// A subject: a kind of log on a medium.
pub struct Tested<L, W> {
    /// Records appended and trimmed in the beginning, so that operations meet the end of the ring and old contents.
    pub age: usize,
    /// Records that the log holds in the beginning, durably.
    pub held: usize,
    /// The log starts as a crash may have left it: the first record of an unfenced batch is missing. The first operation
    /// has to be [`Do::Reopen`].
    pub holed: bool,
    /// What is put around the simulated medium.
    pub wrap: W,
    /// The kind.
    pub _log: PhantomData<L>,
}

/// What is put around the simulated medium.
pub trait Wrap {
    /// The medium around it.
    type Medium: Medium;
    /// Puts it around.
    fn wrap(&self, medium: Simulated) -> Self::Medium;
}

/// Nothing around it.
pub struct Plain;
impl Wrap for Plain {
    type Medium = Simulated;
    fn wrap(&self, medium: Simulated) -> Simulated {
        medium
    }
}
impl Wrap for &'static Plan {
    type Medium = Mutating<Simulated>;
    fn wrap(&self, medium: Simulated) -> Mutating<Simulated> {
        Mutating::new(medium, self)
    }
}

/// A log at work.
pub struct Live<L, M: Medium> {
    session: Session<M>,
    /// Sessions that were at work before; still open, so that their write-backs remain their own.
    others: Vec<Session<M>>,
    log: Option<L>,
    last: u64,
}

fn region<L: Tiny>() -> Region {
    Region { off: OFF, len: L::LEN }
}

/// Content that identifies a record, with words that repeat from record to record (for CSO-FVB), and the pattern of
/// CSO-Random in the last words of some lines.
fn fill((number, len): Id) -> Vec<u8> {
    let words = (0..len.div_ceil(8) as u64).map(|i| match i {
        0 => number << 8,
        6 | 14 if number % 2 == 0 => PATTERN,
        _ => [0, number << 8, 0x77 << 8, (number * i) << 8][((number + i) % 4) as usize],
    });
    let mut bytes: Vec<u8> = words.flat_map(u64::to_le_bytes).collect();
    bytes.truncate(len);
    bytes
}

/// Number and length of a record; a number that no model knows, where the content is not what was written.
fn identify(bytes: &[u8]) -> Id {
    let number = bytes.first_chunk::<8>().map_or(u64::MAX, |w| u64::from_le_bytes(*w) >> 8);
    let id = (number, bytes.len());
    if number < 1 << 32 && fill(id) == bytes { id } else { (u64::MAX, bytes.len()) }
}

impl<L: Tiny, M: Medium> Live<L, M> {
    fn put(op: &Op<'_, M>, log: &mut L, id: Id) {
        let surplus = (log.iter(op).count() + 1).saturating_sub(L::ROOM);
        if surplus > 0 {
            Self::trim(op, log, surplus);
        }
        log.stage(op, 0, &fill(id)).unwrap_or_else(|e| panic!("record {id:?} in {log:?}: {e}"));
    }

    fn trim(op: &Op<'_, M>, log: &mut L, count: usize) {
        let to = log.iter(op).nth(count).map_or(log.tail(), |r| r.position());
        log.trim(op, to).expect("the start of a record");
    }

    fn ids(op: &Op<'_, M>, log: &L) -> Vec<Id> {
        log.iter(op).map(|r| identify(&r.to_vec())).collect()
    }

    fn words<'a>(op: &Op<'a, M>) -> Vec<(&'a Word, u64)> {
        let words = op.slice("", Off::<Word>::new(OFF), L::LEN / 8).unwrap();
        words.iter().map(|w| (w, op.load(w, Relaxed))).collect()
    }

    /// Stages three records, then takes the first out of memory again, as a crash may do.
    fn make_hole(op: &Op<'_, M>, log: &mut L) {
        let before = Self::words(op);
        Self::put(op, log, (901, L::LENS[0]));
        let changed: Vec<_> = before.into_iter().filter(|(word, old)| op.load(word, Relaxed) != *old).collect();
        for number in 902..901 + L::ROOM as u64 {
            Self::put(op, log, (number, L::LENS[1]));
        }
        for (word, old) in changed {
            op.store(word, old, Relaxed);
            op.persist(word);
        }
        log.commit(op);
    }
}

impl<L: Tiny, W: Wrap> Subject for Tested<L, W> {
    type Op = Do;
    type Ret = ();
    type State = State;
    type Model = BTreeSet<World>;
    type Store = Mapping<W::Medium>;
    type Live = Live<L, W::Medium>;

    fn store(&self, medium: Simulated) -> Self::Store {
        Mapping::heap(8192, self.wrap.wrap(medium))
    }

    fn create(&self, store: &Self::Store) -> Self::Live {
        let mut session = store.session().unwrap();
        let op = session.enter().unwrap();
        let mut log = L::format(&op, region::<L>(), &L::tiny()).unwrap();
        for number in 0..self.age {
            Live::put(&op, &mut log, (500 + number as u64, L::LENS[number % 2]));
            log.commit(&op);
        }
        let to = log.tail();
        log.trim(&op, to).unwrap();
        log.commit(&op);
        for number in 1..=self.held {
            Live::put(&op, &mut log, (number as u64, L::LENS[number % 2]));
        }
        log.commit(&op);
        if self.holed {
            Live::make_hole(&op, &mut log);
        }
        drop(op);
        Live { session, others: Vec::new(), log: Some(log), last: self.held as u64 }
    }

    fn recover(&self, store: &Self::Store) -> Result<Self::Live, String> {
        let mut session = store.session().map_err(|e| e.to_string())?;
        let op = session.enter().map_err(|e| e.to_string())?;
        let log = match L::recover(&op, region::<L>()) {
            Ok(log) => Some(log),
            Err(crate::log::Error::NotALog { .. }) => None,
            Err(other) => return Err(other.to_string()),
        };
        drop(op);
        Ok(Live { session, others: Vec::new(), log, last: 0 })
    }

    fn apply(&self, live: &mut Self::Live, what: &Do) {
        if matches!(what, Do::Reopen | Do::Other(_)) {
            // Its fences do not cover what the one before had written back.
            let another = live.session.mapping().session().unwrap();
            live.others.push(std::mem::replace(&mut live.session, another));
        }
        if let Do::Other(what) = what {
            return self.apply(live, what);
        }
        let op = live.session.enter().unwrap();
        if *what == Do::Format || live.log.is_none() {
            live.log = Some(L::format(&op, region::<L>(), &L::tiny()).unwrap());
            live.last = 0;
        }
        let log = live.log.as_mut().expect("just made");
        let last = |log: &L| Live::ids(&op, log).last().map_or(0, |id| id.0);
        match *what {
            Do::Stage(len) => {
                live.last += 1;
                Live::put(&op, log, (live.last, L::LENS[len]));
            }
            Do::Commit => log.commit(&op),
            Do::Trim(count) => Live::trim(&op, log, count),
            Do::Reopen => {
                *log = L::recover(&op, region::<L>()).unwrap();
                live.last = last(log);
            }
            Do::Crashed => live.last = last(log) + 1000,
            Do::WillFormat | Do::Format => {}
            Do::Other(_) => unreachable!("taken apart above"),
        }
    }

    fn observe(&self, live: &mut Self::Live) -> State {
        let op = live.session.enter().unwrap();
        State::Found(live.log.as_ref().map(|log| Live::ids(&op, log)))
    }

    fn check(&self, live: &mut Self::Live) -> Vec<String> {
        let op = live.session.enter().unwrap();
        let findings = live.log.as_ref().map(|log| log.check(&op)).unwrap_or_default();
        findings.into_iter().map(|f| format!("{}: {}", f.position, f.what)).collect()
    }

    fn model(&self) -> Self::Model {
        let mut world = World::default();
        for number in 1..=self.held {
            world.step::<L>(Do::Stage(number % 2));
        }
        world.fence();
        BTreeSet::from([world])
    }

    fn step(&self, model: &mut Self::Model, what: &Do) {
        let mut next = BTreeSet::new();
        for world in &*model {
            if *what == Do::Crashed {
                for state in world.after_crash() {
                    let records = state.clone().unwrap_or_default();
                    let last = records.last().map_or(0, |r| r.0) + 1000;
                    let durable = records.len();
                    // What is no log is formatted by the next operation, this one.
                    next.insert(World { records, durable, last, ..World::default() });
                }
            } else {
                let mut world = world.clone();
                world.step::<L>(*what);
                next.insert(world);
            }
        }
        *model = next;
    }

    fn expect(&self, model: &Self::Model) -> State {
        State::Allowed(model.iter().flat_map(World::after_crash).collect())
    }
}

macro_rules! tiny {
    ($($log:ty: $len:expr, $room:literal, $lens:expr, $options:expr;)*) => { $(
        impl Tiny for $log {
            const LEN: u64 = 128 + $len;
            const ROOM: usize = $room;
            const LENS: [usize; 2] = $lens;
            fn tiny() -> Self::Options {
                $options
            }
        }
    )* };
}

tiny! {
    VbLog<HalfLine>: 2 * 64, 4, [8, 24], ();
    VbLog<OneLine>: 3 * 64, 3, [8, 56], ();
    VbLog<TwoLines>: 4 * 64, 2, [16, 119], ();
    LinesLog: 5 * 64, 2, [56, 100], ();
    WordsLog<1, 0, 63>: 64, 3, [8, 8], ();
    WordsLog<4, 3, 56>: 2 * 64, 4, [32, 32], ();
    WordsLog<16, 5, 0>: 4 * 64, 2, [128, 128], ();
    FvbLog: 6 * 64, 2, [40, 150], FvbOptions { lines: 3 };
    FvbEntryLog: 9 * 64, 2, [60, 100], FvbEntryOptions { entry_lines: 3 };
    ChainLog: 2 * 128 + 9 * 64, 2, [56, 100], ChainOptions { segments: 3 };
    RandomLog: 9 * 64, 2, [56, 100], RandomOptions { pattern: Some(PATTERN) };
}

/// Follows every recovery.
pub const AFTER: [Do; 5] = [Do::Crashed, Do::Stage(1), Do::Stage(0), Do::Trim(1), Do::Commit];

/// Runs of at most three operations, for logs of every age; and whether the log starts with a hole.
pub const SHORT: [(bool, &[Do]); 13] = [
    (false, &[Do::Stage(0), Do::Other(&Do::Commit)]),
    (false, &[Do::Stage(1), Do::Other(&Do::Commit)]),
    (false, &[Do::Stage(1), Do::Stage(1), Do::Commit]),
    (false, &[Do::Stage(0), Do::Stage(1), Do::Commit]),
    (false, &[Do::Stage(0), Do::Reopen, Do::Stage(0)]),
    (false, &[Do::Stage(1), Do::Reopen, Do::Stage(1)]),
    (false, &[Do::Stage(1), Do::Trim(9), Do::Stage(1)]),
    (false, &[Do::Stage(1), Do::Trim(9), Do::Reopen]),
    (false, &[Do::Trim(9), Do::Other(&Do::Commit)]),
    (false, &[Do::WillFormat, Do::Format, Do::Stage(0)]),
    (false, &[Do::WillFormat, Do::Format, Do::Stage(1)]),
    (true, &[Do::Reopen, Do::Stage(0)]),
    (true, &[Do::Reopen, Do::Stage(1), Do::Stage(1)]),
];

/// Runs for logs that hold records in the beginning, up to what there is room for: the first trim, or the first lack of room,
/// then comes at once. With the age of the log, and the number of records.
pub const HELD: [(usize, usize, &[Do]); 24] = [
    (0, 2, &[Do::Stage(0)]),
    (0, 4, &[Do::Stage(0)]),
    (3, 1, &[Do::Stage(0)]),
    (4, 1, &[Do::Stage(0)]),
    (0, 2, &[Do::Stage(0), Do::Other(&Do::Commit)]),
    (1, 2, &[Do::Stage(0), Do::Other(&Do::Commit)]),
    (0, 2, &[Do::Trim(1), Do::Other(&Do::Stage(0))]),
    (1, 2, &[Do::Trim(1), Do::Other(&Do::Stage(0))]),
    (3, 2, &[Do::Trim(1), Do::Other(&Do::Stage(0))]),
    (5, 2, &[Do::Trim(1), Do::Other(&Do::Stage(0))]),
    (0, 4, &[Do::Trim(1), Do::Other(&Do::Stage(0))]),
    (1, 4, &[Do::Trim(1), Do::Other(&Do::Stage(0))]),
    (0, 2, &[Do::Stage(0), Do::Reopen]),
    (1, 2, &[Do::Stage(0), Do::Reopen]),
    (0, 0, &[Do::Stage(0), Do::Reopen]),
    (0, 2, &[Do::Stage(1), Do::Stage(0)]),
    (1, 2, &[Do::Stage(1), Do::Stage(0)]),
    (1, 1, &[Do::Stage(1), Do::Stage(1)]),
    (1, 2, &[Do::Stage(0), Do::Other(&Do::Stage(1))]),
    (2, 4, &[Do::Stage(0), Do::Other(&Do::Stage(0))]),
    (2, 0, &[Do::WillFormat, Do::Format, Do::Stage(0), Do::Stage(0)]),
    (3, 0, &[Do::WillFormat, Do::Format, Do::Stage(0), Do::Stage(0)]),
    (3, 0, &[Do::WillFormat, Do::Format, Do::Stage(0), Do::Stage(1)]),
    (6, 4, &[Do::WillFormat, Do::Format, Do::Stage(1), Do::Stage(1)]),
];

/// The shortest runs that reach every site of a log: staged and committed records around the ring, a trim that is not
/// durable yet when its space is needed, trims past staged records, restarts, formatting, a hole left by a crash.
/// With the age of the log, and whether it starts with a hole.
pub const RUNS: [(usize, bool, &[Do]); 17] = [
    (0, false, &[Do::Stage(1), Do::Stage(1), Do::Commit, Do::WillFormat, Do::Format, Do::Stage(1), Do::Stage(1)]),
    (3, true, &[Do::Reopen, Do::Stage(0), Do::Commit, Do::Stage(1)]),
    (2, true, &[Do::Reopen, Do::Stage(0), Do::Commit, Do::Stage(1)]),
    (4, true, &[Do::Reopen, Do::Stage(1), Do::Stage(1)]),
    (
        3,
        false,
        &[
            Do::Stage(1),
            Do::Commit,
            Do::Trim(9),
            Do::Commit,
            Do::Trim(9),
            Do::Other(&Do::Commit),
            Do::Stage(1),
            Do::Stage(1),
            Do::Commit,
            Do::Stage(1),
        ],
    ),
    (
        3,
        false,
        &[
            Do::Stage(0),
            Do::Stage(0),
            Do::Stage(0),
            Do::Commit,
            Do::WillFormat,
            Do::Format,
            Do::Stage(0),
            Do::Stage(0),
            Do::Stage(0),
        ],
    ),
    (
        0,
        false,
        &[
            Do::Stage(1),
            Do::Stage(1),
            Do::Commit,
            Do::Stage(1),
            Do::Stage(1),
            Do::Commit,
            Do::WillFormat,
            Do::Format,
            Do::Stage(1),
            Do::Stage(1),
            Do::Stage(1),
        ],
    ),
    (
        2,
        false,
        &[
            Do::Stage(1),
            Do::Other(&Do::Commit),
            Do::Stage(1),
            Do::Other(&Do::Stage(0)),
            Do::Commit,
            Do::Stage(1),
            Do::Stage(1),
            Do::Stage(0),
        ],
    ),
    (
        2,
        false,
        &[
            Do::Stage(0),
            Do::Stage(1),
            Do::Commit,
            Do::Stage(1),
            Do::Stage(0),
            Do::Commit,
            Do::Trim(1),
            Do::Stage(0),
            Do::Commit,
        ],
    ),
    (
        0,
        false,
        &[
            Do::Stage(0),
            Do::Stage(1),
            Do::Trim(1),
            Do::Commit,
            Do::Stage(0),
            Do::Stage(1),
            Do::Commit,
            Do::Trim(1),
            Do::Stage(0),
            Do::Commit,
            Do::Reopen,
        ],
    ),
    (
        1,
        false,
        &[Do::Stage(0), Do::Stage(1), Do::Commit, Do::Trim(9), Do::Stage(1), Do::Reopen, Do::Stage(1), Do::Commit],
    ),
    (
        3,
        false,
        &[
            Do::Stage(1),
            Do::Trim(9),
            Do::Stage(1),
            Do::Stage(0),
            Do::Commit,
            Do::Trim(1),
            Do::Reopen,
            Do::Stage(1),
            Do::Commit,
        ],
    ),
    (
        1,
        false,
        &[
            Do::Stage(0),
            Do::Stage(1),
            Do::Other(&Do::Commit),
            Do::Trim(9),
            Do::Other(&Do::Stage(1)),
            Do::Stage(0),
            Do::Commit,
            Do::Trim(1),
            Do::Commit,
        ],
    ),
    (
        0,
        false,
        &[
            Do::Stage(1),
            Do::Stage(1),
            Do::Commit,
            Do::Trim(1),
            Do::Other(&Do::Stage(1)),
            Do::Other(&Do::Stage(1)),
            Do::Commit,
            Do::Trim(1),
            Do::Other(&Do::Commit),
        ],
    ),
    (1, true, &[Do::Reopen, Do::Stage(1), Do::Commit, Do::Stage(0), Do::Commit]),
    (0, true, &[Do::Reopen, Do::Stage(0), Do::Commit, Do::Stage(0), Do::Commit]),
    (3, false, &[Do::Stage(1), Do::Stage(0), Do::Commit, Do::WillFormat, Do::Format, Do::Stage(1), Do::Commit]),
];
