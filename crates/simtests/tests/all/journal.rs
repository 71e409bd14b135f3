//! A journal of one-line entries: contracts, models, operations after recovery, findings, samples, replay.

use std::sync::atomic::Ordering::{Relaxed, Release};

use durix_crashsim::{Cause, Contract, Explorer, Persistency, Simulated, Strategy, Subject};
use durix_pmem::{LINE, Mapping, Off, Op, Session, Word, persistent};
use proptest::collection::vec;
use proptest::prelude::{Strategy as Generate, prop_oneof};

persistent! {
    struct Entry: align(64) { values: [Word; 7], seq: Word }
}

const ENTRIES: u64 = 8;
const FIRST: u64 = 64;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Bug {
    None,
    /// The validity word is stored with the values, unordered.
    UnorderedSeq,
    /// Entries behind a hole stay valid: an append after the recovery brings them back.
    StaleTail,
    /// A sync that does not wait.
    SyncWithoutFence,
    /// Nothing is written back at all.
    NoWriteBack,
    /// Appends return before they are durable.
    LazyAppend,
}

#[derive(Clone, Copy, Debug)]
enum JournalOp {
    Append(u64),
    Sync,
}
use JournalOp::{Append, Sync};

struct Journal {
    buffered: bool,
    bug: Bug,
    /// Maps its arena anew at each recovery, as a pool does.
    remap: bool,
}

impl Journal {
    fn strict(bug: Bug) -> Self {
        Journal { buffered: false, bug, remap: false }
    }

    fn buffered(bug: Bug) -> Self {
        Journal { buffered: true, bug, remap: false }
    }
}

struct Live {
    session: Session<Simulated>,
    len: u64,
}

fn entry<'s>(op: &Op<'s, Simulated>, index: u64) -> &'s Entry {
    op.at(Off::new(FIRST + index * LINE as u64))
}

impl Subject for Journal {
    type Op = JournalOp;
    type Ret = u64;
    type State = Vec<u64>;
    type Model = Vec<u64>;
    type Store = (Simulated, Option<Mapping<Simulated>>);
    type Live = Live;

    fn store(&self, medium: Simulated) -> Self::Store {
        (medium, (!self.remap).then(|| Mapping::heap(1024, medium)))
    }

    fn create(&self, (medium, mapping): &Self::Store) -> Live {
        let mapping = mapping.clone().unwrap_or_else(|| Mapping::heap(1024, *medium));
        Live { session: mapping.session().unwrap(), len: 0 }
    }

    fn recover(&self, store: &Self::Store) -> Result<Live, String> {
        let mut live = self.create(store);
        let op = live.session.enter().map_err(|e| e.to_string())?;
        let valid = |index: u64| op.load(&entry(&op, index).seq, Relaxed) == index + 1;
        live.len = (0..ENTRIES).take_while(|i| valid(*i)).count() as u64;
        if self.bug != Bug::StaleTail {
            for index in (live.len..ENTRIES).filter(|i| valid(*i)) {
                op.store(&entry(&op, index).seq, 0, Relaxed);
                op.write_back(entry(&op, index));
            }
            op.fence();
        }
        drop(op);
        Ok(live)
    }

    fn apply(&self, live: &mut Live, what: &JournalOp) -> u64 {
        let op = live.session.enter().unwrap();
        match what {
            Append(value) if live.len < ENTRIES => {
                let entry = entry(&op, live.len);
                for word in &entry.values {
                    op.store(word, *value, Relaxed);
                }
                let order = if self.bug == Bug::UnorderedSeq { Relaxed } else { Release };
                op.store(&entry.seq, live.len + 1, order);
                if self.bug != Bug::NoWriteBack {
                    op.write_back(entry);
                }
                if !self.buffered && self.bug != Bug::LazyAppend {
                    op.fence();
                }
                live.len += 1;
            }
            Append(_) => {}
            Sync => {
                if self.bug != Bug::SyncWithoutFence {
                    op.fence();
                }
            }
        }
        live.len
    }

    fn observe(&self, live: &mut Live) -> Vec<u64> {
        let op = live.session.enter().unwrap();
        let value = |index| {
            let entry = entry(&op, index);
            let first = op.load(&entry.values[0], Relaxed);
            let torn = entry.values.iter().any(|word| op.load(word, Relaxed) != first);
            if torn { u64::MAX } else { first }
        };
        (0..ENTRIES).take_while(|i| op.load(&entry(&op, *i).seq, Relaxed) == i + 1).map(value).collect()
    }

    fn check(&self, live: &mut Live) -> Vec<String> {
        let op = live.session.enter().unwrap();
        let beyond = live.len..ENTRIES;
        let lost = beyond.filter(|i| op.load(&entry(&op, *i).seq, Relaxed) != 0);
        lost.map(|i| format!("entry {i} is taken and not part of the journal")).collect()
    }

