//! A transaction log in a small pool, with an array of cells as its model.

#![allow(missing_docs, reason = "test code")]

use std::sync::Arc;

use crate::{Error, Layers, LogKind, LogRecovery, Options, Policy, TransactionManager, Tx};
use durix_crashsim::{Concurrent, Explorer, Persistency, Report, Simulated, Subject};
use durix_pmem::{Bits, Killable, Mutating, Off, Plan, Pool, PoolOptions, Session, Word};

/// The medium.
pub type M = Killable<Mutating<Simulated>>;

/// Cells that hold numbers; the rest hold blocks.
pub const NUMBERS: usize = 6;
const CELLS: usize = 8;
const CHUNK: u64 = 4096;
/// Header, lanes and roots take two chunks, the allocator's table one.
const FIXED: u64 = 3;
/// Words of a block.
const BLOCK: usize = 3;

/// What a transaction writes: cells and values.
pub type Writes = Vec<(usize, u64)>;

/// What is done.
#[derive(Clone, Debug, PartialEq)]
pub enum Act {
    /// A transaction that commits.
    Commit(Writes),
    /// A transaction of another session that commits: in a distributed log, in another lane.
    CommitOther(Writes),
    /// A transaction that is rolled back.
    Rollback(Writes),
    /// Two transactions take turns: the first commits, then the second is rolled back.
    Beside(Writes, Writes),
    /// As above, with a checkpoint when the first has committed.
    CheckpointBeside(Writes, Writes),
    /// A transaction puts a new block with this content into a cell, in the place of the one that is there.
    Put(usize, u64),
    /// As above, rolled back.
    PutAndRollback(usize, u64),
    /// A transaction frees the block of a cell.
    Take(usize),
    /// The log is cleared.
    Checkpoint,
    /// The sum of all numbers, in a transaction.
    Sum,
    /// The log is dropped, and created anew where the old one lay.
    Recreate,
    /// The process dies after an operation; the log is opened again without a power failure.
    Killed(Box<Act>),
    /// The process dies in a transaction; the same.
    Die(Writes),
    /// A process dies in a transaction, and those that come after it while they open the log: at the first fence, at the second,
    /// up to one that gets through.
    DieAgain(Writes),
    /// A process dies at the first fence of a transaction, the next one at the second fence of the same transaction, and so on,
    /// up to one that gets through.
    Stubborn(Writes),
}
pub use Act::*;

/// Numbers, then contents of blocks.
pub type Cells = [u64; CELLS];

/// What is tested, and how.
#[derive(Clone)]
pub struct Tested {
    pub plan: &'static Plan,
    pub options: Options,
    /// Chunks that the log can use.
    pub chunks: u64,
    /// Done before the operations under test.
    pub before: Vec<Act>,
}

impl Tested {
    pub fn new(options: Options) -> Self {
        Tested { plan: Plan::new(), options: options.bucket(8), chunks: 7, before: Vec::new() }
    }

    fn len(&self) -> u64 {
        (FIXED + self.chunks) * CHUNK
    }

    fn pool_options(&self) -> PoolOptions {
        let options = PoolOptions::new().chunk_size(CHUNK).lanes(1).max_indices(2).pool_id([7; 16]).boot_id([7; 16]);
        options.initial_size(self.len()).max_size(self.len())
    }

    fn live(&self, pool: Pool<M>) -> Result<Live, String> {
        // Not the session that recovers the log: its fences must not do for what recovery has written back.
        let sessions = [pool.session(), pool.session()].map(|s| s.map_err(|e| e.to_string()));
        let tm = TransactionManager::open(&pool, "log", &self.options).map_err(|e| e.to_string())?;
        let [first, second] = sessions;
        Ok(Live { sessions: [first?, second?], tm: Some(tm), pool })
    }
}

