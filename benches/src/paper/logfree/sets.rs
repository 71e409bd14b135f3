//! What the figures of the log-free sets (ATC'18, section 6) share.

use durix_pmem::Medium;

use crate::interleave::Series;
use crate::logfree::make::{Protocol, Shape, What, count};
use crate::logfree::report::{Outcomes, floors, measure, of, ratio, warm_up};
use crate::logfree::rounds::{Mix, OPERATIONS};
use crate::machine::{Bytes, Machine};
use crate::paper::cso::sets::keys_text;
use crate::paper::figure::{Context, Error, Figure, Measured};
use crate::paper::report::{Claim, Form, Panel, Point};
use crate::place::Place;
use crate::workload::medium;

/// Where all of it stands in the paper.
pub(in crate::paper) const SOURCE: &str =
    "David, Dragojevic, Guerraoui, Zablotchi: Log-Free Concurrent Data Structures (ATC'18), section 6";

/// What a reader has to know of the comparators.
pub(in crate::paper) const CONTRACT: &str = "redo log: log and fence, apply and fence, truncate and fence (per level in the skip list), with an allocator that writes \
     nothing back; CSO redo log: the best we can build, for one thread; all are durable on return, and no allocation of a \
     comparator survives";

/// Rounds at one point.
pub(in crate::paper) fn rounds(context: &Context<'_>) -> usize {
    if context.quick { 25 } else { 80 }
}

/// Rounds that a point takes, those included that are not counted.
pub(in crate::paper) fn rounds_of_a_point(context: &Context<'_>) -> usize {
    rounds(context) + warm_up(rounds(context))
}

/// A figure of section 6.
pub(in crate::paper) const fn figure(
    name: &'static str,
    title: &'static str,
    keys: Option<&'static str>,
    run: fn(&Context<'_>) -> Result<Measured, Error>,
) -> Figure {
    Figure { name, title, source: SOURCE, keys, run }
}

/// Bytes of persistent memory that a set may need, generously.
fn bytes(what: What) -> u64 {
    (what.keys * 64 * if what.shape == Shape::Bst { 10 } else { 6 }) * what.threads + (80 << 20)
}

/// Makes sure that the place has room for some sets.
pub(in crate::paper) fn check_room(place: &Place, what: &[What]) -> Result<(), Error> {
    let needed = what.iter().map(|what| bytes(*what)).sum::<u64>() + (64 << 20);
    crate::paper::figure::check_room(place, needed, || {
        format!("{} sets of {} keys", what.len(), what.first().map_or(0, |what| what.keys))
    })
}

/// Measures one point.
pub(in crate::paper) fn measure_at<M: Medium>(
    context: &Context<'_>,
    place: &Place,
    medium: M,
    what: &[What],
) -> Result<Outcomes, Error> {
    check_room(place, what)?;
    let filling = |way: Protocol| context.step(&format!("filling: {}", way.name()));
    let mut after_round = || {
        context.step("rounds");
        context.tick()
    };
    Ok(measure(place, medium, what, rounds(context), filling, &mut after_round)?)
}

/// An empty panel over some sizes or delays.
pub(in crate::paper) fn panel(
    context: &Context<'_>,
    place: &Place,
    title: String,
    (x_label, x): (&str, &[String]),
    y: &str,
) -> Panel {
    let method = format!("medians of {} interleaved rounds of {OPERATIONS} operations", rounds(context));
    Panel::new(title, place, crate::paper::figure::medium_text(medium()), method).axes(
        x_label,
        x.to_vec(),
        y,
        Form::Lines,
    )
}

/// Operations per second of every way at place number `at` of the axis.
pub(in crate::paper) fn set_throughput(panel: &mut Panel, at: usize, outcomes: &Outcomes) {
    for (way, outcome) in outcomes {
        if let Some(way) = way {
            panel.set(way.name(), at, Point::throughput(&outcome.phases[0]));
        }
    }
}

/// The same, divided by those of `base`.
pub(in crate::paper) fn set_ratios(panel: &mut Panel, at: usize, outcomes: &Outcomes, base: Protocol) {
    let Some(base_outcome) = of(outcomes, Some(base)) else { return };
    for (way, outcome) in outcomes {
        if let Some(way) = way.filter(|way| *way != base) {
            let ratio: Series = base_outcome.phases[0].ratio_to(&outcome.phases[0]);
            panel.set(way.name(), at, Point::nanoseconds(&ratio));
        }
    }
}

/// What is claimed of a ratio.
pub(in crate::paper) struct Expected<'a> {
    /// Of what.
    pub(in crate::paper) what: String,
    /// The paper's words.
    pub(in crate::paper) paper: &'a str,
    /// Ours, and what it is compared with.
    pub(in crate::paper) ways: (Protocol, Protocol),
    /// At least so many times as fast.
    pub(in crate::paper) goal: Option<f64>,
}

