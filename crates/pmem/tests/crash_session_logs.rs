//! Every crash state of short lives of session logs: what was committed is found, whole and in order, until it is given back;
//! and every persist edge is needed.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use durix_crashsim::{Contract, Explorer, Persistency, Simulated, Sites, Subject, mutation_sweep};
use durix_pmem::{
    Chain, Error, Kind, Mutating, Mutation, Off, Op, Owner, Plan, Pool, PoolOptions, Root, Segment, Session,
    SessionLogs, SiteKind, Structure, Word,
};

type M = Mutating<Simulated>;

const CHUNK: u64 = 4096;
/// Header and roots, the table, and the segments.
const LIMIT: u64 = CHUNK * (3 + SEGMENTS as u64);
/// Segments that the pool has room for.
const SEGMENTS: usize = 7;
/// Words of a segment.
const WORDS: u64 = (CHUNK - 64) / 8;
const CHAINS: usize = 2;

struct Notes {
    logs: Arc<SessionLogs<M>>,
}

impl Structure<M> for Notes {
    const KIND: Kind = Kind { tag: *b"notes\0\0\0", version: durix_pmem::Version::new(1) };
    type Options = ();
    type Error = Error;

    fn create(_: &mut Session<M>, _: &Root<M>, (): &()) -> Result<(), Error> {
        Ok(())
    }

    fn open(session: &mut Session<M>, root: Root<M>, (): &()) -> Result<Self, Error> {
        Ok(Notes { logs: SessionLogs::open(&session.enter()?, root, 1)? })
    }
}

/// What is done with the logs. A value that is appended is an entry of `words` words.
#[derive(Clone, Copy, Debug)]
enum Action {
    /// Appends to a chain, and commits.
    Append(usize, u64),
    /// Appends a short entry, several of which share a segment.
    Short(usize, u64),
    /// Gives the segment with that place in the chain back, and commits.
    GiveBack(usize, usize),
    /// Gives the first segment back; not durable before the next commit.
    Lazy(usize),
    /// Appends without a commit; the session ends, and another one adopts the chain and commits.
    HandOver(usize, u64),
    /// Gives the first segment back without a commit; the same.
    HandOverSpare(usize),
    /// Gives spare segments to the pool, and another owner takes one of them and writes into it.
    Shrink,
}
use Action::*;

/// The entries of each chain, oldest first.
type State = Vec<Vec<u64>>;
/// The same by segment.
type Model = Vec<Vec<Vec<u64>>>;

struct Logs {
    plan: &'static Plan,
    /// Segments that are there, and spare, when it begins.
    spare: usize,
}

struct Live {
    pool: Pool<M>,
    notes: Arc<Notes>,
    /// Has the slot of the session that opened the logs, so that nobody's fence stands in for its own.
    _opener: Session<M>,
    sessions: Vec<Session<M>>,
    chains: Vec<Option<Chain<M>>>,
}

fn options() -> PoolOptions {
    PoolOptions::new()
        .initial_size(8 * CHUNK)
        .max_size(LIMIT)
        .chunk_size(CHUNK)
        .lanes(1)
        .max_indices(1)
        .pool_id([7; 16])
        .boot_id([9; 16])
}

/// Words of an entry.
const ENTRY: u64 = 2;
/// Entries of a segment that are looked at.
const SLOTS: u64 = 3;

fn check_of(number: u64, value: u64) -> u64 {
    (number << 32 ^ value).wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1
}

/// Appends an entry. One that is long asks for the room of a whole segment.
fn append(chain: &mut Chain<M>, op: &Op<'_, M>, long: bool, value: u64) -> Result<(), Error> {
    let (number, room) = chain.room(op, if long { WORDS } else { ENTRY })?;
    op.store(&room[0], check_of(number, value), Relaxed);
    op.store(&room[1], value, Relaxed);
    chain.append(op, ENTRY)
}

