//! Trees that measurements compare with [`Durable`](crate::Durable) and [`Transient`](crate::Transient). No kind of index is one of them.

pub(crate) mod slotted;

use crate::Policy;

/// Durable by the external log alone: the paper's LOGGING, to show what InCLL saves. Same layout, same contract as
/// [`Durable`](crate::Durable).
#[derive(Debug)]
pub struct LoggingOnly;

impl Policy for LoggingOnly {
    const DURABLE: bool = true;
    const IN_LINE: bool = false;
    const CAPACITY: usize = 14;
}

/// As [`Durable`](crate::Durable), with every value in a block of its own, as the paper has it: to show what values in place save.
#[derive(Debug)]
pub struct Pointers;

impl Policy for Pointers {
    const DURABLE: bool = true;
    const IN_PLACE: bool = false;
    const CAPACITY: usize = 14;
}

/// As [`Durable`](crate::Durable), with interior nodes under InCLL, too: an experiment of the benches (section 6.1 of the
/// paper). Such a tree lies in a bare mapping, and no other policy opens it.
#[derive(Debug)]
pub struct InteriorInLine;

impl Policy for InteriorInLine {
    const DURABLE: bool = true;
    const INTERIOR_IN_LINE: bool = true;
    const CAPACITY: usize = 14;
}

/// As [`Transient`](crate::Transient), with 15 keys a node.
#[derive(Debug)]
pub struct Transient15;

impl Policy for Transient15 {
    const DURABLE: bool = false;
    const CAPACITY: usize = 15;
}
