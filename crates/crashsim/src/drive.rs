//! Many sequences of operations: all short ones, or generated and shrunk by proptest.

use durix_pmem::testing::mix;
use proptest::strategy::{Strategy as Generate, ValueTree};
use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};

use crate::explore::Explorer;
use crate::replay::Case;
use crate::report::{Failure, Report};
use crate::subject::Subject;

/// Moves of shrinking after which the smallest failure so far is reported; they must fit into the replay string.
const MAX_MOVES: usize = 600;

impl Explorer {
    /// Runs every sequence of exactly `len` operations out of `alphabet` (shorter ones are their prefixes: the crash
    /// points of a sequence include those of all its prefixes), each followed by `after` on the recovered structure.
    /// Stops at the first failure, with the shortest failing prefix of that sequence.
    #[must_use = "a report may hold a failure: call `assert_ok`, or look at `failure`"]
    pub fn sequences<S: Subject>(&self, subject: &S, alphabet: &[S::Op], len: usize, after: &[S::Op]) -> Report {
        sequences(self, alphabet, len, after, |explorer, ops, after| explorer.run_then(subject, ops, after))
    }

    /// Runs `cases` generated pairs of operations and operations after the recovery. A failure is shrunk.
    ///
    /// The same [seed](Explorer::seed) gives the same cases.
    #[must_use = "a report may hold a failure: call `assert_ok`, or look at `failure`"]
    pub fn check<S: Subject>(
        &self,
        subject: &S,
        cases: u64,
        generate: &impl Generate<Value = (Vec<S::Op>, Vec<S::Op>)>,
    ) -> Report {
        check(self, cases, generate, |explorer, ops, after| explorer.run_then(subject, ops, after))
    }

    fn replay_case(&self) -> Option<&Case> {
        self.replay.as_ref().map(|replay| &replay.case)
    }
}

/// All sequences, each by `run`.
pub(crate) fn sequences<Op: Clone>(
    explorer: &Explorer,
    alphabet: &[Op],
    len: usize,
    after: &[Op],
    run: impl Fn(&Explorer, &[Op], &[Op]) -> Report,
) -> Report {
    let sequence = |number: u64, len: usize| -> Vec<Op> {
        let digit = |place: usize| number / (alphabet.len() as u64).pow((len - 1 - place) as u32);
        (0..len).map(|place| alphabet[(digit(place) % alphabet.len() as u64) as usize].clone()).collect()
    };
    if let Some(Case::Sequence { number, len }) = explorer.replay_case() {
        return run(explorer, &sequence(*number, *len), after);
    }
    let mut total = Report::default();
    for number in 0..(alphabet.len() as u64).pow(len as u32) {
        let mut report = run(explorer, &sequence(number, len), after);
        if let Some(first) = &mut report.failure {
            first.set_case(Case::Sequence { number, len });
            let prefix = |len_now| number / (alphabet.len() as u64).pow((len - len_now) as u32);
            let shortest = (0..=len).find_map(|len| {
                let number = prefix(len);
                let mut failure = run(explorer, &sequence(number, len), after).failure?;
                failure.set_case(Case::Sequence { number, len });
                Some(failure)
            });
            report.failure = shortest.or(report.failure);
        }
        total.merge(report);
        if total.failure.is_some() {
            break;
        }
    }
    total
}

/// Generated cases, each by `run`.
pub(crate) fn check<Op>(
    explorer: &Explorer,
    cases: u64,
    generate: &impl Generate<Value = (Vec<Op>, Vec<Op>)>,
    run: impl Fn(&Explorer, &[Op], &[Op]) -> Report,
) -> Report {
    if let Some(Case::Generated { seed, moves }) = explorer.replay_case() {
        let mut tree = tree(generate, *seed);
        for simplify in moves {
            let _ = if *simplify { tree.simplify() } else { tree.complicate() };
        }
        let (ops, after) = tree.current();
        return run(&explorer.clone().seed(*seed), &ops, &after);
    }
    let quick = Explorer { suggest: false, ..explorer.clone() };
    let mut total = Report::default();
    for case in 0..cases {
        let seed = mix(explorer.seed.wrapping_add(case));
        let mut tree = tree(generate, seed);
        let (ops, after) = tree.current();
        let mut report = run(&quick.clone().seed(seed), &ops, &after);
        if report.failure.is_some() {
            report.failure = shrink(explorer, &mut tree, seed, &run).or(report.failure);
        }
        total.merge(report);
        if total.failure.is_some() {
            break;
        }
    }
    total
}

/// The failure of the smallest case that still fails.
fn shrink<Op>(
    explorer: &Explorer,
    tree: &mut impl ValueTree<Value = (Vec<Op>, Vec<Op>)>,
    seed: u64,
    run: &impl Fn(&Explorer, &[Op], &[Op]) -> Report,
) -> Option<Failure> {
    let quick = Explorer { suggest: false, seed, ..explorer.clone() };
    let mut smallest = tree.current();
    let (mut moves, mut kept) = (Vec::new(), 0);
    let mut simplify = true;
    while moves.len() < MAX_MOVES && if simplify { tree.simplify() } else { tree.complicate() } {
        moves.push(simplify);
        let (ops, after) = tree.current();
        simplify = run(&quick, &ops, &after).failure.is_some();
        if simplify {
            smallest = (ops, after);
            kept = moves.len();
        }
    }
    moves.truncate(kept);
    let mut failure = run(&explorer.clone().seed(seed), &smallest.0, &smallest.1).failure?;
    failure.set_case(Case::Generated { seed, moves });
    Some(failure)
}

fn tree<G: Generate>(generate: &G, seed: u64) -> G::Tree {
    let mut bytes = [0; 16];
    bytes[..8].copy_from_slice(&seed.to_le_bytes());
    bytes[8..].copy_from_slice(&mix(seed).to_le_bytes());
    let rng = TestRng::from_seed(RngAlgorithm::XorShift, &bytes);
    let mut runner = TestRunner::new_with_rng(Config { failure_persistence: None, ..Config::default() }, rng);
    generate.new_tree(&mut runner).expect("the generator of operations rejects too much")
}
