//! What the figures of the durable Masstree (ASPLOS'19, section 6) share.
//!
//! | contestant | what it is |
//! |---|---|
//! | MT+ | our tree without any logging: the same code, the same memory, the same barrier every 64 ms |
//! | INCLL | the durable tree: InCLL and the external log, all lines that an epoch has dirtied written back at its end |
//! | LOGGING | the durable tree without InCLL: every node that an epoch changes is written to the external log first |
//!
//! Keys and values are 8 bytes; keys are scrambled, so that those that are often drawn do not lie together. A phase of a round
//! is a number of **whole epochs**: it begins right behind a boundary and ends right behind one, so that every line that its
//! operations have dirtied is written back within its time. Which keys are drawn is decided before, not within that time, and
//! is the same for all contestants.

use std::hint::black_box;
use std::ops::{Bound, ControlFlow};
use std::time::Duration;

use durix_incll::{
    BareOptions, Durable, InteriorInLine, LoggingOnly, Masstree, Pointers, Policy, Transient, Transient15,
};
use durix_pmem::{Mapping, Medium, Session};

use crate::interleave::{LEAST_ROUNDS, Outcome, Series, Stopwatch};
use crate::paper::figure::{Context, Error, Figure, Measured};
use crate::paper::report::{Form, Panel};
use crate::place::Place;
pub(in crate::paper) use crate::workload::{Random, key};
use crate::workload::{Zipf, medium};

/// Where all of it stands in the paper.
pub(in crate::paper) const SOURCE: &str =
    "Cohen, Aksun, Avni, Larus: Fine-Grain Checkpointing with In-Cache-Line Logging (ASPLOS'19), section 6";

/// Time between boundaries, as in the paper.
const EPOCH: Duration = Duration::from_millis(64);

/// Operations between two looks at the clock.
const BATCH: usize = 64;

/// Operations that are drawn in advance; a phase goes through them again and again.
const DRAWN: usize = 1 << 20;

/// Keys of a scan.
const SCAN: usize = 10;

/// A mix of operations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::paper) enum Mix {
    /// So many of a hundred are puts of keys that are there, the others gets.
    Puts(u8),
    /// Ten keys in order.
    Scan,
}

/// YCSB A, B, C and E, as the paper has them.
pub(in crate::paper) const MIXES: [(&str, Mix); 4] =
    [("A", Mix::Puts(50)), ("B", Mix::Puts(5)), ("C", Mix::Puts(0)), ("E", Mix::Scan)];

/// How keys are drawn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::paper) enum Draw {
    Uniform,
    /// Zipfian with 0.99, as in YCSB.
    Zipfian,
}

pub(in crate::paper) const DRAWS: [(&str, Draw); 2] = [("uniform", Draw::Uniform), ("zipfian", Draw::Zipfian)];

/// Keys, drawn in advance, and a die of 100 for each.
pub(in crate::paper) struct Drawn(pub(in crate::paper) Vec<(u64, u8)>);

/// For each way of drawing the operations of a phase.
pub(in crate::paper) fn drawn(keys: u64, draw: Draw, seed: u64) -> Drawn {
    let mut random = Random(key(seed) | 1);
    let zipf = (draw == Draw::Zipfian).then(|| Zipf::new(keys));
    let one = |random: &mut Random| {
        let rank = match &zipf {
            Some(zipf) => zipf.draw(random),
            None => random.below(keys),
        };
        (key(rank), random.below(100) as u8)
    };
    Drawn((0..DRAWN.min(keys as usize * 64)).map(|_| one(&mut random)).collect())
}

/// A kind of tree, and how it is made.
pub(in crate::paper) trait Kind: Policy {
    const NAME: &'static str;
    fn make<M: Medium>(session: &mut Session<M>, mapping: &Mapping<M>) -> durix_incll::Result<Masstree<M, Self>>
    where
        Self: Sized;
}

impl Kind for Transient {
    const NAME: &'static str = "MT+";
    fn make<M: Medium>(session: &mut Session<M>, mapping: &Mapping<M>) -> durix_incll::Result<Masstree<M, Self>> {
        Masstree::volatile(session, mapping, BareOptions::default())
    }
}

impl Kind for Durable {
    const NAME: &'static str = "INCLL";
    fn make<M: Medium>(session: &mut Session<M>, mapping: &Mapping<M>) -> durix_incll::Result<Masstree<M, Self>> {
        Masstree::open_bare(session, mapping, BareOptions::default())
    }
}

