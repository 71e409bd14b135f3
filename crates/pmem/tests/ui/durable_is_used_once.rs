//! A durable object that was linked is gone: it cannot be linked twice, nor changed afterwards.
use durix_pmem::{Durable, Off, Op, Word};

fn link<'s>(op: &Op<'s>, head: &Word<Off<Word>>, node: Durable<'s, Word>) {
    op.publish(head, node);
    node.into_fresh();
}

fn main() {}