/// The entries of a segment, past invalid ones: a client with entries of one size reads like that.
fn entries(op: &Op<'_, M>, segment: &Segment) -> Vec<u64> {
    let words = &segment.words(op).unwrap()[..(SLOTS * ENTRY) as usize];
    let entry = |slot: &[Word]| {
        let (check, value) = (op.load(&slot[0], Relaxed), op.load(&slot[1], Relaxed));
        (check == check_of(segment.number(), value)).then_some(value)
    };
    words.chunks(ENTRY as usize).filter_map(entry).collect()
}

impl Live {
    fn over(pool: Pool<M>, notes: Arc<Notes>) -> Live {
        let opener = pool.session().unwrap();
        let mut sessions: Vec<_> = (0..CHAINS + 1).map(|_| pool.session().unwrap()).collect();
        let op = sessions[0].enter().unwrap();
        let mut chains: Vec<Option<Chain<M>>> = (0..CHAINS).map(|_| None).collect();
        for mut chain in notes.logs.orphans(&op) {
            let segments: Vec<_> = chain.segments().collect();
            for segment in segments {
                // What is shown must be there after the next crash; where nothing is, nothing was acknowledged.
                op.write_back_slice(&segment.words(&op).unwrap()[..(SLOTS * ENTRY) as usize]);
                if entries(&op, &segment).is_empty() {
                    chain.give_back(&op, segment.number()).unwrap();
                }
            }
            chain.commit(&op).unwrap();
            let number = chain.number() as usize;
            chains[number] = Some(chain);
        }
        let chains = chains.into_iter().map(|chain| chain.or_else(|| Some(notes.logs.chain(&op).unwrap()))).collect();
        drop(op);
        Live { pool, notes, _opener: opener, sessions, chains }
    }
}

/// Fills the chunks that segments will lie in with what must not be taken for their head.
fn litter(pool: &Pool<M>) {
    let mut session = pool.session().unwrap();
    let op = session.enter().unwrap();
    let mut taken = Vec::new();
    while taken.len() < 4 {
        let reserved = pool.space().reserve_extent(&op, Owner(9), CHUNK).unwrap();
        let line = op.at(Off::<[Word; 8]>::new(reserved.off()));
        for word in line {
            op.store(word, 0xABAB, Relaxed);
        }
        op.persist(line);
        taken.push(reserved);
    }
}

impl Subject for Logs {
    type Op = Action;
    type Ret = bool;
    type State = State;
    type Model = Model;
    type Store = M;
    type Live = Live;

    fn store(&self, medium: Simulated) -> M {
        Mutating::new(medium, self.plan)
    }

    fn create(&self, medium: &M) -> Live {
        let backing = medium.inner().backing(0).with_limit(LIMIT);
        let pool = options().create_on(backing, *medium).unwrap();
        litter(&pool);
        let notes = pool.open_structure::<Notes>("notes", &()).unwrap();
        let mut live = Live::over(pool, notes);
        for _ in 0..self.spare {
            assert!(self.apply(&mut live, &Append(0, 0)));
        }
        for _ in 0..self.spare {
            assert!(self.apply(&mut live, &GiveBack(0, 0)));
        }
        live
    }

    fn recover(&self, medium: &M) -> Result<Live, String> {
        let opened = options().open_on(medium.inner().backing(LIMIT), *medium);
        let pool = opened.and_then(|found| found.recover()).map_err(|e| e.to_string())?;
        let notes = pool.open_existing::<Notes>("notes", &()).map_err(|e| e.to_string())?;
        Ok(Live::over(pool, notes))
    }

    fn apply(&self, live: &mut Live, action: &Action) -> bool {
        let (Append(at, _) | Short(at, _) | GiveBack(at, _) | Lazy(at) | HandOver(at, _) | HandOverSpare(at)) = *action
        else {
            return shrink(live);
        };
        let op = live.sessions[at].enter().unwrap();
        let slot = &mut live.chains[at];
        let chain = slot.as_mut().unwrap();
        let first = |chain: &Chain<M>| chain.segments().next().map(|segment| segment.number());
        let done = match *action {
            Append(_, value) | HandOver(_, value) => append(chain, &op, true, value).is_ok(),
            Short(_, value) => append(chain, &op, false, value).is_ok(),
            GiveBack(_, place) => {
                let number = chain.segments().nth(place).map(|segment| segment.number());
                number.is_some_and(|number| chain.give_back(&op, number).is_ok())
            }
            Lazy(_) | HandOverSpare(_) => first(chain).is_some_and(|number| chain.give_back(&op, number).is_ok()),
            Shrink => unreachable!(),
        };
        if matches!(action, HandOver(..) | HandOverSpare(_)) {
            drop(op);
            *slot = None;
            let op = live.sessions[CHAINS].enter().unwrap();
            let mut chain = live.notes.logs.chain(&op).unwrap();
            chain.commit(&op).unwrap();
            *slot = Some(chain);
        } else if !matches!(action, Lazy(_)) {
            chain.commit(&op).unwrap();
        }
        done
    }

