//! Interleaved measuring, and the few statistics that it needs.
//!
//! A ratio of two figures that were taken one after the other also measures what the machine did in between: another
//! tenant, a change of clock, a page cache that filled up. So all contestants run in short rounds in turn, and a ratio
//! is the median over the rounds of the ratio *within* each round, where both sides saw the same machine.

use std::time::Duration;

/// A clock that runs only while its thread does: what other processes do on a busy machine lengthens a round, but does not count
/// as the contestant's time. On an idle machine it shows what any clock shows, since contestants never sleep.
#[derive(Clone, Copy, Debug)]
pub struct Stopwatch(Duration);

impl Stopwatch {
    /// Starts now, for this thread.
    #[inline]
    pub fn start() -> Stopwatch {
        Stopwatch(Self::now())
    }

    /// How long the thread has run since.
    #[inline]
    pub fn elapsed(self) -> Duration {
        Self::now().saturating_sub(self.0)
    }

    #[inline]
    fn now() -> Duration {
        let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
        Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
    }
}

/// What takes part: each round it does a batch of work and says how long the phases of it took.
pub trait Contestant<const PHASES: usize> {
    /// The name in tables.
    fn name(&self) -> &str;

    /// Does one batch. Returns nanoseconds per operation, for each phase.
    fn round(&mut self) -> [f64; PHASES];
}

/// The samples of one contestant in one phase, one a round, in the order of the rounds.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Series(Vec<f64>);

impl Series {
    /// A series of these samples.
    pub fn new(samples: Vec<f64>) -> Self {
        Series(samples)
    }

    /// The samples, in the order of the rounds.
    pub fn samples(&self) -> &[f64] {
        &self.0
    }

    /// The middle sample, or the mean of the two in the middle. NaN without samples.
    pub fn median(&self) -> f64 {
        self.quantile(0.5)
    }

    /// The `q`-quantile (0 to 1), interpolated linearly between neighbouring samples. NaN without samples.
    pub fn quantile(&self, q: f64) -> f64 {
        let mut sorted = self.0.clone();
        sorted.sort_unstable_by(f64::total_cmp);
        let Some(last) = sorted.len().checked_sub(1) else { return f64::NAN };
        let position = q.clamp(0.0, 1.0) * last as f64;
        let below = position.floor() as usize;
        let above = (below + 1).min(last);
        sorted[below] + (sorted[above] - sorted[below]) * position.fract()
    }

    /// Half the distance between the 10% and the 90% quantile, as a fraction of the median: 0.03 reads "±3%".
    pub fn spread(&self) -> f64 {
        (self.quantile(0.9) - self.quantile(0.1)) / 2.0 / self.median()
    }

    /// Round by round, this divided by `other`.
    ///
    /// # Panics
    /// If the two do not come from the same rounds (their lengths differ).
    #[must_use]
    pub fn ratio_to(&self, other: &Series) -> Series {
        assert_eq!(self.0.len(), other.0.len(), "series of different runs");
        Series(self.0.iter().zip(&other.0).map(|(a, b)| a / b).collect())
    }

    /// With the rounds of a later run behind its own.
    pub fn append(&mut self, later: &Series) {
        self.0.extend_from_slice(&later.0);
    }

    /// Round by round, the sum.
    ///
    /// # Panics
    /// As [`ratio_to`](Series::ratio_to).
    #[must_use]
    pub fn plus(&self, other: &Series) -> Series {
        assert_eq!(self.0.len(), other.0.len(), "series of different runs");
        Series(self.0.iter().zip(&other.0).map(|(a, b)| a + b).collect())
    }
}

/// What one contestant did over all rounds.
#[derive(Clone, Debug)]
pub struct Outcome<const PHASES: usize> {
    /// Its name.
    pub name: String,
    /// One series a phase.
    pub phases: [Series; PHASES],
}

impl<const PHASES: usize> Outcome<PHASES> {
    /// With the rounds of a later run behind its own.
    pub fn append(&mut self, later: &Outcome<PHASES>) {
        self.phases.iter_mut().zip(&later.phases).for_each(|(all, new)| all.append(new));
    }
}

