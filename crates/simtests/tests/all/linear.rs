//! Hand-made histories, legal and illegal, for the checker of durable linearizability.

use std::collections::{BTreeMap, VecDeque};

use durix_crashsim::Contract::{self, Buffered, Strict};
use durix_crashsim::linear::{History, Spec, Verdict, check, check_within};

/// A map; as one history, or each key by itself.
struct Map {
    by_key: bool,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Act {
    Put(u64, u64),
    Get(u64),
    Del(u64),
    Sync,
}
use Act::{Del, Get, Put, Sync};

impl Spec for Map {
    type Op = Act;
    type Ret = Option<u64>;
    type State = BTreeMap<u64, u64>;

    fn initial(&self) -> Self::State {
        BTreeMap::new()
    }
    fn step(&self, state: &mut Self::State, op: &Act) -> Option<u64> {
        match *op {
            Put(key, value) => state.insert(key, value),
            Get(key) => state.get(&key).copied(),
            Del(key) => state.remove(&key),
            Sync => None,
        }
    }
    fn key(&self, op: &Act) -> Option<u64> {
        match *op {
            Put(key, _) | Get(key) | Del(key) => self.by_key.then_some(key),
            Sync => None,
        }
    }
    fn is_sync(&self, op: &Act) -> bool {
        *op == Sync
    }
}

struct Queue;

impl Spec for Queue {
    type Op = Option<u64>; // push this, or pop
    type Ret = Option<u64>;
    type State = VecDeque<u64>;

