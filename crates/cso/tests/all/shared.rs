//! Shared logs: threads, the global order, crashes.

use std::collections::BTreeSet;
use std::sync::Mutex;

use durix_crashsim::{Explorer, Simulated, Sites, Subject, mutation_sweeps};
use durix_cso::log::{Error, LinesLog, OneLine, Region, SharedLog, SharedOptions, VbLog};
use durix_pmem::{Counting, Hardware, Mapping, Medium, Mutating, Op, Plan, Session, SiteKind};

type Lanes = SharedLog<VbLog<OneLine>>;

fn options(lanes: u64) -> SharedOptions<VbLog<OneLine>> {
    SharedOptions { lanes, lane: () }
}

fn region(lines: u64) -> Region {
    Region { off: 4096, len: 64 + lines * 64 }
}

fn contents<M: Medium>(op: &Op<'_, M>, log: &Lanes) -> Vec<(u64, u64)> {
    let mut found = Vec::new();
    log.for_each(op, |number, record| found.push((number, record.word(0))));
    found
}

#[test]
fn threads_append_side_by_side_and_the_order_is_one() {
    let mapping = Mapping::heap(1 << 20, Hardware::PAGE_CACHE);
    let mut session = mapping.session().unwrap();
    let region = Region { off: 4096, len: 900 << 10 };
    let log = SharedLog::<LinesLog>::format(&session.enter().unwrap(), region, &SharedOptions::default()).unwrap();
    let appended = Mutex::new(Vec::new());
    std::thread::scope(|s| {
        for thread in 0..4u64 {
            let (log, mapping, appended) = (&log, &mapping, &appended);
            s.spawn(move || {
                let mut session = mapping.session().unwrap();
                let mut mine = Vec::new();
                for i in 0..200 {
                    let op = session.enter().unwrap();
                    let number = log.append(&op, thread as u8, &(thread << 32 | i).to_le_bytes()).unwrap();
                    mine.push((number, thread << 32 | i));
                }
                assert!(mine.is_sorted(), "a thread's own records are in its order");
                appended.lock().unwrap().extend(mine);
            });
        }
    });
    let mut appended = appended.into_inner().unwrap();
    appended.sort_unstable();
    let op = session.enter().unwrap();
    let log = SharedLog::<LinesLog>::recover(&op, region).unwrap();
    let mut found = Vec::new();
    log.for_each(&op, |number, record| {
        assert_eq!(u64::from(record.tag()), record.word(0) >> 32);
        found.push((number, record.word(0)));
    });
    assert_eq!(found, appended);
    assert_eq!(log.next_number(&op), 800);
    assert_eq!(log.check(&op), []);
}

#[test]
fn one_fence_and_no_locked_instruction_between_write_back_and_fence() {
    let counting = Counting::new(Hardware::PAGE_CACHE);
    let mapping = Mapping::heap(1 << 16, counting);
    let mut session = mapping.session().unwrap();
    let op = session.enter().unwrap();
    let log = Lanes::format(&op, region(32), &options(2)).unwrap();
    let before = counting.counts();
    log.append(&op, 0, &[1; 48]).unwrap();
    let cost = counting.counts() - before;
    assert_eq!((cost.write_backs, cost.fences, cost.locked, cost.implicit_drains), (1, 1, 2, 0));
    let before = counting.counts();
    log.trim(&op, 1).unwrap();
    let cost = counting.counts() - before;
    assert_eq!((cost.write_backs, cost.fences), (1, 0), "only the lane with records is trimmed");
}

#[test]
fn numbers_go_on_after_everything_was_trimmed() {
    let mapping = Mapping::heap(1 << 16, Hardware::PAGE_CACHE);
    let mut session = mapping.session().unwrap();
    let op = session.enter().unwrap();
    let mut log = Lanes::format(&op, region(32), &options(2)).unwrap();
    for i in 0..5u64 {
        assert_eq!(log.append_words(&op, 0, &[i]).unwrap(), i);
    }
    log.trim(&op, 100).unwrap();
    log.commit(&op);
    for next in 5..8 {
        log = Lanes::recover(&op, region(32)).unwrap();
        assert_eq!(log.append_words(&op, 0, &[next]).unwrap(), next);
    }
    log.trim(&op, 6).unwrap();
    assert_eq!(contents(&op, &log), [(6, 6), (7, 7)]);
}

