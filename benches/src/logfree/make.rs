//! Which sets there are, and how each is made.

use std::sync::Arc;

use durix_logfree::{
    Bst, HashTable, LinkCacheMode, List, Options, SkipList, SoftHash, SoftList, SoftOptions, SoftSkipList,
};
use durix_pmem::backing::{FileBacking, HeapBacking};
use durix_pmem::{Counting, Counts, Hardware, Mapping, Medium, Pool, PoolOptions, Structure};
use durix_pset::PersistentSet;

use super::Error;
use super::rounds::{Memory, Mix, OPERATIONS, Rounds};
use crate::interleave::Contestant;
use crate::place::Place;
use crate::sets_lockfree::flit::Flit;
use crate::sets_lockfree::harris::Harris;
use crate::sets_lockfree::scheme::{LinkFree, Scheme};
use crate::sets_lockfree::soft::Soft;
use crate::sets_lockfree::tower::Tower;
use crate::sets_logged::Set;
use crate::sets_logged::bst_tk::BstTk;
use crate::sets_logged::lazy::Lazy;
use crate::sets_logged::ours::{Buffered, Synced};
use crate::sets_logged::tower::LockedSkipList;
use crate::workload::medium;

/// What is searched in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shape {
    /// A sorted list.
    List,
    /// A hash table.
    Hash,
    /// A skip list.
    SkipList,
    /// A binary search tree.
    Bst,
}

impl Shape {
    /// All of them.
    pub const ALL: [Shape; 4] = [Shape::List, Shape::Hash, Shape::SkipList, Shape::Bst];

    /// Its name in tables.
    pub fn name(self) -> &'static str {
        match self {
            Shape::List => "list",
            Shape::Hash => "hash table",
            Shape::SkipList => "skip list",
            Shape::Bst => "BST",
        }
    }
}

/// How it survives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protocol {
    /// Members in persistent memory, links in volatile memory.
    Soft,
    /// Link-and-persist.
    Links,
    /// Redo log by the paper's protocol.
    Redo,
    /// The best redo log we can build; for one thread.
    Cso,
    /// Link-and-persist with a link cache, durable on return.
    Cached,
    /// Link-and-persist with a link cache, made durable every 16 operations.
    Batched,
    /// Link-and-persist with a link cache, made durable once a round.
    Buffered,
    /// Link-and-persist where nothing is written back and no fence waits.
    Volatile,
    /// The persistent set of `durix-pset`.
    Pset,
    /// SOFT as its paper has it.
    SoftPeer,
    /// Link-free.
    LinkFree,
    /// FliT, with counters beside links.
    Flit,
    /// FliT, with counters in a table.
    FlitHashed,
}

impl Protocol {
    /// Its name in tables.
    pub fn name(self) -> &'static str {
        match self {
            Protocol::Soft => "volatile links (SOFT)",
            Protocol::Links => "link-and-persist",
            Protocol::Redo => "redo log",
            Protocol::Cso => "CSO redo log",
            Protocol::Cached => "link cache, durable",
            Protocol::Batched => "link cache, synced every 16",
            Protocol::Buffered => "link cache, synced every 2048",
            Protocol::Volatile => "not durable",
            Protocol::Pset => "persistent set",
            Protocol::SoftPeer => "SOFT of the paper",
            Protocol::LinkFree => LinkFree::NAME,
            Protocol::Flit => Flit::<false>::NAME,
            Protocol::FlitHashed => Flit::<true>::NAME,
        }
    }
}

/// A set to be made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct What {
    /// What is searched in.
    pub shape: Shape,
    /// How it survives.
    pub way: Protocol,
    /// Keys that are there at first, and on average.
    pub keys: u64,
    /// Threads at work.
    pub threads: u64,
    /// What they do.
    pub mix: Mix,
}

/// Where the sets lie.
pub trait Site<M: Medium> {
    /// A pool of its own for one of ours.
    ///
    /// # Errors
    /// Without room.
    fn pool(&self, medium: M, keys: u64) -> Result<Pool<M>, Error>;

    /// Zeroed memory for a comparator.
    ///
    /// # Errors
    /// Without room.
    fn mapping(&self, medium: M, bytes: u64) -> Result<Mapping<M>, Error>;
}

impl<M: Medium> Site<M> for Place {
    /// In a file without a name, so that nothing is left behind.
    fn pool(&self, medium: M, keys: u64) -> Result<Pool<M>, Error> {
        let path = self.unused_path();
        let pool = options(keys).create_on(FileBacking::create(&path)?, medium);
        let _ = std::fs::remove_file(&path);
        Ok(pool?)
    }

