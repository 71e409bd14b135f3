//! Every crash state of short programs: single updates, splits, merges, records, batches, trimming and the service beside them, deaths
//! of the process, a crash in recovery, and threads.

use std::collections::BTreeMap;
use std::sync::Arc;

use durix_bplustree::{BPlusTree, Options};
use durix_crashsim::{Concurrent, Explorer, Persistency, Report, Simulated, Sites, Subject, Threads, mutation_sweep};
use durix_index::{Direction, Index, KeyRange, OrderedIndex};
use durix_pmem::{Mutating, Mutation, Plan, Pool, PoolOptions, Session, SiteKind};
use durix_subjects::explored::deep;

type M = Mutating<Simulated>;

const CHUNK: u64 = 4096;
const LIMIT: u64 = CHUNK * 24;

#[derive(Clone, Debug)]
enum Act {
    /// By the session with that number.
    Put(usize, u8, u8),
    Remove(usize, u8),
    Get(u8),
    Batch(&'static [(u8, Option<u8>)]),
    Trim(usize),
    /// What the pool's services have to do.
    Tick,
}
use Act::*;

#[derive(Clone, Debug, PartialEq)]
enum Answer {
    Done(bool),
    Found(Option<u8>),
}

struct Tree {
    plan: &'static Plan,
    /// Done before what is tested.
    before: Vec<Act>,
    trim_at: usize,
}

struct Live {
    /// Has the slot of whoever recovered, so that nobody's fence stands in for its own.
    _opener: Session<M>,
    sessions: [Session<M>; 2],
    tree: Arc<BPlusTree<M>>,
    pool: Pool<M>,
}

fn options() -> PoolOptions {
    let options = PoolOptions::new().initial_size(LIMIT).max_size(LIMIT).chunk_size(CHUNK).lanes(1).max_indices(1);
    options.pool_id([7; 16]).boot_id([9; 16])
}

/// Every fourth key does not fit into a slot, and most are neighbours of it.
fn key(k: u8) -> Vec<u8> {
    if k.is_multiple_of(4) { [&[0, k][..], &[5; 20]].concat() } else { vec![0, k] }
}

/// In a slot, in the log, ahead of the log.
fn value(v: u8) -> Vec<u8> {
    match v % 8 {
        6 => vec![v; 40],
        7 => vec![v; 1100],
        _ => vec![v; 8],
    }
}

fn number(value: &[u8]) -> u8 {
    assert_eq!(value, self::value(value[0]), "a value that nobody has stored");
    value[0]
}

impl Tree {
    fn new(before: Vec<Act>) -> Tree {
        Tree { plan: Plan::new(), before, trim_at: 16 }
    }

    fn live(&self, pool: Pool<M>) -> Result<Live, String> {
        let options = Options::default().segment(CHUNK).trim_at(self.trim_at);
        let tree = BPlusTree::open_with(&pool, "it", &options).map_err(|e| e.to_string())?;
        let session = || pool.session().map_err(|e| e.to_string());
        Ok(Live { _opener: session()?, sessions: [session()?, session()?], tree, pool })
    }

    fn run(tree: &BPlusTree<M>, session: &mut Session<M>, act: &Act) -> Answer {
        let op = session.enter().unwrap();
        match act {
            Put(_, k, v) => Answer::Done(tree.insert(&op, &key(*k), &value(*v)).unwrap()),
            Remove(_, k) => Answer::Done(tree.remove(&op, &key(*k)).unwrap()),
            Get(k) => Answer::Found(tree.get_vec(&op, &key(*k)).unwrap().map(|value| number(&value))),
            Batch(changes) => {
                let mut batch = durix_index::Batch::new();
                for (k, v) in *changes {
                    match v {
                        Some(v) => batch.insert(&key(*k), &value(*v)),
                        None => batch.remove(&key(*k)),
                    };
                }
                tree.apply(&op, &batch).unwrap();
                Answer::Done(true)
            }
            Trim(_) => {
                drop(op);
                tree.trim(session).unwrap();
                Answer::Done(true)
            }
            Tick => {
                drop(op);
                let _tick = tree.root().pool().tick(session).unwrap();
                Answer::Done(true)
            }
        }
    }
}

impl Subject for Tree {
    type Op = Act;
    type Ret = Answer;
    type State = BTreeMap<u8, u8>;
    type Model = BTreeMap<u8, u8>;
    type Store = (Simulated, M);
    type Live = Live;

    fn store(&self, medium: Simulated) -> Self::Store {
        (medium, Mutating::new(medium, self.plan))
    }

    fn create(&self, (simulated, medium): &Self::Store) -> Live {
        let pool = options().create_on(simulated.backing(0).with_limit(LIMIT), *medium).unwrap();
        let mut live = self.live(pool).unwrap();
        for act in &self.before {
            self.apply(&mut live, act);
        }
        live
    }

