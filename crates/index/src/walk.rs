//! Walks that take some pairs at a time: the cursor of an index that can give the pairs from a place on.

use durix_pmem::{Medium, Op};

use crate::error::{Error, Result};
use crate::index::{Cursor, Direction, Order, STEP};

/// Bytes that a step takes before it ends, unless a part has more.
const STEP_BYTES: usize = 1 << 20;

/// A pair as an index gives it to a [`Walk`].
pub trait Pair {
    /// The pair in bytes.
    type Bytes;

    /// Key and value in bytes.
    fn into_bytes(self) -> Self::Bytes;

    /// The bytes of the key and of the value.
    fn lent(bytes: &Self::Bytes) -> (&[u8], &[u8]);

    /// How many bytes they are.
    fn len_in_bytes(&self) -> usize;
}

/// Words, in big-endian order.
impl Pair for (u64, u64) {
    type Bytes = [[u8; 8]; 2];

    fn into_bytes(self) -> Self::Bytes {
        [self.0.to_be_bytes(), self.1.to_be_bytes()]
    }

    fn lent([key, value]: &Self::Bytes) -> (&[u8], &[u8]) {
        (key, value)
    }

    fn len_in_bytes(&self) -> usize {
        size_of::<Self::Bytes>()
    }
}

impl Pair for (Vec<u8>, Vec<u8>) {
    type Bytes = Self;

    fn into_bytes(self) -> Self {
        self
    }

    fn lent((key, value): &Self) -> (&[u8], &[u8]) {
        (key, value)
    }

    fn len_in_bytes(&self) -> usize {
        self.0.len() + self.1.len()
    }
}

/// A [`Cursor`] over what a closure gives, some pairs at a time.
///
/// The closure appends the pairs from a place on, in the order of the walk, and returns the place where the next step begins;
/// `None` at the end. A step is one operation, so it should take about [`STEP`] pairs. Steps that give fewer are
/// run again in the same operation. What was appended before an error is lent out before the error is returned. A walk that goes
/// back is refused ([`Order`]).
pub struct Walk<P: Pair, S, At = u64> {
    step: S,
    next: Option<At>,
    /// What is left of the last step, its next pair last.
    pairs: Vec<P>,
    failed: Option<Error>,
    order: Order,
    lent: Option<P::Bytes>,
    /// How many pairs the next step takes.
    take: usize,
}

impl<P: Pair, S, At> Walk<P, S, At> {
    /// A walk in a direction, if the index is ordered, from `first` on; over nothing if that is `None`.
    pub fn new(direction: Option<Direction>, first: Option<At>, step: S) -> Self {
        Walk {
            step,
            next: first,
            pairs: Vec::new(),
            failed: None,
            order: Order::new(direction),
            lent: None,
            take: STEP,
        }
    }

    /// Lends out the next pair of the last step.
    fn lend(&mut self) -> Result<Option<(&[u8], &[u8])>> {
        let Some(pair) = self.pairs.pop() else { return Ok(None) };
        let bytes = pair.into_bytes();
        let last = self.lent.as_ref().map_or(&[][..], |last| P::lent(last).0);
        if let Err(error) = self.order.pass(last, P::lent(&bytes).0) {
            (self.next, self.failed, self.pairs) = (None, None, Vec::new());
            return Err(error);
        }
        Ok(Some(P::lent(self.lent.insert(bytes))))
    }
}

