//! Walks of every ordered kind read some pairs at a time, mostly 64: what ends or changes at the end of such a batch.

use std::collections::BTreeSet;
use std::ops::Bound;

use durix::{Direction, Hardware, KeyRange};

use super::order::{meets, read_in_parts};
use super::{At, Pairs, kinds};

type End = fn(Vec<u8>) -> Bound<Vec<u8>>;

fn word(number: u64) -> Vec<u8> {
    number.to_be_bytes().to_vec()
}

/// An index with some keys: the first multiples of `gap`.
fn filled(entry: durix::kind::Entry, keys: u64, gap: u64) -> (At, Pairs) {
    let (mut at, mut model) = (At::new(entry), Pairs::new());
    for number in 1..=keys {
        // No tree is balanced by itself here: the keys come in another order.
        let key = word(gap * (number * 89 % (keys + 1)));
        at.index.insert(&at.session.enter().unwrap(), &key, &word(number)).unwrap();
        model.insert(key, word(number));
    }
    assert_eq!(model.len() as u64, keys, "each key once");
    (at, model)
}

#[test]
fn ranges_that_end_with_a_batch_have_their_last_key() {
    let ends: [End; 2] = [Bound::Included, Bound::Excluded];
    let kinds = kinds::<Hardware>().into_iter().filter(|entry| entry.ordered);
    // A batch that is cut short goes on one above its last key, which may be the bound itself.
    for (entry, gap) in kinds.flat_map(|entry| [(entry, 1), (entry, 10)]) {
        let (mut at, model) = filled(entry, 150, gap);
        for len in [1, 31, 32, 33, 63, 64, 65, 127, 128, 129] {
            // At the beginning of the index, within it, and at its end.
            for first in [1, 11, 151 - len] {
                let bounds = [first, first + len - 1].map(|number| word(gap * number));
                for (lower, upper) in [(0, 0), (0, 1), (1, 0), (1, 1)] {
                    let [from, to] = bounds.clone();
                    meets(&mut at, &model, &KeyRange { lower: ends[lower](from), upper: ends[upper](to) });
                }
                // Bounds beside the keys, and none.
                let [from, to] = [word(gap * first - 1), word(gap * (first + len - 1) + 1)];
                meets(&mut at, &model, &KeyRange { lower: Bound::Excluded(from), upper: Bound::Excluded(to) });
                let [from, to] = bounds.map(Bound::Included);
                meets(&mut at, &model, &KeyRange { lower: from.clone(), upper: Bound::Unbounded });
                meets(&mut at, &model, &KeyRange { lower: Bound::Unbounded, upper: to.clone() });
                let range = KeyRange { lower: from, upper: to };
                for direction in [Direction::Forward, Direction::Backward] {
                    for most in [63, 64, 65] {
                        let found = read_in_parts(&mut at, &range, direction, most);
                        assert_eq!(found.len() as u64, len, "{}: {range:?} {direction:?} by {most}", entry.name);
                    }
                }
            }
        }
    }
}

/// What happens to the keys around the place of a walk: those that come, and those that go.
type Change = fn(last: u64, next: u64) -> (Vec<u64>, Vec<u64>);

#[test]
fn changes_between_two_batches_cost_a_walk_no_other_key() {
    let changes: [Change; 6] = [
        |_, _| (vec![], vec![]),
        |_, next| (vec![], vec![next]),
        |last, _| (vec![], vec![last]),
        |last, next| (vec![], vec![last, next]),
        |last, next| (vec![(last + next) / 2], vec![]),
        |last, next| (vec![(last + next) / 2], vec![last, next]),
    ];
    for entry in kinds::<Hardware>().into_iter().filter(|entry| entry.ordered) {
        let (mut at, model) = filled(entry, 130, 10);
        for direction in [Direction::Forward, Direction::Backward] {
            for (taken, change) in
                [31, 32, 63, 64, 65, 127, 128].iter().flat_map(|n| changes.map(|change| (*n, change)))
            {
                let index = at.index.clone();
                // The range ends exactly at the key that follows, or with the index.
                for len in [taken + 1, 130] {
                    let place = |n: u64| 10 * if direction == Direction::Forward { n } else { 131 - n };
                    let (last, next) = (place(taken), place(taken + 1));
                    let (come, go) = change(last, next);
                    let bounds = [place(1).min(place(len)), place(1).max(place(len))].map(word).map(Bound::Included);
                    let [lower, upper] = bounds;
                    let mut cursor = index.as_ordered().unwrap().range(&KeyRange { lower, upper }, direction);
                    let (mut met, mut value) = (Vec::new(), Vec::new());
                    let mut step = |at: &mut At, met: &mut Vec<Vec<u8>>| {
                        let mut key = Vec::new();
                        let found = cursor.next_into(&at.session.enter().unwrap(), &mut key, &mut value).unwrap();
                        met.extend(found.then_some(key));
                        found
                    };
                    assert!((0..taken).all(|_| step(&mut at, &mut met)));
                    assert_eq!(met.last(), Some(&word(last)));
                    for key in &go {
                        assert!(index.remove(&at.session.enter().unwrap(), &word(*key)).unwrap());
                    }
                    for key in &come {
                        assert!(index.insert(&at.session.enter().unwrap(), &word(*key), &word(1)).unwrap());
                    }
                    while step(&mut at, &mut met) {}
                    let what =
                        format!("{}: {direction:?}, {taken} of {len}, then {come:?} came, {go:?} went", entry.name);
                    let up = met.is_sorted_by(|a, b| a < b);
                    let down = met.is_sorted_by(|a, b| a > b);
                    assert!(if direction == Direction::Forward { up } else { down }, "{what}: the order");
                    let met: BTreeSet<_> = met.into_iter().collect();
                    for number in (1..=len).map(place).filter(|number| *number != next || !go.contains(&next)) {
                        assert!(met.contains(&word(number)), "{what}: {number} was there all along");
                    }
                    let others = (1..=len).map(place).chain(come.iter().copied()).map(word).collect();
                    assert!(met.is_subset(&others), "{what}: keys from elsewhere");
                    // As it was, for the next range.
                    for key in &come {
                        index.remove(&at.session.enter().unwrap(), &word(*key)).unwrap();
                    }
                    for key in &go {
                        index.insert(&at.session.enter().unwrap(), &word(*key), &model[&word(*key)]).unwrap();
                    }
                }
            }
        }
    }
}
