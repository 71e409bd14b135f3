//! Every crash state of short programs of the one-fence engine: committed transactions are there, others are not, whole in both cases,
//! and no block is lost or owned twice.

use std::collections::BTreeSet;
use std::sync::Arc;

use durix_crashsim::{Concurrent, Explorer, Persistency, Report, Simulated, Sites, Subject, Threads, mutation_sweep};
use durix_pmem::backing::HeapBacking;
use durix_pmem::{Mutating, Mutation, Off, Plan, Pool, PoolOptions, Session, SiteKind};
use durix_rewind::engine::{Cell, Engine, EngineRecovery, Error, Options};
use durix_subjects::explored::deep;

type M = Mutating<Simulated>;

const CHUNK: u64 = 4096;
const LIMIT: u64 = CHUNK * 9;
/// Root cells that hold values; the others link to blocks.
const VALUES: usize = 3;
const LINKS: usize = 2;

#[derive(Clone, Copy, Debug)]
enum Action {
    /// By the session with that number, sets two values.
    Pair(usize, u64),
    /// Sets one value.
    One(usize, u64),
    /// Replaces the block of a link by a new one that holds the value.
    Block(usize, usize, u64),
    /// Frees the block of a link.
    Free(usize, usize),
    /// Writes and allocates, and gives up.
    GiveUp(usize),
    Trim(usize),
    /// Reads all values in one transaction.
    Read(usize),
    /// Drops the engine, closes the pool, and opens it as a program that knows no recovery.
    Reopen,
}
use Action::*;

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
struct Model {
    values: [u64; VALUES],
    blocks: [Option<u64>; LINKS],
}

struct Engines {
    plan: &'static Plan,
    trim_at: usize,
}

struct Live {
    medium: M,
    open: Option<Open>,
}

struct Open {
    /// Has the slot of whoever recovered, so that nobody's fence stands in for its own.
    _opener: Session<M>,
    sessions: [Session<M>; 2],
    tm: Arc<Engine<M>>,
    pool: Pool<M>,
}

fn options() -> PoolOptions {
    let options = PoolOptions::new().initial_size(LIMIT).max_size(LIMIT).chunk_size(CHUNK).lanes(1).max_indices(1);
    options.pool_id([7; 16]).boot_id([9; 16])
}

fn value(tm: &Engine<M>, index: usize) -> Cell<u64> {
    tm.root_cell(index).unwrap()
}

fn link(tm: &Engine<M>, index: usize) -> Cell<Cell<u64>> {
    tm.root_cell(VALUES + index).unwrap()
}

/// Which cell of a block holds the value, too; all but this one and the second are zero, whatever the block held before.
fn also(value: u64) -> u64 {
    2 + value % 4
}

impl Open {
    fn over(pool: Pool<M>, trim_at: usize) -> Result<Open, Error> {
        let tm = pool.open_structure::<Engine<M>>("tm", &Options { segment: CHUNK, trim_at })?;
        let opener = pool.session()?;
        let sessions = [pool.session()?, pool.session()?];
        Ok(Open { _opener: opener, sessions, tm, pool })
    }

    fn apply(&mut self, action: Action) -> Result<Values, Error> {
        let by = match action {
            Pair(by, _) | One(by, _) | Block(by, ..) | Free(by, _) | GiveUp(by) | Trim(by) | Read(by) => by,
            Reopen => unreachable!(),
        };
        act(&self.tm, &mut self.sessions[by], action)
    }
}

/// What a transaction has read.
type Values = Option<[u64; VALUES]>;

fn act(tm: &Engine<M>, session: &mut Session<M>, action: Action) -> Result<Values, Error> {
    match action {
        Pair(_, new) => tm.transaction(session, |tx| {
            tx.set(value(tm, 0), new)?;
            tx.set(value(tm, 1), new)
        })?,
        One(_, new) => tm.transaction(session, |tx| tx.set(value(tm, 2), new))?,
        Block(_, at, new) => tm.transaction(session, |tx| {
            let old = tx.get(link(tm, at))?;
            if !old.is_null() {
                tx.free(old)?;
            }
            let block = tx.alloc::<u64>(8)?;
            tx.set(block.field(1), new)?;
            tx.set(block.field(also(new)), new)?;
            tx.set(link(tm, at), block)
        })?,
        Free(_, at) => tm.transaction(session, |tx| {
            let old = tx.get(link(tm, at))?;
            if !old.is_null() {
                tx.free(old)?;
            }
            tx.set(link(tm, at), Cell::NULL)
        })?,
        GiveUp(_) => {
            let done = tm.transaction(session, |tx| {
                tx.set(value(tm, 0), 99)?;
                tx.alloc::<u64>(8)?;
                Err::<(), _>(Error::RolledBack)
            });
            assert!(matches!(done, Err(Error::RolledBack)));
        }
        Trim(_) => _ = tm.trim(session)?,
        Read(_) => {
            return tm.transaction(session, |tx| {
                let mut values = [0; VALUES];
                for (index, to) in values.iter_mut().enumerate() {
                    *to = tx.get(value(tm, index))?;
                }
                Ok(Some(values))
            });
        }
        Reopen => unreachable!(),
    }
    Ok(None)
}