    fn mapping(&self, medium: M, bytes: u64) -> Result<Mapping<M>, Error> {
        Ok(self.map(bytes, medium)?)
    }
}

/// Ordinary memory, where only counts are taken.
#[derive(Clone, Copy, Debug)]
pub struct Heap;

impl<M: Medium> Site<M> for Heap {
    fn pool(&self, medium: M, keys: u64) -> Result<Pool<M>, Error> {
        let bytes = (keys * 64 * 8 + (128 << 20)).next_power_of_two();
        Ok(options(keys).create_on(HeapBacking::new(bytes), medium)?)
    }

    fn mapping(&self, medium: M, bytes: u64) -> Result<Mapping<M>, Error> {
        Ok(Mapping::heap((bytes as usize).next_multiple_of(4096), medium))
    }
}

fn options(keys: u64) -> PoolOptions {
    PoolOptions::new().initial_size(keys * 64 * 6 + (64 << 20)).assume_pmem(true)
}

/// A set in rounds.
pub type Made = Box<dyn Contestant<2>>;

fn ours<M, S>(site: &impl Site<M>, medium: M, what: What, options: &S::Options) -> Result<Made, Error>
where
    M: Medium,
    S: Structure<M, Error = durix_logfree::Error> + Send + Sync,
    Arc<S>: Set<M>,
{
    let pool = site.pool(medium, what.keys)?;
    let set: Arc<S> = pool.open_structure("set", options)?;
    Ok(Box::new(Rounds::new(set, Memory::Pool(pool), what.keys, what.threads)?.mixed(what.mix)))
}

fn persistent_set<M: Medium>(site: &impl Site<M>, medium: M, what: What) -> Result<Made, Error> {
    let pool = site.pool(medium, what.keys)?;
    let set = PersistentSet::open(&pool, "set")?;
    Ok(Box::new(Rounds::new(set, Memory::Pool(pool), what.keys, what.threads)?.mixed(what.mix)))
}

/// A linked structure over a scheme.
fn linked<M: Medium, S: Scheme + std::fmt::Debug>(
    site: &impl Site<M>,
    medium: M,
    what: What,
) -> Result<Option<Made>, Error> {
    match what.shape {
        Shape::List => comparator(site, medium, what, Harris::<S>::list(what.keys)).map(Some),
        Shape::Hash => comparator(site, medium, what, Harris::<S>::table(what.keys)).map(Some),
        Shape::SkipList => comparator(site, medium, what, Tower::<S>::new(what.keys)).map(Some),
        Shape::Bst => Ok(None),
    }
}

fn comparator<M: Medium>(site: &impl Site<M>, medium: M, what: What, set: impl Set<M>) -> Result<Made, Error> {
    let mapping = site.mapping(medium, set.bytes(what.threads))?;
    set.create(&mapping);
    Ok(Box::new(Rounds::new(set, Memory::Mapping(mapping), what.keys, what.threads)?.mixed(what.mix)))
}

fn links<M: Medium>(site: &impl Site<M>, medium: M, what: What) -> Result<Option<Made>, Error> {
    match what.shape {
        Shape::List => ours::<M, List<M>>(site, medium, what, &Options::default()).map(Some),
        Shape::Hash => {
            let options = Options::default().buckets(what.keys);
            ours::<M, HashTable<M>>(site, medium, what, &options).map(Some)
        }
        Shape::Bst => ours::<M, Bst<M>>(site, medium, what, &Options::default()).map(Some),
        Shape::SkipList => ours::<M, SkipList<M>>(site, medium, what, &Options::default()).map(Some),
    }
}

/// Lines of a link cache, as in the paper.
const LINK_CACHE: usize = 32;

/// Lists and hash tables with a link cache, which are synced every so many operations; `None`: durable on return.
fn cached<M: Medium>(site: &impl Site<M>, medium: M, what: What, every: Option<u64>) -> Result<Option<Made>, Error> {
    let mode = if every.is_some() { LinkCacheMode::Buffered } else { LinkCacheMode::Durable };
    let options = Options::default().buckets(what.keys).link_cache(mode, LINK_CACHE);
    Ok(match what.shape {
        Shape::List => Some(cached_as::<M, List<M>>(site, medium, what, &options, every)?),
        Shape::Hash => Some(cached_as::<M, HashTable<M>>(site, medium, what, &options, every)?),
        Shape::SkipList | Shape::Bst => None,
    })
}

