//! The process that is killed.
//!
//! Its threads work until then. An error that one of them meets, a wrong scan and a panic end the process at once: nobody
//! would ever hear of them later.

use std::convert::Infallible;
use std::ops::Bound;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use durix::{Db, Direction, Durability, Hardware, Index, KeyRange, Level, Medium, Pool, PoolOptions};
use durix_pmem::backing::FileBacking;
use durix_pmem::testing::{Shadow, mix};
use durix_pmem::{Mutating, Mutation, Plan as Mutants, SiteKind};

use super::board::Board;
use super::clocks::{self, Clocks};
use super::steps::{self, Plan};
use super::{INDEX, POOL};
use crate::args::{TortureChildArgs, TortureMedium};
use crate::failure::{Code, Failure};

/// One store in so many also evicts a line that nobody has written back.
const EVICT_ONE_IN: u64 = 200;
/// Operations between two syncs of a thread, where the kind is buffered.
const SYNC_EVERY: u64 = 256;
/// Where a thread draws a ticket after a sync, instead of syncing again: it waits for it at the next turn.
const TICKET_AFTER: u64 = 192;
/// Bytes of a segment of the journal: so few that kills meet checkpoints.
pub const SEGMENT: u64 = 64 << 10;
/// How the process ends where something has failed that was not meant to.
pub const FAILED: i32 = 70;
/// Most pairs of a scan.
const SCAN: usize = 500;

pub fn run(args: &TortureChildArgs) -> Result<Code, Failure> {
    if args.kind == super::transactions::NAME {
        return super::transactions::child(args);
    }
    let path = args.dir.join(POOL);
    let shadow = || -> Result<_, Failure> {
        Ok(Shadow::over(Hardware::PAGE_CACHE, FileBacking::open(&path)?, EVICT_ONE_IN, args.seed))
    };
    let options = PoolOptions::new().max_size(args.max_size).durability(args.durability).journal_segment(SEGMENT);
    if args.durability != Level::Process {
        return work(&options.open(&path)?, args);
    }
    match (args.medium, args.plant) {
        (TortureMedium::Hardware, false) => work(&options.open(&path)?, args),
        (TortureMedium::Shadow, false) => {
            let (backing, medium) = shadow()?;
            work(&options.open_on(backing, medium)?.recover()?, args)
        }
        (TortureMedium::Shadow, true) => {
            let (backing, medium) = shadow()?;
            let mutants = Mutants::new();
            let pool = options.open_on(backing, Mutating::new(medium, mutants))?.recover()?;
            plant(&pool, &args.kind, mutants)?;
            work(&pool, args)
        }
        (TortureMedium::Hardware, true) => Err(Failure::usage("a fence is left out on the shadow medium only")),
    }
}

fn open<M: Medium>(pool: &Pool<M>, kind: &str) -> Result<Arc<dyn Index<M>>, Failure> {
    Ok(durix::kind::named(kind)?.open_or_create(pool, INDEX)?)
}

/// Leaves out one fence that an insert of this kind issues: the first one in the structure's own code; where the kind is
/// buffered, the last one of a checkpoint. (A kill hardly ever meets the few instructions between that and the one before,
/// which makes all lines durable; the simulator does.)
fn plant<M: Medium>(pool: &Pool<M>, kind: &str, mutants: &'static Mutants) -> Result<(), Failure> {
    let index = open(pool, kind)?;
    let probe = steps::Form::of(index.limits()).probe();
    let mut session = pool.session()?;
    let mut insert = |value: u64| {
        index.insert(&session.enter()?, &probe, &value.to_be_bytes())?;
        index.sync(&mut session)
    };
    let count = |sites: Vec<(durix_pmem::Site, u64)>| sites.into_iter().collect::<std::collections::BTreeMap<_, _>>();
    // The first one may have to make room, with fences that later ones do not need.
    insert(1)?;
    let before = count(mutants.sites());
    insert(2)?;
    let buffered = index.durability() != Durability::Strict;
    let mut hit = count(mutants.sites()).into_iter().filter(|(site, hits)| {
        let part = |name: &str| Path::new(site.file).components().any(|part| part.as_os_str() == name);
        // A record's fence is followed by that of the change that links it, which makes both durable: without it next to nothing is lost.
        let of_record = part("records") || part("bytes.rs");
        let own = if buffered { part("epoch") } else { !part("pmem") && !of_record };
        site.kind == SiteKind::Fence && own && before.get(site).copied().unwrap_or(0) < *hits
    });
    let (site, _) = if buffered { hit.next_back() } else { hit.next() }
        .ok_or_else(|| Failure::usage(format!("an insert into a {kind} issues no fence of its own")))?;
    mutants.mutate(site, Mutation::Drop);
    Ok(())
}

