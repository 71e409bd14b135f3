//! A link takes only what is durable: not an object whose write-back is merely issued, nor a fresh one.
use durix_pmem::{Durable, Fresh, InFlight, Off, Op, Word};

fn link_in_flight<'s>(op: &Op<'s>, head: &Word<Off<Word>>, node: InFlight<'s, Word>) {
    op.publish(head, node);
}

fn link_fresh<'s>(op: &Op<'s>, head: &Word<Off<Word>>, node: Fresh<'s, Word>) {
    op.publish(head, node);
}

fn link_durable<'s>(op: &Op<'s>, head: &Word<Off<Word>>, node: Durable<'s, Word>) {
    op.publish(head, node);
}

fn main() {}
