//! What has to be found after a kill.
//!
//! A *strict* index must hold what all ended operations made of it; the one that each thread had begun may have happened or
//! not, whole. A *buffered* one must hold, for the keys of each thread, what some number of its operations made of them: at
//! least those that the last completed sync covers, at most those that it had begun. And all threads are cut at one moment: an
//! operation that is found needs all that had ended, in any thread, before it began.
//!
//! An operation that a full pool has refused has changed nothing; strict kinds only.
//!
//! On a pool that is committed at intervals every kind is buffered. On a journaled pool every operation is found whole, or not at all.
//!
//! # Keys that all threads share
//! Nobody knows in which order operations of several threads took effect, so there is no model of these keys, but a rule. What
//! is found in a key was made by the operation on it that took effect last; say, the one with number `n` of a thread. All
//! operations of that thread that are certain to be found were done one after the other. So none of them that *decides* what the
//! key holds (insert, remove; not those that depend on what is there) can have a number above `n`. Hence: a value must be that of an
//! operation that may be found, of a thread whose last deciding operation on the key is that one or an earlier one; a key that is not
//! there needs such a removal. What was there before this child counts if no thread is certain to have decided. Certain are
//! the operations that have ended, or, where the index is buffered, those before the thread's cut.

use std::collections::{BTreeMap, BTreeSet};

use durix::{Durability, Index, Level, Pool};

use super::board::{Board, Progress};
use super::clocks::Clocks;
use super::steps::{self, Change, Contents, Form, Plan, Step};
use crate::failure::Failure;

/// What every thread's keys hold, and those that all share.
#[derive(Debug, Default)]
pub struct Model {
    pub threads: Vec<Contents>,
    pub shared: BTreeMap<u64, Vec<u8>>,
}

/// What of an index was found, by thread: bytes of each key's value; what all threads share comes last.
struct Found {
    threads: Vec<BTreeMap<u64, Vec<u8>>>,
}

/// How many operations of a thread are certain to be found, and how many may be.
type Extent = (u64, u64);

/// Compares an index with the model after a child with this plan and this progress was killed, and brings the model up to
/// date.
///
/// # Errors
/// In words, what was promised and is not there, or what is there and nobody wrote.
pub fn verify(
    pool: &Pool,
    index: &dyn Index,
    model: &mut Model,
    plan: &Plan,
    (done, board): (&[Progress], &Board),
    level: Level,
    clocks: impl Fn() -> Result<Clocks, Failure>,
) -> Result<(), String> {
    let mut found = read(pool, index, plan.form, model.threads.len() + 1).map_err(|error| error.to_string())?;
    let shared = found.threads.pop().unwrap_or_default();
    // A commit of a journal holds whole operations.
    let atomic = index.batch_is_atomic() || level != Level::Process;
    let is_strict = index.durability() == Durability::Strict && !matches!(level, Level::Interval(_));
    let (mut cuts, mut extents) = (Vec::new(), Vec::new());
    for (thread, contents) in model.threads.iter_mut().enumerate() {
        let progress = done.get(thread).copied().unwrap_or_default();
        let own = &found.threads[thread];
        let settled = if is_strict {
            strict(contents, own, (plan, thread as u64), progress, atomic, |n| board.is_left_out(thread as u64, n))
                .map(|()| (progress.ended, progress.begun))
        } else {
            buffered(contents, own, plan, thread as u64, progress, atomic).map(|cut| {
                cuts.push(cut);
                (cut.least.max(progress.synced), cut.most)
            })
        };
        let extent = settled.map_err(|what| format!("thread {thread}, {} operations ended: {what}", progress.ended))?;
        extents.push(extent);
    }
    for key in 0..steps::SHARED {
        if !is_possible(key, shared.get(&key), model.shared.get(&key), plan, &extents, |t, n| board.is_left_out(t, n)) {
            let what =
                shared.get(&key).map_or("is not there".into(), |value| format!("holds {}", value.escape_ascii()));
            return Err(format!("key {key} of all threads {what}, after operations {extents:?}"));
        }
    }
    model.shared = shared;
    if is_strict {
        return Ok(());
    }
    let clocks = clocks().map_err(|error| error.to_string())?;
    one_moment(&cuts, |thread, number, other| clocks.ended(thread, number, other))
}