/// Works until it is killed.
fn work<M: Medium>(pool: &Pool<M>, args: &TortureChildArgs) -> Result<Code, Failure> {
    let board = Board::open(&args.dir)?;
    let index = open(pool, &args.kind)?;
    let at_intervals = matches!(args.durability, Level::Interval(_));
    let buffered = index.durability() != Durability::Strict || at_intervals;
    let clocks = buffered.then(|| Clocks::open(&args.dir, args.threads)).transpose()?;
    // Its threads commit and checkpoint beside the writers.
    let _threads = at_intervals.then(|| Db::builder().over(pool.clone())).transpose()?;
    let form = steps::Form::of(index.limits());
    let plan = Plan { seed: args.seed, threads: args.threads, keys: args.keys, form };
    let is_bounded = args.max_size != super::DEFAULT_MAX_SIZE;
    let fail = |what: &dyn std::fmt::Display| -> ! {
        board.say_failed();
        eprintln!("{what}");
        std::process::exit(FAILED)
    };
    std::panic::set_hook({
        let (board, hook) = (Board::open(&args.dir)?, std::panic::take_hook());
        Box::new(move |info| {
            board.say_failed();
            hook(info);
            std::process::exit(FAILED);
        })
    });
    board.say_ready();
    std::thread::scope(|scope| {
        for thread in 0..args.threads {
            let (index, board, clocks) = (&*index, &board, clocks.as_ref());
            scope.spawn(move || {
                let Err(failure) = work_as(pool, index, (board, clocks), plan, thread, is_bounded);
                fail(&format_args!("thread {thread}: {failure}"));
            });
        }
        if index.as_ordered().is_some() {
            let index = &*index;
            scope.spawn(move || {
                let Err(failure) = scan(pool, index, plan);
                fail(&failure);
            });
        }
    });
    Ok(Code::Done)
}

fn work_as<M: Medium>(
    pool: &Pool<M>,
    index: &dyn Index<M>,
    (board, clocks): (&Board, Option<&Clocks>),
    plan: Plan,
    thread: u64,
    is_bounded: bool,
) -> Result<Infallible, Failure> {
    let mut session = pool.session()?;
    let (mut ticket, mut next) = (None, 0..);
    let buffered = clocks.is_some();
    // A full pool may cut a batch anywhere that is not atomic.
    let leaves_batches_out = is_bounded && !index.batch_is_atomic();
    loop {
        let number = next.next().expect("numbers do not end");
        let step = plan.step(thread, number);
        if let Some(clocks) = clocks {
            if number >= clocks::MOST {
                wait_for_the_end();
            }
            for other in (0..plan.threads).filter(|other| *other != thread) {
                clocks.note(thread, number, other, board.progress(other).ended);
            }
        }
        board.begin(thread, number);
        let op = session.enter()?;
        if leaves_batches_out && matches!(step, steps::Step::Batch(_)) {
            board.leave_out(thread, number);
        } else {
            match steps::run(index, &op, plan, thread, &step) {
                Err(error) if is_full(&error) && !buffered => board.refuse(thread, number),
                done => done?,
            }
        }
        op.note_commit();
        drop(op);
        pool.settle(&mut session)?;
        if pool.level() == Some(Level::Immediate) {
            // Everything is durable then, of a buffered kind too.
            board.synced(thread, number + 1);
        }
        board.end(thread, number);
        if let Some(level) = pool.level() {
            if level != Level::Immediate && number % SYNC_EVERY == SYNC_EVERY - 1 {
                pool.commit(&mut session)?;
                board.synced(thread, number + 1);
            }
            continue;
        }
        if clocks.is_none() {
            continue;
        }
        if number % (2 * SYNC_EVERY) == SYNC_EVERY + TICKET_AFTER {
            ticket = Some((index.ticket(&session.enter()?), number + 1));
        }
        if number % SYNC_EVERY == SYNC_EVERY - 1 {
            let covered = match ticket.take() {
                Some((ticket, covered)) => {
                    index.wait(&mut session, ticket)?;
                    covered
                }
                None => {
                    index.sync(&mut session)?;
                    number + 1
                }
            };
            board.synced(thread, covered);
        }
    }
}

/// Whether a pool had no room.
pub fn is_full(error: &durix::Error) -> bool {
    matches!(error, durix::Error::Pool(durix_pmem::Error::Full { .. }))
}

/// Walks over parts of an ordered index, beside the writers: keys come in order, each once, and none that nobody wrote.
fn scan<M: Medium>(pool: &Pool<M>, index: &dyn Index<M>, plan: Plan) -> Result<Infallible, Failure> {
    let mut session = pool.session()?;
    let ordered = index.as_ordered().expect("the caller has asked");
    let mut random = plan.seed;
    loop {
        random = mix(random);
        let from = plan.form.key(random % plan.threads, (random >> 32) % plan.keys_of_a_thread());
        let (range, direction) = match random >> 8 & 1 {
            0 => (KeyRange::new(Bound::Included(&from), Bound::Unbounded), Direction::Forward),
            _ => (KeyRange::new(Bound::Unbounded, Bound::Excluded(&from)), Direction::Backward),
        };
        let mut cursor = ordered.range(&range, direction);
        let (mut last, mut key, mut value) = (from, Vec::new(), Vec::new());
        for step in 0..SCAN {
            if !cursor.next_into(&session.enter()?, &mut key, &mut value)? {
                break;
            }
            let in_order = match direction {
                Direction::Forward => last < key || (step == 0 && last == key),
                Direction::Backward => last > key,
            };
            let known = key == plan.form.probe() || plan.form.parse(&key, plan.threads as usize + 1).is_some();
            if !in_order || !known {
                let (key, last) = (key.escape_ascii(), last.escape_ascii());
                return Err(Failure::usage(format!("a scan {direction:?} met {key} after {last}")));
            }
            std::mem::swap(&mut last, &mut key);
        }
        // The writers are what is tried.
        std::thread::sleep(Duration::from_micros(200));
    }
}

/// A child that returned would have ended by itself.
fn wait_for_the_end() -> ! {
    loop {
        std::thread::park();
    }
}
