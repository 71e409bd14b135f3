//! Figure 10: how a leaf is searched, by the size of its entries: by hashed slots, by fingerprints, by both, and by the table that our tree
//! has in DRAM. What leads to the leaf is not in the time; what misses the caches within it is.

use durix_pmem::{Hardware, Session};

use super::trees::{Random, figure, key};
use crate::cso_append::medium;
use crate::interleave::{LEAST_ROUNDS, Series, Stopwatch};
use crate::machine::Bytes;
use crate::paper::figure::{Context, Error, Figure, Measured};
use crate::paper::report::{Claim, Form, Panel, Point};
use crate::place::{Place, free_bytes};
use crate::trees::hashed_leaf::{KEYS, Leaves, Search};

pub(in crate::paper) const FIGURE: Figure = figure(
    "dptree-fig10",
    "time of a search within a leaf by the size of entries, four ways",
    "keys, instead of 50 million (one million with --quick)",
    run,
);

const SEARCHES: [(Search, &str); 4] =
    [(Search::Probing, "lp"), (Search::Fingerprints, "fp"), (Search::Both, "lp+fp"), (Search::Table, "DPTree's table")];
const SIZES: [u64; 4] = [16, 32, 48, 64];
const WARM_UP: usize = 1;

/// Looks each key up in its leaf. Returns nanoseconds a key, and the sum of the values that were found.
fn search(
    (leaves, session): (&Leaves, &mut Session<Hardware>),
    search: Search,
    keys: &[(u64, u64)],
) -> Result<(f64, u64), Error> {
    /// One loop for each way, so that the way is no branch within it.
    #[inline(always)]
    fn all(leaves: &Leaves, session: &mut Session<Hardware>, way: Search, keys: &[(u64, u64)]) -> Result<u64, Error> {
        let op = session.enter()?;
        let one = |(leaf, key): &(u64, u64)| leaves.get(&op, way, *leaf, *key).unwrap_or(0);
        Ok(keys.iter().map(one).fold(0, u64::wrapping_add))
    }
    let start = Stopwatch::start();
    let sum = match search {
        Search::Probing => all(leaves, session, Search::Probing, keys),
        Search::Fingerprints => all(leaves, session, Search::Fingerprints, keys),
        Search::Both => all(leaves, session, Search::Both, keys),
        Search::Table => all(leaves, session, Search::Table, keys),
    }?;
    Ok((start.elapsed().as_nanos() as f64 / keys.len() as f64, sum))
}

/// For keys that are there, and for those that are not, the series of each way.
fn measure(
    context: &Context<'_>,
    place: &Place,
    (keys, entry): (u64, u64),
    (rounds, lookups): (usize, u64),
) -> Result<[Vec<Series>; 2], Error> {
    let needed = Leaves::bytes(keys, entry);
    if let Some(free) = free_bytes(&place.dir).filter(|free| *free < needed) {
        let (what, dir) = (format!("{keys} entries of {entry} bytes"), place.dir.display().to_string());
        return Err(Error::Room { what, needed: Bytes(needed), free: Bytes(free), dir });
    }
    let mapping = place.map(needed, medium())?;
    // Key 0 is an empty slot's.
    let leaves = Leaves::new(&mapping, entry, (0..keys).map(|number| (key(number + 1), number + 1)))?;
    let (mut session, mut random) = (mapping.session()?, Random(88_172_645_463_325_252));
    let mut samples = [const { [const { Vec::new() }; SEARCHES.len()] }; 2];
    for round in 0..WARM_UP + rounds {
        let numbers: Vec<u64> = (0..lookups).map(|_| random.next() % keys).collect();
        for (absent, samples) in samples.iter_mut().enumerate() {
            let key_of = |number: u64| if absent == 1 { !key(number + 1) } else { key(number + 1) };
            let drawn: Vec<(u64, u64)> = numbers.iter().map(|number| (number / KEYS, key_of(*number))).collect();
            let wanted = numbers.iter().fold(0u64, |sum, number| sum.wrapping_add(number + 1)) * (1 - absent as u64);
            for who in (0..SEARCHES.len()).map(|who| (round + who) % SEARCHES.len()) {
                let (way, name) = SEARCHES[who];
                let (time, sum) = search((&leaves, &mut session), way, &drawn)?;
                assert_eq!(sum, wanted, "{name}: the values of the keys");
                if round >= WARM_UP {
                    samples[who].push(time);
                }
            }
        }
        if !context.tick() && round + 1 >= WARM_UP + LEAST_ROUNDS {
            break;
        }
    }
    Ok(samples.map(|samples| samples.map(Series::new).into()))
}

