//! Section 6.1: InCLL for interior nodes, too: nodes of slots under a permutation, so that a separator that comes or goes takes no
//! image in the external log. The trees grow: new keys are what changes interior nodes.

use std::hint::black_box;

use durix_incll::{Durable, InteriorInLine};
use durix_pmem::Medium;
use durix_pmem::medium::{Counting, Counts};

use super::trees::{
    Kind, Phased, Random, Room, Rounded, Tree, WARM_UP, empty, figure, in_turn, key, keys_of, millions, panel,
    room_for, rounded,
};
use crate::interleave::{Outcome, Stopwatch};
use crate::paper::figure::{Context, Error, Figure, Measured};
use crate::paper::report::{Claim, Form, Panel, Point};
use crate::place::Place;
use crate::workload::medium;

pub(in crate::paper) const FIGURE: Figure =
    figure("incll-interior", "InCLL for interior nodes, too (section 6.1), growing trees", run);

/// What a phase does: so many of a hundred operations insert new keys, the others look up keys that are there.
const LOADS: [(&str, u8); 3] = [("new keys", 100), ("A, with new keys", 50), ("C", 0)];

/// Operations of a phase.
const OPS: u64 = 1 << 18;

/// Keys of the trees whose write-backs and fences are counted, at most; operations between two boundaries there.
const COUNTED_KEYS: u64 = 1_000_000;
const COUNTED_EPOCH: u64 = 1 << 16;

/// A tree that gets new keys.
struct Growing<M: Medium, P: Kind> {
    tree: Tree<M, P>,
    random: Random,
}

impl<M: Medium, P: Kind> Growing<M, P> {
    fn fill_in(room: &mut Room<M>, keys: u64) -> Result<Self, Error> {
        Ok(Growing { tree: Tree::fill_in(room, keys)?, random: Random(61) })
    }

    /// One operation. Keys are numbered; those below `tree.keys` are there.
    fn one(&mut self, inserts: u8) -> durix_incll::Result<()> {
        let Tree { tree, session, keys, .. } = &mut self.tree;
        let op = session.enter()?;
        let random = self.random.next();
        if (random >> 32) % 100 < u64::from(inserts) {
            tree.insert(&op, &key(*keys).to_be_bytes(), &keys.to_le_bytes())?;
            *keys += 1;
        } else {
            let found = tree.get(&op, &key(random % *keys).to_be_bytes())?;
            black_box(found.map(|value| value.as_u64()));
        }
        Ok(())
    }

    /// `OPS` operations, with a boundary where its time has come.
    fn work(&mut self, inserts: u8) -> durix_incll::Result<()> {
        for done in 1..=OPS {
            self.one(inserts)?;
            if done % 64 == 0 {
                self.tree.tree.tick(&mut self.tree.session)?;
            }
        }
        self.tree.tree.sync(&mut self.tree.session)
    }

    fn logged(&mut self) -> durix_incll::Result<u64> {
        Ok(self.tree.tree.logged_nodes(&self.tree.session.enter()?))
    }
}

impl<M: Medium, P: Kind> Phased for Growing<M, P> {
    fn name(&self) -> &str {
        P::NAME
    }

    fn phase(&mut self, number: usize) -> f64 {
        let start = Stopwatch::start();
        self.work(LOADS[number].1).expect("a sound tree with room");
        start.elapsed().as_nanos() as f64 / OPS as f64
    }
}

/// What a phase costs, for each of a million operations.
struct Costs {
    logged: f64,
    fences: f64,
    write_backs: f64,
}

/// Counts what the phases do to a tree of `keys` keys, with a boundary each [`COUNTED_EPOCH`] operations.
fn count<P: Kind>(place: &Place, keys: u64) -> Result<[Costs; LOADS.len()], Error> {
    let counting = Counting::new(medium());
    let mut tree = Growing::<_, P>::fill_in(&mut room_for(place, counting, (1, keys * 3))?, keys)?;
    let mut one = |inserts| -> durix_incll::Result<Costs> {
        let (before, logged) = (counting.counts(), tree.logged()?);
        for done in 1..=OPS {
            tree.one(inserts)?;
            if done % COUNTED_EPOCH == 0 {
                tree.tree.tree.sync(&mut tree.tree.session)?;
            }
        }
        let (after, scale) = (counting.counts(), 1e6 / OPS as f64);
        let of = |count: fn(&Counts) -> u64| (count(&after) - count(&before)) as f64 * scale;
        let logged = (tree.logged()? - logged) as f64 * scale;
        Ok(Costs { logged, fences: of(|c| c.fences), write_backs: of(|c| c.write_backs) })
    };
    Ok([one(LOADS[0].1)?, one(LOADS[1].1)?, one(LOADS[2].1)?])
}

