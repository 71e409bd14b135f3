//! A whole crash test in one place: all short sequences of an alphabet of operations, generated long ones, and threads.

use std::ops::{RangeInclusive, RangeToInclusive};

use proptest::collection::vec;
use proptest::strategy::Strategy as Generate;

use crate::explore::Explorer;
use crate::model::persistency::Persistency;
use crate::report::Report;
use crate::subject::{Contract, Subject};
use crate::threads::{Concurrent, Threads};

/// Every crash state, however many there are.
#[derive(Clone, Copy, Debug)]
pub struct Exhaustive;

/// So many samples of the states of a crash point that has too many.
#[derive(Clone, Copy, Debug)]
pub struct Samples(pub u64);

/// How many recoveries may be spent on a crash point.
#[derive(Clone, Copy, Debug)]
pub struct Budget {
    executions: u64,
    samples: u64,
}

impl Exhaustive {
    /// Up to 20 000 recoveries a crash point, then samples; the report then says "not complete".
    #[must_use]
    pub fn or(self, samples: Samples) -> Budget {
        Budget { executions: 20_000, samples: samples.0 }
    }
}

impl From<Exhaustive> for Budget {
    fn from(_: Exhaustive) -> Self {
        Budget { executions: u64::MAX, samples: 0 }
    }
}

impl From<Samples> for Budget {
    fn from(samples: Samples) -> Self {
        Budget { executions: 1, samples: samples.0 }
    }
}

/// A number, or a range of numbers: `3`, `1..=5`, `..=2`.
#[derive(Clone, Debug)]
pub struct Numbers(RangeInclusive<usize>);

impl From<usize> for Numbers {
    fn from(number: usize) -> Self {
        Numbers(number..=number)
    }
}

impl From<RangeInclusive<usize>> for Numbers {
    fn from(range: RangeInclusive<usize>) -> Self {
        Numbers(range)
    }
}

impl From<RangeToInclusive<usize>> for Numbers {
    fn from(range: RangeToInclusive<usize>) -> Self {
        Numbers(1..=range.end)
    }
}

/// Most operations generated to run on what was recovered, where none are given.
const MOST_AFTER: usize = 3;

type Part<S> = Box<dyn Fn(&CrashTest<S>) -> Report>;

/// A crash test, put together; [`crash_test!`](crate::crash_test) writes one as a `#[test]`.
pub struct CrashTest<S: Subject> {
    subject: S,
    explorer: Explorer,
    alphabet: Vec<S::Op>,
    after: Vec<S::Op>,
    len: Numbers,
    cases: u64,
    generated: Option<Part<S>>,
    threads: Option<Part<S>>,
}

impl<S: Subject> CrashTest<S> {
    /// A test of `subject`; says what to run by [`alphabet`](Self::alphabet), [`ops`](Self::ops), or both.
    pub fn new(subject: S) -> Self {
        CrashTest {
            subject,
            explorer: Explorer::new().crashes(2).crash_later(true),
            alphabet: Vec::new(),
            after: Vec::new(),
            len: Numbers(1..=3),
            cases: 100,
            generated: None,
            threads: None,
        }
    }

    /// Names the reference model. It is the subject's own: this only says so where the test is read.
    #[must_use]
    pub fn model<M>(self) -> Self
    where
        S: Subject<Model = M>,
    {
        self
    }

    /// Runs every sequence of [`len`](Self::len) of these operations.
    #[must_use]
    pub fn alphabet(self, alphabet: impl Into<Vec<S::Op>>) -> Self {
        CrashTest { alphabet: alphabet.into(), ..self }
    }

    /// Operations in a history, a number or a range; up to 3 if nothing is said. With [`threads`](Self::threads), in each
    /// thread. Of the sequences of an alphabet the longest are run: shorter ones are their prefixes.
    #[must_use]
    pub fn len(self, len: impl Into<Numbers>) -> Self {
        CrashTest { len: len.into(), ..self }
    }

    /// Runs these on every recovered structure.
    #[must_use]
    pub fn after(self, after: impl Into<Vec<S::Op>>) -> Self {
        CrashTest { after: after.into(), ..self }
    }