fn run(context: &Context<'_>) -> Result<Measured, Error> {
    let keys = context.keys_or(if context.quick { 1_000_000 } else { 50_000_000 });
    let (rounds, lookups) = if context.quick { (11, 50_000) } else { (25, 200_000) };
    context.expect(SIZES.len(), WARM_UP + rounds);
    let mut measured = Measured { panels: Vec::new(), claims: Vec::new(), notes: Vec::new() };
    measured.notes.push(
        "lp: hashed slots, key by key; fp: 256 fingerprints, eight at a time (the paper: one by one); lp+fp: the paper's choice; ours: two \
         bytes of hash in buckets of a line, in DRAM, and slots filled line after line. The leaves are the same: 256 slots, 70% taken"
            .into(),
    );
    measured.notes.push("keys are drawn before, so the misses of one search overlap with the next one's".into());
    for place in &context.places {
        let how = format!("{keys} keys; medians of interleaved rounds of {lookups} random keys, one thread");
        let panel = |title: &str| {
            let panel = Panel::new(title, place, crate::paper::figure::medium_text(medium()), how.clone());
            panel.axes("bytes of an entry", SIZES.map(|size| size.to_string()).to_vec(), "ns", Form::Lines)
        };
        let mut panels = [panel("a key that is there"), panel("a key that is not there")];
        let mut largest = None;
        for (at, size) in SIZES.into_iter().enumerate() {
            context.now(format!("{keys} keys, entries of {size} bytes, {}", place.pages));
            let series = measure(context, place, (keys, size), (rounds, lookups))?;
            for (panel, series) in panels.iter_mut().zip(&series) {
                SEARCHES
                    .iter()
                    .zip(series)
                    .for_each(|((_, name), series)| panel.set(name, at, Point::nanoseconds(series)));
            }
            largest = Some(series);
        }
        measured.panels.extend(panels);
        let [there, absent] = largest.expect("there are sizes");
        let mut claim = |what: &str, paper: &str, (a, b): (&Series, &Series), holds: fn(f64) -> bool| {
            let ratio = a.ratio_to(b).median();
            measured.claims.push(Claim {
                what: format!("{what}, {}-byte entries, {}", SIZES[SIZES.len() - 1], place.pages),
                paper: paper.into(),
                ours: format!("{ratio:.2}"),
                holds: Some(holds(ratio)),
            });
        };
        claim("found: lp to lp+fp", "more than 1", (&there[0], &there[2]), |ratio| ratio > 1.0);
        claim("found: fp to lp+fp", "more than 1", (&there[1], &there[2]), |ratio| ratio > 1.0);
        claim("absent: lp to lp+fp", "more than 1", (&absent[0], &absent[2]), |ratio| ratio > 1.0);
        claim("found: our table to lp+fp", "goal 1 at most", (&there[3], &there[2]), |ratio| ratio <= 1.0);
        claim("absent: our table to lp+fp", "goal 1 at most", (&absent[3], &absent[2]), |ratio| ratio <= 1.0);
    }
    Ok(measured)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_way_finds_the_same() {
        super::super::peers::with_context(|context, place| {
            for size in SIZES {
                let series = measure(context, place, (2000, size), (2, 500)).unwrap();
                assert!(series.iter().flatten().all(|series| series.samples().len() == 2));
            }
        });
    }
}
