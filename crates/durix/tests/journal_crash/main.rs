//! Journaled databases over two simulated files, with a power failure at every write and sync, also in recovery and after the death of
//! the process; files whose calls fail; and syncs that are dropped, each of which must be noticed.
//!
//! `DURIX_DEEP=1` takes fifty times as many states.

mod sim;

use std::collections::BTreeMap;
use std::ops::Range;

use durix::{Db, Error, Level, Map, PoolOptions, Transaction};

use sim::{Event, Files, LIMIT, Mode, Name, Power, Sim};

/// What the two maps hold.
type State = [BTreeMap<u64, u64>; 2];

/// An operation: of the first map, of the second, or of both in a transaction, of the key and of another one in each. `None` removes.
#[derive(Clone, Copy, Debug)]
struct Step(&'static [usize], u64, Option<u64>);

/// How far the other key of a transaction is away.
const OTHER: u64 = 1000;

const STEPS: &[Step] = &[
    Step(&[0], 1, Some(10)),
    Step(&[1], 1, Some(11)),
    Step(&[0, 1], 2, Some(20)),
    Step(&[0], 1, Some(12)),
    Step(&[0], 3, Some(30)),
    Step(&[1], 1, None),
    Step(&[0, 1], 1, Some(40)),
    Step(&[0], 3, None),
    Step(&[1], 4, Some(50)),
    Step(&[0, 1], 5, Some(60)),
    Step(&[0, 1], 2, None),
    Step(&[0], 5, None),
    Step(&[1], 2, Some(61)),
    Step(&[0, 1], 6, Some(70)),
    Step(&[0], 7, Some(80)),
    Step(&[1], 7, Some(81)),
];

/// The states after each number of operations.
#[derive(Clone, Debug)]
struct Models {
    states: Vec<State>,
    /// How many operations may be found beyond those that have been waited for.
    more: usize,
}

impl Models {
    /// Those of the states that may be found where so many operations have been waited for.
    fn may(&self, least: usize) -> std::ops::RangeInclusive<usize> {
        least..=least.saturating_add(self.more).min(self.states.len() - 1)
    }
}

/// Each operation is waited for: at most the one that is under way may be found.
fn models(steps: &[Step]) -> Models {
    let mut states = vec![State::default()];
    for Step(maps, key, value) in steps {
        let mut state = states.last().unwrap().clone();
        let keys = if maps.len() == 1 { &[*key][..] } else { &[*key, *key + OTHER] };
        for (map, key) in maps.iter().flat_map(|map| keys.iter().map(move |key| (map, key))) {
            match value {
                Some(value) => _ = state[*map].insert(*key, *value),
                None => _ = state[*map].remove(key),
            }
        }
        states.push(state);
    }
    Models { states, more: 1 }
}

/// The kinds of the two maps.
type Kinds = [&'static str; 2];

fn options(level: Level) -> PoolOptions {
    let options = PoolOptions::new().chunk_size(4096).max_indices(6).lanes(2).initial_size(96 << 10).max_size(LIMIT);
    options.durability(level).journal_segment(4096).journal_limit(0)
}

fn over(pool: durix::Pool) -> Result<Db, Error> {
    Db::builder().no_background_threads().over(pool)
}

fn create(sim: &Sim, level: Level) -> Result<Db, Error> {
    over(options(level).create_journaled_on(sim.backing(), sim.place())?)
}

fn open(sim: &Sim) -> Result<Db, Error> {
    over(options(Level::Immediate).open_journaled_on(sim.backing(), sim.place())?.recover()?)
}

fn maps(db: &Db, kinds: Kinds) -> Result<[Map<u64, u64>; 2], Error> {
    Ok([db.map_of_kind("a", kinds[0])?, db.map_of_kind("b", kinds[1])?])
}

/// The changes of a step over both maps, in a transaction.
fn change(tx: &Transaction, maps: &[Map<u64, u64>; 2], Step(which, key, value): Step) -> Result<(), Error> {
    let keys = if which.len() == 1 { &[key][..] } else { &[key, key + OTHER] };
    which.iter().try_for_each(|map| {
        let map = tx.map(&maps[*map])?;
        keys.iter()
            .try_for_each(|key| value.map_or_else(|| map.remove(key), |value| map.insert(key, &value)).map(|_| ()))
    })
}

fn apply(db: &Db, maps: &[Map<u64, u64>; 2], step: Step) -> Result<(), Error> {
    let Step(which, key, value) = step;
    if let [map] = which {
        match value {
            Some(value) => maps[*map].insert(&key, &value).map(|_| ()),
            None => maps[*map].remove(&key).map(|_| ()),
        }
    } else {
        db.transaction(|tx: &Transaction| change(tx, maps, step))
    }
}

/// Makes a database, runs the steps, and closes it.
fn run(sim: &Sim, kinds: Kinds, steps: &[Step]) -> Result<(), Error> {
    let db = create(sim, Level::Immediate)?;
    let maps = maps(&db, kinds)?;
    sim.done(0);
    for (number, step) in steps.iter().enumerate() {
        apply(&db, &maps, *step)?;
        sim.done(number + 1);
    }
    drop(maps);
    db.close()
}

fn contents(maps: &[Map<u64, u64>; 2]) -> Result<State, Error> {
    let of = |map: &Map<u64, u64>| map.iter().collect::<Result<BTreeMap<_, _>, _>>();
    Ok([of(&maps[0])?, of(&maps[1])?])
}

/// All pages that have a checksum must have the right one. Returns whether there are checksums.
fn check_pages(db: &Db) -> Result<bool, String> {
    let pages = db.pool().check_pages().map_err(|error| error.to_string())?;
    if pages.damaged.is_empty() { Ok(pages.missing.is_none()) } else { Err(format!("damaged: {:?}", pages.damaged)) }
}

/// Opens what is there, and says which state it is in, of those that may be found from `least` on; then goes on working.
fn judge(sim: &Sim, kinds: Kinds, models: &Models, least: usize) -> Result<usize, String> {
    let told = |error: Error| error.to_string();
    let db = open(sim).map_err(told)?;
    let maps = maps(&db, kinds).map_err(told)?;
    let found = contents(&maps).map_err(told)?;
    let may = models.may(least);
    let state = may.clone().find(|state| models.states[*state] == found);
    let state = state.ok_or_else(|| format!("{may:?} expected, found {found:?}"))?;
    sim.done(state);
    let has_sums = check_pages(&db)?;
    for map in &maps {
        let findings = map.check().map_err(told)?;
        if !findings.is_empty() {
            return Err(format!("{findings:?}"));
        }
        map.insert(&99, &1).map_err(told)?;
        map.remove(&99).map_err(told)?;
    }
    if has_sums {
        db.pool().checkpoint_journal().map_err(|error| error.to_string())?;
        check_pages(&db)?;
    }
    Ok(state)
}

struct Random(u64);

impl Random {
    fn below(&mut self, bound: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % bound as u64) as usize
    }
}

fn budget() -> usize {
    if std::env::var_os("DURIX_DEEP").is_some() { 50 } else { 1 }
}

/// The states to look at behind one event.
fn modes(power: &Power, random: &mut Random) -> Vec<[Mode; 3]> {
    use Mode::{New, Old, OneNew, OneOld, Random};
    let [pool, journal, sums] = power.open();
    if pool + journal + sums == 0 {
        return vec![[New; 3]];
    }
    let mut modes = vec![[Old, Old], [Old, New], [New, Old], [New, New]];
    // With few choices in a file, each by itself.
    modes.extend((1..=pool.min(4)).map(|one| [OneNew(one), New]));
    modes.extend((1..=journal.min(4)).map(|one| [New, OneOld(one)]));
    for _ in 0..budget() {
        modes.push([Random, Random]);
        modes.push([OneNew(1 + random.below(pool + 1)), OneOld(1 + random.below(journal + 1))]);
    }
    // The checksums choose for themselves.
    let of_sums = |sums| modes.iter().map(move |[pool, journal]| [*pool, *journal, sums]);
    if sums == 0 { of_sums(New).collect() } else { [Old, New, Random].into_iter().flat_map(of_sums).collect() }
}

/// Crashes a trace behind each of its events. Returns the number of states, or the first failure.
fn crash_everywhere(
    base: &Files,
    events: &[Event],
    kinds: Kinds,
    models: &Models,
    (start, from): (usize, usize),
    every: usize,
    nested: bool,
) -> Result<usize, String> {
    let (mut power, mut random, mut states) = (Power::of(base), Random(0x9e37_79b9_7f4a_7c15), 0);
    power.done = start;
    let mut created = !base.is_none();
    for (at, event) in events.iter().enumerate() {
        power.step(event);
        created |= matches!(event, Event::Done(_));
        if at < from {
            continue;
        }
        if at % every != 0 && !matches!(event, Event::Done(_)) {
            continue;
        }
        for modes in modes(&power, &mut random) {
            let image = power.image(modes, &mut |bound| random.below(bound));
            let sim = Sim::of(image.clone());
            states += 1;
            match judge(&sim, kinds, models, power.done) {
                // It did not come to be.
                Err(_) if !created => continue,
                Err(error) => return Err(format!("event {at} ({modes:?}): {error}")),
                Ok(_) => {}
            }
            if nested && created && random.below(16) == 0 {
                // Up to the moment in which recovery has shown what there is.
                let trace = sim.disk().events.clone();
                let end = trace.iter().position(|event| matches!(event, Event::Done(_))).expect("it was judged");
                let trace = &trace[..=end];
                let inner = crash_everywhere(&image, trace, kinds, models, (power.done, 0), 7, false);
                states += inner.map_err(|error| format!("event {at} ({modes:?}), again: {error}"))?;
            }
        }
    }
    Ok(states)
}

fn trace(kinds: Kinds) -> Vec<Event> {
    let sim = Sim::of(Files::default());
    run(&sim, kinds, STEPS).unwrap();
    sim.disk().events.clone()
}

#[test]
fn every_state_after_a_power_failure_is_what_had_returned_or_one_more() {
    let kinds: [Kinds; 8] = [
        ["pset", "masstree"],
        ["hash-bytes", "skiplist"],
        ["hash", "dptree"],
        ["bst", "list"],
        ["bplustree", "masstree"],
        ["bplustree", "pset"],
        ["dptree", "bplustree"],
        ["masstree", "dptree"],
    ];
    let known: Vec<_> = durix::kind::kinds::<durix::Hardware>().iter().map(|kind| kind.name).collect();
    let mut states = 0;
    for kinds in kinds.into_iter().filter(|kinds| kinds.iter().all(|kind| known.contains(kind))) {
        let events = trace(kinds);
        let found = crash_everywhere(&Files::default(), &events, kinds, &models(STEPS), (0, 0), 4, true);
        let found = found.unwrap_or_else(|error| panic!("{kinds:?}: {error}"));
        println!("{kinds:?}: {found} states");
        states += found;
    }
    println!("{states} states");
    assert!(states > 500, "{states}");
}

/// The trace that the death of the process leaves behind some event: the visible files go on, and so does what is not synced.
fn after_death(events: &[Event], at: usize) -> Sim {
    let sim = Sim::of(Files::default());
    events[..=at].iter().for_each(|event| sim.disk().apply(event.clone()));
    sim
}

/// Kills the process at each write, has the next one recover and show what it finds, and then the power fails. Drops the first sync
/// of the journal of that recovery if asked to.
fn die_and_lose_power(drop_r1: bool) -> Result<usize, String> {
    let kinds = ["pset", "masstree"];
    let (events, models, mut random, mut states) = (trace(kinds), models(STEPS), Random(7), 0);
    let created = events.iter().position(|event| matches!(event, Event::Done(0))).unwrap();
    for at in (created..events.len()).filter(|at| is_write(&events[*at])) {
        // A record was written and not synced when the process died: the next one accepts it, and shows it.
        let sim = after_death(&events, at);
        let least = done(&events[..=at]);
        let shown = judge(&sim, kinds, &models, least).map_err(|error| format!("event {at}: {error}"))?;
        let mut trace = sim.disk().events.clone();
        if drop_r1 {
            let r1 = trace.iter().skip(at).position(|event| matches!(event, Event::Sync(Name::Journal))).unwrap();
            trace.remove(at + r1);
        }
        let mut power = Power::of(&Files::default());
        let mut showed = false;
        for (number, event) in trace.iter().enumerate() {
            power.step(event);
            showed |= number > at && matches!(event, Event::Done(_));
            if number <= at || (!showed && number % 3 != 0) {
                continue;
            }
            let expected = if showed { shown..=shown } else { models.may(least) };
            for modes in modes(&power, &mut random) {
                let image = Sim::of(power.image(modes, &mut |bound| random.below(bound)));
                let found = judge(&image, kinds, &models, *expected.start());
                if !found.as_ref().is_ok_and(|found| expected.contains(found)) {
                    return Err(format!("death at {at}, power failure at {number}: {found:?}, not {expected:?}"));
                }
                states += 1;
            }
            if showed {
                // What is done later is not in the models.
                break;
            }
        }
    }
    Ok(states)
}

#[test]
fn r1_what_a_process_shows_after_the_death_of_another_survives_a_power_failure() {
    let states = die_and_lose_power(false).unwrap();
    assert!(states > 200, "{states}");
    die_and_lose_power(true).expect_err("the sync of JN-R1 is needed");
}

fn is_write(event: &Event) -> bool {
    matches!(event, Event::Write(..))
}

fn done(events: &[Event]) -> usize {
    let of = |event: &Event| if let Event::Done(count) = event { Some(*count) } else { None };
    events.iter().rev().find_map(of).unwrap_or(0)
}

/// Whether what a sync makes durable is made so by the next one of the same file, before anything rests on it: the header of a
/// checkpoint that is followed by larger segments, and the state that is followed by the allocation of the file.
fn is_covered(events: &[Event], at: usize) -> bool {
    let Event::Sync(name) = events[at] else { return false };
    let next = events[at + 1..].iter().position(|event| matches!(event, Event::Sync(next) if *next == name));
    next.is_some_and(|next| {
        !events[at + 1..at + 1 + next].iter().any(|event| match event {
            Event::Done(_) => true,
            Event::Write(Name::Journal, at, _) => name == Name::Pool || *at >= 8192,
            Event::Write(Name::Pool, ..) => name == Name::Pool,
            _ => false,
        })
    })
}

/// Drops each sync among some events in turn. Returns how many there were, and those that nobody noticed.
fn drop_syncs(base: &Files, events: &[Event], models: &Models, among: Range<usize>) -> (usize, Vec<String>) {
    let (mut syncs, mut missed) = (0, Vec::new());
    for at in among.filter(|at| matches!(events[*at], Event::Sync(_)) && !is_covered(events, *at)) {
        let mut dropped = events.to_vec();
        let what = format!("{:?} after {}", dropped.remove(at), kind_of(&events[at - 1]));
        syncs += 1;
        if crash_everywhere(base, &dropped, SMALL, models, (0, at), 1, false).is_ok() {
            missed.push(format!("{at}: {what}"));
        }
    }
    (syncs, missed)
}

/// Kinds with small records, so that segments are filled and used again.
const SMALL: Kinds = ["pset", "hash"];

#[test]
fn every_sync_that_is_dropped_is_noticed() {
    // Each key once: a generation is not overwritten by the next one.
    let steps: Vec<Step> = (0..80).map(|i| Step(if i % 3 == 0 { &[0] } else { &[1] }, i, Some(i))).collect();
    let sim = Sim::of(Files::default());
    run(&sim, SMALL, &steps).unwrap();
    let events = sim.disk().events.clone();
    let created = events.iter().position(|event| matches!(event, Event::Done(0))).unwrap();
    let is_header = |event: &&Event| matches!(event, Event::Write(Name::Journal, at, _) if *at < 8192);
    let checkpoints = events[created..].iter().filter(is_header).count();
    assert!(checkpoints >= 3, "{checkpoints} checkpoints");
    let last = events.iter().rposition(|event| matches!(event, Event::Done(_))).unwrap();
    let (syncs, missed) = drop_syncs(&Files::default(), &events, &models(&steps), created..last);
    assert!(syncs >= steps.len() + checkpoints, "{syncs}, with {checkpoints} checkpoints");
    assert!(missed.is_empty(), "of {syncs} syncs these were dropped unnoticed: {missed:#?}");
}

/// With the file of checksums, which the tests above do without: each state after a power failure has pages that are all sound, and each sync of
/// that file is needed for it.
#[test]
fn with_checksums_all_pages_are_sound_after_a_power_failure_and_every_sync_of_theirs_is_needed() {
    let steps: Vec<Step> = (0..40).map(|i| Step(if i % 3 == 0 { &[0] } else { &[1] }, i, Some(i))).collect();
    let sim = Sim::of(Files::with_sums());
    run(&sim, SMALL, &steps).unwrap();
    let (base, events, models) = (Files::with_sums(), sim.disk().events.clone(), models(&steps));
    let created = events.iter().position(|event| matches!(event, Event::Done(0))).unwrap();
    let states = crash_everywhere(&base, &events, SMALL, &models, (0, created), 3, true).unwrap();
    assert!(states > 200, "{states}");
    let is_sync = |at: &usize| matches!(events[*at], Event::Sync(Name::Sums));
    let syncs: Vec<usize> = (created..events.len()).filter(is_sync).collect();
    assert!(syncs.len() >= 3, "{} checkpoints", syncs.len());
    for at in &syncs[..syncs.len() - 1] {
        let mut dropped = events.clone();
        dropped.remove(*at);
        let noticed = crash_everywhere(&base, &dropped, SMALL, &models, (0, *at), 1, false);
        noticed.expect_err(&format!("the sync of the checksums, event {at}, was dropped unnoticed"));
    }
}

/// At intervals, with nobody who keeps them: every fifth operation is a transaction that waits for its commit, after every seventh there
/// is a barrier, and some commits come by themselves, as those of the service do: after a round of the epochs. So do half of the
/// barriers. What was waited for, and all before it, is marked as done.
fn run_at_intervals(sim: &Sim, kinds: Kinds, steps: &[Step]) -> Result<(), Error> {
    let db = create(sim, Level::Interval(std::time::Duration::from_secs(3600)))?;
    let maps = maps(&db, kinds)?;
    db.sync()?;
    sim.done(0);
    let mut session = db.pool().session()?;
    for (number, step) in steps.iter().enumerate() {
        if number % 5 == 4 {
            db.transaction(|tx: &Transaction| {
                tx.durability(Level::Immediate);
                change(tx, &maps, *step)
            })?;
            sim.done(number + 1);
        } else {
            apply(&db, &maps, *step)?;
        }
        if number % 3 == 1 || number % 14 == 6 {
            db.pool().epochs()?.write_ahead(&mut session)?;
        }
        if number % 7 == 6 {
            db.sync()?;
            sim.done(number + 1);
        } else if number % 3 == 1 {
            db.pool().commit(&mut session)?;
        }
    }
    drop((maps, session));
    db.close()
}

#[test]
fn at_intervals_a_crash_leaves_one_state_of_all_maps_not_older_than_the_last_barrier() {
    let steps: Vec<Step> = (0..5)
        .flat_map(|_| STEPS.iter().copied())
        .enumerate()
        .map(|(number, Step(maps, key, value))| {
            // No state comes twice, or it would pass for an older one.
            Step(maps, key, value.map(|value| value + 1000 * number as u64))
        })
        .collect();
    for kinds in [["pset", "masstree"], ["masstree", "hash-bytes"]] {
        let sim = Sim::of(Files::default());
        run_at_intervals(&sim, kinds, &steps).unwrap();
        let (events, models) = (sim.disk().events.clone(), Models { more: usize::MAX, ..models(&steps) });
        let created = events.iter().position(|event| matches!(event, Event::Done(0))).unwrap();
        let is_header = |event: &&Event| matches!(event, Event::Write(Name::Journal, at, _) if *at < 8192);
        assert!(events[created..].iter().filter(is_header).count() >= 2, "{kinds:?}: too few checkpoints");
        let none = Files::default();
        let states = crash_everywhere(&none, &events, kinds, &models, (0, created), 2, true);
        let states = states.unwrap_or_else(|error| panic!("{kinds:?}: {error}"));
        assert!(states > 300, "{states}");
        // The death of the process leaves all that was written: a state not older either, and without a torn page.
        for at in (created..events.len()).step_by(7) {
            let least = done(&events[..=at]);
            judge(&after_death(&events, at), kinds, &models, least)
                .unwrap_or_else(|error| panic!("{kinds:?}, {at}: {error}"));
        }
        // A barrier, or a transaction that waits, is worth something only by the syncs since the one before. (A transaction over both maps may
        // have a sync more, for its remains: so all of them are dropped.)
        let barriers = (created + 1..events.len()).filter(|at| matches!(events[*at], Event::Done(_)));
        let (mut needed, mut last) = (0, created);
        for barrier in barriers {
            if done(&events[..=barrier]) > done(&events[..=last]) {
                let since = |at: usize| at > last && matches!(events[at], Event::Sync(Name::Journal));
                let kept = (0..=barrier).filter(|at| !since(*at)).map(|at| events[at].clone()).collect::<Vec<_>>();
                crash_everywhere(&none, &kept, kinds, &models, (0, kept.len() - 1), 1, false)
                    .expect_err(&format!("{kinds:?}: nothing was synced before barrier {barrier}, unnoticed"));
                needed += 1;
            }
            last = barrier;
        }
        assert!(needed >= steps.len() / 5, "{kinds:?}: {needed} barriers");
    }
}

#[test]
fn every_sync_of_recovery_and_opening_that_is_dropped_is_noticed() {
    let sim = Sim::of(Files::default());
    let db = create(&sim, Level::Immediate).unwrap();
    let maps_of = maps(&db, SMALL).unwrap();
    let steps: Vec<Step> = (0..6).map(|i| Step(&[0, 1], i, Some(i))).collect();
    steps.iter().for_each(|step| apply(&db, &maps_of, *step).unwrap());
    let base = sim.visible();
    drop((maps_of, db));
    // What was left is all durable; the next process finds it, works, and is cut off.
    let sim = Sim::of(base.clone());
    let db = open(&sim).unwrap();
    sim.done(0);
    let opened = sim.disk().events.len();
    let maps = maps(&db, SMALL).unwrap();
    apply(&db, &maps, Step(&[0], 100, Some(1))).unwrap();
    sim.done(1);
    let events = sim.disk().events.clone();
    let all = models(&steps.iter().copied().chain([Step(&[0], 100, Some(1))]).collect::<Vec<_>>());
    let all = Models { states: all.states[steps.len()..].to_vec(), more: 1 };
    let (syncs, missed) = drop_syncs(&base, &events, &all, 0..opened);
    // The allocation of the file comes after JN-R3, which it repeats. JN-J2<JN-J3 counts where sectors tear: both words lie in one.
    assert_eq!(syncs, 5, "JN-R2, the allocation of the file, JN-J1 to JN-J3; JN-R1 has a test of its own");
    assert!(missed.len() == 2 && missed[0].contains("Sync(Pool) after Sync(Pool)"), "{missed:#?}");
    assert!(missed[1].contains("64 bytes to Pool at 0x80"), "{missed:#?}");
}

/// An event without its bytes.
fn kind_of(event: &Event) -> String {
    match event {
        Event::Write(name, at, bytes) => format!("a write of {} bytes to {name:?} at {at:#x}", bytes.len()),
        other => format!("{other:?}"),
    }
}

#[test]
fn an_update_costs_one_sync_of_the_journal_and_no_other_call() {
    for kinds in [["pset", "masstree"], ["hash-bytes", "skiplist"]] {
        let sim = Sim::of(Files::default());
        let options = options(Level::Immediate).journal_segment(1 << 20);
        let db = over(options.create_journaled_on(sim.backing(), sim.place()).unwrap()).unwrap();
        let maps = maps(&db, kinds).unwrap();
        maps.iter().for_each(|map| _ = map.insert(&1, &1).unwrap());
        for map in &maps {
            for key in 2..20 {
                let before = sim.disk().events.len();
                map.insert(&key, &key).unwrap();
                let calls: Vec<_> = sim.disk().events[before..].iter().map(kind_of).collect();
                let [write, sync] = &calls[..] else { panic!("{kinds:?}: {calls:?}") };
                assert!(write.contains("to Journal") && sync == "Sync(Journal)", "{calls:?}");
                map.get(&key).unwrap();
                assert_eq!(sim.disk().events.len(), before + 2, "a read costs no call");
            }
        }
    }
}

#[test]
fn a_sync_that_fails_once_ends_the_pool_and_loses_nothing_that_had_returned() {
    let kinds = ["pset", "masstree"];
    let models = models(STEPS);
    let mut failures = 0;
    for nth in 1.. {
        for short_write in [false, true] {
            let sim = Sim::of(Files::default());
            let db = create(&sim, Level::Immediate).unwrap();
            let maps = maps(&db, kinds).unwrap();
            let countdown = Some(nth);
            if short_write {
                sim.disk().fail_write = countdown;
            } else {
                sim.disk().fail_sync = countdown;
            }
            let mut returned = 0;
            let failed = STEPS.iter().find_map(|step| {
                let failed = apply(&db, &maps, *step).err();
                returned += usize::from(failed.is_none());
                failed
            });
            let Some(failed) = failed else {
                assert!(nth > STEPS.len(), "a fault that nobody met");
                assert!(failures > 2 * STEPS.len(), "{failures}");
                return;
            };
            failures += 1;
            assert!(failed.to_string().starts_with("the journal of pool failed: "), "{failed}");
            let (again, read) = (maps[0].insert(&7, &7).unwrap_err(), maps[1].get(&1).unwrap_err());
            assert!(
                again.to_string() == failed.to_string() && read.to_string() == failed.to_string(),
                "{again}; {read}"
            );
            drop(maps);
            assert!(db.close().is_err());
            drop(db);
            // The process that opens it next, and a power failure at once.
            let trace = sim.disk().events.clone();
            let mut power = Power::of(&Files::default());
            trace.iter().for_each(|event| power.step(event));
            let mut random = Random(nth as u64);
            for modes in modes(&power, &mut random) {
                let image = Sim::of(power.image(modes, &mut |bound| random.below(bound)));
                judge(&image, kinds, &models, returned).unwrap_or_else(|error| panic!("{nth} {short_write}: {error}"));
            }
            judge(&sim, kinds, &models, returned).unwrap();
        }
    }
}

#[test]
fn a_full_disk_is_an_error_of_the_call_that_needs_room() {
    let sim = Sim::of(Files::default());
    let db = create(&sim, Level::Immediate).unwrap();
    let [map, _] = maps(&db, ["hash-bytes", "masstree"]).unwrap();
    let used: u64 = sim.visible().bytes();
    sim.disk().room = Some(used + (64 << 10));
    let mut returned = 0;
    let refused = loop {
        match map.insert(&returned, &1) {
            Ok(_) => returned += 1,
            Err(error) => break error,
        }
    };
    assert!(refused.to_string().contains("no room") || refused.to_string().contains("full"), "{refused}");
    assert!(returned > 100, "{returned}");
    assert_eq!(map.get(&0).unwrap(), Some(1), "the pool goes on");
    sim.disk().room = None;
    map.insert(&returned, &1).unwrap();
    let image = Sim::of(sim.visible());
    let db = open(&image).unwrap();
    let [map, _] = maps(&db, ["hash-bytes", "masstree"]).unwrap();
    assert_eq!(map.count().unwrap(), returned + 1);
}

#[test]
fn a_journal_that_is_missing_foreign_or_damaged_is_told_apart() {
    let kinds = ["pset", "masstree"];
    let open_pool = || {
        let sim = Sim::of(Files::default());
        let db = create(&sim, Level::Immediate).unwrap();
        maps(&db, kinds).unwrap()[0].insert(&1, &1).unwrap();
        // As a killed process would leave it.
        let files = sim.visible();
        let record = |event: &Event| if let Event::Write(Name::Journal, at, _) = event { Some(*at) } else { None };
        let last = sim.disk().events.iter().rev().find_map(record).unwrap();
        drop(db);
        (files, last as usize)
    };
    let ((Files { pool, journal, .. }, last), (Files { journal: other, .. }, _)) = (open_pool(), open_pool());
    let said = |journal: Option<Vec<u8>>| open(&Sim::of(Files::of(pool.clone(), journal))).unwrap_err().to_string();
    assert!(said(None).contains("its journal pool-journal is not there"), "{}", said(None));
    assert!(said(other.clone()).contains("it belongs to pool "), "{}", said(other));
    let good = journal.clone().unwrap();
    let mut bad = good.clone();
    bad[40] ^= 1;
    bad[4096 + 40] ^= 1;
    assert!(said(Some(bad)).contains("no sound header"));
    assert!(said(Some(good[..9000].to_vec())).contains("its header speaks of "));
    assert!(said(Some(Vec::new())).contains("no sound header"));
    // An older copy of the same pool, with the journal of today.
    let again = Sim::of(Files::of(pool.clone(), journal.clone()));
    let db = open(&again).unwrap();
    let today = again.visible().journal;
    drop(db);
    assert!(said(today.clone()).contains("it belongs to another opening of this pool"), "{}", said(today));
    // Whoever insists gets it as it is.
    let sim = Sim::of(Files::of(pool.clone(), None));
    let insisting = options(Level::Immediate).accept_unclean(true);
    assert!(insisting.open_journaled_on(sim.backing(), sim.place()).is_ok());
    // A record that is torn was not acknowledged.
    let mut torn = good;
    torn[last + 100] ^= 1;
    let db = open(&Sim::of(Files::of(pool, Some(torn)))).unwrap();
    assert!(maps(&db, kinds).unwrap()[0].is_empty().unwrap(), "a torn record was taken");
}

#[test]
fn no_read_returns_what_a_power_failure_can_take_back() {
    use std::sync::mpsc::channel;
    use std::time::Duration;
    for kinds in [["pset", "masstree"], ["hash-bytes", "skiplist"]] {
        let sim = Sim::of(Files::default());
        let db = create(&sim, Level::Immediate).unwrap();
        let maps = maps(&db, kinds).unwrap();
        for map in &maps {
            map.insert(&1, &1).unwrap();
            map.insert(&2, &2).unwrap();
            // From now on the map has a lock table.
            db.transaction(|tx| tx.map(map)?.get(&2)).unwrap();
            let (held, (told, tells)) = (sim.hold_syncs(), channel());
            std::thread::scope(|s| {
                s.spawn(|| map.insert(&1, &100).unwrap());
                held.wait_for_a_sync();
                // The new value is visible, and its flush is under way.
                let seen = map.index().get_vec(&db.pool().session().unwrap().enter().unwrap(), &1u64.to_be_bytes());
                assert!(seen.unwrap().is_some());
                assert_eq!(map.get(&2).unwrap(), Some(2), "other keys do not wait");
                type Read = fn(&Db, &Map<u64, u64>) -> Option<u64>;
                let reads: [Read; 4] = [
                    |_, map| map.get(&1).unwrap(),
                    |_, map| map.iter().last().map(|_| 100),
                    |db, map| db.transaction(|tx| tx.map(map)?.get(&1)).unwrap(),
                    |db, map| db.transaction(|tx| Ok(tx.map(map)?.iter()?.last().map(|_| 100))).unwrap(),
                ];
                for read in reads {
                    let (told, db) = (told.clone(), &db);
                    s.spawn(move || told.send(read(db, map)).unwrap());
                }
                let early = tells.recv_timeout(Duration::from_millis(30));
                assert!(early.is_err(), "a read came back before the flush: {early:?}");
                drop(held);
                for _ in reads {
                    assert_eq!(tells.recv_timeout(Duration::from_secs(60)), Ok(Some(100)));
                }
            });
        }
    }
}

/// Bytes that calls write to the journal, and syncs of it; no other call is made.
fn journal_cost(sim: &Sim, call: impl FnOnce()) -> (usize, usize) {
    let before = sim.disk().events.len();
    call();
    let disk = sim.disk();
    disk.events[before..].iter().fold((0, 0), |(bytes, syncs), event| match event {
        Event::Write(Name::Journal, _, written) => (bytes + written.len(), syncs),
        Event::Sync(Name::Journal) => (bytes, syncs + 1),
        other => panic!("{}", kind_of(other)),
    })
}

/// A commit holds the changes of a transaction and nothing else: no intents, which took two lines and more. The figures are in
/// `docs/design/transactions.md`.
#[test]
fn a_transaction_writes_no_record_of_its_own_to_a_journaled_pool() {
    // Bytes of the journal.
    let expected: [(Kinds, usize); 5] = [
        (["pset", "hash"], 208),
        (["hash", "skiplist"], 280),
        (["bplustree", "hash"], 208),
        (["dptree", "hash"], 208),
        (["masstree", "hash"], 344),
    ];
    let mut found = Vec::new();
    for (kinds, _) in expected {
        let sim = Sim::of(Files::default());
        let options = options(Level::Immediate).journal_segment(1 << 20);
        let db = over(options.create_journaled_on(sim.backing(), sim.place()).unwrap()).unwrap();
        let maps = maps(&db, kinds).unwrap();
        let both = |value: u64| {
            let set = |tx: &Transaction| maps.iter().try_for_each(|map| tx.map(map)?.insert(&1, &value).map(drop));
            db.transaction(set).unwrap();
        };
        (0..8).for_each(both);
        let costs: Vec<_> = (8..16).map(|value| journal_cost(&sim, || both(value))).collect();
        println!("{kinds:?}: {costs:?}");
        assert!(costs.iter().all(|(_, syncs)| *syncs == 1), "{kinds:?}: {costs:?}");
        found.push((kinds, costs.iter().map(|(written, _)| *written).min().unwrap()));
        drop(maps);
        db.close().unwrap();
        let pool = sim.visible().pool.unwrap();
        let name = b"#transactions";
        assert!(pool.windows(name.len()).all(|bytes| bytes != name), "{kinds:?}: a log was made");
    }
    assert_eq!(found, expected);
}

/// A transaction that a full pool refuses has changed nothing, in memory and in what a crash leaves; removals make room.
#[test]
fn a_full_journaled_pool_undoes_what_it_has_begun() {
    for kinds in
        [["pset", "hash-values"], ["bplustree", "skiplist-values"], ["masstree", "hash-bytes"], ["dptree", "bplustree"]]
    {
        let sim = Sim::of(Files::default());
        let db = create(&sim, Level::Immediate).unwrap();
        let open = |db: &Db| -> (Map<u64, u64>, Map<u64, Vec<u8>>) {
            (db.map_of_kind("a", kinds[0]).unwrap(), db.map_of_kind("b", kinds[1]).unwrap())
        };
        let maps = open(&db);
        let contents = |maps: &(Map<u64, u64>, Map<u64, Vec<u8>>)| -> (BTreeMap<u64, u64>, BTreeMap<u64, Vec<u8>>) {
            let (a, b) = maps;
            (a.iter().collect::<Result<_, _>>().unwrap(), b.iter().collect::<Result<_, _>>().unwrap())
        };
        let mut model = (BTreeMap::new(), BTreeMap::new());
        let (mut done, mut refused) = (0, 0);
        // New keys, until there is no room; then old ones, which need room for the new values beside the old ones.
        for turn in 0..400u64 {
            let (key, value) = (if refused < 3 { turn } else { turn % 20 }, vec![turn as u8; 2000 + turn as usize]);
            let set = |tx: &Transaction| {
                tx.map(&maps.0)?.insert(&key, &turn)?;
                tx.map(&maps.1)?.insert(&key, &value)?;
                tx.map(&maps.1)?.insert(&(key + OTHER), &value).map(drop)
            };
            match db.transaction(set) {
                Ok(()) => {
                    done += 1;
                    model.0.insert(key, turn);
                    model.1.extend([(key, value.clone()), (key + OTHER, value)]);
                }
                Err(Error::Pool(durix_pmem::Error::Full { .. })) => refused += 1,
                Err(error) => panic!("{kinds:?}: {error}"),
            }
            if refused > 12 {
                break;
            }
        }
        println!("{kinds:?}: {done} transactions, {refused} were refused");
        assert!(done > 20 && refused > 12, "{kinds:?}: {done}, {refused}");
        assert!(contents(&maps) == model, "{kinds:?}: something has changed");
        for key in 0..5 {
            db.transaction(|tx| {
                tx.map(&maps.0)?.remove(&key)?;
                tx.map(&maps.1)?.remove(&key)?;
                tx.map(&maps.1)?.remove(&(key + OTHER)).map(drop)
            })
            .unwrap();
            model.0.remove(&key);
            model.1.remove(&key);
            model.1.remove(&(key + OTHER));
        }
        assert!(contents(&maps) == model, "{kinds:?}: after removals");
        let again = open_killed(&sim);
        assert!(contents(&open(&again)) == model, "{kinds:?}: after a crash");
    }
}

/// What the death of the process leaves now, opened.
fn open_killed(sim: &Sim) -> Db {
    open(&Sim::of(sim.visible())).unwrap()
}