/// Whether a key that all threads share can hold what was found, by the rule above; `before` is what it held before this child.
fn is_possible(
    key: u64,
    found: Option<&Vec<u8>>,
    before: Option<&Vec<u8>>,
    plan: &Plan,
    extents: &[Extent],
    is_left_out: impl Fn(u64, u64) -> bool,
) -> bool {
    let mut is_decided = false;
    for (thread, &(certain, possible)) in (0..).zip(extents) {
        for number in (0..possible).rev() {
            let Step::Shared(what, change) = plan.step(thread, number) else { continue };
            if change.key != key || is_left_out(thread, number) {
                continue;
            }
            if found == change.id.map(|id| plan.form.shared_value(id)).as_ref() {
                return true;
            }
            if what.decides() && number < certain {
                is_decided = true;
                break;
            }
        }
    }
    !is_decided && found == before
}

/// How many operations of a thread are found: the states after so many are alike, as far as the lowest and the highest
/// number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Cut {
    least: u64,
    most: u64,
}

/// Whether no thread's last operation that is found began after one of another thread had ended that is not.
fn one_moment(cuts: &[Cut], ended: impl Fn(u64, u64, u64) -> u64) -> Result<(), String> {
    for (thread, cut) in cuts.iter().enumerate().filter(|(_, cut)| cut.least > 0) {
        for (other, cut_of_other) in cuts.iter().enumerate().filter(|(other, _)| *other != thread) {
            let needs = ended(thread as u64, cut.least - 1, other as u64);
            if needs > cut_of_other.most {
                return Err(format!(
                    "no consistent cut: operation {} of thread {thread} is there, which began after thread {other} had \
                     ended {needs} operations, of which at most {} are there",
                    cut.least - 1,
                    cut_of_other.most
                ));
            }
        }
    }
    Ok(())
}

fn read(pool: &Pool, index: &dyn Index, form: Form, threads: usize) -> Result<Found, Failure> {
    let mut found = Found { threads: vec![BTreeMap::new(); threads] };
    let mut session = pool.session()?;
    let mut cursor = index.cursor();
    let (mut key, mut value) = (Vec::new(), Vec::new());
    while cursor.next_into(&session.enter()?, &mut key, &mut value)? {
        if key == form.probe() {
            continue;
        }
        let (thread, number) = form
            .parse(&key, threads)
            .ok_or_else(|| Failure::usage(format!("a key that nobody wrote: {}", key.escape_ascii())))?;
        if found.threads[thread].insert(number, std::mem::take(&mut value)).is_some() {
            return Err(Failure::usage(format!("key {} came twice", key.escape_ascii())));
        }
    }
    Ok(found)
}

/// What differs between contents and what was found, in one key.
fn difference(contents: &Contents, found: &BTreeMap<u64, Vec<u8>>, form: Form, thread: u64) -> Option<String> {
    let name = |number: u64| format!("{thread}:{number}");
    for (number, id) in contents {
        match found.get(number) {
            None => return Some(format!("key {} was promised and is not there", name(*number))),
            Some(value) if *value != form.value(*id) => {
                return Some(format!("key {} has another value than was promised", name(*number)));
            }
            Some(_) => {}
        }
    }
    let stray = found.keys().find(|number| !contents.contains_key(number))?;
    Some(format!("key {} was removed, or never written, and is there", name(*stray)))
}

/// The prefixes of some changes that a crash may leave of them.
fn remains(changes: &[Change], atomic: bool) -> impl Iterator<Item = &[Change]> {
    (0..=changes.len())
        .rev()
        .filter(move |len| !atomic || *len == 0 || *len == changes.len())
        .map(|len| &changes[..len])
}

fn strict(
    contents: &mut Contents,
    found: &BTreeMap<u64, Vec<u8>>,
    (plan, thread): (&Plan, u64),
    progress: Progress,
    atomic: bool,
    is_left_out: impl Fn(u64) -> bool,
) -> Result<(), String> {
    for number in (0..progress.ended).filter(|number| !is_left_out(*number)) {
        let changes = steps::changes(&plan.step(thread, number), contents);
        steps::make(contents, &changes);
    }
    if progress.begun > progress.ended {
        let changes = steps::changes(&plan.step(thread, progress.ended), contents);
        let holds = |change: &Change| found.get(&change.key) == change.id.map(|id| plan.form.value(id)).as_ref();
        // The last change of a key counts; judged by the keys that the operation touches only.
        for part in remains(&changes, atomic) {
            let mut after = BTreeMap::new();
            changes.iter().for_each(|c| _ = after.insert(c.key, contents.get(&c.key).copied()));
            part.iter().for_each(|c| _ = after.insert(c.key, c.id));
            if after.iter().all(|(key, id)| holds(&Change { key: *key, id: *id })) {
                let part = part.to_vec();
                steps::make(contents, &part);
                break;
            }
        }
    }
    difference(contents, found, plan.form, thread).map_or(Ok(()), Err)
}

