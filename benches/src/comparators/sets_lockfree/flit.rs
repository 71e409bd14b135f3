//! FliT (PPoPP'22): each durable link has a counter of threads that are changing it. A thread that reads the link writes it back only if
//! the counter is not 0. The placement is by hand, as the paper's fastest: searches read without looking at counters, and an operation
//! looks at those of the links that its answer or its new link depends on.
//!
//! A durable exchange: fence, if anything was written back before; counter up; exchange; write-back; fence; counter down.
//!
//! Counters lie beside their links, or in a table that lines share by their address.

use std::sync::atomic::Ordering::{Acquire, Relaxed};

use durix_pmem::{Medium, Op, Rmw, Word};

use super::scheme::{FIRST, Line, MARK, Scheme, word};

/// Counters of the table, a power of two.
const COUNTERS: u64 = 64 << 10;

/// The scheme; with `HASHED`, counters lie in a table.
#[derive(Clone, Copy, Debug, Default)]
pub struct Flit<const HASHED: bool> {
    /// Something was written back after the last fence.
    pending: bool,
}

impl<const HASHED: bool> Flit<HASHED> {
    #[inline(always)]
    fn counter<'s, M: Medium>(op: &Op<'s, M>, link: u64) -> &'s Word {
        word(op, if HASHED { FIRST + ((link / 64) & (COUNTERS - 1)) * 8 } else { link + 8 })
    }

    /// The second half of the paper's p-load; the search has loaded the link before.
    #[inline(always)]
    fn look<M: Medium>(&mut self, op: &Op<'_, M>, link: u64) {
        if op.load(Self::counter(op, link), Acquire) != 0 {
            op.write_back(word(op, link));
            self.pending = true;
        }
    }

    /// The paper's p-CAS.
    #[inline(always)]
    fn compare_exchange<M: Medium>(&mut self, op: &Op<'_, M>, link: u64, from: u64, to: u64) -> bool {
        // PERSIST what the link depends on<link: flush+fence
        self.end(op);
        let (counter, link) = (Self::counter(op, link), word(op, link));
        op.rmw(counter, Rmw::Add, 1);
        let done = op.compare_exchange(link, from, to).is_ok();
        if done {
            op.write_back(link);
            op.fence();
        }
        op.rmw(counter, Rmw::Add, u64::MAX);
        done
    }
}

impl<const HASHED: bool> Scheme for Flit<HASHED> {
    const NAME: &'static str = if HASHED { "FliT, counters in a table" } else { "FliT, counters beside links" };
    const SHARED: u64 = if HASHED { COUNTERS * 8 } else { 0 };
    const HEAD: u64 = if HASHED { 8 } else { 16 };

    #[inline(always)]
    fn begin<M: Medium>(&mut self, op: &Op<'_, M>, line: &Line, levels: usize) {
        op.store(&line.own, (levels as u64) << 8 | 2, Relaxed);
    }

    #[inline(always)]
    fn written<M: Medium>(&mut self, op: &Op<'_, M>, line: &Line) {
        op.write_back(line);
        self.pending = true;
    }

    #[inline(always)]
    fn link<M: Medium>(&mut self, op: &Op<'_, M>, link: u64, next: u64, node: u64) -> bool {
        self.compare_exchange(op, link, next, node)
    }

    #[inline(always)]
    fn linked<M: Medium>(&mut self, _op: &Op<'_, M>, _line: &Line) {}

    #[inline(always)]
    fn mark<M: Medium>(&mut self, op: &Op<'_, M>, node: u64, _line: &Line, next: u64) -> bool {
        self.compare_exchange(op, node, next, next | MARK)
    }

    #[inline(always)]
    fn unlink<M: Medium>(&mut self, op: &Op<'_, M>, link: u64, node: u64, next: u64) -> bool {
        self.compare_exchange(op, link, node, next)
    }

    #[inline(always)]
    fn is_removed<M: Medium>(&mut self, op: &Op<'_, M>, node: u64, _line: &Line) {
        self.look(op, node);
    }

    #[inline(always)]
    fn is_there<M: Medium>(&mut self, op: &Op<'_, M>, link: Option<u64>, node: u64, _line: &Line) {
        if let Some(link) = link {
            self.look(op, link);
        }
        self.look(op, node);
    }

    #[inline(always)]
    fn depends<M: Medium>(&mut self, op: &Op<'_, M>, link: u64) {
        self.look(op, link);
    }

    #[inline(always)]
    fn end<M: Medium>(&mut self, op: &Op<'_, M>) {
        if self.pending {
            op.fence();
            self.pending = false;
        }
    }

    #[inline(always)]
    fn is_last<M: Medium>(&mut self, op: &Op<'_, M>, line: &Line) -> bool {
        op.rmw(&line.own, Rmw::Add, u64::MAX) & 0xff == 1
    }
}
