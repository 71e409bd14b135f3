//! First operations after a restart: on memory that the restart has left inactive.

use crate::Act::*;
use crate::{Kind, deep, every_kind, filled, in_turn};

/// The crash comes in an operation on one key; after the recovery the first operation is on another, old one, and is crashed,
/// too. What it touches first has to be active, or logged, before.
#[test]
fn the_first_change_after_a_restart_is_crashed_too() {
    every_kind(|entry| {
        let before = [filled(), vec![Reopen, Remove(9)]].concat();
        let kind = Kind::new(entry, &before);
        let explorer = kind.explorer().crashes(2).crash_later(true).executions_per_point(4).samples(2);
        let looks = [Remove(3), Update(5, 8), Put(7, 1), Apply(vec![(3, None), (5, Some(9))])];
        let looks = &looks[..if deep() { 4 } else { 2 }];
        in_turn(looks.iter().map(|look| explorer.first_looks(&kind, &[Put(4, 9)], std::slice::from_ref(look), &[])))
    });
}

/// The index is closed and opened in the same pool, and goes on: then it is crashed.
#[test]
fn changes_after_a_reopening_are_as_durable_as_before() {
    every_kind(|entry| {
        let kind = Kind::new(entry, &filled());
        let acts = [Remove(4), Reopen, Put(4, 3), Other(Box::new(Remove(5))), Reopen, Put(6, 1)];
        let explorer = kind.explorer().executions_per_point(if deep() { 1000 } else { 12 }).samples(4);
        explorer.run_then(&kind, &acts, &[Put(5, 5), Remove(3), Get(4)])
    });
}