#[test]
fn what_is_no_shared_log_is_an_error() {
    let mapping = Mapping::heap(1 << 16, Hardware::PAGE_CACHE);
    let mut session = mapping.session().unwrap();
    let op = session.enter().unwrap();
    assert!(matches!(Lanes::recover(&op, region(32)), Err(Error::NotALog { .. })));
    assert!(matches!(Lanes::format(&op, region(32), &options(3)), Err(Error::BadOption { .. })));
    assert!(matches!(Lanes::format(&op, region(3), &options(8)), Err(Error::BadRegion { .. })));
    Lanes::format(&op, region(32), &options(2)).unwrap();
    for word in [0u64, 1, 2, 3, 7] {
        for bit in 0..64 {
            let word: &durix_pmem::Word = op.at(durix_pmem::Off::new(4096 + word * 8));
            let value = op.load(word, std::sync::atomic::Ordering::Relaxed);
            op.store(word, value ^ 1 << bit, std::sync::atomic::Ordering::Relaxed);
            Lanes::recover(&op, region(32)).unwrap_err();
            op.store(word, value, std::sync::atomic::Ordering::Relaxed);
        }
    }
    Lanes::recover(&op, region(32)).unwrap();
}

/// Two sessions, a lane each; in the beginning an empty log, or none.
struct Two {
    plan: &'static Plan,
    none: bool,
}

#[derive(Clone, Debug)]
enum Do {
    Append(usize),
    /// Tells the model that a trim is coming.
    WillTrim(u64),
    /// Trims, and makes it durable.
    Trim(u64),
    WillFormat,
    Format,
    /// The process dies and starts again; the power stays on.
    Reopen,
}

struct Live {
    sessions: [Session<Mutating<Simulated>>; 2],
    log: Option<Lanes>,
    next: u64,
}

/// Numbers with the session that appended them.
type Seen = Option<Vec<(u64, u64)>>;

#[derive(Clone, Debug)]
enum State {
    Found(Seen),
    Allowed(BTreeSet<Seen>),
}

impl PartialEq for State {
    fn eq(&self, other: &State) -> bool {
        match (self, other) {
            (State::Found(f), State::Allowed(a)) | (State::Allowed(a), State::Found(f)) => a.contains(f),
            (State::Found(a), State::Found(b)) => a == b,
            (State::Allowed(a), State::Allowed(b)) => a == b,
        }
    }
}

/// The number of an append, or the least that it may be.
#[derive(Clone, Debug)]
enum Number {
    Is(u64),
    AtLeast(u64),
}

impl PartialEq for Number {
    fn eq(&self, other: &Number) -> bool {
        match (self, other) {
            (Number::Is(a), Number::AtLeast(b)) | (Number::AtLeast(b), Number::Is(a)) => a >= b,
            (Number::Is(a), Number::Is(b)) | (Number::AtLeast(a), Number::AtLeast(b)) => a == b,
        }
    }
}

#[derive(Clone, Default)]
struct Model {
    records: Vec<(u64, u64)>,
    next: u64,
    trimming: Option<u64>,
    formatting: bool,
}

impl Subject for Two {
    type Op = Do;
    type Ret = Number;
    type State = State;
    type Model = Model;
    type Store = Mapping<Mutating<Simulated>>;
    type Live = Live;

    fn store(&self, medium: Simulated) -> Self::Store {
        Mapping::heap(8192, Mutating::new(medium, self.plan))
    }

    fn create(&self, store: &Self::Store) -> Live {
        let mut sessions = [store.session().unwrap(), store.session().unwrap()];
        let format = |op: Op<'_, _>| Lanes::format(&op, region(10), &options(2)).unwrap();
        let log = (!self.none).then(|| format(sessions[0].enter().unwrap()));
        Live { sessions, log, next: 0 }
    }

    fn recover(&self, store: &Self::Store) -> Result<Live, String> {
        let mut sessions = [store.session().unwrap(), store.session().unwrap()];
        let op = sessions[0].enter().unwrap();
        let log = match Lanes::recover(&op, region(10)) {
            Ok(log) => Some(log),
            Err(Error::NotALog { .. }) => None,
            Err(other) => return Err(other.to_string()),
        };
        drop(op);
        Ok(Live { sessions, log, next: 0 })
    }

    fn apply(&self, live: &mut Live, what: &Do) -> Number {
        if matches!(what, Do::Reopen) {
            let mapping = live.sessions[0].mapping().clone();
            live.sessions = [mapping.session().unwrap(), mapping.session().unwrap()];
            let op = live.sessions[0].enter().unwrap();
            live.log = Some(Lanes::recover(&op, region(10)).unwrap());
            return Number::Is(0);
        }
        if matches!(what, Do::Format) || live.log.is_none() {
            let op = live.sessions[0].enter().unwrap();
            live.log = Some(Lanes::format(&op, region(10), &options(2)).unwrap());
        }
        let log = live.log.as_ref().unwrap();
        match what {
            Do::Append(session) => {
                let op = live.sessions[*session].enter().unwrap();
                let number = log.append_words(&op, 0, &[*session as u64]).unwrap();
                live.next = number + 1;
                return Number::Is(number);
            }
            Do::Trim(number) => {
                let op = live.sessions[1].enter().unwrap();
                log.trim(&op, *number).unwrap();
                op.fence();
            }
            _ => {}
        }
        Number::Is(0)
    }

