//! A planted pattern: a small structure with variants, and how the wrong one is found out.

use std::collections::BTreeMap;
use std::fmt::Debug;

use durix_crashsim::{Cause, Contract, Explorer, Report, Simulated, Subject};
use durix_pmem::{Counting, Counts, Hardware, Mapping, Medium, Off, Op, Session, Word};

use crate::clock::processor_time;
use crate::erased::{Erased, Operation, erase};
pub use crate::scenario::Bound;
use crate::scenario::Told;
use crate::sweep::Fault;

/// What a structure holds, as keys and values.
pub type Map = BTreeMap<u64, u64>;

/// A small structure with variants.
pub trait Host: Sized + 'static {
    /// A variant.
    type Bug: Copy + PartialEq + Debug + 'static;
    /// An operation.
    type Do: Copy + Debug + 'static;
    /// What it keeps outside the arena.
    type Volatile;

    /// Makes an empty one in a zeroed arena.
    fn create<M: Medium>(op: &Op<'_, M>, bug: Option<Self::Bug>) -> Self::Volatile;
    /// Opens it after a crash.
    ///
    /// # Errors
    /// Why it cannot be.
    fn recover<M: Medium>(op: &Op<'_, M>, bug: Option<Self::Bug>) -> Result<Self::Volatile, String>;
    /// Runs an operation in the first of two sessions, or both.
    fn apply<M: Medium>(
        ops: (&Op<'_, M>, &Op<'_, M>),
        volatile: &mut Self::Volatile,
        bug: Option<Self::Bug>,
        what: Self::Do,
    ) -> Option<u64>;
    /// All that it holds.
    fn contents<M: Medium>(op: &Op<'_, M>) -> Map;
    /// Space leaked or owned twice, and other damage.
    fn check<M: Medium>(op: &Op<'_, M>) -> Vec<String> {
        let _ = op;
        Vec::new()
    }
    /// The model.
    fn step(model: &mut Map, what: Self::Do) -> Option<u64>;
    /// Whether an operation acknowledges what came before (all do, unless interleaved ones are told apart).
    fn acknowledges(what: Self::Do) -> bool {
        let _ = what;
        true
    }
}

/// The word at an offset.
pub fn word<'s, M: Medium>(op: &Op<'s, M>, off: u64) -> &'s Word {
    op.at(Off::new(off))
}

/// A host as a subject.
struct Planted<H: Host>(Option<H::Bug>);

struct Live<H: Host> {
    sessions: [Session<Simulated>; 2],
    volatile: H::Volatile,
}

impl<H: Host> Subject for Planted<H> {
    type Op = H::Do;
    type Ret = Option<u64>;
    type State = Map;
    type Model = Map;
    type Store = Mapping<Simulated>;
    type Live = Live<H>;

    fn store(&self, medium: Simulated) -> Self::Store {
        Mapping::heap(4096, medium)
    }
    fn create(&self, store: &Self::Store) -> Live<H> {
        let mut sessions = [store.session().unwrap(), store.session().unwrap()];
        let volatile = H::create(&sessions[0].enter().unwrap(), self.0);
        Live { sessions, volatile }
    }
    fn recover(&self, store: &Self::Store) -> Result<Live<H>, String> {
        let mut sessions = [store.session().unwrap(), store.session().unwrap()];
        let volatile = H::recover(&sessions[0].enter().unwrap(), self.0)?;
        Ok(Live { sessions, volatile })
    }
    fn apply(&self, live: &mut Live<H>, what: &H::Do) -> Option<u64> {
        let [a, b] = &mut live.sessions;
        H::apply((&a.enter().unwrap(), &b.enter().unwrap()), &mut live.volatile, self.0, *what)
    }
    fn observe(&self, live: &mut Live<H>) -> Map {
        H::contents(&live.sessions[0].enter().unwrap())
    }
    fn check(&self, live: &mut Live<H>) -> Vec<String> {
        H::check(&live.sessions[0].enter().unwrap())
    }
    fn model(&self) -> Map {
        Map::new()
    }
    fn step(&self, model: &mut Map, what: &H::Do) -> Option<u64> {
        H::step(model, *what)
    }
    fn expect(&self, model: &Map) -> Map {
        model.clone()
    }
    fn is_sync(&self, what: &H::Do) -> bool {
        H::acknowledges(*what)
    }
}

/// A pattern: run with its bug, or without.
pub struct Pattern {
    pub group: &'static str,
    pub name: &'static str,
    pub bound: Bound,
    pub run: Box<dyn Fn(bool) -> Outcome>,
    /// The failure of the planted variant, shrunk.
    pub tell: Box<dyn Fn() -> Option<Told>>,
}

/// How something is explored: the operations, and those that follow.
pub type Question<Do> = (Explorer, &'static [Do], &'static [Do]);

/// What came of a run.
pub struct Outcome {
    pub report: Report,
    /// Write-backs and fences are not as many as they should be.
    pub off_budget: bool,
}

impl Pattern {
    /// `ops` are run, crashed and recovered, and `after` on what was recovered; `bound` is what the pattern needs.
    /// A variant with a bug, run under a bound beside the correct one.
    pub fn new<H: Host>(
        group: &'static str,
        name: &'static str,
        bound: Bound,
        bug: H::Bug,
        (ops, after): (&'static [H::Do], &'static [H::Do]),
    ) -> Self {
        let contract = if bound == Bound::TwoThreads { Contract::Buffered } else { Contract::Strict };
        let crashes = if bound == Bound::Recovery { 2 } else { 1 };
        let explorer = Explorer::new().contract(contract).crashes(crashes).crash_in_create(true);
        Self::explored::<H>((group, name, bound), bug, (ops, after), explorer)
    }

