//! Space: bytes of persistent memory for a key, after inserts in random order. In ours it is what the pool has given out, in whole chunks,
//! logs and free units included; in the comparators what they have cut from their mapping, without the bookkeeping of an allocator.

use durix_pmem::{Hardware, Mapping, Medium, Pool, Session, Tick};

use super::peers::notes;
use super::trees::{figure, key, pool_for};
use crate::cso_append::medium;
use crate::paper::figure::{Context, Error, Figure, Measured, check_room};
use crate::paper::report::{Claim, Form, Panel, Point};
use crate::place::Place;
use crate::trees::Ordered;
use crate::trees::fast_fair::FastFair;
use crate::trees::fptree::FpTree;
use crate::trees::lb_tree::LbTree;
use crate::trees::wort::Wort;

pub(in crate::paper) const FIGURE: Figure = figure(
    "dptree-space",
    "bytes of persistent memory for a key of 8 bytes and its value: ours and the comparators",
    "keys, instead of 20 million (one million with --quick)",
    run,
);

/// Ours, with the bytes a key that are the goal, where there is one.
const KINDS: [(&str, Option<f64>); 3] = [("dptree", None), ("bplustree", None), ("masstree", Some(64.0))];
/// Keys between two looks at the services.
const CHUNK: u64 = 1000;

/// Bytes that a pool has given out.
fn given(pool: &Pool<Hardware>) -> Result<u64, Error> {
    let space = pool.stats()?.space;
    Ok(space.total - space.free)
}

/// Runs the services until none is due.
fn serve(pool: &Pool<Hardware>, session: &mut Session<Hardware>) -> Result<(), Error> {
    while pool.tick(session)? == Tick::Worked {}
    Ok(())
}

fn of_kind(context: &Context<'_>, place: &Place, kind: &'static str, keys: u64) -> Result<f64, Error> {
    let pool = pool_for(place, 2 * keys)?;
    let before = given(&pool)?;
    let index = durix::kind::named(kind)?.open_or_create(&pool, "keys")?;
    let mut session = pool.session()?;
    for number in 0..keys {
        let (key, value) = (key(number).to_be_bytes(), number.to_le_bytes());
        index.insert(&session.enter()?, &key, &value)?;
        if number % CHUNK == 0 {
            serve(&pool, &mut session)?;
            context.tell();
        }
    }
    serve(&pool, &mut session)?;
    Ok((given(&pool)? - before) as f64 / keys as f64)
}

/// A comparator's name and bytes a key.
type Counted = fn(&Place, u64) -> Result<(&'static str, f64), Error>;

fn of_comparator<T: Ordered<Hardware>>(place: &Place, keys: u64) -> Result<(&'static str, f64), Error> {
    check_room(place, T::bytes(keys), || format!("{} with {keys} keys", T::NAME))?;
    let mapping: Mapping<Hardware> = place.map(T::bytes(keys), medium())?;
    let (mut tree, mut session) = (T::create(&mapping)?, mapping.session()?);
    for number in 0..keys {
        assert!(tree.insert(&session.enter()?, key(number), number + 1), "{}: key number {number} is new", T::NAME);
    }
    Ok((T::NAME, tree.used() as f64 / keys as f64))
}

fn run(context: &Context<'_>) -> Result<Measured, Error> {
    let keys = context.keys_or(if context.quick { 1_000_000 } else { 20_000_000 });
    context.expect(1, KINDS.len() + 4);
    // The size of a page changes nothing.
    let place = &context.places[0];
    let mut found: Vec<(&'static str, f64)> = Vec::new();
    let mut claims = Vec::new();
    for (kind, goal) in KINDS {
        context.now(format!("{kind}, {keys} keys"));
        let bytes = of_kind(context, place, kind, keys)?;
        found.push((kind, bytes));
        claims.extend(goal.map(|goal| Claim {
            what: format!("bytes a key, {kind}, {keys} keys"),
            paper: format!("goal {goal} at 20 million keys"),
            ours: format!("{bytes:.1}"),
            holds: Some(bytes <= goal),
        }));
        context.tick();
    }
    let comparators: [Counted; 4] =
        [of_comparator::<FastFair>, of_comparator::<FpTree<true>>, of_comparator::<LbTree>, of_comparator::<Wort>];
    for comparator in comparators {
        context.now(format!("a comparator, {keys} keys"));
        found.push(comparator(place, keys)?);
        context.tick();
    }
    let how = format!("once, {keys} keys of 8 bytes in random order, values of 8 bytes; DRAM is not in it");
    let panel = Panel::new("space for a key", place, medium().describe(), how);
    let x = found.iter().map(|(name, _)| (*name).to_owned()).collect();
    let mut panel = panel.axes("tree", x, "bytes a key", Form::Bars);
    found.iter().enumerate().for_each(|(at, (_, bytes))| panel.set("in use", at, Point::exact(*bytes)));
    Ok(Measured { panels: vec![panel], claims, notes: notes().into_iter().take(1).collect() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_tree_takes_less_than_its_keys_and_values() {
        super::super::peers::with_context(|context, place| {
            for (kind, _) in KINDS {
                assert!(of_kind(context, place, kind, 50_000).unwrap() >= 16.0, "{kind}");
            }
            let (name, bytes) = of_comparator::<LbTree>(place, 50_000).unwrap();
            assert!(bytes >= 16.0, "{name}: {bytes}");
        });
    }
}
