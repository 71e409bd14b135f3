//! The persistency model as a table: for each little program, outcomes that a crash may leave, and outcomes that it
//! must not.
//!
//! Words `x`, `y`, `z` share a line, `a` and `b` lie on lines of their own. Sessions `s` and `t` stand for two threads.

mod px86;

use std::collections::BTreeSet;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};

use durix_crashsim::{Explorer, Persistency, Simulated, Strategy, Subject};
use durix_pmem::{Mapping, Medium, Off, Op, Rmw, Session, Word};

type S<'s> = Op<'s, Simulated>;

struct Litmus(fn(&Vars<'_>, &S<'_>, &S<'_>));

struct Vars<'s> {
    x: &'s Word,
    y: &'s Word,
    z: &'s Word,
    a: &'s Word,
    b: &'s Word,
}

impl<'s> Vars<'s> {
    fn of(op: &Op<'s, Simulated>) -> Self {
        let at = |off| op.at(Off::<Word>::new(off));
        Vars { x: at(64), y: at(72), z: at(80), a: at(128), b: at(192) }
    }
}

impl Subject for Litmus {
    type Op = ();
    type Ret = ();
    type State = [u64; 5];
    type Model = ();
    type Store = Mapping<Simulated>;
    type Live = (Session<Simulated>, Session<Simulated>);

    fn store(&self, medium: Simulated) -> Self::Store {
        Mapping::heap(256, medium)
    }

    fn create(&self, store: &Self::Store) -> Self::Live {
        (store.session().unwrap(), store.session().unwrap())
    }

    fn recover(&self, store: &Self::Store) -> Result<Self::Live, String> {
        Ok(self.create(store))
    }

    fn apply(&self, (s, t): &mut Self::Live, (): &()) {
        let (s, t) = (s.enter().unwrap(), t.enter().unwrap());
        (self.0)(&Vars::of(&s), &s, &t);
    }

    fn observe(&self, (s, _): &mut Self::Live) -> [u64; 5] {
        let s = s.enter().unwrap();
        let v = Vars::of(&s);
        [v.x, v.y, v.z, v.a, v.b].map(|word| s.load(word, Relaxed))
    }

    fn model(&self) {}
    fn step(&self, (): &mut (), (): &()) {}
    fn expect(&self, (): &()) -> [u64; 5] {
        [0; 5]
    }
}

fn found(explorer: &Explorer, program: fn(&Vars<'_>, &S<'_>, &S<'_>)) -> BTreeSet<String> {
    explorer.outcomes(&Litmus(program), &[()])
}

/// Checks that exactly `expected` may be found (as `[x, y, z, a, b]`), lazily and eagerly, reduced and in full.
#[track_caller]
fn table(explorer: Explorer, program: fn(&Vars<'_>, &S<'_>, &S<'_>), expected: &[[u64; 5]]) {
    let expected: BTreeSet<String> = expected.iter().map(|e| format!("{e:?}")).collect();
    for strategy in [Strategy::Lazy, Strategy::Eager] {
        for every_event in [false, true] {
            let explorer = explorer.clone().strategy(strategy).every_event(every_event);
            let found = found(&explorer, program);
            let (allowed, forbidden) = (expected.difference(&found), found.difference(&expected));
            let (allowed, forbidden): (Vec<_>, Vec<_>) = (allowed.collect(), forbidden.collect());
            assert!(
                allowed.is_empty() && forbidden.is_empty(),
                "{strategy:?}, every event {every_event}: not found {allowed:?}, found but forbidden {forbidden:?}"
            );
        }
    }
}

fn pcso() -> Explorer {
    Explorer::new()
}

fn torn() -> Explorer {
    Explorer::new().model(Persistency::TornWords)
}

fn eadr() -> Explorer {
    Explorer::new().model(Persistency::Eadr)
}

#[test]
fn release_stores_to_one_line_reach_memory_in_order() {
    table(
        pcso(),
        |v, s, _| {
            s.store(v.x, 1, Release);
            s.store(v.y, 1, Release);
            s.store(v.x, 2, Release);
        },
        &[[0; 5], [1, 0, 0, 0, 0], [1, 1, 0, 0, 0], [2, 1, 0, 0, 0]],
    );
}

#[test]
fn relaxed_stores_to_one_line_reach_memory_in_any_order() {
    table(
        pcso(),
        |v, s, _| {
            s.store(v.x, 1, Relaxed);
            s.store(v.y, 1, Relaxed);
        },
        &[[0; 5], [1, 0, 0, 0, 0], [0, 1, 0, 0, 0], [1, 1, 0, 0, 0]],
    );
}

#[test]
fn relaxed_stores_to_one_word_stay_in_order() {
    table(
        pcso(),
        |v, s, _| {
            s.store(v.x, 1, Relaxed);
            s.store(v.x, 2, Relaxed);
        },
        &[[0; 5], [1, 0, 0, 0, 0], [2, 0, 0, 0, 0]],
    );
}

#[test]
fn a_release_store_drags_along_what_comes_before_it() {
    table(
        pcso(),
        |v, s, _| {
            s.store(v.x, 1, Relaxed);
            s.store(v.y, 1, Relaxed);
            s.store(v.z, 1, Release);
        },
        &[[0; 5], [1, 0, 0, 0, 0], [0, 1, 0, 0, 0], [1, 1, 0, 0, 0], [1, 1, 1, 0, 0]],
    );
}

#[test]
fn a_release_store_does_not_hold_back_what_comes_after_it() {
    table(
        pcso(),
        |v, s, _| {
            s.store(v.x, 1, Release);
            s.store(v.y, 1, Relaxed);
        },
        &[[0; 5], [1, 0, 0, 0, 0], [0, 1, 0, 0, 0], [1, 1, 0, 0, 0]],
    );
}

#[test]
fn order_holds_back_what_comes_after_it() {
    table(
        pcso(),
        |v, s, _| {
            s.store(v.x, 1, Relaxed);
            s.order();
            s.store(v.y, 1, Relaxed);
            s.store(v.z, 1, Release);
        },
        &[[0; 5], [1, 0, 0, 0, 0], [1, 1, 0, 0, 0], [1, 1, 1, 0, 0]],
    );
}

#[test]
fn an_order_point_is_the_thread_s_own() {
    table(
        pcso(),
        |v, s, t| {
            s.store(v.x, 1, Relaxed);
            t.order();
            s.store(v.y, 1, Relaxed);
        },
        &[[0; 5], [1, 0, 0, 0, 0], [0, 1, 0, 0, 0], [1, 1, 0, 0, 0]],
    );
}

#[test]
fn a_release_store_of_another_thread_comes_after_what_was_visible() {
    table(
        pcso(),
        |v, s, t| {
            s.store(v.x, 1, Relaxed);
            t.store(v.y, 1, Release);
        },
        &[[0; 5], [1, 0, 0, 0, 0], [1, 1, 0, 0, 0]],
    );
}

#[test]
fn what_a_thread_has_acquired_comes_before_what_it_stores() {
    table(
        pcso(),
        |v, s, t| {
            let flag = Default::default();
            s.store(v.x, 1, Relaxed);
            s.medium().shared_store(&flag, 1, Release);
            t.medium().shared_load(&flag, Acquire);
            t.store(v.y, 1, Relaxed);
        },
        &[[0; 5], [1, 0, 0, 0, 0], [1, 1, 0, 0, 0]],
    );
    table(
        pcso(),
        |v, s, t| {
            s.store(v.x, 1, Release);
            t.load(v.x, Acquire);
            t.store(v.y, 1, Relaxed);
        },
        &[[0; 5], [1, 0, 0, 0, 0], [1, 1, 0, 0, 0]],
    );
}

#[test]
fn what_a_thread_has_not_acquired_is_not_ordered_with_what_it_stores() {
    table(
        pcso(),
        |v, s, t| {
            s.store(v.x, 1, Relaxed);
            t.load(v.x, Relaxed);
            t.store(v.y, 1, Relaxed);
        },
        &[[0; 5], [1, 0, 0, 0, 0], [0, 1, 0, 0, 0], [1, 1, 0, 0, 0]],
    );
    table(
        pcso(),
        |v, s, _| {
            s.store(v.x, 1, Relaxed);
            s.load(v.x, Acquire);
            s.store(v.y, 1, Relaxed);
        },
        &[[0; 5], [1, 0, 0, 0, 0], [0, 1, 0, 0, 0], [1, 1, 0, 0, 0]],
    );
}

#[test]
fn a_read_modify_write_orders_both_ways() {
    table(
        pcso(),
        |v, s, _| {
            s.store(v.x, 1, Relaxed);
            s.rmw(v.y, Rmw::Add, 1);
            s.store(v.z, 1, Relaxed);
        },
        &[[0; 5], [1, 0, 0, 0, 0], [1, 1, 0, 0, 0], [1, 1, 1, 0, 0]],
    );
    table(
        pcso(),
        |v, s, _| {
            s.store(v.x, 1, Relaxed);
            s.medium().shared_rmw(&Default::default(), Rmw::Add, 1);
            s.store(v.z, 1, Relaxed);
        },
        &[[0; 5], [1, 0, 0, 0, 0], [1, 0, 1, 0, 0]],
    );
}

#[test]
fn a_failed_compare_exchange_stores_and_orders_nothing() {
    table(
        pcso(),
        |v, s, _| {
            s.store(v.x, 1, Relaxed);
            assert_eq!(s.compare_exchange(v.y, 7, 8), Err(0));
            s.store(v.z, 1, Relaxed);
        },
        &[[0; 5], [1, 0, 0, 0, 0], [0, 0, 1, 0, 0], [1, 0, 1, 0, 0]],
    );
}

#[test]
fn lines_are_not_ordered_with_each_other() {
    table(
        pcso(),
        |v, s, _| {
            s.store(v.a, 1, Release);
            s.store(v.b, 1, Release);
        },
        &[[0; 5], [0, 0, 0, 1, 0], [0, 0, 0, 0, 1], [0, 0, 0, 1, 1]],
    );
}

#[test]
fn a_write_back_without_a_fence_promises_nothing() {
    table(
        pcso(),
        |v, s, _| {
            s.store(v.a, 1, Release);
            s.write_back(v.a);
            s.store(v.b, 1, Release);
        },
        &[[0; 5], [0, 0, 0, 1, 0], [0, 0, 0, 0, 1], [0, 0, 0, 1, 1]],
    );
}

#[test]
fn a_fence_without_a_write_back_promises_nothing() {
    table(
        pcso(),
        |v, s, _| {
            s.store(v.a, 1, Release);
            s.fence();
            s.store(v.b, 1, Release);
        },
        &[[0; 5], [0, 0, 0, 1, 0], [0, 0, 0, 0, 1], [0, 0, 0, 1, 1]],
    );
}

#[test]
fn a_write_back_and_a_fence_order_two_lines() {
    table(
        pcso(),
        |v, s, _| {
            s.store(v.a, 1, Relaxed);
            s.persist(v.a);
            s.store(v.b, 1, Relaxed);
        },
        &[[0; 5], [0, 0, 0, 1, 0], [0, 0, 0, 1, 1]],
    );
}

#[test]
fn a_write_back_covers_what_was_visible_when_it_was_requested() {
    table(
        pcso(),
        |v, s, _| {
            s.store(v.a, 1, Release);
            s.write_back(v.a);
            s.store(v.a, 2, Release);
            s.fence();
            s.store(v.b, 1, Release);
        },
        &[[0; 5], [0, 0, 0, 1, 0], [0, 0, 0, 2, 0], [0, 0, 0, 1, 1], [0, 0, 0, 2, 1]],
    );
}

#[test]
fn the_fence_of_another_thread_settles_nothing() {
    table(
        pcso(),
        |v, s, t| {
            s.store(v.a, 1, Release);
            s.write_back(v.a);
            t.fence();
            t.store(v.b, 1, Release);
        },
        &[[0; 5], [0, 0, 0, 1, 0], [0, 0, 0, 0, 1], [0, 0, 0, 1, 1]],
    );
}

#[test]
fn the_write_back_of_another_thread_covers_what_it_saw() {
    table(
        pcso(),
        |v, s, t| {
            s.store(v.a, 1, Relaxed);
            t.write_back(v.a);
            t.fence();
            t.store(v.b, 1, Release);
        },
        &[[0; 5], [0, 0, 0, 1, 0], [0, 0, 0, 1, 1]],
    );
}

#[test]
fn stores_around_the_cache_are_durable_after_the_fence_alone() {
    table(
        pcso(),
        |v, s, _| {
            s.store_nt(v.a, 1);
            s.fence();
            s.store(v.b, 1, Release);
        },
        &[[0; 5], [0, 0, 0, 1, 0], [0, 0, 0, 1, 1]],
    );
}

#[test]
fn stores_around_the_cache_are_ordered_with_nothing_before_the_fence() {
    table(
        pcso(),
        |v, s, _| {
            s.store_nt(v.x, 1);
            s.order();
            s.store(v.y, 1, Release);
        },
        &[[0; 5], [1, 0, 0, 0, 0], [0, 1, 0, 0, 0], [1, 1, 0, 0, 0]],
    );
    table(
        pcso(),
        |v, s, t| {
            s.store_nt(v.a, 1);
            t.write_back(v.a);
            t.fence();
            t.store(v.b, 1, Release);
        },
        &[[0; 5], [0, 0, 0, 1, 0], [0, 0, 0, 0, 1], [0, 0, 0, 1, 1]],
    );
}

#[test]
fn the_words_of_a_line_stored_around_the_cache_are_independent() {
    table(
        pcso(),
        |_, s, _| {
            let line = s.at(Off::<[Word; 8]>::new(64));
            s.store_nt_line(line, &[1, 1, 0, 0, 0, 0, 0, 0]);
        },
        &[[0; 5], [1, 0, 0, 0, 0], [0, 1, 0, 0, 0], [1, 1, 0, 0, 0]],
    );
}

#[test]
fn a_store_around_the_cache_overwrites_what_was_cached() {
    table(
        pcso(),
        |v, s, _| {
            s.store(v.x, 1, Release);
            s.store(v.y, 1, Release);
            s.store_nt(v.x, 2);
            s.fence();
            s.store(v.b, 1, Release);
        },
        &[[0; 5], [1, 0, 0, 0, 0], [1, 1, 0, 0, 0], [2, 0, 0, 0, 0], [2, 1, 0, 0, 0], [2, 0, 0, 0, 1], [2, 1, 0, 0, 1]],
    );
}

#[test]
fn locked_instructions_drain_only_where_the_switch_says_so() {
    let program: fn(&Vars<'_>, &S<'_>, &S<'_>) = |v, s, _| {
        s.store(v.a, 1, Release);
        s.write_back(v.a);
        s.store(v.x, 1, SeqCst);
        s.store(v.b, 1, Release);
    };
    let drained = [[0; 5], [0, 0, 0, 1, 0], [1, 0, 0, 1, 0], [0, 0, 0, 1, 1], [1, 0, 0, 1, 1]];
    let not = [[1, 0, 0, 0, 0], [0, 0, 0, 0, 1], [1, 0, 0, 0, 1]];
    table(pcso().locked_drains(true), program, &drained);
    table(pcso(), program, &[&drained[..], &not].concat());
    let shared: fn(&Vars<'_>, &S<'_>, &S<'_>) = |v, s, _| {
        s.store(v.a, 1, Release);
        s.write_back(v.a);
        assert!(s.medium().shared_compare_exchange(&Default::default(), 0, 1).is_ok());
        s.store(v.b, 1, Release);
    };
    table(pcso().locked_drains(true), shared, &[[0; 5], [0, 0, 0, 1, 0], [0, 0, 0, 1, 1]]);
    table(pcso(), shared, &[[0; 5], [0, 0, 0, 1, 0], [0, 0, 0, 0, 1], [0, 0, 0, 1, 1]]);
}

#[test]
fn torn_words_of_a_line_are_independent_until_they_are_guaranteed() {
    table(
        torn(),
        |v, s, _| {
            s.store(v.x, 1, Release);
            s.persist(v.x);
            s.store(v.x, 2, Release);
            s.store(v.y, 1, Release);
        },
        &[[0; 5], [1, 0, 0, 0, 0], [2, 0, 0, 0, 0], [1, 1, 0, 0, 0], [2, 1, 0, 0, 0]],
    );
}

#[test]
fn with_eadr_everything_visible_survives() {
    table(
        eadr(),
        |v, s, _| {
            s.store(v.a, 1, Release);
            s.store(v.b, 1, Release);
            s.store(v.x, 1, Release);
        },
        &[[0; 5], [0, 0, 0, 1, 0], [0, 0, 0, 1, 1], [1, 0, 0, 1, 1]],
    );
}

#[test]
fn a_value_may_recur() {
    table(
        pcso(),
        |v, s, _| {
            s.store(v.x, 1, Release);
            s.store(v.y, 1, Release);
            s.store(v.x, 0, Release);
            s.store(v.y, 2, Release);
            s.store(v.x, 1, Release);
        },
        &[[0; 5], [1, 0, 0, 0, 0], [1, 1, 0, 0, 0], [0, 1, 0, 0, 0], [0, 2, 0, 0, 0], [1, 2, 0, 0, 0]],
    );
}
