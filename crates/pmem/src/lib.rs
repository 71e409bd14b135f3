//! Memory-mapped files whose contents survive crashes: the layer below the indices of Durix. A pool is such a file. It holds named indices,
//! allocates space that no crash can leak, and gives sessions to threads. Use this crate to write a persistent structure of your own; to
//! store maps, use the crate `durix`. All stores, write-backs and fences go through one trait, [`Medium`], so that the crash simulator
//! tests the code that ships. What survives which crash depends on the file ([`pool::Guarantee`]).
//!
//! | module | what it holds |
//! |---|---|
//! | [`medium`] | the seam to the hardware: stores, write-backs, fences, and the media that count or delay them |
//! | [`Mapping`] | a range of addresses with a medium, offsets resolved in it, and the sessions at work |
//! | [`Session`], [`Op`] | a thread's ticket, and the short scope in which it reads and writes |
//! | [`unsettled`] | updates that return before they are durable, and their ticket |
//! | [`reclaim`], [`Pin`] | reclamation of volatile memory; the ticket that protects without holding anything up |
//! | [`PerSession`] | volatile state of each session |
//! | [`Grace`] | when persistent memory that was unlinked may be reused: once the operations of that moment have ended |
//! | [`Word`], [`Off`], [`persistent!`] | what persistent data is made of |
//! | [`space`] | failure-atomic allocation of extents and small blocks |
//! | [`session_log`] | logs that grow by segments, one chain a session, adopted when their session is gone |
//! | [`service`] | work outside of operations, run by whoever calls [`Pool::tick`] |
//! | [`journal`] | journaled pools: ordinary files that survive power failure |
//! | [`epoch`] | checkpoint epochs: buffered durability on one consistent cut for all structures |
//! | [`ZeroedWords`], [`advise_huge_pages`] | tables in volatile memory: made without touching them, large pages under them |
//! | [`publish`] | typestate: an object becomes reachable only after it is durable |
//! | [`testing`] | media that drop write-backs or kill, a backing whose calls fail |
//! | [`Checksum`] | of what lies together in persistent memory |
//! | [`Version`], [`layout!`] | which build opens which file |

mod arch;
pub mod backing;
mod checksum;
pub mod epoch;
mod error;
mod gate;
mod grace;
mod huge;
mod ids;
pub mod journal;
mod kind;
mod line;
mod lock;
mod mapping;
pub mod medium;
mod membarrier;
mod memory;
mod offset;
mod per_session;
pub mod pool;
mod processors;
pub mod publish;
mod quiesce;
pub mod reclaim;
mod reserve;
pub mod service;
mod session;
pub mod session_log;
pub mod space;
pub mod testing;
pub mod unsettled;
mod version;
mod wide;
mod word;
mod write_back;
mod zeroed;

#[doc(hidden)]
pub use arch::{prefetch_read, prefetch_write};
pub use checksum::Checksum;
pub use epoch::{Epochs, Sweep, Sweeping, Ticket};
pub use error::{Error, Result};
pub use grace::Grace;
pub use huge::advise_huge_pages;
pub use journal::{JournalFile, JournalPlace, JournalStats, Level};
pub use kind::Kind;
pub use line::{LINE, Lines};
pub use lock::{Lock, LockGuard};
pub use mapping::{MAX_SESSIONS, Mapping};
pub use medium::{Counting, Counts, Delayed, Hardware, Medium, Rmw, Survives, WriteBackKind};
pub use offset::{Off, OffsetHasher, OffsetMap, OffsetSet};
pub use per_session::PerSession;
pub use pool::{Geometry, Moments, Pool, PoolOptions, Recovery, RecoveryError, Root, Structure, Unrecovered, WeakPool};
pub use processors::{on_threads, processors};
pub use publish::{Durable, Fresh, InFlight};
pub use reclaim::{Pin, Reclaim};
pub use reserve::Reserve;
pub use service::{Driver, Due, Lane, Registered, Service, Services, Tick, Urgency};
pub use session::{LineAt, Op, Session};
pub use session_log::{Chain, Segment, SessionLogs};
pub use space::{Allocation, Change, Extent, Grow, LenAt, Owner, Prepared, Reserved, Space, SpaceStats};
pub use testing::{Killable, Mutating, Mutation, Plan, Site, SiteKind};
pub use unsettled::{PutOff, Settles, Unsettled};
pub use version::{Laid, Layout, RELEASED, UNRELEASED, Version, Versions};
pub use wide::Wide;
pub use word::{Bits, MAX_OBJECT, Persistent, Word};
#[doc(hidden)]
pub use word::{prove_layout, size_of_persistent};
pub use zeroed::ZeroedWords;
