//! Durable linearizability of concurrent histories.
//!
//! A history is what the callers of a structure saw: which operations were invoked and which returned, in which order,
//! with what; and where crashes were. It is *durably linearizable* (Izraelevitz, Mendes and Scott, DISC 2016) if every
//! operation that returned took effect at one moment between its invocation and its return, every operation that a crash
//! interrupted took effect at one moment between its invocation and that crash, or never, and nothing that took effect is
//! lost. [`check`] decides that, for any sequential [`Spec`].
//!
//! | contract | what a crash may take back |
//! |---|---|
//! | [`Contract::Strict`] | nothing that returned |
//! | [`Contract::Buffered`] | a suffix of the order in which operations took effect, but no [sync](Spec::is_sync) that returned: what is recovered is a consistent cut no older than the last completed sync |
//!
//! ```
//! use durix_crashsim::Contract;
//! use durix_crashsim::linear::{History, Spec, Verdict, check};
//!
//! /// A register that starts at 0: `Some(v)` writes, `None` reads.
//! struct Register;
//!
//! impl Spec for Register {
//!     type Op = Option<u64>;
//!     type Ret = u64;
//!     type State = u64;
//!
//!     fn initial(&self) -> u64 {
//!         0
//!     }
//!     fn step(&self, state: &mut u64, op: &Option<u64>) -> u64 {
//!         *state = op.unwrap_or(*state);
//!         *state
//!     }
//! }
//!
//! let mut history = History::new();
//! let write = history.invoke(0, Some(1));
//! let read = history.invoke(1, None);
//! history.returns(read, 1);
//! history.crash(); // the write never returned, but its value was read
//! let after = history.invoke(1, None);
//! history.returns(after, 0); // a crash took back what a reader had seen
//! assert!(matches!(check(&Register, &history, Contract::Strict), Verdict::Illegal(_)));
//! # let _ = write;
//! ```
//!
//! A process that is killed writes its history down by [`Moments`]; [`History::add_moments`] takes it up.
//!
//! # How
//! The algorithm is Wing and Gong's with the memo of Lowe: depth first over "which of the operations that nothing
//! precedes takes effect next", never twice from the same set of operations and the same state. Where every operation
//! has a [key](Spec::key), each key is a history of its own under the strict contract, because durable
//! linearizability is a local property; a consistent cut is not, so the buffered contract is checked as a whole.

mod moments;
mod search;

use std::collections::BTreeMap;
use std::fmt;
use std::fmt::Debug;
use std::hash::Hash;

pub use moments::{Moment, Moments};

use crate::subject::Contract;
pub(crate) use search::{Search, Span, SpanOf};

/// A sequential specification.
pub trait Spec {
    /// An operation.
    type Op: Debug;
    /// What an operation answers.
    type Ret: PartialEq + Debug;
    /// The state; equal states have equal futures.
    type State: Clone + Eq + Hash;

    /// The state before the first operation; with keys, of each key.
    fn initial(&self) -> Self::State;

    /// Runs an operation.
    fn step(&self, state: &mut Self::State, op: &Self::Op) -> Self::Ret;

    /// The one key that the operation is about: it neither reads nor changes anything of other keys. `None`, as unless
    /// overridden, for operations on everything; one such operation in a history, and it is checked as a whole.
    fn key(&self, op: &Self::Op) -> Option<u64> {
        let _ = op;
        None
    }

    /// Whether everything that took effect before the operation is durable by the time it returns, itself included.
    /// Matters for [`Contract::Buffered`] only.
    fn is_sync(&self, op: &Self::Op) -> bool {
        let _ = op;
        false
    }
}

/// Names a call in its history.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CallId(pub usize);

#[derive(Clone, Debug)]
struct Call<O, R> {
    thread: usize,
    op: O,
    era: usize,
    invoked: u64,
    returned: Option<(u64, R)>,
}

/// A concurrent history: calls in the order of their invocation, returns, crashes.
#[derive(Clone, Debug)]
pub struct History<O, R> {
    calls: Vec<Call<O, R>>,
    clock: u64,
    crashes: usize,
}

impl<O, R> Default for History<O, R> {
    fn default() -> Self {
        History { calls: Vec::new(), clock: 0, crashes: 0 }
    }
}

impl<O, R> History<O, R> {
    /// An empty one.
    pub fn new() -> Self {
        History::default()
    }

    /// An operation is invoked, after everything noted so far.
    pub fn invoke(&mut self, thread: usize, op: O) -> CallId {
        self.clock += 1;
        self.calls.push(Call { thread, op, era: self.crashes, invoked: self.clock, returned: None });
        CallId(self.calls.len() - 1)
    }

    /// A call returns, after everything noted so far.
    ///
    /// # Panics
    /// If the call has returned before, or a crash has come since it was invoked.
    pub fn returns(&mut self, call: CallId, answer: R) {
        self.clock += 1;
        let now = self.clock;
        let call = &mut self.calls[call.0];
        assert!(call.returned.is_none(), "a call that returns twice");
        assert!(call.era == self.crashes, "a call that returns after a crash");
        call.returned = Some((now, answer));
    }

