#![no_main]
//! Operations on an index of every kind against a model.

libfuzzer_sys::fuzz_target!(|input: &[u8]| durix_fuzzing::index_ops::run(input));
