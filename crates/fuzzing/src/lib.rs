//! The bodies of the fuzz targets, shared with proptests so that stable Rust runs the same checks.

pub mod damage;
pub mod flips;
pub mod index_bytes;
pub mod index_ops;
pub mod log_bytes;
pub mod logfree_ops;
pub mod pool_bytes;

/// Whether tests are asked for their deep form.
#[cfg(test)]
fn is_deep() -> bool {
    std::env::var_os("DURIX_DEEP").is_some_and(|deep| deep == "1")
}

#[cfg(test)]
pub(crate) use cases::cases;

#[cfg(test)]
mod cases {
    use proptest::test_runner::{Config, RngSeed};

    /// So many cases. The quick form draws the same ones at each run, so that a change fails by what it is and not by luck; the deep form
    /// draws new ones, and more. `PROPTEST_RNG_SEED` chooses others in both.
    pub(crate) fn cases(quick: u32, deep: u32) -> Config {
        let config = Config::default();
        if crate::is_deep() {
            return Config { cases: deep, ..config };
        }
        let rng_seed = match config.rng_seed {
            RngSeed::Random => RngSeed::Fixed(0x5eed),
            chosen => chosen,
        };
        Config { cases: quick, rng_seed, ..config }
    }

    /// What a configuration draws first.
    fn drawn(config: Config) -> Vec<u64> {
        use proptest::strategy::{Strategy, ValueTree};
        let mut runner = proptest::test_runner::TestRunner::new(config);
        (0..8).map(|_| proptest::num::u64::ANY.new_tree(&mut runner).expect("a number").current()).collect()
    }

    #[test]
    fn the_quick_form_draws_the_same_cases_at_each_run() {
        if !crate::is_deep() && std::env::var_os("PROPTEST_RNG_SEED").is_none() {
            assert_eq!(drawn(cases(1, 1)), drawn(cases(1, 1)));
            assert_ne!(drawn(Config::default()), drawn(Config::default()), "by itself it draws others");
        }
    }
}
