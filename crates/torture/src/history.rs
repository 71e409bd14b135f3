//! What the callers of an index saw of one key, and whether that can be.
//!
//! A history is *linearizable* (Herlihy and Wing, TOPLAS 1990) if each operation took effect at one moment between its
//! begin and its end. It is decided as Wing and Gong do, with a memo as Lowe's: depth first over which operation takes
//! effect next, never twice from the same place. Operations of one thread follow each other, so a place is how many operations of
//! each thread have taken effect, and what the key holds.

use std::collections::HashSet;
use std::fmt;

/// What a key holds: the number of a value, if it is there.
pub type Held = Option<u64>;

/// What an operation was asked for on a key, and what it returned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Act {
    /// Found this.
    Read(Held),
    /// Found whether it is there.
    There(bool),
    /// Put the value; whether the key was new.
    Insert(u64, bool),
    /// Put the value if the key was not there; whether it was not.
    InsertIfAbsent(u64, bool),
    /// Put the value if the key was there; whether it was.
    Update(u64, bool),
    /// Took the key out; whether it was there.
    Remove(bool),
    /// Put the second if the key held the first; whether it did.
    Swap(Held, Held, bool),
    /// Put this, and said nothing.
    Set(Held),
    /// Put this, or not.
    Maybe(Held),
}

/// An operation on a key, between two moments.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Event {
    /// When it began. No two moments are the same.
    pub begin: u64,
    /// When it ended.
    pub end: u64,
    /// What it was.
    pub act: Act,
}

impl Act {
    /// What the key can hold after it, if it held `held` before; nothing if it cannot have returned what it did.
    fn after(self, held: Held) -> impl Iterator<Item = Held> {
        let when = |is: bool, then: Held| if is { [Some(then), None] } else { [None, None] };
        let outcomes = match self {
            Act::Read(found) => when(found == held, held),
            Act::There(there) => when(there == held.is_some(), held),
            Act::Insert(value, new) => when(new == held.is_none(), Some(value)),
            Act::InsertIfAbsent(value, done) => when(done == held.is_none(), if done { Some(value) } else { held }),
            Act::Update(value, done) => when(done == held.is_some(), if done { Some(value) } else { held }),
            Act::Remove(done) => when(done == held.is_some(), None),
            Act::Swap(expected, new, done) => when(done == (expected == held), if done { new } else { held }),
            Act::Set(new) => when(true, new),
            Act::Maybe(new) => [Some(held), Some(new)],
        };
        outcomes.into_iter().flatten()
    }
}

impl fmt::Display for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:>8} to {:>8}: {:?}", self.begin, self.end, self.act)
    }
}

/// Whether the operations of some threads on one key, in the order of each thread, are linearizable, if it held `held` before.
///
/// # Errors
/// The history in words.
pub fn linearizable(held: Held, threads: &[Vec<Event>]) -> Result<(), String> {
    let mut open = vec![(vec![0; threads.len()], held)];
    let mut seen = HashSet::new();
    let mut furthest: (usize, Held) = (0, held);
    while let Some((place, held)) = open.pop() {
        let next = |thread: usize| threads[thread].get(place[thread]);
        // What begins after another has ended comes after it.
        let Some(bound) = (0..threads.len()).filter_map(next).map(|event| event.end).min() else { return Ok(()) };
        furthest = furthest.max((place.iter().sum(), held));
        for thread in 0..threads.len() {
            let Some(event) = next(thread).filter(|event| event.begin <= bound) else { continue };
            for after in event.act.after(held) {
                let mut then = place.clone();
                then[thread] += 1;
                if seen.insert((then.clone(), after)) {
                    open.push((then, after));
                }
            }
        }
    }
    Err(describe(held, threads, furthest))
}