    fn recover(&self, (simulated, medium): &Self::Store) -> Result<Live, String> {
        let found = options().open_on(simulated.backing(LIMIT), *medium).map_err(|e| e.to_string())?;
        self.live(found.recover().map_err(|e| e.to_string())?)
    }

    fn apply(&self, live: &mut Live, act: &Act) -> Answer {
        let by = match act {
            Put(by, ..) | Remove(by, _) | Trim(by) => *by,
            _ => 0,
        };
        Tree::run(&live.tree, &mut live.sessions[by], act)
    }

    fn observe(&self, live: &mut Live) -> BTreeMap<u8, u8> {
        let op = live.sessions[0].enter().unwrap();
        let (mut cursor, mut found) = (live.tree.range(&KeyRange::all(), Direction::Backward), BTreeMap::new());
        while let Some((k, v)) = cursor.next(&op).unwrap() {
            assert_eq!(k, key(k[1]));
            assert_eq!(found.insert(k[1], number(v)), None, "a key twice");
        }
        found
    }

    fn check(&self, live: &mut Live) -> Vec<String> {
        let op = live.sessions[0].enter().unwrap();
        let owner = live.tree.root().owner();
        let mut faults: Vec<String> = live.tree.check(&op).iter().map(ToString::to_string).collect();
        faults.extend(live.pool.space().check(&op, |of| of == owner).iter().map(ToString::to_string));
        faults
    }

    fn model(&self) -> Self::Model {
        let mut model = BTreeMap::new();
        for act in &self.before {
            self.step(&mut model, act);
        }
        model
    }

    fn step(&self, model: &mut Self::Model, act: &Act) -> Answer {
        match act {
            Put(_, k, v) => Answer::Done(model.insert(*k, *v).is_none()),
            Remove(_, k) => Answer::Done(model.remove(k).is_some()),
            Get(k) => Answer::Found(model.get(k).copied()),
            Batch(changes) => {
                for (k, v) in *changes {
                    match v {
                        Some(v) => model.insert(*k, *v),
                        None => model.remove(k),
                    };
                }
                Answer::Done(true)
            }
            Trim(_) | Tick => Answer::Done(true),
        }
    }

    fn expect(&self, model: &Self::Model) -> BTreeMap<u8, u8> {
        model.clone()
    }
}

impl Concurrent for Tree {
    type Thread = (Session<M>, Arc<BPlusTree<M>>);

    fn thread(&self, live: &Live, _number: usize) -> Self::Thread {
        (live.pool.session().unwrap(), Arc::clone(&live.tree))
    }

    fn run(&self, (session, tree): &mut Self::Thread, act: &Act) -> Answer {
        Tree::run(tree, session, act)
    }

