//! Volatile words that threads share, by what happened to them.
//!
//! A structure keeps volatile data behind such words: the content of a lock, a table behind a pointer. That data does not
//! go through the medium, so the value of the word does not tell it. What does tell it is *who wrote the word last,
//! having seen what*: a word therefore carries the digest of everything its last writer had observed by then, and a
//! thread that reads it observes that digest. Data that is reached only through such words, as free of races as Rust
//! wants it, is then a function of what the threads have observed.
//!
//! It also spares the values themselves: addresses, which differ from run to run, never enter a digest. For the same
//! reason a word is named by each thread's own count of words at the time when that thread met it first.

use std::collections::HashMap;

use super::digest::{Digest, Mix};

/// Most threads, the one that created the structure included.
pub(crate) const MAX_THREADS: usize = 9;

#[derive(Debug)]
struct Word {
    /// For each thread, the how manieth word it was that the thread met; 0: none yet.
    names: [u16; MAX_THREADS],
    wrote: Digest,
    value: u64,
    /// What it contributes to the sum.
    member: Digest,
}

/// All words met in one execution.
#[derive(Debug, Default)]
pub(crate) struct Words {
    by_address: HashMap<usize, u32, Mix>,
    words: Vec<Word>,
    met: [u16; MAX_THREADS],
    sum: Digest,
}

impl Words {
    pub(crate) fn clear(&mut self) {
        self.by_address.clear();
        self.words.clear();
        self.met = [0; MAX_THREADS];
        self.sum = Digest::default();
    }

    /// The word at an address, which holds `value` now, and the thread's own name for it.
    pub(crate) fn meet(&mut self, address: usize, value: u64, thread: usize) -> (u32, u16) {
        let next = self.words.len() as u32;
        let index = *self.by_address.entry(address).or_insert(next);
        if index == next {
            let names = [0; MAX_THREADS];
            self.words.push(Word { names, wrote: Digest::default(), value, member: Digest::default() });
        }
        let word = &mut self.words[index as usize];
        if word.names[thread] == 0 {
            self.met[thread] += 1;
            word.names[thread] = self.met[thread];
            self.changed(index);
        }
        (index, self.words[index as usize].names[thread])
    }

    /// What the last writer of a word had observed.
    pub(crate) fn wrote(&self, index: u32) -> Digest {
        self.words[index as usize].wrote
    }

    pub(crate) fn value(&self, index: u32) -> u64 {
        self.words[index as usize].value
    }

    /// A thread that has observed `seen` writes `value`.
    pub(crate) fn write(&mut self, index: u32, value: u64, seen: Digest) {
        let word = &mut self.words[index as usize];
        word.value = value;
        word.wrote = seen;
        self.changed(index);
    }

    fn changed(&mut self, index: u32) {
        let word = &mut self.words[index as usize];
        self.sum.take(word.member);
        word.member = word.names.iter().fold(word.wrote, |digest, name| digest.with(u64::from(*name)));
        self.sum.put(word.member);
    }

    /// All of them.
    pub(crate) fn digest(&self) -> Digest {
        self.sum
    }
}
