//! Our sets beside SOFT, link-free and FliT: reads and updates, by size, for one thread and two.

use super::sets::{
    Expected, check_room, claim, fits, measure_at, panel, rounds_of_a_point, set_throughput, sizes_text,
};
use crate::logfree::make::{Protocol, Shape, What};
use crate::logfree::report::{Outcomes, ratio};
use crate::logfree::rounds::{LONG, Mix};
use crate::paper::figure::{Context, Error, Figure, Measured};
use crate::paper::report::{Claim, Panel};
use crate::place::Place;
use crate::workload::medium;

pub(in crate::paper) const FIGURE: Figure = Figure {
    name: "logfree-mixes",
    title: "90% reads, and updates: beside SOFT, link-free and FliT, by size, 1 and 2 threads",
    source: "Zuriel et al.: Efficient Lock-Free Durable Sets (OOPSLA'19), section 6; Wei et al.: FliT (PPoPP'22), section 6",
    keys: Some("the one size of all sets, instead of several"),
    run,
};

const SHAPES: [Shape; 3] = [Shape::Hash, Shape::SkipList, Shape::List];
const THREADS: [u64; 2] = [1, 2];
/// Percent of reads.
const READS: [u64; 2] = [90, 0];

const PEERS: &str = "SOFT, link-free and FliT are written from their papers, to their advantage: volatile allocators that write nothing back, \
     buckets by the low bits of the key, which these keys fill evenly, as many buckets as keys and no growth, only the lowest level of a \
     skip list durable, no checksums, no recovery";
const TWO_FLITS: &str = "FliT in a claim is the faster one of the two";

/// What takes part.
fn ways(shape: Shape) -> &'static [Protocol] {
    use Protocol::{Flit, FlitHashed, LinkFree, Links, Pset, Soft, SoftPeer};
    match shape {
        Shape::Hash => &[Soft, Links, Pset, SoftPeer, LinkFree, Flit, FlitHashed],
        Shape::SkipList => &[Soft, Links, LinkFree, Flit, FlitHashed],
        Shape::List => &[Soft, Links, SoftPeer, LinkFree, Flit, FlitHashed],
        Shape::Bst => &[],
    }
}

fn sizes(context: &Context<'_>, shape: Shape) -> Vec<u64> {
    match (context.keys, shape) {
        (Some(keys), _) => vec![keys],
        // A search in a list passes half of it.
        (None, Shape::List) => vec![128, 1 << 10],
        (None, _) => vec![1 << 10, 64 << 10, 256 << 10],
    }
}

fn run(context: &Context<'_>) -> Result<Measured, Error> {
    let points: usize = SHAPES.iter().map(|shape| sizes(context, *shape).len()).sum();
    context.expect(points * THREADS.len() * READS.len(), rounds_of_a_point(context));
    let notes = vec![PEERS.into(), TWO_FLITS.into(), format!("rounds of {LONG} operations of each thread")];
    let mut measured = Measured { panels: Vec::new(), claims: Vec::new(), notes };
    for place in &context.places {
        for shape in SHAPES {
            for (threads, reads) in THREADS.iter().flat_map(|threads| READS.map(|reads| (*threads, reads))) {
                let (panel, claims) = curves(context, place, shape, threads, reads)?;
                measured.panels.push(panel);
                measured.claims.extend(claims);
            }
        }
    }
    let mut all: Vec<u64> = SHAPES.iter().flat_map(|shape| sizes(context, *shape)).collect();
    all.sort_unstable();
    all.dedup();
    measured.notes.extend(all.into_iter().map(fits));
    Ok(measured)
}

fn mix_text(reads: u64) -> String {
    if reads == 0 { "updates".into() } else { format!("{reads}% reads") }
}

fn curves(
    context: &Context<'_>,
    place: &Place,
    shape: Shape,
    threads: u64,
    reads: u64,
) -> Result<(Panel, Vec<Claim>), Error> {
    let sizes = sizes(context, shape);
    let x = sizes_text(&sizes);
    let title = format!("{}, {threads} thread(s): {}", shape.name(), mix_text(reads));
    let mut throughput = panel(context, place, title.clone(), ("keys", &x), "million operations/s");
    throughput.method = format!("medians of {} interleaved rounds of {LONG} operations", super::sets::rounds(context));
    let mut claims = Vec::new();
    for (at, keys) in sizes.into_iter().enumerate() {
        context.now(format!("{title}, {} keys", x[at]));
        let what = ways(shape).iter().map(|way| What { shape, way: *way, keys, threads, mix: Mix::long(reads) });
        let what: Vec<What> = what.collect();
        check_room(place, &what)?;
        let outcomes = measure_at(context, place, medium(), &what)?;
        set_throughput(&mut throughput, at, &outcomes);
        claims.extend(claims_of(&outcomes, shape, threads, reads, &format!("{title}, {}, {}", x[at], place.pages)));
    }
    Ok((throughput, claims))
}