impl Subject for Engines {
    type Op = Action;
    type Ret = Values;
    type State = Model;
    type Model = Model;
    type Store = M;
    type Live = Live;

    fn store(&self, medium: Simulated) -> M {
        Mutating::new(medium, self.plan)
    }

    fn create(&self, medium: &M) -> Live {
        let backing = medium.inner().backing(0).with_limit(LIMIT);
        let pool = options().create_on(backing, *medium).unwrap();
        let mut open = Open::over(pool, self.trim_at).unwrap();
        // Segments for both sessions and a slab are there: their zeroes are not what is explored.
        for by in [0, 1, 0] {
            open.apply(Block(by, 0, 1)).unwrap();
        }
        open.apply(Free(0, 0)).unwrap();
        open.apply(Trim(0)).unwrap();
        Live { medium: *medium, open: Some(open) }
    }

    fn recover(&self, medium: &M) -> Result<Live, String> {
        let found = options().open_on(medium.inner().backing(LIMIT), *medium).map_err(|e| e.to_string())?;
        let pool = found.recover_with(&[&EngineRecovery]).map_err(|e| e.to_string())?;
        let open = Open::over(pool, self.trim_at).map_err(|e| e.to_string())?;
        Ok(Live { medium: *medium, open: Some(open) })
    }

    fn apply(&self, live: &mut Live, action: &Action) -> Values {
        if !matches!(action, Reopen) {
            return live.open.as_mut().unwrap().apply(*action).unwrap();
        }
        let Open { pool, tm, sessions, _opener: opener } = live.open.take().unwrap();
        drop((tm, sessions, opener));
        pool.close().unwrap();
        let backing = HeapBacking::from_image(HeapBacking::image_of(pool.mapping()));
        drop(pool);
        let pool = options().open_on(backing, live.medium).unwrap().recover().unwrap();
        live.open = Some(Open::over(pool, self.trim_at).unwrap());
        None
    }

    fn observe(&self, live: &mut Live) -> Model {
        let Open { tm, sessions, .. } = live.open.as_mut().unwrap();
        let session = &mut sessions[0];
        let values = std::array::from_fn(|i| tm.peek(session, value(tm, i)).unwrap());
        let blocks = std::array::from_fn(|i| {
            let block = tm.peek(session, link(tm, i)).unwrap();
            (!block.is_null()).then(|| tm.peek(session, block.field(1)).unwrap())
        });
        Model { values, blocks }
    }

    fn check(&self, live: &mut Live) -> Vec<String> {
        let Open { tm, sessions, pool, .. } = live.open.as_mut().unwrap();
        let links: BTreeSet<u64> =
            (0..LINKS).map(|i| tm.peek(&mut sessions[0], link(tm, i)).unwrap().off().get()).collect();
        let mut faults = Vec::new();
        for block in links.iter().filter(|off| **off != 0).map(|off| Cell::<u64>::at(Off::new(*off))) {
            let cells = [0, 1, 2, 3, 4, 5, 6, 7].map(|i| tm.peek(&mut sessions[0], block.field::<u64>(i)).unwrap());
            let is_right = |i: usize| cells[i] == if i == 1 || i as u64 == also(cells[1]) { cells[1] } else { 0 };
            if !(0..8).all(is_right) {
                faults.push(format!("a block holds {cells:?}"));
            }
        }
        let op = sessions[0].enter().unwrap();
        let owner = tm.root().owner();
        let allocated: BTreeSet<u64> = pool.space().blocks(&op, owner).into_iter().map(|(off, _)| off).collect();
        let linked: BTreeSet<u64> = links.into_iter().filter(|off| *off != 0).collect();
        faults.extend(pool.space().check(&op, |of| of == owner).iter().map(ToString::to_string));
        faults.extend(allocated.difference(&linked).map(|off| format!("leaked: {off:#x}")));
        faults.extend(linked.difference(&allocated).map(|off| format!("dangling: {off:#x}")));
        faults
    }

