//! Many sequences of operations: all short ones, or generated and shrunk by proptest.

use proptest::strategy::{Strategy as Generate, ValueTree};
use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};

use crate::explore::Explorer;
use crate::report::Report;
use crate::subject::Subject;

/// Steps of shrinking after which the smallest failure so far is reported.
const MAX_SHRINKS: usize = 400;

impl Explorer {
    /// Runs every sequence of exactly `len` operations out of `alphabet` (shorter ones are their prefixes: the crash
    /// points of a sequence include those of all its prefixes), each followed by `after` on the recovered structure.
    /// Stops at the first failure, with the shortest failing prefix of that sequence.
    #[must_use = "a report may hold a failure: call `assert_ok`, or look at `failure`"]
    pub fn sequences<S: Subject>(&self, subject: &S, alphabet: &[S::Op], len: usize, after: &[S::Op]) -> Report {
        let mut total = Report::default();
        let mut at = vec![0; len];
        loop {
            let ops: Vec<S::Op> = at.iter().map(|i| alphabet[*i].clone()).collect();
            let mut report = self.run_then(subject, &ops, after);
            if report.failure.is_some() {
                let prefixes = (0..len).map(|n| self.run_then(subject, &ops[..n], after));
                report = prefixes.into_iter().find(|r| r.failure.is_some()).unwrap_or(report);
            }
            total.merge(report);
            let next = at.iter().rposition(|i| i + 1 < alphabet.len());
            let Some(next) = next.filter(|_| total.failure.is_none()) else { return total };
            at[next] += 1;
            at[next + 1..].fill(0);
        }
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
        let mut total = Report::default();
        for case in 0..cases {
            let mut tree = tree(generate, mix(self.seed_value().wrapping_add(case)));
            let (ops, after) = tree.current();
            let mut report = self.run_then(subject, &ops, &after);
            if report.failure.is_some() {
                self.shrink(subject, &mut tree, &mut report);
            }
            total.merge(report);
            if total.failure.is_some() {
                break;
            }
        }
        total
    }

    fn shrink<S: Subject>(
        &self,
        subject: &S,
        tree: &mut impl ValueTree<Value = (Vec<S::Op>, Vec<S::Op>)>,
        report: &mut Report,
    ) {
        let mut more = tree.simplify();
        let mut steps = 0;
        while more && steps < MAX_SHRINKS {
            steps += 1;
            let (ops, after) = tree.current();
            let smaller = self.run_then(subject, &ops, &after);
            more = if smaller.failure.is_some() {
                report.failure = smaller.failure;
                tree.simplify()
            } else {
                tree.complicate()
            };
        }
    }
}

fn tree<G: Generate>(generate: &G, seed: u64) -> G::Tree {
    let mut bytes = [0; 16];
    bytes[..8].copy_from_slice(&seed.to_le_bytes());
    bytes[8..].copy_from_slice(&mix(seed).to_le_bytes());
    let rng = TestRng::from_seed(RngAlgorithm::XorShift, &bytes);
    let mut runner = TestRunner::new_with_rng(Config { failure_persistence: None, ..Config::default() }, rng);
    generate.new_tree(&mut runner).expect("the generator of operations rejects too much")
}

/// splitmix64: neighbouring numbers become unrelated seeds.
fn mix(seed: u64) -> u64 {
    let mut z = seed.wrapping_add(0x9E37_79B9_7F4A_7C15);
    z = (z ^ z >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ z >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ z >> 31
}
