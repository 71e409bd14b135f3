//! An iterator that can be advanced from both ends: `next` and `next_back`.

use crate::{Direction, Result};

/// Two walks over the same range, one from each end, which never give a key twice: each stops where the other has come to,
/// by comparing keys, since others may write during the walk.
pub(crate) struct Ends<W> {
    front: End<W>,
    back: End<W>,
    over: bool,
    value: Vec<u8>,
}

/// One of them.
struct End<W> {
    walk: Option<W>,
    /// The last key that it gave, if `moved`.
    key: Vec<u8>,
    moved: bool,
}

impl<W> End<W> {
    fn new(walk: Option<W>) -> Self {
        End { walk, key: Vec::new(), moved: false }
    }
}

impl<W> Ends<W> {
    /// Walks that are opened when they are needed.
    pub(crate) fn new() -> Self {
        Self::of(None, None)
    }

    /// Walks that are open, as far as they are given.
    pub(crate) fn of(front: Option<W>, back: Option<W>) -> Self {
        Ends { front: End::new(front), back: End::new(back), over: false, value: Vec::new() }
    }

    /// The walk of one end, and where its last key is kept, if it is open and the other end has not begun: then it has nothing to
    /// look out for. The code that takes a step of it has to keep the key.
    #[inline]
    pub(crate) fn only(&mut self, direction: Direction) -> Option<(&mut W, &mut Vec<u8>)> {
        let (end, other) = match direction {
            Direction::Forward => (&mut self.front, &self.back),
            Direction::Backward => (&mut self.back, &self.front),
        };
        // An end that is open and has not moved has failed at its first step: that is for `step`.
        let is_alone = !self.over && !other.moved && end.moved;
        end.walk.as_mut().filter(|_| is_alone).map(|walk| (walk, &mut end.key))
    }

    /// The next pair from one end. `open` opens its walk; `next` takes a step, writes the pair, and says whether there was one.
    pub(crate) fn step(
        &mut self,
        direction: Direction,
        open: impl FnOnce() -> Result<W>,
        next: impl FnOnce(&mut W, &mut Vec<u8>, &mut Vec<u8>) -> Result<bool>,
    ) -> Result<Option<(&[u8], &[u8])>> {
        let (end, other) = match direction {
            Direction::Forward => (&mut self.front, &self.back),
            Direction::Backward => (&mut self.back, &self.front),
        };
        if self.over {
            return Ok(None);
        }
        let walk = match &mut end.walk {
            Some(walk) => walk,
            none => none.insert(open()?),
        };
        let there = next(walk, &mut end.key, &mut self.value)?;
        let crossed = match direction {
            Direction::Forward => other.moved && end.key >= other.key,
            Direction::Backward => other.moved && end.key <= other.key,
        };
        self.over = !there || crossed;
        end.moved = true;
        Ok((!self.over).then_some((&end.key, &self.value)))
    }
}

/// A step of a walk that gives pairs of its own.
pub(crate) fn next_into(
    walk: &mut impl Iterator<Item = Result<(Vec<u8>, Vec<u8>)>>,
    key: &mut Vec<u8>,
    value: &mut Vec<u8>,
) -> Result<bool> {
    let Some(pair) = walk.next().transpose()? else { return Ok(false) };
    (*key, *value) = pair;
    Ok(true)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A walk over keys that change during the walk.
    struct Walk(Vec<u8>);

    fn step(ends: &mut Ends<Walk>, direction: Direction, left: &[u8]) -> Option<u8> {
        let next = |walk: &mut Walk, key: &mut Vec<u8>, value: &mut Vec<u8>| {
            let Some(first) = walk.0.pop() else { return Ok(false) };
            (*key, *value) = (vec![first], vec![first]);
            Ok(true)
        };
        ends.step(direction, || Ok(Walk(left.to_vec())), next).unwrap().map(|(key, _)| key[0])
    }

    #[test]
    fn the_ends_do_not_cross() {
        let (up, down) = ([4, 3, 2, 1], [1, 2, 3, 4]);
        for front in 0..=5 {
            let mut ends = Ends::new();
            let mut seen: Vec<u8> = (0..front).filter_map(|_| step(&mut ends, Direction::Forward, &up)).collect();
            seen.extend((0..5).filter_map(|_| step(&mut ends, Direction::Backward, &down)));
            seen.sort_unstable();
            assert_eq!(seen, [1, 2, 3, 4], "{front} from the front");
            assert_eq!(step(&mut ends, Direction::Forward, &up), None);
        }
    }

    #[test]
    fn a_key_that_was_inserted_behind_the_other_end_is_not_given() {
        let mut ends = Ends::new();
        assert_eq!(step(&mut ends, Direction::Backward, &[1, 5]), Some(5));
        // 3 is removed, 6 inserted.
        assert_eq!(step(&mut ends, Direction::Forward, &[6, 1]), Some(1));
        assert_eq!(step(&mut ends, Direction::Forward, &[]), None);
    }

    #[test]
    fn an_error_is_told_and_the_walk_goes_on() {
        let mut ends = Ends::new();
        let fail =
            |_: &mut Walk, _: &mut Vec<u8>, _: &mut Vec<u8>| Err(crate::encode::Unfit("for the test".into()).into());
        assert!(ends.step(Direction::Forward, || Ok(Walk(vec![2, 1])), fail).is_err());
        assert_eq!(step(&mut ends, Direction::Forward, &[]), Some(1));
    }
}
