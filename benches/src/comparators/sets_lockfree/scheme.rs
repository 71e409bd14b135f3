//! How a node of a linked structure becomes durable: what [`harris`](super::harris) and [`tower`](super::tower) are built over, and
//! link-free, the scheme of OOPSLA'19, section 3.
//!
//! Link-free writes no links back. A line says of itself whether its key is there: it is valid (two bits agree) and not marked. Recovery
//! walks over all lines. So an update writes back one line, and waits once; a thread that meets a line whose last change is
//! not durable yet makes it durable itself, unless a flag in the line says that somebody has.

use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use durix_pmem::{Medium, Off, Op, Rmw, Word, persistent};

persistent! {
    /// A node of a list; the first line of a node of a skip list.
    pub struct Line: align(64) {
        /// Offset of the next node. Bit 0: this node is removed.
        pub next: Word,
        /// Of FliT: counts the threads that are changing `next`. Otherwise: see [`Scheme::is_last`].
        pub side: Word,
        /// The key.
        pub key: Word,
        /// The value.
        pub value: Word,
        /// From bit 8 on: the number of levels. Below: of link-free, what is known of the line; otherwise see [`Scheme::is_last`].
        pub own: Word,
        /// Next nodes on the levels above.
        pub above: [Word; 3],
    }
}

/// Bit of a link: the node that holds it is removed.
pub const MARK: u64 = 1;

/// The number of levels of a node.
const LEVELS: u32 = 8;

/// Bytes before the first node or head: offset 0 is no node.
pub const FIRST: u64 = 64;

/// The word at an offset.
#[inline(always)]
pub fn word<'s, M: Medium>(op: &Op<'s, M>, at: u64) -> &'s Word {
    op.at(Off::new(at))
}

/// The number of levels of a node.
#[inline(always)]
pub fn levels<M: Medium>(op: &Op<'_, M>, line: &Line) -> usize {
    (op.load(&line.own, Relaxed) >> LEVELS) as usize
}

