//! The order in which a pool is closed: everything durable, the last boundary, the mark that says "closed".

use crate::Act::*;
use crate::{Kind, every_kind, filled};

/// Whatever the crash leaves: a pool that says that it was closed holds everything.
#[test]
fn a_pool_that_says_it_was_closed_holds_everything() {
    every_kind(|entry| {
        let kind = Kind { closing: true, ..Kind::new(entry, &filled()) };
        kind.explorer().run(&kind, &[Put(6, 1), Remove(4), Put(4, 7), Close])
    });
}
