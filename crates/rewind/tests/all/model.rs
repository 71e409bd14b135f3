//! Random transactions against a model, in every configuration; the log is dropped in between, as a dead process drops it.

use std::sync::Arc;

use durix_pmem::backing::HeapBacking;
use durix_pmem::{Hardware, Pool, PoolOptions, Session};
use durix_rewind::{Layers, LogKind, Options, Policy, TransactionManager};
use proptest::collection::vec;
use proptest::prelude::*;

#[derive(Clone, Debug)]
enum Step {
    Commit(Vec<(usize, u64)>),
    Rollback(Vec<(usize, u64)>),
    /// The process dies in a transaction.
    Die(Vec<(usize, u64)>),
    Checkpoint,
}

fn step() -> impl Strategy<Value = Step> {
    let writes = || vec((0..8usize, 1..1000u64), 0..20);
    prop_oneof![
        4 => writes().prop_map(Step::Commit),
        2 => writes().prop_map(Step::Rollback),
        1 => writes().prop_map(Step::Die),
        1 => Just(Step::Checkpoint),
    ]
}

fn options() -> impl Strategy<Value = Options> {
    let log = prop_oneof![Just(LogKind::Simple), Just(LogKind::Optimized), (2..40u64).prop_map(LogKind::Batch)];
    let layers = prop_oneof![Just(Layers::One), Just(Layers::Two)];
    let policy = prop_oneof![Just(Policy::Force), Just(Policy::NoForce)];
    (log, layers, policy, 8..64u64, 1..4u64).prop_map(|(log, layers, policy, slots, lanes)| {
        Options::default().log(log).layers(layers).policy(policy).bucket(slots).lanes(lanes)
    })
}

struct World {
    pool: Pool<Hardware>,
    tm: Arc<TransactionManager>,
    session: Session,
    options: Options,
}

impl World {
    fn new(options: Options) -> Self {
        let pool_options = PoolOptions::new().chunk_size(4096).lanes(1).max_indices(2);
        let pool =
            pool_options.initial_size(1 << 20).create_on(HeapBacking::new(4 << 20), Hardware::PAGE_CACHE).unwrap();
        let tm = TransactionManager::open(&pool, "log", &options).unwrap();
        let session = pool.session().unwrap();
        World { pool, tm, session, options }
    }

    fn reopen(&mut self) {
        let aside = TransactionManager::open(&self.pool, "aside", &self.options).unwrap();
        drop(std::mem::replace(&mut self.tm, aside));
        self.tm = TransactionManager::open(&self.pool, "log", &self.options).unwrap();
    }

    fn run(&mut self, step: &Step, model: &mut [u64; 8]) {
        let (Step::Commit(writes) | Step::Rollback(writes) | Step::Die(writes)) = step else {
            self.tm.checkpoint(&mut self.session).unwrap();
            return;
        };
        let mut seen = *model;
        let mut tx = self.tm.begin(&mut self.session).unwrap();
        for (cell, value) in writes {
            tx.set(self.tm.cell(*cell), *value).unwrap();
            seen[*cell] = *value;
            assert_eq!(tx.get(self.tm.cell(*cell)).unwrap(), seen[*cell]);
        }
        match step {
            Step::Commit(_) => {
                tx.commit().unwrap();
                *model = seen;
            }
            Step::Rollback(_) => tx.rollback().unwrap(),
            _ => {
                std::mem::forget(tx);
                self.reopen();
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 120, ..ProptestConfig::default() })]
    #[test]
    fn transactions_follow_the_model(options in options(), steps in vec(step(), 1..30)) {
        let (mut world, mut model) = (World::new(options), [0; 8]);
        for step in &steps {
            world.run(step, &mut model);
            let cells: [u64; 8] = std::array::from_fn(|n| {
                world.tm.transaction(&mut world.session, |tx| tx.get(world.tm.cell(n))).unwrap()
            });
            prop_assert_eq!(cells, model);
            prop_assert_eq!(world.tm.check(&mut world.session).unwrap(), Vec::<String>::new());
        }
        world.reopen();
        prop_assert_eq!(world.tm.records(&mut world.session).unwrap(), 0);
    }
}
