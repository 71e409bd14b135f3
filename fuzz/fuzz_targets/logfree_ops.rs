#![no_main]
//! Operations on the log-free maps against a model; then on pools with changed words.

libfuzzer_sys::fuzz_target!(|input: &[u8]| durix_fuzzing::logfree_ops::run_or_corrupt(input));
