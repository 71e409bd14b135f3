//! Giving types to an index, crashed anywhere: whoever has filled an index can open it again with the same types.

use std::sync::atomic::Ordering;

use durix::{Db, Error, Map, PoolOptions, TypeNames, TypeTag, Value};
use durix_crashsim::{Explorer, Report, Simulated, Subject};
use durix_pmem::{Mutating, Mutation, Plan, SiteKind};

type M = Mutating<Simulated>;

/// The types that an index is filled with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Types {
    Numbers,
    Words,
}

#[derive(Clone, Copy, Debug)]
enum Op {
    Insert(Types),
    Remove(Types),
}

struct Typed(&'static Plan);

const LEN: u64 = 24 * 4096;

fn options() -> PoolOptions {
    let options = PoolOptions::new().chunk_size(4096).max_indices(2).lanes(1).pool_id([7; 16]).boot_id([7; 16]);
    options.initial_size(LEN).max_size(LEN)
}

fn numbers(db: &Db<M>) -> Result<Map<u64, u64, M>, Error> {
    db.map("typed")
}

fn words(db: &Db<M>) -> Result<Map<String, String, M>, Error> {
    db.map("typed")
}

/// Makes sure that the types of an index with entries are kept for a repair, too, before somebody opens it with types: that keeps them again.
fn kept(db: &Db<M>) -> Result<(), String> {
    let index = durix::kind::open_as_is(db.pool(), "typed").map_err(|e| e.to_string())?;
    let mut session = db.pool().session().unwrap();
    if index.is_empty(&session.enter().unwrap()).unwrap() {
        return Ok(());
    }
    let op = session.enter().unwrap();
    let [.., key, value] = index.root().words(&op).each_ref().map(|word| op.load(word, Ordering::Relaxed));
    let kept = index.root().kept(&op);
    if kept == Some([key, value]) { Ok(()) } else { Err(format!("kept: {kept:x?}, not {key:x}, {value:x}")) }
}

impl Subject for Typed {
    type Op = Op;
    /// Whether the index could be opened with these types.
    type Ret = bool;
    /// The types of the one entry, if it is there.
    type State = Option<Types>;
    type Model = Option<Types>;
    type Store = (Simulated, M);
    type Live = Db<M>;

    fn store(&self, medium: Simulated) -> Self::Store {
        (medium, Mutating::new(medium, self.0))
    }

    fn create(&self, (simulated, medium): &Self::Store) -> Db<M> {
        let db = Db::over(options().create_on(simulated.backing(0).with_limit(LEN), *medium).unwrap());
        drop(numbers(&db).unwrap());
        db
    }

    fn recover(&self, (simulated, medium): &Self::Store) -> Result<Db<M>, String> {
        let backing = simulated.backing(LEN);
        let pool = options().open_on(backing, *medium).and_then(|pool| pool.recover());
        let db = Db::over(pool.map_err(|e| e.to_string())?);
        kept(&db)?;
        Ok(db)
    }

    fn apply(&self, db: &mut Db<M>, op: &Op) -> bool {
        let done = match op {
            Op::Insert(Types::Numbers) => numbers(db).map(|map| _ = map.insert(&1, &1).unwrap()),
            Op::Insert(Types::Words) => words(db).map(|map| _ = map.insert("one", "1").unwrap()),
            Op::Remove(Types::Numbers) => numbers(db).map(|map| _ = map.remove(&1).unwrap()),
            Op::Remove(Types::Words) => words(db).map(|map| _ = map.remove("one").unwrap()),
        };
        match done {
            Ok(()) => true,
            Err(Error::WrongType { .. }) => false,
            Err(other) => panic!("{other}"),
        }
    }

    fn observe(&self, db: &mut Db<M>) -> Option<Types> {
        if numbers(db).is_ok_and(|map| map.get(&1).unwrap() == Some(1)) {
            return Some(Types::Numbers);
        }
        let there = words(db).is_ok_and(|map| map.get("one").unwrap().as_deref() == Some("1"));
        there.then_some(Types::Words)
    }

    fn model(&self) -> Option<Types> {
        None
    }

    fn step(&self, model: &mut Option<Types>, op: &Op) -> bool {
        let (Op::Insert(types) | Op::Remove(types)) = op;
        let fits = model.is_none_or(|there| there == *types);
        if fits {
            *model = matches!(op, Op::Insert(_)).then_some(*types);
        }
        fits
    }

    fn expect(&self, model: &Option<Types>) -> Option<Types> {
        *model
    }
}

fn explore(plan: &'static Plan) -> Report {
    use Types::{Numbers, Words};
    // What follows each recovery finds an entry that is there under tags that are not its own.
    let ops = [Op::Insert(Words), Op::Insert(Numbers), Op::Remove(Words), Op::Insert(Numbers)];
    Explorer::new().executions_per_point(300).samples(20).run_then(&Typed(plan), &ops, &[Op::Insert(Words)])
}

#[test]
fn types_are_durable_before_the_first_entry() {
    println!("{}", explore(Plan::new()).assert_ok());
}

#[test]
fn without_their_write_back_or_fence_they_are_not() {
    let probe = Plan::new();
    explore(probe).assert_ok();
    let own = |file: &str| file.ends_with("types.rs");
    let kinds = [SiteKind::WriteBack, SiteKind::Fence];
    let sites: Vec<_> = probe.sites().into_iter().map(|(site, _)| site).collect();
    let sites: Vec<_> = sites.into_iter().filter(|s| own(s.file) && kinds.contains(&s.kind)).collect();
    assert!(!sites.is_empty());
    let mut caught = 0;
    for site in &sites {
        let plan = Plan::new();
        plan.mutate(*site, Mutation::Drop);
        caught += u32::from(explore(plan).failure.is_some());
    }
    // `declare` has one of each; the ones of `claim` matter after the mere death of a process.
    assert_eq!(caught, 2, "of {sites:?}");
}

// ---- names ----

struct Id(u64);

durix::stored_as!(Id as u64, "Id 1", |id| id.0, |id| Some(Id(id)));

/// An index whose values have a type that only its name tells.
struct Called(&'static Plan);

fn called(db: &Db<M>) -> Map<u64, Id, M> {
    db.map("called").unwrap()
}

impl Subject for Called {
    /// Opens the map and inserts this key.
    type Op = u64;
    type Ret = bool;
    /// The number of entries, and whether the pool knows the name of their type.
    type State = (u64, bool);
    type Model = u64;
    type Store = (Simulated, M);
    type Live = Db<M>;

    fn store(&self, medium: Simulated) -> Self::Store {
        (medium, Mutating::new(medium, self.0))
    }

    fn create(&self, (simulated, medium): &Self::Store) -> Db<M> {
        Db::over(options().create_on(simulated.backing(0).with_limit(LEN), *medium).unwrap())
    }

    fn recover(&self, (simulated, medium): &Self::Store) -> Result<Db<M>, String> {
        let pool = options().open_on(simulated.backing(LEN), *medium).and_then(|pool| pool.recover());
        Ok(Db::over(pool.map_err(|e| e.to_string())?))
    }

    fn apply(&self, db: &mut Db<M>, key: &u64) -> bool {
        called(db).insert(key, &Id(*key)).unwrap()
    }

    fn observe(&self, db: &mut Db<M>) -> (u64, bool) {
        if db.indices().unwrap().is_empty() {
            return (0, false);
        }
        // As bytes, so that looking gives no types to it.
        let index = db.open_index("called", None).unwrap();
        let entries = index.count(&mut db.pool().session().unwrap()).unwrap();
        let tag: TypeTag = <Id as Value>::tag();
        (entries, entries > 0 && TypeNames::of(db.pool()).name(tag) == "Id 1")
    }

    fn model(&self) -> u64 {
        0
    }

    fn step(&self, entries: &mut u64, _: &u64) -> bool {
        *entries += 1;
        true
    }

    fn expect(&self, entries: &u64) -> (u64, bool) {
        (*entries, *entries > 0)
    }
}

fn explore_names(plan: &'static Plan) -> Report {
    Explorer::new().executions_per_point(300).samples(20).run_then(&Called(plan), &[1, 2], &[3])
}

#[test]
fn the_name_of_a_type_is_durable_before_the_first_entry() {
    println!("{}", explore_names(Plan::new()).assert_ok());
}

#[test]
fn without_its_write_back_or_fence_it_is_not() {
    let probe = Plan::new();
    explore_names(probe).assert_ok();
    let kinds = [SiteKind::WriteBack, SiteKind::Fence];
    let sites = probe.sites().into_iter().map(|(site, _)| site);
    let sites: Vec<_> = sites.filter(|s| s.file.ends_with("names/mod.rs") && kinds.contains(&s.kind)).collect();
    let caught = |site| {
        let plan = Plan::new();
        plan.mutate(site, Mutation::Drop);
        explore_names(plan).failure.is_some()
    };
    let caught: Vec<_> = sites.iter().filter(|site| caught(**site)).collect();
    // The record's own write-back and fence. What `put` writes back again matters after the mere death of a process, and the zeroes of a
    // new extent where it held a record before.
    assert_eq!(caught.len(), 2, "of {sites:?}: {caught:?}");
}
