//! Logs that ask for recovery: their words are undone before any structure opens, their logical records are carried out before
//! anybody gets one, after any crash, also one in recovery; and a pool without pending records opens for everyone.

use std::sync::Arc;
use std::sync::atomic::Ordering::{Relaxed, Release};

use durix_crashsim::{Explorer, Persistency, Simulated, Sites, Subject, mutation_sweep};
use durix_pmem::backing::HeapBacking;
use durix_pmem::pool::{IndexInfo, State};
use durix_pmem::{
    Error, Kind, Moments, Mutating, Mutation, Off, Op, Plan, Pool, PoolOptions, Recovery, RecoveryError, Root, Session,
    SiteKind, Structure, Word,
};

type M = Mutating<Simulated>;

const LIMIT: u64 = 4 * 4096;

/// A structure with words of its own: a register of `KIND`.
macro_rules! register {
    ($name:ident, $tag:literal) => {
        struct $name {
            root: Root<M>,
        }

        impl Structure<M> for $name {
            const KIND: Kind = Kind { tag: *$tag, version: durix_pmem::Version::new(1) };
            type Options = ();
            type Error = Error;

            fn create(_: &mut Session<M>, _: &Root<M>, (): &()) -> Result<(), Error> {
                Ok(())
            }

            fn open(_: &mut Session<M>, root: Root<M>, (): &()) -> Result<Self, Error> {
                Ok($name { root })
            }
        }
    };
}

// Three words that change together, by a log of theirs.
register!(Words, b"words\0\0\0");
// A sum, which only knows how to add once for each number.
register!(Sum, b"sum\0\0\0\0\0");
// The log of the words: `[valid, old, old]`. Each of its words is on the line of the others.
register!(Undo, b"undo\0\0\0\0");
// Intents for the sum: `[number, value]`, valid if the number is not zero.
register!(Intents, b"intents\0");

fn put(op: &Op<'_, M>, root: &Root<M>, at: usize, value: u64) {
    op.store(&root.words(op)[at], value, Relaxed);
    op.write_back(&root.words(op)[at]);
}

fn get(op: &Op<'_, M>, root: &Root<M>, at: usize) -> u64 {
    op.load(&root.words(op)[at], Relaxed)
}

impl Sum {
    fn number(&self, op: &Op<'_, M>) -> u64 {
        get(op, &self.root, 0) >> 32
    }

    fn value(&self, op: &Op<'_, M>) -> u64 {
        get(op, &self.root, 0) & 0xFFFF_FFFF
    }

    /// Adds `value` as number `number`, unless that was done. Durable on return.
    fn add(&self, op: &Op<'_, M>, number: u64, value: u64) {
        if self.number(op) < number {
            // The number and the sum in one word, so in one store.
            put(op, &self.root, 0, number << 32 | (self.value(op) + value));
            op.fence();
        }
    }
}

/// Undoes what is in the log of the words.
struct UndoWords;

impl Recovery<M> for UndoWords {
    fn kind(&self) -> Kind {
        Undo::KIND
    }

    fn before(&self, session: &mut Session<M>, log: &Root<M>) -> Result<(), RecoveryError> {
        let words = owner_of(log.pool(), Words::KIND).ok_or("the words are gone")?;
        let op = session.enter()?;
        if get(&op, log, 0) == 1 {
            // After the mere death of a process the record may not be durable, and what it undoes may become so.
            op.write_back(log.words(&op));
            op.fence();
            // The words of a root entry are all that this structure has.
            let line = log.pool().geometry().root_off(words.owner) + 192;
            for at in 0..2 {
                let word = op.at(Off::<Word>::new(line + 8 * at as u64));
                op.store(word, get(&op, log, 1 + at), Relaxed);
                op.write_back(word);
            }
            op.fence();
        }
        put(&op, log, 0, 0);
        op.fence();
        Ok(())
    }
}

/// Carries intents out.
struct Finish;

impl Recovery<M> for Finish {
    fn kind(&self) -> Kind {
        Intents::KIND
    }

    fn after(&self, session: &mut Session<M>, log: &Root<M>) -> Result<(), RecoveryError> {
        let sum = log.pool().open_existing::<Sum>("sum", &())?;
        let words = log.pool().open_existing::<Words>("words", &())?;
        let op = session.enter()?;
        // The words were undone before.
        let pair = [get(&op, &words.root, 0), get(&op, &words.root, 1)];
        if pair[0] != pair[1] {
            return Err(format!("an index was opened with {pair:?}").into());
        }
        let number = get(&op, log, 0);
        if number != 0 {
            op.write_back(log.words(&op));
            op.fence();
            sum.add(&op, number, get(&op, log, 1));
        }
        put(&op, log, 0, 0);
        op.fence();
        Ok(())
    }
}

