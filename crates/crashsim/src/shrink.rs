//! Fewer operations: of a case given by hand, whatever can be left out while it still fails in the same way.

use std::mem::discriminant;

use crate::explore::Explorer;
use crate::replay::Case;
use crate::report::{Failure, Report};
use crate::subject::Subject;

/// Runs spent on one failure.
const TRIES: usize = 200;

/// Which operations are kept.
#[derive(Clone, Debug)]
struct Kept {
    ops: Vec<bool>,
    after: Vec<bool>,
}

impl Kept {
    fn of<Op: Clone>(&self, ops: &[Op], after: &[Op]) -> (Vec<Op>, Vec<Op>) {
        let pick = |all: &[Op], kept: &[bool]| {
            all.iter().zip(kept).filter(|(_, kept)| **kept).map(|(op, _)| op.clone()).collect()
        };
        (pick(ops, &self.ops), pick(after, &self.after))
    }

    fn side(&mut self, after: bool) -> &mut Vec<bool> {
        if after { &mut self.after } else { &mut self.ops }
    }

    /// Positions still kept.
    fn left(&mut self, after: bool) -> Vec<usize> {
        self.side(after).iter().enumerate().filter(|(_, kept)| **kept).map(|(at, _)| at).collect()
    }
}

impl Explorer {
    /// The operations that a replay string has kept, if it says so.
    pub(crate) fn kept<Op: Clone>(&self, ops: &[Op], after: &[Op]) -> Option<(Vec<Op>, Vec<Op>)> {
        match &self.replay.as_ref()?.case {
            Case::Kept { ops: of_ops, after: of_after } => {
                Some(Kept { ops: of_ops.clone(), after: of_after.clone() }.of(ops, after))
            }
            _ => None,
        }
    }

    /// The same report with a failure of fewer operations, which `accept` has approved.
    #[doc(hidden)]
    #[must_use = "a report may hold a failure: call `assert_ok`, or look at `failure`"]
    pub fn shrunk<S: Subject>(
        &self,
        subject: &S,
        ops: &[S::Op],
        after: &[S::Op],
        report: Report,
        accept: impl Fn(&[S::Op], &[S::Op]) -> bool,
    ) -> Report {
        let run = |explorer: &Explorer, ops: &[S::Op], after: &[S::Op]| explorer.run_then(subject, ops, after);
        shrunk(self, ops, after, report, accept, run)
    }
}

/// The same report with a failure of fewer operations: those that `run` fails with, and that `accept` has approved.
pub(crate) fn shrunk<Op: Clone>(
    explorer: &Explorer,
    ops: &[Op],
    after: &[Op],
    mut report: Report,
    accept: impl Fn(&[Op], &[Op]) -> bool,
    run: impl Fn(&Explorer, &[Op], &[Op]) -> Report,
) -> Report {
    let Some(first) = report.failure.take() else { return report };
    let mut shrinker = Shrinker { explorer, ops, after, accept, run, tries: TRIES, first: &first };
    let mut kept = Kept { ops: vec![true; ops.len()], after: vec![true; after.len()] };
    shrinker.cut_what_was_not_reached(&mut kept);
    while shrinker.pass(&mut kept) {}
    let (ops, after) = kept.of(ops, after);
    let explorer = explorer.clone().shrink_ops(false);
    let mut smallest = (shrinker.run)(&explorer, &ops, &after).failure.unwrap_or(first.clone());
    smallest.set_case(Case::Kept { ops: kept.ops, after: kept.after });
    report.failure = Some(smallest);
    report
}

struct Shrinker<'a, Op, F, R> {
    explorer: &'a Explorer,
    ops: &'a [Op],
    after: &'a [Op],
    accept: F,
    run: R,
    tries: usize,
    first: &'a Failure,
}

impl<Op, F, R> Shrinker<'_, Op, F, R>
where
    Op: Clone,
    F: Fn(&[Op], &[Op]) -> bool,
    R: Fn(&Explorer, &[Op], &[Op]) -> Report,
{
    fn fails(&mut self, kept: &Kept) -> bool {
        if self.tries == 0 {
            return false;
        }
        self.tries -= 1;
        let (ops, after) = kept.of(self.ops, self.after);
        let explorer = Explorer { suggest: false, shrink_ops: false, ..self.explorer.clone() };
        let failure = (self.run)(&explorer, &ops, &after).failure;
        failure.is_some_and(|failure| similar(&failure, self.first)) && (self.accept)(&ops, &after)
    }

    /// Keeps the attempt if it still fails.
    fn keep(&mut self, kept: &mut Kept, attempt: Kept) -> bool {
        let fails = self.fails(&attempt);
        if fails {
            *kept = attempt;
        }
        fails
    }

    fn cut_what_was_not_reached(&mut self, kept: &mut Kept) {
        let mut attempt = kept.clone();
        if let Some((done, in_flight)) = self.first.crash {
            let reached = (done + usize::from(in_flight)).min(attempt.ops.len());
            attempt.ops[reached..].fill(false);
        }
        if !self.first.concerns_later_operations() {
            attempt.after.fill(false);
        }
        self.keep(kept, attempt);
    }

    /// Leaves out halves, quarters and so on, then single operations, the last ones first. True if anything could be.
    fn pass(&mut self, kept: &mut Kept) -> bool {
        let mut any = false;
        for after in [true, false] {
            let mut size = kept.left(after).len().div_ceil(2);
            while size > 0 {
                let left = kept.left(after);
                for chunk in left.chunks(size).rev() {
                    let mut attempt = kept.clone();
                    chunk.iter().for_each(|at| attempt.side(after)[*at] = false);
                    any |= self.keep(kept, attempt);
                }
                size = if size == 1 { 0 } else { size.div_ceil(2) };
            }
        }
        any && self.tries > 0
    }
}

/// Whether two failures are of one kind.
fn similar(a: &Failure, b: &Failure) -> bool {
    let without_crash = |f: &Failure| f.crash.is_none().then(|| discriminant(&f.cause));
    without_crash(a) == without_crash(b)
}