    /// A pattern that shows only where the first of the operations after a recovery is the first that looks at what was
    /// recovered.
    ///
    /// # Panics
    /// If it shows elsewhere: then it is another pattern.
    pub fn first_look<H: Host>(
        name: &'static str,
        bug: H::Bug,
        (ops, after): (&'static [H::Do], &'static [H::Do]),
    ) -> Self {
        let explorer = Explorer::new().crash_in_create(true);
        let seen = explorer.run_then(&erased::<H>(Some(bug)), &Operation::all(ops), &Operation::all(after));
        assert!(seen.failure.is_none(), "{name}: a scan shows it, too");
        Self::explored::<H>(("first look", name, Bound::Recovery), bug, (ops, after), explorer.observe_first(false))
    }

    /// A pattern that the `usual` question does not see, and that of its own class does. Both are correct variants' questions,
    /// too.
    ///
    /// # Panics
    /// If the usual question sees it, or gives an alarm without it.
    pub fn blind<U: Host<Bug = A::Bug>, A: Host>(
        (group, name): (&'static str, &'static str),
        bug: A::Bug,
        (explorer, ops, after): Question<U::Do>,
        asked: Question<A::Do>,
    ) -> Self {
        for planted in [None, Some(bug)] {
            let explorer = explorer.clone().suggest(false);
            let seen = explorer.run_then(&erased::<U>(planted), &Operation::all(ops), &Operation::all(after));
            assert!(seen.failure.is_none(), "{name} ({planted:?}): the usual question shows it, too");
        }
        let (explorer, ops, after) = asked;
        Self::explored::<A>((group, name, Bound::Recovery), bug, (ops, after), explorer)
    }

    fn explored<H: Host>(
        (group, name, bound): (&'static str, &'static str, Bound),
        bug: H::Bug,
        (ops, after): (&'static [H::Do], &'static [H::Do]),
        explorer: Explorer,
    ) -> Self {
        let quick = explorer.clone().suggest(false);
        let run = move |planted: bool| {
            let (ops, after) = (Operation::all(ops), Operation::all(after));
            let report = quick.run_then(&erased::<H>(planted.then_some(bug)), &ops, &after);
            Outcome { report, off_budget: false }
        };
        let tell = move || {
            let variants = [&erased::<H>(Some(bug)), &erased::<H>(None)];
            tell(&explorer, variants, (&Operation::all(ops), &Operation::all(after)))
        };
        Pattern { group, name, bound, run: Box::new(run), tell: Box::new(tell) }
    }

    /// A pattern that costs time only: the count of write-backs and fences of an operation is off.
    pub fn cost<H: Host>(group: &'static str, name: &'static str, bug: H::Bug, op: H::Do, budget: (u64, u64)) -> Self {
        let run = move |planted: bool| {
            let counts = counts_of::<H>(planted.then_some(bug), op);
            let report = Explorer::new().run(&erased::<H>(planted.then_some(bug)), &Operation::all(&[op])).assert_ok();
            Outcome { report, off_budget: (counts.write_backs, counts.fences) != budget }
        };
        Pattern { group, name, bound: Bound::Count, run: Box::new(run), tell: Box::new(|| None) }
    }

    /// Tries it: the correct variant first.
    ///
    /// # Panics
    /// If the correct variant gives an alarm, or is not explored completely.
    pub fn attempt(&self, quality: bool) -> Fault {
        let correct = (self.run)(false);
        assert!(!correct.off_budget, "{}: the correct variant is off its budget", self.name);
        assert!(correct.report.assert_ok().complete, "{}: the correct variant was not explored completely", self.name);
        let start = processor_time();
        let Outcome { report, off_budget } = (self.run)(true);
        let time = processor_time() - start;
        let bound = |cause: &Cause| match cause {
            Cause::Findings { .. } if self.bound == Bound::Recovery => Bound::Allocator,
            _ => self.bound,
        };
        Fault {
            structure: "planted".into(),
            place: self.name.into(),
            kind: self.group.into(),
            droppable: false,
            caught: report.failure.as_ref().map(|failure| bound(&failure.cause)).or(off_budget.then_some(Bound::Count)),
            shown: None,
            by: String::new(),
            executions: report.executions,
            time,
            told: quality.then(|| (self.tell)()).flatten(),
        }
    }
}

fn erased<H: Host>(bug: Option<H::Bug>) -> Erased {
    erase(Planted::<H>(bug))
}

/// The failure of a planted bug with as few operations as possible; leaving some out must not break the correct variant.
fn tell(
    explorer: &Explorer,
    [planted, correct]: [&Erased; 2],
    (ops, after): (&[Operation], &[Operation]),
) -> Option<Told> {
    let report = explorer.clone().suggest(false).run_then(planted, ops, after);
    let still_correct = |ops: &[Operation], after: &[Operation]| {
        explorer.clone().suggest(false).run_then(correct, ops, after).failure.is_none()
    };
    let failure = explorer.shrunk(planted, ops, after, report, still_correct).failure?;
    let again = explorer.clone().replay(&failure.replay).run_then(planted, ops, after).failure;
    Some(Told::new(failure, again, false))
}

/// Write-backs and fences of one operation.
fn counts_of<H: Host>(bug: Option<H::Bug>, what: H::Do) -> Counts {
    let counting = Counting::new(Hardware::PAGE_CACHE);
    let mapping = Mapping::heap(4096, counting);
    let (mut a, mut b) = (mapping.session().unwrap(), mapping.session().unwrap());
    let (a, b) = (a.enter().unwrap(), b.enter().unwrap());
    let mut volatile = H::create(&a, bug);
    let before = counting.counts();
    H::apply((&a, &b), &mut volatile, bug, what);
    counting.counts() - before
}