    /// Runs generated histories of [`len`](Self::len) operations, as many as there are [`cases`](Self::cases). What runs on
    /// the recovered structure is generated, too, unless it is [given](Self::after).
    #[must_use]
    pub fn ops(self, op: impl Generate<Value = S::Op> + 'static) -> Self
    where
        S::Op: 'static,
    {
        let op = op.boxed();
        let part = move |test: &Self| {
            let ops = vec(op.clone(), test.len.0.clone());
            if test.after.is_empty() {
                return test.explorer.check(&test.subject, test.cases, &(ops, vec(op.clone(), 0..=MOST_AFTER)));
            }
            let after = test.after.clone();
            test.explorer.check(&test.subject, test.cases, &ops.prop_map(move |ops| (ops, after.clone())))
        };
        CrashTest { generated: Some(Box::new(part)), ..self }
    }

    /// Runs generated pairs of histories, and operations on what was recovered. See [`cases`](Self::cases).
    #[must_use]
    pub fn histories(self, generate: impl Generate<Value = (Vec<S::Op>, Vec<S::Op>)> + 'static) -> Self {
        let part = move |test: &Self| test.explorer.check(&test.subject, test.cases, &generate);
        CrashTest { generated: Some(Box::new(part)), ..self }
    }

    /// Number of generated cases, 100 if nothing is said.
    #[must_use]
    pub fn cases(self, cases: u64) -> Self {
        CrashTest { cases, ..self }
    }

    /// How many crashes follow each other at most; 2 if nothing is said.
    #[must_use]
    pub fn crashes(self, crashes: impl Into<Numbers>) -> Self {
        let most = *crashes.into().0.end();
        CrashTest { explorer: self.explorer.clone().crashes(most), ..self }
    }

    /// What the structure promises.
    #[must_use]
    pub fn contract(self, contract: Contract) -> Self {
        CrashTest { explorer: self.explorer.clone().contract(contract), ..self }
    }

    /// What may be found of a line after a crash.
    #[must_use]
    pub fn medium(self, model: Persistency) -> Self {
        CrashTest { explorer: self.explorer.clone().model(model), ..self }
    }

    /// Whether the process dies, too, with the power on.
    #[must_use]
    pub fn process_deaths(self, process_deaths: bool) -> Self {
        CrashTest { explorer: self.explorer.clone().process_deaths(process_deaths), ..self }
    }

    /// How many recoveries may be spent: [`Exhaustive`], [`Samples`], or `Exhaustive.or(Samples(200))`, the default.
    #[must_use]
    pub fn budget(self, budget: impl Into<Budget>) -> Self {
        let Budget { executions, samples } = budget.into();
        CrashTest { explorer: self.explorer.clone().executions_per_point(executions).samples(samples), ..self }
    }

    /// Everything else: how to explore. Comes before what changes a part of it.
    #[must_use]
    pub fn explorer(self, explorer: Explorer) -> Self {
        CrashTest { explorer, ..self }
    }

    /// Runs only what the replay string of a failure names.
    #[must_use]
    pub fn replay(self, replay: &str) -> Self {
        CrashTest { explorer: self.explorer.clone().replay(replay), ..self }
    }

    /// Runs it all, up to the first failure.
    #[must_use = "a report may hold a failure: call `assert_ok`, or look at `failure`"]
    pub fn run(&self) -> Report {
        let mut total = Report::default();
        if !self.alphabet.is_empty() {
            total = self.explorer.sequences(&self.subject, &self.alphabet, *self.len.0.end(), &self.after);
        }
        for part in [&self.generated, &self.threads].into_iter().flatten() {
            if total.failure.is_none() {
                total.merge(part(self));
            }
        }
        total
    }
}

impl<S: Concurrent> CrashTest<S> {
    /// Runs also every program of so many threads (a number, or a range: of which 1 is what runs anyway) with
    /// [`len`](Self::len) operations of the alphabet each.
    #[must_use]
    pub fn threads(self, threads: impl Into<Numbers>) -> Self {
        let threads = threads.into();
        let part = move |test: &Self| {
            let mut total = Report::default();
            for (threads, len) in
                threads.0.clone().filter(|n| *n > 1).flat_map(|n| test.lens().map(move |len| (n, len)))
            {
                if total.failure.is_none() {
                    let explorer = Threads::new(test.explorer.clone());
                    total.merge(explorer.programs(&test.subject, &test.alphabet, threads, len, &test.after));
                }
            }
            total
        };
        CrashTest { threads: Some(Box::new(part)), ..self }
    }

