//! The durable Masstree, and the epochs that it rests on.

use durix_crashsim::{Contract, Explorer};

use crate::scenario::{Of, Scenario};
use crate::sweep::Structure;
use durix_incll::testing::{scenarios, subject, trees as in_pools};
use durix_subjects::epochs;

fn buffered() -> Explorer {
    Explorer::new().contract(Contract::Buffered).executions_per_point(400).samples(60)
}

/// Two trees in a pool: what concerns creation, chunks used before, and trees that stay closed.
fn pools() -> Vec<Box<dyn Scenario>> {
    use in_pools::{Both, Put, Remove, Sync, SyncByOther};
    let after = [Put(0, 9, 9), Sync, Both(8, 108)];
    let scenario = |name: &str, used, explorer: Explorer, acts: &[in_pools::Act]| {
        Of::new(name, move |plan| in_pools::Tested { plan, used }, acts).with(explorer).after(&after).boxed()
    };
    let first = [Put(0, 1, 1), Both(2, 102)];
    vec![
        scenario("creation in a pool", false, buffered().crash_in_create(true), &first[..1]),
        scenario("used chunks of a pool", true, buffered(), &first),
        scenario("two trees", false, buffered(), &[Put(0, 1, 1), Sync, Both(3, 4)]),
        // An extent that one session has added is durable, whoever runs the boundary.
        scenario("a boundary by another session", false, buffered(), &[Put(0, 1, 101), SyncByOther]),
        scenario("two trees, removing", false, buffered(), &[Both(2, 102), Sync, Remove(0, 2), Sync, Both(3, 4)]),
    ]
}

pub(super) fn masstree() -> Structure {
    let after = scenarios::after();
    let creation = Of::new("creation", |plan| subject::Tested::new(plan, vec![]), &[subject::Act::Put(0, 1)]);
    let mut all = vec![creation.with(buffered().crash_in_create(true)).after(&after).boxed()];
    // That one has hundreds of nodes, and reaches nothing that the others do not.
    for (name, before, acts) in
        scenarios::scenarios().into_iter().filter(|(name, ..)| *name != "an interior root splits")
    {
        let of = Of::new(name, move |plan| subject::Tested::new(plan, before.clone()), &acts);
        all.push(of.with(buffered()).after(&after).boxed());
    }
    all.extend(pools());
    Structure { name: "Masstree", files: &["crates/incll/src/"], releases: false, scenarios: all, equivalent: &[] }
}

pub(super) fn epochs() -> Structure {
    use epochs::Act::{Both, Left, Right, Sync};
    let scenario = |name: &str, acts: &[epochs::Act], after: &[epochs::Act]| {
        Of::new(name, |plan| epochs::Tested { plan }, acts).with(buffered()).after(after)
    };
    let mut scenarios = vec![
        scenario("a boundary", &[Left(0, 1), Sync, Both(5)], &[Left(2, 8), Sync, Both(9)]).nested().boxed(),
        scenario(
            "boundaries",
            &[Left(0, 1), Both(2), Sync, Right(1, 3), Left(0, 4), Sync, Both(5), Right(1, 6)],
            &[Left(2, 8), Sync, Both(9)],
        )
        .nested()
        .boxed(),
        scenario("death", &[Left(0, 1), Sync], &[Both(7), Sync]).nested_deaths().boxed(),
    ];
    let [acts, after] = epochs::closed_for_a_while();
    scenarios.push(scenario("closed for a while", &acts, &after).boxed());
    scenarios.extend(pools());
    Structure { name: "epochs", files: &["pmem/src/epoch/"], releases: false, scenarios, equivalent: &[] }
}