fn buffered(
    contents: &mut Contents,
    found: &BTreeMap<u64, Vec<u8>>,
    plan: &Plan,
    thread: u64,
    progress: Progress,
    atomic: bool,
) -> Result<Cut, String> {
    // The keys that are not as they were found: kept up to date, so that each step costs its own keys only.
    let agrees = |key: u64, id: Option<u64>| found.get(&key) == id.map(|id| plan.form.value(id)).as_ref();
    let mut wrong: BTreeSet<u64> = found.keys().chain(contents.keys()).copied().collect();
    wrong.retain(|key| !agrees(*key, contents.get(key).copied()));
    let mut matched: Option<(Cut, Contents)> = None;
    let mut first_difference = None;
    for number in 0..=progress.begun {
        if number >= progress.synced {
            if wrong.is_empty() {
                see(&mut matched, contents, number, number);
            } else if first_difference.is_none() {
                first_difference = difference(contents, found, plan.form, thread);
            }
        }
        if number == progress.begun {
            break;
        }
        let changes = steps::changes(&plan.step(thread, number), contents);
        let parts: Vec<&[Change]> = if atomic { vec![&changes] } else { changes.chunks(1).collect() };
        for part in parts {
            steps::make(contents, part);
            for change in part {
                let id = contents.get(&change.key).copied();
                if agrees(change.key, id) {
                    wrong.remove(&change.key)
                } else {
                    wrong.insert(change.key)
                };
            }
            if wrong.is_empty() && number >= progress.synced {
                // In the middle of a batch that is not atomic: it has begun, and need not have ended.
                see(&mut matched, contents, number, number + 1);
            }
        }
    }
    match matched {
        Some((cut, then)) => {
            *contents = then;
            Ok(cut)
        }
        None => {
            let synced = progress.synced;
            let what = first_difference.unwrap_or_default();
            Err(format!("no state since the sync after {synced} operations: {what}"))
        }
    }
}