impl Kind for LoggingOnly {
    const NAME: &'static str = "LOGGING";
    fn make<M: Medium>(session: &mut Session<M>, mapping: &Mapping<M>) -> durix_incll::Result<Masstree<M, Self>> {
        Masstree::open_bare_as(session, mapping, BareOptions::default())
    }
}

impl Kind for Transient15 {
    const NAME: &'static str = "MT+, 15 keys a node";
    fn make<M: Medium>(session: &mut Session<M>, mapping: &Mapping<M>) -> durix_incll::Result<Masstree<M, Self>> {
        Masstree::volatile(session, mapping, BareOptions::default())
    }
}

impl Kind for Pointers {
    const NAME: &'static str = "INCLL, values out of line";
    fn make<M: Medium>(session: &mut Session<M>, mapping: &Mapping<M>) -> durix_incll::Result<Masstree<M, Self>> {
        Masstree::open_bare_as(session, mapping, BareOptions::default())
    }
}

impl Kind for InteriorInLine {
    const NAME: &'static str = "INCLL, interior nodes too";
    fn make<M: Medium>(session: &mut Session<M>, mapping: &Mapping<M>) -> durix_incll::Result<Masstree<M, Self>> {
        Masstree::open_bare_as(session, mapping, BareOptions::default())
    }
}

/// A tree with its keys, and what works on it.
pub(in crate::paper) struct Tree<M: Medium, P: Policy> {
    pub(in crate::paper) tree: Masstree<M, P>,
    pub(in crate::paper) session: Session<M>,
    pub(in crate::paper) mapping: Mapping<M>,
    pub(in crate::paper) keys: u64,
}

/// Bytes of a mapping for the tree of a figure: nodes, and segments of the external log.
pub(in crate::paper) fn bytes_for(keys: u64) -> u64 {
    (keys * 80 + (96 << 20)).next_multiple_of(2 << 20)
}

/// Memory for trees that are to be compared.
pub(in crate::paper) type Room<M> = std::vec::IntoIter<Mapping<M>>;

/// Memory for `count` trees of so many keys, allocated in turn.
pub(in crate::paper) fn room_for<M: Medium>(
    place: &Place,
    medium: M,
    (count, keys): (usize, u64),
) -> Result<Room<M>, Error> {
    let len = bytes_for(keys);
    crate::paper::figure::check_room(place, len * count as u64, || format!("{count} tree(s) of {keys} keys"))?;
    Ok(place.map_in_turn(count, len, medium)?.into_iter())
}

impl<M: Medium, P: Kind> Tree<M, P> {
    /// A tree of keys `0..keys`, in memory of a place.
    pub(in crate::paper) fn fill(place: &Place, medium: M, keys: u64) -> Result<Self, Error> {
        Self::fill_in(&mut room_for(place, medium, (1, keys))?, keys)
    }

    /// A tree of keys `0..keys`, in the next [room](room_for).
    pub(in crate::paper) fn fill_in(room: &mut Room<M>, keys: u64) -> Result<Self, Error> {
        let mapping = room.next().expect("room for each tree");
        let mut session = mapping.session()?;
        let tree = P::make(&mut session, &mapping)?;
        tree.epochs().set_interval(EPOCH);
        let mut made = Tree { tree, session, mapping, keys };
        for first in (0..keys).step_by(BATCH) {
            let op = made.session.enter()?;
            for i in first..(first + BATCH as u64).min(keys) {
                made.tree.insert(&op, &key(i).to_be_bytes(), &i.to_le_bytes())?;
            }
            drop(op);
            made.tree.tick(&mut made.session)?;
        }
        made.tree.sync(&mut made.session)?;
        Ok(made)
    }

    /// Works through `epochs` whole epochs. Returns how many operations that were; `pauses` gets what each boundary kept
    /// operations out, in nanoseconds.
    pub(in crate::paper) fn work(
        &mut self,
        mix: Mix,
        drawn: &Drawn,
        epochs: usize,
        pauses: &mut Vec<u64>,
    ) -> durix_incll::Result<usize> {
        self.work_through(mix, round_and_round(drawn), epochs, pauses)
    }