    /// Operations in a thread; at least one.
    fn lens(&self) -> RangeInclusive<usize> {
        *self.len.0.start().max(&1)..=*self.len.0.end()
    }
}

/// Writes a crash test as a `#[test]`: its name, the structure under test (a [`Subject`](crate::Subject), by the keyword
/// `structure` or `subject`), the type of its reference model if you like, and then any of the settings of
/// [`CrashTest`](crate::CrashTest).
///
/// ```
/// # use durix_crashsim::{Contract, Exhaustive, Persistency, Samples, Simulated, Subject, crash_test};
/// # use durix_pmem::{Mapping, Off, Session, Word};
/// # use std::sync::atomic::Ordering::{Relaxed, Release};
/// # struct Counter;
/// # const AT: Off<Word> = Off::new(64);
/// # impl Subject for Counter {
/// #     type Op = u64;
/// #     type Ret = u64;
/// #     type State = u64;
/// #     type Model = u64;
/// #     type Store = Mapping<Simulated>;
/// #     type Live = Session<Simulated>;
/// #     fn store(&self, medium: Simulated) -> Self::Store { Mapping::heap(4096, medium) }
/// #     fn create(&self, store: &Self::Store) -> Self::Live { store.session().unwrap() }
/// #     fn recover(&self, store: &Self::Store) -> Result<Self::Live, String> {
/// #         let mut session = store.session().map_err(|e| e.to_string())?;
/// #         { let op = session.enter().unwrap(); op.persist(op.at(AT)); }
/// #         Ok(session)
/// #     }
/// #     fn apply(&self, live: &mut Self::Live, by: &u64) -> u64 {
/// #         let op = live.enter().unwrap();
/// #         let sum = op.load(op.at(AT), Relaxed) + by;
/// #         op.store(op.at(AT), sum, Release);
/// #         op.persist(op.at(AT));
/// #         sum
/// #     }
/// #     fn observe(&self, live: &mut Self::Live) -> u64 {
/// #         let op = live.enter().unwrap();
/// #         op.load(op.at(AT), Relaxed)
/// #     }
/// #     fn model(&self) -> u64 { 0 }
/// #     fn step(&self, model: &mut u64, by: &u64) -> u64 { *model += by; *model }
/// #     fn expect(&self, model: &u64) -> u64 { *model }
/// # }
/// crash_test! {
///     name: the_counter_is_durable,
///     structure: Counter,
///     model: u64,
///     alphabet: [1, 2],
///     ops: 1..100u64,
///     len: 1..=4,
///     crashes: ..=2,
///     contract: Contract::Strict,
///     medium: Persistency::Pcso,
///     process_deaths: true,
///     budget: Exhaustive.or(Samples(10_000)),
/// }
/// # fn main() {}
/// ```
///
/// The test panics with the story of the first failure, and prints what was explored. `threads:` takes a number or a range,
/// for a subject that is [`Concurrent`](crate::Concurrent); `replay:` takes the string of a failure.
#[macro_export]
macro_rules! crash_test {
    ($(#[$meta:meta])* name: $name:ident, structure: $($rest:tt)*) => {
        $crate::crash_test! { $(#[$meta])* name: $name, subject: $($rest)* }
    };
    ($(#[$meta:meta])* name: $name:ident, subject: $subject:expr, model: $model:ty
        $(, $key:ident : $value:expr)* $(,)?) => {
        $(#[$meta])*
        #[test]
        fn $name() {
            let report = $crate::CrashTest::new($subject).model::<$model>()$(.$key($value))*.run().assert_ok();
            println!("{}: {report}", stringify!($name));
        }
    };
    ($(#[$meta:meta])* name: $name:ident, subject: $subject:expr $(, $key:ident : $value:expr)* $(,)?) => {
        $(#[$meta])*
        #[test]
        fn $name() {
            let report = $crate::CrashTest::new($subject)$(.$key($value))*.run().assert_ok();
            println!("{}: {report}", stringify!($name));
        }
    };
}
