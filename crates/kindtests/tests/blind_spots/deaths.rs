//! The process dies with all of its stores in the caches; the next one builds on them; then the power fails.

use crate::Act::*;
use crate::{Kind, deep, every_kind, filled};

#[test]
fn what_a_dead_process_left_survives_the_power_failure_that_follows() {
    every_kind(|entry| {
        let kind = Kind::new(entry, &filled());
        let explorer =
            kind.explorer().process_deaths(true).executions_per_point(if deep() { 60 } else { 3 }).samples(2);
        let acts = [Put(6, 1), Put(4, 7), Remove(5)];
        let len = if deep() { 3 } else { 2 };
        explorer.run_then(&kind, &acts[3 - len..], &[Put(7, 1), Remove(3)])
    });
}

/// The same, and what looks first in the next process is no scan.
#[test]
fn nor_does_a_lookup_trust_what_only_a_dead_process_has_stored() {
    every_kind(|entry| {
        let kind = Kind::new(entry, &filled());
        let explorer =
            kind.explorer().process_deaths(true).executions_per_point(if deep() { 60 } else { 3 }).samples(2);
        let looks = [Get(6), Contains(4), GetMany(vec![4, 6]), PutNew(6, 9), Swap(4, Some(7), Some(8))];
        let looks = &looks[..if deep() { 5 } else { 2 }];
        explorer.first_looks(&kind, &[Put(6, 1)], looks, &[])
    });
}