/// The claim of a ratio; `None` where one of the two is not there.
pub(in crate::paper) fn claim(outcomes: &Outcomes, expected: Expected<'_>) -> Option<Claim> {
    let (ours, other) = expected.ways;
    let ratio = ratio(outcomes, ours, other)?;
    let goal = expected.goal.map_or(String::new(), |goal| format!(" (goal: {goal})"));
    Some(Claim {
        what: expected.what,
        paper: expected.paper.into(),
        ours: format!("{} {ratio:.2} times {}{goal}", ours.name(), other.name()),
        holds: expected.goal.map(|goal| ratio >= goal),
    })
}

/// The claim of a successful update of the best table beside the floor.
pub(in crate::paper) fn floor_claim(outcomes: &Outcomes, what: String, goal: f64) -> Option<Claim> {
    let floors = floors(outcomes, Protocol::Soft)?;
    Some(Claim {
        what,
        paper: "(ours)".into(),
        ours: format!("{} takes {floors:.2} floors a successful update (goal: at most {goal})", Protocol::Soft.name()),
        holds: Some(floors <= goal),
    })
}

/// The counts of a shape, as a claim each: how many write-backs and fences a successful update takes, and whether that is what
/// the way promises.
pub(in crate::paper) fn count_claims(shape: Shape, keys: u64) -> Result<Vec<Claim>, Error> {
    let mut claims = Vec::new();
    for way in [Protocol::Soft, Protocol::Links, Protocol::Redo, Protocol::Cso] {
        let Some(counted) = count(What { shape, way, keys, threads: 1, mix: Mix::UPDATES })? else { continue };
        // Judged as they are shown: a new extent now and then adds thousandths to the averages.
        let [write_backs, fences, implicit_drains] =
            [counted.write_backs, counted.fences, counted.implicit_drains].map(|count| (count * 100.0).round() / 100.0);
        let (paper, holds) = match way {
            Protocol::Soft => ("1 and 1 (OOPSLA'19)", Some((write_backs, fences, implicit_drains) == (1.0, 1.0, 0.0))),
            Protocol::Links => ("at most 2 fences, a page newly active one more", Some(implicit_drains == 0.0)),
            Protocol::Redo if shape == Shape::SkipList => ("3 fences a level, 3 for the mark", None),
            Protocol::Redo => ("3 fences", Some(fences == 3.0)),
            _ => ("(ours)", None),
        };
        claims.push(Claim {
            what: format!("an update, {}, {}", shape.name(), way.name()),
            paper: paper.into(),
            ours: format!("{write_backs:.2} write-backs, {fences:.2} fences, {implicit_drains:.2} implicit"),
            holds,
        });
    }
    Ok(claims)
}

/// Whether the nodes of a set fit the caches, in words.
pub(in crate::paper) fn fits(keys: u64) -> String {
    let machine = Machine::this();
    let bytes = keys * 64;
    let level = machine.caches.iter().filter(|(_, kind, size)| kind != "Instruction" && *size >= bytes).min();
    let cache = level.map_or("no cache".into(), |(level, _, size)| format!("L{level} ({})", Bytes(*size)));
    format!("{} keys: nodes of {} fit {cache}", keys_text(keys), Bytes(bytes))
}

/// The sizes of an axis, as text.
pub(in crate::paper) fn sizes_text(sizes: &[u64]) -> Vec<String> {
    sizes.iter().copied().map(keys_text).collect()
}