/// A scheme; a value of it is what one thread has of its own. Links are named by their offsets.
pub trait Scheme: Default + Send + 'static {
    /// Its name in tables.
    const NAME: &'static str;
    /// Bytes from [`FIRST`] on that all threads share.
    const SHARED: u64;
    /// Bytes of a link that stands by itself, as the head of a list does.
    const HEAD: u64;

    /// A node that nobody else knows is about to be written: sets `side` and `own`. A node of more than one level is left by two, its
    /// inserter and its remover.
    fn begin<M: Medium>(&mut self, op: &Op<'_, M>, line: &Line, levels: usize);

    /// The node is written, nothing leads to it yet.
    fn written<M: Medium>(&mut self, op: &Op<'_, M>, line: &Line);

    /// Makes a link on the lowest level lead to a new node instead of the next one; returns whether it did.
    fn link<M: Medium>(&mut self, op: &Op<'_, M>, link: u64, next: u64, node: u64) -> bool;

    /// The new node is linked: afterwards its insert is durable.
    fn linked<M: Medium>(&mut self, op: &Op<'_, M>, line: &Line);

    /// Marks the node at `node`, whose link holds `next`; returns whether it did. Afterwards the removal is durable.
    fn mark<M: Medium>(&mut self, op: &Op<'_, M>, node: u64, line: &Line, next: u64) -> bool;

    /// Makes a link lead past a node whose removal is durable; returns whether it did.
    fn unlink<M: Medium>(&mut self, op: &Op<'_, M>, link: u64, node: u64, next: u64) -> bool;

    /// The node at `node` was found marked: at the end of the operation, and before it is unlinked, its removal is durable.
    fn is_removed<M: Medium>(&mut self, op: &Op<'_, M>, node: u64, line: &Line);

    /// The node at `node` was found unmarked, by this link on the lowest level (`None`: on a higher one, which is linked when the
    /// insert is durable): at the end of the operation its insert is durable.
    fn is_there<M: Medium>(&mut self, op: &Op<'_, M>, link: Option<u64>, node: u64, line: &Line);

    /// An answer, or a new link, depends on what this link on the lowest level holds.
    fn depends<M: Medium>(&mut self, op: &Op<'_, M>, link: u64);

    /// The operation ends.
    fn end<M: Medium>(&mut self, op: &Op<'_, M>);

    /// The inserter or the remover of a node with more than one level leaves it; returns whether the other one has.
    fn is_last<M: Medium>(&mut self, op: &Op<'_, M>, line: &Line) -> bool;
}

/// The link-free scheme.
#[derive(Clone, Copy, Debug, Default)]
pub struct LinkFree;

/// Bits of `own`: the two that agree where the line is valid.
const VALID: u64 = 3;
/// A flag: the insert is durable.
const INSERTED: u64 = 4;
/// A flag: the removal is durable.
const REMOVED: u64 = 8;

/// Flags are set by plain stores. Two threads may overwrite each other's; then the line is written back once more, no more than that,
/// because each stores a line that is valid and stays so until it is used again.
impl LinkFree {
    #[inline(always)]
    fn make_valid<M: Medium>(op: &Op<'_, M>, line: &Line) {
        let own = op.load(&line.own, Relaxed);
        if own & 1 != own >> 1 & 1 {
            op.store(&line.own, own & !VALID | ((own & 1) * VALID), Release);
        }
    }

    #[inline(always)]
    fn settle<M: Medium>(op: &Op<'_, M>, line: &Line, flag: u64) {
        if op.load(&line.own, Acquire) & flag == 0 {
            op.write_back(line);
            op.fence();
            op.store(&line.own, op.load(&line.own, Relaxed) | flag, Release);
        }
    }

    #[inline(always)]
    fn compare_exchange<M: Medium>(op: &Op<'_, M>, link: u64, from: u64, to: u64) -> bool {
        op.compare_exchange(word(op, link), from, to).is_ok()
    }
}

impl Scheme for LinkFree {
    const NAME: &'static str = "link-free";
    const SHARED: u64 = 0;
    const HEAD: u64 = 8;

    #[inline(always)]
    fn begin<M: Medium>(&mut self, op: &Op<'_, M>, line: &Line, levels: usize) {
        let own = op.load(&line.own, Relaxed);
        let valid = own & 1 == own >> 1 & 1;
        // PERSIST invalid<new content: same line
        op.store(&line.own, own & VALID ^ u64::from(valid) | (levels as u64) << LEVELS, Relaxed);
        op.order();
        op.store(&line.side, 2, Relaxed);
    }

    #[inline(always)]
    fn written<M: Medium>(&mut self, _op: &Op<'_, M>, _line: &Line) {}

    #[inline(always)]
    fn link<M: Medium>(&mut self, op: &Op<'_, M>, link: u64, next: u64, node: u64) -> bool {
        Self::compare_exchange(op, link, next, node)
    }

    #[inline(always)]
    fn linked<M: Medium>(&mut self, op: &Op<'_, M>, line: &Line) {
        Self::make_valid(op, line);
        Self::settle(op, line, INSERTED);
    }

    #[inline(always)]
    fn mark<M: Medium>(&mut self, op: &Op<'_, M>, node: u64, line: &Line, next: u64) -> bool {
        Self::make_valid(op, line);
        let done = Self::compare_exchange(op, node, next, next | MARK);
        if done {
            Self::settle(op, line, REMOVED);
        }
        done
    }

    #[inline(always)]
    fn unlink<M: Medium>(&mut self, op: &Op<'_, M>, link: u64, node: u64, next: u64) -> bool {
        Self::compare_exchange(op, link, node, next)
    }

    #[inline(always)]
    fn is_removed<M: Medium>(&mut self, op: &Op<'_, M>, _node: u64, line: &Line) {
        Self::settle(op, line, REMOVED);
    }

    #[inline(always)]
    fn is_there<M: Medium>(&mut self, op: &Op<'_, M>, _link: Option<u64>, _node: u64, line: &Line) {
        Self::make_valid(op, line);
        Self::settle(op, line, INSERTED);
    }

    #[inline(always)]
    fn depends<M: Medium>(&mut self, _op: &Op<'_, M>, _link: u64) {}

    #[inline(always)]
    fn end<M: Medium>(&mut self, _op: &Op<'_, M>) {}

    #[inline(always)]
    fn is_last<M: Medium>(&mut self, op: &Op<'_, M>, line: &Line) -> bool {
        op.rmw(&line.side, Rmw::Add, u64::MAX) == 1
    }
}
