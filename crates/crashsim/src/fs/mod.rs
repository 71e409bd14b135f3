//! Crash simulation for programs that keep their data in files.
//!
//! | item | what it is |
//! |---|---|
//! | [`SimulatedFs`], [`SimulatedFile`] | a file system in memory with the calls of `std::fs`, on which power failures are simulated |
//! | [`FileSystem`], [`OpenFile`], [`OsFs`] | those calls as traits, for code that runs on the operating system's files as well |
//! | [`FileSubject`] | what you write: how your program creates its files, recovers, its operations, a reference model |
//! | [`Files`] | the explorer: runs operations, crashes everywhere, recovers from every state that the crash can have left |
//! | [`Promises`] | what is assumed of names |
//! | [`Call`], [`Fault`] | calls that fail: EIO, a full disk, short writes, syncs that lose what they should have written |
//! | [`SimulatedPoolFile`], [`SimulatedJournal`] | pools of `durix-pmem` over simulated files |
//! | [`SyncSweep`] | every sync of your code left out in turn: does your test notice? |
//!
//! After a power failure each sector holds any of its contents since the last sync of its file, each size and each name any of
//! theirs, in any combination that no sync forbids. `docs/crashsim-files.md` has all rules, each with its test.
//!
//! A counter in a file, replaced as a whole: written under another name, synced, renamed. The directory has to be synced, too.
//!
//! ```
//! use durix_crashsim::Explorer;
//! use durix_crashsim::fs::{Files, FileSubject, Open, SimulatedFs};
//!
//! struct Counter {
//!     sync_directory: bool,
//! }
//!
//! impl FileSubject for Counter {
//!     type Op = u64; // add this much
//!     type Ret = ();
//!     type State = u64;
//!     type Model = u64;
//!     type Live = (SimulatedFs, u64);
//!
//!     fn create(&self, fs: &SimulatedFs) -> Self::Live {
//!         (fs.clone(), 0) // no file is zero
//!     }
//!     fn recover(&self, fs: &SimulatedFs) -> Result<Self::Live, String> {
//!         if !fs.exists("counter").unwrap() {
//!             return Ok((fs.clone(), 0));
//!         }
//!         let bytes = fs.read("counter").map_err(|e| e.to_string())?;
//!         let bytes = bytes.try_into().map_err(|_| "not 8 bytes")?;
//!         Ok((fs.clone(), u64::from_le_bytes(bytes)))
//!     }
//!     fn apply(&self, (fs, value): &mut Self::Live, by: &u64) {
//!         *value += by;
//!         let file = fs.open("counter.new", Open::Emptied).unwrap();
//!         file.write_all_at(&value.to_le_bytes(), 0).unwrap();
//!         file.sync_all().unwrap();
//!         fs.rename("counter.new", "counter").unwrap();
//!         if self.sync_directory {
//!             fs.sync_directory("/").unwrap();
//!         }
//!     }
//!     fn observe(&self, live: &mut Self::Live) -> u64 {
//!         live.1
//!     }
//!     fn model(&self) -> u64 {
//!         0
//!     }
//!     fn step(&self, model: &mut u64, by: &u64) {
//!         *model += by;
//!     }
//!     fn expect(&self, model: &u64) -> u64 {
//!         *model
//!     }
//! }
//!
//! let files = Files::new(Explorer::new().crashes(2));
//! let failure = files.run(&Counter { sync_directory: false }, &[1, 2]).failure.expect("is found");
//! println!("{failure}");
//! assert!(failure.suggestion.as_ref().unwrap().starts_with("a sync of the directory after"));
//!
//! let report = files.run(&Counter { sync_directory: true }, &[1, 2]).assert_ok();
//! println!("{report}");
//! assert!(report.complete);
//! ```

mod cell;
mod explore;
mod fault;
mod files;
mod os;
mod pool;
mod story;
mod subject;
mod sweep;
mod world;

pub use explore::Files;
pub use fault::{Call, Fault};
pub use files::{Open, SimulatedFile, SimulatedFs};
pub use os::{FileSystem, OpenFile, OsFs};
pub use pool::{SimulatedJournal, SimulatedPoolFile};
pub use subject::FileSubject;
pub use sweep::SyncSweep;
pub use world::Promises;
