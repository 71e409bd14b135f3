//! A durable object gives no store access: changing it would make it less than durable.
use std::sync::atomic::Ordering::Relaxed;

use durix_pmem::{Durable, Op, Word};

fn store<'s>(op: &Op<'s>, node: Durable<'s, Word>) {
    op.store(&node, 1, Relaxed);
}

fn main() {}
