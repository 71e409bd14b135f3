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

/// How many inputs a test draws: always the same ones in the quick form, so that it fails for what has changed and not by luck.
#[cfg(test)]
fn drawn(cases: u32) -> proptest::test_runner::Config {
    use proptest::test_runner::{Config, RngSeed};
    let drawn = Config { cases, ..Config::default() };
    if is_deep() { drawn } else { Config { rng_seed: RngSeed::Fixed(1), ..drawn } }
}