    fn work_through<'b>(
        &mut self,
        mix: Mix,
        batches: impl Iterator<Item = &'b [(u64, u8)]>,
        epochs: usize,
        pauses: &mut Vec<u64>,
    ) -> durix_incll::Result<usize> {
        let mut done = 0;
        for batch in batches {
            batch_on(&self.tree, &mut self.session, mix, batch)?;
            done += batch.len();
            if self.tree.tick(&mut self.session)? {
                pauses.push(self.tree.epochs().stats().last_pause);
            }
            if pauses.len() == epochs {
                break;
            }
        }
        Ok(done)
    }

    /// The same with all lines of an epoch written back inside its boundary, none ahead.
    pub(in crate::paper) fn work_inside(
        &mut self,
        mix: Mix,
        drawn: &Drawn,
        epochs: usize,
        pauses: &mut Vec<u64>,
    ) -> durix_incll::Result<()> {
        let mut start = Stopwatch::start();
        for batch in round_and_round(drawn) {
            batch_on(&self.tree, &mut self.session, mix, batch)?;
            if start.elapsed() >= EPOCH {
                self.tree.sync(&mut self.session)?;
                pauses.push(self.tree.epochs().stats().last_pause);
                start = Stopwatch::start();
            }
            if pauses.len() == epochs {
                break;
            }
        }
        Ok(())
    }

    /// Nanoseconds an operation, over whole epochs, behind one that is not counted.
    pub(in crate::paper) fn phase(&mut self, mix: Mix, drawn: &Drawn, epochs: usize) -> f64 {
        self.tree.sync(&mut self.session).expect("a boundary");
        // The other tree, or another workload, has left the caches as they are: so an epoch comes first that is not counted, of other
        // draws than those that follow.
        let first = drawn.0.rchunks_exact(BATCH.min(drawn.0.len())).cycle();
        self.work_through(mix, first, 1, &mut Vec::new()).expect("a sound tree with room");
        let start = Stopwatch::start();
        let done = self.work(mix, drawn, epochs, &mut Vec::new()).expect("a sound tree with room");
        start.elapsed().as_nanos() as f64 / done as f64
    }
}

/// Batches of what was drawn, for ever.
fn round_and_round(drawn: &Drawn) -> impl Iterator<Item = &[(u64, u8)]> {
    drawn.0.chunks_exact(BATCH.min(drawn.0.len())).cycle()
}

/// One operation a key of a batch.
fn batch_on<M: Medium, P: Policy>(
    tree: &Masstree<M, P>,
    session: &mut Session<M>,
    mix: Mix,
    batch: &[(u64, u8)],
) -> durix_incll::Result<()> {
    for (key, die) in batch {
        let op = session.enter()?;
        let bytes = key.to_be_bytes();
        match mix {
            Mix::Puts(puts) if *die < puts => _ = tree.insert(&op, &bytes, &u64::from(*die).to_le_bytes())?,
            Mix::Puts(_) => _ = black_box(tree.get(&op, &bytes)?.map(|value| value.as_u64())),
            Mix::Scan => {
                let (mut left, mut sum) = (SCAN, 0);
                tree.range(&op, Bound::Included(&bytes), Bound::Unbounded, |key, value| {
                    sum ^= value.as_u64() ^ u64::from(key[7]);
                    left -= 1;
                    if left > 0 { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
                })?;
                black_box(sum);
            }
        }
    }
    Ok(())
}

/// Works until boundary number `until`, which this or another thread crosses. Returns how many operations that were.
pub(in crate::paper) fn work_on<M: Medium, P: Policy>(
    tree: &Masstree<M, P>,
    session: &mut Session<M>,
    mix: Mix,
    drawn: &Drawn,
    until: u64,
) -> durix_incll::Result<usize> {
    let mut done = 0;
    // A boundary ends an epoch: `until` of them are behind when the epoch has gone on by as many.
    let stats = tree.epochs().stats();
    let last = stats.epoch + until.saturating_sub(stats.boundaries);
    for batch in round_and_round(drawn) {
        batch_on(tree, session, mix, batch)?;
        done += batch.len();
        tree.tick(session)?;
        if tree.epochs().current(&session.enter()?) >= last {
            break;
        }
    }
    Ok(done)
}

/// Works for nine tenths of an epoch.
pub(in crate::paper) fn almost_an_epoch<M: Medium, P: Policy>(
    tree: &Masstree<M, P>,
    session: &mut Session<M>,
    mix: Mix,
    drawn: &Drawn,
) -> durix_incll::Result<()> {
    let start = Stopwatch::start();
    for batch in round_and_round(drawn) {
        batch_on(tree, session, mix, batch)?;
        if start.elapsed() >= EPOCH * 9 / 10 {
            break;
        }
    }
    Ok(())
}

/// One phase: what is done, with which keys, and what happens before.
pub(in crate::paper) struct Phase<'d> {
    pub(in crate::paper) mix: Mix,
    pub(in crate::paper) drawn: &'d Drawn,
    pub(in crate::paper) before: &'d dyn Fn(),
}

