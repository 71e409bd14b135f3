//! Every crash state of short sequences of appends and removals.

use super::*;
use durix_crashsim::{Explorer, Persistency, Report, Simulated, Sites, Subject, mutation_sweep};
use durix_pmem::{Counting, Hardware, Mapping, Mutating, Plan, Session};

const HEADER: Off<Header> = Off::new(4096);
const NODES: u64 = 4096 + 64;
const COUNT: u64 = 6;

#[derive(Clone, Copy, Debug)]
enum Act {
    Append(u64),
    /// Removes the element at this position, counted from the front; the last one where there are fewer.
    Remove(usize),
    /// Recovers once more, as the next process does.
    Reopen,
}
use Act::{Append, Remove, Reopen};

struct Tested {
    plan: &'static Plan,
    policy: StorePolicy,
}

type M = Mutating<Simulated>;

struct Live {
    session: Session<M>,
    /// Takes turns with the first, so that neither's fences do for the other.
    other: Session<M>,
    list: Adll,
}

fn elements(op: &Op<'_, M>, list: Adll) -> Vec<(Off<Node>, u64)> {
    let nodes = list.nodes(op, COUNT).unwrap();
    nodes.into_iter().map(|node| (node, op.load(&op.at(node).element, Relaxed))).collect()
}

impl Subject for Tested {
    type Op = Act;
    type Ret = ();
    type State = Vec<u64>;
    type Model = Vec<u64>;
    type Store = Mapping<M>;
    type Live = Live;

    fn store(&self, medium: Simulated) -> Self::Store {
        Mapping::heap(8192, Mutating::new(medium, self.plan))
    }

    fn create(&self, store: &Self::Store) -> Live {
        let list = Adll::new(HEADER, self.policy);
        let (mut session, other) = (store.session().unwrap(), store.session().unwrap());
        let op = session.enter().unwrap();
        // Its place has been used before.
        op.at(HEADER).view::<[Word; 8]>().iter().for_each(|word| op.store(word, NODES, Relaxed));
        op.persist(op.at(HEADER));
        list.format(&op);
        op.fence();
        drop(op);
        Live { session, other, list }
    }

    fn recover(&self, store: &Self::Store) -> Result<Live, String> {
        let list = Adll::new(HEADER, self.policy);
        let (mut session, other) = (store.session().unwrap(), store.session().unwrap());
        list.recover(&session.enter().unwrap()).map_err(|e| e.to_string())?;
        Ok(Live { session, other, list })
    }

    fn apply(&self, live: &mut Live, act: &Act) {
        std::mem::swap(&mut live.session, &mut live.other);
        let op = live.session.enter().unwrap();
        let (list, there) = (live.list, elements(&op, live.list));
        match *act {
            Append(element) => {
                let mut free = (0..COUNT).map(|n| Off::new(NODES + n * 64));
                let node = free.find(|node| there.iter().all(|(taken, _)| taken != node)).unwrap();
                list.append(&op, node, element);
            }
            Remove(at) => {
                if let Some((node, _)) = there.get(at.min(there.len().saturating_sub(1))) {
                    list.remove(&op, *node);
                    // It may be used for something else now.
                    op.at(*node).view::<[Word; 8]>().iter().for_each(|word| op.store(word, 64, Relaxed));
                    op.write_back(op.at(*node));
                }
            }
            Reopen => list.recover(&op).unwrap(),
        }
    }

    fn observe(&self, live: &mut Live) -> Vec<u64> {
        let op = live.session.enter().unwrap();
        elements(&op, live.list).into_iter().map(|(_, element)| element).collect()
    }

    fn model(&self) -> Vec<u64> {
        Vec::new()
    }

    fn step(&self, model: &mut Vec<u64>, act: &Act) {
        match *act {
            Append(element) => model.push(element),
            Remove(at) if !model.is_empty() => drop(model.remove(at.min(model.len() - 1))),
            Remove(_) | Reopen => {}
        }
    }

    fn expect(&self, model: &Vec<u64>) -> Vec<u64> {
        model.clone()
    }
}

const ALPHABET: [Act; 5] = [Append(1), Append(2), Remove(0), Remove(1), Remove(9)];
const AFTER: [Act; 4] = [Append(7), Remove(0), Append(8), Reopen];

fn deep() -> usize {
    usize::from(std::env::var_os("DURIX_DEEP").is_some())
}

#[test]
fn all_short_sequences() {
    for policy in [StorePolicy::WriteBack, StorePolicy::NonTemporal] {
        for model in [Persistency::Pcso, Persistency::TornWords] {
            let explorer = Explorer::new().model(model).crashes(2);
            let tested = Tested { plan: Plan::new(), policy };
            let report = explorer.sequences(&tested, &ALPHABET, 4 + deep(), &AFTER).assert_ok();
            println!("{policy:?}: {report}");
            assert!(report.complete, "{report}");
        }
    }
}

#[test]
fn processes_die_before_the_power_fails() {
    let explorer = Explorer::new().model(Persistency::TornWords).process_deaths(true);
    let tested = Tested { plan: Plan::new(), policy: StorePolicy::WriteBack };
    for acts in [[Append(1), Append(2), Remove(0)], [Append(1), Remove(0), Append(2)]] {
        println!("{}", explorer.run_then(&tested, &acts, &AFTER).assert_ok());
    }
}

/// Short runs that reach every site.
fn runs(plan: &'static Plan, policy: StorePolicy) -> Report {
    let explorer = Explorer::new().model(Persistency::TornWords).crashes(2).process_deaths(true);
    let mut total = Report::default();
    for acts in [vec![Append(1), Append(2), Remove(0), Append(3)], vec![Append(1), Append(2), Append(3), Remove(1)]] {
        total.merge(explorer.run_then(&Tested { plan, policy }, &acts, &AFTER));
        if total.failure.is_some() {
            break;
        }
    }
    total
}

#[test]
fn every_write_back_and_fence_is_needed() {
    let sweep = mutation_sweep(&Sites::in_files("rewind/src/adll.rs"), |plan| runs(plan, StorePolicy::WriteBack));
    println!("{sweep}");
    assert_eq!(sweep.assert_all_caught(&[]).mutants.len(), 21);
}

/// An append costs three fences, a removal as many. Through the cache: a line for the node, one for its neighbour, three times the
/// header's. A non-temporal store saves write-backs, and needs a fence more to clear what was pending.
#[test]
fn costs_are_exact() {
    for (policy, append, remove) in
        [(StorePolicy::WriteBack, (4, 3), (4, 3)), (StorePolicy::NonTemporal, (2, 4), (2, 3))]
    {
        let counting = Counting::new(Hardware::PAGE_CACHE);
        let mapping = Mapping::heap(8192, counting);
        let mut session = mapping.session().unwrap();
        let op = session.enter().unwrap();
        let list = Adll::new(HEADER, policy);
        list.format(&op);
        let node = |n: u64| Off::new(NODES + n * 64);
        [0, 1].into_iter().for_each(|n| list.append(&op, node(n), n));
        let cost = |act: &dyn Fn()| {
            let before = counting.counts();
            act();
            let spent = counting.counts() - before;
            (spent.write_backs, spent.fences)
        };
        assert_eq!(cost(&|| list.append(&op, node(2), 2)), append, "{policy:?}");
        assert_eq!(cost(&|| list.remove(&op, node(1))), remove, "{policy:?}");
    }
}