    fn hidden(&self) -> Option<String> {
        Some("what the engine and the pool keep beside the medium".into())
    }
}

/// So many keys from 1 on, trimmed: the next key splits a leaf at 15.
fn keys(count: u8) -> Vec<Act> {
    let puts = (1..=count).map(|k| Put(0, 2 * k, 1));
    puts.chain([Put(1, 2, 1), Trim(0)]).collect()
}

/// Histories that reach every step of an update, with what comes before each.
fn histories() -> Vec<(Vec<Act>, Vec<Act>)> {
    let split_then = |more: &[Act]| [keys(16), more.to_vec()].concat();
    vec![
        // An empty tree; slots; records in the log and ahead of it, replaced and freed.
        (vec![], vec![Put(0, 1, 1), Put(1, 4, 6)]),
        (keys(3), vec![Put(0, 3, 7), Put(0, 5, 15), Put(1, 3, 6), Remove(0, 4)]),
        // A leaf is split in the middle and at its end; the root grows.
        (keys(15), vec![Put(0, 5, 1), Put(1, 7, 2)]),
        (keys(15), vec![Put(0, 33, 6)]),
        // Leaves merge, and the root goes.
        (
            split_then(&[Remove(0, 30), Remove(0, 28), Remove(0, 26), Remove(0, 24), Remove(0, 22), Trim(0)]),
            vec![Remove(1, 32), Remove(0, 20)],
        ),
        // All or nothing, across a split.
        (keys(14), vec![Batch(&[(1, Some(6)), (3, Some(2)), (4, None), (2, Some(3)), (5, Some(7))])]),
        // Trimming between updates of the same words by two sessions; a freed block is used again.
        (keys(3), vec![Put(1, 3, 3), Put(0, 3, 6), Trim(1), Put(0, 3, 14), Trim(0), Put(1, 3, 22)]),
    ]
}

#[test]
fn every_step_of_an_update_by_history() {
    let all = [Persistency::Pcso, Persistency::TornWords, Persistency::Eadr];
    for model in all.into_iter().take(if deep() { 3 } else { 2 }) {
        for (before, history) in histories() {
            let tree = Tree::new(before);
            let explorer = Explorer::new().model(model).executions_per_point(200).samples(20);
            let report = explorer.run_then(&tree, &history, &[Put(1, 9, 2), Remove(0, 2), Get(4)]).assert_ok();
            println!("{model}: {report}");
        }
    }
}

#[test]
fn a_crash_in_recovery_changes_nothing() {
    for (before, history) in histories().into_iter().take(if deep() { 7 } else { 3 }) {
        let explorer = Explorer::new().crashes(2).executions_per_point(40).samples(10);
        println!("{}", explorer.run_then(&Tree::new(before), &history, &[Put(1, 9, 2)]).assert_ok());
    }
}

#[test]
fn what_a_dead_process_left_survives_the_power_failure_that_follows() {
    println!("{}", deaths(Plan::new()).assert_ok());
}

fn deaths(plan: &'static Plan) -> Report {
    let tree = Tree { plan, ..Tree::new(keys(2)) };
    let explorer = Explorer::new().process_deaths(true).executions_per_point(40).samples(4);
    explorer.run_then(&tree, &[Put(0, 3, 3), Remove(1, 2)], &[Put(0, 5, 1)])
}

/// A dead process has stored a watermark and not fenced it. The next one finds nothing to redo, and goes on; then the power fails, and an
/// older watermark must not come back when only some of the records above it are left.
#[test]
fn a_watermark_that_a_dead_process_left_visible_is_durable_before_it_is_built_on() {
    println!("{}", death_in_a_trim(Plan::new()).assert_ok());
}

fn death_in_a_trim(plan: &'static Plan) -> Report {
    // The older record is in the log that the next process takes last.
    let tree = Tree { plan, ..Tree::new([keys(2), vec![Put(0, 3, 3), Put(1, 3, 5)]].concat()) };
    let explorer = Explorer::new().process_deaths(true).executions_per_point(2000).samples(4);
    explorer.run_then(&tree, &[Trim(1)], &[Put(0, 5, 1)])
}

/// A log that is trimmed by its commits and by the service of the pool, with two sessions at work.
#[test]
fn trimming_beside_transactions() {
    let tree = Tree { trim_at: 2, ..Tree::new(keys(3)) };
    // A record of this value fills a part of a segment.
    let acts = [Put(0, 3, 6), Put(1, 5, 14), Tick, Put(0, 3, 22), Remove(1, 5), Tick, Put(1, 3, 30)];
    let explorer = Explorer::new().executions_per_point(60).samples(10);
    println!("{}", explorer.run_then(&tree, &acts, &[Put(0, 5, 6), Tick]).assert_ok());
}

fn threads(preemptions: u32) -> Threads {
    let explorer = Explorer::new().executions_per_point(10).samples(4).crash_points(12);
    let threads = Threads::new(explorer).preemptions(preemptions as _);
    threads.max_schedules(if deep() { 4000 } else { 150 })
}

#[test]
fn two_writers_on_neighbouring_words_and_a_reader() {
    let programs: [[Vec<Act>; 3]; 3] = [
        [vec![Put(0, 3, 3), Put(0, 5, 6)], vec![Put(1, 5, 4), Remove(1, 3)], vec![Get(3), Get(5)]],
        [vec![Put(0, 29, 3)], vec![Put(1, 31, 4), Trim(1)], vec![Get(28), Get(30)]],
        [vec![Put(0, 4, 14), Trim(0)], vec![Remove(1, 4), Put(1, 8, 22)], vec![Get(4)]],
    ];
    for (before, program) in [keys(3), keys(15), keys(4)].into_iter().zip(programs) {
        println!("{}", threads(2).run(&Tree::new(before), &program, &[Put(1, 9, 2)]).assert_ok());
    }
}

#[test]
fn every_write_back_and_fence_is_needed() {
    let sites = Sites {
        files: vec!["bplustree/src/".into(), "rewind/src/engine/".into()],
        kinds: vec![SiteKind::WriteBack, SiteKind::Fence],
        mutations: vec![Mutation::Drop],
        except: vec![],
    };
    let sweep = mutation_sweep(&sites, |plan| {
        let mut last = Report::default();
        for (before, history) in histories() {
            if last.failure.is_none() {
                let explorer = Explorer::new().executions_per_point(100).samples(10);
                last = explorer.run_then(&Tree { plan, ..Tree::new(before) }, &history, &[Put(1, 9, 2)]);
            }
        }
        for history in [&[Put(1, 3, 3), Put(0, 3, 5)][..], &[Put(1, 3, 6)]] {
            if last.failure.is_none() {
                let explorer = Explorer::new().crashes(2).executions_per_point(100).samples(10);
                last = explorer.run_then(&Tree { plan, ..Tree::new(keys(3)) }, history, &[]);
            }
        }
        for deaths in [deaths, death_in_a_trim] {
            if last.failure.is_none() {
                last = deaths(plan);
            }
        }
        last
    });
    println!("{sweep}");
    sweep.assert_all_caught(&[]);
}
