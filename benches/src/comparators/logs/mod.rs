//! The logs of Table 1 and Figure 4 (OOPSLA'17, section 5.1) behind one trait.
//!
//! | module | logs | what makes an entry valid |
//! |---|---|---|
//! | [`linked`] | TwoRounds, Atlas | the next pointer of the entry before it, written in a second round trip |
//! | [`checksum`] | CRC32, CRC64, MD5, SHA1 | a checksum over the payload and the number of the pass |
//! | [`tornbit`] | tornbit (Mnemosyne) | one bit in each word, whose sense flips with each pass |
//! | [`ours`] | CSO-VB, CSO-FVB, CSO-Random, of `durix-cso` as it is published | the last store to each line |
//!
//! The comparators know the size of their entries when they are compiled and keep no lengths, as in the paper: where that
//! matters it is to their advantage. All of them store through the same [`Op`](durix_pmem::Op) and are inlined into the loop that measures
//! them. They align entries so that none overlaps a line more than it must, write each line back as soon as it is complete, and
//! lay half lines out in stripes, as ours do. They prefetch nothing: the hardware does it for successive lines (`prefetchw`
//! was measured to gain 1%).

pub mod append;
pub mod checksum;
pub mod linked;
pub mod ours;
pub mod ring;
pub mod tornbit;

#[cfg(test)]
mod tests;

use durix_cso::log::{FvbLog, HalfLine, LinesLog, OneLine, RandomLog, TwoLines, VbLog};
use durix_pmem::Medium;

pub use append::{AppendLog, Claim, Error, Line, Region};

/// The sizes of entries in the paper's stress test, with their metadata, and the words of payload that fit into them in
/// every log: 24 bytes in half a line, 56 in each full line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EntrySize {
    /// As the tables call it.
    pub name: &'static str,
    /// 64-byte lines that an entry overlaps.
    pub lines: usize,
    /// Words of payload.
    pub payload_words: usize,
}

/// Words of payload in half a line.
pub const HALF: usize = 3;
/// Words of payload in one line.
pub const ONE: usize = 7;
/// Words of payload in two lines.
pub const TWO: usize = 14;
/// Words of payload in four lines.
pub const FOUR: usize = 28;
/// Words of payload in eight lines.
pub const EIGHT: usize = 56;

/// Half a line, 1, 2, 4 and 8 lines.
pub const SIZES: [EntrySize; 5] = [
    EntrySize { name: "1/2 line", lines: 1, payload_words: HALF },
    EntrySize { name: "1 line", lines: 1, payload_words: ONE },
    EntrySize { name: "2 lines", lines: 2, payload_words: TWO },
    EntrySize { name: "4 lines", lines: 4, payload_words: FOUR },
    EntrySize { name: "8 lines", lines: 8, payload_words: EIGHT },
];

/// Something done with every log.
pub trait Visitor<M: Medium, const W: usize> {
    /// Does it with one of them.
    fn visit<L: AppendLog<M, W> + 'static>(&mut self);
}

/// Shows a visitor every log that takes entries of `W` words: ours, then the comparators.
pub fn visit_logs<M: Medium, const W: usize>(visitor: &mut impl Visitor<M, W>) {
    match W {
        HALF => visitor.visit::<ours::Ours<VbLog<HalfLine>>>(),
        ONE => visitor.visit::<ours::Ours<VbLog<OneLine>>>(),
        TWO => visitor.visit::<ours::Ours<VbLog<TwoLines>>>(),
        _ => visitor.visit::<ours::Ours<LinesLog>>(),
    }
    visitor.visit::<ours::Ours<FvbLog>>();
    visitor.visit::<ours::Ours<RandomLog>>();
    visitor.visit::<linked::TwoRounds<W>>();
    if W == HALF {
        visitor.visit::<linked::Atlas<W>>();
    }
    visitor.visit::<tornbit::Tornbit<W>>();
    visitor.visit::<checksum::Checksummed<checksum::Crc32, W>>();
    visitor.visit::<checksum::Checksummed<checksum::Crc64, W>>();
    visitor.visit::<checksum::Checksummed<checksum::Md5, W>>();
    visitor.visit::<checksum::Checksummed<checksum::Sha1, W>>();
}

/// Calls a function with the payload words of a size as its one constant parameter: `with_size!(size, run(x, y))` calls
/// `run::<W>(x, y)`.
#[macro_export]
macro_rules! with_size {
    ($size:expr, $function:ident($($argument:expr),* $(,)?)) => {
        match $size.payload_words {
            $crate::logs::HALF => $function::<{ $crate::logs::HALF }>($($argument),*),
            $crate::logs::ONE => $function::<{ $crate::logs::ONE }>($($argument),*),
            $crate::logs::TWO => $function::<{ $crate::logs::TWO }>($($argument),*),
            $crate::logs::FOUR => $function::<{ $crate::logs::FOUR }>($($argument),*),
            _ => $function::<{ $crate::logs::EIGHT }>($($argument),*),
        }
    };
}