/// The configurations: three logs, one and two layers, force and no force.
pub fn all_options() -> Vec<Options> {
    let logs = [LogKind::Simple, LogKind::Optimized, LogKind::Batch(3)];
    let layers = [Layers::One, Layers::Two];
    let policies = [Policy::NoForce, Policy::Force];
    let mut all = Vec::new();
    for log in logs {
        for layers in layers {
            all.extend(policies.map(|policy| Options::default().log(log).layers(layers).policy(policy).bucket(8)));
        }
    }
    all
}

/// A log at work.
pub struct Live {
    pub sessions: [Session<M>; 2],
    tm: Option<Arc<TransactionManager<M>>>,
    pub pool: Pool<M>,
}

fn write(tm: &TransactionManager<M>, tx: &mut Tx<'_, M>, writes: &[(usize, u64)]) {
    for (cell, value) in writes {
        tx.set(tm.cell(*cell), *value).unwrap();
        assert_eq!(tx.get(tm.cell(*cell)).unwrap(), *value, "a transaction reads what it has written");
    }
}

fn put(tm: &TransactionManager<M>, tx: &mut Tx<'_, M>, cell: usize, value: u64) -> Result<(), Error> {
    take(tm, tx, cell)?;
    // Where the rest of the block is stored later, the line is written back for that; odd values show it without.
    let is_later = value.is_multiple_of(2);
    let block = tx.alloc(&[value, if is_later { 0 } else { value }, value ^ 7]).unwrap();
    if is_later {
        tx.set(block.byte_add(8), value).unwrap();
    }
    tx.set(tm.cell(cell), block.get())
}

fn take(tm: &TransactionManager<M>, tx: &mut Tx<'_, M>, cell: usize) -> Result<(), Error> {
    let old = tx.get(tm.cell(cell))?;
    if old == 0 {
        return Ok(());
    }
    tx.set(tm.cell(cell), 0)?;
    tx.free(Off::new(old))
}

impl Act {
    pub fn run(&self, tm: &TransactionManager<M>, session: &mut Session<M>, other: Option<&mut Session<M>>) -> u64 {
        match self {
            Commit(writes) => {
                let mut tx = tm.begin(session).unwrap();
                write(tm, &mut tx, writes);
                tx.commit().unwrap();
            }
            CommitOther(writes) => {
                let mut tx = tm.begin(other.unwrap()).unwrap();
                write(tm, &mut tx, writes);
                tx.commit().unwrap();
            }
            Rollback(writes) => {
                let mut tx = tm.begin(session).unwrap();
                write(tm, &mut tx, writes);
                tx.rollback().unwrap();
            }
            Beside(first, second) | CheckpointBeside(first, second) => {
                let (mut one, mut two) = (tm.begin(session).unwrap(), tm.begin(other.unwrap()).unwrap());
                // The second's writes are spread over the first's.
                for (turn, one_write) in first.iter().enumerate() {
                    write(
                        tm,
                        &mut two,
                        &second[turn * second.len() / first.len()..(turn + 1) * second.len() / first.len()],
                    );
                    write(tm, &mut one, &[*one_write]);
                }
                one.commit().unwrap();
                if matches!(self, CheckpointBeside(..)) {
                    tm.checkpoint(&mut tm.root().pool().session().unwrap()).unwrap();
                }
                two.rollback().unwrap();
            }
            Put(cell, value) => tm.transaction(session, |tx| put(tm, tx, *cell, *value)).unwrap(),
            PutAndRollback(cell, value) => {
                let mut tx = tm.begin(session).unwrap();
                put(tm, &mut tx, *cell, *value).unwrap();
                tx.rollback().unwrap();
            }
            Take(cell) => tm.transaction(session, |tx| take(tm, tx, *cell)).unwrap(),
            Checkpoint => _ = tm.checkpoint(session).unwrap(),
            Sum => {
                let sum =
                    |tx: &mut Tx<'_, M>| (0..NUMBERS).map(|cell| tx.get(tm.cell(cell))).sum::<Result<u64, Error>>();
                return tm.transaction(session, sum).unwrap();
            }
            Recreate | Killed(_) | Die(_) | DieAgain(_) | Stubborn(_) => unreachable!("done by the caller"),
        }
        0
    }

