//! A crash simulator for tests. You write the operations of your structure and a reference model; it runs them on simulated persistent
//! memory, makes the states that a crash can leave, recovers from each, and compares the result with the model. Use it to test code that
//! must survive crashes: in persistent memory ([`Simulated`]) or in files ([`fs`]). Short sequences are explored completely, and the report
//! says so; long ones are sampled.
//!
//! | item | what it is |
//! |---|---|
//! | [`Subject`] | what you write: the structure, its storage, its operations, a reference model |
//! | [`Explorer`] | runs operations, crashes everywhere, recovers from every state: [`run`](Explorer::run), [`sequences`](Explorer::sequences), [`check`](Explorer::check) |
//! | [`Report`] | how many states were covered, whether that was all, and the story of a [`Failure`] |
//! | [`fs`] | the same for programs that keep their data in files: a simulated file system, [`fs::Files`], [`fs::FileSubject`] |
//! | [`AnySubject`], [`AnyConcurrent`] | subjects of one model as one type: tests of many structures compile the simulator once |
//! | [`mutation_sweep`] | drops every write-back and fence of your code in turn, and asks whether your test notices |
//!
//! ```
//! use std::sync::atomic::Ordering::{Relaxed, Release};
//! use durix_crashsim::{Explorer, Simulated, Subject};
//! use durix_pmem::{Mapping, Off, Session, Word};
//!
//! /// A durable counter at offset 64.
//! struct Counter {
//!     write_back: bool,
//! }
//! const AT: Off<Word> = Off::new(64);
//!
//! impl Subject for Counter {
//!     type Op = u64; // add this much
//!     type Ret = u64;
//!     type State = u64;
//!     type Model = u64;
//!     type Store = Mapping<Simulated>;
//!     type Live = Session<Simulated>;
//!
//!     fn store(&self, medium: Simulated) -> Self::Store {
//!         Mapping::heap(4096, medium)
//!     }
//!     fn create(&self, store: &Self::Store) -> Self::Live {
//!         store.session().unwrap() // zero is its initial content
//!     }
//!     fn recover(&self, store: &Self::Store) -> Result<Self::Live, String> {
//!         store.session().map_err(|e| e.to_string())
//!     }
//!     fn apply(&self, live: &mut Self::Live, by: &u64) -> u64 {
//!         let op = live.enter().unwrap();
//!         let word = op.at(AT);
//!         let sum = op.load(word, Relaxed) + by;
//!         op.store(word, sum, Release);
//!         if self.write_back {
//!             op.write_back(word);
//!         }
//!         op.fence();
//!         sum
//!     }
//!     fn observe(&self, live: &mut Self::Live) -> u64 {
//!         let op = live.enter().unwrap();
//!         op.load(op.at(AT), Relaxed)
//!     }
//!     fn model(&self) -> u64 {
//!         0
//!     }
//!     fn step(&self, model: &mut u64, by: &u64) -> u64 {
//!         *model += by;
//!         *model
//!     }
//!     fn expect(&self, model: &u64) -> u64 {
//!         *model
//!     }
//! }
//!
//! let report = Explorer::new().run(&Counter { write_back: true }, &[1, 2, 3]).assert_ok();
//! println!("{report}");
//! assert!(report.complete);
//!
//! let failure = Explorer::new().run(&Counter { write_back: false }, &[1, 2, 3]).failure.expect("is found");
//! assert!(failure.to_string().contains("not written back before the crash"), "{failure}");
//! ```

mod brief;
mod count;
mod drive;
mod erased;
mod explore;
pub mod fs;
mod harness;
pub mod linear;
mod model;
mod mutation;
mod panics;
mod random;
mod record;
mod replay;
mod report;
mod shrink;
mod subject;
mod threads;

pub use count::Count;
pub use erased::{AnyConcurrent, AnySubject, DynConcurrent, DynSubject};
pub use explore::{Explorer, Strategy};
pub use harness::{Budget, CrashTest, Exhaustive, Numbers, Samples};
pub use model::persistency::Persistency;
pub use mutation::{Mutant, Sites, Sweep, mutation_sweep, mutation_sweeps};
pub use record::backing::SimulatedBacking;
pub use record::medium::Simulated;
pub use report::{Cause, Failure, Report, Schedules};
pub use subject::{Contract, Subject};
pub use threads::{Concurrent, Threads};

/// The guide's code is a test.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/crashsim.md")]
struct Guide;