    fn observe(&self, live: &mut Live) -> State {
        let op = live.sessions[0].enter().unwrap();
        let all = |chain: &Option<Chain<M>>| {
            let chain = chain.as_ref().unwrap();
            chain.segments().flat_map(|segment| entries(&op, &segment)).collect()
        };
        live.chains.iter().map(all).collect()
    }

    fn check(&self, live: &mut Live) -> Vec<String> {
        let op = live.sessions[0].enter().unwrap();
        let findings = live.pool.space().check(&op, |owner| owner == Owner(0));
        findings.iter().map(|f| format!("leaked or damaged: {f}")).collect()
    }

    fn model(&self) -> Model {
        vec![Vec::new(); CHAINS]
    }

    fn step(&self, model: &mut Model, action: &Action) -> bool {
        match *action {
            Short(at, value) if model[at].last().is_some_and(|last| !last.is_empty()) => {
                model[at].last_mut().unwrap().push(value);
                true
            }
            Append(at, value) | Short(at, value) | HandOver(at, value) => {
                let fits = model.iter().flatten().count() < SEGMENTS;
                if fits {
                    model[at].push(vec![value]);
                }
                fits
            }
            GiveBack(at, place) => give_back(&mut model[at], place),
            Lazy(at) | HandOverSpare(at) => give_back(&mut model[at], 0),
            Shrink => true,
        }
    }

    fn expect(&self, model: &Model) -> State {
        model.iter().map(|chain| chain.iter().flatten().copied().collect()).collect()
    }

    fn is_sync(&self, action: &Action) -> bool {
        !matches!(action, Lazy(_))
    }
}

fn give_back(chain: &mut Vec<Vec<u64>>, place: usize) -> bool {
    let there = place < chain.len();
    if there {
        chain.remove(place);
    }
    there
}

/// Also fills what was given to the pool with entries that must not pass when the chunk is a segment again.
fn shrink(live: &mut Live) -> bool {
    let op = live.sessions[0].enter().unwrap();
    live.notes.logs.shrink(&op, 0).unwrap();
    drop(op);
    litter(&live.pool);
    true
}

/// What was given back without a commit may come again: a cut no older than the last commit.
fn explorer() -> Explorer {
    Explorer::new().contract(Contract::Buffered)
}

/// One entry a segment: places are segments.
fn whole(plan: &'static Plan) -> Logs {
    Logs { plan, spare: 0 }
}

const AFTER: [Action; 4] = [Append(0, 70), GiveBack(0, 0), Lazy(1), Append(1, 71)];

#[test]
fn all_short_sequences_with_a_crash_in_recovery() {
    let alphabet = [Append(0, 1), Append(1, 2), GiveBack(0, 0), Lazy(0)];
    for model in [Persistency::Pcso, Persistency::TornWords] {
        let explorer = explorer().model(model).crashes(2);
        let report = explorer.sequences(&whole(Plan::new()), &alphabet, 2, &AFTER[..2]).assert_ok();
        println!("{model}: {report}");
        assert!(report.complete);
    }
}

#[test]
fn longer_lives_by_history() {
    for model in [Persistency::Pcso, Persistency::TornWords, Persistency::Eadr] {
        for history in HISTORIES {
            let report = explorer().model(model).run_then(&whole(Plan::new()), history, &AFTER).assert_ok();
            println!("{model}: {report}");
            assert!(report.complete);
        }
    }
}