fn owner_of(pool: &Pool<M>, kind: Kind) -> Option<IndexInfo> {
    pool.indices().ok()?.into_iter().find(|info| info.kind == kind)
}

#[derive(Clone, Copy, Debug)]
enum Action {
    /// Sets both words in place, under the undo log.
    Set(u64),
    /// The same, given up in the middle: undone.
    GiveUp(u64),
    /// Adds to the sum, by an intent.
    Add(u64),
    /// Closes the pool, and opens it again as a program that knows no kind of log.
    Reopen,
}
use Action::*;

struct Live {
    medium: M,
    open: Option<Open>,
}

struct Open {
    /// Has the slot of the session that recovered the logs, so that nobody's fence stands in for its own.
    _opener: Session<M>,
    session: Session<M>,
    pool: Pool<M>,
    words: Arc<Words>,
    sum: Arc<Sum>,
    undo: Arc<Undo>,
    intents: Arc<Intents>,
    /// Whether the pool came with pending records.
    was_pending: bool,
}

struct Work {
    plan: &'static Plan,
}

fn options() -> PoolOptions {
    let options = PoolOptions::new().initial_size(LIMIT).chunk_size(4096).lanes(1).max_indices(4);
    options.pool_id([7; 16]).boot_id([9; 16])
}

impl Open {
    fn over(pool: Pool<M>, was_pending: bool) -> Result<Open, Error> {
        let (opener, session) = (pool.session()?, pool.session()?);
        let words = pool.open_structure::<Words>("words", &())?;
        let sum = pool.open_structure::<Sum>("sum", &())?;
        let undo = pool.open_structure::<Undo>("undo", &())?;
        let intents = pool.open_structure::<Intents>("intents", &())?;
        Ok(Open { _opener: opener, session, pool, words, sum, undo, intents, was_pending })
    }
}

/// Writes a log's words, with the first, which makes them valid, last: one line, one fence.
fn record(op: &Op<'_, M>, log: &Root<M>, first: u64, rest: &[u64]) {
    let words = log.words(op);
    for (at, value) in rest.iter().enumerate() {
        op.store(&words[1 + at], *value, Relaxed);
    }
    op.store(&words[0], first, Release);
    op.write_back(words);
    op.fence();
}

fn retire(op: &Op<'_, M>, log: &Root<M>) {
    put(op, log, 0, 0);
    op.fence();
    log.ask(op, Moments::NONE);
}

impl Subject for Work {
    type Op = Action;
    type Ret = ();
    type State = (u64, u64, u64);
    type Model = (u64, u64);
    type Store = M;
    type Live = Live;

    fn store(&self, medium: Simulated) -> M {
        Mutating::new(medium, self.plan)
    }

    fn create(&self, medium: &M) -> Live {
        let backing = medium.inner().backing(0).with_limit(LIMIT);
        let pool = options().create_on(backing, *medium).unwrap();
        Live { medium: *medium, open: Some(Open::over(pool, false).unwrap()) }
    }

    fn recover(&self, medium: &M) -> Result<Live, String> {
        let found = options().open_on(medium.inner().backing(LIMIT), *medium).map_err(|e| e.to_string())?;
        let closed = found.state() == State::Clean;
        let pool = found.recover().map_err(|e| e.to_string())?;
        let was_pending = pool.has_pending_records();
        if closed && was_pending {
            return Err("closed, and yet it asks for recovery".into());
        }
        if was_pending {
            for refused in [
                pool.open_existing::<Sum>("sum", &()).err(),
                pool.rename("sum", "x").err(),
                pool.drop_index("sum").err(),
            ] {
                if !matches!(refused, Some(Error::PendingRecords { .. })) {
                    return Err(format!("given out while records are pending: {refused:?}"));
                }
            }
            if !matches!(pool.recover_logs(&[]), Err(Error::PendingRecords { .. })) {
                return Err("recovered by nobody".into());
            }
            pool.recover_logs(&[&Finish, &UndoWords]).map_err(|e| e.to_string())?;
        }
        pool.recover_logs(&[]).map_err(|e| e.to_string())?;
        let open = Open::over(pool, was_pending).map_err(|e| e.to_string())?;
        Ok(Live { medium: *medium, open: Some(open) })
    }