    fn step(&self, cells: &mut Cells) -> u64 {
        match self {
            Commit(writes)
            | CommitOther(writes)
            | Stubborn(writes)
            | Beside(writes, _)
            | CheckpointBeside(writes, _) => {
                writes.iter().for_each(|(cell, value)| cells[*cell] = *value);
            }
            Put(cell, value) => cells[*cell] = *value,
            Take(cell) => cells[*cell] = 0,
            Rollback(_) | PutAndRollback(..) | Checkpoint | Die(_) | DieAgain(_) => {}
            Recreate => *cells = [0; CELLS],
            Sum => return cells[..NUMBERS].iter().sum(),
            Killed(act) => return act.step(cells),
        }
        0
    }
}

impl Concurrent for Tested {
    type Thread = (Session<M>, Arc<TransactionManager<M>>);

    fn thread(&self, live: &Live, _number: usize) -> Self::Thread {
        (live.pool.session().unwrap(), Arc::clone(live.tm()))
    }

    fn run(&self, (session, tm): &mut Self::Thread, act: &Act) -> u64 {
        act.run(tm, session, None)
    }
}

impl Live {
    pub fn cells(&mut self) -> Cells {
        let tm = Arc::clone(self.tm());
        let op = self.sessions[0].enter().unwrap();
        let mut cells = [0; CELLS];
        for (number, cell) in cells.iter_mut().enumerate() {
            let load = |off: u64| op.load(op.at(Off::<Word>::new(off)), std::sync::atomic::Ordering::Acquire);
            *cell = load(tm.cell(number).get());
            if number >= NUMBERS && *cell != 0 {
                let block: [u64; BLOCK] = [0, 8, 16].map(|word| load(*cell + word));
                assert_eq!((block[1], block[2]), (block[0], block[0] ^ 7), "half a block");
                *cell = block[0];
            }
        }
        cells
    }

    /// The log.
    pub fn tm(&self) -> &Arc<TransactionManager<M>> {
        self.tm.as_ref().expect("a log is open")
    }

    fn reopen(&mut self, options: &Options) {
        self.tm = Some(TransactionManager::open(&self.pool, "log", options).unwrap());
    }

    fn medium(&mut self) -> M {
        self.sessions[0].enter().unwrap().medium()
    }

    /// Ends the log as the death of the process ends it: nothing is cleared.
    fn die(&mut self) {
        self.medium().dying_at(1, || self.tm = None);
    }

    /// Processes open the log and die at the first fence, at the second, up to one that gets through.
    fn open_against_deaths(&mut self, options: &Options) {
        for fence in 1.. {
            if !self.medium().dying_at(fence, || self.reopen(options)) {
                return;
            }
            // It may have died after the log was open.
            self.die();
        }
    }
}

impl Subject for Tested {
    type Op = Act;
    type Ret = u64;
    type State = Cells;
    type Model = Cells;
    type Store = (Simulated, M);
    type Live = Live;

    fn store(&self, medium: Simulated) -> Self::Store {
        (medium, Killable::new(Mutating::new(medium, self.plan)))
    }

    fn create(&self, (simulated, medium): &Self::Store) -> Live {
        let pool = self.pool_options().create_on(simulated.backing(0).with_limit(self.len()), *medium).unwrap();
        let mut live = self.live(pool).unwrap();
        for act in &self.before {
            self.apply(&mut live, act);
        }
        live
    }

    fn recover(&self, (simulated, medium): &Self::Store) -> Result<Live, String> {
        let opened = self.pool_options().open_on(simulated.backing(self.len()), *medium);
        let unrecovered = opened.map_err(|e| e.to_string())?;
        let pool = unrecovered.recover().map_err(|e| e.to_string())?;
        let asked = pool.has_pending_records();
        pool.recover_logs(&[&LogRecovery]).map_err(|e| e.to_string())?;
        let live = self.live(pool)?;
        match live.tm().found_records() {
            0 => Ok(live),
            found if asked => Err(format!("{found} records were left by the recovery")),
            found => Err(format!("{found} records were found in a log that does not ask for recovery")),
        }
    }

