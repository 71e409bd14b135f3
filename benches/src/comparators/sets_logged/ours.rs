//! Our sets, as the figures use them.

use std::sync::Arc;

use durix_logfree::{WordMap, Words};
use durix_pmem::{Mapping, Medium, Op};
use durix_pset::PersistentSet;

use super::Set;

impl<M: Medium, S: WordMap<M>> Set<M> for Arc<Words<S, M>> {
    type Local = ();

    fn name(&self) -> &'static str {
        S::NAME
    }

    fn bytes(&self, _threads: u64) -> u64 {
        0
    }

    fn create(&self, _mapping: &Mapping<M>) {}

    fn local(&self, _thread: u64) {}

    #[inline(always)]
    fn contains(&self, (): &mut (), op: &Op<'_, M>, key: u64) -> bool {
        Words::contains(self, op, key).expect("sound")
    }

    #[inline(always)]
    fn insert(&self, (): &mut (), op: &Op<'_, M>, key: u64, value: u64) -> bool {
        Words::insert(self, op, key, value).expect("room enough")
    }

    #[inline(always)]
    fn remove(&self, (): &mut (), op: &Op<'_, M>, key: u64) -> bool {
        Words::remove(self, op, key).expect("room enough").is_some()
    }
}

/// The persistent set of `durix-pset`, with keys and values of 8 bytes.
impl<M: Medium> Set<M> for Arc<PersistentSet<M>> {
    type Local = ();

    fn name(&self) -> &'static str {
        "PersistentSet"
    }

    fn bytes(&self, _threads: u64) -> u64 {
        0
    }

    fn create(&self, _mapping: &Mapping<M>) {}

    fn local(&self, _thread: u64) {}

    #[inline(always)]
    fn contains(&self, (): &mut (), op: &Op<'_, M>, key: u64) -> bool {
        PersistentSet::contains(self, op, &key.to_le_bytes()).expect("sound")
    }

    #[inline(always)]
    fn insert(&self, (): &mut (), op: &Op<'_, M>, key: u64, value: u64) -> bool {
        self.insert_if_absent(op, &key.to_le_bytes(), &value.to_le_bytes()).expect("room enough")
    }

    #[inline(always)]
    fn remove(&self, (): &mut (), op: &Op<'_, M>, key: u64) -> bool {
        PersistentSet::remove(self, op, &key.to_le_bytes()).expect("room enough")
    }
}

/// A set with a link cache in the buffered mode, which is made durable every so many operations.
#[derive(Debug)]
pub struct Buffered<S> {
    set: S,
    every: u64,
}

impl<S> Buffered<S> {
    /// Each thread makes `set` durable after every `every` operations of its own.
    pub fn new(set: S, every: u64) -> Self {
        Buffered { set, every }
    }
}

/// A set that can be made durable as a whole.
pub trait Synced<M: Medium> {
    /// Makes everything durable that has returned.
    fn sync(&self, op: &Op<'_, M>);
}

impl<M: Medium, S: WordMap<M>> Synced<M> for Arc<Words<S, M>> {
    fn sync(&self, op: &Op<'_, M>) {
        Words::sync(self, op).expect("an operation of its pool");
    }
}

impl<S> Buffered<S> {
    #[inline(always)]
    fn count<M: Medium>(&self, done: &mut u64, op: &Op<'_, M>)
    where
        S: Synced<M>,
    {
        *done += 1;
        if done.is_multiple_of(self.every) {
            self.set.sync(op);
        }
    }
}

impl<M: Medium, S: Set<M, Local = ()> + Synced<M>> Set<M> for Buffered<S> {
    /// Operations done.
    type Local = u64;

    fn name(&self) -> &'static str {
        "link cache, buffered"
    }

    fn bytes(&self, threads: u64) -> u64 {
        self.set.bytes(threads)
    }

    fn create(&self, mapping: &Mapping<M>) {
        self.set.create(mapping);
    }

    fn local(&self, _thread: u64) -> u64 {
        0
    }

    #[inline(always)]
    fn contains(&self, _done: &mut u64, op: &Op<'_, M>, key: u64) -> bool {
        self.set.contains(&mut (), op, key)
    }

    #[inline(always)]
    fn insert(&self, done: &mut u64, op: &Op<'_, M>, key: u64, value: u64) -> bool {
        let is_new = self.set.insert(&mut (), op, key, value);
        self.count(done, op);
        is_new
    }

    #[inline(always)]
    fn remove(&self, done: &mut u64, op: &Op<'_, M>, key: u64) -> bool {
        let was_there = self.set.remove(&mut (), op, key);
        self.count(done, op);
        was_there
    }
}