/// The faster one of the two forms of FliT.
fn flit(outcomes: &Outcomes) -> Protocol {
    let hashed = ratio(outcomes, Protocol::FlitHashed, Protocol::Flit);
    if hashed.is_some_and(|ratio| ratio > 1.0) { Protocol::FlitHashed } else { Protocol::Flit }
}

/// What is to be reached: ours, the other, the least ratio.
fn goals(shape: Shape, threads: u64, reads: u64, flit: Protocol) -> Vec<(Protocol, Protocol, Option<f64>)> {
    use Protocol::{LinkFree, Links, Pset, Soft, SoftPeer};
    // Links are judged by updates with two threads.
    let judged = |goal| (threads == 2 && reads == 0).then_some(goal);
    match shape {
        Shape::Hash => vec![
            (Soft, SoftPeer, Some(1.0)),
            (Soft, LinkFree, Some(1.0)),
            (Pset, Soft, Some(0.5)),
            (Links, flit, judged(1.0)),
            (Links, LinkFree, judged(0.95)),
        ],
        Shape::SkipList => [Links, Soft]
            .into_iter()
            .flat_map(|ours| [(ours, flit, judged(1.0)), (ours, LinkFree, judged(0.95))])
            .collect(),
        Shape::List => vec![(Soft, SoftPeer, None), (Links, LinkFree, None), (Links, flit, None)],
        Shape::Bst => Vec::new(),
    }
}

fn claims_of(outcomes: &Outcomes, shape: Shape, threads: u64, reads: u64, what: &str) -> Vec<Claim> {
    let goals = goals(shape, threads, reads, flit(outcomes)).into_iter();
    let expected =
        goals.map(|(ours, other, goal)| Expected { what: what.to_owned(), paper: "(ours)", ways: (ours, other), goal });
    expected.filter_map(|expected| claim(outcomes, expected)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::interleave::{Outcome, Series};

    /// Outcomes of the hash tables where each takes so many nanoseconds.
    fn outcomes(each: &[(Protocol, f64)]) -> Outcomes {
        let outcome = |ns: f64| Outcome { name: String::new(), phases: [Series::new(vec![ns]), Series::new(vec![ns])] };
        each.iter().map(|(way, ns)| (Some(*way), outcome(*ns))).collect()
    }

    #[test]
    fn a_claim_holds_where_the_goal_is_reached_and_flit_is_the_faster_one() {
        use Protocol::{Flit, FlitHashed, LinkFree, Links, Pset, Soft, SoftPeer};
        let times = [
            (Soft, 20.0),
            (Links, 30.0),
            (Pset, 41.0),
            (SoftPeer, 21.0),
            (LinkFree, 19.0),
            (Flit, 32.0),
            (FlitHashed, 29.0),
        ];
        let holds = |threads, reads| -> Vec<Option<bool>> {
            claims_of(&outcomes(&times), Shape::Hash, threads, reads, "").iter().map(|claim| claim.holds).collect()
        };
        let [yes, no] = [Some(true), Some(false)];
        assert_eq!(holds(1, 90), [yes, no, no, None, None]);
        assert_eq!(holds(2, 90), [yes, no, no, None, None]);
        assert_eq!(holds(2, 0), [yes, no, no, no, no], "FliT with a table is faster than links here");
        assert_eq!(claims_of(&outcomes(&times), Shape::SkipList, 2, 0, "").len(), 4);
    }

    #[test]
    fn every_comparator_takes_part_in_what_it_is_made_for() {
        for shape in SHAPES {
            let goals = goals(shape, 1, 90, Protocol::Flit);
            assert!(goals.iter().all(|(ours, other, _)| ways(shape).contains(ours) && ways(shape).contains(other)));
        }
    }
}