    fn apply(&self, live: &mut Live, act: &Act) -> u64 {
        let tm = Arc::clone(live.tm());
        let [first, second] = &mut live.sessions;
        match act {
            Killed(act) => {
                let answer = act.run(&tm, first, Some(second));
                drop(tm);
                live.die();
                live.reopen(&self.options);
                answer
            }
            Die(writes) | DieAgain(writes) => {
                let mut tx = tm.begin(first).unwrap();
                write(&tm, &mut tx, writes);
                std::mem::forget(tx);
                drop(tm);
                live.die();
                if matches!(act, DieAgain(_)) {
                    live.open_against_deaths(&self.options);
                } else {
                    live.reopen(&self.options);
                }
                0
            }
            Stubborn(writes) => {
                drop(tm);
                for fence in 1.. {
                    let (tm, medium) = (Arc::clone(live.tm()), live.medium());
                    let session = &mut live.sessions[0];
                    // So that there is something in the log.
                    (0..2).for_each(|_| _ = Rollback(vec![(5, 77)]).run(&tm, session, None));
                    if !medium.dying_at(fence, || _ = Commit(writes.clone()).run(&tm, session, None)) {
                        break;
                    }
                    drop(tm);
                    live.die();
                    live.reopen(&self.options);
                }
                0
            }
            Recreate => {
                drop(tm);
                live.tm = None;
                live.pool.drop_index("log").unwrap();
                live.reopen(&self.options);
                0
            }
            act => act.run(&tm, first, Some(second)),
        }
    }

    fn observe(&self, live: &mut Live) -> Cells {
        live.cells()
    }

    /// The log, and what was allocated: no block but those in the cells, once the log is empty.
    fn check(&self, live: &mut Live) -> Vec<String> {
        let tm = Arc::clone(live.tm());
        let mut findings = tm.check(&mut live.sessions[0]).unwrap();
        tm.checkpoint(&mut live.sessions[0]).unwrap();
        findings.extend(tm.check(&mut live.sessions[0]).unwrap());
        let left = tm.records(&mut live.sessions[0]).unwrap();
        if left > 0 {
            findings.push(format!("{left} records are left though nothing runs"));
        }
        let op = live.sessions[0].enter().unwrap();
        let blocks = live.pool.space().blocks(&op, tm.root().owner());
        let load = |cell| op.load(op.at(tm.cell(cell)), std::sync::atomic::Ordering::Acquire);
        let mut held: Vec<u64> = (NUMBERS..CELLS).map(load).filter(|block| block.to_bits() != 0).collect();
        held.sort_unstable();
        let allocated: Vec<u64> = blocks.into_iter().map(|(off, _)| off).collect();
        if allocated != held {
            findings.push(format!("blocks {allocated:x?} are allocated, {held:x?} are held"));
        }
        findings
    }

    fn model(&self) -> Cells {
        let mut cells = [0; CELLS];
        for act in &self.before {
            act.step(&mut cells);
        }
        cells
    }

    fn step(&self, model: &mut Cells, act: &Act) -> u64 {
        act.step(model)
    }

    fn expect(&self, model: &Cells) -> Cells {
        *model
    }
}

/// Follows every recovery.
pub fn after() -> Vec<Act> {
    vec![Commit(vec![(0, 91), (5, 92)]), Rollback(vec![(1, 93)]), Put(6, 94), Checkpoint, Commit(vec![(0, 95)])]
}

/// Configurations that together reach every site of the manager.
pub fn few_options() -> [Options; 5] {
    let options = |log, layers, policy| Options::default().log(log).layers(layers).policy(policy).bucket(8);
    [
        options(LogKind::Batch(3), Layers::One, Policy::NoForce),
        options(LogKind::Optimized, Layers::One, Policy::Force),
        options(LogKind::Batch(3), Layers::Two, Policy::NoForce),
        options(LogKind::Simple, Layers::One, Policy::Force),
        options(LogKind::Batch(3), Layers::One, Policy::NoForce).lanes(2),
    ]
}