/// A tree that works on phases.
pub(in crate::paper) trait Phased {
    /// The name in tables.
    fn name(&self) -> &str;
    /// Works on a phase. Returns nanoseconds an operation.
    fn phase(&mut self, number: usize) -> f64;
}

struct Rounds<'d, M: Medium, P: Policy> {
    tree: Tree<M, P>,
    phases: &'d [Phase<'d>],
    epochs: usize,
}

impl<M: Medium, P: Kind> Phased for Rounds<'_, M, P> {
    fn name(&self) -> &str {
        P::NAME
    }

    fn phase(&mut self, number: usize) -> f64 {
        let Phase { mix, drawn, before } = &self.phases[number];
        before();
        self.tree.phase(*mix, drawn, self.epochs)
    }
}

/// Trees that are to be compared.
pub(in crate::paper) type Contestants<'d> = Vec<Box<dyn Phased + 'd>>;

/// In which order phases are measured. Always the trees take turns, each round beginning one tree later than the one before, so that
/// their times lie within a second.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::paper) enum Order {
    /// All rounds of a phase, then all of the next, as a workload is run by itself in the paper: to compare trees.
    PhaseByPhase,
    /// Rounds of all phases, each beginning one phase later than the one before: to compare phases.
    RoundByRound,
}

impl Order {
    /// The phases and rounds in their order.
    fn of(self, phases: usize, rounds: usize) -> Vec<(usize, usize)> {
        let both = |n: usize| match self {
            Order::PhaseByPhase => (n / rounds, n % rounds),
            Order::RoundByRound => ((n / phases + n % phases) % phases, n / phases),
        };
        (0..phases * rounds).map(both).collect()
    }
}

/// Has all trees work on all phases. The first rounds are not counted. `after_round` says whether there is time for more; without,
/// no more than [`LEAST_ROUNDS`] of a phase are measured.
pub(in crate::paper) fn in_turn<const PHASES: usize>(
    trees: &mut [Box<dyn Phased + '_>],
    (order, rounds): (Order, usize),
    after_round: &mut dyn FnMut() -> bool,
) -> Vec<Outcome<PHASES>> {
    let count = trees.len();
    let mut samples = vec![[const { Vec::new() }; PHASES]; count];
    let mut in_time = true;
    for (phase, round) in order.of(PHASES, WARM_UP + rounds) {
        if !in_time && round >= WARM_UP + LEAST_ROUNDS {
            continue;
        }
        for who in (0..count).map(|who| (round + who) % count) {
            let time = trees[who].phase(phase);
            if round >= WARM_UP {
                samples[who][phase].push(time);
            }
        }
        in_time = after_round();
    }
    let outcomes = trees.iter().zip(samples).map(|(tree, samples)| {
        let phases = samples.map(Series::new);
        Outcome { name: tree.name().to_owned(), phases }
    });
    outcomes.collect()
}

/// Which trees take part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::paper) struct Take {
    pub(in crate::paper) transient: bool,
    pub(in crate::paper) logging: bool,
}

/// How a figure measures its points.
#[derive(Clone, Copy, Debug)]
pub(in crate::paper) struct Rounded {
    pub(in crate::paper) keys: u64,
    pub(in crate::paper) epochs: usize,
    /// Rounds of one filling.
    pub(in crate::paper) rounds: usize,
    /// How often all trees are made anew, in other memory and another order.
    pub(in crate::paper) fillings: usize,
    pub(in crate::paper) order: Order,
}

impl Rounded {
    /// Rounds of all fillings and phases, warming up included.
    pub(in crate::paper) fn all_rounds(&self, phases: usize) -> usize {
        (self.rounds + WARM_UP) * self.fillings * phases
    }
}