    fn observe(&self, live: &mut Live) -> State {
        let op = live.sessions[0].enter().unwrap();
        State::Found(live.log.as_ref().map(|log| contents(&op, log)))
    }

    fn check(&self, live: &mut Live) -> Vec<String> {
        let op = live.sessions[0].enter().unwrap();
        let findings = live.log.as_ref().map(|log| log.check(&op)).unwrap_or_default();
        findings.into_iter().map(|(lane, f)| format!("lane {lane}: {f:?}")).collect()
    }

    fn model(&self) -> Model {
        Model { formatting: self.none, ..Model::default() }
    }

    fn step(&self, model: &mut Model, what: &Do) -> Number {
        match what {
            Do::Append(session) => {
                model.records.push((model.next, *session as u64));
                model.next += 1;
                return Number::AtLeast(model.next - 1);
            }
            Do::WillTrim(number) => model.trimming = Some(*number),
            Do::Trim(number) => {
                model.records.retain(|r| r.0 >= *number);
                model.trimming = None;
            }
            Do::WillFormat => model.formatting = true,
            Do::Format => *model = Model::default(),
            Do::Reopen => {}
        }
        Number::Is(0)
    }

    fn expect(&self, model: &Model) -> State {
        if model.formatting && self.none {
            return State::Allowed(BTreeSet::from([None, Some(Vec::new())]));
        }
        let mut allowed = BTreeSet::from([Some(model.records.clone())]);
        if let Some(number) = model.trimming {
            for lanes in [vec![0], vec![1], vec![0, 1]] {
                let kept = |r: &&(u64, u64)| r.0 >= number || !lanes.contains(&r.1);
                allowed.insert(Some(model.records.iter().filter(kept).copied().collect()));
            }
        }
        if model.formatting {
            allowed.extend([None, Some(Vec::new())]);
        }
        State::Allowed(allowed)
    }
}

const RUNS: [(&[Do], &[Do]); 5] = [
    (&[Do::Format, Do::Append(0)], &[]),
    (&[Do::Append(0), Do::Append(1), Do::Append(1), Do::WillTrim(2), Do::Trim(2), Do::Append(0), Do::Append(1)], &[]),
    (
        &[Do::Append(0), Do::Append(0), Do::Append(1), Do::WillTrim(9), Do::Trim(3)],
        // Whatever the crash has left, numbers that were given are not given again.
        &[Do::Trim(9), Do::Reopen],
    ),
    (&[Do::Append(0), Do::Append(1), Do::Reopen, Do::WillFormat, Do::Format, Do::Append(1)], &[]),
    (&[Do::Append(1), Do::WillTrim(1), Do::Trim(1)], &[Do::Append(1)]),
];

fn run(plan: &'static Plan, crashes: usize) -> durix_crashsim::Report {
    let mut total = durix_crashsim::Report::default();
    for (number, (ops, after)) in RUNS.into_iter().enumerate() {
        let two = Two { plan, none: number == 0 };
        let report = Explorer::new().crashes(crashes).executions_per_point(5_000).run_then(&two, ops, after);
        let failed = report.failure.is_some();
        total.merge(report);
        if failed {
            break;
        }
    }
    total
}

#[test]
fn every_crash_leaves_what_was_appended_and_no_number_is_given_twice() {
    let report = run(Plan::new(), 2).assert_ok();
    println!("{report}");
    assert!(report.complete);
}

#[test]
fn every_write_back_and_fence_is_needed() {
    let mut sites = Sites::in_files("cso/src/log/shared");
    sites.kinds.push(SiteKind::Release);
    // The order of floor and head (CS-T1) matters to shared logs only; the ring's other sites are swept with each kind.
    let mut ring = Sites::in_files("cso/src/log/ring");
    ring.kinds = vec![SiteKind::Release];
    let mut sweeps = mutation_sweeps([&sites, &ring], |plan| run(plan, 1));
    let ring = sweeps.pop().expect("two sweeps");
    for sweep in sweeps {
        println!("{}", sweep.assert_all_caught(&[]));
    }
    println!("{ring}");
    assert!(ring.mutants.iter().any(|m| m.caught()), "{ring}");
}