    fn initial(&self) -> Self::State {
        VecDeque::new()
    }
    fn step(&self, state: &mut Self::State, op: &Option<u64>) -> Option<u64> {
        match *op {
            Some(value) => {
                state.push_back(value);
                None
            }
            None => state.pop_front(),
        }
    }
}

type Acts = History<Act, Option<u64>>;

/// Both ways of checking a map must agree with what is expected.
#[track_caller]
fn expect(legal: bool, contract: Contract, history: &Acts) {
    for by_key in [false, true] {
        let verdict = check(&Map { by_key }, history, contract);
        assert_eq!(verdict.is_legal(), legal, "by key: {by_key}, {contract:?}: {verdict:?}\n{history}");
        if let Verdict::Illegal(witness) = verdict {
            assert!(witness.to_string().contains("no order"), "{witness}");
        }
    }
}

fn history(build: impl FnOnce(&mut Acts)) -> Acts {
    let mut history = History::new();
    build(&mut history);
    history
}

// ---- linearizability, without a crash ----

#[test]
fn legal_empty() {
    expect(true, Strict, &history(|_| ()));
    expect(true, Buffered, &history(|h| h.crash()));
}

#[test]
fn legal_overlapping_write_and_read_either_way() {
    for seen in [None, Some(1)] {
        let h = history(|h| {
            let put = h.invoke(0, Put(7, 1));
            h.runs(1, Get(7), seen);
            h.returns(put, None);
        });
        expect(true, Strict, &h);
    }
}

#[test]
fn illegal_stale_read_after_the_write_returned() {
    let h = history(|h| {
        h.runs(0, Put(7, 1), None);
        h.runs(1, Get(7), None);
    });
    expect(false, Strict, &h);
    expect(false, Buffered, &h);
}

#[test]
fn illegal_read_from_nowhere() {
    expect(false, Strict, &history(|h| _ = h.runs(0, Get(7), Some(3))));
}

#[test]
fn illegal_read_before_the_write_was_invoked() {
    let h = history(|h| {
        h.runs(1, Get(7), Some(1));
        h.runs(0, Put(7, 1), None);
    });
    expect(false, Strict, &h);
}

/// New-old inversion: while a write is under way, one read sees the new value, and a later one the old.
#[test]
fn illegal_new_old_inversion() {
    let h = history(|h| {
        h.runs(0, Put(7, 1), None);
        let put = h.invoke(0, Put(7, 2));
        h.runs(1, Get(7), Some(2));
        h.runs(2, Get(7), Some(1));
        h.returns(put, Some(1));
    });
    expect(false, Strict, &h);
}

#[test]
fn legal_old_then_new() {
    let h = history(|h| {
        h.runs(0, Put(7, 1), None);
        let put = h.invoke(0, Put(7, 2));
        h.runs(1, Get(7), Some(1));
        h.runs(2, Get(7), Some(2));
        h.returns(put, Some(1));
    });
    expect(true, Strict, &h);
}

#[test]
fn illegal_two_inserts_that_both_found_nothing() {
    let h = history(|h| {
        let one = h.invoke(0, Put(7, 1));
        let two = h.invoke(1, Put(7, 2));
        h.returns(one, None);
        h.returns(two, None);
    });
    expect(false, Strict, &h);
}

#[test]
fn legal_queue_of_wing_and_gong_and_illegal_when_it_overtakes() {
    for (first, legal) in [(1, true), (2, false)] {
        let mut h = History::new();
        h.runs(0, Some(1), None);
        let two = h.invoke(0, Some(2));
        let pop = h.invoke(1, None);
        h.returns(two, None);
        h.returns(pop, Some(first));
        assert_eq!(check(&Queue, &h, Strict).is_legal(), legal, "{h}");
    }
    let mut h = History::new();
    let one = h.invoke(0, Some(1));
    let two = h.invoke(1, Some(2));
    h.returns(one, None);
    h.returns(two, None);
    h.runs(0, None, Some(2));
    h.runs(0, None, Some(1));
    assert!(check(&Queue, &h, Strict).is_legal(), "overlapping pushes may take effect either way");
}

// ---- durable linearizability ----

#[test]
fn illegal_lost_acknowledged_operation() {
    let h = history(|h| {
        h.runs(0, Put(7, 1), None);
        h.crash();
        h.runs(0, Get(7), None);
    });
    expect(false, Strict, &h);
    expect(true, Buffered, &h);
}

#[test]
fn legal_operation_in_flight_either_way() {
    for seen in [None, Some(1)] {
        let h = history(|h| {
            h.invoke(0, Put(7, 1));
            h.crash();
            h.runs(0, Get(7), seen);
            h.runs(1, Get(7), seen);
        });
        expect(true, Strict, &h);
    }
}

/// A value that was read, and that the crash takes back (the reader did not persist what it had read).
#[test]
fn illegal_read_of_a_value_that_the_crash_takes_back() {
    let h = history(|h| {
        h.invoke(0, Put(7, 1));
        h.runs(1, Get(7), Some(1));
        h.crash();
        h.runs(1, Get(7), None);
    });
    expect(false, Strict, &h);
    expect(true, Buffered, &h);
}

/// The same by an operation that failed because of what it met: an insert that found the key there.
#[test]
fn illegal_answer_that_depends_on_what_the_crash_takes_back() {
    let h = history(|h| {
        h.invoke(0, Put(7, 1));
        h.runs(1, Put(7, 2), Some(1));
        h.crash();
        h.runs(1, Get(7), None);
    });
    expect(false, Strict, &h);
}

/// A pending operation takes effect only after the crash (recovery or a later operation completes it late).
#[test]
fn illegal_pending_operation_that_took_effect_after_the_crash() {
    let h = history(|h| {
        h.invoke(0, Put(7, 1));
        h.crash();
        h.runs(1, Get(7), None);
        h.runs(1, Get(7), Some(1));
    });
    expect(false, Strict, &h);
    expect(false, Buffered, &h);
}

#[test]
fn illegal_removed_key_that_comes_back() {
    let h = history(|h| {
        h.runs(0, Put(7, 1), None);
        h.runs(0, Del(7), Some(1));
        h.crash();
        h.runs(0, Get(7), Some(1));
    });
    expect(false, Strict, &h);
    expect(true, Buffered, &h);
}

#[test]
fn illegal_effect_that_happened_twice_after_the_crash() {
    let h = history(|h| {
        h.invoke(0, Del(7));
        h.crash();
        h.runs(0, Del(7), Some(1));
    });
    expect(false, Strict, &h);
    expect(false, Buffered, &h);
}

#[test]
fn legal_two_pending_in_any_combination_but_only_one_last() {
    for (seen, legal) in [(None, true), (Some(1), true), (Some(2), true), (Some(3), false)] {
        let h = history(|h| {
            h.invoke(0, Put(7, 1));
            h.invoke(1, Put(7, 2));
            h.crash();
            h.runs(0, Get(7), seen);
        });
        expect(legal, Strict, &h);
    }
}

#[test]
fn pending_of_two_eras() {
    for (seen, legal) in [(Some(1), true), (Some(2), true), (None, false)] {
        let h = history(|h| {
            h.invoke(0, Put(7, 1));
            h.crash();
            h.runs(0, Get(7), Some(1));
            h.invoke(0, Put(7, 2));
            h.crash();
            h.runs(0, Get(7), seen);
        });
        expect(legal, Strict, &h);
    }
}

#[test]
fn illegal_pending_operation_of_an_earlier_era_that_comes_back() {
    let h = history(|h| {
        h.invoke(0, Put(7, 1));
        h.crash();
        h.runs(0, Get(7), None);
        h.crash();
        h.runs(0, Get(7), Some(1));
    });
    expect(false, Strict, &h);
}

/// Order through a third: the pending write was seen, so what was there before cannot be seen again.
#[test]
fn illegal_order_through_another_key() {
    let queue = |recovered: Option<u64>| {
        let mut h = History::new();
        h.invoke(0, Some(1)); // pushes 1, never returns
        h.runs(1, Some(2), None);
        h.runs(2, None, Some(1)); // 1 was first, so it was pushed
        h.crash();
        h.runs(0, None, recovered);
        check(&Queue, &h, Strict).is_legal()
    };
    assert!(queue(Some(2)));
    assert!(!queue(Some(1)), "popped twice");
    assert!(!queue(None), "the completed push is lost");
}

// ---- buffered ----

#[test]
fn buffered_keeps_what_was_synced() {
    for (seen, legal) in [(Some(2), true), (Some(1), true), (None, false)] {
        let h = history(|h| {
            h.runs(0, Put(7, 1), None);
            h.runs(0, Sync, None);
            h.runs(0, Put(7, 2), Some(1));
            h.crash();
            h.runs(0, Get(7), seen);
        });
        expect(legal, Buffered, &h);
    }
}

#[test]
fn buffered_cut_is_consistent_over_keys() {
    // Key 1 was written before key 2: key 2 alone is no cut.
    for (one, two, legal) in
        [(None, None, true), (Some(1), None, true), (Some(1), Some(2), true), (None, Some(2), false)]
    {
        let h = history(|h| {
            h.runs(0, Put(1, 1), None);
            h.runs(1, Put(2, 2), None);
            h.crash();
            h.runs(0, Get(1), one);
            h.runs(0, Get(2), two);
        });
        expect(legal, Buffered, &h);
        expect(legal && two.is_some(), Strict, &h);
    }
}

#[test]
fn buffered_sync_that_did_not_return_promises_nothing() {
    let h = history(|h| {
        h.runs(0, Put(7, 1), None);
        h.invoke(0, Sync);
        h.crash();
        h.runs(0, Get(7), None);
    });
    expect(true, Buffered, &h);
}

#[test]
fn buffered_sync_covers_other_threads() {
    let covered = |overlaps: bool| {
        history(|h| {
            let sync_first = overlaps.then(|| h.invoke(1, Sync));
            h.runs(0, Put(7, 1), None);
            let sync = sync_first.unwrap_or_else(|| h.invoke(1, Sync));
            h.returns(sync, None);
            h.crash();
            h.runs(0, Get(7), None);
        })
    };
    expect(false, Buffered, &covered(false));
    expect(true, Buffered, &covered(true));
}

#[test]
fn buffered_without_a_crash_takes_nothing_back() {
    let h = history(|h| {
        h.runs(0, Put(7, 1), None);
        h.crash();
        h.runs(0, Put(7, 2), None);
        h.runs(0, Get(7), None);
    });
    expect(false, Buffered, &h);
}

// ---- the search itself ----

#[test]
fn long_histories_are_checked_in_linear_time_and_by_key() {
    let h = history(|h| {
        let mut held = Vec::new();
        for i in 0..20_000u64 {
            held.push((h.invoke((i % 4) as usize, Put(i % 50, i)), i));
            if held.len() == 4 {
                for (call, i) in held.drain(..) {
                    h.returns(call, i.checked_sub(50));
                }
            }
        }
    });
    expect(true, Strict, &h);
}

#[test]
fn a_search_that_is_too_wide_is_given_up_and_says_so() {
    let h = history(|h| {
        let calls: Vec<_> = (0..24).map(|i| h.invoke(i as usize, Put(i, i))).collect();
        h.runs(30, Get(3), Some(99));
        for call in calls {
            h.returns(call, None);
        }
    });
    let whole = Map { by_key: false };
    assert_eq!(check_within(&whole, &h, Strict, 1000), Verdict::Undecided(1000));
    assert!(matches!(check(&Map { by_key: true }, &h, Strict), Verdict::Illegal(w) if w.key == Some(3)));
}

/// Against brute force: all orders of all subsets, over random little histories.
#[test]
fn agrees_with_brute_force() {
    let mut seed = 7u64;
    let mut next = |below: u64| {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (seed >> 33) % below
    };
    let mut legal = [0, 0];
    for _ in 0..3000 {
        let mut h = Acts::new();
        let mut plan = Vec::new(); // (op, invoked, returned)
        let mut open: Vec<(usize, durix_crashsim::linear::CallId)> = Vec::new();
        let (mut clock, calls) = (0, 2 + next(3));
        while plan.len() < calls as usize || (!open.is_empty() && next(3) > 0) {
            clock += 1;
            if plan.len() < calls as usize && (open.is_empty() || next(2) == 0) {
                let op = [Put(next(2), next(2)), Get(next(2)), Del(next(2))][next(3) as usize];
                open.push((plan.len(), h.invoke(plan.len(), op)));
                plan.push((op, clock, None));
            } else if !open.is_empty() {
                let (at, call) = open.remove(next(open.len() as u64) as usize);
                let answer = [None, Some(0), Some(1)][next(3) as usize];
                h.returns(call, answer);
                plan[at].2 = Some((clock, answer));
            }
        }
        h.crash();
        let found = [[None, Some(0), Some(1)][next(3) as usize], [None, Some(0), Some(1)][next(3) as usize]];
        h.runs(0, Get(0), found[0]);
        h.runs(0, Get(1), found[1]);
        for (which, contract) in [Strict, Buffered].into_iter().enumerate() {
            let expected = brute(&plan, found, contract);
            legal[which] += usize::from(expected);
            let whole = check(&Map { by_key: false }, &h, contract);
            assert_eq!(whole.is_legal(), expected, "{contract:?}\n{h}");
            assert_eq!(check(&Map { by_key: true }, &h, contract).is_legal(), expected, "by key, {contract:?}\n{h}");
        }
    }
    assert!(legal.iter().all(|n| (100..2900).contains(n)), "{legal:?}: both verdicts occur");
}

type Planned = (Act, u64, Option<(u64, Option<u64>)>);

fn brute(plan: &[Planned], found: [Option<u64>; 2], contract: Contract) -> bool {
    fn orders(left: &[usize], order: &mut Vec<usize>, visit: &mut impl FnMut(&[usize])) {
        visit(order);
        for (at, call) in left.iter().enumerate() {
            let mut rest = left.to_vec();
            rest.remove(at);
            order.push(*call);
            orders(&rest, order, visit);
            order.pop();
        }
    }
    let mut legal = false;
    let all: Vec<usize> = (0..plan.len()).collect();
    orders(&all, &mut Vec::new(), &mut |order| {
        let all_completed = all.iter().all(|c| plan[*c].2.is_none() || order.contains(c));
        let in_time = order.iter().enumerate().all(|(at, earlier)| {
            order[at + 1..].iter().all(|later| plan[*later].2.is_none_or(|(returned, _)| returned > plan[*earlier].1))
        });
        if !all_completed || !in_time {
            return;
        }
        let spec = Map { by_key: false };
        let mut states = vec![spec.initial()];
        for call in order {
            let mut state = states.last().unwrap().clone();
            let answer = spec.step(&mut state, &plan[*call].0);
            if plan[*call].2.is_some_and(|(_, returned)| returned != answer) {
                return;
            }
            states.push(state);
        }
        let from = if contract == Strict { states.len() - 1 } else { 0 };
        legal |= states[from..].iter().any(|s| [s.get(&0).copied(), s.get(&1).copied()] == found);
    });
    legal
}
