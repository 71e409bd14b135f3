//! Each entry point as the first that looks at what was recovered. A scan may repair what a lookup would have met.

use durix_crashsim::Report;

use crate::Act::*;
use crate::{Kind, deep, every_kind, filled, in_turn};

/// What is crashed: each leaves a link, a value or a mark that may not be durable.
fn histories() -> Vec<Vec<crate::Act>> {
    let all = vec![vec![Put(4, 7)], vec![Swap(4, Some(2), None), PutNew(4, 8)], vec![Put(6, 1)], vec![Remove(4)]];
    all.into_iter().take(if deep() { 4 } else { 2 }).collect()
}

fn explore(entry: durix::kind::Entry<crate::M>, neighbours: u32) -> Report {
    let kind = Kind { neighbours, ..Kind::new(entry, &filled()) };
    let explorer = kind.explorer().crashes(if deep() { 2 } else { 1 }).crash_later(deep());
    in_turn(
        histories().iter().map(|history| explorer.first_looks(&kind, history, &kind.looks(4), &[Put(4, 9), Get(5)])),
    )
}

#[test]
fn whatever_looks_first_finds_what_was_promised() {
    every_kind(|entry| explore(entry, 0));
}

#[test]
fn wherever_the_index_lies() {
    let all = if deep() { 3 } else { 1 };
    every_kind(|entry| {
        let kind = Kind { neighbours: all, ..Kind::new(entry, &filled()) };
        let looks = [Get(4), Put(4, 91), Remove(5)];
        kind.explorer().first_looks(&kind, &[Put(6, 1), Remove(4)], &looks, &[Get(5)])
    });
}
