//! Nodes in a row that bring a search no further: watched, so that a damaged file cannot lead it in circles.

use crate::error::Error;

/// A row of nodes (or branches) with one key.
///
/// No search of a sound structure meets a node twice: each node is younger than the one that leads to it, or has a higher
/// key, and none is used again while somebody may be at it. So a node that comes twice is damage, and is found as Brent does:
/// by comparing each with the last one whose number was a power of two. There is no greatest length. Each node in a row
/// was left by an update of that key, and a search that is held up at one finds as many as others have made since.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Row {
    len: u64,
    /// Offset of the last node whose number was a power of two.
    mark: u64,
}

impl Row {
    pub(crate) const NONE: Row = Row { len: 0, mark: 0 };

    /// With the node at `off` more, which is not 0.
    ///
    /// # Errors
    /// [`Error::Corrupt`] where the node was in it.
    #[inline(always)]
    pub(crate) fn and(self, off: u64) -> Result<Row, Error> {
        let len = self.len + 1;
        if off == self.mark {
            return Err(circle(off, len));
        }
        Ok(Row { len, mark: if len.is_power_of_two() { off } else { self.mark } })
    }
}

#[cold]
fn circle(offset: u64, len: u64) -> Error {
    Error::Corrupt { what: "a circle of nodes", offset, found: len }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_circle_is_found_wherever_it_begins_and_a_long_row_is_none() {
        for (before, len) in [(0, 1), (0, 2), (1, 1), (3, 1), (100, 7), (5, 1000), (0, 1 << 16)] {
            let node = |step: u64| 64 + 64 * if step < before { step } else { before + (step - before) % len };
            let mut row = Row::NONE;
            let end = (0..).find(|step| row.and(node(*step)).map(|next| row = next).is_err()).unwrap();
            assert!(end <= 4 * (before + len), "{end} steps for {before} before a circle of {len}");
        }
        (1..1 << 18).fold(Row::NONE, |row, number| row.and(64 * number).unwrap());
    }
}
