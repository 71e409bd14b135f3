//! The process that is killed.

use std::path::Path;
use std::sync::Arc;

use durix::{Durability, Hardware, Index, Medium, Pool, PoolOptions};
use durix_pmem::backing::FileBacking;
use durix_pmem::medium::Shadow;
use durix_pmem::{Mutating, Mutation, Plan as Mutants, SiteKind};

use super::board::Board;
use super::clocks::{self, Clocks};
use super::steps::{self, PROBE, Plan};
use super::{INDEX, MAX_SIZE, POOL};
use crate::args::{TortureChildArgs, TortureMedium};
use crate::failure::{Code, Failure};

/// One store in so many also evicts a line that nobody has written back.
const EVICT_ONE_IN: u64 = 200;
/// Operations between two syncs of a thread, where the kind is buffered.
const SYNC_EVERY: u64 = 256;

pub fn run(args: &TortureChildArgs) -> Result<Code, Failure> {
    let path = args.dir.join(POOL);
    let shadow = || -> Result<_, Failure> {
        Ok(Shadow::over(Hardware::PAGE_CACHE, FileBacking::open(&path)?, EVICT_ONE_IN, args.seed))
    };
    let options = PoolOptions::new().max_size(MAX_SIZE);
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

/// Leaves out one fence that an insert of this kind issues: the first one in the structure's own code.
fn plant<M: Medium>(pool: &Pool<M>, kind: &str, mutants: &'static Mutants) -> Result<(), Failure> {
    let index = open(pool, kind)?;
    let mut session = pool.session()?;
    let count = |sites: Vec<(durix_pmem::Site, u64)>| sites.into_iter().collect::<std::collections::BTreeMap<_, _>>();
    // The first one may have to make room, with fences that later ones do not need.
    index.insert(&session.enter()?, PROBE, b"1")?;
    let before = count(mutants.sites());
    index.insert(&session.enter()?, PROBE, b"2")?;
    let hit = count(mutants.sites()).into_iter().find(|(site, hits)| {
        let own = !Path::new(site.file).components().any(|part| part.as_os_str() == "pmem");
        site.kind == SiteKind::Fence && own && before.get(site).copied().unwrap_or(0) < *hits
    });
    let (site, _) = hit.ok_or_else(|| Failure::usage(format!("an insert into a {kind} issues no fence of its own")))?;
    mutants.mutate(site, Mutation::Drop);
    Ok(())
}

/// Works until it is killed.
fn work<M: Medium>(pool: &Pool<M>, args: &TortureChildArgs) -> Result<Code, Failure> {
    let board = Board::open(&args.dir)?;
    let index = open(pool, &args.kind)?;
    let buffered = index.durability() != Durability::Strict;
    let clocks = buffered.then(|| Clocks::open(&args.dir, args.threads)).transpose()?;
    let plan = Plan { seed: args.seed, threads: args.threads, keys: args.keys };
    board.say_ready();
    let results: Vec<Result<(), Failure>> = std::thread::scope(|scope| {
        let spawn = |thread| {
            let (index, board, clocks) = (&*index, &board, clocks.as_ref());
            scope.spawn(move || work_as(pool, index, (board, clocks), plan, thread))
        };
        let threads: Vec<_> = (0..args.threads).map(spawn).collect();
        threads
            .into_iter()
            .map(|thread| thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
            .collect()
    });
    results.into_iter().collect::<Result<(), _>>()?;
    Ok(Code::Done)
}

fn work_as<M: Medium>(
    pool: &Pool<M>,
    index: &dyn Index<M>,
    (board, clocks): (&Board, Option<&Clocks>),
    plan: Plan,
    thread: u64,
) -> Result<(), Failure> {
    let mut session = pool.session()?;
    for number in 0.. {
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
        steps::run(index, &session.enter()?, thread, &step)?;
        board.end(thread, number);
        if clocks.is_some() && number % SYNC_EVERY == SYNC_EVERY - 1 {
            index.sync(&mut session)?;
            board.synced(thread, number + 1);
        }
    }
    Ok(())
}

/// A child that returned would have ended by itself.
fn wait_for_the_end() -> ! {
    loop {
        std::thread::park();
    }
}