/// A run for the sweeps: how it is explored, and what follows the recovery.
#[derive(Clone)]
pub struct Run {
    pub name: &'static str,
    pub tested: Tested,
    pub acts: Vec<Act>,
    pub after: Vec<Act>,
    pub explorer: Explorer,
}

impl Run {
    /// Explores it.
    pub fn explore(&self) -> Report {
        self.explorer.run_then(&self.tested, &self.acts, &self.after)
    }
}

/// Short runs that together reach every site of a configuration, each such that a missing call shows.
pub fn runs(plan: &'static Plan, options: Options) -> Vec<Run> {
    let base = Explorer::new().model(Persistency::TornWords).executions_per_point(20).samples(4).suggest(false);
    let plain = Tested { plan, ..Tested::new(options) };
    let begun = Tested { before: vec![Commit(vec![(0, 9), (2, 8)]), Put(6, 1)], ..plain.clone() };
    let many = |from: u64| -> Writes { (0..20).map(|n| (n as usize % 3, from + n)).collect() };
    let sparse = CheckpointBeside(many(10), vec![(4, 1), (5, 2), (4, 3)]);
    let run = |name, tested: &Tested, acts: Vec<Act>, after: &[Act]| Run {
        name,
        tested: tested.clone(),
        acts,
        after: after.to_vec(),
        explorer: base.clone(),
    };
    let twice = |run: Run| Run { explorer: run.explorer.clone().crashes(2).executions_per_point(5).samples(1), ..run };
    let killed = |act: Act| Killed(Box::new(act));
    let again = [Commit(vec![(0, 91), (5, 92)]), Commit(vec![(1, 93)])];
    vec![
        run("commits", &plain, vec![Commit(vec![(0, 1), (1, 2), (0, 3)]), Commit(vec![(1, 6)])], &again),
        run("rollbacks", &begun, vec![Rollback(vec![(0, 4), (1, 5), (0, 6)]), Commit(vec![(1, 6)])], &again),
        run("blocks", &begun, vec![Put(6, 5), PutAndRollback(7, 7), Take(6), Checkpoint], &[Put(6, 94)]),
        run("checkpoints", &begun, vec![Checkpoint, Commit(vec![(0, 1)]), Checkpoint, Commit(vec![(1, 1)])], &again),
        run("beside", &plain, vec![sparse, Commit(vec![(5, 3)])], &again),
        run("created anew", &begun, vec![Recreate, Commit(vec![(1, 2)])], &again),
        // The first to grow the log's memory is not the one whose fence comes next: of 63 units, 62 are promised to the other.
        run(
            "two sessions",
            &plain,
            vec![Beside((0..31).map(|n| (n % 3, 10 + n as u64)).collect(), vec![(4, 1)])],
            &again,
        ),
        // Twice: then both list headers have been in use.
        run("redone", &plain, vec![killed(Commit(vec![(0, 1), (2, 2)])), killed(Commit(vec![(0, 3), (1, 4)]))], &again),
        run("undone", &begun, vec![Die(vec![(0, 1), (2, 2), (0, 4)]), Commit(vec![(1, 1)])], &again),
        run("blocks redone", &begun, vec![killed(Put(6, 5)), Commit(vec![(1, 6)])], &[Put(6, 94)]),
        run("deaths in a commit", &begun, vec![Stubborn(vec![(0, 1), (1, 2), (2, 3), (3, 4), (4, 5)])], &again[..1]),
        run(
            "deaths in recovery",
            &begun,
            vec![DieAgain(vec![(0, 1), (2, 2), (0, 4), (3, 4)]), Commit(vec![(1, 1)])],
            &again,
        ),
        twice(run("recovery", &begun, vec![Commit(vec![(0, 1), (2, 2)])], &again[..1])),
        twice(run("recovery of blocks", &begun, vec![Put(6, 5)], &[])),
    ]
}
