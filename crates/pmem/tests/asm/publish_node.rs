//! Publishing a node through the generic path: `tests/asm.rs` compiles this and looks at the machine code.

use std::sync::atomic::Ordering::Relaxed;

use durix_pmem::{Off, Op, Word, persistent};

persistent! {
    /// A list node.
    pub struct Node: align(64) {
        /// Line 0, word 0.
        pub key: Word,
        /// Line 0, word 1.
        pub next: Word<Off<Node>>,
        /// Line 0, words 2 to 7.
        pub rest: [Word; 6],
    }
}

/// Fills a node, makes it durable, links it, makes the link durable.
#[unsafe(no_mangle)]
pub fn durix_publish_node(op: &Op<'_>, head: &Word<Off<Node>>, at: Off<Node>, key: u64, next: Off<Node>) {
    let node = op.fresh(at);
    op.store(&node.key, key, Relaxed);
    op.store(&node.next, next, Relaxed);
    let node = op.settle(node.write_back(op));
    op.publish(head, node);
    op.write_back(head);
    op.fence();
}