    fn model(&self) -> Vec<u64> {
        Vec::new()
    }

    fn step(&self, model: &mut Vec<u64>, op: &JournalOp) -> u64 {
        if let Append(value) = op
            && (model.len() as u64) < ENTRIES
        {
            model.push(*value);
        }
        model.len() as u64
    }

    fn expect(&self, model: &Vec<u64>) -> Vec<u64> {
        model.clone()
    }

    fn is_sync(&self, op: &JournalOp) -> bool {
        matches!(op, Sync)
    }
}

const OPS: [JournalOp; 6] = [Append(1), Append(2), Sync, Append(3), Append(4), Sync];
const AFTER: [JournalOp; 2] = [Append(9), Sync];

fn buffered() -> Explorer {
    Explorer::new().contract(Contract::Buffered)
}

#[test]
fn a_strict_journal_is_strict() {
    let report = Explorer::new().crashes(2).run_then(&Journal::strict(Bug::None), &OPS, &AFTER).assert_ok();
    println!("{report}");
    assert!(report.complete);
    let report = Explorer::new().settled_returns(true).run(&Journal::strict(Bug::None), &OPS).assert_ok();
    assert!(report.complete);
}

#[test]
fn a_buffered_journal_is_buffered_and_not_strict() {
    let report = buffered().crashes(2).run_then(&Journal::buffered(Bug::None), &OPS, &AFTER).assert_ok();
    println!("{report}");
    assert!(report.complete);
    let failure = Explorer::new().run(&Journal::buffered(Bug::None), &OPS).failure.expect("is not strict");
    assert!(matches!(failure.cause, Cause::State { .. }), "{failure}");
}

#[test]
fn a_sync_without_a_fence_is_found() {
    let failure = buffered().run(&Journal::buffered(Bug::SyncWithoutFence), &OPS).failure.expect("missed");
    let Cause::State { allowed, .. } = &failure.cause else { panic!("{failure}") };
    assert_eq!(allowed.first().map(|a| a.0), Some(3), "nothing before the sync may be lost: {failure}");
}

#[test]
fn stale_entries_are_found_by_the_check_or_by_operations_after_the_recovery() {
    let subject = Journal::buffered(Bug::StaleTail);
    let failure = buffered().run(&subject, &OPS).failure.expect("missed");
    assert!(matches!(failure.cause, Cause::Findings { .. }), "{failure}");
    let blind = Blind(subject);
    assert!(buffered().run(&blind, &OPS).assert_ok().complete, "a dump alone does not show it");
    let failure = buffered().run_then(&blind, &OPS, &AFTER).failure.expect("missed");
    assert!(matches!(failure.cause, Cause::LaterState { .. }), "{failure}");
}

#[test]
fn the_order_within_a_line_matters() {
    let failure = Explorer::new().run(&Journal::strict(Bug::UnorderedSeq), &OPS).failure.expect("missed");
    println!("{failure}");
    assert!(failure.suggestion.as_ref().is_some_and(|s| s.contains("order")), "{failure}");
    assert_eq!(failure.deviating, 1);
}

#[test]
fn one_line_entries_need_more_than_word_atomicity() {
    let torn = Explorer::new().model(Persistency::TornWords);
    let failure = torn.run(&Journal::strict(Bug::None), &OPS).failure.expect("tears");
    assert!(failure.to_string().contains(&u64::MAX.to_string()), "{failure}");
}

#[test]
fn with_eadr_no_write_backs_are_needed() {
    let eadr = Explorer::new().model(Persistency::Eadr);
    assert!(eadr.run(&Journal::strict(Bug::NoWriteBack), &OPS).assert_ok().complete);
    assert!(eadr.run_then(&Journal::strict(Bug::None), &OPS, &AFTER).assert_ok().complete);
    let _ = Explorer::new().run(&Journal::strict(Bug::NoWriteBack), &OPS).failure.expect("missed");
}

#[test]
fn an_early_return_is_found_without_looking_at_states() {
    let failure =
        Explorer::new().settled_returns(true).run(&Journal::strict(Bug::LazyAppend), &OPS).failure.expect("missed");
    println!("{failure}");
    assert!(matches!(failure.cause, Cause::Unsettled { number: 0 } | Cause::State { .. }), "{failure}");
}

#[test]
fn an_arena_may_be_mapped_anew_at_each_recovery() {
    let report =
        Explorer::new().crashes(2).run_then(&Journal { remap: true, ..Journal::strict(Bug::None) }, &OPS, &AFTER);
    let same = Explorer::new().crashes(2).run_then(&Journal::strict(Bug::None), &OPS, &AFTER);
    assert!(report.failure.is_none() && report.complete, "{report}");
    assert_eq!((report.executions, report.crash_states), (same.executions, same.crash_states));
}