fn run(context: &Context<'_>) -> Result<Measured, Error> {
    let how = Rounded { rounds: 9, fillings: if context.quick { 1 } else { 2 }, ..rounded(context, keys_of(context)) };
    context.expect(1, how.all_rounds(LOADS.len()));
    let mut measured = empty(context, how.keys);
    measured.panels.extend(counted(&context.places[0], &how)?);
    for place in &context.places {
        context.now(format!("interior nodes, {}", place.pages));
        let outcomes = timed(context, place, &how)?;
        let mut speeds = of_loads("growing trees", place, &how, "million operations/s");
        speeds.method = format!(
            "{} keys at first, one thread; {} fillings with {} rounds of {OPS} operations",
            millions(how.keys),
            how.fillings,
            how.rounds
        );
        for outcome in &outcomes {
            (0..LOADS.len()).for_each(|at| speeds.set(&outcome.name, at, Point::throughput(&outcome.phases[at])));
        }
        measured.panels.push(speeds);
        measured.claims.extend(claims(place, &outcomes));
    }
    Ok(measured)
}

fn of_loads(title: &str, place: &Place, how: &Rounded, unit: &str) -> Panel {
    let x = LOADS.iter().map(|(name, _)| (*name).to_owned()).collect();
    panel(title, place, how, ("operations", x), (unit, Form::Bars))
}

/// What is counted, and which of the [`Costs`] it is.
type Quantity = (&'static str, fn(&Costs) -> f64);

/// Makes one of the trees that grow, in the next [room](room_for).
type Make<M> = fn(&mut Room<M>, u64) -> Result<Box<dyn Phased>, Error>;

/// Exact counts, which do not depend on pages.
fn counted(place: &Place, how: &Rounded) -> Result<Vec<Panel>, Error> {
    let keys = how.keys.min(COUNTED_KEYS);
    let counts = [
        (Durable::NAME, count::<Durable>(place, keys)?),
        (InteriorInLine::NAME, count::<InteriorInLine>(place, keys)?),
    ];
    let quantities: [Quantity; 3] = [
        ("nodes logged", |costs| costs.logged),
        ("fences", |costs| costs.fences),
        ("lines written back", |costs| costs.write_backs),
    ];
    let panel = |(what, of): Quantity| {
        let mut panel = of_loads(what, place, how, &format!("{what}, a million operations"));
        panel.method =
            format!("{} keys at first; counted over {OPS} operations, a boundary each {COUNTED_EPOCH}", millions(keys));
        for (name, costs) in &counts {
            (0..LOADS.len()).for_each(|at| panel.set(name, at, Point::exact(of(&costs[at]))));
        }
        panel
    };
    Ok(quantities.map(panel).into())
}

/// Both trees phase by phase, in fresh memory for each filling, which begins with the other one.
fn timed(context: &Context<'_>, place: &Place, how: &Rounded) -> Result<Vec<Outcome<{ LOADS.len() }>>, Error> {
    let mut all = Vec::<Outcome<{ LOADS.len() }>>::new();
    let grown = how.keys + OPS * (how.rounds + WARM_UP) as u64 * 3 / 2;
    for filling in 0..how.fillings {
        let room = &mut room_for(place, medium(), (2, grown))?;
        let mut makers: [Make<_>; 2] = [
            |room, keys| Ok(Box::new(Growing::<_, Durable>::fill_in(room, keys)?)),
            |room, keys| Ok(Box::new(Growing::<_, InteriorInLine>::fill_in(room, keys)?)),
        ];
        makers.rotate_left(filling % 2);
        let mut trees = makers.into_iter().map(|make| make(room, how.keys)).collect::<Result<Vec<_>, Error>>()?;
        for outcome in in_turn(&mut trees, (how.order, how.rounds), &mut || context.tick()) {
            match all.iter_mut().find(|known| known.name == outcome.name) {
                Some(known) => known.append(&outcome),
                None => all.push(outcome),
            }
        }
    }
    Ok(all)
}

/// How the tree with it does beside the one without.
fn claims(place: &Place, outcomes: &[Outcome<{ LOADS.len() }>]) -> Vec<Claim> {
    let of = |name: &str| outcomes.iter().find(|outcome| outcome.name == name);
    let (Some(base), Some(ours)) = (of(Durable::NAME), of(InteriorInLine::NAME)) else { return Vec::new() };
    let claim = |at: usize| {
        let longer = (ours.phases[at].ratio_to(&base.phases[at]).median() - 1.0) * 100.0;
        Claim {
            what: format!("an operation with InCLL for interior nodes, too, {}, {}", LOADS[at].0, place.pages),
            paper: "lower performance".into(),
            ours: format!("{longer:+.1}% time"),
            holds: None,
        }
    };
    (0..LOADS.len()).map(claim).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_trees_grow_alike() {
        let place = Place::at(std::env::temp_dir());
        let grown = 2000 + OPS;
        fn grow<P: Kind>(place: &Place, grown: u64) {
            let mut tree = Growing::<_, P>::fill_in(&mut room_for(place, medium(), (1, grown)).unwrap(), 2000).unwrap();
            tree.work(LOADS[0].1).unwrap();
            assert_eq!(tree.tree.keys, grown);
            let op = tree.tree.session.enter().unwrap();
            assert_eq!((tree.tree.tree.check(&op).unwrap(), tree.tree.tree.len(&op).unwrap()), (vec![], grown));
        }
        grow::<InteriorInLine>(&place, grown);
        grow::<Durable>(&place, grown);
    }
}
