//! A stack of nodes of seven values, for measuring the simulator: pushes write a node, settle it, and link it.

use std::sync::atomic::Ordering::{Relaxed, Release};

use durix_crashsim::{Simulated, Subject};
use durix_pmem::{Mapping, Off, Session, Word, persistent};

persistent! {
    struct Root: align(64) { head: Word<Off<Node>>, rest: [Word; 7] }
    struct Node: align(64) { next: Word<Off<Node>>, values: [Word; 7] }
}

const ROOT: Off<Root> = Off::new(64);

/// The stack under test, in an arena of 64 lines.
pub struct Stack {
    /// Values that recovery reads of each node: with more, it can tell more crash states apart.
    pub read: usize,
    /// Without the fence before the link, all values of a node are open when recovery reads them.
    pub settled: bool,
}

/// The stack at work.
pub struct Live {
    session: Session<Simulated>,
    next: u64,
}

impl Subject for Stack {
    type Op = u64;
    type Ret = ();
    type State = ();
    type Model = ();
    type Store = Mapping<Simulated>;
    type Live = Live;

    fn store(&self, medium: Simulated) -> Mapping<Simulated> {
        Mapping::heap(4096, medium)
    }

    fn create(&self, store: &Mapping<Simulated>) -> Live {
        Live { session: store.session().unwrap(), next: 128 }
    }

    fn recover(&self, store: &Mapping<Simulated>) -> Result<Live, String> {
        let mut session = store.session().map_err(|e| e.to_string())?;
        let op = session.enter().map_err(|e| e.to_string())?;
        let mut next = 128;
        let mut at = op.load(&op.at(ROOT).head, Relaxed);
        let mut sum = 0u64;
        while let Some(node) = op.get(at) {
            next = next.max(at.get() + 64);
            for value in &node.values[..self.read] {
                sum = sum.wrapping_add(op.load(value, Relaxed));
            }
            at = op.load(&node.next, Relaxed);
        }
        drop(op);
        std::hint::black_box(sum);
        Ok(Live { session, next })
    }

    fn apply(&self, live: &mut Live, value: &u64) {
        let op = live.session.enter().unwrap();
        let root = op.at(ROOT);
        let off = Off::<Node>::new(live.next);
        live.next += 64;
        let node = op.at(off);
        for word in &node.values {
            op.store(word, *value, Relaxed);
        }
        op.store(&node.next, op.load(&root.head, Relaxed), Relaxed);
        if self.settled {
            op.persist(node);
            op.store(&root.head, off, Release);
        } else {
            op.store(&root.head, off, Release);
            op.write_back(node);
        }
        op.persist(root);
    }

    fn observe(&self, _: &mut Live) {}
    fn model(&self) {}
    fn step(&self, (): &mut (), _: &u64) {}
    fn expect(&self, (): &()) {}
}