impl<M, P, S, At> Cursor<M> for Walk<P, S, At>
where
    M: Medium,
    P: Pair,
    S: FnMut(&Op<'_, M>, At, &mut Vec<P>) -> Result<Option<At>>,
{
    fn next(&mut self, op: &Op<'_, M>) -> Result<Option<(&[u8], &[u8])>> {
        while self.pairs.is_empty() {
            if let Some(error) = self.failed.take() {
                return Err(error);
            }
            if self.next.is_none() {
                return Ok(None);
            }
            let (mut bytes, take) = (0, std::mem::replace(&mut self.take, STEP));
            while self.pairs.len() < take
                && bytes < STEP_BYTES
                && let Some(from) = self.next.take()
            {
                let mut part = Vec::new();
                self.next = (self.step)(op, from, &mut part).unwrap_or_else(|error| {
                    self.failed = Some(error);
                    None
                });
                bytes += part.iter().map(Pair::len_in_bytes).sum::<usize>();
                self.pairs.append(&mut part);
            }
            self.pairs.reverse();
        }
        self.lend()
    }

    fn ready(&mut self) -> Result<Option<(&[u8], &[u8])>> {
        self.lend()
    }

    fn expect(&mut self, pairs: usize) {
        self.take = pairs.clamp(1, STEP);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// So that a repair saves what comes before what cannot be read.
    #[test]
    fn what_a_walk_has_met_before_an_error_is_lent_out_first() {
        use durix_pmem::{Hardware, PoolOptions, backing::HeapBacking};
        let options = PoolOptions::new().initial_size(1 << 20).max_size(1 << 20);
        let pool = options.create_on(HeapBacking::new(1 << 20), Hardware::PAGE_CACHE).unwrap();
        let mut session = pool.session().unwrap();
        let op = session.enter().unwrap();
        let mut cursor = Walk::new(None, Some(0), |_: &Op<'_, Hardware>, from, into: &mut Vec<(u64, u64)>| {
            into.extend([(from, 1), (from + 1, 1)]);
            if from < 4 { Ok(Some(from + 2)) } else { Err(Error::corrupt("a key", 64, 0)) }
        });
        for key in 0..6u64 {
            assert_eq!(cursor.next(&op).unwrap().unwrap().0, key.to_be_bytes());
        }
        assert!(matches!(cursor.next(&op), Err(Error::Corrupt { .. })));
        assert!(cursor.next(&op).unwrap().is_none());
    }

    /// A scan of a few pairs reads a few, and needs one operation.
    #[test]
    fn a_walk_reads_what_it_is_asked_for_and_lends_it_without_an_operation() {
        use durix_pmem::{Hardware, PoolOptions, backing::HeapBacking};
        let options = PoolOptions::new().initial_size(1 << 20).max_size(1 << 20);
        let pool = options.create_on(HeapBacking::new(1 << 20), Hardware::PAGE_CACHE).unwrap();
        let mut session = pool.session().unwrap();
        let read = std::cell::Cell::new(0);
        let step = |_: &Op<'_, Hardware>, from, into: &mut Vec<(u64, u64)>| {
            into.push((from, 1));
            read.set(read.get() + 1);
            Ok(Some(from + 1))
        };
        for (expected, all) in [(None, STEP), (Some(10), 10), (Some(0), 1), (Some(1 << 40), STEP)] {
            read.set(0);
            let mut cursor: Box<dyn Cursor<Hardware> + '_> = Box::new(Walk::new(None, Some(0), step));
            expected.inspect(|pairs| cursor.expect(*pairs));
            assert!(cursor.ready().unwrap().is_none(), "nothing was read yet");
            assert!(cursor.next(&session.enter().unwrap()).unwrap().is_some());
            let mut there = 1;
            while let Some((key, _)) = cursor.ready().unwrap() {
                assert_eq!(key, (there as u64).to_be_bytes());
                there += 1;
            }
            assert_eq!((there, read.get()), (all, all), "{expected:?}");
            let next = cursor.next(&session.enter().unwrap()).unwrap().map(|(key, _)| key.to_vec());
            assert_eq!(next, Some((all as u64).to_be_bytes().to_vec()), "and it goes on");
        }
    }

    /// Links of a damaged index may lead back.
    #[test]
    fn a_walk_ends_with_an_error_at_a_key_out_of_order() {
        use durix_pmem::{Hardware, PoolOptions, backing::HeapBacking};
        let options = PoolOptions::new().initial_size(1 << 20).max_size(1 << 20);
        let pool = options.create_on(HeapBacking::new(1 << 20), Hardware::PAGE_CACHE).unwrap();
        let mut session = pool.session().unwrap();
        let op = session.enter().unwrap();
        // It would never end.
        let step = |_: &Op<'_, Hardware>, from, into: &mut Vec<(u64, u64)>| {
            into.extend([(from, 1), (from + 9, 1)]);
            Ok(Some(from))
        };
        let mut cursor = Walk::new(Some(Direction::Forward), Some(5), step);
        assert!((0..2).all(|_| cursor.next(&op).unwrap().is_some()));
        assert!(matches!(cursor.next(&op), Err(Error::Corrupt { .. })));
        assert!(cursor.next(&op).unwrap().is_none());
        let mut cursor = Walk::new(Some(Direction::Backward), Some(5), step);
        assert!(
            cursor.next(&op).unwrap().is_some() && cursor.next(&op).is_err() && cursor.next(&op).unwrap().is_none()
        );
    }
}