    fn model(&self) -> Model {
        Model::default()
    }

    fn step(&self, model: &mut Model, action: &Action) -> Values {
        match *action {
            Pair(_, new) => (model.values[0], model.values[1]) = (new, new),
            One(_, new) => model.values[2] = new,
            Block(_, at, new) => model.blocks[at] = Some(new),
            Free(_, at) => model.blocks[at] = None,
            GiveUp(_) | Trim(_) | Reopen => {}
            Read(_) => return Some(model.values),
        }
        None
    }

    fn expect(&self, model: &Model) -> Model {
        model.clone()
    }
}

impl Concurrent for Engines {
    type Thread = (Session<M>, Arc<Engine<M>>);

    fn thread(&self, live: &Live, _number: usize) -> Self::Thread {
        let open = live.open.as_ref().unwrap();
        (open.pool.session().unwrap(), Arc::clone(&open.tm))
    }

    fn run(&self, (session, tm): &mut Self::Thread, action: &Action) -> Values {
        act(tm, session, *action).unwrap()
    }

    fn hidden(&self) -> Option<String> {
        Some("what the engine keeps beside the medium".into())
    }
}

fn subject(plan: &'static Plan) -> Engines {
    Engines { plan, trim_at: 16 }
}

const AFTER: [Action; 3] = [Pair(1, 70), Block(0, 1, 71), Free(1, 0)];

#[test]
fn all_pairs_of_actions_with_a_crash_in_recovery() {
    let alphabet = [Pair(0, 1), Block(0, 0, 3), Trim(1), One(1, 2), Free(1, 0)];
    let alphabet = &alphabet[..if deep() { 5 } else { 3 }];
    for model in [Persistency::Pcso, Persistency::TornWords] {
        let explorer = Explorer::new().model(model).crashes(if deep() || model == Persistency::Pcso { 2 } else { 1 });
        let report = explorer.sequences(&subject(Plan::new()), alphabet, 2, &AFTER[..1]).assert_ok();
        println!("{model}: {report}");
        assert!(report.complete);
    }
}

/// Histories that reach every persistence site of the engine.
const HISTORIES: [&[Action]; 6] = [
    &[Pair(0, 1), Pair(1, 2), Pair(0, 3)],
    &[Block(0, 0, 5), Block(1, 0, 6), Trim(0), Block(0, 1, 7)],
    // A word's older record in one session's log, the newer one in another's, which is given back first.
    &[One(1, 3), One(0, 5), Trim(1), One(1, 6)],
    &[Block(0, 0, 5), Free(1, 0), Trim(0), Block(1, 1, 8), GiveUp(0)],
    &[Pair(0, 1), Reopen, Pair(1, 2)],
    &[Block(1, 1, 4), Trim(0), Block(0, 1, 5), Trim(1), Free(0, 1), Reopen],
];

#[test]
fn longer_lives_by_history() {
    for model in [Persistency::Pcso, Persistency::TornWords, Persistency::Eadr] {
        for history in HISTORIES {
            let report = Explorer::new().model(model).run_then(&subject(Plan::new()), history, &AFTER).assert_ok();
            println!("{model}: {report}");
            assert!(report.complete);
        }
    }
}

/// ERRATA: if number 5 is trimmed while another session's log still holds number 3 of the same word, redoing it would restore
/// the old value. The watermark prevents that, in trimming and in recovery.
#[test]
fn an_older_record_of_another_session_is_not_redone_when_the_newer_one_is_gone() {
    for (crashes, history) in [(1, &[One(1, 3), One(0, 5), Trim(1)][..]), (2, &[One(1, 3), One(0, 5)])] {
        let report = Explorer::new().crashes(crashes).run_then(&subject(Plan::new()), history, &AFTER[..1]).assert_ok();
        println!("{report}");
        assert!(report.complete);
    }
}

#[test]
fn a_record_that_was_not_acknowledged_is_not_redone_later() {
    for history in [&[Pair(0, 1)][..], &[One(1, 1), One(0, 2)]] {
        let explorer = Explorer::new().crashes(2).crash_later(true);
        let report = explorer.run_then(&subject(Plan::new()), history, &[Pair(1, 70), One(0, 71)]).assert_ok();
        println!("{report}");
        assert!(report.complete);
    }
}