#[test]
fn samples_find_what_is_too_large_to_enumerate() {
    let explorer = Explorer::new().strategy(Strategy::Eager).executions_per_point(50).samples(60);
    let report = explorer.run(&Journal::strict(Bug::None), &OPS).assert_ok();
    println!("{report}");
    assert!(!report.complete && report.samples > 0);
    for strategy in [Strategy::Eager, Strategy::Lazy] {
        let explorer = Explorer::new().strategy(strategy).executions_per_point(2).samples(60);
        for bug in [Bug::UnorderedSeq, Bug::NoWriteBack, Bug::LazyAppend] {
            let _ = explorer.run(&Journal::strict(bug), &OPS).failure.unwrap_or_else(|| panic!("{bug:?} missed"));
        }
    }
}

#[test]
fn lazy_exploration_is_complete_where_no_enumeration_could_be() {
    // All of the journal is in the caches: 2^56 states and more at the end.
    let ops: Vec<_> = (1..=ENTRIES).map(Append).collect();
    let report = buffered().run(&Journal::buffered(Bug::None), &ops).assert_ok();
    println!("{report}");
    assert!(report.complete);
    assert!(report.crash_states.log2() > 50, "{report}");
    assert!(report.executions < 2000, "{report}");
}

#[test]
fn a_replay_string_repeats_the_failure() {
    let subject = Journal::strict(Bug::NoWriteBack);
    for explorer in
        [Explorer::new(), Explorer::new().strategy(Strategy::Eager), Explorer::new().executions_per_point(1)]
    {
        let first = explorer.run_then(&subject, &OPS, &AFTER).failure.expect("missed");
        let report = explorer.clone().replay(&first.replay).run_then(&subject, &OPS, &AFTER);
        let again = report.failure.expect("not repeated");
        assert_eq!((&again.cause, &again.details, &again.replay), (&first.cause, &first.details, &first.replay));
        assert!(report.executions < 40, "only this state is run, and what tells its story");
    }
    let passes = Explorer::new().replay(&Explorer::new().run(&subject, &OPS).failure.expect("missed").replay);
    assert!(passes.run(&Journal::strict(Bug::None), &OPS).failure.is_none(), "mended, it passes");
}

#[test]
fn generated_and_enumerated_failures_can_be_replayed() {
    let op = || prop_oneof![4 => (1..100u64).prop_map(Append), 1 => (0..1u64).prop_map(|_| Sync)];
    let generate = (vec(op(), 1..7), vec(op(), 0..3));
    let subject = Blind(Journal::buffered(Bug::StaleTail));
    let first = buffered().check(&subject, 1000, &generate).failure.expect("missed");
    println!("{first}");
    assert!(first.ops.len() <= 3 && first.replay.len() <= 200, "{first}");
    let again = buffered().replay(&first.replay).check(&subject, 1, &generate).failure.expect("not repeated");
    assert_eq!((&again.cause, &again.ops), (&first.cause, &first.ops));

    let alphabet = [Append(1), Append(2), Sync];
    let first = buffered().sequences(&subject, &alphabet, 4, &AFTER).failure.expect("missed");
    assert_eq!(first.ops.len(), 2, "{first}");
    let again =
        buffered().replay(&first.replay).sequences(&subject, &alphabet, 4, &AFTER).failure.expect("not repeated");
    assert_eq!((&again.cause, &again.ops), (&first.cause, &first.ops));
}

/// The same without its check.
struct Blind(Journal);

impl Subject for Blind {
    type Op = JournalOp;
    type Ret = u64;
    type State = Vec<u64>;
    type Model = Vec<u64>;
    type Store = (Simulated, Option<Mapping<Simulated>>);
    type Live = Live;

    fn store(&self, medium: Simulated) -> Self::Store {
        self.0.store(medium)
    }
    fn create(&self, store: &Self::Store) -> Live {
        self.0.create(store)
    }
    fn recover(&self, store: &Self::Store) -> Result<Live, String> {
        self.0.recover(store)
    }
    fn apply(&self, live: &mut Live, op: &JournalOp) -> u64 {
        self.0.apply(live, op)
    }
    fn observe(&self, live: &mut Live) -> Vec<u64> {
        self.0.observe(live)
    }
    fn model(&self) -> Vec<u64> {
        self.0.model()
    }
    fn step(&self, model: &mut Vec<u64>, op: &JournalOp) -> u64 {
        self.0.step(model, op)
    }
    fn expect(&self, model: &Vec<u64>) -> Vec<u64> {
        self.0.expect(model)
    }
    fn is_sync(&self, op: &JournalOp) -> bool {
        self.0.is_sync(op)
    }
}