#[test]
fn entries_that_share_a_segment_and_a_line() {
    for model in [Persistency::Pcso, Persistency::TornWords] {
        let history = [Append(0, 1), Short(0, 2), Append(1, 3), HandOver(0, 4), Short(0, 5)];
        let report =
            explorer().model(model).run_then(&whole(Plan::new()), &history, &[Append(0, 6), Short(0, 7)]).assert_ok();
        println!("{model}: {report}");
        assert!(report.complete);
    }
}

#[test]
fn an_entry_that_was_not_committed_does_not_pass_in_a_later_use() {
    for model in [Persistency::Pcso, Persistency::TornWords] {
        let explorer = explorer().model(model).crashes(2).crash_later(true);
        let subject = Logs { plan: Plan::new(), spare: 1 };
        let report = explorer.run_then(&subject, &[Append(0, 1)], &[Append(0, 70), Append(1, 71)]).assert_ok();
        println!("{model}: {report}");
    }
}

#[test]
fn a_full_pool_refuses_and_loses_nothing() {
    let mut history: Vec<Action> = (0..SEGMENTS as u64).map(|value| Append(value as usize % 2, value)).collect();
    history.extend([Append(0, 97), Append(1, 98), GiveBack(0, 1), Append(0, 99), Append(1, 98)]);
    let report =
        explorer().run_then(&whole(Plan::new()), &history, &[Append(0, 96), Lazy(1), Append(1, 95)]).assert_ok();
    println!("{report}");
    assert!(report.complete);
}

#[test]
fn what_a_dead_process_left_visible_is_durable_once_it_is_seen() {
    // With one spare segment, what is given back is entered again.
    let histories: [(usize, &[Action]); 3] = [
        (2, &[Append(0, 1), Append(1, 2)]),
        (2, &[Append(0, 1), GiveBack(0, 0)]),
        (1, &[Append(0, 1), Lazy(0), Append(0, 2)]),
    ];
    for (spare, history) in histories {
        let subject = Logs { plan: Plan::new(), spare };
        println!("{}", explorer().process_deaths(true).run_then(&subject, history, &AFTER[..1]).assert_ok());
    }
}

/// Histories that reach every persistence site of the logs.
const HISTORIES: [&[Action]; 5] = [
    &[Append(0, 1), Append(0, 2), Append(0, 3), GiveBack(0, 1), Append(0, 4)],
    &[Append(0, 1), Short(0, 2), Lazy(0), Append(0, 3), Lazy(0), Append(0, 4)],
    &[Append(0, 1), HandOver(0, 2), HandOverSpare(0), Append(1, 3)],
    &[Append(1, 1), GiveBack(1, 0), Shrink, Append(0, 2), Append(1, 3)],
    &[Append(0, 1), HandOverSpare(0), Append(0, 2), Lazy(0), Append(0, 4), HandOver(1, 5)],
];

#[test]
fn every_write_back_and_fence_is_needed() {
    let sites = Sites {
        files: vec!["pmem/src/session_log/".into()],
        kinds: vec![SiteKind::WriteBack, SiteKind::Fence],
        mutations: vec![Mutation::Drop],
        except: vec![],
    };
    let sweep = mutation_sweep(&sites, |plan| {
        let mut last = explorer().run(&whole(plan), &[]);
        for history in HISTORIES {
            if last.failure.is_none() {
                last = explorer().run_then(&whole(plan), history, &AFTER);
            }
        }
        if last.failure.is_none() {
            let later = explorer().crashes(2).crash_later(true);
            last = later.run_then(&Logs { plan, spare: 1 }, &[Append(0, 1)], &[Append(0, 70)]);
        }
        // The next process enters another segment than the one whose head the dead one has left.
        if last.failure.is_none() {
            let history = [Append(0, 1), Append(0, 2), GiveBack(0, 0), GiveBack(0, 0)];
            last = explorer().process_deaths(true).run_then(&Logs { plan, spare: 3 }, &history, &AFTER[..1]);
        }
        last
    });
    println!("{sweep}");
    sweep.assert_all_caught(&[]);
}