/// Notes that the contents are as they were found after `least` to `most` operations.
fn see(matched: &mut Option<(Cut, Contents)>, contents: &Contents, least: u64, most: u64) {
    match matched {
        Some((cut, _)) => cut.most = most,
        None => *matched = Some((Cut { least, most }, contents.clone())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use durix_pmem::testing::mix;
    use std::collections::VecDeque;

    const PLAN: Plan = Plan { seed: 5, threads: 1, keys: 10, form: Form::Bytes };

    /// What `count` operations of the plan make.
    fn after(count: u64) -> Contents {
        let mut contents = Contents::new();
        for number in 0..count {
            let changes = steps::changes(&PLAN.step(0, number), &contents);
            steps::make(&mut contents, &changes);
        }
        contents
    }

    fn found(contents: &Contents) -> BTreeMap<u64, Vec<u8>> {
        contents.iter().map(|(key, id)| (*key, PLAN.form.value(*id))).collect()
    }

    fn progress(synced: u64, ended: u64, begun: u64) -> Progress {
        Progress { begun, ended, synced }
    }

    fn judge(model: &mut Contents, found: &BTreeMap<u64, Vec<u8>>, done: Progress, atomic: bool) -> Result<(), String> {
        strict(model, found, (&PLAN, 0), done, atomic, |_| false)
    }

    #[test]
    fn what_a_full_pool_has_refused_has_changed_nothing() {
        let insert = (0..).find(|n| matches!(PLAN.step(0, *n), steps::Step::Insert(_))).unwrap();
        let (without, with) = (found(&after(insert)), found(&after(insert + 1)));
        let judge = |found, is_left_out| {
            let done = progress(0, insert + 1, insert + 1);
            strict(&mut Contents::new(), found, (&PLAN, 0), done, true, |number| is_left_out && number == insert)
        };
        judge(&with, false).unwrap();
        judge(&without, true).unwrap();
        assert!(judge(&with, true).is_err() && judge(&without, false).is_err());
    }

    #[test]
    fn a_strict_index_holds_what_has_ended_and_perhaps_one_more() {
        for ended in 0..100 {
            for there in ended..=ended + 1 {
                let mut model = Contents::new();
                judge(&mut model, &found(&after(there)), progress(0, ended, ended + 1), true).unwrap();
                assert_eq!(found(&model), found(&after(there)));
            }
            let lost = after(ended);
            if ended > 0 && found(&lost) != found(&after(ended - 1)) {
                let before = found(&after(ended - 1));
                assert!(judge(&mut Contents::new(), &before, progress(0, ended, ended), true).is_err());
            }
        }
    }

    #[test]
    fn a_part_of_a_batch_is_found_out_where_batches_are_atomic() {
        let number = (0..).find(|n| matches!(PLAN.step(0, *n), steps::Step::Batch(c) if c.len() == 4)).unwrap();
        let mut half = after(number);
        let changes = steps::changes(&PLAN.step(0, number), &half);
        steps::make(&mut half, &changes[..1]);
        let half = found(&half);
        assert!(half != found(&after(number)) && half != found(&after(number + 1)));
        let judge = |atomic| judge(&mut Contents::new(), &half, progress(0, number, number + 1), atomic);
        assert!(judge(true).is_err());
        judge(false).unwrap();
    }

    #[test]
    fn a_buffered_index_holds_a_state_since_the_last_sync() {
        for there in 20..=50 {
            let mut model = Contents::new();
            let cut = buffered(&mut model, &found(&after(there)), &PLAN, 0, progress(20, 49, 50), true).unwrap();
            assert!(cut.least >= 20 && cut.least <= there && there <= cut.most && cut.most <= 50, "{cut:?}");
            assert_eq!(found(&model), found(&after(there)));
        }
        let older = found(&after(9));
        assert!((20..=50).all(|n| found(&after(n)) != older), "the older state does not come back by itself");
        let error = buffered(&mut Contents::new(), &older, &PLAN, 0, progress(20, 49, 50), true).unwrap_err();
        assert!(error.contains("since the sync after 20"), "{error}");
        let mut mixed = found(&after(40));
        mixed.insert(3, b"nobody wrote this".to_vec());
        assert!(buffered(&mut Contents::new(), &mixed, &PLAN, 0, progress(20, 49, 50), true).is_err());
    }

    /// Two threads do what they will; their operations on one key take effect in some order that keeps that of each thread.
    #[test]
    fn what_all_threads_share_was_written_last_by_one_of_them() {
        let plan = Plan { threads: 2, ..PLAN };
        let on_key = |thread| {
            let steps = (0..240).filter_map(move |number| match plan.step(thread, number) {
                Step::Shared(what, change) if change.key == 3 => Some((number, what, change.id)),
                _ => None,
            });
            steps.collect::<Vec<_>>()
        };
        let (before, mut refused, mut overwritten) = (b"before".to_vec(), 0, 0);
        for random in 0..2_000 {
            let random = mix(random);
            let mut left = [on_key(0), on_key(1)].map(VecDeque::from);
            let (mut held, mut history) = (Some(before.clone()), vec![Some(before.clone())]);
            let ended = [random % 240, random >> 8 & 127];
            for turn in 0.. {
                let thread = usize::from(random >> (turn % 64) & 1 == 1);
                let thread =
                    if left[thread].front().is_some_and(|s| s.0 < ended[thread]) { thread } else { 1 - thread };
                let next = left[thread].pop_front().filter(|step| step.0 < ended[thread]);
                let Some((_, what, id)) = next else { break };
                let happens = match what {
                    steps::Shared::Insert | steps::Shared::Remove => true,
                    steps::Shared::InsertIfAbsent => held.is_none(),
                    steps::Shared::Update => held.is_some(),
                };
                if happens {
                    held = id.map(|id| plan.form.shared_value(id));
                    history.push(held.clone());
                }
            }
            let extents = ended.map(|ended| (ended, ended));
            let is_possible = |found: &Option<Vec<u8>>| {
                super::is_possible(3, found.as_ref(), Some(&before), &plan, &extents, |_, _| false)
            };
            assert!(is_possible(&held), "{held:?} after {ended:?}");
            assert!(!is_possible(&Some(b"nobody's".to_vec())));
            overwritten += history.len() - 1;
            refused += history.iter().filter(|value| !is_possible(value)).count();
        }
        assert!(refused * 2 > overwritten, "of {overwritten} that were overwritten only {refused} are refused");
    }

    #[test]
    fn threads_are_cut_at_one_moment() {
        let cut = |least, most| Cut { least, most };
        // Operation 9 of thread 0 began after thread 1 had ended 5.
        let ended = |thread, number, _| if (thread, number) == (0, 9) { 5 } else { 0 };
        one_moment(&[cut(10, 12), cut(5, 5)], ended).unwrap();
        one_moment(&[cut(9, 12), cut(3, 4)], ended).unwrap();
        one_moment(&[cut(0, 0), cut(0, 0)], ended).unwrap();
        let error = one_moment(&[cut(10, 10), cut(3, 4)], ended).unwrap_err();
        assert!(error.contains("operation 9 of thread 0") && error.contains("at most 4"), "{error}");
    }

    #[test]
    fn clocks_are_kept_in_their_file() {
        let dir = tempfile::tempdir().unwrap();
        Clocks::open(dir.path(), 3).unwrap().note(2, 100_000, 1, 77);
        let clocks = Clocks::open(dir.path(), 3).unwrap();
        assert_eq!((clocks.ended(2, 100_000, 1), clocks.ended(2, 100_000, 0)), (77, 0));
    }
}