    fn apply(&self, live: &mut Live, action: &Action) {
        if let Reopen = action {
            let pool = live.open.take().unwrap().pool;
            pool.close().unwrap();
            let backing = HeapBacking::from_image(HeapBacking::image_of(pool.mapping()));
            drop(pool);
            let pool = options().open_on(backing, live.medium).unwrap().recover().unwrap();
            live.open = Some(Open::over(pool, false).unwrap());
            return;
        }
        let live = live.open.as_mut().unwrap();
        let op = live.session.enter().unwrap();
        let (words, undo, intents) = (&live.words.root, &live.undo.root, &live.intents.root);
        match *action {
            Set(value) | GiveUp(value) => {
                let old = [get(&op, words, 0), get(&op, words, 1)];
                undo.ask(&op, Moments::BEFORE);
                record(&op, undo, 1, &old);
                put(&op, words, 0, value);
                let value = if matches!(action, GiveUp(_)) {
                    put(&op, words, 0, old[0]);
                    old[1]
                } else {
                    value
                };
                put(&op, words, 1, value);
                op.fence();
                retire(&op, undo);
            }
            Add(value) => {
                intents.ask(&op, Moments::AFTER);
                let number = live.sum.number(&op) + 1;
                record(&op, intents, number, &[value]);
                live.sum.add(&op, number, value);
                retire(&op, intents);
            }
            Reopen => unreachable!(),
        }
    }

    fn observe(&self, live: &mut Live) -> (u64, u64, u64) {
        let live = live.open.as_mut().unwrap();
        let op = live.session.enter().unwrap();
        (get(&op, &live.words.root, 0), get(&op, &live.words.root, 1), live.sum.value(&op))
    }

    fn check(&self, live: &mut Live) -> Vec<String> {
        let live = live.open.as_mut().unwrap();
        let op = live.session.enter().unwrap();
        let roots = [&live.undo.root, &live.intents.root];
        let asking = roots.iter().filter(|root| root.asks(&op).unwrap() != Moments::NONE);
        let mut faults: Vec<_> = asking.map(|root| format!("{root:?} asks after all is done")).collect();
        faults.extend(live.pool.has_pending_records().then(|| format!("pending, {}", live.was_pending)));
        faults
    }

    fn model(&self) -> (u64, u64) {
        (0, 0)
    }

    fn step(&self, (word, sum): &mut (u64, u64), action: &Action) {
        match *action {
            Set(value) => *word = value,
            GiveUp(_) | Reopen => {}
            Add(value) => *sum += value,
        }
    }

    fn expect(&self, (word, sum): &(u64, u64)) -> (u64, u64, u64) {
        (*word, *word, *sum)
    }
}

const AFTER: [Action; 3] = [Set(8), Add(9), Reopen];

#[test]
fn all_short_sequences_with_a_crash_in_recovery() {
    for model in [Persistency::Pcso, Persistency::Eadr] {
        let subject = Work { plan: Plan::new() };
        let explorer = Explorer::new().model(model).crashes(2);
        let report = explorer.sequences(&subject, &[Set(1), GiveUp(2), Add(3)], 2, &AFTER[..1]).assert_ok();
        println!("{model}: {report}");
        assert!(report.complete);
    }
}

#[test]
fn a_pool_that_was_closed_opens_for_everyone() {
    let subject = Work { plan: Plan::new() };
    let history = [Reopen, Set(1), Reopen, Add(2), Reopen];
    let report = Explorer::new().run_then(&subject, &history, &AFTER).assert_ok();
    println!("{report}");
    assert!(report.complete);
}

#[test]
fn a_process_that_dies_leaves_what_recovery_makes_durable_first() {
    let subject = Work { plan: Plan::new() };
    let report = Explorer::new().process_deaths(true).run_then(&subject, &[Set(1), Add(3)], &AFTER[..2]).assert_ok();
    println!("{report}");
}

#[test]
fn every_write_back_and_fence_is_needed() {
    let sites = Sites {
        files: vec!["pmem/src/pool/recovery.rs".into()],
        kinds: vec![SiteKind::WriteBack, SiteKind::Fence],
        mutations: vec![Mutation::Drop],
        except: vec![],
    };
    let sweep = mutation_sweep(&sites, |plan| {
        let later = Explorer::new().crashes(2).crash_later(true);
        let mut last = Explorer::new().run_then(&Work { plan }, &[Set(3), Reopen], &AFTER);
        for (history, after) in [(&[Add(2)], &[Add(4)]), (&[Set(1)], &[Reopen])] {
            if last.failure.is_none() {
                last = later.run_then(&Work { plan }, history, after);
            }
        }
        last
    });
    println!("{sweep}");
    sweep.assert_all_caught(&[]);
}