#[test]
fn what_a_dead_process_left_visible_is_durable_before_it_is_built_on() {
    let all: [&[Action]; 3] = [&[Pair(0, 1), Trim(0)], &[Block(0, 0, 3)], &[Pair(0, 1), Pair(1, 2)]];
    for history in &all[..if deep() { 3 } else { 2 }] {
        let explorer = Explorer::new().process_deaths(true);
        println!("{}", explorer.run_then(&subject(Plan::new()), history, &AFTER[..usize::from(deep())]).assert_ok());
    }
}

/// The dead process had stored a watermark and not fenced it. The next one finds nothing to redo above it, and goes on; then the
/// power fails, and an older watermark must not come back when only some of the records above it are left.
#[test]
fn a_watermark_that_a_dead_process_left_visible_is_durable_before_it_is_built_on() {
    println!("{}", watermark_of_the_dead(Plan::new()).assert_ok());
}

fn watermark_of_the_dead(plan: &'static Plan) -> Report {
    let explorer = Explorer::new().process_deaths(true);
    explorer.run_then(&subject(plan), &[One(1, 3), One(0, 5), Trim(1)], &[Pair(1, 70)])
}

/// Two transactions on neighbouring words, a reader of both, and a trim among them: the reader sees each whole or not at all, and nothing
/// that a crash takes back.
#[test]
fn transactions_of_threads_on_neighbouring_words() {
    let programs: [[Vec<Action>; 3]; 2] = [
        [vec![Pair(0, 1), One(0, 2)], vec![Pair(1, 3)], vec![Read(0)]],
        [vec![Block(0, 0, 4), Pair(0, 5)], vec![Trim(1), Pair(1, 6)], vec![Read(0), Read(0)]],
    ];
    for program in programs {
        let explorer = Explorer::new().executions_per_point(8).samples(4).crash_points(12);
        let threads = Threads::new(explorer).preemptions(2).max_schedules(if deep() { 4000 } else { 150 });
        println!("{}", threads.run(&subject(Plan::new()), &program, &[Pair(1, 70), Read(0)]).assert_ok());
    }
}

/// The first commit gets the number up to which the trim goes, after the trim has gathered what is below: its segment is not given back, to
/// be used for the second.
#[test]
fn a_commit_beside_a_trim_keeps_its_record() {
    for commits in [[One(1, 5), Pair(1, 6)], [Block(1, 0, 6), Block(1, 0, 7)]] {
        let explorer = Explorer::new().executions_per_point(8).samples(4);
        let threads = Threads::new(explorer).preemptions(1).max_schedules(if deep() { 4000 } else { 150 });
        let program = [vec![Trim(0)], commits.to_vec()];
        println!("{}", threads.run(&subject(Plan::new()), &program, &[Pair(1, 70)]).assert_ok());
    }
}

/// The commit gets the number up to which the trim goes, after the trim has read it. The segment of its record is not given back: a crash
/// would lose the commit, whose words are not durable in place.
#[test]
fn a_commit_that_a_trim_ends_at_keeps_its_record() {
    let threads = Threads::new(Explorer::new().executions_per_point(400).samples(100)).preemptions(1);
    let report = threads.run(&subject(Plan::new()), &[vec![Trim(0)], vec![One(1, 5)]], &[Pair(1, 70)]).assert_ok();
    println!("{report}");
}

#[test]
fn every_write_back_and_fence_is_needed() {
    let sites = Sites {
        files: vec!["rewind/src/engine/".into(), "pmem/src/space/logical.rs".into()],
        kinds: vec![SiteKind::WriteBack, SiteKind::Fence],
        mutations: vec![Mutation::Drop],
        except: vec![],
    };
    let sweep = mutation_sweep(&sites, |plan| {
        let mut last = Report::default();
        for history in HISTORIES {
            if last.failure.is_none() {
                last = Explorer::new().run_then(&subject(plan), history, &AFTER);
            }
        }
        // A crash in recovery: between the logs of two sessions; and of words that do not share the watermark's line.
        for history in [&[One(1, 3), One(0, 5)][..], &[Block(1, 1, 4)]] {
            if last.failure.is_none() {
                last = Explorer::new().crashes(2).run_then(&subject(plan), history, &[]);
            }
        }
        if last.failure.is_none() {
            last = Explorer::new().process_deaths(true).run_then(&subject(plan), &[Pair(0, 1)], &[]);
        }
        if last.failure.is_none() {
            last = watermark_of_the_dead(plan);
        }
        last
    });
    println!("{sweep}");
    assert_eq!(sweep.assert_all_caught(&[]).mutants.len(), 12);
}
