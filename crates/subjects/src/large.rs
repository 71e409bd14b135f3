//! Large objects: published when they are durable, or verified by a checksum.

#![allow(missing_docs, reason = "test code")]

use std::sync::atomic::Ordering::{Relaxed, Release};

use durix_crashsim::{Simulated, Subject};
use durix_pmem::{Mapping, Off, Op, Session, Word};

/// Words of a record, the checksum last.
const RECORD: u64 = 512;
/// Words of a node.
const NODE: u64 = 2048;
const LINK: Off<Word> = Off::new(64);
const FIRST: u64 = 4096;

/// What is tested.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Kind {
    /// A node of 16 KiB, durable before it is linked.
    Node,
    /// The same, linked under one fence.
    NodeTooEarly,
    /// Records of 4 KiB in two slots, written without any order; the checksum says whether one is whole.
    Record,
    /// With a checksum that looks at a few words only.
    WeakChecksum,
    /// Records that overwrite each other, without any fence.
    Unfenced,
}

/// Objects under test.
pub struct Large(pub Kind);

fn words<'s>(op: &Op<'s, Simulated>, slot: u64, len: u64) -> &'s [Word] {
    op.slice("object", Off::new(FIRST + slot * len * 8), len).unwrap()
}

fn mix(sum: u64, value: u64) -> u64 {
    (sum ^ value).wrapping_mul(0x9E37_79B9_7F4A_7C15).rotate_left(23)
}

impl Large {
    fn len(&self) -> u64 {
        if matches!(self.0, Kind::Node | Kind::NodeTooEarly) { NODE } else { RECORD }
    }

    /// Over all words but the last.
    fn checksum(&self, value: impl Fn(usize) -> u64) -> u64 {
        let step = if self.0 == Kind::WeakChecksum { 100 } else { 1 };
        (0..RECORD as usize - 1).step_by(step).fold(1, |sum, at| mix(sum, value(at)))
    }

    fn push(&self, op: &Op<'_, Simulated>, number: u64) {
        let slot = if self.0 == Kind::Unfenced { 0 } else { number % 2 };
        let object = words(op, slot, self.len());
        let (checksum, body) = object.split_last().unwrap();
        for (at, word) in body.iter().enumerate() {
            op.store(word, number * 10_000 + at as u64, Relaxed);
        }
        op.store(checksum, self.checksum(|at| number * 10_000 + at as u64), Relaxed);
        op.write_back_slice(object);
        if !matches!(self.0, Kind::NodeTooEarly | Kind::Unfenced) {
            op.fence();
        }
        if self.len() == NODE {
            op.store(op.at(LINK), number, Release);
            op.persist(op.at(LINK));
        }
    }

    /// The number of the newest object that is whole; zero if there is none.
    fn newest(&self, op: &Op<'_, Simulated>) -> u64 {
        if self.len() == NODE {
            let number = op.load(op.at(LINK), Relaxed);
            let body = &words(op, number % 2, NODE)[..NODE as usize - 1];
            let whole = body.iter().enumerate().all(|(at, w)| op.load(w, Relaxed) == number * 10_000 + at as u64);
            return if number == 0 || whole { number } else { u64::MAX };
        }
        let numbers = (0..2).map(|slot| {
            let object = words(op, slot, RECORD);
            let load = |at: usize| op.load(&object[at], Relaxed);
            let sound = op.load_checked(object, || load(RECORD as usize - 1) == self.checksum(load) && load(0) != 0);
            // What is sound is used: it must be whole.
            let whole = || (0..RECORD as usize - 1).all(|at| load(at) == load(0) + at as u64);
            if !sound {
                0
            } else if whole() {
                load(0) / 10_000
            } else {
                u64::MAX
            }
        });
        numbers.max().unwrap()
    }
}

impl Subject for Large {
    type Op = u64;
    type Ret = ();
    type State = u64;
    type Model = u64;
    type Store = Mapping<Simulated>;
    type Live = Session<Simulated>;

    fn store(&self, medium: Simulated) -> Self::Store {
        Mapping::heap(64 << 10, medium)
    }
    fn create(&self, store: &Self::Store) -> Self::Live {
        store.session().unwrap()
    }
    fn recover(&self, store: &Self::Store) -> Result<Self::Live, String> {
        Ok(self.create(store))
    }
    fn apply(&self, live: &mut Self::Live, number: &u64) {
        self.push(&live.enter().unwrap(), *number);
    }
    fn observe(&self, live: &mut Self::Live) -> u64 {
        self.newest(&live.enter().unwrap())
    }
    fn model(&self) -> u64 {
        0
    }
    fn step(&self, model: &mut u64, number: &u64) {
        *model = *number;
    }
    fn expect(&self, model: &u64) -> u64 {
        *model
    }
}