/// The rounds of a figure, unless it is quick.
pub(in crate::paper) fn rounded(context: &Context<'_>, keys: u64) -> Rounded {
    let (epochs, rounds) = if context.quick { (2, 5) } else { (3, 9) };
    Rounded { keys, epochs, rounds, fillings: 3, order: Order::PhaseByPhase }
}

/// Rounds of each filling that are not counted.
pub(in crate::paper) const WARM_UP: usize = 1;

/// Fills the trees and measures all phases, the trees in turn; and again, in other memory, as often as the figure says: how
/// the pages of a tree happen to lie is worth some percent.
pub(in crate::paper) fn measure<const PHASES: usize, M: Medium>(
    context: &Context<'_>,
    (place, medium): (&Place, M),
    how: &Rounded,
    take: Take,
    phases: &[Phase<'_>; PHASES],
) -> Result<Vec<Outcome<PHASES>>, Error> {
    let (mut all, mut in_time) = (Vec::<Outcome<PHASES>>::new(), true);
    for filling in 0..how.fillings {
        let mut trees = filled((place, medium), how, take, phases, filling)?;
        let outcomes: Vec<Outcome<PHASES>> = in_turn(&mut trees, (how.order, how.rounds), &mut || {
            in_time = context.tick();
            in_time
        });
        for outcome in outcomes {
            match all.iter_mut().find(|known| known.name == outcome.name) {
                Some(known) => known.append(&outcome),
                None => all.push(outcome),
            }
        }
        if !in_time {
            break;
        }
    }
    Ok(all)
}

/// The trees that take part, in memory that is allocated in turn; each filling begins with another one.
fn filled<'d, M: Medium>(
    (place, medium): (&Place, M),
    how: &Rounded,
    take: Take,
    phases: &'d [Phase<'d>],
    filling: usize,
) -> Result<Contestants<'d>, Error> {
    let mut makers: Vec<Make<'d, M>> = vec![contestant::<M, Durable>];
    if take.transient {
        makers.push(contestant::<M, Transient>);
    }
    if take.logging {
        makers.push(contestant::<M, LoggingOnly>);
    }
    let (count, room) = (makers.len(), &mut room_for(place, medium, (makers.len(), how.keys))?);
    makers.rotate_left(filling % count);
    makers.into_iter().map(|make| Ok(make(room, how, phases)?.0)).collect()
}

/// A contestant, and what filling its tree took: nanoseconds a key, and bytes a key.
pub(in crate::paper) type Filled<'d> = (Box<dyn Phased + 'd>, [f64; 2]);

/// [`contestant`], for one kind of tree.
type Make<'d, M> = fn(&mut Room<M>, &Rounded, &'d [Phase<'d>]) -> Result<Filled<'d>, Error>;

/// Fills a tree in the next [room](room_for).
pub(in crate::paper) fn contestant<'d, M: Medium, P: Kind>(
    room: &mut Room<M>,
    how: &Rounded,
    phases: &'d [Phase<'d>],
) -> Result<Filled<'d>, Error> {
    let start = Stopwatch::start();
    let mut tree = Tree::<M, P>::fill_in(room, how.keys)?;
    let time = start.elapsed().as_nanos() as f64 / how.keys as f64;
    let extents = tree.tree.bytes_in_extents(&tree.session.enter()?);
    let rounds = Rounds { tree, phases, epochs: how.epochs };
    Ok((Box::new(rounds), [time, extents as f64 / how.keys as f64]))
}

/// A panel of a figure.
pub(in crate::paper) fn panel(
    title: impl Into<String>,
    place: &Place,
    how: &Rounded,
    (x_label, x): (&str, Vec<String>),
    (y_label, form): (&str, Form),
) -> Panel {
    let fillings = if how.fillings > 1 { format!("{} fillings with ", how.fillings) } else { String::new() };
    let method = format!(
        "{} keys, one thread; medians of {fillings}{} interleaved rounds of {} whole epochs of 64 ms, behind one that is not counted",
        millions(how.keys),
        how.rounds,
        how.epochs
    );
    Panel::new(title, place, crate::paper::figure::medium_text(medium()), method).axes(x_label, x, y_label, form)
}

/// The series of a contestant in a phase.
pub(in crate::paper) fn series<'o, const PHASES: usize>(
    outcomes: &'o [Outcome<PHASES>],
    name: &str,
    phase: usize,
) -> Option<&'o Series> {
    outcomes.iter().find(|outcome| outcome.name == name).map(|outcome| &outcome.phases[phase])
}

