//! Which operations have been invoked and have returned so far, in one execution.

use super::digest::Digest;

/// Most operations in an execution: sets of them are words.
pub(crate) const MAX_OPS: usize = 64;

/// A mark in the trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mark {
    Invoked(usize),
    /// With the number of the answer among the answers of that operation.
    Returned(usize, usize),
}

/// The marks of an execution up to some point, and a digest of what they say about the order of operations: which of them
/// had returned when another was invoked. That, and the answers, is all that linearizability asks.
#[derive(Clone, Debug, Default)]
pub(crate) struct Past {
    pub(crate) marks: Vec<Mark>,
    returned: u64,
    before: Vec<u64>,
    sum: Digest,
}

impl Past {
    pub(crate) fn clear(&mut self) {
        *self = Past::default();
    }

    pub(crate) fn mark(&mut self, mark: Mark) {
        self.marks.push(mark);
        match mark {
            Mark::Invoked(op) => {
                if self.before.len() <= op {
                    self.before.resize(op + 1, 0);
                }
                self.before[op] = self.returned;
                self.sum.put(self.member(op, 0));
            }
            Mark::Returned(op, answer) => {
                self.sum.take(self.member(op, 0));
                self.sum.put(self.member(op, answer as u64 + 1));
                self.returned |= 1 << op;
            }
        }
    }

    fn member(&self, op: usize, answer: u64) -> Digest {
        Digest::default().with(op as u64).with(self.before[op]).with(answer)
    }

    pub(crate) fn digest(&self) -> Digest {
        self.sum
    }
}