/// Runs every contestant `rounds` times, in turn, after `warm_up` rounds that are not counted. Each round starts one
/// contestant later than the one before, so that nobody always comes right after the same neighbour. The outcomes are
/// in the order of the contestants.
pub fn interleave<const PHASES: usize>(
    contestants: &mut [Box<dyn Contestant<PHASES> + '_>],
    warm_up: usize,
    rounds: usize,
) -> Vec<Outcome<PHASES>> {
    interleave_telling(contestants, warm_up, rounds, &mut || true)
}

/// Rounds that are measured even if time has run out.
pub const LEAST_ROUNDS: usize = 5;

/// The same, and calls `after_round` after each round, outside everything that is timed. It says whether there is time for more:
/// without, no more than [`LEAST_ROUNDS`] are measured.
pub fn interleave_telling<const PHASES: usize>(
    contestants: &mut [Box<dyn Contestant<PHASES> + '_>],
    warm_up: usize,
    rounds: usize,
    after_round: &mut dyn FnMut() -> bool,
) -> Vec<Outcome<PHASES>> {
    let count = contestants.len();
    let mut samples = vec![[const { Vec::new() }; PHASES]; count];
    for round in 0..warm_up + rounds {
        for turn in 0..count {
            let who = (round + turn) % count;
            let laps = contestants[who].round();
            if round >= warm_up {
                samples[who].iter_mut().zip(laps).for_each(|(series, lap)| series.push(lap));
            }
        }
        if !after_round() && round + 1 >= warm_up + LEAST_ROUNDS {
            break;
        }
    }
    contestants
        .iter()
        .zip(samples)
        .map(|(contestant, samples)| Outcome { name: contestant.name().to_owned(), phases: samples.map(Series::new) })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::RefCell;

    #[test]
    fn quantiles_are_interpolated_and_do_not_depend_on_order() {
        let series = Series::new(vec![4.0, 1.0, 3.0, 2.0]);
        assert_eq!(series.median(), 2.5);
        assert_eq!(series.quantile(0.0), 1.0);
        assert_eq!(series.quantile(1.0), 4.0);
        assert_eq!(series.quantile(7.0), 4.0);
        assert!((series.quantile(0.25) - 1.75).abs() < 1e-12);
        assert_eq!(Series::new(vec![5.0]).median(), 5.0);
        assert_eq!(Series::new(vec![3.0, 1.0, 2.0]).median(), 2.0);
        assert!(Series::default().median().is_nan());
        assert_eq!(series.samples(), [4.0, 1.0, 3.0, 2.0], "asking does not reorder");
    }

    #[test]
    fn spread_is_relative_to_the_median() {
        let series = Series::new((0..=100).map(|i| 150.0 + f64::from(i)).collect());
        assert!((series.spread() - 0.2).abs() < 1e-12, "(240 - 160) / 2 / 200");
        assert_eq!(Series::new(vec![7.0; 9]).spread(), 0.0);
    }

    #[test]
    fn a_ratio_is_taken_within_rounds() {
        // The machine became three times slower half-way: a ratio of medians of separate runs would say 3, or 2/3.
        let slow = Series::new(vec![20.0, 20.0, 60.0, 60.0, 60.0]);
        let fast = Series::new(vec![10.0, 10.0, 30.0, 30.0, 30.0]);
        assert_eq!(slow.ratio_to(&fast).samples(), [2.0; 5]);
        assert_eq!(slow.plus(&fast).samples(), [30.0, 30.0, 90.0, 90.0, 90.0]);
    }

    #[test]
    #[should_panic(expected = "different runs")]
    fn series_of_different_runs_have_no_ratio() {
        let _ = Series::new(vec![1.0]).ratio_to(&Series::default());
    }

    #[test]
    fn a_stopwatch_runs_while_its_thread_does() {
        // First, so that what passes between the two lines counts for it alone.
        let start = std::time::Instant::now();
        let watch = Stopwatch::start();
        while watch.elapsed() < Duration::from_millis(2) {}
        assert!(start.elapsed() >= Duration::from_millis(2));
        let watch = Stopwatch::start();
        std::thread::sleep(Duration::from_millis(20));
        assert!(watch.elapsed() < Duration::from_millis(10), "sleeping does not count");
    }

    #[test]
    fn without_time_few_rounds_are_measured() {
        let log = RefCell::default();
        let mut contestants: Vec<Box<dyn Contestant<2> + '_>> = vec![Box::new(Tell("a", &log))];
        let outcomes = interleave_telling(&mut contestants, 2, 100, &mut || false);
        assert_eq!((outcomes[0].phases[0].samples().len(), log.borrow().len()), (LEAST_ROUNDS, LEAST_ROUNDS + 2));
    }

    struct Tell<'a>(&'static str, &'a RefCell<Vec<&'static str>>);
    impl Contestant<2> for Tell<'_> {
        fn name(&self) -> &str {
            self.0
        }
        fn round(&mut self) -> [f64; 2] {
            self.1.borrow_mut().push(self.0);
            let round = self.1.borrow().len() as f64;
            [round, -round]
        }
    }

    #[test]
    fn contestants_take_turns_and_each_round_starts_one_later() {
        let log = RefCell::default();
        let mut contestants: Vec<Box<dyn Contestant<2> + '_>> =
            ["a", "b", "c"].map(|n| Box::new(Tell(n, &log)) as _).into();
        let outcomes = interleave(&mut contestants, 1, 3);
        assert_eq!(log.borrow().concat(), "abcbcacababc");
        let names: Vec<_> = outcomes.iter().map(|o| o.name.as_str()).collect();
        assert_eq!(names, ["a", "b", "c"]);
        assert_eq!(outcomes[0].phases[0].samples(), [6.0, 8.0, 10.0], "the warm-up round is not counted");
        assert_eq!(outcomes[2].phases[1].samples(), [-5.0, -7.0, -12.0]);
    }
}