/// How much longer an operation of INCLL takes than one of MT+, in percent; the median of the rounds.
pub(in crate::paper) fn overhead<const PHASES: usize>(outcomes: &[Outcome<PHASES>], phase: usize) -> f64 {
    match (series(outcomes, "INCLL", phase), series(outcomes, "MT+", phase)) {
        (Some(ours), Some(base)) => (ours.ratio_to(base).median() - 1.0) * 100.0,
        _ => f64::NAN,
    }
}

/// A number of keys in words.
pub(in crate::paper) fn millions(keys: u64) -> String {
    match keys {
        k if k >= 1_000_000 && k % 100_000 == 0 => format!("{}M", k as f64 / 1e6),
        k if k >= 1000 && k.is_multiple_of(1000) => format!("{}K", k / 1000),
        k => k.to_string(),
    }
}

/// The keys of a figure: 20 million, fewer in a hurry, or what the user has said.
pub(in crate::paper) fn keys_of(context: &Context<'_>) -> u64 {
    context.keys_or(if context.quick { 1_000_000 } else { 20_000_000 })
}

/// What a reader of a quick figure has to know.
pub(in crate::paper) fn notes(context: &Context<'_>, keys: u64) -> Vec<String> {
    let quick = context.quick && context.keys.is_none();
    let fewer = format!("--quick: {} keys instead of 20M", millions(keys));
    quick.then_some(fewer).into_iter().collect()
}

/// An empty result with its notes.
pub(in crate::paper) fn empty(context: &Context<'_>, keys: u64) -> Measured {
    Measured { panels: Vec::new(), claims: Vec::new(), notes: notes(context, keys) }
}

/// A figure of section 6.
pub(in crate::paper) const fn figure(
    name: &'static str,
    title: &'static str,
    run: fn(&Context<'_>) -> Result<Measured, Error>,
) -> Figure {
    Figure { name, title, source: SOURCE, keys: Some("keys of the trees (20 million, with --quick one million)"), run }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_round_of_every_phase_comes_once_in_either_order() {
        assert_eq!(Order::PhaseByPhase.of(2, 3), [(0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (1, 2)]);
        assert_eq!(Order::RoundByRound.of(3, 2), [(0, 0), (1, 0), (2, 0), (1, 1), (2, 1), (0, 1)]);
    }

    #[test]
    fn a_phase_is_whole_epochs_and_leaves_nothing_dirty() {
        let place = Place::at(std::env::temp_dir());
        let mut tree = Tree::<_, Durable>::fill(&place, medium(), 2000).unwrap();
        tree.tree.epochs().set_interval(Duration::from_millis(2));
        let drawn = drawn(2000, Draw::Uniform, 1);
        let before = tree.tree.epochs().stats();
        let mut pauses = Vec::new();
        let done = tree.work(Mix::Puts(50), &drawn, 3, &mut pauses).unwrap();
        let after = tree.tree.epochs().stats();
        assert!(done >= 3 * BATCH && pauses.len() == 3, "{done} operations, {pauses:?}");
        assert_eq!(after.boundaries - before.boundaries, 3);
        tree.tree.sync(&mut tree.session).unwrap();
        assert_eq!(tree.tree.epochs().stats().lines, after.lines, "the last operation was before the last boundary");
    }

    #[test]
    fn all_kinds_of_trees_do_the_same() {
        let place = Place::at(std::env::temp_dir());
        let drawn = drawn(3000, Draw::Zipfian, 5);
        fn count<P: Kind>(place: &Place, drawn: &Drawn) -> (u64, u64) {
            let mut tree = Tree::<_, P>::fill(place, medium(), 3000).unwrap();
            tree.work(Mix::Puts(50), drawn, 1, &mut Vec::new()).unwrap();
            tree.work(Mix::Scan, drawn, 1, &mut Vec::new()).unwrap();
            let op = tree.session.enter().unwrap();
            (tree.tree.len(&op).unwrap(), tree.tree.logged_nodes(&op))
        }
        let ours = count::<Durable>(&place, &drawn);
        assert_eq!((count::<Transient>(&place, &drawn), ours.0), ((3000, 0), 3000));
        assert_eq!(count::<InteriorInLine>(&place, &drawn).0, 3000);
        let logging = count::<LoggingOnly>(&place, &drawn);
        assert!(logging.0 == 3000 && logging.1 > 0, "{logging:?}");
    }
}
