//! What the papers compare with, each as well made as ours, and ours behind the same traits.
//!
//! | module | what it holds |
//! |---|---|
//! | [`logs`] | logs of OOPSLA'17: checksums, torn bits, links |
//! | [`sets`] | hash sets of OOPSLA'17 |
//! | [`sets_logged`] | lock-based sets with a redo log, of ATC'18 |
//! | [`sets_lockfree`] | lock-free durable sets of OOPSLA'19 and PPoPP'22 |
//! | [`trees`] | B+-trees and others, of VLDB'19 |

pub mod logs;
pub mod sets;
pub mod sets_lockfree;
pub mod sets_logged;
pub mod trees;