fn describe(held: Held, threads: &[Vec<Event>], (done, last): (usize, Held)) -> String {
    let mut lines: Vec<(u64, String)> = (0..)
        .zip(threads)
        .flat_map(|(thread, events)| {
            events.iter().map(move |event| (event.begin, format!("  thread {thread} {event}")))
        })
        .collect();
    lines.sort_unstable();
    let lines: Vec<String> = lines.into_iter().map(|(_, line)| line).collect();
    let from = done.saturating_sub(12);
    let part = lines[from..lines.len().min(done + 12)].join("\n");
    format!("not linearizable: held {held:?} at first, {last:?} after {done} of {} operations\n{part}", lines.len())
}

#[cfg(test)]
mod tests {
    use super::*;
    use Act::{Insert, InsertIfAbsent, Maybe, Read, Remove, Set, Swap, There, Update};

    fn events(events: &[(u64, u64, Act)]) -> Vec<Event> {
        events.iter().map(|&(begin, end, act)| Event { begin, end, act }).collect()
    }

    fn is_linearizable(held: Held, threads: &[&[(u64, u64, Act)]]) -> bool {
        linearizable(held, &threads.iter().map(|thread| events(thread)).collect::<Vec<_>>()).is_ok()
    }

    #[test]
    fn operations_one_after_the_other() {
        let all = [
            (1, 2, There(false)),
            (3, 4, Insert(7, true)),
            (5, 6, InsertIfAbsent(8, false)),
            (7, 8, Update(9, true)),
            (9, 10, Swap(Some(7), Some(1), false)),
            (11, 12, Swap(Some(9), None, true)),
            (13, 14, Remove(false)),
            (15, 16, Set(Some(3))),
            (17, 18, Read(Some(3))),
            (19, 20, Maybe(None)),
        ];
        assert!(is_linearizable(None, &[&all]));
        assert!(!is_linearizable(Some(1), &[&all]));
        for wrong in
            [Read(None), There(false), Insert(4, true), Update(4, false), Remove(false), Swap(None, None, true)]
        {
            assert!(!is_linearizable(None, &[&[&all[..9], &[(19, 20, wrong)]].concat()]), "{wrong:?}");
        }
        assert!(is_linearizable(None, &[&[&all[..], &[(21, 22, Read(None))]].concat()]));
        assert!(is_linearizable(None, &[&[&all[..], &[(21, 22, Read(Some(3)))]].concat()]));
    }

    #[test]
    fn operations_beside_each_other_come_in_any_order_and_others_do_not() {
        let insert = (1, 10, Insert(7, true));
        for found in [None, Some(7)] {
            assert!(is_linearizable(None, &[&[insert], &[(2, 3, Read(found))]]));
        }
        assert!(!is_linearizable(None, &[&[insert], &[(11, 12, Read(None))]]));
        // Once it was seen, it stays.
        assert!(!is_linearizable(None, &[&[insert], &[(2, 3, Read(Some(7))), (4, 5, Read(None))]]));
        assert!(is_linearizable(None, &[&[insert], &[(2, 3, Read(None)), (4, 5, Read(Some(7)))]]));
        // Two removals of one key.
        assert!(!is_linearizable(Some(1), &[&[(1, 3, Remove(true))], &[(2, 4, Remove(true))]]));
        assert!(is_linearizable(Some(1), &[&[(1, 3, Remove(true))], &[(2, 4, Remove(false))]]));
    }

    #[test]
    fn a_long_history_of_many_threads_is_decided_soon() {
        let threads: Vec<Vec<Event>> = (0..4)
            .map(|thread| {
                let at = |n: u64| 8 * n + thread;
                (0..2_000).map(|n| Event { begin: at(n), end: at(n) + 6, act: Set(Some(n)) }).collect()
            })
            .collect();
        linearizable(None, &threads).unwrap();
        let mut wrong = threads.clone();
        wrong[3].push(Event { begin: 20_000, end: 20_001, act: Read(Some(5)) });
        assert!(linearizable(None, &wrong).is_err());
    }
}