    /// An operation runs alone: invoked, and returns at once.
    pub fn runs(&mut self, thread: usize, op: O, answer: R) -> CallId {
        let call = self.invoke(thread, op);
        self.returns(call, answer);
        call
    }

    /// A crash: every call that has not returned never will.
    pub fn crash(&mut self) {
        self.crashes += 1;
    }

    /// Number of calls.
    pub fn len(&self) -> usize {
        self.calls.len()
    }

    /// Whether nothing was called.
    pub fn is_empty(&self) -> bool {
        self.calls.is_empty()
    }

    fn spans(&self, era: usize, only: impl Fn(&O) -> bool) -> Vec<(Span<'_, O, R>, CallId)> {
        let of_era = self.calls.iter().enumerate().filter(|(_, call)| call.era == era && only(&call.op));
        let span = |(id, call)| {
            let call: &Call<O, R> = call;
            let returned = call.returned.as_ref().map(|(at, answer)| (*at, answer));
            (Span { op: &call.op, invoked: call.invoked, returned }, CallId(id))
        };
        of_era.map(span).collect()
    }
}

/// What [`check`] says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// There is an order that explains everything.
    Legal,
    /// There is none.
    Illegal(Witness),
    /// The search was given up after so many states (see [`check_within`]).
    Undecided(u64),
}

impl Verdict {
    /// Whether there is an order that explains everything.
    pub fn is_legal(&self) -> bool {
        *self == Verdict::Legal
    }
}

/// Where the search for an order came furthest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Witness {
    /// The key of the calls concerned, where each key was checked by itself.
    pub key: Option<u64>,
    /// Number of crashes before the calls concerned.
    pub era: usize,
    /// The longest order found.
    pub explained: Vec<CallId>,
    /// Completed calls that may come next, none of which answered what it then would have to.
    pub stuck: Vec<CallId>,
}

impl fmt::Display for Witness {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "no order of the calls after {} crash(es)", self.era)?;
        if let Some(key) = self.key {
            write!(f, " on key {key}")?;
        }
        let ids = |ids: &[CallId]| ids.iter().map(|id| id.0.to_string()).collect::<Vec<_>>().join(" ");
        write!(f, " explains their answers: after {{{}}} none of {{{}}} fits", ids(&self.explained), ids(&self.stuck))
    }
}

/// States of the search beyond which [`check`] gives up.
const MAX_STATES: u64 = 1 << 22;

/// Whether a history is durably linearizable. Exponential in the number of calls that overlap, at worst; linear in the
/// number of those that do not.
pub fn check<S: Spec>(spec: &S, history: &History<S::Op, S::Ret>, contract: Contract) -> Verdict {
    check_within(spec, history, contract, MAX_STATES)
}

/// As [`check`], and gives up after `max_states` states.
pub fn check_within<S: Spec>(
    spec: &S,
    history: &History<S::Op, S::Ret>,
    contract: Contract,
    max_states: u64,
) -> Verdict {
    let keys: Option<Vec<u64>> = history.calls.iter().map(|call| spec.key(&call.op)).collect();
    let Some(keys) = keys.filter(|_| contract == Contract::Strict) else {
        return check_whole(spec, history, contract, max_states, None);
    };
    let distinct: BTreeMap<u64, ()> = keys.into_iter().map(|key| (key, ())).collect();
    let verdicts = distinct.keys().map(|key| check_whole(spec, history, contract, max_states, Some(*key)));
    verdicts.fold(Verdict::Legal, |worst, verdict| match (&worst, &verdict) {
        (Verdict::Illegal(_), _) | (Verdict::Undecided(_), Verdict::Legal) => worst,
        _ => verdict,
    })
}

fn check_whole<S: Spec>(
    spec: &S,
    history: &History<S::Op, S::Ret>,
    contract: Contract,
    max_states: u64,
    key: Option<u64>,
) -> Verdict {
    let mut states = vec![spec.initial()];
    for era in 0..=history.crashes {
        let calls = history.spans(era, |op| key.is_none() || spec.key(op) == key);
        let (spans, ids): (Vec<_>, Vec<_>) = calls.into_iter().unzip();
        // Without a crash nothing is taken back, whatever the contract.
        let contract = if era == history.crashes { Contract::Strict } else { contract };
        let mut search = Search::new(spec, spans, contract, max_states);
        search.run(states);
        if search.gave_up() {
            return Verdict::Undecided(max_states);
        }
        states = search.finals();
        if states.is_empty() {
            let (explained, stuck) = search.furthest();
            let named = |calls: Vec<usize>| calls.into_iter().map(|at| ids[at]).collect();
            return Verdict::Illegal(Witness { key, era, explained: named(explained), stuck: named(stuck) });
        }
    }
    Verdict::Legal
}

/// A history, one call a line.
impl<O: Debug, R: Debug> fmt::Display for History<O, R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut era = 0;
        for (id, call) in self.calls.iter().enumerate() {
            while era < call.era {
                writeln!(f, "     CRASH")?;
                era += 1;
            }
            write!(f, "{id:4} thread {} {:?}, from {}", call.thread, call.op, call.invoked)?;
            match &call.returned {
                Some((at, answer)) => writeln!(f, " to {at}: {answer:?}")?,
                None => writeln!(f, ", never returned")?,
            }
        }
        Ok(())
    }
}
