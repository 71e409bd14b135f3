//! What is on its way to memory can be neither written nor read.
use std::sync::atomic::Ordering::Relaxed;

use durix_pmem::{InFlight, Op, Word};

fn store<'s>(op: &Op<'s>, node: InFlight<'s, Word>) {
    op.store(&node, 1, Relaxed);
}

fn main() {}
