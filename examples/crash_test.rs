//! A persistent queue of one's own, its crash test, the bug that the test finds, and the mended queue.
//!
//! `cargo run --release --example crash_test`

use std::collections::VecDeque;
use std::sync::atomic::Ordering::{Relaxed, Release};

use durix_crashsim::{CrashTest, Exhaustive, Samples, Simulated, Subject};
use durix_pmem::{Hardware, Mapping, Medium, Off, Op, Session, Word, persistent};

persistent! {
    /// `head` counts what was taken, `tail` what was put.
    struct Root: align(64) { head: Word, tail: Word, rest: [Word; 6] }
    struct Slot: align(64) { value: Word, rest: [Word; 7] }
}

const SLOTS: u64 = 4;
const ROOT: Off<Root> = Off::new(64);
const FIRST: u64 = 128;

/// A bounded queue, durable when an operation returns.
struct Queue<M: Medium> {
    session: Session<M>,
    mended: bool,
}

impl<M: Medium> Queue<M> {
    /// Opens the queue in a mapping; all zero is empty. What a dead process left visible is made durable first.
    fn open(mapping: &Mapping<M>, mended: bool) -> Result<Self, durix_pmem::Error> {
        let mut session = mapping.session()?;
        let op = session.enter()?;
        let root = op.at(ROOT);
        for at in op.load(&root.head, Relaxed)..op.load(&root.tail, Relaxed) {
            op.write_back(Self::slot(&op, at));
        }
        op.persist(root);
        drop(op);
        Ok(Queue { session, mended })
    }

    fn slot<'s>(op: &Op<'s, M>, at: u64) -> &'s Slot {
        op.at(Off::new(FIRST + at % SLOTS * 64))
    }

    fn push(&mut self, value: u64) -> Result<bool, durix_pmem::Error> {
        let op = self.session.enter()?;
        let root = op.at(ROOT);
        let tail = op.load(&root.tail, Relaxed);
        if tail - op.load(&root.head, Relaxed) == SLOTS {
            return Ok(false);
        }
        let slot = Self::slot(&op, tail);
        op.store(&slot.value, value, Relaxed);
        op.write_back(slot);
        if self.mended {
            op.fence(); // the value before the tail that covers it
        }
        op.store(&root.tail, tail + 1, Release);
        op.persist(root);
        Ok(true)
    }

    fn pop(&mut self) -> Result<Option<u64>, durix_pmem::Error> {
        let op = self.session.enter()?;
        let root = op.at(ROOT);
        let head = op.load(&root.head, Relaxed);
        if head == op.load(&root.tail, Relaxed) {
            return Ok(None);
        }
        let value = op.load(&Self::slot(&op, head).value, Relaxed);
        op.store(&root.head, head + 1, Release);
        op.persist(root);
        Ok(Some(value))
    }

    fn contents(&mut self) -> Result<Vec<u64>, durix_pmem::Error> {
        let op = self.session.enter()?;
        let root = op.at(ROOT);
        let all = op.load(&root.head, Relaxed)..op.load(&root.tail, Relaxed);
        Ok(all.map(|at| op.load(&Self::slot(&op, at).value, Relaxed)).collect())
    }
}

#[derive(Clone, Copy, Debug)]
enum QueueOp {
    Push(u64),
    Pop,
}
use QueueOp::{Pop, Push};

/// What the simulator has to know: how to open it, its operations, what can be observed, and a model.
struct Tested {
    mended: bool,
}

impl Subject for Tested {
    type Op = QueueOp;
    type Ret = Option<u64>;
    type State = Vec<u64>;
    type Model = VecDeque<u64>;
    type Store = Mapping<Simulated>;
    type Live = Queue<Simulated>;

    fn store(&self, medium: Simulated) -> Self::Store {
        Mapping::heap(1024, medium)
    }
    fn create(&self, store: &Self::Store) -> Self::Live {
        Queue::open(store, self.mended).expect("a fresh mapping has sessions")
    }
    fn recover(&self, store: &Self::Store) -> Result<Self::Live, String> {
        Queue::open(store, self.mended).map_err(|e| e.to_string())
    }
    fn apply(&self, queue: &mut Self::Live, op: &QueueOp) -> Option<u64> {
        match op {
            Push(value) => queue.push(*value).expect("the mapping is open").then_some(*value),
            Pop => queue.pop().expect("the mapping is open"),
        }
    }
    fn observe(&self, queue: &mut Self::Live) -> Vec<u64> {
        queue.contents().expect("the mapping is open")
    }
    fn model(&self) -> VecDeque<u64> {
        VecDeque::new()
    }
    fn step(&self, model: &mut VecDeque<u64>, op: &QueueOp) -> Option<u64> {
        match op {
            Push(_) if model.len() as u64 == SLOTS => None,
            Push(value) => {
                model.push_back(*value);
                Some(*value)
            }
            Pop => model.pop_front(),
        }
    }
    fn expect(&self, model: &VecDeque<u64>) -> Vec<u64> {
        model.iter().copied().collect()
    }
}

/// All sequences of four operations, a crash anywhere, another in each recovery, the death of the process at each store.
fn test(mended: bool) -> CrashTest<Tested> {
    let budget = Exhaustive.or(Samples(1000));
    let test = CrashTest::new(Tested { mended }).alphabet([Push(1), Push(2), Pop]).len(4).after([Push(3), Pop, Pop]);
    test.crashes(2).process_deaths(true).budget(budget)
}

fn main() -> Result<(), durix_pmem::Error> {
    println!("the queue works, as far as one can see:");
    let mut queue = Queue::open(&Mapping::heap(1024, Hardware::PAGE_CACHE), false)?;
    queue.push(7)?;
    println!("  pushed 7, popped {:?}, popped {:?}\n", queue.pop()?, queue.pop()?);

    println!("its crash test says:\n");
    let failure = test(false).run().failure.expect("the missing fence is found");
    println!("{failure}\n");
    let again = test(false).replay(&failure.replay).run().failure.expect("the same state fails again");
    assert_eq!(again.cause, failure.cause);

    println!("with that fence:\n");
    let report = test(true).run().assert_ok();
    println!("{report}");
    assert!(report.complete);
    Ok(())
}