fn cached_as<M, S>(
    site: &impl Site<M>,
    medium: M,
    what: What,
    options: &Options,
    every: Option<u64>,
) -> Result<Made, Error>
where
    M: Medium,
    S: Structure<M, Options = Options, Error = durix_logfree::Error> + Send + Sync,
    Arc<S>: Set<M, Local = ()> + Synced<M>,
{
    let Some(every) = every else { return ours::<M, S>(site, medium, what, options) };
    let pool = site.pool(medium, what.keys)?;
    let set: Arc<S> = pool.open_structure("set", options)?;
    let rounds = Rounds::new(Buffered::new(set, every), Memory::Pool(pool), what.keys, what.threads)?;
    Ok(Box::new(rounds.mixed(what.mix)))
}

/// Makes a set and fills it; `None` if there is none of this kind.
///
/// # Errors
/// What the site refuses.
pub fn make<M: Medium>(site: &(impl Site<M> + Site<Hardware>), medium: M, what: What) -> Result<Option<Made>, Error> {
    let (keys, one_thread) = (what.keys, what.threads == 1);
    Ok(match (what.way, what.shape) {
        (Protocol::Soft, Shape::Hash) => Some(ours::<M, SoftHash<M>>(site, medium, what, &SoftOptions::default())?),
        (Protocol::Soft, Shape::List) => Some(ours::<M, SoftList<M>>(site, medium, what, &SoftOptions::default())?),
        (Protocol::Soft, Shape::SkipList) => {
            Some(ours::<M, SoftSkipList<M>>(site, medium, what, &SoftOptions::default())?)
        }
        (Protocol::Links, _) => links(site, medium, what)?,
        (Protocol::Cached, _) => cached(site, medium, what, None)?,
        (Protocol::Batched, _) => cached(site, medium, what, Some(16))?,
        (Protocol::Buffered, _) => cached(site, medium, what, Some(OPERATIONS))?,
        (Protocol::Volatile, _) => links(site, Hardware::PAGE_CACHE, what)?,
        (Protocol::Pset, Shape::Hash) => Some(persistent_set(site, medium, what)?),
        (Protocol::SoftPeer, Shape::List) => Some(comparator(site, medium, what, Soft::list(keys))?),
        (Protocol::SoftPeer, Shape::Hash) => Some(comparator(site, medium, what, Soft::table(keys))?),
        (Protocol::LinkFree, _) => linked::<M, LinkFree>(site, medium, what)?,
        (Protocol::Flit, _) => linked::<M, Flit<false>>(site, medium, what)?,
        (Protocol::FlitHashed, _) => linked::<M, Flit<true>>(site, medium, what)?,
        (Protocol::Redo, Shape::List) => Some(comparator(site, medium, what, Lazy::<false>::list(keys))?),
        (Protocol::Redo, Shape::Hash) => Some(comparator(site, medium, what, Lazy::<false>::table(keys))?),
        (Protocol::Redo, Shape::SkipList) => Some(comparator(site, medium, what, LockedSkipList::<false>::new(keys))?),
        (Protocol::Redo, Shape::Bst) => Some(comparator(site, medium, what, BstTk::<false>::new(keys))?),
        (Protocol::Cso, Shape::List) if one_thread => Some(comparator(site, medium, what, Lazy::<true>::list(keys))?),
        (Protocol::Cso, Shape::Hash) if one_thread => Some(comparator(site, medium, what, Lazy::<true>::table(keys))?),
        (Protocol::Cso, Shape::SkipList) if one_thread => {
            Some(comparator(site, medium, what, LockedSkipList::<true>::new(keys))?)
        }
        (Protocol::Cso, Shape::Bst) if one_thread => Some(comparator(site, medium, what, BstTk::<true>::new(keys))?),
        _ => None,
    })
}

/// Write-backs, fences and implicit drains of a successful update.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PerUpdate {
    /// Lines written back.
    pub write_backs: f64,
    /// Fences.
    pub fences: f64,
    /// Locked instructions that found write-backs pending.
    pub implicit_drains: f64,
}

/// Counts, exactly, over some rounds.
///
/// # Errors
/// What the pool refuses.
pub fn count(what: What) -> Result<Option<PerUpdate>, Error> {
    let counting = Counting::new(medium());
    let Some(mut contestant) = make(&Heap, counting, What { threads: 1, mix: Mix::UPDATES, ..what })? else {
        return Ok(None);
    };
    contestant.round();
    let before = counting.counts();
    let (mut updates, rounds) = (0.0, 2);
    for _ in 0..rounds {
        let [each, update] = contestant.round();
        updates += super::rounds::OPERATIONS as f64 * each / update;
    }
    let Counts { write_backs, fences, implicit_drains, .. } = counting.counts() - before;
    let [write_backs, fences, implicit_drains] = [write_backs, fences, implicit_drains].map(|n| n as f64 / updates);
    Ok(Some(PerUpdate { write_backs, fences, implicit_drains }))
}
